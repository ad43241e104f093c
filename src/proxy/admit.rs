//! Admission: an enqueue into bounded queues gets places in all of them before anything is sent on, or
//! an answer that says why not and when to come back (backpressure text, sections 5 to 7 and 9.3).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::time::{Instant, sleep, sleep_until};

use super::enqueue::Sends;
use super::respond::{Fault, More};
use super::{DEPTH, Proxy, Sidecar};
use crate::events::Value;
use crate::json::{Json, JsonError};
use crate::limit::Limits;
use crate::policy::{JobView, Rendered};
use crate::pressure::{Answer, Away, Full, Met, Outcome, Places, Strategy, Want};
use crate::upstream::{Reply, UpstreamError};

const DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-depth");
const BOUND_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-bound");
/// What the OJS website calls the bound.
const MAX_DEPTH_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-max-depth");
const PRESSURE_HEADER: HeaderName = HeaderName::from_static("x-ojs-queue-pressure");
const BLOCK_TIMEOUT: &str = "OJS-Block-Timeout";

/// When to come back to a queue of which nobody knows how fast it empties.
const UNKNOWN: Duration = Duration::from_secs(5);
/// The longest `Retry-After`: what could never fit is not worth less.
const LATEST: Duration = Duration::from_secs(30);
/// How often those who wait for room have the backend asked.
const LOOK: Duration = Duration::from_millis(100);

impl Proxy {
    /// Places for the jobs of an enqueue; `None`: its queues are not bounded. A producer that may wait
    /// waits in here.
    pub(super) async fn admit(
        &self,
        parts: &Parts,
        body: &Bytes,
        sends: Sends,
    ) -> Result<Option<Places>, Fault> {
        let mut wants = self.sidecar.wants(parts, body, sends)?;
        if wants.is_empty() {
            return Ok(None);
        }
        let patience = block_timeout(parts)?;
        // Only looks need it, and they are rare.
        let scope = || self.sidecar.scopes.of(&parts.headers);
        let pressure = &self.sidecar.pressure;
        loop {
            match pressure.ask(&mut wants, self.sidecar.now()) {
                Answer::Go(places) => return Ok(Some(places)),
                Answer::Away(away) => return Err(Fault::backend(&unanswered(away), false)),
                Answer::Look(looks) => {
                    for look in looks.iter().filter(|look| look.begin) {
                        self.look_soon(Arc::clone(&look.queue), scope());
                    }
                    for look in looks {
                        look.done.await;
                    }
                }
                Answer::Full(full) => {
                    let blocks = full.strategy == Strategy::Block && full.ever;
                    let longest = longest_wait(&wants).min(patience);
                    if !blocks || longest.is_zero() || full.met == Met::Rate {
                        return Err(self.sidecar.full(&full, body, sends));
                    }
                    let until = Instant::now() + longest;
                    let places = self.blocked(wants, scope(), until, *full).await;
                    return match places {
                        Ok(places) => Ok(Some(places)),
                        Err(full) => Err(self.sidecar.full(&full, body, sends)),
                    };
                }
            }
        }
    }

    /// Settles what had places; then jobs go for it, and its queues are looked at, if that is due. The look
    /// comes last: an enqueue on its way would count twice.
    pub(super) async fn settled(
        &self,
        mut places: Places,
        answer: &mut Result<Reply, UpstreamError>,
        scope: u64,
    ) {
        let looks = std::mem::take(&mut places.look);
        let to_drop = self.sidecar.settle_places(places, answer);
        if !to_drop.is_empty() {
            self.drop_oldest(to_drop, scope).await;
        }
        for queue in looks {
            if self.sidecar.pressure.begin_look(&queue, false) {
                self.look_soon(queue, scope);
            }
        }
    }

