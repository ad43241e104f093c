//! Held jobs as others see them and act on them: inspection, cancel, pause, scopes, give back.

use std::collections::BTreeSet;

use super::prelude::*;

/// Statistics and a job are asked for while a claim is under way: it is carried out before the backend is asked and
/// heard of afterwards, or carried out and heard of while the backend's answer is on its way. What waits in the sidecar
/// is available, and only what a worker has is active.
pub async fn seen_while_claims_are_under_way(ctx: Ctx) -> Judge {
    let w = ctx.world().limits(ONE).start().await;
    let ids = w.enqueue_all(3, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let out = one.get("mail", 1).await;
    let asking = |n| {
        let two = two.clone();
        tokio::spawn(async move { two.fetch(&["mail"], n).await })
    };
    let late = Fault::LateReply(Duration::from_millis(20 + ctx.seed * 10));
    let path = "/ojs/v1/queues/mail/stats";
    let (a, b) = (&ids[1], &ids[2]);
    let (claiming, stats, waiting) = if ctx.even() {
        w.backend.next(Op::Fetch, 1, late);
        let claiming = asking(3);
        w.pass(10).await;
        let (stats, a, b) = tokio::join!(w.get(path), w.job(a), w.job(b));
        (claiming, stats, [a, b])
    } else {
        w.backend.next(Op::Stats, 1, late);
        let client = w.client();
        let stats = tokio::spawn(async move { client.get(path).await.expect("an answer").json() });
        w.pass(10).await;
        let claiming = asking(3);
        let stats = stats.await.expect("no panic");
        (claiming, stats, [w.job(a).await, w.job(b).await])
    };
    let waiting = waiting.map(|job| job["state"].clone());
    let claimed = w.active("mail").await;
    let more = claiming.await.expect("no panic").unwrap_or_default();
    one.ack_all(&out).await;
    w.worker(Worker::js(3).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    let queue = stats.get("queue").unwrap_or(&stats);
    let counts = (queue["available"].clone(), queue["active"].clone());
    judge.equal("available and active", counts, (json!(2), json!(1)));
    judge.equal(
        "what waits is",
        waiting,
        [json!("available"), json!("available")],
    );
    judge.equal("claimed at the backend", claimed, 3);
    judge.equal("started beside one of one", more.len(), 0);
    judge.all_well()
}
use crate::harness::judge::Claim;

/// A worker's claim lapses, and its job is claimed again and held, for nothing of its key may start. Its ACK ends the
/// job all the same: it runs once.
pub async fn settled_by_who_had_it(ctx: Ctx) -> Judge {
    let limits =
        |most| format!("[[policy]]\nname = 'p'\nkey = 'k:{{meta.n}}'\nconcurrency = {most}\n");
    let world = ctx.world().lax(Lax::spec()).limits(&limits(1));
    let world = world.shared_if(ctx.even());
    let w = world.start().await;
    let (one, two) = (w.hands("one").visibility(5_000), w.hands("two"));
    w.enqueue(job().meta("n", json!(1))).await;
    let out = one.get("mail", 1).await;
    w.reload(&limits(0));
    w.pass(8_000).await;
    let early = two.get("mail", 1).await.len();
    let held = w.rows().await.0;
    let acked = one.ack(&out[0].job).await;
    w.reload(&limits(1));
    let late = two.get("mail", 1).await.len();
    let mut judge = w.judge().await;
    judge.that(held == 1, format!("{held} jobs were held"));
    judge.that(acked == 200, format!("the ACK got {acked}"));
    let more = early + late;
    judge.that(more == 0, format!("it went out {more} times more"));
    judge.that(judge.rows == (0, 0), format!("rows {:?}", judge.rows));
    judge
}

/// Cancel, while it is held: it never runs, whenever the slot is freed.
pub async fn cancelled_while_held(ctx: Ctx) -> Judge {
    let w = ctx.limits(ONE).start().await;
    let ids = w.enqueue_all(3, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 3).await;
    let freed = async {
        w.pass(ctx.seed % 3).await;
        one.ack(&got[0].job).await;
    };
    let cancelled = async {
        w.pass(ctx.seed / 3 % 3).await;
        w.hands("other").cancel(&ids[1]).await
    };
    let two = w.hands("two");
    let (rest, (), status) = tokio::join!(two.fetch(&["mail"], 3), freed, cancelled);
    two.ack_all(rest.unwrap_or_default()).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k:a", 1);
    let ran = judge.records.deliveries.iter().any(|d| d.job == ids[1]);
    let cancel = judge
        .events
        .iter()
        .any(|(_, e)| e.kind == EventKind::Cancelled && *e.job == *ids[1]);
    // A job that was out already can be cancelled too; one that is cancelled first never runs.
    judge.that(cancel == (status == 200), format!("cancel said {status}"));
    let late = judge.records.deliveries.iter().any(|d| {
        d.job == ids[1]
            && judge
                .events
                .iter()
                .any(|(at, e)| e.kind == EventKind::Cancelled && *at < d.at)
    });
    judge.that(!late, "a cancelled job was handed out");
    judge.that(cancel || ran, "it neither ran nor was cancelled");
    judge.equal("rows are left:", judge.rows, (0, 0));
    judge
}

/// Names and values.
type Headers<'a> = &'a [(&'static str, &'static str)];

/// The same worker, whose requests carry these.
fn under(mut hands: Hands, headers: Headers) -> Hands {
    for (name, value) in headers {
        hands.client = hands.client.with(name, value);
    }
    hands
}

/// Credentials and tenants, alone and together, on one queue: what one claimed goes to nobody else, which is
/// judged in every scenario, and each of them held some.
pub async fn scopes_never_mix(ctx: Ctx) -> Judge {
    let limits =
        "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nthrottle = { limit = 5, period = '1s' }";
    let w = ctx.limits(limits).start().await;
    let (login, tenant) = ("authorization", "x-ojs-tenant");
    let scopes: [Headers; 6] = [
        &[(login, "Bearer one")],
        &[(login, "Bearer two")],
        &[(tenant, "a")],
        &[(tenant, "b")],
        &[(login, "Bearer one"), (tenant, "a")],
        &[],
    ];
    for headers in scopes {
        w.enqueue_all(6, |_| job()).await;
        let hands = under(w.hands("first"), headers);
        hands.ack_all(hands.get("mail", 6).await).await;
    }
    w.enqueue_all(20, |_| job()).await;
    for headers in scopes {
        let mut worker = Worker::js(3).queues(&["mail"]);
        for (header, value) in headers {
            worker = worker.header(header, value);
        }
        w.worker(worker);
    }
    let mut judge = w.judge_when_done(120).await;
    let waited = |claim: &&Claim| {
        let mut got = claim.delivered.iter();
        got.any(|&nth| judge.records.deliveries[nth].at > claim.at)
    };
    let held = judge.claims.iter().filter(waited);
    let scopes: BTreeSet<_> = held
        .flat_map(|claim| &claim.delivered)
        .map(|&nth| judge.records.deliveries[nth].credentials.clone())
        .collect();
    judge.that(
        scopes.len() == 6 || ctx.unlimited,
        format!("only {scopes:?} held jobs"),
    );
    judge.spacing("k:a", Duration::from_millis(200), 1);
    judge.all_well()
}

/// A job that one FETCH claimed is not given to one of other credentials or of another tenant, however long
/// and often it asks.
pub async fn held_stays_in_its_scope(ctx: Ctx) -> Judge {
    let world = ctx.limits(ONE).settings("[hold]\nidle = '1m'");
    let w = world.start().await;
    w.enqueue_all(2, |_| job()).await;
    let (login, tenant) = ("authorization", "x-ojs-tenant");
    let both = [(login, "Bearer one"), (tenant, "a")];
    let (own, other): (Headers, Headers) = match ctx.seed % 5 {
        0 => (&[(login, "Bearer one")], &[(login, "Bearer two")]),
        1 => (&[(tenant, "a")], &[(tenant, "b")]),
        2 => (&both, &both[..1]),
        3 => (&both[1..], &both),
        _ => (&both[..1], &[]),
    };
    let (one, two) = (under(w.hands("one"), own), under(w.hands("two"), other));
    let got = one.get("mail", 2).await;
    one.ack(&got[0].job).await;
    let mut foreign = two.get("mail", 2).await;
    for _ in 0..5 {
        w.pass(ctx.seed * 50).await;
        foreign.extend(two.get("mail", 2).await);
    }
    let own = one.get("mail", 2).await;
    one.ack_all(foreign.iter().chain(&own)).await;
    let mut judge = w.judge().await;
    judge.that(foreign.is_empty(), "a held job crossed scopes");
    judge.that(own.len() == 1, format!("its own scope got {}", own.len()));
    judge.concurrency("k:a", 1);
    judge.settled()
}

/// Where requeue is harmless, jobs that nobody asks for go back after `hold.idle`.
pub async fn given_back_when_idle(ctx: Ctx) -> Judge {
    let lax = if ctx.even() {
        Lax::redis()
    } else {
        Lax::postgres()
    };
    let w = ctx.world().lax(lax).limits(ONE).start().await;
    w.enqueue_all(5, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 5).await;
    let held = w.rows().await.0;
    w.pass(9_000).await;
    let before = w.active("mail").await;
    w.pass(2_500).await;
    let after = w.active("mail").await;
    one.ack(&got[0].job).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(
        before == 5,
        format!("{before} were active before (held rows: {held})"),
    );
    judge.that(after == 1, format!("{after} are active after hold.idle"));
    let attempts = judge.records.deliveries.iter().all(|d| d.attempt == 0);
    judge.that(attempts, "giving back cost an attempt");
    judge.all_well()
}

/// Where requeue costs something, a held job is kept, by heartbeats, however long nobody asks.
pub async fn never_given_back_where_it_burns(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::spec(), Lax::lite(), Lax::amqp()]);
    let limits =
        "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nrate = { limit = 1, period = '2m' }";
    let w = ctx.world().lax(lax).limits(limits).start().await;
    w.enqueue_all(3, |_| job()).await;
    let one = w.hands("one");
    let got = one.get("mail", 3).await;
    one.ack(&got[0].job).await;
    w.pass(110_000).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(400).await;
    let events = judge.events.iter();
    let back = events
        .filter(|(_, e)| matches!(e.kind, EventKind::Requeued | EventKind::Expired))
        .count();
    judge.that(back == 0, format!("{back} claims were given back or lost"));
    judge.rate("k:a", 1, Duration::from_secs(120));
    judge.all_well()
}

