//! Who may look and who may change, on either port. Where being on loopback is the permission, a web page must not have
//! it: a browser on this machine reaches loopback, and DNS rebinding makes a page's own name mean it. A page's requests
//! carry that name as their Host; an IP address or `localhost` no page can make its own.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use http::header::{
    AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq;

use crate::answers::load::BearsAdminName;
use crate::answers::respond::Fault;
use crate::desk::Sidecar;

/// Marks a request that came with the control token.
#[derive(Clone, Copy)]
struct Controls;

/// Whether a request on the admin port may look. The control token is taken off it, for the backend may be asked with
/// what is left. A browser cannot send it but as a password; it is asked for that under no page's name alone.
pub(crate) fn may_read(sidecar: &Sidecar, parts: &mut Parts) -> Result<(), Fault> {
    let live = sidecar.live();
    let token = live.settings.control_token.as_ref();
    let is_password =
        token.is_some_and(|token| has_password(parts.headers.get(AUTHORIZATION), token.as_bytes()));
    if is_password {
        parts.headers.remove(AUTHORIZATION);
    }
    keep_control_token(sidecar, parts);
    if has_control_token(sidecar, parts) || bears_admin_name(parts) {
        return Ok(());
    }
    if !is_no_pages(&parts.headers) {
        return Err(strange_host(parts));
    }
    if is_password || live.settings.is_admin_on_loopback() {
        return Ok(());
    }
    if token.is_none() {
        let message = "an admin port that others reach shows this with the control token only";
        return Err(Fault::new("forbidden", message)
            .hinting("set server.control_token, or admin_listen on 127.0.0.1"));
    }
    let fault = Fault::new(
        "unauthorized",
        untold(parts, "this takes the control token"),
    );
    Err(fault.with_header(WWW_AUTHENTICATE, "Basic realm=\"ojs-throttle\""))
}

/// Whether a request on the admin port may change something: with the control token, which no browser adds by itself,
/// and a type that no page can send to another site. The token is taken off it.
pub(crate) fn may_write(sidecar: &Sidecar, parts: &mut Parts) -> Result<(), Fault> {
    keep_control_token(sidecar, parts);
    if !has_control_token(sidecar, parts) && !bears_admin_name(parts) {
        let message = "changes on the admin port take the control token, on loopback too";
        return Err(match sidecar.live().settings.control_token {
            Some(_) => Fault::new("forbidden", untold(parts, message)),
            None => Fault::new("forbidden", format!("{message}, and this sidecar has none"))
                .hinting("set server.control_token in the file, or OJS_THROTTLE_TOKEN where `ojs-throttle egress` starts, and send it"),
        });
    }
    let kind = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    if kind.is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/json")) {
        return Ok(());
    }
    let message = "changes on the admin port are application/json, without a body too";
    Err(Fault::new("unsupported_media_type", message)
        .hinting("send Content-Type: application/json"))
}

/// Whether a request on the data port may do what its method says.
pub(crate) fn may_ask(sidecar: &Sidecar, parts: &Parts) -> Result<(), Fault> {
    match parts.method {
        Method::GET | Method::HEAD => Ok(()),
        Method::PUT | Method::DELETE => may_change(sidecar, parts),
        _ => Err(not_allowed("GET, HEAD, PUT, DELETE")),
    }
}

