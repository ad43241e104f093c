//! A store on a server whose clock is set back: limits go on, as if it had not been.

use super::prelude::*;

const HOUR: u64 = 3600 * SECOND;

/// So late a clock that was set back may be noticed, in microseconds: time stands still for no longer.
const NOTICED: u64 = 2 * SECOND;

fn limits() -> [Limited; 2] {
    let rate = limited("rate", None, Some((1, SECOND)), None);
    [rate, limited("throttle", None, None, Some(1))]
}

/// One of them hears what the server's time is, and both say that they live.
async fn beat(stores: [&dyn Ledger; 2]) {
    for store in stores {
        store.row("none").await.unwrap();
        store.due(10).await.unwrap();
    }
}

/// Starts the job, which must be allowed.
async fn start(store: &dyn Ledger, job: &str) -> Timestamp {
    match take(store, claimed(job, 1, &limits())).await {
        Verdict::Started { at } => at,
        other => panic!("{job}: {other:?}"),
    }
}

async fn is_refused(store: &dyn Ledger, job: &str) {
    let verdict = take(store, claimed(job, 1, &limits())).await;
    assert!(matches!(verdict, Verdict::Refused { .. }), "{verdict:?}");
}

/// Windows and spacing go on as they were, and the slots of a sidecar that died are found in their time.
pub async fn limits_go_on(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    beat([&*a, &*b]).await;
    let before = start(&*b, "of the dead").await;
    rig.clock().fetch_sub(HOUR, Ordering::AcqRel);
    // It is not earlier than it was.
    beat([&*a, &*b]).await;
    is_refused(&*a, "too soon").await;
    advance(rig, SECOND + NOTICED);
    let next = start(&*a, "1").await;
    assert!(next.since(before) >= SECOND, "{before:?} {next:?}");
    is_refused(&*a, "2").await;
    advance(rig, SECOND + 10_000);
    start(&*a, "2").await;
    advance(rig, 35 * SECOND);
    let due = a.due(10).await.unwrap();
    let due: Vec<&str> = due.iter().map(|row| &*row.claimed.job).collect();
    assert!(due.contains(&"of the dead"), "{due:?}");
}

/// A clock that was ahead, and is right again: time goes on from where it was, also a second time, and for who
/// comes later.
pub async fn a_jump_that_is_taken_back_freezes_nothing(rig: &Rig) {
    let (a, b) = (rig.open("a").await, rig.open("b").await);
    for round in 0..2 {
        beat([&*a, &*b]).await;
        advance(rig, HOUR);
        beat([&*a, &*b]).await;
        start(&*a, &format!("ahead {round}")).await;
        rig.clock().fetch_sub(HOUR, Ordering::AcqRel);
        beat([&*a, &*b]).await;
        advance(rig, SECOND + NOTICED);
        start(&*b, &format!("right again {round}")).await;
    }
    let c = rig.open("c").await;
    beat([&*a, &*c]).await;
    advance(rig, SECOND + 10_000);
    start(&*c, "later").await;
    assert!(
        c.now()
            .since(Timestamp(rig.clock().load(Ordering::Acquire)))
            >= HOUR
    );
}
