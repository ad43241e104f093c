//! The key of a call. One value is one key, however it is spelled; what can be read in two ways is no call.

use std::borrow::Cow;

use http::header;
use http::request::Parts;

use crate::answers::respond::Fault;
use crate::config::EgressSettings;
use crate::limit::{Key, Share};
use crate::policy::{CallValue, Template};
use crate::wire::ojs;
use crate::wire::upstream::named_by_connection;

/// The key of a call, and whose share of it the call takes.
#[derive(Debug)]
pub(super) struct CallKey {
    pub(super) key: Key,
    pub(super) share: Option<Share>,
}

/// What a call says makes its key and its group.
///
/// # Errors
/// Others could read it otherwise.
pub(super) fn key_of(entry: &EgressSettings, parts: &Parts) -> Result<CallKey, Fault> {
    let share = match &entry.fair {
        Some(fair) => Some(fair.share_as(&filled_in(&fair.by, parts)?)),
        None => None,
    };
    let key = filled_in(&entry.key, parts)?;
    Ok(CallKey { key, share })
}

fn filled_in(template: &Template, parts: &Parts) -> Result<Key, Fault> {
    let mut unclear = None;
    let key = template.of_call(|value| {
        let found = value_of(value, parts);
        found.map_err(|why| unclear = Some(why)).ok().flatten()
    });
    unclear.map_or(Ok(key), |why| {
        let message = format!("the key of this call can be read in two ways: {why}");
        Err(Fault::bad_request(message).hinting(
            "send each header of the key once, and a path without `.`, `//` and encoded slashes",
        ))
    })
}

/// What a call says of one place of a key.
///
/// # Errors
/// Others could read it otherwise.
fn value_of<'p>(value: CallValue<'_>, parts: &'p Parts) -> Result<Option<Cow<'p, str>>, String> {
    let name = match value {
        CallValue::Segment(nth) => {
            let segment = ojs::segment(parts.uri.path(), nth).map_err(|bad| bad.to_string())?;
            return Ok(segment.map(text_of));
        }
        CallValue::Host => header::HOST.as_str(),
        CallValue::Header(name) => name,
    };
    let mut lines = parts.headers.get_all(name).iter();
    let line = lines.next().map(|line| text_of(line.as_bytes().into()));
    if lines.next().is_some() {
        return Err(format!("it has two headers {name}"));
    }
    if named_by_connection(&parts.headers).any(|named| named == name) {
        return Err(format!("Connection names {name}, which would not go on"));
    }
    Ok(match value {
        CallValue::Host => line.map(|host| one_host(&host).into()),
        _ => line,
    })
}

/// A value as text: UTF-8, else Latin-1, in which Node and Python send what is not ASCII.
fn text_of(value: Cow<'_, [u8]>) -> Cow<'_, str> {
    let latin = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
    match value {
        Cow::Borrowed(bytes) => {
            std::str::from_utf8(bytes).map_or_else(|_| latin(bytes), Cow::Borrowed)
        }
        Cow::Owned(bytes) => {
            String::from_utf8(bytes).map_or_else(|bad| latin(bad.as_bytes()), Cow::Owned)
        }
    }
}

/// A host by one of its spellings.
fn one_host(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix(":80").unwrap_or(&host);
    host.trim_end_matches('.').replace(".:", ":")
}
