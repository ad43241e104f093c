//! `drop_oldest` (5.3): the new job is stored, the oldest available one goes.

use std::collections::VecDeque;

use ojs_throttle::backend::EventKind;
use tokio_util::sync::CancellationToken;

use super::prelude::*;
use crate::sidecar::answering::answering_by;
use crate::sidecar::client::ids;

/// 13.3 and BP-R003, on backends with ways of their own.
#[tokio::test(start_paused = true)]
async fn the_oldest_available_job_goes() {
    for lax in [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), "").await;
        let drops = json!({"max_depth": 3, "strategy": "drop_oldest"});
        client.bound("notifications", drops).await;
        let jobs = client.fill("notifications", 5).await;
        let waits = waiting(&pair.behind.backend, "notifications").await;
        assert_eq!(waits, 3, "{name}");
        for (nth, job) in jobs.iter().enumerate() {
            let seen = client.job(job).await;
            let state = seen["state"].as_str().unwrap();
            let gone = ["discarded", "cancelled"].contains(&state);
            assert_eq!(gone, nth < 2, "{name}: job {nth} is {state}");
        }
        let left = client.fetch("notifications", 5).await;
        // Postgres gives them in any order.
        let mut these = ids(&left);
        these.sort_by_key(|id| jobs.iter().position(|job| job == id));
        assert_eq!(these, [&jobs[2], &jobs[3], &jobs[4]], "{name}");
        // None of them is touched while a worker has it.
        client.fill("notifications", 4).await;
        for job in &left {
            client.ack(id(job)).await;
        }
        let ledger = pair.stop().await.ledger();
        let acked = ledger.iter().filter(|e| e.kind == EventKind::Acked);
        assert_eq!(acked.count(), 3, "{name}");
    }
}

/// What the strategy does is told: in the log, by the queue, and of a job that has gone.
#[tokio::test(start_paused = true)]
async fn what_drop_oldest_does_is_told() {
    let (_guard, log) = logged();
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let jobs = client.fill("q", 5).await;
    let lines = log.with("id=oldest_dropped");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("WARN") && lines[0].contains("queue=\"q\" jobs=1"));
    let admin = pair.sidecar.admin();
    let of_job = format!("job={}", jobs[0]);
    for (asked, words) in [
        (
            "queue=q",
            "is full: its oldest jobs are discarded for new ones",
        ),
        (&*of_job, "the job was discarded"),
        (&*of_job, "newer jobs matter more"),
    ] {
        let told = admin.why(asked).await.to_string();
        assert!(told.contains(words), "{told}");
    }
}

/// Held jobs are available to others, and go first: they are the oldest.
/// A job that its limit has rescheduled is shown as scheduled, and none of those is dropped.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_shown_as_scheduled_stays() {
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let rare =
        json!({"key": "k", "rate": {"limit": 1, "period": "PT1H"}, "on_limit": "reschedule"});
    let job = json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": rare}});
    let refused = async || client.post("/ojs/v1/jobs", job.to_string()).await.status == 429;
    client.enqueue(job.clone()).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    let jobs = client.enqueue_all(2, &job).await;
    assert!(client.fetch("q", 2).await.is_empty());
    let scheduled = vec!["scheduled".to_owned(); 2];
    assert_eq!(states(&client, &jobs).await, scheduled);
    assert!(refused().await);
    assert_eq!(states(&client, &jobs).await, scheduled);
}

#[tokio::test(start_paused = true)]
async fn held_jobs_go_first() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"drop_oldest\"\n\
        [[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let jobs = client.fill("q", 3).await;
    assert_eq!(ids(&client.fetch("q", 3).await), [&jobs[0]], "two are held");
    let more = client.fill("q", 2).await;
    let seen = states(&client, &jobs[..2]).await;
    assert_eq!(seen, ["active", "discarded"]);
    client.ack(&jobs[0]).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&jobs[2]]);
    client.ack(&jobs[2]).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&more[0]]);
}

