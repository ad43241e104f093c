//! `kill -9`, and a process that stands still.

use std::collections::BTreeSet;

use super::prelude::*;
use crate::servers::port;

const TWO: &str =
    "[[policy]]\nname = \"two\"\nmatch = { queue = \"q\" }\nkey = \"{type}\"\nconcurrency = 2\n";

/// Kills a sidecar with two jobs out and some held, starts another, and works everything off.
fn killed(server: &str, rest: &str, options: serde_json::Value) {
    let backend = Backend::start(Lax::redis());
    let listen = port::own().to_string();
    let text = config(backend.addr, server, rest).replacen("127.0.0.1:0", &listen, 1);
    let mut first = Sidecar::run(&text);
    let jobs: BTreeSet<String> = (0..6)
        .map(|_| enqueue(first.data, "q", options.clone()))
        .collect();
    let body =
        json!({"queues": ["q"], "count": 6, "worker_id": "w", "visibility_timeout_ms": 10000});
    let out = crate::process::http::ask(
        first.data,
        "POST",
        "/ojs/v1/workers/fetch",
        &body.to_string(),
    )
    .jobs();
    assert_eq!(out.len(), 2);
    let held = backend.total(EventKind::Claimed) - 2;
    assert!(held > 0, "nothing is held that could be lost");
    assert_eq!(first.metric("ojs_throttle_held_jobs"), held as f64);
    let data = first.data;
    first.kill();

    let second = Sidecar::run(&text);
    assert_eq!(second.data, data, "the port can be had again at once");
    // Two are out, so nothing may start, whoever asks and however often.
    for n in 0..6 {
        let got = fetch(data, "q", 6, &format!("w{n}")).jobs();
        assert!(got.is_empty(), "{got:?} beside {out:?}");
    }
    assert!(
        second.metric("ojs_throttle_slots_adopted_total") >= 2.0,
        "{}",
        second.log()
    );
    for job in &out {
        let done = ack(data, job, "w");
        assert_eq!(done.status, 200, "{done:?}");
    }
    let mut done: BTreeSet<String> = out.into_iter().collect();
    until("all jobs done", || {
        let got = fetch(data, "q", 6, "w").jobs();
        assert!(got.len() <= 2, "{got:?}");
        for job in got {
            assert_eq!(ack(data, &job, "w").status, 200);
            assert!(done.insert(job.clone()), "{job} came twice");
        }
        (done.len() == 6).then_some(())
    });
    assert_eq!(done, jobs);
    assert!(
        jobs.iter()
            .all(|job| backend.count(EventKind::Acked, job) == 1)
    );
    assert_eq!(backend.total(EventKind::Discarded), 0);
}

#[test]
fn after_a_kill_who_is_out_has_his_slot_and_what_was_held_comes_back() {
    killed("", TWO, json!({}));
}

#[test]
fn after_a_kill_both_threads_know_who_is_out() {
    killed("threads = 2", TWO, json!({}));
}

#[test]
fn limits_that_jobs_bring_survive_a_kill_too() {
    let limit = json!({"rate_limit": {"key": "k", "concurrency": 2}});
    killed("", "", limit);
}

#[test]
fn a_process_that_stood_still_hands_out_nothing_that_lapsed() {
    let (backend, sidecar) = pair("", TWO);
    let data = sidecar.data;
    let jobs: BTreeSet<String> = (0..5)
        .map(|_| {
            enqueue(
                data,
                "q",
                json!({"visibility_timeout_ms": 2000, "retry": {"max_attempts": 9}}),
            )
        })
        .collect();
    let mut worker = Conn::open(data);
    let body = r#"{"queues":["q"],"count":5,"worker_id":"w"}"#;
    let whole = worker.ask("POST", "/ojs/v1/workers/fetch", body).json();
    let attempts = |whole: &serde_json::Value| -> Vec<(String, u64)> {
        let jobs = whole["jobs"].as_array().unwrap().iter();
        jobs.map(|job| {
            (
                job["id"].as_str().unwrap().to_owned(),
                job["attempt"].as_u64().unwrap(),
            )
        })
        .collect()
    };
    let first = attempts(&whole);
    assert_eq!(first.len(), 2);
    let held = backend.total(EventKind::Claimed) - 2;
    assert!(held > 0);

    sidecar.signal("STOP");
    wait("claims lapse", || {
        backend.total(EventKind::Expired) >= held + 2
    });
    // Someone who does not come through us takes one that was held here.
    let elsewhere = fetch(backend.addr, "q", 1, "elsewhere").jobs();
    assert_eq!(elsewhere.len(), 1);
    sidecar.signal("CONT");

    let mut delivered: BTreeMap<(String, u64), usize> = BTreeMap::new();
    first
        .into_iter()
        .for_each(|job| *delivered.entry(job).or_default() += 1);
    let mut done: BTreeSet<String> = elsewhere.iter().cloned().collect();
    assert_eq!(ack(backend.addr, &elsewhere[0], "elsewhere").status, 200);
    until("all jobs done", || {
        // The same connection: it was only asleep.
        let got = attempts(&worker.ask("POST", "/ojs/v1/workers/fetch", body).json());
        assert!(got.len() <= 2, "{got:?}");
        for (job, attempt) in got {
            assert!(!done.contains(&job), "{job} is done and came again");
            *delivered.entry((job.clone(), attempt)).or_default() += 1;
            assert_eq!(
                ack(data, &job, "w").status,
                200,
                "{job} of attempt {attempt}"
            );
            done.insert(job);
        }
        (done.len() == jobs.len()).then_some(())
    });
    assert!(delivered.values().all(|times| *times == 1), "{delivered:?}");
    assert!(
        jobs.iter()
            .all(|job| backend.count(EventKind::Acked, job) == 1)
    );
    sidecar.shows("ojs_throttle_slots", 0.0);
}

