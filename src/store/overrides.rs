//! Limits that were set over HTTP while the program runs: on a job key and on a policy they stand over the numbers
//! that jobs bring, on a queue they stand beside those of the file. Beside them lie settings that only
//! whoever made them can read, such as the bounds of a queue.
//!
//! They belong to the store, so that a shared one tells them to every sidecar, and are read without
//! waiting at each decision. Where none is set that is the look at a number. A reload of the file
//! does not touch them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::record::{self, Kept, Written};
use ojs_limit::{Key, Limits, Space, Timestamp};

/// More than this are not kept: keys come from requests.
pub const MAX: usize = 100_000;

/// More settings than this are not kept: their names come from requests.
pub const MAX_SETTINGS: usize = 20_000;

/// What limits are set for.
const SPACES: [Space; 3] = [Space::Job, Space::Queue, Space::Policy];

/// Limits that were set over HTTP for one key, one queue, or all keys of one policy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Override {
    /// The numbers. A part that is absent here leaves the job's or the file's as it is.
    pub limits: Limits,
    /// When it ends by itself; `None`: it stays until it is deleted.
    pub expires_at: Option<Timestamp>,
    /// Why it was set, for people.
    pub reason: Option<Arc<str>>,
    /// Who set it, for people.
    pub by: Option<Arc<str>>,
}

impl Override {
    /// `limits` with each part that is given here in place of theirs. May loosen.
    pub fn over(&self, limits: &Limits) -> Limits {
        Limits {
            concurrency: self.limits.concurrency.or(limits.concurrency),
            rates: match self.limits.rates.as_slice() {
                [] => limits.rates.clone(),
                given => given.to_vec(),
            },
            throttle: self.limits.throttle.or(limits.throttle),
        }
    }

    fn stands(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }
}

/// All that were set, by key.
#[derive(Debug)]
pub struct Overrides {
    /// How many are set in each space, so that none costs one look.
    counts: [AtomicUsize; SPACES.len()],
    /// None ends by itself before this.
    first_end: AtomicU64,
    /// Nothing panics between two steps in it that belong together.
    all: RwLock<All>,
    /// Goes up whenever a setting may have changed.
    edition: AtomicU64,
}

#[derive(Default, Debug)]
struct All {
    settings: HashMap<Arc<str>, Arc<str>>,
    limits: [HashMap<Key, Arc<Override>>; SPACES.len()],
}

/// The one of a space.
fn of<T>([jobs, queues, policies]: [T; SPACES.len()], space: Space) -> T {
    match space {
        Space::Job => jobs,
        Space::Queue => queues,
        Space::Policy => policies,
    }
}

impl All {
    fn of(&self, space: Space) -> &HashMap<Key, Arc<Override>> {
        of(self.limits.each_ref(), space)
    }

    fn of_mut(&mut self, space: Space) -> &mut HashMap<Key, Arc<Override>> {
        of(self.limits.each_mut(), space)
    }
}

impl Default for Overrides {
    fn default() -> Overrides {
        Overrides {
            counts: Default::default(),
            first_end: AtomicU64::new(u64::MAX),
            all: RwLock::default(),
            edition: AtomicU64::new(0),
        }
    }
}

impl Overrides {
    /// Whether any is set in the space.
    pub fn any(&self, space: Space) -> bool {
        of(self.counts.each_ref(), space).load(Ordering::Acquire) > 0
    }

    /// What is set for a key at `now`.
    pub fn get(&self, space: Space, key: &Key, now: Timestamp) -> Option<Arc<Override>> {
        self.named(space, key.as_str(), now)
    }

    /// What is set for all keys of a policy at `now`.
    pub fn of_policy(&self, policy: &str, now: Timestamp) -> Option<Arc<Override>> {
        self.named(Space::Policy, policy, now)
    }

    fn named(&self, space: Space, key: &str, now: Timestamp) -> Option<Arc<Override>> {
        if !self.any(space) {
            return None;
        }
        let found = self.all.read().of(space).get(key).cloned();
        found.filter(|found| found.stands(now))
    }

