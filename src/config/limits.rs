//! Tables of the file as a source of limits and bounds.

use toml::de::DeValue;

use super::reader::{Reported, TomlTable, article};
use crate::duration;
use crate::policy::fields::{Clash, Fields, Nested, Required};
use crate::policy::limits::RATE;
use crate::policy::nearest;
use crate::policy::numbers::{self, Wrong};

impl Fields for TomlTable<'_> {
    type Error = Reported;
    const ONE_NAME: bool = true;

    fn has(&mut self, name: &'static str) -> bool {
        self.get(name).is_some()
    }

    fn int(&mut self, name: &'static str) -> Result<Option<i64>, Reported> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        let number = match found.value {
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.wrong_type(&found, "a whole number", "digits only");
        }
        number.map(Some).ok_or(Reported)
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, Reported> {
        let text = self.string(name).map(|text| text.text);
        self.unless_reported(name, text)
    }

    fn period(&mut self, name: &'static str) -> Result<Option<u64>, Reported> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        let example = "such as \"10s\", \"500ms\" or \"PT1M\"";
        let (title, hint) = match found.value {
            DeValue::String(text) => match duration::parse_period(text) {
                Ok(micros) => return Ok(Some(micros)),
                Err(bad) => (format!("`{}` {bad}", found.path), example.into()),
            },
            value => {
                let kind = article(value.type_str());
                let title = format!("`{}` must be a duration in quotes, not {kind}", found.path);
                let hint = match value {
                    DeValue::Integer(number) => {
                        format!("say which unit: \"{0}ms\" or \"{0}s\"", number.as_str())
                    }
                    _ => example.into(),
                };
                (title, hint)
            }
        };
        self.error(&found.span, title, hint);
        Err(Reported)
    }

    fn period_text(&mut self, name: &'static str) -> Result<Option<String>, Reported> {
        match self.get(name).map(|found| found.value) {
            Some(DeValue::String(text)) => Ok(Some(text.to_string())),
            // Says what is wrong with it.
            _ => Ok(self.period(name)?.map(|_| String::new())),
        }
    }

    fn word<T: Copy>(
        &mut self,
        name: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Reported> {
        let Some(found) = self.get(name) else {
            return Ok(None);
        };
        let all = words.iter().map(|(word, _)| format!("\"{word}\""));
        let all = format!("write {}", all.collect::<Vec<_>>().join(" or "));
        let DeValue::String(text) = found.value else {
            self.wrong_type(&found, "a string", &all);
            return Err(Reported);
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
            return Ok(Some(*value));
        }
        let near = nearest(text, words.iter().map(|(word, _)| *word));
        let hint = near.map_or(all, |near| format!("did you mean \"{near}\"?"));
        let title = format!("`{}` cannot be \"{text}\"", found.path);
        self.error(&found.span, title, hint);
        Err(Reported)
    }

    fn fraction(&mut self, name: &'static str) -> Result<Option<f64>, Reported> {
        let hint = "a fraction of the bound, such as 0.8";
        let number = self.number_within(name, 0.0..=1.0, hint);
        self.unless_reported(name, number)
    }

    fn bytes(&mut self, name: &'static str) -> Result<Option<u64>, Reported> {
        let bytes = self.size_within(name, 0, 0..=usize::MAX >> 1);
        self.unless_reported(name, bytes.map(|bytes| bytes as u64))
    }

    fn inside(&mut self, part: &Nested) -> Result<Option<Self>, Reported> {
        let table = self.maybe_table(part.name, part.in_file);
        self.unless_reported(part.name, table)
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
            let title = format!("`{}` is an empty list", given.path);
            let hint = format!("leave it out, or write {}", RATE.in_file);
            self.error(&given.span, title, hint);
        }
        match windows.is_empty() {
            true => Err(Reported),
            false => Ok(windows),
        }
    }

    fn wrong(&mut self, wrong: Wrong) -> Reported {
        let path = self.path_of(wrong.member);
        let span = self.span_of(wrong.member);
        let (title, hint) = match (wrong.hint, wrong.member) {
            (Some(hint), _) => (format!("`{path}` {}", wrong.message), hint),
            (None, "tz") => (format!("`{path}` cannot be this"), wrong.message),
            (None, "by") => (format!("`{path}` is not valid"), wrong.message),
            (None, _) => (format!("`{path}` is out of range"), wrong.message),
        };
        self.error(&span, title, hint);
        Reported
    }

    fn missing(&mut self, field: &Required) -> Reported {
        let title = format!("`{}` needs a `{}`", self.path, field.name);
        let hint = format!("such as {}", field.in_file);
        TomlTable::missing(self, &self.span, title, hint);
        Reported
    }

    fn clash(&mut self, fields: &Clash) -> Reported {
        let path = self.path_of(fields.field);
        let title = format!("`{path}` stands beside `{}`", fields.beside);
        self.error(&self.span_of(fields.field), title, fields.in_file);
        Reported
    }

    fn finish(self) {
        TomlTable::finish(self);
    }
}

impl TomlTable<'_> {
    /// What was read of a field: where there is nothing although the field is there, its problem was reported.
    fn unless_reported<T>(
        &mut self,
        name: &'static str,
        read: Option<T>,
    ) -> Result<Option<T>, Reported> {
        match read {
            None if self.has(name) => Err(Reported),
            read => Ok(read),
        }
    }
}
