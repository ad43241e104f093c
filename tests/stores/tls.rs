//! Stores over TLS, with a certificate of the tests' own: `tls/server.pem` is for localhost and 127.0.0.1
//! and was signed by `tls/ca.pem`, whose key is gone.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::process::Stdio;

use ojs_throttle::store::{postgres, redis};
use ojs_throttle::tls::ClientFiles;

use super::prelude::*;
use crate::servers::certs::{Ca, Signed};
use crate::servers::redis::free_port;
use crate::servers::redises::cli;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");
/// A certificate that has signed none but itself.
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/tls/unknown.pem");

/// Trusts who signed what is in this file.
fn roots(path: &str) -> ClientFiles {
    ClientFiles {
        ca: Some(path.into()),
        ..ClientFiles::default()
    }
}

/// Trusts whom the platform trusts.
fn none() -> ClientFiles {
    ClientFiles::default()
}

fn own() -> ClientFiles {
    roots(&format!("{FOLDER}/ca.pem"))
}

/// It keeps slots and counts starts. It does so several times in a second, and its rate lets all of them pass.
async fn works(store: &dyn Ledger) {
    let one = [limited("k", Some(1), Some((100, SECOND)), None)];
    assert!(started(&take(store, claimed("a", 1, &one)).await));
    assert!(!started(&take(store, claimed("b", 1, &one)).await));
    assert!(store.end("a", None).await.unwrap().is_some());
    assert!(started(&take(store, claimed("b", 1, &one)).await));
}

/// What it says, which has all of these words in it.
fn says(checked: Result<(), StoreError>, words: &[&str]) {
    let why = checked.unwrap_err().to_string();
    for word in words {
        assert!(why.contains(word), "{word}: {why}");
    }
}

fn on_redis(url: &str, files: ClientFiles) -> RedisStore {
    let config = redis::RedisConfig {
        target: (redis::RedisTarget::parse(url).unwrap())
            .with_files(files)
            .unwrap(),
        namespace: "ojs-throttle".to_owned(),
        owner: "a".to_owned(),
        timeout: Duration::from_secs(30),
    };
    RedisStore::new(config, Clock::new(T))
}

/// Without and with TLS, the latter on a port of its own.
fn redis(more: &[&str]) -> (RedisServer, u16) {
    let port = free_port();
    let [tls, chain, key] = files(port);
    let mut with = vec!["--tls-port", &tls, "--tls-auth-clients", "no"];
    with.extend(["--tls-cert-file", &chain, "--tls-key-file", &key]);
    let ca = format!("{FOLDER}/ca.pem");
    with.extend(["--tls-ca-cert-file", &ca]);
    (RedisServer::with(&[&with, more].concat()), port)
}

/// A store that asks who we are.
#[tokio::test]
async fn tls_on_redis_with_client_certificates() {
    let (ca, port) = (Ca::new(), free_port());
    let Signed { cert, key } = ca.server("server");
    let [cert, key, of] = [cert, key, ca.file()].map(|file| file.display().to_string());
    let tls = port.to_string();
    let mut with = vec!["--tls-port", &tls, "--tls-auth-clients", "yes"];
    with.extend([
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &of,
    ]);
    let _server = RedisServer::with(&with);
    let store = |trusted: &str, shown: Option<&Signed>| {
        let files = shows(roots(trusted), shown);
        on_redis(&format!("rediss://localhost:{port}"), files)
    };
    let (known, other) = (ca.client("sidecar", "DNS:sidecar"), Ca::new());
    let shown = other.client("sidecar", "DNS:sidecar");
    for shown in [None, Some(&shown)] {
        store(&of, shown).check().await.unwrap_err();
    }
    // Both files are swapped behind a store that is open.
    let trusted = other.file().display().to_string();
    let opened = store(&trusted, Some(&shown));
    opened.check().await.unwrap_err();
    known.replace(&shown);
    std::fs::rename(&of, &trusted).unwrap();
    // After one that failed the next connection is made a moment later.
    let begun = std::time::Instant::now();
    while let Err(error) = opened.check().await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    works(&opened).await;
}

/// Shows this certificate, too.
fn shows(files: ClientFiles, shown: Option<&Signed>) -> ClientFiles {
    ClientFiles {
        cert: shown.map(|of| of.cert.clone()),
        key: shown.map(|of| of.key.clone()),
        ..files
    }
}

fn files(port: u16) -> [String; 3] {
    let file = |name: &str| format!("{FOLDER}/{name}");
    [port.to_string(), file("server.pem"), file("key.pem")]
}

#[tokio::test]
async fn tls_on_redis() {
    let (server, port) = redis(&[]);
    for host in ["localhost", "127.0.0.1"] {
        let store = on_redis(&format!("rediss://{host}:{port}"), own());
        store.check().await.unwrap();
        store.end("b", None).await.unwrap();
        works(&store).await;
    }
    let place = format!("rediss://localhost:{port}");
    let checked = async |url: &str, roots| on_redis(url, roots).check().await;
    for roots in [roots(OTHER), none()] {
        let told = checked(&place, roots).await;
        says(
            told,
            &[&place, "certificate", "UnknownIssuer", "store.ca_file"],
        );
    }
    let plain = format!("redis://localhost:{port}");
    says(checked(&plain, none()).await, &[&plain]);
    let not_tls = format!("rediss://localhost:{}", server.port);
    says(checked(&not_tls, own()).await, &[&not_tls]);
}

