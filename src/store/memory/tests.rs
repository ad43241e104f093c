//! The rules of the store, one at a time; `tests/model.rs` has them all at once.

use super::*;
use crate::limit::{EARLY, OnLimit, Rate, Strategy, Throttle};
use crate::store::Claim;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

const T: u64 = 1_800_000_000_000_000;

fn limited(
    key: &str,
    concurrency: Option<u32>,
    rate: Option<(u32, u64)>,
    spaced: Option<u32>,
) -> Limited {
    let number = |n| NonZeroU32::new(n).unwrap();
    let second = NonZeroU64::new(1_000_000).unwrap();
    let rates = rate.map(|(limit, period)| Rate {
        limit: number(limit),
        period: NonZeroU64::new(period).unwrap(),
        window: Default::default(),
    });
    let throttle = spaced.map(|limit| Throttle {
        limit: number(limit),
        period: second,
        burst: NonZeroU32::MIN,
        measure: Default::default(),
    });
    Limited {
        space: Space::Job,
        key: Key::new(key).unwrap(),
        limits: Limits {
            concurrency,
            rates: rates.into_iter().collect(),
            throttle,
        },
        on_limit: OnLimit::Wait,
        policy: Arc::from("test"),
    }
}

fn claimed(job: &str, generation: u64, limited: &[Limited]) -> Claimed {
    Claimed::from(Claim {
        job: Arc::from(job),
        generation: Gen(generation),
        claim_id: Arc::from("claim"),
        scope: 0,
        queue: Arc::from("queue"),
        priority: 0,
        attempt: 0,
        claimed_at: Timestamp(0),
        visibility: 30_000_000,
        limited: Arc::from(limited),
    })
}

async fn take(store: &MemoryStore, ask: Claimed) -> Verdict {
    store.take(&[&ask], 1).await.unwrap().remove(0)
}

fn started(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Started { .. })
}

