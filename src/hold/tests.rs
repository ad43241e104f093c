use std::collections::HashSet;

use super::*;
use crate::limit::{Key, Limited, Limits, OnLimit, Space};
use crate::store::{Claim, Gen};

fn limits(keys: &[&str]) -> Arc<[Limited]> {
    let limited = keys.iter().map(|key| Limited {
        space: Space::Job,
        key: Key::new(key).unwrap(),
        limits: Limits {
            concurrency: Some(1),
            ..Limits::default()
        },
        on_limit: OnLimit::Wait,
        policy: Arc::from(*key),
    });
    limited.collect()
}

fn gate(keys: &[&str]) -> Gate {
    Gate {
        limited: limits(keys),
        ..Gate::default()
    }
}

pub(super) fn lane(scope: u64) -> Lane {
    Lane {
        scope,
        queue: Arc::from("q"),
    }
}

/// A claimed job of scope 1 in queue `q`.
pub(super) fn job(id: &str, priority: i32, keys: &[&str]) -> Held {
    Held::of(Claim {
        priority,
        claimed_at: NOW,
        limited: limits(keys),
        ..Claim::of(id)
    })
}

pub(super) fn ids(picked: &[Held]) -> Vec<&str> {
    picked.iter().map(|held| &*held.claimed.job).collect()
}

fn put_all_back(hold: &Hold, picked: Vec<Held>) {
    picked
        .into_iter()
        .rev()
        .for_each(|held| hold.put_back(held, None));
}

/// Whether a job may go out.
fn starts(hold: &Hold, held: &Held) -> bool {
    hold.started(std::iter::once(held)).is_empty()
}

/// A refusal that nothing has overtaken.
fn refusal(refused: Refused, policy: Arc<str>) -> Refusal {
    Refusal {
        refused,
        asked: Wakes(u64::MAX),
        policy,
        rescheduled: None,
    }
}

const NOW: Timestamp = Timestamp(1_000_000);

#[tokio::test(start_paused = true)]
async fn what_is_seen_without_the_lock_is_what_is_held() {
    let hold = Hold::default();
    let one = || vec![job("a", 0, &["k"])];
    let sees = |any: bool| {
        assert_eq!(hold.is_empty(), !any);
        assert_eq!((hold.has("a"), hold.holds(&lane(1))), (any, any));
        assert_eq!(hold.holds_none([lane(1)].iter()), !any);
    };
    sees(false);
    assert!(!hold.hide("a") && hold.forget("a").is_none());
    hold.add(one());
    sees(true);
    assert!(hold.hide("a"));
    hold.show("a");
    let picked = hold.pick(&lane(1), 1, NOW);
    sees(true);
    assert!(starts(&hold, &picked[0]));
    sees(false);
    hold.undo(picked.into_iter().next().unwrap());
    sees(true);
    assert!(hold.forget("a").is_some());
    sees(false);
    hold.add(one());
    hold.clear();
    sees(false);
}

