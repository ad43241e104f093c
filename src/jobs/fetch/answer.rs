//! A FETCH from its first byte to its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tokio::time::Instant;

use super::asked::Wanted;
use super::drain::Draining;
use super::grant::grant;
use super::handout::{HandOut, Hint};
use super::request::{Fetch, Outcome};
use super::section::{Course, Reach, Section, sections_of};
use super::whole::{Whole, pass_whole};
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::Proxy;
use crate::desk::live::Live;
use crate::hold::{Hold, Lane, Visit};
use crate::inquiry::{adopt, lookahead, waiting};
use crate::jobs::siblings;
use crate::limit::EARLY;
use crate::policy::Gate;
use crate::store::LedgerExt;
use crate::wire::boxed::boxed;
use crate::wire::{tick, traces};

/// Answers one FETCH.
pub(crate) async fn fetch(proxy: &Proxy, mut parts: Box<Parts>, body: Bytes) -> Response<Body> {
    let sidecar = &proxy.sidecar;
    let live = sidecar.control.live.load_full();
    let reach = Reach::of(sidecar, &live);
    let asked = match reach.read(&body) {
        Ok(asked) => asked,
        Err(fault) => return refuse(&parts, fault),
    };
    let mut wanted = Wanted::take(&mut parts, body, asked, live.settings.upstream.timeout);
    let course = reach.course(proxy, &mut wanted).await;
    let sections = match Draining::of(sidecar).narrow(course, &reach, &mut wanted) {
        Course::Nothing => return HandOut::new(proxy.clone()).respond(&parts, Hint::default()),
        Course::Sections(sections) => sections,
        Course::Whole => match pass_whole(proxy, &parts, &mut wanted, &reach).await {
            Whole::Answer(answer) => return answer,
            Whole::Held(came) => came.sections(sidecar, &mut wanted),
        },
    };
    let fetch = boxed(|| Fetch::of(proxy.clone(), wanted, sections, live).answered());
    fetch.await.respond(&parts)
}

impl Outcome {
    fn respond(self, parts: &Parts) -> Response<Body> {
        match self {
            Outcome::Theirs(reply) => respond::theirs(reply),
            Outcome::Lost(error) => refuse(parts, Fault::backend(&error)),
            Outcome::Ours(out, hint) => out.respond(parts, hint),
        }
    }
}

/// A visit to these sections, each with what limits it as a whole.
fn visit(hold: &Arc<Hold>, sections: &[Section], now: Instant) -> Visit {
    let open = Gate::default();
    let asks = sections.iter().flat_map(|section| {
        let gate = section.gate.as_ref().unwrap_or(&open);
        section.lanes.iter().map(move |lane| (lane, gate))
    });
    hold.visit(asks, now)
}

impl Fetch {
    fn of(proxy: Proxy, wanted: Wanted, sections: Vec<Section>, live: Arc<Live>) -> Fetch {
        let (came, max_wait) = (tick::now(), live.settings.fetch.max_wait);
        let pollers = &proxy.sidecar.fetching.pollers;
        Fetch {
            came,
            deadline: came + pollers.patience(wanted.worker(), came, max_wait),
            visit: visit(&proxy.sidecar.hold, &sections, came),
            proxy,
            wanted: Arc::new(wanted),
            live,
            sections,
            missing: Vec::new(),
            picks: 0,
        }
    }

