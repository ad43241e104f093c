//! Calls that name one of many hosts, through a whole sidecar over real sockets.

use std::net::IpAddr;

use super::doctor::{doctor, finding};
use super::prelude::*;
use crate::servers::certs::Ca;
use crate::servers::vendor::{Answer, Vendor};
use crate::servers::{connections, port};

const LOOPBACK: &str = "allow = [\"127.0.0.0/8\", \"::1\"]";

/// Calls alone, by an entry with these lines, and where they go in.
fn entry(more: &str) -> (String, SocketAddr) {
    let (admin, calls) = (port::own(), port::own());
    let server = format!("[server]\nupstream = \"none\"\nadmin_listen = \"{admin}\"\n");
    let entry = format!(
        "{server}[[egress]]\nname = \"out\"\nlisten = \"{calls}\"\nkey = \"{{host}}\"\nconcurrency = 50\n{more}\n"
    );
    (entry, calls)
}

/// The status of a call with this first line and `Host`, and the code of an error.
fn said(to: SocketAddr, first: &str, host: &str) -> (u16, String) {
    let mut conn = Conn::open(to);
    let call = format!("GET {first} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    conn.write(call.as_bytes()).unwrap();
    let reply = conn.reply().unwrap();
    let error = serde_json::from_str::<Value>(&reply.body).unwrap_or_default();
    let code = error["error"]["code"].as_str().unwrap_or_default();
    (reply.status, code.to_owned())
}

#[test]
fn calls_go_out_over_tls_and_their_host_stays_as_it_was_signed() {
    let ca = Ca::new();
    let vendor = Vendor::secured(&ca.server("vendor"), |_| Answer::ok());
    let at = format!("localhost:{}", vendor.addr.port());
    let literal = vendor.addr.to_string();
    let hosts = format!(
        "hosts = [\"{at}\", \"{literal}\"]\nca_file = {:?}",
        ca.file()
    );
    let (config, calls) = entry(&format!("{hosts}\n{LOOPBACK}"));
    let sidecar = Sidecar::run(&config);
    let odd = at.replace("localhost", "LocalHost.");
    for (first, host) in [("/a", &at), ("/b", &odd), ("/c", &literal)] {
        let (status, _) = said(calls, &format!("http://{host}{first}"), host);
        assert_eq!(status, 200, "{}", sidecar.log());
        let seen = vendor.calls().pop().unwrap();
        assert_eq!((seen.target(), seen.header("host")), (first, Some(&**host)));
    }
    // By the doctor too, who makes no call.
    let (report, status) = doctor(&config, &[]);
    assert_eq!(status, Some(0), "{report}");
    has(report.to_string(), &format!("https://{at} can be reached"));
    assert_eq!(vendor.calls().len(), 3);
}

/// The advice names what the entry has.
#[test]
fn a_host_without_tls_is_told_with_what_the_entry_has() {
    let to = connections::each(|mut stream| {
        drop(stream.write_all(b"HTTP/1.1 400 Bad\r\n\r\n"));
    });
    let at = format!("localhost:{}", to.port());
    let (config, calls) = entry(&format!("hosts = [\"{at}\"]\n{LOOPBACK}"));
    let _sidecar = Sidecar::run(&config);
    let mut conn = Conn::open(calls);
    conn.write(format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n").as_bytes())
        .unwrap();
    let told = conn.reply().unwrap().json()["error"].clone();
    assert_eq!(told["code"], "service_unreachable", "{told}");
    let message = told["message"].as_str().unwrap();
    has(message, "must the entry have scheme = \"http\"?)");
    has(told["hint"].as_str().unwrap(), "`hosts`");
}

/// A name of this host, which nobody allowed.
#[test]
fn a_name_of_this_host_is_refused_and_nobody_connects() {
    let seen = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&seen);
    let there = connections::each(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
    });
    let at = format!("localhost:{}", there.port());
    let (config, calls) = entry(&format!("hosts = [\"{at}\"]\nscheme = \"http\""));
    let sidecar = Sidecar::run(&config);
    for _ in 0..50 {
        let not_public = said(calls, &format!("http://{at}/"), &at);
        assert_eq!(not_public, (403, "address_refused".to_owned()));
        let unlisted = said(calls, &format!("http://{there}/"), &there.to_string());
        assert_eq!(unlisted, (403, "host_not_listed".to_owned()));
    }
    let refused = "ojs_throttle_responses_total{status=\"403\",code=\"address_refused\"}";
    assert_eq!(sidecar.metric(refused), 50.0, "{}", sidecar.metrics());
    assert_eq!(seen.load(Ordering::Relaxed), 0);
    // Who operates it hears of it, once.
    let log = sidecar.log();
    let told = log.matches("id=destination_refused egress=\"out\" code=\"address_refused\"");
    assert_eq!(told.count(), 1, "{log}");
    // It says nothing of whether a service answers.
    let up = "ojs_throttle_service_up{egress=\"out\"}";
    assert_eq!(sidecar.metric(up), 1.0);
    let (report, status) = doctor(&config, &[]);
    assert_eq!(status, Some(1), "{report}");
    has(report.to_string(), "which is not public");
}

