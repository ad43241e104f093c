//! Each switch against the paused clock, through the front door.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use serde_json::{Value, json};

/// Sends one request; the status and the body as JSON (or as a string).
async fn call(backend: &Backend, method: &str, path: &str, body: &str) -> (u16, Value) {
    let request = http::Request::builder()
        .method(method)
        .uri(format!("/ojs/v1{path}"));
    let request = request.body(Bytes::from(body.to_owned())).unwrap();
    let response = backend.handle(request).await;
    let text = String::from_utf8(response.body().to_vec()).unwrap();
    (
        response.status().as_u16(),
        serde_json::from_str(&text).unwrap_or(text.into()),
    )
}

async fn post(backend: &Backend, path: &str, body: Value) -> (u16, Value) {
    call(backend, "POST", path, &body.to_string()).await
}

/// Enqueues a job into queue `q`; its id.
async fn put(backend: &Backend, mut options: Value) -> String {
    options["queue"] = "q".into();
    let (status, reply) = post(
        backend,
        "/jobs",
        json!({"type": "t", "args": [], "options": options}),
    )
    .await;
    assert_eq!(status, 201, "{reply}");
    reply["job"]["id"].as_str().unwrap().to_owned()
}

/// Fetches one job of queue `q` for worker `w`; null if there is none.
async fn take(backend: &Backend) -> Value {
    let (status, reply) = post(
        backend,
        "/workers/fetch",
        json!({"queues": ["q"], "worker_id": "w"}),
    )
    .await;
    assert_eq!((status, &reply["job"]), (200, &reply["jobs"][0]));
    reply["job"].clone()
}

/// A call of a worker, with `more` members than those of `body`.
async fn tell(backend: &Backend, verb: &str, mut body: Value, more: Value) -> (u16, Value) {
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    post(backend, &format!("/workers/{verb}"), body).await
}

async fn ack(backend: &Backend, id: &str, more: Value) -> (u16, Value) {
    tell(backend, "ack", json!({"job_id": id}), more).await
}

async fn nack(backend: &Backend, id: &str, more: Value) -> (u16, Value) {
    let body = json!({"job_id": id, "error": {"code": "e", "message": "m"}});
    tell(backend, "nack", body, more).await
}

async fn beat(backend: &Backend, worker: &str, more: Value) -> (u16, Value) {
    tell(backend, "heartbeat", json!({"worker_id": worker}), more).await
}

async fn state(backend: &Backend, id: &str) -> String {
    let (_, reply) = call(backend, "GET", &format!("/jobs/{id}"), "").await;
    reply["job"]["state"].as_str().unwrap_or("gone").to_owned()
}

async fn wait(millis: u64) {
    tokio::time::advance(Duration::from_millis(millis)).await;
}

fn kinds(backend: &Backend) -> Vec<EventKind> {
    backend.ledger().iter().map(|event| event.kind).collect()
}

