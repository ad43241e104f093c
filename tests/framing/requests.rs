//! Heads and bodies of requests.

use super::prelude::*;
use super::rig::CAP;

#[tokio::test]
async fn what_has_two_readings_is_refused() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n";
        const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\n";
        for (first, rest, want) in [
            ("GET / HTTP/1.1\r\n\r\n", "", 400),
            (GET, "Host: a\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a/b@c\r\n\r\n", "", 400),
            (GET, "Connection: Host\r\n\r\n", 400),
            (GET, "Connection: x, Authorization\r\n\r\n", 400),
            (
                POST,
                "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                501,
            ),
            (
                POST,
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                501,
            ),
            (POST, "Transfer-Encoding: identity\r\n\r\n", 400),
            (POST, "Transfer-Encoding: xchunked\r\n\r\n", 400),
            (POST, "Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
            (
                POST,
                "Connection: Content-Length\r\nContent-Length: 1\r\n\r\nx",
                400,
            ),
            (
                GET,
                "Connection: close, OJS-Version\r\nOJS-Version: 1.0\r\n\r\n",
                400,
            ),
            (
                GET,
                "Connection: X-OJS-Tenant\r\nX-OJS-Tenant: a\r\n\r\n",
                400,
            ),
            (
                GET,
                "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
                400,
            ),
            (GET, "X-OJS-Tenant: a\r\nX-OJS-Tenant: b\r\n\r\n", 400),
            (
                "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "",
                400,
            ),
            (POST, "Content-Length : 1\r\n\r\nx", 400),
            (
                POST,
                "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
                400,
            ),
            (POST, "Content-Length: 3, 3\r\n\r\nxyz", 400),
            (POST, "Content-Length: +3\r\n\r\nxyz", 400),
            (POST, "Content-Length: -1\r\n\r\n", 400),
            (POST, "Content-Length: 0x3\r\n\r\nxyz", 400),
            (POST, "Content-Length: 99999999999999999999\r\n\r\n", 400),
            (GET, "X: 1\r\n folded\r\n\r\n", 400),
            (GET, "X: a\0b\r\n\r\n", 400),
            (GET, "X: a\rb\r\n\r\n", 400),
            (GET, ": nameless\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "", 400),
            ("GET /\r\n\r\n", "", 400),
            ("GET a HTTP/1.1\r\nHost: a\r\n\r\n", "", 400),
            ("POST a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "", 400),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", "", 405),
            ("TRACE / HTTP/1.1\r\nHost: a\r\n\r\n", "", 405),
            (POST, "Expect: foo\r\nContent-Length: 1\r\n\r\n", 417),
        ] {
            let request = [first, rest].concat();
            let reply = front.ask(&request).await;
            assert_eq!(reply.status, want, "{request:?}: {}", reply.head);
            let allow = reply.head.to_ascii_lowercase().contains("\r\nallow: get, ");
            assert_eq!(allow, want == 405, "{request:?}: {}", reply.head);
            // Also where the head is none at all.
            assert!(!reply.hint().is_empty(), "{request:?}");
        }
        assert!(backend.seen().is_empty(), "{:?}", backend.seen());
    }
}

/// It would take jobs past their limits.
#[tokio::test]
async fn grpc_does_not_pass() {
    let backend = Backend::fine();
    let front = Front::before(&backend).await;
    // HTTP/2 with prior knowledge, as gRPC speaks: the preface, and the frame of settings that follows it.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut client = front.client().await;
    client.send(preface).await;
    let mut said = Vec::new();
    // However the connection ends: what was not read resets it.
    let end = tokio::time::timeout(LONG, client.0.read_to_end(&mut said)).await;
    let _ = end.expect("the connection stays open");
    assert!(
        said.is_empty() || said.starts_with(b"HTTP/1.1 4"),
        "{said:?}"
    );

    for kind in ["grpc", "grpc+proto", "grpc-web", "grpc-web-text+proto"] {
        let path = "/ojs.v1.OJSService/Fetch";
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/{kind}\r\n");
        let request = format!("{head}Content-Length: 5\r\n\r\n\0\0\0\0\0");
        let reply = front.ask(request).await;
        let said = (reply.status, &*reply.code());
        assert_eq!(said, (415, "unsupported_media_type"), "{kind}");
        assert!(reply.hint().contains("HTTP"), "{kind}");
    }
    assert!(backend.seen().is_empty(), "{:?}", backend.seen());
}

