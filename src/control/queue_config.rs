//! `…/queues/{name}/config` of the admin API: `concurrency`, `rate_limit` and `backpressure` are ours, the
//! rest is the backend's, if it has the route.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};

use super::overrides::{self, field, json, one_queue};
use super::sent::QueueConfig;
use super::settings::may_have;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::bounds::Given;
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, guard, settings};
use crate::inquiry::{calls, in_force, shape};
use crate::json::{Json, Kind, Splice, quote};
use crate::limit::Limits;
use crate::store::Override;
use crate::wire::ojs::REPLY_DEPTH;
use crate::wire::upstream::{Reply, UpstreamError};

/// What a PUT sets.
struct WantedConfig {
    limits: QueueConfig,
    /// `Some(None)` takes away what was set before.
    bounds: Option<Option<Given>>,
}

impl WantedConfig {
    /// Whether more is done than to take away what was set before.
    fn sets_something(&self) -> bool {
        matches!(self.bounds, Some(Some(_)))
            || self.limits.over(Limits::default()) != Limits::default()
    }
}

/// Answers a read or a change of a queue's config. The backend goes first: what it refuses changes nothing.
pub(crate) async fn queue_config(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    queue: &str,
) -> Result<Response<Body>, Fault> {
    let puts = parts.method == Method::PUT;
    let wanted = match puts {
        true => read_config(proxy, parts, &body, queue)?,
        false => None,
    };
    // What is none of ours is changed with the backend's own login.
    let lent = own_token(proxy, parts).filter(|_| !puts || wanted.is_some());
    let reply = ask_config(proxy, parts, body.clone(), lent).await?;
    let alone = has_no_route(reply.status);
    let Some(wanted) = wanted else {
        return match puts && alone {
            true => unheard(reply, &body),
            false => Ok(with_limits(proxy, parts, reply, queue)),
        };
    };
    if !reply.status.is_success() && !alone {
        return Ok(respond::theirs(reply));
    }
    let sidecar = &proxy.sidecar;
    let (own, name) = (proxy.clone(), queue.to_owned());
    // To its end: once the limits are set, running jobs must have their slots.
    let work = Box::pin(async move { set_config(&own, &name, wanted).await });
    to_the_end(&sidecar.tasks.left, work).await?;
    Ok(match alone {
        true => shown_alone(parts, queue, &members(proxy, queue)),
        false => with_limits(proxy, parts, reply, queue),
    })
}

/// The answer to a change of which nothing is ours, where the backend has no route for it: nobody has heard of it.
pub(super) fn unheard(reply: Reply, body: &[u8]) -> Result<Response<Body>, Fault> {
    match json(body)?.kind() {
        Kind::Object => Ok(respond::theirs(reply)),
        _ => Err(Fault::bad_request("the body must be a JSON object")),
    }
}

/// `None`: it says nothing of limits or bounds, or is not JSON, which the backend will say.
fn read_config(
    proxy: &Proxy,
    parts: &Parts,
    body: &[u8],
    queue: &str,
) -> Result<Option<WantedConfig>, Fault> {
    let Ok(body) = json(body) else {
        return Ok(None);
    };
    let wanted = WantedConfig {
        limits: QueueConfig::read(body).map_err(field)?,
        bounds: Given::read(body).map_err(field)?,
    };
    if wanted.limits.is_silent() && wanted.bounds.is_none() {
        return Ok(None);
    }
    guard::may_change(&proxy.sidecar, parts)?;
    if wanted.sets_something() {
        one_queue(queue)?;
    }
    if let Some(Some(given)) = &wanted.bounds {
        may_have(&proxy.sidecar, queue, given)?;
    }
    let set = in_force::set_for_queue(&proxy.sidecar, queue);
    if !wanted.limits.is_silent() && set.is_some_and(|set| set.expires_at.is_some()) {
        let message = format!(
            "{queue:?} has limits that end by themselves, and one entry cannot hold both: \
             DELETE its rate-limit first, or wait"
        );
        return Err(Fault::new("conflict", message));
    }
    Ok(Some(wanted))
}

async fn set_config(proxy: &Proxy, queue: &str, wanted: WantedConfig) -> Result<(), Fault> {
    let sidecar = &proxy.sidecar;
    if let Some(bounds) = wanted.bounds {
        let text = bounds.as_ref().map(Given::to_json);
        settings::put_setting(sidecar, settings::BOUNDS, queue, text).await?;
    }
    if wanted.limits.is_silent() {
        return Ok(());
    }
    let alone = sidecar.control.setting.lock().await;
    let before = in_force::set_for_queue(sidecar, queue);
    let set = merged(&wanted.limits, before.as_deref());
    overrides::set_queue(proxy, queue, set, alone).await?;
    Ok(())
}

/// What is set where a part of it is. Why and by whom is told on of what stays as it was.
fn merged(wanted: &QueueConfig, before: Option<&Override>) -> Option<Override> {
    let before = before.cloned().unwrap_or_default();
    let limits = wanted.over(before.limits.clone());
    let stays = before.over(&limits) == limits;
    let told = if stays { before } else { Override::default() };
    (limits != Limits::default()).then(|| Override { limits, ..told })
}

