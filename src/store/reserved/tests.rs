//! A fleet on one store, on tokio's clock: what it starts, what that costs, and that it is never too much.

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};
use tokio::task::JoinSet;

use super::*;
use crate::claims::TestClaim as _;
use crate::faulty::{Fault, Faulty};
use crate::guard::{Guard, OnStoreError};
use crate::memory::MemoryStore;
use crate::{Change, Claim, Claimed, Clock, Gen, Ledger, LedgerExt, Place, RowsOf, Verdict};
use ojs_limit::{EARLY, Key, Limited, Limits, OnLimit, Rate, Space, Strategy, Throttle, Timestamp};

const T: u64 = 1_800_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn spaced(limit: u32, period: u64) -> Limits {
    Limits {
        throttle: Some(Throttle {
            limit: NonZeroU32::new(limit).unwrap(),
            period: NonZeroU64::new(period).unwrap(),
            burst: NonZeroU32::MIN,
            measure: Default::default(),
        }),
        ..Limits::default()
    }
}

fn windowed(limit: u32, period: u64) -> Limits {
    Limits {
        rates: vec![Rate {
            limit: NonZeroU32::new(limit).unwrap(),
            period: NonZeroU64::new(period).unwrap(),
            window: Default::default(),
        }],
        ..Limits::default()
    }
}

fn claimed(job: &str, limits: &Limits) -> Claimed {
    Claimed::from(Claim::under(job, limits.clone(), "hot"))
}

fn on(inner: Arc<dyn Ledger>) -> Arc<ReservedStore> {
    let guard = Guard::new(inner, OnStoreError::Closed);
    let store = ReservedStore::new(Arc::new(guard));
    store.reserve_for(HashSet::from([Arc::from("hot")]));
    Arc::new(store)
}

/// When a start counts, and when it left.
type Start = (Timestamp, Timestamp);

struct Ran {
    starts: Vec<Start>,
    calls: usize,
    took: u64,
}

