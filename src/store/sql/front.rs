//! The store as the sidecar sees it: questions go to whoever has the database, answers are waited for no
//! longer than the timeout.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::anew::Anew;
use super::super::clock::ServerClock;
use super::super::fleet::{Alone, BEAT, kept_name};
use super::super::{
    Answer, Change, Claimed, Clock, Gen, Number, Overrides, Place, Room, Row, Step, Store,
    StoreError, Usage, Verdict, Wake, Wish, record,
};
use super::flat::read_lane;
use super::{Job, Op, Reply, Told};
use crate::limit::{Key, KeyState, Limited, Limits, Reserved, Space, Timestamp, lead_of};

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
    clock: ServerClock,
    timeout: Duration,
    epoch: Mutex<Option<Arc<str>>>,
    joining: tokio::sync::Mutex<()>,
    overrides: Overrides,
    /// Which edition of the overrides that is; below zero: none was read yet.
    edition: AtomicI64,
    anew: Anew,
    siblings: AtomicUsize,
    alone: Alone,
    /// How long a hand-out takes, in microseconds.
    lead: AtomicU64,
    /// When the next beat is due, and before which time no row of ours is, by the store's clock.
    beat_at: AtomicU64,
    due_from: AtomicU64,
    news: tokio::sync::Mutex<UnboundedReceiver<String>>,
    told: UnboundedSender<String>,
}

impl SqlStore {
    /// `given`: the database goes by the clock too, in tests. `news` makes who works from where the news of
    /// others go: lines as `freed`, `row`, `offered`, `joined`, `over` and `all`.
    pub(in crate::store) fn new(
        clock: Clock,
        given: bool,
        timeout: Duration,
        work: impl FnOnce(UnboundedSender<String>) -> Post,
    ) -> SqlStore {
        let (told, news) = unbounded_channel();
        SqlStore {
            post: work(told.clone()),
            clock: ServerClock::new(clock, given),
            timeout,
            epoch: Mutex::default(),
            joining: tokio::sync::Mutex::default(),
            overrides: Overrides::default(),
            edition: AtomicI64::new(-1),
            anew: Anew::default(),
            siblings: AtomicUsize::new(0),
            alone: Alone::default(),
            lead: AtomicU64::new(0),
            beat_at: AtomicU64::new(0),
            due_from: AtomicU64::new(0),
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

    fn epoch(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.epoch.lock()
    }

    /// An operation and its answer. The first one joins.
    async fn ask(&self, op: Op) -> Result<Told, StoreError> {
        let known = self.epoch().clone();
        let epoch = match known {
            Some(epoch) => epoch,
            None => self.join(None).await?,
        };
        self.send(op, Some(epoch)).await
    }

    async fn send(&self, op: Op, epoch: Option<Arc<str>>) -> Result<Told, StoreError> {
        let (answer, answered) = oneshot::channel();
        let sent = Instant::now();
        self.post.send(Job { op, epoch, answer })?;
        let told = match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(told)) => told?,
            Ok(Err(_)) => return Err(StoreError::Unavailable("it was closed".to_owned())),
            Err(_) => return Err(StoreError::Timeout),
        };
        self.clock.told(told.now, sent);
        Ok(told)
    }

    /// Learns the epoch of the store's data, or begins one; `knew` is the one before.
    async fn join(&self, knew: Option<Arc<str>>) -> Result<Arc<str>, StoreError> {
        let _one_at_a_time = self.joining.lock().await;
        let join = Op::Join { knew: knew.clone() };
        let Reply::Joined(epoch) = self.send(join, None).await?.reply else {
            return Err(strange());
        };
        if knew.is_some_and(|knew| knew != epoch) {
            // Until this is done we go by the data that are gone, so that it is begun again if it fails.
            self.begin_anew(&epoch).await?;
        } else if self.edition.load(Ordering::Relaxed) < 0 {
            self.reload(epoch.clone()).await?;
        }
        *self.epoch() = Some(epoch.clone());
        Ok(epoch)
    }