/// Whether a method only looks.
pub(crate) fn reads(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// 405; `allow` are the methods that may be used.
pub(crate) fn not_allowed(allow: &'static str) -> Fault {
    Fault::not_allowed(allow, format!("only {allow} may be used here"))
}

/// Whether a request on the data port may change limits.
pub(crate) fn may_change(sidecar: &Sidecar, parts: &Parts) -> Result<(), Fault> {
    let live = sidecar.live();
    let on_loopback = live.settings.is_on_loopback();
    let is_known = has_control_token(sidecar, parts) || bears_admin_name(parts);
    if is_known || (on_loopback && is_no_pages(&parts.headers)) {
        return Ok(());
    }
    if on_loopback {
        return Err(strange_host(parts));
    }
    let message = "limits may be changed on a loopback listener or with the control token only";
    let fault = Fault::new("forbidden", untold(parts, message));
    Err(match live.settings.control_token {
        Some(_) => fault,
        None => fault.hinting("set server.control_token, or listen on 127.0.0.1"),
    })
}

/// Takes the control token off a request and notes that it had it: it is nobody else's business, and the backend
/// would not know it. Where it is `upstream.token` too, the backend knows it.
pub(crate) fn keep_control_token(sidecar: &Sidecar, parts: &mut Parts) {
    if !has_control_token(sidecar, parts) {
        return;
    }
    parts.extensions.insert(Controls);
    let live = sidecar.live();
    let ours = live.settings.token.as_ref();
    let sent = parts.headers.get(AUTHORIZATION).zip(ours);
    let is_backends =
        sent.is_some_and(|(sent, ours)| sent.as_bytes().ct_eq(ours.as_bytes()).into());
    if !is_backends {
        parts.headers.remove(AUTHORIZATION);
    }
}

/// Whether the request came with the control token.
pub(crate) fn has_control_token(sidecar: &Sidecar, parts: &Parts) -> bool {
    if parts.extensions.get::<Controls>().is_some() {
        return true;
    }
    let Some(token) = &sidecar.live().settings.control_token else {
        return false;
    };
    let sent = login(parts.headers.get(AUTHORIZATION), b"Bearer ");
    sent.is_some_and(|sent| sent.ct_eq(token.as_bytes()).into())
}

/// Whether the certificate of the client lets it change limits. A browser shows one for any page that asks; what pages
/// of other sites send has an Origin.
fn bears_admin_name(parts: &Parts) -> bool {
    parts.extensions.get::<BearsAdminName>().is_some() && !parts.headers.contains_key(ORIGIN)
}

/// Whether what is sent as `Authorization` or its like has the token as its password, under any name.
pub(crate) fn has_password(sent: Option<&HeaderValue>, token: &[u8]) -> bool {
    let sent = login(sent, b"Basic ").and_then(|sent| STANDARD.decode(sent).ok());
    let mut parts = sent
        .iter()
        .flat_map(|sent| sent.splitn(2, |byte| *byte == b':'));
    let password = parts.nth(1);
    password.is_some_and(|password| password.ct_eq(token).into())
}

/// What is sent under this scheme.
fn login<'a>(sent: Option<&'a HeaderValue>, scheme: &[u8]) -> Option<&'a [u8]> {
    let sent = sent?.as_bytes();
    let (named, sent) = sent.split_at_checked(scheme.len())?;
    named
        .eq_ignore_ascii_case(scheme)
        .then(|| sent.trim_ascii())
}

/// Whether the Host is an IP address or `localhost`, with any port or none, and no page of another site asks: browsers say
/// where a request is from. A person may follow a link from there.
fn is_no_pages(headers: &HeaderMap) -> bool {
    let says = |name, word| headers.get(name).is_some_and(|said| said == word);
    let is_other = ["cross-site", "same-site"].map(|word| says("sec-fetch-site", word));
    if is_other.contains(&true) && !says("sec-fetch-mode", "navigate") {
        return false;
    }
    let host = headers.get(HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    host.is_some_and(|authority| {
        let host = authority.host();
        let inside = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost") || inside.unwrap_or(host).parse::<IpAddr>().is_ok()
    })
}

/// The refusal of a request without the control token. It says whether another token came: both look alike to who sent
/// it.
fn untold(parts: &Parts, message: &str) -> String {
    match parts.headers.contains_key(AUTHORIZATION) {
        true => format!("{message}, and what was sent as Authorization is another one"),
        false => format!("{message}, and no Authorization was sent"),
    }
}

/// The refusal of another Host.
fn strange_host(parts: &Parts) -> Fault {
    let message = "without the control token this takes an IP address or localhost as Host, and no web page of another site";
    Fault::new("forbidden", untold(parts, message))
        .hinting("ask 127.0.0.1, or set server.control_token and send it as Authorization: Bearer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_only() {
        for (host, good) in [
            ("127.0.0.1", true),
            ("127.0.0.1:8080", true),
            ("10.1.2.3:8080", true),
            ("[::1]", true),
            ("[::1]:8080", true),
            ("localhost", true),
            ("LocalHost:9091", true),
            ("evil.example", false),
            ("evil.example:9091", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example:8080", false),
            ("evil.example:127.0.0.1", false),
            ("sidecar", false),
            ("localhost:", true),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static(host));
            assert_eq!(is_no_pages(&headers), good, "{host:?}");
        }
        // A page elsewhere can name an address, and says so.
        for (site, mode, good) in [
            ("cross-site", "no-cors", false),
            ("same-site", "cors", false),
            ("cross-site", "navigate", true),
            ("same-origin", "cors", true),
            ("none", "navigate", true),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("127.0.0.1:9091"));
            headers.insert("sec-fetch-site", HeaderValue::from_static(site));
            headers.insert("sec-fetch-mode", HeaderValue::from_static(mode));
            assert_eq!(is_no_pages(&headers), good, "{site} {mode}");
        }
        assert!(!is_no_pages(&HeaderMap::new()));
    }
}
