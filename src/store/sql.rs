//! What the stores on SQL databases have in common: everything but the SQL.
//!
//! An operation names the rows and keys that it is about. The database brings them, locked; the step is
//! taken on them here, by the very core that the memory store runs; what changed is written, and all of
//! it is one transaction. Operations that wait at the same time share one, so that under load the price of
//! a commit is paid once for many.
//!
//! [`SqlStore`] is the store as the sidecar sees it, [`serve`] the work, [`Books`] what a database has to do.

mod flat;
mod front;
mod inspection;
mod page;
mod search;
mod steps;

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Change, Claimed, Gen, Number, Row, Step, StoreError, Taken, record};
use crate::limit::{KeyState, Limited, Reserved, Timestamp};

pub(super) use flat::{Flat, number, unsigned};
pub(super) use front::Post;
pub use front::SqlStore;
pub use inspection::Inspection;
pub(super) use page::{Head, KEPT, LATE, LONG_OVER, PATIENCE, Page, SILENCE};
pub(super) use search::{Books, Due, IDLE, Need};
pub(super) use steps::ADOPTED;

/// So many operations share a transaction at most.
pub(super) const MOST: usize = 64;

/// An operation, and where its answer goes.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    /// The data that the caller knows; it has to announce itself when they are others.
    pub(super) epoch: Option<Arc<str>>,
    pub(super) answer: oneshot::Sender<Result<Told, StoreError>>,
}

/// An answer, and the store's time.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) now: Timestamp,
    pub(super) reply: Reply,
}

#[derive(Debug)]
pub(super) enum Op {
    Take {
        asks: Vec<Claimed>,
        want: usize,
    },
    Reserve {
        limited: Limited,
        want: usize,
        ahead: u64,
        unused: Vec<Timestamp>,
    },
    Back(Arc<str>, Gen),
    End(Vec<(Arc<str>, Option<Gen>)>),
    Set(Change),
    /// Many at once, none of which [is apart](Change::is_apart).
    SetAll(Vec<Change>),
    Row(Arc<str>),
    States(Vec<String>),
    Number(String, Step),
    Due {
        max: usize,
        found: Due,
    },
    /// Keys with nothing used are forgotten.
    Forget {
        found: Vec<String>,
    },
    Offered {
        scope: u64,
        queue: Arc<str>,
        max: usize,
        found: Vec<String>,
    },
    RowsOfOthers {
        max: usize,
        found: Vec<String>,
    },
    /// How many rows the caller has that are out.
    CountOut,
    /// How many jobs of a queue others hold.
    Others(String),
    Overrides,
    /// What the caller knows of limits and settings made over HTTP in data that are lost.
    PutBack(Vec<record::Written>),
    /// The caller comes, or comes back, and may have known other data.
    Join {
        knew: Option<Arc<str>>,
    },
}

#[derive(Debug)]
pub(super) enum Reply {
    Taken(Taken),
    Reserved(Reserved),
    Rows(Vec<Row>),
    Done(bool),
    States(Vec<KeyState>),
    Number(Number),
    Due {
        rows: Vec<Row>,
        lanes: Vec<String>,
        /// How many others live.
        siblings: usize,
        /// No row of the caller is due before this.
        first: Timestamp,
        edition: i64,
        /// Whether no other lives or has left rows.
        alone: bool,
        /// Whether many more keys may have to be forgotten.
        more: bool,
        /// Microseconds that the time is ahead of the clock of the database's host.
        ahead: u64,
        /// How many jobs were ever adopted.
        adopted: u64,
    },
    Count(usize),
    Overrides(i64, Vec<record::Kept>),
    /// How many were not there; none where it was too late.
    PutBack(Option<u64>),
    Joined(Arc<str>),
}

impl Op {
    /// What has to be on the page.
    fn need(&self, need: &mut Need) {
        let reads = matches!(
            self,
            Op::Row(_) | Op::States(_) | Op::Offered { .. } | Op::RowsOfOthers { .. }
        );
        need.writes |= !reads;
        match self {
            // Which starts nothing is about rows alone.
            Op::Take { asks, want: 0 } => asks.iter().for_each(|ask| need.job(&ask.job)),
            Op::Take { asks, .. } => asks.iter().for_each(|ask| need.claimed(ask)),
            Op::Reserve { limited, .. } => {
                need.name(record::name(limited.space, &limited.key));
            }
            Op::End(jobs) => jobs.iter().for_each(|(job, _)| need.job(job)),
            Op::Back(job, _) | Op::Row(job) => need.job(job),
            Op::Set(change) => need.change(change),
            Op::SetAll(changes) => changes.iter().for_each(|change| need.change(change)),
            Op::States(names) => names.iter().for_each(|name| need.name(name.clone())),
            Op::Number(name, _) => need.number(name),
            Op::Due { found, .. } => {
                let rows = [&found.mine, &found.others_out, &found.over];
                rows.into_iter().flatten().for_each(|job| need.job(job));
                found.idle.iter().for_each(|name| need.name(name.clone()));
            }
            Op::Forget { found } => found.iter().for_each(|name| need.name(name.clone())),
            Op::Offered { found, .. } | Op::RowsOfOthers { found, .. } => {
                found.iter().for_each(|job| need.job(job));
            }
            Op::CountOut | Op::Others(_) | Op::Overrides | Op::PutBack(_) | Op::Join { .. } => {}
        }
    }

