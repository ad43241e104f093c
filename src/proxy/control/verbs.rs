//! `/throttle/v1/…` of the admin port: what people do to a key by hand, and the question why. Only methods that
//! no web page can send to another site, and only under a Host that is no page's: then being on loopback is
//! enough to be allowed.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use hyper::body::Incoming;

use super::overrides::{ListenerPort, field, json};
use super::sent;
use super::shape::rfc3339;
use crate::json::quote;
use crate::limit::{Key, Space, Timestamp};
use crate::ojs;
use crate::proxy::body::{self, Body};
use crate::proxy::control::{limits, overrides};
use crate::proxy::outlive::to_the_end;
use crate::proxy::respond::Fault;
use crate::proxy::{Proxy, Sidecar, ours, refuse, why};
use crate::store::{Change, LedgerExt};

/// The longest body in bytes.
const LONGEST: usize = 4096;

/// Answers a request below `/throttle/v1/`.
pub(crate) async fn verb(proxy: &Proxy, request: Request<Incoming>) -> Response<Body> {
    let (parts, incoming) = request.into_parts();
    let answer = match (parts.uri.path(), &parts.method) {
        ("/throttle/v1/why", &Method::GET | &Method::HEAD) => {
            Box::pin(why::why(proxy, &parts)).await
        }
        ("/throttle/v1/why", _) => Err(Fault::not_allowed("GET, HEAD", "why takes GET")),
        _ => do_verb(&proxy.sidecar, &parts, incoming).await,
    };
    match answer {
        Ok(text) => {
            let mut response = Response::new(Body::from(Bytes::from(text)));
            ours(&parts.headers, response.headers_mut());
            response
        }
        Err(fault) => refuse(&parts, fault),
    }
}

async fn do_verb(
    sidecar: &Arc<Sidecar>,
    parts: &Parts,
    incoming: Incoming,
) -> Result<String, Fault> {
    let rest = parts.uri.path().strip_prefix("/throttle/v1/keys/");
    let Some((key, what)) = rest.and_then(|rest| rest.rsplit_once('/')) else {
        return Err(unknown());
    };
    let sets = match (what, &parts.method) {
        ("next-start", &Method::PUT) => true,
        ("next-start" | "usage", &Method::DELETE) => false,
        ("next-start", _) => {
            let message = "next-start takes PUT and DELETE";
            return Err(Fault::not_allowed("PUT, DELETE", message));
        }
        ("usage", _) => return Err(Fault::not_allowed("DELETE", "usage takes DELETE")),
        _ => return Err(unknown()),
    };
    overrides::may_write(sidecar, parts, ListenerPort::Admin)?;
    let key = ojs::decoded(key).unwrap_or_default();
    let key = Key::new(&key).map_err(|bad| Fault::field("key", &bad.to_string()))?;
    let mut until = None;
    if sets {
        let patience = sidecar.live().settings.server.body_timeout;
        let body = body::read(incoming, LONGEST, patience).await?;
        let next = sent::read_next_start(json(&body)?, sidecar.store.now());
        until = Some(next.map_err(field)?);
        limits::may_bind(sidecar, &key).await?;
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
    overrides::changed(sidecar, Space::Job, key);
    Ok(text)
}

/// Forgets what the key has used but its slots.
async fn unused(sidecar: &Sidecar, key: Key) -> Result<String, Fault> {
    let change = Change::Unused { key: key.clone() };
    sidecar.store.set(change).await?;
    sidecar.settle.forget_refusals(&key);
    tracing::info!(%key, "its usage was cleared on the admin port");
    let text = format!(r#"{{"key":{},"cleared":true}}"#, quote(key.as_str()));
    overrides::changed(sidecar, Space::Job, key);
    Ok(text)
}

fn unknown() -> Fault {
    let message = "here are /throttle/v1/why, /throttle/v1/keys/KEY/next-start and /throttle/v1/keys/KEY/usage";
    Fault::new("not_found", message)
        .hinting("use one of these; KEY is a key of GET /ojs/v1/rate-limits")
}
