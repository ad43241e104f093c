//! What a route answers.

use serde::Serialize;

use crate::wire::ErrorReply;

/// A status and a body, or an error.
pub(super) type ApiAnswer = Result<(u16, Vec<u8>), ErrorReply>;

/// Codes that never leave the backend: these answers have no envelope.
pub(super) const NO_ROUTE: &str = "no_route";
pub(super) const NO_METHOD: &str = "no_method";

pub(super) fn text(value: &impl Serialize) -> Vec<u8> {
    // These values are strings, numbers and parsed JSON, so writing them cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

pub(super) fn ok(value: &impl Serialize) -> ApiAnswer {
    Ok((200, text(value)))
}
