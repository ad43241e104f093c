//! What a decision costs in a shared store, beside the least that it could cost there: on Redis the same
//! scripts called without the store, on a database one raw upsert with the same commit setting. `cargo bench
//! --bench stores [redis|sqlite|postgres]`. All over 64 keys, in turns. A start is two operations, its take
//! and its end; each is counted.

#[path = "stores/redis_bare.rs"]
mod redis_bare;
#[path = "../servers/mod.rs"]
#[expect(
    dead_code,
    reason = "clusters, faults and unsynced commits are for the tests"
)]
mod servers;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use mimalloc::MiMalloc;
use ojs_throttle::limit::{Key, Limited, Limits, OnLimit, Rate, Space, Timestamp};
use ojs_throttle::store::{
    Claim, Claimed, Clock, Gen, Ledger, LedgerExt, Verdict, postgres, redis, sqlite,
};
use redis_bare::Calls;
use rusqlite::Connection;
use servers::postgres::PostgresServer;
use servers::redis::RedisServer;
use tokio_postgres::NoTls;

/// As in the program.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const KEYS: u64 = 64;
const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    let wants = |name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
    println!(
        "{:<44} {:>10} {:>10} {:>8}",
        "operations a second", "raw", "store", ""
    );
    runtime.block_on(async {
        if wants("redis") {
            redis_rows().await;
        }
        if wants("sqlite") {
            sqlite_rows().await;
        }
        if wants("postgres") {
            postgres_rows().await;
        }
    });
}

async fn redis_rows() {
    let server = RedisServer::start();
    let config = redis::RedisConfig {
        target: redis::RedisTarget::parse(&server.url()).unwrap(),
        namespace: "bench".to_owned(),
        owner: "a".to_owned(),
        timeout: Duration::from_secs(5),
    };
    let store: Arc<dyn Ledger> = Arc::new(redis::RedisStore::new(config, clock()));
    let overheard = claimed_as("job-overheard", "key-overheard");
    let calls = Arc::new(Calls::overheard(server.port, &*store, &overheard).await);
    let client = ::redis::Client::open(server.url()).unwrap();
    let bare = client.get_multiplexed_async_connection().await.unwrap();
    for callers in [1, 64] {
        let name = format!("redis, {callers} callers");
        compare(
            &name,
            async || bare_redis(&bare, &calls, callers).await,
            async || starts(&store, callers).await,
        )
        .await;
    }
    trips(bare, &calls, &store).await;
}

/// How long one caller waits, alone: for a PING, for the bare script, and for a decision.
async fn trips(mut bare: MultiplexedConnection, calls: &Calls, store: &Arc<dyn Ledger>) {
    const TRIPS: usize = 20_000;
    let (mut ping, mut script, mut decision) = (Vec::new(), Vec::new(), Vec::new());
    let pinging = ::redis::cmd("PING");
    for nth in 0..TRIPS {
        let began = Instant::now();
        redis_bare::call(&mut bare, &pinging).await;
        ping.push(began.elapsed());
        let (job, key) = (format!("trip-{nth}"), key_of(nth as u64));
        let (take, end) = calls.of(&job, &key);
        let began = Instant::now();
        redis_bare::call(&mut bare, &take).await;
        script.push(began.elapsed());
        redis_bare::call(&mut bare, &end).await;
        let ask = claimed_as(&job, &key);
        let began = Instant::now();
        store.take(&[&ask], 1).await.unwrap();
        decision.push(began.elapsed());
        store.end(&job, None).await.unwrap();
    }
    let at = |times: &mut Vec<Duration>, part: f64| {
        times.sort_unstable();
        times[(TRIPS as f64 * part) as usize].as_micros()
    };
    println!(
        "{:<44} {:>10} {:>10}",
        "one caller, microseconds", "p50", "p99"
    );
    for (name, mut times) in [
        ("redis, PING", ping),
        ("redis, bare take", script),
        ("redis, decision", decision),
    ] {
        println!(
            "{name:<44} {:>10} {:>10}",
            at(&mut times, 0.5),
            at(&mut times, 0.99)
        );
    }
}

