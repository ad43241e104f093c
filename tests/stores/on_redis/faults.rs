//! What goes wrong with a Redis, each by name.

use ojs_throttle::store::redis::{RedisConfig, RedisTarget};

use crate::stores::far::{self, far};
use crate::stores::fleet::{
    data_that_nobody_could_put_back_are_waited_for, lost_data_are_put_back_first,
    what_was_set_by_hand_is_put_back,
};
use crate::stores::on_redis::config;
use crate::stores::on_redis::failover::USER;
use crate::stores::prelude::*;

fn cli(server: &RedisServer, args: &[&str]) -> String {
    let port = server.port.to_string();
    let done = Command::new("redis-cli")
        .args(["-p", &port])
        .args(args)
        .output()
        .unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn open(server: &RedisServer, owner: &str, timeout: u64) -> RedisStore {
    let config = RedisConfig {
        timeout: Duration::from_millis(timeout),
        ..config(server, owner)
    };
    RedisStore::new(config, Clock::new(T))
}

/// Until the store answers again.
async fn back(store: &RedisStore) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        match store.count_out().await {
            Ok(_) | Err(StoreError::Wiped) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_servers_clock_decides() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    let seconds: u64 = cli(&server, &["TIME"])
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // Ours said that it is 2027.
    assert!(store.now().0.abs_diff(seconds * 1_000_000) < 60 * SECOND);
    let one = [limited("k", None, Some((1, SECOND)), None)];
    let Verdict::Started { at } = take(&store, claimed("a", 1, &one)).await else {
        panic!()
    };
    assert!(at.0.abs_diff(seconds * 1_000_000) < 60 * SECOND);
}

/// Whoever has another namespace has another budget.
#[tokio::test]
async fn another_namespace_shares_nothing() {
    let server = RedisServer::start();
    let one = [limited("k", Some(1), None, None)];
    for namespace in ["one", "two"] {
        let config = RedisConfig {
            namespace: namespace.to_owned(),
            ..config(&server, "a")
        };
        let store = RedisStore::new(config, Clock::new(T));
        store.check().await.unwrap();
        let first = take(&store, claimed("a", 1, &one)).await;
        assert!(matches!(first, Verdict::Started { .. }), "{first:?}");
        let second = take(&store, claimed("b", 2, &one)).await;
        assert!(matches!(second, Verdict::Refused { .. }), "{second:?}");
    }
}

/// A connection is many round trips before its first question, and a question is one.
#[tokio::test]
async fn a_server_in_another_place_is_reached() {
    let server = RedisServer::start();
    let port = far(far::Place::Port(server.port), Duration::from_millis(100)).await;
    let config = RedisConfig {
        target: RedisTarget::parse(&format!("redis://127.0.0.1:{port}")).unwrap(),
        timeout: Duration::from_millis(350),
        ..config(&server, "a")
    };
    let store = RedisStore::new(config, Clock::new(T));
    let asked = Instant::now();
    assert!(store.count_out().await.is_err());
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "no question waits for it"
    );
    answered(async || store.check().await).await;
    let one = [limited("k", Some(1), None, None)];
    let ask = claimed("1", 1, &one);
    let verdict = take_answered(&store, &ask).await;
    assert!(started(&verdict) || verdict == Verdict::HasRow, "it is out");
}

