//! `top`: the table of limits, each second, from `GET /throttle/v1/state`.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::commands::addressed;
use super::port::{AdminPort, AskError};
use super::why::{bounds_over_http, is_obeyed, list, plain, set_by_hand, text};
use crate::cli::{Sort, Top};
use crate::duration;
use crate::wire::ojs;

/// Makes a terminal empty.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// Microseconds of a day.
const DAY: u64 = 86_400_000_000;
/// The head of the limits, up to the window and from there on: money needs more room than most numbers.
const NAMES: [&str; 2] = [
    "LIMIT                    BY              SLOTS ",
    " WAITING STARTS REFUSED     NEXT     DONE",
];
/// The least letters of a window.
const WINDOW: usize = 11;
const QUEUES: &str = "\
QUEUE                        BY                            DEPTH WAITING    HELD  REFUSED     DONE";
const WAYS: &str = "\
WAY OUT                  BY               OUT WAITING  ANSWERS IN THE LAST MINUTE";

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
    let fills = is_terminal && !args.once && !args.json;
    let clear = if fills { CLEAR } else { "" };
    let mut since = "the start".to_owned();
    loop {
        // It may have another size by now.
        let size = terminal_size::terminal_size().filter(|_| is_terminal);
        let columns = match (args.columns, size) {
            (Some(0), _) => usize::MAX,
            (Some(columns), _) => columns as usize,
            (None, Some((width, _))) => usize::from(width.0),
            // Nothing turns the lines of a file.
            (None, None) => usize::MAX,
        };
        let rows = size.filter(|_| fills);
        let rows = rows.map_or(usize::MAX, |(_, height)| usize::from(height.0));
        let page = match port.call(Method::GET, &path, None).await {
            Ok(state) if args.json => state + "\n",
            Ok(state) => {
                let state: Value = serde_json::from_str(&state).unwrap_or_default();
                since = text(&state, "at").to_owned();
                let lines = table(&state, args).into_iter();
                let lines = lines.map(|line| addressed(&line, &args.admin));
                screen(lines.collect(), (columns, rows))
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

/// The names of limits that begin so: at most 50, those that bind most first.
pub async fn keys(port: &AdminPort, begun: &str) -> Vec<String> {
    let path = format!("/throttle/v1/state?search={}", ojs::encoded(begun));
    let state = port.get(&path).await.unwrap_or_default();
    let rows = list(&state["keys"], "rows").iter();
    let names = rows.map(|row| text(row, "name").to_owned());
    names.filter(|name| name.starts_with(begun)).collect()
}

/// A line cut to the width, without what would steer a terminal.
fn fit(line: &str, columns: usize) -> String {
    let shown = line.chars().map(|c| if is_obeyed(c) { '?' } else { c });
    shown.take(columns).chain(['\n']).collect()
}

/// As much of the lines as a screen of this size has room for, above the line of its cursor. Rows are cut to its width,
/// and sentences go on in the next line.
fn screen(lines: Vec<String>, (columns, rows): (usize, usize)) -> String {
    // A command stays as it can be copied.
    let whole_words = textwrap::WordSplitter::NoHyphenation;
    let sentences = textwrap::Options::new(columns).word_splitter(whole_words);
    let sentences = sentences.subsequent_indent("    ");
    let wrapped = lines
        .iter()
        .flat_map(|line| match line.starts_with(['!', ' ']) {
            true => textwrap::wrap(line, &sentences),
            false => vec![Cow::Borrowed(&**line)],
        });
    let mut lines: Vec<_> = wrapped.collect();
    if lines.len() >= rows {
        let shown = rows.saturating_sub(2);
        let more = lines.len() - shown;
        lines.truncate(shown);
        lines.push(format!("{more} more lines: --filter shows fewer, --once all").into());
    }
    lines.iter().map(|line| fit(line, columns)).collect()
}

/// The state: a line about the sidecar, what is wrong with it, one line for each limit, and one for each queue.
fn table(state: &Value, args: &Top) -> Vec<String> {
    let (sidecar, keys) = (&state["sidecar"], &state["keys"]);
    let is_up = |part: &str| match state[part]["up"] == true {
        true => "up",
        false => "away",
    };
    let of_jobs = match state["backend"]["url"].is_null() {
        true => "no backend: calls only".to_owned(),
        false => format!(
            "backend {}; {} of {} held",
            is_up("backend"),
            sidecar["held"],
            sidecar["held_max"]
        ),
    };
    let about = format!(
        "{} {}; store {}; {of_jobs}; limits: {}; {}",
        text(state, "at"),
        text(sidecar, "ready"),
        is_up("store"),
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
    let mut lines = vec![about];
    lines.extend(list(state, "causes").iter().flat_map(cause_lines));
    lines.extend(list(state, "shadow").iter().map(shadow_line));
    lines.extend(limit_lines(&rows, text(state, "at")));
    // While the store is lost there may be no rows, and a filter brings none.
    if !rows.is_empty() && keys["found"].as_u64() > keys["per_page"].as_u64() {
        let (shown, found) = (rows.len(), &keys["found"]);
        lines.push(format!(
            "{shown} of {found} limits: --filter TEXT shows others"
        ));
    }
    lines.extend(way_lines(state));
    lines.extend(queue_lines(state, &args.filter.to_lowercase()));
    lines
}

/// One line for each limit, and what is to be told of it.
fn limit_lines(rows: &[&Value], today: &str) -> Vec<String> {
    let windows = rows.iter().map(|row| window_used(row).chars().count());
    let width = windows.fold(WINDOW, usize::max);
    let head = format!("{}{:>width$}{}", NAMES[0], "WINDOW", NAMES[1]);
    let mut lines = vec![head];
    for row in rows {
        lines.push(row_line(row, width, today));
        // Who looks for what hangs needs the workers' names. Jobs that are discarded are lost. Callers do not try a spent
        // budget again.
        let is_told = ["may hang", "drops jobs"].contains(&text(&row["cause"], "name"));
        if is_told || ["tokens", "money"].contains(&text(&row["state"], "unit")) {
            lines.extend(cause_lines(&row["cause"]));
        }
        lines.extend(calls_line(&row["state"]["calls"]));
        lines.extend(growth_line(&row["state"]));
        lines.extend(set_by_hand(&row["state"]));
        let hint = row["state"]["hint"].as_str();
        lines.extend(hint.map(|hint| format!("  note: {hint}")));
    }
    lines
}

/// One line for each way out, and what holds it back.
fn way_lines(state: &Value) -> Vec<String> {
    let ways = list(state, "ways");
    let mut lines: Vec<_> = ways.first().map(|_| WAYS.to_owned()).into_iter().collect();
    for way in ways {
        lines.push(way_line(way));
        lines.extend(cause_lines(&way["cause"]));
    }
    lines
}

/// One line for each queue with this text in its name of which there is something to tell, and what holds it back.
fn queue_lines(state: &Value, filter: &str) -> Vec<String> {
    let is_meant = |row: &Value| text(row, "queue").to_lowercase().contains(filter);
    let is_told = |row: &&Value| {
        let waits = row["waiting"] != 0 || !row["cause"].is_null() || !row["max_depth"].is_null();
        waits && is_meant(row)
    };
    let all = list(&state["queues"], "rows");
    let mut queues = all.iter().filter(is_told).peekable();
    let head = queues.peek().map(|_| QUEUES.to_owned());
    let mut lines: Vec<_> = head.into_iter().collect();
    for row in queues {
        lines.push(queue_line(row, text(state, "at")));
        let set = bounds_over_http(row, "queue");
        lines.extend(set.map(|set| format!("  {set}")));
        lines.extend(cause_lines(&row["cause"]));
    }
    let total = &state["queues"]["total"];
    // Those that are meant come first.
    if total.as_u64() > Some(all.len() as u64) && all.iter().all(is_meant) {
        let shown = all.len();
        lines.push(format!(
            "{shown} of {total} queues were looked at: --filter TEXT looks at others"
        ));
    }
    lines
}

/// What stands of a cause that needs more than its name: the sentence, and what to do.
fn cause_lines(cause: &Value) -> Vec<String> {
    let lines = [("! ", "why"), ("  -> ", "do")];
    let lines = lines.map(|(mark, name)| Some(format!("{mark}{}", cause[name].as_str()?)));
    lines.into_iter().flatten().collect()
}

/// The calls of a key, beside its jobs.
fn calls_line(calls: &Value) -> Option<String> {
    let calls = calls.as_object()?;
    let (out, waiting) = (&calls["out"], &calls["waiting"]);
    Some(format!("  calls: {out} out, {waiting} wait"))
}

/// How the line of a key grows.
fn growth_line(state: &Value) -> Option<String> {
    let more = state["waiting_growth"].as_i64().filter(|more| *more > 0)?;
    Some(format!(
        "  the line grows: each minute {more} more come than start"
    ))
}

/// What an entry would have done that is only tried.
fn shadow_line(row: &Value) -> String {
    let or_more = match row["peak_unfollowed"].as_u64() {
        Some(1..) => " or more",
        _ => "",
    };
    format!(
        "shadow {}: {} at once, {} waited (at most {} s), {} dropped, {} would wait now; really {}{or_more} at once",
        text(row, "policy"),
        row["started"],
        row["waited"],
        row["longest_ms"].as_f64().unwrap_or(0.0) / 1_000.0,
        row["dropped"],
        row["waiting"],
        row["peak_at_once"],
    )
}

/// What is used of a limit, and its number.
fn used_of(limit: &Value, used: &str) -> String {
    if limit.is_null() {
        return String::new();
    }
    let most = plain(&limit["limit"]);
    // The currency stands behind the limit alone.
    let used = (!limit[used].is_null()).then(|| plain(&limit[used]));
    let used = used.as_ref().and_then(|used| used.split(' ').next());
    used.map_or_else(|| most.clone(), |used| format!("{used}/{most}"))
}

fn window_used(row: &Value) -> String {
    used_of(&row["state"]["rate"], "current_count")
}

/// What stands of one limit under [`NAMES`], with so many letters for its window.
fn row_line(row: &Value, width: usize, today: &str) -> String {
    let (state, minute, cause) = (&row["state"], &row["minute"], &row["cause"]);
    let next = moment(text(cause, "next_start"), today);
    let done = moment(text(&state["waiting_done"], "at"), today);
    format!(
        "{:<24} {:<11} {:>9} {:>width$} {:>7} {:>6} {:>7} {next:>8} {done:>8}",
        text(row, "name"),
        text(cause, "name"),
        used_of(&state["concurrency"], "active"),
        window_used(row),
        state["waiting_count"].to_string(),
        minute["starts"].to_string(),
        minute["refused"].to_string(),
    )
}

/// What stands of one queue under [`QUEUES`].
fn queue_line(row: &Value, today: &str) -> String {
    let depth = match (&row["depth"], &row["max_depth"]) {
        (Value::Null, _) => String::new(),
        (depth, Value::Null) => depth.to_string(),
        (depth, most) => format!("{depth}/{most}"),
    };
    format!(
        "{:<28} {:<18} {depth:>16} {:>7} {:>7} {:>8} {:>8}",
        text(row, "queue"),
        text(&row["cause"], "name"),
        row["waiting"].to_string(),
        row["held"].to_string(),
        row["refused"].to_string(),
        moment(text(row, "waiting_done"), today),
    )
}

/// What stands of one way out under [`WAYS`].
fn way_line(way: &Value) -> String {
    let answers = way["answers"].as_object().into_iter().flatten();
    let answers = answers.map(|(status, count)| format!("{status}: {count}"));
    let answers = answers.collect::<Vec<_>>().join(", ");
    format!(
        "{:<24} {:<11} {:>8} {:>7}  {answers}{}",
        text(way, "name"),
        text(&way["cause"], "name"),
        way["out"].to_string(),
        way["waiting"].to_string(),
        if way["up"] == false { " NO ANSWER" } else { "" },
    )
}

/// A time, in eight letters: that of its day, on another day with how many days later that is, and after nine days the date.
fn moment(time: &str, today: &str) -> String {
    let day = |time: &str| Some(duration::moment(time)? / DAY);
    let days = day(time).zip(day(today));
    let (date, of_day) = time.split_once('T').unwrap_or_default();
    let part = |text: &str, from, to| text.get(from..to).unwrap_or_default().to_owned();
    match days.map(|(then, today)| then.saturating_sub(today)) {
        None => String::new(),
        Some(0) => part(of_day, 0, 8),
        Some(days @ 1..10) => format!("{}+{days}d", part(of_day, 0, 5)),
        Some(_) => part(date, 5, 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_steers_no_terminal() {
        assert_eq!(fit("_queue:a\x1b[2J\rb", 12), "_queue:a?[2J\n");
    }

    #[test]
    fn what_a_screen_has_no_room_for_is_counted() {
        let lines = |many: usize| (0..many).map(|n| format!("line {n}")).collect();
        assert_eq!(screen(lines(3), (4, 4)), "line\nline\nline\n");
        assert_eq!(
            screen(lines(3), (6, usize::MAX)),
            "line 0\nline 1\nline 2\n"
        );
        let cut = screen(lines(9), (12, 4));
        assert_eq!(cut, "line 0\nline 1\n7 more lines\n");
        assert_eq!(screen(lines(2), (12, 0)), "2 more lines\n");
        let told = vec!["! it is ojs-x a".to_owned(), "name     1".to_owned()];
        assert_eq!(screen(told, (12, 9)), "! it is\n    ojs-x a\nname     1\n");
    }

    #[test]
    fn money_keeps_its_column() {
        let key = |name, used: Value, limit: Value| {
            let rate = serde_json::json!({"limit": limit, "current_count": used});
            serde_json::json!({"name": name, "state": {"rate": rate}})
        };
        let money = key("m", "1234.50 USD".into(), "80000 USD".into());
        let lines = limit_lines(&[&money, &key("n", 1.into(), 2.into())], "");
        let ends = |what| {
            lines
                .iter()
                .find_map(|line| Some(line.find(what)? + str::len(what)))
        };
        let ends = ["WINDOW", "1234.50/80000 USD", " 1/2"].map(ends);
        assert!(
            ends[0].is_some() && ends.iter().all(|end| *end == ends[0]),
            "{lines:?}"
        );
    }

    #[test]
    fn another_day_is_shown() {
        let today = "2026-11-29T07:30:41.123Z";
        for (time, shown) in [
            ("2026-11-29T18:18:41.500Z", "18:18:41"),
            ("2026-12-01T09:31:00.000Z", "09:31+2d"),
            ("2027-01-31T00:00:00.000Z", "01-31"),
            ("2026-11-28T23:59:59.000Z", "23:59:59"),
            ("", ""),
        ] {
            assert_eq!(moment(time, today), shown);
        }
    }
}
