//! Depth that is right: what counts, and what comes and goes behind our back.

use ojs_throttle::backend::Backend;
use ojs_throttle::bounds::StatsAnswer;
use ojs_throttle::duration::moment;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::subscriber::DefaultGuard;

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sidecar::simulated::Start;

const FILE: &str = "[[queue]]\nname = \"q\"\nmax_depth = 3\n";

/// A job that waits for a time.
fn later() -> Value {
    json!({"type": "t", "args": [], "options": {"queue": "q", "delay_until": "+PT60S"}})
}

/// A job that is tried again after so long.
fn retried(after: &str) -> Value {
    let retry = json!({"max_attempts": 5, "initial_interval": after});
    json!({"type": "t", "args": [], "options": {"queue": "q", "retry": retry}})
}

/// Somebody fetches around the sidecar.
async fn fetch_around(backend: &Backend, count: usize) {
    let fetch = json!({"queues": ["q"], "count": count, "worker_id": "around"});
    directly(backend, "/ojs/v1/workers/fetch", fetch).await;
}

/// Section 3: available, scheduled and retryable count, active does not; on backends that tell all
/// states and on one that hides two of them.
#[tokio::test(start_paused = true)]
async fn what_waits_counts() {
    for lax in [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), FILE).await;
        let later = later();
        client.enqueue(later).await;
        client.enqueue(retried("PT60S")).await;
        let active = client.fetch("q", 1).await;
        client.nack(id(&active[0]), true).await;
        client.fill("q", 1).await;
        assert_eq!(client.fetch("q", 1).await.len(), 1);
        sleep(Duration::from_millis(200)).await;
        client.fill("q", 1).await;
        sleep(Duration::from_millis(200)).await;
        let reply = client.offer("q").await;
        // One is scheduled, one retryable, one available, one active.
        assert_eq!(reply.status, 429, "{name}: {}", reply.text());
        assert_eq!(reply.json()["error"]["depth"], 3, "{name}");
        pair.stop().await;
    }
}

/// Held jobs are active to the backend, but they wait.
#[tokio::test(start_paused = true)]
async fn held_jobs_count() {
    let limits = "[[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), &format!("{FILE}{limits}")).await;
    client.fill("q", 3).await;
    assert_eq!(client.fetch("q", 3).await.len(), 1, "two are held");
    sleep(Duration::from_millis(150)).await;
    client.fill("q", 1).await;
    let error = full(&client.offer("q").await, "q", 3);
    assert_eq!(error["depth"], 3);
    let stats = client.get("/ojs/v1/queues/q/stats").await.json();
    assert_eq!(stats["stats"]["depth"], 3);
}

/// Some backends answer a nack without its job: any queue may have it.
#[tokio::test(start_paused = true)]
async fn what_failed_counts_at_once_where_a_nack_shows_no_job() {
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 20\n";
    let (pair, client) = simulated(Lax::lite(), file).await;
    let retried = json!({"type": "t", "args": [], "options": {"queue": "q",
        "retry": {"max_attempts": 5, "initial_interval": "PT60S"}}});
    for _ in 0..20 {
        client.enqueue(retried.clone()).await;
    }
    let out = client.fetch("q", 10).await;
    assert_eq!(out.len(), 10);
    for job in &out {
        client.nack(id(job), true).await;
    }
    for _ in 0..3 {
        full(&client.offer("q").await, "q", 20);
    }
    pair.stop().await;
}

/// No known backend stores a job and answers so; a gateway in front of one may.
#[tokio::test(start_paused = true)]
async fn what_is_stored_without_a_word_counts() {
    for status in [200, 204, 226] {
        let stored = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&stored);
        let answers = move |_: &Method, path: &str| match path {
            "/ojs/v1/jobs" => {
                count.fetch_add(1, Ordering::SeqCst);
                (status, String::new())
            }
            _ => {
                let available = count.load(Ordering::SeqCst);
                (200, json!({"counts": {"available": available}}).to_string())
            }
        };
        let (_backend, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
        for _ in 0..9 {
            client.offer("q").await;
        }
        assert_eq!(stored.load(Ordering::SeqCst), 3, "{status}");
        sidecar.stop().await;
    }
}

