//! Bounds of queues, judged from the backend's ledger: how many jobs waited at each moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::prelude::*;

/// What producers were answered, by status.
type Answers = Vec<u16>;

/// So many producers, each of which enqueues one job after the other until told to stop.
struct Producers {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<Answers>,
}

impl Producers {
    fn start(w: &World, n: usize, pause: Duration) -> Producers {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for _ in 0..n {
            let (client, stop) = (w.client(), stop.clone());
            tasks.spawn(async move {
                let mut answers = Vec::new();
                let body = json!({"type": "t", "args": [1], "options": {"queue": "q"}});
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.post("/ojs/v1/jobs", &body).await;
                    let status = reply.map_or(0, |reply| reply.status);
                    answers.push(status);
                    // Simulated time passes only where somebody waits.
                    sleep(if status == 201 { pause / 8 } else { pause }).await;
                }
                answers
            });
        }
        Producers { stop, tasks }
    }

    async fn stop(self) -> Answers {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.concat()
    }
}

/// How many jobs waited: after each enqueue at most, and at the end.
fn depths(judge: &Judge) -> (i64, i64) {
    let (mut depth, mut most) = (0, 0);
    for (_, event) in &judge.events {
        match event.kind {
            EventKind::Stored => {
                depth += 1;
                most = most.max(depth);
            }
            EventKind::Claimed => depth -= 1,
            EventKind::Requeued | EventKind::Expired => depth += 1,
            _ => {}
        }
    }
    (most, depth)
}

fn check_over(judge: &mut Judge, bound: i64) {
    let (most, _) = depths(judge);
    if most > bound {
        judge.breach(format!("{most} jobs waited in a queue bounded at {bound}"));
    }
}

fn check(judge: &mut Judge, answers: &Answers, bound: i64) {
    check_over(judge, bound);
    let odd: Vec<&u16> = answers
        .iter()
        .filter(|s| ![201, 429].contains(*s))
        .collect();
    judge.that(odd.is_empty(), format!("producers were answered {odd:?}"));
    let events = judge.events.iter();
    let stored = events.filter(|(_, e)| e.kind == EventKind::Stored);
    let (stored, told) = (
        stored.count(),
        answers.iter().filter(|s| **s == 201).count(),
    );
    judge.that(
        stored == told,
        format!("{told} of {stored} stored jobs were answered 201"),
    );
}

/// 64 producers hammer a bound of 1,000 on a backend that takes 20 ms: never one more, never one less
/// while jobs are offered, and room that appears is used.
pub async fn hammered(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'q'\nmax_depth = 1000\n";
    let w = ctx.limits(limits).start().await;
    let fault = match ctx.even() {
        true => Fault::Slow(Duration::from_millis(20)),
        false => Fault::LateReply(Duration::from_millis(20)),
    };
    w.backend.often(Op::Enqueue, 1.0, fault);
    let producers = Producers::start(&w, 64, Duration::from_millis(15));
    let waiting = async || {
        let path = "/ojs/v1/queues/q/stats";
        let stats = w.backend.direct("GET", path, &json!(null)).await;
        stats["queue"]["available"].as_u64().unwrap_or(0)
    };
    // A busy machine is slow at first; what counts is that the queue is filled to the last place.
    let patience = if ctx.real { 30 } else { 1 };
    let full = async || w.until(patience, async || waiting().await == 1_000).await;
    let first = full().await;
    // Behind the sidecar's back, and through it.
    let fetch = json!({"queues": ["q"], "count": 40, "worker_id": "around"});
    let path = "/ojs/v1/workers/fetch";
    w.backend.direct("POST", path, &fetch).await;
    let second = full().await;
    let taken = w.client().post(path, &fetch).await;
    let third = full().await;
    w.pass(300).await;
    let answers = producers.stop().await;
    let mut judge = w.judge().await;
    check(&mut judge, &answers, 1_000);
    judge.that(taken.is_ok(), "a FETCH failed");
    for (when, full) in [("first", first), ("second", second), ("third", third)] {
        judge.soon(full, format!("the queue was not filled, {when}"));
    }
    judge
}

