//! Limits of a queue by the admin API (7.2).

use super::overrides::at;
use super::prelude::*;
use super::upstream::answering;
use crate::harness::table;

const LIMIT: &str = "/ojs/v1/admin/queues/q/rate-limit";
const CONFIG: &str = "/ojs/v1/admin/queues/q/config";

/// So many slots, and how many of them are taken.
fn slots(limit: u32, active: u32) -> Value {
    json!({"limit": limit, "active": active, "available": limit - active})
}

/// The body of the text; a queue that nothing limited is limited from then on, and no more is claimed
/// than may start.
#[tokio::test(start_paused = true)]
async fn a_queue_is_limited_as_a_whole_and_freed_again() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let jobs = client.enqueue_all(8, &plain("q")).await;
    assert_eq!(client.get(LIMIT).await.status, 404);
    let body = json!({"concurrency": 2, "rate": {"limit": 3, "period": "PT1H"}});
    let state = client.set(LIMIT, body).await;
    assert_eq!(state["queue"], "q");
    assert_eq!(state["concurrency"], slots(2, 0));
    assert_eq!(state["rate"]["limit"], 3);
    assert_eq!(state["rate"]["period"], "PT1H");
    let first = client.fetch("q", 8).await;
    assert_eq!(ids(&first), [&jobs[0], &jobs[1]]);
    assert!(client.fetch("q", 8).await.is_empty());
    let claimed = pair.behind.count(EventKind::Claimed);
    assert_eq!(claimed, 2, "a queue without room is not asked for");
    client.ack(&jobs[0]).await;
    client.ack(&jobs[1]).await;
    assert_eq!(client.fetch("q", 8).await.len(), 1, "three in the hour");
    let seen = client.get(LIMIT).await.json();
    assert_eq!(seen["rate"]["current_count"], 3);
    assert_eq!(seen["override"]["concurrency"], 2);
    let gone = client.delete(LIMIT).await;
    assert_eq!((gone.status, gone.json()), (200, json!({"queue": "q"})));
    assert_eq!(client.fetch("q", 8).await.len(), 5);
    assert_eq!(client.delete(LIMIT).await.status, 404);
}

/// "When both queue-level and job-level rate limits apply, all limits MUST be satisfied", and those of
/// the file with them. A looser one loosens nothing.
#[tokio::test(start_paused = true)]
async fn they_add_to_the_file_s_and_to_the_jobs_own() {
    let (_pair, client) =
        simulated(Lax::spec(), "[[queue]]\nname = \"q\"\nconcurrency = 4\n").await;
    for n in 0..6 {
        let policy = json!({"key": format!("k{}", n % 2), "concurrency": 1});
        let job =
            json!({"type": "t", "args": [n], "options": {"queue": "q", "rate_limit": policy}});
        client.enqueue(job).await;
    }
    let free = client.enqueue_all(6, &plain("q")).await;
    let state = client.set(LIMIT, json!({"concurrency": 100})).await;
    assert_eq!(state["concurrency"]["limit"], 4, "the file's stays");
    let out = client.fetch("q", 12).await;
    let jobs = out.iter();
    let keyed = jobs.filter(|job| job.get("rate_limit").is_some()).count();
    assert_eq!((out.len(), keyed), (4, 2));
    client.set(LIMIT, json!({"concurrency": 3})).await;
    let mut unkeyed = out.iter().filter(|job| job.get("rate_limit").is_none());
    client.ack(id(unkeyed.next().unwrap())).await;
    assert!(client.fetch("q", 12).await.is_empty(), "three are out");
    client.ack(id(unkeyed.next().unwrap())).await;
    let next = client.fetch("q", 12).await;
    assert_eq!(ids(&next), [&free[2]], "one, and not of a taken key");
}

/// Held jobs, claimed before the limit was set, obey it; and go out when it ends by itself.
/// A glob limits each of its queues by itself, and 0 pauses them.
#[tokio::test(start_paused = true)]
async fn a_glob_gives_each_queue_its_own_counters() {
    let limits = "[[queue]]\nname = [\"a-*\", \"b\"]\nconcurrency = 1\n\
        [[queue]]\nname = \"off-?\"\nconcurrency = 0\n";
    let (_pair, client) = simulated(Lax::spec(), limits).await;
    for (queue, starts) in [("a-1", 1), ("a-2", 1), ("b", 1), ("off-1", 0), ("free", 2)] {
        client.enqueue_all(2, &plain(queue)).await;
        assert_eq!(client.fetch(queue, 2).await.len(), starts, "{queue}");
    }
}

