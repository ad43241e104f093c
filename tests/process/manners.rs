//! What a good proxy does: it says who sent a request, says when to go elsewhere, and closes before the backend does.

use super::prelude::*;
use super::relay::Relay;

/// Whether some request that reached the backend has this line.
fn has_line(sent: &str, line: &str) -> bool {
    sent.split("\r\n").any(|one| one.eq_ignore_ascii_case(line))
}

#[test]
fn the_backend_is_told_who_sent_a_request_if_it_is_to_be() {
    let backend = Backend::start(Lax::spec());
    for (setting, from, host) in [
        ("off", "10.9.8.7", "public"),
        ("add", "10.9.8.7, 127.0.0.1", "public"),
    ] {
        let relay = Relay::before(backend.addr);
        let setting = format!("forwarded = \"{setting}\"");
        let sidecar = Sidecar::run(&config(relay.addr, &setting, ""));
        let mut conn = Conn::open(sidecar.data);
        conn.write(b"GET /ojs/v1/health HTTP/1.1\r\nHost: a:1\r\nX-Forwarded-For: 10.9.8.7\r\nX-Forwarded-Host: public\r\n\r\n")
            .unwrap();
        assert_eq!(conn.reply().unwrap().status, 200);
        let sent = relay.take_sent();
        assert!(
            has_line(&sent, &format!("x-forwarded-for: {from}")),
            "{sent}"
        );
        assert!(
            has_line(&sent, &format!("x-forwarded-host: {host}")),
            "{sent}"
        );
        let is_added = setting.contains("add");
        assert_eq!(
            has_line(&sent, "x-forwarded-proto: http"),
            is_added,
            "{sent}"
        );
        conn.ask("GET", "/ojs/v1/health", "");
        let sent = relay.take_sent();
        assert_eq!(
            has_line(&sent, "x-forwarded-host: localhost"),
            is_added,
            "{sent}"
        );
        assert_eq!(
            has_line(&sent, "x-forwarded-for: 127.0.0.1"),
            is_added,
            "{sent}"
        );
        // Who is told of there cannot have the lines taken off.
        for name in ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"] {
            let mut conn = Conn::open(sidecar.data);
            let head = format!("Host: a:1\r\nConnection: {name}");
            conn.write(format!("GET /ojs/v1/health HTTP/1.1\r\n{head}\r\n\r\n").as_bytes())
                .unwrap();
            assert_eq!(conn.reply().unwrap().status, 400, "{name}");
        }
    }
}

/// A load balancer moves nobody whose connection stays open.
#[test]
fn while_it_drains_each_reply_says_that_its_connection_ends() {
    let backend = Backend::start(Lax::spec());
    let sidecar = Sidecar::run(&config(backend.addr, "drain_min = \"20s\"", ""));
    let job = enqueue(sidecar.data, "free", json!({}));
    let mut conns = [(); 4].map(|()| Conn::open(sidecar.data));
    for conn in &mut conns {
        let reply = conn.ask("GET", "/ojs/v1/health", "");
        assert!(!reply.head.contains("connection: close"), "{reply:?}");
    }
    sidecar.signal("TERM");
    sidecar.state("draining");
    let [one, two, three, four] = &mut conns;
    let fetch = json!({"queues": ["free"], "worker_id": "w"}).to_string();
    let ack = json!({"job_id": job, "worker_id": "w", "result": {}}).to_string();
    for (conn, method, path, body, status) in [
        (one, "GET", "/ojs/v1/health", "", 200),
        (two, "POST", "/ojs/v1/workers/fetch", &*fetch, 200),
        (three, "POST", "/ojs/v1/workers/ack", &*ack, 200),
        (four, "GET", "/ojs/v1/a/../b", "", 400),
    ] {
        let reply = conn.ask(method, path, body);
        assert_eq!(reply.status, status, "{reply:?}");
        assert!(
            reply.head.contains("connection: close\r\n"),
            "{path}: {reply:?}"
        );
        assert!(conn.reply().is_err(), "{path}: it stays open");
    }
}

#[test]
fn a_connection_to_the_backend_is_kept_as_long_as_is_set() {
    let backend = Backend::start(Lax::spec());
    let relay = Relay::before(backend.addr);
    let rest = "[upstream]\nidle_timeout = \"1ms\"\n";
    let sidecar = Sidecar::run(&config(relay.addr, "", rest));
    get(sidecar.data, "/ojs/v1/health");
    let before = relay.taken();
    // By itself none of these waits long enough for that.
    wait("another connection is opened", || {
        get(sidecar.data, "/ojs/v1/health");
        relay.taken() > before + 2
    });
}
