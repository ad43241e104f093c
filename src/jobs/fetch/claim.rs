//! One claim: jobs are asked of the backend in a task of its own. What it brings is held, whoever asked for it and
//! whether or not anybody still waits.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument as _;

use super::asked::Wanted;
use super::reply::{hold, read_reply};
use crate::admit::depth;
use crate::desk::Proxy;
use crate::desk::claims::{ClaimEnd, ClaimOf, ClaimTask};
use crate::hold::{Behind, Lane};
use crate::inquiry::job::{self, ClaimOrigin};
use crate::inquiry::waiting;
use crate::policy::subqueue::Subqueue;
use crate::store::LedgerExt;
use crate::subqueues::{Asks, SubqueueAsk};
use crate::wire::boxed;
use crate::wire::tick;

/// Claims that are made at once where each must be for one job, under an id of its own.
const ALONE_AT_ONCE: usize = 8;

/// One claim: what is asked of the backend, and in whose name.
pub(super) struct Claim {
    pub(super) proxy: Proxy,
    pub(super) wanted: Arc<Wanted>,
    /// One limited queue, or a run of others.
    pub(super) lanes: SmallVec<[Lane; 1]>,
    /// Whether limits can touch these queues.
    pub(super) limited: bool,
    pub(super) jobs: usize,
    /// What is asked of the queue's subqueues; none: the queue itself is asked.
    pub(super) subqueues: Asks,
}

impl Claim {
    /// Makes the claim in a task of its own.
    pub(super) fn start(mut self) -> ClaimTask {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        if self.is_alone() {
            self.jobs = self.jobs.min(ALONE_AT_ONCE);
        }
        let (tell, end) = watch::channel(None);
        let of = match self.subqueues.is_empty() {
            true => ClaimOf::Queues,
            false => ClaimOf::Subqueues,
        };
        let (task, begun) = (ClaimTask { ends: end, of }, tick::now());
        let lane = self.lanes.first().cloned();
        let coming = (lane.as_ref()).map(|lane| sidecar.hold.expect(lane, self.jobs, begun));
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
            let end = match of {
                ClaimOf::Subqueues => self.ask_subqueues().await,
                ClaimOf::Queues if self.is_alone() && self.jobs > 1 => self.one_by_one().await,
                ClaimOf::Queues => self.ask(self.jobs, None).await,
            };
            // What subqueues have says nothing of the queue itself.
            if let Some(coming) = coming.filter(|_| of == ClaimOf::Queues) {
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
        let _task = tasks.spawn(boxed::work(work).in_current_span());
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
            let work = boxed::work(async move { claim.ask(1, None).await });
            asking.spawn(work.in_current_span());
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

    /// Asks some subqueues, all at once, unless their queue is paused: a pause that was made at the backend itself is
    /// one of the queue, and the backend does not know what belongs to that.
    async fn ask_subqueues(self) -> ClaimEnd {
        let (claim, mut asking) = (Arc::new(self), JoinSet::new());
        let Some(lane) = claim.lanes.first() else {
            return ClaimEnd::Jobs { short: true };
        };
        if !waiting::runs(&claim.proxy, lane).await {
            return ClaimEnd::Jobs { short: true };
        }
        for ask in &claim.subqueues {
            let (claim, ask) = (Arc::clone(&claim), ask.clone());
            let work = async move {
                // Each claim may need an id of its own.
                let jobs = if claim.is_alone() { 1 } else { ask.jobs };
                claim.ask(jobs, Some(&ask)).await
            };
            asking.spawn(boxed::work(work).in_current_span());
        }
        let mut all = ClaimEnd::Jobs { short: true };
        while let Some(end) = asking.join_next().await {
            all = match (end, all) {
                (Ok(ClaimEnd::Jobs { short: true }) | Err(_), all) => all,
                (Ok(end), ClaimEnd::Jobs { .. }) => end,
                (Ok(_), all) => all,
            };
        }
        all
    }

    /// Asks the backend for `n` jobs of the queues, or `of` some of their subqueues, and holds what comes. Limited queues
    /// are claimed under the sidecar's id, others under the worker's own.
    async fn ask(&self, n: usize, of: Option<&SubqueueAsk>) -> ClaimEnd {
        let subqueues = of.map_or(&[][..], |ask| &ask.names);
        let names = self.names(of);
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
        let body = asked.rewritten(&wanted.body, &names, n, said);
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
            scope: wanted.scope,
            tenant: job::tenant(&wanted.headers),
            lanes: &self.lanes,
            subqueues,
            claim_id: &claim_id,
            visibility: asked.visibility,
            sent,
            mark,
        };
        let (shown, jobs) = match read_reply(sidecar, &reply, &origin, ended) {
            Ok(Some(came)) => came,
            Ok(None) => return ClaimEnd::Other(reply),
            Err(error) => return ClaimEnd::Lost(error),
        };
        if let (Some(ask), Some(lane)) = (of, self.lanes.first()) {
            let behind = Behind::of(shown, n);
            sidecar.subqueues.answered(lane, ask, &jobs, behind);
        }
        if !jobs.is_empty() {
            hold(proxy, wanted, jobs, &origin);
            if self.is_counted_by_siblings() {
                depth::tell_holds(sidecar).await;
            }
        }
        self.spare(claim_id, shown);
        ClaimEnd::Jobs { short: shown < n }
    }

    /// The queues, or some subqueues of one, as the backend knows them.
    fn names(&self, of: Option<&SubqueueAsk>) -> SmallVec<[Lane; 1]> {
        let (Some(ask), Some(lane)) = (of, self.lanes.first()) else {
            return self.lanes.clone();
        };
        let name = |one: &Subqueue| lane.with_queue(&one.name_in(&lane.queue));
        ask.names.iter().map(name).collect()
    }

    /// Keeps the id of a claim that brought nothing for the next one.
    fn spare(&self, claim_id: Arc<str>, brought: usize) {
        if brought == 0 && self.is_alone() {
            self.proxy.sidecar.fetching.spare_ids.lock().push(claim_id);
        }
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
        if let Some(spare) = sidecar.fetching.spare_ids.lock().pop() {
            return spare;
        }
        let number = sidecar.fetching.next_claim(sidecar.store.now()).0;
        Arc::from(format!("{}-{number}", sidecar.fetching.worker_id))
    }
}
