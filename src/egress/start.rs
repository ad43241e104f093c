//! The start of a call: it is undone if nothing was sent, and ends with its reply. Before that, the call may stand in a
//! line of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::meter::Meter;
use crate::answers::body::Attend;
use crate::desk::Sidecar;
use crate::desk::outlive::begin;
use crate::desk::tell;
use crate::limit::{Timestamp, is_priced};
use crate::settle::cost;
use crate::store::{Claimed, End, LedgerExt as _, Used};
use crate::told::metrics::{Settlement, StartKind};
use crate::wire::boxed::boxed;

/// A call with a cost, for which the store may keep room. If it is given up, others have that room at once.
#[derive(Debug)]
pub(super) struct PricedCall {
    sidecar: Arc<Sidecar>,
    claimed: Claimed,
    /// The store was asked and has not let it start.
    pub(super) may_stand: AtomicBool,
}

impl PricedCall {
    /// That of this call, if it has a cost.
    pub(super) fn of(sidecar: &Arc<Sidecar>, claimed: &Claimed) -> Option<Arc<PricedCall>> {
        let priced = || PricedCall {
            sidecar: Arc::clone(sidecar),
            claimed: claimed.clone(),
            may_stand: AtomicBool::new(false),
        };
        is_priced(&claimed.limited).then(|| Arc::new(priced()))
    }
}

impl Drop for PricedCall {
    fn drop(&mut self) {
        if !self.may_stand.load(Ordering::Relaxed) {
            return;
        }
        let (sidecar, claimed) = (Arc::clone(&self.sidecar), self.claimed.clone());
        let leaves = boxed(|| async move {
            // A store that does not hear of it keeps the room for some seconds.
            drop(sidecar.end_by(&End::of_claim(&claimed)).await);
            sidecar.wake(&claimed.limited);
        });
        begin(&self.sidecar.tasks.own, leaves);
    }
}

/// A start that the store has granted.
#[derive(Debug)]
pub(super) struct CallStart {
    sidecar: Arc<Sidecar>,
    pub(super) claimed: Claimed,
    /// When it counts.
    pub(super) at: Timestamp,
    /// How long the call waited, if it was refused before.
    pub(super) waited: Option<Duration>,
    /// Whether the service may have seen something of the call.
    sent: bool,
    /// What its answer says that it used.
    pub(super) meter: Option<Meter>,
}

impl CallStart {
    pub(super) fn of(
        sidecar: &Arc<Sidecar>,
        claimed: &Claimed,
        at: Timestamp,
        meter: Option<Meter>,
    ) -> CallStart {
        let (job, out) = (claimed.job.clone(), &sidecar.calling.out);
        out.lock().insert(job, claimed.clone());
        CallStart {
            sidecar: Arc::clone(sidecar),
            claimed: claimed.clone(),
            at,
            waited: None,
            sent: false,
            meter,
        }
    }

    /// Whether it has slots until its reply has ended.
    pub(super) fn has_slots(&self) -> bool {
        let mut limited = self.claimed.limited.iter();
        limited.any(|one| one.limits.concurrency.is_some())
    }

    /// The call leaves. From now on the start counts, whatever becomes of it.
    pub(super) fn sent(&mut self) {
        self.sent = true;
        let started = [(&*self.claimed.limited, self.waited)].into_iter();
        self.sidecar.metrics.started(StartKind::Call, started);
    }

    /// What it used of its budgets.
    fn used(&self) -> Vec<Used> {
        let Some(meter) = &self.meter else {
            return Vec::new();
        };
        let used = meter.settled().filter_map(|(of, how, used)| {
            self.sidecar.metrics.settled(&of.budget.name, how);
            let is_untold = !matches!(how, Settlement::Told | Settlement::Free);
            if is_untold && of.settles() && meter.has_success() {
                let model = meter.model_of(of);
                tell::untold(&self.sidecar, &of.budget.name, &of.key, model, how);
            }
            used
        });
        used.collect()
    }
}

impl Attend for CallStart {
    fn part(&mut self, bytes: &Bytes) {
        if let Some(meter) = &mut self.meter {
            meter.see(bytes);
        }
    }

    fn ended(&mut self) {
        if let Some(meter) = &mut self.meter {
            meter.ended();
        }
    }
}

impl Drop for CallStart {
    /// The store's answer may take time, and a drop has none.
    fn drop(&mut self) {
        self.sidecar.calling.out.lock().remove(&self.claimed.job);
        let (sidecar, claimed, sent) = (Arc::clone(&self.sidecar), self.claimed.clone(), self.sent);
        // One that is taken back has used nothing.
        let used = if sent { self.used() } else { Vec::new() };
        let over = boxed(|| async move {
            if sent {
                let end = End::with_used(&claimed, used);
                if let Some(row) = sidecar.end_by(&end).await {
                    sidecar.settle.runs.note(&row, sidecar.store.now());
                    cost::count(&sidecar, &row, end.used());
                }
                return;
            }
            // A store that does not hear of it knows that the row is overdue, and the next sweep ends it.
            let _undone = sidecar.store.back(&claimed.job, claimed.generation).await;
            sidecar.wake(&claimed.limited);
        });
        begin(&self.sidecar.tasks.own, over);
    }
}
