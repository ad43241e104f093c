//! Sidecars on a cluster that moves the slot of their keys to another node.

use crate::process::ledger::Ledger;
use crate::process::prelude::*;
use crate::servers::redises::{Part, RedisCluster};

/// The first slot of the cluster, which is the first that its tool moves, and a namespace that lies there.
const SLOT: (&str, &str) = ("0", "moving-5623");
/// Nothing fails over.
const PATIENCE: Duration = Duration::from_secs(60);
const STARTS: usize = 200;

/// P1 and P2 hold while the slot is half moved for seconds and while the cluster's own tool moves it back, what is there
/// stays there, and no log is filled.
#[test]
fn a_slot_that_moves_begins_no_window_anew() {
    let (backend, cluster) = (Backend::start(Lax::redis()), RedisCluster::start(PATIENCE));
    let policy = format!(
        "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"q\" }}\nconcurrency = 2\n\
         throttle = {{ limit = 50, period = \"1s\" }}\nrate = {{ limit = {STARTS}, period = \"10m\" }}\n\
         [fetch]\nmax_wait = \"100ms\"\n[store]\nurl = \"{}\"\nnamespace = \"{}\"\n\
         on_store_error = \"closed\"\n",
        cluster.url(),
        SLOT.1
    );
    let sidecars = [(); 2].map(|()| Sidecar::run(&config(backend.addr, "", &policy)));
    for _ in 0..2 * STARTS {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    let reaches = |done| wait("jobs are done", || ledger.done() >= done);
    ledger.all_work(&sidecars, STARTS, || {
        reaches(20);
        cluster.begin_move(SLOT.0);
        // What people saw lasted for seconds: that is what is tried here.
        std::thread::sleep(Duration::from_secs(1));
        cluster.move_keys(SLOT.0, Part::Half);
        std::thread::sleep(Duration::from_secs(1));
        cluster.move_keys(SLOT.0, Part::All);
        cluster.end_move(SLOT.0);
        reaches(100);
        cluster.reshard().unwrap_or_else(|said| panic!("{said}"));
    });
    assert!(ledger.most.load(Ordering::SeqCst) <= 2);
    for sidecar in &sidecars {
        assert!(
            fetch(sidecar.data, "q", 9, "w").jobs().is_empty(),
            "a second window"
        );
        assert_eq!(sidecar.metric("ojs_throttle_store_wiped_total"), 0.0);
        let lines = sidecar.lines();
        let about_it = lines.iter().filter(|line| line.contains("store"));
        assert!(about_it.count() <= 8, "{}", sidecar.log());
    }
}
