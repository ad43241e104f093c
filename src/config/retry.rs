//! Warns where `retry` of an `[[egress]]` does nothing: a call is made again within `max_wait`, and not while its key is
//! shut.

use std::time::Duration;

use ojs_duration::short;
use ojs_policy::{Feedback, Vendor};
use ojs_reader::TomlTable;

/// A call that failed rests for so long at least before it is made again.
const LEAST_REST: Duration = Duration::from_millis(500);
/// The longest `max_wait` that can be written, in seconds.
const LONGEST_WAIT: u64 = 3_600;

/// What decides whether calls of an entry can be made again.
pub(super) struct Tries<'e> {
    pub(super) retry: usize,
    pub(super) max_wait: Duration,
    pub(super) vendor: Option<&'static Vendor>,
    /// What shuts the key, where the limits are the entry's own.
    pub(super) own: Option<&'e Feedback>,
    /// What does where they are these policies'.
    pub(super) of_policies: Vec<&'e Feedback>,
}

pub(super) fn warn_of_idle_retry(table: &TomlTable<'_>, tries: &Tries<'_>) {
    let fields = ["retry", "max_wait", "on_limit", "feedback"];
    if tries.retry == 0 || fields.iter().any(|name| table.is_reported(name)) {
        return;
    }
    let found = match tries.max_wait {
        Duration::ZERO => Some((
            "`retry` does nothing where calls do not wait".to_owned(),
            "a call is made again within `max_wait`: leave on_limit = \"reject\" out, or `retry`"
                .to_owned(),
        )),
        wait if wait <= LEAST_REST => Some((
            "`retry` does nothing within this `max_wait`".to_owned(),
            "a call is made again after 0.5 to 1 s: write max_wait = \"12s\", or take `retry` out"
                .to_owned(),
        )),
        wait => shut_too_long(tries, wait),
    };
    if let Some((title, hint)) = found {
        table.warn(&table.span_of("retry"), title, hint);
    }
}

/// What to say where a 429 without a time shuts the key for longer than a call may wait.
fn shut_too_long(tries: &Tries<'_>, max_wait: Duration) -> Option<(String, String)> {
    let all = match tries.own {
        Some(own) => vec![own],
        None => tries.of_policies.clone(),
    };
    let shuts = |of: &Feedback| Some((of.unnamed_pause(tries.vendor)?, of.unnamed_pause(None)?));
    let pauses = all.into_iter().filter_map(shuts);
    let (pause, of_file) = pauses.max_by_key(|(pause, _)| *pause.start())?;
    let micros = u64::try_from(max_wait.as_micros()).unwrap_or(u64::MAX);
    if *pause.start() < micros {
        return None;
    }
    let title = format!(
        "`retry` does nothing after a 429 without a time: that shuts the key for {}",
        short(*pause.start())
    );
    let seconds = pause.end().div_ceil(1_000_000) + 1;
    let longer = (seconds <= LONGEST_WAIT).then(|| format!("write max_wait = \"{seconds}s\""));
    let place = match tries.own {
        Some(_) => "`feedback`",
        None => "the policy's `feedback`",
    };
    // Otherwise the vendor is known to mean so long at least.
    let shorter = *of_file.start() >= micros;
    let shorter = shorter.then(|| format!("have {place} shut it for less"));
    let todo: Vec<_> = longer.into_iter().chain(shorter).collect();
    let hint = format!(
        "a call waits for {} at most: {}",
        short(micros),
        todo.join(", or ")
    );
    Some((title, hint))
}
