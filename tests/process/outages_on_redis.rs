//! Two sidecars that lose their store at once, and have it back one after the other.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::hole::Hole;
use crate::http::{ack, enqueue, fetch};
use crate::redis_server::RedisServer;
use crate::rig::{Backend, Sidecar, config, until};

#[test]
fn a_slot_freed_through_a_sibling_in_an_outage_is_free() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let holes = [(); 2].map(|()| Hole::before(SocketAddr::from(([127, 0, 0, 1], store.port))));
    let sidecars = holes.each_ref().map(|hole| {
        let one = "[[queue]]\nname = \"q\"\nconcurrency = 1\n[fetch]\nmax_wait = \"100ms\"\n";
        let rest = format!("{one}[store]\nurl = \"redis://{}\"\n", hole.addr);
        Sidecar::run(&config(backend.addr, "", &rest))
    });
    let up = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_store_up") > 0.5;
    let knows = |sidecar: &Sidecar| sidecar.metric("ojs_throttle_siblings") > 0.5;
    until("they know each other", || {
        sidecars.iter().all(knows).then_some(())
    });
    for _ in 0..2 {
        enqueue(backend.addr, "q", json!({}));
    }
    let [a, b] = sidecars.each_ref().map(|sidecar| sidecar.data);
    let out = fetch(a, "q", 1, "w").jobs().remove(0);
    holes.iter().for_each(Hole::swallow);
    until("both have lost it", || {
        (!sidecars.iter().any(up)).then_some(())
    });
    assert_eq!(ack(b, &out, "w").status, 200);
    // The one that knows of the end is the first to come back.
    for (hole, sidecar) in holes.iter().zip(&sidecars).rev() {
        hole.heal();
        until("it has it back", || up(sidecar).then_some(()));
    }
    let back = Instant::now();
    until("the next one starts", || fetch(a, "q", 1, "w").jobs().pop());
    // The visibility is 30 s.
    assert!(
        back.elapsed() < Duration::from_secs(5),
        "{:?}",
        back.elapsed()
    );
}
