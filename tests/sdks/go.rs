//! The Go SDK.

use super::prelude::*;
use super::sdk;

pub const GO: Sdk = Sdk {
    name: "go",
    version: "February 2026",
    head,
    enqueue,
    batch: |jobs| sdk::jobs(jobs, enqueue),
    fetch,
    ack: sdk::ack,
    nack: |job, thrown| sdk::nack(job, thrown, ""),
    heartbeat,
    worker_id: |n| format!("worker_host_13914_{}", 1_795_165_088_673_080_217 + n),
    in_path: str::to_owned,
    reads: Reads::Whatever,
    tries: 1,
    patience: None,
    most: usize::MAX,
    visibility: None,
    waits_for_a_slot: false,
    polls: 1000..1001,
    after_failures: |n| {
        Duration::from_secs(1 << n.saturating_sub(1).min(5)).min(Duration::from_secs(30))
    },
    beats_at_once: false,
    beats_overlap: false,
    settles: 1,
    nacks_after_a_failed_ack: false,
    dies_of_a_failed_nack: false,
    on_sigterm: OnSignal::FallsSilent,
    on_sigint: OnSignal::FallsSilent,
};

/// Without an `X-Request-ID`.
fn head(call: &Call) -> Vec<(&'static str, String)> {
    let mut head = vec![
        ("Host", call.host.into()),
        ("User-Agent", "Go-http-client/1.1".into()),
    ];
    if call.is_post() {
        head.push(("Content-Length", call.length()));
    }
    head.push(("Accept", MEDIA.into()));
    head.push(("Authorization", format!("Bearer {}", call.token)));
    if call.body.is_some() {
        head.push(("Content-Type", MEDIA.into()));
    }
    head.push(("Ojs-Version", "1.0.0-rc.1".into()));
    head.push(("Accept-Encoding", "gzip".into()));
    head
}

const OPTIONS: &str =
    "queue priority timeout_ms delay_until retry unique tags visibility_timeout_ms";

fn enqueue(job: &NewJob) -> String {
    sdk::type_first(job, OPTIONS)
}

fn fetch(fetch: &Fetch) -> String {
    format!(
        "{{\"queues\":{},\"count\":{},\"worker_id\":\"{}\"}}",
        list(fetch.queues),
        fetch.count,
        fetch.worker
    )
}

/// With a number in `active_jobs`, which backends refuse.
fn heartbeat(beat: &Beat) -> String {
    format!(
        "{{\"worker_id\":\"{}\",\"state\":\"running\",\"active_jobs\":{},\"active_job_ids\":{}}}",
        beat.worker,
        beat.jobs.len(),
        list(beat.jobs)
    )
}
