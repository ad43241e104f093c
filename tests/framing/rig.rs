//! A listener of ours before a scripted backend, and a client that writes bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use hyper::body::Incoming;
use ojs_throttle::answers::body::{self, Body};
use ojs_throttle::answers::pass::pass;
use ojs_throttle::answers::respond::{self, Fault};
use ojs_throttle::net::Net;
use ojs_throttle::server::{self, Service};
use ojs_throttle::wire::ojs::Operation;
use ojs_throttle::wire::upstream::{self, Call, Target, Upstream};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::prelude::*;
use crate::servers::{connections, port};
use crate::sidecar::simulated::Start;

/// The largest body that the test service reads.
pub const CAP: usize = 1024 * 1024;
/// The most that any wait in these tests may take.
pub const LONG: Duration = Duration::from_secs(60);

/// Reads FETCH whole, in and out; everything else passes.
pub struct Plain {
    pub upstream: Upstream,
    pub body_time: Duration,
}

impl Service for Plain {
    async fn call(&self, head: Box<Parts>, body: Incoming) -> Response<Body> {
        let id = respond::request_id(&head.headers);
        let uri = head.uri.clone();
        let fault = match Operation::of(&head.method, uri.path()) {
            Err(bad) => return Fault::from(bad).reply(id),
            Ok(Operation::Fetch) => {
                return self
                    .fetch(*head, body)
                    .await
                    .unwrap_or_else(|f| f.reply(id));
            }
            Ok(Operation::Enqueue) => Fault::storing,
            Ok(_) => Fault::backend,
        };
        pass(&self.upstream, head, body, fault).await
    }
}

impl Plain {
    async fn fetch(&self, parts: Parts, incoming: Incoming) -> Result<Response<Body>, Fault> {
        let room = Semaphore::new(2 * CAP);
        let (body, _taken) = body::read(incoming, CAP, self.body_time, &room).await?;
        let call = Call {
            method: parts.method,
            target: parts.uri.to_string().into(),
            headers: parts.headers,
            body,
            timeout: Duration::from_secs(1),
        };
        let reply = self
            .upstream
            .call(call)
            .await
            .map_err(|e| Fault::backend(&e))?;
        assert!(reply.headers.contains_key(CONTENT_TYPE) || reply.status != 200);
        Ok(respond::reply(reply))
    }
}

/// Which of our ports it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// For requests to the backend.
    Data,
    /// For calls of workers: the backend of a test is their vendor.
    Egress,
}

impl Port {
    /// What holds for both is tried on both.
    pub const BOTH: [Port; 2] = [Port::Data, Port::Egress];
}

/// A running listener; it ends with this value.
pub struct Front {
    pub addr: SocketAddr,
    pub drain: CancellationToken,
    pub task: tokio::task::JoinHandle<()>,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Front {
    pub async fn before(backend: &Backend) -> Front {
        Front::with(
            backend,
            server::ListenerBounds::default(),
            upstream::CallBounds::default(),
        )
        .await
    }

    pub async fn at(port: Port, backend: &Backend) -> Front {
        match port {
            Port::Data => Front::before(backend).await,
            Port::Egress => Front::egress(backend).await,
        }
    }

    /// The port for calls, of a whole sidecar. Nobody else speaks to the vendor: no backend is there.
    async fn egress(vendor: &Backend) -> Front {
        let vendor = vendor.addr;
        let entry = format!(
            "[[egress]]\nname = \"vendor\"\nlisten = \"127.0.0.1:0\"\nupstream = \"http://{vendor}\"\nconcurrency = 100\n"
        );
        let nowhere = format!("http://{}", port::own());
        let sidecar = Start::before(&Net::Tcp, &nowhere, &entry).start().await;
        let addr = sidecar.egress[0];
        let task = tokio::spawn(async move { sidecar.task.await.unwrap().unwrap() });
        Front {
            addr,
            drain: sidecar.stop.drain,
            task,
        }
    }

    pub async fn with(
        backend: &Backend,
        limits: server::ListenerBounds,
        way: upstream::CallBounds,
    ) -> Front {
        let target = Target::parse(&format!("http://{}", backend.addr)).unwrap();
        let service = Plain {
            upstream: Upstream::new(target, Net::Tcp, way),
            body_time: Duration::from_millis(300),
        };
        Front::serving(service, limits).await
    }

    pub async fn serving(service: impl Service, limits: server::ListenerBounds) -> Front {
        let listener = Net::Tcp
            .bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .unwrap();
        let addr = listener.local_addr().unwrap();
        let drain = CancellationToken::new();
        let task = tokio::spawn(server::serve(listener, service, limits, drain.clone()));
        Front { addr, drain, task }
    }

    pub async fn client(&self) -> Client {
        Client(TcpStream::connect(self.addr).await.unwrap())
    }

    /// One exchange on a connection of its own; what came until its end or a whole reply.
    pub async fn ask(&self, request: impl AsRef<[u8]>) -> Reply {
        let mut client = self.client().await;
        client.send(request).await;
        client.reply().await
    }
}

/// A client that writes what it is told.
pub struct Client(pub TcpStream);

/// A reply as it came.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// Asserts that it is this refusal of ours; `what` was asked.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str, what: impl std::fmt::Debug) {
        let head = &self.head;
        assert_eq!(
            (self.status, &*self.code()),
            (status, code),
            "{what:?}: {head}"
        );
    }

    /// The code in our error envelope.
    pub fn code(&self) -> String {
        self.error("code")
    }

    /// What to do, in our error envelope.
    pub fn hint(&self) -> String {
        self.error("hint")
    }

    fn error(&self, member: &str) -> String {
        let json: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        json["error"][member].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    pub async fn reply(&mut self) -> Reply {
        tokio::time::timeout(LONG, self.read_reply(false))
            .await
            .expect("no whole reply in time")
    }

    /// The reply to a HEAD request.
    pub async fn bare_reply(&mut self) -> Reply {
        tokio::time::timeout(LONG, self.read_reply(true))
            .await
            .expect("no whole reply in time")
    }

    async fn read_reply(&mut self, bare: bool) -> Reply {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match self.0.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => {
                    return Reply {
                        status: 0,
                        head: String::new(),
                        body: head,
                    };
                }
            }
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply {
            status,
            head,
            body: Vec::new(),
        };
        if bare || matches!(status, 101 | 204 | 304) {
            return reply;
        }
        if let Some(length) = reply.header("content-length") {
            let length: usize = length.parse().unwrap();
            let mut rest = (&mut self.0).take(length as u64);
            rest.read_to_end(&mut reply.body).await.unwrap();
        } else if reply.header("transfer-encoding") == Some("chunked") {
            while !reply.body.ends_with(b"0\r\n\r\n") {
                match self.0.read_u8().await {
                    Ok(byte) => reply.body.push(byte),
                    Err(_) => break,
                }
            }
        } else {
            let _ = self.0.read_to_end(&mut reply.body).await;
        }
        reply
    }

    /// Whether the server closes within `LONG`, sending nothing more.
    pub async fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match tokio::time::timeout(LONG, self.0.read(&mut byte)).await {
            Ok(read) => !matches!(read, Ok(1)),
            Err(_) => false,
        }
    }
}

