//! What becomes of a job that a limit refuses (`on_limit`), and limits that move by what nacks say.

use std::ops::Range;

use super::prelude::*;

fn push(label: &str) -> Job {
    Job::new("notification.push").queue("push").label(label)
}

/// A job with a limit of its own.
fn own(label: &str, rate_limit: Value) -> Job {
    push(label).option("rate_limit", rate_limit)
}

/// How often each of the jobs ended without a run, by the backend's ledger.
fn dropped(judge: &Judge, ids: &[String]) -> Vec<usize> {
    let ended = |id: &String| {
        let of_job = judge.events.iter().filter(|(_, e)| *e.job == **id);
        of_job
            .filter(|(_, e)| matches!(e.kind, EventKind::Discarded | EventKind::Cancelled))
            .count()
    };
    ids.iter().map(ended).collect()
}

fn ran(judge: &Judge, id: &str) -> usize {
    let all = judge.records.deliveries.iter();
    all.filter(|delivery| delivery.job == id).count()
}

/// Each job of a key either ran once or was dropped once, never both.
fn either_or(judge: &mut Judge, ids: &[String], runs: usize) {
    let ends = dropped(judge, ids);
    let mut ran_in_all = 0;
    for (id, ends) in ids.iter().zip(ends) {
        let runs = ran(judge, id);
        ran_in_all += runs;
        judge.that(
            runs + ends == 1,
            format!("{id} ran {runs} times and was dropped {ends} times"),
        );
    }
    if ran_in_all > runs {
        judge.breach(format!("{ran_in_all} jobs ran, {runs} may"));
    }
    judge.that(
        ran_in_all == runs,
        format!("{ran_in_all} jobs ran, {runs} may"),
    );
}