/// No claim has lapsed, and each job ran once.
fn all_kept(mut judge: Judge) -> Judge {
    judge.none_lapsed();
    judge.all_well()
}

/// A backend that takes seconds for each question costs no held job its claim: neither where each scope has a
/// heartbeat of its own, nor where each job must be looked up.
pub async fn kept_by_a_slow_backend(ctx: Ctx) -> Judge {
    const ALL: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
    let (lax, slow, scopes) = match ctx.even() {
        true => (Lax::redis(), Op::Heartbeat, &ALL[..]),
        false => (Lax::amqp(), Op::Job, &ALL[..1]),
    };
    let hold = "[hold]\nidle = '1h'";
    let world = ctx.world().lax(lax).limits(ONE).settings(hold);
    let w = world.start().await;
    w.enqueue_all(1, |_| job()).await;
    let one = w.hands("one").visibility(600_000);
    let got = one.get("mail", 1).await;
    for scope in scopes {
        w.enqueue_all(12 / scopes.len(), |_| job()).await;
        let of_scope = w.hands_with("of scope", "authorization", scope);
        drop(of_scope.fetch(&["mail"], 12 / scopes.len()).await);
    }
    let claimed = w.active("mail").await;
    w.backend
        .often(slow, 1.0, Fault::Slow(Duration::from_secs(4)));
    for _ in 0..9 {
        w.pass(10_000 + ctx.seed * 170).await;
        one.beat(&[got[0].job.clone()], false).await;
    }
    let kept = w.active("mail").await;
    w.backend.mend();
    one.ack(&got[0].job).await;
    for scope in scopes {
        let worker = Worker::js(2).queues(&["mail"]).runs(50..200);
        w.worker(worker.header("authorization", scope));
    }
    let mut judge = w.judge_when_done(60).await;
    judge.that(claimed == 13, format!("{claimed} were claimed"));
    judge.that(kept == 13, format!("{kept} are claimed after a while"));
    all_kept(judge)
}

