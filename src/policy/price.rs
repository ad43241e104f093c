//! What a job pays to a key, and whose share of it that is: `cost` and `fair` of an entry.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::job_view::JobView;
use super::json_path::find;
use super::template::{Rendered, Template};
use ojs_json::{Json, Kind};
use ojs_limit::{Cost, CostRule, Key, Limited, Share};

/// `fair`: jobs under the limits of an entry take turns by group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fair {
    /// What names the group of a job. Jobs without such a value are one group.
    pub by: Template,
    /// The weights of some groups.
    pub weights: BTreeMap<Key, NonZeroU32>,
    /// That of all others.
    pub default_weight: NonZeroU32,
}

impl Fair {
    pub(super) fn share(&self, job: &JobView<'_>) -> Share {
        let (Rendered::Whole(group) | Rendered::Missing(_, group)) = self.by.render(job);
        self.share_as(&group)
    }

    /// The share of this group.
    pub fn share_as(&self, group: &Key) -> Share {
        let weight = self.weights.get(group).copied();
        Share {
            group: Arc::from(group.as_str()),
            weight: weight.unwrap_or(self.default_weight),
        }
    }
}

/// What an entry says of both, and of who pays.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Prices {
    /// What a start counts; `None`: one.
    pub cost: Option<Arc<CostRule>>,
    /// Whose turn it is; `None`: turns go round.
    pub fair: Option<Arc<Fair>>,
    /// Whether the calls of jobs count in their place.
    pub by_calls: bool,
}

impl Prices {
    /// What a job pays that was not read yet.
    pub fn cost(&self) -> Cost {
        Cost {
            by_calls: self.by_calls,
            ..self.cost.clone().map_or(Cost::ONE, Cost::of)
        }
    }

    pub(super) fn share(&self, job: &JobView<'_>) -> Option<Share> {
        self.fair.as_ref().map(|fair| fair.share(job))
    }

    /// Which of these is not the same in two entries.
    pub fn difference(&self, other: &Prices) -> Option<&'static str> {
        let cost = (self.cost != other.cost).then_some("cost");
        let fair = (self.fair != other.fair).then_some("fair");
        let counts = (self.by_calls != other.by_calls).then_some("counts");
        cost.or(fair).or(counts)
    }
}

/// What was said of a cost that could not be paid as it was said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unpaid {
    /// Nothing: the default is paid.
    Unsaid,
    /// Something that is no number from 1: the default is paid.
    NoNumber,
    /// More than the most that a job pays.
    OverMax,
}

/// What a job pays by this rule, whose members are at hand by their names. `most`, or the default where that is more, is
/// paid at most where the rule does not say how much.
pub fn pays<'a>(
    rule: &CostRule,
    most: impl FnOnce() -> NonZeroU32,
    member: impl Fn(&str) -> Option<Json<'a>>,
) -> (NonZeroU32, Option<Unpaid>) {
    let Some(from) = &rule.from else {
        return (rule.default, None);
    };
    let value = from.split_once('.');
    let value = value.and_then(|(first, rest)| find(member(first)?, rest));
    let said = value.and_then(|value| amount(value, 1.0));
    let most = rule.max.unwrap_or_else(|| most().max(rule.default));
    match said.and_then(NonZeroU32::new) {
        None if value.is_some_and(|value| !value.is_null()) => {
            (rule.default, Some(Unpaid::NoNumber))
        }
        None => (rule.default, Some(Unpaid::Unsaid)),
        Some(over) if over > most => (most, Some(Unpaid::OverMax)),
        Some(said) => (said, None),
    }
}

/// What an ACK says at a path that the job used.
pub fn used(ack: Json<'_>, path: &str) -> Option<u32> {
    amount(find(ack, path)?, 0.0)
}

/// A number from `least`, a fraction as the next whole one.
fn amount(value: Json<'_>, least: f64) -> Option<u32> {
    let text = std::str::from_utf8(value.raw()).ok();
    let number: f64 = text
        .filter(|_| value.kind() == Kind::Number)?
        .parse()
        .ok()?;
    // What is too large for the type becomes the largest.
    (number >= least).then_some(number.ceil() as u32)
}

/// Gives limits of one key one price and one share: those of the first that has some.
pub fn one_price(limited: &mut [Limited]) {
    let has_price = |cost: &&Cost| **cost != Cost::ONE || cost.pays > NonZeroU32::MIN;
    for nth in 0..limited.len() {
        let Some(one) = limited.get(nth) else { return };
        let all = || limited.iter().filter(|other| other.shares_key(one));
        let cost = all().map(|one| &one.cost).find(has_price).cloned();
        let share = all().find_map(|one| one.share.clone());
        if let Some(one) = limited.get_mut(nth) {
            (one.cost, one.share) = (cost.unwrap_or_default(), share);
        }
    }
}
