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

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::fleet::BEAT;
use super::remote::{News, Remote, heard, to_put_back};
use super::{
    Answer, Change, Claimed, Clock, Gen, Number, Overrides, Place, Room, Row, Step, Store,
    StoreError, Usage, Verdict, Wake, Wish, record, refused_of,
};
use crate::limit::{Key, KeyState, Limited, Limits, Reserved, Space, Timestamp};
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
        RedisStore::on(config, clock, false)
    }

    /// A store whose server goes by this clock instead of its own, for tests.
    pub fn given(config: Config, clock: Clock) -> RedisStore {
        RedisStore::on(config, clock, true)
    }

    fn on(config: Config, own: Clock, given: bool) -> RedisStore {
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
            remote: Remote::new(own, given),
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
        self.announce(&[]).await.map(drop)
    }

    /// The states of keys, and the time at which they were read.
    async fn states(
        &self,
        names: impl ExactSizeIterator<Item = String>,
    ) -> Result<(Vec<KeyState>, Timestamp), StoreError> {
        let count = names.len();
        let write = |to: &mut Cmd| {
            to.arg("keys").arg(count);
            names.for_each(|name| {
                to.arg(name);
            });
        };
        let told = self.run(&self.scripts.look, write).await?;
        let now = told.first().and_then(wire::int).map(wire::read_time);
        let mut now = now.ok_or_else(|| self.strange(&told))?;
        let mut states = Vec::with_capacity(count);
        for nth in 1..=count {
            let kept = match told.get(nth) {
                None | Some(Value::Nil) => None,
                Some(other) => Some(other),
            };
            let Some(kept) = kept else {
                states.push(KeyState::default());
                continue;
            };
            let state = wire::bytes(kept).and_then(KeyState::unpack);
            let (state, seen) = state.ok_or_else(|| self.strange(&told))?;
            now = now.max(seen);
            states.push(state);
        }
        Ok((states, now))
    }

    async fn take_all(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        let now = self.now();
        let write = |to: &mut Cmd| {
            to.arg(wire::time(self.not_after(now).0))
                .arg(want.min(1 << 30))
                .arg(wire::time(self.remote.lead.load(Ordering::Relaxed)))
                .arg(asks.len());
            for ask in asks {
                to.arg(&*ask.job).arg(wire::time(ask.generation.0));
                wire::write_job(to, ask);
                wire::write_limits(to, &ask.limited, now);
            }
        };
        let told = self.run(&self.scripts.take, write).await?;
        let verdicts = told.get(1..).unwrap_or_default().iter().map(wire::verdict);
        let verdicts: Option<Vec<Verdict>> = verdicts.collect();
        let verdicts = verdicts.filter(|verdicts| verdicts.len() == asks.len());
        for ask in asks {
            self.remote.due_at(ask.look_again(now));
        }
        verdicts.ok_or_else(|| self.strange(&told))
    }

    async fn reserve_turns(&self, wish: &Wish<'_>) -> Result<Reserved, StoreError> {
        let write = |to: &mut Cmd| {
            to.arg(wish.want.min(1 << 10)).arg(wire::time(wish.ahead));
            wire::write_limits(to, std::slice::from_ref(wish.limited), self.now());
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
        let numbers: Option<Vec<i64>> = told.iter().take(6).map(wire::int).collect();
        let Some([now, live, others, first, edition, ahead]) = numbers.as_deref() else {
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
        self.remote.met(asked, siblings, *others == 0);
        self.remote
            .quiet_until(now.plus(BEAT), wire::read_time(*first));
        if self.remote.edition() != Some(*edition) {
            let epoch = self.epoch().clone().unwrap_or_default();
            self.reload(&epoch).await?;
        }
        let lanes = told.get(6).and_then(wire::list).unwrap_or_default();
        for lane in lanes {
            let text = format!("\noffered\n{}", wire::text(lane).unwrap_or_default());
            let data = vec![Value::Nil, Value::BulkString(text.into_bytes())];
            let kind = PushKind::Message;
            // The receiver is in this very store.
            let _received = self.told.send(PushInfo { kind, data });
        }
        self.rows(told.get(7..).unwrap_or_default())
    }

    async fn change(&self, change: Change) -> Result<bool, StoreError> {
        let now = self.now();
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

    async fn change_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        // What has effects here too is rare, and goes by itself.
        let (apart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_apart);
        for change in apart {
            self.change(change).await?;
        }
        for some in changes.chunks(AT_ONCE) {
            let now = self.now();
            some.iter().for_each(|change| self.remote.leaves(change));
            let write = |to: &mut Cmd| {
                self.write_deadline(to);
                wire::write_changes(to, some, now);
            };
            self.run(&self.scripts.set, write).await?;
        }
        Ok(())
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

impl Store for RedisStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.remote.clock.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Vec<Verdict>> {
        if asks.is_empty() {
            return Answer::now(Vec::new());
        }
        Answer::later(self.take_all(asks, want))
    }

    fn claimed<'a>(&'a self, claims: &'a [&'a Claimed]) -> Answer<'a, Vec<Row>> {
        if claims.is_empty() {
            return Answer::now(Vec::new());
        }
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("claimed").arg(claims.len());
                for claim in claims {
                    to.arg(&*claim.job).arg(wire::time(claim.generation.0));
                }
            };
            let told = self.run(&self.scripts.end, write).await?;
            self.rows(told.get(1..).unwrap_or_default())
        })
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        Answer::later(async move {
            let not_after = self.not_after(self.now());
            let write = |to: &mut Cmd| {
                to.arg(wire::time(not_after.0)).arg(job);
                to.arg(wire::time(generation.0));
            };
            let told = self.run(&self.scripts.back, write).await?;
            self.remote.due_at(self.now());
            self.done(&told)
        })
    }

    fn end<'a>(&'a self, job: &'a str, generation: Option<Gen>) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("end").arg(1).arg(job);
                match generation {
                    Some(generation) => to.arg(wire::time(generation.0)),
                    None => to.arg(-1),
                };
            };
            let told = self.run(&self.scripts.end, write).await?;
            let rows = self.rows(told.get(1..).unwrap_or_default())?;
            Ok(rows.into_iter().next())
        })
    }

    fn end_all<'a>(&'a self, claims: &'a [(Arc<str>, Gen)]) -> Answer<'a, ()> {
        Answer::later(async move {
            for some in claims.chunks(AT_ONCE) {
                let write = |to: &mut Cmd| {
                    to.arg("end").arg(some.len());
                    for (job, claim) in some {
                        to.arg(&**job).arg(wire::time(claim.0));
                    }
                };
                self.run(&self.scripts.end, write).await?;
            }
            Ok(())
        })
    }

    fn due(&self, max: usize) -> Answer<'_, Vec<Row>> {
        if self.remote.is_quiet(self.now()) {
            return Answer::now(Vec::new());
        }
        Answer::later(self.overdue(max))
    }

    fn set(&self, change: Change) -> Answer<'_, bool> {
        Answer::later(self.change(change))
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, ()> {
        Answer::later(self.change_all(changes))
    }

    fn overrides(&self) -> &Overrides {
        &self.remote.overrides
    }

    fn times_wiped(&self) -> u64 {
        self.remote.anew.times()
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move { self.reserve_turns(&wish).await })
    }

    fn doubt(&self) -> u64 {
        self.remote.clock.doubt()
    }

    fn row<'a>(&'a self, job: &'a str) -> Answer<'a, Option<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("row").arg(job);
            };
            let told = self.run(&self.scripts.look, write).await?;
            let rows = self.rows(told.get(1..).unwrap_or_default())?;
            Ok(rows.into_iter().next())
        })
    }

    fn room<'a>(&'a self, limited: &'a [Limited]) -> Answer<'a, Room> {
        Answer::later(async move {
            let names = limited.iter().map(|one| record::name(one.space, &one.key));
            let (states, now) = self.states(names).await?;
            Ok(self.remote.room(limited, &states, now))
        })
    }

    fn usage<'a>(
        &'a self,
        space: Space,
        key: &'a Key,
        limits: &'a Limits,
    ) -> Answer<'a, Option<Usage>> {
        Answer::later(async move {
            let name = std::iter::once(record::name(space, key));
            let (states, now) = self.states(name).await?;
            Ok(states
                .first()
                .and_then(|state| Usage::of(state, limits, now)))
        })
    }

    fn active<'a>(&'a self, keys: &'a [(Space, Key)]) -> Answer<'a, Vec<u32>> {
        Answer::later(async move {
            let names = keys.iter().map(|(space, key)| record::name(*space, key));
            let (states, _) = self.states(names).await?;
            Ok(states.iter().map(KeyState::active).collect())
        })
    }

    fn count(&self, place: Place) -> Answer<'_, usize> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("count").arg(match place {
                    Place::Held => "h",
                    Place::Out => "o",
                });
            };
            let told = self.run(&self.scripts.look, write).await?;
            let count = told.get(1).and_then(wire::int);
            let count = count.and_then(|count| usize::try_from(count).ok());
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

    fn pause<'a>(&'a self, queue: &'a str, paused: bool) -> Answer<'a, ()> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                let number = super::fleet::paused(queue);
                self.write_deadline(to);
                to.arg("paused")
                    .arg(number)
                    .arg(queue)
                    .arg(u8::from(paused));
            };
            self.run(&self.scripts.set, write).await?;
            Ok(())
        })
    }

    fn lead(&self, micros: u64) {
        self.remote.lead.store(micros, Ordering::Relaxed);
    }

    fn is_alone(&self) -> bool {
        self.remote.alone.is()
    }

    fn siblings(&self) -> usize {
        self.remote.siblings.load(Ordering::Relaxed)
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("offered").arg(record::lane(scope, queue)).arg(max);
            };
            let told = self.run(&self.scripts.look, write).await?;
            self.rows(told.get(1..).unwrap_or_default())
        })
    }

    fn held_by_others<'a>(&'a self, queue: &'a str) -> Answer<'a, u64> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("others").arg(queue);
            };
            let told = self.run(&self.scripts.look, write).await?;
            let held = told.get(1).and_then(wire::int);
            let held = held.and_then(|held| u64::try_from(held).ok());
            held.ok_or_else(|| self.strange(&told))
        })
    }

    fn rows_of_others(&self, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("rows").arg(max);
            };
            let told = self.run(&self.scripts.look, write).await?;
            self.rows(told.get(1..).unwrap_or_default())
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, Vec<Arc<str>>> {
        Answer::later(async move {
            let knew = self.epoch().clone();
            self.join(knew).await?;
            self.remote.due_at(Timestamp(0));
            let (out, held) = to_put_back(rows);
            self.change_all(out).await?;
            let mut refused = Vec::new();
            for some in held.chunks(AT_ONCE) {
                let verdicts = self.take_all(some, 0).await?;
                refused.extend(refused_of(some, &verdicts));
            }
            Ok(refused)
        })
    }

    fn wake(&self) -> std::pin::Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
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
}
