//! The Rust SDK.

use super::prelude::*;
use super::sdk;

pub const RUST: Sdk = Sdk {
    name: "rust",
    version: "0.4.0 of April 2026",
    head,
    enqueue,
    batch: |jobs| sdk::jobs(jobs, enqueue),
    fetch,
    ack: sdk::ack,
    nack,
    heartbeat,
    worker_id: |n| format!("worker_01a1f82d-bb3c-72a1-b1a1-{n:012x}"),
    in_path,
    reads: Reads::Typed,
    tries: 4,
    patience: Some(Duration::from_secs(30)),
    most: 10,
    visibility: None,
    waits_for_a_slot: false,
    polls: 1000..1001,
    after_failures: |_| Duration::from_secs(1),
    beats_at_once: false,
    beats_overlap: false,
    settles: 1,
    nacks_after_a_failed_ack: false,
    dies_of_a_failed_nack: false,
    on_sigterm: OnSignal::Dies,
    on_sigint: OnSignal::Awaits,
};

fn head(call: &Call) -> Vec<(&'static str, String)> {
    let mut head = vec![
        ("content-type", MEDIA.into()),
        ("accept", MEDIA.into()),
        ("ojs-version", "1.0".into()),
        ("x-request-id", call.id.into()),
        ("authorization", format!("Bearer {}", call.token)),
        ("host", call.host.into()),
    ];
    if call.body.is_some() {
        head.push(("content-length", call.length()));
    }
    head
}

/// Everything but letters and digits is encoded, also where it need not be.
fn in_path(queue: &str) -> String {
    let encoded = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    queue.bytes().map(encoded).collect()
}

/// Members in the order of their names.
fn enqueue(job: &NewJob) -> String {
    const OPTIONS: &str =
        "delay_until priority queue retry tags timeout_ms unique visibility_timeout_ms";
    format!(
        "{{\"args\":{}{}{},\"type\":\"{}\"}}",
        job.args,
        job.meta_member(),
        job.options_member(OPTIONS),
        job.kind
    )
}

fn fetch(fetch: &Fetch) -> String {
    format!(
        "{{\"count\":{},\"queues\":{},\"worker_id\":\"{}\"}}",
        fetch.count,
        list(fetch.queues),
        fetch.worker
    )
}

fn nack(job: &str, thrown: &Thrown) -> String {
    format!(
        "{{\"error\":{},\"job_id\":\"{job}\"}}",
        sdk::error(thrown, "")
    )
}

fn heartbeat(beat: &Beat) -> String {
    format!(
        "{{\"active_jobs\":{},\"worker_id\":\"{}\"}}",
        list(beat.jobs),
        beat.worker
    )
}
