//! Calls of which several are under way at once, or that end otherwise than those who sent them have heard.

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;

/// A call of which the backend says nothing within the sidecar's patience, and which it does not carry out.
const HANGS: Fault = Fault::Slow(Duration::from_secs(10));
/// The sidecar's patience.
const PATIENCE: &str = "upstream_timeout = '2s'";

/// One job is out with the worker and another one is held: their ids.
async fn one_out_one_held(w: &World, one: &Hands) -> (String, String) {
    let ids = w.enqueue_all(2, |_| job()).await;
    let got = one.get("mail", 2).await;
    assert_eq!(got.len(), 1, "one may start");
    let (out, held): (Vec<_>, Vec<_>) = ids.into_iter().partition(|id| *id == got[0].job);
    (out[0].clone(), held[0].clone())
}

/// The backend carries a nack out and goes down before it answers. When it is back another worker is there
/// before the nack is tried again: that one has the job, and has it alone.
pub async fn nack_carried_out_before_an_outage(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0S" });
    w.enqueue(job().option("retry", retry)).await;
    let (one, two, three) = (w.hands("one"), w.hands("two"), w.hands("three"));
    let got = one.get("mail", 1).await;
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
            again = two.get("mail", 1).await;
        }
        w.pass(2_000).await;
        let third = three.get("mail", 1).await;
        (again, third)
    };
    let (nacked, (again, third)) = tokio::join!(one.nack(&id), meanwhile);
    two.ack_all(again.iter().chain(&third)).await;
    let mut judge = w.judge().await;
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    judge.that(again[0].job == id, "the second worker got another job");
    judge.that(
        third.is_empty(),
        "a third worker got what the second one runs",
    );
    judge.settled()
}

/// The answer to a requeue is lost, and before we can look the job is out again in the same attempt: the backend
/// shows it as it was, but we gave it to another worker.
pub async fn requeue_reply_lost_and_claimed_again(ctx: Ctx) -> Judge {
    let w = ctx.limits(TWO).start().await;
    w.enqueue(job()).await;
    let (one, two, three) = (w.hands("one"), w.hands("two"), w.hands("three"));
    let got = one.get("mail", 1).await;
    let id = got.first().map(|delivery| delivery.job.clone());
    let body = json!({ "job_id": id, "worker_id": "one", "requeue": true });
    w.backend.next(Op::Nack, 1, Fault::ReplyLost);
    let slow = Duration::from_millis(300 + ctx.seed * 150);
    w.backend.next(Op::Job, 1, Fault::Slow(slow));
    let nacked = async { one.client.post("/ojs/v1/workers/nack", &body).await };
    let (nacked, again) = tokio::join!(nacked, async {
        w.pass(200).await;
        two.get("mail", 1).await
    });
    let third = three.get("mail", 1).await;
    two.ack_all(again.iter().chain(&third)).await;
    let mut judge = w.judge().await;
    let nacked = nacked.map_or(0, |reply| reply.status);
    judge.that(nacked == 200, format!("the nack got {nacked}"));
    judge.that(again.len() == 1, format!("{} came again", again.len()));
    judge.that(
        third.is_empty(),
        "a third worker got what the second one runs",
    );
    judge.settled()
}

/// The backend is asked for more, of another queue or of the same one, and hangs: the jobs that a FETCH has by then
/// go out while their claims last, and what comes later is for the next one.
pub async fn more_that_hangs(ctx: Ctx) -> Judge {
    let w = (ctx.limits(TWO))
        .server("upstream_timeout = '30s'")
        .start()
        .await;
    let (queues, jobs, starts) = match ctx.even() {
        true => (&["mail", "post"][..], 1, 1),
        false => (&["mail"][..], 5, 2),
    };
    w.enqueue_all(jobs, |_| job()).await;
    w.enqueue(job().queue("post")).await;
    w.backend.next(Op::Fetch, 1, Fault::Slow(Duration::ZERO));
    let hangs = Duration::from_secs(12);
    w.backend.next(Op::Fetch, 1, Fault::Slow(hangs));
    let one = w.hands("one").visibility(10_000);
    let begun = Instant::now();
    let got = one.fetch(queues, 3).await.unwrap_or_default();
    let took = begun.elapsed();
    one.ack_all(&got).await;
    let two = w.hands("two");
    for _ in 0..30 {
        w.pass(500).await;
        two.ack_all(two.fetch(&["mail", "post"], 3).await.unwrap_or_default())
            .await;
    }
    let mut judge = w.judge().await;
    judge.that(got.len() == starts, format!("{} came", got.len()));
    judge.that(took < hangs / 4, format!("they came after {took:?}"));
    judge.concurrency("k:a", 2);
    judge.all_well()
}

