//! What is done for one enqueue, or one change of bounds, is as much with 10,000 known queues as with 100: it is done
//! under one lock, and no other request goes on meanwhile.

use std::collections::HashMap;

use ojs_throttle::bounds::{BoundGroup, NewJob, StatsAnswer};

use super::prelude::*;

/// What an enqueue of one job of each of these tenants wants of a queue.
fn want(pressure: &Pressure, queue: &str, tenants: &[Arc<str>]) -> Want {
    Want {
        jobs: tenants.len() as u64,
        sizes: vec![100; tenants.len()],
        groups: tenants
            .iter()
            .map(|id| vec![BoundGroup::tenant(Arc::clone(id))])
            .collect(),
        ..Want::nothing(queue, pressure.bounds(queue).unwrap())
    }
}

fn now() -> Now {
    Now {
        at: Instant::now(),
        stamp: Timestamp(1_770_000_000_000_000),
    }
}

/// Enqueues; the answer to a look is that nothing waits.
fn enqueue(pressure: &Arc<Pressure>, queue: &str, tenants: &[Arc<str>], ids: &[String]) -> bool {
    let mut wants = vec![want(pressure, queue, tenants)];
    loop {
        match pressure.admit(&mut wants, now()) {
            Admission::Go(mut places) => {
                let jobs = ids.iter().map(|id| NewJob {
                    queue: queue.into(),
                    id: id.as_str().into(),
                    due: None,
                });
                let _levels = places.settle(EnqueueOutcome::Stored, &jobs.collect::<Vec<_>>());
                return true;
            }
            Admission::Wait(_) => {
                let told = StatsAnswer::Counts(Counts::default());
                pressure.end_look(queue, told, None, now());
            }
            _ => return false,
        }
    }
}

/// The bounded queues of a sidecar, a job of a tenant of its own in each.
fn known(queues: usize) -> Arc<Pressure> {
    let tenants = vec![
        (Pattern::new("full"), 1),
        (Pattern::new("*"), 1_000_000_000),
    ];
    let file = FileBounds {
        tenants,
        ..FileBounds::default()
    };
    let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
    for nth in 0..queues {
        let tenant = Arc::from(format!("t{nth}"));
        assert!(enqueue(
            &pressure,
            &format!("q{nth}"),
            &[tenant],
            &[format!("j{nth}")]
        ));
    }
    assert!(enqueue(&pressure, "q0", &["full".into()], &["full".into()]));
    assert_eq!(pressure.names().len(), queues);
    pressure
}

/// How long it takes, at best.
fn least(mut work: impl FnMut()) -> Duration {
    let once = |work: &mut dyn FnMut()| {
        let begun = std::time::Instant::now();
        (0..5).for_each(|_| work());
        begun.elapsed() / 5
    };
    (0..20).map(|_| once(&mut work)).min().unwrap()
}

/// What requests that name one queue take.
fn costs(queues: usize) -> [(&'static str, Duration); 5] {
    let pressure = known(queues);
    let ids: Vec<String> = (0..50).map(|nth| format!("again{nth}")).collect();
    let tenants: Vec<Arc<str>> = (0..50).map(|nth| Arc::from(format!("t{nth}"))).collect();
    let full: Arc<str> = Arc::from("full");
    let mut most = 1_000;
    let mut next = || {
        most += 1;
        most
    };
    let depth = |most| Given {
        max_depth: Some(most),
        ..Given::default()
    };
    let one = least(|| assert!(enqueue(&pressure, "q1", &tenants[1..2], &ids[..1])));
    let batch = least(|| assert!(enqueue(&pressure, "q1", &tenants, &ids)));
    let refusal = least(|| {
        assert!(!enqueue(&pressure, "q1", std::slice::from_ref(&full), &[]));
        assert!(pressure.look_for_tenant("full", 16, Instant::now()).len() <= 1);
    });
    let bounds = least(|| {
        let set = HashMap::from([(Arc::from("q2"), depth(next()))]);
        assert!(pressure.set(set, HashMap::new(), now()).is_empty());
    });
    let of_tenant = least(|| {
        let set = HashMap::from([(Arc::from("t2"), next())]);
        assert!(pressure.set(HashMap::new(), set, now()).is_empty());
    });
    [
        ("an enqueue", one),
        ("a batch of 50 tenants", batch),
        ("an enqueue of a tenant that is full", refusal),
        ("other bounds of a queue", bounds),
        ("another bound of a tenant", of_tenant),
    ]
}

#[test]
fn no_request_pays_for_queues_that_it_does_not_name() {
    let (few, many) = (costs(100), costs(9_999));
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("{what}: {few:?} with 100 queues, {many:?} with 9,999: {ratio:.1} times");
        // It was 57 to 340 times.
        assert!(ratio < 20.0, "{what}: {few:?}, {many:?}");
    }
}
