//! Sidecars whose clocks are minutes apart on one server: its clock is the one that counts. A SQLite file is of
//! one host, and so of one clock.

use super::prelude::*;
use super::trace::{Plan, enough, trace};
use crate::servers::only_on;

/// The library that gives a program another clock.
fn library() -> PathBuf {
    only_on("faketime");
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let found = folders
        .filter_map(|folder| Some(folder.ok()?.path().join("faketime/libfaketime.so.1")))
        .find(|library| library.exists());
    found.expect("libfaketime is missing: apt install faketime, or tests/run.sh --without faketime")
}

/// A sidecar whose wall clock is so many seconds ahead.
fn sidecar(config: &str, ahead: i64) -> Sidecar {
    let (dir, mut command) = run_with(config);
    command.env("LD_PRELOAD", library());
    command.env("FAKETIME", format!("{ahead:+}s"));
    // What is monotonic stays so.
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Sidecar::spawn(command, dir)
}

/// A store of this host goes on by the clock as it was, and the log says so.
#[test]
fn who_goes_by_a_clock_that_is_set_says_so() {
    let backend = Backend::start(Lax::redis());
    let folder = tempfile::tempdir().unwrap();
    let clock = folder.path().join("clock");
    let set = |ahead: &str| {
        let next = folder.path().join("next");
        std::fs::write(&next, ahead).unwrap();
        // At once, for it may be read meanwhile.
        std::fs::rename(next, &clock).unwrap();
    };
    set("+0");
    let sqlite = format!("sqlite:{}", folder.path().join("store").display());
    let sidecars = ["memory:", &sqlite].map(|url| {
        let store = format!("[store]\nurl = \"{url}\"\n");
        let (dir, mut command) = run_with(config(backend.addr, "", &store));
        command.env("LD_PRELOAD", library());
        command.env("FAKETIME_TIMESTAMP_FILE", &clock);
        command.env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Sidecar::spawn(command, dir)
    });
    set("+300");
    for sidecar in &sidecars {
        let said = until("the log says so", || {
            let mut lines = sidecar.lines().into_iter();
            lines.find(|line| line.contains("this host's clock was set"))
        });
        // Whole seconds of what is a little more or less.
        let seconds = ["seconds=300", "seconds=299"];
        assert!(seconds.iter().any(|word| said.contains(word)), "{said}");
    }
}

/// What its clock says of its own start, in seconds.
fn started(sidecar: &Sidecar) -> i64 {
    let log = sidecar.log();
    let mut words = log.split(['"', ' ']);
    let time = words.find_map(|word| word.parse::<jiff::Timestamp>().ok());
    time.expect("a line of a log has its time").as_second()
}

fn five_minutes_apart(plan: &Plan, backend: &Backend, store: &str) {
    let config = plan.config(backend, store);
    let sidecars = [-300, 0, 300].map(|ahead| sidecar(&config, ahead));
    let [behind, right, ahead] = [0, 1, 2].map(|nth| started(&sidecars[nth]));
    assert!(
        right - behind > 250 && ahead - right > 250,
        "{behind} {right} {ahead}"
    );
    let used = plan.judge(&trace(plan, backend, &sidecars));
    assert!(used >= enough(), "{used}");
}

#[test]
fn one_window_and_its_slots_on_redis() {
    let (backend, server) = (Backend::start(Lax::redis()), RedisServer::start());
    let store = format!("url = \"{}\"\ntimeout = \"5s\"", server.url());
    let plan = Plan::window(6, 60, Duration::from_secs(1), 300);
    five_minutes_apart(&plan, &backend, &store);
}

#[test]
fn one_spacing_on_redis() {
    let (backend, server) = (Backend::start(Lax::redis()), RedisServer::start());
    let store = format!("url = \"{}\"\ntimeout = \"5s\"", server.url());
    let plan = Plan::spacing(40, Duration::from_secs(1), 160);
    five_minutes_apart(&plan, &backend, &store);
}

#[test]
fn one_window_and_its_slots_on_postgres() {
    let (backend, server) = (
        Backend::start(Lax::redis()),
        PostgresServer::start(UNSYNCED),
    );
    let store = format!("url = \"{}\"\ntimeout = \"5s\"", server.url());
    let plan = Plan::window(6, 40, Duration::from_secs(1), 200);
    five_minutes_apart(&plan, &backend, &store);
}

#[test]
fn one_spacing_on_postgres() {
    let (backend, server) = (
        Backend::start(Lax::redis()),
        PostgresServer::start(UNSYNCED),
    );
    let store = format!("url = \"{}\"\ntimeout = \"5s\"", server.url());
    let plan = Plan::spacing(30, Duration::from_secs(1), 120);
    five_minutes_apart(&plan, &backend, &store);
}
