//! Where settings come from beside one file: a folder of files, variables of the environment, and files with secrets.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::prelude::*;
use super::settings::{setting, shown};

/// The slots of a key as they are in force.
fn slots(sidecar: &Sidecar, key: &str) -> Value {
    let path = format!("/ojs/v1/rate-limits/{key}");
    get(sidecar.data, &path).json()["concurrency"]["limit"].clone()
}

fn policy(name: &str, slots: u32) -> String {
    format!(
        "[[policy]]\nname = \"{name}\"\nmatch = {{ queue = \"{name}\" }}\nconcurrency = {slots}\n"
    )
}

#[test]
fn the_environment_is_above_the_file_and_below_the_command_line() {
    let backend = Backend::start(Lax::spec());
    let upstream = format!("http://{}", backend.addr);
    let text = "[server]\nupstream = \"nonsense\"\nlog = \"human\"\n";
    let (dir, path) = file(text);
    let mut command = program();
    command.args(["run", "--admin-listen", "127.0.0.1:0", "--config"]);
    command.arg(&path).envs([
        ("OJS_THROTTLE_UPSTREAM", upstream.as_str()),
        ("OJS_THROTTLE_LISTEN", "localhost:0"),
        ("OJS_THROTTLE_ADMIN_LISTEN", "127.0.0.1:1"),
        ("OJS_THROTTLE_STORE_URL", "sqlite:${OWN}/usage.db"),
        ("OJS_THROTTLE_LOG", "json"),
        ("OJS_THROTTLE_LOG_LEVEL", ""),
    ]);
    command.env("OWN", dir.path());
    let sidecar = Sidecar::spawn(command, dir);
    let now = shown(&sidecar);
    for (name, from) in [
        ("server.upstream", "OJS_THROTTLE_UPSTREAM".to_owned()),
        ("server.listen", "OJS_THROTTLE_LISTEN".to_owned()),
        ("server.admin_listen", "--admin-listen".to_owned()),
        ("store.url", "OJS_THROTTLE_STORE_URL".to_owned()),
        ("server.log", "OJS_THROTTLE_LOG".to_owned()),
        ("server.log_level", "default".to_owned()),
    ] {
        assert_eq!(setting(&now, name).1, from, "{name}");
    }
    assert_eq!(setting(&now, "server.upstream").0, upstream);
    assert!(path.with_file_name("usage.db").exists());
    // The file is followed, and what it says of these changes nothing.
    let more = text.replace("human", "nonsense") + &policy("late", 3);
    fs::write(&path, more).unwrap();
    wait("the policy", || slots(&sidecar, "late") == 3);
    assert_eq!(setting(&shown(&sidecar), "server.log").0, "json");
}

#[test]
fn what_is_wrong_in_the_environment_is_shown_under_its_name() {
    let (_dir, path) = file("[server]\nupstream = \"http://ojs\"\nlog_level = \"loud\"\n");
    let mut command = program();
    command.args(["check", "--json"]).arg(&path);
    command.env("OJS_THROTTLE_LISTEN", "ojs:80");
    let told: Value = serde_json::from_str(&ran(&mut command).out).unwrap();
    let place = |nth: usize| {
        let problem = &told["problems"][nth];
        (problem["file"].clone(), problem["line"].clone())
    };
    assert_eq!(place(0), (json!(path), json!(3)), "{told}");
    assert_eq!(place(1), (json!("OJS_THROTTLE_LISTEN"), json!(1)), "{told}");
    let mut command = run_at(&path);
    command.envs([
        ("OJS_THROTTLE_LISTEN", "ojs:80"),
        ("OJS_THROTTLE_STORE_URL", "redus:user:hunter2@host"),
        ("OJS_THROTTLE_LOG", "jsn"),
    ]);
    let done = ran(&mut command);
    assert_eq!(done.status, Some(78), "{}", done.err);
    for told in [
        "throttle.toml:3:13",
        "--> OJS_THROTTLE_LISTEN:1:21",
        "OJS_THROTTLE_LISTEN=ojs:80",
        "--> OJS_THROTTLE_STORE_URL:1:",
        "did you mean \"json\"?",
    ] {
        assert!(done.err.contains(told), "{told}: {}", done.err);
    }
    assert!(!done.err.contains("hunter2"), "{}", done.err);
}

