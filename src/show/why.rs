//! `GET /throttle/v1/why`: why a queue, a key or a job does not start now, who has the slots, and when the next start
//! can be. It claims no job and changes nothing.
//!
//! The answer goes by all that decides the next FETCH, in this order: the sidecar itself, its backend, a pause of the
//! queue, the limits of all its jobs, the lookahead, the limits of jobs that are held, and whether workers ask and jobs
//! are there. `told::causes` is what may be said, `find` finds what holds now, `question` is what is asked, `answer` the
//! rest of the answer.
//!
//! Slots, windows and shut keys are the fleet's: the store says them. Jobs that wait for a key are those of this
//! sidecar. Of siblings it is known by queue how many they hold.

mod answer;
mod applied;
mod find;
mod hung;
mod question;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use serde::Serialize;
use serde_json::{Value, json};

use super::limits::{self, KeyFacts};
use super::policies;
use crate::answers::respond::Fault;
use crate::desk::micros;
use crate::desk::runs::{Forecast, KeySlots};
use crate::desk::snapshot::{Snapshot, YOUNG};
use crate::desk::whole::of_services;
use crate::desk::{Proxy, Sidecar};
use crate::duration;
use crate::hold::HeldGroup;
use crate::inquiry::calls::{self, Lookup};
use crate::inquiry::job::own;
use crate::inquiry::lookahead::FullLookahead;
use crate::inquiry::rows;
use crate::inquiry::shape::rfc3339;
use crate::inquiry::{adopt, in_force};
use crate::json::Json;
use crate::limit::{Key, Limited, OnLimit, Space, Strategy, each_key};
use crate::policy::subqueue::{Subqueue, split};
use crate::policy::{JobView, Policy, PolicySet, strictest};
use crate::store::{KeyStates, LedgerExt, Row};
use crate::subqueues::{SpreadOfQueue, Writes};
use crate::wire::ojs::REPLY_DEPTH;
use answer::{JobPlace, WhichHead, group_facts, limit_facts, out, slot_of};
use question::Question;

use crate::told::causes;
pub(crate) use crate::told::causes::Cause;
pub use crate::told::causes::{CAUSES, CauseKind};
pub(crate) use applied::{Applied, beside, keys_beside};
pub(super) use find::of_all_queues;
pub(crate) use find::{of_queue, out_of_reach, stands_before_limits};
pub(super) use hung::Hung;

/// So many limits of a queue's held jobs are shown, those of most jobs first.
const KEYS: usize = 20;

/// Answers the question in the query.
pub(crate) async fn why(proxy: &Proxy, parts: &Parts) -> Result<String, Fault> {
    let question = Question::read(parts.uri.query().unwrap_or_default())?;
    let is_about_key = matches!(question, Question::Key(..));
    if proxy.sidecar.config().calls_only() && !is_about_key {
        let message =
            "this sidecar has no backend: it limits calls, and knows of no queue and no job";
        return Err(Fault::bad_request(message).hinting("ask about a key: --key KEY, or ?key=KEY"));
    }
    explain(proxy, parts, question, None).await
}

/// Answers why a key does not start, or a queue by `_queue:NAME`, as of the moment that is shown. A refusal is an answer
/// too.
pub(crate) async fn why_key(proxy: &Proxy, name: &str, now: Arc<Snapshot>) -> String {
    let question = Question::of_key(name);
    let (parts, ()) = http::Request::new(()).into_parts();
    let answer = async { explain(proxy, &parts, question?, Some(now)).await };
    answer.await.unwrap_or_else(|fault: Fault| {
        let (why, advice) = fault.words();
        json!({"why": why, "do": advice, "limits": [], "notes": []}).to_string()
    })
}

async fn explain(
    proxy: &Proxy,
    parts: &Parts,
    question: Question,
    now: Option<Arc<Snapshot>>,
) -> Result<String, Fault> {
    let sidecar = &proxy.sidecar;
    let rows = match limits::rows_out(sidecar).await {
        // The answer of `usage` says what a store that is lost lets start.
        Err(_) if sidecar.store.is_alone() && sidecar.store.is_lost() => Vec::new(),
        rows => rows?,
    };
    let now = match now {
        Some(now) => now,
        None => Snapshot::of(sidecar, YOUNG).await,
    };
    let mut asker = Asker {
        proxy,
        parts,
        known: KeyFacts::new(now, rows, sidecar.scopes.of(&parts.headers)),
    };
    let answer = asker.answer(question).await?;
    serde_json::to_string(&answer).map_err(|_| Fault::internal())
}

