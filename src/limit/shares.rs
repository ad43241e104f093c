//! How much each group of a key was served, so that the one that had least by its weight goes first.

use std::sync::Arc;

use super::packed::{PackedReader, Writer};
use super::{Cost, EARLY, Refusal, Share, Strategy, Timestamp};

/// The most groups of a key. Those beyond share one place.
const MOST: usize = 1_000;
/// The place of those beyond.
const OTHER: &str = "_other";
/// What a cost of 1 adds to a group of weight 1.
const UNIT: u64 = 1_000;
/// How long they are kept after the last of them was asked for, in microseconds.
const KEPT: u64 = 60_000_000;
/// What was not asked for in so long does not wait any more, in microseconds: workers poll every second or two.
const AWAY: u64 = 2_000_000;
/// A group that is ahead is asked for again so soon, in microseconds.
const AHEAD: u64 = 50_000;
/// From there on all begin anew, so that numbers stay exact in every store.
const ANEW: u64 = 1 << 52;

/// What the groups of one key were served, as start-time fair queueing counts it.
///
/// A sidecar asks for the one that had least of those it holds. Where another sidecar has one that had less, and it
/// waits, the first is ahead: it starts only if nobody else lacks room.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// What the group whose turn was last had been served before that start.
    turn: u64,
    /// When one of them was asked for last.
    asked: Timestamp,
    /// When the key had no room last.
    full: Timestamp,
    /// In the order of their names.
    served: Vec<(Arc<str>, GroupPlace)>,
}

/// Where one group stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct GroupPlace {
    served: u64,
    /// When it was asked for last; long ago if another key refused it, for then it saves nothing.
    asked: Timestamp,
    /// Whether it was refused then, or others of it waited behind it.
    waits: bool,
}

impl GroupPlace {
    fn is_here(&self, now: Timestamp) -> bool {
        self.asked.plus(AWAY) > now
    }
}

/// How the question for a job of a group ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AskOutcome {
    /// It started, and others of its group wait where it did.
    StartedOf,
    /// It started, and was the last of its group there.
    StartedLast,
    /// The key has no room for it.
    Full,
    /// Others go first.
    Behind,
    /// Another key refused it.
    PassedOver,
}

impl Shares {
    /// What the group was served. One that is not known stands where the last turn was.
    pub fn of(&self, group: &str) -> u64 {
        self.find(group).map_or(self.turn, |place| place.served)
    }

    /// The turn that was last.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes what a store said of a group.
    pub fn note(&mut self, group: &Arc<str>, served: u64, turn: u64) {
        self.turn = turn;
        self.make_room(group);
        let place = GroupPlace {
            served,
            ..GroupPlace::default()
        };
        self.put(group, place);
    }

    /// Whether nobody asks for them any more.
    pub(super) fn idle(&self, now: Timestamp) -> bool {
        self.asked.plus(KEPT) <= now
    }

    /// Whether a group that was served less waits while the key has no room, and by more than this start adds.
    pub fn is_ahead(&self, share: &Share, cost: &Cost, now: Timestamp) -> Option<Refusal> {
        let least = self.least(&share.group, now)?;
        let is_full = self.full.plus(AWAY) > now;
        let ahead = self.standing(&share.group, now) > least.saturating_add(share.price(cost));
        (is_full && ahead).then(|| Refusal {
            strategy: Strategy::Line,
            limit: 0,
            current: 0,
            at: Some(now.plus(AHEAD + EARLY)),
            slot: false,
        })
    }

    /// Notes how the question for a job of a group ended.
    pub(crate) fn asked(&mut self, share: &Share, cost: &Cost, asked: AskOutcome, now: Timestamp) {
        if self.idle(now) {
            *self = Shares::default();
        }
        self.asked = now;
        self.make_room(&share.group);
        let mut place = GroupPlace {
            served: self.standing(&share.group, now),
            asked: now,
            waits: true,
        };
        match asked {
            AskOutcome::StartedOf | AskOutcome::StartedLast if place.served > ANEW => {
                (self.turn, self.served) = (0, Vec::new());
                place = GroupPlace::default();
            }
            AskOutcome::StartedOf | AskOutcome::StartedLast => {
                self.turn = place.served;
                place.served = place.served.saturating_add(share.price(cost));
                place.waits = asked == AskOutcome::StartedOf;
            }
            AskOutcome::Full => self.full = now,
            AskOutcome::Behind => {}
            AskOutcome::PassedOver => (place.asked, place.waits) = (Timestamp(0), false),
        }
        self.put(&share.group, place);
    }

    /// What a group was served, as it counts now: who comes, or comes back, is owed nothing for the time before, and
    /// begins with the least of those that wait.
    fn standing(&self, group: &str, now: Timestamp) -> u64 {
        let known = self.find(group);
        let here = known.filter(|place| place.is_here(now));
        here.map_or_else(
            || {
                let least = self.least(group, now).unwrap_or(self.turn);
                known.map_or(least, |place| place.served.max(least))
            },
            |place| place.served,
        )
    }

    /// The least of the groups that wait, but for this one.
    fn least(&self, group: &str, now: Timestamp) -> Option<u64> {
        let others = self.served.iter().filter(|(name, _)| **name != *group);
        let waiting = others.filter(|(_, place)| place.waits && place.is_here(now));
        waiting.map(|(_, place)| place.served).min()
    }

    fn find(&self, group: &str) -> Option<&GroupPlace> {
        let at = self.place(group).ok()?;
        self.served.get(at).map(|(_, place)| place)
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

    /// Where there are too many, those go that are not ahead of the last turn.
    fn make_room(&mut self, group: &str) {
        let is_known = |(known, _): &(Arc<str>, GroupPlace)| **known == *group;
        if self.served.len() >= MOST && !self.served.iter().any(is_known) {
            let turn = self.turn;
            self.served.retain(|(_, place)| place.served > turn);
        }
    }

    fn put(&mut self, group: &Arc<str>, place: GroupPlace) {
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
        to.time(self.full);
        // At most MOST and the others.
        to.u16(u16::try_from(self.served.len()).unwrap_or(u16::MAX));
        for (group, place) in &self.served {
            to.text(group);
            to.long(place.served);
            to.time(place.asked);
            to.byte(u8::from(place.waits));
        }
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Shares> {
        let (turn, asked, full) = (from.long()?, from.time()?, from.time()?);
        let place = |from: &mut PackedReader<'_>| {
            let group = Arc::from(from.text()?);
            let place = GroupPlace {
                served: from.long()?,
                asked: from.time()?,
                waits: from.byte()? > 0,
            };
            Some((group, place))
        };
        let count = from.u16()?;
        let served = (0..count).map(|_| place(from));
        Some(Shares {
            turn,
            asked,
            full,
            served: served.collect::<Option<_>>()?,
        })
    }

    pub(super) fn heap(&self) -> usize {
        let names = self.served.iter().map(|(group, _)| group.len() + 16);
        self.served.capacity() * size_of::<(Arc<str>, GroupPlace)>() + names.sum::<usize>()
    }
}

impl Share {
    /// What a start of this cost adds to what its group was served.
    pub fn price(&self, cost: &Cost) -> u64 {
        (UNIT * u64::from(cost.pays.get()) / u64::from(self.weight.get())).max(1)
    }
}
