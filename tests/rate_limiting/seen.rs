//! What is seen from outside: held jobs are `available` (5.1, 6.2, RL-003), inspection tells true
//! numbers (10.1, RL-005), and the mirror in `meta` is nobody's business.

use ojs_throttle::backend::Event;

use super::prelude::*;

fn job(n: usize, rate_limit: Value) -> Value {
    json!({"type": "test.seen", "args": [n], "options": {"queue": "q", "rate_limit": rate_limit}})
}

/// The job as both views show it.
async fn views(client: &Client, job: &str) -> [Value; 2] {
    let admin = client.get(&format!("/ojs/v1/admin/jobs/{job}")).await;
    [client.job(job).await, admin.json()]
}

#[tokio::test(start_paused = true)]
async fn a_held_job_is_available_with_the_attempt_it_had() {
    for lax in [Lax::spec, Lax::redis, Lax::postgres, Lax::lite, Lax::amqp] {
        let name = lax().name;
        let (pair, client) = simulated(lax(), "").await;
        let one = || json!({"key": "k", "concurrency": 1, "on_limit": "wait"});
        // One after the other: some backends give two jobs in any order.
        let running = client.enqueue(job(0, one())).await;
        assert_eq!(ids(&client.fetch("q", 1).await), [&running], "{name}");
        let waiting = client.enqueue(job(1, one())).await;
        let before = views(&client, &waiting).await;
        assert!(ids(&client.fetch("q", 1).await).is_empty(), "{name}");
        let ledger = pair.behind.backend.ledger();
        let claim = |e: &Event| e.kind == EventKind::Claimed && *e.job == *waiting;
        let held = ledger.iter().any(claim);
        assert!(held, "{name}: it was not held, so this shows nothing");
        // Through several heartbeats, and the time after which an idle hold gives back.
        let beat =
            json!({"worker_id": "w", "active_jobs": [running], "visibility_timeout_ms": 600_000});
        for wait in [0, 1, 9, 30, 120] {
            // Some backends give a worker 30 s from its last sign of life, whatever it asks for.
            for passed in (0..wait).step_by(20) {
                let reply = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
                assert_eq!(reply.await.status, 200);
                sleep(Duration::from_secs(20.min(wait - passed))).await;
            }
            let now = views(&client, &waiting).await;
            // What a backend leaves on a job that was given back is its own affair.
            let given_back = |e: &Event| e.kind == EventKind::Requeued && *e.job == *waiting;
            let held = !pair.behind.backend.ledger().iter().any(given_back);
            for (then, now) in before.iter().zip(now) {
                let all = "id state attempt queue args started_at worker_id rate_limit meta";
                for member in all.split(' ') {
                    if held || !["started_at", "worker_id"].contains(&member) {
                        let (now, then) = (now.get(member), then.get(member));
                        assert_eq!(now, then, "{name} after {wait} s: {member}");
                    }
                }
                assert_eq!(now["state"], "available", "{name}");
            }
        }
        let stats = client.get("/ojs/v1/queues/q/stats").await.json();
        let seen = ["available", "active"].map(|state| &stats["queue"][state]);
        assert_eq!(seen, [1, 1], "{name}");
        client.ack(&running).await;
        let next = client.fetch("q", 2).await;
        assert_eq!(ids(&next), [&waiting], "{name}");
        assert_eq!(next[0]["state"], "active", "{name}");
        pair.stop().await;
    }
}

