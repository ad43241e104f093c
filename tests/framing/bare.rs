//! Replies and parts of bodies that look like a refusal of the HTTP library below us: they are the other side's words,
//! and cross as they are.

use std::io::Write;

use super::prelude::*;

const DATE: &str = "Date: Sat, 28 Nov 2026 07:00:00 GMT";

/// What servers write that say a status and nothing more.
fn bare(status: &str, nth: usize) -> String {
    let lines = match nth % 4 {
        // Go, and Go as it closes.
        0 => format!("{DATE}\r\nContent-Length: 0"),
        1 => format!("{DATE}\r\nContent-Length: 0\r\nConnection: close"),
        // Node, which closes here.
        2 => format!("{DATE}\r\nConnection: close\r\nContent-Length: 0"),
        // And our own library.
        _ => format!("content-length: 0\r\n{}", DATE.to_ascii_lowercase()),
    };
    format!("HTTP/1.1 {status} Told\r\n{lines}\r\n\r\n")
}

/// Answers `/429/1` with the second of the bare replies of this status.
fn laconic() -> Backend {
    Backend::run(|connection| {
        while let Some(request) = connection.request() {
            let mut path = request.split(' ').nth(1).unwrap().split('/').skip(1);
            let (status, nth) = (path.next().unwrap(), path.next().unwrap());
            let reply = bare(status, nth.parse().unwrap());
            connection.write(&reply);
            if reply.contains("close") {
                return;
            }
        }
    })
}

#[tokio::test]
async fn a_reply_of_a_status_alone_stays_as_it_is() {
    for port in Port::BOTH {
        let backend = laconic();
        let mut front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        for status in 400..=499_u16 {
            for nth in 0..4 {
                for method in ["GET", "HEAD"] {
                    if (429..=430).contains(&status) && port == Port::Egress {
                        // Each shuts the key for a while.
                        front = Front::at(port, &backend).await;
                        client = front.client().await;
                    }
                    let path = format!("/{status}/{nth}");
                    let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n");
                    client.send(head).await;
                    let reply = client.bare_reply().await;
                    let said = (reply.status, reply.header("content-length"));
                    assert_eq!(said, (status, Some("0")), "{port:?} {method} {path}");
                    assert_eq!(reply.header("content-type"), None, "{method} {path}");
                }
            }
        }
        // Nothing stands behind the last one that did not belong there.
        client.send("GET /204/0 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert_eq!(client.reply().await.status, 204);
    }
}

/// The part of a body that is written alone, at a time of its own.
#[tokio::test]
async fn a_part_of_a_body_stays_as_it_is() {
    for port in Port::BOTH {
        let backend = Backend::run(|connection| {
            while connection.request().is_some() {
                let parts = (3..5).map(|nth| bare("404", nth));
                let parts: Vec<String> = parts.chain([bare("429", 3)]).collect();
                let length: usize = parts.iter().map(String::len).sum();
                connection.write(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
                ));
                for part in parts {
                    // Otherwise they are one part.
                    std::thread::sleep(Duration::from_millis(30));
                    connection.stream.write_all(part.as_bytes()).unwrap();
                }
            }
        });
        let front = Front::at(port, &backend).await;
        let mut client = front.client().await;
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let reply = client.reply().await;
            let want = [bare("404", 3), bare("404", 4), bare("429", 3)].concat();
            assert_eq!((reply.status, reply.text()), (200, &*want), "{port:?}");
        }
    }
}

/// Also behind requests that were answered: the refusal is ours, with what to do.
#[tokio::test]
async fn what_cannot_be_read_is_refused_in_the_envelope_later_too() {
    for port in Port::BOTH {
        let front = Front::at(port, &Backend::fine()).await;
        let mut client = front.client().await;
        for _ in 0..3 {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            assert_eq!(client.reply().await.text(), "fine");
        }
        client.send("GET /?a=\" HTTP/1.1\r\nHost: a\r\n\r\n").await;
        let reply = client.reply().await;
        reply.refuses(400, "invalid_request", "a quotation mark");
        let says = |name: &str| reply.head.to_ascii_lowercase().matches(name).count();
        assert_eq!((says("\r\nconnection: close"), says("\r\ndate: ")), (1, 1));
        assert_eq!(says("\r\ncontent-length: "), 1, "{}", reply.head);
        assert!(client.is_closed().await);
    }
}
