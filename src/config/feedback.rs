//! Reads `[policy.feedback]`: how a policy learns from the limits of the service that its jobs call.

use std::time::Duration;

use toml::de::DeValue;

use ojs_policy::fields::Fields;
use ojs_policy::{Backoff, Feedback, Pattern};
use ojs_reader::TomlTable;

/// The shortest and the longest pause.
const WITHIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(86_400));

const LONGEST: &str = "no pause is ever longer than max_pause";
const JITTER: &str = "the part of default_pause that may be added to it, such as 0.1";

/// Reads the table of one policy, if it is there.
pub(super) fn feedback(policy: &mut TomlTable<'_>) -> Feedback {
    let mut feedback = Feedback::default();
    let example = "feedback = { codes = [\"RateLimitError\"] }";
    let Some(mut table) = policy.maybe_table("feedback", example) else {
        return feedback;
    };
    honor(&mut table, &mut feedback);
    feedback.codes = codes(&mut table);
    feedback.max_pause = pause(&mut table, "max_pause", feedback.max_pause);
    feedback.default_pause = pause(&mut table, "default_pause", feedback.default_pause);
    let most_is_read = !table.is_reported("max_pause");
    if most_is_read && feedback.default_pause > feedback.max_pause {
        too_long(&mut table, "default_pause", "max_pause", LONGEST);
    }
    if let Ok(Some(jitter)) = table.number_within("jitter", 0.0..=1.0, JITTER) {
        feedback.jitter = jitter;
    }
    let max_pause = match most_is_read {
        true => feedback.max_pause,
        false => u64::MAX,
    };
    feedback.backoff = backoff(&mut table, max_pause);
    feedback
}

fn honor(table: &mut TomlTable<'_>, feedback: &mut Feedback) {
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

fn codes(table: &mut TomlTable<'_>) -> Vec<Pattern> {
    let Some(found) = table.get("codes") else {
        return Vec::new();
    };
    let Some(items) = found.items() else {
        table.wrong_type(&found, "a list of strings", "such as [\"RateLimitError\"]");
        return Vec::new();
    };
    let mut codes = Vec::new();
    for text in items.iter().filter_map(|item| table.as_text(item)) {
        if text.text.is_empty() {
            let title = format!("`{}` has a name without a letter", found.path);
            table.error(&text.span, title, "remove it");
        } else {
            codes.push(Pattern::new(&text.text));
        }
    }
    codes
}

/// `[policy.feedback.backoff]`, if it is there.
fn backoff(feedback: &mut TomlTable<'_>, max_pause: u64) -> Option<Backoff> {
    let example = "backoff = { initial = \"1s\", multiplier = 2, max = \"10m\" }";
    let mut table = feedback.maybe_table("backoff", example)?;
    let mut backoff = Backoff::default();
    backoff.max = backoff.max.min(max_pause);
    backoff.max = pause(&mut table, "max", backoff.max);
    if backoff.max > max_pause {
        too_long(&mut table, "max", "max_pause", LONGEST);
    }
    let max_is_read = !table.is_reported("max");
    backoff.initial = pause(&mut table, "initial", backoff.initial.min(backoff.max));
    if max_is_read && backoff.initial > backoff.max {
        too_long(&mut table, "initial", "max", "it grows from initial to max");
    }
    let hint = "each refusal in a row multiplies the pause by it, such as 2";
    if let Ok(Some(multiplier)) = table.number_within("multiplier", 1.0..=100.0, hint) {
        backoff.multiplier = multiplier;
    }
    Some(backoff)
}

/// Reports a pause that is there and longer than another one; what stands for one that is not there, or that could
/// not be read, is nobody's mistake.
fn too_long(table: &mut TomlTable<'_>, name: &'static str, than: &str, hint: &str) {
    if table.has(name) && !table.is_reported(name) {
        table.refuse(name, format!("is longer than `{than}`"), hint);
    }
}

fn pause(table: &mut TomlTable<'_>, name: &'static str, default: u64) -> u64 {
    let found = table.duration(name, Duration::from_micros(default), WITHIN.0..=WITHIN.1);
    u64::try_from(found.as_micros()).unwrap_or(default)
}
