//! Gather: claims are made until as much is held as the worker wants that may start, for 200 ms in all.

use crate::store::LedgerExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::claim::{AHEAD, Claim, ClaimEnd, ClaimTask, Missing, soon};
use super::wait::ASK_AGAIN;
use super::{Fetch, Outcome, Section};
use crate::hold::Lane;
use crate::proxy::Sidecar;
use crate::proxy::control::in_force;

/// A claim that must last longer than any FETCH waits for it.
const FOR_EVER: Duration = Duration::from_secs(3_600);

impl Section {
    /// A round begins.
    pub(super) fn begin(&mut self) {
        self.was_closed = self.closed.take().is_some();
        self.spent = false;
        self.next = 1;
    }

    /// Held jobs have started, and others may be claimed in their places.
    pub(super) fn leave_places(&mut self) {
        if self.closed.is_some() && self.gate.as_ref().is_some_and(|gate| gate.keyed) {
            self.closed = None;
            self.spent = false;
        }
    }

    /// The queue that limits can touch.
    fn limited(&self) -> Option<&Lane> {
        self.lanes.first().filter(|_| self.gate.is_some())
    }

    /// How many of its held jobs may be asked for.
    pub(super) fn ready(&self, sidecar: &Sidecar) -> usize {
        let now = sidecar.store.now();
        let lanes = self.lanes.iter();
        let lanes = lanes.filter(|lane| !sidecar.fetching.paused.has(&lane.queue));
        lanes.map(|lane| sidecar.hold.candidates(lane, now)).sum()
    }
}

impl Fetch {
    /// Has claims made, queue by queue, until `want` held jobs may be asked for. `is_empty`: the worker gets nothing
    /// so far, and what the backend says instead of jobs is for it.
    pub(super) async fn gather(
        &mut self,
        want: usize,
        until: Instant,
        is_empty: bool,
    ) -> Result<(), Outcome> {
        let mut have = 0;
        for nth in 0..self.sections.len() {
            if have >= want {
                break;
            }
            let has_some = have > 0 || !is_empty;
            have += self.gather_of(nth, want - have, has_some, until).await?;
        }
        Ok(())
    }

    /// The same for one section. How many of its jobs may be asked for in the end.
    async fn gather_of(
        &mut self,
        nth: usize,
        want: usize,
        has_some: bool,
        until: Instant,
    ) -> Result<usize, Outcome> {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let is_last = nth + 1 == self.sections.len();
        let mut looked_higher = false;
        loop {
            let Some(section) = self.sections.get_mut(nth) else {
                return Ok(0);
            };
            let (ready, limited) = (section.ready(&sidecar), section.limited().cloned());
            let higher = |lane: &Lane| !looked_higher && sidecar.hold.outranked(lane);
            if sidecar.tasks.draining.is_cancelled() {
                section.spent |= limited.is_some() || sidecar.fetching.brought.load(Relaxed);
            }
            if section.spent {
                return Ok(ready);
            }
            if ready >= want && !limited.as_ref().is_some_and(higher) {
                self.refill(nth, want);
                return Ok(ready);
            }
            looked_higher = true;
            section.spent = true;
            let Some(mut task) = self.claim_of(nth, want.saturating_sub(ready).max(1)).await else {
                return Ok(ready);
            };
            let has_some = has_some || ready > 0;
            let budget = self.live.settings.fetch.claim_budget;
            let is_slow = has_some && sidecar.fetching.claims.took_longer(budget);
            let until = match limited.is_none() && is_last && !has_some {
                true => Instant::now() + FOR_EVER,
                false => until,
            };
            let starts_first = self.is_timed(nth) && (ready > 0 || self.starts_soon(nth));
            let end = match is_slow || starts_first {
                true => None,
                false => timeout_at(until, task.end()).await.ok(),
            };
            let Some(section) = self.sections.get_mut(nth) else {
                return Ok(ready);
            };
            match end {
                Some(ClaimEnd::Jobs { short }) => {
                    section.spent = short || Instant::now() >= until;
                    if section.ready(&sidecar) <= ready {
                        section.next = section.next.saturating_mul(2);
                    }
                }
                Some(ClaimEnd::Other(reply)) if !has_some => return Err(Outcome::Theirs(reply)),
                Some(ClaimEnd::Lost(error)) if !has_some => return Err(Outcome::Lost(error)),
                Some(_) => {}
                None => {
                    self.running.push((nth, task));
                    return Ok(ready);
                }
            }
        }
    }

