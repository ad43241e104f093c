//! What starts with a cost, and groups with a share, find in any store.

use std::num::NonZeroU32;

use ojs_throttle::limit::{Cost, CostRule, LINE, Share, Strategy, WindowKind};
use ojs_throttle::store::{Claim, End, Usage};

use super::prelude::*;
use super::rig::number;

/// These limits for a job that pays so much.
fn paying(limited: &Limited, pays: u32) -> Limited {
    let rule = CostRule {
        from: Some("meta.tokens".into()),
        default: NonZeroU32::MIN,
        max: Some(number(u32::MAX)),
        settle: Some("result.tokens".into()),
    };
    Limited {
        cost: Cost {
            pays: number(pays),
            rule: Some(rule.into()),
            by_calls: false,
        },
        ..limited.clone()
    }
}

fn of_group(limited: &Limited, group: &str, weight: u32) -> Limited {
    Limited {
        share: Some(Share {
            group: group.into(),
            weight: number(weight),
        }),
        ..limited.clone()
    }
}

async fn usage(store: &dyn Ledger, of: &Limited) -> Usage {
    let usage = store.usage(of.space, &of.key, &of.limits).await.unwrap();
    usage.unwrap_or_default()
}

async fn count(store: &dyn Ledger, of: &Limited) -> u32 {
    usage(store, of).await.windows.first().map_or(0, |of| of.0)
}

/// Why it is refused, and from when on it is not.
fn refused(verdict: Verdict) -> (Strategy, Timestamp) {
    match verdict {
        Verdict::Refused { why, at, .. } => (why.strategy, at.unwrap_or_default()),
        other => panic!("{other:?}"),
    }
}

/// The job ends, and says what it used, as an ACK does: by the row that the store has. Whether it had one.
async fn used(store: &dyn Ledger, job: &str, amount: u32) -> bool {
    let Some(row) = store.row(job).await.unwrap() else {
        return false;
    };
    let end = End::settled(&row.claimed, |path| {
        assert_eq!(path, "result.tokens");
        Some(amount)
    });
    // The second one is of a job that has ended meanwhile.
    let [first, second] = [(); 2].map(|()| store.end_all(std::slice::from_ref(&end)));
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    assert!(second.is_empty());
    first.len() == 1
}

pub async fn a_start_takes_its_cost_of_every_limit(rig: &Rig) {
    let store = rig.open("a").await;
    let all = limited("k", Some(10), Some((100, SECOND)), None);
    let start = async |job: &str, pays| take(&*store, claimed(job, 1, &[paying(&all, pays)])).await;
    assert!(started(&start("a", 6).await));
    assert_eq!(refused(start("b", 5).await).0, Strategy::Concurrency);
    let now = usage(&*store, &all).await;
    assert_eq!((now.active, now.windows[0].0), (6, 6), "all or nothing");
    // No more than all of a limit is asked for, and all of the cost is counted.
    assert!(started(
        &take(
            &*store,
            claimed("c", 1, &[paying(&limited("big", Some(3), None, None), 8)])
        )
        .await
    ));
    let big = limited("big", Some(3), None, None);
    assert_eq!(usage(&*store, &big).await.active, 8);
    assert!(!started(
        &take(&*store, claimed("d", 1, &[paying(&big, 8)])).await
    ));
    store.end("c", None).await.unwrap();
    assert_eq!(
        usage(&*store, &big).await.active,
        0,
        "what was taken is given back"
    );
    assert!(started(
        &take(&*store, claimed("d", 1, &[paying(&big, 8)])).await
    ));
    assert!(store.back("d", Gen(1)).await.unwrap());
    assert_eq!(usage(&*store, &big).await.active, 0);
}

pub async fn a_debt_above_a_burst_is_paid(rig: &Rig) {
    let store = rig.open("a").await;
    let ten = limited("k", None, None, Some(10));
    assert!(started(
        &take(&*store, claimed("a", 1, &[paying(&ten, 30)])).await
    ));
    let one = || take(&*store, claimed("b", 1, &[paying(&ten, 1)]));
    let (_, at) = refused(one().await);
    assert_eq!(at, Timestamp(T + 3 * SECOND));
    advance(rig, 3 * SECOND - EARLY - 1);
    assert!(!started(&one().await));
    advance(rig, 1);
    assert!(started(&one().await));
}

