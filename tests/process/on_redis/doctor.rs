//! `doctor` before a Redis: up, in use, down, with a wrong password, with somebody else's data.

use redis::Commands;

use crate::process::doctor::{doctor, finding, is_new, is_used, of_store};
use crate::process::prelude::*;

fn examined(backend: &Backend, url: &str, more: &[&str]) -> (Value, Option<i32>) {
    let store = format!("[store]\nurl = \"{url}\"\ntimeout = \"2s\"\n");
    doctor(&config(backend.addr, "", &store), more)
}

fn fails(report: &Value, what: &str, words: &[&str]) {
    let one = finding(report, "store", what);
    assert_eq!(one["level"], "fail", "{one}");
    let says = one["says"].as_str().unwrap();
    for word in words {
        assert!(says.contains(word), "{word}: {one}");
    }
}

#[test]
fn a_store_that_is_well() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let rest = format!("[store]\nurl = \"{}\"\n", store.url());
    let text = config(backend.addr, "", &rest);
    let version = of_store(&doctor(&text, &[]).0, "version");
    let kind = ["Redis ", "Valkey "]
        .into_iter()
        .find(|kind| version.starts_with(kind));
    is_new(&text, kind.expect(&version));
    let mut client = redis::Client::open(store.url()).unwrap();
    let keys: Vec<String> = client.keys("*").unwrap();
    assert!(keys.is_empty(), "it only reads: {keys:?}");
    is_used(&text, &Sidecar::run(&text));
}

/// An operator's secret has any character, and stands in a file.
#[test]
fn a_store_s_password_or_its_url_is_in_a_file() {
    let backend = Backend::start(Lax::redis());
    let password = "p@ss:w/rd?#%";
    let store = RedisServer::with(&["--requirepass", password]);
    let secrets = tempfile::tempdir().unwrap();
    let secret = |name: &str, text: &str| {
        let path = secrets.path().join(name);
        std::fs::write(&path, format!("{text}\n")).unwrap();
        path.display().to_string()
    };
    let bare = store.url();
    let of_user = bare.replace("://", "://default@");
    let pass = secret("pass", password);
    let whole = secret("url", &bare.replace("://", "://:p%40ss%3Aw%2Frd%3F%23%25@"));
    let with = |url: &str, more: &str| {
        let rest = format!("[store]\nurl = \"{url}\"\n{more}");
        doctor(&config(backend.addr, "", &rest), &[])
    };
    let named = format!("password = \"file:{pass}\"\n");
    for (url, more) in [
        (&*bare, &*named),
        (&of_user, &named),
        (&format!("file:{whole}"), ""),
    ] {
        let (report, status) = with(url, more);
        assert_eq!(status, Some(0), "{url} {more}: {report}");
    }
    let (report, status) = with(&bare, "");
    assert_eq!(status, Some(1), "{report}");
    let (_dir, mut command) = run_with(config(backend.addr, "", &format!("[store]\n{named}")));
    command.env("OJS_THROTTLE_STORE_URL", bare.replace("://", "://:other@"));
    let done = ran(&mut command);
    assert_eq!(done.status, Some(78), "{}", done.err);
    has(&done.err, "has no place in `store.url`");
}

#[test]
fn a_store_that_forgets_when_it_is_full() {
    let backend = Backend::start(Lax::redis());
    let store = RedisServer::with(&["--maxmemory-policy", "allkeys-lru"]);
    let (report, status) = examined(&backend, &store.url(), &[]);
    assert_eq!(status, Some(0), "{report}");
    let one = finding(&report, "store", "eviction");
    assert_eq!(one["level"], "warn", "{one}");
}

/// What helps follows from the server's own words, as its client tells them.
#[test]
fn a_store_that_is_full_or_a_replica_is_told_from_one_that_is_away() {
    let backend = Backend::start(Lax::redis());
    let full = RedisServer::with(&["--maxmemory", "1mb"]);
    let master = full.port.to_string();
    let replica = RedisServer::with(&["--replicaof", "127.0.0.1", &master]);
    for (store, help) in [(&full, "raise it"), (&replica, "to its master")] {
        let (report, status) = examined(&backend, &store.url(), &["--probe"]);
        assert_eq!(status, Some(1), "{report}");
        let writes = finding(&report, "store", "writes");
        assert!(writes.to_string().contains(help), "{writes}");
    }
}

