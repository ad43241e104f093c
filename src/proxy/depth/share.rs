//! A queue's depth over a fleet: the numbers in the store that [`crate::pressure::share`] reckons with.
//!
//! *Open* is kept in two numbers by turns, one for each period of time, and a period begins with an empty
//! one: so what a sidecar that died had open is forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::pressure::share::{Ended, PERIOD};
use crate::pressure::{CLAIM, Lease, Leased, Others, Shared};
use crate::proxy::{Proxy, Sidecar};
use crate::store::{Number, Step, StoreError};

/// How often the store is told what is not open any more of queues near their bounds.
const TELL: Duration = Duration::from_millis(25);
/// Of how many of these one is for all queues, and for places that nobody used.
const IDLE: u32 = 4;
/// By how much the clocks of sidecars may differ around the beginning of a period, in microseconds. In its
/// last part nothing is told of the number that the next one begins anew.
const SLACK: u64 = 2_000_000;
/// More queues than this are not remembered.
const MOST: usize = 10_000;
/// How often a number that changes under our hands is tried again.
const TRIES: usize = 5;

/// What one sidecar knows of the store's numbers.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Shares {
    /// Whether depths are shared now.
    on: AtomicBool,
    /// Queues whose *open* of this period is known to have begun.
    begun: Mutex<HashMap<Arc<str>, u64>>,
}

impl Shares {
    fn knows(&self, queue: &str, period: u64) -> bool {
        let begun = self.begun.lock();
        begun.get(queue) == Some(&period)
    }

    fn note(&self, queue: &str, period: Option<u64>) {
        let mut begun = self.begun.lock();
        if begun.len() >= MOST {
            begun.clear();
        }
        match period {
            Some(period) => begun.insert(Arc::from(queue), period),
            None => begun.remove(queue),
        };
    }
}

fn granted(queue: &str) -> String {
    format!("granted:{queue}")
}

fn open(period: u64, queue: &str) -> String {
    format!("open:{}:{queue}", period % 2)
}

fn add(by: u64, most: Option<u64>) -> Step {
    let signed = |number| i64::try_from(number).unwrap_or(i64::MAX);
    Step::Add {
        by: signed(by),
        most: most.map(signed),
    }
}

fn value(number: Number) -> u64 {
    u64::try_from(number.value).unwrap_or(0)
}

impl Proxy {
    /// Takes places for bounded queues, and tells what became of them, until the sidecar is told to stop.
    /// Where the store is this sidecar's alone there is nothing to do.
    pub(in crate::proxy) async fn share_depths(&self, stop: CancellationToken) {
        let sidecar = &self.sidecar;
        if !sidecar.store.is_shared() {
            return;
        }
        sidecar.shares.on.store(true, Ordering::Release);
        let mut ticks = interval(TELL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0_u32;
        loop {
            let sharing = sidecar.pressure.is_sharing();
            tokio::select! {
                () = sidecar.pressure.lease_news() => self.lease_all(),
                _ = ticks.tick(), if sharing => {
                    count = count.wrapping_add(1);
                    sidecar.tell_ended(count.is_multiple_of(IDLE)).await;
                }
                () = stop.cancelled() => break,
            }
        }
        sidecar.shares.on.store(false, Ordering::Release);
        sidecar.pressure.alone(sidecar.now());
        sidecar.tell_ended(true).await;
    }

    fn lease_all(&self) {
        let sidecar = &self.sidecar;
        let others = sidecar.store.siblings() as u64;
        for (queue, lease) in sidecar.pressure.take_leases(others) {
            let sidecar = Arc::clone(sidecar);
            let _task = self.sidecar.tasks.spawn(async move {
                let period = sidecar.period();
                let leased = sidecar.lease(&queue, lease, period).await;
                let leased = leased.unwrap_or(match sidecar.store.is_lost() {
                    true => Leased::Lost,
                    false => Leased::Again,
                });
                sidecar
                    .pressure
                    .leased(&queue, leased, period, sidecar.now());
            });
        }
    }
}

impl Sidecar {
    fn period(&self) -> u64 {
        self.store.now().0 / PERIOD
    }

    /// Takes places: *open* first, then *granted*.
    async fn lease(&self, queue: &str, lease: Lease, period: u64) -> Result<Leased, StoreError> {
        self.begin(queue, period).await?;
        let name = open(period, queue);
        let opened = self.store.number(&name, add(lease.jobs, None)).await?;
        if opened.version <= 1 {
            // It was there just now: the store was emptied.
            self.shares.note(queue, None);
            return Ok(Leased::Lost);
        }
        let (mut jobs, all) = (lease.jobs, granted(queue));
        let mut now = self.store.number(&all, add(jobs, lease.most)).await;
        if let (Ok(refused), Some(most)) = (&now, lease.most)
            && !refused.done
        {
            // Others took some meanwhile.
            jobs = most.saturating_sub(value(*refused)).min(jobs);
            if jobs > 0 {
                now = self.store.number(&all, add(jobs, lease.most)).await;
            }
        }
        let given = match &now {
            Ok(now) if now.done => jobs,
            // Where nobody knows, it was granted perhaps, which the next look mends.
            _ => 0,
        };
        if given < lease.jobs {
            let back = Step::Add {
                by: -i64::try_from(lease.jobs - given).unwrap_or(i64::MAX),
                most: None,
            };
            self.store.number(&name, back).await?;
        }
        let granted = value(now?);
        Ok(match given {
            0 => Leased::None { granted },
            jobs => Leased::Some { jobs, granted },
        })
    }

