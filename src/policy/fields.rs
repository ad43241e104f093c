//! Where limits and bounds are read from: a table of the config file, or an object of a JSON body.

use std::fmt;

use super::FieldError;
use super::numbers::Wrong;
use super::spelling::{self, misspelt};
use crate::duration;
use crate::json::{Json, Kind};

/// The fields of a table or of an object. A field that is absent reads as `None`.
pub trait Fields: Sized {
    /// Stands for a problem. In JSON it is the problem itself, and the first one is the answer. In the
    /// config file it says that the problem was noted: there all of them are shown at once, so a reader
    /// asks for every field before it gives up.
    type Error;
    /// Whether two names of the same are refused, although they agree.
    const ONE_NAME: bool;

    /// Whether the field is there.
    fn has(&mut self, name: &'static str) -> bool;

    /// A whole number.
    fn int(&mut self, name: &'static str) -> Result<Option<i64>, Self::Error>;

    /// A text.
    fn text(&mut self, name: &'static str) -> Result<Option<String>, Self::Error>;

    /// A duration in microseconds.
    fn period(&mut self, name: &'static str) -> Result<Option<u64>, Self::Error>;

    /// The text of a period, which may be one of a calendar.
    fn period_text(&mut self, name: &'static str) -> Result<Option<String>, Self::Error>;

    /// One of some words.
    fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Self::Error>;

    /// A number from 0 to 1.
    fn fraction(&mut self, name: &'static str) -> Result<Option<f64>, Self::Error>;

    /// A number of bytes.
    fn bytes(&mut self, name: &'static str) -> Result<Option<u64>, Self::Error>;

    /// What is inside a field.
    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, Self::Error>;

    /// The windows of `rate`, each to be read by its fields; empty: there is none.
    fn windows(&mut self) -> Result<Vec<Self>, Self::Error>;

    /// A field is there and its value cannot be used.
    fn wrong(&mut self, wrong: Wrong) -> Self::Error;

    /// A field is not there.
    fn missing(&mut self, field: &Required) -> Self::Error;

    /// Two fields stand beside each other of which one may.
    fn clash(&mut self, fields: &Clash) -> Self::Error;

    /// Ends the reading: a field that nobody has asked for is a problem in the config file.
    fn finish(self);
}

/// A field that has fields of its own.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// Its name.
    pub name: &'static str,
    /// What it may have inside.
    pub fields: &'static [&'static str],
    /// How it is written in the file.
    pub in_file: &'static str,
    /// How it is written in JSON.
    pub in_json: &'static str,
}

/// A field that must be there.
#[derive(Clone, Copy, Debug)]
pub struct Required {
    /// Its name.
    pub name: &'static str,
    /// How it is written in the file.
    pub in_file: &'static str,
    /// What is said of it in JSON.
    pub in_json: &'static str,
}

/// Two fields that cannot stand beside each other.
#[derive(Clone, Copy, Debug)]
pub struct Clash {
    /// The one that is too much in the file.
    pub field: &'static str,
    /// The other one.
    pub beside: &'static str,
    /// What to do, as said of the first one in the file.
    pub in_file: &'static str,
    /// What is said of the other one in JSON.
    pub in_json: &'static str,
}

/// Reads to the end, so that unknown fields are noted whatever else is wrong.
pub fn whole<F: Fields, T>(
    mut from: F,
    read: impl FnOnce(&mut F) -> Result<T, F::Error>,
) -> Result<T, F::Error> {
    let value = read(&mut from);
    from.finish();
    value
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
#[derive(Clone, Copy, Debug)]
pub struct JsonObject<'a> {
    json: Json<'a>,
    at: JsonPath<'a>,
    pub(super) strangers: Strangers,
    /// The member that is its `limit`: `rate` where that is a number.
    limit: &'static str,
}

/// A path in a JSON body, written out only where something is wrong.
#[derive(Clone, Copy, Debug)]
struct JsonPath<'a> {
    root: &'a str,
    part: &'static str,
    item: Option<usize>,
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.root.is_empty() || self.part.is_empty() {
            ""
        } else {
            "."
        };
        write!(f, "{}{dot}{}", self.root, self.part)?;
        self.item.map_or(Ok(()), |item| write!(f, "[{item}]"))
    }
}

impl<'a> JsonObject<'a> {
    /// The object at `root`, which is empty for a whole body.
    ///
    /// # Errors
    /// It is no object; `example` is one.
    pub fn new(
        json: Json<'a>,
        root: &'a str,
        strangers: Strangers,
        example: &str,
    ) -> Result<JsonObject<'a>, FieldError> {
        let at = JsonPath {
            root,
            part: "",
            item: None,
        };
        let object = JsonObject {
            json,
            at,
            strangers,
            limit: "limit",
        };
        if json.kind() == Kind::Object {
            return Ok(object);
        }
        let mut error = object.refuse(&format!("must be an object such as {example}"), json);
        if error.field.is_empty() {
            error.field = "body".into();
        }
        Err(error)
    }

    /// The JSON of this object.
    pub fn json(&self) -> Json<'a> {
        self.json
    }

    /// A member that is there and not null.
    pub fn get(&self, name: &str) -> Option<Json<'a>> {
        self.json.get(name).filter(|member| !member.is_null())
    }