/// A producer can have a backend show any queue for its job. That queue has got no shorter when a worker of others gets
/// the job.
#[tokio::test(start_paused = true)]
async fn a_queue_that_a_producer_made_up_is_as_long_as_before() {
    let bounded = |queue: &str| FILE.replace("\"q\"", &format!("\"{queue}\""));
    let config = ["a", "q"].map(bounded).concat();
    let (pair, client) = simulated(Lax::redis(), &config).await;
    let mut made_up = job("a");
    made_up["queue"] = json!("q");
    directly(&pair.behind.backend, "/ojs/v1/jobs", made_up).await;
    client.fill("q", 3).await;
    let asks = json!({"queues": ["a", "b"], "count": 1, "worker_id": "w"});
    assert_eq!(client.fetch_as(asks).await[0]["queue"], "q");
    full(&client.offer("q").await, "q", 3);
}

/// Jobs that enter and leave behind our back are seen within 100 ms near the bound.
#[tokio::test(start_paused = true)]
async fn what_happens_behind_our_back_is_seen() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    let backend = pair.behind.backend.clone();
    for _ in 0..3 {
        directly(&backend, "/ojs/v1/jobs", job("q")).await;
    }
    full(&client.offer("q").await, "q", 3);
    fetch_around(&backend, 2).await;
    sleep(Duration::from_millis(110)).await;
    client.fill("q", 2).await;
    full(&client.offer("q").await, "q", 3);
    fetch_around(&backend, 3).await;
    for _ in 0..2 {
        directly(&backend, "/ojs/v1/jobs", job("q")).await;
    }
    sleep(Duration::from_millis(110)).await;
    client.fill("q", 1).await;
    full(&client.offer("q").await, "q", 3);
    assert_eq!(waiting(&backend, "q").await, 3);
}

/// Far from the bound, and nobody enqueues any more: what is shown becomes right all the same.
#[tokio::test(start_paused = true)]
async fn a_queue_that_nobody_uses_is_shown_as_it_is() {
    let wide = FILE.replace('3', "100");
    let (pair, client) = simulated(Lax::spec(), &wide).await;
    client.fill("q", 5).await;
    let admin = pair.sidecar.admin();
    let pressure = async || admin.metric("ojs_backpressure_pressure{queue=\"q\"}").await;
    assert_eq!(pressure().await, Some(0.05));
    fetch_around(&pair.behind.backend, 5).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(pressure().await, Some(0.0));
}

