//! Which requests are calls of an entry.

use http::header::{self, HeaderName};
use http::request::Parts;
use subtle::ConstantTimeEq;

use crate::answers::respond::Fault;
use crate::config::EgressSettings;
use crate::wire::upstream::wants_websocket;

/// What a caller shows where a way out has a token.
const TOKEN: HeaderName = HeaderName::from_static("ojs-throttle-token");

/// Refuses what is no call of this entry, and takes its token off.
pub(super) fn may_pass(entry: &EgressSettings, parts: &mut Parts) -> Result<(), Fault> {
    // The service sees none, wherever it was meant for.
    let sent = parts.headers.remove(TOKEN);
    if let Some(token) = &entry.token {
        let is_it = sent
            .as_ref()
            .is_some_and(|sent| sent.as_bytes().ct_eq(token.expose().as_bytes()).into());
        if !is_it {
            let message = match sent {
                Some(_) => "this way out takes another token than was sent",
                None => "this way out takes a token",
            };
            return Err(Fault::new("unauthorized", message)
                .hinting("send the entry's token in the header OJS-Throttle-Token"));
        }
    }
    if parts.uri.authority().is_some() {
        let message = "this is no proxy for any host: the request names one in its first line";
        return Err(Fault::bad_request(message)
            .hinting("set this address as the base URL of the service's SDK, and no HTTP_PROXY"));
    }
    if wants_websocket(&parts.headers) {
        let message = "no other protocol passes here";
        return Err(Fault::bad_request(message)
            .hinting("open WebSockets with the service itself: they are not limited"));
    }
    parts.headers.remove(header::UPGRADE);
    Ok(())
}
