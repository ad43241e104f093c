//! The store as the sidecar sees it: questions go to whoever has the database, answers are waited for no
//! longer than the timeout.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::mpsc::{Sender, UnboundedSender};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::clock::ServerClock;
use super::super::fleet::{BEAT, kept_name};
use super::super::ledger::{CountOf, KeyStates, Ledger, LooksAfter, RowsOf, StoreFacts};
use super::super::record::{self, Kept, Written};
use super::super::remote::{self, Around, Data, Elsewhere, Remote};
use super::super::{
    Answer, Change, Claimed, End, Gen, Number, Row, Step, StoreError, Taken, Verdict, Wake, Wish,
};
use super::job::{Job, StepOnPage};
use super::page::Page;
use super::search::{Findings, First, Need};
use ojs_limit::{Key, Reserved, Space, Timestamp};
use ojs_log::cut;

/// So often in a row keys that nobody uses are looked for, while most of those that were looked at are such.
const ROUNDS: usize = 8;

/// The longest name in bytes for which an index of Postgres has room.
const LONGEST_NAME: usize = 2_600;

/// Where operations go.
pub(crate) enum Post {
    /// To a thread.
    Thread(SyncSender<Job>),
    /// To tasks.
    Tasks(Sender<Job>),
}

impl Post {
    /// Never waits: what cannot be taken on is better refused at once than late.
    fn send(&self, job: Job) -> Result<(), StoreError> {
        let sent = match self {
            Post::Thread(to) => to.try_send(job).is_ok(),
            Post::Tasks(to) => to.try_send(job).is_ok(),
        };
        let full = || StoreError::Unavailable("too many operations wait already".to_owned());
        sent.then_some(()).ok_or_else(full)
    }
}

/// A store on a database: what [`super::super::sqlite::open`] and [`super::super::postgres::open`] give.
pub struct SqlStore {
    post: Post,
    timeout: Duration,
    remote: Remote,
}

impl SqlStore {
    /// `work` makes who works from where the news of others go: lines as `freed`, `row`, `offered`, `paused`, `joined`, `over` and `all`.
    pub(crate) fn new(
        clock: ServerClock,
        timeout: Duration,
        work: impl FnOnce(UnboundedSender<String>) -> Post,
    ) -> SqlStore {
        let remote = Remote::new(clock);
        SqlStore {
            post: work(remote.told.clone()),
            timeout,
            remote,
        }
    }

    /// Whether the database can keep a name that a client has given: Postgres has no NUL, and an index has no room for
    /// long ones.
    fn keeps(&self, name: &str) -> bool {
        let is_kept = name.len() <= LONGEST_NAME && !name.contains('\0');
        is_kept || matches!(self.post, Post::Thread(_))
    }

    fn keeps_claim(&self, claimed: &Claimed) -> bool {
        self.keeps(&claimed.job) && self.keeps(&claimed.queue)
    }

    fn keeps_change(&self, change: &Change) -> bool {
        match change {
            Change::Offer { claimed } | Change::Adopt { claimed, .. } => self.keeps_claim(claimed),
            Change::Until { job, .. } | Change::Own { job, .. } => self.keeps(job),
            Change::Setting { name, .. } => self.keeps(name),
            _ => true,
        }
    }