/// Far from the bound the backend is hardly asked, near it at most ten times a second.
#[tokio::test(start_paused = true)]
async fn the_backend_is_asked_seldom() {
    let depth = Arc::new(AtomicU64::new(0));
    let now = depth.clone();
    let answers = move |_: &Method, path: &str| match path.contains("/queues/") {
        true => {
            let counts = json!({"available": now.load(Ordering::SeqCst), "scheduled": 0});
            (200, json!({"counts": counts}).to_string())
        }
        false => (201, r#"{"job":{"id":"x","state":"available"}}"#.to_owned()),
    };
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 1000\n";
    let (backend, _sidecar, client) = told(config, Duration::ZERO, answers).await;
    let mut asked = 0;
    for (at, most) in [(0, 5), (600, 21), (950, 205), (1_000, 205)] {
        depth.store(at, Ordering::SeqCst);
        sleep(Duration::from_secs(6)).await;
        // The first look tells it where it is; then twenty seconds.
        client.offer("q").await;
        let (begun, before) = (Instant::now(), backend.asked(Method::GET, "/queues/q"));
        while begun.elapsed() < Duration::from_secs(20) {
            client.offer("q").await;
            sleep(Duration::from_millis(50)).await;
        }
        let looks = backend.asked(Method::GET, "/queues/q") - before;
        assert!(looks <= most, "{looks} looks in 20 s at {at}");
        asked += looks;
    }
    assert!(asked > 150, "only {asked}");
}

/// What this thread logs from here on, for as long as the guard lives: each line from its level on.
pub fn logged() -> (DefaultGuard, Lines) {
    let (lines, guard) = Lines::listen();
    (guard, lines)
}

/// Exactly one line warns of `what`.
fn warned_once(lines: &Lines, what: &str) {
    let about = lines.with(what);
    let warns = about.iter().filter(|line| line.starts_with("WARN"));
    assert_eq!(warns.count(), 1, "{}", lines.text());
}

/// A backend without statistics: what passes through here is what is known.
#[tokio::test(start_paused = true)]
async fn without_statistics_what_passes_counts() {
    let (_guard, log) = logged();
    let given = Arc::new(AtomicU64::new(0));
    let give = given.clone();
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x"}}"#.to_owned()),
        "/ojs/v1/workers/fetch" => {
            let jobs =
                vec![r#"{"id":"x","type":"t","queue":"q"}"#; give.load(Ordering::SeqCst) as usize];
            (200, format!(r#"{{"jobs":[{}]}}"#, jobs.join(",")))
        }
        _ => (404, "404 page not found\n".to_owned()),
    };
    let (_, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    for _ in 0..3 {
        assert_eq!(client.offer("q").await.status, 201);
    }
    full(&client.offer("q").await, "q", 3);
    given.store(2, Ordering::SeqCst);
    assert_eq!(client.fetch("q", 2).await.len(), 2);
    for _ in 0..2 {
        assert_eq!(client.offer("q").await.status, 201);
    }
    full(&client.offer("q").await, "q", 3);
    // Jobs that left in another way: an empty FETCH shows it.
    given.store(0, Ordering::SeqCst);
    assert!(client.fetch("q", 2).await.is_empty());
    assert_eq!(client.offer("q").await.status, 201);
    sidecar.stop().await;
    warned_once(&log, "the backend has no statistics for us");
}

/// One that says in JSON that there is no such route: it does not know a queue in which jobs were stored. Where numbers
/// are told of queues, one that is not known is empty.
#[tokio::test(start_paused = true)]
async fn a_backend_that_never_knows_a_queue_has_no_statistics() {
    let (_guard, log) = logged();
    let answers = |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x"}}"#.to_owned()),
        _ => (404, r#"{"detail":"Not Found"}"#.to_owned()),
    };
    let (_, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    let mut statuses = Vec::new();
    for _ in 0..8 {
        statuses.push(client.offer("q").await.status);
        sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(statuses, [201, 201, 201, 429, 429, 429, 429, 429]);
    sidecar.stop().await;
    warned_once(&log, "the backend has no statistics for us");
    assert_eq!(log.with("has room again"), [""; 0]);
    let (pair, client) = simulated(Lax::amqp(), FILE).await;
    client.fill("q", 3).await;
    // By then it has told a number once.
    sleep(Duration::from_secs(6)).await;
    full(&client.offer("q").await, "q", 3);
    directly(&pair.behind.backend, "/ojs/v1/admin/reset", Value::Null).await;
    sleep(Duration::from_millis(200)).await;
    client.fill("q", 3).await;
}

/// What is known of such a queue nobody would tell again: names that nothing was stored in are forgotten first.
#[test]
fn a_queue_without_statistics_is_not_forgotten_for_names() {
    let given = Given {
        max_depth: Some(2),
        ..Given::default()
    };
    let file = FileBounds::new(vec![(Pattern::new("*"), given)]);
    let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
    let begun = Instant::now();
    let offer = |queue: &str, ms, outcome| {
        let now = Now {
            at: begun + Duration::from_millis(ms),
            stamp: Timestamp(1),
        };
        let mut wants = vec![Want {
            jobs: 1,
            sizes: vec![1],
            ..Want::nothing(queue, pressure.bounds(queue).unwrap())
        }];
        let mut answer = pressure.admit(&mut wants, now);
        if let Admission::Wait(_) = answer {
            pressure.end_look(queue, StatsAnswer::Nothing, None, now);
            answer = pressure.admit(&mut wants, now);
        }
        match answer {
            Admission::Go(mut places) => drop(places.settle(outcome, &[])),
            Admission::Full(_) => return false,
            other => panic!("{other:?}"),
        }
        true
    };
    assert!(offer("full", 0, EnqueueOutcome::Stored) && offer("full", 0, EnqueueOutcome::Stored));
    for nth in 0..12_000 {
        let name = format!("made-up-{nth}");
        assert!(offer(&name, 1 + nth, EnqueueOutcome::Refused));
    }
    assert!(!offer("full", 20_000, EnqueueOutcome::Stored), "two wait");
}

/// EXT-BP-004 and 7.2 of the wire: `stats` stands beside what the backend says, which stays.
#[tokio::test(start_paused = true)]
async fn statistics_tell_depth_and_bound() {
    let (_pair, client) = simulated(Lax::spec(), "[[queue]]\nname = \"q\"\nmax_depth = 4\n").await;
    client.fill("q", 3).await;
    let stats = client.get("/ojs/v1/queues/q/stats").await.json();
    assert_eq!(stats["queue"]["name"], "q");
    assert_eq!(stats["queue"]["available"], 3);
    let expected = json!({"queue": "q", "depth": 3, "bound": 4, "max_depth": 4, "pressure": 0.75});
    assert_eq!(stats["stats"], expected);
    let other = client.get("/ojs/v1/queues/other/stats").await.json();
    assert_eq!(other.get("stats"), None, "not bounded, not touched");
    let manifest = client.get("/ojs/manifest").await.json();
    assert_eq!(manifest["capabilities"]["backpressure"], true);
    let names = manifest["extensions"]["official"].to_string();
    assert!(names.contains("urn:ojs:ext:backpressure"), "{names}");
}

/// They tell what the next enqueue will be told, also of jobs that the backend's own reply leaves out, and of what
/// left behind our back.
#[tokio::test(start_paused = true)]
async fn statistics_tell_of_jobs_that_wait_for_a_time() {
    for lax in [Lax::spec, Lax::redis, Lax::postgres, Lax::amqp] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), FILE).await;
        let later = later();
        let shown = async |depth: u64| {
            for path in ["/ojs/v1/queues/q/stats", "/ojs/v1/admin/queues/q"] {
                let reply = client.get(path).await;
                if reply.status == 404 {
                    continue;
                }
                let stats = reply.json()["stats"].clone();
                assert_eq!(stats["depth"], depth, "{name}: {path}");
                let pressure = (depth as f64 / 3.0 * 1e4).round() / 1e4;
                assert_eq!(stats["pressure"].as_f64(), Some(pressure), "{name}: {path}");
            }
        };
        for depth in 1..=3 {
            client.enqueue(later.clone()).await;
            shown(depth).await;
        }
        assert_eq!(full(&client.offer("q").await, "q", 3)["depth"], 3, "{name}");
        if lax().counts_all && lax().admin_queues {
            sleep(Duration::from_secs(63)).await;
            fetch_around(&pair.behind.backend, 2).await;
            sleep(Duration::from_millis(150)).await;
            shown(1).await;
        }
        pair.stop().await;
    }
}

/// Bytes and their bound stand beside the depth, and `pressure` is that of the nearest bound.
#[tokio::test(start_paused = true)]
async fn statistics_tell_bytes() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let size = job("q").to_string().len() as u64;
    let stats = async || client.get("/ojs/v1/queues/q/stats").await.json()["stats"].clone();
    let both = json!({"max_depth": 100, "max_size_bytes": 4 * size});
    client.bound("q", both).await;
    client.fill("q", 3).await;
    let expected = json!({
        "queue": "q", "depth": 3, "bound": 100, "max_depth": 100,
        "bytes": 3 * size, "max_size_bytes": 4 * size, "pressure": 0.75,
    });
    assert_eq!(stats().await, expected);
    client.bound("q", json!({"max_size_bytes": 6 * size})).await;
    let expected = json!({
        "queue": "q", "depth": 3, "bytes": 3 * size, "max_size_bytes": 6 * size, "pressure": 0.5,
    });
    assert_eq!(stats().await, expected);
    // What leaves behind our back is found out, although nobody enqueues.
    fetch_around(&pair.behind.backend, 3).await;
    sleep(Duration::from_millis(150)).await;
    assert_eq!(stats().await["pressure"], 0);
}

/// `Retry-After` follows the drain.
#[tokio::test(start_paused = true)]
async fn when_to_come_back_is_measured() {
    for (per_second, batch) in [(1.0, 8), (10.0, 50)] {
        let config = "[[queue]]\nname = \"q\"\nmax_depth = 60\n";
        let (pair, client) = simulated(Lax::spec(), config).await;
        client.fill("q", 60).await;
        let gap = Duration::from_secs_f64(1.0 / per_second);
        let mut drained = 0;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(12) {
            sleep(gap).await;
            drained += client.fetch("q", 1).await.len();
            client.offer("q").await;
        }
        assert!(drained > 10);
        let queues = vec!["q"; batch];
        let reply = client.offer_all(&queues).await;
        assert_eq!(reply.status, 429, "{}", reply.text());
        let told = &reply.json()["error"]["details"]["drain_per_second"];
        let told = told.as_f64().unwrap();
        let off = (told / per_second - 1.0).abs();
        assert!(off < 0.25, "{told}/s of {per_second}/s");
        let truth = batch as f64 / per_second;
        let after = number(&reply, "retry-after");
        let about = (truth * 0.75).floor()..=truth * 1.25 * 1.25 + 1.0;
        assert!(about.contains(&after), "{after}");
        pair.stop().await;
    }
}

/// Any number of producers at once: never over the bound, and never below it while jobs are offered.
#[tokio::test(start_paused = true)]
async fn exact_for_any_number_of_producers() {
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 50\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    let mut producers = JoinSet::new();
    for _ in 0..16 {
        let client = client.clone();
        producers.spawn(async move {
            let mut stored = 0;
            for _ in 0..20 {
                let reply = client.offer("q").await;
                assert!([201, 429].contains(&reply.status), "{}", reply.text());
                stored += u64::from(reply.status == 201);
                sleep(Duration::from_millis(1)).await;
            }
            stored
        });
    }
    let stored: u64 = producers.join_all().await.into_iter().sum();
    assert_eq!((stored, waiting(&pair.behind.backend, "q").await), (50, 50));
}

/// A backend without statistics that once did not answer: a full queue is full, not away.
#[tokio::test(start_paused = true)]
async fn a_look_that_failed_is_no_answer_for_ever() {
    let down = Arc::new(AtomicBool::new(false));
    let now = down.clone();
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned()),
        _ if now.load(Ordering::SeqCst) => (503, "".to_owned()),
        _ => (404, "404 page not found".to_owned()),
    };
    let (backend, _sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    assert_eq!(client.offer("q").await.status, 201);
    // One look fails, which nobody waits for.
    down.store(true, Ordering::SeqCst);
    sleep(Duration::from_secs(40)).await;
    let looks = backend.asked(Method::GET, "/queues/q");
    client.fill("q", 1).await;
    sleep(Duration::from_millis(20)).await;
    assert!(backend.asked(Method::GET, "/queues/q") > looks);
    down.store(false, Ordering::SeqCst);
    client.fill("q", 1).await;
    full(&client.offer("q").await, "q", 3);
}

/// What a backend that is away cannot change is refused for what it is.
#[tokio::test(start_paused = true)]
async fn what_can_never_fit_is_no_matter_of_the_backend() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 1).await;
    pair.behind.stop().await;
    sleep(Duration::from_millis(150)).await;
    assert_eq!(client.offer_all(&["q"; 3]).await.status, 502);
    let error = full(&client.offer_all(&["q"; 4]).await, "q", 3);
    assert_eq!(error["retryable"], false);
    pair.sidecar.stop().await;
}

