//! `dev`: the quick start, and a reset that clears everything.

use super::prelude::*;

/// The policy of the README's quick start.
const STRIPE: &str = "[server]\nupstream = \"http://127.0.0.1:9\"\nadmin_listen = \"127.0.0.1:0\"\n\
    [[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\nrate = { limit = 100, period = \"1m\" }\n";

fn dev() -> Sidecar {
    let (dir, path) = file(STRIPE);
    let command = dev_with(&path);
    Sidecar::spawn(command, dir)
}

fn dev_with(path: &std::path::Path) -> Command {
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
    command
}

/// Whoever tries a change by hand is told by what; a token that is said is not told again.
#[test]
fn changes_by_hand_take_a_token() {
    const TOLD: &str = "to change limits by hand: export OJS_THROTTLE_TOKEN=";
    for (said, in_file) in [
        (None, None),
        (Some("said"), None),
        (Some("said"), Some("filed")),
    ] {
        let in_file = in_file.map(|token| format!("[server]\ncontrol_token = {token:?}\n"));
        let text = in_file.map_or(STRIPE.to_owned(), |own| STRIPE.replace("[server]\n", &own));
        let (dir, path) = file(&text);
        let mut command = dev_with(&path);
        command.envs(said.map(|said| ("OJS_THROTTLE_TOKEN", said)));
        let sidecar = Sidecar::spawn(command, dir);
        let lines = sidecar.lines();
        let made_up = lines[0].strip_prefix(TOLD);
        assert_eq!(made_up.is_none(), said.is_some(), "{}", sidecar.log());
        assert!(
            !lines[1..].iter().any(|line| line.contains(TOLD)),
            "{}",
            sidecar.log()
        );
        let pause = |token: &str| {
            let mut pause = program();
            pause.args([
                "pause",
                "stripe",
                "--admin",
                &format!("http://{}", sidecar.admin),
            ]);
            pause.env("OJS_THROTTLE_TOKEN", token);
            ran(&mut pause).status
        };
        let is_filed = text.contains("filed");
        let right = if is_filed {
            "filed"
        } else {
            made_up.or(said).unwrap()
        };
        assert_eq!(pause(right), Some(0));
        assert_eq!(pause("wrong"), Some(1));
        assert_eq!(pause("said") == Some(0), said.is_some() && !is_filed);
        // The file has none, after a reload too.
        std::fs::write(&path, text.replace("concurrency = 2", "concurrency = 3")).unwrap();
        wait("a reload", || sidecar.log().contains("config reloaded"));
        assert_eq!(pause(right), Some(0));
    }
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
    let policy = STRIPE.split_once("[[").unwrap().1;
    let (_backend, sidecar) = pair("", &format!("[[{policy}"));
    let data = sidecar.data;
    enqueue(data, "billing", json!({}));
    assert_eq!(fetch(data, "billing", 1, "w").jobs().len(), 1);
    assert_eq!(ask(data, "POST", "/ojs/v1/admin/reset", "").status, 200);
    let usage = get(data, "/ojs/v1/rate-limits/stripe").json();
    assert_eq!(usage["concurrency"]["active"], 1, "{usage}");
}

/// Who ends one and starts the next at once need not wait for the end of the first.
#[test]
fn a_dev_follows_a_dev() {
    let mut first = dev();
    let lines = first.lines();
    let backend = lines.iter().find_map(|line| line.split_once(" address="));
    let (_, backend) = backend.expect("it says where its backend is");
    let (dir, path) = file(STRIPE);
    let mut command = program();
    command.args(["dev", "--listen", "127.0.0.1:0", "--backend-listen"]);
    command.arg(backend).arg("--config").arg(&path);
    let mut next = Sidecar::launch(command, dir);
    until("the next says that it waits", || {
        assert!(next.runs(), "{}", next.log());
        let told = format!("{backend} (--backend-listen) is in use: waiting up to 25s");
        next.log().contains(&told).then_some(())
    });
    first.signal("TERM");
    assert!(first.ended().success(), "{}", first.log());
    next.listens();
    next.state("ready");
    let health = get(next.data, "/ojs/v1/health");
    assert_eq!(health.status, 200, "{health:?}");
}

/// A file of production names production's store, in which a pause, a slot and a reset would be real.
#[test]
fn a_store_of_others_is_left_alone() {
    let store = "[store]\nurl = \"redis://127.0.0.1:1\"\n";
    let (dir, path) = file(format!("{STRIPE}{store}"));
    let sidecar = Sidecar::spawn(dev_with(&path), dir);
    let state = get(sidecar.admin, "/throttle/v1/state").json();
    assert_eq!(state["store"]["kind"], "memory", "{state}");
    let log = sidecar.log();
    assert!(log.contains("store.url is left alone"), "{log}");
}
