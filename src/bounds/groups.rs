//! Jobs that have a bound of their own together: those of one key in a queue (`per_key`), and those of one tenant over
//! all queues. The counts change with each job, because there may be thousands of queues and an enqueue asks for few
//! groups.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::bounds::BoundsTable;
use super::line::WantedAhead;
use super::want::{BoundGroup, BoundMet, BoundUsage, Want};

/// How many jobs of each group wait or are on their way. Only used under the lock of the queues.
#[derive(Default, Debug)]
pub(super) struct GroupCounts(Mutex<HashMap<BoundGroup, GroupJobs>>);

/// The jobs of one group.
#[derive(Default, Debug)]
struct GroupJobs {
    jobs: u64,
    /// How many of them are in each queue.
    queues: HashMap<Arc<str>, u64>,
}

/// A group of which too many would wait.
#[derive(Clone, Debug)]
pub(super) struct FullGroup {
    pub(super) group: BoundGroup,
    /// How many of its jobs wait, and may.
    pub(super) usage: BoundUsage,
    /// How many more the enqueue brings.
    pub(super) wanted: u64,
}

impl GroupCounts {
    /// How many jobs of the group wait or are on their way.
    pub(super) fn count(&self, group: &BoundGroup) -> u64 {
        self.0.lock().get(group).map_or(0, |of_group| of_group.jobs)
    }

    /// The queues in which they are.
    pub(super) fn queues(&self, group: &BoundGroup) -> HashSet<Arc<str>> {
        let all = self.0.lock();
        let queues = all.get(group).into_iter();
        queues
            .flat_map(|of_group| of_group.queues.keys())
            .cloned()
            .collect()
    }

    /// Counts one more job in this queue.
    pub(super) fn add(&self, group: &BoundGroup, queue: &Arc<str>) {
        let mut all = self.0.lock();
        let of_group = all.entry(group.clone()).or_default();
        of_group.jobs += 1;
        *of_group.queues.entry(Arc::clone(queue)).or_default() += 1;
    }

    /// Takes a job in this queue off.
    pub(super) fn take(&self, group: &BoundGroup, queue: &str) {
        let mut all = self.0.lock();
        let Some(of_group) = all.get_mut(group) else {
            return;
        };
        if let Some(jobs) = of_group.queues.get_mut(queue) {
            *jobs -= 1;
            of_group.jobs -= 1;
            if *jobs == 0 {
                of_group.queues.remove(queue);
            }
        }
        if of_group.jobs == 0 {
            all.remove(group);
        }
    }

    /// The first group of which an enqueue would let too many wait, with those who wait `ahead` of it; before all others
    /// one that could never hold what it brings.
    pub(super) fn full(
        &self,
        table: &BoundsTable,
        wants: &[Want],
        ahead: &WantedAhead,
    ) -> Option<FullGroup> {
        let mut wanted: HashMap<&BoundGroup, u64> = HashMap::new();
        for group in wants.iter().flat_map(Want::all_groups) {
            *wanted.entry(group).or_default() += 1;
        }
        let full = wants.iter().flat_map(Want::all_groups).filter_map(|group| {
            let (met, bound) = match &group.queue {
                Some(of) => (BoundMet::Key, table.of(of)?.per_key.as_ref()?.max_depth),
                None => {
                    let most = table.tenant(&group.name).filter(|most| *most > 0)?;
                    (BoundMet::Tenant, most)
                }
            };
            let used = self.count(group);
            let usage = BoundUsage { used, bound, met };
            let wanted = wanted.get(group).copied()?;
            (!usage.fits(ahead.of_group(group) + wanted)).then(|| FullGroup {
                group: group.clone(),
                usage,
                wanted,
            })
        });
        full.min_by_key(|full| full.wanted <= full.usage.bound)
    }

    /// Forgets all jobs.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }

    /// Gives back the memory of groups of which nothing waits any more.
    pub(super) fn shrink(&self) {
        let mut all = self.0.lock();
        for of_group in all.values_mut() {
            let len = of_group.queues.len();
            of_group.queues.shrink_to(2 * len);
        }
        let len = all.len();
        all.shrink_to(2 * len);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        Admission, Counts, EnqueueOutcome, FileBounds, HeldCount, NewJob, Now, Pressure,
        StatsAnswer, TakenPlaces, Want,
    };
    use ojs_limit::Timestamp;
    use ojs_policy::Pattern;

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
                    let mut places = self.sent.remove(nth);
                    let mut ids = Vec::new();
                    for want in places.wants.iter().filter(|_| with_ids) {
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
                Step::Clear => {
                    self.sent.clear();
                    self.pressure.clear();
                }
            }
        }

        fn look(&self, queue: &str, available: u64) {
            let counts = Counts {
                available,
                ..Counts::default()
            };
            let told = StatsAnswer::Counts(counts);
            self.pressure.end_look(queue, told, None, self.now);
        }

        fn send(&mut self, jobs: &[(usize, usize)]) {
            let mut wants: BTreeMap<usize, Want> = BTreeMap::new();
            for (queue, tenant) in jobs {
                let name = format!("q{queue}");
                let want = wants.entry(*queue).or_insert_with(|| Want {
                    ..Want::nothing(&name, self.pressure.bounds(&name).unwrap())
                });
                want.jobs += 1;
                want.sizes.push(1);
                want.groups
                    .push(vec![BoundGroup::tenant(TENANTS[*tenant].into())]);
            }
            let mut wants = wants.into_values().collect();
            // Where others are on their way, one look is not enough.
            for _ in 0..2 {
                match self.pressure.admit(&mut wants, self.now) {
                    Admission::Go(places) => return self.sent.push(places),
                    Admission::Wait(looks) => {
                        looks.iter().for_each(|look| self.look(&look.queue, 1))
                    }
                    _ => return,
                }
            }
        }

        /// What a walk over all queues and all that is on its way finds of a tenant: how many, and where.
        fn walk(&self, tenant: &BoundGroup) -> (u64, HashSet<Arc<str>>) {
            let state = self.pressure.state.lock();
            let of_queues = state.queues.iter().flat_map(|(name, queue)| {
                let groups = queue.members.all_groups();
                groups.map(move |group| (name, group))
            });
            let sent = self.sent.iter().flat_map(|places| &places.wants);
            let sent =
                sent.flat_map(|want| want.all_groups().map(move |group| (&want.queue, group)));
            let all = of_queues.chain(sent).filter(|(_, group)| *group == tenant);
            let all: Vec<_> = all.map(|(name, _)| Arc::clone(name)).collect();
            (all.len() as u64, all.into_iter().collect())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn the_counts_are_what_a_walk_finds(steps in prop::collection::vec(step(), 1..60)) {
            let tenants = vec![(Pattern::new("a"), 5), (Pattern::new("*"), 9)];
            let file = FileBounds { tenants, ..FileBounds::default() };
            let now = Now { at: Instant::now(), stamp: Timestamp(1_770_000_000_000_000) };
            let pressure = Pressure::new(Arc::new(file), |_| HeldCount::default());
            let mut world = World { pressure, now, sent: Vec::new(), ids: 0 };
            for step in steps {
                world.take(step.clone());
                for tenant in TENANTS {
                    let (tenant, groups) = (BoundGroup::tenant(tenant.into()), &world.pressure.groups);
                    let counted = (groups.count(&tenant), groups.queues(&tenant));
                    prop_assert_eq!(counted, world.walk(&tenant), "{:?}", step);
                }
            }
            drop(world.sent);
            world.pressure.clear();
            prop_assert!(world.pressure.groups.0.lock().is_empty());
        }
    }
}