/// On a backend that does not tell what is scheduled, a job that was cancelled before its time counts no more.
#[tokio::test(start_paused = true)]
async fn what_was_cancelled_before_its_time_is_gone() {
    let job = |id: &str, state: &str| {
        let job = json!({
            "id": id, "type": "t.x", "queue": "q", "state": state,
            "scheduled_at": "2026-02-02T04:00:00Z",
        });
        json!({ "job": job }).to_string()
    };
    let enqueued = AtomicU64::new(0);
    let answers = move |method: &Method, path: &str| match path.contains("/queues/") {
        true => (
            200,
            r#"{"counts":{"available":0,"scheduled":0}}"#.to_owned(),
        ),
        false if *method == Method::DELETE => {
            let id = path.rsplit('/').next().unwrap();
            (200, job(id, "cancelled"))
        }
        false if *method == Method::POST => {
            let id = enqueued.fetch_add(1, Ordering::SeqCst).to_string();
            (201, job(&id, "scheduled"))
        }
        false => (404, "404 page not found".to_owned()),
    };
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 2\n";
    let (_, _sidecar, client) = told(config, Duration::ZERO, answers).await;
    for _ in 0..2 {
        assert_eq!(client.offer("q").await.status, 201);
    }
    sleep(Duration::from_millis(200)).await;
    full(&client.offer("q").await, "q", 2);
    for id in ["0", "1"] {
        client.cancel(id).await;
    }
    sleep(Duration::from_millis(200)).await;
    for _ in 0..2 {
        assert_eq!(client.offer("q").await.status, 201);
    }
    full(&client.offer("q").await, "q", 2);
}

