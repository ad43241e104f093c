//! What holds for any store, one rule at a time.

use ojs_throttle::limit::{Beside, Cost, Rate, Strategy, Unit, WindowKind, Zone};
use ojs_throttle::store::{End, Row};

use super::prelude::*;
use super::rig::{number, period};

pub use crate::stores::sequences::random_sequences_are_answered_as_by_the_core;

async fn usage(store: &dyn Ledger, of: &Limited) -> Option<ojs_throttle::store::Usage> {
    store.usage(of.space, &of.key, &of.limits).await.unwrap()
}

async fn end(store: &dyn Ledger, job: &str) {
    assert!(store.end(job, None).await.unwrap().is_some(), "{job}");
}

pub async fn a_key_named_twice_is_checked_twice_and_taken_from_once(rig: &Rig) {
    let store = rig.open("a").await;
    let both = [
        limited("k", Some(5), Some((3, SECOND)), Some(2)),
        limited("k", Some(9), Some((2, SECOND)), Some(10)),
    ];
    assert!(started(&take(&*store, claimed("a", 1, &both)).await));
    let used = usage(&*store, &both[0]).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (1, 1));
    // The slower of the two spacings.
    assert_eq!(used.next_start, Some(Timestamp(T + 500_000)));
    advance(rig, 500_000);
    assert!(started(&take(&*store, claimed("b", 1, &both)).await));
    let key = |space, key: &str| (space, Key::new(key).unwrap());
    let keys = [
        key(Space::Job, "unknown"),
        key(Space::Job, "k"),
        key(Space::Queue, "k"),
    ];
    assert_eq!(store.active(&keys).await.unwrap(), [0, 2, 0]);
    advance(rig, 500_000);
    // The second one's window of two is full, the first one's of three is not.
    let Verdict::Refused { which: 1, why, .. } = take(&*store, claimed("c", 1, &both)).await else {
        panic!()
    };
    let told = (why.strategy, why.limit, why.current);
    assert_eq!(told, (Strategy::Rate, 2, 2));
    end(&*store, "a").await;
    end(&*store, "b").await;
    assert_eq!(usage(&*store, &both[0]).await.unwrap().active, 0);
}

/// Other jobs of its key name a window and a spacing: a start counts there, and waits for neither.
pub async fn a_start_counts_where_other_jobs_of_its_key_do(rig: &Rig) {
    let store = rig.open("a").await;
    let named = limited("k", None, Some((3, SECOND)), Some(10));
    let mut plain = limited("k", Some(20), None, None);
    let mut beside = Beside::default();
    beside.see([&named.limits].into_iter());
    let counted = beside.of([&plain.limits].into_iter()).unwrap();
    plain.limits.rates = counted.rates;
    plain.limits.throttle = counted.throttle;
    let plain = std::slice::from_ref(&plain);
    for job in ["a", "b", "c", "d", "e"] {
        assert!(started(&take(&*store, claimed(job, 1, plain)).await));
    }
    assert_eq!(usage(&*store, &named).await.unwrap().windows[0].0, 5);
    let ask = || take(&*store, claimed("n", 1, std::slice::from_ref(&named)));
    let Verdict::Refused { why, .. } = ask().await else {
        panic!("five count of three")
    };
    let told = (why.strategy, why.limit, why.current);
    assert_eq!(told, (Strategy::Rate, 3, 5));
    for job in ["a", "b", "c"] {
        assert!(store.back(job, Gen(1)).await.unwrap());
    }
    assert_eq!(usage(&*store, &named).await.unwrap().windows[0].0, 2);
    let Verdict::Refused { why, at, .. } = ask().await else {
        panic!("it is spaced from the last start")
    };
    assert_eq!(why.strategy, Strategy::Throttle);
    assert_eq!(at, Some(Timestamp(T + SECOND / 10)));
    advance(rig, SECOND / 10);
    assert!(started(&ask().await));
}

