//! OJS over HTTP: which operation a path names, and the words of its headers and media types.

use std::borrow::Cow;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// How deep JSON may nest in requests on routes that are read.
pub const DEPTH: usize = 64;
/// How deep in replies: a job may have come to the backend in another way, and what it brings is limited however deep
/// it nests. Nothing that reads them recurses.
pub const REPLY_DEPTH: usize = usize::MAX;

/// The media type of OJS bodies, exactly as backends send it.
pub const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/openjobspec+json");
/// The media type for clients that do not know [`MEDIA_TYPE`], and for every 429.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The version of the protocol that a reply speaks.
pub const OJS_VERSION: HeaderName = HeaderName::from_static("ojs-version");
/// The value of [`OJS_VERSION`] on replies of our own.
pub const VERSION: HeaderValue = HeaderValue::from_static("1.0");
/// A request's id, echoed in its reply.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The tenant a request is made for.
pub const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");
/// How long the producer would wait for room.
pub const BLOCK_TIMEOUT: HeaderName = HeaderName::from_static("ojs-block-timeout");
/// The trace that a request is part of, and its caller's place in it (W3C Trace Context).
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Whether the headers of a reply say that it speaks OJS: those of what stands before a backend do not.
pub fn speaks_ojs(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    headers.contains_key(OJS_VERSION)
        || kind.is_some_and(|kind| kind.starts_with(MEDIA_TYPE.as_bytes()))
}

