//! Reads `[[egress.budget]]`: what calls may use up beside their number, such as tokens or money.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::entries::{must_have, on_store_error, valid_name};
use super::hosts::warn_of_any_host;
use super::kinds::HOUR;
use ojs_limit::{CostRule, Limits, WindowKind};
use ojs_policy::fields::{FieldValue, Fields};
use ojs_policy::limits::rates;
use ojs_policy::numbers;
use ojs_policy::words::{Nested, RATE};
use ojs_policy::{Currency, Pattern, Template, Vendor};
use ojs_reader::{FoundField, TomlTable, patterns};
use ojs_store::guard::{Declared, OnStoreError};
use ojs_wire::upstream::BaseUrl;

const COST: Nested = Nested {
    name: "cost",
    fields: &["use", "from", "default", "max", "settle", "prices"],
    in_file: "cost = { use = \"tokens\", max = 30000 }",
};
const PRICE: &str = "prices = { \"gpt-5\" = { input = 1.25, output = 10 } }";
/// What is asked of a model, for most vendors.
const COMPLETIONS: [&str; 5] = [
    "POST */chat/completions",
    "POST */completions",
    "POST */responses",
    "POST */messages",
    "POST */embeddings",
];

/// One `[[egress.budget]]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Budget {
    /// Its name, with which its keys begin.
    pub name: Arc<str>,
    /// What makes the keys of its calls.
    pub key: Template,
    /// How much may be used in which windows, in its unit.
    pub limits: Limits,
    /// The calls that it is for, as `POST /v1/messages`; none: all.
    pub only: Vec<Pattern>,
    /// Nobody wrote which these are: they are what is known to ask a model.
    pub guesses_only: bool,
    /// What a call pays at its start.
    pub estimate: CallEstimate,
    /// The most that a call is charged, at its start and afterwards.
    pub max: NonZeroU32,
    /// The same, as a rule of costs.
    pub rule: Arc<CostRule>,
    /// Where the answer says what was used.
    pub settle: Option<UseSource>,
    /// Whether what was used counts from the end of the call on.
    pub counts_at_end: bool,
    /// The unit, where that is money.
    pub currency: Option<Currency>,
}

/// What a call pays before anybody knows what it uses.
#[derive(Clone, PartialEq, Debug)]
pub struct CallEstimate {
    /// Where the call says it by itself.
    pub from: Option<NumberPlace>,
    /// Of a call that says nothing usable; `None`: what the model may use.
    pub default: Option<NonZeroU32>,
}

/// A number in a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NumberPlace {
    /// In this header, in small letters.
    Header(Box<str>),
    /// In the body, at this path.
    Json(Box<str>),
}

/// What of an answer is counted.
#[derive(Clone, PartialEq, Debug)]
pub enum UseSource {
    /// The number at this place.
    At(NumberPlace),
    /// Tokens, as models tell of them.
    Tokens(Tokens),
    /// What those cost, by the model.
    Money(Vec<(Box<str>, TokenPrices)>),
}

/// Which tokens count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tokens {
    /// All.
    All,
    /// What the model reads.
    Input,
    /// What it writes.
    Output,
}

/// What a million tokens of a model cost, in millionths of the currency.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenPrices {
    /// Read.
    pub input: u64,
    /// Read from the vendor's cache.
    pub cached: u64,
    /// Read, and kept in that cache.
    pub cache_write: u64,
    /// Written.
    pub output: u64,
}

impl Budget {
    /// Whether it is for calls of this method and path.
    pub fn is_for(&self, (method, path): (&str, &str)) -> bool {
        if self.only.is_empty() {
            return true;
        }
        let call = [method, " ", path.trim_end_matches('/')].concat();
        self.only.iter().any(|only| only.matches(&call))
    }

    /// Whether a call pays nothing to it because it is not known to ask a model, and might do so.
    pub fn may_miss(&self, call: (&str, &str)) -> bool {
        self.guesses_only && call.0 == "POST" && !self.is_for(call)
    }

