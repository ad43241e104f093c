//! Where being on loopback is the permission, a web page must not have it: a browser on this machine reaches
//! loopback, and DNS rebinding makes a page's own name mean it. A page's requests carry that name as their
//! Host; an IP address or `localhost` no page can make its own.

use std::net::IpAddr;

use http::header::{HOST, HeaderMap};
use http::uri::Authority;

use crate::proxy::respond::Fault;

/// Whether the Host is an IP address or `localhost`, with any port or none.
pub(super) fn is_no_pages(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST);
    let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    host.is_some_and(|authority| {
        let host = authority.host();
        let inside = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']'));
        host.eq_ignore_ascii_case("localhost") || inside.unwrap_or(host).parse::<IpAddr>().is_ok()
    })
}

/// The refusal of another Host.
pub(super) fn refused() -> Fault {
    let message = "without the control token this takes an IP address or localhost as Host, as no web page sends it";
    Fault::new("forbidden", message)
        .hinting("ask 127.0.0.1, or set server.control_token and send it as Authorization: Bearer")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
        assert!(!is_no_pages(&HeaderMap::new()));
    }
}
