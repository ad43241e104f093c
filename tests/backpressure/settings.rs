//! What is wrong is refused, with the field named, and changes nothing.

use ojs_throttle::config::Settings;

use super::prelude::*;
use crate::harness::table;
use crate::sidecar::BEGIN;
use crate::sidecar::simulated::Start;

#[tokio::test(start_paused = true)]
async fn a_time_to_wait_that_is_none_is_named() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let blocks = json!({"max_depth": 1, "strategy": "block"});
    client.bound("q", blocks).await;
    // Where nobody waits nothing is read.
    assert_eq!(client.offer_blocking("q", "soon").await.status, 201);
    for timeout in ["soon", "-1", "1e400", "NaN", ""] {
        let reply = client.offer_blocking("q", timeout).await;
        let error = reply.refuses(400, "invalid_request", timeout);
        assert_eq!(error["details"]["field"], "OJS-Block-Timeout");
    }
}

/// As in the file: of the jobs of many queues nobody can say which is the oldest.
#[tokio::test(start_paused = true)]
async fn no_queue_with_subqueues_drops_the_oldest() {
    let file = "[[queue]]\nname = \"q\"\nsubqueues = true\nconcurrency = 5\n";
    let (_pair, client) = simulated(Lax::redis(), file).await;
    let path = "/ojs/v1/admin/queues/q/config";
    let with = |strategy: &str| json!({"backpressure": {"max_depth": 5, "strategy": strategy}});
    let refused = client.put(path, with("drop_oldest")).await;
    let error = refused.refuses(400, "invalid_request", path);
    assert_eq!(error["details"]["field"], "backpressure.strategy");
    assert_eq!(client.put(path, with("block")).await.status, 200);
}

/// A present `backpressure` replaces what was set, also one without a word in it; what nobody understands is no
/// success.
#[tokio::test(start_paused = true)]
async fn a_put_that_changes_nothing_is_no_success() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let path = config("q");
    let raw = async |path: &str, body: &str| {
        let kind = [("content-type", "application/json")];
        let reply = client.send(Method::PUT, path, &kind, body.to_owned()).await;
        let code = reply.json()["error"]["code"].clone();
        (reply.status, code)
    };
    let nothing = json!({"queue": "q"});
    for none in [json!({}), json!({"max_depth": null}), json!(null)] {
        assert_eq!(client.bound("q", none.clone()).await, nothing, "{none}");
        client.bound("q", json!({"max_depth": 5})).await;
        assert_eq!(client.bound("q", none.clone()).await, nothing, "{none}");
        assert_eq!(client.get(&path).await.status, 404, "{none}");
    }
    client.bound("q", json!({"max_depth": 5})).await;
    let tenant = "/ojs/v1/admin/tenants/acme/limits";
    let set = client.put(tenant, json!({"max_queue_depth": 1})).await;
    assert_eq!(set.status, 200);
    for path in [&*path, tenant] {
        for bad in ["x", "[]", "", "5"] {
            let refused = (400, json!("invalid_request"));
            assert_eq!(raw(path, bad).await, refused, "{path}: {bad:?}");
        }
        let reply = client.put(path, json!({"retention": {"days": 3}})).await;
        assert_eq!(reply.status, 404, "{path}: {}", reply.text());
    }
    let shown = client.get(&path).await.json();
    assert_eq!(shown["backpressure"], json!({"max_depth": 5}));
    let shown = client.get(tenant).await.json();
    assert_eq!(shown["limits"], json!({"max_queue_depth": 1}));
}