    /// What it counts, in a word.
    pub fn unit(&self) -> &'static str {
        match &self.settle {
            Some(UseSource::Money(_)) => "money",
            Some(UseSource::Tokens(_)) => "tokens",
            _ => "cost",
        }
    }

    /// Whether both count the same, under keys of one form: where answers say it, and what models cost, may differ.
    pub(super) fn counts_as(&self, other: &Budget) -> bool {
        let tokens = |of: &Budget| match of.settle {
            Some(UseSource::Tokens(tokens)) => Some(tokens),
            _ => None,
        };
        self.unit() == other.unit()
            && tokens(self) == tokens(other)
            && self.key.has_form_of(&other.key)
    }

    /// Whether a call must be read to know what it pays, or to which key.
    pub fn sees_bodies(&self) -> bool {
        let is_of_body = matches!(self.estimate.from, Some(NumberPlace::Json(_)));
        self.key.sees_bodies() || is_of_models(&self.settle) || is_of_body
    }
}

/// Reads those of an entry whose calls go to this vendor or this upstream, and wait for `max_wait`.
pub(super) fn budgets(
    entry: &mut TomlTable<'_>,
    (vendor, upstream, max_wait): (Option<&Vendor>, Option<&BaseUrl>, Duration),
    declared: &mut Declared,
) -> Vec<Budget> {
    let tables = entry.tables("budget", "[[egress.budget]] above its fields");
    let read = tables.into_iter().filter_map(|mut table| {
        let budget = budget(&mut table, (vendor, upstream), declared)?;
        refuse_short_wait(&mut table, &budget, max_wait);
        Some(budget)
    });
    read.collect()
}

fn budget(
    table: &mut TomlTable<'_>,
    (vendor, upstream): (Option<&Vendor>, Option<&BaseUrl>),
    declared: &mut Declared,
) -> Option<Budget> {
    must_have(table, "name", "name = \"tokens\"");
    let (name, valid) = valid_name(table);
    let key = key(table, name.as_ref().map(|name| &*name.text));
    if let (Some(key), Some(_)) = (&key, upstream) {
        warn_of_any_host(table, "key", key);
    }
    table.is_budget = true;
    currency(table);
    let own = rates(table);
    let example = "rate = { limit = 200000, period = \"1m\" }";
    must_have(table, RATE.name, example);
    let limits = own.ok().filter(|rates| !rates.is_empty());
    let limits = limits.map(|rates| Limits {
        rates,
        ..Limits::default()
    });
    let cost = cost(table, limits.as_ref());
    let is_of_models = cost.as_ref().is_some_and(|cost| is_of_models(&cost.settle));
    let written = table.get("only");
    let guesses_only = is_of_models && written.is_none();
    let only = match written {
        Some(found) => only(
            table,
            &found,
            upstream.map_or("", |upstream| &upstream.base),
        ),
        None if is_of_models => COMPLETIONS.map(Pattern::new).to_vec(),
        None => Vec::new(),
    };
    let at_end = !vendor.is_some_and(|vendor| vendor.counts_at_start);
    let counts_at_end = table.word_or("counted", at_end, &[("end", true), ("start", false)]);
    let lost = on_store_error(table);
    let name: Arc<str> = name.filter(|_| valid)?.text.into();
    let is_money = table.currency.is_some();
    let lost = lost.or_else(|| is_money.then_some(OnStoreError::Closed));
    declared.extend(lost.map(|mode| (Arc::clone(&name), mode)));
    let (key, limits, cost) = (key?, limits?, cost?);
    Some(Budget {
        name,
        key,
        limits,
        only,
        guesses_only,
        counts_at_end: counts_at_end && cost.settle.is_some(),
        estimate: cost.estimate,
        max: cost.max,
        rule: Arc::new(CostRule {
            from: None,
            default: NonZeroU32::MIN,
            max: Some(cost.max),
            settle: None,
        }),
        settle: cost.settle,
        currency: table.currency.clone(),
    })
}

