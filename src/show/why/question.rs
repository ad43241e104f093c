//! What `why` is asked: one of a queue, a key, a job, or a job as it would be.

use std::borrow::Cow;

use crate::answers::respond::Fault;
use crate::json::quote;
use crate::limit::{Key, Space};
use crate::show::limits;
use crate::wire::ojs;

/// What is asked about.
#[derive(Debug)]
pub(super) enum Question {
    Queue(String),
    /// A key, or all keys of a policy.
    Key(Space, Key),
    Job(String),
    /// A job as it would be: its queue, if one was named, its type, and its `meta` as an object.
    Like {
        queue: Option<String>,
        kind: String,
        meta: String,
    },
}

impl Question {
    /// About a key by its name, which is `_policy:NAME` for all keys of a policy, and `_queue:NAME` for a whole queue.
    pub(super) fn of_key(name: &str) -> Result<Question, Fault> {
        if let Some(queue) = name.strip_prefix("_queue:") {
            return Ok(Question::Queue(queue.to_owned()));
        }
        let policy = name.strip_prefix("_policy:");
        let space = policy.map_or(Space::Job, |_| Space::Policy);
        let key = Key::new(policy.unwrap_or(name));
        key.map(|key| Question::Key(space, key))
            .map_err(|_| limits::unknown_key(name))
    }

    /// Reads the query: one of `queue`, `key`, `job`, `type`; beside `type` a `queue` and any `meta.NAME`.
    pub(super) fn read(query: &str) -> Result<Question, Fault> {
        let (mut queue, mut key, mut job, mut kind) = (None, None, None, None);
        let mut meta = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let text = |text| ojs::decoded(text).map(Cow::into_owned);
            let (name, value) = text(name)
                .zip(text(value))
                .ok_or_else(|| Fault::bad_request("the query is not UTF-8"))?;
            match name.as_str() {
                "queue" | "key" | "job" | "type" if value.is_empty() => {
                    return Err(unasked(&format!("{name:?} is empty")));
                }
                "queue" => queue = Some(value),
                "key" => key = Some(value),
                "job" => job = Some(value),
                "type" => kind = Some(value),
                other => match other.strip_prefix("meta.") {
                    Some(field) => meta.push(format!("{}:{}", quote(field), quote(&value))),
                    None => return Err(unasked(&format!("{other:?} is not known here"))),
                },
            }
        }
        if kind.is_none() && !meta.is_empty() {
            return Err(unasked("meta.NAME goes with type"));
        }
        match (queue, key, job, kind) {
            (Some(queue), None, None, None) => Ok(Question::Queue(queue)),
            (None, Some(key), None, None) => Question::of_key(&key),
            (None, None, Some(job), None) => Ok(Question::Job(job)),
            (queue, None, None, Some(kind)) => Ok(Question::Like {
                queue,
                kind,
                meta: format!("{{{}}}", meta.join(",")),
            }),
            _ => Err(unasked("one of queue, key, job and type is asked about")),
        }
    }
}

fn unasked(message: &str) -> Fault {
    Fault::bad_request(message)
        .hinting("write ?queue=NAME, ?key=KEY, ?job=ID, or ?type=TYPE&queue=NAME&meta.tenant_id=ID")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read() {
        for (query, wanted) in [
            ("queue=a%20b", "Queue(\"a b\")"),
            ("key=stripe", "Key(Job, Key(\"stripe\"))"),
            ("key=_policy:a", "Key(Policy, Key(\"a\"))"),
            ("key=_queue:a%20b", "Queue(\"a b\")"),
            ("job=j1", "Job(\"j1\")"),
            (
                "type=t&meta.tenant_id=x%22",
                "Like { queue: None, kind: \"t\", meta: \"{\\\"tenant_id\\\":\\\"x\\\\\\\"\\\"}\" }",
            ),
        ] {
            assert_eq!(
                format!("{:?}", Question::read(query).unwrap()),
                wanted,
                "{query}"
            );
        }
        for query in [
            "",
            "queue=a&key=b",
            "queue=",
            "type=t&queue=",
            "meta.a=b",
            "queue=a&meta.a=b",
            "q=1",
            "job=%ff",
        ] {
            assert!(Question::read(query).is_err(), "{query}");
        }
    }
}
