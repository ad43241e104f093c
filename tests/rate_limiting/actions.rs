//! What becomes of a job that a limit drops: 6.2 (`on_limit`), and the example of 14.4.

use std::sync::atomic::{AtomicBool, Ordering};

use ojs_throttle::duration;

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sidecar::answering::answering_by;
use crate::sidecar::simulated::Pair;

/// 14.4, as it stands, but for a limit that a test reaches: "Drop excess notification jobs rather than
/// queuing them"; 6.2: the job is moved to `discarded`.
#[tokio::test(start_paused = true)]
async fn excess_notifications_are_dropped() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let job = json!({
        "type": "notification.push",
        "args": [{"user_id": "u_789", "message": "New follower!"}],
        "rate_limit": {
            "key": "push-notifications",
            "rate": {"limit": 2, "period": "PT1M"},
            "on_limit": "drop"
        }
    });
    let jobs = client.enqueue_all(6, &job).await;
    let started = client.fetch("default", 10).await;
    assert_eq!(ids(&started), [&jobs[0], &jobs[1]]);
    for job in &jobs[..2] {
        client.ack(job).await;
    }
    sleep(Duration::from_millis(100)).await;
    for job in &jobs[2..] {
        let shown = client.job(job).await;
        assert_eq!(shown["state"], "discarded", "{shown}");
        assert_eq!(shown["errors"][0]["code"], "rate_limit_dropped", "{shown}");
    }
    let counted = client.inspect("push-notifications").await;
    assert_eq!(counted["rate"]["current_count"], 2, "{counted}");
    assert_eq!(counted["waiting_count"], 0, "{counted}");
    sleep(Duration::from_secs(61)).await;
    assert!(
        client.fetch("default", 10).await.is_empty(),
        "what was dropped never runs"
    );
    assert_eq!(pair.behind.count(EventKind::Discarded), 4);
}

/// Jobs that are discarded are lost: the log, the key, the queue and the job itself say so.
#[tokio::test(start_paused = true)]
async fn jobs_that_a_limit_discards_are_told_of() {
    let (log, _logged) = crate::harness::lines::Lines::listen();
    let file = "[[policy]]\nname = \"push\"\nmatch = { queue = \"p\" }\non_limit = \"drop\"\n\
        rate = { limit = 1, period = \"1m\" }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let jobs = client.enqueue_all(4, &plain("p")).await;
    assert_eq!(client.fetch("p", 4).await.len(), 1);
    sleep(Duration::from_millis(100)).await;
    let lines = log.with("id=jobs_dropped");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("WARN"), "{lines:?}");
    assert!(lines[0].contains("policy=push key=push jobs=1"));
    let admin = pair.sidecar.admin();
    for asked in ["key=push", "queue=p", "type=t&queue=p"] {
        let why = admin.why(asked).await;
        assert_eq!(why["cause"], "drops jobs", "{why}");
        let words = why["why"].as_str().unwrap();
        assert!(words.contains("are discarded"), "{why}");
        assert!(words.contains("its window allows"), "{why}");
    }
    let state = admin.state().await;
    let cause = &state["keys"]["rows"][0]["cause"]["name"];
    assert_eq!(cause, "drops jobs", "{state}");
    let gone = admin.why(&format!("job={}", jobs[3])).await;
    assert_eq!(gone["cause"], "dropped", "{gone}");
    assert!(gone["next_start"].is_null(), "{gone}");
}

/// ojs-core: what is past its `expires_at` when it would start is discarded, and never runs. It waited here.
#[tokio::test(start_paused = true)]
async fn a_job_that_expires_while_it_is_held_is_discarded() {
    // The backend's clock is that of the host.
    let host = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let host = u64::try_from(host.as_micros()).unwrap();
    for lax in [Lax::spec, Lax::redis, Lax::lite, Lax::amqp] {
        let (name, net) = (lax().name, Net::Sim(sim::Network::default()));
        let file = "[[policy]]\nname = \"k\"\nkey = \"k:{type}\"\nconcurrency = 1\n";
        let store = Arc::new(MemoryStore::new(host));
        let pair = Pair::with(&net, lax(), file, |start| start.store(store)).await;
        let client = pair.sidecar.client();
        let job = |expires: Option<String>| {
            let options = json!({"queue": "q", "expires_at": expires});
            json!({"type": "t", "args": [], "options": options})
        };
        let first = client.enqueue(job(None)).await;
        let after = |seconds: u64| Some(duration::rfc3339(host + seconds * 1_000_000));
        let late = client.enqueue(job(after(10))).await;
        let good = client.enqueue(job(after(3_600))).await;
        assert_eq!(ids(&client.fetch("q", 3).await), [&first], "{name}");
        // Who asks on keeps it held.
        for _ in 0..10 {
            sleep(Duration::from_secs(2)).await;
            assert!(client.fetch("q", 3).await.is_empty(), "{name}");
        }
        client.ack(&first).await;
        assert_eq!(ids(&client.fetch("q", 3).await), [&good], "{name}");
        sleep(Duration::from_secs(1)).await;
        let shown = client.job(&late).await;
        let is_gone = ["discarded", "cancelled"].contains(&shown["state"].as_str().unwrap());
        assert!(is_gone, "{name}: {shown}");
        let (admin, expired) = (pair.sidecar.admin(), "ojs_throttle_hold_expired_total");
        assert_eq!(admin.metric(expired).await, Some(1.0), "{name}");
        pair.stop().await;
    }
}

