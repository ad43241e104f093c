//! The return of a store: it is told of our rows, of what was undone and of what ended, until it knows all.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::guarded::Guard;
use super::lost::Lost;
use super::state::{Notes, SAID};
use crate::{Clock, End, Gen, LedgerExt, Place, Row, StoreError};
use ojs_limit::Timestamp;

/// So many times it is told what started meanwhile before it decides all the same.
const ROUNDS: u32 = 3;
/// After an outage the backend is asked so soon about jobs that are out, in microseconds.
const SOON: u64 = 1_000_000;
/// So many ends are told in one call.
pub(super) const AT_ONCE: usize = 256;

impl Guard {
    /// Puts our rows back, until the store knows what started meanwhile too: from then on it decides. Then it is told what has
    /// ended, and nothing starts before it knows that. One at a time; who waited for another's has no need of one.
    ///
    /// Where starts go on without the store so fast that it never knows all, it decides all the same after a
    /// few rounds.
    pub(super) async fn recover(&self) -> Result<(), StoreError> {
        let failed = self.state.lock().failures.ever;
        let _one_at_a_time = self.recovering.lock().await;
        if self.state.lock().failures.ever != failed {
            // It was tried meanwhile: if each did so in turn, the last would wait for all.
            return Err(StoreError::Timeout);
        }
        let mut told = PutBack::default();
        for round in 1.. {
            let Some(mut news) = self.news(&mut told, round > ROUNDS) else {
                break;
            };
            if self.inner.siblings() > 0 {
                let soon = self.inner.now().plus(SOON);
                news.rows.iter_mut().for_each(|row| look_by(row, soon));
            }
            // By the announcement siblings see that we live, and take over what we offered: what has lapsed meanwhile must be
            // gone by then.
            let knows_lapsed = match self.tell_ended(&news.lapsed).await {
                Err(StoreError::Wiped | StoreError::Settling) => false,
                told => told.map(|()| true)?,
            };
            self.inner.announce(&news.rows).await?;
            let (times, now) = (self.inner.facts().times_wiped, self.inner.now());
            self.state.lock().note_times_wiped(times, now);
            self.tell_shuts(now).await?;
            for (job, generation) in &news.undone {
                self.back_there(job, *generation).await?;
            }
            if !knows_lapsed {
                self.tell_ended(&news.lapsed).await?;
            }
            self.tell_ended(&news.ended).await?;
        }
        Ok(())
    }

    /// Ends there what has ended, many in each call. What it has heard of need not be told again if a later call fails.
    async fn tell_ended(&self, ended: &[(Arc<str>, Gen)]) -> Result<(), StoreError> {
        for some in ended.chunks(AT_ONCE) {
            let each = some
                .iter()
                .map(|(job, claim)| End::of(job.clone(), Some(*claim)));
            self.inner.end_all(&each.collect::<Vec<_>>()).await?;
            let heard: HashSet<_> = some.iter().collect();
            (self.state.lock().untold).retain(|one| !heard.contains(&(one.job.clone(), one.claim)));
        }
        Ok(())
    }

    /// Shuts there what was shut through us, and what it does not know to be shut.
    async fn tell_shuts(&self, now: Timestamp) -> Result<(), StoreError> {
        let untold = self.state.lock().untold_shuts(now);
        for some in untold.chunks(AT_ONCE) {
            self.inner.set_all(some.to_vec()).await?;
            self.state.lock().told_shuts(some);
        }
        Ok(())
    }

    /// What the store must be told yet, and is told from here on; `None`: nothing, and it decides. `at_last`: it
    /// decides in any case.
    fn news(&self, told: &mut PutBack, at_last: bool) -> Option<ToTell> {
        let mut state = self.state.lock();
        if !state.suspect {
            return None;
        }
        // Without a loss nothing starts meanwhile, and what ends is told by itself.
        let owes = state.owes_offers && !told.offers;
        let knows_all = state.lost.is_none() && told.is_quiet && !owes;
        if !knows_all && !at_last {
            let news = told.next(&state);
            if news.is_some() {
                return news;
            }
        }
        if let Some(lost) = state.lost.take() {
            self.end_loss(&mut state, &lost, told.rows.len());
            let news = told.next(&state);
            if news.is_some() {
                return news;
            }
        }
        state
            .doubt
            .retain(|job, claim| told.undone.get(job) != Some(claim));
        (state.untold).retain(|one| !told.ended.contains(&(one.job.clone(), one.claim)));
        state.answers();
        (state.suspect, state.known) = (at_last, true);
        state.owes_offers &= !told.offers;
        state.told = Some(self.inner.now());
        if state.was_away() {
            state.returned = state.told;
        }
        if state.said.is_none_or(|said| said.elapsed() >= SAID) {
            state.said = Some(Instant::now());
            let rows = told.rows.len();
            tracing::info!(
                rows,
                "a call to the store failed: it was told again of our jobs and of the last ends"
            );
        }
        // Of what ended unheard nobody was told; and what may start is another question now.
        self.turned.notify_one();
        None
    }

