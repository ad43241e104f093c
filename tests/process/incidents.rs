//! Why jobs do not start: each cause is staged with real processes, the commands of the chapter `incidents` are run as
//! they stand there, and what they print has the sentence that stands there for the cause.

use std::path::PathBuf;

use ojs_throttle::show::why;

use super::doctor::doctor;
use super::prelude::*;
use super::terminal::{Terminal, replaced};
use crate::docs::blocks;
use crate::servers::named_as_test;

const CHAPTER: &str = "src/manual/incidents.md";
const SYMPTOM: &str = "Jobs do not start";
/// What blames nothing may stand beside what does. Nobody asks for a queue to which these tests send no worker.
const BLAMELESS: [&str; 7] = [
    "every limit leaves room",
    "its limits leave room",
    "no limit applies",
    "the job waits at the backend",
    "the job runs",
    "no worker has asked",
    "the backend has no job of queue",
];
/// Other tests stage these: a start that takes long, jobs that wait for their cost or in a subqueue, jobs of which only the
/// backend knows, an upstream that is none or refuses a worker, services that give no answer, what evades the limits, what is refused or
/// dropped, sidecars without a backend, policies as a whole, and what is set for nothing.
const STAGED_ELSEWHERE: [&str; 25] = [
    "login refused",
    "held elsewhere",
    "files differ",
    "no limit",
    "refused",
    "drops jobs",
    "dropped",
    "starting",
    "wrong upstream",
    "cost",
    "line",
    "unshared",
    "around",
    "queue unused",
    "behind the head",
    "behind others",
    "out of reach",
    "service away",
    "in a subqueue",
    "not seen",
    "no calls",
    "little left",
    "not in file",
    "binds nothing",
    "each key",
];

/// The id that the commands of the chapter name.
const JOB: &str = "0190a1b2-0000-7000-8000-000000000001";

