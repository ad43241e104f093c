//! Nobody outside sees subqueues: what a client gets names their bases, and a client that names one is refused.

use std::borrow::Cow;
use std::sync::Arc;

use http::uri::Uri;
use http::{HeaderMap, HeaderValue, Response, header};
use percent_encoding::percent_decode_str;

use super::in_force::limits_queue;
use crate::answers::body::Body;
use crate::answers::respond::Fault;
use crate::desk::Sidecar;
use crate::json::{self, Json, JsonError};
use crate::limit::Space;
use crate::policy::subqueue;
use crate::store::LedgerExt;
use crate::subqueues::names::{self, NameReader, ReplyKind};
use crate::subqueues::{Subqueues, mirror};
use crate::wire::ojs::DEPTH;

/// What stands between names in a path or a query.
const SEPARATORS: &[char] = &[
    '/', '?', '&', '=', ',', ':', ';', '|', '+', ' ', '"', '\'', '[', ']',
];
/// So many times the escapes of a path are undone: whoever is behind the backend may do it again.
const DECODED: usize = 3;

/// 400 for a request whose path or query names a subqueue. Few have its marker or an escape, and no others are read.
pub(crate) fn named_in_target(sidecar: &Sidecar, uri: &Uri) -> Option<Fault> {
    let target = uri.path_and_query()?.as_str();
    if !subqueue::may_name(target.as_bytes()) && !target.contains('%') {
        return None;
    }
    let mut target = Cow::Borrowed(target);
    for _ in 0..=DECODED {
        let names = target.split(SEPARATORS);
        let kept = names.filter_map(|name| kept_base(sidecar, name)).next();
        if let Some(base) = kept {
            return Some(refusal("path", base));
        }
        let decoded = percent_decode_str(&target).decode_utf8_lossy();
        target = Cow::Owned(decoded.into_owned());
    }
    None
}

/// 400 for a body that names a subqueue where a queue is named, or that only others can read. Where nothing is limited,
/// bodies are not looked into.
pub(crate) fn named_in_body(sidecar: &Sidecar, body: &[u8]) -> Option<Fault> {
    let has_subqueues = sidecar.subqueues.any();
    let is_limited = has_subqueues
        || !sidecar.live().policies.is_empty()
        || sidecar.admit.pressure.any()
        || sidecar.store.overrides().any(Space::Queue);
    if !is_limited || !(subqueue::may_name(body) || json::is_wide(body)) {
        return None;
    }
    match Json::parse(body, DEPTH) {
        Ok(whole) => named_inside(sidecar, whole),
        Err(error) if has_subqueues => unreadable(body, error),
        // It is refused by who reads it.
        Err(_) => None,
    }
}

/// 400 for a body that some backends understand and we do not: its jobs would go round limits and bounds. `None`: it
/// is no JSON to any backend, which will say so.
pub(crate) fn unreadable(body: &[u8], error: JsonError) -> Option<Fault> {
    let why = match error {
        JsonError::Deep(_) => return Some(Fault::deep()),
        JsonError::Trailing(_) => return Some(Fault::bad_request(error.to_string())),
        JsonError::Malformed(_) => format!("the body {}", json::oddity(body, error)?),
    };
    let hint = "send JSON as RFC 8259 has it: in UTF-8, without a byte order mark";
    Some(Fault::bad_request(why).hinting(hint))
}

/// Looks into what may name one, and so no deeper than the whole was found to nest.
fn named_inside(sidecar: &Sidecar, value: Json<'_>) -> Option<Fault> {
    if !subqueue::may_name(value.raw()) {
        return None;
    }
    let mut members = value.members().filter(|member| !mirror::is_own(member));
    let found = members.find_map(|member| {
        let mut fields = ["queue", "queues"].into_iter();
        let field = fields.find(|field| member.is_named(field));
        let named = field.and_then(|field| {
            let mut texts = member.value.items().chain([member.value]);
            texts.find_map(|text| Some(refusal(field, kept_base(sidecar, &text.text()?)?)))
        });
        named.or_else(|| named_inside(sidecar, member.value))
    });
    let mut items = value.items();
    found.or_else(|| items.find_map(|item| named_inside(sidecar, item)))
}

/// The base of a subqueue's name that is kept: the base has subqueues, or limits or bounds which its jobs would go around.
fn kept_base<'a>(sidecar: &Sidecar, name: &'a str) -> Option<&'a str> {
    let (base, _) = subqueue::split(name)?;
    let is_kept = sidecar.subqueues.has(base)
        || limits_queue(sidecar, base, &sidecar.live().policies)
        || sidecar.admit.pressure.bounds(base).is_some();
    is_kept.then_some(base)
}