/// Whoever connects here comes to this port.
fn other_name_of(to: SocketAddr, seen: &Arc<AtomicUsize>) -> SocketAddr {
    let seen = Arc::clone(seen);
    connections::each(move |near| {
        seen.fetch_add(1, Ordering::Relaxed);
        let far = TcpStream::connect(to).unwrap();
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
        for (mut from, mut into) in [(near, far), back] {
            std::thread::spawn(move || {
                drop(std::io::copy(&mut from, &mut into));
                drop(into.shutdown(Shutdown::Both));
            });
        }
    })
}

#[test]
fn a_ring_of_two_ends_within_three_hops() {
    let seen = Arc::<AtomicUsize>::default();
    let (one, other) = (port::own(), port::own());
    let (to_one, to_other) = (other_name_of(one, &seen), other_name_of(other, &seen));
    let config = |listen: SocketAddr, more: &str| {
        let (text, own) = entry(more);
        text.replace(&own.to_string(), &listen.to_string())
    };
    let hosts = format!("hosts = [\"{to_one}\", \"{to_other}\"]\nscheme = \"http\"");
    let back = format!("upstream = \"http://{to_one}\"");
    // By hosts alone, and by way of an entry with an upstream.
    for second in [&hosts, &back] {
        let _sidecars = [
            Sidecar::run(&config(one, &hosts)),
            Sidecar::run(&config(other, second)),
        ];
        for _ in 0..10 {
            seen.store(0, Ordering::Relaxed);
            let to = to_other.to_string();
            let told = said(one, &format!("http://{to}/"), &to);
            assert_eq!(told, (508, "loop_detected".to_owned()));
            let hops = seen.load(Ordering::Relaxed);
            assert!(hops <= 2, "{hops} beside the first");
        }
    }
}

/// Where nothing in a call could tell of it.
#[test]
fn a_call_to_a_port_of_this_sidecar_is_refused() {
    let (config, calls) =
        entry("hosts = [\"localhost:1\", \"localhost:2\"]\nscheme = \"http\"\nHERE");
    let (_, admin) = config.split_once("admin_listen = \"").unwrap();
    let admin: SocketAddr = admin.split('"').next().unwrap().parse().unwrap();
    let config = config.replace(":1\"", &format!(":{}\"", admin.port()));
    let config = config.replace(":2\"", &format!(":{}\"", calls.port()));
    let sidecar = Sidecar::run(&config.replace("HERE", LOOPBACK));
    for port in [admin, calls] {
        let host = format!("localhost:{}", port.port());
        for path in ["/metrics", "/throttle/v1/state"] {
            let reply = said(calls, &format!("http://{host}{path}"), &host);
            let wanted = (508, "loop_detected".to_owned());
            assert_eq!(reply, wanted, "{}", sidecar.log());
        }
    }
}

