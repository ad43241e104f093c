//! What a scene is: streams of jobs, those who work on them, what is told of it, and what it has to show.

use std::fmt::{self, Display, Write};
use std::time::Duration;

use serde_json::{Value, json};

use super::records::Pages;
use crate::backend::Event;

/// Whether the sidecar enforces the limits. `--break` runs the same jobs without them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enforcement {
    /// As always.
    On,
    /// Every limit is off, so that the judge has breaches to see.
    Off,
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// One scene of the demo.
pub(super) struct SceneData {
    /// What it will show. `{sidecar}` and `{backend}` stand for their addresses.
    pub(super) intro: String,
    /// What the sidecar's config says beside its servers. `{vendor}` stands for the vendor's address.
    pub(super) config: String,
    pub(super) streams: &'static [JobStream],
    pub(super) workers: &'static [Workers],
    /// What the vendor allows in any [`VendorRecord::PERIOD`](super::records::VendorRecord::PERIOD).
    pub(super) vendor_allows: u64,
    /// Programs that call the vendor and know nothing of jobs. Without streams of jobs the sidecar has no backend.
    pub(super) callers: u64,
    /// How often a line is written.
    pub(super) step: Duration,
    pub(super) line: fn(&SceneNow<'_>) -> String,
    pub(super) verdict: fn(&SceneNow<'_>, Enforcement) -> SceneVerdict,
    /// Nothing went wrong although the limits were off: what that was.
    pub(super) unbroken: &'static str,
}

/// What there is to tell of a scene.
#[derive(Clone, Copy, Debug)]
pub(super) struct SceneNow<'a> {
    pub(super) pages: &'a Pages,
    /// The backend's ledger, once all is over.
    pub(super) ledger: &'a [Event],
    /// How many jobs of the first stream's queue are available and active, by the backend.
    pub(super) available: usize,
    pub(super) active: usize,
    /// When the workers began, and the time now.
    pub(super) from: Duration,
    pub(super) now: Duration,
}

impl SceneNow<'_> {
    /// The whole seconds since the workers began.
    pub(super) fn second(&self) -> u64 {
        self.now.saturating_sub(self.from).as_secs()
    }
}

#[cfg(test)]
impl<'a> SceneNow<'a> {
    /// The end of a run that took no time.
    pub(super) fn of(pages: &'a Pages, ledger: &'a [Event]) -> SceneNow<'a> {
        SceneNow {
            pages,
            ledger,
            available: 0,
            active: 0,
            from: Duration::ZERO,
            now: Duration::ZERO,
        }
    }
}

/// What is told at the end.
#[derive(Debug)]
pub(super) struct SceneVerdict {
    pub(super) text: String,
    /// Whether all is as it should be.
    pub(super) good: bool,
    /// Whether each limit was held, which `--break` takes away.
    pub(super) limits_held: bool,
}

/// What was to be and whether it is, and what was seen.
#[derive(Debug)]
pub(super) struct SceneFinding {
    what: String,
    is_so: bool,
    seen: String,
}

impl SceneFinding {
    pub(super) fn new(what: impl Into<String>, is_so: bool, seen: impl Display) -> SceneFinding {
        SceneFinding {
            what: what.into(),
            is_so,
            seen: seen.to_string(),
        }
    }

    /// A call that fails may hide any other fault.
    pub(super) fn no_call_failed(pages: &Pages) -> SceneFinding {
        let failed = pages.failed + pages.refused;
        SceneFinding::new("no call failed", failed == 0, failed)
    }
}

impl SceneVerdict {
    /// What the findings on the `limits` and all `others` come to, from the records of `whom`.
    pub(super) fn of(
        whom: &str,
        limits: Vec<SceneFinding>,
        others: Vec<SceneFinding>,
    ) -> SceneVerdict {
        let limits_held = limits.iter().all(|finding| finding.is_so);
        let findings = || limits.iter().chain(&others);
        let width = findings().map(|finding| finding.what.len()).max();
        let width = width.unwrap_or_default();
        let mut text = format!("\nFrom the {whom}:");
        for SceneFinding { what, is_so, seen } in findings() {
            let word = if *is_so { "yes" } else { "NO" };
            // Writing to a string cannot fail.
            let _ = write!(text, "\n  {what:width$}  {word}  ({seen})");
        }
        SceneVerdict {
            good: findings().all(|finding| finding.is_so),
            limits_held,
            text,
        }
    }
}

