//! The scripted backend: canned replies over plain sockets. Jobs differ in their id only, so that a
//! reply costs next to nothing to make.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::Result;
use memchr::memmem;
use tokio::net::TcpListener;

use super::wire::Wire;

/// How many tenants the jobs of the limited queue belong to.
const TENANTS: u64 = 100;

/// Answers on `listener` for ever.
pub async fn serve(listener: TcpListener) -> Result<()> {
    let replies = Rc::new(Replies::new());
    loop {
        let (stream, _) = listener.accept().await?;
        let replies = Rc::clone(&replies);
        tokio::task::spawn_local(async move {
            // A proxy that closes or is ended in the middle is nothing to speak of.
            drop(answer(Wire::new(stream)?, &replies).await);
            anyhow::Ok(())
        });
    }
}

async fn answer(mut wire: Wire, replies: &Replies) -> Result<()> {
    let mut reply = Vec::with_capacity(16 * 1024);
    while let Some(request) = wire.request().await? {
        let (head, body) = wire.bytes(request);
        replies.write(head, body, &mut reply);
        wire.done(request);
        wire.send(&reply).await?;
    }
    Ok(())
}

struct Replies {
    stored: Vec<u8>,
    ended: Vec<u8>,
    alive: Vec<u8>,
    empty: Vec<u8>,
    depth: Vec<u8>,
    completed: Vec<u8>,
    unknown: Vec<u8>,
    /// A job before its id, between id and tenant, and behind the tenant; by whether the queue has
    /// limits.
    job: [[String; 3]; 2],
    next: Cell<u64>,
}

/// How many jobs a FETCH asks for: a claim may ask for what several FETCHes miss.
fn count(request: &[u8]) -> usize {
    let at = memmem::find(request, b"\"count\":").map_or(request.len(), |at| at + 8);
    let digits = request[at..]
        .iter()
        .take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    number.clamp(1, 1_000)
}

