//! The store of a fleet: a Redis, or a Valkey, that all sidecars share.
//!
//! Each operation is one script, which the server runs in one step: its clock decides, and all keys of
//! a namespace lie under one hash tag, so that a cluster keeps them together. Everything expires by
//! itself. Whatever goes wrong with a call it ends within the timeout, and the next one makes a new
//! connection if there is none.

mod inspect;
mod link;
mod script;
mod target;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use super::anew::Anew;
use super::clock::ServerClock;
use super::fleet::{Alone, BEAT, SETTLING};
use super::{
    Answer, Change, Claimed, Clock, Gen, Number, Overrides, Place, Room, Row, Step, Store,
    StoreError, Usage, Verdict, Wake, Wish, record,
};
use crate::limit::{Key, KeyState, Limited, Limits, Reserved, Space, Timestamp, lead_of};
use link::{Failed, Link};
use script::{Script, Scripts, with_text};

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
    link: Link,
    scripts: Scripts,
    prefix: String,
    owner: Arc<str>,
    clock: ServerClock,
    epoch: Mutex<Option<String>>,
    overrides: Overrides,
    /// Which edition of the overrides that is; below zero: none was read yet.
    edition: AtomicI64,
    anew: Anew,
    siblings: AtomicUsize,
    /// How long a hand-out takes, in microseconds.
    lead: AtomicU64,
    alone: Alone,
    /// When the next beat is due, and before which time no row of ours is, by the store's clock.
    beat_at: AtomicU64,
    due_from: AtomicU64,
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
            clock: ServerClock::new(own, given),
            epoch: Mutex::default(),
            overrides: Overrides::default(),
            edition: AtomicI64::new(-1),
            anew: Anew::default(),
            siblings: AtomicUsize::new(0),
            lead: AtomicU64::new(0),
            alone: Alone::default(),
            beat_at: AtomicU64::new(0),
            due_from: AtomicU64::new(0),
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

    fn failed(&self, why: &str) -> StoreError {
        StoreError::Unavailable(format!("{}: {why}", self.link.place()))
    }

    fn epoch(&self) -> MutexGuard<'_, Option<String>> {
        self.epoch.lock()
    }

    fn command(&self, script: &Script, epoch: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.hash).arg(1).arg(&self.prefix);
        match &self.clock.given {
            Some(given) => command.arg(given.now().0),
            None => command.arg(""),
        };
        command.arg(&*self.owner).arg(epoch);
        command
    }

    /// Runs a script with what `write` adds to its arguments; the answer begins with the server's time.
    async fn run(
        &self,
        script: &Script,
        write: impl FnOnce(&mut Cmd),
    ) -> Result<Vec<Value>, StoreError> {
        let known = self.epoch().clone();
        let epoch = match known {
            Some(epoch) => epoch,
            None => self.join(None).await?,
        };
        let mut command = self.command(script, &epoch);
        write(&mut command);
        self.send(script, &command).await
    }

    async fn send(&self, script: &Script, command: &Cmd) -> Result<Vec<Value>, StoreError> {
        let mut sent = Instant::now();
        let mut answer = self.link.send(command).await;
        if matches!(&answer, Err(Failed::Said(code, _)) if code == "NOSCRIPT") {
            sent = Instant::now();
            answer = self.link.send(&with_text(command, script)).await;
        }
        match answer {
            Ok(Value::Array(told)) => {
                if let Some(now) = told.first().and_then(wire::int) {
                    self.clock.told(wire::read_time(now), sent);
                }
                Ok(told)
            }
            Ok(other) => Err(self.failed(&format!("it answers {other:?}"))),
            Err(failed) => Err(self.refused(failed)),
        }
    }

    fn refused(&self, failed: Failed) -> StoreError {
        let (code, whole) = match failed {
            Failed::Store(error) => return error,
            Failed::Said(code, whole) => (code, whole),
        };
        match code.as_str() {
            "WIPED" => StoreError::Wiped,
            "SETTLING" => StoreError::Settling,
            "LATE" => StoreError::Timeout,
            "NOPERM" | "NOAUTH" | "WRONGPASS" => {
                StoreError::Unusable(format!("{whole}; {}", self.link.needs()))
            }
            "FOREIGN" | "WRONGTYPE" => StoreError::Unusable(format!(
                "{whole}: something else is under {}*; another store.namespace helps",
                self.prefix
            )),
            // What a script may not do has no code of its own: Redis 7.0, and what came after it.
            _ if whole.contains("executing the script can't")
                || whole.contains("ACL failure in script") =>
            {
                StoreError::Unusable(format!("{whole}; {}", self.link.needs()))
            }
            _ => StoreError::Unavailable(whole),
        }
    }

    /// Learns the epoch of the store's data, or begins one; `knew` is the one before.
    async fn join(&self, knew: Option<String>) -> Result<String, StoreError> {
        let mut command = self.command(&self.scripts.join, "");
        let fresh = format!("{:016x}", rand::random::<u64>());
        command
            .arg(fresh)
            .arg(knew.as_deref().unwrap_or_default())
            .arg(SETTLING);
        let told = self.send(&self.scripts.join, &command).await?;
        let epoch = told.get(1).and_then(wire::text);
        let epoch = epoch.ok_or_else(|| self.strange(&told))?.to_owned();
        if knew.is_some_and(|knew| knew != epoch) {
            // Until this is done we go by the data that are gone, so that it is begun again if it fails.
            self.begin_anew(&epoch).await?;
        } else if self.edition.load(Ordering::Relaxed) < 0 {
            self.reload(&epoch).await?;
        }
        *self.epoch() = Some(epoch.clone());
        Ok(epoch)
    }

    /// Puts back what we know beside our rows of data that are gone, and reads what is there now.
    async fn begin_anew(&self, epoch: &str) -> Result<(), StoreError> {
        let now = self.now();
        let known = self.overrides.standing(now);
        let (mut put_back, mut shut) = (0, self.anew.shut_again(now));
        // Asked with none too: whether it is too late concerns the shut keys as well.
        let none = known.is_empty().then_some(&known[..]);
        for some in known.chunks(AT_ONCE).chain(none) {
            let mut command = self.command(&self.scripts.set, epoch);
            self.write_deadline(&mut command);
            wire::write_put_back(&mut command, some);
            let told = self.send(&self.scripts.set, &command).await?;
            let count = told.get(1).and_then(wire::int);
            match u64::try_from(count.ok_or_else(|| self.strange(&told))?) {
                Ok(count) => put_back += count,
                // What has been opened or taken away since is not known here.
                Err(_) => shut.clear(),
            }
        }
        for some in shut.chunks(AT_ONCE) {
            let mut command = self.command(&self.scripts.set, epoch);
            self.write_deadline(&mut command);
            wire::write_changes(&mut command, some, now);
            self.send(&self.scripts.set, &command).await?;
        }
        self.reload(epoch).await?;
        self.anew
            .tell(&known, put_back, &self.overrides, self.now());
        Ok(())
    }

    /// Reads the overrides.
    async fn reload(&self, epoch: &str) -> Result<(), StoreError> {
        let mut command = self.command(&self.scripts.look, epoch);
        command.arg("over");
        let told = self.send(&self.scripts.look, &command).await?;
        let edition = told.get(1).and_then(wire::int);
        let fields = told.get(2).and_then(wire::list).unwrap_or_default();
        let pairs = fields.chunks_exact(2).filter_map(|pair| {
            let [name, text] = pair else { return None };
            record::kept(wire::text(name)?, wire::text(text)?)
        });
        self.overrides.replace(pairs, self.now());
        self.edition.store(edition.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    fn strange(&self, told: &[Value]) -> StoreError {
        self.failed(&format!("its answer is not understood: {told:?}"))
    }

    fn rows(&self, told: &[Value]) -> Result<Vec<Row>, StoreError> {
        let rows = told.iter().map(|one| wire::row(one, &self.owner));
        rows.collect::<Option<_>>()
            .ok_or_else(|| self.strange(told))
    }

    fn done(&self, told: &[Value]) -> Result<bool, StoreError> {
        match told.get(1).and_then(wire::int) {
            Some(done) => Ok(done == 1),
            None => Err(self.strange(told)),
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

    /// When nobody waits any more for what is asked for now.
    fn not_after(&self, now: Timestamp) -> Timestamp {
        now.plus(u64::try_from(self.link.timeout().as_micros()).unwrap_or(u64::MAX))
    }

    /// What `set` begins with: the time from which on it makes and puts back no limits.
    fn write_deadline(&self, to: &mut Cmd) {
        to.arg(wire::time(self.not_after(self.now()).0));
    }

    async fn take_all(&self, asks: &[&Claimed], want: usize) -> Result<Vec<Verdict>, StoreError> {
        let now = self.now();
        let write = |to: &mut Cmd| {
            to.arg(wire::time(self.not_after(now).0))
                .arg(want.min(1 << 30))
                .arg(wire::time(self.lead.load(Ordering::Relaxed)))
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
            self.due_at(ask.look_again(now));
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
        let asked = self.alone.ask();
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
        self.clock.is_ahead(wire::read_time(*ahead).0);
        self.siblings
            .store(usize::try_from(*live).unwrap_or(0), Ordering::Relaxed);
        self.alone.found(asked, *others == 0);
        self.beat_at.store(now.plus(BEAT).0, Ordering::Relaxed);
        self.due_from
            .store(wire::read_time(*first).0, Ordering::Release);
        if *edition != self.edition.load(Ordering::Relaxed) {
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

    /// When the row is due that a change leaves.
    fn leaves(&self, change: &Change) {
        if let Change::Until { until, .. }
        | Change::Adopt { until, .. }
        | Change::Own { until, .. } = change
        {
            self.due_at(*until);
        }
    }

    async fn change(&self, change: Change) -> Result<bool, StoreError> {
        let now = self.now();
        self.leaves(&change);
        let write = |to: &mut Cmd| {
            self.write_deadline(to);
            wire::write_change(to, &change, now);
        };
        let told = self.run(&self.scripts.set, write).await?;
        let done = self.done(&told)?;
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

    async fn change_all(&self, changes: Vec<Change>) -> Result<(), StoreError> {
        // What has effects here too is rare, and goes by itself.
        let (apart, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(Change::is_apart);
        for change in apart {
            self.change(change).await?;
        }
        for some in changes.chunks(AT_ONCE) {
            let now = self.now();
            some.iter().for_each(|change| self.leaves(change));
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
                self.look_around();
                return Some(Wake::All);
            }
            _ => return None,
        }
        let mut lines = wire::text(info.data.get(1)?)?.split('\n');
        if lines.next()? == &*self.owner {
            return None;
        }
        match lines.next()? {
            "freed" => Some(Wake::Freed(lines.filter_map(record::of_name).collect())),
            "row" => Some(Wake::Row {
                job: lines.collect::<Vec<_>>().join("\n").into(),
            }),
            "offered" => {
                let lane = lines.collect::<Vec<_>>().join("\n");
                let (scope, queue) = wire::read_lane(&lane)?;
                Some(Wake::Offered { scope, queue })
            }
            "joined" => {
                self.look_around();
                None
            }
            "paused" => {
                let paused = lines.next()? == "1";
                let queue = lines.collect::<Vec<_>>().join("\n").into();
                Some(Wake::Paused { queue, paused })
            }
            "over" => {
                let epoch = self.epoch().clone()?;
                // If this fails, the next beat tells that ours are old.
                let _read = self.reload(&epoch).await;
                Some(Wake::All)
            }
            _ => None,
        }
    }
}

impl Store for RedisStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.clock.at(moment)
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
            self.due_at(self.now());
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

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move { self.reserve_turns(&wish).await })
    }

    fn doubt(&self) -> u64 {
        self.clock.doubt()
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
        self.lead.store(micros, Ordering::Relaxed);
    }

    fn is_alone(&self) -> bool {
        self.alone.is()
    }

    fn siblings(&self) -> usize {
        self.siblings.load(Ordering::Relaxed)
    }

    fn offered<'a>(&'a self, scope: u64, queue: &'a str, max: usize) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let write = |to: &mut Cmd| {
                to.arg("offered").arg(wire::lane(scope, queue)).arg(max);
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

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        Answer::later(async move {
            let knew = self.epoch().clone();
            self.join(knew).await?;
            self.due_from.store(0, Ordering::Release);
            let (held, out): (Vec<_>, Vec<_>) =
                rows.iter().partition(|row| row.place == Place::Held);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_script_may_not_do_is_a_matter_of_rights_whoever_says_it() {
        let config = Config {
            target: Target::parse("redis://nowhere", None).unwrap(),
            namespace: "limits".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(1),
        };
        let store = RedisStore::new(config, Clock::new(0));
        let told = |text: &str| store.refused(Failed::Said("ERR".to_owned(), text.to_owned()));
        for text in [
            "ERR The user executing the script can't run this command or subcommand",
            "ERR ACL failure in script: User a has no permissions to run the 'zadd' command",
        ] {
            let StoreError::Unusable(why) = told(text) else {
                panic!("{text}")
            };
            assert!(why.contains("{limits}:*"), "{why}");
        }
        assert!(matches!(told("ERR other"), StoreError::Unavailable(_)));
    }
}
