//! What each store is: fourteen operations, every one of them one atomic step.
//!
//! Only `check` has a default, so a store cannot forget an operation. Short words for them are written once, for every
//! ledger.

use std::pin::Pin;
use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Answer, Change, Claim, Claimed, End, Gen, Number, Overrides, Room, Row, Step, Taken, Usage,
    Wake, fleet,
};
use ojs_limit::{Key, KeyState, Limited, Limits, Reserved, Space, Timestamp};

/// The contract that every store keeps.
pub trait Ledger: std::fmt::Debug + Send + Sync {
    /// What the store's clock shows at a moment of ours.
    fn at(&self, moment: Instant) -> Timestamp;

    /// Asks for the jobs in order until `want` have started: all limits of a job, or none. Before any is asked, rows
    /// of older claims of these jobs end with their slots: the backend handed the jobs out again, so those claims are
    /// over. What starts has a row from then on; nothing else has.
    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken>;

    /// The hand-out did not happen: our row goes, and the start is uncounted (in spacing only if it is still the
    /// newest). Says whether we had the job out under this claim.
    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool>;

    /// These jobs are over, or not ours any more: their rows and slots go, and the rows are given as they were. A row
    /// of a newer claim stays; no claim means any. Ending twice is ending once.
    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>>;

    /// The rows whose `until` has passed, oldest first, at most `max` that are held and `max` that are out: ours, and
    /// those out with workers of siblings that have not looked in time (no other sidecar is handed such a row for a
    /// while then). What was offered to siblings comes last, and is named every few seconds.
    /// Called once a second or so it also tells the others that we live.
    ///
    /// However many rows there are of which the caller does not look after any, they stand before no others.
    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>>;

    /// Makes changes in one step; those for which there is nothing to change do nothing. Says whether any was made.
    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool>;

    /// The states of keys.
    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates>;

    /// Rows, as they are.
    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>>;

    /// How many rows there are.
    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64>;

    /// One step on a number that all sidecars share; it is 0 where nobody set it.
    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number>;

    /// Grants starts of a key ahead of their time, as [`KeyState::reserve`] does, after what was not used of earlier
    /// ones was given back. They have no rows and no slots. If nobody hears of the answer they pass unused; what was
    /// given back must not be given back again.
    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved>;

    /// Puts our rows back as they are, those out with their slots, and from then on goes by what the store knows. Done
    /// at the start (with no rows), after [`StoreError::Wiped`](super::StoreError::Wiped) and after an outage.
    ///
    /// Where the data began anew, what we know of limits and settings made over HTTP comes first: what is not there is
    /// put back, but only before anything may start. Who comes later takes what it finds: the others have put back
    /// theirs, and what is missing may have been deleted since.
    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()>;

    /// Says what is wrong if it cannot be used at all.
    fn check(&self) -> Answer<'_, ()> {
        self.announce(&[])
    }

    /// The next thing a sibling did that matters here. One caller at a time; dropping it loses nothing.
    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>>;

    /// What is known here without a call.
    fn facts(&self) -> StoreFacts<'_>;
}

