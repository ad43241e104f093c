//! The store as the sidecar sees it: questions go to whoever has the database, answers are waited for no
//! longer than the timeout.

mod ask;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::super::clock::ServerClock;
use super::super::fleet::{BEAT, kept_name};
use super::super::ledger::{CountOf, KeyStates, Ledger, RowsOf, Standing};
use super::super::remote::{News, Remote, heard, put_back};
use super::super::{
    Answer, Change, Claimed, Gen, Number, Row, Step, StoreError, Taken, Verdict, Wake, Wish, record,
};
use super::{Job, Op, Reply};
use crate::limit::{Key, Reserved, Space, Timestamp};
use crate::log::cut;
use ask::strange;

/// So many rows are changed in one transaction: each is locked until it is written.
const AT_ONCE: usize = 256;

/// So often in a row keys that nobody uses are looked for, while most of those that were looked at are such.
const ROUNDS: usize = 8;

/// Where operations go.
pub(in crate::store) enum Post {
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
    epoch: Mutex<Option<Arc<str>>>,
    joining: tokio::sync::Mutex<()>,
    remote: Remote,
    news: tokio::sync::Mutex<UnboundedReceiver<String>>,
    told: UnboundedSender<String>,
}

impl SqlStore {
    /// `work` makes who works from where the news of others go: lines as `freed`, `row`, `offered`, `paused`, `joined`, `over` and `all`.
    pub(in crate::store) fn new(
        clock: ServerClock,
        timeout: Duration,
        work: impl FnOnce(UnboundedSender<String>) -> Post,
    ) -> SqlStore {
        let (told, news) = unbounded_channel();
        SqlStore {
            post: work(told.clone()),
            timeout,
            epoch: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            remote: Remote::new(clock),
            news: tokio::sync::Mutex::new(news),
            told,
        }
    }

    /// Says what is wrong if it cannot be used at all.
    ///
    /// # Errors
    /// It is not reachable, too old, lacks rights, or has something else where our data would be.
    pub async fn check(&self) -> Result<(), StoreError> {
        self.join(None).await.map(drop)
    }

    /// Whether there can be a row of a job that a client has named: Postgres has no NUL, and whatever waits for the
    /// same transaction would be done anew.
    fn may_have_row(&self, job: &str) -> bool {
        matches!(self.post, Post::Thread(_)) || !job.contains('\0')
    }

    async fn take_all(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let now = self.remote.clock.now();
        for ask in asks {
            self.remote.due_at(now.plus(ask.visibility));
        }
        match self.take_at_once(asks, want).await {
            Err(StoreError::Unfit(_)) => Box::pin(self.take_each(asks, want)).await,
            told => told,
        }
    }

    /// One by one, because the store cannot keep one of them: that is lost to us, and the others are not.
    async fn take_each(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let (mut all, mut left) = (Taken::default(), want);
        for ask in asks {
            let verdict = match self.take_at_once(&[ask], left).await {
                Ok(taken) => {
                    all.ended.extend(taken.ended);
                    taken.verdicts.into_iter().next().ok_or_else(strange)?
                }
                Err(StoreError::Unfit(why)) => {
                    tracing::warn!(
                        job = &*cut(&ask.job),
                        queue = &*cut(&ask.queue),
                        why,
                        "a limited job is left to the end of its claim, because the store cannot keep it: use \
                         shorter ids and names, without NUL"
                    );
                    Verdict::Lost
                }
                Err(error) => return Err(error),
            };
            left -= usize::from(matches!(verdict, Verdict::Started { .. })).min(left);
            all.verdicts.push(verdict);
        }
        Ok(all)
    }

    async fn take_at_once(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let op = Op::Take {
            asks: asks.iter().map(|ask| (*ask).clone()).collect(),
            want,
        };
        match self.ask(op).await?.reply {
            Reply::Taken(taken) => Ok(taken),
            _ => Err(strange()),
        }
    }

    async fn overdue(&self, max: usize) -> Result<Vec<Row>, StoreError> {
        let max = max.min(10_000);
        let found = super::Due::default();
        let asked = self.remote.alone.ask();
        let told = self.ask(Op::Due { max, found }).await?;
        let Reply::Due {
            rows,
            lanes,
            siblings,
            first,
            edition,
            alone,
            more,
            ahead,
            adopted,
        } = told.reply
        else {
            return Err(strange());
        };
        self.remote.clock.is_ahead(ahead);
        self.remote.met(asked, siblings, alone, adopted);
        let beat_at = match more && self.forget().await {
            true => told.now,
            false => told.now.plus(BEAT),
        };
        self.remote.quiet_until(beat_at, first);
        let epoch = self.epoch().clone();
        if self.remote.edition() != Some(edition)
            && let Some(epoch) = epoch
        {
            self.reload(epoch).await?;
        }
        for lane in lanes {
            // The receiver is in this very store.
            let _received = self.told.send(format!("offered\n{lane}"));
        }
        Ok(rows)
    }

    /// Forgets keys that nobody uses as fast as new ones come, some in each transaction. Says whether there
    /// are more still.
    async fn forget(&self) -> bool {
        for _ in 0..ROUNDS {
            let found = Vec::new();
            let told = self.ask(Op::Forget { found }).await;
            // If this fails, there is another time.
            if !told.is_ok_and(|told| matches!(told.reply, Reply::Done(true))) {
                return false;
            }
        }
        true
    }

