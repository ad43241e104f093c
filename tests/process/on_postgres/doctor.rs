//! `doctor` before a Postgres: empty, in use, down, without rights, with somebody else's tables.

use crate::process::doctor::{doctor, is_new, is_used, of_store};
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

#[test]
fn a_postgres_from_its_first_day_to_its_last() {
    let backend = Backend::start(Lax::redis());
    let mut store = PostgresServer::start(UNSYNCED);
    let of = |url: &str| {
        let store = format!("[store]\nurl = \"{url}\"\ntimeout = \"5s\"\n");
        config(backend.addr, "", &store)
    };
    let fails = |url: &str, words: &str| {
        let (report, status) = doctor(&of(url), &[]);
        assert_eq!(status, Some(1), "{report}");
        has(of_store(&report, "reachable"), words);
    };
    let url = store.url();
    is_new(&of(&url), "Postgres ");
    let made = "SELECT count(*) FROM pg_namespace WHERE nspname = 'ojs-throttle'";
    assert_eq!(sql(&store, made), "0", "it only reads");
    // Without the right to make it.
    sql(&store, "CREATE ROLE mouse LOGIN");
    let mouse = url.replace("postgres@", "mouse@");
    fails(&mouse, "needs CREATE on the database");
    is_used(&of(&url), &Sidecar::run(&of(&url)));
    sql(&store, "UPDATE \"ojs-throttle\".meta SET version = 9");
    fails(&url, "of version 9");
    sql(&store, "DROP SCHEMA \"ojs-throttle\" CASCADE");
    sql(
        &store,
        "CREATE SCHEMA \"ojs-throttle\" CREATE TABLE mine (n int)",
    );
    fails(&url, "store.namespace");
    store.kill();
    fails(&url, "not available");
}