/// A time that was never set is shown as one of the year 1 by backends in Go, and means nothing.
#[tokio::test(start_paused = true)]
async fn a_time_to_expire_that_was_never_set_is_none() {
    let says = |head: &http::request::Parts| {
        let job = json!({"id": "a", "type": "t", "queue": "q", "state": "active", "attempt": 1,
            "expires_at": "0001-01-01T00:00:00Z"});
        let body = match head.uri.path() {
            "/ojs/v1/workers/fetch" => json!({"jobs": [job]}),
            _ => json!({"jobs": []}),
        };
        (200, body.to_string().into())
    };
    let file = "[[policy]]\nname = \"k\"\nkey = \"k\"\nconcurrency = 1\n";
    let (backend, _sidecar, client) =
        crate::sidecar::answering::answering_by(Duration::ZERO, file, says).await;
    assert_eq!(ids(&client.fetch("q", 1).await), ["a"]);
    let nacks = backend.requests().into_iter();
    let nacks = nacks.filter(|(head, _)| head.uri.path() == "/ojs/v1/workers/nack");
    assert_eq!(nacks.count(), 0);
}

/// A backend that does not end what is to be dropped is told of. The jobs wait, are tried ever more seldom, and count as
/// dropped once they are.
#[tokio::test(start_paused = true)]
async fn a_drop_that_the_backend_does_not_carry_out_is_told_of() {
    // A nack that fails, and one that retries the job, which no cancel ends then.
    for (status, state) in [(500, "active"), (409, "retryable")] {
        let (lines, _logged) = Lines::listen();
        let (given, ends) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let may_end = Arc::clone(&ends);
        let says = move |head: &http::request::Parts| {
            let ends = may_end.load(Ordering::SeqCst);
            let jobs = ["a", "b", "c", "d"].map(
                |id| json!({"id": id, "type": "t", "queue": "q", "state": "active", "attempt": 1}),
            );
            let (status, body) = match head.uri.path() {
                "/ojs/v1/workers/fetch" if !given.swap(true, Ordering::SeqCst) => {
                    (200, json!({"jobs": jobs}))
                }
                "/ojs/v1/workers/nack" if ends => (200, json!({"state": "discarded"})),
                "/ojs/v1/workers/nack" if status == 500 => (500, json!({})),
                "/ojs/v1/workers/nack" => (200, json!({"state": "retryable"})),
                _ if head.method == Method::DELETE => (409, json!({})),
                path if path.starts_with("/ojs/v1/jobs/") => {
                    (200, json!({"job": {"state": state}}))
                }
                _ => (200, json!({"jobs": []})),
            };
            (status, body.to_string().into())
        };
        let file = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nkey = \"k\"\nconcurrency = 1\n\
            on_limit = \"drop\"\n";
        let (backend, sidecar, client) = answering_by(Duration::ZERO, file, says).await;
        assert_eq!(ids(&client.fetch("q", 4).await), ["a"]);
        sleep(Duration::from_secs(20)).await;
        let told = lines.with("id=drop_refused");
        assert_eq!(told.len(), 1, "{told:?}");
        let words = format!("by=_policy:p status={status}");
        assert!(
            told[0].contains("WARN") && told[0].contains(&words),
            "{told:?}"
        );
        let shown = client.get("/ojs/v1/rate-limits/k").await.json();
        assert_eq!(shown["waiting_count"], 3, "{shown}");
        let dropped = async || {
            let labels = "{policy=\"p\",kind=\"job\",verdict=\"dropped\"}";
            let series = format!("ojs_throttle_decisions_total{labels}");
            sidecar.admin().metric(&series).await.unwrap_or(0.0)
        };
        assert_eq!(dropped().await, 0.0);
        let nacks = backend.requests().into_iter();
        let nacks = nacks.filter(|(head, _)| head.uri.path() == "/ojs/v1/workers/nack");
        let nacks = nacks.count();
        assert!((9..=30).contains(&nacks), "{nacks} for three jobs");
        assert!(client.fetch("q", 4).await.is_empty());

        ends.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(9)).await;
        assert_eq!(dropped().await, 3.0);
        let shown = client.get("/ojs/v1/rate-limits/k").await.json();
        assert_eq!(shown["waiting_count"], 0, "{shown}");
        sidecar.stop().await;
    }
}

/// The end of another job does not make those available that a rate holds back: they are shown as they were until the
/// next FETCH.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_time_is_scheduled_also_after_an_ack() {
    let file = "[[policy]]\nname = \"k\"\nmatch = { queue = \"q\" }\nkey = \"k:{meta.t}\"\n\
        on_limit = \"reschedule\"\nrate = { limit = 1, period = \"5s\" }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let job = json!({"type": "t", "args": [], "meta": {"t": "a"}, "options": {"queue": "q"}});
        jobs.push(client.enqueue(job).await);
    }
    assert_eq!(ids(&client.fetch("q", 3).await), [&jobs[0]]);
    let before = client.job(&jobs[1]).await;
    assert_eq!(before["state"], "scheduled", "{before}");
    client.ack(&jobs[0]).await;
    for job in &jobs[1..] {
        let shown = client.job(job).await;
        assert_eq!(shown["state"], "scheduled", "{shown}");
        assert_eq!(shown["scheduled_at"], before["scheduled_at"], "{shown}");
    }
    let stats = client.get("/ojs/v1/queues/q/stats").await.json();
    assert_eq!(stats["queue"]["available"], 0, "{stats}");
    sleep(Duration::from_secs(6)).await;
    assert_eq!(client.job(&jobs[1]).await["state"], "available");
    assert_eq!(ids(&client.fetch("q", 3).await), [&jobs[1]]);
    pair.stop().await;
}
