//! How much each group of a key was served, so that the one that had least by its weight goes first.

use std::sync::Arc;

use super::packed::{PackedReader, Writer};
use super::{Cost, Share, Timestamp};

/// The most groups of a key. Those beyond share one place.
const MOST: usize = 1_000;
/// The place of those beyond.
const OTHER: &str = "_other";
/// What a cost of 1 adds to a group of weight 1.
const UNIT: u64 = 1_000;
/// How long they are kept after the last of them was asked for, in microseconds.
const KEPT: u64 = 60_000_000;
/// Who was not asked for in so long was away, and is owed nothing for that, in microseconds. Workers poll every second
/// or two, at a sidecar of their own.
const AWAY: u64 = 2_000_000;
/// From there on all begin anew, so that numbers stay exact in every store.
const ANEW: u64 = 1 << 52;

/// What the groups of one key were served: start-time fair queueing. A group that is not known stands where the last
/// turn was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// What the group whose turn was last had been served before that start.
    turn: u64,
    /// When one of them was asked for last.
    asked: Timestamp,
    /// In the order of their names.
    served: Vec<(Arc<str>, Place)>,
}

/// Where one group stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    served: u64,
    /// When it was asked for last.
    asked: Timestamp,
}

impl Shares {
    /// What the group was served.
    pub fn of(&self, group: &str) -> u64 {
        self.find(group).map_or(self.turn, |place| place.served)
    }

    fn find(&self, group: &str) -> Option<&Place> {
        let at = self.place(group).ok()?;
        self.served.get(at).map(|(_, place)| place)
    }

    /// The turn that was last.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes what a store said of a group.
    pub fn note(&mut self, group: &Arc<str>, served: u64, turn: u64) {
        self.turn = turn;
        self.make_room(group);
        let asked = self.asked;
        self.put(group, Place { served, asked });
    }

    /// Whether nobody asks for them any more.
    pub(super) fn idle(&self, now: Timestamp) -> bool {
        self.asked.plus(KEPT) <= now
    }

    /// The group waits, and what it is owed from now on stands. One that `saves_nothing`, or was away, goes on from the
    /// last turn.
    pub(crate) fn wait(&mut self, group: &Arc<str>, saves_nothing: bool, now: Timestamp) {
        if self.idle(now) {
            *self = Shares::default();
        }
        self.asked = now;
        self.make_room(group);
        let turn = self.turn;
        let here = |place: &&Place| !saves_nothing && place.asked.plus(AWAY) > now;
        let served = match self.find(group).filter(here) {
            Some(place) => place.served,
            None => self.of(group).max(turn),
        };
        let asked = now;
        self.put(group, Place { served, asked });
    }

    /// It was the group's turn, for a start of this cost.
    pub(crate) fn start(&mut self, share: &Share, cost: &Cost) {
        let (served, asked) = (self.of(&share.group), self.asked);
        let after = match served > ANEW {
            true => {
                (self.turn, self.served) = (0, Vec::new());
                0
            }
            false => {
                self.turn = served;
                served.saturating_add(share.price(cost))
            }
        };
        let place = Place {
            served: after,
            asked,
        };
        self.put(&share.group, place);
    }

    /// Where the group stands, or those beyond the most.
    fn place(&self, group: &str) -> Result<usize, usize> {
        let find = |name: &str| {
            self.served
                .binary_search_by(|(known, _)| (**known).cmp(name))
        };
        match find(group) {
            Err(_) if self.served.len() >= MOST => find(OTHER),
            place => place,
        }
    }

    /// Where there are too many, those go that would stand where they do if they were not known.
    fn make_room(&mut self, group: &str) {
        let is_known = |(known, _): &(Arc<str>, Place)| **known == *group;
        if self.served.len() >= MOST && !self.served.iter().any(is_known) {
            let turn = self.turn;
            self.served.retain(|(_, place)| place.served > turn);
        }
    }

    fn put(&mut self, group: &Arc<str>, place: Place) {
        match self.place(group) {
            Ok(at) => {
                if let Some((_, known)) = self.served.get_mut(at) {
                    *known = place;
                }
            }
            Err(at) if self.served.len() < MOST => {
                self.served.insert(at, (Arc::clone(group), place));
            }
            Err(at) => self.served.insert(at, (Arc::from(OTHER), place)),
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.long(self.turn);
        to.time(self.asked);
        // At most MOST and the others.
        to.u16(u16::try_from(self.served.len()).unwrap_or(u16::MAX));
        for (group, place) in &self.served {
            to.text(group);
            to.long(place.served);
            to.time(place.asked);
        }
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Shares> {
        let (turn, asked, count) = (from.long()?, from.time()?, from.u16()?);
        let place = |from: &mut PackedReader<'_>| {
            let group = Arc::from(from.text()?);
            let (served, asked) = (from.long()?, from.time()?);
            Some((group, Place { served, asked }))
        };
        let served = (0..count).map(|_| place(from));
        let served = served.collect::<Option<_>>()?;
        Some(Shares {
            turn,
            asked,
            served,
        })
    }

    pub(super) fn heap(&self) -> usize {
        let names = self.served.iter().map(|(group, _)| group.len() + 16);
        size_of::<Shares>()
            + self.served.capacity() * size_of::<(Arc<str>, Place)>()
            + names.sum::<usize>()
    }
}

impl Share {
    /// What a start of this cost adds to what its group was served.
    pub fn price(&self, cost: &Cost) -> u64 {
        (UNIT * u64::from(cost.pays.get()) / u64::from(self.weight.get())).max(1)
    }
}
