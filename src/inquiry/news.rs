//! Siblings hear to which subqueues jobs came, so that a worker at any sidecar gets them at its next poll. What cannot be
//! told is told later: they take a subqueue of which they heard nothing for empty, or for one flow's. Whoever may not have
//! heard what was told doubts all that it knows (`Wake::All`).

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
        // One that says nothing may only stand still, and hears it later.
        if untold.is_empty() || sidecar.store.is_alone() {
            continue;
        }
        let told = sidecar.store.set_all(untold.clone()).await;
        // Where the store is lost, the answer is not its own.
        if told.is_err() || sidecar.store.is_lost() {
            sidecar.subqueues.put_back(&untold);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::faulty::{Fault, Faulty};
    use crate::policy::subqueue::Spread;
    use crate::store::Store;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use std::sync::Arc;

    /// The store fails, and is lost. None of the others lives as far as is known, but one has left something.
    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_told_is_told_once_the_store_is_back() {
        let faulty = Faulty::new(Arc::new(MemoryStore::new(1_800_000_000_000_000)));
        let faulty = Arc::new(faulty);
        let guard = Guard::new(faulty.clone(), OnStoreError::Share);
        let proxy = Proxy::on(Store::shared(Arc::new(guard)));
        let sidecar = &proxy.sidecar;
        let file = std::iter::once(("mail", Spread::default()));
        sidecar.subqueues.follow(std::iter::empty(), file);
        let a_while = async || {
            let stop = CancellationToken::new();
            let stops = async {
                sleep(Duration::from_secs(1)).await;
                stop.cancel();
            };
            tokio::join!(tell_siblings(&proxy, stop.clone()), stops);
        };
        faulty.standing(Some(Fault::gone()));
        let subqueue = Spread::default().flow("k", None).subqueue;
        sidecar.subqueues.mark("mail", subqueue, None);
        a_while().await;
        assert!(sidecar.store.is_lost());
        faulty.standing(None);
        sidecar.store.due(0).await.unwrap();
        let before = faulty.calls();
        a_while().await;
        assert_eq!(faulty.calls() - before, 1, "it is told once");
        assert!(sidecar.subqueues.take_untold().is_empty());
    }
}
