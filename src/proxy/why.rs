//! `GET /throttle/v1/why`: why a queue, a key or a job does not start now, who has the slots, and when the next start
//! can be. It claims no job and changes nothing.
//!
//! Slots, windows and shut keys are the fleet's: the store says them. Jobs that wait for a key are those of this
//! sidecar. Of siblings it is known by queue how many they hold.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use super::calls::{self, Lookup};
use super::control::limits::{self, Look};
use super::control::overrides::{self, ListenerPort};
use super::control::shape::{LimitView, rfc3339};
use super::job::own;
use super::respond::Fault;
use super::runs::KeySlots;
use super::{Proxy, REPLY_DEPTH, Sidecar, siblings};
use crate::json::{Json, quote};
use crate::limit::{Key, Limited, OnLimit, Space, Strategy, each_key};
use crate::ojs;
use crate::policy::{JobView, strictest};
use crate::store::{LedgerExt, Place, Row, RowsOf, StoreError};

/// So many rows of jobs that run are looked at.
const ROWS: usize = 2_048;
/// So many limits of a queue's held jobs are shown, those of most jobs first.
const KEYS: usize = 20;
/// So many jobs that have slots are shown of a limit.
const SHOWN: usize = 100;
/// Credentials whose workers have asked for nothing for so long are told of.
const SILENT: Duration = Duration::from_secs(10);

/// What is asked about.
#[derive(Debug)]
enum Question {
    Queue(String),
    Key(Key),
    Job(String),
    /// A job as it would be: its queue, its type, and its `meta` as an object.
    Like {
        queue: String,
        kind: String,
        meta: String,
    },
}

/// The answer, as JSON has it.
#[derive(Debug, Default, Serialize)]
struct Explanation {
    /// Why nothing starts, or that it may.
    why: String,
    /// What to do about it.
    #[serde(rename = "do")]
    advice: String,
    /// Which limit binds, by strategy; of several, the one that lets go last.
    limited_by: Option<&'static str>,
    /// Where it binds: a key, or `_queue:NAME`.
    limited_at: Option<String>,
    /// When the next start can be, of all limits.
    next_start: Option<String>,
    /// A slot is there by then in half of all cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_p50: Option<String>,
    /// A slot is there by then in nine of ten cases.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_p90: Option<String>,
    /// Why nobody can say when a slot is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_unknown: Option<String>,
    /// So many jobs of the limit that binds are held here and leave before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobFacts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<QueueFacts>,
    /// Every limit that applies.
    limits: Vec<LimitFacts>,
    /// What else the reader should know: a lost store, a backend that does not answer.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct JobFacts {
    id: String,
    /// `running`, `held`, or what the backend says.
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
}

#[derive(Debug, Serialize)]
struct QueueFacts {
    name: String,
    paused: bool,
    held_here: usize,
    held_by_siblings: usize,
    /// Known for bounded queues.
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_depth: Option<u64>,
    /// Policies that give its jobs keys of their own, with the template of each key.
    keys_by_job: Vec<String>,
}

#[derive(Debug, Serialize)]
struct LimitFacts {
    /// The policy's name, `queue`, or `job`.
    policy: String,
    /// What `GET /ojs/v1/rate-limits/KEY` shows.
    state: Box<RawValue>,
    /// Who has its slots.
    slots: Vec<SlotFacts>,
}

#[derive(Debug, Serialize)]
struct SlotFacts {
    job: String,
    worker: Option<String>,
    queue: String,
    since: Option<String>,
    /// Whether another sidecar gave it out.
    by_sibling: bool,
}

/// One limit that applies, with its numbers of now.
struct Applied {
    limited: Limited,
    view: LimitView,
}

