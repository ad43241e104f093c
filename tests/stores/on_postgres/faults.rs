//! What goes wrong with a Postgres, each by name.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use ojs_throttle::store::SqlStore;
use ojs_throttle::store::postgres::{PostgresConfig, PostgresTarget, open};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use socket2::{Domain, Socket, Type};

use crate::faulty::{Fault, Faulty};
use crate::servers::postgres::{UNSYNCED, programs};
use crate::stores::far::{self, far};
use crate::stores::fleet::{
    data_that_nobody_could_put_back_are_waited_for, locked_data_keep_nobody_waiting,
    lost_data_are_put_back_first, what_was_set_by_hand_is_put_back, wiped_data_are_missed,
};
use crate::stores::on_postgres::{config, shared_postgres};
use crate::stores::prelude::*;

/// What takes longer than this will not happen.
const LONG: Duration = Duration::from_secs(60);

fn on(server: &PostgresServer, namespace: &str, owner: &str, timeout: u64) -> SqlStore {
    let config = PostgresConfig {
        timeout: Duration::from_millis(timeout),
        ..config(server, namespace, owner)
    };
    open(config, Clock::new(T))
}

/// Runs a statement and gives what it says.
fn sql(server: &PostgresServer, text: &str) -> String {
    let mut psql = Command::new(programs().join("psql"));
    psql.args(["-U", "postgres", "-qAt", "-h"])
        .arg(server.dir.path());
    let done = psql.args(["-c", text]).output().unwrap();
    assert!(done.status.success(), "{text}: {done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Asks until the answer is yes. Beside that the store goes on.
async fn until(server: &Arc<PostgresServer>, text: &'static str) {
    let begun = Instant::now();
    loop {
        let server = server.clone();
        let told = tokio::task::spawn_blocking(move || sql(&server, text));
        if told.await.unwrap() == "t" {
            return;
        }
        assert!(begun.elapsed() < LONG, "{text}");
    }
}

async fn refused(server: &PostgresServer, namespace: &str) -> String {
    match on(server, namespace, "a", 5_000).check().await {
        Err(StoreError::Unusable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_servers_clock_decides() {
    let server = shared_postgres();
    let store = on(&server, "clock", "a", 5_000);
    store.check().await.unwrap();
    let seconds = sql(&server, "SELECT extract(epoch FROM now())::bigint");
    let seconds: u64 = seconds.parse().unwrap();
    // Ours said that it is 2027.
    assert!(store.now().0.abs_diff(seconds * SECOND) < 60 * SECOND);
    let one = [limited("k", None, Some((1, SECOND)), None)];
    let Verdict::Started { at } = take(&store, claimed("a", 1, &one)).await else {
        panic!()
    };
    assert!(at.0.abs_diff(seconds * SECOND) < 60 * SECOND);
}

#[tokio::test]
async fn a_server_that_is_killed_under_load_forgets_nothing() {
    let mut server = PostgresServer::start(UNSYNCED);
    let stores = ["a", "b"].map(|owner| Arc::new(on(&server, "load", owner, 1_000)));
    for store in &stores {
        answered(async || store.check().await).await;
    }
    let (out, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let done = Arc::new(AtomicUsize::new(0));
    let mut all = tokio::task::JoinSet::new();
    for worker in 0..8_usize {
        let store = stores[worker % 2].clone();
        let (out, most, done) = (out.clone(), most.clone(), done.clone());
        all.spawn(async move {
            let three = [limited("k", Some(3), None, None)];
            for n in 0..40 {
                let ask = claimed(&format!("{worker}-{n}"), 1, &three);
                // One that may have been started is undone before it is asked for again.
                let mut doubt = false;
                loop {
                    if doubt && store.back(&ask.job, Gen(1)).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                    doubt = false;
                    match store.take(&[&ask], 1).await {
                        Ok(taken) if started(&taken.verdicts[0]) => break,
                        Ok(taken) if taken.verdicts[0] == Verdict::HasRow => panic!("{}", ask.job),
                        Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                        Err(_) => doubt = true,
                    }
                }
                most.fetch_max(out.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
                out.fetch_sub(1, Ordering::SeqCst);
                while store.end(&ask.job, Some(Gen(1))).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                done.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let begun = Instant::now();
    for part in [80, 160] {
        while done.load(Ordering::SeqCst) < part {
            if let Some(ended) = all.try_join_next() {
                ended.unwrap();
            }
            assert!(begun.elapsed() < LONG, "nothing goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server.kill();
        let asked = Instant::now();
        assert!(stores[0].count_out().await.is_err());
        assert!(asked.elapsed() < Duration::from_secs(20), "nothing hangs");
        server.restart();
    }
    let all = tokio::time::timeout(LONG, all.join_all());
    all.await.expect("something goes on");
    assert_eq!(most.load(Ordering::SeqCst), 3);
    for store in &stores {
        let out = answered(async || store.count_out().await).await;
        assert_eq!(out, 0);
    }
    let three = [limited("k", Some(3), None, None)];
    let room = answered(async || stores[0].room(&three).await).await;
    assert_eq!(room.starts, 3);
}

/// Clients name jobs and queues as they like.
#[tokio::test]
async fn what_it_cannot_keep_is_no_failure_of_the_server() {
    let server = shared_postgres();
    let (_, clock) = clock();
    let store = open(config(&server, "names", "a"), clock);
    let nul = "x\0y";
    assert!(store.row(nul).await.unwrap().is_none());
    assert!(store.end(nul, None).await.unwrap().is_none());
    let doubt = Change::Doubt {
        job: Arc::from(nul),
    };
    assert!(!store.set(doubt).await.unwrap());
    for queue in [nul, "short"] {
        let (queue, jobs) = (Arc::from(queue), 1);
        assert!(store.set(Change::Holds { queue, jobs }).await.unwrap());
    }
    // Nothing makes it shorter.
    let mut rng = SmallRng::seed_from_u64(1);
    let long: String = (0..6_000)
        .map(|_| char::from(rng.random_range(b'0'..b'z')))
        .collect();
    assert!(store.row(&long).await.unwrap().is_none());
    let (queue, paused) = (long.as_str().into(), true);
    store.set(Change::Paused { queue, paused }).await.unwrap();
    assert!(store.is_paused(&long).await.unwrap());
    assert!(!store.is_paused(&long[1..]).await.unwrap());
    for name in [nul, &long] {
        let step = Step::Add { by: 7, most: None };
        assert_eq!(store.number(name, step).await.unwrap().value, 7);
    }
    let setting = |name: &str| Change::Setting {
        name: Arc::from(name),
        text: Some(Arc::from("1")),
    };
    for name in [nul, &long] {
        let unfit = store.set(setting(name)).await;
        assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{unfit:?}");
    }
    assert!(store.set(setting("short")).await.unwrap());
}

/// What waits at the same time shares a transaction.
#[tokio::test]
async fn what_it_cannot_keep_of_one_fails_no_other() {
    let server = shared_postgres();
    let (_, clock) = clock();
    let store = Arc::new(open(config(&server, "unfit", "a"), clock));
    store.check().await.unwrap();
    let free = [limited("k", Some(9), None, None)];
    let nul = |nth: usize| claimed(&format!("x\0{nth}"), 1, &free);
    let takes = async |ask: Claimed| {
        store
            .take(&[&ask], 1)
            .await
            .map(|all| started(&all.verdicts[0]))
    };
    let step = Step::Add { by: 7, most: None };
    let in_a_lane = store.offered(1, "x\0y", 9);
    let (lane, lost, one, other, number, row) = tokio::join!(
        in_a_lane,
        takes(nul(1)),
        takes(claimed("one", 1, &free)),
        takes(claimed("other", 1, &free)),
        store.number("sevens", step),
        store.row("other"),
    );
    assert!(lane.unwrap().is_empty(), "no such lane can be");
    assert_eq!((lost, one, other), (Ok(false), Ok(true), Ok(true)));
    assert_eq!(number.unwrap().value, 7, "once");
    assert!(row.is_ok());
    // Nor one of those that are asked for in one operation.
    let asks = [claimed("a", 1, &free), nul(2), claimed("b", 1, &free)];
    let verdicts = store.take(&asks.each_ref(), 1).await.unwrap().verdicts;
    assert!(started(&verdicts[0]));
    assert_eq!(verdicts[1..], [Verdict::Unfit, Verdict::Unasked]);
    assert!(started(&take(&*store, asks[2].clone()).await));
    assert_eq!(store.back(&asks[1].job, Gen(1)).await, Ok(false));
    let until = store.now().plus(60 * SECOND);
    let later = asks.each_ref().map(|ask| Change::Until {
        job: ask.job.clone(),
        generation: Gen(1),
        until: until.into(),
        visibility: 90 * SECOND,
    });
    store.set_all(later.to_vec()).await.unwrap();
    for job in ["a", "b"] {
        let row = store.row(job).await.unwrap().unwrap();
        assert_eq!(row.due(), Some(until.into()), "{job}");
    }
    // It is not told again and again, before anything may start.
    let guarded = Guard::new(store.clone(), OnStoreError::Closed);
    assert!(!started(&take(&guarded, nul(3)).await));
    let adopt = Change::Adopt {
        claimed: nul(4),
        until: until.into(),
    };
    let unfit = guarded.set(adopt).await;
    assert!(matches!(unfit, Err(StoreError::Unfit(_))), "{unfit:?}");
    assert!(started(&take(&guarded, claimed("c", 1, &free)).await));
}

/// A client that listens and never ends its transaction fills the queue: no end of a job can be written until then.
#[tokio::test]
async fn a_full_queue_of_notifications_is_a_failure_of_the_server() {
    let server = shared_postgres();
    let guard = Guard::new(
        Arc::new(on(&server, "crowded", "a", 5_000)),
        OnStoreError::Closed,
    );
    guard.due(9).await.unwrap();
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&guard, claimed("1", 1, &one)).await));
    // The server says it at the end of a transaction.
    sql(
        &server,
        "CREATE FUNCTION crowded.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
         END $$;
         CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON crowded.rows
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crowded.refuse()",
    );
    let ended = guard.end("1", None).await;
    sql(&server, "DROP FUNCTION crowded.refuse CASCADE");
    guard.due(9).await.unwrap();
    let next = take_answered(&guard, &claimed("2", 1, &one)).await;
    assert!(started(&next), "the end was lost: {ended:?}, {next:?}");
}

/// It may start while the store is lost, and be out when the store is back.
#[tokio::test]
async fn what_it_cannot_keep_does_not_hold_up_its_return() {
    let server = shared_postgres();
    let faulty = Arc::new(Faulty::new(Arc::new(on(&server, "return", "a", 5_000))));
    let guard = Guard::new(faulty.clone(), OnStoreError::Share);
    guard.due(9).await.unwrap();
    faulty.standing(Some(Fault::gone()));
    while !guard.is_lost() {
        let _not_there = guard.count_out().await;
    }
    let free = [limited("k", Some(9), None, None)];
    assert!(started(&take(&guard, claimed("x\0y", 1, &free)).await));
    faulty.standing(None);
    guard.due(9).await.unwrap();
    assert!(!guard.is_lost());
    assert!(started(&take(&guard, claimed("c", 1, &free)).await));
}

/// A store whose first address is silent. It takes connections all the same if it `has_room` for them.
async fn the_next_address_answers(server: &PostgresServer, namespace: &str, has_room: bool) {
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    silent.bind(&any.into()).unwrap();
    silent.listen(if has_room { 16 } else { 0 }).unwrap();
    let addr = silent.local_addr().unwrap().as_socket().unwrap();
    // Without more room it leaves all others without an answer.
    let _first = TcpStream::connect(addr).unwrap();
    let folder = server.dir.path().display().to_string();
    let folder = folder.replace('/', "%2F");
    let url = format!("postgres://postgres@{addr},{folder}:5432/postgres");
    let config = PostgresConfig {
        target: PostgresTarget::parse(&url).unwrap(),
        timeout: Duration::from_secs(16),
        ..config(server, namespace, "a")
    };
    let store = open(config, Clock::new(T));
    let begun = Instant::now();
    store.check().await.unwrap();
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_secs(1), "it was not asked");
}

/// One lets packets vanish. Another takes the connection and says nothing more, as a server does that is stopped.
#[tokio::test]
async fn an_address_that_is_silent_keeps_nobody_from_the_next() {
    let server = shared_postgres();
    tokio::join!(
        the_next_address_answers(&server, "silent", false),
        the_next_address_answers(&server, "mute", true)
    );
}

#[tokio::test]
async fn data_that_were_wiped_are_missed() {
    let server = shared_postgres();
    for wipe in [
        "TRUNCATE wiped.meta, wiped.rows, wiped.keys",
        "DROP SCHEMA wiped CASCADE",
    ] {
        let (micros, clock) = clock();
        let [a, b] = ["a", "b"].map(|owner| open(config(&server, "wiped", owner), clock.clone()));
        let wiped = || drop(sql(&server, wipe));
        wiped_data_are_missed([&a, &b], &micros, wiped).await;
        sql(&server, "DROP SCHEMA wiped CASCADE");
    }
}

/// One that was restarted has forgotten nothing; one that was promoted may have, and is known by its history.
#[tokio::test]
async fn one_that_took_the_place_of_another_is_missed_like_wiped_data() {
    let mut server = PostgresServer::start(UNSYNCED);
    let store = on(&server, "promoted", "a", 1_000);
    assert!(!store.facts().forgets_unsaid);
    answered(async || store.check().await).await;
    for (is_promoted, expected) in [(false, Ok(0)), (true, Err(StoreError::Wiped))] {
        server.kill();
        if is_promoted {
            std::fs::write(server.dir.path().join("data/standby.signal"), "").unwrap();
        }
        server.restart();
        if is_promoted {
            assert_eq!(sql(&server, "SELECT pg_promote()"), "t");
        }
        let begun = Instant::now();
        let told = loop {
            match store.count_out().await {
                Err(StoreError::Unavailable(_) | StoreError::Timeout) => {
                    assert!(begun.elapsed() < LONG, "it does not answer");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                told => break told,
            }
        };
        assert_eq!(told, expected);
    }
}

#[tokio::test]
async fn one_that_never_knew_the_lost_data_waits_for_those_that_did() {
    let server = shared_postgres();
    let (micros, clock) = clock();
    let [knew, fresh] = ["a", "b"].map(|owner| open(config(&server, "anew", owner), clock.clone()));
    let wipe = || drop(sql(&server, "DROP SCHEMA anew CASCADE"));
    lost_data_are_put_back_first(&knew, &fresh, &micros, wipe).await;
}

#[tokio::test]
async fn time_in_which_nobody_reaches_new_data_does_not_count() {
    let server = shared_postgres();
    let (micros, clock) = clock();
    let all = ["a", "b"].map(|owner| open(config(&server, "unheard", owner), clock.clone()));
    let wipe = || drop(sql(&server, "DROP SCHEMA unheard CASCADE"));
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    data_that_nobody_could_put_back_are_waited_for(all, &micros, wipe).await;
}

#[tokio::test]
async fn what_was_set_by_hand_outlasts_the_data() {
    let server = shared_postgres();
    let (micros, clock) = clock();
    let all = ["a", "b", "c", "d"];
    let all = all.map(|owner| open(config(&server, "byhand", owner), clock.clone()));
    let wipe = || drop(sql(&server, "DROP SCHEMA byhand CASCADE"));
    let all = all.each_ref().map(|store| store as &dyn Ledger);
    what_was_set_by_hand_is_put_back(all, &micros, wipe).await;
}

#[tokio::test]
async fn what_cannot_be_used_is_said_at_the_start() {
    let server = shared_postgres();
    sql(
        &server,
        "CREATE SCHEMA theirs; CREATE TABLE theirs.orders (x int)",
    );
    let why = refused(&server, "theirs").await;
    assert!(
        why.contains("theirs") && why.contains("store.namespace"),
        "{why}"
    );
    sql(
        &server,
        "CREATE SCHEMA alike; CREATE TABLE alike.meta (x int)",
    );
    let why = refused(&server, "alike").await;
    assert!(why.contains("meta") && why.contains("not ours"), "{why}");
    on(&server, "later", "a", 5_000).check().await.unwrap();
    sql(&server, "UPDATE later.meta SET version = 2");
    let why = refused(&server, "later").await;
    assert!(why.contains("version 2"), "{why}");
    let why = refused(&server, &"long".repeat(20)).await;
    assert!(why.contains("63"), "{why}");
    sql(&server, "CREATE ROLE poor LOGIN");
    let poor = |url: String| PostgresConfig {
        target: PostgresTarget::parse(&url).unwrap(),
        ..config(&server, "poor", "a")
    };
    let poor = open(
        poor(server.url().replace("//postgres@", "//poor@")),
        Clock::new(T),
    );
    let Err(StoreError::Unusable(why)) = poor.check().await else {
        panic!()
    };
    assert!(why.contains("CREATE on the database"), "{why}");
    // Its own one will do.
    sql(&server, "CREATE SCHEMA poor AUTHORIZATION poor");
    poor.check().await.unwrap();
    let gone = server.url().replace("@/postgres", "@/nowhere");
    let gone = PostgresConfig {
        target: PostgresTarget::parse(&gone).unwrap(),
        ..config(&server, "gone", "a")
    };
    let Err(StoreError::Unusable(why)) = open(gone, Clock::new(T)).check().await else {
        panic!()
    };
    assert!(why.contains("nowhere"), "{why}");
}

/// A session that has locked the keys of a namespace until it is told to go on.
struct Lock(Child);

impl Lock {
    fn on(server: &PostgresServer, namespace: &str, mode: &str) -> Lock {
        let mut psql = Command::new(programs().join("psql"));
        psql.args(["-U", "postgres", "-qAt", "-h"])
            .arg(server.dir.path());
        let mut psql = psql
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = format!("BEGIN; LOCK TABLE {namespace}.keys {mode};\n\\echo locked\n");
        let told = psql.stdin.as_mut().unwrap();
        told.write_all(text.as_bytes()).unwrap();
        let mut said = BufReader::new(psql.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "locked\n");
        Lock(psql)
    }
}

impl Drop for Lock {
    /// The end of what it is told is the end of its session.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn what_is_locked_by_others_keeps_nobody_waiting() {
    let server = shared_postgres();
    let store = on(&server, "locked", "a", 500);
    answered(async || store.check().await).await;
    let lock = Lock::on(&server, "locked", "");
    locked_data_keep_nobody_waiting(&store, || drop(lock)).await;
}

/// The connection is ended when all was read and locked, and the start is written.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_whose_commit_was_cut_off_did_not_happen() {
    let server = shared_postgres();
    let store = on(&server, "cut", "a", 30_000);
    let one = [limited("k", Some(1), None, None)];
    store.check().await.unwrap();
    let asking = server.clone();
    let lock = Lock::on(&server, "cut", "IN SHARE MODE");
    let ask = claimed("1", 1, &one);
    let asks = [&ask];
    let end = "SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_locks
        WHERE NOT granted AND relation = 'cut.keys'::regclass";
    let (told, ()) = tokio::join!(store.take(&asks, 1), until(&asking, end));
    assert!(matches!(told, Err(StoreError::Unavailable(_))), "{told:?}");
    drop(lock);
    assert!(answered(async || store.row("1").await).await.is_none());
    assert_eq!(store.room(&one).await.unwrap().starts, 1);
    assert!(started(&take(&store, ask.clone()).await));
}

/// Rows are renewed many at a time, and put back after a loss: each transaction is two round trips and a
/// write to the disk.
#[tokio::test]
async fn many_rows_are_changed_in_few_transactions() {
    let server = PostgresServer::start(UNSYNCED);
    let store = on(&server, "many", "a", 30_000);
    let free = [limited("k", Some(999), None, None)];
    let jobs: Vec<_> = (0..512)
        .map(|nth| claimed(&nth.to_string(), 1, &free))
        .collect();
    let asks: Vec<_> = jobs.iter().collect();
    store.take(&asks, 512).await.unwrap();
    let mut rows = Vec::new();
    for job in &jobs {
        rows.push(store.row(&job.job).await.unwrap().unwrap());
    }
    let until = store.now().plus(60 * SECOND);
    let later = jobs.iter().map(|job| Change::Until {
        job: job.job.clone(),
        generation: job.generation,
        until: until.into(),
        visibility: 90 * SECOND,
    });
    let count = || -> u64 { sql(&server, "SELECT txid_current()").parse().unwrap() };
    let before = count();
    store.set_all(later.collect()).await.unwrap();
    let renewed = count() - before;
    assert!(renewed < 8, "{renewed} transactions");
    let moved = store.row("511").await.unwrap().unwrap();
    assert_eq!(
        (moved.due(), moved.claimed.visibility),
        (Some(until.into()), 90 * SECOND)
    );
    sql(&server, "TRUNCATE many.rows, many.keys");
    let before = count();
    store.announce(&rows).await.unwrap();
    let announced = count() - before;
    assert!(announced < 16, "{announced} transactions");
    assert_eq!(store.count_out().await.unwrap(), 512);
    assert_eq!(store.room(&free).await.unwrap().starts, 999 - 512);
}

/// A connection is many round trips before its first question, and a question is few.
#[tokio::test]
async fn a_server_in_another_place_is_reached() {
    let server = shared_postgres();
    on(&server, "far", "a", 30_000).check().await.unwrap();
    let socket = far::Place::Socket(server.dir.path().join(".s.PGSQL.5432"));
    let port = far(socket, Duration::from_millis(25)).await;
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    let config = PostgresConfig {
        target: PostgresTarget::parse(&url).unwrap(),
        timeout: Duration::from_millis(500),
        ..config(&server, "far", "b")
    };
    let store = open(config, Clock::new(T));
    let asked = Instant::now();
    let why = store.check().await.unwrap_err().to_string();
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "no question waits for it"
    );
    assert!(
        why.contains("in time") || why.contains("store.timeout"),
        "{why}"
    );
    answered(async || store.check().await).await;
    let one = [limited("k", Some(1), None, None)];
    let ask = claimed("1", 1, &one);
    let verdict = take_answered(&store, &ask).await;
    assert!(started(&verdict) || verdict == Verdict::HasRow, "it is out");
}

/// Who cannot hear of others does not know that it is alone.
#[tokio::test]
async fn the_end_of_the_connection_that_listens_is_noticed_at_once() {
    let server = shared_postgres();
    let store = on(&server, "deaf", "a", 30_000);
    store.check().await.unwrap();
    assert_eq!(store.wake().await, Wake::All);
    store.due(9).await.unwrap();
    assert!(store.is_alone());
    // The server shows what a connection asks a little later.
    let end = "SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
        WHERE query = 'LISTEN \"deaf\"'";
    until(&server, end).await;
    let asked = Instant::now();
    assert_eq!(store.wake().await, Wake::All);
    assert!(!store.is_alone());
    assert!(
        asked.elapsed() < Duration::from_secs(4),
        "before it is asked for"
    );
}

/// A server has room for some thousands of locks at a time, for all its programs.
#[tokio::test]
async fn many_keys_that_nobody_uses_are_forgotten_with_few_locks() {
    let server = PostgresServer::start(&[UNSYNCED, &["-c", "max_connections=10"]].concat());
    let (micros, clock) = clock();
    let store = open(config(&server, "idle", "a"), clock);
    let once = [limited("k", None, Some((1, SECOND)), None)];
    assert!(started(&take(&store, claimed("1", 1, &once)).await));
    store.end("1", None).await.unwrap();
    let many = "INSERT INTO idle.keys SELECT name || n, state FROM idle.keys, generate_series(1, 20000) AS n";
    sql(&server, many);
    for _ in 0..12 {
        micros.fetch_add(3 * SECOND, Ordering::AcqRel);
        store.due(9).await.unwrap();
    }
    assert_eq!(sql(&server, "SELECT count(*) FROM idle.keys"), "0");
}