impl Replies {
    fn new() -> Replies {
        Replies {
            stored: whole(201, &stored()),
            ended: whole(
                200,
                r#"{"acknowledged":true,"id":"0195f3a0-7c1e-7b3a-9d2e-000000000000","state":"completed","completed_at":"2026-01-01T00:00:02.000Z"}"#,
            ),
            alive: whole(
                200,
                r#"{"state":"active","jobs_extended":[],"directives":[],"server_time":"2026-01-01T00:00:00.000Z"}"#,
            ),
            empty: whole(200, r#"{"jobs":[]}"#),
            depth: whole(
                200,
                r#"{"name":"bounded","paused":false,"counts":{"available":100,"active":3,"scheduled":7,"retryable":1}}"#,
            ),
            completed: whole(200, &completed()),
            unknown: whole(
                404,
                r#"{"error":{"code":"not_found","message":"no such route"}}"#,
            ),
            job: [job("free"), job("limited")],
            next: Cell::new(0),
        }
    }

    fn write(&self, head: &[u8], body: &[u8], reply: &mut Vec<u8>) {
        reply.clear();
        let asks = |route: &str| head.starts_with(route.as_bytes());
        if asks("POST /ojs/v1/workers/fetch") {
            return self.fetched(body, reply);
        }
        reply.extend_from_slice(if asks("POST /ojs/v1/workers/ack") {
            &self.ended
        } else if asks("POST /ojs/v1/workers/heartbeat") {
            &self.alive
        } else if asks("GET /ojs/v1/admin/queues/") {
            &self.depth
        } else if asks("POST /v1/chat/completions") {
            &self.completed
        } else if asks("POST /ojs/v1/jobs")
            || asks("POST /ojs/v1/schemas")
            || asks("GET /ojs/v1/schemas")
        {
            &self.stored
        } else {
            &self.unknown
        });
    }

    fn fetched(&self, request: &[u8], reply: &mut Vec<u8>) {
        if memmem::find(request, b"\"empty\"").is_some() {
            reply.extend_from_slice(&self.empty);
            return;
        }
        let jobs = count(request);
        let limited = usize::from(memmem::find(request, b"\"limited\"").is_some());
        let Some([before, between, behind]) = self.job.get(limited) else {
            return;
        };
        let size = before.len() + 12 + between.len() + 2 + behind.len();
        reply.extend_from_slice(head(200, jobs * (size + 1) - 1 + 11).as_bytes());
        reply.extend_from_slice(b"{\"jobs\":[");
        for nth in 0..jobs {
            let number = self.next.get();
            self.next.set(number + 1);
            if nth > 0 {
                reply.push(b',');
            }
            reply.extend_from_slice(before.as_bytes());
            digits(number, 12, reply);
            reply.extend_from_slice(between.as_bytes());
            digits(number % TENANTS, 2, reply);
            reply.extend_from_slice(behind.as_bytes());
        }
        reply.extend_from_slice(b"]}");
    }
}

/// A number as this many decimal digits.
fn digits(mut number: u64, count: usize, to: &mut Vec<u8>) {
    let start = to.len();
    to.resize(start + count, b'0');
    for place in to.iter_mut().skip(start).rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

fn whole(status: u16, body: &str) -> Vec<u8> {
    [head(status, body.len()), body.to_owned()]
        .concat()
        .into_bytes()
}

fn head(status: u16, length: usize) -> String {
    // A proxy may keep a reason that is not the usual one, at a cost that real backends do not cause.
    let reason = match status {
        201 => "Created",
        404 => "Not Found",
        _ => "OK",
    };
    format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: application/openjobspec+json\r\n\
         OJS-Version: 1.0\r\nX-Request-Id: req_0195f3a07c1e7b3a9d2e000000000001\r\n\
         Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: {length}\r\n\r\n"
    )
}

/// A job as backends show one that was stored, 600 bytes.
fn stored() -> String {
    let text = r#"{"job":{"specversion":"1.0","id":"0195f3a0-7c1e-7b3a-9d2e-000000000000","type":"email.send","queue":"default","args":[{"to":"user@example.com","subject":"Your order has been shipped","template":"order-shipped-v2"}],"meta":{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736"},"priority":0,"attempt":0,"max_attempts":3,"timeout_ms":30000,"state":"available","created_at":"2026-01-01T00:00:00.000Z","enqueued_at":"2026-01-01T00:00:00.000Z","note":""#;
    format!("{text}{}\"}}}}", "x".repeat(600 - text.len() - 3))
}

/// What a vendor of models answers, 600 bytes.
fn completed() -> String {
    let text = r#"{"id":"chatcmpl-0195f3a07c1e","object":"chat.completion","created":1767225600,"model":"small","choices":[{"index":0,"message":{"role":"assistant","content":""#;
    let usage = r#""},"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":60,"total_tokens":100}}"#;
    format!(
        "{text}{}{usage}",
        "x".repeat(600 - text.len() - usage.len())
    )
}

/// A job of 1 KB as FETCH shows it, in three parts.
fn job(queue: &str) -> [String; 3] {
    let text = "Hello, your order has left our house today and should be with you in two to four \
                working days. If nobody is in, the parcel waits a week at the post office. "
        .repeat(3);
    [
        r#"{"specversion":"1.0","id":"0195f3a0-7c1e-7b3a-9d2e-"#.to_owned(),
        format!(
            r#"","type":"email.send","queue":"{queue}","args":[{{"to":"user@example.com","subject":"Your order has been shipped","text":"{text}"}}],"meta":{{"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","tenant":"t-"#
        ),
        r#""},"priority":0,"attempt":1,"max_attempts":3,"timeout_ms":30000,"state":"active","created_at":"2026-01-01T00:00:00.000Z","enqueued_at":"2026-01-01T00:00:00.000Z","started_at":"2026-01-01T00:00:01.000Z"}"#.to_owned(),
    ]
}
