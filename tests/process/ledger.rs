//! What several sidecars on one store do, as their workers see it.

use std::collections::BTreeSet;

use super::http::poll;
use super::prelude::*;
use super::trace::Run;

/// What workers have out at once, as they see it.
#[derive(Default)]
pub struct Ledger {
    out: AtomicUsize,
    pub most: AtomicUsize,
    done: Mutex<BTreeSet<String>>,
    /// All runs so far, and how long the slowest ACK took.
    pub runs: Mutex<Vec<Run>>,
    pub slowest: Mutex<Duration>,
}

impl Ledger {
    /// Fetches, runs and acknowledges until all jobs are done.
    pub fn work(&self, to: SocketAddr, worker: &str, all: usize) {
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.done.lock().unwrap().len() < all {
            assert!(Instant::now() < deadline, "not done in two minutes");
            let asked = Instant::now();
            for job in poll(to, "q", 1, worker) {
                let got = Instant::now();
                let out = self.out.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(out, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(5));
                self.out.fetch_sub(1, Ordering::SeqCst);
                let ended = Instant::now();
                assert_eq!(ack(to, &job, worker).status, 200);
                let mut slowest = self.slowest.lock().unwrap();
                *slowest = ended.elapsed().max(*slowest);
                drop(slowest);
                self.runs.lock().unwrap().push(Run { asked, got, ended });
                assert!(self.done.lock().unwrap().insert(job), "a job came twice");
            }
        }
    }

    /// Two workers of each sidecar do all jobs; `meanwhile` happens beside them.
    pub fn all_work<T>(
        &self,
        sidecars: &[Sidecar],
        jobs: usize,
        meanwhile: impl FnOnce() -> T,
    ) -> T {
        std::thread::scope(|threads| {
            for (nth, sidecar) in sidecars.iter().enumerate() {
                for worker in 0..2 {
                    let (name, to) = (format!("w{nth}-{worker}"), sidecar.data);
                    threads.spawn(move || self.work(to, &name, jobs));
                }
            }
            meanwhile()
        })
    }

    /// How many jobs are done.
    pub fn done(&self) -> usize {
        self.done.lock().unwrap().len()
    }
}
