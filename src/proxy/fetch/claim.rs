//! Claiming: how many jobs may be asked of the backend, and asking for them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until};

use super::asked::Asked;
use super::handout::HandOut;
use super::start::Claims;
use crate::hold::{Held, Lane, Lookahead, Prospect};
use crate::limit::{EARLY, Room, Timestamp};
use crate::metrics::Counted;
use crate::policy::Gate;
use crate::proxy::job::{Origin, Shown};
use crate::proxy::{Proxy, Sidecar, job};
use crate::store::Place;
use crate::tick;
use crate::upstream::{Call, Path, Reply, UpstreamError};

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

/// Queues that are asked together: one that limits can touch, or a run of others.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) lanes: SmallVec<[Lane; 1]>,
    /// What the name of a limited queue says; `None`: no limit can touch these queues.
    pub(super) gate: Option<Gate>,
}

/// How a claim ended.
pub(super) enum Answer {
    /// Jobs; `short`: the queue has no more.
    Jobs { short: bool },
    /// The backend said something else; it is passed on as it is.
    Other(Reply),
}

/// The jobs of a FETCH reply.
pub(super) struct Came {
    /// How many it shows.
    pub(super) shown: usize,
    /// Whether it may be handed on as it is if all of them start.
    pub(super) clear: bool,
    /// Those that can be read.
    pub(super) jobs: Vec<Held>,
}

/// How many jobs may be asked for now, and if none, when that may change by itself.
#[derive(Clone, Default)]
pub(super) struct Allowance {
    pub(super) jobs: usize,
    pub(super) prospect: Prospect,
    /// The policy of the queue's own limit that has no room.
    pub(super) policy: Option<Arc<str>>,
    /// When the one job may start that is asked for before it may.
    pub(super) start: Option<Timestamp>,
}

/// A start for which a job may be claimed before there is room, and from when on.
struct Ahead {
    start: Timestamp,
    from: Timestamp,
}

impl Allowance {
    pub(super) fn of(jobs: usize) -> Allowance {
        Allowance {
            jobs,
            ..Allowance::default()
        }
    }
}

impl Wanted {
    /// The queues that it names.
    pub(super) fn queues(&self) -> &[Arc<str>] {
        self.asked.as_ref().map_or(&[], |asked| &asked.queues)
    }

    /// The visibility it asked for.
    pub(super) fn visibility(&self) -> Option<Duration> {
        self.asked.as_ref()?.visibility
    }
}

impl Proxy {
    /// How many of `n` jobs may be claimed from a limited queue: its room less what is promised to
    /// jobs that wait for nothing else, and the lookahead that is free where limits are by key. One job may be
    /// claimed `ahead` of its room, by as much as the backend takes to give it out.
    pub(super) async fn allowance(
        &self,
        lane: &Lane,
        gate: &Gate,
        n: usize,
        ahead: bool,
    ) -> Allowance {
        let sidecar = &self.sidecar;
        let mut jobs = n;
        let (mut prospect, mut policy, mut start) = (Prospect::default(), None, None);
        let limited = sidecar.limits_now(&lane.queue, &gate.limited);
        if !limited.is_empty() {
            if sidecar.hold.is_refused(lane, gate, sidecar.store.now()) {
                return Allowance::default();
            }
            let Ok(room) = sidecar.store.room(&limited).await else {
                return Allowance::default();
            };
            let promised = sidecar.hold.promised(&lane.queue, gate);
            let ahead = sidecar.ahead(&room).filter(|_| ahead && promised == 0);
            let soon = sidecar.store.now().plus(EARLY);
            start = (ahead.as_ref()).and_then(|ahead| (ahead.from <= soon).then_some(ahead.start));
            jobs = jobs.min(match start {
                Some(_) => 1,
                None => (room.starts as usize).saturating_sub(promised),
            });
            let paused = limited.iter().find(|l| l.limits.concurrency == Some(0));
            if jobs == 0 {
                let by = paused.or(limited.get(room.by));
                policy = by.map(|by| Arc::clone(&by.policy));
            }
            if jobs == 0 && paused.is_none() && sidecar.hold.more(lane) {
                prospect = match room.slot {
                    true => Prospect::slot_from(room.at.unwrap_or_default()),
                    false => Prospect {
                        at: ahead.map(|ahead| ahead.from).or(room.at),
                        slot: None,
                    },
                };
            }
        }
        if gate.keyed || limited.is_empty() {
            let (max, bytes) = {
                let settings = &sidecar.live().settings;
                (sidecar.hold_max(settings), settings.hold_bytes)
            };
            let free = match sidecar.hold.lookahead(lane, max, bytes) {
                Lookahead::Free(free) => free,
                Lookahead::Full => 0,
                Lookahead::Soon => {
                    prospect = Prospect::slot();
                    0
                }
            };
            jobs = jobs.min(free);
        }
        Allowance {
            jobs,
            prospect,
            policy,
            start,
        }
    }