    /// Whether it is no step on a page.
    fn is_apart(&self) -> bool {
        match self {
            Op::CountOut | Op::Others(_) | Op::Overrides | Op::PutBack(_) | Op::Join { .. } => true,
            Op::Set(change) => change.is_apart(),
            _ => false,
        }
    }

    fn step(&self, page: &mut Page) -> Result<Reply, StoreError> {
        Ok(match self {
            Op::Take { asks, want } => {
                page.is_settled(*want)?;
                Reply::Taken(page.step().take(asks.iter(), *want))
            }
            Op::Reserve {
                limited,
                want,
                ahead,
                unused,
            } => {
                page.is_settled(*want)?;
                Reply::Reserved(page.step().reserve(limited, *want, *ahead, unused))
            }
            Op::Back(job, claim) => Reply::Done(page.step().back(job, *claim)),
            Op::End(jobs) => {
                let ended = jobs
                    .iter()
                    .filter_map(|(job, claim)| page.step().end(job, *claim));
                Reply::Rows(ended.collect())
            }
            Op::Set(change) => Reply::Done(page.set_one(change)?),
            Op::SetAll(changes) => Reply::Done(page.set_all(changes)),
            Op::Row(job) => Reply::Rows(page.row(job).into_iter().collect()),
            Op::States(names) => {
                Reply::States(names.iter().map(|name| page.state_of(name)).collect())
            }
            Op::Number(name, step) => Reply::Number(page.number(name, *step)),
            Op::Due { max, found } => due(page, *max, found),
            Op::Forget { found } => {
                page.forget(found);
                Reply::Done(are_many(found))
            }
            Op::Offered {
                scope,
                queue,
                max,
                found,
            } => {
                let rows = page.offered(found, (*scope, queue)).into_iter();
                Reply::Rows(rows.take(*max).collect())
            }
            Op::CountOut | Op::Others(_) | Op::Overrides | Op::PutBack(_) | Op::Join { .. } => {
                Reply::Done(false)
            }
            Op::RowsOfOthers { found, .. } => Reply::Rows(page.rows_of(found)),
        })
    }
}

/// Our overdue rows and those of sidecars that are gone, and what is known of the others.
fn due(page: &mut Page, max: usize, found: &Due) -> Reply {
    let rows = page.due(found, max);
    page.forget(&found.idle);
    let alive = |seen: &Timestamp| seen.plus(SILENCE) > page.head.now;
    let others = page
        .head
        .live
        .iter()
        .filter(|(owner, _)| **owner != *page.me);
    Reply::Due {
        rows,
        siblings: others.clone().filter(|(_, seen)| alive(seen)).count(),
        alone: others.count() == 0 && !found.strangers,
        lanes: found.lanes.clone(),
        first: found.first,
        edition: page.head.edition,
        more: are_many(&found.idle),
        ahead: page.head.ahead,
        adopted: found.adopted,
    }
}

/// Whether most of the keys that were looked at have nothing used: then it is so with the next ones too.
fn are_many(idle: &[String]) -> bool {
    idle.len() > IDLE / 2
}

impl Job {
    /// Whether who asked has given up and goes by its not being done: so it must not be.
    fn is_stale(&self) -> bool {
        self.answer.is_closed()
    }

    fn fail(self, error: &StoreError) {
        // Who does not wait any more needs no answer.
        let _gone = self.answer.send(Err(error.clone()));
    }
}

/// Does these operations, in their order.
pub(super) async fn serve<B: Books>(books: &mut B, jobs: Vec<Job>) {
    let mut together = Vec::with_capacity(jobs.len());
    for job in jobs {
        if job.is_stale() {
            continue;
        }
        if job.op.is_apart() {
            serve_together(books, std::mem::take(&mut together)).await;
            serve_apart(books, job).await;
        } else {
            together.push(job);
        }
    }
    serve_together(books, together).await;
}

