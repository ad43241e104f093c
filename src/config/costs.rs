//! Reads `cost` and `fair` of a `[[policy]]` or a `[[queue]]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use toml::de::DeValue;

use ojs_limit::{CostRule, Key, Limits};
use ojs_policy::fields::Fields;
use ojs_policy::limits::required;
use ojs_policy::numbers::{self, LARGEST_NUMBER, Wrong};
use ojs_policy::words::Nested;
use ojs_policy::{BadTemplate, Fair, Prices, Template};
use ojs_reader::{Reported, TomlTable};

const COST: Nested = Nested {
    name: "cost",
    fields: &["from", "default", "max", "settle"],
    in_file: "cost = { from = \"meta.tokens\", default = 1, max = 20000 }",
};
const FAIR: Nested = Nested {
    name: "fair",
    fields: &["by", "weights", "default_weight"],
    in_file: "fair = { by = \"{meta.tenant_id}\" }",
};
const FAIR_OF_CALLS: Nested = Nested {
    in_file: "fair = { by = \"{header.X-Tenant}\" }",
    ..FAIR
};

const FROM: &str = "such as \"meta.tokens\", or \"args.0.tokens\" with a place in the list";
const SETTLE: &str = "such as \"result.usage.total_tokens\"";

/// Reads both, beside these limits of the entry. `None`: something of them is wrong, which was reported.
pub(super) fn prices(entry: &mut TomlTable<'_>, limits: Option<&Limits>) -> Option<Prices> {
    let cost = cost(entry, limits);
    let fair = fair(entry, &FAIR, Template::new);
    Some(Prices {
        cost: cost.ok()?.map(Arc::new),
        fair: fair.ok()?.map(Arc::new),
        by_calls: false,
    })
}

/// The names of those that the entry has.
pub(super) fn named(entry: &mut TomlTable<'_>) -> Vec<&'static str> {
    let names = [COST.name, FAIR.name];
    names.into_iter().filter(|name| entry.has(name)).collect()
}

/// Reports both in an entry without a limit.
pub(super) fn refuse_without_limit(entry: &mut TomlTable<'_>, hint: &str) {
    for name in named(entry) {
        entry.refuse(name, "needs a limit in its entry", hint);
    }
}

fn cost(entry: &mut TomlTable<'_>, limits: Option<&Limits>) -> Result<Option<CostRule>, Reported> {
    let found = entry.get(COST.name).map(|found| found.value);
    if !matches!(found, None | Some(DeValue::Table(_))) {
        let fixed = count(entry, COST.name, 1)?;
        return Ok(Some(CostRule {
            from: None,
            default: fixed,
            max: Some(fixed),
            settle: None,
        }));
    }
    let Some(mut table) = entry.inside(&COST)? else {
        return Ok(None);
    };
    let from = path(&mut table, "from", from_objection);
    let settle = path(&mut table, "settle", |path| {
        let is_result = path.split('.').next() == Some("result");
        (!is_result).then_some(SETTLE)
    });
    let default = count(&mut table, "default", 1);
    let max = table
        .has("max")
        .then(|| count(&mut table, "max", LARGEST_NUMBER));
    let rule = CostRule {
        from: from?,
        default: default?,
        max: max.transpose()?,
        settle: settle?,
    };
    if rule.max.is_some_and(|max| rule.default > max) {
        table.refuse("default", "is more than `max`", "no job pays more than max");
    }
    if rule.from.is_some() && rule.max.is_none() {
        let hint = "add max, so that one wrong number cannot hold up the key; without it no job pays more than the \
                    smallest limit of its key";
        table.warn(
            &table.span,
            "jobs say what they cost, and nothing says the most",
            hint,
        );
    }
    let has_no_rate = |limits: &Limits| *limits != Limits::default() && limits.rates.is_empty();
    if rule.settle.is_some() && limits.is_some_and(has_no_rate) {
        let hint = "only windows are put right afterwards; remove settle, or add a rate";
        table.refuse("settle", "needs a `rate` in its entry", hint);
    }
    Ok(Some(rule))
}

fn count(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: i64,
) -> Result<NonZeroU32, Reported> {
    let number = table.int(name)?.unwrap_or(default);
    numbers::count(name, number).map_err(|wrong| table.wrong(wrong))
}

/// A dotted path to which there is no objection.
fn path(
    table: &mut TomlTable<'_>,
    name: &'static str,
    objection: fn(&str) -> Option<&'static str>,
) -> Result<Option<Box<str>>, Reported> {
    let Some(path) = table.text(name)? else {
        return Ok(None);
    };
    let is_broken = path.split('.').any(str::is_empty);
    let broken = is_broken.then_some("write names with one dot between two");
    match broken.or_else(|| objection(&path)) {
        Some(hint) => Err(table.wrong(Wrong::with_hint(name, "cannot be this".into(), hint))),
        None => Ok(Some(path.into())),
    }
}

fn from_objection(path: &str) -> Option<&'static str> {
    let mut names = path.split('.');
    match (names.next(), names.next()) {
        (Some("meta"), Some(_)) => None,
        (Some("args"), Some(place)) if place.parse::<usize>().is_ok() => None,
        (Some("type"), _) => Some("a job's type is a text and never a number"),
        _ => Some(FROM),
    }
}

/// Reads `fair` of an `[[egress]]`. `Err`: something of it is wrong, which was reported.
pub(super) fn fair_calls(entry: &mut TomlTable<'_>) -> Result<Option<Arc<Fair>>, Reported> {
    let fair = fair(entry, &FAIR_OF_CALLS, Template::of_calls)?;
    Ok(fair.map(Arc::new))
}

fn fair(
    entry: &mut TomlTable<'_>,
    of: &Nested,
    read: fn(&str) -> Result<Template, BadTemplate>,
) -> Result<Option<Fair>, Reported> {
    let Some(mut table) = entry.inside(of)? else {
        return Ok(None);
    };
    let by = required(&mut table, ("by", of.in_file), |table| table.text("by"));
    let by = by.and_then(|text| {
        let wrong = match read(&text) {
            Ok(by) if by.constant().is_none() => return Ok(by),
            Ok(_) => format!(
                "it names one group for all; put in what differs, as in {}",
                of.in_file
            ),
            Err(bad) => bad.to_string(),
        };
        Err(table.wrong(Wrong::with_hint("by", "is not valid".into(), wrong)))
    });
    let default_weight = count(&mut table, "default_weight", 1);
    let weights = table.maybe_table("weights", "weights = { acme = 3 }");
    let by = by?;
    Ok(Some(Fair {
        weights: weights.map_or_else(BTreeMap::new, |table| weights_of(&table, &by)),
        by,
        default_weight: default_weight?,
    }))
}

/// The weights by their groups. Where a group is made from one value of a job they go by that value.
fn weights_of(table: &TomlTable<'_>, by: &Template) -> BTreeMap<Key, NonZeroU32> {
    let mut all = BTreeMap::new();
    for (name, found) in table.each() {
        let group = by.with_value(&name).or_else(|| Key::new(&name).ok());
        let number = match found.value {
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        let weight = number.and_then(|number| numbers::count("weights", number).ok());
        let (what, hint) = match (group.filter(|group| by.may_give(group)), weight) {
            (Some(group), Some(weight)) => {
                all.insert(group, weight);
                continue;
            }
            (_, None) => (
                "must be a whole number from 1",
                format!("at most {LARGEST_NUMBER}"),
            ),
            (None, _) => (
                "is a group that no job has",
                format!("write what {by} makes"),
            ),
        };
        table.error(&found.span, format!("`{}` {what}", found.path), hint);
    }
    all
}