#[tokio::test(start_paused = true)]
async fn held_jobs_obey_a_limit_that_is_set_later() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let one = || json!({"key": "k", "concurrency": 1});
    let job = |n: usize| json!({"type": "t", "args": [n], "options": {"queue": "q", "rate_limit": one()}});
    let first = client.enqueue(job(0)).await;
    let second = client.enqueue(job(1)).await;
    let started = client.fetch("q", 2).await;
    assert_eq!(ids(&started), [&first], "the other is held");
    let pause = json!({"concurrency": 0, "expires_at": at(5)});
    client.set(LIMIT, pause).await;
    client.ack(&first).await;
    assert!(client.fetch("q", 2).await.is_empty());
    let began = Instant::now();
    while client.fetch("q", 2).await.is_empty() {
        sleep(Duration::from_millis(100)).await;
        let waited = began.elapsed();
        assert!(waited < Duration::from_secs(6), "{second} does not start");
    }
    assert!(began.elapsed() > Duration::from_millis(4_800));
}

/// Jobs that passed unread before the queue had a limit are out with workers: they have slots too.
#[tokio::test(start_paused = true)]
async fn jobs_that_are_out_already_count() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let jobs = client.enqueue_all(6, &plain("q")).await;
    assert_eq!(client.fetch("q", 3).await.len(), 3);
    let state = client.set(LIMIT, json!({"concurrency": 4})).await;
    assert_eq!(state["concurrency"], slots(4, 3));
    assert_eq!(ids(&client.fetch("q", 6).await), [&jobs[3]]);
    client.ack(&jobs[0]).await;
    assert_eq!(ids(&client.fetch("q", 6).await), [&jobs[4]]);
    for job in &jobs[1..5] {
        client.ack(job).await;
    }
    assert_eq!(client.get(LIMIT).await.json()["concurrency"]["active"], 0);
}

/// `concurrency` and `rate_limit` of the admin API's config, in all spellings, where the backend has no
/// such route.
#[tokio::test(start_paused = true)]
async fn a_queue_s_config_sets_limits_too() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let unrouted = client.get(CONFIG).await.status;
    assert!([404, 405].contains(&unrouted), "the backend's: {unrouted}");
    let about_others = json!({"retention": {"completed": "1d"}});
    let reply = client.put(CONFIG, about_others).await;
    assert_eq!(reply.status, unrouted, "not ours");
    let body =
        json!({"concurrency": 3, "rate_limit": {"limit": 5, "period": "1m"}, "retention": {}});
    let said = client.set(CONFIG, body).await;
    let expected =
        json!({"queue": "q", "concurrency": 3, "rate_limit": {"limit": 5, "period": "PT1M"}});
    assert_eq!(said, expected);
    assert_eq!(client.get(CONFIG).await.json(), expected);
    let state = client.get(LIMIT).await.json();
    assert_eq!(state["concurrency"]["limit"], 3);
    assert_eq!(state["rate"]["limit"], 5);
    client.enqueue_all(9, &plain("q")).await;
    assert_eq!(client.fetch("q", 9).await.len(), 3);
    for (body, rate_limit) in table(
        r#"
        {"concurrency": 4} => {"limit": 5, "period": "PT1M"}
        {"rate_limit": 7} => {"limit": 7, "period": "PT1S"}
        {"rate_limit": {"max_per_second": 2}} => {"throttle": {"limit": 2, "period": "PT1S"}}
        {"rate_limit": null} => null
        "#,
    ) {
        let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let said = client.set(CONFIG, parsed(body)).await;
        assert_eq!(said["concurrency"], 4, "{body}");
        assert_eq!(said["rate_limit"], parsed(rate_limit), "{body}");
    }
    let said = client.set(CONFIG, json!({"concurrency": null})).await;
    assert_eq!(said, json!({"queue": "q"}));
    assert_eq!(client.get(CONFIG).await.status, unrouted);
    assert_eq!(client.get(LIMIT).await.status, 404, "all is taken away");
}