/// Two calls that end one held job are under way, and the first of them fails: it goes out nowhere while the other
/// one lasts, and that one ends it.
pub async fn two_ends_of_a_held_job(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let (w, _other) = (world.limits(ONE).server(PATIENCE))
        .settings("[hold]\nidle = '10m'")
        .pair()
        .await;
    let one = w.hands("one");
    let (out, held) = one_out_one_held(&w, &one).await;
    w.backend.next(Op::Cancel, 1, HANGS);
    let first = one.cancel(&held);
    let slow = Fault::Slow(Duration::from_millis(1_900));
    let by_ack = ctx.seed % 3 == 2;
    let second = async {
        w.pass(1_000).await;
        if by_ack {
            w.backend.next(Op::Ack, 1, slow);
            return one.ack(&held).await;
        }
        w.backend.next(Op::Cancel, 1, slow);
        one.cancel(&held).await
    };
    let fetched = async {
        w.pass(500).await;
        one.ack(&out).await;
        let mut got = Vec::new();
        for _ in 0..20 {
            got.extend(one.get("mail", 1).await);
            w.pass(150).await;
        }
        got
    };
    let (first, second, got) = tokio::join!(first, second, fetched);
    let mut judge = w.judge().await;
    judge.that(first >= 500, format!("the first call got {first}"));
    judge.that(second == 200, format!("the second call got {second}"));
    judge.that(got.is_empty(), "it went out while its end was on its way");
    judge
}

/// A cancel that fails, of a held job that is being proven for a worker: when it has failed the job goes out.
pub async fn failed_end_of_a_job_in_hand(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let w = (world.limits(ONE).server(PATIENCE))
        .settings("[hold]\nidle = '10m'")
        .start()
        .await;
    let one = w.hands("one").visibility(30_000);
    let (out, held) = one_out_one_held(&w, &one).await;
    w.pass(1_500 + ctx.seed * 100).await;
    one.ack(&out).await;
    let slow = Duration::from_millis(1_500);
    w.backend.next(Op::Heartbeat, 1, Fault::Slow(slow));
    w.backend.next(Op::Cancel, 1, HANGS);
    let (early, cancelled) = tokio::join!(one.fetch(&["mail"], 1), async {
        w.pass(400).await;
        one.cancel(&held).await
    });
    let early = early.unwrap_or_default();
    let mut got = Vec::new();
    for _ in 0..20 {
        got.extend(one.get("mail", 1).await);
        w.pass(150).await;
    }
    one.ack_all(&got).await;
    let mut judge = w.judge().await;
    judge.that(cancelled >= 500, format!("the cancel got {cancelled}"));
    judge.that(early.is_empty(), "it went out while its end was on its way");
    judge.equal("came within 3 s of that", got.len(), 1);
    judge.settled()
}