/// A cluster of one, which says by itself where its nodes are.
#[tokio::test]
async fn tls_on_redis_cluster() {
    // By itself it takes one 10,000 higher, which the system may have given to somebody.
    let bus = free_port().to_string();
    let cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
    let (server, port) = redis(&[&cluster[..], &["--cluster-port", &bus]].concat());
    let all = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    assert_eq!(cli(server.port, &all), "OK");
    while !cli(server.port, &["CLUSTER", "INFO"]).contains("cluster_state:ok") {}
    let url = format!("rediss+cluster://127.0.0.1:{port}");
    let store = on_redis(&url, own());
    store.check().await.unwrap();
    works(&store).await;
    for roots in [roots(OTHER), none()] {
        says(
            on_redis(&url, roots).check().await,
            &[&url, "UnknownIssuer", "store.ca_file"],
        );
    }
}

/// The sentinel is asked over TLS, and so is the master that it names.
#[tokio::test]
async fn tls_on_redis_sentinel() {
    let (_master, of) = redis(&[]);
    let (port, dir) = (free_port(), tempfile::tempdir().unwrap());
    let [tls, chain, key] = files(port);
    let text = format!(
        "port 0\ntls-port {tls}\nbind 127.0.0.1\ndir {}\ntls-cert-file {chain}\n\
         tls-key-file {key}\ntls-ca-cert-file {FOLDER}/ca.pem\ntls-auth-clients no\n\
         tls-replication yes\nsentinel monitor main 127.0.0.1 {of} 1\n",
        dir.path().display()
    );
    let file = dir.path().join("sentinel.conf");
    std::fs::write(&file, text).unwrap();
    let mut sentinel = Command::new("redis-server");
    sentinel.arg(&file).arg("--sentinel").stdout(Stdio::null());
    let mut sentinel = sentinel.spawn().unwrap();
    let url = format!("rediss+sentinel://127.0.0.1:{port}/main");
    let store = on_redis(&url, own());
    let begun = std::time::Instant::now();
    // It is a moment until the sentinel listens.
    while let Err(error) = store.check().await {
        if begun.elapsed() > Duration::from_secs(60) {
            sentinel.kill().unwrap();
            sentinel.wait().unwrap();
            panic!("{error}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    works(&store).await;
    let told = on_redis(&url, roots(OTHER)).check().await;
    sentinel.kill().unwrap();
    sentinel.wait().unwrap();
    says(told, &[&url, "UnknownIssuer", "store.ca_file"]);
}

fn on_postgres(url: &str, files: ClientFiles) -> ojs_throttle::store::SqlStore {
    let config = postgres::PostgresConfig {
        target: (postgres::PostgresTarget::parse(url).unwrap())
            .with_files(files)
            .unwrap(),
        namespace: "limits".to_owned(),
        owner: "a".to_owned(),
        timeout: Duration::from_secs(30),
    };
    postgres::open(config, Clock::new(T))
}

#[tokio::test]
async fn tls_on_postgres() {
    let port = free_port();
    let with = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"];
    let mut server = PostgresServer::on(port, &with);
    let place = format!("postgres://localhost:{port}/postgres");
    let url = |host: &str, mode: &str| {
        format!("postgres://postgres@{host}:{port}/postgres?sslmode={mode}")
    };
    let checked = async |url: &str, roots| on_postgres(url, roots).check().await;
    says(
        checked(&url("localhost", "require"), own()).await,
        &[&place, "TLS"],
    );
    // It takes its key only if nobody else may read it.
    let data = server.dir.path().join("data");
    let about = std::fs::metadata(&data).unwrap();
    for (from, to) in [("server.pem", "server.crt"), ("key.pem", "server.key")] {
        let to = data.join(to);
        std::fs::copy(format!("{FOLDER}/{from}"), &to).unwrap();
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o600)).unwrap();
        chown(&to, Some(about.uid()), Some(about.gid())).unwrap();
    }
    let ca = Ca::new();
    let asks = data.join("clients.crt");
    std::fs::copy(ca.file(), &asks).unwrap();
    chown(&asks, Some(about.uid()), Some(about.gid())).unwrap();
    let hba = "local all all trust\nhostssl all all all trust\n";
    std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
    std::fs::write(
        data.join("postgresql.auto.conf"),
        "ssl = on\nssl_ca_file = 'clients.crt'\n",
    )
    .unwrap();
    server.kill();
    server.restart();
    for (host, mode) in [("localhost", "require"), ("127.0.0.1", "verify-full")] {
        let store = on_postgres(&url(host, mode), own());
        store.check().await.unwrap();
        store.end("b", None).await.unwrap();
        works(&store).await;
    }
    for roots in [roots(OTHER), none()] {
        let told = checked(&url("localhost", "require"), roots).await;
        says(
            told,
            &[&place, "certificate", "UnknownIssuer", "store.ca_file"],
        );
    }
    let plain = checked(&url("localhost", "disable"), none()).await;
    says(plain, &[&place, "no encryption"]);
    // One that asks who we are.
    let asks = "local all all trust\nhostssl all all all trust clientcert=verify-ca\n";
    std::fs::write(data.join("pg_hba.conf"), asks).unwrap();
    server.kill();
    server.restart();
    let (known, other) = (ca.client("sidecar", "DNS:sidecar"), Ca::new());
    let shown = other.client("sidecar", "DNS:sidecar");
    let told = checked(&url("localhost", "require"), own()).await;
    says(told, &["client certificate"]);
    // Both files are swapped behind a store that is open.
    let trusted = other.file().display().to_string();
    let files = shows(roots(&trusted), Some(&shown));
    let store = on_postgres(&url("localhost", "require"), files);
    store.check().await.unwrap_err();
    known.replace(&shown);
    std::fs::copy(format!("{FOLDER}/ca.pem"), &trusted).unwrap();
    store.check().await.unwrap();
    store.end("b", None).await.unwrap();
    works(&store).await;
}
