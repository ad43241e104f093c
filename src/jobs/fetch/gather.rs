//! Gather: claims are made until as much is held as the worker wants that may start, for 200 ms in all.
//!
//! A section goes through three stages in a round ([`Stage`]). It begins open. It is spent once the backend has no more,
//! or the round no time to wait for it. It is closed where its limits or the hold leave no room. The arms of
//! [`Fetch::gather_of`] say why it moves from one to another.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::cap::{cap_of, cap_of_subqueues};
use super::claim::Claim;
use super::handout::HandOut;
use super::request::{Fetch, Outcome};
use super::section::{Ready, Section, Stage};
use crate::desk::claims::{ASK_AGAIN, ClaimEnd, ClaimOf, ClaimTask, Missing};
use crate::hold::{AHEAD, Lane, starts_ahead};
use crate::inquiry::{in_force, stats, waiting};
use crate::limit::Limited;
use crate::policy::Gate;
use crate::store::LedgerExt;
use crate::subqueues::Asks;

/// So many jobs are asked for at once at most for FETCHes that wait together. To read a reply of more would keep all other
/// work waiting for too long.
const JOINT_CLAIM: usize = 256;

/// A claim that must last longer than any FETCH waits for it.
const FOR_EVER: Duration = Duration::from_secs(3_600);

/// What a section is still asked for in this round.
struct Lacks {
    /// So many jobs that may start.
    jobs: usize,
    /// The round ends then.
    until: Instant,
    /// Whether the worker gets something in any case. Then it waits for no slow claim, and what the backend says instead
    /// of jobs is not for it.
    gets_some: bool,
    /// Whether no section comes after it.
    is_last: bool,
}

impl Fetch {
    /// Has claims made, queue by queue, until `want` held jobs may be asked for. `is_empty`: the worker gets nothing
    /// so far, and what the backend says instead of jobs is for it.
    pub(super) async fn gather(
        &mut self,
        want: usize,
        until: Instant,
        is_empty: bool,
    ) -> Result<(), Outcome> {
        let mut sections = mem::take(&mut self.sections);
        let (mut have, mut left, mut gathered) = (0, sections.len(), Ok(()));
        for section in &mut sections {
            left -= 1;
            let lacks = Lacks {
                jobs: want.saturating_sub(have),
                until,
                gets_some: have > 0 || !is_empty,
                is_last: left == 0,
            };
            if lacks.jobs == 0 || gathered.is_err() {
                break;
            }
            let ready = self.gather_of(section, lacks).await;
            gathered = ready.map(|ready| have += ready);
        }
        self.sections = sections;
        gathered
    }

    /// Has claims made of one section. Returns how many of its jobs may be asked for in the end, which may be less than
    /// it lacks.
    async fn gather_of(&mut self, section: &mut Section, lacks: Lacks) -> Result<usize, Outcome> {
        // The queue itself, and its subqueues.
        let mut looks = if self.has_subqueues(section) { 2_u8 } else { 1 };
        loop {
            let ready = section.ready(&self.proxy.sidecar, lacks.jobs);
            if !self.is_open(section) {
                return Ok(ready.jobs);
            }
            let is_enough = ready.jobs >= lacks.jobs;
            // ## Open, and stays so: enough is held. The backend is asked once more if it showed a higher priority.
            if is_enough && (looks == 0 || !ready.is_outranked) {
                self.refill(section, lacks.jobs);
                return Ok(ready.jobs);
            }
            looks = looks.saturating_sub(1);
            // ## Open => Closed or Spent: nothing may be claimed.
            let misses = lacks.jobs.saturating_sub(ready.jobs).max(1);
            let Some(mut task) = self.claim_of(section, misses).await else {
                return Ok(ready.jobs);
            };
            let of = task.of;
            let patience = self.patience(section, &lacks, ready);
            let end = match patience {
                Some(until) => timeout_at(until, task.end()).await.ok(),
                None => None,
            };
            let is_late = Instant::now() >= patience.unwrap_or(lacks.until);
            // Of several calls one may have failed, and the others have brought jobs.
            let gets_some = || {
                let sidecar = &self.proxy.sidecar;
                lacks.gets_some || section.ready(sidecar, 1).jobs > 0
            };
            match end {
                // ## Open, and stays so: the claim brought all that it asked for, so there may be more.
                Some(ClaimEnd::Jobs { short: false })
                    if !is_late && (section.is_limited() || self.brought(section, ready)) =>
                {
                    self.ask_for_more(section, ready);
                }
                // ## Open, and stays so: the queue has no more, or some subqueues have not. Others may.
                Some(ClaimEnd::Jobs { short: true }) if !is_late && self.has_subqueues(section) => {
                    // What subqueues have and have not is known of each.
                    section.is_short |= of == ClaimOf::Queues;
                }
                // ## Open => Spent: the backend has no more, or the round is over. What came of queues that nothing limits
                // may not start, and no cap of the hold bounds a larger claim.
                Some(ClaimEnd::Jobs { .. }) => section.stage = Stage::Spent,
                // ## The FETCH ends: what the backend says instead of jobs is the worker's answer.
                Some(ClaimEnd::Other(reply)) if !gets_some() => return Err(Outcome::Theirs(reply)),
                Some(ClaimEnd::Lost(error)) if !gets_some() => return Err(Outcome::Lost(error)),
                // ## Open => Spent: a queue that fails is no reason to keep from the worker what others have.
                Some(_) => section.stage = Stage::Spent,
                // ## Open => Spent: the claim goes on beside the FETCH, and what it brings is held.
                None => {
                    (section.stage, section.running) = (Stage::Spent, Some(task));
                    return Ok(ready.jobs);
                }
            }
        }
    }

