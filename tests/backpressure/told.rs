//! Events (10.1) and metrics (10.2), and the two bounds by time.

use tokio::time::timeout;

use super::prelude::*;
use crate::sidecar::listen::{Heard, Listener};
use crate::sidecar::simulated::{Start, backend};

const STREAM: &str = "/ojs/v1/events/stream?types=backpressure.*";

fn told(heard: &[Heard]) -> Vec<(&str, serde_json::Value)> {
    let each = heard.iter();
    each.map(|heard| (heard.event.as_str(), heard.data["data"].clone()))
        .collect()
}

/// BP-004 and its like: edges, each with exactly the fields of the text.
#[tokio::test(start_paused = true)]
async fn edges_are_told_once() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client
        .bound("q", json!({"max_depth": 5, "warning_threshold": 0.8}))
        .await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    client.fill("q", 3).await;
    assert!(stream.so_far().await.is_empty());
    client.fill("q", 2).await;
    full(&client.offer("q").await, "q", 5);
    let heard = stream.so_far().await;
    let warning = json!({"queue": "q", "depth": 4, "bound": 5});
    let rejected = json!({"queue": "q", "depth": 5, "bound": 5, "job_type": "t.x"});
    let expected = [
        ("backpressure.warning", warning),
        ("backpressure.rejected", rejected),
    ];
    assert_eq!(told(&heard), expected);
    assert_eq!(heard[0].data["subject"], "q");
    assert_eq!(heard[0].data["queue"], "q");
    // Nobody enqueues any more: it is known all the same that it is well again.
    client.fetch("q", 3).await;
    let heard = stream.next().await;
    let cleared = json!({"queue": "q", "depth": 2, "bound": 5});
    assert_eq!(heard.id.as_deref(), heard.data["id"].as_str());
    assert_eq!(told(&[heard]), [("backpressure.cleared", cleared)]);
    sleep(Duration::from_millis(2_500)).await;
    client.fill("q", 3).await;
    full(&client.offer("q").await, "q", 5);
    let kinds: Vec<String> = stream.so_far().await.into_iter().map(|h| h.event).collect();
    assert_eq!(kinds, ["backpressure.warning", "backpressure.rejected"]);
    pair.stop().await;
}

/// BP-004: one event for each enqueue that is refused.
#[tokio::test(start_paused = true)]
async fn each_enqueue_that_is_refused_has_an_event() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 3})).await;
    let types = "/ojs/v1/events/stream?types=backpressure.rejected";
    let mut stream = Listener::open(&client, types, &[]).await;
    client.fill("q", 3).await;
    full(&client.offer("q").await, "q", 3);
    client.fetch("q", 1).await;
    client.fill("q", 1).await;
    for _ in 0..12 {
        full(&client.offer("q").await, "q", 3);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(stream.so_far().await.len(), 13);
    pair.stop().await;
}

/// A producer that stands in line is told nothing yet: the next one that is refused is.
#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_while_somebody_waits() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let bounds = json!({"max_depth": 1, "strategy": "block"});
    client.bound("q", bounds).await;
    client.fill("q", 1).await;
    let path = "/ojs/v1/events/stream?types=backpressure.rejected";
    let mut stream = Listener::open(&client, path, &[]).await;
    let waits = client.clone();
    let waits = tokio::spawn(async move { waits.offer_blocking("q", "20").await });
    sleep(Duration::from_millis(300)).await;
    assert!(stream.so_far().await.is_empty());
    full(&client.offer("q").await, "q", 1);
    full(&client.offer("q").await, "q", 1);
    assert_eq!(stream.so_far().await.len(), 2);
    client.fetch("q", 1).await;
    assert_eq!(waits.await.unwrap().status, 201);
    pair.stop().await;
}

