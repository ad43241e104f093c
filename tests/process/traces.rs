//! Spans go to a collector by OTLP, judged from what the collector got.

use super::prelude::*;
use super::ways_out::way_out;
use crate::servers::port;
use crate::servers::vendor::{Answer, Vendor};

/// A collector: it takes what is posted, and answers with the status that is set.
struct Collector {
    addr: SocketAddr,
    got: Arc<Mutex<Vec<Value>>>,
    status: Arc<AtomicUsize>,
}

impl Collector {
    fn start() -> Collector {
        let (got, status) = (Arc::default(), Arc::new(AtomicUsize::new(200)));
        let (noted, says) = (Arc::clone(&got), Arc::clone(&status));
        Collector {
            addr: connections::each(move |stream| take(stream, &noted, &says)),
            got,
            status,
        }
    }

    /// All spans so far.
    fn spans(&self) -> Vec<Value> {
        let got = self.got.lock().unwrap();
        let scopes = got.iter().flat_map(|batch| list(&batch["resourceSpans"]));
        let scopes = scopes.flat_map(|resource| list(&resource["scopeSpans"]));
        scopes.flat_map(|scope| list(&scope["spans"])).collect()
    }

    /// The first span of this name and trace.
    fn span(&self, name: &str, trace: &str) -> Value {
        until(&format!("a span {name} of {trace}"), || {
            let mut spans = self.spans().into_iter();
            spans.find(|span| span["name"] == name && span["traceId"] == trace)
        })
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Takes posts on one connection.
fn take(stream: TcpStream, noted: &Mutex<Vec<Value>>, says: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begin = head.len();
            if !matches!(reader.read_line(&mut head), Ok(1..)) {
                return;
            }
            let line = head[begin..].to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        assert!(head.starts_with("POST /v1/traces HTTP/1.1"), "{head}");
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let status = says.load(Ordering::Relaxed);
        if status == 200 {
            let is_json = head.to_ascii_lowercase().contains("application/json");
            let batch = match is_json {
                true => serde_json::from_slice(&body).unwrap(),
                false => json!({"protobuf": body.len()}),
            };
            noted.lock().unwrap().push(batch);
        }
        let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n\r\n{{}}");
        if stream.write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}

/// What a span says under this name.
fn said(span: &Value, name: &str) -> Value {
    let attributes = list(&span["attributes"]);
    let found = attributes.into_iter().find(|one| one["key"] == name);
    let value = found.map(|one| one["value"].clone()).unwrap_or_default();
    let texts = value.as_object().and_then(|of| of.values().next().cloned());
    texts.unwrap_or_default()
}

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn asks(to: SocketAddr, path: &str, body: &Value, trace: &str) -> u16 {
    let (mut conn, body) = (Conn::open(to), body.to_string());
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nHost: ojs\r\nContent-Type: application/json");
    let parent = format!("traceparent: 00-{trace}-{PARENT}-01");
    let text = format!("{head}\r\n{parent}\r\nContent-Length: {length}\r\n\r\n{body}");
    conn.write(text.as_bytes()).unwrap();
    conn.reply().unwrap().status
}

/// A job that starts and one that its limit keeps are found in the collector with all that was done for them.
#[test]
fn a_fetch_is_seen_with_the_limit_that_bound_it() {
    let (collector, backend) = (Collector::start(), Backend::start(Lax::spec()));
    let limits = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nkey = \"of:{queue}:{type}\"\nconcurrency = 1\n";
    let traces = format!("[traces]\nendpoint = \"http://{}\"\n", collector.addr);
    let (dir, mut command) = run_with(config(backend.addr, "", &format!("{limits}{traces}")));
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut sidecar = Sidecar::spawn(command, dir);
    for _ in 0..2 {
        enqueue(sidecar.data, "q", json!({}));
    }
    let fetch = json!({"queues": ["q"], "count": 2, "worker_id": "w"});
    assert_eq!(
        asks(sidecar.data, "/ojs/v1/workers/fetch", &fetch, TRACE),
        200
    );
    let request = collector.span("request", TRACE);
    assert_eq!(request["parentSpanId"], PARENT);
    assert_eq!(request["kind"], 2, "a server's: {request}");
    assert_eq!(said(&request, "url.path"), "/ojs/v1/workers/fetch");
    assert_eq!(said(&request, "http.response.status_code"), "200");
    let within = |name: &str, of: &Value| {
        let span = collector.span(name, TRACE);
        assert_eq!(span["parentSpanId"], of["spanId"], "{name}: {span}");
        span
    };
    let gather = within("gather", &request);
    let upstream = within("upstream", &gather);
    assert_eq!(upstream["kind"], 3, "a client's: {upstream}");
    assert_eq!(said(&upstream, "url.path"), "/ojs/v1/workers/fetch");
    let take = within("take", &request);
    assert_eq!(
        (said(&take, "jobs"), said(&take, "started")),
        (json!("2"), json!("1"))
    );
    assert_eq!(said(&take, "limit.policy"), "one");
    assert_eq!(said(&take, "limit.key"), "of:q:t");
    // It is asked for by name.
    let resource = collector.got.lock().unwrap()[0]["resourceSpans"][0]["resource"].clone();
    assert_eq!(said(&resource, "service.name"), "ojs-throttle");
    // What the sidecar does by itself, and the sending of spans, is no trace.
    let spans = collector.spans();
    let roots = spans.iter().filter(|span| span["name"] != "request");
    assert!(
        roots.clone().all(|span| span["parentSpanId"] != ""),
        "{spans:?}"
    );
    // Those of the last request come too.
    let last = TRACE.replace('4', "5");
    assert_eq!(
        asks(sidecar.data, "/ojs/v1/workers/fetch", &fetch, &last),
        200
    );
    sidecar.signal("TERM");
    assert!(sidecar.ended().success());
    assert!(
        collector
            .spans()
            .iter()
            .any(|span| span["traceId"] == *last)
    );
}

/// A collector that is away, or refuses, costs requests nothing, and is told once.
#[test]
fn a_collector_that_is_away_is_told_once() {
    let (collector, backend) = (Collector::start(), Backend::start(Lax::spec()));
    collector.status.store(503, Ordering::Relaxed);
    let (dir, mut command) = run_with(config(backend.addr, "", ""));
    command.env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        format!("http://{}", collector.addr),
    );
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "10");
    let sidecar = Sidecar::spawn(command, dir);
    let told = |id: &str| sidecar.log().matches(&format!("id={id}")).count();
    until("that traces are lost", || {
        enqueue(sidecar.data, "q", json!({}));
        (told("traces_lost") == 1).then_some(())
    });
    collector.status.store(200, Ordering::Relaxed);
    until("that traces are back", || {
        enqueue(sidecar.data, "q", json!({}));
        (told("traces_back") == 1).then_some(())
    });
    assert_eq!(told("traces_lost"), 1, "{}", sidecar.log());
    assert!(!collector.spans().is_empty());
}

