//! Where limits and bounds are read from: a table of the config file, or an object of a JSON body.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::money::Currency;
use super::numbers::{self, Wrong};
use super::spelling::{self, misspelt, nearest};
use super::words::{Nested, RATE};
use ojs_duration as duration;
use ojs_json::{Json, Kind};

/// A field of a body that is wrong: its path, what was found, what would be right.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Such as `options.rate_limit.rate.period`.
    pub field: String,
    /// What is wrong with it and what would be right, to be read after the field's name.
    pub message: String,
}

/// A value of the file or of a JSON body.
#[derive(Clone, PartialEq, Debug)]
pub enum FieldValue<'v> {
    /// A whole number.
    Integer(i64),
    /// Another number.
    Float(f64),
    /// A text.
    Text(Cow<'v, str>),
    /// `true` or `false`.
    Flag(bool),
    /// None of these: its kind, as messages name it.
    Other(&'static str),
}

impl FieldValue<'_> {
    /// Its kind, as messages name it.
    fn kind(&self) -> &'static str {
        match self {
            FieldValue::Integer(_) => "an integer",
            FieldValue::Float(_) => "a float",
            FieldValue::Text(_) => "a string",
            FieldValue::Flag(_) => "a boolean",
            FieldValue::Other(kind) => kind,
        }
    }
}

