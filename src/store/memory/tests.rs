//! What only this store can show; `tests/stores` has the rules of all stores, `tests/model.rs` all of them at once.

use std::sync::Arc;

use super::MemoryStore;
use crate::claims::TestClaim as _;
use crate::{Change, Claim, Claimed, Gen, Ledger, LedgerExt, Verdict};
use ojs_limit::{Key, Limited, Limits, Space, Timestamp};

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
    assert!(store.set(Change::Clear).await.unwrap());
    assert!(!store.set(Change::Clear).await.unwrap());
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
