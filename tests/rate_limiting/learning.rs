//! What is learnt of the backend before the first limited FETCH, and from one that has its troubles.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use http::request::Parts;
use http::{Request, Response};

use super::prelude::*;
use super::upstream::answering_after;
use crate::harness::lines::Lines;
use crate::sidecar::answering::{Answering, Answers, answering_by, bind, serve};

/// No jobs, in a list or for a FETCH.
const NONE: (&str, &str) = ("200", r#"{"jobs":[],"items":[]}"#);
const LIMITS: &str = "[[policy]]\nname = 'p'\nkey = 'k'\nconcurrency = 1";

/// A sidecar before a backend that gives these answers in turn, the last one again and again, and what
/// that was asked. Without answers it gives none.
async fn before(
    answers: &'static [(&'static str, &'static str)],
) -> (Net, Sidecar, Arc<Mutex<Vec<String>>>) {
    let net = Net::Sim(sim::Network::default());
    let (mut listener, base) = bind(&net).await;
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let heard = Arc::clone(&asked);
    tokio::spawn(async move {
        let last = answers.last();
        let answers = Arc::new(Mutex::new(answers.iter()));
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answers, heard) = (Arc::clone(&answers), Arc::clone(&heard));
            tokio::spawn(async move {
                let mut room = [0; 4096];
                while let Ok(read @ 1..) = stream.read(&mut room).await {
                    let text = String::from_utf8_lossy(&room[..read]).into_owned();
                    heard.lock().unwrap().push(text);
                    let next = answers.lock().unwrap().next().or(last);
                    let Some((status, body)) = next else {
                        continue;
                    };
                    let length = body.len();
                    let reply = format!(
                        "HTTP/1.1 {status} S\r\nOJS-Version: 1.0\r\nContent-Length: {length}\r\n\r\n{body}"
                    );
                    stream.write_all(reply.as_bytes()).await.unwrap();
                }
            });
        }
    });
    let sidecar = Start::before(&net, &base, LIMITS).start().await;
    (net, sidecar, asked)
}

/// How many lists of running jobs were asked for.
fn lists(asked: &Mutex<Vec<String>>) -> usize {
    let of_list = |text: &&String| text.starts_with("GET /ojs/v1/admin/jobs?state=active");
    asked.lock().unwrap().iter().filter(of_list).count()
}

async fn fetch(client: &Client) -> u16 {
    let body = r#"{"queues":["q"],"worker_id":"w"}"#.to_owned();
    let reply = client.post("/ojs/v1/workers/fetch", body).await;
    reply.status
}

#[tokio::test(start_paused = true)]
async fn who_waits_while_learning_fails_does_not_wait_once_more() {
    let (net, sidecar, _) = before(&[]).await;
    let begun = Instant::now();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let client = Client::new(&net, sidecar.addr);
            tokio::spawn(async move { fetch(&client).await })
        })
        .collect();
    for fetching in waiting {
        assert_eq!(fetching.await.unwrap(), 504);
    }
    // The first try is the start's own; then all have one together.
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(7), "{waited:?}");
}

