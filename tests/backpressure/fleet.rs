//! Several sidecars that share the number of one queue, against an oracle: every call to the store and to the backend
//! in steps of its own, in any order. The queue goes over its bound by no more than what siblings had on their way
//! when a look set the number, and when all is quiet it can be filled to its bound.

use ojs_throttle::bounds::fleet;
use ojs_throttle::bounds::{
    Fleet, GrantedPlaces, Mark, SharedNumber, StatsAnswer, TakenPlaces, TakenTo, UntoldChange,
    WantedPlaces,
};
use proptest::prelude::*;

use super::prelude::*;

/// Few enough that the store is asked for every place.
const BOUND: u64 = 20;

/// The number in the store.
#[derive(Clone, Copy, Default)]
struct Number {
    value: i64,
    put_at: u64,
}

/// A look on its way.
#[derive(Clone, Copy)]
enum Look {
    Begun,
    /// The number was read.
    Read(Number),
    /// The backend has answered.
    StatsAnswer(Number, Counts),
}

/// One sidecar, and what it has on its way.
struct Node {
    pressure: Arc<Pressure>,
    wanted: Vec<WantedPlaces>,
    /// Enqueues that the backend has not stored yet, with how many jobs they have, and such as it has.
    sent: Vec<(TakenPlaces, u64)>,
    stored: Vec<(TakenPlaces, u64)>,
    look: Option<Look>,
    /// FETCHes, and how many jobs each was given.
    fetches: Vec<(Mark, Option<u64>)>,
    held: Arc<AtomicU64>,
}

impl Node {
    /// Jobs that the number may not have in it after a look of a sibling: those that are on their way.
    fn on_the_way(&self) -> u64 {
        let sent = self.sent.iter().chain(&self.stored).map(|(_, jobs)| jobs);
        sent.sum()
    }
}

fn want(pressure: &Pressure, jobs: u64) -> Want {
    Want {
        jobs,
        sizes: vec![1; jobs as usize],
        ..Want::nothing("q", pressure.bounds("q").unwrap())
    }
}

struct World {
    nodes: Vec<Node>,
    number: Number,
    waiting: u64,
    at: Instant,
    looks: u64,
    /// Whether looks know of the number.
    shared: bool,
    /// The most jobs that a look may have left out of the number.
    left_out: u64,
}

impl World {
    fn new(nodes: usize, shared: bool) -> World {
        let given = Given {
            max_depth: Some(BOUND),
            ..Given::default()
        };
        let file = Arc::new(FileBounds::new(vec![(Pattern::new("q"), given)]));
        let node = || {
            let held = Arc::<AtomicU64>::default();
            let jobs = Arc::clone(&held);
            Node {
                pressure: Pressure::new(Arc::clone(&file), move |_| HeldCount {
                    jobs: jobs.load(Ordering::Relaxed),
                    asked: 0,
                    siblings: nodes as u64 - 1,
                }),
                wanted: Vec::new(),
                sent: Vec::new(),
                stored: Vec::new(),
                look: None,
                fetches: Vec::new(),
                held,
            }
        };
        World {
            nodes: (0..nodes).map(|_| node()).collect(),
            number: Number::default(),
            waiting: 0,
            at: Instant::now(),
            looks: 0,
            shared,
            left_out: 0,
        }
    }

    fn held(&self, node: &Node) -> u64 {
        node.held.load(Ordering::Relaxed)
    }

    /// How many jobs wait.
    fn depth(&self) -> u64 {
        let held = self.nodes.iter().map(|node| self.held(node));
        self.waiting + held.sum::<u64>()
    }

    fn now(&self) -> Now {
        Now {
            at: self.at,
            stamp: Timestamp(1),
        }
    }

    fn value(&self) -> u64 {
        u64::try_from(self.number.value).unwrap_or(0)
    }

    fn shared_number(&self) -> SharedNumber {
        SharedNumber {
            jobs: self.value(),
            put_at: Timestamp(self.number.put_at),
        }
    }

    fn change(&mut self, untold: UntoldChange) {
        self.number.value += untold.by;
        if untold.since.0 == self.number.put_at {
            self.number.value -= untold.gone as i64;
        }
    }