/// A queue is paused while one of its held jobs is about to go out, because it is proven, or because the backend is
/// asked for another one to go with it: it stays, and goes out when the queue runs again.
pub async fn paused_before_it_went_out(ctx: Ctx) -> Judge {
    let w = ctx.limits(ONE).start().await;
    let (one, two) = (w.hands("one").visibility(30_000), w.hands("two"));
    let (out, held) = one_out_one_held(&w, &one).await;
    w.pass(1_500).await;
    one.ack(&out).await;
    let slow = Duration::from_millis(1_000 + ctx.seed * 200);
    // A held job does not wait for another one for longer than 200 ms.
    let (waits, after) = match ctx.even() {
        true => (Op::Heartbeat, 400),
        false => (Op::Fetch, 100),
    };
    w.backend.next(waits, 1, Fault::Slow(slow));
    let (got, paused) = tokio::join!(two.fetch(&["mail"], 2), async {
        w.pass(after).await;
        two.tell("mail", "pause").await
    });
    let got = got.unwrap_or_default();
    let resumed = two.tell("mail", "resume").await;
    let after = two.get("mail", 1).await;
    two.ack_all(got.iter().chain(&after)).await;
    let mut judge = w.judge().await;
    judge.that((paused, resumed) == (200, 200), "the backend refuses");
    judge.that(got.is_empty(), "it went out after its queue was paused");
    judge.that(
        after.len() == 1 && after[0].job == held,
        format!("{} came when the queue ran again", after.len()),
    );
    judge.settled()
}

/// Of two pauses the first one breaks after the second was carried out: the queue is paused, whether or not the
/// backend's numbers can be read.
pub async fn two_pauses(ctx: Ctx) -> Judge {
    let w = (ctx.limits(ONE).server(PATIENCE)).start().await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let (out, _) = one_out_one_held(&w, &one).await;
    if ctx.even() {
        w.backend.often(Op::Stats, 1.0, Fault::Status(401));
    }
    w.backend.next(Op::Pause, 1, HANGS);
    let (first, second) = tokio::join!(two.tell("mail", "pause"), async {
        w.pass(500).await;
        two.tell("mail", "pause").await
    });
    one.ack(&out).await;
    w.pass(ctx.seed * 3_000).await;
    let got = two.get("mail", 1).await;
    two.tell("mail", "resume").await;
    let after = two.get("mail", 1).await;
    two.ack_all(got.iter().chain(&after)).await;
    let mut judge = w.judge().await;
    judge.that(first >= 500, format!("the first pause got {first}"));
    judge.that(second == 200, format!("the second pause got {second}"));
    judge.that(got.is_empty(), "a job of a paused queue started");
    judge.that(after.len() == 1, format!("{} came in the end", after.len()));
    judge.settled()
}

/// Who pauses a queue hangs up, and the backend never does it. Its numbers are not for us to read: the held job
/// goes out all the same.
pub async fn pause_given_up(ctx: Ctx) -> Judge {
    let w = (ctx.limits(ONE).server(PATIENCE)).start().await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let (out, held) = one_out_one_held(&w, &one).await;
    w.backend.often(Op::Stats, 1.0, Fault::Status(401));
    w.backend.next(Op::Pause, 1, HANGS);
    let gone = Duration::from_millis(500);
    let hung = timeout(gone, two.tell("mail", "pause")).await;
    one.ack(&out).await;
    let meanwhile = two.get("mail", 1).await;
    w.pass(2_000 + ctx.seed * 3_000).await;
    let got = two.get("mail", 1).await;
    two.ack_all(meanwhile.iter().chain(&got)).await;
    let mut judge = w.judge().await;
    judge.that(hung.is_err(), "the pause was answered");
    judge.that(meanwhile.is_empty(), "it went out while the pause lasted");
    judge.that(
        got.len() == 1 && got[0].job == held,
        format!("{} came after it", got.len()),
    );
    judge.settled()
}

/// The answer to a pause is lost: the backend is asked whether the queue is paused, and as it says, so it is.
pub async fn pause_without_an_answer(ctx: Ctx) -> Judge {
    let w = (ctx.limits(ONE).server(PATIENCE)).start().await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let (out, _) = one_out_one_held(&w, &one).await;
    let done = ctx.even();
    let fault = if done { Fault::ReplyLost } else { HANGS };
    w.backend.next(Op::Pause, 1, fault);
    let status = two.tell("mail", "pause").await;
    one.ack(&out).await;
    w.pass(ctx.seed * 100).await;
    let got = two.get("mail", 1).await;
    two.tell("mail", "resume").await;
    let after = two.get("mail", 1).await;
    two.ack_all(got.iter().chain(&after)).await;
    w.worker(Worker::js(2).queues(&["mail"]));
    let mut judge = w.judge_when_done(60).await;
    judge.that(status >= 500, format!("the pause got {status}"));
    judge.that(
        (got.len(), after.len()) == if done { (0, 1) } else { (1, 0) },
        format!("{} came, then {}", got.len(), after.len()),
    );
    judge.settled()
}

