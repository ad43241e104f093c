//! Settings of now: those of the file, and those that are made over HTTP. The latter are the bounds of queues and of
//! tenants. They are kept in the store, so that they outlive this process where the store does, and hold at every
//! sidecar that shares it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::answers::respond::Fault;
use crate::bounds::Given;
use crate::desk::{Live, Sidecar, edges};
use crate::limit::{Key, Limits, Space};
use crate::log::cut;
use crate::policy::Accept;
use crate::policy::subqueue::{COUNT, MOST_OF_ALL, Subqueue, SubqueueMark};
use crate::store::{Change, LedgerExt, MAX_SETTINGS, Override};
use crate::wire::ojs::shell_word;

/// Before the name of a queue: its bounds.
pub(crate) const BOUNDS: &str = "bounds:";
/// The longest name, in bytes: stores have it in an index.
const LONGEST_NAME: usize = 1_000;
/// The most queues and tenants that one line names.
const NAMED: usize = 20;
/// Before the name of a queue: jobs of it lie in subqueues.
pub(crate) const SUBQUEUES: &str = "subqueues:";
/// Before the id of a tenant: how many of its jobs may wait.
pub(crate) const TENANT: &str = "tenant:";

/// Goes by the settings that the store knows, if others than before. Cheap when they are the same.
pub(crate) fn follow_settings(sidecar: &Sidecar) {
    let all = sidecar.store.overrides();
    // Held to the end, so that nobody who read before puts older ones in the place of these.
    let mut followed = sidecar.control.followed.lock();
    let edition = all.settings_edition();
    if std::mem::replace(&mut *followed, edition) == edition {
        return;
    }
    let queues: HashMap<Arc<str>, Given> = (all.settings(BOUNDS).into_iter())
        .filter_map(|(queue, text)| Some((Arc::from(queue), Given::of_json(&text)?)))
        .collect();
    let tenants: HashMap<Arc<str>, u64> = (all.settings(TENANT).into_iter())
        .filter_map(|(tenant, text)| Some((Arc::from(tenant), text.parse().ok()?)))
        .collect();
    follow_subqueues(sidecar);
    let pressure = &sidecar.admit.pressure;
    let before = pressure.table().in_place_of_file(None);
    let levels = pressure.set(queues, tenants, edges::now(sidecar));
    edges::tell_edges(sidecar, &levels);
    tell_in_place_of_file(&pressure.table().in_place_of_file(None) - &before);
}

/// Tells that the file says something else of these than was set over HTTP.
pub(crate) fn tell_in_place_of_file(keys: BTreeSet<String>) {
    if let Some((keys, clear)) = named(&keys, "--bounds") {
        tracing::warn!(
            id = %"bound_over_http",
            %keys,
            clear,
            "bounds that were set over HTTP stand in place of the file's"
        );
    }
}

/// Tells once of each file that it says something else of these limits than was set over HTTP, and for which keys what is
/// set binds nothing under it. What is set must be known.
pub(crate) fn tell_limits_in_place_of_file(sidecar: &Sidecar) {
    let (all, live) = (sidecar.store.overrides(), sidecar.live());
    let compared = &sidecar.control.compared;
    if compared.swap(live.edition, Ordering::Relaxed) == live.edition {
        return;
    }
    let (now, none) = (sidecar.store.now(), Limits::default());
    let mut keys = BTreeSet::new();
    for (name, key, limits) in live.limits().filter(|(.., limits)| **limits != none) {
        let hides = |set: Arc<Override>| set.over(limits) != *limits;
        if all.of_policy(name, now).is_some_and(hides) {
            keys.insert(format!("_policy:{name}"));
        }
        let key = key.constant();
        let key = key.filter(|key| all.get(Space::Job, key, now).is_some_and(hides));
        keys.extend(key.map(Key::to_string));
    }
    if let Some((keys, clear)) = named(&keys, "--override") {
        tracing::warn!(
            id = %"limit_over_http",
            %keys,
            clear,
            "limits that were set over HTTP stand in place of the file's"
        );
    }
    let set = all.keys(Space::Job, now).into_iter();
    let unbound = set.filter(|key| !binds(sidecar, &live, key));
    tell_bind_nothing(sidecar, &unbound.map(|key| key.to_string()).collect());
}

