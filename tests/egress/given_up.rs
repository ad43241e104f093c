//! Callers that give up before the service has answered.

use super::prelude::*;

/// A caller whose patience is shorter than the service's time.
async fn gives_up(world: &World, path: &str, after: Duration) {
    let call = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let _stream = world.ring(&call).await;
    sleep(after).await;
}

/// SDKs that call again right away must not have the service do more at once than it may.
#[tokio::test(start_paused = true)]
async fn the_service_never_has_more_than_it_may_though_callers_give_up() {
    let world = World::start("", "key = 'vendor'\nconcurrency = 1", |_| {
        Answer::ok().after(millis(1_000))
    })
    .await;
    for _ in 0..20 {
        gives_up(&world, "/", millis(300)).await;
    }
    sleep(millis(3_000)).await;
    let seen = world.vendor.calls();
    assert_eq!(world.vendor.most_at_once(), 1);
    assert!(seen.len() >= 5, "{}", seen.len());
    for call in &seen {
        let took = call.ended.unwrap() - call.at;
        assert!(!call.is_cut && took >= millis(1_000), "{took:?}");
    }
    // What it says is heeded though nobody hears it.
    let world = World::start("", "key = 'vendor'\nconcurrency = 1", |call| {
        match call.nth {
            0 => Answer::new(429, "")
                .header("Retry-After", "5")
                .after(millis(500)),
            _ => Answer::ok(),
        }
    })
    .await;
    gives_up(&world, "/", millis(100)).await;
    let begun = Instant::now();
    assert_eq!(world.statuses("/", 1).await, [200]);
    assert!(begun.elapsed() >= millis(5_000), "{:?}", begun.elapsed());
}

/// A service that says nothing has the slot for `lease`; where no limit counts slots, a call ends with its caller.
#[tokio::test(start_paused = true)]
async fn a_call_that_was_given_up_is_bounded() {
    let never = |_: &crate::servers::vendor::VendorCall| Answer::ok().never(Stops::Hangs);
    let slots = "key = 'vendor'\nconcurrency = 1\nlease = '4s'\nmax_wait = '30s'";
    let world = World::start("", slots, never).await;
    gives_up(&world, "/first", millis(100)).await;
    let since = Instant::now();
    gives_up(&world, "/second", millis(4_100)).await;
    let seen = world.vendor.calls();
    assert_eq!(seen.len(), 2);
    let waited = seen[1].at - since;
    assert!(
        waited >= millis(4_000) && waited < millis(4_100),
        "{waited:?}"
    );
    assert!(seen[0].is_cut);
    let spaced = "key = 'vendor'\nthrottle = { limit = 10, period = '1s' }";
    let world = World::start("", spaced, never).await;
    gives_up(&world, "/first", millis(100)).await;
    sleep(millis(5)).await;
    assert!(world.vendor.calls()[0].is_cut);
}