/// A job whose calls count in its place asks for room and takes none, and its row is there.
pub async fn a_job_takes_nothing_where_its_calls_do(rig: &Rig) {
    let store = rig.open("a").await;
    let by_calls = |limits: Limited| Limited {
        cost: Cost {
            by_calls: true,
            ..Cost::ONE
        },
        ..limits
    };
    let calls = limited("k", Some(1), Some((2, SECOND)), Some(10));
    let jobs = by_calls(calls.clone());
    let beside = limited("own", Some(9), None, None);
    for job in ["a", "b", "c"] {
        let both = [jobs.clone(), beside.clone()];
        assert!(started(&take(&*store, claimed(job, 1, &both)).await));
    }
    let room = store.room(std::slice::from_ref(&jobs)).await.unwrap();
    assert_eq!(room.starts, u32::MAX);
    assert_eq!(usage(&*store, &calls).await, None);
    assert_eq!(usage(&*store, &beside).await.unwrap().active, 3);
    // A call has the slot, so no job starts.
    assert!(started(
        &take(&*store, claimed("call", 1, std::slice::from_ref(&calls))).await
    ));
    let Verdict::Refused { why, .. } =
        take(&*store, claimed("d", 1, std::slice::from_ref(&jobs))).await
    else {
        panic!("there is no room")
    };
    assert_eq!(why.strategy, Strategy::Concurrency);
    // What ends or is undone gives nothing back that is the call's.
    end(&*store, "a").await;
    assert!(store.back("b", Gen(1)).await.unwrap());
    let row = store.row("c").await.unwrap().unwrap();
    assert!(row.is_out() && row.claimed.limited[0].cost.by_calls);
    let again = Change::Adopt {
        claimed: claimed("e", 1, std::slice::from_ref(&jobs)),
        until: Timestamp(T + 9 * SECOND).into(),
    };
    assert!(store.set(again).await.unwrap());
    let used = usage(&*store, &calls).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (1, 1));
    // Its worker has it, though it has no slot: a claim that was made before it started ends nothing.
    advance(rig, SECOND);
    let mut early = claimed("f", 2, std::slice::from_ref(&jobs));
    early.claimed_at = Timestamp(T + SECOND - 1);
    end(&*store, "call").await;
    assert!(started(
        &take(&*store, claimed("f", 1, std::slice::from_ref(&jobs))).await
    ));
    assert_eq!(take(&*store, early).await, Verdict::HasRow);
}

pub async fn a_refusal_names_the_last_to_let_go_and_the_strongest_action(rig: &Rig) {
    let store = rig.open("a").await;
    let slow = limited("slow", None, None, Some(1));
    let mut quick = limited("quick", None, None, Some(10));
    quick.on_limit = OnLimit::Drop;
    let mut full = limited("full", Some(0), None, None);
    full.on_limit = OnLimit::Reschedule;
    assert!(started(
        &take(&*store, claimed("a", 1, &[slow.clone(), quick.clone()])).await
    ));
    let refused = take(&*store, claimed("b", 1, &[quick.clone(), slow.clone()])).await;
    let Verdict::Refused {
        which: 1,
        at,
        action: OnLimit::Drop,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(at, Some(Timestamp(T + SECOND)));
    let refused = take(&*store, claimed("c", 1, &[full.clone(), slow])).await;
    let Verdict::Refused {
        which: 0,
        at,
        action: OnLimit::Reschedule,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(at, Some(Timestamp(T + SECOND)));
    let refused = take(&*store, claimed("e", 1, std::slice::from_ref(&full))).await;
    let Verdict::Refused { why, at, .. } = refused else {
        panic!("{refused:?}")
    };
    assert!(why.slot && at.is_none(), "nothing but a slot is missing");
    // The first of two that wait for a slot.
    let refused = take(&*store, claimed("d", 1, &[quick, full.clone(), full])).await;
    let Verdict::Refused {
        which: 1,
        action: OnLimit::Drop,
        ..
    } = refused
    else {
        panic!("{refused:?}")
    };
}

pub async fn a_refusal_spends_nothing_in_any_key(rig: &Rig) {
    let store = rig.open("a").await;
    let first = limited("first", Some(1), Some((1, SECOND)), Some(1));
    let second = limited("second", None, None, Some(1));
    let one = claimed("a", 1, std::slice::from_ref(&second));
    assert!(started(&take(&*store, one).await));
    let two = claimed("b", 1, &[first.clone(), second]);
    assert!(!started(&take(&*store, two).await));
    assert_eq!(usage(&*store, &first).await, None);
    assert!(started(&take(&*store, claimed("c", 1, &[first])).await));
}

pub async fn enough_is_enough(rig: &Rig) {
    let store = rig.open("a").await;
    let free = [limited("k", Some(9), None, None)];
    let none: [Limited; 0] = [];
    let asks = [
        claimed("a", 1, &free),
        claimed("b", 1, &none),
        claimed("c", 1, &free),
    ];
    let verdicts = store.take(&asks.each_ref(), 2).await.unwrap().verdicts;
    assert!(started(&verdicts[0]) && started(&verdicts[1]));
    assert_eq!(verdicts[2], Verdict::Unasked);
    assert_eq!(store.count_out().await.unwrap(), 2);
    assert!(store.row("c").await.unwrap().is_none(), "it is only held");
    assert!(store.take(&[], 2).await.unwrap().verdicts.is_empty());
}

pub async fn a_newer_claim_takes_the_place_of_an_older_one(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&*store, claimed("a", 1, &one)).await));
    let again = take(&*store, claimed("a", 1, &one)).await;
    assert_eq!(again, Verdict::HasRow, "out already");
    let newer = take(&*store, claimed("a", 2, &one)).await;
    assert!(started(&newer), "its own old slot has ended");
    let older = take(&*store, claimed("a", 1, &one)).await;
    assert_eq!(older, Verdict::Outdated);
    assert!(!store.back("a", Gen(1)).await.unwrap());
    assert!(store.end("a", Some(Gen(1))).await.unwrap().is_none());
    assert_eq!(store.count_out().await.unwrap(), 1);
    // Even one that is not asked ends the slots of the older claim.
    store.take(&[&claimed("a", 3, &one)], 0).await.unwrap();
    assert_eq!(store.count_out().await.unwrap(), 0);
    assert!(store.row("a").await.unwrap().is_none(), "it is only held");
    assert!(started(&take(&*store, claimed("b", 1, &one)).await));
}

