//! `[policy.feedback]`.

use std::time::Duration;

use toml::de::DeValue;

use super::reader::{Found, Table};
use crate::policy::{Feedback, Pattern};

/// The shortest pause, and the longest: a day.
const WITHIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(86_400));

/// Reads the table of one policy, if it is there.
pub(super) fn feedback(policy: &mut Table<'_>) -> Feedback {
    let mut feedback = Feedback::default();
    let example = "feedback = { codes = [\"RateLimitError\"] }";
    let Some(mut table) = policy.maybe_table("feedback", example) else {
        return feedback;
    };
    honor(&mut table, &mut feedback);
    feedback.codes = codes(&mut table);
    let pause = |table: &mut Table<'_>, name, default| {
        let found = table.duration(name, Duration::from_micros(default), WITHIN.0..=WITHIN.1);
        u64::try_from(found.as_micros()).unwrap_or(default)
    };
    feedback.max_pause = pause(&mut table, "max_pause", feedback.max_pause);
    let default_pause = table.get("default_pause");
    feedback.default_pause = pause(&mut table, "default_pause", feedback.default_pause);
    if let Some(found) = default_pause
        && feedback.default_pause > feedback.max_pause
    {
        let title = format!("`{}` is longer than `max_pause`", found.path);
        table.error(&found.span, title, "no pause is ever longer than max_pause");
    }
    jitter(&mut table, &mut feedback);
    table.finish();
    feedback
}

fn honor(table: &mut Table<'_>, feedback: &mut Feedback) {
    let Some(found) = table.get("honor") else {
        return;
    };
    let hint = "a list of \"rate_limit_until\", \"retry_after\" and \"headers\"; [] for none";
    let DeValue::Array(items) = found.value else {
        return table.wrong_type(&found, "a list of strings", hint);
    };
    (feedback.until, feedback.retry_after, feedback.headers) = (false, false, false);
    for item in items.iter() {
        match item.get_ref() {
            DeValue::String(word) if word == "rate_limit_until" => feedback.until = true,
            DeValue::String(word) if word == "retry_after" => feedback.retry_after = true,
            DeValue::String(word) if word == "headers" => feedback.headers = true,
            _ => table.error(
                &item.span(),
                format!("`{}` cannot have this", found.path),
                hint,
            ),
        }
    }
}

fn codes(table: &mut Table<'_>) -> Vec<Pattern> {
    let Some(found) = table.get("codes") else {
        return Vec::new();
    };
    let DeValue::Array(items) = found.value else {
        table.wrong_type(&found, "a list of strings", "such as [\"RateLimitError\"]");
        return Vec::new();
    };
    let mut codes = Vec::new();
    for item in items.iter() {
        let text = table.as_text(&Found {
            path: found.path.clone(),
            span: item.span(),
            value: item.get_ref(),
        });
        match text {
            Some(text) if text.text.is_empty() => {
                let title = format!("`{}` has a name without a letter", found.path);
                table.error(&text.span, title, "remove it");
            }
            Some(text) => codes.push(Pattern::new(&text.text)),
            None => {}
        }
    }
    codes
}

fn jitter(table: &mut Table<'_>, feedback: &mut Feedback) {
    let Some(found) = table.get("jitter") else {
        return;
    };
    let number: Option<f64> = match found.value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::Integer(number) => number.as_str().parse().ok(),
        _ => None,
    };
    match number {
        Some(part) if (0.0..=1.0).contains(&part) => feedback.jitter = part,
        Some(_) => table.error(
            &found.span,
            format!("`{}` must be from 0 to 1", found.path),
            "the part of default_pause that may be added to it",
        ),
        None => table.wrong_type(&found, "a number", "such as 0.1"),
    }
}