/// Nobody else takes its place here; but behind a sentinel, or a name, somebody may have.
#[tokio::test]
async fn a_master_that_lacks_its_replicas_is_left() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    let client = |line: &str| {
        let id = line.split(' ').find_map(|field| field.strip_prefix("id="));
        id.map(str::to_owned)
    };
    let clients = || -> Vec<String> {
        let list = cli(&server, &["CLIENT", "LIST"]);
        let ours = list.lines().filter(|line| line.contains("sub=1"));
        ours.filter_map(client).collect()
    };
    let before = clients();
    assert_eq!(before.len(), 1);
    cli(&server, &["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let one = [limited("k", Some(1), None, None)];
    let ask = claimed("1", 1, &one);
    let told = store.take(&[&ask], 1).await;
    assert!(
        matches!(&told, Err(StoreError::Unavailable(why)) if why.contains("NOREPLICAS")),
        "{told:?}"
    );
    store.count_out().await.unwrap();
    // The connection is closed by a task of its own, and the server notices a moment later.
    let left = async {
        while clients().contains(&before[0]) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let left = tokio::time::timeout(Duration::from_secs(60), left).await;
    left.expect("it asks elsewhere");
}

#[tokio::test]
async fn scripts_that_were_flushed_are_loaded_again() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    assert_eq!(cli(&server, &["SCRIPT", "FLUSH"]), "OK");
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    assert_eq!(cli(&server, &["SCRIPT", "FLUSH"]), "OK");
    assert!(store.end("a", None).await.unwrap().is_some());
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again_and_has_forgotten() {
    let mut server = RedisServer::start();
    let (micros, clock) = clock();
    let [a, b] = ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    a.check().await.unwrap();
    b.check().await.unwrap();
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&a, claimed("a", 1, &one)).await));
    let row = a.row("a").await.unwrap().unwrap();
    server.kill();
    let asked = Instant::now();
    assert!(a.count_out().await.is_err());
    assert!(a.count_out().await.is_err());
    // Nobody waits for the timeout of five seconds.
    assert!(asked.elapsed() < Duration::from_secs(4), "nothing hangs");
    server.restart(&[]);
    back(&a).await;
    let ask = claimed("b", 1, &one);
    assert_eq!(a.take(&[&ask], 1).await.err(), Some(StoreError::Wiped));
    // Who comes back first keeps the others from starting until all had time to come back.
    a.announce(&[row]).await.unwrap();
    back(&b).await;
    b.announce(&[]).await.unwrap();
    // One of them may be silent until its next beat is due.
    micros.fetch_add(1_900_000, Ordering::AcqRel);
    let early = b.take(&[&ask], 1).await;
    assert!(early.is_err(), "{early:?}");
    micros.fetch_add(700_000, Ordering::AcqRel);
    assert!(
        !started(&take(&b, ask.clone()).await),
        "the slot is taken still"
    );
    assert!(b.end("a", None).await.unwrap().is_some());
    assert!(started(&take(&b, ask).await));
}

/// A sidecar that is started then writes to the old data first, and is none of those who know better.
#[tokio::test]
async fn data_that_are_older_than_they_were_count_as_lost_behind_a_newcomer() {
    let mut server = RedisServer::start();
    let (micros, clock) = clock();
    let open = |owner| RedisStore::new(config(&server, owner), clock.clone());
    let (a, newcomer) = (open("a"), open("newcomer"));
    let key = Key::new("k").unwrap();
    a.check().await.unwrap();
    a.due(9).await.unwrap();
    assert_eq!(cli(&server, &["SAVE"]), "OK");
    for _ in 0..6 {
        micros.fetch_add(2_000_000, Ordering::AcqRel);
        a.due(9).await.unwrap();
    }
    let pause = Change::Override {
        space: Space::Job,
        key: key.clone(),
        set: Some(Override::default()),
    };
    assert!(a.set(pause).await.unwrap());
    server.kill();
    assert!(a.count_out().await.is_err());
    server.restart(&[]);
    micros.fetch_add(1_000_000, Ordering::AcqRel);
    back(&newcomer).await;
    newcomer.due(9).await.unwrap();
    micros.fetch_add(200_000, Ordering::AcqRel);
    back(&a).await;
    assert_eq!(a.due(9).await.err(), Some(StoreError::Wiped));
    a.announce(&[]).await.unwrap();
    assert!(a.overrides().get(Space::Job, &key, a.now()).is_some());
}

