//! The kinds of value that a field can have. Each getter reports what is wrong and gives the
//! default, or nothing, so that reading goes on.

use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Found, Table, article};
use crate::duration;
use crate::policy::nearest;

/// A text and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) span: Range<usize>,
}

impl Table<'_> {
    /// A string.
    pub(super) fn text(&mut self, name: &'static str) -> Option<Text> {
        let found = self.get(name)?;
        self.as_text(&found)
    }

    pub(super) fn as_text(&self, found: &Found<'_>) -> Option<Text> {
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

    /// A string in which `${NAME}` stands for an environment variable.
    pub(super) fn expanded(&mut self, name: &'static str) -> Option<Text> {
        let Text { text, span } = self.text(name)?;
        let (mut out, mut rest) = (String::new(), text.as_str());
        while let Some((before, after)) = rest.split_once("${") {
            let Some((variable, after)) = after.split_once('}') else {
                self.error(
                    &span,
                    format!("`{}` has a `${{` without its `}}`", self.path_of(name)),
                    "write ${NAME}",
                );
                return None;
            };
            let Some(value) = self.variable(variable) else {
                let title = format!(
                    "`{}` needs the environment variable {variable}, which is not set",
                    self.path_of(name)
                );
                self.error(&span, title, "set it, or write the value here");
                return None;
            };
            out.push_str(before);
            out.push_str(&value);
            rest = after;
        }
        out.push_str(rest);
        Some(Text { text: out, span })
    }

    /// A string that is read into something else, with `${NAME}` filled in.
    pub(super) fn parsed<T: FromStr<Err = String>>(
        &mut self,
        name: &'static str,
    ) -> Option<(T, Range<usize>)> {
        let Text { text, span } = self.expanded(name)?;
        match text.parse() {
            Ok(value) => Some((value, span)),
            Err(hint) => {
                self.error(
                    &span,
                    format!("`{}` is not valid", self.path_of(name)),
                    hint,
                );
                None
            }
        }
    }

    /// A duration in microseconds.
    pub(super) fn micros(&mut self, name: &'static str) -> Option<(u64, Range<usize>)> {
        let found = self.get(name)?;
        let DeValue::String(text) = found.value else {
            let hint = match found.value {
                DeValue::Integer(number) => {
                    format!("say which unit: \"{0}ms\" or \"{0}s\"", number.as_str())
                }
                _ => "such as \"10s\", \"500ms\" or \"PT1M\"".into(),
            };
            let title = format!(
                "`{}` must be a duration in quotes, not {}",
                found.path,
                article(found.value.type_str())
            );
            self.error(&found.span, title, hint);
            return None;
        };
        match duration::parse_period(text) {
            Ok(micros) => Some((micros, found.span)),
            Err(bad) => {
                self.error(
                    &found.span,
                    format!("`{}` {bad}", found.path),
                    "such as \"10s\", \"500ms\" or \"PT1M\"",
                );
                None
            }
        }
    }

    /// A duration within a range, ends included.
    pub(super) fn duration(
        &mut self,
        name: &'static str,
        default: Duration,
        within: RangeInclusive<Duration>,
    ) -> Duration {
        let Some((micros, span)) = self.micros(name) else {
            return default;
        };
        let value = Duration::from_micros(micros);
        if within.contains(&value) {
            return value;
        }
        let (least, most) = (
            duration::plain(*within.start()),
            duration::plain(*within.end()),
        );
        let title = format!(
            "`{}` must be from \"{least}\" to \"{most}\"",
            self.path_of(name)
        );
        self.error(
            &span,
            title,
            format!("the default is \"{}\"", duration::plain(default)),
        );
        default
    }

    /// A whole number.
    pub(super) fn integer(&mut self, name: &'static str) -> Option<(i64, Range<usize>)> {
        let found = self.get(name)?;
        let number = match found.value {
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.wrong_type(&found, "a whole number", "digits only");
        }
        Some((number?, found.span))
    }

    /// A whole number within a range, ends included.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        within: RangeInclusive<usize>,
    ) -> Option<usize> {
        let (number, span) = self.integer(name)?;
        match usize::try_from(number) {
            Ok(fits) if within.contains(&fits) => Some(fits),
            _ => {
                let title = format!(
                    "`{}` must be from {} to {}",
                    self.path_of(name),
                    within.start(),
                    within.end()
                );
                self.error(&span, title, format!("found {number}"));
                None
            }
        }
    }

    /// A number, whole or not, within a range, ends included; `hint` is what it does.
    pub(super) fn fraction(
        &mut self,
        name: &'static str,
        within: RangeInclusive<f64>,
        hint: &str,
    ) -> Option<f64> {
        let found = self.get(name)?;
        let (least, most) = (within.start(), within.end());
        let number = match found.value {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(digits) => i64::from_str_radix(digits.as_str(), digits.radix())
                .ok()
                .map(|number| number as f64),
            _ => {
                let should = format!("a number from {least} to {most}");
                self.wrong_type(&found, &should, hint);
                return None;
            }
        };
        let fits = number.filter(|number| within.contains(number));
        if fits.is_none() {
            let title = format!("`{}` must be from {least} to {most}", found.path);
            self.error(&found.span, title, hint);
        }
        fits
    }

    /// A number of bytes: `"8MiB"` or a plain number.
    pub(super) fn size(
        &mut self,
        name: &'static str,
        default: usize,
        within: RangeInclusive<usize>,
    ) -> usize {
        let Some(found) = self.get(name) else {
            return default;
        };
        let bytes = match found.value {
            DeValue::String(text) => size(text),
            DeValue::Integer(digits) => usize::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        match bytes {
            Some(bytes) if within.contains(&bytes) => bytes,
            Some(_) => {
                let title = format!(
                    "`{}` must be from {} to {}",
                    found.path,
                    plain_size(*within.start()),
                    plain_size(*within.end())
                );
                self.error(
                    &found.span,
                    title,
                    format!("the default is \"{}\"", plain_size(default)),
                );
                default
            }
            None => {
                self.error(
                    &found.span,
                    format!("`{}` must be a size", found.path),
                    "such as \"8MiB\", \"64KiB\" or \"1GiB\"",
                );
                default
            }
        }
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        match self.get(name) {
            None => default,
            Some(Found {
                value: DeValue::Boolean(flag),
                ..
            }) => *flag,
            Some(found) => {
                self.wrong_type(&found, "true or false", "without quotes");
                default
            }
        }
    }

    /// One of some words.
    pub(super) fn word<T: Copy>(
        &mut self,
        name: &'static str,
        default: T,
        words: &[(&str, T)],
    ) -> T {
        let Some(found) = self.get(name) else {
            return default;
        };
        let all: Vec<String> = words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        let all = format!("write {}", all.join(" or "));
        let DeValue::String(text) = found.value else {
            self.wrong_type(&found, "a string", &all);
            return default;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
            return *value;
        }
        let near = nearest(text, words.iter().map(|(word, _)| *word));
        let hint = near.map_or(all, |near| format!("did you mean \"{near}\"?"));
        self.error(
            &found.span,
            format!("`{}` cannot be \"{text}\"", found.path),
            hint,
        );
        default
    }
}

/// Bytes of a size such as `8MiB`, `500kB` or `1024`.
fn size(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: usize = match unit.trim() {
        "" | "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<usize>().ok()?.checked_mul(factor)
}

fn plain_size(bytes: usize) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units
        .iter()
        .find(|(factor, _)| bytes >= *factor && bytes.is_multiple_of(*factor))
    {
        Some((factor, unit)) => format!("{}{unit}", bytes / factor),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let table = [
            ("8MiB", Some(8 << 20)),
            ("64 KiB", Some(64 << 10)),
            ("1kB", Some(1_000)),
            ("7", Some(7)),
            ("MiB", None),
            ("1.5MiB", None),
            ("8 megs", None),
        ];
        for (text, bytes) in table {
            assert_eq!(size(text), bytes, "{text}");
        }
        assert_eq!(
            (plain_size(8 << 20), plain_size(1_000)),
            ("8MiB".into(), "1000B".into())
        );
    }
}
