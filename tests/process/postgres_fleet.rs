//! Several sidecars, one Postgres, one budget; judged from what the workers did.

use std::sync::atomic::Ordering;

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::http::enqueue;
use crate::ledger::Ledger;
use crate::postgres_server::Server;
use crate::rig::{Backend, Sidecar, config, until};

const THREE: &str =
    "[[policy]]\nname = \"three\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 3\n";

fn sidecar(backend: &Backend, store: &Server) -> Sidecar {
    let rest = format!(
        "{THREE}\n[fetch]\nmax_wait = \"2s\"\n[store]\nurl = \"{}\"\ntimeout = \"2s\"\n",
        store.url()
    );
    Sidecar::run(&config(backend.addr, "", &rest))
}

#[test]
fn four_sidecars_have_one_budget_through_a_restart() {
    let (backend, mut store) = (Backend::start(Lax::redis()), Server::start(&[]));
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
