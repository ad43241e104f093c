//! Starting: what leaves the hold now, and what never comes into it. Pick, prove, take, in that order, and
//! every job that was picked or came ends in exactly one place.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;

use super::job::micros;
use super::{DEPTH, PROOF, Proxy};
use crate::hold::{self, Episode, Held, Lane, Refused};
use crate::json::{Json, quote};
use crate::limit::{Limited, OnLimit, Refusal, Strategy, Timestamp};
use crate::store::{Claimed, Verdict};

/// A job that may go to a worker: its slots are taken.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) held: Held,
    /// When the start counts.
    pub(super) at: Timestamp,
}

/// What became of jobs that were asked for.
struct Asked {
    started: Vec<Started>,
    /// Some of the others are being dropped: what stands behind them may start.
    again: bool,
}

/// A job, and the attempt it was claimed in.
pub(super) type Named = (Arc<str>, u32);

/// What the backend says of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// It stands, as of then.
    Ours(Instant),
    /// The job is not active in that attempt any more.
    Gone,
    /// The backend did not answer, or was not asked.
    None,
}

/// Microseconds until a claim is asked about again when the backend had no word for it.
const NO_WORD: u64 = 250_000;
impl Held {
    /// How long a worker that asks for `visibility` gets the job for.
    fn wanted(&self, visibility: Option<Duration>) -> Duration {
        visibility.unwrap_or(Duration::from_micros(self.claimed.visibility))
    }

    /// Whether the backend said just now that it is ours, for as long as the worker wants it.
    pub(super) fn is_proven(&self, visibility: Option<Duration>, now: Instant) -> bool {
        now < self.deadline
            && now.duration_since(self.proven) <= PROOF
            && self.granted == self.wanted(visibility)
    }
}

/// How many jobs one heartbeat proves beside those that are due.
const TOGETHER: usize = 64;

impl Proxy {
    /// Starts up to `want` held jobs of a lane. A job's visibility becomes `visibility` if the worker
    /// asked for one.
    pub(super) async fn start(
        &self,
        lane: &Lane,
        want: usize,
        visibility: Option<Duration>,
    ) -> Vec<Started> {
        let sidecar = &self.sidecar;
        let mut out: Vec<Started> = Vec::new();
        while out.len() < want {
            let now = sidecar.store.now();
            let picked = sidecar.hold.pick(lane, want - out.len(), now);
            if picked.is_empty() {
                break;
            }
            let ours = self.prove(lane, picked, visibility).await;
            let Asked { mut started, again } = self.ask(ours, want - out.len(), false).await;
            self.leave_hold(&mut started).await;
            self.tell_started(&mut started);
            let go_on = again || !started.is_empty();
            out.append(&mut started);
            if !go_on {
                break;
            }
        }
        out
    }

    /// Starts what may start of jobs that were claimed just now; the others are held from here on.
    pub(super) async fn start_fresh(&self, mut jobs: Vec<Held>, want: usize) -> Vec<Started> {
        jobs.sort_by_key(|held| Reverse(held.claimed.priority));
        let mut started = self.ask(jobs, want, true).await.started;
        self.tell_started(&mut started);
        started
    }

    /// Asks for jobs under the limits of now, whenever they were claimed: jobs in hand, or `fresh` ones,
    /// which the hold does not know yet. What does not start is in the hold after this.
    async fn ask(&self, mut jobs: Vec<Held>, want: usize, fresh: bool) -> Asked {
        let sidecar = &self.sidecar;
        sidecar.renew(&mut jobs);
        sidecar.bring_up_to_date(&mut jobs);
        let asks: Vec<&Claimed> = jobs.iter().map(|held| &held.claimed).collect();
        let asked = Instant::now();
        let verdicts = sidecar.store.take(&asks, want).await;
        if let Some(lead) = sidecar.lead.answered(asked.elapsed()) {
            sidecar.store.lead(lead);
        }
        let answers = verdicts.is_ok();
        let verdicts = verdicts.unwrap_or_else(|_| vec![Verdict::Unasked; jobs.len()]);
        let (mut started, mut others) = (Vec::with_capacity(jobs.len()), Vec::new());
        for (mut held, verdict) in jobs.into_iter().zip(verdicts) {
            if let Verdict::Started { at } = verdict {
                started.push(Started { held, at });
                continue;
            }
            if fresh {
                sidecar.hold.enter(&mut held);
            }
            others.push((held, verdict));
        }
        let again = match others.is_empty() {
            true => false,
            false => Box::pin(self.put_back(others)).await && answers,
        };
        Asked { started, again }
    }

    /// Does with jobs in hand what was said of them; says whether some of them are being dropped.
    async fn put_back(&self, jobs: Vec<(Held, Verdict)>) -> bool {
        let sidecar = &self.sidecar;
        let mut dropped = Vec::new();
        // From the back, so that what is put back at the front of its group keeps its order.
        for (held, verdict) in jobs.into_iter().rev() {
            match verdict {
                Verdict::Refused {
                    which,
                    why,
                    at,
                    action,
                } => dropped.extend(self.refused(held, which, &why, at, action)),
                Verdict::Lost => sidecar.lost(held).await,
                Verdict::Started { .. } | Verdict::Unasked => sidecar.hold.put_back(held, None),
            }
        }
        let any = !dropped.is_empty();
        self.drop_soon(dropped);
        any
    }

