//! Data that began anew: what a sidecar knows of what was there, beside its rows, and what it says of it.
//!
//! Limits and settings made over HTTP are read by every sidecar, so each knows them all. Shut keys are
//! known to the one that shut them.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::record::Written;
use super::{Change, Overrides};
use crate::limit::{Key, Shut, Timestamp};

/// More shut keys than this are not remembered.
const MOST_SHUT: usize = 10_000;
/// So many names are said at most.
const MOST_NAMES: usize = 20;

/// Which keys were shut through this sidecar, and how often the store had other data than it knew.
#[derive(Default, Debug)]
pub(super) struct Anew {
    shut: Mutex<HashMap<Key, Shut>>,
    times: AtomicU64,
}

impl Anew {
    /// Notes what a change made of a shut key. It was asked for at `now`.
    pub(super) fn noted(&self, change: &Change, done: bool, now: Timestamp) {
        match change {
            Change::Shut { key, until, .. } if *until <= now => drop(self.shut().remove(key)),
            Change::Shut {
                key, until, probe, ..
            } => {
                let mut all = self.shut();
                if all.len() >= MOST_SHUT {
                    all.retain(|_, shut| shut.until > now);
                }
                if done && all.len() < MOST_SHUT {
                    all.insert(key.clone(), Shut::new(now, *until, *probe));
                }
            }
            Change::Unused { key } => drop(self.shut().remove(key)),
            Change::Open { key, .. } if done => drop(self.shut().remove(key)),
            Change::Clear => self.shut().clear(),
            _ => {}
        }
    }

    /// What shuts the keys again that are shut at `now`.
    pub(super) fn shut_again(&self, now: Timestamp) -> Vec<Change> {
        let all = self.shut();
        let standing = all.iter().filter(|(_, shut)| shut.until > now);
        let again = standing.map(|(key, shut)| Change::Shut {
            key: key.clone(),
            until: shut.until,
            at_least: true,
            probe: shut.probe,
        });
        again.collect()
    }

    /// Says that the store has other data than this sidecar `knew`. It had `put_back` so many of them to put
    /// back, and now has what is `there`.
    pub(super) fn tell(&self, knew: &[Written], put_back: u64, there: &Overrides, now: Timestamp) {
        self.times.fetch_add(1, Ordering::Relaxed);
        let there: HashSet<String> = (there.standing(now).into_iter())
            .map(|one| one.name)
            .collect();
        let stands = |one: &&Written| one.ends.is_none_or(|at| at > now);
        let missing = knew.iter().filter(stands);
        let missing = missing.filter(|one| !there.contains(&one.name));
        let missing: Vec<&str> = missing.map(|one| &*one.name).collect();
        if missing.is_empty() {
            tracing::error!(
                set_over_http = knew.len(),
                put_back,
                "the store came back empty, or older than it was: its windows and spacing are empty, or as old as \
                 its data, and what was set over HTTP is there again"
            );
        } else {
            let names = missing.get(..MOST_NAMES).unwrap_or(&missing).join(" ");
            tracing::error!(
                set_over_http = knew.len(),
                forgotten = missing.len(),
                names,
                "the store came back empty while this sidecar was away: limits and settings made over HTTP are not \
                 set any more; set them again if they are needed"
            );
        }
    }

    /// How often the store had other data than this sidecar knew.
    pub(super) fn times(&self) -> u64 {
        self.times.load(Ordering::Relaxed)
    }

    // Nothing in here panics between two steps that belong together.
    fn shut(&self) -> MutexGuard<'_, HashMap<Key, Shut>> {
        self.shut.lock()
    }
}