/// As one that loads its last snapshot.
#[tokio::test]
async fn data_that_are_older_than_they_were_count_as_lost() {
    let mut server = RedisServer::start();
    let (micros, clock) = clock();
    let [a, b] = ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let key = |name: &str| Key::new(name).unwrap();
    let set = |name: &str, set| Change::Override {
        space: Space::Job,
        key: key(name),
        set,
    };
    for store in [&a, &b] {
        store.check().await.unwrap();
        store.due(9).await.unwrap();
    }
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&b, claimed("ended", 1, &one)).await));
    let pause = set("deleted", Some(Override::default()));
    assert!(a.set(pause).await.unwrap());
    let step = Step::Add { by: 7, most: None };
    assert_eq!(a.number("open", step).await.unwrap().value, 7);
    assert_eq!(cli(&server, &["SAVE"]), "OK");
    assert!(b.end("ended", None).await.unwrap().is_some());
    assert!(started(&take(&a, claimed("out", 1, &one)).await));
    let row = a.row("out").await.unwrap().unwrap();
    assert!(a.set(set("deleted", None)).await.unwrap());
    assert!(a.set(set("made", Some(Override::default()))).await.unwrap());
    micros.fetch_add(4_000_000, Ordering::AcqRel);
    a.due(9).await.unwrap();
    b.due(9).await.unwrap();
    server.kill();
    assert!(a.count_out().await.is_err());
    server.restart(&[]);
    back(&a).await;
    let ask = claimed("next", 1, &one);
    assert_eq!(a.take(&[&ask], 1).await.err(), Some(StoreError::Wiped));
    a.announce(&[row]).await.unwrap();
    back(&b).await;
    b.announce(&[]).await.unwrap();
    let early = b.take(&[&ask], 1).await;
    assert_eq!(early.err(), Some(StoreError::Settling));
    micros.fetch_add(3_600_000, Ordering::AcqRel);
    assert!(!started(&take(&b, ask.clone()).await), "one is out");
    // Of these places nobody will ever say that they are free.
    let open = b.number("open", Step::Read).await.unwrap();
    assert_eq!((open.value, open.version), (0, 0));
    let step = Step::Add { by: 2, most: None };
    let open = b.number("open", step).await.unwrap();
    assert_eq!((open.value, open.version), (2, 1));
    assert_eq!(a.number("open", Step::Read).await.unwrap().value, 2);
    assert!(b.row("ended").await.unwrap().is_none());
    assert!(a.end("out", None).await.unwrap().is_some());
    assert!(started(&take(&b, ask).await), "and nothing else was");
    for store in [&a, &b] {
        let now = store.now();
        let has = |name: &str| store.overrides().get(Space::Job, &key(name), now).is_some();
        assert_eq!((has("deleted"), has("made")), (false, true));
        assert_eq!(store.facts().times_wiped, 1);
    }
    // Data that have all, or lack what a moment brings, are the same ones.
    a.due(9).await.unwrap();
    assert_eq!(cli(&server, &["SAVE"]), "OK");
    micros.fetch_add(1_000_000, Ordering::AcqRel);
    b.due(9).await.unwrap();
    server.kill();
    assert!(a.count_out().await.is_err());
    assert!(b.count_out().await.is_err());
    server.restart(&[]);
    back(&a).await;
    back(&b).await;
    a.announce(&[]).await.unwrap();
    assert_eq!(a.facts().times_wiped, 1);
}

#[tokio::test]
async fn data_that_were_wiped_are_missed() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    assert_eq!(cli(&server, &["FLUSHALL"]), "OK");
    let ask = claimed("a", 1, &[limited("k", Some(1), None, None)]);
    assert_eq!(store.take(&[&ask], 1).await.err(), Some(StoreError::Wiped));
    assert_eq!(store.end("a", None).await.err(), Some(StoreError::Wiped));
    store.announce(&[]).await.unwrap();
    assert!(store.end("a", None).await.unwrap().is_none());
}

#[tokio::test]
async fn one_that_never_knew_the_lost_data_waits_for_those_that_did() {
    let server = RedisServer::start();
    let (micros, clock) = clock();
    let [knew, fresh] =
        ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let wipe = || drop(cli(&server, &["FLUSHALL"]));
    lost_data_are_put_back_first(&knew, &fresh, &micros, wipe).await;
}

#[tokio::test]
async fn time_in_which_nobody_reaches_new_data_does_not_count() {
    let server = RedisServer::start();
    let (micros, clock) = clock();
    let all = ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let wipe = || drop(cli(&server, &["FLUSHALL"]));
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    data_that_nobody_could_put_back_are_waited_for(all, &micros, wipe).await;
}

#[tokio::test]
async fn what_was_set_by_hand_outlasts_the_data() {
    let server = RedisServer::start();
    let (micros, clock) = clock();
    let all = ["a", "b", "c", "d"];
    let all = all.map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let wipe = || drop(cli(&server, &["FLUSHALL"]));
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    what_was_set_by_hand_is_put_back(all, &micros, wipe).await;
}

