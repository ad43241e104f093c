//! `why`: what it prints, where it looks for the sidecar, and its exit status.

use super::prelude::*;

const LIMITS: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 1\n\
    [[policy]]\nname = \"crm\"\nmatch = { type = \"sync.*\" }\nkey = \"crm:{type}\"\nconcurrency = 1\n";

/// Where the environment says that the sidecar is, if it does.
fn why(more: &str, admin: Option<&str>) -> crate::sidecar::process::Ran {
    let mut command = program();
    command.arg("why").args(more.split(' '));
    command.envs(admin.map(|admin| ("OJS_THROTTLE_ADMIN", admin)));
    ran(&mut command)
}

#[test]
fn it_says_who_has_the_slots() {
    let (_backend, sidecar) = pair("", LIMITS);
    let first = enqueue(sidecar.data, "billing", json!({}));
    enqueue(sidecar.data, "billing", json!({}));
    let started = fetch(sidecar.data, "billing", 2, "w1").jobs();
    assert_eq!(started, [&*first]);
    let admin = format!("http://{}", sidecar.admin);
    let said = why(&format!("--queue billing --admin {admin}"), None);
    assert_eq!(said.status, Some(0), "{}", said.err);
    for words in [
        "why:   1 of 1 slots of key \"stripe\" are taken",
        "key stripe (policy stripe): limited by concurrency",
        "jobs that match have keys of their own, by policy crm: crm:{type}",
        &format!("job        {first} at worker w1 since "),
        // Nobody holds the job that waits.
        "queue billing: 0 jobs held here, 0 by other sidecars",
        "  waiting    1: 1 in the backend, until they may start\n",
    ] {
        assert!(said.out.contains(words), "{words}: {}", said.out);
    }
    // The environment says where it is too, and a file says it better.
    let json = why("--key stripe --json", Some(&admin));
    let answer: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(answer["limits"][0]["slots"][0]["job"], first.as_str());
    let server = "[server]\nupstream = \"http://h\"\n";
    let (_dir, path) = file(format!("{server}admin_listen = \"{}\"\n", sidecar.admin));
    let asked = format!("--job {first} --config {}", path.display());
    let by_file = why(&asked, Some("http://127.0.0.1:1"));
    has(by_file.out, "the job runs: worker \"w1\" has it since");
}

#[test]
fn a_misspelt_queue_is_told_the_name_that_may_be_meant() {
    let (_backend, sidecar) = pair("", LIMITS);
    enqueue(sidecar.data, "billing", json!({}));
    let asked = format!("--queue biling --admin http://{}", sidecar.admin);
    let said = why(&asked, None);
    has(&said.out, "(did you mean \"billing\"?)");
}

/// Jobs of another queue that are held wait for the key too, and not in the backend.
#[test]
fn what_is_held_of_another_queue_is_not_in_the_backend() {
    let two = "[[policy]]\nname = \"two\"\nmatch = { type = \"*\" }\nconcurrency = 1\n";
    let (_backend, sidecar) = pair("", two);
    enqueue(sidecar.data, "a", json!({}));
    assert_eq!(fetch(sidecar.data, "a", 1, "w").jobs().len(), 1);
    for queue in ["a", "b", "b"] {
        enqueue(sidecar.data, queue, json!({}));
        assert!(fetch(sidecar.data, queue, 1, "w").jobs().is_empty());
    }
    let asked = format!("--queue a --admin http://{}", sidecar.admin);
    let said = why(&asked, None);
    has(&said.out, "queue a: 1 jobs held here");
    has(&said.out, "  waiting    3\n");
}

#[test]
fn it_says_what_a_job_costs_and_whose_turn_it_is() {
    let limits = "[[policy]]\nname = \"gb\"\nmatch = { queue = \"big\" }\nconcurrency = 10\ncost = 8\n\
        fair = { by = \"{type}\", weights = { t = 3 } }\n";
    let (_backend, sidecar) = pair("", limits);
    for _ in 0..2 {
        enqueue(sidecar.data, "big", json!({}));
    }
    fetch(sidecar.data, "big", 2, "w1");
    let list = get(sidecar.data, "/ojs/v1/rate-limits/gb").json();
    assert_eq!(list["unit"], "cost");
    assert_eq!(list["active"], 8);
    let said = why(&format!("--key gb --admin http://{}", sidecar.admin), None);
    has(said.out, "  turn       t, weight 3: 1 held\n");
}

#[test]
fn its_exit_status_says_what_went_wrong() {
    let (_backend, sidecar) = pair("", LIMITS);
    let nobody = "no sidecar answers at http://127.0.0.1:1 (the port cannot be reached";
    for (more, status, words) in [
        ("--key nobody --admin HERE", 1, "nobody"),
        ("--admin HERE", 2, "--queue"),
        ("--queue a --key b", 2, "--key"),
        ("--queue a --admin nonsense", 2, "\"nonsense\" is no URL"),
        ("--type a --meta tenant", 2, "write NAME=VALUE"),
        ("--queue a --admin http://127.0.0.1:1", 3, nobody),
    ] {
        let here = format!("http://{}", sidecar.admin);
        let said = why(&more.replace("HERE", &here), None);
        assert_eq!(said.status, Some(status), "{more}: {}", said.err);
        assert!(said.err.contains(words), "{more}: {}", said.err);
        assert!(said.out.is_empty());
    }
}
