//! Calls of which several are under way at once, or that end otherwise than those who sent them have heard.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Ctx, Fault, Job, Judge, Op};

const TWO: &str = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 2";

fn job() -> Job {
    Job::new("email.send")
        .queue("mail")
        .meta("tenant", json!("a"))
        .label("k:a")
}

/// The backend carries a nack out and goes down before it answers. When it is back another worker is there
/// before the nack is tried again: that one has the job, and has it alone.
pub async fn nack_carried_out_before_an_outage(ctx: Ctx) -> Judge {
    let w = ctx.world().limits(TWO).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0S" });
    w.enqueue(job().option("retry", retry)).await;
    let (one, two, three) = (w.hands("one"), w.hands("two"), w.hands("three"));
    let got = one.fetch(&["mail"], 1).await.unwrap_or_default();
    let id = got.first().map(|delivery| delivery.job.clone());
    let id = id.unwrap_or_default();
    let late = Fault::LateReply(Duration::from_millis(50));
    w.backend.next(Op::Nack, 1, late);
    let meanwhile = async {
        w.pass(20).await;
        w.backend.down();
        w.pass(2_000 + ctx.seed * 61).await;
        w.backend.up().await;
        let mut again = Vec::new();
        while again.is_empty() {
            again = two.fetch(&["mail"], 1).await.unwrap_or_default();
        }
        w.pass(2_000).await;
        let third = three.fetch(&["mail"], 1).await.unwrap_or_default();
        (again, third)
    };
    let (nacked, (again, third)) = tokio::join!(one.nack(&id), meanwhile);
    for delivery in again.iter().chain(&third) {
        two.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    judge.that(again[0].job == id, "the second worker got another job");
    judge.that(
        third.is_empty(),
        "a third worker got what the second one runs",
    );
    judge.settled();
    judge
}

/// The answer to a requeue is lost, and before we can look the job is out again in the same attempt: the backend
/// shows it as it was, but we gave it to another worker.
pub async fn requeue_reply_lost_and_claimed_again(ctx: Ctx) -> Judge {
    let w = ctx.world().limits(TWO).start().await;
    w.enqueue(job()).await;
    let (one, two, three) = (w.hands("one"), w.hands("two"), w.hands("three"));
    let got = one.fetch(&["mail"], 1).await.unwrap_or_default();
    let id = got.first().map(|delivery| delivery.job.clone());
    let body = json!({ "job_id": id, "worker_id": "one", "requeue": true });
    w.backend.next(Op::Nack, 1, Fault::ReplyLost);
    let slow = Duration::from_millis(300 + ctx.seed * 150);
    w.backend.next(Op::Job, 1, Fault::Slow(slow));
    let nacked = async { one.client.post("/ojs/v1/workers/nack", &body).await };
    let (nacked, again) = tokio::join!(nacked, async {
        w.pass(200).await;
        two.fetch(&["mail"], 1).await.unwrap_or_default()
    });
    let third = three.fetch(&["mail"], 1).await.unwrap_or_default();
    for delivery in again.iter().chain(&third) {
        two.ack(&delivery.job).await;
    }
    let mut judge = w.judge().await;
    let nacked = nacked.map_or(0, |reply| reply.status);
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    judge.that(again.len() == 1, format!("{} came again", again.len()));
    judge.that(
        third.is_empty(),
        "a third worker got what the second one runs",
    );
    judge.settled();
    judge
}
