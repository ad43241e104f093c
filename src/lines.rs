//! The lines of calls that wait here, one for each key whose turns they take: that with `fair`, else the first of a call.
//!
//! In a line stand lanes of calls that are refused alike: of one group, with the same other keys. One of a line asks the
//! store at a time: the first of the lane that is done first, else of the oldest. Where the key of the line refuses it,
//! all wait whose turn is later. Where another key does, its lane waits, and other lanes pass it.
//!
//! Jobs of the same key ask for the same starts, and a call asks sooner than a FETCH. So who had the last start lets the
//! other ask first, for 2 ms, while both want one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::config::EgressSettings;
use crate::hold::KnownGroups;
use crate::limit::{
    Key, Limited, Served, Share, Space, Timestamp, each_key, each_paid_key, share_of,
};

/// How much later asks who had the last start. That wastes none whose time is known, because a start may be asked for from
/// 5 ms before its time.
pub(crate) const BEHIND: Duration = Duration::from_millis(2);
/// So long after a job has asked others of its key are taken to want a start: workers poll every second or two.
const LATELY: Duration = Duration::from_secs(2);
/// Nobody asks again at once: what could be done at once was just done.
const SOON: Duration = Duration::from_millis(1);
/// Those of one group or key have three times as many places as there are free, as queues have in the hold.
const TIMES_FREE: usize = 3;
/// A group or key of which fewer wait gets a place though it has so many.
const FEW: usize = 2;
/// One part of these is kept beside the places for such.
const PARTS: usize = 4;

/// What asks for a start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AskedBy {
    Job,
    Call,
}

/// The lines of this sidecar. Calls have keys of jobs.
#[derive(Default, Debug)]
pub(crate) struct CallLines(Mutex<Standings>);

#[derive(Default, Debug)]
struct Standings {
    by_key: HashMap<Key, KeyLine>,
    /// In which lines calls stand that have this key too, in how many lanes of each.
    beside: HashMap<Key, HashMap<Key, usize>>,
    /// How many have joined so far.
    joined: u64,
    /// How many stand there now, by their ways out.
    waiting: HashMap<Arc<str>, usize>,
    /// How often some were woken.
    wakes: u64,
}

/// The calls that take the turns of one key.
#[derive(Debug)]
struct KeyLine {
    lanes: HashMap<LaneName, CallLane>,
    groups: KnownGroups,
    /// Who asks now, and whose turn that was.
    asking: Option<(u64, CallTurn)>,
    /// Whether something was freed meanwhile.
    freed: bool,
    /// Until when those wait whose turn is not before this one.
    shut: (Instant, CallTurn),
    /// Whose the last start here was since some wait.
    last: Option<AskedBy>,
    /// When a job of the key last asked here.
    job_asked: Option<Instant>,
}

/// When a call is done, in the virtual time of its key, and its number: the least goes first.
type CallTurn = (u64, u64);

/// Calls that are refused alike.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LaneName {
    /// Whose share they take.
    share: Option<Share>,
    /// Their keys beside that of the line.
    others: Arc<[Key]>,
}

/// Some of them, in their order.
#[derive(Default, Debug)]
struct CallLane {
    calls: BTreeMap<u64, WaitingCall>,
    /// Which key refused the first one, and until when all wait for that.
    refused: Option<(Key, Instant)>,
}

#[derive(Debug)]
struct WaitingCall {
    /// Notified when it is to look again.
    notify: Arc<Notify>,
    /// What its start adds to what its group was served.
    price: u64,
    stays: Timestamp,
}

/// A call that may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Comer<'c> {
    pub(crate) limited: &'c [Limited],
    pub(crate) entry: &'c EgressSettings,
    pub(crate) stays: Timestamp,
    pub(crate) now: Timestamp,
}

/// The place of one call in a line, which it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct CallPlace {
    lines: Arc<CallLines>,
    key: Key,
    lane: LaneName,
    egress: Arc<str>,
    id: u64,
    notify: Arc<Notify>,
}

/// What a call does next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallStep {
    /// It asks: since when its group waits, and until when the next one of its lane does.
    Asks { begins: u64, followed: Timestamp },
    /// It waits until it is woken, or until then.
    Waits(Option<Instant>),
}

