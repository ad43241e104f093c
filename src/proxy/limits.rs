//! Inspection: `GET /ojs/v1/rate-limits/{key}` in the shape of the rate-limiting text, section 10.1.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::body::Body;
use super::respond::Fault;
use super::{Proxy, Sidecar};
use super::{ours, refuse};
use crate::duration;
use crate::json::quote;
use crate::limit::{Key, Limited, Limits, Space, Timestamp};
use crate::store::{StoreError, Usage};

/// More keys than this are not listed; they are limited all the same.
const MAX: usize = 100_000;

/// The job keys that were named so far, with the numbers they were last named with.
#[derive(Default, Debug)]
pub(super) struct Named(Mutex<HashMap<Key, Entry>>);

#[derive(Debug)]
struct Entry {
    limits: Limits,
    /// Enqueued through us and not yet claimed.
    pending: usize,
}

impl Named {
    fn note(&self, limited: &Limited, pending: impl Fn(usize) -> usize) {
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = named.get_mut(&limited.key) {
            entry.pending = pending(entry.pending);
            if entry.limits != limited.limits && limited.limits != Limits::default() {
                entry.limits = limited.limits.clone();
            }
        } else if named.len() < MAX {
            let entry = Entry {
                limits: limited.limits.clone(),
                pending: pending(0),
            };
            named.insert(limited.key.clone(), entry);
        }
    }

    fn get(&self, key: &Key) -> Option<(Limits, usize)> {
        let named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        named
            .get(key)
            .map(|entry| (entry.limits.clone(), entry.pending))
    }

    pub(super) fn clear(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl Sidecar {
    /// Jobs with limits of their own were stored.
    pub(super) fn enqueued(&self, keys: Vec<Limited>) {
        for limited in keys {
            self.named.note(&limited, |pending| pending + 1);
        }
    }

    /// Other limits apply to a held job than those it was claimed with.
    pub(super) fn renamed(&self, limited: &[Limited]) {
        for limited in limited.iter().filter(|limited| limited.space == Space::Job) {
            self.named.note(limited, |pending| pending);
        }
    }

    /// A job was claimed.
    pub(super) fn noted(&self, limited: &[Limited]) {
        for limited in limited.iter().filter(|limited| limited.space == Space::Job) {
            self.named
                .note(limited, |pending| pending.saturating_sub(1));
        }
    }
}

impl Proxy {
    /// Answers inspection of one key.
    pub(super) async fn inspect(&self, parts: &Parts, key: &str) -> Response<Body> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return refuse(parts, not_allowed());
        }
        let sidecar = &self.sidecar;
        let Ok(key) = Key::new(key) else {
            return refuse(parts, unknown_key(key));
        };
        let named = sidecar.named.get(&key);
        let configured = sidecar.live().policies.constant(&key);
        let Some((limits, pending)) = configured
            .map(|limits| (limits, named.as_ref().map_or(0, |n| n.1)))
            .or(named)
        else {
            return refuse(parts, unknown_key(key.as_str()));
        };
        let usage = match sidecar.store.usage(Space::Job, &key, &limits).await {
            Ok(usage) => usage.unwrap_or_default(),
            Err(error) => return refuse(parts, store_failed(&error)),
        };
        let held = sidecar
            .hold
            .waiting(|l| l.space == Space::Job && l.key == key);
        let body = state(&key, &limits, &usage, held + pending, sidecar.store.now());
        self.json(parts, Bytes::from(body))
    }
}

impl Proxy {
    /// A success of our own.
    fn json(&self, parts: &Parts, body: Bytes) -> Response<Body> {
        let mut response = Response::new(Body::from(body));
        ours(&parts.headers, response.headers_mut());
        self.mend_media_type(&parts.headers, response.headers_mut());
        response
    }
}

fn unknown_key(key: &str) -> Fault {
    let message = format!("no job has named the rate limit key {key:?} yet, and no policy has it");
    let mut fault = Fault::new(StatusCode::NOT_FOUND, "not_found", message);
    fault.hint = Some("a key is known from the first job that names it");
    fault
}

fn not_allowed() -> Fault {
    let message = "this version only shows limits: use GET";
    Fault::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        message,
    )
}

fn store_failed(error: &StoreError) -> Fault {
    Fault::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "store_unavailable",
        error.to_string(),
    )
    .later(Duration::from_secs(1))
}

/// A key's state as JSON.
fn state(key: &Key, limits: &Limits, usage: &Usage, waiting: usize, now: Timestamp) -> String {
    let mut text = format!("{{\"key\":{}", quote(key.as_str()));
    if let Some(limit) = limits.concurrency {
        let active = usage.active;
        let available = limit.saturating_sub(active);
        text += &format!(
            r#","concurrency":{{"limit":{limit},"active":{active},"available":{available}}}"#
        );
    }
    for (nth, rate) in limits.rates.iter().enumerate() {
        let (count, leaves) = usage.windows.get(nth).copied().unwrap_or((0, None));
        let window = format!(
            r#"{{"limit":{},"period":"{}","current_count":{count},"window_resets_at":"{}"}}"#,
            rate.limit,
            duration::iso(rate.period.get()),
            rfc3339(leaves.unwrap_or(now)),
        );
        // The text has one window a key; more are told beside it.
        text += &match nth {
            0 => format!(r#","rate":{window}"#),
            _ => format!(r#","rate_{}":{window}"#, nth + 1),
        };
    }
    if let Some(throttle) = limits.throttle {
        text += &format!(
            r#","throttle":{{"limit":{},"period":"{}","next_allowed_at":"{}"}}"#,
            throttle.limit,
            duration::iso(throttle.period.get()),
            rfc3339(usage.next_start.unwrap_or(now)),
        );
    }
    text + &format!(r#","waiting_count":{waiting},"estimated":true}}"#)
}

/// A time as JSON bodies have it.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let micros = i64::try_from(at.0).unwrap_or(i64::MAX);
    match jiff::Timestamp::from_microsecond(micros) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => "9999-12-31T23:59:59.999Z".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_as_the_text_writes_them() {
        assert_eq!(
            rfc3339(Timestamp(1_770_984_000_100_000)),
            "2026-02-13T12:00:00.100Z"
        );
        assert_eq!(rfc3339(Timestamp::NEVER), "9999-12-31T23:59:59.999Z");
    }
}
