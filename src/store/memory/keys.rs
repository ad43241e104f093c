//! The keys that are in use.

use hashbrown::DefaultHashBuilder;
use indexmap::{Equivalent, IndexMap};

use ojs_limit::{Key, KeyState, Space, Timestamp};

/// State by key. A key that is not here is one with nothing used; a key whose usage is all gone is
/// forgotten by and by.
#[derive(Debug, Default)]
pub(super) struct Keys {
    states: IndexMap<(Space, Key), KeyState, DefaultHashBuilder>,
    /// Where the sweep looks next.
    next: usize,
}

/// A key to look for.
#[derive(Hash)]
struct NamedKey<'k>(Space, &'k Key);

impl Equivalent<(Space, Key)> for NamedKey<'_> {
    fn equivalent(&self, (space, key): &(Space, Key)) -> bool {
        self.0 == *space && self.1 == key
    }
}

impl Keys {
    /// A copy of all keys in which no slot is taken.
    pub(super) fn emptied(&self) -> Keys {
        let states = self.states.iter();
        let states = states.map(|(name, state)| (name.clone(), state.without_slots()));
        Keys {
            states: states.collect(),
            next: 0,
        }
    }

    pub(super) fn get(&self, space: Space, key: &Key) -> Option<&KeyState> {
        self.states.get(&NamedKey(space, key))
    }

    /// The state of a key; one with nothing used is made if need be.
    pub(super) fn get_mut(&mut self, space: Space, key: &Key) -> &mut KeyState {
        self.states.entry((space, key.clone())).or_default()
    }

    /// How many keys are kept.
    pub(super) fn len(&self) -> usize {
        self.states.len()
    }

    /// Looks at a few keys, the next ones each time round, and forgets those with nothing used.
    pub(super) fn sweep(&mut self, few: usize, now: Timestamp) {
        for _ in 0..few {
            match self.states.get_index(self.next) {
                // The last one takes its place, and is the next.
                Some((_, state)) if state.idle(now) => {
                    self.states.swap_remove_index(self.next);
                }
                Some(_) => self.next += 1,
                None => self.next = 0,
            }
        }
    }
}
