//! Inspection: `GET /ojs/v1/rate-limits` and `…/{key}` (rate-limiting text, sections 10.1 and 10.3).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::{HeaderMap, Response};
use parking_lot::Mutex;

use super::policies;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::desk::guard::{not_allowed, reads};
use crate::desk::settings;
use crate::desk::snapshot::{SHARED, Snapshot};
use crate::desk::{Live, Proxy, Sidecar};
use crate::inquiry::done::Done;
use crate::inquiry::in_force::{set_for_queue, with_set};
use crate::inquiry::shape::{self, LimitView};
use crate::inquiry::waiting;
use crate::jobs::siblings;
use crate::limit::{Cost, Key, KeyState, Limited, Limits, OnLimit, Rate, Space, Timestamp};
use crate::policy::{self, Policy, Template, strictest};
use crate::store::{KeyStates, LedgerExt, Override, Row, RowsOf, StoreError, Usage};

/// So many rows of jobs that run are looked at for one answer.
const ROWS: usize = 2_048;

/// So many keys of a policy are looked at for one answer.
const KEYS_OF_POLICY: usize = 1_000;

/// What one answer goes by.
pub(crate) struct KeyFacts {
    pub(crate) now: Arc<Snapshot>,
    /// What is out with workers; of a sidecar that is alone, nothing.
    pub(crate) rows: Vec<Row>,
    /// With whose credentials the backend is asked.
    pub(crate) scope: u64,
    /// How many jobs siblings hold of queues that were asked about.
    elsewhere: Mutex<HashMap<Arc<str>, u64>>,
}

impl KeyFacts {
    /// Those of an answer, with nothing asked yet.
    pub(crate) fn new(now: Arc<Snapshot>, rows: Vec<Row>, scope: u64) -> KeyFacts {
        KeyFacts {
            now,
            rows,
            scope,
            elsewhere: Mutex::default(),
        }
    }

    /// Goes by what is known here alone: no rows are asked for.
    pub(crate) fn here(sidecar: &Sidecar, now: Arc<Snapshot>) -> KeyFacts {
        KeyFacts::new(now, Vec::new(), sidecar.scopes.of(&HeaderMap::new()))
    }

    /// How many jobs of a queue siblings hold. The store is asked once: many keys may wait in one queue.
    pub(super) async fn elsewhere(&self, sidecar: &Sidecar, queue: &str) -> u64 {
        let known = self.elsewhere.lock().get(queue).copied();
        if let Some(known) = known {
            return known;
        }
        let held = siblings::held_by_siblings(sidecar, queue).await as u64;
        self.elsewhere.lock().insert(queue.into(), held);
        held
    }

    /// Asks the backend about these queues, and about those in which jobs may wait for these keys.
    pub(crate) async fn refresh<'a>(
        &mut self,
        proxy: &Proxy,
        queue: Option<&str>,
        keys: impl Iterator<Item = &'a Key>,
    ) {
        let held = |key| self.now.held_in(key).cloned();
        let of_keys = keys.flat_map(|key| self.now.queues_of(key).into_iter().chain(held(key)));
        let queues: Vec<_> = queue.map(Arc::from).into_iter().chain(of_keys).collect();
        if waiting::refresh(proxy, &queues, self.scope).await {
            self.now = Snapshot::of(&proxy.sidecar, Duration::ZERO).await;
        }
    }

    /// The policy that names a key, where one is known.
    pub(super) fn policy_of(&self, sidecar: &Sidecar, key: &Key) -> Arc<str> {
        let live = &self.now.live;
        let named = || {
            let numbers = sidecar.control.named.get(key)?;
            let of_key = numbers.file.iter().filter(|one| one.key == *key);
            let mut all = [&numbers.policy]
                .into_iter()
                .chain(of_key.map(|one| &one.policy));
            all.find(|name| policies::has(live, name, key)).cloned()
        };
        let policies = &live.policies;
        policies.named_by(key).or_else(named).unwrap_or_default()
    }

    /// What a start of a key costs, by the policy that has it.
    fn cost_of(&self, name: &Arc<str>) -> Cost {
        let mut policies = self.now.live.policies.policies().iter();
        let policy = policies.find(|policy| policy.name == *name);
        policy.map_or(Cost::ONE, |policy| policy.prices.cost())
    }

    /// 404 for a key that nothing has named.
    pub(crate) fn lacks(&self, key: &Key) -> Fault {
        let Some(template) = misnamed(&self.now.live, key) else {
            let mut fault = match self.now.live.settings.calls_only() {
                true => unknown_key_of_calls(key),
                false => unknown_key(key.as_str()),
            };
            if self.now.siblings > 0 {
                fault.message +=
                    "; a sibling may know it: each sidecar answers for what it has seen itself";
            }
            return fault;
        };
        let (message, hint) = policy_and_no_key(&self.now.live, key, template);
        Fault::new("not_found", message).hinting(hint)
    }

    /// The limits of the rows of others.
    fn of_others(&self) -> impl Iterator<Item = &Limited> {
        let others = self.rows.iter().filter(|row| !row.ours);
        let limited = others.flat_map(|row| &*row.claimed.limited);
        limited.filter(|one| one.space == Space::Job)
    }
}