/// A backend might route these elsewhere than the limits look.
#[tokio::test]
async fn a_path_under_ojs_that_has_two_readings_is_refused() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        for path in [
            "/ojs/v1//jobs",
            "/ojs/v1/workers/fetch/",
            "/ojs/v1/./jobs",
            "/ojs/v1/%2e/jobs",
            "/ojs/v1/x/../jobs",
            "/ojs/v1/x/%2e%2e/jobs",
            "/a/../ojs/v1/jobs",
            "/ojs/v1/workers%2ffetch",
            "/ojs/v1/workers%5cfetch",
            "/ojs/v1/workers\\fetch",
            "/ojs/v1/workers/fetch%00",
            "/ojs/v1/workers/FETCH",
            "/ojs/v1/workers/fetch;a=b",
            "/OJS/v1/jobs",
        ] {
            let body = "{\"queues\":[\"q\"]}";
            let head = format!("Host: a\r\nContent-Length: {}", body.len());
            let reply = front
                .ask(format!("POST {path} HTTP/1.1\r\n{head}\r\n\r\n{body}"))
                .await;
            if port == Port::Data {
                reply.refuses(400, "invalid_request", path);
                continue;
            }
            // How a vendor reads its paths is its own business.
            assert_eq!(reply.status, 200, "{path}: {}", reply.head);
            let seen = backend.seen().pop().unwrap();
            assert!(
                seen.starts_with(&format!("POST {path} HTTP/1.1\r\n")),
                "{seen}"
            );
        }
        let through = if port == Port::Data { 0 } else { 14 };
        assert_eq!(backend.seen().len(), through, "{:?}", backend.seen());
    }
}

#[tokio::test]
async fn what_is_whole_passes_as_it_is() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        for (line, body) in [
            ("GET /x//y/../z?a=%7B%7D", ""),
            ("GET /ojs/v1/jobs/%7B%7Bjob_id%7D%7D", ""),
            ("push /", ""),
            ("ASSERT /", "{}"),
            ("DELETE /ojs/v1/admin/dead-letter", "{\"a\":1}"),
            ("OPTIONS *", ""),
        ] {
            let head = format!(
                "{line} HTTP/1.1\r\nHost: a\r\nX-Odd: \u{e9}\r\nContent-Length: {}",
                body.len()
            );
            let reply = front.ask(format!("{head}\r\n\r\n{body}")).await;
            assert_eq!((reply.status, reply.text()), (200, "fine"), "{line}");
            let seen = backend.seen().pop().unwrap();
            assert!(seen.starts_with(&format!("{line} HTTP/1.1\r\n")), "{seen}");
            assert!(seen.ends_with(&format!("\r\n\r\n{body}")), "{seen}");
        }
    }
}

/// Also of a GET, which seldom has one.
#[tokio::test]
async fn a_body_in_chunks_passes_with_every_method() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        for method in ["GET", "POST", "DELETE", "OPTIONS", "PUSH"] {
            let head = format!("{method} /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked");
            let reply = front
                .ask(format!("{head}\r\n\r\n5\r\nhello\r\n0\r\n\r\n"))
                .await;
            assert_eq!((reply.status, reply.text()), (200, "fine"), "{method}");
            let seen = backend.seen().pop().unwrap();
            let is_whole =
                seen.starts_with(method) && seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
            assert!(is_whole, "{port:?}: {seen}");
        }
    }
}

#[tokio::test]
async fn the_host_becomes_the_backends_and_nothing_is_added() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        let request = "POST /a HTTP/1.1\r\nAccept: x\r\nHost: proxy\r\nConnection: Upgrade, HTTP2-Settings, x-own\r\n\
                   Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX-Own: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\n\
                   X-Request-ID: 7\r\nB: 1\r\nA: 2\r\nB: 3\r\n\r\n";
        assert_eq!(front.ask(request).await.status, 200);
        let want = format!(
            "POST /a HTTP/1.1\r\naccept: x\r\nhost: {}\r\nx-request-id: 7\r\na: 2\r\nb: 1\r\nb: 3\r\n",
            backend.addr
        );
        // Lines of one name keep their order; among different names it has no meaning, and is not kept.
        let seen = backend.seen().pop().unwrap();
        let more = seen.strip_prefix(&want).expect(&seen);
        // By its own name a sidecar knows what comes round; the data port of this rig has none.
        let more: Vec<&str> = more.lines().filter(|line| !line.is_empty()).collect();
        match port {
            Port::Data => assert!(more.is_empty(), "{seen}"),
            Port::Egress => assert!(matches!(more[..], [via] if via.starts_with("via: 1.1 0."))),
        }
    }
}

