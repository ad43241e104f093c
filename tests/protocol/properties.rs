//! What must hold in every state: the promises, with the named exceptions of the manual's chapter `promises` by number.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use stateright::{Model, Property};

use super::books::{KEYS, keys_of};
use super::steps::{Action, Protocol, Way};
use super::world::{Left, Life, Run, Stage, World};

/// From one state in so many it is tried whether all ends well: more where a fault is looked for among few states.
const HEALS_ONE_IN: [u64; 2] = [512, 16];

pub const P1: &str = "P1: no more are out than a limit allows";
pub const P2: &str = "P2: no window has more starts than a limit allows";
pub const P4: &str = "P4: a refusal spends nothing";
pub const P5: &str = "P5: a job is with one worker, or held";
pub const P6_COUNT: &str = "P6: slots are those of rows";
pub const P6_EARLY: &str = "P6: no slot is freed early";
pub const HEALS: &str = "P6, P7, P10: where nothing more goes wrong all ends well";

pub fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(P1, concurrency),
        Property::always(P2, rate),
        Property::always(P4, |_, world: &World| !world.wrong.spent),
        Property::always(P5, one_worker),
        Property::always(P6_COUNT, slots_are_those_of_rows),
        Property::always(P6_EARLY, none_is_freed_early),
        Property::always(HEALS, heals),
    ]
}

/// What runs under a claim that the backend has not ended (1).
fn live(world: &World) -> impl Iterator<Item = &Run> {
    world
        .runs
        .iter()
        .filter(|run| world.is_live(run.claim.job, run.claim.attempt))
}

fn has_row(world: &World, run: &Run) -> bool {
    world.store.rows[run.claim.job]
        .is_some_and(|row| row.is_out() && row.claim.number == run.claim.number)
}

/// Beyond it by what a failover or an emptied store forgot (34, 37), by as much again where a sidecar went on alone (41),
/// and by what ran before it was known (3, 4, 7).
fn concurrency(model: &Protocol, world: &World) -> bool {
    (0..KEYS).all(|key| {
        let Some(most) = model.rules.limits[key].slots else {
            return true;
        };
        let knows = |run: &Run| {
            world.store.rows[run.claim.job].is_some_and(|row| row.claim.keys == run.claim.keys)
        };
        let counts = |run: &&Run| run.claim.has(key) && (run.claim.number > 0 || knows(run));
        let alone = if world.spare.was_alone { most } else { 0 };
        live(world).filter(counts).count()
            <= usize::from(most) + usize::from(world.spare.slots[key] + alone)
    })
}

/// Beyond it by what a failover or an emptied store forgot (34, 37), and by as much again, or by one start of each, where
/// sidecars went on alone (41).
fn rate(model: &Protocol, world: &World) -> bool {
    (0..KEYS).all(|key| {
        let Some(most) = model.rules.limits[key].starts else {
            return true;
        };
        let alone = if world.spare.was_alone {
            most.max(model.size.sidecars as u8)
        } else {
            0
        };
        world.handed[key].len() <= usize::from(most) + usize::from(world.spare.starts[key] + alone)
    })
}

fn one_worker(_: &Protocol, world: &World) -> bool {
    let same = |run: &Run| {
        live(world)
            .filter(|other| other.claim.job == run.claim.job)
            .count()
    };
    !world.wrong.went_dead && !world.wrong.gave_up && live(world).all(|run| same(run) == 1)
}

fn slots_are_those_of_rows(_: &Protocol, world: &World) -> bool {
    let mut slots = [0; KEYS];
    for row in world.store.rows.iter().flatten().filter(|row| row.is_out()) {
        keys_of(row.claim.keys).for_each(|key| slots[key] += 1);
    }
    slots == world.store.slots
}

/// Whatever runs has its slot, unless its sidecar has still to tell a store of it that was away (41) or forgot it (34), or
/// died before it could.
fn none_is_freed_early(_: &Protocol, world: &World) -> bool {
    live(world).all(|run| {
        let through = &world.sidecars[run.through];
        let is_to_tell = through.life != Life::Up || through.is_suspect || run.claim.number == 0;
        has_row(world, run) || through.alone.is_some() || (run.is_excused && is_to_tell)
    })
}

/// What those do who live, if only the time for it comes.
fn is_done_in_time(action: Action) -> bool {
    match action {
        Action::Ask(_, _, way)
        | Action::Tell(_, way)
        | Action::Offer(_, _, way)
        | Action::TakeOver(_, _, way)
        | Action::OwnBack(_, _, way) => way == Way::Whole,
        Action::Lapse(_)
        | Action::Claim(..)
        | Action::Read(_)
        | Action::Hear(_)
        | Action::Ack(..) => true,
        Action::Sweep(_)
        | Action::Name(_)
        | Action::OwnAgain(_)
        | Action::Follow(..)
        | Action::Heed(..) => true,
        Action::Adopt(..) | Action::Limit(_) => true,
        _ => false,
    }
}

/// The rest of it goes as it should: each job is done, and no row and no slot stays.
#[expect(
    clippy::disallowed_types,
    reason = "another compiler may try other states"
)]
fn heals(model: &Protocol, world: &World) -> bool {
    let mut hasher = std::hash::DefaultHasher::new();
    world.hash(&mut hasher);
    let one_in = HEALS_ONE_IN[usize::from(model.rules.fault.is_some())];
    if !hasher.finish().is_multiple_of(one_in)
        || world.sidecars.iter().all(|one| one.life == Life::Dead)
    {
        return true;
    }
    let mut world = world.clone();
    (world.left, world.is_out, world.cut) = (Left::default(), false, None);
    for one in world
        .sidecars
        .iter_mut()
        .filter(|one| one.life == Life::Paused)
    {
        one.life = Life::Up;
    }
    let is_well = |world: &World| {
        let none_left = world.jobs.iter().all(|job| job.stage == Stage::Done);
        none_left && world.store.rows == [None; 3] && world.store.slots == [0; KEYS]
    };
    for _ in 0..24 {
        let mut done: HashMap<Action, u8> = HashMap::new();
        loop {
            let mut actions = Vec::new();
            model.actions(&world, &mut actions);
            // By turns: a job that is asked for in vain keeps no other one waiting.
            let times = |action: &&Action| done.get(*action).copied().unwrap_or(0);
            let is_next = |action: &&Action| is_done_in_time(**action) && times(action) < 2;
            let Some(next) = actions.iter().filter(is_next).min_by_key(times) else {
                break;
            };
            *done.entry(*next).or_default() += 1;
            // Some come to nothing.
            if let Some(after) = model.next_state(&world, *next) {
                world = after;
            }
        }
        if is_well(&world) {
            return true;
        }
        world = model.next_state(&world, Action::Tick).unwrap_or(world);
    }
    false
}
