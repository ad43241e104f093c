//! `GET /throttle/v1/state`: what this sidecar and its limits are like now, for the page and for `top`, and the same
//! as a stream.
//!
//! A state is made at most once a second, and only when somebody asks. Who asks the same question within that second
//! gets the same bytes. All of it is of one `Snapshot`, but for what is used of limits: the store is asked about the
//! keys on the page that is shown, in one call.

mod parts;

pub use parts::MEMBERS;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, header};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::limits::{self, KeyFacts};
use super::why::{self, Applied, Cause, Hung};
use crate::answers::body::Body;
use crate::answers::packed::Packer;
use crate::answers::respond::{Fault, ours};
use crate::bounds::Level;
use crate::desk::snapshot::{QueueNow, SHARED, Snapshot};
use crate::desk::{Proxy, Sidecar};
use crate::duration;
use crate::inquiry::shape::{LimitView, rfc3339};
use crate::inquiry::waiting;
use crate::json::Json;
use crate::limit::{Key, Limited, Space, Timestamp};
use crate::policy;
use crate::store::LedgerExt;
use crate::told::events::{Filter, Subscription};
use crate::told::metrics::{Band, Point, STEP, SpacedKey};
use crate::wire::ojs::{self, REPLY_DEPTH};
use parts::{
    BackendPart, BandPart, CausePart, ConfigPart, EventRow, EventsPart, HistoryPart, KeyRow,
    KeysPart, MinutePart, QueueRow, QueuesPart, ShadowPart, SidecarPart, State, StateHead,
    StorePart, WayRow,
};

/// How often a state is made, at most.
const EVERY: Duration = Duration::from_secs(1);
/// A stream whose reader is so far behind ends.
const BEHIND: Duration = Duration::from_secs(2);
/// How long the backend may take to say how much waits; else the numbers of a second ago are shown.
const ASKING: Duration = Duration::from_millis(100);
/// The most streams at once.
const STREAMS: usize = 8;
/// The most answers that are kept for who asks the same within the second.
const ANSWERS: usize = 2 * STREAMS;
/// Rows of one answer: keys, and queues.
const ROWS: usize = 50;
/// Rows of events that are shown, the last ones.
const EVENTS: usize = 20;
/// Events that are read in a second, the last ones.
const READ: usize = 200;

/// What does not change while a sidecar runs.
#[derive(Debug)]
pub struct SidecarFacts {
    /// Where SDKs connect: those of jobs, or of services where there is no backend.
    pub listens: Arc<str>,
    /// The kind of its store.
    pub store: &'static str,
    /// The address of the backend, if there is one.
    pub backend: Option<Arc<str>>,
}

/// What is asked: which keys.
#[derive(Clone, PartialEq, Eq, Debug)]
struct StateQuery {
    /// A part of their names, in small letters.
    search: String,
    /// The whole name of one.
    key: Option<String>,
    /// From 1.
    page: usize,
}

impl StateQuery {
    fn read(query: &str) -> Result<StateQuery, Fault> {
        let mut question = StateQuery {
            search: String::new(),
            key: None,
            page: 1,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value =
                ojs::decoded(value).ok_or_else(|| Fault::bad_request("the query is not UTF-8"))?;
            match name {
                "search" => question.search = value.to_lowercase(),
                "key" => question.key = Some(value.into_owned()),
                "page" => {
                    let page = value.parse().ok().filter(|page| *page > 0);
                    let message = format!("must be a whole number from 1, found {value:?}");
                    question.page = page.ok_or_else(|| Fault::field("page", &message))?;
                }
                _ => {
                    let message = format!("{name:?} is not known here");
                    return Err(Fault::bad_request(message)
                        .hinting("ask for search=TEXT, page=N or key=NAME"));
                }
            }
        }
        Ok(question)
    }

    fn wants(&self, (space, key): &SpacedKey, policies: &policy::PolicySet) -> bool {
        match &self.key {
            Some(name) => match (space, name.strip_prefix("_queue:")) {
                (Space::Queue, Some(queue)) => policy::queue_key(queue) == *key,
                _ => *space.name_of(key) == **name,
            },
            None if self.search.is_empty() => true,
            None => {
                let queue = (*space == Space::Queue).then(|| policy::queue_of(key));
                let queue = queue.flatten().map(|queue| format!("_queue:{queue}"));
                let name = queue.map_or_else(|| space.name_of(key), Cow::Owned);
                let is_covered = |queue: &str| self.finds(queue);
                self.finds(&name) || policies.covered(key).any(is_covered)
            }
        }
    }

