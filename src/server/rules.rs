//! Rules for a request's head beyond hyper's own. Each refuses something that we and the backend could read in two
//! ways.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Uri, Version};

use ojs_answers::respond::Fault;
use ojs_wire::ojs::TENANT;
use ojs_wire::upstream::{HEADER_LINES, named_by_connection};

/// The beginning of the media types of gRPC.
const GRPC: &[u8] = b"application/grpc";

/// The methods that some path serves.
const SERVED: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Refuses an ambiguous head (RFC 9110, RFC 9112).
pub(super) fn check(head: &Parts) -> Result<(), Fault> {
    if matches!(head.method, Method::CONNECT | Method::TRACE) {
        let message = format!("{} is not served here", head.method);
        let fault = Fault::not_allowed(SERVED, message).closing();
        return Err(match head.method {
            Method::CONNECT => fault.hinting(
                "nothing is tunnelled here: give the SDK the http:// endpoint, or this address as its base URL",
            ),
            _ => fault,
        });
    }
    // Only CONNECT may name an authority alone (RFC 9112, 3.2.3): it would go on as `/`.
    if head.uri.authority().is_some() && head.uri.scheme().is_none() {
        return Err(refuse("the first line has a name and no path"));
    }
    let headers = &head.headers;
    let (mut hosts, mut logins, mut tenants) = (0, 0, 0);
    // One pass over the lines costs less than a lookup for each rule.
    for (name, value) in headers {
        match *name {
            header::HOST => {
                hosts += 1;
                host(value)?;
            }
            header::TRANSFER_ENCODING => transfer_encoding(headers)?,
            header::EXPECT => expect(value, head.version)?,
            header::CONNECTION => connection(headers)?,
            header::CONTENT_TYPE => media_type(value)?,
            header::AUTHORIZATION => logins += 1,
            _ if *name == TENANT => {
                tenants += 1;
                tenant(value)?;
            }
            _ => {}
        }
    }
    // Some servers read the first one, some the last one, and some join them.
    if logins > 1 {
        return Err(refuse("the request has two Authorization headers"));
    }
    if tenants > 1 {
        return Err(refuse("the request has two X-OJS-Tenant headers"));
    }
    // RFC 9112, 3.2; HTTP/1.0 may say none.
    match hosts {
        1 => Ok(()),
        0 if head.version < Version::HTTP_11 => Ok(()),
        0 => Err(refuse("the request has no Host header")),
        _ => Err(refuse("the request has two Host headers")),
    }
}

/// Has the head of a request over HTTP/2 say what it would over HTTP/1.1, which the backend speaks (RFC 9113, 8.3.1).
pub(super) fn as_http1(head: &mut Parts) -> Result<(), Fault> {
    if head.headers.get_all(header::CONTENT_LENGTH).iter().count() > 1 {
        return Err(refuse("the request has two Content-Length headers"));
    }
    if head.headers.len() > HEADER_LINES {
        return Err(Fault::head(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
    }
    // HTTP/1.1 has no such values: the backend would trim them, and see another tenant than we do.
    if let Some((name, _)) = head.headers.iter().find(|(_, value)| is_padded(value)) {
        let message = format!("the value of {name} begins or ends with a space or a tab");
        return Err(refuse(&message));
    }
    let host = head.headers.get(header::HOST);
    if let Some(authority) = head.uri.authority() {
        if host.is_some_and(|host| *host != *authority.as_str()) {
            return Err(refuse("Host is another one than :authority"));
        }
        let host = HeaderValue::from_str(authority.as_str());
        let host = host.map_err(|_| refuse("the request has no :authority that can be a Host"))?;
        head.headers.insert(header::HOST, host);
    }
    // What may stand in several lines there is one line here.
    let cookies = head.headers.get_all(header::COOKIE).iter();
    let cookies: Vec<&[u8]> = cookies.map(HeaderValue::as_bytes).collect();
    if let (2.., Ok(one)) = (
        cookies.len(),
        HeaderValue::from_bytes(&cookies.join(&b"; "[..])),
    ) {
        head.headers.insert(header::COOKIE, one);
    }
    if let Some(path) = head.uri.path_and_query() {
        head.uri = Uri::from(path.clone());
    }
    head.version = Version::HTTP_11;
    Ok(())
}

/// Whether a value has what it must not over HTTP/2 (RFC 9113, 8.2.1).
fn is_padded(value: &HeaderValue) -> bool {
    let value = value.as_bytes();
    [value.first(), value.last()]
        .iter()
        .any(|byte| matches!(byte, Some(b' ' | b'\t')))
}

/// Refuses a value that is more than `host[:port]`.
fn host(value: &HeaderValue) -> Result<(), Fault> {
    let plain = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':' | b'[' | b']' | b'%')
    };
    if value.as_bytes().iter().all(plain) {
        return Ok(());
    }
    Err(refuse("Host is no host and port"))
}

/// Refuses a tenant that is not UTF-8: it would be no tenant here, and some tenant to the backend.
fn tenant(value: &HeaderValue) -> Result<(), Fault> {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(_) => Ok(()),
        Err(_) => Err(refuse("X-OJS-Tenant is not UTF-8")),
    }
}

/// Accepts only a single `chunked`. We undo no other coding, and requests are smuggled with a second one.
fn transfer_encoding(headers: &HeaderMap) -> Result<(), Fault> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let first = codings.next().map(|coding| coding.as_bytes().trim_ascii());
    if codings.next().is_none()
        && first.is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"))
    {
        return Ok(());
    }
    let message = "Transfer-Encoding may be one `chunked` only";
    Err(Fault::new("not_implemented", message).closing())
}