/// Answers the question in the query.
pub(crate) async fn why(proxy: &Proxy, parts: &Parts) -> Result<String, Fault> {
    overrides::may_write(&proxy.sidecar, parts, ListenerPort::Admin)?;
    let question = question(parts.uri.query().unwrap_or_default())?;
    let look = limits::look_at_keys(proxy, parts).await?;
    let rows = match proxy.sidecar.store.rows(RowsOf::Out { max: ROWS }).await {
        Ok(rows) => rows,
        // The answer of `usage` says what a store that is lost lets start.
        Err(_) if proxy.sidecar.store.is_lost() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let asker = Asker {
        proxy,
        parts,
        look,
        rows,
    };
    let answer = match question {
        Question::Key(key) => asker.of_key(key).await?,
        Question::Queue(queue) => asker.of_queue(&queue).await?,
        Question::Job(job) => asker.of_job(&job).await?,
        Question::Like { queue, kind, meta } => asker.of_like(&queue, &kind, &meta).await?,
    };
    serde_json::to_string(&answer).map_err(|_| Fault::internal())
}

/// Reads the query: one of `queue`, `key`, `job`, `type`; beside `type` a `queue` and any `meta.NAME`.
fn question(query: &str) -> Result<Question, Fault> {
    let (mut queue, mut key, mut job, mut kind) = (None, None, None, None);
    let mut meta = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let text = |text| ojs::decoded(text).map(Cow::into_owned);
        let (name, value) = text(name)
            .zip(text(value))
            .ok_or_else(|| Fault::bad_request("the query is not UTF-8"))?;
        match name.as_str() {
            "queue" => queue = Some(value),
            "key" => key = Some(value),
            "job" => job = Some(value),
            "type" => kind = Some(value),
            other => match other.strip_prefix("meta.") {
                Some(field) => meta.push(format!("{}:{}", quote(field), quote(&value))),
                None => return Err(unasked(&format!("{other:?} is not known here"))),
            },
        }
    }
    if kind.is_none() && !meta.is_empty() {
        return Err(unasked("meta.NAME goes with type"));
    }
    match (queue, key, job, kind) {
        (Some(queue), None, None, None) => Ok(Question::Queue(queue)),
        (None, Some(key), None, None) => Key::new(&key)
            .map(Question::Key)
            .map_err(|_| limits::unknown_key(&key)),
        (None, None, Some(job), None) => Ok(Question::Job(job)),
        (queue, None, None, Some(kind)) => Ok(Question::Like {
            queue: queue.unwrap_or_else(|| "default".into()),
            kind,
            meta: format!("{{{}}}", meta.join(",")),
        }),
        _ => Err(unasked("one of queue, key, job and type is asked about")),
    }
}

fn unasked(message: &str) -> Fault {
    Fault::bad_request(message)
        .hinting("write ?queue=NAME, ?key=KEY, ?job=ID, or ?type=TYPE&queue=NAME&meta.tenant_id=ID")
}

/// What one question is answered with.
struct Asker<'a> {
    proxy: &'a Proxy,
    parts: &'a Parts,
    look: Look,
    /// The jobs that are out, with workers of all sidecars.
    rows: Vec<Row>,
}

