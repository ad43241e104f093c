//! `block` (5.2): waiting for room.

use tokio::task::JoinHandle;

use super::prelude::*;
use crate::harness::assert_within;

const FILE: &str = "[[queue]]\nname = \"q\"\nmax_depth = 2\nstrategy = \"block\"\n";

/// A batch for these queues that would wait for 10 s.
fn waits(client: &Client, queues: &[&str]) -> JoinHandle<u16> {
    let jobs: Vec<_> = queues.iter().map(|queue| job(queue)).collect();
    let (client, body) = (client.clone(), json!({"jobs": jobs}).to_string());
    tokio::spawn(async move {
        let client = client.with("ojs-block-timeout", "10");
        client.post("/ojs/v1/jobs/batch", body).await.status
    })
}

/// An enqueue that waits for so many seconds at most: its status, and when that came.
fn waits_alone(client: &Client, seconds: &'static str) -> JoinHandle<(u16, Instant)> {
    let client = client.clone();
    tokio::spawn(async move {
        let status = client.offer_blocking("q", seconds).await.status;
        (status, Instant::now())
    })
}

/// BP-R002: accepted when room appears, 429 when the time is over, at once without a timeout.
#[tokio::test(start_paused = true)]
async fn a_blocked_enqueue_gets_the_room_that_appears() {
    let (_pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 2).await;
    let at_once = client.offer_blocking("q", "0").await;
    for none in [client.offer("q").await, at_once] {
        assert_eq!(full(&none, "q", 2)["strategy"], "block");
    }
    let begun = Instant::now();
    let reply = client.offer_blocking("q", "3").await;
    assert_eq!(full(&reply, "q", 2)["strategy"], "block");
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_millis(3_050));

    let blocked = waits_alone(&client, "10");
    sleep(Duration::from_millis(777)).await;
    assert!(!blocked.is_finished());
    client.fetch("q", 1).await;
    let room = Instant::now();
    let (status, at) = blocked.await.unwrap();
    assert_eq!(status, 201);
    assert_within(at - room, Duration::from_millis(20), "");
}

/// The bodies of those who wait are kept, and only workers make room.
#[tokio::test(start_paused = true)]
async fn large_enqueues_that_wait_keep_no_worker_out() {
    let file = format!("max_body = \"1MiB\"\nmax_bodies = \"2MiB\"\n{FILE}");
    let (_pair, client) = simulated(Lax::spec(), &file).await;
    client.fill("q", 2).await;
    let large =
        json!({"type": "t", "args": ["x".repeat((1 << 20) - 50)], "options": {"queue": "q"}});
    let blocked: Vec<_> = (0..2)
        .map(|_| {
            let client = client.with("ojs-block-timeout", "10");
            let large = large.to_string();
            tokio::spawn(async move { client.post("/ojs/v1/jobs", large).await.status })
        })
        .collect();
    sleep(Duration::from_millis(777)).await;
    assert!(blocked.iter().all(|one| !one.is_finished()));
    assert_eq!(client.fetch("q", 2).await.len(), 2);
    for one in blocked {
        assert_eq!(one.await.unwrap(), 201);
    }
}

/// Room that appears behind our back is found within a look, whenever it appears.
#[tokio::test(start_paused = true)]
async fn room_behind_our_back_is_found() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 2).await;
    let mut longest = Duration::ZERO;
    for phase in [1, 49, 99, 101, 170, 777, 805] {
        let blocked = waits_alone(&client, "10");
        sleep(Duration::from_millis(phase)).await;
        let fetch = json!({"queues": ["q"], "count": 1, "worker_id": "around"});
        directly(&pair.behind.backend, "/ojs/v1/workers/fetch", fetch).await;
        let room = Instant::now();
        let (status, at) = blocked.await.unwrap();
        assert_eq!(status, 201);
        longest = longest.max(at.duration_since(room));
    }
    assert!(longest < Duration::from_millis(110), "{longest:?}");
}

/// First come, first served, and nobody passes those who wait.
#[tokio::test(start_paused = true)]
async fn the_first_to_come_is_the_first_served() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 2).await;
    let mut blocked = Vec::new();
    for _ in 0..5 {
        blocked.push(waits_alone(&client, "15"));
        sleep(Duration::from_millis(30)).await;
    }
    for _ in 0..5 {
        client.fetch("q", 1).await;
        full(&client.offer("q").await, "q", 2);
        sleep(Duration::from_millis(40)).await;
    }
    let mut times = Vec::new();
    for blocked in blocked {
        let (status, at) = blocked.await.unwrap();
        assert_eq!(status, 201);
        times.push(at);
    }
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(waiting(&pair.behind.backend, "q").await, 2);
}

