//! How the store is asked, what it says of the store when that fails, and what answers then.

use std::sync::Arc;

use tokio::time::Instant;

use super::guarded::Guard;
use super::lost::Lost;
use super::mode::OnStoreError;
use super::state::Untold;
use crate::{Claimed, Gen, LedgerExt, StoreError, Taken};

/// So many failures in a row are a loss.
const FAILURES: u32 = 2;

/// Whether a call that failed so may have been done, or is to be done when the store is back.
fn may_be_done(error: &StoreError) -> bool {
    !matches!(error, StoreError::Settling | StoreError::Unfit(_))
}

impl Guard {
    /// Notes how a call to the store ended, before which so many had `failed`, and says what answers from now on
    /// if it is lost.
    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>, failed: u64) -> Option<Arc<Lost>> {
        let mut state = self.state.lock();
        let error = match answer {
            Ok(_) | Err(StoreError::Settling) => {
                state.answers();
                state.known = true;
                return None;
            }
            // It answers: it is told of our rows, and nothing starts before.
            Err(StoreError::Wiped) => {
                state.answers();
                state.has_forgotten(self.inner.now());
                return None;
            }
            // It answers, and nothing was done.
            Err(StoreError::Unfit(_)) => {
                state.answers();
                return None;
            }
            Err(error) => error,
        };
        // Calls that were under way together have failed together, as when a connection is cut.
        if state.failures.ever == failed {
            state.failures.in_a_row += 1;
            state.failures.ever += 1;
        }
        state.suspect = true;
        state.failures.since.get_or_insert_with(Instant::now);
        if state.lost.is_none() && state.failures.in_a_row.max(state.failures.takes) >= FAILURES {
            let (mode, declared) = match state.known {
                true => (self.mode, Some(Arc::clone(&self.declared))),
                // What others do is not known.
                false => (OnStoreError::Closed, None),
            };
            // Those that went on with a part of their own may not have come back yet.
            let least = match self.is_filling(&state) {
                true => state.siblings,
                false => 0,
            };
            let lost = Lost::new(
                &*self.inner,
                least,
                state.counted.as_ref(),
                state.own.values(),
                state.shuts(self.inner.now()),
                mode,
                declared,
            );
            state.losses.begin();
            state.log_loss(&lost, error);
            self.alone.store(Some(Arc::new(lost.clock.clone())));
            state.lost = Some(Arc::new(lost));
            self.turned.notify_one();
        }
        state.lost.clone()
    }

    /// Asks the store, or what answers for it.
    pub(super) async fn ask<T>(
        &self,
        there: impl Future<Output = Result<T, StoreError>>,
        here: impl AsyncFnOnce(&Lost) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (lost, failed) = {
            let state = self.state.lock();
            (state.lost.clone(), state.failures.ever)
        };
        let lost = match lost {
            Some(lost) => lost,
            None => {
                let answer = there.await;
                let Some(lost) = self.note(&answer, failed) else {
                    return answer;
                };
                lost
            }
        };
        let answer = here(&lost).await;
        let mut state = self.state.lock();
        if state.lost.is_none() {
            // It is back since, and was not told of this.
            state.suspect = true;
        }
        answer
    }

    async fn take_there(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        self.make_sure().await?;
        let doubtful: Vec<(Arc<str>, Gen)> = {
            let state = self.state.lock();
            let known = asks
                .iter()
                .filter_map(|ask| state.doubt.get_key_value(&ask.job));
            known.map(|(job, claim)| (job.clone(), *claim)).collect()
        };
        for (job, generation) in doubtful {
            self.back_there(&job, generation).await?;
        }
        match self.inner.take(asks, want).await {
            Err(StoreError::Wiped) => {
                self.state.lock().has_forgotten(self.inner.now());
                self.make_sure().await?;
                self.inner.take(asks, want).await
            }
            answer => answer,
        }
    }

    /// Tells the store that a start did not happen, so that it is in doubt no longer. What it cannot keep stands
    /// nowhere in it.
    pub(super) async fn back_there(&self, job: &str, generation: Gen) -> Result<(), StoreError> {
        match self.inner.back(job, generation).await {
            Ok(_) | Err(StoreError::Unfit(_)) => {}
            Err(error) => return Err(error),
        }
        self.state.lock().is_sure(job, generation);
        Ok(())
    }

    pub(super) async fn take_guarded(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Taken, StoreError> {
        let there = async {
            let failed = self.state.lock().failures.ever;
            let answer = self.take_there(asks, want).await;
            let mut state = self.state.lock();
            state.took_there(&answer, failed);
            // Who only names claims starts none.
            if want > 0 && answer.as_ref().is_err_and(may_be_done) {
                let claims = asks.iter().map(|ask| (ask.job.clone(), ask.generation));
                state.doubt.extend(claims);
            }
            answer
        };
        let mut is_alone = false;
        let here = async |lost: &Lost| {
            is_alone = true;
            lost.take(asks, want).await
        };
        let taken = self.ask(there, here).await;
        let mut state = self.state.lock();
        if taken.as_ref().is_err_and(may_be_done) {
            asks.iter().for_each(|ask| state.unheard(ask));
        }
        let taken = taken?;
        for row in &taken.ended {
            state.is_over(&row.claimed.job, row.claimed.generation);
            if is_alone {
                state.is_untold(Untold::of(row));
            }
        }
        // What starts without the store is counted by what answers for it.
        let counts = !is_alone && self.inner.facts().was_alone;
        for (ask, verdict) in asks.iter().zip(&taken.verdicts) {
            state.took(ask, verdict, counts);
        }
        Ok(taken)
    }
}
