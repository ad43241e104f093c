//! How much of a limit is used, and how soon.

use std::cell::RefCell;

use ojs_throttle::config::Settings;
use ojs_throttle::duration;

use super::prelude::*;
use super::shares::join_all;

fn job() -> Job {
    crate::scenarios::job().label("k")
}

const KEYED: &str = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\n";
const GATED: &str = "[[policy]]\nname = 'k'\nmatch = { queue = 'mail' }\n";

/// A FETCH that starts one limited job asks a shared store at most twice in series. Work and the backend take no time in
/// simulation, so it lasts as long as the store's answers are late.
pub async fn two_questions_in_a_row(ctx: Ctx) -> Judge {
    const LATE: Duration = Duration::from_millis(60);
    let (key, questions) = if ctx.even() { (KEYED, 1) } else { (GATED, 2) };
    let limits = format!("{key}concurrency = 5");
    let world = ctx.world().shared().limits(&limits);
    let w = world.start().await;
    w.enqueue_all(3, |_| job()).await;
    let hands = w.hands("one");
    // What is learnt once is learnt by the first.
    let mut out = hands.get("mail", 1).await;
    w.pass(5_000).await;
    w.first_way(|way| way.late(LATE));
    let begun = Instant::now();
    out.extend(hands.get("mail", 1).await);
    let took = begun.elapsed();
    w.first_way(Way::mend);
    hands.ack_all(&out).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(30).await;
    judge.that(out.len() == 2, format!("{} came", out.len()));
    judge.soon(
        took < questions * LATE + LATE / 2,
        format!("it took {took:?}"),
    );
    judge.all_well()
}

/// Many jobs end through another sidecar than the one that gave them out, as behind a balancer, and the store of that one is
/// slow: it hears of a slot that is free as soon as if nothing else had ended.
pub async fn many_end_elsewhere(ctx: Ctx) -> Judge {
    const LATE: Duration = Duration::from_millis(300);
    let limits = format!("{KEYED}concurrency = 1");
    let (w, b) = ctx.world().limits(&limits).pair().await;
    let of = |tenant: usize| job().meta("tenant", json!(tenant.to_string()));
    w.enqueue_all(30, of).await;
    let (one, elsewhere) = (w.hands("one"), w.hands_of("one", &b));
    let mut out = Vec::new();
    for _ in 0..3 {
        out.extend(one.get("mail", 10).await);
    }
    // Its slot is free after all others.
    w.enqueue(of(29)).await;
    w.pass(5_000).await;
    w.first_way(|way| way.late(LATE));
    let end_all = async {
        w.pass(2_000).await;
        elsewhere.ack_all(&out).await;
        Instant::now()
    };
    let next = async {
        let patience = Instant::now() + Duration::from_secs(30);
        loop {
            let got = one.get("mail", 1).await;
            if !got.is_empty() || Instant::now() > patience {
                return (got, Instant::now());
            }
        }
    };
    let ((last, came), ended) = tokio::join!(next, end_all);
    let took = came.saturating_duration_since(ended);
    w.first_way(Way::mend);
    one.ack_all(&last).await;
    let mut judge = w.judge_when_done(60).await;
    judge.that(out.len() == 30, format!("{} came", out.len()));
    judge.soon_took("the last one", took, 800);
    judge.all_well()
}

