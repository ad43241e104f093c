//! The guard around a memory store that fails when it is told to.

use std::collections::HashMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::guarded::Guard;
use super::mode::*;
use super::state::{MOST_SHUT, Notes};
use crate::claims::TestClaim as _;
use crate::faulty::{Fault, Faulty};
use crate::lines::Lines;
use crate::memory::MemoryStore;
use crate::{
    Change, Claim, Claimed, Clock, Gen, KnownRow, Ledger, LedgerExt, Place, StoreError, Verdict,
    Wake,
};
use ojs_limit::{Key, Limited, Limits, OnLimit, Rate, Space, Strategy, Timestamp, WindowKind};

const T: u64 = 1_800_000_000_000_000;

struct Rig {
    faulty: Arc<Faulty>,
    guard: Guard,
}

fn rig(mode: OnStoreError) -> Rig {
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new(T))));
    let guard = Guard::new(faulty.clone(), mode);
    Rig { faulty, guard }
}

fn claimed(job: &str, slots: u32) -> Claimed {
    let limits = Limits {
        concurrency: Some(slots),
        ..Limits::default()
    };
    Claimed::from(Claim::under(job, limits, "test"))
}

async fn starts(guard: &Guard, job: &str) -> Result<bool, StoreError> {
    let taken = guard.take(&[&claimed(job, 3)], 1).await?;
    Ok(taken.verdicts[0].is_started())
}

/// How many slots of the key are taken in the store.
async fn active(rig: &Rig) -> u32 {
    let keys = [(Space::Job, Key::new("k").unwrap())];
    rig.faulty.active(&keys).await.unwrap()[0]
}

/// Two failures make a loss; from the second on the mode answers.
async fn lose(rig: &Rig) {
    rig.faulty.standing(Some(Fault::gone()));
    assert!(!rig.guard.is_lost());
    assert!(rig.guard.count_out().await.is_err());
    let _answered_by_the_mode = rig.guard.count_out().await;
    assert!(rig.guard.is_lost());
}

/// The store is there again, and the next look finds it.
async fn regain(rig: &Rig) {
    rig.faulty.standing(None);
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.is_lost());
}

/// One call fails.
async fn fail_once(rig: &Rig, fault: Fault) {
    rig.faulty.script([fault]);
    assert!(rig.guard.count_out().await.is_err());
}

/// A worker settled the job through a sibling, whose message did not come: with the store lost, nothing starts in its slot.
#[tokio::test(start_paused = true)]
async fn a_row_that_a_sibling_ended_unheard_is_found() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(starts(&rig.guard, "b").await.unwrap());
    rig.faulty.end("a", None).await.unwrap();
    assert!(rig.guard.has_row("a"));
    tokio::time::advance(Duration::from_secs(60)).await;
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.has_row("a"));
    assert!(rig.guard.has_row("b"));
}

/// The word of a sibling that ended an earlier claim comes when the store is back and knows nothing of the later one.
#[tokio::test(start_paused = true)]
async fn what_started_without_the_store_stays_though_a_sibling_ended_its_earlier_claim() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    lose(&rig).await;
    rig.guard.end("a", Some(Gen(1))).await.unwrap();
    let again = Claim {
        generation: Gen(2),
        ..Claim::clone(&claimed("a", 3))
    };
    let taken = rig.guard.take(&[&Claimed::from(again)], 1).await.unwrap();
    assert!(taken.verdicts[0].is_started());
    rig.faulty.standing(None);
    rig.faulty.end("a", None).await.unwrap();
    rig.guard.follow("a").await;
    assert!(rig.guard.has_row("a"));
    rig.guard.due(9).await.unwrap();
    assert_eq!(active(&rig).await, 1);
}

/// Each would wait for a store that hangs, and the sweep for all of them.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_is_asked_about_one_overdue_row() {
    let rig = rig(OnStoreError::Share);
    for job in ["a", "b", "c"] {
        assert!(starts(&rig.guard, job).await.unwrap());
        rig.faulty.end(job, None).await.unwrap();
    }
    tokio::time::advance(Duration::from_secs(60)).await;
    let before = rig.faulty.calls();
    rig.faulty.script([Fault::NONE, Fault::gone()]);
    rig.guard.due(9).await.unwrap();
    assert_eq!(rig.faulty.calls() - before, 2, "what is due, and one row");
    rig.guard.due(9).await.unwrap();
    assert!(["a", "b", "c"].iter().all(|job| !rig.guard.has_row(job)));
}

/// What its row was is heard late: the job was taken back and offered meanwhile, and no worker has it.
#[tokio::test(start_paused = true)]
async fn an_offer_is_not_out_by_an_answer_of_before() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.script([Fault::late(Duration::from_secs(1))]);
    let is_offered = async {
        assert!(rig.guard.back("a", Gen(1)).await.unwrap());
        assert!(rig.guard.set(offer(&claimed("a", 3))).await.unwrap());
    };
    tokio::join!(rig.guard.follow("a"), is_offered);
    assert!(!rig.guard.has_row("a"));
}

/// Two log lines in 10 s are enough; and one loss that lasts is in the log whatever came before it.
#[tokio::test(start_paused = true)]
async fn a_store_that_comes_and_goes_fills_no_log() {
    let (lines, _listening) = Lines::listen();
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    for _ in 0..100 {
        lose(&rig).await;
        regain(&rig).await;
        tokio::time::advance(Duration::from_millis(300)).await;
    }
    let lost = |lines: &Lines| lines.with("id=store_lost").len();
    assert!((2..=4).contains(&lost(&lines)), "{}", lines.text());
    assert_eq!(lines.with("the store is back").len(), lost(&lines));
    assert!(
        !lines.with("not_logged_before=3").is_empty(),
        "{}",
        lines.text()
    );
    let before = lost(&lines);
    lose(&rig).await;
    for _ in 0..25 {
        tokio::time::advance(Duration::from_millis(500)).await;
        rig.guard.due(9).await.ok();
    }
    assert_eq!(lost(&lines), before + 1, "{}", lines.text());
    regain(&rig).await;
    assert_eq!(lines.with("the store is back").len(), before + 1);
}

/// As on a full disk.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_and_lets_nothing_start_is_lost() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.standing(Some(Fault::gone()));
    assert!(starts(&rig.guard, "b").await.is_err());
    rig.faulty.standing(None);
    assert!(rig.guard.count_out().await.is_ok());
    assert!(rig.guard.due(9).await.is_ok());
    assert!(!rig.guard.is_lost());
    rig.faulty.standing(Some(Fault::gone()));
    assert!(!starts(&rig.guard, "b").await.unwrap(), "one slot was ours");
    assert!(rig.guard.is_lost());
    rig.faulty.standing(None);
    assert!(rig.guard.due(9).await.is_ok());
    rig.faulty.standing(Some(Fault::gone()));
    assert!(starts(&rig.guard, "c").await.is_err());
    assert!(!rig.guard.is_lost(), "it was back, and is asked anew");
}