/// One that a file names is its own, and Kubernetes sets some for each service.
#[test]
fn a_variable_that_nobody_reads_is_warned_of() {
    let token = "control_token = \"${OJS_THROTTLE_OWN}\"";
    let (_dir, path) = file(format!("[server]\nupstream = \"http://ojs\"\n{token}\n"));
    let mut command = program();
    command.arg("check").arg(&path).envs([
        ("OJS_THROTTLE_ADMIN_LISTN", "127.0.0.1:7"),
        ("OJS_THROTTLE_COLOUR", "hunter2"),
        ("OJS_THROTTLE_EMPTY", ""),
        ("OJS_THROTTLE_OWN", "0123456789abcdef"),
        ("OJS_THROTTLE_ADMIN", "http://127.0.0.1:7"),
        ("OJS_THROTTLE_TOKEN", "s3cret"),
        ("OJS_THROTTLE_LOG", "json"),
        ("OJS_THROTTLE_SERVICE_HOST", "10.0.0.7"),
        ("OJS_THROTTLE_SERVICE_PORT_ADMIN", "9091"),
        ("OJS_THROTTLE_PORT", "tcp://10.0.0.7:9091"),
        ("OJS_THROTTLE_PORT_9091_TCP_ADDR", "10.0.0.7"),
    ]);
    let done = ran(&mut command);
    assert_eq!(done.status, Some(0), "{}", done.out);
    for told in [
        "the variable OJS_THROTTLE_ADMIN_LISTN of the environment is not known",
        "did you mean OJS_THROTTLE_ADMIN_LISTEN?",
        "the variable OJS_THROTTLE_COLOUR of the environment is not known",
        "ok: 0 policies, 0 queues, 2 warnings",
    ] {
        assert!(done.out.contains(told), "{told}: {}", done.out);
    }
    assert!(!done.out.contains("hunter2"), "{}", done.out);
}

#[test]
fn the_files_of_a_folder_are_one() {
    let backend = Backend::start(Lax::spec());
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("conf");
    fs::create_dir(&folder).unwrap();
    let at = |name: &str| folder.join(name);
    let write = |name: &str, text: &str| {
        // As a whole: a file that is half written is another test.
        let beside = dir.path().join("new");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, at(name)).unwrap();
    };
    write("10-base.toml", &config(backend.addr, "", ""));
    write(
        "20-a.toml",
        &(policy("a", 1) + "[fetch]\nclaim_budget = \"100ms\"\n"),
    );
    write("30-b.toml", &("# b\n".to_owned() + &policy("b", 2)));
    for ignored in [".#20-a.toml", "20-a.toml~", "README"] {
        write(ignored, "nonsense");
    }
    let sidecar = Sidecar::spawn(run_at(&folder), tempfile::tempdir().unwrap());
    assert_eq!(
        (slots(&sidecar, "a"), slots(&sidecar, "b")),
        (json!(1), json!(2))
    );
    let now = shown(&sidecar);
    let from = |name: &str, line: usize| json!(format!("{}:{line}", at(name).display()));
    assert_eq!(now["policies"][0]["from"], from("20-a.toml", 1));
    assert_eq!(now["policies"][1]["from"], from("30-b.toml", 2));
    assert_eq!(setting(&now, "fetch.claim_budget").1, from("20-a.toml", 6));

    // Files that come, change and go.
    write("25-late.toml", &policy("late", 4));
    wait("one that comes", || slots(&sidecar, "late") == 4);
    write("30-b.toml", &policy("b", 5));
    wait("one that changes", || slots(&sidecar, "b") == 5);
    fs::remove_file(at("25-late.toml")).unwrap();
    let policies = || shown(&sidecar)["policies"].as_array().unwrap().len();
    wait("one that goes", || policies() == 2);

    // What is there twice is named with both places, and nothing changes.
    let twice =
        "[fetch]\nclaim_budget = \"90ms\"\nmax_wait = \"1s\"\n".to_owned() + &policy("a", 9);
    write("40-twice.toml", &twice);
    let series = "ojs_throttle_config_reloads_total{result=\"invalid\"}";
    wait("the refusal", || sidecar.metric(series) >= 1.0);
    for told in [
        "`fetch.claim_budget` is there twice",
        "policy \"a\" is there twice",
        "40-twice.toml:2:16",
        "40-twice.toml:5:8",
        &format!("the first is in {}:6", at("20-a.toml").display()),
        &format!("the first is in {}:2", at("20-a.toml").display()),
    ] {
        // The log's lines are written in a thread of its own, maybe after the metric.
        wait(told, || sidecar.log().contains(told));
    }
    assert_eq!(slots(&sidecar, "a"), 1);
    // One that is half written is taken for that, and so is a folder without any.
    write("40-twice.toml", "");
    let series = "ojs_throttle_config_reloads_total{result=\"refused\"}";
    write("30-b.toml", "");
    wait("an empty one", || sidecar.metric(series) >= 1.0);
    assert_eq!(slots(&sidecar, "b"), 5);
    fs::remove_file(at("40-twice.toml")).unwrap();
    write("30-b.toml", &policy("b", 6));
    wait("it is good again", || slots(&sidecar, "b") == 6);
}