    /// A member is wrong.
    pub fn error(&self, name: &str, message: impl Into<String>) -> FieldError {
        let at = self.at.to_string();
        let dot = if at.is_empty() { "" } else { "." };
        FieldError {
            field: format!("{at}{dot}{name}"),
            message: message.into(),
        }
    }

    /// A member has another kind of value than it should.
    pub fn wrong_kind(&self, name: &str, should: &str, found: Json<'_>) -> FieldError {
        self.error(name, format!("{should}, found {}", kind_name(found.kind())))
    }

    /// The object itself should be another.
    fn refuse(&self, should: &str, found: Json<'_>) -> FieldError {
        FieldError {
            field: self.at.to_string(),
            message: format!("{should}, found {}", kind_name(found.kind())),
        }
    }

    /// Refuses members that are not among `names`, as far as strangers are refused here. The first of those
    /// that pass.
    ///
    /// # Errors
    /// The first that is refused, with what was probably meant.
    pub fn check_names(&self, names: &[&str]) -> Result<Option<String>, FieldError> {
        let mut passed = None;
        if self.strangers == Strangers::Pass {
            return Ok(passed);
        }
        for member in self.json.members() {
            let known = names.iter().any(|name| member.is_named(name));
            let slips = self.strangers == Strangers::RefuseSlips;
            if known || (slips && member.value.is_null()) {
                continue;
            }
            let written = member.name.text().unwrap_or_default();
            // It is repeated in the answer, so a long one is cut.
            let name: String = written.chars().take(64).collect();
            let advice = match slips {
                true => misspelt(&name.to_ascii_lowercase(), names),
                false => Some(spelling::advice(&name, names)),
            };
            if let Some(advice) = advice {
                return Err(self.error(&name, format!("is not known here; {advice}")));
            }
            passed.get_or_insert(name);
        }
        Ok(passed)
    }

    fn part(&self, json: Json<'a>, name: &'static str, item: Option<usize>) -> JsonObject<'a> {
        let at = JsonPath {
            part: name,
            item,
            ..self.at
        };
        JsonObject {
            json,
            at,
            limit: "limit",
            ..*self
        }
    }
}