pub async fn a_job_that_needs_more_room_is_first_in_line(rig: &Rig) {
    let store = rig.open("a").await;
    let hundred = limited("k", None, Some((100, SECOND)), None);
    let start = async |job: &str, pays| {
        let ask = claimed(job, 1, &[paying(&hundred, pays)]);
        take(&*store, ask).await
    };
    assert!(started(&start("first", 60).await));
    let (strategy, at) = refused(start("big", 80).await);
    assert_eq!(strategy, Strategy::Rate);
    // There is room for it, and it is kept for the one before.
    assert_eq!(
        refused(start("small", 1).await),
        (Strategy::Line, at),
        "it comes back when the other starts"
    );
    advance(rig, 900_000);
    assert_eq!(
        refused(start("big", 80).await).1,
        at,
        "asked again, it stays"
    );
    advance(rig, at.0 - EARLY - now(rig).0);
    assert_eq!(refused(start("small", 30).await).0, Strategy::Line);
    assert!(started(&start("big", 80).await));
    assert!(started(&start("small", 1).await), "behind it others go on");
    // Who does not ask again loses the place.
    refused(start("huge", 100).await);
    advance(rig, LINE);
    assert!(started(&start("other", 1).await));
    // What is refused for more than its cost stands in no line.
    let both = [paying(&hundred, 90), limited("full", Some(0), None, None)];
    refused(take(&*store, claimed("both", 1, &both)).await);
    assert!(started(&start("last", 1).await));
}

/// Workers poll every two seconds. The place lasts until then, and others have what is beside its cost.
pub async fn a_place_outlasts_polls_and_keeps_its_cost(rig: &Rig) {
    let store = rig.open("a").await;
    let rate = limited("k", None, Some((100, SECOND)), None);
    let slots = limited("s", Some(64), None, None);
    let start = async |job: &str, of: &Limited, pays| {
        let ask = claimed(job, 1, &[paying(of, pays)]);
        take(&*store, ask).await
    };
    assert!(started(&start("first", &rate, 60).await));
    assert!(started(&start("three", &slots, 3).await));
    refused(start("big", &rate, 80).await);
    refused(start("all", &slots, 64).await);
    advance(rig, 1_900_000);
    for nth in 0..20 {
        assert!(
            started(&start(&format!("small-{nth}"), &rate, 1).await),
            "{nth}"
        );
    }
    assert_eq!(refused(start("more", &rate, 1).await).0, Strategy::Line);
    assert_eq!(refused(start("one", &slots, 1).await).0, Strategy::Line);
    advance(rig, 100_000);
    assert!(started(&start("big", &rate, 80).await));
    store.end("three", None).await.unwrap();
    assert!(started(&start("all", &slots, 64).await));
    assert_eq!(
        refused(start("one", &slots, 1).await).0,
        Strategy::Concurrency
    );
}

/// A line is where a key refused for the cost, and nowhere for a job that another key refuses for longer.
pub async fn only_the_key_that_refused_has_a_line(rig: &Rig) {
    let store = rig.open("a").await;
    let day = limited("tenant-a", None, Some((100, 86_400 * SECOND)), None);
    let vendor = limited("vendor", None, Some((100, 60 * SECOND)), None);
    let start = async |job: &str, of: &[Limited]| take(&*store, claimed(job, 1, of)).await;
    let both = |pays| [paying(&vendor, pays), paying(&day, pays)];
    assert!(started(&start("a", &both(60)).await));
    assert_eq!(refused(start("b", &both(60)).await).0, Strategy::Rate);
    let other = limited("tenant-b", None, Some((100, 86_400 * SECOND)), None);
    let others = [paying(&vendor, 30), paying(&other, 30)];
    assert!(started(&start("c", &others).await), "the vendor has room");
    assert_eq!(
        refused(start("d", &both(1)).await).0,
        Strategy::Line,
        "its own key has none"
    );
    // What keeps it from starting is gone: it stands where its cost is all that is missing.
    store
        .set(Change::Unused {
            key: day.key.clone(),
        })
        .await
        .unwrap();
    assert_eq!(refused(start("b", &both(60)).await).0, Strategy::Rate);
    let late = [paying(&vendor, 1), paying(&other, 1)];
    assert_eq!(refused(start("e", &late).await).0, Strategy::Line);
    // And stands there no longer than that is so.
    let shut = Timestamp(now(rig).0 + 3_600 * SECOND);
    let key = day.key.clone();
    store
        .set(Change::Shut {
            key,
            until: shut,
            at_least: false,
        })
        .await
        .unwrap();
    assert_eq!(refused(start("b", &both(60)).await).0, Strategy::Shut);
    assert!(started(&start("e", &late).await));
}

