//! Where usage lives, under the key: slots, windows, spacing, and one row per limited job.
//!
//! Each operation is one atomic step. The store's clock decides. Usage knows no limits: every
//! question brings its own numbers, so that changing a number changes the next decision and
//! nothing else. Limits that were set over HTTP are kept beside ([`Overrides`]).
//!
//! # What a store that many sidecars share must keep
//!
//! * **A claim is a token.** A row says under which claim ([`Gen`]) it stands, and every operation names
//!   one: done twice it is done once, done late it does nothing. Claim numbers are made from the store's
//!   clock, so that a later claim has a higher one whichever sidecar made it.
//! * **Deadlines.** An operation that was cut off ([`StoreError::Timeout`]) may still be on its way. It
//!   carries the time on the store's clock past which the store refuses it, so that [`Store::back`] after
//!   a [`Store::take`] that nobody heard of leaves nothing behind.
//! * **Rows end by deed, never by time alone.** A row is its owner's; when it is overdue any sidecar may
//!   look after it ([`Store::due`]), and a held one goes to whoever has a worker for it
//!   ([`Store::offered`], [`Change::Own`]).
//! * **A store that forgot says so** ([`StoreError::Wiped`]), and starts nothing until the sidecar has put
//!   back what it knows ([`Store::announce`]).
//!
//! # Who stands before whom
//!
//! ```text
//! ReservedStore            starts that were granted ahead are taken here, without a call
//! └ Guard                  what happens while the store cannot be asked
//!   └ RedisStore, SqlStore what all sidecars share; SqlStore over SQLite or PostgreSQL
//! MemoryStore              by itself: there is nothing to lose, and nobody to share with
//! ```

mod anew;
mod answer;
mod clock;
pub mod faulty;
mod fleet;
pub mod guard;
pub mod memory;
mod overrides;
pub mod postgres;
mod record;
pub mod redis;
mod remote;
pub mod reserved;
mod row;
mod sql;
pub mod sqlite;
mod step;

pub use crate::limit::Room;
pub use answer::Answer;
pub use clock::Clock;
pub use fleet::{NUMBER_LASTS, Number, Step, Wake};
pub use overrides::{MAX as MAX_OVERRIDES, MAX_SETTINGS, Override, Overrides};
pub use row::{Claim, Claimed, Gen, Known, OFFERED, Place, Row};
pub use sql::{Inspection, SqlStore};

use std::future::Future;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use crate::limit::{Key, Limited, OnLimit, Refusal, Reserved, Space, Timestamp};

/// What went wrong with a connection, and what to do where it was the server's certificate.
fn distrusted(why: String) -> String {
    match why.contains("invalid peer certificate") {
        true => format!("{why} (store.ca_file names the certificates that are trusted)"),
        false => why,
    }
}

/// The jobs that were asked for and are lost to who asked.
fn refused_of<'a>(
    asks: &'a [&'a Claimed],
    verdicts: &'a [Verdict],
) -> impl Iterator<Item = Arc<str>> + 'a {
    let each = asks.iter().zip(verdicts);
    let lost = each.filter(|(_, verdict)| **verdict == Verdict::Lost);
    lost.map(|(ask, _)| ask.job.clone())
}

/// What became of one asked job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It started: its slots are taken and its start is counted at `at` (at most the [`Store::lead`] and 5 ms
    /// from now).
    Started {
        /// The time at which the start counts.
        at: Timestamp,
    },
    /// At least one key refused; nothing was spent. `which` is the index into `limited` of the
    /// refusal that lets go last.
    Refused {
        /// Index into [`Claim::limited`].
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
    /// The row is hidden, or belongs to another owner or a newer claim; or the store cannot keep it.
    Lost,
}