/// All numbers that stand for a key, each with its policy: those of the file, of held jobs, and of the job
/// that named it last, as far as the settings in force have them. Where nothing here has named it, those that other
/// sidecars go by. There are none where nothing has.
fn numbers(sidecar: &Sidecar, key: &Key, facts: &KeyFacts) -> Vec<Limited> {
    let is = |one: &Limited| one.space == Space::Job && one.key == *key;
    let of = |policy: &Arc<str>, limits: &Limits| {
        Limited::new(Space::Job, key.clone(), limits.clone(), policy.clone())
    };
    let mut all = Vec::<Limited>::new();
    let live = &facts.now.live;
    let held = facts.now.held.limited_by(Space::Job, key);
    let mut last: Option<&Limited> = None;
    for one in held.flat_map(|group| group.limits.iter().filter(|one| is(one))) {
        // Thousands of groups may have the same.
        let is_same = |last: &Limited| last.limits == one.limits && last.policy == one.policy;
        if !last.is_some_and(is_same) {
            all.extend(policies::in_force(live, one));
        }
        last = Some(one);
    }
    let known = all.len();
    let constants = live.policies.constants(key);
    all.extend(constants.map(|policy| of(&policy.name, &policy.limits)));
    let ways = live.settings.egress.iter();
    let ways = ways.filter(|way| way.key.constant() == Some(key));
    let own = ways.filter_map(|way| Some(of(&way.name, way.own_limits()?)));
    all.extend(own);
    let budget = live.settings.budget_of(key);
    all.extend(budget.map(|budget| of(&budget.name, &budget.limits)));
    let in_file = all.len() > known;
    if let Some(numbers) = sidecar.control.named.get(key) {
        let in_force = |one| policies::in_force(live, one);
        all.push(of(&Arc::from(policy::BROUGHT), &numbers.brought));
        let file = numbers.file.iter().filter(|one| is(one) && !in_file);
        let file = file.filter(|one| *one.policy != *policy::BROUGHT);
        all.extend(file.filter_map(in_force));
        // Several policies may have made it.
        let policies = numbers.all.iter().filter(|one| is(one));
        let policies = policies.filter_map(in_force);
        all.extend(policies.map(|one| of(&one.policy, &Limits::default())));
    }
    if all.iter().all(|one| one.limits == Limits::default()) {
        let others = facts.of_others().filter(|one| is(one));
        all.extend(others.map(|one| of(&one.policy, &one.limits)));
    }
    // What was asked for before brings windows of others.
    let limiting = all.into_iter().map(|one| Limited {
        limits: one.limits.without_counted(),
        ..one
    });
    limiting.collect()
}

