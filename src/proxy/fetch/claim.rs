//! Claims: how many jobs may be asked of the backend, and asking for them in tasks of their own.
//!
//! What a claim brings is held, whoever asked for it and whether or not anybody still waits. Of a limited queue there
//! is one claim at a time for each scope: FETCHes that come meanwhile wait for it, and the next one asks for what all
//! of them miss.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use http::HeaderMap;
use http::request::Parts;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::asked::Asked;
use super::grant::Claims as Asks;
use crate::hold::{Behind, Held, Lane, Lookahead, Prospect};
use crate::limit::{Limited, PolicyAndKey, Timestamp};
use crate::metrics::Counted;
use crate::policy::Gate;
use crate::pressure::TakenTo;
use crate::proxy::control::{in_force, named};
use crate::proxy::depth;
use crate::proxy::job::{self, ClaimOrigin, Shown, micros};
use crate::proxy::{Proxy, Sidecar, respond, tell};
use crate::store::{Claimed, LedgerExt, Place, Row};
use crate::tick;
use crate::upstream::{Call, Path, Reply, UpstreamError};

/// How far ahead of its start a job of a queue with limits of its own is claimed: then the backend's answer time
/// costs those limits nothing. In microseconds.
pub(super) const AHEAD: u64 = 200_000;

/// How long others wait for a claim that is under way: then it may hang, and they make one of their own.
const PATIENCE: Duration = Duration::from_secs(1);

/// Claims that are made at once where each must be for one job, under an id of its own.
const ALONE_AT_ONCE: usize = 8;

/// What a worker asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The FETCH as it came.
    pub(super) body: Bytes,
    pub(super) target: Path,
    pub(super) headers: HeaderMap,
    /// How long the backend may take.
    pub(super) timeout: Duration,
    /// Whose credentials it carries, once that matters.
    pub(super) scope: u64,
    /// Whether the backend gave jobs to them before.
    pub(super) accepted: bool,
    /// The most jobs it may get.
    pub(super) count: usize,
    /// What it says; `None`: nothing that we understand, or that matters so far, and no more can be
    /// claimed in its name.
    pub(super) asked: Option<Asked>,
}

/// How many jobs may be asked for now, and if none, when that may change by itself.
#[derive(Clone, Default, Debug)]
pub(super) struct Cap {
    pub(super) jobs: usize,
    pub(super) prospect: Prospect,
    /// When the queue's own limits let the next one start, as far as time goes.
    pub(super) opens: Option<Timestamp>,
    /// The queue's own limit that has no room.
    pub(super) by: Option<PolicyAndKey>,
}

/// How a claim ended.
#[derive(Clone, Debug)]
pub(super) enum ClaimEnd {
    /// Its jobs are held; `short`: the queue has no more.
    Jobs { short: bool },
    /// The backend said something else; it is passed on as it is.
    Other(Reply),
    /// The backend did not answer.
    Lost(UpstreamError),
}

/// A claim that is under way, for those who wait for it.
#[derive(Clone, Debug)]
pub(super) struct ClaimTask(watch::Receiver<Option<ClaimEnd>>);

impl ClaimTask {
    /// How it ended.
    pub(super) async fn end(&mut self) -> ClaimEnd {
        let end = self.0.wait_for(Option::is_some).await;
        let end = end.ok().and_then(|end| end.clone());
        // Only a panic in there could lose it, and would have been logged.
        end.unwrap_or(ClaimEnd::Jobs { short: true })
    }
}

/// The claims of limited queues that are under way.
#[derive(Default, Debug)]
pub(in crate::proxy) struct Claims {
    lanes: Mutex<HashMap<Lane, LaneClaims>>,
    /// How long the backend took to answer the last one, in microseconds.
    took: AtomicU64,
}

#[derive(Default, Debug)]
struct LaneClaims {
    /// The latest claim, and when it was made.
    running: Option<(ClaimTask, Instant)>,
    /// Jobs that FETCHes wait for.
    missed: usize,
}

impl Claims {
    /// The claim of a lane that is under way.
    pub(super) fn running(&self, lane: &Lane) -> Option<ClaimTask> {
        let lanes = self.lanes.lock();
        let (task, begun) = lanes.get(lane)?.running.as_ref()?;
        (tick::now().saturating_duration_since(*begun) < PATIENCE).then(|| task.clone())
    }

    /// Whether the backend took longer than that to answer the last claim.
    pub(super) fn took_longer(&self, than: Duration) -> bool {
        self.took.load(Ordering::Relaxed) > micros(than)
    }