/// 10.1, to the member.
#[tokio::test(start_paused = true)]
async fn inspection_has_the_shape_of_the_text_and_true_numbers() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let policy = || {
        json!({"key": "stripe-api", "concurrency": 5, "rate": {"limit": 100, "period": "PT1M"},
               "throttle": {"limit": 10, "period": "PT1S"}})
    };
    let inspect = async || client.inspect("stripe-api").await;
    let unnamed = client.get("/ojs/v1/rate-limits/stripe-api").await;
    assert_eq!(unnamed.status, 404, "not named yet");
    client.enqueue_all(4, &job(0, policy())).await;
    let shape = |seen: &Value| {
        seen.as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let slots = |active| json!({"limit": 5, "active": active, "available": 5 - active});
    let before = inspect().await;
    assert_eq!(before["waiting_count"], 4);
    assert_eq!(before["concurrency"], slots(0));
    assert_eq!(before["rate"]["current_count"], 0);
    let first = client.fetch("q", 1).await;
    sleep(Duration::from_millis(20)).await;
    let seen = inspect().await;
    // Those of the text, and flat ones for the command line and the admin UI.
    let members = "active at available concurrency estimated key limit limited_by next_start period rate throttle \
        unit waiting waiting_count waiting_done";
    assert_eq!(shape(&seen).join(" "), members);
    assert_eq!(seen["key"], "stripe-api");
    assert_eq!(seen["concurrency"], slots(1));
    let (rate, throttle) = (&seen["rate"], &seen["throttle"]);
    let members = ["current_count", "limit", "period", "window_resets_at"];
    assert_eq!(shape(rate), members);
    assert_eq!(
        (&rate["limit"], &rate["period"]),
        (&json!(100), &json!("PT1M"))
    );
    assert_eq!(rate["current_count"], 1);
    assert_eq!(shape(throttle), ["limit", "next_allowed_at", "period"]);
    assert_eq!(
        (&throttle["limit"], &throttle["period"]),
        (&json!(10), &json!("PT1S"))
    );
    assert_eq!(seen["waiting_count"], 3);
    // Both count from the one start: 60 s and 5 ms later, and 100 ms later.
    let at = |value: &Value| {
        let at: jiff::Timestamp = value.as_str().unwrap().parse().unwrap();
        at.as_millisecond()
    };
    let apart = at(&rate["window_resets_at"]) - at(&throttle["next_allowed_at"]);
    assert!((59_900..=59_906).contains(&apart), "{seen}");
    client.ack(id(&first[0])).await;
    let after = inspect().await;
    assert_eq!(after["concurrency"]["active"], 0);
    let counted = &after["rate"]["current_count"];
    assert_eq!(counted, 1, "a start counts on after the job has ended");
    sleep(Duration::from_secs(61)).await;
    assert_eq!(inspect().await["rate"]["current_count"], 0);

    let unknown = client.get("/ojs/v1/rate-limits/nobody").await;
    unknown.refuses(404, "not_found", "");
    let kind = &unknown.headers["content-type"];
    assert_eq!(kind, "application/openjobspec+json");
    let encoded = client.get("/ojs/v1/rate-limits/stripe%2Dapi").await;
    assert_eq!(encoded.json()["key"], "stripe-api");
}

