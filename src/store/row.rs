//! A claimed job, and its row.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::due::Due;
use ojs_limit::{Key, Limited, Space, Timestamp, each_key};

/// One claim's number: which claim of a job a row speaks of. Higher is newer; an operation that
/// names an older one does nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Gen(pub u64);

impl Gen {
    /// That of a job which was only seen to run: nobody knows its claim, and any claim that is known is newer.
    pub const ADOPTED: Gen = Gen(0);
}

/// A job as the backend gave it to us. Cheap to clone: the hold and the row share one [`Claim`], and a
/// change to either makes it a copy of its own.
#[derive(Clone, Debug)]
pub struct Claimed(Arc<Claim>);

impl From<Claim> for Claimed {
    fn from(claim: Claim) -> Claimed {
        Claimed(Arc::new(claim))
    }
}

impl Deref for Claimed {
    type Target = Claim;

    fn deref(&self) -> &Claim {
        &self.0
    }
}

impl DerefMut for Claimed {
    fn deref_mut(&mut self) -> &mut Claim {
        Arc::make_mut(&mut self.0)
    }
}

/// What is known of a claimed job, and the limits that apply to it now: what a row needs to be adopted by
/// a sibling. The job's bytes stay with the hold.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// The job's id.
    pub job: Arc<str>,
    /// Which claim this is.
    pub generation: Gen,
    /// The worker id under which it was claimed; empty: nobody knows, for the job was found running.
    pub claim_id: Arc<str>,
    /// The worker that the job went to, as its FETCH named it; `None`: the job is not out, or nobody said.
    pub worker: Option<Arc<str>>,
    /// The hash of the credentials it was claimed with.
    pub scope: u64,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its priority.
    pub priority: i32,
    /// Its attempt, as claimed; `None`: the backend showed none. Backends that count when a job fails show the first
    /// as 0.
    pub attempt: Option<u32>,
    /// When it was claimed, by the store's clock.
    pub claimed_at: Timestamp,
    /// How long the claim lasts from each accepted heartbeat, in microseconds.
    pub visibility: u64,
    /// Every key that it must pass, in no order that matters, with the numbers that count now: what is written of
    /// them, and what was set over HTTP laid over that.
    pub limited: Arc<[Limited]>,
    /// When its group began to wait here, in the virtual time of the key whose share it takes; `u64::MAX`: nothing is
    /// known of that time yet.
    pub since: u64,
    /// Until when somebody stays for it: the FETCH that asks, and then the worker's next one.
    pub stays: Timestamp,
    /// Until when another FETCH stays that would take a job of its group, as it is picked: others of the group wait here.
    pub followed: Timestamp,
}

/// The end of a job's row.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct End {
    /// The job.
    pub job: Arc<str>,
    /// The newest claim whose row ends; `None`: any.
    pub claim: Option<Gen>,
    pub(super) used: Vec<Used>,
    /// Those under which it started, where that is known: what is used beside the cost counts in their windows, and its
    /// slots end also where the store has lost its row.
    pub(super) limited: Arc<[Limited]>,
}

/// What a job really used of a key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Used {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// In the units of the key's cost.
    pub amount: u32,
    /// Whether it counts from the end on, in place of what was paid at the start.
    pub counts_now: bool,
}

impl End {
    /// The end of a job of which no more is known. It says nothing of what it used, so that stays as it was paid.
    pub fn of(job: Arc<str>, claim: Option<Gen>) -> End {
        End {
            job,
            claim,
            used: Vec::new(),
            limited: Arc::default(),
        }
    }

    /// The end of this claim, which says nothing of what its job used.
    pub fn of_claim(claimed: &Claimed) -> End {
        End {
            limited: claimed.limited.clone(),
            ..End::of(claimed.job.clone(), Some(claimed.generation))
        }
    }

    /// The end of the job of this claim, also under another one. `says` is what it used by a path of `cost.settle`, as far as
    /// it says so, and the windows that count its start are put right by that.
    pub fn settled(claimed: &Claimed, mut says: impl FnMut(&str) -> Option<u32>) -> End {
        let limited = &claimed.limited;
        let used = each_key(limited).filter_map(|(_, one)| {
            Some(Used {
                space: one.space,
                key: one.key.clone(),
                amount: says(one.cost.rule.as_ref()?.settle.as_deref()?)?,
                counts_now: false,
            })
        });
        End {
            claim: None,
            used: used.collect(),
            ..End::of_claim(claimed)
        }
    }

    /// The end of this claim, which used so much.
    pub fn with_used(claimed: &Claimed, used: Vec<Used>) -> End {
        End {
            used,
            ..End::of_claim(claimed)
        }
    }

    /// What the job really used of keys with a cost.
    pub fn used(&self) -> &[Used] {
        &self.used
    }
}

/// How the queue of a call begins, as that of no job can.
const CALL: char = '>';

impl Claim {
    /// A claim of a job, or of a call ([`Claim::queue_of_calls`]), of which no more is known. Nothing limits it, nobody
    /// stays for it, and it lasts no time.
    pub fn new(job: Arc<str>, generation: Gen, queue: Arc<str>) -> Claim {
        Claim {
            job,
            generation,
            queue,
            ..Claim::default()
        }
    }