/// A held job that had ended in another way was not discarded for a new one, and nobody is told so.
#[tokio::test(start_paused = true)]
async fn what_had_ended_otherwise_is_not_told_as_dropped() {
    let (_guard, log) = logged();
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"drop_oldest\"\n\
        [[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 1\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    let jobs = client.fill("q", 3).await;
    assert_eq!(ids(&client.fetch("q", 3).await), [&jobs[0]], "two are held");
    let cancel = format!("/ojs/v1/admin/jobs/{}/cancel", jobs[1]);
    directly(&pair.behind.backend, &cancel, json!({})).await;
    client.fill("q", 2).await;
    let admin = pair.sidecar.admin();
    let lost = admin.metric("ojs_throttle_hold_lost_total").await;
    assert_eq!(lost, Some(1.0), "it was to be dropped");
    let dropped = "ojs_backpressure_dropped_total{queue=\"q\"}";
    assert_eq!(admin.metric(dropped).await, None);
    assert_eq!(log.with("id=oldest_dropped"), [""; 0]);
}

/// A backend whose first FETCH gives so many jobs. While it fails it ends none of them, and tells of none.
fn holds(
    jobs: usize,
    fails: &Arc<AtomicBool>,
) -> impl Fn(&Method, &str) -> (u16, String) + 'static {
    let (given, fails) = (AtomicBool::new(false), Arc::clone(fails));
    let old =
        |nth: usize| json!({"id": format!("old-{nth}"), "type": "t.x", "queue": "q", "attempt": 1});
    let old = json!({"jobs": (0..jobs).map(old).collect::<Vec<_>>()}).to_string();
    move |_, path| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"new"}}"#.to_owned()),
        "/ojs/v1/workers/fetch" if given.swap(true, Ordering::SeqCst) => {
            (200, r#"{"jobs":[]}"#.to_owned())
        }
        "/ojs/v1/workers/fetch" => (200, old.clone()),
        _ if fails.load(Ordering::SeqCst)
            && (path.ends_with("/nack") || path.contains("/jobs/old")) =>
        {
            (500, "{}".to_owned())
        }
        "/ojs/v1/workers/nack" => (200, r#"{"state":"discarded"}"#.to_owned()),
        _ => (200, r#"{"counts":{"available":0}}"#.to_owned()),
    }
}

/// None of these jobs may start.
const NONE_STARTS: &str = "[[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 0\n";

/// One that the backend does not end at once is told of when it is gone, and the nack says all the same why.
#[tokio::test(start_paused = true)]
async fn what_is_dropped_late_is_told_when_it_is_gone() {
    let fails = Arc::new(AtomicBool::new(true));
    let config = format!("{ONE}{NONE_STARTS}");
    let (backend, sidecar, client) = told(&config, Duration::ZERO, holds(1, &fails)).await;
    assert!(client.fetch("q", 1).await.is_empty(), "it is held");
    assert_eq!(client.offer("q").await.status, 429, "it has its place yet");
    let admin = sidecar.admin();
    let dropped = "ojs_backpressure_dropped_total{queue=\"q\"}";
    assert_eq!(admin.metric(dropped).await, None);
    fails.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(admin.metric(dropped).await, Some(1.0));
    let nacks = backend.bodies("/ojs/v1/workers/nack");
    assert!(nacks.iter().all(|nack| nack.contains("queue_overflow")));
    assert_eq!(client.offer("q").await.status, 201);
}

/// A job that the backend does not end has its place yet. Enqueues cost that job, and for a second no other behind it.
#[tokio::test(start_paused = true)]
async fn enqueues_cost_one_job_where_the_backend_ends_none() {
    let fails = Arc::new(AtomicBool::new(true));
    let config = format!("{TWENTY}{NONE_STARTS}");
    let (backend, sidecar, client) = told(&config, Duration::ZERO, holds(20, &fails)).await;
    assert!(client.fetch("q", 20).await.is_empty(), "all are held");
    for _ in 0..6 {
        full(&client.offer("q").await, "q", 20);
        sleep(Duration::from_millis(150)).await;
    }
    sleep(Duration::from_secs(2)).await;
    fails.store(false, Ordering::SeqCst);
    sleep(Duration::from_secs(6)).await;
    let dropped = "ojs_backpressure_dropped_total{queue=\"q\"}";
    assert_eq!(sidecar.admin().metric(dropped).await, Some(1.0));
    let nacks = backend.bodies("/ojs/v1/workers/nack");
    assert!(nacks.iter().all(|nack| nack.contains("\"old-0\"")));
}

/// So it is where the backend has just gone, however often producers come. Where it is known to have gone none goes.
#[tokio::test(start_paused = true)]
async fn enqueues_cost_one_job_where_the_backend_has_gone() {
    for (since_look, cost) in [(0, 1), (150, 0)] {
        let (pair, client) = simulated(Lax::spec(), &format!("{TWENTY}{NONE_STARTS}")).await;
        client.fill("q", 20).await;
        assert!(client.fetch("q", 20).await.is_empty(), "all are held");
        client.fill("q", 1).await;
        let (net, addr) = (pair.sidecar.net.clone(), pair.behind.addr);
        let backend = pair.behind.stop().await;
        sleep(Duration::from_millis(since_look)).await;
        for _ in 0..20 {
            assert_eq!(client.offer("q").await.status, 502);
            sleep(Duration::from_millis(90)).await;
        }
        let listener = net.bind(addr).await.unwrap();
        tokio::spawn(backend.clone().serve(listener, CancellationToken::new()));
        sleep(Duration::from_secs(8)).await;
        let ledger = backend.ledger();
        let gone = ledger.iter().filter(|e| e.kind == EventKind::Discarded);
        let beside = "one went for the job that was stored";
        assert_eq!(gone.count(), 1 + cost, "{beside}, {since_look}");
        pair.sidecar.stop().await;
    }
}

/// Jobs that wait in the backend and such as are held, each of which goes for a new one: never more than fit,
/// whether the backend is asked or not.
#[tokio::test(start_paused = true)]
async fn held_jobs_that_go_count_once() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 10\nstrategy = \"drop_oldest\"\n\
        [[policy]]\nname = \"p\"\nmatch = { meta.held = \"yes\" }\nconcurrency = 0\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let mut held = job("q");
    held["meta"] = json!({"held": "yes"});
    client.enqueue_all(5, &held).await;
    assert!(client.fetch("q", 5).await.is_empty(), "all are held");
    client.fill("q", 5).await;
    sleep(Duration::from_secs(1)).await;
    client.offer("q").await;
    for nth in 0..200 {
        assert_eq!(client.offer("q").await.status, 201);
        let stats = client.get("/ojs/v1/queues/q/stats").await.json();
        let there = stats["queue"]["available"].as_u64().unwrap();
        assert!(there <= 10, "{there} wait after {nth}: {stats}");
    }
}