#[tokio::test(start_paused = true)]
async fn what_comes_with_the_question_of_a_start_is_newer_than_the_row() {
    let store = MemoryStore::new(T);
    let (before, now) = (
        limited("before", Some(1), None, None),
        limited("now", Some(1), None, None),
    );
    let held = claimed("a", 1, std::slice::from_ref(&before));
    store.take(&[&held], 0).await.unwrap();
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
async fn a_key_named_twice_is_checked_twice_and_taken_from_once() {
    let store = MemoryStore::new(T);
    let both = [
        limited("k", Some(5), Some((3, 1_000_000)), Some(2)),
        limited("k", Some(9), Some((2, 1_000_000)), Some(10)),
    ];
    assert!(started(&take(&store, claimed("a", 1, &both)).await));
    let usage = store
        .usage(Space::Job, &both[0].key, &both[0].limits)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((usage.active, usage.windows[0].0), (1, 1));
    // The slower of the two spacings.
    assert_eq!(usage.next_start, Some(Timestamp(T + 500_000)));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert!(started(&take(&store, claimed("b", 1, &both)).await));
    tokio::time::advance(Duration::from_millis(500)).await;
    // The second one's window of two is full, the first one's of three is not.
    let Verdict::Refused { which: 1, why, .. } = take(&store, claimed("c", 1, &both)).await else {
        panic!()
    };
    assert_eq!(
        (why.strategy, why.limit, why.current),
        (Strategy::Rate, 2, 2)
    );
    store.end("a", None).await.unwrap();
    store.end("b", None).await.unwrap();
    let usage = store
        .usage(Space::Job, &both[0].key, &both[0].limits)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(usage.active, 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_last_to_let_go_and_the_strongest_action() {
    let store = MemoryStore::new(T);
    let slow = limited("slow", None, None, Some(1));
    let mut quick = limited("quick", None, None, Some(10));
    quick.on_limit = OnLimit::Drop;
    let mut full = limited("full", Some(0), None, None);
    full.on_limit = OnLimit::Reschedule;
    assert!(started(
        &take(&store, claimed("a", 1, &[slow.clone(), quick.clone()])).await
    ));
    let refused = take(&store, claimed("b", 1, &[quick.clone(), slow.clone()])).await;
    let Verdict::Refused {
        which: 1,
        at,
        action: OnLimit::Drop,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(at, Some(Timestamp(T + 1_000_000)));
    let refused = take(&store, claimed("c", 1, &[full.clone(), slow])).await;
    assert!(matches!(
        refused,
        Verdict::Refused {
            which: 0,
            at: Some(Timestamp(opens)),
            action: OnLimit::Reschedule,
            ..
        } if opens == T + 1_000_000
    ));
    let Verdict::Refused { why, at, .. } = take(&store, claimed("e", 1, &[full.clone()])).await
    else {
        panic!()
    };
    assert!(why.slot && at.is_none(), "nothing but a slot is missing");
    // The first of two that wait for a slot.
    let refused = take(&store, claimed("d", 1, &[quick, full.clone(), full])).await;
    assert!(matches!(
        refused,
        Verdict::Refused {
            which: 1,
            action: OnLimit::Drop,
            ..
        }
    ));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_spends_nothing_in_any_key() {
    let store = MemoryStore::new(T);
    let (first, second) = (
        limited("first", Some(1), Some((1, 1_000_000)), Some(1)),
        limited("second", None, None, Some(1)),
    );
    assert!(started(
        &take(&store, claimed("a", 1, std::slice::from_ref(&second))).await
    ));
    assert!(!started(
        &take(&store, claimed("b", 1, &[first.clone(), second])).await
    ));
    assert_eq!(
        store
            .usage(Space::Job, &first.key, &first.limits)
            .await
            .unwrap(),
        None
    );
    assert!(started(&take(&store, claimed("c", 1, &[first])).await));
}

#[tokio::test(start_paused = true)]
async fn a_newer_claim_takes_the_place_of_an_older_one() {
    let store = MemoryStore::new(T);
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    assert_eq!(
        take(&store, claimed("a", 1, &one)).await,
        Verdict::Lost,
        "out already"
    );
    assert!(
        started(&take(&store, claimed("a", 2, &one)).await),
        "its own old slot has ended"
    );
    assert_eq!(
        take(&store, claimed("a", 1, &one)).await,
        Verdict::Lost,
        "an older claim"
    );
    assert!(!store.back("a", Gen(1)).await.unwrap());
    assert!(store.end("a", Some(Gen(1))).await.unwrap().is_none());
    assert_eq!(store.count(Place::Out).await.unwrap(), 1);
    // Even one that is not asked ends the slots of the older claim.
    store.take(&[&claimed("a", 3, &one)], 0).await.unwrap();
    assert_eq!(
        (
            store.count(Place::Out).await.unwrap(),
            store.count(Place::Held).await.unwrap()
        ),
        (0, 1)
    );
    assert!(started(&take(&store, claimed("b", 1, &one)).await));
}

#[tokio::test(start_paused = true)]
async fn a_new_claim_ends_the_slots_of_an_older_one() {
    let store = MemoryStore::new(T);
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    let (again, same) = (claimed("a", 2, &one), claimed("a", 1, &one));
    assert!(store.claimed(&[&same]).await.unwrap().is_empty());
    assert_eq!(store.count(Place::Out).await.unwrap(), 1);
    let other = claimed("b", 3, &one);
    let over = store.claimed(&[&other, &again]).await.unwrap();
    assert_eq!(over.len(), 1);
    assert_eq!(
        (over[0].place, over[0].claimed.generation),
        (Place::Out, Gen(1))
    );
    assert!(started(&take(&store, other).await), "the slot is free");
}

#[tokio::test(start_paused = true)]
async fn a_hidden_row_does_not_start_until_shown() {
    let store = MemoryStore::new(T);
    let one = [limited("k", Some(1), None, None)];
    store.take(&[&claimed("a", 1, &one)], 0).await.unwrap();
    let hide = |hidden| Change::Hidden {
        job: "a".into(),
        hidden,
    };
    assert!(store.set(hide(true)).await.unwrap());
    assert!(
        !store.set(hide(true)).await.unwrap(),
        "someone hides it already"
    );
    assert_eq!(take(&store, claimed("a", 1, &one)).await, Verdict::Lost);
    assert!(store.set(hide(false)).await.unwrap());
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    assert!(
        !store.set(hide(true)).await.unwrap(),
        "out: nothing to hide"
    );
}

#[tokio::test(start_paused = true)]
async fn rows_are_due_in_order_and_again_until_moved() {
    let store = MemoryStore::new(T);
    let one = [limited("k", Some(1), None, None)];
    store
        .take(&[&claimed("out", 1, &one), &claimed("held", 1, &one)], 2)
        .await
        .unwrap();
    assert!(store.due(9).await.unwrap().is_empty());
    tokio::time::advance(Duration::from_secs(10)).await;
    let due = |rows: Vec<Row>| {
        rows.into_iter()
            .map(|row| row.claimed.job.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(due(store.due(9).await.unwrap()), ["held"]);
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(due(store.due(9).await.unwrap()), ["held", "out"]);
    assert_eq!(due(store.due(1).await.unwrap()), ["held", "out"], "of each");
    let until = store.now().plus(1);
    let moved = Change::Until {
        job: "held".into(),
        generation: Gen(1),
        until,
        visibility: 1,
    };
    assert!(store.set(moved).await.unwrap());
    assert_eq!(due(store.due(9).await.unwrap()), ["out"]);
    store.end("out", None).await.unwrap();
    tokio::time::advance(Duration::from_micros(1)).await;
    assert_eq!(due(store.due(9).await.unwrap()), ["held"]);
}

#[tokio::test(start_paused = true)]
async fn a_shut_key_opens_by_itself_and_queues_are_never_shut() {
    let store = MemoryStore::new(T);
    let job = limited("k", None, None, None);
    let queue = Limited {
        space: Space::Queue,
        ..job.clone()
    };
    let until = Timestamp(T + 1_000_000);
    assert!(
        store
            .set(Change::Shut {
                key: job.key.clone(),
                until,
                at_least: false,
                probe: None,
            })
            .await
            .unwrap()
    );
    assert!(
        !store
            .set(Change::Shut {
                key: job.key.clone(),
                until,
                at_least: false,
                probe: None,
            })
            .await
            .unwrap()
    );
    assert!(started(&take(&store, claimed("q", 1, &[queue])).await));
    let Verdict::Refused { why, .. } =
        take(&store, claimed("a", 1, std::slice::from_ref(&job))).await
    else {
        panic!()
    };
    assert_eq!(
        (why.strategy, why.at),
        (Strategy::Shut, Some(until.plus(EARLY)))
    );
    tokio::time::advance(Duration::from_micros(999_999)).await;
    assert!(!started(
        &take(&store, claimed("a", 1, std::slice::from_ref(&job))).await
    ));
    tokio::time::advance(Duration::from_micros(1)).await;
    assert!(started(&take(&store, claimed("a", 1, &[job])).await));
}

#[tokio::test(start_paused = true)]
async fn an_adopted_job_has_its_slots_and_counts_no_start() {
    let store = MemoryStore::new(T);
    let one = [limited("k", Some(1), Some((1, 1_000_000)), None)];
    let adopt = |generation| Change::Adopt {
        claimed: claimed("a", generation, &one),
        until: Timestamp(T + 5),
    };
    assert!(store.set(adopt(2)).await.unwrap());
    assert!(!store.set(adopt(2)).await.unwrap());
    assert!(!store.set(adopt(1)).await.unwrap());
    let usage = store
        .usage(Space::Job, &one[0].key, &one[0].limits)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((usage.active, usage.windows[0].0), (1, 0));
    assert!(store.back("a", Gen(2)).await.unwrap());
    assert!(started(&take(&store, claimed("a", 2, &one)).await));
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
        &take(
            &store,
            claimed("a", 1, &[limited("k", Some(1), None, None)])
        )
        .await
    ));
}
