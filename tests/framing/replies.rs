//! What the backend answers, and what it does to connections.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method};
use ojs_throttle::net::Net;
use ojs_throttle::wire::upstream::{Call, CallBounds, Target, Upstream, UpstreamError};

use super::prelude::*;
use super::rig::Script;

const ENQUEUE: &str = "POST /ojs/v1/jobs HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
const FETCH: &str = "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
const OTHER: &str = "POST /ojs/v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";

fn call(timeout: Duration) -> Call {
    Call {
        method: Method::POST,
        target: "/x?y".into(),
        headers: HeaderMap::new(),
        body: Bytes::from_static(b"body"),
        timeout,
    }
}

fn to(backend: &Backend, limits: CallBounds) -> Upstream {
    let target = Target::parse(&format!("http://{}/base", backend.addr)).unwrap();
    Upstream::new(target, Net::Tcp, limits)
}

#[tokio::test]
async fn replies_pass_as_they_are() {
    for port in Port::BOTH {
        for (reply, want) in [
            (
                "HTTP/1.1 200 Fine\r\nDate: then\r\nContent-Length: 2\r\nETag: x\r\n\r\nhi",
                "HTTP/1.1 200 Fine\r\ndate: then\r\ncontent-length: 2\r\netag: x\r\n\r\n",
            ),
            (
                "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/openjobspec+json\r\nDate: d\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 405 Method Not Allowed\r\ncontent-type: application/openjobspec+json\r\ndate: d\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nDate: d\r\nContent-Length: 0\r\n\r\n",
                "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-length: 0\r\n\r\n",
            ),
            (
                "HTTP/1.1 304 Not Modified\r\nDate: d\r\nETag: y\r\n\r\n",
                "HTTP/1.1 304 Not Modified\r\ndate: d\r\netag: y\r\n\r\n",
            ),
            (
                "HTTP/1.1 204 No Content\r\nDate: d\r\n\r\n",
                "HTTP/1.1 204 No Content\r\ndate: d\r\n\r\n",
            ),
        ] {
            let front = Front::at(port, &Backend::canned(reply)).await;
            let head = front.ask(OTHER).await.head;
            // The data port of this rig has no name, and says no `Via`.
            let via = head.matches("via: 1.1 ojs-throttle\r\n").count();
            assert_eq!(via, usize::from(port == Port::Egress), "{head}");
            assert_eq!(head.replace("via: 1.1 ojs-throttle\r\n", ""), want);
        }
    }
}

#[tokio::test]
async fn the_length_of_a_head_reply_is_kept() {
    for port in Port::BOTH {
        let backend = Backend::canned("HTTP/1.1 200 OK\r\nDate: d\r\nContent-Length: 10\r\n\r\n");
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        for _ in 0..2 {
            client.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(
                client.bare_reply().await.header("content-length"),
                Some("10")
            );
        }
    }
}

#[tokio::test]
async fn of_two_lengths_in_a_reply_the_chunked_one_counts() {
    let reply = "HTTP/1.1 200 OK\r\nContent-Type: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    for port in Port::BOTH {
        let front = Front::at(port, &Backend::canned(reply)).await;
        let passed = front.ask(OTHER).await;
        assert_eq!(
            (passed.header("content-length"), passed.text()),
            (None, "3\r\nabc\r\n0\r\n\r\n")
        );
    }
    let front = Front::before(&Backend::canned(reply)).await;
    let read = front.ask(FETCH).await;
    assert_eq!(
        (read.header("content-length"), read.text()),
        (Some("3"), "abc")
    );
}

#[tokio::test]
async fn what_is_no_reply_is_502_and_in_doubt_for_enqueue() {
    for reply in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        "",
    ] {
        // One reply a connection, then the end: the request was written, its reply is lost.
        let backend = Backend::run(move |connection| {
            connection.request();
            connection.write(reply);
        });
        let front = Front::before(&backend).await;
        let refused = front.ask(OTHER).await;
        refused.refuses(502, "backend_reply_lost", reply);
        assert_eq!(front.ask(FETCH).await.status, 502, "{reply:?}");
        let doubt = front.ask(ENQUEUE).await;
        doubt.refuses(500, "in_doubt", reply);
        assert!(doubt.text().contains("\"retryable\":false"));
        let call = Front::at(Port::Egress, &backend).await;
        let lost = call.ask(OTHER).await;
        lost.refuses(500, "in_doubt", reply);
        assert_eq!(backend.seen().len(), 4, "nothing is repeated");
    }
}

