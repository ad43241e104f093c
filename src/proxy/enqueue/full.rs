//! The answer to an enqueue that does not fit (backpressure text, 7.1 and 7.2): which bound it met, how much
//! of that is used, and when to come back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::Instant;

use super::Sends;
use crate::events::Value;
use crate::json::Json;
use crate::policy::job::queue_of;
use crate::pressure::{Full, Met, Resumes, Unit};
use crate::proxy::respond::{Fault, More};
use crate::proxy::{DEPTH, Sidecar};

const DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-depth");
const BOUND_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-bound");
/// What the OJS website calls the bound.
const MAX_DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-max-depth");

/// The code of most refusals.
const FULL: &str = "QUEUE_FULL";

/// When to come back to a queue of which nobody knows how fast it empties.
const UNKNOWN: Duration = Duration::from_secs(5);
/// The longest `Retry-After`.
const LATEST: Duration = Duration::from_secs(30);

/// The most of a job's type that an event tells, in bytes.
const LONGEST_TYPE: usize = 128;

impl Sidecar {
    /// The answer to an enqueue that does not fit.
    pub(super) fn full(&self, full: &Full, body: &[u8], sends: Sends) -> Fault {
        self.metrics.rejected(&full.queue);
        let said = self.pressure.says(full, Instant::now());
        if said.loud {
            let (queue, why) = (&*full.queue, &*message(full));
            tracing::warn!(queue, why, "an enqueue is refused");
        }
        if said.told && self.events.heard() {
            self.tell_rejected(full, body, sends);
        }
        let (used, bound) = (full.depth, full.bound);
        let code = code_of(full.met);
        let mut fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, code, message(full))
            .later(Duration::from_secs(self.retry_after(full)))
            .with("queue", &*full.queue)
            .with("depth", used)
            .with("bound", bound)
            .with("strategy", full.strategy.as_str());
        fault.retryable = full.ever;
        if !full.ever {
            fault.hint = Some(
                "send fewer or smaller jobs at once, or raise the bound: it never fits as it is",
            );
        }
        if let Some(unit) = full.unit.as_str() {
            fault = fault.with("unit", unit);
        }
        if let Some(resumes) = full.resumes {
            fault = fault.with("resume_at", resumes.at);
        }
        match &full.key {
            // In the words of the multi-tenancy text, 8.2.
            Some(tenant) if full.met == Met::Tenant => {
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
        if full.met == Met::Rate {
            more.headers = self.rate_headers(full);
        } else {
            let (depth, max_depth) = match full.met {
                Met::Depth => (used, Some(bound)),
                _ => (self.tell_level(&full.queue))
                    .map_or((0, None), |level| (level.depth, level.max_depth)),
            };
            more.headers = depth_headers(depth, max_depth, bound);
            more.members = fault.details.clone();
        }
        fault.more = Some(Box::new(more));
        if let Some(drain) = full.drain {
            fault = fault.with("drain_per_second", (drain * 1e3).round() / 1e3);
        }
        fault
    }

    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` (Unix seconds).
    fn rate_headers(&self, full: &Full) -> Vec<(HeaderName, HeaderValue)> {
        let after = u64::try_from(full.after.unwrap_or_default().as_micros()).unwrap_or(0);
        let reset = self.store.now().plus(after).0.div_ceil(1_000_000);
        let remaining = full.bound.saturating_sub(full.depth);
        let headers = [
            ("x-ratelimit-limit", full.bound),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-reset", reset),
        ];
        let named = headers.into_iter();
        named
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from(value)))
            .collect()
    }

    /// Whole seconds until it is worth trying again: as the queue empties, and up to a quarter more, so
    /// that those who were refused together do not come back together.
    fn retry_after(&self, full: &Full) -> u64 {
        // SDKs try again whatever they are told, and their callers wait for the error that long.
        if !full.ever {
            return 1;
        }
        let after = full
            .after
            .unwrap_or(UNKNOWN)
            .min(LATEST)
            .as_secs_f64()
            .max(1.0);
        // Steps of the golden ratio spread any number of them evenly.
        let nth = self.refusals.fetch_add(1, Ordering::Relaxed);
        let part = |nth: u64| (nth as f64 * 0.618_033_988_749_895).fract();
        let seconds = after * (1.0 + 0.25 * part(nth)) + part(nth.wrapping_mul(7).wrapping_add(3));
        (seconds as u64).clamp(1, LATEST.as_secs())
    }

    fn tell_rejected(&self, full: &Full, body: &[u8], sends: Sends) {
        let whole = Json::parse(body, DEPTH).ok();
        let job = whole.and_then(|whole| match sends {
            Sends::Job => Some(whole),
            _ => whole
                .get("jobs")?
                .items()
                .find(|job| queue_of(*job) == *full.queue),
        });
        let kind = job.and_then(|job| job.get("type")?.text());
        let kind = beginning(kind.as_deref().unwrap_or_default());
        let mut data = vec![
            ("queue", Value::Text(&full.queue)),
            ("depth", Value::Number(full.depth)),
            ("bound", Value::Number(full.bound)),
            ("job_type", Value::Text(kind)),
        ];
        // Numbers that are no depth of the queue say what they are.
        let code = code_of(full.met);
        data.extend((code != FULL).then_some(("code", Value::Text(code))));
        let unit = full.unit.as_str();
        data.extend(unit.map(|unit| ("unit", Value::Text(unit))));
        let name = match full.met {
            Met::Tenant => "tenant_id",
            _ => "key",
        };
        let whose = full.key.as_deref();
        data.extend(whose.map(|whose| (name, Value::Text(whose))));
        self.tell_pressure("backpressure.rejected", &full.queue, None, &data);
    }
}

/// The code of a refusal by this bound.
fn code_of(met: Met) -> &'static str {
    match met {
        Met::Depth | Met::Key | Met::Bytes | Met::Age | Met::Wait => FULL,
        Met::Tenant => "TENANT_LIMIT_EXCEEDED",
        Met::Rate => "rate_limited",
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
        Met::Depth | Met::Bytes | Met::Key | Met::Tenant => no_room(full),
        Met::Age => {
            let unit = in_short(full.unit);
            format!("has jobs older than its age bound ({bound} {unit}): {used} {unit}")
        }
        Met::Wait => {
            let unit = in_short(full.unit);
            format!("would keep a job waiting beyond its bound ({bound} {unit}): {used} {unit}")
        }
        Met::Rate if used < bound => format!(
            "has no room for so many jobs: {used} of the {bound} that may be enqueued in its period are taken"
        ),
        Met::Rate => format!("has taken the {bound} jobs that may be enqueued in its period"),
    };
    let (who, name) = match (full.met, &full.key) {
        (Met::Tenant, Some(tenant)) => ("Tenant", tenant),
        _ => ("Queue", &full.queue),
    };
    match (full.ever, full.met) {
        (true, _) => format!("{who} '{name}' {why}"),
        (false, Met::Bytes) => {
            format!("{who} '{name}' {why}; so many bytes at once can never fit")
        }
        (false, _) => format!("{who} '{name}' {why}; so many jobs at once can never fit"),
    }
}

/// Why there is no room under a bound of what waits.
fn no_room(full: &Full) -> String {
    let (used, bound) = (full.depth, full.bound);
    let unit = if full.met == Met::Bytes { " bytes" } else { "" };
    let waiting = match (full.met, full.at_least) {
        (Met::Bytes, _) => format!("{used} bytes wait"),
        (_, least) if least < used => {
            format!("{least} to {used} jobs wait, as other sidecars have places")
        }
        (_, 1) => "1 job waits".to_owned(),
        _ => format!("{used} jobs wait"),
    };
    let name = match (full.met, &full.key) {
        (Met::Key, Some(key)) => format!("its depth bound for '{key}'"),
        (Met::Tenant, _) => "max_queue_depth".to_owned(),
        (Met::Bytes, _) => "its size bound".to_owned(),
        _ => "its depth bound".to_owned(),
    };
    if full.at_least >= bound {
        // In the words of the texts.
        let has = match full.met {
            Met::Tenant => "has exceeded",
            _ => "has reached",
        };
        return format!("{has} {name} ({bound}{unit}): {waiting}");
    }
    if let Some(Resumes { at, threshold }) = full.resumes.filter(|resumes| resumes.at < used) {
        return format!(
            "was full and accepts again at {at}{unit} or fewer (resume_threshold {threshold}): {waiting}, and {name} is {bound}{unit}"
        );
    }
    if used + full.wanted > bound {
        let many = match (full.met, full.wanted) {
            (Met::Bytes, bytes) => format!("{bytes} bytes"),
            (_, 1) => "another job".to_owned(),
            _ => "so many jobs".to_owned(),
        };
        return format!("has no room for {many}: {waiting}, and {name} is {bound}{unit}");
    }
    format!(
        "has no room: {waiting}, and others are about to take the rest of {name} ({bound}{unit})"
    )
}

/// The unit of a time, as people write it.
fn in_short(unit: Unit) -> &'static str {
    match unit {
        Unit::Millis => "ms",
        Unit::Seconds | Unit::Jobs | Unit::Bytes => "s",
    }
}

/// The headers that say how full a queue is: its depth, which is a number of jobs whatever `bound` it is
/// near, and the bound of that. Where it has none, the one that it is near.
pub(super) fn depth_headers(
    depth: u64,
    max_depth: Option<u64>,
    bound: u64,
) -> Vec<(HeaderName, HeaderValue)> {
    let named = [
        (DEPTH_HEADER, Some(depth)),
        (BOUND_HEADER, Some(max_depth.unwrap_or(bound))),
        (MAX_DEPTH_HEADER, max_depth),
    ];
    let said = named.into_iter();
    said.filter_map(|(name, value)| Some((name, HeaderValue::from(value?))))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pressure::Strategy;

    #[test]
    fn places_of_siblings_are_not_said_to_wait() {
        let full = Full {
            queue: Arc::from("q"),
            met: Met::Depth,
            depth: 100,
            at_least: 93,
            bound: 100,
            wanted: 1,
            unit: Unit::Jobs,
            resumes: None,
            strategy: Strategy::Reject,
            after: None,
            drain: None,
            ever: true,
            key: None,
        };
        assert_eq!(
            message(&full),
            "Queue 'q' has no room for another job: 93 to 100 jobs wait, as other sidecars have places, and its depth bound is 100"
        );
    }
}