#[tokio::test(start_paused = true)]
async fn leaves_by_priority_then_turn_then_age() {
    let hold = Hold::default();
    hold.add(vec![
        job("a1", 0, &["a"]),
        job("a2", 0, &["a"]),
        job("b1", 0, &["b"]),
        job("high", 5, &["a"]),
        job("a3", 0, &["a"]),
    ]);
    let picked = hold.pick(&lane(1), 10, NOW);
    assert_eq!(ids(&picked), ["high", "a1", "b1", "a2", "a3"]);
    put_all_back(&hold, picked);
    assert_eq!(
        ids(&hold.pick(&lane(1), 10, NOW)),
        ["high", "a1", "b1", "a2", "a3"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_that_started_one_waits_for_the_others_turns() {
    let hold = Hold::default();
    hold.add(vec![
        job("a1", 0, &["a"]),
        job("a2", 0, &["a"]),
        job("b1", 0, &["b"]),
        job("b2", 0, &["b"]),
    ]);
    let mut order = Vec::new();
    for _ in 0..4 {
        let mut picked = hold.pick(&lane(1), 1, NOW);
        let first = picked.remove(0);
        put_all_back(&hold, picked);
        assert!(starts(&hold, &first));
        order.push(first.claimed.job.to_string());
    }
    assert_eq!(order, ["a1", "b1", "a2", "b2"]);
    assert!(hold.is_empty() && hold.bytes() == 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_group_is_asked_again_only_in_time_or_when_a_slot_ends() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"]), job("b1", 0, &["b"])]);
    let policy = || Arc::from("a");
    for held in hold.pick(&lane(1), 1, NOW).into_iter().rev() {
        let refused = if &*held.claimed.job == "a1" {
            Refused::ForSlot(Timestamp(0))
        } else {
            Refused::Until(NOW.plus(50_000))
        };
        hold.put_back(held, Some(refusal(refused, policy())));
    }
    assert!(hold.pick(&lane(1), 1, NOW.plus(44_999)).is_empty());
    let prospect = hold.prospect(&lane(1)).0;
    assert_eq!(prospect.at, Some(NOW.plus(50_000)));
    assert!(
        prospect.slot.is_some(),
        "the far time does not hide the slot"
    );
    let early = hold.pick(&lane(1), 1, NOW.plus(45_000));
    assert_eq!(ids(&early), ["b1"]);
    put_all_back(&hold, early);
    assert_eq!(hold.prospect(&lane(1)).1.as_deref(), Some("a"));
    hold.wake(&limits(&["a"]));
    assert_eq!(ids(&hold.pick(&lane(1), 1, NOW)), ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_refused_while_a_job_that_only_it_limits_is() {
    let (hold, gate) = (Hold::default(), gate(&["q"]));
    let refused = |now| hold.is_refused(&lane(1), &gate, now);
    assert!(!refused(NOW), "nothing is held");
    hold.add(vec![job("a1", 0, &["q"])]);
    assert!(!refused(NOW), "it was not asked for yet");
    let refuse = || {
        let held = hold.pick(&lane(1), 1, NOW).remove(0);
        let until = Refused::Until(NOW.plus(50_000));
        hold.put_back(held, Some(refusal(until, Arc::from("q"))));
    };
    refuse();
    assert!(refused(NOW.plus(44_999)));
    assert!(!hold.is_refused(&lane(2), &gate, NOW), "another's");
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
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"])]);
    let held = hold.pick(&lane(1), 1, NOW).remove(0);
    hold.put_back(held, Some(refusal(Refused::Paused, Arc::from("a"))));
    assert_eq!(hold.prospect(&lane(1)).0, Prospect::default());
    // The key had no slots while the store was lost: nothing ends that would say so.
    hold.ask_all();
    assert_eq!(ids(&hold.pick(&lane(1), 1, NOW)), ["a1"]);
}

#[tokio::test(start_paused = true)]
async fn scopes_do_not_meet() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"])]);
    assert!(hold.pick(&lane(2), 1, NOW).is_empty());
    assert!(!hold.holds(&lane(2)) && hold.holds(&lane(1)));
}

#[tokio::test(start_paused = true)]
async fn a_hidden_job_does_not_leave_wherever_it_was() {
    let hold = Hold::default();
    hold.add(vec![job("waiting", 0, &["a"]), job("in hand", 0, &["b"])]);
    assert!(hold.hide("waiting"));
    let mut picked = hold.pick(&lane(1), 1, NOW);
    assert_eq!(ids(&picked), ["in hand"]);
    assert!(hold.hide("in hand"));
    let held = picked.remove(0);
    assert!(!starts(&hold, &held), "a cancel came while it was in hand");
    hold.put_back(held, None);
    assert!(hold.pick(&lane(1), 1, NOW).is_empty());
    assert_eq!(hold.len(), 2);
    hold.show("in hand");
    hold.show("waiting");
    assert_eq!(ids(&hold.pick(&lane(1), 1, NOW)), ["waiting", "in hand"]);
    assert!(!hold.hide("unknown"));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_again_replaces_the_earlier_claim() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"])]);
    let first = hold.pick(&lane(1), 1, NOW).remove(0);
    hold.add(vec![job("a1", 0, &["a"])]);
    hold.put_back(first, None);
    assert_eq!(hold.len(), 1);
    let mut picked = hold.pick(&lane(1), 5, NOW);
    assert_eq!(ids(&picked), ["a1"], "the earlier claim is void");
    // So too while the earlier one waits, and it leaves nothing behind.
    let size = hold.bytes();
    hold.put_back(picked.remove(0), None);
    hold.add(vec![job("a1", 0, &["a"])]);
    assert_eq!((hold.len(), hold.bytes()), (1, size));
    assert_eq!(ids(&hold.pick(&lane(1), 5, NOW)), ["a1"]);
    hold.forget("a1");
    assert!(!hold.holds(&lane(1)));
}

#[tokio::test(start_paused = true)]
async fn a_hand_out_undone_after_the_job_came_again_is_void() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"])]);
    let first = hold.pick(&lane(1), 1, NOW).remove(0);
    assert!(starts(&hold, &first));
    let mut again = job("a1", 0, &["a"]);
    again.claimed.generation = Gen(2);
    hold.add(vec![again]);
    hold.undo(first);
    let picked = hold.pick(&lane(1), 5, NOW);
    assert_eq!(ids(&picked), ["a1"]);
    assert_eq!(picked[0].claimed.generation, Gen(2));
    assert!(hold.has_claim("a1", Gen(2)) && !hold.has_claim("a1", Gen(1)));
}

#[tokio::test(start_paused = true)]
async fn fresh_claims_go_out_unheld_only_where_nothing_is_before_them() {
    let hold = Hold::default();
    hold.fetched(&lane(1), &Gate::default(), Instant::now());
    hold.fetched(&lane(2), &Gate::default(), Instant::now());
    let fresh = |id| [job(id, 0, &["a"])];
    assert!(hold.is_first(&lane(1), &fresh("a")));
    hold.add(vec![job("a", 0, &["a"])]);
    assert!(!hold.is_first(&lane(1), &fresh("b")), "one waits");
    assert!(hold.is_first(&lane(2), &fresh("b")));
    assert!(
        !hold.is_first(&lane(2), &fresh("a")),
        "it is held elsewhere"
    );
}

#[tokio::test(start_paused = true)]
async fn an_undone_hand_out_is_first_again() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"]), job("a2", 0, &["a"])]);
    let mut picked = hold.pick(&lane(1), 1, NOW);
    let first = picked.remove(0);
    assert!(starts(&hold, &first));
    hold.undo(first);
    assert_eq!(ids(&hold.pick(&lane(1), 2, NOW)), ["a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn lookahead_counts_what_is_held_and_what_is_on_its_way() {
    let hold = Hold::default();
    let lane = lane(1);
    hold.add(vec![job("a1", 0, &["a"])]);
    assert_eq!(hold.lookahead(&lane, 4, 1 << 20), Lookahead::Free(3));
    hold.asking(&lane, 3, Instant::now());
    assert_eq!(hold.lookahead(&lane, 4, 1 << 20), Lookahead::Soon);
    hold.asked(&lane, 3, false, Instant::now());
    assert_eq!(hold.lookahead(&lane, 4, 1 << 20), Lookahead::Free(3));
    assert_eq!(hold.lookahead(&lane, 1, 1 << 20), Lookahead::Full);
    let full = hold.lookahead(&lane, 4, 1);
    assert_eq!(full, Lookahead::Full, "bytes count too");
    // As many as should fit, by the size of those that are there, and one where that is unsure.
    let each = hold.bytes();
    assert_eq!(hold.lookahead(&lane, 9, each * 6 + 1), Lookahead::Free(5));
    assert_eq!(hold.lookahead(&lane, 9, each + 1), Lookahead::Free(1));
    assert_eq!(hold.lookahead(&lane, 9, each), Lookahead::Full);
}

/// How many places of a hold for `max` jobs each of these lanes gets, one after the other, when it takes all
/// that there are for it.
fn given(max: usize, lanes: u64) -> Vec<usize> {
    let hold = Hold::default();
    let take = |scope: u64| {
        let mut taken = 0;
        while let Lookahead::Free(n) = hold.lookahead(&lane(scope), max, 64 << 20) {
            let jobs = (0..n).map(|nth| {
                let mut held = job(&format!("{scope}:{}", taken + nth), 0, &["a"]);
                held.claimed.scope = scope;
                held
            });
            hold.add(jobs.collect());
            taken += n;
        }
        taken
    };
    (1..=lanes).map(take).collect()
}

#[tokio::test(start_paused = true)]
async fn a_full_hold_has_places_for_other_lanes() {
    assert_eq!(given(32, 8), [32, 2, 2, 1, 1, 1, 1, 0]);
    assert_eq!(given(2, 3), [2, 1, 0]);
    assert_eq!(given(1, 3), [1, 1, 0]);
    let many = given(1024, 19);
    assert_eq!(many[..4], [1024, 64, 48, 36]);
    assert_eq!(many[17..], [1, 0]);
    assert_eq!(many.iter().sum::<usize>(), 1280);
}

#[tokio::test(start_paused = true)]
async fn what_is_kept_for_others_is_not_given_twice() {
    let (hold, now) = (Hold::default(), Instant::now());
    let lookahead = |scope| hold.lookahead(&lane(scope), 8, 1 << 20);
    hold.add((0..8).map(|n| job(&n.to_string(), 0, &["a"])).collect());
    assert_eq!(lookahead(1), Lookahead::Full);
    assert_eq!(lookahead(2), Lookahead::Free(1));
    // Both places are asked for.
    for scope in [2, 3] {
        hold.asking(&lane(scope), 1, now);
    }
    assert_eq!(lookahead(2), Lookahead::Soon);
    assert_eq!(lookahead(4), Lookahead::Soon);
    assert_eq!(lookahead(1), Lookahead::Full, "nothing of that is for it");
    hold.asked(&lane(2), 1, false, now);
    assert_eq!(lookahead(4), Lookahead::Free(1));
}

#[tokio::test(start_paused = true)]
async fn a_hold_full_of_bytes_has_places_for_other_lanes() {
    let hold = Hold::default();
    hold.add((0..8).map(|n| job(&n.to_string(), 0, &["a"])).collect());
    let (eight, lookahead) = (hold.bytes(), |scope| {
        let hold = &hold;
        move |bytes| hold.lookahead(&lane(scope), 100, bytes)
    });
    assert_eq!(lookahead(1)(eight), Lookahead::Full);
    assert_eq!(lookahead(2)(eight), Lookahead::Free(1));
    assert_eq!(lookahead(2)(eight / 2), Lookahead::Full);
}

#[tokio::test(start_paused = true)]
async fn lower_priorities_wait_for_the_backends_word() {
    let hold = Hold::default();
    hold.add(vec![job("low", 0, &["a"])]);
    assert!(!hold.outranked(&lane(1)), "one priority only was seen");
    hold.add(vec![job("high", 5, &["b"])]);
    assert!(!hold.outranked(&lane(1)));
    hold.forget("high");
    assert!(hold.outranked(&lane(1)));
}

#[tokio::test(start_paused = true)]
async fn the_line_wakes_one_and_then_the_next() {
    let hold = Hold::default();
    let lanes = [lane(1)];
    let first = hold.stand(&lanes, Instant::now());
    let second = hold.stand(&lanes, Instant::now());
    assert!(hold.is_first_in_line(&lanes[0], &first));
    assert!(!hold.is_first_in_line(&lanes[0], &second));
    let second_woken = second.woken();
    tokio::pin!(second_woken);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), &mut second_woken)
            .await
            .is_err()
    );
    hold.leave(&lanes, &first);
    tokio::time::timeout(Duration::from_secs(1), second_woken)
        .await
        .expect("its turn");
    assert!(hold.is_first_in_line(&lanes[0], &second));
}

#[tokio::test(start_paused = true)]
async fn what_is_empty_and_idle_is_forgotten() {
    let hold = Hold::default();
    hold.fetched(&lane(1), &Gate::default(), Instant::now());
    hold.add(vec![job("a1", 0, &["a"])]);
    tokio::time::advance(Duration::from_secs(100)).await;
    hold.tidy(Instant::now());
    assert!(hold.holds(&lane(1)), "not while a job waits");
    hold.forget("a1");
    hold.tidy(Instant::now());
    assert!(hold.state().queues.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_tidied_is_in_nobodys_way() {
    let (hold, now) = (Hold::default(), Instant::now());
    hold.add(vec![job("a1", 0, &["a"]), job("b1", 0, &["b"])]);
    hold.asking(&lane(2), 1, now);
    hold.fetched(&lane(3), &Gate::default(), now);
    let waiter = hold.stand(&[lane(4)], now);
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
    assert_eq!(ids(&hold.pick(&lane(1), 9, NOW)), ["b1"]);
    hold.asked(&lane(2), 1, true, now);
    hold.leave(&[lane(4)], &waiter);
    hold.forget("b1");
    hold.tidy(Instant::now());
    assert_eq!(lanes(&hold), 0);
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_woken_by_what_may_help() {
    let (hold, now) = (Hold::default(), Instant::now());
    hold.fetched(&lane(1), &gate(&["g"]), now);
    let lanes = [lane(1)];
    let waiter = hold.stand(&lanes, now);
    let woken = async || {
        tokio::time::timeout(Duration::ZERO, waiter.woken())
            .await
            .is_ok()
    };
    assert!(!woken().await);
    hold.wake(&limits(&["other"]));
    assert!(!woken().await, "nothing waits for it");
    hold.wake(&limits(&["g"]));
    assert!(woken().await, "the gate's");
    let key = |name| Key::new(name).unwrap();
    hold.wake_keys(&[(Space::Queue, key("q"))]);
    assert!(woken().await, "the queue's own");
    hold.nudge(&lanes[0]);
    assert!(!woken().await, "nothing is held");
    hold.wake(&limits(&["q"]));
    assert!(!woken().await, "a job's key of that name");
    let behind = hold.stand(&lanes, now);
    hold.leave(&lanes, &behind);
    assert!(!woken().await, "one behind has left");
    hold.add(vec![job("a", 0, &["k"])]);
    assert!(!woken().await, "who claimed asks next");
    hold.nudge(&lanes[0]);
    assert!(woken().await, "it may be asked for");
    hold.wake(&limits(&["k"]));
    assert!(woken().await, "a held job's");
    let refuse = || {
        let held = hold.pick(&lanes[0], 1, NOW).remove(0);
        let refused = refusal(Refused::ForSlot(Timestamp(0)), Arc::from("k"));
        hold.put_back(held, Some(refused));
    };
    refuse();
    hold.nudge(&lanes[0]);
    hold.wake_keys(&[(Space::Queue, key("k"))]);
    assert!(!woken().await, "a queue of that name");
    assert!(hold.pick(&lanes[0], 1, NOW).is_empty());
    hold.wake_keys(&[(Space::Queue, key("q"))]);
    assert!(woken().await);
    refuse();
    hold.ask_all();
    assert!(woken().await);
    let held = hold.pick(&lanes[0], 1, NOW).remove(0);
    assert!(starts(&hold, &held));
    hold.undo(held);
    assert!(woken().await, "it may start here");
    hold.set_aside(|_| true);
    assert!(!woken().await);
    hold.set_aside(|_| false);
    assert!(woken().await, "it may start again");
    hold.wake_all();
    assert!(woken().await);
    hold.clear();
    assert!(woken().await);
}

#[tokio::test(start_paused = true)]
async fn who_found_the_hold_full_of_what_is_on_its_way_is_woken_when_it_comes() {
    let (hold, now) = (Hold::default(), Instant::now());
    let waiter = hold.stand(&[lane(1)], now);
    let woken = async || {
        let woken = tokio::time::timeout(Duration::ZERO, waiter.woken());
        woken.await.is_ok()
    };
    hold.asking(&lane(2), 5, now);
    hold.asked(&lane(2), 1, true, now);
    assert!(!woken().await, "it found nothing yet");
    assert_eq!(hold.lookahead(&lane(1), 4, 1 << 20), Lookahead::Free(1));
    hold.asking(&lane(3), 1, now);
    assert_eq!(hold.lookahead(&lane(1), 4, 1 << 20), Lookahead::Soon);
    assert!(hold.more(&lane(2)));
    hold.asked(&lane(2), 4, false, now);
    assert!(woken().await && !hold.more(&lane(2)));
    hold.asked(&lane(3), 1, false, now);
    assert!(!woken().await, "once");
    assert_eq!(hold.of_queue("q"), (0, 0));
    hold.taking_over(&lane(2), now);
    assert_eq!(hold.of_queue("q"), (0, 1));
    assert_eq!(hold.promised("q", &Gate::default()), 1);
    assert_eq!(hold.lookahead(&lane(1), 4, 1 << 20), Lookahead::Free(3));
    hold.taken_over(&lane(2), now);
    assert_eq!(hold.of_queue("q"), (0, 0));
    assert_eq!(hold.lookahead(&lane(1), 4, 1 << 20), Lookahead::Free(4));
    hold.add(vec![job("a", 0, &["k"])]);
    assert_eq!(hold.of_queue("q"), (1, 0));
    assert_eq!(hold.counts()["q"], 1);
}

#[tokio::test(start_paused = true)]
async fn claims_of_one_id_are_proven_together_and_end_one_by_one() {
    let hold = Hold::default();
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
        (now + visibility).duration_since(deadline(now, visibility))
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
    let hold = Hold::default();
    let mut jobs = vec![
        job("a1", 0, &["a"]),
        job("b1", 0, &["b"]),
        job("a2", 0, &["a"]),
        job("b2", 0, &["b"]),
    ];
    for (nth, job) in jobs.iter_mut().enumerate() {
        job.claimed.generation = Gen(nth as u64);
    }
    hold.add(jobs);
    // Both keys are shut.
    for held in hold.pick(&lane(1), 1, NOW) {
        hold.put_back(
            held,
            Some(refusal(Refused::ForSlot(Timestamp(0)), Arc::from("p"))),
        );
    }
    assert!(hold.pick(&lane(1), 1, NOW).is_empty());
    under(&hold, 1, |_| &["c"]);
    let picked = hold.pick(&lane(1), 9, NOW);
    assert_eq!(ids(&picked), ["a1", "b1", "a2", "b2"]);
    let on_c = |held: &Held| held.edition == 1 && held.claimed.limited[0].key.as_str() == "c";
    assert!(picked.iter().all(on_c));
    put_all_back(&hold, picked);
    // Apart again, in turn.
    under(
        &hold,
        2,
        |job| if job.starts_with('a') { &["a"] } else { &["b"] },
    );
    assert_eq!(ids(&hold.pick(&lane(1), 1, NOW)), ["a1", "b1"]);
    assert_eq!(hold.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_in_hand_during_a_change_is_asked_again() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"]), job("a2", 0, &["a"])]);
    let picked = hold.pick(&lane(1), 1, NOW);
    under(&hold, 1, |_| &["a"]);
    for held in picked {
        hold.put_back(held, Some(refusal(Refused::Paused, Arc::from("p"))));
    }
    // It was refused under limits that are no more, and it waits beside its like until it is picked.
    let picked = hold.pick(&lane(1), 1, NOW);
    assert_eq!(ids(&picked), ["a2", "a1"]);
    assert_eq!(
        picked.iter().map(|held| held.edition).collect::<Vec<_>>(),
        [1, 0]
    );
    put_all_back(&hold, picked);
    under(&hold, 1, |_| &["a"]);
    assert!(hold.before(1).is_empty());
    let picked = hold.pick(&lane(1), 1, NOW);
    assert_eq!(picked.len(), 1, "they are one group again");
    put_all_back(&hold, picked);
    let picked = hold.pick(&lane(1), 9, NOW);
    assert_eq!(ids(&picked), ["a2", "a1"]);
    assert!(picked.iter().all(|held| starts(&hold, held)));
}

#[tokio::test(start_paused = true)]
async fn what_was_found_for_an_earlier_claim_is_not_for_a_newer_one() {
    let hold = Hold::default();
    hold.add(vec![job("a1", 0, &["a"])]);
    let found = hold.before(1);
    let mut again = job("a1", 0, &["b"]);
    again.claimed.generation = Gen(2);
    hold.add(vec![again]);
    let of = |held: &Held| Relimited {
        limits: limits(&["c"]),
        generation: held.claimed.generation,
        job: held.claimed.job.clone(),
    };
    hold.relimit(1, found.iter().map(of).collect());
    let held = hold.pick(&lane(1), 1, NOW).remove(0);
    assert_eq!(
        (held.edition, held.claimed.limited[0].key.as_str()),
        (0, "b")
    );
}

#[tokio::test(start_paused = true)]
async fn a_doomed_job_never_leaves_and_is_ended_by_one_at_a_time() {
    let hold = Hold::default();
    hold.add(vec![job("a", 0, &["k"]), job("b", 0, &["k"])]);
    let mut picked = hold.pick(&lane(1), 2, NOW);
    let (b, a) = (picked.pop().unwrap(), picked.pop().unwrap());
    assert!(hold.doom(a.clone()));
    hold.put_back(b, None);
    assert!(!starts(&hold, &a), "it must not go out");
    assert_eq!(ids(&hold.pick(&lane(1), 9, NOW)), ["b"]);
    assert!(hold.doomed().is_empty(), "someone is at it");
    assert_eq!(hold.lookahead(&lane(1), 2, 1 << 20), Lookahead::Soon);

    // It failed: the next to look gets it, once, also after a cancel that failed too.
    hold.spared("a", Gen(0));
    assert!(hold.doomed().is_empty(), "another claim's word");
    hold.spared("a", Gen(1));
    assert!(hold.hide("a"));
    hold.show("a");
    assert!(hold.pick(&lane(1), 9, NOW).is_empty());
    assert_eq!(ids(&hold.doomed()), ["a"]);
    assert!(hold.doomed().is_empty());

    // The backend hands it out again: what was decided stands, for the new claim.
    let mut again = job("a", 0, &["k"]);
    again.claimed.generation = Gen(2);
    hold.add(vec![again]);
    assert!(hold.pick(&lane(1), 9, NOW).is_empty());
    assert_eq!(ids(&hold.doomed()), ["a"]);
    assert!(!hold.forget_claim("a", Gen(1)) && hold.has_claim("a", Gen(2)));
    hold.ended("a", Gen(1));
    assert!(hold.has("a"), "the earlier claim ended");
    hold.ended("a", Gen(2));
    assert!(!hold.has("a"));
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_ends_between_the_answer_and_the_hold_is_not_missed() {
    let no = |hold: &Hold| Refusal {
        asked: hold.wakes(),
        ..refusal(Refused::ForSlot(Timestamp(0)), Arc::from("k"))
    };
    let may_ask = |hold: &Hold| hold.pick(&lane(1), 1, NOW).len() == 1;

    let hold = Hold::default();
    hold.add(vec![job("a", 0, &["k"])]);
    let a = hold.pick(&lane(1), 1, NOW).remove(0);
    let refused = no(&hold);
    hold.wake(&limits(&["other"]));
    hold.put_back(a, Some(refused));
    assert!(
        !may_ask(&hold),
        "the end of another key's slot is nothing to it"
    );
    hold.wake(&limits(&["k"]));
    let a = hold.pick(&lane(1), 1, NOW).remove(0);
    let refused = no(&hold);
    hold.wake(&limits(&["k"]));
    hold.put_back(a, Some(refused));
    assert!(may_ask(&hold));

    // A fresh claim is not in the hold yet when the slot ends.
    let hold = Hold::default();
    let mut fresh = [job("a", 0, &["k"])];
    hold.fetched(&lane(1), &Gate::default(), Instant::now());
    assert!(hold.is_first(&lane(1), &fresh));
    let refused = no(&hold);
    hold.wake(&limits(&["k"]));
    let [a] = &mut fresh;
    hold.enter(a);
    hold.put_back(a.clone(), Some(refused));
    assert!(may_ask(&hold));
}

#[tokio::test(start_paused = true)]
async fn a_rescheduled_job_is_scheduled_until_it_may_start() {
    let second = |n: u64| NOW.plus(n * 1_000_000);
    let refuse = |refused, rescheduled| {
        let hold = Hold::default();
        hold.add(vec![job("a", 0, &["k"]), job("b", 0, &["k"])]);
        let held = hold.pick(&lane(1), 1, NOW).remove(0);
        let policy = Arc::from("k");
        hold.put_back(
            held,
            Some(Refusal {
                rescheduled,
                ..refusal(refused, policy)
            }),
        );
        hold
    };
    let at = |hold: &Hold, now| {
        let each = ["a", "b"].map(|job| hold.seen(job, now).unwrap().1);
        assert_eq!(each[0], each[1], "the refusal is the group's");
        let scheduled = usize::from(each[0].is_some()) * 2;
        let tallies = hold.tallies(now, |_| true);
        assert_eq!(tallies["q"], Tally { held: 2, scheduled });
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

#[tokio::test(start_paused = true)]
async fn what_is_set_aside_is_out_of_reach_until_it_is_not() {
    let hold = Hold::default();
    let claim = |id: &str, generation| {
        let mut held = job(id, 0, &["k"]);
        held.claimed.generation = Gen(generation);
        held
    };
    hold.add((1..=5).map(|n| claim(&n.to_string(), n)).collect());
    let in_hand = hold.pick(&lane(1), 1, NOW).remove(0);
    let old = |claimed: &Claimed| claimed.generation <= Gen(4);
    assert_eq!(hold.set_aside(old), 3, "one is in hand, one is new");
    assert_eq!(ids(&hold.pick(&lane(1), 9, NOW)), ["5"]);
    hold.put_back(in_hand, None);
    assert_eq!(hold.set_aside(old), 1);
    assert_eq!(hold.len(), 5);
    assert!(hold.take_last(|_| true, &HashSet::new()).is_none());
    // A cancel finds it, and one that fails changes nothing.
    assert!(hold.hide("2") && hold.hide("3"));
    hold.show("2");
    assert!(hold.pick(&lane(1), 9, NOW).is_empty());
    tokio::time::advance(Duration::from_secs(27)).await;
    assert!(hold.lapsed(|_| true).is_empty());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(hold.lapsed(|claimed| claimed.generation == Gen(4)).len(), 1);
    // All may go out again, in their order, but for what is hidden meanwhile.
    assert_eq!(hold.set_aside(|_| false), 0);
    assert_eq!(ids(&hold.pick(&lane(1), 9, NOW)), ["1", "2", "4"]);
    hold.show("3");
    assert_eq!(ids(&hold.pick(&lane(1), 9, NOW)), ["3"]);
}

#[tokio::test(start_paused = true)]
async fn idle_jobs_go_one_by_one_and_the_last_first() {
    let hold = Hold::default();
    hold.add(vec![
        job("low", -1, &["k"]),
        job("a", 0, &["k"]),
        job("b", 0, &["k"]),
        job("c", 0, &["k"]),
    ]);
    assert!(hold.take_last(|_| false, &HashSet::new()).is_none());
    let stay = HashSet::from([Arc::from("c")]);
    let low = hold.take_last(|_| true, &stay).unwrap();
    let last = hold.take_last(|_| true, &stay).unwrap();
    assert_eq!((&*low.claimed.job, &*last.claimed.job), ("low", "b"));
    // One that is handed out to us again meanwhile is another claim.
    let mut again = job("low", -1, &["k"]);
    again.claimed.generation = Gen(2);
    hold.add(vec![again]);
    hold.wait_on(low);
    hold.wait_on(last);
    let order: Vec<Held> = (0..4)
        .filter_map(|_| hold.take_last(|_| true, &HashSet::new()))
        .collect();
    assert_eq!(ids(&order), ["low", "b", "c", "a"]);
    assert_eq!(order[0].claimed.generation, Gen(2));
}

#[tokio::test(start_paused = true)]
async fn what_was_proven_before_is_in_doubt() {
    let hold = Hold::default();
    hold.fetched(&lane(1), &Gate::default(), Instant::now());
    let jobs = ["waits", "aside", "hidden", "later"].map(|id| job(id, 0, &["k"]));
    hold.add(jobs.to_vec());
    hold.set_aside(|claimed| &*claimed.job == "aside");
    assert!(hold.hide("hidden"));
    tokio::time::advance(Duration::from_secs(1)).await;
    let then = Instant::now();
    hold.proved("later", then, Duration::from_secs(30));
    hold.doubt_before(then);
    let proofs = hold.proofs();
    let in_doubt = |id: &str| {
        let (_, proven, _) = (proofs.iter().find(|(claimed, ..)| &*claimed.job == id)).unwrap();
        then.duration_since(*proven) >= Duration::from_secs(30)
    };
    let doubts = ["waits", "aside", "hidden", "later"].map(in_doubt);
    assert_eq!(doubts, [true, true, true, false]);
}

#[test]
fn of_two_words_of_the_backend_the_later_counts() {
    let (hold, second) = (Hold::default(), Duration::from_secs(1));
    hold.add(vec![job("a", 0, &["k"])]);
    let then = hold.proofs()[0].1;
    hold.proved("a", then + second, second);
    // Sent before that one, and answered after it.
    hold.proved("a", then, 30 * second);
    let (_, proven, granted) = hold.proofs().remove(0);
    assert_eq!((proven, granted), (then + second, second));
    // Nothing that was said before a doubt counts against what is said after it.
    let mut picked = hold.pick(&lane(1), 1, NOW);
    picked[0].doubt();
    put_all_back(&hold, picked);
    hold.proved("a", then, 30 * second);
    assert_eq!(hold.proofs()[0].2, 30 * second);
}