/// The fields of a table or of an object. A field that is absent reads as `None`.
pub trait Fields<'v>: Sized {
    /// Stands for a problem. In JSON it is the problem itself, and the first one is the answer. In the
    /// config file it says that the problem was noted: there all of them are shown at once, so a reader
    /// asks for every field before it gives up.
    type Error;
    /// Whether this is the config file. There a message stands under its line, with an example beside it; and two
    /// names of the same are refused, although they agree.
    const IN_FILE: bool;

    /// A field's value.
    fn value(&mut self, name: &'static str) -> Option<FieldValue<'v>>;

    /// What is inside a field.
    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, Self::Error>;

    /// The windows of `rate`, each to be read by its fields; empty: there is none.
    fn windows(&mut self) -> Result<Vec<Self>, Self::Error>;

    /// A field is there and its value cannot be used.
    fn wrong(&mut self, wrong: Wrong) -> Self::Error;

    /// A field is not there; `example` is how it is written in the file.
    fn missing(&mut self, name: &'static str, example: &str) -> Self::Error;

    /// Whether the field is there.
    fn has(&mut self, name: &'static str) -> bool {
        self.value(name).is_some()
    }

    /// A field has another kind of value than it should.
    fn wrong_kind(
        &mut self,
        name: &'static str,
        should: &str,
        found: &FieldValue<'_>,
        hint: &str,
    ) -> Self::Error {
        let message = format!("must be {should}, not {}", found.kind());
        self.wrong(Wrong::with_hint(name, message, hint))
    }

    /// A whole number.
    fn int(&mut self, name: &'static str) -> Result<Option<i64>, Self::Error> {
        match self.value(name) {
            None => Ok(None),
            Some(FieldValue::Integer(number)) => Ok(Some(number)),
            Some(found) => Err(self.wrong_kind(name, "a whole number", &found, "digits only")),
        }
    }

    /// The currency of the limits that are read here; `None`: they are starts.
    fn currency(&self) -> Option<&Currency> {
        None
    }

    /// Whether what is read here may be money.
    fn may_be_money(&self) -> bool {
        self.currency().is_some()
    }

    /// A limit: a whole number, or an amount where money is limited.
    fn amount(&mut self, name: &'static str) -> Result<Option<i64>, Self::Error> {
        let Some(currency) = self.currency().cloned() else {
            let is_text = matches!(self.value(name), Some(FieldValue::Text(_)));
            if is_text && self.may_be_money() {
                let message = "is no amount of what `rate.limit` limits".to_owned();
                let hint = "such as 100, or \"800 USD\" in all of the budget";
                return Err(self.wrong(Wrong::with_hint(name, message, hint)));
            }
            return self.int(name);
        };
        let text = match self.value(name) {
            None => return Ok(None),
            Some(FieldValue::Text(text)) => text,
            // Which is no amount.
            Some(_) => Cow::Borrowed(""),
        };
        let units = currency.units(&text);
        let wrong = |why| Wrong::with_hint(name, why, "in quotes, as all amounts of this budget");
        units.map(Some).map_err(|why| self.wrong(wrong(why)))
    }

    /// A whole number from 0, which is no bound.
    fn int_from_0(&mut self, name: &'static str) -> Result<Option<u64>, Self::Error> {
        let Some(number) = self.int(name)? else {
            return Ok(None);
        };
        let from_0 = u64::try_from(number).map_err(|_| {
            let message = "must be from 0".to_owned();
            self.wrong(Wrong::with_hint(name, message, "0 is unbounded"))
        });
        from_0.map(Some)
    }

    /// A number, whole or not, within a range, ends included; `hint` says what it does.
    fn number_within(
        &mut self,
        name: &'static str,
        within: RangeInclusive<f64>,
        hint: &str,
    ) -> Result<Option<f64>, Self::Error> {
        let (least, most) = (within.start(), within.end());
        let number = match self.value(name) {
            None => return Ok(None),
            Some(FieldValue::Integer(number)) => number as f64,
            Some(FieldValue::Float(number)) => number,
            Some(found) => {
                let should = format!("a number from {least} to {most}");
                return Err(self.wrong_kind(name, &should, &found, hint));
            }
        };
        if within.contains(&number) {
            return Ok(Some(number));
        }
        let message = format!("must be from {least} to {most}");
        Err(self.wrong(Wrong::with_hint(name, message, hint)))
    }

    /// A text.
    fn text(&mut self, name: &'static str) -> Result<Option<Cow<'v, str>>, Self::Error> {
        match self.value(name) {
            None => Ok(None),
            Some(FieldValue::Text(text)) => Ok(Some(text)),
            Some(found) => Err(self.wrong_kind(name, "a string", &found, "put it in quotes")),
        }
    }

    /// `true` or `false`.
    fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Self::Error> {
        match self.value(name) {
            None => Ok(None),
            Some(FieldValue::Flag(flag)) => Ok(Some(flag)),
            Some(found) => Err(self.wrong_kind(name, "true or false", &found, "without quotes")),
        }
    }

    /// One of some words.
    fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Self::Error> {
        let all = words.iter().map(|(word, _)| format!("\"{word}\""));
        let all = || format!("write {}", all.collect::<Vec<_>>().join(" or "));
        let text = match self.value(name) {
            None => return Ok(None),
            Some(FieldValue::Text(text)) => text,
            Some(found) => return Err(self.wrong_kind(name, "a string", &found, &all())),
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let near = nearest(&text, words.iter().map(|(word, _)| *word));
        let hint = near.map_or_else(all, |near| format!("did you mean \"{near}\"?"));
        Err(self.wrong(Wrong::with_hint(
            name,
            format!("cannot be \"{text}\""),
            hint,
        )))
    }

    /// A duration in microseconds.
    fn period(&mut self, name: &'static str) -> Result<Option<u64>, Self::Error> {
        let example = "such as \"10s\", \"500ms\" or \"PT1M\"";
        let Some(found) = self.value(name) else {
            return Ok(None);
        };
        let hint = match &found {
            FieldValue::Text(text) => {
                let period = duration::parse_period(text);
                return period.map(Some).map_err(|bad| {
                    let hint = if Self::IN_FILE { example } else { "" };
                    self.wrong(Wrong::with_hint(name, bad.to_string(), hint))
                });
            }
            FieldValue::Integer(n) => format!("say which unit: \"{n}ms\" or \"{n}s\""),
            _ => example.to_owned(),
        };
        Err(self.wrong_kind(name, "a duration in quotes", &found, &hint))
    }

    /// The text of a period, which may be one of a calendar.
    fn period_text(&mut self, name: &'static str) -> Result<Option<Cow<'v, str>>, Self::Error> {
        match self.value(name) {
            Some(FieldValue::Text(text)) => Ok(Some(text)),
            // Says what is wrong with it.
            _ => Ok(self.period(name)?.map(|_| Cow::Borrowed(""))),
        }
    }

    /// A number of bytes within a range, ends included: `"8MiB"` or a plain number. `default` is told where it is out
    /// of range.
    fn size_within(
        &mut self,
        name: &'static str,
        default: usize,
        within: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Self::Error> {
        let bytes = match self.value(name) {
            None => return Ok(None),
            Some(FieldValue::Text(text)) => numbers::size(&text),
            Some(FieldValue::Integer(number)) => usize::try_from(number).ok(),
            Some(_) => None,
        };
        let (message, hint) = match bytes {
            Some(bytes) if within.contains(&bytes) => return Ok(Some(bytes)),
            Some(_) => {
                let (least, most) = (
                    numbers::plain_size(*within.start()),
                    numbers::plain_size(*within.end()),
                );
                let default = numbers::plain_size(default);
                let message = format!("must be from {least} to {most}");
                (message, format!("the default is \"{default}\""))
            }
            None => {
                let hint = "such as \"8MiB\", \"64KiB\" or \"1GiB\"";
                ("must be a size".to_owned(), hint.to_owned())
            }
        };
        Err(self.wrong(Wrong::with_hint(name, message, hint)))
    }
}

/// What becomes of members that mean nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strangers {
    /// They are passed over: a backend stored the job already, and the rest of its policy limits.
    Pass,
    /// Slips are refused, others pass: later texts may add members to a job's policy.
    RefuseSlips,
    /// They are refused: an operator's word that is not understood changes nothing.
    Refuse,
}

/// A JSON object and where it stands. A member that is null is absent.
#[derive(Clone, Debug)]
pub struct JsonObject<'a> {
    json: Json<'a>,
    at: Cow<'a, str>,
    pub(super) strangers: Strangers,
    /// The member that is its `limit`: `rate` where that is a number.
    limit: &'static str,
    /// Of its limits; `None`: they are starts.
    pub currency: Option<Currency>,
}

impl<'a> JsonObject<'a> {
    /// The object at `root`, which is empty for a whole body. `names` are the members that it may have.
    ///
    /// # Errors
    /// It is no object, or has a member that is refused.
    pub fn new(
        json: Json<'a>,
        root: &'a str,
        strangers: Strangers,
        names: &[&[&str]],
    ) -> Result<JsonObject<'a>, FieldError> {
        JsonObject {
            json,
            at: Cow::Borrowed(root),
            strangers,
            limit: "limit",
            currency: None,
        }
        .checked(names)
    }

    /// A member that is there and not null.
    pub fn get(&self, name: &str) -> Option<Json<'a>> {
        self.json.get(name).filter(|member| !member.is_null())
    }

    fn path_of(&self, name: &str) -> String {
        let dot = if self.at.is_empty() { "" } else { "." };
        format!("{}{dot}{name}", self.at)
    }

    /// A member is wrong.
    pub fn error(&self, name: &str, message: impl Into<String>) -> FieldError {
        FieldError {
            field: self.path_of(name),
            message: message.into(),
        }
    }

    /// Refuses what is no object, and members that are not among `names`.
    fn checked(self, names: &[&[&str]]) -> Result<JsonObject<'a>, FieldError> {
        if self.json.kind() == Kind::Object {
            self.stranger(names)?;
            return Ok(self);
        }
        let names = names.concat().join("`, `");
        let found = value_of(self.json).kind();
        Err(FieldError {
            field: match &*self.at {
                "" => "body".to_owned(),
                at => at.to_owned(),
            },
            message: format!("must be an object with `{names}`, not {found}"),
        })
    }

    /// Refuses members that are not among `names`, as far as strangers are refused here. The first of those
    /// that pass.
    ///
    /// # Errors
    /// The first that is refused, with what was probably meant.
    pub(super) fn stranger(&self, names: &[&[&str]]) -> Result<Option<String>, FieldError> {
        let mut passed = None;
        if self.strangers == Strangers::Pass {
            return Ok(passed);
        }
        for member in self.json.members() {
            let mut known = names.iter().copied().flatten();
            let known = known.find(|name| member.is_named(name));
            if let Some(name) = known {
                let mut same = self.json.members().filter(|other| other.is_named(name));
                if same.nth(1).is_some() {
                    return Err(self.error(name, "stands there twice; leave one"));
                }
                continue;
            }
            let slips = self.strangers == Strangers::RefuseSlips;
            if slips && member.value.is_null() {
                continue;
            }
            let written = member.name.text().unwrap_or_default();
            // It is repeated in the answer, so a long one is cut.
            let name: String = written.chars().take(64).collect();
            let advice = match slips {
                true => misspelt(&name.to_ascii_lowercase(), &names.concat()),
                false => Some(spelling::advice(&name, &names.concat())),
            };
            if let Some(advice) = advice {
                return Err(self.error(&name, format!("is not known here; {advice}")));
            }
            passed.get_or_insert(name);
        }
        Ok(passed)
    }

    /// The object in a member, which must be one.
    fn part(
        &self,
        json: Json<'a>,
        part: &Nested,
        item: Option<usize>,
    ) -> Result<JsonObject<'a>, FieldError> {
        let item = item.map_or(String::new(), |item| format!("[{item}]"));
        let object = JsonObject {
            json,
            at: Cow::Owned(self.path_of(part.name) + &item),
            strangers: self.strangers,
            limit: "limit",
            currency: self.currency.clone(),
        };
        object.checked(&[part.fields])
    }
}