    /// Takes a step in a transaction that is about what it needs. The first one joins.
    async fn ask<T: Send + 'static>(
        &self,
        need: Need,
        step: impl FnMut(&mut Page, &Findings) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let data = remote::data(self).await?;
        self.ask_of(Some(data), need, step).await
    }

    /// Takes a step on the `data` that this sidecar knows; with `None` it takes the data that it finds.
    async fn ask_of<T: Send + 'static>(
        &self,
        data: Option<Data>,
        need: Need,
        step: impl FnMut(&mut Page, &Findings) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let epoch = data.map(|data| data.epoch);
        let sent = Instant::now();
        self.post.send(Job {
            need,
            found: Findings::default(),
            work: Box::new(StepOnPage {
                epoch,
                step,
                told: None,
                answer,
            }),
        })?;
        let (told, now) = match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(told)) => told?,
            Ok(Err(_)) => return Err(StoreError::Unavailable("it was closed".to_owned())),
            Err(_) => return Err(StoreError::Timeout),
        };
        self.remote.clock.told(now, sent);
        Ok(told)
    }

    /// What the database cannot keep is lost to us, and the others are not.
    async fn take_kept(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let now = self.remote.clock.now();
        let mut kept = Vec::with_capacity(asks.len());
        let mut need = Need::to_write();
        for ask in asks {
            if !self.keeps_claim(ask) {
                tracing::warn!(
                    id = %"job_unstorable",
                    job = &*cut(&ask.job),
                    queue = &*cut(&ask.queue),
                    "a limited job is left to the end of its claim, because the store cannot keep it: use shorter \
                     ids and names, without NUL"
                );
                continue;
            }
            self.remote.due_at(now.plus(ask.visibility));
            match want {
                // Which starts nothing is about rows alone.
                0 => need.job(&ask.job),
                _ => need.claimed(ask),
            }
            kept.push((*ask).clone());
        }
        let take = move |page: &mut Page, _: &Findings| {
            page.is_settled(want)?;
            Ok(page.step().take(kept.iter(), want))
        };
        let taken = self.ask(need, take).await?;
        let mut told = taken.verdicts.into_iter();
        // There is one for each that was asked.
        let verdict = |ask: &&Claimed| match self.keeps_claim(ask) {
            true => told.next().unwrap_or(Verdict::Unasked),
            false => Verdict::Unfit,
        };
        let verdicts = asks.iter().map(verdict).collect();
        Ok(Taken { verdicts, ..taken })
    }

    async fn overdue(&self, which: LooksAfter, max: usize) -> Result<Vec<Row>, StoreError> {
        let max = max.min(10_000);
        let data = remote::data(self).await?;
        let need = Need {
            first: Some(First::Due { which, max }),
            ..Need::to_write()
        };
        let step = move |page: &mut Page, found: &Findings| {
            let rows = page.due(found, max);
            let (siblings, is_alone) = page.siblings(found);
            let around = Around {
                siblings,
                is_alone,
                beat_at: page.now(),
                first: found.first,
                edition: page.head.edition,
                ahead: page.head.ahead,
                adopted: found.count,
                lanes: found.lanes.clone(),
            };
            Ok((rows, around, found.is_mostly_idle()))
        };
        let (rows, mut around, more) = self.ask_of(Some(data.clone()), need, step).await?;
        if !(more && self.forget().await) {
            around.beat_at = around.beat_at.plus(BEAT);
        }
        remote::looked(self, data, around).await?;
        Ok(rows)
    }

    /// Forgets keys that nobody uses as fast as new ones come, some in each transaction. Says whether there
    /// are more still.
    async fn forget(&self) -> bool {
        for _ in 0..ROUNDS {
            let need = Need {
                first: Some(First::Idle),
                ..Need::to_write()
            };
            let forget = |page: &mut Page, found: &Findings| {
                page.forget(&found.idle);
                Ok(found.is_mostly_idle())
            };
            // If this fails, there is another time.
            if !matches!(self.ask(need, forget).await, Ok(true)) {
                return false;
            }
        }
        true
    }
}

impl std::fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store on a database")
    }
}

impl Elsewhere for SqlStore {
    fn remote(&self) -> &Remote {
        &self.remote
    }

    async fn join(&self, knew: Option<&str>) -> Result<Arc<str>, StoreError> {
        let knew = knew.map(Arc::from);
        let need = Need::first(First::Join { knew });
        let epoch = |_: &mut Page, found: &Findings| Ok(Arc::from(found.epoch.as_str()));
        self.ask_of(None, need, epoch).await
    }

    async fn change(&self, data: Data, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let kept = changes.iter().filter(|change| self.keeps_change(change));
        let kept: Vec<Change> = kept.cloned().collect();
        if kept.is_empty() {
            return Err(StoreError::Unfit(
                "a name has a NUL or is too long".to_owned(),
            ));
        }
        let mut need = Need::to_write();
        kept.iter().for_each(|change| need.change(change));
        let step = move |page: &mut Page, _: &Findings| page.set_all(&kept);
        let mut done = self.ask_of(Some(data), need, step).await?.into_iter();
        let is_done = |change| self.keeps_change(change) && done.next().unwrap_or(false);
        Ok(changes.iter().map(is_done).collect())
    }

    async fn put_back(&self, data: Data, known: &[Written]) -> Result<Option<u64>, StoreError> {
        let mut need = Need::to_write();
        known.iter().for_each(|one| need.written(one.name.clone()));
        let known = known.to_vec();
        self.ask_of(Some(data), need, move |page, _| Ok(page.put_back(&known)))
            .await
    }

