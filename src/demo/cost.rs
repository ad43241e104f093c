//! `ojs-throttle demo cost`: three tenants share the tokens of one model vendor by weight, and what a job does not use
//! is given back. Judged from the workers' records.

use std::time::Duration;

use super::judge::{most, paid_starts};
use super::records::{Pages, Received};
use super::scene::{
    Enforcement, JobStream, SECOND, SceneData, SceneFinding, SceneNow, SceneVerdict, StreamLimit,
    Workers, bar, tokens, used,
};

/// Tokens of the vendor, in any second.
const LIMIT: u32 = 1_000;
/// The part of each tenant, in hundredths: the weights are 3, 1 and 1.
const SHARES: [u64; 3] = [60, 20, 20];
/// How far a tenant's part may be from its share, in hundredths of all: one job is more than one in a short run.
const NEAR: u64 = 5;

const STREAMS: [JobStream; 3] = [tenant("acme"), tenant("bolt"), tenant("coil")];

/// So many of each wait that none ever leaves its share to others, and no more than are held: the hold shares turns.
const fn tenant(name: &'static str) -> JobStream {
    JobStream {
        name,
        kind: "llm.call",
        every: Duration::from_millis(20),
        backlog: 20,
        runs: (20, 20),
        ..JobStream::PLAIN
    }
}

const WORKERS: [Workers; 1] = [Workers {
    queue: JobStream::PLAIN.queue,
    workers: 3,
    slots: 10,
    poll: Duration::from_millis(20),
}];

/// Who waits for a start does not know when it was made.
const CONFIG: &str = "[fetch]\nmax_wait = \"0s\"\n";

const POLICY: &str = r#"
[[policy]]
name = "model"
match = { type = "llm.*" }
rate = { limit = 1000, period = "1s" }
cost = { from = "meta.tokens", default = 100, max = 100, settle = "result.usage.total_tokens" }
fair = { by = "{meta.tenant_id}", weights = { acme = 3 }, default_weight = 1 }
"#;

pub(super) fn scene(limits: Enforcement) -> SceneData {
    let (limit, policy) = match limits {
        Enforcement::On => (
            format!("{LIMIT} tokens in any second, shared 3 : 1 : 1"),
            POLICY,
        ),
        Enforcement::Off => ("no limit".to_owned(), ""),
    };
    SceneData {
        intro: format!(
            "Three tenants, 3 workers, one vendor: {limit}.\n\
             Jobs say what they may cost, and use half of it.\n"
        ),
        config: format!("{CONFIG}{policy}"),
        streams: &STREAMS,
        workers: &WORKERS,
        vendor_allows: 0,
        callers: 0,
        step: SECOND,
        line,
        verdict,
        unbroken: "nothing went over the limit although it was off",
    }
}

/// The sum over the jobs of a stream, or of all.
fn sum(pages: &Pages, stream: Option<usize>, cost: fn(u64) -> u64) -> u64 {
    let of_stream = |job: &&Received| stream.is_none_or(|stream| job.stream == stream);
    let jobs = pages.received.iter().filter(of_stream);
    jobs.map(|job| cost(job.nth)).sum()
}

/// The hundredths that each tenant has of what all were charged.
fn parts(pages: &Pages) -> [u64; STREAMS.len()] {
    let all = sum(pages, None, tokens).max(1);
    [0, 1, 2].map(|tenant| (sum(pages, Some(tenant), tokens) * 100 + all / 2) / all)
}

fn in_words(parts: [u64; STREAMS.len()]) -> String {
    let each = STREAMS.iter().zip(parts);
    let each = each.map(|(tenant, part)| format!("{} {part} %", tenant.name));
    each.collect::<Vec<_>>().join(", ")
}

/// What was used in the last second, and the parts so far.
fn line(seen: &SceneNow<'_>) -> String {
    let jobs = seen.pages.received.iter();
    let lately = jobs.filter(|job| seen.now < job.at + SECOND);
    let used: u64 = lately.map(|job| used(job.nth)).sum();
    let bar = bar(used, LIMIT.into());
    let parts = in_words(parts(seen.pages));
    format!("{:4} s  {bar} {used:6} tokens   {parts}", seen.second())
}

fn verdict(seen: &SceneNow<'_>, limits: Enforcement) -> SceneVerdict {
    let pages = seen.pages;
    let rule = StreamLimit::Rate {
        limit: LIMIT,
        period: SECOND,
    };
    let most = most(rule, &paid_starts(pages));
    let held = SceneFinding::new(
        format!("never more than {LIMIT} tokens a second"),
        most <= LIMIT,
        format_args!("at most {most}"),
    );
    let parts = parts(pages);
    let fair = (SHARES.iter().zip(parts)).all(|(share, part)| part.abs_diff(*share) <= NEAR);
    let mut others = vec![
        SceneFinding::new("to each by its weight", fair, in_words(parts)),
        SceneFinding::no_call_failed(pages),
    ];
    if limits == Enforcement::On {
        let (charged, used) = (sum(pages, None, tokens), sum(pages, None, used));
        // Without settling no more is charged than fits into so many seconds and the one under way.
        let settled = charged > u64::from(LIMIT) * (seen.second() + 2);
        let seen = format_args!("{charged} charged, {used} used");
        others.push(SceneFinding::new(
            "what was not used came back",
            settled,
            seen,
        ));
    }
    SceneVerdict::of("workers' own records", vec![held], others)
}

#[cfg(test)]
mod tests {
    use super::super::records::ProbeTrip;
    use super::*;

    /// Ten seconds in which a job starts each so many milliseconds: in turns one of each of these streams.
    fn starts(each: u64, streams: &[usize]) -> Pages {
        let mut pages = Pages::default();
        for nth in 0..10_000 / each {
            let at = Duration::from_millis(nth * each);
            pages.probes.push(ProbeTrip { sent: at, back: at });
            let stream = streams[usize::try_from(nth).unwrap() % streams.len()];
            pages.receive(Received {
                stream,
                nth,
                at,
                ..Received::default()
            });
        }
        pages
    }

    #[test]
    fn each_fault_is_seen_alone() {
        let fair = [0, 0, 0, 1, 2];
        let judged = |pages: &Pages| {
            let end = SceneNow {
                now: Duration::from_secs(10),
                ..SceneNow::of(pages, &[])
            };
            verdict(&end, Enforcement::On)
        };
        let found = judged(&starts(30, &fair));
        assert!(found.good && found.limits_held, "{}", found.text);
        let mut failed = starts(30, &fair);
        failed.failed = 1;
        for (pages, wrong) in [
            (starts(25, &fair), "tokens a second  NO"),
            (starts(30, &[0, 1, 2]), "weight                 NO"),
            (starts(60, &fair), "came back           NO"),
            (failed, "failed                        NO"),
        ] {
            let found = judged(&pages);
            let text = &found.text;
            assert!(!found.good && text.matches("NO").count() == 1, "{text}");
            assert!(text.contains(wrong), "{text}");
        }
    }
}
