//! A hold that is full of jobs that no worker asks for: some of them are let go.

use tokio::time::Instant;

use crate::proxy::Proxy;
use crate::proxy::load::Seldom;

impl Proxy {
    /// Looks which queues no worker has asked for in a while, and lets go of some of what is held of them where
    /// there is more than has room beside the hold and other jobs need the places: their claims lapse.
    pub(super) async fn make_room(&self, warned: &Seldom) {
        let sidecar = &self.sidecar;
        let (max, bytes, idle) = {
            let settings = &sidecar.live().settings;
            let max = sidecar.hold_max(settings);
            (max, settings.hold_bytes, settings.hold_idle)
        };
        sidecar.hold.look_for_idle(idle, Instant::now());
        let lapsing = sidecar.hold.take_crowding(max, bytes);
        if let Some(first) = lapsing.first().filter(|_| warned.now()) {
            tracing::warn!(
                queue = &*first.claimed.queue,
                lapsing = lapsing.len(),
                held = sidecar.hold.len(),
                "the hold is full of jobs that no worker asks for; the claims of some lapse, so that others can \
                 start, and to each this is the death of a worker: start workers for these queues, or raise \
                 hold.max and hold.max_bytes"
            );
        }
        for held in &lapsing {
            let claimed = &held.claimed;
            sidecar.lose(claimed).await;
            sidecar.hold.ended(&claimed.job, claimed.generation);
        }
    }
}