/// The backend's own route gets every word of a PUT, ours too; what it refuses is not set; where it shows
/// a queue's configuration, ours stands in it.
#[tokio::test(start_paused = true)]
async fn bounds_are_passed_on() {
    let sent = Arc::<Mutex<Vec<String>>>::default();
    let seen = sent.clone();
    let answers = move |method: &Method, path: &str| match path {
        "/ojs/v1/admin/queues/no/config" => (422, r#"{"error":{"code":"theirs"}}"#.to_owned()),
        "/ojs/v1/admin/queues/q/config" => {
            seen.lock().unwrap().push(method.to_string());
            (
                200,
                r#"{"queue":"q","configuration":{"retention":5}}"#.to_owned(),
            )
        }
        "/ojs/v1/admin/queues/q" => (
            200,
            r#"{"name":"q","configuration":{"retention":5}}"#.to_owned(),
        ),
        _ => (404, "404 page not found\n".to_owned()),
    };
    let (backend, _sidecar, client) = told("", Duration::ZERO, answers).await;
    let body = json!({"backpressure": {"max_depth": 5}, "retention": 5});
    let reply = client.put(&config("q"), body.clone()).await;
    assert_eq!(reply.status, 200);
    let expected = json!({"retention": 5, "backpressure": {"max_depth": 5}});
    assert_eq!(reply.json()["configuration"], expected);
    assert_eq!(*sent.lock().unwrap(), ["PUT"]);
    let heard = backend.bodies("/ojs/v1/admin/queues/q/config");
    assert_eq!(heard, [body.to_string()]);
    for path in ["/ojs/v1/admin/queues/q", "/ojs/v1/admin/queues/q/config"] {
        assert_eq!(client.get(path).await.json()["configuration"], expected);
    }
    let refused = client.put(&config("no"), body).await;
    assert_eq!(refused.status, 422);
    assert_eq!(refused.json()["error"]["code"], "theirs");
    let shown = client.get(&config("no")).await.text();
    assert!(!shown.contains("backpressure"), "{shown}");
}

#[test]
fn the_file_is_checked() {
    let problems = |queue: &str| {
        let text = format!("[server]\nupstream = 'http://ojs'\n[[queue]]\n{queue}");
        match Settings::parse(&text, "t") {
            Ok(_) => String::new(),
            Err(report) => report.to_string(),
        }
    };
    let all = "name = 'q'\nmax_depth = 5\nmax_size = '1MiB'\nstrategy = 'block'\nwarning_threshold = 1\n\
        block_timeout_max = '5s'\nenqueue_rate = { limit = 1, period = '1s' }";
    assert_eq!(problems(all), "");
    let wrong = r#"
        name = 'q' | max_depth = -1 => `queue.max_depth` must be from 0
        name = 'q' | max_depth = '5' => `queue.max_depth` must be a whole number
        name = 'q' | max_size = 'big' => `queue.max_size` must be a size
        name = 'q' | max_size = 1 | max_size_bytes = 1 => stands beside
        name = 'q' | max_depth = 1 | strategy = 'drop' => `queue.strategy` cannot be
        name = '*' | max_depth = 1 | strategy = 'drop_oldest' => for every queue
        name = ['q', '?*'] | max_depth = 1 | strategy = 'drop_oldest' => for every queue
        name = 'q' | max_depth = 1 | warning_threshold = 1.2 => `queue.warning_threshold` must be from 0 to 1
        name = 'q' | max_depth = 1 | block_timeout_max = '40s' => `queue.block_timeout_max` must be
        name = 'q' | enqueue_rate = { limit = 0, period = '1s' } => out of range
        name = 'q' | enqueue_rate = { limit = 1 } => needs a `period`
        name = 'q' | max_dept = 1 => did you mean `max_depth`
        name = 'q' => no limit and no bound
    "#;
    for (queue, word) in table(wrong) {
        let queue = &queue.replace(" | ", "\n");
        let said = problems(queue);
        assert!(said.contains(word), "{queue}: {said}");
    }
}

/// What is set over HTTP is in the store: a sidecar that comes up later goes by it, and so do those that run.
#[tokio::test(start_paused = true)]
async fn what_is_set_is_kept_in_the_store() {
    let net = Net::Sim(sim::Network::default());
    let behind = crate::sidecar::simulated::backend(&net, Lax::spec()).await;
    let store = Arc::new(MemoryStore::new(BEGIN));
    let start = || Start::before(&net, &behind.base(), "").store(store.clone());
    let (first, second) = (start().start().await, start().start().await);
    let (one, other) = (first.client(), second.client());
    let everything = json!({
        "max_depth": 2, "max_size_bytes": 9000, "strategy": "block", "warning_threshold": 0.5,
        "block_timeout_max": "PT3S",
        "enqueue_rate": {"limit": 50, "period": "PT1S"},
        "per_key": {"by": "{meta.tenant_id}", "max_depth": 2},
    });
    one.bound("q", everything.clone()).await;
    let limit = json!({"max_queue_depth": 1});
    let path = "/ojs/v1/admin/tenants/acme/limits";
    assert_eq!(one.put(path, limit.clone()).await.status, 200);
    one.fill("q", 2).await;
    // The other one hears of it with its next look around.
    sleep(Duration::from_millis(1_100)).await;
    let shown = other.get(&config("q")).await.json();
    assert_eq!(shown["backpressure"], everything);
    full(&other.offer("q").await, "q", 2);
    // A restart.
    first.stop().await;
    let third = start().start().await;
    let again = third.client();
    let shown = again.get(&config("q")).await.json();
    assert_eq!(shown["backpressure"], everything);
    full(&again.offer("q").await, "q", 2);
    let tenant = again.get("/ojs/v1/admin/tenants/acme").await.json();
    assert_eq!(tenant, json!({"tenant_id": "acme", "limits": limit}));
    // Taken away, it is away everywhere.
    let none = json!({"backpressure": null});
    assert_eq!(again.put(&config("q"), none).await.status, 200);
    assert_eq!(again.offer("q").await.status, 201);
    sleep(Duration::from_millis(1_100)).await;
    assert_eq!(other.offer("q").await.status, 201);
    assert_eq!(other.get(&config("q")).await.status, 404);
}

/// What is set over HTTP stands in place of what the file says: a sidecar says so once when it comes up.
#[tokio::test(start_paused = true)]
async fn a_bound_that_hides_the_file_s_is_told_at_the_start() {
    let (_guard, log) = logged();
    let net = Net::Sim(sim::Network::default());
    let behind = crate::sidecar::simulated::backend(&net, Lax::spec()).await;
    let store = Arc::new(MemoryStore::new(BEGIN));
    let file = "[[queue]]\nname = \"q\"\nmax_depth = 5000\n";
    let start = |file| Start::before(&net, &behind.base(), file).store(store.clone());
    let first = start("").start().await;
    first.client().bound("q", json!({"max_depth": 2})).await;
    let told = log.with("bound_over_http");
    assert!(told.is_empty(), "the file says nothing");
    start(file).start().await.stop().await;
    let lines = log.with("bound_over_http");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let advised = "keys=_queue:q clear=\"`ojs-throttle clear _queue:q --bounds`\"";
    assert!(lines[0].contains(advised), "{lines:?}");
}

/// Changes that come at the same time do not undo each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_are_set_at_once() {
    let net = Net::Tcp;
    let more = "threads = 2\n";
    let pair = crate::sidecar::simulated::Pair::start(net.clone(), Lax::spec(), more).await;
    let client = crate::sidecar::client::Client::new(&net, pair.sidecar.addr);
    let mut all = tokio::task::JoinSet::new();
    for nth in 0..60 {
        let client = client.clone();
        all.spawn(async move {
            let queue = format!("q{nth}");
            client.bound(&queue, json!({"max_depth": 1})).await;
            assert_eq!(client.offer(&queue).await.status, 201);
            full(&client.offer(&queue).await, &queue, 1);
        });
    }
    all.join_all().await;
}