    /// The number of this period is there, and has nothing of an earlier one in it.
    async fn begin(&self, queue: &str, period: u64) -> Result<(), StoreError> {
        if self.shares.knows(queue, period) {
            return Ok(());
        }
        let name = open(period, queue);
        for _ in 0..TRIES {
            let number = self.store.number(&name, Step::Read).await?;
            let begun = number.put_at.0 + SLACK >= period * PERIOD;
            let anew = Step::Put {
                value: 0,
                version: Some(number.version),
            };
            if begun || self.store.number(&name, anew).await?.done {
                self.shares.note(queue, Some(period));
                return Ok(());
            }
        }
        Err(StoreError::Timeout)
    }

    /// What the store knows of a queue, read before the backend is asked: *granted*, then *open*. `None`:
    /// only what passes here is known.
    pub(super) async fn read_shared(&self, queue: &str) -> Option<Shared> {
        let bounded = self.pressure.bounds(queue)?.max_depth.is_some();
        if !bounded || !self.shares.on.load(Ordering::Acquire) {
            return None;
        }
        match self.read_numbers(queue).await {
            // One call that fails is no store that is lost.
            None if !self.store.is_lost() => self.read_numbers(queue).await,
            read => read,
        }
    }

    async fn read_numbers(&self, queue: &str) -> Option<Shared> {
        let period = self.period();
        let ended = self.pressure.take_ended_of(queue, period);
        self.tell_ended_of(queue, ended, period).await;
        let all = granted(queue);
        let granted = self.store.number(&all, Step::Read).await.ok()?;
        let mut sum = 0;
        for period in [period, period + 1] {
            let name = open(period, queue);
            let number = self.store.number(&name, Step::Read).await.ok()?;
            // An older one has nothing in it that is still on its way.
            if number.put_at.0 + SLACK + PERIOD >= self.period() * PERIOD {
                sum += value(number);
            }
        }
        Some(Shared {
            granted: value(granted),
            open: sum,
        })
    }

    /// What siblings hold of a queue, counted after the backend was asked. `follows`: what left since the look
    /// before tells what may be on its way to them; else it has time to arrive. `None`: nobody knows.
    pub(super) async fn read_others(&self, queue: &str, follows: bool) -> Option<Others> {
        if self.store.is_alone() {
            return Some(Others::default());
        }
        let live = self.live();
        let limits = live.policies.gate(queue);
        let limited = !limits.open() || self.set_for_queue(queue).is_some();
        let limited = limited && self.store.siblings() > 0;
        let known = self.pressure.held_by_others(queue) > 0;
        let mut held = None;
        if follows || !(limited || known) {
            held = self.count_others(queue).await;
        }
        let may_hold = limited || known || held.is_some_and(|held| held > 0);
        if may_hold && !follows {
            sleep(CLAIM).await;
            held = self.count_others(queue).await;
        }
        let more = may_hold && follows;
        held.map(|held| Others { held, more })
    }

    async fn count_others(&self, queue: &str) -> Option<u64> {
        match self.store.held_by_others(queue).await {
            Ok(held) => Some(held),
            // One call that fails is no store that is lost.
            Err(_) if !self.store.is_lost() => self.store.held_by_others(queue).await.ok(),
            Err(_) => None,
        }
    }

    async fn tell_ended(&self, idle: bool) {
        let period = self.period();
        for (queue, ended) in self.pressure.take_ended(period, idle) {
            self.tell_ended_of(&queue, ended, period).await;
        }
    }

    async fn tell_ended_of(&self, queue: &str, ended: Ended, period: u64) {
        for (given, jobs) in ended {
            let turns_soon = (self.store.now().0 + SLACK) / PERIOD > period;
            if given != period && turns_soon {
                continue;
            }
            let by = -i64::try_from(jobs).unwrap_or(i64::MAX);
            let step = Step::Add { by, most: None };
            // Where it fails they stay open until nobody counts them any more.
            let _told = self.store.number(&open(given, queue), step).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_two_periods_take_turns() {
        assert_eq!(open(6, "a:0"), open(8, "a:0"));
        assert_ne!(open(6, "a:0"), open(7, "a:0"));
        assert_ne!(open(6, "q"), granted("q"));
        let shares = Shares::default();
        shares.note("q", Some(6));
        assert!(shares.knows("q", 6) && !shares.knows("q", 7) && !shares.knows("p", 6));
        shares.note("q", None);
        assert!(!shares.knows("q", 6));
    }
}