/// Heartbeats that hang cost no held job its claim: neither those that they are for, nor those that wait behind them.
pub async fn kept_though_heartbeats_hang(ctx: Ctx) -> Judge {
    const SCOPES: [&str; 24] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r",
        "s", "t", "u", "v", "w", "x",
    ];
    let world = ctx.limits(ONE);
    let w = world.settings("[hold]\nidle = '1h'").start().await;
    w.enqueue_all(1, |_| job()).await;
    let one = w.hands("one").visibility(600_000);
    let got = one.get("mail", 1).await;
    for scope in SCOPES {
        w.enqueue_all(1, |_| job()).await;
        let of_scope = w.hands_with("of scope", "authorization", scope);
        drop(of_scope.fetch(&["mail"], 1).await);
    }
    let claimed = w.active("mail").await;
    let hangs = Fault::Slow(Duration::from_secs(600));
    let hung = ctx.pick(&[1, 16]);
    w.backend.next(Op::Heartbeat, hung, hangs);
    w.pass(60_000 + ctx.seed * 170).await;
    let kept = w.active("mail").await;
    one.ack(&got[0].job).await;
    for scope in SCOPES {
        let worker = Worker::js(1).queues(&["mail"]).runs(50..200);
        w.worker(worker.header("authorization", scope));
    }
    let mut judge = w.judge_when_done(60).await;
    judge.that(claimed == 25, format!("{claimed} were claimed"));
    judge.that(kept == 25, format!("{kept} are claimed after a while"));
    all_kept(judge)
}

