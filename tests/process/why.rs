//! `why`: what it prints, where it looks for the sidecar, and its exit status.

use super::prelude::*;

const LIMITS: &str = "[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 1\n\
    [[policy]]\nname = \"crm\"\nmatch = { type = \"sync.*\" }\nkey = \"crm:{type}\"\nconcurrency = 1\n";

fn why(more: &[&str], environment: &[(&str, &str)]) -> crate::sidecar::process::Ran {
    let mut command = program();
    command.arg("why").args(more);
    command
        .env_remove("OJS_THROTTLE_ADMIN")
        .env_remove("OJS_THROTTLE_TOKEN");
    command.envs(environment.iter().copied());
    ran(&mut command)
}

#[test]
fn it_says_who_has_the_slots() {
    let (_backend, sidecar) = pair("", LIMITS);
    let first = enqueue(sidecar.data, "billing", json!({}));
    enqueue(sidecar.data, "billing", json!({}));
    assert_eq!(
        fetch(sidecar.data, "billing", 2, "w1").jobs(),
        std::slice::from_ref(&first)
    );
    let admin = format!("http://{}", sidecar.admin);
    let said = why(&["--queue", "billing", "--admin", &admin], &[]);
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
    let there = [("OJS_THROTTLE_ADMIN", admin.as_str())];
    let json = why(&["--key", "stripe", "--json"], &there);
    let answer: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(answer["limits"][0]["slots"][0]["job"], first.as_str());
    let text = format!(
        "[server]\nupstream = \"http://h\"\nadmin_listen = \"{}\"\n",
        sidecar.admin
    );
    let (_dir, path) = file(text);
    let nowhere = [("OJS_THROTTLE_ADMIN", "http://127.0.0.1:1")];
    let by_file = why(
        &["--job", &first, "--config", path.to_str().unwrap()],
        &nowhere,
    );
    assert!(
        by_file
            .out
            .contains("the job runs: worker \"w1\" has it since"),
        "{}",
        by_file.out
    );
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
    assert_eq!(
        (&list["unit"], &list["active"]),
        (&json!("cost"), &json!(8))
    );
    let admin = format!("http://{}", sidecar.admin);
    let said = why(&["--key", "gb", "--admin", &admin], &[]);
    let words = "  turn       t, weight 3: 1 held\n";
    assert!(said.out.contains(words), "{}", said.out);
}

#[test]
fn its_exit_status_says_what_went_wrong() {
    let (_backend, sidecar) = pair("", LIMITS);
    let admin = format!("http://{}", sidecar.admin);
    for (more, status, words) in [
        (vec!["--key", "nobody", "--admin", &admin], 1, "nobody"),
        (vec!["--admin", &admin], 2, "--queue"),
        (vec!["--queue", "a", "--key", "b"], 2, "--key"),
        (
            vec!["--queue", "a", "--admin", "nonsense"],
            2,
            "\"nonsense\" is no URL",
        ),
        (
            vec!["--type", "a", "--meta", "tenant"],
            2,
            "write NAME=VALUE",
        ),
        (
            vec!["--queue", "a", "--admin", "http://127.0.0.1:1"],
            3,
            "no sidecar answers at http://127.0.0.1:1 (the port cannot be reached",
        ),
    ] {
        let said = why(&more, &[]);
        assert_eq!(said.status, Some(status), "{more:?}: {}", said.err);
        assert!(said.err.contains(words), "{more:?}: {}", said.err);
        assert!(said.out.is_empty());
    }
}
