//! Scenarios: one list, run under many seeds with a simulated network under a paused clock, once over
//! real sockets, and with limiting switched off, where their checks must fail.
//!
//! `cargo test --test it scenarios::simulated::NAME` runs one; `SEED=7` in the environment picks its seed, and
//! `SEEDS=500` runs it under so many. Dear ones run under all of theirs at night: `NIGHTLY=1`.

mod actions;
mod adopted;
mod attempts;
mod back;
mod beside;
mod bounds;
mod crossings;
mod deep;
mod faults;
mod flow;
mod given_back;
mod held;
mod judges;
mod limits;
mod lives;
mod neighbours;
mod order;
mod outages;
mod overdue;
mod reloads;
mod shadow;
mod shares;
mod stays;
mod stranded;
mod swift;
mod turns;
mod visibilities;
mod windows;

use crate::harness::Job;
use ojs_throttle::backend::Lax;
use serde_json::json;

/// What most of these tests use.
mod prelude {
    pub use std::time::Duration;

    pub use ojs_throttle::backend::{EventKind, Lax};
    pub use serde_json::{Value, json};
    pub use tokio::time::{Instant, timeout};

    pub(super) use super::{ONE, TWO, backends, job};
    pub use crate::harness::worker::Hands;
    pub use crate::harness::{Ctx, Fault, Job, Judge, Op, Way, Worker, World, pick};
}

/// Jobs of one tenant run one at a time, or two.
const ONE: &str = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 1\n";
const TWO: &str = "[[policy]]\nname = 'p'\nkey = 'k:{meta.tenant}'\nconcurrency = 2\n";

/// Each kind of backend that there is.
fn backends() -> [Lax; 5] {
    [
        Lax::spec(),
        Lax::redis(),
        Lax::postgres(),
        Lax::lite(),
        Lax::amqp(),
    ]
}

/// An email of tenant `a`, under the key `k:a`.
fn job() -> Job {
    Job::new("email.send")
        .queue("mail")
        .meta("tenant", json!("a"))
        .label("k:a")
}