    /// Makes one change, or many that nobody waits to hear of one by one.
    async fn change_all(&self, mut changes: Vec<Change>) -> Result<bool, StoreError> {
        if changes.len() == 1
            && let Some(change) = changes.pop()
        {
            return self.change(change).await;
        }
        let (apart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_apart);
        for change in apart {
            self.change(change).await?;
        }
        for some in changes.chunks(AT_ONCE) {
            some.iter().for_each(|change| self.remote.leaves(change));
            match self.ask(Op::SetAll(some.to_vec())).await {
                Err(StoreError::Unfit(_)) => self.change_each(some).await?,
                told => drop(told?),
            }
        }
        Ok(true)
    }

    /// One by one, because the store cannot keep the row of one of them: that has none.
    async fn change_each(&self, changes: &[Change]) -> Result<(), StoreError> {
        for change in changes {
            match self.ask(Op::SetAll(vec![change.clone()])).await {
                Err(StoreError::Unfit(_)) => {}
                told => drop(told?),
            }
        }
        Ok(())
    }

    async fn change(&self, change: Change) -> Result<bool, StoreError> {
        let now = self.remote.clock.now();
        self.remote.leaves(&change);
        let Reply::Done(done) = self.ask(Op::Set(change.clone())).await?.reply else {
            return Err(strange());
        };
        self.remote.changed(change, done, now);
        Ok(done)
    }

    /// What news say; `None`: nothing for the caller.
    async fn heard(&self, text: &str) -> Option<Wake> {
        match heard(text)? {
            News::Wake(wake) => Some(wake),
            News::Joined => {
                self.remote.look_around();
                None
            }
            News::Over => {
                let epoch = self.epoch().clone()?;
                // If this fails, the next beat tells that ours are old.
                let _read = self.reload(epoch).await;
                Some(Wake::All)
            }
            // As `all`: some may have been missed.
            News::Other => {
                self.remote.look_around();
                Some(Wake::All)
            }
        }
    }

    async fn ask_rows(&self, op: Op) -> Result<Vec<Row>, StoreError> {
        match self.ask(op).await?.reply {
            Reply::Rows(rows) => Ok(rows),
            _ => Err(strange()),
        }
    }
}

impl std::fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store on a database")
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
        Answer::later(self.take_all(asks, want))
    }

    fn back<'a>(&'a self, job: &'a str, claim: Gen) -> Answer<'a, bool> {
        if !self.may_have_row(job) {
            return Answer::now(false);
        }
        Answer::later(async move {
            match self.ask(Op::Back(job.into(), claim)).await?.reply {
                Reply::Done(done) => Ok(done),
                _ => Err(strange()),
            }
        })
    }

    fn end_all<'a>(&'a self, jobs: &'a [(Arc<str>, Option<Gen>)]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let jobs = jobs.iter().filter(|(job, _)| self.may_have_row(job));
            let jobs: Vec<_> = jobs.cloned().collect();
            let mut ended = Vec::new();
            for some in jobs.chunks(AT_ONCE) {
                ended.extend(self.ask_rows(Op::End(some.to_vec())).await?);
            }
            Ok(ended)
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        if self.remote.is_quiet(self.remote.clock.now()) {
            return Answer::now(Vec::new());
        }
        Answer::later(self.overdue(max))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        let may_be = |change: &Change| match change {
            Change::Doubt { job } => self.may_have_row(job),
            _ => true,
        };
        let changes: Vec<_> = changes.into_iter().filter(may_be).collect();
        match changes.is_empty() {
            true => Answer::now(false),
            false => Answer::later(self.change_all(changes)),
        }
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        Answer::later(async move {
            let names = keys.iter().map(|(space, key)| record::name(*space, key));
            let told = self.ask(Op::States(names.collect())).await?;
            match (told.reply, told.now) {
                (Reply::States(states), now) => Ok(KeyStates { states, now }),
                _ => Err(strange()),
            }
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let found = Vec::new();
        let op = match which {
            RowsOf::Job(job) if !self.may_have_row(job) => return Answer::now(Vec::new()),
            RowsOf::Job(job) => Op::Row(job.into()),
            RowsOf::Offered { scope, queue, max } => Op::Offered {
                scope,
                queue: queue.into(),
                max,
                found,
            },
            RowsOf::Others { max } => Op::RowsOfOthers { max, found },
        };
        Answer::later(self.ask_rows(op))
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        let op = match which {
            CountOf::Out => Op::CountOut,
            CountOf::HeldByOthers(queue) => Op::Others(kept_name(queue).into_owned()),
        };
        Answer::later(async move {
            match self.ask(op).await?.reply {
                Reply::Count(count) => Ok(count as u64),
                _ => Err(strange()),
            }
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        Answer::later(async move {
            let name = kept_name(name).into_owned();
            match self.ask(Op::Number(name, step)).await?.reply {
                Reply::Number(number) => Ok(number),
                _ => Err(strange()),
            }
        })
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move {
            let op = Op::Reserve {
                limited: wish.limited.clone(),
                want: wish.want,
                ahead: wish.ahead,
                unused: wish.unused.to_vec(),
            };
            match self.ask(op).await?.reply {
                Reply::Reserved(reserved) => Ok(reserved),
                _ => Err(strange()),
            }
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(async move {
            let knew = self.epoch().clone();
            self.join(knew).await?;
            self.remote.due_at(Timestamp(0));
            put_back(self, rows).await
        })
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            let mut news = self.news.lock().await;
            loop {
                let Some(text) = news.recv().await else {
                    // The other end is in this very store.
                    return std::future::pending().await;
                };
                if let Some(wake) = self.heard(&text).await {
                    return wake;
                }
            }
        })
    }

    fn standing(&self) -> Standing<'_> {
        // What was committed stays, and who takes the place of another has a history of its own.
        Standing {
            forgets_unsaid: false,
            ..self.remote.standing()
        }
    }
}