    /// How many jobs of a lane FETCHes wait for.
    pub(super) fn missed(&self, lane: &Lane) -> usize {
        self.lanes.lock().get(lane).map_or(0, |of| of.missed)
    }

    fn begin(&self, lane: &Lane, task: &ClaimTask, now: Instant) {
        self.change(lane, |of| of.running = Some((task.clone(), now)));
    }

    fn end(&self, lane: &Lane, begun: Instant) {
        let took = tick::now().saturating_duration_since(begun);
        self.took.store(micros(took), Ordering::Relaxed);
        self.change(lane, |of| {
            // Another one may have been made meanwhile.
            let is_it = |(_, at): &(ClaimTask, Instant)| *at == begun;
            if of.running.as_ref().is_some_and(is_it) {
                of.running = None;
            }
        });
    }

    fn change(&self, lane: &Lane, change: impl FnOnce(&mut LaneClaims)) {
        let mut lanes = self.lanes.lock();
        let of = lanes.entry_ref(lane).or_default();
        change(of);
        if of.running.is_none() && of.missed == 0 {
            lanes.remove(lane);
        }
    }
}

/// A FETCH misses so many jobs of a lane, until this is dropped.
pub(super) struct Missing {
    sidecar: Arc<Sidecar>,
    lane: Lane,
    jobs: usize,
}

impl Missing {
    pub(super) fn new(sidecar: &Arc<Sidecar>, lane: &Lane, jobs: usize) -> Missing {
        let claims = &sidecar.fetching.claims;
        claims.change(lane, |of| of.missed += jobs);
        Missing {
            sidecar: Arc::clone(sidecar),
            lane: lane.clone(),
            jobs,
        }
    }

    /// Whether they are of this lane.
    pub(super) fn is_of(&self, lane: &Lane) -> bool {
        self.lane == *lane
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        let claims = &self.sidecar.fetching.claims;
        claims.change(&self.lane, |of| {
            of.missed = of.missed.saturating_sub(self.jobs)
        });
    }
}

/// One claim: what is asked of the backend, and in whose name.
pub(super) struct Claim {
    pub(super) proxy: Proxy,
    pub(super) wanted: Arc<Wanted>,
    /// One limited queue, or a run of others.
    pub(super) lanes: SmallVec<[Lane; 1]>,
    /// Whether limits can touch these queues.
    pub(super) limited: bool,
    pub(super) jobs: usize,
}

impl Claim {
    /// Makes the claim in a task of its own.
    pub(super) fn start(mut self) -> ClaimTask {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        if self.is_alone() {
            self.jobs = self.jobs.min(ALONE_AT_ONCE);
        }
        let (tell, end) = watch::channel(None);
        let (task, begun) = (ClaimTask(end), tick::now());
        let lane = self.lanes.first().cloned();
        let coming = (lane.as_ref()).map(|lane| sidecar.hold.asking(lane, self.jobs, begun));
        let of_limited = lane.filter(|_| self.limited);
        if let Some(lane) = &of_limited {
            sidecar.fetching.claims.begin(lane, &task, begun);
        }
        // What nothing limits has a claim for each FETCH: who hung up is counted.
        let tasks = match self.limited {
            true => &sidecar.tasks.own,
            false => &sidecar.tasks.left,
        };
        let sidecar = Arc::clone(&sidecar);
        let work = async move {
            let end = match self.is_alone() && self.jobs > 1 {
                true => self.one_by_one().await,
                false => self.ask(self.jobs).await,
            };
            if let Some(coming) = coming {
                coming.answered(match end {
                    ClaimEnd::Jobs { short: false } => Behind::More,
                    _ => Behind::Nothing,
                });
            }
            if let Some(lane) = &of_limited {
                sidecar.fetching.claims.end(lane, begun);
            }
            tell.send_replace(Some(end));
        };
        let _task = tasks.spawn(work.in_current_span());
        task
    }

    /// Whether no other claim may be under its id: one claim id never covers held jobs and jobs out with a worker where
    /// liveness is by worker, or may be.
    fn is_alone(&self) -> bool {
        self.limited && !self.proxy.sidecar.backend.job_liveness()
    }

