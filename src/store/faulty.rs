//! A store that fails on purpose, for tests: any other store with delays and errors put in.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::{
    Answer, Change, Claimed, Gen, Number, Overrides, Place, Room, Row, Step, Store, StoreError,
    Usage, Verdict, Wake, Wish,
};
use crate::limit::{Key, Limited, Limits, Reserved, Space, Timestamp};

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

    /// The store is not there.
    pub fn gone() -> Fault {
        Fault {
            before: Some(StoreError::Unavailable("switched off".into())),
            ..Fault::NONE
        }
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
    inner: Arc<dyn Store>,
    plan: Mutex<Plan>,
    calls: AtomicUsize,
    /// Siblings that live beside those that the store knows.
    siblings: AtomicUsize,
    /// See [`Store::forgets_unsaid`].
    forgets_unsaid: AtomicBool,
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
    pub fn new(inner: Arc<dyn Store>) -> Faulty {
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
        }
    }

    /// From now on so many siblings more seem to live.
    pub fn with_siblings(&self, more: usize) {
        self.siblings.store(more, Ordering::Relaxed);
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

impl Store for Faulty {
    fn at(&self, moment: Instant) -> Timestamp {
        self.inner.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        self.run(move || self.inner.take(asks, want))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.run(move || self.inner.reserve(wish))
    }

    fn doubt(&self) -> u64 {
        self.inner.doubt()
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        self.run(move || self.inner.claimed(claims))
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        self.run(move || self.inner.back(job, generation))
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        self.run(move || self.inner.end(job, generation))
    }

    fn end_all<'a>(&'a self, claims: &'a [(Arc<str>, Gen)]) -> Answer<'a, ()> {
        self.run(move || self.inner.end_all(claims))
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        self.run(move || self.inner.due(max))
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        self.run(move || self.inner.set(change.clone()))
    }

    fn lead(&self, micros: u64) {
        self.inner.lead(micros);
    }

    fn times_wiped(&self) -> u64 {
        self.inner.times_wiped()
    }

    fn forgets_unsaid(&self) -> bool {
        self.forgets_unsaid.load(Ordering::Relaxed)
    }

    fn overrides(&self) -> &Overrides {
        self.inner.overrides()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        self.run(move || self.inner.row(job))
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        self.run(move || self.inner.room(limited))
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        self.run(move || self.inner.usage(space, key, limits))
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        self.run(move || self.inner.active(keys))
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        self.run(move || self.inner.count(place))
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.run(move || self.inner.number(name, step))
    }

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        self.run(move || self.inner.pause(queue, paused))
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn is_alone(&self) -> bool {
        self.siblings.load(Ordering::Relaxed) == 0 && self.inner.is_alone()
    }

    fn siblings(&self) -> usize {
        self.inner.siblings() + self.siblings.load(Ordering::Relaxed)
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        self.run(move || self.inner.offered(scope, queue, max))
    }

    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        self.run(move || self.inner.held_by_others(queue))
    }

    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        self.run(move || self.inner.rows_of_others(max))
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, Vec<Arc<str>>> {
        self.run(move || self.inner.announce(rows))
    }

    fn wake(&self) -> std::pin::Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        self.inner.wake()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    fn shut(until: u64) -> Change {
        Change::Shut {
            key: Key::new("k").unwrap(),
            until: Timestamp(until),
            at_least: false,
            probe: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn faults_come_before_and_after_the_deed() {
        let store = Faulty::new(Arc::new(MemoryStore::new(1_000_000)));
        store.script([
            Fault::gone(),
            Fault::unheard(),
            Fault::late(Duration::from_millis(7)),
        ]);
        assert!(matches!(
            store.set(shut(9_000_000)).await,
            Err(StoreError::Unavailable(_))
        ));
        assert_eq!(store.set(shut(9_000_000)).await, Err(StoreError::Timeout));
        let asked = store.now();
        assert_eq!(
            store.set(shut(9_000_000)).await,
            Ok(false),
            "the one before was done, the first was not"
        );
        assert_eq!(store.now().since(asked), 7_000);
        assert_eq!(store.set(shut(0)).await, Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_it_is_ended() {
        let store = Faulty::new(Arc::new(MemoryStore::new(0)));
        store.standing(Some(Fault::gone()));
        for _ in 0..3 {
            assert!(store.count(Place::Out).await.is_err());
        }
        store.standing(None);
        assert_eq!(store.count(Place::Out).await, Ok(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_seed_gives_the_same_faults_again() {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let store = Faulty::new(Arc::new(MemoryStore::new(0)));
            store.random(42, 4, vec![Fault::gone(), Fault::unheard()]);
            let mut failed = Vec::new();
            for _ in 0..200 {
                failed.push(store.count(Place::Held).await.err());
            }
            runs.push(failed);
        }
        let failures = runs[0].iter().flatten().count();
        assert!((20..90).contains(&failures), "{failures} of 200");
        assert_eq!(runs[0], runs[1]);
    }
}