    /// Whether more may be claimed of a section. In a drain only what is held can start, and what nothing limits.
    fn is_open(&self, section: &mut Section) -> bool {
        let sidecar = &self.proxy.sidecar;
        if !matches!(section.stage, Stage::Open) {
            return false;
        }
        let may_be_limited = section.gate.is_some() || sidecar.fetching.brought.load(Relaxed);
        if may_be_limited && sidecar.tasks.draining.is_cancelled() {
            section.stage = Stage::Spent;
            return false;
        }
        true
    }

    fn has_subqueues(&self, section: &Section) -> bool {
        let lane = section.limited();
        lane.is_some_and(|lane| self.proxy.sidecar.subqueues.has(&lane.queue))
    }

    /// The next claim of a section asks for twice as many jobs if the last one brought none that may be asked for.
    fn ask_for_more(&self, section: &mut Section, before: Ready) {
        if !self.brought(section, before) {
            section.next = section.next.saturating_mul(2);
        }
    }

    /// Whether more of a section's jobs may be asked for than before.
    fn brought(&self, section: &Section, before: Ready) -> bool {
        let after = section.ready(&self.proxy.sidecar, before.jobs + 1);
        after.jobs > before.jobs
    }

    /// Until when the FETCH waits for a claim of a section; `None`: not at all.
    fn patience(&self, section: &Section, lacks: &Lacks, ready: Ready) -> Option<Instant> {
        let sidecar = &self.proxy.sidecar;
        let gets_some = lacks.gets_some || ready.jobs > 0;
        let budget = self.live.settings.fetch.claim_budget;
        let is_slow = gets_some && sidecar.fetching.claims.took_longer(budget);
        // Where times limit each job of the queue no more may start than they have room for: if that much is held, or
        // soon comes by itself, the claim is made for the next ones.
        let starts_first = self.is_timed(section) && (ready.jobs > 0 || self.starts_soon(section));
        if is_slow || starts_first {
            return None;
        }
        Some(
            match section.gate.is_none() && lacks.is_last && !gets_some {
                true => Instant::now() + FOR_EVER,
                false => lacks.until,
            },
        )
    }

    /// Whether times limit each job of a section's queue.
    fn is_timed(&self, section: &Section) -> bool {
        let limits = self.limits_of(section);
        limits.is_some_and(|limits| starts_ahead(&limits).is_some())
    }

    /// What limits a section's queue as a whole, now.
    fn limits_of(&self, section: &Section) -> Option<Arc<[Limited]>> {
        let (gate, lane) = (section.gate.as_ref()?, section.lanes.first()?);
        let sidecar = &self.proxy.sidecar;
        Some(in_force::limits_now(sidecar, &lane.queue, &gate.limited).into_owned())
    }