/// What is set over HTTP for the policies that limit a key, by their names.
fn set_for_policies(
    sidecar: &Sidecar,
    limited: &Limited,
    facts: &KeyFacts,
) -> BTreeMap<Arc<str>, Arc<Override>> {
    let (overrides, now) = (sidecar.store.overrides(), sidecar.store.now());
    if limited.space == Space::Queue || !overrides.any(Space::Policy) {
        return BTreeMap::new();
    }
    let all = numbers(sidecar, &limited.key, facts).into_iter();
    let policies = all.map(|one| one.policy).chain([limited.policy.clone()]);
    let set =
        policies.filter_map(|policy| Some((policy.clone(), overrides.of_policy(&policy, now)?)));
    set.collect()
}

/// Every key that is known, in order.
pub(crate) fn known_keys(sidecar: &Sidecar, facts: &KeyFacts) -> Vec<Key> {
    let live = &facts.now.live;
    let policies = live.policies.policies();
    let mut keys = sidecar.control.named.keys();
    keys.extend(policies.iter().filter_map(|p| p.key.constant().cloned()));
    let ways = live.settings.egress.iter();
    let ways = ways.filter(|way| !way.limits.is_empty());
    keys.extend(ways.filter_map(|way| way.key.constant().cloned()));
    keys.extend((sidecar.store.overrides()).keys(Space::Job, sidecar.store.now()));
    keys.extend(facts.of_others().map(|one| one.key.clone()));
    keys.sort();
    keys.dedup();
    keys
}

/// The keys of a policy that are known here, in order, and at most so many.
pub(super) fn keys_of(sidecar: &Sidecar, policy: &str, facts: &KeyFacts) -> Vec<Key> {
    let live = &facts.now.live;
    let all = known_keys(sidecar, facts).into_iter();
    let may = all.filter(|key| policies::has(live, policy, key));
    let is_its = |key: &Key| {
        let mut limits = numbers(sidecar, key, facts).into_iter();
        limits.any(|one| *one.policy == *policy)
    };
    may.filter(is_its).take(KEYS_OF_POLICY).collect()
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

/// Refuses the name of a policy whose keys are others, and the key of one that is only tried: what is set for it binds no
/// job, and whoever means to pause something must not take that for done. Any other key may be one of tomorrow's jobs.
pub(crate) fn may_bind(sidecar: &Sidecar, key: &Key) -> Result<(), Fault> {
    let live = sidecar.live();
    let tried = || tried_alone(&live, key).filter(|policy| policy.key.constant().is_some());
    let (message, hint) = if let Some(template) = misnamed(&live, key) {
        policy_and_no_key(&live, key, template)
    } else if let Some(policy) = tried() {
        let message = format!(
            "key {:?} is of policy {:?}, which is only tried (mode = \"shadow\"): nothing that is set for it binds",
            key.as_str(),
            policy.name
        );
        (message, "name a key that limits something")
    } else {
        return Ok(());
    };
    match settings::is_brought(sidecar, &live, key) {
        true => Ok(()),
        false => Err(Fault::field("key", &message).hinting(hint)),
    }
}

/// The policy that is only tried and may give this key, if nothing that counts may.
fn tried_alone<'a>(live: &'a Live, key: &Key) -> Option<&'a Policy> {
    let mut tried = live.policies.shadow()?.policies().iter();
    let policy = tried.find(|policy| policy.key.may_give(key))?;
    (!live.may_give(key)).then_some(policy)
}

/// Whether calls alone may have this key: nothing of the backend keeps them from starting.
pub(super) fn is_of_calls(live: &Live, key: &Key) -> bool {
    let mut policies = live.policies.policies().iter();
    live.may_give(key) && !policies.any(|policy| policy.key.may_give(key))
}

/// What makes the keys of the policy, `[[egress]]` or budget by this name, where no job and no call can have the name
/// itself as its key.
fn misnamed<'a>(live: &'a Live, name: &Key) -> Option<&'a Template> {
    let mut named = live.templates().filter(|(of, _)| *of == name.as_str());
    let (_, template) = named.next().filter(|_| !live.may_give(name))?;
    Some(template)
}

