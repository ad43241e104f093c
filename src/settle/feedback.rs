//! Dynamic limits (rate-limiting text, section 9): a nack that says that the service behind a job
//! limits us shuts the keys of that job until then, for longer each time where there is backoff. A job
//! that succeeds ends that.

use std::sync::Arc;

use http::StatusCode;
use http::header::HeaderMap;

use crate::desk::{Proxy, Sidecar, tell};
use crate::json::Json;
use crate::limit::{Key, Limited, Limits, Space, Timestamp, each_job_key};
use crate::policy::{Feedback, Pause, tells_of_limits, unread_signal};
use crate::store::{Change, Claimed, LedgerExt, Row};
use crate::wire::ojs::REPLY_DEPTH;

/// The backend has accepted this nack of a job that was out under `claimed`, since `started` if that is known. Before
/// its slots end: what they would let start at once is what the service has refused.
pub(super) async fn heed(
    proxy: &Proxy,
    claimed: &Claimed,
    started: Option<Timestamp>,
    nack: &[u8],
) {
    let Some(error) = Json::parse(nack, REPLY_DEPTH)
        .ok()
        .and_then(|nack| nack.get("error"))
    else {
        return;
    };
    let sidecar = &proxy.sidecar;
    if let Some((signal, said)) = unread_signal(error)
        && sidecar.settle.unread.now()
    {
        let (job, queue) = (&*claimed.job, &*claimed.queue);
        tracing::warn!(id = %"signal_unread", job, queue, signal, said, "what a nack says of a limit cannot be read, and shuts nothing");
    }
    let policies = Arc::clone(&sidecar.live().policies);
    let now = sidecar.store.now();
    for key in job_keys(&claimed.limited) {
        let times = sidecar.settle.refusals.times(key, started, now);
        let job = (&*claimed.job, times);
        let asked = policies.pause(&claimed.limited, key, error, now, job);
        if let Some((pause, policy)) = asked {
            shut(sidecar, claimed, (key, times), pause, policy, now).await;
        }
    }
}

/// What the service says in its reply to a call by this way out that started at `started`. The caller gets the reply
/// afterwards.
pub(crate) async fn heed_reply(
    sidecar: &Sidecar,
    egress: &Arc<str>,
    call: &Claimed,
    started: Timestamp,
    (status, headers): (StatusCode, &HeaderMap),
) {
    let refusals = &sidecar.settle.refusals;
    // Most answers tell of no limits, and one look at each name costs less than a search for every form.
    let is_plain = || !headers.keys().any(|name| tells_of_limits(name.as_str()));
    if status.is_success() && refusals.is_empty() && is_plain() {
        return;
    }
    let (config, policies) = (sidecar.config(), Arc::clone(&sidecar.live().policies));
    let entry = config.way(egress);
    // The key of the way out stands first. What is left of a budget is ours to know.
    let Some((entry, key)) = entry.zip(job_keys(&call.limited).next()) else {
        return;
    };
    let now = sidecar.store.now();
    let times = refusals.times(key, Some(started), now);
    let asks = |of: &Feedback| {
        let said = (status.as_u16(), text_lines(headers));
        let call = (&*call.job, times);
        of.pause_by_reply(entry.vendor, said, key.as_str(), now, call)
    };
    let asked = match &entry.feedback {
        Some(own) => asks(own).map(|pause| (pause, egress)),
        None => policies.pause_by(&call.limited, key, asks),
    };
    let Some((pause, policy)) = asked else {
        if status.is_success() {
            refusals.succeeded(key, started);
        }
        return;
    };
    shut(sidecar, call, (key, times), pause, policy, now).await;
}

/// The lines of a head that are text.
pub(crate) fn text_lines(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.iter();
    lines.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
}

/// The backend has accepted the ACK of a job that was out under `row`.
pub(super) fn succeeded(proxy: &Proxy, row: &Row) {
    let refusals = &proxy.sidecar.settle.refusals;
    let Some(started) = row.started.filter(|_| !refusals.is_empty()) else {
        return;
    };
    for key in job_keys(&row.claimed.limited) {
        refusals.succeeded(key, started);
    }
}

/// Shuts a key that was refused so many times in a row; one that is shut for longer stays so, whoever else says so at the
/// same time.
async fn shut(
    sidecar: &Sidecar,
    by: &Claimed,
    (key, times): (&Key, u32),
    pause: Pause,
    policy: &Arc<str>,
    now: Timestamp,
) {
    if let Some(until) = pause.counts_until {
        sidecar.settle.refusals.refused(key, times, now, until);
    }
    let no_limits = Limits::default();
    let usage = sidecar.store.usage(Space::Job, key, &no_limits).await;
    let before = usage.ok().flatten().and_then(|usage| usage.shut_until);
    let change = Change::Shut {
        key: key.clone(),
        until: pause.until,
        at_least: true,
    };
    let seconds = |until: Timestamp| until.since(now) as f64 / 1e6;
    let (seconds, asked_seconds) = (seconds(pause.until), pause.asked.map(seconds));
    let set = sidecar.store.set(change).await;
    if let Ok(true) = set {
        sidecar.metrics.shut(policy);
        tell::adjusted(sidecar, by, key, pause);
    }
    match (set, before) {
        (Err(error), _) => {
            if let Some(more) = sidecar.settle.not_shut.next(policy) {
                tracing::warn!(id = %"key_not_shut", %key, %policy, %error, more, "a key could not be shut");
            }
        }
        (Ok(false), _) => {}
        (Ok(true), None) => {
            if let Some(more) = sidecar.settle.shut.next(policy) {
                tracing::info!(%key, %policy, seconds, asked_seconds, reason = pause.reason, more, "the service behind this key limits us: no starts until then");
            }
        }
        (Ok(true), Some(_)) => {
            tracing::debug!(%key, %policy, seconds, asked_seconds, reason = pause.reason, "shut for longer");
        }
    }
}

/// The job keys among a job's limits, each once.
fn job_keys(limited: &[Limited]) -> impl Iterator<Item = &Key> {
    each_job_key(limited).map(|(_, one)| &one.key)
}
