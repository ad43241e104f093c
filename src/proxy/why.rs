//! `GET /throttle/v1/why`: why a queue, a key or a job does not start now, who has the slots, and when the next start
//! can be. It claims no job and changes nothing. Here it is found out; `question` is what is asked, `answer` what is
//! said.
//!
//! Slots, windows and shut keys are the fleet's: the store says them. Jobs that wait for a key are those of this
//! sidecar. Of siblings it is known by queue how many they hold.

mod answer;
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

use super::calls::{self, Lookup};
use super::control::limits::{self, Look};
use super::control::overrides;
use super::control::shape::{LimitView, rfc3339};
use super::job::{micros, own};
use super::respond::Fault;
use super::runs::{Forecast, KeySlots};
use super::{Proxy, REPLY_DEPTH, Sidecar, siblings};
use crate::json::Json;
use crate::limit::{Key, Limited, OnLimit, Refusal, Space, Strategy, each_key};
use crate::policy::{JobView, strictest};
use crate::store::{KeyStates, LedgerExt, Place, Row, RowsOf};
use answer::{
    JobPlace, Sentences, group_facts, limit_facts, say_away, say_limited, say_open, say_out,
    say_place,
};
use question::Question;

/// So many rows of jobs that run are looked at.
const ROWS: usize = 2_048;
/// So many limits of a queue's held jobs are shown, those of most jobs first.
const KEYS: usize = 20;
/// Credentials whose workers have asked for nothing for so long are told of.
const SILENT: Duration = Duration::from_secs(10);

/// Answers the question in the query.
pub(crate) async fn why(proxy: &Proxy, parts: &Parts) -> Result<String, Fault> {
    let question = Question::read(parts.uri.query().unwrap_or_default())?;
    let look = limits::look_at_keys(proxy, parts).await?;
    let rows = proxy.sidecar.store.rows(RowsOf::Out { max: ROWS }).await;
    let rows = match proxy.sidecar.store.is_lost() {
        // The answer of `usage` says what a store that is lost lets start.
        true => rows.unwrap_or_default(),
        false => rows?,
    };
    let asker = Asker {
        proxy,
        parts,
        look,
        rows,
    };
    let answer = asker.answer(question).await?;
    serde_json::to_string(&answer).map_err(|_| Fault::internal())
}

/// What one question is answered with.
struct Asker<'a> {
    proxy: &'a Proxy,
    parts: &'a Parts,
    look: Look,
    /// The jobs that are out, with workers of all sidecars.
    rows: Vec<Row>,
}

/// One limit that applies, with its numbers of now.
struct Applied {
    limited: Limited,
    view: LimitView,
    /// Why it lets the job that is asked about not start, or the next one.
    refused: Option<Refusal>,
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

    async fn answer(&self, question: Question) -> Result<Explanation, Fault> {
        match question {
            Question::Key(key) => self.of_key(key).await,
            Question::Queue(queue) => {
                let policies = Arc::clone(&self.sidecar().live().policies);
                let of_all = policies.gate(&queue).limited.clone();
                // Those whose turns are shared are limits of all jobs too.
                let for_all = |one: &&Limited| match one.space {
                    Space::Job => policies.named_by(&one.key).is_some(),
                    Space::Queue => true,
                };
                let shared = self.limits_by_policy(&queue, "", None, &[]);
                let shared = shared.iter().flat_map(|all| &**all).filter(for_all);
                let shared = shared.filter(|one| one.share.is_some()).cloned().collect();
                let held = self.sidecar().hold.limits_in(&queue);
                let all = [of_all, shared].into_iter();
                let all = all.chain(held.into_iter().take(KEYS));
                self.of_queue(&queue, None, all).await
            }
            Question::Job(id) => self.of_job(&id).await,
            Question::Like { queue, kind, meta } => {
                let meta = Json::parse(meta.as_bytes(), REPLY_DEPTH).ok();
                let limits = self.limits_by_policy(&queue, &kind, meta, &[]);
                self.of_queue(&queue, None, limits).await
            }
        }
    }

    async fn of_key(&self, key: Key) -> Result<Explanation, Fault> {
        let view = limits::key_state(self.proxy, &self.look, &key).await?;
        let view = view.ok_or_else(|| self.look.lacks(&key))?;
        let limited = Limited {
            space: Space::Job,
            limits: view.limits.clone(),
            on_limit: OnLimit::Wait,
            policy: self.look.policy_of(self.sidecar(), &key),
            key,
            cost: Default::default(),
            share: None,
        };
        let refused = view.refused("", 1);
        let applied = Applied {
            limited,
            view,
            refused,
        };
        Ok(self.explain(None, None, &[applied]).await)
    }

