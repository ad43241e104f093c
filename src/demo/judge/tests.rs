use std::sync::Arc;

use super::super::records::ProbeTrip;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A start seen at `seen` that may have been made 5 ms before, of a job that runs 10 ms.
fn start(seen: u64) -> Start {
    Start {
        weight: 1,
        made: ms(seen.saturating_sub(5)),
        seen: ms(seen),
        done: Some(ms(seen + 10)),
    }
}

fn row(times: impl IntoIterator<Item = u64>) -> Vec<Start> {
    times.into_iter().map(start).collect()
}

fn rate(limit: u32) -> StreamLimit {
    StreamLimit::Rate {
        limit,
        period: SECOND,
    }
}

fn span(starts: usize, took: u64, early: u64) -> Worst {
    Worst::Span {
        starts,
        took: ms(took),
        early: ms(early),
    }
}

const TENTHS: StreamLimit = StreamLimit::Spaced {
    limit: 10,
    period: SECOND,
};

fn judged(limit: StreamLimit, starts: &[Start]) -> StreamFinding {
    judge(limit, starts, Duration::ZERO, Duration::from_secs(4))
}

#[test]
fn a_window_is_looked_for_wherever_it_begins() {
    // Three in each second of the clock, five around its turn.
    let starts = row([100, 980, 990, 1_010, 1_020, 1_030, 1_900]);
    let found = judged(rate(4), &starts);
    assert_eq!((found.worst, found.held), (Worst::Window(6), false));
    assert!(judged(rate(6), &starts).held);
}

#[test]
fn one_start_too_many_is_a_breach_and_a_start_at_the_end_of_the_window_is_not() {
    let mut times: Vec<u64> = (0..20).map(|n| n * 10).collect();
    times.push(1_000);
    assert!(judged(rate(20), &row(times.iter().copied())).held);
    *times.last_mut().unwrap() = 994;
    let found = judged(rate(20), &row(times));
    assert_eq!((found.worst, found.held), (Worst::Window(21), false));
}

#[test]
fn a_slow_delivery_explains_as_much_as_the_probe_measured_and_no_more() {
    // The first is seen 300 ms late, so the second follows it by 700 ms only.
    let mut starts = row([1_300, 2_000]);
    assert!(!judged(rate(1), &starts).held);
    starts[0].made = ms(1_000);
    assert!(judged(rate(1), &starts).held);
    starts[1].seen = ms(1_999);
    assert!(!judged(rate(1), &starts).held);
}

#[test]
fn jobs_overlap_from_when_they_are_seen_to_when_they_are_done() {
    let job = |from, to: Option<u64>| Start {
        done: to.map(ms),
        ..start(from)
    };
    let starts = [
        job(0, Some(100)),
        job(50, Some(150)),
        job(100, Some(200)),
        job(150, None),
    ];
    let found = judged(StreamLimit::AtOnce(2), &starts);
    assert_eq!((found.worst, found.held), (Worst::AtOnce(2), true));
    let found = judged(StreamLimit::AtOnce(1), &starts);
    assert!(!found.held);
    // 100 + 100 + 100 ms and one that never ended: 3,850 ms, of 4,000.
    assert!((found.used - 4.15 / 4.0).abs() < 1e-9, "{}", found.used);
}

#[test]
fn spacing_is_judged_over_every_row_of_starts() {
    let even = judged(TENTHS, &row((0..30).map(|n| n * 100)));
    assert!(even.held, "{even:?}");
    assert!((even.used - 0.75).abs() < 1e-9, "{}", even.used);
    // 5 ms early is allowed, and the delivery may have taken another 5.
    assert!(judged(TENTHS, &row([10, 110, 200, 310])).held);
    let early = judged(TENTHS, &row([10, 110, 195, 310]));
    assert_eq!((early.worst, early.held), (span(2, 85, 10), false));
    // Each gap is nearly right, all of them together are not.
    let creeping = judged(TENTHS, &row((1..30).map(|n| n * 98)));
    assert_eq!(
        (creeping.worst, creeping.held),
        (span(29, 28 * 98, 28 * 2 - 5), false)
    );
}

#[test]
fn what_came_late_does_not_make_the_next_ones_early() {
    // A stall from 200 to 480 ms: three starts are seen at its end, then the row goes on.
    let mut pages = Pages::default();
    let seen = [0, 100, 480, 480, 480, 500, 600];
    for (nth, at) in seen.into_iter().enumerate() {
        pages.received.push(received(&nth.to_string(), ms(at)));
    }
    for sent in (0..70)
        .map(|n| n * 10)
        .filter(|sent| !(200..480).contains(sent))
    {
        let (sent, back) = (ms(sent), ms(sent + 1));
        pages.probes.push(ProbeTrip { sent, back });
    }
    let found = judged(TENTHS, &starts(&pages, 2));
    assert!(found.held, "{found:?}");
    // Probes that were quick meanwhile prove that there was no stall.
    for sent in (200..480).step_by(10) {
        let (sent, back) = (ms(sent), ms(sent + 1));
        pages.probes.push(ProbeTrip { sent, back });
    }
    pages.probes.sort_by_key(|probe| probe.back);
    assert!(!judged(TENTHS, &starts(&pages, 2)).held);
}

#[test]
fn no_starts_break_nothing() {
    for stream in STREAMS {
        assert!(judged(stream.limit, &[]).held);
    }
}

