//! What the guard knows beside the store: our rows, what may have to be undone or told again, and how calls ended.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lost::Lost;
use crate::memory::MemoryStore;
use crate::{Change, Claimed, Clock, End, Gen, Ledger, Place, Row, StoreError, Verdict};
use ojs_limit::{Key, Timestamp};

/// More ends than this are not remembered for the store's return; the rows are overdue some time.
const MOST_ENDED: usize = 10_000;
/// Starts of more keys than this are not remembered for the time when the store is lost.
const MOST_COUNTED: usize = 100_000;
/// More keys than this that are shut at once are not remembered for a store that forgets them.
pub(super) const MOST_SHUT: usize = 10_000;
/// Whoever has not reached the store for so long may be taken for dead, or late: siblings wait for 3 s at least.
const AWAY: Duration = Duration::from_secs(2);
/// How often the log has at most that the store was lost, or was told of our rows again without being lost.
pub(super) const SAID: Duration = Duration::from_secs(10);
/// How often the log has the reason of a lasting loss.
const AGAIN: Duration = Duration::from_secs(60);
/// So many different reasons are told in that time.
const MOST_REASONS: usize = 8;

/// How calls to the store have failed.
#[derive(Default, Debug)]
pub(super) struct Failures {
    /// Those since the last success, each begun after the one before.
    pub(super) in_a_row: u32,
    /// Failures of `take` since its last success: on a full disk reading goes on and hides that nothing can start.
    pub(super) takes: u32,
    /// All that were ever counted.
    pub(super) ever: u64,
    /// When the first of those in a row failed.
    pub(super) since: Option<Instant>,
    /// The last reason.
    pub(super) reason: String,
    /// When the log had which reason.
    reasons: HashMap<String, Instant>,
}

/// Which losses the log has: a store that comes and goes all the time must not fill it.
#[derive(Default, Debug)]
pub(super) struct LossLog {
    /// When it last had one.
    at: Option<Instant>,
    /// Whether it has the one that stands now.
    pub(super) has_this: bool,
    /// How many it did not get since the last that it has.
    left_out: u32,
}

impl LossLog {
    /// Another loss begins.
    pub(super) fn begin(&mut self) {
        self.has_this = false;
    }

    /// Whether the log is to have the loss that stands now. Gives how many it did not get before.
    pub(super) fn take_due(&mut self) -> Option<u32> {
        if self.has_this || self.at.is_some_and(|at| at.elapsed() < SAID) {
            return None;
        }
        (self.has_this, self.at) = (true, Some(Instant::now()));
        Some(std::mem::take(&mut self.left_out))
    }

    /// The loss is over. Returns whether the log is to have that.
    pub(super) fn end(&mut self) -> bool {
        self.left_out += u32::from(!self.has_this);
        self.has_this
    }
}

/// A claim that ended, of which the store may not have heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Untold {
    pub(super) job: Arc<str>,
    pub(super) claim: Gen,
    /// Its job was out through us. Meanwhile another may have started with its slots.
    pub(super) was_out: bool,
}

impl Untold {
    /// This row has ended.
    pub(super) fn of(row: &Row) -> Untold {
        Untold {
            job: row.claimed.job.clone(),
            claim: row.claimed.generation,
            was_out: row.is_out(),
        }
    }
}

/// A key that was shut through this sidecar.
#[derive(Debug)]
struct ShutKey {
    until: Timestamp,
    /// The store knows it.
    is_told: bool,
}

/// What the guard knows beside the store.
#[derive(Default, Debug)]
pub(super) struct Notes {
    /// Our rows of jobs that are out, and of held ones that we offer.
    pub(super) own: HashMap<Arc<str>, Row>,
    /// Claims of which a start may stand there that nobody heard of, or that was undone here alone.
    pub(super) doubt: HashMap<Arc<str>, Gen>,
    /// Claims that ended while the store failed or was lost: it may not have heard of them.
    pub(super) untold: Vec<Untold>,
    /// Keys that were shut through us. A store that did not hear of it or has forgotten it is told again, and they stay shut
    /// while it is lost.
    shut: HashMap<Key, ShutKey>,
    pub(super) failures: Failures,
    pub(super) losses: LossLog,
    /// The store is lost, or may have forgotten something: our rows are put back before anything starts.
    pub(super) suspect: bool,
    /// It has answered before.
    pub(super) known: bool,
    pub(super) lost: Option<Arc<Lost>>,
    /// What counts when it is lost: what was used of our part when it was lost before, and what started since while no
    /// other sidecar was there.
    pub(super) counted: Option<MemoryStore>,
    /// How many others shared the limits when it was lost last.
    pub(super) siblings: usize,
    /// When it was last told of our rows again after it was away, or was found to have forgotten.
    pub(super) returned: Option<Timestamp>,
    /// When it was last found to have other data than before, and how often it was.
    pub(super) emptied: Option<Timestamp>,
    times_wiped: u64,
    /// It is to be told of what we offer too. A store that was only away knows that. Told again, it would offer a job that a
    /// sibling may have taken over.
    pub(super) owes_offers: bool,
    /// When it was last told of our rows again, after whatever failure.
    pub(super) told: Option<Timestamp>,
    /// It was away for [`AWAY`] since it was last told of our rows.
    pub(super) away: bool,
    /// When it was last said that the store was told again, though it was not lost.
    pub(super) said: Option<Instant>,
}

