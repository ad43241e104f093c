//! What goes wrong with a file, each by name.

use std::path::{Path, PathBuf};

use ojs_throttle::store::SqlStore;
use ojs_throttle::store::sqlite::{SqliteConfig, open};
use rusqlite::Connection;
use tempfile::TempDir;

use super::fleet::{
    data_that_nobody_could_put_back_are_waited_for, locked_data_keep_nobody_waiting,
    lost_data_are_put_back_first, what_was_set_by_hand_is_put_back, wiped_data_are_missed,
};
use super::prelude::*;

fn config(path: &Path, owner: &str, timeout: Duration) -> SqliteConfig {
    SqliteConfig {
        target: path.to_owned(),
        namespace: "ojs-throttle".to_owned(),
        owner: owner.to_owned(),
        timeout,
    }
}

/// A folder of the test's own, and where the file is in it.
fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("limits.db");
    (dir, path)
}

/// The stores of several on one file, and their clock.
fn several<const N: usize>(path: &Path, owners: [&str; N]) -> ([SqlStore; N], Arc<AtomicU64>) {
    let (micros, clock) = clock();
    let patience = Duration::from_secs(10);
    let stores = owners.map(|owner| open(config(path, owner, patience), clock.clone()));
    (stores, micros)
}

/// Removes the file, and what stands beside it.
fn remove(path: &Path) {
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(format!("{}{end}", path.display())).ok();
    }
}

fn on(path: &Path, owner: &str) -> SqlStore {
    open(config(path, owner, Duration::from_secs(10)), Clock::new(T))
}

