//! Slots whose deadline has passed: the backend is asked whether their jobs are over. In rounds of their own, one
//! at a time: held jobs get their heartbeats meanwhile, however slow the backend is.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::limit::Timestamp;
use crate::metrics::Counted;
use crate::proxy::job::micros;
use crate::proxy::rows::renew_rows;
use crate::proxy::{Proxy, Sidecar, prove};
use crate::store::{Change, Claimed, End, Gen, LedgerExt, Row};

/// So many questions are on their way at once.
const AT_ONCE: usize = 32;
/// How long a round goes on asking. What it does not come to is due again.
const ROUND: Duration = Duration::from_secs(1);
/// How long siblings leave the slots of a round alone: as long as the last answer of all may take, and a little
/// more.
const TAKES: Duration = Duration::from_secs(7);
/// How often a slot is looked at that may have to end soon.
const SOON: Duration = Duration::from_secs(1);
/// How long after its next look a slot is remembered of which the backend could not be asked.
const UNASKED_FOR: Duration = Duration::from_secs(60);
/// How long backends take to notice that a claim is over.
const NOTICED: Duration = Duration::from_secs(10);

/// The slots that are asked about, or were without an answer. Locked by the round that is under way.
#[derive(Clone, Default, Debug)]
pub(super) struct Slots(Arc<Mutex<ByClaim>>, Arc<OnceLock<()>>);

/// By job, and which claim of it.
type ByClaim = HashMap<(Arc<str>, Gen), OverdueSlot>;

/// What is known of a slot for which the backend has no answer yet.
#[derive(Clone, Copy, Default, Debug)]
struct OverdueSlot {
    /// Since when there is no answer.
    since: Option<Instant>,
    /// Its row's [`words`] then.
    words: u64,
    /// When it is looked at next.
    to: Timestamp,
    /// Since when its job is active although its time is over.
    outlives: Option<Instant>,
}

/// A row's time says in its last three digits, which are less than a millisecond, how often its worker was heard
/// of: each heartbeat counts, and looks leave them as they are. So whoever looks sees whether there was one since
/// it looked last, also where a sibling has looked after that.
const WORDS: u64 = 1_000;

fn words(row: &Row) -> u64 {
    row.until.0 % WORDS
}

fn with_words(at: Timestamp, words: u64) -> Timestamp {
    Timestamp(at.0 - at.0 % WORDS + words % WORDS)
}

/// The time of a row whose worker was heard of.
pub(in crate::proxy) fn heard(row: &Row, until: Timestamp) -> Timestamp {
    with_words(until, words(row) + 1)
}

/// The row is looked at again then, and keeps its [`words`].
fn look_later(row: &Row, until: Timestamp) -> Change {
    Change::until(&row.claimed, with_words(until, words(row)))
}

/// Asks about these slots, unless others are being asked about: then they are due still.
pub(super) async fn ask_about(
    proxy: &Proxy,
    rows: Vec<Row>,
    overdue: &Slots,
    stop: &CancellationToken,
) {
    if rows.is_empty() {
        return;
    }
    let Ok(mut slots) = Arc::clone(&overdue.0).try_lock_owned() else {
        // Those of siblings were leased to us, by a time that says nothing of words.
        let now = proxy.sidecar.store.now();
        let others = rows.iter().filter(|row| !row.ours);
        let later = others.map(|row| look_later(row, now.plus(micros(SOON))));
        return renew_rows(&proxy.sidecar, later.collect()).await;
    };
    let sidecar = &proxy.sidecar;
    let (proxy, stop, said) = (proxy.clone(), stop.clone(), Arc::clone(&overdue.1));
    // Tracked, and over when the sweep is.
    let _task = sidecar.tasks.spawn(async move {
        let round = ask_round(&proxy, rows, &mut slots, &said);
        stop.run_until_cancelled(round).await;
    });
}

/// A worker is silent, and the backend keeps its job.
fn tell_outlived(claimed: &Claimed) {
    tracing::warn!(
        id = %"job_outlives_its_visibility",
        job = &*claimed.job,
        queue = &*claimed.queue,
        "a job is active although its worker was not heard of for longer than its visibility, and keeps its slots: if \
         its worker is dead, look at upstream.liveness (`ojs-throttle doctor --probe` finds out), or its backend ends \
         claims only at a FETCH"
    );
}