/// Reads which calls a budget is for. Their paths have no slash at the end, and neither the query nor what an upstream
/// puts before them.
fn only(table: &mut TomlTable<'_>, found: &FoundField<'_>, base: &str) -> Vec<Pattern> {
    let calls = patterns(table, found, None).unwrap_or_default();
    let is_call = |call: &&Pattern| {
        let parts = call.as_str().split_once(' ');
        let is_method = |c: char| c.is_ascii_uppercase() || c == '*';
        parts.is_some_and(|(method, path)| {
            method.chars().all(is_method) && path.starts_with(['/', '*'])
        })
    };
    if let Some(wrong) = calls.iter().find(|call| !is_call(call)) {
        let what = format!("has {:?}, which no call is", wrong.as_str());
        table.refuse("only", what, "such as \"POST /v1/*\": a method and a path");
    }
    // A `?` alone stands for one character.
    let has_query = |call: &&Pattern| {
        let query = call.as_str().split_once('?');
        let first = query.and_then(|(_, query)| query.split_once('='));
        first.is_some_and(|(name, _)| !name.contains('/'))
    };
    if let Some(wrong) = calls.iter().find(has_query) {
        let what = format!("has {:?}, and a query is no part of a path", wrong.as_str());
        table.refuse(
            "only",
            what,
            "write the path alone: a call matches with any query",
        );
    }
    let below = |call: &Pattern| {
        let (method, path) = call.as_str().split_once(' ')?;
        let rest = path.strip_prefix(base).filter(|_| !base.is_empty())?;
        match rest {
            "" => Some(format!("{method} /")),
            _ => rest
                .starts_with(['/', '*'])
                .then(|| format!("{method} {rest}")),
        }
    };
    if let Some((call, right)) = calls.iter().find_map(|call| Some((call, below(call)?))) {
        let title = format!(
            "`egress.budget.only` has {:?}, and `upstream` puts {base:?} before each path",
            call.as_str()
        );
        let hint = format!("no call has it in its own path: write {right:?}");
        table.warn(&found.span, title, hint);
    }
    let bare = |call: &Pattern| Pattern::new(call.as_str().trim_end_matches('/'));
    calls.iter().map(bare).collect()
}

fn is_of_models(settle: &Option<UseSource>) -> bool {
    !matches!(settle, None | Some(UseSource::At(_)))
}

/// The key, which begins with the name: so two budgets never have one key.
fn key(table: &mut TomlTable<'_>, name: Option<&str>) -> Option<Template> {
    let given = table.text("key").ok()?;
    let name = name?;
    let read = Template::of_calls(given.as_deref().unwrap_or(name));
    match &read {
        Err(bad) if given.is_some() => table.refuse("key", "is not valid", bad.to_string()),
        Ok(key) => {
            let rest = key.as_str().strip_prefix(name);
            if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':')) {
                let hint = format!("such as \"{name}:{{header.X-Team}}\"");
                table.refuse("key", "does not begin with the budget's name", hint);
            }
        }
        Err(_) => {}
    }
    read.ok()
}

/// Finds out whether the limits are money, and in which unit. The first amount says it.
fn currency(table: &mut TomlTable<'_>) {
    let first = |table: &mut TomlTable<'_>| {
        let mut rates = table.tables(RATE.name, RATE.in_file).into_iter();
        match rates.next()?.value("limit")? {
            FieldValue::Text(amount) => Currency::of_amount(&amount).ok(),
            _ => None,
        }
    };
    // Where the limit is no amount, that is what is wrong.
    let by_use = |table: &mut TomlTable<'_>| {
        let mut cost = table.maybe_table(COST.name, COST.in_file)?;
        let is_money = cost.value("use") == Some(FieldValue::Text("money".into()));
        is_money.then(|| Currency::of_amount("1 USD").ok())?
    };
    let Ok(unit) = table.text("unit") else { return };
    table.currency = match unit {
        None => first(table).or_else(|| by_use(table)),
        Some(unit) => {
            let unit = Currency::of_unit(&unit);
            unit.map_err(|why| table.refuse("unit", why, "the default is a millionth"))
                .ok()
        }
    };
}

