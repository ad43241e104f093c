//! An OJS backend in memory, for `dev`, `demo` and tests: the honest other side.
//!
//! It follows the OJS core text at levels 0 and 1, with priorities, delays, pausing, batches, the
//! dead-letter list and the parts of the admin view that the sidecar uses; where real backends are
//! laxer than the text, [`Lax`] makes it behave like one of them. It keeps a [`Backend::ledger`]
//! of what really happened, by which tests judge the sidecar.
//!
//! It knows nothing of rate limits, and shares no code with the sidecar but the sockets.
//!
//! All deadlines are on tokio's clock; the wall clock is read once, so that times can be printed.
//! What time does (expiry, promotion) is done when a request comes, and every 500 ms while serving.

mod api;
mod job;
mod lax;
mod serve;
mod state;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::time::Instant;

pub use lax::{Duplicate, Extended, Lax, Liveness, Requeue};

/// State changes that a slow event stream may be behind before it misses some.
const CHANGES: usize = 1024;

/// The backend; clones are the same one.
#[derive(Clone, Debug)]
pub struct Backend {
    state: Arc<Mutex<state::State>>,
    changes: broadcast::Sender<Change>,
}

/// What happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// An enqueue was accepted.
    Stored,
    /// A FETCH gave it to a worker.
    Claimed,
    /// The worker finished it.
    Acked,
    /// The worker failed; [`EventKind::Discarded`] follows if that was the end.
    Nacked,
    /// The worker gave it back.
    Requeued,
    /// Its claim, or its time to run, ran out; [`EventKind::Discarded`] follows if that was the end.
    Expired,
    /// Attempts or `expires_at` ran out, or the failure was final.
    Discarded,
    /// It was cancelled.
    Cancelled,
    /// A heartbeat extended its claim.
    Extended,
    /// Its scheduled time, or that of its next attempt, came.
    Promoted,
    /// It was put back by an admin, attempts at zero.
    Revived,
}

/// One line of the ledger.
#[derive(Clone, Debug)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// Job id.
    pub job: Arc<str>,
    /// Job type.
    pub job_type: Arc<str>,
    /// Queue of the job.
    pub queue: Arc<str>,
    /// Who has (or had, when the claim ended) claimed the job, if that worker has a name.
    pub worker: Option<Arc<str>>,
    /// The job's attempt as it was then; at a claim, the one that begins.
    pub attempt: u32,
    /// Priority of the job.
    pub priority: i32,
    /// When, since the backend was made.
    pub at: Duration,
    /// How long the latest attempt had run.
    pub ran: Option<Duration>,
}

/// A change of state, for the event streams.
#[derive(Clone, Debug)]
struct Change {
    job: Arc<str>,
    job_type: Arc<str>,
    queue: Arc<str>,
    from: Option<&'static str>,
    to: &'static str,
    done: bool,
    at: String,
}

impl Backend {
    /// An empty backend. `seed` decides all that is random: jitter, new ids, the order of lax replies.
    pub fn new(lax: Lax, seed: u64) -> Backend {
        let (changes, _) = broadcast::channel(CHANGES);
        let state = state::State::new(lax, job::Clock::new(), seed, changes.clone());
        Backend {
            state: Arc::new(Mutex::new(state)),
            changes,
        }
    }

    /// Answers one request whose body was read whole. An event stream gets its first lines only;
    /// [`Backend::serve`] serves the whole of them.
    pub async fn handle(&self, request: http::Request<Bytes>) -> http::Response<Bytes> {
        api::answer(&mut self.state(), &request, Instant::now())
    }

    /// What happened so far, in order: the latest million events.
    pub fn ledger(&self) -> Vec<Event> {
        self.state().ledger.iter().cloned().collect()
    }

    /// Forgets all jobs, queues, and the ledger.
    pub fn clear(&self) {
        self.state().clear();
    }

    fn state(&self) -> MutexGuard<'_, state::State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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