    /// Asks for each job by itself.
    async fn one_by_one(self) -> ClaimEnd {
        let (claim, mut asking) = (Arc::new(self), JoinSet::new());
        for _ in 0..claim.jobs {
            let claim = Arc::clone(&claim);
            asking.spawn(async move { claim.ask(1).await }.in_current_span());
        }
        let mut all = ClaimEnd::Jobs { short: false };
        while let Some(end) = asking.join_next().await {
            match end {
                Ok(ClaimEnd::Jobs { short: false }) | Err(_) => {}
                Ok(end) => all = end,
            }
        }
        all
    }

    /// Asks the backend for `n` jobs, and holds what comes. Limited queues are claimed under the sidecar's id, others
    /// under the worker's own.
    async fn ask(&self, n: usize) -> ClaimEnd {
        let (proxy, wanted) = (&self.proxy, &self.wanted);
        let sidecar = &proxy.sidecar;
        let Some(asked) = &wanted.asked else {
            return ClaimEnd::Jobs { short: true };
        };
        let own = match self.limited {
            true => None,
            false => asked.worker_id(&wanted.body),
        };
        let says_id = self.limited || own.is_some();
        let claim_id = own.unwrap_or_else(|| self.claim_id());
        let said = says_id.then_some(&*claim_id);
        let body = asked.rewritten(&wanted.body, &self.lanes, n, said);
        let sent = tick::now();
        let mark = sidecar.admit.pressure.mark();
        let answer = proxy.upstream.call(wanted.call(body.into())).await;
        let ended = tick::now();
        sidecar.note_call("fetch", &answer, ended - sent);
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) => return ClaimEnd::Lost(error),
        };
        sidecar.fetching.note_status(reply.status);
        let origin = ClaimOrigin {
            asked: n,
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            lanes: &self.lanes,
            claim_id: &claim_id,
            visibility: asked.visibility,
            sent,
            mark,
        };
        let (shown, jobs) = match sidecar.read_reply(&reply, &origin, ended) {
            Ok(Some(came)) => came,
            Ok(None) => return ClaimEnd::Other(reply),
            Err(error) => return ClaimEnd::Lost(error),
        };
        if !jobs.is_empty() {
            hold(proxy, wanted, jobs, &origin);
            if self.is_counted_by_siblings() {
                depth::tell_holds(sidecar).await;
            }
        }
        ClaimEnd::Jobs { short: shown < n }
    }

    /// Whether siblings count what is held of these queues: a job that the backend does not show any more, and of which
    /// they were not told yet, would be room for one more.
    fn is_counted_by_siblings(&self) -> bool {
        let sidecar = &self.proxy.sidecar;
        let has_bound = |lane: &Lane| sidecar.admit.pressure.bounds(&lane.queue).is_some();
        sidecar.store.is_shared() && self.lanes.iter().any(has_bound)
    }

    /// The sidecar's worker id to claim under.
    fn claim_id(&self) -> Arc<str> {
        let sidecar = &self.proxy.sidecar;
        if !self.is_alone() {
            return Arc::clone(&sidecar.fetching.worker_id);
        }
        let number = sidecar.fetching.next_claim(sidecar.store.now()).0;
        Arc::from(format!("{}-{number}", sidecar.fetching.worker_id))
    }
}

/// How many starts times alone allow within [`AHEAD`], under limits that each job of a queue has; `None`: no time
/// limits them.
pub(super) fn soon(limited: &[Limited]) -> Option<usize> {
    let within = |limit: u32, period: u64| {
        let starts = u128::from(limit) * u128::from(AHEAD) / u128::from(period.max(1));
        usize::try_from(starts).unwrap_or(usize::MAX)
    };
    let each = limited.iter().flat_map(|one| {
        let throttle = one.limits.throttle.as_ref();
        let throttle = throttle.map(|of| within(of.limit.get(), of.period.get()));
        let rates = one.limits.rates.iter();
        rates
            .map(move |of| within(of.limit.get(), of.period.get()))
            .chain(throttle)
    });
    each.min().map(|starts| starts.max(1))
}

impl Sidecar {
    /// How many jobs may be claimed of a limited queue for a FETCH that misses `n`. Where the queue has limits of its
    /// own: those, and what may start in the time after them, as far as that may start within [`AHEAD`] and is not
    /// promised to jobs that wait for nothing else. Where limits are by key: what the hold has free.
    pub(super) async fn cap(&self, lane: &Lane, gate: &Gate, n: usize) -> Cap {
        let mut cap = Cap {
            jobs: n,
            ..Cap::default()
        };
        let limited = in_force::limits_now(self, &lane.queue, &gate.limited);
        if !limited.is_empty() {
            cap = self.cap_of_queue(lane, gate, &limited, n).await;
        }
        if gate.keyed || limited.is_empty() {
            let most = self.hold_most(&self.live().settings);
            let free = match self.hold.lookahead(lane, most) {
                Lookahead::Free(free) => free,
                Lookahead::Full => 0,
                Lookahead::Soon => {
                    cap.prospect = Prospect::slot();
                    0
                }
            };
            cap.jobs = cap.jobs.min(free);
        }
        cap
    }