/// 9.3: a batch makes room for all of itself; with nothing to drop it is refused.
#[tokio::test(start_paused = true)]
async fn a_batch_makes_its_room_or_is_refused() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 3\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 2).await;
    assert_eq!(client.offer_all(&["q", "q", "q"]).await.status, 201);
    assert_eq!(waiting(&pair.behind.backend, "q").await, 3);
    let error = full(&client.offer_all(&["q"; 4]).await, "q", 3);
    assert_eq!(error["retryable"], false);
    client.fetch("q", 3).await;
    let later =
        json!({"type": "t", "args": [], "options": {"queue": "q", "delay_until": "+PT60S"}});
    client.enqueue_all(3, &later).await;
    let error = full(&client.offer("q").await, "q", 3);
    assert_eq!(error["strategy"], "drop_oldest", "what is scheduled stays");
}

/// A batch that can never fit costs nobody a job.
#[tokio::test(start_paused = true)]
async fn no_more_is_dropped_than_is_over_the_bound() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let bounds = json!({"max_depth": 100, "strategy": "drop_oldest"});
    client.bound("q", bounds).await;
    client.fill("q", 60).await;
    full(&client.offer_all(&vec!["q"; 101]).await, "q", 100);
    for waits in 61..=100 {
        assert_eq!(client.offer("q").await.status, 201);
        assert_eq!(waiting(&pair.behind.backend, "q").await, waits);
    }
    client.fill("q", 1).await;
    assert_eq!(waiting(&pair.behind.backend, "q").await, 100);
}

/// What cannot be dropped because the queue is paused is not replaced.
#[tokio::test(start_paused = true)]
async fn a_paused_queue_gives_nothing_up() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 2).await;
    directly(&pair.behind.backend, "/ojs/v1/queues/q/pause", json!({})).await;
    for _ in 0..5 {
        full(&client.offer("q").await, "q", 2);
    }
    assert_eq!(waiting(&pair.behind.backend, "q").await, 2);
}