    /// How many are set.
    pub fn len(&self) -> usize {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Acquire)).sum()
    }

    /// What is paused at `now` by what is set for it.
    pub fn paused(&self, now: Timestamp) -> Vec<(Space, Key)> {
        if self.is_empty() {
            return Vec::new();
        }
        let all = self.all.read();
        let each = SPACES.into_iter().flat_map(|space| {
            let of_space = all.of(space).iter();
            of_space.map(move |(key, set)| (space, key, set))
        });
        let paused = each.filter(|(.., set)| set.limits.concurrency == Some(0) && set.stands(now));
        paused.map(|(space, key, _)| (space, key.clone())).collect()
    }

    /// Whether none is set.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The keys of a space for which one is set at `now`.
    pub fn keys(&self, space: Space, now: Timestamp) -> Vec<Key> {
        let all = self.all.read();
        let standing = all.of(space).iter().filter(|(_, set)| set.stands(now));
        standing.map(|(key, _)| key.clone()).collect()
    }

    /// Sets one, in place of an earlier one, or takes it away; says whether it was done: there may be
    /// too many, or none to take away.
    pub fn put(&self, space: Space, key: Key, set: Option<Override>) -> bool {
        let mut all = self.all.write();
        let full = all.limits.iter().map(HashMap::len).sum::<usize>() >= MAX;
        let of = all.of_mut(space);
        let done = match set {
            Some(_) if full && !of.contains_key(&key) => false,
            Some(set) => {
                let end = set.expires_at.unwrap_or(Timestamp::NEVER);
                self.first_end.fetch_min(end.0, Ordering::AcqRel);
                of.insert(key, Arc::new(set));
                true
            }
            None => of.remove(&key).is_some(),
        };
        self.count(&all);
        done
    }

    /// A setting, by its name.
    pub fn setting(&self, name: &str) -> Option<Arc<str>> {
        self.all.read().settings.get(name).cloned()
    }

    /// The settings whose names begin with `prefix`: what follows it, and the text of each.
    pub fn settings(&self, prefix: &str) -> Vec<(Box<str>, Arc<str>)> {
        let all = self.all.read();
        let named = all.settings.iter().filter_map(|(name, text)| {
            let rest = name.strip_prefix(prefix)?;
            Some((rest.into(), Arc::clone(text)))
        });
        named.collect()
    }

    /// How many settings there are.
    pub fn settings_len(&self) -> usize {
        self.all.read().settings.len()
    }

    /// Goes up whenever a setting may have changed.
    pub fn settings_edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// Makes a setting, in place of an earlier one, or takes it away; says whether it was done, as
    /// [`Overrides::put`].
    pub fn put_setting(&self, name: Arc<str>, text: Option<Arc<str>>) -> bool {
        let mut all = self.all.write();
        let full = all.settings.len() >= MAX_SETTINGS && !all.settings.contains_key(&name);
        let done = match text {
            Some(_) if full => false,
            Some(text) => {
                all.settings.insert(name, text);
                true
            }
            None => all.settings.remove(&name).is_some(),
        };
        if done {
            self.edition.fetch_add(1, Ordering::AcqRel);
        }
        done
    }

    /// Takes away those whose time is over by `now`, and says which they were.
    pub fn end_expired(&self, now: Timestamp) -> Vec<(Space, Key)> {
        if self.first_end.load(Ordering::Acquire) > now.0 {
            return Vec::new();
        }
        let mut all = self.all.write();
        let (mut ended, mut first_end) = (Vec::new(), Timestamp::NEVER);
        for space in SPACES {
            all.of_mut(space).retain(|key, set| {
                let stands = set.stands(now);
                match set.expires_at {
                    Some(at) if stands => first_end = first_end.min(at),
                    Some(_) => ended.push((space, key.clone())),
                    None => {}
                }
                stands
            });
        }
        self.first_end.store(first_end.0, Ordering::Release);
        self.count(&all);
        ended
    }

    /// These and no others are set from now on. Those whose time is over by `now` are kept elsewhere for a while:
    /// they do not come back, and stay only until [`Overrides::end_expired`] has said so.
    pub(super) fn replace(&self, kept: impl Iterator<Item = Kept>, now: Timestamp) {
        let mut all = self.all.write();
        let before = std::mem::take(&mut *all);
        let mut first_end = Timestamp::NEVER;
        for one in kept.take(MAX + MAX_SETTINGS) {
            match one {
                Kept::Limits(space, key, set) => {
                    if !set.stands(now) && !before.of(space).contains_key(&key) {
                        continue;
                    }
                    first_end = first_end.min(set.expires_at.unwrap_or(Timestamp::NEVER));
                    all.of_mut(space).insert(key, Arc::new(set));
                }
                Kept::Setting(name, text) => {
                    all.settings.insert(name, text);
                }
            }
        }
        if all.settings != before.settings {
            self.edition.fetch_add(1, Ordering::AcqRel);
        }
        self.first_end.store(first_end.0, Ordering::Release);
        self.count(&all);
    }

    /// All that stand at `now`, and all settings, as stores keep them.
    pub(super) fn standing(&self, now: Timestamp) -> Vec<Written> {
        let all = self.all.read();
        let of = |space| {
            let standing = all.of(space).iter().filter(|(_, set)| set.stands(now));
            standing.map(move |(key, set)| Written {
                name: record::name(space, key),
                text: record::set(set),
                ends: set.expires_at,
            })
        };
        let settings = all.settings.iter().map(|(name, text)| Written {
            name: record::setting(name),
            text: text.to_string(),
            ends: None,
        });
        SPACES.into_iter().flat_map(of).chain(settings).collect()
    }

    /// Takes all away.
    pub fn clear(&self) {
        let mut all = self.all.write();
        *all = All::default();
        self.edition.fetch_add(1, Ordering::AcqRel);
        self.count(&all);
    }

    fn count(&self, all: &All) {
        for (count, limits) in self.counts.iter().zip(&all.limits) {
            count.store(limits.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn slots(slots: u32, expires_at: Option<u64>) -> Override {
        Override {
            limits: Limits {
                concurrency: Some(slots),
                ..Limits::default()
            },
            expires_at: expires_at.map(Timestamp),
            ..Override::default()
        }
    }

    #[test]
    fn one_whose_time_is_over_ends_once() {
        let all = Overrides::default();
        let kept = || [Kept::Limits(Space::Job, key("a"), slots(1, Some(100)))].into_iter();
        all.replace(kept(), Timestamp(99));
        all.replace(kept(), Timestamp(100));
        let ended = all.end_expired(Timestamp(100));
        assert_eq!(ended, [(Space::Job, key("a"))], "nobody has said so yet");
        all.replace(kept(), Timestamp(100));
        assert!(all.is_empty());
    }

    #[test]
    fn settings_have_editions() {
        let all = Overrides::default();
        let text = |text: &str| Some(Arc::from(text));
        assert!(all.put_setting("bounds:a".into(), text("1")));
        assert!(all.put_setting("tenant:a".into(), text("2")));
        assert_eq!(all.setting("bounds:a").as_deref(), Some("1"));
        assert_eq!(all.settings("bounds:"), [("a".into(), Arc::from("1"))]);
        let edition = all.settings_edition();
        assert!(!all.put_setting("bounds:b".into(), None));
        let same = |name: &str, text: &str| Kept::Setting(name.into(), text.into());
        let now = Timestamp(1);
        all.replace(
            [same("tenant:a", "2"), same("bounds:a", "1")].into_iter(),
            now,
        );
        assert_eq!(all.settings_edition(), edition, "nothing is new");
        all.replace([same("tenant:a", "2")].into_iter(), now);
        assert!(all.settings_edition() > edition && all.setting("bounds:a").is_none());
        assert!(all.is_empty(), "they are no limits");
    }

    #[test]
    fn they_are_bounded() {
        let all = Overrides::default();
        for n in 0..MAX {
            assert!(all.put(Space::Job, key(&format!("k{n}")), Some(slots(1, None))));
        }
        assert!(!all.put(Space::Queue, key("more"), Some(slots(1, None))));
        assert!(
            all.put(Space::Job, key("k7"), Some(slots(2, None))),
            "one that is there may change"
        );
        assert_eq!(all.len(), MAX);
        all.clear();
        assert!(all.put(Space::Queue, key("more"), Some(slots(1, None))));
    }
}