pub async fn a_start_that_did_not_happen_is_uncounted(rig: &Rig) {
    let store = rig.open("a").await;
    let all = [limited("k", Some(1), Some((1, SECOND)), Some(1))];
    for _ in 0..3 {
        assert!(started(&take(&*store, claimed("a", 1, &all)).await));
        assert!(store.back("a", Gen(1)).await.unwrap());
        assert!(!store.back("a", Gen(1)).await.unwrap(), "held already");
    }
    assert_eq!(usage(&*store, &all[0]).await, None);
    assert!(store.row("a").await.unwrap().is_none());
    // It is not the newest any more, and is uncounted all the same.
    let wide = [limited("w", Some(2), Some((2, SECOND)), None)];
    assert!(started(&take(&*store, claimed("b", 1, &wide)).await));
    advance(rig, 1_000);
    assert!(started(&take(&*store, claimed("c", 1, &wide)).await));
    assert!(store.back("b", Gen(1)).await.unwrap());
    let used = usage(&*store, &wide[0]).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (1, 1));
    assert!(started(&take(&*store, claimed("d", 1, &wide)).await));
    // Of many starts, which are counted by sub-window.
    let many = [limited("m", None, Some((200, SECOND)), None)];
    for nth in 0..200 {
        let job = format!("m{nth}");
        assert!(started(&take(&*store, claimed(&job, 1, &many)).await));
    }
    for nth in 0..100 {
        assert!(store.back(&format!("m{nth}"), Gen(1)).await.unwrap());
    }
    let used = usage(&*store, &many[0]).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (100, 100));
}

pub async fn ending_twice_is_ending_once(rig: &Rig) {
    let store = rig.open("a").await;
    let two = [limited("k", Some(2), None, None)];
    assert!(started(&take(&*store, claimed("a", 1, &two)).await));
    assert!(started(&take(&*store, claimed("b", 1, &two)).await));
    let ended = store.end("a", Some(Gen(1))).await.unwrap().unwrap();
    assert_eq!((&*ended.claimed.job, ended.is_out()), ("a", true));
    assert!(store.end("a", Some(Gen(1))).await.unwrap().is_none());
    assert!(store.end("a", None).await.unwrap().is_none());
    assert_eq!(usage(&*store, &two[0]).await.unwrap().active, 1);
}

/// In several steps, if they are so many; those that are over already, and newer claims, are left alone.
pub async fn many_claims_end_at_once(rig: &Rig) {
    let store = rig.open("a").await;
    let many = [limited("k", Some(1_000), None, None)];
    let mut claims: Vec<End> = Vec::new();
    for nth in 0..300 {
        let ask = claimed(&format!("{nth}"), 2, &many);
        let claim = Gen(2 - u64::from(nth == 7));
        claims.push(End::of(ask.job.clone(), Some(claim)));
        assert!(started(&take(&*store, ask).await));
    }
    claims.push(End::of("unknown".into(), Some(Gen(2))));
    store.end_all(&claims).await.unwrap();
    assert_eq!(store.count_out().await.unwrap(), 1);
    assert!(store.row("7").await.unwrap().is_some(), "a newer claim");
    assert_eq!(usage(&*store, &many[0]).await.unwrap().active, 1);
    store.end_all(&claims).await.unwrap();
}

pub async fn rows_are_due_in_order_and_again_until_moved(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), None, None)];
    let free = [limited("free", None, None, None)];
    let mut short = claimed("short", 1, &free);
    short.visibility = 10 * SECOND;
    let asks = [claimed("long", 1, &one), short];
    store.take(&asks.each_ref(), 2).await.unwrap();
    assert!(store.due(9).await.unwrap().is_empty());
    let due = |rows: Vec<Row>| {
        let names = rows.into_iter().map(|row| row.claimed.job.to_string());
        names.collect::<Vec<_>>()
    };
    advance(rig, 10 * SECOND);
    assert_eq!(due(store.due(9).await.unwrap()), ["short"]);
    advance(rig, 20 * SECOND);
    assert_eq!(due(store.due(9).await.unwrap()), ["short", "long"]);
    assert_eq!(due(store.due(1).await.unwrap()), ["short"]);
    let until = now(rig).plus(1);
    let move_on = |generation| Change::Until {
        job: "short".into(),
        generation: Gen(generation),
        until: until.into(),
        visibility: 7,
    };
    assert!(!store.set(move_on(2)).await.unwrap(), "another claim");
    assert!(store.set(move_on(1)).await.unwrap());
    assert_eq!(due(store.due(9).await.unwrap()), ["long"]);
    let row = store.row("short").await.unwrap().unwrap();
    assert_eq!((row.due(), row.claimed.visibility), (Some(until.into()), 7));
    end(&*store, "long").await;
    advance(rig, 1);
    assert_eq!(due(store.due(9).await.unwrap()), ["short"]);
    // Of what is offered the owner hears too: it may not know of it any more.
    store.set(offer("offered", 1, &one)).await.unwrap();
    let both = due(store.due(9).await.unwrap());
    assert!(both.contains(&"offered".to_owned()) && both.len() == 2);
}