#[tokio::test]
async fn a_backend_that_is_not_there_is_502_for_all() {
    let mut backend = Backend::fine();
    backend.addr = crate::servers::port::own();
    let front = Front::before(&backend).await;
    for request in [OTHER, FETCH, ENQUEUE] {
        let reply = front.ask(request).await;
        reply.refuses(502, "backend_unreachable", "");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    let call = Front::at(Port::Egress, &backend).await;
    let reply = call.ask(OTHER).await;
    reply.refuses(502, "service_unreachable", "");
    let address = backend.addr.to_string();
    assert_eq!(
        reply.text().matches(&address).count(),
        1,
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn a_reply_cut_short_is_never_taken_for_whole() {
    for reply in [
        "HTTP/1.1 200 OK\r\nContent-Type: t\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nContent-Type: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let backend = Backend::run(move |connection| {
            connection.request();
            connection.write(reply);
        });
        let front = Front::before(&backend).await;
        assert_eq!(front.ask(FETCH).await.code(), "backend_reply_lost");
        for port in Port::BOTH {
            let front = Front::at(port, &backend).await;
            let mut client = front.client().await;
            client.send(OTHER).await;
            let mut got = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.0, &mut got).await;
            let got = String::from_utf8(got).unwrap();
            // Cut off, before or after its head: never a whole reply.
            assert!(
                got.is_empty() || got.starts_with("HTTP/1.1 200 OK"),
                "{got}"
            );
            assert!(!got.ends_with("0\r\n\r\n"), "{got}");
        }
    }
}

/// Answers each request on a connection with its count.
fn counting(connections: &'static AtomicUsize) -> impl Fn(&mut Script) + Send + Sync {
    move |connection| {
        connections.fetch_add(1, Ordering::SeqCst);
        while connection.request().is_some() {
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        }
    }
}

#[tokio::test]
async fn connections_are_used_again_until_they_are_old() {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    let backend = Backend::run(counting(&CONNECTIONS));
    let upstream = to(
        &backend,
        CallBounds {
            idle: Duration::from_secs(1),
            ..CallBounds::default()
        },
    );
    for _ in 0..5 {
        assert_eq!(
            upstream
                .call(call(Duration::from_secs(5)))
                .await
                .unwrap()
                .body,
            "hi"
        );
    }
    assert_eq!(CONNECTIONS.load(Ordering::SeqCst), 1);
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    upstream.call(call(Duration::from_secs(5))).await.unwrap();
    assert_eq!(CONNECTIONS.load(Ordering::SeqCst), 2);
    let seen = backend.seen().pop().unwrap();
    assert!(
        seen.starts_with("POST /base/x?y HTTP/1.1\r\n") && seen.ends_with("\r\n\r\nbody"),
        "{seen}"
    );
}

#[tokio::test]
async fn bytes_behind_a_reply_reach_nobody() {
    for port in Port::BOTH {
        let first = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        let backend = Backend::canned(first);
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        for _ in 0..3 {
            client.send(OTHER).await;
            assert_eq!(client.reply().await.text(), "hi");
        }
        assert_eq!(backend.seen().len(), 3);
    }
}

