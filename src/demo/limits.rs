//! The scene of limits: streams of jobs, each under a limit of its own. What is told of it, in plain words and a table.

use std::fmt::Write;
use std::time::Duration;

use super::judge::{
    EARLY, Judgement, Worst, blur, counts_until, median_and_longest, starts, waits,
};
use super::records::Pages;
use super::scene::{Enforcement, SECOND, SceneData, SceneNow, SceneVerdict, StreamLimit, Workers};
use super::streams::{STREAMS, WORKERS, policies};
use super::traffic::PROBE;

/// Starts whose time is known less well than this say little about a spacing of 100 ms.
const BLURRED: Duration = Duration::from_millis(40);

pub(super) fn scene(limits: Enforcement) -> SceneData {
    SceneData {
        intro: intro(limits),
        config: policies(limits).to_owned(),
        streams: &STREAMS,
        workers: &WORKERS,
        vendor_allows: 0,
        callers: 0,
        step: SECOND,
        line,
        verdict,
        unbroken: "nothing went over a limit although they were off",
    }
}

/// The first lines: what the run will show.
fn intro(limits: Enforcement) -> String {
    let [Workers { workers, slots, .. }] = WORKERS;
    let mut text = format!(
        "Producers enqueue four kinds of jobs into one queue, faster than three of them
may start. {workers} workers with {slots} slots each ask for all they can get. Everything
goes over real HTTP: producers and workers -> sidecar -> backend.
The sidecar is at {{sidecar}}, the backend at {{backend}}.\n\n",
    );
    for stream in STREAMS {
        let (name, limit) = (stream.name, stream.limit.to_string());
        // Writing to a string cannot fail.
        let _ = match stream.limit {
            StreamLimit::Free => writeln!(text, "  {name:<7} {limit}"),
            StreamLimit::Spaced { .. } => {
                writeln!(text, "  {name:<7} {limit:<14} sent along with each job")
            }
            _ => writeln!(text, "  {name:<7} {limit:<14} a [[policy]] in the config"),
        };
    }
    if limits == Enforcement::Off {
        text.push_str("\n--break: the sidecar runs with these limits OFF.\n");
    }
    text.push_str(LEGEND);
    text
}

const LEGEND: &str = "
Each second: what counts against the limit / the limit. Held jobs are those that
wait in the sidecar, under a live claim of the backend.\n";

/// What counts now against each limit, and how many of the backend's active jobs the sidecar holds.
fn line(seen: &SceneNow<'_>) -> String {
    let mut line = format!("{:>4} s", seen.second());
    for (index, stream) in STREAMS.iter().enumerate() {
        let starts = starts(seen.pages, index).into_iter();
        let counting = starts.filter(|start| counts_until(stream.limit, start) > seen.now);
        let counted = counting.count();
        // Writing to a string cannot fail.
        let _ = match stream.limit.number() {
            Some(limit) if counted > limit as usize => {
                write!(line, "  {} {counted}/{limit} OVER", stream.name)
            }
            Some(limit) => write!(line, "  {} {counted}/{limit}", stream.name),
            None => write!(line, "  {} {counted}/s", stream.name),
        };
    }
    let with_workers = seen.pages.received.iter().filter(|job| !job.acked).count();
    line + &format!("  held {}", seen.active.saturating_sub(with_workers))
}

fn verdict(seen: &SceneNow<'_>, limits: Enforcement) -> SceneVerdict {
    let found = Judgement::of(seen);
    SceneVerdict {
        text: closing(seen.pages, &found, limits),
        good: found.held(),
        limits_held: found.limits_held(),
    }
}

/// The closing table, the verdict, and where to go from here.
fn closing(pages: &Pages, verdict: &Judgement, enforcement: Enforcement) -> String {
    let mut text =
        String::from("\nFrom the records of workers and backend (no counter of the sidecar):\n\n");
    limits(&mut text, verdict);
    jobs(&mut text, pages, verdict);
    timing(&mut text, pages);
    let (sentence, next) = (sentence(verdict, enforcement), next(enforcement));
    let _ = write!(text, "\n{sentence}\n\n{next}");
    text
}