#[tokio::test]
async fn an_absolute_target_goes_to_our_backend_and_to_no_vendor() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        let request =
            "GET http://169.254.169.254/latest?x HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";
        let reply = front.ask(request).await;
        if port == Port::Egress {
            reply.refuses(403, "host_not_listed", request);
            assert!(reply.hint().contains("base URL"), "{}", reply.text());
            assert!(backend.seen().is_empty(), "{:?}", backend.seen());
            continue;
        }
        assert_eq!(reply.text(), "fine");
        let seen = backend.seen().pop().unwrap();
        assert!(seen.starts_with("GET /latest?x HTTP/1.1\r\n"), "{seen}");
        assert!(
            seen.contains(&format!("host: {}\r\n", backend.addr)),
            "{seen}"
        );
    }
}

#[tokio::test]
async fn of_two_lengths_the_chunked_one_counts() {
    for port in Port::BOTH {
        const LENGTH: &str = "Content-Length: 30";
        const CODING: &str = "Transfer-Encoding: chunked";
        for [first, second] in [[LENGTH, CODING], [CODING, LENGTH]] {
            let backend = Backend::fine();
            let front = Front::at(port, &backend).await;
            let mut client = front.client().await;
            client
                .send(format!(
                    "POST /a HTTP/1.1\r\nHost: a\r\n{first}\r\n{second}\r\n\r\n\
                 3\r\nabc\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
                ))
                .await;
            let reply = client.reply().await;
            assert_eq!(
                (reply.status, reply.header("connection")),
                (200, Some("close")),
                "{first}"
            );
            assert!(client.is_closed().await, "{first}");
            let seen = backend.seen();
            assert_eq!(seen.len(), 1, "{seen:?}");
            assert!(
                seen[0].ends_with("3\r\nabc\r\n0\r\n\r\n") && !seen[0].contains("content-length")
            );
        }
    }
}

/// What stands behind a body might be taken for what stands before it.
#[tokio::test]
async fn trailers_are_dropped() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        let trailers =
            "Content-Length: 1\r\nAuthorization: Bearer b\r\nX-OJS-Tenant: b\r\nX-Sum: 1";
        let mut client = front.client().await;
        client
        .send(format!(
            "POST /a HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\nabc\r\n0\r\n{trailers}\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n"
        ))
        .await;
        assert_eq!(client.reply().await.status, 200);
        assert_eq!(client.reply().await.status, 200);
        let seen = backend.seen();
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert!(seen[0].ends_with("3\r\nabc\r\n0\r\n\r\n"), "{seen:?}");
        assert!(seen[1].starts_with("GET /next "), "{seen:?}");
        for word in ["authorization", "x-ojs-tenant", "trailer", "x-sum"] {
            assert!(
                !seen.concat().to_ascii_lowercase().contains(word),
                "{seen:?}"
            );
        }
    }
}

#[tokio::test]
async fn requests_in_one_write_are_answered_in_order() {
    for port in Port::BOTH {
        let backend = Backend::run(|connection| {
            while let Some(request) = connection.request() {
                let path = request.split(' ').nth(1).unwrap();
                connection.write(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}",
                    path.len()
                ));
            }
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        client
            .send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /22 HTTP/1.1\r\nHost: a\r\n\r\n")
            .await;
        assert_eq!(client.reply().await.text(), "/1");
        assert_eq!(client.reply().await.text(), "/22");
    }
}

#[tokio::test]
async fn old_clients_work() {
    for port in Port::BOTH {
        let backend = Backend::canned(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        );
        let front = Front::at(port, &backend).await;
        let reply = front.ask("GET / HTTP/1.0\r\n\r\n").await;
        assert!(reply.head.starts_with("HTTP/1.0 200"), "{}", reply.head);
        assert_eq!(
            (reply.text(), reply.header("transfer-encoding")),
            ("hi", None)
        );
        assert!(backend.seen()[0].starts_with("GET / HTTP/1.1\r\n"));
    }
}

#[tokio::test]
async fn continue_is_said_only_when_the_body_is_wanted() {
    let backend = Backend::fine();
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .await;
    assert!(client.bare_reply().await.head.starts_with("HTTP/1.1 100"));
    client.send("hi").await;
    assert_eq!(client.reply().await.status, 200);
    let seen = backend.seen().pop().unwrap();
    assert!(
        seen.ends_with("\r\n\r\nhi") && !seen.contains("expect"),
        "{seen}"
    );

    let mut client = front.client().await;
    let length = CAP + 1;
    let head = format!("Host: a\r\nExpect: 100-continue\r\nContent-Length: {length}");
    client
        .send(format!(
            "POST /ojs/v1/workers/fetch HTTP/1.1\r\n{head}\r\n\r\n"
        ))
        .await;
    assert_eq!(client.reply().await.status, 413);
}

