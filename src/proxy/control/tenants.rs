//! `/ojs/v1/admin/tenants/{id}` and its `/limits` (multi-tenancy text, 8.1, 9.3 and 10.1): `max_queue_depth`
//! is ours, the rest is the backend's, if it has the route.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::overrides::{ListenerPort, field, json};
use super::queue_config::has_no_route;
use super::settings;
use crate::json::{Json, Kind, Splice, quote};
use crate::limit::Key;
use crate::policy::FieldError;
use crate::proxy::body::Body;
use crate::proxy::control::{overrides, queue_config};
use crate::proxy::respond::{self, Fault};
use crate::proxy::{Proxy, REPLY_DEPTH, refuse};
use crate::upstream::Reply;

/// The member that is ours.
const MEMBER: &str = "max_queue_depth";

/// Answers a read or a change of a tenant. `inside`: the member of the body in which limits stand;
/// `None`: the body is the limits.
pub(in crate::proxy) async fn tenant(
    proxy: &Proxy,
    parts: Box<Parts>,
    body: Bytes,
    id: &str,
    inside: Option<&str>,
) -> Response<Body> {
    let change = match tenant_change(proxy, &parts, &body, id, inside) {
        Ok(change) => change,
        Err(fault) => return refuse(&parts, fault),
    };
    // The backend goes first: what it refuses changes nothing.
    let reply = match queue_config::ask_config(proxy, &parts, body.clone()).await {
        Ok(reply) => reply,
        Err(error) => return refuse(&parts, Fault::backend(&error)),
    };
    let alone = has_no_route(reply.status);
    if !reply.status.is_success() && !alone {
        return respond::theirs(reply);
    }
    if alone && change.is_none() && parts.method == Method::PUT {
        return queue_config::unheard(&parts, reply, &body);
    }
    let mut changed = false;
    if let Some(most) = change {
        let text = most.map(|most| most.to_string());
        let put = settings::put_setting(&proxy.sidecar, settings::TENANT, id, text);
        match put.await {
            Ok(done) => changed = done || most.is_some(),
            Err(fault) => return refuse(&parts, fault),
        }
    }
    let most = proxy.sidecar.admit.pressure.tenant(id);
    match (alone, most) {
        (true, None) if !changed => respond::theirs(reply),
        (true, most) => {
            let limit = most.map_or(String::new(), |most| format!("\"{MEMBER}\":{most}"));
            let id = quote(id);
            respond::json(
                &parts,
                format!(r#"{{"tenant_id":{id},"limits":{{{limit}}}}}"#),
            )
        }
        (false, None) => respond::theirs(reply),
        (false, Some(most)) => respond::theirs(with_limit(reply, most)),
    }
}

/// What the request changes of ours; `Some(None)` takes it away.
fn tenant_change(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    id: &str,
    inside: Option<&str>,
) -> Result<Option<Option<u64>>, Fault> {
    let change = match parts.method {
        Method::DELETE if inside.is_some() => Some(None),
        Method::PUT => match json(body) {
            Ok(body) => read(body, id, inside).map_err(field)?,
            // The backend will say what is wrong with it.
            Err(_) => None,
        },
        _ => None,
    };
    if change.is_some() {
        // The ids of tenants look as keys do (5.2).
        Key::new(id).map_err(|bad| Fault::field("tenant_id", &bad.to_string()))?;
        overrides::may_write(&proxy.sidecar, parts, ListenerPort::Data)?;
    }
    Ok(change)
}

/// What a body says of the number of waiting jobs; `Some(None)`: that there is no bound.
fn read(body: Json<'_>, id: &str, inside: Option<&str>) -> Result<Option<Option<u64>>, FieldError> {
    let wrong = |field: String, message: &str| FieldError {
        field,
        message: message.to_owned(),
    };
    let named = body.get("tenant_id").filter(|named| !named.is_null());
    if named.is_some_and(|named| named.text().as_deref() != Some(id)) {
        let message = "must be the tenant that the path names";
        return Err(wrong("tenant_id".into(), message));
    }
    let limits = match inside {
        Some(name) => body.get(name),
        None => Some(body),
    };
    let path = match inside {
        Some(name) => format!("{name}.{MEMBER}"),
        None => MEMBER.to_owned(),
    };
    let Some(limits) = limits else {
        return Ok(None);
    };
    // No limits at all, as for queues. Other limits beside ours leave it: they are changed one by one.
    if limits.is_null() || (limits.kind() == Kind::Object && limits.members().next().is_none()) {
        return Ok(Some(None));
    }
    let Some(most) = limits.get(MEMBER) else {
        return Ok(None);
    };
    if most.is_null() {
        return Ok(Some(None));
    }
    let number = most.int().and_then(|number| u64::try_from(number).ok());
    match number {
        Some(number) => Ok(Some(Some(number))),
        None => Err(wrong(path, "must be a whole number from 0 (unbounded)")),
    }
}

/// The backend's view of a tenant with our limit in it.
fn with_limit(mut reply: Reply, most: u64) -> Reply {
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    let Some(whole) = whole.filter(|whole| whole.kind() == Kind::Object) else {
        return reply;
    };
    let mut splice = Splice::new();
    splice.set_in(whole, "limits", &[(MEMBER, most.to_string())]);
    reply.body = splice.apply(&reply.body).into();
    reply
}