/// Workers that ask while a claim is under way share the next one, which asks for what all of them miss: the backend is
/// asked twice for 40 of them, or three times where they want 400 jobs. What one of them has in part is claimed once more,
/// and nothing else, also while the store takes its time to say what may start.
pub async fn many_ask_at_once(ctx: Ctx) -> Judge {
    const WORKERS: usize = 40;
    let limits = format!("{KEYED}concurrency = 1000");
    let w = ctx.world().shared().limits(&limits).start().await;
    let (count, most) = ctx.pick(&[(1, 2), (3, 2), (10, 3)]);
    w.enqueue_all(WORKERS * count + 50, |_| job()).await;
    let hands = (0..WORKERS).map(|nth| w.hands(&format!("w{nth}")));
    let hands: Vec<Hands> = hands.collect();
    // What is learnt once is learnt by the first.
    hands[0].ack_all(&hands[0].get("mail", 1).await).await;
    w.pass(5_000).await;
    w.backend
        .often(Op::Fetch, 1.0, Fault::Slow(Duration::from_millis(20)));
    w.first_way(|way| way.late(Duration::from_millis(60)));
    let asked = || {
        let seen = w.backend.seen().into_iter();
        let claims = seen.filter(|sent| sent.path.ends_with("/fetch")).count();
        (claims, w.backend.claimed().len())
    };
    let before = asked();
    let got = RefCell::new(Vec::new());
    join_all(hands.iter().map(async |hands| {
        let jobs = hands.get("mail", count).await;
        got.borrow_mut().push((hands, jobs));
    }))
    .await;
    let after = asked();
    w.first_way(Way::mend);
    let got = got.into_inner();
    for (hands, jobs) in &got {
        hands.ack_all(jobs).await;
    }
    let got: Vec<usize> = got.iter().map(|(_, jobs)| jobs.len()).collect();
    w.worker(Worker::js(10).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(got == vec![count; WORKERS], format!("they got {got:?}"));
    let (claims, jobs) = (after.0 - before.0, after.1 - before.1);
    judge.that(claims == most, format!("{claims} claims were made"));
    let is_enough = (WORKERS * count..(WORKERS + 1) * count).contains(&jobs);
    judge.that(is_enough, format!("{jobs} jobs were claimed"));
    judge.all_well()
}

/// Many workers that poll every second or two use a throttle of 10/s all the time.
pub async fn throttle_is_used(ctx: Ctx) -> Judge {
    let limits = format!(
        "{}throttle = {{ limit = 10, period = '1s' }}",
        if ctx.even() { KEYED } else { GATED }
    );
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(320, |_| job()).await;
    w.workers(2, Worker::js(10).queues(&["mail"]).runs(50..200));
    w.workers(20, Worker::python(1).queues(&["mail"]).runs(50..200));
    let mut judge = w.judge_when_done(60).await;
    judge.spacing("k", Duration::from_millis(100), 1);
    judge.utilisation("k", 10.0, 3, 28, 0.97);
    judge.all_well()
}

/// One slot, jobs of 1 s, and four workers as stock SDKs with the default settings: nearly always one of them waits when
/// it is free.
pub async fn one_slot_is_used(ctx: Ctx) -> Judge {
    let key = pick(ctx.seed / 4, &[KEYED, GATED]);
    let sdks = [
        Worker::js(10),
        Worker::js(1),
        Worker::python(10),
        Worker::python(1),
    ];
    let default = Settings::parse("server.upstream = 'http://a'", "t").unwrap();
    let wait = default.fetch.max_wait.as_millis();
    let wait = format!("[fetch]\nmax_wait = '{wait}ms'");
    let world = ctx.limits(&format!("{key}concurrency = 1")).settings(&wait);
    let w = world.start().await;
    w.enqueue_all(60, |_| job()).await;
    let worker = ctx.pick(&sdks).queues(&["mail"]);
    w.workers(4, worker.runs(1_000..1_001));
    // Each begins within a second.
    w.pass(51_000).await;
    let mut judge = w.judge().await;
    let starts = judge.records.deliveries.len();
    judge.that(starts >= 45, format!("{starts} of 50 started"));
    judge.concurrency("k", 1);
    judge
}

/// A throttle of a few starts a second is used by workers that poll every second.
pub async fn slow_throttle_is_used(ctx: Ctx) -> Judge {
    let limit = 2 + (ctx.seed / 2 % 3) as u32;
    let key = if ctx.even() { KEYED } else { GATED };
    let limits = format!("{key}throttle = {{ limit = {limit}, period = '1s' }}");
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(14 * limit as usize, |_| job()).await;
    w.workers(5, Worker::python(1).queues(&["mail"]).runs(10..50));
    let mut judge = w.judge_when_done(60).await;
    judge.spacing("k", Duration::from_secs(1) / limit, 1);
    judge.utilisation("k", f64::from(limit), 2, 12, 0.9);
    judge.all_well()
}

/// Two workers with 50 slots each use 500/s, second for second.
pub async fn fast_throttle_is_used(ctx: Ctx) -> Judge {
    let limits = format!(
        "{}throttle = {{ limit = 500, period = '1s' }}",
        if ctx.even() { KEYED } else { GATED }
    );
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(3_000, |_| job()).await;
    w.workers(2, Worker::js(50).queues(&["mail"]).runs(20..60));
    let mut judge = w.judge_when_done(60).await;
    judge.spacing("k", Duration::from_millis(2), 1);
    for second in 1..5 {
        judge.utilisation("k", 500.0, second, second + 1, 0.97);
    }
    judge.utilisation("k", 500.0, 1, 5, 0.97);
    judge.all_well()
}

/// A worker that asks for more than may start is given what started, however long the backend takes to say that it
/// has no more, or to give what nothing limits: a limit that counts starts is used all the same.
pub async fn timed_while_more_is_asked(ctx: Ctx) -> Judge {
    let key = ctx.pick(&["key = 'k:{meta.tenant}'", ""]);
    let word = pick(ctx.seed / 2, &["rate", "throttle"]);
    let limits = format!(
        "[[policy]]\nname = 'k'\nmatch = {{ queue = 'mail' }}\n{key}\n{word} = {{ limit = 5, period = '1s' }}"
    );
    let w = ctx.limits(&limits).start().await;
    let far = Duration::from_millis(7 + ctx.seed);
    w.backend.often(Op::Fetch, 1.0, Fault::LateReply(far));
    w.enqueue_all(60, |_| job()).await;
    let is_full = ctx.seed.is_multiple_of(3);
    if is_full {
        w.enqueue_all(300, |_| Job::new("a.b").queue("free")).await;
    }
    w.workers(2, Worker::js(10).queues(&["mail", "free"]).runs(200..400));
    w.until_done(60).await;
    let undone = w.metric("ojs_throttle_handouts_undone_total").await;
    let mut judge = w.judge().await;
    match word {
        "rate" => judge.rate("k", 5, Duration::from_secs(1)),
        _ => judge.spacing("k", Duration::from_millis(200), 1),
    }
    // Workers that are full of free jobs ask more seldom.
    let (to, used) = if is_full { (4, 0.3) } else { (9, 0.9) };
    judge.utilisation("k", 5.0, 1, to, used);
    judge.equal("were taken back, as if the host was slow", undone, 0.0);
    judge.all_well()
}

/// A backend that is away costs a limit of starts nothing, as long as it gives a job out within the time of one start: a
/// queue of which no more is claimed than may start is asked that much earlier.
pub async fn far_backend(ctx: Ctx) -> Judge {
    let limit = ctx.pick(&[20, 50, 500]);
    let limits = format!("{GATED}throttle = {{ limit = {limit}, period = '1s' }}");
    let w = ctx.limits(&limits).start().await;
    let far = match limit {
        20 => 5 + ctx.seed * 12 % 40,
        _ => pick(ctx.seed / 3, &[0, 5, 20]),
    };
    let slow = Fault::Slow(Duration::from_millis(far));
    w.backend.often(Op::Fetch, 1.0, slow);
    let seconds = (200 / limit).max(2) + 2;
    w.enqueue_all((limit * seconds) as usize, |_| job()).await;
    let slots = (limit / 2).min(100) as usize;
    w.workers(2, Worker::js(slots).queues(&["mail"]).runs(20..60));
    let mut judge = w.judge_when_done(60).await;
    judge.spacing("k", Duration::from_secs(1) / limit, 1);
    judge.utilisation("k", f64::from(limit), 1, u64::from(seconds) - 1, 0.97);
    judge.all_well()
}

/// A backend that was slow once, or always gives a job out later than the next may start, costs no more than that: what
/// has started does not wait for what may start next.
pub async fn slow_backend(ctx: Ctx) -> Judge {
    let limits = format!("{GATED}throttle = {{ limit = 20, period = '1s' }}");
    let w = ctx.limits(&limits).start().await;
    let once = ctx.even();
    let (first, far, used) = match once {
        true => (400, 3, 0.97),
        false => (60, 60, 0.75),
    };
    let slow = |millis| Fault::Slow(Duration::from_millis(millis));
    w.backend.next(Op::Fetch, 1, slow(first));
    w.backend.often(Op::Fetch, 1.0, slow(far));
    w.enqueue_all(230, |_| job()).await;
    w.workers(2, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.until_done(60).await;
    let undone = w.metric("ojs_throttle_handouts_undone_total").await;
    let mut judge = w.judge().await;
    judge.spacing("k", Duration::from_millis(50), 1);
    judge.utilisation("k", 20.0, 1, 10, used);
    judge.that(undone == 0.0, format!("{undone} were taken back"));
    judge.all_well()
}

/// One worker that takes one job at a time uses a throttle that allows three starts in the time that the backend takes
/// to give one out: claims are made beside what is held.
pub async fn one_at_a_time_from_afar(ctx: Ctx) -> Judge {
    const LIMIT: u32 = 50;
    let limits = format!("{GATED}throttle = {{ limit = {LIMIT}, period = '1s' }}");
    let w = ctx.limits(&limits).start().await;
    let far = Fault::Slow(Duration::from_millis(60));
    w.backend.often(Op::Fetch, 1.0, far);
    w.enqueue_all(LIMIT as usize * 6, |_| job()).await;
    let hands = w.hands("one");
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let out = hands.get("mail", 1).await;
        hands.ack_all(&out).await;
    }
    w.worker(Worker::js(10).queues(&["mail"]));
    let mut judge = w.judge_when_done(30).await;
    judge.spacing("k", Duration::from_secs(1) / LIMIT, 1);
    judge.utilisation("k", f64::from(LIMIT), 1, 5, 0.9);
    judge.all_well()
}

/// Jobs of 10 ms fill one slot under workers that poll every second: one of them waits whenever it is freed.
pub async fn short_jobs_fill_a_slot(ctx: Ctx) -> Judge {
    let key = if ctx.even() { KEYED } else { GATED };
    let w = ctx.limits(&format!("{key}concurrency = 1")).start().await;
    w.enqueue_all(400, |_| job()).await;
    w.workers(5, Worker::python(1).queues(&["mail"]).runs(10..11));
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k", 1);
    judge.utilisation("k", 100.0, 1, 3, 0.9);
    judge.all_well()
}

/// A tenant whose key is free starts within 2 s, although jobs of 300 others that may not start stand before it.
pub async fn free_tenant_behind_shut_ones(ctx: Ctx) -> Judge {
    const OTHERS: usize = 300;
    let limits = format!("{KEYED}rate = {{ limit = 1, period = '10s' }}");
    let w = ctx.limits(&limits).start().await;
    let of = |nth: usize| {
        let tenant = format!("t{nth}");
        let job = Job::new("a.b").queue("mail");
        job.meta("tenant", json!(tenant)).label(&tenant)
    };
    w.enqueue_all(2 * OTHERS, |nth| of(nth % OTHERS)).await;
    w.worker(Worker::js(100).queues(&["mail"]).runs(1..20));
    w.pass(6_000).await;
    let free = w.enqueue(of(OTHERS)).await;
    let mut judge = w.judge_when_done(60).await;
    let records = &judge.records;
    let came = records.produced.iter().find(|job| job.id == free);
    let came = came.expect("it was enqueued").answered;
    let started = records.deliveries.iter().find(|of| of.job == free);
    let took = started.map(|of| of.at.saturating_duration_since(came));
    judge.soon_took(
        "the free tenant waited",
        took.unwrap_or(Duration::MAX),
        2_000,
    );
    for nth in 0..=OTHERS {
        judge.rate(&format!("t{nth}"), 1, Duration::from_secs(10));
    }
    judge.all_well()
}

/// A slot that is freed while a worker waits is filled within 20 ms.
pub async fn freed_slot_is_filled(ctx: Ctx) -> Judge {
    let limits = format!("{}concurrency = 1", if ctx.even() { KEYED } else { GATED });
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    let asking = {
        let two = two.clone();
        tokio::spawn(async move { (two.get("mail", 1).await, Instant::now()) })
    };
    w.pass(50 + ctx.seed * 20).await;
    one.ack(&first[0].job).await;
    let freed = Instant::now();
    let (second, at) = asking.await.expect("no panic");
    two.ack_all(&second).await;
    let mut judge = w.judge().await;
    judge.concurrency("k", 1);
    judge.that(second.len() == 1, "the waiting worker got nothing");
    let took = at.saturating_duration_since(freed);
    judge.soon_took("the slot was free for", took, 20);
    judge.settled()
}

/// A worker that waits for a slot of one queue does not miss a job that comes to another, which
/// nothing limits: the backend is asked again while it waits.
pub async fn free_comes_while_waiting(ctx: Ctx) -> Judge {
    let limits = format!("{}concurrency = 1", if ctx.even() { KEYED } else { GATED });
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    let asked = Instant::now();
    let (second, ()) = tokio::join!(two.fetch(&["mail", "free"], 1), async {
        w.pass(30).await;
        w.enqueue(Job::new("a.b").queue("free")).await;
    });
    let took = asked.elapsed();
    let second = second.unwrap_or_default();
    one.ack_all(second.iter().chain(&first)).await;
    let mut judge = w.judge().await;
    judge.that(second.len() == 1, "the free job did not come");
    judge.soon_took("the free job came after", took, 300);
    judge
}

/// Free jobs beside a limited queue start as if it was not there.
pub async fn free_beside_limited(ctx: Ctx) -> Judge {
    let limited = [
        "match = { type = 'email.*' }\nkey = 'k:{meta.tenant}'",
        "match = { queue = 'mail' }\nkey = 'k:a'",
    ];
    let limits = format!(
        "[[policy]]\nname = 'p'\n{}\nconcurrency = 1",
        limited[(ctx.seed % 2) as usize]
    );
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(30, |_| job()).await;
    w.workers(2, Worker::js(4).queues(&["mail", "free"]).runs(900..1_100));
    w.workers(2, Worker::js(4).queues(&["free", "mail"]).runs(900..1_100));
    for _ in 0..30 {
        w.enqueue(Job::new("a.b").queue("free")).await;
        w.pass(400).await;
    }
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k", 1);
    let produced = judge.records.produced.clone();
    for produced in produced.iter().filter(|p| p.queue == "free") {
        let mut deliveries = judge.records.deliveries.iter();
        let start = deliveries.find(|d| d.job == produced.id).map(|d| d.at);
        let waited = start.map(|at| at.saturating_duration_since(produced.answered));
        // Four workers that poll every second.
        judge.that(
            waited.is_some_and(|w| w < Duration::from_millis(1_100)),
            format!("a free job waited {waited:?}"),
        );
    }
    judge.all_well()
}

/// Many keys at once: each has its own limit, and no key waits for another.
pub async fn many_keys(ctx: Ctx) -> Judge {
    let w = ctx
        .limits(&format!(
            "{KEYED}concurrency = 1\nthrottle = {{ limit = 4, period = '1s' }}"
        ))
        .start()
        .await;
    let names = ["t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"];
    w.enqueue_all(160, |nth| {
        let tenant = names[nth / 20];
        Job::new("a.b")
            .queue("mail")
            .meta("tenant", json!(tenant))
            .label(&format!("k:{tenant}"))
    })
    .await;
    w.workers(4, Worker::js(10).queues(&["mail"]).runs(50..150));
    let mut judge = w.judge_when_done(15).await;
    for tenant in names {
        judge.spacing(&format!("k:{tenant}"), Duration::from_millis(250), 1);
        judge.concurrency(&format!("k:{tenant}"), 1);
    }
    judge.all_well()
}

/// When what waits will have started is said within a fifth of the time, for twenty loads.
pub async fn the_end_is_foretold(ctx: Ctx) -> Judge {
    // By day a few of all kinds.
    let (limits, jobs, runs) = pick(
        ctx.seed * 7,
        &[
            ("rate = { limit = 20, period = '2s' }", 250, 10..50),
            ("rate = { limit = 20, period = '10s' }", 130, 10..50),
            ("rate = { limit = 100, period = '30s' }", 450, 10..50),
            (
                "rate = { limit = 10, period = '4s', window = 'fixed' }",
                80,
                10..50,
            ),
            ("rate = { limit = 300, period = '1m' }", 1_500, 10..50),
            (
                "rate = [{ limit = 5, period = '1s' }, { limit = 40, period = '20s' }]",
                200,
                10..50,
            ),
            ("throttle = { limit = 10, period = '1s' }", 250, 10..50),
            ("throttle = { limit = 10, period = '1s' }", 1_000, 10..50),
            ("throttle = { limit = 1, period = '2s' }", 25, 10..50),
            (
                "throttle = { limit = 20, period = '10s', burst = 5 }",
                90,
                10..50,
            ),
            ("concurrency = 1", 90, 200..300),
            ("concurrency = 4", 200, 400..600),
            ("concurrency = 4", 400, 100..900),
            ("concurrency = 10", 300, 900..1_100),
            ("concurrency = 10", 1_000, 50..400),
            ("concurrency = 2", 120, 20..2_000),
            (
                "concurrency = 4\nrate = { limit = 60, period = '1m' }",
                200,
                100..300,
            ),
            (
                "concurrency = 4\nthrottle = { limit = 4, period = '1s' }",
                150,
                900..1_100,
            ),
            (
                "concurrency = 10\nrate = { limit = 500, period = '1m' }",
                700,
                100..300,
            ),
            (
                "rate = { limit = 50, period = '5s' }\nthrottle = { limit = 100, period = '1s' }",
                300,
                10..50,
            ),
        ],
    );
    let w = ctx.limits(&format!("{GATED}{limits}")).start().await;
    w.enqueue_all(jobs, |_| job()).await;
    w.workers(4, Worker::js(10).queues(&["mail"]).runs(runs));
    // Some have run, so that it is known how long they do.
    w.pass(12_500).await;
    // It is said while the limit refuses, which it does most of the time.
    let mut told = Value::Null;
    let mut asked = Instant::now();
    for _ in 0..20 {
        asked = Instant::now();
        told = w.get("/ojs/v1/rate-limits/k").await;
        if !told["waiting_done"].is_null() {
            break;
        }
        w.pass(137).await;
    }
    let micros = |time: &Value| duration::moment(time.as_str().unwrap_or_default());
    let done = micros(&told["waiting_done"]["at"]).zip(micros(&told["at"]));
    let done = done.map(|(done, at)| Duration::from_micros(done - at));
    let mut judge = w.judge_when_done(600).await;
    let deliveries = judge.records.deliveries.iter();
    let really = deliveries.map(|one| one.at).max().unwrap_or(asked) - asked;
    let is_near = done.is_some_and(|done| done.abs_diff(really) <= really / 5);
    judge.that(is_near, format!("{done:?} was said, and it was {really:?}"));
    judge.all_well()
}
