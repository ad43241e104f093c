//! Bytes on connections to the port for SDKs and to those for calls, before a backend that notes what it is sent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::reading::{self, Meant, Reading, Rest};
use super::rig::{Watched, try_cases, ways_out};
use crate::servers::connections;
use crate::sidecar::process::config;

/// What SDKs and other clients send, and what has been sent to mislead proxies.
const SEEDS: [&str; 20] = [
    "GET /u HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "GET /a/b?c=d HTTP/1.1\r\nHost: a\r\nX-T: one\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: a\r\nX-T: two\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}",
    "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nyou\r\n0\r\n\r\n",
    "PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n1\r\na\r\n0\r\nX: 1\r\n\r\n",
    "GET /d HTTP/1.1\r\nHost: a\r\n\r\nGET /e HTTP/1.1\r\nHost: a\r\n\r\nHEAD /f HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /g HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET /h HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    "POST /i HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
    "DELETE /j HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
    "POST /k HTTP/1.1\r\nHost: a\r\nContent-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /l HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1e\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n\r\n\r\n0\r\n\r\n",
    "POST /m HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "POST /n HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\r\n : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "POST /o HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nContent-Length: 5\r\n\r\n0\r\n\r\nX",
    "POST /p HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2 ;\r\nab\r\n00\r\n\r\nGET /q HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET http://a/r HTTP/1.1\r\nHost: a\r\nVia: 1.1 b\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    "GET /s HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, X-T\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nX-T: x\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0",
    "\r\n\r\nGET /t/%2e%2e/u HTTP/1.1\r\nhOST: a\r\nX-Long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nCookie: a=b; c=d\r\n\r\n",
];

const WORDS: [&str; 30] = [
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    " ",
    "\t",
    ":",
    "\0",
    ",",
    ";",
    "0\r\n\r\n",
    "1\r\na\r\n",
    "ffffffffffffffff\r\n",
    "chunked",
    "Transfer-Encoding: chunked\r\n",
    "Content-Length: 0\r\n",
    "Content-Length: 7\r\n",
    "Connection: close\r\n",
    "Connection: content-length\r\n",
    "Host: b\r\n",
    "X-T: \u{ff}\r\n",
    "GET /y HTTP/1.1\r\nHost: a\r\n\r\n",
    " HTTP/1.0",
    "HEAD",
    "CONNECT",
    "../",
    "%00",
    "%2f",
    "Expect: 100-continue\r\n",
    "\u{b}",
];

/// What the backend was sent.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<Result<Meant, String>>>>);

impl Noted {
    fn take(&self) -> Vec<Result<Meant, String>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Notes the requests of a connection, and answers each.
    fn serve(&self, stream: &mut TcpStream) {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            match reading::request(&bytes) {
                Ok((meant, length)) => {
                    bytes.drain(..length);
                    let status = if meant.target.starts_with("/ojs/") {
                        404
                    } else {
                        200
                    };
                    let body = if meant.method == "HEAD" { "" } else { "{}" };
                    self.0.lock().unwrap().push(Ok(meant));
                    let head = format!(
                        "HTTP/1.1 {status} Told\r\nOJS-Version: 1.0\r\nContent-Type: application/json"
                    );
                    let reply = format!("{head}\r\nContent-Length: 2\r\n\r\n{body}");
                    if stream.write_all(reply.as_bytes()).is_err() {
                        return;
                    }
                    continue;
                }
                Err(Rest::Wrong) => {
                    let what = bytes.escape_ascii().to_string();
                    self.0.lock().unwrap().push(Err(what));
                    return;
                }
                Err(_) => {}
            }
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
    }
}

/// Whether the client may have meant what the backend was sent.
fn may_be(meant: &Meant, sent: &Meant) -> bool {
    // A whole URL goes on as its path, and what is behind a hash stays with the client.
    let path = meant.target.split('#').next().unwrap_or_default();
    let of_url = path
        .split_once("://")
        .map(|(_, rest)| rest.find(['/', '?']).map_or("/", |at| &rest[at..]));
    let same_target = path == sent.target
        || of_url.is_some_and(|of| of == sent.target || format!("/{of}") == sent.target);
    meant.method == sent.method && same_target && meant.body == sent.body
}

const GET: &[u8] = b"GET /well HTTP/1.1\r\nHost: a\r\n\r\n";