/// What one question is answered with.
struct Asker<'a> {
    proxy: &'a Proxy,
    parts: &'a Parts,
    /// With the jobs that are out, with workers of all sidecars.
    known: KeyFacts,
}

/// What is asked about, and what was found of its limits.
struct AskedAbout<'a> {
    queue: Option<&'a str>,
    job: Option<(JobPlace, Value)>,
    applied: &'a [Applied],
    /// The limit that all jobs wait for, of those that apply.
    of_all: Option<usize>,
    /// The limit that the held jobs wait for of which one would start first.
    of_held: Option<usize>,
}

/// The answer, as JSON has it: the sentences first.
#[derive(Serialize)]
struct Explanation {
    why: String,
    #[serde(rename = "do")]
    advice: String,
    #[serde(flatten)]
    facts: Value,
}

impl Asker<'_> {
    fn sidecar(&self) -> &Sidecar {
        &self.proxy.sidecar
    }

    fn now(&self) -> &Snapshot {
        &self.known.now
    }

    fn policies(&self) -> &PolicySet {
        &self.known.now.live.policies
    }

    async fn answer(&mut self, question: Question) -> Result<Explanation, Fault> {
        match question {
            Question::Key(space, key) => self.of_key(space, key).await,
            Question::Queue(queue) => {
                let policies = self.policies();
                let of_all = policies.gate(&queue).limited.clone();
                // Those whose turns are shared, and those that discard, are limits of all jobs too.
                let for_all = |one: &&Limited| match one.space {
                    Space::Job => policies.named_by(&one.key).is_some(),
                    Space::Queue | Space::Policy => true,
                };
                let any = JobView::of_queue(&queue);
                let shared = self.policies().limits(&any, &[]);
                let shared = shared.iter().flat_map(|all| &**all).filter(for_all);
                let is_asked =
                    |one: &&Limited| one.share.is_some() || one.on_limit == OnLimit::Drop;
                let shared = shared.filter(is_asked).cloned().collect();
                let held = self.now().held.limits_in(&queue, KEYS);
                self.of_queue(&queue, None, vec![of_all, shared], held)
                    .await
            }
            Question::Job(id) => self.of_job(&id).await,
            Question::Like { queue, kind, meta } => {
                let is_named = queue.is_some();
                let queue = queue.unwrap_or_else(|| "default".to_owned());
                let meta = Json::parse(meta.as_bytes(), REPLY_DEPTH).ok();
                let like = JobView {
                    kind: &kind,
                    meta,
                    ..JobView::of_queue(&queue)
                };
                let limits = self.policies().limits(&like, &[]);
                let limits: Vec<Arc<[Limited]>> = limits.into_iter().collect();
                // Where it would go to a subqueue, it would not stand behind the queue's jobs.
                let place = match self.sidecar().subqueues.writes(&queue) {
                    Writes::No | Writes::Otherwise => Some(JobPlace::Coming),
                    _ => self.policies().flow_of(&like, &[]).map(|flow| {
                        let (waits, own) = ("available".to_owned(), limits.first());
                        let own = own.map(|limits| &**limits);
                        self.place_of(&queue, Some(flow.subqueue), waits, own).0
                    }),
                };
                let place = place.filter(|place| place.is_behind_others() || place.is_behind());
                let place = place.map(|place| (place, Value::Null));
                let mut told = self.of_queue(&queue, place, limits, Vec::new()).await?;
                let notes = told.facts.get_mut("notes").and_then(Value::as_array_mut);
                if let Some(notes) = notes.filter(|_| !is_named) {
                    notes.push(
                        "no queue was named, so this is about \"default\": --queue names another"
                            .into(),
                    );
                }
                Ok(told)
            }
        }
    }

    /// About a key, or what is set for all keys of a policy.
    async fn of_key(&mut self, space: Space, key: Key) -> Result<Explanation, Fault> {
        let view = match space {
            Space::Policy => limits::policy_view(self.sidecar(), &key, &self.known),
            _ => limits::key_state(self.proxy, &mut self.known, &key).await?,
        };
        let view = view.ok_or_else(|| match space {
            Space::Policy => policies::unknown_policy(self.sidecar(), key.as_str()),
            _ => self.known.lacks(&key),
        })?;
        let mut applied = vec![Applied::of(self.sidecar(), view, ("", &self.known.rows)).await];
        if space == Space::Job {
            let keys = keys_beside(self.sidecar(), &key, &self.known);
            applied.extend(beside(self.sidecar(), &keys, &self.known).await?);
        } else if let [one] = &mut *applied
            && one.cause.is_none()
        {
            one.cause = Some(self.of_each_key(key.as_str()).await?);
        }
        let found = AskedAbout {
            queue: None,
            job: None,
            of_all: applied.iter().position(|one| one.cause.is_some()),
            of_held: None,
            applied: &applied,
        };
        Ok(self.explain(found).await)
    }

    /// Which of the known keys of a policy have no room.
    async fn of_each_key(&self, policy: &str) -> Result<Cause, Fault> {
        let (sidecar, known) = (self.sidecar(), &self.known);
        let keys = limits::keys_of(sidecar, policy, known);
        let asked: Vec<_> = keys.iter().map(|key| (Space::Job, key)).collect();
        let mut full = Vec::new();
        for view in limits::views(sidecar, &asked, known).await?.into_iter() {
            let Some(view) = view else { continue };
            let one = Applied::of(sidecar, view, ("", &known.rows)).await;
            full.extend(one.cause.map(|_| one.view.name));
        }
        Ok(find::each_key(policy, keys.len(), &full))
    }

    async fn of_job(&mut self, id: &str) -> Result<Explanation, Fault> {
        let sidecar = self.sidecar();
        let (place, claimed, since) = if let Some(claimed) = sidecar.hold.claimed(id) {
            let since = claimed.claimed_at;
            (JobPlace::Held, claimed, since)
        } else {
            let row = rows::row_of(sidecar, id).await?;
            let Some((due, row)) = row.and_then(|row| Some((row.due()?, row))) else {
                return self.job_at_backend(id).await;
            };
            let since = row.started.unwrap_or(row.claimed.claimed_at);
            (out(&row, since, due), row.claimed, since)
        };
        let facts = json!({
            "id": id,
            "state": if matches!(place, JobPlace::Held) { "held" } else { "running" },
            "queue": claimed.queue,
            "worker": claimed.worker,
            "since": rfc3339(since),
        });
        let limits = vec![claimed.limited.clone()];
        self.of_queue(&claimed.queue, Some((place, facts)), limits, Vec::new())
            .await
    }

    /// A job that is neither held here nor out: only the backend knows it.
    async fn job_at_backend(&mut self, id: &str) -> Result<Explanation, Fault> {
        let found = self.look_up(id).await?;
        let job = calls::job_in(&found).ok_or_else(Fault::internal)?;
        let scope = self.sidecar().scopes.of(&self.parts.headers);
        let is_held = adopt::held_by_sibling(self.sidecar(), scope, job).await;
        let [queue, kind, state, meta] = job.pick_exact(["queue", "type", "state", "meta"]);
        let text = |value: Option<Json<'_>>, missing: &str| {
            let text = value.and_then(|value| value.text());
            text.map_or_else(|| missing.to_owned(), Cow::into_owned)
        };
        let (filed, mut state) = (text(queue, "default"), text(state, "unknown"));
        if is_held.is_some() {
            // As its own route shows it.
            state = "available".to_owned();
        }
        let split = split(&filed).filter(|(base, _)| self.sidecar().subqueues.has(base));
        let (queue, subqueue) = split.map_or((&*filed, None), |(base, nth)| (base, Some(nth)));
        let view = JobView {
            id: Some(id),
            kind: &text(kind, ""),
            meta,
            ..JobView::of_queue(queue)
        };
        let limits = self.policies().limits(&view, &own(job, queue));
        let facts = json!({ "id": id, "state": state, "queue": queue });
        let (place, of_head) = match answer::dropped_by(job, &state) {
            Some(place) => (place, Vec::new()),
            None => self.place_of(queue, subqueue, state, limits.as_deref()),
        };
        let limits = limits.into_iter().collect();
        self.of_queue(queue, Some((place, facts)), limits, of_head)
            .await
    }

    /// Where a job is that only the backend knows, and the limits of what is held of its subqueue.
    fn place_of(
        &self,
        queue: &str,
        subqueue: Option<Subqueue>,
        state: String,
        limits: Option<&[Limited]>,
    ) -> (JobPlace, Vec<Arc<[Limited]>>) {
        let waits = matches!(&*state, "available" | "pending");
        let Some(subqueue) = subqueue.filter(|_| waits) else {
            return (JobPlace::Backend(state), Vec::new());
        };
        let heads = self.now().held.heads_in(queue);
        let heads = heads.iter().filter(|head| head.subqueue == Some(subqueue));
        let spread = self.sidecar().subqueues.spread(queue);
        let tag = limits.and_then(|limits| spread.tag_in(subqueue, limits));
        let is_own = |head: &&&HeldGroup| match tag {
            Some(_) => spread.tag_in(subqueue, &head.limits) == tag,
            // It was written by another spread.
            None => limits.is_some_and(|own| {
                let keys = own.iter().map(|one| &one.key);
                keys.eq(head.limits.iter().map(|one| &one.key))
            }),
        };
        let own = heads.clone().filter(is_own);
        let own: Vec<_> = own.map(|head| Arc::clone(&head.limits)).collect();
        let head = if !own.is_empty() {
            WhichHead::Held
        } else if heads.clone().any(|head| head.shut_by().is_some()) {
            // Whose they are is not told to those who ask for their own.
            let name = subqueue.name_in(queue);
            let mut all = self.now().queue(queue).subqueues.iter().flatten();
            let there = all.find(|one| one.name == name).cloned();
            WhichHead::Others(Box::new(there.unwrap_or_default()))
        } else {
            WhichHead::NotHere
        };
        (JobPlace::Subqueue(queue.to_owned(), head), own)
    }

    /// What the backend says of a job.
    async fn look_up(&self, id: &str) -> Result<Bytes, Fault> {
        let scope = self.sidecar().scopes.of(&self.parts.headers);
        let (code, message, hint) = match calls::look_up(self.proxy, scope, id).await {
            Lookup::Found(body) => return Ok(body),
            Lookup::Gone => (
                "not_found",
                format!("the backend knows no job {id:?}"),
                "look at the id; a finished job may have been deleted",
            ),
            Lookup::Unknown | Lookup::Unanswered => (
                "upstream_error",
                format!(
                    "job {id:?} is neither held here nor out with a worker, and the backend does not say where it is"
                ),
                "look at the backend; where it asks for credentials, set upstream.token",
            ),
        };
        Err(Fault::new(code, message).hinting(hint))
    }

    /// Looks at limits, overrides laid over them: each key once, under the strictest of what applies to it. All jobs
    /// have those `of_all`; each set `of_held` is that of some held jobs.
    async fn of_queue(
        &mut self,
        queue: &str,
        job: Option<(JobPlace, Value)>,
        of_all: Vec<Arc<[Limited]>>,
        of_held: Vec<Arc<[Limited]>>,
    ) -> Result<Explanation, Fault> {
        let live = &self.known.now.live;
        let now = |set: &Arc<[Limited]>| {
            // Since a reload some may be gone, or have other numbers.
            let set = set.iter().filter_map(|one| policies::in_force(live, one));
            in_force::limits_now(self.sidecar(), queue, &set.collect()).to_vec()
        };
        let of_all: Vec<Limited> = of_all.iter().flat_map(now).collect();
        let of_held: Vec<Vec<Limited>> = of_held.iter().map(now).collect();
        let all = of_all.iter().chain(of_held.iter().flatten());
        let all: Vec<Limited> = all.cloned().collect();
        let keys = all.iter().filter(|one| one.space == Space::Job);
        let keys: Vec<Key> = keys.map(|one| one.key.clone()).collect();
        let (proxy, known) = (self.proxy, &mut self.known);
        known.refresh(proxy, Some(queue), keys.iter()).await;
        let id = match &job {
            Some((_, facts)) => facts["id"].as_str().unwrap_or_default(),
            None => "",
        };
        let strictest_of = |(_, one): (usize, &Limited)| {
            let same = all.iter().filter(|other| other.shares_key(one));
            let limits = same.map(|one| one.limits.clone()).reduce(strictest);
            Limited {
                limits: limits.unwrap_or_default().without_counted(),
                ..one.clone()
            }
        };
        let apply: Vec<Limited> = each_key(&all).map(strictest_of).collect();
        let applied = self.look_at(queue, id, apply).await?;
        let last_of = |set: &[Limited]| {
            let of_set =
                |one: &Applied| set.iter().any(|other| other.shares_key(&one.view.limited));
            let causes = applied.iter().enumerate();
            let causes = causes.filter(|(_, one)| one.cause.is_some() && of_set(one));
            causes
                .max_by_key(|(_, one)| one.cause.as_ref().map(find::lets_go))
                .map(|(nth, _)| nth)
        };
        // One set without a cause is enough for a start.
        let held: Option<Vec<usize>> = of_held.iter().map(|set| last_of(set)).collect();
        let lets_go = |nth: &usize| applied.get(*nth)?.cause.as_ref().map(find::lets_go);
        let found = AskedAbout {
            queue: Some(queue),
            of_all: last_of(&of_all),
            of_held: held.into_iter().flatten().min_by_key(lets_go),
            applied: &applied,
            job,
        };
        Ok(self.explain(found).await)
    }

    /// Looks at the limits that apply to a job, or to the next one.
    async fn look_at(
        &self,
        queue: &str,
        job: &str,
        apply: Vec<Limited>,
    ) -> Result<Vec<Applied>, Fault> {
        let sidecar = self.sidecar();
        let asked: Vec<_> = apply.iter().map(|one| (one.space, &one.key)).collect();
        let KeyStates { states, now } = sidecar.store.states(&asked).await?;
        let mut applied = Vec::new();
        for (limited, state) in apply.into_iter().zip(states) {
            let view = match limited.space {
                Space::Job | Space::Policy => {
                    Some(limits::view(sidecar, limited, (state, now), &self.known).await)
                }
                Space::Queue => {
                    let view = limits::queue_view(sidecar, queue, (state, now), &self.known).await;
                    view.map(|mut view| {
                        // The numbers are those of now; what the job pays is its own.
                        (view.limited.cost, view.limited.share) = (limited.cost, limited.share);
                        view
                    })
                }
            };
            if let Some(view) = view {
                applied.push(Applied::of(sidecar, view, (job, &self.known.rows)).await);
            }
        }
        Ok(applied)
    }

    /// Puts together what is said of the limits that apply, of the queue and of the job.
    async fn explain(&self, found: AskedAbout<'_>) -> Explanation {
        let mut causes = self.causes(&found).await;
        let binding = self.binding(&found, &causes);
        let AskedAbout {
            queue,
            job,
            applied,
            ..
        } = found;
        let (place, job) = job.unzip();
        let job = job.filter(|facts| !facts.is_null());
        let limits = applied.iter().map(|one| match job {
            Some(_) => self.limit_of_job(one),
            None => self.limit_of(one),
        });
        let mut facts = json!({
            "at": duration::exactly(self.now().at.0),
            "limited_by": null,
            "limited_at": null,
            "next_start": null,
            "job": job,
            "limits": limits.collect::<Vec<_>>(),
        });
        if let Some(queue) = queue {
            let shown = self.queue_facts(queue, &causes).await;
            put(&mut facts, "queue", shown);
        }
        let mut cause = causes.remove(0);
        if !matches!(place, Some(JobPlace::Out(_) | JobPlace::Dropped(_))) {
            match binding {
                Some(one) => self.tell_binding(one, &mut facts),
                // Nothing is known that would keep a job from starting.
                None if cause.lets_start() && is_asked(applied) => {
                    let now = self.sidecar().store.now();
                    put(&mut facts, "next_start", rfc3339(now));
                }
                None => {}
            }
        }
        if let Some(place) = place {
            if place.is_behind_others() {
                causes.insert(0, cause.clone());
            }
            cause = place.cause(cause);
        }
        let notes = causes
            .iter()
            .filter(|one| !one.lets_start() || one.is_a_note());
        let notes = notes.map(|cause| cause.why.clone());
        let tried = self.tried(queue, applied, &facts);
        let ends = applied.iter().filter_map(|one| one.view.ends());
        let notes: Vec<_> = notes.chain(tried).chain(ends).collect();
        put(&mut facts, "notes", notes);
        put(&mut facts, "cause", cause.kind.name);
        Explanation {
            why: cause.why,
            advice: cause.advice,
            facts,
        }
    }

    /// What entries would have done that are only tried, in a sentence each: with the job, or with all jobs of the queue or
    /// of the key.
    fn tried(&self, queue: Option<&str>, applied: &[Applied], facts: &Value) -> Vec<String> {
        if let Some(job) = facts.pointer("/job/id").and_then(Value::as_str) {
            return self.sidecar().shadow.of_job(job).into_iter().collect();
        }
        let key = applied.first().map(|one| &one.view.limited.key);
        let touches = |policy: &Policy| match queue {
            Some(queue) => policy.matching.can_match_queue(queue),
            None => policy.key.constant() == key,
        };
        let tried = self.policies().shadow();
        let tried = tried.map_or(&[][..], PolicySet::policies);
        let is_told = |name: &Arc<str>| match tried.iter().find(|policy| policy.name == *name) {
            Some(policy) => touches(policy),
            None => queue.is_some(),
        };
        let told = self.now().shadow.iter().filter(|(name, _)| is_told(name));
        told.map(|(policy, tally)| format!("shadow: under {policy} {tally}"))
            .collect()
    }

    /// What is shown of one limit.
    fn limit_of(&self, one: &Applied) -> Value {
        let mut limit = limit_facts(one, self.rows_of(&one.view.limited));
        let limited = &one.view.limited;
        let calls = self.sidecar().calling.lines.shares(&limited.key);
        let groups = group_facts(one, self.now().held.shares_of(limited), calls);
        put(&mut limit, "groups", groups);
        let in_backend = (limited.space == Space::Job).then(|| {
            let (now, key) = (self.now(), &limited.key);
            let held = now.held.limited_by(Space::Job, key);
            now.waiting_for(key) - held.map(|group| group.jobs as u64).sum::<u64>()
        });
        put(&mut limit, "in_backend", in_backend);
        limit
    }

    /// What is shown of a limit of one job: also what the job pays, and whose share it takes.
    fn limit_of_job(&self, one: &Applied) -> Value {
        let (mut limit, limited) = (self.limit_of(one), &one.view.limited);
        put(&mut limit, "cost", limited.cost.pays.get());
        let share = limited.share.as_ref();
        put(&mut limit, "group", share.map(|share| &*share.group));
        put(&mut limit, "weight", share.map(|share| share.weight.get()));
        limit
    }

    /// All causes that hold now. The first one decides.
    async fn causes(&self, found: &AskedAbout<'_>) -> Vec<Cause> {
        let of_sidecar = self.now().causes.iter();
        let of_sidecar = of_sidecar
            .filter(|cause| cause.kind != &causes::SERVICE_AWAY)
            .cloned();
        let key = found.applied.first().map(|one| &one.view.limited);
        let key = key.filter(|one| found.queue.is_none() && one.space == Space::Job);
        let of_calls = key.is_some_and(|one| limits::is_of_calls(&self.now().live, &one.key));
        let stops = |kind: &CauseKind| match of_calls {
            true => kind.stops_calls(),
            false => kind.stops_all,
        };
        let (mut all, aside): (Vec<_>, Vec<_>) = of_sidecar.partition(|cause| stops(cause.kind));
        let of_queue = match found.queue {
            Some(queue) => self.of_one_queue(queue, found).await,
            None => self.of_queues_of_key(found),
        };
        let is = |kind: &'static CauseKind| move |one: &Cause| one.kind == kind;
        let (paused, of_queue): (Vec<_>, Vec<_>) =
            of_queue.into_iter().partition(is(&causes::QUEUE_PAUSED));
        let (front, of_queue): (Vec<_>, Vec<_>) =
            of_queue.into_iter().partition(is(&causes::LOOKAHEAD));
        let limit = |nth: Option<usize>| found.applied.get(nth?)?.cause.clone();
        all.extend(paused);
        all.extend(limit(found.of_all));
        let is_behind = found.job.as_ref().map(|(place, _)| place.is_behind());
        // Where a held job may start, the lookahead moves on.
        if is_behind.unwrap_or(found.of_held.is_some() || found.queue.is_none()) {
            all.extend(front);
        }
        all.extend(limit(found.of_held));
        all.extend(of_queue);
        let is_held = found.job.is_some() && is_behind == Some(false);
        if let Some(queue) = found.queue.filter(|_| !is_held) {
            let elsewhere = self.known.elsewhere(self.sidecar(), queue).await;
            all.extend(find::no_jobs(self.now(), queue, elsewhere));
        }
        if all.iter().all(Cause::lets_start) {
            let mut applied = found.applied.iter();
            let little = applied.find_map(|one| find::little_left(self.sidecar(), &one.view));
            all.push(little.unwrap_or_else(|| self.open(found)));
        }
        all.extend(aside);
        all.extend(of_services(self.sidecar(), |way| self.calls_by(way, found)));
        all
    }

    /// Nothing that is known keeps a job or a call from starting.
    fn open(&self, found: &AskedAbout<'_>) -> Cause {
        if self.sidecar().config().calls_only() {
            return Cause::new(&causes::OPEN_TO_CALLS, &[]);
        }
        if !found.applied.is_empty() {
            return Cause::new(&causes::OPEN, &[]);
        }
        let but = match self.may_have_keys(found.queue) {
            true => " to all jobs of the queue; single jobs may have keys",
            false => "",
        };
        Cause::new(&causes::NO_LIMIT, &[("but", &but)])
    }

    /// Whether calls of this way out have a key of those that are asked about.
    fn calls_by(&self, name: &str, found: &AskedAbout<'_>) -> bool {
        let mut ways = self.now().live.settings.egress.iter();
        let way = ways.find(|way| &*way.name == name);
        way.is_some_and(|way| {
            let mut asked = found.applied.iter().map(|one| &one.view.limited);
            asked.any(|one| match one.space {
                Space::Job => {
                    let mut budgets = way.budgets.iter();
                    way.key.may_give(&one.key) || budgets.any(|of| of.key.may_give(&one.key))
                }
                _ => one.key.as_str() == name,
            })
        })
    }

    /// What is known of a queue beside its limits.
    async fn of_one_queue(&self, queue: &str, asked: &AskedAbout<'_>) -> Vec<Cause> {
        let sidecar = self.sidecar();
        let mut found = of_queue(sidecar, self.now(), queue);
        // A job whose own limits leave room has other keys than those in front of it, also where no such job was seen.
        let is_another = asked.job.is_some() && asked.of_all.is_none();
        if is_another && !found.iter().any(|one| one.kind == &causes::LOOKAHEAD) {
            let full = FullLookahead::of(sidecar, self.now(), queue);
            found.extend(full.map(|full| full.cause()));
        }
        found.extend(find::nobody_asks(sidecar, self.now(), queue));
        let is_told = found.iter().any(|one| one.kind == &causes::QUEUE_PAUSED);
        if !is_told && sidecar.store.is_paused(queue).await.unwrap_or(false) {
            found.insert(0, find::paused(queue));
        }
        found
    }

    /// What keeps all queues of a key, where something keeps each of them.
    fn of_queues_of_key(&self, found: &AskedAbout<'_>) -> Vec<Cause> {
        let limited = found.applied.first().map(|one| &one.view.limited);
        let key = limited
            .filter(|one| one.space == Space::Job)
            .map(|one| &one.key);
        let queues = key.map(|key| self.now().queues_of(key)).unwrap_or_default();
        of_all_queues(self.sidecar(), self.now(), &queues)
    }

    fn may_have_keys(&self, queue: Option<&str>) -> bool {
        queue.is_some_and(|queue| !self.keyed_policies(queue).is_empty())
    }

    /// Policies that give single jobs of a queue keys of their own.
    fn keyed_policies(&self, queue: &str) -> Vec<String> {
        let by_job = self.policies().policies().iter().filter(|policy| {
            policy.key.constant().is_none() && policy.matching.can_match_queue(queue)
        });
        let by_job = by_job.map(|policy| format!("{}: {}", policy.name, policy.key.as_str()));
        by_job.collect()
    }

    /// The limit of which the first cause speaks.
    fn binding<'a>(&self, found: &AskedAbout<'a>, causes: &[Cause]) -> Option<&'a Applied> {
        let first = causes.first().filter(|cause| !cause.lets_start())?;
        let mut limits = found.of_all.into_iter().chain(found.of_held);
        limits.find_map(|nth| {
            let one = found.applied.get(nth)?;
            (one.cause.as_ref()?.why == first.why).then_some(one)
        })
    }

    /// Tells which limit binds, and until when.
    fn tell_binding(&self, one: &Applied, facts: &mut Value) {
        let sidecar = self.sidecar();
        let is_same = |other: &Limited| other.shares_key(&one.view.limited);
        let job = facts.pointer("/job/id").and_then(Value::as_str);
        let held = job.filter(|job| sidecar.hold.has(job));
        let ahead = held.map(|job| sidecar.hold.count_before(job, is_same));
        put(facts, "ahead", ahead);
        let strategy = one.refused.as_ref().map(|refusal| refusal.strategy);
        put(facts, "limited_by", strategy.map(Strategy::as_str));
        put(facts, "limited_at", one.view.full_name());
        let until = one.cause.as_ref().and_then(|cause| cause.until);
        put(facts, "next_start", until.map(rfc3339));
        if strategy == Some(Strategy::Concurrency) {
            self.forecast(one, ahead.unwrap_or(0), facts);
        }
    }

    async fn queue_facts(&self, name: &str, found: &[Cause]) -> Value {
        let here = self.now().queue(name);
        let level = here.level.as_ref();
        let set = self.sidecar().admit.pressure.table().set_for(name).cloned();
        json!({
            "name": name,
            "paused": found.iter().any(|one| one.kind == &causes::QUEUE_PAUSED),
            "held_here": here.held,
            "held_by_siblings": self.known.elsewhere(self.sidecar(), name).await,
            "depth": level.map(|level| level.depth),
            "max_depth": level.and_then(|level| level.max_depth),
            "bounds_over_http": set.and_then(|set| serde_json::from_str::<Value>(&set.to_json()).ok()),
            "keys_by_job": self.keyed_policies(name),
            "subqueues": here.subqueues.as_deref().map(SpreadOfQueue::of),
        })
    }

    fn forecast(&self, one: &Applied, ahead: usize, facts: &mut Value) {
        let Limited {
            space, key, limits, ..
        } = &one.view.limited;
        let (now, limit) = (one.view.now, limits.concurrency.unwrap_or(u32::MAX));
        let hung = one.hung.as_ref();
        // As if the slots were not there that may never be free.
        let lost = hung.map_or(0, |hung| hung.slots);
        if lost >= limit {
            let reason = hung.map(|hung| format!("{} may hang", hung.workers()));
            return put(facts, "next_start_unknown", reason);
        }
        let ages = self.rows_of(&one.view.limited);
        let ages = ages.filter_map(|row| Some(Duration::from_micros(now.since(row.started?))));
        let ages = ages.filter(|age| !hung.is_some_and(|hung| hung.has(*age)));
        let slots = KeySlots {
            limit: limit - lost,
            active: one.view.usage.active.saturating_sub(lost),
            ages: &ages.collect::<Vec<_>>(),
            runs: &self.sidecar().settle.runs.of(*space, key),
        };
        match slots.forecast(ahead) {
            Ok(Forecast { p50, p90 }) => {
                for (name, after) in [("next_start_p50", p50), ("next_start_p90", p90)] {
                    put(facts, name, rfc3339(now.plus(micros(after))));
                }
            }
            Err(reason) => put(facts, "next_start_unknown", reason),
        }
    }

    /// The rows of jobs that have a slot of this key, or of any key of this policy.
    fn rows_of<'a>(&'a self, limited: &'a Limited) -> impl Iterator<Item = &'a Row> {
        let has = move |row: &&Row| slot_of(row, limited).is_some();
        self.known.rows.iter().filter(has)
    }
}

/// Whether some limit is of one key, so that it says when the next start can be.
fn is_asked(applied: &[Applied]) -> bool {
    let mut limits = applied.iter().map(|one| &one.view.limited);
    limits.any(|one| one.space != Space::Policy)
}

fn put(facts: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(facts) = facts.as_object_mut() {
        facts.insert(name.to_owned(), value.into());
    }
}