async fn serve_apart<B: Books>(books: &mut B, job: Job) {
    // What came before it may have taken long.
    if job.is_stale() {
        return;
    }
    let Job { op, epoch, answer } = job;
    let wanted = || !answer.is_closed();
    let done = async {
        let known = epoch.as_deref();
        let head = books.head().await?;
        if known.is_some_and(|known| known != head.epoch) {
            return Err(StoreError::Wiped);
        }
        let reply = match op {
            Op::CountOut => Reply::Count(books.count_out().await?),
            Op::Others(queue) => Reply::Count(books.others(&queue).await?),
            Op::Overrides => {
                let texts = books.overrides().await?;
                let all = texts.iter();
                let all = all.filter_map(|(name, text)| record::kept(name, text));
                Reply::Overrides(head.edition, all.collect())
            }
            Op::Join { knew } => Reply::Joined(books.join(knew.as_deref()).await?.into()),
            Op::PutBack(known) if head.is_settling() => {
                Reply::PutBack(Some(books.put_back(&known, &wanted).await?))
            }
            Op::PutBack(_) => Reply::PutBack(None),
            // A sibling may put it back.
            Op::Set(Change::Override { set: None, .. } | Change::Setting { text: None, .. })
                if head.is_settling() =>
            {
                return Err(StoreError::Settling);
            }
            Op::Set(Change::Override { space, key, set }) => {
                let ends = set.as_ref().and_then(|set| set.expires_at);
                let text = set.as_ref().map(record::set);
                let name = record::name(space, &key);
                let put = books.put_override(&name, text.as_deref(), ends, &wanted);
                Reply::Done(put.await?)
            }
            Op::Set(Change::Setting { name, text }) => {
                let name = record::setting(&name);
                let put = books.put_override(&name, text.as_deref(), None, &wanted);
                Reply::Done(put.await?)
            }
            _ => Reply::Done(books.clear().await?),
        };
        let now = head.now;
        Ok(Told { now, reply })
    };
    let told = done.await;
    // Who does not wait any more needs no answer.
    let _gone = answer.send(told);
}

async fn serve_together<B: Books>(books: &mut B, jobs: Vec<Job>) {
    let Err((jobs, error)) = serve_at_once(books, jobs).await else {
        return;
    };
    // One of them is what it cannot keep, and it does not say which: each has a transaction of its own.
    let apart = matches!(error, StoreError::Unfit(_)) && jobs.len() > 1;
    for job in jobs {
        if !apart {
            job.fail(&error);
        } else if !job.is_stale()
            && let Err((alone, error)) = serve_at_once(books, vec![job]).await
        {
            alone.into_iter().for_each(|job| job.fail(&error));
        }
    }
}

/// Does them in one transaction and answers them.
///
/// # Errors
/// Nothing was done. Those that are waited for still, and why.
async fn serve_at_once<B: Books>(
    books: &mut B,
    mut jobs: Vec<Job>,
) -> Result<(), (Vec<Job>, StoreError)> {
    if jobs.is_empty() {
        return Ok(());
    }
    match transact(books, &mut jobs).await {
        Ok((now, replies)) => {
            for (job, reply) in jobs.into_iter().zip(replies) {
                let _gone = job.answer.send(reply.map(|reply| Told { now, reply }));
            }
            Ok(())
        }
        Err(error) => {
            books.abandon().await;
            Err((jobs, error))
        }
    }
}

/// One transaction with all of them, in their order, but for those that became stale before it began.
async fn transact<B: Books>(
    books: &mut B,
    jobs: &mut Vec<Job>,
) -> Result<(Timestamp, Vec<Result<Reply, StoreError>>), StoreError> {
    let mut need = Need::default();
    for job in jobs.iter_mut() {
        match &mut job.op {
            Op::Due { max, found } => *found = books.find_due(*max).await?,
            Op::Forget { found } => *found = books.find_idle().await?,
            Op::Offered {
                scope,
                queue,
                max,
                found,
            } => {
                *found = books
                    .find_offered(&record::lane(*scope, queue), *max)
                    .await?
            }
            Op::RowsOfOthers { max, found } => *found = books.find_others(*max).await?,
            _ => {}
        }
        job.op.need(&mut need);
    }
    let mut page = books.begin(&need).await?;
    page.me = books.me();
    // From here to the commit what they are about is locked: what undoes it comes after it.
    jobs.retain(|job| !job.is_stale());
    let mut replies = Vec::with_capacity(jobs.len());
    for job in jobs.iter() {
        replies.push(match job.epoch.as_deref() {
            Some(known) if known == page.head.epoch => job.op.step(&mut page),
            _ => Err(StoreError::Wiped),
        });
        page.finish();
    }
    books.commit(&page).await?;
    Ok((page.head.now, replies))
}