    /// Whether times limit each job of a section's queue. Then no more than its room may start: claims are made beside
    /// what is held.
    fn is_timed(&self, nth: usize) -> bool {
        let of_gate = |section: &Section| {
            let (gate, lane) = (section.gate.as_ref()?, section.lanes.first()?);
            let sidecar = &self.proxy.sidecar;
            soon(&in_force::limits_now(sidecar, &lane.queue, &gate.limited))
        };
        self.sections.get(nth).and_then(of_gate).is_some()
    }

    /// Whether a held job of a section's queue starts by itself sooner than a claim may bring one.
    fn starts_soon(&self, nth: usize) -> bool {
        let sidecar = &self.proxy.sidecar;
        let by_then = sidecar.store.now().plus(AHEAD);
        let lane = self.sections.get(nth).and_then(|of| of.lanes.first());
        let prospect = lane.map(|lane| sidecar.hold.prospect(lane).0);
        let at = prospect.and_then(|prospect| prospect.at);
        at.is_some_and(|at| at <= by_then)
    }

    /// The claim of a section that is under way, or a new one for `n` jobs at least; `None`: nothing may be claimed.
    async fn claim_of(&mut self, nth: usize, n: usize) -> Option<ClaimTask> {
        let running = self.running.iter().position(|(of, _)| *of == nth);
        if let Some(running) = running {
            return Some(self.running.swap_remove(running).1);
        }
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let section = self.sections.get_mut(nth)?;
        let lane = section.lanes.first()?.clone();
        let mut jobs = n.max(section.next);
        if let Some(gate) = section.gate.clone() {
            let claims = &sidecar.fetching.claims;
            let running = claims.running(&lane);
            if running.is_some() {
                return running;
            }
            let asked = sidecar.hold.asked_at(&lane);
            let just_now = asked.is_some_and(|at| at.elapsed() < ASK_AGAIN);
            if self.line.is_some() && !section.was_closed && just_now {
                return None;
            }
            if !self.missing.iter().any(|one| one.is_of(&lane)) {
                self.missing.push(Missing::new(&sidecar, &lane, n));
            }
            jobs = jobs.max(claims.missed(&lane));
            let cap = sidecar.cap(&lane, &gate, jobs).await;
            if cap.jobs == 0 {
                self.sections.get_mut(nth)?.closed = Some(cap);
                return None;
            }
            jobs = cap.jobs;
            // Another FETCH may have been faster.
            let running = sidecar.fetching.claims.running(&lane);
            if running.is_some() {
                return running;
            }
        }
        Some(self.claim(nth, jobs)?.start())
    }

    fn claim(&self, nth: usize, jobs: usize) -> Option<Claim> {
        let section = self.sections.get(nth)?;
        Some(Claim {
            proxy: self.proxy.clone(),
            wanted: Arc::clone(&self.wanted),
            lanes: section.lanes.clone(),
            limited: section.gate.is_some(),
            jobs,
        })
    }

    /// Where fewer than half of the jobs are held that a queue's own limits let start in the next 200 ms, more are
    /// claimed beside this FETCH, which takes `want` of them.
    fn refill(&self, nth: usize, want: usize) {
        let sidecar = &self.proxy.sidecar;
        let Some(section) = self.sections.get(nth) else {
            return;
        };
        let (Some(gate), Some(lane)) = (&section.gate, section.limited()) else {
            return;
        };
        let limited = in_force::limits_now(sidecar, &lane.queue, &gate.limited);
        let soon = soon(&limited).filter(|soon| *soon > 1);
        let left = sidecar
            .hold
            .promised(&lane.queue, gate)
            .saturating_sub(want);
        let is_short = soon.is_some_and(|soon| 2 * left < soon);
        let may_have_more = || sidecar.hold.more(lane);
        if !is_short || !may_have_more() || sidecar.fetching.claims.running(lane).is_some() {
            return;
        }
        let Some(mut claim) = self.claim(nth, 0) else {
            return;
        };
        let (gate, lane) = (gate.clone(), lane.clone());
        let _task = sidecar.tasks.spawn(async move {
            let sidecar = Arc::clone(&claim.proxy.sidecar);
            claim.jobs = sidecar.cap(&lane, &gate, 0).await.jobs;
            if claim.jobs > 0 && sidecar.fetching.claims.running(&lane).is_none() {
                claim.start();
            }
        });
    }
}
