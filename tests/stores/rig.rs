//! What a check is given, and what it asks with.

use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::Pin;

use ojs_throttle::store::Claim;
use tokio::time::{Duration, Instant, sleep};

use super::prelude::*;
use crate::model::samples;

pub const T: u64 = 1_800_000_000_000_000;
pub const SECOND: u64 = 1_000_000;

type Opened = Pin<Box<dyn Future<Output = Arc<dyn Ledger>>>>;

/// One store's data and its clock.
pub struct Rig {
    open: Box<dyn Fn(&str) -> Opened>,
    micros: Arc<AtomicU64>,
}

impl Rig {
    /// `opens` is given the clock, and gives what opens the store for a sidecar of a name.
    pub fn of<O, F>(opens: impl FnOnce(Clock) -> O) -> Rig
    where
        O: Fn(&str) -> F + 'static,
        F: Future<Output = Arc<dyn Ledger>> + 'static,
    {
        let (micros, clock) = clock();
        let open = opens(clock);
        Rig {
            open: Box::new(move |owner| Box::pin(open(owner))),
            micros,
        }
    }

    /// The store as the sidecar of this name sees it.
    pub async fn open(&self, owner: &str) -> Arc<dyn Ledger> {
        (self.open)(owner).await
    }

    /// What all of them go by.
    pub fn clock(&self) -> &Arc<AtomicU64> {
        &self.micros
    }
}

/// Moves the clock on.
pub fn advance(rig: &Rig, micros: u64) {
    rig.clock().fetch_add(micros, Ordering::AcqRel);
}

pub fn now(rig: &Rig) -> Timestamp {
    Timestamp(rig.clock().load(Ordering::Acquire))
}

pub fn clock() -> (Arc<AtomicU64>, Clock) {
    let micros = Arc::new(AtomicU64::new(T));
    (Arc::clone(&micros), Clock::given(micros))
}

/// Runs one check on a runtime of its own.
pub fn run(rig: Rig, check: impl AsyncFnOnce(&Rig)) {
    let runtime = crate::servers::runtime();
    let check: Pin<Box<dyn Future<Output = ()> + '_>> = Box::pin(check(&rig));
    runtime.block_on(check);
}

/// A test for each named check, on the rig that the expression makes.
#[macro_export]
macro_rules! stamp {
    ($module:ident, $rig:expr, [$($check:ident),* $(,)?]) => {
        $(
            #[test]
            fn $check() {
                $crate::stores::rig::run($rig, $crate::stores::$module::$check);
            }
        )*
    };
}

/// Runs the named checks one after the other, each on a rig that the expression makes.
#[macro_export]
macro_rules! run_each {
    ($module:ident, $rig:expr, [$($check:ident),* $(,)?]) => {
        $(
            println!("{}", stringify!($check));
            $crate::stores::rig::run($rig, $crate::stores::$module::$check);
        )*
    };
}

/// A test for each check that holds for any store.
#[macro_export]
macro_rules! stamp_contract {
    ($rig:expr) => {
        $crate::contract!(stamp, $rig);
    };
}

/// Runs each check that holds for any store.
#[macro_export]
macro_rules! run_contract {
    ($rig:expr) => {
        $crate::contract!(run_each, $rig);
    };
}

/// A test for each check that holds where sidecars share a store.
#[macro_export]
macro_rules! stamp_fleet {
    ($rig:expr) => {
        $crate::fleet!(stamp, $rig);
    };
}

/// Runs each check that holds where sidecars share a store.
#[macro_export]
macro_rules! run_fleet {
    ($rig:expr) => {
        $crate::fleet!(run_each, $rig);
    };
}

/// The checks that hold for any store.
#[macro_export]
macro_rules! contract {
    ($do:ident, $rig:expr) => {
        $crate::$do!(
            contract,
            $rig,
            [
                a_key_named_twice_is_checked_twice_and_taken_from_once,
                a_start_counts_where_other_jobs_of_its_key_do,
                a_job_takes_nothing_where_its_calls_do,
                a_refusal_names_the_last_to_let_go_and_the_strongest_action,
                a_refusal_spends_nothing_in_any_key,
                enough_is_enough,
                a_newer_claim_takes_the_place_of_an_older_one,
                a_start_that_did_not_happen_is_uncounted,
                ending_twice_is_ending_once,
                many_claims_end_at_once,
                rows_are_due_in_order_and_again_until_moved,
                a_shut_key_opens_by_itself_and_queues_are_never_shut,
                an_adopted_job_has_its_slots_and_counts_no_start,
                a_job_of_which_no_claim_is_known_gives_way_to_any,
                a_row_tells_all_that_was_claimed,
                a_row_tells_whether_an_attempt_was_shown,
                a_row_goes_on_under_another_claim,
                a_start_that_was_granted_after_a_newer_claim_keeps_its_slot,
                many_starts_in_a_window_are_never_too_many,
                a_ninth_window_of_a_key_starts_nothing_until_one_is_empty,
                nothing_waits_for_a_window_that_only_counts,
                a_window_that_counts_stays_while_others_are_idle,
                idle_windows_make_room_for_new_ones,
                a_start_keeps_its_own_distance_from_the_last,
                a_day_of_25_hours_counts_for_as_long,
                a_queue_and_a_job_key_of_one_name_are_two,
                room_and_usage_say_what_a_take_would,
                overrides_are_kept_and_taken_away,
                settings_are_kept_and_taken_away,
                numbers_are_added_to_up_to_their_most,
                numbers_that_were_changed_are_not_replaced_by_mistake,
                forgetting_everything_leaves_nothing,
                ones_own_held_jobs_are_not_those_of_others,
                random_sequences_are_answered_as_by_the_core,
            ]
        );
        $crate::$do!(
            priced,
            $rig,
            [
                a_start_takes_its_cost_of_every_limit,
                a_debt_above_a_burst_is_paid,
                a_job_that_needs_more_room_is_first_in_line,
                what_a_job_used_is_settled_once,
                an_ack_adds_no_more_than_all_of_a_limit,
                groups_are_served_by_weight,
                a_group_that_waits_elsewhere_does_not_come_anew,
                a_place_outlasts_polls_and_keeps_its_cost,
                only_the_key_that_refused_has_a_line,
                a_line_is_no_reason_to_drop,
                what_began_before_a_clearing_takes_nothing_back,
                a_call_that_cannot_wait_so_long_stands_in_no_line,
                who_is_given_up_stands_in_line_no_longer,
                a_group_lets_another_go_first_that_somebody_stays_for,
                groups_beyond_the_most_are_forgotten_and_known_by_their_sidecars,
            ]
        );
        $crate::$do!(traces, $rig, [one_sidecar_is_answered_as_by_the_model]);
    };
}

