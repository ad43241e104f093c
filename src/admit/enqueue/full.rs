//! The answer to an enqueue that does not fit (backpressure text, 7.1 and 7.2): which bound it met, how much
//! of that is used, and when to come back.

use super::sent::SentJob;
use crate::answers::respond::{Fault, More};
use crate::bounds::{BoundMet, Full};
use crate::desk::{Sidecar, edges};
use crate::store::LedgerExt;
use crate::told::events::EventValue;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio::time::Instant;

const DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-depth");
const BOUND_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-bound");
/// What the OJS website calls the bound.
const MAX_DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-max-depth");

/// The code of most refusals.
const FULL: &str = "QUEUE_FULL";

/// When to come back to a queue of which nobody knows how fast it empties.
const UNKNOWN: Duration = Duration::from_secs(5);

/// The most of a job's type that an event tells, in bytes.
const LONGEST_TYPE: usize = 128;

/// The answer to an enqueue that does not fit.
pub(super) fn full(sidecar: &Sidecar, full: &Full, jobs: &[SentJob<'_>]) -> Fault {
    sidecar.metrics.rejected(&full.queue);
    let (queue, why) = (&*full.queue, &*message(full));
    let pressure = &sidecar.admit.pressure;
    if pressure.note_refusal(full, why, Instant::now()) {
        tracing::warn!(id = %"enqueue_refused", queue, why, "an enqueue is refused");
    }
    if sidecar.events.heard() {
        tell_rejected(sidecar, full, jobs);
    }
    let (used, bound) = (full.depth, full.bound);
    let code = code_of(full.met);
    let mut fault = Fault::new(code, why)
        .later(Duration::from_secs(retry_after(sidecar, full)))
        .with("queue", &*full.queue)
        .with("depth", used)
        .with("bound", bound)
        .with("strategy", full.strategy.as_str());
    fault.retryable = full.may_ever_fit();
    if !full.may_ever_fit() {
        fault.hint =
            "send fewer or smaller jobs at once, or raise the bound: it never fits as it is";
    }
    if let Some(unit) = full.met.unit() {
        fault = fault.with("unit", unit);
    }
    match &full.key {
        // In the words of the multi-tenancy text, 8.2.
        Some(tenant) if full.met == BoundMet::Tenant => {
            fault = fault
                .with("tenant_id", &**tenant)
                .with("limit", "max_queue_depth")
                .with("current", used)
                .with("maximum", bound);
        }
        Some(key) => fault = fault.with("key", &**key),
        None => {}
    }
    let mut more = More::default();
    if full.met == BoundMet::Rate {
        more.headers = rate_headers(sidecar, full);
    } else {
        let of_depth = match full.met {
            BoundMet::Depth => Some((used, bound)),
            _ => edges::tell_level(sidecar, &full.queue)
                .and_then(|level| Some((level.depth, level.max_depth?))),
        };
        more.headers = depth_headers(of_depth, (used, bound));
        more.members = fault.details.clone();
    }
    fault.more = Some(Box::new(more));
    if let Some(drain) = full.drain {
        fault = fault.with("drain_per_second", (drain * 1e3).round() / 1e3);
    }
    fault
}

/// `X-RateLimit-Limit`, `-Remaining` and `-Reset` (Unix seconds), and what the IETF's draft has in their place: the
/// policy with its quota and window, and what remains of it for how many seconds.
fn rate_headers(sidecar: &Sidecar, full: &Full) -> Vec<(HeaderName, HeaderValue)> {
    let after = u64::try_from(full.after.unwrap_or_default().as_micros()).unwrap_or(0);
    let reset = sidecar.store.now().plus(after).0.div_ceil(1_000_000);
    let remaining = full.bound.saturating_sub(full.depth);
    let mut policy = format!("\"enqueue_rate\";q={}", full.bound);
    // In whole seconds, or not said.
    if let Some(period) = full.period.filter(|period| period.subsec_nanos() == 0) {
        policy += &format!(";w={}", period.as_secs());
    }
    let left = format!(
        "\"enqueue_rate\";r={remaining};t={}",
        after.div_ceil(1_000_000)
    );
    let headers = [
        ("x-ratelimit-limit", full.bound.to_string()),
        ("x-ratelimit-remaining", remaining.to_string()),
        ("x-ratelimit-reset", reset.to_string()),
        ("ratelimit-policy", policy),
        ("ratelimit", left),
    ];
    let headers = headers.into_iter().filter_map(|(name, text)| {
        let text = HeaderValue::try_from(text).ok()?;
        Some((HeaderName::from_static(name), text))
    });
    headers.collect()
}

/// Whole seconds until it is worth trying again: as the queue empties, and up to a quarter more, so
/// that those who were refused together do not come back together.
fn retry_after(sidecar: &Sidecar, full: &Full) -> u64 {
    // SDKs try again whatever they are told, and their callers wait for the error that long.
    if !full.may_ever_fit() {
        return 1;
    }
    sidecar.admit.retry_after(full.after.unwrap_or(UNKNOWN))
}

fn tell_rejected(sidecar: &Sidecar, full: &Full, jobs: &[SentJob<'_>]) {
    let job = jobs.iter().find(|job| job.queue == *full.queue);
    let kind = job.map(SentJob::kind).unwrap_or_default();
    let kind = beginning(&kind);
    let mut data = vec![
        ("queue", EventValue::Text(&full.queue)),
        ("depth", EventValue::Number(full.depth)),
        ("bound", EventValue::Number(full.bound)),
        ("job_type", EventValue::Text(kind)),
    ];
    // Numbers that are no depth of the queue say what they are.
    let code = code_of(full.met);
    data.extend((code != FULL).then_some(("code", EventValue::Text(code))));
    data.extend(full.met.unit().map(|unit| ("unit", EventValue::Text(unit))));
    let name = match full.met {
        BoundMet::Tenant => "tenant_id",
        _ => "key",
    };
    let whose = full.key.as_deref();
    data.extend(whose.map(|whose| (name, EventValue::Text(whose))));
    edges::tell_pressure(sidecar, "backpressure.rejected", &full.queue, None, &data);
}

/// The code of a refusal by this bound.
fn code_of(met: BoundMet) -> &'static str {
    match met {
        BoundMet::Depth | BoundMet::Key | BoundMet::Bytes => FULL,
        BoundMet::Tenant => "TENANT_LIMIT_EXCEEDED",
        BoundMet::Rate => "rate_limited",
    }
}

/// As much of a job's type as is told.
fn beginning(kind: &str) -> &str {
    let mut ends = (0..=LONGEST_TYPE.min(kind.len())).rev();
    ends.find_map(|end| kind.get(..end)).unwrap_or_default()
}

/// Why an enqueue does not fit, for people: some SDKs show nothing else.
fn message(full: &Full) -> String {
    let (used, bound) = (full.depth, full.bound);
    let why = match full.met {
        BoundMet::Depth | BoundMet::Bytes | BoundMet::Key | BoundMet::Tenant => no_room(full),
        BoundMet::Rate if used < bound => format!(
            "has no room for so many jobs: {used} of the {bound} that may be enqueued in its period are taken"
        ),
        BoundMet::Rate => format!("has taken the {bound} jobs that may be enqueued in its period"),
    };
    let (who, name) = match (full.met, &full.key) {
        (BoundMet::Tenant, Some(tenant)) => ("Tenant", tenant),
        _ => ("Queue", &full.queue),
    };
    match (full.may_ever_fit(), full.met) {
        (true, _) => format!("{who} '{name}' {why}"),
        (false, BoundMet::Bytes) => {
            format!("{who} '{name}' {why}; so many bytes at once can never fit")
        }
        (false, _) => format!("{who} '{name}' {why}; so many jobs at once can never fit"),
    }
}

/// Why there is no room under a bound of what waits.
fn no_room(full: &Full) -> String {
    let (used, bound) = (full.depth, full.bound);
    let unit = match full.met {
        BoundMet::Bytes => " bytes",
        _ => "",
    };
    let waiting = match (full.met, used) {
        (BoundMet::Bytes, _) => format!("{used} bytes wait"),
        (_, 1) => "1 job waits".to_owned(),
        _ => format!("{used} jobs wait"),
    };
    let name = match (full.met, &full.key) {
        (BoundMet::Key, Some(key)) => format!("its depth bound for '{key}'"),
        (BoundMet::Tenant, _) => "max_queue_depth".to_owned(),
        (BoundMet::Bytes, _) => "its size bound".to_owned(),
        _ => "its depth bound".to_owned(),
    };
    if used >= bound {
        // In the words of the texts.
        let has = match full.met {
            BoundMet::Tenant => "has exceeded",
            _ => "has reached",
        };
        return format!("{has} {name} ({bound}{unit}): {waiting}");
    }
    if used + full.wanted > bound {
        let many = match (full.met, full.wanted) {
            (BoundMet::Bytes, bytes) => format!("{bytes} bytes"),
            (_, 1) => "another job".to_owned(),
            _ => "so many jobs".to_owned(),
        };
        return format!("has no room for {many}: {waiting}, and {name} is {bound}{unit}");
    }
    format!(
        "has no room: {waiting}, and others are about to take the rest of {name} ({bound}{unit})"
    )
}

/// The headers that say how full a queue is: its depth and the bound of that, whatever bound it is near. Where its
/// depth has none, they are of the bound that it is `near`: numbers of two bounds say nothing.
pub(super) fn depth_headers(
    of_depth: Option<(u64, u64)>,
    near: (u64, u64),
) -> Vec<(HeaderName, HeaderValue)> {
    let (used, bound) = of_depth.unwrap_or(near);
    let named = [
        (DEPTH_HEADER, Some(used)),
        (BOUND_HEADER, Some(bound)),
        (MAX_DEPTH_HEADER, of_depth.map(|(_, bound)| bound)),
    ];
    let named = named.into_iter();
    named
        .filter_map(|(name, value)| Some((name, HeaderValue::from(value?))))
        .collect()
}
