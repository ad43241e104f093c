//! Calls that cost more than others, beside those.

use tokio::task::JoinSet;

use super::prelude::*;

/// Two ways out with one key: by the first a call costs 1, by the second 80.
fn both(of_first: &str, of_second: &str) -> String {
    let rate = "key = 'vendor'\nrate = { limit = 100, period = '10m' }";
    format!(
        "listen = '127.0.0.1:0'\n{rate}\n{of_first}\n[[egress]]\nname = 'dear'\nlisten = '127.0.0.1:0'\nupstream = 'http://127.0.0.1:9'\n\
         {rate}\ncost = 80\n{of_second}"
    )
}

#[tokio::test(start_paused = true)]
async fn a_refused_dear_call_leaves_the_room_to_others() {
    let reject = "on_limit = 'reject'";
    let world = World::start("", &both(reject, reject), fine).await;
    assert_eq!(world.statuses("/", 40).await, [200; 40]);
    let dear = Client::new(&world.net, world.pair.sidecar.egress[1]);
    for nth in 0..50 {
        assert_eq!(dear.get("/").await.status, 429);
        assert_eq!(world.statuses("/", 1).await, [200], "{nth}");
        sleep(millis(200)).await;
    }
    assert_eq!(world.vendor.calls().len(), 90);
}

/// One that waits is first in line, until its caller hangs up.
#[tokio::test(start_paused = true)]
async fn a_dear_call_whose_caller_has_gone_leaves_the_room_to_others() {
    let entries = both("on_limit = 'reject'", "max_wait = '1h'");
    let world = World::start("", &entries, fine).await;
    assert_eq!(world.statuses("/", 40).await, [200; 40]);
    for nth in 0..50 {
        let call = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let dear = ring(&world.net, world.pair.sidecar.egress[1], call).await;
        sleep(millis(100)).await;
        assert_eq!(world.statuses("/", 1).await, [429], "the room is kept");
        drop(dear);
        sleep(millis(100)).await;
        assert_eq!(world.statuses("/", 1).await, [200], "{nth}");
    }
}

/// Room is kept for as long as it waits, although cheap ones ask all the time.
#[tokio::test(start_paused = true)]
async fn a_dear_call_that_waits_for_long_keeps_its_room() {
    // Seven cheap calls in a window, one each 6 s, leave too little for it.
    let entries = both("on_limit = 'reject'", "max_wait = '1h'").replace("10m", "40s");
    let entries = entries.replace("cost = 80", "cost = 96");
    let world = World::start("", &entries, fine).await;
    assert_eq!(world.statuses("/", 40).await, [200; 40]);
    let begun = Instant::now();
    let dear = Client::new(&world.net, world.pair.sidecar.egress[1]);
    let waits = tokio::spawn(async move { dear.get("/").await.status });
    while !waits.is_finished() {
        assert!(begun.elapsed() < Duration::from_secs(50), "it never starts");
        sleep(Duration::from_secs(6)).await;
        world.statuses("/", 1).await;
    }
    // It has its start, and nobody answers there.
    assert_eq!(waits.await.unwrap(), 502);
}

/// It waits behind those that came before, and then until so much room has come.
#[tokio::test(start_paused = true)]
async fn a_dear_call_starts_although_cheap_ones_take_all_that_comes_free() {
    for limit in [
        "rate = { limit = 20, period = '6s' }",
        "throttle = { limit = 20, period = '6s', burst = 10 }",
    ] {
        let entries = format!(
            "listen = '127.0.0.1:0'\nkey = 'vendor'\n{limit}\n[[egress]]\nname = 'dear'\nlisten = '127.0.0.1:0'\n\
             upstream = 'http://127.0.0.1:9'\nkey = 'vendor'\n{limit}\ncost = 6\nmax_wait = '30s'"
        );
        let world = World::start("", &entries, |_| Answer::ok()).await;
        let mut cheap = JoinSet::new();
        for _ in 0..30 {
            let caller = Client::new(&world.net, world.pair.sidecar.egress[0]);
            cheap.spawn(async move {
                loop {
                    caller.get("/").await;
                }
            });
        }
        sleep(Duration::from_secs(2)).await;
        let dear = Client::new(&world.net, world.pair.sidecar.egress[1]);
        for nth in 0..5 {
            // It has its start, and nobody answers there.
            assert_eq!(dear.get("/").await.status, 502, "{limit}: {nth}");
        }
        assert!(world.vendor.calls().len() >= 20, "cheap ones start, too");
    }
}
