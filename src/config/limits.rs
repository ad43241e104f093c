//! How fast and how many: `concurrency`, `rate` and `throttle` of a policy or queue.

use std::ops::Range;

use toml::de::DeValue;

use super::reader::Table;
use super::values::Text;
use crate::limit::{Limits, Measure, Rate, Throttle};
use crate::policy::numbers::{self, Window, Wrong};

/// A period that any `rate` may have, in microseconds.
const MINUTE: u64 = 60_000_000;

/// `concurrency`, `rate` and `throttle` of a policy or queue.
pub(super) fn limits(table: &mut Table<'_>) -> Option<Limits> {
    let bounded = table.get("concurrency").is_some();
    let concurrency = match table.integer("concurrency") {
        None => None,
        Some((slots, span)) => match numbers::concurrency(slots) {
            Ok(slots) => Some(slots),
            Err(message) => {
                table.error(&span, format!("`{}.concurrency` {message}", table.path), "");
                None
            }
        },
    };
    let given = table.get("rate");
    let listed = table.tables("rate", "rate = { limit = 100, period = \"1m\" }");
    if let (Err(wrong), Some(given)) = (numbers::rates(listed.len()), &given) {
        let title = format!("`{}` {}", given.path, wrong.message);
        table.error(&given.span, title, "");
    }
    if let Some(given) = given.as_ref().filter(|given| is_empty(given.value)) {
        let title = format!("`{}` is an empty list", given.path);
        let hint = "leave it out, or write rate = { limit = 100, period = \"1m\" }";
        table.error(&given.span, title, hint);
    }
    let rates: Vec<Rate> = listed.into_iter().filter_map(rate).collect();
    let throttled = table.get("throttle").is_some();
    let throttle = table
        .maybe_table("throttle", "throttle = { limit = 10, period = \"1s\" }")
        .and_then(throttle);
    // What is wrong was said; to go on without it would only find that a limit is missing.
    let lost = (bounded && concurrency.is_none())
        || (given.is_some() && rates.is_empty())
        || (throttled && throttle.is_none());
    (!lost).then_some(Limits {
        concurrency,
        rates,
        throttle,
    })
}

fn is_empty(value: &DeValue<'_>) -> bool {
    matches!(value, DeValue::Array(items) if items.is_empty())
}

fn rate(mut table: Table<'_>) -> Option<Rate> {
    let limit = limit(&mut table);
    let window = table.word("window", Window::Sliding, &Window::WORDS);
    let unread = table.get("tz").is_some();
    let tz = table.text("tz");
    let unread = unread && tz.is_none();
    let zone = tz.as_ref().map(|tz| tz.text.as_str());
    // With a period that is wrong the rest is looked at all the same, under one that would do.
    let mut whole = !unread;
    let read = match window {
        Window::Calendar => {
            let period = period_text(&mut table);
            whole &= period.is_some();
            limit.as_ref().map(|(limit, at)| {
                let day = || (String::from("P1D"), at.clone());
                let (text, span) = period.map_or_else(day, |Text { text, span }| (text, span));
                let rate = numbers::calendar(*limit, &text, zone);
                rate.map_err(|wrong| (wrong, at.clone(), span))
            })
        }
        Window::Sliding | Window::Fixed => {
            let period = period(&mut table);
            let read = if window == Window::Fixed {
                numbers::fixed
            } else {
                numbers::rate
            };
            whole &= period.is_some();
            limit.as_ref().map(|(limit, at)| {
                let (period, span) = period.unwrap_or_else(|| (MINUTE, at.clone()));
                let rate = numbers::no_zone(zone).and_then(|()| read(*limit, period));
                rate.map_err(|wrong| (wrong, at.clone(), span))
            })
        }
    };
    let rate = match read {
        Some(Ok(rate)) => Some(rate).filter(|_| whole),
        Some(Err((wrong, at, period))) => {
            let zone = tz.map_or_else(|| at.clone(), |tz| tz.span);
            out_of_range(&table, wrong, [&at, &period, &zone]);
            None
        }
        None => None,
    };
    table.finish();
    rate
}

/// A period that may be a calendar's.
fn period_text(table: &mut Table<'_>) -> Option<Text> {
    match table.get("period").map(|found| found.value) {
        Some(DeValue::String(_)) => table.text("period"),
        // Says what is wrong with it.
        _ => period(table).and(None),
    }
}

fn throttle(mut table: Table<'_>) -> Option<Throttle> {
    let by_interval = table.get("interval").is_some();
    let interval = table.micros("interval");
    let burst = table.integer("burst");
    let measure = table.word("measure", Measure::Start, &numbers::MEASURES);
    let (burst, burst_span) = burst.map_or((1, table.span.clone()), |(burst, span)| (burst, span));
    if by_interval {
        not_beside_interval(&mut table);
    }
    let found = match interval {
        Some((micros, span)) => numbers::interval(micros, burst)
            .map_err(|wrong| out_of_range(&table, wrong, [&span, &span, &burst_span])),
        None if by_interval => Err(()),
        None => {
            let (limit, period) = (limit(&mut table), period(&mut table));
            let read = limit.map(|(limit, at)| {
                let (read, until) = match period {
                    Some((period, until)) => {
                        let read = numbers::throttle(limit, period, burst);
                        (read.map(Some), until)
                    }
                    // How they go together depends on the period.
                    None => {
                        let alone = numbers::starts(limit);
                        let alone = alone.and_then(|_| numbers::count("burst", burst));
                        (alone.map(|_| None), at.clone())
                    }
                };
                read.map_err(|wrong| out_of_range(&table, wrong, [&at, &until, &burst_span]))
            });
            read.unwrap_or(Err(())).and_then(|read| read.ok_or(()))
        }
    };
    table.finish();
    found.ok().map(|spacing| Throttle { measure, ..spacing })
}

fn not_beside_interval(table: &mut Table<'_>) {
    for other in ["limit", "period"] {
        if let Some(found) = table.get(other) {
            let title = format!("`{}` stands beside `interval`", found.path);
            let hint = "write either interval, or limit and period";
            table.error(&found.span, title, hint);
        }
    }
}

fn limit(table: &mut Table<'_>) -> Option<(i64, Range<usize>)> {
    if table.get("limit").is_none() {
        table.missing(
            &table.span,
            format!("`{}` needs a `limit`", table.path),
            "such as limit = 100",
        );
    }
    table.integer("limit")
}

fn period(table: &mut Table<'_>) -> Option<(u64, Range<usize>)> {
    if table.get("period").is_none() {
        table.missing(
            &table.span,
            format!("`{}` needs a `period`", table.path),
            "such as period = \"PT1M\"",
        );
    }
    table.micros("period")
}

/// Reports a value at the place of its member: limit (or interval), period, and burst or time zone.
fn out_of_range(table: &Table<'_>, wrong: Wrong, [limit, period, other]: [&Range<usize>; 3]) {
    let (span, what) = match wrong.member {
        "period" => (period, "is out of range"),
        "burst" => (other, "is out of range"),
        "tz" => (other, "cannot be this"),
        _ => (limit, "is out of range"),
    };
    let title = format!("`{}.{}` {what}", table.path, wrong.member);
    table.error(span, title, wrong.message);
}
