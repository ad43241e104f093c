//! What is logged, and what never is.

use std::io::BufRead as _;

use super::http::nack;
use super::outage::nonsense as always;
use super::prelude::*;
use crate::servers::vendor::{Answer, Vendor};

const ONE: &str = "[upstream]\ntoken = \"CANARY-token\"\n[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

/// Every route, in ways that go well and ways that do not.
fn use_everything(sidecar: &Sidecar) {
    let data = sidecar.data;
    let jobs: Vec<String> = (0..3).map(|_| enqueue(data, "q", json!({}))).collect();
    let free = enqueue(data, "free", json!({}));
    fetch(data, "q", 5, "w");
    fetch(data, "free", 1, "w");
    heartbeat(data, &[&jobs[0], "CANARY-job"], "w");
    ack(data, &jobs[0], "w");
    ack(data, &jobs[0], "w");
    fetch(data, "q", 5, "w");
    nack(data, &jobs[1], "w");
    nack(data, "CANARY-job", "w");
    ack(data, &free, "w");
    let batch = r#"{"jobs":[{"type":"t","args":["CANARY"]}]}"#;
    let limited = r#"{"type":"t","args":["CANARY"],"rate_limit":{"concurrency":"CANARY"}}"#;
    let beat = r#"{"active_jobs":"CANARY"}"#;
    for (method, path, body) in [
        ("GET", "/ojs/manifest", ""),
        ("GET", "/ojs/v1/health?token=CANARY-query", ""),
        ("GET", "/ojs/v1/rate-limits/one", ""),
        ("GET", "/ojs/v1/rate-limits/CANARY", ""),
        ("GET", "/ojs/v1/admin/jobs", ""),
        ("GET", "/ojs/v1/queues", ""),
        ("GET", "/ojs/v1/queues/q/stats", ""),
        ("POST", "/ojs/v1/queues/q/pause", ""),
        ("POST", "/ojs/v1/queues/q/resume", ""),
        ("POST", "/ojs/v1/jobs/batch", batch),
        ("POST", "/ojs/v1/jobs", r#"{"type":"t","args":["CANARY"#),
        ("POST", "/ojs/v1/jobs", limited),
        ("POST", "/ojs/v1/workers/fetch", r#"["CANARY"]"#),
        ("POST", "/ojs/v1/workers/ack", r#"{"CANARY""#),
        ("POST", "/ojs/v1/workers/nack", r#"{"job_id":"CANARY"}"#),
        ("POST", "/ojs/v1/workers/heartbeat", beat),
        ("POST", "/ojs/v1/admin/reset", ""),
        ("DELETE", "/ojs/v1/jobs/CANARY", ""),
        ("GET", "/CANARY/../CANARY", ""),
        ("PATCH", "/ojs/v1/CANARY", "CANARY"),
    ] {
        ask(data, method, path, body);
    }
    let mut broken = Conn::open(data);
    broken.write(b"POST /ojs/v1/jobs HTTP/1.1\r\nHost: h\r\nAuthorization: CANARY\r\nContent-Length: 90\r\n\r\n{\"CANARY").unwrap();
    drop(broken);
    ask(sidecar.admin, "POST", "/CANARY", "CANARY");
    get(sidecar.admin, "/metrics");
}

#[test]
fn no_arguments_and_no_credentials_at_any_level() {
    let mut backend = Backend::start(Lax::spec());
    for server in [
        "log_level = \"debug\"\n[settle]\nretry_for = \"500ms\"",
        "log = \"json\"\nlog_level = \"debug\"\n[settle]\nretry_for = \"500ms\"",
    ] {
        let mut sidecar = Sidecar::run(&config(backend.addr, server, ONE));
        use_everything(&sidecar);
        let jobs = [enqueue(sidecar.data, "q", json!({}))];
        fetch(sidecar.data, "q", 1, "w");
        backend.go();
        ack(sidecar.data, &jobs[0], "w");
        let job = r#"{"type":"t","args":["CANARY"]}"#;
        ask(sidecar.data, "POST", "/ojs/v1/jobs", job);
        fetch(sidecar.data, "q", 1, "w");
        get(sidecar.data, "/ojs/v1/health");
        backend.come();
        sidecar.signal("TERM");
        // Two that wait are one for the system.
        sidecar.state("draining");
        sidecar.signal("TERM");
        sidecar.ended();
        let log = sidecar.log();
        assert!(!log.contains("CANARY"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
    }
}

#[test]
fn work_is_not_logged_at_info() {
    let (_backend, mut sidecar) = pair("log = \"json\"", ONE);
    use_everything(&sidecar);
    let before = sidecar.lines();
    // That it listens, and that it is ready.
    assert_eq!(before.len(), 2, "{before:#?}");
    sidecar.signal("TERM");
    assert!(sidecar.ended().success());
    for line in sidecar.lines() {
        let line: Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for member in ["timestamp", "level", "target", "message"] {
            assert!(!line[member].is_null(), "{line}");
        }
        assert_eq!(line["level"], "INFO");
    }
}

/// Backpressure text, 6.3: at start those that the backend lists, in one line; others as they are used, in one line
/// for all of a minute.
#[test]
fn queues_without_bounds_are_warned_of() {
    let backend = Backend::start(Lax::spec());
    let probed = "ojs-throttle-doctor-667364265136f215";
    for queue in ["old", "bounded", probed] {
        enqueue(backend.addr, queue, json!({}));
    }
    let bounds = "[[queue]]\nname = \"bounded\"\nmax_depth = 9\n";
    let sidecar = Sidecar::run(&config(backend.addr, "", bounds));
    let warnings = || {
        let lines = sidecar.lines().into_iter();
        let about = lines.filter(|line| line.contains("WARN") && line.contains("no bound"));
        about.collect::<Vec<_>>()
    };
    wait("the warning at start", || warnings().len() == 1);
    sidecar.line("policies=0 queues=1 tenants=0");
    for queue in ["old", "bounded", "new", "new", "old"] {
        enqueue(sidecar.data, queue, json!({}));
    }
    for nth in 0..30 {
        enqueue(sidecar.data, &format!("new-{nth}"), json!({}));
    }
    wait("the warning at first use", || warnings().len() > 1);
    let said = warnings();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert!(said[0].contains("queue=\"old\""), "{said:#?}");
    assert!(said[1].contains("new"), "{said:#?}");
    let has_id = |line: &String| line.contains(" id=no_bound ");
    assert!(said.iter().all(has_id), "{said:#?}");
}

/// Whoever comes to an incident sees in the log what was set, until when, by whom and why.
#[test]
fn limits_set_over_http_are_told_in_full() {
    let backend = Backend::start(Lax::spec());
    let job = r#"{"type":"t","args":[]}"#;
    let job = ask(backend.addr, "POST", "/ojs/v1/jobs", job).json();
    let now: jiff::Timestamp = job["job"]["created_at"].as_str().unwrap().parse().unwrap();
    let end = format!("{:.3}", now + jiff::SignedDuration::from_hours(24));
    for (server, wanted) in [
        (
            "",
            [
                r#"limits set over HTTP key="one" limits={"concurrency":0,"rate":{"limit":5,"period":"PT1M"}} expires_at="END" by="eve" reason="INC-42""#,
                r#"limits set over HTTP are taken away key="one""#,
                r#"limits set over HTTP key="_queue:q" limits={"throttle":{"limit":2,"period":"PT1S"}}"#,
            ],
        ),
        (
            "log = \"json\"",
            [
                r#""expires_at":"END","by":"eve","reason":"INC-42""#,
                r#""limits set over HTTP are taken away","key":"one""#,
                r#""key":"_queue:q","limits":"{\"throttle\":{\"limit\":2,\"period\":\"PT1S\"}}""#,
            ],
        ),
    ] {
        let sidecar = Sidecar::run(&config(backend.addr, server, ONE));
        let set = r#"{"concurrency":0,"rate":{"limit":5,"period":"PT1M"},"expires_at":"END","reason":"INC-42","by":"eve"}"#;
        let key = "/ojs/v1/rate-limits/one";
        let set = set.replace("END", &end);
        assert_eq!(ask(sidecar.data, "PUT", key, &set).status, 200);
        assert_eq!(ask(sidecar.data, "DELETE", key, "").status, 200);
        let queue = "/ojs/v1/admin/queues/q/rate-limit";
        let set = r#"{"throttle":{"limit":2,"period":"PT1S"}}"#;
        assert_eq!(ask(sidecar.data, "PUT", queue, set).status, 200);
        for line in wanted {
            let line = line.replace("END", &end);
            sidecar.line(&line);
        }
    }
}

/// The id that a user reports, and why a job waits.
#[test]
fn what_is_refused_is_found_at_debug() {
    let each = ONE.replace("match", "key = \"{type}\"\nmatch");
    let (_backend, sidecar) = pair("log_level = \"debug\"", &each);
    for _ in 0..2 {
        enqueue(sidecar.data, "q", json!({}));
    }
    assert_eq!(fetch(sidecar.data, "q", 2, "w").jobs().len(), 1);
    let reply = get(sidecar.data, "/ojs/v1/rate-limits/none").json();
    let id = reply["error"]["request_id"].as_str().unwrap();
    has(sidecar.line(id), "status=404 code=\"not_found\"");
    let held = sidecar.line("its limit allows no start");
    let wanted = "queue=\"q\" key=\"t\" policy=\"one\" strategy=\"concurrency\"";
    has(held, wanted);
}

/// A backend that has two jobs of the queue `q`, of which the second has this id.
fn with_two_jobs(id: &str) -> Vendor {
    let job = |id: &str| json!({"id": id, "type": "t", "queue": "q", "state": "active", "attempt": 1, "args": []});
    let jobs = Mutex::new(Some(json!({"jobs": [job("first"), job(id)]})));
    Vendor::start(move |call| {
        let is_fetch = call.target() == "/ojs/v1/workers/fetch";
        let given = is_fetch.then(|| jobs.lock().unwrap().take()).flatten();
        Answer::ojs(given.unwrap_or_else(|| json!({"jobs": [], "state": "discarded"})))
    })
}

/// Whoever stores a job may choose it: no lines of its own in the log, and no long ones.
#[test]
fn an_id_writes_no_line_of_its_own() {
    let id = format!("a\n2026 ERROR forged \u{1b}[31m{}", "x".repeat(1_000));
    let drops = "[[policy]]\nname = \"d\"\nmatch = { queue = \"q\" }\n\
        rate = { limit = 1, period = \"1h\" }\non_limit = \"drop\"\n";
    let backend = with_two_jobs(&id);
    let text = config(backend.addr, "log_level = \"debug\"", drops);
    let sidecar = Sidecar::run(&text);
    assert_eq!(fetch(sidecar.data, "q", 2, "w").jobs(), ["first"]);
    let forged = || {
        let lines = sidecar.lines().into_iter();
        lines.filter(|line| line.contains("forged"))
    };
    until("the job is dropped", || {
        forged().find(|line| line.contains("dropped: over its limit"))
    });
    for line in forged() {
        assert!(line.contains("DEBUG") && !line.contains('\u{1b}'), "{line}");
        assert!(line.len() < 500, "{line}");
    }
}

/// A backend that does not let us look says so, with what to do; one that is none is told as that, once.
#[test]
fn a_backend_that_refuses_or_talks_nonsense_is_named() {
    let refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    let bound = format!("{ONE}[[queue]]\nname = \"b\"\nmax_depth = 9\n");
    let sidecar = Sidecar::run(&config(always(refusal), "", &bound));
    let job = r#"{"type":"t","args":[],"options":{"queue":"b"}}"#;
    ask(sidecar.data, "POST", "/ojs/v1/jobs", job);
    for what in ["its list of active jobs", "its statistics"] {
        let line = sidecar.line(what);
        assert!(line.contains("WARN") && line.contains("401"), "{line}");
        assert!(line.contains("set upstream.token"), "{line}");
    }
    assert_eq!(fetch(sidecar.data, "q", 1, "w").status, 401);
    let why = get(sidecar.admin, "/throttle/v1/why?queue=q").json();
    let refused = "the backend refuses the credentials of a worker";
    assert!(why.to_string().contains(refused), "{why}");
    let page = b"HTTP/1.1 200 OK\r\nOJS-Version: 1.0\r\nContent-Type: text/html\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>";
    let sidecar = Sidecar::run(&config(always(page), "", ONE));
    for _ in 0..3 {
        fetch(sidecar.data, "q", 1, "w");
    }
    let told = "no list of jobs: the worker gets 502";
    let line = sidecar.line(told);
    has(&line, "text/html");
    has(&line, "not valid JSON");
    assert_eq!(sidecar.log().matches(told).count(), 1, "{}", sidecar.log());
}

/// Each is one object.
fn objects(lines: &[String]) -> Vec<Value> {
    let object = |line: &String| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    lines.iter().map(object).collect()
}

#[test]
fn warnings_and_the_last_error_are_objects_too() {
    let backend = Backend::start(Lax::spec());
    let warnings = include_str!("../config/valid/warnings.toml");
    let (_, rest) = warnings.split_once("\n\n").unwrap();
    // Its store is a server that is not here.
    let (rest, _) = rest.split_once("[store]\n").unwrap();
    // It waits no longer for the port that another has.
    let server = "log = \"json\"\ndrain_timeout = \"200ms\"";
    let text = config(backend.addr, server, rest);
    let mut sidecar = Sidecar::run(&text);
    let warned = objects(&sidecar.lines())
        .iter()
        .filter(|line| line["level"] == "WARN")
        .any(|line| {
            let told = line["message"].as_str().unwrap();
            told.contains("share a key") && line["id"] == "config_warnings"
        });
    assert!(warned, "{}", sidecar.log());
    sidecar.signal("TERM");
    sidecar.ended();
    objects(&sidecar.lines());

    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (_dir, mut command) = run_with(text);
    command.args(["--listen", &held.local_addr().unwrap().to_string()]);
    let done = ran(&mut command);
    assert_eq!(done.status, Some(1), "{}", done.err);
    let lines: Vec<String> = done.err.lines().map(str::to_owned).collect();
    let said = objects(&lines);
    assert_eq!(said.last().unwrap()["level"], "ERROR", "{}", done.err);
}

/// As a log driver that hangs, or a parent that has lost interest.
#[test]
fn a_reader_of_the_log_that_stops_stops_nothing() {
    let backend = Backend::start(Lax::spec());
    let (dir, mut command) = run_with(config(backend.addr, "log_level = \"debug\"", ONE));
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let ready = lines.find_map(|line| {
        let line = line.unwrap();
        let (_, rest) = line.split_once("point SDKs at http://")?;
        rest.split(' ').next()?.parse().ok()
    });
    let mut conn = Conn::open(ready.unwrap());
    // More than a pipe takes: each is a line of a hundred bytes.
    for _ in 0..2_000 {
        assert_eq!(conn.ask("GET", "/ojs/v1/rate-limits/none", "").status, 404);
    }
    let kill = format!("kill -s TERM {}", child.id());
    let sent = Command::new("sh").args(["-c", &kill]).status();
    assert!(sent.unwrap().success());
    let ended = until("the end", || child.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
    drop((lines, dir));
}
