//! Jobs that ran before their limits were known here: they have their slots, whatever goes wrong while they are
//! looked for.

use super::prelude::*;

fn job() -> Job {
    Job::new("email.send").queue("mail")
}

/// The backend refuses its list of active jobs: those that run already are not counted, and nobody looks for them one by
/// one. Their heartbeats and ACKs go on as if nothing limited them.
pub async fn list_refused(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::spec()]);
    let world = ctx.world().lax(lax);
    let w = world
        .limits("[[queue]]\nname = 'mail'\nconcurrency = 3")
        .start()
        .await;
    w.enqueue_all(5, |_| job()).await;
    let ids = w.backend.fetch("one", 2).await;
    w.backend.often(Op::List, 1.0, Fault::Status(403));
    w.restart().await;
    let one = w.hands("one").visibility(20_000);
    let mut beats = Vec::new();
    for _ in 0..8 {
        w.pass(5_000).await;
        beats.push(one.beat(&ids, ctx.even()).await);
    }
    let looked_up = (w.backend.seen().iter())
        .filter(|sent| ids.iter().any(|id| sent.path.ends_with(id)))
        .count();
    let got = w.hands("two").get("mail", 5).await;
    let acks = [one.ack(&ids[0]).await, one.ack(&ids[1]).await];
    let mut judge = w.judge().await;
    let lapsed = judge.lapsed();
    judge.that(beats == [200; 8], format!("heartbeats: {beats:?}"));
    judge.that(lapsed == 0, format!("{lapsed} claims lapsed"));
    judge.equal("were looked up", looked_up, 0);
    judge.equal("started beside two that nobody counts", got.len(), 3);
    judge.equal("ACKs", acks, [200; 2]);
    judge
}

const ONE: &str = "[[policy]]\nname = 'p'\nmatch = { queue = 'mail' }\nkey = 'k:{meta.tenant}'\nconcurrency = 1\n";

/// The file changes while jobs are held, and the list of running jobs hangs: what is held stays held, and what
/// runs has its slots by the last file when the list comes.
pub async fn reloaded_while_the_list_hangs(ctx: Ctx) -> Judge {
    let world = ctx.limits(ONE);
    let w = world.settings("[hold]\nidle = '10m'").start().await;
    let held = || job().label("k:a").meta("tenant", json!("a"));
    w.enqueue_all(6, |_| held()).await;
    w.enqueue_all(5, |_| Job::new("a.b").queue("free")).await;
    let (one, two) = (w.hands("one").visibility(5_000), w.hands("two"));
    let out = one.get("mail", 6).await;
    let out: Vec<String> = out.into_iter().map(|delivery| delivery.job).collect();
    let free = two.get("free", 2).await;
    w.backend
        .often(Op::List, 1.0, Fault::Slow(Duration::from_secs(20)));
    w.reload(&format!("{ONE}[[queue]]\nname = 'z'\nconcurrency = 1"));
    w.pass(200 + ctx.seed * 400).await;
    w.reload(&format!("{ONE}[[queue]]\nname = 'free'\nconcurrency = 3"));
    for _ in 0..10 {
        one.beat(&out, false).await;
        w.pass(1_000).await;
    }
    w.backend.mend();
    for _ in 0..10 {
        one.beat(&out, false).await;
        w.pass(1_000).await;
    }
    let more = two.get("free", 3).await.len();
    one.ack(&out[0]).await;
    two.ack_all(&free).await;
    w.workers(1, Worker::js(3).queues(&["mail", "free"]));
    w.pass(20_000).await;
    let mut judge = w.judge().await;
    let lapsed = judge.lapsed();
    judge.that(out.len() == 1, format!("{} were out", out.len()));
    judge.equal("more jobs were let go beside two", more, 1);
    judge.that(lapsed == 0, format!("{lapsed} claims lapsed"));
    judge.concurrency("k:a", 1);
    judge
}

