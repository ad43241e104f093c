//! Jobs as producers send them.

use serde_json::{Value, json};

/// A job to enqueue.
#[derive(Clone, Debug)]
pub struct Job {
    pub queue: String,
    pub labels: Vec<String>,
    body: Value,
}

impl Job {
    /// A job of a type, in queue `default`.
    pub fn new(kind: &str) -> Job {
        Job {
            queue: "default".into(),
            labels: Vec::new(),
            body: json!({ "type": kind, "args": [], "options": {} }),
        }
    }

    pub fn queue(mut self, queue: &str) -> Job {
        self.queue = queue.into();
        self.option("queue", json!(queue))
    }

    /// Says to the judge that this key limits the job.
    pub fn label(mut self, label: &str) -> Job {
        self.labels.push(label.into());
        self
    }

    pub fn option(mut self, name: &str, value: Value) -> Job {
        self.body["options"][name] = value;
        self
    }

    pub fn meta(mut self, name: &str, value: Value) -> Job {
        self.body["meta"][name] = value;
        self
    }

    /// A member beside `type`.
    pub fn top(mut self, name: &str, value: Value) -> Job {
        self.body[name] = value;
        self
    }

    pub fn priority(self, priority: i64) -> Job {
        self.option("priority", json!(priority))
    }

    pub fn body(&self) -> &Value {
        &self.body
    }
}