pub async fn a_shut_key_opens_by_itself_and_queues_are_never_shut(rig: &Rig) {
    let store = rig.open("a").await;
    let job = limited("k", None, None, None);
    let queue = Limited {
        space: Space::Queue,
        ..job.clone()
    };
    let until = Timestamp(T + SECOND);
    let shut = |until| Change::Shut {
        key: job.key.clone(),
        until,
        at_least: false,
    };
    assert!(store.set(shut(until)).await.unwrap());
    assert!(!store.set(shut(until)).await.unwrap(), "shut already");
    assert!(started(&take(&*store, claimed("q", 1, &[queue])).await));
    let refused = take(&*store, claimed("a", 1, std::slice::from_ref(&job))).await;
    let Verdict::Refused { why, .. } = refused else {
        panic!("{refused:?}")
    };
    let told = (why.strategy, why.at);
    assert_eq!(told, (Strategy::Shut, Some(until.plus(EARLY))));
    let used = usage(&*store, &job).await.unwrap();
    assert_eq!(used.shut_until, Some(until));
    advance(rig, SECOND - 1);
    let ask = claimed("a", 1, std::slice::from_ref(&job));
    assert!(!started(&take(&*store, ask.clone()).await));
    advance(rig, 1);
    assert!(started(&take(&*store, ask).await));
    assert!(store.set(shut(now(rig).plus(5))).await.unwrap());
    assert!(store.set(shut(now(rig))).await.unwrap(), "open again");
    assert!(!store.set(shut(now(rig))).await.unwrap(), "open already");
}

pub async fn an_adopted_job_has_its_slots_and_counts_no_start(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), Some((1, SECOND)), None)];
    let adopt = |generation| Change::Adopt {
        claimed: claimed("a", generation, &one),
        until: Timestamp(T + 5).into(),
    };
    assert!(store.set(adopt(2)).await.unwrap());
    assert!(!store.set(adopt(2)).await.unwrap());
    assert!(!store.set(adopt(1)).await.unwrap());
    let used = usage(&*store, &one[0]).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (1, 0));
    assert!(store.back("a", Gen(2)).await.unwrap());
    assert!(started(&take(&*store, claimed("a", 2, &one)).await));
}

/// Whoever has a claim of such a job holds it: it was not out.
pub async fn a_job_of_which_no_claim_is_known_gives_way_to_any(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), None, None)];
    let adopt = Change::Adopt {
        claimed: claimed("a", Gen::ADOPTED.0, &one),
        until: Timestamp(T + 5).into(),
    };
    for (claim, want) in [(1, 0), (2, 1)] {
        assert!(store.set(adopt.clone()).await.unwrap());
        assert!(!started(&take(&*store, claimed("b", 1, &one)).await));
        let ask = claimed("a", claim, &one);
        let taken = store.take(&[&ask], want).await.unwrap();
        assert_eq!(taken.ended.len(), 1);
        assert_eq!(started(&taken.verdicts[0]), want == 1);
    }
    assert!(!store.set(adopt).await.unwrap(), "its claim is known");
}

pub async fn a_row_tells_all_that_was_claimed(rig: &Rig) {
    let store = rig.open("a").await;
    let mut of_queue = limited("email", None, None, None);
    of_queue.space = Space::Queue;
    of_queue.on_limit = OnLimit::Drop;
    of_queue.policy = Arc::from("policy \"of\" the ümlaut");
    let mut claim = claimed(
        "jöb 1",
        7,
        &[
            limited("k", Some(2), Some((3, 77 * SECOND)), Some(4)),
            of_queue,
        ],
    );
    claim.claim_id = Arc::from("wörker\n1");
    claim.scope = u64::MAX - 1;
    claim.queue = Arc::from("email");
    claim.priority = -3;
    claim.attempt = Some(4);
    claim.claimed_at = Timestamp(T - 5);
    assert!(started(&take(&*store, claim.clone()).await));
    let row = store.row("jöb 1").await.unwrap().unwrap();
    assert_eq!(
        (row.due(), row.ours),
        (Some(now(rig).plus(claim.visibility).into()), true)
    );
    assert_eq!(format!("{:?}", row.claimed), format!("{claim:?}"));
    assert!(store.row("other").await.unwrap().is_none());
}

pub async fn a_row_tells_whether_an_attempt_was_shown(rig: &Rig) {
    let store = rig.open("a").await;
    for attempt in [None, Some(0), Some(1), Some(u32::MAX)] {
        let job = format!("{attempt:?}");
        let mut claim = claimed(&job, 1, &[limited("k", Some(9), None, None)]);
        claim.attempt = attempt;
        assert!(started(&take(&*store, claim).await));
        let row = store.row(&job).await.unwrap().unwrap();
        assert_eq!(row.claimed.attempt, attempt);
    }
}