impl<'a> Fields<'a> for JsonObject<'a> {
    type Error = FieldError;
    const IN_FILE: bool = false;

    fn currency(&self) -> Option<&Currency> {
        self.currency.as_ref()
    }

    fn value(&mut self, name: &'static str) -> Option<FieldValue<'a>> {
        let name = if name == "limit" { self.limit } else { name };
        self.get(name).map(value_of)
    }

    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, FieldError> {
        let found = self.get(part.name);
        found.map(|found| self.part(found, part, None)).transpose()
    }

    /// `rate: {limit, period}`, a list of them, `rate: 5` beside `period`, or `limit` and `period` flat.
    fn windows(&mut self) -> Result<Vec<Self>, FieldError> {
        let Some(rate) = self.get("rate") else {
            return Ok(match self.get("limit") {
                Some(_) => vec![self.clone()],
                None => Vec::new(),
            });
        };
        match rate.kind() {
            Kind::Number => Ok(vec![JsonObject {
                limit: "rate",
                ..self.clone()
            }]),
            Kind::Array => {
                numbers::rates(rate.items().count()).map_err(|wrong| self.wrong(wrong))?;
                let windows = rate.items().enumerate();
                windows
                    .map(|(nth, item)| self.part(item, &RATE, Some(nth)))
                    .collect()
            }
            _ => Ok(vec![self.part(rate, &RATE, None)?]),
        }
    }

    fn wrong(&mut self, wrong: Wrong) -> FieldError {
        let name = if wrong.member == "limit" {
            self.limit
        } else {
            wrong.member
        };
        match wrong.hint {
            Some(hint) if !hint.is_empty() => {
                self.error(name, format!("{}; {hint}", wrong.message))
            }
            _ => self.error(name, wrong.message),
        }
    }

    fn missing(&mut self, name: &'static str, _example: &str) -> FieldError {
        self.error(name, "is required")
    }
}

fn value_of(json: Json<'_>) -> FieldValue<'_> {
    match json.kind() {
        Kind::Number => match json.int() {
            Some(number) => FieldValue::Integer(number),
            None => {
                let text = std::str::from_utf8(json.raw()).ok();
                let number = text.and_then(|text| text.parse().ok());
                number.map_or(FieldValue::Other("a number"), FieldValue::Float)
            }
        },
        Kind::String => match json.text() {
            Some(text) => FieldValue::Text(text),
            None => FieldValue::Other("half of a surrogate pair"),
        },
        Kind::Bool => FieldValue::Flag(json.boolean() == Some(true)),
        Kind::Null => FieldValue::Other("null"),
        Kind::Array => FieldValue::Other("an array"),
        Kind::Object => FieldValue::Other("an object"),
    }
}