/// A sidecar reads from the store that a queue is paused, and before it has the answer the queue is resumed, here or
/// elsewhere: the pause is over.
pub async fn pause_read_while_it_ends(ctx: Ctx) -> Judge {
    let world = ctx.world().shared().limits(ONE);
    // Its FETCH waits for what the slow store says.
    let settings = "[hold]\nidle = '1s'\n[fetch]\nclaim_budget = '10s'";
    let w = world.settings(settings).start().await;
    let other = w.sibling().await;
    let (mine, theirs) = (w.hands("mine"), w.hands_of("theirs", &other));
    w.pass(3_000).await;
    let (out, _) = one_out_one_held(&w, &theirs).await;
    let paused = theirs.tell("mail", "pause").await;
    // It is offered in the meantime.
    w.pass(12_000).await;
    theirs.ack(&out).await;
    w.first_way(|way| way.late(Duration::from_millis(1_500)));
    let resume = async {
        w.pass(ctx.seed * 300).await;
        ctx.pick(&[&theirs, &mine]).tell("mail", "resume").await
    };
    let (early, resumed) = tokio::join!(mine.fetch(&["mail"], 1), resume);
    w.first_way(Way::mend);
    let (begun, mut got) = (w.begun.elapsed(), early.unwrap_or_default());
    while got.is_empty() && w.begun.elapsed() < begun + Duration::from_secs(20) {
        w.pass(100).await;
        got = mine.get("mail", 1).await;
    }
    let waited = w.begun.elapsed() - begun;
    mine.ack_all(&got).await;
    let mut judge = w.judge().await;
    judge.that(paused == 200, format!("the pause got {paused}"));
    judge.equal("the resume got", resumed, 200);
    judge.that(
        waited < Duration::from_millis(500),
        format!("{} came {waited:?} after the resume", got.len()),
    );
    judge.settled()
}

/// While the backend takes its time over a pause, the queue is resumed, and then the pause is carried out after all: a
/// sibling that holds a job of the queue keeps it.
pub async fn pause_carried_out_after_a_resume(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let w = world.limits(ONE).start().await;
    let other = w.sibling().await;
    let (mine, theirs) = (w.hands("mine"), w.hands_of("theirs", &other));
    w.pass(3_000).await;
    let (out, held) = one_out_one_held(&w, &mine).await;
    let slow = Fault::Slow(Duration::from_secs(1));
    w.backend.next(Op::Pause, 1, slow);
    let (paused, resumed) = tokio::join!(theirs.tell("mail", "pause"), async {
        w.pass(500).await;
        ctx.pick(&[&mine, &theirs]).tell("mail", "resume").await
    });
    w.pass(500).await;
    mine.ack(&out).await;
    let early = mine.get("mail", 1).await;
    let resumed_again = theirs.tell("mail", "resume").await;
    w.pass(500).await;
    let after = mine.get("mail", 1).await;
    mine.ack_all(early.iter().chain(&after)).await;
    let mut judge = w.judge().await;
    judge.that(
        [paused, resumed, resumed_again] == [200; 3],
        format!("got {paused}, {resumed}, {resumed_again}"),
    );
    judge.that(early.is_empty(), "a job of a paused queue started");
    judge.that(
        after.len() == 1 && after[0].job == held,
        format!("{} came when the queue ran again", after.len()),
    );
    judge.settled()
}

