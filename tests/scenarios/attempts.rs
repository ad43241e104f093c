//! Attempts by which claims are told apart: some backends show the first as 0, and some replies show none.

use super::prelude::*;

/// The backend shows no attempts where it hands jobs out, or in its list of running jobs. A nack that it did not get
/// is sent again: that it shows the job in attempt 1 does not say that the job was claimed anew.
pub async fn nack_where_none_was_shown(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::spec()).limits(ONE).start().await;
    let one = w.hands("one");
    w.enqueue(job()).await;
    w.backend.often(Op::Fetch, 1.0, Fault::Unnumbered);
    w.backend.often(Op::List, 1.0, Fault::Unnumbered);
    let id = if ctx.even() {
        let got = one.get("mail", 1).await;
        got.first().map(|delivery| delivery.job.clone())
    } else {
        let got = w.backend.fetch("one", 1).await;
        // It is adopted.
        w.restart().await;
        w.hands("two").get("mail", 1).await;
        got.first().cloned()
    };
    let id = id.unwrap_or_default();
    let out = w.rows().await.1;
    w.backend.next(Op::Nack, 1, Fault::Refused);
    let nacked = one.nack(&id).await;
    let shown = w.backend.job(&id).await;
    let mut judge = w.judge().await;
    judge.that(out == 1, format!("{out} were out"));
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    judge.equal("it was nacked, and is", &shown["state"], "retryable");
    judge
}

/// The backend shows no attempts where it hands jobs out. A sibling that looks at a held job that is offered, and is
/// shown one, takes the job over.
pub async fn offered_where_none_was_shown(ctx: Ctx) -> Judge {
    let world = ctx.world().lax(Lax::spec()).shared();
    let world = world.limits(ONE).settings("[hold]\nidle = '1s'");
    let (w, other) = world.pair().await;
    w.backend.often(Op::Fetch, 1.0, Fault::Unnumbered);
    w.enqueue_all(2, |_| job()).await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let out = one.get("mail", 2).await;
    w.pass(3_000 + ctx.seed * 317).await;
    one.ack_all(&out).await;
    let gets_one = async || {
        let got = two.get("mail", 1).await;
        two.ack_all(&got).await;
        !got.is_empty()
    };
    let taken_over = w.until(15, gets_one).await;
    let mut judge = w.judge().await;
    let lapsed = judge.lapsed();
    judge.that(out.len() == 1, format!("{} were out", out.len()));
    judge.that(taken_over, "the sibling does not get it");
    judge.that(lapsed == 0, format!("{lapsed} claims lapsed"));
    judge.all_well()
}

/// The backend counts when a job fails, so a first attempt is 0. The job fails past us, and runs elsewhere in its next
/// attempt: its slot here ends when its time is over.
pub async fn fails_elsewhere_in_attempt_0(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres()]);
    let w = ctx.world().lax(lax).limits(ONE).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0S" });
    let id = w.enqueue(job().option("retry", retry)).await;
    let one = w.hands("one").visibility(2_000);
    let out = one.get("mail", 1).await;
    let error = json!({ "message": "it failed", "retryable": true });
    let claimer = w.backend.job(&id).await["worker_id"].clone();
    let nack = json!({ "job_id": id, "worker_id": claimer, "error": error });
    let path = "/ojs/v1/workers/nack";
    w.backend.direct("POST", path, &nack).await;
    let asks =
        json!({ "queues": ["mail"], "worker_id": "elsewhere", "visibility_timeout_ms": 60_000 });
    let again = w
        .until(1, async || {
            let path = "/ojs/v1/workers/fetch";
            w.backend.direct("POST", path, &asks).await;
            w.backend.job(&id).await["state"] == "active"
        })
        .await;
    let shown = w.backend.job(&id).await["attempt"].clone();
    w.enqueue(job()).await;
    let two = w.hands("two");
    let gets_one = async || {
        let got = two.fetch(&["mail"], 1).await;
        got.is_ok_and(|got| !got.is_empty())
    };
    let freed = w.until(10, gets_one).await;
    let mut judge = w.judge().await;
    let first = out.first().map(|delivery| delivery.attempt);
    judge.that(first == Some(0), format!("the first attempt is {first:?}"));
    judge.that(again && shown == 1, format!("elsewhere it is {shown}"));
    judge.that(freed, "its slot does not end");
    judge
}