const SLOTS: &str = "
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
feedback = { codes = [\"RateLimitError\"], default_pause = \"5m\" }
";
const DRAINS: &str = "drain_timeout = \"5m\"
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
";
const SLOTS_AND_RATE: &str = "
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
rate = { limit = 100, period = \"1m\" }
";
const TEMPLATE: &str = "
[[policy]]
name = \"per-customer\"
match = { type = \"sync.*\" }
key = \"crm:{meta.tenant_id}\"
rate = { limit = 1, period = \"5m\" }
";
const LOOKAHEAD: &str = "
[hold]
max = 4
[[policy]]
name = \"tenants\"
match = { queue = \"billing\" }
key = \"{meta.tenant}\"
concurrency = 1
";
/// What the store of a sidecar that has none yet is said to be.
const NOWHERE: &str = "redis://127.0.0.1:1\"";
const SPACED: &str = "
[[queue]]
name = \"slow\"
throttle = { limit = 1, period = \"5m\" }
";

/// One cause.
pub struct Cause {
    pub name: &'static str,
    config: &'static str,
    /// What stages it, and the job that waits then.
    stage: fn(&mut Stage) -> String,
    /// The path that the backend is said to have.
    base: &'static str,
    /// Names of the chapter, and what they are called here.
    names: &'static [(&'static str, &'static str)],
    /// Its short name in the table of causes, which tables show.
    pub kind: &'static str,
    /// A part of the sentence that the chapter prints for it.
    pub sentence: &'static str,
    /// What has to be asked about for it.
    asked: Asked,
}

/// A backend, a sidecar and its store, of one cause alone.
pub struct Stage {
    pub backend: Backend,
    pub sidecar: Sidecar,
    store: Option<RedisServer>,
    /// Another sidecar that has the same settings.
    sibling: Option<Sidecar>,
    /// The file of its settings, with its folder.
    file: (tempfile::TempDir, PathBuf),
}

/// Who sees that jobs do not start knows their queue, and may look at one of them.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Queue,
    Job,
}

impl Cause {
    /// Stages it before a backend and a sidecar of its own; with the job that waits.
    pub fn staged(&self) -> (Stage, String) {
        let backend = Backend::start(Lax::spec());
        let mut rest = self.config.to_owned();
        let store = rest.contains("REDIS").then(RedisServer::start);
        if let Some(store) = &store {
            rest = rest.replace("REDIS", &store.url());
        }
        let at = format!("{}\"", backend.addr);
        let base = format!("{}{}\"", backend.addr, self.base);
        let file = file(config(backend.addr, "", &rest).replace(&at, &base));
        let sidecar = Sidecar::begin(run_at(&file.1), tempfile::tempdir().unwrap());
        if !self.config.contains(NOWHERE) {
            sidecar.state("ready");
        }
        let mut stage = Stage {
            backend,
            sidecar,
            store,
            sibling: None,
            file,
        };
        let job = (self.stage)(&mut stage);
        (stage, job)
    }

    /// A text of the chapter with the names that things have here.
    pub fn named(&self, text: &str) -> String {
        replaced(text, self.names)
    }

    /// Whether a queue shows it, and something is to blame.
    pub fn binds_a_queue(&self) -> bool {
        let is_blameless = BLAMELESS
            .iter()
            .any(|begin| begin.starts_with(self.sentence));
        self.asked == Asked::Queue && !is_blameless
    }

    /// Whether it needs a server of its own.
    pub fn needs_redis(&self) -> bool {
        self.config.contains("REDIS")
    }
}

/// What most causes have.
const PLAIN: Cause = Cause {
    name: "",
    config: SLOTS,
    stage: one_runs,
    base: "",
    names: &[],
    kind: "",
    sentence: "",
    asked: Asked::Queue,
};

pub const CAUSES: [Cause; 27] = [
    Cause {
        name: "all slots are taken",
        kind: "slots",
        stage: |Stage { sidecar, .. }| two_run_and_one_waits(sidecar),
        sentence: "are taken",
        ..PLAIN
    },
    Cause {
        name: "workers hang",
        kind: "may hang",
        stage: |Stage { sidecar, .. }| {
            for _ in 0..20 {
                let job = enqueue(sidecar.data, "billing", json!({}));
                assert_eq!(started(sidecar, "billing", 1), [&*job]);
                assert_eq!(ack(sidecar.data, &job, "w").status, 200);
            }
            let job = two_run_and_one_waits(sidecar);
            wait("they run for long", || {
                let said = get(sidecar.admin, "/throttle/v1/why?key=stripe").body;
                said.contains("may hang")
            });
            job
        },
        sentence: "2 run since",
        ..PLAIN
    },
    Cause {
        name: "an override pauses the key",
        kind: "paused",
        stage: |Stage { sidecar, .. }| {
            let pause = json!({"concurrency": 0, "reason": "incident 7", "by": "ana"});
            let path = "/ojs/v1/rate-limits/stripe";
            let set = ask(sidecar.data, "PUT", path, &pause.to_string());
            assert_eq!(set.status, 200, "{set:?}");
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [""; 0]);
            job
        },
        sentence: "its concurrency is 0",
        ..PLAIN
    },
    Cause {
        name: "a nack shuts the key",
        kind: "shut",
        stage: |Stage { sidecar, .. }| {
            let first = enqueue(sidecar.data, "billing", json!({}));
            let waits = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [&*first]);
            let error = json!({"code": "RateLimitError", "message": "429", "retryable": true});
            let nack = json!({"job_id": first, "worker_id": "w", "error": error});
            let nacked = ask(
                sidecar.data,
                "POST",
                "/ojs/v1/workers/nack",
                &nack.to_string(),
            );
            assert_eq!(nacked.status, 200, "{nacked:?}");
            waits
        },
        sentence: "is shut until",
        ..PLAIN
    },
    Cause {
        name: "the backend is down",
        kind: "backend away",
        stage: |Stage {
                    backend, sidecar, ..
                }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            backend.go();
            wait("an outage", || {
                get(sidecar.data, "/ojs/v1/queues");
                sidecar.metric("ojs_throttle_backend_up") == 0.0
            });
            job
        },
        sentence: "the backend does not answer",
        ..PLAIN
    },
    Cause {
        name: "a policy whose key has a field of the job",
        kind: "rate",
        config: TEMPLATE,
        stage: |Stage { sidecar, .. }| {
            let job = json!({"type": "sync.contacts", "args": [], "meta": {"tenant_id": "acme"}});
            let enqueue = || {
                let reply = ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string()).json();
                reply["job"]["id"].as_str().unwrap().to_owned()
            };
            let first = enqueue();
            let waits = enqueue();
            assert_eq!(started(sidecar, "default", 2), [&*first]);
            waits
        },
        names: &[("billing", "default"), ("stripe", "crm:acme")],
        sentence: "as many as its window allows",
        ..PLAIN
    },
    Cause {
        name: "a throttle of the whole queue",
        kind: "spacing",
        config: SPACED,
        stage: |Stage { sidecar, .. }| {
            let first = enqueue(sidecar.data, "slow", json!({}));
            let waits = enqueue(sidecar.data, "slow", json!({}));
            assert_eq!(started(sidecar, "slow", 2), [&*first]);
            waits
        },
        names: &[
            ("key \"stripe\" spaces", "queue \"slow\" spaces"),
            ("billing", "slow"),
        ],
        sentence: "spaces its starts",
        ..PLAIN
    },
    Cause {
        name: "slots are taken, and the rate has room",
        kind: "slots",
        config: SLOTS_AND_RATE,
        stage: |Stage { sidecar, .. }| two_run_and_one_waits(sidecar),
        sentence: "are taken",
        ..PLAIN
    },
    Cause {
        name: "the jobs are held for other credentials",
        kind: "credentials",
        config: "",
        stage: |Stage { sidecar, .. }| {
            let limited = json!({"rate_limit": {"key": "k", "concurrency": 1}});
            let jobs: Vec<String> = (0..3)
                .map(|_| enqueue(sidecar.data, "mail", limited.clone()))
                .collect();
            let fetch = json!({"queues": ["mail"], "count": 3, "worker_id": "w"});
            let as_another = |verb: &str, body: Value| {
                let body = body.to_string();
                let head = format!(
                    "POST /ojs/v1/workers/{verb} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer b\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                let mut conn = Conn::open(sidecar.data);
                conn.write((head + &body).as_bytes()).unwrap();
                conn.reply().unwrap()
            };
            assert_eq!(as_another("fetch", fetch).jobs(), [&*jobs[0]]);
            let ack = json!({"job_id": jobs[0], "worker_id": "w", "result": {}});
            assert_eq!(as_another("ack", ack).status, 200);
            assert_eq!(started(sidecar, "mail", 1), [""; 0]);
            // It is told once they have not asked for 10 s, while others ask.
            wait("the silence", || {
                assert_eq!(started(sidecar, "mail", 1), [""; 0]);
                get(sidecar.admin, "/throttle/v1/why?queue=mail")
                    .body
                    .contains("are held for")
            });
            jobs[1].clone()
        },
        names: &[("billing", "mail"), ("stripe", "k")],
        sentence: "are held for credentials",
        ..PLAIN
    },
    Cause {
        name: "the queue is paused",
        kind: "queue paused",
        stage: |Stage { sidecar, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            let paused = ask(sidecar.data, "POST", "/ojs/v1/queues/billing/pause", "");
            assert_eq!(paused.status, 200, "{paused:?}");
            job
        },
        sentence: "queue \"billing\" is paused",
        ..PLAIN
    },
    Cause {
        name: "nobody asks",
        kind: "nobody asks",
        stage: |Stage { sidecar, .. }| enqueue(sidecar.data, "billing", json!({})),
        sentence: "no worker has asked",
        ..PLAIN
    },
    Cause {
        name: "the job has not been fetched",
        kind: "at the backend",
        stage: |Stage { sidecar, .. }| enqueue(sidecar.data, "billing", json!({})),
        sentence: "the job waits at the backend",
        asked: Asked::Job,
        ..PLAIN
    },
    Cause {
        name: "the job runs",
        kind: "runs",
        stage: one_runs,
        sentence: "the job runs",
        asked: Asked::Job,
        ..PLAIN
    },
    Cause {
        name: "the job has ended",
        kind: "other state",
        stage: |Stage { sidecar, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [&*job]);
            assert_eq!(ack(sidecar.data, &job, "w").status, 200);
            job
        },
        sentence: "no limit matters",
        asked: Asked::Job,
        ..PLAIN
    },
    Cause {
        name: "a worker went around the sidecar",
        kind: "elsewhere",
        stage: |Stage {
                    backend, sidecar, ..
                }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(fetch(backend.addr, "billing", 1, "w").jobs(), [&*job]);
            job
        },
        sentence: "it has no slot here",
        asked: Asked::Job,
        ..PLAIN
    },
    Cause {
        name: "the file allows no start",
        kind: "no slots",
        config: "\n[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 0\n",
        stage: |Stage { sidecar, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [""; 0]);
            job
        },
        sentence: "has no slots",
        ..PLAIN
    },
    Cause {
        name: "the lookahead is full",
        kind: "lookahead full",
        config: LOOKAHEAD,
        stage: |Stage { sidecar, .. }| {
            let job = |tenant: &str| {
                let job = json!({"type": "t", "args": [], "meta": {"tenant": tenant}, "options": {"queue": "billing"}});
                let reply = ask(sidecar.data, "POST", "/ojs/v1/jobs", &job.to_string()).json();
                reply["job"]["id"].as_str().unwrap().to_owned()
            };
            let first = job("stripe");
            (0..8).for_each(|_| drop(job("stripe")));
            let waits = job("other");
            assert_eq!(started(sidecar, "billing", 1), [&*first]);
            wait("a full lookahead", || {
                assert_eq!(started(sidecar, "billing", 1), [""; 0]);
                sidecar.metric("ojs_throttle_lookahead_full_queues") == 1.0
            });
            waits
        },
        sentence: "the lookahead of queue",
        ..PLAIN
    },
    Cause {
        name: "the queue is paused at the backend alone",
        kind: "queue paused",
        stage: |Stage {
                    backend, sidecar, ..
                }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            let paused = ask(backend.addr, "POST", "/ojs/v1/queues/billing/pause", "");
            assert_eq!(paused.status, 200, "{paused:?}");
            job
        },
        sentence: "queue \"billing\" is paused",
        ..PLAIN
    },
    Cause {
        name: "the queue is full",
        kind: "queue full",
        config: "\n[[queue]]\nname = \"billing\"\nmax_depth = 1\n",
        stage: |Stage { sidecar, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            let more = json!({"type": "t", "args": [], "options": {"queue": "billing"}});
            let refused = ask(sidecar.data, "POST", "/ojs/v1/jobs", &more.to_string());
            assert_eq!(refused.status, 429, "{refused:?}");
            job
        },
        sentence: "is full: producers",
        ..PLAIN
    },
    Cause {
        name: "all jobs of the queue run",
        kind: "no jobs",
        stage: one_runs,
        sentence: "the backend has no job of queue",
        ..PLAIN
    },
    Cause {
        name: "the backend is elsewhere",
        base: "/nowhere",
        kind: "backend refuses",
        stage: |Stage {
                    backend, sidecar, ..
                }| {
            let job = enqueue(backend.addr, "billing", json!({}));
            let fetch = json!({"queues": ["billing"], "count": 1, "worker_id": "w"});
            let refused = ask(
                sidecar.data,
                "POST",
                "/ojs/v1/workers/fetch",
                &fetch.to_string(),
            );
            assert_eq!(refused.status, 404, "{refused:?}");
            job
        },
        sentence: "the backend answers a FETCH with",
        ..PLAIN
    },
    Cause {
        name: "the sidecar drains",
        kind: "draining",
        config: DRAINS,
        stage: |Stage { sidecar, .. }| {
            let first = enqueue(sidecar.data, "billing", json!({}));
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [&*first]);
            sidecar.signal("TERM");
            sidecar.state("draining");
            job
        },
        sentence: "the sidecar stops",
        ..PLAIN
    },
    Cause {
        name: "the file was refused",
        kind: "file refused",
        stage: |Stage { sidecar, file, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            std::fs::write(&file.1, "[server]\nupstream = 7\n").unwrap();
            sidecar.shows("ojs_throttle_config_file_matches", 0.0);
            // The metric is set a moment earlier.
            wait("health says so", || {
                let health = get(sidecar.data, "/ojs/v1/health").json();
                health["throttle"]["config_file"] == "refused"
            });
            job
        },
        sentence: "the config file is not in force",
        ..PLAIN
    },
    Cause {
        name: "the store was never there",
        kind: "store never there",
        config: "\n[store]\nurl = \"redis://127.0.0.1:1\"\n[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\n",
        stage: |Stage { sidecar, .. }| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            sidecar.shows("ojs_throttle_store_up", 0.0);
            assert_eq!(started(sidecar, "billing", 1), [""; 0]);
            job
        },
        sentence: "the store has not answered since the start",
        ..PLAIN
    },
    Cause {
        name: "the store is lost",
        kind: "store lost",
        config: "\n[store]\nurl = \"REDIS\"\non_store_error = \"open\"\n",
        stage: |stage| store_is_lost(stage),
        sentence: "the store does not answer: these are the numbers",
        ..PLAIN
    },
    Cause {
        name: "the store is lost, and that closes the key",
        kind: "store closed",
        config: "\n[store]\nurl = \"REDIS\"\non_store_error = \"closed\"\n[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\n",
        stage: |stage| store_is_lost(stage),
        sentence: "the store does not answer, and on_store_error is",
        ..PLAIN
    },
    Cause {
        name: "the store is lost, and this sidecar had no slot",
        kind: "store share",
        config: "\n[store]\nurl = \"REDIS\"\n[[policy]]\nname = \"stripe\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\n",
        stage: |stage| {
            stage.sibling = Some(Sidecar::begin(
                run_at(&stage.file.1),
                tempfile::tempdir().unwrap(),
            ));
            stage.sidecar.shows("ojs_throttle_siblings", 1.0);
            store_is_lost(stage)
        },
        sentence: "leaves no room",
        ..PLAIN
    },
];