/// A mirror tells workers nothing and may not change what they see of a job.
#[tokio::test(start_paused = true)]
async fn the_mirror_is_never_seen() {
    let (_pair, client) = simulated(Lax::redis(), "").await;
    let policy = json!({"concurrency": 9, "key": "k", "x-note": [1.0, "kept"]});
    let retry = json!({"max_attempts": 1, "on_exhaustion": "dead_letter"});
    let plain = json!({"type": "t.a", "args": [1], "options": {"queue": "q", "visibility_timeout_ms": 9000,
                       "rate_limit": policy, "retry": retry}});
    let with_meta = json!({"type": "t.b", "args": [2], "meta": {"mine": 1},
                           "options": {"queue": "q", "rate_limit": policy, "retry": retry}});
    let mut texts = Vec::new();
    let mut say = |what: &str, reply: &Reply| {
        let is_done = (200..300).contains(&reply.status);
        assert!(is_done, "{what}: {}", reply.text());
        texts.push((what.to_owned(), reply.text()));
    };
    let stored = client.post("/ojs/v1/jobs", plain.to_string()).await;
    say("enqueue", &stored);
    let batch = json!({"jobs": [plain, with_meta, with_meta]}).to_string();
    say("batch", &client.post("/ojs/v1/jobs/batch", batch).await);
    let list = "/ojs/v1/admin/jobs?state=";
    say(
        "list available",
        &client.get(&format!("{list}available")).await,
    );
    say("list", &client.get("/ojs/v1/admin/jobs").await);
    let body = json!({"queues": ["q"], "count": 3, "worker_id": "w"}).to_string();
    let fetched = client.post("/ojs/v1/workers/fetch", body).await;
    say("fetch", &fetched);
    let jobs = fetched.json()["jobs"].as_array().unwrap().clone();
    assert_eq!(jobs.len(), 3);
    for (what, path) in [("get", "jobs"), ("admin get", "admin/jobs")] {
        let path = format!("/ojs/v1/{path}/{}", id(&jobs[1]));
        say(what, &client.get(&path).await);
    }
    say("list active", &client.get(&format!("{list}active")).await);
    say("ack", &client.ack(id(&jobs[0])).await);
    say("nack", &client.nack(id(&jobs[1]), false).await);
    say("dead letters", &client.get("/ojs/v1/dead-letter").await);
    let retry = format!("/ojs/v1/dead-letter/{}/retry", id(&jobs[1]));
    say("retry of a dead letter", &client.post(&retry, "").await);
    say("cancel", &client.cancel(id(&jobs[2])).await);
    let path = format!("/ojs/v1/admin/jobs/{}/retry", id(&jobs[2]));
    say("admin retry", &client.post(&path, "").await);
    let again = client.fetch("q", 1).await;
    say("ack of a retried one", &client.ack(id(&again[0])).await);
    for (what, text) in &texts {
        assert!(!text.contains("mirror"), "{what}: {text}");
        let as_sent = text.contains(r#""x-note":[1.0,"kept"]"#);
        assert!(as_sent, "{what} has lost the policy as sent: {text}");
    }
    assert_eq!(jobs[0].get("meta"), None, "one that had no meta has none");
    assert_eq!(jobs[1]["rate_limit"], policy);
    let other = jobs.iter().find(|job| job["type"] == "t.b").unwrap();
    assert_eq!(other["meta"], json!({"mine": 1}));
}

/// A cancel or pause of a held job works at once; resuming gives it out again.
#[tokio::test(start_paused = true)]
async fn pause_cancel_and_delete_reach_a_held_job() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let one = json!({"key": "k", "concurrency": 1});
    let jobs = client.enqueue_all(4, &job(0, one)).await;
    assert_eq!(ids(&client.fetch("q", 4).await), [&jobs[0]]);
    let gone = client.cancel(&jobs[1]).await;
    assert_eq!(gone.json()["job"]["state"], "cancelled");
    let cancel = format!("/ojs/v1/admin/jobs/{}/cancel", jobs[2]);
    let gone = client.post(&cancel, "").await;
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(client.post("/ojs/v1/queues/q/pause", "").await.status, 200);
    client.ack(&jobs[0]).await;
    assert!(client.fetch("q", 4).await.is_empty(), "paused");
    assert_eq!(client.post("/ojs/v1/queues/q/resume", "").await.status, 200);
    let left = client.fetch("q", 4).await;
    assert_eq!(ids(&left), [&jobs[3]], "neither of the cancelled");
}

/// Some backends let a producer's own top-level `queue` overwrite the real one in what they show.
#[tokio::test(start_paused = true)]
async fn a_job_that_shows_another_queue_is_not_lost() {
    let (_pair, client) = simulated(Lax::redis(), "").await;
    let flat = |n: usize| json!({"type": "t", "args": [n], "queue": "email", "rate_limit": {"key": "k", "concurrency": 1}});
    let first = client.enqueue(flat(0)).await;
    let second = client.enqueue(flat(1)).await;
    let asked = || json!({"queues": ["other", "default"], "count": 2, "worker_id": "w"});
    assert_eq!(ids(&client.fetch_as(asked()).await), [&first]);
    client.ack(&first).await;
    assert_eq!(ids(&client.fetch_as(asked()).await), [&second]);
}

/// A heartbeat may name jobs that the worker claimed and jobs that the sidecar claimed for it: both
/// stay alive, and the answer names both.
#[tokio::test(start_paused = true)]
async fn one_heartbeat_keeps_jobs_of_two_claims_alive() {
    let config = "[[queue]]\nname = \"limited\"\nconcurrency = 5\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    let own = client.enqueue(plain("free")).await;
    let ours = client.enqueue(plain("limited")).await;
    let asked =
        |queue: &str| json!({"queues": [queue], "worker_id": "w", "visibility_timeout_ms": 5000});
    assert_eq!(ids(&client.fetch_as(asked("free")).await), [&own]);
    assert_eq!(ids(&client.fetch_as(asked("limited")).await), [&ours]);
    let beat = json!({"worker_id": "w", "active_jobs": [own, ours], "visibility_timeout_ms": 5000});
    for _ in 0..5 {
        sleep(Duration::from_secs(4)).await;
        let told = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
        let told = told.await.json();
        let extended = told["jobs_extended"].as_array().unwrap();
        assert_eq!(extended.len(), 2, "{told}");
        assert!(
            [&own, &ours]
                .iter()
                .all(|job| extended.contains(&json!(job))),
            "{told}"
        );
        assert_eq!(told["state"], "running");
    }
    client.ack(&own).await;
    client.ack(&ours).await;
    assert_eq!(pair.behind.count(EventKind::Expired), 0);
}

