//! Redirects of a service that lead to itself.

use http::Response;
use http::header::{self, HeaderValue};

use crate::answers::body::Body;
use crate::wire::upstream::BaseUrl;

/// Has a redirect to the service itself come back here: as a path, which its caller asks of whom it has called.
pub(super) fn come_back(reply: &mut Response<Body>, service: &BaseUrl) {
    let to = reply.headers().get(header::LOCATION);
    let to = to.filter(|_| reply.status().is_redirection());
    let path = to.and_then(|to| path_here(service, to.to_str().ok()?));
    if let Some(Ok(path)) = path.map(HeaderValue::try_from) {
        reply.headers_mut().insert(header::LOCATION, path);
    }
}

/// How callers name here what a location of the service names; `None`: it leads elsewhere.
fn path_here(service: &BaseUrl, to: &str) -> Option<String> {
    let own = if service.tls { "https:" } else { "http:" };
    let path = match to.split_once("//") {
        Some((scheme, rest)) if scheme.is_empty() || scheme.eq_ignore_ascii_case(own) => {
            let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end)?;
            // As it is spelled here: in capitals, with a dot at the end or the usual port it is the same.
            let named: BaseUrl = format!("{own}//{authority}").parse().ok()?;
            let host = named.host.strip_suffix('.').unwrap_or(&named.host);
            if !host.eq_ignore_ascii_case(&service.host) || named.port != service.port {
                return None;
            }
            path
        }
        _ if to.starts_with('/') => to,
        _ => return None,
    };
    let (base, path) = path.split_at_checked(service.base.len())?;
    match path.as_bytes() {
        _ if !base.eq_ignore_ascii_case(&service.base) => None,
        // These would name a host.
        [b'/', b'/' | b'\\', ..] => None,
        [b'/', ..] => Some(path.to_owned()),
        [] | [b'?' | b'#', ..] => Some(["/", path].concat()),
        _ => None,
    }
}
