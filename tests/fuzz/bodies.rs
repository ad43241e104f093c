//! Bodies in JSON: what producers and workers send, and what a backend answers to a FETCH.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ojs_throttle::backend::{EventKind, Lax};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::reading::{self, Answer, Rest};
use super::rig::{Watched, try_cases};
use crate::servers::connections;
use crate::sidecar::process::{Backend, config};

/// Limits that look into each part of a job, a bound, and subqueues.
const LIMITS: &str = r#"
[fetch]
max_wait = "0s"

[[policy]]
name = "crm"
match = { queue = "a" }
key = "crm:{meta.tenant_id}:{meta.shop}:{type}"
concurrency = 100000
rate = { limit = 1000000, period = "1s" }
cost = { from = "meta.cost", default = 1, max = 9 }
fair = { by = "{meta.team}" }

[[queue]]
name = "a"
max_depth = 1000000

[[queue]]
name = "b"
subqueues = true

[[policy]]
name = "of-b"
match = { queue = "b" }
key = "b:{meta.tenant_id}"
concurrency = 100000
"#;

const JOBS: [&str; 8] = [
    r#"{"type":"t","args":[{"shop":"x","n":1.50}],"meta":{"shop":7,"tenant_id":"\u0061\ud83d\ude00","cost":3,"team":"r"},"options":{"queue":"a"}}"#,
    r#"{"type":"t","args":[],"options":{"queue":"b","priority":-5,"timeout_ms":1000,"retry":{"max_attempts":3,"jitter":false}},"meta":{"tenant_id":"b"}}"#,
    r#"{"type":"t","args":["s",null,true,[[]],{"a":{"b":{}}}],"meta":{},"options":{"queue":"a","delay_until":"2030-01-01T00:00:00Z"}}"#,
    r#"{"type":"t","args":[1e3,-0.0,18446744073709551615],"options":{"queue":"a","rate_limit":{"key":"k","rate":{"limit":100000,"period":"PT1S"}}}}"#,
    r#"{"jobs":[{"type":"t","args":[],"options":{"queue":"a"}},{"type":"u","args":[1],"options":{"queue":"b"},"meta":{"tenant_id":"c"}}]}"#,
    r#"{"queues":["a","b"],"count":2,"worker_id":"w","visibility_timeout_ms":600000}"#,
    r#"{"job_id":"01a21431-364c-7005-ab75-c72de762f9dc","result":{"a":1}}"#,
    r#"{"job_id":"x","error":{"code":"c","message":"m","retryable":true,"details":{}},"worker_id":"w"}"#,
];

const WORDS: [&str; 34] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\",
    "\\u0000",
    "\\ud800",
    "\\udc00",
    "null",
    "true",
    "\"type\":\"v\",",
    "\"args\":[],",
    "\"queue\":\"b\",",
    "\"options\":{",
    "\"meta\":{",
    "\"tenant_id\":",
    "\"jobs\":[",
    "\"queues\":[\"a\"],",
    "\"count\":",
    "\"job_id\":",
    "[[[[[[[[[[[[[[[[[[[[[[[[",
    "{\"a\":{\"a\":",
    "\u{feff}",
    "\0",
    "\n",
    "-",
    "e",
    ".",
    "\"\"",
    "\u{e9}",
    "\"rate_limit\":{\"key\":\"k\",\"concurrency\":9},",
];

const PATHS: [&str; 7] = [
    "jobs",
    "jobs",
    "jobs/batch",
    "workers/fetch",
    "workers/ack",
    "workers/nack",
    "workers/heartbeat",
];

/// One request, and its answer.
fn post(to: SocketAddr, path: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let head = format!(
        "POST /ojs/v1/{path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/openjobspec+json\r\n"
    );
    stream
        .write_all(format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes())
        .unwrap();
    stream.write_all(body).unwrap();
    let (mut answers, _) = reading::answers(&mut stream, &["POST".to_owned()], 0);
    answers
        .pop()
        .unwrap_or_else(|| panic!("no answer to {path}"))
}

/// An answer of ours or the backend's. Texts in it may have half a surrogate, as those that were sent: JSON allows that.
#[derive(Deserialize)]
struct Told {
    jobs: Option<Vec<IgnoredAny>>,
    error: Option<IgnoredAny>,
}

fn json(answer: &Answer) -> Told {
    let read = serde_json::from_slice(&answer.body);
    read.unwrap_or_else(|error| panic!("{error}: {} {}", answer.status, answer.body.escape_ascii()))
}

