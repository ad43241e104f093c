//! Limits that are set over HTTP: overrides of a key (rate-limiting text, section 10.2) and limits of a
//! queue (7.2), and how decisions see them.
//!
//! What a policy or a job says is read once, when a job is claimed. What is set over HTTP is laid over
//! that at each question, so held jobs and waiting FETCHes obey it at once.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::guard;
use super::limits::{self, not_allowed, reads};
use super::sent;
use super::shape::{FILE_IS_STRICTER, LimitView, limits_in_log, rfc3339, unit};
use crate::json::{Json, quote};
use crate::limit::{Key, KeyState, Limited, Limits, OnLimit, Rate, Space, Timestamp};
use crate::policy::price::one_price;
use crate::policy::{self, FieldError, Pattern, strictest};
use crate::proxy::body::Body;
use crate::proxy::outlive::to_the_end;
use crate::proxy::respond::{self, Fault};
use crate::proxy::sweep::adopt::{self, LimitedBefore};
use crate::proxy::{DEPTH, Proxy, Sidecar, siblings, waiting};
use crate::store::{Change, KeyStates, LedgerExt, MAX_OVERRIDES, Override, Usage};

/// How long the answer to a queue's first limit waits for its running jobs to be found; the admin port takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(4);

/// `limited` as a job of the queue is asked now: overrides laid over each key, and the queue's own
/// limits that were set over HTTP beside them. Where nothing is set it costs a look.
pub(in crate::proxy) fn limits_now<'a>(
    sidecar: &Sidecar,
    queue: &str,
    limited: &'a Arc<[Limited]>,
) -> Cow<'a, Arc<[Limited]>> {
    let overrides = sidecar.store.overrides();
    if overrides.is_empty() {
        return Cow::Borrowed(limited);
    }
    let now = sidecar.store.now();
    let of_job = |one: &Limited| match one.space {
        Space::Job => overrides.get(Space::Job, &one.key, now),
        Space::Queue => None,
    };
    let of_queue = set_for_queue(sidecar, queue);
    if of_queue.is_none() && !limited.iter().any(|one| of_job(one).is_some()) {
        return Cow::Borrowed(limited);
    }
    let of_queue = of_queue.map(|set| Limited {
        space: Space::Queue,
        key: policy::queue_key(queue),
        limits: set.limits.clone(),
        on_limit: OnLimit::Wait,
        policy: Arc::from("queue"),
        cost: Default::default(),
        share: None,
    });
    let laid_over = limited.iter().map(|one| match of_job(one) {
        Some(set) => Limited {
            limits: set.over(&one.limits),
            ..one.clone()
        },
        None => one.clone(),
    });
    let mut all: Vec<Limited> = of_queue.into_iter().chain(laid_over).collect();
    one_price(&mut all);
    Cow::Owned(all.into())
}

/// The limits of a queue that were set over HTTP.
pub(in crate::proxy) fn set_for_queue(sidecar: &Sidecar, queue: &str) -> Option<Arc<Override>> {
    let overrides = sidecar.store.overrides();
    if !overrides.any(Space::Queue) {
        return None;
    }
    overrides.get(Space::Queue, &policy::queue_key(queue), sidecar.store.now())
}

/// Whoever waits for what ended by itself may ask again.
pub(in crate::proxy) fn end_expired(sidecar: &Sidecar) {
    for (space, key) in sidecar.store.overrides().end_expired(sidecar.store.now()) {
        tracing::info!(
            key = &*space.name_of(&key),
            "limits set over HTTP have ended"
        );
        changed(sidecar, space, key);
    }
}

/// The limits of a key are others now: what waits for it is asked again.
pub(super) fn changed(sidecar: &Sidecar, space: Space, key: Key) {
    sidecar.hold.wake_keys(&[(space, key)]);
}

