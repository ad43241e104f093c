//! The naive model: every start in one plain list, every question answered by going through it.

use std::collections::BTreeMap;

use ojs_throttle::limit::{
    EARLY, Key, Limited, Measure, OnLimit, Rate, Refusal, Space, Strategy, Throttle, Timestamp,
    WindowKind,
};
use ojs_throttle::store::{Claimed, Gen, Place, Verdict};

/// One key's part of a start.
#[derive(Clone, Debug)]
pub struct Start {
    pub space: Space,
    pub key: Key,
    pub at: Timestamp,
    /// When it was decided.
    pub then: Timestamp,
    /// The windows in which it counts.
    pub windows: Vec<Rate>,
    /// What it took spacing with.
    pub throttles: Vec<Throttle>,
    /// Not a start but an end, that gives back this much spacing.
    pub took: u64,
}

impl Start {
    /// Whether it changed the spacing.
    fn spaces(&self) -> bool {
        self.took > 0 || !self.throttles.is_empty()
    }
}

/// Whether two rates count in the same windows.
fn same_window(one: &Rate, other: &Rate) -> bool {
    one.period == other.period && one.window == other.window
}

/// The fixed or calendar window of a time: its number or date, and when the next one begins.
fn window_of(rate: &Rate, at: Timestamp) -> (String, Timestamp) {
    match &rate.window {
        WindowKind::Sliding => unreachable!("has no edges"),
        WindowKind::Fixed => {
            let (number, period) = (at.0 / rate.period.get(), rate.period.get());
            (number.to_string(), Timestamp((number + 1) * period))
        }
        WindowKind::Calendar(_, zone) => {
            let at = jiff::Timestamp::from_microsecond(at.0 as i64).unwrap();
            let wall = at.in_tz(zone.name()).unwrap();
            let next = wall.tomorrow().unwrap().start_of_day().unwrap();
            let next = Timestamp(next.timestamp().as_microsecond() as u64);
            (wall.date().to_string(), next)
        }
    }
}

#[derive(Clone, Debug)]
pub struct ModelRow {
    pub generation: Gen,
    pub place: Place,
    pub visibility: u64,
    /// Numbers of the starts it has out.
    pub starts: Vec<usize>,
    /// The keys whose slots it has.
    pub slots: Vec<(Space, Key)>,
}

impl ModelRow {
    pub fn is_out(&self) -> bool {
        matches!(self.place, Place::Out(_))
    }

    /// When its owner looks at it; what is offered, at any time.
    fn until(&self) -> Timestamp {
        match self.place {
            Place::Offered => Timestamp(0),
            Place::Held(until) => until,
            Place::Out(due) => due.at(),
        }
    }

    fn is_taken_over(&self) -> bool {
        matches!(self.place, Place::Held(_))
    }
}

/// All that ever happened.
#[derive(Default, Debug)]
pub struct Oracle {
    pub starts: Vec<Start>,
    pub rows: BTreeMap<String, ModelRow>,
    pub shut: BTreeMap<(Space, Key), Timestamp>,
}

