//! Each limit alone, with a key that is known before the claim (gated: what may not start is not
//! claimed) and one that is not (held), and as a job's own policy.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Ctx, Job, Judge, Worker, World};

/// Jobs of one key, workers of two kinds.
async fn flow(w: &World, jobs: usize, label: &str) {
    w.enqueue_all(jobs, |_| {
        Job::new("email.send")
            .queue("mail")
            .meta("tenant", json!("a"))
            .label(label)
    })
    .await;
    w.workers(2, Worker::js(5).queues(&["mail"]).runs(50..400));
    w.workers(2, Worker::python(3).queues(&["mail"]).runs(50..400));
    w.until_done(120).await;
}

const GATED: &str = "[[policy]]\nname = 'k'\nmatch = { queue = 'mail' }\n";
const HELD: &str =
    "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nmatch = { type = 'email.*' }\n";

pub async fn concurrency_gated(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{GATED}concurrency = 3"))
        .start()
        .await;
    flow(&w, 24, "k").await;
    let mut judge = w.judge().await;
    judge.concurrency("k", 3);
    judge.conserving("k", 3, Duration::from_millis(20));
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

pub async fn concurrency_held(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{HELD}concurrency = 3"))
        .start()
        .await;
    flow(&w, 24, "k:a").await;
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 3);
    judge.conserving("k:a", 3, Duration::from_millis(20));
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

pub async fn rate_gated(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{GATED}rate = {{ limit = 7, period = '2s' }}"))
        .start()
        .await;
    flow(&w, 30, "k").await;
    let mut judge = w.judge().await;
    judge.rate("k", 7, Duration::from_secs(2));
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn rate_held(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{HELD}rate = {{ limit = 7, period = '2s' }}"))
        .start()
        .await;
    flow(&w, 30, "k:a").await;
    let mut judge = w.judge().await;
    judge.rate("k:a", 7, Duration::from_secs(2));
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn throttle_gated(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!(
            "{GATED}throttle = {{ limit = 10, period = '1s' }}"
        ))
        .start()
        .await;
    flow(&w, 20, "k").await;
    let mut judge = w.judge().await;
    judge.spacing("k", Duration::from_millis(100), 1);
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn throttle_held(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{HELD}throttle = {{ limit = 10, period = '1s' }}"))
        .start()
        .await;
    flow(&w, 20, "k:a").await;
    let mut judge = w.judge().await;
    judge.spacing("k:a", Duration::from_millis(100), 1);
    judge.each_ran_once();
    judge.settled();
    judge
}
