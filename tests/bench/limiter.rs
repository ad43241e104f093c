//! What a decision costs, and what a key weighs: `cargo bench --bench limiter`.

use std::collections::HashMap;
use std::future::Future;
use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use mimalloc::MiMalloc;
use ojs_throttle::limit::{Key, KeyState, Limited, Limits, Rate, Space, Throttle, Timestamp};
use ojs_throttle::store::memory::MemoryStore;
use ojs_throttle::store::{Claim, Claimed, Gen, Ledger, LedgerExt, Verdict};

/// As in the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn main() {
    println!("{:<58} {:>10} {:>10}", "", "measured", "target");
    // First, while nothing else has taken memory.
    let weight = weigh(1_000_000);
    row(
        "1,000,000 keys of 24 bytes, all three limits, MiB",
        weight,
        Some(250.0),
    );
    for keys in [1, 10_000, 1_000_000] {
        let target = (keys == 10_000).then_some(150.0);
        row(
            &format!("decision, all three limits, {keys} keys, ns"),
            decision(keys, 1),
            target,
        );
    }
    // At 7,500 keys each window is a ring of 200 starts.
    let (plain, priced) = (decision(7_500, 1), decision(7_500, 20));
    row(
        "decision with a cost by one without",
        priced / plain,
        Some(1.2),
    );
    for keys in [1, 10_000] {
        let (take, end) = take_and_end(keys);
        let target = (keys == 10_000).then_some(400.0);
        row(
            &format!("take with its row, one job a call, {keys} keys, ns"),
            take,
            target,
        );
        row(&format!("end, {keys} keys, ns"), end, None);
    }
    row(
        "take, ten jobs a call, 10000 keys, ns a job",
        ten_at_once(10_000),
        None,
    );
    row(
        "take that is refused, 10000 keys, ns",
        refused(10_000),
        None,
    );
    row("room of one key, 10000 keys, ns", room(10_000), None);
}

fn row(what: &str, measured: f64, target: Option<f64>) {
    match target {
        None => println!("{what:<58} {measured:>10.1}"),
        Some(target) => {
            let verdict = if measured < target { "PASS" } else { "MISS" };
            println!("{what:<58} {measured:>10.1} {target:>10.1}  {verdict}");
        }
    }
}

/// Limits that allow all that the bench asks for, and count it all the same.
fn limits() -> Limits {
    Limits {
        concurrency: Some(1_000_000),
        rates: vec![Rate {
            limit: number(1_000_000),
            period: NonZeroU64::new(60_000_000).unwrap(),
            window: Default::default(),
        }],
        throttle: Some(Throttle {
            limit: number(1_000_000),
            period: NonZeroU64::new(1_000_000).unwrap(),
            burst: number(1_000_000),
            measure: Default::default(),
        }),
    }
}

fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

fn key(n: usize) -> Key {
    Key::new(&format!("tenant-{n:017}")).unwrap()
}

fn limited(n: usize, limits: &Limits) -> Arc<[Limited]> {
    let policy = Arc::from("bench");
    Arc::from([Limited::new(Space::Job, key(n), limits.clone(), policy)])
}

fn claimed(n: usize, limited: Arc<[Limited]>) -> Claimed {
    Claimed::from(Claim {
        job: Arc::from(format!("019f2c5e-0000-7000-8000-{n:012}")),
        generation: Gen(1),
        claim_id: Arc::from("sidecar-1"),
        worker: None,
        scope: 7,
        queue: Arc::from("email"),
        priority: 0,
        attempt: Some(0),
        claimed_at: Timestamp(0),
        visibility: 30_000_000,
        limited,
        since: 0,
        stays: Timestamp(0),
        followed: Timestamp(0),
    })
}

/// The answer of a store that never waits.
fn now<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

/// Nanoseconds of one step, the best of many short rounds: what the code costs, not what else the
/// machine was doing.
fn best(rounds: usize, steps: usize, mut round: impl FnMut() -> std::time::Duration) -> f64 {
    let times = (0..rounds).map(|_| round().as_nanos() as f64 / steps as f64);
    times.fold(f64::INFINITY, f64::min)
}

/// A pseudo-random walk over `keys`, the same each time.
fn walk(keys: usize) -> impl Iterator<Item = usize> {
    let mut x = 1_u64;
    std::iter::repeat_with(move || {
        x = x
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as usize % keys
    })
}

