//! Redirects and links of a service that lead to itself. They are bytes, of which not all need be letters.

use http::header::{self, Entry, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Response, StatusCode, uri};

use crate::answers::body::Body;
use crate::config::{EgressSettings, one_name};
use crate::wire::upstream::{BaseUrl, detached};

/// How a caller names the service, and so how it comes back here: what goes straight to the service is not limited.
pub(super) enum CalledBy {
    /// By whole URLs of http, as of a proxy.
    WholeUrl,
    /// By whole URLs of https. What the service names comes back as it stands.
    SecureUrl,
    /// By the service's own name in `Host`, or by none: only a path surely comes back.
    Name,
    /// By the address of this way out, which its `Host` has, unless that names the service.
    Address(HeaderValue),
}

/// What a caller does with a reference.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reference {
    /// It asks whom it has called.
    Redirect,
    /// It may follow it as it stands.
    Link,
}

impl CalledBy {
    /// As this call does.
    pub(super) fn of(parts: &Parts) -> CalledBy {
        if parts.uri.authority().is_some() {
            return match parts.uri.scheme() == Some(&uri::Scheme::HTTPS) {
                true => CalledBy::SecureUrl,
                false => CalledBy::WholeUrl,
            };
        }
        // A copy: with a part of it, all that was read with the head would stay while the call waits.
        let host = parts.headers.get(header::HOST).map(detached);
        host.map_or(CalledBy::Name, CalledBy::Address)
    }

    /// By the name of the service, where `Host` has that.
    fn or_name(self, entry: &EgressSettings) -> CalledBy {
        let CalledBy::Address(host) = &self else {
            return self;
        };
        let name = host.to_str().ok().and_then(one_name);
        match name.is_some_and(|name| entry.goes_to(&name).is_some()) {
            true => CalledBy::Name,
            false => self,
        }
    }

    /// Has what leads to the service itself come back here: redirects, links (RFC 8288) such as that to the next page, and
    /// where to look at what a call has made.
    pub(super) fn lead_back(
        self,
        reply: &mut Response<Body>,
        entry: &EgressSettings,
        service: &BaseUrl,
    ) {
        let mut leading = [header::LOCATION, header::LINK].into_iter();
        if !leading.any(|name| reply.headers().contains_key(name)) {
            return;
        }
        let called_by = self.or_name(entry);
        let location = match reply.status() {
            StatusCode::CREATED | StatusCode::ACCEPTED => Some(Reference::Link),
            status => status.is_redirection().then_some(Reference::Redirect),
        };
        if let Some(kind) = location {
            let change = |to: &[u8]| called_by.led_back(service, to, kind);
            change_lines(reply, &header::LOCATION, change);
        }
        change_lines(reply, &header::LINK, |links| {
            change_links(links, |to| called_by.led_back(service, to, Reference::Link))
        });
    }

    /// How a reference to the service itself comes back here; `None`: it stays as it is.
    fn led_back(&self, service: &BaseUrl, to: &[u8], kind: Reference) -> Option<Vec<u8>> {
        let Some((host, path)) = below_base(service, to) else {
            return self.led_around(service, to);
        };
        let slash = if path.starts_with(b"/") { "" } else { "/" };
        let path = [slash.as_bytes(), path].concat();
        match self {
            CalledBy::SecureUrl => None,
            CalledBy::WholeUrl => {
                let is_secure = host == OwnHost::WithScheme && service.tls;
                let rest = to.get("https".len()..).filter(|_| is_secure)?;
                Some([b"http", rest].concat())
            }
            CalledBy::Address(here) if kind == Reference::Link && host != OwnHost::Unnamed => {
                Some([b"http://", here.as_bytes(), &path].concat())
            }
            CalledBy::Name if kind == Reference::Link && host != OwnHost::Unnamed => None,
            // These would name a host.
            _ if matches!(path.as_slice(), [_, b'/' | b'\\', ..]) => None,
            _ => Some(path),
        }
    }

    /// A path that stands outside the base is another one for a caller who has no base: it becomes a whole URL.
    fn led_around(&self, service: &BaseUrl, to: &[u8]) -> Option<Vec<u8>> {
        let is_path = to.starts_with(b"/") && !to.starts_with(b"//");
        let has_base = matches!(self, CalledBy::WholeUrl | CalledBy::SecureUrl);
        let scheme = if service.tls { "https" } else { "http" };
        let origin = format!("{scheme}://{}", service.authority());
        (is_path && !has_base && !service.base.is_empty()).then(|| [origin.as_bytes(), to].concat())
    }
}

