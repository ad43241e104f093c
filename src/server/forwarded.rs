//! `X-Forwarded-*`: who sent a request, for a backend that sees nobody but the sidecar.

use std::fmt::Display;
use std::net::IpAddr;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use http::uri::Scheme;

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const OF_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Says who sent this: behind those that whoever is in front of us has said, or alone.
pub(super) fn add(headers: &mut HeaderMap, client: IpAddr, scheme: &Scheme) {
    let before = headers
        .get_all(FOR)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let before: String = before.map(|line| format!("{line}, ")).collect();
    if let Some(all) = value(format_args!("{before}{}", client.to_canonical())) {
        headers.insert(FOR, all);
    }
    let host = headers.get(HOST).cloned();
    for (name, value) in [(OF_HOST, host), (PROTO, value(scheme))] {
        if let (false, Some(value)) = (headers.contains_key(&name), value) {
            headers.insert(name, value);
        }
    }
}

fn value(of: impl Display) -> Option<HeaderValue> {
    HeaderValue::try_from(of.to_string()).ok()
}
