//! Calls that failed: which are made again and when, and what their callers are told.

use http::Method;

use super::prelude::*;

const TWICE: &str = "retry = 2";

/// The times between the calls that the vendor saw.
fn pauses(world: &World) -> Vec<Duration> {
    let calls = world.vendor.calls();
    calls.windows(2).map(|two| two[1].at - two[0].at).collect()
}

/// At an outage tries are half a second apart, then a second, and up to twice as long by chance.
#[tokio::test(start_paused = true)]
async fn tries_are_apart_and_not_in_step() {
    let mut firsts = Vec::new();
    for limits in ["", "concurrency = 5"] {
        let world = World::start("", &format!("{TWICE}\n{limits}"), |_| Answer::new(503, "")).await;
        assert_eq!(world.statuses("/", 1).await, [503]);
        let pauses = pauses(&world);
        assert_eq!(pauses.len(), 2);
        for (pause, least) in pauses.iter().zip([500, 1_000]) {
            let within = millis(least)..=millis(2 * least + 20);
            assert!(within.contains(pause), "{pauses:?}");
        }
        for _ in 0..20 {
            assert_eq!(world.statuses("/", 1).await, [503]);
        }
        let all = self::pauses(&world);
        firsts.extend(all.chunks(3).map(|three| three[0]));
    }
    let (least, most) = (firsts.iter().min().unwrap(), firsts.iter().max().unwrap());
    assert!(*most - *least > millis(200), "{firsts:?}");
}

/// Limits or none, a time that the vendor names is waited for, and a call that would be too late is not made.
#[tokio::test(start_paused = true)]
async fn a_time_that_the_vendor_names_is_heeded() {
    for limits in ["", "concurrency = 5"] {
        for (status, header, value, pause) in [
            (429, "Retry-After", "4", Some(4_000)),
            (503, "Retry-After", "4", Some(4_000)),
            (529, "Retry-After", "4", Some(4_000)),
            (403, "Retry-After", "4", Some(4_000)),
            (429, "X-RateLimit-Reset", "3s", Some(3_000)),
            (429, "Retry-After", "40", None),
            (403, "X-Else", "1", None),
            (503, "X-RateLimit-Reset", "3600", Some(500)),
        ] {
            let world = World::start("", &format!("{TWICE}\n{limits}"), move |call| {
                match call.nth {
                    0 => Answer::new(status, "").header(header, value),
                    _ => Answer::ok(),
                }
            })
            .await;
            let (reply, pauses) = (world.statuses("/", 1).await, pauses(&world));
            let case = format!("{limits} {status} {header} {value}: {pauses:?}");
            match pause {
                Some(pause) => {
                    assert_eq!((reply[0], pauses.len()), (200, 1), "{case}");
                    let most = millis(pause) + millis(pause / 5).max(millis(600));
                    assert!((millis(pause)..=most).contains(&pauses[0]), "{case}");
                }
                None => assert_eq!((reply[0], pauses.len()), (status, 0), "{case}"),
            }
        }
    }
}

/// While a call rests its slot is another's.
#[tokio::test(start_paused = true)]
async fn a_call_that_rests_has_no_slot() {
    let one = "key = 'vendor'\nconcurrency = 1\nretry = 1";
    let world = World::start("", one, |call| match call.nth {
        0 => Answer::new(503, ""),
        _ => Answer::ok(),
    })
    .await;
    let rests = world.begins("/rests");
    sleep(millis(100)).await;
    let begun = Instant::now();
    assert_eq!(world.statuses("/other", 1).await, [200]);
    assert!(begun.elapsed() < millis(50), "{:?}", begun.elapsed());
    assert_eq!(rests.await.unwrap(), 200);
}