/// Many queues are paused through one sidecar while another, which holds a job of each, is cut off from the store:
/// it learns of all of them once it is back.
pub async fn pauses_while_cut_off(ctx: Ctx) -> Judge {
    const OF_EACH: &str =
        "[[policy]]\nname = 'p'\nkey = 'k:{queue}:{meta.tenant}'\nconcurrency = 1";
    let world = ctx.world().shared();
    let w = world.limits(OF_EACH).start().await;
    let other = w.sibling().await;
    let (mine, theirs) = (w.hands("mine"), w.hands_of("theirs", &other));
    w.pass(3_000).await;
    let queues: Vec<String> = (0..40).map(|nth| format!("mail-{nth}")).collect();
    let mut out = Vec::new();
    for queue in &queues {
        let label = format!("k:{queue}:a");
        let of_queue = |_| {
            let job = Job::new("email.send").queue(queue);
            job.meta("tenant", json!("a")).label(&label)
        };
        w.enqueue_all(2, of_queue).await;
        out.extend(mine.get(queue, 2).await);
    }
    let each = async |verb: &str| {
        for queue in &queues {
            assert_eq!(theirs.tell(queue, verb).await, 200, "{queue}");
        }
    };
    let started = async || {
        let mut started = Vec::new();
        for queue in &queues {
            started.extend(mine.get(queue, 2).await);
        }
        started
    };
    w.first_way(|way| way.cut(0));
    each("pause").await;
    w.pass(2_000).await;
    w.first_way(Way::mend);
    w.pass(2_000).await;
    mine.ack_all(&out).await;
    let early = started().await;
    each("resume").await;
    w.pass(1_000).await;
    let after = started().await;
    mine.ack_all(early.iter().chain(&after)).await;
    let mut judge = w.judge().await;
    judge.that(out.len() == 40, format!("{} were out at first", out.len()));
    judge.that(
        early.is_empty(),
        format!("{} came of queues that were paused", early.len()),
    );
    judge.equal("came when the queues ran again", after.len(), 40);
    judge.settled()
}

/// A worker's claim lapses, and another worker gets the job: what the first one still says of it changes nothing, on
/// backends too that do not ask who says it.
pub async fn said_by_a_worker_that_lost_its_job(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::lite()]);
    let w = ctx.world().lax(lax).limits(TWO).start().await;
    w.enqueue(job()).await;
    let (one, two) = (w.hands("one").visibility(3_000), w.hands("two"));
    let first = one.get("mail", 1).await;
    let id = first.first().map(|delivery| delivery.job.clone());
    let id = id.unwrap_or_default();
    let again = w
        .until(20, async || {
            let got = two.fetch(&["mail"], 1).await;
            got.is_ok_and(|got| got.iter().any(|delivery| delivery.job == id))
        })
        .await;
    let post = async |verb: &str, body: Value| {
        let path = format!("/ojs/v1/workers/{verb}");
        let reply = one.client.post(&path, &body).await;
        reply.map_or((0, Value::Null), |reply| (reply.status, reply.json()))
    };
    let beat = json!({ "worker_id": "one", "active_jobs": [id] });
    let (beaten, heard) = post("heartbeat", beat).await;
    let late = match ctx.even() {
        true => post("ack", json!({ "job_id": id, "worker_id": "one" })).await,
        false => {
            let error = json!({ "code": "late", "message": "late", "retryable": true });
            post(
                "nack",
                json!({ "job_id": id, "worker_id": "one", "error": error }),
            )
            .await
        }
    };
    let nameless = json!({ "worker_id": "two", "active_jobs": [id] });
    let kept = post("heartbeat", nameless).await.1;
    let ended = two.ack(&id).await;
    let mut judge = w.judge().await;
    judge.that(again, "the second worker did not get it");
    let extended = heard["jobs_extended"].as_array().map_or(0, Vec::len);
    judge.that(
        (beaten, extended) == (200, 0),
        format!("the first worker's heartbeat got {beaten} {heard}"),
    );
    judge.that(
        late.0 == 409 && late.1["error"]["code"] == "conflict",
        format!("it was late and got {late:?}"),
    );
    judge.equal(
        "the second worker's heartbeat got",
        &kept["jobs_extended"],
        &json!([id]),
    );
    judge.that(ended == 200, format!("the second worker's ACK got {ended}"));
    judge
}

