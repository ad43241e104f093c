//! The store of a fleet: a Redis, or a Valkey, that all sidecars share.
//!
//! Each operation is one script, which the server runs in one step: its clock decides, and all keys of
//! a namespace lie under one hash tag, so that a cluster keeps them together. Everything expires by
//! itself. Whatever goes wrong with a call it ends within the timeout, and the next one makes a new
//! connection if there is none.

mod ask;
mod info;
mod inspect;
mod link;
mod script;
mod target;
mod wire;

use std::pin::Pin;
use std::sync::Arc;

use redis::Cmd;
use tokio::time::Instant;

use super::clock::ServerClock;
use super::fleet::{BEAT, SETTLING, SILENT};
use super::ledger::{CountOf, KeyStates, Ledger, LooksAfter, RowsOf, StoreFacts};
use super::record::{self, Kept, Written};
use super::remote::{self, Around, Data, Elsewhere, Remote};
use super::{
    Answer, Change, Claimed, Clock, End, Gen, Number, Row, Step, StoreError, Taken, Verdict, Wake,
    Wish,
};
use link::RedisLink;
use ojs_limit::{Key, Reserved, Space, Timestamp};
use script::Scripts;

pub use target::{RedisConfig, RedisTarget};

/// Keeps usage in Redis.
pub struct RedisStore {
    link: Arc<RedisLink>,
    scripts: Scripts,
    prefix: String,
    /// The key that says whose data these are.
    meta: String,
    owner: Arc<str>,
    remote: Remote,
}

impl RedisStore {
    /// A store that is not connected yet. `clock` is this host's, for the time before the first answer.
    pub fn new(config: RedisConfig, clock: Clock) -> RedisStore {
        let remote = Remote::new(ServerClock::new(clock));
        let prefix = format!("{{{}}}:", config.namespace);
        let owner: Arc<str> = config.owner.as_str().into();
        RedisStore {
            link: RedisLink::new(config, format!("{prefix}wake"), remote.told.clone()),
            scripts: Scripts::new(),
            meta: format!("{prefix}meta"),
            prefix,
            owner,
            remote,
        }
    }

    /// Connects, and says whether it is reachable and new enough, with all rights and nothing else under our keys.
    async fn check_server(&self) -> Result<(), StoreError> {
        // It may be forbidden, and that alone is no error.
        let oldest = self.info("server").await;
        if let Some((name, (major, minor))) = oldest.as_ref().and_then(info::oldest)
            && (major, minor) < info::OLDEST
        {
            let why = format!("{name} {major}.{minor} is too old, 6.2 is needed");
            return Err(StoreError::Unusable(format!(
                "{}: {why}",
                self.link.place()
            )));
        }
        let memory = self.info("memory").await;
        let policy = memory.as_ref().and_then(info::eviction);
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            tracing::warn!(
                id = %"store_evicts",
                policy,
                "the Redis forgets keys when its memory is full: set maxmemory-policy noeviction"
            );
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
                    .arg(wire::time(ask.claimed_at.0))
                    .arg(ask.since)
                    .arg(wire::time(ask.stays.0))
                    .arg(wire::time(ask.followed.0));
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
        let served = told.get(2).and_then(wire::served);
        let served = served.ok_or_else(|| self.strange(&told))?;
        let verdicts = told.get(3..).unwrap_or_default().iter().map(wire::verdict);
        let verdicts: Option<Vec<Verdict>> = verdicts.collect();
        let verdicts = verdicts.filter(|verdicts| verdicts.len() == asks.len());
        let verdicts = verdicts.ok_or_else(|| self.strange(&told))?;
        Ok(Taken {
            verdicts,
            ended,
            served,
        })
    }

    async fn reserve_turns(&self, wish: Wish<'_>) -> Result<Reserved, StoreError> {
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

    /// One look reads a part of the offers only, and says where the next one goes on.
    async fn offers(&self, lane: &str, max: usize) -> Result<Vec<Row>, StoreError> {
        let (mut rows, mut from) = (Vec::new(), 0);
        loop {
            let most = max - rows.len();
            let write = |to: &mut Cmd| {
                to.arg("offered").arg(lane).arg(most).arg(from);
            };
            let told = self.run(&self.scripts.look, write).await?;
            let next = told.get(1).and_then(wire::int);
            from = next.ok_or_else(|| self.strange(&told))?;
            rows.extend(self.rows_in(told.get(2..).unwrap_or_default())?);
            if from == 0 || rows.len() >= max {
                return Ok(rows);
            }
        }
    }

    async fn overdue(&self, which: LooksAfter, max: usize) -> Result<Vec<Row>, StoreError> {
        let data = remote::data(self).await?;
        let mut command = self.command(&self.scripts.due, &data);
        command.arg(max.min(10_000));
        command
            .arg(u8::from(which == LooksAfter::Calls))
            .arg(data.beats);
        let told = self.send(&self.scripts.due, &command).await?;
        let numbers = told.get(..8).and_then(wire::ints);
        let Some([now, live, others, first, edition, ahead, adopted, beats]) = numbers.as_deref()
        else {
            return Err(self.strange(&told));
        };
        let now = wire::read_time(*now);
        if let Some(known) = &mut *self.remote.data.lock()
            && known.epoch == data.epoch
        {
            known.wrote = known.wrote.max(now.0);
            known.beats = known.beats.max(*beats);
        }
        let lanes = told.get(8).and_then(wire::list).unwrap_or_default();
        let lanes = lanes.iter().filter_map(wire::text).map(str::to_owned);
        let around = Around {
            siblings: usize::try_from(*live).unwrap_or(0),
            is_alone: *others == 0,
            beat_at: now.plus(BEAT),
            first: wire::read_time(*first),
            edition: *edition,
            ahead: wire::read_time(*ahead).0,
            adopted: adopted.unsigned_abs(),
            lanes: lanes.collect(),
        };
        remote::looked(self, data, around).await?;
        self.rows_in(told.get(9..).unwrap_or_default())
    }
}

impl std::fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.link.place())
    }
}

