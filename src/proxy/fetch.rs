//! FETCH: cap the claim, fill the hold, start from it, wait a little if that may help.
//!
//! A proxy learns what a job is only after the backend has handed it out. So a FETCH that limits can
//! touch never passes through: what may be claimed is claimed into the hold, and what may start is
//! started from the hold. Fresh, surplus, undelivered and adopted jobs all take that one path.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tokio::time::Instant;

use super::body::Body;
use super::claim::{Answer, Section, Wanted};
use super::handout::HandOut;
use super::job::{self, Origin};
use super::outlive::{Client, to_the_end};
use super::refuse;
use super::respond::Fault;
use super::start::Started;
use super::{DEPTH, Proxy, mirror};
use crate::hold::{Lane, Place, Prospect, Waiter};
use crate::json::{Json, Kind};
use crate::limit::EARLY;
use crate::policy::PolicySet;
use crate::upstream::{Reply, UpstreamError};

/// How long waiting FETCHes of a queue let pass before the backend is asked again for all of them.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// What a FETCH came to.
enum Outcome {
    /// The backend's own answer, passed on as it is.
    Theirs(Reply),
    /// Jobs from the hold, or none.
    Ours(HandOut, Hint),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// What the headers of an answer of ours tell.
#[derive(Clone, Copy, Default)]
pub(super) struct Hint {
    /// Whether held jobs of the asked queues wait for their limits.
    limited: bool,
    /// When the next of them could start.
    next: Option<Duration>,
}

impl Proxy {
    /// Answers one FETCH.
    pub(super) async fn fetch(&self, parts: Parts, body: Bytes) -> Response<Body> {
        let sidecar = &self.sidecar;
        if sidecar.draining.is_cancelled() {
            return HandOut::new(self.clone()).respond(&parts, Hint::default());
        }
        let policies = sidecar.policies.load_full();
        let read = if policies.is_empty() && sidecar.hold.is_empty() {
            None
        } else {
            read(&body)
        };
        let scope = sidecar.scopes.of(&parts.headers);
        let worker_id = read.as_ref().and_then(|r| r.worker_id.clone());
        let wanted = Wanted {
            body,
            target: self.target(&parts.uri),
            headers: parts.headers.clone(),
            scope,
            count: read.as_ref().map_or(1, |r| r.count),
            worker_id,
            visibility: read.as_ref().and_then(|r| r.visibility),
        };
        let sections = read
            .map(|read| self.sections(scope, &read.queues, &policies))
            .unwrap_or_default();
        if sections.iter().all(|section| section.gate.is_none()) {
            if let Some(answer) = self.pass_whole(&parts, &wanted).await {
                return answer;
            }
            // Limited jobs came out of unlimited queues: they are in the hold now.
        }
        let client = Client::default();
        let work = {
            let (proxy, client) = (self.clone(), client.clone());
            async move { proxy.fill(&wanted, &sections, &policies, &client).await }
        };
        // If the worker hangs up, the outcome is dropped, and its hand-out undoes itself.
        let outcome = to_the_end(&sidecar.tasks, client, work).await;
        self.answer(&parts, outcome)
    }

    /// A FETCH that no limit can touch: forwarded and returned as it is. `None`: jobs with limits of
    /// their own came back, and went into the hold.
    async fn pass_whole(&self, parts: &Parts, wanted: &Wanted) -> Option<Response<Body>> {
        let sent = Instant::now();
        let reply = match self.upstream.call(wanted.call(wanted.body.clone())).await {
            Ok(reply) => reply,
            Err(error) => return Some(refuse(&parts, Fault::backend(&error, false))),
        };
        if !crate::json::contains(&reply.body, mirror::NEEDLE) {
            return Some(self.theirs(parts, reply));
        }
        let claim_id = wanted.worker_id.clone().or_else(|| worker_id(&wanted.body));
        let claim_id = claim_id.unwrap_or_else(|| self.sidecar.name.clone());
        let origin = Origin {
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            queue: None,
            claim_id: &claim_id,
            visibility: wanted
                .visibility
                .or_else(|| read(&wanted.body).and_then(|r| r.visibility)),
            sent,
        };
        match self.keep(&reply, &origin, &self.sidecar.policies.load_full()) {
            Some(_) => None,
            None => Some(self.theirs(parts, reply)),
        }
    }