impl CallStep {
    /// What a call does that stands in no line.
    pub(crate) const ALONE: CallStep = CallStep::Asks {
        begins: u64::MAX,
        followed: Timestamp(0),
    };
}

/// The key whose turns a call with these limits takes.
pub(crate) fn turn_key(limited: &[Limited]) -> Option<&Key> {
    let fair = share_of(limited).map(|(one, _)| one);
    fair.or(limited.first()).map(|one| &one.key)
}

impl LaneName {
    fn of(limited: &[Limited], turn: &Key) -> LaneName {
        let others = each_key(limited).map(|(_, one)| &one.key);
        LaneName {
            share: share_of(limited).map(|(_, share)| share.clone()),
            others: others.filter(|key| *key != turn).cloned().collect(),
        }
    }
}

impl Standings {
    /// Each key of which a start takes something, and for which calls wait.
    fn each_of(&mut self, limited: &[Limited], mut step: impl FnMut(&mut KeyLine)) {
        for (_, one) in each_paid_key(limited).filter(|(_, one)| one.space == Space::Job) {
            if let Some(of_key) = self.by_key.get_mut(&one.key) {
                step(of_key);
            }
        }
    }

    /// Whether one more call may wait. Where some are told apart by their group, their key, or else that of a budget, those
    /// of one leave places to others.
    fn has_place(&self, of: &Comer<'_>, key: &Key, lane: &LaneName) -> bool {
        let most = of.entry.max_waiting;
        let waiting = self.waiting.get(&of.entry.name).copied().unwrap_or(0);
        let free = most.saturating_sub(waiting);
        let is_apart = lane.share.is_some() || of.entry.key.constant().is_none();
        let mut budgets = of.entry.budgets.iter();
        if !is_apart && budgets.all(|budget| budget.key.constant().is_some()) {
            return free > 0;
        }
        let line = self.by_key.get(key);
        let own = line.map_or(0, |line| match is_apart {
            true => line.waiting_of(lane.share.as_ref()),
            false => line.lanes.get(lane).map_or(0, |lane| lane.calls.len()),
        });
        let is_few = own < FEW && most > 0 && waiting < most + (most / PARTS).max(1);
        is_few || (free > 0 && own < free.saturating_mul(TIMES_FREE))
    }

    /// A lane is there from now on.
    fn lane_came(&mut self, key: &Key, lane: &LaneName) {
        for other in &*lane.others {
            let of_other = self.beside.entry_ref(other).or_default();
            *of_other.entry_ref(key).or_default() += 1;
        }
    }

    /// A lane has gone.
    fn lane_went(&mut self, key: &Key, lane: &LaneName) {
        for other in &*lane.others {
            let Some(of_other) = self.beside.get_mut(other) else {
                continue;
            };
            let lanes = of_other.get_mut(key).map(|lanes| {
                *lanes -= 1;
                *lanes
            });
            if lanes == Some(0) {
                of_other.remove(key);
            }
            if of_other.is_empty() {
                self.beside.remove(other);
            }
        }
    }
}

impl KeyLine {
    fn new(now: Instant) -> KeyLine {
        KeyLine {
            lanes: HashMap::new(),
            groups: KnownGroups::default(),
            asking: None,
            freed: false,
            shut: (now, CallTurn::default()),
            last: None,
            job_asked: None,
        }
    }

    fn waiting(&self) -> usize {
        self.lanes.values().map(|lane| lane.calls.len()).sum()
    }

    fn waiting_of(&self, share: Option<&Share>) -> usize {
        let lanes = self.lanes.iter();
        let own = lanes.filter(|(name, _)| name.share.as_ref() == share);
        own.map(|(_, lane)| lane.calls.len()).sum()
    }

    /// What the store says of a group.
    fn note(&mut self, of: &Served, now: Timestamp) {
        if self.groups.note(of, now) {
            let shares = self.lanes.keys().filter_map(|name| name.share.as_ref());
            shares
                .filter(|share| share.group != of.group)
                .for_each(|share| self.groups.see(&share.group, now));
        }
    }

