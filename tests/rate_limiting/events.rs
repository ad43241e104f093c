//! 11.1: the events, with exactly their data fields, in the envelope of the OJS events text, on the
//! stream that SDKs subscribe to.

use ojs_throttle::net;

use super::prelude::*;
use super::upstream::answering;
use crate::sidecar::listen::Heard;

const STREAM: &str = "/ojs/v1/events/stream?types=rate_limit.*";

fn job(policy: Value) -> Value {
    json!({"type": "mail.send", "args": [1], "options": {"queue": "q", "rate_limit": policy}})
}

/// The names of what was heard, and the job that each is about.
fn told(heard: &[Heard]) -> Vec<(&str, &str)> {
    let each = heard.iter();
    each.map(|heard| (&*heard.event, heard.data["subject"].as_str().unwrap()))
        .collect()
}

/// The envelope (events text, 2.2) but for `data`, which is returned.
fn envelope(heard: &Heard, kind: &str, subject: &str) -> Value {
    let all = heard.data.as_object().unwrap();
    assert_eq!((heard.event.as_str(), &all["type"]), (kind, &json!(kind)));
    assert_eq!(all["specversion"], "1.0");
    assert_eq!(all["subject"], subject);
    let id = all["id"].as_str().unwrap();
    assert_eq!(heard.id.as_deref(), Some(id));
    let number = uuid::Uuid::parse_str(id.strip_prefix("evt_").unwrap()).unwrap();
    assert_eq!(number.get_version_num(), 7, "{id}");
    let source = all["source"].as_str().unwrap();
    let is_ours = source.starts_with("ojs://ojs-throttle/limiter/");
    assert!(is_ours && source.parse::<http::Uri>().is_ok(), "{source}");
    let time = all["time"].as_str().unwrap();
    let is_time = time.ends_with('Z') && time.parse::<jiff::Timestamp>().is_ok();
    assert!(is_time, "{time}");
    all["data"].clone()
}

async fn nothing(client: &Client) {
    let got = client.fetch("q", 5).await;
    assert!(got.is_empty(), "{got:?}");
}

/// `rate_limit.exceeded`: "A job cannot start because its rate limit is hit", `key`, `strategy`, `limit`,
/// `current`. `rate_limit.released`: "A rate-limited job is now eligible for execution", `key`,
/// `strategy`, `job_id`. One of each for each job that had to wait, however often workers ask.
#[tokio::test(start_paused = true)]
async fn exceeded_and_released_once_for_each_wait() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    assert_eq!(stream.status, 200);
    assert_eq!(stream.headers["content-type"], "text/event-stream");
    assert_eq!(stream.headers["cache-control"], "no-cache");
    assert_eq!(stream.frame().await.unwrap(), "retry: 3000\n\n");
    let policy = json!({"key": "stripe", "concurrency": 1});
    let first = client.enqueue(job(policy.clone())).await;
    let second = client.enqueue(job(policy)).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&first]);
    for _ in 0..10 {
        nothing(&client).await;
    }
    let heard = stream.so_far().await;
    assert_eq!(told(&heard), [("rate_limit.exceeded", second.as_str())]);
    let data = envelope(&heard[0], "rate_limit.exceeded", &second);
    let told_of = json!({"key": "stripe", "strategy": "concurrency", "limit": 1, "current": 1});
    assert_eq!(data, told_of);
    let flat = ["event", "queue", "job_id"].map(|name| heard[0].data[name].as_str().unwrap());
    assert_eq!(flat, ["rate_limit.exceeded", "q", &second]);
    client.ack(&first).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&second]);
    let heard = stream.so_far().await;
    assert_eq!(told(&heard), [("rate_limit.released", second.as_str())]);
    let data = envelope(&heard[0], "rate_limit.released", &second);
    let told_of = json!({"key": "stripe", "strategy": "concurrency", "job_id": second});
    assert_eq!(data, told_of);
    client.ack(&second).await;
    let more = stream.so_far().await;
    assert!(more.is_empty(), "a start that was not limited is no event");
}

