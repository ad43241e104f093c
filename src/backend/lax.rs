//! The ways in which real backends are laxer than the OJS text, as data: one switch for each.

use std::time::Duration;

/// What a nack with `requeue` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// Available again, behind its equals in priority.
    Tail,
    /// Available again, before its equals: the next FETCH gets it.
    Head,
    /// Available again, but discarded if it was the last attempt.
    DiscardsLast,
    /// Never available: retryable with a growing delay, or discarded if it was the last attempt.
    Delays,
}

/// What keeps a claimed job from expiring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// A heartbeat that names the job: now plus its visibility.
    Job,
    /// A heartbeat only overwrites the visibility, which always counts from the start of the job.
    SinceStart,
    /// Any heartbeat of its worker keeps all its jobs.
    Worker,
}

/// How a heartbeat's reply lists what it extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// `jobs_extended` names them, and may be empty.
    Named,
    /// As `Named`, but absent when nothing was extended.
    AbsentIfNone,
    /// The request's list is echoed, whatever became of the jobs.
    Echo,
}

/// What enqueueing an id again does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicate {
    /// 409 `duplicate`.
    Refused,
    /// The new job silently takes the place of the old one.
    Overwrites,
    /// 500 `internal_error`.
    Fails,
}

/// How a backend departs from the OJS text. [`Lax::spec`] departs nowhere.
#[derive(Clone, Debug)]
pub struct Lax {
    /// Name in the manifest.
    pub name: &'static str,
    /// Value of the `OJS-Version` header.
    pub version: &'static str,
    /// `attempt` goes up at the nack instead of the FETCH, so a first FETCH shows 0.
    pub counts_at_nack: bool,
    /// What a nack with `requeue` does.
    pub requeue: Requeue,
    /// A claim that expires on the last attempt discards the job. Off: it is just available again.
    pub expiry_discards: bool,
    /// What keeps a claimed job from expiring.
    pub liveness: Liveness,
    /// A claim that has expired ends by itself. Off: the job stays active until a FETCH names its queue.
    pub reaps: bool,
    /// Heartbeats extend by whole seconds: what is left over is dropped, and less than one means 30.
    pub beats_whole_seconds: bool,
    /// ACK, nack and heartbeat with the id of another worker than the claimer are refused with 409.
    pub checks_owner: bool,
    /// Jobs that run show the id of the worker that claimed them.
    pub shows_claimer: bool,
    /// Wrong states are answered with 500 `internal_error` instead of 409 `conflict`.
    pub wrong_state_is_500: bool,
    /// The replies to ACK and nack carry the job; also, their events reach the event streams.
    pub settle_shows_job: bool,
    /// How a heartbeat's reply lists what it extended.
    pub extended: Extended,
    /// The `state` of a heartbeat's reply. `None`: `running`, or the directive where there is one.
    pub heartbeat_state: Option<&'static str>,
    /// The jobs of one FETCH reply come in any order.
    pub unordered: bool,
    /// Unknown top-level members overwrite the real members of the job that is shown.
    pub unknown_wins: bool,
    /// Member names match whatever their case, and odd ones are also kept as unknown members.
    pub folds_case: bool,
    /// How long a claim lasts where nobody says.
    pub visibility: Duration,
    /// The visibility in a FETCH is heeded.
    pub heeds_fetch_visibility: bool,
    /// The visibility in a job's options is heeded.
    pub heeds_job_visibility: bool,
    /// `retryable: false` and the patterns of non-retryable errors are heeded.
    pub heeds_non_retryable: bool,
    /// A nack of a job without `options.retry` discards it.
    pub discards_without_retry: bool,
    /// `expires_at` is heeded.
    pub heeds_expiry: bool,
    /// A job that a FETCH finds expired is counted as one of those that it asked for.
    pub counts_expired: bool,
    /// One in so many FETCHes leaves out the first job of a queue, which another transaction has locked (`SKIP LOCKED`).
    /// 0: none, as where nobody else asks.
    pub skips_locked: u32,
    /// A job that runs longer than its `timeout_ms` fails.
    pub heeds_timeout: bool,
    /// A time that cannot be read means now instead of a 400.
    pub accepts_any_time: bool,
    /// What enqueueing an id again does.
    pub duplicate: Duplicate,
    /// The admin view counts scheduled, retryable and discarded jobs. Off: zeros.
    pub counts_all: bool,
    /// Queues appear under `/ojs/v1/admin`.
    pub admin_queues: bool,
    /// Stats of a queue that nobody has used are 404 instead of zeros.
    pub unknown_queue_is_404: bool,
    /// Error code for a body that is not JSON.
    pub bad_json: &'static str,
}

