//! A store that fails on purpose: any other store with delays and errors put in. The unit tests of the store use
//! it too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use ojs_limit::{Key, Reserved, Space, Timestamp};
use ojs_store::{
    Answer, Change, Claimed, CountOf, End, Gen, KeyStates, Ledger, LooksAfter, Number, Row, RowsOf,
    Step, StoreError, StoreFacts, Taken, Wake, Wish,
};

/// What goes wrong with one operation. The default is nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fault {
    /// How long the operation takes to reach the store.
    pub delay: Duration,
    /// It fails and is not done.
    pub before: Option<StoreError>,
    /// It is done twice, as where a connection breaks and what was sent is sent again; the second answer
    /// counts.
    pub twice: bool,
    /// How long its answer is under way, after it was done.
    pub late: Duration,
    /// It is done, and its answer is this error.
    pub after: Option<StoreError>,
}

impl Fault {
    /// Nothing goes wrong.
    pub const NONE: Fault = Fault {
        delay: Duration::ZERO,
        before: None,
        twice: false,
        late: Duration::ZERO,
        after: None,
    };

    /// The operation fails so, and is not done.
    pub fn failed(error: StoreError) -> Fault {
        Fault {
            before: Some(error),
            ..Fault::NONE
        }
    }

    /// The store is not there.
    pub fn gone() -> Fault {
        Fault::failed(StoreError::Unavailable("switched off".into()))
    }

    /// The operation is done, and no one hears of it.
    pub fn unheard() -> Fault {
        Fault {
            after: Some(StoreError::Timeout),
            ..Fault::NONE
        }
    }

    /// The operation is done at once, and its answer comes after `late`.
    pub fn late(late: Duration) -> Fault {
        Fault {
            late,
            ..Fault::NONE
        }
    }
}

/// Any store, with faults. Each operation takes the first of: the next scripted fault, the
/// standing one, a random one.
pub struct Faulty {
    inner: Arc<dyn Ledger>,
    plan: Mutex<Plan>,
    calls: AtomicUsize,
    /// Siblings that live beside those that the store knows.
    siblings: AtomicUsize,
    /// See [`StoreFacts::forgets_unsaid`].
    forgets_unsaid: AtomicBool,
    /// Whether it says that no other sidecar is there, whatever the store knows.
    alone: AtomicBool,
    /// Whether the rows that it shows are a sibling's.
    theirs: AtomicBool,
}

struct Plan {
    script: VecDeque<Fault>,
    standing: Option<Fault>,
    random: Option<Random>,
}

struct Random {
    rng: SmallRng,
    one_in: u32,
    faults: Vec<Fault>,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl Faulty {
    /// `inner` without faults, until told otherwise.
    pub fn new(inner: Arc<dyn Ledger>) -> Faulty {
        Faulty {
            inner,
            plan: Mutex::new(Plan {
                script: VecDeque::new(),
                standing: None,
                random: None,
            }),
            calls: AtomicUsize::new(0),
            siblings: AtomicUsize::new(0),
            forgets_unsaid: AtomicBool::new(true),
            alone: AtomicBool::new(false),
            theirs: AtomicBool::new(false),
        }
    }

    /// From now on so many siblings more seem to live.
    pub fn with_siblings(&self, more: usize) {
        self.siblings.store(more, Ordering::Relaxed);
    }

    /// From now on no other sidecar seems to be there, but for those of [`Faulty::with_siblings`].
    pub fn seems_alone(&self) {
        self.alone.store(true, Ordering::Relaxed);
    }

    /// From now on all rows that it shows seem to be a sibling's.
    pub fn rows_are_theirs(&self) {
        self.theirs.store(true, Ordering::Relaxed);
    }

    /// From now on it says what it has forgotten.
    pub fn never_forgets_unsaid(&self) {
        self.forgets_unsaid.store(false, Ordering::Relaxed);
    }

    /// How many operations the store was asked for.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Puts faults at the end of the script: one for each of the next operations.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        self.plan().script.extend(faults);
    }

    /// Sets what goes wrong with every operation past the script; `None` ends it.
    pub fn standing(&self, fault: Option<Fault>) {
        self.plan().standing = fault;
    }

    /// From now on about one operation in `one_in` meets one of `faults`, as the seed has it.
    pub fn random(&self, seed: u64, one_in: u32, faults: Vec<Fault>) {
        self.plan().random = Some(Random {
            rng: SmallRng::seed_from_u64(seed),
            one_in: one_in.max(1),
            faults,
        });
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock()
    }

    fn next(&self) -> Fault {
        let mut plan = self.plan();
        if let Some(fault) = plan.script.pop_front().or_else(|| plan.standing.clone()) {
            return fault;
        }
        let Some(random) = &mut plan.random else {
            return Fault::NONE;
        };
        if random.faults.is_empty() || !random.rng.random_ratio(1, random.one_in) {
            return Fault::NONE;
        }
        let which = random.rng.random_range(0..random.faults.len());
        random.faults.get(which).cloned().unwrap_or_default()
    }

    /// Runs an operation with the next fault. It reaches the store when its turn has come, not when
    /// it was called.
    fn run<'a, T: Send + 'a>(
        &'a self,
        operation: impl Fn() -> Answer<'a, T> + Send + Sync + 'a,
    ) -> Answer<'a, T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let fault = self.next();
        Answer::later(async move {
            pause(fault.delay).await;
            if let Some(error) = fault.before {
                return Err(error);
            }
            if fault.twice {
                drop(operation().await);
            }
            let answer = operation().await;
            pause(fault.late).await;
            fault.after.map_or(answer, Err)
        })
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl Ledger for Faulty {
    fn at(&self, moment: Instant) -> Timestamp {
        self.inner.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        self.run(move || self.inner.take(asks, want))
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        self.run(move || self.inner.back(job, claim))
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        self.run(move || self.inner.end_all(ends))
    }

    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        self.run(move || self.inner.due_of(which, max))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        self.run(move || self.inner.set_all(changes.clone()))
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        self.run(move || self.inner.states(keys))
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let rows = self.run(move || self.inner.rows(which));
        Answer::later(async move {
            let (mut rows, theirs) = (rows.await?, self.theirs.load(Ordering::Relaxed));
            rows.iter_mut().for_each(|row| row.ours &= !theirs);
            Ok(rows)
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        self.run(move || self.inner.count_rows(which))
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.run(move || self.inner.number(name, step))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.run(move || self.inner.reserve(wish))
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        self.run(move || self.inner.announce(rows))
    }

    fn wake(&self) -> std::pin::Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        self.inner.wake()
    }

    fn facts(&self) -> StoreFacts<'_> {
        let standing = self.inner.facts();
        let more = self.siblings.load(Ordering::Relaxed);
        let alone = self.alone.load(Ordering::Relaxed);
        StoreFacts {
            is_alone: more == 0 && (standing.is_alone || alone),
            was_alone: more == 0 && (standing.was_alone || alone),
            siblings: standing.siblings + more,
            forgets_unsaid: self.forgets_unsaid.load(Ordering::Relaxed),
            ..standing
        }
    }
}