/// Where a claim counts as an attempt a kill costs one of each held job: of one job for each subqueue, and of no more others
/// than may be held.
#[test]
fn a_kill_costs_one_attempt_of_a_head_for_each_subqueue() {
    const TENANTS: usize = 300;
    const EACH: usize = 6;
    const MOST_HELD: usize = 256;
    let backend = Backend::start(Lax::spec());
    let rest = "[[policy]]\nname = \"crm\"\nkey = \"crm:{meta.tenant_id}\"\nconcurrency = 1\n\
                [[queue]]\nname = \"q\"\nsubqueues = true\n";
    let text = config(backend.addr, "", rest);
    let mut first = Sidecar::run(&text);
    for _ in 0..EACH {
        let job = |tenant| json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": "q"}});
        let batch: Vec<Value> = (0..TENANTS).map(job).collect();
        let batch = json!({ "jobs": batch }).to_string();
        let reply = ask(first.data, "POST", "/ojs/v1/jobs/batch", &batch);
        assert_eq!(reply.status, 201, "{reply:?}");
    }
    let asks =
        json!({"queues": ["q"], "count": 50, "worker_id": "w", "visibility_timeout_ms": 600_000});
    let polls = |to: SocketAddr| ask(to, "POST", "/ojs/v1/workers/fetch", &asks.to_string()).jobs();
    let mut out = BTreeSet::new();
    wait("a job of each tenant is out", || {
        out.extend(polls(first.data));
        out.len() == TENANTS
    });
    // All keys are shut, and workers look on.
    for _ in 0..12 {
        assert!(polls(first.data).is_empty());
    }
    let held = first.metric("ojs_throttle_held_jobs") as usize;
    first.kill();

    let ledger = backend.ledger();
    let stored = ledger
        .iter()
        .filter(|event| event.kind == EventKind::Stored);
    let names: BTreeSet<&str> = stored.map(|event| &*event.queue).collect();
    let mut attempts: BTreeMap<&str, usize> = BTreeMap::new();
    for event in ledger
        .iter()
        .filter(|event| event.kind == EventKind::Claimed)
    {
        *attempts.entry(&event.job).or_default() += 1;
    }
    attempts.retain(|job, _| !out.contains(*job));
    println!(
        "{held} held of {} names, {} attempts",
        names.len(),
        attempts.len()
    );
    assert!(attempts.values().all(|times| *times == 1), "{attempts:?}");
    assert!(held >= names.len(), "{held} held of {} names", names.len());
    assert_eq!(attempts.len(), held, "what was claimed was held");
    // Claims that are on their way at once do not know of each other.
    assert!(
        held <= names.len() + MOST_HELD + MOST_HELD / 4,
        "{held} held of {} names",
        names.len()
    );

    // The next sidecar leaves alone what the one before held, until the backend gives it back.
    let second = Sidecar::run(&text);
    for _ in 0..6 {
        assert!(polls(second.data).is_empty());
    }
    let lost: BTreeSet<&str> = attempts.into_keys().collect();
    let again = |event: &&ojs_throttle::backend::Event| {
        event.kind == EventKind::Claimed && lost.contains(&*event.job)
    };
    let claims = backend.ledger().iter().filter(again).count();
    assert_eq!(claims, lost.len(), "none has a second attempt");
}
