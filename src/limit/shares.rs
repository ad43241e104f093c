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
    served: Vec<(Arc<str>, u64)>,
}

impl Shares {
    /// What the group was served.
    pub fn of(&self, group: &str) -> u64 {
        let place = self.place(group);
        let known = place.ok().and_then(|at| self.served.get(at));
        known.map_or(self.turn, |(_, served)| *served)
    }

    /// The turn that was last.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes what a store said of a group.
    pub fn note(&mut self, group: &Arc<str>, served: u64, turn: u64) {
        self.turn = turn;
        self.make_room(group);
        self.put(group, served);
    }

    /// Whether nobody asks for them any more.
    pub(super) fn idle(&self, now: Timestamp) -> bool {
        self.asked.plus(KEPT) <= now
    }

    /// The group waits, and what it is owed from now on stands. One that `saves_nothing` goes on from the last turn.
    pub(crate) fn wait(&mut self, group: &Arc<str>, saves_nothing: bool, now: Timestamp) {
        if self.idle(now) {
            *self = Shares::default();
        }
        self.asked = now;
        self.make_room(group);
        let served = self.of(group);
        let least = if saves_nothing { self.turn } else { 0 };
        self.put(group, served.max(least));
    }

    /// It was the group's turn, for a start of this cost.
    pub(crate) fn start(&mut self, share: &Share, cost: &Cost) {
        let served = self.of(&share.group);
        if served > ANEW {
            (self.turn, self.served) = (0, Vec::new());
            return self.put(&share.group, 0);
        }
        self.turn = served;
        self.put(&share.group, served.saturating_add(share.price(cost)));
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
        let is_known = |(known, _): &(Arc<str>, u64)| **known == *group;
        if self.served.len() >= MOST && !self.served.iter().any(is_known) {
            let turn = self.turn;
            self.served.retain(|(_, served)| *served > turn);
        }
    }

    fn put(&mut self, group: &Arc<str>, served: u64) {
        match self.place(group) {
            Ok(at) => {
                if let Some((_, known)) = self.served.get_mut(at) {
                    *known = served;
                }
            }
            Err(at) if self.served.len() < MOST => {
                self.served.insert(at, (Arc::clone(group), served));
            }
            Err(at) => self.served.insert(at, (Arc::from(OTHER), served)),
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.long(self.turn);
        to.time(self.asked);
        // At most MOST and the others.
        to.u16(u16::try_from(self.served.len()).unwrap_or(u16::MAX));
        for (group, served) in &self.served {
            to.text(group);
            to.long(*served);
        }
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Shares> {
        let (turn, asked, count) = (from.long()?, from.time()?, from.u16()?);
        let served = (0..count).map(|_| Some((Arc::from(from.text()?), from.long()?)));
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
            + self.served.capacity() * size_of::<(Arc<str>, u64)>()
            + names.sum::<usize>()
    }
}

impl Share {
    /// What a start of this cost adds to what its group was served.
    pub fn price(&self, cost: &Cost) -> u64 {
        (UNIT * u64::from(cost.pays.get()) / u64::from(self.weight.get())).max(1)
    }
}
