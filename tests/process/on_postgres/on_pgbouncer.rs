//! Sidecars whose way to Postgres leads through a pooler.

use crate::process::doctor::{doctor, finding};
use crate::process::ledger::Ledger;
use crate::process::on_redis::fleet::{TWO, know_each_other};
use crate::process::prelude::*;
use crate::servers::pgbouncer::PgBouncer;

fn store(pooler: &PgBouncer) -> String {
    let wait = "[fetch]\nmax_wait = \"100ms\"\n";
    format!(
        "{TWO}{wait}[store]\nurl = \"{}\"\ntimeout = \"10s\"\n",
        pooler.url()
    )
}

/// It would lead each transaction to a session of somebody else, with their settings and without our news.
#[test]
fn a_pooler_that_gives_sessions_away_is_refused_with_its_name() {
    let backend = Backend::start(Lax::redis());
    for mode in ["transaction", "statement"] {
        let pooler = PgBouncer::start(mode);
        let text = config(backend.addr, "", &store(&pooler));
        let (report, status) = doctor(&text, &[]);
        assert_eq!(status, Some(1), "{mode}: {report}");
        let one = finding(&report, "store", "reachable").to_string();
        assert!(
            one.contains("PgBouncer") && one.contains("pool_mode = session"),
            "{one}"
        );
        let (_dir, mut command) = run_with(&text);
        let run = ran(&mut command);
        assert_ne!(run.status, Some(0), "{mode}");
        let said = run.out + &run.err;
        assert!(said.contains("pool_mode = session"), "{mode}: {said}");
    }
}

#[test]
fn a_pooler_that_keeps_sessions_is_a_way_like_any_other() {
    let (backend, pooler) = (Backend::start(Lax::redis()), PgBouncer::start("session"));
    let text = config(backend.addr, "", &store(&pooler));
    let (report, status) = doctor(&text, &[]);
    assert_eq!(status, Some(0), "{report}");
    let sidecars = [(); 2].map(|()| Sidecar::run(&text));
    for _ in 0..40 {
        enqueue(backend.addr, "q", json!({}));
    }
    let ledger = Ledger::default();
    ledger.all_work(&sidecars, 40, || ());
    assert_eq!(ledger.most.load(Ordering::SeqCst), 2);
    know_each_other(&sidecars, 1.0);
}