    async fn overrides(&self, data: Data) -> Result<(i64, Vec<Kept>), StoreError> {
        let need = Need::first(First::Overrides);
        let read = |_: &mut Page, found: &Findings| {
            let (edition, texts) = &found.overrides;
            let all = texts.iter();
            let all = all.filter_map(|(name, text)| record::kept(name, text));
            Ok((*edition, all.collect()))
        };
        self.ask_of(Some(data), need, read).await
    }
}

impl Ledger for SqlStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.remote.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        if asks.is_empty() {
            return Answer::now(Taken::default());
        }
        Answer::later(self.take_kept(asks, want))
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        if !self.keeps(job) {
            return Answer::now(false);
        }
        let mut need = Need::to_write();
        need.job(job);
        let job: Arc<str> = job.into();
        Answer::later(self.ask(need, move |page, _| Ok(page.step().back(&job, claim))))
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let ends = ends.iter().filter(|end| self.keeps(&end.job));
            let ends: Vec<_> = ends.cloned().collect();
            let mut ended = Vec::new();
            for some in ends.chunks(remote::AT_ONCE) {
                let (mut need, some) = (Need::to_write(), some.to_vec());
                some.iter().for_each(|end| need.end(end));
                let end = move |page: &mut Page, _: &Findings| {
                    let ended = some.iter();
                    let ended = ended.filter_map(|end| page.step().end(end));
                    Ok(ended.collect::<Vec<Row>>())
                };
                ended.extend(self.ask(need, end).await?);
            }
            Ok(ended)
        })
    }

    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        if self.remote.is_quiet() {
            return Answer::now(Vec::new());
        }
        Answer::later(self.overdue(which, max))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        let may_be = |change: &Change| match change {
            Change::Doubt { job } => self.keeps(job),
            Change::Came { queue, .. } | Change::Moved { queue, .. } => self.keeps(queue),
            _ => true,
        };
        let changes: Vec<_> = changes.into_iter().filter(may_be).collect();
        Answer::later(remote::change_all(self, changes))
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        let names = keys.iter().map(|(space, key)| record::name(*space, key));
        let names: Vec<String> = names.collect();
        let mut need = Need::default();
        need.names.extend(names.iter().cloned());
        Answer::later(self.ask(need, move |page, _| {
            Ok(KeyStates {
                states: names.iter().map(|name| page.state_of(name)).collect(),
                now: page.now(),
            })
        }))
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        match which {
            RowsOf::Job(job) if !self.keeps(job) => Answer::now(Vec::new()),
            RowsOf::Job(job) => {
                let (mut need, job) = (Need::default(), job.to_owned());
                need.job(&job);
                let row =
                    move |page: &mut Page, _: &Findings| Ok(page.row(&job).into_iter().collect());
                Answer::later(self.ask(need, row))
            }
            RowsOf::Offered { queue, .. } if !self.keeps(queue) => Answer::now(Vec::new()),
            RowsOf::Offered { scope, queue, max } => {
                let lane = record::lane(scope, queue);
                let need = Need::first(First::Offered {
                    lane: lane.clone(),
                    max,
                });
                Answer::later(self.ask(need, move |page, found| {
                    Ok(page.offered(&found.jobs, &lane))
                }))
            }
            RowsOf::Out { max } => {
                let need = Need::first(First::RowsOut { max });
                Answer::later(self.ask(need, |page, found| Ok(page.rows_of(&found.jobs))))
            }
        }
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        let need = Need::first(match which {
            CountOf::Out => First::CountOut,
            CountOf::HeldByOthers(queue) => First::HeldByOthers(kept_name(queue).into_owned()),
        });
        Answer::later(self.ask(need, |_, found| Ok(found.count)))
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        let name = kept_name(name).into_owned();
        let mut need = match step {
            Step::Read => Need::default(),
            Step::Add { .. } | Step::AddLess { .. } | Step::Put { .. } => Need::to_write(),
        };
        need.number(&name);
        Answer::later(self.ask(need, move |page, _| Ok(page.number(&name, step))))
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        let Wish { want, ahead, .. } = wish;
        let (limited, unused) = (wish.limited.clone(), wish.unused.to_vec());
        let mut need = Need::to_write();
        need.name(record::name(limited.space, &limited.key));
        Answer::later(self.ask(need, move |page, _| {
            page.is_settled(want)?;
            Ok(page.step().reserve(&limited, want, ahead, &unused))
        }))
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(remote::announce(self, rows))
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(remote::wake(self))
    }

    fn facts(&self) -> StoreFacts<'_> {
        // What was committed stays, and who takes the place of another has a history of its own.
        StoreFacts {
            forgets_unsaid: false,
            ..self.remote.facts()
        }
    }
}
