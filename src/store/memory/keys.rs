//! The keys that are in use.

use smallvec::SmallVec;

use crate::limit::{Key, KeyState, Limited, Refusal, Shut, Space, Timestamp, Undo, each_key};

use super::slab::{Id, Slab};
use crate::store::step::{SameKey, same};

/// State by key. A key that is not here is one with nothing used; a key whose usage is all gone is
/// forgotten by and by.
#[derive(Debug)]
pub(super) struct Keys {
    slab: Slab<Named>,
    /// The number of the key that the sweep looks at next.
    next: Id,
}

#[derive(Debug)]
struct Named {
    key: Key,
    space: Space,
    state: KeyState,
}

/// What a start took, by key. Most jobs are limited by one.
pub(super) type AllTaken = SmallVec<[Taken; 1]>;

/// One key's part of a start: enough to end it or to undo it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    id: Id,
    /// The first of the job's limits that names the key.
    first: usize,
    /// `None`: the start was not counted.
    undo: Option<Undo>,
}

impl Keys {
    pub(super) fn new() -> Keys {
        Keys {
            slab: Slab::new(),
            next: 0,
        }
    }

    /// The same without slots.
    pub(super) fn emptied(&self) -> Keys {
        let mut keys = Keys::new();
        for named in (0..self.slab.end()).filter_map(|id| self.slab.get(id)) {
            if let Some(state) = keys.state(named.space, &named.key) {
                *state = named.state.without_slots();
            }
        }
        keys
    }

    /// Asks one key with the numbers that come with it.
    pub(super) fn ask(&self, limited: &Limited, now: Timestamp) -> Result<Timestamp, Refusal> {
        match self.get(limited.space, &limited.key) {
            Some(state) => state.ask(&limited.limits, now),
            None => KeyState::default().ask(&limited.limits, now),
        }
    }

    /// Takes from every key, from each once.
    pub(super) fn take(&mut self, limited: &[Limited], at: Timestamp, now: Timestamp) -> AllTaken {
        self.each(limited, |state, limits| Some(state.take(limits, at, now)))
    }

    /// Takes a slot of every key and counts no start.
    pub(super) fn occupy(&mut self, limited: &[Limited]) -> AllTaken {
        self.each(limited, |state, _| {
            state.occupy();
            None
        })
    }

    /// Ends the slots of a start that was taken with these limits.
    pub(super) fn end(&mut self, limited: &[Limited], taken: &[Taken], now: Timestamp) {
        for taken in taken {
            let Some(named) = self.slab.get_mut(taken.id) else {
                continue;
            };
            match (&taken.undo, limited.get(taken.first)) {
                (Some(undo), Some(one)) => named.state.completed(same(limited, one), undo, now),
                _ => named.state.end(),
            }
        }
    }

    /// Undoes a start that was taken with these limits.
    pub(super) fn back(&mut self, limited: &[Limited], taken: &[Taken]) {
        for taken in taken {
            let Some(named) = self.slab.get_mut(taken.id) else {
                continue;
            };
            match (&taken.undo, limited.get(taken.first)) {
                (Some(undo), Some(one)) => named.state.back(same(limited, one), undo),
                _ => named.state.end(),
            }
        }
    }

    /// Shuts a job key, or opens it where the time is over; says whether that changed anything.
    pub(super) fn shut(&mut self, key: &Key, shut: Shut, at_least: bool) -> bool {
        let unused = KeyState::default();
        let known = self.get(Space::Job, key).unwrap_or(&unused);
        if known.stays(&shut, at_least) {
            return false;
        }
        if let Some(state) = self.state(Space::Job, key) {
            state.shut(Some(shut));
        }
        true
    }

    /// Opens a job key that was shut before `started`; says whether it was.
    pub(super) fn open(&mut self, key: &Key, started: Timestamp, now: Timestamp) -> bool {
        let known = self.get(Space::Job, key);
        if !known.is_some_and(|known| known.was_shut(started, now)) {
            return false;
        }
        if let Some(state) = self.state(Space::Job, key) {
            state.shut(None);
        }
        true
    }

    /// Forgets what a job key has used but its slots; says whether it had used anything.
    pub(super) fn clear(&mut self, key: &Key, now: Timestamp) -> bool {
        let Some(id) = self.find(self.hash(Space::Job, key), Space::Job, key) else {
            return false;
        };
        let Some(named) = self.slab.get_mut(id) else {
            return false;
        };
        let used = !named.state.idle(now);
        named.state.clear();
        used
    }

    pub(super) fn get(&self, space: Space, key: &Key) -> Option<&KeyState> {
        let id = self.find(self.hash(space, key), space, key)?;
        self.slab.get(id).map(|named| &named.state)
    }

    /// How many keys are kept.
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Looks at a few keys, the next ones each time round, and forgets those with nothing used.
    pub(super) fn sweep(&mut self, few: usize, now: Timestamp) {
        for _ in 0..few {
            let id = self.next;
            self.next = if id + 1 < self.slab.end() { id + 1 } else { 0 };
            if let Some(named) = self.slab.get(id).filter(|named| named.state.idle(now)) {
                self.slab.remove(self.hash(named.space, &named.key), id);
            }
        }
    }

    /// Does one thing to each different key, with all the limits that the job brings to it.
    fn each<'a>(
        &mut self,
        limited: &'a [Limited],
        mut step: impl FnMut(&mut KeyState, SameKey<'a>) -> Option<Undo>,
    ) -> AllTaken {
        let mut taken = AllTaken::with_capacity(limited.len());
        for (first, one) in each_key(limited) {
            let id = self.id(one.space, &one.key);
            if let Some(named) = self.slab.get_mut(id) {
                let undo = step(&mut named.state, same(limited, one));
                taken.push(Taken { id, first, undo });
            }
        }
        taken
    }

    pub(super) fn state(&mut self, space: Space, key: &Key) -> Option<&mut KeyState> {
        let id = self.id(space, key);
        self.slab.get_mut(id).map(|named| &mut named.state)
    }

    /// The key's number; it is made if need be.
    fn id(&mut self, space: Space, key: &Key) -> Id {
        let hash = self.hash(space, key);
        self.find(hash, space, key).unwrap_or_else(|| {
            let named = Named {
                key: key.clone(),
                space,
                state: KeyState::default(),
            };
            self.slab.insert(hash, named)
        })
    }

    fn find(&self, hash: u32, space: Space, key: &Key) -> Option<Id> {
        self.slab
            .find(hash, |named| named.space == space && named.key == *key)
    }

    fn hash(&self, space: Space, key: &Key) -> u32 {
        self.slab.hash((space, key.as_str()))
    }
}
