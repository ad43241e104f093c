//! What the heads of a vendor's answers say of its limits; judged by when the vendor sees the next call.

use ojs_throttle::net::Net;
use tokio::io::AsyncWriteExt as _;

use super::prelude::*;
use crate::harness::table;
use crate::servers::vendor::VendorCall;

/// The vendor's first answer is this; then all is well. How long after it the next call of another path comes there,
/// in milliseconds.
pub(super) async fn pause_after(entry: &str, policies: &str, answer: Answer) -> u64 {
    let patient = format!("max_wait = '1h'\n{entry}");
    let world = World::start(policies, &patient, move |call: &VendorCall| {
        match call.target() {
            "/search/x" => answer.clone(),
            _ => Answer::ok(),
        }
    })
    .await;
    for path in ["/search/x", "/repos/x"] {
        call(&world, path).await;
    }
    let calls = world.vendor.calls();
    let pause = calls[1].at - calls[0].ended.unwrap();
    // Else it would go on through the minutes of all that follow.
    world.pair.stop().await;
    u64::try_from(pause.as_millis()).unwrap()
}

/// A call of somebody who has all the time of the world.
pub(super) async fn call(world: &World, path: &str) -> String {
    let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    world.raw(&head).await
}

/// The head of an answer: its status, and lines with `|` between them.
pub(super) fn head(text: &str) -> Answer {
    let mut lines = text.split('|').map(str::trim);
    let status = lines.next().unwrap().parse().unwrap();
    let lines = lines.map(|line| line.split_once(": ").unwrap());
    lines.fold(Answer::new(status, "{}"), |answer, (name, value)| {
        answer.header(name, value)
    })
}

const KEY: &str = "key = 'vendor'\nconcurrency = 100";

/// Heads as vendors send them at 2026-02-02T02:40:00Z, which is 1770000000, and for how many seconds they shut the key.
const SAID: &str = r#"
// Each spelling of the time.
429 | Retry-After: 7 => 7.0
429 | Retry-After: 1.5 => 1.5
429 | Retry-After: Mon, 02 Feb 2026 02:41:00 GMT => 60.0
429 | retry-after-ms: 1250 | retry-after: 2 => 1.25
429 | retry-after-ms: 250 | retry-after: 9 => 9.0
429 | Retry-After: 3 | Retry-After: 8 => 8.0
429 | X-RateLimit-Retry-After: 4 => 4.0
429 | X-RateLimit-Reset: 60 => 60.0
429 | X-RateLimit-Reset: 30s => 30.0
429 | X-RateLimit-Reset: 6m0s => 360.0
429 | X-RateLimit-Reset: 2026-02-02T02:41:30Z => 90.0
429 | X-RateLimit-Reset: Mon, 02 Feb 2026 02:41:00 GMT => 60.0
429 | X-RateLimit-Reset: 1770000045 => 45.0
429 | X-RateLimit-Reset: 1770000045500 => 45.5
429 | X-RateLimit-Reset-After: 25 => 25.0
429 | X-Rate-Limit-Reset: 1770000045 => 45.0
429 | X-Rate-Limit-Reset: 600 | X-Rate-Limit-Remaining: 0 => 600.0
429 | RateLimit-Reset: 9 | RateLimit-Remaining: 0 => 9.0
429 | x-ratelimit-reset-requests: 6m0s => 360.0
429 | x-ratelimit-reset-requests: 60 => 60.0
429 | x-ratelimit-reset-tokens: 1m30s => 90.0
429 | x-ratelimit-reset-tokens: 7.659999999s => 7.66
// A list may stand in several lines, and a name may have a comma.
429 | RateLimit: "a";r=5;t=99 | RateLimit: "b";r=0;t=12 => 12.0
429 | RateLimit: "a,r=0;t=9";r=5;t=99, "b\",c";r=0;t=12 => 12.0
200 | RateLimit: "a, b";r=0;t=12 => 12.0
429 | RateLimit: limit=100, remaining=0, reset=12 => 12.0
// What is absurd is as long as may be; what is over, or none, is no time.
429 | Retry-After: 99999999999999999999999999999999999999999999 => 900.0
429 | X-RateLimit-Reset: 99999999999999999999999999999999999999 => 900.0
429 | X-RateLimit-Reset: 1760000000 => 10.0
429 | Retry-After: 0 => 10.0
429 | Retry-After: inf => 10.0
429 | Retry-After: -5 => 10.0
429 => 10.0
// The vendor's limit is another one: there is something left of this.
429 | X-RateLimit-Reset: 1770003000 | X-RateLimit-Remaining: 4800 => 10.0
// A bucket is told by when it will be full; the next call may come long before that.
429 | x-ratelimit-limit-requests: 60 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 6m0s => 6.0
200 | x-ratelimit-limit-requests: 60 | x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 6m0s => 6.0
200 | x-ratelimit-limit-requests: 60 | x-ratelimit-remaining-requests: 1 | x-ratelimit-reset-requests: 5m54s => 0.0
// Nobody knows how many tokens the next call wants.
429 | x-ratelimit-limit-tokens: 9000 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 1m30s => 10.0
429 | x-ratelimit-limit-tokens: 9000 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 3s => 3.0
200 | x-ratelimit-limit-tokens: 9000 | x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 1m30s => 0.0
// Of other answers, only those that mean the same.
503 | Retry-After: 7 => 7.0
529 | Retry-After: 7 => 7.0
403 | Retry-After: 7 => 7.0
403 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1770000045 => 45.0
200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 1770000045 => 45.0
503 => 0.0
529 => 0.0
403 => 0.0
500 | Retry-After: 7 => 0.0
202 | Retry-After: 7 => 0.0
200 | X-RateLimit-Reset: 60 => 0.0
200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 5 => 5.0
200 | X-RateLimit-Remaining: 9 | X-RateLimit-Reset: 5 => 0.0
503 | X-RateLimit-Reset: 60 => 0.0
403 | X-RateLimit-Reset: 1770000045 | X-RateLimit-Remaining: 12 => 0.0
// GitHub's search has a budget of its own, Discord's route too.
200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: search => 0.0
403 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: search => 0.0
429 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: search => 0.0
403 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: core => 45.0
200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset-After: 45 | X-RateLimit-Bucket: abcd => 0.0
// But who is told to go away is.
403 | Retry-After: 7 | X-RateLimit-Remaining: 29 | X-RateLimit-Resource: search => 7.0
429 | Retry-After: 7 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: search => 7.0
"#;

