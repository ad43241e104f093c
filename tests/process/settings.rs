//! What `GET /throttle/v1/settings` shows of a running program.

use std::fs;

use super::prelude::*;

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
    let upstream = format!("http://{}", backend.addr);
    for (name, value, from, default) in [
        (
            "server.listen",
            json!("127.0.0.1:0"),
            at(3),
            json!("127.0.0.1:8080"),
        ),
        (
            "server.admin_listen",
            json!("127.0.0.1:0"),
            "--admin-listen".into(),
            json!("127.0.0.1:9091"),
        ),
        (
            "server.upstream",
            json!(upstream),
            "--upstream".into(),
            Value::Null,
        ),
        ("server.control_token", json!("***"), at(4), Value::Null),
        ("upstream.token", json!("***"), at(7), Value::Null),
        ("fetch.max_wait", json!("100ms"), at(9), json!("2s")),
    ] {
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
    assert_eq!(
        now["tenants"],
        json!([row("t*", 18, "at most 4 jobs wait")])
    );
    let out =
        "calls to 127.0.0.1:0 go to http://127.0.0.1:9, vendor generic: 5 at once, key \"out\"";
    assert_eq!(now["egress"], json!([row("out", 21, out)]));

    // A comment moves lines, and changes nothing else.
    let moved = format!("# moved\n{text}");
    fs::write(&path, &moved).unwrap();
    wait("the lines", || {
        setting(&shown(&sidecar), "fetch.max_wait").1 == at(10)
    });
    fs::write(
        &path,
        moved
            .replace("PT0.1S", "1s")
            .replace("concurrency = 1", "concurrency = 0"),
    )
    .unwrap();
    wait("the change", || {
        setting(&shown(&sidecar), "fetch.max_wait").0 == "1s"
    });
    assert_eq!(
        shown(&sidecar)["policies"][0]["text"],
        "jobs of queue q: paused, key \"one\""
    );
    // What cannot change is shown as it runs, and so is all that stands in the same file.
    fs::write(
        &path,
        moved.replace("PT0.1S", "2s") + "[metrics]\ntop_keys = 9\n",
    )
    .unwrap();
    let failed = "ojs_throttle_config_reloads_total{result=\"refused\"}";
    wait("the refusal", || sidecar.metric(failed) == 1.0);
    let now = shown(&sidecar);
    assert_eq!(setting(&now, "fetch.max_wait").0, "1s");
    assert_eq!(
        setting(&now, "metrics.top_keys"),
        (json!(50), "default".into(), json!(50))
    );
    assert!(!sidecar.log().contains("hunter2"));
}

#[test]
fn a_store_s_url_is_shown_without_its_secrets() {
    let backend = Backend::start(Lax::spec());
    for (url, wanted) in [
        (
            "redis://user:hunter2@127.0.0.1:1/3",
            "redis://***@127.0.0.1:1/3",
        ),
        (
            "redis+sentinel://:hunter2@127.0.0.1:1/m?sentinel=ops:hunter2",
            "redis+sentinel://***@127.0.0.1:1/m?***",
        ),
        (
            "postgres://u:hunter2@127.0.0.1:1/d?password=hunter2",
            "postgres://***@127.0.0.1:1/d?***",
        ),
        ("postgresql://127.0.0.1:1/d", "postgresql://127.0.0.1:1/d"),
        ("memory:", "memory:"),
    ] {
        let (dir, path) = file(config(
            backend.addr,
            "",
            &format!("[store]\nurl = \"{url}\"\n"),
        ));
        let sidecar = Sidecar::begin(run_at(path), dir);
        assert_eq!(setting(&shown(&sidecar), "store.url").0, wanted);
    }
}

/// What `dev` chooses is neither in a file nor an option.
#[test]
fn what_dev_chooses_is_its_own() {
    let mut command = program();
    command.args([
        "dev",
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
    ]);
    command.args(["--backend-listen", "127.0.0.1:0"]);
    let sidecar = Sidecar::spawn(command, tempfile::tempdir().unwrap());
    let now = shown(&sidecar);
    assert_eq!(
        setting(&now, "server.drain_min"),
        (json!("0s"), "dev".into(), json!("5s"))
    );
    assert_eq!(setting(&now, "server.upstream").1, "dev");
}
