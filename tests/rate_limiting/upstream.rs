//! Backends that record, and backends that fail.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use http::request::Parts;

use super::prelude::*;
use crate::sidecar::answering::{Answering, Heard, answering_as, answering_by, bind};

/// A backend that stores every job, with a sidecar before it and a client of that.
pub async fn storing(config: &str) -> (Answering, Sidecar, Client) {
    answering(201, r#"{"job":{"id":"x"}}"#, config).await
}

/// A backend that answers everything with `status` and `body`, with a sidecar before it and a client of that.
pub async fn answering(
    status: u16,
    body: impl Into<Bytes>,
    config: &str,
) -> (Answering, Sidecar, Client) {
    answering_after(Duration::ZERO, status, body, config).await
}

/// The same; it takes so long for each answer.
pub async fn answering_after(
    long: Duration,
    status: u16,
    body: impl Into<Bytes>,
    config: &str,
) -> (Answering, Sidecar, Client) {
    let body = body.into();
    answering_by(long, config, move |_| (status, body.clone())).await
}

/// What a sidecar says when its backend does `fails` with each connection.
async fn through_failing<F: Future<Output = ()> + Send + 'static>(
    fails: impl Fn(ojs_throttle::net::Stream) -> F + Send + 'static,
    path: &str,
    body: &str,
) -> Reply {
    let net = Net::Sim(sim::Network::default());
    let (mut listener, base) = bind(&net).await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(fails(stream));
        }
    });
    let sidecar = Start::before(&net, &base, "").start().await;
    let reply = sidecar.client().post(path, body.to_owned()).await;
    sidecar.stop().await;
    reply
}

const PLAIN: &str = r#"{"type":"t","args":[]}"#;
const LIMITED: &str = r#"{"type":"t","args":[],"rate_limit":{"key":"k","concurrency":1}}"#;
const BATCH: &str = r#"{"jobs":[{"type":"t","args":[],"rate_limit":{"key":"k","concurrency":1}}]}"#;
const CRON: &str = r#"{"name":"n","expression":"0 3 * * *","job_template":{"type":"t","args":[]}}"#;
const WORKFLOW: &str = r#"{"type":"chain","steps":[{"type":"t","args":[],"options":{"rate_limit":{"key":"k","concurrency":1}}}]}"#;

/// SDKs replay a POST on 429 and 502 to 504, so none of them once the job may be stored.
#[tokio::test(start_paused = true)]
async fn an_enqueue_in_doubt_is_500_and_not_retryable() {
    for (path, body) in [
        ("/ojs/v1/jobs", PLAIN),
        ("/ojs/v1/jobs", LIMITED),
        ("/ojs/v1/jobs/batch", BATCH),
        ("/ojs/v1/cron", CRON),
        ("/ojs/v1/workflows", WORKFLOW),
    ] {
        // Read, then hung up; cut in the middle of the reply; never answered.
        let read = |mut stream: ojs_throttle::net::Stream| async move {
            let _ = stream.read(&mut [0; 4096]).await;
        };
        let cut = |mut stream: ojs_throttle::net::Stream| async move {
            let _ = stream.read(&mut [0; 4096]).await;
            let half = b"HTTP/1.1 201 Created\r\nContent-Length: 50\r\n\r\n{\"job\"";
            let _ = stream.write_all(half).await;
        };
        let silent = |mut stream: ojs_throttle::net::Stream| async move {
            let _ = stream.read(&mut [0; 4096]).await;
            tokio::time::sleep(std::time::Duration::from_secs(300)).await;
        };
        for reply in [
            through_failing(read, path, body).await,
            through_failing(cut, path, body).await,
            through_failing(silent, path, body).await,
        ] {
            let error = reply.refuses(500, "in_doubt", body);
            assert_eq!(error["retryable"], false);
            assert!(reply.headers.get("retry-after").is_none());
        }
    }
}

