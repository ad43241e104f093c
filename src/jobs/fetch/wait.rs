//! Waiting: the place of an empty FETCH in the lines of its queues, and when it looks again.

use super::request::{Fetch, Outcome};
use super::section::Section;
use crate::desk::claims::{ASK_AGAIN, ClaimEnd};
use crate::desk::micros;
use crate::hold::Prospect;
use crate::inquiry::lookahead;
use crate::limit::EARLY;
use crate::store::LedgerExt;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

impl Fetch {
    /// Waits until something may start; `false`: that does not help.
    pub(super) async fn wait(&mut self) -> Result<bool, Outcome> {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let (now, draining) = (Instant::now(), &sidecar.tasks.draining);
        let drains = draining.is_cancelled();
        let left = self.deadline.saturating_duration_since(now) + Duration::from_micros(EARLY);
        let prospect = self.prospect();
        let store_now = sidecar.store.now();
        let helps = prospect.is_by(store_now.plus(micros(left)));
        // In a drain only what is held can start.
        let is_held = |lane| sidecar.hold.look(lane, 0, store_now).is_held;
        let in_vain = drains && !self.lanes().any(is_held);
        if now >= self.deadline || in_vain || !helps {
            return Ok(false);
        }
        if self.visit.waits_since().is_none() {
            self.visit.stand(now);
            // What came before woke nobody.
            let is_ready = |section: &Section| section.ready(&sidecar, 1).jobs > 0;
            if self.sections.iter().any(is_ready) {
                return Ok(true);
            }
        }
        // Who waits may get a job in the end, and jobs behind a full lookahead wait on all the same.
        for lane in self.sections.iter().filter_map(Section::limited) {
            lookahead::note_full(&self.proxy, lane);
        }
        let until = self.looks_again(prospect).min(self.deadline);
        tokio::select! {
            () = self.visit.woken() => {}
            () = tokio::time::sleep_until(until) => {}
            () = draining.cancelled(), if !drains => {}
            end = any_end(&mut self.sections) => match end {
                ClaimEnd::Other(reply) => return Err(Outcome::Theirs(reply)),
                ClaimEnd::Lost(error) => return Err(Outcome::Lost(error)),
                ClaimEnd::Jobs { .. } => {}
            },
        }
        Ok(true)
    }

    /// What waiting could bring, over all queues.
    fn prospect(&self) -> Prospect {
        let (sidecar, now) = (&self.proxy.sidecar, self.proxy.sidecar.store.now());
        let mut prospect = Prospect::default();
        for section in &self.sections {
            if section.running.is_some() {
                prospect = prospect.or(Prospect::slot());
            }
            let lane = section.limited();
            if let Some(lane) = lane.filter(|lane| !sidecar.fetching.paused.has(&lane.queue)) {
                let closed = section.closed().map(|cap| cap.prospect);
                let held = sidecar.hold.look(lane, 0, now).prospect;
                prospect = prospect.or(held).or(closed.unwrap_or_default());
            }
        }
        prospect
    }

    /// When it looks again by itself: the first in a line watches the clock and asks the backend again, those behind
    /// are woken when it leaves.
    fn looks_again(&self, prospect: Prospect) -> Instant {
        let (sidecar, now) = (&self.proxy.sidecar, Instant::now());
        let (mut at, leads) = (self.deadline, self.visit.leads());
        if leads.is_empty() {
            return at;
        }
        if let Some(start) = prospect.at {
            at = at.min(sidecar.asked_from(start));
        }
        let drains = sidecar.tasks.draining.is_cancelled();
        let open = (self.sections.iter()).filter(|of| of.closed().is_none() && !drains);
        for section in open {
            let first = section.lanes.first();
            if let Some(lane) = first.filter(|lane| leads.contains(lane)) {
                let asked = sidecar.hold.look(lane, 0, sidecar.store.now()).asked_at;
                at = at.min(asked.map_or(now, |asked| asked + ASK_AGAIN));
            }
        }
        // Never at once: what could be done at once was just done.
        at.max(now + Duration::from_millis(1))
    }
}

/// Ends when one of the claims that go on beside the FETCH has ended, and takes it out.
async fn any_end(sections: &mut [Section]) -> ClaimEnd {
    let late = sections
        .iter_mut()
        .enumerate()
        .filter_map(|(nth, section)| {
            let task = section.running.as_mut()?;
            Some(Box::pin(async move { (nth, task.end().await) }))
        });
    let mut ends: Vec<_> = late.collect();
    let (nth, end) = std::future::poll_fn(|cx| {
        let mut ends = ends.iter_mut().map(|end| end.as_mut().poll(cx));
        (ends.find(Poll::is_ready)).unwrap_or(Poll::Pending)
    })
    .await;
    drop(ends);
    if let Some(section) = sections.get_mut(nth) {
        section.running = None;
    }
    end
}
