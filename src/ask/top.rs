//! `top`: the table of limits, each second, from `GET /throttle/v1/state`.

use std::io::Write;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::{AdminPort, AskError, list, text};
use crate::cli::{Sort, Top};
use crate::ojs;

/// Makes a terminal empty.
const CLEAR: &str = "\x1b[2J\x1b[H";
const NAMES: &str = "\
LIMIT                        BY              SLOTS        WINDOW WAITING  STARTS  REFUSED     NEXT";

/// Prints the table until `out` has no reader any more, or once.
///
/// # Errors
/// The sidecar refuses, or does not answer to `--once`.
pub async fn top(
    port: &AdminPort,
    args: &Top,
    is_terminal: bool,
    out: &mut impl Write,
) -> Result<String, AskError> {
    let path = format!("/throttle/v1/state?search={}", ojs::encoded(&args.filter));
    let clear = if is_terminal { CLEAR } else { "" };
    let mut since = "the start".to_owned();
    loop {
        let page = match port.call(Method::GET, &path, None).await {
            Ok(state) if args.json => state + "\n",
            Ok(state) => {
                let state: Value = serde_json::from_str(&state).unwrap_or_default();
                since = text(&state, "at").to_owned();
                table(&state, args)
            }
            Err(error @ AskError::Refused(..)) => return Err(error),
            Err(error) if args.once => return Err(error),
            Err(_) if args.json => String::new(),
            Err(error) => format!("no connection since {since}: {error}\n"),
        };
        // Whoever reads (`head`) may have left: no error of ours.
        let is_read = write!(out, "{clear}{page}").and_then(|()| out.flush());
        if args.once || is_read.is_err() {
            return Ok(String::new());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// A line cut to the width, without what would steer a terminal.
fn fit(line: &str, columns: usize) -> String {
    let shown = line.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.take(columns).chain(['\n']).collect()
}

/// The state as a line about the sidecar and one for each limit.
fn table(state: &Value, args: &Top) -> String {
    let (sidecar, keys) = (&state["sidecar"], &state["keys"]);
    let is_up = |part: &str| match state[part]["up"] == true {
        true => "up",
        false => "away",
    };
    let about = format!(
        "{} {}; store {}; backend {}; {} of {} held; limits: {}; {}",
        text(state, "at"),
        text(sidecar, "ready"),
        is_up("store"),
        is_up("backend"),
        sidecar["held"],
        sidecar["held_max"],
        keys["found"],
        text(sidecar, "name"),
    );
    let mut rows: Vec<&Value> = list(keys, "rows").iter().collect();
    let most = |number: &Value| u64::MAX - number.as_u64().unwrap_or(0);
    match args.sort {
        // So they come.
        Sort::Refused => {}
        Sort::Waiting => rows.sort_by_key(|row| most(&row["state"]["waiting_count"])),
        Sort::Starts => rows.sort_by_key(|row| most(&row["minute"]["starts"])),
        Sort::Name => rows.sort_by_key(|row| text(row, "name")),
    }
    let lines = [about, NAMES.to_owned()].into_iter();
    let lines = lines.chain(rows.into_iter().map(row_line));
    lines.map(|line| fit(&line, args.columns)).collect()
}

/// What stands of one limit under [`NAMES`].
fn row_line(row: &Value) -> String {
    let (state, minute) = (&row["state"], &row["minute"]);
    let of = |limit: &Value, used: &str| match limit.is_null() {
        true => String::new(),
        false => format!("{}/{}", limit[used], limit["limit"]),
    };
    let (slots, window) = (&state["concurrency"], &state["rate"]);
    let by = match slots["limit"] == 0 {
        true => "paused",
        false => text(state, "limited_by"),
    };
    // The time of day is enough.
    let next = text(state, "next_start").split(['T', '.']).nth(1);
    format!(
        "{:<28} {by:<11} {:>9} {:>13} {:>7} {:>7} {:>8} {:>8}",
        text(row, "name"),
        of(slots, "active"),
        of(window, "current_count"),
        state["waiting_count"].to_string(),
        minute["starts"].to_string(),
        minute["refused"].to_string(),
        next.unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_steers_no_terminal() {
        assert_eq!(fit("_queue:a\x1b[2J\rb", 12), "_queue:a?[2J\n");
    }
}