/// Workers take from a small queue all the time, and some of their jobs fail and come again.
pub async fn drained(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'q'\nmax_depth = 20\n";
    let w = ctx.limits(limits).start().await;
    w.backend
        .often(Op::Enqueue, 0.5, Fault::LateReply(Duration::from_millis(7)));
    let producers = Producers::start(&w, 12, Duration::from_millis(9));
    w.workers(2, Worker::js(5).queues(&["q"]).runs(5..60));
    w.pass(3_000).await;
    let answers = producers.stop().await;
    let mut judge = w.judge().await;
    check(&mut judge, &answers, 20);
    let stored = answers.iter().filter(|s| **s == 201).count();
    judge.soon(stored > 30, format!("only {stored} jobs went through"));
    judge
}

/// The same with limits, so that jobs are held here: they wait too.
pub async fn held(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'q'\nmax_depth = 20\n\
        [[policy]]\nname = 'p'\nkey = 'p:{type}'\nconcurrency = 3\n";
    let w = ctx.limits(limits).start().await;
    let producers = Producers::start(&w, 12, Duration::from_millis(9));
    w.workers(2, Worker::js(5).queues(&["q"]).runs(5..60));
    w.pass(2_500).await;
    let answers = producers.stop().await;
    let told = answers.iter().filter(|s| **s == 201).count();
    let rows = w.rows().await.0;
    let mut judge = w.judge().await;
    // To the backend held jobs do not wait, so what waits there is less than the bound by as many.
    check(&mut judge, &answers, 20);
    judge.that(told > 20, format!("only {told} jobs went through"));
    judge.that(rows <= 20, format!("{rows} jobs are held"));
    judge
}

/// Held jobs go back to the backend, or their claims lapse unseen: they wait there from then on, and producers
/// who push all the time get no place for them.
pub async fn given_back(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'q'\nmax_depth = 80\n\
        [[policy]]\nname = 'p'\nmatch = { type = 'a.*' }\nkey = 'p:{meta.n}'\nconcurrency = 1\n";
    let setup = ctx.limits(limits);
    let idle = if ctx.even() { "1s" } else { "1m" };
    let idle = format!("[hold]\nidle = '{idle}'\n");
    let w = setup.settings(&idle).start().await;
    let job = |n| Job::new("a.b").queue("q").meta("n", json!(n % 3));
    let ids = w.enqueue_all(60, job).await;
    // It looks far past those that may not start.
    let one = w.hands("one").visibility(6_000);
    let out = one.get("q", 20).await;
    let claimed = w.active("q").await;
    if !ctx.even() {
        for id in &ids {
            if out.iter().all(|delivery| delivery.job != *id) {
                w.backend.take_back(id).await;
            }
        }
        // The next heartbeat tells, and nobody has asked how deep the queue is.
        w.pass(2_400).await;
    }
    let producers = Producers::start(&w, 4, Duration::from_millis(40));
    w.pass(3_000).await;
    let left = w.active("q").await;
    let answers = producers.stop().await;
    one.ack_all(&out).await;
    let mut judge = w.judge().await;
    judge.that(claimed > 40, format!("only {claimed} jobs were claimed"));
    judge.that(left == 3, format!("{left} jobs are still claimed"));
    check_over(&mut judge, 80);
    let told = answers.iter().filter(|status| **status == 201).count();
    judge.that(told > 0, "no job went through");
    judge
}

/// Answers are lost, the backend goes away and comes back: what may be stored counts.
pub async fn lost_answers(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'q'\nmax_depth = 100\n";
    let w = ctx.limits(limits).start().await;
    w.backend.often(Op::Enqueue, 0.1, Fault::ReplyLost);
    w.backend.often(Op::Enqueue, 0.1, Fault::Refused);
    w.backend.often(
        Op::Enqueue,
        1.0,
        Fault::LateReply(Duration::from_millis(10)),
    );
    let producers = Producers::start(&w, 24, Duration::from_millis(12));
    w.pass(300).await;
    w.backend.down_for(Duration::from_millis(400)).await;
    w.pass(1_500).await;
    let _answers = producers.stop().await;
    w.enqueue(Job::new("t").queue("other")).await;
    let mut judge = w.judge().await;
    let (most, depth) = depths(&judge);
    if most > 101 {
        judge.breach(format!("{most} jobs waited in a queue bounded at 100"));
    }
    judge.that(depth >= 100, format!("{depth} jobs waited"));
    judge
}