/// One connection with these bytes; what was answered, against what was meant.
fn one(to: SocketAddr, bytes: &[u8], reading: &Reading) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_nodelay(true).unwrap();
    // It may be refused before it is all written.
    let _written = stream.write_all(bytes);
    let methods: Vec<String> = reading
        .requests
        .iter()
        .map(|meant| meant.method.clone())
        .collect();
    let (patience, more) = match reading.rest {
        _ if methods.is_empty() && reading.rest != Rest::Wrong => return,
        Rest::Wrong => (Duration::from_millis(200), 1),
        _ => (Duration::from_secs(20), 0),
    };
    stream.set_read_timeout(Some(patience)).unwrap();
    let (found, ended) = reading::answers(&mut stream, &methods, more);
    let enough = ended || reading.rest == Rest::Wrong || found.len() == methods.len();
    assert!(enough, "{} answers to {reading:?}", found.len());
    assert!(found.len() <= methods.len() + 1, "{found:?} to {reading:?}");
}

/// Sends bytes, and holds what came out of it against what they mean.
#[derive(Default)]
struct Judge {
    noted: Noted,
    /// What comes late is judged by what was tried just before, too.
    meant: Vec<Vec<Meant>>,
}

impl Judge {
    /// A judge, and the backend whose notes it reads.
    fn with_backend() -> (Judge, SocketAddr) {
        let judge = Judge::default();
        let noted = judge.noted.clone();
        let backend = connections::each(move |mut stream| noted.serve(&mut stream));
        (judge, backend)
    }

    fn try_one(&mut self, to: SocketAddr, bytes: &[u8]) {
        let reading = Reading::of(bytes);
        self.meant.truncate(3);
        self.meant.insert(0, reading.requests.clone());
        one(to, bytes, &reading);
        one(to, GET, &Reading::of(GET));
        for sent in self.noted.take() {
            let sent =
                sent.unwrap_or_else(|what| panic!("the backend was sent what is none: {what}"));
            let own = sent.target == "/well" || sent.target.starts_with("/ojs/");
            let is_meant = own
                || self
                    .meant
                    .iter()
                    .flatten()
                    .any(|meant| may_be(meant, &sent));
            assert!(is_meant, "nobody meant {sent:?}; {reading:?}");
        }
    }
}

#[test]
fn bytes_on_a_connection_mislead_nobody() {
    let (mut judge, backend) = Judge::with_backend();
    let key = "key = \"k:{header.X-T}:{path.0}:{host}\"\nconcurrency = 1000";
    let (entries, mut ports) = ways_out(backend, &["concurrency = 1000", key]);
    let mut watched = Watched::run(&config(backend, "", &entries));
    ports.push(watched.sidecar.data);
    let cases = try_cases(|nth, chance, told| {
        let seed = chance.pick(&SEEDS);
        let bytes = match nth < SEEDS.len() as u64 {
            true => SEEDS[usize::try_from(nth).unwrap()].as_bytes().to_vec(),
            false => chance.change(seed.as_bytes(), &WORDS, &SEEDS),
        };
        told.trying(&bytes);
        judge.try_one(ports[chance.below(ports.len())], &bytes);
        if nth % 64 == 0 {
            watched.is_well(nth);
        }
    });
    watched.is_well(cases);
}

/// A proxy that goes by `Content-Length` where both lengths are said, and so can be misled.
fn misled(client: &mut TcpStream, backend: SocketAddr) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, rest)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let said = head.split("Content-Length: ").nth(1).unwrap_or("0");
        let length: usize = said.lines().next().unwrap().parse().unwrap();
        let Some(body) = rest.get(..length) else {
            continue;
        };
        let line = head.lines().next().unwrap();
        let mut upstream = TcpStream::connect(backend).unwrap();
        let request = format!("{line}\r\nContent-Length: {length}\r\n\r\n{body}");
        upstream.write_all(request.as_bytes()).unwrap();
        let count = upstream.read(&mut buffer).unwrap();
        let _written = client.write_all(&buffer[..count]);
        return;
    }
}

#[test]
fn a_proxy_that_can_be_misled_is_found_out() {
    let (mut judge, backend) = Judge::with_backend();
    let proxy = connections::each(move |mut client| misled(&mut client, backend));
    let both = SEEDS
        .iter()
        .find(|seed| seed.starts_with("POST /k"))
        .unwrap();
    judge.try_one(proxy, GET);
    let judged = std::panic::catch_unwind(move || judge.try_one(proxy, both.as_bytes()));
    let said = *judged.unwrap_err().downcast::<String>().unwrap();
    assert!(said.starts_with("nobody meant"), "{said}");
}