/// Whether what is set for a key binds something: the file may give it to a job or a call, or jobs bring it.
pub(crate) fn binds(sidecar: &Sidecar, live: &Live, key: &Key) -> bool {
    live.may_give(key) || is_brought(sidecar, live, key)
}

/// Whether a job has brought a key itself, and the settings let it.
pub(crate) fn is_brought(sidecar: &Sidecar, live: &Live, key: &Key) -> bool {
    live.policies.accept() != Accept::Ignore && sidecar.control.named.is_brought(key)
}

/// Tells that what is set by hand for these binds nothing. Who paused a key must hear that its jobs start.
fn tell_bind_nothing(sidecar: &Sidecar, keys: &BTreeSet<String>) {
    if let Some((keys, clear)) = named(keys, "--override") {
        // A sibling may have what gives them.
        let clear = (sidecar.store.siblings() == 0).then_some(clear);
        tracing::warn!(
            id = %"overrides_bind_nothing",
            %keys,
            clear,
            "what was set by hand for these keys and policies binds nothing here now: nothing that the file enforces has them"
        );
    }
}

/// Keys as one line names them, and what takes away `only` this of the first; `None`: there are none.
fn named(keys: &BTreeSet<String>, only: &str) -> Option<(String, String)> {
    let clear = format!("`ojs-throttle clear {} {only}`", shell_word(keys.first()?));
    let more = if keys.len() > NAMED { ", …" } else { "" };
    let named: Vec<_> = keys.iter().take(NAMED).map(|key| cut(key)).collect();
    Some((format!("{}{more}", named.join(", ")), clear))
}

/// Goes by the queues that the store and the file say have subqueues. Where names cost, the file has no say: of none that
/// was ever written is anything read.
pub(crate) fn follow_subqueues(sidecar: &Sidecar) {
    let live = sidecar.live();
    let file = live.policies.subqueues().iter();
    let file = file.map(|(queue, spread)| (&**queue, *spread));
    let file = file.filter(|_| !sidecar.backend.names_cost());
    for queue in sidecar.subqueues.follow(marks(sidecar), file) {
        tracing::warn!(
            id = %"subqueues_differ",
            queue = &*queue,
            "the store has another number of subqueues for this queue than the file, or another salt: its jobs stay in \
             the queue itself"
        );
    }
}

/// The queues that the store knows to have subqueues.
fn marks(sidecar: &Sidecar) -> impl Iterator<Item = (Arc<str>, SubqueueMark)> {
    let marked = sidecar.store.overrides().settings(SUBQUEUES).into_iter();
    marked.map(|(queue, text)| (Arc::from(queue), SubqueueMark::read(&text)))
}

/// Marks in the store that jobs of a queue go to subqueues as the file says, so that every sidecar reads them. `false`: the
/// store did not hear of it, or that is not to be: siblings write otherwise, or there are too many names.
pub(crate) async fn mark_spread(sidecar: &Sidecar, queue: &str) -> bool {
    let subqueues = &sidecar.subqueues;
    if sidecar.store.siblings() > 0 && !subqueues.is_undisputed(queue) {
        return false;
    }
    let most = subqueues.count(queue);
    let (own, others): (Vec<_>, Vec<_>) = marks(sidecar).partition(|(name, _)| **name == *queue);
    let names: usize = others.iter().map(|(_, mark)| usize::from(mark.most)).sum();
    let is_more = own.iter().all(|(_, mark)| mark.most < most);
    if is_more && names + usize::from(most) > MOST_OF_ALL {
        if sidecar.control.subqueues_full.now() {
            tracing::warn!(
                id = %"subqueues_full",
                queue,
                names,
                "queues of the store have so many subqueues that this one gets none: its jobs stay in the queue itself"
            );
        }
        return false;
    }
    let seal = subqueues.spread(queue).seal().into();
    let is_marked = mark_subqueues(sidecar, queue, &SubqueueMark { most, seal }).await;
    if is_marked && !own.is_empty() {
        tell_moved(queue);
    }
    is_marked
}