fn received(job: &str, at: Duration) -> Received {
    Received {
        stream: 2,
        job: job.into(),
        nth: 0,
        at,
        done: Some(at + ms(10)),
        acked: true,
    }
}

fn event(kind: EventKind, job: &str) -> Event {
    Event {
        kind,
        job: Arc::from(job),
        job_type: Arc::from("mail.send"),
        queue: Arc::from("default"),
        worker: None,
        attempt: 0,
        priority: 0,
        at: Duration::ZERO,
        ran: None,
    }
}

/// Three jobs were enqueued; the first two were received and acknowledged.
fn a_run() -> (Pages, Vec<Event>) {
    let mut pages = Pages::default();
    let mut ledger = Vec::new();
    for job in ["a", "b", "c"] {
        pages.enqueued.insert(job.into(), (2, Duration::ZERO));
        ledger.push(event(EventKind::Stored, job));
        ledger.push(event(EventKind::Claimed, job));
    }
    for job in ["a", "b"] {
        pages.received.push(received(job, ms(1)));
        ledger.push(event(EventKind::Acked, job));
    }
    ledger.push(event(EventKind::Requeued, "c"));
    (pages, ledger)
}

#[test]
fn every_job_is_completed_or_left() {
    let (pages, ledger) = a_run();
    let sums = account(&pages, &ledger, 1);
    let expected = Account {
        enqueued: 3,
        stored: 3,
        received: 2,
        completed: 2,
        left: 1,
        ..Account::default()
    };
    assert_eq!(sums, expected);
    assert!(sums.right());
    assert!(!account(&pages, &ledger, 0).right(), "one is nowhere");
}

#[test]
fn a_lost_job_is_seen_whichever_way_it_went() {
    let (mut pages, mut ledger) = a_run();
    ledger.push(event(EventKind::Discarded, "c"));
    assert_eq!(account(&pages, &ledger, 1).lost, 1, "thrown away");
    pages.enqueued.insert("d".into(), (2, Duration::ZERO));
    assert_eq!(account(&pages, &ledger, 1).lost, 2, "201 without storing");
    pages.received.push(received("d", ms(2)));
    assert_eq!(account(&pages, &ledger, 1).lost, 2, "the same job");
    ledger.retain(|event| event.kind != EventKind::Acked || &*event.job != "a");
    assert_eq!(
        account(&pages, &ledger, 1).lost,
        3,
        "an ACK that did not arrive"
    );
}

#[test]
fn a_job_handed_out_or_completed_twice_is_doubled() {
    let (mut pages, mut ledger) = a_run();
    pages.received.push(received("a", ms(9)));
    assert_eq!(account(&pages, &ledger, 1).doubled, 1);
    ledger.push(event(EventKind::Acked, "b"));
    ledger.push(event(EventKind::Expired, "c"));
    let sums = account(&pages, &ledger, 1);
    assert_eq!((sums.doubled, sums.lapsed, sums.right()), (2, 1, false));
}

/// The verdict on a run of a second, after which so many jobs are left in the backend.
fn judgement(pages: &Pages, ledger: &[Event], left: usize) -> Judgement {
    Judgement::of(&SceneNow {
        available: left,
        now: SECOND,
        ..SceneNow::of(pages, ledger)
    })
}

#[test]
fn a_verdict_needs_both_limits_and_sums() {
    let (pages, ledger) = a_run();
    // Two mails at the same moment.
    let verdict = judgement(&pages, &ledger, 1);
    assert!(!verdict.limits_held() && verdict.account.right() && !verdict.held());
    // One of each, one after the other.
    let mut pages = Pages::default();
    let mut ledger = Vec::new();
    for (stream, job) in ["a", "b", "c", "d"].into_iter().enumerate() {
        pages.enqueued.insert(job.into(), (stream, Duration::ZERO));
        ledger.push(event(EventKind::Stored, job));
        ledger.push(event(EventKind::Acked, job));
        pages.received.push(Received {
            stream,
            ..received(job, ms(1))
        });
    }
    assert!(judgement(&pages, &ledger, 0).held());
    let verdict = judgement(&pages, &ledger, 1);
    assert!(verdict.limits_held() && !verdict.held());
    pages.failed = 1;
    assert!(!judgement(&pages, &ledger, 0).held());
}

#[test]
fn where_nothing_ran_nothing_was_held() {
    let verdict = judgement(&Pages::default(), &[], 0);
    assert_eq!(verdict.idle(), ["stripe", "render", "mail"]);
    assert!(verdict.limits_held() && !verdict.held());
}

#[test]
fn what_a_stall_kept_longer_than_the_period_counts_nowhere() {
    let late = |made, seen| Start {
        made: ms(made),
        ..start(seen)
    };
    let starts = [late(0, 3_000), late(4_000, 4_000)];
    let found = judged(rate(1), &starts);
    assert_eq!((found.worst, found.held), (Worst::Window(1), true));
    // Nor does it hide one too many after it.
    let starts = [late(0, 3_000), late(4_000, 4_000), late(4_500, 4_500)];
    assert!(!judged(rate(1), &starts).held);
}

#[test]
fn tokens_are_counted_as_starts_are() {
    let paid = |made, seen| Start {
        weight: 1_000,
        made: ms(made),
        ..start(seen)
    };
    // The first may have been made at once, so they may be a second apart.
    assert_eq!(most(rate(1), &[paid(0, 900), paid(990, 1_000)]), 1_000);
    assert_eq!(most(rate(1), &[paid(0, 900), paid(990, 999)]), 2_000);
}