    /// The store decides from here on.
    fn end_loss(&self, state: &mut Notes, lost: &Lost, rows: usize) {
        self.alone.store(None);
        state.failures.takes = 0;
        state.away = true;
        state.siblings = lost.sidecars.saturating_sub(1) as usize;
        let clock = Clock::new(self.inner.now().0);
        state.counted = Some(lost.local.emptied(clock));
        if state.losses.end() {
            let ended = state.untold.len();
            tracing::info!(rows, ended, "the store is back");
        }
        // The line says too that the store was told again.
        state.said = Some(Instant::now());
    }

    /// Before something starts, the store must know what it may have forgotten.
    pub(super) async fn make_sure(&self) -> Result<(), StoreError> {
        // The second time for what the first left.
        for _ in 0..2 {
            if self.state.lock().suspect {
                self.recover().await?;
            }
        }
        Ok(())
    }
}

/// A sibling may have settled the job while neither of us reached the store: the backend is asked at this time, and the
/// slot ends if it does.
fn look_by(row: &mut Row, soon: Timestamp) {
    if let Place::Out(due) = &mut row.place
        && due.at() > soon
    {
        *due = due.moved_to(soon);
    }
}

/// What the store was told since it can be asked again.
#[derive(Default, Debug)]
struct PutBack {
    /// It was told something, if only that we are here.
    any: bool,
    /// What it was told last put no row back.
    is_quiet: bool,
    /// It was told of what we offer.
    offers: bool,
    rows: HashMap<Arc<str>, Gen>,
    undone: HashMap<Arc<str>, Gen>,
    ended: HashSet<(Arc<str>, Gen)>,
}

/// What it is told next, in this order.
#[derive(Default, Debug)]
struct ToTell {
    /// What was not out through us and has ended, as offers have.
    lapsed: Vec<(Arc<str>, Gen)>,
    rows: Vec<Row>,
    undone: Vec<(Arc<str>, Gen)>,
    /// What was out and has ended. It is not told while the store is lost: another job may take such a slot here in that moment.
    /// The store does not know of that job, and a sibling would find the slot free.
    ended: Vec<(Arc<str>, Gen)>,
}

impl PutBack {
    /// What is not told yet; `None`: nothing.
    fn next(&mut self, state: &Notes) -> Option<ToTell> {
        let mut news = ToTell::default();
        self.offers |= state.owes_offers;
        let own = state.own.iter();
        for (job, row) in own.filter(|(_, row)| row.is_out() || state.owes_offers) {
            let claim = row.claimed.generation;
            if self.rows.insert(job.clone(), claim) != Some(claim) {
                news.rows.push(row.clone());
            }
        }
        let is_lost = state.lost.is_some();
        // What is ours no more ended while it was put back.
        let is_gone = |job: &Arc<str>| !is_lost && !state.own.contains_key(job);
        let gone = self.rows.extract_if(|job, _| is_gone(job));
        news.ended.extend(gone);
        for (job, claim) in &state.doubt {
            // One of those that went out since is no longer in doubt.
            let is_out = state.out(job).is_some();
            if self.undone.insert(job.clone(), *claim) != Some(*claim) && !is_out {
                news.undone.push((job.clone(), *claim));
            }
        }
        for one in state.untold.iter().filter(|one| !is_lost || !one.was_out) {
            let claim = (one.job.clone(), one.claim);
            if self.ended.insert(claim.clone()) {
                let list = match one.was_out {
                    true => &mut news.ended,
                    false => &mut news.lapsed,
                };
                list.push(claim);
            }
        }
        let is_first = !std::mem::replace(&mut self.any, true);
        self.is_quiet = news.rows.is_empty() && news.undone.is_empty();
        let has_ends = !news.lapsed.is_empty() || !news.ended.is_empty();
        (is_first || !self.is_quiet || has_ends).then_some(news)
    }
}