pub async fn a_row_goes_on_under_another_claim(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), None, None)];
    assert!(store.set(offer("a", 5, &one)).await.unwrap());
    let own = |generation, next| Change::Own {
        job: "a".into(),
        generation: Gen(generation),
        next: Gen(next),
        until: Timestamp(T + 9),
    };
    assert_eq!(take(&*store, claimed("a", 5, &one)).await, Verdict::HasRow);
    // It has no slot, and starts nowhere until somebody takes it over.
    assert_eq!(store.count_out().await, Ok(0));
    assert!(!store.back("a", Gen(5)).await.unwrap(), "it is not out");
    let later = Change::until(&claimed("a", 5, &one), Timestamp(T + 1).into());
    assert!(!store.set(later).await.unwrap(), "an offer has no end");
    assert!(!store.set(own(4, 8)).await.unwrap(), "another claim");
    assert!(!store.set(own(5, 5)).await.unwrap(), "no newer one");
    assert!(store.set(own(5, 8)).await.unwrap());
    assert!(store.set(own(5, 8)).await.unwrap(), "as was said before");
    assert!(!store.set(own(5, 9)).await.unwrap(), "it is not offered");
    let row = store.row("a").await.unwrap().unwrap();
    assert_eq!(
        (row.claimed.generation, row.place),
        (Gen(8), Place::Held(Timestamp(T + 9)))
    );
    let outdated = take(&*store, claimed("a", 5, &one)).await;
    assert_eq!(outdated, Verdict::Outdated);
    assert!(started(&take(&*store, claimed("a", 8, &one)).await));
    assert!(!store.set(own(8, 9)).await.unwrap(), "it is out");
    assert!(!store.set(offer("a", 8, &one)).await.unwrap(), "it is out");
    assert!(
        !store.set(offer("a", 7, &one)).await.unwrap(),
        "a newer claim"
    );
    // A newer claim ends what is out under an older one.
    assert!(store.set(offer("a", 9, &one)).await.unwrap());
    assert!(store.set(offer("a", 9, &one)).await.unwrap(), "once more");
    assert!(started(&take(&*store, claimed("b", 1, &one)).await));
    // What was taken over is named once, and is only held from then on.
    assert!(store.set(own(9, 10)).await.unwrap());
    store.take(&[&claimed("a", 10, &one)], 0).await.unwrap();
    assert!(store.row("a").await.unwrap().is_none());
}

/// The backend gives a job out again, and the store grants the older claim of it a moment later.
pub async fn a_start_that_was_granted_after_a_newer_claim_keeps_its_slot(rig: &Rig) {
    let store = rig.open("a").await;
    let one = [limited("k", Some(1), None, None)];
    let mut newer = claimed("j", 2, &one);
    newer.claimed_at = Timestamp(T);
    advance(rig, 1_000);
    assert!(started(&take(&*store, claimed("j", 1, &one)).await));
    advance(rig, 1_000);
    assert_eq!(take(&*store, newer.clone()).await, Verdict::HasRow);
    assert!(!started(&take(&*store, claimed("other", 1, &one)).await));
    // A claim that came after the start ends it.
    newer.generation = Gen(3);
    newer.claimed_at = Timestamp(T + 1_500);
    assert!(started(&take(&*store, newer).await));
    assert_eq!(store.count_out().await.unwrap(), 1);
}

/// Jobs bring periods without end to a key: what is one too many is refused, and no start is forgotten.
pub async fn a_ninth_window_of_a_key_starts_nothing_until_one_is_empty(rig: &Rig) {
    let store = rig.open("a").await;
    for seconds in 10..18 {
        let job = in_window(&format!("of {seconds}"), 2, seconds);
        assert!(started(&take(&*store, job).await));
    }
    let ninth = in_window("ninth", 2, 60);
    let Verdict::Refused { why, at, .. } = take(&*store, ninth.clone()).await else {
        panic!("there is no place for it")
    };
    assert_eq!((why.strategy, why.slot), (Strategy::Rate, false));
    let at = at.unwrap();
    assert!(at >= Timestamp(T + 10 * SECOND) && at <= Timestamp(T + 11 * SECOND));
    assert_eq!(store.room(&ninth.limited).await.unwrap().starts, 0);
    // The windows that it has go on, and to their limits.
    assert!(started(&take(&*store, in_window("more", 2, 17)).await));
    assert!(!started(&take(&*store, in_window("too many", 2, 17)).await));
    advance(rig, 11 * SECOND);
    assert!(started(&take(&*store, ninth).await));
}

/// A key has all the windows that it may, and other jobs name one more: a start does not wait for a place there.
pub async fn nothing_waits_for_a_window_that_only_counts(rig: &Rig) {
    let store = rig.open("a").await;
    assert!(started(&take(&*store, in_each("all", 10..18)).await));
    let other = limited("k", None, Some((1, 60 * SECOND)), None);
    let mut plain = limited("k", Some(20), Some((9, 17 * SECOND)), None);
    let mut beside = Beside::default();
    beside.see([&other.limits].into_iter());
    let counted = beside.of([&plain.limits].into_iter()).unwrap();
    plain.limits.rates.extend(counted.rates);
    let plain = std::slice::from_ref(&plain);
    for job in ["a", "b"] {
        let taken = take(&*store, claimed(job, 1, plain)).await;
        assert!(started(&taken), "{taken:?}");
    }
    assert!(store.back("a", Gen(1)).await.unwrap());
    end(&*store, "b").await;
    assert!(!started(&take(&*store, in_window("ninth", 2, 60)).await));
    // It counts where there is a place.
    advance(rig, 11 * SECOND);
    assert!(started(&take(&*store, claimed("c", 1, plain)).await));
    assert_eq!(usage(&*store, &other).await.unwrap().windows[0].0, 1);
}