    async fn cap_of_queue(&self, lane: &Lane, gate: &Gate, limited: &[Limited], n: usize) -> Cap {
        let (promised, soon) = (self.hold.promised(&lane.queue, gate), soon(limited));
        let is_enough = 2 * promised >= soon.unwrap_or(1);
        if promised > 0 && is_enough && self.hold.is_refused(lane, gate, self.store.now()) {
            return Cap::default();
        }
        let Ok(room) = self.store.room(limited).await else {
            return Cap::default();
        };
        let by_then = self.store.now().plus(AHEAD);
        let ahead = match room.at {
            Some(at) if at <= by_then && !room.slot => soon.unwrap_or(0),
            _ => 0,
        };
        let slots = limited.iter().filter_map(|one| one.limits.concurrency);
        let slots = slots.min().map_or(usize::MAX, |slots| slots as usize);
        // Of a queue with a cost one job is held at any time: only then it is known how much room it needs.
        let is_priced = limited.iter().any(|one| one.cost.rule.is_some());
        let is_paused = limited.iter().any(|one| one.limits.concurrency == Some(0));
        let least = usize::from(is_priced && !is_paused && promised == 0);
        let starts = (room.starts as usize).max(least);
        // Only the jobs claimed ahead are bounded here: while the store is lost there may be more starts than slots.
        let ahead = ahead.min(slots.saturating_sub(starts));
        let most = starts.saturating_add(ahead);
        let jobs = most.saturating_sub(promised).min(n.saturating_add(ahead));
        let mut cap = Cap {
            jobs,
            ..Cap::default()
        };
        if jobs > 0 {
            return cap;
        }
        let paused = limited.iter().find(|one| one.limits.concurrency == Some(0));
        let by = paused.or(limited.get(room.by));
        cap.by = by.map(Limited::names);
        if paused.is_none() && self.hold.more(lane) {
            cap.opens = room.at.filter(|_| !room.slot);
            cap.prospect = match room.slot {
                true => Prospect::slot_from(room.at.unwrap_or_default()),
                false => Prospect {
                    at: room.at.map(|at| at.minus(AHEAD)),
                    slot: None,
                },
            };
        }
        cap
    }
}

impl Sidecar {
    /// Reads the jobs of a FETCH reply that came at `ended`: they are ours now, and in no other place. How many it
    /// shows, and those that can be read; `None`: it is a refusal.
    ///
    /// # Errors
    /// It may have jobs in it, and cannot be read: it must go to nobody, for what it brings would not be limited.
    pub(super) fn read_reply(
        &self,
        reply: &Reply,
        origin: &ClaimOrigin<'_>,
        ended: Instant,
    ) -> Result<Option<(usize, Vec<Held>)>, UpstreamError> {
        if !reply.status.is_success() {
            return Ok(None);
        }
        let all = Shown::all(reply, origin.asked).map_err(|why| {
            tell::unreadable(self, reply, &why);
            UpstreamError::Unreadable(why)
        })?;
        let shown = all.len();
        let mut jobs = Vec::with_capacity(shown);
        {
            let live = self.live();
            let mut reading = job::reading(self, &reply.body, origin, &live, ended);
            let read = |job| job::read_job(self, job, &mut reading);
            jobs.extend(all.iter().filter_map(read));
        }
        once_each(&mut jobs);
        for _ in jobs.len()..shown {
            self.metrics.count(Counted::Nonsense);
        }
        self.metrics.claimed(jobs.len());
        named::noted(self, jobs.iter().map(|held: &Held| &held.claimed));
        for run in jobs.chunk_by(|a, b| a.claimed.queue == b.claimed.queue) {
            if let Some(first) = run.first() {
                self.fetching
                    .paused
                    .is_over(&first.claimed.queue, origin.sent);
            }
        }
        self.fetching.backlogs.claimed(origin.lanes, &mut jobs);
        Ok(Some((shown, jobs)))
    }
}