    /// How the ids of calls begin. A job may have such an id too.
    pub const CALL_IDS: &str = "call-";

    /// The queue of the calls that take the way out `egress`.
    pub fn queue_of_calls(egress: &str) -> Arc<str> {
        format!("{CALL}{egress}").into()
    }

    /// Whether somebody is there still when it may start, then or, if nobody knows when that is, later than `now`. Jobs
    /// are asked for again, and calls that do not wait so long are not.
    pub(super) fn waits_for(&self, at: Option<Timestamp>, now: Timestamp) -> bool {
        self.egress().is_none() || self.stays > now && at.is_none_or(|at| at <= self.stays)
    }

    /// The way out that this call takes; `None`: it is a job.
    pub fn egress(&self) -> Option<&str> {
        self.queue.strip_prefix(CALL)
    }

    /// The worker id under which the job was claimed; `None`: nobody knows.
    pub fn claimant(&self) -> Option<&Arc<str>> {
        Some(&self.claim_id).filter(|id| !id.is_empty())
    }

    /// Whether another worker than this one has the job. A worker without a name is never taken for another, and a job
    /// that nothing limits may have gone to the next worker without us.
    pub fn is_with_another(&self, worker: Option<&str>) -> bool {
        let worker = worker.filter(|worker| !worker.is_empty());
        let both = self.worker.as_deref().zip(worker);
        !self.limited.is_empty() && both.is_some_and(|(has, says)| has != says)
    }
}

/// Where the job of a row is. A held job has no row, unless it is on its way from one sidecar to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Held, and offered: any sidecar may take it over at once; no slot.
    Offered,
    /// Held by a sidecar that has taken it over and not named it since; no slot. Its claim is over then.
    Held(Timestamp),
    /// Out with a worker; has its slots. The backend must be asked about it then.
    Out(Due),
}

impl Place {
    /// The time that stores write and compare: 0 for what is offered.
    pub(super) fn written(self) -> Timestamp {
        match self {
            Place::Offered => Timestamp(0),
            Place::Held(until) => until,
            Place::Out(due) => due.at(),
        }
    }

    /// What a store wrote of the place of a job that is not out.
    pub(super) fn of_held(written: Timestamp) -> Place {
        match written {
            Timestamp(0) => Place::Offered,
            until => Place::Held(until),
        }
    }
}

/// One job's row.
#[derive(Clone, Debug)]
pub struct Row {
    /// The job as claimed.
    pub claimed: Claimed,
    /// Where the job is, and until when nobody need look.
    pub place: Place,
    /// When its start counts; `None` while it is held, and where a job was found out with a worker.
    pub started: Option<Timestamp>,
    /// Whether it is this sidecar's. Only its owner puts a job back; any sidecar may end it, or look after it when it
    /// is overdue.
    pub ours: bool,
}

impl Row {
    /// A row of this sidecar's, of which no start is known.
    pub fn of(claimed: Claimed, place: Place) -> Row {
        Row {
            claimed,
            place,
            started: None,
            ours: true,
        }
    }

    /// That of a job which went out at `at`.
    pub(super) fn started(claimed: Claimed, at: Timestamp) -> Row {
        let due = at.plus(claimed.visibility).into();
        Row {
            started: Some(at),
            ..Row::of(claimed, Place::Out(due))
        }
    }

    /// When the backend must be asked about the job; `None`: it is not out.
    pub fn due(&self) -> Option<Due> {
        match self.place {
            Place::Out(due) => Some(due),
            Place::Offered | Place::Held(_) => None,
        }
    }

    /// Whether the job is out with a worker.
    pub fn is_out(&self) -> bool {
        self.due().is_some()
    }

    /// Whether it ends with this claim: it stays if it is of a newer one. No claim means any.
    pub(super) fn ends_with(&self, claim: Option<Gen>) -> bool {
        claim.is_none_or(|claim| claim >= self.claimed.generation)
    }

    /// Whether the claim of this job, which is out, is over because the backend gave the job out again. Not if it
    /// started after that: the worker has the job already.
    pub(super) fn is_over_by(&self, newer: &Claimed) -> bool {
        let is_later = self.started.is_some_and(|at| at > newer.claimed_at);
        self.claimed.generation < newer.generation && !is_later
    }

    /// The backend must be asked at `due` about the job, which is out, if its claim is still this one; says whether it is.
    pub(super) fn renew(&mut self, claim: Gen, due: Due, visibility: u64) -> bool {
        let is_of_claim = self.claimed.generation == claim;
        if is_of_claim {
            (self.place, self.claimed.visibility) = (Place::Out(due), visibility);
        }
        is_of_claim
    }
}

/// What is known of a job's row without asking a store that is far away.
#[derive(Clone, Debug)]
pub enum KnownRow {
    /// It is out with a worker through us.
    Out(Box<Row>),
    /// It has no row: no other sidecar has any, and this is none of ours.
    No,
    /// The store must be asked.
    Unsure,
}
