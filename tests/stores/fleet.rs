//! What holds where sidecars share a store.

use std::collections::BTreeSet;

use ojs_throttle::store::SqlStore;

use super::prelude::*;
use crate::faulty::{Fault, Faulty};
use ojs_throttle::store::{Claim, LooksAfter, Row, RowsOf, Store};

/// The next thing that `store` hears of which `wanted` is true.
async fn heard(store: &dyn Ledger, wanted: impl Fn(&Wake) -> bool) {
    let listening = async {
        loop {
            if wanted(&store.wake().await) {
                return;
            }
        }
    };
    let heard = tokio::time::timeout(Duration::from_secs(60), listening).await;
    heard.expect("nothing was heard");
}

/// The store as a sidecar sees it that hears of what others do from now on: what was said before is lost.
async fn listening(rig: &Rig, owner: &str) -> Arc<dyn Ledger> {
    let store = rig.open(owner).await;
    heard(&*store, |wake| *wake == Wake::All).await;
    store
}

fn names(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| &*row.claimed.job).collect()
}

pub async fn one_budget_for_all(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let two = [limited("k", Some(2), Some((3, SECOND)), None)];
    assert!(started(&take(&*a, claimed("1", 1, &two)).await));
    assert!(started(&take(&*b, claimed("2", 1, &two)).await));
    for store in [&a, &b] {
        assert!(!started(&take(&**store, claimed("3", 1, &two)).await));
        assert_eq!(store.count_out().await.unwrap(), 1);
        assert_eq!(store.room(&two).await.unwrap().starts, 0);
    }
    assert!(a.end("2", None).await.unwrap().is_some(), "by any sidecar");
    assert_eq!(b.count_out().await.unwrap(), 0);
    assert!(started(&take(&*a, claimed("3", 1, &two)).await));
    assert!(b.end("1", None).await.unwrap().is_some());
    assert!(
        !started(&take(&*b, claimed("4", 1, &two)).await),
        "3 in 1 s"
    );
}

pub async fn only_the_owner_starts_a_job(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let free = [limited("k", Some(9), None, None)];
    assert!(started(&take(&*a, claimed("1", 5, &free)).await));
    let ours = async |store: &dyn Ledger| store.row("1").await.unwrap().unwrap().ours;
    assert!(ours(&*a).await && !ours(&*b).await);
    assert_eq!(take(&*b, claimed("1", 5, &free)).await, Verdict::HasRow);
    // A newer claim is newer whoever made it.
    assert!(started(&take(&*b, claimed("1", 6, &free)).await));
    assert!(ours(&*b).await && !ours(&*a).await);
    let outdated = take(&*a, claimed("1", 5, &free)).await;
    assert_eq!(outdated, Verdict::Outdated);
}

pub async fn a_freed_slot_is_heard_of(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&*a, claimed("1", 1, &one)).await));
    let freed = Wake::Freed(vec![(Space::Job, one[0].key.clone())]);
    a.end("1", None).await.unwrap();
    heard(&*b, |wake| *wake == freed).await;
    assert!(started(&take(&*b, claimed("2", 1, &one)).await));
    assert!(b.back("2", Gen(1)).await.unwrap());
    heard(&*a, |wake| *wake == freed).await;
}

pub async fn a_key_that_opens_sooner_is_heard_of(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let key = Key::new("k").unwrap();
    let freed = Wake::Freed(vec![(Space::Job, key.clone())]);
    let shut = |until| Change::Shut {
        key: key.clone(),
        until,
        at_least: false,
    };
    let now = now(rig);
    assert!(a.set(shut(now.plus(60 * SECOND))).await.unwrap());
    assert!(a.set(shut(now)).await.unwrap());
    heard(&*b, |wake| *wake == freed).await;
}

pub async fn a_doubt_about_a_held_job_is_heard_of(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let row = Wake::Row { job: "1".into() };
    let doubt = Change::Doubt { job: "1".into() };
    assert!(b.set(doubt).await.unwrap());
    heard(&*a, |wake| *wake == row).await;
    // What is offered, or out, has a row that tells.
    let free = [limited("k", Some(9), None, None)];
    assert!(a.set(offer("1", 1, &free)).await.unwrap());
    assert!(b.end("1", None).await.unwrap().is_some());
    heard(&*a, |wake| *wake == row).await;
    assert!(a.row("1").await.unwrap().is_none());
}

pub async fn to_which_subqueues_jobs_came_is_heard_of(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let subqueues: Arc<[u64]> = Arc::from([1, 0, u64::MAX, 1 << 63, 7]);
    let queue: Arc<str> = "mail:\u{e9}\n1".into();
    let came = Change::Came {
        queue: Arc::clone(&queue),
        subqueues: Arc::clone(&subqueues),
    };
    assert!(b.set(came).await.unwrap());
    let wanted = Wake::Came { queue, subqueues };
    heard(&*a, |wake| *wake == wanted).await;
    assert_eq!(a.count_out().await.unwrap(), 0);
}

