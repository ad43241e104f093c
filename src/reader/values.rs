//! Tables of the file as a source of values. Each getter reports a wrong value and gives nothing, so that reading goes
//! on.

use std::borrow::Cow;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeValue;

use super::table::{FoundField, Reported, Text, TomlTable, kind_of};
use ojs_duration as duration;
use ojs_policy::Currency;
use ojs_policy::fields::{FieldValue, Fields};
use ojs_policy::numbers::{self, Wrong};
use ojs_policy::words::Nested;
use ojs_policy::words::RATE;

impl<'r> Fields<'r> for TomlTable<'r> {
    type Error = Reported;
    const IN_FILE: bool = true;

    fn currency(&self) -> Option<&Currency> {
        self.currency.as_ref()
    }

    fn may_be_money(&self) -> bool {
        self.is_budget
    }

    fn value(&mut self, name: &'static str) -> Option<FieldValue<'r>> {
        let value = self.get(name)?.value;
        Some(match value {
            DeValue::String(text) => FieldValue::Text(Cow::Borrowed(text)),
            DeValue::Boolean(flag) => FieldValue::Flag(*flag),
            DeValue::Integer(digits) => {
                let number = i64::from_str_radix(digits.as_str(), digits.radix());
                number.map_or(FieldValue::Other(kind_of(value)), FieldValue::Integer)
            }
            DeValue::Float(number) => {
                let number = number.as_str().parse();
                number.map_or(FieldValue::Other(kind_of(value)), FieldValue::Float)
            }
            _ => FieldValue::Other(kind_of(value)),
        })
    }

    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, Reported> {
        let table = self.maybe_table(part.name, part.in_file);
        match table {
            // It is there and no table, which was reported.
            None if self.has(part.name) => Err(Reported),
            table => Ok(table),
        }
    }

    fn windows(&mut self) -> Result<Vec<Self>, Reported> {
        let Some(given) = self.get(RATE.name) else {
            return Ok(Vec::new());
        };
        let windows = self.tables(RATE.name, RATE.in_file);
        if let Err(wrong) = numbers::rates(windows.len()) {
            self.wrong(wrong);
        }
        if matches!(given.value, DeValue::Array(items) if items.is_empty()) {
            let hint = format!("leave it out, or write {}", RATE.in_file);
            self.refuse(RATE.name, "is an empty list", hint);
        }
        match windows.is_empty() {
            true => Err(Reported),
            false => Ok(windows),
        }
    }

    fn wrong(&mut self, wrong: Wrong) -> Reported {
        let path = self.path_of(wrong.member);
        let (what, hint) = match (wrong.hint, wrong.member) {
            (Some(hint), _) => (wrong.message, hint),
            (None, "tz") => ("cannot be this".to_owned(), wrong.message),
            (None, "by") => ("is not valid".to_owned(), wrong.message),
            (None, _) => ("is out of range".to_owned(), wrong.message),
        };
        let title = format!("`{path}` {what}");
        self.error(&self.span_of(wrong.member), title, hint);
        Reported
    }

    fn missing(&mut self, name: &'static str, example: &str) -> Reported {
        let title = format!("`{}` needs a `{name}`", self.path);
        TomlTable::missing(self, &self.span, title, format!("such as {example}"));
        Reported
    }
}

impl TomlTable<'_> {
    /// Reports a field of which `what` is true.
    pub fn refuse(&mut self, name: &'static str, what: impl Into<String>, hint: impl Into<String>) {
        self.wrong(Wrong::with_hint(name, what.into(), hint));
    }

    /// A string and where it stands.
    pub fn string(&mut self, name: &'static str) -> Option<Text> {
        let found = self.get(name)?;
        self.as_text(&found)
    }

    /// A value that must be a text; what else it is is reported.
    pub fn as_text(&self, found: &FoundField<'_>) -> Option<Text> {
        match found.value {
            DeValue::String(text) => Some(Text {
                text: text.to_string(),
                span: found.span.clone(),
            }),
            _ => {
                self.wrong_type(found, "a string", "put it in quotes");
                None
            }
        }
    }

    /// A string with `${NAME}` replaced by the environment variable of that name.
    pub fn expanded(&mut self, name: &'static str) -> Option<String> {
        let text = self.text(name).ok()??;
        let (mut out, mut rest) = (String::new(), &*text);
        while let Some((before, after)) = rest.split_once("${") {
            let Some((variable, after)) = after.split_once('}') else {
                self.refuse(name, "has a `${` without its `}`", "write ${NAME}");
                return None;
            };
            let Some(value) = std::env::var(variable).ok() else {
                let what = format!("needs the environment variable {variable}, which is not set");
                self.refuse(name, what, "set it, or write the value here");
                return None;
            };
            out.push_str(before);
            out.push_str(&value);
            rest = after;
        }
        out.push_str(rest);
        Some(out)
    }

    /// A string that is parsed, after `${NAME}` was replaced.
    pub fn parsed<T: FromStr<Err = String>>(&mut self, name: &'static str) -> Option<T> {
        let parsed = self.expanded(name)?.parse();
        parsed
            .map_err(|hint| self.refuse(name, "is not valid", hint))
            .ok()
    }

    /// A duration within a range, ends included.
    pub fn duration(
        &mut self,
        name: &'static str,
        default: Duration,
        within: RangeInclusive<Duration>,
    ) -> Duration {
        let Ok(Some(micros)) = self.period(name) else {
            return default;
        };
        let value = Duration::from_micros(micros);
        if within.contains(&value) {
            return value;
        }
        let plain = duration::plain;
        let (least, most) = (plain(*within.start()), plain(*within.end()));
        let what = format!("must be from \"{least}\" to \"{most}\"");
        let hint = format!("the default is \"{}\"", plain(default));
        self.refuse(name, what, hint);
        default
    }

    /// A whole number within a range, ends included.
    pub fn whole_number<T: From<usize>>(
        &mut self,
        name: &'static str,
        default: T,
        within: RangeInclusive<usize>,
    ) -> T {
        let Ok(Some(number)) = self.int(name) else {
            return default;
        };
        let fits = usize::try_from(number).ok();
        let fits = fits.filter(|fits| within.contains(fits));
        if fits.is_none() {
            let what = format!("must be from {} to {}", within.start(), within.end());
            self.refuse(name, what, format!("found {number}"));
        }
        fits.map_or(default, T::from)
    }

    /// One of some words, or the default.
    pub fn word_or<T: Copy>(&mut self, name: &'static str, default: T, words: &[(&str, T)]) -> T {
        self.word(name, words).ok().flatten().unwrap_or(default)
    }
}
