//! How many jobs of each tenant wait, over all queues. The sums change with each queue, because there may be thousands
//! of queues and an enqueue asks for few tenants.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

/// The sums over all [`super::known::KeyCounts`] of tenants. They are only used under the lock of the queues.
#[derive(Default, Debug)]
pub(super) struct Sums(Mutex<HashMap<Arc<str>, Sum>>);

/// The jobs of one tenant that wait.
#[derive(Default, Debug)]
struct Sum {
    jobs: u64,
    /// The queues that they are in.
    queues: HashSet<Arc<str>>,
}

impl Sums {
    /// How many jobs of the tenant wait or are on their way.
    pub(super) fn count(&self, tenant: &str) -> u64 {
        self.0.lock().get(tenant).map_or(0, |sum| sum.jobs)
    }

    /// The queues in which they are.
    pub(super) fn queues(&self, tenant: &str) -> Vec<Arc<str>> {
        let all = self.0.lock();
        let queues = all.get(tenant).into_iter().flat_map(|sum| &sum.queues);
        queues.cloned().collect()
    }

    /// Counts one more job in this queue.
    pub(super) fn add(&self, tenant: &Arc<str>, queue: &Arc<str>) {
        let mut all = self.0.lock();
        let sum = match all.get_mut(tenant) {
            Some(sum) => sum,
            None => all.entry(Arc::clone(tenant)).or_default(),
        };
        sum.jobs += 1;
        if !sum.queues.contains(queue) {
            sum.queues.insert(Arc::clone(queue));
        }
    }

    /// Takes jobs off; `left`: a queue in which none of the tenant is left.
    pub(super) fn take(&self, tenant: &str, jobs: u64, left: Option<&Arc<str>>) {
        let mut all = self.0.lock();
        let Some(sum) = all.get_mut(tenant) else {
            return;
        };
        sum.jobs = sum.jobs.saturating_sub(jobs);
        if let Some(queue) = left {
            sum.queues.remove(queue);
        }
        if sum.queues.is_empty() {
            all.remove(tenant);
        }
    }

