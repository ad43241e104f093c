//! The start of a call: it is undone if nothing was sent, and ends with its reply.

use std::sync::Arc;
use std::time::Duration;

use crate::boxed::boxed;
use crate::limit::Timestamp;
use crate::metrics::StartKind;
use crate::proxy::Sidecar;
use crate::proxy::outlive::begin;
use crate::store::{Claimed, End, LedgerExt as _};

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
}

impl CallStart {
    pub(super) fn of(sidecar: &Arc<Sidecar>, claimed: &Claimed, at: Timestamp) -> CallStart {
        if let Some(one) = claimed.limited.first() {
            let mut out = sidecar.calling.out.lock();
            out.insert(claimed.job.clone(), one.key.clone());
        }
        CallStart {
            sidecar: Arc::clone(sidecar),
            claimed: claimed.clone(),
            at,
            waited: None,
            sent: false,
        }
    }

    /// The call leaves. From now on the start counts, whatever becomes of it.
    pub(super) fn sent(&mut self) {
        self.sent = true;
        let started = [(&*self.claimed.limited, self.waited)].into_iter();
        self.sidecar.metrics.started(StartKind::Call, started);
    }
}

impl Drop for CallStart {
    /// The store's answer may take time, and a drop has none.
    fn drop(&mut self) {
        self.sidecar.calling.out.lock().remove(&self.claimed.job);
        let (sidecar, claimed, sent) = (Arc::clone(&self.sidecar), self.claimed.clone(), self.sent);
        let over = boxed(|| async move {
            if sent {
                if let Some(row) = sidecar.end_by(&End::of_claim(&claimed)).await {
                    sidecar.settle.runs.note(&row, sidecar.store.now());
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