    /// Queues in order: each that limits can touch by itself, the others in runs.
    fn sections(&self, scope: u64, queues: &[Arc<str>], policies: &PolicySet) -> Vec<Section> {
        let mut sections: Vec<Section> = Vec::new();
        for queue in queues {
            let lane = Lane {
                scope,
                queue: queue.clone(),
            };
            let mut gate = policies.gate(queue);
            // Held jobs with limits of their own make any queue a limited one.
            gate.keyed |= self.sidecar.hold.holds(&lane);
            if gate.open() {
                match sections.last_mut() {
                    Some(section) if section.gate.is_none() => section.lanes.push(lane),
                    _ => sections.push(Section {
                        lanes: vec![lane],
                        gate: None,
                    }),
                }
            } else {
                sections.push(Section {
                    lanes: vec![lane],
                    gate: Some(gate),
                });
            }
        }
        sections
    }

    /// Fills the hold and starts from it, again and again while waiting may help.
    async fn fill(
        &self,
        wanted: &Wanted,
        sections: &[Section],
        policies: &PolicySet,
        client: &Client,
    ) -> Outcome {
        let sidecar = &self.sidecar;
        let begun = Instant::now();
        let deadline = begun + sidecar.settings.max_wait;
        for section in sections {
            let gate = section.gate.clone().unwrap_or_default();
            section
                .lanes
                .iter()
                .for_each(|lane| sidecar.hold.fetched(lane, &gate, begun));
        }
        let mut line: Option<Standing<'_>> = None;
        let mut out = HandOut::new(self.clone());
        loop {
            let other = self
                .round(wanted, sections, policies, &mut out, line.is_some())
                .await;
            match other {
                Err(error) if out.is_empty() => return Outcome::Lost(error),
                Ok(Some(reply)) if out.is_empty() => return Outcome::Theirs(reply),
                _ => {}
            }
            let waited = Instant::now();
            let (prospect, hint) = self.prospect(sections).await;
            let ends = !out.is_empty() || sidecar.draining.is_cancelled() || client.has_gone();
            let helps = match prospect {
                Prospect::None => false,
                Prospect::Slot => true,
                Prospect::At(at) => {
                    sidecar.instant_of(at) <= deadline + Duration::from_micros(EARLY)
                }
            };
            if ends || !helps || waited >= deadline {
                if let Some(line) = &line {
                    sidecar.metrics.waited(line.since.elapsed());
                }
                sidecar.nudge(sections);
                return Outcome::Ours(out, hint);
            }
            let standing = line.get_or_insert_with(|| Standing::new(self, sections, wanted.count));
            let until = standing.wake_at(prospect).await.min(deadline);
            tokio::select! {
                () = standing.waiter.woken() => {}
                () = tokio::time::sleep_until(until) => {}
                () = client.gone() => {}
                () = sidecar.draining.cancelled() => {}
            }
        }
    }