#[tokio::test]
async fn heads_have_a_limit() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        let lines = |n: usize| -> String { (0..n).map(|n| format!("X{n}: 1\r\n")).collect() };
        let long = format!("X: {}\r\n", "x".repeat(40 * 1024));
        // The first with over a hundred shows that there are such clients.
        let first = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", lines(100));
        assert_eq!(front.ask(first).await.status, 431);
        // With Host they are one line more.
        for (head, status) in [(lines(255), 200), (lines(256), 431), (long, 431)] {
            let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{head}\r\n");
            let reply = front.ask(request).await;
            assert_eq!(reply.status, status, "{}", reply.head);
            if status == 431 {
                reply.refuses(431, "head_too_large", head.len());
                assert!(reply.text().contains("256 lines"), "{}", reply.text());
            }
        }
        let seen = backend.seen();
        assert_eq!(seen.len(), 1);
        assert!(seen[0].contains("x254: 1\r\n"), "{seen:?}");
    }
}

/// A client that does not encode what it must: it is told, where it would see an empty 400.
#[tokio::test]
async fn a_target_with_raw_characters_passes_or_is_refused_in_the_envelope() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        for (raw, status) in [
            ("\"", 400),
            ("<", 400),
            (">", 400),
            ("`", 200),
            ("#", 200),
            ("{", 200),
            ("}", 200),
            ("|", 200),
            ("\\", 200),
            ("^", 200),
            ("\u{e9}", 200),
            (" ", 400),
            ("\u{7f}", 400),
        ] {
            let line = format!("GET /ojs/v1/jobs/x?a={raw}b HTTP/1.1");
            let reply = front.ask(format!("{line}\r\nHost: a\r\n\r\n")).await;
            assert_eq!(reply.status, status, "{raw:?}: {}", reply.head);
            if status == 400 {
                reply.refuses(400, "invalid_request", raw);
                assert!(reply.hint().contains("%22"), "{raw:?}: {}", reply.text());
            }
        }
    }
}

#[tokio::test]
async fn a_bad_chunk_is_the_clients_fault() {
    for port in Port::BOTH {
        let backend = Backend::fine();
        let front = Front::at(port, &backend).await;
        let extended = format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(20 * 1024));
        for path in ["/ojs/v1/workers/fetch", "/ojs/v1/jobs", "/any"] {
            for body in [
                "zz\r\n",
                "3\r\nabcd\r\n0\r\n\r\n",
                "0x3\r\nabc\r\n0\r\n\r\n",
                "fffffffffffffffff\r\n",
                &extended,
            ] {
                let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked");
                let reply = front.ask(format!("{head}\r\n\r\n{body}")).await;
                assert_eq!(reply.status, 400, "{path} {body:?}: {}", reply.head);
                assert_eq!(reply.code(), "invalid_request");
            }
        }
        assert!(backend.seen().is_empty(), "{:?}", backend.seen());
    }
}

#[tokio::test]
async fn a_refusal_is_readable_by_a_client_that_still_sends() {
    let backend = Backend::fine();
    let front = Front::before(&backend).await;
    for (path, length, want) in [
        ("/ojs/v1//jobs", 200_000, 400),
        ("/ojs/v1/workers/fetch", CAP + 1, 413),
    ] {
        let mut client = front.client().await;
        let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        client.send(&head).await;
        // As much as is drained: a client that reads only after it has sent all of it.
        client.send(vec![b'x'; 200_000]).await;
        let reply = client.reply().await;
        assert_eq!(
            (reply.status, reply.code().as_str() != ""),
            (want, true),
            "{path}"
        );
    }
    assert!(backend.seen().is_empty());
}

#[tokio::test]
async fn a_body_over_the_cap_without_a_length_is_413() {
    let backend = Backend::fine();
    let front = Front::before(&backend).await;
    let mut client = front.client().await;
    client
        .send(
            "POST /ojs/v1/workers/fetch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
        .await;
    let chunk = format!("{CAP:x}\r\n{}\r\n1\r\nx\r\n0\r\n\r\n", "x".repeat(CAP));
    client.send(chunk).await;
    assert_eq!(client.reply().await.status, 413);
}
