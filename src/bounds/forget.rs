//! Forgetting: names of queues come from requests, and nobody says when a queue is not used any more.

use std::sync::Arc;
use tokio::time::Instant;

use super::state::PressureState;

/// When more queues than this have state, those that were not used for longest are forgotten; one enqueue may
/// bring some more.
const MOST_QUEUES: usize = 10_000;

impl PressureState {
    /// A tenth of the queues that nobody uses goes when there are too many, and first those of which nothing is
    /// remembered, such as queues in which nothing was ever stored.
    pub(super) fn forget_idle(&mut self, now: Instant) {
        if self.queues.len() < MOST_QUEUES {
            return;
        }
        let mut idle: Vec<(bool, Instant, Arc<str>)> = (self.queues.iter())
            .filter(|(_, queue)| queue.estimate.in_flight == 0 && !queue.estimate.is_looking())
            .filter(|(_, queue)| queue.used < now && !queue.fleet.is_asking())
            .map(|(name, queue)| (queue.remembers(), queue.used, Arc::clone(name)))
            .collect();
        idle.sort();
        for (.., name) in idle.into_iter().take(MOST_QUEUES / 10) {
            self.queues.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::num::{NonZeroU32, NonZeroU64};
    use std::time::Duration;

    use super::*;
    use crate::{
        Admission, Counts, EnqueueOutcome, FileBounds, Given, HeldCount, Mark, Now, Pressure,
        StatsAnswer, TakenTo, Want,
    };
    use ojs_limit::{Rate, Timestamp, WindowKind};
    use ojs_policy::Pattern;

    fn at(seconds: u64, begun: Instant) -> Now {
        Now {
            at: begun + Duration::from_secs(seconds),
            stamp: Timestamp(1_770_000_000_000_000 + seconds * 1_000_000),
        }
    }

    /// Enqueues a job where nothing waits.
    fn enqueue(pressure: &Arc<Pressure>, queue: &str, now: Now) {
        let mut wants = vec![Want {
            jobs: 1,
            sizes: vec![100],
            ..Want::nothing(queue, pressure.bounds(queue).unwrap())
        }];
        let mut answer = pressure.admit(&mut wants, now);
        if let Admission::Wait(_) = answer {
            let told = StatsAnswer::Counts(Counts::default());
            pressure.end_look(queue, told, None, now);
            answer = pressure.admit(&mut wants, now);
        }
        match answer {
            Admission::Go(mut places) => drop(places.settle(EnqueueOutcome::Stored, &[])),
            other => panic!("{queue}: {other:?}"),
        }
    }

    fn leave(pressure: &Arc<Pressure>, queue: &str, now: Now) {
        let sent = Mark(pressure.mark().0 + 1);
        pressure.left(queue, 1, sent, TakenTo::Worker, now);
    }

    fn bounded(most: u64) -> Given {
        Given {
            max_depth: Some(most),
            max_bytes: Some(1_000_000),
            ..Given::default()
        }
    }

    #[test]
    fn what_is_empty_and_unused_is_forgotten() {
        let rate = Rate {
            limit: NonZeroU32::new(9).unwrap(),
            period: NonZeroU64::new(3_600_000_000).unwrap(),
            window: WindowKind::Sliding,
        };
        let slow = Given {
            enqueue_rate: Some(rate),
            ..bounded(9)
        };
        let entry = |name: &str, given| (Pattern::new(name), given);
        let file = |glob| {
            vec![
                entry("named", bounded(9)),
                entry("slow*", slow.clone()),
                entry(glob, bounded(9)),
            ]
        };
        let file = |glob| Arc::new(FileBounds::new(file(glob)));
        let pressure = Pressure::new(file("*"), |_| HeldCount::default());
        let begun = Instant::now();
        let set = HashMap::from([(Arc::from("set"), bounded(5))]);
        assert!(pressure.set(set, HashMap::new(), at(0, begun)).is_empty());
        let all = ["empty", "full", "named", "set", "slow", "used"];
        for queue in all {
            enqueue(&pressure, queue, at(0, begun));
            if queue != "full" {
                leave(&pressure, queue, at(1, begun));
            }
        }
        let names = |seconds: u64| {
            pressure.forget_unused(at(seconds, begun));
            let mut names = pressure.names();
            names.sort();
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names(600), all);
        enqueue(&pressure, "used", at(601, begun));
        leave(&pressure, "used", at(602, begun));
        assert_eq!(names(602), ["full", "named", "set", "slow", "used"]);
        assert_eq!(names(1_202), ["full", "named", "set", "slow"]);
        assert_eq!(names(3_700), ["full", "named", "set"], "its hour is over");
        // What is bounded no more is told no more. It goes, whatever was in it, but not at once.
        let levels = pressure.publish(file("q*"), at(4_000, begun));
        assert!(levels.is_empty());
        let is_kept = || pressure.state.lock().queues.contains_key("full");
        assert_eq!(
            (names(4_599), is_kept()),
            (vec!["named".to_owned(), "set".to_owned()], true)
        );
        names(4_600);
        assert!(!is_kept());
    }

    #[test]
    fn the_room_of_those_that_were_forgotten_is_given_back() {
        let file = FileBounds::new(vec![(Pattern::new("*"), bounded(9))]);
        let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
        let begun = Instant::now();
        for nth in 0..5_000 {
            let queue = format!("q{nth}");
            enqueue(&pressure, &queue, at(0, begun));
            leave(&pressure, &queue, at(0, begun));
        }
        enqueue(&pressure, "last", at(600, begun));
        assert!(pressure.state.lock().queues.capacity() >= 5_000);
        pressure.forget_unused(at(600, begun));
        let state = pressure.state.lock();
        assert_eq!(state.queues.len(), 1);
        assert!(state.queues.capacity() < 100);
    }
}