pub async fn an_offered_job_goes_to_one_sibling(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let free = [limited("k", Some(9), None, None)];
    let mut job = claimed("1", 1, &free);
    job.scope = 7;
    a.take(&[&job], 0).await.unwrap();
    assert!(b.offered(7, "queue", 9).await.unwrap().is_empty());
    let claimed = job.clone();
    assert!(a.set(Change::Offer { claimed }).await.unwrap());
    let of_lane =
        |wake: &Wake| matches!(wake, Wake::Offered { scope: 7, queue } if &**queue == "queue");
    heard(&*b, of_lane).await;
    assert!(
        b.offered(8, "queue", 9).await.unwrap().is_empty(),
        "a scope"
    );
    assert!(
        b.offered(7, "other", 9).await.unwrap().is_empty(),
        "a queue"
    );
    assert!(
        a.offered(7, "queue", 9).await.unwrap().is_empty(),
        "its own"
    );
    let found = b.offered(7, "queue", 9).await.unwrap();
    assert_eq!(names(&found), ["1"]);
    let own = |next| Change::Own {
        job: "1".into(),
        generation: Gen(1),
        next: Gen(next),
        until: now(rig).plus(SECOND),
    };
    assert!(b.set(own(2)).await.unwrap());
    assert!(
        !rig.open("c").await.set(own(3)).await.unwrap(),
        "one of them"
    );
    heard(&*a, |wake| *wake == Wake::Row { job: "1".into() }).await;
    assert_eq!(take(&*a, job.clone()).await, Verdict::Outdated);
    job.generation = Gen(2);
    assert!(started(&take(&*b, job).await));
    // Where data began anew both may hold it under one claim.
    assert!(!a.back("1", Gen(2)).await.unwrap(), "not its own start");
    assert_eq!(b.count_out().await, Ok(1));
}

/// Jobs of this queue that `store` holds and has offered.
async fn offer_many(store: &dyn Ledger, name: &str, queue: &str, count: usize) {
    let free = [limited("k", Some(9), None, None)];
    let offers = (0..count).map(|nth| {
        let mut claimed = claimed(&format!("{name}-{nth:03}"), 1, &free);
        claimed.queue = queue.into();
        Change::Offer { claimed }
    });
    let offers: Vec<Change> = offers.collect();
    for some in offers.chunks(500) {
        store.set_all(some.to_vec()).await.unwrap();
    }
}

/// Rows of one that is gone are told of while their claims may stand, and go when they are worth nothing.
pub async fn what_the_dead_have_offered_is_forgotten(rig: &Rig) {
    let a = rig.open("a").await;
    offer_many(&*a, "a", "queue", 1).await;
    a.due(9).await.unwrap();
    drop(a);
    // One that has not heard of the offer.
    let b = rig.open("b").await;
    let of = |wake: &Wake| matches!(wake, Wake::Offered { .. });
    advance(rig, 6 * SECOND);
    b.due(9).await.unwrap();
    heard(&*b, of).await;
    advance(rig, 20 * SECOND);
    b.due(9).await.unwrap();
    assert!(b.row("a-000").await.unwrap().is_some());
    advance(rig, 70 * SECOND);
    b.due(9).await.unwrap();
    assert!(b.row("a-000").await.unwrap().is_none());
    for _ in 0..2 {
        advance(rig, 3 * SECOND);
        b.due(9).await.unwrap();
    }
    assert!(b.is_alone());
    let told = async { while !of(&b.wake().await) {} };
    // Whatever it was told is there already.
    let told = tokio::time::timeout(Duration::from_millis(50), told).await;
    assert!(told.is_err(), "nobody can take it");
}

