//! What only this store can show; `tests/stores` has the rules of all stores, `tests/model.rs` all of them at once.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::MemoryStore;
use crate::claims::TestClaim as _;
use crate::{Change, Claim, Claimed, Gen, Ledger, LedgerExt, Verdict};
use ojs_limit::{Key, Limited, Limits, Rate, Space, Timestamp, WindowKind};

const T: u64 = 1_800_000_000_000_000;

fn limited(key: &str) -> Limited {
    Limited::new(
        Space::Job,
        Key::new(key).unwrap(),
        Limits {
            concurrency: Some(1),
            ..Limits::default()
        },
        Arc::from("test"),
    )
}

fn claimed(job: &str, generation: u64, limited: &[Limited]) -> Claimed {
    Claimed::from(Claim {
        generation: Gen(generation),
        limited: Arc::from(limited),
        ..Claim::of(job)
    })
}

async fn take(store: &MemoryStore, ask: Claimed) -> Verdict {
    store.take(&[&ask], 1).await.unwrap().verdicts.remove(0)
}

#[tokio::test(start_paused = true)]
async fn what_comes_with_the_question_of_a_start_is_what_counts() {
    let store = MemoryStore::new(T);
    let (before, now) = (limited("before"), limited("now"));
    let held = claimed("a", 1, std::slice::from_ref(&before));
    let named = store.take(&[&held], 0).await.unwrap();
    assert_eq!(named.verdicts, [Verdict::Unasked]);
    assert!(store.row("a").await.unwrap().is_none());
    let mut again = held.clone();
    again.limited = Arc::from([now.clone()]);
    again.visibility = 5_000_000;
    assert!(take(&store, again).await.is_started());
    assert_eq!(held.visibility, 30_000_000, "a copy of its own was changed");
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!(
        (&*row.claimed.limited, row.claimed.visibility),
        (&[now.clone()][..], 5_000_000)
    );
    let used = |one: Limited| {
        let store = &store;
        async move { store.usage(one.space, &one.key, &one.limits).await.unwrap() }
    };
    assert_eq!(used(before).await, None);
    assert_eq!(used(now.clone()).await.unwrap().active, 1);
    store.end("a", None).await.unwrap();
    assert_eq!(used(now).await, None);
}

#[tokio::test(start_paused = true)]
async fn clearing_leaves_no_key_behind() {
    let store = MemoryStore::new(T);
    let adopt = Change::Adopt {
        claimed: claimed("a", 1, &[limited("k")]),
        until: Timestamp(T + 5).into(),
    };
    assert!(store.set(adopt).await.unwrap());
    assert_eq!(store.keys(), 1);
    store.set(Change::Clear).await.unwrap();
    assert_eq!(store.keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_books_outlive_a_panic() {
    let store = Arc::new(MemoryStore::new(T));
    let broken = store.clone();
    let panicked = std::thread::spawn(move || {
        let _books = broken.books.lock();
        panic!("while the books were open");
    });
    assert!(panicked.join().is_err());
    let claimed = claimed("a", 1, &[limited("k")]);
    assert!(take(&store, claimed).await.is_started());
}

/// Names of keys come from producers, and a job may name several that nobody has named before.
#[tokio::test(start_paused = true)]
async fn keys_that_nobody_uses_any_more_do_not_pile_up_however_many_a_job_has() {
    for each in [1, 3, 5] {
        let store = MemoryStore::new(T);
        for job in 0..1_000 {
            let limited: Vec<Limited> = (0..each)
                .map(|nth| limited(&format!("{job}-{nth}")))
                .collect();
            let job = format!("{job}");
            assert!(take(&store, claimed(&job, 1, &limited)).await.is_started());
            store.end(&job, None).await.unwrap();
        }
        assert!(store.keys() < 300, "{} of {each} a job", store.keys());
    }
}

/// Starts are counted for the case that the store is lost: what is over makes room, and what is kept counts on.
#[tokio::test(start_paused = true)]
async fn counted_starts_have_room_again_when_earlier_ones_are_over() {
    const MOST: usize = 10;
    let store = MemoryStore::new(T);
    let rate = Rate {
        limit: NonZeroU32::new(9).unwrap(),
        period: NonZeroU64::new(60_000_000).unwrap(),
        window: WindowKind::Sliding,
    };
    let windowed = |key: &str| Limited {
        limits: Limits {
            rates: vec![rate.clone()],
            ..Limits::default()
        },
        ..limited(key)
    };
    let used = async |key: &str| {
        let of = windowed(key);
        let usage = store.usage(of.space, &of.key, &of.limits).await.unwrap();
        usage.map_or(0, |usage| usage.windows[0].0)
    };
    for key in 0..20 {
        let of = windowed(&format!("early-{key}"));
        store.count(&claimed(&format!("{key}"), 1, &[of]), Timestamp(T), MOST);
    }
    assert_eq!(store.keys(), MOST);
    let again = claimed("again", 1, &[windowed("early-0")]);
    store.count(&again, Timestamp(T), MOST);
    assert_eq!(used("early-0").await, 2);
    for job in 0..20 {
        store.end(&format!("{job}"), None).await.unwrap();
    }
    store.end("again", None).await.unwrap();
    let later = Timestamp(T).plus(2 * 3_600_000_000);
    for key in 0..MOST {
        let of = windowed(&format!("late-{key}"));
        store.count(&claimed(&format!("late-{key}"), 1, &[of]), later, MOST);
    }
    assert!(store.keys() <= MOST);
    assert_eq!(used("late-9").await, 1);
}