/// Where each held job has a claim id of its own, and so a heartbeat of its own, all are kept, however many they are.
pub async fn kept_each_under_its_own_claim(ctx: Ctx) -> Judge {
    let settings = "[hold]\nidle = '1h'\nmax = 1024\n[fetch]\nclaim_budget = '5s'";
    let world = ctx.world().lax(Lax::amqp()).limits(ONE);
    let w = world.settings(settings).start().await;
    w.enqueue_all(1, |_| job()).await;
    let one = w.hands("one").visibility(600_000);
    let got = one.get("mail", 1).await;
    w.enqueue_all(150, |_| job()).await;
    let two = w.hands("two").visibility(4_000);
    drop(two.fetch(&["mail"], 150).await);
    let claimed = w.active("mail").await;
    for _ in 0..20 {
        w.pass(1_000 + ctx.seed).await;
        one.beat(&[got[0].job.clone()], false).await;
    }
    let kept = w.active("mail").await;
    one.ack(&got[0].job).await;
    w.worker(Worker::js(5).queues(&["mail"]).runs(5..20));
    let mut judge = w.judge_when_done(120).await;
    judge.that(claimed > 120, format!("{claimed} were claimed"));
    judge.that(
        kept == claimed,
        format!("{kept} of {claimed} are claimed after a while"),
    );
    all_kept(judge)
}

/// A backend of which nobody knows what a heartbeat keeps, and where any of a worker keeps all its jobs: what is held
/// does not keep the job of a worker that died.
pub async fn keeps_no_dead_workers_job(ctx: Ctx) -> Judge {
    let name = ctx.pick(&["acme-jobs", "acme-redis", "ojs-backend-amqp"]);
    let lax = Lax {
        name,
        ..Lax::amqp()
    };
    let w = ctx.world().lax(lax).limits(ONE).start().await;
    let ids = w.enqueue_all(4, |_| job()).await;
    let dead = w.hands("dead").get("mail", 4).await;
    let died = Instant::now();
    w.worker(Worker::js(2).queues(&["mail"]).runs(50..100));
    let mut judge = w.judge_when_done(60).await;
    judge.that(dead.len() == 1, format!("{} went out", dead.len()));
    let again = (judge.records.deliveries.iter()).filter(|d| d.job == ids[0] && d.at > died);
    let again: Vec<Duration> = again.map(|d| d.at - died).collect();
    judge.that(
        again.len() == 1 && again[0] < Duration::from_secs(40),
        format!("{name}: it ran again after {again:?}"),
    );
    judge.concurrency("k:a", 1);
    judge.settled()
}

