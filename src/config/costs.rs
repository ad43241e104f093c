//! Reads `cost` and `fair` of a `[[policy]]` or a `[[queue]]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use toml::de::DeValue;

use super::reader::{FoundField, Reported, TomlTable};
use crate::limit::{CostRule, Key, Limits};
use crate::policy::fields::Fields;
use crate::policy::numbers::{self, MOST};
use crate::policy::{Fair, Template};

/// What an entry says of both.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Prices {
    pub(super) cost: Option<Arc<CostRule>>,
    pub(super) fair: Option<Arc<Fair>>,
}

/// The names of both.
pub(super) const NAMES: [&str; 2] = ["cost", "fair"];

const COST: &str = "cost = { from = \"meta.tokens\", default = 1, max = 20000 }";
const FAIR: &str = "fair = { by = \"{meta.tenant_id}\" }";
const FROM: &str = "such as \"meta.tokens\" or \"args.0.tokens\"";

/// Reads both, beside these limits of the entry, if those could be read.
///
/// # Errors
/// Something of them is wrong.
pub(super) fn prices(
    entry: &mut TomlTable<'_>,
    limits: Option<&Limits>,
) -> Result<Prices, Reported> {
    let cost = cost(entry, limits);
    let fair = fair(entry);
    Ok(Prices {
        cost: cost?.map(Arc::new),
        fair: fair?.map(Arc::new),
    })
}

fn cost(entry: &mut TomlTable<'_>, limits: Option<&Limits>) -> Result<Option<CostRule>, Reported> {
    let Some(found) = entry.get("cost") else {
        return Ok(None);
    };
    if let DeValue::String(_) | DeValue::Array(_) = found.value {
        entry.wrong_type(&found, "a number or a table", &format!("write {COST}"));
        return Err(Reported);
    }
    if !matches!(found.value, DeValue::Table(_)) {
        let fixed = count(entry, "cost", 1)?;
        return Ok(Some(CostRule {
            from: None,
            default: fixed,
            max: fixed,
            settle: None,
        }));
    }
    let mut table = entry.as_table(&found, COST).ok_or(Reported)?;
    let from = path(&mut table, "from", from_objection);
    let settle = path(&mut table, "settle", settle_objection);
    let (default, max) = (
        count(&mut table, "default", 1),
        count(&mut table, "max", MOST),
    );
    let (from, settle, default, max) = (from?, settle?, default?, max?);
    if from.is_none() && table.has("max") {
        let hint = "each pays `default`; remove max, or add from";
        return Err(refuse(&mut table, "max", "is for what jobs say", hint));
    }
    if default > max {
        let hint = "no job pays more than max";
        return Err(refuse(&mut table, "default", "is more than `max`", hint));
    }
    let has_no_rate = |limits: &Limits| *limits != Limits::default() && limits.rates.is_empty();
    if settle.is_some() && limits.is_some_and(has_no_rate) {
        let hint = "only windows are put right afterwards; remove settle, or add a rate";
        return Err(refuse(
            &mut table,
            "settle",
            "needs a `rate` in its entry",
            hint,
        ));
    }
    Ok(Some(CostRule {
        from,
        default,
        max,
        settle,
    }))
}

fn count(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: i64,
) -> Result<NonZeroU32, Reported> {
    let number = table.int(name)?.unwrap_or(default);
    numbers::count(name, number).map_err(|wrong| table.wrong(wrong))
}

fn refuse(table: &mut TomlTable<'_>, name: &'static str, what: &str, hint: &str) -> Reported {
    table.refuse(name, what, hint);
    Reported
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
    let objection = match path.split('.').any(str::is_empty) {
        true => Some("write names with one dot between two, and nothing before or after"),
        false => objection(&path),
    };
    match objection {
        Some(hint) => Err(refuse(table, name, "cannot be this", hint)),
        None => Ok(Some(path.as_ref().into())),
    }
}

fn from_objection(path: &str) -> Option<&'static str> {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    let place = rest.split('.').next().unwrap_or_default();
    match first {
        "type" => Some("a job's type is a text and never a number; take a value of meta or args"),
        "args" if place.parse::<usize>().is_err() => {
            Some("args is a list, so its first name is a place from 0, such as \"args.0.tokens\"")
        }
        "meta" if rest.is_empty() => Some(FROM),
        "meta" | "args" => None,
        _ => Some(FROM),
    }
}

fn settle_objection(path: &str) -> Option<&'static str> {
    let is_result = path.split('.').next() == Some("result");
    (!is_result).then_some("it begins with `result`, such as \"result.usage.total_tokens\"")
}

fn fair(entry: &mut TomlTable<'_>) -> Result<Option<Fair>, Reported> {
    let Some(mut table) = entry.maybe_table("fair", FAIR) else {
        return if entry.has("fair") {
            Err(Reported)
        } else {
            Ok(None)
        };
    };
    let by = match table.text("by") {
        Ok(None) => Err(Fields::missing(&mut table, "by", FAIR)),
        Ok(Some(text)) => match Template::new(&text) {
            Err(bad) => Err(refuse(&mut table, "by", "is not valid", &bad.to_string())),
            Ok(by) if by.constant().is_some() => {
                let hint = "name what tells groups apart, such as {meta.tenant_id}";
                Err(refuse(&mut table, "by", "is the same for every job", hint))
            }
            Ok(by) => Ok(by),
        },
        Err(reported) => Err(reported),
    };
    let default_weight = count(&mut table, "default_weight", 1);
    let weights = weights(&mut table, by.as_ref().ok());
    Ok(Some(Fair {
        by: by?,
        weights: weights?,
        default_weight: default_weight?,
    }))
}

/// The weights by their groups. Where a group is made from one value of a job they go by that value.
fn weights(
    fair: &mut TomlTable<'_>,
    by: Option<&Template>,
) -> Result<BTreeMap<Key, NonZeroU32>, Reported> {
    let Some(table) = fair.maybe_table("weights", "weights = { acme = 3 }") else {
        return if fair.has("weights") {
            Err(Reported)
        } else {
            Ok(BTreeMap::new())
        };
    };
    let mut all = BTreeMap::new();
    let mut wrong = Ok(());
    for (name, found) in table.each() {
        let weight = weight(&table, &found);
        let Some(by) = by else { continue };
        let group = by.with_value(&name).or_else(|| Key::new(&name).ok());
        match (group.filter(|group| by.may_give(group)), weight) {
            (Some(group), Ok(weight)) => drop(all.insert(group, weight)),
            (None, Ok(_)) => {
                let title = format!("`{}` is a group that no job has", found.path);
                let hint = format!("write it as {} makes it", by.as_str());
                table.error(&found.span, title, hint);
                wrong = Err(Reported);
            }
            (_, Err(reported)) => wrong = Err(reported),
        }
    }
    wrong.map(|()| all)
}

fn weight(table: &TomlTable<'_>, found: &FoundField<'_>) -> Result<NonZeroU32, Reported> {
    let DeValue::Integer(digits) = found.value else {
        table.wrong_type(found, "a whole number from 1", "digits only");
        return Err(Reported);
    };
    let number = i64::from_str_radix(digits.as_str(), digits.radix());
    numbers::count("weights", number.unwrap_or(i64::MAX)).map_err(|wrong| {
        let title = format!("`{}` is out of range", found.path);
        table.error(&found.span, title, wrong.message);
        Reported
    })
}