    /// A producer offers jobs once; what does not go at once is offered again by another step.
    fn offer(&mut self, nth: usize, jobs: u64) -> bool {
        let now = self.now();
        let node = &mut self.nodes[nth];
        let mut wants = vec![want(&node.pressure, jobs)];
        match node.pressure.admit(&mut wants, now) {
            Admission::Go(mut places) => {
                places.sending();
                node.sent.push((places, jobs));
                return true;
            }
            Admission::Wait(looks) if looks.iter().any(|look| look.begin) => {
                assert!(node.look.is_none());
                node.look = Some(Look::Begun);
            }
            _ => {}
        }
        let wanted = fleet::take_wanted(&node.pressure).into_iter();
        node.wanted.extend(wanted.map(|(_, wanted)| wanted));
        false
    }

    /// The store is asked for places.
    fn grant(&mut self, nth: usize) {
        if self.nodes[nth].wanted.is_empty() {
            return;
        }
        let WantedPlaces {
            jobs,
            bound,
            untold,
        } = self.nodes[nth].wanted.remove(0);
        self.change(untold);
        let jobs = jobs.min(bound.saturating_sub(self.value()));
        self.number.value += jobs as i64;
        let number = self.shared_number();
        let granted = Some(GrantedPlaces { jobs, number });
        fleet::granted(&self.nodes[nth].pressure, "q", granted, self.now());
    }

    /// The store is told what is untold.
    fn tell(&mut self, nth: usize) {
        for (_, untold) in fleet::take_untold(&self.nodes[nth].pressure) {
            self.change(untold);
            let number = self.shared_number();
            fleet::heard(&self.nodes[nth].pressure, "q", number, self.now());
        }
    }

    fn step_look(&mut self, nth: usize) {
        let now = self.now();
        let Some(look) = self.nodes[nth].look else {
            return;
        };
        let pressure = Arc::clone(&self.nodes[nth].pressure);
        self.nodes[nth].look = match look {
            Look::Begun => {
                self.change(fleet::take_untold_of(&pressure, "q"));
                Some(Look::Read(self.number))
            }
            Look::Read(before) => {
                pressure.note_asked("q");
                let all = self.nodes.iter().map(Node::on_the_way).sum();
                self.left_out = self.left_out.max(all);
                let counts = Counts {
                    available: self.waiting,
                    ..Counts::default()
                };
                Some(Look::StatsAnswer(before, counts))
            }
            Look::StatsAnswer(before, counts) => {
                let others = self.depth() - self.waiting - self.held(&self.nodes[nth]);
                if self.number.put_at <= before.put_at {
                    let found = fleet::depth_found(&pressure, "q", &counts, others, now);
                    self.looks += 1;
                    let since = self.number.value - before.value;
                    self.number = Number {
                        value: (found as i64 + since).max(0),
                        put_at: self.looks,
                    };
                }
                let fleet = self.shared.then(|| Fleet {
                    held: others,
                    number: self.shared_number(),
                });
                pressure.end_look("q", StatsAnswer::Counts(counts), fleet, now);
                None
            }
        };
    }

    fn step_jobs(&mut self, nth: usize, what: u64) {
        let node = &mut self.nodes[nth];
        match what {
            0 if !node.sent.is_empty() => {
                let sent = node.sent.remove(0);
                self.waiting += sent.1;
                node.stored.push(sent);
            }
            1 if !node.stored.is_empty() => {
                node.stored.remove(0).0.settle(EnqueueOutcome::Stored, &[]);
            }
            2 if !node.sent.is_empty() => {
                node.sent.remove(0).0.settle(EnqueueOutcome::Refused, &[]);
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
                    node.pressure
                        .left("q", given.unwrap(), sent, TakenTo::Worker, now);
                }
            }
        }
    }

    /// A sidecar claims all jobs that wait, and holds them.
    fn hold_all(&mut self, nth: usize) {
        let now = self.now();
        let jobs = std::mem::take(&mut self.waiting);
        let node = &mut self.nodes[nth];
        let sent = node.pressure.mark();
        node.held.fetch_add(jobs, Ordering::Relaxed);
        node.pressure.left("q", jobs, sent, TakenTo::Hold, now);
    }

    fn take(&mut self, choice: u32) {
        let nth = choice as usize % self.nodes.len();
        let (what, more) = ((choice / 8) % 16, u64::from(choice / 128));
        match what {
            0..=3 => drop(self.offer(nth, 1 + more % 3)),
            4..=6 => self.grant(nth),
            7..=9 => self.step_look(nth),
            10..=12 => self.step_jobs(nth, more % 8),
            13 => self.step_fetch(nth, more % 3),
            14 => self.tell(nth),
            _ => self.at += Duration::from_millis(more % 150),
        }
    }

    /// All that is on its way arrives.
    fn arrive(&mut self) {
        for nth in 0..self.nodes.len() {
            for _ in 0..60 {
                self.grant(nth);
                self.step_jobs(nth, 0);
                self.step_jobs(nth, 1);
                self.step_fetch(nth, 1);
                self.step_fetch(nth, 2);
                self.step_look(nth);
            }
        }
    }

    /// Producers offer until nobody takes another job.
    fn fill(&mut self) {
        self.arrive();
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
                self.tell(nth);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_fleet_goes_over_its_bound_by_what_is_on_its_way_and_is_not_kept_below_it(
        choices in prop::collection::vec(any::<u32>(), 1..1_000)
    ) {
        let mut world = World::new(3, true);
        for choice in choices {
            world.take(choice);
            let most = BOUND + world.left_out;
            prop_assert!(world.depth() <= most, "{} of {most} wait", world.depth());
        }
        world.fill();
        prop_assert!(world.depth() >= BOUND);
    }
}

