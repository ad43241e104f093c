//! Judges a run from what workers and backend wrote down. It knows nothing of the sidecar and does no I/O.
//!
//! A start is seen by the worker some time after it was made. Each [`Start`] therefore has two
//! times, the earliest that it may have been made and when it was seen, and a limit counts as
//! broken only if it was broken wherever in between the starts were made. So a slow delivery never
//! looks like a breach, and a breach hides only if it is smaller than that uncertainty.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::records::{Pages, Received};
use super::scene::{SceneNow, StreamLimit, used};
use super::streams::STREAMS;
use crate::backend::{Event, EventKind};

/// How much earlier than evenly spaced a start may be made by the promise.
pub(super) const EARLY: Duration = Duration::from_millis(5);

/// One start of one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// What it counts against a limit.
    pub(super) weight: u32,
    /// The earliest that it may have been made.
    pub(super) made: Duration,
    /// When its worker had it.
    pub(super) seen: Duration,
    /// When its worker began to say that it is done.
    pub(super) done: Option<Duration>,
}

/// The verdict on one stream's limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct StreamFinding {
    /// Starts in all.
    pub(super) starts: usize,
    /// The worst moment.
    pub(super) worst: Worst,
    /// Whether the limit was held throughout.
    pub(super) held: bool,
    /// The used part of the limit, averaged over the time with work: 1 is all of it.
    pub(super) used: f64,
}

/// The worst moment of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Worst {
    /// The most starts in any interval of the period.
    Window(u32),
    /// The most jobs with workers at once.
    AtOnce(u32),
    /// The starts in a row that were the furthest ahead of an even spacing.
    Span {
        /// The number of these starts.
        starts: usize,
        /// The time that they took.
        took: Duration,
        /// How much too early that certainly is; zero if they were not.
        early: Duration,
    },
    /// There is no limit to be near.
    Nothing,
}

/// The count of all jobs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Account {
    /// Jobs that producers got a 201 for.
    pub(super) enqueued: usize,
    /// Jobs that the backend stored.
    pub(super) stored: usize,
    /// Jobs that workers received.
    pub(super) received: usize,
    /// Jobs that the backend has as completed.
    pub(super) completed: usize,
    /// Jobs in the backend that are not completed yet.
    pub(super) left: usize,
    /// Jobs that a producer or a worker was told are safe, and that the backend does not have so.
    pub(super) lost: usize,
    /// Jobs that were received twice, or completed twice.
    pub(super) doubled: usize,
    /// Claims that ran out because nobody kept them alive.
    pub(super) lapsed: usize,
}

impl Account {
    /// Whether nothing was lost or doubled and the sums are right.
    pub(super) fn right(&self) -> bool {
        self.lost == 0 && self.doubled == 0 && self.stored == self.completed + self.left
    }
}

/// The starts of one stream, from the workers' records.
pub(super) fn starts(pages: &Pages, stream: usize) -> Vec<Start> {
    let of_stream = pages.received.iter().filter(|job| job.stream == stream);
    starts_of(pages, of_stream, |_| 1)
}

/// All starts, each with the tokens that it used.
pub(super) fn paid_starts(pages: &Pages) -> Vec<Start> {
    let tokens = |job: &Received| u32::try_from(used(job.nth)).unwrap_or(u32::MAX);
    starts_of(pages, pages.received.iter(), tokens)
}

fn starts_of<'a>(
    pages: &Pages,
    jobs: impl Iterator<Item = &'a Received>,
    weight: impl Fn(&Received) -> u32,
) -> Vec<Start> {
    let start = |job: &Received| Start {
        weight: weight(job),
        made: pages.made(job.at),
        seen: job.at,
        done: job.done,
    };
    let mut starts: Vec<Start> = jobs.map(start).collect();
    starts.sort_by_key(|start| start.seen);
    // A start may have been made as early as any start that was seen after it. So `made` never goes back, and any row
    // of starts begins with its earliest.
    let mut least = Duration::MAX;
    for start in starts.iter_mut().rev() {
        least = least.min(start.made);
        start.made = least;
    }
    starts
}

/// Until when a start certainly counts against its limit; without a limit it is one second, so that
/// starts can be counted all the same.
pub(super) fn counts_until(limit: StreamLimit, start: &Start) -> Duration {
    match limit {
        StreamLimit::Rate { period, .. } => start.made + period,
        StreamLimit::AtOnce(_) => start.done.unwrap_or(Duration::MAX),
        StreamLimit::Spaced { period, .. } => (start.made + period).saturating_sub(EARLY),
        StreamLimit::Free => start.seen + Duration::from_secs(1),
    }
}

