//! `dev`: the quick start, and a reset that clears everything.

use super::prelude::*;

/// The policy of the README's quick start.
const STRIPE: &str = "[server]\nupstream = \"http://127.0.0.1:9\"\nadmin_listen = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\nrate = { limit = 100, period = \"1m\" }\n";

fn dev() -> Sidecar {
    let (dir, path) = file(STRIPE);
    let mut command = program();
    command.args([
        "dev",
        "--listen",
        "127.0.0.1:0",
        "--backend-listen",
        "127.0.0.1:0",
        "--config",
    ]);
    command.arg(path);
    Sidecar::spawn(command, dir)
}

#[test]
fn the_quick_start_of_the_readme() {
    let mut sidecar = dev();
    let data = sidecar.data;
    for _ in 0..3 {
        enqueue(data, "billing", json!({}));
    }
    let two = fetch(data, "billing", 5, "w1");
    let jobs = two.jobs();
    assert_eq!(jobs.len(), 2);
    let none = fetch(data, "billing", 5, "w1");
    assert!(none.jobs().is_empty());
    assert!(
        none.head
            .to_ascii_lowercase()
            .contains("ojs-throttle-limited: true"),
        "{}",
        none.head
    );
    let usage = get(data, "/ojs/v1/rate-limits/stripe").json();
    assert_eq!(
        usage["concurrency"],
        json!({"limit": 2, "active": 2, "available": 0})
    );
    let stats = get(data, "/ojs/v1/queues/billing/stats").body;
    assert!(
        stats.contains("\"active\":2") && stats.contains("\"available\":1"),
        "{stats}"
    );
    assert_eq!(ack(data, &jobs[0], "w1").status, 200);
    assert_eq!(fetch(data, "billing", 5, "w1").jobs().len(), 1);
    assert!(sidecar.metrics().contains("key=\"stripe\""));
    // Somebody who opened a connection to it and says nothing does not keep it from ending.
    let idle = crate::process::http::Conn::open(data);
    sidecar.signal("INT");
    // Two that wait are one for the system.
    sidecar.state("draining");
    sidecar.signal("INT");
    assert!(sidecar.ended().success());
    drop(idle);
}

#[test]
fn a_reset_clears_limits_holds_and_names() {
    let sidecar = dev();
    let data = sidecar.data;
    for _ in 0..2 {
        for _ in 0..4 {
            enqueue(
                data,
                "billing",
                json!({"rate_limit": {"key": "mine", "concurrency": 1}}),
            );
        }
        assert_eq!(fetch(data, "billing", 4, "w").jobs().len(), 1);
        assert_eq!(get(data, "/ojs/v1/rate-limits/mine").status, 200);
        assert_eq!(sidecar.metric("ojs_throttle_slots"), 1.0);
        assert_eq!(sidecar.metric("ojs_rate_limit_active{key=\"mine\"}"), 1.0);
        let reset = ask(data, "POST", "/ojs/v1/admin/reset", "");
        assert_eq!(reset.status, 200, "{reset:?}");
        assert_eq!(get(data, "/ojs/v1/rate-limits/mine").status, 404);
        let usage = get(data, "/ojs/v1/rate-limits/stripe").json();
        assert_eq!(usage["concurrency"]["active"], 0, "{usage}");
        assert_eq!(sidecar.metric("ojs_throttle_held_jobs"), 0.0);
        assert_eq!(sidecar.metric("ojs_throttle_slots"), 0.0);
        assert_eq!(sidecar.metric("ojs_rate_limit_active{key=\"mine\"}"), 0.0);
        assert!(fetch(data, "billing", 4, "w").jobs().is_empty());
    }
}

#[test]
fn before_a_real_backend_a_reset_is_the_backends_own_affair() {
    let backend = Backend::start(Lax::spec());
    let policy = STRIPE.split_once("[[").unwrap().1;
    let sidecar = Sidecar::run(&config(backend.addr, "", &format!("[[{policy}")));
    let data = sidecar.data;
    enqueue(data, "billing", json!({}));
    assert_eq!(fetch(data, "billing", 1, "w").jobs().len(), 1);
    assert_eq!(ask(data, "POST", "/ojs/v1/admin/reset", "").status, 200);
    let usage = get(data, "/ojs/v1/rate-limits/stripe").json();
    assert_eq!(usage["concurrency"]["active"], 1, "{usage}");
}