/// However long it is paused around the sidecar, not one enqueue is let in. Once jobs can be dropped again, they are.
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_paused_for_long_does_not_grow() {
    let (pair, client) = simulated(Lax::spec(), DROPS).await;
    client.fill("q", 4).await;
    let backend = &pair.behind.backend;
    directly(backend, "/ojs/v1/queues/q/pause", json!({})).await;
    for _ in 0..20 {
        sleep(Duration::from_millis(300)).await;
        full(&client.offer("q").await, "q", 4);
        full(&client.offer_all(&["q"; 3]).await, "q", 4);
    }
    assert_eq!(waiting(backend, "q").await, 4);
    // A worker makes room for one: that is given away, and no more.
    directly(backend, "/ojs/v1/queues/q/resume", json!({})).await;
    let taken = json!({"queues": ["q"], "count": 1, "worker_id": "around"});
    directly(backend, "/ojs/v1/workers/fetch", taken).await;
    directly(backend, "/ojs/v1/queues/q/pause", json!({})).await;
    sleep(Duration::from_millis(1_100)).await;
    client.fill("q", 1).await;
    for _ in 0..5 {
        full(&client.offer("q").await, "q", 4);
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(waiting(backend, "q").await, 4);
    directly(backend, "/ojs/v1/queues/q/resume", json!({})).await;
    sleep(Duration::from_secs(1)).await;
    client.fill("q", 3).await;
    assert_eq!(waiting(backend, "q").await, 4);
}

/// Where the pause came through here it is known, and not one job is let in. If it is resumed elsewhere that is noticed,
/// although nobody asks for its jobs.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_paused_through_us_stays_as_it_is() {
    for elsewhere in [false, true] {
        let (pair, client) = simulated(Lax::spec(), DROPS).await;
        client.fill("q", 4).await;
        let act = async |verb: &str| client.post(&format!("/ojs/v1/queues/q/{verb}"), "{}").await;
        assert_eq!(act("pause").await.status, 200);
        for _ in 0..3 {
            full(&client.offer("q").await, "q", 4);
            sleep(Duration::from_secs(1)).await;
        }
        let backend = &pair.behind.backend;
        assert_eq!(waiting(backend, "q").await, 4);
        if elsewhere {
            directly(backend, "/ojs/v1/queues/q/resume", json!({})).await;
            sleep(Duration::from_secs(7)).await;
        } else {
            assert_eq!(act("resume").await.status, 200);
        }
        client.fill("q", 2).await;
        let waits = waiting(backend, "q").await;
        assert_eq!(waits, 4, "resumed elsewhere: {elsewhere}");
    }
}

/// The states of these jobs.
async fn states(client: &Client, jobs: &[String]) -> Vec<String> {
    let mut states = Vec::new();
    for job in jobs {
        let seen = client.job(job).await;
        states.push(seen["state"].as_str().unwrap().to_owned());
    }
    states
}

fn is_gone(state: &str) -> bool {
    ["discarded", "cancelled"].contains(&state)
}

/// Enqueues jobs of these priorities.
async fn fill_with(client: &Client, priorities: &[i64]) -> Vec<String> {
    let mut ids = Vec::new();
    for priority in priorities {
        let options = json!({"queue": "q", "priority": priority});
        let job = json!({"type": "t.x", "args": [], "options": options});
        ids.push(client.enqueue(job).await);
    }
    ids
}

const DROPS: &str = "[[queue]]\nname = \"q\"\nmax_depth = 4\nstrategy = \"drop_oldest\"\n";

/// Whatever their priorities are: the job goes that the next FETCH would get. What a worker has stays, and so does what
/// waits for a time.
#[tokio::test(start_paused = true)]
async fn with_priorities_the_next_one_goes() {
    for lax in [Lax::spec, Lax::redis, Lax::lite] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), DROPS).await;
        let jobs = fill_with(&client, &[1, 9, 5, 9]).await;
        let taken = client.fetch("q", 1).await;
        assert_eq!(id(&taken[0]), jobs[1], "{name}: the oldest of the highest");
        let later =
            json!({"type": "t", "args": [], "options": {"queue": "q", "delay_until": "+PT60S"}});
        let later = client.enqueue(later).await;
        let more = fill_with(&client, &[0, 0]).await;
        let seen = states(&client, &jobs).await;
        let gone: Vec<bool> = seen.iter().map(|state| is_gone(state)).collect();
        assert_eq!(gone, [false, false, true, true], "{name}: 9, then 5");
        let stays = states(&client, &[later, jobs[1].clone(), more[1].clone()]).await;
        assert_eq!(stays, ["scheduled", "active", "available"], "{name}");
        client.ack(id(&taken[0])).await;
        pair.stop().await;
    }
}