crate::scenarios! {
    shares::by_weight_on_one: 1;
    shares::by_weight_on_three: 1;
    shares::back_in_a_moment: 1;
    shares::away_for_ten_seconds: 1;
    shares::behind_five_hundred: 1;
    shares::costs_use_the_limit: 2;
    shares::big_beside_small: 1;
    shares::big_polled_every_second: 1 | 2;
    shares::big_polled_every_two_seconds: 1 | 2;
    shares::all_slots_at_once: 1;
    shares::used_up_holds_nobody_up: 2;
    shares::a_line_drops_nothing: 1;
    shares::newcomers_and_an_honest_one: 2;
    shares::a_slow_sibling_wastes_nothing: 1;
    shares::settled_once: 2;
    bounds::hammered: 2 limit real;
    bounds::drained: 4 limit real;
    bounds::held: 2 limit;
    bounds::given_back: 4 limit;
    bounds::lost_answers: 2 limit;
    limits::alone_and_together: 80 / 10 limit each;
    limits::own: 24 / 4 limit each;
    limits::basics: 25 / 5 limit;
    limits::reloaded_under_load: 4 limit;
    limits::reloaded_to_be_limited: 10;
    limits::queue_policy_and_own: 6 limit;
    limits::refused_by_one_of_two: 5 limit real;
    limits::paused_key_spends_nothing: 5 limit real;
    limits::unlimited_bytes_are_equal: 2 real;
    limits::attempts_are_unchanged: 12 limit;
    faults::hang_up_while_waiting: 12 limit real;
    faults::hang_up_during_the_claim: 16;
    faults::hang_up_where_jobs_bring_limits: 4;
    faults::hang_ups_everywhere: 14 limit;
    faults::settling_fails: 30 / 10 limit real;
    faults::ack_answer_lost_to_the_worker: 10 real;
    faults::ack_answered_without_a_body: 2 real;
    faults::ack_is_slow_and_not_tried_again: 4;
    faults::nack_answer_lost_then_fails_alike: 8;
    faults::nack_reply_lost_and_claimed_again: 8;
    faults::backend_down_during_ack: 10 limit real;
    faults::backend_down_too_long: 5 limit;
    faults::backend_restarts: 12 limit;
    faults::held_job_handed_out_again: 10 limit;
    faults::fetch_answered_with_nonsense: 4 real;
    faults::fetch_reply_lost: 10 limit;
    faults::fetch_hangs: 8;
    faults::one_of_several_claims_fails: 3;
    faults::enqueue_reply_lost: 3 real;
    faults::everything_goes_wrong: 10 limit;
    attempts::nack_where_none_was_shown: 4;
    attempts::offered_where_none_was_shown: 4;
    attempts::fails_elsewhere_in_attempt_0: 2;
    crossings::nack_carried_out_before_an_outage: 8;
    crossings::requeue_reply_lost_and_claimed_again: 6;
    crossings::said_by_a_worker_that_lost_its_job: 12;
    crossings::nack_repeated_when_another_has_the_job: 4;
    crossings::ack_in_the_words_of_an_earlier_run: 4;
    crossings::more_that_hangs: 4;
    crossings::two_ends_of_a_held_job: 6;
    crossings::failed_end_of_a_job_in_hand: 4;
    crossings::paused_before_it_went_out: 4;
    crossings::two_pauses: 4;
    crossings::claim_that_is_over_when_its_reply_comes: 6;
    crossings::pause_given_up: 4;
    crossings::pause_without_an_answer: 4;
    crossings::pause_read_while_it_ends: 4;
    crossings::pause_carried_out_after_a_resume: 4;
    crossings::pauses_while_cut_off: 2;
    crossings::claims_of_a_free_queue_that_are_over: 2;
    crossings::paused_before_a_head_is_claimed: 4;
    crossings::cancelled_while_its_start_is_undone: 4;
    held::seen_while_claims_are_under_way: 8;
    held::settled_by_who_had_it: 2;
    held::keeps_no_dead_workers_job: 6;
    flow::one_slot_is_used: 8;
    held::cancelled_while_held: 9;
    held::scopes_never_mix: 6 limit;
    held::held_stays_in_its_scope: 10;
    held::given_back_when_idle: 10;
    given_back::slowly: 4 limit;
    given_back::unheard: 4;
    given_back::in_vain: 4;
    given_back::in_doubt: 4;
    held::never_given_back_where_it_burns: 6;
    held::kept_by_a_slow_backend: 4;
    held::kept_though_heartbeats_hang: 4;
    held::kept_each_under_its_own_claim: 2;
    held::waits_only_with_reason: 3;
    held::cancel_frees_the_slot: 2;
    held::held_past_a_short_visibility: 10 limit;
    held::held_past_an_unsaid_visibility: 2;
    held::goes_out_with_its_whole_visibility: 12;
    held::within_its_bytes: 2 limit;
    visibilities::short_beside_others: 12;
    visibilities::long_beside_others: 6;
    visibilities::short_and_unheard: 6;
    visibilities::long_beside_a_late_heartbeat: 9;
    visibilities::very_short_beside_others: 12;
    visibilities::in_whole_seconds: 8 limit;
    order::priorities: 10 limit real;
    order::higher_than_what_is_held: 8;
    order::kept_without_a_word: 6;
    order::limited_high_lets_low_go: 5 limit;
    order::queues_left_to_right: 5;
    order::queues_with_different_room: 5 limit real;
    order::past_a_shut_key: 4 limit;
    order::ten_times_the_hold: 3 limit;
    outages::one_is_cut_off: 8;
    outages::one_is_cut_off_and_open: 8;
    outages::a_worker_comes_late: 6;
    outages::all_are_cut_off: 8 | 16;
    outages::slow: 12 limit;
    outages::done_twice: 12 limit;
    outages::done_unheard: 12 limit;
    outages::taken_over_with_trouble: 12;
    outages::settled_elsewhere_without_the_row: 12;
    outages::beaten_elsewhere_without_the_row: 6;
    outages::ended_elsewhere_and_unheard: 6;
    outages::looked_up_behind_a_gateway: 4;
    outages::one_cannot_be_looked_up: 6;
    back::not_kept: 4;
    beside::of_a_worker: 3;
    beside::of_a_worker_whose_own_hangs: 3;
    beside::of_a_worker_that_hangs_up: 3;
    beside::of_held_jobs: 3;
    outages::hang_up_while_slow: 12;
    outages::slow_and_limited_from_now_on: 12;
    lives::longer_than_visibility: 5 limit;
    lives::without_heartbeats: 4 limit;
    lives::backend_away_without_heartbeats: 6;
    lives::worker_dies: 6 limit;
    lives::dead_workers_without_a_reaper: 4;
    lives::restarted_with_jobs_out: 6 limit;
    lives::gone_with_jobs_held: 10 limit;
    lives::replaced_beside_a_backlog: 4;
    lives::drain_in_order: 10 real;
    lives::drain_lets_go_who_waits_in_vain: 6;
    lives::drain_goes_on_for_the_rest: 4;
    lives::drained_under_load: 6 limit;
    lives::drain_times_out: 2;
    lives::drain_times_out_in_a_give_back: 3;
    lives::asked_beside_many_offers: 2;
    lives::claimed_late_in_a_drain: 4;
    adopted::list_refused: 6;
    adopted::reloaded_while_the_list_hangs: 6;
    adopted::first_limit_given_up: 12;
    adopted::only_held: 6;
    adopted::claimed_under_an_id_that_is_not_shown: 8;
    adopted::heartbeat_of_made_up_ids: 2;
    held::tenant_goes_with_the_job: 4;
    adopted::ended_through_a_sibling: 9;
    adopted::ending_through_a_sibling: 6;
    adopted::hang_up_while_learning: 5;
    reloads::numbers_in_a_fleet: 4;
    reloads::newly_limited_beside_a_holder: 10;
    reloads::waits_over_a_change_of_key: 2;
    overdue::held_meanwhile: 4;
    overdue::nobody_can_ask: 6 | 18;
    overdue::heard_of_meanwhile: 8;
    flow::throttle_is_used: 4 limit;
    flow::slow_throttle_is_used: 6 limit;
    flow::fast_throttle_is_used: 2 limit;
    flow::timed_while_more_is_asked: 12 limit;
    flow::far_backend: 3 | 9 limit;
    flow::slow_backend: 4 limit;
    flow::one_at_a_time_from_afar: 2 limit;
    flow::short_jobs_fill_a_slot: 2 limit;
    flow::free_tenant_behind_shut_ones: 2 limit;
    flow::freed_slot_is_filled: 10 limit real;
    flow::free_comes_while_waiting: 4;
    flow::free_beside_limited: 6 limit;
    flow::many_keys: 6 limit;
    flow::two_questions_in_a_row: 4;
    flow::many_end_elsewhere: 2;
    flow::many_ask_at_once: 3;
    flow::the_end_is_foretold: 5 | 20;
    deep::one_shut_key: 1 limit;
    deep::beside_three_shut_keys: 1 limit;
    deep::beside_ten_shut_keys: 1 limit;
    deep::behind_heads_after_a_restart: 1;
    deep::paused_at_the_backend: 4;
    deep::without_statistics: 2;
    neighbours::many_beside_many: 4;
    neighbours::two_in_one: 6;
    neighbours::cancelled_at_the_backend: 2;
    neighbours::scheduled_ones_count_once: 2;
    neighbours::one_bound_for_a_fleet: 1 | 4;
    neighbours::few_wait_for_others: 2 | 4;
    neighbours::ids_that_are_chosen: 4;
    neighbours::names_stay_over_a_restart: 6;
    neighbours::files_that_differ: 2;
    stranded::whatever_happens: 6;
    swift::short_jobs_of_one_tenant: 1;
    swift::throttle_of_one_tenant: 1 limit;
    swift::limits_that_do_not_bind: 1;
    swift::many_tenants_of_one_job: 1;
    swift::numbers_that_take_long: 1;
    swift::workers_without_work: 1;
    shadow::tells_what_would_have_been: 2 | 7;
    shadow::changes_no_verdict: 2;
    shadow::enforced_in_part: 4;
    shadow::reloaded_to_all_and_back: 4;
    shadow::slots_lapse: 1;
    shadow::bound_in_shadow: 2;
    turns::by_weight_at_any_depth: 3;
    turns::the_queue_itself: 1;
    turns::priorities_over_subqueues: 6;
    windows::shared_by_weight: 2 | 5;
    windows::shared_by_cost: 2 | 4;
    windows::shared_by_weight_on_three: 1 | 5;
    windows::shared_by_cost_on_three: 2 | 4;
    stays::unique_jobs: 12;
    stays::sent_again_with_its_id: 3;
    stays::dropped_and_rescheduled: 2;
    stays::keys_of_headers: 1;
    actions::drops: 20 / 5 limit real;
    actions::reschedules: 9 / 3 limit;
    actions::drop_fails_for_a_while: 15;
    actions::drops_only_what_is_ours: 3;
    actions::scheduled_when_it_starts: 2 limit;
    actions::strongest_action_wins: 5;
    actions::dropped_under_load: 10 limit;
    actions::shut_for_retry_after: 5 limit real;
    actions::shut_by_the_codes_of_sdks: 4 limit;
    actions::not_shut_by_other_errors: 4;
    actions::shut_no_longer_than_max_pause: 2 limit;
    actions::shuts_keys_and_no_queue: 4 limit;
    actions::the_longer_pause_stands: 4 limit;
}
