//! Claiming: how many jobs may be asked of the backend, and asking for them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;

use super::asked::Asked;
use super::job::{Came, Origin, Shown};
use super::{Proxy, job, mirror};
use crate::hold::{Held, Lane, Lookahead, Prospect};
use crate::metrics::Event;
use crate::policy::Gate;
use crate::store::{Claimed, Place};
use crate::upstream::{Call, Path, Reply, UpstreamError};

/// What a worker asked for.
#[derive(Debug)]
pub(super) struct Wanted {
    /// The FETCH as it came.
    pub(super) body: Bytes,
    pub(super) target: Path,
    pub(super) headers: HeaderMap,
    /// How long the backend may take.
    pub(super) timeout: Duration,
    /// Whose credentials it carries.
    pub(super) scope: u64,
    /// The most jobs it may get.
    pub(super) count: usize,
    /// What it says; `None`: nothing that we understand, and no more can be claimed in its name.
    pub(super) asked: Option<Asked>,
}

/// Queues that are asked together: one that limits can touch, or a run of others.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) lanes: Vec<Lane>,
    /// What the name of a limited queue says; `None`: no limit can touch these queues.
    pub(super) gate: Option<Gate>,
}

/// How a claim ended.
pub(super) enum Answer {
    /// This many jobs came into the hold; `short`: the queue has no more.
    Jobs { short: bool },
    /// The backend said something else; it is passed on as it is.
    Other(Reply),
}

/// What came into the hold.
pub(super) struct Kept {
    /// How many jobs.
    pub(super) jobs: usize,
    /// Of which queues.
    pub(super) queues: Vec<Arc<str>>,
}

/// How many jobs may be asked for now, and if none, when that may change by itself.
pub(super) struct Allowance {
    pub(super) jobs: usize,
    pub(super) prospect: Prospect,
}

impl Wanted {
    /// The FETCH was read: no more than it asks for.
    pub(super) fn understand(&mut self, asked: Asked) {
        self.count = asked.count;
        self.asked = Some(asked);
    }

    /// The visibility it asked for.
    pub(super) fn visibility(&self) -> Option<Duration> {
        self.asked.as_ref()?.visibility
    }
}

impl Proxy {
    /// How many of `n` jobs may be claimed from a limited queue: its room less what is promised to
    /// jobs that wait for nothing else, and the lookahead that is free where limits are by key.
    pub(super) async fn allowance(&self, lane: &Lane, gate: &Gate, n: usize) -> Allowance {
        let sidecar = &self.sidecar;
        let mut jobs = n;
        let mut prospect = Prospect::default();
        let limited = sidecar.limits_now(&lane.queue, &gate.limited);
        if !limited.is_empty() {
            if sidecar.hold.is_refused(lane, gate, sidecar.store.now()) {
                return Allowance { jobs: 0, prospect };
            }
            let Ok(room) = sidecar.store.room(&limited).await else {
                return Allowance { jobs: 0, prospect };
            };
            let promised = sidecar.hold.promised(&lane.queue, gate);
            jobs = jobs.min((room.starts as usize).saturating_sub(promised));
            let paused = limited.iter().any(|l| l.limits.concurrency == Some(0));
            if jobs == 0 && !paused && sidecar.hold.more(lane) {
                prospect = match room.slot {
                    true => Prospect::slot_from(room.at.unwrap_or_default()),
                    false => Prospect {
                        at: room.at,
                        slot: None,
                    },
                };
            }
        }
        if gate.keyed || limited.is_empty() {
            let free = match sidecar
                .hold
                .lookahead(sidecar.hold_max(), sidecar.live().settings.hold_bytes)
            {
                Lookahead::Free(free) => free,
                Lookahead::Full => 0,
                Lookahead::Soon => {
                    prospect = Prospect::slot();
                    0
                }
            };
            jobs = jobs.min(free);
        }
        Allowance { jobs, prospect }
    }

