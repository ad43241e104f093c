//! 8.1.2 and RL-004 past a deep backlog: what may start does, in its queue and in others, and the hold stays
//! within its bounds. And what an answer without jobs says of it.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use http::request::Parts;

use ojs_throttle::config::{Colours, CommandLine, check};

use super::prelude::*;
use crate::sidecar::answering::answering_by;

/// Some queues, a key for each `t`, one job of a key at a time.
const ONE: &str = "[[policy]]\nname = \"s\"\nmatch = { queue = [\"slots\", \"other*\"] }\n\
                   key = \"s:{meta.t}\"\nconcurrency = 1\n";

fn job(queue: &str, t: &str) -> String {
    json!({"type": "t", "args": [], "meta": {"t": t}, "options": {"queue": queue}}).to_string()
}

/// The keys of the jobs that came.
fn keys(jobs: &[Value]) -> Vec<&str> {
    let each = jobs.iter().map(|job| job["meta"]["t"].as_str().unwrap());
    each.collect()
}

impl Rig {
    /// How many jobs are claimed now: held, or out with workers.
    fn claimed(&self) -> usize {
        self.count(EventKind::Claimed) - self.count(EventKind::Acked)
    }

    async fn asked(&self, body: Value) -> Reply {
        let path = "/ojs/v1/workers/fetch";
        let reply = self.client.post(path, body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
    }

    /// As many of the first queue's backlog are held as ever will be.
    async fn fill(&self, queue: &str) {
        for _ in 0..40 {
            let before = self.count(EventKind::Claimed);
            self.client.fetch(queue, 2).await;
            if before > 0 && self.count(EventKind::Claimed) == before {
                return;
            }
        }
        panic!("there is no end of what is claimed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backlog_holds_up_no_other_queue() {
    for (hold, most) in [("[hold]\nmax = 32\n", 40), ("[hold]\nmax = 2\n", 3)] {
        let rig = Rig::with(&format!("{hold}{ONE}")).await;
        rig.enqueue(&job("slots", "A"), 200).await;
        rig.fill("slots").await;
        // A queue that nothing has used yet.
        for t in ["B", "C"] {
            rig.enqueue(&job("other", t), 1).await;
        }
        let both = json!({"queues": ["slots", "other"], "count": 1, "worker_id": "w"});
        for t in ["B", "C"] {
            let came = rig.client.fetch_as(both.clone()).await;
            assert_eq!(keys(&came), [t], "{most}");
        }
        // Three are out.
        assert!(rig.claimed() <= most + 3, "{} of {most}", rig.claimed());
    }
}

/// What `check` says of a key for each tenant is how far a FETCH sees.
#[tokio::test(start_paused = true)]
async fn behind_as_many_as_check_says_all_others_wait() {
    let config = format!("[hold]\nmax = 40\n{ONE}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let whole = format!("[server]\nupstream = \"http://ojs\"\n{config}");
    std::fs::write(&file, whole).unwrap();
    let said = check(file.path(), &CommandLine::default(), Colours::None).text;
    let line = "s: jobs of queue slots or other*: 1 at once, a key for each s:{meta.t}, behind ";
    let behind = said.split_once(line).unwrap_or_else(|| panic!("{said}")).1;
    let (most, words) = behind.split_once(' ').unwrap();
    let all_wait = words.starts_with("held jobs of one key all others wait\n");
    assert!(all_wait, "{said}");
    let most: usize = most.parse().unwrap();
    for (held, is_seen) in [(most - 1, true), (most, false)] {
        let rig = Rig::with(&config).await;
        // One of them starts.
        rig.enqueue(&job("slots", "A"), 1 + held).await;
        rig.enqueue(&job("slots", "B"), 1).await;
        let mut came = Vec::new();
        for _ in 0..most {
            came.extend(rig.client.fetch("slots", 2).await);
        }
        let keys = keys(&came);
        assert_eq!(keys.contains(&"B"), is_seen, "{held}: {keys:?}");
    }
}

/// Each queue has a job of the full key in front.
#[tokio::test(start_paused = true)]
async fn several_backlogs_hold_up_no_other_queue() {
    let rig = Rig::with(&format!("[hold]\nmax = 32\n{ONE}")).await;
    rig.enqueue(&job("slots", "A"), 200).await;
    rig.fill("slots").await;
    for nth in 1..=5 {
        let queue = format!("other{nth}");
        if nth <= 2 {
            rig.enqueue(&job(&queue, "A"), 1).await;
        }
        rig.enqueue(&job(&queue, &queue), 1).await;
        rig.enqueue(&job(&queue, "A"), 20).await;
        assert_eq!(keys(&rig.client.fetch(&queue, 1).await), [queue.as_str()]);
        rig.fill(&queue).await;
    }
    assert!(rig.claimed() <= 40 + 6, "{}", rig.claimed());
}

#[tokio::test(start_paused = true)]
async fn a_backlog_of_large_jobs_holds_up_no_other_queue() {
    let rig = Rig::with(&format!("[hold]\nmax = 1000\nmax_bytes = \"1MiB\"\n{ONE}")).await;
    let args = json!(["x".repeat(64 << 10)]);
    let large =
        json!({"type": "t", "args": args, "meta": {"t": "A"}, "options": {"queue": "slots"}});
    rig.client.enqueue_all(30, &large).await;
    rig.fill("slots").await;
    rig.enqueue(&job("other", "B"), 1).await;
    assert_eq!(keys(&rig.client.fetch("other", 1).await), ["B"]);
    let bytes = rig.metric("ojs_throttle_held_bytes").await.unwrap();
    assert!(bytes <= f64::from(5 << 18), "{bytes}");
}

impl Rig {
    /// Queues whose worker took a job, left another in the hold, and never came again.
    async fn forsaken(&self, queues: std::ops::Range<usize>) {
        for nth in queues {
            let queue = format!("other{nth}");
            self.enqueue(&job(&queue, &queue), 2).await;
            assert_eq!(self.client.fetch(&queue, 2).await.len(), 1);
        }
    }
}

/// Where a claim counts as an attempt, nothing is given back: what no worker asks for is kept while nobody needs its
/// places, and lapses when somebody does.
#[tokio::test(start_paused = true)]
async fn what_nobody_asks_for_lapses_where_others_need_its_places() {
    let rig = Rig::with(&format!("[hold]\nmax = 32\n{ONE}")).await;
    rig.forsaken(0..40).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(rig.metric("ojs_throttle_held_jobs").await, Some(40.0));
    assert_eq!(rig.metric("ojs_throttle_hold_lost_total").await, Some(0.0));
    rig.enqueue(&job("slots", "B"), 1).await;
    let mut waited = 0;
    while rig.client.fetch("slots", 1).await.is_empty() {
        waited += 1;
        assert!(waited < 40, "it found no place");
        sleep(Duration::from_secs(1)).await;
    }
    let lost = rig.metric("ojs_throttle_hold_lost_total").await.unwrap();
    assert!((1.0..=40.0).contains(&lost), "{lost}");
}

/// A FETCH that waits for a tenant's slot asks the backend for others four times a second. What comes to a subqueue
/// does not wait for that.
#[tokio::test(start_paused = true)]
async fn who_waits_has_at_once_what_comes_to_a_subqueue() {
    let config = format!("{ONE}[[queue]]\nname = \"slots\"\nsubqueues = true\n");
    let rig = Rig::with(&config).await;
    rig.enqueue(&job("slots", "A"), 3).await;
    assert_eq!(keys(&rig.client.fetch("slots", 1).await), ["A"]);
    let came = async {
        let jobs = rig.client.fetch("slots", 1).await;
        (jobs, Instant::now())
    };
    let comes = async {
        sleep(Duration::from_millis(300)).await;
        rig.enqueue(&job("slots", "B"), 1).await;
        Instant::now()
    };
    let ((jobs, came), stored) = tokio::join!(came, comes);
    assert_eq!(keys(&jobs), ["B"]);
    let waited = came.saturating_duration_since(stored);
    assert!(waited < Duration::from_millis(50), "{waited:?}");
}

/// A worker that says `batch_size` only (Ruby) gets what one that says `count` gets, from a backend that
/// does not know that name.
#[tokio::test(start_paused = true)]
async fn a_batch_size_looks_as_far_as_a_count() {
    for name in ["batch_size", "count"] {
        let rig = Rig::with(ONE).await;
        rig.enqueue(&job("slots", "A"), 8).await;
        rig.enqueue(&job("slots", "B"), 1).await;
        let jobs = rig.client.fetch_as(json!({"queues": ["slots"], name: 5}));
        assert_eq!(keys(&jobs.await), ["A", "B"], "{name}");
    }
}

/// Nobody knew that jobs of this queue bring limits. While their key is full the hold takes in as many as of any
/// other queue, however often a FETCH looks that waits for a limited one.
#[tokio::test(start_paused = true)]
async fn jobs_that_bring_limits_unheard_of_stay_within_the_hold() {
    let rig = Rig::with("[hold]\nmax = 32\n[[queue]]\nname = \"slots\"\nconcurrency = 1\n").await;
    let around = Client::new(&rig.client.net, rig.behind.addr);
    let own = json!({"ojs.rate_limit": {"key": "K", "concurrency": 1}});
    let brought = json!({"type": "t", "args": [], "meta": own, "options": {"queue": "free"}});
    around.enqueue_all(300, &brought).await;
    let both = json!({"queues": ["slots", "free"], "count": 1, "worker_id": "w"});
    assert_eq!(rig.client.fetch_as(both.clone()).await.len(), 1);
    assert!(rig.client.fetch_as(both).await.is_empty());
    // One is out.
    assert!(rig.claimed() <= 40 + 1, "{} of 40", rig.claimed());
}

/// What the answer says of limits.
fn told(reply: &Reply) -> (bool, Option<&str>) {
    assert_eq!(reply.json()["jobs"], json!([]));
    let text = |name: &str| Some(reply.headers.get(name)?.to_str().unwrap());
    let limited = text("ojs-throttle-limited");
    assert!(limited.is_none_or(|text| text == "true"));
    (limited.is_some(), text("ojs-throttle-policy"))
}

/// Which key the answer names.
fn key_told(reply: &Reply) -> Option<&str> {
    Some(reply.headers.get("ojs-throttle-key")?.to_str().unwrap())
}

/// Whoever gets nothing because of limits is told so, with a policy's name where a queue has one.
#[tokio::test(start_paused = true)]
async fn an_answer_without_jobs_says_that_it_is_us() {
    let rig = Rig::with(
        "[hold]\nmax = 1\n\
         [[queue]]\nname = \"paused\"\nconcurrency = 0\n\
         [[policy]]\nname = \"th\"\nmatch = { queue = \"const\" }\nconcurrency = 5\n\
         [[policy]]\nname = \"s\"\nmatch = { queue = [\"slots\", \"third\", \"full\"] }\n\
         key = \"s:{meta.t}\"\nconcurrency = 1\n",
    )
    .await;
    let fetch = |queue: &str| rig.asked(json!({"queues": [queue], "worker_id": "w"}));
    assert_eq!(told(&fetch("const").await), (false, None), "it is empty");
    rig.client.limit("th", json!({"concurrency": 0})).await;
    for queue in ["paused", "const", "full", "free"] {
        rig.enqueue(&job(queue, "B"), 1).await;
    }
    let (limited, policy) = (fetch("paused").await, fetch("const").await);
    assert_eq!(told(&limited), (true, Some("queue")));
    assert_eq!(key_told(&limited), Some("_queue:paused"));
    assert_eq!(told(&policy), (true, Some("th")));
    assert_eq!(key_told(&policy), Some("th"));
    rig.enqueue(&job("slots", "A"), 2).await;
    rig.enqueue(&job("third", "A"), 1).await;
    assert_eq!(rig.client.fetch("slots", 1).await.len(), 1);
    let of_slots = fetch("slots").await;
    assert_eq!(told(&of_slots), (true, Some("s")));
    assert_eq!(key_told(&of_slots), Some("s:A"));
    assert_eq!(told(&fetch("third").await), (true, Some("s")));
    // The place of the hold is taken, and the one beside it.
    let full = fetch("full").await;
    assert_eq!((told(&full), key_told(&full)), ((true, None), None));
    assert_eq!(rig.client.fetch("free", 1).await.len(), 1);
    assert_eq!(told(&fetch("free").await), (false, None));
}

/// Where several limits touch a whole queue, the one that has no room is named, whichever was written first.
#[tokio::test(start_paused = true)]
async fn the_policy_that_has_no_room_is_named() {
    const SPACED: &str = "throttle = { limit = 1, period = \"10s\" }";
    const WIDE: &str = "concurrency = 9";
    let policy = |name: &str, limit: &str| {
        format!("[[policy]]\nname = \"{name}\"\nmatch = {{ queue = \"q\" }}\n{limit}\n")
    };
    let queue = |limit: &str| format!("[[queue]]\nname = \"q\"\n{limit}\n");
    for (config, name) in [
        (policy("p", SPACED) + &queue(WIDE), "p"),
        (policy("p", WIDE) + &queue(SPACED), "queue"),
        (policy("a", WIDE) + &policy("b", SPACED), "b"),
        (policy("a", SPACED) + &policy("b", WIDE), "a"),
        // Nobody knows when a slot ends: it lets go last.
        (policy("a", SPACED) + &policy("b", "concurrency = 1"), "b"),
        (policy("a", SPACED) + &policy("b", "concurrency = 0"), "b"),
    ] {
        let rig = Rig::with(&config).await;
        rig.enqueue(&job("q", "A"), 3).await;
        rig.client.fetch("q", 1).await;
        let reply = rig.asked(json!({"queues": ["q"], "worker_id": "w"})).await;
        assert_eq!(told(&reply), (true, Some(name)), "{config}");
    }
}

/// A worker whose jobs are held for others' credentials sees an empty queue: it is us all the same.
#[tokio::test(start_paused = true)]
async fn what_others_claimed_is_said_to_be_held() {
    let rig = Rig::with(ONE).await;
    rig.enqueue(&job("slots", "A"), 3).await;
    let first = rig.client.with("authorization", "Bearer A");
    assert_eq!(first.fetch("slots", 3).await.len(), 1);
    let second = rig.client.with("authorization", "Bearer B");
    let asks = json!({"queues": ["slots"], "count": 3, "worker_id": "w"}).to_string();
    assert!(told(&second.post("/ojs/v1/workers/fetch", asks).await).0);
    let other = rig.asked(json!({"queues": ["other"], "worker_id": "w"}));
    assert_eq!(told(&other.await), (false, None));
}

/// Whoever makes up credentials is refused by the backend, and cannot make the sidecar forget those under which
/// held jobs are kept.
#[tokio::test(start_paused = true)]
async fn held_jobs_are_kept_under_their_credentials_whoever_else_asks() {
    let job = |n: usize| {
        let id = format!("0197f2c4-0000-7000-8000-00000000000{n}");
        json!({"id": id, "type": "t", "queue": "slots", "args": [], "meta": {"t": "A"}, "attempt": 1})
    };
    let jobs: Vec<Value> = (0..4).map(job).collect();
    let jobs = Bytes::from(json!({"jobs": jobs}).to_string());
    let given = Arc::<AtomicBool>::default();
    let says = move |head: &Parts| {
        let token = head.headers.get("authorization");
        match head.uri.path() {
            _ if token.is_none_or(|token| token != "Bearer good") => (401, "{}".into()),
            "/ojs/v1/workers/fetch" if !given.swap(true, Relaxed) => (200, jobs.clone()),
            _ => (200, "{}".into()),
        }
    };
    let (heard, _sidecar, client) = answering_by(Duration::ZERO, ONE, says).await;
    let fetch = async |token: &str, queue: &str| {
        let body = json!({"queues": [queue], "count": 4, "worker_id": "w"}).to_string();
        let client = client.with("authorization", token);
        client.post("/ojs/v1/workers/fetch", body).await
    };
    let got = fetch("Bearer good", "slots").await.json();
    assert_eq!(got["jobs"].as_array().unwrap().len(), 1);
    for n in 0..4_200 {
        let refused = fetch(&format!("Bearer {n}"), "other").await;
        assert_eq!(refused.status, 401);
    }
    let before = heard.requests().len();
    sleep(Duration::from_secs(11)).await;
    let requests = heard.requests();
    let of_ours = &requests[before..];
    let is_beat = |head: &Parts| head.uri.path().ends_with("/heartbeat");
    assert!(of_ours.iter().any(|(head, _)| is_beat(head)));
    // What runs in all is asked for by nobody's.
    let of_jobs = |(head, _): &&(Parts, _)| !head.uri.path().ends_with("/admin/jobs");
    for (head, _) in of_ours.iter().filter(of_jobs) {
        let token = head.headers.get("authorization");
        assert_eq!(token.unwrap(), "Bearer good", "{}", head.uri);
    }
}

/// That a job is active still says nothing of how long: a heartbeat that failed or was refused has kept no claim. Nobody
/// gets such a job once its claim is over, because a sibling may have claimed it anew. A backend without heartbeats ends no
/// claim.
#[tokio::test(start_paused = true)]
async fn a_claim_that_no_heartbeat_kept_is_over_at_its_deadline() {
    let job = |n: usize| json!({"id": format!("j{n}"), "type": "t", "queue": "slots", "args": [], "state": "active"});
    let jobs = Bytes::from(json!({"jobs": [job(0), job(1)]}).to_string());
    for (status, lost) in [
        (503, 1.0),
        (403, 1.0),
        (408, 1.0),
        (409, 1.0),
        (404, 0.0),
        (405, 0.0),
        (501, 0.0),
    ] {
        let (jobs, given) = (jobs.clone(), AtomicBool::default());
        let says = move |head: &Parts| match head.uri.path() {
            "/ojs/v1/workers/fetch" if !given.swap(true, Relaxed) => (200, jobs.clone()),
            "/ojs/v1/workers/heartbeat" => (status, Bytes::new()),
            "/ojs/v1/jobs/j1" => (200, json!({"job": job(1)}).to_string().into()),
            _ => (200, "{}".into()),
        };
        let (_, sidecar, client) = answering_by(Duration::ZERO, ONE, says).await;
        let asks = json!({"queues": ["slots"], "count": 2, "worker_id": "w", "visibility_timeout_ms": 6_000});
        assert_eq!(client.fetch_as(asks).await.len(), 1);
        let (admin, of_lost) = (sidecar.admin(), "ojs_throttle_hold_lost_total");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(admin.metric(of_lost).await, Some(0.0), "{status}");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(admin.metric(of_lost).await, Some(lost), "{status}");
        sidecar.stop().await;
    }
}

/// A worker that got all that it asked for is told when the next job may start only where that is known: those
/// behind the one that it got were not asked for since.
#[tokio::test(start_paused = true)]
async fn an_answer_with_jobs_tells_no_time_that_nobody_knows() {
    let next = |reply: &Reply| -> Option<f64> {
        let next = reply.headers.get("ojs-throttle-next")?;
        Some(next.to_str().unwrap().parse().unwrap())
    };
    let keyed = "[fetch]\nmax_wait = \"0s\"\n[[policy]]\nname = \"k\"\nkey = \"k:{meta.t}\"\n";
    for (limit, waits) in [
        ("throttle = { interval = \"2s\" }", Some(2.0)),
        ("rate = { limit = 1, period = \"2s\" }", Some(2.0)),
        ("concurrency = 1", None),
    ] {
        let rig = Rig::with(&format!("{keyed}{limit}\n")).await;
        rig.enqueue(&job("q", "A"), 6).await;
        let asks = json!({"queues": ["q"], "count": 1, "worker_id": "w"});
        for round in 0..3 {
            let given = rig.asked(asks.clone()).await;
            let jobs = given.json()["jobs"].as_array().unwrap().clone();
            assert_eq!(jobs.len(), 1, "{limit}, {round}");
            if let Some(next) = next(&given) {
                assert!((1.9..=2.1).contains(&next), "{limit}, {round}: {next}");
                assert!(waits.is_some(), "{limit}, {round}: {next}");
            }
            let none = rig.asked(asks.clone()).await;
            assert_eq!(none.json()["jobs"], json!([]), "{limit}, {round}");
            let told = next(&none);
            assert_eq!(told.map(f64::round), waits, "{limit}, {round}: {told:?}");
            rig.client.ack(id(&jobs[0])).await;
            sleep(Duration::from_millis(2_006)).await;
        }
    }
}
