//! What the backend knows, and the only places where it changes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use tokio::sync::broadcast;
use tokio::time::Instant;

use super::job::{Clock, Failure, Job, PHASES, Phase, Raw, Refusal, View};
use super::{Change, Duplicate, Event, EventKind, Extended, Lax, Liveness, Requeue};

/// Visibility where nobody names one.
const VISIBILITY: Duration = Duration::from_secs(30);
/// Finished jobs that are kept for those who ask; older ones are forgotten.
const KEPT_JOBS: usize = 100_000;
/// Events that are kept; older ones are forgotten.
const KEPT_EVENTS: usize = 1_000_000;

/// Priority, then order of arrival.
type Rank = (Reverse<i32>, u64);

/// One queue.
#[derive(Debug)]
pub(super) struct Queue {
    pub paused: bool,
    pub created: Instant,
    ready: BTreeMap<Rank, u64>,
    counts: [usize; PHASES],
}

impl Queue {
    /// How many of its jobs are in `phase`.
    pub(super) fn count(&self, phase: Phase) -> usize {
        self.counts.get(phase as usize).copied().unwrap_or(0)
    }
}

/// What a FETCH asks for.
#[derive(Debug)]
pub(super) struct Fetch {
    pub queues: Vec<String>,
    pub count: usize,
    pub worker: Option<Arc<str>>,
    pub visibility: Option<Duration>,
}

/// What a heartbeat did.
#[derive(Debug, Default)]
pub(super) struct Beat {
    pub extended: Vec<String>,
    pub directive: Option<String>,
}

/// Everything, under one lock.
#[derive(Debug)]
pub(super) struct State {
    pub lax: Lax,
    pub clock: Clock,
    /// Jobs by number, in the order in which they came.
    jobs: BTreeMap<u64, Job>,
    ids: HashMap<Arc<str>, u64>,
    pub queues: BTreeMap<Arc<str>, Queue>,
    due: BTreeSet<(Instant, u64)>,
    /// Last sign of life by worker; used where liveness is keyed by worker.
    seen: HashMap<Arc<str>, Instant>,
    finished: VecDeque<u64>,
    last: u64,
    random: SmallRng,
    pub ledger: VecDeque<Event>,
    changes: broadcast::Sender<Change>,
}

impl State {
    pub(super) fn new(
        lax: Lax,
        clock: Clock,
        seed: u64,
        changes: broadcast::Sender<Change>,
    ) -> State {
        State {
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

    /// Forgets everything but the numbering.
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

    pub(super) fn queue(&mut self, name: &str, now: Instant) -> &mut Queue {
        self.queues.entry(name.into()).or_insert_with(|| Queue {
            paused: false,
            created: now,
            ready: BTreeMap::new(),
            counts: [0; PHASES],
        })
    }

    pub(super) fn find(&self, id: &str) -> Result<(u64, &Job), Refusal> {
        let found = self
            .ids
            .get(id)
            .and_then(|number| Some((*number, self.jobs.get(number)?)));
        found.ok_or_else(|| Refusal::new(404, "not_found", format!("Job '{id}' not found.")))
    }

    pub(super) fn view(&self, number: u64) -> Option<View<'_>> {
        self.jobs.get(&number).map(|job| View {
            job,
            clock: &self.clock,
        })
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values()
    }

    /// Writes the ledger.
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

    /// Tells the event streams, who may be nobody.
    fn tell(&self, number: u64, from: Option<Phase>, now: Instant) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        let _ = self.changes.send(Change {
            job: job.id.clone(),
            job_type: job.kind.clone(),
            queue: job.queue.clone(),
            from: from.map(Phase::name),
            to: job.phase.name(),
            done: job.phase.terminal(),
            at: self.clock.print(now),
        });
    }