impl Oracle {
    /// Ends the rows of older claims of these jobs.
    pub fn end_older<'a>(&mut self, asks: &'a [Claimed], now: Timestamp) -> Vec<&'a str> {
        let mut ended = Vec::new();
        for ask in asks {
            let Some(row) = self.rows.get(&*ask.job) else {
                continue;
            };
            if row.generation < ask.generation {
                self.end(&ask.job, None, now);
                ended.push(&*ask.job);
            } else if row.generation == ask.generation && row.is_taken_over() {
                self.rows.remove(&*ask.job);
            }
        }
        ended
    }

    pub fn take(&mut self, asks: &[Claimed], want: usize, now: Timestamp) -> Vec<Verdict> {
        let mut started = 0;
        let mut verdicts = Vec::new();
        for ask in asks {
            let known = self.rows.get(&*ask.job).map(|row| row.generation);
            let verdict = if let Some(known) = known {
                match known > ask.generation {
                    true => Verdict::Outdated,
                    false => Verdict::HasRow,
                }
            } else if started >= want {
                Verdict::Unasked
            } else {
                self.start(ask, now)
            };
            started += usize::from(matches!(verdict, Verdict::Started { .. }));
            verdicts.push(verdict);
        }
        verdicts
    }

    pub fn offer(&mut self, claimed: &Claimed, now: Timestamp) -> bool {
        if let Some(row) = self.rows.get(&*claimed.job)
            && (row.generation > claimed.generation
                || (row.generation == claimed.generation && row.is_out()))
        {
            return false;
        }
        self.end(&claimed.job, None, now);
        self.keep(claimed, Place::Offered);
        true
    }

    pub fn own(&mut self, job: &str, claim: Gen, next: Gen, until: Timestamp) -> bool {
        let row = self.rows.get_mut(job);
        let row = row.filter(|row| {
            let is_done = row.generation == next && row.is_taken_over();
            row.generation == claim && row.place == Place::Offered || is_done
        });
        let Some(row) = row.filter(|_| next > claim) else {
            return false;
        };
        (row.generation, row.place) = (next, Place::Held(until));
        true
    }

    fn keep(&mut self, claimed: &Claimed, place: Place) -> &mut ModelRow {
        let row = ModelRow {
            generation: claimed.generation,
            place,
            visibility: claimed.visibility,
            starts: Vec::new(),
            slots: Vec::new(),
        };
        self.rows.insert(claimed.job.to_string(), row);
        self.rows.get_mut(&*claimed.job).unwrap()
    }

    fn start(&mut self, ask: &Claimed, now: Timestamp) -> Verdict {
        let mut at = now;
        let mut refusals: Vec<(usize, Refusal)> = Vec::new();
        for (which, limited) in ask.limited.iter().enumerate() {
            let (allowed, why) = self.ask(limited, now);
            at = at.max(allowed);
            // A key's times all count, whichever of its limits is named.
            let opens = why.iter().filter_map(|why| why.at).max();
            let lasts = |why: &Refusal| (why.slot, why.at);
            let last = why.iter().map(lasts).max();
            let named = why.into_iter().find(|why| Some(lasts(why)) == last);
            refusals.extend(named.map(|why| (which, Refusal { at: opens, ..why })));
        }
        if !refusals.is_empty() {
            let lasts = |why: &Refusal| (why.slot, why.at);
            let last = refusals.iter().map(|(_, why)| lasts(why)).max().unwrap();
            let last = refusals.iter().find(|(_, why)| lasts(why) == last);
            let (which, why) = last.cloned().unwrap();
            let action: OnLimit = refusals
                .iter()
                .map(|(which, _)| ask.limited[*which].on_limit)
                .max()
                .unwrap();
            return Verdict::Refused {
                which,
                at: refusals.iter().filter_map(|(_, why)| why.at).max(),
                why,
                action,
            };
        }
        let keys = keys_of(&ask.limited);
        let mut numbers = Vec::new();
        for (space, key) in &keys {
            let of_key = ask
                .limited
                .iter()
                .filter(|l| l.space == *space && l.key == *key);
            let limits: Vec<_> = of_key.map(|l| &l.limits).collect();
            let mut windows: Vec<Rate> = Vec::new();
            for rate in limits.iter().flat_map(|l| &l.rates) {
                if !windows.iter().any(|known| same_window(known, rate)) {
                    windows.push(rate.clone());
                }
            }
            let throttles = limits.iter().filter_map(|l| l.throttle).collect();
            numbers.push(self.starts.len());
            self.starts.push(Start {
                space: *space,
                key: key.clone(),
                at,
                then: now,
                windows,
                throttles,
                took: 0,
            });
        }
        let row = self.keep(ask, Place::Out(at.plus(ask.visibility).into()));
        (row.starts, row.slots) = (numbers, keys);
        Verdict::Started { at }
    }

    /// The time at which one key allows a start, and everything that it refuses for.
    pub fn ask(&self, limited: &Limited, now: Timestamp) -> (Timestamp, Vec<Refusal>) {
        let mut refusals = Vec::new();
        let mut refuse = |strategy, limit, current, at| {
            refusals.push(Refusal {
                strategy,
                limit,
                current,
                at,
                slot: at.is_none(),
            })
        };
        if let Some(until) = self.shut.get(&(limited.space, limited.key.clone()))
            && *until > now
        {
            refuse(Strategy::Shut, 0, 0, Some(until.plus(EARLY)));
        }
        let active = self.active(limited.space, &limited.key);
        if let Some(most) = limited.limits.concurrency
            && active >= most
        {
            refuse(Strategy::Concurrency, most, active, None);
        }
        for rate in &limited.limits.rates {
            let window = self.window(limited.space, &limited.key, rate, now);
            let (count, limit) = (window.len(), rate.limit.get() as usize);
            if count >= limit {
                let opens = self.opens(limited.space, &limited.key, rate, now);
                refuse(
                    Strategy::Rate,
                    rate.limit.get(),
                    count as u32,
                    Some(opens.plus(EARLY)),
                );
            }
        }
        let Some(throttle) = limited.limits.throttle else {
            return (now, refusals);
        };
        let next = self.next(limited.space, &limited.key, &throttle);
        if next > now.plus(EARLY) {
            refuse(
                Strategy::Throttle,
                throttle.limit.get(),
                throttle.limit.get(),
                Some(next),
            );
        }
        (now.max(next), refusals)
    }

    pub fn active(&self, space: Space, key: &Key) -> u32 {
        let has = |row: &&ModelRow| {
            row.slots
                .iter()
                .any(|slot| slot.0 == space && slot.1 == *key)
        };
        self.rows.values().filter(has).count() as u32
    }

    /// When a full window has a place again.
    fn opens(&self, space: Space, key: &Key, rate: &Rate, now: Timestamp) -> Timestamp {
        let window = self.window(space, key, rate, now);
        if rate.window == WindowKind::Sliding {
            return window[window.len() - rate.limit.get() as usize]
                .plus(rate.period.get() + EARLY);
        }
        let end = window_of(rate, now).1;
        match self.window(space, key, rate, end).len() < rate.limit.get() as usize {
            true => end,
            false => window_of(rate, end).1,
        }
    }

    /// When the first of those that count leaves.
    pub fn leaves(
        &self,
        space: Space,
        key: &Key,
        rate: &Rate,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let first = self.window(space, key, rate, now).first().copied()?;
        Some(match rate.window {
            WindowKind::Sliding => first.plus(rate.period.get() + EARLY),
            _ => window_of(rate, now).1,
        })
    }

    /// The times of the starts that count, oldest first.
    pub fn window(&self, space: Space, key: &Key, rate: &Rate, now: Timestamp) -> Vec<Timestamp> {
        let counts = |start: &&Start| match rate.window {
            WindowKind::Sliding => start.at.0 + rate.period.get() + EARLY > now.0,
            // From its decision on, until 5 ms after its time, it may be handed out: in one window or in two.
            _ => {
                let window = |at| window_of(rate, at).0;
                let now = window(now);
                window(start.then) == now || window(start.at.plus(EARLY)) == now
            }
        };
        let of_key = |s: &&Start| s.space == space && s.key == *key;
        let of_window = |s: &&Start| s.windows.iter().any(|known| same_window(known, rate));
        let starts = self.starts.iter().filter(of_key).filter(of_window);
        let mut times: Vec<_> = starts.filter(counts).map(|start| start.at).collect();
        times.sort_unstable();
        times
    }

    /// Spacing, from the first start on, in whole nanoseconds.
    fn next(&self, space: Space, key: &Key, throttle: &Throttle) -> Timestamp {
        let step =
            |t: &Throttle| u128::from(t.period.get() * 1000).div_ceil(u128::from(t.limit.get()));
        let whole = |t: &Throttle| step(t) * u128::from(t.burst.get());
        // What each start left behind, in the terms of the one who asks: a step at least, a burst at most.
        let under = |t: &Throttle, earned: u128, last: u128| match last {
            0 => earned,
            last => earned.clamp(last + step(t), last + whole(t)),
        };
        let (mut earned, mut last) = (0_u128, 0_u128);
        for start in self
            .starts
            .iter()
            .filter(|s| s.space == space && s.key == *key && s.spaces())
        {
            if start.took > 0 {
                let took = u128::from(start.took) * 1000;
                (earned, last) = (earned.saturating_sub(took), last.saturating_sub(took));
                continue;
            }
            let at = u128::from(start.at.0) * 1000;
            let after = |t: &Throttle| under(t, earned, last).max(at) + step(t);
            earned = start.throttles.iter().map(after).max().unwrap().max(earned);
            last = last.max(at);
        }
        let burst = step(throttle) * u128::from(throttle.burst.get() - 1);
        let next = under(throttle, earned, last).saturating_sub(burst);
        Timestamp(next.div_ceil(1000) as u64)
    }

    pub fn back(&mut self, job: &str, generation: Gen) -> bool {
        let is_out = |row: &ModelRow| row.generation == generation && row.is_out();
        if !self.rows.get(job).is_some_and(is_out) {
            return false;
        }
        let row = self.rows.remove(job).unwrap();
        row.starts
            .into_iter()
            .for_each(|number| self.uncount(number));
        true
    }

    /// Takes a start out of the list; what it took of the spacing, if it is still the newest.
    fn uncount(&mut self, number: usize) {
        let start = self.starts[number].clone();
        let same = |s: &Start| s.space == start.space && s.key == start.key;
        let newest = self.starts.iter().rposition(|s| same(s) && s.spaces());
        if newest == Some(number) {
            self.starts[number].throttles.clear();
        }
        self.starts[number].windows.clear();
    }

    pub fn end(&mut self, job: &str, generation: Option<Gen>, now: Timestamp) -> Option<ModelRow> {
        let row = self.rows.get(job)?;
        if generation.is_some_and(|generation| generation < row.generation) {
            return None;
        }
        for number in row.starts.clone() {
            let start = self.starts[number].clone();
            let measured = |t: &Throttle| t.measure == Measure::Completion;
            if !start.throttles.is_empty() && start.throttles.iter().all(measured) {
                self.starts.push(Start {
                    took: now.since(start.at),
                    windows: Vec::new(),
                    throttles: Vec::new(),
                    ..start
                });
            }
        }
        self.rows.remove(job)
    }

    pub fn adopt(&mut self, claimed: &Claimed, until: Timestamp, now: Timestamp) -> bool {
        if let Some(row) = self.rows.get(&*claimed.job)
            && (row.generation > claimed.generation
                || (row.generation == claimed.generation && row.is_out()))
        {
            return false;
        }
        self.end(&claimed.job, None, now);
        self.keep(claimed, Place::Out(until.into())).slots = keys_of(&claimed.limited);
        true
    }

    pub fn due(&self, now: Timestamp) -> Vec<String> {
        let rows = self.rows.iter();
        let mut due: Vec<_> = rows.filter(|(_, row)| row.until() <= now).collect();
        due.sort_by(|a, b| (a.1.until(), a.0).cmp(&(b.1.until(), b.0)));
        due.into_iter().map(|(job, _)| job.clone()).collect()
    }
}

/// Each key once.
fn keys_of(limited: &[Limited]) -> Vec<(Space, Key)> {
    let mut keys: Vec<(Space, Key)> = limited.iter().map(|l| (l.space, l.key.clone())).collect();
    keys.sort();
    keys.dedup();
    keys
}
