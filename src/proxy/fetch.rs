//! FETCH: cap the claim, start what may start, hold the rest, wait a little if that may help.
//!
//! A proxy learns what a job is only after the backend has handed it out. So a FETCH that limits can
//! touch never passes through: what may be claimed is claimed, what may not start is held, and held jobs
//! start from the hold. Surplus, undelivered and adopted jobs take that path too. Fresh jobs are asked for
//! before they are held where nothing of their queue waits: most start at once.

mod asked;
mod claim;
pub(super) mod gated;
mod handout;
pub(super) mod lead;
mod more;
mod start;
mod wait;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use smallvec::{SmallVec, smallvec};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::body::Body;
use super::job::{self, Origin};
use super::live::Live;
use super::outlive::{Client, to_the_end};
use super::refuse;
use super::respond::{self, Fault};
use super::{Proxy, mirror};
use crate::boxed::boxed;
use crate::hold::{Held, Lane, Prospect};
use crate::limit::EARLY;
use crate::metrics::Counted;
use crate::policy::{Accept, Gate, PolicySet};
use crate::pressure::Mark;
use crate::tick;
use crate::upstream::{Path, Reply, UpstreamError};
use asked::{Asked, once};
use claim::{Allowance, Answer, Section, Wanted};
use handout::{HandOut, Hint};
use more::Ends;
use wait::{ASK_AGAIN, Standing};

/// So much longer each time, from the second on, is the pause before a FETCH of which all starts were late tries again.
const LATE_AGAIN: Duration = Duration::from_millis(10);

/// What a FETCH came to.
enum Outcome {
    /// The backend's own answer, passed on as it is.
    Theirs(Reply),
    /// Jobs from the hold, or none.
    Ours(HandOut, Hint),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// What a FETCH that was passed whole came to.
enum Whole {
    Answer(Response<Body>),
    /// So many jobs came that are limited; they are in the hold now. They are of these queues.
    Held(usize, Vec<Arc<str>>),
}

impl Proxy {
    /// Answers one FETCH.
    pub(super) async fn fetch(&self, mut parts: Box<Parts>, body: Bytes) -> Response<Body> {
        let sidecar = &self.sidecar;
        let live = sidecar.live.load_full();
        let held = sidecar.holds_any();
        let limits = held || !live.policies.is_empty();
        let looks = limits || sidecar.pressure.any();
        let asked = looks.then(|| Asked::read(&body)).flatten();
        let draining = sidecar.draining.is_cancelled();
        if let Some(fault) = asked::fault(&body, asked.as_ref(), limits) {
            return refuse(&parts, fault);
        }
        let unread = limits && asked.is_none();
        if draining && (unread || sidecar.brought.load(Ordering::Relaxed)) {
            // What comes may be limited, and would only be held for its claim to end.
            return self.nothing(&parts);
        }
        let touched = |queue: &Arc<str>| held || !live.policies.gate(queue).open();
        let touched = (asked.iter()).any(|asked| asked.queues.iter().any(touched));
        let mut wanted = Wanted {
            body,
            target: Path::Read(std::mem::take(&mut parts.uri)),
            headers: respond::take_headers(&mut parts),
            timeout: live.settings.upstream_timeout,
            scope: 0,
            accepted: false,
            count: asked.as_ref().map_or(1, |asked| asked.count),
            asked,
        };
        let mut sections = Vec::new();
        if touched {
            (wanted.scope, wanted.accepted) = sidecar.scopes.look(&wanted.headers);
            self.take_over_of(wanted.scope, wanted.queues()).await;
            sections = self.sections(wanted.scope, wanted.queues(), &live.policies);
        }
        let leaves_out = draining && sections.iter().any(|section| section.gate.is_some());
        if leaves_out {
            // Other queues go on to the end: nobody waits for their jobs.
            sections.retain(|section| section.gate.is_none());
            if !wanted.keep(&sections) {
                return self.nothing(&parts);
            }
        }
        if (sections.iter()).all(|section: &Section| section.gate.is_none()) {
            // What we do not understand but the backend does must not go round the limits.
            match self.pass_whole(&parts, &mut wanted, unread, &live).await {
                Whole::Answer(answer) if leaves_out => return respond::send_elsewhere(answer),
                Whole::Answer(answer) => return answer,
                Whole::Held(jobs, came) => {
                    if wanted.asked.is_none() {
                        wanted.count = jobs;
                    }
                    let queues = (wanted.asked.as_ref()).map_or(&came, |asked| &asked.queues);
                    sections = self.sections(wanted.scope, queues, &sidecar.live().policies);
                }
            }
        }
        let (proxy, client) = (self.clone(), Client::default());
        let seen = client.clone();
        let work = boxed(|| proxy.filled(wanted, sections, live, seen));
        // If the worker hangs up, the outcome is dropped, and its hand-out undoes itself.
        let outcome = to_the_end(&sidecar.left, client, work).await;
        self.answer(&parts, outcome)
    }