async fn refused(path: &Path) -> String {
    match on(path, "a").check().await {
        Err(StoreError::Unusable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_was_used_outlasts_who_used_it() {
    let (_dir, path) = place();
    let all = [limited("k", Some(2), Some((1, 60 * SECOND)), None)];
    let first = on(&path, "a");
    assert!(started(&take(&first, claimed("1", 1, &all)).await));
    drop(first);
    let second = on(&path, "b");
    assert!(!started(&take(&second, claimed("2", 1, &all)).await));
    let row = second.row("1").await.unwrap().unwrap();
    assert!(!row.ours);
    assert!(second.end("1", Some(Gen(1))).await.unwrap().is_some());
    let used = second.usage(all[0].space, &all[0].key, &all[0].limits);
    let used = used.await.unwrap().unwrap();
    assert_eq!((used.active, used.windows[0].0), (0, 1));
}

/// Clients name jobs as they like, and a file keeps it.
#[tokio::test]
async fn a_job_with_a_nul_in_its_id_gives_its_slot_back() {
    let dir = tempfile::tempdir().unwrap();
    let store = on(&dir.path().join("limits.db"), "a");
    let (nul, one) = ("x\0y", [limited("k", Some(1), None, None)]);
    assert!(started(&take(&store, claimed(nul, 1, &one)).await));
    assert!(store.row(nul).await.unwrap().is_some());
    assert!(store.end(nul, None).await.unwrap().is_some());
    assert!(started(&take(&store, claimed("z", 1, &one)).await));
}

#[tokio::test]
async fn a_file_of_somebody_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(
        &text,
        "no database, but longer than the head of one".repeat(9),
    )
    .unwrap();
    let why = refused(&text).await;
    assert!(
        why.contains("notes.txt") && why.contains("not a database"),
        "{why}"
    );
    let other = dir.path().join("other.db");
    let connection = Connection::open(&other).unwrap();
    connection.execute_batch("CREATE TABLE rows (x)").unwrap();
    let before = std::fs::read(&other).unwrap();
    let why = refused(&other).await;
    assert!(why.contains("another program"), "{why}");
    assert_eq!(std::fs::read(&other).unwrap(), before);
    let why = refused(&dir.path().join("none/limits.db")).await;
    assert!(why.contains("none/limits.db"), "{why}");
}

#[tokio::test]
async fn a_file_of_a_later_program_or_another_namespace_is_refused() {
    let (_dir, path) = place();
    on(&path, "a").check().await.unwrap();
    let connection = Connection::open(&path).unwrap();
    connection.pragma_update(None, "user_version", 2).unwrap();
    let why = refused(&path).await;
    assert!(
        why.contains("version 2") && why.contains("version 1"),
        "{why}"
    );
    connection.pragma_update(None, "user_version", 1).unwrap();
    connection
        .execute("UPDATE meta SET namespace = 'x'", ())
        .unwrap();
    let why = refused(&path).await;
    assert!(why.contains("\"x\""), "{why}");
}

/// Who was told that limits could not be set finds that they are not set.
#[tokio::test]
async fn limits_for_which_nobody_waits_any_more_are_not_set() {
    let (_dir, path) = place();
    let store = open(
        config(&path, "a", Duration::from_millis(300)),
        Clock::new(T),
    );
    answered(async || store.check().await).await;
    let set = async |key: &str| {
        let change = Change::Override {
            space: Space::Job,
            key: Key::new(key).unwrap(),
            set: Some(Override::default()),
        };
        store.set(change).await
    };
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // The first waits for the file, the second behind it.
    for key in ["one", "two"] {
        assert_eq!(set(key).await, Err(StoreError::Timeout));
    }
    other.execute_batch("COMMIT").unwrap();
    assert!(answered(async || set("three").await).await);
    let names = "SELECT group_concat(name) FROM overrides";
    let names: String = other.query_row(names, (), |row| row.get(0)).unwrap();
    assert!(names.contains("three") && !names.contains(','), "{names}");
}

#[tokio::test]
async fn a_file_that_was_replaced_is_missed() {
    let (_dir, path) = place();
    let ([a, b], micros) = several(&path, ["a", "b"]);
    wiped_data_are_missed([&a, &b], &micros, || remove(&path)).await;
}

#[tokio::test]
async fn one_that_never_knew_the_lost_data_waits_for_those_that_did() {
    let (_dir, path) = place();
    let ([knew, fresh], micros) = several(&path, ["a", "b"]);
    lost_data_are_put_back_first(&knew, &fresh, &micros, || remove(&path)).await;
}

#[tokio::test]
async fn time_in_which_nobody_reaches_a_new_file_does_not_count() {
    let (_dir, path) = place();
    let (all, micros) = several(&path, ["a", "b"]);
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    data_that_nobody_could_put_back_are_waited_for(all, &micros, || remove(&path)).await;
}

#[tokio::test]
async fn what_was_set_by_hand_outlasts_the_data() {
    let (_dir, path) = place();
    let (all, micros) = several(&path, ["a", "b", "c", "d"]);
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    what_was_set_by_hand_is_put_back(all, &micros, || remove(&path)).await;
}

#[tokio::test]
async fn a_file_that_another_program_locks_keeps_nobody_waiting() {
    let (_dir, path) = place();
    let config = config(&path, "a", Duration::from_millis(500));
    let store = open(config, Clock::new(T));
    answered(async || store.check().await).await;
    let other = Connection::open(&path).unwrap();
    other.busy_timeout(Duration::from_secs(60)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // It is locked until this has its answer; the store itself would try for ten seconds.
    let unlock = || other.execute_batch("COMMIT").unwrap();
    locked_data_keep_nobody_waiting(&store, unlock).await;
}

/// One that lives is followed to where its clock is: a file's time does not go back.
#[tokio::test]
async fn a_clock_that_is_behind_follows() {
    let (_dir, path) = place();
    let config = config(&path, "ahead", Duration::from_secs(10));
    let ahead = open(config, Clock::new(T + 3_600 * SECOND));
    ahead.check().await.unwrap();
    let behind = on(&path, "behind");
    behind.check().await.unwrap();
    behind.due(1).await.unwrap();
    assert!(behind.now().0.abs_diff(ahead.now().0) < SECOND);
}