/// Puts claimed jobs into the hold. From here on earlier claims of them are over, whatever the store grants them.
/// The credentials of this FETCH, to which the backend gave them, are needed as long as they are out or held.
pub(super) fn hold(proxy: &Proxy, wanted: &Wanted, jobs: Vec<Held>, origin: &ClaimOrigin<'_>) {
    let sidecar = &proxy.sidecar;
    if !wanted.accepted {
        sidecar.scopes.accept(wanted.scope, &wanted.headers);
    }
    let claimed = depth::claimed(sidecar, &jobs);
    sidecar.hold.add(jobs);
    depth::fetched(sidecar, &claimed, origin.mark, TakenTo::Hold);
}

/// Names claims of which the store has not heard, beside everything else: the rows of earlier claims of their jobs end,
/// and with those their slots. Where claims do not count, nothing else would show that such a slot is free.
pub(in crate::proxy) fn name_claims(sidecar: &Arc<Sidecar>) {
    let unnamed = sidecar.hold.take_unnamed();
    if unnamed.is_empty() {
        return;
    }
    let _task = sidecar.tasks.spawn(name(Arc::clone(sidecar), unnamed));
}

/// Names these claims to the store.
async fn name(sidecar: Arc<Sidecar>, unnamed: Vec<Claimed>) {
    for some in unnamed.chunks(NAMED_AT_ONCE) {
        let claims: Asks<'_> = some.iter().collect();
        match sidecar.store.take(&claims, 0).await {
            Ok(taken) => sidecar.reclaimed(&taken.ended),
            Err(_) => sidecar.hold.unname(some),
        }
    }
}

impl Sidecar {
    /// Jobs were claimed again, and these rows of earlier claims ended.
    pub(super) fn reclaimed(&self, ended: &[Row]) {
        for row in ended.iter().filter(|row| row.place == Place::Out) {
            self.over(row);
            self.metrics.count(Counted::SlotReclaimed);
        }
    }
}

/// So many claims are named in one call.
const NAMED_AT_ONCE: usize = 256;

/// So many jobs are compared with each other sooner than put into a set.
const FEW: usize = 16;

/// Keeps each job once, as it stands last: however often the reply has it, it is one job and takes one slot.
fn once_each(jobs: &mut Vec<Held>) {
    let has_all = match jobs.len() <= FEW {
        true => (jobs.iter().enumerate()).all(|(nth, one)| {
            let mut earlier = jobs.iter().take(nth);
            earlier.all(|other| other.claimed.job != one.claimed.job)
        }),
        false => {
            let ids: HashSet<&str> = jobs.iter().map(|held| &*held.claimed.job).collect();
            ids.len() == jobs.len()
        }
    };
    if !has_all {
        let mut seen = HashSet::new();
        jobs.reverse();
        jobs.retain(|held| seen.insert(Arc::clone(&held.claimed.job)));
        jobs.reverse();
    }
}

impl Wanted {
    /// One FETCH, as its head and body say it. Path and headers are taken out of the head.
    pub(super) fn take(
        parts: &mut Parts,
        body: Bytes,
        asked: Option<Asked>,
        timeout: Duration,
    ) -> Wanted {
        Wanted {
            body,
            target: Path::Read(std::mem::take(&mut parts.uri)),
            headers: respond::take_headers(parts),
            timeout,
            scope: 0,
            accepted: false,
            count: asked.as_ref().map_or(1, |asked| asked.count),
            asked,
        }
    }

    /// The queues that it names.
    pub(super) fn queues(&self) -> &[Arc<str>] {
        self.asked.as_ref().map_or(&[], |asked| &asked.queues)
    }

    /// The visibility it asked for.
    pub(super) fn visibility(&self) -> Option<Duration> {
        self.asked.as_ref()?.visibility
    }

    /// Asks for the queues of these lanes only, under the worker's own id; says whether there are any.
    pub(super) fn keep<'a>(&mut self, lanes: impl Iterator<Item = &'a Lane>) -> bool {
        let lanes: Vec<Lane> = lanes.cloned().collect();
        let Some(asked) = self.asked.as_ref().filter(|_| !lanes.is_empty()) else {
            return false;
        };
        let own = asked.worker_id(&self.body);
        let own = own.as_deref();
        self.body = asked.rewritten(&self.body, &lanes, self.count, own).into();
        self.asked = Asked::read(&self.body);
        true
    }

    /// The FETCH with another body.
    pub(super) fn call(&self, body: Bytes) -> Call {
        Call {
            method: http::Method::POST,
            target: self.target.clone(),
            headers: self.headers.clone(),
            body,
            timeout: self.timeout,
        }
    }
}
