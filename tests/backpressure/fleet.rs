//! Several sidecars' parts in one queue against an oracle: every call to the store and to the backend in steps
//! of its own, in any order, with jobs that leave behind our back, and jobs that sidecars hold back and take over
//! from each other. Never may more jobs than the bound wait, at the backend, in a hold or on their way there, and
//! when all is quiet the queue can be filled to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ojs_throttle::limit::Timestamp;
use ojs_throttle::policy::Pattern;
use ojs_throttle::pressure::{
    Answer, CLAIM, Counts, FileBounds, Given, Held, Lease, Leased, Mark, Now, Others, Outcome,
    Places, Pressure, Shared, Told, Want,
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
    Read(Shared, bool),
    /// The backend has answered; what others hold is counted from then on. The last says whether more may be on
    /// its way to them.
    Told(Shared, u64, Instant, bool),
    Counted(Shared, u64, Others),
}

/// Jobs that were claimed to be held.
struct Claim {
    sent: Mark,
    /// How many, and when; `None`: the backend has not heard of it.
    given: Option<(u64, Instant)>,
    /// Whether they are in the store.
    registered: bool,
}

/// One sidecar, and what it has on its way.
struct Node {
    pressure: Arc<Pressure>,
    leases: Vec<Leasing>,
    sent: Vec<(Places, u64)>,
    stored: Vec<Places>,
    look: Option<Looking>,
    fetches: Vec<(Mark, Option<u64>)>,
    claims: Vec<Claim>,
    /// Jobs in its hold, jobs that it asks for to hold them, and rows of jobs that it holds.
    held: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    rows: u64,
    /// Jobs that it has taken over and not read yet, and jobs that were taken over from it, of which it has not
    /// heard.
    adopting: u64,
    lost: u64,
}

/// What an enqueue of so many jobs wants.
fn want(pressure: &Pressure, jobs: u64) -> Want {
    Want {
        queue: "q".into(),
        bounds: pressure.bounds("q").unwrap(),
        jobs,
        sizes: vec![1; jobs as usize],
        keys: Vec::new(),
        tenants: Vec::new(),
        droppable: Vec::new(),
        pace: None,
        paused: false,
        gone: 0,
        drop: 0,
    }
}

struct World {
    nodes: Vec<Node>,
    granted: u64,
    open: i64,
    waiting: u64,
    most: u64,
    at: Instant,
    /// Whether looks know of the others' enqueues, and of what they hold.
    shared: bool,
    counts: bool,
}

impl World {
    fn new(nodes: usize, shared: bool) -> World {
        let given = Given {
            max_depth: Some(BOUND),
            ..Given::default()
        };
        let file = Arc::new(FileBounds::new(vec![(Pattern::new("q"), given)]));
        let node = || {
            let (held, asked) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
            let (jobs, claims) = (Arc::clone(&held), Arc::clone(&asked));
            Node {
                pressure: Pressure::new(Arc::clone(&file), move |_| Held {
                    jobs: jobs.load(Ordering::Relaxed),
                    asked: claims.load(Ordering::Relaxed),
                }),
                leases: Vec::new(),
                sent: Vec::new(),
                stored: Vec::new(),
                look: None,
                fetches: Vec::new(),
                claims: Vec::new(),
                held,
                asked,
                rows: 0,
                adopting: 0,
                lost: 0,
            }
        };
        World {
            nodes: (0..nodes).map(|_| node()).collect(),
            granted: 0,
            open: 0,
            waiting: 0,
            most: 0,
            at: Instant::now(),
            shared,
            counts: true,
        }
    }

    /// How many jobs wait.
    fn depth(&self) -> u64 {
        let claims = self.nodes.iter().flat_map(|node| &node.claims);
        let on_their_way = claims.filter(|claim| !claim.registered);
        let on_their_way = on_their_way.filter_map(|claim| claim.given);
        let rows = self.nodes.iter().map(|node| node.rows);
        self.waiting + rows.sum::<u64>() + on_their_way.map(|(jobs, _)| jobs).sum::<u64>()
    }

    /// Time passes: what was claimed long ago arrives.
    fn pass(&mut self, time: Duration) {
        for nth in 0..self.nodes.len() {
            loop {
                let mut claims = self.nodes[nth].claims.iter();
                let late = |claim: &Claim| {
                    let given = claim.given;
                    given.is_some_and(|(_, at)| at + CLAIM <= self.at + time)
                };
                let Some(place) = claims.position(late) else {
                    break;
                };
                self.step_claim(nth, place);
            }
        }
        self.at += time;
    }

