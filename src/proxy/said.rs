//! What the sidecar says to the backend of jobs that it claimed.

use crate::json::quote;

/// A heartbeat for jobs of a claim, which shall last so many milliseconds more.
pub(super) fn heartbeat<'a>(
    claim_id: &str,
    jobs: impl Iterator<Item = &'a str>,
    ms: u128,
) -> String {
    let ids: Vec<String> = jobs.map(quote).collect();
    format!(
        r#"{{"worker_id":{},"active_jobs":[{}],"visibility_timeout_ms":{ms}}}"#,
        quote(claim_id),
        ids.join(",")
    )
}

/// A nack that gives a job back unstarted.
pub(super) fn requeue(job: &str, claim_id: &str) -> String {
    format!(
        r#"{{"job_id":{},"worker_id":{},"requeue":true,"error":{{"code":"requeued","message":"given back unstarted by ojs-throttle","retryable":true}}}}"#,
        quote(job),
        quote(claim_id),
    )
}

/// A nack that ends a job for good.
pub(super) fn discard(job: &str, claim_id: &str, code: &str, message: &str) -> String {
    format!(
        r#"{{"job_id":{},"worker_id":{},"error":{{"code":"{code}","type":"{code}","message":{},"retryable":false}}}}"#,
        quote(job),
        quote(claim_id),
        quote(message),
    )
}