/// A queue that is full while workers take jobs of it, and a queue that takes so many a second, are the normal
/// overload: a line in ten seconds, which is what the producer reads.
#[tokio::test(start_paused = true)]
async fn a_full_queue_has_a_line_in_ten_seconds() {
    let (_guard, log) = logged();
    let file = "[[queue]]\nname = \"rated\"\nenqueue_rate = { limit = 1, period = \"1s\" }\n\
        [[queue]]\nname = \"q\"\nmax_depth = 3\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    client.fill("q", 3).await;
    for _ in 0..25 {
        full(&client.offer("q").await, "q", 3);
        client.offer("rated").await;
        assert_eq!(client.offer("rated").await.status, 429);
        client.fetch("q", 1).await;
        client.fill("q", 1).await;
        sleep(Duration::from_secs(1)).await;
    }
    let lines = log.with("refused");
    let of = |queue: &str| {
        let field = format!("queue=\"{queue}\"");
        let lines = lines.iter().filter(|line| line.contains(&field));
        lines.collect::<Vec<_>>()
    };
    assert_eq!((of("q").len(), of("rated").len()), (3, 3), "{lines:#?}");
    for (queue, why) in [
        (
            "q",
            "Queue 'q' has reached its depth bound (3): 3 jobs wait",
        ),
        (
            "rated",
            "Queue 'rated' has taken the 1 jobs that may be enqueued in its period",
        ),
    ] {
        let lines = of(queue);
        let is_warning = |line: &&&String| line.starts_with("WARN") && line.contains(why);
        assert_eq!(lines.iter().filter(is_warning).count(), 3, "{lines:#?}");
    }
    pair.stop().await;
}

/// What is refused although its queue is not full is told in its own words.
#[tokio::test(start_paused = true)]
async fn each_bound_is_told_in_its_own_words() {
    let (_guard, log) = logged();
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 5\n\
        [[queue]]\nname = \"rated\"\nenqueue_rate = { limit = 1, period = \"9s\" }\n\
        [[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 1 }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let types = "/ojs/v1/events/stream?types=backpressure.rejected";
    let mut stream = Listener::open(&client, types, &[]).await;
    let of_acme = json!({"type": "t.x", "args": [], "meta": {"tenant_id": "acme"}, "options": {"queue": "t"}});
    client.enqueue(of_acme.clone()).await;
    let reply = client.post("/ojs/v1/jobs", of_acme.to_string()).await;
    assert_eq!(reply.status, 429);
    assert_eq!(client.offer_all(&["q"; 6]).await.status, 429);
    client.fill("rated", 1).await;
    assert_eq!(client.offer("rated").await.status, 429);
    let heard = stream.so_far().await;
    let rejected = |queue: &str, depth: u64, bound: u64, more: serde_json::Value| {
        let mut data = json!({"queue": queue, "depth": depth, "bound": bound, "job_type": "t.x"});
        for (name, value) in more.as_object().unwrap() {
            data[name] = value.clone();
        }
        ("backpressure.rejected", data)
    };
    let tenant = json!({"code": "TENANT_LIMIT_EXCEEDED", "tenant_id": "acme"});
    let expected = [
        rejected("t", 1, 1, tenant),
        rejected("q", 0, 5, json!({})),
        rejected("rated", 1, 1, json!({"code": "rate_limited"})),
    ];
    assert_eq!(told(&heard), expected);
    for why in [
        "Tenant 'acme' has exceeded max_queue_depth (1): 1 job waits",
        "Queue 'q' has no room for so many jobs: 0 jobs wait, and its depth bound is 5; so many jobs at once can never fit",
    ] {
        assert_eq!(log.with(why).len(), 1, "{why}");
    }
    pair.stop().await;
}