/// Sidecars with so many workers each for so many seconds: every worker takes a job, works for a while, and
/// comes again. The store is a millisecond away.
async fn fleet(workers: &[usize], limits: &Limits, seconds: u64, seed: u64) -> Ran {
    let shared = Arc::new(MemoryStore::on(Clock::new(T)));
    let faulty = Arc::new(Faulty::new(shared));
    faulty.standing(Some(Fault::late(Duration::from_millis(1))));
    let end = Timestamp(T + seconds * SECOND);
    let mut all = JoinSet::new();
    for (nth, count) in workers.iter().enumerate() {
        let store = on(faulty.clone());
        for worker in 0..*count {
            let (store, limits) = (store.clone(), limits.clone());
            let rng = SmallRng::seed_from_u64(seed << 32 | (nth as u64) << 16 | worker as u64);
            let name = format!("{nth}-{worker}");
            all.spawn(async move { work(&*store, &name, &limits, rng, end).await });
        }
        all.spawn(async move {
            while store.now() < end {
                store.due(100).await.unwrap();
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            Vec::new()
        });
    }
    let mut starts: Vec<Start> = all.join_all().await.into_iter().flatten().collect();
    starts.sort_unstable();
    Ran {
        starts,
        calls: faulty.calls(),
        took: seconds * SECOND,
    }
}

async fn work(
    store: &dyn Ledger,
    name: &str,
    limits: &Limits,
    mut rng: SmallRng,
    end: Timestamp,
) -> Vec<Start> {
    let mut starts = Vec::new();
    let mut nth = 0;
    while store.now() < end {
        let ask = claimed(&format!("{name}-{nth}"), limits);
        match store.take(&[&ask], 1).await.unwrap().verdicts.remove(0) {
            Verdict::Started { at } => {
                starts.push((at, store.now()));
                nth += 1;
                let works = Duration::from_micros(rng.random_range(500..30_000));
                tokio::time::sleep(works).await;
                assert!(store.end(&ask.job, None).await.unwrap().is_some());
            }
            Verdict::Refused { at: Some(at), .. } => {
                let wait = at.since(store.now()).saturating_sub(EARLY);
                tokio::time::sleep(Duration::from_micros(wait.max(100))).await;
            }
            other => panic!("{other:?}"),
        }
    }
    starts
}

impl Ran {
    /// All of P3: each start near its time, and the times an interval apart.
    fn assert_spaced(&self, step: u64) {
        for (at, left) in &self.starts {
            assert!(
                left.plus(EARLY) >= *at && *left <= at.plus(EARLY),
                "{at:?} {left:?}"
            );
        }
        for pair in self.starts.windows(2) {
            assert!(pair[1].0.since(pair[0].0) >= step, "{pair:?}");
        }
    }

    /// All of P2: no interval of the period's length with more starts than the limit.
    fn assert_windows(&self, limit: usize, period: u64) {
        let mut left: Vec<Timestamp> = self.starts.iter().map(|(_, left)| *left).collect();
        left.sort_unstable();
        for pair in left.windows(limit + 1) {
            assert!(pair[limit].since(pair[0]) >= period, "{:?}", pair[0]);
        }
    }

    fn used(&self, per_second: u64) -> f64 {
        self.starts.len() as f64 / (self.took as f64 / SECOND as f64 * per_second as f64)
    }

    fn calls_per_start(&self) -> f64 {
        self.calls as f64 / self.starts.len() as f64
    }
}

const UNEVEN: [usize; 8] = [60, 20, 8, 4, 2, 1, 1, 1];
const EVEN: [usize; 8] = [8; 8];

#[tokio::test(start_paused = true)]
async fn a_throttle_is_kept_and_used_for_a_fraction_of_the_calls() {
    for (workers, seed) in [
        (UNEVEN, 1),
        (UNEVEN, 2),
        (EVEN, 3),
        ([40, 1, 1, 1, 1, 1, 1, 1], 4),
    ] {
        let ran = fleet(&workers, &spaced(1_000, SECOND), 4, seed).await;
        ran.assert_spaced(1_000);
        let (used, calls) = (ran.used(1_000), ran.calls_per_start());
        println!("throttle {workers:?}: used {used:.4}, calls per start {calls:.3}");
        assert!(used >= 0.98, "{used}");
        assert!(calls <= 0.4, "{calls}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_is_kept_and_used_for_a_fraction_of_the_calls() {
    for seed in 0..2 {
        let ran = fleet(&UNEVEN, &windowed(2_000, 2 * SECOND), 6, seed).await;
        ran.assert_windows(2_000, 2 * SECOND);
        let (used, calls) = (ran.used(1_000), ran.calls_per_start());
        println!("window {seed}: used {used:.4}, calls per start {calls:.3}");
        assert!(used >= 0.98, "{used}");
        assert!(calls <= 0.4, "{calls}");
    }
}

#[tokio::test(start_paused = true)]
async fn both_at_once_are_kept() {
    let mut limits = windowed(2_000, 4 * SECOND);
    limits.throttle = spaced(1_000, SECOND).throttle;
    let ran = fleet(&UNEVEN, &limits, 12, 1).await;
    ran.assert_spaced(1_000);
    ran.assert_windows(2_000, 4 * SECOND);
    assert!(ran.used(500) >= 0.97, "{}", ran.used(500));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_hot_is_asked_for_each_time() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner.clone());
    let slow = claimed("a", &spaced(10, SECOND));
    assert!(store.take(&[&slow], 1).await.unwrap().verdicts[0].is_started());
    assert!(
        inner.row("a").await.unwrap().is_some(),
        "it has its row there"
    );
    let hot = claimed("b", &spaced(1_000, SECOND));
    store.take(&[&hot], 1).await.unwrap();
    assert!(inner.row("b").await.unwrap().is_none());
    assert!(store.row("b").await.unwrap().unwrap().is_out());
    let unused = Limited {
        key: Key::new("unused").unwrap(),
        ..hot.limited[0].clone()
    };
    let mut two_limits = claimed("c", &Limits::default());
    two_limits.limited = [unused.clone(), unused].into();
    store.take(&[&two_limits], 1).await.unwrap();
    assert!(
        inner.row("c").await.unwrap().is_some(),
        "two limits at once"
    );
    assert_eq!(store.count_out().await.unwrap(), 3);
    for max in 0..=4 {
        let rows = store.rows(RowsOf::Out { max }).await.unwrap();
        assert_eq!(rows.len(), max.min(3), "here and there");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_held_has_a_row_nowhere_and_an_offer_has_one_in_the_store() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner.clone());
    let held = claimed("a", &spaced(1_000, SECOND));
    let named = store.take(&[&held], 0).await.unwrap();
    assert_eq!(named.verdicts, [Verdict::Unasked]);
    assert!(store.row("a").await.unwrap().is_none());
    let offer = Change::Offer {
        claimed: held.clone(),
    };
    assert!(store.set(offer).await.unwrap());
    let there = inner.row("a").await.unwrap().unwrap();
    assert_eq!(there.place, Place::Offered);
    assert_eq!(store.count_out().await.unwrap(), 0);
    // It is ours again, and starts here.
    let own = |next| Change::Own {
        job: held.job.clone(),
        generation: Gen(1),
        next: Gen(next),
        until: Timestamp(T).plus(held.visibility),
    };
    assert!(store.set(own(2)).await.unwrap());
    assert!(!store.set(own(3)).await.unwrap());
    let mut again = held.clone();
    again.generation = Gen(2);
    store.take(&[&again], 0).await.unwrap();
    assert!(inner.row("a").await.unwrap().is_none(), "it was named");
    assert!(store.take(&[&again], 1).await.unwrap().verdicts[0].is_started());
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!((row.is_out(), row.claimed.generation), (true, Gen(2)));
    assert_eq!(store.count_out().await.unwrap(), 1);
    assert!(inner.row("a").await.unwrap().is_none());
}

/// Where no turn was to be had its row is in the store.
#[tokio::test(start_paused = true)]
async fn what_is_out_by_the_store_ends_for_a_newer_claim_only() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new(T))));
    let store = on(faulty.clone());
    let out = claimed("a", &spaced(1_000, SECOND));
    faulty.script([Fault::gone()]);
    assert!(store.take(&[&out], 1).await.unwrap().verdicts[0].is_started());
    assert!(faulty.row("a").await.unwrap().is_some());
    // Named late, and asked for twice.
    for want in [0, 1] {
        let taken = store.take(&[&out], want).await.unwrap();
        assert_eq!(taken.verdicts, [Verdict::HasRow]);
        assert!(taken.ended.is_empty());
        assert!(faulty.row("a").await.unwrap().is_some());
    }
    // The backend gave it out again: from here on it is kept here.
    let mut again = out;
    again.generation = Gen(2);
    let taken = store.take(&[&again], 1).await.unwrap();
    assert!(matches!(taken.verdicts[0], Verdict::Started { .. }));
    assert_eq!(taken.ended.len(), 1);
    assert!(faulty.row("a").await.unwrap().is_none());
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!(row.claimed.generation, Gen(2));
    assert_eq!(store.count_out().await.unwrap(), 1);
}

