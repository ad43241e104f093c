//! What must stream, and other protocols.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use ojs_throttle::server::ListenerBounds;
use tokio::io::AsyncWriteExt;

use super::prelude::*;

/// More than all buffers on the way together.
const HUGE: usize = 64 * 1024 * 1024;

#[tokio::test]
async fn events_arrive_one_by_one() {
    for port in Port::BOTH {
        let (next, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        let backend = Backend::run(move |connection| {
            connection.request();
            connection.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            for event in ["data: 1\n\n", "data: 2\n\n"] {
                connection.write(format!("{:x}\r\n{event}\r\n", event.len()));
                // The next event only when the client has this one.
                let _ = wait.lock().unwrap().recv();
            }
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        client
            .send("GET /ojs/v1/jobs/x/events HTTP/1.1\r\nHost: a\r\n\r\n")
            .await;
        let mut got = String::new();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            while !got.ends_with(&format!("{event}\r\n")) {
                let byte = tokio::time::timeout(LONG, client.0.read_u8())
                    .await
                    .expect("event held back");
                got.push(char::from(byte.unwrap()));
            }
            next.send(()).unwrap();
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_stream_at_the_backend() {
    for port in Port::BOTH {
        let (gone, left) = tokio::sync::oneshot::channel();
        let gone = std::sync::Mutex::new(Some(gone));
        let backend = Backend::run(move |connection| {
            connection.request();
            connection.write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n:\n\n");
            let _ = connection.stream.read(&mut [0]);
            let _ = gone.lock().unwrap().take().unwrap().send(());
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        client
            .send("GET /ojs/v1/queues/q/events HTTP/1.1\r\nHost: a\r\n\r\n")
            .await;
        client.0.read_u8().await.unwrap();
        drop(client);
        tokio::time::timeout(LONG, left)
            .await
            .expect("the backend still streams")
            .unwrap();
    }
}

/// Whoever asks for work or waits for room looks like one that hung up, and must be noticed before the backend answers.
/// All others wait for their replies.
#[tokio::test]
async fn a_client_that_closes_one_half_gets_its_reply_unless_it_may_be_gone() {
    let (gone, left) = std::sync::mpsc::channel::<()>();
    let left = std::sync::Mutex::new(left);
    let backend = Backend::run(move |connection| {
        while connection.request().is_some() {
            let _ = left.lock().unwrap().recv_timeout(LONG);
            connection.write("HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 2\r\n\r\n{}");
        }
    });
    let front = Front::before(&backend).await;
    for (line, more, is_answered) in [
        ("GET /ojs/v1/jobs/x", "", true),
        ("POST /ojs/v1/jobs", "", true),
        ("POST /ojs/v1/workers/ack", "", true),
        ("POST /ojs/v1/jobs", "OJS-Block-Timeout: 5\r\n", false),
        ("POST /ojs/v1/workers/%66etch", "", false),
    ] {
        let mut client = front.client().await;
        let before = backend.seen().len();
        client
            .send(format!(
                "{line} HTTP/1.1\r\nHost: a\r\n{more}Content-Length: 2\r\n\r\n{{}}"
            ))
            .await;
        client.0.shutdown().await.unwrap();
        let mut got = Vec::new();
        let whole = async {
            if is_answered {
                while backend.seen().len() == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                gone.send(()).unwrap();
            }
            client.0.read_to_end(&mut got).await.unwrap();
        };
        tokio::time::timeout(LONG, whole)
            .await
            .unwrap_or_else(|_| panic!("the connection stays open: {line}"));
        let got = String::from_utf8(got).unwrap();
        assert_eq!(got.ends_with("\r\n\r\n{}"), is_answered, "{line}: {got}");
        assert_eq!(got.is_empty(), !is_answered, "{line}: {got}");
    }
}

#[tokio::test]
async fn websocket_passes_both_ways() {
    let backend = Backend::run(|connection| {
        let head = connection.request().unwrap();
        assert!(
            head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"),
            "{head}"
        );
        assert!(
            head.contains("sec-websocket-protocol: ojs.v1\r\n"),
            "{head}"
        );
        // The first frame comes with the head.
        connection.write(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: ojs.v1\r\n\r\nhello",
        );
        let mut bytes = [0; 64];
        while let Ok(read @ 1..) = connection.stream.read(&mut bytes) {
            let _ = connection.stream.write_all(&bytes[..read]);
        }
    });
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    // And the client's first frame with its request.
    client
        .send(
            "GET /ojs/v1/ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: k\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: ojs.v1\r\n\r\nping",
        )
        .await;
    let reply = client.reply().await;
    assert_eq!(
        (reply.status, reply.header("upgrade")),
        (101, Some("websocket"))
    );
    assert_eq!(reply.header("sec-websocket-accept"), Some("x"));
    let mut got = [0; 9];
    tokio::time::timeout(LONG, client.0.read_exact(&mut got))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&got, b"helloping");
    client.send("more").await;
    tokio::time::timeout(LONG, client.0.read_exact(&mut got[..4]))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(&got[..4], b"more");
    client.0.shutdown().await.unwrap();
    assert!(client.is_closed().await);
}

/// Calls are limited one by one, and what goes over another protocol is not seen.
#[tokio::test]
async fn a_websocket_goes_to_no_vendor() {
    let vendor = Backend::fine();
    let front = Front::at(Port::Egress, &vendor).await;
    let reply = front.ask(SWITCH).await;
    reply.refuses(400, "invalid_request", SWITCH);
    assert!(vendor.seen().is_empty(), "{:?}", vendor.seen());
}

/// A backend that switches protocols, writes no more, and once it may notes how much it is sent until the
/// end.
fn half_closing(may_read: Arc<AtomicBool>) -> Backend {
    Backend::run(move |connection| {
        let Some(head) = connection.head() else {
            return;
        };
        if !head.contains("upgrade: websocket") {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        connection.write(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let _ = connection.stream.shutdown(std::net::Shutdown::Write);
        while !may_read.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut all = Vec::new();
        let _ = connection.stream.read_to_end(&mut all);
        connection.note(&format!("{} bytes", all.len()));
    })
}

const SWITCH: &str =
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[tokio::test]
async fn a_websocket_that_the_backend_half_closes_still_carries_what_the_client_sends() {
    const SENT: usize = HUGE / 4;
    let may_read = Arc::<AtomicBool>::default();
    let backend = half_closing(Arc::clone(&may_read));
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    client.send(SWITCH).await;
    assert_eq!(client.reply().await.status, 101);
    // The backend's end has arrived before anything is sent.
    assert!(client.is_closed().await);
    let all = async {
        client.send(vec![7; SENT]).await;
        client.0.shutdown().await.unwrap();
    };
    // The way is full by then, and nobody but the backend is to make room.
    let room = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        may_read.store(true, Ordering::SeqCst);
    };
    tokio::join!(all, room);
    let noted = async {
        while backend.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, noted).await.unwrap();
    assert_eq!(backend.seen(), [format!("{SENT} bytes")]);
}

#[tokio::test]
async fn a_websocket_is_one_of_the_connections_and_ends_with_the_server() {
    let backend = half_closing(Arc::default());
    let limits = ListenerBounds {
        connections: 1,
        ..ListenerBounds::default()
    };
    let mut front = Front::with(&backend, limits, Default::default()).await;
    let mut first = front.client().await;
    first.send(SWITCH).await;
    assert_eq!(first.reply().await.status, 101);
    let mut second = front.client().await;
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let waits = tokio::time::timeout(Duration::from_millis(100), second.0.readable());
    assert!(waits.await.is_err(), "there is no place for it");
    drop(first);
    assert_eq!(second.reply().await.status, 200);
    drop(second);

    let mut third = front.client().await;
    third.send(SWITCH).await;
    assert_eq!(third.reply().await.status, 101);
    front.drain.cancel();
    tokio::time::timeout(LONG, &mut front.task)
        .await
        .expect("the tunnel does not end")
        .unwrap();
}

#[tokio::test]
async fn a_websocket_whose_client_has_gone_keeps_no_place() {
    let go = Arc::<AtomicBool>::default();
    let gone = Arc::clone(&go);
    let backend = Backend::run(move |connection| {
        let Some(head) = connection.head() else {
            return;
        };
        if !head.contains("upgrade: websocket") {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return;
        }
        connection.note("asked");
        while !gone.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        connection.write(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let _ = connection.stream.read_to_end(&mut Vec::new());
    });
    let limits = ListenerBounds {
        connections: 1,
        ..ListenerBounds::default()
    };
    let front = Front::with(&backend, limits, Default::default()).await;
    let mut first = front.client().await;
    // What comes behind the head keeps its end from being seen.
    first.send(format!("{SWITCH}early")).await;
    let asked = async {
        while backend.seen().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, asked).await.unwrap();
    first.0.set_zero_linger().unwrap();
    drop(first);
    go.store(true, Ordering::SeqCst);
    let mut second = front.client().await;
    second.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(second.reply().await.status, 200);
}

#[tokio::test]
async fn a_refused_websocket_is_an_ordinary_reply() {
    let backend = Backend::canned("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno");
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    for _ in 0..2 {
        client
            .send("GET /ojs/v1/ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await;
        assert_eq!(client.reply().await.text(), "no");
    }
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_the_backend_back() {
    let (told, count) = std::sync::mpsc::channel();
    let told = std::sync::Mutex::new(told);
    let backend = Backend::run(move |connection| {
        connection.request();
        connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: {HUGE}\r\n\r\n"));
        connection
            .stream
            .set_write_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let bytes = vec![0; 1 << 16];
        let mut written = 0;
        while written < HUGE && connection.stream.write_all(&bytes).is_ok() {
            written += bytes.len();
        }
        let _ = told.lock().unwrap().send(written);
    });
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
    let written = tokio::task::spawn_blocking(move || count.recv_timeout(LONG).unwrap())
        .await
        .unwrap();
    assert!(
        written < HUGE / 2,
        "{written} bytes were taken from the backend"
    );
}