#[tokio::test(start_paused = true)]
async fn parts_that_are_set_at_once_are_all_set_and_reasons_stay() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    let rig = Rig::over(store.clone(), "").await;
    let client = &rig.client;
    store.standing(Some(Fault {
        delay: Duration::from_millis(50),
        ..Fault::NONE
    }));
    let rate = json!({"rate_limit": {"limit": 5, "period": "PT1M"}});
    tokio::join!(
        client.set(CONFIG, json!({"concurrency": 3})),
        client.set(CONFIG, rate.clone())
    );
    store.standing(None);
    let expected =
        json!({"queue": "q", "concurrency": 3, "rate_limit": {"limit": 5, "period": "PT1M"}});
    assert_eq!(client.get(CONFIG).await.json(), expected);

    let pause = json!({"concurrency": 0, "reason": "vendor is away", "by": "ann"});
    client.set(LIMIT, pause).await;
    client.set(CONFIG, rate).await;
    let told = async || client.get(LIMIT).await.json()["override"].clone();
    let set = told().await;
    assert_eq!(set["concurrency"], 0, "{set}");
    assert_eq!(set["reason"], "vendor is away", "{set}");
    assert_eq!(set["by"], "ann", "{set}");
    client.set(CONFIG, json!({"concurrency": 4})).await;
    let set = told().await;
    assert_eq!(set["reason"], Value::Null, "it was of the pause: {set}");
}

/// A backend that has the route gets the body as it came, and its answer comes back with ours in it;
/// what it refuses is not set here either. The control token stays here.
#[tokio::test(start_paused = true)]
async fn the_backend_s_config_goes_on_to_the_backend() {
    let theirs = r#"{"retention": 1.0, "concurrency": 1}"#;
    let ours = theirs.replace(": 1}", ": 5}");
    let token = "control_token = \"s3cret\"\n";
    let (said, sidecar, client) = answering(200, theirs, token).await;
    let body = r#"{"concurrency": 5,  "retention": 1.0}"#;
    let headers = [("authorization", "Bearer s3cret")];
    let reply = client.send(Method::PUT, CONFIG, &headers, body).await;
    assert_eq!((reply.status, reply.text()), (200, ours.clone()));
    let mut heard = said.requests().into_iter();
    let (head, sent) = heard.find(|(head, _)| head.uri.path() == CONFIG).unwrap();
    assert_eq!(sent, body.as_bytes());
    assert_eq!(head.headers.get("authorization"), None);
    assert_eq!(client.get(CONFIG).await.text(), ours);
    sidecar.stop().await;

    let refusal = r#"{"error":{"code":"validation_error"}}"#;
    let (_, _sidecar, client) = answering(422, refusal, "").await;
    let reply = client.put(CONFIG, json!({"concurrency": 5})).await;
    assert_eq!((reply.status, &*reply.text()), (422, refusal));
    assert_eq!(client.get(LIMIT).await.status, 404);
}

/// The admin API's view of one queue has what was set here in its `configuration`, and the rest of
/// the backend's as it was.
#[tokio::test(start_paused = true)]
async fn the_view_of_a_queue_has_its_configuration() {
    let theirs = r#"{"name": "q", "configuration": {"retention": 3}}"#;
    let (_, _sidecar, client) = answering(200, theirs, "").await;
    let view = "/ojs/v1/admin/queues/q";
    assert_eq!(client.get(view).await.text(), theirs);
    let limits =
        json!({"concurrency": 5, "rate": {"limit": 9, "period": "P1M", "window": "calendar"}});
    assert_eq!(client.put(LIMIT, limits).await.status, 200);
    let shown = client.get(view).await.json();
    let expected = json!({"retention": 3, "concurrency": 5,
        "rate_limit": {"limit": 9, "period": "P1M", "window": "calendar", "tz": "UTC"}});
    assert_eq!(shown, json!({"name": "q", "configuration": expected}));
}

/// One entry cannot hold what ends by itself and what stays.
#[tokio::test(start_paused = true)]
async fn what_ends_by_itself_is_not_made_to_stay() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let pause = json!({"concurrency": 0, "expires_at": at(60)});
    client.set(LIMIT, pause).await;
    let rate = json!({"rate_limit": {"max_per_second": 100}});
    let reply = client.put(CONFIG, rate.clone()).await;
    let error = reply.refuses(409, "conflict", "").to_string();
    assert!(error.contains("limits that end by themselves"), "{error}");
    client.enqueue_all(1, &plain("q")).await;
    assert!(client.fetch("q", 1).await.is_empty());
    sleep(Duration::from_secs(61)).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1, "its time is over");
    assert_eq!(client.put(CONFIG, rate).await.status, 200);
}