/// The numbers of each strategy.
#[tokio::test(start_paused = true)]
async fn each_strategy_by_its_name_and_numbers() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let policies = [
        ("rate", json!({"rate": {"limit": 2, "period": "PT1M"}}), 2),
        (
            "throttle",
            json!({"throttle": {"limit": 1, "period": "PT1M"}}),
            1,
        ),
        ("concurrency", json!({"concurrency": 3}), 3),
    ];
    for (strategy, mut policy, starts) in policies {
        policy["key"] = json!(strategy);
        client.enqueue_all(starts + 1, &job(policy)).await;
        assert_eq!(client.fetch("q", 9).await.len(), starts);
        let data = envelope_of(&stream.so_far().await);
        let expected =
            json!({"key": strategy, "strategy": strategy, "limit": starts, "current": starts});
        assert_eq!(data, [expected]);
    }
}

fn envelope_of(heard: &[Heard]) -> Vec<Value> {
    let each = heard.iter().map(|heard| heard.data["data"].clone());
    each.collect()
}

/// `rate_limit.dropped`: "A job is discarded due to `on_limit: \"drop\"`", `key`, `job_id`, `job_type`.
#[tokio::test(start_paused = true)]
async fn dropped() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let policy = json!({"key": "push", "rate": {"limit": 1, "period": "PT1M"}, "on_limit": "drop"});
    let first = client.enqueue(job(policy.clone())).await;
    let second = client.enqueue(job(policy)).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&first]);
    let heard = stream.so_far().await;
    let both = ["rate_limit.exceeded", "rate_limit.dropped"];
    assert_eq!(told(&heard), both.map(|event| (event, &*second)));
    let data = envelope(&heard[1], "rate_limit.dropped", &second);
    let told_of = json!({"key": "push", "job_id": second, "job_type": "mail.send"});
    assert_eq!(data, told_of);
}

/// `rate_limit.dynamic_adjusted`: "Rate limit was adjusted via handler feedback", `key`, `until`,
/// `reason`.
#[tokio::test(start_paused = true)]
async fn dynamic_adjusted() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let five = json!({"key": "stripe", "concurrency": 5});
    let first = client.enqueue(job(five)).await;
    assert_eq!(client.fetch("q", 5).await.len(), 1);
    let error = json!({"type": "rate_limited", "message": "no", "retry_after": 30});
    client.nack_with(&first, error).await;
    let shut = client.inspect("stripe").await;
    let heard = stream.so_far().await;
    assert_eq!(heard.len(), 1, "{heard:?}");
    let data = envelope(&heard[0], "rate_limit.dynamic_adjusted", "stripe");
    let until = &shut["shut_until"];
    assert_eq!(
        data,
        json!({"key": "stripe", "until": until, "reason": "retry_after"})
    );
}

/// Events text, 8.3: "When a job has trace context, every event for that job MUST include the `trace_id`
/// in the `data` field".
#[tokio::test(start_paused = true)]
async fn a_traced_job_brings_its_trace() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut traced = job(json!({"key": "k", "concurrency": 0}));
    traced["meta"] = json!({"traceparent": format!("00-{trace}-00f067aa0ba902b7-01")});
    client.enqueue(traced).await;
    nothing(&client).await;
    let data = envelope_of(&stream.so_far().await);
    let told_of =
        json!({"key": "k", "strategy": "concurrency", "limit": 0, "current": 0, "trace_id": trace});
    assert_eq!(data, [told_of]);
}