/// What began before a key was cleared gives nothing back of what began later: it uses what it says, from its end on.
pub async fn what_began_before_a_clearing_takes_nothing_back(rig: &Rig) {
    let store = rig.open("a").await;
    let mut all = limited("k", Some(1_000), Some((1_000, 86_400 * SECOND)), None);
    let mut fixed = all.limits.rates[0].clone();
    fixed.window = WindowKind::Fixed;
    all.limits.rates.push(fixed);
    let start = async |job: &str, pays| take(&*store, claimed(job, 1, &[paying(&all, pays)])).await;
    for job in ["settles", "goes back", "stays"] {
        assert!(started(&start(job, 50).await));
    }
    advance(rig, 1_000);
    let key = all.key.clone();
    assert!(store.set(Change::Unused { key }).await.unwrap());
    advance(rig, 1_000);
    let counted = async || usage(&*store, &all).await.windows;
    assert!(started(&start("later", 30).await));
    assert!(store.back("goes back", Gen(1)).await.unwrap());
    assert!(counted().await.iter().all(|of| of.0 == 30));
    assert!(used(&*store, "settles", 5).await);
    assert!(counted().await.iter().all(|of| of.0 == 35));
    assert!(used(&*store, "later", 10).await);
    assert!(counted().await.iter().all(|of| of.0 == 15));
    assert_eq!(counted().await.len(), 2);
}

