//! Whose turn it is among the groups of a key: fair queueing by when each job is done.

use std::sync::Arc;

use super::cost::{Cost, Share};
use super::packed::{PackedReader, Writer};
use super::refusal::Refusal;
use super::time::{EARLY, Timestamp};

/// The most groups of a key. For one more, others are forgotten: their sidecars know since when they wait.
const MOST: usize = 1_000;
/// What a cost of 1 adds to a group of weight 1.
const UNIT: u64 = 1_000;
/// How long they are kept after the last of them was asked for, in microseconds.
const KEPT: u64 = 60_000_000;
/// A group is owed what it missed in one or two of these, in microseconds, or one job.
const OWED: u64 = 2_000_000;
/// A group that was not asked for in so long was away, in microseconds: workers poll every second or two.
pub const AWAY: u64 = 2_000_000;
/// So long one group waits for a job of another one that may start, in microseconds.
const GRACE: u64 = 50_000;
/// From there on all begin anew, so that numbers stay exact in every store.
const ANEW: u64 = 1 << 52;

/// What the groups of one key were served, in virtual time: a job lasts as long as its cost by the weight of its group,
/// begins where the one before it of its group was done, and never before its group began to wait. The job goes first
/// that is done first (Golestani, 1994). The virtual time is where the last one was done, so that it moves on with all
/// that is served, and newcomers begin there: however many they are, they pass nobody who waits.
///
/// The virtual time is read off the jobs themselves (it is self-clocked). The textbook's weighted fair queueing computes
/// it from an ideal server that serves all groups at once, and bounds better how late a group can be. For that it must
/// know at each moment who waits anywhere in the fleet and how fast the key serves; no sidecar knows either, and a store
/// that was told would be written to by every job that waits, not only by those that start.
///
/// A sidecar orders the groups that it holds. Of those at other sidecars only the ones count that somebody stays for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// The virtual time.
    virtual_time: u64,
    /// What it was at `turned`, and a while before that.
    turns: [u64; 2],
    turned: Timestamp,
    /// When one of them was asked for last.
    asked: Timestamp,
    /// In the order of their names.
    groups: Vec<(Arc<str>, GroupPlace)>,
}

/// Where one group stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct GroupPlace {
    /// When the last of its jobs is done, or its next one begins, in virtual time.
    served: u64,
    /// When the job that somebody stays for is done.
    done: u64,
    /// When it is expected to be asked for again.
    comes: Timestamp,
    /// Until when somebody stays for it, and never before it was last asked for.
    until: Timestamp,
}

impl Shares {
    /// What the group was served. One that is not known stands where the virtual time is.
    pub fn of(&self, group: &str) -> u64 {
        self.find(group)
            .map_or(self.virtual_time, |place| place.served)
    }

    /// The virtual time.
    pub fn virtual_time(&self) -> u64 {
        self.virtual_time
    }