    /// Gives back the memory of tenants of which nothing waits any more.
    pub(super) fn shrink(&self) {
        let mut all = self.0.lock();
        for sum in all.values_mut() {
            let len = sum.queues.len();
            sum.queues.shrink_to(2 * len);
        }
        let len = all.len();
        all.shrink_to(2 * len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Map;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::limit::Timestamp;
    use crate::policy::Pattern;
    use crate::pressure::{
        Admission, Counts, EnqueueOutcome, FileBounds, HeldCount, NewJob, Now, Pressure, StatsTold,
        TakenPlaces, Want,
    };

    const TENANTS: [&str; 3] = ["a", "b", "c"];

    /// One step; queues, tenants and what is on its way go by number.
    #[derive(Clone, Debug)]
    enum Step {
        /// An enqueue of a job of each of these tenants, into these queues.
        Send(Vec<(usize, usize)>),
        /// One is stored, and answered with the ids or without, or refused.
        Settle(usize, EnqueueOutcome, bool),
        /// A job leaves, or is started out of the hold.
        Gone(usize, usize),
        /// The backend says how many wait.
        Look(usize, u64),
        /// Time goes by, and what nobody uses is forgotten.
        Forget(u64),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let jobs = prop::collection::vec((0..4_usize, 0..3_usize), 1..5);
        let outcome = prop_oneof![Just(EnqueueOutcome::Stored), Just(EnqueueOutcome::Refused)];
        prop_oneof![
            8 => jobs.prop_map(Step::Send),
            6 => (0..4_usize, outcome, any::<bool>()).prop_map(|(n, o, ids)| Step::Settle(n, o, ids)),
            4 => (0..4_usize, 0..20_usize).prop_map(|(queue, job)| Step::Gone(queue, job)),
            3 => (0..4_usize, 0..5_u64).prop_map(|(queue, jobs)| Step::Look(queue, jobs)),
            2 => (0..900_u64).prop_map(Step::Forget),
            1 => Just(Step::Clear),
        ]
    }

    struct World {
        pressure: Arc<Pressure>,
        now: Now,
        sent: Vec<TakenPlaces>,
        ids: usize,
    }

    impl World {
        fn take(&mut self, step: Step) {
            match step {
                Step::Send(jobs) => self.send(&jobs),
                Step::Settle(nth, outcome, with_ids) if nth < self.sent.len() => {
                    let places = self.sent.remove(nth);
                    let mut ids = Vec::new();
                    for want in places.wants().filter(|_| with_ids) {
                        for _ in 0..want.jobs {
                            // Some are used again.
                            self.ids = (self.ids + 1) % 20;
                            ids.push(NewJob {
                                queue: Arc::clone(&want.queue),
                                id: self.ids.to_string().into(),
                                due: None,
                            });
                        }
                    }
                    let _levels = places.settle(outcome, &ids);
                }
                Step::Settle(..) => {}
                Step::Gone(queue, job) => {
                    let (queue, job) = (format!("q{queue}"), job.to_string());
                    self.pressure.gone(&queue, &job, self.now);
                }
                Step::Look(queue, jobs) => self.look(&format!("q{queue}"), jobs),
                Step::Forget(seconds) => {
                    self.now.at += Duration::from_secs(seconds);
                    self.pressure.forget_unused(self.now);
                }
                Step::Clear => self.pressure.clear(),
            }
        }

        fn look(&self, queue: &str, available: u64) {
            let counts = Counts {
                available,
                ..Counts::default()
            };
            let told = StatsTold::Counts(counts);
            self.pressure.looked(queue, told, None, self.now);
        }

        fn send(&mut self, jobs: &[(usize, usize)]) {
            let mut wants: Map<usize, Want> = Map::new();
            for (queue, tenant) in jobs {
                let name = format!("q{queue}");
                let want = wants.entry(*queue).or_insert_with(|| Want {
                    ..Want::nothing(&name, self.pressure.bounds(&name).unwrap())
                });
                want.jobs += 1;
                want.sizes.push(1);
                want.tenants.push(TENANTS[*tenant].into());
            }
            let mut wants = wants.into_values().collect();
            // Where others are on their way, one look is not enough.
            for _ in 0..2 {
                match self.pressure.ask(&mut wants, self.now) {
                    Admission::Go(places) => return self.sent.push(places),
                    Admission::Look(looks) => {
                        looks.iter().for_each(|look| self.look(&look.queue, 1))
                    }
                    _ => return,
                }
            }
        }

        /// What a walk over all queues finds of a tenant: how many, and where.
        fn walk(&self, tenant: &str) -> (u64, HashSet<Arc<str>>) {
            let state = self.pressure.state.lock();
            let each = state.queues.iter();
            let each =
                each.map(|(name, queue)| (Arc::clone(name), queue.members.tenants.count(tenant)));
            let some: Vec<_> = each.filter(|(_, jobs)| *jobs > 0).collect();
            let jobs = some.iter().map(|(_, jobs)| jobs).sum();
            (jobs, some.into_iter().map(|(name, _)| name).collect())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn the_sums_are_what_a_walk_finds(steps in prop::collection::vec(step(), 1..60)) {
            let tenants = vec![(Pattern::new("a"), 5), (Pattern::new("*"), 9)];
            let file = FileBounds::new(Vec::new()).with_tenants(tenants);
            let now = Now { at: Instant::now(), stamp: Timestamp(1_770_000_000_000_000) };
            let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
            let mut world = World { pressure, now, sent: Vec::new(), ids: 0 };
            for step in steps {
                world.take(step.clone());
                for tenant in TENANTS {
                    let sums = &world.pressure.sums;
                    let queues = sums.queues(tenant).into_iter().collect();
                    prop_assert_eq!((sums.count(tenant), queues), world.walk(tenant), "{:?}", step);
                }
            }
            drop(world.sent);
            world.pressure.clear();
            prop_assert!(world.pressure.sums.0.lock().is_empty());
        }
    }
}