    /// Waits in line for room. Hanging up leaves the line.
    async fn blocked(
        &self,
        wants: Vec<Want>,
        scope: u64,
        until: Instant,
        full: Full,
    ) -> Result<Places, Full> {
        let sidecar = &self.sidecar;
        let most = sidecar.live().settings.max_blocked;
        let queues: Vec<Arc<str>> = wants.iter().map(|want| Arc::clone(&want.queue)).collect();
        let Some(mut turn) = sidecar.pressure.stand(wants, most) else {
            return Err(full);
        };
        // Room may have come before it stood there.
        sidecar.pressure.wake(sidecar.now());
        loop {
            tokio::select! {
                biased;
                places = turn.come() => return places.ok_or(full),
                () = sleep_until(until) => return Err(full),
                () = sidecar.draining.cancelled() => return Err(full),
                () = sleep(LOOK) => {
                    for queue in &queues {
                        if sidecar.pressure.begin_due_look(queue, Instant::now()) {
                            self.look_soon(Arc::clone(queue), scope);
                        }
                    }
                }
            }
        }
    }
}

impl Sidecar {
    /// What an enqueue wants of bounded queues, by name. A body that is no JSON is the backend's to
    /// refuse.
    fn wants(&self, parts: &Parts, body: &[u8], sends: Sends) -> Result<Vec<Want>, Fault> {
        let tenant = super::job::tenant(&parts.headers);
        let tenant = tenant.filter(|_| self.live().settings.trust_tenant_header);
        let whole = match Json::parse(body, DEPTH) {
            Ok(whole) => whole,
            Err(JsonError::Deep(_)) => {
                let message = format!("the body is nested deeper than {DEPTH} levels");
                return Err(Fault::bad_request(message));
            }
            Err(JsonError::Malformed(_)) => return Ok(Vec::new()),
        };
        if sends == Sends::Job {
            return Ok(self
                .want(queue_of(whole).as_deref(), whole, tenant)
                .into_iter()
                .collect());
        }
        let jobs = whole.get("jobs").into_iter().flat_map(|jobs| jobs.items());
        let mut wants: BTreeMap<Arc<str>, Want> = BTreeMap::new();
        for job in jobs {
            let queue = queue_of(job);
            match wants.get_mut(queue.as_deref().unwrap_or("default")) {
                Some(want) => {
                    want.jobs += 1;
                    want.sizes.push(job.raw().len() as u64);
                    want.keys.extend(key_of(job, want, tenant));
                }
                None => {
                    if let Some(want) = self.want(queue.as_deref(), job, tenant) {
                        wants.insert(Arc::clone(&want.queue), want);
                    }
                }
            }
        }
        Ok(wants.into_values().collect())
    }

    /// What one job wants.
    fn want(&self, queue: Option<&str>, job: Json<'_>, tenant: Option<&str>) -> Option<Want> {
        let queue = queue.unwrap_or("default");
        let Some(bounds) = self.pressure.bounds(queue) else {
            if self.pressure.first_unbounded(queue) {
                tracing::warn!(
                    queue,
                    "the queue has no bound: it can grow until the backend fails"
                );
            }
            return None;
        };
        let pace = bounds.max_wait.and_then(|_| self.pace(queue));
        let mut want = Want {
            queue: Arc::from(queue),
            bounds,
            jobs: 1,
            sizes: vec![job.raw().len() as u64],
            keys: Vec::new(),
            pace,
        };
        want.keys.extend(key_of(job, &want, tenant));
        Some(want)
    }

    /// The fastest that jobs of a queue may start under limits that all of them meet, a second.
    fn pace(&self, queue: &str) -> Option<f64> {
        let gate = self.live().policies.gate(queue);
        let set = self.set_for_queue(queue);
        let all = gate.limited.iter().map(|one| &one.limits);
        let all = all.chain(set.as_ref().map(|set| &set.limits));
        all.filter_map(slowest).min_by(f64::total_cmp)
    }

