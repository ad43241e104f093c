//! Inspection: `GET /ojs/v1/rate-limits` and `…/{key}` (rate-limiting text, sections 10.1 and 10.3).

use std::sync::Arc;

use http::Response;
use http::request::Parts;

use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::desk::guard::{not_allowed, reads};
use crate::desk::named::Waiting;
use crate::desk::{Proxy, Sidecar};
use crate::inquiry::in_force::set_for_queue;
use crate::inquiry::shape::{self, LimitView};
use crate::inquiry::waiting;
use crate::jobs::siblings;
use crate::limit::{Cost, Key, KeyState, Limited, Limits, Rate, Space, Timestamp};
use crate::policy::{self, PolicySet, Template, strictest};
use crate::store::{KeyStates, LedgerExt, Row, RowsOf, StoreError, Usage};

/// So many rows of jobs that run are looked at for one answer.
const ROWS: usize = 2_048;

/// What one answer goes by.
pub(crate) struct KeyFacts {
    policies: Arc<PolicySet>,
    /// What is out with workers; of a sidecar that is alone, nothing.
    pub(crate) rows: Vec<Row>,
    /// How many single jobs are known to wait in the backend.
    pending: Waiting,
    /// With whose credentials the backend is asked.
    scope: u64,
}

impl KeyFacts {
    /// Goes by what is known here alone: the store is not asked.
    pub(crate) fn here(sidecar: &Sidecar) -> KeyFacts {
        KeyFacts {
            policies: Arc::clone(&sidecar.live().policies),
            rows: Vec::new(),
            pending: sidecar.control.named.pending(),
            scope: sidecar.scopes.of(&http::HeaderMap::new()),
        }
    }

    /// Asks the backend about the queues in which jobs may wait for these keys.
    pub(crate) async fn refresh(&self, proxy: &Proxy, keys: &[Key]) {
        let queues = keys.iter().flat_map(|key| self.queues_of(key));
        waiting::refresh(proxy, &queues.collect::<Vec<_>>(), self.scope).await;
    }

    /// The queues of the backend in which jobs may wait for a key.
    pub(crate) fn queues_of(&self, key: &Key) -> Vec<Arc<str>> {
        waiting::queues_of(key, &self.policies, &self.pending)
    }

    /// The policy that names a key, where one is known.
    pub(super) fn policy_of(&self, sidecar: &Sidecar, key: &Key) -> Arc<str> {
        let named = || sidecar.control.named.get(key).map(|numbers| numbers.policy);
        (self.policies.named_by(key).or_else(named)).unwrap_or_default()
    }

    /// What a start of a key costs, by the policy that has it.
    fn cost_of(&self, name: &Arc<str>) -> Cost {
        let mut policies = self.policies.policies().iter();
        let policy = policies.find(|policy| policy.name == *name);
        policy.map_or(Cost::ONE, |policy| policy.prices.cost())
    }

    /// 404 for a key that nothing has named.
    pub(crate) fn lacks(&self, key: &Key) -> Fault {
        let Some(template) = self.policies.misnamed(key) else {
            return unknown_key(key.as_str());
        };
        let (message, hint) = policy_and_no_key(key, template);
        Fault::new("not_found", message).hinting(hint)
    }

    /// The limits of the rows of others.
    fn of_others(&self) -> impl Iterator<Item = &Limited> {
        let others = self.rows.iter().filter(|row| !row.ours);
        let limited = others.flat_map(|row| &*row.claimed.limited);
        limited.filter(|one| one.space == Space::Job)
    }
}

/// The strictest of all numbers that stand for a key: those of the file, of held jobs, and of the job
/// that named it last. Where nothing here has named it, those that other sidecars go by. `None`: nothing
/// has.
fn numbers(sidecar: &Sidecar, key: &Key, facts: &KeyFacts) -> Option<Limits> {
    let is = |one: &Limited| one.space == Space::Job && one.key == *key;
    let mut all = sidecar.hold.limits_of(is);
    let known = all.len();
    all.extend(facts.policies.constants(key).cloned());
    let live = sidecar.live();
    let ways = live.settings.egress.iter();
    let ways = ways.filter(|way| way.key.constant() == Some(key));
    // Its own; others are those of policies.
    let own = ways.filter_map(|way| way.limits.iter().find(|of| of.0 == way.name));
    all.extend(own.map(|(_, limits, _)| limits.clone()));
    let in_file = all.len() > known;
    if let Some(numbers) = sidecar.control.named.get(key) {
        all.push(numbers.brought);
        // What the file says now is newer.
        all.extend((!in_file).then_some(numbers.file));
    }
    if all.iter().all(|limits| *limits == Limits::default()) {
        let others = facts.of_others().filter(|one| is(one));
        all.extend(others.map(|one| one.limits.clone()));
    }
    all.into_iter().reduce(strictest)
}