/// A backend with a queue of these jobs, which gives the first of them.
fn queue_of(jobs: &Arc<Mutex<VecDeque<u64>>>) -> impl Fn(&Method, &str) -> (u16, String) + 'static {
    let (jobs, next) = (Arc::clone(jobs), AtomicU64::new(1));
    move |_, path| {
        let mut jobs = jobs.lock().unwrap();
        let job =
            |nth: u64| json!({"id": nth.to_string(), "type": "t.x", "queue": "q", "attempt": 0});
        match path {
            "/ojs/v1/jobs" => {
                let nth = next.fetch_add(1, Ordering::SeqCst);
                jobs.push_back(nth);
                (201, json!({"job": job(nth)}).to_string())
            }
            "/ojs/v1/workers/fetch" => {
                let given: Vec<_> = jobs.pop_front().into_iter().map(job).collect();
                (200, json!({"jobs": given}).to_string())
            }
            "/ojs/v1/workers/nack" => (200, json!({"state": "available"}).to_string()),
            _ => (
                200,
                json!({"counts": {"available": jobs.len()}}).to_string(),
            ),
        }
    }
}

const ONE: &str = "[[queue]]\nname = \"q\"\nmax_depth = 1\nstrategy = \"drop_oldest\"\n";
const TWENTY: &str = "[[queue]]\nname = \"q\"\nmax_depth = 20\nstrategy = \"drop_oldest\"\n";

/// A worker takes the old job while a new one comes: there is none to drop, and the new one has its place.
#[tokio::test(start_paused = true)]
async fn what_left_meanwhile_is_dropped_for_nobody() {
    let jobs = Arc::default();
    let slow = Duration::from_millis(20);
    let (backend, _sidecar, client) = told(ONE, slow, queue_of(&jobs)).await;
    client.fill("q", 1).await;
    let worker = client.clone();
    let taken = tokio::spawn(async move { worker.fetch("q", 1).await });
    sleep(slow / 2).await;
    client.fill("q", 1).await;
    assert_eq!(ids(&taken.await.unwrap()), ["1"]);
    assert_eq!(*jobs.lock().unwrap(), [2]);
    assert_eq!(backend.asked(Method::POST, "/fetch"), 2, "one is ours");
}

/// And if it takes it behind our back, the new job is let in, and not taken for the old one.
#[tokio::test(start_paused = true)]
async fn the_job_that_was_just_stored_stays() {
    let jobs = Arc::default();
    let (backend, _sidecar, client) = told(ONE, Duration::from_millis(20), queue_of(&jobs)).await;
    client.fill("q", 1).await;
    for _ in 0..3 {
        jobs.lock().unwrap().clear();
        client.fill("q", 1).await;
        assert_eq!(jobs.lock().unwrap().len(), 1);
    }
    assert!(backend.bodies("/ojs/v1/workers/nack").is_empty());
    client.fill("q", 1).await;
    assert_eq!(*jobs.lock().unwrap(), [5], "the one before it is older");
}

/// Producers that come at once take turns: as many jobs go as come, and none of those.
#[tokio::test(start_paused = true)]
async fn as_many_go_as_come_at_once() {
    let jobs = Arc::default();
    let (backend, _sidecar, client) = told(DROPS, Duration::from_millis(20), queue_of(&jobs)).await;
    client.fill("q", 4).await;
    let offers = (0..3).map(|_| {
        let producer = client.clone();
        tokio::spawn(async move { producer.offer("q").await.status })
    });
    for offer in offers.collect::<Vec<_>>() {
        assert_eq!(offer.await.unwrap(), 201);
    }
    assert_eq!(*jobs.lock().unwrap(), [4, 5, 6, 7]);
    assert_eq!(backend.asked(Method::POST, "/fetch"), 3);
}

