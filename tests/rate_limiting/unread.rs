//! Replies of the backend in forms that not everybody reads. What was claimed under limits goes out only if it was
//! read: otherwise limits would not count it.

use super::prelude::*;
use ojs_throttle::json::Json;

use crate::harness::Op;
use crate::harness::backend::{Fault as Wrong, Faulty as Behind};
use crate::harness::dress::Dress;
use crate::sidecar::simulated::Start;

const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"mail\" }\nconcurrency = 1\n";

/// A backend that goes wrong on command, in a network of its own.
async fn behind() -> (Net, Behind) {
    let net = Net::Sim(sim::Network::default());
    (net.clone(), Behind::start(Lax::redis(), net, 7).await)
}

/// A sidecar before it that knows nothing yet.
async fn fresh(net: &Net, backend: &Behind, config: &str) -> Sidecar {
    let base = format!("http://{}", backend.addr());
    Start::before(net, &base, config).start().await
}

/// A job of queue `mail`, with the limits that it brings.
fn job(limit: &Value) -> Value {
    let mut options = json!({"queue": "mail"});
    if limit.is_object() {
        options["rate_limit"] = limit.clone();
    }
    json!({"type": "t", "args": ["far"], "options": options})
}

/// What a worker gets for one FETCH: its jobs, or the message of a 502.
async fn hands(client: &Client) -> Result<Vec<String>, String> {
    let ask = json!({"queues": ["mail"], "count": 1, "worker_id": "w"}).to_string();
    let reply = client.post("/ojs/v1/workers/fetch", ask).await;
    let whole = Json::parse(&reply.body, usize::MAX).unwrap_or_else(|error| {
        panic!("{} goes out unread: {error}", reply.status);
    });
    if let Some(error) = whole.get("error") {
        assert_eq!(reply.status, 502, "{}", reply.text());
        let code = error.text_of("code").unwrap();
        assert_eq!(code, "backend_reply_unreadable", "{}", reply.text());
        return Err(error.text_of("message").unwrap().into_owned());
    }
    let jobs = whole.get("jobs").expect("unread").items();
    let ids = jobs.map(|job| job.text_of("id").unwrap().into_owned());
    Ok(ids.collect())
}

/// How many times the backend carried out an ACK.
fn acked(backend: &Behind) -> usize {
    let ledger = backend.ledger().into_iter();
    let acked = ledger.filter(|(_, event)| event.kind == EventKind::Acked);
    acked.count()
}

