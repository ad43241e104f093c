//! Several sidecars, one Postgres, one budget; judged from what the workers did. What sidecars leave to each other is
//! tested on Redis: `tests/stores` has what each store must do for it.

use crate::process::ledger::Ledger;
use crate::process::on_redis::fleet::{know_each_other, patient, woken_in_time};
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

#[test]
fn a_slot_freed_in_one_sidecar_wakes_a_worker_in_another() {
    let store = PostgresServer::start(UNSYNCED);
    woken_in_time(&store.url());
}

#[test]
fn numbers_and_salts_come_and_go() {
    let store = PostgresServer::start(UNSYNCED);
    crate::process::fleet_subqueues::numbers_and_salts_come_and_go(&store.url());
}
