//! Queues that were paused through us may be resumed elsewhere. What is held of them must not wait for ever for a
//! word that never comes this way, nor those who enqueue where the oldest goes for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::pace::ticks;
use crate::bounds::{Bounds, OverflowStrategy};
use crate::desk::Proxy;
use crate::desk::paused::read_paused;
use crate::inquiry::calls;
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
            sidecar.fetching.paused.is_over(&queue, asked);
            sidecar.hold.wake_all();
        }
        _ => sidecar.fetching.paused.stands(&queue, since),
    }
}