/// Who knows that it is alone asks nobody about jobs that it does not know.
pub async fn one_that_is_alone_knows_it_until_another_comes(rig: &Rig) {
    let a = rig.open("a").await;
    assert!(!a.is_alone(), "it has not looked");
    heard(&*a, |wake| *wake == Wake::All).await;
    a.due(9).await.unwrap();
    assert!(a.is_alone());
    let b = rig.open("b").await;
    let told = async {
        while a.is_alone() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let listening = heard(&*a, |_| false);
    tokio::select! {
        () = told => {}
        () = listening => {}
    }
    // It is gone, and has left a row.
    assert!(started(&take(&*b, claimed("1", 1, &[])).await));
    drop(b);
    advance(rig, 20 * SECOND);
    a.due(9).await.unwrap();
    assert!(!a.is_alone());
    assert_eq!(a.siblings(), 0);
    a.end("1", None).await.unwrap();
    for _ in 0..2 {
        advance(rig, 3 * SECOND);
        a.due(9).await.unwrap();
    }
    assert!(a.is_alone());
}

pub async fn what_a_living_sidecar_has_offered_stays(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    offer_many(&*a, "a", "queue", 1).await;
    for _ in 0..30 {
        advance(rig, 4 * SECOND);
        for store in [&a, &b] {
            store.due(9).await.unwrap();
        }
    }
    assert_eq!(b.offered(0, "queue", 9).await.unwrap().len(), 1);
}

/// What was offered stays so until somebody wants it. That keeps nobody from what is overdue.
pub async fn offered_jobs_crowd_out_nothing_else(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    offer_many(&*a, "a", "queue", 300).await;
    offer_many(&*b, "b", "queue", 300).await;
    let free = [limited("k", Some(9), None, None)];
    let mut out = claimed("out", 1, &free);
    out.visibility = SECOND;
    assert!(started(&take(&*a, out.clone()).await));
    advance(rig, 2 * SECOND);
    for store in [&a, &b] {
        let found = store.due(256).await.unwrap();
        let named = names(&found).contains(&"out");
        assert_eq!(named, found.iter().any(|row| row.is_out()));
        assert_eq!(named, Arc::ptr_eq(store, &a));
        // They are looked at with each beat, as a worker may ask for them here again.
        assert_eq!(found.len() - usize::from(named), 256);
    }
    assert!(b.due(256).await.unwrap().is_empty(), "nothing is new");
    advance(rig, 2 * SECOND + 1);
    // By then the owner should have looked.
    let found = b.due(256).await.unwrap();
    assert!(names(&found).contains(&"out"));
}

pub async fn jobs_of_a_lane_are_found_behind_those_of_another(rig: &Rig) {
    let a = rig.open("a").await;
    offer_many(&*a, "a", "queue", 300).await;
    offer_many(&*a, "z", "other", 1).await;
    // One that has not heard of the offers.
    let b = rig.open("b").await;
    let found = b.offered(0, "other", 9).await.unwrap();
    assert_eq!(names(&found), ["z-000"]);
    assert_eq!(b.offered(0, "queue", 16).await.unwrap().len(), 16);
    for _ in 0..3 {
        a.due(256).await.unwrap();
        b.due(256).await.unwrap();
        advance(rig, 2 * SECOND);
    }
    let of = |wake: &Wake| matches!(wake, Wake::Offered { queue, .. } if &**queue == "other");
    heard(&*b, of).await;
}

/// The three that `a` offers of another queue are found behind so `many` of one queue.
async fn found_behind(rig: &Rig, many: usize) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    offer_many(&*a, "a", "queue", many).await;
    offer_many(&*a, "z", "other", 3).await;
    let found = b.offered(0, "other", 9).await.unwrap();
    assert_eq!(names(&found), ["z-000", "z-001", "z-002"]);
    assert_eq!(b.offered(0, "queue", 16).await.unwrap().len(), 16);
}

/// One sidecar may hold tens of thousands of jobs of a queue that no worker asks for.
pub async fn jobs_of_a_lane_are_found_behind_thousands_of_another(rig: &Rig) {
    found_behind(rig, 2_500).await;
}

/// More than Redis reads in one go.
pub async fn jobs_of_a_lane_are_found_behind_a_whole_reading(rig: &Rig) {
    found_behind(rig, 10_500).await;
}

/// How many jobs others hold, by queue, as one sees it.
async fn held(store: &dyn Ledger) -> [u64; 3] {
    let mut counts = [0; 3];
    for (count, queue) in counts.iter_mut().zip(["queue", "queue:2", "other"]) {
        *count = store.held_by_others(queue).await.unwrap();
    }
    counts
}

/// Says how many jobs of each of the queues `store` holds.
async fn holds(store: &dyn Ledger, counts: [u64; 3]) {
    let all = ["queue", "queue:2", "other"].into_iter().zip(counts);
    let all = all.map(|(queue, jobs)| Change::Holds {
        queue: queue.into(),
        jobs,
    });
    assert!(store.set_all(all.collect()).await.unwrap());
}

pub async fn jobs_that_others_hold_are_counted_by_queue(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    holds(&*a, [3, 1, 0]).await;
    assert_eq!((held(&*a).await, held(&*b).await), ([0; 3], [3, 1, 0]));
    holds(&*b, [1, 0, 2]).await;
    assert_eq!((held(&*a).await, held(&*b).await), ([1, 0, 2], [3, 1, 0]));
    assert_eq!(held(&*rig.open("c").await).await, [4, 1, 2]);
    holds(&*a, [2, 0, 0]).await;
    assert_eq!(held(&*b).await, [2, 0, 0]);
}