/// Judges the starts of a stream, sorted by `seen` with `made` not going back; there was work for
/// it `from` .. `until`.
pub(super) fn judge(
    rule: StreamLimit,
    starts: &[Start],
    from: Duration,
    until: Duration,
) -> StreamFinding {
    let (worst, held, used) = match rule {
        StreamLimit::Rate { limit, period } => {
            let most = most(rule, starts);
            let used = occupied(starts, from, until, |start| start.seen + period);
            (Worst::Window(most), most <= limit, used / f64::from(limit))
        }
        StreamLimit::AtOnce(limit) => {
            // With its worker until before the ACK is sent, which lies within what is limited.
            let most = most(rule, starts);
            let used = occupied(starts, from, until, |start| start.done.unwrap_or(until));
            (Worst::AtOnce(most), most <= limit, used / f64::from(limit))
        }
        StreamLimit::Spaced { limit, period } => {
            let step = period / limit;
            let (worst, ahead) = furthest_ahead(starts, step);
            let used = occupied(starts, from, until, |start| start.seen + step);
            (worst, ahead <= nanos(EARLY), used)
        }
        StreamLimit::Free => (Worst::Nothing, true, 0.0),
    };
    StreamFinding {
        starts: starts.len(),
        worst,
        held,
        used,
    }
}

/// What counts against a limit, from each moment at which that changes. A start that was seen only when it may have
/// stopped counting, as after a stall, counts nowhere.
pub(super) fn counts(rule: StreamLimit, starts: &[Start]) -> Vec<(Duration, u32)> {
    let mut changes: Vec<(Duration, i64)> = Vec::with_capacity(2 * starts.len());
    for start in starts {
        let (end, weight) = (counts_until(rule, start), i64::from(start.weight));
        if end > start.seen {
            changes.extend([(start.seen, weight), (end, -weight)]);
        }
    }
    // At one moment ends come first.
    changes.sort_unstable();
    let mut count = 0;
    let counted = changes.into_iter().map(|(at, change)| {
        count += change;
        (at, u32::try_from(count).unwrap_or_default())
    });
    counted.collect()
}

/// The most that counts at one moment.
pub(super) fn most(rule: StreamLimit, starts: &[Start]) -> u32 {
    let counts = counts(rule, starts).into_iter();
    counts.map(|(_, count)| count).max().unwrap_or_default()
}

/// The starts in a row that were certainly the furthest ahead of one start every `step`, and how
/// far that was in nanoseconds; below zero they were behind.
fn furthest_ahead(starts: &[Start], step: Duration) -> (Worst, i128) {
    let mut worst = (Worst::Nothing, i128::MIN);
    // The start so far that was made latest against its turn.
    let mut latest: Option<(usize, Start)> = None;
    let mut turn = Duration::ZERO;
    let mut most_behind = i128::MIN;
    for (nth, start) in starts.iter().enumerate() {
        if let Some((first, begin)) = latest {
            let ahead = most_behind - (nanos(start.seen) - nanos(turn));
            if ahead > worst.1 {
                let span = Worst::Span {
                    starts: nth - first + 1,
                    took: start.seen.saturating_sub(begin.seen),
                    early: Duration::from_nanos(u64::try_from(ahead).unwrap_or_default()),
                };
                worst = (span, ahead);
            }
        }
        let behind = nanos(start.made) - nanos(turn);
        if behind >= most_behind {
            (latest, most_behind) = (Some((nth, *start)), behind);
        }
        turn += step;
    }
    worst
}

fn nanos(time: Duration) -> i128 {
    i128::try_from(time.as_nanos()).unwrap_or(i128::MAX)
}

/// How many starts occupied their place, on average over `from` .. `until`.
fn occupied(
    starts: &[Start],
    from: Duration,
    until: Duration,
    end: impl Fn(&Start) -> Duration,
) -> f64 {
    let clip = |at: Duration| at.clamp(from, until.max(from));
    let taken: Duration = starts
        .iter()
        .map(|start| clip(end(start)).saturating_sub(clip(start.seen)))
        .sum();
    let whole = until.saturating_sub(from).as_secs_f64();
    if whole > 0.0 {
        taken.as_secs_f64() / whole
    } else {
        0.0
    }
}

