//! Grant: pick, prove, take, in that order, and every job that was picked ends in exactly one place.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::handout::HandOut;
use super::naming::{ClaimsOf, name_claims, reclaimed};
use super::request::Fetch;
use super::section::Stage;
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, micros, tell};
use crate::hold::{self, Episode, Held, Lane, Pick, PickAsk, Proof, Refused, TRUSTED_FOR};
use crate::inquiry::drop::{self, DropReason, acting};
use crate::inquiry::in_force;
use crate::inquiry::prove::{self, Extension, Named, Word};
use crate::jobs::siblings;
use crate::jobs::sweep::keep;
use crate::limit::{Limited, OnLimit, Refusal, Timestamp, is_priced};
use crate::lines::{AskedBy, BEHIND};
use crate::store::{Claimed, LedgerExt, Verdict};
use crate::told::metrics::StartKind;
use crate::wire::boxed::{self, boxed};
use crate::wire::{tick, traces};

/// Microseconds until a job is asked for again when the backend or the store had no word for it.
const NO_WORD: u64 = 250_000;

/// The backend's word is taken for this part of a visibility at most: that much of it may be over when the job
/// goes out.
const PART: u32 = 20;

/// How long the backend's word that a held job is ours is taken, where it is to go out for `wanted`.
fn proof(wanted: Duration) -> Duration {
    TRUSTED_FOR.min(wanted / PART)
}

/// How long a worker that asks for `visibility` gets the job for.
fn lasts(held: &Held, visibility: Option<Duration>) -> Duration {
    visibility.unwrap_or(held.lasts)
}

/// Whether the backend said just now that a job is ours, for as long as the worker wants it.
fn is_proven(held: &Held, visibility: Option<Duration>, now: Instant) -> bool {
    let wanted = lasts(held, visibility);
    // A job that came just now is, however long its claim took: a heartbeat would take as long, and a backend that
    // is always slow would give nothing.
    let Proof {
        at,
        granted,
        deadline,
        ..
    } = held.proof;
    let lay_here = now.duration_since(at.max(held.since));
    now < deadline && lay_here <= proof(wanted) && granted == wanted
}

/// How many jobs one heartbeat proves beside those that are due.
const TOGETHER: usize = 64;
/// So many heartbeats are on their way at once.
const AT_ONCE: usize = 16;
/// A worker whose FETCH ends with nothing is expected to ask again within this, in microseconds. Groups of other sidecars
/// wait so long for its own: else they would get all that opens at that moment.
const BACK: u64 = 50_000;

/// Picks what may start, and has the store decide for all of it at once. `None`: there is nothing, and no more can
/// be claimed. Once begun it comes to its end although the worker hangs up.
pub(super) async fn grant(fetch: &mut Fetch, want: usize) -> Option<HandOut> {
    let sidecar = &fetch.proxy.sidecar;
    // A few more than are wanted where some may be refused; if that was too few, twice as many next time.
    let (most, spare) = (fetch.picks.max(want), want.div_ceil(4));
    let now = sidecar.store.now();
    let mut picked = Vec::new();
    for lane in fetch.lanes() {
        let most = most.saturating_sub(picked.len());
        if most > 0 && !sidecar.fetching.paused.has(&lane.queue) {
            let ask = PickAsk { most, spare, want };
            picked.append(&mut sidecar.hold.pick(lane, ask, now));
        }
    }
    if picked.len() < want {
        name_claims(sidecar);
    }
    if picked.is_empty() {
        let may_come = (fetch.sections.iter()).any(|section| matches!(section.stage, Stage::Open));
        return may_come.then(|| HandOut::new(fetch.proxy.clone()));
    }
    fetch.picks = most.saturating_mul(2);
    let asked = fetch.wanted.asked.as_ref();
    let worker = asked.and_then(|asked| asked.worker_id(&fetch.wanted.body));
    let stays = sidecar.store.at(fetch.deadline).plus(BACK);
    for pick in &mut picked {
        pick.claimed.worker.clone_from(&worker);
        pick.claimed.stays = stays;
        pick.claimed.followed = pick.claimed.followed.min(stays);
    }
    let (scope, visibility) = (fetch.wanted.scope, fetch.wanted.visibility());
    let proxy = fetch.proxy.clone();
    let granted = boxed(|| async move {
        let ours = proxy.prove(scope, picked, visibility).await;
        let granted = proxy.ask(ours, want).await;
        let started = proxy.leave_hold(granted).await;
        HandOut::of(proxy, started)
    });
    let out = to_the_end(&sidecar.tasks.left, granted).await;
    // Slots of earlier claims may be what is missing. Where nothing is, most jobs of a claim are asked for before
    // anybody has to name them.
    if out.len() < want {
        name_claims(sidecar);
    }
    Some(out)
}