/// Works until the backend has so many ACKs; never are two jobs of the key out.
async fn one_after_the_other(client: &Client, backend: &Behind, ends: usize, what: Dress) {
    let began = Instant::now();
    while acked(backend) < ends {
        assert!(began.elapsed() < Duration::from_secs(300), "{what:?}");
        let jobs = hands(client).await.unwrap();
        let more = hands(client).await.unwrap();
        assert!(jobs.len() + more.len() <= 1, "{what:?}: {jobs:?} {more:?}");
        for job in jobs.iter().chain(&more) {
            client.ack(job).await;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A backend with three jobs, and a sidecar that did not see them come.
async fn with_three(config: &str, limit: &Value) -> (Behind, Sidecar) {
    let (net, backend) = behind().await;
    let first = fresh(&net, &backend, config).await;
    first.client().enqueue_all(3, &job(limit)).await;
    first.stop().await;
    let sidecar = fresh(&net, &backend, config).await;
    (backend, sidecar)
}

/// Jobs limited by the file, and jobs that bring their limit to a sidecar that has never heard of it.
fn cases() -> [(&'static str, Value); 2] {
    [
        (ONE, json!(null)),
        ("", json!({"key": "k", "concurrency": 1})),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_packed_unasked_is_read_like_any_other() {
    for (config, limit) in cases() {
        for dress in Dress::READ {
            let (backend, sidecar) = with_three(config, &limit).await;
            backend.often(Op::Fetch, 1.0, Wrong::Comes(dress));
            one_after_the_other(&sidecar.client(), &backend, 3, dress).await;
            sidecar.stop().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_cannot_be_read_goes_to_nobody_and_its_jobs_come_again() {
    for (config, limit) in cases() {
        for (dress, word) in Dress::UNREAD {
            let (backend, sidecar) = with_three(config, &limit).await;
            backend.next(Op::Fetch, 1, Wrong::Comes(dress));
            let refused = hands(&sidecar.client()).await;
            let why = refused.expect_err(&format!("{dress:?} with {config:?} starts"));
            assert!(why.contains(word), "{dress:?}: {why}");
            one_after_the_other(&sidecar.client(), &backend, 3, dress).await;
            let (admin, series) = (sidecar.admin(), "ojs_throttle_upstream_nonsense_total");
            assert_eq!(admin.metric(series).await, Some(1.0), "{dress:?}");
            sidecar.stop().await;
        }
    }
}

/// The manifest, the list of running jobs, statistics, heartbeats and single jobs decide too.
#[tokio::test(start_paused = true)]
async fn whatever_else_is_packed_is_read_too() {
    let bound = format!("{ONE}[[queue]]\nname = \"mail\"\nmax_depth = 3\n");
    for dress in [Dress::Gzip, Dress::Brotli] {
        let (net, backend) = behind().await;
        backend.often(Op::Any, 1.0, Wrong::Comes(dress));
        let first = fresh(&net, &backend, &bound).await;
        let client = first.client();
        client.enqueue_all(3, &job(&json!(null))).await;
        let full = client.post("/ojs/v1/jobs", job(&json!(null)).to_string());
        assert_eq!(full.await.status, 429, "{dress:?}");
        let running = hands(&client).await.unwrap().concat();
        let beat = json!({"worker_id": "w", "active_jobs": [running]}).to_string();
        let beat = client.post("/ojs/v1/workers/heartbeat", beat).await;
        assert!(beat.text().contains(&running), "{dress:?}: {beat:?}");
        let shown = client.get(&format!("/ojs/v1/jobs/{running}")).await;
        assert_eq!(shown.json()["job"]["state"], "active", "{dress:?}");
        first.stop.now.cancel();

        // One that starts anew learns from the backend what runs.
        let second = fresh(&net, &backend, ONE).await;
        let more = hands(&second.client()).await.unwrap();
        assert!(more.is_empty(), "{dress:?}: {running} runs, and {more:?}");
        second.client().ack(&running).await;
        assert_eq!(hands(&second.client()).await.unwrap().len(), 1, "{dress:?}");
        second.stop().await;
    }
}

/// A backend would write them back as what JSON does not have, and no reply with them could be read.
#[tokio::test(start_paused = true)]
async fn numbers_that_no_double_holds_are_refused_at_enqueue() {
    let (net, backend) = behind().await;
    let sidecar = fresh(&net, &backend, ONE).await;
    let client = sidecar.client();
    let digits = "9".repeat(400);
    let job = |args: &str, rest: &str| format!(r#"{{"type":"t","args":[{args}]{rest}}}"#);
    let options = r#","options":{"queue":"mail"}"#;
    let meta = r#","meta":{"rate_limit":{"key":"k","concurrency":1}}"#;
    for number in [
        "1e400",
        "-1E+309",
        "17.5e99999",
        &digits,
        "NaN",
        "-Infinity",
    ] {
        for rest in ["", options, meta] {
            let one = job(number, rest);
            let batch = format!(r#"{{"jobs":[{one}]}}"#);
            let cron = format!(r#"{{"name":"n","expression":"0 3 * * *","job_template":{one}}}"#);
            for (path, body) in [("jobs", &one), ("jobs/batch", &batch), ("cron", &cron)] {
                let refused = client.post(&format!("/ojs/v1/{path}"), body.clone()).await;
                assert_eq!(refused.status, 400, "{path} {body}: {}", refused.text());
                let error = &refused.json()["error"];
                let why = error["message"].as_str().unwrap();
                assert!(why.contains("number"), "{path} {body}: {error}");
            }
        }
    }
    // What a double holds, or what is no number.
    let uuid = "\"0190b0a0-1e400-7e999\"";
    let small =
        format!("0.{digits}, 1e308, 1e-400, -1.5E3, \"1e400\", \"NaN\", \"{digits}\", {uuid}");
    for rest in ["", options] {
        let reply = client.post("/ojs/v1/jobs", job(&small, rest)).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
}
