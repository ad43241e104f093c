//! The Python SDK.

use super::prelude::*;
use super::sdk;

pub const PYTHON: Sdk = Sdk {
    name: "python",
    version: "April 2026",
    head,
    enqueue,
    batch: |jobs| sdk::jobs(jobs, enqueue),
    fetch,
    ack: sdk::ack,
    nack: |job, thrown| sdk::nack(job, thrown, "traceback"),
    heartbeat,
    worker_id: |n| format!("worker_{n:016x}"),
    in_path: str::to_owned,
    reads: Reads::OnlyApplicationJson,
    tries: 4,
    patience: Some(Duration::from_secs(30)),
    most: 1,
    visibility: Some(30_000),
    waits_for_a_slot: true,
    polls: 1600..2400,
    after_failures: |n| Duration::from_secs(1 << n.min(5)).min(Duration::from_secs(30)),
    beats_at_once: true,
    beats_overlap: false,
    settles: 3,
    nacks_after_a_failed_ack: true,
    dies_of_a_failed_nack: false,
    on_sigterm: OnSignal::Cancels,
    on_sigint: OnSignal::Cancels,
};

fn head(call: &Call) -> Vec<(&'static str, String)> {
    let mut head = vec![("Host", call.host.into())];
    if call.is_post() && call.body.is_none() {
        head.push(("Content-Length", call.length()));
    }
    head.extend([
        ("Accept-Encoding", "gzip, deflate".into()),
        ("Connection", "keep-alive".into()),
        ("User-Agent", "python-httpx/0.28.1".into()),
        ("Content-Type", MEDIA.into()),
        ("Accept", MEDIA.into()),
        ("OJS-Version", "1.0".into()),
        ("Authorization", format!("Bearer {}", call.token)),
        ("X-Request-ID", call.id.into()),
    ]);
    if call.body.is_some() {
        head.push(("Content-Length", call.length()));
    }
    head
}

const OPTIONS: &str = "queue priority timeout_ms delay_until retry unique tags";

fn enqueue(job: &NewJob) -> String {
    sdk::type_first(job, OPTIONS)
}

fn fetch(fetch: &Fetch) -> String {
    format!(
        "{{\"queues\":{},\"count\":{},\"visibility_timeout_ms\":{},\"worker_id\":\"{}\"}}",
        list(fetch.queues),
        fetch.count,
        fetch.visibility.unwrap_or(30_000),
        fetch.worker
    )
}

fn heartbeat(beat: &Beat) -> String {
    format!(
        "{{\"worker_id\":\"{}\",\"active_jobs\":{},\"visibility_timeout_ms\":{}}}",
        beat.worker,
        list(beat.jobs),
        beat.visibility
    )
}