/// Short words for what callers ask most.
pub trait LedgerExt: Ledger {
    /// What the store's clock shows now.
    fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// Ends one job, and gives its row as it was ([`Ledger::end_all`]).
    fn end<'a>(&'a self, job: &'a str, claim: Option<Gen>) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let ended = self.end_all(&[End::of(Arc::from(job), claim)]).await?;
            Ok(ended.into_iter().next())
        })
    }

    /// What is due of jobs and calls ([`Ledger::due_of`]).
    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        self.due_of(LooksAfter::All, max)
    }

    /// Makes one change; says whether there was anything to change.
    fn set(&self, change: Change) -> Answer<'_, bool> {
        self.set_all(vec![change])
    }

    /// One job's row.
    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let rows = self.rows(RowsOf::Job(job)).await?;
            Ok(rows.into_iter().next())
        })
    }

    /// What may start under these limits, all of them together.
    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let keys: Vec<_> = limited.iter().map(|one| (one.space, &one.key)).collect();
            let KeyStates { states, now } = self.states(&keys).await?;
            let each = states.iter().zip(limited);
            Ok(Room::of_all(each.map(
                |(state, one)| match state.room(&one.limits, now) {
                    // Each takes nothing, so where one may start all may.
                    room if one.cost.by_calls && room.starts > 0 => Room::OPEN,
                    room => room,
                },
            )))
        })
    }

    /// A key's usage under the given windows and throttle; `None` when it has none at all.
    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        Answer::later(async move {
            let KeyStates { states, now } = self.states(&[(space, key)]).await?;
            let state = states.first();
            Ok(state.and_then(|state| Usage::of(state, limits, now)))
        })
    }

    /// How many jobs of each of these keys are out, in their order.
    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        Answer::later(async move {
            let keys: Vec<_> = keys.iter().map(|(space, key)| (*space, key)).collect();
            let known = self.states(&keys).await?;
            Ok(known.states.iter().map(KeyState::active).collect())
        })
    }

    /// How many jobs of ours are out, for drain and inspection.
    fn count_out(&self) -> Answer<'_, usize> {
        Answer::later(async move {
            let count = self.count_rows(CountOf::Out).await?;
            Ok(usize::try_from(count).unwrap_or(usize::MAX))
        })
    }

    /// Whether a queue was paused through some sidecar, and not resumed through one.
    fn is_paused<'a>(&'a self, queue: &'a str) -> Answer<'a, bool> {
        Answer::later(async move {
            let number = self.number(&fleet::paused(queue), Step::Read).await?;
            Ok(number.value != 0)
        })
    }

    /// Held rows of siblings in a lane that were [offered](super::Place::Offered); [`Change::Own`] takes one over.
    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        self.rows(RowsOf::Offered { scope, queue, max })
    }

    /// How many jobs of a queue siblings hold, over all scopes, as each said last ([`Change::Holds`]).
    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        self.count_rows(CountOf::HeldByOthers(queue))
    }

    /// The limits and settings that were made over HTTP, as far as this process knows. They are changed by
    /// [`Ledger::set_all`] and end by themselves.
    fn overrides(&self) -> &Overrides {
        self.facts().overrides
    }

    /// See [`StoreFacts::is_shared`].
    fn is_shared(&self) -> bool {
        self.facts().is_shared
    }

    /// See [`StoreFacts::is_alone`].
    fn is_alone(&self) -> bool {
        self.facts().is_alone
    }

    /// See [`StoreFacts::siblings`].
    fn siblings(&self) -> usize {
        self.facts().siblings
    }
}

impl<L: Ledger + ?Sized> LedgerExt for L {}

/// The states of some keys, in their order.
#[derive(Debug)]
pub struct KeyStates {
    /// One for each key; an unused one where nothing is kept.
    pub states: Vec<KeyState>,
    /// When they were so.
    pub now: Timestamp,
}

/// Of what a sidecar looks after the rows that are due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LooksAfter {
    /// Of jobs and calls.
    All,
    /// Of calls alone. It has no backend that it could ask about a job.
    Calls,
}

impl LooksAfter {
    /// Whether a row of this claim is among them.
    pub fn has(self, claim: &Claim) -> bool {
        self == LooksAfter::All || claim.egress().is_some()
    }
}

/// Which rows are asked for.
#[derive(Clone, Copy, Debug)]
pub enum RowsOf<'a> {
    /// That of one job.
    Job(&'a str),
    /// Held ones of siblings that may be taken over, of one queue.
    Offered {
        /// The scope in which they were claimed.
        scope: u64,
        /// The queue.
        queue: &'a str,
        /// At most so many.
        max: usize,
    },
    /// Those that are out, ours and those of siblings, in no order that matters: for inspection. Of siblings that are
    /// gone too.
    Out {
        /// At most so many.
        max: usize,
    },
}

/// What is counted.
#[derive(Clone, Copy, Debug)]
pub enum CountOf<'a> {
    /// Rows of ours that are out.
    Out,
    /// Jobs of this queue that siblings hold.
    HeldByOthers(&'a str),
}

/// What a store knows without being asked.
#[derive(Debug)]
pub struct StoreFacts<'a> {
    /// The limits and settings that were made over HTTP.
    pub overrides: &'a Overrides,
    /// Whether other sidecars may share it.
    pub is_shared: bool,
    /// Whether no other sidecar lives or has left rows.
    pub is_alone: bool,
    /// Whether it was so when the store last answered, and none has come since as far as was heard.
    pub was_alone: bool,
    /// How many other sidecars live.
    pub siblings: usize,
    /// How often it had other data than this sidecar knew.
    pub times_wiped: u64,
    /// How many jobs were ever adopted in it ([`Gen::ADOPTED`]), as [`Ledger::due_of`] found: what is held here may be
    /// among them.
    pub adopted: u64,
    /// Whether it may have forgotten its last writes without saying so.
    pub forgets_unsaid: bool,
    /// How far its clock may be from what [`Ledger::at`] says, in microseconds.
    pub doubt: u64,
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