    /// Asks the backend for `n` jobs of a section and puts what comes into the hold. Limited queues
    /// are claimed under the sidecar's id, others under the worker's own.
    pub(super) async fn claim(
        &self,
        wanted: &Wanted,
        section: &Section,
        n: usize,
    ) -> Result<Answer, UpstreamError> {
        let sidecar = &self.sidecar;
        let (Some(first), Some(asked)) = (section.lanes.first(), &wanted.asked) else {
            return Ok(Answer::Jobs { short: true });
        };
        let alone = section.gate.is_some() && sidecar.backend.worker_liveness();
        let n = if alone { 1 } else { n };
        let claim_id = match (&section.gate, &asked.worker_id) {
            // One claim id never covers held jobs and jobs out with a worker where liveness is by worker.
            (Some(_), _) if alone => {
                Arc::from(format!("{}-{}", sidecar.name, sidecar.next_claim().0))
            }
            (Some(_), _) | (None, None) => sidecar.name.clone(),
            (None, Some(own)) => own.clone(),
        };
        let said = (section.gate.is_some() || asked.worker_id.is_some()).then_some(&*claim_id);
        let body = asked.rewritten(&wanted.body, &section.lanes, n, said);
        let sent = Instant::now();
        let mark = sidecar.pressure.mark();
        sidecar.hold.asking(first, n, sent);
        let answer = super::call(self, "fetch", wanted.call(body.into())).await;
        let origin = Origin {
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            queues: section
                .lanes
                .iter()
                .map(|lane| lane.queue.clone())
                .collect(),
            claim_id: &claim_id,
            visibility: asked.visibility,
            sent,
            mark,
        };
        let kept = match &answer {
            Ok(reply) => self.keep(reply, &origin).await,
            Err(_) => None,
        };
        let got = kept.map(|kept| kept.jobs);
        sidecar
            .hold
            .asked(first, n, got.is_some_and(|got| got >= n), Instant::now());
        match (answer, got) {
            (Ok(_), Some(got)) => Ok(Answer::Jobs { short: got < n }),
            (Ok(reply), None) => Ok(Answer::Other(reply)),
            (Err(error), _) => Err(error),
        }
    }

    /// Puts the jobs of a FETCH reply into the hold; `None`: it is no FETCH reply.
    pub(super) async fn keep(&self, reply: &Reply, origin: &Origin<'_>) -> Option<Kept> {
        let sidecar = &self.sidecar;
        if reply.status != http::StatusCode::OK {
            return None;
        }
        let Some(jobs) = Shown::all(&reply.body) else {
            sidecar.metrics.count(Event::Nonsense);
            return None;
        };
        // One search of the reply spares several of each job: hardly any bring something.
        let bring = mirror::may_bring(&reply.body);
        let jobs_came = jobs.len();
        let mut held = Vec::with_capacity(jobs_came);
        {
            // The policies of now, not of when the backend was asked.
            let live = sidecar.live();
            let came = Came {
                at: Instant::now(),
                stored_at: sidecar.store.now(),
            };
            for job in &jobs {
                match sidecar.read_job(job, origin, came, &live, bring) {
                    Some(job) => held.push(job),
                    None => sidecar.metrics.count(Event::Nonsense),
                }
            }
        }
        sidecar.metrics.claimed(held.len());
        held.iter()
            .for_each(|held| sidecar.noted(&held.claimed.limited));
        self.end_earlier(&held).await;
        sidecar.register(&held).await;
        let mut queues: Vec<Arc<str>> =
            held.iter().map(|held| held.claimed.queue.clone()).collect();
        queues.dedup();
        for queue in &queues {
            sidecar.unpause(queue, origin.sent);
        }
        let claimed = sidecar.by_queue(&held);
        sidecar.gated.claimed(&origin.queues, &mut held);
        sidecar.hold.add(held);
        sidecar.fetched(&claimed, origin.mark, false);
        Some(Kept {
            jobs: jobs_came,
            queues,
        })
    }

    /// The backend hands the job out again, so an earlier hand-out of it is over, whether its time has
    /// passed here or not. Where claims do not count, the attempt would not show it: the job would wait
    /// in the hold for its own slot.
    async fn end_earlier(&self, held: &[Held]) {
        let sidecar = &self.sidecar;
        let claims: Vec<&Claimed> = held.iter().map(|held| &held.claimed).collect();
        // While the store is away nothing can start, and the question of a start ends them too.
        let earlier = sidecar.store.claimed(&claims).await.unwrap_or_default();
        for row in earlier.iter().filter(|row| row.place == Place::Out) {
            sidecar.over(row);
            sidecar.metrics.count(Event::SlotReclaimed);
        }
    }
}

impl Wanted {
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
