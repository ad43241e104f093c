//! Templates of keys, and the values that fill them in: as many jobs start at once as there are different values, and
//! each job runs once.

use std::collections::BTreeSet;

use ojs_throttle::backend::Lax;
use ojs_throttle::config::Settings;
use serde_json::{Value, json};

use super::rig::{Chance, try_cases};
use crate::sidecar::client::{Client, id};
use crate::sidecar::config;
use crate::sidecar::simulated::simulated;

const PLACE: &str = "{meta.tenant_id}";
const TEMPLATES: [&str; 8] = [
    "crm:{meta.tenant_id}",
    "{meta.tenant_id}",
    "{queue}:{type}:{meta.tenant_id}:x",
    "a/{meta.tenant_id}/{meta.tenant_id}",
    "{meta.none}.{meta.tenant_id}",
    "{tenant}-{meta.tenant_id}_h",
    "{args.0}{meta.tenant_id}",
    "fixed",
];
const WORDS: [&str; 16] = [
    "{meta.tenant_id}",
    "{meta.}",
    "{",
    "}",
    "{{",
    "}}",
    "{type}",
    "{queue}",
    "x_none",
    "x_h",
    "_",
    ":",
    "\u{0}",
    "\u{7f}",
    "\u{10ffff}",
    "%2F",
];
const VALUES: [&str; 12] = [
    "acme",
    "x_none",
    "x_h",
    "_",
    "a:b",
    "../a",
    "%41",
    "x_41",
    "A",
    "\u{e9}",
    "e\u{301}",
    "\u{202e}\r\n",
];

/// A value by chance, and the text that a key has of it; `None`: it has none.
fn value(chance: &mut Chance) -> (Value, Option<String>) {
    match chance.below(8) {
        0 => (json!(7), Some("7".to_owned())),
        1 => (json!(true), Some("true".to_owned())),
        2 => (json!([1]), None),
        3 => (Value::Null, None),
        4 => {
            let long = chance.pick(&VALUES).repeat(300);
            (json!(long), Some(long))
        }
        _ => {
            let bytes = chance.change(chance.clone().pick(&VALUES).as_bytes(), &VALUES, &VALUES);
            let text = String::from_utf8_lossy(&bytes).into_owned();
            (json!(text), Some(text).filter(|text| !text.is_empty()))
        }
    }
}

/// All jobs that may start now.
async fn start(worker: &Client) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        match worker.fetch("q", 8).await {
            none if none.is_empty() => return all,
            some => all.extend(some),
        }
    }
}

/// Runs these jobs under the key with one slot. Says how many started at once.
async fn run(policy: &str, values: &[(Value, Option<String>)]) -> usize {
    let (pair, worker) = simulated(Lax::spec(), policy).await;
    let mut left = BTreeSet::new();
    for (value, _) in values {
        let meta = json!({"tenant_id": value});
        let job = json!({"type": "t", "args": [], "meta": meta, "options": {"queue": "q"}});
        left.insert(worker.enqueue(job).await);
    }
    let mut started = start(&worker).await;
    let at_once = started.len();
    while !started.is_empty() {
        for job in &started {
            assert!(left.remove(id(job)), "twice: {job}");
            assert_eq!(worker.ack(id(job)).await.status, 200);
        }
        started = start(&worker).await;
    }
    assert!(left.is_empty(), "never: {left:?}");
    pair.stop().await;
    at_once
}

#[test]
fn different_values_never_share_a_key_and_equal_ones_do() {
    try_cases(|_, chance, told| {
        let template = chance.clone().pick(&TEMPLATES).as_bytes();
        let bytes = match chance.below(3) {
            0 => template.to_vec(),
            _ => chance.change(template, &WORDS, &TEMPLATES),
        };
        let values: Vec<_> = (0..4).map(|_| value(chance)).collect();
        told.trying(format!("{} {values:?}", bytes.escape_ascii()).as_bytes());
        let template = String::from_utf8_lossy(&bytes);
        // What JSON escapes TOML escapes alike, but for one letter.
        let key = json!(template).to_string().replace('\u{7f}', "\\u007F");
        let policy = format!(
            "[[policy]]\nname = \"p\"\nmatch = {{ queue = \"q\" }}\nkey = {key}\nconcurrency = 1\n"
        );
        if let Err(report) = Settings::parse(&config("http://127.0.0.1:9", &policy), "f.toml") {
            assert!(report.errors() > 0 && !report.to_string().is_empty());
            return;
        }
        let mut clock = tokio::runtime::Builder::new_current_thread();
        let runtime = clock.enable_all().start_paused(true).build().unwrap();
        let at_once = runtime.block_on(run(&policy, &values));
        let texts: BTreeSet<_> = values.iter().map(|(_, text)| text).collect();
        let others = template.replace(PLACE, "");
        match (template.contains(PLACE), others.contains('{')) {
            (true, _) => assert_eq!(at_once, texts.len(), "{policy}"),
            (false, false) => assert_eq!(at_once, 1, "{policy}"),
            // By what the others have of the values.
            (false, true) => {}
        }
    });
}
