//! Bodies that stream, services that fail, and calls that are made again.

use std::net::SocketAddr;

use http::Method;
use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, sim};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::prelude::*;
use crate::servers::vendor::sum;
use crate::sidecar::simulated::{Pair, Start};

#[tokio::test(start_paused = true)]
async fn large_bodies_stream_both_ways() {
    for limits in ["", "key = 'vendor'\nconcurrency = 1"] {
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        let body = large.clone();
        let world = World::start("", limits, move |call| match call.method() {
            "GET" => Answer::new(200, body.clone()).streamed(100_000, millis(1)),
            _ => Answer::new(200, body.clone()),
        })
        .await;
        let got = world.caller.get("/").await;
        assert!(got.body == large);
        let posted = world.caller.send(Method::POST, "/", &[], large.clone());
        assert!(posted.await.body == large);
        let seen = world.vendor.calls();
        assert_eq!((seen[1].length, seen[1].sum), (3_000_000, sum(&large)));
        let chunked = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
                       3\r\nabc\r\n0\r\n\r\n";
        let mut stream = world.ring(chunked).await;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 200 "));
        assert_eq!(world.vendor.calls()[2].body, b"abc");
    }
}

/// Of a body that has trailers all but these comes through, for calls and for jobs.
#[tokio::test(start_paused = true)]
async fn trailers_are_dropped_both_ways() {
    let net = Net::Sim(sim::Network::default());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener = net.bind(any).await.unwrap();
    let at = listener.local_addr().unwrap();
    let start = Start::before(&net, &format!("http://{at}"), &super::entry(at, ""));
    let sidecar = start.start().await;
    let body =
        "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\n\r\n";
    let call = format!(
        "PUT /ojs/v1/x HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n{body}"
    );
    for to in [sidecar.egress[0], sidecar.addr] {
        let answers = async {
            let (mut stream, mut seen) = loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut begins = vec![0; 3];
                stream.read_exact(&mut begins).await.unwrap();
                // The sidecar asks the backend for its manifest by itself.
                if begins == b"PUT" {
                    break (stream, begins);
                }
            };
            while !seen.ends_with(b"0\r\n\r\n") {
                seen.push(stream.read_u8().await.unwrap());
            }
            let answer = format!("HTTP/1.1 200 OK\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(seen).unwrap()
        };
        let (told, seen) = tokio::join!(raw(&net, to, &call), answers);
        for text in [told, seen] {
            let is_whole = text.ends_with("\r\n3\r\nabc\r\n0\r\n\r\n");
            assert!(is_whole && !text.contains("X-Sum: 1"), "{text}");
        }
    }
}

/// A vendor that answers while it leaves the upload where it is is there: so it says. This is of sockets, and of their
/// system's clock.
#[tokio::test]
async fn an_answer_is_not_cut_because_its_vendor_reads_no_more() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener = Net::Tcp.bind(any).await.unwrap();
    let entry = super::entry(listener.local_addr().unwrap(), "");
    let pair = Pair::start(Net::Tcp, Lax::redis(), &entry).await;
    let vendor = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n";
        stream.write_all(head).await.unwrap();
        for part in b"12345678" {
            sleep(millis(1_000)).await;
            if stream.write_all(&[*part]).await.is_err() {
                break;
            }
        }
        stream
    };
    let length = 50_000_000;
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    // A socket of ours would have the same bound.
    let to = pair.sidecar.egress[0];
    let mut stream = tokio::net::TcpStream::connect(to).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reads, mut writes) = tokio::io::split(stream);
    let uploads = tokio::spawn(async move { writes.write_all(&vec![b'x'; length]).await });
    let answer = async {
        let mut answer = Vec::new();
        while let Ok(byte) = reads.read_u8().await {
            answer.push(byte);
        }
        String::from_utf8(answer).unwrap()
    };
    let (_stream, answer) = tokio::join!(vendor, answer);
    assert!(answer.ends_with("\r\n\r\n12345678"), "{answer}");
    uploads.abort();
}

/// Which calls are made again, by the status that the vendor gives the first time, and how often the vendor sees them.
#[tokio::test(start_paused = true)]
async fn safe_calls_are_made_again_and_others_on_429() {
    for (method, first, times) in [
        (Method::GET, "503", 2),
        (Method::GET, "504", 2),
        (Method::GET, "500", 1),
        (Method::GET, "429", 2),
        (Method::GET, "lost", 2),
        (Method::POST, "503", 1),
        (Method::POST, "429", 2),
        (Method::POST, "lost", 1),
    ] {
        let again = "key = 'vendor'\nconcurrency = 1\nretry = 1";
        let world = World::start("", again, move |call| match (call.nth, first) {
            (0, "lost") => Answer::ok().never(Stops::Closes),
            (0, status) => Answer::new(status.parse().unwrap(), "no").header("Retry-After", "1"),
            _ => Answer::ok(),
        })
        .await;
        let begun = Instant::now();
        let reply = world.caller.send(method.clone(), "/", &[], "abc").await;
        let seen = world.vendor.calls();
        assert_eq!(seen.len(), times, "{method} {first}");
        assert!(seen.iter().all(|call| call.body == b"abc"));
        let is_ok = reply.status == 200;
        assert_eq!(is_ok, times == 2, "{method} {first}: {}", reply.status);
        if times == 2 && first == "429" {
            assert!(begun.elapsed() >= millis(990), "{:?}", begun.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_service_said_is_told_where_it_cannot_be_asked_again() {
    let more = "key = 'vendor'\nconcurrency = 1\nretry = 3\nmax_wait = '2s'";
    let world = World::start("", more, |_| {
        Answer::new(429, "their words").header("Retry-After", "60")
    })
    .await;
    let reply = world.caller.get("/").await;
    assert_eq!((reply.status, &*reply.text()), (429, "their words"));
    assert!(!reply.headers.contains_key("ojs-throttle-limited"));
    // The next one is ours.
    let reply = world.caller.get("/").await;
    assert_eq!(reply.headers["ojs-throttle-limited"], "vendor");
    assert_eq!(world.vendor.calls().len(), 1);
}