impl Notes {
    /// Logs the loss, unless the log has it or had another just now; then a reason that is new.
    pub(super) fn log_loss(&mut self, lost: &Lost, error: &StoreError) {
        self.failures.reason = error.to_string();
        match self.losses.take_due() {
            Some(left_out) => {
                lost.tell(error, left_out);
                self.note_reason(error);
            }
            None if self.losses.has_this && self.note_reason(error) => {
                tracing::error!(id = %"store_still_lost", %error, "the store is still lost");
            }
            None => {}
        }
    }

    /// The store does not answer for this reason. Returns whether the log is to have it: a new one at once, and each
    /// once a minute.
    fn note_reason(&mut self, error: &StoreError) -> bool {
        let (reasons, reason) = (&mut self.failures.reasons, error.to_string());
        reasons.retain(|_, told| told.elapsed() < AGAIN);
        let is_due = reasons.len() < MOST_REASONS && !reasons.contains_key(&reason);
        reasons.extend(is_due.then(|| (reason, Instant::now())));
        is_due
    }

    /// The store is to hear of this end. Beyond a limit it finds out when the row is overdue.
    pub(super) fn is_untold(&mut self, ended: Untold) {
        if self.untold.len() < MOST_ENDED {
            self.untold.push(ended);
        }
    }

    /// Of a start that may have been done there it is sure that it is undone.
    pub(super) fn is_sure(&mut self, job: &str, claim: Gen) {
        if self.doubt.get(job) == Some(&claim) {
            self.doubt.remove(job);
        }
    }

    /// The store was emptied: it is told of our rows, and others tell it of theirs.
    pub(super) fn has_forgotten(&mut self, now: Timestamp) {
        (self.suspect, self.away) = (true, true);
        self.returned = Some(now);
        self.begins_anew(now);
    }

    /// The store has other data than before.
    fn begins_anew(&mut self, now: Timestamp) {
        self.emptied = Some(now);
        self.owes_offers = true;
        self.shut.values_mut().for_each(|key| key.is_told = false);
    }

    /// Shuts the keys that are shut through us at `now`, where they are not shut for longer.
    pub(super) fn shuts(&self, now: Timestamp) -> Vec<Change> {
        self.shuts_of(now, |_| true)
    }

    /// Of these, those that the store is yet to be told of.
    pub(super) fn untold_shuts(&self, now: Timestamp) -> Vec<Change> {
        self.shuts_of(now, |key| !key.is_told)
    }

    fn shuts_of(&self, now: Timestamp, which: impl Fn(&ShutKey) -> bool) -> Vec<Change> {
        let stands = |(_, key): &(&Key, &ShutKey)| key.until > now && which(key);
        let standing = self.shut.iter().filter(stands);
        let each = standing.map(|(key, ShutKey { until, .. })| Change::Shut {
            key: key.clone(),
            until: *until,
            at_least: true,
        });
        each.collect()
    }

    /// The store has these of [`Notes::untold_shuts`].
    pub(super) fn told_shuts(&mut self, told: &[Change]) {
        for change in told {
            if let Change::Shut { key, until, .. } = change
                && let Some(known) = self.shut.get_mut(key)
            {
                known.is_told = known.until == *until;
            }
        }
    }

    /// How often the store's data have begun anew, as it is known now.
    pub(super) fn note_times_wiped(&mut self, times: u64, now: Timestamp) {
        if std::mem::replace(&mut self.times_wiped, times) != times {
            self.begins_anew(now);
        }
    }

    /// A call was answered.
    pub(super) fn answers(&mut self) {
        self.failures.in_a_row = 0;
        let since = self.failures.since.take();
        self.away |= since.is_some_and(|since| since.elapsed() >= AWAY);
    }

    /// Whether siblings may have acted for us since the store was last told of our rows. Now it was.
    pub(super) fn was_away(&mut self) -> bool {
        std::mem::take(&mut self.away) || self.lost.is_some()
    }