    /// No jobs.
    fn nothing(&self, parts: &Parts) -> Response<Body> {
        HandOut::new(self.clone()).respond(parts, Hint::default())
    }

    /// Claims and starts; once more if all that started is late by now. A stall of ours
    /// is no reason to send a worker away from jobs that may start. Where it is late again and again, it is tried more
    /// and more seldom.
    #[expect(
        clippy::manual_async_fn,
        reason = "an `async fn` keeps each of its arguments twice in its future"
    )]
    fn filled(
        self,
        wanted: Wanted,
        mut sections: Vec<Section>,
        mut live: Arc<Live>,
        client: Client,
    ) -> impl Future<Output = Outcome> + Send {
        async move {
            let begun = tick::now();
            let mut now = begun;
            let mut pause = Duration::ZERO;
            let patience = begun + live.settings.max_wait.max(live.settings.claim_budget);
            loop {
                let times = (begun, now);
                let outcome = self.fill(&wanted, &sections, &live, times, &client).await;
                let (mut out, hint) = match outcome {
                    Some(Outcome::Ours(out, hint)) => (out, hint),
                    Some(other) => return other,
                    None => {
                        live = self.sidecar.live.load_full();
                        let lanes = sections.iter().flat_map(|section| &section.lanes);
                        let queues: Vec<Arc<str>> = lanes.map(|lane| lane.queue.clone()).collect();
                        sections = self.sections(wanted.scope, &queues, &live.policies);
                        now = Instant::now();
                        continue;
                    }
                };
                if self.leaves_in_time(&mut out).await {
                    out.keep_paused(begun);
                    return Outcome::Ours(out, hint);
                }
                now = Instant::now();
                if now >= patience || client.has_gone() {
                    return Outcome::Ours(out, hint);
                }
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                    now = Instant::now();
                }
                pause += LATE_AGAIN;
            }
        }
    }

    /// Sees to it that what goes out leaves in time. `false`: all of it is late, and in the hold.
    async fn leaves_in_time(&self, out: &mut HandOut) -> bool {
        let late = out.late().await;
        late.is_empty() || boxed(|| self.start_late(late, out)).await
    }

    /// Starts anew what would leave late: it waited while the backend was asked for more, or for our own stall, and
    /// what it waited for is over. What is late even then stays in the hold; `false`: that is all.
    async fn start_late(&self, late: Vec<Held>, out: &mut HandOut) -> bool {
        let sidecar = &self.sidecar;
        let (now, told_anew) = (Instant::now(), sidecar.store.told_anew());
        let is_ours = |job: &Held| {
            let is_older = told_anew.is_some_and(|then| job.proven < then);
            now < job.deadline && !is_older
        };
        let (again, mut lost): (Vec<Held>, Vec<Held>) = late.into_iter().partition(is_ours);
        let again = self.unstart(again).await;
        let limits: Vec<_> = again
            .iter()
            .map(|job| job.claimed.limited.clone())
            .collect();
        if !again.is_empty() {
            let started = self.start_fresh(again, limits.len()).await;
            if started.len() < limits.len() {
                limits.iter().for_each(|limits| sidecar.hold.wake(limits));
            }
            for _ in started.len()..limits.len() {
                sidecar.metrics.count(Counted::HandOutUndone);
            }
            out.extend(started);
        }
        lost.append(&mut out.late().await);
        let taken_back = self.take_back(lost);
        if out.is_empty() {
            // Only a panic in there could fail, and would have been logged. Those that are in time do not wait.
            drop(taken_back.await);
        }
        !out.is_empty()
    }

    /// Takes starts back, all at once; gives those of which the rows are ours still, in the order of their claims.
    async fn unstart(&self, jobs: Vec<Held>) -> Vec<Held> {
        let mut asking = JoinSet::new();
        for job in jobs {
            let sidecar = Arc::clone(&self.sidecar);
            asking.spawn(async move { sidecar.back(&job.claimed).await.then_some(job) });
        }
        let mut ours: Vec<Held> = asking.join_all().await.into_iter().flatten().collect();
        // One that the hold knows was claimed anew meanwhile.
        ours.retain(|job| !self.sidecar.hold.has(&job.claimed.job));
        ours.sort_by_key(|job| job.claimed.generation);
        ours
    }

    /// A FETCH that no limit can touch by its queues: forwarded and returned as it is, unless jobs with
    /// limits of their own came back, or `all` that comes is to be looked at.
    async fn pass_whole(
        &self,
        parts: &Parts,
        wanted: &mut Wanted,
        all: bool,
        live: &Live,
    ) -> Whole {
        let sidecar = &self.sidecar;
        let sent = tick::now();
        let mark = sidecar.pressure.mark();
        let reply = match self.upstream.call(wanted.call(wanted.body.clone())).await {
            Ok(reply) => reply,
            Err(error) => return Whole::Answer(refuse(parts, Fault::backend(&error, false))),
        };
        // Policies that came while the backend was asked may touch what it gave.
        let all = all || sidecar.live().edition != live.edition;
        let brings = mirror::may_bring(&reply.body);
        let limits =
            brings && live.policies.accept() != Accept::Ignore && mirror::may_limit(&reply.body);
        if !all && !limits {
            if let Some(asked) = &wanted.asked {
                sidecar.passed(&reply, &asked.queues, asked.given(), mark);
            }
            // What brings no limits has no mirror either.
            let answer = if brings {
                respond::theirs(reply)
            } else {
                respond::reply(reply)
            };
            return Whole::Answer(answer);
        }
        (wanted.scope, wanted.accepted) = sidecar.scopes.look(&wanted.headers);
        if wanted.asked.is_none() {
            wanted.asked = Asked::read(&wanted.body);
            wanted.count = wanted.asked.as_ref().map_or(1, |asked| asked.count);
        }
        let (proxy, of) = (self.clone(), wanted.clone());
        let work = boxed(|| async move {
            let came = proxy.take_in(&of, &reply, sent, mark).await;
            (came, reply)
        });
        // A worker that hangs up now has claimed them all the same.
        match to_the_end(&sidecar.left, Client::default(), work).await {
            (Some((jobs, queues)), _) => Whole::Held(jobs, queues),
            (None, reply) => Whole::Answer(respond::theirs(reply)),
        }
    }

    /// Takes the jobs of a FETCH that was passed whole into the hold. They are claimed under the worker's own id
    /// if it gave one: where any heartbeat of a worker keeps all its jobs, its own keep these too. Says how
    /// many came and of which queues; `None`: none that can be read.
    async fn take_in(
        &self,
        wanted: &Wanted,
        reply: &Reply,
        sent: Instant,
        mark: Mark,
    ) -> Option<(usize, Vec<Arc<str>>)> {
        let sidecar = &self.sidecar;
        let asked = wanted.asked.as_ref();
        let worker_id = asked.and_then(|asked| asked.worker_id(&wanted.body));
        let claim_id = worker_id.unwrap_or_else(|| sidecar.name.clone());
        let lane = |queue: &Arc<str>| Lane {
            scope: wanted.scope,
            queue: queue.clone(),
        };
        let lanes: Vec<Lane> = wanted.queues().iter().map(lane).collect();
        let origin = Origin {
            asked: wanted.count,
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            lanes: &lanes,
            claim_id: &claim_id,
            visibility: wanted.visibility(),
            sent,
            mark,
        };
        let came = self.read_reply(reply, &origin, tick::now()).await;
        let came = came.filter(|came| came.shown > 0)?;
        sidecar.accept(wanted);
        let queues = came.jobs.iter().map(|held| held.claimed.queue.clone());
        let mut queues: Vec<Arc<str>> = queues.collect();
        queues.dedup();
        self.hold(came.jobs, &origin).await;
        Some((came.shown, queues))
    }

    /// Queues in order, each once: those that limits can touch by themselves, the others in runs.
    fn sections(&self, scope: u64, queues: &[Arc<str>], policies: &PolicySet) -> Vec<Section> {
        let mut sections: Vec<Section> = Vec::new();
        for queue in once(queues) {
            let lane = Lane {
                scope,
                queue: queue.clone(),
            };
            let mut gate = policies.gate(queue).into_owned();
            // Held jobs with limits of their own make any queue a limited one.
            gate.keyed |= self.sidecar.hold.holds(&lane);
            if gate.open() && self.sidecar.set_for_queue(queue).is_none() {
                match sections.last_mut() {
                    Some(section) if section.gate.is_none() => section.lanes.push(lane),
                    _ => sections.push(Section {
                        lanes: smallvec![lane],
                        gate: None,
                    }),
                }
            } else {
                sections.push(Section {
                    lanes: smallvec![lane],
                    gate: Some(gate),
                });
            }
        }
        sections
    }

    /// Claims and starts, again and again while waiting may help. It may have `begun` before and been late: a
    /// round has its whole time each time, from `now` on. `None`: the policies have changed, and nothing has
    /// started yet, so it begins anew under those of now.
    async fn fill(
        &self,
        wanted: &Wanted,
        sections: &[Section],
        live: &Live,
        (begun, mut now): (Instant, Instant),
        client: &Client,
    ) -> Option<Outcome> {
        let sidecar = &self.sidecar;
        let deadline = begun + live.settings.max_wait;
        sidecar.note_fetched(sections, now);
        if let Err(error) = self.ensure_learnt().await {
            return Some(Outcome::Lost(error));
        }
        let mut line: Option<Standing<'_>> = None;
        let mut shut = Vec::new();
        let mut closed: SmallVec<[Option<Allowance>; 1]> = smallvec![None; sections.len()];
        let mut out = HandOut::new(self.clone());
        if client.has_gone() {
            return Some(Outcome::Ours(out, Hint::default()));
        }
        loop {
            if out.is_empty() && sidecar.live().edition != live.edition {
                return None;
            }
            let again = line.is_some().then_some(&*shut);
            let until = now + live.settings.claim_budget;
            let ends = (until, client);
            let round = self.round(wanted, sections, &mut out, again, &mut closed, ends);
            match round.await {
                Err(error) if out.is_empty() => return Some(Outcome::Lost(error)),
                Ok(Some(reply)) if out.is_empty() => return Some(Outcome::Theirs(reply)),
                _ => {}
            }
            let full = out.len() >= wanted.count;
            let mut lanes = sections.iter().flat_map(|section| &section.lanes);
            if full && line.is_none() && sidecar.hold.holds_none(&mut lanes) {
                return Some(Outcome::Ours(out, Hint::default()));
            }
            now = Instant::now();
            let (prospect, hint) =
                Box::pin(self.prospect(sections, &mut shut, &mut closed, (out.is_empty(), full)))
                    .await;
            if !full {
                self.note_shut(wanted.scope, sections, &shut);
            }
            let ends = !out.is_empty() || sidecar.draining.is_cancelled() || client.has_gone();
            let left = deadline.saturating_duration_since(now) + Duration::from_micros(EARLY);
            let helps = || prospect.is_by(sidecar.store.now().plus(job::micros(left)));
            if ends || now >= deadline || !helps() {
                sidecar.note_answered(sections, line.map(|line| line.since));
                return Some(Outcome::Ours(out, hint));
            }
            let stood = line.is_some().then_some(&*shut);
            let standing = line.get_or_insert_with(|| Standing::new(self, sections));
            let until = standing.wake_at(prospect, stood).await.min(deadline);
            tokio::select! {
                () = standing.waiter.woken() => {}
                () = tokio::time::sleep_until(until) => {}
                () = client.gone() => {}
                () = sidecar.draining.cancelled() => {}
            }
            now = Instant::now();
        }
    }

    /// One round over the queues, left to right. `again`: the worker has been waiting, so the backend
    /// is asked only about queues that were shut before, which this says, or not asked about just now.
    /// Notes in `closed` what could bring room to those that have none. Past `until` no queue is asked more than
    /// once: one that stands behind slow ones would never be. For a client that has gone nothing more is claimed.
    async fn round(
        &self,
        wanted: &Wanted,
        sections: &[Section],
        out: &mut HandOut,
        again: Option<&[bool]>,
        closed: &mut [Option<Allowance>],
        by: Ends<'_>,
    ) -> Result<Option<Reply>, UpstreamError> {
        let (sidecar, (until, client)) = (&self.sidecar, by);
        for (nth, section) in sections.iter().enumerate() {
            if out.len() >= wanted.count || client.has_gone() {
                break;
            }
            let ends = || section.gate.is_some() && sidecar.draining.is_cancelled();
            let was_shut = again.is_none_or(|shut| shut.get(nth).is_some_and(|shut| *shut));
            for lane in section.lanes.iter().filter(|lane| self.may_go(lane)) {
                let first = !ends() && sidecar.hold.outranked(lane);
                if first {
                    let allowed = self.allowed(lane, section, 1, out.is_empty()).await;
                    let asks = allowed.jobs > 0;
                    if asks && (self.claim_into(wanted, section, allowed, out, by).await?).is_none()
                    {
                        return Ok(None);
                    }
                }
                if !self.start_into(lane, wanted, out, by).await {
                    return Ok(None);
                }
            }
            let mut n = wanted.count.saturating_sub(out.len());
            while n > 0 && !ends() {
                let Some(first) = section.lanes.first() else {
                    break;
                };
                let just_now = || {
                    let asked_at = sidecar.hold.asked_at(first);
                    asked_at.is_some_and(|at| at.elapsed() < ASK_AGAIN)
                };
                if !was_shut && just_now() {
                    break;
                }
                let allowed = self.allowed(first, section, n, out.is_empty()).await;
                if allowed.jobs == 0 {
                    if let Some(closed) = closed.get_mut(nth) {
                        *closed = Some(allowed);
                    }
                    break;
                }
                let before = out.len();
                let short = match self.claim_into(wanted, section, allowed, out, by).await? {
                    Some(Answer::Jobs { short }) => short,
                    Some(Answer::Other(reply)) => return Ok(Some(reply)),
                    None => return Ok(None),
                };
                if !self.start_all_into(section, wanted, out, by).await {
                    return Ok(None);
                }
                let missing = wanted.count.saturating_sub(out.len());
                if short || missing == 0 || Instant::now() >= until || client.has_gone() {
                    break;
                }
                let more = n.saturating_mul(2);
                n = if out.len() == before { more } else { missing };
            }
        }
        Ok(None)
    }

    /// Whether a job may be asked of a section now.
    async fn has_room(&self, lane: &Lane, section: &Section) -> bool {
        self.allowed(lane, section, 1, true).await.jobs > 0
    }

    /// How many of `n` jobs may be asked of a section now; `ahead`: none are out that would wait for one whose start
    /// comes.
    async fn allowed(&self, lane: &Lane, section: &Section, n: usize, ahead: bool) -> Allowance {
        match &section.gate {
            Some(gate) => self.allowance(lane, gate, n, ahead).await,
            None => Allowance::of(n),
        }
    }

    /// Asks the backend for the jobs of a section that are allowed; `None`: those that are `out` already cannot wait for them.
    async fn claim_into(
        &self,
        wanted: &Wanted,
        section: &Section,
        allowed: Allowance,
        out: &mut HandOut,
        ends: Ends<'_>,
    ) -> Result<Option<Answer>, UpstreamError> {
        match out.is_empty() {
            true => self.claim(wanted, section, &allowed, out).await.map(Some),
            false => boxed(|| self.claim_more(wanted, section, allowed, out, ends)).await,
        }
    }

    /// Whether jobs of a lane are held, and may go out.
    fn may_go(&self, lane: &Lane) -> bool {
        self.sidecar.hold.holds(lane) && !self.sidecar.paused.has(&lane.queue)
    }

    /// Starts held jobs of all lanes of a section; `false`: those that are `out` already cannot wait for them.
    async fn start_all_into(
        &self,
        section: &Section,
        wanted: &Wanted,
        out: &mut HandOut,
        by: Ends<'_>,
    ) -> bool {
        for lane in section.lanes.iter().filter(|lane| self.may_go(lane)) {
            if !self.start_into(lane, wanted, out, by).await {
                return false;
            }
        }
        true
    }

    /// Starts held jobs of a lane; `false`: those that are `out` already cannot wait for them.
    async fn start_into(
        &self,
        lane: &Lane,
        wanted: &Wanted,
        out: &mut HandOut,
        ends: Ends<'_>,
    ) -> bool {
        // Mostly all that came has started.
        if out.len() >= wanted.count {
            return true;
        }
        // Boxed, so that a FETCH whose jobs all start at once has no room for it.
        if !out.is_empty() {
            return boxed(|| self.start_more(lane, wanted, out, ends)).await;
        }
        let starting = boxed(|| self.start(lane, wanted.count, wanted.visibility()));
        out.extend(starting.await);
        true
    }

    /// What waiting could bring, over all queues; notes which of them have no room now. Those that the
    /// round just found `closed` are not asked about again, and none is where the worker has its `full`
    /// count: it does not wait.
    async fn prospect(
        &self,
        sections: &[Section],
        shut: &mut Vec<bool>,
        closed: &mut [Option<Allowance>],
        (ahead, full): (bool, bool),
    ) -> (Prospect, Hint) {
        let sidecar = &self.sidecar;
        let mut prospect = Prospect::default();
        let mut hint = Hint::default();
        shut.clear();
        for (nth, section) in sections.iter().enumerate() {
            let Some((gate, lane)) = section.gate.as_ref().zip(section.lanes.first()) else {
                shut.push(false);
                continue;
            };
            let allowance = match closed.get_mut(nth).and_then(Option::take) {
                Some(allowance) => allowance,
                None if full => Allowance::of(1),
                None => self.allowance(lane, gate, 1, ahead).await,
            };
            shut.push(allowance.jobs == 0);
            if sidecar.paused.has(&lane.queue) {
                continue;
            }
            let (held, policy) = sidecar.hold.prospect(lane);
            // Whether a job waits in a queue without room is not asked. What other credentials claimed is held
            // where these see an empty queue.
            hint.limited |= allowance.jobs == 0
                || sidecar.hold.holds(lane)
                || (!full && sidecar.hold.holds_of(&lane.queue));
            hint.policy = hint.policy.or(policy).or(allowance.policy);
            prospect = prospect.or(held).or(allowance.prospect);
        }
        if let Some(at) = prospect.at {
            let now = sidecar.store.now();
            // Who has the full count did not ask for all that may be asked for: when that starts is not known.
            let is_known = !full || at > now.plus(EARLY);
            hint.next = is_known.then(|| Duration::from_micros(at.since(now)));
        }
        (prospect, hint)
    }

    fn answer(&self, parts: &Parts, outcome: Outcome) -> Response<Body> {
        match outcome {
            Outcome::Theirs(reply) => respond::theirs(reply),
            Outcome::Lost(error) => refuse(parts, Fault::backend(&error, false)),
            Outcome::Ours(out, hint) => out.respond(parts, hint),
        }
    }
}

impl super::Sidecar {
    /// A worker asks for these queues.
    fn note_fetched(&self, sections: &[Section], now: Instant) {
        for section in sections {
            let open = Gate::default();
            let gate = section.gate.as_ref().unwrap_or(&open);
            let fetched = |lane| self.hold.fetched(lane, gate, now);
            section.lanes.iter().for_each(fetched);
        }
    }

    /// It gets its answer, having stood in line `since`. Wakes those who wait for what it claimed beyond
    /// its own count.
    fn note_answered(&self, sections: &[Section], since: Option<Instant>) {
        if let Some(since) = since {
            self.metrics.waited(since.elapsed());
        }
        for lane in sections.iter().flat_map(|section| &section.lanes) {
            self.hold.nudge(lane);
        }
    }
}
