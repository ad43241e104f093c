//! What is told of the services behind ways out: in the log, in metrics, by `doctor` and where limits are set.

use super::doctor::{doctor, finding};
use super::prelude::*;
use crate::servers::port;
use crate::servers::vendor::{Answer, Vendor};

/// A way out to this address, and where its calls go in.
pub fn way_out(to: SocketAddr, more: &str) -> (String, SocketAddr) {
    let calls = port::own();
    let entry = "[[egress]]\nname = \"out\"\nlisten = ";
    let entry = format!("{entry}\"{calls}\"\nupstream = \"http://{to}\"\n{more}\n");
    (entry, calls)
}

/// Answers each connection once.
fn serve(addr: SocketAddr) {
    connections::each_at(addr, |mut stream| {
        // A connection that only looks whether somebody is there says nothing.
        if matches!(stream.read(&mut [0; 4096]), Ok(1..)) {
            let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            stream.write_all(reply).unwrap();
        }
    });
}

/// In how many hundredths of a second the system asks whether who listens here is still there; `None`: it does not yet.
fn probed_in(port: u16) -> Option<u32> {
    let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to = format!(":{port:04X}");
    let mut lines = all.lines().map(|line| line.split_whitespace().collect());
    let line = lines.find(|line: &Vec<_>| line[2].ends_with(&to))?;
    u32::from_str_radix(line[5].strip_prefix("02:")?, 16).ok()
}

/// A vendor may think for minutes, and its path may be broken for some seconds meanwhile.
#[test]
fn a_silent_service_is_given_more_time_than_the_backend() {
    let (service, (say, may_say)) = (port::own(), std::sync::mpsc::channel::<()>());
    let may_say = std::sync::Mutex::new(may_say);
    connections::each_at(service, move |mut stream| {
        let _read = stream.read(&mut [0; 4096]).unwrap();
        may_say.lock().unwrap().recv().unwrap();
        let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(reply).unwrap();
    });
    let (entry, calls) = way_out(service, "");
    let server = format!(
        "[server]\nupstream = \"none\"\nadmin_listen = \"{}\"",
        port::own()
    );
    let _sidecar = Sidecar::run(&format!("{server}\n{entry}"));
    let call = std::thread::spawn(move || get(calls, "/").status);
    wait("the probes", || probed_in(service.port()).is_some());
    // Of the backend it is 2 s.
    assert!(probed_in(service.port()) > Some(1_000));
    say.send(()).unwrap();
    assert_eq!(call.join().unwrap(), 200);
}

const UP: &str = "ojs_throttle_service_up{egress=\"out\"}";

#[test]
fn a_service_that_is_away_is_told_once_and_that_it_is_back() {
    let (backend, service) = (Backend::start(Lax::spec()), port::own());
    let (entry, calls) = way_out(service, "");
    let config = config(backend.addr, "", &entry);
    let sidecar = Sidecar::run(&config);
    assert!((sidecar.metric(UP) - 1.0).abs() < 0.1);
    for _ in 0..5 {
        assert_eq!(get(calls, "/").status, 502);
    }
    let lines = |word: &str| {
        let all = sidecar.lines().into_iter();
        all.filter(|line| line.contains(word)).collect::<Vec<_>>()
    };
    // Lines are written a moment later.
    wait("the line", || !lines("id=service_down").is_empty());
    let told = lines("id=service_down");
    assert_eq!(told.len(), 1, "{}", sidecar.log());
    assert!(
        told[0].contains("egress=\"out\"") || told[0].contains("egress=out"),
        "{told:?}"
    );
    assert!(
        lines("backend")
            .iter()
            .all(|line| !line.contains("no answer")),
        "{}",
        sidecar.log()
    );
    assert!(sidecar.metric(UP).abs() < 0.1);
    // By the doctor, who connects, and who asks the sidecar that runs.
    let admin = format!("admin_listen = \"{}\"", sidecar.admin);
    let asks = self::config(backend.addr, &admin, &entry);
    let (report, status) = doctor(&asks, &[]);
    let found = finding(&report, "egress", "service");
    assert_eq!(
        (status, &found["level"]),
        (Some(1), &json!("fail")),
        "{report}"
    );
    let says = found["says"].as_str().unwrap();
    assert!(
        says.starts_with("out: the service cannot be reached"),
        "{says}"
    );
    let cause = "the service of way out \"out\" does not answer";
    assert!(
        report.to_string().contains(&cause.replace('"', "\\\"")),
        "{report}"
    );
    serve(service);
    wait("it answers", || get(calls, "/").status == 200);
    wait("that it is back", || {
        lines("the service of a way out answers again").len() == 1
    });
    assert!((sidecar.metric(UP) - 1.0).abs() < 0.1);
    let (report, status) = doctor(&asks, &[]);
    assert_eq!(status, Some(0), "{report}");
}

/// As many keys as callers like are shut, and the log stays readable.
#[test]
fn many_keys_of_a_vendor_that_refuses_are_few_lines() {
    let backend = Backend::start(Lax::spec());
    let vendor = Vendor::start(|_| Answer::new(429, "").header("Retry-After", "60"));
    let keyed = "key = \"of:{header.X-Tenant}\"\nconcurrency = 5";
    let (entry, calls) = way_out(vendor.addr, keyed);
    let sidecar = Sidecar::run(&config(backend.addr, "", &entry));
    for tenant in 0..300 {
        let mut conn = Conn::open(calls);
        let call = format!("GET / HTTP/1.1\r\nHost: a\r\nX-Tenant: t{tenant}\r\n\r\n");
        conn.write(call.as_bytes()).unwrap();
        assert_eq!(conn.reply().unwrap().status, 429);
    }
    let shut = sidecar.metric("ojs_throttle_downstream_rate_limited_total{policy=\"out\"}");
    assert!((shut - 300.0).abs() < 0.1, "{shut}");
    let lines = sidecar
        .log()
        .matches("the service behind this key limits us")
        .count();
    assert_eq!(lines, 10, "{}", sidecar.log());
}

/// A key of calls is known before the first one.
#[test]
fn the_key_of_a_way_out_is_no_stranger() {
    let backend = Backend::start(Lax::spec());
    let (entry, _) = way_out(backend.addr, "key = \"vendor\"\nconcurrency = 5");
    let sidecar = Sidecar::run(&config(backend.addr, "", &entry));
    let key = "/ojs/v1/rate-limits/vendor";
    let shown = get(sidecar.data, key).json();
    assert_eq!(shown["concurrency"]["limit"], 5, "{shown}");
    let list = get(sidecar.data, "/ojs/v1/rate-limits").json();
    assert!(list.to_string().contains("\"vendor\""), "{list}");
    let mut conn = Conn::open(sidecar.data);
    let set = conn.ask("PUT", key, r#"{"concurrency":0}"#).json();
    assert_eq!(
        (&set["concurrency"]["limit"], &set["hint"]),
        (&json!(0), &Value::Null),
        "{set}"
    );
    let set = conn
        .ask(
            "PUT",
            "/ojs/v1/rate-limits/stranger",
            r#"{"concurrency":0}"#,
        )
        .json();
    let hint = set["hint"].as_str().unwrap();
    has(hint, "no policy and no [[egress]] has this key");
}