/// 9.3: a blocked batch waits for all its places.
#[tokio::test(start_paused = true)]
async fn a_blocked_batch_waits_for_all_its_places() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 2).await;
    let batch = waits(&client, &["q", "q"]);
    sleep(Duration::from_millis(300)).await;
    client.fetch("q", 1).await;
    sleep(Duration::from_millis(300)).await;
    assert!(!batch.is_finished(), "one place is not enough");
    assert_eq!(waiting(&pair.behind.backend, "q").await, 1);
    client.fetch("q", 1).await;
    assert_eq!(batch.await.unwrap(), 201);
    assert_eq!(waiting(&pair.behind.backend, "q").await, 2);
}

/// Who waits for one queue keeps others out of another only where its own jobs would not fit any more.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_queue_shuts_no_other() {
    let config = "[[queue]]\nname = [\"a\", \"c\"]\nmax_depth = 2\nstrategy = \"block\"\n\
        [[queue]]\nname = \"b\"\nmax_depth = 5\n\
        [[queue]]\nname = \"keyed\"\nper_key = { by = \"{type}\", max_depth = 2 }\n\
        [[tenant]]\nid = \"*\"\nlimits = { max_queue_depth = 14 }\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("a", 2).await;
    client.fill("c", 2).await;
    let first = waits(&client, &["a", "b", "b", "keyed", "free"]);
    sleep(Duration::from_millis(150)).await;
    client.fill("b", 2).await;
    let second = waits(&client, &["c", "b"]);
    sleep(Duration::from_millis(150)).await;
    // Two of `b` and three who wait for it.
    full(&client.offer("b").await, "b", 5);
    client.fill("keyed", 1).await;
    let reply = client.offer("keyed").await;
    assert_eq!(reply.json()["error"]["key"], "t.x", "{}", reply.text());
    // Seven wait and seven are to come.
    let reply = client.offer("free").await;
    let error = &reply.json()["error"];
    assert_eq!(error["code"], "TENANT_LIMIT_EXCEEDED", "{error}");
    assert_eq!(error["current"], 7);
    // The second passes the first, which has no room yet.
    client.fetch("c", 1).await;
    assert_eq!(second.await.unwrap(), 201);
    assert!(!first.is_finished());
    client.fetch("a", 1).await;
    assert_eq!(first.await.unwrap(), 201);
    assert_eq!(waiting(&pair.behind.backend, "b").await, 5);
}

/// 9.2: a tenant that has its share waits for that, and keeps no room of the queue. Within its share the first to come is
/// the first served.
#[tokio::test(start_paused = true)]
async fn who_waits_for_its_share_keeps_no_room_of_the_queue() {
    let config = format!(
        "{}[[tenant]]\nid = \"*\"\nlimits = {{ max_queue_depth = 10 }}\n",
        FILE.replace("= 2", "= 100")
    );
    let (_pair, client) = simulated(Lax::spec(), &config).await;
    let of = |tenant: &str| {
        let mut job = job("q");
        job["meta"] = json!({"tenant_id": tenant});
        job
    };
    client.enqueue_all(10, &of("a")).await;
    let mut blocked = Vec::new();
    for _ in 0..90 {
        let (producer, body) = (client.with("ojs-block-timeout", "20"), of("a").to_string());
        let reply = async move { producer.post("/ojs/v1/jobs", body).await.status };
        blocked.push(tokio::spawn(reply));
        sleep(Duration::from_millis(2)).await;
    }
    client.enqueue(of("b")).await;
    let waits = waits_alone(&client, "10");
    assert_eq!(waits.await.unwrap().0, 201, "another that would wait");
    assert!(blocked.iter().all(|one| !one.is_finished()));
    assert_eq!(client.fetch("q", 3).await.len(), 3);
    sleep(Duration::from_millis(100)).await;
    let mut served = blocked.into_iter();
    for first in served.by_ref().take(3) {
        assert_eq!(first.await.unwrap(), 201);
    }
    assert!(served.all(|one| !one.is_finished()));
}