impl Fields for JsonObject<'_> {
    type Error = FieldError;
    const ONE_NAME: bool = false;

    fn has(&mut self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    fn int(&mut self, name: &'static str) -> Result<Option<i64>, FieldError> {
        let name = if name == "limit" { self.limit } else { name };
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        match found.int() {
            Some(number) => Ok(Some(number)),
            None if found.kind() == Kind::Number => Err(self.error(name, "must be a whole number")),
            None => Err(self.wrong_kind(name, "must be a whole number", found)),
        }
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        match found.text() {
            Some(text) => Ok(Some(text.into_owned())),
            None if found.kind() == Kind::String => {
                Err(self.error(name, "has half of a surrogate pair"))
            }
            None => Err(self.wrong_kind(name, "must be a string", found)),
        }
    }

    fn period(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        let Some(text) = found.text() else {
            return Err(self.wrong_kind(name, "must be a duration such as \"PT1M\"", found));
        };
        let period = duration::parse_period(&text);
        let period = period.map_err(|bad| self.error(name, bad.to_string()))?;
        Ok(Some(period))
    }

    fn period_text(&mut self, name: &'static str) -> Result<Option<String>, FieldError> {
        self.text(name)
    }

    fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let quoted: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        let all = match quoted.split_last() {
            Some((last, before)) if !before.is_empty() => {
                format!("{} or {last}", before.join(", "))
            }
            _ => quoted.concat(),
        };
        Err(self.error(name, format!("must be {all}, found {text:?}")))
    }

    fn fraction(&mut self, name: &'static str) -> Result<Option<f64>, FieldError> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(found.raw()).ok();
        let number = text.filter(|_| found.kind() == Kind::Number);
        let number = number.and_then(|text| text.parse().ok());
        match number.filter(|number| (0.0..=1.0).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(self.error(name, "must be a number from 0 to 1")),
        }
    }

    fn bytes(&mut self, name: &'static str) -> Result<Option<u64>, FieldError> {
        from_0(self, name)
    }

    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, FieldError> {
        let Some(found) = self.get(part.name) else {
            return Ok(None);
        };
        let object = self.part(found, part.name, None);
        if found.kind() != Kind::Object {
            let should = format!("must be an object such as {}", part.in_json);
            return Err(object.refuse(&should, found));
        }
        object.check_names(part.fields)?;
        Ok(Some(object))
    }

    /// `rate: {limit, period}`, a list of them, `rate: 5` beside `period`, or `limit` and `period` flat.
    fn windows(&mut self) -> Result<Vec<Self>, FieldError> {
        let Some(rate) = self.get("rate") else {
            return Ok(match self.get("limit") {
                Some(_) => vec![*self],
                None => Vec::new(),
            });
        };
        match rate.kind() {
            Kind::Number => Ok(vec![JsonObject {
                limit: "rate",
                ..*self
            }]),
            Kind::Array => {
                super::numbers::rates(rate.items().count()).map_err(|wrong| self.wrong(wrong))?;
                let windows = rate.items().enumerate().map(|(nth, item)| {
                    let window = self.part(item, "rate", Some(nth));
                    if item.kind() != Kind::Object {
                        let should = "must be an object with limit and period";
                        return Err(window.refuse(should, item));
                    }
                    window.check_names(super::limits::RATE.fields)?;
                    Ok(window)
                });
                windows.collect()
            }
            _ => Ok(self.inside(&super::limits::RATE)?.into_iter().collect()),
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

    fn missing(&mut self, field: &Required) -> FieldError {
        self.error(field.name, field.in_json)
    }

    fn clash(&mut self, fields: &Clash) -> FieldError {
        self.error(fields.beside, fields.in_json)
    }

    // Members were looked at before their values.
    fn finish(self) {}
}

/// A whole number from 0, which is no bound.
///
/// # Errors
/// It is less, or no whole number.
pub fn from_0<F: Fields>(from: &mut F, name: &'static str) -> Result<Option<u64>, F::Error> {
    let Some(number) = from.int(name)? else {
        return Ok(None);
    };
    let number = u64::try_from(number).map_err(|_| {
        from.wrong(Wrong {
            member: name,
            message: "must be from 0".into(),
            hint: Some("0 is unbounded".into()),
        })
    })?;
    Ok(Some(number))
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Null => "null",
        Kind::Bool => "true or false",
        Kind::Number => "a number",
        Kind::String => "a string",
        Kind::Array => "a list",
        Kind::Object => "an object",
    }
}
