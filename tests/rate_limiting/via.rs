//! `Via` (RFC 9110, 7.6.3): every message that crosses says so, and one that comes round again is stopped. And an
//! upstream that is none.

use std::sync::atomic::{AtomicBool, Ordering};

use super::prelude::*;
use crate::sidecar::answering::{answering_as, answering_by, bind};

/// The lines of `Via`.
fn via(headers: &http::HeaderMap) -> Vec<&str> {
    let lines = headers.get_all("via").iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn what_crosses_says_through_whom_and_keeps_what_stood_there() {
    let limit = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";
    let says = |_: &http::request::Parts| (200, Bytes::from_static(b"{\"jobs\":[]}"));
    let (behind, _sidecar, client) = answering_by(Duration::ZERO, limit, says).await;
    let fetch = r#"{"queues":["q"],"count":1,"worker_id":"w"}"#;
    let free = r#"{"queues":["free"],"count":1,"worker_id":"w"}"#;
    for (method, path, body) in [
        (Method::GET, "/any", ""),
        (Method::GET, "/ojs/v1/jobs/x", ""),
        (Method::POST, "/ojs/v1/jobs", r#"{"type":"t","args":[]}"#),
        (Method::POST, "/ojs/v1/workers/fetch", free),
        (Method::POST, "/ojs/v1/workers/fetch", fetch),
        (Method::POST, "/ojs/v1/workers/ack", r#"{"job_id":"x"}"#),
    ] {
        behind.clear();
        let edge = [("via", "1.0 edge"), ("via", "1.1 inner")];
        let reply = client.send(method, path, &edge, body).await;
        let heard = behind.requests();
        let (head, _) = heard.last().expect(path);
        let ours = match via(&head.headers).as_slice() {
            ["1.0 edge", "1.1 inner", ours] => ours.strip_prefix("1.1 ojs-throttle-"),
            other => panic!("{path}: {other:?}"),
        };
        assert!(ours.is_some_and(|name| name.len() >= 8), "{path}: {ours:?}");
        // A FETCH of limited queues is answered by the sidecar itself.
        let want = &["1.1 ojs-throttle"][usize::from(body == fetch)..];
        assert_eq!(via(&reply.headers), want, "{path}");
    }
}

/// A sidecar whose upstream leads back to it, as through a service of the same name.
#[tokio::test(start_paused = true)]
async fn a_request_that_comes_round_again_is_stopped() {
    let net = Net::Sim(sim::Network::default());
    let (mut listener, base) = bind(&net).await;
    let sidecar = Start::before(&net, &base, "").start().await;
    let (port, way) = (sidecar.addr.port(), net.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut back = way.connect("127.0.0.1", port).await.unwrap();
            tokio::spawn(async move {
                let _ended = tokio::io::copy_bidirectional(&mut stream, &mut back).await;
            });
        }
    });
    for (method, path, body) in [
        (Method::GET, "/any", ""),
        (Method::POST, "/ojs/v1/jobs", r#"{"type":"t","args":[]}"#),
    ] {
        let reply = sidecar.client().send(method, path, &[], body).await;
        let error = reply.refuses(508, "loop_detected", path);
        assert_eq!(error["retryable"], false, "{path}: {error}");
        assert!(error["hint"].as_str().unwrap().contains("server.upstream"));
    }
    unready(&sidecar, "this sidecar itself").await;
}

/// Waits until the sidecar is not ready, and says why.
async fn unready(sidecar: &Sidecar, why: &str) {
    let began = Instant::now();
    loop {
        let page = sidecar.admin().get("/readyz").await;
        if page.status == 503 && page.text().contains(why) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{why}: {page:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_before_what_speaks_no_ojs_is_not_ready_until_it_does() {
    let manifest = r#"{"specversion":"1.0","implementation":{"name":"b"}}"#;
    for (status, body, why) in [
        (200, "<html>", "no OJS"),
        (404, "<html>", "no OJS"),
        (200, "{\"hello\":1}", "no OJS"),
        (200, "", "no OJS"),
        // These may come from before a backend that speaks it.
        (401, "<html>", ""),
        (503, "<html>", ""),
        (200, manifest, ""),
    ] {
        let is_mended = Arc::new(AtomicBool::new(false));
        let mended = Arc::clone(&is_mended);
        let says = move |_: &http::request::Parts| match mended.load(Ordering::SeqCst) {
            true => (200, Bytes::from_static(manifest.as_bytes())),
            false => (status, Bytes::from_static(body.as_bytes())),
        };
        let (_behind, sidecar, client) = answering_as(None, Duration::ZERO, "", says).await;
        // By then it has asked.
        client.get("/any").await;
        if !why.is_empty() {
            unready(&sidecar, why).await;
            is_mended.store(true, Ordering::SeqCst);
            sleep(Duration::from_secs(10)).await;
        }
        let page = sidecar.admin().get("/readyz").await;
        let ready = (page.status, &*page.text());
        assert_eq!(ready, (200, "ready\n"), "{status} {body}");
        sidecar.stop().await;
    }
}

/// One that is pointed at its own admin port, or another's.
#[tokio::test(start_paused = true)]
async fn an_admin_port_as_the_upstream_is_named() {
    let (pair, _) = simulated(Lax::spec(), "").await;
    let base = format!("http://{}", pair.sidecar.admin_addr);
    let net = &pair.sidecar.net;
    let wrong = Start::before(net, &base, "").start().await;
    wrong.client().get("/any").await;
    unready(&wrong, "admin port").await;
    wrong.stop().await;
}
