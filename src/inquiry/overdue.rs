//! Slots whose deadline has passed: the backend is asked whether their jobs are over. In rounds of their own, one
//! at a time: held jobs get their heartbeats meanwhile, however slow the backend is.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::prove;
use super::rows::renew_rows;
use crate::desk::{Proxy, Sidecar, micros};
use crate::limit::Timestamp;
use crate::store::{Change, Claimed, Due, End, Gen, LedgerExt, Row};
use crate::told::metrics::Counted;
use crate::wire::boxed;

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
pub(crate) struct OverdueSlots(Arc<Mutex<ByClaim>>, Arc<OnceLock<()>>);

/// By job, and which claim of it.
type ByClaim = HashMap<(Arc<str>, Gen), OverdueSlot>;

/// What is known of a slot for which the backend has no answer yet.
#[derive(Clone, Copy, Default, Debug)]
struct OverdueSlot {
    /// Since when there is no answer.
    since: Option<Instant>,
    /// Its row's [`heartbeats`] then.
    heartbeats: u64,
    /// When it is looked at next.
    to: Timestamp,
    /// Since when its job is active although its time is over.
    outlives: Option<Instant>,
}

/// How often the worker of a job that is out was heard of.
fn heartbeats(row: &Row) -> u64 {
    row.due().map_or(0, Due::heartbeats)
}

/// The row is looked at again then.
fn look_later(row: &Row, until: Timestamp) -> Change {
    let due = row.due().map_or(until.into(), |due| due.moved_to(until));
    Change::until(&row.claimed, due)
}

/// Asks about these slots, unless others are being asked about: then they are due still.
pub(crate) async fn ask_about(
    proxy: &Proxy,
    rows: Vec<Row>,
    overdue: &OverdueSlots,
    stop: &CancellationToken,
) {
    if rows.is_empty() {
        return;
    }
    let Ok(mut slots) = Arc::clone(&overdue.0).try_lock_owned() else {
        // Those of siblings were leased to us, by a time that says nothing of heartbeats.
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
        let (slot, heartbeats) = (slots.entry(name(row)).or_default(), heartbeats(row));
        let is_silent = slot.heartbeats == heartbeats;
        *slot = OverdueSlot {
            since: slot.since.filter(|_| is_silent),
            heartbeats,
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
            questions.spawn(boxed::work(asked_about(proxy.clone(), row)));
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
                // The visibility of what ran before us is a guess.
                let is_known = row.claimed.generation != Gen::ADOPTED;
                if is_known && outlives.elapsed() >= NOTICED {
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
    // Who was not come to is asked first in the next round.
    let now = sidecar.store.now();
    later.extend(rows.map(|row| look_later(&row, now)));
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
    // With nobody's credentials its backend may know nothing of it.
    let answer = match proxy.sidecar.scopes.knows(of.scope) {
        true => prove::shown_active(&proxy, of).await,
        false => None,
    };
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
    if asked.heartbeats != heartbeats(&row) {
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
        sidecar.subqueues.may_be_back(claimed);
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
