//! Bounds with `reject` (5.1, 6, 7, 9.3), and the answers.

use super::prelude::*;
use crate::harness::assert_within;

const FILE: &str = "[[queue]]\nname = \"q\"\nmax_depth = 3\n";

/// Stores have the name in an index.
#[tokio::test(start_paused = true)]
async fn a_name_that_no_store_can_keep_gets_no_bounds() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let bounds = json!({"backpressure": {"max_depth": 5}});
    let names = ["q".repeat(1_000), "q".repeat(1_001)];
    let [fits, long] = names.each_ref().map(|name| config(name));
    assert_eq!(client.put(&fits, bounds.clone()).await.status, 200);
    let refused = client.put(&long, bounds).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("1000 bytes"));
}

/// BP-001, BP-002, BP-005 and the answer of 7.1, member by member.
#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_and_says_why() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 3).await;
    let reply = client.offer("q").await;
    let error = full(&reply, "q", 3);
    let message = "Queue 'q' has reached its depth bound (3): 3 jobs wait";
    assert_eq!(error["message"], message);
    assert_eq!(error["depth"], 3);
    assert_eq!(error["strategy"], "reject");
    assert_eq!(error["retryable"], true);
    let id = reply.headers["x-request-id"].to_str().unwrap();
    assert_eq!(error["request_id"], id);
    assert_eq!(error["details"]["depth"], 3);
    assert_eq!(error["details"]["bound"], 3);
    for (name, value) in [("depth", 3.0), ("bound", 3.0), ("max-depth", 3.0)] {
        assert_eq!(number(&reply, &format!("x-ojs-queue-{name}")), value);
    }
    let waits = waiting(&pair.behind.backend, "q").await;
    assert_eq!(waits, 3, "it is not stored");
    // Other queues are as they were.
    assert_eq!(client.offer("other").await.status, 201);
    // Room, and it is used at once.
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    assert_eq!(client.offer("q").await.status, 201);
    full(&client.offer("q").await, "q", 3);
}

/// 13.1 and 6.2: set over HTTP (BP-003), read back, changed, taken away.
#[tokio::test(start_paused = true)]
async fn bounds_over_http() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let wanted = json!({"max_depth": 2, "strategy": "reject", "warning_threshold": 0.8});
    let said = client.bound("email", wanted.clone()).await;
    assert_eq!(said, json!({"queue": "email", "backpressure": wanted}));
    assert_eq!(client.get(&config("email")).await.json(), said);
    client.fill("email", 2).await;
    full(&client.offer("email").await, "email", 2);
    client.bound("email", json!({"max_depth": 3})).await;
    assert_eq!(client.offer("email").await.status, 201);
    full(&client.offer("email").await, "email", 3);
    client.bound("email", json!({"max_depth": 0})).await;
    assert_eq!(client.offer("email").await.status, 201, "0 is unbounded");
    client.bound("email", json!({"max_depth": 1})).await;
    full(&client.offer("email").await, "email", 1);
    let gone = client.bound("email", json!(null)).await;
    assert_eq!(gone, json!({"queue": "email"}));
    assert_eq!(client.offer("email").await.status, 201);
}

/// 7.3 and BP-R004: near the bound the producer is told, with the numbers of the text's example (0.84 at 42 of 50).
#[tokio::test(start_paused = true)]
async fn an_accepted_job_near_the_bound_is_told_so() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let bounds = json!({"max_depth": 50, "warning_threshold": 0.8});
    client.bound("q", bounds).await;
    for _ in 0..39 {
        let reply = client.offer("q").await;
        assert_eq!(reply.status, 201);
        assert!(reply.headers.get("x-ojs-queue-pressure").is_none());
    }
    // The threshold itself counts, and the job that fills the queue is still told.
    for depth in 40..=50 {
        let reply = client.offer("q").await;
        assert_eq!(reply.status, 201);
        let names = ["depth", "bound", "pressure"];
        let told = names.map(|name| number(&reply, &format!("x-ojs-queue-{name}")));
        let depth = f64::from(depth);
        assert_eq!(told, [depth, 50.0, depth * 2.0 / 100.0]);
    }
    full(&client.offer("q").await, "q", 50);
}

/// Of several queues a producer hears of the one that is nearest to its bound.
#[tokio::test(start_paused = true)]
async fn a_batch_is_told_of_its_most_pressed_queue() {
    let config =
        "[[queue]]\nname = \"a\"\nmax_depth = 100\n[[queue]]\nname = \"b\"\nmax_depth = 10\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("a", 84).await;
    client.fill("b", 8).await;
    for queues in [["a", "b", "free"], ["b", "free", "a"]] {
        let reply = client.offer_all(&queues).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        // The larger part, not the larger number.
        assert_eq!(number(&reply, "x-ojs-queue-bound"), 10.0, "{queues:?}");
    }
    // Now it is full, and refuses what the other one could have taken.
    full(&client.offer_all(&["a", "b"]).await, "b", 10);
    assert_eq!(waiting(&pair.behind.backend, "a").await, 86);
}