impl Lax {
    /// By the OJS core text.
    pub fn spec() -> Lax {
        Lax {
            name: "ojs-throttle-dev",
            version: "1.0",
            counts_at_nack: false,
            requeue: Requeue::Tail,
            expiry_discards: true,
            liveness: Liveness::Job,
            reaps: true,
            beats_whole_seconds: false,
            checks_owner: true,
            shows_claimer: true,
            wrong_state_is_500: false,
            settle_shows_job: true,
            extended: Extended::Named,
            heartbeat_state: None,
            unordered: false,
            unknown_wins: false,
            folds_case: false,
            visibility: Duration::from_secs(30),
            heeds_fetch_visibility: true,
            heeds_job_visibility: true,
            heeds_non_retryable: true,
            discards_without_retry: false,
            heeds_expiry: true,
            counts_expired: false,
            skips_locked: 0,
            heeds_timeout: true,
            accepts_any_time: false,
            duplicate: Duplicate::Refused,
            counts_all: true,
            admin_queues: true,
            unknown_queue_is_404: false,
            bad_json: "invalid_payload",
        }
    }

    /// As the redis backend of 2026.
    pub fn redis() -> Lax {
        Lax {
            name: "ojs-backend-redis",
            version: "1.0.0-rc.1",
            counts_at_nack: true,
            expiry_discards: false,
            checks_owner: false,
            extended: Extended::AbsentIfNone,
            heartbeat_state: Some("active"),
            unknown_wins: true,
            folds_case: true,
            counts_expired: true,
            heeds_timeout: false,
            accepts_any_time: true,
            duplicate: Duplicate::Overwrites,
            counts_all: false,
            bad_json: "invalid_request",
            ..Lax::spec()
        }
    }

    /// As the postgres backend of 2026.
    pub fn postgres() -> Lax {
        Lax {
            name: "ojs-backend-postgres",
            requeue: Requeue::Head,
            wrong_state_is_500: true,
            unordered: true,
            counts_expired: false,
            duplicate: Duplicate::Fails,
            counts_all: true,
            ..Lax::redis()
        }
    }

    /// As the in-memory "lite" backend of 2026.
    pub fn lite() -> Lax {
        Lax {
            name: "ojs-backend-lite",
            counts_at_nack: false,
            requeue: Requeue::DiscardsLast,
            liveness: Liveness::SinceStart,
            settle_shows_job: false,
            heeds_job_visibility: false,
            heeds_non_retryable: false,
            heeds_expiry: false,
            counts_all: true,
            ..Lax::redis()
        }
    }

    /// As the AMQP backend of 2026.
    pub fn amqp() -> Lax {
        Lax {
            name: "ojs-backend-amqp",
            counts_at_nack: false,
            requeue: Requeue::Delays,
            liveness: Liveness::Worker,
            extended: Extended::Echo,
            heartbeat_state: Some("running"),
            heeds_fetch_visibility: false,
            heeds_non_retryable: false,
            discards_without_retry: true,
            heeds_expiry: false,
            duplicate: Duplicate::Refused,
            counts_all: true,
            admin_queues: false,
            unknown_queue_is_404: true,
            ..Lax::redis()
        }
    }
}
