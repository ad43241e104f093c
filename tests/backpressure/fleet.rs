//! Several sidecars' parts in one queue against an oracle: every call to the store and to the backend in steps
//! of its own, in any order, with jobs that leave behind our back. The backend must never hold more than the
//! bound, and when all is quiet the queue can be filled to it.

use std::sync::Arc;
use std::time::Duration;

use ojs_throttle::limit::Timestamp;
use ojs_throttle::policy::Pattern;
use ojs_throttle::pressure::{
    Answer, Counts, FileBounds, Given, Held, Lease, Leased, Mark, Now, Outcome, Places, Pressure,
    Shared, Told, Want,
};
use proptest::prelude::*;
use tokio::time::Instant;

const BOUND: u64 = 20;

/// A call for places.
enum Leasing {
    Wanted(Lease),
    Opened(Lease),
    Answered(Leased),
}

/// A look.
#[derive(Clone, Copy)]
enum Looking {
    Begun,
    Granted(u64),
    Read(Shared),
    Told(Shared, u64),
}

/// One sidecar, and what it has on its way.
struct Node {
    pressure: Arc<Pressure>,
    leases: Vec<Leasing>,
    sent: Vec<(Places, u64)>,
    stored: Vec<Places>,
    look: Option<Looking>,
    fetches: Vec<(Mark, Option<u64>)>,
}

struct World {
    nodes: Vec<Node>,
    granted: u64,
    open: i64,
    waiting: u64,
    most: u64,
    at: Instant,
    /// Whether looks know of the others.
    shared: bool,
}

impl World {
    fn new(nodes: usize, shared: bool) -> World {
        let given = Given {
            max_depth: Some(BOUND),
            ..Given::default()
        };
        let file = Arc::new(FileBounds::new(vec![(Pattern::new("q"), given)]));
        let node = || Node {
            pressure: Pressure::new(Arc::clone(&file), |_| Held::default()),
            leases: Vec::new(),
            sent: Vec::new(),
            stored: Vec::new(),
            look: None,
            fetches: Vec::new(),
        };
        World {
            nodes: (0..nodes).map(|_| node()).collect(),
            granted: 0,
            open: 0,
            waiting: 0,
            most: 0,
            at: Instant::now(),
            shared,
        }
    }

    fn now(&self) -> Now {
        Now {
            at: self.at,
            stamp: Timestamp(1),
        }
    }

    /// A producer offers jobs once; what does not go at once is offered again by another step.
    fn offer(&mut self, nth: usize, jobs: u64) -> bool {
        let now = self.now();
        let node = &mut self.nodes[nth];
        let mut wants = vec![Want {
            queue: "q".into(),
            bounds: node.pressure.bounds("q").unwrap(),
            jobs,
            sizes: vec![1; jobs as usize],
            keys: Vec::new(),
            tenants: Vec::new(),
            droppable: Vec::new(),
            pace: None,
            drop: 0,
        }];
        match node.pressure.ask(&mut wants, now) {
            Answer::Go(mut places) => {
                places.sending();
                node.sent.push((places, jobs));
                return true;
            }
            Answer::Look(looks) if looks.iter().any(|look| look.begin) => {
                assert!(node.look.is_none());
                node.look = Some(Looking::Begun);
            }
            _ => {}
        }
        let wanted = node.pressure.take_leases(2).into_iter();
        node.leases
            .extend(wanted.map(|(_, lease)| Leasing::Wanted(lease)));
        false
    }

    fn step_lease(&mut self, nth: usize) {
        let now = self.now();
        let node = &mut self.nodes[nth];
        if node.leases.is_empty() {
            return;
        }
        let next = match node.leases.remove(0) {
            Leasing::Wanted(lease) => {
                self.open += lease.jobs as i64;
                Leasing::Opened(lease)
            }
            Leasing::Opened(lease) => {
                let most = lease.most.unwrap_or(u64::MAX);
                let jobs = lease.jobs.min(most.saturating_sub(self.granted));
                self.granted += jobs;
                self.open -= (lease.jobs - jobs) as i64;
                let granted = self.granted;
                Leasing::Answered(match jobs {
                    0 => Leased::None { granted },
                    jobs => Leased::Some { jobs, granted },
                })
            }
            Leasing::Answered(leased) => return node.pressure.leased("q", leased, 7, now),
        };
        node.leases.insert(0, next);
    }

    fn step_look(&mut self, nth: usize) {
        let now = self.now();
        let node = &mut self.nodes[nth];
        let Some(look) = node.look else {
            return;
        };
        node.look = match look {
            Looking::Begun => {
                for (_, jobs) in node.pressure.take_ended_of("q", 7) {
                    self.open -= jobs as i64;
                }
                Some(Looking::Granted(self.granted))
            }
            Looking::Granted(granted) => {
                let open = u64::try_from(self.open).unwrap();
                node.pressure.asking("q", false, 0);
                Some(Looking::Read(Shared { granted, open }))
            }
            Looking::Read(shared) => Some(Looking::Told(shared, self.waiting)),
            Looking::Told(shared, available) => {
                let counts = Counts {
                    available,
                    ..Counts::default()
                };
                let shared = Some(shared).filter(|_| self.shared);
                let told = Told::Counts(counts);
                node.pressure.looked("q", told, shared, now);
                None
            }
        };
    }

