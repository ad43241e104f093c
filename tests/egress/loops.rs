//! Calls that come round, and the room that one way out may take.

use std::net::{Shutdown, SocketAddr, TcpStream};

use super::entry;
use super::prelude::*;
use crate::process::http::{Conn, enqueue, get};
use crate::servers::{connections, port};
use crate::sidecar::process::{Backend, Sidecar, config, has};
use ojs_throttle::backend::Lax;

/// Whoever connects here comes to this port, as by another name of the host: `check` cannot see that.
fn other_name_of(to: SocketAddr) -> SocketAddr {
    connections::each(move |near| {
        let Ok(far) = TcpStream::connect(to) else {
            return;
        };
        for (mut from, mut into) in [
            (near.try_clone().unwrap(), far.try_clone().unwrap()),
            (far, near),
        ] {
            std::thread::spawn(move || {
                drop(std::io::copy(&mut from, &mut into));
                drop(into.shutdown(Shutdown::Both));
            });
        }
    })
}

/// Two ways out that lead into each other, and one that leads to itself.
#[test]
fn a_call_that_comes_round_is_answered_at_once() {
    let backend = Backend::start(Lax::redis());
    let [own, one, other] = [port::own(), port::own(), port::own()];
    let round = [
        ("own", own, own),
        ("one", one, other),
        ("other", other, one),
    ];
    let entries = round.map(|(name, listen, to)| {
        let to = other_name_of(to);
        format!("[[egress]]\nname = '{name}'\nlisten = '{listen}'\nupstream = 'http://{to}'\n")
    });
    let sidecar = Sidecar::run(&config(backend.addr, "", &entries.concat()));
    for at in [own, one, other] {
        for _ in 0..20 {
            let reply = get(at, "/");
            let error = &reply.json()["error"];
            let said = (reply.status, error["code"].as_str().unwrap());
            assert_eq!(said, (508, "loop_detected"), "{reply:?}");
            let hint = error["hint"].as_str().unwrap();
            assert!(hint.contains("`upstream` of the entry"), "{hint}");
        }
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", sidecar.pid())).unwrap();
    let open = open.count();
    assert!(open < 100, "{open} descriptors");
}

/// One that leads to the data port is no loop, and the backend sees through how many it went.
#[test]
fn a_call_may_go_through_the_data_port() {
    let backend = Backend::start(Lax::redis());
    let (listen, data) = (port::own(), port::own());
    let egress = entry(other_name_of(data), &format!("listen = '{listen}'"));
    let server = format!("listen = \"{data}\"");
    let _sidecar = Sidecar::run(&config(backend.addr, &server, &egress));
    let reply = get(listen, "/ojs/v1/jobs/none");
    assert_eq!(reply.status, 404, "{reply:?}");
}

#[test]
fn a_way_out_has_no_more_connections_than_the_ports_may() {
    let vendor = Vendor::start(|_| Answer::ok().after(millis(300)));
    let backend = Backend::start(Lax::redis());
    let listen = port::own();
    let egress = entry(vendor.addr, &format!("listen = '{listen}'"));
    let sidecar = Sidecar::run(&config(backend.addr, "max_connections = 4", &egress));
    let mut callers: Vec<Conn> = (0..12)
        .map(|_| {
            let mut conn = Conn::open(listen);
            conn.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                .unwrap();
            conn
        })
        .collect();
    // Nobody else notices.
    enqueue(sidecar.data, "free", json!({}));
    for conn in &mut callers {
        assert_eq!(conn.reply().unwrap().status, 200);
    }
    assert_eq!(vendor.most_at_once(), 4);
}

/// A loop by way of a proxy that takes `Via` away, or callers without end: the rest of the sidecar goes on.
#[test]
fn a_way_out_takes_two_thousand_callers_at_most() {
    let vendor = Vendor::start(|_| Answer::ok().after(FOREVER));
    let backend = Backend::start(Lax::redis());
    let listen = port::own();
    let egress = entry(vendor.addr, &format!("listen = '{listen}'"));
    let sidecar = Sidecar::run(&config(backend.addr, "", &egress));
    let mut callers = Vec::new();
    for _ in 0..2_100 {
        let mut conn = Conn::open(listen);
        conn.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        callers.push(conn);
    }
    sidecar.line("id=connections_full");
    has(sidecar.log(), &format!("listen={listen}"));
    enqueue(sidecar.data, "free", json!({}));
    let open = std::fs::read_dir(format!("/proc/{}/fd", sidecar.pid())).unwrap();
    let open = open.count();
    assert!(open < 4_100, "{open} descriptors");
}