/// The sidecar's own token, for a request with the control token, which stays here.
pub(super) fn own_token(proxy: &Proxy, parts: &Parts) -> Option<HeaderValue> {
    let token = proxy.sidecar.live().settings.token.clone();
    token.filter(|_| guard::has_control_token(&proxy.sidecar, parts))
}

/// Sends the request on, with the token that is `lent` to it.
pub(super) async fn ask_config(
    proxy: &Proxy,
    parts: &Parts,
    body: Bytes,
    lent: Option<HeaderValue>,
) -> Result<Reply, Fault> {
    let mut call = calls::plain_call(proxy, parts, body);
    if let Some(token) = lent {
        call.headers.insert(header::AUTHORIZATION, token);
    }
    let reply = calls::call(proxy, "queue_config", call).await;
    reply.map_err(|error| Fault::backend(&error))
}

/// The backend's answer with what was set here in it.
fn with_limits(proxy: &Proxy, parts: &Parts, reply: Reply, queue: &str) -> Response<Body> {
    let ours = members(proxy, queue);
    if !ours.is_empty() && has_no_route(reply.status) {
        return shown_alone(parts, queue, &ours);
    }
    if ours.is_empty() || !reply.status.is_success() {
        return respond::theirs(reply);
    }
    respond::theirs(spliced(reply, |whole, splice| {
        let config = whole.get_exact("configuration");
        let place = config.filter(|c| c.kind() == Kind::Object).unwrap_or(whole);
        for (name, value) in &ours {
            splice.set(place, name, value);
        }
    }))
}

/// The backend's answer changed by `edit`, if it is an object.
pub(super) fn spliced(mut reply: Reply, edit: impl FnOnce(Json<'_>, &mut Splice)) -> Reply {
    let whole = Json::parse(&reply.body, REPLY_DEPTH).ok();
    if let Some(whole) = whole.filter(|whole| whole.kind() == Kind::Object) {
        let mut splice = Splice::new();
        edit(whole, &mut splice);
        reply.body = splice.apply(&reply.body).into();
    }
    reply
}

/// `GET …/admin/queues/{name}`: what was set here is in its `configuration`, beside the backend's.
pub(crate) fn show_queue(
    proxy: &Proxy,
    queue: &str,
    reply: Result<Reply, UpstreamError>,
) -> Result<Response<Body>, Fault> {
    let reply = reply.map_err(|error| Fault::backend(&error))?;
    let ours = members(proxy, queue);
    Ok(respond::theirs(configured(reply, &ours)))
}

/// The whole answer, where the backend has none.
fn shown_alone(parts: &Parts, queue: &str, ours: &[(&'static str, String)]) -> Response<Body> {
    let mut text = format!(r#"{{"queue":{}"#, quote(queue));
    for (name, value) in ours {
        text += &format!(",\"{name}\":{value}");
    }
    respond::json(parts, text + "}")
}

fn members(proxy: &Proxy, queue: &str) -> Vec<(&'static str, String)> {
    let set = in_force::set_for_queue(&proxy.sidecar, queue);
    let limits = set.as_ref().map(|set| &set.limits);
    let slots = limits.and_then(|limits| limits.concurrency);
    let rate_limit = limits.and_then(shape::queue_rate_limit);
    let bounds = proxy.sidecar.admit.pressure.table().given(queue);
    let members = [
        ("concurrency", slots.map(|slots| slots.to_string())),
        ("rate_limit", rate_limit),
        ("backpressure", bounds.map(|bounds| bounds.to_json())),
    ];
    let given = members.into_iter();
    given
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// A queue's view with these members in its `configuration`.
fn configured(reply: Reply, ours: &[(&'static str, String)]) -> Reply {
    if ours.is_empty() || reply.status != StatusCode::OK {
        return reply;
    }
    spliced(reply, |whole, splice| {
        splice.set_in(whole, "configuration", ours);
    })
}

/// What backends without the route answer.
pub(super) fn has_no_route(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(theirs: &'static str, ours: &[(&'static str, String)]) -> String {
        let reply = Reply {
            status: StatusCode::OK,
            headers: Default::default(),
            body: Bytes::from_static(theirs.as_bytes()),
        };
        String::from_utf8(configured(reply, ours).body.to_vec()).unwrap()
    }

    #[test]
    fn what_is_set_here_stands_in_the_configuration() {
        let ours = [
            ("concurrency", "5".to_owned()),
            ("rate_limit", r#"{"limit":9}"#.to_owned()),
        ];
        let table = [
            (
                r#"{"name":"q","paused":false}"#,
                r#"{"name":"q","paused":false,"configuration":{"concurrency":5,"rate_limit":{"limit":9}}}"#,
            ),
            (
                r#"{"configuration":{"concurrency":0,"retention":{"days":3}}}"#,
                r#"{"configuration":{"concurrency":5,"retention":{"days":3},"rate_limit":{"limit":9}}}"#,
            ),
            (
                r#"{"configuration":null,"n":1}"#,
                r#"{"configuration":{"concurrency":5,"rate_limit":{"limit":9}},"n":1}"#,
            ),
        ];
        for (theirs, expected) in table {
            assert_eq!(merged(theirs, &ours), expected);
        }
        assert_eq!(merged("{}", &[]), "{}");
        assert_eq!(merged("[]", &ours), "[]");
    }
}
