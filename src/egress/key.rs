//! The key of a call. One value is one key, however it is spelled; what can be read in two ways is no call.

use std::borrow::Cow;

use http::request::Parts;

use super::pass::called;
use crate::answers::respond::Fault;
use crate::config::EgressSettings;
use crate::limit::Key;
use crate::policy::CallValue;
use crate::wire::ojs;
use crate::wire::upstream::named_by_connection;

/// What a call says makes its key.
///
/// # Errors
/// Others could read it otherwise.
pub(super) fn key_of(entry: &EgressSettings, parts: &Parts) -> Result<Key, Fault> {
    let mut unclear = None;
    let key = entry.key.of_call(|value| {
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
        CallValue::Host => {
            let name = called(parts).map_err(|fault| fault.message)?;
            return Ok(name.map(Cow::Owned));
        }
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
    Ok(line)
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
