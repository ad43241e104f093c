//! The kinds of value that a field can have. Each getter reports a wrong value and gives the default or nothing,
//! so that reading goes on.

use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeValue;

use super::reader::{FoundField, TomlTable};
use crate::duration;
use crate::policy::fields::Fields;

/// A text and where it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) span: Range<usize>,
}

impl TomlTable<'_> {
    /// A string.
    pub(super) fn string(&mut self, name: &'static str) -> Option<Text> {
        let found = self.get(name)?;
        self.as_text(&found)
    }

    pub(super) fn as_text(&self, found: &FoundField<'_>) -> Option<Text> {
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
    pub(super) fn expanded(&mut self, name: &'static str) -> Option<Text> {
        let Text { text, span } = self.string(name)?;
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

    /// A string that is parsed, after `${NAME}` was replaced.
    pub(super) fn parsed<T: FromStr<Err = String>>(&mut self, name: &'static str) -> Option<T> {
        let Text { text, span } = self.expanded(name)?;
        match text.parse() {
            Ok(value) => Some(value),
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

    /// A duration within a range, ends included.
    pub(super) fn duration(
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
        let (least, most) = (within.start(), within.end());
        let (least, most) = (duration::plain(*least), duration::plain(*most));
        let path = self.path_of(name);
        let title = format!("`{path}` must be from \"{least}\" to \"{most}\"");
        let hint = format!("the default is \"{}\"", duration::plain(default));
        self.error(&self.span_of(name), title, hint);
        default
    }

    /// A whole number within a range, ends included.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        within: RangeInclusive<usize>,
    ) -> Option<usize> {
        let number = self.int(name).ok()??;
        let fits = usize::try_from(number).ok();
        let fits = fits.filter(|fits| within.contains(fits));
        if fits.is_none() {
            let (path, least, most) = (self.path_of(name), within.start(), within.end());
            let title = format!("`{path}` must be from {least} to {most}");
            self.error(&self.span_of(name), title, format!("found {number}"));
        }
        fits
    }

    /// A number, whole or not, within a range, ends included; `hint` says what it does.
    pub(super) fn number_within(
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

    /// A number of bytes within a range, ends included, or the default.
    pub(super) fn size(
        &mut self,
        name: &'static str,
        default: usize,
        within: RangeInclusive<usize>,
    ) -> usize {
        self.size_within(name, default, within).unwrap_or(default)
    }

    /// A number of bytes: `"8MiB"` or a plain number.
    pub(super) fn size_within(
        &mut self,
        name: &'static str,
        default: usize,
        within: RangeInclusive<usize>,
    ) -> Option<usize> {
        let found = self.get(name)?;
        let bytes = match found.value {
            DeValue::String(text) => size(text),
            DeValue::Integer(digits) => usize::from_str_radix(digits.as_str(), digits.radix()).ok(),
            _ => None,
        };
        let path = &found.path;
        let (title, hint) = match bytes {
            Some(bytes) if within.contains(&bytes) => return Some(bytes),
            Some(_) => {
                let (least, most) = (plain_size(*within.start()), plain_size(*within.end()));
                let title = format!("`{path}` must be from {least} to {most}");
                (title, format!("the default is \"{}\"", plain_size(default)))
            }
            None => {
                let hint = "such as \"8MiB\", \"64KiB\" or \"1GiB\"";
                (format!("`{path}` must be a size"), hint.to_owned())
            }
        };
        self.error(&found.span, title, hint);
        None
    }

    /// One of some words, or the default.
    pub(super) fn word_or<T: Copy>(
        &mut self,
        name: &'static str,
        default: T,
        words: &[(&str, T)],
    ) -> T {
        self.word(name, words).ok().flatten().unwrap_or(default)
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        match self.get(name) {
            None => default,
            Some(FoundField {
                value: DeValue::Boolean(flag),
                ..
            }) => *flag,
            Some(found) => {
                self.wrong_type(&found, "true or false", "without quotes");
                default
            }
        }
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