/// What is said of a key that is a name in the file, and what to do.
fn policy_and_no_key(live: &Live, key: &Key, template: &Template) -> (String, &'static str) {
    let (key, template_text) = (key.as_str(), template.as_str());
    let message = format!(
        "{key:?} is the name of a policy, an [[egress]] or a budget and no key: its key is {template_text:?}"
    );
    let hint = match template.constant() {
        Some(_) => "name the policy's key",
        None if live.settings.calls_only() => {
            "name one of the keys that it makes (`ojs-throttle top` shows those that are known), or all of them by --policy NAME, which is the key _policy:NAME on the admin port"
        }
        None => {
            "name one of the keys that it makes (GET /ojs/v1/rate-limits lists those in use), or all of them by --policy NAME, which is the key _policy:NAME on the admin port"
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
        views.push(match space {
            Space::Job => key_view(sidecar, key, facts, state, now).await,
            Space::Queue => {
                let queue = queue_of(&facts.now, key);
                queue_view(sidecar, &queue, (state, now), facts).await
            }
            Space::Policy => policy_view(sidecar, key, facts),
        });
    }
    Ok(views)
}

/// The queue that has this key of its own. A long name is known where something else is known of the queue.
pub(super) fn queue_of(now: &Snapshot, key: &Key) -> String {
    let known = || {
        let mut queues = now.queues.keys();
        queues.find(|queue| policy::queue_key(queue) == *key)
    };
    let known = || known().map_or_else(|| key.to_string(), |queue| queue.to_string());
    policy::queue_of(key).unwrap_or_else(known)
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
    let is_known = !numbers.is_empty() || !state.idle(now);
    let had = sidecar.control.named.get(key);
    let had = had.is_some_and(|had| !had.file.is_empty());
    let is_left = had && numbers.iter().all(|one| one.limits == Limits::default());
    let named: Vec<Arc<str>> = numbers.iter().map(|one| Arc::clone(&one.policy)).collect();
    let in_force = numbers.into_iter().map(|one| {
        let with_set = with_set(overrides, &one, sidecar.store.now());
        with_set.unwrap_or(one.limits)
    });
    let set_alone = || set.as_ref().map(|set| set.limits.clone());
    let limits = in_force.reduce(strictest).or_else(set_alone);
    let limits = limits.unwrap_or_default();
    if !is_known && set.is_none() {
        return None;
    }
    let policy = facts.policy_of(sidecar, key);
    let limited = Limited {
        cost: facts.cost_of(&policy),
        ..Limited::new(Space::Job, key.clone(), limits, policy)
    };
    let mut view = view(sidecar, limited, (state, now), facts).await;
    let live = &facts.now.live;
    view.binds = set.is_none() || settings::binds(sidecar, live, key);
    let is_tried = || !settings::is_brought(sidecar, live, key) && tried_alone(live, key).is_some();
    if let Some(budget) = live.settings.budget_of(key) {
        (view.unit, view.currency) = (budget.unit(), budget.currency.clone());
        // What the calls may use that wait is not known here.
        view.done = None;
    }
    view.limited.cost = Cost::ONE;
    // A store that is lost may know more.
    let is_beyond = |set: &Arc<Override>| is_beyond(&set.limits, &view.limited.limits);
    let part = || policies::part_of(live, &view.limited.policy);
    let discards = discards(live, &view.limited, &named);
    view.hint = if discards.is_some() {
        discards
    } else if (is_left || set.is_some()) && is_tried() {
        Some(shape::ONLY_TRIED.into())
    } else if !is_known && view.lost.is_none() {
        Some(shape::ONLY_SET.into())
    } else if is_left {
        Some(shape::POLICY_LEFT.into())
    } else if view.set.as_ref().is_some_and(is_beyond) {
        Some(shape::POLICY_IS_STRICTER.into())
    } else {
        view.set.as_ref().and_then(|_| part()).map(Cow::Owned)
    };
    Some(view)
}

/// A key as it is shown under these limits, in which what is set over HTTP is laid over the rest.
pub(crate) async fn view(
    sidecar: &Sidecar,
    limited: Limited,
    (state, now): (KeyState, Timestamp),
    facts: &KeyFacts,
) -> LimitView {
    let (here, key) = (&facts.now, &limited.key);
    let covered: BTreeSet<&str> = here.live.policies.covered(key).collect();
    let held: BTreeSet<&str> = here.held_in(key).map(|queue| &**queue).collect();
    let queues = || held.union(&covered);
    let mut waiting = WaitingNow {
        jobs: here.waiting_for(key),
        calls: sidecar.calling.of_key(key),
        // Those of a paused queue wait for more than this limit.
        are_all: here.counts_all_of(key) && !queues().any(|queue| here.queue(queue).is_paused),
    };
    if here.siblings > 0 && waiting.all() > 0 {
        // How many calls wait at siblings is not known, and of jobs it is known by queue.
        waiting.are_all &= waiting.calls.1 == 0;
        for queue in queues() {
            let elsewhere = facts.elsewhere(sidecar, queue).await;
            match covered.contains(queue) {
                true => waiting.jobs += elsewhere,
                false => waiting.are_all &= elsewhere == 0,
            }
        }
    }
    shown(sidecar, limited, state, now, waiting, facts).await
}

/// What waits for a limit.
struct WaitingNow {
    jobs: u64,
    /// Calls that are out, and those that wait here.
    calls: (usize, usize),
    /// Whether no others wait.
    are_all: bool,
}

impl WaitingNow {
    fn all(&self) -> u64 {
        self.jobs + self.calls.1 as u64
    }
}

/// Limits as they are shown, and what waits for them.
async fn shown(
    sidecar: &Sidecar,
    limited: Limited,
    state: KeyState,
    now: Timestamp,
    waiting: WaitingNow,
    facts: &KeyFacts,
) -> LimitView {
    let all = Some(waiting.all()).filter(|_| waiting.are_all);
    let place = (limited.space, limited.key.clone());
    LimitView {
        done: all.and_then(|all| done(sidecar, &limited, &state, all, now)),
        growth: all.and_then(|all| sidecar.metrics.activity().waits(&place, all)),
        lost: free_slots(sidecar, &limited).await,
        name: limited.key.as_str().to_owned(),
        usage: Usage::of(&state, &limited.limits, now).unwrap_or_default(),
        unit: shape::unit(&limited.cost),
        currency: None,
        state,
        waiting: waiting.jobs,
        calls: waiting.calls,
        set: (sidecar.store.overrides()).get(limited.space, &limited.key, now),
        of_policies: set_for_policies(sidecar, &limited, facts),
        hint: None,
        binds: true,
        now,
        at: facts.now.at,
        limited,
    }
}

/// That a pause of this has jobs discarded, where a policy of the file does that with what may not start. `named`: the
/// policies that are known to limit the key, if some are.
fn discards(live: &Live, limited: &Limited, named: &[Arc<str>]) -> Option<Cow<'static, str>> {
    if limited.limits.concurrency != Some(0) {
        return None;
    }
    let mut policies = live.policies.policies().iter();
    let is_discarded = policies.any(|policy| {
        let is_of_it = match limited.space {
            Space::Job if named.is_empty() => policy.key.may_give(&limited.key),
            Space::Job => named.contains(&policy.name),
            Space::Policy => *policy.name == *limited.key.as_str(),
            Space::Queue => false,
        };
        is_of_it && policy.on_limit == OnLimit::Drop
    });
    is_discarded.then_some(shape::DISCARDED.into())
}

