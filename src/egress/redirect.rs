//! Redirects of a service that lead to itself.

use http::Response;
use http::header::{self, HeaderValue};

use crate::answers::body::Body;
use crate::wire::upstream::BaseUrl;

/// Has a redirect to the service itself come back here: as a path, which its caller asks of whom it has called.
pub(super) fn come_back(reply: &mut Response<Body>, service: &BaseUrl) {
    let to = reply.headers().get(header::LOCATION);
    let to = to.filter(|_| reply.status().is_redirection());
    let path = to.and_then(|to| path_here(&service.to_string(), &service.base, to.to_str().ok()?));
    if let Some(Ok(path)) = path.map(HeaderValue::try_from) {
        reply.headers_mut().insert(header::LOCATION, path);
    }
}

/// How callers name here what a location of the service names, which is at `url`; `None`: it leads elsewhere.
fn path_here(url: &str, base: &str, to: &str) -> Option<String> {
    let without_scheme = url.trim_start_matches("https:").trim_start_matches("http:");
    let own = match to.as_bytes() {
        [b'/', b'/', ..] => without_scheme,
        [b'/', ..] => base,
        _ => url,
    };
    let (begin, path) = to.split_at_checked(own.len())?;
    match path.as_bytes() {
        _ if !begin.eq_ignore_ascii_case(own) => None,
        // These would name a host.
        [b'/', b'/' | b'\\', ..] => None,
        [b'/', ..] => Some(path.to_owned()),
        [] | [b'?' | b'#', ..] => Some(["/", path].concat()),
        _ => None,
    }
}
