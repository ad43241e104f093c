//! What became of the jobs that asked for a start.

use super::row::{Claimed, Row};
use ojs_limit::{OnLimit, Refusal, Served, Timestamp};

/// What became of one asked job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It started: its slots are taken and its start is counted at `at`, at most 5 ms from now.
    Started {
        /// The time at which the start counts.
        at: Timestamp,
    },
    /// At least one key refused; nothing was spent. `which` is the index into `limited` of the
    /// refusal that lets go last.
    Refused {
        /// Index into [`Claim::limited`](crate::Claim::limited).
        which: usize,
        /// Why that key refused.
        why: Refusal,
        /// The time of the start as far as time goes, over all keys: granted from 5 ms before it, if
        /// nothing else starts. Where `why` waits for a slot, that must end too; `None`: that is all.
        at: Option<Timestamp>,
        /// The strongest action of the keys that refused: drop, else reschedule, else wait.
        action: OnLimit,
    },
    /// Not asked: enough others started.
    Unasked,
    /// The job is out already, or was offered: it has a row, of this claim, or of an older one that it may not end.
    HasRow,
    /// A newer claim of the job has a row, so this one is over.
    Outdated,
    /// The store cannot keep such a row: a text of the claim is too long for it, or has a character for which it has
    /// none. Nothing was done.
    Unfit,
}

impl Verdict {
    /// That of a job which has this row.
    pub(super) fn by_row(row: &Row, ask: &Claimed) -> Verdict {
        match row.claimed.generation > ask.generation {
            true => Verdict::Outdated,
            false => Verdict::HasRow,
        }
    }

    /// Whether the job has started.
    pub fn is_started(&self) -> bool {
        matches!(self, Verdict::Started { .. })
    }
}

/// What became of the jobs that [`Ledger::take`](crate::Ledger::take) was asked for.
#[derive(Clone, Default, Debug)]
pub struct Taken {
    /// One for each asked job, in their order; fewer where enough others started before those behind were asked for.
    pub verdicts: Vec<Verdict>,
    /// The rows of older claims of these jobs: they have ended, and their slots with them.
    pub ended: Vec<Row>,
    /// What the groups of the asked jobs were served by now, where those have a share.
    pub served: Vec<Served>,
}

impl Taken {
    /// How many have started.
    pub(super) fn started(&self) -> usize {
        let started = self.verdicts.iter().filter(|verdict| verdict.is_started());
        started.count()
    }

    /// Adds what became of the jobs that were asked for next.
    pub(super) fn extend(&mut self, next: Taken) {
        self.verdicts.extend(next.verdicts);
        self.ended.extend(next.ended);
        self.served.extend(next.served);
    }
}