/// The backend does not store the new job after all: the old one is gone, and its place is free.
#[tokio::test(start_paused = true)]
async fn what_went_for_a_refused_job_is_gone() {
    let (jobs, refuses) = (Arc::default(), Arc::new(AtomicBool::default()));
    let (queue, no) = (queue_of(&jobs), Arc::clone(&refuses));
    let says = move |method: &Method, path: &str| match path {
        "/ojs/v1/jobs" if no.load(Ordering::SeqCst) => (422, "{}".to_owned()),
        _ => queue(method, path),
    };
    let (backend, _sidecar, client) = told(DROPS, Duration::from_millis(20), says).await;
    client.fill("q", 4).await;
    let wrong = json!({"type": "t", "options": {"queue": "q", "rate_limit": {"concurrency": -1}}});
    let reply = client.post("/ojs/v1/jobs", wrong.to_string()).await;
    assert_eq!(reply.status, 400);
    assert_eq!(backend.asked(Method::POST, "/fetch"), 0, "none goes for it");
    refuses.store(true, Ordering::SeqCst);
    assert_eq!(client.offer("q").await.status, 422);
    refuses.store(false, Ordering::SeqCst);
    client.fill("q", 1).await;
    assert_eq!(*jobs.lock().unwrap(), [2, 3, 4, 5]);
    assert_eq!(backend.asked(Method::POST, "/fetch"), 1);
}

/// By bytes as many go as the new job needs, which may be more than one.
#[tokio::test(start_paused = true)]
async fn a_long_job_needs_the_bytes_of_several() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let size = job("q").to_string().len();
    let bounds = json!({"max_size_bytes": 4 * size, "strategy": "drop_oldest"});
    client.bound("q", bounds).await;
    let jobs = client.fill("q", 4).await;
    let mut long = job("q");
    long["args"] = json!(["x".repeat(size)]);
    client.enqueue(long).await;
    let gone = states(&client, &jobs).await;
    let gone: Vec<bool> = gone.iter().map(|state| is_gone(state)).collect();
    assert_eq!(gone, [true, true, true, false], "it is longer than two");
}

/// Who may not enqueue makes no job go.
#[tokio::test(start_paused = true)]
async fn for_who_is_refused_no_job_goes() {
    let given = AtomicBool::new(false);
    let says = move |head: &http::request::Parts| {
        let sent = head.headers.get(http::header::AUTHORIZATION);
        let is_known = sent.is_some_and(|sent| sent == "Bearer a");
        let old = json!({"id": "old", "type": "t.x", "queue": "q", "attempt": 1});
        let (status, body) = match head.uri.path() {
            _ if !is_known => (401, json!({"error": {"code": "unauthorized"}})),
            "/ojs/v1/jobs" => (201, json!({"job": {"id": "new"}})),
            "/ojs/v1/workers/fetch" if given.swap(true, Ordering::SeqCst) => {
                (200, json!({"jobs": []}))
            }
            "/ojs/v1/workers/fetch" => (200, json!({"jobs": [old]})),
            "/ojs/v1/workers/nack" => (200, json!({"state": "discarded"})),
            _ => (200, json!({"counts": {"available": 0}})),
        };
        (status, body.to_string().into())
    };
    let config = format!("{ONE}{NONE_STARTS}");
    let (backend, _sidecar, client) = answering_by(Duration::ZERO, &config, says).await;
    let send = async |path: &str, login: &str, body: Value| {
        let client = client.with("authorization", login);
        client.post(path, body.to_string()).await
    };
    let fetch = json!({"queues": ["q"], "count": 1, "worker_id": "w"});
    let held = send("/ojs/v1/workers/fetch", "Bearer a", fetch).await;
    assert_eq!(held.json()["jobs"], json!([]), "it is held");
    let nacks = || {
        let all = backend.requests().into_iter();
        all.filter(|(head, _)| head.uri.path() == "/ojs/v1/workers/nack")
            .count()
    };
    for login in ["Bearer b", ""] {
        let refused = send("/ojs/v1/jobs", login, job("q")).await;
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert_eq!(nacks(), 0, "{login:?}");
    }
    let stored = send("/ojs/v1/jobs", "Bearer a", job("q")).await;
    assert_eq!((stored.status, nacks()), (201, 1), "{}", stored.text());
}