    /// Whether a held job of a section's queue starts by itself sooner than a claim may bring one.
    fn starts_soon(&self, section: &Section) -> bool {
        let (sidecar, now) = (&self.proxy.sidecar, self.proxy.sidecar.store.now());
        let lane = section.lanes.first();
        let at = lane.and_then(|lane| sidecar.hold.look(lane, 0, now).prospect.at);
        at.is_some_and(|at| at <= now.plus(AHEAD))
    }

    /// The claim of a section that is under way, or a new one for `n` jobs at least; `None`: nothing may be claimed, and
    /// the section is spent or closed.
    async fn claim_of(&mut self, section: &mut Section, n: usize) -> Option<ClaimTask> {
        if let Some(running) = section.running.take() {
            return Some(running);
        }
        let (lane, gate) = (section.lanes.first()?.clone(), section.gate.clone());
        match gate {
            None => Some(self.claim(section, n.max(section.next)).start()),
            Some(gate) => self.limited_claim(section, &lane, &gate, n).await,
        }
    }

    /// The claim of a limited queue: there is one at a time, and all who miss jobs of it wait for that one.
    async fn limited_claim(
        &mut self,
        section: &mut Section,
        lane: &Lane,
        gate: &Gate,
        n: usize,
    ) -> Option<ClaimTask> {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let claims = &sidecar.fetching.claims;
        if let Some(running) = claims.running(lane) {
            self.note_missing(lane, n);
            return Some(running);
        }
        let asked_at = sidecar.hold.look(lane, 0, sidecar.store.now()).asked_at;
        let just_now = asked_at.is_some_and(|at| at.elapsed() < ASK_AGAIN);
        // Of a queue with subqueues it may have asked one part just now, and what came is in the other.
        if self.visit.waits_since().is_some()
            && !section.was_closed
            && !section.is_short
            && just_now
        {
            section.stage = Stage::Spent;
            return None;
        }
        self.note_missing(lane, n);
        let jobs = n
            .max(section.next)
            .max(claims.missed(lane).min(JOINT_CLAIM));
        let claim = match sidecar.subqueues.has(&lane.queue) {
            true => self.claim_in_turn(section, lane, gate, jobs).await?,
            false => self.claim_of_queue(section, lane, gate, jobs).await?,
        };
        // Another FETCH may have been faster.
        claims.running(lane).or_else(|| Some(claim.start()))
    }

    /// While it gathers it misses `n` jobs of a lane, or as many as it said before: what a subqueue brings may be refused,
    /// and then the next claim must not be for less.
    fn note_missing(&mut self, lane: &Lane, n: usize) {
        if !self.missing.iter().any(|one| one.is_of(lane)) {
            let claims = &self.proxy.sidecar.fetching.claims;
            self.missing.push(Missing::new(claims, lane, n));
        }
    }

    /// A claim of the queue itself, for as many of these jobs as may be claimed; `None`: it is closed.
    async fn claim_of_queue(
        &self,
        section: &mut Section,
        lane: &Lane,
        gate: &Gate,
        jobs: usize,
    ) -> Option<Claim> {
        let cap = cap_of(&self.proxy.sidecar, lane, gate, jobs).await;
        match cap.jobs {
            0 => {
                section.stage = Stage::Closed(cap);
                None
            }
            jobs => Some(self.claim(section, jobs)),
        }
    }