impl Asker<'_> {
    fn sidecar(&self) -> &Sidecar {
        &self.proxy.sidecar
    }

    async fn of_key(&self, key: Key) -> Result<Explanation, Fault> {
        let view = limits::key_state(self.proxy, self.parts, &key).await?;
        let view = view.ok_or_else(|| limits::unknown_key(key.as_str()))?;
        let policy = self.look.policy_of(self.sidecar(), &key);
        let limited = Limited {
            space: Space::Job,
            key,
            limits: view.limits.clone(),
            on_limit: OnLimit::Wait,
            policy,
        };
        let mut answer = Explanation::default();
        self.conclude(&mut answer, vec![Applied { limited, view }], None);
        Ok(answer)
    }

    async fn of_queue(&self, queue: &str) -> Result<Explanation, Fault> {
        let sidecar = self.sidecar();
        let live = sidecar.live();
        let gate = live.policies.gate(queue);
        let all = overrides::limits_now(sidecar, queue, &gate.limited);
        let held = sidecar.hold.limits_in(queue);
        let of_held = held.into_iter().take(KEYS);
        let of_held = of_held.map(|limited| {
            let limited = overrides::limits_now(sidecar, queue, &limited);
            limited.to_vec()
        });
        let all = all.iter().cloned().chain(of_held.flatten()).collect();
        let applied = self.applied(queue, all).await?;
        let mut answer = Explanation {
            queue: Some(self.queue_facts(queue).await),
            ..Explanation::default()
        };
        self.note_silent(queue, &mut answer);
        self.conclude(&mut answer, applied, None);
        let paused = answer.queue.as_ref().is_some_and(|facts| facts.paused);
        if paused {
            say_paused(&mut answer, queue);
        }
        Ok(answer)
    }

    async fn of_like(&self, queue: &str, kind: &str, meta: &str) -> Result<Explanation, Fault> {
        let view = JobView {
            queue,
            kind,
            meta: Json::parse(meta.as_bytes(), REPLY_DEPTH).ok(),
            tenant: None,
        };
        let limits = self.sidecar().live().policies.limits(&view, &[]);
        let limits = limits.unwrap_or_default();
        let limits = overrides::limits_now(self.sidecar(), queue, &limits);
        let applied = self.applied(queue, limits.to_vec()).await?;
        let mut answer = Explanation {
            queue: Some(self.queue_facts(queue).await),
            ..Explanation::default()
        };
        self.conclude(&mut answer, applied, None);
        Ok(answer)
    }

    async fn of_job(&self, id: &str) -> Result<Explanation, Fault> {
        let sidecar = self.sidecar();
        if let Some(claimed) = sidecar.hold.claimed(id) {
            let limits = overrides::limits_now(sidecar, &claimed.queue, &claimed.limited);
            let applied = self.applied(&claimed.queue, limits.to_vec()).await?;
            let mut answer = Explanation {
                job: Some(JobFacts {
                    id: id.to_owned(),
                    state: "held".into(),
                    queue: Some(claimed.queue.to_string()),
                    worker: None,
                    since: Some(rfc3339(claimed.claimed_at)),
                }),
                queue: Some(self.queue_facts(&claimed.queue).await),
                ..Explanation::default()
            };
            self.note_silent(&claimed.queue, &mut answer);
            self.conclude(&mut answer, applied, Some(id));
            let paused = answer.queue.as_ref().is_some_and(|facts| facts.paused);
            if paused {
                say_paused(&mut answer, &claimed.queue);
            }
            return Ok(answer);
        }
        let row = siblings::row_of(sidecar, id).await?;
        if let Some(row) = row.filter(|row| row.place == Place::Out) {
            return self.of_running(id, &row).await;
        }
        self.of_backends(id).await
    }

    async fn of_running(&self, id: &str, row: &Row) -> Result<Explanation, Fault> {
        let claimed = &row.claimed;
        let worker = claimed.worker.as_deref();
        let since = row.started.unwrap_or(claimed.claimed_at);
        let by = worker.map_or_else(
            || "a worker that did not say its name".to_owned(),
            |worker| format!("worker {worker:?}"),
        );
        let limits = overrides::limits_now(self.sidecar(), &claimed.queue, &claimed.limited);
        let applied = self.applied(&claimed.queue, limits.to_vec()).await?;
        Ok(Explanation {
            why: format!("the job runs: {by} has it since {}", rfc3339(since)),
            advice: format!(
                "nothing; if the worker is dead, the job's slots are free after its visibility timeout ({})",
                rfc3339(row.until)
            ),
            job: Some(JobFacts {
                id: id.to_owned(),
                state: "running".into(),
                queue: Some(claimed.queue.to_string()),
                worker: worker.map(str::to_owned),
                since: Some(rfc3339(since)),
            }),
            limits: applied.iter().map(|one| self.facts(one)).collect(),
            ..Explanation::default()
        })
    }

    /// A job that is neither held here nor out: only the backend knows it.
    async fn of_backends(&self, id: &str) -> Result<Explanation, Fault> {
        let found = self.look_up(id).await?;
        let job = calls::job_in(&found).ok_or_else(Fault::internal)?;
        let [queue, kind, state, meta] = job.pick(["queue", "type", "state", "meta"]);
        let text =
            |value: Option<Json<'_>>| value.and_then(|value| value.text()).map(Cow::into_owned);
        let queue = text(queue).unwrap_or_else(|| "default".into());
        let state = text(state).unwrap_or_else(|| "unknown".into());
        let kind = text(kind).unwrap_or_default();
        let view = JobView {
            queue: &queue,
            kind: &kind,
            meta,
            tenant: None,
        };
        let limits = (self.sidecar().live().policies).limits(&view, &own(job, &queue));
        let limits = limits.unwrap_or_default();
        let limits = overrides::limits_now(self.sidecar(), &queue, &limits);
        let applied = self.applied(&queue, limits.to_vec()).await?;
        let mut answer = Explanation {
            queue: Some(self.queue_facts(&queue).await),
            ..Explanation::default()
        };
        self.conclude(&mut answer, applied, None);
        say_backends(&mut answer, &state, &queue);
        answer.job = Some(JobFacts {
            id: id.to_owned(),
            state,
            queue: Some(queue),
            worker: None,
            since: None,
        });
        Ok(answer)
    }

    /// What the backend says of a job.
    async fn look_up(&self, id: &str) -> Result<Bytes, Fault> {
        let scope = self.sidecar().scopes.of(&self.parts.headers);
        match calls::look_up(self.proxy, scope, id).await {
            Lookup::Found(body) => Ok(body),
            Lookup::Gone => {
                let message = format!("the backend knows no job {id:?}");
                Err(Fault::new(StatusCode::NOT_FOUND, "not_found", message)
                    .hinting("look at the id; a finished job may have been deleted"))
            }
            Lookup::Unknown | Lookup::Unanswered => {
                let message = format!(
                    "job {id:?} is neither held here nor out with a worker, and the backend does not say where it is"
                );
                Err(
                    Fault::new(StatusCode::BAD_GATEWAY, "upstream_error", message).hinting(
                        "look at the backend; where it asks for credentials, set upstream.token",
                    ),
                )
            }
        }
    }

    /// These limits with their numbers of now, each key once, under the strictest of what applies to it.
    async fn applied(&self, queue: &str, all: Vec<Limited>) -> Result<Vec<Applied>, Fault> {
        let keys: Vec<Key> = (each_key(&all).map(|(_, one)| one))
            .filter(|one| one.space == Space::Job)
            .map(|one| one.key.clone())
            .collect();
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
                Space::Job => self.view(&limited).await?,
                Space::Queue => {
                    let view = overrides::queue_state(self.proxy, self.parts, queue).await?;
                    let Some(view) = view else { continue };
                    view
                }
            };
            applied.push(Applied { limited, view });
        }
        Ok(applied)
    }

    async fn view(&self, limited: &Limited) -> Result<LimitView, StoreError> {
        let used =
            limits::used(self.sidecar(), limited.space, &limited.key, &limited.limits).await?;
        let used = (used.0.unwrap_or_default(), used.1);
        Ok(limits::view(self.sidecar(), limited, used, &self.look).await)
    }

    async fn queue_facts(&self, queue: &str) -> QueueFacts {
        let sidecar = self.sidecar();
        let live = sidecar.live();
        let policies = live.policies.policies().iter();
        let by_job = policies.filter(|policy| {
            policy.key.constant().is_none() && policy.matching.can_match_queue(queue)
        });
        let by_job = by_job.map(|policy| format!("{}: {}", policy.name, policy.key.as_str()));
        let level = sidecar.admit.pressure.level(queue);
        QueueFacts {
            name: queue.to_owned(),
            paused: sidecar.fetching.paused.has(queue)
                || sidecar.store.is_paused(queue).await.unwrap_or(false),
            held_here: sidecar.hold.of_queue(queue).0,
            held_by_siblings: siblings::held_by_siblings(sidecar, queue).await,
            depth: level.as_ref().map(|level| level.depth),
            max_depth: level.and_then(|level| level.max_depth),
            keys_by_job: by_job.collect(),
        }
    }

    /// Jobs that were claimed with credentials with which nobody asks any more wait for such a worker.
    fn note_silent(&self, queue: &str, answer: &mut Explanation) {
        for (jobs, fetched) in self.sidecar().hold.waiting_by_credentials(queue) {
            if fetched >= SILENT && jobs > 0 {
                answer.notes.push(format!(
                    "{jobs} jobs are held for credentials with which no worker has asked for {} s: only a worker with the same Authorization and X-OJS-Tenant gets them",
                    fetched.as_secs()
                ));
            }
        }
    }

    /// Says which limit binds, and until when. `job` is the held job that is asked about.
    fn conclude(&self, answer: &mut Explanation, applied: Vec<Applied>, job: Option<&str>) {
        let sidecar = self.sidecar();
        if self.proxy.upstream.is_away() {
            (answer.notes)
                .push("the backend does not answer: `ojs-throttle doctor` says why".into());
        }
        if sidecar.store.is_lost() {
            (answer.notes).push("the store does not answer: these are the numbers of this sidecar alone, and on_store_error says what starts".into());
        }
        let binding = applied
            .iter()
            .filter_map(|one| Some((one, one.view.met()?)));
        let binding = binding.max_by_key(|(one, _)| (one.view.room.slot, one.view.next_start()));
        let Some((one, met)) = binding else {
            say_open(answer, applied.is_empty());
            answer.next_start = (!applied.is_empty()).then(|| rfc3339(sidecar.store.now()));
            answer.limits = applied.iter().map(|one| self.facts(one)).collect();
            return;
        };
        let is_same = |other: &Limited| other.shares_key(&one.limited);
        let ahead = job.map(|job| sidecar.hold.count_before(job, is_same));
        answer.ahead = ahead;
        answer.limited_by = Some(met.strategy.as_str());
        answer.limited_at = Some(one.limited.space.name_of(&one.limited.key).into_owned());
        answer.next_start = one.view.next_start().map(rfc3339);
        if met.strategy == Strategy::Concurrency {
            self.forecast(one, ahead.unwrap_or(0), answer);
        }
        say_limited(answer, one, met.strategy);
        answer.limits = applied.iter().map(|one| self.facts(one)).collect();
    }

    fn forecast(&self, one: &Applied, ahead: usize, answer: &mut Explanation) {
        let Limited { space, key, .. } = &one.limited;
        let now = one.view.now;
        let ages: Vec<Duration> = self
            .rows_of(&one.limited)
            .filter_map(|row| Some(Duration::from_micros(now.since(row.started?))))
            .collect();
        let runs = self.sidecar().settle.runs.of(*space, key);
        let slots = KeySlots {
            limit: one.view.limits.concurrency.unwrap_or(u32::MAX),
            active: one.view.usage.active,
            ages: &ages,
            runs: &runs,
        };
        let at = |after: Duration| Some(rfc3339(now.plus(super::job::micros(after))));
        match slots.forecast(ahead) {
            Ok(forecast) => {
                answer.next_start_p50 = at(forecast.p50);
                answer.next_start_p90 = at(forecast.p90);
            }
            Err(reason) => answer.next_start_unknown = Some(reason),
        }
    }

    /// The rows of jobs that have a slot of this key.
    fn rows_of<'a>(&'a self, limited: &'a Limited) -> impl Iterator<Item = &'a Row> {
        let has = |row: &&Row| (row.claimed.limited.iter()).any(|one| one.shares_key(limited));
        self.rows.iter().filter(has)
    }

    fn facts(&self, one: &Applied) -> LimitFacts {
        let slots = self.rows_of(&one.limited).take(SHOWN).map(|row| SlotFacts {
            job: row.claimed.job.to_string(),
            worker: row.claimed.worker.as_deref().map(str::to_owned),
            queue: row.claimed.queue.to_string(),
            since: row.started.map(rfc3339),
            by_sibling: !row.ours,
        });
        LimitFacts {
            policy: one.limited.policy.to_string(),
            state: RawValue::from_string(one.view.to_json())
                .or_else(|_| to_raw_value(&()))
                .unwrap_or_default(),
            slots: slots.collect(),
        }
    }
}

