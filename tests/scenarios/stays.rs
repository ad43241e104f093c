//! Queues with subqueues: what stays in the queue itself, and why.

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;
use crate::harness::http::Client;

/// Jobs that exclude each other by what their rule names: through the sidecar the answers are those of the backend itself.
pub async fn unique_jobs(ctx: Ctx) -> Judge {
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let keys = ctx.pick(&[
        None,
        Some(json!(["type", "args"])),
        Some(json!(["queue"])),
        Some(json!(["type", "meta"])),
    ]);
    let conflict = pick(ctx.seed / 4, &["reject", "ignore", "replace"]);
    let job = |nth: usize, queue: &str| {
        let (tenant, args) = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 2), ("a", 1)][nth];
        let mut unique = json!({ "on_conflict": conflict });
        if let Some(keys) = &keys {
            unique["keys"] = keys.clone();
        }
        let job = Job::new("crm.sync").queue(queue).top("args", json!([args]));
        job.meta("tenant", json!(tenant)).option("unique", unique)
    };
    let answers = async |to: Client, queue: &str| {
        let (mut seen, mut answers) = (Vec::new(), Vec::new());
        for nth in 0..6 {
            let reply = to
                .post("/ojs/v1/jobs", job(nth, queue).body())
                .await
                .expect("a reply");
            let said = reply.json();
            let id = &said["job"]["id"];
            let other = &said["error"]["details"]["existing_job_id"];
            let id = if id.is_string() { id } else { other }.clone();
            let which = seen.iter().position(|one| *one == id).unwrap_or_else(|| {
                seen.push(id);
                seen.len() - 1
            });
            answers.push((reply.status, which, said["job"]["queue"] == queue));
        }
        answers
    };
    let through = answers(w.client(), "mail").await;
    // Of another queue and type, so that they do not exclude those.
    let other = ctx.limits(&format!("{SLOT}{SPLIT}")).start().await;
    let direct = answers(other.past(), "mail").await;
    let mut judge = w.judge().await;
    judge.equal(&format!("{keys:?} {conflict}"), through, direct);
    judge
}

/// A producer sends a job with an id of its own again, since the first answer was lost or 500: it runs once.
pub async fn sent_again_with_its_id(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::spec()]);
    let w = ctx.limits(&format!("{SLOT}{SPLIT}")).lax(lax).start().await;
    let job = |nth: usize| {
        let id = format!("01948a3c-7b2e-7c3d-8e4f-{:012x}", nth);
        of(&format!("t{}", nth % 7)).top("id", json!(id))
    };
    for nth in 0..20 {
        let fault = match nth % 2 {
            0 => Fault::ReplyLost,
            _ => Fault::Says("{"),
        };
        let is_lost = nth % 2 == 0;
        w.backend.next(Op::Enqueue, u32::from(is_lost), fault);
        if !is_lost {
            w.backend.mend();
        }
        w.enqueue(job(nth)).await;
        w.backend.mend();
        w.enqueue(job(nth)).await;
    }
    w.workers(2, Worker::js(10).queues(&["mail"]).runs(20..60));
    w.pass(20_000).await;
    let mut judge = w.judge().await;
    judge.each_ran_once();
    judge.equal("jobs ran", judge.records.deliveries.len(), 20);
    judge
}

/// Jobs that are dropped or put off where there is no room wait in the queue itself, where that happens at once, however
/// long the backlog of others is.
pub async fn dropped_and_rescheduled(ctx: Ctx) -> Judge {
    let action = if ctx.even() { "drop" } else { "reschedule" };
    let limits = format!(
        "[[policy]]\nname = 'd'\nmatch = {{ type = 'feed.*' }}\nkey = 'feed:{{meta.tenant}}'\nconcurrency = 1\non_limit = '{action}'\n"
    );
    let limits = format!("{limits}{SLOT}{SPLIT}");
    let w = ctx.limits(&limits).start().await;
    w.enqueue_all(1_000, |_| of("a")).await;
    let feed = |_| {
        let job = Job::new("feed.read").queue("mail").label("feed");
        job.meta("tenant", json!("a"))
    };
    let ids = w.enqueue_all(5, feed).await;
    let hands = w.hands("one").visibility(600_000);
    for _ in 0..8 {
        hands.get("mail", 1).await;
        w.pass(500).await;
    }
    let mut states = Vec::new();
    for id in &ids {
        let state = w.job(id).await["state"].clone();
        states.push(state.as_str().unwrap_or_default().to_owned());
    }
    let mut judge = w.judge().await;
    let waits = states.iter().filter(|state| *state == "available").count();
    let runs = states.iter().filter(|state| *state == "active").count();
    judge.equal(&format!("wait for room: {states:?}"), (waits, runs), (0, 1));
    let places = judge.places();
    let moved = ids.iter().filter(|id| places[*id] != "mail").count();
    judge.equal("went to subqueues", moved, 0);
    judge
}

/// Where a key goes by the tenant that a header names, producers' headers say nothing of workers': the jobs stay.
pub async fn keys_of_headers(ctx: Ctx) -> Judge {
    let limits = "[[policy]]\nname = 'p'\nkey = 'crm:{tenant}'\nconcurrency = 1\n";
    let world = ctx.world().server("trust_tenant_header = true");
    let w = world.limits(&format!("{limits}{SPLIT}")).start().await;
    let to = w.client().with("x-ojs-tenant", "acme");
    for _ in 0..4 {
        let job = Job::new("crm.sync").queue("mail");
        to.post("/ojs/v1/jobs", job.body()).await.expect("a reply");
    }
    let hands = w.hands_with("one", "x-ojs-tenant", "acme");
    let first = hands.get("mail", 4).await;
    hands.ack_all(&first).await;
    let second = hands.get("mail", 4).await;
    hands.ack_all(&second).await;
    let mut judge = w.judge().await;
    judge.equal("started", (first.len(), second.len()), (1, 1));
    let places = judge.places();
    judge.that(
        places.values().all(|queue| queue == "mail"),
        format!("{places:?}"),
    );
    judge
}
