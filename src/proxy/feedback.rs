//! Dynamic limits (rate-limiting text, section 9): a nack that says that the service behind a job
//! limits us shuts the keys of that job until then.

use super::{DEPTH, Proxy};
use crate::json::Json;
use crate::limit::{Key, Limits, Space, Timestamp};
use crate::policy::Pause;
use crate::store::{Change, Claimed, Row};

impl Proxy {
    /// The backend has accepted this nack of a job that was out under `row`. Before its slots end: what
    /// they would let start at once is what the service has refused.
    pub(super) async fn heed(&self, row: &Row, nack: &[u8]) {
        let Some(error) = Json::parse(nack, DEPTH)
            .ok()
            .and_then(|nack| nack.get("error"))
        else {
            return;
        };
        let sidecar = &self.sidecar;
        let policies = std::sync::Arc::clone(&sidecar.live().policies);
        let (claimed, now) = (&row.claimed, sidecar.store.now());
        let mut done: Vec<&Key> = Vec::new();
        for limited in claimed.limited.iter().filter(|l| l.space == Space::Job) {
            if done.contains(&&limited.key) {
                continue;
            }
            done.push(&limited.key);
            let asked = policies.pause(&claimed.limited, &limited.key, error, now, &claimed.job);
            if let Some((pause, policy)) = asked {
                self.shut(claimed, &limited.key, pause, policy, now).await;
            }
        }
    }

    /// Shuts a key; one that is shut for longer stays so.
    async fn shut(&self, by: &Claimed, key: &Key, pause: Pause, policy: &str, now: Timestamp) {
        let sidecar = &self.sidecar;
        sidecar.metrics.shut(policy);
        let no_limits = Limits::default();
        let usage = sidecar.store.usage(Space::Job, key, &no_limits).await;
        let before = usage.ok().flatten().and_then(|usage| usage.shut_until);
        if before.is_some_and(|before| before >= pause.until) {
            return;
        }
        let change = Change::Shut {
            key: key.clone(),
            until: pause.until,
            at_least: true,
            probe: None,
        };
        let seconds = pause.until.since(now) as f64 / 1e6;
        let set = sidecar.store.set(change).await;
        if set.is_ok() {
            sidecar.tell_adjusted(by, key, pause);
        }
        match (set, before) {
            (Err(error), _) => tracing::warn!(%key, policy, %error, "a key could not be shut"),
            (Ok(_), None) => {
                tracing::info!(%key, policy, seconds, reason = pause.reason, "the service behind this key limits us: no starts until then");
            }
            (Ok(_), Some(_)) => {
                tracing::debug!(%key, policy, seconds, reason = pause.reason, "shut for longer");
            }
        }
    }
}