    /// One round over the queues, left to right. `again`: the worker has been waiting, so the backend
    /// is asked only if it was not asked just now.
    async fn round(
        &self,
        wanted: &Wanted,
        sections: &[Section],
        policies: &PolicySet,
        out: &mut HandOut,
        again: bool,
    ) -> Result<Option<Reply>, UpstreamError> {
        let sidecar = &self.sidecar;
        let budget = Instant::now() + sidecar.settings.claim_budget;
        for section in sections {
            for lane in section
                .lanes
                .iter()
                .filter(|lane| !sidecar.paused(&lane.queue))
            {
                if sidecar.hold.outranked(lane) && self.may_claim(lane, section, 1).await > 0 {
                    self.claim(wanted, section, 1, policies).await?;
                }
                self.start_into(lane, wanted, out).await;
            }
            let mut n = wanted.count.saturating_sub(out.len());
            while n > 0 && !sidecar.draining.is_cancelled() {
                let Some(first) = section.lanes.first() else {
                    break;
                };
                let asked_at = sidecar.hold.asked_at(first);
                if again
                    && asked_at.is_some_and(|at| at.elapsed() < ASK_AGAIN)
                    && !self.reopened(first, section)
                {
                    break;
                }
                let n_now = self.may_claim(first, section, n).await;
                if n_now == 0 {
                    break;
                }
                let short = match self.claim(wanted, section, n_now, policies).await? {
                    Answer::Other(reply) => return Ok(Some(reply)),
                    Answer::Jobs { short } => short,
                };
                let before = out.len();
                for lane in section
                    .lanes
                    .iter()
                    .filter(|lane| !sidecar.paused(&lane.queue))
                {
                    self.start_into(lane, wanted, out).await;
                }
                if short || Instant::now() >= budget {
                    break;
                }
                let missing = wanted.count.saturating_sub(out.len());
                n = if out.len() == before { n * 2 } else { missing };
            }
        }
        Ok(None)
    }

    /// Whether a gate that was shut when the backend was last asked may have room now: then the worker
    /// need not wait for the next time to ask.
    fn reopened(&self, lane: &Lane, section: &Section) -> bool {
        section
            .gate
            .as_ref()
            .is_some_and(|gate| !gate.limited.is_empty())
            && self.sidecar.hold.more(lane)
    }

    async fn may_claim(&self, lane: &Lane, section: &Section, n: usize) -> usize {
        if section
            .lanes
            .iter()
            .all(|lane| self.sidecar.paused(&lane.queue))
        {
            // The backend knows that it is paused; asking it keeps what it says of the queue ours to pass.
            return 0;
        }
        match &section.gate {
            Some(gate) => self.allowance(lane, gate, n).await.jobs,
            None => n,
        }
    }

    async fn start_into(&self, lane: &Lane, wanted: &Wanted, out: &mut HandOut) {
        let missing = wanted.count.saturating_sub(out.len());
        let started: Vec<Started> = self.start(lane, missing, wanted.visibility).await;
        out.extend(started);
    }

    /// What waiting could bring, over all queues.
    async fn prospect(&self, sections: &[Section]) -> (Prospect, Hint) {
        let sidecar = &self.sidecar;
        let mut soonest = Prospect::None;
        let mut hint = Hint::default();
        for section in sections {
            let Some(gate) = &section.gate else { continue };
            for lane in section
                .lanes
                .iter()
                .filter(|lane| !sidecar.paused(&lane.queue))
            {
                hint.limited |= sidecar.hold.holds(lane);
                soonest = soonest.sooner(sidecar.hold.prospect(lane));
                let allowance = self.allowance(lane, gate, 1).await;
                hint.limited |= allowance.prospect != Prospect::None;
                soonest = soonest.sooner(allowance.prospect);
            }
        }
        if let Prospect::At(at) = soonest {
            hint.next = Some(Duration::from_micros(at.since(sidecar.store.now())));
        }
        (soonest, hint)
    }

    fn answer(&self, parts: &Parts, outcome: Outcome) -> Response<Body> {
        match outcome {
            Outcome::Theirs(reply) => self.theirs(parts, reply),
            Outcome::Lost(error) => refuse(&parts, Fault::backend(&error, false)),
            Outcome::Ours(out, hint) => out.respond(parts, hint),
        }
    }

    /// The backend's own answer.
    pub(super) fn theirs(&self, parts: &Parts, reply: Reply) -> Response<Body> {
        let mut response = Response::new(Body::from(reply.body));
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        self.mend_media_type(&parts.headers, response.headers_mut());
        response
    }
}

impl super::Sidecar {
    /// Wakes those who wait for what this FETCH claimed beyond its own count.
    fn nudge(&self, sections: &[Section]) {
        for lane in sections.iter().flat_map(|section| &section.lanes) {
            self.hold.nudge(lane);
        }
    }
}

impl Hint {
    /// Writes what it knows into the headers of an answer.
    pub(super) fn write(self, headers: &mut http::HeaderMap) {
        if self.limited {
            headers.insert(
                "ojs-throttle-limited",
                http::HeaderValue::from_static("true"),
            );
        }
        if let Some(next) = self.next {
            let text = format!("{:.3}", next.as_secs_f64());
            if let Ok(value) = http::HeaderValue::try_from(text) {
                headers.insert("ojs-throttle-next", value);
            }
        }
    }
}

/// A place in the lines of a FETCH's limited queues; left when dropped.
struct Standing<'a> {
    proxy: &'a Proxy,
    sections: &'a [Section],
    lanes: Vec<Lane>,
    waiter: Waiter,
    since: Instant,
}