fn one_runs(Stage { sidecar, .. }: &mut Stage) -> String {
    let job = enqueue(sidecar.data, "billing", json!({}));
    assert_eq!(started(sidecar, "billing", 1), [&*job]);
    job
}

/// A job waits, and then the store goes.
fn store_is_lost(Stage { sidecar, store, .. }: &mut Stage) -> String {
    let job = enqueue(sidecar.data, "billing", json!({}));
    // It has answered before.
    assert_eq!(
        get(sidecar.admin, "/throttle/v1/why?queue=billing").status,
        200
    );
    store.as_mut().unwrap().kill();
    sidecar.shows("ojs_throttle_store_up", 0.0);
    job
}

fn started(sidecar: &Sidecar, queue: &str, count: usize) -> Vec<String> {
    fetch(sidecar.data, queue, count, "w").jobs()
}

fn two_run_and_one_waits(sidecar: &Sidecar) -> String {
    let jobs: Vec<String> = (0..3)
        .map(|_| enqueue(sidecar.data, "billing", json!({})))
        .collect();
    assert_eq!(started(sidecar, "billing", 5), jobs[..2]);
    jobs[2].clone()
}

/// What the chapter has under the symptom: the commands, and the sentences that their output may have.
fn of_the_chapter() -> (Vec<String>, Vec<String>) {
    let blocks = blocks::of(CHAPTER).into_iter();
    let mut commands = blocks.filter(|block| block.heading == SYMPTOM && block.language == "sh");
    let block = commands.next().expect("the chapter has commands");
    assert!(commands.next().is_none(), "which commands?");
    let text = ojs_throttle::manual::chapter("incidents").unwrap().text;
    let section = text
        .split("\n## ")
        .find(|section| section.starts_with(SYMPTOM))
        .unwrap();
    let headings = section.lines().filter_map(|line| line.strip_prefix("### "));
    let sentences = headings.filter_map(|heading| heading.split('`').nth(1));
    // A time is different each time.
    let sentences = sentences.map(|sentence| sentence.split(" TIME").next().unwrap().to_owned());
    (
        block.text.lines().map(str::to_owned).collect(),
        sentences.collect(),
    )
}

