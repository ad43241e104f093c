//! `[[queue]]`: limits and bounds, and the bounds of `[[tenant]]`.

use std::collections::HashSet;
use std::ops::Range;

use super::bounds;
use super::limits::limits;
use super::patterns::{QUEUE, patterns};
use super::reader::{Reading, Table};
use crate::limit::Limits;
use crate::policy::{Pattern, QueueLimits};
use crate::pressure::{FileBounds, Given};

/// What happens at a bound is said, and there is none.
fn warn_of_no_bound(reading: &Reading<'_>, name: &Range<usize>, bounds: &Given, names_one: bool) {
    if !names_one && !bounds.is_silent() {
        reading.warn(
            name.clone(),
            "this queue entry says what happens at a bound, and has none",
            "add max_depth or max_size: without it this is only for a bound that is set over HTTP",
        );
    }
}

/// A queue may have one entry of its own, whether all of that can be read or not.
fn unique(
    reading: &Reading<'_>,
    seen: &mut HashSet<String>,
    names: &[Pattern],
    span: &Range<usize>,
) {
    for name in names {
        if !seen.insert(name.as_str().to_owned()) {
            let title = format!("queue {:?} is there twice", name.as_str());
            reading.error(span.clone(), title, "make it one entry");
        }
    }
}

/// Reads and compiles all of them, in their order.
pub(super) fn queues(
    reading: &Reading<'_>,
    root: &mut Table<'_>,
) -> (Vec<QueueLimits>, FileBounds) {
    let mut queues: Vec<QueueLimits> = Vec::new();
    let mut bounded = Vec::new();
    let mut seen = HashSet::new();
    for mut table in root.tables("queue", "[[queue]] above its fields") {
        let header = table.span.clone();
        let name = table
            .get("name")
            .map(|found| (patterns(&table, &found, Some(QUEUE)), found));
        if name.is_none() {
            table.missing(
                &header,
                "a queue entry needs a `name`",
                "add name = \"…\"; a glob gives each queue its own counters",
            );
        }
        let limits = limits(&mut table);
        let names = name.as_ref().and_then(|(names, _)| names.as_ref());
        let all = |name: &Pattern| {
            name.as_str()
                .bytes()
                .all(|byte| matches!(byte, b'*' | b'?'))
        };
        let everything = names.is_some_and(|names| names.iter().any(all));
        let bounds = bounds::bounds(&mut table, everything);
        let names_one = bounds::NAMES.iter().any(|name| table.get(name).is_some());
        table.finish();
        let Some((Some(names), found)) = name else {
            continue;
        };
        unique(reading, &mut seen, &names, &found.span);
        let Some(limits) = limits else {
            continue;
        };
        // One that was named and is wrong was reported as that.
        if limits == Limits::default() && bounds.is_silent() && !names_one {
            reading.missing(
                found.span.clone(),
                "this queue entry has no limit and no bound",
                "add a limit, such as concurrency = 5, or a bound, such as max_depth = 1000, or remove the entry",
            );
        }
        warn_of_no_bound(reading, &found.span, &bounds, names_one);
        for name in names {
            if !bounds.is_silent() {
                bounded.push((name.clone(), bounds.clone()));
            }
            // What only bounds a queue must not make its FETCHes look for limits.
            if limits != Limits::default() {
                queues.push(QueueLimits {
                    name,
                    limits: limits.clone(),
                });
            }
        }
    }
    let tenants = bounds::tenants(root);
    (queues, FileBounds::new(bounded).with_tenants(tenants))
}