/// When those that wait will have started. What jobs cost that wait is not known.
fn done(
    sidecar: &Sidecar,
    limited: &Limited,
    state: &KeyState,
    waiting: u64,
    now: Timestamp,
) -> Option<Done> {
    let Limited {
        space,
        key,
        limits,
        cost,
        ..
    } = limited;
    // Where there was always room something else decides, such as how many workers ask.
    let decides = || {
        let activity = sidecar.metrics.activity();
        let lately = activity.refused_lately(&(*space, key.clone()));
        lately || state.ask(limits, 1, now).is_err()
    };
    if waiting == 0 || cost.rule.is_some() || !decides() {
        return None;
    }
    let runs = &sidecar.settle.runs;
    if limits
        .concurrency
        .is_some_and(|most| most <= state.active())
        && runs.are_overdue(*space, key, now)
    {
        return None;
    }
    let runs = runs.of(*space, key);
    let waiting = waiting.saturating_mul(cost.pays.get().into());
    Done::of(state, limits, waiting, &runs, now)
}

/// What is shown of a queue's limits: the strictest of the file's and those set over HTTP. `None`:
/// it has none.
pub(crate) async fn queue_state(
    proxy: &Proxy,
    parts: &Parts,
    queue: &str,
) -> Result<Option<LimitView>, Fault> {
    let (sidecar, key) = (&proxy.sidecar, policy::queue_key(queue));
    let now = Snapshot::of(sidecar, SHARED).await;
    let mut facts = KeyFacts::new(now, Vec::new(), sidecar.scopes.of(&parts.headers));
    facts.refresh(proxy, Some(queue), iter::empty()).await;
    let KeyStates { states, now } = sidecar.store.states(&[(Space::Queue, &key)]).await?;
    let state = states.into_iter().next().unwrap_or_default();
    Ok(queue_view(sidecar, queue, (state, now), &facts).await)
}