/// Says where a job is of which only the backend knows.
fn say_backends(answer: &mut Explanation, state: &str, queue: &str) {
    match state {
        "available" if answer.queue.as_ref().is_some_and(|facts| facts.paused) => {
            say_paused(answer, queue);
        }
        "available" | "pending" => {
            answer.why = format!(
                "the job waits at the backend, or another sidecar holds it; {}",
                answer.why
            );
        }
        "active" => {
            answer.why = "the backend says that the job is active, and it has no slot here: a worker got it around the sidecar, or another sidecar holds it".into();
            answer.advice = "give all workers of a limited queue the sidecar's address".into();
        }
        _ => {
            answer.why = format!("the backend says that the job is {state}");
            answer.advice = "no limit keeps a job in this state".into();
        }
    }
}

fn say_paused(answer: &mut Explanation, queue: &str) {
    answer.why = format!("queue {queue:?} is paused: none of its jobs starts");
    answer.advice = format!("resume it: POST /ojs/v1/queues/{queue}/resume");
    answer.next_start = None;
}

fn say_open(answer: &mut Explanation, is_unlimited: bool) {
    let by_job = answer
        .queue
        .as_ref()
        .is_some_and(|queue| !queue.keys_by_job.is_empty());
    answer.why = match (is_unlimited, by_job) {
        (true, false) => "no limit applies",
        (true, true) => "no limit applies to all jobs of the queue; single jobs may have keys",
        (false, _) => "every limit leaves room: the next job may start now",
    }
    .into();
    answer.advice =
        "if nothing starts: does a worker ask for this queue here, and has the backend jobs?"
            .into();
}