impl Proxy {
    /// Asks for picked jobs under the limits of now, whenever they were claimed. Those that may start are left.
    async fn ask(&self, mut jobs: Vec<Pick>, want: usize) -> Vec<Pick> {
        let sidecar = &self.sidecar;
        if jobs.is_empty() {
            return jobs;
        }
        in_force::renew(sidecar, &mut jobs);
        let calls_wait = self.let_calls_ask(&jobs).await;
        let (asked, span) = (Instant::now(), traces::take(jobs.len()));
        let taken = {
            let asks: ClaimsOf<'_> = jobs.iter().map(|pick| &pick.claimed).collect();
            traces::within(&span, sidecar.store.take(&asks, want)).await
        };
        sidecar.fetching.way.took(asked.elapsed());
        let Ok(taken) = taken else {
            self.ask_later(jobs);
            return Vec::new();
        };
        reclaimed(sidecar, &taken.ended);
        sidecar.hold.served(&taken.served, sidecar.store.now());
        // The store has not heard of jobs without a verdict.
        let named = jobs.iter_mut().zip(&taken.verdicts);
        named.for_each(|(pick, _)| pick.named = true);
        let mut verdicts = taken.verdicts.into_iter();
        let (mut started, mut refused) = (Vec::with_capacity(jobs.len()), Vec::new());
        for pick in jobs {
            match verdicts.next() {
                Some(Verdict::Started { .. }) => {
                    if pick.refused.is_some() && is_priced(&pick.claimed.limited) {
                        // It may have been first in line.
                        sidecar.wake(&pick.claimed.limited);
                    }
                    if calls_wait {
                        let lines = &sidecar.calling.lines;
                        lines.started(AskedBy::Job, &pick.claimed.limited);
                    }
                    sidecar.subqueues.started(&pick);
                    started.push(pick);
                }
                Some(Verdict::Refused {
                    which,
                    why,
                    at,
                    action,
                }) => refused.push((pick, which, why, at, action)),
                Some(Verdict::HasRow | Verdict::Outdated | Verdict::Unfit) => {
                    Box::pin(siblings::lost(sidecar, pick)).await;
                }
                Some(Verdict::Unasked) | None => {}
            }
        }
        let bound = refused.first().and_then(|(pick, which, ..)| {
            let by = pick.claimed.limited.get(*which)?;
            Some((&*by.policy, by.key.as_str()))
        });
        traces::taken(&span, started.len(), bound);
        // What a group's first job was told holds for the group: those behind it may have been refused to keep its place.
        let last_first = refused.into_iter().rev();
        let dropped = last_first.filter_map(|(pick, which, why, at, action)| {
            self.refused(pick, which, &why, at, action)
        });
        drop::drop_soon(self, dropped.collect(), DropReason::Limit);
        started
    }

    /// Lets calls ask first whose turn it is under a key of these jobs. Whether any wait.
    async fn let_calls_ask(&self, jobs: &[Pick]) -> bool {
        let lines = &self.sidecar.calling.lines;
        let calls_wait = lines.all_waiting() > 0;
        let asks = |pick: &&Pick| calls_wait && lines.job_asks(&pick.claimed.limited);
        if jobs.iter().filter(asks).count() > 0 {
            tokio::time::sleep(BEHIND).await;
        }
        calls_wait
    }

