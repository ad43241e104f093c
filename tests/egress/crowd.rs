//! Many calls that wait, and a sidecar that stops while some do.

use std::io::{Read, Write};
use std::net::TcpStream;

use ojs_throttle::backend::Lax;

use super::entry;
use super::prelude::*;
use crate::process::http::{Conn, enqueue, fetch, get};
use crate::servers::port;
use crate::sidecar::process::{Backend, Sidecar, config, run_with, wait};

/// The middle of how long a FETCH of a queue that nothing limits takes at each of two sidecars. They are asked by turns:
/// what else the machine does slows both.
fn fetches(sidecars: [&Sidecar; 2]) -> [Duration; 2] {
    let mut times = [(); 2].map(|()| Vec::with_capacity(101));
    for _ in 0..101 {
        for (sidecar, times) in sidecars.iter().zip(&mut times) {
            let begun = std::time::Instant::now();
            assert!(fetch(sidecar.data, "free", 1, "w").jobs().len() <= 1);
            times.push(begun.elapsed());
        }
    }
    times.map(|mut times| {
        times.sort_unstable();
        times[50]
    })
}

#[test]
fn a_thousand_waiting_calls_are_light_and_in_nobodys_way() {
    let vendor = Vendor::start(|_| Answer::ok());
    let backend = Backend::start(Lax::redis());
    let calls = port::own();
    let slow = "key = 'vendor'\nthrottle = { limit = 1, period = '40s' }\nmax_wait = '30m'";
    let egress = entry(vendor.addr, &format!("  listen = '{calls}'\n{slow}"));
    let sidecar = Sidecar::run(&config(backend.addr, "max_in_flight = 5", &egress));
    let idle = Sidecar::run(&config(backend.addr, "max_in_flight = 5", ""));
    assert_eq!(get(calls, "/").status, 200);
    fetches([&sidecar, &idle]);
    let before = sidecar.status("RssAnon");
    let call = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{}",
        "x".repeat(100)
    );
    let mut waiting = Vec::new();
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(calls).unwrap();
        stream.write_all(call.as_bytes()).unwrap();
        waiting.push(stream);
    }
    let all = || sidecar.metric("ojs_throttle_calls_waiting") > 999.5;
    wait("all of them wait", all);
    let [crowded, alone] = fetches([&sidecar, &idle]);
    let more = sidecar.status("RssAnon").saturating_sub(before);
    eprintln!(
        "{more} KiB for 1,000 waiting calls; a FETCH takes {crowded:?}, and {alone:?} without them"
    );
    assert!(crowded < 2 * alone + millis(1), "{crowded:?} {alone:?}");
    assert_eq!(get(calls, "/").status, 429, "one more than may wait");
    drop(waiting);
    sidecar.shows("ojs_throttle_calls_waiting", 0.0);
    assert!(vendor.calls().len() <= 2);
    // With all that was read with it, a call would have as much again.
    assert!(more < 17 << 10, "{more} KiB");
}

/// The sidecar is a process of its own, so that no other test adds to its memory. One body goes through the port for
/// calls, and one through the data port.
#[test]
fn a_hundred_megabytes_each_way_are_never_in_memory() {
    const HUGE: usize = 100_000_000;
    let vendor = Vendor::start(|call| match call.target() {
        "/huge" => Answer::new(200, vec![b'y'; HUGE]),
        _ => Answer::new(404, ""),
    });
    let calls = port::own();
    let egress = entry(
        vendor.addr,
        &format!("  listen = '{calls}'\nconcurrency = 1"),
    );
    // The vendor stands behind both ports. It is no backend: the sidecar is never ready, and passes requests all the same.
    let (dir, command) = run_with(config(vendor.addr, "", &egress));
    let sidecar = Sidecar::begin(command, dir);
    let sent = vec![b'x'; HUGE];
    for to in [calls, sidecar.data] {
        // What is read of the program for it counts too.
        assert_eq!(get(to, "/small").status, 404);
        // The most that it was.
        let before = sidecar.status("VmHWM");
        let mut conn = Conn::open(to);
        let head = format!("POST /huge HTTP/1.1\r\nHost: a\r\nContent-Length: {HUGE}\r\n\r\n");
        conn.write(head.as_bytes()).unwrap();
        conn.write(&sent).unwrap();
        let body = conn.reply().unwrap().body;
        assert!(body.len() == HUGE && body.bytes().all(|byte| byte == b'y'));
        // The kernel counts pages roughly: it may be less.
        let grown = sidecar.status("VmHWM").saturating_sub(before);
        assert!(grown < 4 << 10, "{grown} KiB");
    }
    let came = vendor.calls();
    let huge = came.iter().filter(|call| call.target() == "/huge");
    let lengths: Vec<u64> = huge.map(|call| call.length).collect();
    assert_eq!(lengths, [HUGE as u64; 2]);
}

#[test]
fn a_stop_lets_calls_end_and_sends_away_who_waits() {
    let vendor = Vendor::start(|_| Answer::new(200, "whole").after(Duration::from_secs(1)));
    let backend = Backend::start(Lax::redis());
    let calls = port::own();
    let one = "key = 'vendor'\nconcurrency = 1\nmax_wait = '30s'";
    let egress = entry(vendor.addr, &format!("  listen = '{calls}'\n{one}"));
    let mut sidecar = Sidecar::run(&config(backend.addr, "", &egress));
    let ask = |path: &str| {
        let mut conn = Conn::open(calls);
        conn.write(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes())
            .unwrap();
        conn
    };
    let mut out = ask("/out");
    wait("it is out", || vendor.calls().len() == 1);
    let mut waits = ask("/waits");
    wait("it waits", || {
        sidecar.metric("ojs_throttle_calls_waiting") > 0.5
    });
    enqueue(backend.addr, "free", json!({}));
    sidecar.signal("TERM");
    assert_eq!(out.reply().unwrap().body, "whole");
    let sent_away = waits.reply().unwrap();
    // The slot may have come first.
    assert!(
        sent_away.status == 200 || sent_away.body.contains("draining"),
        "{sent_away:?}"
    );
    assert!(sidecar.ended().success());
    let mut rest = Vec::new();
    let ended = TcpStream::connect(calls).and_then(|mut stream| stream.read_to_end(&mut rest));
    assert!(ended.is_err());
}
