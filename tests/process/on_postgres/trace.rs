//! Four sidecars on one key of a Postgres, as `redis_trace`; the long trace has 10,000 starts.

use crate::process::prelude::*;
use crate::process::trace::{Plan, Run, enough, is_long, trace};

fn fleet(plan: &Plan) -> Vec<Run> {
    // The long trace measures, and so pays for the disk.
    let with = if is_long() { &[] } else { UNSYNCED };
    let (backend, store) = (Backend::start(Lax::redis()), PostgresServer::start(with));
    let url = format!("url = \"{}\"\ntimeout = \"5s\"", store.url());
    let sidecars = [(); 4].map(|()| Sidecar::run(&plan.config(&backend, &url)));
    trace(plan, &backend, &sidecars)
}

#[test]
fn four_sidecars_keep_one_window_and_its_slots() {
    let plan = if is_long() {
        Plan::window(6, 250, Duration::from_secs(5), 10_000)
    } else {
        Plan::window(6, 50, Duration::from_secs(1), 800)
    };
    let used = plan.judge(&fleet(&plan));
    assert!(used >= enough(), "{used}");
}

#[test]
fn four_sidecars_keep_one_spacing() {
    let (limit, starts) = if is_long() { (50, 10_000) } else { (30, 400) };
    let plan = Plan::spacing(limit, Duration::from_secs(1), starts);
    let used = plan.judge(&fleet(&plan));
    assert!(used >= enough(), "{used}");
}