fn limits(text: &mut String, verdict: &Judgement) {
    let _ = writeln!(
        text,
        "  {:<7} {:<15} {:<23} {:<5} {:>6} {:>8}",
        "key", "limit", "worst moment", "held", "used", "starts"
    );
    for (stream, finding) in STREAMS.iter().zip(&verdict.findings) {
        let worst = match (finding.worst, stream.limit) {
            (Worst::Window(most), StreamLimit::Rate { period, .. }) => {
                format!("{most} in {period:?}")
            }
            (Worst::AtOnce(most), _) => format!("{most} at once"),
            (Worst::Span { early, .. }, _) if early.is_zero() => "on time".into(),
            (Worst::Span { early, .. }, _) if finding.held => {
                format!("{} early, {} allowed", rounded(early), EARLY.as_millis())
            }
            (Worst::Span { starts, took, .. }, _) => format!("{starts} in {}", rounded(took)),
            _ => "-".into(),
        };
        let (held, used) = match (stream.limit, finding.held) {
            (StreamLimit::Free, _) => ("-", "-".into()),
            (_, true) => ("yes", percent(finding.used)),
            (_, false) => ("NO", percent(finding.used)),
        };
        let limit = stream.limit.to_string();
        let _ = writeln!(
            text,
            "  {:<7} {limit:<15} {worst:<23} {held:<5} {used:>6} {:>8}",
            stream.name, finding.starts
        );
    }
}

fn jobs(text: &mut String, pages: &Pages, verdict: &Judgement) {
    let sums = &verdict.account;
    let _ = write!(
        text,
        "\n  jobs    {} enqueued, {} stored = {} completed + {} left in the backend\n          \
         {} received by workers; lost {}, doubled {}\n",
        sums.enqueued,
        sums.stored,
        sums.completed,
        sums.left,
        sums.received,
        sums.lost,
        sums.doubled,
    );
    if sums.lapsed > 0 {
        let _ = writeln!(text, "          {} claims ran out", sums.lapsed);
    }
    if let Some(first) = &pages.first_failed {
        let failed = verdict.failed;
        let _ = writeln!(text, "          {failed} calls failed; the first: {first}");
    }
    for (stream, kind) in STREAMS.iter().enumerate() {
        if kind.limit == StreamLimit::Free {
            let (median, longest) = median_and_longest(&mut waits(pages, stream));
            let _ = writeln!(
                text,
                "  {:<7} waited {} for a worker (median), {} at most, while {}\n          \
                 limited jobs waited in the same queue",
                kind.name,
                rounded(median),
                rounded(longest),
                (0..STREAMS.len())
                    .filter(|other| *other != stream)
                    .map(|other| pages.enqueued_and_waiting(other).1)
                    .sum::<usize>(),
            );
        }
    }
}

fn timing(text: &mut String, pages: &Pages) {
    let (median, longest) = blur(pages);
    let _ = writeln!(
        text,
        "  timing  a worker sees a start a little after it was made; a probe that goes
          through sidecar and backend every {PROBE:?} bounds how much: at most
          {} (median), {} (longest). A limit is broken if it is so
          wherever in between they were made. Spaced ones may leave {EARLY:?} early.",
        rounded(median),
        rounded(longest)
    );
    if median > BLURRED {
        text.push_str(
            "          This machine was too busy to judge finely: small breaches do not show.\n",
        );
    }
}

/// The verdict in one sentence.
pub(super) fn sentence(verdict: &Judgement, limits: Enforcement) -> String {
    let over: Vec<&str> = STREAMS
        .iter()
        .zip(&verdict.findings)
        .filter(|(_, finding)| !finding.held)
        .map(|(stream, _)| stream.name)
        .collect();
    let over = over.join(", ");
    let sums = match verdict.account.right() {
        true => "Nothing was lost or doubled.",
        false => "Jobs were LOST or DOUBLED, or the sums are wrong.",
    };
    match (over.is_empty(), limits) {
        (true, Enforcement::On) if !verdict.idle().is_empty() => {
            let idle = verdict.idle().join(", ");
            format!("NOT JUDGED: no job of {idle} was started.\n{sums}")
        }
        (true, Enforcement::On) if verdict.failed > 0 => format!(
            "NOT JUDGED: every limit was held, but {} calls failed.\n{sums}",
            verdict.failed
        ),
        (true, Enforcement::On) => format!("HELD: every limit was held in every window.\n{sums}"),
        (true, Enforcement::Off) => format!("No limit was broken, although they were off.\n{sums}"),
        (false, Enforcement::Off) => {
            format!("BREACH: {over} went over the limit, as --break asked for.\n{sums}")
        }
        (false, Enforcement::On) => {
            format!("BREACH: {over} went over the limit. Please report this.\n{sums}")
        }
    }
}

