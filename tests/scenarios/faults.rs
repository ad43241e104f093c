//! What goes wrong between worker, sidecar and backend, and must not show.

use super::prelude::*;

const THROTTLE: &str =
    "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nthrottle = { limit = 2, period = '1s' }";
const GATED: &str = "[[queue]]\nname = 'mail'\nconcurrency = 2";
const NONSENSE: &str = "ojs_throttle_upstream_nonsense_total";

/// A worker hangs up while its FETCH waits: the job goes to the next one, at its time, once.
pub async fn hang_up_while_waiting(ctx: Ctx) -> Judge {
    let patient = format!("{THROTTLE}\n[fetch]\nmax_wait = '5s'");
    let w = ctx.limits(&patient).start().await;
    w.enqueue_all(3, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    let began = Instant::now();
    let gone = 50 + ctx.seed * 17;
    let hung = timeout(Duration::from_millis(gone), one.fetch(&["mail"], 1)).await;
    let second = two.get("mail", 1).await;
    let waited = began.elapsed();
    let third = two.get("mail", 1).await;
    for delivery in first.iter().chain(&second).chain(&third) {
        let whose = if delivery.worker == "one" { &one } else { &two };
        whose.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    judge.spacing("k:a", Duration::from_millis(500), 1);
    judge.that(hung.is_err() || gone >= 495, "a job came before its time");
    judge.that(
        hung.is_ok() || (second.len(), third.len()) == (1, 1),
        "a job went to nobody",
    );
    judge.soon(
        hung.is_ok() || waited < Duration::from_millis(510) + judge.jitter,
        format!("the next worker waited {waited:?}"),
    );
    judge.all_well()
}

/// A worker hangs up while its claim is under way: what was claimed is held for the next one, who
/// gets it at once.
pub async fn hang_up_during_the_claim(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let w = ctx.limits(limits).start().await;
    w.enqueue_all(2, |_| job()).await;
    w.backend
        .next(Op::Fetch, 1, Fault::LateReply(Duration::from_millis(100)));
    // The instant of the reply itself is the hardest moment.
    let gone = pick(ctx.seed / 2, &[40, 99, 100, 101]);
    let one = w.hands("one");
    let hung = timeout(Duration::from_millis(gone), one.fetch(&["mail"], 2)).await;
    w.pass(20).await;
    let began = Instant::now();
    let two = w.hands("two");
    let mut got = two.get("mail", 2).await;
    w.pass(300).await;
    got.extend(two.get("mail", 2).await);
    let waited = began.elapsed();
    let in_time: Vec<_> = hung.iter().flatten().flatten().cloned().collect();
    let came = got.len() + in_time.len();
    two.ack_all(got).await;
    one.ack_all(in_time).await;
    // What was on its way at that very instant may be the dead worker's, until its visibility passes.
    let lost = came < 2;
    if lost {
        w.pass(32_000).await;
        w.worker(Worker::js(2).queues(&["mail"]));
        w.until_done(60).await;
    }
    let mut judge = w.judge().await;
    judge.that(
        !lost || gone >= 99,
        format!("{came} of 2 jobs within {waited:?}"),
    );
    judge.settled()
}

/// Jobs bring limits of their own to a queue of which nothing is held yet, and two workers hang up while the backend
/// is asked: the jobs are held for the next one.
pub async fn hang_up_where_jobs_bring_limits(ctx: Ctx) -> Judge {
    let w = ctx.world().start().await;
    let policy = json!({ "key": "own", "concurrency": 1 });
    let one = |_| Job::new("a.b").queue("mail").label("own");
    w.enqueue_all(3, |nth| one(nth).option("rate_limit", policy.clone()))
        .await;
    let far = Fault::LateReply(Duration::from_millis(400));
    w.backend.often(Op::Fetch, 1.0, far);
    for name in ["one", "two"] {
        let patience = Duration::from_millis(100 + ctx.seed * 20);
        let _gone = timeout(patience, w.hands(name).fetch(&["mail"], 1)).await;
    }
    w.worker(Worker::js(1).queues(&["mail"]).runs(10..20));
    let mut judge = w.judge_when_done(8).await;
    judge.concurrency("own", 1);
    judge.all_well()
}

/// Workers hang up all the time: nothing is lost, no slot leaks, limits hold.
pub async fn hang_ups_everywhere(ctx: Ctx) -> Judge {
    let limits = format!("{TWO}\nrate = {{ limit = 8, period = '1s' }}");
    let w = ctx.limits(&limits).start().await;
    w.backend
        .often(Op::Fetch, 0.5, Fault::LateReply(Duration::from_millis(7)));
    w.enqueue_all(40, |_| job()).await;
    w.workers(4, Worker::js(3).queues(&["mail"]).hangs_up(0.5));
    let mut judge = w.judge_when_done(300).await;
    judge.concurrency("k:a", 2);
    judge.rate("k:a", 8, Duration::from_secs(1));
    judge.settled()
}

/// Now and then an ACK or a nack is not carried out, or not answered: its worker gets its answer all the same.
pub async fn settling_fails(ctx: Ctx) -> Judge {
    let (op, fault) = ctx.pick(&[
        (Op::Ack, Fault::ReplyCut),
        (Op::Ack, Fault::ReplyLost),
        (Op::Ack, Fault::Refused),
        (Op::Nack, Fault::ReplyLost),
        (Op::Nack, Fault::Refused),
        // So an ingress says that the backend restarts.
        (Op::Ack, Fault::Status(503)),
        (Op::Ack, Fault::Status(502)),
        (Op::Nack, Fault::Status(503)),
        // And so that it is asked too often.
        (Op::Ack, Fault::Status(429)),
        (Op::Nack, Fault::Status(429)),
    ]);
    let w = ctx.limits(TWO).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0.1S" });
    w.enqueue_all(12, |_| job().option("retry", retry.clone()))
        .await;
    w.backend.often(op, 0.3, fault);
    let fails = if op == Op::Nack { 0.5 } else { 0.0 };
    w.workers(2, Worker::js(3).queues(&["mail"]).fails(fails));
    w.until_done(120).await;
    w.backend.mend();
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 2);
    judge.all_settles_ok(false);
    if op == Op::Ack {
        judge.each_ran_once();
    }
    judge.settled()
}

/// The answer to an ACK is lost on its way to the worker: the same request again gets it, and the
/// backend sees one ACK.
pub async fn ack_answer_lost_to_the_worker(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 2).await;
    let mut statuses = Vec::new();
    for delivery in &got {
        w.backend
            .next(Op::Ack, 1, Fault::LateReply(Duration::from_millis(80)));
        let hung = timeout(Duration::from_millis(40), one.ack(&delivery.job)).await;
        assert!(hung.is_err());
        w.pass(ctx.seed * 13).await;
        statuses.push(one.ack(&delivery.job).await);
    }
    let again = one.ack(&got[0].job).await;
    let mut judge = w.judge().await;
    judge.equal("the second requests got", statuses, [200, 200]);
    judge.equal(
        "an ACK of what was acknowledged and answered got",
        again,
        409,
    );
    judge.settled()
}