/// The answer to a nack does not reach its worker, which sends it again when another worker has the job: that one's run
/// goes on.
pub async fn nack_repeated_when_another_has_the_job(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::redis()).limits(TWO).start().await;
    let retry = json!({ "max_attempts": 9, "initial_interval": "PT0S" });
    w.enqueue(job().option("retry", retry)).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    let id = first.first().map(|delivery| delivery.job.clone());
    let id = id.unwrap_or_default();
    let error = json!({ "code": "handler_error", "message": "it failed", "retryable": true });
    let nack = json!({ "job_id": id, "error": error });
    w.backend
        .next(Op::Nack, 1, Fault::LateReply(Duration::from_millis(80)));
    let path = "/ojs/v1/workers/nack";
    let hung = timeout(Duration::from_millis(40), one.client.post(path, &nack)).await;
    assert!(hung.is_err());
    w.pass(1_000 + ctx.seed * 13).await;
    let again = two.get("mail", 1).await;
    let repeated = one.client.post(path, &nack).await;
    let ended = two.ack(&id).await;
    let mut judge = w.judge().await;
    let repeated = repeated.map_or(0, |reply| reply.status);
    judge.that(again.len() == 1, format!("{} came again", again.len()));
    judge.equal("the nack that came again got", repeated, 409);
    judge.that(ended == 200, format!("the second worker's ACK got {ended}"));
    judge.settled()
}

/// An ACK hangs until its claim has lapsed, and its worker hangs up. The next worker says the same in the same words, and
/// may be taken for the first one: once, and not each time.
pub async fn ack_in_the_words_of_an_earlier_run(ctx: Ctx) -> Judge {
    let w = ctx.world().lax(Lax::redis()).limits(TWO).start().await;
    let id = w.enqueue(job()).await;
    let path = "/ojs/v1/workers/ack";
    let ack = json!({ "job_id": id });
    let hands = ["one", "two", "three"].map(|name| w.hands(name).visibility(3_000));
    hands[0].get("mail", 1).await;
    let hangs = Fault::Slow(Duration::from_millis(3_700 + ctx.seed * 13));
    w.backend.next(Op::Ack, 1, hangs);
    let hung = timeout(Duration::from_millis(40), hands[0].client.post(path, &ack)).await;
    assert!(hung.is_err());
    let mut told = Vec::new();
    for one in &hands[1..] {
        w.pass(4_500).await;
        one.get("mail", 1).await;
        let reply = one.client.post(path, &ack).await;
        told.push(reply.map_or(0, |reply| reply.status));
    }
    let mut judge = w.judge().await;
    judge.equal("the last ACK got", told.last(), Some(&200));
    judge
}

/// The reply to a claim comes when that claim is over, and its job runs through a sibling. It is none of ours any more,
/// and the slot that it has stays.
pub async fn claim_that_is_over_when_its_reply_comes(ctx: Ctx) -> Judge {
    let lax = pick(ctx.seed, &[Lax::redis(), Lax::spec()]);
    let world = (ctx.world().lax(lax).shared()).limits(ONE);
    let (w, other) = world.server("upstream_timeout = '60s'").pair().await;
    let (one, two) = (w.hands("one"), w.hands_of("two", &other));
    let (one, two) = (one.visibility(5_000), two.visibility(5_000));
    w.enqueue(job()).await;
    // Longer than the claim lasts, and than a sibling needs to have the job.
    let late = Duration::from_millis(9_000 + ctx.seed * 400);
    w.backend.next(Op::Fetch, 1, Fault::LateReply(late));
    drop(one.get("mail", 1).await);
    let mut runs = Vec::new();
    while runs.is_empty() {
        w.pass(300).await;
        runs = two.get("mail", 1).await;
    }
    let id = runs[0].job.clone();
    w.enqueue(job()).await;
    let mut others = Vec::new();
    for _ in 0..12 {
        two.beat(std::slice::from_ref(&id), false).await;
        w.pass(1_000).await;
        others.extend(one.get("mail", 1).await);
    }
    two.ack(&id).await;
    one.ack_all(&others).await;
    let mut judge = w.judge().await;
    judge.that(others.is_empty(), "two jobs of one tenant were out at once");
    judge
}