/// The statistics under `admin` tell of delayed jobs, the plain ones do not. Whatever `admin` answers for a while,
/// and to whomever: delayed jobs keep counting.
#[tokio::test(start_paused = true)]
async fn one_bad_answer_ends_no_bound() {
    for status in [500, 429, 401, 403, 404, 405] {
        let answer = if [500, 429].contains(&status) {
            502
        } else {
            429
        };
        let (there, now) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(200)));
        let (jobs, admin) = (there.clone(), now.clone());
        let answers = move |method: &Method, path: &str| match path {
            "/ojs/v1/jobs" if method == Method::POST => {
                let id = jobs.fetch_add(1, Ordering::SeqCst).to_string();
                let job = json!({"id": id, "type": "t.x", "queue": "q", "state": "scheduled",
                    "scheduled_at": "2030-02-02T04:00:00Z"});
                (201, json!({"job": job}).to_string())
            }
            "/ojs/v1/admin/queues/q" => match admin.load(Ordering::SeqCst) {
                200 => {
                    let scheduled = jobs.load(Ordering::SeqCst);
                    let counts = json!({"available": 0, "scheduled": scheduled, "retryable": 0});
                    (200, json!({ "counts": counts }).to_string())
                }
                status => (u16::try_from(status).unwrap(), "no".to_owned()),
            },
            "/ojs/v1/queues/q/stats" => (200, r#"{"queue":{"available":0,"active":0}}"#.to_owned()),
            _ => (404, "404 page not found".to_owned()),
        };
        let (backend, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
        client.fill("q", 3).await;
        sleep(Duration::from_millis(150)).await;
        full(&client.offer("q").await, "q", 3);
        now.store(status, Ordering::SeqCst);
        sleep(Duration::from_millis(150)).await;
        assert_eq!(client.offer("q").await.status, answer, "{status}");
        now.store(200, Ordering::SeqCst);
        let asked = backend.asked(Method::GET, "/admin/queues/q");
        for _ in 0..5 {
            sleep(Duration::from_millis(150)).await;
            full(&client.offer("q").await, "q", 3);
        }
        let again = backend.asked(Method::GET, "/admin/queues/q") - asked;
        let is_asked = !matches!(status, 404 | 405);
        assert_eq!(again > 0, is_asked, "{status}: {again} times");
        assert_eq!(there.load(Ordering::SeqCst), 3, "{status}");
        sidecar.stop().await;
    }
}