async fn ask_round(proxy: &Proxy, rows: Vec<Row>, slots: &mut ByClaim, said: &OnceLock<()>) {
    let sidecar = &proxy.sidecar;
    let (begun, now) = (Instant::now(), sidecar.store.now());
    slots.retain(|_, slot| now.since(slot.to) < micros(UNASKED_FOR));
    // Siblings would ask too while the backend takes its time.
    let to = now.plus(micros(TAKES));
    for row in &rows {
        let (slot, words) = (slots.entry(name(row)).or_default(), words(row));
        let is_silent = slot.words == words;
        *slot = OverdueSlot {
            since: slot.since.filter(|_| is_silent),
            words,
            to,
            outlives: slot.outlives.filter(|_| is_silent),
        };
    }
    let moved = rows.iter().map(|row| look_later(row, to)).collect();
    renew_rows(sidecar, moved).await;
    let (mut later, mut unanswered) = (Vec::new(), Vec::new());
    let mut questions = JoinSet::new();
    let mut rows = rows.into_iter();
    loop {
        while questions.len() < AT_ONCE
            && begun.elapsed() < ROUND
            && let Some(row) = rows.next()
        {
            questions.spawn(asked_about(proxy.clone(), row));
        }
        let Some(answered) = questions.join_next().await else {
            break;
        };
        match answered {
            Ok((row, Some(true))) => {
                let to = next_look(sidecar, &row);
                let slot = slots.entry(name(&row)).or_default();
                (slot.since, slot.to) = (None, to);
                let outlives = *slot.outlives.get_or_insert_with(Instant::now);
                if outlives.elapsed() >= NOTICED {
                    said.get_or_init(|| tell_outlived(&row.claimed));
                }
                later.push(look_later(&row, to));
            }
            Ok((row, Some(false))) => {
                slots.remove(&name(&row));
                reclaim(sidecar, &row.claimed).await;
            }
            Ok((row, None)) => unanswered.push(row),
            // A panic in there was logged.
            Err(_) => {}
        }
    }
    // At the end, so that between a word of the worker and this there is next to no time.
    for row in unanswered {
        if let Some((row, until)) = unasked_for(sidecar, row, slots).await {
            later.push(look_later(&row, until));
        }
    }
    renew_rows(sidecar, later).await;
}

async fn asked_about(proxy: Proxy, row: Row) -> (Row, Option<bool>) {
    let of = &row.claimed;
    let answer = prove::still_active(&proxy, of.scope, &of.job, of.attempt).await;
    (row, answer)
}

fn name(row: &Row) -> (Arc<str>, Gen) {
    (row.claimed.job.clone(), row.claimed.generation)
}

/// The backend did not say whether a slot's job is over. When to look again; `None`: the slot has ended, or
/// its worker was heard of meanwhile.
async fn unasked_for(sidecar: &Sidecar, row: Row, slots: &mut ByClaim) -> Option<(Row, Timestamp)> {
    let slot = name(&row);
    let Ok(known) = sidecar.store.row(&row.claimed.job).await else {
        // It is due again when its time passes.
        return None;
    };
    let known = known.filter(|known| name(known) == slot);
    let (Some(row), Some(asked)) = (known, slots.get_mut(&slot)) else {
        slots.remove(&slot);
        return None;
    };
    if asked.words != words(&row) {
        slots.remove(&slot);
        return None;
    }
    let since = *asked.since.get_or_insert_with(Instant::now);
    if since.elapsed() >= Duration::from_micros(row.claimed.visibility) {
        slots.remove(&slot);
        reclaim(sidecar, &row.claimed).await;
        return None;
    }
    let wait = row.claimed.visibility.min(micros(SOON));
    asked.to = sidecar.store.now().plus(wait);
    Some((row, asked.to))
}

/// The backend says that the job is over: so is its slot.
pub(super) async fn reclaim(sidecar: &Sidecar, claimed: &Claimed) {
    let ended = sidecar.end_by(&End::of_claim(claimed)).await;
    if ended.is_some() {
        sidecar.metrics.count(Counted::SlotReclaimed);
    }
}

/// Still running past its deadline happens for as long as the backend has not noticed, which is soon: a
/// look every second costs little and frees the slot in time.
fn next_look(sidecar: &Sidecar, row: &Row) -> Timestamp {
    let visibility = row.claimed.visibility;
    let wait = match sidecar.backend.worker_liveness() {
        true => visibility,
        false => visibility.min(micros(SOON)),
    };
    sidecar.store.now().plus(wait)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::claims::TestClaim as _;
    use crate::store::{Claim, Place};

    const SECOND: u64 = 1_000_000;

    fn due(until: Timestamp) -> Row {
        Row::of(Claimed::from(Claim::of("j")), Place::Out, until)
    }

    #[test]
    fn looks_of_siblings_are_no_words_of_the_worker() {
        let row = due(Timestamp(1_000 * SECOND + 998));
        let moved = |change: Change| match change {
            Change::Until { until, .. } => due(until),
            other => panic!("{other:?}"),
        };
        let looked = moved(look_later(&row, Timestamp(1_007 * SECOND + 123)));
        assert_eq!(looked.until, Timestamp(1_007 * SECOND + 998));
        let mut row = looked;
        // However often, and although a sibling looks after each.
        for _ in 0..4 {
            let before = words(&row);
            row.until = heard(&row, row.until.plus(30 * SECOND + 1));
            assert_ne!(words(&row), before);
            let after = words(&row);
            row = moved(look_later(&row, row.until.plus(7 * SECOND + 77)));
            assert_eq!(words(&row), after);
        }
        // Each of the nine is off by less than a millisecond.
        assert!(row.until.since(Timestamp(1_155 * SECOND)) < 9_000);
    }
}
