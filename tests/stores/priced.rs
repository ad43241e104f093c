//! What starts with a cost, and groups with a share, find in any store.

use std::num::NonZeroU32;

use ojs_throttle::limit::{Cost, CostRule, LINE, Share, Strategy, WindowKind};
use ojs_throttle::store::{End, Usage};

use super::prelude::*;
use super::rig::number;

/// The same limits for a job that pays so much.
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
    let end = End::settled(&row, |path| {
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
        (Strategy::Line, Timestamp(T + LINE + EARLY).min(at)),
        "it comes back when the other starts"
    );
    advance(rig, 900_000);
    assert_eq!(
        refused(start("big", 80).await).1,
        at,
        "asked again, it stays"
    );
    advance(rig, at.0 - EARLY - now(rig).0);
    assert_eq!(refused(start("small", 1).await).0, Strategy::Line);
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

pub async fn groups_are_served_by_weight(rig: &Rig) {
    let store = rig.open("a").await;
    let key = limited("k", None, Some((1_000, SECOND)), None);
    let ask = |job: &str, group: &str, pays, weight| {
        claimed(job, 1, &[of_group(&paying(&key, pays), group, weight)])
    };
    let served = async |ask: Claimed, want| {
        let told = store.take(&[&ask], want).await.unwrap().served;
        told.first().map(|of| (of.served, of.turn))
    };
    assert_eq!(served(ask("a", "slow", 10, 1), 1).await, Some((10_000, 0)));
    assert_eq!(served(ask("b", "fast", 10, 5), 1).await, Some((2_000, 0)));
    assert_eq!(
        served(ask("c", "fast", 10, 5), 1).await,
        Some((4_000, 2_000))
    );
    assert_eq!(
        served(ask("d", "new", 1, 1), 1).await,
        Some((3_000, 2_000)),
        "it begins with the last turn"
    );
    assert_eq!(
        served(ask("e", "slow", 10, 1), 1).await,
        Some((20_000, 10_000))
    );
    // It waited, and is owed its turn.
    assert_eq!(
        served(ask("f", "fast", 10, 5), 1).await,
        Some((6_000, 4_000))
    );
    assert_eq!(
        served(ask("g", "slow", 10, 1), 1).await,
        Some((30_000, 20_000))
    );
    // It was away, and is not.
    for nth in 0..3 {
        advance(rig, SECOND);
        served(ask(&format!("x{nth}"), "slow", 1, 1_000), 1).await;
    }
    let back = ask("h", "fast", 10, 5);
    assert_eq!(served(back, 1).await, Some((32_002, 30_002)));
    // What another key refuses saves nothing.
    let mut shut = ask("i", "new", 1, 1);
    shut.limited = [
        shut.limited[0].clone(),
        limited("full", Some(0), None, None),
    ]
    .into();
    assert_eq!(served(shut, 1).await, Some((30_002, 30_002)));
    assert_eq!(served(ask("j", "x", 1, 1), 0).await, None, "not asked");
    // Nobody asked for a minute: all begin anew.
    advance(rig, 61 * SECOND);
    assert_eq!(served(ask("k", "slow", 1, 1), 1).await, Some((1_000, 0)));
}

/// Sidecars hold jobs of other groups each: the one that asks first is not the one whose turn it is.
pub async fn a_group_that_is_ahead_lets_another_go_first(rig: &Rig) {
    let store = rig.open("a").await;
    let ten = limited("k", None, Some((10, SECOND)), None);
    let start = async |job: &str, group: &str, pays| {
        let of = of_group(&paying(&ten, pays), group, 1);
        take(&*store, claimed(job, 1, &[of])).await
    };
    // Nobody lacks room: who asks starts.
    assert!(started(&start("a", "y", 1).await) && started(&start("b", "x", 9).await));
    let (strategy, at) = refused(start("c", "y", 1).await);
    assert_eq!(strategy, Strategy::Rate);
    advance(rig, at.0 - EARLY - now(rig).0);
    let (strategy, at) = refused(start("d", "x", 1).await);
    let soon = now(rig).plus(50_000 + EARLY);
    assert_eq!((strategy, at), (Strategy::Line, soon), "y waits");
    assert!(started(&start("c", "y", 1).await));
    assert!(started(&start("d", "x", 1).await) && started(&start("e", "x", 8).await));
    // Who waited and asks no more holds nobody up for long.
    refused(start("f", "y", 1).await);
    advance(rig, 1_500_000);
    refused(start("g", "x", 1).await);
    advance(rig, 500_000);
    assert!(started(&start("g", "x", 1).await));
}

/// Of the group that started others may wait where it did: its sidecar says so.
pub async fn a_group_goes_on_waiting_where_it_has_more(rig: &Rig) {
    let store = rig.open("a").await;
    for has_more in [true, false] {
        let ten = limited(&format!("k-{has_more}"), None, Some((10, SECOND)), None);
        let ask = |job: &str, group: &str, pays| {
            let of = of_group(&paying(&ten, pays), group, 1);
            claimed(&format!("{job}-{has_more}"), 1, &[of])
        };
        let mut less = ask("a", "y", 1);
        less.has_more = has_more;
        assert!(started(&take(&*store, less).await));
        assert!(started(&take(&*store, ask("b", "x", 9)).await));
        let (strategy, at) = refused(take(&*store, ask("c", "x", 1)).await);
        assert_eq!(strategy, Strategy::Rate);
        advance(rig, at.0 - EARLY - now(rig).0);
        let verdict = take(&*store, ask("c", "x", 1)).await;
        assert_eq!(started(&verdict), !has_more, "{verdict:?}");
    }
}

/// Names come from jobs, and there may be any number of them.
pub async fn groups_beyond_the_most_share_a_place(rig: &Rig) {
    let store = rig.open("a").await;
    let key = limited("k", None, Some((1_000_000, 60 * SECOND)), None);
    let ask = |job: String, group: &str, pays, weight| {
        claimed(&job, 1, &[of_group(&paying(&key, pays), group, weight)])
    };
    let served = async |asks: Vec<Claimed>| {
        let asks: Vec<&Claimed> = asks.iter().collect();
        let taken = store.take(&asks, asks.len()).await.unwrap();
        taken.served.last().map(|of| (of.served, of.turn)).unwrap()
    };
    let many = (0..999).map(|nth| ask(format!("many-{nth}"), &format!("t{nth}"), 5, 1));
    for some in many.collect::<Vec<_>>().chunks(333) {
        assert_eq!(served(some.to_vec()).await, (5_000, 0));
    }
    // One more has a place, and is far behind all others, so that none of them may be forgotten.
    let low = |nth| ask(format!("low-{nth}"), "low", 1, 1_000);
    assert_eq!(served(vec![low(0)]).await, (1, 0));
    for nth in 1..=5 {
        let beyond = ask(format!("beyond-{nth}"), &format!("beyond-{nth}"), 5, 1);
        let sum = served(vec![beyond]).await.0;
        assert_eq!(sum, 5_000 * nth, "all of them together");
        served(vec![low(nth)]).await;
    }
    // Those that are not ahead are forgotten for a new one.
    let far = ask("far".into(), "low", 9_000, 1);
    served(vec![far]).await;
    assert_eq!(
        served(vec![ask("next".into(), "t1", 5, 1)]).await,
        (10_000, 5_000)
    );
    assert_eq!(
        served(vec![ask("new".into(), "new", 5, 1)]).await,
        (10_000, 5_000)
    );
}
