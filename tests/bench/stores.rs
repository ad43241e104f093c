//! What a decision costs in a store on a database, beside one raw upsert with the same commit setting on
//! the same connections: `cargo bench --bench stores`. Both over 64 keys. A start is two operations, its
//! take and its end; each is counted.

#[path = "../stores/postgres_server.rs"]
mod postgres_server;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mimalloc::MiMalloc;
use ojs_throttle::limit::{Key, Limited, Limits, OnLimit, Rate, Space, Timestamp};
use ojs_throttle::store::{Claimed, Clock, Gen, SqlStore, Store, Verdict, postgres, sqlite};
use postgres_server::Server;
use rusqlite::Connection;
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
    println!(
        "{:<44} {:>10} {:>10} {:>8}",
        "operations a second", "raw", "store", ""
    );
    runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let raw = raw_sqlite(&dir.path().join("raw.db"));
        let store = Arc::new(sqlite::open(
            sqlite::Config {
                path: dir.path().join("limits.db"),
                namespace: "bench".to_owned(),
                owner: "a".to_owned(),
                timeout: Duration::from_secs(5),
            },
            clock(),
        ));
        for callers in [1, 64] {
            row(
                &format!("sqlite, {callers} callers"),
                raw,
                best(&store, callers).await,
            );
        }
        let server = Server::start(&[]);
        let store = Arc::new(postgres::open(
            postgres::Config {
                target: postgres::Target::parse(&server.url(), None).unwrap(),
                namespace: "bench".to_owned(),
                owner: "a".to_owned(),
                timeout: Duration::from_secs(5),
            },
            clock(),
        ));
        for callers in [1, 64] {
            let raw = raw_postgres(&server, callers).await;
            row(
                &format!("postgres, {callers} callers"),
                raw,
                best(&store, callers).await,
            );
        }
    });
}

fn row(name: &str, raw: f64, store: f64) {
    println!(
        "{name:<44} {raw:>10.0} {store:>10.0} {:>7.0}%",
        store / raw * 100.0
    );
}

fn clock() -> Clock {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Clock::new(u64::try_from(now.as_micros()).unwrap())
}

fn claimed(number: u64) -> Claimed {
    let key = format!("customer-{}", number % KEYS);
    Claimed {
        job: format!("job-{number}").into(),
        generation: Gen(1),
        claim_id: "worker".into(),
        scope: 0,
        queue: "queue".into(),
        priority: 0,
        attempt: 0,
        claimed_at: Timestamp(0),
        visibility: 30_000_000,
        limited: Arc::from([Limited {
            space: Space::Job,
            key: Key::new(&key).unwrap(),
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
        }]),
    }
}

/// The rate of the best round, so that what else runs here counts little.
async fn best(store: &Arc<SqlStore>, callers: usize) -> f64 {
    let next = Arc::new(AtomicU64::new(0));
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let (store, next) = (store.clone(), next.clone());
            all.spawn(async move {
                let mut done = 0_u64;
                while began.elapsed() < ROUND {
                    let ask = claimed(next.fetch_add(1, Ordering::Relaxed));
                    let verdict = store.take(&[&ask], 1).await.unwrap().remove(0);
                    assert!(matches!(verdict, Verdict::Started { .. }), "{verdict:?}");
                    assert!(store.end(&ask.job, None).await.unwrap().is_some());
                    done += 2;
                }
                done
            });
        }
        let done: u64 = all.join_all().await.iter().sum();
        best = best.max(done as f64 / began.elapsed().as_secs_f64());
    }
    best
}

/// One row a statement, each with a commit of its own, without any thread in between.
fn raw_sqlite(path: &std::path::Path) -> f64 {
    let connection = Connection::open(path).unwrap();
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    connection
        .pragma_update(None, "synchronous", "NORMAL")
        .unwrap();
    connection
        .execute_batch(
            "CREATE TABLE raw (name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID",
        )
        .unwrap();
    let mut upsert = connection
        .prepare("INSERT INTO raw VALUES (?1, 1) ON CONFLICT DO UPDATE SET count = count + 1")
        .unwrap();
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let (began, mut done) = (Instant::now(), 0_u64);
        while began.elapsed() < ROUND {
            upsert
                .execute([format!("customer-{}", done % KEYS)])
                .unwrap();
            done += 1;
        }
        best = best.max(done as f64 / began.elapsed().as_secs_f64());
    }
    best
}

/// The same on as many connections as the store has, each with its part of the callers.
async fn raw_postgres(server: &Server, callers: usize) -> f64 {
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
    let next = Arc::new(AtomicU64::new(0));
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut all = tokio::task::JoinSet::new();
        for caller in 0..callers {
            let (client, next) = (clients[caller % 2].clone(), next.clone());
            all.spawn(async move {
                let mut done = 0_u64;
                while began.elapsed() < ROUND {
                    let key = format!("customer-{}", next.fetch_add(1, Ordering::Relaxed) % KEYS);
                    client.0.execute(&client.1, &[&key]).await.unwrap();
                    done += 1;
                }
                done
            });
        }
        let done: u64 = all.join_all().await.iter().sum();
        best = best.max(done as f64 / began.elapsed().as_secs_f64());
    }
    best
}