/// Says what the limit that binds has used up, and what helps.
fn say_limited(answer: &mut Explanation, one: &Applied, strategy: Strategy) {
    let (limits, usage) = (&one.view.limits, &one.view.usage);
    let (name, path) = match one.limited.space {
        Space::Job => (
            format!("key {:?}", one.limited.key.as_str()),
            format!("/ojs/v1/rate-limits/{}", one.limited.key),
        ),
        Space::Queue => (
            format!("queue {:?}", one.view.name),
            format!("/ojs/v1/admin/queues/{}/rate-limit", one.view.name),
        ),
    };
    let until = one.view.next_start().map(rfc3339).unwrap_or_default();
    let raise = format!("raise the limit in the file, or for a while by PUT {path}");
    (answer.why, answer.advice) = match strategy {
        Strategy::Concurrency if limits.concurrency == Some(0) => {
            let set = one.view.set.as_ref();
            let by = set.and_then(|set| set.by.as_deref());
            let reason = set.and_then(|set| set.reason.as_deref());
            let said = [("by", by), ("because", reason)];
            let said = said
                .iter()
                .filter_map(|(word, text)| Some(format!(" {word} {:?}", (*text)?)));
            let undo = match set {
                Some(_) => format!("DELETE {path} ends the pause"),
                None => "give it slots in the file".into(),
            };
            (
                format!(
                    "{name} is paused: its concurrency is 0{}",
                    said.collect::<String>()
                ),
                undo,
            )
        }
        Strategy::Concurrency => (
            format!(
                "{} of {} slots of {name} are taken",
                usage.active,
                limits.concurrency.unwrap_or_default()
            ),
            format!(
                "wait until one of the jobs below ends, or {raise}; the slot of a dead worker is free after its visibility timeout"
            ),
        ),
        Strategy::Rate => (
            format!("{name} has started as many jobs as its window allows, until {until}"),
            format!("wait, or {raise}"),
        ),
        Strategy::Throttle => (
            format!("{name} spaces its starts, and the next one is at {until}"),
            format!("wait, or {raise}"),
        ),
        Strategy::Shut => (
            format!("{name} is shut until {until}: a nack said so, or somebody by hand"),
            format!(
                "wait; DELETE /throttle/v1/keys/{}/next-start on the admin port opens it",
                one.limited.key
            ),
        ),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read() {
        for (query, wanted) in [
            ("queue=a%20b", "Queue(\"a b\")"),
            ("key=stripe", "Key(Key(\"stripe\"))"),
            ("job=j1", "Job(\"j1\")"),
            (
                "type=t&meta.tenant_id=x%22",
                "Like { queue: \"default\", kind: \"t\", meta: \"{\\\"tenant_id\\\":\\\"x\\\\\\\"\\\"}\" }",
            ),
        ] {
            assert_eq!(format!("{:?}", question(query).unwrap()), wanted, "{query}");
        }
        for query in [
            "",
            "queue=a&key=b",
            "meta.a=b",
            "queue=a&meta.a=b",
            "q=1",
            "job=%ff",
        ] {
            assert!(question(query).is_err(), "{query}");
        }
    }
}
