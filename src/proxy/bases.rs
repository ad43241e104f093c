//! Nobody outside sees subqueues: what a client gets names their bases, and a client that names one is refused. The
//! shape of a name decides, in every sidecar: another one of the fleet may have made the subqueues.

use bytes::Bytes;
use http::uri::Uri;
use http::{HeaderMap, HeaderValue, Response, header};
use percent_encoding::percent_decode_str;

use super::body::Body;
use super::outside::may_name_subqueues;
use super::respond::Fault;
use super::{DEPTH, Sidecar, mirror};
use crate::json::Json;
use crate::policy::subqueue;

/// 400 for a request whose path or query names a subqueue. Few have its marker or an escape, and no others are read.
pub(super) fn named_in_target(uri: &Uri) -> Option<Fault> {
    let target = uri.path_and_query()?.as_str();
    if !subqueue::may_name(target.as_bytes()) && !target.contains('%') {
        return None;
    }
    let target = percent_decode_str(target).decode_utf8_lossy();
    let mut names = target.split(['/', '?', '&', '=', ',', ':']);
    let (base, _) = names.find_map(subqueue::split)?;
    Some(refusal("path", base))
}

/// 400 for a body that names a subqueue where a queue is named.
pub(super) fn named_in_body(body: &[u8]) -> Option<Fault> {
    if !subqueue::may_name(body) {
        return None;
    }
    // What is no JSON is refused by who reads it.
    named_inside(Json::parse(body, DEPTH).ok()?)
}

/// Looks into what may name one, and so no deeper than the whole was found to nest.
fn named_inside(value: Json<'_>) -> Option<Fault> {
    if !subqueue::may_name(value.raw()) {
        return None;
    }
    let mut members = value.members().filter(|member| !mirror::is_own(member));
    let found = members.find_map(|member| {
        let mut names = ["queue", "queues"].into_iter();
        let name = names.find(|name| member.is_named(name));
        let named = name.and_then(|name| Some(refusal(name, &base_in(member.value)?)));
        named.or_else(|| named_inside(member.value))
    });
    found.or_else(|| value.items().find_map(named_inside))
}

/// The base of the first subqueue that a name is, or a list of names has.
fn base_in(value: Json<'_>) -> Option<String> {
    let mut names = value.items().chain([value]).filter_map(|name| name.text());
    names.find_map(|name| Some(subqueue::split(&name)?.0.to_owned()))
}

/// It does not repeat what was named.
fn refusal(field: &str, base: &str) -> Fault {
    let message =
        format!("such names are kept for jobs of {base:?} that wait for a key: name {base:?}");
    Fault::field(field, &message)
        .with("queue", base)
        .hinting("name the queue itself: its jobs are found wherever they wait")
}

/// Makes a reply what a client gets: its body and the paths in its head name bases.
pub(super) fn show_bases(sidecar: &Sidecar, reply: &mut Response<Body>) {
    let headers = reply.headers_mut().iter_mut();
    let with_paths = headers.filter(|(name, _)| matches!(**name, header::LOCATION | header::LINK));
    for (_, value) in with_paths {
        let shown = subqueue::with_bases(value.as_bytes());
        if let Some(Ok(shown)) = shown.map(|shown| HeaderValue::from_bytes(&shown)) {
            *value = shown;
        }
    }
    let mut is_changed = reply.body_mut().change_whole(subqueue::with_bases);
    if reply.body().streams() && may_name_subqueues(sidecar) && is_text(reply.headers()) {
        let streamed = std::mem::replace(reply.body_mut(), Body::empty());
        *reply.body_mut() = streamed.changed(with_bases_in_parts());
        is_changed = true;
    }
    if is_changed {
        // It may not be as long as it was.
        reply.headers_mut().remove(header::CONTENT_LENGTH);
    }
}

/// Whether a body is one that can be searched, and of which each name stands for itself. Metrics are not: two series of
/// one name are none to who reads them.
fn is_text(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return !headers.contains_key(header::CONTENT_ENCODING);
    };
    let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
    let is_read = kind.contains("json") || kind.starts_with("text/event-stream");
    is_read && !headers.contains_key(header::CONTENT_ENCODING)
}

/// Puts bases into a text that comes in parts. Only what may be the half of a name waits for the next part.
fn with_bases_in_parts() -> impl FnMut(Bytes) -> Bytes + Send + 'static {
    let mut kept = Bytes::new();
    move |part| {
        let is_end = part.is_empty();
        let mut text = match kept.is_empty() {
            true => part,
            false => [&*std::mem::take(&mut kept), &*part].concat().into(),
        };
        if !is_end {
            kept = text.split_off(text.len() - subqueue::undecided(&text));
        }
        subqueue::with_bases(&text).map_or(text, Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_in_parts_shows_what_it_shows_whole() {
        let text = r#"["mail-ojst-7f","a-ojst-00.eu","it is a-ojst-00. b-oj","c-ojst-0"]-ojst-ff"#;
        let whole = subqueue::with_bases(text.as_bytes()).unwrap();
        for first in 0..text.len() {
            for second in first..text.len() {
                let mut change = with_bases_in_parts();
                let (before, rest) = text.split_at(first);
                let (within, after) = rest.split_at(second - first);
                let parts = [before, within, after];
                let parts = parts.into_iter().filter(|part| !part.is_empty());
                let shown: Vec<Bytes> = parts.chain([""]).map(|part| change(part.into())).collect();
                assert_eq!(shown.concat(), whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn nothing_but_the_half_of_a_name_is_held_back() {
        let mut change = with_bases_in_parts();
        for (part, shown) in [
            ("data: mail-o\n", "data: mail-o\n"),
            (r#""mail-oj"#, r#""mail"#),
            ("st-7f", ""),
            (r#"","#, r#"","#),
            ("a-b", "a-b"),
        ] {
            assert_eq!(change(part.into()), shown, "{part}");
        }
    }

    #[tokio::test]
    async fn paths_in_a_head_name_bases() {
        let sidecar = crate::proxy::Proxy::on(
            std::sync::Arc::new(crate::store::memory::MemoryStore::new(0)).into(),
        );
        let mut reply = Response::new(Body::from(Bytes::from_static(b"a-ojst-00")));
        for (name, value) in [
            (header::LOCATION, "/ojs/v1/queues/mail-ojst-7f"),
            (header::LINK, "</q?queue=mail-ojst-7f&page=2>; rel=next"),
            (header::LINK, "</mail-ojst-00>"),
            (header::CONTENT_LENGTH, "9"),
        ] {
            reply
                .headers_mut()
                .append(name, HeaderValue::from_static(value));
        }
        show_bases(sidecar.sidecar(), &mut reply);
        assert_eq!(reply.body().as_whole(), b"a");
        let lines: Vec<_> = reply.headers().values().collect();
        assert_eq!(
            lines,
            [
                "/ojs/v1/queues/mail",
                "</q?queue=mail&page=2>; rel=next",
                "</mail>"
            ]
        );
    }
}