    /// Takes the job out of every index, changes it, and puts it back.
    fn change(&mut self, number: u64, edit: impl FnOnce(&mut Job)) {
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
    pub(super) fn store(&mut self, jobs: Vec<Job>, now: Instant) -> Result<Vec<u64>, Refusal> {
        let mut new = BTreeSet::new();
        for (index, job) in jobs.iter().enumerate() {
            let known = self.ids.contains_key(&job.id) || !new.insert(job.id.clone());
            let refusal = match self.lax.duplicate {
                _ if !known => continue,
                Duplicate::Overwrites => continue,
                Duplicate::Refused => {
                    Refusal::new(409, "duplicate", format!("Job '{}' exists.", job.id))
                }
                Duplicate::Fails => Refusal::new(
                    500,
                    "internal_error",
                    "duplicate key value (SQLSTATE 23505)",
                ),
            };
            return Err(Refusal {
                index: Some(index),
                ..refusal
            });
        }
        Ok(jobs.into_iter().map(|job| self.insert(job, now)).collect())
    }

    fn insert(&mut self, mut job: Job, now: Instant) -> u64 {
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

    /// Does all that time does: what is scheduled becomes available, what is claimed expires.
    pub(super) fn tick(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.due.first() {
            if at > now {
                return;
            }
            match self.jobs.get(&number).map(|job| job.phase) {
                Some(Phase::Active) => self.lapse(number, now),
                _ => self.make_available(number, EventKind::Promoted, now),
            }
        }
    }

    /// Back among the available ones; the head keeps its place in the order, the tail takes a new one.
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

    /// The deadline of an active job has passed.
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
            let error = Failure {
                code: "timeout".into(),
                kind: "timeout".into(),
                message: "The job ran longer than its timeout_ms.".into(),
                ..Failure::default()
            };
            self.fail(number, error, now);
        } else if exhausted && self.lax.expiry_discards {
            self.note(number, EventKind::Expired, now);
            self.discard(number, now);
        } else {
            self.make_available(number, EventKind::Expired, now);
        }
    }

    /// Until when a sign of life of its worker keeps the job, where any does.
    fn alive_until(&self, job: &Job) -> Option<Instant> {
        match self.lax.liveness {
            Liveness::Worker => Some(*self.seen.get(job.worker.as_ref()?)? + job.lease),
            Liveness::Job | Liveness::SinceStart => None,
        }
    }

    /// Claims up to `count` jobs: queues left to right, then priority, then order of arrival.
    pub(super) fn fetch(&mut self, fetch: &Fetch, now: Instant) -> Vec<u64> {
        let mut claimed = Vec::new();
        for name in &fetch.queues {
            while claimed.len() < fetch.count {
                let queue = self.queues.get(name.as_str()).filter(|queue| !queue.paused);
                let Some(number) = queue.and_then(|queue| queue.ready.values().next().copied())
                else {
                    break;
                };
                let expired = self
                    .jobs
                    .get(&number)
                    .and_then(|job| job.expires.as_ref())
                    .is_some_and(|w| w.at <= now);
                if expired && self.lax.heeds_expiry {
                    self.end(number, Phase::Discarded, EventKind::Discarded, now);
                    continue;
                }
                self.claim(number, fetch, now);
                claimed.push(number);
            }
        }
        if let Some(worker) = &fetch.worker {
            self.seen.insert(worker.clone(), now);
        }
        if self.lax.unordered {
            claimed.shuffle(&mut self.random);
        }
        claimed
    }

    fn claim(&mut self, number: u64, fetch: &Fetch, now: Instant) {
        let asked = fetch.visibility.filter(|_| self.lax.heeds_fetch_visibility);
        let (by_job, by_time) = (self.lax.heeds_job_visibility, self.lax.heeds_timeout);
        let counts = u32::from(!self.lax.counts_at_nack);
        self.change(number, |job| {
            job.lease = asked
                .or(job.visibility.filter(|_| by_job))
                .unwrap_or(VISIBILITY);
            job.phase = Phase::Active;
            job.attempt += counts;
            job.started = Some(now);
            job.worker = fetch.worker.clone();
            job.due = Some(deadline(job, now, by_time));
        });
        self.note(number, EventKind::Claimed, now);
        self.tell(number, Some(Phase::Available), now);
    }

    /// An active job of `worker`, or why it is not.
    fn active(&self, id: &str, worker: Option<&str>, verb: &str) -> Result<u64, Refusal> {
        let (number, job) = self.find(id)?;
        if job.phase != Phase::Active {
            return Err(self.wrong_state(
                format!("Cannot {verb} job not in 'active' state."),
                job.phase,
            ));
        }
        match self.is_foreign(job, worker) {
            true => Err(not_yours(verb)),
            false => Ok(number),
        }
    }