/// The operation that a request names. Parts of the path are percent-decoded, and borrowed where nothing was encoded.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    missing_docs,
    reason = "fields are the parts of the path that stands above them"
)]
pub enum Operation<'a> {
    /// `POST /ojs/v1/jobs`
    Enqueue,
    /// `POST /ojs/v1/jobs/batch`
    Batch,
    /// `POST /ojs/v1/workers/fetch`
    Fetch,
    /// `POST /ojs/v1/workers/ack`
    Ack,
    /// `POST /ojs/v1/workers/nack`
    Nack,
    /// `POST /ojs/v1/workers/heartbeat`
    Heartbeat,
    /// `GET …/jobs/{id}`, plain and admin
    Job,
    /// `DELETE /ojs/v1/jobs/{id}` and `POST /ojs/v1/admin/jobs/{id}/cancel`
    CancelJob { id: Cow<'a, str> },
    /// `POST /ojs/v1/admin/jobs/{id}/retry`, and `POST …/dead-letter/{id}/retry`, plain and admin
    RetryJob { id: Cow<'a, str> },
    /// `POST /ojs/v1/admin/jobs/bulk/retry` and `POST /ojs/v1/admin/dead-letter/retry`
    RetryMany,
    /// `GET` of `/ojs/v1/admin/jobs` and `…/workers`, and of `…/dead-letter` and its `stats`, plain and admin
    Jobs,
    /// `GET …/queues`, plain and admin, and `GET /ojs/v1/admin/stats`
    Queues,
    /// `GET /ojs/v1/queues/{queue}/stats`
    QueueStats { queue: Cow<'a, str> },
    /// `POST …/queues/{queue}/pause`, plain and admin
    Pause { queue: Cow<'a, str> },
    /// `POST …/queues/{queue}/resume`, plain and admin
    Resume { queue: Cow<'a, str> },
    /// Any method on `…/queues/{queue}/config`, plain and admin
    QueueConfig { queue: Cow<'a, str> },
    /// Any method on `…/queues/{queue}/rate-limit`, plain and admin
    QueueLimit { queue: Cow<'a, str> },
    /// Any method on `/ojs/v1/admin/tenants/{id}`
    Tenant { id: Cow<'a, str> },
    /// Any method on `/ojs/v1/admin/tenants/{id}/limits`
    TenantLimits { id: Cow<'a, str> },
    /// `GET /ojs/v1/admin/queues/{queue}`
    AdminQueue { queue: Cow<'a, str> },
    /// `POST /ojs/v1/admin/reset`
    Reset,
    /// Any method on `/ojs/v1/rate-limits`
    RateLimits,
    /// Any method on `/ojs/v1/rate-limits/{key}`
    RateLimit { key: Cow<'a, str> },
    /// Any method on `/ojs/v1/rate-limits/{key}/override`
    Override { key: Cow<'a, str> },
    /// `POST` of `/ojs/v1/cron` and `/ojs/v1/workflows`
    NewTemplate,
    /// `GET` and `DELETE` of `/ojs/v1/cron`, `/ojs/v1/workflows` and what is under them
    Templates,
    /// `GET /ojs/v1/events/stream`
    EventStream,
    /// `GET` of `/ojs/v1/jobs/{id}/events` and `/ojs/v1/queues/{queue}/events`: streams of the backend's own
    BackendEvents,
    /// `GET /ojs/manifest`
    Manifest,
    /// `GET /ojs/v1/health`
    Health,
    /// Any other request, which passes.
    Other,
}

/// A path under `/ojs/` that a backend could read as another route than we do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadPath {
    /// `//`, or a slash at the end.
    #[error("the path has an empty segment")]
    EmptySegment,
    /// `.` or `..`, encoded or not.
    #[error("the path has a `.` or `..` segment")]
    DotSegment,
    /// `%2F`, `%5C`, `%00`, or a plain backslash.
    #[error("the path has an encoded slash, a backslash or a NUL")]
    Separator,
    /// `/ojs/v1/workers/FETCH`, or `/ojs/v1/workers/fetch;a=b`: some routers heed neither case nor parameters.
    #[error("the path has other letters than the spec, or parameters: write it as the spec has it")]
    Respelled,
}

/// The most segments of a path that an operation has: `ojs v1 admin queues {queue} rate-limit`.
const SEGMENTS: usize = 6;

impl<'a> Operation<'a> {
    /// The operation of `method` on `path` (raw, without the query).
    ///
    /// # Errors
    /// The path is, or could be read as, one under `/ojs/`, and is ambiguous.
    pub fn of(method: &Method, path: &'a str) -> Result<Operation<'a>, BadPath> {
        match Operation::as_written(method, path)? {
            Operation::Other if is_respelled(method, path) => Err(BadPath::Respelled),
            operation => Ok(operation),
        }
    }

    /// The operation to those who read each letter of the path.
    fn as_written(method: &Method, path: &'a str) -> Result<Operation<'a>, BadPath> {
        if let Some(bad) = ambiguous(path) {
            return if may_reach_ojs(path) {
                Err(bad)
            } else {
                Ok(Operation::Other)
            };
        }
        let segments = path.strip_prefix('/').unwrap_or(path);
        // Names are short: to look at each letter costs less than to begin a search for each name.
        let segments = segments.split(['/']);
        let mut count = 0;
        if !path.as_bytes().contains(&b'%') {
            // Nearly all are written plainly.
            let mut names = [""; SEGMENTS];
            for segment in segments {
                let Some(name) = names.get_mut(count) else {
                    return Ok(Operation::Other);
                };
                *name = segment;
                count += 1;
            }
            let part = |index| Cow::Borrowed(names.get(index).copied().unwrap_or_default());
            return Ok(named(method, names.get(..count), part));
        }
        let mut parts: [Cow<'a, str>; SEGMENTS] = Default::default();
        for segment in segments {
            let (Some(part), Some(text)) = (parts.get_mut(count), decoded(segment)) else {
                return Ok(Operation::Other);
            };
            *part = text;
            count += 1;
        }
        let names: [&str; SEGMENTS] =
            std::array::from_fn(|i| parts.get(i).map_or("", |part| part.as_ref()));
        let part = |index: usize| parts.get(index).cloned().unwrap_or_default();
        Ok(named(method, names.get(..count), part))
    }
}

/// Whether a POST to this path ends a job or keeps it alive. Only as SDKs spell it: the answer is needed
/// before anything else is.
pub fn is_urgent(path: &str) -> bool {
    let verb = path.strip_prefix("/ojs/v1/workers/");
    verb.is_some_and(|verb| matches!(verb, "ack" | "nack" | "heartbeat"))
}

/// The operation of a method on these segments; `part` gives one of them.
fn named<'a>(
    method: &Method,
    names: Option<&[&str]>,
    part: impl Fn(usize) -> Cow<'a, str>,
) -> Operation<'a> {
    match names {
        Some(["ojs", "v1", "admin", rest @ ..]) => admin(method.as_str(), rest, || part(4)),
        Some(["ojs", "v1", rest @ ..]) => plain(method.as_str(), rest, || part(3)),
        Some(["ojs", "manifest"]) if method == Method::GET => Operation::Manifest,
        _ => Operation::Other,
    }
}

/// Operations under `/ojs/v1/`; `name` is the second segment after it.
fn plain<'a>(method: &str, rest: &[&str], name: impl Fn() -> Cow<'a, str>) -> Operation<'a> {
    match (method, rest) {
        ("POST", ["workers", "fetch"]) => Operation::Fetch,
        ("POST", ["workers", "ack"]) => Operation::Ack,
        ("POST", ["workers", "nack"]) => Operation::Nack,
        ("POST", ["workers", "heartbeat"]) => Operation::Heartbeat,
        ("POST", ["jobs"]) => Operation::Enqueue,
        ("POST", ["jobs", "batch"]) => Operation::Batch,
        ("DELETE", ["jobs", _]) => Operation::CancelJob { id: name() },
        ("GET", ["jobs" | "queues", _, "events"]) => Operation::BackendEvents,
        ("GET", ["queues", _, "stats"]) => Operation::QueueStats { queue: name() },
        (_, ["rate-limits"]) => Operation::RateLimits,
        (_, ["rate-limits", _]) => Operation::RateLimit { key: name() },
        (_, ["rate-limits", _, "override"]) => Operation::Override { key: name() },
        ("POST", ["cron" | "workflows"]) => Operation::NewTemplate,
        ("GET" | "DELETE", ["cron" | "workflows"] | ["cron" | "workflows", _]) => {
            Operation::Templates
        }
        ("GET", ["events", "stream"]) => Operation::EventStream,
        ("GET", ["health"]) => Operation::Health,
        _ => either(method, rest, name),
    }
}

/// Operations under `/ojs/v1/admin/`; `name` is the second segment after it.
fn admin<'a>(method: &str, rest: &[&str], name: impl Fn() -> Cow<'a, str>) -> Operation<'a> {
    match (method, rest) {
        ("GET", ["jobs" | "workers"]) => Operation::Jobs,
        ("POST", ["jobs", _, "cancel"]) => Operation::CancelJob { id: name() },
        ("POST", ["jobs", "bulk", "retry"] | ["dead-letter", "retry"]) => Operation::RetryMany,
        ("POST", ["jobs", _, "retry"]) => Operation::RetryJob { id: name() },
        ("GET", ["queues", _]) => Operation::AdminQueue { queue: name() },
        ("GET", ["stats"]) => Operation::Queues,
        (_, ["tenants", _]) => Operation::Tenant { id: name() },
        (_, ["tenants", _, "limits"]) => Operation::TenantLimits { id: name() },
        ("POST", ["reset"]) => Operation::Reset,
        _ => either(method, rest, name),
    }
}

/// Operations that stand under both prefixes.
fn either<'a>(method: &str, rest: &[&str], name: impl Fn() -> Cow<'a, str>) -> Operation<'a> {
    match (method, rest) {
        ("POST", ["queues", _, "pause"]) => Operation::Pause { queue: name() },
        ("POST", ["queues", _, "resume"]) => Operation::Resume { queue: name() },
        (_, ["queues", _, "config"]) => Operation::QueueConfig { queue: name() },
        (_, ["queues", _, "rate-limit"]) => Operation::QueueLimit { queue: name() },
        ("GET", ["jobs", _]) => Operation::Job,
        ("GET", ["queues"]) => Operation::Queues,
        ("GET", ["dead-letter"] | ["dead-letter", "stats"]) => Operation::Jobs,
        ("POST", ["dead-letter", _, "retry"]) => Operation::RetryJob { id: name() },
        _ => Operation::Other,
    }
}

/// The trace that a [`TRACEPARENT`] names; `None`: it is not well formed. What a later version appends is not read.
pub fn trace_id(parent: &str) -> Option<&str> {
    let is_hex = |text: &str, digits: usize| {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        text.len() == digits && text.bytes().all(is_digit)
    };
    let is_id = |text: &str, digits| is_hex(text, digits) && text.bytes().any(|byte| byte != b'0');
    let mut parts = parent.splitn(5, '-');
    let [version, trace, caller, flags] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    let is_known = is_hex(version, 2) && version != "ff";
    let is_whole = is_hex(flags, 2) && (parts.next().is_none() || version != "00");
    (is_known && is_id(trace, 32) && is_id(caller, 16) && is_whole).then_some(trace)
}

/// The path with the escapes of unreserved characters undone, and no others (RFC 3986, 2.3): the
/// same path to whoever decodes, and the right one to backends that do not. `None`: there are no
/// such escapes, or the path is ambiguous without them.
pub fn plain_path(raw: &str) -> Option<String> {
    if !raw.contains('%') {
        return None;
    }
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('%') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let hex = from.get(1..3);
        let length = match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) if is_unreserved(byte) => {
                out.push(char::from(byte));
                3
            }
            _ => {
                out.push('%');
                1
            }
        };
        rest = from.get(length..).unwrap_or_default();
    }
    out.push_str(rest);
    (out.len() != raw.len() && ambiguous(&out).is_none()).then_some(out)
}

/// A word as a shell reads it: a name in a command that people copy.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A name as one segment of a path.
pub fn encoded(name: &str) -> String {
    utf8_percent_encode(name, RESERVED).to_string()
}

/// What stands escaped in a segment: all but the unreserved characters.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// The text of a path's segment or a query's value; `None` if it is not UTF-8 once decoded. A `%`
/// without two digits is itself.
pub fn decoded(segment: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(segment).decode_utf8().ok()
}

/// A path as most servers read it: decoded, without dot segments, empty ones and parameters. What is sent stays as it is.
pub fn resolved(path: &str) -> Cow<'_, str> {
    let is_plain = !path.contains(['%', ';', '\\']) && !path.contains("//");
    if is_plain && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut names = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Cow::Owned(["/", &names.join("/")].concat())
}

/// A segment of any path, from 0, decoded; `None`: it has not so many.
///
/// # Errors
/// Others could take another one for it.
pub fn segment(path: &str, nth: usize) -> Result<Option<Cow<'_, [u8]>>, BadPath> {
    let end = path.match_indices('/').nth(nth + 1);
    let (head, rest) = path.split_at(end.map_or(path.len(), |(at, _)| at));
    let rest: Cow<'_, [u8]> = percent_decode_str(rest).into();
    // What goes up again behind it leads past it.
    let mut names = rest.split(is_separator);
    if names.any(|name| matches!(name, b"." | b"..")) {
        return Err(BadPath::DotSegment);
    }
    // A slash at the end of all is usual.
    let named = match end {
        None => head.strip_suffix('/').unwrap_or(head),
        Some(_) => head,
    };
    let bad = ambiguous(named).filter(|_| !named.is_empty());
    let found = head.split('/').nth(nth + 1);
    bad.map_or(Ok(found.map(|text| percent_decode_str(text).into())), Err)
}