    /// The turn of the first of a lane, and that call.
    fn first<'l>(
        &self,
        name: &LaneName,
        lane: &'l CallLane,
    ) -> Option<(CallTurn, &'l WaitingCall)> {
        let (id, call) = lane.calls.first_key_value()?;
        let share = name.share.as_ref();
        let since = share.and_then(|share| self.groups.since(&share.group));
        let done = since.unwrap_or(0).saturating_add(call.price);
        Some(((done, *id), call))
    }

    /// Who is to ask next.
    fn best(&self, now: Instant) -> Option<(CallTurn, &WaitingCall)> {
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|(_, lane)| lane.until() <= Some(now));
        let firsts = lanes.filter_map(|(name, lane)| self.first(name, lane));
        firsts.min_by_key(|(turn, _)| *turn)
    }

    /// Who is to ask next looks whether it may.
    fn rouse(&self) {
        let next = self.best(Instant::now()).filter(|_| self.asking.is_none());
        if let Some((_, call)) = next {
            call.notify.notify_one();
        }
    }

    /// Something of the key of the line was freed, or of all keys.
    fn wake(&mut self) {
        (self.freed, self.shut.0) = (true, Instant::now());
        self.rouse();
    }

    /// Something of another key was freed, or of all.
    fn wake_lanes(&mut self, freed: Option<&Key>) {
        self.freed = true;
        for lane in self.lanes.values_mut() {
            if freed.is_none_or(|key| lane.refused.as_ref().is_some_and(|(by, _)| by == key)) {
                lane.refused = None;
            }
        }
        self.rouse();
    }

    /// What the call `id` of a lane does next.
    fn step(&mut self, name: &LaneName, id: u64, now: Instant) -> CallStep {
        let Some(lane) = self.lanes.get(name) else {
            return CallStep::Waits(None);
        };
        let mut calls = lane.calls.iter();
        if calls.next().is_none_or(|(first, _)| *first != id) {
            return CallStep::Waits(None);
        }
        let followed = calls.next().map_or(Timestamp(0), |(_, next)| next.stays);
        if lane.until() > Some(now) {
            return CallStep::Waits(lane.until());
        }
        if self.asking.is_some() {
            return CallStep::Waits(None);
        }
        let Some((turn, _)) = self.best(now).filter(|((_, best), _)| *best == id) else {
            self.rouse();
            return CallStep::Waits(None);
        };
        if now < self.shut.0 && turn >= self.shut.1 {
            return CallStep::Waits(Some(self.shut.0));
        }
        (self.asking, self.freed) = (Some((id, turn)), false);
        let share = name.share.as_ref();
        let known = share.map(|share| self.groups.since(&share.group));
        CallStep::Asks {
            begins: known.flatten().unwrap_or(u64::MAX),
            followed,
        }
    }

    /// The call `id` of a lane was refused, by this other key or that of the line, and asks again then.
    fn refused(&mut self, name: &LaneName, id: u64, by: Option<&Key>, again: Instant) {
        let asked = self.asking.take_if(|(of, _)| *of == id);
        let lane = self.lanes.get(name);
        let first = lane.and_then(|lane| self.first(name, lane));
        let turn = asked.map(|(_, turn)| turn).or(first.map(|(turn, _)| turn));
        let again = again.max(Instant::now() + SOON);
        match (by, self.lanes.get_mut(name)) {
            // It asks again.
            _ if self.freed => {}
            (Some(by), Some(lane)) => lane.refused = Some((by.clone(), again)),
            _ => self.shut = (again, turn.unwrap_or_default()),
        }
        self.rouse();
    }
}

impl CallLane {
    fn until(&self) -> Option<Instant> {
        self.refused.as_ref().map(|(_, until)| *until)
    }
}

impl CallLines {
    /// Whether some wait for the turns of a key.
    pub(crate) fn has(&self, key: &Key) -> bool {
        self.0.lock().by_key.contains_key(key)
    }

