//! The trace that a request is part of: `traceparent` and `tracestate` go on as they came, and its id stands in the
//! lines of the log.

use super::prelude::*;
use super::relay::Relay;

const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n";
const LIMITS: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 50\n\
    [[queue]]\nname = \"full\"\nmax_depth = 1\n";

/// One request with these lines in its head, of which each letter is a byte.
fn write(conn: &mut Conn, method: &str, path: &str, lines: &str, body: &str) {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    );
    let text = format!("{head}{lines}Content-Length: {length}\r\n\r\n{body}");
    let bytes: Vec<u8> = text
        .chars()
        .map(|letter| u8::try_from(letter).unwrap())
        .collect();
    conn.write(&bytes).unwrap();
}

fn send(to: SocketAddr, method: &str, path: &str, lines: &str, body: &str) -> Value {
    let mut conn = Conn::open(to);
    write(&mut conn, method, path, lines, body);
    let reply = conn.reply().unwrap();
    assert!(reply.status < 500, "{reply:?}");
    serde_json::from_str(&reply.body).unwrap_or_default()
}

/// The lines that begin with `trace`, of each request with this method and path.
fn traces(sent: &str, method: &str, path: &str) -> Vec<String> {
    let begin = format!("{method} {path} HTTP/1.1\r\n");
    let heads = sent
        .split(&begin)
        .skip(1)
        .map(|rest| rest.split("\r\n\r\n").next().unwrap());
    let lines = |head: &str| {
        let lines = head.split("\r\n").filter(|line| line.starts_with("trace"));
        lines.map(|line| format!("{line}\r\n")).collect()
    };
    heads.map(lines).collect()
}

#[test]
fn a_trace_goes_on_as_it_came() {
    let backend = Backend::start(Lax::spec());
    let relay = Relay::before(backend.addr);
    let sidecar = Sidecar::run(&config(relay.addr, "", LIMITS));
    let two = format!(
        "{PARENT}tracestate: b=2\r\n{}",
        PARENT.replace("-01", "-00")
    );
    for lines in [
        "",
        &format!("{PARENT}tracestate: a=1,b@c=2;3 4\r\ntracestate: d=\r\n"),
        "traceparent: 00-X \u{e9}\"\t-\r\ntracestate: \u{ff}\r\n",
        // Those of one name stay together.
        &two,
    ] {
        let of_two = two.replace("tracestate: b=2\r\n", "") + "tracestate: b=2\r\n";
        let wanted = if lines == two { &of_two } else { lines };
        let go = |method: &str, path: &str, body: &str| {
            relay.take_sent();
            let reply = send(sidecar.data, method, path, lines, body);
            let seen = traces(&relay.take_sent(), method, path);
            assert!(!seen.is_empty(), "{method} {path} did not go on");
            (reply, seen)
        };
        let all_are = |method: &str, path: &str, body: &str| {
            let (reply, seen) = go(method, path, body);
            let is_whole = seen.iter().all(|seen| seen == wanted);
            assert!(is_whole, "{method} {path}: {seen:?}");
            reply
        };
        let fetch = |queue: &str| {
            let body = json!({"queues": [queue], "count": 9, "worker_id": "w"}).to_string();
            let reply = all_are("POST", "/ojs/v1/workers/fetch", &body);
            let jobs = reply["jobs"].as_array().unwrap().iter();
            jobs.map(|job| job["id"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        all_are("GET", "/elsewhere", "");
        let job = json!({"type": "t", "args": [], "options": {"queue": "q"}});
        all_are("POST", "/ojs/v1/jobs", &job.to_string());
        let batch = json!({"jobs": [job, job]}).to_string();
        all_are("POST", "/ojs/v1/jobs/batch", &batch);
        fetch("free");
        let jobs = fetch("q");
        assert_eq!(jobs.len(), 3, "{jobs:?}");
        let error = json!({"code": "e", "message": "m", "retryable": false});
        let ended =
            json!({"job_id": jobs[0], "worker_id": "w", "error": error, "result": {}}).to_string();
        // One heartbeat is the worker's, and goes on; one is the sidecar's, which claimed the jobs.
        let beat = json!({"worker_id": "w", "active_jobs": jobs}).to_string();
        let (_, mut beats) = go("POST", "/ojs/v1/workers/heartbeat", &beat);
        beats.sort();
        assert_eq!(beats, ["", wanted]);
        all_are("POST", "/ojs/v1/workers/ack", &ended);
        let failed = ended.replace(&jobs[0], &jobs[1]);
        all_are("POST", "/ojs/v1/workers/nack", &failed);
        all_are("DELETE", &format!("/ojs/v1/jobs/{}", jobs[2]), "");
    }
}

#[test]
fn lines_of_a_request_have_the_id_of_its_trace() {
    let backend = Backend::start(Lax::spec());
    let human = " WARN request{trace_id=ID}: an enqueue is refused id=enqueue_refused ";
    let json = r#""span":{"trace_id":"ID","name":"request"}}"#;
    for (server, shown) in [("", human), ("log = \"json\"", json)] {
        let sidecar = Sidecar::run(&config(backend.addr, server, LIMITS));
        let job = r#"{"type":"t","args":[],"options":{"queue":"full"}}"#;
        for _ in 0..2 {
            send(sidecar.data, "POST", "/ojs/v1/jobs", PARENT, job);
        }
        let line = sidecar.line("enqueue_refused");
        has(line, &shown.replace("ID", ID));
    }
    let sidecar = Sidecar::run(&config(backend.addr, "", LIMITS));
    let malformed = PARENT.replace("-01", "-1");
    let twice = [PARENT, PARENT].concat();
    for (nth, lines) in [PARENT, "", &malformed, &twice].into_iter().enumerate() {
        let set = format!(r#"{{"concurrency":1{nth}}}"#);
        send(sidecar.data, "PUT", "/ojs/v1/rate-limits/one", lines, &set);
        let said = format!("limits={set}");
        let line = sidecar.line(&said);
        assert_eq!(line.contains(ID), nth == 0, "{line}");
    }
}

/// A claim runs in a task of its own, and an ACK is tried again although its worker hung up.
#[test]
fn what_outlives_its_connection_has_the_trace_too() {
    let (mut backend, sidecar) = pair("log_level = \"debug\"", LIMITS);
    let connections = || sidecar.metric("ojs_throttle_connections");
    let before = connections();
    let tries = || {
        let of_it = |line: &&String| line.contains(ID) && line.contains("no answer");
        sidecar.lines().iter().filter(of_it).count()
    };
    backend.go();
    for (verb, body, more) in [
        ("fetch", r#"{"queues":["q"],"worker_id":"w"}"#, 0),
        ("ack", r#"{"job_id":"j","worker_id":"w"}"#, 3),
    ] {
        let so_far = tries();
        let mut conn = Conn::open(sidecar.data);
        let path = format!("/ojs/v1/workers/{verb}");
        write(&mut conn, "POST", &path, PARENT, body);
        wait("a try", || tries() > so_far);
        drop(conn);
        // An ACK is carried on for a client that may have closed its half only.
        if verb == "fetch" {
            wait("its end", || connections() == before);
        }
        let so_far = tries();
        wait("more of them", || tries() >= so_far + more);
    }
}