    fn finds(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.search)
    }
}

/// The states of one sidecar.
#[derive(Clone, Debug)]
pub(crate) struct States(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    proxy: Proxy,
    facts: SidecarFacts,
    began: Instant,
    since: String,
    places: Arc<Semaphore>,
    made: Mutex<Made>,
}

/// What was made last.
#[derive(Default, Debug)]
struct Made {
    base: Option<Base>,
    /// The answers that were made of it.
    answers: Vec<(StateQuery, Bytes)>,
    events: EventLog,
}

/// What one second's answers are made of.
#[derive(Debug)]
struct Base {
    /// Which second.
    second: u64,
    keys: Vec<SeenKey>,
}

/// A key, and what was seen of it in the last minute.
type SeenKey = (SpacedKey, Point);

/// What is found of the keys on a page beside their rows.
#[derive(Default)]
struct FoundOfKeys {
    /// Those for which some wait, and when the last of these starts, if that can be said.
    ends: HashMap<Box<str>, Option<Timestamp>>,
    /// What keeps their calls from starting: a backend that is away does not.
    of_calls: HashMap<Box<str>, CausePart>,
}

/// The last events, while somebody watches.
#[derive(Default, Debug)]
struct EventLog {
    told: Option<Subscription>,
    missed: u64,
    last: VecDeque<EventRow>,
}

impl States {
    /// Nobody watches yet.
    pub(crate) fn new(proxy: Proxy, facts: SidecarFacts) -> States {
        let since = rfc3339(proxy.sidecar.store.now());
        States(Arc::new(Shared {
            proxy,
            facts,
            began: Instant::now(),
            since,
            places: Arc::new(Semaphore::new(STREAMS)),
            made: Mutex::default(),
        }))
    }

    /// Answers with one state, or with a stream of them.
    pub(crate) async fn answer(&self, parts: &Parts) -> Result<Response<Body>, Fault> {
        let question = StateQuery::read(parts.uri.query().unwrap_or_default())?;
        let accepts = parts.headers.get(header::ACCEPT);
        let is_stream =
            accepts.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        let (body, kind) = match is_stream {
            true => {
                let packer = Packer::new(&parts.headers, headers);
                (self.stream(question, packer)?, "text/event-stream")
            }
            false => {
                let state = self.state(&question).await?;
                (Body::from(state), "application/json")
            }
        };
        ours(&parts.headers, headers);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        *response.body_mut() = body;
        Ok(response)
    }

    /// A stream of states, one a second, until its reader leaves or is too slow.
    fn stream(&self, question: StateQuery, packer: Option<Packer>) -> Result<Body, Fault> {
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        let place = place.map_err(|_| full())?;
        let (out, frames) = mpsc::channel(1);
        let (states, sidecar) = (self.clone(), Arc::clone(&self.0.proxy.sidecar));
        let tasks = Arc::clone(&sidecar);
        let _task = tasks.tasks.spawn(async move {
            tokio::select! {
                () = sidecar.events.closed() => {}
                () = out.closed() => {}
                () = states.send(&question, packer, &out) => {}
            }
            states.leave(place).await;
        });
        Ok(Body::frames(frames))
    }

    async fn send(
        &self,
        question: &StateQuery,
        mut packer: Option<Packer>,
        out: &mpsc::Sender<Bytes>,
    ) {
        // All streams go by the same seconds, so that one state serves all.
        let next = Duration::from_secs(self.0.second() + 1);
        let mut ticks = interval_at(self.0.began + next, EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Ok(state) = self.state(question).await else {
                return;
            };
            let frame = [b"event: state\ndata: ", &*state, b"\n\n"].concat();
            let frame = match &mut packer {
                Some(packer) => packer.part(&frame),
                None => frame.into(),
            };
            if !matches!(timeout(BEHIND, out.send(frame)).await, Ok(Ok(()))) {
                return;
            }
            ticks.tick().await;
        }
    }

    /// A stream has ended. What is kept for those who watch goes with the last one.
    async fn leave(&self, place: OwnedSemaphorePermit) {
        let mut made = self.0.made.lock().await;
        drop(place);
        if self.0.places.available_permits() == STREAMS {
            *made = Made::default();
        }
    }

