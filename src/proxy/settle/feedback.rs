//! Dynamic limits (rate-limiting text, section 9): a nack that says that the service behind a job
//! limits us shuts the keys of that job until then, for longer each time where there is backoff. A job
//! that succeeds ends that.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::header::HeaderMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::json::Json;
use crate::limit::{Key, Limited, Limits, Space, Timestamp, each_key};
use crate::policy::{Pause, tells_of_limits};
use crate::proxy::{Proxy, Sidecar, tell};
use crate::store::{Change, Claimed, LedgerExt, Row};
use crate::wire::ojs::DEPTH;

/// The most keys whose refusals are counted.
const COUNTED: usize = 10_000;
/// How many lines a policy may have in the log within a minute.
const LINES: u64 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// Lines of the log about keys. Callers make as many keys as they like, so a policy has few lines a minute.
#[derive(Default, Debug)]
pub(super) struct KeyLines(Mutex<HashMap<Arc<str>, LinesOfMinute>>);

#[derive(Debug)]
struct LinesOfMinute {
    since: Instant,
    said: u64,
    /// How many keys had no line.
    more: u64,
}

impl KeyLines {
    /// Whether the policy may have another line; then how many of its keys had none since its last one.
    fn next(&self, policy: &Arc<str>) -> Option<u64> {
        let mut minutes = self.0.lock();
        let minute = minutes.entry(Arc::clone(policy)).or_insert(LinesOfMinute {
            since: Instant::now(),
            said: 0,
            more: 0,
        });
        if minute.since.elapsed() >= MINUTE {
            (minute.since, minute.said) = (Instant::now(), 0);
        }
        if minute.said == LINES {
            minute.more += 1;
            return None;
        }
        minute.said += 1;
        Some(std::mem::take(&mut minute.more))
    }
}

/// How often in a row keys were refused by the services behind them, as far as this sidecar saw.
#[derive(Default, Debug)]
pub(super) struct Refusals {
    by_key: Mutex<HashMap<Key, RefusalCount>>,
}

#[derive(Clone, Copy, Debug)]
struct RefusalCount {
    times: u32,
    last: Timestamp,
    /// Forgotten then.
    until: Timestamp,
}

impl Refusals {
    /// The number of the refusal of a job that `started` then. Jobs that were out together when the key
    /// was refused are one refusal.
    fn times(&self, key: &Key, started: Option<Timestamp>, now: Timestamp) -> u32 {
        let known = self.by_key.lock().get(key).copied();
        match known.filter(|known| known.until > now) {
            None => 1,
            Some(known) if started.is_some_and(|started| started > known.last) => {
                known.times.saturating_add(1)
            }
            Some(known) => known.times,
        }
    }

    /// Counts it.
    fn refused(&self, key: &Key, times: u32, now: Timestamp, until: Timestamp) {
        let mut keys = self.by_key.lock();
        let known = keys
            .get(key)
            .filter(|known| known.times == times && known.until > now);
        // The first of those that were out together says since when.
        let last = known.map_or(now, |known| known.last);
        if keys.len() >= COUNTED && !keys.contains_key(key) {
            keys.retain(|_, known| known.until > now);
        }
        if keys.len() < COUNTED || keys.contains_key(key) {
            keys.insert(key.clone(), RefusalCount { times, last, until });
        }
    }

    /// A job of the key that started then has succeeded: it starts anew, unless the job was out already
    /// when the key was refused.
    fn succeeded(&self, key: &Key, started: Timestamp) {
        let mut keys = self.by_key.lock();
        if keys.get(key).is_some_and(|known| started > known.last) {
            keys.remove(key);
        }
    }

    fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty()
    }

    /// Forgets one key.
    pub(super) fn forget(&self, key: &Key) {
        self.by_key.lock().remove(key);
    }
}

/// The backend has accepted this nack of a job that was out under `claimed`, since `started` if that is known. Before
/// its slots end: what they would let start at once is what the service has refused.
pub(super) async fn heed(
    proxy: &Proxy,
    claimed: &Claimed,
    started: Option<Timestamp>,
    nack: &[u8],
) {
    let Some(error) = Json::parse(nack, DEPTH)
        .ok()
        .and_then(|nack| nack.get("error"))
    else {
        return;
    };
    let sidecar = &proxy.sidecar;
    let policies = Arc::clone(&sidecar.live().policies);
    let now = sidecar.store.now();
    for key in job_keys(&claimed.limited) {
        let times = sidecar.settle.refusals.times(key, started, now);
        let job = (&*claimed.job, times);
        let asked = policies.pause(&claimed.limited, key, error, now, job);
        if let Some((pause, policy)) = asked {
            if let Some(until) = pause.counts_until {
                sidecar.settle.refusals.refused(key, times, now, until);
            }
            shut(sidecar, claimed, key, pause, policy, now).await;
        }
    }
}

