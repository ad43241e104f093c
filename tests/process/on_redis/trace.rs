//! Eight sidecars on one key of a Redis: P1, P2 and P3, and that what may start does start, judged from
//! what the workers saw. `OJS_THROTTLE_TRACE=long` makes 100,000 starts of them.

use crate::process::prelude::*;
use crate::process::trace::{Plan, Run, enough, is_long, trace};

fn fleet(plan: &Plan) -> Vec<Run> {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let url = format!("url = \"{}\"\ntimeout = \"5s\"", store.url());
    let sidecars = [(); 8].map(|()| Sidecar::run(&plan.config(&backend, &url)));
    trace(plan, &backend, &sidecars)
}

#[test]
fn eight_sidecars_keep_one_window_and_its_slots() {
    let plan = if is_long() {
        Plan::window(12, 2_000, Duration::from_secs(5), 100_000)
    } else {
        Plan::window(12, 150, Duration::from_secs(1), 600)
    };
    let used = plan.judge(&fleet(&plan));
    assert!(used >= enough(), "{used}");
}

#[test]
fn eight_sidecars_keep_one_spacing() {
    let (limit, starts) = if is_long() {
        (200, 100_000)
    } else {
        (100, 400)
    };
    let plan = Plan::spacing(limit, Duration::from_secs(1), starts);
    let used = plan.judge(&fleet(&plan));
    assert!(used >= enough(), "{used}");
}