/// Of a long type its beginning is told.
#[tokio::test(start_paused = true)]
async fn a_refusal_tells_the_beginning_of_a_type() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 1})).await;
    client.fill("q", 1).await;
    let path = "/ojs/v1/events/stream?types=backpressure.rejected";
    let mut stream = Listener::open(&client, path, &[]).await;
    let kind = format!("t{}", "\u{e9}".repeat(1_000));
    let job = json!({"type": kind, "args": [], "options": {"queue": "q"}});
    let reply = client.post("/ojs/v1/jobs", job.to_string()).await;
    assert_eq!(reply.status, 429);
    let heard = stream.next().await;
    let told = heard.data["data"]["job_type"].as_str().unwrap();
    assert!(kind.starts_with(told) && told.len() == 127, "{told}");
    pair.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_job_is_told() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client
        .bound(
            "q",
            json!({"max_depth": 2, "strategy": "drop_oldest", "warning_threshold": 1}),
        )
        .await;
    let mut stream = Listener::open(
        &client,
        "/ojs/v1/events/stream?types=backpressure.dropped",
        &[],
    )
    .await;
    let jobs = client.fill("q", 4).await;
    let heard = stream.so_far().await;
    let dropped = |job: &str| {
        let data = json!({"queue": "q", "job_id": job, "job_type": "t.x"});
        ("backpressure.dropped", data)
    };
    assert_eq!(told(&heard), [dropped(&jobs[0]), dropped(&jobs[1])]);
    assert_eq!(heard[1].data["subject"], *jobs[1]);
    pair.stop().await;
}

/// BP-R005 and the counters.
#[tokio::test(start_paused = true)]
async fn pressure_is_measured() {
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 4\n[[queue]]\nname = \"d\"\nmax_depth = 2\nstrategy = \"drop_oldest\"\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let admin = pair.sidecar.admin();
    client.fill("d", 4).await;
    client.fill("q", 3).await;
    let pressure = async || admin.metric("ojs_backpressure_pressure{queue=\"q\"}").await;
    assert_eq!(pressure().await, Some(0.75));
    let page = admin.get("/metrics").await.text();
    assert!(!page.contains("ojs_backpressure_rejected_total{"), "{page}");
    client.fill("q", 1).await;
    client.offer("q").await;
    client.offer_all(&["q", "q"]).await;
    assert_eq!(pressure().await, Some(1.0));
    let rejected = "ojs_backpressure_rejected_total{queue=\"q\"}";
    assert_eq!(admin.metric(rejected).await, Some(2.0));
    client.fetch("q", 4).await;
    assert_eq!(pressure().await, Some(0.0));
    let dropped = "ojs_backpressure_dropped_total{queue=\"d\"}";
    assert_eq!(admin.metric(dropped).await, Some(2.0));
}

/// A queue that is full when a sidecar comes up is measured although nobody enqueues.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_full_before_is_measured() {
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::spec()).await;
    for queue in ["q", "q", "q", "free"] {
        directly(&behind.backend, "/ojs/v1/jobs", job(queue)).await;
    }
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 4\nwarning_threshold = 0.7\n";
    let sidecar = Start::before(&net, &behind.base(), file).start().await;
    let (client, admin) = (sidecar.client(), sidecar.admin());
    sleep(Duration::from_millis(500)).await;
    let page = admin.get("/metrics").await.text();
    let lines = page
        .lines()
        .filter(|line| line.starts_with("ojs_backpressure_pressure{"));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines, ["ojs_backpressure_pressure{queue=\"q\"} 0.75"]);
    let health = client.get("/ojs/v1/health").await.json();
    assert_eq!(health["throttle"]["near_bound"], 1, "{health}");
    // It is watched from then on.
    let fetch = json!({"queues": ["q"], "count": 3, "worker_id": "around"});
    directly(&behind.backend, "/ojs/v1/workers/fetch", fetch).await;
    sleep(Duration::from_secs(3)).await;
    let pressure = "ojs_backpressure_pressure{queue=\"q\"}";
    assert_eq!(admin.metric(pressure).await, Some(0.0));
}