/// 0 takes a bound away (4.1), in a file and over HTTP.
#[tokio::test(start_paused = true)]
async fn zero_is_unbounded() {
    let config = "[[queue]]\nname = \"*\"\nmax_depth = 2\n[[queue]]\nname = \"q\"\nmax_depth = 0\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 5).await;
    client.fill("other", 2).await;
    full(&client.offer("other").await, "other", 2);
    client.bound("other", json!({"max_depth": 0})).await;
    client.fill("other", 5).await;
}

/// BP-R001: bytes, each job as long as it was sent.
#[tokio::test(start_paused = true)]
async fn bytes_are_bounded_too() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let size = job("q").to_string().len();
    let both = json!({"max_size_bytes": 3 * size, "max_depth": 100});
    client.bound("q", both).await;
    client.fill("q", 3).await;
    let reply = client.offer("q").await;
    let error = full(&reply, "q", 3 * size as u64);
    assert_eq!(error["depth"], 3 * size);
    assert_eq!(error["unit"], "bytes");
    for (name, value) in [("depth", 3.0), ("bound", 100.0), ("max-depth", 100.0)] {
        let header = format!("x-ojs-queue-{name}");
        assert_eq!(number(&reply, &header), value, "a number of jobs");
    }
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    assert_eq!(client.offer("q").await.status, 201);
    assert_eq!(client.offer("q").await.status, 429);
    // The first bound that is reached counts.
    let both = json!({"max_size_bytes": 300 * size, "max_depth": 3});
    client.bound("q", both).await;
    full(&client.offer("q").await, "q", 3);
}

/// 7.2 and 7.3: depth and bound in the headers are of one bound. Without a `max_depth` they are those of the body.
#[tokio::test(start_paused = true)]
async fn depth_and_bound_in_the_headers_are_of_one_bound() {
    let both_are = |reply: &Reply, n: u64| {
        for name in ["x-ojs-queue-depth", "x-ojs-queue-bound"] {
            assert_eq!(number(reply, name), n as f64, "{name}: {}", reply.text());
        }
        assert!(!reply.headers.contains_key("x-ojs-queue-max-depth"));
    };
    for file in [
        "[[tenant]]\nid = \"*\"\nlimits = { max_queue_depth = 2 }\n",
        "[[queue]]\nname = \"q\"\nper_key = { by = \"{type}\", max_depth = 2 }\n",
    ] {
        let (pair, client) = simulated(Lax::spec(), file).await;
        for (who, status) in [("a", 201), ("b", 201), ("a", 201), ("a", 429)] {
            let job = json!({"type": who, "args": [], "meta": {"tenant_id": who},
                "options": {"queue": "q"}});
            let reply = client.post("/ojs/v1/jobs", job.to_string()).await;
            assert_eq!(reply.status, status, "{}", reply.text());
            if status == 429 {
                both_are(&reply, 2);
            }
        }
        pair.stop().await;
    }
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let most = 4 * job("q").to_string().len() as u64;
    client.bound("q", json!({"max_size_bytes": most})).await;
    client.fill("q", 3).await;
    for status in [201, 429] {
        let reply = client.offer("q").await;
        assert_eq!(reply.status, status);
        both_are(&reply, most);
    }
}

/// 9.3: a batch is taken as a whole or not at all, over all its queues.
#[tokio::test(start_paused = true)]
async fn a_batch_is_all_or_nothing() {
    let config = "[[queue]]\nname = \"a\"\nmax_depth = 2\n[[queue]]\nname = \"b\"\nmax_depth = 5\n";
    let (pair, client) = simulated(Lax::spec(), config).await;
    client.fill("a", 1).await;
    let over = client.offer_all(&["b", "a", "free", "a", "b"]).await;
    full(&over, "a", 2);
    for queue in ["b", "free"] {
        assert_eq!(waiting(&pair.behind.backend, queue).await, 0, "{queue}");
    }
    assert_eq!(client.offer_all(&["b", "a", "free", "b"]).await.status, 201);
    full(&client.offer("a").await, "a", 2);
    assert_eq!(client.offer_all(&["b", "b", "b"]).await.status, 201);
    // One that can never fit is told so, at once.
    let reply = client.offer_all(&["b"; 6]).await;
    let error = full(&reply, "b", 5);
    assert_eq!(error["retryable"], false);
    assert!(error["message"].as_str().unwrap().contains("can never fit"));
    assert_eq!(reply.headers["retry-after"], "1");
}