/// One that is gone says nothing more: by then the backend has its jobs back.
pub async fn what_is_held_is_believed_for_a_minute(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    holds(&*a, [3, 1, 0]).await;
    advance(rig, 30 * SECOND);
    holds(&*a, [2, 0, 0]).await;
    advance(rig, 31 * SECOND);
    b.due(9).await.unwrap();
    assert_eq!(held(&*b).await, [2, 0, 0]);
    advance(rig, 30 * SECOND);
    b.due(9).await.unwrap();
    assert_eq!(held(&*b).await, [0; 3]);
}

/// What a sidecar holds may be among them.
pub async fn jobs_that_are_adopted_are_counted(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let adopt = |job: &str, claim: Gen| Change::Adopt {
        claimed: claimed(job, claim.0, &[]),
        until: now(rig).plus(SECOND).into(),
    };
    for store in [&a, &b] {
        store.due(9).await.unwrap();
        assert_eq!(store.facts().adopted, 0);
    }
    for job in ["1", "2", "2"] {
        b.set(adopt(job, Gen::ADOPTED)).await.unwrap();
    }
    // One that is put back was known.
    b.set(adopt("3", Gen(7))).await.unwrap();
    advance(rig, 2 * SECOND);
    for store in [&a, &b] {
        store.due(9).await.unwrap();
        assert_eq!(store.facts().adopted, 2);
    }
}

pub async fn rows_that_are_out_are_read_with_their_limits(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let keyed = |key| [limited(key, Some(1), Some((9, SECOND)), None)];
    for store in [&a, &b] {
        store.due(9).await.unwrap();
    }
    assert!(started(&take(&*a, claimed("one", 1, &keyed("k"))).await));
    assert!(a.set(offer("held", 1, &keyed("k"))).await.unwrap());
    assert!(started(&take(&*b, claimed("two", 1, &keyed("l"))).await));
    let out = async |store: &Arc<dyn Ledger>, max: usize| {
        let mut rows = store.rows(RowsOf::Out { max }).await.unwrap();
        rows.sort_by(|one, other| one.claimed.job.cmp(&other.claimed.job));
        rows
    };
    for (store, ours) in [(&a, "one"), (&b, "two")] {
        let rows = out(store, 9).await;
        assert_eq!(names(&rows), ["one", "two"]);
        assert!(
            rows.iter()
                .all(|row| row.ours == (*row.claimed.job == *ours))
        );
        assert_eq!(*rows[0].claimed.limited, keyed("k"));
    }
    assert_eq!(out(&b, 1).await.len(), 1);
    assert_eq!(out(&rig.open("c").await, 9).await.len(), 2);
    // Of one that is gone the slots count on.
    advance(rig, 41 * SECOND);
    b.due(9).await.unwrap();
    assert_eq!(names(&out(&b, 9).await), ["one", "two"]);
}

pub async fn overdue_slots_of_others_are_looked_after_by_one(rig: &Rig) {
    let (a, b, c) = (
        rig.open("a").await,
        rig.open("b").await,
        rig.open("c").await,
    );
    let free = [limited("k", Some(9), None, None)];
    assert!(started(&take(&*a, claimed("1", 1, &free)).await));
    advance(rig, 30 * SECOND);
    for store in [&a, &b, &c] {
        store.due(9).await.unwrap();
    }
    advance(rig, 2 * SECOND + 1);
    // It is its owner's still, which lives.
    assert_eq!(names(&a.due(9).await.unwrap()), ["1"]);
    assert!(b.due(9).await.unwrap().is_empty());
    advance(rig, SECOND * 2);
    // By then the owner should have looked.
    let found = b.due(9).await.unwrap();
    assert_eq!((names(&found), found[0].ours), (vec!["1"], false));
    assert!(c.due(9).await.unwrap().is_empty(), "b does");
    assert_eq!(b.room(&free).await.unwrap().starts, 8, "until it has ended");
    b.end("1", Some(Gen(1))).await.unwrap();
    assert_eq!(c.room(&free).await.unwrap().starts, 9);
}

pub async fn what_a_dead_sidecar_had_is_found(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let free = [limited("k", Some(9), None, None)];
    let (mut out, mut held) = (claimed("out", 1, &free), claimed("held", 1, &free));
    (out.visibility, held.visibility) = (7 * SECOND, 21 * SECOND);
    a.take(&[&out, &held], 1).await.unwrap();
    for (seconds, siblings) in [(0, 1), (4, 1), (2, 0)] {
        advance(rig, seconds * SECOND);
        b.due(9).await.unwrap();
        assert_eq!(b.siblings(), siblings);
    }
    // Both are overdue at seven seconds, and nobody else is there to wait for.
    advance(rig, 2 * SECOND);
    assert_eq!(names(&b.due(9).await.unwrap()), ["out"]);
    assert!(
        b.offered(0, "queue", 9).await.unwrap().is_empty(),
        "a held job is its holder's alone"
    );
}

