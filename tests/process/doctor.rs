//! `doctor`: what it finds out about backends.

use ojs_throttle::backend::{Liveness, Requeue};

use super::outage::nonsense;
use super::prelude::*;
use super::relay::Relay;

/// The report, and the exit status.
pub fn doctor(config: &str, more: &[&str]) -> (Value, Option<i32>) {
    let (_dir, path) = file(config);
    let mut command = program();
    command.args(["doctor", "--json", "--config"]).arg(path);
    command.args(more);
    let done = ran(&mut command);
    let report: Value = serde_json::from_str(&done.out)
        .unwrap_or_else(|error| panic!("{error}: {}{}", done.out, done.err));
    for one in report["findings"].as_array().unwrap() {
        assert!(one["level"] != "fail" || one["do"].is_string(), "{one}");
    }
    assert_eq!(report["healthy"], done.status == Some(0));
    (report, done.status)
}

/// The one finding on that.
pub fn finding(report: &Value, part: &str, what: &str) -> Value {
    let mut all = report["findings"].as_array().unwrap().iter();
    let found = all.find(|one| one["part"] == part && one["what"] == what);
    let found = found.unwrap_or_else(|| panic!("nothing on {what}: {report}"));
    found.clone()
}

/// What is said of the store.
pub fn of_store(report: &Value, what: &str) -> String {
    finding(report, "store", what)["says"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// Fails unless the store is well, is of this kind, and has nothing of a sidecar.
pub fn is_new(config: &str, kind: &str) {
    let (report, status) = doctor(config, &[]);
    assert_eq!(status, Some(0), "{report}");
    for (what, says) in [
        ("version", kind),
        ("data", "none yet"),
        ("clock", "the same"),
    ] {
        assert!(of_store(&report, what).starts_with(says), "{report}");
    }
    has(of_store(&report, "round trip"), "p99");
}

/// Waits until the store is seen to have one sidecar, which is not disturbed by that.
pub fn is_used(config: &str, sidecar: &Sidecar) {
    wait("it says that it lives", || {
        let (report, status) = doctor(config, &[]);
        assert_eq!(status, Some(0), "{report}");
        of_store(&report, "data") == "ours, 1 live sidecar"
    });
    assert_eq!(sidecar.metric("ojs_throttle_siblings"), 0.0);
    let (report, _) = doctor(config, &["--probe"]);
    assert_eq!(of_store(&report, "writes"), "allowed", "{report}");
}

fn says(report: &Value, what: &str, word: &str) {
    let one = finding(report, "backend", what);
    let text = one["says"].as_str().unwrap();
    assert!(text.contains(word), "{what}: {word}: {one}");
}

/// Probes this backend, and looks at what is left there.
fn probed(lax: Lax, upstream: &str) -> (Value, Option<i32>) {
    let backend = Backend::start(lax);
    let config = config(backend.addr, "", &format!("[upstream]\n{upstream}"));
    let (report, status) = doctor(&config, &["--probe"]);
    says(&report, "cleaned up", "cancelled or completed");
    let queue = finding(&report, "backend", "probe");
    let queue = queue["says"].as_str().unwrap().replace("queue ", "");
    assert!(queue.starts_with("ojs-throttle-doctor-"), "{queue}");
    let stats = get(backend.addr, &format!("/ojs/v1/queues/{queue}/stats")).json();
    assert_eq!(stats["queue"]["available"], 0, "{stats}");
    assert_eq!(stats["queue"]["active"], 0, "{stats}");
    (report, status)
}

#[test]
fn a_backend_as_the_redis_one_is_harmless() {
    let (report, status) = probed(Lax::redis(), "");
    assert_eq!(status, Some(0), "{report}");
    says(&report, "manifest", "ojs-backend-redis");
    says(&report, "attempts", "when a job fails");
    says(&report, "requeue", "harmless: a job");
    says(&report, "visibility", "heeded at FETCH");
    says(&report, "liveness", "that it names");
    says(&report, "heartbeat", "from the heartbeat");
    says(&report, "stats", "are right");
    assert_eq!(finding(&report, "backend", "requeue")["source"], "probed");
}

#[test]
fn a_backend_by_the_text_counts_claims() {
    let (report, status) = probed(Lax::spec(), "");
    assert_eq!(status, Some(0), "{report}");
    says(&report, "attempts", "handed out");
    says(&report, "requeue", "shows attempt 2 after 1");
}

#[test]
fn it_says_how_far_fairness_reaches() {
    let fair = "[[queue]]\nname = \"q\"\nconcurrency = 1\nfair = { by = \"{meta.tenant_id}\" }\n";
    for (lax, hold, jobs, level) in [
        (Lax::redis(), "", "first 768 jobs", "ok"),
        (Lax::spec(), "", "first 192 jobs", "warn"),
        (Lax::spec(), "[hold]\nmax = 200\n", "first 150 jobs", "ok"),
    ] {
        let (report, _) = probed(lax, &format!("{hold}{fair}"));
        says(&report, "fair", jobs);
        assert_eq!(
            finding(&report, "backend", "fair")["level"],
            level,
            "{report}"
        );
    }
}

#[test]
fn a_backend_as_the_lite_one_discards_what_is_given_back() {
    let (report, status) = probed(Lax::lite(), "");
    assert_eq!(status, Some(0), "{report}");
    says(&report, "requeue", "discarded");
    says(&report, "heartbeat", "start of the job");
}

#[test]
fn a_backend_as_the_amqp_one_goes_by_workers() {
    // As it is, and with a visibility that can be seen to run out.
    let lax = Lax {
        visibility: Duration::from_secs(12),
        ..Lax::amqp()
    };
    let (report, status) = probed(lax, "");
    assert_eq!(status, Some(0), "{report}");
    says(&report, "visibility", "not heeded");
    says(&report, "liveness", "any heartbeat of a worker");
    // A claim was seen to end by itself.
    assert_eq!(finding(&report, "backend", "visibility")["level"], "ok");
    let lax = Lax {
        heeds_fetch_visibility: true,
        ..Lax::amqp()
    };
    let (report, status) = probed(lax, "");
    assert_eq!(status, Some(0), "{report}");
    says(&report, "liveness", "any heartbeat of a worker");
}

/// Not by its name, and not by a claim that a FETCH makes short either.
#[test]
fn a_backend_of_which_nothing_is_known_is_found_out() {
    for (liveness, beats, word) in [
        (Liveness::Worker, "worker", "any heartbeat of a worker"),
        (Liveness::Job, "job", "that it names"),
    ] {
        let lax = Lax {
            name: "acme-jobs",
            liveness,
            visibility: Duration::from_secs(12),
            ..Lax::amqp()
        };
        let (report, status) = probed(lax, "");
        assert_eq!(status, Some(0), "{report}");
        let one = finding(&report, "backend", "liveness");
        assert_eq!(
            (&one["level"], &one["source"]),
            (&json!("warn"), &json!("probed")),
            "{one}"
        );
        assert!(one["says"].as_str().unwrap().contains(word), "{one}");
        let todo = one["do"].as_str().unwrap();
        assert!(
            todo.contains(&format!("upstream.liveness = \"{beats}\"")),
            "{one}"
        );
    }
}

#[test]
fn a_backend_that_is_not_as_the_config_says_is_a_failure() {
    let lax = Lax {
        requeue: Requeue::DiscardsLast,
        liveness: Liveness::SinceStart,
        ..Lax::spec()
    };
    let (report, status) = probed(lax, "requeue = \"harmless\"\nclaims_count = \"no\"\n");
    assert_eq!(status, Some(1), "{report}");
    for (what, word) in [
        ("requeue", "\"burns\""),
        ("attempts", "\"yes\""),
        ("heartbeat", "\"from_start\""),
    ] {
        let one = finding(&report, "backend", what);
        assert_eq!(one["level"], "fail", "{one}");
        assert!(one["do"].as_str().unwrap().contains(word), "{one}");
    }
}

/// What is not shown is not known: neither when attempts are counted nor what giving back costs.
#[test]
fn a_backend_that_shows_no_attempt_is_not_taken_for_one_that_shows_0() {
    let backend = Backend::start(Lax::redis());
    let relay = Relay::before(backend.addr);
    relay.hide("attempt");
    let (report, status) = doctor(&config(relay.addr, "", ""), &["--probe"]);
    assert_eq!(status, Some(0), "{report}");
    let attempts = finding(&report, "backend", "attempts");
    assert_eq!(
        (&attempts["level"], &attempts["source"]),
        (&json!("warn"), &json!("assumed")),
        "{attempts}"
    );
    says(&report, "attempts", "when a job is handed out");
    let requeue = finding(&report, "backend", "requeue");
    assert_eq!(requeue["source"], "assumed", "{requeue}");
    says(&report, "requeue", "costs the job an attempt or more");
}

#[test]
fn without_probe_nothing_is_written() {
    let backend = Backend::start(Lax::lite());
    let (report, status) = doctor(&config(backend.addr, "", ""), &[]);
    assert_eq!(status, Some(0), "{report}");
    assert!(backend.ledger().is_empty());
    let source = |what: &str| finding(&report, "backend", what)["source"].clone();
    assert_eq!(source("requeue"), "manifest");
    assert_eq!(source("attempts"), "assumed");
    assert_eq!(finding(&report, "store", "kind")["source"], "config");
}

#[test]
fn sidecars_that_share_no_store_are_named() {
    let backend = Backend::start(Lax::spec());
    let limits = "[[policy]]\nname = \"a\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";
    let text = config(backend.addr, "", limits);
    let sidecars = [Sidecar::run(&text), Sidecar::run(&text)];
    let named = |report: &Value| {
        let mut all = report["findings"].as_array().unwrap().iter();
        all.find(|one| one["what"] == "sidecars").cloned()
    };
    for (sidecar, warned) in sidecars.iter().zip([false, true]) {
        enqueue(sidecar.data, "q", json!({}));
        assert_eq!(fetch(sidecar.data, "q", 1, "w").jobs().len(), 1);
        let (report, status) = doctor(&text, &[]);
        assert_eq!(
            (named(&report).is_some(), status),
            (warned, Some(0)),
            "{report}"
        );
    }
    let one = named(&doctor(&text, &[]).0).unwrap();
    let says = one["says"].as_str().unwrap();
    for sidecar in &sidecars {
        let name = format!("-{}", sidecar.data.port());
        let mut words = says.split([' ', ',']);
        assert!(words.any(|word| word.ends_with(&name)), "{name}: {one}");
    }
    assert!(one["do"].as_str().unwrap().contains("store.url"), "{one}");
    let shared = format!("{text}[store]\nurl = \"sqlite:/nowhere/at/all.db\"\n");
    assert_eq!(named(&doctor(&shared, &[]).0), None);
}

#[test]
fn what_is_no_backend_is_said_so_in_words() {
    let backend = Backend::absent(Lax::spec());
    let (dir, path) = file(config(backend.addr, "", ""));
    let done = ran(program().args(["doctor", "--config"]).arg(&path));
    assert_eq!(done.status, Some(1));
    for word in ["FAIL  reachable", "-> is it running", "1 failed", "memory:"] {
        assert!(done.out.contains(word), "{word}: {}", done.out);
    }
    drop(dir);
    let (_dir, path) = file("nonsense");
    assert_eq!(
        ran(program().args(["doctor", "--config"]).arg(&path)).status,
        Some(78)
    );
    // A sidecar's admin port, say: it answers, and is none.
    let backend = Backend::start(Lax::spec());
    let base = format!("http://{}/elsewhere", backend.addr);
    let text = config(backend.addr, "", "").replace(&format!("http://{}", backend.addr), &base);
    let (report, status) = doctor(&text, &["--probe"]);
    assert_eq!(status, Some(1), "{report}");
    assert_eq!(finding(&report, "backend", "manifest")["level"], "warn");
    assert_eq!(report["healthy"], json!(false));
}

/// What answers HTTP and speaks no OJS fails, and ports of our own are named.
#[test]
fn what_answers_and_speaks_no_ojs_is_named() {
    let (backend, sidecar) = pair("", "");
    let page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>";
    let absent = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 7\r\nConnection: close\r\n\r\n<html/>";
    for (upstream, word, level) in [
        (nonsense(page), "no OJS", "fail"),
        (nonsense(absent), "no OJS", "fail"),
        (sidecar.admin, "admin port", "fail"),
        (sidecar.data, "another ojs-throttle", "warn"),
        (backend.addr, "embedded", "ok"),
    ] {
        let (report, status) = doctor(&config(upstream, "", ""), &[]);
        let one = finding(&report, "backend", "manifest");
        assert_eq!(one["level"], level, "{word}: {report}");
        assert!(
            level == "ok" || one["says"].as_str().unwrap().contains(word),
            "{word}: {one}"
        );
        assert_eq!(status, Some(i32::from(level == "fail")), "{word}: {report}");
    }
}

const SPLIT: &str = "[[policy]]\nname = \"crm\"\nmatch = { queue = \"q\" }\nkey = \"crm:{meta.tenant_id}\"\n\
    concurrency = 1\n[[queue]]\nname = \"q\"\nsubqueues = true\n";

/// What is said of subqueues: which queues have them and what lies there, names that nobody reads, and jobs that nobody
/// asks for.
#[test]
fn what_lies_in_subqueues_and_who_reads_it_is_told() {
    let backend = Backend::start(Lax::redis());
    let sidecar = Sidecar::run(&config(backend.addr, "", SPLIT));
    let admin = format!("admin_listen = \"{}\"", sidecar.admin);
    let text = config(backend.addr, &admin, SPLIT);
    let told = |what: &str, words: &str| -> Option<Value> {
        let report = doctor(&text, &[]).0;
        let mut all = report["findings"].as_array().unwrap().iter();
        let is =
            |one: &&Value| one["what"] == what && one["says"].as_str().unwrap().contains(words);
        all.find(is).cloned()
    };
    enqueue(backend.addr, "q-ojst-2a", json!({}));
    let first = told("subqueues", "q: ").unwrap();
    assert_eq!(first["level"], "ok", "{first}");
    assert!(told("subqueues", "nobody reads").is_none());
    // Of a queue of which nobody says that it has subqueues.
    for _ in 0..3 {
        enqueue(backend.addr, "old-ojst-07", json!({}));
    }
    let stranded = told("subqueues", "nobody reads").unwrap();
    assert_eq!(stranded["level"], "warn", "{stranded}");
    for words in ["3 jobs", "\"old\"", "old-ojst-07"] {
        assert!(
            stranded["says"].as_str().unwrap().contains(words),
            "{stranded}"
        );
    }
    assert!(
        stranded["do"]
            .as_str()
            .unwrap()
            .contains("subqueues = true"),
        "{stranded}"
    );
    let command = |subject: &str| {
        let mut command = program();
        command.args([subject, "--admin", &format!("http://{}", sidecar.admin)]);
        ran(&mut command).out
    };
    let listed = command("subqueues");
    has(
        &listed,
        "! 3 jobs wait in \"old-ojst-07\", which nobody reads: queue \"old\" has no mark",
    );
    let names = told("subqueues", "2 names of subqueues").unwrap();
    assert_eq!(names["level"], "ok", "{names}");

    let job =
        json!({"type": "t", "args": [], "meta": {"tenant_id": "a"}, "options": {"queue": "q"}});
    let stored = ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string());
    assert_eq!(stored.status, 201, "{stored:?}");
    let one = told("subqueues", "q: written and read; 2 jobs wait in 2 of 256").unwrap();
    assert_eq!(one["level"], "ok", "{one}");
    // No worker asks.
    wait("that nobody asks for them", || {
        let told = get(sidecar.admin, "/throttle/v1/subqueues").json();
        told["queues"][0]["spread"]["unclaimed"] == 2
    });
    let words = "nobody has asked for the jobs in 2 subqueues of queue \"q\"";
    let unasked = told("subqueues", words).unwrap();
    assert_eq!(unasked["level"], "warn", "{unasked}");
}