/// An empty FETCH waits only when waiting may help, and never longer than `fetch.max_wait`.
pub async fn waits_only_with_reason(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nmatch = { type = 'email.*' }\nkey = 'k:{meta.tenant}'\nconcurrency = 1\n\
        [[policy]]\nname = 'rare'\nmatch = { type = 'rare.*' }\nkey = 'rare:{meta.tenant}'\nrate = { limit = 1, period = '1h' }\n\
        [[policy]]\nname = 'both'\nmatch = { type = 'both.*' }\nkey = 'both:{meta.tenant}'\nconcurrency = 1\nrate = { limit = 1, period = '1h' }\n\
        [[queue]]\nname = 'one'\nconcurrency = 1\n\
        [[queue]]\nname = 'two'\nconcurrency = 1\nrate = { limit = 1, period = '1h' }";
    let world = ctx.limits(limits).settings(
        "[fetch]
max_wait = '500ms'",
    );
    let w = world.start().await;
    let one = w.hands("one");
    let mut waits = Vec::new();
    let mut look = async |queues: &'static [&'static str], name: &'static str, reason: bool| {
        let began = Instant::now();
        let got = one.fetch(queues, 3).await.unwrap_or_default();
        waits.push((name, reason, began.elapsed(), got.len()));
        got
    };
    look(&["mail"], "nothing there", false).await;
    look(&["one"], "a gated queue with nothing in it", false).await;
    look(&["free", "mail", "one"], "three empty queues", false).await;
    w.enqueue_all(2, |_| {
        Job::new("rare.one")
            .queue("mail")
            .meta("tenant", json!("r"))
    })
    .await;
    look(&["mail"], "a start", false).await;
    look(&["mail"], "its time is an hour away", false).await;
    w.enqueue_all(2, |_| {
        Job::new("both.a").queue("mail").meta("tenant", json!("b"))
    })
    .await;
    look(&["mail"], "a start", false).await;
    look(&["mail"], "a slot would not be enough", false).await;
    w.enqueue_all(2, |_| Job::new("a.b").queue("two")).await;
    look(&["two"], "a start", false).await;
    look(&["two"], "a slot would not open the queue", false).await;
    w.enqueue_all(2, |_| job()).await;
    look(&["mail"], "a start", false).await;
    look(&["mail"], "only a slot is missing", true).await;
    w.enqueue(Job::new("a.b").queue("one")).await;
    look(&["one"], "a start", false).await;
    look(&["one"], "the queue is full and may have more", true).await;
    let mut judge = w.judge().await;
    for (name, reason, waited, got) in waits {
        let expected = if reason { 500 } else { 0 };
        judge.that(
            waited.as_millis() == expected,
            format!("{name}: waited {waited:?}, {expected} ms were right"),
        );
        judge.that(
            (got > 0) == (name == "a start"),
            format!("{name}: got {got}"),
        );
    }
    judge
}

