//! The stand-in for a vendor notes what came, and stops where it is told.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::servers::vendor::{Answer, Stops, Vendor, sum};
use crate::sidecar::process::wait;

const SHORT: Duration = Duration::from_millis(20);

fn ask(vendor: &Vendor, call: &str) -> TcpStream {
    let mut stream = TcpStream::connect(vendor.addr).unwrap();
    stream.write_all(call.as_bytes()).unwrap();
    stream
}

fn whole(mut stream: TcpStream) -> (String, bool) {
    let mut text = Vec::new();
    let is_reset = stream.read_to_end(&mut text).is_err();
    (String::from_utf8(text).unwrap(), is_reset)
}

#[test]
fn it_notes_each_call_as_it_came() {
    let vendor = Vendor::start(|_| Answer::ok().cut(2, Stops::Closes));
    for call in [
        "POST //a/../b?c=%2F HTTP/1.1\r\nX-Odd:  y\r\nContent-Length: 3\r\n\r\nabc",
        "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
    ] {
        whole(ask(&vendor, call));
    }
    let calls = vendor.calls();
    assert_eq!((calls[0].method(), calls[1].method()), ("POST", "PUT"));
    assert_eq!(calls[0].target(), "//a/../b?c=%2F");
    assert_eq!(calls[0].header("x-odd"), Some("y"));
    for call in calls {
        assert_eq!(call.body, b"abc");
        assert_eq!((call.length, call.sum), (3, sum(b"abc")));
        assert!(call.ended.is_some() && !call.is_cut, "{call:?}");
    }
}

#[test]
fn it_stops_where_it_is_told() {
    let vendor = Vendor::start(|call| match call.target() {
        "/hints" => Answer::ok().with_hints(2).cut(2, Stops::Closes),
        "/resets" => Answer::ok().never(Stops::Resets),
        "/closes" => Answer::ok().cut(1, Stops::Closes),
        "/streams" => Answer::new(200, "abc")
            .streamed(2, SHORT)
            .cut(3, Stops::Closes),
        "/early" => Answer::new(413, "no").without_reading(),
        other => panic!("{other}"),
    });
    let get = |path: &str| whole(ask(&vendor, &format!("GET {path} HTTP/1.1\r\n\r\n")));
    let (hints, _) = get("/hints");
    assert_eq!(hints.matches(" 103 ").count(), 2, "{hints}");
    assert!(hints.ends_with("{}"), "{hints}");
    assert_eq!(get("/resets"), (String::new(), true));
    assert!(get("/closes").0.ends_with("Content-Length: 2\r\n\r\n{"));
    assert!(get("/streams").0.ends_with("\r\n2\r\nab\r\n1\r\nc\r\n"));
    let unread = "POST /early HTTP/1.1\r\nContent-Length: 9\r\n\r\n";
    assert!(whole(ask(&vendor, unread)).0.ends_with("no"));
}

#[test]
fn it_counts_who_is_there_and_who_came() {
    let hour = Duration::from_secs(3600);
    let vendor = Vendor::start(move |call| match call.target() {
        "/waits" => Answer::ok().after(hour).reading_slowly(SHORT),
        "/hangs" => Answer::ok().never(Stops::Hangs),
        _ => Answer::ok().cut(2, Stops::Closes),
    });
    let waits = "POST /waits HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
    let hangs = "GET /hangs HTTP/1.1\r\n\r\n";
    let two = [ask(&vendor, waits), ask(&vendor, hangs)];
    wait("both are there", || vendor.most_at_once() == 2);
    drop(two);
    let gone = || vendor.calls().iter().filter(|call| call.is_cut).count();
    wait("both have gone", || gone() == 2);
    whole(ask(&vendor, "GET / HTTP/1.1\r\n\r\n"));
    assert_eq!(vendor.most_at_once(), 2);
    assert_eq!(vendor.most_within(hour), 3);
    assert_eq!(vendor.most_within(Duration::from_nanos(1)), 1);
}