    /// Stands behind all others of its lane; `None`: there is no place.
    pub(crate) fn join(self: &Arc<CallLines>, of: &Comer<'_>) -> Option<CallPlace> {
        let key = turn_key(of.limited)?;
        let lane = LaneName::of(of.limited, key);
        let mut standings = self.0.lock();
        if !standings.has_place(of, key, &lane) {
            return None;
        }
        standings.joined += 1;
        let (id, notify, egress) = (standings.joined, Arc::default(), &of.entry.name);
        *standings.waiting.entry_ref(&**egress).or_default() += 1;
        let line = standings.by_key.entry_ref(key);
        let line = line.or_insert_with(|| KeyLine::new(Instant::now()));
        let (is_new, share) = (!line.lanes.contains_key(&lane), share_of(of.limited));
        if let Some(share) = lane.share.as_ref().filter(|_| is_new) {
            line.groups.see(&share.group, of.now);
        }
        let call = WaitingCall {
            notify: Arc::clone(&notify),
            price: share.map_or(0, |(one, share)| share.price(&one.cost)),
            stays: of.stays,
        };
        let calls = line.lanes.entry(lane.clone()).or_default();
        calls.calls.insert(id, call);
        if is_new {
            standings.lane_came(key, &lane);
        }
        Some(CallPlace {
            lines: Arc::clone(self),
            key: key.clone(),
            lane,
            egress: Arc::clone(egress),
            id,
            notify,
        })
    }

    /// When the first call in the line of these limits asks; `None`: nobody waits there.
    pub(crate) fn asks_at(&self, limited: &[Limited]) -> Option<Instant> {
        let key = turn_key(limited)?;
        let standings = self.0.lock();
        let line = standings.by_key.get(key)?;
        let lane = line.lanes.get(&LaneName::of(limited, key));
        lane.and_then(CallLane::until).max(Some(line.shut.0))
    }

    /// How many calls wait.
    pub(crate) fn all_waiting(&self) -> usize {
        self.0.lock().waiting.values().sum()
    }

    /// How many calls of a way out wait.
    pub(crate) fn waiting_at(&self, egress: &str) -> usize {
        self.0.lock().waiting.get(egress).copied().unwrap_or(0)
    }

    /// The keys for which calls may wait.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let standings = self.0.lock();
        let keys = standings.by_key.keys().chain(standings.beside.keys());
        keys.cloned().collect()
    }

    /// How many calls wait for a key.
    pub(crate) fn waiting(&self, key: &Key) -> usize {
        let standings = self.0.lock();
        let in_line = standings.by_key.get(key).map_or(0, KeyLine::waiting);
        let beside = standings.beside.get(key).into_iter().flatten();
        let lines = beside.filter_map(|(turn, _)| standings.by_key.get(turn));
        let lanes = lines.flat_map(|line| line.lanes.values());
        let refused = lanes.filter(|lane| lane.refused.as_ref().is_some_and(|(by, _)| by == key));
        in_line + refused.map(|lane| lane.calls.len()).sum::<usize>()
    }

    /// The other keys that refused calls which wait for the turns of this one.
    pub(crate) fn refusing(&self, key: &Key) -> BTreeSet<Key> {
        let standings = self.0.lock();
        let line = standings.by_key.get(key).into_iter();
        let lanes = line.flat_map(|line| line.lanes.values());
        let by = lanes.filter_map(|lane| Some(lane.refused.as_ref()?.0.clone()));
        by.collect()
    }

    /// Whose calls wait for the turns of a key, what the first of each adds to what it was served, and how many they are.
    pub(crate) fn shares(&self, key: &Key) -> Vec<(Share, u64, usize)> {
        let standings = self.0.lock();
        let line = standings.by_key.get(key);
        let lanes = line.into_iter().flat_map(|line| &line.lanes);
        let mut all = BTreeMap::<Arc<str>, (Share, u64, usize)>::new();
        for (name, lane) in lanes {
            if let Some((share, (_, first))) = name.share.as_ref().zip(lane.calls.first_key_value())
            {
                let known = || (share.clone(), first.price, 0);
                all.entry(share.group.clone()).or_insert_with(known).2 += lane.calls.len();
            }
        }
        all.into_values().collect()
    }

    /// What the store says of groups.
    pub(crate) fn served(&self, served: &[Served], now: Timestamp) {
        if served.is_empty() {
            return;
        }
        let mut standings = self.0.lock();
        for of in served {
            if let Some(line) = standings.by_key.get_mut(&of.key) {
                line.note(of, now);
                line.rouse();
            }
        }
    }

    /// A job asks for a start. Whether calls of one of its keys are to ask before it.
    pub(crate) fn job_asks(&self, limited: &[Limited]) -> bool {
        let mut standings = self.0.lock();
        let mut is_behind = false;
        standings.each_of(limited, |of_key| {
            of_key.job_asked = Some(Instant::now());
            is_behind |= of_key.last == Some(AskedBy::Job);
        });
        is_behind
    }

    /// Whether jobs of the key are to ask before the first of its calls.
    pub(crate) fn call_is_behind(&self, key: &Key) -> bool {
        let standings = self.0.lock();
        let of_key = standings.by_key.get(key);
        let had_it = of_key.filter(|of_key| of_key.last == Some(AskedBy::Call));
        let asked = had_it.and_then(|of_key| of_key.job_asked);
        asked.is_some_and(|asked| asked.elapsed() < LATELY)
    }

    /// One of these has started.
    pub(crate) fn started(&self, by: AskedBy, limited: &[Limited]) {
        let mut standings = self.0.lock();
        standings.each_of(limited, |of_key| of_key.last = Some(by));
    }

    /// Who waits for one of these keys asks again.
    pub(crate) fn wake<'a>(&self, freed: impl Iterator<Item = (Space, &'a Key)>) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        let Standings { by_key, beside, .. } = &mut *standings;
        if by_key.is_empty() {
            return;
        }
        for (_, key) in freed.filter(|(space, _)| *space == Space::Job) {
            if let Some(line) = by_key.get_mut(key) {
                line.wake();
            }
            for turn in beside.get(key).into_iter().flat_map(HashMap::keys) {
                if let Some(line) = by_key.get_mut(turn) {
                    line.wake_lanes(Some(key));
                }
            }
        }
    }

    /// All that are first in a line ask again.
    pub(crate) fn wake_all(&self) {
        let mut standings = self.0.lock();
        standings.wakes += 1;
        for line in standings.by_key.values_mut() {
            line.wake();
            line.wake_lanes(None);
        }
    }

    /// How often some were woken.
    pub(crate) fn wakes(&self) -> u64 {
        self.0.lock().wakes
    }
}

