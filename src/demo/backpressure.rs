//! `ojs-throttle demo backpressure`: producers are faster than their worker, and the queue stays within its bound all
//! the same. Judged from the backend's ledger.

use std::time::Duration;

use super::scene::{
    Enforcement, JobStream, SceneData, SceneFinding, SceneNow, SceneVerdict, Workers, bar,
};
use crate::backend::{Event, EventKind};

/// The bound of the queue.
const BOUND: usize = 60;

/// The worker takes two jobs each 100 ms.
const WORKERS: [Workers; 1] = [Workers {
    queue: "import",
    workers: 1,
    slots: 2,
    poll: Duration::from_millis(20),
}];

const STREAMS: [JobStream; 1] = [JobStream {
    name: "import",
    kind: "row.import",
    queue: "import",
    producers: 8,
    every: Duration::from_millis(50),
    runs: (100, 100),
    ..JobStream::PLAIN
}];

pub(super) fn scene(bound: Enforcement) -> SceneData {
    let (queue, config) = match bound {
        Enforcement::Off => ("without a bound".to_owned(), String::new()),
        Enforcement::On => (
            format!("bounded at {BOUND}"),
            format!("[[queue]]\nname = \"import\"\nmax_depth = {BOUND}"),
        ),
    };
    SceneData {
        intro: format!(
            "8 producers, one worker that takes 20 jobs a second, and a queue {queue}.\n\n \
             waiting                                            accepted  refused (429)"
        ),
        config,
        streams: &STREAMS,
        workers: &WORKERS,
        vendor_allows: 0,
        callers: 0,
        step: Duration::from_millis(500),
        line,
        verdict,
        unbroken: "the queue stayed small although it had no bound",
    }
}

fn line(seen: &SceneNow<'_>) -> String {
    let (waiting, pages) = (seen.available, seen.pages);
    let bar = bar(waiting as u64, BOUND as u64);
    let accepted = pages.enqueued.len();
    format!("{waiting:8}  {bar}  {accepted:7}  {:7}", pages.refused)
}

/// How many waited at most, and how many were stored.
fn depths(ledger: &[Event]) -> (usize, usize) {
    let (mut depth, mut most, mut stored) = (0_usize, 0, 0);
    for event in ledger {
        match event.kind {
            EventKind::Stored => {
                (depth, stored) = (depth + 1, stored + 1);
                most = most.max(depth);
            }
            // A job that comes back was let in before: the bound says nothing of it.
            EventKind::Requeued | EventKind::Expired => depth += 1,
            EventKind::Claimed => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (most, stored)
}

fn verdict(seen: &SceneNow<'_>, bound: Enforcement) -> SceneVerdict {
    let (most, stored) = depths(seen.ledger);
    let (accepted, refused) = (seen.pages.enqueued.len(), seen.pages.refused);
    let failed = seen.pages.failed;
    let held = SceneFinding::new(
        format!("never more than {BOUND} waiting"),
        most <= BOUND,
        format_args!("at most {most}"),
    );
    let mut others = vec![SceneFinding::new(
        "accepted is stored",
        stored == accepted && failed == 0,
        format_args!("{accepted} accepted, {stored} stored, {failed} answered otherwise"),
    )];
    if bound == Enforcement::On {
        // A bound that nobody reached was not seen to hold.
        let reached = refused > 0 && accepted > 0;
        let seen = format_args!("{refused} refused");
        others.push(SceneFinding::new("the bound was reached", reached, seen));
    }
    SceneVerdict::of("backend's own records", vec![held], others)
}

#[cfg(test)]
mod tests {
    use super::super::records::Pages;
    use super::*;

    #[test]
    fn where_nobody_was_refused_nothing_was_held() {
        let mut pages = Pages::default();
        let found = verdict(&SceneNow::of(&pages, &[]), Enforcement::On);
        assert!(!found.good, "{}", found.text);
        let wrong = "the bound was reached       NO  (0 refused)";
        assert!(found.text.contains(wrong), "{}", found.text);
        // With nothing stored, nobody can have been accepted.
        pages.refused = 1;
        assert!(!verdict(&SceneNow::of(&pages, &[]), Enforcement::On).good);
        assert!(verdict(&SceneNow::of(&pages, &[]), Enforcement::Off).limits_held);
    }
}