/// Marks a queue in the store. `false`: the store did not hear of it.
pub(crate) async fn mark_subqueues(sidecar: &Sidecar, queue: &str, mark: &SubqueueMark) -> bool {
    let marked = put_setting(sidecar, SUBQUEUES, queue, Some(mark.text())).await;
    if let Err(fault) = &marked
        && sidecar.control.subqueues_unmarked.now()
    {
        tracing::warn!(
            id = %"subqueues_unmarked",
            queue,
            error = fault.message,
            "the store cannot be told that this queue has subqueues: what lies in them waits until it can, and later \
             jobs stay in the queue itself"
        );
    }
    marked.is_ok()
}

/// The mark of a queue with which this subqueue is read too.
pub(crate) fn mark_with(sidecar: &Sidecar, queue: &str, subqueue: Subqueue) -> SubqueueMark {
    let known = marks(sidecar).find(|(name, _)| **name == *queue);
    let seal = || sidecar.subqueues.spread(queue).seal().into();
    let (most, seal) = known.map_or_else(|| (COUNT, seal()), |(_, mark)| (mark.most, mark.seal));
    let most = most.max((subqueue.0 + 1).next_power_of_two());
    SubqueueMark { most, seal }
}

/// Tells that later jobs of flows of a queue wait elsewhere than those that are there.
pub(crate) fn tell_moved(queue: &str) {
    tracing::warn!(
        id = %"subqueues_moved",
        queue,
        "a key, a group, the number of subqueues or the salt is another one: later jobs of a tenant may start before \
         those that wait"
    );
}

/// Makes a setting, in place of an earlier one, or takes it away; says whether there was anything to do.
pub(crate) async fn put_setting(
    sidecar: &Sidecar,
    of: &str,
    name: &str,
    text: Option<String>,
) -> Result<bool, Fault> {
    if text.is_some() && name.len() > LONGEST_NAME {
        let message = format!("bounds are set under a name of at most {LONGEST_NAME} bytes");
        return Err(Fault::new("invalid_request", message));
    }
    let key: Arc<str> = Arc::from([of, name].concat());
    let all = sidecar.store.overrides();
    if text.is_some() && all.settings_len() >= MAX_SETTINGS && all.setting(&key).is_none() {
        let message = format!("{MAX_SETTINGS} queues and tenants are bounded over HTTP already");
        return Err(Fault::new("conflict", message));
    }
    let change = Change::Setting {
        name: Arc::clone(&key),
        text: text.as_deref().map(Arc::from),
    };
    let done = sidecar.store.set(change).await?;
    if done {
        let text = text.unwrap_or_default();
        match of {
            SUBQUEUES => tracing::info!(
                setting = &*key,
                text,
                "the store knows that the queue has subqueues"
            ),
            _ => tracing::info!(setting = &*key, text, "set over HTTP"),
        }
    }
    follow_settings(sidecar);
    Ok(done)
}

/// Whoever waits for what ended by itself may ask again.
pub(crate) fn end_expired(sidecar: &Sidecar) {
    for (space, key) in sidecar.store.overrides().end_expired(sidecar.store.now()) {
        tracing::info!(
            key = &*space.name_of(&key),
            "limits set over HTTP have ended"
        );
        changed(sidecar, space, key);
    }
}

/// Tells of policies for which something is set by hand and which the file does not have, such as one that is renamed.
pub(crate) fn tell_unbound(sidecar: &Sidecar) {
    let (all, live) = (sidecar.store.overrides(), sidecar.live());
    let mut said = sidecar.control.unbound.lock();
    if said.is_empty() && !all.any(Space::Policy) {
        return;
    }
    let set = all.keys(Space::Policy, sidecar.store.now()).into_iter();
    let unbound: BTreeSet<Key> = set
        .filter(|name| !live.limits().any(|(of, ..)| of == name.as_str()))
        .collect();
    let new = unbound.difference(&said);
    let new = new.map(|name| Space::Policy.name_of(name).into_owned());
    tell_bind_nothing(sidecar, &new.collect());
    *said = unbound;
}

/// The limits of a key, or of all keys of a policy, are others now: what waits for them is asked again.
pub(crate) fn changed(sidecar: &Sidecar, space: Space, key: Key) {
    if space == Space::Policy {
        sidecar.hold.ask_all();
        return sidecar.calling.lines.wake_all();
    }
    sidecar.wake_keys(&[(space, key)]);
}