/// What SDKs write in the query, and the backend's own events of a queue and a job beside ours.
#[tokio::test(start_paused = true)]
async fn channels_and_types_choose() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let policy = json!({"key": "k", "concurrency": 1});
    let first = client.enqueue(job(policy.clone())).await;
    let second = client.enqueue(job(policy)).await;
    let mut streams = Vec::new();
    for query in [
        format!("?channel=job%3A{second}"),
        "?channel=queue:q&types=rate_limit.exceeded".to_owned(),
        "?channel=queue:other".to_owned(),
        "?types=job.*&queue=".to_owned(),
        "?channel=all&queue=q&unknown=1".to_owned(),
        format!("?channel=job:{first}"),
        "?queue=other&types=rate_limit.*".to_owned(),
        "?queue=other,q&types=rate_limit.*".to_owned(),
    ] {
        let path = format!("/ojs/v1/events/stream{query}");
        let stream = Listener::open(&client, &path, &[]).await;
        assert_eq!(stream.status, 200, "{path}");
        streams.push(stream);
    }
    assert_eq!(ids(&client.fetch("q", 5).await), [&first]);
    client.ack(&first).await;
    assert_eq!(ids(&client.fetch("q", 5).await), [&second]);
    let mut names = Vec::new();
    for stream in &mut streams {
        let heard = stream.so_far().await.into_iter();
        names.push(heard.map(|heard| heard.event).collect::<Vec<_>>());
    }
    let changed = "job.state_changed";
    let [exceeded, released] = ["rate_limit.exceeded", "rate_limit.released"];
    // Theirs come over a connection of their own: only each side's order is given.
    names[0].sort_unstable();
    assert_eq!(names[0], [changed, exceeded, released]);
    assert_eq!(names[1], [exceeded]);
    assert!(names[2].is_empty() && names[3].is_empty(), "{names:?}");
    assert_eq!(names[4], [exceeded, released]);
    assert_eq!(names[5], [changed, changed], "claimed and completed");
    assert!(names[6].is_empty(), "of another queue: {names:?}");
    assert_eq!(names[7], [exceeded, released]);
}

#[tokio::test(start_paused = true)]
async fn absurd_queries_are_refused_with_the_field() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    for (query, field) in [
        ("types=a%20b".to_owned(), "types"),
        ("types=rate*limit".to_owned(), "types"),
        (format!("types={}", "x,".repeat(100)), "types"),
        (format!("types={}", "x".repeat(5000)), "types"),
        ("channel=job:".to_owned(), "channel"),
        ("channel=planet:mars".to_owned(), "channel"),
        ("queues=a%00".to_owned(), "queues"),
    ] {
        let reply = client.get(&format!("/ojs/v1/events/stream?{query}")).await;
        assert_eq!(reply.status, 400, "{query}");
        let error = &reply.json()["error"];
        assert_eq!(error["details"]["field"], field, "{error}");
    }
}

/// Answers each request for events with one event, and is silent from then on, like a host that vanished.
async fn vanishes(mut listener: net::Listener) {
    let mut streams = 0;
    let mut open = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let asked = String::from_utf8(head).unwrap();
        let answer = match asked.contains("/events") {
            true => {
                streams += 1;
                let after = format!("last-event-id: b{}\r\n", streams - 1);
                assert!(streams == 1 || asked.contains(&after), "{asked}");
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n\
                     id: b{streams}\nevent: e\ndata: {{}}\n\n"
                )
            }
            false => {
                "HTTP/1.1 404 Not Found\r\nOJS-Version: 1.0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into()
            }
        };
        stream.write_all(answer.as_bytes()).await.unwrap();
        open.push(stream);
    }
}

/// Our own signs of life must not hide that the backend's stream has none.
#[tokio::test(start_paused = true)]
async fn a_stream_ends_when_the_backend_has_vanished() {
    let net = Net::Sim(sim::Network::default());
    let listener = net.bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(vanishes(listener));
    let sidecar = Start::before(&net, &upstream, "").start().await;
    let client = Client::new(&net, sidecar.addr);
    let begun = Instant::now();
    for nth in 0..3 {
        let last = format!("b{nth}");
        let headers = [("last-event-id", &*last)];
        let headers = &headers[usize::from(nth == 0)..];
        let mut stream = Listener::open(&client, "/ojs/v1/events/stream", headers).await;
        while stream.next().await.event != "e" {}
        while stream.frame().await.is_some() {}
        assert_eq!(begun.elapsed().as_secs(), 60 * (nth + 1));
    }
}

