//! What only this store can show; `tests/stores` has the rules of all stores, `tests/model.rs` all of them at once.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use super::MemoryStore;
use crate::claims::TestClaim as _;
use crate::{Change, Claim, Claimed, Gen, Ledger, LedgerExt, Place, Verdict};
use ojs_limit::{Key, Limited, Limits, OnLimit, Rate, Space, Timestamp};

const T: u64 = 1_800_000_000_000_000;

fn limited(key: &str) -> Limited {
    Limited {
        space: Space::Job,
        key: Key::new(key).unwrap(),
        limits: Limits {
            concurrency: Some(1),
            ..Limits::default()
        },
        on_limit: OnLimit::Wait,
        policy: Arc::from("test"),
        cost: Default::default(),
        share: None,
    }
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

fn started(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Started { .. })
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
    assert!(started(&take(&store, again).await));
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
async fn a_new_claim_ends_the_slots_of_an_older_one() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    let (again, same) = (claimed("a", 2, &one), claimed("a", 1, &one));
    assert!(store.take(&[&same], 0).await.unwrap().ended.is_empty());
    assert_eq!(store.count_out().await.unwrap(), 1);
    let other = claimed("b", 3, &one);
    let taken = store.take(&[&other, &again], 1).await.unwrap();
    let [over] = &taken.ended[..] else {
        panic!("{taken:?}");
    };
    assert_eq!((over.is_out(), over.claimed.generation), (true, Gen(1)));
    assert!(
        started(&taken.verdicts[0]),
        "the slot of a later one is free"
    );
}

#[tokio::test(start_paused = true)]
async fn only_what_starts_has_a_row() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    let [a, b, c] = ["a", "b", "c"].map(|job| claimed(job, 1, &one));
    let verdicts = store.take(&[&a, &b], 2).await.unwrap().verdicts;
    assert!(started(&verdicts[0]));
    assert!(matches!(verdicts[1], Verdict::Refused { .. }));
    assert_eq!(take_none(&store, &c).await, Verdict::Unasked);
    assert!(store.row("a").await.unwrap().is_some());
    for job in ["b", "c"] {
        assert!(store.row(job).await.unwrap().is_none(), "{job}");
    }
    assert_eq!(take(&store, a).await, Verdict::HasRow, "it is out");
}

async fn take_none(store: &MemoryStore, ask: &Claimed) -> Verdict {
    store.take(&[ask], 0).await.unwrap().verdicts.remove(0)
}

fn offer(claimed: &Claimed) -> Change {
    Change::Offer {
        claimed: claimed.clone(),
    }
}

fn own(job: &str, generation: u64, next: u64) -> Change {
    Change::Own {
        job: job.into(),
        generation: Gen(generation),
        next: Gen(next),
        until: Timestamp(T + 9),
    }
}

#[tokio::test(start_paused = true)]
async fn an_offered_job_is_taken_over_and_named() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    let held = claimed("a", 1, &one);
    assert!(!store.set(own("a", 1, 2)).await.unwrap(), "not offered");
    for _ in 0..2 {
        assert!(store.set(offer(&held)).await.unwrap());
        let row = store.row("a").await.unwrap().unwrap();
        assert_eq!(row.place, Place::Offered);
    }
    assert_eq!(store.count_out().await, Ok(0));
    assert!(
        started(&take(&store, claimed("b", 1, &one)).await),
        "no slot"
    );
    store.end("b", None).await.unwrap();
    // Until somebody takes it over it starts nowhere.
    assert!(!store.back("a", Gen(1)).await.unwrap(), "it is not out");
    assert_eq!(take_none(&store, &held).await, Verdict::HasRow);
    assert_eq!(take(&store, held.clone()).await, Verdict::HasRow);
    assert!(!store.set(own("a", 2, 3)).await.unwrap(), "another claim");
    assert!(!store.set(own("a", 1, 1)).await.unwrap(), "not a newer one");
    // Done twice it is done once, and only under one number.
    assert!(store.set(own("a", 1, 2)).await.unwrap());
    assert!(store.set(own("a", 1, 2)).await.unwrap());
    assert!(!store.set(own("a", 1, 3)).await.unwrap());
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!(row.claimed.generation, Gen(2));
    assert_eq!(row.place, Place::Held(Timestamp(T + 9)));
    assert_eq!(
        take(&store, held.clone()).await,
        Verdict::Outdated,
        "ours no more"
    );
    let ours = claimed("a", 2, &one);
    let named = store.take(&[&ours], 0).await.unwrap();
    assert_eq!(named.verdicts, [Verdict::Unasked]);
    assert!(named.ended.is_empty() && store.row("a").await.unwrap().is_none());
    assert!(!store.set(own("a", 1, 2)).await.unwrap(), "it is named");
    assert!(started(&take(&store, ours).await));
}

