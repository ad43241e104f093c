//! FETCH: gather, grant, go.
//!
//! A proxy learns what a job is only after the backend has handed it out. So a FETCH that limits can touch never
//! passes through. Claims fill the hold, in tasks of their own ([`claim`]), and FETCHes pick from it: a FETCH gathers
//! until enough is held that may start ([`gather`]), asks the store once for all limits ([`grant`]), and goes with what
//! was granted ([`handout`]). If that is nothing, it waits where that may help ([`wait`]).

mod asked;
mod claim;
mod gather;
mod grant;
mod handout;
mod wait;
mod whole;

use crate::store::LedgerExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::body::Body;
use super::control::in_force;
use super::enqueued::LimitedQueues;
use super::live::Live;
use super::load::Seldom;
use super::paused::Paused;
use super::respond::{self, Fault};
use super::sweep::adopt;
use super::waiting::{self, Backlogs};
use super::{Proxy, Sidecar, refuse, siblings};
use crate::boxed::boxed;
use crate::hold::{Lane, Standing};
use crate::limit::Timestamp;
use crate::policy::{Gate, PolicySet};
use crate::store::Gen;
use crate::tick;
use crate::upstream::{Reply, UpstreamError};
use asked::{Asked, once};
pub(super) use claim::name_claims;
use claim::{Cap, ClaimTask, Missing, Wanted};
use handout::{HandOut, Hint};
use whole::{Whole, pass_whole};

/// What only FETCH needs to know, over all requests.
#[derive(Debug)]
pub(in crate::proxy) struct Fetching {
    /// The worker id under which limited queues are claimed.
    pub(in crate::proxy) worker_id: Arc<str>,
    /// Queues of which nothing goes out.
    pub(in crate::proxy) paused: Paused,
    /// Whether jobs have come with limits of their own.
    pub(in crate::proxy) brought: AtomicBool,
    /// The status with which the backend refused the last FETCH; 0: it did not.
    pub(in crate::proxy) refused: AtomicU16,
    /// That FETCH replies cannot be read, which is said seldom.
    pub(in crate::proxy) unreadable: Seldom,
    /// The number of the last claim.
    last_claim: AtomicU64,
    claims: claim::Claims,
    /// What the backend said of queues whose limits leave no room.
    pub(in crate::proxy) backlogs: Backlogs,
    /// The queues to which limited jobs were enqueued.
    pub(in crate::proxy) limited: LimitedQueues,
    way: wait::Way,
}

impl Fetching {
    pub(in crate::proxy) fn new(worker_id: Arc<str>) -> Fetching {
        Fetching {
            worker_id,
            paused: Paused::default(),
            brought: AtomicBool::new(false),
            refused: AtomicU16::new(0),
            unreadable: Seldom::default(),
            last_claim: AtomicU64::new(1),
            claims: claim::Claims::default(),
            backlogs: Backlogs::default(),
            limited: LimitedQueues::default(),
            way: wait::Way::default(),
        }
    }

    /// The number of the next claim: by the store's clock, which says `now`, so that it is above that of
    /// any earlier claim of the job, whichever sidecar made it.
    pub(in crate::proxy) fn next_claim(&self, now: Timestamp) -> Gen {
        let now = now.0;
        let above = |last: u64| Some(now.max(last + 1));
        // Always `Ok`, for there is always a next number.
        let last = self
            .last_claim
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, above);
        Gen(now.max(last.unwrap_or(0) + 1))
    }

    /// Notes with which status the backend answered a FETCH. That it does not understand one says nothing of the next.
    pub(in crate::proxy) fn note_status(&self, status: StatusCode) {
        let is_refusal = !status.is_success()
            && !matches!(
                status,
                StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
            );
        let refused = if is_refusal { status.as_u16() } else { 0 };
        self.refused.store(refused, Ordering::Relaxed);
    }

    /// Whether limited jobs were enqueued to this queue lately, so that its FETCHes are looked at.
    pub(in crate::proxy) fn is_limited(&self, queue: &str) -> bool {
        self.limited.has(queue)
    }

    /// Forgets everything.
    pub(in crate::proxy) fn clear(&self) {
        self.paused.clear();
        self.backlogs.clear();
        self.limited.clear();
    }

    /// Forgets what nobody has asked for in a while.
    pub(in crate::proxy) fn forget_unused(&self, now: Instant) {
        self.backlogs.forget_unused(now);
        self.limited.forget_unused(now);
    }
}