/// Some vendors have the caller's key in the path.
#[test]
fn the_paths_of_calls_are_in_no_trace() {
    let (collector, backend) = (Collector::start(), Backend::start(Lax::spec()));
    let vendor = Vendor::start(|_| Answer::ok());
    let (entry, calls) = way_out(vendor.addr, "concurrency = 5");
    let traces = format!("[traces]\nendpoint = \"http://{}\"\n", collector.addr);
    let (dir, mut command) = run_with(config(backend.addr, "", &format!("{entry}{traces}")));
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let _sidecar = Sidecar::spawn(command, dir);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let mut conn = Conn::open(calls);
    let call = format!(
        "GET /bot123:S3CRET/getMe?k=S3CRET HTTP/1.1\r\nHost: a\r\ntraceparent: 00-{trace}-00f067aa0ba902b7-01\r\n\r\n"
    );
    conn.write(call.as_bytes()).unwrap();
    assert_eq!(conn.reply().unwrap().status, 200);
    has(&vendor.calls()[0].head, "/bot123:S3CRET/getMe?k=S3CRET");
    for name in ["request", "upstream"] {
        let span = collector.span(name, trace);
        assert_eq!(said(&span, "http.request.method"), "GET");
        assert!(said(&span, "url.path").is_null(), "{span}");
    }
    assert!(!json!(collector.spans()).to_string().contains("S3CRET"));
}

