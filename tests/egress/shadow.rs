//! Policies that are only tried, whose key a way out has.

use super::prelude::*;

fn policy(mode: &str) -> String {
    let one = "rate = { limit = 1, period = '1h' }";
    format!("[[policy]]\nname = 'p'\nmatch = {{ queue = 'q' }}\nkey = 'vendor'\n{one}\n{mode}\n")
}

const CALLS: &str = "key = 'vendor'\non_limit = 'reject'";

/// How many of so many calls pass.
async fn passed(world: &World, calls: usize) -> usize {
    let statuses = world.statuses("/", calls).await;
    assert!(statuses.iter().all(|status| [200, 429].contains(status)));
    statuses.iter().filter(|status| **status == 200).count()
}

/// The way back from a limit that hurts is a reload.
#[tokio::test(start_paused = true)]
async fn a_policy_in_shadow_limits_no_call() {
    let world = World::start(&policy(""), CALLS, |_| Answer::ok()).await;
    assert_eq!(passed(&world, 5).await, 1);
    let entry = super::entry(world.vendor.addr, CALLS);
    let backend = world.pair.behind.base();
    let reload = |mode: &str| {
        let text = format!("{}\n{entry}", policy(mode));
        let settings = crate::sidecar::settings(&backend, &text);
        let outcome = world.pair.sidecar.reload.apply(settings);
        assert_eq!(outcome.word(), "applied", "{mode}");
    };
    reload("mode = 'shadow'");
    assert_eq!(passed(&world, 20).await, 20);
    // So many calls in a hundred are under it, as so many jobs are.
    for (percent, least, most) in [(1, 90, 100), (50, 25, 75), (100, 0, 0)] {
        reload(&format!("mode = 'shadow'\nenforce_percent = {percent}"));
        let count = passed(&world, 100).await;
        assert!((least..=most).contains(&count), "{percent}: {count}");
    }
    reload("");
    assert_eq!(passed(&world, 5).await, 0, "what was used is known still");
}
