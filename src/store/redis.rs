//! The store of a fleet: a Redis, or a Valkey, that all sidecars share.
//!
//! Each operation is one script, which the server runs in one step: its clock decides, and all keys of
//! a namespace lie under one hash tag, so that a cluster keeps them together. Everything expires by
//! itself. Whatever goes wrong with a call it ends within the timeout, and the next one makes a new
//! connection if there is none.

mod ask;
mod inspect;
mod link;
mod script;
mod target;
mod wire;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::clock::ServerClock;
use super::fleet::BEAT;
use super::ledger::{CountOf, KeyStates, Ledger, RowsOf, Standing};
use super::remote::{News, Remote, heard, put_back};
use super::{
    Answer, Change, Claimed, Clock, Gen, Number, Row, Step, StoreError, Taken, Verdict, Wake, Wish,
    record,
};
use crate::limit::{Key, KeyState, Reserved, Space, Timestamp};
use link::Link;
use script::Scripts;

pub use inspect::{Inspection, Kept};
pub use target::{BadUrl, Target};

/// The most rows that are changed in one call: the server does nothing else meanwhile.
const AT_ONCE: usize = 256;

/// What a store on Redis is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it is.
    pub target: Target,
    /// The hash tag of all keys: sidecars with the same one share their budgets.
    pub namespace: String,
    /// The sidecar's name, which no other has.
    pub owner: String,
    /// The longest that a call may take.
    pub timeout: Duration,
}

/// Keeps usage in Redis.
#[derive(Debug)]
pub struct RedisStore {
    link: Arc<Link>,
    scripts: Scripts,
    prefix: String,
    owner: Arc<str>,
    epoch: Mutex<Option<String>>,
    /// When our last beat was written into these data, by the store's clock; 0: none was yet.
    wrote: AtomicU64,
    remote: Remote,
    news: tokio::sync::Mutex<UnboundedReceiver<PushInfo>>,
    told: UnboundedSender<PushInfo>,
}

impl RedisStore {
    /// A store that is not connected yet. `clock` is this host's, for the time before the first answer.
    pub fn new(config: Config, clock: Clock) -> RedisStore {
        RedisStore::on(config, ServerClock::new(clock))
    }

    /// A store whose server goes by this clock instead of its own, for tests.
    pub fn given(config: Config, clock: Clock) -> RedisStore {
        RedisStore::on(config, ServerClock::given(clock))
    }

    fn on(config: Config, clock: ServerClock) -> RedisStore {
        let (told, news) = unbounded_channel();
        let prefix = format!("{{{}}}:", config.namespace);
        let channel = format!("{prefix}wake");
        RedisStore {
            link: Link::new(config.target, config.timeout, channel, told.clone()),
            scripts: Scripts::new(),
            prefix,
            owner: config.owner.into(),
            epoch: Mutex::default(),
            wrote: AtomicU64::new(0),
            remote: Remote::new(clock),
            news: tokio::sync::Mutex::new(news),
            told,
        }
    }

    /// Connects, and says what is wrong if it cannot be used at all.
    ///
    /// # Errors
    /// It is not reachable, too old, lacks rights, or has something else under our keys.
    pub async fn check(&self) -> Result<(), StoreError> {
        let info = redis::cmd("INFO").arg("server").to_owned();
        // `INFO` may be forbidden, and that alone is no error.
        let oldest = self.link.send(&info).await.ok();
        if let Some((name, (major, minor))) = oldest.as_ref().and_then(inspect::oldest)
            && (major, minor) < inspect::OLDEST
        {
            let why = format!("{name} {major}.{minor} is too old, 6.2 is needed");
            return Err(StoreError::Unusable(format!(
                "{}: {why}",
                self.link.place()
            )));
        }
        self.announce(&[]).await
    }

    async fn take_all(&self, asks: &[&Claimed], want: usize) -> Result<Taken, StoreError> {
        let now = self.remote.clock.now();
        let write = |to: &mut Cmd| {
            to.arg(wire::time(self.not_after(now).0))
                .arg(want.min(1 << 30))
                .arg(asks.len());
            for ask in asks {
                to.arg(&*ask.job)
                    .arg(wire::time(ask.generation.0))
                    .arg(wire::time(ask.claimed_at.0));
                wire::write_job(to, ask);
                wire::write_limits(to, &ask.limited, now);
            }
        };
        let told = self.run(&self.scripts.take, write).await?;
        for ask in asks {
            self.remote.due_at(now.plus(ask.visibility));
        }
        let ended = told.get(1).and_then(wire::list);
        let ended = self.rows_in(ended.ok_or_else(|| self.strange(&told))?)?;
        let verdicts = told.get(2..).unwrap_or_default().iter().map(wire::verdict);
        let verdicts: Option<Vec<Verdict>> = verdicts.collect();
        let verdicts = verdicts.filter(|verdicts| verdicts.len() == asks.len());
        let verdicts = verdicts.ok_or_else(|| self.strange(&told))?;
        Ok(Taken { verdicts, ended })
    }

