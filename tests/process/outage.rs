//! A backend that is not there yet, goes away, or talks nonsense.

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::prelude::*;
use super::relay::Relay;

const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

#[test]
fn a_backend_that_comes_later_is_found() {
    let mut backend = Backend::absent(Lax::spec());
    // Before the sidecar ever saw it, a job is out already.
    backend.come();
    let old = start_one(backend.addr, "q");
    enqueue(backend.addr, "q", json!({}));
    backend.go();

    let sidecar = Sidecar::run(&config(backend.addr, "", ONE));
    let data = sidecar.data;
    for (method, path, body) in [
        ("POST", "/ojs/v1/workers/fetch", r#"{"queues":["q"]}"#),
        ("POST", "/ojs/v1/workers/fetch", r#"{"queues":["free"]}"#),
        ("GET", "/ojs/v1/jobs/x", ""),
        ("GET", "/ojs/v1/health", ""),
    ] {
        let reply = ask(data, method, path, body);
        assert_eq!(reply.status, 502, "{path}: {reply:?}");
        let error = &reply.json()["error"];
        let is_said = error["code"].is_string() && error["message"].is_string();
        assert!(is_said, "{reply:?}");
    }
    // An enqueue that was not sent may be sent again; heartbeats never fail on our account.
    let job = r#"{"type":"t","args":[],"options":{"queue":"q"}}"#;
    let refused = ask(data, "POST", "/ojs/v1/jobs", job);
    assert!(refused.status >= 500, "{refused:?}");
    assert_eq!(heartbeat(data, &[], "w").status, 200);
    assert_eq!(get(sidecar.admin, "/readyz").status, 200);

    backend.come();
    // Who was out has his slot, although nobody could be asked at the start.
    assert!(fetch(data, "q", 1, "x").jobs().is_empty());
    assert_eq!(ack(data, &old, "w").status, 200);
    assert_eq!(fetch(data, "q", 1, "x").jobs().len(), 1);
}

/// The jobs that waited wait still: a backlog of 0 would look like none.
#[test]
fn what_waits_is_told_as_it_was_while_the_backend_is_away() {
    let (mut backend, sidecar) = pair("", ONE);
    for _ in 0..5 {
        enqueue(sidecar.data, "q", json!({}));
    }
    let waits = || get(sidecar.data, "/ojs/v1/rate-limits/one").json()["waiting_count"].clone();
    wait("the backend said it", || waits() == 5);
    backend.go();
    wait("it is away", || {
        get(sidecar.data, "/ojs/v1/health").status == 502
    });
    // It is asked again once a second, and does not answer.
    let asked = "ojs_throttle_responses_total{status=\"502\",code=\"backend_unreachable\"}";
    let begun = Instant::now();
    wait("it was asked again", || {
        assert_eq!(waits(), 5);
        begun.elapsed() > Duration::from_millis(2_500)
    });
    assert!(sidecar.metric(asked) > 0.0);
}

/// An admin port answers HTTP, and nothing can be fetched there.
#[test]
fn an_upstream_that_is_no_backend_is_told_wherever_somebody_looks() {
    let (_backend, other) = pair("", "");
    let (dir, command) = run_with(config(other.admin, "", ONE));
    let sidecar = Sidecar::begin(command, dir);
    let sentence = "server.upstream is the admin port of an ojs-throttle";
    wait("it is found out", || {
        get(sidecar.admin, "/readyz").body.contains(sentence)
    });
    let state = get(sidecar.admin, "/throttle/v1/state").json();
    assert_eq!(state["sidecar"]["ready"], "not ready");
    assert_eq!(state["causes"][0]["name"], "wrong upstream", "{state}");
    let why = get(sidecar.admin, "/throttle/v1/why?queue=q").json();
    assert!(why["why"].as_str().unwrap().contains(sentence), "{why}");
}

/// Workers get nothing, and without this line nobody would hear of it.
#[test]
fn a_backend_that_refuses_fetches_is_logged_once() {
    let backend = Backend::start(Lax::spec());
    let (addr, below) = (
        backend.addr.to_string(),
        format!("{}/nowhere", backend.addr),
    );
    let sidecar = Sidecar::run(&config(backend.addr, "", ONE).replace(&addr, &below));
    for _ in 0..3 {
        assert_eq!(fetch(sidecar.data, "q", 1, "w").status, 404);
    }
    let lines = || {
        sidecar
            .log()
            .matches("id=backend_refuses status=404")
            .count()
    };
    wait("the line", || lines() > 0);
    assert_eq!(lines(), 1);
}

#[test]
fn an_outage_is_two_lines_however_many_ask() {
    let (mut backend, sidecar) = pair("", ONE);
    assert_eq!(get(sidecar.data, "/ojs/v1/health").status, 200);
    assert_eq!(sidecar.metric("ojs_throttle_backend_up"), 1.0);
    backend.go();
    let refused = "ojs_throttle_responses_total{status=\"502\",code=\"backend_unreachable\"}";
    wait("its open connections are seen to be closed", || {
        assert_eq!(get(sidecar.data, "/ojs/v1/health").status, 502);
        sidecar.metric(refused) > 0.0
    });
    let before = sidecar.metric(refused);
    for _ in 0..5 {
        assert_eq!(get(sidecar.data, "/ojs/v1/health").status, 502);
        assert_eq!(fetch(sidecar.data, "q", 1, "w").status, 502);
    }
    assert_eq!(sidecar.metric("ojs_throttle_backend_up"), 0.0);
    assert_eq!(sidecar.metric(refused), before + 10.0);
    backend.come();
    wait("it is noticed though nobody asks", || {
        sidecar.metric("ojs_throttle_backend_up") > 0.0
    });
    for _ in 0..5 {
        assert_eq!(get(sidecar.data, "/ojs/v1/health").status, 200);
        assert_eq!(fetch(sidecar.data, "q", 1, "w").status, 200);
    }
    let lines = sidecar.lines();
    let with = |word: &str| lines.iter().filter(|line| line.contains(word)).count();
    assert_eq!(with("no answer from the backend"), 1, "{lines:#?}");
    assert_eq!(with("answers again"), 1, "{lines:#?}");
    let address = backend.addr.to_string();
    let mut said = lines.iter().filter(|line| line.contains("no answer"));
    // The first to notice may have asked on a connection that had just ended.
    let names_why = |line: &String| line.contains(&address) || line.contains("reply was lost");
    assert!(said.all(names_why), "{lines:#?}");
    // Those, and that it listens and is ready.
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert_eq!(sidecar.metric(refused), before + 10.0);
}

#[test]
fn too_many_requests_and_connections_are_seen() {
    // It listens, and answers nobody.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = "max_in_flight = 1\nmax_connections = 3";
    let sidecar = Sidecar::run(&config(hung.local_addr().unwrap(), server, ""));
    let in_flight = "ojs_throttle_requests_in_flight{kind=\"ordinary\"}";
    assert_eq!(sidecar.metric(in_flight), 0.0);
    sidecar.shows("ojs_throttle_connections", 0.0);
    let mut first = Conn::open(sidecar.data);
    let request = b"GET /ojs/v1/health HTTP/1.1\r\nHost: h\r\n\r\n";
    first.write(request).unwrap();
    wait("it is in flight", || sidecar.metric(in_flight) == 1.0);
    let mut second = Conn::open(sidecar.data);
    for _ in 0..5 {
        let reply = second.ask("GET", "/ojs/v1/health", "");
        assert_eq!(reply.status, 503, "{reply:?}");
    }
    let refused = "ojs_throttle_responses_total{status=\"503\",code=\"overloaded\"}";
    assert_eq!(sidecar.metric(refused), 5.0);
    // Whoever looks at metrics connects to the admin port, which has as many places.
    let here = sidecar.data.to_string();
    let with = |word: &str| {
        let lines = sidecar.lines();
        let of_here = lines.iter().filter(|line| line.contains(&here));
        of_here.filter(|line| line.contains(word)).count()
    };
    wait("the log says so", || with("max_in_flight") == 1);
    assert_eq!(sidecar.metric("ojs_throttle_connections"), 2.0);
    assert_eq!(with("connections_full"), 0);
    let _third = Conn::open(sidecar.data);
    sidecar.shows("ojs_throttle_connections", 3.0);
    wait("the log says so", || with("connections_full") == 1);
    drop(second);
    sidecar.shows("ojs_throttle_connections", 2.0);
}

#[test]
fn an_ack_whose_answer_is_lost_is_made_once_and_answered() {
    let backend = Backend::start(Lax::redis());
    let relay = Relay::before(backend.addr);
    let sidecar = Sidecar::run(&config(relay.addr, "", ONE));
    let job = start_one(sidecar.data, "q");
    relay.cut("/workers/ack", Duration::from_secs(2));
    let reply = ack(sidecar.data, &job, "w");
    assert!(relay.has_cut());
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(backend.count(EventKind::Acked, &job), 1);
    assert_eq!(backend.total(EventKind::Nacked), 0);
    assert_eq!(sidecar.metric("ojs_throttle_slots"), 0.0);
}

/// So an ingress says that it lost the backend's answer.
#[test]
fn an_ack_that_a_gateway_answers_is_made_once_and_answered() {
    let backend = Backend::start(Lax::redis());
    let relay = Relay::before(backend.addr);
    let sidecar = Sidecar::run(&config(relay.addr, "", ONE));
    let job = start_one(sidecar.data, "q");
    relay.fail("/workers/ack");
    let reply = ack(sidecar.data, &job, "w");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(backend.count(EventKind::Acked, &job), 1);
    assert_eq!(sidecar.metric("ojs_throttle_slots"), 0.0);
}

#[test]
fn an_ack_waits_for_a_backend_that_is_away() {
    let (mut backend, sidecar) = pair("", ONE);
    let job = start_one(sidecar.data, "q");
    backend.go();
    let (data, asked) = (sidecar.data, job.clone());
    let reply = std::thread::spawn(move || ack(data, &asked, "w"));
    wait("it tries again", || {
        sidecar.metric("ojs_throttle_settle_retries_total") >= 2.0
    });
    backend.come();
    let reply = reply.join().unwrap();
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(backend.count(EventKind::Acked, &job), 1);
}

const TLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/tls");

/// Accepts TLS with this certificate, which nobody else has signed.
fn unknown(certificate: &str) -> SocketAddr {
    let chain = CertificateDer::from_pem_file(format!("{TLS}/{certificate}")).unwrap();
    let key = PrivateKeyDer::from_pem_file(format!("{TLS}/key.pem")).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let config = Arc::new(config);
    connections::each(move |mut stream| {
        let mut tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
        // The other side is expected to hang up.
        while tls.is_handshaking() && tls.complete_io(&mut stream).is_ok() {}
    })
}

#[test]
fn https_that_fails_is_a_sentence() {
    let plain = Backend::start(Lax::spec());
    let trusted = format!("[upstream]\nca_file = \"{TLS}/self_signed.pem\"\n");
    let signed = unknown("self_signed.pem");
    let untrusted = unknown("unknown.pem");
    let begins = "must server.upstream begin with";
    let [clear, tls] = ["http", "https"].map(|scheme| format!("{begins} {scheme}://?"));
    let unsigned = "give the backend one that a CA has signed";
    for (scheme, upstream, rest, word) in [
        (
            "https",
            untrusted,
            "",
            "UnknownIssuer (upstream.ca_file names",
        ),
        ("https", plain.addr, "", &clear),
        ("https", signed, &*trusted, unsigned),
        ("http", signed, "", &tls),
    ] {
        let text = config(upstream, "", rest).replace("http://", &format!("{scheme}://"));
        let mut sidecar = Sidecar::run(&text);
        let reply = get(sidecar.data, "/ojs/v1/health");
        assert_eq!(reply.status, 502, "{reply:?}");
        wait(word, || sidecar.log().contains(word));
        let log = sidecar.log();
        let is_named = log.contains("cannot be reached: https://");
        assert!(scheme == "http" || is_named, "{log}");
        assert!(!log.contains("panicked") && sidecar.runs(), "{log}");
    }
}

/// A backend that answers everything with these bytes, says no more, and closes once the other end has: one that closed
/// with something unread would take its answer back.
pub fn nonsense(answer: impl AsRef<[u8]> + Send + Sync + 'static) -> SocketAddr {
    connections::each(move |mut stream| {
        let mut bytes = [0; 4096];
        // Whether it is still there to hear it does not matter.
        drop(stream.read(&mut bytes));
        drop(stream.write_all(answer.as_ref()));
        drop(stream.shutdown(Shutdown::Write));
        while stream.read(&mut bytes).is_ok_and(|read| read > 0) {}
    })
}

const OK: &str = "HTTP/1.1 200 OK\r\n";
const OJS: &str = "HTTP/1.1 200 OK\r\nOJS-Version: 1.0\r\nConnection: close\r\n";

#[test]
fn nonsense_from_a_backend_is_told_as_such_or_passed() {
    let twice = "Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}";
    for (head, rest, want) in [
        (
            "",
            "\u{16}\u{3}\u{1}\u{2}\0\u{1}garbage\r\n\r\n",
            &[502][..],
        ),
        ("", "", &[502]),
        (OK, twice, &[502]),
        (OK, "Content-Length: 500\r\n\r\n{\"jobs\":[", &[502, 504]),
        (OJS, "Content-Length: 9\r\n\r\n<html/>\r\n", &[502, 200]),
        (OJS, "Content-Length: 13\r\n\r\n{\"jobs\":null}", &[200]),
        (
            OJS,
            "Content-Length: 14\r\n\r\n{\"jobs\":[[[[]]",
            &[502, 200],
        ),
    ] {
        let text = [head, rest].concat();
        let mut sidecar = Sidecar::run(&config(nonsense(text.clone()), "", ONE));
        for queue in ["q", "free"] {
            let reply = fetch(sidecar.data, queue, 1, "w");
            assert!(want.contains(&reply.status), "{text}: {reply:?}");
        }
        let beat = heartbeat(sidecar.data, &["a"], "w");
        assert_eq!(beat.status, 200, "{text}: {beat:?}");
        assert_eq!(get(sidecar.admin, "/livez").status, 200);
        let log = sidecar.log();
        assert!(sidecar.runs() && !log.contains("panicked"), "{log}");
    }
}