/// Offers at each sidecar in turn what fits.
fn rush(world: &mut World) {
    for nth in 0..world.nodes.len() {
        assert!(!world.offer(nth, 1), "a look comes first");
    }
    world.arrive();
    for _ in 0..2 * BOUND {
        for nth in 0..world.nodes.len() {
            world.offer(nth, 1);
            world.grant(nth);
        }
    }
    world.arrive();
}

/// All of them looked when nothing waited, and fill the queue at once.
#[test]
fn sidecars_that_share_a_number_fill_a_queue_to_its_bound() {
    let mut world = World::new(3, true);
    rush(&mut world);
    assert_eq!(world.depth(), BOUND);
}

/// The same without the number: the oracle must find sidecars that do not know of each other.
#[test]
fn sidecars_that_count_alone_go_over_it() {
    let mut world = World::new(3, false);
    rush(&mut world);
    assert!(world.depth() > BOUND, "{}", world.depth());
}

/// A sidecar has looked before the others filled the queue: their look is the newer one, and counts.
#[test]
fn an_older_look_does_not_replace_a_newer_one() {
    let mut world = World::new(2, true);
    world.offer(0, 1);
    (0..2).for_each(|_| world.step_look(0));
    for _ in 0..3 * BOUND {
        world.offer(1, 1);
        (0..3).for_each(|_| world.step_look(1));
        world.grant(1);
        (0..2).for_each(|what| world.step_jobs(1, what));
    }
    assert_eq!(world.depth(), BOUND);
    world.step_look(0);
    for _ in 0..2 * BOUND {
        world.offer(0, 1);
        world.grant(0);
    }
    world.arrive();
    assert_eq!(world.depth(), BOUND);
}

/// What another sidecar holds waits, too.
#[test]
fn what_another_sidecar_holds_waits() {
    let mut world = World::new(2, true);
    world.fill();
    world.hold_all(1);
    world.fill();
    assert_eq!((world.waiting, world.depth()), (0, BOUND));
}

/// A sibling's look finds a queue without the jobs that a FETCH has just got. Who made that FETCH hears of it later, and
/// takes them off no second time.
#[test]
fn jobs_that_a_siblings_look_saw_leave_are_taken_off_once() {
    // Its answer comes after the look, or before that but is told after it; a word of the store comes between, or not.
    for (late, heard) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut world = World::new(2, true);
        world.fill();
        assert_eq!(world.depth(), BOUND);
        let look = |world: &mut World, nth| {
            assert!(!world.offer(nth, 1));
            (0..3).for_each(|_| world.step_look(nth));
        };
        world.at += Duration::from_millis(110);
        look(&mut world, 0);
        world.step_fetch(0, 0);
        world.step_fetch(0, 1);
        if !late {
            world.step_fetch(0, 2);
        }
        look(&mut world, 1);
        if heard {
            let (number, now) = (world.shared_number(), world.now());
            fleet::heard(&world.nodes[0].pressure, "q", number, now);
        }
        world.step_fetch(0, 2);
        world.tell(0);
        for _ in 0..2 * BOUND {
            for nth in [0, 1] {
                world.offer(nth, 1);
                world.grant(nth);
            }
        }
        world.arrive();
        assert_eq!(world.depth(), BOUND, "{late} {heard}");
    }
}