/// A change to what the store keeps.
#[derive(Clone, Debug)]
pub enum Change {
    /// Move a row's `until` (and its visibility) if its claim is still this one.
    Until {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// When the owner must look again.
        until: Timestamp,
        /// In microseconds.
        visibility: u64,
    },
    /// Hide a held row (or show it again).
    Hidden {
        /// The row's job.
        job: Arc<str>,
        /// Whether it is to be hidden.
        hidden: bool,
    },
    /// No starts of this job key before `until` (section 9.1); an earlier time than now opens it.
    Shut {
        /// The job key.
        key: Key,
        /// When it opens again.
        until: Timestamp,
        /// Whether a key that is shut for as long or longer stays as it is.
        at_least: bool,
        /// How far apart probing starts are while it is shut, in microseconds.
        probe: Option<NonZeroU64>,
    },
    /// A job of this key that started then has succeeded: if the key was shut before that, it opens.
    Open {
        /// The job key.
        key: Key,
        /// When the job started.
        started: Timestamp,
    },
    /// Forget what a job key has used (its starts, its spacing, that it is shut) but not its slots.
    Unused {
        /// The job key.
        key: Key,
    },
    /// A job that is out with a worker already (found after a restart): it takes its slots whatever
    /// the limits say, and its start is not counted again. Replaces the row of an older claim and a
    /// held row of the same one.
    Adopt {
        /// What the row says.
        claimed: Claimed,
        /// When the backend must be asked about it.
        until: Timestamp,
    },
    /// Limits set over HTTP for a key, in place of earlier ones; `None` takes them away.
    Override {
        /// Whose counters.
        space: Space,
        /// Which counters.
        key: Key,
        /// The limits.
        set: Option<Override>,
    },
    /// A setting that was made over HTTP, under its name, in place of an earlier one; `None` takes it away.
    /// The store does not know what it says: see [`Overrides::setting`].
    Setting {
        /// Whose it is, such as `bounds:QUEUE`.
        name: Arc<str>,
        /// What it says.
        text: Option<Arc<str>>,
    },
    /// The held row becomes ours, under a claim number of our own: its owner has no worker for it, or is
    /// gone. Only if its claim is still this one.
    Own {
        /// The row's job.
        job: Arc<str>,
        /// The claim that must still be the row's.
        generation: Gen,
        /// The row's claim from now on: higher, so that the former owner's operations do nothing.
        next: Gen,
        /// When we must look again.
        until: Timestamp,
    },
    /// Forget everything (the embedded backend's reset; tests).
    Clear,
}

impl Change {
    /// The row of a claimed job is looked at again then. [`OFFERED`]: its owner offers it to siblings, and keeps it
    /// until one takes it.
    pub fn until(claimed: &Claimed, until: Timestamp) -> Change {
        Change::Until {
            job: claimed.job.clone(),
            generation: claimed.generation,
            until,
            visibility: claimed.visibility,
        }
    }

    /// Whether a key is shut or opened by hand, or what it used forgotten: it counts whatever was before.
    fn is_by_hand(&self) -> bool {
        matches!(
            self,
            Change::Unused { .. }
                | Change::Shut {
                    at_least: false,
                    ..
                }
        )
    }

    /// Whether it is of no row and no key, and of what each sidecar keeps a copy.
    fn is_apart(&self) -> bool {
        matches!(
            self,
            Change::Override { .. } | Change::Setting { .. } | Change::Clear
        )
    }
}

/// A key's state, for inspection (section 10.1). Numbers only; limits come from the config.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Slots taken.
    pub active: u32,
    /// Per asked window: starts counted, and when the oldest of them leaves.
    pub windows: Vec<(u32, Option<Timestamp>)>,
    /// The next start's time under the asked throttle, if it is in the future.
    pub next_start: Option<Timestamp>,
    /// Shut until then, if that is in the future.
    pub shut_until: Option<Timestamp>,
}

impl Usage {
    /// What a key's state says under these limits; `None`: nothing is used.
    pub(crate) fn of(
        state: &crate::limit::KeyState,
        limits: &crate::limit::Limits,
        now: Timestamp,
    ) -> Option<Usage> {
        if state.idle(now) {
            return None;
        }
        let throttle = limits.throttle.as_ref();
        Some(Usage {
            active: state.active(),
            windows: limits
                .rates
                .iter()
                .map(|rate| state.counted(rate, now))
                .collect(),
            next_start: throttle.and_then(|throttle| state.next_start(throttle, now)),
            shut_until: state.is_shut(now).map(|shut| shut.until),
        })
    }
}

/// The store could not answer. The memory store never says this.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It is not reachable, or refused.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// It answers, and cannot be used as it is: the user lacks rights, it is too old, something else is
    /// under our keys.
    #[error("the store cannot be used: {0}")]
    Unusable(String),
    /// It answers, and cannot keep or compare what was said: a text is too long for it, or has a character for which
    /// it has none. Nothing was done.
    #[error("the store cannot keep this: {0}")]
    Unfit(String),
    /// It took too long; the operation may still have been done.
    #[error("the store did not answer in time")]
    Timeout,
    /// Its data began anew, and all have to put back what they know before anything starts. Nothing was done.
    #[error("the store's data began anew: others have to put back what they know first")]
    Settling,
    /// It lost what it knew, or was away for so long that it may have: nothing starts before
    /// [`Store::announce`].
    #[error("the store was emptied or replaced")]
    Wiped,
}

/// Starts of one key that are wanted ahead of their time.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The key, with the limits under which they are granted; its windows are sliding ones.
    pub limited: &'a Limited,
    /// At most so many.
    pub want: usize,
    /// None later than so many microseconds from now.
    pub ahead: u64,
    /// The times of starts that were granted under these limits and not used.
    pub unused: &'a [Timestamp],
}

/// The contract that every store keeps.
pub trait Store: std::fmt::Debug + Send + Sync {
    // What every store must answer.