    /// Claimed by another worker than the one that speaks, where both have a name.
    fn is_foreign(&self, job: &Job, worker: Option<&str>) -> bool {
        let named = worker.zip(job.worker.as_deref());
        self.lax.checks_owner && named.is_some_and(|(speaker, claimer)| speaker != claimer)
    }

    fn wrong_state(&self, message: String, phase: Phase) -> Refusal {
        let message = format!("{message} Current state: '{}'.", phase.name());
        match self.lax.wrong_state_is_500 {
            true => Refusal::new(
                500,
                "internal_error",
                format!("[invalid_request] {message}"),
            ),
            false => Refusal::new(409, "conflict", message),
        }
    }

    /// ACK.
    pub(super) fn ack(
        &mut self,
        id: &str,
        worker: Option<&str>,
        result: Option<Raw>,
        now: Instant,
    ) -> Result<u64, Refusal> {
        let number = self.active(id, worker, "acknowledge")?;
        self.note(number, EventKind::Acked, now);
        self.change(number, |job| {
            job.phase = Phase::Completed;
            job.completed = Some(now);
            job.due = None;
            job.delay = None;
            job.result = result;
        });
        if self.lax.settle_shows_job {
            self.tell(number, Some(Phase::Active), now);
        }
        Ok(number)
    }

    /// Nack, with or without `requeue`.
    pub(super) fn nack(
        &mut self,
        id: &str,
        worker: Option<&str>,
        error: Failure,
        requeue: bool,
        now: Instant,
    ) -> Result<u64, Refusal> {
        let number = self.active(id, worker, "fail")?;
        match requeue {
            true => self.requeue(number, now),
            false => {
                self.note(number, EventKind::Nacked, now);
                self.fail(number, error, now);
            }
        }
        if self.lax.settle_shows_job {
            self.tell(number, Some(Phase::Active), now);
        }
        Ok(number)
    }

    fn requeue(&mut self, number: u64, now: Instant) {
        let Some(job) = self.jobs.get(&number) else {
            return;
        };
        let exhausted = job.attempt >= job.max_attempts();
        match self.lax.requeue {
            Requeue::DiscardsLast | Requeue::Delays if exhausted => {
                self.note(number, EventKind::Requeued, now);
                self.discard(number, now);
            }
            Requeue::Delays => {
                let seconds = 1u64 << job.attempt.saturating_sub(1).min(6);
                self.note(number, EventKind::Requeued, now);
                self.retry_after(number, Duration::from_secs(seconds.min(60)), now);
            }
            Requeue::Tail | Requeue::Head | Requeue::DiscardsLast => {
                self.make_available(number, EventKind::Requeued, now);
            }
        }
    }

    /// An attempt ended in `error`: another one later, or the end.
    fn fail(&mut self, number: u64, mut error: Failure, now: Instant) {
        let counts = u32::from(self.lax.counts_at_nack);
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        job.attempt += counts;
        error.attempt = job.attempt;
        error.at = self.clock.print(now);
        let retry = job.retry.as_ref();
        let fatal = self.lax.heeds_non_retryable
            && (error.retryable == Some(false)
                || retry.is_some_and(|retry| retry.is_fatal(&error)));
        let never = self.lax.discards_without_retry && retry.is_none();
        let wait = match retry {
            Some(retry) => retry.delay(job.attempt),
            None => super::job::Retry::default().delay(job.attempt),
        };
        let jitter = retry.is_none_or(|retry| retry.jitter);
        job.errors.push(error);
        if fatal || never || job.attempt >= job.max_attempts() {
            return self.discard(number, now);
        }
        let factor = if jitter {
            self.random.random_range(0.5..1.5)
        } else {
            1.0
        };
        self.retry_after(number, wait.mul_f64(factor), now);
    }

    fn retry_after(&mut self, number: u64, wait: Duration, now: Instant) {
        self.change(number, |job| {
            job.phase = Phase::Retryable;
            job.delay = Some(wait);
            job.due = Some(now + wait);
        });
    }

