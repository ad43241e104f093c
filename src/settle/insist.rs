//! One ACK or nack is sent again until it is known how it ended.

use std::cmp::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use tokio::time::Instant;

use super::settling::{RowFound, Settling};
use super::unheard::{Doubt, Verb};
use crate::answers::respond::ours;
use crate::desk::{Proxy, Sidecar};
use crate::inquiry::calls::{self, Lookup, PAUSES, is_for_now, job_in};
use crate::inquiry::prove::attempt_since;
use crate::json::{Json, quote};
use crate::store::LedgerExt;
use crate::told::metrics::Counted;
use crate::wire::upstream::{Call, Reply, SMALL_BODY, UpstreamError};

/// What is known of a job after a try whose answer was lost.
enum RetryFate {
    /// The job ended as asked, or it was claimed anew since. This is the answer that was lost.
    Done(Reply),
    /// The request was not carried out, or the job ended otherwise: the backend is to be asked again.
    Open,
    /// The backend does not answer.
    Unheard,
}

/// Sends the request as `body` says it until the backend answers, GET tells how the job ended, or the time is up. An
/// answer of who stands before the backend, or for now, is none: the worker gets it if nothing better comes in time.
pub(super) async fn insist(
    proxy: &Proxy,
    settling: &Settling<'_>,
    body: Bytes,
    mut doubt: Option<Doubt>,
) -> Result<Reply, UpstreamError> {
    let mut pause = PAUSES.0;
    let timeout = time_of_a_try(settling, &body);
    let send = || Call {
        body: body.clone(),
        timeout,
        ..settling.call.clone()
    };
    loop {
        let answer = calls::call(proxy, "settle", send()).await;
        let (last, may_be_done) = match answer {
            Ok(reply) if reply.status.is_success() => return Ok(reply),
            Ok(reply) if is_for_now(reply.status) => {
                // Who limits how often we ask is not asked often, and has not passed it on.
                pause = PAUSES.1.max(asked_to_wait(&reply.headers));
                let may_be_done = reply.status != StatusCode::TOO_MANY_REQUESTS;
                (Ok(reply), may_be_done)
            }
            Ok(reply) => {
                return Ok(match doubt {
                    Some(doubt) => Box::pin(refused(proxy, settling, doubt, reply)).await,
                    None => reply,
                });
            }
            Err(error) => {
                let may_be_done = error.in_doubt();
                (Err(error), may_be_done)
            }
        };
        if may_be_done {
            doubt = Some(Doubt::Tried);
        }
        // If the first nack was carried out, another worker may run the job under the same claim id, and a second
        // nack would end that run.
        let ends_another = settling.verb == Verb::Nack && doubt == Some(Doubt::Tried);
        let looks = may_be_done || ends_another;
        loop {
            let over = Instant::now() + pause >= settling.deadline;
            if !over {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
            let seen = match looks {
                true => Box::pin(seen(proxy, settling)).await,
                false => RetryFate::Open,
            };
            match seen {
                RetryFate::Done(done) => return Ok(done),
                _ if over => return last,
                RetryFate::Unheard if ends_another => {}
                RetryFate::Open | RetryFate::Unheard => break,
            }
        }
        proxy.sidecar.metrics.count(Counted::SettleRetried);
    }
}

/// The answer to a request that the backend refuses, as it does with one that was carried out before.
async fn refused(proxy: &Proxy, settling: &Settling<'_>, doubt: Doubt, reply: Reply) -> Reply {
    let RetryFate::Done(done) = seen(proxy, settling).await else {
        return reply;
    };
    if doubt == Doubt::Again {
        proxy.sidecar.metrics.count(Counted::SettleReplayed);
    }
    done
}

/// How long one try may take. Where the system does not show that a connection is dead there is to be time for another.
fn time_of_a_try(settling: &Settling<'_>, body: &Bytes) -> Duration {
    let all = settling.deadline.saturating_duration_since(Instant::now());
    match body.len() > SMALL_BODY && !all.is_zero() {
        true => settling.call.timeout.min(all / 2),
        false => settling.call.timeout,
    }
}

/// How long a reply asks to wait, if it does so in seconds; an hour at most.
fn asked_to_wait(headers: &HeaderMap) -> Duration {
    let asked = headers.get(header::RETRY_AFTER);
    let asked = asked.and_then(|asked| asked.to_str().ok()?.trim().parse::<u64>().ok());
    Duration::from_secs(asked.unwrap_or(0).min(3_600))
}

/// Looks at the job to find out whether the request was carried out.
async fn seen(proxy: &Proxy, settling: &Settling<'_>) -> RetryFate {
    let (job, verb, found) = (&settling.names.job, settling.verb, &settling.found);
    let reply = match calls::look_up(proxy, settling.scope, job).await {
        Lookup::Found(reply) => Some(reply),
        Lookup::Gone | Lookup::Unknown => None,
        Lookup::Unanswered => return RetryFate::Unheard,
    };
    let shown = reply.as_deref().and_then(job_in);
    let state = shown.and_then(|shown| shown.get_exact("state")?.text());
    let done = match (verb, state.as_deref()) {
        (Verb::Ack, Some("completed")) => true,
        (Verb::Nack, Some("retryable" | "available" | "scheduled" | "discarded" | "pending")) => {
            true
        }
        (Verb::Nack, Some("active") | None) => {
            let then = found.claimed().map(|claimed| claimed.attempt);
            let since = then.and_then(|then| attempt_since(then, shown?));
            since.is_some_and(Ordering::is_gt) || claimed_again(&proxy.sidecar, found).await
        }
        _ => false,
    };
    if !done {
        return RetryFate::Open;
    }
    let mut headers = HeaderMap::new();
    ours(&settling.call.headers, &mut headers);
    RetryFate::Done(Reply {
        status: StatusCode::OK,
        headers,
        body: done_body(verb, job, state.as_deref().unwrap_or("active"), shown).into(),
    })
}

/// Whether a job that was out has been claimed anew since, as far as this sidecar and the store know.
async fn claimed_again(sidecar: &Sidecar, found: &RowFound) -> bool {
    let Some(run) = found.run() else {
        return false;
    };
    let (job, claim) = (&run.claimed.job, run.claimed.generation);
    if sidecar.hold.has(job) && !sidecar.hold.has_claim(job, claim) {
        return true;
    }
    let now = sidecar.store.row(job).await.ok().flatten();
    now.is_some_and(|now| now.claimed.generation > claim)
}

/// The body that the backend would have answered with, made from the job as it shows it.
fn done_body(verb: Verb, job: &str, state: &str, found: Option<Json<'_>>) -> Vec<u8> {
    let (id, state) = (quote(job), quote(state));
    let mut body = format!(r#"{{"id":{id},"job_id":{id},"state":{state}"#).into_bytes();
    if verb == Verb::Ack {
        body.extend_from_slice(br#","acknowledged":true"#);
    }
    if let Some(found) = found {
        add_found(found, &mut body);
    }
    body.push(b'}');
    body
}

fn add_found(found: Json<'_>, body: &mut Vec<u8>) {
    for name in [
        "attempt",
        "max_attempts",
        "completed_at",
        "next_attempt_at",
        "discarded_at",
    ] {
        if let Some(value) = found.get(name) {
            body.extend_from_slice(format!(",\"{name}\":").as_bytes());
            body.extend_from_slice(value.raw());
        }
    }
    body.extend_from_slice(b",\"job\":");
    // The mirror in it is hidden on the way out.
    body.extend_from_slice(found.raw());
}
