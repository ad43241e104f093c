//! The keys that are in use.

use super::slab::{Id, Slab};
use crate::limit::{Key, KeyState, Space, Timestamp};

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
            let id = keys.id(named.space, &named.key);
            if let Some(state) = keys.get_mut(id) {
                *state = named.state.without_slots();
            }
        }
        keys
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

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut KeyState> {
        self.slab.get_mut(id).map(|named| &mut named.state)
    }

    /// The key's number; it is made if need be.
    pub(super) fn id(&mut self, space: Space, key: &Key) -> Id {
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
