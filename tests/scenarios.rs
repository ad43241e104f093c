//! Scenarios: one list, run under many seeds with a simulated network under a paused clock, once over
//! real sockets, and with limiting switched off, where their checks must fail.
//!
//! `cargo test --test scenarios simulated::NAME` runs one; `SEED=7` in the environment picks its seed.

#[path = "scenarios/faults.rs"]
mod faults;
#[path = "scenarios/flow.rs"]
mod flow;
mod harness;
#[path = "scenarios/held.rs"]
mod held;
#[path = "scenarios/limits.rs"]
mod limits;
#[path = "scenarios/lives.rs"]
mod lives;
#[path = "scenarios/order.rs"]
mod order;

use harness::Scenario;

scenarios! {
    limits::concurrency_gated: 20 limit real;
    limits::concurrency_held: 20 limit real;
    limits::rate_gated: 20 limit real;
    limits::rate_held: 20 limit real;
    limits::throttle_gated: 20 limit real;
    limits::throttle_held: 20 limit real;
    limits::own_concurrency_in_options: 20 limit real;
    limits::own_rate_at_top_level: 20 limit real;
    limits::own_throttle_in_meta: 20 limit real;
    limits::concurrency_and_rate: 20 limit;
    limits::rate_and_throttle: 20 limit;
    limits::all_three_gated: 20 limit;
    limits::queue_policy_and_own: 20 limit;
    limits::queue_level: 20 limit real;
    limits::refused_by_one_of_two: 5 limit real;
    limits::paused_key_spends_nothing: 5 limit real;
    limits::unlimited_bytes_are_equal: 2 real;
    limits::attempts_are_unchanged: 20 limit;
    limits::basics_spec: 20 limit;
    limits::basics_redis: 20 limit;
    limits::basics_postgres: 20 limit;
    limits::basics_lite: 20 limit;
    limits::basics_amqp: 20 limit;
    faults::hang_up_while_waiting: 25 limit real;
    faults::hang_up_during_the_claim: 16;
    faults::hang_ups_everywhere: 20 limit;
    faults::ack_reply_lost: 20 limit real;
    faults::ack_reply_cut: 20 limit;
    faults::ack_refused: 20 limit;
    faults::nack_reply_lost: 20 limit;
    faults::nack_refused: 20 limit;
    faults::ack_answer_lost_to_the_worker: 10 real;
    faults::backend_down_during_ack: 20 limit real;
    faults::backend_down_too_long: 5 limit;
    faults::backend_restarts: 20 limit;
    faults::held_job_handed_out_again: 10 limit;
    faults::fetch_answered_with_nonsense: 4 real;
    faults::fetch_reply_lost: 10 limit;
    faults::enqueue_reply_lost: 3 real;
    faults::everything_goes_wrong: 20 limit;
    held::seen_as_available: 10 real;
    held::cancelled_while_held: 18;
    held::paused_and_resumed: 10 limit;
    held::scopes_never_mix: 10 limit;
    held::held_stays_in_its_scope: 10;
    held::given_back_when_idle: 10;
    held::never_given_back_where_it_burns: 6;
    held::waits_only_with_reason: 3;
    order::priorities: 10 limit real;
    order::limited_high_lets_low_go: 5 limit;
    order::queues_left_to_right: 5;
    order::queues_with_different_room: 5 limit real;
    order::past_a_shut_key: 4 limit real;
    order::ten_times_the_hold: 5 limit;
    lives::longer_than_visibility: 20 limit;
    lives::worker_dies: 20 limit;
    lives::restarted_with_jobs_out: 20 limit;
    lives::gone_with_jobs_held: 10 limit;
    lives::drain_in_order: 10 real;
    lives::drain_times_out: 2;
    flow::throttle_is_used: 6 limit;
    flow::fast_throttle_is_used: 2 limit;
    flow::freed_slot_is_filled: 20 limit real;
    flow::many_keys: 10 limit;
    flow::trickle: 20;
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