/// Who is to be dropped needs no room, and whom others go before is not dropped.
pub async fn a_line_is_no_reason_to_drop(rig: &Rig) {
    let store = rig.open("a").await;
    for action in [OnLimit::Drop, OnLimit::Reschedule] {
        let mut of = limited(
            &format!("k{action:?}"),
            None,
            Some((100, 60 * SECOND)),
            None,
        );
        let start = async |name: &str, of: &Limited, pays| {
            let job = format!("{name}-{action:?}");
            take(&*store, claimed(&job, 1, &[paying(of, pays)])).await
        };
        of.on_limit = action;
        assert!(started(&start("first", &of, 60).await));
        let Verdict::Refused { action: told, .. } = start("big", &of, 50).await else {
            panic!("there is no room");
        };
        assert_eq!(told, action);
        assert!(started(&start("small", &of, 1).await), "{action:?}");
        // One that waits is first in line, and one that does not is behind it.
        let waits = Limited {
            on_limit: OnLimit::Wait,
            ..of.clone()
        };
        refused(start("waits", &waits, 50).await);
        match start("behind", &of, 1).await {
            Verdict::Refused { why, action, .. } => {
                assert_eq!((why.strategy, action), (Strategy::Line, OnLimit::Wait));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A call of a way out that waits until `stays`.
fn call(id: &str, of: &[Limited], stays: Timestamp) -> Claimed {
    let mut call = claimed(id, 1, of);
    (call.queue, call.stays) = (Claim::queue_of_calls("out"), stays);
    call
}

/// Its caller is told at once that it has no start in time, and nobody asks for it again.
pub async fn a_call_that_cannot_wait_so_long_stands_in_no_line(rig: &Rig) {
    let store = rig.open("a").await;
    let hour = limited("k", None, Some((10, 3_600 * SECOND)), None);
    let soon = Timestamp(now(rig).0 + 10 * SECOND);
    assert!(started(
        &take(&*store, claimed("first", 1, &[paying(&hour, 4)])).await
    ));
    let dear = |id: &str| take(&*store, call(id, &[paying(&hour, 8)], soon));
    for nth in 0..6 {
        assert_eq!(
            refused(dear(&format!("dear-{nth}")).await).0,
            Strategy::Rate
        );
        let cheap = call(&format!("cheap-{nth}"), &[paying(&hour, 1)], soon);
        assert!(started(&take(&*store, cheap).await), "{nth}");
    }
    // Nor does one that does not wait for a slot.
    let slots = limited("s", Some(4), None, None);
    let ask = |id: &str, pays, stays| take(&*store, call(id, &[paying(&slots, pays)], stays));
    assert!(started(&ask("one", 1, soon).await));
    assert_eq!(
        refused(ask("all", 4, now(rig)).await).0,
        Strategy::Concurrency
    );
    assert!(started(&ask("two", 1, soon).await));
    assert_eq!(
        refused(ask("waits", 4, soon).await).0,
        Strategy::Concurrency
    );
    assert_eq!(refused(ask("three", 1, soon).await).0, Strategy::Line);
}

/// A call whose caller hangs up, or a job that is not ours any more.
pub async fn who_is_given_up_stands_in_line_no_longer(rig: &Rig) {
    let store = rig.open("a").await;
    for nth in 0..2 {
        let of = limited(&format!("k{nth}"), None, Some((10, 60 * SECOND)), None);
        let ask = |id: &str, pays| {
            let (id, of) = (format!("{id}-{nth}"), [paying(&of, pays)]);
            match nth {
                0 => call(&id, &of, Timestamp(now(rig).0 + 600 * SECOND)),
                _ => claimed(&id, 1, &of),
            }
        };
        assert!(started(&take(&*store, ask("first", 4)).await));
        let dear = ask("dear", 8);
        assert_eq!(refused(take(&*store, dear.clone()).await).0, Strategy::Rate);
        assert_eq!(
            refused(take(&*store, ask("cheap", 1)).await).0,
            Strategy::Line
        );
        // That of another one ends nothing.
        for (of, strategy) in [(ask("other", 8), Some(Strategy::Line)), (dear, None)] {
            let ended = store.end_all(&[End::of_claim(&of)]).await.unwrap();
            assert!(ended.is_empty(), "it has no row");
            let verdict = take(&*store, ask("cheap", 1)).await;
            match strategy {
                Some(strategy) => assert_eq!(refused(verdict).0, strategy),
                None => assert!(started(&verdict), "{nth}: {verdict:?}"),
            }
        }
    }
}

pub async fn what_a_job_used_is_settled_once(rig: &Rig) {
    let store = rig.open("a").await;
    for window in [WindowKind::Sliding, WindowKind::Fixed] {
        let name = format!("k{}", window.as_str());
        let mut of = limited(&name, None, Some((1_000, 60 * SECOND)), None);
        of.limits.rates[0].window = window;
        let start = async |job: &str, pays| {
            let ask = claimed(job, 1, &[paying(&of, pays)]);
            started(&take(&*store, ask).await)
        };
        assert!(start("less", 300).await && start("more", 300).await && start("same", 1).await);
        advance(rig, SECOND);
        assert!(used(&*store, "less", 100).await);
        assert_eq!(count(&*store, &of).await, 401);
        assert!(!used(&*store, "less", 1).await, "it is over");
        assert!(used(&*store, "more", 900).await);
        assert_eq!(count(&*store, &of).await, 1_001, "nobody is asked");
        assert!(!start("next", 1).await, "and the next ones wait");
        assert!(used(&*store, "same", 0).await);
        assert_eq!(count(&*store, &of).await, 1_000);
        // What leaves with the starts is what they paid less what they did not use; the rest came later.
        let late = claimed(
            "late",
            1,
            &[paying(&limited("other", None, Some((9, SECOND)), None), 9)],
        );
        assert!(started(&take(&*store, late).await));
        advance(rig, 200 * SECOND);
        assert_eq!(count(&*store, &of).await, 0);
        let other = limited("other", None, Some((9, SECOND)), None);
        assert!(used(&*store, "late", 1).await);
        assert_eq!(count(&*store, &other).await, 0, "the window had passed");
    }
    // Numbers at their end.
    let most = limited("most", None, Some((u32::MAX, 60 * SECOND)), None);
    for (job, pays) in [("x", u32::MAX - 1), ("y", 1)] {
        assert!(started(
            &take(&*store, claimed(job, 1, &[paying(&most, pays)])).await
        ));
    }
    assert!(used(&*store, "y", u32::MAX).await);
    assert_eq!(count(&*store, &most).await, u32::MAX);
    assert!(!started(
        &take(&*store, claimed("z", 1, &[paying(&most, 1)])).await
    ));
    assert!(used(&*store, "x", 0).await);
    assert!(count(&*store, &most).await <= 1);
}

/// One ACK with a wrong number closes a key for one period, and no window of it for longer than its own.
pub async fn an_ack_adds_no_more_than_all_of_a_limit(rig: &Rig) {
    let store = rig.open("a").await;
    for window in [WindowKind::Sliding, WindowKind::Fixed] {
        let name = format!("k{}", window.as_str());
        let mut of = limited(&name, None, Some((100, SECOND)), None);
        let mut hour = of.limits.rates[0].clone();
        (hour.limit, hour.period) = (number(100_000), super::rig::period(3_600 * SECOND));
        of.limits.rates.push(hour);
        of.limits
            .rates
            .iter_mut()
            .for_each(|rate| rate.window = window.clone());
        let start = async |job: &str| {
            let job = format!("{job}-{name}");
            started(&take(&*store, claimed(&job, 1, &[paying(&of, 10)])).await)
        };
        assert!(start("wrong").await);
        assert!(used(&*store, &format!("wrong-{name}"), 5_000).await);
        let windows = usage(&*store, &of).await.windows;
        let counts: Vec<u32> = windows.iter().map(|of| of.0).collect();
        assert_eq!(counts, [110, 5_000], "each as far as it goes");
        assert!(!start("next").await);
        advance(rig, SECOND + SECOND / 50);
        assert!(start("next").await, "a period later");
        assert!(used(&*store, &format!("next-{name}"), u32::MAX).await);
        let windows = usage(&*store, &of).await.windows;
        assert_eq!(windows[1].0, 105_010);
        advance(rig, 3_700 * SECOND);
        assert!(start("last").await);
    }
}

/// A job of this group, which waits since then in virtual time.
fn of_turn(
    key: &Limited,
    job: &str,
    group: &str,
    (pays, weight): (u32, u32),
    since: u64,
) -> Claimed {
    let mut ask = claimed(job, 1, &[of_group(&paying(key, pays), group, weight)]);
    ask.since = since;
    ask
}

pub async fn groups_are_served_by_weight(rig: &Rig) {
    let store = rig.open("a").await;
    let key = limited("k", None, Some((1_000, SECOND)), None);
    let ask = |job: &str, group: &str, by, since| of_turn(&key, job, group, by, since);
    let served = async |ask: Claimed, want| {
        let told = store.take(&[&ask], want).await.unwrap().served;
        told.first().map(|of| (of.served, of.virtual_time))
    };
    assert_eq!(
        served(ask("a", "slow", (10, 1), 0), 1).await,
        Some((10_000, 10_000))
    );
    assert_eq!(
        served(ask("b", "fast", (10, 5), 0), 1).await,
        Some((2_000, 10_000))
    );
    assert_eq!(
        served(ask("c", "fast", (10, 5), 0), 1).await,
        Some((4_000, 10_000))
    );
    // A newcomer begins where the virtual time is, and never after it.
    let new = ask("d", "new", (1, 1), 70_000);
    assert_eq!(served(new, 1).await, Some((11_000, 11_000)));
    advance(rig, 2 * SECOND);
    assert_eq!(
        served(ask("e", "slow", (10, 1), 0), 1).await,
        Some((20_000, 20_000))
    );
    advance(rig, 2 * SECOND);
    assert_eq!(
        served(ask("f", "slow", (10, 1), 0), 1).await,
        Some((30_000, 30_000))
    );
    // Who has waited for long is owed what was served in the last seconds, or one job.
    let late = ask("g", "late", (1, 1), 0);
    assert_eq!(served(late, 1).await, Some((12_000, 30_000)));
    let large = ask("h", "large", (25, 1), 0);
    assert_eq!(served(large, 1).await, Some((30_000, 30_000)));
    // What another key refuses saves nothing.
    let mut shut = ask("i", "new", (1, 1), 0);
    shut.limited = [
        shut.limited[0].clone(),
        limited("full", Some(0), None, None),
    ]
    .into();
    assert_eq!(served(shut, 1).await, Some((30_000, 30_000)));
    assert_eq!(served(ask("j", "x", (1, 1), 0), 0).await, None, "not asked");
    // Whoever looks finds the same in any store.
    let known = store.states(&[(key.space, &key.key)]).await.unwrap();
    let shares = known.states[0].shares().unwrap();
    let groups = ["slow", "fast", "new", "late", "large", "none"];
    assert_eq!(
        (shares.virtual_time(), groups.map(|group| shares.of(group))),
        (30_000, [30_000, 4_000, 30_000, 12_000, 30_000, 30_000])
    );
    // Nobody asked for a minute: all begin anew.
    advance(rig, 61 * SECOND);
    assert_eq!(
        served(ask("k", "slow", (1, 1), 0), 1).await,
        Some((1_000, 1_000))
    );
}

/// A sidecar that had no jobs of a group believes that it waits from now on. It is so only where nobody asked for the
/// group at any sidecar.
pub async fn a_group_that_waits_elsewhere_does_not_come_anew(rig: &Rig) {
    let (store, other) = (rig.open("a").await, rig.open("b").await);
    let hundred = limited("k", None, Some((100, 60 * SECOND)), None);
    let ask = |job: &str, group: &str, pays, since| of_turn(&hundred, job, group, (pays, 1), since);
    let begins = async |store: &dyn Ledger, ask: Claimed| {
        let told = store.take(&[&ask], 1).await.unwrap();
        told.served.first().map(|of| of.served)
    };
    assert_eq!(begins(&*store, ask("a", "lead", 90, 0)).await, Some(90_000));
    assert_eq!(begins(&*store, ask("b", "g", 10, 0)).await, Some(10_000));
    // Where the virtual time is, is all that the other one knows.
    for _ in 0..2 {
        let waits = begins(&*other, ask("c", "g", 1, 90_000)).await;
        assert_eq!(waits, Some(10_000), "it was asked for lately");
        advance(rig, SECOND + 900_000);
    }
    advance(rig, 100_000);
    let away = begins(&*other, ask("c", "g", 1, 90_000)).await;
    assert_eq!(away, Some(90_000), "nobody asked for it");
    let new = begins(&*other, ask("d", "new", 1, u64::MAX)).await;
    assert_eq!(new, Some(90_000), "it comes from where nothing is known");
}

/// Sidecars hold jobs of other groups each: the one that asks first is not the one whose turn it is.
pub async fn a_group_lets_another_go_first_that_somebody_stays_for(rig: &Rig) {
    let store = rig.open("a").await;
    let ten = limited("k", None, Some((10, SECOND)), None);
    let ask = |job: &str, group: &str, pays, since, stays| {
        let mut ask = of_turn(&ten, job, group, (pays, 1), since);
        ask.stays = now(rig).plus(stays);
        ask
    };
    let start = async |ask: Claimed| take(&*store, ask).await;
    let until_room = |at: Timestamp| advance(rig, at.0 - EARLY - now(rig).0);
    let long = 3 * SECOND;
    // Nobody lacks room: who asks starts.
    assert!(started(&start(ask("a", "y", 1, 0, long)).await));
    assert!(started(&start(ask("b", "x", 9, 0, long)).await));
    let (strategy, at) = refused(start(ask("c", "y", 1, 1_000, long)).await);
    assert_eq!(strategy, Strategy::Rate);
    until_room(at);
    let soon = now(rig).plus(50_000 + EARLY);
    let (strategy, at) = refused(start(ask("d", "x", 1, 9_000, long)).await);
    assert_eq!((strategy, at), (Strategy::Line, soon), "y waits");
    assert!(started(&start(ask("c", "y", 1, 1_000, long)).await));
    assert!(started(&start(ask("d", "x", 9, 9_000, long)).await));
    // Who waits and goes holds nobody up: at once, or for a moment where it meant to stay.
    for (nth, stays) in [(0, 0), (1, SECOND / 2), (2, long)] {
        let name = |of: &str| format!("{of}-{nth}");
        let (_, at) = refused(start(ask(&name("e"), "y", 1, 2_000, stays)).await);
        until_room(at);
        let begins = 18_000 + 10_000 * nth;
        let verdict = start(ask(&name("f"), "x", 10, begins, long)).await;
        assert_eq!(started(&verdict), stays < SECOND, "{verdict:?}");
        if !started(&verdict) {
            until_room(refused(verdict).1);
            assert!(started(
                &start(ask(&name("f"), "x", 10, begins, long)).await
            ));
        }
    }
    // A FETCH that has got something goes with it.
    advance(rig, SECOND + 20_000);
    let (some, more) = (ask("g", "y", 10, 0, long), ask("h", "y", 1, 0, long));
    let taken = store.take(&[&some, &more], 2).await.unwrap();
    assert_eq!(
        taken.verdicts.iter().filter(|of| of.is_started()).count(),
        1
    );
    advance(rig, SECOND + 20_000);
    assert!(started(&start(ask("i", "x", 10, 90_000, long)).await));
    // Whom others go before waits, whatever its limit says.
    refused(start(ask("j", "y", 1, 0, long)).await);
    advance(rig, SECOND + 20_000);
    let mut drop = ask("k", "x", 1, 90_000, long).limited.to_vec();
    drop[0].on_limit = OnLimit::Drop;
    let mut drops = ask("k", "x", 1, 90_000, long);
    drops.limited = drop.into();
    let verdict = start(drops).await;
    assert!(
        matches!(
            verdict,
            Verdict::Refused {
                action: OnLimit::Wait,
                ..
            }
        ),
        "{verdict:?}"
    );
}

/// Names come from jobs, and there may be any number of them.
pub async fn groups_beyond_the_most_are_forgotten_and_known_by_their_sidecars(rig: &Rig) {
    let store = rig.open("a").await;
    let key = limited("k", None, Some((1_000_000, 60 * SECOND)), None);
    let served = async |asks: Vec<Claimed>| {
        let asks: Vec<&Claimed> = asks.iter().collect();
        let taken = store.take(&asks, asks.len()).await.unwrap();
        taken
            .served
            .last()
            .map(|of| (of.served, of.virtual_time))
            .unwrap()
    };
    let one = |nth: u32| of_turn(&key, &format!("j{nth}"), &format!("t{nth}"), (5, 1), 0);
    for some in (0..1_000).map(one).collect::<Vec<_>>().chunks(250) {
        assert_eq!(served(some.to_vec()).await, (5_000, 5_000));
    }
    let known = async || {
        let known = store.states(&[(key.space, &key.key)]).await.unwrap();
        known.states[0].shares().unwrap().of("low")
    };
    let low = |job: &str, since| of_turn(&key, job, "low", (1, 1_000), since);
    assert_eq!(
        served(vec![low("a", 0)]).await,
        (1, 5_000),
        "for it the others went"
    );
    assert_eq!(known().await, 1);
    for some in (1_000..2_000).map(one).collect::<Vec<_>>().chunks(250) {
        assert_eq!(served(some.to_vec()).await, (5_000, 5_000));
    }
    assert_eq!(known().await, 5_000, "forgotten");
    assert_eq!(served(vec![low("b", 1)]).await, (2, 5_000));
}