#[tokio::test]
async fn a_close_between_requests_is_not_noticed_by_clients() {
    for port in Port::BOTH {
        // Each connection serves one request and closes without having said so.
        let backend = Backend::run(|connection| {
            connection.request();
            connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        for nth in 1..=20 {
            client.send(ENQUEUE).await;
            assert_eq!(client.reply().await.status, 200);
            backend.has_closed(nth).await;
        }
        assert_eq!(backend.seen().len(), 20, "nothing is sent twice");
    }
}

#[tokio::test]
async fn idle_connections_that_were_all_closed_are_passed_over() {
    // Each connection serves one request and closes without having said so.
    let backend = Backend::run(|connection| {
        connection.request();
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi");
    });
    let upstream = to(&backend, CallBounds::default());
    let one = || upstream.call(call(Duration::from_secs(5)));
    let (a, b, c) = tokio::join!(one(), one(), one());
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    backend.has_closed(3).await;
    assert_eq!(one().await.unwrap().body, "hi");
    assert_eq!(backend.seen().len(), 4, "nothing is sent twice");
}

#[tokio::test]
async fn a_call_tells_apart_how_it_failed() {
    let silent = Backend::run(|connection| while connection.request().is_some() {});
    let upstream = to(&silent, CallBounds::default());
    let error = upstream
        .call(call(Duration::from_millis(50)))
        .await
        .unwrap_err();
    assert!(
        matches!(error, UpstreamError::Timeout(_)) && error.in_doubt(),
        "{error}"
    );

    let huge = Backend::canned("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n123456");
    let tight = CallBounds {
        reply: 5,
        ..CallBounds::default()
    };
    let bare = || Call {
        body: Bytes::new(),
        ..call(Duration::from_secs(5))
    };
    let upstream = to(&huge, tight);
    let error = upstream.call(bare()).await.unwrap_err();
    assert!(matches!(error, UpstreamError::TooLarge(5)), "{error}");

    let endless =
        Backend::canned("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n");
    let upstream = to(&endless, tight);
    let error = upstream.call(bare()).await.unwrap_err();
    assert!(matches!(error, UpstreamError::TooLarge(5)), "{error}");
    // What was sent may come back, with more to it.
    let echoed = to(&huge, tight).call(call(Duration::from_secs(5))).await;
    assert_eq!(echoed.unwrap().body, "123456");

    // An address that is kept for documentation: nobody answers there.
    let target = Target::parse("http://192.0.2.1:9").unwrap();
    let connect = Duration::from_millis(50);
    let nowhere = Upstream::new(
        target,
        Net::Tcp,
        CallBounds {
            connect,
            ..CallBounds::default()
        },
    );
    let error = nowhere
        .call(call(Duration::from_secs(5)))
        .await
        .unwrap_err();
    assert!(!error.in_doubt(), "{error}");
}

#[tokio::test]
async fn a_head_that_does_not_come_is_504() {
    let silent = Backend::run(|connection| while connection.request().is_some() {});
    let way = CallBounds {
        head: Duration::from_millis(50),
        ..CallBounds::default()
    };
    let front = Front::with(&silent, Default::default(), way).await;
    assert_eq!(front.ask(OTHER).await.status, 504);
    assert_eq!(front.ask(ENQUEUE).await.status, 500);
}

#[tokio::test]
async fn an_answer_before_the_whole_request_passes() {
    for port in Port::BOTH {
        let backend = Backend::run(|connection| {
            connection.head();
            connection.write("HTTP/1.1 413 Payload Too Large\r\nContent-Length: 2\r\n\r\nno");
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        client
            .send("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nfirst")
            .await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.text()), (413, "no"));
    }
}

#[tokio::test]
async fn a_reply_may_have_256_header_lines() {
    for port in Port::BOTH {
        // What a call did that may be made once is in doubt.
        let lost = match port {
            Port::Data => (502, "backend_reply_lost"),
            Port::Egress => (500, "in_doubt"),
        };
        for (lines, status) in [(256, 200), (257, lost.0)] {
            let many: String = (1..lines).map(|n| format!("X{n}: 1\r\n")).collect();
            let reply = format!("HTTP/1.1 200 OK\r\n{many}Content-Length: 2\r\n\r\nhi");
            let backend = Backend::run(move |connection| {
                while connection.request().is_some() {
                    connection.write(&reply);
                }
            });
            let front = Front::at(port, &backend).await;
            // The first with over a hundred shows that the backend sends such replies.
            let first = front.ask(OTHER).await;
            first.refuses(lost.0, lost.1, lines);
            assert!(
                first.text().contains("later replies may have 256"),
                "{}",
                first.text()
            );
            let got = front.ask(OTHER).await;
            assert_eq!(got.status, status, "{}", got.head);
            if status != 200 {
                got.refuses(lost.0, lost.1, lines);
                let why = got.text();
                assert!(why.contains("256 lines") && !why.contains("TLS"), "{why}");
            }
        }
    }
}

/// A small reply that becomes a large one is as large as a plain one.
#[tokio::test]
async fn a_bomb_is_a_reply_that_is_too_large() {
    // 1,000,000 zeros, packed twice.
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;
    let mut packed = vec![0; 1_000_000];
    for _ in 0..2 {
        let mut twice = GzEncoder::new(Vec::new(), Compression::best());
        twice.write_all(&packed).unwrap();
        packed = twice.finish().unwrap();
    }
    let length = packed.len();
    assert!(length < 200);
    let backend = Backend::run(move |connection| {
        while connection.request().is_some() {
            let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip, gzip\r\nContent-Length: ";
            connection.write(format!("{head}{length}\r\n\r\n"));
            connection.write(&packed);
        }
    });
    for (most, fits) in [(999_999, false), (1_000_000, true)] {
        let tight = CallBounds {
            reply: most,
            ..CallBounds::default()
        };
        let came = to(&backend, tight).call(call(Duration::from_secs(5))).await;
        match came {
            Ok(reply) => assert!(fits && reply.body.len() == 1_000_000),
            Err(error) => assert!(
                !fits && matches!(error, UpstreamError::TooLarge(_)),
                "{error}"
            ),
        }
    }
}