impl<'a> Standing<'a> {
    fn new(proxy: &'a Proxy, sections: &'a [Section], want: usize) -> Standing<'a> {
        let limited = sections.iter().filter(|section| section.gate.is_some());
        let lanes: Vec<Lane> = limited
            .flat_map(|section| section.lanes.iter().cloned())
            .collect();
        let since = Instant::now();
        let waiter = proxy.sidecar.hold.stand(&lanes, want, since);
        Standing {
            proxy,
            sections,
            lanes,
            waiter,
            since,
        }
    }

    /// When this waiter looks again by itself: the first in a line watches the clock and asks the
    /// backend again, those behind are woken when it leaves.
    async fn wake_at(&self, prospect: Prospect) -> Instant {
        let hold = &self.proxy.sidecar.hold;
        let now = Instant::now();
        let mut at = now + self.proxy.sidecar.settings.max_wait;
        let first = |lane: &Lane| hold.standing(lane, &self.waiter) == Place::First;
        if !self.lanes.iter().any(first) {
            return at;
        }
        if let Prospect::At(start) = prospect {
            let early = self
                .proxy
                .sidecar
                .instant_of(start)
                .checked_sub(Duration::from_micros(EARLY));
            at = at.min(early.unwrap_or(now));
        }
        for section in self.sections {
            let (Some(gate), Some(lane)) = (&section.gate, section.lanes.first()) else {
                continue;
            };
            if first(lane) && self.proxy.allowance(lane, gate, 1).await.jobs > 0 {
                at = at.min(hold.asked_at(lane).map_or(now, |asked| asked + ASK_AGAIN));
            }
        }
        // Never at once: what could be done at once was just done.
        at.max(now + Duration::from_millis(1))
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.proxy.sidecar.hold.leave(&self.lanes, &self.waiter);
    }
}

/// What a FETCH asks for.
struct Read {
    queues: Vec<Arc<str>>,
    count: usize,
    worker_id: Option<Arc<str>>,
    visibility: Option<Duration>,
}

/// Reads a FETCH; `None`: it is not one that we understand, and the backend will say so.
fn read(body: &[u8]) -> Option<Read> {
    let request = Json::parse(body, DEPTH).ok()?;
    let [queues, count, batch, worker_id, visibility] = request.pick([
        "queues",
        "count",
        "batch_size",
        "worker_id",
        "visibility_timeout_ms",
    ]);
    let queues = queues.filter(|queues| queues.kind() == Kind::Array)?;
    let names: Option<Vec<Arc<str>>> = queues
        .items()
        .map(|q| q.text().map(|q| Arc::from(q.as_ref())))
        .collect();
    let count = count.or(batch).filter(|count| !count.is_null());
    Some(Read {
        queues: names.filter(|names| !names.is_empty())?,
        // The backend answers anything else than a whole number by itself; zero and less mean one.
        count: count.map_or(Some(1), |count| count.int())?.clamp(1, 10_000) as usize,
        worker_id: worker_id
            .and_then(|id| id.text())
            .map(|id| Arc::from(id.as_ref())),
        visibility: visibility
            .and_then(|ms| ms.int())
            .and_then(|ms| u64::try_from(ms).ok())
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis),
    })
}

fn worker_id(body: &[u8]) -> Option<Arc<str>> {
    read(body)?.worker_id
}

/// The status of every answer of ours to a FETCH, with or without jobs: SDKs take anything else for
/// an error and back off.
pub(super) const OK: StatusCode = StatusCode::OK;
