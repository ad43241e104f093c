//! Asks why jobs wait, and writes the answer for people.

use std::fmt::Write;

use http::StatusCode;
use serde_json::Value;

use super::commands::addressed;
use super::port::{AdminPort, AskError};
use crate::cli::OfKey;
use crate::wire::ojs;

/// The path of `why` with its question: names and values.
pub fn why_path(question: impl Iterator<Item = (String, String)>) -> String {
    let pairs =
        question.map(|(name, value)| format!("{}={}", ojs::encoded(&name), ojs::encoded(&value)));
    let pairs: Vec<String> = pairs.collect();
    format!("/throttle/v1/why?{}", pairs.join("&"))
}

/// Which jobs have the slots of a key: as `why` says it, or its answer.
///
/// # Errors
/// There is no answer, or the queue has no limits of its own.
pub async fn slots(port: &AdminPort, of: &OfKey) -> Result<String, AskError> {
    let key = of.name();
    let queue = key.strip_prefix("_queue:");
    let (kind, name) = queue.map_or(("key", &*key), |queue| ("queue", queue));
    let path = why_path([(kind.to_owned(), name.to_owned())].into_iter());
    let answer = port.get(&path).await?;
    let shown = printable(answer.clone());
    let mut limits = list(&shown, "limits").iter();
    let Some(limit) = limits.find(|limit| limit["state"][kind] == name) else {
        let said = format!("{kind} {name:?} has no limits of its own");
        return Err(AskError::Refused(StatusCode::NOT_FOUND, said));
    };
    let mut out = String::new();
    limit_text(limit, &mut out);
    Ok(match of.json {
        true => format!("{answer}\n"),
        false => addressed(out.trim_start(), &of.admin),
    })
}

/// What a terminal obeys, or what turns the direction of a line.
pub(super) fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An answer whose texts steer no terminal, and begin no line: workers and jobs name themselves.
fn printable(answer: Value) -> Value {
    match answer {
        Value::String(text) => text.replace(is_obeyed, "?").into(),
        Value::Array(all) => all.into_iter().map(printable).collect(),
        Value::Object(all) => {
            let all = all.into_iter();
            all.map(|(name, value)| (name, printable(value))).collect()
        }
        other => other,
    }
}

/// The answer of `why`, for people.
pub fn why_text(answer: &Value) -> String {
    let answer = &printable(answer.clone());
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(out, "why:   {}", text(answer, "why"));
    let _ = writeln!(out, "do:    {}", text(answer, "do"));
    if let Some(next) = next_start(answer) {
        let _ = writeln!(out, "next:  {next}");
    }
    if let Some(ahead) = answer["ahead"].as_u64().filter(|ahead| *ahead > 0) {
        let _ = writeln!(out, "ahead: {ahead} held jobs leave before this one");
    }
    for note in list(answer, "notes") {
        let _ = writeln!(out, "note:  {}", note.as_str().unwrap_or_default());
    }
    let queue = &answer["queue"];
    if queue.is_object() {
        let (name, here) = (text(queue, "name"), &queue["held_here"]);
        let _ = write!(
            out,
            "\nqueue {name}: {here} jobs held here, {} by other sidecars",
            queue["held_by_siblings"]
        );
        for (name, words) in [("depth", "; depth"), ("max_depth", " of at most")] {
            if let Some(number) = queue[name].as_u64() {
                let _ = write!(out, "{words} {number}");
            }
        }
        let spread = &queue["subqueues"];
        if spread.is_object() {
            let of = ["with_jobs", "shared", "out_of_reach"].map(|name| &spread[name]);
            let _ = write!(
                out,
                "; in {} subqueues, {} shared, {} out of reach",
                of[0], of[1], of[2]
            );
        }
        out += &bounds_over_http(queue, "name").map_or(String::new(), |set| format!("\n  {set}"));
        for policy in list(queue, "keys_by_job") {
            let policy = policy.as_str().unwrap_or_default();
            let _ = write!(
                out,
                "\n  jobs that match have keys of their own, by policy {policy}"
            );
        }
        out.push('\n');
    }
    for limit in list(answer, "limits") {
        limit_text(limit, &mut out);
    }
    out
}

pub(super) fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// What was set over HTTP of a queue's bounds, and what takes it away. `name`: the member that has the queue's name.
pub(super) fn bounds_over_http(queue: &Value, name: &str) -> Option<String> {
    let set = queue["bounds_over_http"].as_object()?;
    let set = set.iter();
    let set: Vec<_> = set.map(|(name, value)| format!("{name} {value}")).collect();
    let key = ojs::shell_word(&format!("_queue:{}", text(queue, name)));
    Some(format!(
        "bounds set over HTTP: {}; undo: `ojs-throttle clear {key} --bounds`",
        set.join(", ")
    ))
}

