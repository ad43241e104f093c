//! What reading and splicing the bodies of FETCH and enqueue costs, in nanoseconds:
//! `cargo bench --bench json`.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use ojs_throttle::json::{Json, Reader, Splice, may_name};

const DEPTH: usize = 127;
const MEMBERS: [&str; 6] = ["id", "type", "queue", "meta", "priority", "attempt"];

fn main() {
    let reply = fetch_reply();
    let request = enqueue_request();
    println!(
        "FETCH reply {} bytes, enqueue {} bytes",
        reply.len(),
        request.len()
    );

    measure("FETCH reply: search for a name", || {
        may_name(&reply, "ojs.rate_limit")
    });
    measure("FETCH reply: parse", || Json::parse(&reply, DEPTH).is_ok());
    measure("FETCH reply: parse, read six members of each job", || {
        read_jobs(&reply)
    });
    measure("FETCH reply: the same in one pass", || read_once(&reply));
    measure("FETCH reply: parse, remove `meta` of each job", || {
        without_meta(&reply)
    });
    measure("enqueue: search for a name", || {
        may_name(&request, "rate_limit")
    });
    measure("enqueue: parse", || Json::parse(&request, DEPTH).is_ok());
    measure("enqueue: parse, read type and options", || {
        read_options(&request)
    });
}

/// Prints the best of many rounds: what disturbs only makes slower.
fn measure<T>(what: &str, mut work: impl FnMut() -> T) {
    let mut best = Duration::MAX;
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..100 {
            black_box(work());
        }
        best = best.min(start.elapsed() / 100);
    }
    println!("{:>8} ns  {what}", best.as_nanos());
}

fn read_jobs(reply: &[u8]) -> usize {
    let Some(jobs) = Json::parse(reply, DEPTH)
        .ok()
        .and_then(|json| json.get("jobs"))
    else {
        return 0;
    };
    jobs.items()
        .map(|job| job.pick(MEMBERS).iter().flatten().count())
        .sum()
}

fn read_once(reply: &[u8]) -> usize {
    let mut found = 0;
    let mut reader = Reader::new(reply, DEPTH);
    let whole = reader.members(|_, reader| {
        let jobs = reader.items(|reader| {
            let (_, members) = reader.pick(MEMBERS)?;
            found += members.iter().flatten().count();
            Ok(())
        });
        jobs.map(drop)
    });
    black_box(whole).map_or(0, |_| found)
}

fn without_meta(reply: &[u8]) -> Vec<u8> {
    let mut splice = Splice::new();
    if let Some(jobs) = Json::parse(reply, DEPTH)
        .ok()
        .and_then(|json| json.get("jobs"))
    {
        for job in jobs.items() {
            for member in job.members().filter(|member| member.is_named("meta")) {
                splice.remove_member(job, member);
            }
        }
    }
    splice.apply(reply)
}

fn read_options(request: &[u8]) -> Option<i64> {
    let [kind, options] = Json::parse(request, DEPTH).ok()?.pick(["type", "options"]);
    black_box(kind?.text());
    options?.get("priority")?.int()
}

/// Ten jobs of 1 KB, in the form that the Go backends send.
fn fetch_reply() -> Vec<u8> {
    let mut reply = String::from("{\"jobs\":[");
    for number in 0..10 {
        let comma = if number == 0 { "" } else { "," };
        let items = (0..4).fold(String::new(), |mut items, item| {
            let _ = write!(
                items,
                r#",{{"sku":"SKU-{item:05}","quantity":{item},"price":19.9}}"#
            );
            items
        });
        let _ = write!(
            reply,
            r#"{comma}{{"specversion":"1.0","id":"0195f3a0-7c1e-7b3a-9d2e-0000000000{number:02}","type":"email.send","queue":"default","args":[{{"to":"user{number}@example.com","subject":"Your order has been shipped","template":"order-shipped-v2","text":"Hello, your order has left our house today and should be with you in two to four working days.\nYou can follow it at https://example.com/track/0195f3a07c1e7b3a9d2e; if nobody is in, the parcel waits a week at the post office. We hope that you enjoy what you ordered, and are there for you if something is not right."}}{items}],"meta":{{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","tenant":"acme","ojs.rate_limit":{{"key":"tenant:acme","concurrency":5}}}},"priority":0,"attempt":1,"max_attempts":3,"timeout_ms":30000,"state":"active","created_at":"2026-01-01T00:00:00.000Z","enqueued_at":"2026-01-01T00:00:00.000Z","started_at":"2026-01-01T00:00:01.000Z"}}"#,
        );
    }
    reply.push_str("]}");
    reply.into_bytes()
}

/// One job of 300 bytes.
fn enqueue_request() -> Vec<u8> {
    br#"{"type":"email.send","args":[{"to":"user@example.com","subject":"Your order has been shipped","template":"order-shipped-v2","locale":"en-US","order":12345678}],"meta":{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"},"options":{"queue":"default","priority":10,"timeout_ms":30000,"unique":{"keys":["args"]}}}"#.to_vec()
}
