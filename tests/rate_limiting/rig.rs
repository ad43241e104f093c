//! A sidecar whose clock shows the time of the text's examples, with its admin port, before a backend; and
//! workers that write down what they did.

use std::cell::RefCell;
use std::rc::Rc;

use ojs_throttle::store::Store;
use tokio::task::LocalSet;

use super::prelude::*;
use crate::harness::EARLY;
use crate::sidecar::simulated::{Pair, Served};

/// A backend, a sidecar, and both of its ports.
pub struct Rig {
    pub client: Client,
    pub admin: Client,
    pub behind: Served,
    began: Instant,
}

impl Rig {
    /// `config` is TOML that begins inside `[server]`.
    pub async fn with(config: &str) -> Rig {
        Rig::over(Arc::new(MemoryStore::new(NOON)), config).await
    }

    /// The same over a store whose clock begins at noon.
    pub async fn over(store: impl Into<Store>, config: &str) -> Rig {
        let began = Instant::now();
        let Pair { behind, sidecar } = Pair::over(store, config).await;
        Rig {
            client: sidecar.client(),
            admin: sidecar.admin(),
            behind,
            began,
        }
    }

    /// The sidecar's time, as a time of day on 2026-02-13 in seconds after noon.
    pub fn after_noon(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A number on the metrics page; `None`: there is no such series.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        self.admin.metric(series).await
    }

    /// What `GET /ojs/v1/rate-limits/KEY` says.
    pub async fn inspect(&self, key: &str) -> Value {
        self.client.inspect(key).await
    }

    /// Enqueues the same text so often, as it stands, in as few requests as the backend takes.
    pub async fn enqueue(&self, text: &str, times: usize) {
        let mut left = times;
        while left > 0 {
            let now = left.min(1_000);
            let jobs = vec![text; now].join(",");
            let body = format!("{{\"jobs\":[{jobs}]}}");
            let reply = self.client.post("/ojs/v1/jobs/batch", body).await;
            assert_eq!(reply.status, 201, "{}", reply.text());
            left -= now;
        }
    }

    /// How many events of a kind the backend has in its ledger.
    pub fn count(&self, kind: EventKind) -> usize {
        self.behind.count(kind)
    }
}

/// One run of a job, as its worker saw it.
#[derive(Clone, Debug)]
pub struct Run {
    pub job: String,
    pub from: Instant,
}

/// Workers of one queue that take one job at a time until `runs` of them were run, each for as long as
/// `lasts` says of the how manyeth it is; then what they did, in the order in which it began.
pub async fn work(
    client: &Client,
    queues: &[&str],
    workers: usize,
    runs: usize,
    lasts: impl Fn(usize) -> Duration + Clone + 'static,
) -> Vec<Run> {
    let done = Rc::new(RefCell::new(Vec::<Run>::new()));
    let begun = Rc::new(RefCell::new(0));
    let began = Instant::now();
    let set = LocalSet::new();
    for _ in 0..workers {
        let (client, done, begun) = (client.clone(), Rc::clone(&done), Rc::clone(&begun));
        let (queues, lasts) = (json!(queues), lasts.clone());
        set.spawn_local(async move {
            let mut idle = Duration::from_millis(100);
            while *begun.borrow() < runs {
                assert!(began.elapsed() < Duration::from_secs(7_200), "no end of it");
                let asked = json!({"queues": queues, "count": 1, "worker_id": "w"});
                let jobs = client.fetch_as(asked).await;
                // As workers do, and the longer the less often: some limits last an hour.
                let none = jobs.is_empty();
                for job in jobs {
                    let from = Instant::now();
                    let nth = begun.replace_with(|begun| *begun + 1);
                    sleep(lasts(nth)).await;
                    client.ack(id(&job)).await;
                    done.borrow_mut().push(Run {
                        job: id(&job).to_owned(),
                        from,
                    });
                }
                if none {
                    sleep(idle).await;
                    idle = (idle * 2).min(Duration::from_secs(1));
                } else {
                    idle = Duration::from_millis(100);
                }
            }
        });
    }
    set.await;
    let mut all = done.take();
    all.sort_by_key(|run| run.from);
    all
}

/// Asserts that no interval of `period`, wherever it begins, has more than `limit` starts.
pub fn no_interval_has_more(runs: &[Run], limit: usize, period: Duration) {
    for more in runs.windows(limit + 1) {
        let span = more[limit].from - more[0].from;
        assert!(span >= period, "{} starts within {span:?}", limit + 1);
    }
}

/// Asserts that starts are at least so far apart, less what the manual allows.
pub fn spaced(runs: &[Run], interval: Duration) {
    for two in runs.windows(2) {
        let gap = two[1].from - two[0].from;
        assert!(gap + EARLY >= interval, "{gap:?} apart");
    }
}

/// No time at all: jobs that are done at once.
pub fn at_once(_: usize) -> Duration {
    Duration::ZERO
}