/// Starts of its policy are reserved no more, because of another file or a clock in doubt.
#[tokio::test(start_paused = true)]
async fn what_is_out_here_does_not_start_in_the_store_too() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner.clone());
    let out = claimed("a", &spaced(1_000, SECOND));
    let first = store.take(&[&out], 1).await.unwrap().verdicts;
    assert!(first[0].is_started() && inner.row("a").await.unwrap().is_none());
    store.reserve_for(HashSet::new());
    let again = store.take(&[&out], 1).await.unwrap().verdicts;
    assert_eq!(again, [Verdict::HasRow]);
    assert!(inner.row("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_did_not_happen_leaves_its_turn_to_the_next() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner.clone());
    let limits = windowed(1_000, SECOND);
    let (a, b) = (claimed("a", &limits), claimed("b", &limits));
    let first = store.take(&[&a], 1).await.unwrap().verdicts;
    assert!(store.back("a", Gen(1)).await.unwrap());
    assert!(!store.back("a", Gen(1)).await.unwrap());
    assert_eq!(store.take(&[&b], 1).await.unwrap().verdicts, first);
    assert_eq!(counted(&*inner, &limits).await, 1);
    // What nobody used is given back.
    assert!(store.back("b", Gen(1)).await.unwrap());
    tokio::time::sleep(Duration::from_millis(20)).await;
    store.due(10).await.unwrap();
    assert_eq!(counted(&*inner, &limits).await, 0);
}

async fn counted(store: &dyn Ledger, limits: &Limits) -> u32 {
    let key = Key::new("k").unwrap();
    let usage = store.usage(Space::Job, &key, limits).await.unwrap();
    usage.map_or(0, |usage| usage.windows[0].0)
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_grant_is_asked_for_the_start() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new(T))));
    let store = on(faulty.clone());
    let a = claimed("a", &spaced(1_000, SECOND));
    faulty.script([Fault::gone()]);
    assert!(store.take(&[&a], 1).await.unwrap().verdicts[0].is_started());
    assert!(faulty.row("a").await.unwrap().is_some());
    assert!(store.end("a", None).await.unwrap().is_some());
    assert!(faulty.row("a").await.unwrap().is_none());
    faulty.standing(Some(Fault::gone()));
    let b = claimed("b", &spaced(1_000, SECOND));
    assert!(store.take(&[&b], 1).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_started_here_waits_for_no_question_about_the_rest() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new(T))));
    let store = on(faulty.clone());
    let limits = spaced(1_000, SECOND);
    let (a, mut strict) = (claimed("a", &limits), claimed("b", &limits));
    let limited = Limited {
        policy: Arc::from("strict"),
        ..strict.limited[0].clone()
    };
    strict.limited = Arc::from([limited]);
    let verdicts = store.take(&[&a, &strict], 2).await.unwrap().verdicts;
    assert!(verdicts[0].is_started());
    assert_eq!(verdicts.len(), 1, "the store was not asked for the other");
    assert!(store.end("a", None).await.unwrap().is_some());
    faulty.script([Fault::gone()]);
    assert!(
        store.take(&[&strict, &a], 1).await.is_err(),
        "nothing started"
    );
}