/// What is set by hand for a key and for its policies: who set it, why, and until when.
pub(super) fn set_by_hand(state: &Value) -> impl Iterator<Item = String> {
    let of_policies = state["policy_overrides"].as_object().into_iter().flatten();
    let of_policies = of_policies.map(|(policy, set)| (format!(" for policy {policy}"), set));
    let all = std::iter::once((String::new(), &state["override"])).chain(of_policies);
    all.filter_map(|(of, set)| {
        let set = set.as_object()?;
        let numbers = ["concurrency", "rate", "throttle"].into_iter();
        let numbers = numbers.filter_map(|name| Some(format!("{name} {}", set.get(name)?)));
        let numbers: Vec<String> = numbers.collect();
        let notes = [("by", "by"), ("because", "reason"), ("until", "expires_at")];
        let notes = notes.into_iter();
        let notes =
            notes.filter_map(|(word, name)| Some(format!(" {word} {}", set.get(name)?.as_str()?)));
        let (numbers, notes) = (numbers.join(", "), notes.collect::<String>());
        Some(format!("  set by hand{of}: {numbers}{notes}"))
    })
}

pub(super) fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

fn next_start(answer: &Value) -> Option<String> {
    let text = |name: &str| answer[name].as_str();
    if let (Some(half), Some(most)) = (text("next_start_p50"), text("next_start_p90")) {
        return Some(format!(
            "a slot is free by {half} in half of all cases, by {most} in nine of ten"
        ));
    }
    let unknown = text("next_start_unknown").map(|reason| format!("nobody can say: {reason}"));
    text("next_start").map(str::to_owned).or(unknown)
}

/// What is used of each limit of a key, and who has its slots. `held`: how many jobs of the queue are held, if one was
/// asked about.
fn limit_text(limit: &Value, out: &mut String) {
    let state = &limit["state"];
    let kind = if state["key"].is_string() {
        "key"
    } else {
        "queue"
    };
    let (name, policy) = (text(state, kind), text(limit, "policy"));
    let of_policy = name.starts_with("_policy:");
    let of = match policy {
        "" => String::new(),
        _ => format!(" (policy {policy})"),
    };
    // What a store that is lost lets start is said by the cause alone.
    let strategy = state["limited_by"].as_str();
    let strategy = strategy.filter(|_| state["store"] != "lost");
    let _ = match (strategy, limit["cause"]["name"].as_str()) {
        _ if of_policy => writeln!(out, "\npolicy {policy}: each of its keys has these limits"),
        (Some(strategy), _) => writeln!(out, "\n{kind} {name}{of}: limited by {strategy}"),
        (None, Some("binds nothing")) => writeln!(out, "\n{kind} {name}{of}: limits nothing"),
        (None, Some(cause)) => writeln!(out, "\n{kind} {name}{of}: held back ({cause})"),
        (None, None) => writeln!(out, "\n{kind} {name}{of}: has room"),
    };
    limits_text(state, out);
    for set in set_by_hand(state) {
        let _ = writeln!(out, "{set}");
    }
    if let Some(until) = state["shut_until"].as_str() {
        let _ = writeln!(out, "  shut until {until}");
    }
    if let Some(hint) = state["hint"].as_str() {
        let _ = writeln!(out, "  note       {hint}");
    }
    waiting_text(limit, out);
    if let Some(calls) = state["calls"].as_object() {
        let (going, waiting) = (&calls["out"], &calls["waiting"]);
        let _ = writeln!(
            out,
            "  calls      {going} out through this sidecar, {waiting} wait here"
        );
    }
    turns_text(limit, out);
    slots_text(limit, out);
}

/// The numbers of a limit, and what is used of each, if that is said.
fn limits_text(state: &Value, out: &mut String) {
    let used = |of: &Value, name: &str| match &of[name] {
        Value::Null => String::new(),
        used => format!("{} of ", plain(used)),
    };
    let slots = &state["concurrency"];
    if slots.is_object() {
        let (active, most) = (used(slots, "active"), &slots["limit"]);
        let _ = writeln!(out, "  slots      {active}{most}");
    }
    let others = (2..=crate::limit::MOST_WINDOWS).map(|nth| format!("rate_{nth}"));
    for name in std::iter::once("rate".to_owned()).chain(others) {
        let window = &state[name];
        if window.is_object() {
            let (count, most) = (used(window, "current_count"), plain(&window["limit"]));
            let (unit, period) = (text(state, "unit"), text(window, "period"));
            let _ = writeln!(out, "  {unit:11}{count}{most} in {period}");
        }
    }
    let throttle = &state["throttle"];
    if throttle.is_object() {
        let (most, period) = (&throttle["limit"], text(throttle, "period"));
        let next = throttle["next_allowed_at"].as_str();
        let next = next.map_or_else(String::new, |next| format!(", next at {next}"));
        let _ = writeln!(out, "  spacing    {most} in {period}{next}");
    }
}