    async fn state(&self, question: &StateQuery) -> Result<Bytes, Fault> {
        let mut made = self.0.made.lock().await;
        let Made {
            base,
            answers,
            events,
        } = &mut *made;
        let second = self.0.second();
        if base.as_ref().is_none_or(|base| base.second != second) {
            (*base, *answers) = (None, Vec::new());
            let is_watched = self.0.places.available_permits() < STREAMS;
            if is_watched {
                events.follow(&self.0.proxy.sidecar);
            }
        }
        if let Some((_, answer)) = answers.iter().find(|(asked, _)| asked == question) {
            return Ok(answer.clone());
        }
        let sidecar = &self.0.proxy.sidecar;
        let mut now = Snapshot::of(sidecar, SHARED).await;
        let base = base.get_or_insert_with(|| Base {
            second,
            keys: known_keys(sidecar, &now),
        });
        let (mut keys, found) = self.0.keys(&base.keys, &mut now, question).await;
        let why = self.0.why(&now, question, &mut keys).await;
        let queues = self.0.queues(&now, question, &keys, &found);
        let ways = self.0.ways(&now, &keys, &found);
        let state = State {
            at: duration::exactly(now.at.0),
            head: self.0.head(&now),
            keys,
            queues,
            ways,
            why,
            events: &EventsPart {
                missed: events.missed,
                last: events.last.iter().cloned().collect(),
            },
        };
        let answer = serde_json::to_vec(&state).map_err(|_| Fault::internal())?;
        let answer = Bytes::from(answer);
        if answers.len() < ANSWERS {
            answers.push((question.clone(), answer.clone()));
        }
        Ok(answer)
    }
}

/// 503: no more streams than this.
fn full() -> Fault {
    let message = format!("{STREAMS} watch this sidecar already");
    Fault::new("overloaded", message)
        .hinting("close a page that nobody looks at; `ojs-throttle top --once` needs no place")
        .later(Duration::from_secs(5))
}