/// Or it is asked for at once.
#[tokio::test(start_paused = true)]
async fn what_was_taken_over_starts_unnamed() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    assert!(store.set(offer(&claimed("a", 1, &one))).await.unwrap());
    assert!(store.set(own("a", 1, 2)).await.unwrap());
    let taken = store.take(&[&claimed("a", 2, &one)], 1).await.unwrap();
    assert!(started(&taken.verdicts[0]) && taken.ended.is_empty());
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!((row.is_out(), row.claimed.generation), (true, Gen(2)));
    assert!(!store.set(own("a", 1, 2)).await.unwrap(), "it is out");
}

#[tokio::test(start_paused = true)]
async fn only_a_held_job_of_the_newest_claim_is_offered() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    let [older, out, newer] = [1, 2, 3].map(|claim| claimed("a", claim, &one));
    assert!(started(&take(&store, out.clone()).await));
    for refused in [&older, &out] {
        assert!(!store.set(offer(refused)).await.unwrap());
        let row = store.row("a").await.unwrap().unwrap();
        assert_eq!((row.is_out(), row.claimed.generation), (true, Gen(2)));
    }
    // Until is moved of what is out, and of no offer.
    let later = Change::until(&out, Timestamp(T + 1).into());
    assert!(store.set(later).await.unwrap());
    assert!(store.set(offer(&newer)).await.unwrap());
    let other = claimed("b", 1, &one);
    assert!(started(&take(&store, other).await), "the older had a slot");
    let later = Change::until(&newer, Timestamp(T + 1).into());
    assert!(!store.set(later).await.unwrap());
    assert!(!store.set(offer(&out)).await.unwrap());
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!(row.claimed.generation, Gen(3));
    assert_eq!(row.place, Place::Offered);
}

#[tokio::test(start_paused = true)]
async fn an_adopted_job_gives_way_to_whoever_names_it() {
    let store = MemoryStore::new(T);
    let one = [limited("k")];
    let adopt = || Change::Adopt {
        claimed: claimed("a", Gen::ADOPTED.0, &one),
        until: Timestamp(T + 5).into(),
    };
    let mut held = claimed("a", 1, &one);
    // Whenever it was claimed.
    held.claimed_at = Timestamp(1);
    for want in [0, 1] {
        assert!(store.set(adopt()).await.unwrap());
        assert!(!store.set(adopt()).await.unwrap(), "it is out already");
        let other = claimed("b", 1, &one);
        assert!(!started(&take(&store, other).await), "it has the slot");
        let taken = store.take(&[&held], want).await.unwrap();
        let [over] = &taken.ended[..] else {
            panic!("{taken:?}");
        };
        assert_eq!(over.claimed.generation, Gen::ADOPTED);
        assert_eq!(started(&taken.verdicts[0]), want == 1);
    }
    assert!(!store.set(adopt()).await.unwrap(), "its claim is known");
}

#[tokio::test(start_paused = true)]
async fn a_start_is_undone_once_and_leaves_nothing() {
    let store = MemoryStore::new(T);
    let mut one = limited("k");
    one.limits.rates = vec![Rate {
        limit: NonZeroU32::MIN,
        period: NonZeroU64::new(9_000_000).unwrap(),
        window: Default::default(),
    }];
    let used = || async {
        let usage = store.usage(one.space, &one.key, &one.limits).await.unwrap();
        usage.map(|usage| (usage.active, usage.windows[0].0))
    };
    let a = claimed("a", 2, std::slice::from_ref(&one));
    assert!(started(&take(&store, a.clone()).await));
    assert!(!store.back("a", Gen(1)).await.unwrap(), "another claim");
    assert_eq!(used().await, Some((1, 1)));
    assert!(store.back("a", Gen(2)).await.unwrap());
    assert!(store.row("a").await.unwrap().is_none());
    assert_eq!(used().await, None);
    // Another has the slot by now.
    let b = claimed("b", 1, std::slice::from_ref(&one));
    assert!(started(&take(&store, b).await));
    assert!(!store.back("a", Gen(2)).await.unwrap());
    assert_eq!(used().await, Some((1, 1)));
    assert!(store.back("b", Gen(1)).await.unwrap());
    assert!(started(&take(&store, a).await), "it may start again");
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
        let _books = broken.books();
        panic!("while the books were open");
    });
    assert!(panicked.join().is_err());
    assert!(started(
        &take(&store, claimed("a", 1, &[limited("k")])).await
    ));
}
