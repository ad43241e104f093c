//! The store that fails on purpose does what it was told, and nothing else.

use super::prelude::*;
use crate::faulty::{Fault, Faulty};

fn shut(until: u64) -> Change {
    Change::Shut {
        key: Key::new("k").unwrap(),
        until: Timestamp(until),
        at_least: false,
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
        assert!(store.count_out().await.is_err());
    }
    store.standing(None);
    assert_eq!(store.count_out().await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_seed_gives_the_same_faults_again() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let store = Faulty::new(Arc::new(MemoryStore::new(0)));
        store.random(42, 4, vec![Fault::gone(), Fault::unheard()]);
        let mut failed = Vec::new();
        for _ in 0..200 {
            failed.push(store.count_out().await.err());
        }
        runs.push(failed);
    }
    let failures = runs[0].iter().flatten().count();
    assert!((20..90).contains(&failures), "{failures} of 200");
    assert_eq!(runs[0], runs[1]);
}

#[test]
fn it_has_siblings_and_forgets_as_it_was_told() {
    let store = Faulty::new(Arc::new(MemoryStore::new(0)));
    store.with_siblings(2);
    assert_eq!((store.siblings(), store.is_alone()), (2, false));
    assert!(Ledger::facts(&store).forgets_unsaid);
    store.never_forgets_unsaid();
    assert!(!Ledger::facts(&store).forgets_unsaid);
}

#[tokio::test(start_paused = true)]
async fn its_rows_are_a_siblings_once_it_is_told_so() {
    let store = Faulty::new(Arc::new(MemoryStore::new(0)));
    store.set(offer("a", 1, &[])).await.unwrap();
    let is_ours = async || store.row("a").await.unwrap().unwrap().ours;
    assert!(is_ours().await);
    store.rows_are_theirs();
    assert!(!is_ours().await);
}
