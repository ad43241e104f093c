//! An operation on its way to a database, and the transaction that several of them share.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::page::Page;
use super::search::{Database, Findings, Need};
use crate::StoreError;
use ojs_limit::Timestamp;

/// So many operations share a transaction at most.
pub(crate) const MOST: usize = 64;

/// An operation on its way: what it is about, and what is done with that.
pub(crate) struct Job {
    pub(super) need: Need,
    pub(super) found: Findings,
    pub(super) work: Box<dyn Work>,
}

/// A step on a page, whatever its answer is.
pub(super) trait Work: Send {
    /// Whether who asked has given up and goes by its not being done: so it must not be.
    fn is_stale(&self) -> bool;

    /// Takes the step, and keeps the answer until it is known whether the transaction was.
    fn step(&mut self, page: &mut Page, found: &Findings);

    /// Sends the answer and the store's time, or why nothing was done.
    fn end(self: Box<Self>, done: Result<Timestamp, StoreError>);
}

/// A step, and where its answer goes, with the store's time.
pub(super) struct StepOnPage<T, F> {
    /// The data that the caller knows; it has to announce itself when they are others. `None`: it does.
    pub(super) epoch: Option<Arc<str>>,
    pub(super) step: F,
    pub(super) told: Option<Result<T, StoreError>>,
    pub(super) answer: oneshot::Sender<Result<(T, Timestamp), StoreError>>,
}

impl<T, F> Work for StepOnPage<T, F>
where
    T: Send,
    F: FnMut(&mut Page, &Findings) -> Result<T, StoreError> + Send,
{
    fn is_stale(&self) -> bool {
        self.answer.is_closed()
    }

    fn step(&mut self, page: &mut Page, found: &Findings) {
        let epoch = self.epoch.as_deref();
        self.told = Some(match epoch.is_none_or(|known| known == page.head.epoch) {
            true => (self.step)(page, found),
            false => Err(StoreError::Wiped),
        });
    }

    fn end(self: Box<Self>, done: Result<Timestamp, StoreError>) {
        let StepOnPage { told, answer, .. } = *self;
        // A transaction that was done has asked each of its jobs.
        let told = told.unwrap_or(Err(StoreError::Timeout));
        // Who does not wait any more needs no answer.
        let _gone = answer.send(done.and_then(|now| Ok((told?, now))));
    }
}

/// Does these operations in one transaction, in their order, and answers them.
pub(crate) async fn serve<D: Database>(database: &mut D, mut jobs: Vec<Job>) {
    jobs.retain(|job| !job.work.is_stale());
    if jobs.is_empty() {
        return;
    }
    let done = transact(database, &mut jobs).await;
    if done.is_err() {
        database.abandon().await;
    }
    for job in jobs {
        job.work.end(done.clone());
    }
}

/// One transaction with all of them, in their order, but for those that became stale before it began.
async fn transact<D: Database>(
    database: &mut D,
    jobs: &mut Vec<Job>,
) -> Result<Timestamp, StoreError> {
    let mut need = Need::default();
    for job in jobs.iter_mut() {
        if let Some(first) = &job.need.first {
            job.found = database.first(first).await?;
        }
        need.add(&job.need, &job.found);
    }
    let mut page = database.begin(&need).await?;
    // From here to the commit what they are about is locked: what undoes it comes after it.
    jobs.retain(|job| !job.work.is_stale());
    for job in jobs.iter_mut() {
        job.work.step(&mut page, &job.found);
        page.finish();
    }
    database.commit(&page).await?;
    Ok(page.head.now)
}