/// It does not repeat what was named.
fn refusal(field: &str, base: &str) -> Fault {
    let message =
        format!("such names are kept for jobs of {base:?} that wait for a key: name {base:?}");
    Fault::field(field, &message)
        .with("queue", base)
        .hinting("name the queue itself: its jobs are found wherever they wait")
}

/// What the reply to a request for this path may have names in.
pub(crate) fn kind_of(path: &str) -> ReplyKind {
    ReplyKind {
        lists_queues: path.ends_with("/queues") || path.ends_with("/admin/stats"),
        ..ReplyKind::default()
    }
}

/// Makes a reply what a client gets: its body and the paths in its head name bases.
pub(crate) fn show_bases(sidecar: &Arc<Sidecar>, kind: ReplyKind, reply: &mut Response<Body>) {
    let headers = reply.headers_mut().iter_mut();
    let with_paths = headers.filter(|(name, _)| matches!(**name, header::LOCATION | header::LINK));
    for (_, value) in with_paths {
        let shown = value.to_str().ok();
        let shown = shown.map(|text| HeaderValue::try_from(shown_path(text, &sidecar.subqueues)));
        if let Some(Ok(shown)) = shown {
            *value = shown;
        }
    }
    let Some(is_stream) = is_stream_of_text(reply.headers()) else {
        return;
    };
    let kind = ReplyKind {
        is_failure: reply.status().as_u16() >= 400,
        is_stream,
        ..kind
    };
    let mut is_changed = reply.body_mut().change_whole(|text| {
        let may_name = subqueue::may_name(text);
        may_name.then(|| names::changed(text, kind, &sidecar.subqueues))?
    });
    if reply.body().streams() {
        let (sidecar, mut reader) = (Arc::clone(sidecar), NameReader::new(kind));
        let streamed = std::mem::replace(reply.body_mut(), Body::empty());
        *reply.body_mut() = streamed.changed(move |part| reader.part(part, &sidecar.subqueues));
        is_changed = true;
    }
    if is_changed {
        // It may not be as long as it was.
        reply.headers_mut().remove(header::CONTENT_LENGTH);
    }
}

/// A path, or several, with bases where a queue stands in it.
fn shown_path(text: &str, subqueues: &Subqueues) -> String {
    let mut shown = text.to_owned();
    for before in ["/queues/", "queue="] {
        let mut parts = shown.split(before);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(['/', '?', '&', '#', '>', ';', ',', '"', ' ']);
            let (name, rest) = part.split_at(end.unwrap_or(part.len()));
            out += &[before, subqueues.base_of(name), rest].concat();
        }
        shown = out;
    }
    shown
}

/// Whether a body is a stream of events; `None`: it cannot be read, or has no names of queues in it. Metrics have, but two
/// series of one name are none to who reads them.
fn is_stream_of_text(headers: &HeaderMap) -> Option<bool> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        return None;
    }
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return Some(false);
    };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let is_stream = kind.starts_with("text/event-stream");
    (is_stream || kind.contains("json")).then_some(is_stream)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn paths_in_a_head_name_bases() {
        let sidecar = crate::desk::Proxy::on(
            std::sync::Arc::new(crate::store::memory::MemoryStore::new(0)).into(),
        );
        let file = ["mail", "a"]
            .map(|queue| (queue, Default::default()))
            .into_iter();
        (sidecar.sidecar.subqueues).follow(std::iter::empty(), file);
        let body = Bytes::from_static(br#"{"queue":"a-ojst-00"}"#);
        let mut reply = Response::new(Body::from(body));
        for (name, value) in [
            (header::LOCATION, "/ojs/v1/queues/mail-ojst-7f"),
            (header::LINK, "</q?queue=mail-ojst-7f&page=2>; rel=next"),
            (header::LINK, "</queues/mail-ojst-00>"),
            (header::LOCATION, "/jobs/mail-ojst-7f?queue=b-ojst-00"),
            (header::CONTENT_LENGTH, "21"),
        ] {
            reply
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        show_bases(&sidecar.sidecar, ReplyKind::default(), &mut reply);
        assert_eq!(reply.body().as_whole(), br#"{"queue":"a"}"#);
        let lines: Vec<_> = reply.headers().values().collect();
        assert_eq!(
            lines,
            [
                "/ojs/v1/queues/mail",
                "/jobs/mail-ojst-7f?queue=b-ojst-00",
                "</q?queue=mail&page=2>; rel=next",
                "</queues/mail>"
            ]
        );
    }
}