/// The limits of a queue that the store knows so, with what waits here, at siblings and in the backend.
pub(crate) async fn queue_view(
    sidecar: &Sidecar,
    queue: &str,
    (state, now): (KeyState, Timestamp),
    facts: &KeyFacts,
) -> Option<LimitView> {
    let set = set_for_queue(sidecar, queue);
    let policies = &facts.now.live.policies;
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
    let here = facts.now.queue(queue);
    let is_known = here.is_shown() || !state.is_unused(now);
    let hint = match in_vain {
        true => Some(shape::FILE_IS_STRICTER),
        false if !is_known && limited.limits.concurrency == Some(0) => Some(shape::UNKNOWN_QUEUE),
        false => None,
    };
    let waiting = WaitingNow {
        jobs: here.waiting() + facts.elsewhere(sidecar, queue).await,
        calls: (0, 0),
        are_all: here.tells_all() && !here.is_paused,
    };
    let mut view = LimitView {
        name: queue.to_owned(),
        hint: hint.map(Cow::Borrowed),
        ..shown(sidecar, limited, state, now, waiting, facts).await
    };
    view.limited.cost = Cost::ONE;
    Some(view)
}

/// What is set for all keys of a policy, laid over what the file says; `None`: it has no such policy, and nothing is
/// set. What is set for one that the file lost binds nothing, and stays until somebody takes it away, or it ends.
pub(crate) fn policy_view(sidecar: &Sidecar, name: &Key, facts: &KeyFacts) -> Option<LimitView> {
    let (live, now) = (&facts.now.live, sidecar.store.now());
    let set = sidecar.store.overrides().of_policy(name.as_str(), now);
    let file = policies::numbers(live, name.as_str());
    if file.is_none() && set.is_none() {
        return None;
    }
    let limits = file.map(|limits| match &set {
        Some(set) => set.over(limits),
        None => limits.clone(),
    });
    let limits = limits.unwrap_or_default();
    let limited = Limited::new(Space::Policy, name.clone(), limits, name.as_str().into());
    let budget = live.settings.budget_named(name.as_str());
    let state = KeyState::default();
    Some(LimitView {
        name: name.as_str().to_owned(),
        usage: Usage::of(&state, &limited.limits, now).unwrap_or_default(),
        unit: budget.map_or("starts", |budget| budget.unit()),
        currency: budget.and_then(|budget| budget.currency.clone()),
        waiting: facts.now.held.waiting(|one| *one.policy == *name.as_str()) as u64,
        hint: match file {
            Some(_) => {
                let part = || policies::part_of(live, name.as_str()).map(Cow::Owned);
                discards(live, &limited, &[]).or_else(part)
            }
            None => Some(shape::NO_POLICY.into()),
        },
        binds: file.is_some(),
        limited,
        at: facts.now.at,
        of_policies: BTreeMap::new(),
        calls: (0, 0),
        done: None,
        growth: None,
        lost: None,
        state,
        set,
        now,
    })
}

