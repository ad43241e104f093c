//! `…/keys/_queue:NAME/bounds` and `…/keys/_tenant:ID/bounds` of the admin port: what was set over HTTP of bounds, without
//! what the file says.

use http::Method;
use http::request::Parts;

use super::overrides::{field, json, one_queue};
use super::settings::{may_have, put_setting};
use super::tenants;
use crate::answers::respond::Fault;
use crate::bounds::Given;
use crate::desk::guard::reads;
use crate::desk::{Proxy, Sidecar, settings};
use crate::json::quote;
use crate::store::LedgerExt;

/// Shows what was set over HTTP of the bounds of a queue or a tenant, after it is set by PUT or taken away by DELETE, or as
/// it is.
pub(super) async fn of_key(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    key: &str,
) -> Result<String, Fault> {
    let sidecar = &proxy.sidecar;
    let (of, name) = match key.split_once(':') {
        Some(("_queue", queue)) if !queue.is_empty() => (settings::BOUNDS, queue),
        Some(("_tenant", tenant)) if !tenant.is_empty() => (settings::TENANT, tenant),
        _ => {
            let message = "has no bounds: only _queue:NAME and _tenant:ID have";
            return Err(Fault::field("key", message));
        }
    };
    if !reads(&parts.method) {
        let text = (parts.method == Method::PUT).then(|| wanted(sidecar, of, name, body));
        let text = text.transpose()?;
        let is_delete = text.is_none();
        let done = put_setting(proxy, of, name, text).await?;
        if is_delete && !done {
            let message = format!("no bound of {key} is set over HTTP");
            return Err(Fault::new("not_found", message));
        }
    }
    let set = sidecar.store.overrides().setting(&[of, name].concat());
    let (key, set) = (quote(key), set.as_deref().unwrap_or("null").to_owned());
    Ok(format!(r#"{{"key":{key},"bounds":{set}}}"#))
}

/// What a PUT sets, as it is kept.
fn wanted(sidecar: &Sidecar, of: &str, name: &str, body: &[u8]) -> Result<String, Fault> {
    let body = json(body)?;
    if of == settings::TENANT {
        tenants::named(name)?;
        let most = body.int().and_then(|most| u64::try_from(most).ok());
        let wrong = || Fault::field("bounds", "must be how many jobs of the tenant may wait");
        return most.map(|most| most.to_string()).ok_or_else(wrong);
    }
    one_queue(name)?;
    let given = Given::of_backpressure(body).map_err(field)?;
    if given.is_silent() {
        let message = "bounds nothing: write max_depth, max_size or another bound";
        return Err(Fault::field("backpressure", message));
    }
    may_have(sidecar, name, &given)?;
    Ok(given.to_json())
}