/// Every key that is known, in order.
fn known_keys(sidecar: &Sidecar, facts: &KeyFacts) -> Vec<Key> {
    let policies = facts.policies.policies();
    let mut keys = sidecar.control.named.keys();
    keys.extend(policies.iter().filter_map(|p| p.key.constant().cloned()));
    let live = sidecar.live();
    let ways = live
        .settings
        .egress
        .iter()
        .filter(|way| !way.limits.is_empty());
    keys.extend(ways.filter_map(|way| way.key.constant().cloned()));
    keys.extend(sidecar.store.overrides().job_keys(sidecar.store.now()));
    keys.extend(facts.of_others().map(|one| one.key.clone()));
    keys.sort();
    keys.dedup();
    keys
}

/// While the store is lost: how many more slots this sidecar has for a key. The policy says what happens then.
pub(super) async fn free_slots(sidecar: &Sidecar, limited: &Limited) -> Option<u32> {
    if !sidecar.store.is_lost() {
        return None;
    }
    let slots = Limited {
        limits: Limits {
            concurrency: limited.limits.concurrency,
            ..Limits::default()
        },
        ..limited.clone()
    };
    let room = sidecar.store.room(&[slots]).await;
    // Closed, there is none.
    Some(room.map_or(0, |room| room.starts))
}

/// Refuses the name of a policy whose keys are others: what is set for it binds no job, and whoever means to
/// pause something must not take that for done. Any other key may be one of tomorrow's jobs.
pub(crate) async fn may_bind(sidecar: &Sidecar, key: &Key) -> Result<(), Fault> {
    let policies = Arc::clone(&sidecar.live().policies);
    let Some(template) = policies.misnamed(key) else {
        return Ok(());
    };
    // Jobs may have brought it all the same.
    let is_set = sidecar
        .store
        .overrides()
        .get(Space::Job, key, sidecar.store.now());
    if sidecar.control.named.get(key).is_some() || is_set.is_some() {
        return Ok(());
    }
    let any = Limits::default();
    if (sidecar.store.usage(Space::Job, key, &any).await?).is_some() {
        return Ok(());
    }
    let (message, hint) = policy_and_no_key(key, template);
    Err(Fault::field("key", &message).hinting(hint))
}

/// What is said of a key that is a policy's name, and what to do.
fn policy_and_no_key(key: &Key, template: &Template) -> (String, &'static str) {
    let (key, template_text) = (key.as_str(), template.as_str());
    let message = format!(
        "{key:?} is the name of a policy and no key: the policy's key is {template_text:?}"
    );
    let hint = match template.constant() {
        Some(_) => "name the policy's key",
        None => {
            "name one of the keys that it makes (GET /ojs/v1/rate-limits lists those in use); all of them are paused by concurrency = 0 of the policy in the file"
        }
    };
    (message, hint)
}

/// Keys as they are shown, in their order; `None`: nothing has named it, and nothing of it is used. The store is asked
/// once for all.
pub(super) async fn views(
    sidecar: &Sidecar,
    keys: &[(Space, &Key)],
    facts: &KeyFacts,
) -> Result<Vec<Option<LimitView>>, StoreError> {
    let KeyStates { states, now } = sidecar.store.states(keys).await?;
    let mut views = Vec::new();
    for ((space, key), state) in keys.iter().zip(states) {
        // Each looks at all that is held.
        tokio::task::yield_now().await;
        views.push(match space {
            Space::Job => key_view(sidecar, key, facts, state, now).await,
            // Its name is its key but for letters that no key has.
            Space::Queue => queue_view(sidecar, key.as_str(), state, now).await,
        });
    }
    Ok(views)
}

/// A key that the store knows so.
async fn key_view(
    sidecar: &Sidecar,
    key: &Key,
    facts: &KeyFacts,
    state: KeyState,
    now: Timestamp,
) -> Option<LimitView> {
    let overrides = sidecar.store.overrides();
    let set = overrides.get(Space::Job, key, sidecar.store.now());
    let numbers = numbers(sidecar, key, facts);
    let is_named = numbers.is_some();
    let numbers = numbers.unwrap_or_default();
    let limits = match &set {
        Some(set) => set.over(&numbers),
        None => numbers,
    };
    let is_known = is_named || !state.idle(now);
    if !is_known && set.is_none() {
        return None;
    }
    let policy = facts.policy_of(sidecar, key);
    let limited = Limited {
        cost: facts.cost_of(&policy),
        ..Limited::new(Space::Job, key.clone(), limits, policy)
    };
    let mut view = view(sidecar, limited, (state, now), facts).await;
    view.limited.cost = Cost::ONE;
    // A store that is lost may know more.
    view.hint = (!is_known && view.lost.is_none()).then_some(shape::ONLY_SET);
    Some(view)
}