    /// Asks the backend for the jobs of a section that are allowed. What comes and may start at once goes `out`, the
    /// rest into the hold. Limited queues are claimed under the sidecar's id, others under the worker's own.
    pub(super) async fn claim(
        &self,
        wanted: &Wanted,
        section: &Section,
        allowed: &Allowance,
        out: &mut HandOut,
    ) -> Result<Answer, UpstreamError> {
        let sidecar = &self.sidecar;
        let (Some(first), Some(asked)) = (section.lanes.first(), &wanted.asked) else {
            return Ok(Answer::Jobs { short: true });
        };
        let alone = section.gate.is_some() && sidecar.backend.worker_liveness();
        let n = if alone { 1 } else { allowed.jobs };
        let own = match section.gate {
            Some(_) => None,
            None => asked.worker_id(&wanted.body),
        };
        let said = section.gate.is_some() || own.is_some();
        let claim_id = own.unwrap_or_else(|| self.claim_id(alone));
        let said = said.then_some(&*claim_id);
        let body = asked.rewritten(&wanted.body, &section.lanes, n, said);
        let sent = tick::now();
        let mark = sidecar.pressure.mark();
        sidecar.hold.asking(first, n, sent);
        let answer = self.upstream.call(wanted.call(body.into())).await;
        let ended = tick::now();
        sidecar.note_call("fetch", &answer, ended - sent);
        let origin = Origin {
            asked: n,
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            lanes: &section.lanes,
            claim_id: &claim_id,
            visibility: asked.visibility,
            sent,
            mark,
        };
        let came = match &answer {
            Ok(reply) => self.read_reply(reply, &origin, ended).await,
            Err(_) => None,
        };
        let got = came.as_ref().map(|came| came.shown);
        let whole = came
            .as_ref()
            .filter(|came| came.clear)
            .map(|came| came.shown);
        if let Some(Came { jobs, .. }) = came
            && !jobs.is_empty()
        {
            sidecar.accept(wanted);
            self.came(section, ended - sent, allowed.start).await;
            self.start_or_hold(jobs, wanted, section, &origin, out)
                .await;
        }
        sidecar
            .hold
            .asked(first, n, got.is_some_and(|got| got >= n), ended);
        let reply = answer?;
        Ok(match got {
            Some(got) => {
                out.came(reply, whole);
                Answer::Jobs { short: got < n }
            }
            None => Answer::Other(reply),
        })
    }

    /// The sidecar's worker id to claim under; `alone`: no other claim may be under it.
    fn claim_id(&self, alone: bool) -> Arc<str> {
        let sidecar = &self.sidecar;
        if !alone {
            return Arc::clone(&sidecar.name);
        }
        // One claim id never covers held jobs and jobs out with a worker where liveness is by worker.
        let number = sidecar.next_claim(sidecar.store.now()).0;
        Arc::from(format!("{}-{number}", sidecar.name))
    }

    /// Reads the jobs of a FETCH reply that came at `ended`: they are ours now, and in no other place.
    /// `None`: it is no FETCH reply.
    pub(super) async fn read_reply(
        &self,
        reply: &Reply,
        origin: &Origin<'_>,
        ended: Instant,
    ) -> Option<Came> {
        let sidecar = &self.sidecar;
        if reply.status != http::StatusCode::OK {
            return None;
        }
        let Some((all, clear)) = Shown::all(&reply.body, origin.asked) else {
            sidecar.unreadable(reply);
            return None;
        };
        let shown = all.len();
        let mut jobs = Vec::with_capacity(shown);
        {
            let live = sidecar.live();
            let mut reading = sidecar.reading(&reply.body, origin, &live, ended);
            let read = |job| sidecar.read_job(job, &mut reading);
            jobs.extend(all.iter().filter_map(read));
        }
        once_each(&mut jobs);
        for _ in jobs.len()..shown {
            sidecar.metrics.count(Counted::Nonsense);
        }
        let clear = clear && jobs.len() == shown;
        sidecar.metrics.claimed(jobs.len());
        sidecar.noted(jobs.iter().map(|held: &Held| &held.claimed));
        self.end_earlier(&jobs).await;
        for run in jobs.chunk_by(|a, b| a.claimed.queue == b.claimed.queue) {
            if let Some(first) = run.first() {
                sidecar.paused.is_over(&first.claimed.queue, origin.sent);
            }
        }
        sidecar.gated.claimed(origin.lanes, &mut jobs);
        Some(Came { shown, clear, jobs })
    }

