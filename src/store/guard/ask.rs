//! How the store is asked, what it says of the store when that fails, and what answers then.

use std::sync::Arc;

use tokio::time::Instant;

use super::lost::Lost;
use super::{Guard, OnStoreError, is_unfit};
use crate::store::{Claimed, Gen, StoreError, Verdict};

/// So many failures in a row are a loss.
const FAILURES: u32 = 2;

impl Guard {
    /// Notes how a call to the store ended, before which so many had `failed`, and says what answers from now on
    /// if it is lost.
    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>, failed: u64) -> Option<Arc<Lost>> {
        let mut state = self.state();
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
        if state.failed == failed {
            state.failures += 1;
            state.failed += 1;
        }
        state.suspect = true;
        state.failing.get_or_insert_with(Instant::now);
        if state.lost.is_none() && state.failures.max(state.takes_failed) >= FAILURES {
            let (mode, declared) = match state.known {
                true => (self.mode, Some(Arc::clone(&self.declared))),
                // What others do is not known.
                false => (OnStoreError::Closed, None),
            };
            let lost = Lost::new(&*self.inner, &state, mode, declared);
            match state.known {
                true => lost.tell(error),
                false => tracing::error!(
                    %error,
                    "the store has not answered since the start: nothing that is limited starts before it does, \
                     whatever on_store_error says"
                ),
            }
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
            let state = self.state();
            (state.lost.clone(), state.failed)
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
        let mut state = self.state();
        if state.lost.is_none() {
            // It is back since, and was not told of this.
            state.suspect = true;
            state.ended.extend(lost.take_ended());
        }
        answer
    }

    async fn take_there(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        self.make_sure().await?;
        let doubtful: Vec<(Arc<str>, Gen)> = {
            let state = self.state();
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
                self.state().has_forgotten(self.inner.now());
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
        self.state().is_sure(job, generation);
        Ok(())
    }

    /// Asks for those that are no sibling's by now.
    async fn take_others(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Vec<Verdict>, StoreError> {
        let gone: Vec<bool> = {
            let state = self.state();
            asks.iter().map(|ask| state.is_elsewhere(ask)).collect()
        };
        let others = asks.iter().zip(&gone).filter(|(_, gone)| !**gone);
        let others: Vec<&Claimed> = others.map(|(ask, _)| *ask).collect();
        let verdicts = match others.is_empty() {
            true => Vec::new(),
            false => self.take_guarded(&others, want).await?,
        };
        let mut verdicts = verdicts.into_iter();
        let each = gone.into_iter().map(|gone| match gone {
            true => Verdict::Lost,
            // There is one for each that was asked.
            false => verdicts.next().unwrap_or(Verdict::Unasked),
        });
        Ok(each.collect())
    }

    pub(super) async fn take_guarded(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Vec<Verdict>, StoreError> {
        // Before it is known whether the store is lost: what is sent must never be newer than this.
        let newest = asks.iter().map(|ask| ask.generation).max();
        let any_elsewhere = {
            let mut state = self.state();
            state.told_of(newest);
            asks.iter().any(|ask| state.is_elsewhere(ask))
        };
        if any_elsewhere {
            return Box::pin(self.take_others(asks, want)).await;
        }
        let there = async {
            let failed = self.state().failed;
            let answer = self.take_there(asks, want).await;
            let mut state = self.state();
            state.took_there(&answer, failed);
            if answer.is_err() && answer != Err(StoreError::Settling) && !is_unfit(&answer) {
                for ask in asks {
                    state.doubt.insert(ask.job.clone(), ask.generation);
                    state.unheard(ask, self.inner.now());
                }
            }
            answer
        };
        let verdicts = self
            .ask(there, async |lost| lost.take(asks, want).await)
            .await?;
        let mut state = self.state();
        for (ask, verdict) in asks.iter().zip(&verdicts) {
            state.took(ask, verdict, self.inner.now());
        }
        Ok(verdicts)
    }
}