/// A lost reply of what is done anew each time says so, and nothing else says that it may be made again.
#[tokio::test(start_paused = true)]
async fn a_lost_reply_of_a_post_is_in_doubt() {
    let world = World::start("", TWICE, |_| Answer::ok().never(Stops::Closes)).await;
    let key = ("idempotency-key", "k1");
    for (method, headers, code, calls) in [
        (Method::POST, &[][..], "in_doubt", 1),
        (Method::PATCH, &[], "in_doubt", 1),
        (Method::POST, &[key], "service_reply_lost", 1),
        (Method::PUT, &[], "service_reply_lost", 1),
        (Method::DELETE, &[], "service_reply_lost", 1),
        (Method::GET, &[], "service_reply_lost", 3),
    ] {
        let before = world.vendor.calls().len();
        let reply = world.caller.send(method.clone(), "/", headers, "{}").await;
        let error = &reply.json()["error"];
        assert_eq!(error["code"], code, "{method}");
        let is_doubt = code == "in_doubt";
        assert_eq!(reply.status, if is_doubt { 500 } else { 502 });
        assert_eq!(error["retryable"], !is_doubt, "{method}");
        assert_eq!(reply.headers.contains_key("retry-after"), !is_doubt);
        let should = reply.headers.get("x-should-retry");
        let should = should.map(|said| said.to_str().unwrap());
        assert_eq!(should, is_doubt.then_some("false"));
        assert_eq!(error["details"]["egress"], "out");
        assert!(!reply.text().contains("backend"), "{}", reply.text());
        assert_eq!(world.vendor.calls().len() - before, calls, "{method}");
    }
}

/// "Wait" and "it is gone" are told apart.
#[tokio::test(start_paused = true)]
async fn who_must_wait_is_told_for_how_long_and_who_need_not_come_back_too() {
    for (limit, after, is_soon) in [
        ("throttle = { limit = 1, period = '20s' }", Some(20), true),
        ("throttle = { limit = 1, period = '50s' }", Some(50), true),
        ("rate = { limit = 1, period = '10m' }", Some(600), false),
        ("rate = { limit = 1, period = '59m' }", Some(3_540), false),
        ("rate = { limit = 1, period = '24h' }", None, false),
    ] {
        let code = after.map_or("budget_spent", |_| "rate_limited");
        let world = World::start("", &format!("key = 'vendor'\n{limit}"), |_| Answer::ok()).await;
        assert_eq!(world.statuses("/", 1).await, [200]);
        let reply = world.caller.get("/").await;
        let error = &reply.json()["error"];
        assert_eq!(reply.status, 429, "{limit}");
        assert_eq!(error["code"], code, "{limit}");
        let header = |name: &str| reply.headers.get(name).map(|said| said.to_str().unwrap());
        let said = header("retry-after").map(|after| after.parse::<u64>().unwrap());
        // A start may be asked for a little early, and is counted from when it came.
        let is_it = said == after || said == after.map(|after| after + 1);
        assert!(is_it, "{limit}: {said:?}");
        let should_retry = (!is_soon).then_some("false");
        assert_eq!(header("x-should-retry"), should_retry, "{limit}");
        assert_eq!(error["retryable"], after.is_some(), "{limit}");
        assert_eq!(header("ojs-throttle-limited"), Some("vendor"));
        assert_eq!(error["details"]["retry_after"], json!(said), "{limit}");
        let next = error["details"]["next_start"].as_str();
        assert_eq!(next.is_some(), after.is_none(), "{limit}");
        let is_tomorrow = |next: &str| next.starts_with("2026-02-03T02:40:0");
        assert!(next.is_none_or(is_tomorrow), "{next:?}");
    }
    // A key that the vendor shut for three days, of which one is believed.
    let policy = "[[policy]]\nname = 'p'\nkey = 'vendor'\nmatch = { queue = 'q' }\nconcurrency = 5\ncounts = 'calls'\n\
        feedback = { max_pause = '24h' }\n";
    let world = World::start(policy, "key = 'vendor'", |_| {
        Answer::new(429, "").header("Retry-After", "259200")
    })
    .await;
    assert_eq!(world.statuses("/", 1).await, [429]);
    let reply = world.caller.get("/").await;
    assert_eq!(reply.json()["error"]["code"], "budget_spent");
    assert_eq!(world.vendor.calls().len(), 1);
}
