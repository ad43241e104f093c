//! Limits and their state as JSON: the shapes of the rate-limiting text (section 10), with what the
//! OJS command line and admin UI read beside them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::done::Done;
use crate::duration;
use crate::json::quote;
use crate::limit::{
    Cost, KeyState, Limited, Limits, Measure, Rate, Refusal, Space, Strategy, Throttle, Timestamp,
    WindowKind,
};
use crate::policy::{Currency, numbers};
use crate::store::{Override, Usage};

/// Beside a key that only an override names.
pub(crate) const ONLY_SET: &str = "this binds nothing yet: no policy and no [[egress]] has this key as it stands, and no job or call with it was seen here. \
    A queue as a whole is _queue:NAME, and all keys of a policy or [[egress]] are --policy NAME";

/// Beside a queue that is paused, and that only the pause names.
pub(crate) const UNKNOWN_QUEUE: &str =
    "no [[queue]] names it, and no job of it is known here: is the name right?";

/// Beside a key that nothing limits any more.
pub(crate) const POLICY_LEFT: &str = "the [[policy]], [[egress]] or [[egress.budget]] that limited this key is not in the file any more, or has another key: \
    nothing of the file limits it, and what is set for it by hand binds only jobs that bring the key themselves";

/// Beside a key that only an entry in shadow has.
pub(crate) const ONLY_TRIED: &str = "the [[policy]] that has this key is only tried (mode = \"shadow\"): it limits nothing, and \
    what is set for the key by hand binds only jobs that bring it themselves";

/// Beside what is set for a key in vain.
pub(crate) const POLICY_IS_STRICTER: &str = "what is set for all keys of its policy is stricter, and both count: `ojs-throttle limit --policy` sets that";

/// Beside limits of a queue that the file's leave no say.
pub(crate) const FILE_IS_STRICTER: &str = "the [[queue]] of the file is stricter than what is set here, and all must allow: \
    loosen it in the file";

/// Beside a pause of what does not let its jobs wait.
pub(crate) const DISCARDED: &str = "JOBS ARE DISCARDED while this is paused, because on_limit is \"drop\": resume it, or write \
    on_limit = \"wait\" into the file first";

/// Beside what is set for all keys of a policy that is not there.
pub(crate) const NO_POLICY: &str = "no [[policy]], [[egress]] or [[egress.budget]] of the file has this name: it binds nothing, \
    and can be taken away";

/// What is shown of a key, a queue or a policy.
pub(crate) struct LimitView {
    /// The key, with the numbers that stand now, and what one more job pays.
    pub(crate) limited: Limited,
    /// Its name.
    pub(crate) name: String,
    /// What is used of them.
    pub(crate) usage: Usage,
    /// What the limits count.
    pub(crate) unit: &'static str,
    /// The currency of what they count, if that is money.
    pub(crate) currency: Option<Currency>,
    /// What the store knows.
    pub(crate) state: KeyState,
    /// Jobs that wait, as far as we know.
    pub(crate) waiting: u64,
    /// Calls of this sidecar: how many are out, and how many wait.
    pub(crate) calls: (usize, usize),
    /// When those that wait will have started, if that can be said.
    pub(crate) done: Option<Done>,
    /// How many more wait in a minute than did, if that can be said.
    pub(crate) growth: Option<i64>,
    /// What was set over HTTP.
    pub(crate) set: Option<Arc<Override>>,
    /// What was set over HTTP for its policies, by their names.
    pub(crate) of_policies: BTreeMap<Arc<str>, Arc<Override>>,
    /// Why what was set may not do what was meant.
    pub(crate) hint: Option<Cow<'static, str>>,
    /// Whether what was set binds something; also where nothing was set.
    pub(crate) binds: bool,
    /// Where the store is lost: how many jobs may have slots beside those that have. The usage is of this
    /// sidecar alone then.
    pub(crate) lost: Option<u32>,
    /// As of when the store knows that.
    pub(crate) now: Timestamp,
    /// As of when it is known what waits.
    pub(crate) at: Timestamp,
}