    /// Puts back what we know beside our rows of data that are gone, and reads what is there now.
    async fn begin_anew(&self, epoch: &Arc<str>) -> Result<(), StoreError> {
        let now = self.now();
        let known = self.overrides.standing(now);
        let (mut put_back, mut shut) = (0, self.anew.shut_again(now));
        // Asked with none too: whether it is too late concerns the shut keys as well.
        let none = known.is_empty().then_some(&known[..]);
        for some in known.chunks(AT_ONCE).chain(none) {
            let op = Op::PutBack(some.to_vec());
            match self.send(op, Some(epoch.clone())).await?.reply {
                Reply::PutBack(Some(count)) => put_back += count,
                // What has been opened or taken away since is not known here.
                Reply::PutBack(None) => shut.clear(),
                _ => return Err(strange()),
            }
        }
        for some in shut.chunks(AT_ONCE) {
            self.send(Op::SetAll(some.to_vec()), Some(epoch.clone()))
                .await?;
        }
        self.reload(epoch.clone()).await?;
        self.anew
            .tell(&known, put_back, &self.overrides, self.now());
        Ok(())
    }

    /// Reads the overrides.
    async fn reload(&self, epoch: Arc<str>) -> Result<(), StoreError> {
        match self.send(Op::Overrides, Some(epoch)).await?.reply {
            Reply::Overrides(edition, all) => {
                self.overrides.replace(all.into_iter(), self.now());
                self.edition.store(edition, Ordering::Relaxed);
                Ok(())
            }
            _ => Err(strange()),
        }
    }

    /// A row of ours is due then.
    fn due_at(&self, at: Timestamp) {
        self.due_from.fetch_min(at.0, Ordering::AcqRel);
    }

    /// There may be others; the next beat tells.
    fn look_around(&self) {
        self.alone.doubt();
        self.beat_at.store(0, Ordering::Relaxed);
    }

    async fn take_all(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        let now = self.now();
        for ask in asks {
            self.due_at(ask.look_again(now));
        }
        match self.take_at_once(asks, want).await {
            Err(StoreError::Unfit(_)) => Box::pin(self.take_each(asks, want)).await,
            told => told,
        }
    }