#[test]
fn thousands_of_hosts_keep_a_few_connections_and_no_memory() {
    // Any of these addresses is this host.
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let serve = move || {
                let mut bytes = [0; 4096];
                while matches!(stream.read(&mut bytes), Ok(1..)) {
                    let reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    drop(stream.write_all(reply));
                }
            };
            let small = std::thread::Builder::new().stack_size(64 << 10);
            small.spawn(serve).unwrap();
        }
    });
    let host = |nth: u32| {
        let address = IpAddr::from((0x7f01_0000 + nth).to_be_bytes());
        format!("{address}:{port}")
    };
    let listed: Vec<_> = (0..4_000).map(|nth| format!("{:?}", host(nth))).collect();
    let listed = listed.join(", ");
    let (config, calls) = entry(&format!("scheme = \"http\"\nhosts = [{listed}]"));
    // Keys have places of their own in the store.
    let sidecar = Sidecar::run(&config.replace("{host}", "all"));
    let descriptors = format!("/proc/{}/fd", sidecar.pid());
    let kept = || sidecar.status("RssAnon");
    let mut conn = Conn::open(calls);
    let mut call = |nth: u32| {
        let host = host(nth);
        let call = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        conn.write(call.as_bytes()).unwrap();
        assert_eq!(conn.reply().unwrap().status, 200, "{host}");
    };
    (0..1_000).for_each(&mut call);
    let (before, mut most) = (kept(), 0);
    for nth in 1_000..4_000 {
        call(nth);
        if nth % 50 == 0 {
            most = most.max(std::fs::read_dir(&descriptors).unwrap().count());
        }
    }
    let grown = kept().saturating_sub(before);
    assert!(grown < 2_000, "{grown} KiB more for 3,000 more hosts");
    // 256 connections, and what a sidecar has open anyway.
    assert!(most < 300, "{most} descriptors");
}

/// Lines that are no call, or one that can be read in two ways.
#[test]
fn garbage_is_answered_and_the_next_call_is_served() {
    let vendor = Vendor::start(|_| Answer::ok());
    let own = vendor.addr.to_string();
    let (config, calls) = entry(&format!("hosts = [\"{own}\"]\nscheme = \"http\""));
    let _sidecar = Sidecar::run(&config);
    for line in [
        "GET http:// HTTP/1.1",
        "GET http:///x HTTP/1.1",
        "GET http://a:b:c/ HTTP/1.1",
        "GET http://[::1/ HTTP/1.1",
        "GET http://OWN:99999/ HTTP/1.1",
        "GET http://OWN\t/ HTTP/1.1",
        "GET gopher://OWN/ HTTP/1.1",
        "GET file:///etc/passwd HTTP/1.1",
        "GET OWN/x HTTP/1.1",
        "GET http:OWN HTTP/1.1",
        "GET http://user@OWN/ HTTP/1.1",
        "GET http://OWN\\@b/ HTTP/1.1",
        "\u{0}\u{1}",
        "GET",
        "x",
        "GET http://b\0/ HTTP/1.1",
        "CONNECT OWN HTTP/1.1",
        "CONNECT http://OWN/ HTTP/1.1",
        "GET * HTTP/9.9",
        "OPTIONS http://b HTTP/1.1",
        "GET http://OWN%00/ HTTP/1.1",
        "GET http://b?http://OWN/ HTTP/1.1",
        "PRI * HTTP/2.0",
    ] {
        let line = line.replace("OWN", &own);
        let mut stream = TcpStream::connect(calls).unwrap();
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).unwrap();
        let call = format!("{line}\r\nHost: {own}\r\nConnection: close\r\n\r\n");
        stream.write_all(call.as_bytes()).unwrap();
        let mut reply = Vec::new();
        drop(stream.read_to_end(&mut reply));
        let reply = String::from_utf8_lossy(&reply).into_owned();
        let status = reply.get(9..12).unwrap_or_default();
        let is_refused = ["400", "403", "405", "505", ""].contains(&status);
        assert!(is_refused, "{line:?}: {reply}");
    }
    assert!(vendor.calls().is_empty(), "{:?}", vendor.calls());
    assert_eq!(said(calls, &format!("http://{own}/"), &own).0, 200);
    // Asterisk form is a request of the host itself.
    let mut conn = Conn::open(calls);
    conn.write(format!("OPTIONS * HTTP/1.1\r\nHost: {own}\r\n\r\n").as_bytes())
        .unwrap();
    assert_eq!(conn.reply().unwrap().status, 200);
    assert_eq!(vendor.calls()[1].target(), "*");
}

