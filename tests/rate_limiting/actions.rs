//! What becomes of a job that a limit drops: 6.2 (`on_limit`), and the example of 14.4.

use ojs_throttle::duration;

use super::prelude::*;
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