/// A job key as it is shown under these limits, in which what is set over HTTP is laid over the rest.
pub(crate) async fn view(
    sidecar: &Sidecar,
    limited: Limited,
    known: (KeyState, Timestamp),
    facts: &KeyFacts,
) -> LimitView {
    let key = &limited.key;
    LimitView {
        waiting: waiting::of_key(sidecar, key, &facts.policies, &facts.pending),
        calls: sidecar.calling.of_key(key),
        ..alone(sidecar, limited, known).await
    }
}

/// A key or a queue under these limits, as the store knows it, without what waits for it.
async fn alone(
    sidecar: &Sidecar,
    limited: Limited,
    (state, now): (KeyState, Timestamp),
) -> LimitView {
    LimitView {
        lost: free_slots(sidecar, &limited).await,
        name: limited.key.as_str().to_owned(),
        usage: Usage::of(&state, &limited.limits, now).unwrap_or_default(),
        unit: shape::unit(&limited.cost),
        state,
        waiting: 0,
        calls: (0, 0),
        set: (sidecar.store.overrides()).get(limited.space, &limited.key, now),
        hint: None,
        now,
        limited,
    }
}

/// What is shown of a queue's limits: the strictest of the file's and those set over HTTP. `None`:
/// it has none.
pub(crate) async fn queue_state(
    proxy: &Proxy,
    parts: &Parts,
    queue: &str,
) -> Result<Option<LimitView>, Fault> {
    let sidecar = &proxy.sidecar;
    let key = policy::queue_key(queue);
    let KeyStates { states, now } = sidecar.store.states(&[(Space::Queue, &key)]).await?;
    let elsewhere = siblings::held_by_siblings(sidecar, queue).await as u64;
    let scope = sidecar.scopes.of(&parts.headers);
    waiting::refresh(proxy, &[Arc::from(queue)], scope).await;
    let state = states.into_iter().next().unwrap_or_default();
    let view = queue_view(sidecar, queue, state, now).await;
    Ok(view.map(|view| LimitView {
        waiting: view.waiting + elsewhere,
        ..view
    }))
}

/// The limits of a queue that the store knows so, with what waits here and in the backend.
async fn queue_view(
    sidecar: &Sidecar,
    queue: &str,
    state: KeyState,
    now: Timestamp,
) -> Option<LimitView> {
    let set = set_for_queue(sidecar, queue);
    let policies = Arc::clone(&sidecar.live().policies);
    let file = policies.queue_limits(queue).map(|entry| &entry.limits);
    let limits = file.chain(set.as_ref().map(|set| &set.limits));
    let limits = limits.cloned().reduce(strictest)?;
    let mut costs = policies
        .queue_limits(queue)
        .map(|entry| entry.prices.cost());
    let cost = costs.next().unwrap_or_default();
    let in_vain = set
        .as_ref()
        .is_some_and(|set| is_beyond(&set.limits, &limits));
    let limited = Limited {
        cost,
        ..policy::of_queue(queue, limits)
    };
    let mut view = LimitView {
        name: queue.to_owned(),
        waiting: waiting::of_queue(sidecar, queue),
        hint: in_vain.then_some(shape::FILE_IS_STRICTER),
        ..alone(sidecar, limited, (state, now)).await
    };
    view.limited.cost = Cost::ONE;
    Some(view)
}

/// Whether something of what was set is looser than what stands.
fn is_beyond(set: &Limits, stands: &Limits) -> bool {
    let slots = set.concurrency.is_some() && set.concurrency != stands.concurrency;
    let spaced = set.throttle.is_some() && set.throttle != stands.throttle;
    // Of several rates of one window that were set, the strictest stands.
    let least = |rates: &[Rate], like: &Rate| {
        let same = |rate: &&Rate| rate.period == like.period && rate.window == like.window;
        rates.iter().filter(same).map(|rate| rate.limit).min()
    };
    let is_less = |rate: &Rate| least(&stands.rates, rate) < least(&set.rates, rate);
    slots || spaced || set.rates.iter().any(is_less)
}

/// The rows of jobs that run.
pub(super) async fn rows_out(sidecar: &Sidecar) -> Result<Vec<Row>, StoreError> {
    sidecar.store.rows(RowsOf::Out { max: ROWS }).await
}

