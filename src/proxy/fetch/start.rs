//! Starting: what leaves the hold now, and what never comes into it. Pick, prove, take, in that order, and
//! every job that was picked or came ends in exactly one place.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::hold::{self, Episode, Held, Lane, Refused, Wakes};
use crate::limit::{OnLimit, Refusal, Strategy, Timestamp};
use crate::proxy::drop::acting;
use crate::proxy::job::micros;
use crate::proxy::prove::{Extension, Named, Word};
use crate::proxy::{PROOF, Proxy, Sidecar};
use crate::store::{Claimed, Verdict};

/// The claims of some jobs; few FETCHes are for more.
pub(super) type Claims<'a> = SmallVec<[&'a Claimed; 16]>;

/// What became of jobs that were asked for.
struct Answered {
    /// Those that may go to a worker: their slots are taken.
    started: Vec<Held>,
    /// Some of the others are being dropped: what stands behind them may start.
    again: bool,
}

/// Microseconds until a job is asked for again when the backend or the store had no word for it.
const NO_WORD: u64 = 250_000;

/// The backend's word is taken for this part of a visibility at most: that much of it may be over when the job
/// goes out.
const PART: u32 = 20;

/// How long the backend's word that a held job is ours is taken, where it is to go out for `wanted`.
fn proof(wanted: Duration) -> Duration {
    PROOF.min(wanted / PART)
}

impl Held {
    /// How long a worker that asks for `visibility` gets the job for.
    fn wanted(&self, visibility: Option<Duration>) -> Duration {
        visibility.unwrap_or(self.lasts)
    }

    /// Whether the backend said just now that it is ours, for as long as the worker wants it.
    pub(super) fn is_proven(&self, visibility: Option<Duration>, now: Instant) -> bool {
        let wanted = self.wanted(visibility);
        // A job that came just now is, however long its claim took: a heartbeat would take as long, and a backend that
        // is always slow would give nothing.
        let lay_here = now.duration_since(self.proven.max(self.since));
        now < self.deadline && lay_here <= proof(wanted) && self.granted == wanted
    }
}

/// How many jobs one heartbeat proves beside those that are due.
const TOGETHER: usize = 64;
/// So many heartbeats are on their way at once.
const AT_ONCE: usize = 16;

impl Proxy {
    /// Starts up to `want` held jobs of a lane. A job's visibility becomes `visibility` if the worker
    /// asked for one.
    pub(super) async fn start(
        &self,
        lane: &Lane,
        want: usize,
        visibility: Option<Duration>,
    ) -> Vec<Held> {
        let sidecar = &self.sidecar;
        let mut out: Vec<Held> = Vec::new();
        while out.len() < want {
            let now = sidecar.store.now();
            let picked = sidecar.hold.pick(lane, want - out.len(), now);
            if picked.is_empty() {
                break;
            }
            let ours = self.prove(lane, picked, visibility).await;
            let Answered { mut started, again } = self.ask(ours, want - out.len(), false).await;
            self.leave_hold(&mut started).await;
            let go_on = again || !started.is_empty();
            out.append(&mut started);
            if !go_on {
                break;
            }
        }
        out
    }

    /// Starts what may start of jobs that were claimed just now; the others are held from here on.
    pub(super) async fn start_fresh(&self, mut jobs: Vec<Held>, want: usize) -> Vec<Held> {
        jobs.sort_by_key(|held| Reverse(held.claimed.priority));
        self.ask(jobs, want, true).await.started
    }

    /// Asks for jobs under the limits of now, whenever they were claimed: jobs in hand, or `fresh` ones,
    /// which the hold does not know yet. What does not start is in the hold after this.
    async fn ask(&self, mut jobs: Vec<Held>, want: usize, fresh: bool) -> Answered {
        let sidecar = &self.sidecar;
        sidecar.renew(&mut jobs);
        sidecar.bring_up_to_date(&mut jobs);
        let wakes = sidecar.hold.wakes();
        let asked = sidecar.store.is_shared().then(Instant::now);
        let verdicts = {
            let asks: Claims<'_> = jobs.iter().map(|held| &held.claimed).collect();
            sidecar.store.take(&asks, want).await
        };
        // A store that decides at once needs no lead.
        if let Some(asked) = asked
            && let Some(lead) = sidecar.lead.answered(asked.elapsed())
        {
            sidecar.store.lead(lead);
        }
        let answers = verdicts.is_ok();
        let mut verdicts = verdicts.unwrap_or_default().into_iter();
        let mut theirs = Vec::new();
        // Mostly all start, and stay where they are.
        let mut others: Vec<Held> = jobs
            .extract_if(.., |held| match verdicts.next() {
                Some(Verdict::Started { at }) => {
                    held.starts = at;
                    false
                }
                other => {
                    theirs.push(other.unwrap_or(Verdict::Unasked));
                    true
                }
            })
            .collect();
        let started = jobs;
        if fresh {
            (others.iter_mut()).for_each(|held| sidecar.hold.enter(held));
        }
        if !answers {
            self.ask_later(others);
            return Answered {
                started,
                again: false,
            };
        }
        let again = match others.is_empty() {
            true => false,
            false => {
                let others = others.into_iter().zip(theirs).collect();
                Box::pin(self.put_back(others, wakes)).await
            }
        };
        Answered { started, again }
    }