pub async fn drops(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&backends());
    let w = ctx
        .world()
        .lax(lax)
        .limits("[[policy]]\nname = 'p'\nmatch = { type = 'notification.*' }\nkey = 'push'\nrate = { limit = 5, period = '1m' }\non_limit = 'drop'")
        .start()
        .await;
    let retry = json!({ "max_attempts": 10, "initial_interval": "PT0.5S" });
    let kept = |nth: usize| {
        let job = push("push");
        match nth.is_multiple_of(2) {
            true => job.option("retry", retry.clone()),
            false => job,
        }
    };
    let ids = w.enqueue_all(40, kept).await;
    let free = w
        .enqueue_all(10, |_| Job::new("report.build").queue("push"))
        .await;
    w.workers(2, Worker::js(4).queues(&["push"]).runs(10..100));
    w.worker(Worker::python(2).queues(&["push"]).runs(10..100));
    let done = w.until_done(30).await;
    // Nothing comes back later either.
    w.pass(15_000).await;
    let mut judge = w.judge().await;
    judge.that(done, "not all jobs ended");
    either_or(&mut judge, &ids, 5);
    for id in free {
        let runs = ran(&judge, &id);
        judge.that(runs == 1, format!("a job without a limit ran {runs} times"));
    }
    judge.rate("push", 5, Duration::from_secs(60));
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// The backend fails the calls that drop a job: it stays held, no worker gets it, and it is dropped
/// once, after all.
pub async fn drop_fails_for_a_while(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&backends());
    let w = ctx.world().lax(lax).start().await;
    let limit = json!({ "key": "k", "concurrency": 1, "on_limit": "drop" });
    let ids = w.enqueue_all(4, |_| own("k", limit.clone())).await;
    let fault = match ctx.seed % 3 {
        0 => Fault::Status(503),
        1 => Fault::ReplyLost,
        _ => Fault::Refused,
    };
    w.backend.next(Op::Nack, 5, fault);
    w.backend.next(Op::Cancel, 4, fault);
    let hands = w.hands("one");
    let got = hands.get("push", 4).await;
    for _ in 0..6 {
        w.pass(200).await;
        let more = hands.get("push", 4).await;
        assert!(more.is_empty(), "the slot is taken");
    }
    // The slot is free again, and what was to be dropped is still not for workers.
    hands.ack_all(&got).await;
    let late = hands.get("push", 4).await;
    let mut judge = w.judge_when_done(40).await;
    judge.that(late.is_empty(), "a job that was to be dropped went out");
    either_or(&mut judge, &ids, 1);
    judge.concurrency("k", 1);
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// Without an answer of the backend to say that a job is still ours, nothing is dropped.
pub async fn drops_only_what_is_ours(ctx: Ctx) -> Judge {
    let w = ctx.world().start().await;
    let slot = json!({ "key": "k", "concurrency": 1 });
    let drop = json!({ "key": "d", "concurrency": 1, "on_limit": "drop" });
    // Held by the first key; the second would drop it.
    let both = own("k", slot.clone()).meta("ojs.rate_limit", drop.clone());
    let first = w.enqueue(own("k", slot)).await;
    let second = w.enqueue(both).await;
    let hands = w.hands("one");
    let got = hands.get("push", 2).await;
    // The backend takes the held job back, and it goes to someone who does not come through here.
    w.backend.take_back(&second).await;
    let fetch = json!({ "queues": ["push"], "count": 1, "worker_id": "outsider" });
    let outside = w
        .backend
        .direct("POST", "/ojs/v1/workers/fetch", &fetch)
        .await;
    w.backend
        .direct("POST", "/ojs/v1/workers/ack", &json!({ "job_id": second }))
        .await;
    let other = w.enqueue(own("d", drop)).await;
    let more = hands.get("push", 1).await;
    for delivery in got.iter().chain(&more) {
        w.pass(1_500).await;
        hands.ack(&delivery.job).await;
        hands.fetch(&["push"], 2).await.ok();
    }
    let mut judge = w.judge_when_done(20).await;
    judge.that(
        outside["jobs"][0]["id"] == second.as_str(),
        "the outsider did not get it",
    );
    judge.that(got.len() == 1 && got[0].job == first, "the first started");
    judge.that(more.iter().any(|d| d.job == other), "the other started");
    let ends = dropped(&judge, &[second]);
    judge.that(ends == [0], "a job of someone else was dropped");
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// Held until its time comes and scheduled to those who look; then it runs.
pub async fn reschedules(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::spec(), Lax::redis(), Lax::lite()]);
    let world = ctx.world().lax(lax).settings("[hold]\nidle = '1m'");
    let w = world.start().await;
    let timed =
        json!({ "key": "t", "rate": { "limit": 1, "period": "PT5S" }, "on_limit": "reschedule" });
    let slot = json!({ "key": "s", "concurrency": 1, "on_limit": "reschedule" });
    let a = w.enqueue_all(2, |_| own("t", timed.clone())).await;
    let b = w.enqueue_all(2, |_| own("s", slot.clone())).await;
    let waits = json!({ "key": "w", "concurrency": 1 });
    let c = w.enqueue_all(2, |_| own("w", waits.clone())).await;
    let hands = w.hands("one");
    let mut got = Vec::new();
    for _ in 0..3 {
        got.extend(hands.get("push", 10).await);
    }
    let started = got.len();
    let held = |ids: &[String]| {
        let out = |id: &&String| got.iter().all(|delivery| delivery.job != **id);
        ids.iter().find(out).cloned().unwrap_or_default()
    };
    let (a, b, c) = (held(&a), held(&b), held(&c));
    let looked = [w.job(&a).await, w.job(&b).await, w.job(&c).await];
    let stats = w.get("/ojs/v1/queues/push/stats").await;
    let early = hands.get("push", 10).await;
    // Its time comes: it is available, also before anyone asks.
    w.pass(5_500).await;
    let due = w.job(&a).await;
    let more = hands.get("push", 10).await;
    hands.ack_all(got.iter().chain(&more)).await;
    let freed = w.job(&b).await;
    w.worker(Worker::js(5).queues(&["push"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(started == 3, format!("{started} started at first"));
    for (job, state) in looked.iter().zip(["scheduled", "scheduled", "available"]) {
        judge.that(
            job["state"] == state && job["attempt"] == 0,
            format!("to be {state}: {job}"),
        );
        judge.that(
            job["scheduled_at"].is_string() == (state == "scheduled"),
            format!("to be {state}: {job}"),
        );
    }
    let queue = if stats["queue"].is_object() {
        &stats["queue"]
    } else {
        &stats
    };
    judge.that(
        queue["active"] == 3 && queue["available"] == 1,
        format!("stats say {stats}"),
    );
    if let Some(scheduled) = queue["scheduled"].as_u64() {
        judge.that(scheduled == 2, format!("stats say {stats}"));
    }
    judge.that(early.is_empty(), "a job started before its time");
    judge.that(due["state"] == "available", format!("it is due: {due}"));
    judge.that(
        more.iter().any(|d| d.job == a),
        "it did not start when its time came",
    );
    judge.equal("the slot is free:", &freed["state"], "available");
    judge.rate("t", 1, Duration::from_secs(5));
    judge.concurrency("s", 1);
    judge.all_well()
}

/// A rescheduled job's `scheduled_at` is when its limit lets it start.
pub async fn scheduled_when_it_starts(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::spec()).start().await;
    let timed = json!({ "key": "t", "throttle": { "limit": 1, "period": "PT5S" }, "on_limit": "reschedule" });
    let ids = w.enqueue_all(2, |_| own("t", timed.clone())).await;
    let hands = w.hands("one");
    let first = hands.get("push", 2).await;
    let began = Instant::now();
    let look = w.job(&ids[1]).await;
    let until = |look: &Value| {
        let at: jiff::Timestamp = look["scheduled_at"].as_str()?.parse().ok()?;
        Some(at.as_millisecond())
    };
    // The world's clock began at this time; the sidecar's a second later.
    let start = 1_770_000_001_000 + i64::try_from((began - w.begun).as_millis()).unwrap_or(0);
    let away = until(&look).map(|at| at - start);
    w.worker(Worker::js(5).queues(&["push"]));
    hands.ack_all(&first).await;
    let mut judge = w.judge_when_done(20).await;
    judge.spacing("t", Duration::from_secs(5), 1);
    judge.that(first.len() == 1, "one started");
    judge.that(
        away.is_some_and(|ms| (4_400..=5_050).contains(&ms)),
        format!("{away:?} ms away: {look}"),
    );
    judge.settled()
}

/// Several limits refuse at once: drop beats reschedule beats wait, whichever lets go last.
pub async fn strongest_action_wins(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&backends());
    let action = |key: &str, concurrency: u32, on_limit: &str| json!({ "key": key, "concurrency": concurrency, "on_limit": on_limit });
    let w = ctx.world().lax(lax).start().await;
    let hands = w.hands("one");
    // Three keys, each with its slot taken.
    for key in ["wait", "reschedule", "drop"] {
        w.enqueue(own(key, action(key, 1, key))).await;
    }
    let taken = hands.get("push", 3).await;
    let with = |one: &str, other: &str| {
        own(one, action(one, 1, one)).meta("ojs.rate_limit", action(other, 1, other))
    };
    let mut states = Vec::new();
    for (one, other, expected) in [
        ("wait", "reschedule", "scheduled"),
        ("reschedule", "wait", "scheduled"),
        ("wait", "drop", "ended"),
        ("drop", "wait", "ended"),
        ("reschedule", "drop", "ended"),
        // Only the one that allows would drop it.
        ("wait", "free", "available"),
    ] {
        let job = match other {
            "free" => {
                own(one, action(one, 1, one)).meta("ojs.rate_limit", action("free", 9, "drop"))
            }
            _ => with(one, other),
        };
        let id = w.enqueue(job).await;
        let got = hands.get("push", 1).await;
        assert!(got.is_empty(), "{one} and {other}");
        w.pass(100).await;
        let state = w.job(&id).await["state"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        states.push((one, other, expected, state));
    }
    hands.ack_all(&taken).await;
    w.worker(Worker::js(5).queues(&["push"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(taken.len() == 3, "the slots are taken");
    for (one, other, expected, state) in states {
        let fits = match expected {
            "ended" => state == "discarded" || state == "cancelled",
            _ => state == expected,
        };
        judge.that(fits, format!("{one} and {other}: {state}"));
    }
    let runs = judge.records.deliveries.len();
    judge.that(runs == 6, format!("{runs} ran"));
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// A job that is refused for a slot and would be dropped leaves no slot behind, over many of them.
pub async fn dropped_under_load(ctx: Ctx) -> Judge {
    let w = ctx
        .limits(
            "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 2\non_limit = 'drop'",
        )
        .start()
        .await;
    let mut ids = Vec::new();
    let workers = w.workers(
        2,
        Worker::js(4).queues(&["push"]).runs(200..600).hangs_up(0.2),
    );
    for _ in 0..12 {
        let more = w
            .enqueue_all(6, |_| push("k:a").meta("tenant", json!("a")))
            .await;
        ids.extend(more);
        w.pass(700).await;
    }
    w.until_done(60).await;
    drop(workers);
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 2);
    for (id, ends) in ids.iter().zip(dropped(&judge, &ids)) {
        let acked = judge.records.settles.iter().any(|s| s.job == *id && s.ack);
        judge.that(
            acked || ends == 1,
            format!("{id} neither ran nor was dropped once ({ends})"),
        );
        judge.that(
            !acked || ends == 0,
            format!("{id} ran and was dropped {ends} times"),
        );
    }
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// When a job of the key starts, after now, with someone who asks all the time; 60 s at most.
async fn next_start(w: &World, hands: &Hands, queue: &'static str) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) {
        let got = hands.get(queue, 1).await;
        if let Some(delivery) = got.first() {
            let after = began.elapsed();
            hands.ack(&delivery.job).await;
            return Some(after);
        }
        w.pass(50).await;
    }
    None
}

/// One nack that says something; how long no job of the key starts, and one of another key.
async fn shut_by(ctx: Ctx, feedback: &str, error: Value) -> (World, Duration, Duration, Value) {
    let policy = |name: &str| {
        format!(
            "[[policy]]\nname = '{name}'\nmatch = {{ type = '{name}.*' }}\nkey = '{name}:{{meta.tenant}}'\nconcurrency = 3\n{}\n",
            if name == "mail" { feedback } else { "" }
        )
    };
    let limits = format!("{}{}", policy("mail"), policy("other"));
    let w = ctx.limits(&limits).start().await;
    let job = |kind: &str| {
        Job::new(&format!("{kind}.send"))
            .queue(if kind == "mail" { "mail" } else { "rest" })
            .meta("tenant", json!("a"))
            .label(&format!("{kind}:a"))
    };
    w.enqueue_all(3, |_| {
        job("mail").option("retry", json!({ "max_attempts": 1 }))
    })
    .await;
    w.enqueue_all(1, |_| job("other")).await;
    let hands = w.hands("one");
    let got = hands.get("mail", 1).await;
    let status = hands.nack_with(&got[0].job, error).await;
    assert_eq!(status, 200);
    let look = w.get("/ojs/v1/rate-limits/mail:a").await;
    let other = next_start(&w, &w.hands("two"), "rest").await;
    let mail = next_start(&w, &hands, "mail").await;
    (
        w,
        mail.unwrap_or(Duration::MAX),
        other.unwrap_or(Duration::MAX),
        look,
    )
}

/// The clock of a world's sidecar, as RFC 3339, so many seconds after its begin.
fn at(seconds: i64) -> String {
    let begin = 1_770_000_001 + seconds;
    jiff::Timestamp::from_second(begin)
        .expect("a time")
        .to_string()
}

async fn shuts(ctx: Ctx, feedback: &str, error: Value, seconds: Range<f64>) -> Judge {
    let (w, mail, other, look) = shut_by(ctx, feedback, error).await;
    let mut judge = w.judge().await;
    let (after, jitter) = (mail.as_secs_f64(), judge.jitter.as_secs_f64());
    if after + jitter < seconds.start {
        judge.breach(format!("the next started after {after} s"));
    }
    judge.soon(
        after < seconds.end + 0.2 + jitter,
        format!("the next started after {after} s"),
    );
    judge.equal(
        "inspection says",
        look["shut_until"].is_string(),
        seconds.start > 0.0,
    );
    judge.soon_took("another key waited", other, 1_000);
    judge.that(judge.rows.1 == 0, format!("rows {:?}", judge.rows));
    judge
}

pub async fn shut_for_retry_after(ctx: Ctx) -> Judge {
    let after = [json!(4), json!(4.0), json!("PT4S"), json!("4s"), json!("4")];
    let after = &after[(ctx.seed % 5) as usize];
    let error = json!({ "code": "handler_error", "message": "no", "retry_after": after });
    shuts(ctx, "", error, 3.9..4.0).await
}

/// What the official SDKs really send for a handler that failed with a rate limit error: they can
/// say no time, so the file names the error.
pub async fn shut_by_the_codes_of_sdks(ctx: Ctx) -> Judge {
    let js = json!({ "code": "handler_error", "message": "slow down", "retryable": true,
        "details": { "stack": "RateLimitError: slow down\n    at send (file:///app/worker.mjs:12:11)\n    at process.processTicksAndRejections (node:internal/process/task_queues:105:5)" } });
    let python = json!({ "code": "handler_error", "message": "slow down", "retryable": true,
        "details": { "traceback": "Traceback (most recent call last):\n  File \"/app/worker.py\", line 12, in send\n    raise RateLimitError(\"slow down\")\nvendor.RateLimitError: slow down\n" } });
    // Whatever a handler returns there, only its message is told.
    let go = json!({ "code": "handler_error", "message": "vendor: 429 Too Many Requests", "retryable": true });
    let rust = json!({ "code": "handler_error", "message": "RateLimitError: vendor says no", "retryable": true });
    let error = ctx.pick(&[js, python, go, rust]);
    let feedback = "[policy.feedback]\ncodes = ['RateLimitError', '*429 Too Many Requests*']\n\
         default_pause = '5s'";
    shuts(ctx, feedback, error, 4.9..5.5).await
}

/// The same error where no code names it, and a spent budget that is none.
pub async fn not_shut_by_other_errors(ctx: Ctx) -> Judge {
    let errors = [
        json!({ "code": "handler_error", "message": "disk full", "retryable": true, "details": { "stack": "Error: disk full\n    at RateLimitError (x.js:1:1)" } }),
        json!({ "code": "handler_error", "message": "no", "details": { "X-RateLimit-Remaining": "10", "X-RateLimit-Reset": "30" } }),
        json!({ "code": "handler_error", "message": "no", "rate_limit_until": at(-10) }),
        json!({ "code": "handler_error", "message": "no", "retry_after": 20 }),
    ];
    let feedback =
        "[policy.feedback]\nhonor = ['rate_limit_until', 'headers']\ncodes = ['RateLimitError']";
    let error = errors[(ctx.seed % 4) as usize].clone();
    shuts(ctx, feedback, error, 0.0..0.1).await
}

/// A worker with a wrong clock closes nothing for years.
pub async fn shut_no_longer_than_max_pause(ctx: Ctx) -> Judge {
    let error = json!({ "code": "x", "message": "no", "rate_limit_until": "2087-01-01T00:00:00Z" });
    let feedback = "[policy.feedback]\nmax_pause = '6s'\ndefault_pause = '1s'";
    shuts(ctx, feedback, error, 5.9..6.0).await
}

/// A job's own key is shut too, and the limits of its queue never are: other jobs of it run. What is
/// refused meanwhile is dropped or waits as its policy says.
pub async fn shuts_keys_and_no_queue(ctx: Ctx) -> Judge {
    let world = ctx.limits("[[queue]]\nname = 'push'\nconcurrency = 4");
    let w = world.start().await;
    let key = |name: &str| json!({ "key": name, "concurrency": 5 });
    let hands = w.hands("one");
    w.enqueue(own("own", key("own"))).await;
    let first = hands.get("push", 1).await;
    let again =
        json!({ "code": "handler_error", "message": "no", "retryable": false, "retry_after": 6 });
    hands.nack_with(&first[0].job, again).await;
    // A shorter one does not open it earlier.
    let queue = w.get("/ojs/v1/rate-limits/push").await;
    let began = Instant::now();
    let waits = w.enqueue(own("own", key("own"))).await;
    let drops = w
        .enqueue(own("own", json!({ "key": "own", "on_limit": "drop" })))
        .await;
    let other = w.enqueue(own("other", key("other"))).await;
    let free = w.enqueue(push("free")).await;
    w.workers(2, Worker::js(4).queues(&["push"]).runs(10..20));
    let mut judge = w.judge_when_done(30).await;
    let start = |id: &str| {
        let all = judge.records.deliveries.iter();
        all.clone().find(|d| d.job == id).map(|d| d.at - began)
    };
    let (other, free, waited) = (start(&other), start(&free), start(&waits));
    if waited.is_none_or(|after| after < Duration::from_millis(5_900)) {
        judge.breach(format!("a job of the shut key started after {waited:?}"));
    }
    judge.that(
        waited.is_some_and(|after| after < Duration::from_millis(7_700)),
        format!("it waited {waited:?}"),
    );
    for (name, after) in [("another key", other), ("no key", free)] {
        judge.that(
            after.is_some_and(|after| after < Duration::from_secs(2)),
            format!("{name}: {after:?}"),
        );
    }
    judge.that(
        queue["key"].is_null(),
        format!("a queue is no key: {queue}"),
    );
    let ends = dropped(&judge, &[drops]);
    judge.that(ends == [1], format!("dropped {ends:?} times"));
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// Two nacks: the later time stands, whichever comes last. A nack that the backend refuses says
/// nothing.
pub async fn the_longer_pause_stands(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::spec()).start().await;
    let key = json!({ "key": "own", "concurrency": 5 });
    w.enqueue_all(4, |_| own("own", key.clone())).await;
    let hands = w.hands("one");
    let got = hands.get("push", 3).await;
    let error = |seconds: u64| json!({ "code": "x", "message": "no", "retryable": false, "retry_after": seconds });
    hands.ack(&got[2].job).await;
    let refused = hands.nack_with(&got[2].job, error(50)).await;
    let mut pauses = [8, 3];
    if ctx.even() {
        pauses.reverse();
    }
    let began = Instant::now();
    for (delivery, seconds) in got.iter().zip(pauses) {
        hands.nack_with(&delivery.job, error(seconds)).await;
    }
    let after = next_start(&w, &hands, "push")
        .await
        .map(|_| began.elapsed());
    let mut judge = w.judge().await;
    judge.that(refused == 409, format!("the backend said {refused}"));
    if after.is_none_or(|after| after < Duration::from_millis(7_900)) {
        judge.breach(format!("the next started after {after:?}"));
    }
    judge.that(
        after.is_some_and(|after| after < Duration::from_millis(8_300)),
        format!("the next started after {after:?}"),
    );
    judge
}
