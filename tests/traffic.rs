//! What official SDKs and official backends really said to each other, replayed through the sidecar:
//! what no limit touches crosses it byte for byte, in both directions.
//!
//! A raw client sends each recorded request as it was recorded; a raw backend answers it with the
//! recorded reply. Every difference must be one that is named here, and is counted.

pub mod recording;
pub mod wire;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use ojs_throttle::net::Net;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::sidecar::simulated::Start;
use recording::{Exchange, recorded};
use wire::{Message, framed, read};

/// Marks a request with the number of its exchange; the sidecar's own calls have no mark.
const MARK: &str = "x-replay";

/// Names the sidecar.
const SEED: u64 = 7;

/// No jobs.
const EMPTY: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/openjobspec+json\r\nContent-Length: 11\r\n\r\n{\"jobs\":[]}";

/// What the backend got.
#[derive(Default)]
struct Got {
    /// Marked requests by number.
    marked: HashMap<usize, Vec<Message>>,
    /// The start lines of the sidecar's own calls.
    own: Vec<String>,
}

type Received = Arc<Mutex<Got>>;

/// Answers marked requests as recorded, and own calls with 404.
async fn replay(listener: TcpListener, replies: Arc<Vec<Message>>, received: Received) {
    while let Ok((stream, _)) = listener.accept().await {
        let (replies, received) = (replies.clone(), received.clone());
        tokio::spawn(async move {
            let mut stream = stream;
            let mut buffer = Vec::new();
            while let Some(request) = read(&mut stream, &mut buffer).await {
                let number = request.header(MARK).map(|n| n.parse::<usize>().unwrap());
                let again =
                    number.is_some_and(|n| received.lock().unwrap().marked.contains_key(&n));
                let answer = match number {
                    // A FETCH that limits touch may ask again; the queue is empty then.
                    Some(_) if again => EMPTY.to_vec(),
                    Some(number) => framed(&replies[number]),
                    None => {
                        b"HTTP/1.1 404 Not Found\r\nOJS-Version: 1.0\r\nContent-Length: 2\r\n\r\n{}"
                            .to_vec()
                    }
                };
                {
                    let mut received = received.lock().unwrap();
                    match number {
                        Some(number) => received.marked.entry(number).or_default().push(request),
                        None => received.own.push(request.start),
                    }
                }
                if stream.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The differences that are there for a reason, and how often each was seen.
type Counts = BTreeMap<&'static str, usize>;

/// Replays a recording through a sidecar with `config`; what was different for a reason, and the
/// sidecar's own calls. Any other difference fails.
async fn through(name: &str, exchanges: &[Exchange], config: &str) -> (Counts, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    let replies = exchanges
        .iter()
        .map(|exchange| exchange.reply.clone())
        .collect();
    let received = Received::default();
    let backend = tokio::spawn(replay(listener, Arc::new(replies), received.clone()));
    let sidecar = Start::before(&Net::Tcp, &format!("http://{authority}"), config);
    let sidecar = sidecar.seed(SEED).start().await;
    let (mut counts, mut limited) = (Counts::new(), HashSet::new());
    let mut connections: HashMap<u64, (TcpStream, Vec<u8>)> = HashMap::new();
    for (number, exchange) in exchanges.iter().enumerate() {
        let (stream, buffer) = match connections.remove(&exchange.connection) {
            Some(open) => connections.entry(exchange.connection).or_insert(open),
            None => {
                let stream = TcpStream::connect(sidecar.addr).await.unwrap();
                connections
                    .entry(exchange.connection)
                    .or_insert((stream, Vec::new()))
            }
        };
        let mut request = exchange.request.clone();
        request.headers.push((MARK.to_owned(), number.to_string()));
        stream.write_all(&framed(&request)).await.unwrap();
        let got = read(stream, buffer)
            .await
            .unwrap_or_else(|| panic!("{name} {number}: no reply"));
        let about = format!("{name} {number}, {}", exchange.request.start);
        limited.extend(limited_queues(exchange));
        if config.is_empty() && fetches_from(exchange, &limited) {
            *counts.entry(LIMITED).or_default() += 1;
            if got.header("content-type") != exchange.reply.header("content-type") {
                assert_eq!(
                    got.header("content-type"),
                    Some("application/json"),
                    "{about}"
                );
                *counts.entry("media type mended").or_default() += 1;
            }
            // The order in which postgres lists what it hands out means nothing: here it is by priority.
            let jobs = |message: &Message| {
                let reply: Value = serde_json::from_slice(&message.body).unwrap();
                let mut jobs = reply["jobs"].as_array().unwrap().clone();
                let first = jobs.first().unwrap_or(&Value::Null);
                assert_eq!(&reply["job"], first, "{about}");
                jobs.sort_by_key(|job| job["id"].to_string());
                jobs
            };
            assert_eq!(jobs(&got), jobs(&exchange.reply), "{about}");
            received.lock().unwrap().marked.remove(&number);
            continue;
        }
        compare_reply(&about, exchange, &got, &mut counts);
        let arrived = received
            .lock()
            .unwrap()
            .marked
            .remove(&number)
            .unwrap_or_default();
        let [arrived] = arrived.as_slice() else {
            panic!("{about}: reached the backend {} times", arrived.len());
        };
        compare_request(&about, exchange, arrived, &authority, &mut counts);
    }
    sidecar.stop().await;
    backend.abort();
    let own = std::mem::take(&mut received.lock().unwrap().own);
    (counts, own)
}

/// Differences that limits make.
const LIMITED: &str = "fetch of a limited queue";
const SPLIT: &str = "heartbeat split";
const WRITTEN: &str = "mirror written";

/// The queues to which an enqueue brings limited jobs.
fn limited_queues(exchange: &Exchange) -> Vec<String> {
    let request: Value = serde_json::from_slice(&exchange.request.body).unwrap_or_default();
    let jobs = request["jobs"].as_array().cloned();
    let jobs = jobs.unwrap_or_else(|| vec![request]);
    let is_limited = |job: &&Value| {
        job["options"].get("rate_limit").is_some() || job["meta"].get("ojs.rate_limit").is_some()
    };
    let queue = |job: &Value| {
        job["options"]["queue"]
            .as_str()
            .unwrap_or("default")
            .to_owned()
    };
    jobs.iter().filter(is_limited).map(queue).collect()
}

/// Whether it is a FETCH from one of these queues.
fn fetches_from(exchange: &Exchange, queues: &HashSet<String>) -> bool {
    let request: Value = serde_json::from_slice(&exchange.request.body).unwrap_or_default();
    let asked = request["queues"].as_array().cloned().unwrap_or_default();
    let is_limited = |queue: &Value| queue.as_str().is_some_and(|queue| queues.contains(queue));
    exchange.request.start.contains("/workers/fetch") && asked.iter().any(is_limited)
}

/// What belongs to one connection, or frames a body.
const HOP_BY_HOP: [&str; 4] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
];

/// End-to-end headers by lower-case name, the values of each in order.
fn end_to_end(message: &Message) -> BTreeMap<String, Vec<String>> {
    let mut headers: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in &message.headers {
        let name = name.to_ascii_lowercase();
        if !HOP_BY_HOP.contains(&name.as_str()) && name != MARK {
            headers.entry(name).or_default().push(value.clone());
        }
    }
    headers
}

fn compare_request(
    about: &str,
    exchange: &Exchange,
    got: &Message,
    authority: &str,
    counts: &mut Counts,
) {
    let sent = &exchange.request;
    let mut count = |what| *counts.entry(what).or_default() += 1;
    let mut headers = end_to_end(sent);
    headers.insert("host".to_owned(), vec![authority.to_owned()]);
    headers.insert(
        "via".to_owned(),
        vec![format!("1.1 ojs-throttle-{SEED:016x}")],
    );
    // Replies that are read shall not come packed.
    headers.insert("accept-encoding".to_owned(), vec!["identity".to_owned()]);
    assert_eq!(end_to_end(got), headers, "{about}: headers");
    let mut start = sent.start.clone();
    if start.contains('%') {
        start = start.replace("%2D", "-").replace("%2E", ".");
        count("path made plain");
    }
    assert_eq!(got.start, start, "{about}");
    let mut body = sent.body.clone();
    if sent.start.contains("/workers/heartbeat") {
        let beat: Value = serde_json::from_slice(&body).unwrap();
        if beat["active_jobs"].is_number() {
            let text = String::from_utf8(body).unwrap();
            let number = format!("\"active_jobs\":{}", beat["active_jobs"]);
            let list = format!("\"active_jobs\":{}", beat["active_job_ids"]);
            body = text.replacen(&number, &list, 1).into_bytes();
            count("heartbeat mended");
        }
        // A job that the sidecar claimed is named in a heartbeat of its own.
        let own: Value = serde_json::from_slice(&got.body).unwrap();
        let beat: Value = serde_json::from_slice(&body).unwrap();
        if own["active_jobs"] != beat["active_jobs"] {
            assert_eq!(own["active_jobs"], Value::Array(Vec::new()), "{about}");
            let text = String::from_utf8(body).unwrap();
            body = text
                .replace(&beat["active_jobs"].to_string(), "[]")
                .into_bytes();
            count(SPLIT);
        }
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (arrived, sent) = (text(&got.body), text(&body));
    let bare = arrived.replace(MIRROR, "");
    if bare != arrived {
        count(WRITTEN);
    }
    assert_eq!(bare, sent, "{about}: body");
    if !got.body.is_empty() {
        assert_eq!(
            got.header("content-length"),
            Some(got.body.len().to_string().as_str()),
            "{about}"
        );
    }
}

fn compare_reply(about: &str, exchange: &Exchange, got: &Message, counts: &mut Counts) {
    let sent = &exchange.reply;
    let mut count = |what| *counts.entry(what).or_default() += 1;
    assert_eq!(got.start, sent.start, "{about}: status line");
    let mut headers = end_to_end(sent);
    headers.insert("via".to_owned(), vec!["1.1 ojs-throttle".to_owned()]);
    let agent = exchange.request.header("user-agent").unwrap_or_default();
    if agent.starts_with("python-httpx") {
        let kind = headers.get_mut("content-type").unwrap();
        assert_eq!(kind, &["application/openjobspec+json"], "{about}");
        *kind = vec!["application/json".to_owned()];
        count("media type mended");
    }
    assert_eq!(end_to_end(got), headers, "{about}: headers of the reply");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (arrived, sent_text) = (text(&got.body), text(&sent.body));
    let target = exchange.request.start.as_str();
    let bare = if target.starts_with("GET /ojs/v1/health ") {
        count("health told");
        without_throttle(&arrived)
    } else if target.starts_with("GET /ojs/manifest ") {
        count("extension named");
        without_extension(&arrived)
    } else {
        arrived.clone()
    };
    assert_eq!(bare, sent_text, "{about}: body of the reply");
    if sent.header("content-length").is_some() {
        let length = got.body.len().to_string();
        assert_eq!(
            got.header("content-length"),
            Some(length.as_str()),
            "{about}"
        );
    }
}

/// Health as the backend told it.
fn without_throttle(health: &str) -> String {
    let (before, ours) = health.split_once(",\"throttle\":{").unwrap();
    let (_, after) = ours.split_once('}').unwrap();
    format!("{before}{after}")
}

/// The manifest as the backend told it, in each of the two shapes. Where limits that jobs bring are ignored, the first
/// extension is not named.
fn without_extension(manifest: &str) -> String {
    let limiting =
        r#"{"name":"rate-limiting","uri":"urn:ojs:ext:rate-limiting","version":"1.0.0-rc.1"}"#;
    let pressing =
        r#"{"name":"backpressure","uri":"urn:ojs:ext:backpressure","version":"1.0.0-rc.1"}"#;
    let manifest = manifest.replacen(&format!("{limiting},"), "", 1);
    let whole = format!(",\"extensions\":{{\"official\":[{pressing}]}}");
    if manifest.contains(&whole) {
        let listed = manifest.replacen(&whole, "", 1);
        let listed = listed.replacen(",\"rate_limiting\"", "", 1);
        return listed.replacen(",\"backpressure\"", "", 1);
    }
    let flagged = manifest.replacen(&format!(",{pressing}"), "", 1);
    let flagged = flagged.replacen("\"rate_limiting\":true", "\"rate_limiting\":false", 1);
    flagged.replacen(",\"backpressure\":true", "", 1)
}

/// What is written beside a recorded policy whose job also has a visibility of its own.
const MIRROR: &str = r#","ojs.rate_limit.mirror":{"visibility_timeout_ms":30000}"#;

/// What differs, and how often.
type Differences = &'static [(&'static str, usize)];

/// What every recording asks of both backends, and is told more than they say.
const TOLD: Differences = &[("extension named", 2), ("health told", 2)];

/// How many exchanges each recording has, and how often what must differ.
const SDKS: [(&str, usize, Differences); 4] = [
    ("go", 98, &[("heartbeat mended", 8)]),
    ("javascript", 95, &[("heartbeat mended", 8)]),
    ("python", 101, &[("media type mended", 101)]),
    ("rust", 85, &[("path made plain", 6)]),
];

/// Some recorded jobs bring a `meta["ojs.rate_limit"]`; here it is not to be enforced.
const IGNORE: &str = "[job_policies]\naccept = \"ignore\"\n";

/// Limits that cover queues which nobody in the recordings uses.
const ELSEWHERE: &str = "
[[policy]]
name = \"elsewhere\"
match = { queue = \"elsewhere-*\" }
key = \"{queue}:{type}\"
concurrency = 1

[[queue]]
name = \"elsewhere\"
concurrency = 1
";

/// Replays all recordings; no other differences than those above `and` these. Gives each replay and its own calls.
async fn unchanged(config: &str, and: &[Differences]) -> Vec<(Vec<Exchange>, Vec<String>)> {
    let mut own_calls = Vec::new();
    for (nth, (name, length, differences)) in SDKS.into_iter().enumerate() {
        let and = and.get(nth).copied().unwrap_or_default();
        let (redis, postgres): (Vec<Exchange>, Vec<Exchange>) = recorded(name)
            .into_iter()
            .partition(|exchange| exchange.backend == "redis");
        assert_eq!(redis.len() + postgres.len(), length, "{name}");
        let mut counts = Counts::new();
        for exchanges in [redis, postgres] {
            assert!(!exchanges.is_empty(), "{name}");
            let (more, own) = through(name, &exchanges, config).await;
            more.into_iter()
                .for_each(|(what, n)| *counts.entry(what).or_default() += n);
            own_calls.push((exchanges, own));
        }
        let expected = TOLD.iter().chain(differences).chain(and).copied();
        assert_eq!(counts, expected.collect(), "{name}");
    }
    own_calls
}

/// What the sidecar asks before its first FETCH.
const MANIFEST: &str = "GET /ojs/manifest HTTP/1.1";
const RUNNING: &str = "GET /ojs/v1/admin/jobs?state=active&page=1&per_page=100 HTTP/1.1";

/// What it asks once beside them, to warn of queues without bounds.
const QUEUES: &str = "GET /ojs/v1/queues HTTP/1.1";

/// The calls without that one, which comes whenever it comes.
fn but_queues(mut own: Vec<String>) -> Vec<String> {
    let before = own.len();
    own.retain(|call| call != QUEUES);
    assert!(before - own.len() <= 1, "once at most");
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_limits_nothing_changes() {
    for (_, own) in unchanged(IGNORE, &[]).await {
        assert_eq!(but_queues(own), [MANIFEST]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_elsewhere_change_nothing() {
    for (_, own) in unchanged(&format!("{IGNORE}{ELSEWHERE}"), &[]).await {
        assert_eq!(but_queues(own), [MANIFEST, RUNNING]);
    }
}

/// With the limits that some of the recorded jobs bring along (one at a time, and they came one by one): the FETCHes
/// from their queues are the sidecar's, the jobs and all else are as they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_that_jobs_bring_change_their_own_fetch_only() {
    let differences: [Differences; 4] = [
        &[(LIMITED, 26), (SPLIT, 2), (WRITTEN, 2)],
        &[(LIMITED, 20), (SPLIT, 2), (WRITTEN, 2)],
        &[(LIMITED, 34), (SPLIT, 6)],
        &[(LIMITED, 22), (SPLIT, 2)],
    ];
    unchanged("", &differences).await;
}
