//! `/throttle/v1/…` of the admin port: what people do to a key by hand, and the question why. [`guard`] says who may.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use uuid::Uuid;

use super::overrides::{self, field, json};
use super::{bounds, sent, subqueues};
use crate::answers::body::{self, Body};
use crate::answers::respond::{self, Fault, refuse};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, guard, settings};
use crate::inquiry::shape::rfc3339;
use crate::inquiry::{bases, in_force};
use crate::json::quote;
use crate::limit::{Cost, Key, Limited, Space, Timestamp};
use crate::show::{limits, why};
use crate::store::{Change, Claim, Claimed, End, Gen, LedgerExt};
use crate::wire::ojs;

/// The longest body in bytes.
const LONGEST: usize = 16 * 1024;

/// Before the name of a queue whose subqueues are not to be read any more.
const SUBQUEUES: &str = "/throttle/v1/subqueues/";

/// Answers a request below `/throttle/v1/`.
pub(crate) async fn verb(proxy: &Proxy, request: Request<Incoming>) -> Response<Body> {
    let (mut parts, incoming) = request.into_parts();
    match answer(proxy, &mut parts, incoming).await {
        Ok(text) => respond::json(&parts, text),
        Err(fault) => refuse(&parts, fault),
    }
}

async fn answer(proxy: &Proxy, parts: &mut Parts, incoming: Incoming) -> Result<String, Fault> {
    match parts.method {
        Method::PUT | Method::DELETE => guard::may_write(&proxy.sidecar, parts)?,
        _ => guard::may_read(&proxy.sidecar, parts)?,
    }
    bases::named_in_target(&proxy.sidecar, &parts.uri).map_or(Ok(()), Err)?;
    match (parts.uri.path(), &parts.method) {
        ("/throttle/v1/why", &Method::GET | &Method::HEAD) => {
            Box::pin(why::why(proxy, parts)).await
        }
        ("/throttle/v1/settings", &Method::GET | &Method::HEAD) => {
            let config = proxy.sidecar.config();
            // Thousands of policies must not stop the thread that serves.
            let shown = tokio::task::spawn_blocking(move || config.shown().to_string());
            shown.await.map_err(|_| Fault::internal())
        }
        ("/throttle/v1/subqueues", &Method::GET | &Method::HEAD) => {
            Box::pin(subqueues::list(proxy, parts)).await
        }
        ("/throttle/v1/why" | "/throttle/v1/settings" | "/throttle/v1/subqueues", _) => {
            let message = "why, settings and subqueues take GET";
            Err(Fault::not_allowed("GET, HEAD", message))
        }
        (path, method) if path.starts_with(SUBQUEUES) => {
            if method != Method::DELETE {
                let message = "a queue of subqueues takes DELETE";
                return Err(Fault::not_allowed("DELETE", message));
            }
            let queue = path.strip_prefix(SUBQUEUES).unwrap_or_default();
            let queue = ojs::decoded(queue).unwrap_or_default();
            subqueues::forget(proxy, parts, &queue).await
        }
        _ => do_verb(proxy, parts, incoming).await,
    }
}

async fn do_verb(proxy: &Proxy, parts: &Parts, incoming: Incoming) -> Result<String, Fault> {
    let rest = parts.uri.path().strip_prefix("/throttle/v1/keys/");
    let (key, what) = rest
        .and_then(|rest| rest.rsplit_once('/'))
        .ok_or_else(unknown)?;
    let allow = match what {
        "override" | "bounds" => "GET, HEAD, PUT, DELETE",
        "next-start" | "usage" => "PUT, DELETE",
        _ => return Err(unknown()),
    };
    let mut allowed = allow.split(", ");
    if !allowed.any(|method| method == parts.method.as_str()) {
        return Err(Fault::not_allowed(allow, format!("{what} takes {allow}")));
    }
    let sidecar = &proxy.sidecar;
    let mut sent = Bytes::new();
    if parts.method == Method::PUT {
        let patience = sidecar.live().settings.server.body_timeout;
        let room = &sidecar.urgent_bodies;
        (sent, _) = body::read(incoming, LONGEST, patience, room).await?;
    }
    let key = ojs::decoded(key).unwrap_or_default();
    match what {
        "override" => return set_override(proxy, parts, &sent, &key).await,
        "bounds" => return Box::pin(bounds::of_key(proxy, parts, &sent, &key)).await,
        _ => {}
    }
    let key = limits::named(&key)?;
    if what == "usage" && parts.method == Method::PUT {
        let (own, sent) = (Arc::clone(sidecar), sent.clone());
        let work = Box::pin(async move { set_used(&own, key, &sent).await });
        return to_the_end(&sidecar.tasks.left, work).await;
    }
    let mut until = None;
    if parts.method == Method::PUT {
        let next = sent::read_next_start(json(&sent)?, sidecar.store.now());
        until = Some(next.map_err(field)?);
        limits::may_bind(sidecar, &key)?;
    }
    let (own, is_start) = (Arc::clone(sidecar), what == "next-start");
    // To its end: once it is done, what waits for the key is asked again.
    let work = Box::pin(async move {
        match is_start {
            true => set_next_start(&own, key, until).await,
            false => unused(&own, key).await,
        }
    });
    to_the_end(&sidecar.tasks.left, work).await
}