/// The answer to a nack is lost, and the next attempt fails in the same words: that is another nack, and
/// the backend hears it.
pub async fn nack_answer_lost_then_fails_alike(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0.1S" });
    w.enqueue(job().option("retry", retry)).await;
    let one = w.hands("one");
    let mut attempts = Vec::new();
    for hangs in [true, false] {
        w.pass(1_000).await;
        let got = one.get("mail", 1).await;
        let Some(delivery) = got.first() else { break };
        attempts.push(delivery.shown["attempt"].clone());
        if hangs {
            w.backend
                .next(Op::Nack, 1, Fault::LateReply(Duration::from_millis(80)));
            let hung = timeout(Duration::from_millis(40), one.nack(&delivery.job)).await;
            assert!(hung.is_err());
            w.pass(ctx.seed * 13).await;
        } else {
            one.nack(&delivery.job).await;
        }
    }
    w.pass(1_000).await;
    let got = one.get("mail", 1).await;
    for delivery in &got {
        attempts.push(delivery.shown["attempt"].clone());
        one.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    // Some backends count from 0.
    judge.equal("the attempts were", attempts.len(), 3);
    judge.settled()
}

/// The answer to a nack is lost on its way to us, and before we can look the job is out again: what ends is
/// the claim that was nacked, not the new one, which keeps its slot.
pub async fn nack_reply_lost_and_claimed_again(ctx: Ctx) -> Judge {
    let w = ctx.limits(ONE).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0S" });
    w.enqueue(job().option("retry", retry)).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let got = one.get("mail", 1).await;
    let first = got.first().map(|delivery| delivery.job.clone());
    w.backend.next(Op::Nack, 1, Fault::ReplyLost);
    let slow = Duration::from_millis(300 + ctx.seed * 150);
    w.backend.next(Op::Job, 1, Fault::Slow(slow));
    let (nacked, again) = tokio::join!(one.nack(first.as_deref().unwrap_or_default()), async {
        w.pass(200).await;
        let again = two.get("mail", 1).await;
        w.enqueue(job()).await;
        again
    });
    // The first is out with its second worker, so the other one waits.
    let early = one.get("mail", 1).await;
    two.ack_all(&again).await;
    let other = one.get("mail", 1).await;
    one.ack_all(early.iter().chain(&other)).await;
    let mut judge = w.judge().await;
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    let came: Vec<_> = again.iter().map(|delivery| &delivery.job).collect();
    judge.equal(
        "the second worker got",
        came,
        first.iter().collect::<Vec<_>>(),
    );
    judge.that(
        (early.len(), other.len()) == (0, 1),
        format!("{} and {} came", early.len(), other.len()),
    );
    judge.settled()
}

/// Nobody tries an ACK again, and the backend takes its time: the ACK has all of it.
pub async fn ack_is_slow_and_not_tried_again(ctx: Ctx) -> Judge {
    let limits = format!("{TWO}\n[settle]\nretry_for = '0s'");
    let w = ctx.limits(&limits).start().await;
    w.enqueue(job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 1).await;
    let slow = Duration::from_millis(50 + ctx.seed * 400);
    w.backend.next(Op::Ack, 1, Fault::Slow(slow));
    one.ack_all(&got).await;
    let seen = w.backend.seen();
    let acks = seen
        .iter()
        .filter(|sent| sent.path.ends_with("/workers/ack"));
    let acks = acks.count();
    let mut judge = w.judge().await;
    judge.that(acks == 1, format!("{acks} ACKs reached the backend"));
    judge.all_settles_ok(false);
    judge.settled()
}

/// A success without a body was heard: the same request again is the backend's to judge.
pub async fn ack_answered_without_a_body(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue(job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 1).await;
    let id = got.first().map(|delivery| delivery.job.clone());
    let id = id.unwrap_or_default();
    let first = one.ack(&id).await;
    w.backend.next(Op::Ack, 1, Fault::Says(""));
    let empty = one.ack(&id).await;
    let again = one.ack(&id).await;
    let mut judge = w.judge().await;
    judge.that(
        [first, empty, again] == [200, 200, 409],
        format!("{first}, {empty}, {again}"),
    );
    judge.settled()
}

/// The backend is away while jobs end: ACKs wait inside the sidecar, heartbeats are answered 200.
pub async fn backend_down_during_ack(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue_all(6, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 2).await;
    w.backend.down();
    let ids: Vec<String> = got.iter().map(|delivery| delivery.job.clone()).collect();
    let beat = one.beat(&ids, ctx.even()).await;
    let (a, b, ()) = tokio::join!(one.ack(&ids[0]), one.ack(&ids[1]), async {
        w.pass(500 + ctx.seed * 300).await;
        w.backend.up().await;
    });
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.equal("a heartbeat without a backend got", beat, 200);
    judge.that((a, b) == (200, 200), format!("ACKs got {a} and {b}"));
    judge.concurrency("k:a", 2);
    judge.all_settles_ok(false);
    judge.all_well()
}

/// Past `settle.retry_for` the worker is told, and the slot is not free before the job is.
pub async fn backend_down_too_long(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue_all(4, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 2).await;
    let began = Instant::now();
    w.backend.down();
    let body = json!({ "job_id": got[0].job });
    let status = one
        .client
        .post("/ojs/v1/workers/ack", &body)
        .await
        .map_or(0, |reply| reply.status);
    let waited = began.elapsed();
    w.pass(5_000).await;
    w.backend.up().await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(120).await;
    judge.equal("an ACK that cannot be made got", status, 502);
    judge.that(
        (9..=11).contains(&waited.as_secs()),
        format!("it was tried for {waited:?}"),
    );
    judge.concurrency("k:a", 2);
    judge.settled()
}

/// Down for seconds now and then, during everything.
pub async fn backend_restarts(ctx: Ctx) -> Judge {
    let w = ctx
        .limits(&format!(
            "{TWO}\nthrottle = {{ limit = 10, period = '1s' }}"
        ))
        .start()
        .await;
    w.enqueue_all(60, |_| job()).await;
    w.workers(3, Worker::js(4).queues(&["mail"]).runs(20..400));
    for _ in 0..4 {
        w.pass(1_000 + ctx.seed * 37).await;
        w.backend
            .down_for(Duration::from_millis(300 + ctx.seed * 111))
            .await;
    }
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("k:a", 2);
    judge.spacing("k:a", Duration::from_millis(100), 1);
    judge.all_settles_ok(false);
    judge.all_well()
}

/// The backend hands a held job out again, to us or to somebody else: each claim goes to one worker.
pub async fn held_job_handed_out_again(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    let ids = w.enqueue_all(4, |_| job()).await;
    let (one, two) = (w.hands("one").visibility(30_000), w.hands("two"));
    let first = one.get("mail", 4).await;
    w.backend.take_back(&ids[2]).await;
    if ctx.even() {
        // Another worker gets it past the sidecar.
        w.backend.fetch("elsewhere", 1).await;
        w.pass(1_500).await;
        w.backend
            .direct("POST", "/ojs/v1/workers/ack", &json!({ "job_id": ids[2] }))
            .await;
    } else {
        two.fetch(&["mail"], 4).await.ok();
    }
    w.pass(10).await;
    one.ack_all(&first).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("k:a", 2);
    let deliveries = judge.records.deliveries.iter();
    let runs = deliveries.filter(|d| d.job == ids[2]).count();
    let expected = usize::from(!ctx.even());
    judge.that(
        runs == expected,
        format!("the job ran {runs} times through us, not {expected}"),
    );
    judge.equal("rows are left:", judge.rows, (0, 0));
    judge
}

/// What the backend says instead of jobs is passed on, or is 502 where it cannot be read, and takes no slot.
pub async fn fetch_answered_with_nonsense(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let w = ctx.limits(limits).start().await;
    w.enqueue_all(6, |_| job()).await;
    let one = w.hands("one");
    let mut statuses = Vec::new();
    for fault in [
        Fault::Status(500),
        Fault::Status(429),
        Fault::Status(404),
        Fault::Refused,
    ] {
        w.backend.next(Op::Fetch, 1, fault);
        statuses.push(
            one.fetch(&["mail"], 2)
                .await
                .map_or_else(|status| status, |_| 200),
        );
    }
    let before = w.metric(NONSENSE).await;
    let mut wrong = Vec::new();
    let ask = json!({ "queues": ["mail"], "count": 2, "worker_id": "one" });
    for (text, status) in [
        ("", 200),
        ("<html>", 502),
        ("[]", 502),
        ("{\"jobs\":7}", 502),
    ] {
        w.backend.next(Op::Fetch, 1, Fault::Says(text));
        let reply = one.client.post("/ojs/v1/workers/fetch", &ask).await;
        let came = reply.map_or(0, |reply| reply.status);
        if came != status {
            wrong.push(format!("{text} came as {came}"));
        }
    }
    for text in ["{\"jobs\":[7,{}]}", "{\"jobs\":[{\"id\":7}]}"] {
        w.backend.next(Op::Fetch, 1, Fault::Says(text));
        // A reply full of jobs that are none is not the end of the queue: real ones may come after it.
        one.ack_all(one.get("mail", 2).await).await;
    }
    let rows = w.rows().await;
    w.worker(Worker::js(5).queues(&["mail"]));
    w.until_done(60).await;
    // By now all of it has come: real jobs that were held may have gone before the last.
    let counted = w.metric(NONSENSE).await - before;
    let mut judge = w.judge().await;
    judge.equal("statuses were", &statuses[..3], [500, 429, 404]);
    judge.that(
        (502..=504).contains(&statuses[3]),
        format!("a cut FETCH got {}", statuses[3]),
    );
    judge.that(wrong.is_empty(), wrong.join("; "));
    // Three replies, and three jobs that are none.
    judge.that(counted == 6.0, format!("{counted} were counted"));
    judge.that(rows == (0, 0), format!("rows after nonsense: {rows:?}"));
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// A reply to FETCH is lost after the backend claimed: those jobs come again when their visibility has
/// passed, and nothing else suffers.
pub async fn fetch_reply_lost(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue_all(10, |_| job()).await;
    w.backend.next(
        Op::Fetch,
        2,
        if ctx.even() {
            Fault::ReplyLost
        } else {
            Fault::ReplyCut
        },
    );
    w.workers(2, Worker::js(3).queues(&["mail"]));
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// An enqueue whose reply was lost is not sent again.
pub async fn enqueue_reply_lost(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    let own = json!({ "key": "k:b", "concurrency": 1 });
    for (nth, fault) in [Fault::ReplyLost, Fault::ReplyCut, Fault::Refused]
        .into_iter()
        .enumerate()
    {
        w.backend.next(Op::Enqueue, 1, fault);
        let one = if nth % 2 == 0 {
            job()
        } else {
            job().option("rate_limit", own.clone())
        };
        w.enqueue(one).await;
    }
    let mut judge = w.judge().await;
    let statuses: Vec<u16> = judge.records.produced.iter().map(|p| p.status).collect();
    judge.that(
        statuses
            .iter()
            .all(|s| (500..=504).contains(s) && *s != 503),
        format!("statuses were {statuses:?}"),
    );
    judge
}

/// The network is slow and fails everywhere; everything still ends, once, within its limits.
pub async fn everything_goes_wrong(ctx: Ctx) -> Judge {
    let w = ctx
        .limits(&format!("{TWO}\nrate = {{ limit = 20, period = '2s' }}"))
        .start()
        .await;
    let retry = json!({ "max_attempts": 20, "initial_interval": "PT0.2S" });
    w.enqueue_all(40, |_| job().option("retry", retry.clone()))
        .await;
    w.backend.often(
        Op::Any,
        0.2,
        Fault::LateReply(Duration::from_millis(ctx.seed * 9)),
    );
    w.backend.often(
        Op::Any,
        0.1,
        Fault::Slow(Duration::from_millis(ctx.seed * 7)),
    );
    w.backend.often(Op::Fetch, 0.05, Fault::Status(500));
    w.backend.often(Op::Ack, 0.1, Fault::ReplyLost);
    w.backend.often(Op::Nack, 0.1, Fault::Refused);
    w.backend.often(Op::Heartbeat, 0.2, Fault::Status(503));
    w.backend.often(Op::Job, 0.2, Fault::Refused);
    w.workers(
        3,
        Worker::js(4)
            .queues(&["mail"])
            .runs(20..3000)
            .fails(0.1)
            .hangs_up(0.2),
    );
    w.workers(
        2,
        Worker::python(2)
            .queues(&["mail"])
            .runs(20..3000)
            .fails(0.1),
    );
    let done = w.until_done(600).await;
    w.backend.mend();
    let mut judge = w.judge().await;
    judge.that(done, "not done within 600 s");
    judge.concurrency("k:a", 2);
    judge.rate("k:a", 20, Duration::from_secs(2));
    judge.settled()
}

/// The backend keeps a FETCH longer than anyone waits: its worker is told, and what was claimed comes
/// again when its visibility has passed.
pub async fn fetch_hangs(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let w = ctx.limits(limits).start().await;
    w.enqueue_all(4, |_| job()).await;
    w.backend.next(
        Op::Fetch,
        1,
        Fault::LateReply(Duration::from_secs(25 + ctx.seed * 2)),
    );
    let one = w.hands("one");
    let got = one.fetch(&["mail"], 2).await;
    one.ack_all(got.iter().flatten()).await;
    w.workers(2, Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(90).await;
    judge.concurrency("k:a", 2);
    judge.settled()
}

/// Jobs are claimed each under an id of its own, and one of these claims fails: the worker gets what the others bring.
pub async fn one_of_several_claims_fails(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::amqp()).limits(TWO).start().await;
    w.enqueue_all(4, |_| job()).await;
    let fault = ctx.pick(&[Fault::Status(503), Fault::Status(429), Fault::Refused]);
    w.backend.next(Op::Fetch, 1, fault);
    let one = w.hands("one");
    let got = one.fetch(&["mail"], 3).await;
    let started = got.as_ref().map(Vec::len);
    one.ack_all(got.iter().flatten()).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.equal("its FETCH got", started, Ok(2));
    judge.settled()
}