/// The checks that hold where sidecars share a store.
#[macro_export]
macro_rules! fleet {
    ($do:ident, $rig:expr) => {
        $crate::$do!(
            fleet,
            $rig,
            [
                one_budget_for_all,
                only_the_owner_starts_a_job,
                a_freed_slot_is_heard_of,
                a_key_that_opens_sooner_is_heard_of,
                a_doubt_about_a_held_job_is_heard_of,
                to_which_subqueues_jobs_came_is_heard_of,
                an_offered_job_goes_to_one_sibling,
                one_that_is_alone_knows_it_until_another_comes,
                what_a_living_sidecar_has_offered_stays,
                what_the_dead_have_offered_is_forgotten,
                offered_jobs_crowd_out_nothing_else,
                jobs_of_a_lane_are_found_behind_those_of_another,
                jobs_of_a_lane_are_found_behind_thousands_of_another,
                jobs_that_others_hold_are_counted_by_queue,
                rows_that_are_out_are_read_with_their_limits,
                what_is_held_is_believed_for_a_minute,
                jobs_that_are_adopted_are_counted,
                overdue_slots_of_others_are_looked_after_by_one,
                what_a_dead_sidecar_had_is_found,
                calls_are_found_behind_jobs_of_others,
                what_a_dead_sidecar_offered_is_found,
                a_held_job_goes_out_once_where_its_holder_is_cut_off,
                limits_set_over_http_are_told_to_all,
                settings_made_over_http_are_told_to_all,
                a_paused_queue_is_heard_of,
                numbers_are_shared,
                jobs_that_many_ask_for_at_once_start_within_the_limit,
                start_times_are_reserved_for_a_fraction_of_the_calls,
            ]
        );
        $crate::$do!(traces, $rig, [three_sidecars_are_answered_as_by_the_model]);
    };
}

pub fn number(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

pub fn period(micros: u64) -> NonZeroU64 {
    NonZeroU64::new(micros).unwrap()
}

pub fn limited(
    key: &str,
    concurrency: Option<u32>,
    rate: Option<(u32, u64)>,
    spaced: Option<u32>,
) -> Limited {
    let spaced = spaced.map(|limit| (limit, SECOND, 1));
    samples::limited(key, samples::limits(concurrency, rate.as_slice(), spaced))
}

pub fn claimed(job: &str, generation: u64, limited: &[Limited]) -> Claimed {
    Claimed::from(Claim {
        claim_id: Arc::from("claim"),
        attempt: Some(0),
        // Later than any start of a test, so that a newer claim ends the row of an older one.
        claimed_at: Timestamp(2 * T),
        visibility: 30 * SECOND,
        limited: Arc::from(limited),
        ..Claim::new(job.into(), Gen(generation), "queue".into())
    })
}

/// Offers a job as it was [`claimed`].
pub fn offer(job: &str, generation: u64, limited: &[Limited]) -> Change {
    let claimed = claimed(job, generation, limited);
    Change::Offer { claimed }
}

pub async fn take(store: &dyn Ledger, ask: Claimed) -> Verdict {
    store.take(&[&ask], 1).await.unwrap().verdicts.remove(0)
}

pub fn started(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Started { .. })
}

/// What becomes of this, however often it must be asked for.
pub async fn take_answered(store: &dyn Ledger, ask: &Claimed) -> Verdict {
    let taken = answered(async || store.take(&[ask], 1).await);
    taken.await.verdicts.remove(0)
}

/// The answer, however often it must be asked for: a store with a short timeout is not always in time on
/// a busy machine.
pub async fn answered<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "for a minute: {error}"),
        }
        sleep(Duration::from_millis(20)).await;
    }
}
