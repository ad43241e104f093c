//! What `GET /throttle/v1/settings` shows of a running program.

use std::fs;

use super::prelude::*;
use crate::harness::table;

pub fn shown(sidecar: &Sidecar) -> Value {
    let reply = get(sidecar.admin, "/throttle/v1/settings");
    assert!(!reply.body.contains("hunter2"), "{}", reply.body);
    reply.json()
}

/// Value, origin and default of a setting.
pub fn setting(shown: &Value, name: &str) -> (Value, String, Value) {
    let mut rows = shown["settings"].as_array().unwrap().iter();
    let row = rows.find(|row| row["name"] == name).unwrap();
    let from = row["from"].as_str().unwrap().to_owned();
    (row["value"].clone(), from, row["default"].clone())
}

#[test]
fn what_is_set_is_shown_with_who_said_so() {
    let backend = Backend::start(Lax::spec());
    let text = "[server]\nupstream = \"http://nowhere:1\"\nlisten = \"127.0.0.1:0\"\ncontrol_token = \"hunter2\"\n\
         drain_min = \"0s\"\n[upstream]\ntoken = \"${HUNTER}\"\n[fetch]\nmax_wait = \"PT0.1S\"\n\
         [[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n\
         [[queue]]\nname = [\"a\", \"b\"]\nconcurrency = 2\nmax_depth = 3\n\
         [[tenant]]\nid = \"t*\"\nlimits = { max_queue_depth = 4 }\n\
         [[egress]]\nname = \"out\"\nlisten = \"127.0.0.1:0\"\nupstream = \"http://127.0.0.1:9\"\nconcurrency = 5\n";
    let (dir, path) = file(text);
    let at = |line: usize| format!("{}:{line}", path.display());
    let mut command = run_at(&path);
    command.env("HUNTER", "hunter2");
    command.args(["--admin-listen", "127.0.0.1:0"]);
    command.args(["--upstream", &format!("http://{}", backend.addr)]);
    let sidecar = Sidecar::spawn(command, dir);
    let now = shown(&sidecar);
    let (upstream, any) = (format!("http://{}", backend.addr), "127.0.0.1:0");
    let [by_option, there] = ["--admin-listen", "--upstream"].map(str::to_owned);
    let admin = json!("127.0.0.1:9091");
    for (name, value, from, default) in [
        ("server.listen", any, at(3), json!("127.0.0.1:8080")),
        ("server.admin_listen", any, by_option, admin),
        ("server.upstream", &upstream, there, Value::Null),
        ("server.control_token", "***", at(4), Value::Null),
        ("upstream.token", "***", at(7), Value::Null),
        ("fetch.max_wait", "100ms", at(9), json!("2s")),
    ] {
        let value = json!(value);
        assert_eq!(setting(&now, name), (value, from, default), "{name}");
    }
    for (name, default) in [
        ("upstream.worker_id", Value::Null),
        ("server.max_body", json!("8MiB")),
        ("server.threads", json!(1)),
        ("job_policies.accept", json!("tighten")),
    ] {
        let shown = (default.clone(), "default".to_owned(), default);
        assert_eq!(setting(&now, name), shown, "{name}");
    }
    let row = |name: &str, line, text: &str| json!({"name": name, "from": at(line), "text": text});
    let one = "jobs of queue q: 1 at once, key \"one\"";
    assert_eq!(now["policies"], json!([row("one", 10, one)]));
    let both = "2 at once; at most 3 jobs wait";
    let queues = [row("a", 14, both), row("b", 14, both)];
    assert_eq!(now["queues"], json!(queues));
    let four = row("t*", 18, "at most 4 jobs wait");
    assert_eq!(now["tenants"], json!([four]));
    let out =
        "calls to 127.0.0.1:0 go to http://127.0.0.1:9, vendor generic: 5 at once, key \"out\"";
    assert_eq!(now["egress"], json!([row("out", 21, out)]));

    // A comment moves lines, and changes nothing else.
    let moved = format!("# moved\n{text}");
    fs::write(&path, &moved).unwrap();
    let max_wait = || setting(&shown(&sidecar), "fetch.max_wait");
    wait("the lines", || max_wait().1 == at(10));
    let paused = moved.replace("concurrency = 1", "concurrency = 0");
    fs::write(&path, paused.replace("PT0.1S", "1s")).unwrap();
    wait("the change", || max_wait().0 == "1s");
    let policy = shown(&sidecar)["policies"][0]["text"].clone();
    assert_eq!(policy, "jobs of queue q: paused, key \"one\"");
    // What cannot change is shown as it runs, and so is all that stands in the same file.
    let fixed = moved.replace("PT0.1S", "2s") + "[metrics]\ntop_keys = 9\n";
    fs::write(&path, fixed).unwrap();
    let failed = "ojs_throttle_config_reloads_total{result=\"refused\"}";
    sidecar.shows(failed, 1.0);
    assert_eq!(max_wait().0, "1s");
    let fifty = (json!(50), "default".into(), json!(50));
    assert_eq!(setting(&shown(&sidecar), "metrics.top_keys"), fifty);
    assert!(!sidecar.log().contains("hunter2"));
}

#[test]
fn a_store_s_url_is_shown_without_its_secrets() {
    let backend = Backend::start(Lax::spec());
    for (url, wanted) in table(
        "redis://user:hunter2@127.0.0.1:1/3 => redis://***@127.0.0.1:1/3
        redis+sentinel://:hunter2@127.0.0.1:1/m?sentinel=ops:hunter2 => redis+sentinel://***@127.0.0.1:1/m?***
        postgres://u:hunter2@127.0.0.1:1/d?password=hunter2 => postgres://***@127.0.0.1:1/d?***
        postgresql://127.0.0.1:1/d => postgresql://127.0.0.1:1/d
        memory: => memory:",
    ) {
        let store = format!("[store]\nurl = \"{url}\"\n");
        let (dir, command) = run_with(config(backend.addr, "", &store));
        let sidecar = Sidecar::begin(command, dir);
        assert_eq!(setting(&shown(&sidecar), "store.url").0, wanted, "{url}");
    }
}

/// What `dev` chooses is neither in a file nor an option.
#[test]
fn what_dev_chooses_is_its_own() {
    let ports = "--listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --backend-listen 127.0.0.1:0";
    let mut command = program();
    command.arg("dev").args(ports.split(' '));
    let sidecar = Sidecar::spawn(command, tempfile::tempdir().unwrap());
    let now = shown(&sidecar);
    let chosen = (json!("0s"), "dev".into(), json!("5s"));
    assert_eq!(setting(&now, "server.drain_min"), chosen);
    assert_eq!(setting(&now, "server.upstream").1, "dev");
}
