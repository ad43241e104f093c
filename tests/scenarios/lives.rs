//! Lives and deaths: of jobs that run long, of workers, and of the sidecar.

use super::prelude::*;

const GATED: &str = "[[queue]]\nname = 'mail'\nconcurrency = 2";

/// Jobs that run longer than their visibility, under heartbeats whose `active_jobs` is a number.
pub async fn longer_than_visibility(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&backends());
    let w = ctx.world().lax(lax).limits(TWO).start().await;
    w.enqueue_all(6, |_| job()).await;
    let worker = if ctx.even() {
        Worker::js(3)
    } else {
        Worker::python(3)
    };
    w.workers(2, worker.queues(&["mail"]).runs(40_000..80_000));
    let mut judge = w.judge_when_done(400).await;
    judge.concurrency("k:a", 2);
    let beats = judge.records.beats.iter().copied();
    let bad: Vec<u16> = beats.filter(|status| *status != 200).collect();
    judge.that(bad.is_empty(), format!("heartbeats got {bad:?}"));
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled()
}

/// A worker dies with its job: its slot is free when the backend has taken the job back, which runs
/// again, and not before.
pub async fn worker_dies(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let w = ctx.limits(limits).start().await;
    w.enqueue_all(8, |_| job()).await;
    let dying = w.worker(Worker::js(2).queues(&["mail"]).runs(60_000..60_001));
    w.pass(1_500 + ctx.seed * 400).await;
    dying.kill();
    let dead = Instant::now();
    w.workers(2, Worker::js(3).queues(&["mail"]).runs(100..300));
    w.until_done(120).await;
    let took = dead.elapsed();
    let mut judge = w.judge().await;
    judge.concurrency("k:a", 2);
    judge.that(took < Duration::from_secs(40), format!("it took {took:?}"));
    let expired = judge.lapsed();
    judge.that(expired == 2, format!("{expired} claims expired"));
    judge.settled()
}

/// Where a claim ends only when a FETCH comes, dead workers that have the last slots of a queue keep them, as the
/// manual says, until one of their jobs is cancelled; with a slot to spare all goes on.
pub async fn dead_workers_without_a_reaper(ctx: Ctx) -> Judge {
    let mut lax = Lax::redis();
    lax.reaps = false;
    let w = ctx.world().lax(lax).limits(GATED).start().await;
    w.enqueue_all(8, |_| job()).await;
    let dead = w.hands("dead");
    let all = ctx.pick(&[1, 2]);
    let lost = dead.get("mail", all).await;
    w.worker(Worker::js(2).queues(&["mail"]).runs(100..300));
    w.pass(90_000 + ctx.seed * 100).await;
    let done = w.backend.ended();
    if done == 0 {
        dead.cancel(&lost[0].job).await;
    }
    let mut judge = w.judge_when_done(60).await;
    let expected = [0, 8][usize::from(all == 1)];
    judge.that(
        done == expected,
        format!("{done} had ended with {all} of 2 slots of the dead"),
    );
    judge.concurrency("k:a", 2);
    judge.settled()
}

/// One of three sidecars that hold a backlog is replaced, in order or killed. To the backend a held job looks like one
/// that runs. The new sidecar looks for those, and what its siblings hold leaves no slot behind, nor does what the old
/// one held for longer than its claims.
pub async fn replaced_beside_a_backlog(ctx: Ctx) -> Judge {
    let lax = pick(ctx.seed / 2, &[Lax::redis(), Lax::spec()]);
    let world = ctx.world().lax(lax).shared();
    let w = world.limits(TWO).start().await;
    let others = [w.sibling().await, w.sibling().await];
    w.pass(1_500).await;
    w.enqueue_all(1_000, |_| job()).await;
    let two = w.hands_of("two", &others[0]);
    let mut out = two.get("mail", 2).await;
    for one in [&w.hands("one"), &two, &w.hands_of("three", &others[1])] {
        for _ in 0..8 {
            out.extend(one.get("mail", 10).await);
        }
    }
    let health = w.get("/ojs/v1/health").await;
    let ids: Vec<String> = out.iter().map(|of| of.job.clone()).collect();
    // Where claims count attempts, a drain goes on for as long as it may.
    let runs_on = async {
        for _ in 0..10 {
            w.pass(5_000).await;
            two.beat(&ids, false).await;
        }
    };
    match ctx.even() {
        true => tokio::select! {
            () = w.drain() => {}
            () = runs_on => {}
        },
        false => w.kill_sidecar(),
    }
    w.start_sidecar().await;
    w.pass(2_000).await;
    let slots = w.rows().await.1;
    two.ack_all(&out).await;
    if !ctx.even() {
        // What it held when it was killed comes back after its visibility.
        w.pass(31_000).await;
    }
    let next = two.get("mail", 9).await;
    let mut judge = w.judge().await;
    let held = health["throttle"]["held"].as_u64().unwrap_or(0);
    // Where claims count attempts, 256 places are all there are.
    judge.that(held > 20, format!("{held} were held by the first"));
    judge.that(out.len() == 2, format!("{} started", out.len()));
    // What the dead one held looks like jobs that run, until its claims are over.
    let expected = if ctx.even() { 2 } else { 2 + held as usize };
    judge.that(slots == expected, format!("{slots} slots are taken"));
    judge.that(next.len() == 2, format!("then {} started", next.len()));
    judge.concurrency("k:a", 2);
    judge.each_ran_once();
    judge
}