/// Stages a cause and asks as the chapter does, and `top` and `doctor` too.
fn look(cause: &Cause, commands: &[String], sentences: &[String]) {
    let (stage, job) = cause.staged();
    let sidecar = &stage.sidecar;
    let named = |text: &str| cause.named(text);
    let expected = sentences
        .iter()
        .find(|sentence| sentence.contains(cause.sentence));
    let expected = expected.expect("the chapter has a heading for it");
    let option = match cause.asked {
        Asked::Queue => "--queue",
        Asked::Job => "--job",
    };
    let mut was_asked = false;
    for written in commands {
        let command = named(written).replace(JOB, &job);
        let said = says(sidecar, &command);
        let told: Vec<&String> = sentences
            .iter()
            .filter(|sentence| said.contains(&named(sentence)))
            .collect();
        let what = format!("{}: {command}: {said}", cause.name);
        let is_it = written.contains(option);
        was_asked |= is_it;
        assert!(!is_it || told.contains(&expected), "{what}");
        // What else is asked must not blame something else.
        let is_blameless = |told: &str| BLAMELESS.iter().any(|begin| told.starts_with(begin));
        let mut others = told.iter().filter(|told| **told != expected);
        // A lost store is told of beside what it means.
        let is_store =
            |told: &str| cause.kind.starts_with("store") && told.starts_with("the store");
        // A queue of which no worker asks fills up.
        let is_asked = |told: &str| cause.kind == "queue full" && told.starts_with("no worker has");
        assert!(
            others.all(|told| is_blameless(told) || is_store(told) || is_asked(told)),
            "{what}"
        );
    }
    assert!(was_asked, "the chapter has no command with {option}");
    if cause.binds_a_queue() {
        let shown = [cause.kind, &named(expected)];
        wait(cause.name, || {
            let top = says(sidecar, "ojs-throttle top --once");
            shown.iter().any(|words| top.contains(words))
        });
        doctor_says(cause, &stage, &named(expected));
    }
}

