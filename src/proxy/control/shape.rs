//! Limits and their state as JSON: the shapes of the rate-limiting text (section 10), with what the
//! OJS command line and admin UI read beside them.

use std::sync::Arc;

use crate::duration;
use crate::json::quote;
use crate::limit::{Limits, Measure, Rate, Throttle, Timestamp, WindowKind};
use crate::policy::numbers;
use crate::proxy::waiting::{MetLimit, met};
use crate::store::{Override, Room, Usage};

/// Beside a key that only an override names.
pub(super) const ONLY_SET: &str = "no policy has this key as it stands, and this sidecar has seen no job with it: none claimed, \
    and none enqueued that brings it";

/// Beside limits of a queue that the file's leave no say.
pub(super) const FILE_IS_STRICTER: &str = "the [[queue]] of the file is stricter than what is set here, and all must allow: \
    loosen it in the file";

/// What is shown of a key or a queue.
pub(in crate::proxy) struct LimitView {
    /// `key` or `queue`.
    pub(in crate::proxy) what: &'static str,
    /// Its name.
    pub(in crate::proxy) name: String,
    /// The numbers that stand now.
    pub(in crate::proxy) limits: Limits,
    /// What is used of them.
    pub(in crate::proxy) usage: Usage,
    /// What may start now.
    pub(in crate::proxy) room: Room,
    /// Jobs that wait, as far as we know.
    pub(in crate::proxy) waiting: u64,
    /// What was set over HTTP.
    pub(in crate::proxy) set: Option<Arc<Override>>,
    /// Why what was set may not do what was meant.
    pub(in crate::proxy) hint: Option<&'static str>,
    /// Where the store is lost: how many jobs may have slots beside those that have. The usage is of this
    /// sidecar alone then.
    pub(in crate::proxy) lost: Option<u32>,
    /// As of when.
    pub(in crate::proxy) now: Timestamp,
}