/// A backend that does not let a client in says so to it: no stream of ours hides that.
#[tokio::test(start_paused = true)]
async fn a_stream_that_the_backend_refuses_is_not_opened() {
    for status in [302, 307, 401, 403, 407] {
        let (_backend, sidecar, client) = answering(status, "who are you", "").await;
        let opened = client.send(Method::GET, STREAM, &[], "").await;
        assert_eq!((opened.status, &*opened.text()), (status, "who are you"));
        sidecar.stop().await;
    }
}

/// Real-time text, 2.4 and 5.1: a sign of life every 15 seconds, and a last word; then the stream ends.
#[tokio::test(start_paused = true)]
async fn signs_of_life_and_a_last_word() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let begun = Instant::now();
    assert_eq!(stream.frame().await.unwrap(), "retry: 3000\n\n");
    for nth in 1..=3 {
        assert_eq!(stream.frame().await.unwrap(), ":heartbeat\n\n");
        assert_eq!(begun.elapsed().as_secs(), 15 * nth);
    }
    pair.sidecar.stop.drain.cancel();
    let last = stream.next().await;
    assert_eq!((&*last.event, last.id), ("server.shutdown", None));
    assert_eq!(last.data["data"]["reason"], "shutdown");
    assert_eq!(stream.frame().await, None);
}

/// Real-time text, 5.4: who does not read loses the oldest events and is told how many; the newest are
/// there when it reads on. Nobody waits for it.
#[tokio::test(start_paused = true)]
async fn who_does_not_read_loses_events_and_is_told() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let asleep = client.net.connect("127.0.0.1", client.addr.port());
    let mut asleep = asleep.await.unwrap();
    let request = format!("GET {STREAM} HTTP/1.1\r\nHost: sidecar\r\n\r\n");
    asleep.write_all(request.as_bytes()).await.unwrap();
    sleep(Duration::from_millis(10)).await;
    let policy = json!({"key": "k", "concurrency": 1, "rate": {"limit": 1, "period": "PT0.01S"}});
    let began = Instant::now();
    let mut last = String::new();
    for _ in 0..800 {
        last = client.enqueue(job(policy.clone())).await;
        while client.fetch("q", 1).await.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        client.ack(&last).await;
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(50), "it would be given up");
    let mut text = Vec::new();
    let needle = format!("\"rate_limit.released\",\"queue\":\"q\",\"job_id\":\"{last}\"");
    let whole = async {
        while !String::from_utf8_lossy(&text).contains(&needle) {
            assert_ne!(asleep.read_buf(&mut text).await.unwrap(), 0);
        }
    };
    let newest = tokio::time::timeout(Duration::from_secs(60), whole).await;
    newest.expect("the newest events");
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains(":events-dropped "), "{}", text.len());
    let dropped = "event: system.events_dropped\ndata: ";
    let (_, told) = text.split_once(dropped).unwrap();
    let told: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
    let lost = told["data"]["dropped_count"].as_u64().unwrap();
    let came = text.matches("event: rate_limit.").count() as u64;
    assert_eq!(lost + came, 2 * 799, "all are accounted for");
}

/// Real-time text, 5.5.1: what happened while a client was away is not kept, and it is told so.
#[tokio::test(start_paused = true)]
async fn a_client_that_comes_back_is_told_of_the_gap() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let mut stream = Listener::open(&client, STREAM, &[]).await;
    let none = json!({"key": "k", "concurrency": 0});
    client.enqueue(job(none)).await;
    nothing(&client).await;
    let heard = stream.next().await;
    drop(stream);
    sleep(Duration::from_secs(5)).await;
    let last = heard.id.unwrap();
    let mut again = Listener::open(&client, STREAM, &[("last-event-id", &last)]).await;
    let gap = again.next().await;
    assert_eq!((&*gap.event, gap.id), ("system.gap", None));
    let end = &gap.data["data"]["gap_end"];
    assert!(end.is_string(), "{end}");
}