async fn sqlite_rows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("raw.db");
    let store: Arc<dyn Ledger> = Arc::new(sqlite::open(
        sqlite::SqliteConfig {
            target: dir.path().join("limits.db"),
            namespace: "bench".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(5),
        },
        clock(),
    ));
    for callers in [1, 64] {
        let name = format!("sqlite, {callers} callers");
        compare(
            &name,
            async || raw_sqlite(&path),
            async || starts(&store, callers).await,
        )
        .await;
    }
    let raw = async || raw_sqlite_threaded(&path).await;
    let ours = async || starts(&store, 1).await;
    compare("sqlite, 1 caller, raw in a thread too", raw, ours).await;
}

async fn postgres_rows() {
    let server = PostgresServer::start(&[]);
    let store: Arc<dyn Ledger> = Arc::new(postgres::open(
        postgres::PostgresConfig {
            target: postgres::PostgresTarget::parse(&server.url()).unwrap(),
            namespace: "bench".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(5),
        },
        clock(),
    ));
    for callers in [1, 64] {
        let name = format!("postgres, {callers} callers");
        compare(
            &name,
            async || raw_postgres(&server, callers).await,
            async || starts(&store, callers).await,
        )
        .await;
    }
}

/// Both in turns, and the best round of each, so that what else runs here counts little.
async fn compare(name: &str, raw: impl AsyncFn() -> f64, store: impl AsyncFn() -> f64) {
    let (mut best_raw, mut best_store) = (0.0_f64, 0.0_f64);
    for _ in 0..ROUNDS {
        best_raw = best_raw.max(raw().await);
        best_store = best_store.max(store().await);
    }
    println!(
        "{name:<44} {best_raw:>10.0} {best_store:>10.0} {:>7.0}%",
        best_store / best_raw * 100.0
    );
}

fn clock() -> Clock {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Clock::new(u64::try_from(now.as_micros()).unwrap())
}

fn key_of(number: u64) -> String {
    format!("customer-{}", number % KEYS)
}

fn claimed(number: u64) -> Claimed {
    claimed_as(&format!("job-{number}"), &key_of(number))
}

fn claimed_as(job: &str, key: &str) -> Claimed {
    Claimed::from(Claim {
        job: job.into(),
        generation: Gen(1),
        claim_id: "worker".into(),
        worker: None,
        scope: 0,
        queue: "queue".into(),
        priority: 0,
        attempt: Some(0),
        claimed_at: Timestamp(0),
        visibility: 30_000_000,
        limited: Arc::from([Limited {
            space: Space::Job,
            key: Key::new(key).unwrap(),
            limits: Limits {
                concurrency: Some(1_000),
                rates: vec![Rate {
                    limit: NonZeroU32::new(1_000_000).unwrap(),
                    period: NonZeroU64::new(1_000_000).unwrap(),
                    window: Default::default(),
                }],
                throttle: None,
            },
            on_limit: OnLimit::Wait,
            policy: "bench".into(),
            cost: Default::default(),
            share: None,
        }]),
        since: 0,
        stays: Timestamp(0),
        followed: Timestamp(0),
    })
}

/// Numbers that no job had before.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Does `each` (two operations) again and again in as many tasks for one round; operations a second.
async fn round<F: Future<Output = ()> + Send + 'static>(
    callers: usize,
    each: impl Fn(usize, u64) -> F + Clone + Send + Sync + 'static,
) -> f64 {
    let began = Instant::now();
    let mut all = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let each = each.clone();
        all.spawn(async move {
            let mut done = 0_u64;
            while began.elapsed() < ROUND {
                each(caller, NEXT.fetch_add(1, Ordering::Relaxed)).await;
                done += 2;
            }
            done
        });
    }
    let done: u64 = all.join_all().await.iter().sum();
    done as f64 / began.elapsed().as_secs_f64()
}