    /// The answer to an enqueue that does not fit.
    fn full(&self, full: &Full, body: &[u8], sends: Sends) -> Fault {
        self.metrics.rejected(&full.queue);
        if full.say {
            self.tell_rejected(full, body, sends);
        }
        let (used, bound) = (full.depth, full.bound);
        let (code, unit) = match full.met {
            Met::Depth | Met::Key => ("QUEUE_FULL", None),
            Met::Bytes => ("QUEUE_FULL", Some("bytes")),
            Met::Age | Met::Wait => ("QUEUE_FULL", Some("seconds")),
            Met::Rate => ("rate_limited", None),
        };
        let mut fault = Fault::new(StatusCode::TOO_MANY_REQUESTS, code, message(full))
            .later(Duration::from_secs(self.retry_after(full)))
            .with("queue", &*full.queue)
            .with("depth", used)
            .with("bound", bound)
            .with("strategy", full.strategy.as_str());
        fault.retryable = full.ever;
        if let Some(unit) = unit {
            fault = fault.with("unit", unit);
        }
        if let Some(key) = &full.key {
            fault = fault.with("key", &**key);
        }
        let mut more = More::default();
        if full.met == Met::Rate {
            more.headers = self.rate_headers(full);
        } else {
            more.headers = depth_headers(used, bound);
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
        if !full.ever {
            return LATEST.as_secs();
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
        tracing::info!(
            queue = &*full.queue,
            depth = full.depth,
            bound = full.bound,
            "the queue is full: enqueues are refused"
        );
        if !self.events.heard() {
            return;
        }
        let whole = Json::parse(body, DEPTH).ok();
        let job = whole.and_then(|whole| match sends {
            Sends::Job => Some(whole),
            _ => whole
                .get("jobs")?
                .items()
                .find(|job| queue_of(*job).as_deref().unwrap_or("default") == &*full.queue),
        });
        let kind = job.and_then(|job| job.get("type")?.text());
        let kind = kind.as_deref().unwrap_or_default();
        let data = [
            ("queue", Value::Text(&full.queue)),
            ("depth", Value::Number(full.depth)),
            ("bound", Value::Number(full.bound)),
            ("job_type", Value::Text(kind)),
        ];
        self.tell_pressure("backpressure.rejected", &full.queue, None, &data);
    }

    /// What became of an enqueue that had places; the reply tells how near its bounds are. Says how many
    /// jobs are to go for it, by queue.
    fn settle_places(
        &self,
        places: Places,
        answer: &mut Result<Reply, UpstreamError>,
    ) -> Vec<(Arc<str>, u64)> {
        let queues: Vec<Arc<str>> = places.wants().map(|want| Arc::clone(&want.queue)).collect();
        let stored = match &answer {
            Ok(reply) => match reply.status {
                StatusCode::CREATED | StatusCode::ACCEPTED | StatusCode::MULTI_STATUS => true,
                // Between us and the backend: it may have been carried out.
                StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => true,
                // A duplicate that was ignored, and refusals of all kinds.
                _ => false,
            },
            Err(error) => error.in_doubt(),
        };
        let to_drop = match stored {
            true => places.to_drop(),
            false => Vec::new(),
        };
        let ids = match &answer {
            Ok(reply) if stored && places.wants_ids() => Sidecar::stored_ids(&reply.body),
            _ => Vec::new(),
        };
        let outcome = match stored {
            true => Outcome::Stored,
            false => Outcome::Refused,
        };
        places.settle(outcome, &ids);
        let levels: Vec<_> = (queues.iter())
            .filter_map(|queue| self.tell_level(queue))
            .collect();
        let Ok(reply) = answer else {
            return to_drop;
        };
        if reply.status != StatusCode::CREATED {
            return to_drop;
        }
        self.note_scheduled(reply);
        if let [queue] = &*queues {
            self.stats.keep(queue, reply);
        }
        let near = levels.iter().filter(|level| level.above);
        let most = near.max_by(|a, b| a.pressure().total_cmp(&b.pressure()));
        if let Some((level, (used, bound))) = most.and_then(|level| Some((level, level.most?))) {
            let pressure = (level.pressure() * 1e4).round() / 1e4;
            reply.headers.extend(depth_headers(used, bound));
            if let Ok(value) = HeaderValue::try_from(pressure.to_string()) {
                reply.headers.insert(PRESSURE_HEADER, value);
            }
        }
        to_drop
    }
}

/// Why an enqueue does not fit, for people: some SDKs show nothing else.
fn message(full: &Full) -> String {
    let (queue, used, bound) = (&full.queue, full.depth, full.bound);
    let why = match full.met {
        Met::Depth => format!("has reached its depth bound ({bound}): {used} jobs wait"),
        Met::Key => {
            let key = full.key.as_deref().unwrap_or_default();
            format!("has reached its depth bound for '{key}' ({bound}): {used} jobs wait")
        }
        Met::Bytes => format!("has reached its size bound ({bound} bytes): {used} bytes wait"),
        Met::Age => format!("has jobs older than its age bound ({bound} s): {used} s"),
        Met::Wait => format!("would keep a job waiting beyond its bound ({bound} s): {used} s"),
        Met::Rate => format!("has taken the {bound} jobs that may be enqueued in its period"),
    };
    match full.ever {
        true => format!("Queue '{queue}' {why}"),
        false => format!("Queue '{queue}' {why}; so many jobs at once can never fit"),
    }
}

/// The headers that say how full a queue is.
fn depth_headers(used: u64, bound: u64) -> Vec<(HeaderName, HeaderValue)> {
    vec![
        (DEPTH_HEADER, HeaderValue::from(used)),
        (BOUND_HEADER, HeaderValue::from(bound)),
        (MAX_DEPTH_HEADER, HeaderValue::from(bound)),
    ]
}

/// The queue of a job, as backends file it.
fn queue_of(job: Json<'_>) -> Option<std::borrow::Cow<'_, str>> {
    let queue = job.get("options")?.get("queue")?.text();
    queue.filter(|queue| !queue.is_empty())
}

/// The key of a job, where its queue has a bound for each key.
fn key_of(job: Json<'_>, want: &Want, tenant: Option<&str>) -> Option<Arc<str>> {
    let keys = want.bounds.per_key.as_ref()?;
    let metadata = job
        .get("options")
        .and_then(|options| options.get("metadata"));
    // Backends let a non-empty `options.metadata` replace `meta` as a whole.
    let metadata = metadata.filter(|metadata| metadata.members().next().is_some());
    let kind = job.get("type").and_then(|kind| kind.text());
    let view = JobView {
        queue: &want.queue,
        kind: kind.as_deref().unwrap_or_default(),
        meta: metadata.or(job.get("meta")),
        tenant,
    };
    match keys.by.render(&view) {
        Rendered::Whole(key) | Rendered::Missing(_, key) => Some(Arc::from(key.as_str())),
    }
}

/// The longest that an enqueue may wait by what its queues say.
fn longest_wait(wants: &[Want]) -> Duration {
    let longest = wants.iter().map(|want| want.bounds.block_timeout_max);
    longest.min().unwrap_or_default()
}

/// The starts a second that limits allow at most; `None`: as many as may be.
fn slowest(limits: &Limits) -> Option<f64> {
    let a_second = |limit: u32, period: u64| f64::from(limit) * 1e6 / period as f64;
    let rates = limits.rates.iter();
    let rates = rates.map(|rate| a_second(rate.limit.get(), rate.period.get()));
    let throttle = limits.throttle;
    let throttle = throttle.map(|t| a_second(t.limit.get(), t.period.get()));
    rates.chain(throttle).min_by(f64::total_cmp)
}

/// How long the producer would wait (`OJS-Block-Timeout`, in seconds).
fn block_timeout(parts: &Parts) -> Result<Duration, Fault> {
    let Some(sent) = parts.headers.get(BLOCK_TIMEOUT) else {
        return Ok(Duration::ZERO);
    };
    let seconds = sent
        .to_str()
        .ok()
        .and_then(|text| text.trim().parse::<f64>().ok());
    match seconds.filter(|seconds| (0.0..1e9).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(Fault::field(
            BLOCK_TIMEOUT,
            "must be a number of seconds, from 0",
        )),
    }
}

/// The error of a look, as that of the enqueue that waited for it.
fn unanswered(away: Away) -> UpstreamError {
    match away {
        Away::Unreachable(text) => UpstreamError::Unreachable(text),
        Away::Silent(text) => UpstreamError::Lost(text),
    }
}
