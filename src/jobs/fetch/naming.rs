//! Claims are named to the store: the rows of earlier claims of their jobs end, and with those their slots.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::desk::Sidecar;
use crate::hold::Unnamed;
use crate::store::{Claimed, Row};
use crate::told::metrics::Counted;

/// The claims of some jobs; few FETCHes are for more.
pub(super) type ClaimsOf<'a> = SmallVec<[&'a Claimed; 16]>;

/// So many claims are named in one call.
const NAMED_AT_ONCE: usize = 256;

/// Names claims of which the store has not heard, beside everything else: the rows of earlier claims of their jobs end,
/// and with those their slots. Where claims do not count, nothing else would show that such a slot is free.
pub(in crate::jobs) fn name_claims(sidecar: &Arc<Sidecar>) {
    let unnamed = sidecar.hold.unnamed();
    if unnamed.claims.is_empty() {
        return;
    }
    let _task = sidecar.tasks.spawn(name(Arc::clone(sidecar), unnamed));
}

/// Names these claims to the store; where it does not hear of them, they are unnamed again.
async fn name(sidecar: Arc<Sidecar>, mut unnamed: Unnamed) {
    while !unnamed.claims.is_empty() {
        let named = unnamed.claims.len().min(NAMED_AT_ONCE);
        let taken = {
            let claims: ClaimsOf<'_> = unnamed.claims.iter().take(named).collect();
            sidecar.store.take(&claims, 0).await
        };
        let Ok(taken) = taken else {
            return;
        };
        unnamed.claims.drain(..named);
        reclaimed(&sidecar, &taken.ended);
    }
}

/// Jobs were claimed again, and these rows of earlier claims ended.
pub(super) fn reclaimed(sidecar: &Sidecar, ended: &[Row]) {
    for row in ended.iter().filter(|row| row.is_out()) {
        sidecar.over(row);
        sidecar.metrics.count(Counted::SlotReclaimed);
    }
}
