//! `doctor` before a Postgres: empty, in use, down, without rights, with somebody else's tables.

use crate::process::doctor::{doctor, finding};
use crate::process::prelude::*;
use crate::servers::postgres::programs;

fn sql(server: &PostgresServer, text: &str) -> String {
    let mut psql = Command::new(programs().join("psql"));
    psql.args(["-U", "postgres", "-qAt", "-h"])
        .arg(server.dir.path());
    let done = psql.args(["-c", text]).output().unwrap();
    assert!(done.status.success(), "{text}: {done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn says(report: &Value, what: &str) -> String {
    let one = finding(report, "store", what);
    one["says"].as_str().unwrap().to_owned()
}

#[test]
fn a_postgres_from_its_first_day_to_its_last() {
    let (backend, mut store) = (
        Backend::start(Lax::redis()),
        PostgresServer::start(UNSYNCED),
    );
    let of = |url: &str| format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n");
    let examined = |url: &str, more: &[&str]| doctor(&config(backend.addr, "", &of(url)), more);
    let url = store.url();
    let (report, status) = examined(&url, &[]);
    assert_eq!(status, Some(0), "{report}");
    assert!(
        says(&report, "version").starts_with("Postgres "),
        "{report}"
    );
    assert!(says(&report, "data").starts_with("none yet"), "{report}");
    assert!(says(&report, "clock").starts_with("the same"), "{report}");
    assert!(says(&report, "round trip").contains("p99"), "{report}");
    let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'ojs-throttle'";
    assert_eq!(sql(&store, made), "0", "it only reads");
    // Without the right to make it.
    sql(&store, "CREATE ROLE mouse LOGIN");
    let (report, status) = examined(&url.replace("postgres@", "mouse@"), &[]);
    assert_eq!(status, Some(1), "{report}");
    let why = says(&report, "reachable");
    assert!(why.contains("needs CREATE on the database"), "{why}");
    // With a sidecar there, which it does not disturb.
    let sidecar = Sidecar::run(&config(backend.addr, "", &of(&url)));
    until("it says that it lives", || {
        let (report, status) = examined(&url, &[]);
        assert_eq!(status, Some(0), "{report}");
        (says(&report, "data") == "ours, 1 live sidecar").then_some(())
    });
    assert!(sidecar.metric("ojs_throttle_siblings") < 0.5);
    let (report, _) = examined(&url, &["--probe"]);
    assert_eq!(says(&report, "writes"), "allowed", "{report}");
    drop(sidecar);
    sql(&store, "UPDATE \"ojs-throttle\".meta SET version = 9");
    let (report, status) = examined(&url, &[]);
    assert_eq!(status, Some(1), "{report}");
    assert!(
        says(&report, "reachable").contains("of version 9"),
        "{report}"
    );
    sql(
        &store,
        "DROP SCHEMA \"ojs-throttle\" CASCADE; CREATE SCHEMA \"ojs-throttle\" CREATE TABLE mine (n int)",
    );
    let (report, status) = examined(&url, &[]);
    assert_eq!(status, Some(1), "{report}");
    assert!(
        says(&report, "reachable").contains("store.namespace"),
        "{report}"
    );
    store.kill();
    let (report, status) = examined(&url, &[]);
    assert_eq!(status, Some(1), "{report}");
    assert!(
        says(&report, "reachable").contains("not available"),
        "{report}"
    );
}
