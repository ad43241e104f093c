//! A model of what sidecars and a store do together, and its check: every state of small fleets is visited, in which
//! sidecars die and stand still, workers die, calls are lost and doubled, and the store is away or forgets.
//!
//! `books.rs` is the store, `world.rs` what there is, `steps.rs` what may happen, `properties.rs` what must hold then.
//! `faults.rs` plants faults in them and says which property finds each. `traces.rs` holds the four real stores against the
//! books.
//!
//! `NIGHTLY=1 cargo test --test it protocol::larger` goes through larger fleets.

mod books;
mod faults;
mod properties;
mod sizes;
mod steps;
pub mod traces;
mod world;

use stateright::{Checker as _, HasDiscoveries, Model as _, Path};

use faults::Fault;
use sizes::{Fleet, LARGER, SMALL};
use steps::{Action, EVENTS, Event, Protocol};
use world::{Size, World};

/// How a state is reached.
type Way = Path<World, Action>;

/// Of a size, with a fault or without: the first promises that are broken, each with the way there, and how many states
/// there are.
fn check(size: &Size, fault: Option<Fault>) -> (Protocol, Vec<(&'static str, Way)>, usize) {
    let model = Protocol::new(size.clone(), fault);
    let checker = model
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let broken = checker.discoveries().into_iter().collect();
    let states = checker.unique_state_count();
    let events = checker
        .model()
        .events
        .load(std::sync::atomic::Ordering::Relaxed);
    (
        Protocol {
            events: events.into(),
            ..Protocol::new(size.clone(), fault)
        },
        broken,
        states,
    )
}

/// The steps of a way, one on each line.
fn told(way: &Path<World, Action>) -> String {
    let steps = way.clone().into_vec().into_iter();
    steps
        .map(|(world, action)| format!("{action:?} from {world:?}\n"))
        .collect()
}

/// Goes through all states of these fleets. Gives what has happened in none of them.
fn exhaust(fleets: &[Fleet]) -> Vec<Event> {
    let mut missing = EVENTS.to_vec();
    for (wrong, sidecars, jobs, ticks) in fleets {
        let (model, broken, states) = check(&Size::of(*sidecars, jobs, *ticks, wrong), None);
        println!(
            "{sidecars} sidecars, {} jobs, {ticks} ticks, {wrong:?}: {states} states",
            jobs.len()
        );
        if let Some((promise, way)) = broken.first() {
            panic!("{wrong:?} breaks {promise}:\n{}", told(way));
        }
        missing.retain(|event| !model.happened(*event));
    }
    missing
}

#[test]
fn no_promise_is_broken_in_a_small_fleet() {
    // Nothing holds because nothing happens.
    assert_eq!(exhaust(&SMALL), []);
}

/// Some minutes of one processor.
#[test]
fn larger_fleets_break_no_promise() {
    assert_eq!(exhaust(&LARGER), []);
}

#[test]
fn each_planted_fault_is_found_by_the_promise_that_it_breaks() {
    let mut wrong = Vec::new();
    for (fault, promise, what, sidecars, jobs, ticks) in faults::PLANTED {
        let (_, broken, states) = check(&Size::of(sidecars, jobs, ticks, what), Some(fault));
        let mut found: Vec<_> = broken.iter().map(|(promise, _)| *promise).collect();
        found.sort_unstable();
        println!("{fault:?}: {found:?} after {states} states");
        if !found.contains(&promise) {
            wrong.push(format!(
                "{fault:?} should break {promise}, and breaks {found:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
