//! Rows and overrides as text, for stores that keep them elsewhere.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Change, Claim, Claimed, Gen, Override};
use ojs_limit::{
    Cost, CostRule, Key, Limited, Limits, Measure, OnLimit, Rate, Share, Space, Throttle,
    Timestamp, WindowKind,
};

/// What was claimed, without what a row says beside it: the job's id, the claim, the visibility and the
/// limits change or are asked for by themselves.
#[derive(Serialize, Deserialize)]
struct Origin {
    claim_id: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    worker: Option<Arc<str>>,
    scope: u64,
    queue: Arc<str>,
    priority: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    claimed_at: u64,
}

#[derive(Serialize, Deserialize)]
struct One {
    queue: bool,
    key: Arc<str>,
    #[serde(flatten)]
    numbers: WrittenLimits,
    action: u8,
    policy: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<(NonZeroU32, Option<Box<str>>)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    by_calls: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    share: Option<(Arc<str>, NonZeroU32)>,
}

#[derive(Serialize, Deserialize)]
struct WrittenLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slots: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rates: Vec<(NonZeroU32, NonZeroU64, String)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spacing: Option<(NonZeroU32, NonZeroU64, NonZeroU32, bool)>,
}

#[derive(Serialize, Deserialize)]
struct Set {
    #[serde(flatten)]
    numbers: WrittenLimits,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Arc<str>>,
}

/// What was claimed, as text.
pub(super) fn claim(claimed: &Claimed) -> String {
    text(&Origin {
        claim_id: claimed.claim_id.clone(),
        worker: claimed.worker.clone(),
        scope: claimed.scope,
        queue: claimed.queue.clone(),
        priority: claimed.priority,
        attempt: claimed.attempt,
        claimed_at: claimed.claimed_at.0,
    })
}

/// The limits that apply to a job, as text.
pub(super) fn limits(limited: &[Limited]) -> String {
    let all: Vec<One> = limited
        .iter()
        .map(|one| One {
            queue: one.space == Space::Queue,
            key: Arc::from(one.key.as_str()),
            numbers: numbers(&one.limits),
            action: one.on_limit as u8,
            policy: one.policy.clone(),
            cost: cost(&one.cost),
            by_calls: one.cost.by_calls,
            share: (one.share.as_ref()).map(|share| (share.group.clone(), share.weight)),
        })
        .collect();
    text(&all)
}

/// The job as claimed, from its [`claim()`] and [`limits()`] and what the row says beside them; `None`: somebody else wrote it.
pub(super) fn claimed(
    job: &str,
    generation: Gen,
    visibility: u64,
    (claim, limits): (&str, &str),
) -> Option<Claimed> {
    let claim: Origin = serde_json::from_str(claim).ok()?;
    let limits: Vec<One> = serde_json::from_str(limits).ok()?;
    let limited: Option<Vec<Limited>> = limits.into_iter().map(limited).collect();
    Some(Claimed::from(Claim {
        claim_id: claim.claim_id,
        worker: claim.worker,
        scope: claim.scope,
        priority: claim.priority,
        attempt: claim.attempt,
        claimed_at: Timestamp(claim.claimed_at),
        visibility,
        limited: limited?.into(),
        ..Claim::new(Arc::from(job), generation, claim.queue)
    }))
}

/// Limits set over HTTP, as text.
pub(super) fn set(set: &Override) -> String {
    text(&Set {
        numbers: numbers(&set.limits),
        expires_at: set.expires_at.map(|at| at.0),
        reason: set.reason.clone(),
        by: set.by.clone(),
    })
}

/// Limits set over HTTP, from their text; `None`: somebody else wrote it.
pub(super) fn read_set(text: &str) -> Option<Override> {
    let set: Set = serde_json::from_str(text).ok()?;
    Some(Override {
        limits: read_numbers(set.numbers)?,
        expires_at: set.expires_at.map(Timestamp),
        reason: set.reason,
        by: set.by,
    })
}

/// Limits or a setting, as stores keep them.
#[derive(Clone, Debug)]
pub(super) struct Written {
    /// [`name`] or [`setting`]
    pub(super) name: String,
    pub(super) text: String,
    /// When it ends by itself.
    pub(super) ends: Option<Timestamp>,
}

/// What a change makes of limits or a setting: the name, and what stands there from now on. `None`: it is about
/// something else.
pub(super) fn written(change: &Change) -> Option<(String, Option<Written>)> {
    let (name, text, ends) = match change {
        Change::Override { space, key, set } => {
            let ends = set.as_ref().and_then(|set| set.expires_at);
            (name(*space, key), set.as_ref().map(self::set), ends)
        }
        Change::Setting { name, text } => (setting(name), text.as_deref().map(str::to_owned), None),
        _ => return None,
    };
    let written = text.map(|text| Written {
        name: name.clone(),
        text,
        ends,
    });
    Some((name, written))
}

/// What is kept by [`name`] or [`setting`].
#[derive(Debug)]
pub(super) enum Kept {
    /// Limits of a key.
    Limits(Space, Key, Override),
    /// A setting, by its name.
    Setting(Arc<str>, Arc<str>),
}

/// What a name and its text say; `None`: somebody else wrote it.
pub(super) fn kept(name: &str, text: &str) -> Option<Kept> {
    if let Some(setting) = name.strip_prefix("s:") {
        return Some(Kept::Setting(setting.into(), text.into()));
    }
    let (space, key) = of_name(name)?;
    Some(Kept::Limits(space, key, read_set(text)?))
}

/// A setting as stores name it: `s:NAME`.
pub(super) fn setting(name: &str) -> String {
    ["s:", name].concat()
}