    /// Claimed jobs get rows, then they are held.
    fn step_claim(&mut self, nth: usize, place: usize) {
        let now = self.now();
        let node = &mut self.nodes[nth];
        let Some((jobs, _)) = node.claims.get(place).and_then(|claim| claim.given) else {
            return;
        };
        if !std::mem::replace(&mut node.claims[place].registered, true) {
            node.rows += jobs;
            return;
        }
        let claim = node.claims.remove(place);
        node.held.fetch_add(jobs, Ordering::Relaxed);
        node.pressure.left("q", jobs, claim.sent, false, now);
        node.asked.fetch_sub(2, Ordering::Relaxed);
    }

    fn step_hold(&mut self, nth: usize, what: u64) {
        let now = self.now();
        let other = (nth + 1) % self.nodes.len();
        let node = &mut self.nodes[nth];
        let there = |held: &AtomicU64| held.load(Ordering::Relaxed);
        match what {
            0 => {
                node.asked.fetch_add(2, Ordering::Relaxed);
                node.claims.push(Claim {
                    sent: node.pressure.mark(),
                    given: None,
                    registered: false,
                });
            }
            1 => {
                let mut claims = node.claims.iter_mut();
                if let Some(claim) = claims.find(|claim| claim.given.is_none()) {
                    let jobs = self.waiting.min(2);
                    self.waiting -= jobs;
                    claim.given = Some((jobs, self.at));
                }
            }
            2 | 3 => {
                let given = |claim: &Claim| claim.given.is_some();
                if let Some(place) = node.claims.iter().position(given) {
                    self.step_claim(nth, place);
                }
            }
            4 if there(&node.held) > node.lost => {
                node.rows -= 1;
                node.held.fetch_sub(1, Ordering::Relaxed);
                node.pressure.started("q", "job", now);
            }
            // A sibling takes one over, reads it, and its former owner hears of it.
            5 if there(&node.held) > node.lost => {
                (node.rows, node.lost) = (node.rows - 1, node.lost + 1);
                let taker = &mut self.nodes[other];
                (taker.rows, taker.adopting) = (taker.rows + 1, taker.adopting + 1);
                taker.asked.fetch_add(1, Ordering::Relaxed);
            }
            6 if node.adopting > 0 => {
                node.adopting -= 1;
                node.held.fetch_add(1, Ordering::Relaxed);
                node.asked.fetch_sub(1, Ordering::Relaxed);
            }
            7 if node.lost > 0 => {
                node.lost -= 1;
                node.pressure.taken_over("q");
                node.held.fetch_sub(1, Ordering::Relaxed);
            }
            _ => {}
        }
        if self.depth() > self.most {
            self.most = self.depth();
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
        let mut wants = vec![want(&node.pressure, jobs)];
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
        let rows: u64 = self.nodes.iter().map(|node| node.rows).sum();
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
                let follows = node.pressure.asking("q", false, 0, now.at);
                Some(Looking::Read(Shared { granted, open }, follows))
            }
            Looking::Read(shared, follows) => {
                let from = if follows { now.at } else { now.at + CLAIM };
                Some(Looking::Told(shared, self.waiting, from, follows))
            }
            Looking::Told(_, _, from, _) if now.at < from => Some(look),
            Looking::Told(shared, available, _, more) => {
                let held = rows - node.rows;
                Some(Looking::Counted(shared, available, Others { held, more }))
            }
            Looking::Counted(shared, available, others) => {
                let counts = Counts {
                    available,
                    ..Counts::default()
                };
                let shared = Some(shared).filter(|_| self.shared);
                let others = match self.counts {
                    true => others,
                    false => Others::default(),
                };
                let told = Told::Counts(counts);
                node.pressure.looked("q", told, (shared, Some(others)), now);
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
                node.stored.push(places);
                self.most = self.most.max(self.depth());
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

    /// A producer gets all that there is at one sidecar, while nothing moves elsewhere.
    fn rush(&mut self, nth: usize) {
        for _ in 0..10 {
            self.offer(nth, 1);
            (0..3).for_each(|_| self.step_look(nth));
            (0..3).for_each(|_| self.step_lease(nth));
            (0..2).for_each(|what| self.step_jobs(nth, what));
        }
    }

    fn take(&mut self, choice: u32) {
        let nth = choice as usize % self.nodes.len();
        let (what, more) = ((choice / 8) % 16, u64::from(choice / 128));
        match what {
            0..=3 => drop(self.offer(nth, 1 + more % 3)),
            4 => self.rush(nth),
            5..=7 => self.step_lease(nth),
            8..=9 => self.step_look(nth),
            10..=12 => self.step_jobs(nth, more % 8),
            13 => self.step_fetch(nth, more % 3),
            14 if more % 4 == 0 => self.waiting = self.waiting.saturating_sub(1),
            14 => self.tell_ended(nth, more.is_multiple_of(2)),
            15 if more % 3 == 0 => self.pass(Duration::from_millis(more / 3 % 150)),
            _ => self.step_hold(nth, more / 3 % 8),
        }
    }

    /// All that is on its way arrives.
    fn arrive(&mut self) {
        for nth in 0..self.nodes.len() {
            for _ in 0..60 {
                if let Some(Looking::Told(_, _, from, _)) = self.nodes[nth].look {
                    self.pass(from.saturating_duration_since(self.at));
                }
                (1..4).for_each(|what| self.step_hold(nth, what));
                (6..8).for_each(|what| self.step_hold(nth, what));
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
                self.pass(Duration::from_millis(110));
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

/// Places that a sibling has and that nobody knows to be used keep others out, and are not said to be jobs that wait.
#[test]
fn places_of_siblings_are_told_apart_from_jobs() {
    let mut world = World::new(2, true);
    let settled = |world: &mut World, nth: usize, jobs: u64| {
        (0..9).any(|_| {
            (0..4).for_each(|_| world.step_look(nth));
            (0..3).for_each(|_| world.step_lease(nth));
            world.pass(CLAIM);
            world.offer(nth, jobs)
        })
    };
    assert!(settled(&mut world, 0, 2));
    (0..2).for_each(|what| world.step_jobs(0, what));
    world.tell_ended(0, true);
    // On their way at the sibling.
    assert!(settled(&mut world, 1, 12));
    assert!(!settled(&mut world, 0, 7), "14 of 20 may come to wait");
    let pressure = world.nodes[0].pressure.clone();
    // Its look ends, and right after another it is asked.
    for _ in 0..2 {
        world.pass(CLAIM);
        (0..5).for_each(|_| world.step_look(0));
    }
    world.pass(CLAIM);
    world.offer(0, 7);
    (0..3).for_each(|_| world.step_look(0));
    world.pass(CLAIM);
    (0..2).for_each(|_| world.step_look(0));
    let full = match pressure.ask(&mut vec![want(&pressure, 7)], world.now()) {
        Answer::Full(full) => full,
        other => panic!("{other:?}"),
    };
    assert_eq!(full.at_least, 2);
    // Two wait, and that is far from the bound.
    let level = pressure.level("q").expect("it was looked at");
    assert_eq!((level.depth, level.above), (2, false));
    assert!((14..=BOUND).contains(&full.depth), "{}", full.depth);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_things_brings_a_fleet_over_its_bound_or_keeps_it_below(
        choices in prop::collection::vec(any::<u32>(), 1..1_000)
    ) {
        let mut world = World::new(3, true);
        for choice in choices {
            world.take(choice);
            prop_assert!(world.open >= 0);
            prop_assert!(world.depth() <= BOUND, "{} wait", world.depth());
        }
        world.fill();
        prop_assert_eq!(world.depth(), BOUND);
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

/// One sidecar looks while jobs are on their way into the hold of another, and does not know how many a third
/// has let in since its own last look.
#[test]
fn what_others_were_granted_may_be_on_its_way() {
    let mut world = World::new(3, true);
    // Looks that follow each other closely.
    let looked = |world: &mut World| {
        assert!(world.nodes[0].pressure.begin_look("q", true));
        world.nodes[0].look = Some(Looking::Begun);
        (0..5).for_each(|_| world.step_look(0));
        assert!(world.nodes[0].look.is_none());
    };
    for nth in 0..3 {
        world.offer(nth, 1);
    }
    world.quiet();
    looked(&mut world);
    for _ in 0..BOUND {
        world.rush(2);
        world.quiet();
    }
    assert_eq!(world.depth(), BOUND);
    (0..3).for_each(|_| (0..2).for_each(|what| world.step_hold(1, what)));
    world.pass(Duration::from_millis(50));
    looked(&mut world);
    for _ in 0..4 {
        world.rush(0);
    }
    world.arrive();
    assert_eq!(world.most, BOUND);
}

/// A queue that is full, and whose jobs are all claimed by another sidecar, which holds them; then a producer
/// offers. How many wait at most.
fn after_all_is_held(counts: bool) -> u64 {
    let mut world = World::new(2, true);
    world.counts = counts;
    world.fill();
    assert_eq!(world.depth(), BOUND);
    for _ in 0..BOUND {
        (0..2).for_each(|what| world.step_hold(1, what));
        // While some are on their way, and when they are there.
        world.rush(0);
        (2..4).for_each(|what| world.step_hold(1, what));
        world.pass(Duration::from_millis(110));
        world.rush(0);
    }
    world.arrive();
    world.most
}

#[test]
fn what_another_sidecar_holds_waits() {
    assert_eq!(after_all_is_held(true), BOUND);
    assert!(
        after_all_is_held(false) > BOUND,
        "who does not count it goes over"
    );
}