    /// What the store's clock shows at a moment of ours.
    fn at(&self, moment: Instant) -> Timestamp;

    /// What it shows now.
    fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// Asks for the jobs in order until `want` have started: all limits of a job, or none. A job
    /// without a row gets one (held, due after a third of its visibility); a row of an older claim of the
    /// same job is replaced and its slots end. Verdicts are in the order of `asks`.
    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>>;

    /// The backend handed these jobs out just now, so earlier claims of them are over, whether their time
    /// has passed or not: rows of older claims go with their slots, and are returned.
    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>>;

    /// The hand-out did not happen: out becomes held again, and the start is uncounted (in spacing only if
    /// it is still the newest). Says whether the row was out under this claim.
    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool>;

    /// The job is over, or not ours any more: its row and its slots go. `None` for `generation`
    /// ends any claim. Ending twice is ending once. Gives the row as it was.
    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>>;

    /// Ends these claims, and older ones of the same jobs, many in one step where the store can. If it fails some may
    /// have been ended.
    fn end_all<'a>(&'a self, claims: &'a [(Arc<str>, Gen)]) -> Answer<'a, ()> {
        Answer::later(async move {
            for (job, claim) in claims {
                self.end(job, Some(*claim)).await?;
            }
            Ok(())
        })
    }

    /// The rows whose `until` has passed, oldest first, at most `max` that are held and `max` that are out:
    /// ours, and those out with workers of siblings that have not looked in time (no other sidecar is handed
    /// such a row for a while then). What was offered to siblings keeps nothing else from being named, and is
    /// named every few seconds. Called once a second or so it also tells the others that we live.
    fn due(&self, max: usize) -> Answer<'_, Vec<Row>>;

    /// Changes a setting or a row; says whether there was anything to change.
    fn set(&self, change: Change) -> Answer<'_, bool>;