#[tokio::test(start_paused = true)]
async fn the_key_is_shut_for_as_long_as_the_head_says() {
    for (said, seconds) in table(SAID) {
        let pause = pause_after(KEY, "", head(said)).await;
        let least = (seconds.parse::<f64>().unwrap() * 1_000.0) as u64;
        // The default may be a tenth longer, and a time in whole seconds began a little ago.
        let within = least.saturating_sub(60)..=least + least / 10 + 60;
        assert!(within.contains(&pause), "{said}: {pause} ms");
    }
}

/// What is one part of the vendor for its limits is one for the key, where the key has its name.
#[tokio::test(start_paused = true)]
async fn the_budget_of_a_part_shuts_the_key_of_that_part() {
    let keyed = "key = 'of:{path.0}'\nconcurrency = 100\nmax_wait = '1h'";
    let world = World::start("", keyed, |call: &VendorCall| match call.target() {
        "/search/x" => head(
            "200 | X-RateLimit-Remaining: 0 | X-RateLimit-Reset: 45 | X-RateLimit-Resource: search",
        ),
        _ => Answer::ok(),
    })
    .await;
    for path in ["/search/x", "/repos/x", "/search/y"] {
        call(&world, path).await;
    }
    let calls = world.vendor.calls();
    assert!(calls[1].at - calls[0].at < millis(100), "{calls:?}");
    let pause = calls[2].at - calls[0].at;
    assert!((44..46).contains(&pause.as_secs()), "{pause:?}");
}

/// What is not believed of a 429 is its time. That it is one is a signal all the same.
#[tokio::test(start_paused = true)]
async fn a_429_is_heeded_whatever_else_is() {
    let late = ["429 | Retry-After: 60", "503 | Retry-After: 60"];
    for (feedback, said, pause) in [
        ("honor = ['retry_after']", "429", 3_000),
        ("honor = []", late[0], 3_000),
        ("honor = [], codes = ['429']", late[0], 3_000),
        ("honor = []", late[1], 0),
        ("honor = [], codes = ['503', 'x']", late[1], 3_000),
        ("codes = ['5??']", "529", 3_000),
        ("codes = ['*']", "200", 0),
    ] {
        let policy = format!(
            "[[policy]]\nname = 'p'\nkey = 'vendor'\nmatch = {{ queue = 'q' }}\nconcurrency = 100\ncounts = 'calls'\n\
             feedback = {{ {feedback}, default_pause = '3s', jitter = 0 }}\n"
        );
        let took = pause_after("key = 'vendor'", &policy, head(said)).await;
        let within = pause..pause + 60;
        assert!(within.contains(&took), "{feedback} {said}: {took} ms");
    }
}

/// Over sockets, on which what was written to a closed one is answered by a reset. Some answers are lost on the way
/// with that: those that came are heeded.
#[tokio::test]
async fn a_vendor_that_refuses_an_upload_and_goes_is_heard() {
    let hasty = "key = 'vendor'\nconcurrency = 100\non_limit = 'reject'";
    for _ in 0..20 {
        let world = World::within(Net::Tcp, "", hasty, |_| {
            head("429 | Retry-After: 60").without_reading()
        })
        .await;
        let port = world.caller.addr.port();
        let mut stream = world.net.connect("127.0.0.1", port).await.unwrap();
        let length = 5 << 20;
        let call = format!("POST /upload HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(call.as_bytes()).await.unwrap();
        // It may be answered, and closed, before all of it is written.
        let _cut = stream.write_all(&vec![b'x'; length]).await;
        for _ in 0..1_000 {
            if !world.vendor.calls().is_empty() {
                break;
            }
            sleep(millis(1)).await;
        }
        let key = "/ojs/v1/rate-limits/vendor";
        let shut = async || {
            let view = world.pair.sidecar.client().get(key).await.json();
            view.get("shut_until").is_some()
        };
        let begun = Instant::now();
        while !shut().await {
            assert!(begun.elapsed() < Duration::from_secs(5), "the key is open");
            sleep(millis(10)).await;
        }
    }
}