/// What a FETCH came to.
enum Outcome {
    /// The backend's own answer, passed on as it is.
    Theirs(Reply),
    /// Jobs from the hold, or none.
    Ours(HandOut, Hint),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// Queues that are asked together: one that limits can touch, or a run of others.
struct Section {
    lanes: SmallVec<[Lane; 1]>,
    /// What the name of a limited queue says; `None`: no limit can touch these queues.
    gate: Option<Gate>,
    /// How many jobs the next claim asks for at least: twice as many each time.
    next: usize,
    /// Whether nothing more is to be had of it in this round.
    spent: bool,
    /// Why nothing may be claimed of it, if that is so.
    closed: Option<Cap>,
    /// Whether it was so in the round before.
    was_closed: bool,
}

/// One FETCH of queues that limits can touch.
struct Fetch {
    proxy: Proxy,
    wanted: Arc<Wanted>,
    live: Arc<Live>,
    sections: Vec<Section>,
    /// Until when it may wait.
    deadline: Instant,
    /// Claims that it no longer waits for, and of which section each is: what they bring may still come in time.
    running: Vec<(usize, ClaimTask)>,
    /// What it waits for in this round, so that the next claim brings it.
    missing: Vec<Missing>,
    /// How many jobs are picked at once at least: twice as many where none of them could start.
    picks: usize,
    /// Its places in the lines of its queues, once it waits.
    line: Option<Standing>,
}

impl Proxy {
    /// Answers one FETCH.
    pub(super) async fn fetch(&self, mut parts: Box<Parts>, body: Bytes) -> Response<Body> {
        let sidecar = &self.sidecar;
        let live = sidecar.control.live.load_full();
        let held = sidecar.holds_any();
        let limited = &sidecar.fetching.limited;
        let limits = held || !live.policies.is_empty() || limited.any();
        let looks = limits || sidecar.admit.pressure.any();
        let asked = looks.then(|| Asked::read(&body)).flatten();
        let draining = sidecar.tasks.draining.is_cancelled();
        if let Some(fault) = asked::fault(&body, asked.as_ref(), limits) {
            return refuse(&parts, fault);
        }
        let unread = limits && asked.is_none();
        // What comes may be limited, and would only be held for its claim to end.
        let only_held = draining && sidecar.fetching.brought.load(Ordering::Relaxed);
        if draining && (unread || (only_held && !held)) {
            return self.nothing(&parts);
        }
        let touched =
            |queue: &Arc<str>| held || !live.policies.gate(queue).open() || limited.has(queue);
        let touched = (asked.iter()).any(|asked| asked.queues.iter().any(touched));
        let timeout = live.settings.upstream.timeout;
        let mut wanted = Wanted::take(&mut parts, body, asked, timeout);
        let mut sections = Vec::new();
        if touched {
            (wanted.scope, wanted.accepted) = sidecar.scopes.look(&wanted.headers);
            // What is offered is held.
            if held {
                siblings::take_over_of(self, wanted.scope, wanted.queues()).await;
            }
            sections = sections_of(sidecar, wanted.scope, wanted.queues(), &live.policies);
        }
        let leaves_out = draining && (only_held || sections.iter().any(|of| of.gate.is_some()));
        if leaves_out {
            sections.retain(|section| section.goes_on(sidecar, only_held));
            let is_free = sections.iter().all(|section| section.gate.is_none());
            if is_free && !wanted.keep(sections.iter().flat_map(|section| &section.lanes)) {
                return self.nothing(&parts);
            }
        }
        if (sections.iter()).all(|section| section.gate.is_none()) {
            // What we do not understand but the backend does must not go round the limits.
            match pass_whole(self, &parts, &mut wanted, unread, &live).await {
                Whole::Answer(answer) if leaves_out => return respond::send_elsewhere(answer),
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
        let fetch = boxed(|| Fetch::of(self.clone(), wanted, sections, live).answered());
        fetch.await.respond(&parts)
    }

    /// No jobs.
    fn nothing(&self, parts: &Parts) -> Response<Body> {
        HandOut::new(self.clone()).respond(parts, Hint::default())
    }
}

/// Queues in order, each once: those that limits can touch by themselves, the others in runs.
fn sections_of(
    sidecar: &Sidecar,
    scope: u64,
    queues: &[Arc<str>],
    policies: &PolicySet,
) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for queue in once(queues) {
        let lane = Lane {
            scope,
            queue: queue.clone(),
        };
        let mut gate = policies.gate(queue).into_owned();
        // Jobs with limits of their own make any queue a limited one.
        gate.keyed |= sidecar.hold.holds(&lane) || sidecar.fetching.limited.has(queue);
        let is_open = gate.open() && in_force::set_for_queue(sidecar, queue).is_none();
        match sections.last_mut() {
            Some(run) if is_open && run.gate.is_none() => run.lanes.push(lane),
            _ => sections.push(Section::of(lane, (!is_open).then_some(gate))),
        }
    }
    sections
}

impl Section {
    fn of(lane: Lane, gate: Option<Gate>) -> Section {
        Section {
            lanes: smallvec![lane],
            gate,
            next: 1,
            spent: false,
            closed: None,
            was_closed: false,
        }
    }

