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
use super::section::{Reach, Section, sections_of};
use super::whole::{Whole, pass_whole};
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::live::Live;
use crate::desk::{Proxy, Sidecar};
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
    let (reach, drain) = (Reach::of(sidecar, &live), Draining::of(sidecar));
    let asked = match reach.read(&body) {
        Ok(asked) => asked,
        Err(fault) => return refuse(&parts, fault),
    };
    let mut wanted = Wanted::take(&mut parts, body, asked, live.settings.upstream.timeout);
    let mut sections = Vec::new();
    if reach.touches(&wanted) {
        (wanted.scope, wanted.accepted) = sidecar.scopes.of_known(&wanted.headers);
        // What is offered is held.
        if reach.held {
            siblings::take_over_of(proxy, wanted.scope, wanted.queues()).await;
        }
        sections = sections_of(sidecar, wanted.scope, wanted.queues(), &live.policies);
    }
    if !drain.narrow(&reach, &mut wanted, &mut sections) {
        return HandOut::new(proxy.clone()).respond(&parts, Hint::default());
    }
    if !sections.iter().any(Section::is_limited) {
        match pass_whole(proxy, &parts, &mut wanted, &reach).await {
            Whole::Answer(answer) => return answer,
            Whole::Held(jobs, came) => {
                if wanted.asked.is_none() {
                    wanted.count = jobs;
                }
                let queues = (wanted.asked.as_ref()).map_or(&came, |asked| &asked.queues);
                sections = sections_of(sidecar, wanted.scope, queues, &sidecar.live().policies);
            }
        }
    }
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

impl Fetch {
    fn of(proxy: Proxy, wanted: Wanted, sections: Vec<Section>, live: Arc<Live>) -> Fetch {
        let (came, max_wait) = (tick::now(), live.settings.fetch.max_wait);
        let pollers = &proxy.sidecar.fetching.pollers;
        Fetch {
            came,
            deadline: came + pollers.patience(wanted.worker(), came, max_wait),
            proxy,
            wanted: Arc::new(wanted),
            live,
            sections,
            running: Vec::new(),
            missing: Vec::new(),
            picks: 0,
            line: None,
        }
    }

    /// Gathers and grants, again and again while waiting may help.
    async fn answered(mut self) -> Outcome {
        note_fetched(&self.proxy.sidecar, &self.sections);
        if let Err(error) = adopt::ensure_learnt(&self.proxy).await {
            return Outcome::Lost(error);
        }
        loop {
            let wakes = self.proxy.sidecar.hold.wakes();
            match self.round().await {
                Err(theirs) => return theirs,
                Ok(out) if !out.is_empty() => return self.go(out),
                Ok(out) => match self.wait(wakes).await {
                    Err(theirs) => return theirs,
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
            if self.proxy.sidecar.live().edition != self.live.edition {
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

    /// Other policies than when it came: its queues may be limited in other ways.
    fn follow_policies(&mut self) {
        let sidecar = &self.proxy.sidecar;
        self.live = sidecar.control.live.load_full();
        let lanes = self.sections.iter().flat_map(|section| &section.lanes);
        let queues: Vec<Arc<str>> = lanes.map(|lane| lane.queue.clone()).collect();
        self.sections = sections_of(sidecar, self.wanted.scope, &queues, &self.live.policies);
        self.running.clear();
    }

    /// Its answer: what was granted, or nothing, and why.
    fn go(self, out: HandOut) -> Outcome {
        let sidecar = &self.proxy.sidecar;
        if let Some(line) = &self.line {
            sidecar.metrics.waited(line.since.elapsed());
        }
        if out.is_empty() {
            let pollers = &sidecar.fetching.pollers;
            pollers.sent_away(self.wanted.worker(), self.came);
        }
        let is_full = out.len() >= self.wanted.count;
        let mut lanes = self.sections.iter().flat_map(|section| &section.lanes);
        if is_full && sidecar.hold.holds_none(&mut lanes) {
            return Outcome::Ours(out, Hint::default());
        }
        let closed = self
            .sections
            .iter()
            .filter(|section| section.closed().is_some() && !is_full);
        for section in closed {
            if let (Some(gate), Some(lane)) = (&section.gate, section.lanes.first()) {
                waiting::note_closed(&self.proxy, lane, gate);
                lookahead::note_full(&self.proxy, lane);
            }
        }
        let hint = self.hint(is_full);
        // Those who wait may have what was claimed beyond its own count.
        let lanes = self.sections.iter().flat_map(|section| &section.lanes);
        lanes.for_each(|lane| sidecar.hold.nudge(lane));
        Outcome::Ours(out, hint)
    }

    /// What the headers of its answer tell.
    fn hint(&self, is_full: bool) -> Hint {
        let (sidecar, now) = (&self.proxy.sidecar, self.proxy.sidecar.store.now());
        let (mut hint, mut next) = (Hint::default(), None);
        for section in self
            .sections
            .iter()
            .filter(|section| section.gate.is_some())
        {
            for lane in &section.lanes {
                let is_paused = sidecar.fetching.paused.has(&lane.queue);
                let view = sidecar.hold.look(lane, 0, now);
                let held = view.prospect.at.filter(|_| !is_paused);
                let by = (!is_paused).then(|| sidecar.hold.waits_for(lane)).flatten();
                // Whether a job waits in a queue without room is not asked. What other credentials claimed is held
                // where these see an empty queue.
                hint.limited |= section.closed().is_some()
                    || sidecar.hold.holds(lane)
                    || (!is_full && sidecar.hold.of_queue(&lane.queue).0 > 0);
                let closed = section.closed();
                let of_queue = closed.and_then(|cap| cap.by.clone());
                hint.by = hint.by.or(by).or(of_queue);
                let opens = closed.and_then(|cap| cap.opens);
                next = held.into_iter().chain(opens).chain(next).min();
            }
        }
        if let Some(at) = next {
            // Who has the full count did not ask for all that may be asked for: when that starts is not known.
            let is_known = !is_full || at > now.plus(EARLY);
            hint.next = is_known.then(|| Duration::from_micros(at.since(now)));
        }
        hint
    }
}

/// A worker asks for these queues.
fn note_fetched(sidecar: &Sidecar, sections: &[Section]) {
    let (open, now) = (Gate::default(), tick::now());
    for section in sections {
        let gate = section.gate.as_ref().unwrap_or(&open);
        let fetched = |lane| sidecar.hold.fetched(lane, gate, now);
        section.lanes.iter().for_each(fetched);
    }
}