fn next(limits: Enforcement) -> &'static str {
    if limits == Enforcement::Off {
        "Next:  ojs-throttle demo           the same with the limits on"
    } else {
        "Next:  ojs-throttle demo --break   the same jobs and workers, limits off
       ojs-throttle dev            a sidecar and a backend to point your SDK at
       ojs-throttle help start     a first limit of your own, and a worker"
    }
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// Formats a duration to about a hundredth.
fn rounded(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    match millis {
        ..10.0 => format!("{millis:.1} ms"),
        ..1000.0 => format!("{millis:.0} ms"),
        _ => format!("{:.2} s", millis / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::super::records::{ProbeTrip, Received};
    use super::*;

    /// Of a run in which one job of each stream was started.
    fn verdict() -> Judgement {
        let pages = Pages::default();
        let mut verdict = Judgement::of(&SceneNow::of(&pages, &[]));
        for finding in &mut verdict.findings {
            finding.starts = 1;
        }
        verdict
    }

    #[test]
    fn it_fits_80_columns() {
        let mut verdict = verdict();
        verdict.account.stored = 100_000;
        let texts = [
            intro(Enforcement::Off)
                .replace("{sidecar}", "http://127.0.0.1:65535")
                .replace("{backend}", "http://127.0.0.1:65535"),
            closing(&Pages::default(), &verdict, Enforcement::On),
            closing(&Pages::default(), &verdict, Enforcement::Off),
        ];
        for line in texts.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn a_line_says_who_is_over() {
        let ms = Duration::from_millis;
        let mut pages = Pages::default();
        for sent in (0..5_000).step_by(10) {
            let (sent, back) = (ms(sent), ms(sent + 1));
            pages.probes.push(ProbeTrip { sent, back });
        }
        // Of stripe, which may start 20.
        pages.received.extend((0..21).map(|n| Received {
            stream: 0,
            job: n.to_string(),
            nth: n,
            at: ms(1_000 + n),
            done: Some(ms(1_000 + n)),
            acked: n > 0,
        }));
        let line = |now| {
            line(&SceneNow {
                active: 8,
                from: ms(50),
                now: ms(now),
                ..SceneNow::of(&pages, &[])
            })
        };
        assert_eq!(
            line(2_100),
            "   2 s  stripe 21/20 OVER  render 0/3  mail 0/10  free 0/s  held 7"
        );
        assert_eq!(
            line(4_100),
            "   4 s  stripe 0/20  render 0/3  mail 0/10  free 0/s  held 7"
        );
    }

    /// Whoever reads "early" beside "held" is told there that both are so.
    #[test]
    fn how_early_a_start_may_leave_stands_beside_how_early_one_did() {
        let mut verdict = verdict();
        for finding in &mut verdict.findings {
            let (early, took) = (Duration::from_micros(3_300), Duration::from_millis(97));
            (finding.held, finding.worst) = (
                true,
                Worst::Span {
                    starts: 2,
                    took,
                    early,
                },
            );
        }
        let table = closing(&Pages::default(), &verdict, Enforcement::On);
        assert!(table.contains(" 3.3 ms early, 5 allowed yes "), "{table}");
    }

    #[test]
    fn the_sentence_says_what_was_judged() {
        let mut verdict = verdict();
        assert!(sentence(&verdict, Enforcement::On).starts_with("HELD"));
        assert!(sentence(&verdict, Enforcement::Off).starts_with("No limit was broken"));
        verdict.failed = 2;
        let said = sentence(&verdict, Enforcement::On);
        assert!(
            said.starts_with("NOT JUDGED") && said.contains("2 calls"),
            "{said}"
        );
        verdict.findings[1].starts = 0;
        let said = sentence(&verdict, Enforcement::On);
        assert!(
            said.starts_with("NOT JUDGED: no job of render was"),
            "{said}"
        );
        verdict.account.lost = 1;
        assert!(sentence(&verdict, Enforcement::On).contains("LOST"));
        verdict.findings[2].held = false;
        let said = sentence(&verdict, Enforcement::On);
        assert!(said.starts_with("BREACH: mail went over"), "{said}");
        assert!(sentence(&verdict, Enforcement::Off).contains("as --break asked for"));
    }
}