/// So is one that is full when it gets a bound, over HTTP or by another file.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_full_before_its_bound_is_measured() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.fill("q", 3).await;
    let types = "/ojs/v1/events/stream?types=backpressure.warning";
    let mut stream = Listener::open(&client, types, &[]).await;
    client.bound("q", json!({"max_depth": 3})).await;
    sleep(Duration::from_secs(2)).await;
    let warning = json!({"queue": "q", "depth": 3, "bound": 3});
    assert_eq!(
        told(&stream.so_far().await),
        [("backpressure.warning", warning)]
    );
    pair.stop().await;
}

/// A full queue is asked about every second while somebody uses it, and once a minute if nobody does for long.
#[tokio::test(start_paused = true)]
async fn a_queue_that_nobody_uses_is_asked_about_less_and_less() {
    let depth = Arc::new(AtomicU64::new(4));
    let now = depth.clone();
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/queues" => (200, r#"{"queues":[{"name":"q"}]}"#.to_owned()),
        _ if !path.contains("/queues/q") => (404, "404 page not found".to_owned()),
        _ => {
            let available = now.load(Ordering::SeqCst);
            (200, json!({"counts": {"available": available}}).to_string())
        }
    };
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 4\nwarning_threshold = 0.1\n";
    let (backend, sidecar, client) =
        crate::backpressure::rig::told(file, Duration::ZERO, answers).await;
    let looks = async |seconds| {
        let before = backend.asked(Method::GET, "/queues/q");
        sleep(Duration::from_secs(seconds)).await;
        backend.asked(Method::GET, "/queues/q") - before
    };
    full(&client.offer("q").await, "q", 4);
    assert!(looks(6).await >= 4, "it was just used");
    // Every 1, 2, 4, 8, 16 and 32 s.
    assert!((5..=8).contains(&looks(64).await));
    assert!((9..=11).contains(&looks(600).await));
    // Somebody tries again.
    full(&client.offer("q").await, "q", 4);
    assert!(looks(6).await >= 4);
    looks(600).await;
    // Jobs come and go behind our back: that is seen within a minute, and followed from then on.
    for round in 0..40 {
        depth.store(1 + round % 2, Ordering::SeqCst);
        let looks = looks(2).await;
        assert!(round < 30 || looks >= 1, "round {round}");
    }
    sidecar.stop().await;
}

/// That workers make room is told at once, although the queue was not asked about for long.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_full_for_long_is_told_to_be_well_again() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 5})).await;
    client.fill("q", 5).await;
    sleep(Duration::from_secs(630)).await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    client.fetch("q", 3).await;
    let cleared = json!({"queue": "q", "depth": 2, "bound": 5});
    let heard = timeout(Duration::from_secs(2), stream.next()).await;
    assert_eq!(told(&[heard.unwrap()]), [("backpressure.cleared", cleared)]);
    pair.stop().await;
}