    async fn reserve_turns(&self, wish: &Wish<'_>) -> Result<Reserved, StoreError> {
        let write = |to: &mut Cmd| {
            to.arg(wish.want.min(1 << 10)).arg(wire::time(wish.ahead));
            wire::write_limits(
                to,
                std::slice::from_ref(wish.limited),
                self.remote.clock.now(),
            );
            to.arg(wish.unused.len());
            for at in wish.unused {
                to.arg(wire::time(at.0));
            }
        };
        let told = self.run(&self.scripts.reserve, write).await?;
        wire::reserved(&told).ok_or_else(|| self.strange(&told))
    }

    async fn overdue(&self, max: usize) -> Result<Vec<Row>, StoreError> {
        let asked = self.remote.alone.ask();
        let before = self.epoch().clone();
        let told = self
            .run(&self.scripts.due, |to| {
                to.arg(max.min(10_000));
            })
            .await?;
        let numbers: Option<Vec<i64>> = told.iter().take(7).map(wire::int).collect();
        let Some([now, live, others, first, edition, ahead, adopted]) = numbers.as_deref() else {
            return Err(self.strange(&told));
        };
        let now = wire::read_time(*now);
        {
            let epoch = self.epoch();
            if before.is_some() && *epoch == before {
                self.wrote.fetch_max(now.0, Ordering::AcqRel);
            }
        }
        self.remote.clock.is_ahead(wire::read_time(*ahead).0);
        let siblings = usize::try_from(*live).unwrap_or(0);
        let adopted = adopted.unsigned_abs();
        self.remote.met(asked, siblings, *others == 0, adopted);
        self.remote
            .quiet_until(now.plus(BEAT), wire::read_time(*first));
        if self.remote.edition() != Some(*edition) {
            let epoch = self.epoch().clone().unwrap_or_default();
            self.reload(&epoch).await?;
        }
        let lanes = told.get(7).and_then(wire::list).unwrap_or_default();
        for lane in lanes {
            let text = format!("\noffered\n{}", wire::text(lane).unwrap_or_default());
            let data = vec![Value::Nil, Value::BulkString(text.into_bytes())];
            let kind = PushKind::Message;
            // The receiver is in this very store.
            let _received = self.told.send(PushInfo { kind, data });
        }
        self.rows_in(told.get(8..).unwrap_or_default())
    }

    async fn change(&self, change: Change) -> Result<bool, StoreError> {
        let now = self.remote.clock.now();
        self.remote.leaves(&change);
        let write = |to: &mut Cmd| {
            self.write_deadline(to);
            wire::write_change(to, &change, now);
        };
        let told = self.run(&self.scripts.set, write).await?;
        let done = self.done(&told)?;
        self.remote.changed(change, done, now);
        Ok(done)
    }

    /// Makes one change, or many that nobody waits to hear of one by one.
    async fn change_all(&self, mut changes: Vec<Change>) -> Result<bool, StoreError> {
        if changes.len() == 1
            && let Some(change) = changes.pop()
        {
            return self.change(change).await;
        }
        // What has effects here too is rare, and goes by itself.
        let (apart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_apart);
        for change in apart {
            self.change(change).await?;
        }
        for some in changes.chunks(AT_ONCE) {
            let now = self.remote.clock.now();
            some.iter().for_each(|change| self.remote.leaves(change));
            let write = |to: &mut Cmd| {
                self.write_deadline(to);
                wire::write_changes(to, some, now);
            };
            self.run(&self.scripts.set, write).await?;
        }
        Ok(true)
    }