/// What a command prints.
fn says(sidecar: &Sidecar, command: &str) -> String {
    let words = command.strip_prefix("ojs-throttle ").expect("a command");
    let mut run = program();
    run.args(words.split(' '));
    run.env("COLUMNS", "400");
    run.env("OJS_THROTTLE_ADMIN", format!("http://{}", sidecar.admin));
    let said = ran(&mut run);
    said.out + &said.err
}

/// `doctor` tells the cause with what to do, beside what it finds out itself.
fn doctor_says(cause: &Cause, stage: &Stage, sentence: &str) {
    let text = config(
        stage.backend.addr,
        &format!("admin_listen = \"{}\"", stage.sidecar.admin),
        "",
    );
    // How much waits is known once the backend has said so.
    until(cause.name, || {
        let (report, _) = doctor(&text, &[]);
        let mut all = report["findings"].as_array().unwrap().iter();
        let is_it = |one: &&Value| {
            one["part"] == "sidecar" && one["says"].as_str().unwrap().contains(sentence)
        };
        let found = all.find(is_it)?;
        assert!(found["do"].is_string(), "{found}");
        Some(())
    });
}

#[test]
fn each_cause_is_found_by_the_commands_of_the_chapter() {
    let (commands, sentences) = of_the_chapter();
    for kind in why::CAUSES {
        let is_staged = STAGED_ELSEWHERE.contains(&kind.name)
            || CAUSES.iter().any(|cause| cause.kind == kind.name)
            || kind.name == "nothing";
        assert!(is_staged, "nobody has seen {:?}", kind.name);
    }
    find_all(&commands, &sentences, |cause| !cause.needs_redis());
}