    /// The lanes of all its queues.
    pub(super) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.sections.iter().flat_map(|section| &section.lanes)
    }

    /// Gathers and grants, again and again while waiting may help.
    async fn answered(mut self) -> Outcome {
        if let Err(error) = adopt::ensure_learnt(&self.proxy).await {
            return Outcome::Lost(error);
        }
        loop {
            match self.round().await {
                Err(theirs) => return theirs,
                Ok(out) if !out.is_empty() => return self.go(out),
                Ok(out) => match self.wait().await {
                    Err(theirs) => return theirs,
                    // A sibling may have offered something while this waited.
                    Ok(true) if self.proxy.sidecar.keeper.offered.any() => {
                        let (scope, queues) = (self.wanted.scope, self.wanted.queues());
                        siblings::take_over_of(&self.proxy, scope, queues).await;
                    }
                    Ok(true) => {}
                    Ok(false) => return self.go(out),
                },
            }
        }
    }

    /// Gathers and grants until it has what it wants, nothing more is to be had, or the time for that is over. What was
    /// granted at a time does not wait for more.
    async fn round(&mut self) -> Result<HandOut, Outcome> {
        let until = Instant::now() + self.live.settings.fetch.claim_budget;
        let mut out = HandOut::new(self.proxy.clone());
        self.sections.iter_mut().for_each(Section::begin);
        self.picks = 0;
        loop {
            if self.proxy.sidecar.live().edition != self.live.edition || self.is_limited_by_now() {
                self.follow_policies();
            }
            let want = self.wanted.count.saturating_sub(out.len());
            let gathering = self.gather(want, until, out.is_empty());
            let gathered = traces::within(&traces::gather(), gathering).await;
            // The store is asked for what is held now. Claims that others make meanwhile are not for these jobs again.
            self.missing.clear();
            if let (Err(theirs), true) = (gathered, out.is_empty()) {
                return Err(theirs);
            }
            let Some(more) = grant(self, want).await else {
                break;
            };
            if !more.is_empty() {
                self.sections.iter_mut().for_each(Section::leave_places);
            }
            self.claim_heads(&more);
            out.join(more);
            let is_full = out.len() >= self.wanted.count;
            if is_full || out.is_timed() || Instant::now() >= until {
                break;
            }
        }
        Ok(out)
    }

    /// Whether a queue that nothing limited when it came has brought jobs with limits of their own since.
    fn is_limited_by_now(&self) -> bool {
        let (sidecar, now) = (&self.proxy.sidecar, self.proxy.sidecar.store.now());
        let is_held = |lane: &Lane| sidecar.hold.look(lane, 0, now).is_held;
        let mut open = self.sections.iter().filter(|of| !of.is_limited());
        sidecar.holds_any() && open.any(|of| of.lanes.iter().any(is_held))
    }

    /// Other policies than when it came, or other jobs: its queues may be limited in other ways.
    fn follow_policies(&mut self) {
        let sidecar = &self.proxy.sidecar;
        self.live = sidecar.control.live.load_full();
        let queues: Vec<Arc<str>> = self.lanes().map(|lane| lane.queue.clone()).collect();
        self.sections = sections_of(sidecar, self.wanted.scope, &queues, &self.live.policies);
        self.visit = visit(&sidecar.hold, &self.sections, tick::now());
    }

    /// Its answer: what was granted, or nothing, and why.
    fn go(self, out: HandOut) -> Outcome {
        let sidecar = &self.proxy.sidecar;
        if let Some(since) = self.visit.waits_since() {
            sidecar.metrics.waited(since.elapsed());
        }
        if out.is_empty() {
            let pollers = &sidecar.fetching.pollers;
            pollers.sent_away(self.wanted.worker(), self.came);
        }
        let is_full = out.len() >= self.wanted.count;
        let closed = (self.sections.iter()).filter(|of| of.closed().is_some() && !is_full);
        for section in closed {
            if let (Some(gate), Some(lane)) = (&section.gate, section.lanes.first()) {
                waiting::note_closed(&self.proxy, lane, gate);
                lookahead::note_full(&self.proxy, lane);
            }
        }
        let hint = self.hint(is_full);
        Outcome::Ours(out, hint)
    }

    /// What the headers of its answer tell.
    fn hint(&self, is_full: bool) -> Hint {
        let (sidecar, now) = (&self.proxy.sidecar, self.proxy.sidecar.store.now());
        let (mut hint, mut next, mut is_held) = (Hint::default(), None, false);
        for section in &self.sections {
            let (Some(lane), closed) = (section.limited(), section.closed()) else {
                continue;
            };
            let view = sidecar.hold.look(lane, 0, now);
            is_held |= view.is_held;
            // Whether a job waits in a queue without room is not asked. What other credentials claimed is held where
            // these see an empty queue.
            hint.limited |= closed.is_some() || view.is_held || view.is_held_for_others;
            let runs = !sidecar.fetching.paused.has(&lane.queue);
            let by = view.waits_for.filter(|_| runs);
            let by = by.or_else(|| closed.and_then(|cap| cap.by.clone()));
            hint.by = hint.by.or(by);
            let held = view.prospect.at.filter(|_| runs);
            let opens = closed.and_then(|cap| cap.opens);
            next = held.into_iter().chain(opens).chain(next).min();
        }
        if is_full && !is_held {
            return Hint::default();
        }
        if let Some(at) = next {
            // Who has the full count did not ask for all that may be asked for: when that starts is not known.
            let is_known = !is_full || at > now.plus(EARLY);
            hint.next = is_known.then(|| Duration::from_micros(at.since(now)));
        }
        hint
    }
}