/// What the backend refuses or ignores gives its place back.
#[tokio::test(start_paused = true)]
async fn what_is_not_stored_takes_no_place() {
    for status in [200, 400, 409, 422, 429, 500] {
        let answers = move |method: &http::Method, path: &str| match (method.as_str(), path) {
            ("POST", "/ojs/v1/jobs") => (status, r#"{"error":{"code":"no"}}"#.to_owned()),
            (_, path) if path.contains("/stats") => {
                (200, r#"{"queue":{"name":"q","available":2}}"#.to_owned())
            }
            _ => (404, "404 page not found".to_owned()),
        };
        let (_, sidecar, client) = told(FILE, Duration::ZERO, answers).await;
        for _ in 0..5 {
            let reply = client.offer("q").await;
            // A 429 of the backend's own passes unchanged, too.
            let expected = (status, r#"{"error":{"code":"no"}}"#.to_owned());
            assert_eq!((reply.status, reply.text()), expected);
            assert!(reply.headers.get("retry-after").is_none());
        }
        sidecar.stop().await;
    }
}

/// A backend that is down is 502 and never 429, however full the queue was.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_down_is_no_full_queue() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    client.fill("q", 3).await;
    full(&client.offer("q").await, "q", 3);
    pair.behind.stop().await;
    sleep(Duration::from_millis(150)).await;
    for _ in 0..3 {
        let reply = client.offer("q").await;
        let error = reply.refuses(502, "backend_unreachable", "");
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("nothing was stored: "), "{message}");
        assert_eq!(message.matches("cannot be reached").count(), 1, "{message}");
    }
    pair.sidecar.stop().await;
}

/// One that hangs is 504, and nobody waits for it twice: what would not be answered is not asked after what was
/// not.
#[tokio::test(start_paused = true)]
async fn a_backend_that_hangs_is_waited_for_once() {
    let hour = Duration::from_secs(3_600);
    let answer = |_: &_, _: &_| (200, "{}".to_owned());
    let (_, _sidecar, client) = told(FILE, hour, answer).await;
    let reply = client.offer("q").await;
    let error = reply.refuses(504, "backend_timeout", "");
    let message = error["message"].as_str().unwrap();
    let wanted =
        "nothing was stored: the backend did not answer within 5s, and the queue has a bound";
    assert_eq!(message, wanted);
    let begun = Instant::now();
    let beat = json!({"worker_id": "w", "active_jobs": ["a", "b", "c"]});
    let reply = client.post("/ojs/v1/workers/heartbeat", beat.to_string());
    assert_eq!(reply.await.status, 200);
    assert_within(begun.elapsed(), Duration::from_millis(11_001), "");
}

/// Producers that put `queue` beside `type` have their jobs filed under `default`.
#[tokio::test(start_paused = true)]
async fn the_queue_is_where_the_backend_files_the_job() {
    let config = "[[queue]]\nname = \"default\"\nmax_depth = 2\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    for body in [
        json!({"type": "t", "args": []}),
        json!({"type": "t", "args": [], "queue": "q"}),
    ] {
        client.enqueue(body).await;
    }
    let third = json!({"type": "t", "args": [], "Options": {"QUEUE": null}});
    let refused = client.post("/ojs/v1/jobs", third.to_string()).await;
    full(&refused, "default", 2);
    let broken = client.post("/ojs/v1/jobs", "{\"type\":").await;
    assert_eq!(broken.status, 400, "the backend's own word");
}

/// Producer rate limits: refused with `rate_limited` and `X-RateLimit-*`, and as the IETF's draft has it.
#[tokio::test(start_paused = true)]
async fn producers_have_a_rate() {
    let config = "[[queue]]\nname = \"q\"\nenqueue_rate = { limit = 3, period = \"10s\" }\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 2).await;
    let two = client.offer_all(&["q", "q"]).await;
    assert_eq!(two.status, 429, "as a whole");
    sleep(Duration::from_secs(4)).await;
    client.fill("q", 1).await;
    let reply = client.offer("q").await;
    let error = reply.refuses(429, "rate_limited", "");
    assert_eq!(error["retryable"], true);
    assert_eq!(number(&reply, "x-ratelimit-limit"), 3.0);
    assert_eq!(number(&reply, "x-ratelimit-remaining"), 0.0);
    let reset = number(&reply, "x-ratelimit-reset");
    let now = 1_770_000_000.0;
    assert!(reset > now + 8.0 && reset < now + 13.0, "{reset}");
    let headers = &reply.headers;
    assert_eq!(headers["ratelimit-policy"], r#""enqueue_rate";q=3;w=10"#);
    assert_eq!(headers["ratelimit"], r#""enqueue_rate";r=0;t=7"#);
    let after = number(&reply, "retry-after");
    assert!((5.0..=9.0).contains(&after), "{after}");
    sleep(Duration::from_secs(7)).await;
    client.fill("q", 2).await;
    assert_eq!(client.offer("q").await.status, 429);
}

/// What is refused for another reason shuts no queue: neither a batch that does not fit, nor a rate. One that was full
/// accepts again as soon as a job fits.
#[tokio::test(start_paused = true)]
async fn what_fits_is_accepted_at_once() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 100})).await;
    client.fill("q", 60).await;
    for batch in [101, 41] {
        full(&client.offer_all(&vec!["q"; batch]).await, "q", 100);
        assert_eq!(client.offer("q").await.status, 201, "{batch}");
    }
    let rate = json!({"max_depth": 10, "enqueue_rate": {"limit": 6, "period": "PT10S"}});
    client.bound("fast", rate).await;
    client.fill("fast", 6).await;
    let reply = client.offer("fast").await;
    assert_eq!(reply.json()["error"]["code"], "rate_limited");
    sleep(Duration::from_secs(11)).await;
    client.fill("fast", 4).await;
    full(&client.offer("fast").await, "fast", 10);
    client.fetch("fast", 1).await;
    sleep(Duration::from_secs(11)).await;
    client.fill("fast", 1).await;
}