impl LimitView {
    /// Section 10.1; beside it `unit`, `limited_by` and `next_start`, flat `active`, `available`, `waiting`, `limit` and
    /// `period`, what was set as `override` and, for its policies, as `policy_overrides`, and a `hint` where that may be
    /// in vain.
    pub(crate) fn to_json(&self) -> String {
        let (name, unit, currency) = (quote(&self.name), self.unit, self.currency.as_ref());
        let (what, name) = match self.limited.space {
            Space::Job => ("key", name),
            Space::Queue => ("queue", name),
            Space::Policy => ("key", quote(&Space::Policy.name_of(&self.limited.key))),
        };
        let mut text = format!(r#"{{"{what}":{name},"unit":"{unit}""#);
        text += &self.each_limit();
        if let Some(until) = self.usage.shut_until {
            text += &format!(r#","shut_until":"{}""#, rfc3339(until));
        }
        let refused = self.refused("", 1);
        let strategy = (refused.as_ref()).map(|refusal| quote(refusal.strategy.as_str()));
        let next = self.next_start(refused.as_ref());
        // Without the store nobody says when its slots are free.
        let next = next.filter(|_| !self.is_of_policy() && self.lost != Some(0));
        let next = next.map(|at| quote(&rfc3339(at)));
        for (name, value) in [("limited_by", strategy), ("next_start", next)] {
            text += &format!(r#","{name}":{}"#, value.as_deref().unwrap_or("null"));
        }
        let waiting = self.waiting + self.calls.1 as u64;
        text += &format!(r#","waiting_count":{waiting},"estimated":true"#);
        if !self.is_of_policy() {
            text += &format!(r#","active":{}"#, self.active());
        }
        if let Some(available) = self.available() {
            text += &format!(r#","available":{available}"#);
        }
        text += &format!(
            r#","waiting":{waiting}{}"#,
            flat(&self.limited.limits, currency)
        );
        if let Some(done) = self.done {
            text += &format!(r#","waiting_done":{}"#, done.to_json());
        }
        if let Some(growth) = self.growth {
            text += &format!(r#","waiting_growth":{growth}"#);
        }
        if self.calls != (0, 0) {
            let (out, waiting) = self.calls;
            text += &format!(r#","calls":{{"out":{out},"waiting":{waiting}}}"#);
        }
        text += &format!(r#","at":"{}""#, duration::exactly(self.at.0));
        if let Some(set) = &self.set {
            text += &format!(r#","override":{}"#, set_limits(set, currency));
        }
        let of_policies = self.of_policies.iter();
        let of_policies = of_policies
            .map(|(policy, set)| format!("{}:{}", quote(policy), set_limits(set, currency)));
        let of_policies: Vec<_> = of_policies.collect();
        if !of_policies.is_empty() {
            text += &format!(r#","policy_overrides":{{{}}}"#, of_policies.join(","));
        }
        if let Some(hint) = &self.hint {
            text += &format!(r#","hint":{}"#, quote(hint));
        }
        if self.lost.is_some() {
            text += r#","store":"lost""#;
        }
        text + "}"
    }

    /// What it is called where keys, queues and policies stand side by side.
    pub(crate) fn full_name(&self) -> String {
        match self.limited.space {
            Space::Queue => format!("_queue:{}", self.name),
            space => space.name_of(&self.limited.key).into_owned(),
        }
    }

    /// Each limit with what is used of it.
    fn each_limit(&self) -> String {
        let (active, mut text) = (self.usage.active, String::new());
        if let Some(limit) = self.limited.limits.concurrency {
            let used = self.available();
            let used =
                used.map(|available| format!(r#","active":{active},"available":{available}"#));
            let used = used.unwrap_or_default();
            text += &format!(r#","concurrency":{{"limit":{limit}{used}}}"#);
        }
        for (nth, rate) in self.limited.limits.rates.iter().enumerate() {
            // The text has one window a key; more are told beside it.
            text += &match nth {
                0 => format!(r#","rate":{}"#, self.window(nth, rate)),
                _ => format!(r#","rate_{}":{}"#, nth + 1, self.window(nth, rate)),
            };
        }
        if let Some(throttle) = self.limited.limits.throttle {
            let next = rfc3339(self.usage.next_start.unwrap_or(self.now));
            let next = match self.is_of_policy() {
                true => String::new(),
                false => format!(r#","next_allowed_at":"{next}""#),
            };
            text += &format!(r#","throttle":{{{}{next}}}"#, throttle_members(&throttle));
        }
        text
    }

    /// Whether it stands for each key of a policy: then nothing is used of it as such.
    fn is_of_policy(&self) -> bool {
        self.limited.space == Space::Policy
    }

    /// When those that wait now will have started, as a sentence.
    pub(crate) fn ends(&self) -> Option<String> {
        let done = self.done?;
        let (from, to) = done.within;
        let [at, from, to] = [done.at, from, to].map(rfc3339);
        let (waiting, name) = (self.waiting + self.calls.1 as u64, &self.name);
        let grows = match self.growth {
            Some(more @ 1..) => {
                format!("; at this pace the line grows: each minute {more} more come than start")
            }
            _ => String::new(),
        };
        Some(format!(
            "the last of {waiting} that wait now for {name} starts at about {at} (from {from} to {to}), as far as this limit decides{grows}"
        ))
    }

    /// Whether what it counts are neither starts nor what jobs cost.
    pub(crate) fn is_of_budget(&self) -> bool {
        !matches!(self.unit, "starts" | "cost")
    }

    /// So much of what it counts.
    pub(crate) fn shown(&self, units: u32) -> String {
        let amount = self.currency.as_ref();
        amount.map_or_else(|| units.to_string(), |amount| amount.show(units.into()))
    }

    /// Why this job does not start now if it pays so much; of several limits, the one that lets go last.
    pub(crate) fn refused(&self, job: &str, pays: u32) -> Option<Refusal> {
        if !self.binds {
            return None;
        }
        let asked = (self.state).ask_for(job, &self.limited.limits, (pays, u64::MAX), self.now);
        asked.err()
    }

    /// When the next start can be after this refusal; `None`: a slot must end first, and nobody knows when.
    pub(crate) fn next_start(&self, refused: Option<&Refusal>) -> Option<Timestamp> {
        let Some(refusal) = refused else {
            return Some(self.now);
        };
        let next = match refusal.strategy {
            Strategy::Line => {
                let next = self.state.next_with_line(&self.limited.limits, 1, self.now);
                Some(next).filter(|at| *at != Timestamp::NEVER)
            }
            _ => refusal.at,
        };
        next.filter(|_| !refusal.slot)
    }

    fn window(&self, nth: usize, rate: &Rate) -> String {
        let counted = self.usage.windows.get(nth).copied();
        let (count, leaves) = counted.unwrap_or((0, None));
        let members = rate_members(rate, self.currency.as_ref());
        if self.is_of_policy() {
            return format!("{{{members}}}");
        }
        format!(
            r#"{{{members},"current_count":{},"window_resets_at":"{}"}}"#,
            amount(count, self.currency.as_ref()),
            rfc3339(leaves.unwrap_or(self.now)),
        )
    }

    fn available(&self) -> Option<u32> {
        let limit = self.limited.limits.concurrency;
        let limit = limit.filter(|_| !self.is_of_policy())?;
        let free = limit.saturating_sub(self.usage.active);
        Some(self.lost.map_or(free, |lost| lost.min(free)))
    }

    /// The key as the OJS command line lists it: `concurrency` is a number there.
    fn in_one_line(&self) -> String {
        let mut text = format!("{{\"key\":{}", quote(&self.name));
        if let Some((limit, available)) = self.limited.limits.concurrency.zip(self.available()) {
            text += &format!(r#","concurrency":{limit},"available":{available}"#);
        }
        text + &format!(r#","active":{}}}"#, self.active())
    }

    /// What has slots; of a budget, what its calls that are out have paid.
    fn active(&self) -> String {
        amount(self.usage.active, self.currency.as_ref())
    }
}

/// What limits count that jobs pay for so.
pub(crate) fn unit(cost: &Cost) -> &'static str {
    match cost.rule {
        None => "starts",
        Some(_) => "cost",
    }
}

/// Section 10.3, and `rate_limits` for the OJS command line.
pub(crate) fn list(states: &[LimitView], total: usize, page: usize, per_page: usize) -> String {
    let items: Vec<String> = states.iter().map(LimitView::to_json).collect();
    let lines: Vec<String> = states.iter().map(LimitView::in_one_line).collect();
    format!(
        r#"{{"items":[{}],"pagination":{{"total":{total},"page":{page},"per_page":{per_page}}},"rate_limits":[{}]}}"#,
        items.join(","),
        lines.join(","),
    )
}

/// What was set over HTTP, as it was set, with `limit` and `period` flat beside it.
fn set_limits(set: &Override, currency: Option<&Currency>) -> String {
    let mut members = limits(&set.limits, currency);
    if let Some(at) = set.expires_at {
        members.push(format!(r#""expires_at":"{}""#, rfc3339(at)));
    }
    for (name, text) in [("reason", &set.reason), ("by", &set.by)] {
        members.extend(
            text.as_ref()
                .map(|text| format!("\"{name}\":{}", quote(text))),
        );
    }
    format!("{{{}{}}}", members.join(","), flat(&set.limits, currency))
}

fn limits(limits: &Limits, currency: Option<&Currency>) -> Vec<String> {
    let slots = limits.concurrency;
    let slots = slots.map(|slots| format!(r#""concurrency":{slots}"#));
    let rate = match limits.rates.as_slice() {
        [] => None,
        [one] => Some(format!(r#""rate":{{{}}}"#, rate_members(one, currency))),
        several => Some(rate_list(several, currency)),
    };
    let throttle = limits.throttle.as_ref().map(throttle_member);
    slots.into_iter().chain(rate).chain(throttle).collect()
}

/// Limits as one object, for the log.
pub(crate) fn limits_in_log(all: &Limits, currency: Option<&Currency>) -> String {
    format!("{{{}}}", limits(all, currency).join(","))
}

fn rate_list(rates: &[Rate], currency: Option<&Currency>) -> String {
    let each = rates.iter();
    let each = each.map(|rate| format!("{{{}}}", rate_members(rate, currency)));
    format!(r#""rate":[{}]"#, each.collect::<Vec<_>>().join(","))
}

fn rate_members(rate: &Rate, currency: Option<&Currency>) -> String {
    let window = match &rate.window {
        WindowKind::Sliding => String::new(),
        WindowKind::Fixed => r#","window":"fixed""#.to_owned(),
        WindowKind::Calendar(_, zone) => {
            format!(r#","window":"calendar","tz":{}"#, quote(zone.name()))
        }
    };
    let (limit, period) = (amount(rate.limit.get(), currency), numbers::period(rate));
    format!(r#""limit":{limit},"period":"{period}"{window}"#)
}

/// A number of what is limited, as it can be set again: money is a text.
fn amount(units: u32, currency: Option<&Currency>) -> String {
    match currency {
        Some(currency) => quote(&currency.show(units.into())),
        None => units.to_string(),
    }
}

fn throttle_member(throttle: &Throttle) -> String {
    format!(r#""throttle":{{{}}}"#, throttle_members(throttle))
}

fn throttle_members(throttle: &Throttle) -> String {
    let limit = throttle.limit;
    let period = duration::iso(throttle.period.get());
    let burst = match throttle.burst.get() {
        1 => String::new(),
        burst => format!(r#","burst":{burst}"#),
    };
    let measure = match throttle.measure {
        Measure::Start => "",
        Measure::Completion => r#","measure":"completion""#,
    };
    format!(r#""limit":{limit},"period":"{period}"{burst}{measure}"#)
}

/// `limit` and `period` for those who know one limit a key: its first window, else its spacing.
fn flat(limits: &Limits, currency: Option<&Currency>) -> String {
    let found = match (limits.rates.first(), &limits.throttle) {
        (Some(rate), _) => Some((amount(rate.limit.get(), currency), numbers::period(rate))),
        (None, Some(throttle)) => {
            let period = duration::iso(throttle.period.get());
            Some((throttle.limit.to_string(), period.into()))
        }
        (None, None) => None,
    };
    found.map_or_else(String::new, |(limit, period)| {
        format!(r#","limit":{limit},"period":"{period}""#)
    })
}

/// The value of `rate_limit` in a queue's config, in a form that can be set again; `None`: none is set.
pub(crate) fn queue_rate_limit(limits: &Limits) -> Option<String> {
    let rate = match limits.rates.as_slice() {
        [] => None,
        [one] => Some(rate_members(one, None)),
        several => Some(rate_list(several, None)),
    };
    let throttle = limits.throttle.as_ref().map(throttle_member);
    let members: Vec<String> = rate.into_iter().chain(throttle).collect();
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

/// A time as JSON bodies have it.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    duration::rfc3339(at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::limit::{EARLY, Key};

    fn seconds(n: f64) -> Timestamp {
        Timestamp((n * 1e6) as u64)
    }

    /// A key with 4 slots, 3 starts in any 10 s, and 4 a second, after 10 s.
    fn key() -> LimitView {
        let number = |n: u32| std::num::NonZeroU32::new(n).unwrap();
        let period = |seconds: u64| std::num::NonZeroU64::new(seconds * 1_000_000).unwrap();
        let limits = Limits {
            concurrency: Some(4),
            rates: vec![Rate {
                limit: number(3),
                period: period(10),
                window: WindowKind::Sliding,
            }],
            throttle: Some(Throttle {
                limit: number(4),
                period: period(1),
                burst: number(1),
                measure: Measure::Start,
            }),
        };
        LimitView {
            currency: None,
            limited: Limited::new(Space::Job, Key::new("k").unwrap(), limits, "p".into()),
            name: "k".into(),
            usage: Usage::default(),
            unit: "cost",
            state: KeyState::default(),
            waiting: 0,
            calls: (0, 0),
            done: None,
            growth: None,
            set: None,
            of_policies: BTreeMap::new(),
            hint: None,
            binds: true,
            lost: None,
            now: seconds(10.0),
            at: seconds(10.0),
        }
    }

    /// Starts a job of cost 1, and goes on by some seconds.
    fn start(view: &mut LimitView, on: f64) {
        let limits = std::iter::once(&view.limited.limits);
        view.state.take(limits, 1, view.now, view.now);
        view.now = view.now.plus(seconds(on).0);
    }

    fn why(view: &LimitView, job: &str, pays: u32) -> Option<(&'static str, u32, u32)> {
        let refusal = view.refused(job, pays)?;
        Some((refusal.strategy.as_str(), refusal.limit, refusal.current))
    }

    #[test]
    fn the_limit_that_lets_go_last_is_named() {
        let mut view = key();
        start(&mut view, 0.25);
        view.now = Timestamp(view.now.0 - EARLY);
        assert_eq!(why(&view, "", 1), None);
        view.now = seconds(10.1);
        assert_eq!(why(&view, "", 1), Some(("throttle", 4, 4)));
        view.now = seconds(10.25);
        start(&mut view, 0.25);
        start(&mut view, 0.1);
        assert_eq!(why(&view, "", 1), Some(("rate", 3, 3)));
        view.state.shut(seconds(30.0), view.now);
        assert_eq!(why(&view, "", 1), Some(("shut", 0, 0)));
        let next = |view: &LimitView| view.next_start(view.refused("", 1).as_ref());
        assert_eq!(next(&view), Some(seconds(30.0).plus(EARLY)));
        view.state.occupy(2);
        assert_eq!(why(&view, "", 1), Some(("concurrency", 4, 5)));
        assert_eq!(next(&view), None);
    }

    #[test]
    fn a_job_is_refused_for_its_cost_and_others_for_its_place() {
        let mut view = key();
        start(&mut view, 0.25);
        start(&mut view, 0.25);
        assert_eq!(why(&view, "big", 1), None);
        assert_eq!(why(&view, "big", 2), Some(("rate", 3, 2)));
        view.state
            .stand_in_line(&Arc::from("big"), (2, 0), view.now);
        assert_eq!(why(&view, "", 1), Some(("line", 0, 0)));
        // Big starts next, and that is not when its place is given up.
        let leaves = view.refused("big", 2).and_then(|refusal| refusal.at);
        assert_eq!(view.next_start(view.refused("", 1).as_ref()), leaves);
        assert_eq!(why(&view, "big", 1), None);
        assert_eq!(view.next_start(None), Some(view.now));
    }

    #[test]
    fn times_are_as_the_text_writes_them() {
        assert_eq!(
            rfc3339(Timestamp(1_770_984_000_100_000)),
            "2026-02-13T12:00:00.100Z"
        );
        assert_eq!(rfc3339(Timestamp::NEVER), "9999-12-31T23:59:59.999Z");
    }
}