/// The jobs and calls that have its slots; of a policy with the key of each.
fn slots_text(limit: &Value, out: &mut String) {
    let of_policy = text(&limit["state"], "key").starts_with("_policy:");
    for slot in list(limit, "slots") {
        let (job, worker) = (
            text(slot, "job"),
            slot["worker"].as_str().unwrap_or("unnamed"),
        );
        let since = slot["since"].as_str();
        let since = since.unwrap_or("a time that is not known here");
        let through = match slot["by_sibling"].as_bool() {
            Some(true) => ", through another sidecar",
            _ => "",
        };
        let of = match of_policy {
            true => format!("key {}: ", text(slot, "key")),
            false => String::new(),
        };
        let _ = match slot["egress"].as_str() {
            Some(egress) => writeln!(
                out,
                "  call       {of}{job} by {egress} since {since}{through}"
            ),
            None => writeln!(
                out,
                "  job        {of}{job} at worker {worker} since {since}{through}"
            ),
        };
    }
    if let Some(more) = limit["more_slots"].as_u64() {
        let _ = writeln!(out, "  and        {more} more");
    }
}

/// How many jobs and calls wait, and how many of them nobody holds.
fn waiting_text(limit: &Value, out: &mut String) {
    let waiting = limit["state"]["waiting_count"].as_u64().unwrap_or(0);
    let in_backend = limit["in_backend"].as_u64().unwrap_or(0);
    let _ = match in_backend {
        0 => writeln!(out, "  waiting    {waiting}"),
        _ => writeln!(
            out,
            "  waiting    {waiting}: {in_backend} in the backend, until they may start"
        ),
    };
}

/// What the job pays that is asked about, and whose turn it is.
fn turns_text(limit: &Value, out: &mut String) {
    let unit = text(&limit["state"], "unit");
    if let (Some(cost), "cost") = (limit["cost"].as_u64(), unit) {
        let _ = writeln!(out, "  this job   costs {cost}");
    }
    if let Some(group) = limit["group"].as_str() {
        let _ = writeln!(out, "  its group  {group}, weight {}", limit["weight"]);
    }
    for group in list(limit, "groups") {
        let (name, weight) = (text(group, "group"), &group["weight"]);
        let waiting = match group["calls"].as_u64() {
            Some(calls) => format!("{calls} calls"),
            None => format!("{} held", group["held"]),
        };
        let _ = writeln!(out, "  turn       {name}, weight {weight}: {waiting}");
    }
}

/// A number, or an amount of money without its quotes.
pub(super) fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_cause_says_the_heading_says() {
        let of = |cause: Value, state: Value| {
            let slots = json!([{"job": "j", "worker": "w", "since": null}]);
            let limit = json!({"policy": "p", "cause": cause, "state": state, "slots": slots});
            why_text(&json!({"limits": [limit]}))
        };
        let lost = json!({"key": "k", "limited_by": null, "store": "lost"});
        let said = of(json!({"name": "store share"}), lost);
        assert!(
            said.contains("\nkey k (policy p): held back (store share)\n"),
            "{said}"
        );
        assert!(said.contains("  job        j at worker w since a time that is not known here\n"));
        let slots = json!([{"job": "j\u{1b}[2J", "worker": "w\ndo: rm", "since": null}]);
        let limit = json!({"policy": "p", "cause": null, "state": {"key": "k"}, "slots": slots});
        let said = why_text(&json!({"limits": [limit]}));
        assert!(
            said.contains("job        j?[2J at worker w?do: rm since"),
            "{said}"
        );
        let open = json!({"key": "k", "limited_by": "concurrency", "store": "lost"});
        let said = of(Value::Null, open);
        assert!(said.contains("\nkey k (policy p): has room\n"), "{said}");
    }

    #[test]
    fn questions_are_encoded() {
        let question = [("meta.a", "x &y"), ("type", "t")];
        let question = question.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(
            why_path(question.into_iter()),
            "/throttle/v1/why?meta.a=x%20%26y&type=t"
        );
    }
}