/// A backend that answers everything but questions about a queue's depth: the answer and the log say so, and that it
/// is over.
#[tokio::test(start_paused = true)]
async fn statistics_that_fail_are_told_of() {
    let (_guard, log) = logged();
    let failing = Arc::new(AtomicBool::new(true));
    let now = failing.clone();
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x"}}"#.to_owned()),
        _ if path.contains("/queues/") && now.load(Ordering::SeqCst) => (500, "no".to_owned()),
        _ => (200, r#"{"counts":{"available":0}}"#.to_owned()),
    };
    let (_, _sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    for _ in 0..40 {
        let reply = client.offer("q").await;
        assert_eq!(number(&reply, "retry-after"), 1.0);
        let error = reply.refuses(502, "backend_stats_failed", "");
        let message = "nothing was stored: the backend answers 500 when it is asked how many jobs wait, and the queue \
             has a bound";
        assert_eq!(error["message"], message);
        sleep(Duration::from_secs(1)).await;
    }
    warned_once(&log, "does not tell how many jobs wait");
    warned_once(&log, r#"queue="q" status=500"#);
    failing.store(false, Ordering::SeqCst);
    client.fill("q", 2).await;
    assert_eq!(log.with("tells again how many jobs wait").len(), 1);
}

/// On a backend that does not tell what is to be tried again: a job that is cancelled meanwhile counts no more, and
/// one that is retried by hand counts once.
#[tokio::test(start_paused = true)]
async fn what_was_to_be_tried_again_is_gone_when_it_is_cancelled() {
    for lax in [Lax::redis, Lax::spec] {
        let (pair, client) = simulated(lax(), FILE).await;
        let job = retried("PT3600S");
        let mut jobs = Vec::new();
        for _ in 0..3 {
            client.enqueue(job.clone()).await;
            let active = client.fetch("q", 1).await;
            client.nack(id(&active[0]), true).await;
            jobs.push(id(&active[0]).to_owned());
        }
        full(&client.offer("q").await, "q", 3);
        client.cancel(&jobs[0]).await;
        client.fill("q", 1).await;
        full(&client.offer("q").await, "q", 3);
        sleep(Duration::from_millis(200)).await;
        full(&client.offer("q").await, "q", 3);
        // Two are to be tried again, and one waits.
        let path = format!("/ojs/v1/admin/jobs/{}/retry", jobs[1]);
        assert_eq!(client.post(&path, "{}").await.status, 200);
        full(&client.offer("q").await, "q", 3);
        sleep(Duration::from_millis(200)).await;
        let error = full(&client.offer("q").await, "q", 3);
        assert_eq!(error["depth"], 3);
        // A job that runs was not waiting: cancelled, it makes no more room than its FETCH made.
        let active = client.fetch("q", 1).await;
        client.fill("q", 1).await;
        client.cancel(id(&active[0])).await;
        full(&client.offer("q").await, "q", 3);
        // One that had ended waits again.
        client.fetch("q", 1).await;
        let path = format!("/ojs/v1/admin/jobs/{}/retry", jobs[0]);
        assert_eq!(client.post(&path, "{}").await.status, 200);
        full(&client.offer("q").await, "q", 3);
        sleep(Duration::from_millis(200)).await;
        full(&client.offer("q").await, "q", 3);
        pair.stop().await;
    }
}

/// A job that failed and was tried again, or may be, counts once, on backends that tell how many wait for that and on
/// those that do not; and nobody hears that a backend hides what it tells.
#[tokio::test(start_paused = true)]
async fn what_is_tried_again_counts_once() {
    let held = "[[policy]]\nname = \"p\"\nkey = \"p:{type}\"\nconcurrency = 9\n";
    for (lax, limits) in [(Lax::spec(), ""), (Lax::redis(), ""), (Lax::redis(), held)] {
        let (_guard, log) = logged();
        let tells = lax.name == Lax::spec().name;
        let bound = if tells { 2 } else { 3 };
        let file = format!("[[queue]]\nname = \"q\"\nmax_depth = {bound}\n");
        let net = Net::Sim(sim::Network::default());
        let behind = crate::sidecar::simulated::backend(&net, lax.clone()).await;
        // Their clocks agree.
        let made = directly(&behind.backend, "/ojs/v1/jobs", job("other")).await;
        let now = moment(made["job"]["created_at"].as_str().unwrap()).unwrap();
        let store = Arc::new(MemoryStore::new(now));
        let start = Start::before(&net, &behind.base(), &format!("{file}{limits}"));
        let sidecar = start.store(store).start().await;
        let client = sidecar.client();
        let fails = async |wait: &str| {
            client.enqueue(retried(wait)).await;
            let active = client.fetch("q", 1).await;
            client.nack(id(&active[0]), true).await;
        };
        if !tells {
            // One is seen to be left out.
            fails("PT60S").await;
            sleep(Duration::from_millis(200)).await;
            client.fill("q", 1).await;
            assert_eq!(client.fetch("q", 1).await.len(), 1);
            sleep(Duration::from_millis(200)).await;
        }
        fails("PT0.1S").await;
        // Some backends make it available a second late.
        sleep(Duration::from_millis(1_300)).await;
        assert_eq!(client.fetch("q", 1).await.len(), 1);
        client.fill("q", 2).await;
        full(&client.offer("q").await, "q", bound);
        assert_eq!(client.fetch("q", 2).await.len(), 2);
        if tells {
            sleep(Duration::from_millis(2_000)).await;
            fails("PT0.1S").await;
            sleep(Duration::from_millis(1_300)).await;
            // It waits, and nobody has it.
            client.fill("q", 1).await;
            full(&client.offer("q").await, "q", 2);
            assert_eq!(log.with("scheduled or to be tried again"), [""; 0]);
        }
        sidecar.stop().await;
    }
}

/// On a backend that tells nothing of a queue: a job that is retried by hand waits again, though nobody is there any
/// more to hear it.
#[tokio::test(start_paused = true)]
async fn a_retry_by_hand_counts_although_its_client_hangs_up() {
    let answers = |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned()),
        "/ojs/v1/admin/jobs/ended/retry" => {
            let job = json!({"id": "ended", "queue": "q", "state": "available"});
            (200, json!({ "job": job }).to_string())
        }
        _ => (404, "404 page not found".to_owned()),
    };
    let slow = Duration::from_secs(1);
    let (backend, _sidecar, client) = told(FILE, slow, answers).await;
    client.fill("q", 2).await;
    let path = "/ojs/v1/admin/jobs/ended/retry";
    let hung_up = timeout(slow / 2, client.post(path, "{}")).await;
    assert!(hung_up.is_err());
    sleep(slow).await;
    assert_eq!(backend.bodies(path).len(), 1);
    full(&client.offer("q").await, "q", 3);
}