impl Elsewhere for RedisStore {
    fn remote(&self) -> &Remote {
        &self.remote
    }

    async fn join(&self, knew: Option<&str>) -> Result<Arc<str>, StoreError> {
        let mut command = self.command(&self.scripts.join, &Data::named("".into()));
        let fresh = format!("{:016x}", rand::random::<u64>());
        command
            .arg(fresh)
            .arg(knew.unwrap_or_default())
            .arg(SETTLING)
            .arg(SILENT);
        let told = self.send(&self.scripts.join, &command).await?;
        let epoch = told.get(1).and_then(wire::text);
        Ok(epoch.ok_or_else(|| self.strange(&told))?.into())
    }

    async fn change(&self, data: Data, changes: &[Change]) -> Result<Vec<bool>, StoreError> {
        let mut command = self.command(&self.scripts.set, &data);
        let now = self.remote.clock.now();
        command
            .arg(wire::time(self.not_after(now).0))
            .arg(changes.len());
        for change in changes {
            wire::write_change(&mut command, change, now);
        }
        let told = self.send(&self.scripts.set, &command).await?;
        let done = told.iter().skip(1).map(wire::int);
        let done: Option<Vec<bool>> = done.map(|done| Some(done? == 1)).collect();
        let done = done.filter(|done| done.len() == changes.len());
        done.ok_or_else(|| self.strange(&told))
    }

    async fn put_back(&self, data: Data, known: &[Written]) -> Result<Option<u64>, StoreError> {
        let mut command = self.command(&self.scripts.set, &data);
        let not_after = self.not_after(self.remote.clock.now());
        command.arg(wire::time(not_after.0)).arg(1);
        command.arg("put_back").arg(known.len());
        for one in known {
            wire::write_written(&mut command, one);
        }
        let told = self.send(&self.scripts.set, &command).await?;
        let count = told.get(1).and_then(wire::int);
        // Less than none: it is too late.
        Ok(u64::try_from(count.ok_or_else(|| self.strange(&told))?).ok())
    }

    async fn overrides(&self, data: Data) -> Result<(i64, Vec<Kept>), StoreError> {
        let mut command = self.command(&self.scripts.look, &data);
        command.arg("over");
        let told = self.send(&self.scripts.look, &command).await?;
        let edition = told.get(1).and_then(wire::int);
        let fields = told.get(2).and_then(wire::list).unwrap_or_default();
        let (pairs, _) = fields.as_chunks::<2>();
        let pairs = pairs
            .iter()
            .filter_map(|[name, text]| record::kept(wire::text(name)?, wire::text(text)?));
        Ok((edition.unwrap_or(0), pairs.collect()))
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
            let done = told.get(1).and_then(wire::int);
            Ok(done.ok_or_else(|| self.strange(&told))? == 1)
        })
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let (mut ended, now) = (Vec::new(), self.remote.clock.now());
            for some in ends.chunks(remote::AT_ONCE) {
                let write = |to: &mut Cmd| {
                    to.arg(some.len());
                    some.iter().for_each(|end| wire::write_end(to, end, now));
                };
                let told = self.run(&self.scripts.end, write).await?;
                ended.extend(self.rows_in(told.get(1..).unwrap_or_default())?);
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
        Answer::later(remote::change_all(self, changes))
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
                let (state, seen) = wire::state(told.get(2 * nth - 1), told.get(2 * nth))
                    .ok_or_else(|| self.strange(&told))?;
                now = now.max(seen);
                states.push(state);
            }
            Ok(KeyStates { states, now })
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let (what, of) = match which {
                RowsOf::Job(job) => ("row", job.to_owned()),
                RowsOf::Out { max } => ("rows", max.to_string()),
                RowsOf::Offered { scope, queue, max } => {
                    return self.offers(&record::lane(scope, queue), max).await;
                }
            };
            let write = |to: &mut Cmd| {
                to.arg(what).arg(of);
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
            let write = |to: &mut Cmd| {
                to.arg(name);
                match step {
                    Step::Read => to.arg("read").arg(0).arg(""),
                    Step::Add { by, most } => to.arg("add").arg(by).arg(wire::optional(most)),
                    Step::AddLess {
                        by,
                        most,
                        gone,
                        since,
                    } => {
                        to.arg("less").arg(by).arg(wire::optional(most));
                        to.arg(gone).arg(wire::time(since.0))
                    }
                    Step::Put { value, version } => {
                        to.arg("put").arg(value).arg(wire::optional(version))
                    }
                };
            };
            let told = self.run(&self.scripts.number, write).await?;
            match wire::ints(&told).as_deref() {
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
        Answer::later(self.reserve_turns(wish))
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(remote::announce(self, rows))
    }

    fn check(&self) -> Answer<'_, ()> {
        Answer::later(self.check_server())
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(remote::wake(self))
    }

    fn facts(&self) -> StoreFacts<'_> {
        // A replica that takes the place of its primary may not have the last writes.
        self.remote.facts()
    }
}
