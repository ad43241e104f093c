//! A backend that gives no answer: whether it is back, also where nobody else asks.

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::EVERY;
use crate::proxy::{Proxy, call, get};

impl Proxy {
    /// Looks whether an outage of the backend is over, and asks it where nobody else does, until told to stop.
    pub(in crate::proxy) async fn watch_backend(&self, stop: CancellationToken) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            if self.upstream.look() {
                let question = get(self, 0, "/ojs/v1/health".to_owned());
                tokio::select! {
                    // Whatever it says, it is an answer.
                    _noted = call(self, "health", question) => {}
                    () = stop.cancelled() => return,
                }
            }
        }
    }
}
