//! The store on a cluster and behind sentinels: all that a store must do, and what is left when the node that
//! had our keys is gone.

use std::net::{SocketAddr, TcpStream};

use ojs_throttle::store::redis::{RedisConfig, RedisTarget};
use socket2::{Domain, Socket, Type};
use tokio::net::TcpListener;

use crate::servers::redises::{RedisCluster, SILENCE, WATCHED, WatchedRedis, cli};
use crate::stores::prelude::*;

/// Nothing fails over by itself.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the user of the manual, who may do no more than a sidecar needs.
pub const USER: [&str; 18] = [
    "ACL",
    "SETUSER",
    "ojs",
    "on",
    ">secret",
    "~{ojs-throttle}:*",
    "&{ojs-throttle}:*",
    "-@all",
    "+@connection",
    "+@read",
    "+@write",
    "+@scripting",
    "+@pubsub",
    "+@fast",
    "-@dangerous",
    "+time",
    "+info",
    "+cluster|slots",
];

fn config(url: &str, namespace: &str, owner: &str) -> RedisConfig {
    RedisConfig {
        target: RedisTarget::parse(url).unwrap(),
        namespace: namespace.to_owned(),
        owner: owner.to_owned(),
        timeout: Duration::from_secs(2),
    }
}

/// Waits until it does: the first connection to several servers may take longer than one call may.
async fn answers(store: &RedisStore) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while let Err(error) = store.check().await {
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A namespace of its own behind a URL.
fn behind(url: &str) -> Rig {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("check-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let url = url.to_owned();
    Rig::of(|clock| {
        move |owner| {
            let store = RedisStore::new(config(&url, &namespace, owner), clock.clone());
            async {
                answers(&store).await;
                Arc::new(store) as _
            }
        }
    })
}

#[test]
fn a_cluster_does_all_that_a_store_must() {
    let cluster = RedisCluster::start(PATIENCE);
    let url = cluster.url();
    crate::run_contract!(behind(&url));
    crate::run_fleet!(behind(&url));
    let (ours, others) = cluster.keys();
    assert!(
        ours > 10 && others > 10,
        "each namespace has a node: {ours}, {others}"
    );
}

/// It is a Redis like any other, on another way.
#[test]
fn a_master_behind_a_sentinel_is_shared() {
    let watched = WatchedRedis::start(PATIENCE, "");
    let url = watched.url();
    crate::run_fleet!(behind(&url));
}

/// The replica is master for the sentinel from now on; the old one serves on, and knows of nothing.
fn promote(url: &str) {
    let port = url.trim_end_matches("/main").rsplit(':').next().unwrap();
    let sentinel: u16 = port.parse().unwrap();
    let known = cli(sentinel, &["SENTINEL", "REPLICAS", "main"]);
    let replica = known.lines().skip_while(|line| *line != "port").nth(1);
    let replica = replica.unwrap();
    assert_eq!(
        cli(replica.parse().unwrap(), &["REPLICAOF", "NO", "ONE"]),
        "OK"
    );
    assert_eq!(cli(sentinel, &["SENTINEL", "REMOVE", "main"]), "OK");
    let monitor = ["SENTINEL", "MONITOR", "main", "127.0.0.1", replica, "1"];
    assert_eq!(cli(sentinel, &monitor), "OK");
}

/// It is cut off from the sentinel and its replica, and not from a sidecar.
#[tokio::test]
async fn a_master_that_its_sentinel_no_longer_names_is_left() {
    let watched = WatchedRedis::start(PATIENCE, "");
    let (a, b) = (sidecar(&watched.url(), "a"), sidecar(&watched.url(), "b"));
    back(&a).await;
    promote(&watched.url());
    back(&b).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    // They hear of each other only where both are.
    while a.siblings() == 0 {
        assert!(Instant::now() < deadline, "it stays with the old master");
        a.due(9).await.ok();
        b.due(9).await.ok();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A way whose new connections lead to the server of this port, as an address that moves with the master does.
async fn way(to: Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let to = to.load(Ordering::SeqCst) as u16;
            tokio::spawn(async move {
                let server = tokio::net::TcpStream::connect(("127.0.0.1", to)).await;
                let mut server = server.unwrap();
                let both = tokio::io::copy_bidirectional(&mut client, &mut server);
                both.await.ok();
            });
        }
    });
    port
}

/// The master becomes a replica of the other server. It answers on, and refuses what writes.
pub async fn leaves_a_demoted_master(master: RedisServer, other: RedisServer) {
    let to = Arc::new(AtomicUsize::new(usize::from(master.port)));
    let url = format!("redis://127.0.0.1:{}", way(to.clone()).await);
    let store = sidecar(&url, "a");
    back(&store).await;
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&store, claimed("1", 1, &one)).await));
    to.store(usize::from(other.port), Ordering::SeqCst);
    let follows = ["REPLICAOF", "127.0.0.1", &other.port.to_string()];
    assert_eq!(cli(master.port, &follows), "OK");
    let deadline = Instant::now() + Duration::from_secs(20);
    while cli(other.port, &["EXISTS", "{ojs-throttle}:meta"]) != "1" {
        assert!(Instant::now() < deadline, "it stays with the old master");
        store.due(9).await.ok();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    back(&store).await;
    assert_eq!(store.count_out().await.unwrap(), 1, "it was announced");
    let second = take_answered(&store, &claimed("2", 1, &one)).await;
    assert!(!started(&second));
}