#[test]
fn causes_of_a_lost_store_are_found_on_redis() {
    let (commands, sentences) = of_the_chapter();
    find_all(&commands, &sentences, Cause::needs_redis);
}

fn find_all(commands: &[String], sentences: &[String], which: fn(&Cause) -> bool) {
    std::thread::scope(|scope| {
        for cause in CAUSES.iter().filter(|cause| which(cause)) {
            named_as_test(scope, move || look(cause, commands, sentences));
        }
    });
}

/// Each request and each command that changes something is one that the sidecar answers.
#[test]
fn each_request_of_the_chapter_is_carried_out_on_tools() {
    let tenants = "[[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 100 }\n";
    let token = "control_token = \"s3cret\"";
    let (backend, sidecar) = pair(token, &[SLOTS, tenants, TEMPLATE].concat());
    let job = two_run_and_one_waits(&sidecar);
    for (path, body) in [
        ("queues/billing/rate-limit", json!({"concurrency": 1})),
        ("tenants/acme", json!({"limits": {"max_queue_depth": 10}})),
    ] {
        let path = format!("/ojs/v1/admin/{path}");
        let set = ask(sidecar.data, "PUT", &path, &body.to_string());
        assert_eq!(set.status, 200, "{set:?}");
    }
    let ports = [sidecar.data, backend.addr, sidecar.admin].map(|at| at.port());
    let mut terminal = Terminal::open(ports);
    terminal.run("the token", "export OJS_THROTTLE_TOKEN=s3cret", "");
    let blocks = blocks::of(CHAPTER).into_iter();
    let mut requests = 0;
    for block in blocks.filter(|block| block.language == "sh") {
        let text = block.text.replace("\\\n", "");
        let by_hand = ["curl", "slots", "pause", "resume", "limit", "clear", "top"];
        let is_run = |line: &&str| {
            let word = line.trim_start_matches("ojs-throttle ").split(' ').next();
            by_hand.contains(&word.unwrap())
        };
        let commands = text.lines().filter(is_run);
        for command in commands {
            let command = command.replace(JOB, &job);
            terminal.run(&block.place, &command, "…");
            requests += 1;
        }
    }
    assert!(requests >= 14, "{requests}");
}
