//! The backend's state, and the only places where it changes.

pub(super) mod claims;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::event::{Event, EventKind, PhaseChange};
use super::job::{PHASES, Phase, ShownJob, StoredJob};
use super::lax::{Duplicate, Lax, Liveness, Requeue};
use super::retry::JobError;
use super::wire::{ErrorReply, WallClock};

/// How many finished jobs are kept for readers; older ones are forgotten.
const KEPT_JOBS: usize = 100_000;
/// How many events are kept; older ones are forgotten.
const KEPT_EVENTS: usize = 1_000_000;

/// Priority, then order of arrival.
type Rank = (Reverse<i32>, u64);

/// One queue.
#[derive(Debug)]
pub(super) struct JobQueue {
    pub paused: bool,
    pub created: Instant,
    ready: BTreeMap<Rank, u64>,
    counts: [usize; PHASES],
}

impl JobQueue {
    /// How many of its jobs are in `phase`.
    pub(super) fn count(&self, phase: Phase) -> usize {
        self.counts.get(phase as usize).copied().unwrap_or(0)
    }
}

/// All state, under one lock.
#[derive(Debug)]
pub(super) struct BackendState {
    pub lax: Lax,
    pub clock: WallClock,
    /// Jobs by number, in the order in which they came.
    jobs: BTreeMap<u64, StoredJob>,
    ids: HashMap<Arc<str>, u64>,
    pub queues: BTreeMap<Arc<str>, JobQueue>,
    due: BTreeSet<(Instant, u64)>,
    /// The last sign of life of each worker, used where liveness is keyed by worker.
    seen: HashMap<Arc<str>, Instant>,
    finished: VecDeque<u64>,
    last: u64,
    random: SmallRng,
    pub ledger: VecDeque<Event>,
    changes: broadcast::Sender<PhaseChange>,
}

impl BackendState {
    pub(super) fn new(
        lax: Lax,
        clock: WallClock,
        seed: u64,
        changes: broadcast::Sender<PhaseChange>,
    ) -> BackendState {
        BackendState {
            lax,
            clock,
            jobs: BTreeMap::new(),
            ids: HashMap::new(),
            queues: BTreeMap::new(),
            due: BTreeSet::new(),
            seen: HashMap::new(),
            finished: VecDeque::new(),
            last: 0,
            random: SmallRng::seed_from_u64(seed),
            ledger: VecDeque::new(),
            changes,
        }
    }

    /// Forgets everything except the numbering.
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.ids.clear();
        self.queues.clear();
        self.due.clear();
        self.seen.clear();
        self.finished.clear();
        self.ledger.clear();
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A job id that sorts by time of making.
    pub(super) fn fresh_id(&mut self, now: Instant) -> String {
        let mut tail: [u8; 10] = self.random.random();
        // The 12 bits after the version count on, so that ids of one millisecond sort too.
        let [_, _, _, _, _, _, high, low] = self.next().to_be_bytes();
        tail[0] = high & 0x0f;
        tail[1] = low;
        uuid::Builder::from_unix_timestamp_millis(self.clock.unix_ms(now), &tail)
            .into_uuid()
            .to_string()
    }

    pub(super) fn queue(&mut self, name: &str, now: Instant) -> &mut JobQueue {
        self.queues.entry(name.into()).or_insert_with(|| JobQueue {
            paused: false,
            created: now,
            ready: BTreeMap::new(),
            counts: [0; PHASES],
        })
    }

    pub(super) fn find(&self, id: &str) -> Result<(u64, &StoredJob), ErrorReply> {
        let number = self.ids.get(id);
        let found = number.and_then(|number| Some((*number, self.jobs.get(number)?)));
        found.ok_or_else(|| ErrorReply::not_found(format!("Job '{id}' not found.")))
    }