/// What the service says in its reply to a call that started at `started`. The caller gets the reply afterwards.
pub(in crate::proxy) async fn heed_reply(
    sidecar: &Sidecar,
    call: &Claimed,
    started: Timestamp,
    (status, headers): (StatusCode, &HeaderMap),
) {
    let refusals = &sidecar.settle.refusals;
    // Most answers tell of no limits, and one look at each name costs less than a search for every form.
    let is_plain = || !headers.keys().any(|name| tells_of_limits(name.as_str()));
    if status.is_success() && refusals.is_empty() && is_plain() {
        return;
    }
    let (policies, now) = (Arc::clone(&sidecar.live().policies), sidecar.store.now());
    for key in job_keys(&call.limited) {
        let times = refusals.times(key, Some(started), now);
        let asked = policies.pause_by(&call.limited, key, |of| {
            let lines = text_lines(headers);
            let call = (&*call.job, times);
            of.pause_by_reply(status.as_u16(), lines, key.as_str(), now, call)
        });
        let Some((pause, policy)) = asked else {
            if status.is_success() {
                refusals.succeeded(key, started);
            }
            continue;
        };
        if let Some(until) = pause.counts_until {
            refusals.refused(key, times, now, until);
        }
        shut(sidecar, call, key, pause, policy, now).await;
    }
}

/// The lines of a head that are text.
pub(in crate::proxy) fn text_lines(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lines = headers.iter();
    lines.filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
}

/// The backend has accepted the ACK of a job that was out under `row`.
pub(super) fn succeeded(proxy: &Proxy, row: &Row) {
    let refusals = &proxy.sidecar.settle.refusals;
    let Some(started) = row.started.filter(|_| !refusals.is_empty()) else {
        return;
    };
    for key in job_keys(&row.claimed.limited) {
        refusals.succeeded(key, started);
    }
}

/// Shuts a key; one that is shut for longer stays so, whoever else says so at the same time.
async fn shut(
    sidecar: &Sidecar,
    by: &Claimed,
    key: &Key,
    pause: Pause,
    policy: &Arc<str>,
    now: Timestamp,
) {
    sidecar.metrics.shut(policy);
    let no_limits = Limits::default();
    let usage = sidecar.store.usage(Space::Job, key, &no_limits).await;
    let before = usage.ok().flatten().and_then(|usage| usage.shut_until);
    let change = Change::Shut {
        key: key.clone(),
        until: pause.until,
        at_least: true,
    };
    let seconds = pause.until.since(now) as f64 / 1e6;
    let set = sidecar.store.set(change).await;
    if let Ok(true) = set {
        tell::adjusted(sidecar, by, key, pause);
    }
    match (set, before) {
        (Err(error), _) => {
            if let Some(more) = sidecar.settle.not_shut.next(policy) {
                tracing::warn!(id = %"key_not_shut", %key, %policy, %error, more, "a key could not be shut");
            }
        }
        (Ok(false), _) => {}
        (Ok(true), None) => {
            if let Some(more) = sidecar.settle.shut.next(policy) {
                tracing::info!(%key, %policy, seconds, reason = pause.reason, more, "the service behind this key limits us: no starts until then");
            }
        }
        (Ok(true), Some(_)) => {
            tracing::debug!(%key, %policy, seconds, reason = pause.reason, "shut for longer");
        }
    }
}

/// The job keys among a job's limits, each once.
fn job_keys(limited: &[Limited]) -> impl Iterator<Item = &Key> {
    let of_jobs = each_key(limited).filter(|(_, one)| one.space == Space::Job);
    of_jobs.map(|(_, one)| &one.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(1_800_000_000_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn refusals_in_a_row_are_counted_until_one_job_succeeds() {
        let (refusals, key) = (Refusals::default(), Key::new("k").unwrap());
        let refuse = |started: u64, now: u64| {
            let times = refusals.times(&key, Some(at(started)), at(now));
            refusals.refused(&key, times, at(now), at(now + 100));
            times
        };
        assert_eq!(refuse(0, 10), 1);
        assert_eq!((refuse(1, 11), refuse(2, 12)), (1, 1), "out together");
        assert_eq!(
            refuse(11, 20),
            2,
            "started after the first of them was refused"
        );
        assert_eq!(refuse(30, 31), 3);
        refusals.succeeded(&key, at(31));
        assert_eq!(
            refuse(40, 41),
            4,
            "the success was of a job that was out already"
        );
        refusals.succeeded(&key, at(42));
        assert_eq!(refuse(50, 51), 1);
        assert_eq!(refuse(52, 53), 2);
        assert_eq!(refuse(200, 201), 1, "long ago");
        assert_eq!(refuse(395, 400), 1, "long ago, with as many before it");
        assert_eq!(refuse(396, 401), 1, "out together");
        refusals.forget(&key);
        assert_eq!(refuse(402, 403), 1);
        assert_eq!(
            refusals.times(&key, None, at(404)),
            1,
            "no one knows when it started"
        );
    }

    #[test]
    fn what_is_counted_is_bounded() {
        let refusals = Refusals::default();
        let key = |n: usize| Key::new(&format!("k{n}")).unwrap();
        for n in 0..COUNTED {
            refusals.refused(&key(n), 1, at(0), at(if n % 2 == 0 { 10 } else { 100 }));
        }
        refusals.refused(&key(COUNTED), 1, at(1), at(100));
        assert_eq!(refusals.by_key.lock().len(), COUNTED, "full");
        refusals.refused(&key(COUNTED), 1, at(11), at(100));
        assert_eq!(
            refusals.by_key.lock().len(),
            COUNTED / 2 + 1,
            "what is over makes place"
        );
    }
}