/// What is read of `cost`.
struct BudgetCost {
    estimate: CallEstimate,
    max: NonZeroU32,
    settle: Option<UseSource>,
}

fn cost(table: &mut TomlTable<'_>, limits: Option<&Limits>) -> Option<BudgetCost> {
    let Some(mut inside) = table.inside(&COST).ok()? else {
        if table.currency.is_some() {
            let hint = format!("such as cost = {{ use = \"money\", max = \"2 USD\", {PRICE} }}");
            table.refuse(
                RATE.name,
                "is money, and nothing says what a call costs",
                hint,
            );
        }
        return Some(BudgetCost {
            estimate: CallEstimate {
                from: None,
                default: Some(NonZeroU32::MIN),
            },
            max: NonZeroU32::MIN,
            settle: None,
        });
    };
    let cost = &mut inside;
    // What is wrong with one makes no strangers of the others.
    let _known = COST.fields.iter().filter(|name| cost.has(name)).count();
    let settle = settle(cost)?;
    let from = place(cost, "from");
    let default = counted(cost, "default")?;
    let default = default.or_else(|| (!is_of_models(&settle)).then_some(NonZeroU32::MIN));
    must_have(cost, "max", "max = 30000");
    let max = counted(cost, "max")??;
    if default.is_some_and(|default| default > max) {
        cost.refuse(
            "default",
            "is more than `max`",
            "no call pays more than max",
        );
    }
    let mut rates = limits.into_iter().flat_map(|limits| &limits.rates);
    if rates.any(|rate| rate.limit < max) {
        let hint = "such a call would never start: write a smaller max, or a larger limit";
        cost.refuse("max", "is more than the limit", hint);
    }
    Some(BudgetCost {
        estimate: CallEstimate { from, default },
        max,
        settle,
    })
}

/// Reads where an answer says what was used: by `use`, or at a place. `None`: what is read is wrong, which was reported.
fn settle(cost: &mut TomlTable<'_>) -> Option<Option<UseSource>> {
    // Money is no kind of tokens.
    let words = [
        ("tokens", Some(Tokens::All)),
        ("input", Some(Tokens::Input)),
        ("output", Some(Tokens::Output)),
        ("money", None),
    ];
    let used = cost.word("use", &words).ok()?;
    let is_money = used == Some(None);
    let used = used.map(|used| match used {
        Some(tokens) => UseSource::Tokens(tokens),
        None => UseSource::Money(prices(cost)),
    });
    if is_money != cost.currency.is_some() {
        let hint =
            "money has a limit such as \"800 USD\" and use = \"money\", and others have neither";
        cost.refuse("use", "does not count what `rate.limit` limits", hint);
    }
    if cost.has("prices") && !is_money {
        cost.refuse("prices", "needs use = \"money\"", "remove it");
    }
    let place = place(cost, "settle");
    if used.is_some() && place.is_some() {
        let title = "stands beside `use`, which says the same";
        cost.refuse("settle", title, "remove it");
    }
    if let Some(NumberPlace::Json(path)) = &place {
        let is_number = |name: &str| name.bytes().all(|c| c.is_ascii_digit());
        let number = path.split('.').find(|name| is_number(name));
        if let Some((number, found)) = number.zip(cost.get("settle")) {
            let title = format!(
                "`{}` has {number:?}, and is followed through no array",
                found.path
            );
            let hint = "only a member of that name is found: have the answer say it in a header, or in an object";
            cost.warn(&found.span, title, hint);
        }
    }
    Some(used.or(place.map(UseSource::At)))
}