impl Shared {
    /// Which second it is, since the start.
    fn second(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    /// Answers `why` for the one key that is asked for. Its row shows the same numbers.
    async fn why(
        &self,
        now: &Arc<Snapshot>,
        question: &StateQuery,
        keys: &mut KeysPart,
    ) -> Option<Box<RawValue>> {
        let name = question.key.as_ref()?;
        let answer = Box::pin(why::why_key(&self.proxy, name, Arc::clone(now))).await;
        let whole = Json::parse(answer.as_bytes(), REPLY_DEPTH).ok()?;
        let limits = whole.get_exact("limits")?;
        for row in &mut keys.rows {
            let (kind, own) = match row.name.strip_prefix("_queue:") {
                Some(queue) => ("queue", queue),
                None => ("key", &*row.name),
            };
            let mut states = limits.items().filter_map(|limit| limit.get_exact("state"));
            if let Some(state) = states.find(|state| state.says(kind, own)) {
                let text = answer.get(state.range())?.to_owned();
                row.state = RawValue::from_string(text).ok()?;
            }
        }
        RawValue::from_string(answer).ok()
    }

    fn head(&self, now: &Snapshot) -> StateHead {
        let sidecar = &*self.proxy.sidecar;
        let (live, facts) = (&now.live, &self.facts);
        let file = &sidecar.file;
        StateHead {
            sidecar: SidecarPart {
                name: Arc::clone(&sidecar.fetching.worker_id),
                version: env!("CARGO_PKG_VERSION"),
                since: self.since.clone(),
                ready: match (sidecar.readiness.word(), sidecar.unready()) {
                    ("ready", Some(_)) => "not ready",
                    (word, _) => word,
                },
                listens: Arc::clone(&facts.listens),
                held: now.held.jobs,
                held_max: now.most.jobs,
                writes: live.settings.control_token.is_some(),
            },
            store: StorePart {
                kind: facts.store,
                up: now.store_up,
                siblings: now.siblings,
                errors: now.store_errors,
            },
            backend: BackendPart {
                url: facts.backend.clone(),
                up: now.backend_up,
            },
            config: ConfigPart {
                file: file.path().cloned(),
                in_force: file.is_in_force(),
                since: rfc3339(file.since()),
                policies: live.policies.policies().len(),
                queues: live.policies.queues().len(),
            },
            causes: now.causes.iter().map(CausePart::from).collect(),
            shadow: now.shadow.iter().map(ShadowPart::from).collect(),
        }
    }

    /// The queues that are worth a row, most pressed first, and before them those that are asked for. What holds back a key
    /// holds back the queues that it covers.
    fn queues(
        &self,
        now: &Snapshot,
        question: &StateQuery,
        keys: &KeysPart,
        found: &FoundOfKeys,
    ) -> QueuesPart {
        let sidecar = &*self.proxy.sidecar;
        let most_held = sidecar.most_held();
        let shown = now.queues.iter().filter(|(_, here)| here.is_shown());
        let row = |(queue, here): (&Arc<str>, &QueueNow)| QueueRow {
            cause: None,
            waiting: here.waiting(),
            waiting_done: None,
            paused: here.is_paused,
            held: here.held,
            depth: here.level.as_ref().map(|level| level.depth),
            max_depth: here.level.as_ref().and_then(|level| level.max_depth),
            bounds_over_http: (sidecar.admit.pressure.table().set_for(queue))
                .and_then(|set| RawValue::from_string(set.to_json()).ok()),
            pressure: here.level.as_ref().map(Level::pressure),
            refused: sidecar.metrics.activity().rejected_lately(queue),
            queue: Arc::clone(queue),
        };
        let mut rows: Vec<QueueRow> = shown.map(row).collect();
        let total = rows.len();
        rows.sort_by(|a, b| {
            // Without a bound a queue is as good as full where nothing of it starts, or others behind its jobs do not.
            let pressure = |row: &QueueRow| match row.paused || row.held >= most_held {
                true => f64::INFINITY,
                false => row.pressure.unwrap_or(0.0),
            };
            let most = pressure(b).total_cmp(&pressure(a));
            most.then(b.refused.cmp(&a.refused))
                .then(b.waiting.cmp(&a.waiting))
        });
        if !question.search.is_empty() {
            rows.sort_by_cached_key(|row| !question.finds(&row.queue));
        }
        rows.truncate(ROWS);
        for row in &mut rows {
            let of_keys = of_keys(now, row, keys);
            let causes = why::of_queue(sidecar, now, &row.queue);
            let of_key = of_keys.iter().find_map(|one| one.cause.clone());
            let of_key = of_key.filter(|_| row.waiting > 0);
            // In the order of `why`.
            let first = |which: &dyn Fn(&Cause) -> bool| {
                let found = causes.iter().find(|cause| which(cause));
                found.map(CausePart::from)
            };
            row.cause = first(&|cause| why::stands_before_limits(cause))
                .or(of_key)
                .or_else(|| first(&|cause| !cause.lets_start()))
                .or_else(|| first(&Cause::is_shown));
            let waits = of_keys.iter().filter_map(|one| found.ends.get(&*one.name));
            let waits = waits.filter(|_| row.waiting > 0);
            let last: Option<Vec<Timestamp>> = waits.copied().collect();
            let last = last.and_then(|last| last.into_iter().max());
            row.waiting_done = last.map(rfc3339);
        }
        QueuesPart { total, rows }
    }

    /// The ways out, each with what holds back its key.
    fn ways(&self, now: &Snapshot, keys: &KeysPart, found: &FoundOfKeys) -> Vec<WayRow> {
        let sidecar = &*self.proxy.sidecar;
        let answers: Vec<_> = sidecar.metrics.service_answers().collect();
        let away = sidecar.calling.away();
        let ways = now.live.settings.egress.iter();
        ways.map(|way| {
            let (out, waiting) = sidecar.calling.of_way(&way.name);
            let own = answers
                .iter()
                .filter(|(egress, .., lately)| *egress == way.name && *lately > 0);
            let is_of = |row: &&KeyRow| Key::new(&row.name).is_ok_and(|key| way.key.may_give(&key));
            let mut rows = keys.rows.iter().filter(is_of);
            WayRow {
                name: Arc::clone(&way.name),
                listen: way.listen.to_string(),
                to: way.leads_to(),
                up: !away
                    .iter()
                    .any(|(egress, is_away)| *egress == way.name && *is_away),
                out,
                waiting,
                answers: own
                    .map(|(_, code, _, lately)| (code.clone(), *lately))
                    .collect(),
                key: way.key.as_str().to_owned(),
                cause: rows.find_map(|row| found.of_calls.get(&*row.name).cloned()),
            }
        })
        .collect()
    }

    /// The keys that are asked for, with what the store says of them.
    async fn keys(
        &self,
        all: &[SeenKey],
        now: &mut Arc<Snapshot>,
        question: &StateQuery,
    ) -> (KeysPart, FoundOfKeys) {
        let sidecar = &*self.proxy.sidecar;
        let policies = &now.live.policies;
        let found = all.iter().filter(|(key, _)| question.wants(key, policies));
        let found: Vec<_> = found.collect();
        let mut part = KeysPart {
            total: all.len(),
            found: found.len(),
            page: question.page,
            per_page: ROWS,
            rows: Vec::new(),
            problem: None,
        };
        let shown = on_page(found, question.page);
        let each = shown.iter();
        let keys: Vec<_> = each.map(|((space, key), _)| (*space, key)).collect();
        self.ask_backend(&keys, now).await;
        let facts = KeyFacts::here(sidecar, Arc::clone(now));
        let views = match limits::views(sidecar, &keys, &facts).await {
            Ok(views) => views,
            Err(error) => {
                part.problem = Some(error.to_string());
                return (part, FoundOfKeys::default());
            }
        };
        let waits_for_slot = |view: &LimitView| {
            let refusal = view.refused("", 1);
            refusal.as_ref().is_some_and(Hung::may_keep)
        };
        let rows = match views.iter().flatten().any(waits_for_slot) {
            true => limits::rows_out(sidecar).await.unwrap_or_default(),
            false => Vec::new(),
        };
        let beside = CausesBeside::of_all(sidecar, &keys, &facts).await;
        let mut beside_rows = FoundOfKeys::default();
        for (of, view) in shown.into_iter().zip(views) {
            // An override may have ended since the keys were gathered.
            let Some(view) = view else { continue };
            if view.waiting + view.calls.1 as u64 > 0 {
                let end = view.done.map(|done| done.at);
                beside_rows.ends.insert(view.full_name().into(), end);
            }
            let key = question.key.as_ref();
            let hour = key.and_then(|_| sidecar.metrics.activity().hour(&of.0));
            let one = Applied::of(sidecar, view, ("", &rows)).await;
            let beside = beside.of(sidecar, &of.0, &facts);
            let (cause, of_calls) = causes_of(sidecar, &one, beside, &facts);
            let name = one.view.full_name().into();
            beside_rows
                .of_calls
                .extend(of_calls.map(|cause| (name, cause)));
            part.rows
                .extend(key_row(sidecar, of, one.view, hour, cause));
        }
        (part, beside_rows)
    }

    /// Asks how much waits in the backend for these keys, as far as it is due. An answer that comes late is there for
    /// the next state.
    async fn ask_backend(&self, keys: &[(Space, &Key)], now: &mut Arc<Snapshot>) {
        let queues = keys.iter().flat_map(|(space, key)| match space {
            Space::Job => now.queues_of(key),
            Space::Queue => vec![Arc::from(limits::queue_of(now, key))],
            Space::Policy => Vec::new(),
        });
        let shown = now.queues.iter().filter(|(_, here)| here.is_shown());
        let queues = queues.chain(shown.map(|(queue, _)| Arc::clone(queue)));
        let (proxy, queues) = (self.proxy.clone(), queues.collect::<Vec<_>>());
        let scope = proxy.sidecar.scopes.of(&HeaderMap::new());
        let sidecar = Arc::clone(&proxy.sidecar);
        let asking = async move { waiting::refresh(&proxy, &queues, scope).await };
        let asked = timeout(ASKING, sidecar.tasks.spawn(asking)).await;
        if !matches!(asked, Ok(Ok(false))) {
            *now = Snapshot::of(&sidecar, Duration::ZERO).await;
        }
    }
}

/// What keeps calls from starting beside the limits of their own key, for all keys of a page.
struct CausesBeside(HashMap<Key, Cause>);

impl CausesBeside {
    async fn of_all(sidecar: &Sidecar, keys: &[(Space, &Key)], facts: &KeyFacts) -> CausesBeside {
        let jobs = keys.iter().filter(|(space, _)| *space == Space::Job);
        let beside = jobs.flat_map(|(_, key)| why::keys_beside(sidecar, key, facts));
        let all = why::beside(sidecar, &beside.collect(), facts).await;
        let all = all.unwrap_or_default().into_iter();
        CausesBeside(
            all.filter_map(|one| Some((one.view.limited.key, one.cause?)))
                .collect(),
        )
    }