/// The sidecar is killed with jobs out, and another starts: what runs has its slots there too.
pub async fn restarted_with_jobs_out(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::spec()]);
    let w = ctx.world().lax(lax).limits(limits).start().await;
    w.enqueue_all(8, |_| job()).await;
    w.workers(3, Worker::js(3).queues(&["mail"]).runs(3_000..6_000));
    w.pass(2_500 + ctx.seed * 100).await;
    w.kill_sidecar();
    w.pass(200).await;
    w.start_sidecar().await;
    let mut judge = w.judge_when_done(200).await;
    judge.concurrency("k:a", 2);
    judge.all_settles_ok(true);
    judge.equal("rows are left:", judge.rows, (0, 0));
    judge.no_claim_lost();
    judge
}

/// The sidecar is gone for good with jobs held: the backend takes them back, and they run.
pub async fn gone_with_jobs_held(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue_all(10, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 10).await;
    w.pass(ctx.seed * 300).await;
    let claimed = w.active("mail").await;
    w.kill_sidecar();
    w.pass(31_000).await;
    let left = w.active("mail").await;
    w.start_sidecar().await;
    w.workers(2, Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(100).await;
    judge.that(
        got.len() == 2 || w.ctx.unlimited,
        format!("{} were out", got.len()),
    );
    judge.that(
        claimed > 2,
        format!("{claimed} were claimed: nothing is held"),
    );
    judge.that(left == 0, format!("{left} jobs are still claimed"));
    judge.concurrency("k:a", 2);
    judge.settled()
}

/// SIGTERM: no new starts, held jobs go back, running jobs are settled, and the end comes with them.
pub async fn drain_in_order(ctx: Ctx) -> Judge {
    let world = ctx.limits(TWO).server("drain_timeout = '20s'");
    let w = world.start().await;
    w.enqueue_all(8, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let got = one.get("mail", 8).await;
    let waiting = tokio::spawn(async move { two.fetch(&["mail"], 1).await });
    w.pass(100).await;
    w.begin_drain();
    w.pass(50).await;
    let waited = waiting.await.expect("no panic");
    // Over real sockets when the machine comes to it.
    let patience = if ctx.real { 10 } else { 0 };
    w.until(patience, async || w.active("mail").await == 2)
        .await;
    let active = w.active("mail").await;
    let late = one.fetch(&["mail"], 1).await;
    let beat = one.beat(&[got[0].job.clone()], true).await;
    w.pass(1_000 + ctx.seed * 100).await;
    let early = w.is_over();
    let first = one.ack(&got[0].job).await;
    let second = one.ack(&got[1].job).await;
    let began = Instant::now();
    w.drain().await;
    let ended = began.elapsed();
    w.start_sidecar().await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(
        matches!(&waited, Ok(jobs) if jobs.is_empty()),
        format!("the waiting FETCH got {waited:?}"),
    );
    judge.equal("jobs are claimed while draining", active, 2);
    judge.that(
        matches!(&late, Ok(jobs) if jobs.is_empty()),
        "a job started while draining, or a FETCH failed",
    );
    judge.that(beat == 200, format!("a heartbeat got {beat}"));
    judge.that(!early, "it ended with jobs out");
    judge.that(
        (first, second) == (200, 200),
        format!("ACKs got {first} and {second}"),
    );
    judge.soon(
        ended < Duration::from_millis(500) + judge.jitter,
        format!("it took {ended:?} to end"),
    );
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// SIGTERM, and the backend takes its time to take held jobs back: who comes meanwhile is let go with the last of them.
pub async fn drain_lets_go_who_waits_in_vain(ctx: Ctx) -> Judge {
    let world = ctx.limits(TWO).settings("[fetch]\nmax_wait = '20s'");
    let w = world.start().await;
    w.enqueue_all(4, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 4).await;
    let slow = Fault::Slow(Duration::from_millis(300));
    w.backend.often(Op::Nack, 1.0, slow);
    w.begin_drain();
    w.pass(50 + ctx.seed * 100).await;
    let began = Instant::now();
    let late = one.get("mail", 2).await;
    let waited = began.elapsed();
    w.backend.mend();
    one.ack_all(&out).await;
    w.drain().await;
    w.start_sidecar().await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(late.is_empty(), "a job started while draining");
    judge.that(
        waited < Duration::from_secs(2),
        format!("it waited {waited:?} for what had gone back"),
    );
    judge.all_well()
}

/// SIGTERM with a limited job out: queues that no limit touches go on, alone and named beside a limited one.
pub async fn drain_goes_on_for_the_rest(ctx: Ctx) -> Judge {
    let world = ctx.limits(GATED).server("drain_timeout = '20s'");
    let w = world.start().await;
    w.enqueue_all(4, |_| job()).await;
    w.enqueue_all(3, |_| Job::new("report").queue("free")).await;
    let one = w.hands("one");
    let out = one.get("mail", 1).await;
    w.begin_drain();
    w.pass(50).await;
    let mixed = one.fetch(&["mail", "free"], 2).await.unwrap_or_default();
    let alone = one.get("free", 5).await;
    let limited = one.get("mail", 5).await;
    let claimed = w.active("mail").await;
    one.ack_all(out.iter().chain(&mixed).chain(&alone)).await;
    w.drain().await;
    w.start_sidecar().await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    let got = [mixed.len(), alone.len(), limited.len(), claimed as usize];
    judge.equal(
        "of both, of the free one, of the limited one, claimed of it:",
        got,
        [2, 1, 0, 1],
    );
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// A drain ends at its time-out although a job is still out.
pub async fn drain_times_out(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).server("drain_timeout = '3s'").start().await;
    w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one");
    one.fetch(&["mail"], 2).await.ok();
    let began = Instant::now();
    w.drain().await;
    let took = began.elapsed();
    let mut judge = w.judge().await;
    judge.that(
        (3..=6).contains(&took.as_secs()),
        format!("the drain took {took:?}"),
    );
    judge
}

/// The backend takes longer to claim jobs than a drain waits for them: they go back when they come.
pub async fn claimed_late_in_a_drain(ctx: Ctx) -> Judge {
    let world = ctx.limits(TWO);
    let w = world.server("drain_timeout = '20s'").start().await;
    w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let out = one.get("mail", 2).await;
    w.enqueue_all(3, |_| job()).await;
    let takes = Duration::from_secs(7);
    let takes = match ctx.even() {
        true => Fault::Slow(takes),
        false => Fault::LateReply(takes),
    };
    w.backend.next(Op::Fetch, 1, takes);
    let asking = tokio::spawn(async move { two.fetch(&["mail"], 3).await });
    w.pass(1_000).await;
    w.begin_drain();
    w.pass(6_500 + ctx.seed * 1_000).await;
    let (early, claimed) = (w.is_over(), w.active("mail").await);
    one.ack_all(&out).await;
    w.drain().await;
    let left = w.active("mail").await;
    let late = asking.await.expect("no panic");
    let mut judge = w.judge().await;
    judge.that(!early, "it ended with jobs out");
    judge.equal("are claimed, and two are out", claimed, 2);
    judge.that(left == 0, format!("{left} held jobs are left"));
    judge.that(
        late.as_ref().map_or(true, Vec::is_empty),
        "a job started while draining",
    );
    judge
}

/// SIGTERM and a new sidecar in the middle of everything: limits hold, each job runs once.
pub async fn drained_under_load(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let w = ctx
        .limits(&format!(
            "{limits}\nthrottle = {{ limit = 20, period = '1s' }}"
        ))
        .start()
        .await;
    w.enqueue_all(60, |_| job()).await;
    w.workers(3, Worker::js(3).queues(&["mail"]).runs(50..600));
    for _ in 0..3 {
        w.pass(1_700 + ctx.seed * 53).await;
        w.drain().await;
        w.pass(ctx.seed * 11).await;
        w.start_sidecar().await;
    }
    let mut judge = w.judge_when_done(120).await;
    judge.concurrency("k:a", 2);
    judge.all_settles_ok(true);
    judge.all_well()
}

/// Workers that send no heartbeats: a job shorter than its visibility keeps its slot to its end, a
/// longer one until the backend has taken it back, and no longer.
pub async fn without_heartbeats(ctx: Ctx) -> Judge {
    let limits = if ctx.even() { TWO } else { GATED };
    let short = ctx.seed % 4 < 2;
    let w = ctx.limits(limits).start().await;
    let retry = json!({ "max_attempts": 20 });
    w.enqueue_all(6, |_| job().option("retry", retry.clone()))
        .await;
    let runs = if short {
        10_000..29_000
    } else {
        20_000..34_000
    };
    w.workers(
        2,
        Worker::js(2)
            .queues(&["mail"])
            .runs(runs)
            .without_heartbeats(),
    );
    let mut judge = w.judge_when_done(600).await;
    judge.concurrency("k:a", 2);
    if short {
        judge.each_ran_once();
        judge.all_settles_ok(false);
    }
    judge.no_slot_left();
    judge
}

/// Claims that stand for ten minutes, of which the sidecar knows nothing, workers that send no heartbeats, and
/// a backend that is away for three seconds: nobody can say whether the jobs are over, and they are not.
pub async fn backend_away_without_heartbeats(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::spec()]);
    let w = ctx.world().lax(lax).limits(GATED).start().await;
    let options = json!({ "queue": "mail", "visibility_timeout_ms": 600_000 });
    let job = json!({ "type": "email.send", "args": [], "options": options });
    for _ in 0..6 {
        w.backend.direct("POST", "/ojs/v1/jobs", &job).await;
    }
    let worker = Worker::js(2).queues(&["mail"]).runs(80_000..90_000);
    w.workers(2, worker.without_heartbeats());
    w.pass(40_000 + ctx.seed * 50).await;
    w.backend.down_for(Duration::from_secs(3)).await;
    let done = w.until(400, async || w.backend.ended() == 6).await;
    let mut judge = w.judge().await;
    judge.that(done, "not done within 400 s");
    let (mut out, mut most) = (0_usize, 0);
    for (_, event) in &judge.events {
        match event.kind {
            EventKind::Claimed => out += 1,
            EventKind::Acked => out -= 1,
            _ => {}
        }
        most = most.max(out);
    }
    judge.that(most <= 2, format!("{most} jobs were out at once"));
    judge.no_slot_left();
    judge
}

/// A drain ends at its time-out while the backend takes a held job back: no worker gets that job here.
pub async fn drain_times_out_in_a_give_back(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    let w = world.server("drain_timeout = '500ms'").start().await;
    let ids = w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let out = one.get("mail", 2).await;
    let late = Fault::LateReply(Duration::from_secs(10));
    w.backend.next(Op::Nack, 1, late);
    w.begin_drain();
    w.pass(100).await;
    one.ack_all(&out).await;
    w.pass(350).await;
    // It looks at what is left when its time is over.
    w.first_way(|way| way.late(Duration::from_millis(200)));
    w.pass(60 + ctx.seed * 20).await;
    let twice = two.get("mail", 1).await;
    w.drain().await;
    let back = w.backend.fetch("direct", 1).await;
    let mut judge = w.judge().await;
    judge.that(twice.is_empty(), "a worker got what had gone back");
    judge.that(
        out.len() == 1 && back.len() == 1 && ids.contains(&back[0]),
        format!("{} were out, {back:?} are back", out.len()),
    );
    judge
}

/// A sidecar drains that holds jobs of several queues, and the backend is slow to say of each whether it runs still: a
/// worker of the sibling does not wait for all of that.
pub async fn asked_beside_many_offers(ctx: Ctx) -> Judge {
    const QUEUES: [&str; 4] = ["a", "b", "c", "d"];
    let world = ctx.world().lax(Lax::spec()).limits(ONE);
    let (w, other) = world.settings("[fetch]\nmax_wait = '0s'").pair().await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    for queue in QUEUES {
        w.enqueue_all(4, |_| job().queue(queue)).await;
        one.get(queue, 4).await;
    }
    let held = w.metric("ojs_throttle_held_jobs").await;
    let slow = Fault::Slow(Duration::from_millis(500 + ctx.seed * 100));
    w.backend.often(Op::Job, 1.0, slow);
    w.begin_drain();
    w.pass(200).await;
    let begun = Instant::now();
    let got = two.fetch(&QUEUES, 1).await;
    let took = begun.elapsed();
    let mut judge = w.judge().await;
    judge.equal("were held", held, 15.0);
    judge.that(got.is_ok(), "the FETCH failed");
    judge.soon_took("the FETCH took", took, 1_000);
    judge
}