    /// Takes started jobs out of the hold. One that may not go out any more is not among them after this,
    /// and its start is undone.
    async fn leave_hold(&self, started: &mut Vec<Started>) {
        let sidecar = &self.sidecar;
        let stay = sidecar
            .hold
            .started(started.iter().map(|start| &start.held));
        for job in &stay {
            let Some(at) = started
                .iter()
                .position(|start| start.held.claimed.job == *job)
            else {
                continue;
            };
            let held = started.remove(at).held;
            let claimed = &held.claimed;
            if let Ok(true) = sidecar.store.back(&claimed.job, claimed.generation).await {
                sidecar.hold.wake(&claimed.limited);
                sidecar.hold.put_back(held, None);
            }
        }
    }

    /// Counts and tells of jobs of a queue that go out.
    fn tell_started(&self, started: &mut [Started]) {
        let sidecar = &self.sidecar;
        let now = Instant::now();
        sidecar.metrics.started(started.iter().map(|start| {
            let held = &start.held;
            let episode = held.refused.as_ref();
            let waited = episode.map(|episode| now.duration_since(episode.since));
            (&*held.claimed.limited, waited)
        }));
        let queue = started
            .first()
            .map(|start| start.held.claimed.queue.clone());
        let bounded = sidecar.pressure.bounds_any(queue.as_slice());
        for start in started {
            if let Some(episode) = start.held.refused.take() {
                sidecar.tell_released(&start.held, &episode);
            }
            let of = &start.held.claimed;
            if bounded {
                (sidecar.pressure).started(&of.queue, &of.job, sidecar.now());
            }
        }
    }