    /// Puts picked jobs back of which nobody had a word: they are not asked for again at once.
    fn ask_later(&self, jobs: Vec<Pick>) {
        let sidecar = &self.sidecar;
        for pick in jobs {
            let by = pick.claimed.limited.first().map(Limited::names);
            pick.refuse(hold::Refusal {
                refused: Refused::Until(sidecar.store.now().plus(NO_WORD)),
                at: sidecar.store.now(),
                by,
                rescheduled: None,
            });
        }
    }

    /// Takes granted jobs out of the hold. The start of one that may not go out any more is undone: its claim is over,
    /// its queue was paused, or it was claimed anew or hidden meanwhile.
    async fn leave_hold(&self, mut granted: Vec<Pick>) -> Vec<Held> {
        let (sidecar, now) = (&self.sidecar, tick::now());
        let stays = |pick: &mut Pick| {
            pick.proof.deadline <= now || sidecar.fetching.paused.has(&pick.claimed.queue)
        };
        let mut stay: Vec<Pick> = granted.extract_if(.., stays).collect();
        let started = sidecar.hold.start(&mut granted);
        stay.append(&mut granted);
        for mut pick in stay {
            sidecar.back(&mut pick).await;
            sidecar.wake(&pick.claimed.limited);
        }
        started
    }

    /// Does with a refused job what the strongest action of its refusals says; it is returned if it is
    /// to be dropped.
    fn refused(
        &self,
        mut pick: Pick,
        which: usize,
        why: &Refusal,
        at: Option<Timestamp>,
        action: OnLimit,
    ) -> Option<Pick> {
        let sidecar = &self.sidecar;
        let all = pick.claimed.limited.clone();
        let limited = all.get(which)?;
        sidecar.subqueues.refused(&pick);
        if pick.refused.is_none() {
            tell::exceeded(sidecar, &pick, limited, why);
            pick.refused = Some(Box::new(Episode {
                space: limited.space,
                key: limited.key.clone(),
                strategy: why.strategy,
                since: pick.since,
            }));
        }
        let by = acting(&pick, which, action).unwrap_or(limited);
        (sidecar.metrics).refused(StartKind::Job, limited, why, &by.policy, action);
        if action == OnLimit::Drop {
            return Some(pick);
        }
        pick.refuse(hold::Refusal {
            refused: Refused::by(why, at),
            at: sidecar.store.now(),
            by: Some(limited.names()),
            rescheduled: (action == OnLimit::Reschedule).then(|| sidecar.store.now()),
        });
        None
    }

    /// Drops what is past its deadline or has expired, and asks the backend about what it has not confirmed for a
    /// while, or claimed for another visibility than this worker's.
    async fn prove(
        &self,
        scope: u64,
        mut picked: Vec<Pick>,
        visibility: Option<Duration>,
    ) -> Vec<Pick> {
        let (now, moment) = (Instant::now(), self.sidecar.store.now());
        let has_expired = |pick: &mut Pick| pick.expires.is_some_and(|at| at <= moment);
        let expired = picked.extract_if(.., has_expired).collect();
        drop::drop_soon(self, expired, DropReason::Expired);
        let is_doubtful = |pick: &&Pick| !is_proven(pick, visibility, now);
        // While it waited it may have been meant to be kept for longer than it goes out for.
        let go = |pick: &mut Pick| pick.claimed.visibility = micros(lasts(pick, visibility));
        if !picked.iter().any(|pick| is_doubtful(&pick)) {
            picked.iter_mut().for_each(go);
            return picked;
        }
        let doubtful = picked.iter().filter(is_doubtful);
        // Boxed, because it is rare and larger than all the rest.
        let told = Box::pin(self.ask_about_held(scope, doubtful.collect(), visibility)).await;
        let mut ours = Vec::with_capacity(picked.len());
        let mut unheard = Vec::new();
        for mut pick in picked {
            // What was not asked about was proven, or is past its deadline.
            let proven = Instant::now() < pick.proof.deadline;
            match told.get(&pick.claimed.job).copied() {
                None if proven => {
                    go(&mut pick);
                    ours.push(pick);
                }
                // Past the deadline it may be of a claim that another one has made.
                Some(Word::Ours(since)) if proven || self.sidecar.has_no_siblings() => {
                    go(&mut pick);
                    pick.proof = Proof::new(since, lasts(&pick, visibility));
                    ours.push(pick);
                }
                // Not said to be gone, so it stays; not known to be ours, so it does not go out. The backend may have
                // carried the heartbeat out: the next sweep asks for what held jobs get.
                Some(Word::None) => {
                    pick.doubt();
                    unheard.push(pick);
                }
                Some(Word::Gone | Word::Ours(_)) | None => {
                    self.sidecar.lose(&pick.claimed).await;
                }
            }
        }
        self.ask_later(unheard);
        ours
    }