    /// Shares as a store keeps them in a table of its own: groups under `g` and their names, and all else without a name.
    pub fn of_rows<'a>(rows: impl IntoIterator<Item = (&'a str, Vec<u64>)>) -> Shares {
        let mut shares = Shares::default();
        for (name, numbers) in rows {
            match (name.strip_prefix('g'), &*numbers) {
                (Some(group), &[served, done, comes, until]) => {
                    let (comes, until) = (Timestamp(comes), Timestamp(until));
                    let place = GroupPlace {
                        served,
                        done,
                        comes,
                        until,
                    };
                    shares.groups.push((Arc::from(group), place));
                }
                (None, &[virtual_time, a, b, turned, asked]) => {
                    (shares.virtual_time, shares.turns) = (virtual_time, [a, b]);
                    (shares.turned, shares.asked) = (Timestamp(turned), Timestamp(asked));
                }
                _ => {}
            }
        }
        shares.groups.sort_by(|(a, _), (b, _)| a.cmp(b));
        shares
    }

    /// Whether nobody asks for them any more.
    pub(super) fn idle(&self, now: Timestamp) -> bool {
        self.asked.plus(KEPT) <= now
    }

    /// Where a job begins whose group began to wait at `since`. It is owed what others were served in the last seconds,
    /// or one job where that is more. A group that was asked for lately has waited, wherever its jobs were: to a sidecar
    /// that had none of them it seems to come only now.
    pub fn begins(&self, share: &Share, cost: &Cost, since: u64, now: Timestamp) -> u64 {
        let owed_from = self.turns[1].min(self.virtual_time.saturating_sub(share.price(cost)));
        let place = self.find(&share.group).copied().unwrap_or_default();
        let since = match place.until.plus(AWAY) > now {
            true => owed_from,
            false => since.clamp(owed_from, self.virtual_time),
        };
        place.served.max(since)
    }

    /// Whether somebody stays for a job of another group that is done before this one.
    pub fn is_ahead(&self, share: &Share, cost: &Cost, begins: u64, now: Timestamp) -> bool {
        let done = begins.saturating_add(share.price(cost));
        let mut others = self.groups.iter().filter(|(of, _)| *of != share.group);
        !self.idle(now) && others.any(|(_, other)| other.is_before(done, now))
    }

    /// The refusal of one that is ahead. Those that it waits for have a moment to come, where that is not later than they
    /// meant to.
    pub fn hold_up(&mut self, share: &Share, cost: &Cost, begins: u64, now: Timestamp) -> Refusal {
        let done = begins.saturating_add(share.price(cost));
        let others = self.groups.iter_mut().filter(|(of, _)| *of != share.group);
        for (_, other) in others.filter(|(_, other)| other.is_before(done, now)) {
            other.until = other.until.min(other.comes.max(now).plus(GRACE));
        }
        Refusal::of_line(now.plus(GRACE + EARLY))
    }

    /// A job of a group was asked for.
    pub fn asked(&mut self, now: Timestamp) {
        if self.idle(now) {
            *self = Shares::default();
        }
        if self.turned.plus(OWED) <= now {
            (self.turns, self.turned) = ([self.virtual_time, self.turns[0]], now);
        }
        self.asked = now;
    }

    /// One that begins there has started.
    pub fn serve(&mut self, share: &Share, cost: &Cost, begins: u64, now: Timestamp) {
        let mut done = begins.saturating_add(share.price(cost));
        if begins > ANEW {
            (self.virtual_time, self.turns, done) = (0, [0; 2], 0);
            self.groups.clear();
        }
        self.virtual_time = self.virtual_time.max(done);
        let served = GroupPlace {
            served: done,
            until: now,
            ..GroupPlace::default()
        };
        self.put(&share.group, served);
    }

    /// One that begins there waits: it is asked for again at that time, if one is known, and at any time until those go
    /// who stay for it. If nobody does, that is now.
    pub fn wait(
        &mut self,
        share: &Share,
        cost: &Cost,
        begins: u64,
        (comes, until): (Option<Timestamp>, Timestamp),
    ) {
        let waits = GroupPlace {
            served: begins,
            done: begins.saturating_add(share.price(cost)),
            comes: comes.unwrap_or_default(),
            until,
        };
        self.put(&share.group, waits);
    }

    fn find(&self, group: &str) -> Option<&GroupPlace> {
        let at = self.index(group).ok()?;
        self.groups.get(at).map(|(_, place)| place)
    }

    fn index(&self, group: &str) -> Result<usize, usize> {
        self.groups
            .binary_search_by(|(known, _)| (**known).cmp(group))
    }

    fn put(&mut self, group: &Arc<str>, place: GroupPlace) {
        if self.groups.len() >= MOST && self.index(group).is_err() {
            let owed_from = self.turns[1];
            self.groups.retain(|(_, place)| place.served > owed_from);
            if self.groups.len() >= MOST {
                self.groups.clear();
            }
        }
        match self.index(group) {
            Ok(at) => {
                if let Some((_, known)) = self.groups.get_mut(at) {
                    *known = place;
                }
            }
            Err(at) => self.groups.insert(at, (Arc::clone(group), place)),
        }
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        to.long(self.virtual_time);
        self.turns.iter().for_each(|turn| to.long(*turn));
        to.time(self.turned);
        to.time(self.asked);
        // At most MOST.
        to.u16(u16::try_from(self.groups.len()).unwrap_or(u16::MAX));
        for (group, place) in &self.groups {
            to.text(group);
            to.long(place.served);
            to.long(place.done);
            to.time(place.comes);
            to.time(place.until);
        }
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Shares> {
        let (virtual_time, turns) = (from.long()?, [from.long()?, from.long()?]);
        let (turned, asked) = (from.time()?, from.time()?);
        let place = |from: &mut PackedReader<'_>| {
            let group = Arc::from(from.text()?);
            let place = GroupPlace {
                served: from.long()?,
                done: from.long()?,
                comes: from.time()?,
                until: from.time()?,
            };
            Some((group, place))
        };
        let count = from.u16()?;
        let groups = (0..count).map(|_| place(from));
        Some(Shares {
            virtual_time,
            turns,
            turned,
            asked,
            groups: groups.collect::<Option<_>>()?,
        })
    }
}

impl GroupPlace {
    /// Whether somebody stays for a job that is done before another one is.
    fn is_before(&self, done: u64, now: Timestamp) -> bool {
        self.until > now && self.done < done
    }
}

impl Share {
    /// What a start of this cost adds to what its group was served.
    pub fn price(&self, cost: &Cost) -> u64 {
        (UNIT * u64::from(cost.pays.get()) / u64::from(self.weight.get())).max(1)
    }
}
