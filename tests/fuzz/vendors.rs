//! Answers of vendors: heads that say when to come again, and bodies that say what was used. The caller gets what the
//! vendor said or an error, and no key is shut for ever.

use ojs_throttle::duration::moment;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::reading::{self, Rest};
use super::rig::{Watched, try_cases, ways_out};
use crate::process::http::get;
use crate::servers::connections;
use crate::sidecar::process::config;

/// A vendor that answers each call with the bytes that are set, and closes.
fn vendor() -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let says = Arc::<Mutex<Vec<u8>>>::default();
    let own = Arc::clone(&says);
    let addr = connections::each(move |mut stream: TcpStream| {
        let (mut bytes, mut buffer) = (Vec::new(), [0; 16 << 10]);
        while let Err(Rest::Part | Rest::Nothing) = reading::request(&bytes).map(drop) {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
                _ => return,
            }
        }
        let answer = own.lock().unwrap().clone();
        // The other side may have seen enough.
        let _written = stream.write_all(&answer);
    });
    (addr, says)
}

/// One call; `None` where there was no answer at all.
fn call(to: SocketAddr, path: &str, body: &str) -> Option<reading::Answer> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let head = format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n");
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 << 10];
    loop {
        match reading::answer(&bytes, "POST", false) {
            Ok((answer, length)) if answer.status < 200 => drop(bytes.drain(..length)),
            Ok((answer, _)) => return Some(answer),
            Err(Rest::Wrong) => panic!("no answer: {}", bytes.escape_ascii()),
            Err(_) => match stream.read(&mut buffer) {
                Ok(0) => {
                    return reading::answer(&bytes, "POST", true)
                        .ok()
                        .map(|(answer, _)| answer);
                }
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}: {}", bytes.escape_ascii()),
            },
        }
    }
}

/// The heads of `tests/egress/vendors.txt`.
fn heads() -> Vec<String> {
    let lines = include_str!("../egress/vendors.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let heads = lines.map(|line| {
        let mut parts = line.split(" | ").skip(1);
        let (status, headers) = (parts.next().unwrap(), parts.next().unwrap());
        let headers = headers
            .split(" & ")
            .filter(|header| !header.trim().is_empty());
        let headers: String = headers
            .map(|header| format!("{}\r\n", header.trim()))
            .collect();
        format!("HTTP/1.1 {status} Told\r\nContent-Length: 2\r\n{headers}\r\nok")
    });
    heads.collect()
}

const HEADERS: [&str; 22] = [
    "\r\n",
    ":",
    " ",
    ",",
    ";",
    "=",
    "\"",
    "-",
    "Retry-After: 1\r\n",
    "Retry-After: Sat, 28 Nov 2026 07:00:00 GMT\r\n",
    "RateLimit: \"n\";r=0;t=12\r\n",
    "RateLimit: limit=1, remaining=0, reset=1\r\n",
    "X-RateLimit-Remaining: 0\r\n",
    "X-RateLimit-Reset: 1770000000\r\n",
    "X-RateLimit-Resource: core\r\n",
    "retry-after-ms: 1\r\n",
    "6m0s",
    "1h",
    "ms",
    "99999999999999999999",
    "\u{e9}",
    "P1D",
];

