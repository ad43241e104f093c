//! In which order held jobs of one priority leave: round robin over groups. Groups that share a key by weight have one
//! turn together, and the one has it whose job is done first in the virtual time of the key.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::queue::Group;
use ojs_limit::{AWAY, Key, Limited, Served, Share, Space, Timestamp, share_of};

/// The most keys of which is known what their groups were served. What is forgotten comes back with the store's next
/// answers.
const MOST: usize = 256;

/// The most groups of a key of which is known since when they wait.
const MOST_GROUPS: usize = 2_000;

/// Since when groups wait, by the keys that they share.
#[derive(Default, Debug)]
pub(super) struct KnownShares(HashMap<(Space, Key), KnownGroups>);

/// Since when the groups of a key wait, in its virtual time: what the store said last, and for those that came since what
/// the time was then.
#[derive(Default, Debug)]
pub struct KnownGroups {
    /// The virtual time, once the store has said it. Whoever comes before that waits since a time that only the store
    /// knows.
    turn: Option<u64>,
    /// Since when each group waits, and when it was last looked at.
    groups: HashMap<Arc<str>, (u64, Timestamp)>,
    /// From so many on those go that are away.
    most: usize,
}

impl KnownGroups {
    /// What the store says of one. Whether nothing was known before: those who wait are to be seen anew.
    pub fn note(&mut self, of: &Served, now: Timestamp) -> bool {
        // The store has begun anew.
        if Some(of.virtual_time) < self.turn.map(|turn| turn / 2) {
            *self = KnownGroups::default();
        }
        let begins = self.turn.is_none();
        self.turn = self.turn.max(Some(of.virtual_time));
        self.groups.insert(of.group.clone(), (of.served, now));
        begins
    }

    /// One that is looked at: if it comes, or comes back, it waits from now on.
    pub fn see(&mut self, group: &str, now: Timestamp) {
        if self.groups.len() >= self.most.max(MOST_GROUPS) {
            self.groups.retain(|_, (_, seen)| seen.plus(AWAY) > now);
            // Where all of them are there, it is not looked for each time.
            self.most = 2 * self.groups.len();
        }
        let Some(turn) = self.turn else { return };
        let (since, seen) = self.groups.entry_ref(group).or_insert((turn, now));
        if seen.plus(AWAY) <= now {
            *since = turn.max(*since);
        }
        *seen = now;
    }

    /// Since when a group waits, if anything is known of the key.
    pub fn since(&self, group: &str) -> Option<u64> {
        let place = self.groups.get(group);
        place.map(|(since, _)| *since).or(self.turn)
    }
}

impl KnownShares {
    pub(super) fn note(&mut self, served: &[Served], now: Timestamp) {
        for of in served {
            // FETCHes see them.
            let _begins = self.key(of.space, &of.key).note(of, now);
        }
    }

    fn key(&mut self, space: Space, key: &Key) -> &mut KnownGroups {
        let of = (space, key.clone());
        if self.0.len() >= MOST && !self.0.contains_key(&of) {
            self.0.clear();
        }
        self.0.entry(of).or_default()
    }

    /// A worker asks for jobs of groups under these limits: who comes, or comes back, waits from now on.
    pub(super) fn see<'a>(&mut self, groups: impl Iterator<Item = &'a [Limited]>, now: Timestamp) {
        for (one, share) in groups.filter_map(share_of) {
            self.key(one.space, &one.key).see(&share.group, now);
        }
    }

    /// Since when a group waits, if anything is known of its key.
    pub(super) fn since(&self, one: &Limited, share: &Share) -> Option<u64> {
        let known = self.0.get(&(one.space, one.key.clone()))?;
        known.since(&share.group)
    }
}

/// Groups that have one turn together.
struct SharedTurn<'a> {
    /// The key that they share.
    by: Option<&'a Limited>,
    members: SmallVec<[TurnMember; 1]>,
    /// How many jobs it gives yet.
    left: usize,
}

/// One group of a turn.
struct TurnMember {
    /// Its place among the groups.
    group: usize,
    /// How many of its jobs have left.
    gone: usize,
    served: u64,
}