/// Cancelling a job that is out with a worker frees its slot at once, and once.
pub async fn cancel_frees_the_slot(ctx: Ctx) -> Judge {
    let w = ctx.limits(ONE).start().await;
    let ids = w.enqueue_all(3, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    w.pass(10).await;
    one.cancel(&ids[0]).await;
    let second = two.get("mail", 2).await;
    let late = one.ack(&ids[0]).await;
    w.pass(10).await;
    let third = two.get("mail", 2).await;
    two.ack_all(second.iter().chain(&third)).await;
    w.worker(Worker::js(5).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(
        first.len() == 1 && second.len() == 1,
        format!("{} and {} started", first.len(), second.len()),
    );
    judge.that(
        third.is_empty(),
        "a late ACK of a cancelled job freed a second slot",
    );
    judge.that(late == 409, format!("that ACK got {late}"));
    judge.concurrency("k:a", 1);
    judge.settled()
}

/// Held far longer than the short visibility of their claims: heartbeats keep them, each runs once.
pub async fn held_past_a_short_visibility(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&backends());
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nthrottle = { interval = '4s' }";
    let w = ctx.world().lax(lax).limits(limits).start().await;
    w.enqueue_all(8, |_| job()).await;
    w.workers(
        2,
        Worker::js(5)
            .queues(&["mail"])
            .runs(100..900)
            .visibility(2_500),
    );
    let mut judge = w.judge_when_done(120).await;
    judge.spacing("k:a", Duration::from_secs(4), 1);
    judge.each_ran_once();
    judge.all_settles_ok(false);
    judge.settled()
}

/// The backend's claims last 4 s, and nobody says so: what is held is kept before it is known.
pub async fn held_past_an_unsaid_visibility(ctx: Ctx) -> Judge {
    let lax = Lax {
        visibility: Duration::from_secs(4),
        ..Lax::spec()
    };
    let w = ctx.world().lax(lax).limits(ONE).start().await;
    let ids = w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one");
    let first = one.get("mail", 2).await;
    // Nobody asks for jobs meanwhile.
    for _ in 0..12 {
        w.pass(1_000).await;
        one.beat(&[ids[0].clone()], true).await;
    }
    one.ack(&ids[0]).await;
    let second = one.get("mail", 2).await;
    one.ack(&ids[1]).await;
    let mut judge = w.judge().await;
    judge.that(first.len() == 1, format!("{} went first", first.len()));
    judge.that(second.len() == 1, format!("{} went then", second.len()));
    judge.none_lapsed();
    judge.settled()
}

/// However long a job was held and however short its visibility is, its worker has nearly all of it.
pub async fn goes_out_with_its_whole_visibility(ctx: Ctx) -> Judge {
    let visibility = ctx.pick(&[600, 1_000, 1_500, 2_000, 3_000, 9_000]);
    let w = ctx.limits(ONE).start().await;
    let ids = w.enqueue_all(2, |_| job()).await;
    let one = w.hands("one").visibility(visibility);
    let first = one.get("mail", 2).await;
    let held_until = Instant::now() + Duration::from_millis(1_100 + ctx.seed * 170);
    while Instant::now() < held_until {
        w.pass(visibility / 4).await;
        one.beat(&[ids[0].clone()], false).await;
    }
    one.ack(&ids[0]).await;
    let second = one.get("mail", 2).await;
    let given = Instant::now();
    let is_out = async || w.backend.job(&ids[1]).await["state"] == "active";
    while is_out().await && given.elapsed() < Duration::from_secs(20) {
        w.pass(5).await;
    }
    let had = given.elapsed();
    let mut judge = w.judge().await;
    judge.that(first.len() == 1, format!("{} went first", first.len()));
    judge.that(second.len() == 1, format!("{} went then", second.len()));
    // A twentieth, and the way of the answer.
    let least = Duration::from_millis(visibility * 19 / 20 - 10);
    judge.that(
        had >= least,
        format!("its worker had {had:?} of {visibility} ms"),
    );
    judge
}

/// Large jobs: the hold keeps within its bytes, and all run.
pub async fn within_its_bytes(ctx: Ctx) -> Judge {
    let w = ctx
        .limits(TWO)
        .settings("[hold]\nmax = 1000\nmax_bytes = '1MiB'")
        .start()
        .await;
    let large = "x".repeat(64 << 10);
    for _ in 0..40 {
        w.enqueue(job().meta("large", json!(large))).await;
    }
    w.workers(2, Worker::js(3).queues(&["mail"]));
    let mut most = 0;
    while !w.until_done(1).await && w.begun.elapsed() < Duration::from_secs(60) {
        most = most.max(w.rows().await.0);
    }
    let mut judge = w.judge().await;
    // The bound is looked at before a claim, which may bring several jobs.
    judge.that(most <= 16 + 6, format!("{most} jobs of 64 KiB were held"));
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// Held jobs of a tenant that only the FETCH names go to a sibling, and count under that tenant there.
pub async fn tenant_goes_with_the_job(ctx: Ctx) -> Judge {
    const TENANT: &str = "[[policy]]\nname = 'p'\nkey = 'crm:{tenant}'\nconcurrency = 1\n";
    let world = ctx.world().server("trust_tenant_header = true");
    let world = world.limits(TENANT).settings("[hold]\nidle = '1s'");
    let (w, other) = world.pair().await;
    w.enqueue_all(4, |_| job()).await;
    let one = w.hands_with("one", "x-ojs-tenant", "acme");
    let out = one.get("mail", 4).await;
    let out: Vec<String> = out.into_iter().map(|delivery| delivery.job).collect();
    let two = w.hands_of_with("two", &other, "x-ojs-tenant", "acme");
    let mut more = 0;
    for _ in 0..10 {
        one.beat(&out, ctx.even()).await;
        w.pass(1_500 + ctx.seed * 100).await;
        more += two.get("mail", 1).await.len();
    }
    for id in &out {
        one.ack(id).await;
    }
    let next = two.get("mail", 1).await.len();
    let mut judge = w.judge().await;
    judge.that(out.len() == 1, format!("{} are out", out.len()));
    judge.that(more == 0, format!("{more} started beside one of one"));
    judge.that(next == 1, format!("{next} started when that was free"));
    judge
}