/// Reads a number of units, if it is there. `None`: it is wrong, which was reported.
fn counted(table: &mut TomlTable<'_>, name: &'static str) -> Option<Option<NonZeroU32>> {
    let number = table.amount(name).ok()?;
    let counted = number.map(|number| numbers::count(name, number));
    counted.transpose().map_err(|wrong| table.wrong(wrong)).ok()
}

/// Reads where a number stands in a call or in its answer.
fn place(table: &mut TomlTable<'_>, name: &'static str) -> Option<NumberPlace> {
    let text = table.text(name).ok()??;
    let found = match text.split_once('.') {
        Some(("header", name)) => {
            let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
            let is_valid = !name.is_empty() && name.bytes().all(is_name);
            is_valid.then(|| NumberPlace::Header(name.to_ascii_lowercase().into()))
        }
        Some(("json", path)) if !path.split('.').any(str::is_empty) => {
            Some(NumberPlace::Json(path.into()))
        }
        _ => None,
    };
    if found.is_none() {
        let hint = "such as \"header.X-Tokens\" or \"json.usage.total_tokens\"";
        table.refuse(name, "is no place", hint);
    }
    found
}

/// Reads what tokens of each model cost.
fn prices(table: &mut TomlTable<'_>) -> Vec<(Box<str>, TokenPrices)> {
    let Some(all) = table.maybe_table("prices", PRICE) else {
        must_have(table, "prices", PRICE);
        return Vec::new();
    };
    let each = all.each().into_iter().filter_map(|(model, found)| {
        let mut of = all.as_table(&found, PRICE)?;
        if model.contains('*') {
            let title = format!("the model {model:?} has a star, and stands for no other model");
            of.error(&of.span, title, "write the name of each model in full");
        }
        let needed = |of: &mut TomlTable<'_>, name| {
            must_have(of, name, PRICE);
            price(of, name)
        };
        let (input, output) = (needed(&mut of, "input"), needed(&mut of, "output"));
        let (cached, write) = (price(&mut of, "cached"), price(&mut of, "cache_write"));
        if of.has_unknown() {
            let title = format!("the price of {model:?} has a field that nobody knows");
            let known = "known here: input, cached, cache_write, output";
            of.error(&of.span, title, known);
        }
        let input = input?;
        let prices = TokenPrices {
            input,
            output: output?,
            cached: cached.unwrap_or(input),
            cache_write: write.unwrap_or(input + input / 4),
        };
        Some((model.into(), prices))
    });
    each.collect()
}

/// What a million tokens cost, in millionths.
fn price(table: &mut TomlTable<'_>, name: &'static str) -> Option<u64> {
    let hint = "what a million tokens cost, such as 1.25";
    let price = table.number_within(name, 0.0..=1e6, hint).ok()??;
    Some((price * 1e6).round() as u64)
}

/// Refuses what a call may pay if that never comes free within `max_wait` as long as cheaper calls take what does. A
/// window that is longer than any `max_wait` is not waited for.
fn refuse_short_wait(table: &mut TomlTable<'_>, budget: &Budget, max_wait: Duration) {
    let rates = budget.limits.rates.iter();
    let sliding = rates.filter(|rate| {
        matches!(rate.window, WindowKind::Sliding)
            && Duration::from_micros(rate.period.get()) <= HOUR
    });
    let needs = sliding.map(|rate| {
        let room = u128::from(rate.period.get()) * u128::from(budget.max.get());
        room / u128::from(rate.limit.get())
    });
    let longest = u64::try_from(needs.max().unwrap_or(0)).unwrap_or(u64::MAX);
    if budget.max.get() == 1 || max_wait.is_zero() || Duration::from_micros(longest) <= max_wait {
        return;
    }
    let hint = format!(
        "a call that costs `max` waits up to {} beside cheaper ones: give it as long a max_wait (--max-wait), or 0s, or write a smaller max",
        ojs_duration::short(longest)
    );
    table.refuse(
        COST.name,
        "is more than the limit brings within `max_wait`",
        hint,
    );
}