    /// Makes many changes, in one step where the store can; those for which there is nothing to change do
    /// nothing.
    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        Answer::later(async move {
            for change in changes {
                self.set(change).await?;
            }
            Ok(())
        })
    }

    /// The limits and settings that were made over HTTP, as far as this process knows. They are changed by
    /// [`Store::set`] and end by themselves.
    fn overrides(&self) -> &Overrides;

    /// One job's row.
    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>>;

    /// What may start under these limits, all of them together.
    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room>;

    /// A key's usage under the given windows and throttle; `None` when it has none at all.
    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a crate::limit::Limits,
    ) -> Answer<'a, Option<Usage>>;

    /// How many jobs of each of these keys are out, in their order.
    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>>;

    /// Our rows by place, for drain and inspection.
    fn count(&self, place: Place) -> Answer<'_, usize>;

    /// One step on a number that all sidecars share; it is 0 where nobody set it.
    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number>;

    /// Grants starts of a key ahead of their time, as [`KeyState::reserve`](crate::limit::KeyState::reserve)
    /// does, after what was not used of earlier ones was given back. They have no rows and no slots. If
    /// nobody hears of the answer they pass unused; what was given back must not be given back again.
    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved>;

    // What differs where others share the store.

    /// Whether other sidecars may share it: then rows of held jobs are put there as soon as they are held.
    fn is_shared(&self) -> bool {
        false
    }

    /// Whether no other sidecar lives or has left rows, as far as is known.
    fn is_alone(&self) -> bool {
        false
    }

    /// How many other sidecars live, as far as is known here.
    fn siblings(&self) -> usize {
        0
    }

    /// How often the store had other data than this sidecar knew: it was emptied, or replaced.
    fn times_wiped(&self) -> u64 {
        0
    }

    /// How often it has failed; calls that were under way together fail once.
    fn times_failed(&self) -> u64 {
        0
    }

    /// Whether it may have forgotten its last writes without saying so ([`StoreError::Wiped`]) where it answers again
    /// after a failed call, as one does whose replica took its place.
    fn forgets_unsaid(&self) -> bool {
        true
    }

    /// How far [`Store::now`] may be from the clock that decides, in microseconds.
    fn doubt(&self) -> u64 {
        0
    }

    /// A hand-out takes so many microseconds from here on: a start counts so much later than it is granted,
    /// and spacing grants it so much sooner. Where the way back takes longer than [`EARLY`], starts would be
    /// late and undone otherwise. A start must not leave before it counts, less [`EARLY`]. What decides at
    /// once needs no lead.
    ///
    /// [`EARLY`]: crate::limit::EARLY
    fn lead(&self, micros: u64) {
        let _none_needed = micros;
    }

    /// Held rows of siblings in a lane that are overdue or were offered (`until` in the past), and not
    /// hidden; [`Change::Own`] takes one over. Of a sibling that is gone only those whose claims are sure to
    /// stand: it kept each alive until a third of the visibility (of 30 s at most) before it was heard of
    /// last. What lapsed since may be claimed again by one that is cut off from the store ([`guard`]).
    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        let _nobody_else = (scope, queue, max);
        Answer::now(Vec::new())
    }

    /// How many jobs of a queue siblings hold, over all scopes, hidden ones too. Rows of those that are gone
    /// count until the backend must have the jobs back.
    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        let _nobody_else = queue;
        Answer::now(0)
    }

    /// Rows of other sidecars, held and out, at most `max`, in no order that matters: for inspection. Of those
    /// that are gone too, but for held ones whose jobs the backend must have back by now.
    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        let _nobody_else = max;
        Answer::now(Vec::new())
    }

    /// Keeps for all sidecars that a queue was paused or resumed through this one, and tells them.
    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        Answer::later(async move {
            let step = Step::Put {
                value: i64::from(paused),
                version: None,
            };
            self.number(&fleet::paused(queue), step).await?;
            Ok(())
        })
    }

    /// Whether a queue was paused through some sidecar, and not resumed through one.
    fn is_paused<'a>(&'a self, queue: &'a str) -> Answer<'a, bool> {
        Answer::later(async move {
            let number = self.number(&fleet::paused(queue), Step::Read).await?;
            Ok(number.value != 0)
        })
    }

    /// Puts our rows back as they are, those out with their slots, and from then on goes by what the
    /// store knows. Done at the start (with no rows), after [`StoreError::Wiped`] and after an outage.
    ///
    /// Where the data began anew, what we know of limits and settings made over HTTP comes first: what is not
    /// there is put back, but only before anything may start. Who comes later takes what it finds: the others
    /// have put back theirs, and what is missing may have been deleted since.
    ///
    /// Gives the jobs of the held ones that it did not take: their rows are hidden, or a sibling's by now.
    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, Vec<Arc<str>>> {
        Answer::later(async move {
            let mut refused = Vec::new();
            for row in rows {
                let claimed = &row.claimed;
                match row.place {
                    Place::Held => {
                        let verdicts = self.take(&[claimed], 0).await?;
                        refused.extend(refused_of(&[claimed], &verdicts));
                    }
                    Place::Out => {
                        let (claimed, until) = (claimed.clone(), row.until);
                        self.set(Change::Adopt { claimed, until }).await?;
                    }
                }
            }
            Ok(refused)
        })
    }

    /// The next thing a sibling did that matters here. One caller at a time; dropping it loses nothing.
    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    // The guard's alone: it knows when the store is lost.

    /// Whether the store does not answer, and [`guard::OnStoreError`] says what happens.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether it has ever answered. What was never seen may be another store than the one that is meant.
    fn has_answered(&self) -> bool {
        true
    }

    /// Whether a job may have a row that [`Store::row`] does not find: the store is lost, or was a moment ago and
    /// others have not put theirs back yet.
    fn may_miss_rows(&self) -> bool {
        false
    }

    /// Whether a held job must not go out, nor be kept alive, before the store is back: it is lost, and a sibling
    /// that still has it may have taken the job over ([`guard`]).
    fn sets_aside(&self, claimed: &Claimed) -> bool {
        let _nobody_else = claimed;
        false
    }

    /// When the store was last told of our rows again, after it was away for so long that siblings may have acted
    /// for us. What was heard of a held job before that does not prove that it is ours still: a sibling may have
    /// taken it over, and its claim looks the same.
    fn told_anew(&self) -> Option<Instant> {
        None
    }

    /// Claims that were held here when the store was lost, and siblings' when it was back, each with its row as it
    /// was then (`None`: it has ended). None of them starts here any more; [`Store::forgot`] ends that.
    fn elsewhere(&self) -> Vec<(Claimed, Option<Row>)> {
        Vec::new()
    }

    /// The hold has forgotten these, which [`Store::elsewhere`] named.
    fn forgot(&self, gone: &[(Claimed, Option<Row>)]) {
        let _none_named = gone;
    }

    /// What single policies declare for the time when the store is lost, in place of earlier ones.
    fn declare(&self, by_policy: guard::Declared) {
        let _never_lost = by_policy;
    }

    // Of what is kept here: rows by the guard and by `ReservedStore`, turns by the latter alone.

    /// What is known of a job's row without a call. A worker may settle a job through another sidecar than
    /// the one it has it from, so one that is unknown here may have a row as long as there are others.
    fn known(&self, job: &str) -> Known {
        let _ask = job;
        Known::Unsure
    }

    /// How many start times were granted ahead to this sidecar, and how many of them passed unused.
    fn turns(&self) -> (u64, u64) {
        (0, 0)
    }

    /// The policies whose limits are reserved ahead, by their names, in place of earlier ones
    /// ([`reserved::ReservedStore`]).
    fn reserve_for(&self, policies: reserved::Policies) {
        let _each_start_is_asked_for = policies;
    }
}