/// A key as stores name it: `j:KEY`, `q:QUEUE`, `p:POLICY`.
pub(super) fn name(space: Space, key: &Key) -> String {
    let space = match space {
        Space::Job => "j:",
        Space::Queue => "q:",
        Space::Policy => "p:",
    };
    [space, key.as_str()].concat()
}

/// The key of a [`name`].
pub(super) fn of_name(name: &str) -> Option<(Space, Key)> {
    let (space, key) = name.split_once(':')?;
    let space = match space {
        "j" => Space::Job,
        "q" => Space::Queue,
        "p" => Space::Policy,
        _ => return None,
    };
    Some((space, Key::new(key).ok()?))
}

/// Where a held job can be handed out.
pub(super) fn lane(scope: u64, queue: &str) -> String {
    format!("{scope}:{queue}")
}

/// Scope and queue of a [`lane`].
pub(super) fn read_lane(lane: &str) -> Option<(u64, Arc<str>)> {
    let (scope, queue) = lane.split_once(':')?;
    Some((scope.parse().ok()?, Arc::from(queue)))
}

/// The message that jobs came to these subqueues of a queue, a bit for each. There are sidecars that understand four words
/// and no more.
pub(super) fn came(queue: &str, subqueues: &[u64]) -> String {
    let words: Vec<String> = subqueues.iter().map(|word| format!("{word:x}")).collect();
    format!("came\n{}\n{queue}", words.join(" "))
}

/// The message of what came to subqueues of a queue and left them. Sidecars that know only [`came`] do not understand it
/// and go on.
pub(super) fn moved(queue: &str, moved: &str) -> String {
    format!("came\n{moved}\n{queue}")
}

/// Queue and text of such a message, without its first line.
pub(super) fn read_moved(about: &str) -> Option<(Arc<str>, Box<str>)> {
    let (moved, queue) = about.split_once('\n')?;
    moved
        .contains(':')
        .then(|| (Arc::from(queue), Box::from(moved)))
}

/// Queue and subqueues of such a message, without its first line.
pub(super) fn read_came(about: &str) -> Option<(Arc<str>, Arc<[u64]>)> {
    let (words, queue) = about.split_once('\n')?;
    let words = words.split(' ').map(|word| u64::from_str_radix(word, 16));
    Some((Arc::from(queue), words.collect::<Result<_, _>>().ok()?))
}

/// What is done with a job that a limit refuses, from its number.
pub(super) fn on_limit(number: i64) -> Option<OnLimit> {
    let all = [OnLimit::Wait, OnLimit::Reschedule, OnLimit::Drop];
    all.into_iter().find(|one| *one as i64 == number)
}

fn limited(one: One) -> Option<Limited> {
    Some(Limited {
        space: if one.queue { Space::Queue } else { Space::Job },
        key: Key::new(&one.key).ok()?,
        limits: read_numbers(one.numbers)?,
        on_limit: on_limit(one.action.into())?,
        policy: one.policy,
        cost: Cost {
            by_calls: one.by_calls,
            ..one.cost.map_or(Cost::ONE, read_cost)
        },
        share: one.share.map(|(group, weight)| Share { group, weight }),
    })
}

/// What a job paid, and where it says what it used; `None`: it paid 1, as most do.
fn cost(cost: &Cost) -> Option<(NonZeroU32, Option<Box<str>>)> {
    let settle = cost.rule.as_ref().and_then(|rule| rule.settle.clone());
    (cost.pays.get() > 1 || settle.is_some()).then_some((cost.pays, settle))
}

fn read_cost((pays, settle): (NonZeroU32, Option<Box<str>>)) -> Cost {
    let rule = settle.map(|settle| CostRule {
        from: None,
        default: pays,
        max: Some(pays),
        settle: Some(settle),
    });
    Cost {
        pays,
        rule: rule.map(Arc::new),
        by_calls: false,
    }
}

fn numbers(limits: &Limits) -> WrittenLimits {
    let rates = limits.rates.iter();
    WrittenLimits {
        slots: limits.concurrency,
        rates: rates
            .map(|rate| (rate.limit, rate.period, rate.window.code()))
            .collect(),
        spacing: limits.throttle.map(|throttle| {
            let completion = throttle.measure == Measure::Completion;
            (throttle.limit, throttle.period, throttle.burst, completion)
        }),
    }
}

fn read_numbers(numbers: WrittenLimits) -> Option<Limits> {
    let rates = numbers.rates.into_iter().map(|(limit, period, code)| {
        Some(Rate {
            limit,
            period,
            window: WindowKind::of_code(&code)?,
        })
    });
    let spacing = numbers.spacing;
    Some(Limits {
        concurrency: numbers.slots,
        rates: rates.collect::<Option<_>>()?,
        throttle: spacing.map(|(limit, period, burst, completion)| Throttle {
            limit,
            period,
            burst,
            measure: match completion {
                true => Measure::Completion,
                false => Measure::Start,
            },
        }),
    })
}

/// Text of what cannot fail to be text: no maps, no floats.
fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::TestClaim as _;

    #[test]
    fn a_first_attempt_of_0_is_not_one_that_was_not_shown() {
        let read = |of: &Claimed| claimed("a", Gen(1), 30_000_000, (&claim(of), "[]")).unwrap();
        let mut of = Claimed::from(Claim::of("a"));
        for attempt in [None, Some(0), Some(1), Some(u32::MAX)] {
            of.attempt = attempt;
            assert_eq!(read(&of).attempt, attempt);
        }
        of.worker = Some("w".into());
        assert_eq!(read(&of).worker.as_deref(), Some("w"));
    }
}
