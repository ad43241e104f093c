//! The judges judged: ledgers written by hand, each with one thing wrong that one check must see.

use ojs_throttle::backend::Event;

use super::prelude::*;
use crate::harness::ledger::{Claimed, Credentials, Delivery, Fetched, Produced, Records};

/// A ledger in the making; times in milliseconds.
struct Book {
    begun: Instant,
    records: Records,
    events: Vec<(u64, Event)>,
}

impl Book {
    fn new() -> Book {
        Book {
            begun: Instant::now(),
            records: Records::default(),
            events: Vec::new(),
        }
    }

    fn event(&mut self, ms: u64, kind: EventKind, job: &str) {
        let event = Event {
            kind,
            job: job.into(),
            job_type: "a.b".into(),
            queue: "q".into(),
            worker: None,
            attempt: 0,
            priority: 0,
            at: Duration::from_millis(ms),
            ran: None,
        };
        self.events.push((ms, event));
    }

    fn stored(mut self, job: &str) -> Book {
        self.event(0, EventKind::Stored, job);
        self.records.produced.push(Produced {
            id: job.into(),
            queue: "q".into(),
            labels: vec!["k".into()],
            answered: self.begun,
            status: 201,
        });
        self
    }

    fn claimed(mut self, ms: u64, job: &str) -> Book {
        self.event(ms, EventKind::Claimed, job);
        self
    }

    fn got(mut self, ms: u64, job: &str) -> Book {
        self.records.deliveries.push(Delivery {
            job: job.into(),
            worker: "w".into(),
            queue: "q".into(),
            priority: 0,
            attempt: 0,
            at: self.begun + Duration::from_millis(ms),
            shown: json!({ "state": "active" }),
            credentials: Credentials::default(),
        });
        self
    }

    fn ended(mut self, ms: u64, kind: EventKind, job: &str) -> Book {
        self.event(ms, kind, job);
        self
    }

    fn asked(mut self, from: u64, to: u64, count: usize, got: usize) -> Book {
        self.records.fetches.push(Fetched {
            worker: "w".into(),
            queues: vec!["q".into()],
            count,
            sent: self.begun + Duration::from_millis(from),
            answered: self.begun + Duration::from_millis(to),
            status: 200,
            got,
        });
        self
    }

    /// A job that was claimed and got at once and ran until `end`.
    fn ran(self, start: u64, end: u64, job: &str) -> Book {
        self.stored(job)
            .claimed(start, job)
            .got(start, job)
            .ended(end, EventKind::Acked, job)
    }

    fn judge(mut self) -> Judge {
        self.events.sort_by_key(|(ms, _)| *ms);
        let at = |ms| self.begun + Duration::from_millis(ms);
        let events = self
            .events
            .iter()
            .map(|(ms, event)| (at(*ms), event.clone()))
            .collect();
        Judge::of(self.begun, self.records, events)
    }
}

/// What a check finds wrong.
fn found(book: Book, check: impl FnOnce(&mut Judge)) -> Vec<String> {
    let mut judge = book.judge();
    check(&mut judge);
    [judge.problems, judge.late].concat()
}

#[test]
fn a_rate_is_judged_to_the_millisecond() {
    let three = |last| {
        Book::new()
            .ran(0, 1, "a")
            .ran(400, 401, "b")
            .ran(last, last + 1, "c")
    };
    let check = |judge: &mut Judge| judge.rate("k", 2, Duration::from_secs(1));
    assert!(found(three(1_000), check).is_empty());
    assert_eq!(found(three(999), check).len(), 1);
}

#[test]
fn spacing_is_judged_with_5_ms_and_over_several_starts() {
    let check = |judge: &mut Judge| judge.spacing("k", Duration::from_millis(100), 1);
    let four = |b, c, d| {
        Book::new()
            .ran(0, 1, "a")
            .ran(b, b, "b")
            .ran(c, c, "c")
            .ran(d, d, "d")
    };
    assert!(found(four(95, 195, 295), check).is_empty());
    assert_eq!(found(four(94, 200, 300), check).len(), 1);
    // Each 5 ms early, the third is 10 ms early in all.
    assert_eq!(found(four(95, 190, 300), check).len(), 1);
    let burst = |judge: &mut Judge| judge.spacing("k", Duration::from_millis(100), 3);
    assert!(found(four(0, 0, 100), burst).is_empty());
    assert_eq!(found(four(0, 0, 50), burst).len(), 1);
}

