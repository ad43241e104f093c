//! The bounds of a `[[queue]]`: how much may wait in it.

use std::time::Duration;

use super::LONGEST_WAIT;
use super::patterns::{Names, patterns};
use super::reader::Table;
use crate::policy::{Pattern, Template, numbers};
use crate::pressure::bounds::BLOCK_TIMEOUT_MAX;
use crate::pressure::{Given, PerKey, PushRate, Strategy};

/// The longest `max_age` and `max_wait`.
const YEAR: Duration = Duration::from_secs(366 * 86_400);

const PART: &str = "a fraction of the bound, such as 0.8";

/// Reads what a `[[queue]]` says of bounds. `everything`: its name is wildcards only.
pub(super) fn bounds(table: &mut Table<'_>, everything: bool) -> Given {
    let sized = table.get("max_size").is_some();
    let size = if sized { "max_size" } else { "max_size_bytes" };
    if sized && let Some(twice) = table.get("max_size_bytes") {
        let title = format!("`{}` stands beside `max_size`", twice.path);
        table.error(
            &twice.span,
            title,
            "they are the same: leave one of them out",
        );
    }
    let given = table.get("max_size_bytes").is_some() || sized;
    let max_bytes = given.then(|| table.size(size, 0, 0..=usize::MAX >> 1) as u64);
    Given {
        max_depth: max_depth(table),
        max_bytes,
        strategy: strategy(table, everything),
        warning_threshold: table.fraction("warning_threshold", 0.0..=1.0, PART),
        resume_threshold: table.fraction("resume_threshold", 0.0..=1.0, PART),
        block_timeout_max: time(table, "block_timeout_max", BLOCK_TIMEOUT_MAX, LONGEST_WAIT),
        enqueue_rate: enqueue_rate(table),
        max_age: time(table, "max_age", YEAR, YEAR),
        max_wait: time(table, "max_wait", YEAR, YEAR),
        per_key: per_key(table),
    }
}

/// The fields that bound a queue.
pub(super) const NAMES: [&str; 7] = [
    "max_depth",
    "max_size",
    "max_size_bytes",
    "enqueue_rate",
    "max_age",
    "max_wait",
    "per_key",
];

/// The ids of tenants (multi-tenancy text, 5.2).
const TENANT: Names = Names {
    what: "ids of tenants have",
    allowed: |c| c.is_ascii_alphanumeric() || "._:-*?".contains(c),
};

/// Reads what `[[tenant]]` entries say of how many jobs may wait, in their order.
pub(super) fn tenants(root: &mut Table<'_>) -> Vec<(Pattern, u64)> {
    let mut tenants: Vec<(Pattern, u64)> = Vec::new();
    for mut table in root.tables("tenant", "[[tenant]] above its fields") {
        let header = table.span.clone();
        let found = table.get("id");
        if found.is_none() {
            let title = "a tenant entry needs an `id`";
            table.missing(
                &header,
                title,
                "add id = \"…\"; a glob gives each tenant its own",
            );
        }
        let ids = found.as_ref();
        let ids = ids.and_then(|found| patterns(&table, found, Some(TENANT)));
        let example = "limits = { max_queue_depth = 50000 }";
        let limits = table.maybe_table("limits", example).map(|mut limits| {
            let most = number_from_0(&mut limits, "max_queue_depth");
            let given = limits.get("max_queue_depth").is_some();
            limits.finish();
            (most, given)
        });
        if !limits.is_some_and(|(_, given)| given) {
            table.missing(
                &header,
                "this tenant entry has no bound",
                format!("add {example}"),
            );
        }
        table.finish();
        let most = limits.and_then(|(most, _)| most);
        for id in ids.unwrap_or_default() {
            if tenants.iter().any(|(known, _)| *known == id) {
                let title = format!("tenant {:?} is there twice", id.as_str());
                root.error(&header, title, "make it one entry");
            }
            tenants.extend(most.map(|most| (id, most)));
        }
    }
    tenants
}

fn max_depth(table: &mut Table<'_>) -> Option<u64> {
    number_from_0(table, "max_depth")
}

fn number_from_0(table: &mut Table<'_>, name: &'static str) -> Option<u64> {
    let (number, span) = table.integer(name)?;
    let depth = u64::try_from(number).ok();
    if depth.is_none() {
        let title = format!("`{}` must be from 0", table.path_of(name));
        table.error(&span, title, "0 is unbounded");
    }
    depth
}

fn strategy(table: &mut Table<'_>, everything: bool) -> Option<Strategy> {
    let found = table.get("strategy")?;
    let strategy = table.word("strategy", Strategy::default(), &Strategy::WORDS);
    if everything && strategy == Strategy::DropOldest {
        let title = format!("`{}` cannot be \"drop_oldest\" for every queue", found.path);
        table.error(
            &found.span,
            title,
            "it loses jobs: name the queues that may lose theirs",
        );
    }
    Some(strategy)
}

fn time(
    table: &mut Table<'_>,
    name: &'static str,
    default: Duration,
    most: Duration,
) -> Option<Duration> {
    table.get(name)?;
    Some(table.duration(name, default, Duration::ZERO..=most))
}

fn per_key(table: &mut Table<'_>) -> Option<PerKey> {
    let example = "per_key = { by = \"{meta.tenant_id}\", max_depth = 5000 }";
    let mut keys = table.maybe_table("per_key", example)?;
    let header = keys.span.clone();
    let by = keys.text("by");
    let max_depth = max_depth(&mut keys);
    if keys.get("max_depth").is_none() {
        let title = format!("`{}` needs a `max_depth`", keys.path);
        keys.missing(&header, title, format!("such as {example}"));
    }
    let (text, span) = by.map_or(("{tenant}".to_owned(), header), |by| (by.text, by.span));
    let by = match Template::new(&text) {
        Ok(template) => Some(template),
        Err(bad) => {
            let title = format!("`{}.by` is not valid", keys.path);
            keys.error(&span, title, bad.to_string());
            None
        }
    };
    keys.finish();
    Some(PerKey {
        by: by?,
        max_depth: max_depth?,
    })
}

fn enqueue_rate(table: &mut Table<'_>) -> Option<PushRate> {
    let example = "enqueue_rate = { limit = 100, period = \"1s\" }";
    let mut rate = table.maybe_table("enqueue_rate", example)?;
    let (limit, period) = (rate.integer("limit"), rate.micros("period"));
    let header = rate.span.clone();
    for (name, there) in [("limit", limit.is_some()), ("period", period.is_some())] {
        if !there && rate.get(name).is_none() {
            let title = format!("`{}` needs a `{name}`", rate.path);
            rate.missing(&header, title, format!("such as {example}"));
        }
    }
    let found = match (&limit, &period) {
        (Some((limit, at)), Some((period, until))) => numbers::enqueue_rate(*limit, *period)
            .map(PushRate::from)
            .map_err(|wrong| {
                let span = if wrong.member == "period" { until } else { at };
                let title = format!("`{}.{}` is out of range", rate.path, wrong.member);
                rate.error(span, title, wrong.message);
            })
            .ok(),
        _ => None,
    };
    rate.finish();
    found
}
