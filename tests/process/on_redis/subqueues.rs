//! Subqueues of a fleet on one Redis.

use crate::process::fleet_subqueues;
use crate::process::prelude::*;

#[test]
fn the_setting_comes_and_goes() {
    fleet_subqueues::the_setting_comes_and_goes(&RedisServer::start().url());
}

#[test]
fn a_job_is_heard_of() {
    fleet_subqueues::a_job_is_heard_of(&RedisServer::start().url());
}

#[test]
fn one_is_killed_with_its_worker() {
    fleet_subqueues::one_is_killed_with_its_worker(&RedisServer::start().url());
}

#[test]
fn numbers_and_salts_come_and_go() {
    fleet_subqueues::numbers_and_salts_come_and_go(&RedisServer::start().url());
}

#[test]
fn a_window_is_shared_by_weight_at_one() {
    fleet_subqueues::a_window_is_shared_by_weight(&RedisServer::start().url(), 1);
}

#[test]
fn a_window_is_shared_by_weight_at_three() {
    fleet_subqueues::a_window_is_shared_by_weight(&RedisServer::start().url(), 3);
}
