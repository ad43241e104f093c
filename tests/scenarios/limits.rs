//! Each limit alone and beside others, with a key that is known before the claim (gated: what may not start is not
//! claimed) and one that is not (held), and as a job's own policy.

use std::collections::HashMap;

/// Jobs of one key, workers of two kinds.
async fn flow(w: &World, jobs: usize, label: &str) {
    w.enqueue_all(jobs, |_| mail().label(label)).await;
    w.workers(2, Worker::js(5).queues(&["mail"]).runs(50..400));
    w.workers(2, Worker::python(3).queues(&["mail"]).runs(50..400));
    w.until_done(120).await;
}

fn mail() -> Job {
    let job = Job::new("email.send").queue("mail");
    job.meta("tenant", json!("a"))
}

const GATED: &str = "[[policy]]\nname = 'k'\nmatch = { queue = 'mail' }\n";
const HELD: &str =
    "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nmatch = { type = 'email.*' }\n";
const QUEUE: &str = "[[queue]]\nname = 'mail'\n";

/// What the judge checks of a key: slots; starts in so many milliseconds; milliseconds between starts, and the burst.
#[derive(Clone, Copy)]
enum Check {
    Slots(i64),
    Rate(usize, u64),
    Spacing(u64, u32),
}

use Check::{Rate, Slots, Spacing};

use super::prelude::*;

impl Check {
    fn look(self, judge: &mut Judge, key: &str) {
        match self {
            Slots(slots) => judge.concurrency(key, slots),
            Rate(starts, ms) => judge.rate(key, starts, Duration::from_millis(ms)),
            Spacing(ms, burst) => judge.spacing(key, Duration::from_millis(ms), burst),
        }
    }
}

/// Whose limit, its key, how many jobs, the limit, and what it promises.
type Case = (
    &'static str,
    &'static str,
    usize,
    &'static str,
    &'static [Check],
);

const SLOTS: &str = "concurrency = 3";
const STARTS: &str = "rate = { limit = 7, period = '2s' }";
const SPACED: &str = "throttle = { limit = 10, period = '1s' }";

const CASES: [Case; 10] = [
    (GATED, "k", 24, SLOTS, &[Slots(3)]),
    (HELD, "k:a", 24, SLOTS, &[Slots(3)]),
    (GATED, "k", 30, STARTS, &[Rate(7, 2_000)]),
    (HELD, "k:a", 30, STARTS, &[Rate(7, 2_000)]),
    (GATED, "k", 20, SPACED, &[Spacing(100, 1)]),
    (HELD, "k:a", 20, SPACED, &[Spacing(100, 1)]),
    (
        HELD,
        "k:a",
        30,
        "concurrency = 2\nrate = { limit = 5, period = '1s' }",
        &[Slots(2), Rate(5, 1_000)],
    ),
    (
        HELD,
        "k:a",
        30,
        "rate = { limit = 8, period = '2s' }\nthrottle = { limit = 10, period = '1s' }",
        &[Rate(8, 2_000), Spacing(100, 1)],
    ),
    (
        GATED,
        "k",
        40,
        "concurrency = 3\nrate = { limit = 20, period = '3s' }\nthrottle = { limit = 10, period = '1s', burst = 3 }",
        &[Slots(3), Rate(20, 3_000), Spacing(100, 3)],
    ),
    (
        QUEUE,
        "q",
        30,
        "concurrency = 3\nrate = { limit = 12, period = '2s' }",
        &[Slots(3), Rate(12, 2_000)],
    ),
];

pub async fn alone_and_together(ctx: Ctx) -> Judge {
    let (whose, key, jobs, limit, checks) = ctx.pick(&CASES);
    let w = ctx.limits(&format!("{whose}{limit}")).start().await;
    flow(&w, jobs, key).await;
    let mut judge = w.judge().await;
    for check in checks {
        check.look(&mut judge, key);
    }
    if let [Slots(slots)] = *checks {
        judge.conserving(key, slots, Duration::from_millis(20));
        judge.all_settles_ok(false);
    }
    if whose == QUEUE {
        // A queue with nothing but its own limits claims no job that may not start.
        let claims = judge.claims.iter();
        let in_vain = claims.filter(|claim| claim.delivered.is_empty()).count();
        judge.equal("claims that were not delivered", in_vain, 0);
    }
    judge.all_well()
}

