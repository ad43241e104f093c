//! In which order held jobs of one priority leave: round robin over groups. Groups that share a key by weight have one
//! turn together, and the one that was served least has it.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::queue::Group;
use crate::limit::{Key, Limited, Served, Shares, Space, share_of};

/// The most keys of which is known what their groups were served. What is forgotten comes back with the store's next
/// answers.
const MOST: usize = 256;

/// What the store said of groups, last, by their keys.
#[derive(Default, Debug)]
pub(super) struct KnownShares(HashMap<(Space, Key), Shares>);

impl KnownShares {
    pub(super) fn note(&mut self, served: &[Served]) {
        for of in served {
            if self.0.len() >= MOST {
                self.0.clear();
            }
            let shares = self.0.entry((of.space, of.key.clone())).or_default();
            shares.note(&of.group, of.served, of.turn);
        }
    }

    fn of(&self, one: &Limited, group: &str) -> u64 {
        let shares = self.0.get(&(one.space, one.key.clone()));
        shares.map_or(0, |shares| shares.of(group))
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
    let mut turns: Vec<SharedTurn<'_>> = Vec::with_capacity(groups.len());
    for (nth, group) in groups.iter().enumerate() {
        let share = share_of(&group.limits);
        let member = TurnMember {
            group: nth,
            gone: 0,
            served: share.map_or(0, |(one, share)| fair.of(one, &share.group)),
        };
        let by = share.map(|(one, _)| one);
        let shares_turn = |turn: &&mut SharedTurn<'_>| {
            (turn.by.zip(by)).is_some_and(|(one, other)| one.shares_key(other))
        };
        match by.and_then(|_| turns.iter_mut().find(shares_turn)) {
            Some(turn) => {
                turn.members.push(member);
                turn.left = turn.left.saturating_add(want);
            }
            None => turns.push(SharedTurn {
                by,
                members: SmallVec::from_buf([member]),
                left: want,
            }),
        }
    }
    let mut order = Vec::new();
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
        let (member, held) = waiting.min_by_key(|(member, _)| member.served)?;
        member.gone += 1;
        self.left -= 1;
        if let Some((one, share)) = share_of(&held.written) {
            member.served = member.served.saturating_add(share.price(&one.cost));
        }
        Some(member.group)
    }
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