/// How many jobs an answer says were stored.
fn stored(path: &str, answer: &Answer) -> usize {
    match path {
        "jobs" => usize::from(answer.status == 201),
        "jobs/batch" if (200..300).contains(&answer.status) => {
            json(answer).jobs.map_or(0, |jobs| jobs.len())
        }
        _ => 0,
    }
}

#[test]
fn what_producers_and_workers_send_is_stored_or_refused() {
    let backend = Backend::start(Lax::spec());
    let mut watched = Watched::run(&config(backend.addr, "", LIMITS));
    let mut told_of = 0;
    let cases = try_cases(|nth, chance, told| {
        let seed = chance.pick(&JOBS);
        let body = chance.change(seed.as_bytes(), &WORDS, &JOBS);
        let path = chance.pick(&PATHS);
        told.trying(&[path.as_bytes(), b"\n", &body].concat());
        let answer = post(watched.sidecar.data, path, &body);
        assert!(
            answer.status < 500,
            "{}: {}",
            answer.status,
            answer.body.escape_ascii()
        );
        if !answer.body.is_empty() {
            json(&answer);
        }
        told_of += stored(path, &answer);
        if nth % 64 == 0 {
            watched.is_well(nth);
            assert_eq!(backend.total(EventKind::Stored), told_of);
        }
    });
    assert_eq!(backend.total(EventKind::Stored), told_of);
    watched.is_well(cases);
}

/// What backends answer to a FETCH.
const FETCHED: [&str; 4] = [
    r#"{"jobs":[{"id":"j1","type":"t","queue":"a","state":"active","attempt":1,"args":[{"shop":"x"}],"meta":{"tenant_id":"b"}}]}"#,
    r#"{"jobs":[{"id":"j2","type":"t","queue":"b","args":[],"meta":{"tenant_id":1}},{"id":"j3","type":"t","queue":"b","args":[]}],"more":{"x":[1]}}"#,
    r#"{"job":null,"jobs":[]}"#,
    r#"{"jobs":[{"id":"j4","type":"t","queue":"a","args":[],"options":{"queue":"a","rate_limit":{"key":"k","concurrency":5}},"attempt":2,"visibility_timeout_ms":1000}]}"#,
];

/// A backend whose answer to a FETCH is what is set, and to all else 404.
fn scripted() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let says = Arc::new(Mutex::new(FETCHED[2].as_bytes().to_vec()));
    let own = Arc::clone(&says);
    let addr = connections::each(move |mut stream: TcpStream| {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            match reading::request(&bytes) {
                Ok((meant, length)) => {
                    bytes.drain(..length);
                    let (status, body) = match meant.target.as_str() {
                        "/ojs/v1/workers/fetch" => (200, own.lock().unwrap().clone()),
                        _ => (404, b"{}".to_vec()),
                    };
                    let head = format!(
                        "HTTP/1.1 {status} Told\r\nOJS-Version: 1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    if stream
                        .write_all(&[head.as_bytes(), &body].concat())
                        .is_err()
                    {
                        return;
                    }
                    continue;
                }
                Err(Rest::Wrong) => panic!("no request: {}", bytes.escape_ascii()),
                Err(_) => {}
            }
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
    });
    (addr, says)
}

#[test]
fn what_a_backend_answers_to_a_fetch_is_jobs_or_an_error() {
    let (backend, says) = scripted();
    let mut watched = Watched::run(&config(backend, "", LIMITS));
    let cases = try_cases(|nth, chance, told| {
        let seed = chance.pick(&FETCHED);
        // Jobs that nobody has seen: claims end only by time.
        let seed = seed.replace("\"j", &format!("\"j{nth}-"));
        let body = chance.change(seed.as_bytes(), &WORDS, &FETCHED);
        told.trying(&body);
        says.lock().unwrap().clone_from(&body);
        let ask = br#"{"queues":["a"],"count":2,"worker_id":"w","visibility_timeout_ms":1000}"#;
        let answer = post(watched.sidecar.data, "workers/fetch", ask);
        match answer.status {
            // What cannot be read may pass as it came: no limit can be read in it.
            200 if answer.body == body => {}
            200 => assert!(
                json(&answer).jobs.is_some(),
                "{}",
                answer.body.escape_ascii()
            ),
            status => assert!(
                (500..505).contains(&status) && json(&answer).error.is_some(),
                "{status}"
            ),
        }
        if nth % 64 == 0 {
            watched.is_well(nth);
        }
    });
    watched.is_well(cases);
}