/// Sets limits or takes them away. `false`: there were none to take away.
pub(super) async fn set_limits(
    sidecar: &Sidecar,
    space: Space,
    key: Key,
    set: Option<Override>,
) -> Result<bool, Fault> {
    let told = set.clone();
    let change = Change::Override {
        space,
        key: key.clone(),
        set,
    };
    let done = sidecar.store.set(change).await?;
    if done {
        tell_set(&space.name_of(&key), told.as_ref());
        changed(sidecar, space, key);
    } else if told.is_some() {
        let message = format!("limits are set for {MAX_OVERRIDES} keys already");
        return Err(Fault::new("conflict", message)
            .hinting("take some away with DELETE, or give them an expires_at"));
    }
    Ok(done)
}

/// Says in the log what was set over HTTP for a key, until when, by whom and why.
fn tell_set(key: &str, set: Option<&Override>) {
    let Some(set) = set else {
        tracing::info!(key, "limits set over HTTP are taken away");
        return;
    };
    tracing::info!(
        key,
        limits = %limits_in_log(&set.limits),
        expires_at = set.expires_at.map(rfc3339),
        by = set.by.as_deref(),
        reason = set.reason.as_deref(),
        "limits set over HTTP"
    );
}

/// `/ojs/v1/rate-limits/{key}`, and `…/override` under it.
pub(in crate::proxy) async fn rate_limit(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    key: &str,
) -> Result<Response<Body>, Fault> {
    may_ask(proxy, parts)?;
    Ok(respond::json(
        parts,
        of_key(proxy, parts, &body, key).await?,
    ))
}

/// `…/queues/{queue}/rate-limit`: the limits of the queue as a whole.
pub(in crate::proxy) async fn queue_limit(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    queue: &str,
) -> Result<Response<Body>, Fault> {
    may_ask(proxy, parts)?;
    Ok(respond::json(
        parts,
        of_queue(proxy, parts, &body, queue).await?,
    ))
}

/// Whether a request on the data port may do what its method says.
fn may_ask(proxy: &Proxy, parts: &Parts) -> Result<(), Fault> {
    match parts.method {
        Method::GET | Method::HEAD => Ok(()),
        Method::PUT | Method::DELETE => guard::may_change(&proxy.sidecar, parts),
        _ => Err(not_allowed("GET, HEAD, PUT, DELETE")),
    }
}

