//! The job keys that were named so far, so that they can be listed and shown.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use super::overrides::strictest;
use crate::limit::{Key, Limited, Limits, Space};
use crate::policy::BROUGHT;
use crate::proxy::Sidecar;

/// So many of the keys that were named last are listed, and at most twice as many; the others are limited
/// all the same.
const LISTED: usize = 100_000;

/// The job keys that were named so far, with the numbers they were last named with.
#[derive(Default, Debug)]
pub(in crate::proxy) struct Named(Mutex<Ages>);

/// The young ones become the old ones when they are many, and the old ones are forgotten: those that were
/// not named for longest, without an order to keep.
#[derive(Default, Debug)]
struct Ages {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Ages {
    /// The entry of a key that is named now.
    fn named(&mut self, key: &Key) -> &mut Entry {
        if !self.young.contains_key(key) {
            let entry = self.old.remove(key).unwrap_or_default();
            if self.young.len() >= LISTED {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert(key.clone(), entry);
        }
        self.young.entry_ref(key).or_default()
    }
}

#[derive(Default, Debug)]
struct Entry {
    numbers: Numbers,
    /// Enqueued through us and not yet claimed.
    pending: usize,
}

/// The numbers of the job that named a key last.
#[derive(Clone, Default, Debug)]
pub(super) struct Numbers {
    /// Those of the file's policies.
    pub(super) file: Limits,
    /// Those that a job brought.
    pub(super) brought: Limits,
}

impl Numbers {
    /// Takes over what limits one job under a key.
    fn follow<'a>(&mut self, of_key: impl Iterator<Item = &'a Limited> + Clone) {
        let is_brought = |one: &&Limited| *one.policy == *BROUGHT;
        let numbers = |one: &'a Limited| &one.limits;
        keep(
            &mut self.file,
            of_key.clone().filter(|one| !is_brought(one)).map(numbers),
        );
        keep(&mut self.brought, of_key.filter(is_brought).map(numbers));
    }
}

/// Puts the strictest of all in the place of what is there. Who joins a key without numbers changes none.
fn keep<'a>(kept: &mut Limits, all: impl Iterator<Item = &'a Limits>) {
    let mut all = all.filter(|limits| **limits != Limits::default());
    let Some(first) = all.next() else { return };
    match all.next() {
        None if kept == first => {}
        None => *kept = first.clone(),
        Some(second) => {
            let both = strictest(first.clone(), second.clone());
            *kept = all.cloned().fold(both, strictest);
        }
    }
}

impl Named {
    /// Each of these limits one job.
    fn note<'a>(
        &self,
        jobs: impl Iterator<Item = &'a [Limited]>,
        pending: impl Fn(usize) -> usize,
    ) {
        let mut named = self.open();
        for limited in jobs {
            for (nth, one) in limited.iter().enumerate() {
                let same = |other: &&Limited| other.space == Space::Job && other.key == one.key;
                if !same(&one) || limited.iter().take(nth).any(|other| same(&other)) {
                    continue;
                }
                let entry = named.named(&one.key);
                entry.pending = pending(entry.pending);
                entry.numbers.follow(limited.iter().skip(nth).filter(same));
            }
        }
    }

    /// The key is listed from now on.
    pub(super) fn know(&self, key: &Key) {
        self.open().named(key);
    }

    pub(super) fn get(&self, key: &Key) -> Option<(Numbers, usize)> {
        let named = self.open();
        let entry = named.young.get(key).or_else(|| named.old.get(key))?;
        Some((entry.numbers.clone(), entry.pending))
    }

    pub(in crate::proxy) fn keys(&self) -> Vec<Key> {
        let named = self.open();
        let keys = named.young.keys().chain(named.old.keys());
        keys.cloned().collect()
    }

    pub(in crate::proxy) fn clear(&self) {
        *self.open() = Ages::default();
    }

    // Nothing in here panics between two steps that belong together.
    fn open(&self) -> MutexGuard<'_, Ages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sidecar {
    /// Jobs with limits of their own were stored.
    pub(in crate::proxy) fn enqueued(&self, jobs: &[Vec<Limited>]) {
        let limited = jobs.iter().map(Vec::as_slice);
        self.named.note(limited, |pending| pending + 1);
    }

    /// A job is limited by these from now on.
    pub(in crate::proxy) fn renamed(&self, limited: &[Limited]) {
        self.named.note(std::iter::once(limited), |pending| pending);
    }

    /// Jobs were claimed; this is what limits each.
    pub(in crate::proxy) fn noted<'a>(&self, jobs: impl Iterator<Item = &'a [Limited]>) {
        let claimed = |pending: usize| pending.saturating_sub(1);
        self.named.note(jobs, claimed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::limit::OnLimit;

    fn limited(n: usize) -> Limited {
        Limited {
            space: Space::Job,
            key: Key::new(&format!("k{n}")).unwrap(),
            limits: Limits::default(),
            on_limit: OnLimit::Wait,
            policy: Arc::from("job"),
        }
    }

    #[test]
    fn keys_that_were_not_named_for_longest_make_place() {
        let named = Named::default();
        let note = |n: usize| named.note(std::iter::once(&[limited(n)][..]), |pending| pending + 1);
        let pending = |n: usize| named.get(&limited(n).key).map(|(_, pending)| pending);
        for n in 0..=LISTED {
            note(n);
        }
        assert_eq!(pending(LISTED), Some(1), "it is listed");
        assert_eq!(named.keys().len(), LISTED + 1);
        note(0);
        for n in LISTED + 1..2 * LISTED {
            note(n);
        }
        assert_eq!(pending(0), Some(2), "named again");
        assert_eq!(pending(1), None);
        assert!(named.keys().len() <= 2 * LISTED);
    }
}