/// A job is one in what may wait and in what may be enqueued, whatever its start counts.
#[tokio::test(start_paused = true)]
async fn bounds_count_jobs_whatever_a_start_costs() {
    let config = "[[queue]]\nname = \"q\"\nconcurrency = 10\ncost = 5\nmax_depth = 3\n\
        [[queue]]\nname = \"fast\"\nconcurrency = 10\ncost = 5\nenqueue_rate = { limit = 3, period = \"1m\" }\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    client.fill("q", 3).await;
    full(&client.offer("q").await, "q", 3);
    client.fill("fast", 3).await;
    let reply = client.offer("fast").await;
    assert_eq!(reply.json()["error"]["code"], "rate_limited");
}

/// One batch makes neither calls nor state without end: so many queues in it, and so many looks at once.
#[tokio::test(start_paused = true)]
async fn a_batch_has_so_many_bounded_queues() {
    let config = "[[queue]]\nname = \"a*\"\nmax_depth = 5\n";
    let answers = |method: &http::Method, path: &str| match (method.as_str(), path) {
        ("POST", _) => (201, r#"{"jobs":[]}"#.to_owned()),
        _ => (200, r#"{"counts":{"available":0}}"#.to_owned()),
    };
    let (backend, _sidecar, client) = told(config, Duration::from_secs(1), answers).await;
    let names = |prefix: &str, most: usize| -> Vec<String> {
        (0..most).map(|nth| format!("{prefix}{nth}")).collect()
    };
    let (many, hundred, free) = (names("a", 1_000), names("a", 100), names("free", 1_000));
    let refs = |names: &[&Vec<String>]| -> Vec<Value> {
        let all = names.iter().flat_map(|names| names.iter());
        all.map(|name| job(name)).collect()
    };
    let offer = async |jobs: Vec<Value>| {
        let body = json!({"jobs": jobs}).to_string();
        client.post("/ojs/v1/jobs/batch", body).await
    };
    let reply = offer(refs(&[&many])).await;
    let error = reply.refuses(400, "invalid_request", "");
    assert_eq!(error["details"]["field"], "jobs");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("at most 100 queues"), "{message}");
    assert_eq!(backend.asked(http::Method::GET, "/queues/"), 0);
    let half = async {
        sleep(Duration::from_millis(500)).await;
        backend.asked(http::Method::GET, "/queues/")
    };
    // Twice as many jobs as queues, and those without bounds do not count.
    let fits = offer(refs(&[&hundred, &hundred, &free]));
    let (reply, looks) = tokio::join!(fits, half);
    assert_eq!((reply.status, looks), (201, 16));
}

/// Names come from requests, and are remembered: they have an end.
#[tokio::test(start_paused = true)]
async fn names_have_an_end() {
    let answers = |method: &http::Method, _: &str| match *method {
        http::Method::POST => (201, r#"{"job":{"id":"x"}}"#.to_owned()),
        _ => (404, "404 page not found".to_owned()),
    };
    let (backend, _sidecar, client) = told(FILE, Duration::ZERO, answers).await;
    let long = "n".repeat(1 << 20);
    for (reply, field) in [
        (client.offer(&long).await, "options.queue"),
        (
            client.offer_all(&["q", &long]).await,
            "jobs[1].options.queue",
        ),
        (client.offer(&long[..256]).await, "options.queue"),
    ] {
        let error = reply.refuses(400, "invalid_request", field);
        assert_eq!(error["details"]["field"], field);
    }
    assert_eq!(client.offer(&long[..255]).await.status, 201);
    assert_eq!(backend.asked(http::Method::POST, "/jobs"), 1);
}
