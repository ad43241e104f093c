//! Redirects and links of a service that lead to itself.

use http::Response;
use http::header::{self, Entry, HeaderValue};

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

/// Has links to the service itself (RFC 8288), such as that to the next page, lead here: by the name `here` that the call
/// has in its `Host`. Callers follow them as they stand, and what goes straight to the service is not limited.
pub(super) fn link_back(reply: &mut Response<Body>, service: &BaseUrl, here: &str) {
    let Entry::Occupied(mut lines) = reply.headers_mut().entry(header::LINK) else {
        return;
    };
    for line in lines.iter_mut() {
        let links = line.to_str().ok();
        let links = links.and_then(|links| links_here(service, here, links));
        if let Some(Ok(links)) = links.map(HeaderValue::try_from) {
            *line = links;
        }
    }
}

/// A line of links, in which those to the service lead here; `None`: it is none.
fn links_here(service: &BaseUrl, here: &str, links: &str) -> Option<String> {
    let (mut all, mut rest) = (String::new(), links);
    while let Some((before, link)) = rest.split_once('<') {
        let (to, end) = link.split_once('>')?;
        // Without a name it is one of whom the caller has called.
        let path = to.contains("//").then(|| path_here(service, to)).flatten();
        let to = path.map_or_else(|| to.to_owned(), |path| ["http://", here, &path].concat());
        all.extend([before, "<", &to, ">"]);
        rest = end;
    }
    all += rest;
    Some(all)
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
