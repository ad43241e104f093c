//! Other sidecars on the same store: what they do that matters here, and held jobs that go from one to
//! another. A held job's row is known to all. Where its owner has no worker for it, drains, or is gone,
//! a sidecar whose worker asks for jobs of its lane takes it over.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job::{Came, Origin, Shown};
use super::{DEPTH, Proxy, Sidecar};
use crate::hold::{Held, Lane};
use crate::json::Json;
use crate::limit::{Limited, Limits, OnLimit, Timestamp};
use crate::metrics::Event;
use crate::store::{Change, Claimed, Row, Wake};

/// The most held jobs that are taken over for one FETCH.
const AT_ONCE: usize = 16;
/// How long a drain waits for siblings to take what it offers.
const OFFER: Duration = Duration::from_secs(5);

/// Lanes in which siblings have offered held jobs.
#[derive(Default, Debug)]
pub(super) struct Offered {
    any: AtomicBool,
    lanes: Mutex<HashSet<Lane>>,
}

impl Offered {
    fn put(&self, lane: Lane) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.insert(lane);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn take(&self, lane: &Lane) -> bool {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let found = lanes.remove(lane);
        self.any.store(!lanes.is_empty(), Ordering::Release);
        found
    }
}

impl Proxy {
    /// Does what must be done although nobody asks, until the sidecar is told to stop.
    pub async fn attend(&self, stop: CancellationToken) {
        tokio::join!(self.sweep(stop.clone()), self.hear_siblings(stop));
    }

    /// Follows what siblings tell until the sidecar is told to stop. With the memory store there are
    /// none.
    pub async fn hear_siblings(&self, stop: CancellationToken) {
        let sidecar = &self.sidecar;
        loop {
            let wake = tokio::select! {
                wake = sidecar.store.wake() => wake,
                () = stop.cancelled() => return,
            };
            match wake {
                Wake::Freed(keys) => {
                    let named = |(space, key)| Limited {
                        space,
                        key,
                        limits: Limits::default(),
                        on_limit: OnLimit::Wait,
                        policy: "".into(),
                    };
                    let freed: Vec<Limited> = keys.into_iter().map(named).collect();
                    sidecar.hold.wake(&freed);
                }
                Wake::Row { job } => sidecar.follow_row(&job).await,
                Wake::Offered { scope, queue } => {
                    sidecar.offered.put(Lane { scope, queue });
                    sidecar.hold.wake_all();
                }
                Wake::All => sidecar.hold.wake_all(),
            }
        }
    }

    /// Takes over what siblings have offered of these queues, for a worker that is here now; in a task
    /// of its own, which ends whatever becomes of the worker.
    pub(super) async fn take_over_of(&self, scope: u64, queues: &[Arc<str>]) {
        if !self.sidecar.offered.any() {
            return;
        }
        let (proxy, queues) = (self.clone(), queues.to_vec());
        let taken = self.sidecar.tasks.spawn(async move {
            for queue in queues {
                proxy.take_over(&Lane { scope, queue }).await;
            }
        });
        // Only a panic in there could fail, and would have been logged.
        drop(taken.await);
    }

    async fn take_over(&self, lane: &Lane) {
        let sidecar = &self.sidecar;
        if sidecar.draining.is_cancelled() || !sidecar.offered.take(lane) {
            return;
        }
        let rows = sidecar.store.offered(lane.scope, &lane.queue, AT_ONCE);
        let Ok(rows) = rows.await else {
            return;
        };
        if rows.len() >= AT_ONCE {
            sidecar.offered.put(lane.clone());
        }
        for row in rows {
            self.take_over_row(row).await;
        }
    }