/// Nobody listens: nothing can be stored, and the client is told to come back.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_down_is_502() {
    let net = Net::Sim(sim::Network::default());
    let sidecar = Start::before(&net, "http://127.0.0.1:9", "").start().await;
    let client = Client::new(&net, sidecar.addr);
    let fetch = json!({"queues": ["q"], "worker_id": "w"}).to_string();
    for (path, body) in [
        ("/ojs/v1/jobs", PLAIN),
        ("/ojs/v1/jobs", LIMITED),
        ("/ojs/v1/jobs/batch", BATCH),
        ("/ojs/v1/workers/fetch", &fetch),
    ] {
        let reply = client.post(path, body.to_owned()).await;
        reply.refuses(502, "backend_unreachable", path);
        let after = reply.headers["retry-after"].to_str().unwrap();
        let after: u64 = after.parse().unwrap();
        assert!((1..=30).contains(&after));
    }
    let named = client.get("/ojs/v1/rate-limits/k").await;
    assert_eq!(named.status, 404, "a job that was not stored names no key");
    let beat = json!({"worker_id": "w", "active_jobs": []}).to_string();
    let reply = client.post("/ojs/v1/workers/heartbeat", beat).await;
    assert_eq!(reply.status, 200, "a heartbeat never fails");
    assert_eq!(reply.json()["state"], "active");
}

/// How many FETCHes a backend was sent.
fn fetches(backend: &Answering) -> usize {
    let requests = backend.requests();
    let fetch = |(head, _): &&Heard| head.uri.path().ends_with("/workers/fetch");
    requests.iter().filter(fetch).count()
}

const NO_JOBS: &str = r#"{"jobs":[]}"#;
const KEYED: &str = "[[policy]]\nname = \"p\"\nkey = \"k:{meta.t}\"\nconcurrency = 1\n";

/// A queue that is named again and again is asked about once, and there is an end to how many are named.
#[tokio::test(start_paused = true)]
async fn a_fetch_costs_the_backend_one_question_a_queue() {
    let (backend, _sidecar, client) = answering(200, NO_JOBS, KEYED).await;
    let asks = |queues: Vec<String>| {
        let body = json!({"queues": queues, "count": 1}).to_string();
        client.post("/ojs/v1/workers/fetch", body)
    };
    let names = |many| (0..many).map(|nth| format!("q{nth}")).collect();
    for queues in [vec!["a".to_owned(); 3], vec!["a".to_owned(); 50]] {
        let before = fetches(&backend);
        assert_eq!(asks(queues).await.text(), NO_JOBS);
        assert_eq!(fetches(&backend) - before, 1);
    }
    let refused = asks(names(1_001)).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["error"]["details"]["field"], "queues");
    let before = fetches(&backend);
    assert_eq!(asks(names(1_000)).await.status, 200);
    assert_eq!(fetches(&backend) - before, 1_000);
}

