//! Calls that wait for a start, and those that do not.

use std::net::SocketAddr;
use std::sync::Arc;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, sim};
use ojs_throttle::store::memory::MemoryStore;

use super::entry;
use super::prelude::*;
use crate::faulty::{Fault, Faulty};
use crate::servers::vendor::VendorCall;
use crate::sidecar::simulated::{Served, Sidecar, Start, backend};

const SLOW: &str = "key = 'vendor'\nthrottle = { limit = 10, period = '1s' }";

#[tokio::test(start_paused = true)]
async fn calls_wait_in_their_order_and_waste_nothing() {
    let world = World::start("", SLOW, |_| Answer::ok()).await;
    let wanted: Vec<_> = (0..40).map(|nth| format!("/{nth}")).collect();
    let mut calls = Vec::new();
    for path in &wanted {
        calls.push(world.begins(path));
        sleep(millis(1)).await;
    }
    let begun = Instant::now();
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
    assert!(begun.elapsed() < millis(4_000), "{:?}", begun.elapsed());
    let seen = world.vendor.calls();
    let paths: Vec<_> = seen.iter().map(VendorCall::target).collect();
    assert_eq!(paths, wanted);
    let times: Vec<_> = seen.iter().map(|call| call.at).collect();
    spans(&times, millis(100));
}

