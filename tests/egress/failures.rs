//! Callers that go, bodies that are slow, and services that fail half-way: whatever happens, the slot comes back.

use ojs_throttle::net::{Net, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::prelude::*;
use crate::servers::vendor::VendorCall;
use crate::sidecar::simulated::Start;

const ONE: &str = "key = 'vendor'\nconcurrency = 1";
const MINUTE: Duration = Duration::from_secs(60);

/// More than is read before a call has its start.
fn upload(path: &str, sent: usize) -> String {
    let body = "x".repeat(sent);
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{body}")
}

fn download(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// And no other call on the connection.
fn closing(text: &str) -> String {
    text.replacen("Host", "Connection: close\r\nHost", 1)
}

/// All that comes until the connection ends, however it ends.
async fn rest(mut stream: Stream) -> String {
    let mut text = Vec::new();
    drop(stream.read_to_end(&mut text).await);
    String::from_utf8(text).unwrap()
}

/// The slot is free, and nothing of what was is counted any more.
async fn is_free(world: &World, step: &str) {
    let begun = Instant::now();
    let reply = world.caller.get("/next").await;
    assert_eq!(reply.status, 200, "{step}: {}", reply.text());
    if matches!(world.net, Net::Sim(_)) {
        let took = begun.elapsed();
        assert!(took < millis(100), "{step}: {took:?}");
    }
    let admin = world.pair.sidecar.admin();
    let slots = admin.get("/throttle/v1/why?key=vendor").await.json()["limits"][0]["slots"].clone();
    assert_eq!(slots, json!([]), "{step}");
    for gauge in ["ojs_throttle_calls_out", "ojs_throttle_calls_waiting"] {
        assert_eq!(admin.metric(gauge).await, Some(0.0), "{step}: {gauge}");
    }
}

/// Waits until the vendor has a call for this path that goes on.
async fn begun(world: &World, path: &str) {
    let is = |call: &VendorCall| call.target() == path && call.ended.is_none();
    for _ in 0..10_000 {
        if world.vendor.calls().iter().any(is) {
            return;
        }
        sleep(millis(1)).await;
    }
    panic!("the vendor does not see {path}");
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_gives_the_slot_back_at_each_step() {
    let world = World::start("", ONE, |call| match call.target() {
        "/streams" => Answer::new(200, vec![b'x'; 100_000]).streamed(10, millis(100)),
        "/floods" => Answer::new(200, vec![b'x'; 1_000_000]).streamed(10_000, millis(1)),
        "/early" => Answer::new(413, "no").without_reading(),
        _ => Answer::ok(),
    })
    .await;
    for (step, path, text) in [
        ("it is sent", "/sent", upload("/sent", 30_000)),
        ("it is answered", "/streams", download("/streams")),
        ("its answer is not taken", "/floods", download("/floods")),
    ] {
        let stream = world.ring(&text).await;
        begun(&world, path).await;
        let waits = world.ring(&download("/waits")).await;
        sleep(millis(500)).await;
        let calls = world.vendor.calls();
        assert!(calls.last().unwrap().ended.is_none(), "{step}");
        drop(waits);
        sleep(millis(1)).await;
        drop(stream);
        sleep(millis(10)).await;
        let seen = world.vendor.calls().pop().unwrap();
        assert_eq!(seen.target(), path, "who waited was not sent");
        assert!(seen.is_cut && seen.ended.is_some(), "{step}");
        is_free(&world, step).await;
    }
    // Nor does a vendor hold it that has answered and goes before it has the whole call.
    let early = world.ring(&closing(&upload("/early", 30_000))).await;
    let reply = rest(early).await;
    assert!(status(&reply) == "413" && reply.ends_with("no"), "{reply}");
    is_free(&world, "it was answered early").await;
}

/// A body may take its time, as long as it moves.
#[tokio::test(start_paused = true)]
async fn bodies_may_be_slow_both_ways_and_keep_their_slot() {
    let patient = format!("{ONE}\nmax_wait = '1h'");
    let world = World::start("", &patient, |call| match call.target() {
        "/slow" => Answer::new(200, "abcd").streamed(1, 4 * MINUTE),
        _ => Answer::ok(),
    })
    .await;
    let mut slow = world.ring(&upload("/slow", 25_000)).await;
    begun(&world, "/slow").await;
    let waits = world.ring(&closing(&download("/waits"))).await;
    for _ in 0..3 {
        sleep(MINUTE / 3).await;
        slow.write_all("x".repeat(25_000).as_bytes()).await.unwrap();
    }
    let mut reply = String::new();
    while !reply.ends_with("0\r\n\r\n") {
        reply.push(char::from(slow.read_u8().await.unwrap()));
    }
    assert!(reply.ends_with("\r\nd\r\n0\r\n\r\n"), "{reply}");
    assert!(rest(waits).await.starts_with("HTTP/1.1 200"));
    let seen = world.vendor.calls();
    assert_eq!(seen[0].length, 100_000);
    let ended = seen[0].ended.unwrap();
    assert!(ended - seen[0].at >= 17 * MINUTE && seen[1].at >= ended);
    is_free(&world, "both were slow").await;
}

/// A service that stops half-way is given up after 10 minutes, or at most three times as long. A caller that does so
/// has its slot for a minute.
#[tokio::test(start_paused = true)]
async fn who_falls_silent_is_given_up() {
    let world = World::start("", ONE, |call| match call.target() {
        "/thinks" => Answer::ok().never(Stops::Hangs),
        "/stops" => Answer::new(200, vec![b'x'; 100]).cut(50, Stops::Hangs),
        "/stops-streaming" => Answer::new(200, "abcd")
            .streamed(1, millis(10))
            .cut(2, Stops::Hangs),
        "/deaf" => Answer::ok().without_reading().after(60 * MINUTE),
        "/floods" => Answer::new(200, vec![b'x'; 1_000_000]).streamed(10_000, millis(1)),
        _ => Answer::ok(),
    })
    .await;
    let vendor = format!("http://{}", world.vendor.addr);
    for (path, text, want, said) in [
        ("/thinks", download("/thinks"), 504, "service_timeout"),
        ("/thinks", download("/thinks"), 504, &*vendor),
        ("/stops", download("/stops"), 200, "xxx"),
        ("/stops-streaming", download("/stops-streaming"), 200, "b"),
        ("/deaf", upload("/deaf", 100_000), 500, "in_doubt"),
        ("/sent", upload("/sent", 30_000), 408, "request_timeout"),
    ] {
        let stream = world.ring(&closing(&text)).await;
        let since = Instant::now();
        let patience = tokio::time::timeout(60 * MINUTE, rest(stream));
        let reply = patience.await.expect(path);
        let (least, most) = match (want, text.starts_with("POST")) {
            (408, _) => (MINUTE / 2, MINUTE),
            (200, _) => (10 * MINUTE, 30 * MINUTE),
            (_, true) => (10 * MINUTE, 11 * MINUTE),
            (_, false) => (10 * MINUTE, 10 * MINUTE),
        };
        let took = since.elapsed();
        let within = took >= least && took <= most + millis(100);
        assert!(within, "{path}: {took:?}");
        assert_eq!(status(&reply), want.to_string(), "{path}: {reply}");
        let is_whole = reply.ends_with("0\r\n\r\n");
        assert!(reply.contains(said) && !is_whole, "{path}: {reply}");
        is_free(&world, path).await;
    }
    // A caller that takes nothing of its answer is gone.
    let _stands = world.ring(&download("/floods")).await;
    sleep(MINUTE - millis(500)).await;
    begun(&world, "/floods").await;
    sleep(millis(1_000)).await;
    is_free(&world, "it was not taken").await;
    // Small bodies are read before the call asks for a start, and so it costs nothing.
    let small = "POST /small HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nab";
    let since = Instant::now();
    let reply = rest(world.ring(&closing(small)).await).await;
    assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    assert_eq!(since.elapsed().as_secs(), 10);
    let calls = world.vendor.calls();
    assert!(calls.iter().all(|call| call.target() != "/small"));
}

/// Over sockets, which can be reset.
#[tokio::test]
async fn a_service_that_breaks_off_costs_no_more_than_its_call() {
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = gone.local_addr().unwrap();
    let gone = tokio::spawn(async move {
        while let Ok((stream, _)) = gone.accept().await {
            stream.set_zero_linger().unwrap();
        }
    });
    let listen = "listen = '127.0.0.1:0'\n";
    let both = format!(
        "{listen}{ONE}\n[[egress]]\nname = 'gone'\nupstream = 'http://{addr}'\n{listen}{ONE}"
    );
    let world = World::within(Net::Tcp, "", &both, |call| match call.target() {
        "/reset" => Answer::ok().never(Stops::Resets),
        "/closed" => Answer::ok().never(Stops::Closes),
        "/torn" => Answer::ok().torn(Stops::Resets),
        "/torn-closed" => Answer::ok().torn(Stops::Closes),
        "/body" => Answer::new(200, vec![b'x'; 100]).cut(50, Stops::Resets),
        "/chunks" => Answer::new(200, "abcd")
            .streamed(1, millis(1))
            .cut(2, Stops::Resets),
        _ => Answer::ok(),
    })
    .await;
    let first = world.pair.sidecar.egress[0];
    let gone_at = world.pair.sidecar.egress[1];
    for (to, path, text, status) in [
        (gone_at, "/accepted", download("/accepted"), 502),
        (gone_at, "/accepted", upload("/accepted", 100_000), 500),
        (first, "/reset", download("/reset"), 502),
        (first, "/reset", upload("/reset", 100_000), 500),
        (first, "/closed", download("/closed"), 502),
        (first, "/torn", download("/torn"), 502),
        (first, "/torn-closed", download("/torn-closed"), 502),
        (first, "/body", download("/body"), 200),
        (first, "/chunks", download("/chunks"), 200),
    ] {
        let reply = rest(ring(&world.net, to, closing(&text)).await).await;
        // What came with a reset may be lost.
        let is_cut = status == 200 && reply.is_empty();
        let said = reply.get(9..12).unwrap_or("0").parse().unwrap();
        // Of what was accepted and reset, something was sent or nothing.
        let is_it = said == status || path == "/accepted" && said == 502;
        assert!(is_it || is_cut, "{path}: {reply}");
        let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        match said {
            500 => assert!(body.contains("\"code\":\"in_doubt\""), "{path}: {reply}"),
            502 => assert!(body.contains("\"code\":\"service_"), "{path}: {reply}"),
            _ => assert!(
                body.len() < 100 && !body.ends_with("0\r\n\r\n"),
                "{path}: {reply}"
            ),
        }
        is_free(&world, path).await;
    }
    gone.abort();
}

/// The head and what came of the body come through, also where the rest breaks off at once. Over sockets, where both may
/// come in one piece; so it is with what a backend answers.
#[tokio::test]
async fn who_breaks_its_body_off_at_once_is_heard_before() {
    let world = World::within(Net::Tcp, "", ONE, |call| match call.target() {
        "/chunks" => Answer::new(500, "0123456789")
            .streamed(3, Duration::ZERO)
            .cut(3, Stops::Closes),
        _ => Answer::new(500, "0123456789").cut(3, Stops::Closes),
    })
    .await;
    let backend = format!("http://{}", world.vendor.addr);
    let jobs = Start::before(&world.net, &backend, "").start().await;
    for nth in 0..200 {
        for (to, path) in [
            (world.caller.addr, "/body"),
            (world.caller.addr, "/chunks"),
            (jobs.addr, "/ojs/v1/elsewhere"),
        ] {
            let reply = rest(ring(&world.net, to, download(path)).await).await;
            let is_it = status(&reply) == "500" && reply.contains("012");
            let is_whole = reply.ends_with("0\r\n\r\n");
            assert!(is_it && !is_whole, "{nth} {path}: {reply}");
        }
    }
    jobs.stop().await;
}

/// Nobody can tell who closes one half from who hung up.
#[tokio::test]
async fn who_closes_its_half_gets_no_answer() {
    let world = World::within(Net::Tcp, "", ONE, |call| match call.target() {
        "/half" => Answer::ok().after(millis(100)),
        _ => Answer::ok(),
    })
    .await;
    let mut stream = world.ring(&download("/half")).await;
    begun(&world, "/half").await;
    stream.shutdown().await.unwrap();
    assert_eq!(rest(stream).await, "");
    is_free(&world, "it closed its half").await;
}

/// A caller that waits to be told sends its body when the call has its start.
#[tokio::test(start_paused = true)]
async fn the_body_is_asked_for_when_the_call_starts() {
    let world = World::start("", ONE, |call| match call.target() {
        "/first" => Answer::ok().after(millis(1_000)),
        _ => Answer::ok().with_hints(1),
    })
    .await;
    let _first = world.ring(&download("/first")).await;
    begun(&world, "/first").await;
    let since = Instant::now();
    let head = closing(&upload("/second", 0)).replace("Host", "Expect: 100-continue\r\nHost");
    let mut second = world.ring(&head).await;
    let mut told = [0; 25];
    second.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert!(since.elapsed() >= millis(990), "{:?}", since.elapsed());
    second.write_all(&[b'x'; 100_000]).await.unwrap();
    let reply = rest(second).await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let seen = world.vendor.calls().pop().unwrap();
    assert_eq!((seen.length, seen.header("expect")), (100_000, None));
}

/// What a caller sends after its refusal is read and thrown away, however slowly it comes, but not for ever.
#[tokio::test(start_paused = true)]
async fn who_drips_after_a_refusal_is_read_for_half_a_minute() {
    let world = World::start("", "token = 'sesame'", |_| Answer::ok()).await;
    let mut stream = world.ring(&upload("/x", 1)).await;
    let since = Instant::now();
    let mut told = [0; 12];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 401");
    while stream.write_all(b"x").await.is_ok() {
        assert!(since.elapsed() < MINUTE, "for ever");
        sleep(millis(3_000)).await;
    }
    let took = since.elapsed().as_secs();
    assert!((30..=36).contains(&took), "{took} s");
    assert!(world.vendor.calls().is_empty());
}

/// A service that drops a call of many answers, and calls of other ways out do not go to it.
#[tokio::test(start_paused = true)]
async fn a_service_that_answers_again_is_up_and_others_never_hear_of_it() {
    let other = "listen = '127.0.0.1:0'\n[[egress]]\nname = 'other'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:9'";
    let world = World::start("", other, |call| match call.target() {
        "/drops" => Answer::ok().never(Stops::Closes),
        _ => Answer::ok(),
    })
    .await;
    let admin = world.pair.sidecar.admin();
    let looks = async |up: bool| {
        sleep(millis(100)).await;
        let gauge = "ojs_throttle_service_up{egress=\"out\"}";
        assert_eq!(admin.metric(gauge).await, Some(f64::from(up)));
        for (key, is_told) in [("out", !up), ("other", false)] {
            let why = admin.get(&format!("/throttle/v1/why?key={key}")).await;
            let why = why.text();
            assert_eq!(why.contains("does not answer"), is_told, "{key}: {why}");
        }
    };
    for _ in 0..3 {
        assert_eq!(world.statuses("/", 19).await, [200; 19]);
        looks(true).await;
        assert_eq!(world.statuses("/drops", 2).await, [502; 2]);
        looks(false).await;
    }
    assert_eq!(world.statuses("/", 1).await, [200]);
    looks(true).await;
}
