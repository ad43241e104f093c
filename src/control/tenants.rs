//! `/ojs/v1/admin/tenants/{id}` and its `/limits` (multi-tenancy text, 8.1, 9.3 and 10.1): `max_queue_depth`
//! is ours, the rest is the backend's, if it has the route.

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response};

use super::overrides::{field, json};
use super::queue_config::{self, has_no_route};
use super::settings::put_setting;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::bounds::DEFAULT_TENANT;
use crate::desk::{Proxy, guard, settings};
use crate::json::{Json, Kind, quote};
use crate::limit::Key;
use crate::policy::FieldError;
use crate::policy::fields::{Fields, JsonObject, Strangers};
use crate::wire::upstream::Reply;

/// The member that is ours.
const MEMBER: &str = "max_queue_depth";

/// Answers a read or a change of a tenant. `inside`: the member of the body in which limits stand;
/// `None`: the body is the limits.
pub(crate) async fn tenant(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    id: &str,
    inside: Option<&str>,
) -> Result<Response<Body>, Fault> {
    let change = tenant_change(proxy, parts, &body, id, inside)?;
    // The backend goes first: what it refuses changes nothing.
    let is_ours = match parts.method {
        Method::PUT => change.is_some(),
        _ => guard::reads(&parts.method),
    };
    let lent = queue_config::own_token(proxy, parts).filter(|_| is_ours);
    let reply = queue_config::ask_config(proxy, parts, body.clone(), lent).await?;
    let alone = has_no_route(reply.status);
    if !reply.status.is_success() && !alone {
        return Ok(respond::theirs(reply));
    }
    if alone && change.is_none() && parts.method == Method::PUT {
        return queue_config::unheard(reply, &body);
    }
    let mut changed = false;
    if let Some(most) = change {
        let text = most.map(|most| most.to_string());
        let done = put_setting(proxy, settings::TENANT, id, text).await?;
        changed = done || most.is_some();
    }
    let most = proxy.sidecar.admit.pressure.table().tenant(id);
    if !alone {
        return Ok(respond::theirs(match most {
            Some(most) => with_limit(reply, most),
            None => reply,
        }));
    }
    if most.is_none() && !changed {
        return Ok(respond::theirs(reply));
    }
    let limit = most.map_or(String::new(), |most| format!("\"{MEMBER}\":{most}"));
    let id = quote(id);
    let text = format!(r#"{{"tenant_id":{id},"limits":{{{limit}}}}}"#);
    Ok(respond::json(parts, text))
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
        named(id)?;
        guard::may_change(&proxy.sidecar, parts)?;
    }
    Ok(change)
}

/// Refuses what is no tenant's id: they look as keys do (5.2), but for that of jobs which name none.
pub(super) fn named(id: &str) -> Result<(), Fault> {
    if id != DEFAULT_TENANT {
        Key::new(id).map_err(|bad| Fault::field("tenant_id", &bad.to_string()))?;
    }
    Ok(())
}

/// What a body says of the number of waiting jobs; `Some(None)`: that there is no bound.
fn read(body: Json<'_>, id: &str, inside: Option<&str>) -> Result<Option<Option<u64>>, FieldError> {
    let named = body.get("tenant_id").filter(|named| !named.is_null());
    if named.is_some_and(|named| named.text().as_deref() != Some(id)) {
        return Err(FieldError {
            field: "tenant_id".into(),
            message: "must be the tenant that the path names".into(),
        });
    }
    let limits = match inside {
        Some(name) => body.get(name),
        None => Some(body),
    };
    let Some(limits) = limits else {
        return Ok(None);
    };
    // No limits at all, as for queues. Other limits beside ours leave it: they are changed one by one.
    if limits.is_null() || (limits.kind() == Kind::Object && limits.members().next().is_none()) {
        return Ok(Some(None));
    }
    let at = inside.unwrap_or_default();
    let Ok(mut from) = JsonObject::new(limits, at, Strangers::Pass, &[]) else {
        return Ok(None);
    };
    let most = from.int_from_0(MEMBER)?;
    Ok(limits.get(MEMBER).map(|_| most))
}

/// The backend's view of a tenant with our limit in it.
fn with_limit(reply: Reply, most: u64) -> Reply {
    queue_config::spliced(reply, |whole, splice| {
        splice.set_in(whole, "limits", &[(MEMBER, most.to_string())]);
    })
}