/// And if the backend fails when it is asked after that, it is asked again before an enqueue is let in.
#[tokio::test(start_paused = true)]
async fn a_retry_of_many_is_counted_although_the_backend_failed_to_tell() {
    let path = "/ojs/v1/admin/jobs/bulk/retry";
    let (waiting, fails) = (
        Arc::new(AtomicU64::default()),
        Arc::new(AtomicBool::default()),
    );
    let (jobs, no) = (Arc::clone(&waiting), Arc::clone(&fails));
    let answers = move |_: &Method, asked: &str| match asked {
        "/ojs/v1/jobs" => {
            jobs.fetch_add(1, Ordering::SeqCst);
            (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned())
        }
        _ if asked == path => {
            jobs.fetch_add(5, Ordering::SeqCst);
            (200, json!({"matched": 5, "succeeded": 5}).to_string())
        }
        _ if no.load(Ordering::SeqCst) => (503, "".to_owned()),
        _ => {
            let available = jobs.load(Ordering::SeqCst);
            (200, json!({"counts": {"available": available}}).to_string())
        }
    };
    let (_, _sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    client.fill("q", 1).await;
    assert_eq!(client.post(path, "{}").await.status, 200);
    fails.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(client.offer("q").await.status, 502);
        sleep(Duration::from_millis(60)).await;
    }
    fails.store(false, Ordering::SeqCst);
    sleep(Duration::from_millis(110)).await;
    assert_eq!(full(&client.offer("q").await, "q", 3)["depth"], 6);
    assert_eq!(waiting.load(Ordering::SeqCst), 6);
}

