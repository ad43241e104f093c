//! Runs a case of the official suites against a server, by the rules of the official runner.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use http::Method;
use serde_json::{Map, Value};

use super::judge;
use crate::sidecar::client::{Client, Reply};

/// One case, as its file says.
#[derive(Clone, Debug)]
pub struct Case {
    /// `test_id`; some are used twice.
    pub id: String,
    /// Path below the suites' folder: what really tells cases apart.
    pub file: String,
    steps: Vec<Value>,
}

/// How a case ended.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// `test_id` of the case.
    pub id: String,
    /// File of the case.
    pub file: String,
    /// Nothing failed.
    pub passed: bool,
    /// What failed first of all, step by step.
    pub why: Vec<String>,
}

/// All cases below `folder`, sorted by id and file.
pub fn load(folder: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let entries = std::fs::read_dir(&next)
            .unwrap_or_else(|e| panic!("the suites at {}: {e}", next.display()));
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ext| ext == "json") {
                cases.push(read(folder, &path));
            }
        }
    }
    cases.sort_by(|a, b| (&a.id, &a.file).cmp(&(&b.id, &b.file)));
    cases
}

fn read(folder: &Path, path: &Path) -> Case {
    let text = std::fs::read(path).unwrap();
    let case: Value =
        serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    // The rules for these two are not needed: no case has them.
    assert!(
        case.get("setup").is_none() && case.get("teardown").is_none(),
        "{}",
        path.display()
    );
    Case {
        id: case["test_id"].as_str().unwrap().to_owned(),
        file: path
            .strip_prefix(folder)
            .unwrap()
            .to_string_lossy()
            .into_owned(),
        steps: case["steps"].as_array().unwrap().clone(),
    }
}

/// What a step sends.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Path and query.
    pub path: String,
    /// Body, if it has one.
    pub body: Option<Vec<u8>>,
}

/// Changes what steps send, and keeps what came back.
pub struct Twist<'a> {
    /// What is sent in place of what the step says; it gets the step's id.
    pub change: &'a (dyn Fn(&str, Sent) -> Sent + Sync),
    /// By step: what was sent, and the reply.
    pub seen: Mutex<Vec<(String, Sent, Reply)>>,
}

/// Resets the backend whose client this is, and runs `case` against it.
pub async fn run_case(client: &Client, case: &Case) -> Verdict {
    run_twisted(client, case, None).await
}

/// The same with other requests.
pub async fn run_twisted(client: &Client, case: &Case, twist: Option<&Twist<'_>>) -> Verdict {
    let mut run = Run {
        client,
        twist,
        replies: HashMap::new(),
        why: Vec::new(),
    };
    client.post("/ojs/v1/admin/reset", "").await;
    let mut steps = case.steps.as_slice();
    while let Some((first, rest)) = steps.split_first() {
        match rest.split_first() {
            // The suites pair neighbours only.
            Some((second, rest))
                if first["parallel_with"]
                    .as_str()
                    .is_some_and(|with| second["id"] == with) =>
            {
                let (a, b) = tokio::join!(run.step(first), run.step(second));
                run.keep(first, a);
                run.keep(second, b);
                steps = rest;
            }
            _ => {
                let outcome = run.step(first).await;
                run.keep(first, outcome);
                steps = rest;
            }
        }
    }
    Verdict {
        id: case.id.clone(),
        file: case.file.clone(),
        passed: run.why.is_empty(),
        why: run.why,
    }
}

struct Run<'a> {
    client: &'a Client,
    twist: Option<&'a Twist<'a>>,
    /// Parsed replies by step id; only JSON objects count.
    replies: HashMap<String, Value>,
    why: Vec<String>,
}

/// The reply of a step, if it made a request, and what was wrong with it.
type Outcome = (Option<Value>, Vec<String>);

