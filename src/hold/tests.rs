mod shares;

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::claims::TestClaim as _;
use crate::held_jobs::held_of;
use ojs_limit::{Key, Limited, Limits, Measure, Served, Share, Space, Throttle, Timestamp};
use ojs_policy::Gate;
use ojs_store::Claimed;
use ojs_store::{Claim, Gen};

/// As many as there are.
const MANY: usize = usize::MAX;

fn limits(keys: &[&str]) -> Arc<[Limited]> {
    let limited = keys.iter().map(|key| {
        Limited::new(
            Space::Job,
            Key::new(key).unwrap(),
            Limits {
                concurrency: Some(1),
                ..Limits::default()
            },
            Arc::from(*key),
        )
    });
    limited.collect()
}

fn gate(keys: &[&str]) -> Gate {
    Gate {
        limited: limits(keys),
        ..Gate::default()
    }
}

/// So many of each group, in all, and more where some may be refused.
pub(super) fn ask(want: usize, most: usize, spare: usize) -> PickAsk {
    PickAsk { most, spare, want }
}

/// A worker that asks for jobs of this lane.
pub(super) fn visit(hold: &Arc<Hold>, scope: u64, gate: &Gate) -> Visit {
    hold.visit([(&lane(scope), gate)].into_iter(), Instant::now())
}

/// A worker that waits for jobs of this lane.
pub(super) fn stand(hold: &Arc<Hold>, scope: u64, gate: &Gate) -> Visit {
    let mut visit = visit(hold, scope, gate);
    visit.stand(Instant::now());
    visit
}

fn is_held(hold: &Hold, scope: u64) -> bool {
    hold.look(&lane(scope), 0, NOW).is_held
}

pub(super) fn lane(scope: u64) -> Lane {
    Lane {
        scope,
        queue: Arc::from("q"),
    }
}

pub(super) fn hold() -> Arc<Hold> {
    Arc::default()
}

pub(super) fn most(jobs: usize, bytes: usize) -> Amount {
    Amount { jobs, bytes }
}

/// A claimed job of scope 1 in queue `q`.
pub(super) fn job(id: &str, priority: i32, keys: &[&str]) -> Held {
    held_of(Claim {
        priority,
        claimed_at: NOW,
        limited: limits(keys),
        ..Claim::of(id)
    })
}

/// The claim with this number of a job.
fn claimed_as(generation: u64, mut held: Held) -> Held {
    held.claimed.generation = Gen(generation);
    held
}

/// A job that was claimed with other credentials.
fn of_scope(scope: u64, mut held: Held) -> Held {
    held.claimed.scope = scope;
    held
}

/// What could start now of scope 1, so many of each group.
fn picks(hold: &Arc<Hold>, want: usize) -> Vec<Pick> {
    hold.pick(&lane(1), ask(want, MANY, 0), NOW)
}

/// Whether a worker that waits was woken since this was last asked.
async fn was_woken(visit: &Visit) -> bool {
    let woken = tokio::time::timeout(Duration::ZERO, visit.woken());
    woken.await.is_ok()
}

/// Real time, where it is measured: the paused clock stands still.
#[expect(clippy::disallowed_methods, reason = "as it says")]
fn real_now() -> std::time::Instant {
    std::time::Instant::now()
}

pub(super) fn ids(picked: &[impl std::ops::Deref<Target = Held>]) -> Vec<&str> {
    picked.iter().map(|held| &*held.claimed.job).collect()
}

/// The job, if it may go out. If it may not, it is put back.
fn start(hold: &Hold, pick: Pick) -> Option<Held> {
    hold.start(&mut vec![pick]).pop()
}

/// A refusal.
fn refusal(refused: Refused, policy: &str) -> Refusal {
    Refusal {
        refused,
        at: NOW,
        by: Some((policy.into(), Space::Job, Key::new("k").unwrap())),
        rescheduled: None,
    }
}

const NOW: Timestamp = Timestamp(1_000_000);

#[tokio::test(start_paused = true)]
async fn what_is_seen_without_the_lock_is_what_is_held() {
    let hold = hold();
    let one = || vec![job("a", 0, &["k"])];
    let sees = |any: bool| {
        assert_eq!(hold.is_empty(), !any);
        assert_eq!((hold.has("a"), is_held(&hold, 1)), (any, any));
    };
    sees(false);
    assert!(!hold.hide("a") && hold.forget("a").is_none());
    hold.add(one());
    sees(true);
    assert!(hold.hide("a"));
    hold.show("a");
    let picked = picks(&hold, 1);
    sees(true);
    let started = hold.start(&mut { picked }).pop().unwrap();
    sees(false);
    hold.take_back(started);
    sees(true);
    assert!(hold.forget("a").is_some());
    sees(false);
    hold.add(one());
    hold.clear();
    sees(false);
}

