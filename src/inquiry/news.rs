//! Siblings hear to which subqueues jobs came, so that a worker at any sidecar gets them at its next poll. Where a message
//! is lost, the sweep finds them some seconds later.

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::desk::Proxy;
use crate::store::LedgerExt;

/// For so long what comes is gathered: of each queue siblings hear no more often.
const GATHER: Duration = Duration::from_millis(50);

/// Tells siblings until the sidecar is told to stop. Where the store is this sidecar's alone there are none.
pub(crate) async fn tell_siblings(proxy: &Proxy, stop: CancellationToken) {
    let sidecar = &proxy.sidecar;
    if !sidecar.store.is_shared() {
        return;
    }
    loop {
        tokio::select! {
            () = sidecar.subqueues.news() => {}
            () = stop.cancelled() => return,
        }
        sleep(GATHER).await;
        let untold = sidecar.subqueues.take_untold();
        if !untold.is_empty() && sidecar.store.siblings() > 0 {
            // What they do not hear of they find.
            drop(sidecar.store.set_all(untold).await);
        }
    }
}