/// Jobs that start together leave together: each within 5 ms of when it counts.
#[tokio::test(start_paused = true)]
async fn nothing_that_started_waits_for_turns_of_others() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::on(Clock::new(T)))));
    let store = on(faulty.clone());
    let limits = windowed(40, SECOND);
    let asks: Vec<Claimed> = (0..4).map(|n| claimed(&format!("j{n}"), &limits)).collect();
    let asks: Vec<&Claimed> = asks.iter().collect();
    faulty.script([Fault::NONE, Fault::late(Duration::from_millis(100))]);
    let mut started = 0;
    for verdict in store.take(&asks, 4).await.unwrap().verdicts {
        if let Verdict::Started { at } = verdict {
            started += 1;
            assert!(store.now() <= at.plus(EARLY), "{at:?} {:?}", store.now());
        }
    }
    assert_eq!(started, 2, "as many as were asked for at once");
}

/// A store from which turns come when they are over is asked for each start, and some time later for turns again.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_far_away_is_asked_for_each_start() {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::on(Clock::new(T)))));
    let store = on(faulty.clone());
    let limits = windowed(200, SECOND);
    faulty.standing(Some(Fault::late(Duration::from_millis(20))));
    let mut before = faulty.calls();
    let mut calls = Vec::new();
    for n in 0..5 {
        if n == 4 {
            tokio::time::advance(Duration::from_secs(2)).await;
            faulty.standing(None);
            before = faulty.calls();
        }
        let ask = claimed(&format!("j{n}"), &limits);
        let taken = tokio::time::timeout(Duration::from_secs(2), store.take(&[&ask], 1)).await;
        let taken = taken.expect("it is no question without an end").unwrap();
        assert!(taken.verdicts[0].is_started(), "{n}: {taken:?}");
        calls.push(faulty.calls() - std::mem::replace(&mut before, faulty.calls()));
    }
    assert_eq!(
        calls,
        [2, 1, 1, 1, 1],
        "turns once, then starts, then turns"
    );
    let there = store.row("j4").await.unwrap();
    assert!(there.unwrap().is_out());
    assert!(
        faulty.row("j4").await.unwrap().is_none(),
        "it started in a turn"
    );
}

