//! Every example of the text, sent as it stands there, and what it says will happen.

use super::prelude::*;
use crate::servers::official;

/// An example: where it stands, and its text.
type Example = (&'static str, &'static str);

const BLOCKING: Example = (
    "5.2",
    r#"POST /ojs/v1/jobs HTTP/1.1
Content-Type: application/openjobspec+json
OJS-Block-Timeout: 30

{ "type": "report.generate", "args": [{}] }"#,
);
const CONFIG: Example = (
    "6.2",
    r#"PUT /ojs/v1/admin/queues/{name}/config
Content-Type: application/json

{
  "backpressure": {
    "max_depth": 50000,
    "max_size_bytes": 536870912,
    "strategy": "reject",
    "warning_threshold": 0.8
  }
}"#,
);
const REJECTED: Example = (
    "7.1",
    r#"HTTP/1.1 429 Too Many Requests
Content-Type: application/json
Retry-After: 5
X-OJS-Queue-Depth: 50000
X-OJS-Queue-Bound: 50000

{
  "error": {
    "code": "QUEUE_FULL",
    "message": "Queue 'default' has reached its depth bound (50000)",
    "queue": "default",
    "depth": 50000,
    "bound": 50000,
    "strategy": "reject"
  }
}"#,
);
const WARNED: Example = (
    "7.3",
    r#"HTTP/1.1 201 Created
X-OJS-Queue-Depth: 42000
X-OJS-Queue-Bound: 50000
X-OJS-Queue-Pressure: 0.84"#,
);
const TENANT: Example = (
    "9.2",
    r#"{
  "tenant_id": "acme-corp",
  "limits": {
    "max_queue_depth": 50000
  }
}"#,
);
const EMAIL: Example = (
    "13.1",
    r#"curl -X PUT http://localhost:8080/ojs/v1/admin/queues/email/config \
  -H "Content-Type: application/json" \
  -d '{
    "backpressure": {
      "max_depth": 100000,
      "strategy": "reject",
      "warning_threshold": 0.8
    }
  }'"#,
);
const PRODUCER: Example = (
    "13.2",
    r#"async function enqueueWithBackpressure(type: string, args: any[]) {
  for (let attempt = 0; attempt < 5; attempt++) {
    const response = await fetch('http://localhost:8080/ojs/v1/jobs', {
      method: 'POST',
      headers: { 'Content-Type': 'application/openjobspec+json' },
      body: JSON.stringify({ type, args }),
    });

    if (response.status === 201) return response.json();

    if (response.status === 429) {
      const retryAfter = parseInt(response.headers.get('Retry-After') || '1');
      await sleep(retryAfter * 1000 * (attempt + 1)); // Exponential backoff
      continue;
    }

    throw new Error(`Enqueue failed: ${response.status}`);
  }

  throw new Error('Enqueue failed after 5 attempts (queue full)');
}"#,
);
const NOTIFICATIONS: Example = (
    "13.3",
    r#"# Configure drop-oldest for non-critical notifications
curl -X PUT http://localhost:8080/ojs/v1/admin/queues/notifications/config \
  -H "Content-Type: application/json" \
  -d '{
    "backpressure": {
      "max_depth": 10000,
      "strategy": "drop_oldest"
    }
  }'"#,
);

const ALL: [Example; 8] = [
    BLOCKING,
    CONFIG,
    REJECTED,
    WARNED,
    TENANT,
    EMAIL,
    PRODUCER,
    NOTIFICATIONS,
];

/// The text has no example that is not in here, and has each as it is in here.
#[test]
fn none_is_missing_on_official() {
    let text = std::fs::read_to_string(official("spec/ojs-backpressure.md")).unwrap();
    let fenced = text.split("```").skip(1).step_by(2);
    // The word behind a fence is its language.
    let blocks: Vec<&str> = fenced
        .map(|block| block.split_once('\n').unwrap().1.trim_end())
        .collect();
    assert_eq!(blocks, ALL.map(|(_, text)| text));
}

/// Each example is named by a test below.
#[test]
fn a_test_sends_each() {
    let source = include_str!("examples.rs");
    let names = source.lines().filter_map(|line| {
        let (name, _) = line.strip_prefix("const ")?.split_once(": Example")?;
        Some(name)
    });
    for name in names {
        // Once where it stands, once in the list.
        assert!(source.matches(name).count() > 2, "no test has {name}");
    }
}

/// The headers and the body of an HTTP example.
fn parts(example: Example) -> (Vec<(&'static str, &'static str)>, &'static str) {
    let (head, body) = example.1.split_once("\n\n").unwrap_or((example.1, ""));
    let headers = head.lines().skip(1);
    let headers = headers.map(|line| line.split_once(": ").unwrap());
    (headers.collect(), body)
}

/// The path and the body of a command.
fn command(example: Example) -> (&'static str, &'static str) {
    let (_, rest) = example.1.split_once("localhost:8080").unwrap();
    let path = rest.split(' ').next().unwrap();
    (path, example.1.split('\'').nth(1).unwrap())
}

