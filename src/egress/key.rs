//! The key of a call. One value is one key, however it is spelled; what can be read in two ways is no call.

use std::borrow::Cow;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use http::request::Parts;

use super::pass::called;
use crate::answers::respond::Fault;
use crate::json::Json;
use crate::limit::Key;
use crate::policy::{CallValue, Template, json_path};
use crate::wire::ojs::{self, DEPTH};
use crate::wire::upstream::named_by_connection;

/// The body of a call, as far as its keys and its cost need it.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadBody<'b> {
    /// There is none.
    Nothing,
    /// It is this JSON, which is so written.
    Json(Json<'b>, &'b [u8]),
    /// It is too long, or no JSON.
    Unread,
}

impl<'b> ReadBody<'b> {
    /// By what was read of it; `None`: it is not read.
    pub(super) fn by(bytes: Option<&'b Bytes>) -> ReadBody<'b> {
        match bytes {
            None => ReadBody::Unread,
            Some(bytes) if bytes.is_empty() => ReadBody::Nothing,
            Some(bytes) => {
                let json = Json::parse(bytes, DEPTH);
                json.map_or(ReadBody::Unread, |json| ReadBody::Json(json, bytes))
            }
        }
    }

    /// The JSON, if it is some.
    pub(super) fn json(&self) -> Option<Json<'b>> {
        match self {
            ReadBody::Json(json, _) => Some(*json),
            _ => None,
        }
    }
}

/// Whether files come in parts of a body, which has no value at its top.
pub(super) fn is_upload(parts: &Parts) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let kind = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| {
        kind.trim_ascii()
            .eq_ignore_ascii_case(b"multipart/form-data")
    })
}

/// What a call says makes this key.
///
/// # Errors
/// Others could read it otherwise, or what it needs of the body cannot be read.
pub(super) fn key_of(
    template: &Template,
    parts: &Parts,
    said: &ReadBody<'_>,
) -> Result<Key, Fault> {
    let is_unread = matches!(said, ReadBody::Unread) && !is_upload(parts);
    if template.sees_bodies() && is_unread {
        let message = format!(
            "the body of this call has a part of its key {template}, and it cannot be read"
        );
        return Err(Fault::new("key_unreadable", message));
    }
    let mut unclear = None;
    let key = template.of_call(|value| {
        let found = match value {
            CallValue::Json(path) => {
                let json = said.json().and_then(|body| json_path::find(body, path));
                Ok(json.and_then(json_path::scalar))
            }
            value => value_of(value, parts),
        };
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
        // That is read above.
        CallValue::Json(_) => return Ok(None),
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
