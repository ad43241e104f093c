//! The job keys that were named so far, so that they can be listed and shown, and the jobs that are known to
//! wait for them in the backend.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use parking_lot::{Mutex, MutexGuard};

use super::Sidecar;
use crate::json::Json;
use crate::limit::{Beside, Key, Limited, Limits, Space, counted_beside, each_job_key};
use crate::policy::{BROUGHT, strictest};
use crate::store::Claimed;
use crate::wire::ojs::REPLY_DEPTH;

/// So many of the keys that were named last are listed, and at most twice as many; the others are limited
/// all the same.
const LISTED: usize = 100_000;

/// Of so many jobs, and of at most twice as many, it is known that they wait in the backend for their keys.
const PENDING: usize = 25_000;

/// The job keys that were named so far.
#[derive(Default, Debug)]
pub(crate) struct KnownKeys {
    book: Mutex<Book>,
    /// Whether jobs of some key count in different windows. Nearly always none do.
    any_beside: AtomicBool,
}

#[derive(Default, Debug)]
struct Book {
    /// The keys with the numbers they were last named with.
    keys: Ages<Key, KeyNumbers, LISTED>,
    /// Jobs that wait in the backend, by their ids.
    pending: Ages<Arc<str>, LimitedJob, PENDING>,
}

/// The young ones become the old ones when they are so many, and the old ones are forgotten: those that were
/// not put for longest, without an order to keep.
#[derive(Debug)]
pub(super) struct Ages<K, V, const MOST: usize> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V, const MOST: usize> Default for Ages<K, V, MOST> {
    fn default() -> Ages<K, V, MOST> {
        Ages {
            young: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Clone + Eq + Hash, V, const MOST: usize> Ages<K, V, MOST> {
    pub(crate) fn put(&mut self, key: K, value: V) {
        self.age();
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    /// The value of a key that is named now, if it is known.
    pub(crate) fn named<'a>(&'a mut self, key: &'a K) -> Option<&'a mut V>
    where
        K: From<&'a K>,
    {
        self.age();
        match self.young.entry_ref(key) {
            EntryRef::Occupied(known) => Some(known.into_mut()),
            EntryRef::Vacant(place) => Some(place.insert(self.old.remove(key)?)),
        }
    }

    fn age(&mut self) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    fn remove<Q: Hash + hashbrown::Equivalent<K> + ?Sized>(&mut self, key: &Q) {
        // Nearly always both are empty.
        if !self.young.is_empty() && self.young.remove(key).is_some() || self.old.is_empty() {
            return;
        }
        self.old.remove(key);
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.young.iter().chain(&self.old)
    }

    fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.young.values_mut().chain(self.old.values_mut())
    }
}

/// How many jobs wait, by key and by queue.
pub(crate) type Waiting = HashMap<Key, HashMap<Arc<str>, u64>>;

/// A job that is enqueued or waits in the backend, by what limits it.
#[derive(Clone, Debug)]
pub(crate) struct LimitedJob {
    /// The queue it goes to.
    pub(crate) queue: Arc<str>,
    /// The limits.
    pub(crate) limited: Arc<[Limited]>,
}

/// The numbers of the job that named a key last.
#[derive(Clone, Default, Debug)]
pub(crate) struct KeyNumbers {
    /// Which policy named it first.
    pub(crate) policy: Arc<str>,
    /// All that limited the last job to which the file gave numbers under the key.
    pub(crate) file: Arc<[Limited]>,
    /// Those that a job brought.
    pub(crate) brought: Limits,
    /// Whether a job brought the key, with or without numbers.
    is_brought: bool,
    /// All that limited that job.
    pub(crate) all: Arc<[Limited]>,
    /// The windows of all its jobs, where they name different ones.
    beside: Option<Box<Beside>>,
}

impl KeyNumbers {
    /// Takes over what limits one job under a key; `all` is everything that limits it. Says whether jobs of the key count in
    /// different windows.
    fn follow<'a>(
        &mut self,
        all: &'a Arc<[Limited]>,
        of_key: impl Iterator<Item = &'a Limited> + Clone,
    ) -> bool {
        // Jobs of a kind share their limits.
        if Arc::ptr_eq(&self.all, all) {
            return false;
        }
        let last = std::mem::replace(&mut self.all, Arc::clone(all));
        if let Some(key) = of_key.clone().next() {
            let last = last.iter().filter(|one| one.shares_key(key));
            let (last, these) = (
                last.map(|one| &one.limits),
                of_key.clone().map(|one| &one.limits),
            );
            let is_first = last.clone().next().is_none();
            if self.beside.is_some() || !is_first && Beside::differ(last.clone(), these.clone()) {
                let beside = self.beside.get_or_insert_default();
                beside.see(last);
                beside.see(these);
            }
        }
        let is_brought = |one: &&Limited| *one.policy == *BROUGHT;
        let has_numbers = |one: &Limited| one.limits != Limits::default();
        // Who joins a key without numbers changes none.
        if (of_key.clone()).any(|one| !is_brought(&one) && has_numbers(one)) {
            self.file = Arc::clone(all);
        }
        let brought = of_key.filter(is_brought).map(|one| &one.limits);
        self.is_brought |= brought.clone().next().is_some();
        keep(&mut self.brought, brought);
        self.beside.is_some()
    }
}

/// Puts the strictest of all in the place of what is there. Who joins a key without numbers changes none.
fn keep<'a>(kept: &mut Limits, all: impl Iterator<Item = &'a Limits>) {
    let mut all = all.filter(|limits| **limits != Limits::default());
    let Some(first) = all.next() else { return };
    match all.next() {
        None if kept == first => {}
        None => *kept = first.clone(),
        Some(second) => {
            let both = strictest(first.clone(), second.clone());
            *kept = all.cloned().fold(both, strictest);
        }
    }
}

impl Book {
    /// A job is limited by these. Says whether it is to be looked up of one of its keys what counts beside.
    fn name(&mut self, limited: &Arc<[Limited]>) -> bool {
        let mut any = false;
        for (nth, one) in each_job_key(limited) {
            let of_key = limited.iter().skip(nth);
            let of_key = of_key.filter(|other| other.shares_key(one));
            match self.keys.named(&one.key) {
                Some(numbers) => any |= numbers.follow(limited, of_key),
                None => {
                    let mut numbers = KeyNumbers {
                        policy: one.policy.clone(),
                        ..KeyNumbers::default()
                    };
                    numbers.follow(limited, of_key);
                    self.keys.put(one.key.clone(), numbers);
                }
            }
        }
        any
    }

