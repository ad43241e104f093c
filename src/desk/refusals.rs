//! How often the services behind keys refused, and how much the log says of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::limit::{Key, Timestamp};

/// The most keys whose refusals are counted.
const COUNTED: usize = 10_000;
/// How many lines a policy may have in the log within a minute.
const LINES: u64 = 10;
const MINUTE: Duration = Duration::from_secs(60);

/// Lines of the log about keys. Callers make as many keys as they like, so a policy has few lines a minute.
#[derive(Default, Debug)]
pub(crate) struct KeyLines(Mutex<HashMap<Arc<str>, LinesOfMinute>>);

#[derive(Debug)]
struct LinesOfMinute {
    since: Instant,
    said: u64,
    /// How many keys had no line.
    more: u64,
}

impl KeyLines {
    /// Whether the policy may have another line; then how many of its keys had none since its last one.
    pub(crate) fn next(&self, policy: &Arc<str>) -> Option<u64> {
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
pub(crate) struct Refusals {
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
    pub(crate) fn times(&self, key: &Key, started: Option<Timestamp>, now: Timestamp) -> u32 {
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
    pub(crate) fn refused(&self, key: &Key, times: u32, now: Timestamp, until: Timestamp) {
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
    pub(crate) fn succeeded(&self, key: &Key, started: Timestamp) {
        let mut keys = self.by_key.lock();
        if keys.get(key).is_some_and(|known| started > known.last) {
            keys.remove(key);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty()
    }

    /// Forgets one key.
    pub(crate) fn forget(&self, key: &Key) {
        self.by_key.lock().remove(key);
    }
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