#[test]
fn heads_of_vendors_shut_nothing_for_ever() {
    let (vendor, says) = vendor();
    let feedback =
        "feedback = { max_pause = \"2s\", default_pause = \"1s\" }\nmax_wait = \"100ms\"";
    let kinds = [
        "openai",
        "anthropic",
        "github",
        "stripe",
        "slack",
        "shopify",
        "generic",
    ];
    let each = kinds.map(|kind| {
        format!("vendor = \"{kind}\"\nkey = \"{kind}:{{path.0}}\"\nconcurrency = 9\n{feedback}")
    });
    let (entries, ports) = ways_out(vendor, &each.each_ref().map(String::as_str));
    let mut watched = Watched::run(&config(vendor, "", &entries));
    let seeds = heads();
    let seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
    let mut shut = 0;
    let cases = try_cases(|nth, chance, told| {
        let seed = chance.pick(&seeds);
        let bytes = chance.change(seed.as_bytes(), &HEADERS, &seeds);
        told.trying(&bytes);
        says.lock().unwrap().clone_from(&bytes);
        let at = chance.below(ports.len());
        let path = format!("/k{nth}");
        let said = reading::answer(&bytes, "POST", true)
            .ok()
            .map(|(answer, _)| answer);
        let got = call(ports[at], &path, "{}");
        if let Some(got) = &got {
            let is_said =
                said.is_some_and(|said| (said.status, &said.body) == (got.status, &got.body));
            let is_error = matches!(got.status, 500 | 502 | 504);
            assert!(is_said || is_error, "{got:?}");
        }
        let why = get(
            watched.sidecar.admin,
            &format!("/throttle/v1/why?key={}:k{nth}", kinds[at]),
        );
        assert_eq!(why.status, 200, "{why:?}");
        let why = why.json();
        let micros = |time: &serde_json::Value| moment(time.as_str().unwrap_or_default());
        if let Some(until) = micros(&why["limits"][0]["state"]["shut_until"]) {
            let now = micros(&why["at"]).unwrap();
            assert!(until.saturating_sub(now) <= 2_100_000, "{why}");
            shut += 1;
        }
        if nth % 64 == 0 {
            watched.is_well(nth);
        }
    });
    watched.is_well(cases);
    // Else nothing was judged.
    assert!(shut > 0 || cases == 1, "no head of {cases} has shut a key");
}

/// Bodies of models: whole answers, and streams.
const USAGES: [&str; 7] = [
    r#"{"id":"c","choices":[{"message":{"content":"hi \"usage\":{"}}],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}"#,
    r#"{"type":"message","content":[],"usage":{"input_tokens":5,"cache_creation_input_tokens":3,"cache_read_input_tokens":2,"output_tokens":7}}"#,
    r#"{"id":"r","status":"completed","output":[],"usage":{"input_tokens":1,"input_tokens_details":{"cached_tokens":1},"output_tokens":2,"total_tokens":3}}"#,
    r#"{"data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#,
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3}}\n\ndata: [DONE]\n\n",
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":4,\"output_tokens\":1}}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n",
    "event: response.completed\r\ndata: {\"type\":\"response.completed\",\r\ndata: \"response\":{\"usage\":{\"total_tokens\":3}}}\r\n\r\n",
];

const OF_JSON: [&str; 20] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\\",
    "\\u0000",
    "\\ud800",
    "null",
    "true",
    "\"usage\"",
    "\"total_tokens\":",
    "data: ",
    "\n\n",
    "\r",
    "[[[[[[[[",
    "{\"usage\":{",
    "\u{feff}",
];

#[test]
fn bodies_of_models_reach_the_caller_as_they_are() {
    let (vendor, says) = vendor();
    let tokens = "max_wait = \"5s\"\n[[egress.budget]]\nname = \"tokens\"\nkey = \"tokens:{path.0}\"\n\
        cost = { use = \"tokens\", max = 60000 }\nrate = { limit = 100000000, period = \"1s\" }";
    let (entries, ports) = ways_out(vendor, &[tokens]);
    let mut watched = Watched::run(&config(vendor, "", &entries));
    let cases = try_cases(|nth, chance, told| {
        let seed = chance.pick(&USAGES);
        let body = chance.change(seed.as_bytes(), &OF_JSON, &USAGES);
        told.trying(&body);
        let kind = chance.pick(&["application/json", "text/event-stream"]);
        let mut answer =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {kind}\r\n")
                .into_bytes();
        match chance.below(2) {
            0 => answer.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes()),
            _ => answer.extend(b"Transfer-Encoding: chunked\r\n\r\n"),
        }
        if answer.ends_with(b"chunked\r\n\r\n") {
            let mut rest = &body[..];
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(1 + chance.below(rest.len()));
                answer.extend(format!("{:x}\r\n", piece.len()).bytes());
                answer.extend(piece.iter().chain(b"\r\n"));
                rest = after;
            }
            answer.extend(b"0\r\n\r\n");
        } else {
            answer.extend(&body);
        }
        says.lock().unwrap().clone_from(&answer);
        let asks = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9}"#;
        let got = call(ports[0], "/v1/chat/completions", asks).expect("an answer");
        assert_eq!(
            (got.status, got.body.escape_ascii().to_string()),
            (200, body.escape_ascii().to_string())
        );
        if nth % 64 == 0 {
            watched.is_well(nth);
        }
    });
    watched.is_well(cases);
}