/// What headers and metrics call a queue's limits is no key, and whoever takes it for one is told where they are.
#[tokio::test(start_paused = true)]
async fn whoever_takes_a_queue_for_a_key_is_told_where_its_limits_are() {
    let config = "[[queue]]\nname = \"q\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    client.enqueue_all(1, &plain("q")).await;
    client.fetch("q", 1).await;
    let none = json!({"concurrency": 0});
    for reply in [
        client.get("/ojs/v1/rate-limits/_queue:q").await,
        client.get("/ojs/v1/rate-limits/queue").await,
        client.put("/ojs/v1/rate-limits/_queue:q", none).await,
        client.delete("/ojs/v1/rate-limits/_queue:q").await,
    ] {
        assert_eq!(reply.status, 404, "{}", reply.text());
        let there = "/ojs/v1/admin/queues/NAME/rate-limit";
        assert!(reply.text().contains(there), "{}", reply.text());
    }
    let text = client.get("/ojs/v1/rate-limits/_queue:q").await.text();
    assert!(!text.contains("nothing of it is used"), "{text}");
}

/// A path names one queue: what is set for a pattern would bind nothing, and is refused. What was set so before can be
/// taken away.
#[tokio::test(start_paused = true)]
async fn a_pattern_is_no_queue() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    for name in ["im*", "im%3F", "im%2a"] {
        let path = |what: &str| format!("/ojs/v1/admin/queues/{name}/{what}");
        for (what, body) in [
            ("rate-limit", json!({"concurrency": 0})),
            ("config", json!({"concurrency": 0})),
            ("config", json!({"backpressure": {"max_depth": 1}})),
        ] {
            let reply = client.put(&path(what), body).await;
            assert_eq!(reply.status, 400, "{}", reply.text());
            assert_eq!(reply.json()["error"]["details"]["field"], "queue");
        }
        let none = json!({"backpressure": null, "concurrency": null});
        let reply = client.put(&path("config"), none).await;
        assert_ne!(reply.status, 400, "{}", reply.text());
        assert_eq!(client.delete(&path("rate-limit")).await.status, 404);
    }
}

/// Limits that the file's leave no say are told to be in vain; those that are stricter are not.
#[tokio::test(start_paused = true)]
async fn what_the_file_s_limits_overrule_has_a_hint() {
    let file = "[[queue]]\nname = \"q\"\nconcurrency = 4\nrate = { limit = 10, period = \"1m\" }\n\
        throttle = { limit = 5, period = \"1s\" }\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let every = |limit: u32, period: &str| json!({"limit": limit, "period": period});
    for (body, in_vain) in [
        (json!({"concurrency": 5}), true),
        (json!({"concurrency": 4}), false),
        (json!({"concurrency": 3}), false),
        (json!({"rate": every(11, "PT1M")}), true),
        (json!({"rate": every(10, "PT1M")}), false),
        (json!({"rate": every(11, "PT1H")}), false),
        (json!({"throttle": every(6, "PT1S")}), true),
        (json!({"throttle": every(4, "PT1S")}), false),
        (json!({"concurrency": 3, "rate": every(11, "PT1M")}), true),
        // Of two of one window the stricter counts.
        (
            json!({"rate": [every(9, "PT1M"), every(20, "PT1M")]}),
            false,
        ),
        (
            json!({"rate": [every(20, "PT1M"), every(11, "PT1M")]}),
            true,
        ),
    ] {
        let state = client.set(LIMIT, body.clone()).await;
        let hint = state["hint"].as_str();
        assert_eq!(hint.is_some(), in_vain, "{body}: {state}");
        assert!(hint.is_none_or(|hint| hint.contains("[[queue]] of the file")));
        assert_eq!(client.get(LIMIT).await.json()["hint"], state["hint"]);
    }
    client.delete(LIMIT).await;
    let state = client.get(LIMIT).await.json();
    assert_eq!(state.get("hint"), None, "{state}");
}