    fn of(&self, sidecar: &Sidecar, (space, key): &SpacedKey, facts: &KeyFacts) -> Option<Cause> {
        let keys = (*space == Space::Job).then(|| why::keys_beside(sidecar, key, facts))?;
        keys.iter().find_map(|key| self.0.get(key).cloned())
    }
}

/// The keys for which the jobs of a queue wait: its own as a whole, and those of all its jobs; else those of its held jobs,
/// where something holds back each of them and no other job is known.
fn of_keys<'k>(now: &Snapshot, row: &QueueRow, keys: &'k KeysPart) -> Vec<&'k KeyRow> {
    let is_covered = |one: &&KeyRow| {
        let covers = |key: &Key| now.live.policies.covered(key).any(|of| of == &*row.queue);
        one.name.strip_prefix("_queue:") == Some(&row.queue)
            || Key::new(&one.name).is_ok_and(|key| covers(&key))
    };
    let covering: Vec<_> = keys.rows.iter().filter(is_covered).collect();
    if !covering.is_empty() || row.waiting != row.held as u64 {
        return covering;
    }
    let held = now.held.limits_in(&row.queue, ROWS);
    let of_set = |set: &Arc<[Limited]>| {
        let is_own = |of: &Limited, name: &str| match of.space {
            Space::Queue => name.strip_prefix("_queue:") == Some(&row.queue),
            space => *space.name_of(&of.key) == *name,
        };
        let has = |one: &&KeyRow| set.iter().any(|of| is_own(of, &one.name));
        keys.rows.iter().filter(has).find(|one| one.cause.is_some())
    };
    let found: Option<Vec<_>> = held.iter().map(of_set).collect();
    found.unwrap_or_default()
}

