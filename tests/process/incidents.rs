//! Why jobs do not start: each cause is staged with real processes, the commands of the chapter `incidents` are run as
//! they stand there, and what they print has the sentence that stands there for the cause.

use super::prelude::*;
use super::terminal::Terminal;
use crate::docs::blocks;

const CHAPTER: &str = "src/manual/incidents.md";
const SYMPTOM: &str = "Jobs do not start";
/// What blames nothing may stand beside what does.
const BLAMELESS: [&str; 3] = [
    "every limit leaves room",
    "no limit applies",
    "the job waits at the backend",
];

/// The id that the commands of the chapter name.
const JOB: &str = "0190a1b2-0000-7000-8000-000000000001";

const SLOTS: &str = "
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
feedback = { codes = [\"RateLimitError\"], default_pause = \"1m\" }
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
rate = { limit = 1, period = \"20s\" }
";
const SPACED: &str = "
[[queue]]
name = \"slow\"
throttle = { limit = 1, period = \"20s\" }
";

/// One cause.
pub struct Cause {
    pub name: &'static str,
    config: &'static str,
    /// What stages it, and the job that waits then.
    stage: fn(&mut Backend, &Sidecar) -> String,
    /// Names of the chapter, and what they are called here.
    names: &'static [(&'static str, &'static str)],
    /// A part of the sentence that the chapter prints for it.
    pub sentence: &'static str,
    /// What has to be asked about for it.
    asked: Asked,
}

/// Who sees that jobs do not start knows their queue, and may look at one of them.
#[derive(Clone, Copy, PartialEq)]
enum Asked {
    Queue,
    Job,
}

impl Cause {
    /// Stages it before a backend and a sidecar of its own; with the job that waits.
    pub fn staged(&self) -> (Backend, Sidecar, String) {
        let mut backend = Backend::start(Lax::spec());
        let sidecar = Sidecar::run(&config(backend.addr, "", self.config));
        let job = (self.stage)(&mut backend, &sidecar);
        (backend, sidecar, job)
    }

    /// A text of the chapter with the names that things have here.
    pub fn named(&self, text: &str) -> String {
        let names = self.names.iter();
        names.fold(text.to_owned(), |text, (page, own)| text.replace(page, own))
    }

    /// Whether a queue shows it, and something is to blame.
    pub fn binds_a_queue(&self) -> bool {
        let is_blameless = BLAMELESS
            .iter()
            .any(|begin| begin.starts_with(self.sentence));
        self.asked == Asked::Queue && !is_blameless
    }
}

pub const CAUSES: [Cause; 14] = [
    Cause {
        name: "all slots are taken",
        config: SLOTS,
        stage: |_, sidecar| two_run_and_one_waits(sidecar),
        names: &[],
        sentence: "are taken",
        asked: Asked::Queue,
    },
    Cause {
        name: "an override pauses the key",
        config: SLOTS,
        stage: |_, sidecar| {
            let pause = json!({"concurrency": 0, "reason": "incident 7", "by": "ana"});
            let path = "/ojs/v1/rate-limits/stripe";
            let set = ask(sidecar.data, "PUT", path, &pause.to_string());
            assert_eq!(set.status, 200, "{set:?}");
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [""; 0]);
            job
        },
        names: &[],
        sentence: "its concurrency is 0",
        asked: Asked::Queue,
    },
    Cause {
        name: "a nack shuts the key",
        config: SLOTS,
        stage: |_, sidecar| {
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
        names: &[],
        sentence: "is shut until",
        asked: Asked::Queue,
    },
    Cause {
        name: "the backend is down",
        config: SLOTS,
        stage: |backend, sidecar| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            backend.go();
            wait("an outage", || {
                get(sidecar.data, "/ojs/v1/queues");
                sidecar.metric("ojs_throttle_backend_up") == 0.0
            });
            job
        },
        names: &[],
        sentence: "the backend does not answer",
        asked: Asked::Queue,
    },
    Cause {
        name: "a policy whose key has a field of the job",
        config: TEMPLATE,
        stage: |_, sidecar| {
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
        sentence: "as many jobs as its window allows",
        asked: Asked::Queue,
    },
    Cause {
        name: "a throttle of the whole queue",
        config: SPACED,
        stage: |_, sidecar| {
            let first = enqueue(sidecar.data, "slow", json!({}));
            let waits = enqueue(sidecar.data, "slow", json!({}));
            assert_eq!(started(sidecar, "slow", 2), [&*first]);
            waits
        },
        names: &[("billing", "slow")],
        sentence: "spaces its starts",
        asked: Asked::Queue,
    },
    Cause {
        name: "slots are taken, and the rate has room",
        config: SLOTS_AND_RATE,
        stage: |_, sidecar| two_run_and_one_waits(sidecar),
        names: &[],
        sentence: "are taken",
        asked: Asked::Queue,
    },
    Cause {
        name: "the jobs are held for other credentials",
        config: "",
        stage: |_, sidecar| {
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
            // It is told once they have not asked for 10 s.
            wait("the silence", || {
                get(sidecar.admin, "/throttle/v1/why?queue=mail")
                    .body
                    .contains("are held for")
            });
            jobs[1].clone()
        },
        names: &[("billing", "mail"), ("stripe", "k")],
        sentence: "are held for credentials",
        asked: Asked::Queue,
    },
    Cause {
        name: "the queue is paused",
        config: SLOTS,
        stage: |_, sidecar| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            let paused = ask(sidecar.data, "POST", "/ojs/v1/queues/billing/pause", "");
            assert_eq!(paused.status, 200, "{paused:?}");
            job
        },
        names: &[],
        sentence: "queue \"billing\" is paused",
        asked: Asked::Queue,
    },
    Cause {
        name: "nobody asks",
        config: SLOTS,
        stage: |_, sidecar| enqueue(sidecar.data, "billing", json!({})),
        names: &[],
        sentence: "every limit leaves room",
        asked: Asked::Queue,
    },
    Cause {
        name: "no policy matches",
        config: "",
        stage: |_, sidecar| enqueue(sidecar.data, "billing", json!({})),
        names: &[],
        sentence: "no limit applies",
        asked: Asked::Queue,
    },
    Cause {
        name: "the job has not been fetched",
        config: SLOTS,
        stage: |_, sidecar| enqueue(sidecar.data, "billing", json!({})),
        names: &[],
        sentence: "the job waits at the backend",
        asked: Asked::Job,
    },
    Cause {
        name: "the job runs",
        config: SLOTS,
        stage: |_, sidecar| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(started(sidecar, "billing", 1), [&*job]);
            job
        },
        names: &[],
        sentence: "the job runs",
        asked: Asked::Job,
    },
    Cause {
        name: "a worker went around the sidecar",
        config: SLOTS,
        stage: |backend, sidecar| {
            let job = enqueue(sidecar.data, "billing", json!({}));
            assert_eq!(fetch(backend.addr, "billing", 1, "w").jobs(), [&*job]);
            job
        },
        names: &[],
        sentence: "it has no slot here",
        asked: Asked::Job,
    },
];

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

/// Stages a cause and asks as the chapter does.
fn look(cause: &Cause, commands: &[String], sentences: &[String]) {
    let (_backend, sidecar, job) = cause.staged();
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
        let words = command.strip_prefix("ojs-throttle ").expect("a command");
        let mut run = program();
        run.args(words.split(' '));
        run.env("OJS_THROTTLE_ADMIN", format!("http://{}", sidecar.admin));
        let said = ran(run);
        let told: Vec<&String> = sentences
            .iter()
            .filter(|sentence| said.out.contains(&named(sentence)))
            .collect();
        let what = format!("{}: {command}: {}{}", cause.name, said.out, said.err);
        let is_it = written.contains(option);
        was_asked |= is_it;
        assert!(!is_it || told.contains(&expected), "{what}");
        // What else is asked must not blame something else.
        let is_blameless = |told: &str| BLAMELESS.iter().any(|begin| told.starts_with(begin));
        let mut others = told.iter().filter(|told| **told != expected);
        assert!(others.all(|told| is_blameless(told)), "{what}");
    }
    assert!(was_asked, "the chapter has no command with {option}");
}

#[test]
fn each_cause_is_found_by_the_commands_of_the_chapter() {
    let (commands, sentences) = of_the_chapter();
    for sentence in &sentences {
        let mut causes = CAUSES.iter();
        let has_cause = causes.any(|cause| sentence.contains(cause.sentence));
        assert!(has_cause, "nobody has seen {sentence:?}");
    }
    std::thread::scope(|scope| {
        for cause in &CAUSES {
            let (commands, sentences) = (&commands, &sentences);
            scope.spawn(move || look(cause, commands, sentences));
        }
    });
}

/// Each request and each command that changes something is one that the sidecar answers.
#[test]
fn each_request_of_the_chapter_is_carried_out_on_tools() {
    let backend = Backend::start(Lax::spec());
    let tenants = "[[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 100 }\n";
    let token = "control_token = \"s3cret\"";
    let sidecar = Sidecar::run(&config(backend.addr, token, &(SLOTS.to_owned() + tenants)));
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