    /// A claim of a queue with subqueues: the queue itself and those take turns. `None`: neither may be asked.
    async fn claim_in_turn(
        &self,
        section: &mut Section,
        lane: &Lane,
        gate: &Gate,
        jobs: usize,
    ) -> Option<Claim> {
        let sidecar = Arc::clone(&self.proxy.sidecar);
        let subqueues = &sidecar.subqueues;
        let has_base = !section.is_short;
        let best = sidecar.hold.look(lane, 0, sidecar.store.now()).best;
        let held = || sidecar.hold.of_subqueues(lane, sidecar.store.now());
        let most = sidecar.most_held();
        let is_outranked = best.is_some_and(|best| subqueues.outranks(lane, best, held, most));
        if has_base
            && !is_outranked
            && subqueues.take_base(lane)
            && let Some(claim) = self.claim_of_queue(section, lane, gate, jobs).await
        {
            return Some(claim);
        }
        let mut asks = Asks::new();
        if waiting::runs(&self.proxy, lane).await {
            let of_queue = cap_of_subqueues(&sidecar, lane, gate, jobs).await;
            let doubtful;
            let hold = (&*sidecar.hold, sidecar.store.now());
            (asks, doubtful) = subqueues.choose(lane, of_queue.jobs, &held(), most, hold);
            stats::ask_what_waits(&self.proxy, lane, doubtful);
        }
        if let Some(claim) = self.claim_of_subqueues(section, asks) {
            section.stage = Stage::Open;
            return Some(claim);
        }
        match section.stage {
            Stage::Open if has_base => self.claim_of_queue(section, lane, gate, jobs).await,
            Stage::Open => {
                section.stage = Stage::Spent;
                None
            }
            Stage::Spent | Stage::Closed(_) => None,
        }
    }

    /// Where the heads of subqueues start, the next ones are claimed beside this FETCH: their keys may have room again
    /// before a worker asks, and the way to the backend would be added to each job's time.
    pub(super) fn claim_heads(&self, out: &HandOut) {
        let sidecar = &self.proxy.sidecar;
        if !sidecar.subqueues.any() {
            return;
        }
        for section in &self.sections {
            let Some(lane) = section.limited() else {
                continue;
            };
            let heads = out.heads_of(lane);
            let is_free = self
                .limits_of(section)
                .is_none_or(|limits| limits.is_empty());
            if heads.is_empty() || !is_free || sidecar.fetching.claims.running(lane).is_some() {
                continue;
            }
            let held = sidecar.hold.of_subqueues(lane, sidecar.store.now());
            let most = sidecar.most_held();
            let hold = (&*sidecar.hold, sidecar.store.now());
            let asks = sidecar.subqueues.heads(lane, &heads, &held, most, hold);
            if let Some(claim) = self.claim_of_subqueues(section, asks) {
                claim.start();
            }
        }
    }

    fn claim(&self, section: &Section, jobs: usize) -> Claim {
        Claim {
            proxy: self.proxy.clone(),
            wanted: Arc::clone(&self.wanted),
            lanes: section.lanes.clone(),
            limited: section.gate.is_some(),
            jobs,
            subqueues: Asks::new(),
        }
    }

    /// A claim that asks subqueues; `None`: none is asked.
    fn claim_of_subqueues(&self, section: &Section, subqueues: Asks) -> Option<Claim> {
        let jobs = subqueues.iter().map(|ask| ask.jobs).sum();
        (!subqueues.is_empty()).then(|| Claim {
            subqueues,
            ..self.claim(section, jobs)
        })
    }

    /// Where fewer than half of the jobs are held that a queue's own limits let start in the next 200 ms, more are
    /// claimed beside this FETCH, which takes `want` of them.
    fn refill(&self, section: &Section, want: usize) {
        let sidecar = &self.proxy.sidecar;
        let (Some(gate), Some(lane)) = (&section.gate, section.limited()) else {
            return;
        };
        let ahead = self.limits_of(section).and_then(|of| starts_ahead(&of));
        let Some(ahead) = ahead.filter(|starts| *starts > 1) else {
            return;
        };
        let promised = sidecar.hold.promise(lane, gate, sidecar.store.now()).jobs;
        let is_short = 2 * promised.saturating_sub(want) < ahead;
        let is_exhausted = || sidecar.hold.look(lane, 0, sidecar.store.now()).is_exhausted;
        if !is_short || is_exhausted() || sidecar.fetching.claims.running(lane).is_some() {
            return;
        }
        let (mut claim, gate, lane) = (self.claim(section, 0), gate.clone(), lane.clone());
        let _task = sidecar.tasks.spawn(async move {
            let sidecar = Arc::clone(&claim.proxy.sidecar);
            claim.jobs = cap_of(&sidecar, &lane, &gate, 0).await.jobs;
            if claim.jobs > 0 && sidecar.fetching.claims.running(&lane).is_none() {
                claim.start();
            }
        });
    }
}