/// What the backend does not tell without a producer's credentials is asked with them.
#[tokio::test(start_paused = true)]
async fn a_queue_that_nobody_tells_of_at_the_start_is_asked_about_later() {
    let may = Arc::new(AtomicBool::new(false));
    let now = may.clone();
    let answers = move |_: &Method, path: &str| match path {
        "/ojs/v1/queues" => (200, r#"{"queues":[{"name":"q"}]}"#.to_owned()),
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned()),
        _ if !path.contains("/queues/q") => (404, "404 page not found".to_owned()),
        _ if now.load(Ordering::SeqCst) => (200, r#"{"counts":{"available":4}}"#.to_owned()),
        _ => (401, r#"{"error":{"code":"unauthorized"}}"#.to_owned()),
    };
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 4\n";
    let (backend, sidecar, client) =
        crate::backpressure::rig::told(file, Duration::ZERO, answers).await;
    sleep(Duration::from_millis(500)).await;
    assert!(backend.asked(Method::GET, "/queues/q") > 0);
    may.store(true, Ordering::SeqCst);
    full(&client.offer("q").await, "q", 4);
    sidecar.stop().await;
}

/// Other bounds count at once, although nobody enqueues.
#[tokio::test(start_paused = true)]
async fn pressure_is_that_of_the_bounds_of_now() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let admin = pair.sidecar.admin();
    client.bound("q", json!({"max_depth": 4})).await;
    client.fill("q", 4).await;
    let measured = async |pressure: &str, near: u64| {
        let page = admin.get("/metrics").await.text();
        let line = format!("ojs_backpressure_pressure{{queue=\"q\"}} {pressure}\n");
        assert!(page.contains(&line), "{pressure}: {page}");
        let health = client.get("/ojs/v1/health").await.json();
        assert_eq!(health["throttle"]["near_bound"], near, "{health}");
    };
    measured("1", 1).await;
    client.bound("q", json!({"max_depth": 100})).await;
    measured("0.04", 0).await;
    client.bound("q", json!({"max_depth": 4})).await;
    measured("1", 1).await;
    let none = json!({"backpressure": null});
    assert_eq!(client.put(&config("q"), none).await.status, 200);
    let page = admin.get("/metrics").await.text();
    assert!(
        !page.contains("ojs_backpressure_pressure{queue=\"q\"}"),
        "{page}"
    );
    let health = client.get("/ojs/v1/health").await.json();
    assert_eq!(health["throttle"]["near_bound"], 0, "{health}");
    // What came meanwhile is looked at when it is bounded again.
    client.fill("q", 6).await;
    client.bound("q", json!({"max_depth": 10})).await;
    full(&client.offer("q").await, "q", 10);
}

/// A queue that has other bounds, or none any more, is well again at once, and those who were warned hear of it.
#[tokio::test(start_paused = true)]
async fn a_bound_that_is_taken_away_clears_the_queue() {
    for (bounds, bound) in [
        (json!(null), 3),
        (json!({"max_depth": 0}), 3),
        (json!({"enqueue_rate": {"limit": 9, "period": "PT1H"}}), 3),
        (json!({"max_depth": 100}), 100),
    ] {
        let (_guard, log) = logged();
        let (pair, client) = simulated(Lax::spec(), "").await;
        client.bound("q", json!({"max_depth": 3})).await;
        let mut stream = Listener::open(&client, STREAM, &[]).await;
        client.fill("q", 3).await;
        assert_eq!(stream.next().await.event, "backpressure.warning");
        client.bound("q", bounds.clone()).await;
        let heard = stream.so_far().await;
        let cleared = json!({"queue": "q", "depth": 3, "bound": bound});
        assert_eq!(
            told(&heard),
            [("backpressure.cleared", cleared)],
            "{bounds}"
        );
        let said = [
            "the bound that the queue was near is gone",
            "has room again",
        ];
        let lines = said.map(|line| log.with(line).len());
        let expected = if bound == 3 { [1, 0] } else { [0, 1] };
        assert_eq!(lines, expected, "{bounds}");
        pair.stop().await;
    }
}

/// What only some jobs meet is told of the queue with its numbers, for a minute.
#[tokio::test(start_paused = true)]
async fn a_tenant_a_key_and_a_rate_that_refuse_are_told_of() {
    let file = "[[tenant]]\nid = \"*\"\nlimits = { max_queue_depth = 1 }\n\
        [[queue]]\nname = \"keyed\"\nper_key = { by = \"{type}\", max_depth = 1 }\n\
        [[queue]]\nname = \"rated\"\nenqueue_rate = { limit = 1, period = \"10m\" }\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let admin = pair.sidecar.admin();
    for (queue, tenants, words, todo) in [
        (
            "t",
            ["a", "a"],
            "Tenant 'a' has exceeded max_queue_depth (1): 1 job waits",
            "in the file",
        ),
        (
            "keyed",
            ["b", "c"],
            "Queue 'keyed' has reached its depth bound for 't' (1)",
            "start more",
        ),
        (
            "rated",
            ["d", "e"],
            "Queue 'rated' has taken the 1 jobs",
            "let producers be slower",
        ),
    ] {
        let mut last = 201;
        for tenant in tenants {
            let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": queue}});
            last = client.post("/ojs/v1/jobs", job.to_string()).await.status;
        }
        assert_eq!(last, 429, "{queue}");
        is_told(&admin, queue, words, todo).await;
        sleep(Duration::from_secs(60)).await;
        let path = format!("/throttle/v1/why?queue={queue}");
        let why = admin.get(&path).await.json();
        assert_ne!(why["cause"], "refused", "{why}");
    }
    pair.stop().await;
}

/// `why` and the state say that an enqueue was refused, and what helps.
async fn is_told(admin: &Client, queue: &str, words: &str, todo: &str) {
    let why = admin
        .get(&format!("/throttle/v1/why?queue={queue}"))
        .await
        .json();
    assert_eq!(why["cause"], "refused", "{why}");
    assert!(why["why"].as_str().unwrap().contains(words), "{why}");
    assert!(why["do"].as_str().unwrap().contains(todo), "{why}");
    sleep(Duration::from_millis(1_100)).await;
    let state = admin.get("/throttle/v1/state").await.json();
    let rows = state["queues"]["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["queue"] == queue).unwrap();
    assert_eq!(row["cause"]["name"], "refused", "{row}");
}

/// So is what does not fit into the rest of a queue that is not full.
#[tokio::test(start_paused = true)]
async fn an_enqueue_that_does_not_fit_into_the_rest_of_a_queue_is_told_of() {
    let file = "[[queue]]\nname = \"bytes\"\nmax_size_bytes = 400\n[[queue]]\nname = \"jobs\"\nmax_depth = 3\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let admin = pair.sidecar.admin();
    while client.offer("bytes").await.status == 201 {}
    is_told(
        &admin,
        "bytes",
        "bytes wait, and its size bound is 400",
        "start more",
    )
    .await;
    client.fill("jobs", 2).await;
    assert_eq!(client.offer_all(&["jobs"; 2]).await.status, 429);
    let words = "no room for so many jobs: 2 jobs wait, and its depth bound is 3";
    is_told(&admin, "jobs", words, "start more").await;
    assert_eq!(client.offer_all(&["jobs"; 4]).await.status, 429);
    is_told(&admin, "jobs", "can never fit", "let producers send fewer").await;
    pair.stop().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_smaller_bound_has_two_reasons() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 3})).await;
    client.fill("q", 2).await;
    client.bound("q", json!({"max_depth": 1})).await;
    let why = pair.sidecar.admin().get("/throttle/v1/why?queue=q").await;
    let why = why.json()["why"].to_string();
    for words in [
        "2 jobs wait where 1 may",
        "around the sidecar",
        "was made smaller",
    ] {
        assert!(why.contains(words), "{why}");
    }
    pair.stop().await;
}

