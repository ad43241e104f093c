//! Several sidecars, one Postgres, one budget; judged from what the workers did.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ojs_throttle::backend::Lax;
use serde_json::json;

use super::fleet_on_redis::{
    back_from_one_that_was_killed, held_on, paused_by_a_sibling, taken_over,
    taken_over_from_one_that_drains, woken_in_time,
};
use super::hole::Hole;
use super::http::enqueue;
use super::ledger::Ledger;
use super::outages_on_redis::{cut_off_and_back, holder_cut_off};
use super::rig::{Backend, Sidecar, config, until};
use crate::servers::postgres::{PostgresServer, UNSYNCED};

const THREE: &str =
    "[[policy]]\nname = \"three\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 3\n";

fn sidecar(backend: &Backend, store: &PostgresServer) -> Sidecar {
    let rest = format!(
        "{THREE}\n[fetch]\nmax_wait = \"2s\"\n[store]\nurl = \"{}\"\ntimeout = \"2s\"\n",
        store.url()
    );
    Sidecar::run(&config(backend.addr, "", &rest))
}

#[test]
fn four_sidecars_have_one_budget_through_a_restart() {
    let (backend, mut store) = (
        Backend::start(Lax::redis()),
        PostgresServer::start(UNSYNCED),
    );
    let sidecars = [(); 4].map(|()| sidecar(&backend, &store));
    let known = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > 2.5;
    until("they know each other", || {
        sidecars.iter().all(known).then_some(())
    });
    for _ in 0..80 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    std::thread::scope(|threads| {
        for (nth, sidecar) in sidecars.iter().enumerate() {
            for worker in 0..2 {
                let (ledger, to) = (&ledger, sidecar.data);
                threads.spawn(move || ledger.work(to, &format!("w{nth}-{worker}"), 80));
            }
        }
        until("a third is done", || (ledger.done() > 26).then_some(()));
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
fn a_held_job_goes_out_once_where_its_holder_is_cut_off() {
    let server = PostgresServer::start(UNSYNCED);
    let hole = Hole::before(over_tcp(&server));
    let url = format!("postgres://postgres@{}/postgres", hole.addr);
    holder_cut_off(&hole, &url, &server.url());
}

#[test]
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let store = PostgresServer::start(UNSYNCED);
    woken_in_time(&store.url());
}

#[test]
fn a_pause_through_one_sidecar_keeps_what_another_holds() {
    let store = PostgresServer::start(UNSYNCED);
    paused_by_a_sibling(&store.url());
}

#[test]
fn a_held_job_of_an_idle_sidecar_goes_to_a_sibling() {
    let store = PostgresServer::start(UNSYNCED);
    let (_backend, sidecars, out, held) = held_on(&store.url(), "");
    taken_over(&sidecars[1], &out, &held);
}

#[test]
fn a_held_job_of_a_draining_sidecar_goes_to_a_sibling() {
    let store = PostgresServer::start(UNSYNCED);
    taken_over_from_one_that_drains(&store.url());
}

#[test]
fn a_held_job_of_a_killed_sidecar_comes_back_after_its_visibility() {
    let store = PostgresServer::start(UNSYNCED);
    back_from_one_that_was_killed(&store.url());
}