    async fn nack(backend: &Backend, id: &str, more: Value) -> (u16, Value) {
        let mut body = json!({"job_id": id, "error": {"code": "e", "message": "m"}});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        post(backend, "/workers/nack", body).await
    }

    async fn beat(backend: &Backend, worker: &str, more: Value) -> (u16, Value) {
        let mut body = json!({"worker_id": worker});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        post(backend, "/workers/heartbeat", body).await
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
        let request = http::Request::post("/ojs/v1/workers/fetch")
            .body(Bytes::from(r#"{"queues":["default"]}"#));
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
        let twice = json!({"jobs": [{"type": "t", "args": [], "id": id}, {"type": "t", "args": [], "id": id}]});
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
        let other = json!({"job_id": id, "worker_id": "x"});
        assert_eq!(post(&backend, "/workers/ack", other.clone()).await.0, 409);
        assert_eq!(nack(&backend, &id, json!({"worker_id": "x"})).await.0, 409);
        assert_eq!(
            beat(&backend, "x", json!({"active_jobs": [id]})).await.0,
            409
        );
        assert_eq!(state(&backend, &id).await, "active");
        assert_eq!(
            post(&backend, "/workers/ack", json!({"job_id": id}))
                .await
                .0,
            200
        );
        assert_eq!(
            kinds(&backend),
            [EventKind::Stored, EventKind::Claimed, EventKind::Acked]
        );

        let lax = Backend::new(Lax::redis(), 1);
        let id = put(&lax, json!({})).await;
        take(&lax).await;
        assert_eq!(
            post(
                &lax,
                "/workers/ack",
                json!({"job_id": id, "worker_id": "x"})
            )
            .await
            .0,
            200
        );
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
        let (status, reply) = post(&backend, "/workers/ack", json!({"job_id": left})).await;
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

    #[tokio::test(start_paused = true)]
    async fn serves_chunks_over_2_kib_and_event_streams() {
        use http_body_util::{BodyExt, Full};
        let (network, stop) = (
            crate::net::sim::Network::default(),
            tokio_util::sync::CancellationToken::new(),
        );
        let net = crate::net::Net::Sim(network);
        let listener = net.bind("127.0.0.1:80".parse().unwrap()).await.unwrap();
        let backend = Backend::new(Lax::spec(), 1);
        let served = tokio::spawn(backend.clone().serve(listener, stop.clone()));
        let get = async |path: &str| {
            let stream = hyper_util::rt::TokioIo::new(net.connect("backend", 80).await.unwrap());
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(stream).await.unwrap();
            tokio::spawn(connection);
            let request = http::Request::get(format!("/ojs/v1{path}"))
                .body(Full::new(Bytes::new()))
                .unwrap();
            sender.send_request(request).await.unwrap()
        };
        let id = put(&backend, json!({"tags": ["x".repeat(2048)]})).await;
        let whole = get("/queues/q/stats").await;
        assert!(
            whole.headers().contains_key("content-length")
                && whole.headers()["ojs-version"] == "1.0"
        );
        let long = get(&format!("/jobs/{id}")).await;
        assert_eq!(long.headers()["transfer-encoding"], "chunked");
        assert!(long.into_body().collect().await.unwrap().to_bytes().len() > 2048);

        let stream = get(&format!("/jobs/{id}/events")).await;
        assert_eq!(stream.headers()["content-type"], "text/event-stream");
        call(&backend, "DELETE", &format!("/jobs/{id}"), "").await;
        let text = stream.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&text).unwrap();
        assert!(
            text.starts_with("retry: 3000\n\nid: evt_0001\nevent: job.state_changed\ndata: {"),
            "{text}"
        );
        assert!(
            text.contains(r#""from":"available""#) && text.contains(r#""to":"cancelled""#),
            "{text}"
        );
        stop.cancel();
        served.await.unwrap();
    }
}