/// Its owner offered it and is gone: siblings have it while its claim is sure to stand.
pub async fn what_a_dead_sidecar_offered_is_found(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    let free = [limited("k", Some(9), None, None)];
    let mut held = claimed("held", 1, &free);
    held.visibility = 21 * SECOND;
    assert!(a.set(Change::Offer { claimed: held }).await.unwrap());
    for (seconds, siblings) in [(0, 1), (4, 1), (4, 0)] {
        advance(rig, seconds * SECOND);
        b.due(9).await.unwrap();
        assert_eq!(b.siblings(), siblings);
    }
    heard(&*b, |wake| matches!(wake, Wake::Offered { scope: 0, .. })).await;
    assert_eq!(names(&b.offered(0, "queue", 9).await.unwrap()), ["held"]);
    // It was kept for 14 seconds at least when its owner was heard of last; by now it may be anybody's.
    advance(rig, 4 * SECOND);
    assert_eq!(b.offered(0, "queue", 9).await.unwrap().len(), 1);
    advance(rig, 2 * SECOND);
    assert!(b.offered(0, "queue", 9).await.unwrap().is_empty());
}

/// A sidecar that has lost the store, and a sibling that has not, and takes it for dead.
pub async fn a_held_job_goes_out_once_where_its_holder_is_cut_off(rig: &Rig) {
    let (a, b) = (
        Arc::new(Faulty::new(rig.open("a").await)),
        rig.open("b").await,
    );
    let guarded = Guard::new(a.clone(), OnStoreError::Share);
    let free = [limited("k", None, Some((9, SECOND)), None)];
    let [taken, kept] = ["taken", "kept"].map(|job| claimed(job, 1, &free));
    guarded.take(&[&taken, &kept], 0).await.unwrap();
    let claimed = taken.clone();
    assert!(guarded.set(Change::Offer { claimed }).await.unwrap());
    guarded.due(9).await.unwrap();
    a.standing(Some(Fault::gone()));
    for _ in 0..2 {
        guarded.count_out().await.ok();
    }
    assert!(guarded.is_lost());
    assert!(started(&take(&guarded, kept.clone()).await));
    advance(rig, 11 * SECOND);
    b.due(9).await.unwrap();
    // What was offered before the loss, and nothing else.
    let offered = b.offered(0, "queue", 9).await.unwrap();
    assert_eq!(names(&offered), ["taken"]);
    let own = Change::Own {
        job: "taken".into(),
        generation: Gen(1),
        next: Gen(3),
        until: now(rig).plus(SECOND),
    };
    assert!(b.set(own).await.unwrap());
    let mut theirs = taken.clone();
    theirs.generation = Gen(3);
    assert!(started(&take(&*b, theirs).await));
    a.standing(None);
    guarded.due(9).await.unwrap();
    assert!(!guarded.is_lost());
    assert_eq!(take(&guarded, taken).await, Verdict::Outdated);
    assert_eq!(b.count_out().await.unwrap(), 1);
}

/// Of two sidecars the first has a job out when the data are wiped, and the other hears of that first.
pub async fn wiped_data_are_missed(
    [a, b]: [&SqlStore; 2],
    micros: &AtomicU64,
    wipe: impl FnOnce(),
) {
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(a, claimed("1", 1, &one)).await));
    b.check().await.unwrap();
    let row = a.row("1").await.unwrap().unwrap();
    wipe();
    let ask = claimed("2", 1, &one);
    assert_eq!(b.take(&[&ask], 1).await.err(), Some(StoreError::Wiped));
    b.announce(&[]).await.unwrap();
    // A is silent until its next beat is due.
    micros.fetch_add(1_000_000, Ordering::AcqRel);
    b.due(1).await.unwrap();
    micros.fetch_add(900_000, Ordering::AcqRel);
    let early = b.take(&[&ask], 1).await;
    assert!(early.is_err(), "others have to come back first: {early:?}");
    assert_eq!(a.end("9", None).await.err(), Some(StoreError::Wiped));
    a.announce(&[row]).await.unwrap();
    micros.fetch_add(700_000, Ordering::AcqRel);
    assert!(!started(&take(b, ask.clone()).await), "the slot is taken");
    assert!(a.end("1", None).await.unwrap().is_some());
    assert!(started(&take(b, ask).await));
}

