//! Policies, ways out and budgets that a reload takes out of the file: calls and jobs start freely, and whoever looks is
//! told so.

use std::fs;

use super::by_hand::{Desk, TOKEN, undo_of};
use super::by_policy::{CRM, of_tenants, started};
use super::prelude::*;
use crate::servers::port;
use crate::servers::vendor::{Answer, Vendor};

/// A desk before a sidecar that follows a file, which is given.
fn following(text: &str) -> (Desk, PathBuf) {
    let backend = Backend::start(Lax::spec());
    let (dir, path) = file(config(backend.addr, TOKEN, text));
    let sidecar = Sidecar::spawn(run_at(&path), dir);
    let series = "ojs_throttle_config_file_matches";
    wait("the first look", || sidecar.metric(series) == 1.0);
    (Desk::before(backend, sidecar), path)
}

/// Another file stands in its place, in which `old` is `new`.
fn replace(desk: &Desk, path: &PathBuf, old: &str, new: &str) {
    let applied = || {
        let series = "ojs_throttle_config_reloads_total{result=\"applied\"}";
        desk.sidecar.metric(series)
    };
    let before = applied();
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(old), "{text}");
    let beside = path.with_extension("new");
    fs::write(&beside, text.replace(old, new)).unwrap();
    fs::rename(&beside, path).unwrap();
    wait("the file is in force", || applied() > before);
}

/// What is shown of a key, for jobs of queue `crm`.
fn shown(desk: &Desk, key: &str) -> [String; 3] {
    [
        desk.done(&format!("why --key {key}")),
        desk.done(&format!("slots {key}")),
        until("a state of now", || {
            let top = desk.done(&format!("top --once --columns 400 --filter {key}"));
            top.contains(LEFT).then_some(top)
        }),
    ]
}

const LEFT: &str = "is not in the file any more, or has another key";

#[test]
fn a_policy_that_left_limits_no_job_and_nothing_that_is_shown() {
    let stays = "[[policy]]\nname = \"stays\"\nmatch = { queue = \"other\" }\nconcurrency = 1\n";
    let (desk, path) = following(&[CRM, stays].concat());
    let data = desk.sidecar.data;
    of_tenants(data, &["a"; 5]);
    assert_eq!(started(data, "w").len(), 5);
    desk.done("pause --policy per-customer --reason INC-42");
    of_tenants(data, &["a", "b", "b"]);
    assert!(started(data, "w").is_empty());
    assert_eq!(desk.sidecar.metric("ojs_throttle_paused_keys"), 1.0);
    replace(&desk, &path, CRM, "");

    // The jobs are held still: they were claimed under the policy.
    for key in ["crm:a", "crm:b"] {
        for said in shown(&desk, key) {
            assert!(said.contains(LEFT), "{key}: {said}");
            for word in ["paused", "limited by", "0 of", " of 0", "for policy"] {
                assert!(!said.contains(word), "{key}, {word}: {said}");
            }
        }
    }
    let why = desk.done("why --queue crm");
    assert!(!why.contains("is paused"), "{why}");
    assert_eq!(desk.sidecar.metric("ojs_throttle_paused_keys"), 0.0);
    assert_eq!(started(data, "w"), ["a", "b", "b"]);

    let why = desk.done("why --policy per-customer");
    let says = "why:   policy \"per-customer\" limits nothing, because nothing in the file has this name; set by hand by \"ana\" because \"INC-42\"";
    assert!(why.starts_with(says), "{why}");
    has(&why, "`ojs-throttle clear --policy per-customer`");
    for command in ["slots --policy per-customer", "top --once --columns 400"] {
        let said = desk.done(command);
        assert!(said.contains("it binds nothing"), "{said}");
        assert!(!said.contains("paused"), "{said}");
    }
    let said = desk.done("clear _policy:per-customer --override");
    assert_eq!(
        undo_of(&said),
        "nothing brings it back: nothing in the file has this name"
    );
}

#[test]
fn numbers_of_a_policy_are_those_of_now() {
    let zero = "[[policy]]\nname = \"zero\"\nmatch = { type = \"*\" }\nconcurrency = 0\n";
    let (desk, path) = following(zero);
    let data = desk.sidecar.data;
    of_tenants(data, &["a"]);
    assert!(started(data, "w").is_empty());
    assert!(desk.done("why --key zero").contains("has no slots"));
    replace(&desk, &path, "concurrency = 0", "concurrency = 2");
    let why = desk.done("why --key zero");
    assert!(why.contains("slots      0 of 2"), "{why}");
    replace(&desk, &path, "\"zero\"", "\"another\"");
    for said in shown(&desk, "zero") {
        assert!(said.contains(LEFT), "{said}");
        for word in ["has no slots", "0 of 2", "0/2"] {
            assert!(!said.contains(word), "{word}: {said}");
        }
    }
    assert_eq!(started(data, "w"), ["a"]);
}

#[test]
fn a_budget_and_a_key_that_left_limit_no_call_and_nothing_that_is_shown() {
    let vendor = Vendor::start(|_| Answer::ok());
    let calls = port::own();
    let budget = "[[egress.budget]]\nname = \"mon\"\nkey = \"mon:{header.X-Team}\"\n\
        cost = { use = \"money\", max = \"0.01 USD\", prices = { m = { input = 0, output = 10 } } }\n\
        rate = { limit = \"1 USD\", period = \"30d\" }\n";
    let way = format!(
        "[[egress]]\nname = \"api\"\nlisten = \"{calls}\"\nupstream = \"http://{}\"\nkey = \"api:{{header.X-Team}}\"\n\
         concurrency = 1\n",
        vendor.addr
    );
    let tried = "[[policy]]\nname = \"tried\"\nmode = \"shadow\"\nmatch = { queue = \"crm\" }\nconcurrency = 1\n";
    let (desk, path) = following(&[&*way, budget, tried].concat());
    let call = || {
        let mut conn = Conn::open(calls);
        let body = r#"{"model":"m"}"#;
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Team: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        conn.write(head.as_bytes()).unwrap();
        conn.reply().unwrap().status
    };
    of_tenants(desk.sidecar.data, &["a", "a"]);
    assert_eq!(started(desk.sidecar.data, "w").len(), 2);
    assert_eq!(call(), 200);
    let is_tried = || {
        let series = "ojs_throttle_shadow_waiting{policy=\"tried\"}";
        desk.sidecar.metrics().contains(series)
    };
    assert!(is_tried());
    desk.done("pause --policy mon");
    assert_eq!(call(), 429);
    for (old, new) in [(budget, ""), ("\"api:", "\"each:"), (tried, "")] {
        replace(&desk, &path, old, new);
    }
    assert_eq!(call(), 200);
    assert!(!is_tried());
    for key in ["mon:a", "api:a"] {
        for said in shown(&desk, key) {
            assert!(said.contains(LEFT), "{key}: {said}");
            for word in ["paused", " of 1", "0/1", "for policy"] {
                assert!(!said.contains(word), "{key}, {word}: {said}");
            }
        }
    }
}