/// The groups that give the next jobs, `most` at most, each as often as it gives one. A group by itself gives no more
/// than `want`, and those that share a turn no more than that each.
pub(super) fn order(groups: &[&Group], fair: &KnownShares, want: usize, most: usize) -> Vec<usize> {
    let mut turns: Vec<SharedTurn<'_>> = Vec::with_capacity(groups.len().min(most));
    for (nth, group) in groups.iter().enumerate() {
        let share = share_of(&group.limits);
        let member = TurnMember {
            group: nth,
            gone: 0,
            served: share
                .and_then(|(one, share)| fair.since(one, share))
                .unwrap_or(0),
        };
        let by = share.map(|(one, _)| one);
        let shares_turn = |turn: &&mut SharedTurn<'_>| {
            (turn.by.zip(by)).is_some_and(|(one, other)| one.shares_key(other))
        };
        // Each turn gives a job before any gives a second one, so more turns would give none.
        let has_room = turns.len() < most;
        match by.and_then(|_| turns.iter_mut().find(shares_turn)) {
            Some(turn) => {
                turn.members.push(member);
                turn.left = turn.left.saturating_add(want);
            }
            None if has_room => turns.push(SharedTurn {
                by,
                members: SmallVec::from_buf([member]),
                left: want,
            }),
            None => {}
        }
    }
    let mut order = Vec::with_capacity(most.min(groups.len()));
    loop {
        let before = order.len();
        for turn in turns.iter_mut().filter(|turn| turn.left > 0) {
            if order.len() < most {
                order.extend(turn.next(groups));
            }
        }
        if order.len() == before {
            return order;
        }
    }
}

impl SharedTurn<'_> {
    /// The group that gives a job.
    fn next(&mut self, groups: &[&Group]) -> Option<usize> {
        let members = self.members.iter_mut();
        let waiting = members.filter_map(|member| {
            let held = groups.get(member.group)?.jobs.get(member.gone)?;
            Some((member, held))
        });
        let waiting = waiting.map(|(member, held)| {
            let share = share_of(&held.written);
            let price = share.map_or(0, |(one, share)| share.price(&one.cost));
            (member.served.saturating_add(price), member)
        });
        let (done, member) = waiting.min_by_key(|(done, _)| *done)?;
        (member.gone, member.served) = (member.gone + 1, done);
        self.left -= 1;
        Some(member.group)
    }
}

/// The jobs of one group that wait in a place of their own, of which the first are held.
#[derive(Clone, Debug)]
pub struct QueuedGroup {
    /// What limits the one that was seen last.
    pub limits: Arc<[Limited]>,
    /// How high the next one is.
    pub priority: i32,
    /// How many are held.
    pub held: usize,
    /// How many more may be claimed.
    pub waiting: usize,
}

/// How many jobs of each group are claimed beside those that are held, `lacking` in all: those that leave first if all that
/// are held and claimed leave in turn, `most` of them at most. The groups share one key.
pub(super) fn claims(
    of: &[QueuedGroup],
    fair: &KnownShares,
    lacking: usize,
    most: usize,
) -> Vec<usize> {
    let next = |nth: usize, served: u64| {
        let group = of.get(nth)?;
        let (one, share) = share_of(&group.limits)?;
        let served = served.max(fair.since(one, share).unwrap_or(0));
        let done = served.saturating_add(share.price(&one.cost));
        Some(Reverse((Reverse(group.priority), done, nth)))
    };
    let mut turns: BinaryHeap<_> = (0..of.len()).filter_map(|nth| next(nth, 0)).collect();
    let mut gone = vec![0; of.len()];
    let (mut claimed, mut left) = (0, most);
    while claimed < lacking && left > 0 {
        let Some(Reverse((_, done, nth))) = turns.pop() else {
            break;
        };
        let (Some(group), Some(gone)) = (of.get(nth), gone.get_mut(nth)) else {
            continue;
        };
        if *gone < group.held + group.waiting {
            *gone += 1;
            left -= 1;
            claimed += usize::from(*gone > group.held);
            turns.extend(next(nth, done));
        }
    }
    let held = of.iter().map(|group| group.held);
    let both = gone.iter().zip(held);
    both.map(|(gone, held)| gone.saturating_sub(held)).collect()
}

/// Whether jobs under these limits are refused alike: only whose share they take may differ.
pub(super) fn are_alike(one: &[Limited], other: &[Limited]) -> bool {
    let is_alike = |(one, other): (&Limited, &Limited)| {
        let Limited {
            space,
            key,
            limits,
            on_limit,
            policy,
            cost,
            share: _,
        } = one;
        (*space, key, limits) == (other.space, &other.key, &other.limits)
            && (*on_limit, policy, cost) == (other.on_limit, &other.policy, &other.cost)
    };
    one.len() == other.len() && one.iter().zip(other).all(is_alike)
}
