//! Clients over HTTP/2 that take nothing of one reply, beside others on the same connection that they take; and such as
//! send much before they are answered.

use std::sync::Weak;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ojs_throttle::answers::body::{self, Body};
use ojs_throttle::server::{ListenerBounds, Service};
use ojs_throttle::tls::{ClientFiles, ClientTls, ListenerTls, PlatformRoots};
use rustls::pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::prelude::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");
const SHORT: Duration = Duration::from_millis(900);
const LARGE: usize = 1 << 20;
const FRAME: usize = 16 << 10;

fn pem(name: &str) -> Vec<u8> {
    std::fs::read(format!("{FOLDER}/{name}")).unwrap()
}

/// Answers `/large` with much at once, and `/held` when it is told to.
struct Lavish {
    tls: ListenerTls,
    large: Arc<Vec<u8>>,
    go: Arc<Notify>,
}

/// Bytes that are there as long as somebody has them.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Service for Lavish {
    async fn call(&self, head: Box<Parts>, _: Incoming) -> Response<Body> {
        if head.uri.path() == "/large" {
            let bytes = Bytes::from_owner(Shared(Arc::clone(&self.large)));
            return Response::new(bytes.into());
        }
        if head.uri.path() == "/held" {
            self.go.notified().await;
        }
        Response::new(Body::empty())
    }

    fn tls(&self) -> Option<ListenerTls> {
        Some(self.tls.clone())
    }
}

/// Answers a body that it has read.
struct Reads(ListenerTls);

impl Service for Reads {
    async fn call(&self, _: Box<Parts>, incoming: Incoming) -> Response<Body> {
        let room = Semaphore::new(LARGE);
        let read = body::read(incoming, LARGE, LONG, &room).await;
        Response::new(Body::from(Bytes::from(
            read.map_or(0, |(bytes, _)| bytes.len()).to_string(),
        )))
    }

    fn tls(&self) -> Option<ListenerTls> {
        Some(self.0.clone())
    }
}

/// A connection that will speak HTTP/2.
async fn secured(front: &Front) -> TlsStream<TcpStream> {
    let files = ClientFiles {
        ca: Some(format!("{FOLDER}/ca.pem").into()),
        ..ClientFiles::default()
    };
    let tls = ClientTls::new(files, PlatformRoots::WithoutOthers, &[b"h2"]).unwrap();
    let socket = TcpStream::connect(front.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(tls.config()).connect(name, socket);
    stream.await.unwrap()
}

/// A connection whose client has room for 64 KiB of each reply, and when it ended.
async fn connect(front: &Front) -> (SendRequest<Empty<Bytes>>, JoinHandle<()>) {
    let stream = TokioIo::new(secured(front).await);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(65_535);
    let (sender, connection) = http.handshake(stream).await.unwrap();
    let ended = tokio::spawn(async move { drop(connection.await) });
    (sender, ended)
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    let request = Request::get(format!("https://localhost{path}"));
    request.body(Empty::new()).unwrap()
}

async fn until(what: &str, is: impl Fn() -> bool) {
    let seen = async {
        while !is() {
            sleep(SHORT / 30).await;
        }
    };
    timeout(LONG, seen).await.expect(what);
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()];
    [head.concat(), payload.to_vec()].concat()
}

/// A POST of so many bytes, as frames.
fn post(stream: u32, bytes: usize) -> Vec<u8> {
    // `:method` POST, `:scheme` https and `:path` / of HPACK's table, and an `:authority`.
    let head = [&b"\x83\x87\x84\x41\x09"[..], b"localhost"].concat();
    let mut frames = frame(1, 4, stream, &head);
    let body = vec![7; bytes];
    let parts = body.chunks(FRAME);
    for (nth, part) in parts.clone().enumerate() {
        let ends = u8::from(nth + 1 == parts.len());
        frames.extend(frame(0, ends, stream, part));
    }
    frames
}

/// All of a request is there when it is first looked at, and nothing more comes from its client: its answer leaves all the
/// same.
#[tokio::test]
async fn a_request_that_comes_as_a_whole_is_answered_at_once() {
    let tls = ListenerTls::new(&pem("server.pem"), &pem("key.pem"), None, Vec::new()).unwrap();
    let front = Front::serving(Reads(tls), ListenerBounds::default()).await;
    let mut stream = secured(&front).await;
    let begin = [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        &frame(4, 0, 0, &[]),
    ]
    .concat();
    stream.write_all(&begin).await.unwrap();
    // Its own settings are acknowledged, and it has no other word to wait for.
    stream.write_all(&frame(4, 1, 0, &[])).await.unwrap();
    for (nth, bytes) in [100, 30_000, 60_000, 100].into_iter().enumerate() {
        let of = 2 * nth as u32 + 1;
        stream.write_all(&post(of, bytes)).await.unwrap();
        let ends = async {
            loop {
                let mut head = [0; 9];
                stream.read_exact(&mut head).await.unwrap();
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                stream
                    .read_exact(&mut vec![0; length as usize])
                    .await
                    .unwrap();
                let own = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                if own == of && head[3] < 2 && head[4] & 1 == 1 {
                    break;
                }
            }
        };
        timeout(SHORT, ends)
            .await
            .unwrap_or_else(|_| panic!("{bytes} bytes: no answer"));
    }
}

#[tokio::test]
async fn a_reply_that_its_client_does_not_take_ends_with_its_connection() {
    let (large, go) = (Arc::new(vec![7; LARGE]), Arc::new(Notify::new()));
    let held: Weak<Vec<u8>> = Arc::downgrade(&large);
    let service = Lavish {
        tls: ListenerTls::new(&pem("server.pem"), &pem("key.pem"), None, Vec::new()).unwrap(),
        large,
        go: Arc::clone(&go),
    };
    let bounds = ListenerBounds {
        write: SHORT,
        ..ListenerBounds::default()
    };
    let front = Front::serving(service, bounds).await;
    let (mut sender, ended) = connect(&front).await;
    // Who takes it slowly has all of it, however long that takes.
    let mut slow = sender
        .send_request(get("/large"))
        .await
        .unwrap()
        .into_body();
    let mut taken = 0;
    while let Some(frame) = slow.frame().await {
        let before = taken / FRAME;
        taken += frame.unwrap().into_data().unwrap().len();
        sleep(SHORT / 16 * (taken / FRAME - before) as u32).await;
    }
    assert_eq!(taken, LARGE);

    let beside = tokio::spawn(sender.send_request(get("/held")));
    sender.ready().await.unwrap();
    let stalled = sender.send_request(get("/large")).await.unwrap();
    assert_eq!(stalled.status(), 200);
    assert_eq!(held.strong_count(), 2);

    // First no more requests come; those that are there are answered.
    let told = async {
        while sender.send_request(get("/quick")).await.is_ok() {
            sleep(SHORT / 30).await;
        }
    };
    timeout(LONG, told).await.expect("a client is told");
    go.notify_one();
    assert_eq!(beside.await.unwrap().unwrap().status(), 200);
    timeout(LONG, ended)
        .await
        .expect("the connection is still there")
        .unwrap();
    until("the reply is held no more", || held.strong_count() == 1).await;
    drop(stalled);
}
