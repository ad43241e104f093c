//! What workers and admins do to jobs: claim, settle, extend, cancel, revive.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom;
use tokio::time::Instant;

use super::BackendState;
use crate::event::EventKind;
use crate::job::{Phase, StoredJob};
use crate::lax::{Extended, Liveness, Requeue};
use crate::retry::{JobError, Retry};
use crate::wire::{ErrorReply, Raw};

/// A FETCH request.
#[derive(Debug)]
pub(crate) struct FetchRequest {
    pub queues: Vec<String>,
    pub count: usize,
    pub worker: Option<Arc<str>>,
    pub visibility: Option<Duration>,
}

impl BackendState {
    /// Claims up to `count` jobs: queues left to right, then priority, then order of arrival.
    pub(crate) fn fetch(&mut self, fetch: &FetchRequest, now: Instant) -> Vec<u64> {
        self.reap(&fetch.queues, now);
        let (mut claimed, mut expired_ones) = (Vec::new(), 0);
        for name in &fetch.queues {
            let locked = usize::from(self.is_locked());
            while claimed.len() + expired_ones < fetch.count {
                let queue = self.queues.get(name.as_str()).filter(|queue| !queue.paused);
                let mut ready = queue.into_iter().flat_map(|queue| queue.ready.values());
                let Some(number) = ready.nth(locked).copied() else {
                    break;
                };
                let expired = self
                    .jobs
                    .get(&number)
                    .and_then(|job| job.expires.as_ref())
                    .is_some_and(|w| w.at <= now);
                if expired && self.lax.heeds_expiry {
                    self.end(number, Phase::Discarded, EventKind::Discarded, now);
                    expired_ones += usize::from(self.lax.counts_expired);
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

    /// Whether the first job of a queue is locked now.
    fn is_locked(&mut self) -> bool {
        let one_in = self.lax.skips_locked;
        one_in > 0 && self.random.random_ratio(1, one_in)
    }

    /// Ends the expired claims of these queues, where claims do not end by themselves.
    fn reap(&mut self, queues: &[String], now: Instant) {
        if self.lax.reaps {
            return;
        }
        let is_over = |job: &StoredJob| {
            job.phase == Phase::Active
                && job.due.is_some_and(|due| due <= now)
                && queues.iter().any(|name| **name == *job.queue)
        };
        let jobs = self.jobs.iter().filter(|(_, job)| is_over(job));
        let over: Vec<u64> = jobs.map(|(number, _)| *number).collect();
        over.into_iter().for_each(|number| self.lapse(number, now));
    }

    fn claim(&mut self, number: u64, fetch: &FetchRequest, now: Instant) {
        let asked = fetch.visibility.filter(|_| self.lax.heeds_fetch_visibility);
        let (by_job, by_time) = (self.lax.heeds_job_visibility, self.lax.heeds_timeout);
        let default = self.lax.visibility;
        let counts = u32::from(!self.lax.counts_at_nack);
        self.change(number, |job| {
            job.lease = asked
                .or(job.visibility.filter(|_| by_job))
                .unwrap_or(default);
            job.phase = Phase::Active;
            job.attempt += counts;
            job.started = Some(now);
            job.worker = fetch.worker.clone();
            job.due = Some(deadline(job, now, job.timeout.filter(|_| by_time)));
        });
        self.note(number, EventKind::Claimed, now);
        self.tell(number, Some(Phase::Available), now);
    }

    /// The number of an active job of `worker`, or why there is none.
    fn active(&self, id: &str, worker: Option<&str>, verb: &str) -> Result<u64, ErrorReply> {
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

    /// Whether another worker than the speaker has claimed it, where both have a name.
    fn is_foreign(&self, job: &StoredJob, worker: Option<&str>) -> bool {
        let named = worker.zip(job.worker.as_deref());
        self.lax.checks_owner && named.is_some_and(|(speaker, claimer)| speaker != claimer)
    }

    fn wrong_state(&self, message: String, phase: Phase) -> ErrorReply {
        let message = format!("{message} Current state: '{}'.", phase.name());
        match self.lax.wrong_state_is_500 {
            true => ErrorReply::new(
                500,
                "internal_error",
                format!("[invalid_request] {message}"),
            ),
            false => ErrorReply::new(409, "conflict", message),
        }
    }

    /// ACK.
    pub(crate) fn ack(
        &mut self,
        id: &str,
        worker: Option<&str>,
        result: Option<Raw>,
        now: Instant,
    ) -> Result<u64, ErrorReply> {
        let number = self.active(id, worker, "acknowledge")?;
        self.note(number, EventKind::Acked, now);
        self.change(number, |job| {
            job.phase = Phase::Completed;
            job.completed = Some(now);
            job.due = None;
            job.delay = None;
            job.result = result;
        });
        self.tell_settled(number, now);
        Ok(number)
    }

    /// Nack; without an error it gives the job back (`requeue`).
    pub(crate) fn nack(
        &mut self,
        id: &str,
        worker: Option<&str>,
        error: Option<JobError>,
        now: Instant,
    ) -> Result<u64, ErrorReply> {
        let number = self.active(id, worker, "fail")?;
        match error {
            None => self.requeue(number, now),
            Some(error) => {
                self.note(number, EventKind::Nacked, now);
                self.fail(number, error, now);
            }
        }
        self.tell_settled(number, now);
        Ok(number)
    }

    /// Tells the event streams of an ACK or nack, where such a backend does.
    fn tell_settled(&self, number: u64, now: Instant) {
        if self.lax.settle_shows_job {
            self.tell(number, Some(Phase::Active), now);
        }
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

    /// Ends an attempt in `error`: another attempt follows later, or the job ends.
    pub(crate) fn fail(&mut self, number: u64, mut error: JobError, now: Instant) {
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
            None => Retry::default().delay(job.attempt),
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
            job.worker = None;
            job.delay = Some(wait);
            job.due = Some(now + wait);
        });
    }

    /// Discards a job whose attempts are spent, or for which another attempt is no use.
    pub(crate) fn discard(&mut self, number: u64, now: Instant) {
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
    pub(crate) fn cancel(&mut self, id: &str, now: Instant) -> Result<u64, ErrorReply> {
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

    /// Gives a job of the dead-letter list a fresh life.
    pub(crate) fn revive_dead(&mut self, id: &str, now: Instant) -> Result<u64, ErrorReply> {
        self.find_dead(id)?;
        self.revive(id, now)
    }

    /// Gives a job that waits or has ended a fresh life.
    pub(crate) fn revive(&mut self, id: &str, now: Instant) -> Result<u64, ErrorReply> {
        let (number, job) = self.find(id)?;
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
    pub(crate) fn bury(&mut self, id: &str) -> Result<(), ErrorReply> {
        let number = self.find_dead(id)?;
        self.remove(number);
        Ok(())
    }

    fn find_dead(&self, id: &str) -> Result<u64, ErrorReply> {
        match self.find(id)? {
            (number, job) if job.dead => Ok(number),
            _ => Err(ErrorReply::not_found(format!(
                "Job '{id}' is not in the dead-letter list."
            ))),
        }
    }

    /// Heartbeat: the jobs that it extended, and the directive of the first that has one. It is refused if another worker
    /// has claimed all the jobs it could extend.
    pub(crate) fn beat(
        &mut self,
        worker: &str,
        named: Vec<String>,
        visibility: Option<Duration>,
        now: Instant,
    ) -> Result<(Vec<String>, Option<String>), ErrorReply> {
        self.seen.insert(worker.into(), now);
        let visibility = visibility.unwrap_or(self.lax.visibility);
        let (mut extended, mut directive, mut foreign) = (Vec::new(), None, false);
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
            let own = self.extend(number, visibility, now);
            directive = directive.or(own);
            extended.push(id.clone());
        }
        if foreign && extended.is_empty() {
            return Err(not_yours("extend"));
        }
        if self.lax.extended == Extended::Echo {
            extended = named;
        }
        Ok((extended, directive))
    }

    /// Extends a claim by a heartbeat. Returns the job's directive for its worker.
    fn extend(&mut self, number: u64, visibility: Duration, now: Instant) -> Option<String> {
        let (liveness, by_time) = (self.lax.liveness, self.lax.heeds_timeout);
        let visibility = match (self.lax.beats_whole_seconds, visibility.as_secs()) {
            (false, _) => visibility,
            (true, 0) => self.lax.visibility,
            (true, seconds) => Duration::from_secs(seconds),
        };
        self.change(number, |job| {
            let since = match liveness {
                Liveness::Worker => return,
                Liveness::Job => now,
                Liveness::SinceStart => job.started.unwrap_or(now),
            };
            job.lease = visibility;
            job.due = Some(deadline(job, since, job.timeout.filter(|_| by_time)));
        });
        self.note(number, EventKind::Extended, now);
        self.jobs.get(&number)?.directive.clone()
    }
}

fn not_yours(verb: &str) -> ErrorReply {
    ErrorReply::new(
        409,
        "conflict",
        format!("Cannot {verb} a job that another worker has claimed."),
    )
}

/// When an active job ends by itself: at the end of its claim, or of its time to run.
fn deadline(job: &StoredJob, since: Instant, timeout: Option<Duration>) -> Instant {
    let end = since + job.lease;
    match (job.started, timeout) {
        (Some(started), Some(timeout)) => end.min(started + timeout),
        _ => end,
    }
}
