//! Where jobs with a key of their own wait, and the end of the reading.

use http::Method;
use serde_json::Value;

use super::port::{AdminPort, AskError};
use crate::cli::{OfSubqueues, SubqueuesArgs};
use crate::ojs;

const PATH: &str = "/throttle/v1/subqueues";

/// Lists the queues whose subqueues are read, or ends the reading of one.
///
/// # Errors
/// There is no answer, or the sidecar refuses.
pub async fn subqueues(port: &AdminPort, args: &SubqueuesArgs) -> Result<String, AskError> {
    let answer = match &args.what {
        None => port.call(Method::GET, PATH, None).await?,
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
    Ok(match state["queues"].as_array() {
        None => format!(
            "{}: no sidecar reads its subqueues any more\nundo: set `subqueues = true` for the queue again\n",
            state["queue"].as_str().unwrap_or_default()
        ),
        Some(queues) if queues.is_empty() => "no queue has subqueues\n".to_owned(),
        Some(queues) => queues.iter().map(line).collect(),
    })
}

/// What is said of one queue.
fn line(queue: &Value) -> String {
    let written = match (&queue["written"], &queue["marked"]) {
        _ if queue["differs"] == true => {
            "read, and not written by this sidecar, whose number or salt is not the store's"
        }
        (Value::Bool(false), _) => "read, and not written by this sidecar",
        (_, Value::Bool(false)) => "to be written, and not marked in the store yet",
        _ => "written and read",
    };
    let waiting = match queue["waiting"].as_u64() {
        Some(waiting) => format!("{waiting} jobs wait there"),
        None => "the backend does not say how many jobs wait there".to_owned(),
    };
    format!(
        "{}: {written}; {waiting}, {} are held; jobs came to {} of {} here\n",
        queue["queue"].as_str().unwrap_or_default(),
        queue["held"],
        queue["seen"],
        queue["subqueues"],
    )
}