#[tokio::test(start_paused = true)]
async fn other_numbers_hold_from_the_next_start_on() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner);
    let at = |verdicts: Vec<Verdict>| match verdicts[0] {
        Verdict::Started { at } | Verdict::Refused { at: Some(at), .. } => at,
        ref other => panic!("{other:?}"),
    };
    let fast = spaced(10_000, SECOND);
    let many: Vec<Claimed> = (0..8).map(|n| claimed(&format!("f{n}"), &fast)).collect();
    let many: Vec<&Claimed> = many.iter().collect();
    let first = at(store.take(&many, 8).await.unwrap().verdicts);
    assert_eq!(first, Timestamp(T));
    let slow = claimed("s", &spaced(40, SECOND));
    let next = at(store.take(&[&slow], 1).await.unwrap().verdicts);
    let last = first.plus(700);
    assert!(
        next >= last.plus(25_000),
        "after all that were granted before: {next:?}"
    );
    tokio::time::advance(Duration::from_millis(26)).await;
    let verdict = store.take(&[&slow], 1).await.unwrap().verdicts.remove(0);
    assert!(verdict.is_started(), "{verdict:?}");
    let slower = claimed("t", &spaced(40, SECOND));
    let last = at(store.take(&[&slower], 1).await.unwrap().verdicts);
    assert!(last >= next.plus(25_000), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shut_key_starts_nothing_that_was_reserved() {
    let inner = Arc::new(MemoryStore::new(T));
    let store = on(inner);
    let limits = windowed(1_000, SECOND);
    let take = async |job: &str| {
        let taken = store.take(&[&claimed(job, &limits)], 1).await.unwrap();
        taken.verdicts.into_iter().next().unwrap()
    };
    for n in 0..40 {
        take(&format!("j{n}")).await;
    }
    let shut = Change::Shut {
        key: Key::new("k").unwrap(),
        until: Timestamp(T + SECOND),
        at_least: false,
    };
    assert!(store.set(shut).await.unwrap());
    let verdict = take("late").await;
    assert!(
        matches!(&verdict, Verdict::Refused { why, .. } if why.strategy == Strategy::Shut),
        "{verdict:?}"
    );
}

#[test]
fn what_cannot_be_reserved() {
    let wait = OnLimit::Wait;
    assert_eq!(objection(&spaced(1, 1), wait), None);
    assert_eq!(objection(&windowed(1, 1), wait), None);
    assert!(objection(&Limits::default(), wait).is_some());
    assert!(objection(&spaced(1, 1), OnLimit::Drop).is_some());
    let slots = Limits {
        concurrency: Some(1),
        ..spaced(1, 1)
    };
    assert!(objection(&slots, wait).is_some());
    let mut fixed = windowed(1, 1);
    fixed.rates[0].window = ojs_limit::WindowKind::Fixed;
    assert!(objection(&fixed, wait).is_some());
}
