//! Limits that are set over HTTP: overrides of a key (rate-limiting text, section 10.2), of all keys of a policy, and
//! limits of a queue (7.2).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};
use tokio::sync::MutexGuard;

use super::sent;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::desk::guard::{self, reads};
use crate::desk::outlive::to_the_end;
use crate::desk::settings::changed;
use crate::desk::snapshot::{SHARED, Snapshot};
use crate::desk::{Proxy, Sidecar};
use crate::inquiry::adopt::{self, LimitedBefore};
use crate::inquiry::in_force::set_for_queue;
use crate::inquiry::shape::{limits_in_log, rfc3339};
use crate::json::{Json, quote};
use crate::limit::{Key, Space};
use crate::policy::Currency;
use crate::policy::{self, FieldError, Pattern};
use crate::show::limits::{self, KeyFacts};
use crate::show::policies;
use crate::store::{Change, LedgerExt, MAX_OVERRIDES, Override};
use crate::told::causes;
use crate::wire::ojs::DEPTH;

/// How long the answer to a queue's first limit waits for its running jobs to be found; the admin port takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(4);

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
        let currency = currency_of(sidecar, space, &key);
        tell_set(&space.name_of(&key), told.as_ref(), currency.as_ref());
        changed(sidecar, space, key);
    } else if told.is_some() {
        let message = format!("limits are set for {MAX_OVERRIDES} keys already");
        return Err(Fault::new("conflict", message)
            .hinting("take some away with DELETE, or give them an expires_at"));
    }
    Ok(done)
}

/// The currency of what a key counts, or all keys of a policy, if that is money.
fn currency_of(sidecar: &Sidecar, space: Space, key: &Key) -> Option<Currency> {
    let live = sidecar.live();
    let budget = match space {
        Space::Policy => live.settings.budget_named(key.as_str()),
        Space::Job => live.settings.budget_of(key),
        Space::Queue => None,
    };
    budget?.currency.clone()
}

/// Says in the log what was set over HTTP for a key, until when, by whom and why.
fn tell_set(key: &str, set: Option<&Override>, currency: Option<&Currency>) {
    let Some(set) = set else {
        tracing::info!(key, "limits set over HTTP are taken away");
        return;
    };
    tracing::info!(
        key,
        limits = %limits_in_log(&set.limits, currency),
        expires_at = set.expires_at.map(rfc3339),
        by = set.by.as_deref(),
        reason = set.reason.as_deref(),
        "limits set over HTTP"
    );
}

/// `/ojs/v1/rate-limits/{key}`, and `…/override` under it.
pub(crate) async fn rate_limit(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    key: &str,
) -> Result<Response<Body>, Fault> {
    guard::may_ask(&proxy.sidecar, parts)?;
    let shown = of_key(proxy, parts, &body, key).await?;
    Ok(respond::json(parts, shown))
}

