//! What kind of backend stands behind us: how it counts attempts, what requeue costs there, and what
//! keeps a claim alive. Learnt from its manifest and from the first job it hands out; each can be set.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde_json::Value;

use crate::config::UpstreamSettings;
use crate::json::Json;
use crate::limit::Timestamp;
use crate::wire::ojs::{REPLY_DEPTH, speaks_ojs};
use crate::wire::upstream::Reply;

/// How the backend behaves where the official ones differ.
#[derive(Debug, Default)]
pub struct BackendFacts {
    /// Whether handing a job out counts an attempt.
    claims_count: Trait,
    /// Whether giving a claimed job back with `requeue` costs it nothing.
    requeue_harmless: Trait,
    /// Whether any heartbeat of a worker id keeps all its jobs.
    worker_liveness: Trait,
    /// Whether a heartbeat's value counts from the job's start instead of from now.
    from_start: Trait,
    /// Whether `retryable: false` in a nack is never heeded.
    retries_always: Trait,
    /// Whether a name more costs it, or us, too much for subqueues.
    names_cost: Trait,
    /// What answers in its place.
    stranger: Mutex<Option<Stranger>>,
}

/// What answers at the address of the backend and is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// The sidecar that asked.
    Itself,
    /// The admin port of a sidecar.
    AdminPort,
    /// It speaks HTTP and no OJS.
    NoOjs,
}

impl Stranger {
    /// What a reply to `GET /ojs/manifest` shows; `None`: OJS, or somebody between here and a backend speaks.
    pub fn of(reply: &Reply) -> Option<Stranger> {
        let says = |pointer: &str, word: &str| {
            let json: Option<Value> = serde_json::from_slice(&reply.body).ok();
            json.is_some_and(|json| json.pointer(pointer).is_some_and(|said| said == word))
        };
        match reply.status {
            StatusCode::LOOP_DETECTED if says("/error/code", "loop_detected") => {
                return Some(Stranger::Itself);
            }
            StatusCode::NOT_FOUND if says("/error/details/port", ADMIN) => {
                return Some(Stranger::AdminPort);
            }
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS => return None,
            status if status.is_server_error() => return None,
            _ => {}
        }
        let manifest = Json::parse(&reply.body, REPLY_DEPTH).ok();
        let names = ["implementation", "specversion", "ojs_version"];
        let is_manifest =
            manifest.is_some_and(|manifest| manifest.pick(names).iter().any(Option::is_some));
        (!speaks_ojs(&reply.headers) && !is_manifest).then_some(Stranger::NoOjs)
    }
}

impl std::fmt::Display for Stranger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Stranger::Itself => "server.upstream leads back to this sidecar itself",
            Stranger::AdminPort => "server.upstream is the admin port of an ojs-throttle",
            Stranger::NoOjs => "what answers at server.upstream speaks HTTP and no OJS",
        })
    }
}

/// How the admin port names itself where it has no such page.
pub(crate) const ADMIN: &str = "admin";

/// The backends of which it is known that a heartbeat keeps the jobs that it names, and no others. What only looks like
/// one of them, or stores its jobs in the same place, may be another.
const KEEP_NAMED: [&str; 7] = [
    "ojs-backend-redis",
    "ojs-backend-postgres",
    "ojs-backend-lite",
    "ojs-backend-nats",
    "ojs-backend-sqs",
    "ojs-backend-kafka",
    "ojs-throttle-dev",
];

/// The official backends for which 256 names more would be too many.
const NAMES_COST: [&str; 4] = ["nats", "sqs", "kafka", "amqp"];

/// A yes or no that is set, learnt, or not known yet.
#[derive(Debug, Default)]
struct Trait {
    set: Option<bool>,
    /// 0: not yet.
    learnt: AtomicU8,
}

const NO: u8 = 1;
const YES: u8 = 2;

impl Trait {
    fn set(set: Option<bool>) -> Trait {
        Trait {
            set,
            ..Trait::default()
        }
    }

    /// What was learnt does not count where it is set.
    fn known(&self) -> Option<bool> {
        let learnt = self.learnt.load(Ordering::Relaxed);
        self.set.or_else(|| (learnt > 0).then_some(learnt == YES))
    }

    /// Notes that it is so, or that it is not.
    fn learn(&self, learnt: u8) {
        self.learnt.store(learnt, Ordering::Relaxed);
    }
}

impl BackendFacts {
    /// How the queues are called that the doctor's probe leaves behind, each with a number of its own.
    pub const PROBED: &str = "ojs-throttle-doctor-";

    /// A backend of which the config says this.
    pub fn new(said: &UpstreamSettings) -> BackendFacts {
        BackendFacts {
            claims_count: Trait::set(said.claims_count),
            requeue_harmless: Trait::set(said.requeue_harmless),
            worker_liveness: Trait::set(said.worker_liveness),
            from_start: Trait::set(said.heartbeat_from_start),
            ..BackendFacts::default()
        }
    }

    /// Whether handing a job out counts an attempt; assumed until a job shows otherwise, because a
    /// wrong guess in that direction costs lookahead and in the other costs jobs.
    pub fn claims_count(&self) -> bool {
        self.claims_count.known().unwrap_or(true)
    }

    /// Whether giving back with `requeue` is proven to cost nothing: where claims count, a requeue
    /// keeps the count.
    pub fn requeue_harmless(&self) -> bool {
        self.requeue_harmless
            .known()
            .unwrap_or(!self.claims_count())
    }

    /// Whether one heartbeat of a worker id is known to keep all its jobs alive.
    pub fn worker_liveness(&self) -> bool {
        self.worker_liveness.known().unwrap_or(false)
    }