/// A refusal of ours, which names the key.
async fn refused(world: &World, path: &str, least: u64, most: u64) {
    let begun = Instant::now();
    let reply = world.caller.get(path).await;
    let took = begun.elapsed();
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert_eq!(reply.headers["ojs-throttle-limited"], "vendor");
    let after = reply.headers["retry-after"].to_str().unwrap();
    assert!((1..=30).contains(&after.parse::<u64>().unwrap()));
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "rate_limited");
    assert_eq!(error["details"]["key"], "vendor");
    assert_eq!(error["details"]["egress"], "out");
    assert!(took >= millis(least) && took <= millis(most), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn who_has_no_start_in_time_is_told() {
    let slow = "key = 'vendor'\nthrottle = { limit = 1, period = '20s' }\nmax_wait = '2s'";
    let world = World::start("", slow, |_| Answer::ok()).await;
    assert_eq!(world.statuses("/", 1).await, [200]);
    // It is known that it is too long.
    refused(&world, "/", 0, 1).await;
    let slots = "key = 'vendor'\nconcurrency = 1\nmax_wait = '2s'";
    let world = World::start("", slots, |_| Answer::ok().after(millis(60_000))).await;
    let long = world.begins("/");
    sleep(millis(10)).await;
    refused(&world, "/", 2_000, 2_010).await;
    let world = World::start("", &format!("{SLOW}\non_limit = 'reject'"), fine).await;
    assert_eq!(world.statuses("/", 1).await, [200]);
    refused(&world, "/", 0, 1).await;
    long.abort();
}

#[tokio::test(start_paused = true)]
async fn no_more_wait_than_may() {
    let few = format!("{SLOW}\nmax_waiting = 3");
    let world = World::start("", &few, |_| Answer::ok()).await;
    let calls: Vec<_> = (0..10).map(|_| world.begins("/")).collect();
    let mut statuses = Vec::new();
    for call in calls {
        statuses.push(call.await.unwrap());
    }
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(passed, 4, "{statuses:?}");
}

/// Who finds no place, and who stands behind others until `max_wait` is over, has not asked by itself: it is told when the
/// first of its line may start.
#[tokio::test(start_paused = true)]
async fn who_has_not_asked_is_told_what_the_first_of_its_line_was() {
    for (every, least, should_retry) in [("20s", 18, None), ("90s", 88, Some("false"))] {
        let config = format!(
            "key = 'vendor'\nthrottle = {{ interval = '{every}' }}\nmax_wait = '2m'\nmax_waiting = 1"
        );
        let world = World::start("", &config, |_| Answer::ok()).await;
        assert_eq!(world.statuses("/", 1).await, [200]);
        let caller = world.caller.clone();
        let first = tokio::spawn(async move { caller.get("/").await.status });
        sleep(millis(100)).await;
        let begun = Instant::now();
        let reply = world.caller.get("/").await;
        assert!(begun.elapsed() < millis(10), "{:?}", begun.elapsed());
        assert_eq!(reply.status, 429);
        let text = |name: &str| reply.headers.get(name).map(|of| of.to_str().unwrap());
        let after: u64 = text("retry-after").unwrap().parse().unwrap();
        assert!((least..=least + 2).contains(&after), "{after}");
        assert_eq!(text("x-should-retry"), should_retry, "{every}");
        first.abort();
    }
    // Both have one key, and one waits for less time than the first does.
    let slow = "key = 'vendor'\nthrottle = { interval = '30s' }";
    let listen = "listen = '127.0.0.1:0'\n";
    let other = "[[egress]]\nname = 'short'\nupstream = 'http://127.0.0.1:9'\n";
    let config = format!("{listen}{slow}\nmax_wait = '1m'\n{other}{listen}{slow}\nmax_wait = '5s'");
    let world = World::start("", &config, |_| Answer::ok()).await;
    assert_eq!(world.statuses("/", 1).await, [200]);
    let caller = world.caller.clone();
    let first = tokio::spawn(async move { caller.get("/").await.status });
    sleep(millis(100)).await;
    let short = Client::new(&world.net, world.pair.sidecar.egress[1]);
    let reply = short.get("/").await;
    assert_eq!(reply.status, 429);
    let after: u64 = reply.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((23..=25).contains(&after), "{after}");
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn who_hangs_up_while_it_waits_costs_nothing() {
    let world = World::start("", SLOW, |_| Answer::ok()).await;
    for _ in 0..5 {
        assert_eq!(world.statuses("/", 1).await, [200]);
        // Each of these waits, and goes.
        for rest in [
            "\r\n",
            "Content-Length: 3\r\n\r\nabc",
            "Content-Length: 9\r\n\r\nabc",
        ] {
            let call = format!("GET /gone HTTP/1.1\r\nHost: a\r\n{rest}");
            let stream = world.ring(&call).await;
            sleep(millis(20)).await;
            drop(stream);
            sleep(millis(1)).await;
        }
    }
    let seen = world.vendor.calls();
    assert!(seen.iter().all(|call| call.target() == "/"));
    let times: Vec<_> = seen.iter().map(|call| call.at).collect();
    spans(&times, millis(100));
    let took = times[4] - times[0];
    assert!(took < millis(410), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_line() {
    let keyed = SLOW.replace("'vendor'", "'of:{header.X-Account}:{path.0}'");
    let world = World::start("", &keyed, |_| Answer::ok()).await;
    let begun = Instant::now();
    for account in ["a", "b", "c", "d:e"] {
        let header = [("x-account", account)];
        let sent = (world.caller).send(http::Method::GET, "/v1/x", &header, "");
        assert_eq!(sent.await.status, 200);
    }
    assert!(begun.elapsed() < millis(5));
    assert_eq!(world.statuses("/v1/y", 1).await, [200]);
    let client = world.pair.sidecar.client();
    let listed = client.get("/ojs/v1/rate-limits/of:dx_3Ae:v1").await;
    assert_eq!(listed.status, 200, "{}", listed.text());
}

#[tokio::test(start_paused = true)]
async fn what_was_set_over_http_holds_for_calls_that_wait() {
    let shut = "key = 'vendor'\nconcurrency = 0\nmax_wait = '30s'";
    let world = World::start("", shut, fine).await;
    let waits = world.begins("/");
    sleep(millis(3_000)).await;
    assert!(world.vendor.calls().is_empty());
    let admin = world.pair.sidecar.admin();
    let why = admin.get("/throttle/v1/why?key=vendor").await.json();
    assert_eq!(why["limits"][0]["state"]["waiting"], 1, "{why}");
    let (client, opened) = (world.pair.sidecar.client(), json!({"concurrency": 1}));
    client.set("/ojs/v1/rate-limits/vendor", opened).await;
    let begun = Instant::now();
    assert_eq!(waits.await.unwrap(), 200);
    assert!(begun.elapsed() < millis(50), "{:?}", begun.elapsed());
}

/// Who pauses a key says for how long, or ends it by hand.
#[tokio::test(start_paused = true)]
async fn who_calls_a_paused_key_is_told_when_that_ends_or_who_ends_it() {
    let entry = SLOW.to_owned() + "\nmax_wait = '3s'";
    for (until, took, status, after, code) in [
        ("02:40:02", 2_000_u64, 200, "", ""),
        ("02:41:00", 0, 429, "60", "rate_limited"),
        ("05:00:00", 0, 429, "", "budget_spent"),
        ("", 3_000, 429, "1", "rate_limited"),
    ] {
        let world = World::start("", &entry, |_| Answer::ok()).await;
        let pause = match until {
            "" => json!({"concurrency": 0}),
            _ => json!({"concurrency": 0, "expires_at": format!("2026-02-02T{until}Z")}),
        };
        let client = world.pair.sidecar.client();
        client.set("/ojs/v1/rate-limits/vendor", pause).await;
        let begun = Instant::now();
        let reply = world.caller.get("/").await;
        let lasted = begun.elapsed();
        assert_eq!(reply.status, status, "{until}: {}", reply.text());
        let within = millis(took.saturating_sub(600))..=millis(took + 600);
        assert!(within.contains(&lasted), "{until}: {lasted:?}");
        let header = reply.headers.get("retry-after");
        let header = header.map_or("", |of| of.to_str().unwrap());
        assert_eq!(header, after, "{until}");
        let text = reply.text();
        for part in [code, "paused by hand", "`ojs-throttle resume vendor`"] {
            assert!(status == 200 || text.contains(part), "{until}: {text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_costs_as_much_as_its_entry_says() {
    let priced = "key = 'vendor'\nrate = { limit = 10, period = '1s' }\ncost = 4\nmax_wait = '5s'";
    let world = World::start("", priced, |_| Answer::ok()).await;
    let begun = Instant::now();
    assert_eq!(world.statuses("/", 5).await, [200; 5]);
    let took = begun.elapsed();
    assert!(took >= millis(2_000) && took <= millis(2_050), "{took:?}");
}

/// A sidecar whose store goes wrong as a test says, between a vendor and a backend.
async fn on_store(egress: &str) -> (Arc<Faulty>, Sidecar, Vendor, Served) {
    let net = Net::Sim(sim::Network::default());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let vendor = Vendor::within(&net, any, fine).await;
    let backend = backend(&net, Lax::redis()).await;
    let memory = Arc::new(MemoryStore::new(1_800_000_000_000_000));
    let store = Arc::new(Faulty::new(memory));
    let start = Start::before(&net, &backend.base(), &entry(vendor.addr, egress));
    let sidecar = start.store(store.clone()).start().await;
    // It serves once the store has answered for the first time.
    assert_eq!(sidecar.client().get("/ojs/v1/health").await.status, 200);
    (store, sidecar, vendor, backend)
}

/// The store decides for a while, and grants the start when its caller has gone: nothing was sent, so the start is undone
/// and goes to the next one.
#[tokio::test(start_paused = true)]
async fn who_hangs_up_while_the_store_decides_costs_nothing() {
    let rare = "key = 'vendor'\nthrottle = { interval = '1h' }";
    let (store, sidecar, vendor, _backend) = on_store(rare).await;
    let caller = sidecar.caller();
    store.standing(Some(Fault::late(millis(100))));
    let call = "GET /gone HTTP/1.1\r\nHost: a\r\n\r\n";
    let gone = ring(&caller.net, caller.addr, call).await;
    sleep(millis(50)).await;
    drop(gone);
    sleep(millis(500)).await;
    store.standing(None);
    assert_eq!(caller.get("/next").await.status, 200);
    let calls = vendor.calls();
    let paths: Vec<_> = calls.iter().map(VendorCall::target).collect();
    assert_eq!(paths, ["/next"]);
}

/// A client of a store sends what it asked again, if the connection breaks. What had started the call is undone.
#[tokio::test(start_paused = true)]
async fn a_start_that_was_asked_twice_is_asked_anew() {
    let one = "key = 'vendor'\nconcurrency = 1";
    let (store, sidecar, _vendor, _backend) = on_store(one).await;
    let caller = sidecar.caller();
    let twice = Fault {
        twice: true,
        ..Fault::NONE
    };
    store.standing(Some(twice));
    let begun = Instant::now();
    let ends = async {
        sleep(millis(100)).await;
        store.standing(None);
    };
    let (reply, ()) = tokio::join!(caller.get("/"), ends);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(begun.elapsed() < millis(1_000), "{:?}", begun.elapsed());
    assert_eq!(caller.get("/next").await.status, 200);
}

/// Who waits for a budget has the numbers of the file that holds by now.
#[tokio::test(start_paused = true)]
async fn a_call_that_waits_has_the_budget_of_the_last_reload() {
    let of = |limit: u32| {
        let rate = format!("rate = {{ limit = {limit}, period = '1m' }}");
        format!("max_wait = '2m'\n[[egress.budget]]\nname = 'b'\n{rate}\n")
    };
    let world = World::start("", &of(1), |_| Answer::ok()).await;
    assert_eq!(world.statuses("/", 1).await, [200]);
    let begun = Instant::now();
    let reload = async {
        sleep(millis(500)).await;
        let text = super::entry(world.vendor.addr, &of(100));
        let settings = crate::sidecar::settings(&world.pair.behind.base(), &text);
        let outcome = world.pair.sidecar.reload.apply(settings);
        assert_eq!(outcome.word(), "applied");
    };
    let (statuses, ()) = tokio::join!(world.statuses("/", 2), reload);
    assert_eq!(statuses, [200; 2]);
    assert!(begun.elapsed() < millis(5_000), "{:?}", begun.elapsed());
}