/// A server that was used, and takes no more writes. Nobody has to ask for a probe.
#[test]
fn a_store_that_takes_no_more_writes_is_found_without_a_probe() {
    let backend = Backend::start(Lax::redis());
    let store = RedisServer::start();
    let rest = format!("[store]\nurl = \"{}\"\n", store.url());
    let sidecar = Sidecar::run(&config(backend.addr, "", &rest));
    wait("it is used", || {
        let (report, _) = examined(&backend, &store.url(), &[]);
        finding(&report, "store", "data")["says"] == "ours, 1 live sidecar"
    });
    drop(sidecar);
    let mut client = redis::Client::open(store.url()).unwrap();
    let mut set = |command: &[&str]| {
        let (name, args) = command.split_first().unwrap();
        let _: () = redis::cmd(name).arg(args).query(&mut client).unwrap();
    };
    set(&["CONFIG", "SET", "maxmemory", "1"]);
    let writes = |help: &str| {
        let (report, status) = examined(&backend, &store.url(), &[]);
        assert_eq!(status, Some(1), "{report}");
        let writes = finding(&report, "store", "writes").to_string();
        assert!(writes.contains(help), "{writes}");
    };
    writes("raise it");
    set(&["CONFIG", "SET", "maxmemory", "0"]);
    let nobody = "1";
    set(&["REPLICAOF", "127.0.0.1", nobody]);
    writes("to its master");
}

#[test]
fn a_store_that_is_down() {
    let (backend, mut store) = (Backend::start(Lax::redis()), RedisServer::start());
    store.kill();
    let (report, status) = examined(&backend, &store.url(), &[]);
    assert_eq!(status, Some(1), "{report}");
    let port = store.port.to_string();
    fails(&report, "reachable", &["not available", &port]);
    // The backend is looked at all the same.
    assert_eq!(finding(&report, "backend", "reachable")["level"], "ok");
}

#[test]
fn a_wrong_password_and_missing_rights() {
    let backend = Backend::start(Lax::redis());
    let store = RedisServer::with(&["--requirepass", "SECRET"]);
    let (report, status) = examined(&backend, &store.url(), &[]);
    assert_eq!(status, Some(1), "{report}");
    fails(&report, "reachable", &["cannot be used"]);
    let bare = store.url();
    let url = |login: &str| bare.replace("redis://", &format!("redis://{login}@"));
    let (report, status) = examined(&backend, &url(":WRONG-CANARY"), &[]);
    assert_eq!(status, Some(1), "{report}");
    fails(&report, "reachable", &["cannot be used"]);
    assert!(!report.to_string().contains("CANARY"), "{report}");
    // By the manual's list of rights it is well, and without writing it is not.
    let mut client = redis::Client::open(url(":SECRET")).unwrap();
    let rights = "on >PASS ~{ojs-throttle}:* &{ojs-throttle}:* -@all +@connection +@read +@write \
                  +@scripting +@pubsub +@fast -@dangerous +time +info";
    for (user, more, status) in [("ojs", "", 0), ("reader", "-@write", 1)] {
        let mut acl = redis::cmd("ACL");
        let rights = [rights.split_whitespace(), more.split_whitespace()];
        let rights: Vec<_> = rights.into_iter().flatten().collect();
        acl.arg("SETUSER").arg(user).arg(rights);
        acl.exec(&mut client).unwrap();
        let login = url(&format!("{user}:PASS"));
        let (report, ended) = examined(&backend, &login, &["--probe"]);
        assert_eq!(ended, Some(status), "{report}");
        if status == 1 {
            fails(&report, "writes", &["cannot be used"]);
        }
    }
}

#[test]
fn data_of_somebody_else() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let mut client = redis::Client::open(store.url()).unwrap();
    let _: () = client.set("{ojs-throttle}:meta", "mine").unwrap();
    let (report, status) = examined(&backend, &store.url(), &[]);
    assert_eq!(status, Some(1), "{report}");
    let words = ["{ojs-throttle}:", "store.namespace"];
    fails(&report, "reachable", &words);
    let _: () = client.del("{ojs-throttle}:meta").unwrap();
    let _: () = client.hset("{ojs-throttle}:meta", "format", "7").unwrap();
    let (report, _) = examined(&backend, &store.url(), &[]);
    fails(&report, "reachable", &["store.namespace"]);
}
