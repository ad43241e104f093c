//! Queues with subqueues: who goes next.

use std::collections::BTreeMap;

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;

/// How many starts each tenant had among the first so many.
fn first_starts(judge: &Judge, n: usize) -> BTreeMap<String, usize> {
    let mut all: Vec<_> = judge.records.deliveries.iter().collect();
    all.sort_by_key(|d| d.at);
    let mut counts = BTreeMap::new();
    for d in all.into_iter().take(n) {
        let tenant = d.shown["meta"]["tenant"].as_str().unwrap_or("base");
        *counts.entry(tenant.to_owned()).or_default() += 1;
    }
    counts
}

/// Three tenants with weights 3, 1, 1 and thousands of jobs each, one after the other, share a limit by their weights.
pub async fn by_weight_at_any_depth(ctx: Ctx) -> Judge {
    let limit = ctx.pick(&[
        "key = 'vendor'\nconcurrency = 5\n",
        "match = { queue = 'mail' }\nrate = { limit = 50, period = '1s' }\n",
        "key = 'vendor'\nthrottle = { limit = 40, period = '1s' }\n",
    ]);
    let fair = "fair = { by = '{meta.tenant}', weights = { a = 3, b = 1, c = 1 } }\n";
    let limits = format!("[[policy]]\nname = 'vendor'\n{limit}{fair}{SPLIT}");
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(9_000, |nth| of(["a", "b", "c"][nth / 3_000]))
        .await;
    // More than the limit lets them do.
    w.workers(3, Worker::js(50).queues(&["mail"]).runs(40..60));
    w.until(120, async || w.ledger.open().deliveries.len() >= 500)
        .await;
    let judge = w.judge().await;
    by_weight(judge, &[("a", 300), ("b", 100), ("c", 100)])
}

fn by_weight(mut judge: Judge, due: &[(&str, usize)]) -> Judge {
    let counts = first_starts(&judge, 500);
    println!("{counts:?}");
    for (tenant, due) in due {
        let got = counts.get(*tenant).copied().unwrap_or(0);
        judge.that(
            got.abs_diff(*due) * 20 <= *due,
            format!("{tenant} had {got} of {due} starts: {counts:?}"),
        );
    }
    judge
}

/// In the queue itself nine of ten jobs, and 200 tenants with open keys in subqueues, all of them more than the workers can
/// do: the queue itself gets at least 45 % of the starts, and so do the others while they have jobs.
pub async fn the_queue_itself(ctx: Ctx) -> Judge {
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    w.enqueue_all(2_000, |nth| match nth % 10 {
        0 => of(&format!("t{}", nth / 10)),
        _ => Job::new("free.one").queue("mail"),
    })
    .await;
    w.workers(2, Worker::js(10).queues(&["mail"]).runs(80..120));
    w.until(120, async || w.ledger.open().deliveries.len() >= 300)
        .await;
    let mut judge = w.judge().await;
    let counts = first_starts(&judge, 300);
    let base = counts.get("base").copied().unwrap_or(0);
    println!("{base} of 300");
    judge.that(
        base >= 135,
        format!("the queue itself had {base} of 300 starts"),
    );
    judge.that(
        base <= 200,
        format!("subqueues had {} of 300 starts", 300 - base),
    );
    judge
}

/// The highest priority goes first, wherever it waits.
pub async fn priorities_over_subqueues(ctx: Ctx) -> Judge {
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let one = |tenant: &str, priority: i64| match tenant {
        "base" => Job::new("free.one").queue("mail").priority(priority),
        tenant => of(tenant).priority(priority),
    };
    let all = [
        ("a", 0),
        ("b", 9),
        ("base", 7),
        ("c", 5),
        ("d", -5),
        ("base", 1),
    ];
    let at = ctx.seed as usize % all.len();
    w.enqueue_all(all.len(), |nth| {
        let (tenant, priority) = all[(at + nth) % all.len()];
        one(tenant, priority)
    })
    .await;
    let hands = w.hands("one");
    let mut order = Vec::new();
    let mut out = Vec::new();
    for _ in 0..20 {
        let got = hands.get("mail", 1).await;
        order.extend(got.iter().map(|d| d.priority));
        out.extend(got);
        if order.len() == 3 {
            // A late one overtakes all.
            w.enqueue(one("e", 8)).await;
        }
    }
    hands.ack_all(&out).await;
    let mut judge = w.judge().await;
    judge.equal("they came as", order, [9, 7, 5, 8, 1, 0, -5]);
    judge.all_well()
}
