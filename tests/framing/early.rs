//! Answers that come before the request is whole. Many clients read nothing until they have sent all of it.

use std::net::Shutdown;

use ojs_throttle::server::ListenerBounds;
use tokio::io::AsyncWriteExt;

use super::prelude::*;
use super::rig::CAP;

const MIB: usize = 1 << 20;
const SIZES: [usize; 3] = [300_000, MIB, 5 * MIB];

fn post(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n")
}

/// Sends all of it, then reads the answer, as `http.client` does. The status, and whether the connection ends: it does
/// where that is said, and else serves on.
async fn upload(front: &Front, path: &str, length: usize) -> (u16, bool) {
    let mut client = front.client().await;
    client.send(post(path, length)).await;
    let body = vec![b'x'; length];
    let sent = tokio::time::timeout(LONG, client.0.write_all(&body)).await;
    sent.expect("it is not read").expect("the pipe broke");
    let reply = client.reply().await;
    let ends = reply.header("connection") == Some("close");
    match ends {
        true => assert!(client.is_closed().await),
        false => {
            // Both ports refuse this by themselves: the other side may be gone by now.
            client.send("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(client.reply().await.status, 405);
        }
    }
    (reply.status, ends)
}

#[tokio::test]
async fn a_refusal_of_ours_breaks_no_pipe() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        // On the data port one for the path, and one for the length.
        let refused = match port {
            Port::Data => [("/ojs/v1//jobs", 400), ("/ojs/v1/workers/fetch", 413)],
            Port::Egress => [("http://b/", 400), ("http://c/", 400)],
        };
        for length in SIZES {
            for (path, status) in refused {
                let length = length + if status == 413 { CAP } else { 0 };
                let told = upload(&front, path, length).await;
                assert_eq!(told, (status, true), "{path} {length}");
            }
        }
        assert!(backend.seen().is_empty());
    }
}

/// What the other side does that answers when it has the head.
#[derive(Clone, Copy, Debug)]
enum Then {
    ReadsNothing,
    Closes,
    Resets,
}

fn hasty(then: Then) -> Backend {
    Backend::run(move |connection| {
        let Some(head) = connection.head() else {
            return;
        };
        connection.note(&head);
        let body = "x".repeat(20_000);
        connection.write(format!(
            "HTTP/1.1 413 Told\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        match then {
            Then::ReadsNothing => {
                while connection.stream.peek(&mut [0]).is_ok_and(|read| read > 0) {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            Then::Closes => drop(connection.stream.shutdown(Shutdown::Both)),
            // As a close over what was not read does.
            Then::Resets => {}
        }
    })
}

#[tokio::test]
async fn an_early_answer_of_the_other_side_comes_through() {
    for port in Port::BOTH {
        for then in [Then::ReadsNothing, Then::Closes, Then::Resets] {
            for length in SIZES {
                let backend = hasty(then);
                let front = Front::at(port, &backend).await;
                for _ in 0..5 {
                    let (status, ends) = upload(&front, "/x", length).await;
                    // Of a small one, all may be on its way before the answer is there.
                    let is_it = ends || length <= MIB;
                    assert!(
                        status == 413 && is_it,
                        "{port:?} {then:?} {length}: {status}"
                    );
                }
                assert_eq!(backend.seen().len(), 5);
            }
        }
    }
}

/// On a slow line, for longer than a moment.
#[tokio::test]
async fn who_sends_slowly_reads_the_refusal_too() {
    let front = Front::before(&Backend::fine()).await;
    let mut client = front.client().await;
    client.send(post("/ojs/v1//jobs", 900_000)).await;
    for _ in 0..9 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        client.send(vec![b'x'; 100_000]).await;
    }
    assert_eq!(client.reply().await.status, 400);
}

/// A connection on which everything was read stays.
#[tokio::test]
async fn a_small_body_that_came_costs_no_connection() {
    for port in Port::BOTH {
        let front = Front::at(port, &Backend::fine()).await;
        let path = if port == Port::Data {
            "/ojs/v1//jobs"
        } else {
            "http://b/"
        };
        let mut client = front.client().await;
        for _ in 0..3 {
            client.send(post(path, 9) + "123456789").await;
            let reply = client.reply().await;
            assert_eq!((reply.status, reply.header("connection")), (400, None));
        }
        // One that comes later may be read as a request by who knows no better, so nothing may follow it.
        client.send(post(path, 9)).await;
        let reply = client.reply().await;
        assert_eq!(
            (reply.status, reply.header("connection")),
            (400, Some("close"))
        );
        client
            .send("123456789GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .await;
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn who_says_nothing_after_a_refusal_keeps_no_connection() {
    let bounds = ListenerBounds {
        connections: 1,
        ..ListenerBounds::default()
    };
    let mut front = Front::with(&Backend::fine(), bounds, Default::default()).await;
    let mut silent = front.client().await;
    silent.send(post("/ojs/v1//jobs", MIB)).await;
    assert_eq!(silent.reply().await.status, 400);
    // It counts as a connection as long as it is there.
    let since = tokio::time::Instant::now();
    let next = front.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert_eq!(next.status, 200);
    let took = since.elapsed();
    // Of who goes on speaking, it would be 30 s.
    let silence = Duration::from_secs(4)..Duration::from_secs(25);
    assert!(silence.contains(&took), "{took:?}");
    drop(silent);
    // A stop waits less.
    let mut silent = front.client().await;
    silent.send(post("/ojs/v1//jobs", MIB)).await;
    assert_eq!(silent.reply().await.status, 400);
    front.drain.cancel();
    let stopped = tokio::time::timeout(Duration::from_millis(4_000), &mut front.task).await;
    stopped.expect("the stop waits for it").unwrap();
}