/// Jobs that bring a policy of their own, in each place where they may. One brings a key that the file gives others.
pub async fn own(ctx: Ctx) -> Judge {
    type Put = fn(Job, Value) -> Job;
    let file = "[[policy]]\nname = 'crm'\nkey = 'crm:{meta.tenant}'\nmatch = { type = 'sync.*' }\nconcurrency = 3\n";
    let cases: [(Put, Value, Check); 4] = [
        (
            |job, policy| job.option("rate_limit", policy),
            json!({ "key": "own", "concurrency": 2 }),
            Slots(2),
        ),
        (
            |job, policy| job.top("rate_limit", policy),
            json!({ "key": "own", "rate": { "limit": 5, "period": "PT1S" } }),
            Rate(5, 1_000),
        ),
        (
            |job, policy| job.meta("ojs.rate_limit", policy),
            json!({ "key": "own", "throttle": { "limit": 5, "period": "PT1S" } }),
            Spacing(200, 1),
        ),
        (
            |job, policy| job.option("rate_limit", policy),
            json!({ "key": "crm:acme", "concurrency": 100 }),
            Slots(3),
        ),
    ];
    let (put, policy, check) = ctx.pick(&cases);
    let w = ctx.limits(file).start().await;
    let job = |_| put(Job::new("report.build").queue("mail"), policy.clone()).label("own");
    w.enqueue_all(20, job).await;
    w.workers(2, Worker::js(5).queues(&["mail"]).runs(50..400));
    w.workers(1, Worker::python(3).queues(&["mail"]).runs(50..400));
    let mut judge = w.judge_when_done(120).await;
    check.look(&mut judge, "own");
    judge.all_well()
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
    let w = ctx.limits(&limits(0)).start().await;
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
    judge.settled()
}

/// A reload limits jobs that nothing limited: those that run have their slots within a second, and none
/// is left over when they end.
pub async fn reloaded_to_be_limited(ctx: Ctx) -> Judge {
    let w = ctx.world().start().await;
    w.enqueue_all(30, |_| mail()).await;
    w.workers(3, Worker::js(4).queues(&["mail"]).runs(1_000..3_000));
    w.pass(2_500).await;
    w.reload(&format!("{HELD}concurrency = 3"));
    let mut judge = w.judge_when_done(120).await;
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled()
}

/// A queue's limit, a policy of the file and one of the job's own, all on the same jobs.
pub async fn queue_policy_and_own(ctx: Ctx) -> Judge {
    let limits = format!(
        "{HELD}rate = {{ limit = 6, period = '1s' }}\n[[queue]]\nname = 'mail'\nconcurrency = 4"
    );
    let w = ctx.limits(&limits).start().await;
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
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("q", 4);
    judge.rate("k:a", 6, Duration::from_secs(1));
    judge.spacing("own", Duration::from_millis(50), 1);
    judge.all_well()
}

/// A throttle that would allow and a second one, shut, that refuses: the first is not spent.
pub async fn refused_by_one_of_two(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'fast'\nkey = 'fast:{meta.tenant}'\nrate = { limit = 3, period = '10s' }\n\
        [[policy]]\nname = 'slow'\nmatch = { type = 'slow.*' }\nkey = 'slow:{meta.tenant}'\nconcurrency = 1";
    let w = ctx.limits(limits).start().await;
    let job = |kind| {
        Job::new(kind)
            .queue("mail")
            .meta("tenant", json!("a"))
            .label("fast:a")
    };
    w.enqueue_all(6, |_| job("slow.one").label("slow:a")).await;
    let hands = w.hands("one");
    let first = hands.get("mail", 10).await;
    for _ in 0..5 {
        hands.fetch(&["mail"], 10).await.ok();
    }
    // One start of three is spent; five refusals of `slow` have spent none of the other two.
    w.enqueue_all(5, |_| job("quick.one")).await;
    let second = hands.get("mail", 10).await;
    hands.ack_all(first.iter().chain(&second)).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("slow:a", 1);
    judge.rate("fast:a", 3, Duration::from_secs(10));
    judge.equal("slow jobs started", first.len(), 1);
    judge.equal("quick jobs started, two starts were left", second.len(), 2);
    judge.settled()
}

/// What a shut key refuses costs the queue's own window nothing.
pub async fn paused_key_spends_nothing(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'off'\nmatch = { type = 'off.*' }\nkey = 'off:{meta.tenant}'\nconcurrency = 0\n\
        [[queue]]\nname = 'mail'\nrate = { limit = 4, period = '1m' }";
    let w = ctx.limits(limits).start().await;
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
        got.extend(hands.get("mail", 10).await);
    }
    hands.ack_all(&got).await;
    let mut judge = w.judge().await;
    let off = judge.starts("off:a").len();
    if off > 0 {
        judge.breach(format!("{off} jobs of a paused key started"));
    }
    judge.equal("of 4 free jobs started", judge.starts("q").len(), 4);
    judge
}

/// Nothing that limits: jobs, bytes and replies go through as they are.
pub async fn unlimited_bytes_are_equal(ctx: Ctx) -> Judge {
    let w = ctx.limits(&format!("{HELD}concurrency = 1")).start().await;
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
    let mut judge = w.judge_when_done(120).await;
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
    judge.settled()
}

/// The basic limits on each kind of backend.
pub async fn basics(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 3\nrate = { limit = 10, period = '1s' }\n\
        [[queue]]\nname = 'slow'\nthrottle = { limit = 5, period = '1s' }";
    let w = ctx.limits(limits).lax(ctx.pick(&backends())).start().await;
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
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("k:a", 3);
    judge.concurrency("k:b", 3);
    judge.rate("k:a", 10, Duration::from_secs(1));
    judge.rate("k:b", 10, Duration::from_secs(1));
    judge.spacing("slow", Duration::from_millis(200), 1);
    judge.all_settles_ok(false);
    judge.settled()
}