/// The data are locked by others until `unlock`: whoever asks is cut off in time, and what was cut off is refused when
/// its turn comes, so that nothing has to be undone.
pub async fn locked_data_keep_nobody_waiting(store: &dyn Ledger, unlock: impl FnOnce()) {
    let one = [limited("k", Some(1), None, None)];
    let asked = Instant::now();
    let ask = claimed("1", 1, &one);
    let cut_off = store.take(&[&ask], 1).await.err();
    assert_eq!(cut_off, Some(StoreError::Timeout));
    assert!(asked.elapsed() < Duration::from_secs(30));
    unlock();
    assert!(!answered(async || store.back("1", Gen(1)).await).await);
    assert!(answered(async || store.row("1").await).await.is_none());
    let verdict = take_answered(store, &ask).await;
    // A try that came too late for its answer may have started it.
    assert!(started(&verdict) || verdict == Verdict::HasRow, "it is out");
}

/// The data are lost, and nobody reaches the store while they wait for what all know: it is waited for again.
pub async fn data_that_nobody_could_put_back_are_waited_for(
    [a, b]: [&dyn Ledger; 2],
    micros: &AtomicU64,
    wipe: impl FnOnce(),
) {
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(a, claimed("1", 1, &one)).await));
    b.check().await.unwrap();
    let row = a.row("1").await.unwrap().unwrap();
    wipe();
    let ended = b.end("9", None).await;
    assert_eq!(ended.err(), Some(StoreError::Wiped));
    b.announce(&[]).await.unwrap();
    // The store is away.
    micros.fetch_add(2_500_000, Ordering::AcqRel);
    b.announce(&[]).await.unwrap();
    let ask = claimed("2", 1, &one);
    let early = b.take(&[&ask], 1).await;
    assert_eq!(early.err(), Some(StoreError::Settling));
    micros.fetch_add(500_000, Ordering::AcqRel);
    a.announce(&[row]).await.unwrap();
    micros.fetch_add(1_600_000, Ordering::AcqRel);
    assert!(!started(&take(b, ask.clone()).await), "the slot is taken");
    assert!(a.end("1", None).await.unwrap().is_some());
    assert!(started(&take(b, ask).await), "and it is waited for once");
}

/// The data are lost, and one that never knew them is the first to come: `wipe` loses them, and `fresh` was not
/// asked yet.
pub async fn lost_data_are_put_back_first(
    knew: &dyn Ledger,
    fresh: &dyn Ledger,
    micros: &AtomicU64,
    wipe: impl FnOnce(),
) {
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(knew, claimed("1", 1, &one)).await));
    let row = knew.row("1").await.unwrap().unwrap();
    wipe();
    fresh.announce(&[]).await.unwrap();
    let ended = knew.end("9", None).await;
    assert_eq!(ended.err(), Some(StoreError::Wiped));
    knew.announce(&[]).await.unwrap();
    let ask = claimed("2", 1, &one);
    let early = fresh.take(&[&ask], 1).await;
    assert!(early.is_err(), "another one may have rows: {early:?}");
    knew.announce(&[row]).await.unwrap();
    micros.fetch_add(3_600_000, Ordering::AcqRel);
    assert!(!started(&take(fresh, ask).await), "the slot is taken");
    // Nor is it so again with each that comes.
    fresh.due(1).await.unwrap();
    knew.announce(&[]).await.unwrap();
    assert!(started(&take(fresh, claimed("3", 1, &[])).await));
}

