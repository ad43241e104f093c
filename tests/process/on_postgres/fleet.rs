//! Several sidecars, one Postgres, one budget; judged from what the workers did. What sidecars leave to each other is
//! tested on Redis: `tests/stores` has what each store must do for it.

use std::os::unix::net::UnixStream;

use crate::process::hole::Hole;
use crate::process::ledger::Ledger;
use crate::process::on_redis::fleet::{know_each_other, patient, woken_in_time};
use crate::process::on_redis::outages::cut_off_and_back;
use crate::process::prelude::*;

const THREE: &str =
    "[[policy]]\nname = \"three\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 3\n";

fn sidecar(backend: &Backend, store: &PostgresServer) -> Sidecar {
    let patience = "timeout = \"2s\"\n";
    patient(backend.addr, "2s", &store.url(), patience, THREE)
}

#[test]
fn four_sidecars_have_one_budget_through_a_restart() {
    let (backend, mut store) = (
        Backend::start(Lax::redis()),
        PostgresServer::start(UNSYNCED),
    );
    let sidecars = [(); 4].map(|()| sidecar(&backend, &store));
    know_each_other(&sidecars, 3.0);
    for _ in 0..80 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    ledger.all_work(&sidecars, 80, || {
        wait("a third is done", || ledger.done() > 26);
        store.kill();
        store.restart();
    });
    assert!(ledger.most.load(Ordering::SeqCst) <= 3);
}

/// Where the server, which has a socket in its folder only, is reached over TCP.
fn over_tcp(server: &PostgresServer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let socket: PathBuf = server.dir.path().join(".s.PGSQL.5432");
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = UnixStream::connect(&socket) else {
                continue;
            };
            std::thread::spawn(move || both_ways(client, server));
        }
    });
    addr
}

fn both_ways(client: TcpStream, server: UnixStream) {
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    // Either side may be gone at any time; the other one is told.
    let up = std::thread::spawn(move || {
        drop(std::io::copy(&mut from, &mut to));
        drop(to.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (server, client);
    drop(std::io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Both));
    up.join().unwrap();
}

#[test]
fn a_postgres_behind_a_black_hole_is_cut_off_and_comes_back_without_a_burst() {
    let server = PostgresServer::start(UNSYNCED);
    let hole = Hole::before(over_tcp(&server));
    let url = format!("postgres://postgres@{}/postgres", hole.addr);
    cut_off_and_back(&hole, &url, "2s", 100);
}

#[test]
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let store = PostgresServer::start(UNSYNCED);
    woken_in_time(&store.url());
}