/// A backend in a thread: each connection is a script's.
pub struct Backend {
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    /// How many connections its scripts have closed.
    closed: Arc<AtomicUsize>,
}

impl Backend {
    /// Runs `script` for each connection, in a thread of its own.
    pub fn run(script: impl Fn(&mut Script) + Send + Sync + 'static) -> Backend {
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let closed = Arc::<AtomicUsize>::default();
        let (noted, count) = (Arc::clone(&seen), Arc::clone(&closed));
        let addr = connections::each(move |stream| {
            let seen = Arc::clone(&noted);
            let mut connection = Script { stream, seen };
            script(&mut connection);
            drop(connection);
            count.fetch_add(1, Ordering::SeqCst);
        });
        Backend { addr, seen, closed }
    }

    /// Waits until so many connections were closed, and whoever has one of them could see it.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of the test closes them"
    )]
    pub async fn has_closed(&self, connections: usize) {
        let begun = std::time::Instant::now();
        while self.closed.load(Ordering::SeqCst) < connections {
            assert!(begun.elapsed() < LONG, "they are open");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The other end hears of it a moment later, and nothing shows when: the system tells it of the close, and the
        // runtime looks at its sockets.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    /// Gives every request the same reply.
    pub fn canned(reply: &'static str) -> Backend {
        Backend::run(move |connection| {
            while connection.request().is_some() {
                connection.write(reply);
            }
        })
    }

    /// A small reply to everything.
    pub fn fine() -> Backend {
        Backend::canned(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nfine",
        )
    }

    /// The requests so far, heads and bodies.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// One connection of a backend.
pub struct Script {
    pub stream: StdStream,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Script {
    /// The next request, whole; `None` at the end.
    pub fn request(&mut self) -> Option<String> {
        let mut text = self.head()?;
        let lower = text.to_ascii_lowercase();
        if let Some((_, rest)) = lower.split_once("content-length: ") {
            let length = rest.split("\r\n").next().unwrap().parse().unwrap();
            let mut body = vec![0; length];
            self.stream.read_exact(&mut body).ok()?;
            text.push_str(&String::from_utf8_lossy(&body));
        } else if lower.contains("transfer-encoding: chunked") {
            let mut byte = [0];
            while !text.ends_with("0\r\n\r\n") {
                self.stream.read_exact(&mut byte).ok()?;
                text.push(char::from(byte[0]));
            }
        }
        self.seen.lock().unwrap().push(text.clone());
        Some(text)
    }

    /// The head of the next request.
    pub fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            self.stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        Some(String::from_utf8(head).unwrap())
    }

    /// Notes what happened.
    pub fn note(&self, what: &str) {
        self.seen.lock().unwrap().push(what.to_owned());
    }

    pub fn write(&mut self, bytes: impl AsRef<[u8]>) {
        // The other side may have gone: some tests want that.
        let _ = self.stream.write_all(bytes.as_ref());
    }
}