#[test]
fn slots_end_before_others_start_in_one_instant() {
    let check = |judge: &mut Judge| judge.concurrency("k", 1);
    assert!(found(Book::new().ran(0, 50, "a").ran(50, 60, "b"), check).is_empty());
    assert_eq!(
        found(Book::new().ran(0, 50, "a").ran(49, 60, "b"), check).len(),
        1
    );
}

#[test]
fn nothing_may_be_delivered_twice_or_unclaimed() {
    let twice = Book::new().ran(0, 50, "a").got(10, "a");
    assert_eq!(found(twice, |_| {}).len(), 1);
    let again = Book::new()
        .ran(0, 50, "a")
        .claimed(60, "a")
        .got(60, "a")
        .ended(70, EventKind::Acked, "a");
    assert!(found(again, |_| {}).is_empty());
    let unclaimed = Book::new().stored("a").got(5, "a");
    assert_eq!(found(unclaimed, |_| {}).len(), 1);
}

#[test]
fn more_jobs_than_asked_for_are_seen() {
    assert_eq!(found(Book::new().asked(0, 1, 2, 3), |_| {}).len(), 1);
}

#[test]
fn lost_jobs_claims_and_slots_are_seen() {
    assert!(found(Book::new().ran(0, 9, "a"), Judge::all_ended).is_empty());
    let never = Book::new().stored("a");
    assert_eq!(found(never, Judge::all_ended).len(), 1);
    let open = Book::new().stored("a").claimed(0, "a");
    assert_eq!(found(open, Judge::all_ended).len(), 2);
    let settled_alone = Book::new()
        .stored("a")
        .claimed(0, "a")
        .ended(5, EventKind::Acked, "a");
    assert_eq!(found(settled_alone, Judge::all_ended).len(), 1);
    let leak = |judge: &mut Judge| {
        judge.rows = (0, 1);
        judge.all_ended();
    };
    assert_eq!(found(Book::new().ran(0, 9, "a"), leak).len(), 1);
}

#[test]
fn a_job_that_ran_twice_is_seen() {
    let twice = Book::new()
        .stored("a")
        .claimed(0, "a")
        .got(0, "a")
        .ended(30, EventKind::Expired, "a")
        .claimed(31, "a")
        .got(31, "a")
        .ended(40, EventKind::Acked, "a");
    assert_eq!(found(twice, Judge::each_ran_once).len(), 1);
}

#[test]
fn a_slot_left_free_is_seen() {
    let check = |judge: &mut Judge| judge.conserving("k", 1, Duration::from_millis(20));
    let next_at = |ms: u64| {
        Book::new()
            .ran(0, 100, "a")
            .ran(ms, ms + 10, "b")
            .asked(50, ms, 1, 1)
    };
    assert!(found(next_at(120), check).is_empty());
    assert_eq!(found(next_at(121), check).len(), 1);
    // Nobody asked.
    let alone = Book::new()
        .ran(0, 100, "a")
        .ran(500, 510, "b")
        .asked(495, 500, 1, 1);
    assert!(found(alone, check).is_empty());
}

#[test]
fn an_unused_limit_is_seen() {
    let ten = (0..10).fold(Book::new(), |book, nth| {
        book.ran(
            1_000 + nth * 100,
            1_001 + nth * 100,
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"][nth as usize],
        )
    });
    let check = |judge: &mut Judge| judge.utilisation("k", 11.0, 1, 2, 0.95);
    assert_eq!(found(ten, check).len(), 1);
}

#[test]
fn a_job_for_other_credentials_is_seen() {
    let claims = |book: &Book| {
        let claimed = |ms, credentials| Claimed {
            job: "a".into(),
            at: book.begun + Duration::from_millis(ms),
            credentials,
        };
        // The second claim is by those who got it.
        [
            claimed(0, [Some("Bearer one".into()), None]),
            claimed(20, Credentials::default()),
        ]
    };
    let book = Book::new().ran(10, 15, "a");
    let claimed = claims(&book);
    assert_eq!(found(book, |judge| judge.never_crosses(&claimed)).len(), 1);
    let book = Book::new().ran(20, 25, "a");
    let claimed = claims(&book);
    assert!(found(book, |judge| judge.never_crosses(&claimed)).is_empty());
}