/// Someone sets the first limit of a queue and hangs up before the store has answered: the jobs of the queue that
/// run have their slots.
pub async fn first_limit_given_up(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let w = world.start().await;
    w.pass(1_500).await;
    w.enqueue_all(7, |_| job()).await;
    let one = w.hands("one");
    let out = one.get("mail", 3).await;
    w.first_way(|way| way.slow(ctx.seed, Duration::from_millis(100)));
    let path = match ctx.even() {
        true => "/ojs/v1/admin/queues/mail/rate-limit",
        false => "/ojs/v1/admin/queues/mail/config",
    };
    let client = w.client();
    let set = client.call("PUT", path, r#"{"concurrency":4}"#.into());
    let patience = Duration::from_millis(1 + ctx.seed * 17);
    let given_up = timeout(patience, set).await;
    w.pass(8_000).await;
    let more = w.hands("two").fetch(&["mail"], 4).await;
    let more = more.map_or(0, |got| got.len());
    let mut judge = w.judge().await;
    judge.that(out.len() == 3, format!("{} are out", out.len()));
    judge.that(given_up.is_err(), "it was answered before that");
    judge.that(more == 1, format!("{more} started beside three of four"));
    judge
}

/// A sidecar dies that has one job of a key out and holds five: the next one cannot tell those from jobs that run
/// until their claims are over, with a store that outlives it or not.
pub async fn only_held(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[Lax::redis(), Lax::postgres(), Lax::spec()]);
    let world = ctx.world().lax(lax).limits(ONE);
    let world = world.settings("[hold]\nidle = '10m'");
    let world = world.shared_if(ctx.even());
    let w = world.start().await;
    let held = || job().label("k:a").meta("tenant", json!("a"));
    w.enqueue_all(6, |_| held()).await;
    let (one, two) = (w.hands("one"), w.hands("two"));
    let out = one.get("mail", 6).await;
    w.pass(ctx.seed * 2_000).await;
    w.restart().await;
    let early = two.get("mail", 1).await.len();
    one.ack_all(&out).await;
    let gets_one = async || {
        let got = two.fetch(&["mail"], 1).await;
        got.is_ok_and(|got| !got.is_empty())
    };
    let freed = w.until(30, gets_one).await;
    let mut judge = w.judge().await;
    judge.that(out.len() == 1, format!("{} were out", out.len()));
    judge.that(early == 0, format!("{early} started beside one of one"));
    judge.soon(freed, "nothing starts within 30 s");
    judge.concurrency("k:a", 1);
    judge
}

/// One heartbeat asks the store about no more jobs than workers run, however many it makes up.
pub async fn heartbeat_of_made_up_ids(ctx: Ctx) -> Judge {
    let world = ctx.world().shared();
    let w = world.limits(ONE).start().await;
    let _other = w.sibling().await;
    w.pass(1_500).await;
    w.first_way(|way| way.slow(ctx.seed, Duration::from_millis(10)));
    let made_up: Vec<String> = (0..6_000).map(|nth| format!("made_up_{nth}")).collect();
    let begun = Instant::now();
    let beat = w.hands("stranger").beat(&made_up, ctx.even()).await;
    let took = begun.elapsed();
    let mut judge = w.judge().await;
    judge.that(beat == 200, format!("a heartbeat got {beat}"));
    judge.that(took.as_secs() < 12, format!("it took {took:?}"));
    judge
}

/// Jobs end through a sibling while the list of running jobs is on its way to a sidecar that starts, reloads, or gets
/// a queue's first limit: they have no slots after that.
pub async fn ended_through_a_sibling(ctx: Ctx) -> Judge {
    let limits = "[[queue]]\nname = 'mail'\nconcurrency = 3\n";
    let world = ctx.world().shared().limits(limits);
    let w = world.start().await;
    let other = w.sibling().await;
    w.pass(1_500).await;
    w.enqueue_all(9, |_| job()).await;
    let one = w.hands_of("one", &other);
    let out = one.get("mail", 3).await;
    let late = Fault::LateReply(Duration::from_millis(400));
    w.backend.often(Op::List, 1.0, late);
    let lists = || {
        let seen = w.backend.seen();
        let lists = seen.iter().filter(|sent| sent.path.ends_with("admin/jobs"));
        lists.count()
    };
    let before = lists();
    match ctx.seed % 3 {
        0 => {
            w.restart().await;
        }
        1 => w.reload(&format!("{limits}[[queue]]\nname = 'z'\nconcurrency = 1")),
        _ => set_limit(&w, "z").await,
    }
    let asked = w.until(3, async || lists() > before).await;
    one.ack_all(&out).await;
    w.pass(2_000).await;
    let more = one.get("mail", 3).await.len();
    let mut judge = w.judge().await;
    judge.that(out.len() == 3, format!("{} were out", out.len()));
    judge.that(asked, "no list was asked for");
    judge.that(more == 3, format!("{more} started where 3 may"));
    judge
}

