//! The JavaScript SDK.

use super::prelude::*;
use super::sdk;

pub const JAVASCRIPT: Sdk = Sdk {
    name: "javascript",
    version: "0.4.0 of April 2026",
    head,
    enqueue,
    batch: |jobs| {
        sdk::jobs(jobs, |job| {
            enqueue(&NewJob {
                meta: None,
                ..job.clone()
            })
        })
    },
    fetch,
    ack: sdk::ack,
    nack: |job, thrown| sdk::nack(job, thrown, "stack"),
    heartbeat,
    worker_id: |n| format!("worker_391c7d61-9ce8-4efe-8768-{n:012x}"),
    in_path: str::to_owned,
    reads: Reads::Json,
    tries: 4,
    patience: Some(Duration::from_secs(30)),
    most: 10,
    visibility: Some(30_000),
    waits_for_a_slot: false,
    polls: 1000..1001,
    after_failures: |n| Duration::from_secs(1 << n.min(5)).min(Duration::from_secs(30)),
    beats_at_once: false,
    beats_overlap: true,
    settles: 3,
    nacks_after_a_failed_ack: true,
    dies_of_a_failed_nack: true,
    on_sigterm: OnSignal::Finishes,
    on_sigint: OnSignal::Finishes,
};

fn head(call: &Call) -> Vec<(&'static str, String)> {
    let mut head = vec![
        ("host", call.host.into()),
        ("connection", "keep-alive".into()),
        ("Content-Type", MEDIA.into()),
        ("Accept", MEDIA.into()),
        ("OJS-Version", "1.0".into()),
        ("Authorization", format!("Bearer {}", call.token)),
        ("X-Request-ID", call.id.into()),
        ("accept-language", "*".into()),
        ("sec-fetch-mode", "cors".into()),
        ("user-agent", "node".into()),
        ("accept-encoding", "gzip, deflate".into()),
    ];
    if call.is_post() {
        head.push(("content-length", call.length()));
    }
    head
}

const OPTIONS: &str =
    "queue priority timeout_ms delay_until tags visibility_timeout_ms retry unique";

fn enqueue(job: &NewJob) -> String {
    sdk::type_first(job, OPTIONS)
}

fn fetch(fetch: &Fetch) -> String {
    format!(
        "{{\"queues\":{},\"count\":{},\"worker_id\":\"{}\",\"visibility_timeout_ms\":{}}}",
        list(fetch.queues),
        fetch.count,
        fetch.worker,
        fetch.visibility.unwrap_or(30_000)
    )
}

/// With a number in `active_jobs`, which backends refuse.
fn heartbeat(beat: &Beat) -> String {
    format!(
        "{{\"worker_id\":\"{}\",\"state\":\"running\",\"active_jobs\":{},\"active_job_ids\":{},\"hostname\":\"unknown\",\"pid\":{},\"queues\":{},\"concurrency\":{},\"labels\":{}}}",
        beat.worker,
        beat.jobs.len(),
        list(beat.jobs),
        beat.pid,
        list(beat.queues),
        beat.concurrency,
        beat.labels
    )
}