/// Find the key, ask all limits, take from all, end. Measured when windows are as full as they get:
/// at 10,000 keys some 150 starts each.
fn decision(keys: usize, pays: u32) -> f64 {
    const STEPS: usize = 10_000;
    let limits = limits();
    let names: Vec<Key> = (0..keys).map(key).collect();
    let mut states: hashbrown::HashMap<Key, KeyState> = names
        .iter()
        .map(|key| (key.clone(), KeyState::default()))
        .collect();
    let mut order = walk(keys);
    let mut time = NOW;
    let mut round = || {
        let next: Vec<&Key> = order
            .by_ref()
            .take(STEPS)
            .filter_map(|n| names.get(n))
            .collect();
        let begun = Instant::now();
        for key in next {
            time = time.plus(40);
            let Some(state) = states.get_mut(key) else {
                continue;
            };
            if let Ok(at) = state.ask(&limits, pays, time) {
                black_box(state.take(std::iter::once(&limits), pays, at, time));
                state.end(pays);
            }
        }
        begun.elapsed()
    };
    for _ in 0..200 {
        round();
    }
    best(200, STEPS, round)
}

/// The store's whole `take` of one job, and the `end` of it.
fn take_and_end(keys: usize) -> (f64, f64) {
    const JOBS: usize = 10_000;
    let store = MemoryStore::new(NOW.0);
    let limits = limits();
    let shared: Vec<Arc<[Limited]>> = (0..keys).map(|n| limited(n, &limits)).collect();
    let asks: Vec<Claimed> = walk(keys)
        .take(JOBS)
        .enumerate()
        .map(|(job, n)| claimed(job, shared[n].clone()))
        .collect();
    let mut ended = f64::INFINITY;
    let taken = best(50, JOBS, || {
        let begun = Instant::now();
        for ask in &asks {
            black_box(now(store.take(&[ask], 1))).unwrap();
        }
        let took = begun.elapsed();
        let begun = Instant::now();
        for ask in &asks {
            black_box(now(store.end(&ask.job, Some(ask.generation))))
                .unwrap()
                .unwrap();
        }
        ended = ended.min(begun.elapsed().as_nanos() as f64 / JOBS as f64);
        took
    });
    (taken, ended)
}

fn ten_at_once(keys: usize) -> f64 {
    const JOBS: usize = 10_000;
    let store = MemoryStore::new(NOW.0);
    let limits = limits();
    let asks: Vec<Claimed> = walk(keys)
        .take(JOBS)
        .enumerate()
        .map(|(job, n)| claimed(job, limited(n, &limits)))
        .collect();
    best(50, JOBS, || {
        let begun = Instant::now();
        for ten in asks.chunks(10) {
            let ten: Vec<&Claimed> = ten.iter().collect();
            black_box(now(store.take(&ten, 10))).unwrap();
        }
        let took = begun.elapsed();
        for ask in &asks {
            now(store.end(&ask.job, None)).unwrap();
        }
        took
    })
}

fn refused(keys: usize) -> f64 {
    let store = MemoryStore::new(NOW.0);
    let paused = Limits {
        concurrency: Some(0),
        ..limits()
    };
    let asks: Vec<Claimed> = (0..keys).map(|n| claimed(n, limited(n, &paused))).collect();
    best(50, keys, || {
        let begun = Instant::now();
        for ask in &asks {
            let verdicts = now(store.take(&[ask], 1)).unwrap().verdicts;
            assert!(matches!(verdicts.first(), Some(Verdict::Refused { .. })));
        }
        begun.elapsed()
    })
}

fn room(keys: usize) -> f64 {
    let store = MemoryStore::new(NOW.0);
    let limits = limits();
    let asks: Vec<Claimed> = (0..keys).map(|n| claimed(n, limited(n, &limits))).collect();
    now(store.take(&asks.iter().collect::<Vec<_>>(), keys)).unwrap();
    best(50, keys, || {
        let begun = Instant::now();
        for ask in &asks {
            black_box(now(store.room(&ask.limited))).unwrap();
        }
        begun.elapsed()
    })
}

/// What the process weighs in MiB after one start of each key, in a window of a day.
fn weigh(keys: usize) -> f64 {
    let store = MemoryStore::new(NOW.0);
    let mut limits = limits();
    limits.rates[0].period = NonZeroU64::new(86_400_000_000).unwrap();
    for n in 0..keys {
        let ask = claimed(n, limited(n, &limits));
        now(store.take(&[&ask], 1)).unwrap();
        now(store.end(&ask.job, None)).unwrap();
    }
    assert_eq!(store.keys(), keys);
    resident()
}

/// This process's resident memory in MiB, where the system says so.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let fields: HashMap<&str, &str> = status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .collect();
    let kib = fields
        .get("VmRSS")
        .and_then(|text| text.split_whitespace().next())
        .and_then(|text| text.parse().ok());
    kib.unwrap_or(f64::NAN) / 1024.0
}