#[tokio::test(start_paused = true)]
async fn bytes_of_args_meta_and_unknown_members_survive() {
    let backend = Backend::new(Lax::spec(), 1);
    let body = r#"{"type":"t","args":[1.0,1e3, 12345678901234567890,"\u003c"],"x":{"b":1,"a":0.10},
        "meta":{"k":1.50},"options":{"rate_limit":{"key":"k","max_per_second":3}},"queue":"liar"}"#;
    let (status, _) = call(&backend, "POST", "/jobs", body).await;
    assert_eq!(status, 201);
    let request =
        http::Request::post("/ojs/v1/workers/fetch").body(Bytes::from(r#"{"queues":["default"]}"#));
    let reply = backend.handle(request.unwrap()).await.into_body();
    let reply = std::str::from_utf8(&reply).unwrap();
    for part in [
        r#"[1.0,1e3, 12345678901234567890,"\u003c"]"#,
        r#"{"b":1,"a":0.10}"#,
        r#"{"k":1.50}"#,
    ] {
        assert_eq!(reply.matches(part).count(), 2, "{part} in {reply}");
    }
    assert!(
        !reply.contains("rate_limit") && !reply.contains("liar"),
        "{reply}"
    );
}

#[tokio::test(start_paused = true)]
async fn real_backends_let_unknown_members_win() {
    let backend = Backend::new(Lax::redis(), 1);
    let body = r#"{"Type":"t","ARGS":[1],"queue":"liar","Options":{"Queue":"q"}}"#;
    let (status, reply) = call(&backend, "POST", "/jobs", body).await;
    assert_eq!(
        (status, &reply["job"]["queue"], &reply["job"]["ARGS"][0]),
        (201, &json!("liar"), &json!(1))
    );
    assert_eq!(take(&backend).await["attempt"], 0);
}

#[tokio::test(start_paused = true)]
async fn malformed_bodies_are_refused() {
    let backend = Backend::new(Lax::spec(), 1);
    let id = put(&backend, json!({})).await;
    for (path, body) in [
        ("/workers/fetch", ""),
        ("/workers/fetch", r#"{"queues":["q"]} x"#),
        ("/workers/fetch", r#"{"queues":[]}"#),
        ("/workers/fetch", r#"[]"#),
        ("/workers/heartbeat", r#"{"worker_id":"w","active_jobs":1}"#),
        ("/workers/heartbeat", r#"{"active_jobs":[]}"#),
        ("/workers/ack", "{}"),
        (
            "/jobs",
            r#"{"type":"t","args":[],"options":{"rate_limit":5}}"#,
        ),
        (
            "/jobs",
            r#"{"type":"t","args":[],"options":{"rate_limit":{"max_per_second":1.5}}}"#,
        ),
        (
            "/jobs",
            r#"{"type":"t","args":[],"options":{"delay_until":"soon"}}"#,
        ),
        ("/jobs/batch", r#"{"jobs":[]}"#),
    ] {
        let (status, reply) = call(&backend, "POST", path, body).await;
        assert_eq!(
            (status, &reply["error"]["retryable"]),
            (400, &json!(false)),
            "{path} {body}: {reply}"
        );
    }
    assert_eq!(
        post(
            &backend,
            "/jobs",
            json!({"type": "t", "args": [], "id": id})
        )
        .await
        .0,
        409
    );
    assert_eq!(
        call(&backend, "GET", "/cron", "").await,
        (404, "404 page not found\n".into())
    );
    assert_eq!(call(&backend, "PUT", "/jobs", "").await, (405, "".into()));
    assert_eq!(backend.ledger().len(), 1, "nothing else was stored");
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_stored_whole_or_not_at_all() {
    let backend = Backend::new(Lax::spec(), 1);
    let id = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f";
    let twice =
        json!({"jobs": [{"type": "t", "args": [], "id": id}, {"type": "t", "args": [], "id": id}]});
    let (status, reply) = post(&backend, "/jobs/batch", twice).await;
    assert_eq!(
        (status, &reply["error"]["details"]["index"]),
        (409, &json!(1))
    );
    assert_eq!(backend.ledger().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_the_claimer_may_settle_or_extend() {
    let backend = Backend::new(Lax::spec(), 1);
    let id = put(&backend, json!({})).await;
    take(&backend).await;
    assert_eq!(ack(&backend, &id, json!({"worker_id": "x"})).await.0, 409);
    assert_eq!(nack(&backend, &id, json!({"worker_id": "x"})).await.0, 409);
    assert_eq!(
        beat(&backend, "x", json!({"active_jobs": [id]})).await.0,
        409
    );
    assert_eq!(state(&backend, &id).await, "active");
    assert_eq!(ack(&backend, &id, json!({})).await.0, 200);
    assert_eq!(
        kinds(&backend),
        [EventKind::Stored, EventKind::Claimed, EventKind::Acked]
    );

    let lax = Backend::new(Lax::redis(), 1);
    let (_, reply) = beat(&lax, "w", json!({"active_jobs": ["nobody"]})).await;
    assert_eq!(
        (&reply["state"], reply.get("jobs_extended")),
        (&json!("active"), None)
    );
    let id = put(&lax, json!({})).await;
    take(&lax).await;
    assert_eq!(ack(&lax, &id, json!({"worker_id": "x"})).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn expiry_counts_and_discards_by_the_text_but_not_with_real_backends() {
    for (lax, attempts, end) in [
        (Lax::spec(), [1, 2], "discarded"),
        (Lax::redis(), [0, 0], "available"),
    ] {
        let backend = Backend::new(lax, 1);
        let options = json!({"retry": {"max_attempts": 2, "on_exhaustion": "dead_letter"}, "visibility_timeout_ms": 3000});
        let id = put(&backend, options).await;
        for attempt in attempts {
            assert_eq!(take(&backend).await["attempt"], attempt);
            wait(2999).await;
            assert_eq!(state(&backend, &id).await, "active");
            wait(1).await;
        }
        assert_eq!(state(&backend, &id).await, end);
        let (_, dead) = call(&backend, "GET", "/dead-letter", "").await;
        assert_eq!(
            dead["jobs"].as_array().unwrap().len(),
            usize::from(end == "discarded")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_extend_what_they_name() {
    let backend = Backend::new(Lax::spec(), 1);
    let (a, b) = (
        put(&backend, json!({})).await,
        put(&backend, json!({})).await,
    );
    take(&backend).await;
    take(&backend).await;
    wait(29_000).await;
    let (_, reply) = beat(
        &backend,
        "w",
        json!({"active_jobs": [a, "nobody"], "visibility_timeout_ms": 5000}),
    )
    .await;
    assert_eq!(
        (&reply["jobs_extended"], &reply["state"]),
        (&json!([a]), &json!("running"))
    );
    wait(4000).await;
    assert_eq!(
        (state(&backend, &a).await, state(&backend, &b).await),
        ("active".into(), "available".into())
    );
    wait(1000).await;
    assert_eq!(state(&backend, &a).await, "available");
}

#[tokio::test(start_paused = true)]
async fn lite_counts_visibility_from_the_start_and_discards_a_requeue_at_the_last_attempt() {
    let backend = Backend::new(Lax::lite(), 1);
    let id = put(&backend, json!({"retry": {"max_attempts": 1}})).await;
    assert_eq!(take(&backend).await["attempt"], 1);
    wait(20_000).await;
    assert_eq!(
        beat(&backend, "w", json!({"active_jobs": [id]})).await.1["state"],
        "active"
    );
    wait(10_000).await;
    assert_eq!(
        state(&backend, &id).await,
        "available",
        "30 s beats do not keep it past 30 s"
    );
    take(&backend).await;
    wait(20_000).await;
    beat(
        &backend,
        "w",
        json!({"active_jobs": [id], "visibility_timeout_ms": 50_000}),
    )
    .await;
    wait(20_000).await;
    assert_eq!(state(&backend, &id).await, "active", "a growing value does");
    let (_, reply) = nack(&backend, &id, json!({"requeue": true})).await;
    assert_eq!(
        (&reply["state"], reply.get("job")),
        (&json!("discarded"), None)
    );
}

#[tokio::test(start_paused = true)]
async fn amqp_never_makes_a_requeued_job_available_and_keys_liveness_by_worker() {
    let backend = Backend::new(Lax::amqp(), 1);
    let id = put(&backend, json!({})).await;
    take(&backend).await;
    for _ in 0..3 {
        wait(20_000).await;
        assert_eq!(
            beat(&backend, "w", json!({"active_jobs": ["x"]})).await.1["jobs_extended"],
            json!(["x"])
        );
    }
    assert_eq!(state(&backend, &id).await, "active");
    assert_eq!(
        nack(&backend, &id, json!({"requeue": true})).await.1["retry_delay_ms"],
        1000
    );
    for (attempt, end) in [(2, "retryable"), (3, "discarded")] {
        wait(2000).await;
        assert_eq!(take(&backend).await["attempt"], attempt);
        assert_eq!(
            nack(&backend, &id, json!({"requeue": true})).await.1["state"],
            end
        );
    }
    let id = put(&backend, json!({})).await;
    take(&backend).await;
    wait(29_999).await;
    assert_eq!(state(&backend, &id).await, "active");
    wait(1).await;
    assert_eq!(state(&backend, &id).await, "available");
}

#[tokio::test(start_paused = true)]
async fn without_a_reaper_a_claim_ends_at_the_next_fetch_of_its_queue() {
    let mut lax = Lax::redis();
    lax.reaps = false;
    let backend = Backend::new(lax, 1);
    let ids = [
        put(&backend, json!({})).await,
        put(&backend, json!({})).await,
    ];
    assert_eq!(take(&backend).await["id"], *ids[0]);
    assert_eq!(take(&backend).await["id"], *ids[1]);
    wait(60_000).await;
    let other = json!({"queues": ["other"], "worker_id": "w"});
    post(&backend, "/workers/fetch", other).await;
    assert_eq!(state(&backend, &ids[0]).await, "active");
    // What is late is as good as what was in time.
    beat(&backend, "w", json!({"active_jobs": [ids[1]]})).await;
    let again = take(&backend).await;
    assert_eq!(
        (&again["id"], state(&backend, &ids[1]).await),
        (&json!(ids[0]), "active".into())
    );
    assert!(take(&backend).await.is_null());
    wait(31_000).await;
    for id in &ids {
        assert_eq!(take(&backend).await["id"], **id);
    }
}

#[tokio::test(start_paused = true)]
async fn sqs_extends_by_whole_seconds() {
    let mut lax = Lax::redis();
    lax.beats_whole_seconds = true;
    let backend = Backend::new(lax, 1);
    let id = put(&backend, json!({})).await;
    for (asked, lasts) in [(2_900, 2_000), (1_000, 1_000), (999, 30_000)] {
        take(&backend).await;
        let more = json!({"active_jobs": [id], "visibility_timeout_ms": asked});
        beat(&backend, "w", more).await;
        wait(lasts - 1).await;
        assert_eq!(state(&backend, &id).await, "active", "{asked}");
        wait(1).await;
        assert_eq!(state(&backend, &id).await, "available", "{asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_reply_does_not_say_that_a_queue_is_empty() {
    let locked = Lax {
        skips_locked: 1,
        ..Lax::postgres()
    };
    for (lax, first) in [(Lax::spec(), 1), (Lax::redis(), 0), (locked, 0)] {
        let backend = Backend::new(lax, 1);
        let is_locked = first == 0 && backend.state.lock().lax.skips_locked > 0;
        let expires = json!({"expires_at": "2020-01-01T00:00:00Z"});
        for _ in 0..usize::from(!is_locked) {
            put(&backend, expires.clone()).await;
        }
        put(&backend, json!({})).await;
        let given = [take(&backend).await, take(&backend).await];
        let given = given.map(|job| usize::from(job.is_object()));
        let second = usize::from(!is_locked) - first;
        assert_eq!(given, [first, second]);
    }
}

#[tokio::test(start_paused = true)]
async fn names_of_queues_are_listed_for_ever_and_without_counts() {
    let backend = Backend::new(Lax::redis(), 1);
    let id = put(&backend, json!({})).await;
    take(&backend).await;
    ack(&backend, &id, json!({})).await;
    wait(3_600_000).await;
    let (_, listed) = call(&backend, "GET", "/queues", "").await;
    let queue = &listed["queues"][0];
    assert_eq!(queue["name"], "q");
    assert!(queue["available"].is_null() && queue["counts"].is_null());
}

#[tokio::test(start_paused = true)]
async fn requeue_goes_to_the_tail_or_to_the_head() {
    for (lax, next) in [(Lax::spec(), 1), (Lax::redis(), 1), (Lax::postgres(), 0)] {
        let backend = Backend::new(lax, 1);
        let ids = [
            put(&backend, json!({})).await,
            put(&backend, json!({})).await,
        ];
        let attempt = take(&backend).await["attempt"].clone();
        let (_, reply) = nack(&backend, &ids[0], json!({"requeue": true})).await;
        assert_eq!(
            (&reply["state"], &reply["attempt"]),
            (&json!("available"), &attempt)
        );
        assert_eq!(take(&backend).await["id"], ids[next]);
        let ledger = backend.ledger();
        let requeued = ledger
            .iter()
            .find(|event| event.kind == EventKind::Requeued)
            .unwrap();
        assert_eq!(
            (&*requeued.job, requeued.worker.as_deref()),
            (&*ids[0], Some("w"))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn postgres_answers_500_to_wrong_states_and_shuffles() {
    let backend = Backend::new(Lax::postgres(), 7);
    for priority in 0..8 {
        put(&backend, json!({"priority": priority})).await;
    }
    let (_, reply) = post(
        &backend,
        "/workers/fetch",
        json!({"queues": ["q"], "count": 7}),
    )
    .await;
    let got: Vec<i64> = reply["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|j| j["priority"].as_i64().unwrap())
        .collect();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [1, 2, 3, 4, 5, 6, 7], "the highest were taken");
    assert!(!got.is_sorted_by(|a, b| a > b), "{got:?}");
    let left = put(&backend, json!({})).await;
    let (status, reply) = ack(&backend, &left, json!({})).await;
    assert_eq!(
        (status, &reply["error"]["code"]),
        (500, &json!("internal_error"))
    );
}

#[tokio::test(start_paused = true)]
async fn retries_wait_pause_holds_and_counts_add_up() {
    let backend = Backend::new(Lax::spec(), 1);
    let id = put(
        &backend,
        json!({"retry": {"initial_interval": "PT1S", "jitter": false}}),
    )
    .await;
    put(&backend, json!({"delay_until": "+PT0.5S"})).await;
    take(&backend).await;
    nack(&backend, &id, json!({})).await;
    let (_, queue) = call(&backend, "GET", "/admin/queues/q", "").await;
    assert_eq!(
        (&queue["counts"]["retryable"], &queue["counts"]["scheduled"]),
        (&json!(1), &json!(1))
    );
    assert!(take(&backend).await.is_null());
    wait(1000).await;
    assert_eq!(
        post(&backend, "/admin/queues/q/pause", json!({})).await.1,
        json!({"name": "q", "paused": true})
    );
    assert!(take(&backend).await.is_null());
    post(&backend, "/queues/q/resume", json!({})).await;
    let (_, stats) = call(&backend, "GET", "/queues/q/stats", "").await;
    assert_eq!(stats["queue"]["available"], 2);
    let (_, list) = call(
        &backend,
        "GET",
        "/admin/jobs?queue=q&state=available&per_page=1&page=2",
        "",
    )
    .await;
    assert_eq!(
        (
            &list["pagination"]["total"],
            list["items"].as_array().unwrap().len()
        ),
        (&json!(2), 1)
    );
    post(&backend, "/admin/reset", json!({})).await;
    assert_eq!(state(&backend, &id).await, "gone");
}

/// A client of a backend that serves on a simulated network.
struct Served {
    backend: Backend,
    net: ojs_net::Net,
    stop: tokio_util::sync::CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

type Sender = hyper::client::conn::http1::SendRequest<http_body_util::Full<Bytes>>;

impl Served {
    async fn new() -> Served {
        let net = ojs_net::Net::Sim(ojs_net::sim::Network::default());
        let listener = net.bind("127.0.0.1:80".parse().unwrap()).await.unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let backend = Backend::new(Lax::spec(), 1);
        let task = tokio::spawn(backend.clone().serve(listener, stop.clone()));
        Served {
            backend,
            net,
            stop,
            task,
        }
    }

    async fn connect(&self) -> Sender {
        let stream = hyper_util::rt::TokioIo::new(self.net.connect("backend", 80).await.unwrap());
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn get(&self, path: &str) -> http::Response<hyper::body::Incoming> {
        let request = http::Request::get(format!("/ojs/v1{path}")).body(Bytes::new().into());
        self.connect()
            .await
            .send_request(request.unwrap())
            .await
            .unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn serves_chunks_over_2_kib_and_event_streams() {
    use http_body_util::BodyExt;
    let served = Served::new().await;
    let id = put(&served.backend, json!({"tags": ["x".repeat(2048)]})).await;
    let whole = served.get("/queues/q/stats").await;
    assert!(whole.headers().contains_key("content-length"));
    assert_eq!(whole.headers()["ojs-version"], "1.0");
    let long = served.get(&format!("/jobs/{id}")).await;
    assert_eq!(long.headers()["transfer-encoding"], "chunked");
    assert!(long.into_body().collect().await.unwrap().to_bytes().len() > 2048);

    let stream = served.get(&format!("/jobs/{id}/events")).await;
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    call(&served.backend, "DELETE", &format!("/jobs/{id}"), "").await;
    let text = stream.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&text).unwrap();
    let start = "retry: 3000\n\nid: evt_0001\nevent: job.state_changed\ndata: {";
    assert!(text.starts_with(start), "{text}");
    assert!(
        text.contains(r#""from":"available""#) && text.contains(r#""to":"cancelled""#),
        "{text}"
    );

    let endless = served.get("/queues/q/events").await;
    served.stop.cancel();
    served.task.await.unwrap();
    assert_eq!(
        endless.into_body().collect().await.unwrap().to_bytes(),
        "retry: 3000\n\n"
    );
}

#[tokio::test(start_paused = true)]
async fn keeps_idle_connections_two_minutes_refuses_long_bodies_and_reaps_unasked() {
    let served = Served::new().await;
    put(&served.backend, json!({"visibility_timeout_ms": 1000})).await;
    take(&served.backend).await;
    tokio::time::sleep(Duration::from_millis(1600)).await;
    assert_eq!(
        kinds(&served.backend).last(),
        Some(&EventKind::Expired),
        "nobody asked"
    );

    let mut sender = served.connect().await;
    let long = Bytes::from(vec![b' '; api::LONGEST_BODY + 1]);
    for (body, idle, status) in [(long, 119, 400), (Bytes::new(), 121, 400)] {
        let request = http::Request::post("/ojs/v1/jobs")
            .body(body.into())
            .unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), status);
        tokio::time::sleep(Duration::from_secs(idle)).await;
        assert_eq!(sender.is_closed(), idle > 120, "idle for {idle} s");
    }
}