pub async fn a_window_that_counts_stays_while_others_are_idle(rig: &Rig) {
    let store = rig.open("a").await;
    let rate = |limit, seconds| {
        let one = limited("k", None, Some((limit, seconds * SECOND)), None);
        one.limits.rates
    };
    let ask = |job: &str, rates: Vec<Rate>| {
        let mut all = limited("k", None, None, None);
        all.limits.rates = rates;
        claimed(job, 1, &[all])
    };
    let day = || rate(2, 86_400);
    assert!(started(&take(&*store, ask("a", day())).await));
    // Seven short ones beside it, and no place for a longer one.
    let short = (1..=7).flat_map(|n| rate(9, n)).collect();
    assert!(started(&take(&*store, ask("b", short)).await));
    let refused = take(&*store, ask("c", rate(9, 200_000))).await;
    assert!(!started(&refused), "{refused:?}");
    advance(rig, 30 * SECOND);
    // A new one finds a place among those that are idle.
    let both = [rate(9, 21), day()].concat();
    assert!(started(&take(&*store, ask("d", both)).await));
    let refused = take(&*store, ask("e", day())).await;
    assert!(!started(&refused), "{refused:?}");
    // Undone, it counts nothing, and is the first to make room for others.
    assert!(store.back("a", Gen(1)).await.unwrap());
    assert!(store.back("d", Gen(1)).await.unwrap());
    advance(rig, 60 * SECOND);
    let many = (30..38).flat_map(|n| rate(9, n)).collect();
    assert!(started(&take(&*store, ask("f", many)).await));
}

/// Asks for a start in a sliding window of so many seconds.
fn in_window(job: &str, limit: u32, seconds: u64) -> Claimed {
    let one = limited("k", None, Some((limit, seconds * SECOND)), None);
    claimed(job, 1, &[one])
}

/// Asks for a start in a sliding window of each length, in seconds.
fn in_each(job: &str, lengths: std::ops::Range<u64>) -> Claimed {
    let each = lengths.map(|n| limited("k", None, Some((9, n * SECOND)), None));
    let mut all = limited("k", None, None, None);
    all.limits.rates = each.flat_map(|one| one.limits.rates).collect();
    claimed(job, 1, &[all])
}

pub async fn idle_windows_make_room_for_new_ones(rig: &Rig) {
    let store = rig.open("a").await;
    // All the windows that a key has.
    for (job, lengths) in [("short", 10..18), ("again", 10..18)] {
        assert!(started(&take(&*store, in_each(job, lengths)).await));
        advance(rig, 30 * SECOND);
    }
    for job in ["a", "b", "c"] {
        let day = take(&*store, in_window(job, 3, 86_400)).await;
        assert!(started(&day), "{job}: {day:?}");
        advance(rig, SECOND);
    }
    assert!(!started(&take(&*store, in_window("d", 3, 86_400)).await));
}

pub async fn a_day_of_25_hours_counts_for_as_long(rig: &Rig) {
    // It begins 24,933,600 s after the rig's clock.
    let store = rig.open("a").await;
    let day = |job: &str| {
        let mut day = limited("k", None, None, None);
        let zone = Zone::new("Europe/Oslo").unwrap();
        day.limits.rates = vec![Rate {
            limit: number(1),
            period: period(86_400 * SECOND),
            window: WindowKind::Calendar(Unit::Day, zone),
        }];
        claimed(job, 1, &[day])
    };
    advance(rig, (24_933_600 + 600) * SECOND);
    assert!(started(&take(&*store, day("first")).await));
    assert!(started(&take(&*store, in_each("short", 2..9)).await));
    advance(rig, (86_400 + 1_200) * SECOND);
    let refused = take(&*store, day("late")).await;
    assert!(!started(&refused), "{refused:?}");
    advance(rig, 1_801 * SECOND);
    let opens = take(&*store, day("next")).await;
    assert!(started(&opens), "{opens:?}");
}

pub async fn many_starts_in_a_window_are_never_too_many(rig: &Rig) {
    let store = rig.open("a").await;
    let most = [limited("k", None, Some((300, SECOND)), None)];
    let mut named = None;
    for n in 0..301 {
        match take(&*store, claimed(&format!("{n}"), 1, &most)).await {
            Verdict::Started { .. } => assert!(n < 300),
            Verdict::Refused { at, .. } => named = at,
            other => panic!("{other:?}"),
        }
        advance(rig, 1_000);
    }
    // The first of them was at T; above 128 a start is kept up to 1 % longer.
    let named = named.expect("the last one was refused").0;
    assert!(
        (T + SECOND..=T + SECOND + 20_000).contains(&named),
        "{named}"
    );
    advance(rig, named - EARLY - now(rig).0 - 1);
    assert!(!started(&take(&*store, claimed("x", 1, &most)).await));
    advance(rig, 1);
    assert!(started(&take(&*store, claimed("x", 1, &most)).await));
}

