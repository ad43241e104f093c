//! Unique jobs, as official backends have them before their queues: what a job excludes goes by the members that its rule
//! names, and by type and queue where it names none.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use http::Response;
use ojs_throttle::backend::Backend;
use serde_json::{Value, json};

use super::backend::{bare_job, request};

/// By what they exclude others by, the jobs that were stored last.
#[derive(Default)]
pub struct Uniques(Mutex<HashMap<String, String>>);

/// What a job excludes others by; `None`: nothing.
fn fingerprint(job: &Value) -> Option<String> {
    let rule = &job["options"]["unique"];
    let by_default = vec![json!("type"), json!("queue")];
    let keys = rule.is_object().then_some(&rule["keys"])?;
    let keys = keys.as_array().unwrap_or(&by_default);
    let part = |key: &Value| match key.as_str() {
        Some("queue") => job["options"]["queue"].to_string(),
        Some(name) => job[name].to_string(),
        None => String::new(),
    };
    Some(keys.iter().map(part).collect::<Vec<_>>().join("|"))
}

impl Uniques {
    /// What is answered to an enqueue whose job others exclude; the others go where it says so.
    pub(super) async fn ask(&self, backend: &Backend, body: &Bytes) -> Option<Response<Bytes>> {
        let job: Value = serde_json::from_slice(body).ok()?;
        let by = fingerprint(&job)?;
        let id = self.0.lock().expect("no panic").get(&by).cloned()?;
        let path = format!("/ojs/v1/jobs/{id}");
        let at = async |method| {
            let reply = backend.handle(request(method, &path, &Value::Null)).await;
            serde_json::from_slice::<Value>(reply.body()).unwrap_or_default()
        };
        let other = bare_job(at("GET").await);
        let is_over = |state: &str| ["completed", "discarded", "cancelled"].contains(&state);
        if other["state"].as_str().is_none_or(is_over) {
            return None;
        }
        let (status, said) = match job["options"]["unique"]["on_conflict"].as_str() {
            Some("ignore") => (200, json!({ "job": other })),
            Some("replace") => {
                at("DELETE").await;
                return None;
            }
            _ => {
                let details = json!({ "existing_job_id": id });
                let error = json!({ "code": "duplicate", "message": "there is one", "retryable": false, "details": details });
                (409, json!({ "error": error }))
            }
        };
        let reply = Response::builder().status(status);
        let reply = reply.header("content-type", "application/openjobspec+json");
        Some(reply.body(said.to_string().into()).expect("a reply"))
    }

    /// A job was stored.
    pub(super) fn stored(&self, body: &Bytes, reply: &Bytes) {
        let job = serde_json::from_slice(body).ok();
        let by = job.and_then(|job| fingerprint(&job));
        let reply: Value = serde_json::from_slice(reply).unwrap_or_default();
        if let (Some(by), Some(id)) = (by, reply["job"]["id"].as_str()) {
            self.0.lock().expect("no panic").insert(by, id.to_owned());
        }
    }
}