/// A heartbeat that says no visibility is worth what the backend gives (30 s) for a job that the sidecar claimed too,
/// however little the job has of its own, and no less than the job's own. It may name the job alone.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_without_a_visibility_is_worth_what_the_backend_gives() {
    let config = "[[queue]]\nname = \"limited\"\nconcurrency = 1\n";
    for lax in [Lax::spec(), Lax::redis()] {
        let (pair, client) = simulated(lax, config).await;
        for (queue, own, pause) in [("free", 3, 15), ("limited", 3, 15), ("limited", 600, 500)] {
            let job = json!({"type": "t", "args": [], "options": {"queue": queue, "visibility_timeout_ms": own * 1000}});
            let job = client.enqueue(job).await;
            assert_eq!(ids(&client.fetch(queue, 1).await), [&job]);
            for named in [
                json!({"active_jobs": [job], "job_id": null}),
                json!({"job_id": job}),
            ] {
                sleep(Duration::from_secs(2)).await;
                let mut beat = named;
                beat["worker_id"] = json!("w");
                let beat = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
                let reply = beat.await;
                assert_eq!(reply.status, 200, "{queue}: {}", reply.text());
                assert_eq!(reply.json()["jobs_extended"], json!([job]));
                sleep(Duration::from_secs(pause)).await;
            }
            client.ack(&job).await;
        }
        assert_eq!(pair.behind.count(EventKind::Expired), 0);
        pair.stop().await;
    }
}

/// A number in `active_jobs` is the backend's to refuse where it is not to be mended, also when it stands
/// beside a limited job; mended, the job is extended.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_is_not_to_be_mended_is_not() {
    for mended in [true, false] {
        let config = format!(
            "[repairs]\nheartbeat_active_jobs = {mended}\n[[queue]]\nname = \"q\"\nconcurrency = 5\n"
        );
        let (pair, client) = simulated(Lax::redis(), &config).await;
        let behind = Client::new(&client.net, pair.behind.addr);
        let plain = plain("q");
        let ours = client.enqueue(plain).await;
        assert_eq!(ids(&client.fetch("q", 1).await), [&ours]);
        let beat = json!({"worker_id": "w", "state": "running", "active_jobs": 1, "active_job_ids": [ours]});
        let beat = |to: &Client| {
            let (to, beat) = (to.clone(), beat.to_string());
            async move { to.post("/ojs/v1/workers/heartbeat", beat).await }
        };
        let (direct, reply) = (beat(&behind).await, beat(&client).await);
        assert_eq!(direct.status, 400, "{}", direct.text());
        if mended {
            assert_eq!(reply.status, 200);
            assert_eq!(reply.json()["jobs_extended"], json!([ours]));
        } else {
            let code = direct.json()["error"]["code"].clone();
            reply.refuses(direct.status, code.as_str().unwrap(), "");
        }
        client.ack(&ours).await;
        pair.stop().await;
    }
}

/// Backends speak to a worker by the jobs it has; the claim is the sidecar's, the word is the worker's.
#[tokio::test(start_paused = true)]
async fn a_directive_for_a_job_of_ours_reaches_its_worker() {
    let config = "[[queue]]\nname = \"q\"\nconcurrency = 5\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    for (directive, state) in [("quiet", "quiet"), ("terminate", "terminate")] {
        let told = json!({"type": "t", "args": [], "options": {"queue": "q", "metadata": {"test_directive": directive}}});
        let job = client.enqueue(told).await;
        assert_eq!(ids(&client.fetch("q", 1).await), [&job]);
        let beat = json!({"worker_id": "w", "active_jobs": [job]}).to_string();
        let reply = client.post("/ojs/v1/workers/heartbeat", beat).await.json();
        assert_eq!(
            (&reply["state"], &reply["directive"]),
            (&json!(state), &json!(directive))
        );
        assert_eq!(reply["jobs_extended"], json!([job]));
        client.ack(&job).await;
    }
}