    /// Whether a heartbeat is known to keep no job but those that it names. Where it is not known, a claim id that
    /// covers a held job and one that is out would keep the job of a worker that died.
    pub fn job_liveness(&self) -> bool {
        self.worker_liveness.known() == Some(false)
    }

    /// Whether subqueues are not for it: an empty queue costs each FETCH a tenth of a second or a walk over all jobs, or
    /// each name costs money or topics.
    pub fn names_cost(&self) -> bool {
        self.names_cost.known().unwrap_or(false)
    }

    /// Whether it is known what a heartbeat keeps.
    pub fn is_liveness_known(&self) -> bool {
        self.worker_liveness.known().is_some()
    }

    /// Whether a heartbeat's value counts from the job's start instead of from now.
    pub fn from_start(&self) -> bool {
        self.from_start.known().unwrap_or(false)
    }

    /// Whether a nack never discards a job that has attempts left, whatever it says.
    pub fn retries_always(&self) -> bool {
        self.retries_always.known().unwrap_or(false)
    }

    /// The second in which a claim began, where its heartbeats' value counts from there: claims of one second go
    /// together in one heartbeat, with a value that is right for all. `None`: all may go together.
    pub fn counts_from(&self, claimed_at: Timestamp) -> Option<Timestamp> {
        let second = claimed_at.0 - claimed_at.0 % 1_000_000;
        self.from_start().then_some(Timestamp(second))
    }

    /// The value to send so that a job claimed `age` ago stays ours for `visibility` from now.
    pub fn heartbeat_value(&self, visibility: Duration, age: Duration) -> Duration {
        if self.from_start() {
            visibility + age
        } else {
            visibility
        }
    }

    /// Learns from a fresh claim: attempt 0 is only seen where claims do not count.
    pub fn saw_attempt(&self, attempt: Option<u32>) {
        match (attempt, self.claims_count.known()) {
            (Some(0), known) if known != Some(false) => self.claims_count.learn(NO),
            (Some(_), None) => self.claims_count.learn(YES),
            _ => {}
        }
    }

    /// Notes what a reply to `GET /ojs/manifest` shows in place of the backend, if so.
    pub(crate) fn note_stranger(&self, reply: &Reply) -> Option<Stranger> {
        let stranger = Stranger::of(reply);
        *self.stranger.lock() = stranger;
        stranger
    }

    /// What answers in its place, as far as was seen.
    pub(crate) fn stranger(&self) -> Option<Stranger> {
        *self.stranger.lock()
    }

    /// Learns from the manifest's `implementation`: the official backends, and how two of them are unlike the rest.
    pub fn read_manifest(&self, text: &[u8]) {
        let Ok(manifest) = Json::parse(text, REPLY_DEPTH) else {
            return;
        };
        let Some(implementation) = manifest.get("implementation") else {
            return;
        };
        let name = implementation.get("name").and_then(|name| name.text());
        if name.is_some_and(|name| KEEP_NAMED.contains(&&*name)) {
            self.worker_liveness.learn(NO);
        }
        let words = [implementation.get("name"), implementation.get("backend")];
        let says = |word: &str| {
            let is = |text: &str| {
                text == word
                    || text
                        .strip_suffix(word)
                        .is_some_and(|rest| rest.ends_with('-'))
            };
            words
                .iter()
                .flatten()
                .any(|w| w.text().is_some_and(|text| is(&text)))
        };
        if NAMES_COST.iter().any(|word| says(word)) {
            self.names_cost.learn(YES);
        }
        if says("amqp") {
            self.worker_liveness.learn(YES);
            self.requeue_harmless.learn(NO);
        }
        if says("lite") {
            self.from_start.learn(YES);
            self.requeue_harmless.learn(NO);
            self.retries_always.learn(YES);
        }
    }

    /// The attempt a job had before the claim that showed `attempt`.
    pub(crate) fn before_claim(&self, attempt: u32) -> u32 {
        if self.claims_count() {
            attempt.saturating_sub(1)
        } else {
            attempt
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempt_zero_proves_that_claims_do_not_count() {
        let backend = BackendFacts::default();
        assert!(backend.claims_count() && !backend.requeue_harmless());
        backend.saw_attempt(Some(1));
        assert!(backend.claims_count());
        backend.saw_attempt(Some(0));
        backend.saw_attempt(Some(2));
        assert!(!backend.claims_count() && backend.requeue_harmless());
        assert_eq!(backend.before_claim(2), 2);
    }

    #[test]
    fn what_the_config_sets_is_not_unlearnt() {
        let backend = BackendFacts::new(&UpstreamSettings {
            claims_count: Some(true),
            requeue_harmless: Some(true),
            ..UpstreamSettings::default()
        });
        backend.saw_attempt(Some(0));
        assert!(backend.claims_count() && backend.requeue_harmless());
        backend.read_manifest(br#"{"implementation":{"name":"ojs-backend-amqp"}}"#);
        assert!(backend.worker_liveness() && backend.requeue_harmless());
    }

    #[test]
    fn only_a_backend_that_is_known_by_name_keeps_single_jobs() {
        for (name, by_job, by_worker) in [
            ("ojs-backend-redis", true, false),
            ("ojs-backend-amqp", false, true),
            ("acme-redis", false, false),
            ("acme", false, false),
        ] {
            let backend = BackendFacts::default();
            let manifest =
                format!("{{\"implementation\":{{\"name\":\"{name}\",\"backend\":\"redis\"}}}}");
            backend.read_manifest(manifest.as_bytes());
            let known = (backend.job_liveness(), backend.worker_liveness());
            assert_eq!(known, (by_job, by_worker), "{name}");
        }
    }
}