/// One that takes long for everything is not asked for ever in a time that is too short for it.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_slow_to_say_what_it_is_is_heard_in_the_end() {
    for (slow, late) in [(3, 0), (12, 2)] {
        let slow = Duration::from_secs(slow);
        let (_backend, sidecar, client) = answering_after(slow, 200, NONE.1, LIMITS).await;
        for _ in 0..late {
            assert_eq!(fetch(&client).await, 504);
        }
        assert_eq!(fetch(&client).await, 200, "{slow:?}");
        sidecar.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_of_running_jobs_that_fails_once_is_asked_for_again() {
    for (status, times) in [("503", 2), ("429", 2), ("408", 2), ("404", 1)] {
        let answers = Box::leak(Box::new([("200", "{}"), (status, ""), NONE]));
        let (net, sidecar, asked) = before(answers).await;
        let fetched = fetch(&Client::new(&net, sidecar.addr)).await;
        assert_eq!(fetched, 200);
        assert_eq!(lists(&asked), times, "{status}");
        sidecar.stop().await;
    }
}

const LITE: (&str, &str) = ("200", r#"{"implementation":{"name":"ojs-backend-lite"}}"#);

/// How often this one was asked what it is.
fn manifests(backend: &Answering) -> usize {
    let asked = backend.requests().into_iter();
    let of_manifest = asked.filter(|(head, _)| head.uri.path() == "/ojs/manifest");
    of_manifest.count()
}

/// What stands before a backend says that it is not the time: that is no word of what the backend is.
#[tokio::test(start_paused = true)]
async fn a_manifest_that_does_not_come_for_now_is_asked_for_again() {
    for status in [503, 429, 408] {
        let (lines, _logged) = Lines::listen();
        let was_asked = AtomicBool::default();
        let says = move |head: &Parts| match head.uri.path() {
            "/ojs/manifest" if !was_asked.swap(true, Relaxed) => (status, Bytes::new()),
            "/ojs/manifest" => (200, LITE.1.into()),
            _ => (200, NONE.1.into()),
        };
        let (backend, sidecar, client) = answering_by(Duration::ZERO, LIMITS, says).await;
        assert_eq!(fetch(&client).await, 200);
        assert_eq!(manifests(&backend), 2, "{status}");
        assert_eq!(lines.with("id=liveness_unknown"), [""; 0], "{status}");
        sidecar.stop().await;
    }
}

/// A refusal holds nobody up: it is told what helps, and asked again now and then until a manifest was read.
#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_refused_is_told_and_read_later() {
    for status in [401, 403] {
        let (lines, _logged) = Lines::listen();
        let is_open = Arc::<AtomicBool>::default();
        let opened = Arc::clone(&is_open);
        let says = move |head: &Parts| match head.uri.path() {
            "/ojs/manifest" if !opened.load(Relaxed) => (status, Bytes::new()),
            "/ojs/manifest" => (200, LITE.1.into()),
            _ => (200, NONE.1.into()),
        };
        let (backend, sidecar, client) = answering_by(Duration::ZERO, LIMITS, says).await;
        assert_eq!(fetch(&client).await, 200);
        sleep(Duration::from_secs(200)).await;
        let asked = manifests(&backend);
        assert!((2..10).contains(&asked), "{asked}");
        is_open.store(true, Relaxed);
        sleep(Duration::from_secs(200)).await;
        assert_eq!(manifests(&backend), asked + 1);
        let told = lines.with("id=manifest_refused").join("\n");
        let says = format!("status={status}");
        assert!(
            told.contains(&says) && told.contains("upstream.token"),
            "{told}"
        );
        assert!(lines.with("id=liveness_unknown").is_empty());
        sidecar.stop().await;
    }
}

const BEATEN: (&str, &str) = ("200", r#"{"jobs_extended":["j"]}"#);

/// Where claims last from their start, the first heartbeat after a restart does not shorten one.
#[tokio::test(start_paused = true)]
async fn a_job_that_ran_before_is_as_old_as_the_backend_says() {
    // A minute by the store's clock, and since when no job can run.
    for (started, lasts) in [
        ("2026-02-02T02:39:00Z", "65000"),
        ("2026-02-02T03:39:00Z", "5000"),
        ("0001-01-01T00:00:00Z", "5000"),
    ] {
        let job = json!({"id": "j", "type": "t", "state": "active", "started_at": started});
        let list = json!({"items": [job]}).to_string().leak();
        let answers = Box::leak(Box::new([LITE, ("200", list), BEATEN]));
        let (net, sidecar, asked) = before(answers).await;
        let beat = json!({"worker_id": "w", "active_jobs": ["j"], "visibility_timeout_ms": 5_000});
        let client = Client::new(&net, sidecar.addr);
        let path = "/ojs/v1/workers/heartbeat";
        assert_eq!(client.post(path, beat.to_string()).await.status, 200);
        let asked = asked.lock().unwrap().concat();
        let (_, last) = asked.rsplit_once("visibility_timeout_ms\":").unwrap();
        assert!(last.starts_with(lasts), "{lasts}: {asked}");
        sidecar.stop().await;
    }
}

/// Jobs slip from one page to another between two questions, and some backends order each page anew.
#[tokio::test(start_paused = true)]
async fn a_long_list_of_running_jobs_is_read_until_it_brings_nothing_new() {
    let page = |from: usize, to: usize| {
        let job =
            |nth| json!({"id": format!("j{nth}"), "type": "t", "queue": "q", "state": "active"});
        json!({"items": (from..to).map(job).collect::<Vec<_>>()}).to_string()
    };
    // At first one of page 2 has slipped onto page 1, which was read.
    let pages = [page(0, 100), page(101, 120), page(1, 101), page(101, 120)];
    let pages = pages.map(|page| ("200", &*page.leak()));
    let answers = [[("200", "{}")].as_slice(), &pages, &pages[2..], &[NONE]].concat();
    let (net, sidecar, asked) = before(Box::leak(answers.into_boxed_slice())).await;
    assert_eq!(fetch(&Client::new(&net, sidecar.addr)).await, 200);
    assert_eq!(lists(&asked), 6, "the third reading brings nothing");
    let taken = sidecar.client().inspect("k").await;
    assert_eq!(taken["active"], 120, "{taken}");
}

/// Some backends read every job that they have for this list.
#[tokio::test(start_paused = true)]
async fn a_list_of_running_jobs_that_takes_long_is_waited_for() {
    for (slow, late) in [(3, false), (7, false), (20, true)] {
        let (lines, _logged) = Lines::listen();
        let answers = move |request: Request<Bytes>| async move {
            Response::new(Bytes::from(match request.uri().path() {
                "/ojs/manifest" => LITE.1.to_owned(),
                "/ojs/v1/admin/jobs" => {
                    sleep(Duration::from_secs(slow)).await;
                    let job = json!({"id": "j", "type": "t", "queue": "q", "state": "active"});
                    json!({"items": [job]}).to_string()
                }
                _ => NONE.1.to_owned(),
            }))
        };
        let answers: Arc<Answers> = Arc::new(move |request| Box::pin(answers(request)));
        let net = Net::Sim(sim::Network::default());
        let (listener, base) = bind(&net).await;
        tokio::spawn(serve(listener, answers));
        let sidecar = Start::before(&net, &base, LIMITS).start().await;
        assert_eq!(fetch(&sidecar.client()).await, 200);
        let (admin, of_adopted) = (sidecar.admin(), "ojs_throttle_slots_adopted_total");
        let adopted = admin.metric(of_adopted).await.unwrap_or_default();
        assert_eq!(adopted, if late { 0.0 } else { 1.0 }, "{slow} s");
        let told = lines.with("id=active_missing").join("\n");
        assert_eq!(
            told.contains("did not answer within"),
            late,
            "{slow} s: {told}"
        );
        sidecar.stop().await;
    }
}

/// A page may have fewer jobs than were asked for, and be followed by others all the same.
#[tokio::test(start_paused = true)]
async fn a_list_of_running_jobs_ends_with_the_total_that_it_tells() {
    let says = |head: &Parts| {
        let asked = head.uri.query().unwrap_or_default().split('&');
        let page = asked.filter_map(|one| one.strip_prefix("page=")).next();
        let Some(page) = page.map(|page| page.parse::<usize>().unwrap()) else {
            return (200, NONE.1.into());
        };
        let job =
            |nth| json!({"id": format!("j{nth}"), "type": "t", "queue": "q", "state": "active"});
        let items: Vec<_> = (page * 50 - 50..120.min(page * 50)).map(job).collect();
        let pagination = json!({"total": 120, "page": page, "per_page": 50});
        let list = json!({"items": items, "pagination": pagination});
        (200, list.to_string().into())
    };
    let (_backend, _sidecar, client) = answering_by(Duration::ZERO, LIMITS, says).await;
    assert_eq!(fetch(&client).await, 200);
    let taken = client.inspect("k").await;
    assert_eq!(taken["active"], 120, "{taken}");
}

/// Some backends keep each worker id for ever.
#[tokio::test(start_paused = true)]
async fn claims_that_bring_nothing_use_one_worker_id() {
    let limits = format!("[upstream]\nliveness = \"worker\"\n{LIMITS}");
    let (backend, _sidecar, client) = answering_after(Duration::ZERO, 200, NONE.1, &limits).await;
    for _ in 0..5 {
        assert_eq!(fetch(&client).await, 200);
        sleep(Duration::from_secs(2)).await;
    }
    let fetches = backend.requests().into_iter();
    let fetches = fetches.filter(|(head, _)| head.uri.path() == "/ojs/v1/workers/fetch");
    let ids: Vec<Value> = fetches
        .map(|(_, body)| serde_json::from_slice::<Value>(&body).unwrap()["worker_id"].clone())
        .collect();
    assert!(ids.len() >= 5, "{ids:?}");
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}