    /// A job waits in the backend, if it waits for a key.
    fn put(&mut self, job: Arc<str>, of: LimitedJob) {
        if of.limited.iter().any(|one| one.space == Space::Job) {
            self.pending.put(job, of);
        }
    }
}

impl KnownKeys {
    /// The key is listed from now on.
    pub(crate) fn know(&self, key: &Key) {
        let mut book = self.open();
        if book.keys.named(key).is_none() {
            book.keys.put(key.clone(), KeyNumbers::default());
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<KeyNumbers> {
        self.open().keys.get(key).cloned()
    }

    /// Whether a job brought the key itself.
    pub(super) fn is_brought(&self, key: &Key) -> bool {
        let book = self.open();
        book.keys.get(key).is_some_and(|of| of.is_brought)
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        let book = self.open();
        book.keys.iter().map(|(key, _)| key.clone()).collect()
    }

    /// How many jobs of each key are known to wait in each of the backend's queues.
    pub(crate) fn pending(&self) -> Waiting {
        let mut counts = Waiting::new();
        for (_, job) in self.open().pending.iter() {
            for (_, one) in each_job_key(&job.limited) {
                let queues = counts.entry_ref(&one.key).or_default();
                *queues.entry(Arc::clone(&job.queue)).or_default() += 1;
            }
        }
        counts
    }

    /// Jobs do not wait in the backend any more.
    pub(crate) fn left<'a>(&self, jobs: impl Iterator<Item = &'a str>) {
        let mut book = self.open();
        jobs.for_each(|job| book.pending.remove(job));
    }

    pub(crate) fn clear(&self) {
        *self.open() = Book::default();
        self.any_beside.store(false, Ordering::Relaxed);
    }

    /// Forgets the windows that jobs named under other settings.
    pub(crate) fn forget_windows(&self) {
        let mut book = self.open();
        for numbers in book.keys.values_mut() {
            (numbers.beside, numbers.all) = (None, Arc::default());
        }
        self.any_beside.store(false, Ordering::Relaxed);
    }

    /// These limits of one job with the windows and the spacing beside them that other jobs of its keys name, where a start
    /// counts too; `None`: there are no others.
    pub(crate) fn with_beside(&self, limited: &[Limited]) -> Option<Arc<[Limited]>> {
        if !self.any_beside.load(Ordering::Relaxed) {
            return None;
        }
        let book = self.open();
        counted_beside(limited, |one| book.keys.get(&one.key)?.beside.as_deref())
    }

    /// A job is limited by these.
    fn name(&self, book: &mut Book, limited: &Arc<[Limited]>) {
        if book.name(limited) {
            self.any_beside.store(true, Ordering::Relaxed);
        }
    }

    // Nothing in here panics between two steps that belong together.
    fn open(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }
}

/// Jobs were stored, as `reply` says, of which some bring limits.
pub(crate) fn enqueued(sidecar: &Sidecar, jobs: &[Option<LimitedJob>], reply: &[u8]) {
    if jobs.iter().all(Option::is_none) {
        return;
    }
    let whole = Json::parse(reply, REPLY_DEPTH).ok();
    let waiting = whole.map(|whole| waiting(whole, jobs)).unwrap_or_default();
    let named = &sidecar.control.named;
    let mut book = named.open();
    for job in jobs.iter().flatten() {
        named.name(&mut book, &job.limited);
    }
    // A worker may have been quicker than the reply.
    for (id, job) in waiting.into_iter().filter(|(id, _)| !sidecar.hold.has(id)) {
        book.put(id, job.clone());
    }
}

/// A job is limited by these from now on.
pub(crate) fn renamed(sidecar: &Sidecar, limited: &Arc<[Limited]>) {
    let named = &sidecar.control.named;
    named.name(&mut named.open(), limited);
}

/// These jobs were claimed.
pub(crate) fn noted<'a>(sidecar: &Sidecar, claims: impl Iterator<Item = &'a Claimed>) {
    let named = &sidecar.control.named;
    let mut book = named.open();
    for claimed in claims {
        book.pending.remove(&*claimed.job);
        named.name(&mut book, &claimed.limited);
    }
}

/// A job that was claimed waits in the backend again.
pub(crate) fn waits_again(sidecar: &Sidecar, claimed: &Claimed) {
    let of = LimitedJob {
        queue: Arc::clone(&claimed.queue),
        limited: Arc::clone(&claimed.limited),
    };
    let mut named = sidecar.control.named.open();
    named.put(Arc::clone(&claimed.job), of);
}

/// The ids of the jobs in the reply to an enqueue, which has them in the order in which they were sent; those
/// that wait for a time are left out.
fn waiting<'b>(whole: Json<'_>, sent: &'b [Option<LimitedJob>]) -> Vec<(Arc<str>, &'b LimitedJob)> {
    let jobs: Vec<Json<'_>> = match whole.get_exact("jobs") {
        Some(jobs) => jobs.items().collect(),
        None => vec![whole.get_exact("job").unwrap_or(whole)],
    };
    if jobs.len() != sent.len() {
        return Vec::new();
    }
    let each = jobs.into_iter().zip(sent).filter_map(|(job, brought)| {
        let brought = brought.as_ref()?;
        let id = Arc::from(&*job.text_of("id")?);
        (!job.says("state", "scheduled")).then_some((id, brought))
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(n: usize) -> Limited {
        Limited::new(
            Space::Job,
            Key::new(&format!("k{n}")).unwrap(),
            Limits::default(),
            Arc::from("job"),
        )
    }

    #[test]
    fn keys_that_were_not_named_for_longest_make_place() {
        let named = KnownKeys::default();
        let note = |n: usize| named.open().name(&Arc::from([limited(n)]));
        let knows = |n: usize| named.get(&limited(n).key).is_some();
        for n in 0..=LISTED {
            note(n);
        }
        assert!(knows(LISTED), "it is listed");
        assert_eq!(named.keys().len(), LISTED + 1);
        note(0);
        for n in LISTED + 1..2 * LISTED {
            note(n);
        }
        assert!(knows(0), "named again");
        assert!(!knows(1));
        assert!(named.keys().len() <= 2 * LISTED);
    }

    #[test]
    fn a_new_file_forgets_windows_of_other_jobs() {
        let named = KnownKeys::default();
        let note = |limits: &Arc<[Limited]>| named.name(&mut named.open(), limits);
        let (plain, mut windowed) = (Arc::from([limited(1)]), limited(1));
        windowed.limits.rates = vec![crate::limit::Rate {
            limit: std::num::NonZeroU32::MIN,
            period: std::num::NonZeroU64::MIN,
            window: Default::default(),
        }];
        note(&plain);
        assert!(named.with_beside(&plain).is_none());
        note(&Arc::from([windowed]));
        let both = named.with_beside(&plain).unwrap();
        assert_eq!(both[0].limits.rates.len(), 1);
        named.forget_windows();
        note(&plain);
        assert!(named.with_beside(&plain).is_none());
    }

    #[test]
    fn jobs_that_wait_are_counted_once_and_some_are_forgotten() {
        let named = KnownKeys::default();
        let waits = LimitedJob {
            queue: "q".into(),
            limited: [limited(1), limited(1), limited(2)].into(),
        };
        let put = |n: usize| named.open().put(n.to_string().into(), waits.clone());
        let count = |key: usize| {
            named
                .pending()
                .get(&limited(key).key)
                .and_then(|queues| queues.get("q").copied())
        };
        (0..3).for_each(put);
        put(0);
        assert_eq!((count(1), count(2), count(3)), (Some(3), Some(3), None));
        named.left(["1", "7"].into_iter());
        assert_eq!(count(1), Some(2));
        (0..3 * PENDING).for_each(put);
        assert!(named.open().pending.iter().count() <= 2 * PENDING);
        assert!(count(1) >= Some(PENDING as u64));
    }
}
