//! What stores that are elsewhere have in common, however they are asked: a Redis, or a database.

use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::anew::Anew;
use super::clock::ServerClock;
use super::fleet::Alone;
use super::record::{self, Kept};
use super::{Change, Ledger, OFFERED, Overrides, Row, Standing, StoreError, Wake};
use crate::limit::Timestamp;

/// What is kept here of a store that is elsewhere.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) clock: ServerClock,
    pub(super) overrides: Overrides,
    /// Which edition of the overrides that is; below zero: none was read yet.
    edition: AtomicI64,
    pub(super) anew: Anew,
    pub(super) siblings: AtomicUsize,
    pub(super) alone: Alone,
    /// How many jobs were ever adopted.
    adopted: AtomicU64,
    /// When the next beat is due, and before which time no row of ours is, by the store's clock.
    beat_at: AtomicU64,
    due_from: AtomicU64,
}

impl Remote {
    pub(super) fn new(clock: ServerClock) -> Remote {
        Remote {
            clock,
            overrides: Overrides::default(),
            edition: AtomicI64::new(-1),
            anew: Anew::default(),
            siblings: AtomicUsize::new(0),
            alone: Alone::default(),
            adopted: AtomicU64::new(0),
            beat_at: AtomicU64::new(0),
            due_from: AtomicU64::new(0),
        }
    }

    /// Whether there is nothing to ask for: no row of ours is due, nor is a beat.
    pub(super) fn is_quiet(&self, now: Timestamp) -> bool {
        now.0 < self.due_from.load(Ordering::Acquire)
            && now.0 < self.beat_at.load(Ordering::Relaxed)
    }

    /// No beat is due before the one time, and no row of ours before the other.
    pub(super) fn quiet_until(&self, beat_at: Timestamp, due_from: Timestamp) {
        self.beat_at.store(beat_at.0, Ordering::Relaxed);
        self.due_from.store(due_from.0, Ordering::Release);
    }

    /// A row of ours is due then.
    pub(super) fn due_at(&self, at: Timestamp) {
        self.due_from.fetch_min(at.0, Ordering::AcqRel);
    }

    /// When the row is due that a change leaves.
    pub(super) fn leaves(&self, change: &Change) {
        if let Change::Offer { .. } = change {
            self.due_at(OFFERED);
        }
        if let Change::Until { until, .. }
        | Change::Adopt { until, .. }
        | Change::Own { until, .. } = change
        {
            self.due_at(*until);
        }
    }

    /// There may be others; the next beat tells.
    pub(super) fn look_around(&self) {
        self.alone.doubt();
        self.beat_at.store(0, Ordering::Relaxed);
    }

    /// So many siblings live, whether there is nobody else, dead ones that left rows included, and how many jobs were
    /// ever adopted. `asked` is what [`Alone::ask`] said before the store was asked.
    pub(super) fn met(&self, asked: u64, siblings: usize, nobody: bool, adopted: u64) {
        self.adopted.store(adopted, Ordering::Relaxed);
        self.siblings.store(siblings, Ordering::Relaxed);
        match nobody {
            true => self.alone.found_nobody(asked),
            false => self.alone.found_others(),
        }
    }

    /// Which edition of the overrides was read.
    pub(super) fn edition(&self) -> Option<i64> {
        let edition = self.edition.load(Ordering::Relaxed);
        (edition >= 0).then_some(edition)
    }

    /// The overrides were read: these are all, at `now`.
    pub(super) fn replace(&self, edition: i64, all: impl Iterator<Item = Kept>, now: Timestamp) {
        self.overrides.replace(all, now);
        self.edition.store(edition, Ordering::Relaxed);
    }

    /// A change was asked for at `now`, and whether the store has made it: what is kept here follows.
    pub(super) fn changed(&self, change: Change, done: bool, now: Timestamp) {
        self.anew.noted(&change, done, now);
        match change {
            Change::Override { space, key, set } => {
                self.overrides.put(space, key, set);
            }
            Change::Setting { name, text } => {
                self.overrides.put_setting(name, text);
            }
            Change::Clear => self.overrides.clear(),
            _ => {}
        }
    }

    /// What is known without a call.
    pub(super) fn standing(&self) -> Standing<'_> {
        Standing {
            overrides: &self.overrides,
            is_shared: true,
            is_alone: self.alone.is(),
            siblings: self.siblings.load(Ordering::Relaxed),
            times_wiped: self.anew.times(),
            adopted: self.adopted.load(Ordering::Relaxed),
            forgets_unsaid: true,
            doubt: self.clock.doubt(),
        }
    }
}

/// How long a connection to a store may take to be made that is asked for no longer than `timeout`: it is many round
/// trips, and a question is one or few. Longer, and one to a server that is gone is given up too late.
pub(super) fn to_connect(timeout: Duration) -> Duration {
    (10 * timeout).min(timeout.max(Duration::from_secs(5)))
}

/// Puts the rows of jobs that are out back: they take their slots again.
pub(super) async fn put_back(ledger: &impl Ledger, rows: &[Row]) -> Result<(), StoreError> {
    let adopt = |row: &Row| Change::Adopt {
        claimed: row.claimed.clone(),
        until: row.until,
    };
    ledger.set_all(rows.iter().map(adopt).collect()).await?;
    Ok(())
}

/// What a sibling says.
pub(super) enum News {
    /// Something for whoever waits for it.
    Wake(Wake),
    /// It has come, or come back.
    Joined,
    /// Something was set over HTTP, or taken away.
    Over,
    /// In a word that is not known here.
    Other,
}

/// The first line of a message is what it says, the others are about what. `None`: those are not understood.
pub(super) fn heard(message: &str) -> Option<News> {
    let (what, about) = message.split_once('\n').unwrap_or((message, ""));
    Some(News::Wake(match what {
        "freed" => Wake::Freed(about.split('\n').filter_map(record::of_name).collect()),
        "row" => Wake::Row { job: about.into() },
        "offered" => {
            let (scope, queue) = record::read_lane(about)?;
            Wake::Offered { scope, queue }
        }
        "paused" => {
            let (paused, queue) = about.split_once('\n')?;
            Wake::Paused {
                queue: queue.into(),
                paused: paused == "1",
            }
        }
        "joined" => return Some(News::Joined),
        "over" => return Some(News::Over),
        _ => return Some(News::Other),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_word_and_what_it_is_about() {
        let job = |job: &str| Wake::Row { job: job.into() };
        assert!(matches!(heard("row\na\nb"), Some(News::Wake(wake)) if wake == job("a\nb")));
        let paused = Wake::Paused {
            queue: "mail".into(),
            paused: true,
        };
        assert!(matches!(heard("paused\n1\nmail"), Some(News::Wake(wake)) if wake == paused));
        assert!(matches!(
            heard("offered\n7:mail"),
            Some(News::Wake(Wake::Offered { scope: 7, .. }))
        ));
        assert!(heard("offered\nmail").is_none(), "of which scope?");
        assert!(matches!(heard("joined"), Some(News::Joined)));
        assert!(matches!(heard("all"), Some(News::Other)));
    }
}