impl Run<'_> {
    fn keep(&mut self, step: &Value, (reply, why): Outcome) {
        let id = step["id"].as_str().unwrap_or_default();
        self.replies
            .extend(reply.map(|reply| (id.to_owned(), reply)));
        self.why
            .extend(why.into_iter().map(|why| format!("{id}: {why}")));
    }

    async fn step(&self, step: &Value) -> Outcome {
        let millis = |name: &str| Duration::from_millis(step[name].as_u64().unwrap_or(0));
        let action = step["action"].as_str().unwrap_or_default();
        tokio::time::sleep(millis("delay_ms")).await;
        if action.eq_ignore_ascii_case("WAIT") {
            let wait = if millis("duration_ms").is_zero() {
                millis("delay_ms")
            } else {
                millis("duration_ms")
            };
            tokio::time::sleep(wait).await;
            return (None, Vec::new());
        }
        let id = step["id"].as_str().unwrap_or_default();
        let mut sent = Sent {
            path: step["path"].as_str().unwrap_or_default().to_owned(),
            body: step.get("body").map(|body| body.to_string().into_bytes()),
        };
        if let Some(twist) = self.twist {
            sent = (twist.change)(id, sent);
        }
        let path = self.fill(&sent.path);
        let body = sent.body.map(|body| match std::str::from_utf8(&body) {
            Ok(text) => self.fill(text).into_bytes(),
            Err(_) => body,
        });
        let headers = headers(step, body.is_some());
        let Ok(method) = Method::from_bytes(if action.is_empty() {
            b"GET"
        } else {
            action.as_bytes()
        }) else {
            return (None, vec![format!("{action:?} is not a method")]);
        };
        // As Go sends them.
        let path = path.replace('{', "%7B").replace('}', "%7D");
        let path = format!("/{}", path.trim_start_matches('/'));
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&**k, &**v)).collect();
        let sent = Sent { path, body };
        let body = sent.body.clone().unwrap_or_default();
        let reply = self.client.send(method, &sent.path, &headers, body).await;
        let parsed = serde_json::from_slice(&reply.body).ok();
        let parsed = parsed.filter(Value::is_object);
        let why = step
            .get("assertions")
            .map(|wanted| self.judge(wanted, &reply, parsed.as_ref()));
        if let Some(twist) = self.twist {
            let seen = (id.to_owned(), sent, reply);
            twist.seen.lock().unwrap().push(seen);
        }
        (parsed, why.unwrap_or_default())
    }

    /// What of `wanted` the reply is not.
    fn judge(&self, wanted: &Value, reply: &Reply, parsed: Option<&Value>) -> Vec<String> {
        let mut why = Vec::new();
        if let Some(status) = wanted.get("status") {
            why.extend(judge::status(status, reply.status).err());
        }
        if let Some(any) = wanted
            .get("status_in")
            .filter(|any| !judge::is_in(any, reply.status))
        {
            why.push(format!("wanted a status in {any}, got {}", reply.status));
        }
        if let Some(body) = wanted.get("body").and_then(Value::as_object) {
            why.extend(self.judge_body(body, parsed));
        }
        if let Some(headers) = wanted.get("headers").and_then(Value::as_object) {
            why.extend(
                headers
                    .iter()
                    .filter_map(|(name, matcher)| judge_header(name, matcher, reply).err()),
            );
        }
        // Rules that the runner has and no case uses.
        for unused in ["body_absent", "timing_ms", "body_contains"] {
            assert!(wanted.get(unused).is_none(), "a case with {unused}");
        }
        why
    }

    fn judge_body(&self, body: &Map<String, Value>, parsed: Option<&Value>) -> Vec<String> {
        let mut why = Vec::new();
        if let Some(any) = body.get("$or").and_then(Value::as_array) {
            let fits = |all: &Map<String, Value>| {
                all.iter()
                    .all(|(path, m)| self.judge_path(path, m, parsed).is_ok())
            };
            if !any.iter().filter_map(Value::as_object).any(fits) {
                why.push("none of $or".to_owned());
            }
        }
        if parsed.is_some() {
            let paths = body
                .iter()
                .filter(|(path, _)| !path.starts_with('$') || path.starts_with("$."));
            why.extend(
                paths.filter_map(|(path, matcher)| self.judge_path(path, matcher, parsed).err()),
            );
        }
        why
    }

    fn judge_path(&self, path: &str, matcher: &Value, parsed: Option<&Value>) -> judge::Judged {
        let filled: Value =
            serde_json::from_str(&self.fill(&matcher.to_string())).map_err(|e| e.to_string())?;
        match judge::resolve(&self.fill(path), parsed.unwrap_or(&Value::Null)) {
            Ok(actual) => judge::matches(&filled, &actual).map_err(|why| format!("{path}: {why}")),
            Err(_) if filled == "absent" => Ok(()),
            Err(why) => Err(format!("{path}: {why}")),
        }
    }

    /// Fills in `{{steps.ID.response.body.PATH}}`; what cannot be found stays as it is.
    fn fill(&self, text: &str) -> String {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some(start) = rest.find("{{steps.") {
            let Some(end) = rest[start..].find("}}").map(|end| start + end + 2) else {
                break;
            };
            filled.push_str(&rest[..start]);
            let reference = &rest[start..end];
            filled.push_str(
                &self
                    .look_up(reference)
                    .unwrap_or_else(|| reference.to_owned()),
            );
            rest = &rest[end..];
        }
        filled + rest
    }

    fn look_up(&self, reference: &str) -> Option<String> {
        let inner = reference.strip_prefix("{{steps.")?.strip_suffix("}}")?;
        let (id, path) = inner.split_once(".response.body.")?;
        let value = judge::resolve(path, self.replies.get(id)?).ok()?;
        (!value.is_null()).then(|| judge::plain(&value))
    }
}

/// Exact text, `$match` and `$eq` count; other matchers on headers are skipped.
fn judge_header(name: &str, matcher: &Value, reply: &Reply) -> judge::Judged {
    let header = reply.headers.get(name);
    let actual = header
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let texts = matcher
        .as_object()
        .filter(|object| object.values().all(Value::is_string));
    let fits = match (matcher.as_str(), texts) {
        (Some(exact), _) => actual == exact,
        (None, Some(object)) => match (object.get("$match"), object.get("$eq")) {
            (Some(pattern), _) => {
                judge::matches_pattern(pattern.as_str().unwrap_or_default(), actual)?
            }
            (None, Some(exact)) => exact == actual,
            (None, None) => true,
        },
        (None, None) => true,
    };
    if fits {
        Ok(())
    } else {
        Err(format!("header {name}: wanted {matcher}, got {actual:?}"))
    }
}

fn headers(step: &Value, has_body: bool) -> Vec<(String, String)> {
    let said = step["headers"].as_object().into_iter().flatten();
    let said = said.map(|(name, value)| {
        (
            name.to_ascii_lowercase(),
            value.as_str().unwrap().to_owned(),
        )
    });
    let mut headers: Vec<_> = said.collect();
    if has_body && !headers.iter().any(|(name, _)| name == "content-type") {
        let ours = "application/openjobspec+json";
        headers.push(("content-type".to_owned(), ours.to_owned()));
    }
    headers
}