    /// Does with jobs in hand what was said of them when they were `asked` for; says whether some of them are
    /// being dropped.
    async fn put_back(&self, jobs: Vec<(Held, Verdict)>, asked: Wakes) -> bool {
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
                } => dropped.extend(self.refused(held, which, &why, at, action, asked)),
                Verdict::Lost => sidecar.lost(held).await,
                Verdict::Started { .. } | Verdict::Unasked => sidecar.hold.put_back(held, None),
            }
        }
        let any = !dropped.is_empty();
        self.drop_soon(dropped);
        any
    }

    /// Puts jobs in hand back of which nobody had a word: they are not asked for again at once.
    fn ask_later(&self, jobs: Vec<Held>) {
        let sidecar = &self.sidecar;
        // From the back, so that each group keeps its order.
        for held in jobs.into_iter().rev() {
            let by = held.claimed.limited.first().map(|l| l.policy.clone());
            let refusal = hold::Refusal {
                refused: Refused::Until(sidecar.store.now().plus(NO_WORD)),
                asked: sidecar.hold.wakes(),
                policy: by.unwrap_or_else(|| Arc::from("")),
                rescheduled: None,
            };
            sidecar.hold.put_back(held, Some(refusal));
        }
    }

    /// Takes started jobs out of the hold. One that may not go out any more is not among them after this,
    /// and its start is undone.
    async fn leave_hold(&self, started: &mut Vec<Held>) {
        let sidecar = &self.sidecar;
        if let Some(then) = sidecar.store.told_anew() {
            // The store was away since they were proven, and a sibling may have had them meanwhile.
            let unsure = started.extract_if(.., |held| held.proven < then);
            for held in unsure.collect::<Vec<Held>>() {
                self.undo_start(held).await;
            }
        }
        let stay = sidecar.hold.started(started.iter());
        for job in &stay {
            let Some(at) = started.iter().position(|held| held.claimed.job == *job) else {
                continue;
            };
            let held = started.remove(at);
            self.undo_start(held).await;
        }
    }

    async fn undo_start(&self, held: Held) {
        let (sidecar, claimed) = (&self.sidecar, &held.claimed);
        if sidecar.back(claimed).await {
            sidecar.hold.wake(&claimed.limited);
            sidecar.hold.put_back(held, None);
        } else {
            sidecar.lost(held).await;
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
        asked: Wakes,
    ) -> Option<Held> {
        let sidecar = &self.sidecar;
        let all = held.claimed.limited.clone();
        let Some(limited) = all.get(which) else {
            sidecar.hold.put_back(held, None);
            return None;
        };
        if held.refused.is_none() {
            sidecar.exceeded(&held, limited, why);
            held.refused = Some(Box::new(Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: why.strategy,
                since: held.since,
            }));
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
            asked,
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
        mut picked: Vec<Held>,
        visibility: Option<Duration>,
    ) -> Vec<Held> {
        let (now, told_anew) = (Instant::now(), self.sidecar.store.told_anew());
        let is_older = |held: &Held| told_anew.is_some_and(|then| held.proven < then);
        let is_doubtful = |held: &&Held| is_older(held) || !held.is_proven(visibility, now);
        // While it waited it may have been meant to be kept for longer than it goes out for.
        let go = |held: &mut Held| held.claimed.visibility = micros(held.wanted(visibility));
        if !picked.iter().any(|held| is_doubtful(&held)) {
            picked.iter_mut().for_each(go);
            return picked;
        }
        let doubtful = picked.iter().filter(is_doubtful);
        // Boxed, because it is rare and larger than all the rest.
        let told = Box::pin(self.ask_about_held(lane, doubtful.collect(), visibility)).await;
        let mut ours = Vec::with_capacity(picked.len());
        let mut unheard = Vec::new();
        for mut held in picked {
            // What was not asked about was proven, or is past its deadline.
            let proven = Instant::now() < held.deadline;
            match told.get(&held.claimed.job).copied() {
                None if proven => {
                    go(&mut held);
                    ours.push(held);
                }
                Some(Word::Ours(since)) => {
                    go(&mut held);
                    held.prove(since, held.wanted(visibility));
                    ours.push(held);
                }
                // Not said to be gone, so it stays; not known to be ours, so it does not go out. The backend may have
                // carried the heartbeat out: the next sweep asks for what held jobs get.
                Some(Word::None) => {
                    held.doubt();
                    unheard.push(held);
                }
                Some(Word::Gone) | None => {
                    self.sidecar.lose(&held.claimed).await;
                }
            }
        }
        self.ask_later(unheard);
        ours
    }

    /// What the backend says of held jobs that are not past their deadline, asked together with others of the lane
    /// that would be due soon, if those get by that what held jobs get.
    async fn ask_about_held(
        &self,
        lane: &Lane,
        doubtful: Vec<&Held>,
        visibility: Option<Duration>,
    ) -> HashMap<Arc<str>, Word> {
        let Sidecar { backend, hold, .. } = &*self.sidecar;
        let now = Instant::now();
        let mut due: HashMap<Extension, Vec<Named>> = HashMap::new();
        for held in doubtful.into_iter().filter(|held| now < held.deadline) {
            let claimed = &held.claimed;
            let extension = Extension::of(claimed, held.wanted(visibility), backend);
            let jobs = due.entry(extension).or_default();
            jobs.push((claimed.job.clone(), claimed.attempt));
        }
        let (mut due, mut asking, mut told) = (due.into_iter(), JoinSet::new(), HashMap::new());
        loop {
            while asking.len() < AT_ONCE
                && let Some((extension, mut jobs)) = due.next()
            {
                let (proxy, scope, asked) = (self.clone(), lane.scope, jobs.len());
                let is_alike = |of: &Claimed| Extension::of_held(of, backend) == extension;
                let before = now - proof(extension.lasts) / 2;
                jobs.extend(hold.unproven(lane, is_alike, before, TOGETHER));
                asking.spawn(async move {
                    let words = proxy.confirm(scope, &extension, &jobs, asked).await;
                    let all = jobs.iter().zip(words.iter().copied());
                    proxy.follow_out(extension.lasts, all.skip(asked));
                    (words, jobs)
                });
            }
            match asking.join_next().await {
                Some(Ok((words, jobs))) => {
                    told.extend(jobs.into_iter().map(|(job, _)| job).zip(words));
                }
                Some(Err(_)) => {}
                None => return told,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Claim;

    #[tokio::test(start_paused = true)]
    async fn the_backends_word_is_taken_for_a_moment_and_for_what_it_was() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        let now = Instant::now();
        // Held from now on, though the claim is that much older.
        let held = |granted, came: Duration| {
            let mut held = Held::of(Claim::of("a"));
            held.prove(now, granted);
            held.since = now + came;
            held
        };
        let half_minute = held(30 * second, Duration::ZERO);
        assert!(half_minute.is_proven(None, now + PROOF));
        assert!(!half_minute.is_proven(None, now + PROOF + ms(1)));
        assert!(
            !half_minute.is_proven(Some(10 * second), now),
            "another one is wanted"
        );
        // A twentieth of a short one may be over.
        let short = held(10 * second, Duration::ZERO);
        let is_proven = |held: &Held, at| held.is_proven(Some(10 * second), now + at);
        assert!(is_proven(&short, ms(500)) && !is_proven(&short, ms(501)));
        // A claim that took long is not asked about again at once.
        let late = held(10 * second, ms(900));
        assert!(is_proven(&late, ms(1_400)) && !is_proven(&late, ms(1_401)));
        assert!(is_proven(&held(10 * second, 2 * second), 2 * second));
        // Past its deadline it is not ours.
        let brief = held(ms(500), ms(449));
        assert!(brief.is_proven(Some(ms(500)), now + ms(449)));
        assert!(!brief.is_proven(Some(ms(500)), now + ms(450)));
    }
}
