//! Clients over HTTP/2 that take nothing of one reply, beside others on the same connection that they take; and such as
//! send much before they are answered.

use std::convert::Infallible;
use std::sync::Weak;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use ojs_throttle::answers::body::{self, Body};
use ojs_throttle::server::{ListenerBounds, Service};
use ojs_throttle::tls::{ClientFiles, ClientTls, ListenerTls, PlatformRoots};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

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
        Response::new(read.map_or_else(|_| Body::empty(), |(bytes, _)| bytes.into()))
    }

    fn tls(&self) -> Option<ListenerTls> {
        Some(self.0.clone())
    }
}

/// A connection whose client has room for 64 KiB of each reply, and when it ended.
async fn connect<B>(front: &Front) -> (SendRequest<B>, JoinHandle<()>)
where
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let files = ClientFiles {
        ca: Some(format!("{FOLDER}/ca.pem").into()),
        ..ClientFiles::default()
    };
    let tls = ClientTls::new(files, PlatformRoots::WithoutOthers, &[b"h2"]).unwrap();
    let socket = TcpStream::connect(front.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(tls.config()).connect(name, socket);
    let stream = TokioIo::new(stream.await.unwrap());
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

/// The body of a request is there before it is answered, in several frames or in many requests: nothing more comes from the
/// client that would have the connection look for its answers.
#[tokio::test]
async fn a_body_that_has_come_at_once_is_answered_at_once() {
    let tls = ListenerTls::new(&pem("server.pem"), &pem("key.pem"), None, Vec::new()).unwrap();
    let front = Front::serving(Reads(tls), ListenerBounds::default()).await;
    let (mut sender, _ended) = connect(&front).await;
    let sizes = [100, 30_000, 60_000, 3].into_iter();
    for bytes in sizes.chain(std::iter::repeat_n(200, 6_000)) {
        let request = Request::post("https://localhost/").body(Full::from(vec![7; bytes]));
        let answered = timeout(SHORT, sender.send_request(request.unwrap())).await;
        let reply = answered.unwrap_or_else(|_| panic!("{bytes}: no answer"));
        let got = reply.unwrap().into_body().collect().await.unwrap();
        assert_eq!(got.to_bytes().len(), bytes);
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
    let (mut sender, ended) = connect::<Empty<Bytes>>(&front).await;
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