    fn step_jobs(&mut self, nth: usize, what: u64) {
        let node = &mut self.nodes[nth];
        match what {
            0 if !node.sent.is_empty() => {
                let (places, jobs) = node.sent.remove(0);
                self.waiting += jobs;
                self.most = self.most.max(self.waiting);
                node.stored.push(places);
            }
            1 if !node.stored.is_empty() => {
                node.stored.remove(0).settle(Outcome::Stored, &[]);
            }
            2 if !node.sent.is_empty() => {
                node.sent.remove(0).0.settle(Outcome::Refused, &[]);
            }
            _ => {}
        }
    }

    fn step_fetch(&mut self, nth: usize, what: u64) {
        let now = self.now();
        let node = &mut self.nodes[nth];
        match what {
            0 => node.fetches.push((node.pressure.mark(), None)),
            1 => {
                if let Some((_, given)) = node.fetches.iter_mut().find(|(_, given)| given.is_none())
                {
                    let jobs = self.waiting.min(2);
                    self.waiting -= jobs;
                    *given = Some(jobs);
                }
            }
            _ => {
                if let Some(at) = node.fetches.iter().position(|(_, given)| given.is_some()) {
                    let (sent, given) = node.fetches.remove(at);
                    node.pressure.left("q", given.unwrap(), sent, true, now);
                }
            }
        }
    }

    fn tell_ended(&mut self, nth: usize, idle: bool) {
        for (_, ended) in self.nodes[nth].pressure.take_ended(7, idle) {
            self.open -= ended.iter().map(|(_, jobs)| *jobs as i64).sum::<i64>();
        }
    }

    fn take(&mut self, choice: u32) {
        let nth = choice as usize % self.nodes.len();
        let (what, more) = ((choice / 8) % 16, u64::from(choice / 128));
        match what {
            0..=4 => drop(self.offer(nth, 1 + more % 3)),
            5..=7 => self.step_lease(nth),
            8..=9 => self.step_look(nth),
            10..=12 => self.step_jobs(nth, more % 8),
            13 => self.step_fetch(nth, more % 3),
            14 if more % 4 == 0 => self.waiting = self.waiting.saturating_sub(1),
            14 => self.tell_ended(nth, more.is_multiple_of(2)),
            _ => self.at += Duration::from_millis(more % 150),
        }
    }

    /// All that is on its way arrives.
    fn arrive(&mut self) {
        for nth in 0..self.nodes.len() {
            for _ in 0..60 {
                self.step_lease(nth);
                self.step_jobs(nth, 0);
                self.step_jobs(nth, 1);
                self.step_fetch(nth, 1);
                self.step_fetch(nth, 2);
                self.step_look(nth);
            }
        }
    }

    /// The same, and what is not used is given back.
    fn quiet(&mut self) {
        self.arrive();
        for nth in 0..self.nodes.len() {
            self.tell_ended(nth, true);
            self.tell_ended(nth, true);
        }
    }

    /// Producers offer until nobody takes another job.
    fn fill(&mut self) {
        self.quiet();
        let mut refused = 0;
        while refused < 6 * self.nodes.len() {
            for nth in 0..self.nodes.len() {
                self.at += Duration::from_millis(110);
                // It waits for a look, then for a place.
                let taken = (0..4).any(|_| {
                    let taken = self.offer(nth, 1);
                    self.arrive();
                    taken
                });
                refused = if taken { 0 } else { refused + 1 };
                self.quiet();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_things_brings_a_fleet_over_its_bound_or_keeps_it_below(
        choices in prop::collection::vec(any::<u32>(), 1..1_500)
    ) {
        let mut world = World::new(3, true);
        for choice in choices {
            world.take(choice);
            prop_assert!(world.open >= 0);
            prop_assert!(world.waiting <= BOUND, "{} wait", world.waiting);
        }
        world.fill();
        prop_assert_eq!(world.waiting, BOUND);
        prop_assert_eq!(world.open, 0);
    }
}

/// A look reads what was granted before what is open: what another takes between the two it counts twice
/// rather than not at all.
#[test]
fn what_is_taken_between_two_reads_counts() {
    let mut world = World::new(2, true);
    for nth in [0, 1] {
        assert!(!world.offer(nth, 1), "a look comes first");
    }
    world.arrive();
    assert!(!world.offer(0, 10), "it has no places yet");
    assert!(world.nodes[1].pressure.begin_look("q", true));
    world.nodes[1].look = Some(Looking::Begun);
    world.step_look(1);
    world.step_lease(0);
    world.step_lease(0);
    for _ in 0..3 {
        world.step_look(1);
    }
    world.step_lease(0);
    assert!(world.offer(0, 10));
    for _ in 0..3 * BOUND {
        world.offer(1, 1);
        world.step_lease(1);
    }
    world.arrive();
    assert!(world.most <= BOUND, "{}", world.most);
    // The next look mends it.
    world.fill();
    assert_eq!((world.waiting, world.most), (BOUND, BOUND));
}

/// The same without the store: the oracle must find sidecars that do not know of each other.
#[test]
fn sidecars_that_count_alone_go_over_it() {
    let mut world = World::new(3, false);
    for nth in [0, 1, 2] {
        assert!(!world.offer(nth, 1), "a look comes first");
    }
    world.quiet();
    for nth in [0, 1, 2] {
        for _ in 0..BOUND {
            world.offer(nth, 1);
        }
    }
    world.quiet();
    assert!(world.most > BOUND, "{}", world.most);
}