/// The data are lost: `wipe` loses them. All sidecars but the last, which was not asked yet, knew them.
pub async fn what_was_set_by_hand_is_put_back(
    [a, b, late, fresh]: [&dyn Ledger; 4],
    micros: &AtomicU64,
    wipe: impl FnOnce(),
) {
    for store in [a, b, late] {
        store.announce(&[]).await.unwrap();
    }
    let key = |name: &str| Key::new(name).unwrap();
    let set = |name: &str, set| Change::Override {
        space: Space::Job,
        key: key(name),
        set,
    };
    let paused = |expires_at| {
        Some(Override {
            limits: Limits {
                concurrency: Some(0),
                ..Limits::default()
            },
            expires_at,
            ..Override::default()
        })
    };
    let bounds = |text: Option<&str>| Change::Setting {
        name: "bounds:mail".into(),
        text: text.map(Into::into),
    };
    let now = a.now();
    let soon = Some(now.plus(4 * SECOND));
    for change in [
        set("paused", paused(None)),
        set("ended", paused(Some(now.plus(SECOND)))),
        set("ends", paused(Some(now.plus(3_600 * SECOND)))),
        set("soon", paused(soon)),
        set("gone", paused(None)),
        bounds(Some("{}")),
    ] {
        assert!(a.set(change).await.unwrap());
    }
    micros.fetch_add(3 * SECOND, Ordering::AcqRel);
    late.due(1).await.unwrap();
    b.due(1).await.unwrap();
    assert!(b.set(set("gone", None)).await.unwrap());
    wipe();
    assert_eq!(b.end("9", None).await.err(), Some(StoreError::Wiped));
    b.announce(&[]).await.unwrap();
    // Who knew nothing of all this goes by it too.
    fresh.announce(&[]).await.unwrap();
    let names = |store: &dyn Ledger| {
        let mut keys = store.overrides().keys(Space::Job, store.now());
        keys.sort();
        let keys: Vec<String> = keys.iter().map(|key| key.as_str().to_owned()).collect();
        keys.join(" ")
    };
    assert_eq!(names(fresh), "ends paused soon");
    assert_eq!(
        fresh.overrides().setting("bounds:mail").as_deref(),
        Some("{}")
    );
    // While others may put it back, nothing can be deleted, but changed.
    for gone in [set("paused", None), bounds(None)] {
        assert_eq!(b.set(gone).await, Err(StoreError::Settling));
    }
    let changed = Override {
        by: Some("eve".into()),
        ..paused(None).unwrap()
    };
    assert!(b.set(set("ends", Some(changed))).await.unwrap());
    // One that has not heard of the deletion.
    a.announce(&[]).await.unwrap();
    assert_eq!(names(a), "ends gone paused soon");
    let by = |store: &dyn Ledger| {
        let found = store.overrides().get(Space::Job, &key("ends"), store.now());
        found.and_then(|set| set.by.clone())
    };
    assert_eq!(by(a).as_deref(), Some("eve"), "a change is not undone");
    // Then it is as ever, and who comes only now brings nothing back.
    micros.fetch_add(3_600_000, Ordering::AcqRel);
    b.due(1).await.unwrap();
    for gone in [set("paused", None), set("gone", None), bounds(None)] {
        assert!(b.set(gone).await.unwrap());
    }
    assert_eq!(late.end("9", None).await.err(), Some(StoreError::Wiped));
    late.announce(&[]).await.unwrap();
    fresh.due(1).await.unwrap();
    for store in [late, fresh] {
        assert_eq!(names(store), "ends");
        assert_eq!(store.overrides().setting("bounds:mail"), None);
    }
    let times = [a, b, late, fresh].map(|store| store.facts().times_wiped);
    assert_eq!(times, [1, 1, 1, 0]);
}

pub async fn limits_set_over_http_are_told_to_all(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let key = Key::new("k").unwrap();
    let set = Override {
        limits: Limits {
            concurrency: Some(3),
            ..Limits::default()
        },
        ..Override::default()
    };
    let put = |set| Change::Override {
        space: Space::Queue,
        key: key.clone(),
        set,
    };
    let seen = |store: &dyn Ledger| {
        store
            .overrides()
            .get(Space::Queue, &key, now(rig))
            .is_some()
    };
    assert!(a.set(put(Some(set.clone()))).await.unwrap());
    heard(&*b, |wake| *wake == Wake::Set && seen(&*b)).await;
    assert!(seen(&*rig.open("c").await), "who comes later");
    assert!(b.set(put(None)).await.unwrap());
    // Who hears nothing finds out with its next beat.
    advance(rig, 3 * SECOND);
    a.due(1).await.unwrap();
    assert!(!seen(&*a));
}

pub async fn settings_made_over_http_are_told_to_all(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let put = |text: Option<&str>| Change::Setting {
        name: "bounds:mail".into(),
        text: text.map(Into::into),
    };
    let seen = |store: &dyn Ledger| store.overrides().setting("bounds:mail");
    assert!(a.set(put(Some("{}"))).await.unwrap());
    heard(&*b, |wake| *wake == Wake::Set && seen(&*b).is_some()).await;
    let late = rig.open("c").await;
    assert_eq!(seen(&*late).as_deref(), Some("{}"), "who comes later");
    assert!(b.set(put(None)).await.unwrap());
    // Who hears nothing finds out with its next beat.
    advance(rig, 3 * SECOND);
    a.due(1).await.unwrap();
    assert!(seen(&*a).is_none());
}

pub async fn a_paused_queue_is_heard_of(rig: &Rig) {
    let (a, b) = (listening(rig, "a").await, listening(rig, "b").await);
    for paused in [true, false] {
        let queue = "mail".into();
        a.set(Change::Paused { queue, paused }).await.unwrap();
        let queue = "mail".into();
        let told = Wake::Paused { queue, paused };
        heard(&*b, |wake| *wake == told).await;
        assert_eq!(b.is_paused("mail").await, Ok(paused));
    }
}