pub(crate) async fn known_of_keys(proxy: &Proxy, parts: &Parts) -> Result<KeyFacts, StoreError> {
    let sidecar = &proxy.sidecar;
    let rows = match sidecar.store.is_alone() {
        true => Vec::new(),
        false => rows_out(sidecar).await?,
    };
    let others = rows.iter().filter(|row| !row.ours);
    (sidecar.control.named).left(others.map(|row| &*row.claimed.job));
    Ok(KeyFacts {
        policies: Arc::clone(&sidecar.live().policies),
        rows,
        pending: sidecar.control.named.pending(),
        scope: sidecar.scopes.of(&parts.headers),
    })
}

/// A key as it is shown; `None`: nothing has named it, and nothing of it is used.
pub(crate) async fn key_state(
    proxy: &Proxy,
    facts: &KeyFacts,
    key: &Key,
) -> Result<Option<LimitView>, StoreError> {
    facts.refresh(proxy, std::slice::from_ref(key)).await;
    let views = views(&proxy.sidecar, &[(Space::Job, key)], facts).await?;
    Ok(views.into_iter().flatten().next())
}

/// Answers inspection of one key.
pub(crate) async fn inspect(proxy: &Proxy, parts: &Parts, key: &str) -> Result<String, Fault> {
    let key = Key::new(key).map_err(|_| unknown_key(key))?;
    let facts = known_of_keys(proxy, parts).await?;
    let state = key_state(proxy, &facts, &key).await?;
    let state = state.ok_or_else(|| facts.lacks(&key))?;
    Ok(state.to_json())
}

/// Answers the list of all keys, page by page.
pub(crate) async fn list(proxy: &Proxy, parts: &Parts) -> Result<Response<Body>, Fault> {
    if !reads(&parts.method) {
        return Err(not_allowed("GET, HEAD"));
    }
    let (page, per_page) = pages(parts.uri.query().unwrap_or_default())?;
    let sidecar = &proxy.sidecar;
    let facts = known_of_keys(proxy, parts).await?;
    let keys = known_keys(sidecar, &facts);
    let shown = keys.iter().skip((page - 1).saturating_mul(per_page));
    let shown: Vec<Key> = shown.take(per_page).cloned().collect();
    facts.refresh(proxy, &shown).await;
    // An override may have ended since the keys were gathered.
    let spaced: Vec<_> = shown.iter().map(|key| (Space::Job, key)).collect();
    let views = views(sidecar, &spaced, &facts).await?;
    let states: Vec<_> = views.into_iter().flatten().collect();
    let list = shape::list(&states, keys.len(), page, per_page);
    Ok(respond::json(parts, list))
}

/// The page asked for, from 1, and how long pages are.
fn pages(query: &str) -> Result<(usize, usize), Fault> {
    let number = |name: &str, default: usize, most: usize| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, text)) = pairs.rfind(|(asked, _)| *asked == name) else {
            return Ok(default);
        };
        match text.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(Fault::field(
                name,
                &format!("must be a whole number from 1 to {most}, found {text:?}"),
            )),
        }
    };
    Ok((
        number("page", 1, 1_000_000_000)?,
        number("per_page", 20, 100)?,
    ))
}

/// The key by this name, which stands in a path.
pub(crate) fn named(key: &str) -> Result<Key, Fault> {
    Key::new(key).map_err(|bad| match stands_for_queue(key) {
        true => unknown_key(key),
        false => Fault::field("key", &bad.to_string()),
    })
}

/// Whether the name is what metrics and events call the limits of a queue as a whole.
fn stands_for_queue(key: &str) -> bool {
    key.starts_with("_queue:")
}

/// 404 for a name that no key has, or none that is known.
pub(super) fn unknown_key(key: &str) -> Fault {
    const OF_QUEUES: &str = "the limits of a queue as a whole, which headers and metrics call policy \"queue\" and key \"_queue:NAME\", are at /ojs/v1/admin/queues/NAME/rate-limit, and on the admin port at /throttle/v1/keys/_queue:NAME/override";
    if stands_for_queue(key) {
        let message = format!("{key:?} is no rate limit key: it stands for a queue as a whole");
        return Fault::new("not_found", message).hinting(OF_QUEUES);
    }
    let message = format!(
        "no job that was claimed here, or enqueued here with limits of its own, has named the rate limit key {key:?} yet, nor has a call, no policy and no [[egress]] has it as it stands, no override is set for it, and nothing of it is used"
    );
    Fault::new("not_found", message).hinting(match key {
        "queue" => OF_QUEUES,
        _ => {
            "a policy's key is known once a worker has claimed a job with it, one that jobs bring once such a job is enqueued"
        }
    })
}
