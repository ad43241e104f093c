//! `ojs-throttle demo depth`: one tenant has thousands of jobs behind one slot, and two others have a job now and then.
//! With subqueues those wait no longer than the same jobs in an empty queue; without they stand. Judged from the
//! workers' records.

use std::time::Duration;

use super::judge::{most, starts, waits};
use super::records::Pages;
use super::scene::{
    Enforcement, JobStream, SECOND, SceneData, SceneFinding, SceneNow, SceneVerdict, StreamLimit,
    Workers,
};

/// How much longer than in an empty queue the middle one of all waits may be, on a busy machine.
const NEAR: Duration = Duration::from_millis(250);
/// So many of a light tenant's jobs, in hundredths, must have started. The last ones may be on their way.
const STARTED: usize = 80;

/// The tenant with the jobs in front, the two behind it, and one whose queue is empty: it is what they are held against.
const STREAMS: [JobStream; 4] = [
    JobStream {
        name: "acme",
        kind: "contact.sync",
        queue: "crm",
        limit: StreamLimit::AtOnce(1),
        first: 10_000,
        producers: 0,
        runs: (200, 200),
        ..JobStream::PLAIN
    },
    light("bolt", "crm"),
    light("coil", "crm"),
    light("dune", "empty"),
];
const HEAVY: usize = 0;
const BEHIND: [(usize, &str); 2] = [(1, "bolt"), (2, "coil")];
const ALONE: usize = 3;

const fn light(name: &'static str, queue: &'static str) -> JobStream {
    JobStream {
        name,
        kind: "contact.sync",
        queue,
        every: Duration::from_millis(250),
        ..JobStream::PLAIN
    }
}

const WORKERS: [Workers; 2] = [workers("crm"), workers("empty")];

const fn workers(queue: &'static str) -> Workers {
    Workers {
        queue,
        workers: 3,
        slots: 1,
        poll: Duration::from_millis(20),
    }
}

/// A worker of the empty queue polls too: so those of both ask alike.
const CONFIG: &str = r#"
[fetch]
max_wait = "0s"

[[policy]]
name = "crm"
match = { queue = ["crm", "empty"] }
key = "crm:{meta.tenant_id}"
concurrency = 1
"#;

const SUBQUEUES: &str = "
[[queue]]
name = \"crm\"
subqueues = true
";

pub(super) fn scene(subqueues: Enforcement) -> SceneData {
    let (with, queue) = match subqueues {
        Enforcement::On => ("with", SUBQUEUES),
        Enforcement::Off => ("without", ""),
    };
    SceneData {
        intro: format!(
            "acme has 10000 jobs in a queue {with} subqueues, one of a tenant at a time. Behind them others have a \
             job now and then.\n"
        ),
        config: format!("{CONFIG}{queue}"),
        streams: &STREAMS,
        workers: &WORKERS,
        vendor_allows: 0,
        callers: 0,
        step: SECOND,
        line,
        verdict,
        unbroken: "nobody stood although there were no subqueues",
    }
}

/// What has started, and how long the last one waited.
fn line(seen: &SceneNow<'_>) -> String {
    let mut line = format!("{:4} s ", seen.second());
    for (stream, tenant) in STREAMS.iter().enumerate() {
        let waited = waits(seen.pages, stream);
        let (sent, _) = seen.pages.enqueued_and_waiting(stream);
        let started = waited.len();
        line += &match (stream, waited.last()) {
            (HEAVY, _) => format!(" {}: {started:5}", tenant.name),
            (_, None) => format!("   {}: {started} of {sent} started, -", tenant.name),
            (_, Some(wait)) => {
                let wait = wait.as_millis();
                format!("   {}: {started} of {sent} started, {wait} ms", tenant.name)
            }
        };
    }
    line
}

/// The wait in the middle of all of a stream; `None`: too few have started.
fn middle(pages: &Pages, stream: usize) -> Option<Duration> {
    let mut all = waits(pages, stream);
    all.sort_unstable();
    let middle = all.get(all.len() / 2).copied();
    let (sent, _) = pages.enqueued_and_waiting(stream);
    middle.filter(|_| all.len() * 100 >= sent * STARTED)
}

fn verdict(seen: &SceneNow<'_>, _: Enforcement) -> SceneVerdict {
    let pages = seen.pages;
    let in_words = |wait: Option<Duration>| match wait {
        Some(wait) => format!("{} ms", wait.as_millis()),
        None => "most stand".to_owned(),
    };
    let empty = middle(pages, ALONE);
    let mut behind = Vec::new();
    for (stream, tenant) in BEHIND {
        let wait = middle(pages, stream);
        let goes = (wait.zip(empty)).is_some_and(|(wait, empty)| wait <= empty + NEAR);
        let what = format!("{tenant} waits as in an empty queue");
        let seen = format!("{}, and there {}", in_words(wait), in_words(empty));
        behind.push(SceneFinding::new(what, goes, seen));
    }
    let starts = starts(pages, HEAVY);
    let (heavy, most) = (starts.len(), most(StreamLimit::AtOnce(1), &starts));
    let others = vec![
        SceneFinding::new(
            "acme has one job at a time",
            most <= 1 && heavy > 0,
            format_args!("{heavy} started, at most {most} at once"),
        ),
        SceneFinding::no_call_failed(pages),
    ];
    SceneVerdict::of("workers' own records", behind, others)
}

#[cfg(test)]
mod tests {
    use super::super::records::Received;
    use super::*;

    /// A run in which so many jobs of bolt and of coil, out of 20, started so many milliseconds after they were sent,
    /// and those of dune at once. Acme had five, each so long after the one before it.
    fn run(bolt: (usize, u64), coil: (usize, u64), acme: u64) -> Pages {
        let ms = Duration::from_millis;
        let mut pages = Pages::default();
        for (stream, (jobs, wait)) in [(1, bolt), (2, coil), (3, (20, 10))] {
            for nth in 0..20 {
                pages.enqueue(stream, format!("{stream}-{nth}"), ms(0));
            }
            for nth in 0..jobs {
                pages.receive(Received {
                    stream,
                    job: format!("{stream}-{nth}"),
                    at: ms(wait),
                    ..Received::default()
                });
            }
        }
        for nth in 0..5 {
            pages.enqueue(HEAVY, nth.to_string(), ms(0));
            pages.receive(Received {
                stream: HEAVY,
                at: ms(acme * nth),
                done: Some(ms(acme * nth + 200)),
                ..Received::default()
            });
        }
        pages
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let all_go = run((19, 20), (20, 20), 200);
        let found = verdict(&SceneNow::of(&all_go, &[]), Enforcement::On);
        assert!(found.good && found.limits_held, "{}", found.text);
        let mut failed = all_go.clone();
        failed.failed = 1;
        for (pages, wrong) in [
            (run((3, 20), (20, 20), 200), "bolt"),
            (run((20, 20), (20, 900), 200), "coil"),
            (run((20, 20), (20, 20), 199), "at a time"),
            (failed, "failed"),
        ] {
            let found = verdict(&SceneNow::of(&pages, &[]), Enforcement::On);
            let lines = found.text.lines();
            let lines: Vec<&str> = lines.filter(|line| line.contains(" NO ")).collect();
            let text = &found.text;
            assert!(!found.good && lines.len() == 1, "{text}");
            assert!(lines[0].contains(wrong), "{text}");
        }
    }
}
