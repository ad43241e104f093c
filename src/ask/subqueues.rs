//! Where jobs with a key of their own wait, and the end of the reading.

use http::Method;
use serde_json::Value;

use super::port::{AdminPort, AskError};
use super::why::{list, text};
use crate::cli::{OfSubqueues, SubqueuesArgs};
use crate::wire::ojs;

const PATH: &str = "/throttle/v1/subqueues";
const NAMES: &str =
    "NAME                     WAITING   LATER    HELD  TOLD_S  SHARED  OUT OF REACH  NO ROOM\n";

/// Lists the queues whose subqueues are read, or ends the reading of one.
///
/// # Errors
/// There is no answer, or the sidecar refuses.
pub async fn subqueues(port: &AdminPort, args: &SubqueuesArgs) -> Result<String, AskError> {
    let answer = match &args.what {
        None => {
            let all = if args.all { "?all=true" } else { "" };
            let path = format!("{PATH}{all}");
            port.call(Method::GET, &path, None).await?
        }
        Some(OfSubqueues::Forget { queue, force }) => {
            let force = if *force { "?force=true" } else { "" };
            let path = format!("{PATH}/{}{force}", ojs::encoded(queue));
            port.call(Method::DELETE, &path, None).await?
        }
    };
    if args.json {
        return Ok(answer + "\n");
    }
    let state: Value = serde_json::from_str(&answer).unwrap_or_default();
    let unread = list(&state, "unread").iter().map(unread_subqueue);
    let unread: String = unread
        .map(|[says, todo]| format!("! {says}\n  -> {todo}\n"))
        .collect();
    Ok(match state["queues"].as_array() {
        None => format!(
            "{}: no sidecar reads its subqueues any more\nundo: set `subqueues = true` for the queue again\n",
            state["queue"].as_str().unwrap_or_default()
        ),
        Some(queues) if queues.is_empty() => format!("no queue has subqueues\n{unread}"),
        Some(queues) => queues.iter().map(lines).collect::<String>() + &unread,
    })
}

/// What is said of jobs that nobody reads, and what to do about them.
pub fn unread_subqueue(one: &Value) -> [String; 2] {
    let (jobs, name, queue) = (&one["jobs"], &one["name"], &one["queue"]);
    let says = format!("{jobs} jobs wait in {name}, which nobody reads: queue {queue} has no mark");
    let todo = "set subqueues = true in the [[queue]] of that name, or start a sidecar once more: it looks for such jobs";
    [says, todo.to_owned()]
}

/// What is said of one queue.
pub fn subqueues_line(queue: &Value) -> String {
    let written = match (&queue["written"], &queue["marked"]) {
        _ if queue["differs"] == true => {
            "read, and not written by this sidecar, whose number or salt is not the store's"
        }
        (Value::Bool(false), _) => "read, and not written by this sidecar",
        (_, Value::Bool(false)) => "to be written, and not marked in the store yet",
        _ => "written and read",
    };
    let spread = &queue["spread"];
    format!(
        "{}: {written}; {} jobs wait in {} of {} subqueues, {} are held; {} shared, {} out of reach",
        text(queue, "queue"),
        queue["waiting"],
        spread["with_jobs"],
        queue["subqueues"],
        queue["held"],
        spread["shared"],
        spread["out_of_reach"],
    )
}

/// The line of a queue, with what to do and a line for each subqueue that is listed.
fn lines(queue: &Value) -> String {
    let mut out = subqueues_line(queue) + "\n";
    if let Some(todo) = queue["do"].as_str() {
        out += &format!("-> {todo}\n");
    }
    if queue["untold"] != 0 {
        let names = &queue["untold"];
        out +=
            &format!("of {names} subqueues the backend was not asked yet: --all asks for each\n");
    }
    let rows = list(queue, "rows");
    out += if rows.is_empty() { "" } else { NAMES };
    for row in rows {
        let of = |name: &str| row[name].to_string();
        let numbers = ["waiting", "later", "held", "told_s"].map(|name| format!("{:>8}", of(name)));
        let (name, shared, out_of_reach) = (text(row, "name"), of("shared"), of("out_of_reach"));
        out += &format!(
            "{name:<24}{}  {shared:<6}  {out_of_reach:<12}  {}\n",
            numbers.concat(),
            of("shut")
        );
    }
    if queue["spread"]["with_jobs"].as_u64() > Some(rows.len() as u64) {
        out += "these are the worst: --all lists all of them\n";
    }
    out
}