/// A queue without limits is told of, too, if no worker asks for it; but not while one does.
#[tokio::test(start_paused = true)]
async fn that_no_worker_asks_for_a_queue_without_limits_is_said() {
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 9\n";
    let (pair, client) = simulated(Lax::spec(), file).await;
    let admin = pair.sidecar.admin();
    let cause = async || {
        let why = admin.get("/throttle/v1/why?queue=q").await.json();
        why["cause"].as_str().unwrap().to_owned()
    };
    client.fill("q", 3).await;
    client.fetch("other", 1).await;
    assert_eq!(cause().await, "nobody asks");
    client.fetch("q", 1).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(cause().await, "no limit");
    sleep(Duration::from_secs(11)).await;
    assert_eq!(cause().await, "nobody asks");
    pair.stop().await;
}

/// A depth that nobody follows any more is not shown, and the next bound has the queue looked at.
#[tokio::test(start_paused = true)]
async fn a_depth_that_nobody_follows_is_not_shown() {
    for none in [
        json!({"max_depth": 0}),
        json!({"enqueue_rate": {"limit": 9, "period": "PT1H"}}),
    ] {
        let (pair, client) = simulated(Lax::spec(), "").await;
        let admin = pair.sidecar.admin();
        let depth = async || {
            sleep(Duration::from_millis(1_500)).await;
            let why = admin.get("/throttle/v1/why?queue=q").await.json();
            why["queue"]["depth"].clone()
        };
        client.bound("q", json!({"max_depth": 9})).await;
        client.fill("q", 3).await;
        assert_eq!(depth().await, 3);
        client.bound("q", none).await;
        client.fill("q", 4).await;
        assert_eq!(depth().await, Value::Null);
        client.bound("q", json!({"max_depth": 20})).await;
        assert_eq!(depth().await, 7);
        pair.stop().await;
    }
}