/// The ACKs of jobs are on their way through a sibling when their queue gets its first limit here: they have no
/// slots after that.
pub async fn ending_through_a_sibling(ctx: Ctx) -> Judge {
    let (w, other) = ctx.world().pair().await;
    w.enqueue_all(9, |_| job()).await;
    let one = w.hands_of("one", &other);
    let out = one.get("mail", 3).await;
    let takes = Fault::Slow(Duration::from_millis(60 + ctx.seed * 30));
    w.backend.often(Op::Ack, 1.0, takes);
    let acks = async {
        tokio::join!(
            one.ack(&out[0].job),
            one.ack(&out[1].job),
            one.ack(&out[2].job)
        )
    };
    let set = async {
        w.pass(20).await;
        set_limit(&w, "mail").await;
    };
    tokio::join!(acks, set);
    w.pass(2_000).await;
    let more = one.get("mail", 4).await.len();
    let mut judge = w.judge().await;
    judge.that(more == 3, format!("{more} started where 3 may"));
    judge
}

/// Sets the first limit of a queue, and does not wait for the answer.
async fn set_limit(w: &World, queue: &str) {
    let path = format!("/ojs/v1/admin/queues/{queue}/rate-limit");
    let client = w.client();
    let set = client.call("PUT", &path, r#"{"concurrency":3}"#.into());
    let _given_up = timeout(Duration::from_millis(100), set).await;
}

/// Jobs that run get their limits, on a backend that binds claims and does not show who made them: whoever claimed
/// them, the worker's ACKs and heartbeats count.
pub async fn claimed_under_an_id_that_is_not_shown(ctx: Ctx) -> Judge {
    let lax = Lax {
        shows_claimer: false,
        ..Lax::spec()
    };
    let settings = "[upstream]\nworker_id = 'sidecar-1'";
    let world = ctx.world().lax(lax).settings(settings);
    // Claimed under the worker's own id, or under ours before a restart.
    let free = ctx.even();
    let world = match free {
        true => world,
        false => world.limits("[[queue]]\nname = 'mail'\nconcurrency = 3\n"),
    };
    let w = world.start().await;
    w.enqueue_all(3, |_| job()).await;
    let one = w.hands("one").visibility(5_000);
    let out = one.get("mail", 3).await;
    let out: Vec<String> = out.into_iter().map(|delivery| delivery.job).collect();
    match (free, ctx.seed % 4 < 2) {
        (true, true) => w.reload("[[queue]]\nname = 'mail'\nconcurrency = 3\n"),
        (true, false) => set_limit(&w, "mail").await,
        (false, _) => {
            w.restart().await;
        }
    }
    // Through more than one visibility.
    let mut beats = Vec::new();
    for _ in 0..4 {
        w.pass(3_000).await;
        beats.push(one.beat(&out, false).await);
    }
    let settled = (one.ack(&out[0]).await, one.nack(&out[1]).await);
    let last = one.ack(&out[2]).await;
    let mut judge = w.judge().await;
    let lapsed = judge.lapsed();
    judge.that(out.len() == 3, format!("{} were out", out.len()));
    judge.that(lapsed == 0, format!("{lapsed} claims lapsed"));
    judge.that(beats == [200; 4], format!("heartbeats: {beats:?}"));
    judge.that(
        (settled, last) == ((200, 200), 200),
        format!("ended with {settled:?}, {last}"),
    );
    judge
}

/// A worker hangs up while its FETCH gives those jobs their rows that run already, because the backend was away at the
/// start: they have their slots all the same.
pub async fn hang_up_while_learning(ctx: Ctx) -> Judge {
    let limits =
        ["mail", "empty"].map(|name| format!("[[queue]]\nname = '{name}'\nconcurrency = 3\n"));
    let world = ctx.world().shared().limits(&limits.concat());
    let w = world.settings("[fetch]\nmax_wait = '0s'").start().await;
    let _other = w.sibling().await;
    w.pass(1_500).await;
    w.enqueue_all(9, |_| job()).await;
    let around = w.backend.fetch("direct", 3).await;
    w.backend.down();
    w.restart().await;
    w.pass(3_000).await;
    w.backend.up().await;
    w.first_way(|way| way.late(Duration::from_millis(50)));
    let one = w.hands("one");
    let gone = Duration::from_millis(125 + ctx.seed * 50);
    let hung = timeout(gone, one.get("empty", 1)).await;
    w.first_way(Way::mend);
    one.get("empty", 1).await;
    w.pass(5_000).await;
    let more = one.get("mail", 3).await.len();
    let mut judge = w.judge().await;
    judge.equal("run already", around.len(), 3);
    judge.that(hung.is_err(), "it was answered before that");
    judge.equal("started beside three of three", more, 0);
    judge
}