    /// What a message of a sibling says; `None`: nothing for the caller.
    async fn heard(&self, info: PushInfo) -> Option<Wake> {
        match info.kind {
            PushKind::Message => {}
            // What was said in between was not heard.
            PushKind::Disconnection | PushKind::Subscribe => {
                self.remote.look_around();
                return Some(Wake::All);
            }
            _ => return None,
        }
        let (owner, message) = wire::text(info.data.get(1)?)?.split_once('\n')?;
        if owner == &*self.owner {
            return None;
        }
        match heard(message)? {
            News::Wake(wake) => Some(wake),
            News::Joined => {
                self.remote.look_around();
                None
            }
            News::Over => {
                let epoch = self.epoch().clone()?;
                // If this fails, the next beat tells that ours are old.
                let _read = self.reload(&epoch).await;
                Some(Wake::All)
            }
            News::Other => None,
        }
    }
}

impl Ledger for RedisStore {
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
        Answer::later(async move {
            let not_after = self.not_after(self.remote.clock.now());
            let write = |to: &mut Cmd| {
                to.arg(wire::time(not_after.0)).arg(job);
                to.arg(wire::time(claim.0));
            };
            let told = self.run(&self.scripts.back, write).await?;
            self.done(&told)
        })
    }

    fn end_all<'a>(&'a self, jobs: &'a [(Arc<str>, Option<Gen>)]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let mut ended = Vec::new();
            for some in jobs.chunks(AT_ONCE) {
                let write = |to: &mut Cmd| {
                    to.arg(some.len());
                    for (job, claim) in some {
                        to.arg(&**job);
                        match claim {
                            Some(claim) => to.arg(wire::time(claim.0)),
                            None => to.arg(-1),
                        };
                    }
                };
                let told = self.run(&self.scripts.end, write).await?;
                ended.extend(self.rows_in(told.get(1..).unwrap_or_default())?);
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
        Answer::later(self.change_all(changes))
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("keys").arg(keys.len());
                for (space, key) in keys {
                    to.arg(record::name(*space, key));
                }
            };
            let told = self.run(&self.scripts.look, write).await?;
            let now = told.first().and_then(wire::int).map(wire::read_time);
            let mut now = now.ok_or_else(|| self.strange(&told))?;
            let mut states = Vec::with_capacity(keys.len());
            for nth in 1..=keys.len() {
                states.push(match told.get(nth) {
                    None | Some(Value::Nil) => KeyState::default(),
                    Some(kept) => {
                        let state = wire::bytes(kept).and_then(KeyState::unpack);
                        let (state, seen) = state.ok_or_else(|| self.strange(&told))?;
                        now = now.max(seen);
                        state
                    }
                });
            }
            Ok(KeyStates { states, now })
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                match which {
                    RowsOf::Job(job) => to.arg("row").arg(job),
                    RowsOf::Offered { scope, queue, max } => {
                        to.arg("offered").arg(record::lane(scope, queue)).arg(max)
                    }
                    RowsOf::Others { max } => to.arg("rows").arg(max),
                };
            };
            let told = self.run(&self.scripts.look, write).await?;
            self.rows_in(told.get(1..).unwrap_or_default())
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                match which {
                    CountOf::Out => to.arg("count"),
                    CountOf::HeldByOthers(queue) => to.arg("others").arg(queue),
                };
            };
            let told = self.run(&self.scripts.look, write).await?;
            let count = told.get(1).and_then(wire::int);
            let count = count.and_then(|count| u64::try_from(count).ok());
            count.ok_or_else(|| self.strange(&told))
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        Answer::later(async move {
            let optional = |number: Option<i64>| number.map_or(String::new(), |n| n.to_string());
            let write = |to: &mut Cmd| {
                to.arg(name);
                match step {
                    Step::Read => to.arg("read").arg(0).arg(""),
                    Step::Add { by, most } => to.arg("add").arg(by).arg(optional(most)),
                    Step::Put { value, version } => to
                        .arg("put")
                        .arg(value)
                        .arg(version.map_or(String::new(), |n| n.to_string())),
                };
            };
            let told = self.run(&self.scripts.number, write).await?;
            let parts: Option<Vec<i64>> = told.iter().map(wire::int).collect();
            match parts.as_deref() {
                Some([_, value, version, put, done]) => Ok(Number {
                    value: *value,
                    version: version.cast_unsigned(),
                    put_at: wire::read_time(*put),
                    done: *done == 1,
                }),
                _ => Err(self.strange(&told)),
            }
        })
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move { self.reserve_turns(&wish).await })
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
                let Some(info) = news.recv().await else {
                    // The other end is in this very store.
                    return std::future::pending().await;
                };
                if let Some(wake) = self.heard(info).await {
                    return wake;
                }
            }
        })
    }

    fn standing(&self) -> Standing<'_> {
        // A replica that takes the place of its primary may not have the last writes.
        self.remote.standing()
    }
}