    async fn take_over_row(&self, row: Row) {
        let sidecar = &self.sidecar;
        let claimed = row.claimed;
        let next = sidecar.next_claim();
        let own = Change::Own {
            job: claimed.job.clone(),
            generation: claimed.generation,
            next,
            until: sidecar.store.now().plus(claimed.visibility / 3),
        };
        if !matches!(sidecar.store.set(own).await, Ok(true)) {
            return;
        }
        let sent = Instant::now();
        match self.read_again(&claimed, sent).await {
            Some(mut held) => {
                held.claimed.generation = next;
                // When its claim was last extended only its former owner knew: it is proven first.
                held.granted = Duration::ZERO;
                sidecar.metrics.count(Event::HoldAdopted);
                sidecar.hold.add(vec![held]);
            }
            None => {
                sidecar.end(&claimed.job, Some(next)).await;
            }
        }
    }

    /// The job as the backend has it, if it is active in that attempt still.
    async fn read_again(&self, claimed: &Claimed, sent: Instant) -> Option<Held> {
        let sidecar = &self.sidecar;
        let mark = sidecar.pressure.mark();
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(&claimed.job));
        let call = super::get(self, claimed.scope, target);
        let reply = super::call(self, "get_job", call).await.ok()?;
        if reply.status != StatusCode::OK {
            return None;
        }
        let whole = Json::parse(&reply.body, DEPTH).ok()?;
        let job = whole.get_exact("job").unwrap_or(whole);
        let origin = Origin {
            scope: claimed.scope,
            tenant: None,
            queues: vec![claimed.queue.clone()],
            claim_id: &claimed.claim_id,
            visibility: Some(Duration::from_micros(claimed.visibility)),
            sent,
            mark,
        };
        let active = job.get("state")?.text()? == "active";
        let came = Came {
            at: Instant::now(),
            stored_at: sidecar.store.now(),
        };
        let held = sidecar.read_job(&Shown::of(job), &origin, came, &sidecar.live(), true)?;
        (active && held.claimed.attempt == claimed.attempt).then_some(held)
    }
}

impl Sidecar {
    /// Puts rows of held jobs into a store that others share, so that they know of them.
    pub(super) async fn register(&self, held: &[Held]) {
        if !self.store.is_shared() || held.is_empty() {
            return;
        }
        let claims: Vec<&Claimed> = held.iter().map(|held| &held.claimed).collect();
        // While the store is away nothing starts either; the question of a start makes the row then.
        drop(self.store.take(&claims, 0).await);
    }

    /// A sibling had to do with a row of ours: the hold does as the row says.
    async fn follow_row(&self, job: &str) {
        let Ok(row) = self.store.row(job).await else {
            // The next question of a start tells.
            return;
        };
        match row {
            Some(row) if row.ours && row.hidden => drop(self.hold.hide(job)),
            Some(row) if row.ours => self.hold.show(job),
            _ => drop(self.hold.forget(job)),
        }
    }

    /// Whether a held job should go to a sibling: nobody asks for it here, and somebody may elsewhere.
    pub(super) fn offers(&self, claimed: &Claimed) -> bool {
        if self.store.siblings() == 0 {
            return false;
        }
        let lane = Lane {
            scope: claimed.scope,
            queue: claimed.queue.clone(),
        };
        let idle = self.live().settings.hold_idle;
        self.draining.is_cancelled() || self.hold.is_idle(&lane, idle, Instant::now())
    }

    /// Offers a held job to siblings. It stays ours until one takes it.
    pub(super) async fn offer(&self, claimed: &Claimed) {
        let offer = Change::Until {
            job: claimed.job.clone(),
            generation: claimed.generation,
            until: Timestamp(0),
            visibility: claimed.visibility,
        };
        // If the store is away the row is offered when it is overdue.
        drop(self.store.set(offer).await);
    }

    /// Offers all held jobs, and waits a while for siblings to take them.
    pub(super) async fn offer_all(&self) {
        if self.store.siblings() == 0 {
            return;
        }
        for (claimed, _) in self.hold.proofs() {
            self.offer(&claimed).await;
        }
        let patience = Instant::now() + OFFER;
        while !self.hold.proofs().is_empty() && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