async fn starts(store: &Arc<dyn Ledger>, callers: usize) -> f64 {
    let store = store.clone();
    round(callers, move |_, number| {
        let store = store.clone();
        async move {
            let ask = claimed(number);
            let verdict = store.take(&[&ask], 1).await.unwrap().verdicts.remove(0);
            assert!(matches!(verdict, Verdict::Started { .. }), "{verdict:?}");
            assert!(store.end(&ask.job, None).await.unwrap().is_some());
        }
    })
    .await
}

async fn bare_redis(bare: &MultiplexedConnection, calls: &Arc<Calls>, callers: usize) -> f64 {
    let (bare, calls) = (bare.clone(), calls.clone());
    round(callers, move |_, number| {
        let (mut bare, calls) = (bare.clone(), calls.clone());
        async move {
            let (take, end) = calls.of(&format!("job-{number}"), &key_of(number));
            redis_bare::call(&mut bare, &take).await;
            redis_bare::call(&mut bare, &end).await;
        }
    })
    .await
}

/// One row a statement, each with a commit of its own, without any thread in between.
fn raw_sqlite(path: &Path) -> f64 {
    let connection = raw_file(path);
    let mut upsert = connection.prepare(UPSERT).unwrap();
    let (began, mut done) = (Instant::now(), 0_u64);
    while began.elapsed() < ROUND {
        upsert.execute([key_of(done)]).unwrap();
        done += 1;
    }
    done as f64 / began.elapsed().as_secs_f64()
}

/// The same, done by a thread and waited for by a task, as whoever must not wait for a disk has to.
async fn raw_sqlite_threaded(path: &Path) -> f64 {
    type Done = tokio::sync::oneshot::Sender<()>;
    let (give, take) = std::sync::mpsc::sync_channel::<(String, Done)>(64);
    let path = path.to_owned();
    let thread = std::thread::spawn(move || {
        let connection = raw_file(&path);
        let mut upsert = connection.prepare(UPSERT).unwrap();
        for (key, done) in take {
            upsert.execute([key]).unwrap();
            done.send(()).unwrap();
        }
    });
    let (began, mut done) = (Instant::now(), 0_u64);
    while began.elapsed() < ROUND {
        let (answer, answered) = tokio::sync::oneshot::channel();
        give.send((key_of(done), answer)).unwrap();
        answered.await.unwrap();
        done += 1;
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    drop(give);
    thread.join().unwrap();
    rate
}

const UPSERT: &str = "INSERT INTO raw VALUES (?1, 1) ON CONFLICT DO UPDATE SET count = count + 1";

fn raw_file(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    for (name, value) in [("journal_mode", "WAL"), ("synchronous", "NORMAL")] {
        connection.pragma_update(None, name, value).unwrap();
    }
    let table = "CREATE TABLE IF NOT EXISTS raw (name TEXT PRIMARY KEY, count INTEGER NOT NULL)
        WITHOUT ROWID";
    connection.execute_batch(table).unwrap();
    connection
}

/// The same on as many connections as the store has, each with its part of the callers.
async fn raw_postgres(server: &PostgresServer, callers: usize) -> f64 {
    let mut clients = Vec::new();
    for _ in 0..2 {
        let made = tokio_postgres::connect(&server.url(), NoTls).await;
        let (client, connection) = made.unwrap();
        tokio::spawn(connection);
        let table = "CREATE TABLE IF NOT EXISTS raw (name text PRIMARY KEY, count bigint NOT NULL)
            WITH (fillfactor = 50)";
        client.batch_execute(table).await.unwrap();
        let upsert =
            "INSERT INTO raw VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET count = raw.count + 1";
        let upsert = client.prepare(upsert).await.unwrap();
        clients.push(Arc::new((client, upsert)));
    }
    round(callers, move |caller, number| {
        let client = clients[caller % 2].clone();
        async move {
            for _ in 0..2 {
                let key = key_of(number);
                client.0.execute(&client.1, &[&key]).await.unwrap();
            }
        }
    })
    .await
}
