//! Why jobs do not start is seen on the first page in one look, and said on that of the queue.

use serde_json::json;

use super::browser::Browser;
use super::stage::cell;
use crate::process::incidents::{CAUSES, Cause};

/// What the first page shows for a cause: where, and which words.
fn look(cause: &Cause) -> (String, &'static str) {
    let key = |name: &str, column: &str| cell("limits", &cause.named(name), column);
    match cause.name {
        "all slots are taken" => (key("stripe", "binds"), "slots"),
        "an override pauses the key" => (key("stripe", "mark"), "paused"),
        "a nack shuts the key" => (key("stripe", "binds"), "shut"),
        "the backend is down" => ("#problems [data-problem=backend]".into(), ""),
        "a policy whose key has a field of the job" => (key("stripe", "binds"), "rate"),
        "a throttle of the whole queue" => (key("_queue:billing", "binds"), "spacing"),
        "slots are taken, and the rate has room" => (key("stripe", "binds"), "slots"),
        "the jobs are held for other credentials" => (key("stripe", "waiting"), "2"),
        "the queue is paused" => (cell("queues", "billing", "paused"), "paused"),
        other => panic!("what shows {other}?"),
    }
}

#[test]
fn each_cause_is_seen_in_one_look() {
    let causes: Vec<&Cause> = CAUSES
        .iter()
        .filter(|cause| cause.binds_a_queue())
        .collect();
    assert!(causes.len() >= 8);
    let staged: Vec<_> = std::thread::scope(|threads| {
        let staging: Vec<_> = causes
            .iter()
            .map(|cause| threads.spawn(|| cause.staged()))
            .collect();
        staging
            .into_iter()
            .map(|staging| staging.join().unwrap())
            .collect()
    });
    let browser = Browser::open();
    for (cause, (_backend, sidecar, _job)) in causes.into_iter().zip(&staged) {
        browser.go(&format!("http://{}/", sidecar.admin));
        let (place, words) = look(cause);
        browser.until(&format!(
            "document.querySelector({}).innerText.includes({})",
            json!(place),
            json!(words)
        ));
        browser.go(&format!(
            "http://{}/#queue={}",
            sidecar.admin,
            cause.named("billing")
        ));
        browser.until(&format!(
            "document.querySelector('#one').innerText.toLowerCase().includes({})",
            json!(cause.sentence.to_lowercase())
        ));
    }
}