/// Whoever names a tenant is told of no other's held jobs in the numbers of queues: of those the backend's word
/// stands. Who names none sees all.
#[tokio::test(start_paused = true)]
async fn a_tenant_sees_no_held_jobs_of_another() {
    let policy = "[[policy]]\nname = \"p\"\nkey = \"k:{meta.t}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), policy).await;
    client.enqueue_all(2, &plain("q")).await;
    let out = client.with("x-ojs-tenant", "B").fetch("q", 2).await;
    assert_eq!(out.len(), 1, "the other is held");
    for (tenant, available, active) in [("A", 0, 2), ("B", 1, 1), ("", 1, 1)] {
        let named = match tenant {
            "" => client.clone(),
            name => client.with("x-ojs-tenant", name),
        };
        let stats = named.get("/ojs/v1/queues/q/stats").await.json();
        let seen = ["available", "active"].map(|state| &stats["queue"][state]);
        assert_eq!(seen, [available, active], "{tenant}");
    }
}

/// 10.1, "the current state": all that stands for a key, whoever says it.
#[tokio::test(start_paused = true)]
async fn inspection_shows_the_strictest_of_all_that_stand_for_a_key() {
    let config = "[[policy]]\nname = \"one\"\nmatch = { type = \"a.*\" }\nkey = \"k\"\nconcurrency = 5\n\
        rate = { limit = 10, period = \"1m\" }\n\
        [[policy]]\nname = \"two\"\nkey = \"k\"\nconcurrency = 2\n\
        rate = [{ limit = 7, period = \"1m\" }, { limit = 99, period = \"1h\" }]\n\
        [[policy]]\nname = \"smtp\"\nmatch = { queue = \"other\" }\nconcurrency = 20\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let inspect = async |key: &str| client.inspect(key).await;
    let slots = |limit: u32, active: u32| json!({"limit": limit, "active": active, "available": limit - active});
    let seen = inspect("k").await;
    assert_eq!(seen["concurrency"], slots(2, 0), "{seen}");
    assert_eq!(seen["rate"]["limit"], 7, "{seen}");
    assert_eq!(seen["rate_2"]["limit"], 99, "{seen}");
    assert!(seen.get("rate_3").is_none(), "one of each period: {seen}");

    let brought = |limits: Value| json!({"type": "a.b", "args": [], "options": {"queue": "q", "rate_limit": limits}});
    let hourly = json!({"key": "smtp", "rate": {"limit": 1, "period": "PT1H"}});
    client.enqueue(brought(hourly.clone())).await;
    let seen = inspect("smtp").await;
    assert_eq!(seen["concurrency"], slots(20, 0), "{seen}");
    assert_eq!(seen["rate"]["limit"], 1, "{seen}");
    // What waits counts too, and not the last word alone.
    client.enqueue(brought(hourly)).await;
    assert_eq!(client.fetch("q", 2).await.len(), 1);
    let nine = json!({"key": "smtp", "concurrency": 9});
    client.enqueue(brought(nine)).await;
    let seen = inspect("smtp").await;
    assert_eq!(seen["concurrency"], slots(9, 1), "{seen}");
    assert_eq!(seen["rate"]["current_count"], 1, "{seen}");
}

/// A spacing is shown whole, from the file and where it is set.
#[tokio::test(start_paused = true)]
async fn inspection_shows_the_burst_of_a_spacing() {
    let config =
        "[[policy]]\nname = \"k\"\nthrottle = { limit = 10, period = \"1s\", burst = 5 }\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let seen = client.inspect("k").await;
    assert_eq!(seen["throttle"]["burst"], 5, "{seen}");
    let spacing = json!({"throttle": {"limit": 10, "period": "PT1S", "burst": 2}});
    let seen = client.limit("k", spacing).await;
    assert_eq!(seen["throttle"]["burst"], 2, "{seen}");
    assert_eq!(seen["override"]["throttle"]["burst"], 2, "{seen}");
}