    /// How a take ended, before which so many calls had `failed`.
    pub(super) fn took_there<T>(&mut self, answer: &Result<T, StoreError>, failed: u64) {
        match answer {
            Ok(_) | Err(StoreError::Settling) => self.failures.takes = 0,
            // As where all calls are counted.
            Err(StoreError::Wiped | StoreError::Unfit(_)) => {}
            Err(_) if self.failures.ever != failed => {}
            Err(_) => self.failures.takes += 1,
        }
    }

    /// Our row of a job that is out with a worker.
    pub(super) fn out(&self, job: &str) -> Option<&Row> {
        self.own.get(job).filter(|own| own.is_out())
    }

    /// The store has said which row a job has. If that is not ours, our note of the row ends, if it is such a one.
    pub(super) fn found(&mut self, job: &str, row: Option<&Row>, such: impl FnOnce(&Row) -> bool) {
        if row.is_none_or(|row| !row.ours) {
            self.end_own(job, such);
        }
    }

    /// Our row of a job ends, if it is such a one. Gives it as it was.
    pub(super) fn end_own(&mut self, job: &str, such: impl FnOnce(&Row) -> bool) -> Option<Row> {
        self.own.get(job).filter(|own| such(own))?;
        // The memory store answers at once and does not fail.
        if let Some(counted) = &self.counted {
            drop(counted.end_all(&[End::of(job.into(), None)]));
        }
        self.own.remove(job)
    }

    /// A start that the store granted while no other sidecar was there: under limits that count time it counts when the
    /// store is lost.
    fn count(&mut self, ask: &Claimed, at: Timestamp) {
        let counted = self
            .counted
            .get_or_insert_with(|| MemoryStore::on(Clock::new(at.0)));
        if ask.limited.iter().any(|one| one.limits.counts_time()) {
            counted.count(ask, at, MOST_COUNTED);
        }
    }

    /// Our row of this claim has ended.
    pub(super) fn is_over(&mut self, job: &str, claim: Gen) {
        self.end_own(job, |own| own.claimed.generation == claim);
    }

    /// A newer claim of a job was asked for without an answer: that of our row is over, and the store may not know.
    pub(super) fn unheard(&mut self, ask: &Claimed) {
        if let Some(own) = self.end_own(&ask.job, |own| own.is_over_by(ask)) {
            self.is_untold(Untold::of(&own));
        }
    }

    /// An asked job may have a row now.
    pub(super) fn took(&mut self, ask: &Claimed, verdict: &Verdict, is_alone: bool) {
        match verdict {
            Verdict::Started { at } => {
                if is_alone {
                    self.count(ask, *at);
                }
                let row = Row::started(ask.clone(), *at);
                self.own.insert(ask.job.clone(), row);
            }
            // The store has no row of it: it has forgotten that of an earlier claim, or has ended it.
            Verdict::Refused { .. } | Verdict::Unasked => {
                self.end_own(&ask.job, |own| own.claimed.generation < ask.generation);
            }
            Verdict::HasRow | Verdict::Outdated | Verdict::Unfit => {}
        }
    }

    fn keep(&mut self, claimed: Claimed, place: Place) {
        let job = claimed.job.clone();
        self.own.insert(job, Row::of(claimed, place));
    }

    /// A change was made at this time.
    pub(super) fn changed(&mut self, change: &Change, now: Timestamp) {
        match change {
            Change::Until {
                job,
                generation,
                until,
                visibility,
            } => {
                if let Some(row) = self.own.get_mut(job).filter(|row| row.is_out()) {
                    row.renew(*generation, *until, *visibility);
                }
            }
            Change::Adopt { claimed, until } => {
                self.keep(claimed.clone(), Place::Out(*until));
            }
            // Not where it is out. Of several that were told at once it is not known which was refused.
            Change::Offer { claimed }
                if self
                    .out(&claimed.job)
                    .is_none_or(|row| row.is_over_by(claimed)) =>
            {
                self.keep(claimed.clone(), Place::Offered);
            }
            // It is held, and has a row no longer than until it is named.
            Change::Own { job, .. } => drop(self.end_own(job, |own| !own.is_out())),
            Change::Clear => (self.counted, self.own) = (None, HashMap::new()),
            Change::Shut {
                key,
                until,
                at_least,
            } => {
                let known = self.shut.get(key).filter(|_| *at_least);
                let until = known.map_or(*until, |known| known.until.max(*until));
                if self.shut.len() >= MOST_SHUT {
                    self.shut.retain(|_, key| key.until > now);
                }
                if self.shut.len() < MOST_SHUT || self.shut.contains_key(key) {
                    let is_told = self.lost.is_none();
                    self.shut.insert(key.clone(), ShutKey { until, is_told });
                }
            }
            Change::Unused { key } => {
                if let Some(counted) = &self.counted {
                    drop(counted.set_all(vec![change.clone()]));
                }
                self.shut.remove(key);
            }
            _ => {}
        }
    }
}
