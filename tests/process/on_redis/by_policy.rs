//! What is set for all keys of a policy, at two sidecars of one Redis.

use crate::process::by_hand::{Desk, TOKEN};
use crate::process::by_policy::{CRM, of_tenants, started};
use crate::process::prelude::*;

#[test]
fn it_binds_at_all_sidecars_of_a_store() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let rest = format!(
        "{CRM}[fetch]\nmax_wait = \"1s\"\n[store]\nurl = \"{}\"\n",
        store.url()
    );
    let one = || Sidecar::run(&config(backend.addr, TOKEN, &rest));
    let other = one();
    let desk = Desk::before(Backend::start(Lax::redis()), one());
    let [a, b] = [desk.sidecar.data, other.data];
    of_tenants(a, &["a"; 6]);
    assert_eq!(started(a, "wa").len(), 5);
    desk.done("pause --policy per-customer --for 1h");
    of_tenants(b, &["a", "b", "c"]);
    other.shows("ojs_throttle_paused_keys", 1.0);
    for to in [a, b] {
        assert!(started(to, "w").is_empty());
    }
    desk.done("limit --policy per-customer --concurrency 1");
    let by = Instant::now() + Duration::from_secs(30);
    let mut all = Vec::new();
    while all.len() < 2 && Instant::now() < by {
        all.extend(started(b, "wb"));
        all.extend(started(a, "wa"));
    }
    all.sort();
    assert_eq!(all, ["b", "c"], "a has five out");
    of_tenants(a, &["b", "c", "d"]);
    all.extend(until("d starts", || {
        let some = [started(a, "wa"), started(b, "wb")].concat();
        (!some.is_empty()).then_some(some)
    }));
    assert_eq!(all, ["b", "c", "d"], "each has its one slot in all");
    // It ends by itself, everywhere.
    desk.done("limit --policy per-customer --concurrency 1 --for 1s");
    let mut more = Vec::new();
    until("it has ended", || {
        more.extend(started(b, "wb"));
        (more.len() == 2).then_some(())
    });
    more.sort();
    assert_eq!(more, ["b", "c"]);
}