/// The claims of a queue that nothing limits are over when their replies come, and other jobs wait behind: no claim is
/// larger than what the worker asks for.
pub async fn claims_of_a_free_queue_that_are_over(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'mail'\nconcurrency = 1";
    let (w, _other) = ctx.limits(limits).pair().await;
    w.enqueue_all(60, |_| Job::new("a.b").queue("free")).await;
    let late = Duration::from_millis(500 + ctx.seed * 100);
    w.backend.often(Op::Fetch, 1.0, Fault::LateReply(late));
    let one = w.hands("one").visibility(300);
    let got = one.fetch(&["mail", "free"], 1).await;
    w.backend.mend();
    let asked: Vec<u64> = (w.backend.seen().iter())
        .filter(|sent| sent.path.ends_with("/fetch"))
        .filter_map(|sent| serde_json::from_slice::<Value>(&sent.body).ok()?["count"].as_u64())
        .collect();
    let mut judge = w.judge().await;
    judge.that(got.is_ok_and(|got| got.is_empty()), "its FETCH did not end");
    judge.that(asked.iter().all(|n| *n <= 1), format!("claims: {asked:?}"));
    judge
}

/// A queue with subqueues is paused while the backend is asked whether it runs, and before the next head is claimed: that
/// one comes, and the pause stands.
pub async fn paused_before_a_head_is_claimed(ctx: Ctx) -> Judge {
    let lax = Lax {
        admin_queues: false,
        ..Lax::redis()
    };
    let world = ctx.limits(&format!("{SLOT}{SPLIT}")).lax(lax);
    let w = world.start().await;
    w.enqueue_all(6, |_| of("a")).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let first = one.get("mail", 1).await;
    let early = one.get("mail", 1).await;
    w.pass(1_200).await;
    one.ack_all(&first).await;
    let late = Fault::LateReply(Duration::from_millis(150));
    w.backend.often(Op::Stats, 1.0, late);
    let (second, paused) = tokio::join!(one.get("mail", 1), async {
        w.pass(20 + ctx.seed * 25).await;
        two.tell("mail", "pause").await
    });
    w.pass(300).await;
    w.backend.mend();
    one.ack_all(&second).await;
    let during = one.get("mail", 1).await;
    let resumed = two.tell("mail", "resume").await;
    let after = one.get("mail", 1).await;
    one.ack_all(during.iter().chain(&after)).await;
    let mut judge = w.judge().await;
    let started = [first, early, second, during, after].map(|got| got.len());
    judge.equal("the backend said", [paused, resumed], [200, 200]);
    judge.equal("started", started, [1, 0, 1, 0, 1]);
    judge
}

/// A worker hangs up before it has its job, and the job is cancelled while the store undoes its start: nobody gets it.
pub async fn cancelled_while_its_start_is_undone(ctx: Ctx) -> Judge {
    let w = ctx.world().shared().limits(ONE).start().await;
    let id = w.enqueue(job()).await;
    w.first_way(|way| way.late(Duration::from_millis(300)));
    let (one, two) = (w.hands("one"), w.hands("two"));
    let gone = Duration::from_millis(100);
    let (hung, cancelled, got) = tokio::join!(
        timeout(gone, one.fetch(&["mail"], 1)),
        async {
            w.pass(300 + ctx.seed * 50).await;
            two.cancel(&id).await
        },
        async {
            w.pass(650).await;
            two.get("mail", 1).await
        }
    );
    w.first_way(Way::mend);
    let mut judge = w.judge().await;
    judge.that(hung.is_err(), "it had its job at once");
    judge.equal("the cancel got", cancelled, 200);
    judge.that(got.is_empty(), "a cancelled job went out");
    judge
}