impl LimitView {
    /// Section 10.1; beside it `limited_by` and `next_start`, flat `active`, `available`, `waiting`, `limit` and
    /// `period`, what was set as `override`, and a `hint` where that may be in vain.
    pub(in crate::proxy) fn to_json(&self) -> String {
        let active = self.usage.active;
        let mut text = format!("{{\"{}\":{}", self.what, quote(&self.name));
        let available = self.available();
        if let Some((limit, available)) = self.limits.concurrency.zip(available) {
            text += &format!(
                r#","concurrency":{{"limit":{limit},"active":{active},"available":{available}}}"#
            );
        }
        for (nth, rate) in self.limits.rates.iter().enumerate() {
            // The text has one window a key; more are told beside it.
            text += &match nth {
                0 => format!(r#","rate":{}"#, self.window(nth, rate)),
                _ => format!(r#","rate_{}":{}"#, nth + 1, self.window(nth, rate)),
            };
        }
        if let Some(throttle) = self.limits.throttle {
            text += &format!(
                r#","throttle":{{{},"next_allowed_at":"{}"}}"#,
                throttle_members(&throttle),
                rfc3339(self.usage.next_start.unwrap_or(self.now)),
            );
        }
        if let Some(until) = self.usage.shut_until {
            text += &format!(r#","shut_until":"{}""#, rfc3339(until));
        }
        let strategy = self.met().map(|met| quote(met.strategy.as_str()));
        let next = self.next_start().map(|at| quote(&rfc3339(at)));
        for (name, value) in [("limited_by", strategy), ("next_start", next)] {
            text += &format!(r#","{name}":{}"#, value.as_deref().unwrap_or("null"));
        }
        let waiting = self.waiting;
        text += &format!(r#","waiting_count":{waiting},"estimated":true,"active":{active}"#);
        if let Some(available) = available {
            text += &format!(r#","available":{available}"#);
        }
        text += &format!(r#","waiting":{waiting}{}"#, flat(&self.limits));
        if let Some(set) = &self.set {
            text += &format!(r#","override":{}"#, set_limits(set));
        }
        if let Some(hint) = self.hint {
            text += &format!(r#","hint":{}"#, quote(hint));
        }
        if self.lost.is_some() {
            text += r#","store":"lost""#;
        }
        text + "}"
    }

    /// Which limit lets nothing start now; of several, the one that lets go last.
    pub(in crate::proxy) fn met(&self) -> Option<MetLimit> {
        met(&self.usage, &self.limits, self.now)
    }

    /// When the next start can be; `None`: a slot must end first, and nobody knows when.
    pub(in crate::proxy) fn next_start(&self) -> Option<Timestamp> {
        match self.room {
            Room { starts: 1.., .. } => Some(self.now),
            Room { slot: true, .. } => None,
            Room { at, .. } => at,
        }
    }

    fn window(&self, nth: usize, rate: &Rate) -> String {
        let counted = self.usage.windows.get(nth).copied();
        let (count, leaves) = counted.unwrap_or((0, None));
        format!(
            r#"{{{},"current_count":{count},"window_resets_at":"{}"}}"#,
            rate_members(rate),
            rfc3339(leaves.unwrap_or(self.now)),
        )
    }

    fn available(&self) -> Option<u32> {
        let limit = self.limits.concurrency?;
        let free = limit.saturating_sub(self.usage.active);
        Some(self.lost.map_or(free, |lost| lost.min(free)))
    }

    /// The key as the OJS command line lists it: `concurrency` is a number there.
    fn in_one_line(&self) -> String {
        let mut text = format!("{{\"key\":{}", quote(&self.name));
        if let Some((limit, available)) = self.limits.concurrency.zip(self.available()) {
            text += &format!(r#","concurrency":{limit},"available":{available}"#);
        }
        text + &format!(r#","active":{}}}"#, self.usage.active)
    }
}

/// Section 10.3, and `rate_limits` for the OJS command line.
pub(super) fn list(states: &[LimitView], total: usize, page: usize, per_page: usize) -> String {
    let items: Vec<String> = states.iter().map(LimitView::to_json).collect();
    let lines: Vec<String> = states.iter().map(LimitView::in_one_line).collect();
    format!(
        r#"{{"items":[{}],"pagination":{{"total":{total},"page":{page},"per_page":{per_page}}},"rate_limits":[{}]}}"#,
        items.join(","),
        lines.join(","),
    )
}

/// What was set over HTTP, as it was set, with `limit` and `period` flat beside it.
fn set_limits(set: &Override) -> String {
    let mut members = limits(&set.limits);
    if let Some(at) = set.expires_at {
        members.push(format!(r#""expires_at":"{}""#, rfc3339(at)));
    }
    for (name, text) in [("reason", &set.reason), ("by", &set.by)] {
        members.extend(
            text.as_ref()
                .map(|text| format!("\"{name}\":{}", quote(text))),
        );
    }
    format!("{{{}{}}}", members.join(","), flat(&set.limits))
}

fn limits(limits: &Limits) -> Vec<String> {
    let slots = limits.concurrency;
    let slots = slots.map(|slots| format!(r#""concurrency":{slots}"#));
    let rate = match limits.rates.as_slice() {
        [] => None,
        [one] => Some(format!(r#""rate":{{{}}}"#, rate_members(one))),
        several => Some(rate_list(several)),
    };
    let throttle = limits.throttle.as_ref().map(throttle_member);
    slots.into_iter().chain(rate).chain(throttle).collect()
}

/// Limits as one object, for the log.
pub(super) fn limits_in_log(all: &Limits) -> String {
    format!("{{{}}}", limits(all).join(","))
}

fn rate_list(rates: &[Rate]) -> String {
    let each = rates.iter();
    let each = each.map(|rate| format!("{{{}}}", rate_members(rate)));
    format!(r#""rate":[{}]"#, each.collect::<Vec<_>>().join(","))
}

fn rate_members(rate: &Rate) -> String {
    let window = match &rate.window {
        WindowKind::Sliding => String::new(),
        WindowKind::Fixed => r#","window":"fixed""#.to_owned(),
        WindowKind::Calendar(_, zone) => {
            format!(r#","window":"calendar","tz":{}"#, quote(zone.name()))
        }
    };
    let (limit, period) = (rate.limit, numbers::period(rate));
    format!(r#""limit":{limit},"period":"{period}"{window}"#)
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
fn flat(limits: &Limits) -> String {
    let found = match (limits.rates.first(), &limits.throttle) {
        (Some(rate), _) => Some((rate.limit, numbers::period(rate))),
        (None, Some(throttle)) => {
            let period = duration::iso(throttle.period.get());
            Some((throttle.limit, period.into()))
        }
        (None, None) => None,
    };
    found.map_or_else(String::new, |(limit, period)| {
        format!(r#","limit":{limit},"period":"{period}""#)
    })
}

/// The value of `rate_limit` in a queue's config, in a form that can be set again; `None`: none is set.
pub(super) fn queue_rate_limit(limits: &Limits) -> Option<String> {
    let rate = match limits.rates.as_slice() {
        [] => None,
        [one] => Some(rate_members(one)),
        several => Some(rate_list(several)),
    };
    let throttle = limits.throttle.as_ref().map(throttle_member);
    let members: Vec<String> = rate.into_iter().chain(throttle).collect();
    (!members.is_empty()).then(|| format!("{{{}}}", members.join(",")))
}

/// A time as JSON bodies have it.
pub(in crate::proxy) fn rfc3339(at: Timestamp) -> String {
    duration::rfc3339(at.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_the_text_writes_them() {
        assert_eq!(
            rfc3339(Timestamp(1_770_984_000_100_000)),
            "2026-02-13T12:00:00.100Z"
        );
        assert_eq!(rfc3339(Timestamp::NEVER), "9999-12-31T23:59:59.999Z");
    }
}
