//! Waiting: the place of an empty FETCH in the lines of its queues, and when it looks again.

use super::request::{Fetch, Outcome};
use super::section::Section;
use crate::desk::claims::{ASK_AGAIN, ClaimEnd, ClaimTask};
use crate::desk::micros;
use crate::hold::{Prospect, Standing, Wakes};
use crate::inquiry::lookahead;
use crate::limit::{EARLY, Timestamp};
use crate::store::LedgerExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

impl Fetch {
    /// Waits until something may start; `false`: that does not help. `wakes`: how often the hold had been woken when
    /// the round began that brought nothing.
    pub(super) async fn wait(&mut self, wakes: Wakes) -> Result<bool, Outcome> {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let (now, draining) = (Instant::now(), &sidecar.tasks.draining);
        let drains = draining.is_cancelled();
        let left = self.deadline.saturating_duration_since(now) + Duration::from_micros(EARLY);
        let prospect = self.prospect();
        let helps = prospect.is_by(sidecar.store.now().plus(micros(left)));
        // In a drain only what is held can start.
        let lanes = self.sections.iter().flat_map(|section| &section.lanes);
        let in_vain = drains && sidecar.hold.holds_none(lanes);
        if now >= self.deadline || in_vain || !helps {
            return Ok(false);
        }
        if self.line.is_none() {
            let lanes = self.sections.iter().flat_map(|section| &section.lanes);
            self.line = Some(Standing::new(&sidecar.hold, lanes.cloned().collect()));
            // What came before would have woken nobody.
            let is_ready = |section: &Section| section.ready(&sidecar, 1).jobs > 0;
            if sidecar.hold.wakes() != wakes || self.sections.iter().any(is_ready) {
                return Ok(true);
            }
        }
        // Who waits may get a job in the end, and jobs behind a full lookahead wait on all the same.
        for lane in self.sections.iter().filter_map(Section::limited) {
            lookahead::note_full(&self.proxy, lane);
        }
        let until = self.looks_again(prospect).min(self.deadline);
        let Some(line) = &self.line else {
            return Ok(false);
        };
        tokio::select! {
            () = line.woken() => {}
            () = tokio::time::sleep_until(until) => {}
            () = draining.cancelled(), if !drains => {}
            end = any_end(&mut self.running) => match end {
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
        if !self.running.is_empty() {
            prospect = Prospect::slot();
        }
        for section in self
            .sections
            .iter()
            .filter(|section| section.gate.is_some())
        {
            let lanes = section.lanes.iter();
            for lane in lanes.filter(|lane| !sidecar.fetching.paused.has(&lane.queue)) {
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
        let mut at = self.deadline;
        let Some(line) = &self.line else {
            return now;
        };
        if !line.is_first_anywhere() {
            return at;
        }
        if let Some(start) = prospect.at {
            at = at.min(sidecar.asked_from(start));
        }
        let drains = sidecar.tasks.draining.is_cancelled();
        for section in self
            .sections
            .iter()
            .filter(|section| section.closed().is_none() && !drains)
        {
            let first = section.lanes.first();
            if let Some(lane) = first.filter(|lane| line.is_first(lane)) {
                let asked = sidecar.hold.look(lane, 0, Timestamp::default()).asked_at;
                at = at.min(asked.map_or(now, |asked| asked + ASK_AGAIN));
            }
        }
        // Never at once: what could be done at once was just done.
        at.max(now + Duration::from_millis(1))
    }
}

/// Ends when one of these claims has ended, and takes it out.
async fn any_end(running: &mut Vec<(usize, ClaimTask)>) -> ClaimEnd {
    let mut ends: Vec<Pin<Box<dyn Future<Output = ClaimEnd> + Send + '_>>> = Vec::new();
    for (_, task) in running.iter_mut() {
        ends.push(Box::pin(task.end()));
    }
    let (nth, end) = std::future::poll_fn(|cx| {
        for (nth, end) in ends.iter_mut().enumerate() {
            if let Poll::Ready(end) = end.as_mut().poll(cx) {
                return Poll::Ready((nth, end));
            }
        }
        Poll::Pending
    })
    .await;
    drop(ends);
    drop(running.remove(nth));
    end
}