/// Shows a key after its override is set by PUT or taken away by DELETE, or as it is.
pub(super) async fn of_key(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    key: &str,
) -> Result<String, Fault> {
    if reads(&parts.method) {
        return limits::inspect(proxy, parts, key).await;
    }
    let sidecar = &proxy.sidecar;
    let set = wanted(sidecar, parts, body)?;
    let name = limits::named(key)?;
    if set.is_some() {
        limits::may_bind(sidecar, &name).await?;
    }
    let (own, of) = (Arc::clone(sidecar), name.clone());
    // To its end: once they are set, what waits for the key is asked again.
    let work = Box::pin(async move { set_limits(&own, Space::Job, of, set).await });
    if !to_the_end(&sidecar.tasks.left, work).await? {
        let message = format!("no override is set for the rate limit key {key:?}");
        return Err(Fault::new("not_found", message));
    }
    let look = limits::look_at_keys(proxy, parts).await?;
    let state = limits::key_state(proxy, &look, &name).await?;
    // Where there is none, only the override that was taken away had named it.
    let alone = || format!(r#"{{"key":{}}}"#, quote(key));
    Ok(state.map_or_else(alone, |state| state.to_json()))
}

/// What a PUT sets; `None`: it is a DELETE.
fn wanted(sidecar: &Sidecar, parts: &Parts, body: &[u8]) -> Result<Option<Override>, Fault> {
    if parts.method == Method::DELETE {
        return Ok(None);
    }
    let set = sent::read_override(json(body)?, sidecar.store.now());
    set.map(Some).map_err(field)
}

/// The same for the limits of a queue as a whole.
pub(super) async fn of_queue(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    queue: &str,
) -> Result<String, Fault> {
    let changed = !reads(&parts.method);
    if changed {
        change_queue(proxy, parts, body, queue).await?;
    }
    match queue_state(proxy, parts, queue).await? {
        Some(state) => Ok(state.to_json()),
        None if changed => Ok(format!(r#"{{"queue":{}}}"#, quote(queue))),
        None => Err(no_queue_limit(queue)),
    }
}

async fn change_queue(proxy: &Proxy, parts: &Parts, body: &[u8], queue: &str) -> Result<(), Fault> {
    let set = wanted(&proxy.sidecar, parts, body)?;
    if set.is_some() {
        one_queue(queue)?;
    }
    let sidecar = &proxy.sidecar;
    let (own, name) = (proxy.clone(), queue.to_owned());
    // To its end: once the limits are set, running jobs must have their slots.
    let work = Box::pin(async move { set_queue(&own, &name, set).await });
    match to_the_end(&sidecar.tasks.left, work).await? {
        true => Ok(()),
        false => Err(no_queue_limit(queue)),
    }
}

/// Sets a queue's limits or takes them away. Where none were set before, its jobs that are out with
/// workers may have passed us unread: they are looked for, so that they have their slots.
pub(super) async fn set_queue(
    proxy: &Proxy,
    queue: &str,
    set: Option<Override>,
) -> Result<bool, Fault> {
    let is_new = set.is_some() && set_for_queue(&proxy.sidecar, queue).is_none();
    let key = policy::queue_key(queue);
    let done = set_limits(&proxy.sidecar, Space::Queue, key, set).await?;
    if is_new {
        let sidecar = &proxy.sidecar;
        let (proxy, before) = (proxy.clone(), LimitedBefore::AllBut(Arc::from(queue)));
        let looking = sidecar
            .tasks
            .spawn(async move { adopt::adopt_running(&proxy, &before).await });
        // It goes on even if nobody waits for it any longer.
        let looked = tokio::time::timeout(PATIENCE, looking).await;
        if !matches!(looked, Ok(Ok(Ok(_)))) {
            tracing::warn!(
                id = %"active_unlisted",
                queue,
                "no list of active jobs from the backend yet; those of this queue that run already may not be counted"
            );
        }
    }
    Ok(done)
}

/// What is shown of a queue's limits: the strictest of the file's and those set over HTTP. `None`:
/// it has none.
pub(in crate::proxy) async fn queue_state(
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
pub(super) async fn queue_view(
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
        space: Space::Queue,
        key: policy::queue_key(queue),
        limits,
        on_limit: OnLimit::Wait,
        policy: Arc::from("queue"),
        cost,
        share: None,
    };
    Some(LimitView {
        lost: limits::free_slots(sidecar, &limited).await,
        what: "queue",
        name: queue.to_owned(),
        usage: Usage::of(&state, &limited.limits, now).unwrap_or_default(),
        unit: unit(&limited.cost),
        state,
        limits: limited.limits,
        waiting: waiting::of_queue(sidecar, queue),
        set,
        hint: in_vain.then_some(FILE_IS_STRICTER),
        now,
    })
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

/// Refuses a pattern where a queue's name stands in a path: it would bind a queue that cannot be.
pub(super) fn one_queue(queue: &str) -> Result<(), Fault> {
    if !Pattern::new(queue).is_glob() {
        return Ok(());
    }
    let message = "must be the name of one queue, without * and ?";
    let hint = "a [[queue]] of the file may name many queues by a pattern";
    Err(Fault::field("queue", message).hinting(hint))
}

fn no_queue_limit(queue: &str) -> Fault {
    let message = format!("the queue {queue:?} has no limits of its own that were set over HTTP");
    Fault::new("not_found", message)
        .hinting("limits of a [[queue]] are changed in the file; those of HTTP are set with PUT")
}

pub(super) fn json(body: &[u8]) -> Result<Json<'_>, Fault> {
    Json::parse(body, DEPTH).map_err(|error| Fault::bad_request(format!("the body is {error}")))
}

pub(super) fn field(error: FieldError) -> Fault {
    Fault::field(&error.field, &error.message)
}