    /// Jobs came `after` so long. One that was claimed before its start waits until it may be asked for; nobody else
    /// claims for that start meanwhile.
    async fn came(&self, section: &Section, after: Duration, start: Option<Timestamp>) {
        // What nothing limits comes in numbers, which may take longer.
        if section.gate.is_some() {
            self.sidecar.claim_lead.came(after);
        }
        if let Some(start) = start {
            sleep_until(self.sidecar.granted_from(start)).await;
        }
    }

    /// Starts what may start at once of jobs that came just now, and holds the rest.
    async fn start_or_hold(
        &self,
        jobs: Vec<Held>,
        wanted: &Wanted,
        section: &Section,
        origin: &Origin<'_>,
        out: &mut HandOut,
    ) {
        let (want, now) = (wanted.count.saturating_sub(out.len()), tick::now());
        let proven = |held: &Held| held.is_proven(origin.visibility, now);
        if self.may_skip_hold(&section.lanes, &jobs, want) && jobs.iter().all(proven) {
            out.extend(self.start_fresh(jobs, want).await);
        } else {
            self.hold(jobs, origin).await;
        }
    }

    /// Whether jobs that came just now may be asked for before they are held: they are all of one limited
    /// queue, the worker wants them all, and nothing of that queue waits that would have to go before them.
    fn may_skip_hold(&self, lanes: &[Lane], jobs: &[Held], want: usize) -> bool {
        let sidecar = &self.sidecar;
        let [lane] = lanes else { return false };
        jobs.len() <= want
            && !sidecar.paused.has(&lane.queue)
            // What leaves a bounded queue is counted where it is held.
            && !sidecar.pressure.bounds_any(std::slice::from_ref(&lane.queue))
            && sidecar.hold.is_first(lane, jobs)
    }

    /// Puts claimed jobs into the hold.
    pub(super) async fn hold(&self, jobs: Vec<Held>, origin: &Origin<'_>) {
        let sidecar = &self.sidecar;
        sidecar.register(&jobs).await;
        let claimed = sidecar.by_queue(&jobs);
        sidecar.given_again(&jobs);
        sidecar.hold.add(jobs);
        sidecar.fetched(&claimed, origin.mark, false);
    }

    /// The backend hands the job out again, so an earlier hand-out of it is over, whether its time has
    /// passed here or not. Where claims do not count, the attempt would not show it: the job would wait
    /// in the hold for its own slot.
    async fn end_earlier(&self, held: &[Held]) {
        let sidecar = &self.sidecar;
        if held.is_empty() {
            return;
        }
        let claims: Claims<'_> = held.iter().map(|held| &held.claimed).collect();
        // While the store is away nothing can start, and the question of a start ends them too.
        let earlier = sidecar.store.claimed(&claims).await.unwrap_or_default();
        for row in earlier.iter().filter(|row| row.place == Place::Out) {
            sidecar.over(row);
            sidecar.metrics.count(Counted::SlotReclaimed);
        }
    }
}

impl Sidecar {
    /// The start for which a job may be claimed before there is this room, if time is all that is missing: by as much
    /// as the backend takes to give it out.
    fn ahead(&self, room: &Room) -> Option<Ahead> {
        let lead = self.claim_lead.now();
        let start = (room.at).filter(|_| room.starts == 0 && !room.slot && lead > 0)?;
        Some(Ahead {
            start,
            from: start.minus(lead),
        })
    }
}

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

impl crate::proxy::Sidecar {
    /// The backend gave jobs to this FETCH: its credentials are needed as long as they are out or held.
    pub(super) fn accept(&self, wanted: &Wanted) {
        if !wanted.accepted {
            self.scopes.accept(wanted.scope, &wanted.headers);
        }
    }
}

impl Wanted {
    /// Asks for the queues of these sections only, under the worker's own id; says whether there are any.
    pub(super) fn keep(&mut self, sections: &[Section]) -> bool {
        let Some(asked) = self.asked.as_ref().filter(|_| !sections.is_empty()) else {
            return false;
        };
        let lanes = sections.iter().flat_map(|section| &section.lanes);
        let lanes: Vec<Lane> = lanes.cloned().collect();
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