pub async fn a_queue_and_a_job_key_of_one_name_are_two(rig: &Rig) {
    let store = rig.open("a").await;
    let job = limited("k", Some(1), None, None);
    let queue = Limited {
        space: Space::Queue,
        ..job.clone()
    };
    assert!(started(
        &take(&*store, claimed("a", 1, std::slice::from_ref(&job))).await
    ));
    assert!(started(
        &take(&*store, claimed("b", 1, std::slice::from_ref(&queue))).await
    ));
    assert!(!started(&take(&*store, claimed("c", 1, &[job])).await));
    assert!(!started(&take(&*store, claimed("d", 1, &[queue])).await));
}

pub async fn room_and_usage_say_what_a_take_would(rig: &Rig) {
    let store = rig.open("a").await;
    let limits = [
        limited("k", Some(3), Some((2, SECOND)), None),
        limited("l", None, None, None),
    ];
    assert_eq!(store.room(&limits).await.unwrap().starts, 2);
    assert_eq!(usage(&*store, &limits[0]).await, None);
    for job in ["a", "b"] {
        assert!(started(&take(&*store, claimed(job, 1, &limits)).await));
    }
    let room = store.room(&limits).await.unwrap();
    assert_eq!(room.starts, 0);
    let refused = take(&*store, claimed("c", 1, &limits)).await;
    let Verdict::Refused { at, .. } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(room.at, at);
    let used = usage(&*store, &limits[0]).await.unwrap();
    assert_eq!((used.active, used.windows[0].0), (2, 2));
    assert_eq!(used.windows[0].1, Some(Timestamp(T + SECOND + EARLY)));
    let of_others = limited("l", None, None, None);
    assert_eq!(usage(&*store, &of_others).await.unwrap().active, 2);
}

pub async fn overrides_are_kept_and_taken_away(rig: &Rig) {
    let store = rig.open("a").await;
    let key = Key::new("k").unwrap();
    let set = Override {
        limits: Limits {
            concurrency: Some(number(3).get()),
            ..limited("k", None, Some((5, SECOND)), Some(2)).limits
        },
        expires_at: Some(Timestamp(T + SECOND)),
        reason: Some(Arc::from("because \"it\" is")),
        by: Some(Arc::from("ops")),
    };
    let put = |space, set| Change::Override {
        space,
        key: key.clone(),
        set,
    };
    for space in [Space::Job, Space::Queue, Space::Policy] {
        assert!(store.set(put(space, Some(set.clone()))).await.unwrap());
        // As another one reads it, which opens the store now.
        for store in [&store, &rig.open("b").await] {
            let overrides = store.overrides();
            let kept = overrides.get(space, &key, now(rig));
            assert!(kept.is_some() || !store.is_shared(), "{space:?}");
            assert!(kept.is_none_or(|kept| *kept == set), "{space:?}");
            let passed = overrides.get(space, &key, Timestamp(T + SECOND));
            assert!(passed.is_none());
            let others = [Space::Job, Space::Queue, Space::Policy].into_iter();
            let mut others = others.filter(|other| *other != space);
            assert!(others.all(|other| overrides.get(other, &key, now(rig)).is_none()));
        }
        assert!(store.set(put(space, None)).await.unwrap());
        assert!(!store.set(put(space, None)).await.unwrap());
        assert!(store.overrides().is_empty());
    }
}

pub async fn settings_are_kept_and_taken_away(rig: &Rig) {
    let store = rig.open("a").await;
    let put = |name: &str, text: Option<&str>| Change::Setting {
        name: name.into(),
        text: text.map(Arc::from),
    };
    let text = "{\"max_depth\":7,\"strategy\":\"drop \u{20ac}\"}";
    assert!(store.set(put("bounds:q:1", Some("1"))).await.unwrap());
    assert!(store.set(put("bounds:q:1", Some(text))).await.unwrap());
    assert!(store.set(put("tenant:acme", Some("9"))).await.unwrap());
    let kept = |name: &str| store.overrides().setting(name);
    assert_eq!(kept("bounds:q:1").as_deref(), Some(text));
    assert_eq!(store.overrides().settings("tenant:").len(), 1);
    assert!(store.overrides().is_empty(), "they are no limits");
    let edition = store.overrides().settings_edition();
    assert!(store.set(put("bounds:q:1", None)).await.unwrap());
    assert!(!store.set(put("bounds:q:1", None)).await.unwrap());
    assert!(store.overrides().settings_edition() > edition);
    assert!(kept("bounds:q:1").is_none() && kept("tenant:acme").is_some());
}