/// A retry of all that has failed does not say what waits again, and where: the next enqueue finds out.
#[tokio::test(start_paused = true)]
async fn a_retry_of_many_is_counted_before_the_next_enqueue() {
    for path in [
        "/ojs/v1/admin/jobs/bulk/retry",
        "/ojs/v1/admin/dead-letter/retry",
    ] {
        let waiting = AtomicU64::new(0);
        let answers = move |_: &Method, asked: &str| match asked {
            "/ojs/v1/jobs" => {
                waiting.fetch_add(1, Ordering::SeqCst);
                (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned())
            }
            _ if asked == path => {
                waiting.fetch_add(5, Ordering::SeqCst);
                (200, json!({"matched": 5, "succeeded": 5}).to_string())
            }
            _ => {
                let available = waiting.load(Ordering::SeqCst);
                (200, json!({"counts": {"available": available}}).to_string())
            }
        };
        let (_, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
        client.fill("q", 1).await;
        assert_eq!(client.post(path, "{}").await.status, 200);
        let error = full(&client.offer("q").await, "q", 3);
        assert_eq!(error["depth"], 6, "{path}");
        sidecar.stop().await;
    }
}

/// What the backend refuses to tell one says nothing to others, and is no look.
#[tokio::test(start_paused = true)]
async fn a_stranger_makes_no_depth_stale() {
    let depth = Arc::new(AtomicU64::new(2));
    let backends = Arc::clone(&depth);
    let says = move |head: &http::request::Parts| {
        let sent = head.headers.get(http::header::AUTHORIZATION);
        let is_known = sent.is_some_and(|sent| sent == "Bearer a");
        let (status, body) = match head.uri.path() {
            _ if !is_known => (401, json!({"error": {"code": "unauthorized"}})),
            "/ojs/v1/jobs" => (201, json!({"job": {"id": "new"}})),
            _ => {
                let available = backends.load(Ordering::SeqCst);
                (200, json!({"counts": {"available": available}}))
            }
        };
        (status, body.to_string().into())
    };
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 2\n";
    let (_backend, _sidecar, client) =
        crate::sidecar::answering::answering_by(Duration::ZERO, config, says).await;
    let offer = async |login: &str| client.with("authorization", login).offer("q").await.status;
    assert_eq!(offer("Bearer a").await, 429);
    depth.store(0, Ordering::SeqCst);
    let flood = async {
        loop {
            offer("Bearer x").await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    let tries = async {
        for _ in 0..20 {
            sleep(Duration::from_millis(105)).await;
            if offer("Bearer a").await == 201 {
                return true;
            }
        }
        false
    };
    let is_stored = tokio::select! { stored = tries => stored, () = flood => false };
    assert!(is_stored, "the queue has room");
}

/// A workflow stores its jobs at once, and none of them passed as an enqueue.
#[tokio::test(start_paused = true)]
async fn what_a_workflow_stored_counts_for_the_next_enqueue() {
    let depth = Arc::new(AtomicU64::new(0));
    let backends = Arc::clone(&depth);
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/workflows" => {
            backends.store(10, Ordering::SeqCst);
            (201, r#"{"workflow":{"id":"w"}}"#.to_owned())
        }
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"new"}}"#.to_owned()),
        _ => {
            let available = backends.load(Ordering::SeqCst);
            (200, json!({"counts": {"available": available}}).to_string())
        }
    };
    let config = "[[queue]]\nname = \"q\"\nmax_depth = 10\n";
    let (_backend, _sidecar, client) = told(config, Duration::ZERO, answers).await;
    assert_eq!(client.offer("q").await.status, 201);
    let step = json!({"name": "one", "type": "t", "args": [], "options": {"queue": "q"}});
    let workflow = json!({"name": "w", "type": "group", "jobs": vec![step; 10]});
    let stored = client.post("/ojs/v1/workflows", workflow.to_string()).await;
    assert_eq!(stored.status, 201, "{}", stored.text());
    assert_eq!(client.offer("q").await.status, 429);
}