/// Who is idle hears at once that data began anew, and puts its rows back.
#[tokio::test]
async fn that_data_begin_anew_is_heard_of() {
    let server = RedisServer::start();
    let [a, b] = ["a", "b"].map(|owner| open(&server, owner, 5_000));
    for store in [&a, &b] {
        store.check().await.unwrap();
        // What it is told at the beginning makes it look around.
        assert_eq!(store.wake().await, Wake::All);
        store.due(9).await.unwrap();
    }
    assert_eq!(cli(&server, &["FLUSHALL"]), "OK");
    a.announce(&[]).await.unwrap();
    let looks = async {
        while b.due(9).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await
        }
    };
    tokio::select! {
        woken = b.wake() => panic!("{woken:?}"),
        () = looks => {}
        () = tokio::time::sleep(Duration::from_secs(1)) => panic!("its beat comes first"),
    }
}

#[tokio::test]
async fn what_comes_too_late_is_refused_by_the_server() {
    let server = RedisServer::start();
    let (a, b) = (open(&server, "a", 300), open(&server, "b", 5_000));
    answered(async || a.check().await).await;
    b.check().await.unwrap();
    let one = [limited("k", Some(1), None, None)];
    let out = claimed("out", 1, &[]);
    assert!(started(
        &answered(async || a.take(&[&out], 1).await).await.verdicts[0]
    ));
    // Writes wait until they are let; reads go on.
    assert_eq!(cli(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    let asked = Instant::now();
    let ask = claimed("late", 1, &one);
    assert_eq!(a.take(&[&ask], 1).await.err(), Some(StoreError::Timeout));
    assert_eq!(a.back("out", Gen(1)).await, Err(StoreError::Timeout));
    let paused = Change::Override {
        space: Space::Job,
        key: Key::new("k").unwrap(),
        set: Some(Override::default()),
    };
    assert_eq!(a.set(paused).await, Err(StoreError::Timeout));
    assert!(asked.elapsed() < Duration::from_secs(30));
    assert_eq!(cli(&server, &["CLIENT", "UNPAUSE"]), "OK");
    // After the pause the server came to them, and did nothing.
    assert!(started(&take(&b, claimed("b", 1, &one)).await));
    assert!(b.row("late").await.unwrap().is_none());
    let out = b.row("out").await.unwrap().unwrap();
    assert!(out.is_out());
    assert_eq!(cli(&server, &["EXISTS", "{ojs-throttle}:over"]), "0");
    assert!(!answered(async || a.back("late", Gen(1)).await).await);
}

/// Calls that are in flight when the server stalls end one after the other. The first one's end drops their
/// connection, and those of the others leave alone the one that was made since.
#[tokio::test]
async fn one_stall_costs_one_connection() {
    let server = RedisServer::start();
    let store = std::sync::Arc::new(open(&server, "a", 1_000));
    answered(async || store.check().await).await;
    let made = || -> u64 {
        let stats = cli(&server, &["INFO", "stats"]);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse().unwrap()
    };
    assert_eq!(cli(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]), "OK");
    let before = made();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let store = store.clone();
        calls.spawn(async move { store.end("1", None).await.err() });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let ends = calls.join_all().await;
    assert!(
        ends.iter().all(|end| *end == Some(StoreError::Timeout)),
        "{ends:?}"
    );
    // One of them is the question's own.
    let made = made() - before - 1;
    assert!(made <= 3, "{made} connections");
}

#[tokio::test]
async fn all_that_is_kept_expires() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    let limits = [
        limited("k", Some(9), Some((9, 3_600 * SECOND)), Some(1)),
        limited("l", None, None, None),
    ];
    assert!(started(&take(&store, claimed("out", 1, &limits)).await));
    let (queue, jobs) = ("queue".into(), 1);
    let changes = vec![offer("held", 1, &limits), Change::Holds { queue, jobs }];
    assert!(store.set_all(changes).await.unwrap());
    let shut = Change::Shut {
        key: limits[1].key.clone(),
        until: store.now().plus(60 * SECOND),
        at_least: false,
    };
    assert!(store.set(shut).await.unwrap());
    let step = ojs_throttle::store::Step::Add { by: 1, most: None };
    store.number("n", step).await.unwrap();
    store.due(9).await.unwrap();
    let keys = cli(&server, &["KEYS", "*"]);
    assert!(keys.lines().count() >= 10, "{keys}");
    for key in keys.lines() {
        assert!(key.starts_with("{ojs-throttle}:"), "{key}");
        let lasts: i64 = cli(&server, &["PTTL", key]).parse().unwrap();
        assert!(lasts > 0, "{key} does not expire: {lasts}");
    }
}