pub async fn numbers_are_added_to_up_to_their_most(rig: &Rig) {
    let store = rig.open("a").await;
    let add = |by| Step::Add { by, most: Some(10) };
    let step = async |step| store.number("depth:email", step).await.unwrap();
    assert_eq!(step(Step::Read).await.value, 0);
    assert_eq!(step(add(7)).await.value, 7);
    let refused = step(add(4)).await;
    assert_eq!((refused.done, refused.value), (false, 7));
    let full = step(add(3)).await;
    assert_eq!((full.done, full.value), (true, 10));
    // A bound that was lowered keeps nothing from getting less.
    let least = Step::Add {
        by: -12,
        most: Some(-3),
    };
    assert_eq!(step(least).await.value, -2);
    assert_eq!(store.number("other", Step::Read).await.unwrap().value, 0);
}

pub async fn numbers_that_were_changed_are_not_replaced_by_mistake(rig: &Rig) {
    let store = rig.open("a").await;
    let step = async |step| store.number("n", step).await.unwrap();
    let put = |version| Step::Put { value: 5, version };
    let read = step(Step::Read).await;
    step(Step::Add { by: 1, most: None }).await;
    let late = step(put(Some(read.version))).await;
    assert_eq!((late.done, late.value), (false, 1));
    advance(rig, 7);
    let done = step(put(Some(late.version))).await;
    assert_eq!((done.done, done.value, done.put_at), (true, 5, now(rig)));
    let less = |since| Step::AddLess {
        by: 4,
        most: Some(8),
        gone: 3,
        since,
    };
    let known = step(less(done.put_at)).await;
    assert_eq!((known.done, known.value), (true, 6));
    let over = step(less(late.put_at)).await;
    assert_eq!((over.done, over.value), (false, 6));
    step(put(None)).await;
    let without = Step::AddLess {
        by: 1,
        most: None,
        gone: 3,
        since: late.put_at,
    };
    let unseen = step(without).await;
    assert_eq!(
        (unseen.done, unseen.value, unseen.put_at),
        (true, 6, now(rig))
    );
    assert!(step(Step::Read).await.done);
}

pub async fn forgetting_everything_leaves_nothing(rig: &Rig) {
    let store = rig.open("a").await;
    let all = [limited("k", Some(1), Some((1, SECOND)), Some(1))];
    assert!(started(&take(&*store, claimed("a", 1, &all)).await));
    store
        .number("n", Step::Add { by: 1, most: None })
        .await
        .unwrap();
    store.set(Change::Clear).await.unwrap();
    assert!(store.row("a").await.unwrap().is_none());
    assert_eq!(store.number("n", Step::Read).await.unwrap().value, 0);
    assert!(started(&take(&*store, claimed("b", 1, &all)).await));
}

pub async fn ones_own_held_jobs_are_not_those_of_others(rig: &Rig) {
    let store = rig.open("a").await;
    let free = [limited("k", Some(9), None, None)];
    let (queue, jobs) = ("queue".into(), 3);
    store.set(Change::Holds { queue, jobs }).await.unwrap();
    assert!(started(&take(&*store, claimed("1", 1, &free)).await));
    assert_eq!(store.held_by_others("queue").await.unwrap(), 0);
}

/// Jobs bring what throttles they like to one key. Each keeps its own distance from the last start, whoever's that was.
pub async fn a_start_keeps_its_own_distance_from_the_last(rig: &Rig) {
    let store = rig.open("a").await;
    let fast = limited("k", None, None, Some(10));
    let mut slow = limited("k", None, None, Some(1));
    slow.limits.throttle.as_mut().unwrap().period = super::rig::period(5 * SECOND);
    let mut bursts = slow.clone();
    bursts.limits.throttle.as_mut().unwrap().burst = super::rig::number(3);
    assert!(started(
        &take(&*store, claimed("f1", 1, std::slice::from_ref(&fast))).await
    ));
    for (nth, of) in [&slow, &bursts].into_iter().enumerate() {
        // Also when nothing of the key is used by its own number any more.
        advance(rig, SECOND);
        let fast = claimed(&format!("f{nth}"), 2, std::slice::from_ref(&fast));
        assert!(started(&take(&*store, fast).await));
        let last = now(rig);
        advance(rig, SECOND);
        let ask = || {
            take(
                &*store,
                claimed(&format!("s{nth}"), 1, std::slice::from_ref(of)),
            )
        };
        match of.limits.throttle.unwrap().burst.get() {
            1 => {
                let Verdict::Refused { at, .. } = ask().await else {
                    panic!("too soon")
                };
                assert_eq!(at, Some(last.plus(5 * SECOND)));
                advance(rig, 4 * SECOND - EARLY - 1);
                assert!(!started(&ask().await));
                advance(rig, 1);
                assert!(started(&ask().await));
            }
            // The last start has taken one of the three.
            _ => {
                for (more, allowed) in [true, true, false].into_iter().enumerate() {
                    let ask = claimed(&format!("b{more}"), 1, std::slice::from_ref(of));
                    assert_eq!(started(&take(&*store, ask).await), allowed, "{more}");
                }
            }
        }
        // And the fast ones do not wait for what the slow ones ask for.
        advance(rig, SECOND);
    }
}