#[tokio::test]
async fn a_master_that_became_a_replica_is_left() {
    leaves_a_demoted_master(RedisServer::start(), RedisServer::start()).await;
}

#[tokio::test]
async fn sentinels_that_want_a_password_get_it() {
    let watched = WatchedRedis::start(PATIENCE, "s3cret");
    let store = |query: &str| {
        let url = format!("{}{query}", watched.url());
        RedisStore::new(config(&url, "ojs-throttle", "a"), Clock::new(T))
    };
    answers(&store("?sentinel=:s3cret")).await;
    for query in ["", "?sentinel=:wrong"] {
        let why = store(query).check().await.unwrap_err().to_string();
        assert!(!why.contains("s3cret"), "{why}");
    }
}

fn sidecar(url: &str, owner: &str) -> Guard {
    let store = RedisStore::new(config(url, "ojs-throttle", owner), Clock::new(T));
    Guard::new(Arc::new(store), OnStoreError::Closed)
}

/// Until the store answers again, as the sweep of a sidecar asks.
async fn back(store: &Guard) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.due(9).await.is_err() || store.count_out().await.is_err() || store.is_lost() {
        assert!(Instant::now() < deadline, "it does not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The replica knows of one job that is out, and the master of a second one when it is killed. `fail_over`
/// does that.
async fn survives(url: &str, cut: impl AsyncFnOnce(), fail_over: impl AsyncFnOnce()) {
    let (a, b) = (sidecar(url, "a"), sidecar(url, "b"));
    let two = [limited("k", Some(2), None, None)];
    assert!(started(&take(&a, claimed("1", 1, &two)).await));
    b.due(9).await.unwrap();
    cut().await;
    assert!(started(&take(&a, claimed("2", 1, &two)).await));
    assert!(!started(&take(&b, claimed("3", 1, &two)).await));
    let begun = Instant::now();
    fail_over().await;
    println!("the replica took over after {:?}", begun.elapsed());
    back(&a).await;
    back(&b).await;
    println!("the store answers again after {:?}", begun.elapsed());
    assert_eq!(a.count_out().await.unwrap(), 2, "both were announced");
    assert!(!started(&take(&b, claimed("3", 1, &two)).await));
    let freed = async { while !matches!(b.wake().await, Wake::Freed(_)) {} };
    assert!(a.end("2", None).await.unwrap().is_some());
    let heard = tokio::time::timeout(Duration::from_secs(60), freed).await;
    assert!(heard.is_ok(), "news come from the new master");
    assert!(started(&take(&b, claimed("3", 1, &two)).await));
}

#[tokio::test]
async fn a_user_limited_to_the_namespace_is_enough_on_a_cluster() {
    let cluster = RedisCluster::start(PATIENCE);
    let ours = [&cluster.ours.master, &cluster.ours.replica];
    for node in cluster.others.iter().chain(ours) {
        assert_eq!(cli(node.port, &USER), "OK");
    }
    let url = cluster.url().replace("://", "://ojs:secret@");
    let store = RedisStore::new(config(&url, "ojs-throttle", "a"), Clock::new(T));
    answers(&store).await;
    let one = [limited("k", Some(1), None, None)];
    assert!(started(&take(&store, claimed("a", 1, &one)).await));
    store.due(9).await.unwrap();
    assert!(store.end("a", None).await.unwrap().is_some());
}

#[tokio::test]
async fn a_cluster_that_fails_over() {
    let mut cluster = RedisCluster::start(SILENCE);
    let url = cluster.url();
    let cluster = std::cell::RefCell::new(&mut cluster);
    survives(
        &url,
        async || cluster.borrow().cut(),
        async || cluster.borrow_mut().fail_over(),
    )
    .await;
}

#[tokio::test]
async fn a_sentinel_that_fails_over() {
    let mut watched = WatchedRedis::start(WATCHED, "");
    let url = watched.url();
    let watched = std::cell::RefCell::new(&mut watched);
    survives(
        &url,
        async || watched.borrow().cut(),
        async || watched.borrow_mut().fail_over(),
    )
    .await;
}

/// A port that leaves whoever connects without an answer, for as long as what comes with it lives.
fn silent() -> (SocketAddr, (Socket, TcpStream)) {
    let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    silent
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    silent.listen(0).unwrap();
    let addr = silent.local_addr().unwrap().as_socket().unwrap();
    // It has room for one.
    let first = TcpStream::connect(addr).unwrap();
    (addr, (silent, first))
}

async fn answers_beside_a_silent_one(url: &str) {
    let (addr, _silent) = silent();
    let url = url.replacen("://", &format!("://{addr},"), 1);
    let config = RedisConfig {
        timeout: Duration::from_millis(500),
        ..config(&url, "ojs-throttle", "a")
    };
    answers(&RedisStore::new(config, Clock::new(T))).await;
}

#[tokio::test]
async fn a_sentinel_that_is_silent_keeps_nobody_from_the_others() {
    let watched = WatchedRedis::start(PATIENCE, "");
    answers_beside_a_silent_one(&watched.url()).await;
}

#[tokio::test]
async fn a_node_that_is_silent_keeps_nobody_from_the_cluster() {
    let cluster = RedisCluster::start(PATIENCE);
    answers_beside_a_silent_one(&cluster.url()).await;
}