#[cfg(test)]
mod tests {
    use ojs_limit::Key;

    use crate::Settings;

    use super::*;

    #[test]
    fn a_key_is_of_the_budget_with_the_longest_name() {
        let budget = |name: &str| {
            format!(
                "[[egress.budget]]\nname = '{name}'\nkey = '{name}:{{header.x-t}}'\n\
                 cost = {{ use = 'tokens', max = 10 }}\nrate = {{ limit = 100, period = '1d' }}\n"
            )
        };
        let (short, long) = (budget("team"), budget("team:tokens"));
        let others = "x".repeat(Key::MAX - "team:".len());
        for budgets in [[&short, &long], [&long, &short]] {
            let text = format!(
                "[server]\nupstream = 'none'\n[[egress]]\nname = 'a'\nlisten = '127.0.0.1:8082'\n\
                 upstream = 'https://example.com'\n{}",
                budgets.map(String::as_str).concat()
            );
            let settings = Settings::parse(&text, "t").unwrap();
            for (rest, name) in [
                ("a", "team"),
                ("tokens:a", "team:tokens"),
                ("tokens2", "team"),
                (others.as_str(), "team"),
            ] {
                let key = Key::new(&format!("team:{rest}")).unwrap();
                let found = settings.budget_of(&key).map(|budget| &*budget.name);
                assert_eq!(found, Some(name), "{key}");
            }
        }
    }

    #[test]
    fn a_slash_at_the_end_is_no_part_of_a_pattern() {
        let text = "[server]\nupstream = 'none'\n[[egress]]\nname = 'a'\nlisten = '127.0.0.1:8082'\n\
             upstream = 'https://example.com'\n[[egress.budget]]\nname = 'b'\n\
             only = ['POST /', 'GET /v1/*/']\nrate = { limit = 100, period = '1d' }";
        let settings = Settings::parse(text, "t").unwrap();
        let budget = &settings.egress[0].budgets[0];
        for (method, path, is_for) in [
            ("POST", "/", true),
            ("POST", "/v1/a", false),
            ("GET", "/v1/a", true),
            ("GET", "/v1/a/", true),
            ("GET", "/", false),
        ] {
            assert_eq!(budget.is_for((method, path)), is_for, "{method} {path}");
        }
    }

    /// Money starts nothing while the store is lost, because each sidecar alone could spend its share again.
    #[test]
    fn a_vendor_says_when_its_tokens_count() {
        let of = |upstream: &str| {
            let text = format!(
                "[server]\nupstream = 'none'\n[[egress]]\nname = 'a'\nlisten = '127.0.0.1:8082'\nupstream = '{upstream}'\n\
                 [[egress.budget]]\nname = 'tokens'\ncost = {{ use = 'tokens', max = 10 }}\n\
                 rate = {{ limit = 100, period = '1d' }}\n[[egress.budget]]\nname = 'money'\n\
                 cost = {{ use = 'money', max = '1 USD', prices = {{ m = {{ input = 1, output = 2 }} }} }}\n\
                 rate = {{ limit = '10 USD', period = '1d' }}"
            );
            Settings::parse(&text, "t").unwrap()
        };
        for (upstream, at_end) in [
            ("https://api.openai.com", false),
            ("https://api.anthropic.com", true),
            ("https://example.com", true),
        ] {
            let settings = of(upstream);
            let budget = &settings.egress[0].budgets[0];
            assert_eq!(budget.counts_at_end, at_end, "{upstream}");
            let lost = &settings.on_store_error_by_policy;
            assert_eq!(lost.get("money"), Some(&OnStoreError::Closed));
            assert_eq!(lost.get("tokens"), None);
        }
    }
}
