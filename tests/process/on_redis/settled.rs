//! What jobs use beyond their cost counts as their ACKs say, over whole sidecars; judged from what the workers used.

use crate::process::http::poll;
use crate::process::on_redis::fleet::{know_each_other, sidecar};
use crate::process::prelude::*;

/// What a start pays, and what its ACK says that was used.
const SAYS: u64 = 10;
const USES: u64 = 100;
const LIMIT: u64 = 1_000;
pub const POLICY: &str = "[[policy]]\nname = \"tokens\"\nmatch = { queue = \"q\" }\n\
    rate = { limit = 1000, period = \"3s\" }\n\
    cost = { from = \"meta.tokens\", max = 100, settle = \"result.used\" }\n";

fn enqueue_one(to: SocketAddr) {
    let meta = json!({"tokens": SAYS});
    let options = json!({"queue": "q", "metadata": meta});
    let job = json!({"type": "t", "args": [], "meta": meta, "options": options});
    assert_eq!(
        ask(to, "POST", "/ojs/v1/jobs", &job.to_string()).status,
        201
    );
}

/// Works for two periods and says when each job had told what it used.
fn work(to: SocketAddr, worker: &str, until: Instant) -> Vec<Instant> {
    let mut told = Vec::new();
    while Instant::now() < until {
        for job in poll(to, "q", 1, worker) {
            let ack = json!({"job_id": job, "worker_id": worker, "result": {"used": USES}});
            let reply = ask(to, "POST", "/ojs/v1/workers/ack", &ack.to_string());
            assert_eq!(reply.status, 200);
            told.push(Instant::now());
        }
    }
    told
}

/// Each sidecar has one worker, so at most so many jobs are out that use more than they said.
pub fn what_was_used_is_counted(backend: &Backend, sidecars: &[Sidecar; 2]) {
    know_each_other(sidecars, 1.0);
    for _ in 0..80 {
        enqueue_one(backend.addr);
    }
    let until = Instant::now() + Duration::from_secs(7);
    let mut told: Vec<Instant> = std::thread::scope(|scope| {
        let workers = sidecars.each_ref().map(|sidecar| {
            let name = format!("w{}", sidecar.data.port());
            scope.spawn(move || work(sidecar.data, &name, until))
        });
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    told.sort();
    // The store has counted each a little before its worker knows.
    let almost = Duration::from_secs(2);
    let most = told.iter().map(|from| {
        let within = told
            .iter()
            .filter(|at| (*from..*from + almost).contains(at));
        USES * within.count() as u64
    });
    let most = most.max().unwrap();
    let over = 2 * (USES - SAYS);
    assert!(
        most <= LIMIT + over,
        "{most} used in {almost:?} under {LIMIT} in 3 s"
    );
    assert!(
        told.len() >= 20,
        "and it goes on: {} in two periods",
        told.len()
    );
}

#[test]
fn what_was_used_beyond_the_cost_is_counted() {
    let (backend, store) = (Backend::start(Lax::redis()), RedisServer::start());
    let sidecars = [(); 2].map(|()| sidecar(&backend, &store, "", POLICY));
    what_was_used_is_counted(&backend, &sidecars);
}
