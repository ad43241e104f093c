//! Finds and removes the headers that belong to one connection and must not cross to the other side.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// `http` has no constant for this name.
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// Old clients send this instead of `Connection`.
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
/// Sent with `Upgrade: h2c`, which Java's client offers on every first request.
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Which headers of a request need a change. One pass over the names costs less than a lookup for each of these.
#[derive(Clone, Copy, Default)]
pub(super) struct SpecialHeaders {
    pub(super) hop_by_hop: bool,
    pub(super) upgrade: bool,
    pub(super) expect: bool,
    pub(super) content_length: bool,
}

/// Copies a value into memory of its own. A received value is a part of everything that was read with it, and would
/// keep all of it alive.
pub fn detached(value: &HeaderValue) -> HeaderValue {
    // Always `Ok`: these bytes are a value already.
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

impl SpecialHeaders {
    pub(super) fn of(headers: &HeaderMap) -> SpecialHeaders {
        let mut seen = SpecialHeaders::default();
        for name in headers.keys() {
            match *name {
                header::EXPECT => seen.expect = true,
                header::CONTENT_LENGTH => seen.content_length = true,
                _ => {
                    seen.upgrade |= *name == header::UPGRADE;
                    seen.hop_by_hop |= is_hop_by_hop(name);
                }
            }
        }
        seen
    }
}

/// Whether the headers say this length, once and in digits.
pub(super) fn says_length(headers: &HeaderMap, length: usize) -> bool {
    let mut lines = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return false;
    };
    let digits = line.as_bytes();
    digits.iter().all(u8::is_ascii_digit)
        && line.to_str().is_ok_and(|text| text.parse() == Ok(length))
}

/// Removes the hop-by-hop headers (RFC 9110, 7.6.1) and those that `Connection` names. Where both
/// lengths are given the chunked one counts, so `Content-Length` goes with `Transfer-Encoding`
/// (RFC 9112, 6.3). Lines of one name keep their order; different names may change places, which
/// means nothing (RFC 9110, 5.3).
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    // Most heads have at most one of these, and a look at each name costs less than eight lookups.
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let named: Vec<HeaderName> = named_by_connection(headers).collect();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    for name in named {
        headers.remove(name);
    }
    while let Some(name) = headers.keys().find(|name| is_hop_by_hop(name)).cloned() {
        headers.remove(name);
    }
}

/// The headers that `Connection` lines name; words that are no header names are passed over.
pub fn named_by_connection(headers: &HeaderMap) -> impl Iterator<Item = HeaderName> + '_ {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(|word| word.trim_ascii())
        // These two frequent words belong to the protocol and name no header.
        .filter(|word| {
            !word.eq_ignore_ascii_case(b"keep-alive") && !word.eq_ignore_ascii_case(b"close")
        })
        .filter_map(|word| HeaderName::from_bytes(word).ok())
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::TE
        | header::TRAILER
        | header::TRANSFER_ENCODING
        | header::UPGRADE => true,
        // `http` tells the names it knows apart by number; only the others are compared as text.
        _ => *name == KEEP_ALIVE || *name == PROXY_CONNECTION || *name == HTTP2_SETTINGS,
    }
}

/// Whether the client wants to switch to WebSocket. The other offer that is seen, Java's `h2c`, may be ignored.
pub fn wants_websocket(headers: &HeaderMap) -> bool {
    let protocol = headers.get(header::UPGRADE).map(HeaderValue::as_bytes);
    protocol.is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))
        && named_by_connection(headers).any(|name| name == header::UPGRADE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        headers
    }

    fn left(lines: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers = heads(lines);
        strip_hop_by_hop(&mut headers);
        headers.keys().map(|name| name.to_string()).collect()
    }

    #[test]
    fn what_belongs_to_one_connection_goes() {
        assert_eq!(
            left(&[
                ("content-type", "application/json"),
                ("connection", "Upgrade, HTTP2-Settings, x-mine"),
                ("connection", "keep-alive"),
                ("upgrade", "h2c"),
                ("http2-settings", "AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA"),
                ("x-mine", "1"),
                ("te", "trailers"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "keep-alive"),
                ("x-yours", "2"),
            ]),
            ["content-type", "x-yours"]
        );
    }

    #[test]
    fn the_chunked_length_wins() {
        assert_eq!(
            left(&[("content-length", "5"), ("transfer-encoding", "chunked")]),
            [""; 0]
        );
        assert_eq!(left(&[("content-length", "5")]), ["content-length"]);
    }

    #[test]
    fn a_length_that_fits_is_one_line_of_digits() {
        let says = |lines: &[&'static str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("content-length", *line)).collect();
            says_length(&heads(&lines), 5)
        };
        assert!(says(&["5"]) && says(&["05"]));
        for wrong in [&["6"][..], &["+5"], &[""], &["5", "5"], &["5, 5"], &[]] {
            assert!(!says(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn order_is_kept_when_nothing_goes() {
        assert_eq!(left(&[("b", "1"), ("a", "2"), ("c", "3")]), ["b", "a", "c"]);
    }
}