/// What answers for it has one clock, which stands whatever is learnt of the server's meanwhile: a start would be
/// early or late by the difference.
#[tokio::test(start_paused = true)]
async fn while_it_is_lost_there_is_one_clock() {
    let theirs = Arc::new(AtomicU64::new(T));
    let inner = MemoryStore::on(Clock::given(theirs.clone()));
    let faulty = Arc::new(Faulty::new(Arc::new(inner)));
    let guard = Guard::new(faulty.clone(), OnStoreError::Share);
    let rig = Rig { faulty, guard };
    let starts_at = async |job: &str| {
        let claimed = rated(job, None, (8, 1));
        match rig.guard.take(&[&claimed], 1).await.unwrap().verdicts[0] {
            Verdict::Started { at } => at,
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(starts_at("a").await, rig.guard.now());
    lose(&rig).await;
    theirs.store(T + 50_000, Ordering::Release);
    assert_eq!(starts_at("b").await, rig.guard.now());
    tokio::time::advance(Duration::from_millis(20)).await;
    assert_eq!(rig.guard.now(), Timestamp(T + 20_000));
    assert_eq!(starts_at("c").await, rig.guard.now());
    regain(&rig).await;
    assert_eq!(rig.guard.now(), Timestamp(T + 50_000));
}

#[tokio::test(start_paused = true)]
async fn a_share_is_the_slots_that_were_ours() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(starts(&rig.guard, "b").await.unwrap());
    lose(&rig).await;
    assert!(
        !starts(&rig.guard, "c").await.unwrap(),
        "two of three were ours"
    );
    assert!(rig.guard.end("a", None).await.unwrap().is_some());
    assert!(starts(&rig.guard, "c").await.unwrap());
    assert_eq!(rig.guard.count_out().await.unwrap(), 2);
    // Back: what went on without the store is known there before anything starts.
    regain(&rig).await;
    assert_eq!(active(&rig).await, 2);
    assert!(rig.faulty.row("a").await.unwrap().is_none());
    assert!(starts(&rig.guard, "d").await.unwrap());
    assert!(!starts(&rig.guard, "e").await.unwrap());
}

/// A job that brings the key of a policy takes one slot of it.
#[tokio::test(start_paused = true)]
async fn a_key_that_a_job_meets_twice_is_one_slot_of_the_share() {
    let rig = rig(OnStoreError::Share);
    let twice = |job: &str| {
        let once = claimed(job, 4);
        let brought = Limited {
            policy: Arc::from("job"),
            ..once.limited[0].clone()
        };
        Claimed::from(Claim {
            limited: Arc::from([once.limited[0].clone(), brought]),
            ..Claim::of(job)
        })
    };
    let starts = async |job: &str| {
        let taken = rig.guard.take(&[&twice(job)], 1).await.unwrap();
        taken.verdicts[0].is_started()
    };
    assert!(starts("a").await && starts("b").await);
    lose(&rig).await;
    assert!(!starts("c").await, "two of four were ours");
    assert!(rig.guard.end("a", None).await.unwrap().is_some());
    assert!(starts("c").await && !starts("d").await);
}

/// Who had no slots at the loss has none to hear of when the store is back.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_back_wakes_all() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "gone").await.unwrap());
    assert!(rig.guard.end("gone", None).await.unwrap().is_some());
    lose(&rig).await;
    assert!(!starts(&rig.guard, "a").await.unwrap(), "no slot was ours");
    assert_eq!(
        rig.guard.wake().await,
        Wake::All,
        "that it is lost is heard"
    );
    rig.faulty.standing(None);
    let (woken, due) = tokio::join!(rig.guard.wake(), rig.guard.due(9));
    assert!(due.is_ok());
    assert_eq!(woken, Wake::All);
    assert!(starts(&rig.guard, "a").await.unwrap());
}

/// An end that the store did not hear of wakes who waits for its slot when the store hears of it.
#[tokio::test(start_paused = true)]
async fn an_end_that_is_told_later_wakes_all() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.script([Fault::gone()]);
    assert!(rig.guard.end("a", None).await.is_err());
    assert!(!rig.guard.is_lost());
    assert!(rig.guard.due(9).await.is_ok());
    let woken = tokio::time::timeout(Duration::from_secs(1), rig.guard.wake());
    assert_eq!(woken.await, Ok(Wake::All));
    assert!(rig.faulty.row("a").await.unwrap().is_none());
}

/// What is settled through us and out through a sibling: its slot does not wait for its visibility.
#[tokio::test(start_paused = true)]
async fn an_end_of_a_siblings_job_is_told_later_too() {
    let rig = rig(OnStoreError::Share);
    assert_eq!(rig.guard.count_out().await, Ok(0));
    for (job, named) in [("a", None), ("b", Some(Gen(1)))] {
        let out = claimed(job, 3);
        rig.faulty.take(&[&out], 1).await.unwrap();
        rig.faulty.script([Fault::gone()]);
        assert!(rig.guard.end(job, named).await.is_err());
        assert!(rig.guard.due(9).await.is_ok());
        assert!(rig.faulty.row(job).await.unwrap().is_none(), "{job}");
    }
    // Claimed again before the store was told, it is another's.
    let mut again = claimed("c", 3);
    again.generation = Gen(T * 2);
    rig.faulty.script([Fault::gone()]);
    assert!(rig.guard.end("c", None).await.is_err());
    rig.faulty.take(&[&again], 1).await.unwrap();
    assert!(rig.guard.due(9).await.is_ok());
    assert!(rig.faulty.row("c").await.unwrap().is_some());
}