/// How a reference to the service names its host.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnHost {
    WithScheme,
    WithoutScheme,
    Unnamed,
}

/// Reads a reference to the service itself: how it names the host, and its path without the base. `None`: it leads elsewhere,
/// or is no more than the end of a path.
fn below_base<'t>(service: &BaseUrl, to: &'t [u8]) -> Option<(OwnHost, &'t [u8])> {
    let own = if service.tls { "https:" } else { "http:" };
    let (scheme, rest) = to.split_at_checked(own.len()).unwrap_or_default();
    let has_scheme = scheme.eq_ignore_ascii_case(own.as_bytes());
    let rest = if has_scheme { rest } else { to };
    let (host, path) = match rest.strip_prefix(b"//") {
        Some(rest) => {
            let is_end = |byte: &u8| matches!(byte, b'/' | b'?' | b'#' | b'\\');
            let end = rest.iter().position(is_end).unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end)?;
            if !is_of(service, own, authority) {
                return None;
            }
            let host = match has_scheme {
                true => OwnHost::WithScheme,
                false => OwnHost::WithoutScheme,
            };
            (host, path)
        }
        None if has_scheme || !to.starts_with(b"/") => return None,
        None => (OwnHost::Unnamed, to),
    };
    let (base, path) = path.split_at_checked(service.base.len())?;
    let is_below = base.eq_ignore_ascii_case(service.base.as_bytes())
        && matches!(path, [] | [b'/' | b'?' | b'#', ..])
        && (base.is_empty() || !climbs(path));
    is_below.then_some((host, path))
}

/// Whether a path leads above where it begins, by `..`.
fn climbs(path: &[u8]) -> bool {
    let path = path.split(|byte| matches!(byte, b'?' | b'#')).next();
    let segments = path.unwrap_or_default().split(|byte| *byte == b'/').skip(1);
    let mut depth = 0_u32;
    for segment in segments {
        let segment = segment.to_ascii_lowercase();
        depth = match String::from_utf8_lossy(&segment)
            .replace("%2e", ".")
            .as_str()
        {
            "." => depth,
            ".." if depth == 0 => return true,
            ".." => depth - 1,
            _ => depth + 1,
        };
    }
    false
}

/// Whether this is the service's host and port: in capitals, with a dot at the end or the usual port it is the same.
fn is_of(service: &BaseUrl, scheme: &str, authority: &[u8]) -> bool {
    let authority = std::str::from_utf8(authority).unwrap_or_default();
    let named = format!("{scheme}//{authority}").parse();
    named.is_ok_and(|named: BaseUrl| {
        let host = named.host.strip_suffix('.').unwrap_or(&named.host);
        host.eq_ignore_ascii_case(&service.host) && named.port == service.port
    })
}

/// Changes all lines of a header of which `change` makes something.
fn change_lines(
    reply: &mut Response<Body>,
    name: &HeaderName,
    change: impl Fn(&[u8]) -> Option<Vec<u8>>,
) {
    let Entry::Occupied(mut lines) = reply.headers_mut().entry(name) else {
        return;
    };
    for line in lines.iter_mut() {
        let changed = change(line.as_bytes()).map(HeaderValue::try_from);
        if let Some(Ok(changed)) = changed {
            *line = changed;
        }
    }
}

/// A line of links with what `change` makes of their references. What stands in quotes is none.
fn change_links(line: &[u8], change: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    // A link begins the line, or stands behind a comma.
    let (mut all, mut rest, mut begins) = (Vec::new(), line, true);
    while let Some((first, after)) = rest.split_first() {
        let length = match first {
            b'<' if begins => after.iter().position(|byte| *byte == b'>'),
            b'"' => quoted(after),
            _ => Some(0),
        };
        // What does not end is none.
        let Some((part, behind)) = length.and_then(|more| rest.split_at_checked(1 + more)) else {
            break;
        };
        match part {
            [b'<', to @ ..] if begins => {
                all.push(b'<');
                all.extend(change(to).unwrap_or_else(|| to.to_vec()));
            }
            _ => all.extend(part),
        }
        begins = *first == b',' || begins && matches!(first, b' ' | b'\t');
        rest = behind;
    }
    all.extend(rest);
    Some(all)
}

/// How long a text in quotes is behind the first one, with the last one; `None`: it does not end.
fn quoted(text: &[u8]) -> Option<usize> {
    let mut bytes = text.iter().enumerate();
    while let Some((nth, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(nth + 1),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}