/// What keeps the next start of a key back, and what keeps its calls back. `beside`: what holds calls of the key under
/// another one.
fn causes_of(
    sidecar: &Sidecar,
    one: &Applied,
    beside: Option<Cause>,
    facts: &KeyFacts,
) -> (Option<CausePart>, Option<CausePart>) {
    let (all, own) = (&facts.now.causes, one.cause.clone().or(beside));
    let stops_calls = all.iter().find(|cause| cause.kind.stops_calls());
    let of_calls = stops_calls.or(own.as_ref()).map(CausePart::from);
    if limits::is_of_calls(&facts.now.live, &one.view.limited.key) {
        return (of_calls.clone(), of_calls);
    }
    let stops = all.iter().find(|cause| cause.kind.stops_all).cloned();
    let of_queues = || cause_of_queues(sidecar, one, facts);
    let cause = stops.or(own).or_else(of_queues);
    (cause.as_ref().map(CausePart::from), of_calls)
}

/// What keeps the next job of a key from starting beside its limits: all queues in which jobs may wait for it.
fn cause_of_queues(sidecar: &Sidecar, one: &Applied, facts: &KeyFacts) -> Option<Cause> {
    let queues = match one.view.limited.space {
        Space::Job => facts.now.queues_of(&one.view.limited.key),
        Space::Queue => vec![Arc::from(one.view.name.as_str())],
        Space::Policy => Vec::new(),
    };
    let found = why::of_all_queues(sidecar, &facts.now, &queues);
    found.into_iter().next()
}

/// One row, with its last hour if that is asked for and kept, and with what holds it back.
fn key_row(
    sidecar: &Sidecar,
    seen: &SeenKey,
    view: LimitView,
    hour: Option<Vec<Point>>,
    cause: Option<CausePart>,
) -> Option<KeyRow> {
    let (of, minute) = seen;
    let (space, key) = of;
    let recent = sidecar.metrics.activity().recent(of).into_iter();
    let bands = match hour {
        Some(_) => sidecar.metrics.activity().bands(of),
        None => Vec::new(),
    };
    Some(KeyRow {
        recent: recent.map(|point| point.starts).collect(),
        name: view.full_name().into(),
        state: RawValue::from_string(view.to_json()).ok()?,
        policy: view.limited.policy,
        cause,
        minute: MinutePart {
            starts: minute.starts,
            refused: minute.refused,
            waited_ms: minute.waited_ms,
        },
        history: hour.map(|points| HistoryPart {
            step_s: STEP,
            until: rfc3339(sidecar.store.now()),
            starts: points.iter().map(|point| point.starts).collect(),
            refused: points.iter().map(|point| point.refused).collect(),
            closed: (points.iter().enumerate())
                .filter_map(|(nth, point)| point.closed.then_some(nth))
                .collect(),
            run_ms: mean_ms(&sidecar.settle.runs.of(*space, key)),
            groups: (bands.into_iter())
                .map(|Band { group, starts }| BandPart { group, starts })
                .collect(),
        }),
    })
}

