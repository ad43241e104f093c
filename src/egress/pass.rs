//! Which requests are calls of an entry.

use std::mem;
use std::sync::Arc;

use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{StatusCode, Uri};
use subtle::ConstantTimeEq;

use crate::answers::respond::Fault;
use crate::config::{BaseUrl, EgressSettings, Hosts, one_name};
use crate::desk::guard::has_password;
use crate::wire::upstream::wants_websocket;

/// What a caller shows where a way out has a token.
const TOKEN: HeaderName = HeaderName::from_static("ojs-throttle-token");

/// Refuses what is no call of this entry, and takes its token off. Where calls name one of many hosts: by which list, and
/// where that is.
pub(super) fn may_pass<'e>(
    entry: &'e EgressSettings,
    parts: &mut Parts,
) -> Result<Option<(&'e Arc<Hosts>, BaseUrl)>, Fault> {
    // The service sees none, wherever it was meant for.
    let sent = parts.headers.remove(TOKEN);
    let as_proxy = parts.headers.remove(header::PROXY_AUTHORIZATION);
    if let Some(token) = &entry.token {
        let token = token.expose().as_bytes();
        let is_sent = |sent: &HeaderValue| sent.as_bytes().ct_eq(token).into();
        if !sent.as_ref().is_some_and(is_sent) && !has_password(as_proxy.as_ref(), token) {
            let message = match sent.or(as_proxy) {
                Some(_) => "this way out takes another token than was sent",
                None => "this way out takes a token",
            };
            let mut fault = Fault::new("unauthorized", message).hinting(
                "send the entry's token in the header OJS-Throttle-Token, or as the password of the proxy's URL",
            );
            // Some clients tell a proxy nothing that it has not asked for.
            let (name, value) = match parts.uri.authority() {
                Some(_) => {
                    fault.status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
                    (header::PROXY_AUTHENTICATE, "Basic realm=\"ojs-throttle\"")
                }
                None => (header::WWW_AUTHENTICATE, "OJS-Throttle-Token"),
            };
            return Err(fault.with_header(name, value));
        }
    }
    let named = named(entry, parts)?;
    if wants_websocket(&parts.headers) {
        let message = "no other protocol passes here";
        return Err(Fault::bad_request(message)
            .hinting("open WebSockets with the service itself: they are not limited"));
    }
    parts.headers.remove(header::UPGRADE);
    Ok(named)
}

/// How a call names its service, by one spelling: in its first line, else by its `Host`.
///
/// # Errors
/// It names none that can be read, or two.
pub(super) fn called(parts: &Parts) -> Result<Option<String>, Fault> {
    let name = |text: &[u8]| std::str::from_utf8(text).ok().and_then(one_name);
    let unreadable = || {
        Fault::bad_request("the call names a host that cannot be read, or no URL of http")
            .hinting("call http://HOST/PATH, without a user: credentials stand in a header")
    };
    let host = parts.headers.get(header::HOST);
    let host = host.map(|host| name(host.as_bytes()).ok_or_else(unreadable));
    let host = host.transpose()?;
    let Some(line) = parts.uri.authority() else {
        return Ok(host);
    };
    let is_http = matches!(parts.uri.scheme_str(), Some("http" | "https"));
    let named = name(line.as_str().as_bytes()).filter(|_| is_http);
    let named = named.ok_or_else(unreadable)?;
    if host.is_some_and(|host| host != named) {
        let message = "the first line names another host than the header Host";
        return Err(Fault::new("host_mismatch", message));
    }
    Ok(Some(named))
}

/// Takes the base path of an upstream off the URL of a call, and gives the URL as it came. So keys and budgets see what is
/// behind the base, as they do of calls by path. `None`: nothing was taken off.
///
/// # Errors
/// It has another path.
pub(super) fn below_base(entry: &EgressSettings, parts: &mut Parts) -> Result<Option<Uri>, Fault> {
    let base = entry
        .upstream
        .as_ref()
        .map_or("", |upstream| &upstream.base);
    if base.is_empty() || parts.uri.authority().is_none() {
        return Ok(None);
    }
    let target = parts
        .uri
        .path_and_query()
        .map_or("", |target| target.as_str());
    let rest = target.strip_prefix(base);
    let rest = rest.filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    let path = rest.map(|rest| match rest.starts_with('/') {
        true => rest.to_owned(),
        false => ["/", rest].concat(),
    });
    let uri = path.and_then(|path| {
        let mut of = parts.uri.clone().into_parts();
        of.path_and_query = Some(path.parse().ok()?);
        Uri::from_parts(of).ok()
    });
    let below = uri.ok_or_else(|| {
        let message = format!("calls go out here to paths below {base} alone");
        Fault::new("host_not_listed", message)
    })?;
    Ok(Some(mem::replace(&mut parts.uri, below)))
}

/// Refuses a call that names another service than it may.
fn named<'e>(
    entry: &'e EgressSettings,
    parts: &Parts,
) -> Result<Option<(&'e Arc<Hosts>, BaseUrl)>, Fault> {
    // As a base URL, an upstream has any name.
    if entry.hosts.is_none() && parts.uri.authority().is_none() {
        return Ok(None);
    }
    let name = called(parts)?.unwrap_or_default();
    let is_tls = match (&entry.hosts, &entry.upstream) {
        (Some(hosts), _) => hosts.tls,
        (None, upstream) => upstream.as_ref().is_some_and(|upstream| upstream.tls),
    };
    if parts.uri.scheme_str() == Some("https") && !is_tls {
        let message = "the first line asks for https, and calls go on from here without TLS";
        let hint = match &entry.hosts {
            Some(_) => "write http:// in the URL, or scheme = \"https\" in the entry",
            None => "write http:// in the URL, or an `upstream` of https:// in the entry",
        };
        return Err(Fault::new("host_mismatch", message).hinting(hint));
    }
    let Some(url) = entry.goes_to(&name) else {
        let listed = entry.leads_to();
        let message = format!("calls to {name:?} do not go out here: they may go to {listed}");
        return Err(Fault::new("host_not_listed", message));
    };
    Ok(entry.hosts.as_ref().map(|hosts| (hosts, url)))
}