    async fn of_job(&self, id: &str) -> Result<Explanation, Fault> {
        let sidecar = self.sidecar();
        let (place, claimed, since) = if let Some(claimed) = sidecar.hold.claimed(id) {
            let since = claimed.claimed_at;
            (JobPlace::Held, claimed, since)
        } else {
            let row = siblings::row_of(sidecar, id).await?;
            let Some(row) = row.filter(|row| row.place == Place::Out) else {
                return self.job_at_backend(id).await;
            };
            let since = row.started.unwrap_or(row.claimed.claimed_at);
            (JobPlace::Out(say_out(&row, since)), row.claimed, since)
        };
        let facts = json!({
            "id": id,
            "state": if matches!(place, JobPlace::Held) { "held" } else { "running" },
            "queue": claimed.queue,
            "worker": claimed.worker,
            "since": rfc3339(since),
        });
        let limits = [claimed.limited.clone()];
        self.of_queue(&claimed.queue, Some((place, facts)), limits)
            .await
    }

    /// A job that is neither held here nor out: only the backend knows it.
    async fn job_at_backend(&self, id: &str) -> Result<Explanation, Fault> {
        let found = self.look_up(id).await?;
        let job = calls::job_in(&found).ok_or_else(Fault::internal)?;
        let [queue, kind, state, meta] = job.pick(["queue", "type", "state", "meta"]);
        let text = |value: Option<Json<'_>>, missing: &str| {
            let text = value.and_then(|value| value.text());
            text.map_or_else(|| missing.to_owned(), Cow::into_owned)
        };
        let (queue, state) = (text(queue, "default"), text(state, "unknown"));
        let limits = self.limits_by_policy(&queue, &text(kind, ""), meta, &own(job, &queue));
        let facts = json!({ "id": id, "state": state, "queue": queue });
        let job = Some((JobPlace::Backend(state), facts));
        self.of_queue(&queue, job, limits).await
    }

    fn limits_by_policy(
        &self,
        queue: &str,
        kind: &str,
        meta: Option<Json<'_>>,
        own: &[Limited],
    ) -> Option<Arc<[Limited]>> {
        let job = JobView {
            queue,
            kind,
            meta,
            tenant: None,
        };
        self.sidecar().live().policies.limits(&job, own)
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

    /// With these sets of limits, overrides laid over them: each key once, under the strictest of what applies to it.
    async fn of_queue(
        &self,
        queue: &str,
        job: Option<(JobPlace, Value)>,
        sets: impl IntoIterator<Item = Arc<[Limited]>>,
    ) -> Result<Explanation, Fault> {
        let now = |set| overrides::limits_now(self.sidecar(), queue, &set).to_vec();
        let all: Vec<Limited> = sets.into_iter().flat_map(now).collect();
        let keys = all.iter().filter(|one| one.space == Space::Job);
        let keys: Vec<Key> = keys.map(|one| one.key.clone()).collect();
        self.look.refresh(self.proxy, &keys).await;
        let mut applied = Vec::new();
        for (_, one) in each_key(&all) {
            let same = all.iter().filter(|other| other.shares_key(one));
            let limits = same.map(|one| one.limits.clone()).reduce(strictest);
            let limited = Limited {
                limits: limits.unwrap_or_default(),
                ..one.clone()
            };
            let view = match one.space {
                Space::Job => {
                    let (key, sidecar) = (&limited.key, self.sidecar());
                    let KeyStates { states, now } =
                        sidecar.store.states(&[(one.space, key)]).await?;
                    let state = states.into_iter().next().unwrap_or_default();
                    Some(limits::view(sidecar, &limited, (state, now), &self.look).await)
                }
                Space::Queue => overrides::queue_state(self.proxy, self.parts, queue).await?,
            };
            let (id, pays) = match &job {
                Some((_, facts)) => (facts["id"].as_str(), limited.cost.pays.get()),
                None => (None, 1),
            };
            applied.extend(view.map(|view| Applied {
                refused: view.refused(id.unwrap_or(""), pays),
                limited,
                view,
            }));
        }
        Ok(self.explain(Some(queue), job, &applied).await)
    }

    /// Puts together what is said of the limits that apply, of the queue and of the job.
    async fn explain(
        &self,
        queue: Option<&str>,
        job: Option<(JobPlace, Value)>,
        applied: &[Applied],
    ) -> Explanation {
        let (place, job) = job.unzip();
        let limits = applied.iter().map(|one| {
            let mut limit = limit_facts(one, self.rows_of(&one.limited));
            if job.is_some() {
                let share = one.limited.share.as_ref();
                put(&mut limit, "cost", one.limited.cost.pays.get());
                put(&mut limit, "group", share.map(|share| &*share.group));
                put(&mut limit, "weight", share.map(|share| share.weight.get()));
            }
            let is = |other: &Limited| other.shares_key(&one.limited);
            let groups = group_facts(one, self.sidecar().hold.groups_of(is));
            put(&mut limit, "groups", groups);
            limit
        });
        let mut facts = json!({
            "limited_by": null,
            "limited_at": null,
            "next_start": null,
            "job": job,
            "limits": limits.collect::<Vec<_>>(),
            "notes": self.notes(queue),
        });
        if let Some(queue) = queue {
            put(&mut facts, "queue", self.queue_facts(queue).await);
        }
        let said = match place {
            Some(JobPlace::Out(_)) => Sentences::default(),
            _ => self.conclude(applied, &mut facts),
        };
        let is_paused = facts.pointer("/queue/paused") == Some(&Value::Bool(true));
        if is_paused {
            put(&mut facts, "next_start", Value::Null);
        }
        let (why, advice) = say_place(place, queue.filter(|_| is_paused), said);
        Explanation { why, advice, facts }
    }

    async fn queue_facts(&self, name: &str) -> Value {
        let sidecar = self.sidecar();
        let live = sidecar.live();
        let by_job = live.policies.policies().iter().filter(|policy| {
            policy.key.constant().is_none() && policy.matching.can_match_queue(name)
        });
        let by_job = by_job.map(|policy| format!("{}: {}", policy.name, policy.key.as_str()));
        let level = sidecar.admit.pressure.level(name);
        json!({
            "name": name,
            "paused": sidecar.fetching.paused.has(name)
                || sidecar.store.is_paused(name).await.unwrap_or(false),
            "held_here": sidecar.hold.of_queue(name).0,
            "held_by_siblings": siblings::held_by_siblings(sidecar, name).await,
            "depth": level.as_ref().map(|level| level.depth),
            "max_depth": level.and_then(|level| level.max_depth),
            "keys_by_job": by_job.collect::<Vec<_>>(),
        })
    }

    /// What else the reader should know.
    fn notes(&self, queue: Option<&str>) -> Vec<String> {
        let sidecar = self.sidecar();
        let mut notes = Vec::new();
        // Jobs that were claimed with credentials with which nobody asks any more wait for such a worker.
        let waiting = queue.map(|queue| sidecar.hold.waiting_by_credentials(queue));
        for (jobs, fetched) in waiting.into_iter().flatten() {
            if fetched >= SILENT && jobs > 0 {
                notes.push(format!(
                    "{jobs} jobs are held for credentials with which no worker has asked for {} s: only a worker with the same Authorization and X-OJS-Tenant gets them",
                    fetched.as_secs()
                ));
            }
        }
        if self.proxy.upstream.is_away() {
            notes.push("the backend does not answer: `ojs-throttle doctor` says why".into());
        }
        if sidecar.store.is_lost() {
            notes.push("the store does not answer: these are the numbers of this sidecar alone, and on_store_error says what starts".into());
        }
        notes
    }

    /// Finds which limit binds, and until when.
    fn conclude(&self, applied: &[Applied], facts: &mut Value) -> Sentences {
        let sidecar = self.sidecar();
        let limits = applied.iter();
        let binding = limits.filter_map(|one| Some((one, one.refused.as_ref()?)));
        let binding = binding.max_by_key(|(_, refusal)| (refusal.slot, refusal.at));
        let Some((one, refusal)) = binding else {
            if self.proxy.upstream.is_away() {
                return say_away();
            }
            let now = (!applied.is_empty()).then(|| rfc3339(sidecar.store.now()));
            put(facts, "next_start", now);
            let has_keys = facts.pointer("/queue/keys_by_job/0").is_some();
            return say_open(applied, has_keys);
        };
        let is_same = |other: &Limited| other.shares_key(&one.limited);
        let job = facts.pointer("/job/id").and_then(Value::as_str);
        let held = job.filter(|job| sidecar.hold.has(job));
        let ahead = held.map(|job| sidecar.hold.count_before(job, is_same));
        put(facts, "ahead", ahead);
        put(facts, "limited_by", refusal.strategy.as_str());
        put(
            facts,
            "limited_at",
            one.limited.space.name_of(&one.limited.key),
        );
        let next = one.view.next_start(Some(refusal)).map(rfc3339);
        put(facts, "next_start", next);
        if refusal.strategy == Strategy::Concurrency {
            self.forecast(one, ahead.unwrap_or(0), facts);
        }
        say_limited(one, refusal)
    }

    fn forecast(&self, one: &Applied, ahead: usize, facts: &mut Value) {
        let Limited { space, key, .. } = &one.limited;
        let now = one.view.now;
        let ages = self.rows_of(&one.limited);
        let ages = ages.filter_map(|row| Some(Duration::from_micros(now.since(row.started?))));
        let slots = KeySlots {
            limit: one.view.limits.concurrency.unwrap_or(u32::MAX),
            active: one.view.usage.active,
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

    /// The rows of jobs that have a slot of this key.
    fn rows_of<'a>(&'a self, limited: &'a Limited) -> impl Iterator<Item = &'a Row> {
        let has = |row: &&Row| (row.claimed.limited.iter()).any(|one| one.shares_key(limited));
        self.rows.iter().filter(has)
    }
}

fn put(facts: &mut Value, name: &str, value: impl Into<Value>) {
    if let Some(facts) = facts.as_object_mut() {
        facts.insert(name.to_owned(), value.into());
    }
}