#[tokio::test]
async fn limits_whose_time_is_over_are_kept_for_a_day() {
    const DAY: u64 = 24 * 3_600 * SECOND;
    let server = RedisServer::start();
    let (micros, clock) = clock();
    let [store, late] =
        ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let put = async |key: &str, ends: Option<u64>| {
        let set = Override {
            expires_at: ends.map(Timestamp),
            ..Override::default()
        };
        let change = Change::Override {
            space: Space::Job,
            key: Key::new(key).unwrap(),
            set: Some(set),
        };
        assert!(store.set(change).await.unwrap());
    };
    put("ends", Some(T + DAY)).await;
    put("stays", Some(T + DAY)).await;
    put("stays", None).await;
    let kept = || cli(&server, &["HKEYS", "{ojs-throttle}:over"]);
    micros.fetch_add(DAY + DAY / 2, Ordering::AcqRel);
    store.due(9).await.unwrap();
    assert_eq!(kept().lines().count(), 2, "for whoever looks");
    late.check().await.unwrap();
    assert_eq!(late.overrides().len(), 1, "it is over");
    micros.fetch_add(DAY, Ordering::AcqRel);
    store.due(9).await.unwrap();
    assert_eq!(kept(), "j:stays");
    assert_eq!(cli(&server, &["EXISTS", "{ojs-throttle}:ends"]), "0");
}

#[tokio::test]
async fn a_row_and_its_slots_outlast_its_time() {
    const DAYS: u64 = 24 * 3_600 * 1_000;
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    let two = [limited("k", Some(2), None, None)];
    let mut long = claimed("long", 1, &two);
    long.visibility = 10 * DAYS * 1_000;
    assert!(started(&take(&store, long).await));
    assert!(started(&take(&store, claimed("short", 1, &two)).await));
    store.end("short", None).await.unwrap();
    for key in ["r:long", "k:j:k"] {
        let lasts = cli(&server, &["PTTL", &format!("{{ojs-throttle}}:{key}")]);
        let lasts: u64 = lasts.parse().unwrap();
        assert!(lasts > 16 * DAYS, "{key}: {lasts}");
    }
}

/// Their sidecar is gone, so nobody else puts right what the server has lost of its jobs.
#[tokio::test]
async fn what_is_lost_of_the_dead_is_found_by_who_needs_the_slots() {
    let server = RedisServer::start();
    let (micros, clock) = clock();
    let [gone, store] =
        ["a", "b"].map(|owner| RedisStore::new(config(&server, owner), clock.clone()));
    let [row, index] = ["row", "index"].map(|key| [limited(key, Some(1), None, None)]);
    assert!(started(&take(&gone, claimed("1", 1, &row)).await));
    assert!(started(&take(&gone, claimed("2", 1, &index)).await));
    for lost in ["r:1", "o:a"] {
        assert_eq!(
            cli(&server, &["DEL", &format!("{{ojs-throttle}}:{lost}")]),
            "1"
        );
    }
    // The visibility of both, and as long as a sidecar may say nothing.
    micros.fetch_add(35 * SECOND - 1, Ordering::AcqRel);
    assert_eq!(store.room(&row).await.unwrap().starts, 0);
    assert!(!started(&take(&store, claimed("3", 1, &row)).await));
    micros.fetch_add(1, Ordering::AcqRel);
    assert_eq!(store.room(&row).await.unwrap().starts, 1);
    assert!(started(&take(&store, claimed("3", 1, &row)).await));
    // Of the other its row is there: the backend is asked first.
    assert!(!started(&take(&store, claimed("4", 1, &index)).await));
    let due = store.due(9).await.unwrap();
    assert_eq!(
        due.iter().map(|row| &*row.claimed.job).collect::<Vec<_>>(),
        ["2"]
    );
    assert!(store.end("2", None).await.unwrap().is_some());
    assert!(started(&take(&store, claimed("4", 1, &index)).await));
}