/// A bar of `part` of a `whole`, which says whether it is more than that.
pub(super) fn bar(part: u64, whole: u64) -> String {
    const WIDTH: u64 = 40;
    let full = (part * WIDTH / whole.max(1)).min(WIDTH);
    let full = "#".repeat(usize::try_from(full).unwrap_or_default());
    format!("{full:40}{}", if part > whole { "+" } else { "|" })
}

/// How one stream is limited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StreamLimit {
    /// At most `limit` starts in any interval of `period`.
    Rate { limit: u32, period: Duration },
    /// At most so many jobs with workers at once.
    AtOnce(u32),
    /// Starts are at least `period / limit` apart. Each job brings this limit with it.
    Spaced { limit: u32, period: Duration },
    /// Nothing.
    Free,
}

/// One stream of jobs.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobStream {
    /// Its name in the report, its rate-limit key, and the tenant of its jobs.
    pub(super) name: &'static str,
    /// The type of its jobs.
    pub(super) kind: &'static str,
    pub(super) queue: &'static str,
    pub(super) limit: StreamLimit,
    /// How many jobs are there before anything else happens.
    pub(super) first: usize,
    /// Producers. Each enqueues `batch` jobs so often while fewer than `backlog` wait, so that a long run does not
    /// pile up.
    pub(super) producers: usize,
    pub(super) batch: u64,
    pub(super) every: Duration,
    pub(super) backlog: usize,
    /// How long its jobs run, in milliseconds: the shortest and the longest.
    pub(super) runs: (u64, u64),
    /// How many calls to the vendor a job makes when it has run.
    pub(super) calls: usize,
}

impl JobStream {
    /// One producer of single jobs that take no time.
    pub(super) const PLAIN: JobStream = JobStream {
        name: "",
        kind: "",
        queue: "default",
        limit: StreamLimit::Free,
        first: 0,
        producers: 1,
        batch: 1,
        every: Duration::from_millis(100),
        backlog: usize::MAX,
        runs: (0, 0),
        calls: 0,
    };

    /// The enqueue body of its `nth` job. It says what it may cost.
    pub(super) fn job(&self, nth: u64) -> Value {
        let options = match self.limit {
            StreamLimit::Spaced { limit, period } => {
                let period = format!("PT{}S", period.as_secs_f64());
                let throttle = json!({ "limit": limit, "period": period });
                let rate_limit = json!({ "key": self.name, "throttle": throttle });
                json!({ "queue": self.queue, "rate_limit": rate_limit })
            }
            _ => json!({ "queue": self.queue }),
        };
        let meta = json!({ "tenant_id": self.name, "tokens": tokens(nth) });
        json!({ "type": self.kind, "args": [nth], "options": options, "meta": meta })
    }

    /// How long its `nth` job runs: spread over the range, and the same in every run.
    pub(super) fn run_time(&self, nth: u64) -> Duration {
        let (shortest, longest) = self.runs;
        // 37 shares no factor with the widths of the ranges, so all of them is used.
        Duration::from_millis(shortest + nth * 37 % (longest - shortest + 1))
    }
}

/// The tokens that the `nth` job of a stream may cost: each number from 10 to 100 comes as often.
pub(super) fn tokens(nth: u64) -> u64 {
    10 + nth * 37 % 91
}

/// The tokens that it uses.
pub(super) fn used(nth: u64) -> u64 {
    tokens(nth).div_ceil(2)
}

/// Workers of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workers {
    pub(super) queue: &'static str,
    pub(super) workers: u32,
    /// Jobs that each of them runs at once.
    pub(super) slots: usize,
    /// How long one sleeps after an empty reply.
    pub(super) poll: Duration,
}

impl StreamLimit {
    /// The number that its starts are counted against, if there is one.
    pub(super) fn number(self) -> Option<u32> {
        match self {
            StreamLimit::Rate { limit, .. }
            | StreamLimit::AtOnce(limit)
            | StreamLimit::Spaced { limit, .. } => Some(limit),
            StreamLimit::Free => None,
        }
    }
}

impl fmt::Display for StreamLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamLimit::Rate { limit, period } => write!(f, "{limit} in any {period:?}"),
            StreamLimit::AtOnce(limit) => write!(f, "{limit} at once"),
            StreamLimit::Spaced { limit, period } => write!(f, "1 every {:?}", *period / *limit),
            StreamLimit::Free => f.write_str("no limit"),
        }
    }
}