    /// One by one, because the store cannot keep one of them: that is lost to us, and the others are not.
    async fn take_each(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        let (mut verdicts, mut left) = (Vec::with_capacity(asks.len()), want);
        for ask in asks {
            let verdict = match self.take_at_once(&[ask], left).await {
                Ok(verdicts) => verdicts.into_iter().next().ok_or_else(strange)?,
                Err(StoreError::Unfit(why)) => {
                    tracing::warn!(
                        job = ?ask.job,
                        queue = ?ask.queue,
                        why,
                        "a limited job is left to the end of its claim, because the store cannot keep it: use \
                         shorter ids and names, without NUL"
                    );
                    Verdict::Lost
                }
                Err(error) => return Err(error),
            };
            left -= usize::from(matches!(verdict, Verdict::Started { .. })).min(left);
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    async fn take_at_once(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Vec<Verdict>, StoreError> {
        let op = Op::Take {
            asks: asks.iter().map(|ask| (*ask).clone()).collect(),
            want,
            lead: self.lead.load(Ordering::Relaxed),
        };
        match self.ask(op).await?.reply {
            Reply::Verdicts(verdicts) => Ok(verdicts),
            _ => Err(strange()),
        }
    }

    async fn overdue(&self, max: usize) -> Result<Vec<Row>, StoreError> {
        let max = max.min(10_000);
        let found = super::Due::default();
        let asked = self.alone.ask();
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
        } = told.reply
        else {
            return Err(strange());
        };
        self.clock.is_ahead(ahead);
        self.siblings.store(siblings, Ordering::Relaxed);
        self.alone.found(asked, alone);
        let beat_at = match self.forget(more).await {
            true => told.now,
            false => told.now.plus(BEAT),
        };
        self.beat_at.store(beat_at.0, Ordering::Relaxed);
        self.due_from.store(first.0, Ordering::Release);
        let epoch = self.epoch().clone();
        if edition != self.edition.load(Ordering::Relaxed)
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
    async fn forget(&self, mut more: bool) -> bool {
        for _ in 0..ROUNDS {
            if !more {
                break;
            }
            let found = Vec::new();
            let told = self.ask(Op::Forget { found }).await;
            // If this fails, there is another time.
            more = told.is_ok_and(|told| matches!(told.reply, Reply::Done(true)));
        }
        more
    }

    /// When the row is due that a change leaves.
    fn leaves(&self, change: &Change) {
        if let Change::Until { until, .. }
        | Change::Adopt { until, .. }
        | Change::Own { until, .. } = change
        {
            self.due_at(*until);
        }
    }

    async fn change_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        let (apart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_apart);
        for change in apart {
            self.change(change).await?;
        }
        for some in changes.chunks(AT_ONCE) {
            some.iter().for_each(|change| self.leaves(change));
            match self.ask(Op::SetAll(some.to_vec())).await {
                Err(StoreError::Unfit(_)) => self.change_each(some).await?,
                told => drop(told?),
            }
        }
        Ok(())
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

    async fn put_back(&self, rows: &[Row]) -> Result<(), StoreError> {
        let (held, out): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.place == Place::Held);
        let out = out.into_iter().map(|row| Change::Adopt {
            claimed: row.claimed.clone(),
            until: row.until,
        });
        self.change_all(out.collect()).await?;
        let held: Vec<&Claimed> = held.into_iter().map(|row| &row.claimed).collect();
        for some in held.chunks(AT_ONCE) {
            self.take_all(some, 0).await?;
        }
        Ok(())
    }

    async fn change(&self, change: Change) -> Result<bool, StoreError> {
        let now = self.now();
        self.leaves(&change);
        let Reply::Done(done) = self.ask(Op::Set(change.clone())).await?.reply else {
            return Err(strange());
        };
        self.anew.noted(&change, done, now);
        match change {
            Change::Override { space, key, set } => {
                self.overrides.put(space, key, set);
            }
            Change::Setting { name, text } => {
                self.overrides.put_setting(name, text);
            }
            Change::Clear => self.overrides.clear(),
            _ => {}
        }
        Ok(done)
    }

    /// What news say; `None`: nothing for the caller.
    async fn heard(&self, text: &str) -> Option<Wake> {
        let (what, rest) = text.split_once('\n').unwrap_or((text, ""));
        match what {
            "freed" => Some(Wake::Freed(
                rest.split('\n').filter_map(record::of_name).collect(),
            )),
            "row" => Some(Wake::Row { job: rest.into() }),
            "offered" => {
                let (scope, queue) = read_lane(rest)?;
                Some(Wake::Offered { scope, queue })
            }
            "paused" => {
                let (paused, queue) = rest.split_once('\n')?;
                Some(Wake::Paused {
                    queue: queue.into(),
                    paused: paused == "1",
                })
            }
            "joined" => {
                self.look_around();
                None
            }
            "over" => {
                let epoch = self.epoch().clone()?;
                // If this fails, the next beat tells that ours are old.
                let _read = self.reload(epoch).await;
                Some(Wake::All)
            }
            _ => {
                self.look_around();
                Some(Wake::All)
            }
        }
    }

    /// The states of keys, and the time at which they were read.
    async fn states(&self, names: Vec<String>) -> Result<(Vec<KeyState>, Timestamp), StoreError> {
        let told = self.ask(Op::States(names)).await?;
        match told.reply {
            Reply::States(states) => Ok((states, told.now)),
            _ => Err(strange()),
        }
    }
}

/// No answer but its own belongs to an operation.
fn strange() -> StoreError {
    StoreError::Unavailable("it answers something else".to_owned())
}

impl std::fmt::Debug for SqlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store on a database")
    }
}