    pub(super) fn view(&self, number: u64) -> Option<ShownJob<'_>> {
        self.jobs.get(&number).map(|job| self.shown(job))
    }

    fn shown<'a>(&'a self, job: &'a StoredJob) -> ShownJob<'a> {
        ShownJob {
            job,
            clock: &self.clock,
            shows_claimer: self.lax.shows_claimer,
        }
    }

    /// The jobs of which this is true.
    pub(super) fn views(&self, fits: impl Fn(&StoredJob) -> bool) -> Vec<ShownJob<'_>> {
        let jobs = self.jobs.values().filter(|job| fits(job));
        jobs.map(|job| self.shown(job)).collect()
    }

    /// Adds a line to the ledger.
    fn note(&mut self, number: u64, kind: EventKind, now: Instant) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        let event = Event {
            kind,
            job: job.id.clone(),
            job_type: job.kind.clone(),
            queue: job.queue.clone(),
            worker: job.worker.clone(),
            attempt: job.attempt,
            priority: job.priority,
            at: self.clock.since_start(now),
            ran: job
                .started
                .map(|started| now.saturating_duration_since(started)),
        };
        self.ledger.push_back(event);
        if self.ledger.len() > KEPT_EVENTS {
            self.ledger.pop_front();
        }
    }

    /// Tells the event streams of a change. Nobody may be listening.
    fn tell(&self, number: u64, from: Option<Phase>, now: Instant) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        let _ = self.changes.send(PhaseChange {
            job: job.id.clone(),
            job_type: job.kind.clone(),
            queue: job.queue.clone(),
            from,
            to: job.phase,
            at: self.clock.print(now),
        });
    }

    /// Takes the job out of every index, changes it, and puts it back.
    fn change(&mut self, number: u64, edit: impl FnOnce(&mut StoredJob)) {
        self.unlink(number);
        if let Some(job) = self.jobs.get_mut(&number) {
            edit(job);
        }
        self.link(number);
    }

    fn link(&mut self, number: u64) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        if let Some(at) = job.due {
            self.due.insert((at, number));
        }
        if job.phase.terminal() {
            self.finished.push_back(number);
        }
        if let Some(queue) = self.queues.get_mut(&job.queue) {
            if let Some(count) = queue.counts.get_mut(job.phase as usize) {
                *count += 1;
            }
            if job.phase == Phase::Available {
                queue
                    .ready
                    .insert((Reverse(job.priority), job.order), number);
            }
        }
    }

    fn unlink(&mut self, number: u64) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        if let Some(at) = job.due {
            self.due.remove(&(at, number));
        }
        if let Some(queue) = self.queues.get_mut(&job.queue) {
            if let Some(count) = queue.counts.get_mut(job.phase as usize) {
                *count = count.saturating_sub(1);
            }
            queue.ready.remove(&(Reverse(job.priority), job.order));
        }
    }

    /// Forgets a job.
    fn remove(&mut self, number: u64) {
        self.unlink(number);
        if let Some(job) = self.jobs.remove(&number) {
            self.ids.remove(&job.id);
        }
    }

    /// Stores checked jobs, all or none.
    pub(super) fn store(
        &mut self,
        jobs: Vec<StoredJob>,
        now: Instant,
    ) -> Result<Vec<u64>, ErrorReply> {
        let mut new = BTreeSet::new();
        for (index, job) in jobs.iter().enumerate() {
            let known = self.ids.contains_key(&job.id) || !new.insert(job.id.clone());
            let refusal = match self.lax.duplicate {
                _ if !known => continue,
                Duplicate::Overwrites => continue,
                Duplicate::Refused => {
                    ErrorReply::new(409, "duplicate", format!("Job '{}' exists.", job.id))
                }
                Duplicate::Fails => ErrorReply::new(
                    500,
                    "internal_error",
                    "duplicate key value (SQLSTATE 23505)",
                ),
            };
            return Err(ErrorReply {
                index: Some(index),
                ..refusal
            });
        }
        Ok(jobs.into_iter().map(|job| self.insert(job, now)).collect())
    }

    fn insert(&mut self, mut job: StoredJob, now: Instant) -> u64 {
        if let Some(old) = self.ids.get(&job.id).copied() {
            self.remove(old);
        }
        let number = self.next();
        job.order = number;
        let queue = job.queue.clone();
        self.queue(&queue, now);
        self.ids.insert(job.id.clone(), number);
        self.jobs.insert(number, job);
        self.link(number);
        self.note(number, EventKind::Stored, now);
        self.tell(number, None, now);
        self.forget_old();
        number
    }

    fn forget_old(&mut self) {
        while self.finished.len() > KEPT_JOBS {
            let Some(number) = self.finished.pop_front() else {
                return;
            };
            if self
                .jobs
                .get(&number)
                .is_some_and(|job| job.phase.terminal())
            {
                self.remove(number);
            }
        }
    }

    /// Does what is due: scheduled jobs become available, claims expire.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.due.first() {
            if at > now {
                return;
            }
            match self.jobs.get(&number).map(|job| job.phase) {
                // It waits for a FETCH of its queue.
                Some(Phase::Active) if !self.lax.reaps => drop(self.due.remove(&(at, number))),
                Some(Phase::Active) => self.lapse(number, now),
                _ => self.make_available(number, EventKind::Promoted, now),
            }
        }
    }

    /// Makes a job available again. Requeued at the head it keeps its place in the order, at the tail it takes a new
    /// one.
    fn make_available(&mut self, number: u64, kind: EventKind, now: Instant) {
        let order = (self.lax.requeue != Requeue::Head).then(|| self.next());
        self.note(number, kind, now);
        self.change(number, |job| {
            job.phase = Phase::Available;
            job.due = None;
            job.worker = None;
            job.order = order.unwrap_or(job.order);
        });
    }

    /// Ends a claim whose deadline has passed.
    fn lapse(&mut self, number: u64, now: Instant) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        if let Some(until) = self.alive_until(job).filter(|until| *until > now) {
            return self.change(number, |job| job.due = Some(until));
        }
        let ran_out = self.lax.heeds_timeout
            && matches!((job.started, job.timeout), (Some(started), Some(timeout)) if started + timeout <= now);
        let exhausted = job.attempt >= job.max_attempts();
        if ran_out {
            self.note(number, EventKind::Expired, now);
            let error = JobError {
                code: "timeout".into(),
                kind: "timeout".into(),
                message: "The job ran longer than its timeout_ms.".into(),
                ..JobError::default()
            };
            self.fail(number, error, now);
        } else if exhausted && self.lax.expiry_discards {
            self.note(number, EventKind::Expired, now);
            self.discard(number, now);
        } else {
            self.make_available(number, EventKind::Expired, now);
        }
    }

    /// Until when a sign of life of its worker keeps the job, where liveness is keyed by worker.
    fn alive_until(&self, job: &StoredJob) -> Option<Instant> {
        match self.lax.liveness {
            Liveness::Worker => Some(*self.seen.get(job.worker.as_ref()?)? + job.lease),
            Liveness::Job | Liveness::SinceStart => None,
        }
    }
}
