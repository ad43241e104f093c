//! Each limit alone, with a key that is known before the claim (gated: what may not start is not
//! claimed) and one that is not (held), and as a job's own policy.

use std::collections::HashMap;
use std::time::Duration;

use ojs_throttle::backend::Lax;
use serde_json::{Value, json};

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

/// Two hundred reloads under load. What is limited stays so, and no reload gives a budget back; what
/// changes around it makes the queue gated, keyed, limited by one policy more or fewer.
pub async fn reloaded_under_load(ctx: Ctx) -> Judge {
    let limits = |nth: usize| {
        let queue = ["mail", "elsewhere"][nth % 2];
        let (name, slots) = (nth % 3, 5 + nth % 4);
        format!(
            "{HELD}concurrency = 3\nrate = {{ limit = 9, period = '2s' }}\n\
             [[policy]]\nname = 'more{name}'\nmatch = {{ queue = '{queue}' }}\nconcurrency = {slots}\n"
        )
    };
    let w = ctx.world().limits(&limits(0)).start().await;
    let reloads = async {
        for nth in 1..=200 {
            w.pass(50).await;
            w.reload(&limits(nth));
        }
    };
    tokio::join!(flow(&w, 40, "k:a"), reloads);
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 3);
    judge.rate("k:a", 9, Duration::from_secs(2));
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