/// What a FETCH would still claim is claimed for nobody once its worker has hung up; until then each of its queues
/// is asked, however slow the backend is: one after the other for 200 ms, and then all that are left at once.
#[tokio::test(start_paused = true)]
async fn a_fetch_asks_no_more_when_its_worker_has_gone() {
    let slow = Duration::from_millis(100);
    let (backend, _sidecar, client) = answering_after(slow, 200, NO_JOBS, KEYED).await;
    let queues: Vec<String> = (0..30).map(|nth| format!("q{nth}")).collect();
    let body = json!({"queues": queues, "count": 1}).to_string();
    let reply = client.post("/ojs/v1/workers/fetch", body.clone()).await;
    assert_eq!((reply.text().as_str(), fetches(&backend)), (NO_JOBS, 30));
    let stream = client.net.connect("127.0.0.1", client.addr.port());
    let mut stream = stream.await.unwrap();
    let head = format!("Host: sidecar\r\nContent-Length: {}", body.len());
    let request = format!("POST /ojs/v1/workers/fetch HTTP/1.1\r\n{head}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    tokio::time::sleep(3 * slow / 2).await;
    drop(stream);
    tokio::time::sleep(60 * slow).await;
    let more = fetches(&backend) - 30;
    assert!((1..=3).contains(&more), "{more}");
}

/// Who would have jobs claimed past everything that limits what is held is told why not; where nothing is limited
/// the backend reads its FETCHes itself.
#[tokio::test(start_paused = true)]
async fn a_fetch_that_cannot_be_read_is_refused_where_there_are_limits() {
    let deep = ["[".repeat(70), "1".into(), "]".repeat(70)].concat();
    let deep = format!(r#"{{"queues":["q"],"x":{deep}}}"#);
    for body in [
        r#"{"queues":["q",null],"count":2000}"#,
        r#"{"queues":["\ud800"],"count":2000}"#,
        r#"{"queues":["q"],"count":1.5}"#,
        r#"{"count":2000}"#,
        // Some read the first value and nothing behind it.
        r#"{"queues":["q"],"count":2000} x"#,
        r#"{"queues":["q"],"count":2000}{"queues":["q"],"count":1}"#,
        &deep,
    ] {
        for (config, status, sent) in [(KEYED, 400, 0), ("", 200, 1)] {
            let (backend, sidecar, client) = answering(200, NO_JOBS, config).await;
            let path = "/ojs/v1/workers/fetch";
            let reply = client.post(path, body.to_owned()).await;
            assert_eq!((reply.status, fetches(&backend)), (status, sent), "{body}");
            if status == 400 {
                let error = reply.refuses(400, "invalid_request", body);
                assert!(error["message"].as_str().unwrap().contains("`queues`"));
            }
            sidecar.stop().await;
        }
    }
    // What is no JSON is the backend's to refuse.
    let (backend, _sidecar, client) = answering(400, "{}", KEYED).await;
    let bodies = [r#"{"queues":["q"],"count":2000 x"#, "", "x {}"];
    for (nth, body) in bodies.into_iter().enumerate() {
        let reply = client.post("/ojs/v1/workers/fetch", body).await;
        assert_eq!((reply.status, fetches(&backend)), (400, nth + 1), "{body}");
    }
}

/// A job that stands several times in a reply is one job: it goes out once, with one slot.
#[tokio::test(start_paused = true)]
async fn an_id_that_comes_several_times_goes_out_once() {
    let job = |n: usize, id: &str| json!({"id": id, "type": "t", "queue": "q", "args": [n]});
    for times in [2, 5, 40] {
        let mut jobs: Vec<_> = (0..times).map(|n| job(n, "same")).collect();
        jobs.insert(1, job(0, "other"));
        let reply = json!({"jobs": jobs}).to_string();
        let limits = "[[policy]]\nname = 'p'\nkey = 'k'\nconcurrency = 100\n";
        let given = Arc::<AtomicBool>::default();
        let says = move |head: &http::request::Parts| {
            let first = head.uri.path().ends_with("/fetch") && !given.swap(true, Relaxed);
            let body = if first { &*reply } else { NO_JOBS };
            (200, body.to_owned().into())
        };
        let (_backend, sidecar, client) = answering_by(Duration::ZERO, limits, says).await;
        let fetch = json!({"queues": ["q"], "count": times + 1, "worker_id": "w"}).to_string();
        let got = client.post("/ojs/v1/workers/fetch", fetch).await.json();
        let mut got = got["jobs"].as_array().unwrap().clone();
        got.sort_by_key(|job| job["id"].to_string());
        assert_eq!(got, [job(0, "other"), job(times - 1, "same")]);
        let key = client.inspect("k").await;
        assert_eq!(key["active"], 2, "{key}");
        sidecar.stop().await;
    }
}

const ALL: &str = "[[policy]]\nname = 'p'\nkey = 'k'\nconcurrency = 200\n";

/// A job of queue `q` that is out.
fn active(id: &str) -> Value {
    json!({"id": id, "type": "t", "queue": "q", "args": [], "state": "active", "attempt": 1})
}

/// What stands before the backend reloads its routes, and has an answer of its own meanwhile. Only the backend's says
/// that there is no such job.
#[tokio::test(start_paused = true)]
async fn a_404_of_a_gateway_ends_no_claim_and_no_slot() {
    for (body, is_backends) in [
        (r#"{"message":"no Route matched with those values"}"#, false),
        (r#"{"error_msg":"404 Route Not Found"}"#, false),
        (
            r#"{"statusCode":404,"message":"Resource not found"}"#,
            false,
        ),
        (r#"{"error":{"code":404,"message":"Not Found"}}"#, false),
        (
            r#"{"error":{"code":"not_found","message":"no such job"}}"#,
            true,
        ),
    ] {
        let (given, reloads) = (AtomicBool::default(), Arc::<AtomicBool>::default());
        let is_reloading = Arc::clone(&reloads);
        let says = move |head: &Parts| {
            let path = head.uri.path();
            let said = match path.strip_prefix("/ojs/v1/jobs/") {
                _ if is_reloading.load(Relaxed) => return (404, body.into()),
                Some(job) => json!({"job": active(job)}),
                None if path == "/ojs/manifest" => json!({"specversion": "1.0"}),
                None if path.ends_with("/fetch") && !given.swap(true, Relaxed) => {
                    json!({"jobs": [active("out"), active("held")]})
                }
                None => json!({}),
            };
            (200, said.to_string().into())
        };
        let limit = ALL.replace("200", "1");
        let (backend, sidecar, client) = answering_as(None, Duration::ZERO, &limit, says).await;
        let client = client.with("authorization", "Bearer a");
        let asks =
            json!({"queues": ["q"], "count": 2, "worker_id": "w", "visibility_timeout_ms": 6_000});
        assert_eq!(client.fetch_as(asks).await.len(), 1);
        // Meanwhile the one that is out is overdue, and the other's claim is to be kept.
        sleep(Duration::from_millis(5_500)).await;
        backend.clear();
        reloads.store(true, Relaxed);
        sleep(Duration::from_millis(2_500)).await;
        reloads.store(false, Relaxed);
        let asked = backend.requests();
        for job in ["/ojs/v1/jobs/out", "/ojs/v1/jobs/held"] {
            let is_asked = asked.iter().any(|(head, _)| head.uri.path() == job);
            assert!(is_asked, "{job}: {body}");
        }
        sleep(Duration::from_secs(2)).await;
        let admin = sidecar.admin();
        for of_ended in [
            "ojs_throttle_hold_lost_total",
            "ojs_throttle_slots_reclaimed_total",
        ] {
            let ended = admin.metric(of_ended).await.unwrap_or_default();
            assert_eq!(ended > 0.0, is_backends, "{of_ended}: {body}");
        }
        sidecar.stop().await;
    }
}

/// Many workers die at once, and the backend is slow: what one round of questions does not come to is asked in the next.
#[tokio::test(start_paused = true)]
async fn each_overdue_slot_is_asked_about_soon() {
    let asked = Arc::<Mutex<HashMap<String, Instant>>>::default();
    let (heard, given) = (Arc::clone(&asked), AtomicBool::default());
    let says = move |head: &Parts| {
        let path = head.uri.path();
        let said = match path.strip_prefix("/ojs/v1/jobs/") {
            Some(job) => {
                let mut heard = heard.lock().unwrap();
                heard.entry(job.to_owned()).or_insert_with(Instant::now);
                json!({"job": active(job)})
            }
            None if path.ends_with("/fetch") && !given.swap(true, Relaxed) => {
                let jobs: Vec<_> = (0..200).map(|n| active(&format!("j{n}"))).collect();
                json!({"jobs": jobs})
            }
            None => json!({}),
        };
        (200, said.to_string().into())
    };
    let slow = Duration::from_millis(300);
    let (_backend, _sidecar, client) = answering_by(slow, ALL, says).await;
    let asks =
        json!({"queues": ["q"], "count": 200, "worker_id": "w", "visibility_timeout_ms": 5_000});
    assert_eq!(client.fetch_as(asks).await.len(), 200);
    sleep(Duration::from_secs(20)).await;
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 200);
    let took = *asked.values().max().unwrap() - *asked.values().min().unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
}