/// A producer that hangs up leaves the line, and its place goes to the next.
#[tokio::test(start_paused = true)]
async fn hanging_up_leaves_the_line() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 2).await;
    let gone = waits_alone(&client, "10");
    sleep(Duration::from_millis(50)).await;
    let stays = waits_alone(&client, "10");
    sleep(Duration::from_millis(50)).await;
    gone.abort();
    sleep(Duration::from_millis(50)).await;
    client.fetch("q", 1).await;
    assert_eq!(stays.await.unwrap().0, 201);
    let waits = waiting(&pair.behind.backend, "q").await;
    assert_eq!(waits, 2, "the other's job is not stored");
    let health = client.get("/ojs/v1/health").await.json();
    assert_eq!(health["throttle"]["blocked"], 0);
}

/// The wait is capped, and honoured only where the strategy is `block`.
#[tokio::test(start_paused = true)]
async fn the_wait_is_capped() {
    let (_pair, client) = simulated(Lax::spec(), FILE).await;
    let short = json!({"max_depth": 1, "block_timeout_max": "PT2S"});
    client.bound("q", short).await;
    client.fill("q", 1).await;
    let begun = Instant::now();
    full(&client.offer_blocking("q", "25").await, "q", 1);
    assert!(begun.elapsed() < Duration::from_millis(2_100));
    let rejects = json!({"max_depth": 1, "strategy": "reject"});
    client.bound("q", rejects).await;
    let begun = Instant::now();
    full(&client.offer_blocking("q", "25").await, "q", 1);
    assert!(begun.elapsed() < Duration::from_millis(100));
}

/// 7.2: who waited in vain is told how deep the queue is now, not how deep it was.
#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_wait_it_is_told_what_is_true_then() {
    let (_pair, client) = simulated(Lax::spec(), &FILE.replace("= 2", "= 3")).await;
    client.fill("q", 3).await;
    let producer = client.with("ojs-block-timeout", "4");
    let body = json!({"jobs": vec![job("q"); 3]}).to_string();
    let batch = tokio::spawn(async move { producer.post("/ojs/v1/jobs/batch", body).await });
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await;
        client.fetch("q", 1).await;
    }
    let reply = batch.await.unwrap();
    assert_eq!(full(&reply, "q", 3)["depth"], 1);
    assert_eq!(number(&reply, "x-ojs-queue-depth"), 1.0);
}

/// What bounds the queue may be other numbers by then, or another bound, or nothing.
#[tokio::test(start_paused = true)]
async fn at_the_end_of_the_wait_it_is_told_of_the_bounds_of_then() {
    let others = [
        (json!({"max_depth": 2, "strategy": "block"}), Some((2, 3))),
        (json!({"max_depth": 1, "strategy": "reject"}), Some((1, 3))),
        (
            json!({"max_size_bytes": 10, "strategy": "block"}),
            Some((10, 0)),
        ),
        (json!({"max_depth": 4, "strategy": "block"}), None),
        (json!(null), None),
    ];
    for (bounds, told) in others {
        let (pair, client) = simulated(Lax::spec(), "").await;
        let first = json!({"max_depth": 3, "strategy": "block"});
        client.bound("q", first).await;
        client.fill("q", 3).await;
        let waits = client.clone();
        let waits = tokio::spawn(async move { waits.offer_blocking("q", "4").await });
        sleep(Duration::from_secs(2)).await;
        assert!(!waits.is_finished());
        client.bound("q", bounds.clone()).await;
        let reply = waits.await.unwrap();
        let Some((bound, depth)) = told else {
            assert_eq!(reply.status, 201, "{bounds}: {}", reply.text());
            continue;
        };
        let error = full(&reply, "q", bound);
        assert_eq!(error["strategy"], bounds["strategy"]);
        match bounds.get("max_size_bytes") {
            Some(_) => assert_eq!(error["unit"], "bytes"),
            None => assert_eq!((&error["depth"], error.get("unit")), (&json!(depth), None)),
        }
        let shown = number(&reply, "x-ojs-queue-depth");
        assert_eq!(Some(shown), error["depth"].as_f64());
        pair.stop().await;
    }
}

/// A batch waits for no room where one of its queues does not let it.
#[tokio::test(start_paused = true)]
async fn a_batch_into_a_queue_that_rejects_does_not_wait() {
    let config = "[[queue]]\nname = [\"a\", \"z\"]\nmax_depth = 1\nstrategy = \"block\"\n\
        [[queue]]\nname = \"m\"\nmax_depth = 1\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    for queue in ["a", "m", "z"] {
        client.fill(queue, 1).await;
    }
    for blocks in ["a", "z"] {
        let begun = Instant::now();
        assert_eq!(waits(&client, &[blocks, "m"]).await.unwrap(), 429);
        assert!(begun.elapsed() < Duration::from_millis(100), "{blocks}");
    }
}

