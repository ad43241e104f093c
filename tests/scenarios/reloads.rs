//! Reloads and limits over HTTP where siblings share the store: they change numbers, and stop nothing.

use super::prelude::*;

/// Both sidecars hold jobs of a busy key, and limits that say nothing of it change again and again: numbers of another
/// policy, or the first limits of other queues. Freed slots are filled all the same.
pub async fn numbers_in_a_fleet(ctx: Ctx) -> Judge {
    let limits = |nth: u64| {
        format!("{TWO}[[policy]]\nname = 'x'\nmatch = {{ queue = 'x' }}\nconcurrency = {nth}\n")
    };
    let world = ctx.limits(&limits(1)).settings("[fetch]\nmax_wait = '5s'");
    let (w, other) = world.pair().await;
    w.enqueue_all(160, |_| job()).await;
    let worker = || Worker::js(4).queues(&["mail"]).runs(150..250);
    for nth in 0..4 {
        match nth % 2 {
            0 => drop(w.worker(worker())),
            _ => drop(w.worker_of(&other, worker())),
        }
    }
    let client = w.client();
    for nth in 2..42 {
        w.pass(250 + ctx.seed * 7).await;
        if ctx.even() {
            w.reload(&limits(nth));
            w.reload_of(&other, &limits(nth));
        } else {
            let path = format!("/ojs/v1/admin/queues/q{nth}/rate-limit");
            let set = client.call("PUT", &path, r#"{"concurrency":3}"#.into());
            drop(timeout(Duration::from_millis(100), set).await);
        }
    }
    let mut judge = w.judge_when_done(60).await;
    judge.concurrency("k:a", 2);
    judge.conserving("k:a", 2, Duration::from_millis(300));
    judge.all_well()
}

/// A queue without limits gets one, at the sibling first: it holds jobs of that queue when the other one learns of the
/// limit too, and looks for what runs. What the sibling holds gets no slots, and what ran before has its own.
pub async fn newly_limited_beside_a_holder(ctx: Ctx) -> Judge {
    const THREE: &str = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 3\n";
    let world = ctx.world().settings("[fetch]\nmax_wait = '100ms'");
    let (w, other) = world.pair().await;
    w.enqueue_all(12, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let ran = one.get("mail", 1).await;
    w.reload_of(&other, THREE);
    w.pass(4_000).await;
    let first = two.get("mail", 5).await;
    w.reload(THREE);
    w.pass(ctx.seed * 110).await;
    two.ack_all(&first).await;
    let second = two.fetch(&["mail"], 5).await.unwrap_or_default();
    w.pass(4_000).await;
    let more = two.fetch(&["mail"], 5).await.unwrap_or_default();
    one.ack_all(&ran).await;
    two.ack_all(&second).await;
    w.worker(Worker::js(4).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    let started = [ran.len(), first.len(), second.len(), more.len()];
    judge.equal("started", started, [1, 2, 2, 0]);
    judge.concurrency("k:a", 3);
    judge.all_well()
}

/// FETCHes wait for a key, and other settings have another one for their queue: a slot of that one wakes who waits on.
pub async fn waits_over_a_change_of_key(ctx: Ctx) -> Judge {
    let limit = |key: &str| {
        format!(
            "[[policy]]\nname = 'p'\nmatch = {{ queue = 'mail' }}\nkey = '{key}'\nconcurrency = 1\n"
        )
    };
    let world = ctx.limits(&limit("old"));
    let w = world.settings("[fetch]\nmax_wait = '20s'").start().await;
    w.enqueue_all(3, |_| job()).await;
    let hands = ["one", "two", "three"].map(|name| w.hands(name));
    let first = hands[0].get("mail", 1).await;
    // Who comes back polls, and may wait for longer.
    tokio::join!(hands[1].get("mail", 1), hands[2].get("mail", 1));
    w.pass(200).await;
    let changes = async {
        w.pass(1_000 + ctx.seed * 100).await;
        w.reload(&limit("new"));
    };
    let works = async |of: &Hands| {
        let got = of.get("mail", 1).await;
        w.pass(1_000).await;
        of.ack_all(&got).await;
    };
    let begun = Instant::now();
    tokio::join!(works(&hands[1]), works(&hands[2]), changes);
    let took = begun.elapsed();
    hands[0].ack_all(&first).await;
    let mut judge = w.judge_when_done(5).await;
    judge.soon_took("both took", took, 4_000);
    judge.all_well()
}