#[tokio::test(start_paused = true)]
async fn leaves_by_priority_then_turn_then_age() {
    let hold = hold();
    hold.add(vec![
        job("a1", 0, &["a"]),
        job("a2", 0, &["a"]),
        job("b1", 0, &["b"]),
        job("high", 5, &["a"]),
        job("a3", 0, &["a"]),
    ]);
    let picked = hold.pick(&lane(1), ask(10, 2, 0), NOW);
    assert_eq!(ids(&picked), ["high", "a1"], "no more than that");
    drop(picked);
    let picked = picks(&hold, 10);
    assert_eq!(ids(&picked), ["high", "a1", "b1", "a2", "a3"]);
    drop(picked);
    assert_eq!(ids(&picks(&hold, 10)), ["high", "a1", "b1", "a2", "a3"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_started_one_waits_for_the_others_turns() {
    let hold = hold();
    hold.add(vec![
        job("a1", 0, &["a"]),
        job("a2", 0, &["a"]),
        job("b1", 0, &["b"]),
        job("b2", 0, &["b"]),
    ]);
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut picked = picks(&hold, 1);
        let first = picked.remove(0);
        drop(picked);
        order.push(start(&hold, first).unwrap().claimed.job.to_string());
    }
    assert_eq!(order, ["a1", "b1", "a2", "b2"]);
    assert!(hold.is_empty() && hold.bytes() == 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_group_is_asked_again_only_in_time_or_when_a_slot_ends() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"]), job("b1", 0, &["b"])]);
    for held in picks(&hold, 1) {
        let refused = if &*held.claimed.job == "a1" {
            Refused::ForSlot(Timestamp(0))
        } else {
            Refused::Until(NOW.plus(50_000))
        };
        held.refuse(refusal(refused, "a"));
    }
    assert!(
        hold.pick(&lane(1), ask(1, MANY, 0), NOW.plus(44_999))
            .is_empty()
    );
    let prospect = hold.look(&lane(1), MANY, NOW).prospect;
    assert_eq!(prospect.at, Some(NOW.plus(50_000)));
    assert!(
        prospect.slot.is_some(),
        "the far time does not hide the slot"
    );
    let early = hold.pick(&lane(1), ask(1, MANY, 0), NOW.plus(45_000));
    assert_eq!(ids(&early), ["b1"]);
    drop(early);
    assert_eq!(&*hold.look(&lane(1), 0, NOW).waits_for.unwrap().0, "a");
    hold.wake(&limits(&["a"]));
    assert_eq!(ids(&picks(&hold, 1)), ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_refused_while_a_job_that_only_it_limits_is() {
    let (hold, gate) = (hold(), gate(&["q"]));
    let refused = |now| hold.promise(&lane(1), &gate, now).is_refused;
    assert!(!refused(NOW), "nothing is held");
    hold.add(vec![job("a1", 0, &["q"])]);
    assert!(!refused(NOW), "it was not asked for yet");
    let refuse = || {
        let held = picks(&hold, 1).remove(0);
        let until = Refused::Until(NOW.plus(50_000));
        held.refuse(refusal(until, "q"));
    };
    refuse();
    assert!(refused(NOW.plus(44_999)));
    let others = hold.promise(&lane(2), &gate, NOW);
    assert!(!others.is_refused && others.jobs == 1, "another's");
    assert!(!refused(NOW.plus(45_000)), "it may start");
    hold.ask_all();
    assert!(!refused(NOW));
    // What waits for a key of its own too says nothing of the queue.
    hold.clear();
    hold.add(vec![job("b1", 0, &["q", "own"])]);
    refuse();
    assert!(!refused(NOW));
}

#[tokio::test(start_paused = true)]
async fn a_paused_key_offers_no_prospect() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    let held = picks(&hold, 1).remove(0);
    held.refuse(refusal(Refused::Paused, "a"));
    assert_eq!(hold.look(&lane(1), MANY, NOW).prospect, Prospect::default());
    // The key had no slots while the store was lost: nothing ends that would say so.
    hold.ask_all();
    assert_eq!(ids(&picks(&hold, 1)), ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn scopes_do_not_meet() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    assert!(hold.pick(&lane(2), ask(1, MANY, 0), NOW).is_empty());
    assert!(!is_held(&hold, 2) && is_held(&hold, 1));
}

#[tokio::test(start_paused = true)]
async fn a_hidden_job_does_not_leave_wherever_it_was() {
    let hold = hold();
    hold.add(vec![job("waiting", 0, &["a"]), job("in hand", 0, &["b"])]);
    assert!(hold.hide("waiting"));
    let mut picked = picks(&hold, 1);
    assert_eq!(ids(&picked), ["in hand"]);
    assert!(hold.hide("in hand"));
    let held = picked.remove(0);
    assert!(
        start(&hold, held).is_none(),
        "a cancel came while it was in hand"
    );
    assert!(picks(&hold, 1).is_empty());
    assert_eq!(hold.len(), 2);
    hold.show("in hand");
    hold.show("waiting");
    assert_eq!(ids(&picks(&hold, 1)), ["waiting", "in hand"]);
    assert!(!hold.hide("unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_again_replaces_the_earlier_claim() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    let first = picks(&hold, 1).remove(0);
    hold.add(vec![job("a1", 0, &["a"])]);
    drop(first);
    assert_eq!(hold.len(), 1);
    let mut picked = picks(&hold, 5);
    assert_eq!(ids(&picked), ["a1"], "the earlier claim is void");
    // So too while the earlier one waits, and it leaves nothing behind.
    let size = hold.bytes();
    drop(picked.remove(0));
    hold.add(vec![job("a1", 0, &["a"])]);
    assert_eq!((hold.len(), hold.bytes()), (1, size));
    assert_eq!(ids(&picks(&hold, 5)), ["a1"]);
    hold.forget("a1");
    assert!(!is_held(&hold, 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_granted_to_an_earlier_claim_does_not_leave() {
    let hold = hold();
    hold.add(vec![job("in hand", 0, &["a"]), job("waiting", 0, &["a"])]);
    let in_hand = picks(&hold, 1).remove(0);
    let again = ["in hand", "waiting"].map(|id| claimed_as(2, job(id, 0, &["a"])));
    let waiting = picks(&hold, 1).remove(0);
    hold.add(again.to_vec());
    for held in [in_hand, waiting] {
        assert!(start(&hold, held).is_none());
    }
    let mut picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["in hand", "waiting"]);
    assert_eq!(hold.start(&mut picked).len(), 2);
    assert!(hold.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hand_out_undone_after_the_job_came_again_is_void() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    let first = picks(&hold, 1).remove(0);
    let first = start(&hold, first).unwrap();
    hold.add(vec![claimed_as(2, job("a1", 0, &["a"]))]);
    hold.take_back(first);
    let picked = picks(&hold, 5);
    assert_eq!(ids(&picked), ["a1"]);
    assert_eq!(picked[0].claimed.generation, Gen(2));
    assert!(hold.has_claim("a1", Gen(2)) && !hold.has_claim("a1", Gen(1)));
}

#[tokio::test(start_paused = true)]
async fn an_undone_hand_out_is_first_again() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"]), job("a2", 0, &["a"])]);
    let mut picked = picks(&hold, 1);
    let first = picked.remove(0);
    hold.take_back(start(&hold, first).unwrap());
    assert_eq!(ids(&picks(&hold, 2)), ["a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn lookahead_counts_what_is_held_and_what_is_on_its_way() {
    let hold = hold();
    let free = |jobs, bytes| hold.places(&lane(1), most(jobs, bytes));
    hold.add(vec![job("a1", 0, &["a"])]);
    assert_eq!(free(4, 1 << 20), Lookahead::Free(2));
    let coming = hold.expect(&lane(1), 3, Instant::now());
    assert_eq!(free(4, 1 << 20), Lookahead::Soon);
    coming.answered(Behind::Nothing);
    assert_eq!(free(4, 1 << 20), Lookahead::Free(2));
    assert_eq!(free(4, 1), Lookahead::Full, "bytes count too");
    // As many as should fit, by the size of those that are there.
    let each = hold.bytes();
    assert_eq!(free(9, each * 6 + 1), Lookahead::Free(3));
    assert_eq!(free(9, each), Lookahead::Free(1), "one beside them");
    hold.add(vec![job("a2", 0, &["a"])]);
    assert_eq!(free(9, each * 2), Lookahead::Full);
    assert_eq!(free(2, 1 << 20), Lookahead::Full);
}

/// How many places of a hold for `max` jobs each of these lanes gets, one after the other, when it takes all
/// that there are for it.
fn given(max: usize, lanes: u64) -> Vec<usize> {
    let hold = hold();
    let take = |scope: u64| {
        let mut taken = 0;
        while let Lookahead::Free(n) = hold.places(&lane(scope), most(max, 64 << 20)) {
            let held = |nth: usize| job(&format!("{scope}:{}", taken + nth), 0, &["a"]);
            let jobs = (0..n).map(|nth| of_scope(scope, held(nth)));
            hold.add(jobs.collect());
            taken += n;
        }
        taken
    };
    (1..=lanes).map(take).collect()
}

#[tokio::test(start_paused = true)]
async fn a_lane_may_hold_three_times_what_is_free() {
    assert_eq!(given(32, 8), [24, 6, 2, 2, 2, 2, 2, 0]);
    assert_eq!(given(2, 3), [2, 1, 0]);
    assert_eq!(given(1, 3), [2, 0, 0]);
    assert_eq!(given(1024, 7), [768, 192, 48, 12, 3, 2, 2]);
    // Two that take in turn get three sevenths each.
    let (hold, most) = (hold(), most(7_000, 64 << 20));
    let mut came = 0;
    while let Lookahead::Free(_) = hold.places(&lane(1 + came % 2), most) {
        let held = job(&came.to_string(), 0, &["a"]);
        hold.add(vec![of_scope(1 + came % 2, held)]);
        came += 1;
    }
    assert!((5_990..=6_000).contains(&came), "{came}");
}

#[tokio::test(start_paused = true)]
async fn the_last_places_are_not_given_twice() {
    let (hold, now) = (hold(), Instant::now());
    let lookahead = |scope| hold.places(&lane(scope), most(8, 1 << 20));
    hold.add((0..6).map(|n| job(&n.to_string(), 0, &["a"])).collect());
    assert_eq!(lookahead(1), Lookahead::Full);
    assert_eq!(lookahead(2), Lookahead::Free(1));
    // Both places are asked for, and those beside the hold.
    let coming = hold.expect(&lane(2), 1, now);
    let _others = [3, 4, 5].map(|scope| hold.expect(&lane(scope), 1, now));
    assert_eq!(lookahead(2), Lookahead::Soon);
    assert_eq!(lookahead(6), Lookahead::Soon);
    assert_eq!(lookahead(1), Lookahead::Full, "nothing of that is for it");
    coming.answered(Behind::Nothing);
    assert_eq!(lookahead(6), Lookahead::Free(1));
}

#[tokio::test(start_paused = true)]
async fn bytes_are_shared_by_the_same_rule() {
    let hold = hold();
    hold.add((0..8).map(|n| job(&n.to_string(), 0, &["a"])).collect());
    let eight = hold.bytes();
    let lookahead = |scope, bytes| hold.places(&lane(scope), most(100, bytes));
    assert_eq!(lookahead(1, eight / 2 * 3), Lookahead::Free(1));
    assert_eq!(lookahead(1, eight / 3 * 4), Lookahead::Full);
    assert_eq!(lookahead(2, eight / 3 * 4), Lookahead::Free(1));
    assert_eq!(lookahead(2, eight), Lookahead::Free(1), "one beside them");
    assert_eq!(lookahead(2, eight / 2), Lookahead::Full);
}

#[tokio::test(start_paused = true)]
async fn lower_priorities_wait_for_the_backends_word() {
    let hold = hold();
    let is_outranked = || hold.look(&lane(1), MANY, NOW).is_outranked;
    hold.add(vec![job("low", 0, &["a"])]);
    assert!(!is_outranked(), "one priority only was seen");
    hold.add(vec![job("high", 5, &["b"])]);
    assert!(!is_outranked());
    hold.forget("high");
    assert!(is_outranked());
}

#[tokio::test(start_paused = true)]
async fn the_line_wakes_one_and_then_the_next() {
    let hold = hold();
    let (first, second) = (stand(&hold, 1, &gate(&[])), stand(&hold, 1, &gate(&[])));
    assert_eq!(first.leads().as_slice(), [&lane(1)]);
    assert!(second.leads().is_empty());
    {
        let second_woken = second.woken();
        tokio::pin!(second_woken);
        assert!(
            tokio::time::timeout(Duration::from_secs(1), &mut second_woken)
                .await
                .is_err()
        );
        drop(first);
        tokio::time::timeout(Duration::from_secs(1), second_woken)
            .await
            .expect("its turn");
    }
    assert_eq!(second.leads().as_slice(), [&lane(1)]);
}

#[tokio::test(start_paused = true)]
async fn what_is_tidied_is_in_nobodys_way() {
    let (hold, now) = (hold(), Instant::now());
    hold.add(vec![job("a1", 0, &["a"]), job("b1", 0, &["b"])]);
    let coming = hold.expect(&lane(2), 1, now);
    drop(visit(&hold, 3, &gate(&[])));
    let standing = stand(&hold, 4, &gate(&[]));
    hold.forget("a1");
    tokio::time::advance(Duration::from_secs(100)).await;
    hold.tidy(now);
    let lanes = |hold: &Hold| hold.state().queues.values().count();
    assert_eq!(lanes(&hold), 4);
    hold.tidy(Instant::now());
    assert_eq!(lanes(&hold), 3, "nobody has asked for one of them since");
    let groups = hold
        .state()
        .queues
        .values()
        .flat_map(|q| q.all_groups())
        .count();
    assert_eq!(groups, 1, "of those one is empty");
    assert_eq!(ids(&picks(&hold, 9)), ["b1"]);
    coming.answered(Behind::More);
    drop(standing);
    hold.forget("b1");
    hold.tidy(Instant::now());
    assert_eq!(lanes(&hold), 0);
}

/// A group of which all jobs have left is kept for the next one, which finds it as if it were new: behind all others,
/// and refused by nothing.
#[tokio::test(start_paused = true)]
async fn a_spare_group_is_as_a_new_one() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    for pick in picks(&hold, 1) {
        pick.refuse(refusal(Refused::ForSlot(NOW), "a"));
    }
    assert!(picks(&hold, 1).is_empty());
    let later = NOW.plus(1_000_000);
    let mut picked = hold.pick(&lane(1), ask(1, MANY, 0), later);
    assert_eq!(hold.start(&mut picked).len(), 1);
    let held = hold.snapshot(NOW).await;
    assert_eq!(held.waiting(|_| true), 0, "nothing is held");
    let waiter = stand(&hold, 1, &gate(&[]));
    hold.wake(&limits(&["a"]));
    assert!(!was_woken(&waiter).await, "nothing waits for it");
    drop(waiter);
    hold.add(vec![job("b1", 0, &["b"]), job("a2", 0, &["a"])]);
    let view = hold.look(&lane(1), MANY, later);
    assert_eq!(view.askable, 2, "as refused it would count twice");
    let front = hold.snapshot(NOW).await.front("q", most(1, 1 << 40));
    let keys = front.unwrap().keys;
    let names = |key: &str| keys.iter().any(|((_, _, of), _)| of.as_str() == key);
    assert!(names("a") && !names("k"), "k refused an earlier job");
    assert_eq!(ids(&picks(&hold, 1)), ["b1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_has_all_that_is_held() {
    let hold = hold();
    let names: Vec<String> = (0..600).map(|nth| nth.to_string()).collect();
    hold.add(names.iter().map(|id| job(id, 0, &["k", id])).collect());
    drop(visit(&hold, 2, &gate(&[])));
    let picked = hold.pick(&lane(1), ask(1, 1, 0), NOW);
    let held = hold.snapshot(NOW).await;
    assert_eq!(
        (held.jobs, held.waiting(|_| true)),
        (600, 599),
        "one is in hand"
    );
    let k = limits(&["k"]);
    let of_key = held.limited_by(Space::Job, &k[0].key);
    assert_eq!(of_key.map(|group| group.jobs).sum::<usize>(), 599);
    let mut lanes: Vec<usize> = held.lanes("q").iter().map(|lane| lane.held).collect();
    lanes.sort_unstable();
    assert_eq!(lanes, [0, 600], "somebody asked with other credentials");
    assert_eq!(held.limits_in("q", 20).len(), 20);
    drop(picked);
    assert_eq!(hold.snapshot(NOW).await.waiting(|_| true), 600);
}

/// Jobs may have a key each, so not all groups are kept.
#[tokio::test(start_paused = true)]
async fn spare_groups_are_not_many() {
    let hold = hold();
    for nth in 0..5_000 {
        let id = nth.to_string();
        hold.add(vec![job(&id, 0, &[&id])]);
        let mut picked = picks(&hold, 1);
        assert_eq!(hold.start(&mut picked).len(), 1);
    }
    let known = hold.state().queues.values().next().unwrap().groups.count();
    assert!(known <= 1_001, "{known} groups are kept");
}

/// Groups of one key, by shares or by other numbers, are told apart as soon as those of different keys.
#[tokio::test(start_paused = true)]
async fn groups_of_one_key_are_found_as_soon() {
    let hold = hold();
    let names: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let begun = real_now();
    hold.add(names.iter().map(|id| sharing(id, id, 1)).collect());
    let limited = |n: u32| {
        let mut held = job(&format!("l{n}"), 0, &["k"]);
        let mut limits = limits(&["k"]).to_vec();
        limits[0].limits.concurrency = Some(n);
        held.limit(limits.into(), 0);
        held
    };
    hold.add((0..20_000).map(limited).collect());
    // Where all are compared with each other, it takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// More groups than jobs are wanted change nothing of which jobs come first, whether or not some share a key, and also
/// where some were refused and are asked again by now.
#[tokio::test(start_paused = true)]
async fn few_are_the_first_of_many() {
    for (with_share, refuses) in [(true, false), (false, false), (false, true)] {
        let (hold, later) = (hold(), NOW.plus(60_000));
        let names = ["a", "b", "c", "d", "e"];
        let nth_of = |nth: usize| {
            let of = move |key: &&'static str| job(&format!("{key}{nth}"), 0, &[key]);
            names.iter().map(of).collect::<Vec<_>>()
        };
        hold.add(nth_of(0));
        if with_share {
            let shared = ["x", "y", "x", "z"].into_iter().enumerate();
            let shared = shared.map(|(nth, group)| sharing(&format!("{group}{nth}"), group, 1));
            hold.add(shared.collect());
        }
        hold.add(nth_of(9));
        let until = Refused::Until(NOW.plus(50_000));
        for pick in hold.pick(&lane(1), ask(1, 4, 0), NOW) {
            if refuses && !pick.claimed.job.starts_with('b') {
                pick.refuse(refusal(until, "p"));
            }
        }
        let picked = hold.pick(&lane(1), ask(MANY, MANY, 0), later);
        let all: Vec<String> = ids(&picked).into_iter().map(str::to_owned).collect();
        drop(picked);
        assert_eq!(all.len(), if with_share { 14 } else { 10 });
        for most in 0..all.len() {
            assert_eq!(
                ids(&hold.pick(&lane(1), ask(MANY, most, 0), later)),
                all[..most]
            );
        }
    }
}

/// A few more jobs than are wanted are picked where some may be refused. Elsewhere they would only be put back.
#[tokio::test(start_paused = true)]
async fn more_are_picked_only_where_some_may_be_refused() {
    let hold = hold();
    hold.add(
        (0..9)
            .map(|nth| job(&format!("{nth}"), 0, &[["a", "b"][nth % 2]]))
            .collect(),
    );
    let pick = || hold.pick(&lane(1), ask(4, 4, 2), NOW);
    assert_eq!(ids(&pick()), ["0", "1", "2", "3"]);
    let until = Refused::Until(NOW.plus(50_000));
    hold.add(vec![job("c", 9, &["c"])]);
    let first = hold.pick(&lane(1), ask(1, 1, 0), NOW).remove(0);
    first.refuse(refusal(until, "p"));
    assert_eq!(ids(&pick()), ["0", "1", "2", "3", "4", "5"]);
    assert!(hold.forget("c").is_some());
    hold.tidy(Instant::now());
    assert_eq!(pick().len(), 4, "it is gone");
    let mut timed = job("t", 0, &["t"]);
    let mut limits = limits(&["t"]).to_vec();
    limits[0].limits.throttle = Some(Throttle {
        limit: NonZeroU32::MIN,
        period: NonZeroU64::MIN,
        burst: NonZeroU32::MIN,
        measure: Measure::default(),
    });
    timed.limit(limits.into(), 0);
    hold.add(vec![timed]);
    assert_eq!(pick().len(), 6, "who got some of these does not ask again");
}

/// Jobs stand in the order in which they leave, those that were refused among the others.
#[tokio::test(start_paused = true)]
async fn those_that_were_refused_keep_their_turns() {
    let hold = hold();
    let jobs = [("a", 0), ("b", 0), ("c", 5), ("d", 0), ("e", 5)];
    hold.add(
        jobs.map(|(key, priority)| job(key, priority, &[key]))
            .into(),
    );
    let until = Refused::Until(NOW.plus(50_000));
    for pick in picks(&hold, 1) {
        if ["b", "e"].contains(&&*pick.claimed.job) {
            pick.refuse(refusal(until, "p"));
        }
    }
    let later = Instant::now() + Duration::from_secs(9);
    let all = hold.unproven(&lane(1), |_| true, later, MANY);
    let all: Vec<&str> = all.iter().map(|(job, _)| &**job).collect();
    assert_eq!(all, ["c", "e", "a", "b", "d"]);
    assert_eq!(hold.look(&lane(1), MANY, NOW).best, Some(5));
    drop(hold.pick(&lane(1), ask(1, 1, 0), NOW));
    let mut out = hold.pick(&lane(1), ask(1, 1, 0), NOW);
    assert_eq!(hold.start(&mut out).len(), 1, "c leaves");
    let view = hold.look(&lane(1), MANY, NOW);
    assert_eq!(
        (view.best, view.askable),
        (Some(5), 2),
        "e waits, and is the best still"
    );
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_what_may_help() {
    let hold = hold();
    let waiter = stand(&hold, 1, &gate(&["g"]));
    let another = || visit(&hold, 1, &gate(&["g"]));
    let woken = || was_woken(&waiter);
    assert!(!woken().await);
    hold.wake(&limits(&["other"]));
    assert!(!woken().await, "nothing waits for it");
    hold.wake(&limits(&["g"]));
    assert!(woken().await, "the gate's");
    let key = |name| Key::new(name).unwrap();
    hold.wake_keys(&[(Space::Queue, key("q"))]);
    assert!(woken().await, "the queue's own");
    drop(another());
    assert!(!woken().await, "nothing is held");
    hold.wake(&limits(&["q"]));
    assert!(!woken().await, "a job's key of that name");
    drop(stand(&hold, 1, &gate(&["g"])));
    assert!(!woken().await, "one behind has left");
    hold.add(vec![job("a", 0, &["k"])]);
    assert!(woken().await, "what came may start");
    drop(another());
    assert!(woken().await, "it may be asked for");
    hold.wake(&limits(&["k"]));
    assert!(woken().await, "a held job's");
    let refuse = || {
        let held = picks(&hold, 1).remove(0);
        let refused = refusal(Refused::ForSlot(Timestamp(0)), "k");
        held.refuse(refused);
    };
    refuse();
    drop(another());
    hold.wake_keys(&[(Space::Queue, key("k"))]);
    assert!(!woken().await, "a queue of that name");
    assert!(picks(&hold, 1).is_empty());
    hold.wake_keys(&[(Space::Queue, key("q"))]);
    assert!(woken().await);
    refuse();
    hold.ask_all();
    assert!(woken().await);
    let held = picks(&hold, 1).remove(0);
    hold.take_back(start(&hold, held).unwrap());
    assert!(woken().await, "it may start here");
    hold.offer(&hold.unwanted(Duration::ZERO));
    let offers = hold.untold_offers();
    assert!(!woken().await);
    let ours: Vec<_> = offers.into_iter().map(|of| (of, Gen(9))).collect();
    hold.end_offers(&ours);
    assert!(woken().await, "it may start again");
    hold.wake_all();
    assert!(woken().await);
    hold.clear();
    assert!(woken().await);
}

/// A slot that ends while a FETCH looks for jobs wakes nobody: it looks once more before it waits.
#[tokio::test(start_paused = true)]
async fn what_was_woken_since_a_worker_came_is_not_missed() {
    let hold = hold();
    for (wakes, is_woken) in [(0, false), (1, true), (2, true)] {
        hold.wake(&limits(&["earlier"]));
        let mut waits = visit(&hold, 1, &gate(&["g"]));
        (0..wakes).for_each(|_| hold.wake(&limits(&["g"])));
        waits.stand(Instant::now());
        let woken = || was_woken(&waits);
        assert_eq!(woken().await, is_woken);
        assert!(!woken().await, "once");
    }
}

/// A worker that leaves, in whatever way, wakes who may have what it has left.
#[tokio::test(start_paused = true)]
async fn who_leaves_wakes_the_first_who_waits() {
    let hold = hold();
    let first = visit(&hold, 1, &gate(&[]));
    let waits = stand(&hold, 1, &gate(&[]));
    hold.add(vec![job("a", 0, &["k"])]);
    let woken = || was_woken(&waits);
    assert!(woken().await && !woken().await, "it came");
    drop(first);
    assert!(woken().await && !woken().await);
    drop(visit(&hold, 2, &gate(&[])));
    assert!(!woken().await, "others' jobs");
    let view = hold.look(&lane(2), 1, NOW);
    assert!(view.is_held_for_others && !view.is_held);
    let own = hold.look(&lane(1), 1, NOW);
    assert!(own.is_held && !own.is_held_for_others);
}

#[tokio::test(start_paused = true)]
async fn who_found_the_hold_full_of_what_is_on_its_way_is_woken_when_it_comes() {
    let (hold, now) = (hold(), Instant::now());
    let waiter = stand(&hold, 1, &gate(&[]));
    let woken = || was_woken(&waiter);
    let (one, three) = (hold.expect(&lane(2), 1, now), hold.expect(&lane(2), 3, now));
    one.answered(Behind::More);
    assert!(!woken().await, "it found nothing yet");
    assert_eq!(hold.places(&lane(1), most(4, 1 << 20)), Lookahead::Free(1));
    let other = hold.expect(&lane(3), 2, now);
    assert_eq!(hold.places(&lane(1), most(4, 1 << 20)), Lookahead::Soon);
    let has_more = || !hold.look(&lane(2), MANY, NOW).is_exhausted;
    assert!(has_more());
    three.answered(Behind::Nothing);
    assert!(woken().await && !has_more());
    other.answered(Behind::Nothing);
    assert!(!woken().await, "once");
    assert_eq!(hold.of_queue("q"), (0, 0));
    let coming = hold.coming(&lane(2), 1, now);
    assert_eq!(hold.of_queue("q"), (0, 1));
    assert_eq!(hold.promise(&lane(1), &gate(&[]), NOW).jobs, 1);
    assert_eq!(hold.places(&lane(1), most(4, 1 << 20)), Lookahead::Free(2));
    drop(coming);
    assert_eq!(hold.of_queue("q"), (0, 0));
    assert_eq!(hold.places(&lane(1), most(4, 1 << 20)), Lookahead::Free(3));
    hold.add(vec![job("a", 0, &["k"])]);
    assert_eq!(hold.of_queue("q"), (1, 0));
    assert_eq!(hold.counts()["q"], 1);
}

#[tokio::test(start_paused = true)]
async fn claims_of_one_id_are_proven_together_and_end_one_by_one() {
    let hold = hold();
    let claim = |id: &str, claim_id: &str| {
        let mut held = job(id, 0, &["k"]);
        held.claimed.claim_id = claim_id.into();
        held
    };
    hold.add(vec![claim("a", "x"), claim("b", "y"), claim("c", "x")]);
    tokio::time::advance(Duration::from_secs(10)).await;
    let now = Instant::now();
    let alike = |claimed: &Claimed| &*claimed.claim_id == "x";
    let unproven = |before| {
        let jobs = hold.unproven(&lane(1), alike, before, 9);
        jobs.iter()
            .map(|(job, _)| job.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(unproven(now), ["a", "c"]);
    assert_eq!(hold.unproven(&lane(1), alike, now, 1).len(), 1);
    hold.proved("c", now, Duration::from_secs(30));
    assert_eq!(unproven(now), ["a"]);
    // 30 s less the margin after each was proven.
    tokio::time::advance(Duration::from_secs(18)).await;
    assert!(hold.is_past_deadline("a") && !hold.is_past_deadline("c"));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(!hold.is_past_deadline("c"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(hold.is_past_deadline("c") && !hold.is_past_deadline("unknown"));
    let margin = |seconds| {
        let visibility = Duration::from_secs(seconds);
        (now + visibility).duration_since(Proof::new(now, visibility).deadline)
    };
    assert_eq!(margin(5), Duration::from_millis(500));
    assert_eq!(margin(3_600), Duration::from_secs(2));
}

#[test]
fn a_prospect_keeps_the_soonest_time_and_the_slot() {
    let at = |t| Prospect::at(Timestamp(t));
    assert_eq!(at(2).or(at(1)), at(1));
    let both = Prospect::slot().or(at(9));
    assert_eq!(
        (both.at, both.slot),
        (Some(Timestamp(9)), Some(Timestamp(0)))
    );
    let later = Prospect::slot_from(Timestamp(8));
    assert!(later.is_by(Timestamp(8)) && !later.is_by(Timestamp(7)));
    assert!(!Prospect::default().is_by(Timestamp::NEVER));
    assert_eq!(Prospect::default().or(Prospect::slot()), Prospect::slot());
    assert_eq!(
        Prospect::default().or(Prospect::default()),
        Prospect::default()
    );
}

fn under(hold: &Hold, edition: u64, keys: impl Fn(&str) -> &'static [&'static str]) {
    let jobs = hold.before(edition).into_iter().map(|held| Relimited {
        limits: limits(keys(&held.claimed.job)),
        generation: held.claimed.generation,
        job: held.claimed.job.clone(),
    });
    hold.relimit(edition, jobs.collect());
}

#[tokio::test(start_paused = true)]
async fn other_limits_apply_at_once_and_in_order() {
    let hold = hold();
    hold.add(vec![
        claimed_as(0, job("a1", 0, &["a"])),
        claimed_as(1, job("b1", 0, &["b"])),
        claimed_as(2, job("a2", 0, &["a"])),
        claimed_as(3, job("b2", 0, &["b"])),
    ]);
    // Both keys are shut.
    for held in picks(&hold, 1) {
        held.refuse(refusal(Refused::ForSlot(Timestamp(0)), "p"));
    }
    assert!(picks(&hold, 1).is_empty());
    under(&hold, 1, |_| &["c"]);
    let picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["a1", "b1", "a2", "b2"]);
    let on_c = |held: &Pick| held.edition == 1 && held.claimed.limited[0].key.as_str() == "c";
    assert!(picked.iter().all(on_c));
    drop(picked);
    // Apart again, in turn.
    under(
        &hold,
        2,
        |job| if job.starts_with('a') { &["a"] } else { &["b"] },
    );
    assert_eq!(ids(&picks(&hold, 1)), ["a1", "b1"]);
    assert_eq!(hold.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_in_hand_during_a_change_is_asked_again() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"]), job("a2", 0, &["a"])]);
    let picked = picks(&hold, 1);
    under(&hold, 1, |_| &["a"]);
    for held in picked {
        held.refuse(refusal(Refused::Paused, "p"));
    }
    // It was refused under limits that are no more, and it waits beside its like until it is picked.
    let picked = picks(&hold, 1);
    assert_eq!(ids(&picked), ["a2", "a1"]);
    assert_eq!(
        picked.iter().map(|held| held.edition).collect::<Vec<_>>(),
        [1, 0]
    );
    drop(picked);
    under(&hold, 1, |_| &["a"]);
    assert!(hold.before(1).is_empty());
    let picked = picks(&hold, 1);
    assert_eq!(picked.len(), 1, "they are one group again");
    drop(picked);
    let mut picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["a1", "a2"], "and in order");
    assert_eq!(hold.start(&mut picked).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_found_for_an_earlier_claim_is_not_for_a_newer_one() {
    let hold = hold();
    hold.add(vec![job("a1", 0, &["a"])]);
    let found = hold.before(1);
    hold.add(vec![claimed_as(2, job("a1", 0, &["b"]))]);
    let of = |held: &Held| Relimited {
        limits: limits(&["c"]),
        generation: held.claimed.generation,
        job: held.claimed.job.clone(),
    };
    hold.relimit(1, found.iter().map(of).collect());
    let held = picks(&hold, 1).remove(0);
    assert_eq!(
        (held.edition, held.claimed.limited[0].key.as_str()),
        (0, "b")
    );
}

#[tokio::test(start_paused = true)]
async fn a_picked_job_may_make_room_soon_and_its_end_says_nothing_of_a_later_claim() {
    let hold = hold();
    hold.add(vec![job("a", 0, &["k"]), job("b", 0, &["k"])]);
    let full = || hold.places(&lane(1), most(2, 1 << 20));
    assert_eq!(full(), Lookahead::Full);
    let oldest = hold.pick_oldest(&lane(1).queue, Timestamp(0)).unwrap();
    let next = hold.pick_oldest(&lane(1).queue, Timestamp(0)).unwrap();
    let none = hold.pick_oldest(&lane(1).queue, Timestamp(0));
    assert!(none.is_none(), "someone is at both");
    assert_eq!(full(), Lookahead::Soon);

    // It failed, also after a cancel that failed too.
    assert!(hold.hide("b"));
    hold.show("b");
    drop(next);
    assert_eq!(ids(&picks(&hold, 9)), ["b"]);

    // The backend hands it out again.
    hold.add(vec![claimed_as(2, job("a", 0, &["k"]))]);
    oldest.gone();
    assert!(hold.has_claim("a", Gen(2)), "the earlier claim ended");
    let all = picks(&hold, 9).into_iter();
    all.for_each(Pick::gone);
    assert!(!hold.has("a"));
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_ends_between_the_answer_and_the_hold_is_not_missed() {
    let no = || refusal(Refused::ForSlot(Timestamp(0)), "k");
    let may_ask = |hold| picks(hold, 1).len() == 1;

    let hold = hold();
    hold.add(vec![job("a", 0, &["k"])]);
    let a = picks(&hold, 1).remove(0);
    hold.wake(&limits(&["other"]));
    a.refuse(no());
    assert!(
        !may_ask(&hold),
        "the end of another key's slot is nothing to it"
    );
    hold.wake(&limits(&["k"]));
    let a = picks(&hold, 1).remove(0);
    hold.wake(&limits(&["k"]));
    a.refuse(no());
    assert!(may_ask(&hold));
}

#[tokio::test(start_paused = true)]
async fn a_rescheduled_job_is_scheduled_until_it_may_start() {
    let second = |n: u64| NOW.plus(n * 1_000_000);
    let refuse = |refused, rescheduled| {
        let hold = hold();
        hold.add(vec![job("a", 0, &["k"]), job("b", 0, &["k"])]);
        let held = picks(&hold, 1).remove(0);
        held.refuse(Refusal {
            rescheduled,
            ..refusal(refused, "k")
        });
        hold
    };
    let at = |hold: &Hold, now| {
        let each = ["a", "b"].map(|job| hold.seen(job, now).unwrap().1);
        assert_eq!(each[0], each[1], "the refusal is the group's");
        let scheduled = usize::from(each[0].is_some()) * 2;
        let tallies = hold.tallies(now, |_| true);
        let (held, heads) = (2, 0);
        let tally = Tally {
            held,
            scheduled,
            heads,
        };
        assert_eq!(tallies["q"], tally);
        assert!(hold.tallies(now, |_| false).is_empty());
        each[0]
    };
    let timed = refuse(Refused::Until(second(7)), Some(NOW));
    assert_eq!(at(&timed, NOW), Some(second(7)));
    assert_eq!(at(&timed, second(6)), Some(second(7)));
    assert_eq!(at(&timed, second(7)), None, "its time has come");
    // One visibility (30 s) from the refusal, and one more when that has passed.
    let slot = refuse(Refused::ForSlot(Timestamp(0)), Some(NOW));
    assert_eq!(at(&slot, second(29)), Some(second(30)));
    assert_eq!(at(&slot, second(30)), Some(second(60)));
    slot.wake(&limits(&["k"]));
    assert_eq!(at(&slot, second(31)), None, "a slot is free");
    let waits = refuse(Refused::Until(second(7)), None);
    assert_eq!(at(&waits, NOW), None);
}

/// They are shown some at a time, like the groups of those that are not.
#[tokio::test(start_paused = true)]
async fn what_is_offered_is_shown_with_what_waits() {
    let hold = hold();
    let of_key = |n: u64| if n.is_multiple_of(3) { "a" } else { "b" };
    let jobs = (1..=700).map(|n| claimed_as(n, job(&n.to_string(), 0, &[of_key(n)])));
    hold.add(jobs.collect());
    let offered: Vec<_> = hold.unwanted(Duration::ZERO).drain(..600).collect();
    hold.offer(&offered);
    assert_eq!(hold.untold_offers().len(), 600);
    let held = hold.snapshot(NOW).await;
    let waiting = ["a", "b"].map(|key| {
        let key = Key::new(key).unwrap();
        let groups = held.limited_by(Space::Job, &key);
        groups.map(|group| group.jobs).sum::<usize>()
    });
    assert_eq!((held.jobs, waiting), (700, [233, 467]));
}

/// Jobs of one reply have numbers that follow each other, and one that was taken back has that of the next.
#[tokio::test(start_paused = true)]
async fn claims_of_one_number_are_offers_of_their_own() {
    let hold = hold();
    let claim = |id: &str| claimed_as(7, job(id, 0, &["k"]));
    hold.add(vec![claim("a"), claim("b")]);
    hold.offer(&hold.unwanted(Duration::ZERO));
    let offers = hold.untold_offers();
    assert_eq!(offers.len(), 2);
    hold.forget("a");
    assert_eq!(hold.untold_offers().len(), 1, "the other stays offered");
    hold.end_offers(&[(offers[1].clone(), Gen(9))]);
    assert!(!hold.has_offers());
    assert_eq!(ids(&picks(&hold, 9)), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_offered_is_out_of_reach_until_the_store_says_that_it_is_ours() {
    let hold = hold();
    let claim = |id: &str, generation| claimed_as(generation, job(id, 0, &["k"]));
    hold.add((1..=5).map(|n| claim(&n.to_string(), n)).collect());
    let in_hand = picks(&hold, 1).remove(0);
    assert!(hold.claimed("1").is_none());
    let old = |claimed: &Claimed| claimed.generation <= Gen(4);
    let wanted: Vec<Claimed> = hold.unwanted(Duration::ZERO);
    let wanted: Vec<Claimed> = wanted.into_iter().filter(old).collect();
    assert!(!hold.has_offers());
    for _again in 0..2 {
        hold.offer(&wanted);
        assert_eq!(hold.untold_offers().len(), 3, "one is in hand, one is new");
    }
    assert!(hold.is_offered(&wanted[0]) && !hold.is_offered(&in_hand.claimed));
    let picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["5"]);
    assert_eq!(hold.start(&mut { picked }).len(), 1);
    drop(in_hand);
    assert_eq!(hold.len(), 4);
    // Nobody gets back what the store has not heard of.
    assert!(hold.offers_of(&lane(1), 9).is_empty());
    assert_eq!(hold.untold_offers().len(), 3);
    hold.note_offers_known(&wanted);
    assert!(hold.untold_offers().is_empty());
    assert_eq!(hold.offers_of(&lane(1), 9).len(), 3);
    assert!(hold.offers_of(&lane(2), 9).is_empty());
    // Its claim is known wherever it is but in hand.
    let known = |id: &str| hold.claimed(id).map(|of| of.generation);
    assert_eq!(
        ["1", "2", "5"].map(known),
        [Some(Gen(1)), Some(Gen(2)), None]
    );
    // A cancel finds it, and one that fails changes nothing.
    assert!(hold.hide("2") && hold.hide("3"));
    hold.show("2");
    let picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["1"]);
    assert_eq!(hold.start(&mut { picked }).len(), 1);
    tokio::time::advance(Duration::from_secs(27)).await;
    assert!(hold.lapsed_offers().is_empty());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(hold.lapsed_offers().len(), 3);
    // All may go out again, in their order, but for what is hidden meanwhile.
    let offers = hold.all_offers().into_iter();
    let ours: Vec<_> = offers.map(|of| (of, Gen(9))).collect();
    hold.end_offers(&ours);
    assert!(!hold.has_offers());
    let picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["2", "4"]);
    assert_eq!(picked[0].claimed.generation, Gen(9));
    assert_eq!(hold.start(&mut { picked }).len(), 2);
    hold.show("3");
    let picked = picks(&hold, 9);
    assert_eq!(ids(&picked), ["3"]);
    assert_eq!(hold.start(&mut { picked }).len(), 1);
    // The backend hands one out again.
    hold.add(vec![claim("6", 6)]);
    hold.offer(&hold.unwanted(Duration::ZERO));
    assert!(hold.has_offers());
    hold.add(vec![claim("6", 7)]);
    assert!(!hold.has_offers());
}

#[tokio::test(start_paused = true)]
async fn idle_jobs_go_one_by_one_and_the_last_first() {
    let hold = hold();
    hold.add(vec![
        job("low", -1, &["k"]),
        job("a", 0, &["k"]),
        job("b", 0, &["k"]),
        job("c", 0, &["k"]),
    ]);
    assert!(hold.pick_last(|_| false, &HashSet::new()).is_none());
    let stay = HashSet::from([Arc::from("c")]);
    let low = hold.pick_last(|_| true, &stay).unwrap();
    let last = hold.pick_last(|_| true, &stay).unwrap();
    assert_eq!((&*low.claimed.job, &*last.claimed.job), ("low", "b"));
    // One that is handed out to us again meanwhile is another claim.
    hold.add(vec![claimed_as(2, job("low", -1, &["k"]))]);
    drop((low, last));
    let order: Vec<Pick> = (0..4)
        .filter_map(|_| hold.pick_last(|_| true, &HashSet::new()))
        .collect();
    assert_eq!(ids(&order), ["low", "c", "b", "a"]);
    assert_eq!(order[0].claimed.generation, Gen(2));
}

#[test]
fn of_two_words_of_the_backend_the_later_counts() {
    let (hold, second) = (hold(), Duration::from_secs(1));
    hold.add(vec![job("a", 0, &["k"])]);
    let proof = || hold.state().find("a").unwrap().proof;
    let then = proof().at;
    hold.proved("a", then + second, second);
    // Sent before that one, and answered after it.
    hold.proved("a", then, 30 * second);
    let known = proof();
    assert_eq!((known.at, known.granted), (then + second, second));
    // Nothing that was said before a doubt counts against what is said after it.
    let mut picked = picks(&hold, 1);
    picked[0].doubt();
    drop(picked);
    hold.proved("a", then, 30 * second);
    assert_eq!(proof().granted, 30 * second);
}

#[tokio::test(start_paused = true)]
async fn only_who_has_next_to_nothing_shows_that_places_are_lacking() {
    let (hold, idle) = (hold(), Duration::from_secs(10));
    let look = |scope| hold.places(&lane(scope), most(4, 1 << 20));
    hold.add(["a", "b", "c"].map(|id| job(id, 0, &["k"])).to_vec());
    assert_eq!(look(1), Lookahead::Full);
    assert!(!hold.lacked_places(idle), "it has its share");
    for scope in 2..=3 {
        assert_eq!(look(scope), Lookahead::Free(1));
        hold.add(vec![of_scope(scope, job(&scope.to_string(), 0, &["k"]))]);
    }
    assert_eq!(look(4), Lookahead::Full);
    assert!(hold.lacked_places(idle));
    tokio::time::advance(idle).await;
    assert!(!hold.lacked_places(idle));
}

#[tokio::test(start_paused = true)]
async fn what_no_worker_asks_for_is_not_due_where_that_matters() {
    let hold = hold();
    let ask = |scope| drop(visit(&hold, scope, &gate(&[])));
    for scope in 1..=3 {
        hold.add(vec![of_scope(scope, job(&scope.to_string(), 0, &["k"]))]);
        ask(scope);
    }
    let since = Instant::now();
    tokio::time::advance(Duration::from_secs(10)).await;
    ask(2);
    let _waits = stand(&hold, 3, &gate(&[]));
    assert_eq!(due(&hold, Some(since)), ["2", "3"]);
    // They are looked at again soon.
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(due(&hold, None), ["1", "2", "3"]);
    assert!(hold.lapsed(since).is_empty(), "its claim lasts");
    tokio::time::advance(Duration::from_millis(17_500)).await;
    assert_eq!(hold.lapsed(since).len(), 1);
}

/// The jobs whose claims are due, all of them.
fn due(hold: &Hold, since: Option<Instant>) -> Vec<String> {
    let found = std::iter::from_fn(|| hold.due(since, 2)).flatten();
    let mut jobs: Vec<String> = found.map(|(of, _)| of.job.to_string()).collect();
    jobs.sort();
    jobs
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_due_by_the_last_word_on_it() {
    let (hold, none) = (hold(), Vec::<String>::new());
    let seconds = |n| tokio::time::advance(Duration::from_secs(n));
    hold.add(["a", "b", "c"].map(|id| job(id, 0, &["k"])).to_vec());
    assert_eq!(due(&hold, None), none);
    seconds(9).await;
    hold.proved("b", Instant::now(), Duration::from_secs(30));
    seconds(1).await;
    assert_eq!(due(&hold, None), ["a", "c"], "a third is over, but for b");
    assert_eq!(due(&hold, None), none, "they have been told");
    // What is in hand is not kept, and what was doubted there is due at once.
    let mut picked = picks(&hold, 1);
    assert_eq!(ids(&picked), ["a"]);
    seconds(1).await;
    assert_eq!(due(&hold, None), ["c"]);
    picked[0].doubt();
    drop(picked);
    assert_eq!(due(&hold, None), ["a"]);
    // One that was handed out again meanwhile has the time of its new claim.
    hold.add(vec![job("c", 0, &["k"])]);
    hold.forget("a");
    seconds(8).await;
    assert_eq!(due(&hold, None), ["b"]);
    let of_b = Claimed::from(Claim::of("b"));
    hold.due_still([of_b].into_iter());
    assert_eq!(due(&hold, None), ["b"]);
    seconds(2).await;
    assert_eq!(due(&hold, None), ["b", "c"]);
    // One that is hidden is kept as well.
    assert!(hold.hide("c"));
    seconds(1).await;
    assert_eq!(due(&hold, None), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_ours_again_is_due_at_once() {
    let hold = hold();
    hold.add(vec![job("a", 0, &["k"])]);
    hold.offer(&hold.unwanted(Duration::ZERO));
    let offers = hold.untold_offers().into_iter();
    assert!(due(&hold, None).is_empty());
    let ours: Vec<_> = offers.map(|of| (of, Gen(9))).collect();
    hold.end_offers(&ours);
    assert_eq!(due(&hold, None), ["a"]);
}

/// A hold whose jobs go out at once, and one that nobody asks what is due, remember nothing of them.
#[tokio::test(start_paused = true)]
async fn the_times_of_jobs_that_are_gone_are_forgotten() {
    let hold = hold();
    hold.add(vec![job("stays", 0, &["k"])]);
    for nth in 0..10_000 {
        let id = nth.to_string();
        hold.add(vec![job(&id, 0, &["k"])]);
        hold.forget(&id);
    }
    assert!(hold.state().due.len() < 100, "{}", hold.state().due.len());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(due(&hold, None), ["stays"]);
}

/// Each look at what is due stands in the way of requests.
#[tokio::test(start_paused = true)]
async fn what_is_due_is_found_among_many() {
    let hold = hold();
    let names: Vec<String> = (0..30_000).map(|n| n.to_string()).collect();
    hold.add(names.iter().map(|id| job(id, 0, &[id.as_str()])).collect());
    let begun = real_now();
    for _ in 0..20_000 {
        assert!(hold.due(None, 256).is_none());
        hold.tidy(Instant::now());
        assert_eq!(hold.promise(&lane(1), &gate(&[]), NOW), Promise::default());
        assert!(hold.is_full("q", most(1, 1 << 40)));
    }
    // A walk over all of them for each look takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(10));
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(hold.due(None, 256).map(|due| due.len()), Some(256));
    assert_eq!(due(&hold, None).len(), 30_000 - 256);
}

#[tokio::test(start_paused = true)]
async fn each_claim_is_named_once_and_picked_ones_by_their_own_question() {
    let hold = hold();
    let named = |hold: &Arc<Hold>| {
        let mut unnamed = hold.unnamed();
        let named: Vec<String> = unnamed.claims.iter().map(|of| of.job.to_string()).collect();
        unnamed.claims.clear();
        named
    };
    assert!(named(&hold).is_empty());
    let numbered = |id: &str, generation| claimed_as(generation, job(id, 0, &["k"]));
    hold.add((1..=4).map(|n| numbered(&n.to_string(), n)).collect());
    hold.forget("2");
    let picked = picks(&hold, 1);
    assert_eq!(
        (ids(&picked), named(&hold)),
        (vec!["1"], vec!["3".into(), "4".into()])
    );
    drop(picked);
    assert_eq!(named(&hold), ["1"], "it was not asked for");
    assert!(named(&hold).is_empty(), "once");
    // All of them once more, but for what is in hand.
    let mut picked = picks(&hold, 1);
    hold.unname_all();
    assert_eq!(named(&hold), ["3", "4"]);
    picked[0].named = true;
    drop(picked);
    assert!(named(&hold).is_empty(), "once");
    // The store heard of the first of them only.
    hold.unname_all();
    let mut unnamed = hold.unnamed();
    assert!(named(&hold).is_empty(), "they are being named");
    unnamed.claims.remove(0);
    hold.forget("4");
    hold.add(vec![numbered("4", 14)]);
    drop(unnamed);
    assert_eq!(named(&hold), ["3", "4"]);
    // What is ours again was taken over, and is named under its new number.
    hold.offer(&hold.unwanted(Duration::ZERO));
    let offers = hold.untold_offers();
    assert_eq!(offers.len(), 3);
    assert!(named(&hold).is_empty());
    assert!(offers.iter().all(|of| hold.is_offered(of)));
    let ours: Vec<_> = offers.into_iter().zip((20..).map(Gen)).collect();
    hold.end_offers(&ours);
    let mut unnamed = hold.unnamed();
    let numbers: Vec<Gen> = unnamed.claims.iter().map(|of| of.generation).collect();
    unnamed.claims.clear();
    assert_eq!(numbers, [Gen(20), Gen(21), Gen(22)]);
    // The backend gives one again.
    hold.add(vec![numbered("3", 29)]);
    assert_eq!(named(&hold), ["3"]);
    // Of what has all gone out nothing is kept.
    hold.add(vec![numbered("5", 5)]);
    for id in ["1", "2", "3", "4", "5"] {
        hold.forget(id);
    }
    assert!(hold.is_empty());
    assert!(named(&hold).is_empty());
    assert!(hold.state().unnamed.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_key_is_forgotten_after_a_second() {
    let hold = hold();
    hold.add(vec![job("a", 0, &["k"])]);
    for refused in [
        Refused::Paused,
        Refused::ForSlot(NOW),
        Refused::Until(NOW.plus(9_000_000)),
    ] {
        let pick = hold
            .pick(&lane(1), ask(1, MANY, 0), NOW.plus(2_000_000))
            .remove(0);
        pick.refuse(refusal(refused, "k"));
        let may_ask = |after| hold.look(&lane(1), MANY, NOW.plus(after)).askable == 1;
        assert!(!may_ask(999_999) && may_ask(1_000_000), "{refused:?}");
    }
}

/// A group for each of tens of thousands of keys: those that wait are not looked at for each question, and the more
/// there are the later each is asked again.
#[tokio::test(start_paused = true)]
async fn many_keys_are_asked_again_one_after_the_other() {
    let hold = hold();
    let names: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    hold.add(names.iter().map(|id| job(id, 0, &[id.as_str()])).collect());
    for pick in picks(&hold, 1) {
        pick.refuse(refusal(Refused::ForSlot(NOW), "k"));
    }
    let askable = |after| hold.look(&lane(1), MANY, NOW.plus(after)).askable;
    assert_eq!((askable(19_999_999), askable(20_000_000)), (0, 20_000));
    let begun = real_now();
    for _ in 0..20_000 {
        assert!(hold.look(&lane(1), MANY, NOW).prospect.slot.is_some());
        assert!(hold.pick(&lane(1), ask(1, 2, 0), NOW).is_empty());
    }
    // A walk over all of them for each question takes minutes.
    assert!(begun.elapsed() < Duration::from_secs(10));
    hold.wake(&limits(&["7"]));
    assert_eq!(ids(&picks(&hold, 1)), ["7"]);
}

/// A job that takes a group's share of key `k`, by weight.
fn sharing(id: &str, group: &str, weight: u32) -> Held {
    let limited = limits(&["k"]);
    let limited = limited.iter().map(|one| Limited {
        share: Some(Share {
            group: Arc::from(group),
            weight: weight.try_into().unwrap(),
        }),
        ..one.clone()
    });
    held_of(Claim {
        claimed_at: NOW,
        limited: limited.collect(),
        ..Claim::of(id)
    })
}

/// Of groups that share a key the one gives the next job whose is done first, and each gives by its weight; what
/// refuses one refuses all.
#[tokio::test(start_paused = true)]
async fn groups_with_a_share_leave_by_what_they_were_served() {
    let hold = Arc::new(Hold::default());
    let all = [("a", 6), ("b", 6)].into_iter().flat_map(|(group, jobs)| {
        (0..jobs).map(move |nth| {
            sharing(
                &format!("{group}{nth}"),
                group,
                1 + u32::from(group == "b") * 2,
            )
        })
    });
    hold.add(all.collect());
    let lane = sharing("x", "a", 1).lane();
    let served = |group: &str, served| Served {
        space: Space::Job,
        key: Key::new("k").unwrap(),
        group: group.into(),
        served,
        virtual_time: 0,
    };
    hold.served(&[served("a", 3_000), served("b", 2_500)], NOW);
    assert_eq!(hold.count_before("a0", |_| true), 4, "b0 to b3");
    let picks = hold.pick(&lane, ask(8, 8, 0), NOW);
    let names: Vec<_> = picks.iter().map(|pick| &*pick.claimed.job).collect();
    assert_eq!(names, ["b0", "b1", "b2", "b3", "a0", "b4", "b5", "a1"]);
    drop(picks);
    let mut picks = hold.pick(&lane, ask(1, 1, 0), NOW);
    picks.pop().unwrap().refuse(Refusal {
        refused: Refused::Until(NOW.plus(400_000)),
        at: NOW,
        by: None,
        rescheduled: None,
    });
    assert!(
        hold.pick(&lane, ask(9, 9, 0), NOW).is_empty(),
        "neither group"
    );
    assert_eq!(hold.pick(&lane, ask(1, 9, 0), NOW.plus(400_000)).len(), 2);
}

/// So many jobs of so many keys, and the least time in which one of them was looked after a hundred times.
fn time_of_each(jobs: usize, keys: usize) -> Duration {
    let hold = hold();
    let key = |nth: usize| format!("k{}", nth % keys);
    let held = |nth: usize| job(&nth.to_string(), 0, &[&key(nth)]);
    hold.add((0..jobs).map(held).collect());
    let mut unnamed = hold.unnamed();
    assert_eq!(unnamed.claims.len(), jobs);
    unnamed.claims.clear();
    let some = jobs / 4 * 3;
    let (name, freed) = (some.to_string(), limits(&[&key(some)]));
    let now = Instant::now();
    let look_after = || {
        let begun = real_now();
        for _ in 0..100 {
            hold.proved(&name, now, Duration::from_secs(30));
            assert!(hold.seen(&name, NOW).is_some() && hold.claimed(&name).is_some());
            assert!(hold.unnamed().claims.is_empty());
            hold.wake(&freed);
            hold.places(&lane(1), most(jobs, usize::MAX));
        }
        begun.elapsed()
    };
    (0..9).map(|_| look_after()).min().unwrap()
}

/// The time for one job does not grow with the number of jobs that are held: whoever looks for it among all others
/// takes a hundred times as long.
#[tokio::test(start_paused = true)]
async fn a_job_is_found_as_soon_among_many() {
    for of_keys in [1, 100, 30_000] {
        let few = time_of_each(300, of_keys.min(300));
        let many = time_of_each(30_000, of_keys);
        assert!(
            many < 20 * few,
            "{of_keys} keys: {few:?}, and {many:?} among many"
        );
    }
}

/// A slot says no time, so each of its refusals is like the last: one is believed for a second all the same, each time.
#[tokio::test(start_paused = true)]
async fn who_is_refused_once_more_waits_once_more() {
    let hold = hold();
    hold.add(vec![job("a", 0, &["k"])]);
    let refuse = |at: Timestamp| {
        let held = hold.pick(&lane(1), ask(1, MANY, 0), at).remove(0);
        held.refuse(Refusal {
            at,
            ..refusal(Refused::ForSlot(Timestamp(0)), "k")
        });
        assert!(
            hold.pick(&lane(1), ask(1, MANY, 0), at).is_empty(),
            "{at:?}"
        );
    };
    for nth in 0..5 {
        refuse(NOW.plus(nth * 1_100_000));
    }
}

/// A worker that waits for jobs of a lane wants them, however long ago it asked.
#[tokio::test(start_paused = true)]
async fn what_a_worker_waits_for_is_wanted() {
    let hold = hold();
    hold.add(vec![job("a", 0, &["k"])]);
    let waits = stand(&hold, 1, &gate(&["k"]));
    tokio::time::advance(Duration::from_secs(30)).await;
    let idle = Duration::from_secs(10);
    let goes_back = |hold: &Arc<Hold>| {
        let is_idle = |asked: Instant| asked.elapsed() >= idle;
        hold.pick_last(is_idle, &Default::default()).is_some()
    };
    assert!(hold.unwanted(idle).is_empty() && !goes_back(&hold));
    drop(waits);
    assert_eq!(hold.unwanted(idle).len(), 1);
    assert!(goes_back(&hold));
}