#[test]
fn a_collector_that_is_away_is_called_by_its_name() {
    let (backend, nobody) = (Backend::start(Lax::spec()), port::own());
    let traces = format!("[traces]\nendpoint = \"http://{nobody}\"\n");
    let (dir, mut command) = run_with(config(backend.addr, "", &traces));
    command.env("OTEL_BSP_SCHEDULE_DELAY", "10");
    let sidecar = Sidecar::spawn(command, dir);
    let lost = until("that traces are lost", || {
        enqueue(sidecar.data, "q", json!({}));
        let mut lines = sidecar.lines().into_iter();
        lines.find(|line| line.contains("id=traces_lost"))
    });
    assert!(lost.contains("the collector cannot be reached"), "{lost}");
    assert!(
        !sidecar.log().contains("id=backend_down"),
        "{}",
        sidecar.log()
    );
}

/// An endpoint that makes no sense is told before anything is served.
#[test]
fn a_bad_endpoint_is_told_at_the_start() {
    let (_dir, mut command) = run_with(config(SocketAddr::from(([127, 0, 0, 1], 1)), "", ""));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense:::");
    let ran = ran(&mut command);
    assert_ne!(ran.status, Some(0));
    assert!(ran.err.contains("OTEL_"), "{}", ran.err);
}

/// The environment says where spans go, whatever the file says, and that none go anywhere.
#[test]
fn the_environment_wins() {
    let (by_file, by_name) = (Collector::start(), Collector::start());
    let backend = Backend::start(Lax::spec());
    let traces = format!("[traces]\nendpoint = \"http://{}\"\n", by_file.addr);
    let config = config(backend.addr, "", &traces);
    let run = |name: &str, value: &str| {
        let (dir, mut command) = run_with(&config);
        command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
        command
            .env("OTEL_BSP_SCHEDULE_DELAY", "10")
            .env(name, value);
        let mut sidecar = Sidecar::spawn(command, dir);
        enqueue(sidecar.data, "q", json!({}));
        // The end brings what is left.
        sidecar.signal("TERM");
        assert!(sidecar.ended().success());
        [&by_file, &by_name].map(|collector| !collector.spans().is_empty())
    };
    for (name, value) in [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
        ("OTEL_TRACES_EXPORTER", "None"),
    ] {
        assert_eq!(run(name, value), [false, false], "{name}={value}");
    }
    let by_environment = format!("http://{}", by_name.addr);
    assert_eq!(
        run("OTEL_EXPORTER_OTLP_ENDPOINT", &by_environment),
        [false, true]
    );
    assert_eq!(run("OTEL_SERVICE_NAME", "mine"), [true, true]);
    let resource = by_file.got.lock().unwrap()[0]["resourceSpans"][0]["resource"].clone();
    assert_eq!(said(&resource, "service.name"), "mine");
}

/// As the specification says: none are sent, whatever else is set, and a value that means nothing here is ignored and
/// told.
#[test]
fn the_standard_s_variables_are_heeded_or_told() {
    let (collector, backend) = (Collector::start(), Backend::start(Lax::spec()));
    let run = |set: &[(&str, &str)]| {
        collector.got.lock().unwrap().clear();
        let (dir, mut command) = run_with(config(backend.addr, "", ""));
        command.envs(set.iter().copied());
        let mut sidecar = Sidecar::spawn(command, dir);
        enqueue(sidecar.data, "q", json!({}));
        sidecar.signal("TERM");
        assert!(sidecar.ended().success());
        let told = sidecar.log().matches("id=traces_setting_ignored").count();
        (told, collector.got.lock().unwrap().clone())
    };
    let to = format!("http://{}", collector.addr);
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", to.as_str());
    let none = ("OTEL_TRACES_EXPORTER", "none");
    let nonsense = ("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense:::");
    assert_eq!(run(&[none, nonsense]), (0, vec![]));
    assert_eq!(
        run(&[none, endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
        (0, vec![])
    );
    // Protobuf is what the standard has where nobody says.
    for (more, ignored) in [
        (("OTEL_TRACES_EXPORTER", "otlp"), 0),
        (("OTEL_TRACES_EXPORTER", ""), 0),
        (("OTEL_TRACES_EXPORTER", "console,otlp"), 1),
        (("OTEL_TRACES_EXPORTER", "zipkin"), 1),
        (("OTEL_SDK_DISABLED", "yes"), 1),
        (("OTEL_SDK_DISABLED", ""), 0),
        (("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), 1),
        (("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf"), 0),
        (("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"), 1),
    ] {
        let (told, got) = run(&[endpoint, more]);
        assert_eq!(told, ignored, "{more:?}");
        assert!(
            got.iter().any(|batch| batch["protobuf"].is_u64()),
            "{more:?}: {got:?}"
        );
    }
}