/// `…/queues/{queue}/rate-limit`: the limits of the queue as a whole.
pub(crate) async fn queue_limit(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    queue: &str,
) -> Result<Response<Body>, Fault> {
    guard::may_ask(&proxy.sidecar, parts)?;
    let shown = of_queue(proxy, parts, &body, queue).await?;
    Ok(respond::json(parts, shown))
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
    let name = limits::named(key)?;
    let set = wanted(sidecar, parts, body, Space::Job, &name)?;
    if set.is_some() {
        limits::may_bind(sidecar, &name)?;
    }
    put(sidecar, Space::Job, &name, set).await?;
    let mut facts = limits::known_of_keys(proxy, parts).await?;
    let state = limits::key_state(proxy, &mut facts, &name).await?;
    // Where there is none, only the override that was taken away had named it.
    let alone = || format!(r#"{{"key":{}}}"#, quote(key));
    Ok(state.map_or_else(alone, |state| state.to_json()))
}

/// Shows what is set for all keys of a policy, after it is set by PUT or taken away by DELETE, or as it is.
pub(super) async fn of_policy(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    policy: &str,
) -> Result<String, Fault> {
    let sidecar = &proxy.sidecar;
    let unknown = || policies::unknown_policy(sidecar, policy);
    let name = Key::new(policy).map_err(|_| unknown())?;
    let now = Snapshot::of(sidecar, SHARED).await;
    let facts = KeyFacts::here(sidecar, now);
    if reads(&parts.method) {
        let view = limits::policy_view(sidecar, &name, &facts).ok_or_else(unknown)?;
        return Ok(view.to_json());
    }
    let set = wanted(sidecar, parts, body, Space::Policy, &name)?;
    if set.is_some() {
        policies::may_bind_policy(sidecar, policy)?;
    }
    put(sidecar, Space::Policy, &name, set).await?;
    let view = limits::policy_view(sidecar, &name, &facts);
    let alone = || format!(r#"{{"key":{}}}"#, quote(&Space::Policy.name_of(&name)));
    Ok(view.map_or_else(alone, |view| view.to_json()))
}

/// Sets limits of a key, or of a policy's keys, or takes them away. To its end: once it is done, what waits for them is
/// asked again.
async fn put(
    sidecar: &Arc<Sidecar>,
    space: Space,
    key: &Key,
    set: Option<Override>,
) -> Result<(), Fault> {
    let (own, of) = (Arc::clone(sidecar), key.clone());
    let work = Box::pin(async move { set_limits(&own, space, of, set).await });
    match to_the_end(&sidecar.tasks.left, work).await? {
        true => Ok(()),
        false => {
            let what = causes::named(space, key.as_str());
            let message = format!("no override is set for {what}");
            Err(Fault::new("not_found", message))
        }
    }
}

/// What a PUT sets for a key; `None`: it is a DELETE.
fn wanted(
    sidecar: &Sidecar,
    parts: &Parts,
    body: &[u8],
    space: Space,
    key: &Key,
) -> Result<Option<Override>, Fault> {
    if parts.method == Method::DELETE {
        return Ok(None);
    }
    let currency = currency_of(sidecar, space, key);
    let set = sent::read_override(json(body)?, currency.as_ref(), sidecar.store.now());
    set.map(Some).map_err(field)
}

/// Shows the limits of a queue as a whole, after they are set by PUT or taken away by DELETE, or as they are.
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
    match limits::queue_state(proxy, parts, queue).await? {
        Some(state) => Ok(state.to_json()),
        None if changed => Ok(format!(r#"{{"queue":{}}}"#, quote(queue))),
        None => Err(no_queue_limit(queue)),
    }
}

async fn change_queue(proxy: &Proxy, parts: &Parts, body: &[u8], queue: &str) -> Result<(), Fault> {
    let key = policy::queue_key(queue);
    let set = wanted(&proxy.sidecar, parts, body, Space::Queue, &key)?;
    if set.is_some() {
        one_queue(queue)?;
    }
    let sidecar = &proxy.sidecar;
    let (own, name) = (proxy.clone(), queue.to_owned());
    // To its end: once the limits are set, running jobs must have their slots.
    let work = Box::pin(async move {
        let alone = own.sidecar.control.setting.lock().await;
        set_queue(&own, &name, set, alone).await
    });
    match to_the_end(&sidecar.tasks.left, work).await? {
        true => Ok(()),
        false => Err(no_queue_limit(queue)),
    }
}

/// Sets a queue's limits or takes them away. Where none were set before, its jobs that are out with
/// workers may have passed us unread: they are looked for, so that they have their slots. `alone` is `control.setting`.
pub(super) async fn set_queue(
    proxy: &Proxy,
    queue: &str,
    set: Option<Override>,
    alone: MutexGuard<'_, ()>,
) -> Result<bool, Fault> {
    let is_new = set.is_some() && set_for_queue(&proxy.sidecar, queue).is_none();
    let key = policy::queue_key(queue);
    let done = set_limits(&proxy.sidecar, Space::Queue, key, set).await?;
    drop(alone);
    if is_new && !proxy.sidecar.config().calls_only() {
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