async fn put(client: &Client, path: &str, body: &str) -> Reply {
    let headers = [("Content-Type", "application/json")];
    let reply = client.send(Method::PUT, path, &headers, body.to_owned());
    reply.await
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_waits() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let blocks = json!({"max_depth": 1, "strategy": "block"});
    client.bound("default", blocks).await;
    let (headers, body) = parts(BLOCKING);
    assert!(BLOCKING.1.starts_with("POST /ojs/v1/jobs "));
    let send = async |client: Client| {
        let sent = client.send(Method::POST, "/ojs/v1/jobs", &headers, body);
        sent.await.status
    };
    assert_eq!(send(client.clone()).await, 201);
    let begun = Instant::now();
    let room = async {
        sleep(Duration::from_secs(9)).await;
        client.fetch("default", 1).await;
    };
    let (status, ()) = tokio::join!(send(client.clone()), room);
    assert_eq!(status, 201);
    let waited = begun.elapsed().as_secs_f64();
    assert!((9.0..9.3).contains(&waited), "{waited}");
    // The end of its time is 429, well before its SDK gives up.
    assert_eq!(send(client.clone()).await, 429);
    let waited = begun.elapsed().as_secs_f64() - waited;
    assert!((19.9..20.1).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn the_config_of_a_queue() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let (_, body) = parts(CONFIG);
    let path = "/ojs/v1/admin/queues/reports/config";
    assert_eq!(put(&client, path, body).await.status, 200);
    let shown = client.get(path).await.json();
    assert_eq!(shown["backpressure"], parsed(body)["backpressure"]);
}

/// The answer of the example, with a bound of 5: everything that it has is there, and more.
#[tokio::test(start_paused = true)]
async fn a_rejection() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    client.bound("default", json!({"max_depth": 5})).await;
    client.fill("default", 5).await;
    let reply = client.offer("default").await;
    let (headers, body) = parts(REJECTED);
    assert!(REJECTED.1.starts_with("HTTP/1.1 429 "));
    for (name, value) in headers {
        let told = reply.headers[name].to_str().unwrap();
        match name {
            // Between 1 and 30, with jitter.
            "Retry-After" => assert!((5..=7).contains(&told.parse().unwrap())),
            _ => assert_eq!(told, value.replace("50000", "5"), "{name}"),
        }
    }
    let told = full(&reply, "default", 5);
    let expected = parsed(&body.replace("50000", "5"));
    for (name, value) in expected["error"].as_object().unwrap() {
        match name.as_str() {
            // The depth stands in it too: some SDKs show nothing else.
            "message" => {
                let begins = value.as_str().unwrap();
                assert!(told["message"].as_str().unwrap().starts_with(begins));
            }
            _ => assert_eq!(&told[name], value, "{name}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_warning() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    client.bound("q", json!({"max_depth": 50})).await;
    client.fill("q", 41).await;
    let reply = client.offer("q").await;
    assert!(WARNED.1.starts_with(&format!("HTTP/1.1 {} ", reply.status)));
    for (name, value) in parts(WARNED).0 {
        let value: f64 = value.parse().unwrap();
        let value = if value > 1.0 { value / 1_000.0 } else { value };
        assert_eq!(number(&reply, name), value, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_s_bound() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let few = TENANT.1.replace("50000", "2");
    let path = "/ojs/v1/admin/tenants/acme-corp";
    assert_eq!(put(&client, path, &few).await.json(), parsed(&few));
    let offer = async |tenant: &str, queue: &str| {
        let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant},
            "options": {"queue": queue}});
        client.post("/ojs/v1/jobs", job.to_string()).await.status
    };
    let answers = [
        offer("acme-corp", "a").await,
        offer("acme-corp", "b").await,
        offer("acme-corp", "a").await,
        offer("other", "a").await,
    ];
    assert_eq!(answers, [201, 201, 429, 201]);
}

#[tokio::test(start_paused = true)]
async fn a_bounded_queue() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let (path, body) = command(EMAIL);
    assert_eq!(put(&client, path, body).await.status, 200);
    let shown = client.get(path).await.json();
    assert_eq!(shown["backpressure"], parsed(body)["backpressure"]);
    let few = body.replace("100000", "1");
    assert_eq!(put(&client, path, &few).await.status, 200);
    client.fill("email", 1).await;
    full(&client.offer("email").await, "email", 1);
}

/// The producer of the example, in our words.
async fn enqueue_with_backpressure(client: &Client) -> Result<Value, String> {
    assert!(PRODUCER.1.contains("attempt < 5"));
    for attempt in 0..5 {
        let job = json!({"type": "t.x", "args": []}).to_string();
        let reply = client.post("/ojs/v1/jobs", job).await;
        match reply.status {
            201 => return Ok(reply.json()),
            429 => {
                sleep(Duration::from_secs_f64(number(&reply, "Retry-After")) * (attempt + 1)).await
            }
            status => return Err(format!("Enqueue failed: {status}")),
        }
    }
    Err("Enqueue failed after 5 attempts (queue full)".into())
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_comes_back() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    client.bound("default", json!({"max_depth": 2})).await;
    client.fill("default", 2).await;
    let given_up = enqueue_with_backpressure(&client).await;
    let why = given_up.unwrap_err();
    assert_eq!(why, "Enqueue failed after 5 attempts (queue full)");
    let worker = client.clone();
    let room = tokio::spawn(async move {
        sleep(Duration::from_secs(10)).await;
        worker.fetch("default", 1).await
    });
    let stored = enqueue_with_backpressure(&client).await.unwrap();
    assert_eq!(stored["job"]["state"], "available");
    assert_eq!(room.await.unwrap().len(), 1);
    assert_eq!(waiting(&pair.behind.backend, "default").await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_drops() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let (path, body) = command(NOTIFICATIONS);
    let few = body.replace("10000", "3");
    assert_eq!(put(&client, path, &few).await.status, 200);
    let jobs = client.fill("notifications", 4).await;
    assert_eq!(waiting(&pair.behind.backend, "notifications").await, 3);
    assert_eq!(client.job(&jobs[0]).await["state"], "discarded");
    assert_eq!(put(&client, path, body).await.status, 200);
    let shown = client.get(path).await.json();
    assert_eq!(shown["backpressure"], parsed(body)["backpressure"]);
}