    /// What the backend says of held jobs that are not past their deadline, asked together with others of their queue
    /// that would be due soon, if those get by that what held jobs get.
    async fn ask_about_held(
        &self,
        scope: u64,
        doubtful: Vec<&Pick>,
        visibility: Option<Duration>,
    ) -> HashMap<Arc<str>, Word> {
        let Sidecar { backend, hold, .. } = &*self.sidecar;
        let now = Instant::now();
        let mut due: HashMap<(Lane, Extension), Vec<Named>> = HashMap::new();
        for held in doubtful
            .into_iter()
            .filter(|held| now < held.proof.deadline)
        {
            let claimed = &held.claimed;
            let extension = Extension::of(claimed, lasts(held, visibility), backend);
            let jobs = due.entry((held.lane(), extension)).or_default();
            jobs.push((claimed.job.clone(), claimed.attempt));
        }
        let (mut due, mut asking, mut told) = (due.into_iter(), JoinSet::new(), HashMap::new());
        loop {
            while asking.len() < AT_ONCE
                && let Some(((lane, extension), mut jobs)) = due.next()
            {
                let (proxy, asked) = (self.clone(), jobs.len());
                let is_alike = |of: &Claimed| Extension::of_held(of, backend) == extension;
                let before = now - proof(extension.lasts) / 2;
                // Elsewhere each claim has an id of its own, so none is like another.
                if backend.job_liveness() {
                    jobs.extend(hold.unproven(&lane, is_alike, before, TOGETHER));
                }
                let proof = async move {
                    let words = prove::confirm(&proxy, scope, &extension, &jobs, asked).await;
                    let all = jobs.iter().zip(words.iter().copied());
                    keep::follow_out(&proxy, extension.lasts, all.skip(asked));
                    (words, jobs)
                };
                asking.spawn(boxed::work(proof).in_current_span());
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
    use crate::equipment::claims::TestClaim as _;
    use crate::equipment::held::held_of;
    use crate::store::Claim;

    #[tokio::test(start_paused = true)]
    async fn the_backends_word_is_taken_for_a_moment_and_for_what_it_was() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        let now = Instant::now();
        // Held from now on, though the claim is that much older.
        let held = |granted, came: Duration| {
            let mut held = held_of(Claim::of("a"));
            held.proof = Proof::new(now, granted);
            held.since = now + came;
            held
        };
        let half_minute = held(30 * second, Duration::ZERO);
        assert!(is_proven(&half_minute, None, now + TRUSTED_FOR));
        assert!(!is_proven(&half_minute, None, now + TRUSTED_FOR + ms(1)));
        assert!(
            !is_proven(&half_minute, Some(10 * second), now),
            "another one is wanted"
        );
        // A twentieth of a short one may be over.
        let short = held(10 * second, Duration::ZERO);
        let holds = |held: &Held, at| is_proven(held, Some(10 * second), now + at);
        assert!(holds(&short, ms(500)) && !holds(&short, ms(501)));
        // A claim that took long is not asked about again at once.
        let late = held(10 * second, ms(900));
        assert!(holds(&late, ms(1_400)) && !holds(&late, ms(1_401)));
        assert!(holds(&held(10 * second, 2 * second), 2 * second));
        // Past its deadline it is not ours.
        let brief = held(ms(500), ms(449));
        assert!(is_proven(&brief, Some(ms(500)), now + ms(449)));
        assert!(!is_proven(&brief, Some(ms(500)), now + ms(450)));
    }
}