/// Kubernetes swaps a link beside the files.
#[test]
fn a_folder_that_is_a_config_map_is_followed() {
    let backend = Backend::start(Lax::spec());
    let dir = tempfile::tempdir().unwrap();
    let put = |version: &str, late: &str| {
        let data = dir.path().join(version);
        fs::create_dir(&data).unwrap();
        fs::write(data.join("a.toml"), config(backend.addr, "", "")).unwrap();
        fs::write(data.join("b.toml"), late).unwrap();
        symlink(version, dir.path().join("..new")).unwrap();
        fs::rename(dir.path().join("..new"), dir.path().join("..data")).unwrap();
    };
    put("..1", &policy("k", 1));
    for name in ["a.toml", "b.toml"] {
        symlink(Path::new("..data").join(name), dir.path().join(name)).unwrap();
    }
    let sidecar = Sidecar::spawn(run_at(dir.path()), tempfile::tempdir().unwrap());
    assert_eq!(slots(&sidecar, "k"), 1);
    put("..2", &policy("k", 7));
    wait("the other version", || slots(&sidecar, "k") == 7);
}

#[test]
fn what_is_wrong_with_a_folder_is_said_of_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let check = || {
        let done = ran(program().arg("check").arg(dir.path()));
        (done.status, done.out)
    };
    let (status, out) = check();
    assert_eq!(status, Some(78));
    assert!(out.contains("a folder without a file *.toml"), "{out}");
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    write(
        "a.toml",
        "[server]\nupstream = \"http://ojs\"\n[[queue]]\nname = \"q\"\nconcurrency = 1\n",
    );
    write(
        "b.toml",
        "[fetch]\nmax_wate = \"1s\"\n[policy]\nname = \"one\"\nconcurrency = 1\n",
    );
    write("c.toml", "[server]\nlisten = 7\noops\n");
    write(
        "d.toml",
        "[[tenant]]\nid = \"t\"\nlimits = { max_queue_depth = 1 }\n[[policy]]\nname = \"two\"\n",
    );
    let (status, out) = check();
    assert_eq!(status, Some(78));
    for told in ["b.toml:2:1", "c.toml:2:10", "c.toml:3:5", "3 problems in"] {
        assert!(out.contains(told), "{told}: {out}");
    }
    write(
        "b.toml",
        "[policy]\nname = \"one\"\nconcurrency = 1\nmatch = { queue = \"r\" }\n",
    );
    fs::remove_file(dir.path().join("c.toml")).unwrap();
    let (_, out) = check();
    assert!(out.contains("d.toml:5:8"), "{out}");
    write(
        "d.toml",
        "[[queue]]\nname = [\"r\", \"q\"]\nmax_depth = 2\n",
    );
    let (_, out) = check();
    let first = format!("the first is in {}:4", dir.path().join("a.toml").display());
    assert!(
        out.contains("queue \"q\" is there twice") && out.contains(&first),
        "{out}"
    );
    write("d.toml", "[[queue]]\nname = [\"r\"]\nmax_depth = 2\n");
    let (status, out) = check();
    assert_eq!(status, Some(0), "{out}");
    assert!(out.contains("ok: 1 policy, 2 queues"), "{out}");
}

/// As in a service manager's journal, which keeps escapes for ever.
#[test]
fn no_colour_where_it_is_not_wanted() {
    let (_dir, path) = file("nonsense");
    let on_terminal = |command: &mut Command| {
        let built = program().get_program().to_owned();
        let line = format!("{} check {}", built.display(), path.display());
        command
            .args(["-qec", &line, "/dev/null"])
            .stdin(Stdio::null());
        command.output().unwrap().stdout.contains(&0x1b)
    };
    assert!(on_terminal(
        Command::new("script")
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
    ));
    assert!(!on_terminal(
        Command::new("script")
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
    ));
}