pub async fn numbers_are_shared(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    let add = Step::Add {
        by: 1,
        most: Some(5),
    };
    let mut done = BTreeSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { &a } else { &b };
        let number = store.number("depth", add).await.unwrap();
        if number.done {
            done.insert(number.value);
        }
    }
    assert_eq!(done, (1..=5).collect());
}

pub async fn jobs_that_many_ask_for_at_once_start_within_the_limit(rig: &Rig) {
    let mut asking = Vec::new();
    for owner in 0..4 {
        let store = rig.open(&format!("s{owner}")).await;
        asking.push(async move {
            let most = [
                limited("k", Some(10), None, None),
                limited(&format!("own-{owner}"), Some(100), None, None),
                limited("l", None, Some((12, SECOND)), None),
            ];
            let mut count = 0;
            for job in 0..10 {
                let job = claimed(&format!("{owner}-{job}"), 1, &most);
                count += usize::from(started(&take(&*store, job).await));
            }
            count
        });
    }
    let mut all = tokio::task::JoinSet::new();
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            for one in asking {
                all.spawn_local(one);
            }
            let counts = all.join_all().await;
            assert_eq!(counts.iter().sum::<usize>(), 10, "{counts:?}");
        })
        .await;
}

/// Four sidecars, one hot key with spacing and a window, workers that are never idle.
pub async fn start_times_are_reserved_for_a_fraction_of_the_calls(rig: &Rig) {
    let hot = limited("hot", None, Some((450, 2 * SECOND)), Some(400));
    let mut fleet = Vec::new();
    for (nth, workers) in [12, 3, 1, 1].into_iter().enumerate() {
        let inner = rig.open(&format!("sidecar-{nth}")).await;
        let calls = Arc::new(Faulty::new(inner));
        let guard = Guard::new(calls.clone(), OnStoreError::default());
        let store = Store::shared(Arc::new(guard));
        store.reserve_for([Arc::from("test")].into());
        fleet.push((store, calls, workers));
    }
    let mut started = Vec::new();
    // Two seconds: a whole window.
    for _ in 0..1_000 {
        for (nth, (store, _, workers)) in fleet.iter().enumerate() {
            for _ in 0..*workers {
                let ask = claimed(
                    &format!("{nth}-{}", started.len()),
                    1,
                    std::slice::from_ref(&hot),
                );
                match take(&**store, ask).await {
                    Verdict::Started { at } => started.push((at, now(rig))),
                    Verdict::Refused { .. } => break,
                    other => panic!("{other:?}"),
                }
            }
        }
        advance(rig, 2_000);
    }
    started.sort_unstable();
    for pair in started.windows(2) {
        assert!(pair[1].0.since(pair[0].0) >= 2_500, "{pair:?}");
    }
    for (at, left) in &started {
        assert!(left.plus(EARLY) >= *at && *left <= at.plus(EARLY));
    }
    let calls: usize = fleet.iter().map(|(_, calls, _)| calls.calls()).sum();
    let count = started.len();
    println!("{count} starts, {calls} calls");
    assert!((441..=450).contains(&count), "98 to 100 % of 450: {count}");
    assert!(calls * 10 <= count * 4, "{calls} calls for {count} starts");
}

/// A sidecar without a backend can do nothing for jobs. What is due of them hides no call, and is left to others.
pub async fn calls_are_found_behind_jobs_of_others(rig: &Rig) {
    let (dead, calls, all) = (
        rig.open("dead").await,
        rig.open("calls").await,
        rig.open("all").await,
    );
    let slot = [limited("k", Some(1_000), None, None)];
    let out = async |store: &dyn Ledger, job: &str, queue: &str| {
        let mut claim = claimed(job, 1, &slot);
        (claim.visibility, claim.queue) = (SECOND, queue.into());
        assert!(started(&take(store, claim).await), "{job}");
    };
    for nth in 0..300 {
        out(&*dead, &format!("a-{nth:03}"), "queue").await;
    }
    // A job may be called like a call, and a call be due after all jobs.
    out(&*dead, "call-0", "queue").await;
    let call = Claim::queue_of_calls("out");
    advance(rig, 1_000);
    out(&*dead, "call-1", &call).await;
    out(&*calls, "call-2", &call).await;
    advance(rig, 20 * SECOND);
    let found = calls.due_of(LooksAfter::Calls, 9).await.unwrap();
    let mut found = names(&found);
    found.sort_unstable();
    assert_eq!(found, ["call-1", "call-2"]);
    assert!(calls.siblings() <= 1, "it has looked around");
    // Nobody waits for what was left alone.
    let found = all.due(400).await.unwrap();
    let jobs = found.iter().filter(|row| row.claimed.egress().is_none());
    assert_eq!(jobs.count(), 301, "all of them, at once");
    assert!(
        found.iter().all(|row| &*row.claimed.job != "call-1"),
        "it has been handed out"
    );
}