    /// Does with a refused job what the strongest action of its refusals says; it is returned if it is
    /// to be dropped.
    fn refused(
        &self,
        mut held: Held,
        which: usize,
        why: &Refusal,
        at: Option<Timestamp>,
        action: OnLimit,
    ) -> Option<Held> {
        let sidecar = &self.sidecar;
        let all = held.claimed.limited.clone();
        let Some(limited) = all.get(which) else {
            sidecar.hold.put_back(held, None);
            return None;
        };
        if held.refused.is_none() {
            sidecar.exceeded(&held, limited, why);
            held.refused = Some(Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: why.strategy,
                since: held.since,
            });
        }
        let by = acting(&held, which, action).unwrap_or(limited);
        sidecar.metrics.refused(&by.policy, action);
        if action == OnLimit::Drop {
            return sidecar.hold.doom(held.clone()).then_some(held);
        }
        let paused = why.strategy == Strategy::Concurrency && why.limit == 0;
        let refusal = hold::Refusal {
            refused: match at.unwrap_or_default() {
                _ if paused => Refused::Paused,
                at if why.slot => Refused::ForSlot(at),
                at => Refused::Until(at),
            },
            policy: limited.policy.clone(),
            rescheduled: (action == OnLimit::Reschedule).then(|| sidecar.store.now()),
        };
        sidecar.hold.put_back(held, Some(refusal));
        None
    }

    /// Drops what is past its deadline, and asks the backend about what it has not confirmed for a
    /// while, or claimed for another visibility than this worker's.
    async fn prove(
        &self,
        lane: &Lane,
        picked: Vec<Held>,
        visibility: Option<Duration>,
    ) -> Vec<Held> {
        let now = Instant::now();
        let is_doubtful = |held: &&Held| !held.is_proven(visibility, now);
        if !picked.iter().any(|held| is_doubtful(&held)) {
            return picked;
        }
        let doubtful = picked.iter().filter(is_doubtful);
        // Boxed, because it is rare and larger than all the rest.
        let told = Box::pin(self.ask_about_held(lane, doubtful.collect(), visibility)).await;
        let mut ours = Vec::with_capacity(picked.len());
        for mut held in picked {
            // What was not asked about was proven, or is past its deadline.
            let proven = Instant::now() < held.deadline;
            match told.get(&held.claimed.job).copied() {
                None if proven => ours.push(held),
                Some(Word::Ours(since)) => {
                    let lasts = held.wanted(visibility);
                    held.claimed.visibility = micros(lasts);
                    held.prove(since, lasts);
                    ours.push(held);
                }
                // Not said to be gone, so it stays; not known to be ours, so it does not go out.
                Some(Word::None) => {
                    let by = held.claimed.limited.first().map(|l| l.policy.clone());
                    let refusal = hold::Refusal {
                        refused: Refused::Until(self.sidecar.store.now().plus(NO_WORD)),
                        policy: by.unwrap_or_else(|| Arc::from("")),
                        rescheduled: None,
                    };
                    self.sidecar.hold.put_back(held, Some(refusal));
                }
                Some(Word::Gone) | None => {
                    let claimed = &held.claimed;
                    self.sidecar.lose(&claimed.job, claimed.generation).await;
                }
            }
        }
        ours
    }

    /// What the backend says of held jobs that are not past their deadline, asked together with others
    /// of the lane that would be due soon.
    async fn ask_about_held(
        &self,
        lane: &Lane,
        doubtful: Vec<&Held>,
        visibility: Option<Duration>,
    ) -> HashMap<Arc<str>, Word> {
        let now = Instant::now();
        let stored_now = self.sidecar.store.now();
        let mut due: HashMap<(Arc<str>, Duration), Vec<Named>> = HashMap::new();
        let mut age = Duration::ZERO;
        for held in doubtful.into_iter().filter(|held| now < held.deadline) {
            let claimed = &held.claimed;
            age = age.max(Duration::from_micros(stored_now.since(claimed.claimed_at)));
            due.entry((claimed.claim_id.clone(), held.wanted(visibility)))
                .or_default()
                .push((claimed.job.clone(), claimed.attempt));
        }
        let mut told = HashMap::new();
        for ((claim_id, lasts), mut jobs) in due {
            let hold = &self.sidecar.hold;
            let asked = jobs.len();
            jobs.extend(hold.unproven(lane, &claim_id, now - PROOF / 2, TOGETHER));
            let words = self
                .confirm(lane.scope, &claim_id, &jobs, asked, lasts, age)
                .await;
            told.extend(jobs.into_iter().map(|(job, _)| job).zip(words));
        }
        told
    }

    /// One heartbeat for `jobs`, and what the backend says of each. The first `asked` are looked up one
    /// by one where its answer does not name them. `age`: how long ago the oldest of them was claimed.
    pub(super) async fn confirm(
        &self,
        scope: u64,
        claim_id: &str,
        jobs: &[Named],
        asked: usize,
        visibility: Duration,
        age: Duration,
    ) -> Vec<Word> {
        let sidecar = &self.sidecar;
        let sent = Instant::now();
        let ids: Vec<String> = jobs.iter().map(|(job, _)| quote(job)).collect();
        let ms = sidecar.backend.heartbeat_value(visibility, age).as_millis();
        let body = format!(
            r#"{{"worker_id":{},"active_jobs":[{}],"visibility_timeout_ms":{ms}}}"#,
            quote(claim_id),
            ids.join(",")
        );
        let target = "/ojs/v1/workers/heartbeat";
        let answer = super::call(self, "heartbeat", super::post(self, scope, target, body)).await;
        let named = match answer {
            // Where any heartbeat keeps all jobs of a worker, the list is only an echo.
            Ok(reply) if reply.status.is_success() && !sidecar.backend.worker_liveness() => {
                named(&reply.body)
            }
            _ => Vec::new(),
        };
        let mut words = Vec::with_capacity(jobs.len());
        for (nth, (job, attempt)) in jobs.iter().enumerate() {
            words.push(if named.iter().any(|id| **id == **job) {
                sidecar.hold.proved(job, sent, visibility);
                Word::Ours(sent)
            } else if nth >= asked {
                Word::None
            } else {
                match self.still_active(scope, job, Some(*attempt)).await {
                    Some(true) => Word::Ours(sent),
                    Some(false) => Word::Gone,
                    None => Word::None,
                }
            });
        }
        words
    }

    /// Whether the backend has the job as active (in `attempt`, if given); `None`: it cannot be asked.
    pub(super) async fn still_active(
        &self,
        scope: u64,
        job: &str,
        attempt: Option<u32>,
    ) -> Option<bool> {
        let target = format!("/ojs/v1/jobs/{}", crate::ojs::encoded(job));
        let reply = super::call(self, "get_job", super::get(self, scope, target))
            .await
            .ok()?;
        match reply.status {
            StatusCode::OK => {
                let whole = Json::parse(&reply.body, DEPTH).ok()?;
                let job = whole.get_exact("job").unwrap_or(whole);
                let state = job.get("state")?.text()?;
                let same = match (attempt, job.get("attempt").and_then(|a| a.int())) {
                    (Some(claimed), Some(now)) => i64::from(claimed) == now,
                    _ => true,
                };
                Some(state == "active" && same)
            }
            // A backend without this route answers 404 too, but not in JSON.
            StatusCode::NOT_FOUND => Json::parse(&reply.body, DEPTH).ok().map(|_| false),
            _ => None,
        }
    }
}

/// The limit whose action it is: the one that lets go last if that is its action, else the first that
/// has it. (Where two limits with the same action stand beside a third that outlasts both, it may be
/// the one of them that did not refuse; only a label depends on it.)
pub(super) fn acting(held: &Held, which: usize, action: OnLimit) -> Option<&Limited> {
    let limited = &held.claimed.limited;
    let mut all = limited.get(which).into_iter().chain(limited.iter());
    all.find(|limited| limited.on_limit == action)
}

/// The ids in a heartbeat reply's `jobs_extended`.
pub(super) fn named(reply: &[u8]) -> Vec<String> {
    let Ok(whole) = Json::parse(reply, DEPTH) else {
        return Vec::new();
    };
    let ids = whole
        .get("jobs_extended")
        .into_iter()
        .flat_map(|ids| ids.items());
    ids.filter_map(|id| id.text().map(|text| text.into_owned()))
        .collect()
}
