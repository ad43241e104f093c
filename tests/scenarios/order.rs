//! Which job goes first, and who is never held up.

use super::prelude::*;

/// Higher priorities first, also among held jobs; a limited high one lets lower ones of other keys go.
pub async fn priorities(ctx: Ctx) -> Judge {
    let limits =
        "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nthrottle = { limit = 5, period = '1s' }";
    let w = ctx.limits(limits).start().await;
    let one = |priority: i64| {
        Job::new("a.b")
            .queue("mail")
            .meta("tenant", json!("a"))
            .priority(priority)
            .label("k:a")
    };
    w.enqueue_all(8, |nth| one([0, 5, -5, 9, 5, 0, 9, 1][nth]))
        .await;
    let hands = w.hands("one");
    let mut order = Vec::new();
    let mut ids = Vec::new();
    while ids.len() < 8 {
        let got = hands.get("mail", 2).await;
        order.extend(got.iter().map(|d| d.priority));
        ids.extend(got.iter().map(|d| d.job.clone()));
        if order.len() == 4 {
            // A late one of the highest overtakes all that are held.
            w.enqueue(one(50)).await;
        }
        if w.begun.elapsed() > Duration::from_secs(30) {
            break;
        }
    }
    for id in &ids {
        hands.ack(id).await;
    }
    w.worker(Worker::js(1).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.spacing("k:a", Duration::from_millis(200), 1);
    judge.that(
        order.starts_with(&[9, 9, 5, 5, 50, 1, 0, 0]),
        format!("they came as {order:?}"),
    );
    judge.all_well()
}

/// Jobs of one priority are held, and one of a higher priority is enqueued: it is the next to go out.
pub async fn higher_than_what_is_held(ctx: Ctx) -> Judge {
    let w = ctx.limits(ONE).start().await;
    let one = |priority: i64| {
        let job = Job::new("a.b").queue("mail").meta("tenant", json!("a"));
        job.priority(priority).label("k:a")
    };
    w.enqueue_all(3, |_| one(0)).await;
    let hands = w.hands("one");
    let mut out = hands.get("mail", 3).await;
    w.pass(100 + ctx.seed * 150).await;
    w.enqueue(one(10)).await;
    let mut order = Vec::new();
    while let Some(delivery) = out.pop() {
        order.push(delivery.priority);
        hands.ack(&delivery.job).await;
        out = hands.get("mail", 1).await;
    }
    let mut judge = w.judge().await;
    judge.that(order == [0, 10, 0, 0], format!("they came as {order:?}"));
    judge.all_well()
}

/// Jobs of which the backend has no word when they are to go wait on in their order.
pub async fn kept_without_a_word(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 4";
    let w = ctx.limits(limits).start().await;
    let one = |_| Job::new("a.b").queue("mail").meta("tenant", json!("a"));
    let ids = w.enqueue_all(8, |nth| one(nth).label("k:a")).await;
    let hands = w.hands("one").visibility(30_000);
    let first = hands.get("mail", 8).await;
    // From now on each is proven before it goes out.
    w.pass(1_500 + ctx.seed * 70).await;
    for op in [Op::Heartbeat, Op::Job] {
        w.backend.often(op, 1.0, Fault::Status(503));
    }
    hands.ack_all(&first).await;
    let none = hands.get("mail", 4).await;
    w.backend.mend();
    w.pass(2_000).await;
    let second = hands.get("mail", 4).await;
    hands.ack_all(&second).await;
    let mut judge = w.judge().await;
    judge.that(none.is_empty(), "one that nobody vouched for went out");
    let both = first.iter().chain(&second);
    let order: Vec<&String> = both.map(|delivery| &delivery.job).collect();
    judge.that(order.into_iter().eq(&ids), "they did not keep their order");
    judge.concurrency("k:a", 4);
    judge.settled()
}

/// A limited job of high priority does not keep free ones of low priority back; a free one of high
/// priority goes before them.
pub async fn limited_high_lets_low_go(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nmatch = { type = 'slow.*' }\nkey = 'k:{meta.tenant}'\nconcurrency = 1";
    let w = ctx.limits(limits).start().await;
    w.enqueue_all(10, |_| {
        Job::new("slow.one")
            .queue("mail")
            .meta("tenant", json!("a"))
            .priority(9)
            .label("k:a")
    })
    .await;
    w.enqueue_all(5, |nth| {
        Job::new("free.one").queue("mail").priority(nth as i64)
    })
    .await;
    let hands = w.hands("one");
    let first = hands.get("mail", 1).await;
    let mut free = Vec::new();
    for _ in 0..5 {
        free.extend(hands.get("mail", 1).await);
    }
    hands.ack_all(first.iter().chain(&free)).await;
    w.worker(Worker::js(3).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(
        first.iter().all(|d| d.priority == 9),
        "the first is not the highest",
    );
    let order: Vec<i64> = free.iter().map(|d| d.priority).collect();
    judge.equal("the free ones came as", order, [4, 3, 2, 1, 0]);
    judge.concurrency("k:a", 1);
    judge.all_well()
}

/// Queues are served left to right: a held job of a later queue waits for an earlier queue's.
pub async fn queues_left_to_right(ctx: Ctx) -> Judge {
    let limits =
        "[[policy]]\nname = 'p'\nkey = 'k:{queue}'\nthrottle = { limit = 20, period = '1s' }";
    let w = ctx.limits(limits).start().await;
    let hands = w.hands("one");
    w.enqueue_all(6, |_| Job::new("a.b").queue("low").label("k:low"))
        .await;
    let mut order: Vec<String> = Vec::new();
    let mut ids = Vec::new();
    let mut fetch = async |queues: &[&str], count| {
        for delivery in hands.fetch(queues, count).await.unwrap_or_default() {
            order.push(delivery.queue.clone());
            ids.push(delivery.job);
        }
    };
    fetch(&["low"], 3).await;
    w.enqueue_all(2, |_| Job::new("a.b").queue("high").label("k:high"))
        .await;
    w.pass(60).await;
    fetch(&["high", "low"], 1).await;
    w.pass(60).await;
    fetch(&["high", "low"], 2).await;
    for id in &ids {
        hands.ack(id).await;
    }
    w.worker(Worker::js(3).queues(&["high", "low"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(
        order.starts_with(&["low".into(), "high".into(), "high".into()]),
        format!("they came as {order:?}"),
    );
    judge.spacing("k:low", Duration::from_millis(50), 1);
    judge.spacing("k:high", Duration::from_millis(50), 1);
    judge.all_well()
}

/// Two queues with different room in one FETCH: each gives what it may.
pub async fn queues_with_different_room(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'a'\nconcurrency = 2\n[[queue]]\nname = 'b'\nconcurrency = 3";
    let w = ctx.limits(limits).start().await;
    for queue in ["a", "b", "c"] {
        w.enqueue_all(5, |_| Job::new("a.b").queue(queue).label(queue))
            .await;
    }
    let hands = w.hands("one");
    let first = hands.fetch(&["a", "b", "c"], 9).await.unwrap_or_default();
    let count = |queue| first.iter().filter(|d| d.queue == queue).count();
    let counts = [count("a"), count("b"), count("c")];
    let active = [w.active("a").await, w.active("b").await];
    w.pass(10).await;
    hands.ack_all(&first).await;
    w.workers(2, Worker::js(9).queues(&["a", "b", "c"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(counts == [2, 3, 4], format!("the queues gave {counts:?}"));
    judge.that(active == [2, 3], format!("{active:?} were claimed"));
    judge.concurrency("a", 2);
    judge.concurrency("b", 3);
    judge.all_well()
}

/// 500 jobs of a shut key in front of free ones: those start within 100 ms, also for count 1.
pub async fn past_a_shut_key(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nmatch = { type = 'off.*' }\nkey = 'off:{meta.tenant}'\nconcurrency = 0";
    let world = ctx.limits(limits).settings("[hold]\nmax = 1024");
    let w = world.start().await;
    w.enqueue_all(500, |_| {
        Job::new("off.one")
            .queue("mail")
            .meta("tenant", json!("a"))
            .label("off:a")
    })
    .await;
    w.enqueue_all(10, |_| Job::new("free.one").queue("mail").label("free"))
        .await;
    let hands = w.hands("one");
    let count = if ctx.even() { 1 } else { 10 };
    let began = Instant::now();
    let first = hands.get("mail", count).await;
    let waited = began.elapsed();
    hands.ack_all(&first).await;
    let mut judge = w.judge().await;
    let off = judge.starts("off:a").len();
    if off > 0 {
        judge.breach(format!("{off} jobs of a shut key started"));
    }
    judge.that(
        first.len() == count,
        format!("{} of {count} free jobs started", first.len()),
    );
    // In simulation work takes no time, so this is what was waited for.
    judge.soon_took("they took", waited, 100);
    judge
}

/// Ten times as many limited jobs as may be held, and free ones behind them: the hold stays bounded, the
/// free ones wait until so many have started that the rest is held, and no longer, and all runs in the end.
pub async fn ten_times_the_hold(ctx: Ctx) -> Judge {
    const HELD: usize = 32;
    // A queue may hold three times what is free.
    const OF_ONE_QUEUE: u64 = 24;
    let limits = "[[policy]]\nname = 'p'\nmatch = { type = 'a.*' }\nkey = 'k:{meta.tenant}'\nconcurrency = 4";
    let settings = format!("[hold]\nmax = {HELD}");
    let w = ctx.limits(limits).settings(&settings).start().await;
    let limited = |_| Job::new("a.b").queue("mail").meta("tenant", json!("a"));
    w.enqueue_all(10 * HELD, |nth| limited(nth).label("k:a"))
        .await;
    w.enqueue_all(5, |_| Job::new("free.one").queue("mail").label("free"))
        .await;
    let hands = w.hands("one");
    let out = hands.get("mail", 10).await;
    // However often they are asked for and however long it takes, while none of the others starts.
    let mut early = 0;
    for _ in 0..20 {
        let got = hands.get("mail", 10).await;
        early += got.len();
        w.pass(500).await;
    }
    let claimed = w.active("mail").await;
    let mut most = 0.0_f64;
    hands.ack_all(&out).await;
    w.workers(3, Worker::js(10).queues(&["mail"]).runs(20..60));
    while !w.until_done(1).await && w.begun.elapsed() < Duration::from_secs(120) {
        most = most.max(w.metric("ojs_throttle_held_jobs").await);
    }
    let mut judge = w.judge().await;
    judge.that(early == 0, format!("{early} came past a full hold"));
    judge.equal(
        "were claimed, and 4 of them are out",
        claimed,
        4 + OF_ONE_QUEUE,
    );
    judge.that(
        0.0 < most && most <= OF_ONE_QUEUE as f64,
        format!("{most} jobs were held"),
    );
    let (free, limited) = (judge.starts("free"), judge.starts("k:a"));
    for at in &free {
        let before = limited.iter().filter(|start| *start < at).count();
        judge.that(
            (9 * HELD..10 * HELD).contains(&before),
            format!("a free job started after {before} limited ones"),
        );
    }
    judge.that(free.len() == 5, format!("{} free ones started", free.len()));
    judge.concurrency("k:a", 4);
    judge.conserving("k:a", 4, Duration::from_millis(20));
    judge.all_well()
}