/// Whether something of what was set is looser than what stands.
fn is_beyond(set: &Limits, stands: &Limits) -> bool {
    let slots = set.concurrency.is_some() && set.concurrency != stands.concurrency;
    let spaced = set.throttle.is_some() && set.throttle != stands.throttle;
    // Of several rates of one window that were set, the strictest stands.
    let least = |rates: &[Rate], like: &Rate| {
        let same = rates.iter().filter(|rate| rate.is_like(like));
        same.map(|rate| rate.limit).min()
    };
    let is_less = |rate: &Rate| least(&stands.rates, rate) < least(&set.rates, rate);
    slots || spaced || set.rates.iter().any(is_less)
}

/// The rows of jobs that run. Those that run through others do not wait.
pub(crate) async fn rows_out(sidecar: &Sidecar) -> Result<Vec<Row>, StoreError> {
    let rows = sidecar.store.rows(RowsOf::Out { max: ROWS }).await?;
    let others = rows.iter().filter(|row| !row.ours);
    (sidecar.control.named).left(others.map(|row| &*row.claimed.job));
    Ok(rows)
}

pub(crate) async fn known_of_keys(proxy: &Proxy, parts: &Parts) -> Result<KeyFacts, StoreError> {
    let sidecar = &proxy.sidecar;
    let rows = match sidecar.store.is_alone() {
        true => Vec::new(),
        false => rows_out(sidecar).await?,
    };
    let now = Snapshot::of(sidecar, SHARED).await;
    Ok(KeyFacts::new(now, rows, sidecar.scopes.of(&parts.headers)))
}

/// A key as it is shown; `None`: nothing has named it, and nothing of it is used.
pub(crate) async fn key_state(
    proxy: &Proxy,
    facts: &mut KeyFacts,
    key: &Key,
) -> Result<Option<LimitView>, StoreError> {
    facts.refresh(proxy, None, iter::once(key)).await;
    let views = views(&proxy.sidecar, &[(Space::Job, key)], facts).await?;
    Ok(views.into_iter().flatten().next())
}

/// Answers inspection of one key.
pub(crate) async fn inspect(proxy: &Proxy, parts: &Parts, key: &str) -> Result<String, Fault> {
    let key = Key::new(key).map_err(|_| unknown_key(key))?;
    let mut facts = known_of_keys(proxy, parts).await?;
    let state = key_state(proxy, &mut facts, &key).await?;
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
    let mut facts = known_of_keys(proxy, parts).await?;
    let keys = known_keys(sidecar, &facts);
    let shown = keys.iter().skip((page - 1).saturating_mul(per_page));
    let shown: Vec<Key> = shown.take(per_page).cloned().collect();
    facts.refresh(proxy, None, shown.iter()).await;
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

/// 404 for a key that is not known where there are no jobs.
fn unknown_key_of_calls(key: &Key) -> Fault {
    let message = format!(
        "no call has named the key {:?} yet, no [[egress]] has it as it stands, no override is set for it, and nothing of it is used",
        key.as_str()
    );
    Fault::new("not_found", message).hinting(
        "a key with values of calls is known once a call with it has come; `ojs-throttle top` shows those that are known",
    )
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
