//! Scenarios: one list, run under many seeds with a simulated network under a paused clock, once over
//! real sockets, and with limiting switched off, where their checks must fail.
//!
//! `cargo test --test scenarios simulated::NAME` runs one; `SEED=7` in the environment picks its seed.

mod harness;
#[path = "scenarios/limits.rs"]
mod limits;

use harness::Scenario;

scenarios! {
    limits::concurrency_gated: 20 limit real;
    limits::concurrency_held: 20 limit real;
    limits::rate_gated: 20 limit;
    limits::rate_held: 20 limit;
    limits::throttle_gated: 20 limit real;
    limits::throttle_held: 20 limit real;
}

fn by_name(name: &str) -> Scenario {
    all()
        .into_iter()
        .find(|scenario| scenario.name == name)
        .expect("a scenario of that name")
}

#[test]
fn over_real_sockets() {
    for scenario in all().iter().filter(|scenario| scenario.real) {
        scenario.go_real();
    }
}

#[test]
fn without_limits_the_judges_see_it() {
    for scenario in all().iter().filter(|scenario| scenario.limits) {
        scenario.must_break();
    }
}