/// A reload limits jobs that nothing limited: those that run have their slots within a second, and none
/// is left over when they end.
pub async fn reloaded_to_be_limited(ctx: Ctx) -> Judge {
    let w = ctx.world().start().await;
    w.enqueue_all(30, |_| {
        Job::new("email.send")
            .queue("mail")
            .meta("tenant", json!("a"))
    })
    .await;
    w.workers(3, Worker::js(4).queues(&["mail"]).runs(1_000..3_000));
    w.pass(2_500).await;
    w.reload(&format!("{HELD}concurrency = 3"));
    w.until_done(120).await;
    let mut judge = w.judge().await;
    judge.each_ran_once();
    judge.all_settles_ok(false);
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

/// Jobs that bring a policy of their own; `put` places it.
async fn own_policy(ctx: Ctx, policy: Value, put: fn(Job, Value) -> Job) -> World {
    let w = ctx.world().start().await;
    let job = |_| put(Job::new("report.build").queue("mail"), policy.clone()).label("own");
    w.enqueue_all(20, job).await;
    w.workers(2, Worker::js(5).queues(&["mail"]).runs(50..400));
    w.workers(1, Worker::python(3).queues(&["mail"]).runs(50..400));
    w.until_done(120).await;
    w
}

pub async fn own_concurrency_in_options(ctx: Ctx) -> Judge {
    let policy = json!({ "key": "own", "concurrency": 2 });
    let w = own_policy(ctx, policy, |job, p| job.option("rate_limit", p)).await;
    let mut judge = w.judge().await;
    judge.concurrency("own", 2);
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn own_rate_at_top_level(ctx: Ctx) -> Judge {
    let policy = json!({ "key": "own", "rate": { "limit": 5, "period": "PT1S" } });
    let w = own_policy(ctx, policy, |job, p| job.top("rate_limit", p)).await;
    let mut judge = w.judge().await;
    judge.rate("own", 5, Duration::from_secs(1));
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn own_throttle_in_meta(ctx: Ctx) -> Judge {
    let policy = json!({ "key": "own", "throttle": { "limit": 5, "period": "PT1S" } });
    let w = own_policy(ctx, policy, |job, p| job.meta("ojs.rate_limit", p)).await;
    let mut judge = w.judge().await;
    judge.spacing("own", Duration::from_millis(200), 1);
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn concurrency_and_rate(ctx: Ctx) -> Judge {
    let limits = format!("{HELD}concurrency = 2\nrate = {{ limit = 5, period = '1s' }}");
    let w = ctx.world().limits(&limits).start().await;
    flow(&w, 30, "k:a").await;
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 2);
    judge.rate("k:a", 5, Duration::from_secs(1));
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn rate_and_throttle(ctx: Ctx) -> Judge {
    let limits = format!(
        "{HELD}rate = {{ limit = 8, period = '2s' }}\nthrottle = {{ limit = 10, period = '1s' }}"
    );
    let w = ctx.world().limits(&limits).start().await;
    flow(&w, 30, "k:a").await;
    let mut judge = w.judge().await;
    judge.rate("k:a", 8, Duration::from_secs(2));
    judge.spacing("k:a", Duration::from_millis(100), 1);
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn all_three_gated(ctx: Ctx) -> Judge {
    let limits = format!(
        "{GATED}concurrency = 3\nrate = {{ limit = 20, period = '3s' }}\nthrottle = {{ limit = 10, period = '1s', burst = 3 }}"
    );
    let w = ctx.world().limits(&limits).start().await;
    flow(&w, 40, "k").await;
    let mut judge = w.judge().await;
    judge.concurrency("k", 3);
    judge.rate("k", 20, Duration::from_secs(3));
    judge.spacing("k", Duration::from_millis(100), 3);
    judge.each_ran_once();
    judge.settled();
    judge
}

/// A queue's limit, a policy of the file and one of the job's own, all on the same jobs.
pub async fn queue_policy_and_own(ctx: Ctx) -> Judge {
    let limits = format!(
        "{HELD}rate = {{ limit = 6, period = '1s' }}\n[[queue]]\nname = 'mail'\nconcurrency = 4"
    );
    let w = ctx.world().limits(&limits).start().await;
    let own = json!({ "key": "own", "throttle": { "limit": 20, "period": "PT1S" } });
    let job = |nth: usize| {
        let job = Job::new("email.send")
            .queue("mail")
            .meta("tenant", json!("a"))
            .label("k:a")
            .label("q");
        if nth.is_multiple_of(2) {
            job.option("rate_limit", own.clone()).label("own")
        } else {
            job
        }
    };
    w.enqueue_all(40, job).await;
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(300..900));
    w.until_done(120).await;
    let mut judge = w.judge().await;
    judge.concurrency("q", 4);
    judge.rate("k:a", 6, Duration::from_secs(1));
    judge.spacing("own", Duration::from_millis(50), 1);
    judge.each_ran_once();
    judge.settled();
    judge
}

pub async fn queue_level(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'mail'\nconcurrency = 3\nrate = { limit = 12, period = '2s' }";
    let w = ctx.world().limits(limits).start().await;
    flow(&w, 30, "q").await;
    let mut judge = w.judge().await;
    judge.concurrency("q", 3);
    judge.rate("q", 12, Duration::from_secs(2));
    // A queue with nothing but its own limits claims no job that may not start.
    let claims: Vec<_> = judge
        .claims
        .iter()
        .filter(|c| c.delivered.is_empty())
        .map(|c| c.job.clone())
        .collect();
    judge.that(
        claims.is_empty(),
        format!("{} claims were not delivered", claims.len()),
    );
    judge.each_ran_once();
    judge.settled();
    judge
}

/// A throttle that would allow and a second one, shut, that refuses: the first is not spent.
pub async fn refused_by_one_of_two(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'fast'\nkey = 'fast:{meta.tenant}'\nrate = { limit = 3, period = '10s' }\n\
        [[policy]]\nname = 'slow'\nmatch = { type = 'slow.*' }\nkey = 'slow:{meta.tenant}'\nconcurrency = 1";
    let w = ctx.world().limits(limits).start().await;
    let job = |kind| {
        Job::new(kind)
            .queue("mail")
            .meta("tenant", json!("a"))
            .label("fast:a")
    };
    w.enqueue_all(6, |_| job("slow.one").label("slow:a")).await;
    let hands = w.hands("one");
    let first = hands.fetch(&["mail"], 10).await.unwrap_or_default();
    for _ in 0..5 {
        hands.fetch(&["mail"], 10).await.ok();
    }
    // One start of three is spent; five refusals of `slow` have spent none of the other two.
    w.enqueue_all(5, |_| job("quick.one")).await;
    let second = hands.fetch(&["mail"], 10).await.unwrap_or_default();
    for delivery in first.iter().chain(&second) {
        hands.ack(&delivery.job).await;
    }
    w.worker(Worker::js(5).queues(&["mail"]));
    w.until_done(120).await;
    let mut judge = w.judge().await;
    judge.concurrency("slow:a", 1);
    judge.rate("fast:a", 3, Duration::from_secs(10));
    judge.that(
        first.len() == 1,
        format!("{} slow jobs started", first.len()),
    );
    judge.that(
        second.len() == 2,
        format!("{} quick jobs started, two starts were left", second.len()),
    );
    judge.settled();
    judge
}

/// What a shut key refuses costs the queue's own window nothing.
pub async fn paused_key_spends_nothing(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'off'\nmatch = { type = 'off.*' }\nkey = 'off:{meta.tenant}'\nconcurrency = 0\n\
        [[queue]]\nname = 'mail'\nrate = { limit = 4, period = '1m' }";
    let w = ctx.world().limits(limits).start().await;
    w.enqueue_all(20, |_| {
        Job::new("off.one")
            .queue("mail")
            .meta("tenant", json!("a"))
            .label("off:a")
    })
    .await;
    w.enqueue_all(4, |_| Job::new("on.one").queue("mail").label("q"))
        .await;
    let hands = w.hands("one");
    let mut got = Vec::new();
    for _ in 0..4 {
        got.extend(hands.fetch(&["mail"], 10).await.unwrap_or_default());
    }
    for delivery in &got {
        hands.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    let off = judge.starts("off:a").len();
    if off > 0 {
        judge.breach(format!("{off} jobs of a paused key started"));
    }
    judge.that(
        judge.starts("q").len() == 4,
        format!("{} of 4 free jobs started", judge.starts("q").len()),
    );
    judge
}

/// Nothing that limits: jobs, bytes and replies go through as they are.
pub async fn unlimited_bytes_are_equal(ctx: Ctx) -> Judge {
    let w = ctx
        .world()
        .limits(&format!("{HELD}concurrency = 1"))
        .start()
        .await;
    let odd = [
        r#"{"type":"a.b","args":[1.0,1e3,0.1000,12345678901234567890, "<\u00e9>"],"options":{"queue":"free"},  "x-odd":null}"#,
        r#"{ "args" : [ ] , "type" : "a.b" , "meta" : { "z" : 1 , "a" : [ 2 ] } , "options" : { "queue" : "free" } }"#,
        r#"{"type":"a.b","args":[{"k":"\ud83d\ude00","k":2}],"options":{"queue":"free","priority":3}}"#,
    ];
    for body in odd {
        let reply = w.send("/ojs/v1/jobs", body).await;
        assert_eq!(reply.status, 201);
    }
    let through = w
        .client()
        .post(
            "/ojs/v1/workers/fetch",
            &json!({"queues": ["free"], "count": 9}),
        )
        .await;
    let mut judge = w.judge().await;
    for sent in judge.sent.clone() {
        let seen = judge
            .seen
            .iter()
            .find(|seen| seen.id == sent.id)
            .map(|seen| seen.body.clone());
        judge.that(
            seen.as_ref() == Some(&sent.body),
            format!("{:?} arrived as {seen:?}", sent.body),
        );
    }
    let jobs = through
        .map(|reply| String::from_utf8_lossy(&reply.body).into_owned())
        .unwrap_or_default();
    judge.that(
        jobs.contains("[1.0,1e3,0.1000,12345678901234567890, \"<\\u00e9>\"]"),
        "args were rewritten",
    );
    judge
}

/// Attempt numbers are what they are without a sidecar, however long a job was held.
pub async fn attempts_are_unchanged(ctx: Ctx) -> Judge {
    let lax = if ctx.even() {
        Lax::spec()
    } else {
        Lax::redis()
    };
    let first = i64::from(ctx.even());
    let w = ctx
        .world()
        .lax(lax)
        .limits(&format!("{HELD}throttle = {{ limit = 5, period = '1s' }}"))
        .start()
        .await;
    let retry = json!({ "max_attempts": 8, "initial_interval": "PT0.1S", "jitter": false });
    w.enqueue_all(15, |_| {
        Job::new("email.send")
            .queue("mail")
            .meta("tenant", json!("a"))
            .option("retry", retry.clone())
            .label("k:a")
    })
    .await;
    w.workers(2, Worker::js(5).queues(&["mail"]).fails(0.3));
    w.until_done(120).await;
    let mut judge = w.judge().await;
    judge.spacing("k:a", Duration::from_millis(200), 1);
    let mut runs: HashMap<String, i64> = HashMap::new();
    for delivery in judge.records.deliveries.clone() {
        let run = runs.entry(delivery.job.clone()).or_default();
        let expected = first + *run;
        *run += 1;
        judge.that(
            delivery.attempt == expected,
            format!(
                "run {run} of {} had attempt {}",
                delivery.job, delivery.attempt
            ),
        );
    }
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

/// The basic limits on one kind of backend.
async fn basics(ctx: Ctx, lax: Lax) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 3\nrate = { limit = 10, period = '1s' }\n\
        [[queue]]\nname = 'slow'\nthrottle = { limit = 5, period = '1s' }";
    let w = ctx.world().lax(lax).limits(limits).start().await;
    let retry = json!({ "max_attempts": 10, "initial_interval": "PT0.2S" });
    let job = |nth: usize| {
        let (tenant, label) = if nth.is_multiple_of(3) {
            ("a", "k:a")
        } else {
            ("b", "k:b")
        };
        let job = Job::new("email.send")
            .meta("tenant", json!(tenant))
            .option("retry", retry.clone())
            .label(label);
        if nth.is_multiple_of(4) {
            job.queue("slow").label("slow")
        } else {
            job.queue("mail")
        }
    };
    w.enqueue_all(40, job).await;
    w.workers(
        2,
        Worker::js(6)
            .queues(&["slow", "mail"])
            .runs(100..500)
            .fails(0.05),
    );
    w.workers(
        2,
        Worker::python(2).queues(&["mail", "slow"]).runs(100..500),
    );
    w.until_done(120).await;
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 3);
    judge.concurrency("k:b", 3);
    judge.rate("k:a", 10, Duration::from_secs(1));
    judge.rate("k:b", 10, Duration::from_secs(1));
    judge.spacing("slow", Duration::from_millis(200), 1);
    judge.all_settles_ok(false);
    judge.settled();
    judge
}

pub async fn basics_spec(ctx: Ctx) -> Judge {
    basics(ctx, Lax::spec()).await
}

pub async fn basics_redis(ctx: Ctx) -> Judge {
    basics(ctx, Lax::redis()).await
}

pub async fn basics_postgres(ctx: Ctx) -> Judge {
    basics(ctx, Lax::postgres()).await
}

pub async fn basics_lite(ctx: Ctx) -> Judge {
    basics(ctx, Lax::lite()).await
}

pub async fn basics_amqp(ctx: Ctx) -> Judge {
    basics(ctx, Lax::amqp()).await
}