    /// Attempts are spent, or another one is of no use.
    fn discard(&mut self, number: u64, now: Instant) {
        let lite = self.lax.requeue == Requeue::DiscardsLast;
        self.end(number, Phase::Discarded, EventKind::Discarded, now);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.completed = Some(now);
            job.dead = lite || job.retry.as_ref().is_some_and(|retry| retry.keeps_dead);
        }
    }

    fn end(&mut self, number: u64, phase: Phase, kind: EventKind, now: Instant) {
        self.note(number, kind, now);
        self.change(number, |job| {
            job.phase = phase;
            job.due = None;
        });
    }

    /// Cancels a job that has not ended.
    pub(super) fn cancel(&mut self, id: &str, now: Instant) -> Result<u64, Refusal> {
        let (number, job) = self.find(id)?;
        let from = job.phase;
        if from.terminal() {
            return Err(self.wrong_state("Cannot cancel a job that has ended.".into(), from));
        }
        self.end(number, Phase::Cancelled, EventKind::Cancelled, now);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.cancelled = Some(now);
        }
        self.tell(number, Some(from), now);
        Ok(number)
    }

    /// A fresh life for a job that waits or has ended; `dead` asks for one of the dead-letter list.
    pub(super) fn revive(&mut self, id: &str, dead: bool, now: Instant) -> Result<u64, Refusal> {
        let (number, job) = self.find(id)?;
        if dead && !job.dead {
            return Err(Refusal::new(
                404,
                "not_found",
                format!("Job '{id}' is not in the dead-letter list."),
            ));
        }
        if matches!(
            job.phase,
            Phase::Active | Phase::Available | Phase::Scheduled
        ) {
            return Err(self.wrong_state("Cannot retry this job.".into(), job.phase));
        }
        self.make_available(number, EventKind::Revived, now);
        if let Some(job) = self.jobs.get_mut(&number) {
            job.attempt = 0;
            job.dead = false;
            (job.completed, job.cancelled, job.delay) = (None, None, None);
            job.errors.clear();
        }
        Ok(number)
    }

    /// Deletes a job of the dead-letter list.
    pub(super) fn bury(&mut self, id: &str) -> Result<(), Refusal> {
        let (number, job) = self.find(id)?;
        if !job.dead {
            return Err(Refusal::new(
                404,
                "not_found",
                format!("Job '{id}' is not in the dead-letter list."),
            ));
        }
        self.remove(number);
        Ok(())
    }

    /// Heartbeat. It is refused if all it could extend is another worker's.
    pub(super) fn beat(
        &mut self,
        worker: &str,
        named: Vec<String>,
        visibility: Option<Duration>,
        now: Instant,
    ) -> Result<Beat, Refusal> {
        self.seen.insert(worker.into(), now);
        let visibility = visibility.unwrap_or(VISIBILITY);
        let mut beat = Beat::default();
        let mut foreign = false;
        for id in &named {
            let Some((number, job)) = self
                .find(id)
                .ok()
                .filter(|(_, job)| job.phase == Phase::Active)
            else {
                continue;
            };
            if self.is_foreign(job, Some(worker)) {
                foreign = true;
                continue;
            }
            let directive = self.extend(number, visibility, now);
            beat.directive = beat.directive.or(directive);
            beat.extended.push(id.clone());
        }
        if foreign && beat.extended.is_empty() {
            return Err(not_yours("extend"));
        }
        if self.lax.extended == Extended::Echo {
            beat.extended = named;
        }
        Ok(beat)
    }

    /// Extends a claim by a heartbeat; what its job wants the worker to be told.
    fn extend(&mut self, number: u64, visibility: Duration, now: Instant) -> Option<String> {
        let (liveness, by_time) = (self.lax.liveness, self.lax.heeds_timeout);
        self.change(number, |job| match liveness {
            Liveness::Worker => {}
            Liveness::Job => {
                job.lease = visibility;
                job.due = Some(deadline(job, now, by_time));
            }
            Liveness::SinceStart => {
                job.lease = visibility;
                job.due = Some(deadline(job, job.started.unwrap_or(now), by_time));
            }
        });
        self.note(number, EventKind::Extended, now);
        self.jobs.get(&number)?.directive.clone()
    }
}

fn not_yours(verb: &str) -> Refusal {
    Refusal::new(
        409,
        "conflict",
        format!("Cannot {verb} a job that another worker has claimed."),
    )
}

/// When an active job ends by itself: at the end of its claim, or of its time to run.
fn deadline(job: &Job, since: Instant, by_time: bool) -> Instant {
    let end = since + job.lease;
    match (job.started, job.timeout) {
        (Some(started), Some(timeout)) if by_time => end.min(started + timeout),
        _ => end,
    }
}