async fn set_override(
    proxy: &Proxy,
    parts: &Parts,
    sent: &[u8],
    key: &str,
) -> Result<String, Fault> {
    let queue = key.strip_prefix("_queue:");
    let queue = queue.filter(|queue| !queue.is_empty());
    match (queue, key.strip_prefix("_policy:")) {
        (Some(queue), _) => Box::pin(overrides::of_queue(proxy, parts, sent, queue)).await,
        (_, Some(policy)) => Box::pin(overrides::of_policy(proxy, parts, sent, policy)).await,
        _ => Box::pin(overrides::of_key(proxy, parts, sent, key)).await,
    }
}

/// No start before `until`, whatever stood before; or the key is open.
async fn set_next_start(
    sidecar: &Sidecar,
    key: Key,
    until: Option<Timestamp>,
) -> Result<String, Fault> {
    let change = Change::Shut {
        key: key.clone(),
        until: until.unwrap_or_default(),
        at_least: false,
    };
    sidecar.store.set(change).await?;
    let shown = until.map_or("null".into(), |until| quote(&rfc3339(until)).to_string());
    tracing::info!(%key, next_start = %shown, "set on the admin port");
    let text = format!(r#"{{"key":{},"next_start":{shown}}}"#, quote(key.as_str()));
    if until.is_some() {
        sidecar.control.named.know(&key);
    }
    settings::changed(sidecar, Space::Job, key);
    Ok(text)
}

/// Forgets what the key has used but its slots.
async fn unused(sidecar: &Sidecar, key: Key) -> Result<String, Fault> {
    let change = Change::Unused { key: key.clone() };
    sidecar.store.set(change).await?;
    sidecar.settle.refusals.forget(&key);
    tracing::info!(%key, "its usage was cleared on the admin port");
    let text = format!(r#"{{"key":{},"cleared":true}}"#, quote(key.as_str()));
    settings::changed(sidecar, Space::Job, key);
    Ok(text)
}

/// Puts what a budget has used in place of what was counted: a call that has used so much starts and ends now.
async fn set_used(sidecar: &Sidecar, key: Key, sent: &[u8]) -> Result<String, Fault> {
    let live = sidecar.live();
    let Some(budget) = live.settings.budget_of(&key) else {
        let message = "is of no budget: `used` is set for keys of [[egress.budget]] alone";
        return Err(Fault::field("key", message));
    };
    let used = sent::read_used(json(sent)?, budget.currency.as_ref()).map_err(field)?;
    unused(sidecar, key.clone()).await?;
    if let Some(pays) = NonZeroU32::new(used) {
        let (file, name) = (budget.limits.clone(), Arc::clone(&budget.name));
        let mut limited = Limited::new(Space::Job, key.clone(), file, name);
        limited.cost = Cost { pays, ..Cost::ONE };
        let now = sidecar.store.now();
        let set = in_force::with_set(sidecar.store.overrides(), &limited, now);
        let rates = &mut limited.limits.rates;
        // It counts in the windows of the file, and in those that hold now: what is set by hand ends some day.
        for rate in set.into_iter().flat_map(|set| set.rates) {
            if !rates.iter().any(|of| of.is_like(&rate)) {
                rates.push(rate);
            }
        }
        // It has been used already, whatever the limit is. A pause has no say, because only rates are taken over.
        for rate in rates {
            rate.limit = NonZeroU32::MAX;
        }
        let id = format!("{}{}", Claim::CALL_IDS, Uuid::now_v7().simple());
        let claim = Claim {
            claimed_at: now,
            limited: Arc::from([limited]),
            ..Claim::new(id.into(), Gen(1), Claim::queue_of_calls("limit"))
        };
        let claimed = Claimed::from(claim);
        let taken = sidecar.store.take(&[&claimed], 1).await;
        let ended = sidecar.end_by(&End::of_claim(&claimed)).await;
        if taken.is_err() || ended.is_none() {
            let message = "what was counted is cleared, and the store has not taken the new number";
            return Err(Fault::new("store_unavailable", message).hinting("send it again"));
        }
    }
    tracing::info!(%key, used, "what it has used was set on the admin port");
    sidecar.control.named.know(&key);
    settings::changed(sidecar, Space::Job, key.clone());
    Ok(format!(
        r#"{{"key":{},"used":{used}}}"#,
        quote(key.as_str())
    ))
}

fn unknown() -> Fault {
    let message = "here are /throttle/v1/why, /throttle/v1/settings, /throttle/v1/subqueues, and override, next-start, usage and bounds under /throttle/v1/keys/KEY";
    Fault::new("not_found", message).hinting(
        "use one of these; KEY is a key that `ojs-throttle top` shows, or for an override _queue:NAME, a whole queue, or _policy:NAME, all keys of a policy",
    )
}
