//! Why jobs do not start is seen on the first page in one look, and said on that of the queue.

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::page::browser::Browser;
use crate::page::stage::cell;
use crate::process::http::{enqueue, fetch};
use crate::process::incidents::{CAUSES, Cause};
use crate::servers::named_as_test;
use crate::sidecar::process::{Backend, Sidecar, config};

/// What the first page shows for a cause: where, and which words.
fn look(cause: &Cause) -> (String, &'static str) {
    let key = |name: &str, column: &str| cell("limits", &cause.named(name), column);
    match cause.name {
        "all slots are taken" => (key("stripe", "binds"), "slots"),
        "workers hang" => (problem(cause), "may hang"),
        "an override pauses the key" => (key("stripe", "mark"), "paused"),
        "a nack shuts the key" => (key("stripe", "binds"), "shut"),
        "the backend is down" => (problem(cause), ""),
        "a policy whose key has a field of the job" => (key("stripe", "binds"), "rate"),
        "a throttle of the whole queue" => (cell("limits", "_queue:slow", "binds"), "spacing"),
        "slots are taken, and the rate has room" => (key("stripe", "binds"), "slots"),
        "the jobs are held for other credentials" => (key("stripe", "waiting"), "2"),
        "the backend is elsewhere" | "the sidecar drains" | "the file was refused" => {
            (problem(cause), "What to do")
        }
        "the store is lost" => (problem(cause), "alone"),
        "the store was never there" => (key("stripe", "binds"), "store never there"),
        "the store is lost, and that closes the key" => (key("stripe", "binds"), "store closed"),
        "the store is lost, and this sidecar had no slot" => {
            (key("stripe", "binds"), "store share")
        }
        "the file allows no start" => (key("stripe", "binds"), "no slots"),
        name if name.starts_with("the queue is") || name == "the lookahead is full" => {
            (cell("queues", "billing", "binds"), cause.kind)
        }
        other => panic!("what shows {other}?"),
    }
}

/// Where the page says that something is wrong with the sidecar as a whole.
fn problem(cause: &Cause) -> String {
    format!("#problems [data-problem={}]", json!(cause.kind))
}

#[test]
fn each_cause_is_seen_in_one_look() {
    seen(|cause| !cause.needs_redis());
}

#[test]
fn each_cause_of_a_lost_store_is_seen_on_redis() {
    seen(Cause::needs_redis);
}

fn seen(which: fn(&Cause) -> bool) {
    let causes: Vec<&Cause> = CAUSES
        .iter()
        .filter(|cause| cause.binds_a_queue() && which(cause))
        .collect();
    assert!(causes.len() >= 3);
    let staged: Vec<_> = std::thread::scope(|threads| {
        let staging: Vec<_> = causes
            .iter()
            .map(|cause| named_as_test(threads, || cause.staged()))
            .collect();
        staging
            .into_iter()
            .map(|staging| staging.join().unwrap())
            .collect()
    });
    let browser = Browser::open();
    for (cause, (stage, _job)) in causes.into_iter().zip(&staged) {
        let sidecar = &stage.sidecar;
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

#[test]
fn whose_turn_it_is_and_what_jobs_cost_are_seen() {
    let limits = "[[policy]]\nname = \"gb\"\nmatch = { queue = \"big\" }\nconcurrency = 10\ncost = 8\n\
        fair = { by = \"{type}\", weights = { t = 3 } }\n";
    let backend = Backend::start(Lax::redis());
    let sidecar = Sidecar::run(&config(backend.addr, "", limits));
    for _ in 0..3 {
        enqueue(sidecar.data, "big", json!({}));
    }
    let out = fetch(sidecar.data, "big", 3, "w").jobs();
    let browser = Browser::open();
    browser.go(&format!("http://{}/#key=gb", sidecar.admin));
    for (place, words) in [
        (cell("groups", "t", "weight"), "3"),
        (cell("groups", "t", "held"), "2"),
        (cell("slots", &out[0], "cost"), "8"),
        ("#mark".into(), "counts cost"),
    ] {
        browser.until(&format!(
            "document.querySelector({}).innerText.includes({})",
            json!(place),
            json!(words)
        ));
    }
}