/// Compares what producers and workers were told with the backend's ledger; `left` is how many
/// jobs the backend says it has that are not completed.
pub(super) fn account(pages: &Pages, ledger: &[Event], left: usize) -> Account {
    let (mut stored, mut gone) = (HashSet::new(), HashSet::new());
    let mut completions: HashMap<&str, usize> = HashMap::new();
    let mut lapsed = 0;
    for event in ledger {
        match event.kind {
            EventKind::Stored => drop(stored.insert(&*event.job)),
            EventKind::Acked => *completions.entry(&*event.job).or_default() += 1,
            EventKind::Discarded | EventKind::Cancelled => drop(gone.insert(&*event.job)),
            EventKind::Expired => lapsed += 1,
            EventKind::Claimed
            | EventKind::Nacked
            | EventKind::Requeued
            | EventKind::Extended
            | EventKind::Promoted
            | EventKind::Revived => {}
        }
    }
    let mut receipts: HashMap<&str, usize> = HashMap::new();
    for job in &pages.received {
        *receipts.entry(&*job.job).or_default() += 1;
    }
    let safe = pages.enqueued.keys().map(String::as_str);
    let unsafe_jobs = safe.filter(|id| !stored.contains(id) || gone.contains(id));
    let jobs = pages.received.iter();
    let done = jobs.filter(|job| job.acked).map(|job| &*job.job);
    let undone = done.filter(|id| !completions.contains_key(id));
    let lost: HashSet<&str> = unsafe_jobs.chain(undone).collect();
    let counts = receipts.iter().chain(&completions);
    let twice = counts.filter(|(_, count)| **count > 1);
    let doubled: HashSet<&str> = twice.map(|(id, _)| *id).collect();
    Account {
        enqueued: pages.enqueued.len(),
        stored: stored.len(),
        received: pages.received.len(),
        completed: completions.len(),
        left,
        lost: lost.len(),
        doubled: doubled.len(),
        lapsed,
    }
}

/// The times from the producer's 201 to the worker, of one stream, in the order of the starts.
pub(super) fn waits(pages: &Pages, stream: usize) -> Vec<Duration> {
    let of_stream = pages.received.iter().filter(|job| job.stream == stream);
    of_stream
        .filter_map(|job| Some(job.at.saturating_sub(pages.enqueued.get(&job.job)?.1)))
        .collect()
}

/// How long before they were seen starts of limited streams may have been made: the median and the
/// longest.
pub(super) fn blur(pages: &Pages) -> (Duration, Duration) {
    let limited = |stream: &usize| {
        STREAMS
            .get(*stream)
            .is_some_and(|s| s.limit != StreamLimit::Free)
    };
    let mut blurs: Vec<Duration> = (0..STREAMS.len())
        .filter(limited)
        .flat_map(|stream| starts(pages, stream))
        .map(|start| start.seen.saturating_sub(start.made))
        .collect();
    median_and_longest(&mut blurs)
}

/// The median and the longest.
pub(super) fn median_and_longest(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    (median, times.last().copied().unwrap_or_default())
}

/// The verdict on a whole run.
#[derive(Clone, Debug)]
pub(super) struct Judgement {
    /// Per stream, in their order.
    pub(super) findings: Vec<StreamFinding>,
    /// Every job.
    pub(super) account: Account,
    /// Calls that failed.
    pub(super) failed: usize,
}

impl Judgement {
    /// Judges a whole run, in which there was work for all from its beginning to its end.
    pub(super) fn of(seen: &SceneNow<'_>) -> Judgement {
        let streams = STREAMS.iter().enumerate();
        let findings = streams.map(|(stream, kind)| {
            let starts = starts(seen.pages, stream);
            judge(kind.limit, &starts, seen.from, seen.now)
        });
        Judgement {
            findings: findings.collect(),
            account: account(seen.pages, seen.ledger, seen.available + seen.active),
            failed: seen.pages.failed + seen.pages.refused,
        }
    }

    /// Whether every limit was held.
    pub(super) fn limits_held(&self) -> bool {
        self.findings.iter().all(|finding| finding.held)
    }

    /// The limited streams of which nothing was started: nothing can be said of their limits.
    pub(super) fn idle(&self) -> Vec<&'static str> {
        let streams = STREAMS.iter().zip(&self.findings);
        let idle = streams
            .filter(|(stream, found)| stream.limit != StreamLimit::Free && found.starts == 0);
        idle.map(|(stream, _)| stream.name).collect()
    }

    /// Whether all that is limited was at work, and there is nothing to complain of.
    pub(super) fn held(&self) -> bool {
        self.limits_held() && self.account.right() && self.idle().is_empty() && self.failed == 0
    }
}

#[cfg(test)]
mod tests;