/// Why a path can be read in two ways, if it can.
fn ambiguous(path: &str) -> Option<BadPath> {
    let path = path.strip_prefix('/').unwrap_or(path);
    // Nearly all paths end here, after one look at each byte.
    let mut before = b'/';
    let plain = path.bytes().chain([b'/']).all(|byte| {
        let fine = !(before == b'/' && matches!(byte, b'/' | b'.') || matches!(byte, b'%' | b'\\'));
        before = byte;
        fine
    });
    if plain {
        return None;
    }
    path.split('/').find_map(|segment| {
        let first = segment.as_bytes().first();
        match first {
            None => return Some(BadPath::EmptySegment),
            Some(byte) if *byte != b'.' && !segment.contains(['%', '\\']) => return None,
            Some(_) => {}
        }
        let bytes: Cow<'_, [u8]> = percent_decode_str(segment).into();
        if bytes.iter().any(is_separator) {
            return Some(BadPath::Separator);
        }
        matches!(&*bytes, b"." | b"..").then_some(BadPath::DotSegment)
    })
}

/// Whether some way of reading a path could end under `/ojs/`: one of its names, however it is separated
/// and spelled, is `ojs`.
fn may_reach_ojs(path: &str) -> bool {
    let bytes: Cow<'_, [u8]> = percent_decode_str(path).into();
    let mut names = bytes.split(|byte| is_separator(byte) || *byte == b';');
    names.any(|name| name.eq_ignore_ascii_case(b"ojs"))
}