/// The mean of run times, in milliseconds.
fn mean_ms(runs: &[Duration]) -> Option<u64> {
    let count = u32::try_from(runs.len()).ok().filter(|count| *count > 0)?;
    let mean = runs.iter().sum::<Duration>() / count;
    u64::try_from(mean.as_millis()).ok()
}

/// Every key that is known here, with what was seen of it in the last minute.
fn known_keys(sidecar: &Sidecar, now: &Arc<Snapshot>) -> Vec<SeenKey> {
    let mut seen = sidecar.metrics.activity().minutes();
    let facts = KeyFacts::here(sidecar, Arc::clone(now));
    let jobs = limits::known_keys(sidecar, &facts).into_iter();
    let of_file = now.live.policies.queues().iter();
    let plain = of_file.filter(|queue| !queue.name.is_glob());
    let queues = plain.map(|queue| policy::queue_key(queue.name.as_str()));
    let set = |space| sidecar.store.overrides().keys(space, sidecar.store.now());
    let queues = queues.chain(set(Space::Queue));
    let queues = queues.map(|key| (Space::Queue, key));
    let policies = set(Space::Policy).into_iter();
    let policies = policies.map(|key| (Space::Policy, key));
    let jobs = jobs.map(|key| (Space::Job, key));
    for key in jobs.chain(queues).chain(policies) {
        seen.entry(key).or_default();
    }
    seen.into_iter().collect()
}

/// The keys of one page, in their order.
fn on_page(mut found: Vec<&SeenKey>, page: usize) -> Vec<&SeenKey> {
    let first = (page - 1).saturating_mul(ROWS).min(found.len());
    let last = first.saturating_add(ROWS).min(found.len());
    // Of thousands of keys only those that are shown need their order.
    if last < found.len() {
        found.select_nth_unstable_by(last, |a, b| rank(a).cmp(&rank(b)));
        found.truncate(last);
    }
    found.sort_unstable_by(|a, b| rank(a).cmp(&rank(b)));
    found.split_off(first)
}

/// What stands first: most refused, longest waited, most started, name.
fn rank(((space, key), minute): &SeenKey) -> impl Ord {
    let seen = (minute.refused, minute.waited_ms, minute.starts);
    (Reverse(seen), key, *space)
}

impl EventLog {
    /// Takes in what was told since the last look.
    fn follow(&mut self, sidecar: &Sidecar) {
        if self.told.is_none() {
            self.told = sidecar.events.subscribe(Filter::default());
        }
        let Some(told) = &mut self.told else { return };
        let (events, lost) = told.take_ready();
        self.missed += lost + events.len().saturating_sub(READ) as u64;
        for event in events.iter().rev().take(READ).rev() {
            let next = EventRow::read(event.envelope());
            let alike = self.last.iter().position(|row| row.is_like(&next));
            let alike = alike.and_then(|place| self.last.remove(place));
            self.last.push_front(EventRow {
                times: alike.map_or(0, |row| row.times) + 1,
                ..next
            });
        }
        self.last.truncate(EVENTS);
    }
}

impl EventRow {
    /// Whether another event is told in the same row.
    fn is_like(&self, other: &EventRow) -> bool {
        (&self.r#type, &self.strategy, self.about())
            == (&other.r#type, &other.strategy, other.about())
    }

    /// What its row is about.
    fn about(&self) -> &str {
        let of = self.key.as_ref().or(self.queue.as_ref());
        of.unwrap_or(&self.subject)
    }

    fn read(envelope: &[u8]) -> EventRow {
        let whole: Value = serde_json::from_slice(envelope).unwrap_or_default();
        let text = |place: &str| whole.pointer(place)?.as_str().map(str::to_owned);
        EventRow {
            time: text("/time").unwrap_or_default(),
            times: 0,
            r#type: text("/type").unwrap_or_default(),
            subject: text("/subject").unwrap_or_default(),
            queue: text("/queue"),
            job: text("/job_id"),
            key: text("/data/key"),
            strategy: text("/data/strategy"),
        }
    }
}