fn expect(expectation: &HeaderValue, version: Version) -> Result<(), Fault> {
    if version < Version::HTTP_11 || expectation.as_bytes().eq_ignore_ascii_case(b"100-continue") {
        return Ok(());
    }
    let message = "the only expectation known here is 100-continue";
    Err(Fault::new("expectation_failed", message).closing())
}

/// Refuses gRPC, and gRPC-Web over HTTP/1.1: it would take jobs past their limits.
fn media_type(value: &HeaderValue) -> Result<(), Fault> {
    let value = value.as_bytes().trim_ascii();
    let (begin, rest) = value.split_at_checked(GRPC.len()).unwrap_or_default();
    let whole = !rest.first().is_some_and(u8::is_ascii_alphanumeric);
    if !begin.eq_ignore_ascii_case(GRPC) || !whole {
        return Ok(());
    }
    let message = "gRPC does not pass through ojs-throttle";
    Err(Fault::new("unsupported_media_type", message)
        .hinting("speak OJS over HTTP with JSON: limits are not enforced on gRPC")
        .closing())
}

/// Refuses a `Connection` header that names a header with meaning: named headers do not reach the backend.
fn connection(headers: &HeaderMap) -> Result<(), Fault> {
    match named_by_connection(headers).find(is_protected) {
        Some(name) => Err(refuse(&format!("Connection must not name {name}"))),
        None => Ok(()),
    }
}

fn is_protected(name: &HeaderName) -> bool {
    let text = name.as_str();
    text.starts_with("ojs-")
        || text.starts_with("x-ojs-")
        || matches!(
            text,
            "host"
                | "authorization"
                | "content-length"
                | "content-type"
                | "content-encoding"
                | "transfer-encoding"
                | "expect"
                | "x-request-id"
                // What says by which way a request came: some of it is ours.
                | "forwarded"
                | "via"
                | "x-forwarded-for"
                | "x-forwarded-host"
                | "x-forwarded-proto"
                | "x-real-ip"
        )
}

fn refuse(message: &str) -> Fault {
    Fault::bad_request(message)
        .hinting("send each header once and plainly: this could be read in two ways")
        .closing()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(lines: &[(&str, &str)]) -> u16 {
        let mut request = http::Request::builder().header("Host", "h:1");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap().into_parts().0)
            .err()
            .map_or(200, |fault| fault.status.as_u16())
    }

    #[test]
    fn heads_that_are_read_in_one_way_only() {
        for (line, want) in [
            (
                (
                    "connection",
                    "keep-alive, TE, Upgrade, HTTP2-Settings, x-own",
                ),
                200,
            ),
            (("connection", "close, Authorization"), 400),
            (("connection", "HOST"), 400),
            (("connection", "OJS-Version"), 400),
            (("connection", "X-OJS-Tenant"), 400),
            (("connection", "content-length"), 400),
            (("connection", "X-Forwarded-For"), 400),
            (("connection", "keep-alive, x-forwarded-host"), 400),
            (("connection", "x-forwarded-proto"), 400),
            (("connection", "Forwarded"), 400),
            (("connection", "via"), 400),
            (("connection", "X-Real-IP"), 400),
            (("transfer-encoding", " Chunked "), 200),
            (("transfer-encoding", "gzip, chunked"), 501),
            (("transfer-encoding", "chunked, chunked"), 501),
            (("expect", "100-Continue"), 200),
            (("expect", "foo"), 417),
            (("content-type", "application/openjobspec+json"), 200),
            (("content-type", "application/grpcurl"), 200),
            (("content-type", "application/grp"), 200),
            (("content-type", "application/grpc"), 415),
            (("content-type", "Application/gRPC ; a=b"), 415),
            (("content-type", "application/grpc+proto"), 415),
            (("content-type", "application/grpc-web-text+proto"), 415),
            (("host", "other"), 400),
            (("x-ojs-tenant", "café"), 200),
        ] {
            assert_eq!(status(&[line]), want, "{line:?}");
        }
        for name in ["X-OJS-Tenant", "authorization"] {
            assert_eq!(status(&[(name, "a")]), 200);
            assert_eq!(status(&[(name, "a"), (name, "b")]), 400, "{name}");
        }
        let latin = HeaderValue::from_bytes(b"caf\xe9").unwrap();
        assert!(tenant(&latin).is_err());
        assert_eq!(
            status(&[
                ("transfer-encoding", "chunked"),
                ("transfer-encoding", "chunked")
            ]),
            501
        );
    }

    #[test]
    fn what_http_1_trims_is_refused_over_http_2() {
        for (name, value, good) in [
            ("x-ojs-tenant", "acme", true),
            ("x-ojs-tenant", "a \tb", true),
            ("x-ojs-tenant", "", true),
            ("x-ojs-tenant", " acme", false),
            ("x-ojs-tenant", "acme ", false),
            ("x-ojs-tenant", " ", false),
            ("authorization", "\tBearer a", false),
            ("x-own", "a\t", false),
        ] {
            let request = http::Request::get("https://h:1/").version(Version::HTTP_2);
            // Each line of a name counts.
            let request = request.header(name, "first").header(name, value);
            let mut head = request.body(()).unwrap().into_parts().0;
            let status = as_http1(&mut head).err().map(|fault| fault.status.as_u16());
            assert_eq!(status, (!good).then_some(400), "{name}: {value:?}");
        }
    }

    #[test]
    fn hosts() {
        for (host, good) in [
            ("h", true),
            ("[::1]:80", true),
            ("a_b.c-d:8080", true),
            ("a/b@c", false),
            ("a b", false),
        ] {
            assert_eq!(
                super::host(&HeaderValue::from_static(host)).is_ok(),
                good,
                "{host}"
            );
        }
    }
}
