//! When the claim of each held job is to be kept, by a heartbeat.
//!
//! Every known job has one time. Tens of thousands may be held, so those that are due are found without a look at all
//! others, the earliest first, and a few in one go: whoever asks lets FETCHes go on in between.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::held::{HeldJob, Proof, SHORT};
use super::locked::Hold;
use super::state::{HoldState, Whereabouts};
use ojs_store::Claimed;

/// How long the backend's word that a held job is ours is trusted at most before it is asked for again.
pub const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// A held job's claim is kept for this long at most in one go. It needs no more than the default of the HTTP binding:
/// should this process die, the backend has the job back soon. The worker's own visibility is given when it goes out.
const KEPT_FOR: Duration = Duration::from_secs(30);

/// When a claim that is due is looked at again, unless it was kept meanwhile.
const AGAIN: Duration = Duration::from_millis(500);

/// So many times of jobs that are gone are left alone.
const FEW: usize = 64;

/// For how long a claim is to be kept while its job is held.
pub fn kept_for(claimed: &Claimed) -> Duration {
    Duration::from_micros(claimed.visibility).min(KEPT_FOR)
}

impl HeldJob {
    /// When its claim is to be kept: when a third of what was granted is over, or where it was granted for longer than
    /// it is kept, before it would have to be proven anew.
    pub(super) fn due_at(&self) -> Instant {
        let (proof, lasts) = (&self.proof, kept_for(&self.claimed));
        proof.at + rests(proof, lasts)
    }
}

/// How long a held job is left with the time that the backend has granted it, where it is to have what `lasts` says.
fn rests(proof: &Proof, lasts: Duration) -> Duration {
    let granted = proof.granted;
    if proof.is_assumed {
        // The backend's default may be a few seconds. From the first heartbeat on it is what that says.
        return TRUSTED_FOR.min(lasts / 3);
    }
    match granted.cmp(&lasts) {
        // It was to go out for longer, and did not: as soon as it would have to be proven anew.
        Ordering::Greater => TRUSTED_FOR.min(lasts / 3),
        // It was to go out for less: its claim may be over at the next look.
        Ordering::Less if granted < SHORT => Duration::ZERO,
        _ => granted / 3,
    }
}

/// Whether a tenth of what the backend granted is over since the claim was to be kept.
pub fn is_late(claimed: &Claimed, proof: &Proof) -> bool {
    proof.at.elapsed() > rests(proof, kept_for(claimed)) + proof.granted / 10
}

impl HoldState {
    /// The claim of a known job is to be looked at by then.
    pub(super) fn note_due(&mut self, job: &Arc<str>, at: Instant) {
        let Some(known) = self.jobs.get_mut(job) else {
            return;
        };
        if known.due_at.is_none_or(|before| at < before) {
            known.due_at = Some(at);
            self.due.push(Reverse((at, job.clone())));
            self.drop_old_times();
        }
    }

    /// Jobs come and go much faster than their times come, so old times are dropped once they are the most.
    fn drop_old_times(&mut self) {
        let HoldState { due, jobs, .. } = self;
        if due.len() > FEW + 2 * jobs.len() {
            due.retain(|Reverse((at, job))| {
                let known = jobs.get(job);
                known.is_some_and(|known| known.due_at == Some(*at))
            });
        }
    }

    /// The next job whose time has come; it has none from now on. Times that were replaced by an earlier one, and
    /// those of jobs that are gone, are dropped on the way.
    fn next_due(&mut self, now: Instant) -> Option<Arc<str>> {
        while self.due.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Reverse((at, job)) = self.due.pop()?;
            if let Some(known) = self.jobs.get_mut(&job)
                && known.due_at == Some(at)
            {
                known.due_at = None;
                return Some(job);
            }
        }
        None
    }
}

impl Hold {
    /// The claims that are to be kept now, of at most `most` jobs that are looked at. None of jobs in hand, and where
    /// `since` is said none of lanes that no worker has asked for since then. `None`: there is nothing left to look at.
    /// A claim that is not kept is due again soon.
    pub fn due(&self, since: Option<Instant>, most: usize) -> Option<Vec<(Claimed, Proof)>> {
        let (mut state, now, mut due) = (self.state(), Instant::now(), Vec::new());
        for looked in 0..most {
            let Some(job) = state.next_due(now) else {
                return (looked > 0).then_some(due);
            };
            let mut at = now + AGAIN;
            if let Some(known) = state.jobs.get(&job)
                && !matches!(known.whereabouts, Whereabouts::InHand)
                && let (Some(queue), Some(held)) = (state.queues.get(&known.lane), state.find(&job))
                && since.is_none_or(|since| queue.is_wanted(since))
            {
                match held.due_at() {
                    later if later > now => at = later,
                    _ => due.push((held.claimed.clone(), held.proof)),
                }
            }
            state.note_due(&job, at);
        }
        Some(due)
    }

    /// These were due and were not kept: they are due still.
    pub fn due_still(&self, claims: impl Iterator<Item = Claimed>) {
        let (mut state, now) = (self.state(), Instant::now());
        for claimed in claims {
            state.note_due(&claimed.job, now);
        }
    }
}