/// The row of a job that is out through us is known, whether the store answers or not.
#[tokio::test(start_paused = true)]
async fn a_row_of_ours_is_known_without_the_store() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    for error in [StoreError::Wiped, StoreError::Timeout] {
        rig.faulty.script([Fault::failed(error)]);
        let row = rig.guard.row("a").await.unwrap().unwrap();
        assert!(row.is_out());
        assert!(rig.guard.due(9).await.is_ok());
        rig.faulty.script([Fault::gone()]);
        assert!(rig.guard.row("b").await.is_err());
        assert!(rig.guard.due(9).await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn each_policy_is_answered_as_it_declares() {
    let rig = rig(OnStoreError::Share);
    let of = |job: &str, policy: &str| {
        let mut claimed = claimed(job, 1);
        let limited = Limited {
            key: Key::new(policy).unwrap(),
            policy: Arc::from(policy),
            ..claimed.limited[0].clone()
        };
        claimed.limited = Arc::from([limited]);
        claimed
    };
    let declared = [
        ("closed", OnStoreError::Closed),
        ("open", OnStoreError::Open),
    ];
    let declared = declared.map(|(policy, mode)| (Arc::from(policy), mode));
    rig.guard.declare(HashMap::from(declared));
    for policy in ["share", "closed", "open"] {
        let first = of(policy, policy);
        let verdicts = rig.guard.take(&[&first], 1).await.unwrap().verdicts;
        assert!(verdicts[0].is_started(), "{policy}");
    }
    lose(&rig).await;
    let asks = ["closed", "share", "open"].map(|policy| of(&format!("{policy}2"), policy));
    let verdicts = rig.guard.take(&asks.each_ref(), 3).await.unwrap().verdicts;
    let why = |verdict: &Verdict| match verdict {
        Verdict::Refused { why, .. } => Some(why.strategy),
        _ => None,
    };
    assert_eq!(why(&verdicts[0]), Some(Strategy::Shut));
    assert_eq!(
        why(&verdicts[1]),
        Some(Strategy::Concurrency),
        "its only slot is out"
    );
    assert!(verdicts[2].is_started());
    assert!(rig.guard.end("closed", None).await.unwrap().is_some());
    // The strictest of a job's policies decides, and what is declared anew counts at once.
    let mut both = of("both", "open");
    both.limited = [&both.limited[..], &asks[0].limited[..]].concat().into();
    assert!(rig.guard.take(&[&both], 1).await.is_err());
    rig.guard.declare(HashMap::new());
    assert!(rig.guard.take(&[&asks[0]], 1).await.is_ok());
    // A slot that ends is a share's to give again.
    assert!(rig.guard.end("share", None).await.unwrap().is_some());
    assert!(rig.guard.take(&[&asks[1]], 1).await.unwrap().verdicts[0].is_started());
}

#[tokio::test(start_paused = true)]
async fn who_never_knew_the_store_is_closed() {
    let rig = rig(OnStoreError::Open);
    lose(&rig).await;
    assert!(starts(&rig.guard, "a").await.is_err());
    regain(&rig).await;
    assert!(starts(&rig.guard, "a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_nobody_heard_of_is_undone() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.script([Fault::unheard()]);
    assert!(starts(&rig.guard, "a").await.is_err());
    let row = rig.faulty.row("a").await.unwrap().unwrap();
    assert!(row.is_out(), "it was done");
    assert!(starts(&rig.guard, "a").await.unwrap(), "and is not lost");
    assert_eq!(rig.guard.count_out().await.unwrap(), 1);
}

/// A hand-out that did not happen, while the store was going away or was gone: when it is back nothing of it is left
/// there, and the job may start again.
#[tokio::test(start_paused = true)]
async fn a_start_that_is_undone_without_the_store_is_undone_there() {
    for siblings in [0, 1] {
        let rig = rig(OnStoreError::Share);
        rig.faulty.with_siblings(siblings);
        assert!(starts(&rig.guard, "a").await.unwrap() && starts(&rig.guard, "b").await.unwrap());
        rig.faulty.standing(Some(Fault::gone()));
        assert!(rig.guard.back("a", Gen(1)).await.is_err());
        assert!(
            rig.guard.back("b", Gen(1)).await.unwrap(),
            "by now it is lost"
        );
        assert!(rig.guard.is_lost());
        regain(&rig).await;
        for job in ["a", "b"] {
            assert!(rig.faulty.row(job).await.unwrap().is_none(), "{job}");
        }
        assert_eq!(active(&rig).await, 0);
        for job in ["a", "b"] {
            assert!(starts(&rig.guard, job).await.unwrap(), "{job}");
        }
    }
}

/// FETCHes that bring nothing ask the store for nothing: that it is lost is noticed all the same.
#[tokio::test(start_paused = true)]
async fn an_answer_without_a_question_is_no_success() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.standing(Some(Fault::gone()));
    for _ in 0..2 {
        assert!(rig.guard.take(&[], 1).await.unwrap().verdicts.is_empty());
        let _failed = rig.guard.count_out().await;
    }
    assert!(rig.guard.is_lost());
}

/// A claim of this number.
fn claim(job: &str, generation: u64, policy: &str) -> Claimed {
    let mut claimed = claimed(job, 9);
    claimed.generation = Gen(generation);
    let limited = Limited {
        policy: Arc::from(policy),
        ..claimed.limited[0].clone()
    };
    claimed.limited = Arc::from([limited]);
    claimed
}

/// A guard with slots out and in doubt, a held job, and one that is closed; then the store is lost.
async fn lose_what_is_held(rig: &Rig) -> [Claimed; 3] {
    let closed = (Arc::from("closed"), OnStoreError::Closed);
    rig.guard.declare(HashMap::from([closed]));
    for (job, generation) in [("one", 1), ("two", 2)] {
        let out = claim(job, generation, "open");
        rig.guard.take(&[&out], 1).await.unwrap();
    }
    let [held, doubtful, closed] = [
        claim("held", 7, "open"),
        claim("doubtful", 8, "open"),
        claim("closed", 5, "closed"),
    ];
    rig.guard.take(&[&held, &closed], 0).await.unwrap();
    rig.faulty.script([Fault::unheard()]);
    assert!(rig.guard.take(&[&doubtful], 1).await.is_err());
    rig.faulty.standing(Some(Fault::gone()));
    let _second_failure = rig.guard.count_out().await;
    assert!(rig.guard.is_lost());
    // Its slots are a share's to give again.
    for job in ["one", "two"] {
        rig.guard.end(job, None).await.unwrap();
    }
    [held, doubtful, closed]
}

/// A held job is its holder's alone, however many siblings live.
#[tokio::test(start_paused = true)]
async fn what_was_held_at_the_loss_starts_without_the_store() {
    for siblings in [0, 2] {
        let rig = rig(OnStoreError::Open);
        rig.faulty.with_siblings(siblings);
        let [held, doubtful, closed] = lose_what_is_held(&rig).await;
        let asks = [&held, &doubtful, &closed];
        let verdicts = rig.guard.take(&asks, 3).await.unwrap().verdicts;
        let both = verdicts[..2].iter().all(Verdict::is_started);
        assert!(both, "{verdicts:?}");
        assert!(
            matches!(verdicts[2], Verdict::Refused { .. }),
            "{verdicts:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_failure_is_no_loss_and_nothing_waits_once_it_is_one() {
    let rig = rig(OnStoreError::Closed);
    fail_once(&rig, Fault::gone()).await;
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(!rig.guard.is_lost());
    let slow = Fault {
        delay: Duration::from_secs(1),
        ..Fault::gone()
    };
    rig.faulty.standing(Some(slow));
    for _ in 0..2 {
        let _failed = rig.guard.count_out().await;
    }
    let asked = rig.guard.now();
    assert!(starts(&rig.guard, "b").await.is_err());
    assert_eq!(rig.guard.now(), asked, "it did not wait for the store");
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_cut_off_together_are_one_failure() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let cut = || Fault {
        delay: Duration::from_millis(9),
        ..Fault::gone()
    };
    rig.faulty.script([cut(), cut(), cut()]);
    let count = || rig.guard.count_out();
    let (one, two, three) = tokio::join!(count(), count(), count());
    assert!(one.is_err() && two.is_err() && three.is_err());
    assert!(!rig.guard.is_lost());
    // Without an end there is always one under way when another fails.
    rig.faulty.standing(Some(cut()));
    let calls = async |first: u64| {
        tokio::time::sleep(Duration::from_millis(first)).await;
        for _ in 0..2 {
            let _failed = count().await;
        }
    };
    tokio::join!(calls(0), calls(5));
    assert!(rig.guard.is_lost());
}

/// While the store comes back a sidecar goes on without it.
#[tokio::test(start_paused = true)]
async fn what_happens_while_the_store_comes_back_is_known_there() {
    let rig = rig(OnStoreError::Share);
    for job in ["a", "b"] {
        assert!(starts(&rig.guard, job).await.unwrap());
    }
    lose(&rig).await;
    rig.faulty
        .standing(Some(Fault::late(Duration::from_millis(50))));
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(rig.guard.is_lost());
        assert!(rig.guard.end("a", None).await.unwrap().is_some());
        assert!(starts(&rig.guard, "c").await.unwrap());
        assert!(rig.guard.back("b", Gen(1)).await.unwrap());
    };
    let (due, ()) = tokio::join!(rig.guard.due(9), meanwhile);
    assert!(due.is_ok() && !rig.guard.is_lost());
    rig.faulty.standing(None);
    let mut places = Vec::new();
    for job in ["a", "b", "c"] {
        let row = rig.faulty.row(job).await.unwrap();
        places.push(row.map(|row| row.is_out()));
    }
    assert_eq!(places, [None, None, Some(true)]);
    assert_eq!(active(&rig).await, 1);
}

/// All that ask after a failure wait for one recovery.
#[tokio::test(start_paused = true)]
async fn rows_are_put_back_once() {
    let rig = rig(OnStoreError::Share);
    let out: Vec<Claimed> = (0..50).map(|n| claimed(&format!("out{n}"), 99)).collect();
    rig.guard
        .take(&out.iter().collect::<Vec<_>>(), 99)
        .await
        .unwrap();
    fail_once(&rig, Fault::gone()).await;
    rig.faulty
        .standing(Some(Fault::late(Duration::from_millis(1))));
    let before = rig.faulty.calls();
    let asks = ["a", "b", "c", "d"].map(|job| claimed(job, 99));
    let take = async |nth: usize| rig.guard.take(&[&asks[nth]], 1).await.is_ok();
    let all = tokio::join!(take(0), take(1), take(2), take(3));
    assert_eq!(all, (true, true, true, true));
    let calls = rig.faulty.calls() - before;
    assert_eq!(calls, 1 + 4);
}

/// If each tried in turn, the last would wait for all.
#[tokio::test(start_paused = true)]
async fn who_waits_for_a_recovery_that_fails_does_not_try_again() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    fail_once(&rig, Fault::gone()).await;
    rig.faulty.standing(Some(Fault {
        delay: Duration::from_millis(250),
        ..Fault::gone()
    }));
    let asked = rig.guard.now();
    let take = async |job: &str| drop(starts(&rig.guard, job).await);
    tokio::join!(take("b"), take("c"), take("d"), take("e"));
    assert!(
        rig.guard.now().since(asked) < 300_000,
        "they waited together"
    );
    assert!(rig.guard.is_lost());
}

/// Each loss would give a whole share anew.
#[tokio::test(start_paused = true)]
async fn a_share_is_used_once_however_often_the_store_is_lost() {
    let rig = rig(OnStoreError::Share);
    let starts = async |name: &str| rated_starts(&rig.guard, rated(name, None, (2, 600))).await;
    let mut started = Vec::new();
    for loss in 0..3 {
        started.push(starts(&format!("{loss}x")).await && starts(&format!("{loss}y")).await);
        lose(&rig).await;
        started.push(starts(&format!("{loss}a")).await && starts(&format!("{loss}b")).await);
        regain(&rig).await;
    }
    assert_eq!(started, [true, true, false, false, false, false]);
}

/// Who is still cut off when the store is back is not heard there, and goes on with its part: a part is no larger in a loss
/// soon after.
#[tokio::test(start_paused = true)]
async fn a_share_is_not_larger_in_a_loss_soon_after_another() {
    for (later, may) in [(1_000, 2), (20_000, 3)] {
        let rig = rig(OnStoreError::Share);
        assert!(starts(&rig.guard, "a").await.unwrap());
        rig.faulty.with_siblings(2);
        lose(&rig).await;
        regain(&rig).await;
        rig.faulty.with_siblings(1);
        tokio::time::advance(Duration::from_millis(later)).await;
        lose(&rig).await;
        let mut started = 0;
        for n in 0..9 {
            let one = rated(&n.to_string(), None, (6, 600));
            started += u32::from(rated_starts(&rig.guard, one).await);
        }
        assert_eq!(started, may, "{later} ms later");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_waits_for_others_is_not_lost() {
    let rig = rig(OnStoreError::Open);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let settling = Fault::failed(StoreError::Settling);
    rig.faulty.standing(Some(settling));
    for _ in 0..5 {
        assert_eq!(starts(&rig.guard, "b").await, Err(StoreError::Settling));
    }
    assert!(!rig.guard.is_lost());
    let before = rig.faulty.calls();
    rig.faulty.standing(None);
    assert!(starts(&rig.guard, "b").await.unwrap());
    assert_eq!(rig.faulty.calls() - before, 1, "nothing was in doubt");
}

/// One that came back empty answers: it starts nothing before it knows our rows, whatever `on_store_error` says.
#[tokio::test(start_paused = true)]
async fn a_store_that_forgot_is_not_lost() {
    let rig = rig(OnStoreError::Open);
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.standing(Some(Fault::failed(StoreError::Wiped)));
    for _ in 0..5 {
        assert!(rig.guard.count_out().await.is_err());
        assert_eq!(starts(&rig.guard, "b").await, Err(StoreError::Wiped));
    }
    assert!(!rig.guard.is_lost());
    rig.faulty.standing(None);
    // What it knew is gone.
    assert!(rig.faulty.end("a", None).await.unwrap().is_some());
    assert!(starts(&rig.guard, "b").await.unwrap());
    assert_eq!(rig.faulty.count_out().await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_shut_here_stays_shut_through_a_loss_and_a_wipe() {
    let rig = rig(OnStoreError::Share);
    let hour = Timestamp(T).plus(3_600_000_000);
    let shut = |name: &str| Change::Shut {
        key: Key::new(name).unwrap(),
        until: hour,
        at_least: true,
    };
    let until = async |store: &dyn Ledger, name: &str| {
        let (key, limits) = (Key::new(name).unwrap(), Limits::default());
        let usage = store.usage(Space::Job, &key, &limits).await.unwrap();
        usage.and_then(|usage| usage.shut_until)
    };
    assert!(rig.guard.set(shut("k")).await.unwrap());
    lose(&rig).await;
    assert_eq!(until(&rig.guard, "k").await, Some(hour));
    assert!(rig.guard.set(shut("meanwhile")).await.unwrap());
    regain(&rig).await;
    assert_eq!(until(&*rig.faulty, "meanwhile").await, Some(hour));

    rig.faulty.set(Change::Clear).await.unwrap();
    rig.faulty.script([Fault::failed(StoreError::Wiped)]);
    assert!(!starts(&rig.guard, "a").await.unwrap());
    assert_eq!(until(&*rig.faulty, "k").await, Some(hour));
    // What opens it is heeded.
    let key = Key::new("k").unwrap();
    assert!(rig.guard.set(Change::Unused { key }).await.unwrap());
    lose(&rig).await;
    assert_eq!(until(&rig.guard, "k").await, None);
}

#[test]
fn a_key_that_is_opened_by_hand_is_open_however_many_are_shut() {
    let (mut notes, now) = (Notes::default(), Timestamp(T));
    let shut = |nth: usize, until| Change::Shut {
        key: Key::new(&format!("k{nth}")).unwrap(),
        until,
        at_least: false,
    };
    for nth in 0..=MOST_SHUT {
        notes.changed(&shut(nth, Timestamp::NEVER), now);
    }
    assert_eq!(notes.shuts(now).len(), MOST_SHUT, "one too many");
    notes.changed(&shut(0, now), now);
    assert_eq!(notes.shuts(now).len(), MOST_SHUT - 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_store_cannot_keep_is_not_told_again() {
    let rig = rig(OnStoreError::Open);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let unfit = StoreError::Unfit("too long".into());
    rig.faulty.standing(Some(Fault::failed(unfit.clone())));
    for _ in 0..5 {
        assert_eq!(starts(&rig.guard, "long").await, Err(unfit.clone()));
        assert!(rig.guard.back("long", Gen(1)).await.is_err());
        assert!(rig.guard.end("long", None).await.is_err());
    }
    assert!(!rig.guard.is_lost());
    rig.faulty.standing(None);
    let before = rig.faulty.calls();
    assert!(starts(&rig.guard, "b").await.unwrap());
    assert_eq!(rig.faulty.calls() - before, 1, "nothing was in doubt");
}

#[tokio::test(start_paused = true)]
async fn a_start_in_doubt_that_a_store_cannot_keep_is_no_doubt() {
    let rig = rig(OnStoreError::Closed);
    let unfit = || Fault::failed(StoreError::Unfit("too long".into()));
    rig.faulty.script([Fault::gone()]);
    assert!(starts(&rig.guard, "long").await.is_err());
    // It is told of what is ours, and that this did not start; then it is asked.
    rig.faulty.script([Fault::NONE, unfit()]);
    assert_eq!(starts(&rig.guard, "b").await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn without_the_store_keys_are_shut_by_nacks_and_not_by_hand() {
    let rig = rig(OnStoreError::Open);
    assert!(starts(&rig.guard, "a").await.unwrap());
    lose(&rig).await;
    let key = Key::new("k").unwrap();
    let shut = |until, at_least| Change::Shut {
        key: key.clone(),
        until,
        at_least,
    };
    let (never, now) = (Timestamp::NEVER, Timestamp(0));
    for by_hand in [
        shut(never, false),
        shut(now, false),
        Change::Unused { key: key.clone() },
    ] {
        assert!(rig.guard.set(by_hand).await.is_err());
    }
    assert!(rig.guard.set(shut(never, true)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_told_slower_than_things_happen_decides_in_the_end() {
    let rig = rig(OnStoreError::Open);
    let take = async |job: &str| rig.guard.take(&[&claimed(job, 9_999)], 1).await.is_ok();
    assert!(take("first").await);
    lose(&rig).await;
    rig.faulty
        .standing(Some(Fault::late(Duration::from_millis(20))));
    let meanwhile = async {
        let mut nth = 0;
        while rig.guard.is_lost() {
            assert!(take(&format!("{nth}")).await);
            assert!(rig.guard.end(&format!("{}", nth / 2), None).await.is_ok());
            nth += 1;
            assert!(nth < 1_000, "it never decides");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (due, ()) = tokio::join!(rig.guard.due(9), meanwhile);
    assert!(due.is_ok());
    rig.faulty.standing(None);
    assert!(take("last").await);
    let ours: Vec<Arc<str>> = rig.guard.state.lock().own.keys().cloned().collect();
    for job in &ours {
        let row = rig.faulty.row(job).await.unwrap();
        assert!(row.is_some_and(|row| row.is_out()), "{job}");
    }
    assert_eq!(rig.faulty.count_out().await.unwrap(), ours.len());
}

#[tokio::test(start_paused = true)]
async fn a_store_has_answered_from_its_first_answer_on() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.standing(Some(Fault::gone()));
    assert!(rig.guard.count_out().await.is_err());
    assert!(!rig.guard.has_answered());
    rig.faulty.standing(None);
    rig.guard.due(1).await.unwrap();
    assert!(rig.guard.has_answered());
    lose(&rig).await;
    assert!(rig.guard.has_answered(), "though it is lost");
    let guard = Guard::new(rig.faulty.clone(), OnStoreError::Share);
    let rig = Rig {
        guard: guard.that_has_answered(),
        faulty: rig.faulty,
    };
    assert!(rig.guard.has_answered());
    // As it is ready, so it starts what its part allows.
    lose(&rig).await;
    assert!(starts(&rig.guard, "a").await.is_ok());
}

/// The whole limit has room: what a part of it has none for is not discarded.
#[tokio::test(start_paused = true)]
async fn a_part_of_a_limit_drops_nothing() {
    let rig = rig(OnStoreError::Share);
    rig.guard.due(9).await.unwrap();
    let ask = |job: &str, slots| {
        let mut claimed = claimed(job, slots);
        let drops = Limited {
            on_limit: OnLimit::Drop,
            ..claimed.limited[0].clone()
        };
        claimed.limited = Arc::from([drops]);
        claimed
    };
    let action = async |ask: &Claimed| match &rig.guard.take(&[ask], 1).await.unwrap().verdicts[0] {
        Verdict::Refused { action, .. } => *action,
        other => panic!("{other:?}"),
    };
    rig.faulty.with_siblings(1);
    lose(&rig).await;
    assert_eq!(action(&ask("a", 10)).await, OnLimit::Wait);
    // A pause is no part.
    assert_eq!(action(&ask("b", 0)).await, OnLimit::Drop);
}

/// One that was emptied names nobody before they have told it of themselves, and to a sidecar that is alone any word of
/// the backend on a claim is of its own.
#[tokio::test(start_paused = true)]
async fn nobody_is_alone_right_after_the_store_was_emptied() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.seems_alone();
    rig.guard.due(9).await.unwrap();
    assert!(rig.guard.is_alone());
    assert!(matches!(rig.guard.known("a"), KnownRow::No));
    fail_once(&rig, Fault::failed(StoreError::Wiped)).await;
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.is_alone());
    assert!(matches!(rig.guard.known("a"), KnownRow::Unsure));
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(rig.guard.is_alone());
}

/// A held job has no row to put back. One that is offered has, which a store knows that was only away: a sibling may have
/// taken it over, and nobody has heard of it here. One that began anew knows nothing.
#[tokio::test(start_paused = true)]
async fn of_what_is_held_the_offers_are_put_back() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.with_siblings(1);
    let [held, offered, refused] = ["held", "offered", "refused"].map(|job| claimed(job, 1));
    assert!(starts(&rig.guard, "out").await.unwrap());
    let asks = [&held, &offered];
    let named = rig.guard.take(&asks, 0).await.unwrap().verdicts;
    assert_eq!(named, [Verdict::Unasked, Verdict::Unasked]);
    let verdicts = rig.guard.take(&[&refused], 1).await.unwrap().verdicts;
    assert!(matches!(verdicts[0], Verdict::Refused { .. }));
    let taken = claimed("taken", 1);
    assert!(rig.faulty.set(offer(&taken)).await.unwrap());
    assert!(rig.guard.set(own(&taken, Gen(2))).await.unwrap());
    let again = claimed("again", 1);
    assert!(rig.guard.set(offer(&again)).await.unwrap());
    assert!(rig.guard.set(own(&again, Gen(2))).await.unwrap());
    assert!(rig.guard.set(offer(&offered)).await.unwrap());
    lose(&rig).await;
    rig.faulty.standing(None);
    rig.faulty.set(Change::Clear).await.unwrap();
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.is_lost());
    for job in ["held", "taken", "again", "refused", "offered"] {
        assert!(rig.faulty.row(job).await.unwrap().is_none(), "{job}");
    }
    fail_once(&rig, Fault::failed(StoreError::Wiped)).await;
    let row = rig.guard.row("offered").await.unwrap();
    assert!(row.is_some_and(|row| row.ours), "it is to be told of");
    rig.guard.due(9).await.unwrap();
    for job in ["held", "taken", "again", "refused"] {
        assert!(rig.faulty.row(job).await.unwrap().is_none(), "{job}");
    }
    let row = rig.faulty.row("offered").await.unwrap().unwrap();
    assert_eq!(
        (row.claimed.generation, row.place),
        (Gen(1), Place::Offered)
    );
    assert_eq!(active(&rig).await, 1, "that of the job that is out");
    assert!(rig.guard.end("out", None).await.unwrap().is_some());
    for job in [&held, &refused] {
        assert!(rig.guard.take(&[job], 1).await.unwrap().verdicts[0].is_started());
        assert!(rig.guard.back(&job.job, Gen(1)).await.unwrap());
    }
}

/// Siblings take over what was offered by whom they see. Nothing that has lapsed meanwhile is there any more when they see
/// us again: a call that is cut off in between changes nothing of that.
#[tokio::test(start_paused = true)]
async fn what_was_offered_and_lapsed_ends_before_siblings_see_us() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.with_siblings(1);
    let offered = claimed("offered", 1);
    assert!(rig.guard.set(offer(&offered)).await.unwrap());
    lose(&rig).await;
    rig.guard
        .end("offered", Some(offered.generation))
        .await
        .unwrap();
    rig.faulty.standing(None);
    assert!(rig.faulty.row("offered").await.unwrap().is_some());
    let none = Fault::late(Duration::ZERO);
    rig.faulty.script([none, Fault::gone()]);
    let _not_back_yet = rig.guard.due(9).await;
    assert!(rig.guard.is_lost());
    assert!(rig.faulty.row("offered").await.unwrap().is_none());
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.is_lost());
}

/// A job that ended gave its slot to another one while the store was lost. Whoever asks the store in between must not find
/// that slot free: the row of the other is there before the first one ends.
#[tokio::test(start_paused = true)]
async fn a_slot_that_was_used_again_is_never_free_while_the_store_comes_back() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.with_siblings(1);
    assert!(starts(&rig.guard, "a").await.unwrap());
    lose(&rig).await;
    rig.guard.end("a", None).await.unwrap();
    assert!(starts(&rig.guard, "b").await.unwrap());
    rig.faulty.standing(None);
    let none = Fault::late(Duration::ZERO);
    rig.faulty.script([none, Fault::gone()]);
    let _not_told_of_the_end = rig.guard.due(9).await;
    assert!(active(&rig).await >= 1);
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.is_lost());
    assert!(rig.faulty.row("a").await.unwrap().is_none());
    assert_eq!(active(&rig).await, 1);
}

/// A job may take such a slot in the very moment in which the store is told that it is free. There are never fewer slots taken
/// there than jobs are out here.
#[tokio::test(start_paused = true)]
async fn a_slot_is_used_again_in_the_moment_in_which_its_end_is_told() {
    for at in 0..30 {
        let memory = Arc::new(MemoryStore::new(T));
        let faulty = Arc::new(Faulty::new(memory.clone()));
        let guard = Guard::new(faulty.clone(), OnStoreError::Share);
        let rig = Rig { faulty, guard };
        rig.faulty.with_siblings(1);
        assert!(starts(&rig.guard, "a").await.unwrap());
        lose(&rig).await;
        rig.guard.end("a", None).await.unwrap();
        rig.faulty
            .standing(Some(Fault::late(Duration::from_millis(10))));
        let meanwhile = async {
            tokio::time::sleep(Duration::from_millis(at * 2)).await;
            let started = starts(&rig.guard, "b").await.unwrap();
            let keys = [(Space::Job, Key::new("k").unwrap())];
            let there = memory.active(&keys).await.unwrap()[0];
            assert!(there >= u32::from(started), "after {} ms", at * 2);
        };
        let (due, ()) = tokio::join!(rig.guard.due(9), meanwhile);
        due.unwrap();
        regain(&rig).await;
        assert!(rig.faulty.row("a").await.unwrap().is_none());
        assert_eq!(active(&rig).await, 1);
    }
}

/// As a replica that takes over may: it never heard of the last starts.
#[tokio::test(start_paused = true)]
async fn what_is_out_is_known_although_the_store_forgot_it() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(!rig.guard.may_miss_rows());
    assert!(rig.faulty.end("a", None).await.unwrap().is_some());
    assert!(
        rig.guard.row("a").await.unwrap().is_none(),
        "it is believed"
    );
    fail_once(&rig, Fault::gone()).await;
    assert!(!rig.guard.is_lost() && rig.guard.may_miss_rows());
    let row = rig.guard.row("a").await.unwrap();
    assert!(row.is_some_and(|row| row.is_out()));
    rig.guard.due(9).await.unwrap();
    assert!(rig.faulty.row("a").await.unwrap().is_some(), "put back");
    assert!(rig.guard.may_miss_rows(), "of others");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert!(!rig.guard.may_miss_rows());
}

/// One failed call is no failover there: only where it was away, others may have to put back their rows.
#[tokio::test(start_paused = true)]
async fn who_says_what_it_forgot_misses_no_row_after_a_failed_call() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.never_forgets_unsaid();
    assert!(starts(&rig.guard, "a").await.unwrap());
    fail_once(&rig, Fault::gone()).await;
    assert!(rig.guard.may_miss_rows(), "it is not told of ours yet");
    rig.guard.due(9).await.unwrap();
    assert!(!rig.guard.may_miss_rows());
    assert!(rig.faulty.end("a", None).await.unwrap().is_some());
    let row = rig.guard.row("a").await.unwrap();
    assert!(row.is_none(), "it is believed");
    lose(&rig).await;
    regain(&rig).await;
    assert!(rig.guard.may_miss_rows());
}

#[tokio::test(start_paused = true)]
async fn rows_may_be_missing_for_a_while_after_a_failed_call() {
    let rig = rig(OnStoreError::Share);
    for away in [Duration::ZERO, Duration::from_secs(2)] {
        fail_once(&rig, Fault::gone()).await;
        tokio::time::advance(away).await;
        rig.guard.due(9).await.unwrap();
        assert!(rig.guard.may_miss_rows(), "it may be another that answers");
        tokio::time::advance(Duration::from_secs(6)).await;
        assert!(!rig.guard.may_miss_rows());
    }
}

#[tokio::test(start_paused = true)]
async fn failures_with_answers_between_them_are_no_loss() {
    let rig = rig(OnStoreError::Share);
    let unfit = StoreError::Unfit("too long".into());
    let no_loss = [StoreError::Settling, StoreError::Wiped, unfit].map(Some);
    for before in no_loss.into_iter().chain([None, None]) {
        fail_once(&rig, Fault::gone()).await;
        rig.faulty.script([Fault {
            before,
            ..Fault::NONE
        }]);
        drop(rig.guard.count_out().await);
        assert!(!rig.guard.is_lost());
    }
}

/// As after a restart without its data.
#[tokio::test(start_paused = true)]
async fn whatever_call_finds_the_store_emptied_it_is_told_again() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(rig.faulty.end("a", None).await.unwrap().is_some());
    fail_once(&rig, Fault::failed(StoreError::Wiped)).await;
    assert!(rig.guard.may_miss_rows());
    rig.guard.due(9).await.unwrap();
    assert!(rig.faulty.row("a").await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn what_is_a_siblings_now_is_not_put_back() {
    let rig = rig(OnStoreError::Share);
    let a = claimed("a", 3);
    assert!(rig.guard.set(offer(&a)).await.unwrap());
    assert!(rig.faulty.set(own(&a, Gen(9))).await.unwrap());
    let verdicts = rig.guard.take(&[&a], 1).await.unwrap().verdicts;
    assert_eq!(verdicts, [Verdict::Outdated]);
    assert!(!rig.guard.has_row("a"));
    fail_once(&rig, Fault::gone()).await;
    rig.guard.due(9).await.unwrap();
    let row = rig.faulty.row("a").await.unwrap().unwrap();
    assert_eq!(row.claimed.generation, Gen(9));
    assert!(matches!(row.place, Place::Held(_)));
}

fn offer(claimed: &Claimed) -> Change {
    Change::Offer {
        claimed: claimed.clone(),
    }
}

fn own(claimed: &Claimed, next: Gen) -> Change {
    Change::Own {
        job: claimed.job.clone(),
        generation: claimed.generation,
        next,
        until: Timestamp(T).plus(claimed.visibility),
    }
}

/// No worker of ours gets it before it is ours again, although nobody hears the answers.
#[tokio::test(start_paused = true)]
async fn an_offered_job_starts_when_it_is_ours_again() {
    let rig = rig(OnStoreError::Share);
    let held = claimed("a", 1);
    let mut again = held.clone();
    again.generation = Gen(2);
    for (change, verdict) in [
        (offer(&held), Verdict::HasRow),
        (own(&held, Gen(2)), Verdict::Outdated),
    ] {
        rig.faulty.script([Fault::unheard()]);
        assert!(rig.guard.set(change.clone()).await.is_err());
        let verdicts = rig.guard.take(&[&held], 1).await.unwrap().verdicts;
        assert_eq!(verdicts, [verdict]);
        assert!(rig.guard.set(change).await.unwrap(), "told twice");
    }
    assert!(!rig.guard.has_row("a"));
    let named = rig.guard.take(&[&again], 0).await.unwrap();
    assert_eq!(named.verdicts, [Verdict::Unasked]);
    assert!(named.ended.is_empty(), "nothing of it was over");
    assert!(rig.faulty.row("a").await.unwrap().is_none());
    assert!(rig.guard.take(&[&again], 1).await.unwrap().verdicts[0].is_started());
    assert!(rig.guard.has_row("a"));
}

/// As where a connection breaks and what was sent is sent again.
#[tokio::test(start_paused = true)]
async fn a_start_is_undone_once() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap() && starts(&rig.guard, "b").await.unwrap());
    assert!(rig.guard.back("a", Gen(1)).await.unwrap());
    assert!(!rig.guard.back("a", Gen(1)).await.unwrap());
    rig.faulty.script([Fault {
        twice: true,
        ..Fault::NONE
    }]);
    assert!(!rig.guard.back("b", Gen(1)).await.unwrap());
    for job in ["a", "b"] {
        assert!(!rig.guard.has_row(job), "{job}");
        assert!(rig.faulty.row(job).await.unwrap().is_none(), "{job}");
    }
    assert_eq!(active(&rig).await, 0);
    // One that was not heard of is undone once more before the job is asked for again.
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.script([Fault::unheard()]);
    assert!(rig.guard.back("a", Gen(1)).await.is_err());
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert_eq!(
        (active(&rig).await, rig.guard.count_out().await),
        (1, Ok(1))
    );
}

/// The backend gave the job out again while the store was lost: the slot of the earlier claim is free there too, though
/// the later one is only held.
#[tokio::test(start_paused = true)]
async fn an_older_claim_that_ends_without_the_store_ends_there() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    lose(&rig).await;
    let mut again = claimed("a", 1);
    again.generation = Gen(2);
    let named = rig.guard.take(&[&again], 0).await.unwrap();
    assert_eq!(named.ended.len(), 1);
    regain(&rig).await;
    assert!(rig.faulty.row("a").await.unwrap().is_none());
    assert_eq!(active(&rig).await, 0);
}

/// Whether some or all that is named then is closed.
#[tokio::test(start_paused = true)]
async fn an_older_claim_of_a_closed_limit_ends_there_too() {
    for beside in ["closed", "open"] {
        let rig = rig(OnStoreError::Open);
        let closed = (Arc::from("closed"), OnStoreError::Closed);
        rig.guard.declare(HashMap::from([closed]));
        let out = claim("a", 1, "closed");
        assert!(rig.guard.take(&[&out], 1).await.unwrap().verdicts[0].is_started());
        lose(&rig).await;
        let asks = [claim("a", 2, "closed"), claim("b", 3, beside)];
        let named = rig.guard.take(&asks.each_ref(), 0).await;
        assert_eq!(named.is_err(), beside == "closed");
        assert!(!rig.guard.has_row("a"));
        regain(&rig).await;
        assert!(rig.faulty.row("a").await.unwrap().is_none(), "{beside}");
        assert_eq!(active(&rig).await, 0, "{beside}");
    }
}

/// The store did not hear that the older claim ended, and was not lost.
#[tokio::test(start_paused = true)]
async fn an_older_claim_that_was_to_end_unheard_is_not_put_back() {
    let rig = rig(OnStoreError::Share);
    for fault in [Fault::gone(), Fault::unheard()] {
        assert!(starts(&rig.guard, "a").await.unwrap());
        let mut again = claimed("a", 1);
        again.generation = Gen(2);
        rig.faulty.script([fault]);
        assert!(rig.guard.take(&[&again], 0).await.is_err());
        rig.guard.due(9).await.unwrap();
        assert!(!rig.guard.is_lost());
        assert!(rig.faulty.row("a").await.unwrap().is_none());
        assert_eq!(active(&rig).await, 0);
    }
}

/// Each would be undone there before anything starts.
#[tokio::test(start_paused = true)]
async fn what_was_only_named_is_in_no_doubt() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let held = ["b", "c", "d"].map(|job| claimed(job, 3));
    rig.faulty.script([Fault::unheard()]);
    assert!(rig.guard.take(&held.each_ref(), 0).await.is_err());
    let before = rig.faulty.calls();
    let verdicts = rig.guard.take(&held.each_ref(), 9).await.unwrap().verdicts;
    assert!(verdicts[1].is_started());
    assert_eq!(
        rig.faulty.calls() - before,
        2,
        "what is out, and a question"
    );
}

/// Its start was granted after the backend gave the job out again: the worker has it.
#[tokio::test(start_paused = true)]
async fn an_older_claim_that_started_later_stays_although_the_newer_was_unheard() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let mut again = claimed("a", 1);
    (again.generation, again.claimed_at) = (Gen(2), Timestamp(T - 1));
    rig.faulty.script([Fault::gone()]);
    assert!(rig.guard.take(&[&again], 0).await.is_err());
    rig.guard.due(9).await.unwrap();
    assert!(rig.faulty.row("a").await.unwrap().is_some());
    assert!(rig.guard.has_row("a"));
}

#[tokio::test(start_paused = true)]
async fn a_share_of_a_rate_is_divided_by_all_that_lived() {
    for (siblings, share) in [(0, 4), (1, 2), (3, 1)] {
        let rig = rig(OnStoreError::Share);
        rig.faulty.with_siblings(siblings);
        assert!(starts(&rig.guard, "a").await.unwrap());
        lose(&rig).await;
        let mut started = 0;
        for nth in 0..6 {
            let mut job = rated(&nth.to_string(), None, (4, 600));
            job.generation = Gen(2);
            started += usize::from(rated_starts(&rig.guard, job).await);
        }
        assert_eq!(started, share, "beside {siblings}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_out_is_known_unasked_as_long_as_it_is_sure() {
    let rig = rig(OnStoreError::Share);
    let is_out = || matches!(rig.guard.known("a"), KnownRow::Out(_));
    assert!(!is_out());
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(is_out());
    match rig.guard.known("a") {
        KnownRow::Out(row) => assert_eq!(row.started, Some(rig.guard.now())),
        other => panic!("{other:?}"),
    }
    // A hand-out that did not happen.
    let before = rig.faulty.calls();
    assert!(rig.guard.back("a", Gen(1)).await.unwrap());
    assert!(!is_out());
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert_eq!(rig.faulty.calls() - before, 2, "nothing was in doubt");
    assert!(is_out());
    // Its claim was named meanwhile, and that is answered later.
    let claim = claimed("a", 1);
    let named = rig.guard.take(&[&claim], 0).await.unwrap();
    assert_eq!(named.verdicts, [Verdict::HasRow], "it is held no longer");
    assert!(is_out());
    // Earlier claims are others.
    assert!(!rig.guard.back("a", Gen(0)).await.unwrap());
    assert!(rig.guard.end("a", Some(Gen(0))).await.unwrap().is_none());
    assert!(is_out());
    fail_once(&rig, Fault::gone()).await;
    assert!(!is_out(), "it may have been forgotten");
    rig.guard.due(9).await.unwrap();
    assert!(is_out());
    lose(&rig).await;
    assert!(!is_out());
    regain(&rig).await;
    assert!(is_out());
    assert!(rig.guard.end("a", Some(Gen(1))).await.unwrap().is_some());
    assert!(!is_out());
}

#[tokio::test(start_paused = true)]
async fn a_row_is_put_back_as_it_was_changed_last() {
    let rig = rig(OnStoreError::Share);
    assert!(starts(&rig.guard, "a").await.unwrap());
    let until = |generation, until: Timestamp, visibility| Change::Until {
        job: "a".into(),
        generation: Gen(generation),
        until: until.into(),
        visibility,
    };
    let (later, minute) = (Timestamp(T).plus(90_000_000), 60_000_000);
    assert!(rig.guard.set(until(1, later, minute)).await.unwrap());
    assert!(!rig.guard.set(until(7, Timestamp::NEVER, 1)).await.unwrap());
    let later = later.plus(1);
    let all = vec![until(1, later, minute)];
    rig.guard.set_all(all).await.unwrap();
    let row = rig.faulty.row("a").await.unwrap().unwrap();
    assert_eq!(row.due(), Some(later.into()));
    // A replica that takes over may not have heard of the job.
    assert!(rig.faulty.end("a", None).await.unwrap().is_some());
    fail_once(&rig, Fault::gone()).await;
    rig.guard.due(9).await.unwrap();
    let row = rig.faulty.row("a").await.unwrap().unwrap();
    assert_eq!(
        (row.due(), row.claimed.visibility),
        (Some(later.into()), minute)
    );
}

/// A sibling may have settled the job while neither of us reached the store: the backend is asked about it soon.
#[tokio::test(start_paused = true)]
async fn what_was_put_back_beside_siblings_is_looked_at_soon() {
    for siblings in [0, 1] {
        let rig = rig(OnStoreError::Share);
        rig.faulty.with_siblings(siblings);
        assert!(starts(&rig.guard, "a").await.unwrap());
        lose(&rig).await;
        rig.faulty.standing(None);
        // The sibling came back first, and told what it knew.
        assert!(rig.faulty.end("a", None).await.unwrap().is_some());
        rig.guard.due(9).await.unwrap();
        assert!(rig.faulty.row("a").await.unwrap().is_some(), "put back");
        tokio::time::advance(Duration::from_secs(2)).await;
        let due = rig.guard.due(9).await.unwrap();
        assert_eq!(due.len(), siblings, "alone it has ended all itself");
    }
}

/// What keeps a store away may change while it is: a server that was stopped comes back and refuses the user.
#[tokio::test(start_paused = true)]
async fn another_reason_of_a_loss_is_logged_and_each_once_a_minute() {
    let (lines, _logged) = Lines::listen();
    let told = || {
        let text = lines.text();
        lines.0.lock().unwrap().clear();
        let reason = |line: &str| {
            let is_there = |reason: &&str| line.contains(&format!(": {reason}"));
            ["refused", "WRONGPASS"].into_iter().find(is_there)
        };
        text.lines().filter_map(reason).collect::<Vec<_>>()
    };
    let rig = rig(OnStoreError::Share);
    let fails = |reason: &str| {
        let error = StoreError::Unavailable(reason.to_owned());
        rig.faulty.standing(Some(Fault::failed(error)));
    };
    let seconds = async |seconds: u32| {
        for _ in 0..2 * seconds {
            let _here = rig.guard.due(10).await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    fails("refused");
    seconds(10).await;
    assert_eq!(told(), ["refused"]);
    fails("WRONGPASS");
    seconds(10).await;
    assert_eq!(told(), ["WRONGPASS"]);
    // Where two take turns, neither fills the log.
    for _ in 0..10 {
        fails("refused");
        seconds(1).await;
        fails("WRONGPASS");
        seconds(1).await;
    }
    assert_eq!(told().len(), 0);
    seconds(60).await;
    assert_eq!(told(), ["WRONGPASS"]);
    rig.faulty.standing(None);
    seconds(5).await;
    assert!(!rig.guard.is_lost());
}

/// Of ten slots this sidecar had three when the store was lost.
#[tokio::test(start_paused = true)]
async fn a_cost_above_its_part_waits_while_the_store_is_lost() {
    let rig = rig(OnStoreError::Share);
    let starts = async |name: &str, pays: u32| {
        let mut job = claimed(name, 10);
        let mut limited = job.limited[0].clone();
        limited.cost.pays = NonZeroU32::new(pays).unwrap();
        job.limited = [limited].into();
        let verdicts = rig.guard.take(&[&job], 1).await.unwrap().verdicts;
        verdicts[0].is_started()
    };
    assert!(starts("a", 3).await);
    lose(&rig).await;
    assert!(!starts("b", 1).await, "all of its part is taken");
    rig.guard.end("a", None).await.unwrap();
    assert!(!starts("c", 4).await, "more than its part");
    assert!(starts("d", 3).await);
    regain(&rig).await;
    assert_eq!(active(&rig).await, 3);
    assert!(starts("c", 4).await);
}

/// A start under a rate of so many in so many seconds, with these slots.
fn rated(job: &str, slots: Option<u32>, (limit, seconds): (u32, u64)) -> Claimed {
    let mut claimed = claimed(job, 1);
    let mut limited = claimed.limited[0].clone();
    limited.limits.concurrency = slots;
    limited.limits.rates = vec![Rate {
        limit: NonZeroU32::new(limit).unwrap(),
        period: NonZeroU64::new(seconds * 1_000_000).unwrap(),
        window: WindowKind::Sliding,
    }];
    claimed.limited = [limited].into();
    claimed
}

async fn rated_starts(guard: &Guard, claimed: Claimed) -> bool {
    let taken = guard.take(&[&claimed], 1).await.unwrap();
    taken.verdicts[0].is_started()
}

/// Who never had a sibling has the whole: each slot that is free, and what is left of each window.
#[tokio::test(start_paused = true)]
async fn alone_its_part_is_the_whole() {
    let rig = rig(OnStoreError::Share);
    let two_in_ten = |job| rated_starts(&rig.guard, rated(job, Some(9), (2, 10)));
    rig.faulty.seems_alone();
    assert!(starts(&rig.guard, "a").await.unwrap());
    assert!(two_in_ten("r1").await);
    // One that did not happen, and one that ended.
    assert!(two_in_ten("r2").await);
    assert!(rig.guard.back("r2", Gen(1)).await.unwrap());
    assert!(rig.guard.end("r1", None).await.unwrap().is_some());
    lose(&rig).await;
    for (job, may) in [("b", true), ("c", true), ("d", false)] {
        assert_eq!(
            starts(&rig.guard, job).await.unwrap(),
            may,
            "{job}: three slots"
        );
    }
    for job in ["a", "b", "c"] {
        rig.guard.end(job, None).await.unwrap();
    }
    assert!(two_in_ten("r3").await);
    assert!(!two_in_ten("r4").await, "two in 10 s");
    // Lost again, it counts what started without the store.
    regain(&rig).await;
    lose(&rig).await;
    assert!(!two_in_ten("r4").await);
    tokio::time::advance(Duration::from_millis(10_100)).await;
    assert!(two_in_ten("r4").await);
}

/// What another sidecar has started is not known.
#[tokio::test(start_paused = true)]
async fn beside_another_its_part_is_no_whole() {
    let rig = rig(OnStoreError::Share);
    rig.faulty.seems_alone();
    assert!(starts(&rig.guard, "a").await.unwrap());
    rig.faulty.with_siblings(1);
    lose(&rig).await;
    assert!(!starts(&rig.guard, "b").await.unwrap(), "one slot was ours");
}