/// Whoever makes up credentials does not take away those with which a queue near its bound is looked at.
#[tokio::test(start_paused = true)]
async fn a_queue_is_looked_at_with_its_producers_credentials_whatever_is_made_up() {
    let answers = |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned()),
        _ if path.contains("/queues/q") => (200, r#"{"counts":{"available":8}}"#.to_owned()),
        _ => (401, r#"{"error":{"code":"unauthorized"}}"#.to_owned()),
    };
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 10\n";
    let (backend, sidecar, client) =
        crate::backpressure::rig::told(file, Duration::ZERO, answers).await;
    let ask = async |path: &str, token: &str, body: Value| {
        let headers = [
            ("content-type", "application/openjobspec+json"),
            ("authorization", token),
        ];
        let body = body.to_string();
        client.send(Method::POST, path, &headers, body).await.status
    };
    let job = json!({"type": "t", "args": [], "options": {"queue": "q"}});
    assert_eq!(ask("/ojs/v1/jobs", "Bearer producer", job).await, 201);
    for nth in 0..4_200 {
        let beat = json!({"worker_id": "w", "active_jobs": []});
        let token = format!("Bearer {nth}");
        ask("/ojs/v1/workers/heartbeat", &token, beat).await;
    }
    let (asked, lent) = (
        backend.asked(Method::GET, "/queues/q"),
        backend.lent("/queues/q").len(),
    );
    sleep(Duration::from_secs(5)).await;
    let looks = backend.asked(Method::GET, "/queues/q") - asked;
    let tokens = backend.lent("/queues/q").split_off(lent);
    assert!(looks >= 3, "{looks}");
    assert_eq!(tokens, vec!["Bearer producer"; looks]);
    sidecar.stop().await;
}

/// A queue that nobody used for long, and in which nothing waits, is as one that was never seen: the backend is
/// asked before an enqueue. One that is bounded by its name is known.
#[tokio::test(start_paused = true)]
async fn a_queue_that_nobody_uses_is_forgotten() {
    let answers = |_: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x"}}"#.to_owned()),
        "/ojs/v1/workers/fetch" => (200, r#"{"jobs":[{"id":"x","type":"t"}]}"#.to_owned()),
        _ if path.contains("/queues/") => (200, r#"{"counts":{"available":0}}"#.to_owned()),
        _ => (404, "404 page not found".to_owned()),
    };
    let file =
        "[[queue]]\nname = \"named\"\nmax_depth = 9\n[[queue]]\nname = \"*\"\nmax_depth = 9\n";
    let slow = Duration::from_millis(100);
    let (_backend, sidecar, client) = crate::backpressure::rig::told(file, slow, answers).await;
    let offered = async |queue: &str, first: bool| {
        let begun = Instant::now();
        assert_eq!(client.offer(queue).await.status, 201);
        let took = begun.elapsed();
        assert_eq!(took >= 2 * slow, first, "{queue}: {took:?}");
        client.fetch(queue, 1).await;
    };
    for queue in ["named", "some"] {
        offered(queue, true).await;
    }
    sleep(Duration::from_secs(500)).await;
    for queue in ["named", "some"] {
        offered(queue, false).await;
    }
    sleep(Duration::from_secs(1_300)).await;
    offered("named", false).await;
    offered("some", true).await;
    sidecar.stop().await;
}