impl CallPlace {
    /// What it does next.
    pub(crate) fn step(&self) -> CallStep {
        let mut standings = self.lines.0.lock();
        let line = standings.by_key.get_mut(&self.key);
        line.map_or(CallStep::Waits(None), |line| {
            line.step(&self.lane, self.id, Instant::now())
        })
    }

    /// It was refused, by this key, and asks again then.
    pub(crate) fn refused(&self, by: Option<&Key>, again: Instant) {
        let mut standings = self.lines.0.lock();
        if let Some(line) = standings.by_key.get_mut(&self.key) {
            let by = by.filter(|by| **by != self.key);
            line.refused(&self.lane, self.id, by, again);
        }
    }

    /// Waits until it is to look again.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

impl Drop for CallPlace {
    fn drop(&mut self) {
        let mut standings = self.lines.0.lock();
        if let Some(waiting) = standings.waiting.get_mut(&self.egress) {
            *waiting -= 1;
        }
        let Some(line) = standings.by_key.get_mut(&self.key) else {
            return;
        };
        line.asking.take_if(|(id, _)| *id == self.id);
        let lane = line.lanes.get_mut(&self.lane);
        let next = lane.and_then(|lane| {
            lane.calls.remove(&self.id);
            let next = lane.calls.first_key_value();
            next.map(|(_, next)| Arc::clone(&next.notify))
        });
        match &next {
            // It may be the first from now on.
            Some(next) => next.notify_one(),
            None => drop(line.lanes.remove(&self.lane)),
        }
        line.rouse();
        if line.lanes.is_empty() {
            standings.by_key.remove(&self.key);
        }
        if next.is_none() {
            standings.lane_went(&self.key, &self.lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;
    use crate::limit::Limits;

    const FILE: &str = "[server]\nupstream = 'none'\n[[egress]]\nname = 'out'\nlisten = '127.0.0.1:8082'\n\
        upstream = 'http://127.0.0.1:9'\nconcurrency = 1\nfair = { by = '{host}' }\n";

    fn limited(group: &str, keys: &[&str]) -> Vec<Limited> {
        let one = |key: &&str| {
            let key = Key::new(key).unwrap();
            Limited::new(Space::Job, key, Limits::default(), "p".into())
        };
        let mut all: Vec<_> = keys.iter().map(one).collect();
        all[0].share = Some(Share {
            group: group.into(),
            weight: std::num::NonZeroU32::MIN,
        });
        all
    }

    fn joins(lines: &Arc<CallLines>, group: &str, keys: &[&str]) -> CallPlace {
        let settings = Settings::parse(FILE, "a.toml").unwrap();
        let comer = Comer {
            limited: &limited(group, keys),
            entry: &settings.egress[0],
            stays: Timestamp::NEVER,
            now: Timestamp(1),
        };
        lines.join(&comer).unwrap()
    }

    fn asks(place: &CallPlace) -> bool {
        matches!(place.step(), CallStep::Asks { .. })
    }

    async fn was_woken(place: &CallPlace) -> bool {
        let woken = tokio::time::timeout(Duration::ZERO, place.woken());
        woken.await.is_ok()
    }

    fn served(group: &str, served: u64) -> Served {
        Served {
            space: Space::Job,
            key: Key::new("k").unwrap(),
            group: group.into(),
            served,
            virtual_time: 5_000,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_another_key_refuses_is_passed_until_something_of_that_is_freed() {
        let lines = Arc::new(CallLines::default());
        let spent = Key::new("spent").unwrap();
        let later = Instant::now() + Duration::from_secs(60);
        let dry = joins(&lines, "a", &["k", "spent"]);
        let other = joins(&lines, "b", &["k", "full"]);
        assert!(asks(&dry) && !asks(&other), "one asks at a time");
        dry.refused(Some(&spent), later);
        assert!(!asks(&dry) && asks(&other), "it is passed");
        assert_eq!(lines.waiting(&spent), 1);
        lines.wake([(Space::Job, &Key::new("full").unwrap())].into_iter());
        drop(other);
        assert!(!asks(&dry), "another key has no part in it");
        lines.wake([(Space::Job, &spent)].into_iter());
        assert!(asks(&dry));
        // What was freed while it asked is not missed.
        lines.wake([(Space::Job, &spent)].into_iter());
        dry.refused(Some(&spent), later);
        assert!(asks(&dry));
        dry.refused(Some(&spent), later);
        tokio::time::sleep_until(later).await;
        assert!(asks(&dry), "its time has come");
        // Who comes after it in its lane waits for the same time, also where another asks now.
        dry.refused(Some(&spent), Instant::now() + Duration::from_secs(60));
        let next = joins(&lines, "a", &["k", "spent"]);
        let asker = joins(&lines, "b", &["k"]);
        assert!(asks(&asker));
        drop(dry);
        assert!(matches!(next.step(), CallStep::Waits(Some(_))));
        drop((asker, next));
        let standings = lines.0.lock();
        assert!(standings.by_key.is_empty() && standings.beside.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_key_of_the_line_has_all_wait_whose_turn_is_later() {
        let lines = Arc::new(CallLines::default());
        let (first, second) = (joins(&lines, "a", &["k"]), joins(&lines, "a", &["k"]));
        let turn = Key::new("k").unwrap();
        assert!(asks(&first));
        first.refused(Some(&turn), Instant::now() + Duration::from_secs(9));
        let other = joins(&lines, "b", &["k"]);
        assert!(!asks(&first) && !asks(&second) && !asks(&other));
        // A group that was served less has its turn before.
        lines.served(&[served("a", 5_000), served("b", 0)], Timestamp(2));
        lines.wake([(Space::Job, &turn)].into_iter());
        assert!(!asks(&first) && asks(&other));
        drop(other);
        assert!(asks(&first));
        drop(first);
        assert!(asks(&second), "who asked has gone, and the next one asks");
    }

    #[tokio::test(start_paused = true)]
    async fn who_becomes_the_first_of_a_line_is_woken() {
        let lines = Arc::new(CallLines::default());
        let (first, other) = (joins(&lines, "a", &["k"]), joins(&lines, "b", &["k"]));
        assert!(!asks(&other) && was_woken(&first).await);
        assert!(!was_woken(&other).await);
        lines.served(&[served("a", 5_000), served("b", 0)], Timestamp(2));
        assert!(was_woken(&other).await, "by what the store says of both");
        // Whoever wakes for nothing has the one look whose turn it is.
        assert!(!was_woken(&other).await && !asks(&first));
        assert!(was_woken(&other).await && asks(&other));
    }
}