    /// Whether its jobs may start in a drain: what is held, and jobs that nothing limits, for nobody waits for those.
    /// `only_held`: any job may bring limits.
    fn goes_on(&self, sidecar: &Sidecar, only_held: bool) -> bool {
        match self.gate {
            Some(_) => !sidecar.hold.holds_none(self.lanes.iter()),
            None => !only_held,
        }
    }
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
        Fetch {
            deadline: tick::now() + live.settings.fetch.max_wait,
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
            self.missing.clear();
            if self.proxy.sidecar.live().edition != self.live.edition {
                self.follow_policies();
            }
            let want = self.wanted.count.saturating_sub(out.len());
            let gathered = self.gather(want, until, out.is_empty()).await;
            if let (Err(theirs), true) = (gathered, out.is_empty()) {
                return Err(theirs);
            }
            let Some(more) = grant::grant(self, want).await else {
                break;
            };
            if !more.is_empty() {
                self.sections.iter_mut().for_each(Section::leave_places);
            }
            out.join(more);
            let is_full = out.len() >= self.wanted.count;
            if is_full || out.is_timed() || Instant::now() >= until {
                break;
            }
        }
        self.missing.clear();
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
        let is_full = out.len() >= self.wanted.count;
        let mut lanes = self.sections.iter().flat_map(|section| &section.lanes);
        if is_full && sidecar.hold.holds_none(&mut lanes) {
            return Outcome::Ours(out, Hint::default());
        }
        let closed = self
            .sections
            .iter()
            .filter(|section| section.closed.is_some() && !is_full);
        for section in closed {
            if let (Some(gate), Some(lane)) = (&section.gate, section.lanes.first()) {
                waiting::note_closed(&self.proxy, lane, gate);
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
        let sidecar = &self.proxy.sidecar;
        let (mut hint, mut next) = (Hint::default(), None);
        for section in self
            .sections
            .iter()
            .filter(|section| section.gate.is_some())
        {
            for lane in &section.lanes {
                let (held, by) = match sidecar.fetching.paused.has(&lane.queue) {
                    true => Default::default(),
                    false => sidecar.hold.prospect(lane),
                };
                // Whether a job waits in a queue without room is not asked. What other credentials claimed is held
                // where these see an empty queue.
                hint.limited |= section.closed.is_some()
                    || sidecar.hold.holds(lane)
                    || (!is_full && sidecar.hold.holds_of(&lane.queue));
                let closed = section.closed.as_ref();
                let of_queue = closed.and_then(|cap| cap.by.clone());
                hint.by = hint.by.or(by).or(of_queue);
                let opens = closed.and_then(|cap| cap.opens);
                next = held.at.into_iter().chain(opens).chain(next).min();
            }
        }
        if let Some(at) = next {
            let now = sidecar.store.now();
            // Who has the full count did not ask for all that may be asked for: when that starts is not known.
            let is_known = !is_full || at > now.plus(crate::limit::EARLY);
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
