//! Things that are found by a text and then named by a small number.

use std::hash::Hash;

use hashbrown::{DefaultHashBuilder, HashTable};

/// A thing's number: stable as long as the thing is there, given again later.
pub(super) type Id = u32;

/// Things in one vector, and a table of numbers that finds them by hash.
///
/// The table keeps half of each hash, so that it grows without looking at the things: with a
/// million of them that would hold up every caller for a good while.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: HashTable<HashedId>,
    things: Vec<Option<T>>,
    free: Vec<Id>,
    hasher: DefaultHashBuilder,
}

#[derive(Clone, Copy, Debug)]
struct HashedId {
    hash: u32,
    id: Id,
}

impl HashedId {
    /// A hash for the table, which takes some bits from each end.
    fn spread(hash: u32) -> u64 {
        u64::from(hash) << 32 | u64::from(hash)
    }
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab {
            places: HashTable::new(),
            things: Vec::new(),
            free: Vec::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// The hash under which a thing is kept.
    pub(super) fn hash(&self, name: impl Hash) -> u32 {
        use std::hash::BuildHasher;
        // The upper half is as good as the lower.
        (self.hasher.hash_one(name) >> 32) as u32
    }

    /// The thing with this hash that `is` the one.
    pub(super) fn find(&self, hash: u32, is: impl Fn(&T) -> bool) -> Option<Id> {
        let found = self.places.find(HashedId::spread(hash), |place| {
            place.hash == hash && self.get(place.id).is_some_and(&is)
        });
        found.map(|place| place.id)
    }

    /// Keeps a thing that is not there yet.
    pub(super) fn insert(&mut self, hash: u32, thing: T) -> Id {
        let id = self.free.pop().unwrap_or_else(|| {
            self.things.push(None);
            // Four billion things of a hundred bytes do not fit into memory.
            (self.things.len() - 1) as Id
        });
        if let Some(place) = self.things.get_mut(id as usize) {
            *place = Some(thing);
        }
        self.places
            .insert_unique(HashedId::spread(hash), HashedId { hash, id }, |place| {
                HashedId::spread(place.hash)
            });
        id
    }

    /// Removes a thing that is kept under `hash`.
    pub(super) fn remove(&mut self, hash: u32, id: Id) -> Option<T> {
        let place = self
            .places
            .find_entry(HashedId::spread(hash), |place| place.id == id)
            .ok()?;
        place.remove();
        self.free.push(id);
        self.things.get_mut(id as usize)?.take()
    }

    pub(super) fn get(&self, id: Id) -> Option<&T> {
        self.things.get(id as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.things.get_mut(id as usize)?.as_mut()
    }

    /// How many things there are.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// One more than the highest number given.
    pub(super) fn end(&self) -> Id {
        self.things.len() as Id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_used_again() {
        let mut slab = Slab::new();
        let ids: Vec<Id> = (0..1000)
            .map(|n: u32| slab.insert(slab.hash(n), n))
            .collect();
        for (n, id) in (0..1000).zip(&ids) {
            assert_eq!(slab.find(slab.hash(n), |thing| *thing == n), Some(*id));
        }
        assert_eq!(slab.remove(slab.hash(7), ids[7]), Some(7));
        assert_eq!(slab.remove(slab.hash(7), ids[7]), None);
        assert_eq!(slab.find(slab.hash(7), |thing| *thing == 7), None);
        assert_eq!(slab.insert(slab.hash(5000), 5000), ids[7]);
        assert_eq!((slab.len(), slab.end()), (1000, 1000));
    }
}
