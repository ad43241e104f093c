//! Queues that were paused through us may be resumed elsewhere. What is held of them must not wait for ever for a
//! word that never comes this way, nor those who enqueue where the oldest goes for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pace::ticks;
use crate::bounds::{Bounds, OverflowStrategy};
use crate::desk::paused::read_paused;
use crate::desk::{Proxy, Sidecar};
use crate::inquiry::calls;
use crate::jobs::siblings;
use crate::wire::boxed;

/// How long a pause is taken for granted before the backend is asked whether it still stands.
const PAUSED_FOR: Duration = Duration::from_secs(5);
/// So many questions are on their way at once.
const AT_ONCE: usize = 16;

/// Asks the backend about queues that are paused, as far as that matters here. Beside the sweep, and several at once.
pub(super) async fn ask_about_paused(proxy: &Proxy) {
    let mut ticks = ticks();
    loop {
        ticks.tick().await;
        ask_paused_round(proxy).await;
    }
}

async fn ask_paused_round(proxy: &Proxy) {
    let counts = proxy.sidecar.hold.counts();
    let bounds = |queue: &str| proxy.sidecar.admit.pressure.bounds(queue);
    let matters = |queue: &str| {
        let drops = |bounds: &Bounds| bounds.strategy == OverflowStrategy::DropOldest;
        counts.contains_key(queue) || bounds(queue).as_deref().is_some_and(drops)
    };
    let paused = proxy.sidecar.fetching.paused.since(matters).into_iter();
    let mut due = paused.filter(|(_, since)| since.elapsed() >= PAUSED_FOR);
    let mut questions = JoinSet::new();
    loop {
        while questions.len() < AT_ONCE
            && let Some((queue, since)) = due.next()
        {
            questions.spawn(boxed::work(ask_whether_paused(proxy.clone(), queue, since)));
        }
        if questions.join_next().await.is_none() {
            return;
        }
    }
}

/// Asks about a queue that is paused for all that was known at `since`.
async fn ask_whether_paused(proxy: Proxy, queue: Arc<str>, since: Instant) {
    let sidecar = &proxy.sidecar;
    let asked = Instant::now();
    let path: String = crate::wire::ojs::encoded(&queue);
    let question = calls::get(&proxy, 0, format!("/ojs/v1/queues/{path}/stats"));
    let Ok(reply) = calls::call(&proxy, "queue_stats", question).await else {
        return;
    };
    match read_paused(&reply) {
        Some(false) => {
            let _nobody_reads = sidecar.fetching.paused.reading.write().await;
            sidecar.fetching.paused.is_over(&queue, asked);
            if !sidecar.fetching.paused.has(&queue) {
                // Else whoever reads in the store that it is paused pauses it once more.
                siblings::tell_paused(sidecar, &queue, false).await;
            }
            sidecar.hold.wake_all();
        }
        _ => note_that_it_stands(sidecar, &queue, since).await,
    }
}

/// A pause that was known to stand at `since` stands still.
async fn note_that_it_stands(sidecar: &Sidecar, queue: &str, since: Instant) {
    if sidecar.fetching.paused.stands(queue, since) {
        siblings::tell_paused(sidecar, queue, true).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::claims::TestClaim as _;
    use crate::equipment::held::held_of;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::{Claim, Ledger, LedgerExt as _, Store};

    /// It was paused through us, and resumed at the backend itself.
    #[tokio::test(start_paused = true)]
    async fn the_store_hears_of_a_pause_that_is_over() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let proxy = over(inner);
        let sidecar = &proxy.sidecar;
        sidecar.hold.add(vec![held_of(Claim::limited("a"))]);
        sidecar.fetching.paused.pause("q");
        siblings::tell_paused(sidecar, "q", true).await;
        assert!(sidecar.store.is_paused("q").await.unwrap());
        tokio::time::sleep(PAUSED_FOR).await;
        ask_paused_round(&proxy).await;
        assert!(!sidecar.fetching.paused.has("q"));
        assert!(!sidecar.store.is_paused("q").await.unwrap());
    }

    fn over(inner: Arc<dyn Ledger>) -> Proxy {
        let guard = Guard::new(inner, OnStoreError::Share);
        Proxy::on(Store::shared(Arc::new(guard)))
    }

    /// The store forgets after a day: who starts then takes over what is held, and must hear of the pause.
    #[tokio::test(start_paused = true)]
    async fn a_pause_of_two_days_is_heard_of_by_who_starts_then() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let (proxy, newcomer) = (over(inner.clone()), over(inner));
        let sidecar = &proxy.sidecar;
        sidecar.hold.add(vec![held_of(Claim::limited("a"))]);
        sidecar.fetching.paused.pause("q");
        siblings::tell_paused(sidecar, "q", true).await;
        for _ in 0..96 {
            tokio::time::advance(Duration::from_secs(1_800)).await;
            let paused = sidecar.fetching.paused.since(|_| true);
            let (queue, since) = paused.into_iter().next().unwrap();
            note_that_it_stands(sidecar, &queue, since).await;
        }
        assert!(newcomer.sidecar.store.is_paused("q").await.unwrap());
    }
}