#[tokio::test]
async fn a_key_stays_under_a_kilobyte_whatever_it_counts() {
    let server = RedisServer::start();
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    let most = [limited("k", None, Some((1_000, 3_600 * SECOND)), None)];
    for count in [127, 128, 300] {
        let asks: Vec<_> = (0..count)
            .map(|n| claimed(&format!("{count}-{n}"), 1, &most))
            .collect();
        let asks: Vec<_> = asks.iter().collect();
        store.take(&asks, asks.len()).await.unwrap();
        let length: usize = cli(&server, &["STRLEN", "{ojs-throttle}:k:j:k"])
            .parse()
            .unwrap();
        assert!(length < 1_024, "{length} bytes");
    }
}

#[tokio::test]
async fn what_is_no_place_for_us_says_why() {
    let server = RedisServer::with(&["--requirepass", "right"]);
    let checked = async |url: String| {
        let target = RedisTarget::parse(&url).unwrap();
        let config = RedisConfig {
            target,
            ..config(&server, "a")
        };
        RedisStore::new(config, Clock::new(T)).check().await
    };
    let port = server.port;
    let wrong = checked(format!("redis://:wrong@127.0.0.1:{port}")).await;
    let Err(StoreError::Unusable(why)) = wrong else {
        panic!("{wrong:?}")
    };
    assert!(
        why.contains(&port.to_string()) && !why.contains("wrong@"),
        "{why}"
    );
    let none = checked(format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(none, Err(StoreError::Unusable(_))), "{none:?}");
    checked(format!("redis://:right@127.0.0.1:{port}/3"))
        .await
        .unwrap();
    let nobody = RedisServer::start();
    let port = nobody.port;
    drop(nobody);
    let gone = checked(format!("redis://127.0.0.1:{port}")).await;
    assert!(matches!(gone, Err(StoreError::Unavailable(_))), "{gone:?}");
}

#[tokio::test]
async fn data_of_another_program_are_left_alone() {
    let server = RedisServer::start();
    let foreign: [&[&str]; 3] = [
        &["SET", "{ojs-throttle}:meta", "mine"],
        &["HSET", "{ojs-throttle}:meta", "color", "red"],
        &["HSET", "{ojs-throttle}:meta", "format", "9"],
    ];
    for set in foreign {
        cli(&server, &["FLUSHALL"]);
        cli(&server, set);
        let checked = open(&server, "a", 5_000).check().await;
        let Err(StoreError::Unusable(why)) = checked else {
            panic!("{checked:?}")
        };
        assert!(why.contains("store.namespace"), "{why}");
    }
    cli(&server, &["FLUSHALL"]);
    let store = open(&server, "a", 5_000);
    store.check().await.unwrap();
    cli(&server, &["SADD", "{ojs-throttle}:k:j:k", "1"]);
    let ask = claimed("a", 1, &[limited("k", Some(1), None, None)]);
    let asked = store.take(&[&ask], 1).await;
    assert!(matches!(asked, Err(StoreError::Unusable(_))), "{asked:?}");
    cli(&server, &["SET", "{ojs-throttle}:k:j:l", "text"]);
    let limits = [limited("l", Some(1), None, None)];
    assert!(store.room(&limits).await.is_err());
    let ask = claimed("a", 1, &limits);
    assert!(store.take(&[&ask], 1).await.is_err());
}

#[tokio::test]
async fn a_user_limited_to_the_namespace_is_enough() {
    let server = RedisServer::start();
    assert_eq!(cli(&server, &USER), "OK");
    let of = |namespace: &str| {
        let url = format!("redis://ojs:secret@127.0.0.1:{}", server.port);
        let config = RedisConfig {
            target: RedisTarget::parse(&url).unwrap(),
            namespace: namespace.to_owned(),
            ..config(&server, "a")
        };
        RedisStore::new(config, Clock::new(T))
    };
    let store = of("ojs-throttle");
    store.check().await.unwrap();
    let one = [limited("k", Some(1), Some((5, SECOND)), Some(1))];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    store.due(9).await.unwrap();
    assert!(store.end("a", None).await.unwrap().is_some());
    let other = of("other").check().await;
    let Err(StoreError::Unusable(why)) = other else {
        panic!("{other:?}")
    };
    assert!(why.contains("{other}:"), "{why}");
}