impl Store for SqlStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        if asks.is_empty() {
            return Answer::now(Vec::new());
        }
        Answer::later(self.take_all(asks, want))
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

    fn doubt(&self) -> u64 {
        self.clock.doubt()
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        if claims.is_empty() {
            return Answer::now(Vec::new());
        }
        Answer::later(async move {
            let claims = claims.iter().map(|one| (one.job.clone(), one.generation));
            match self.ask(Op::Claimed(claims.collect())).await?.reply {
                Reply::Rows(rows) => Ok(rows),
                _ => Err(strange()),
            }
        })
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        Answer::later(async move {
            self.due_at(self.now());
            match self.ask(Op::Back(job.into(), generation)).await?.reply {
                Reply::Done(done) => Ok(done),
                _ => Err(strange()),
            }
        })
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        if !self.may_have_row(job) {
            return Answer::now(None);
        }
        Answer::later(async move {
            match self.ask(Op::End(job.into(), generation)).await?.reply {
                Reply::Ended(ended) => Ok(ended),
                _ => Err(strange()),
            }
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        let now = self.now().0;
        let quiet = now < self.due_from.load(Ordering::Acquire)
            && now < self.beat_at.load(Ordering::Relaxed);
        if quiet {
            return Answer::now(Vec::new());
        }
        Answer::later(self.overdue(max))
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        if matches!(&change, Change::Hidden { job, .. } if !self.may_have_row(job)) {
            return Answer::now(false);
        }
        Answer::later(self.change(change))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        Answer::later(self.change_all(changes))
    }

    fn overrides(&self) -> &Overrides {
        &self.overrides
    }

    fn times_wiped(&self) -> u64 {
        self.anew.times()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        if !self.may_have_row(job) {
            return Answer::now(None);
        }
        Answer::later(async move {
            match self.ask(Op::Row(job.into())).await?.reply {
                Reply::Row(row) => Ok(row),
                _ => Err(strange()),
            }
        })
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let names = limited.iter().map(|one| record::name(one.space, &one.key));
            let (states, now) = self.states(names.collect()).await?;
            let each = states.iter().zip(limited);
            let lead = lead_of(limited, self.lead.load(Ordering::Relaxed));
            let each = each.map(|(state, one)| state.room_ahead(&one.limits, now, lead));
            Ok(Room::of_all(each))
        })
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        Answer::later(async move {
            let (states, now) = self.states(vec![record::name(space, key)]).await?;
            let state = states.first();
            Ok(state.and_then(|state| Usage::of(state, limits, now)))
        })
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        Answer::later(async move {
            let names = keys.iter().map(|(space, key)| record::name(*space, key));
            let (states, _) = self.states(names.collect()).await?;
            Ok(states.iter().map(KeyState::active).collect())
        })
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        Answer::later(async move {
            match self.ask(Op::Count(place)).await?.reply {
                Reply::Count(count) => Ok(count),
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

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        Answer::later(async move {
            let queue = queue.into();
            self.ask(Op::Pause { queue, paused }).await.map(drop)
        })
    }

    fn lead(&self, micros: u64) {
        self.lead.store(micros, Ordering::Relaxed);
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn is_alone(&self) -> bool {
        self.alone.is()
    }

    fn siblings(&self) -> usize {
        self.siblings.load(Ordering::Relaxed)
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let op = Op::Offered {
                scope,
                queue: queue.into(),
                max,
                found: Vec::new(),
            };
            match self.ask(op).await?.reply {
                Reply::Rows(rows) => Ok(rows),
                _ => Err(strange()),
            }
        })
    }

    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        Answer::later(async move {
            match self.ask(Op::Others(queue.to_owned())).await?.reply {
                Reply::Count(count) => Ok(count as u64),
                _ => Err(strange()),
            }
        })
    }

    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let found = Vec::new();
            match self.ask(Op::RowsOfOthers { max, found }).await?.reply {
                Reply::Rows(rows) => Ok(rows),
                _ => Err(strange()),
            }
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(async move {
            let knew = self.epoch().clone();
            self.join(knew).await?;
            self.due_from.store(0, Ordering::Release);
            self.put_back(rows).await
        })
    }

    fn wake(&self) -> std::pin::Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
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
}
