//! Asks why jobs wait, and writes the answer for people.

use std::fmt::Write;

use http::StatusCode;
use serde_json::Value;

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
    let mut limits = list(&answer, "limits").iter();
    let Some(limit) = limits.find(|limit| limit["state"][kind] == name) else {
        let said = format!("{kind} {name:?} has no limits of its own");
        return Err(AskError::Refused(StatusCode::NOT_FOUND, said));
    };
    let mut out = String::new();
    limit_text(limit, None, &mut out);
    Ok(match of.json {
        true => format!("{answer}\n"),
        false => out.trim_start().to_owned(),
    })
}

/// The answer of `why`, for people.
pub fn why_text(answer: &Value) -> String {
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
        for policy in list(queue, "keys_by_job") {
            let policy = policy.as_str().unwrap_or_default();
            let _ = write!(
                out,
                "\n  jobs that match have keys of their own, by policy {policy}"
            );
        }
        out.push('\n');
    }
    let held = ["held_here", "held_by_siblings"].map(|name| queue[name].as_u64());
    let held = held[0].map(|here| here + held[1].unwrap_or(0));
    for limit in list(answer, "limits") {
        limit_text(limit, held, &mut out);
    }
    out
}

pub(super) fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
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
fn limit_text(limit: &Value, held: Option<u64>, out: &mut String) {
    let state = &limit["state"];
    let kind = if state["key"].is_string() {
        "key"
    } else {
        "queue"
    };
    let binds = match state["limited_by"].as_str() {
        Some(strategy) => format!("limited by {strategy}"),
        None => "has room".to_owned(),
    };
    let (name, policy) = (text(state, kind), text(limit, "policy"));
    let _ = writeln!(out, "\n{kind} {name} (policy {policy}): {binds}");
    let slots = &state["concurrency"];
    if slots.is_object() {
        let (active, most) = (&slots["active"], &slots["limit"]);
        let _ = writeln!(out, "  slots      {active} of {most}");
    }
    let others = (2..=crate::limit::MOST_WINDOWS).map(|nth| format!("rate_{nth}"));
    for name in std::iter::once("rate".to_owned()).chain(others) {
        let window = &state[name];
        if window.is_object() {
            let (count, most) = (plain(&window["current_count"]), plain(&window["limit"]));
            let (unit, period) = (text(state, "unit"), text(window, "period"));
            let _ = writeln!(out, "  {unit:11}{count} of {most} in {period}");
        }
    }
    let throttle = &state["throttle"];
    if throttle.is_object() {
        let (most, period) = (&throttle["limit"], text(throttle, "period"));
        let next = text(throttle, "next_allowed_at");
        let _ = writeln!(out, "  spacing    {most} in {period}, next at {next}");
    }
    if let Some(until) = state["shut_until"].as_str() {
        let _ = writeln!(out, "  shut until {until}");
    }
    waiting_text(state, held, out);
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

/// The jobs and calls that have its slots.
fn slots_text(limit: &Value, out: &mut String) {
    for slot in list(limit, "slots") {
        let (job, worker) = (
            text(slot, "job"),
            slot["worker"].as_str().unwrap_or("unnamed"),
        );
        let since = slot["since"]
            .as_str()
            .unwrap_or("before this sidecar started");
        let through = match slot["by_sibling"].as_bool() {
            Some(true) => ", through another sidecar",
            _ => "",
        };
        let _ = match slot["egress"].as_str() {
            Some(egress) => writeln!(out, "  call       {job} by {egress} since {since}{through}"),
            None => writeln!(
                out,
                "  job        {job} at worker {worker} since {since}{through}"
            ),
        };
    }
}

/// How many jobs wait, and how many of them nobody holds.
fn waiting_text(state: &Value, held: Option<u64>, out: &mut String) {
    let waiting = state["waiting_count"].as_u64().unwrap_or(0);
    let in_backend = held.map_or(0, |held| waiting.saturating_sub(held));
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
    use super::*;

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