/// What the doctor tells of one host is what a call to it meets, and nobody connects for it.
#[test]
fn the_doctor_tells_what_becomes_of_calls_to_a_host() {
    let vendor = Vendor::start(|_| Answer::ok());
    let seen = Arc::<AtomicUsize>::default();
    let port = other_name_of(vendor.addr, &seen).port();
    let at = format!("localhost:{port}");
    let of = |config: &str, host: &str, more: &[&str]| {
        let (report, status) = doctor(config, &[&["--host", host], more].concat());
        let parts = report["findings"].as_array().unwrap().iter();
        assert!(parts.clone().all(|one| one["part"] == "egress"), "{report}");
        (report, status)
    };
    for (allow, status, code) in [("", 403, "address_refused"), (LOOPBACK, 200, "")] {
        let hosts = format!("hosts = [\"{at}\", \"*.example.test\"]\nscheme = \"http\"\n{allow}");
        let (config, calls) = entry(&hosts);
        let (report, exit) = of(&config, &at.to_uppercase(), &[]);
        assert_eq!(exit, Some(i32::from(status == 403)), "{report}");
        let addresses = finding(&report, "egress", "addresses");
        let says = addresses["says"].as_str().unwrap();
        has(says, "127.0.0.1");
        let is_closed = says.contains("which is not public");
        assert_eq!(is_closed, status == 403, "{report}");
        let what = finding(&report, "egress", "host");
        let what = what["says"].as_str().unwrap();
        assert!(what.starts_with("out: calls to 127.0.0.1:"), "{what}");
        has(what, "50 at once");
        assert_eq!(seen.load(Ordering::Relaxed), 0, "nobody connects");

        let sidecar = Sidecar::run(&config);
        let told = said(calls, &format!("http://{at}/"), &at);
        assert_eq!(told, (status, code.to_owned()));
        let key = finding(&report, "egress", "key")["says"].clone();
        let known = get(sidecar.admin, "/throttle/v1/state").json();
        let mut rows = known["keys"]["rows"].as_array().unwrap().iter();
        assert!(rows.any(|row| row["name"] == key), "{key}: {known}");
        seen.store(0, Ordering::Relaxed);

        // The others: what is listed by a pattern, what is not, and what is no host.
        let (report, _) = of(&config, "a.example.test", &[]);
        assert_eq!(finding(&report, "egress", "key")["says"], "a.example.test");
        for (host, words) in [
            ("localhost", "host_not_listed"),
            ("example.test", "host_not_listed"),
            ("http://a.example.test", "is no host"),
        ] {
            let (report, exit) = of(&config, host, &[]);
            assert_eq!(exit, Some(1), "{report}");
            let told = finding(&report, "egress", "host");
            assert!(told["says"].as_str().unwrap().contains(words), "{report}");
        }
    }
    // A host may lead to the sidecar itself, by whatever name.
    let here = "hosts = [\"HERE\"]\nscheme = \"http\"\n";
    let (config, own) = entry(&format!("{here}{LOOPBACK}"));
    let at_own = format!("localhost:{}", own.port());
    let config = config.replace("HERE", &at_own);
    let (report, exit) = of(&config, &at_own, &[]);
    assert_eq!(exit, Some(1), "{report}");
    let addresses = finding(&report, "egress", "addresses");
    has(addresses.to_string(), "508 loop_detected");
    let sidecar = Sidecar::run(&config);
    assert_eq!(said(own, &format!("http://{at_own}/"), &at_own).0, 508);
    drop(sidecar);
    // Without a way out there is none to be named.
    let (before, _) = config.split_once("[[egress]]").unwrap();
    let before = before.replace("none", "http://127.0.0.1:9");
    let (report, _) = of(&before, "api.example.com", &[]);
    let told = finding(&report, "egress", "host").to_string();
    has(&told, "write an [[egress]]");
    assert!(!told.contains("; \""), "{told}");
    // With --probe it connects. An entry with an upstream takes its name too, and a key may need more than a host.
    let upstream = format!("upstream = \"http://{at}\"");
    let (config, _) = entry(&upstream);
    let config = config.replace("{host}", "of:{host}:{header.X-Team}");
    let (report, exit) = of(&config, &at, &["--probe"]);
    assert_eq!(exit, Some(0), "{report}");
    let key = format!("of:localhostx_3A{port}:{{header.X-Team}}, as each call says it");
    assert_eq!(finding(&report, "egress", "key")["says"], key);
    let service = finding(&report, "egress", "service");
    has(service["says"].as_str().unwrap(), "can be reached");
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    assert!(vendor.calls().len() < 2, "it makes no call");
}