/// Whether a path that is no operation is one to a router that heeds neither the case of letters nor parameters. What
/// only reads passes: it takes no job past its limits.
fn is_respelled(method: &Method, path: &str) -> bool {
    if method.is_safe() || !may_reach_ojs(path) {
        return false;
    }
    let read = resolved(path).to_ascii_lowercase();
    Operation::as_written(method, &read).is_ok_and(|operation| operation != Operation::Other)
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b'/' | b'\\' | 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<'a>(method: &str, path: &'a str) -> Result<Operation<'a>, BadPath> {
        Operation::of(&Method::from_bytes(method.as_bytes()).unwrap(), path)
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn operations_by_path() {
        let q = || Cow::Borrowed("q");
        for (call, want) in [
            ("POST /ojs/v1/workers/fetch", Operation::Fetch),
            ("POST /ojs/v1/workers/%66etch", Operation::Fetch),
            ("POST /%6fjs/v1/workers/ack", Operation::Ack),
            ("GET /ojs/v1/workers/fetch", Operation::Other),
            ("fetch /", Operation::Other),
            ("post /ojs/v1/jobs", Operation::Other),
            ("POST /ojs/v1/jobs", Operation::Enqueue),
            ("POST /ojs/v1/jobs/batch", Operation::Batch),
            ("GET /ojs/v1/jobs/q", Operation::Job),
            ("DELETE /ojs/v1/jobs/q", Operation::CancelJob { id: q() }),
            (
                "POST /ojs/v1/admin/jobs/q/cancel",
                Operation::CancelJob { id: q() },
            ),
            (
                "POST /ojs/v1/admin/jobs/q/retry",
                Operation::RetryJob { id: q() },
            ),
            ("POST /ojs/v1/admin/jobs/bulk/retry", Operation::RetryMany),
            ("POST /ojs/v1/admin/dead-letter/retry", Operation::RetryMany),
            ("GET /ojs/v1/admin/jobs", Operation::Jobs),
            ("GET /ojs/v1/jobs/q/events", Operation::BackendEvents),
            (
                "GET /ojs/v1/queues/q/stats",
                Operation::QueueStats { queue: q() },
            ),
            (
                "POST /ojs/v1/queues/q/pause",
                Operation::Pause { queue: q() },
            ),
            (
                "POST /ojs/v1/admin/queues/q/resume",
                Operation::Resume { queue: q() },
            ),
            (
                "PUT /ojs/v1/admin/queues/q/config",
                Operation::QueueConfig { queue: q() },
            ),
            (
                "PUT /ojs/v1/rate-limits/q",
                Operation::RateLimit { key: q() },
            ),
            (
                "DELETE /ojs/v1/rate-limits/q/override",
                Operation::Override { key: q() },
            ),
            ("GET /ojs/v1/admin/dead-letter", Operation::Jobs),
            ("GET /ojs/v1/admin/dead-letter/stats", Operation::Jobs),
            ("GET /ojs/v1/admin/workers", Operation::Jobs),
            ("GET /ojs/v1/workflows/q", Operation::Templates),
            ("DELETE /ojs/v1/cron/q", Operation::Templates),
            ("GET /ojs/manifest", Operation::Manifest),
            ("POST /ojs/v1/admin/reset", Operation::Reset),
            ("GET /ojs/v1/a/b/c/d/e/f/g", Operation::Other),
            ("GET /ojs/v1/jobs/%ff", Operation::Other),
            ("GET *", Operation::Other),
            ("GET /", Operation::Other),
        ] {
            let (method, path) = call.split_once(' ').unwrap();
            assert_eq!(of(method, path), Ok(want), "{call}");
        }
    }

    #[test]
    fn names_are_decoded() {
        let queue = |text: &'static str| Operation::QueueStats {
            queue: Cow::Borrowed(text),
        };
        assert_eq!(
            of("GET", "/ojs/v1/queues/rs1%2Dhi%2Ex/stats"),
            Ok(queue("rs1-hi.x"))
        );
        assert_eq!(of("GET", "/ojs/v1/queues/100%/stats"), Ok(queue("100%")));
        assert_eq!(
            of("GET", "/ojs/v1/queues/%7B%7Bq%7D%7D/stats"),
            Ok(queue("{{q}}"))
        );
    }

    #[test]
    fn nothing_is_allocated_for_a_plain_path() {
        let Ok(Operation::CancelJob {
            id: Cow::Borrowed("x"),
        }) = of("DELETE", "/ojs/v1/jobs/x")
        else {
            panic!("not borrowed")
        };
    }

    #[test]
    fn what_could_be_read_as_another_route_is_refused() {
        for (path, why) in [
            ("/ojs/v1//workers/fetch", BadPath::EmptySegment),
            ("//ojs/v1/workers/fetch", BadPath::EmptySegment),
            ("/ojs/v1/workers/fetch/", BadPath::EmptySegment),
            ("/ojs/", BadPath::EmptySegment),
            ("/ojs/v1/x/../workers/fetch", BadPath::DotSegment),
            ("/ojs/v1/./workers/fetch", BadPath::DotSegment),
            ("/ojs/v1/x/%2e%2E/workers/fetch", BadPath::DotSegment),
            ("/ojs/v1/x/.%2e/workers/fetch", BadPath::DotSegment),
            ("/a/../ojs/v1/workers/fetch", BadPath::DotSegment),
            ("/a/..%2fojs/v1/workers/fetch", BadPath::Separator),
            ("/ojs/v1/workers%2Ffetch", BadPath::Separator),
            ("/ojs%5cv1/workers/fetch", BadPath::Separator),
            ("/ojs\\v1/workers/fetch", BadPath::Separator),
            ("/ojs/v1/workers/fetch%00", BadPath::Separator),
        ] {
            assert_eq!(of("POST", path), Err(why), "{path}");
        }
        for path in [
            "/metrics//x",
            "/a/../b",
            "/a%2Fb/",
            "/ojs/v1/jobs/...",
            "/ojs/v1/jobs/a.b",
        ] {
            assert!(of("PUT", path).is_ok(), "{path}");
        }
    }

    #[test]
    fn what_other_routers_read_as_an_operation_is_refused() {
        for call in [
            "POST /ojs/v1/workers/FETCH",
            "POST /ojs/v1/workers/fetch;a=b",
            "POST /ojs/v1/workers/fetch;",
            "POST /ojs/v1/workers/fetch%3Ba",
            "POST /ojs/v1/workers/fetch;%ff",
            "POST /ojs/v1/workers/fetch/;a",
            "POST /ojs/v1/x/..;/workers/fetch",
            "POST /x/..;/ojs/v1/workers/fetch",
            "POST /OJS/v1/jobs",
            "POST /ojs;a/V1/jobs/%42atch",
            "POST /ojs/v1/Workers/ack",
            "POST /ojs/v1/workers;a/nack",
            "POST /ojs/v1/workers/HeartBeat",
            "DELETE /ojs/v1/Jobs/Ab",
            "POST /ojs/v1/admin/JOBS/Ab/retry",
            "POST /ojs/v1/Cron",
            "PUT /ojs/v1/Queues/q/config",
        ] {
            let (method, path) = call.split_once(' ').unwrap();
            assert_eq!(of(method, path), Err(BadPath::Respelled), "{call}");
        }
        assert_eq!(of("GET", "/OJS//v1/jobs"), Err(BadPath::EmptySegment));
        // Names are spelled as they like, and so is what is no route or only reads.
        for call in [
            "DELETE /ojs/v1/jobs/Ab;c=d",
            "POST /ojs/v1/admin/jobs/AB/cancel",
            "POST /ojs/v1/queues/A;b/pause",
            "PUT /ojs/v1/queues/Fetch",
            "PUT /ojs/v1/queues/a%252Fb",
            "POST /ojs/v1/jobs/Ab",
            "POST /ojs/v1/X",
            "POST /v1/workers/FETCH",
            "POST /any/OJS/v1/jobs",
            "GET /ojs/v1/QUEUES",
            "OPTIONS /ojs/v1/Jobs",
        ] {
            let (method, path) = call.split_once(' ').unwrap();
            assert!(of(method, path).is_ok(), "{call}");
        }
    }

    #[test]
    fn a_trace_is_read_where_it_is_well_formed() {
        const ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
        for fine in [
            "00-ID-00f067aa0ba902b7-01",
            "cc-ID-00f067aa0ba902b7-00-more-and-more",
        ] {
            assert_eq!(trace_id(&fine.replace("ID", ID)), Some(ID), "{fine}");
        }
        for bad in [
            "",
            "ID",
            "00-ID",
            "00-ID-00f067aa0ba902b7",
            "00-ID-00f067aa0ba902b7-1",
            "00-ID-00f067aa0ba902b7-01-",
            "00-ID-0000000000000000-01",
            "00-ID-00f067aa0ba902bg-01",
            "0-ID-00f067aa0ba902b7-01",
            "ff-ID-00f067aa0ba902b7-01",
            "00-IDa-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            " 00-ID-00f067aa0ba902b7-01",
        ] {
            assert_eq!(trace_id(&bad.replace("ID", ID)), None, "{bad}");
        }
    }

    #[test]
    fn over_encoded_paths_become_plain() {
        let plain = |raw| plain_path(raw).unwrap_or_default();
        assert_eq!(
            plain("/ojs/v1/queues/a%2Db%2ec/stats"),
            "/ojs/v1/queues/a-b.c/stats"
        );
        assert_eq!(plain("/%7E%7b%2D"), "/~%7b-");
        for same in [
            "/ojs/v1/queues/a-b/stats",
            "/a%2Fb",
            "/%",
            "/%4",
            "/x%zz",
            "/%2e/a",
            "/%c3%a9",
        ] {
            assert_eq!(plain_path(same), None, "{same}");
        }
    }
}