/// Over real sockets too an enqueue is accepted within 20 ms of the room: the best of some tries, as the
/// machine may be busy.
#[tokio::test]
async fn a_blocked_enqueue_is_accepted_soon() {
    let pair = crate::sidecar::simulated::Pair::start(Net::Tcp, Lax::spec(), FILE).await;
    let client = pair.sidecar.client();
    client.fill("q", 2).await;
    const SOON: Duration = Duration::from_millis(20);
    let mut best = Duration::MAX;
    for nth in 0..50 {
        if nth >= 10 && best < SOON {
            break;
        }
        let blocked = waits_alone(&client, "10");
        let asked = Instant::now();
        while client.get("/ojs/v1/health").await.json()["throttle"]["blocked"] != 1 {
            assert!(asked.elapsed() < Duration::from_secs(9), "it does not wait");
            tokio::task::yield_now().await;
        }
        // The room is there at the latest when the worker has its job.
        client.fetch("q", 1).await;
        let room = Instant::now();
        let (status, at) = blocked.await.unwrap();
        assert_eq!(status, 201);
        best = best.min(at.saturating_duration_since(room));
    }
    assert!(best < SOON, "{best:?}");
}

/// Only so many stand in line: a quarter of what may be in flight.
#[tokio::test(start_paused = true)]
async fn the_line_is_bounded() {
    let (_pair, client) = simulated(Lax::spec(), &format!("max_in_flight = 16\n{FILE}")).await;
    client.fill("q", 2).await;
    let mut waiting_ones = Vec::new();
    for _ in 0..4 {
        waiting_ones.push(waits_alone(&client, "5"));
    }
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    full(&client.offer_blocking("q", "5").await, "q", 2);
    assert!(begun.elapsed() < Duration::from_millis(50), "at once");
    client.fetch("q", 2).await;
    let mut accepted = 0;
    for one in waiting_ones {
        accepted += usize::from(one.await.unwrap().0 == 201);
    }
    assert_eq!(accepted, 2);
}

/// However long a producer would wait: where nobody has to, it is accepted, and elsewhere it waits as long as it may.
#[tokio::test(start_paused = true)]
async fn the_longest_patience_is_no_mistake() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 1})).await;
    assert_eq!(client.offer_blocking("q", "2147483647").await.status, 201);
    full(&client.offer_blocking("q", "1e300").await, "q", 1);
    let blocks = json!({"max_depth": 1, "strategy": "block", "block_timeout_max": "PT5S"});
    client.bound("q", blocks).await;
    let begun = Instant::now();
    full(&client.offer_blocking("q", "2147483647").await, "q", 1);
    assert_eq!(begun.elapsed().as_secs(), 5);
}

/// One who waits for room in a queue needs a job of another to go, of which none could be dropped the last time:
/// once there is room, that one goes, and nobody comes in between.
#[tokio::test(start_paused = true)]
async fn who_waits_for_one_queue_drops_of_another() {
    let config = "[[queue]]\nname = \"a\"\nmax_depth = 1\nstrategy = \"block\"\n\
        [[queue]]\nname = \"b\"\nmax_depth = 1\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    let backend = &pair.behind.backend;
    client.fill("a", 1).await;
    client.fill("b", 1).await;
    directly(backend, "/ojs/v1/queues/b/pause", json!({})).await;
    full(&client.offer("b").await, "b", 1);
    directly(backend, "/ojs/v1/queues/b/resume", json!({})).await;
    // It may be tried again.
    sleep(Duration::from_millis(1_100)).await;
    let (first, behind) = (waits(&client, &["a", "b"]), waits(&client, &["a"]));
    sleep(Duration::from_millis(300)).await;
    assert!(!first.is_finished() && !behind.is_finished());
    assert_eq!(client.fetch("a", 1).await.len(), 1);
    let room = Instant::now();
    assert_eq!(first.await.unwrap(), 201);
    assert_within(room.elapsed(), Duration::from_secs(1), "");
    assert_eq!(behind.await.unwrap(), 429);
    for queue in ["a", "b"] {
        assert_eq!(waiting(backend, queue).await, 1, "{queue}");
    }
}
