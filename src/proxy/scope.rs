//! Scopes: whose credentials a job was claimed with. Held jobs are served only within theirs, and the
//! sidecar's own calls for them carry its headers. Kept in memory only, never logged.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::Sidecar;
use crate::upstream::detached;

/// The tenant header of the OJS multi-tenancy text.
pub(crate) const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");
const VERSION: HeaderName = HeaderName::from_static("ojs-version");

/// More scopes than this are not remembered: the one that was not seen for longest goes, and own calls
/// for it go without credentials of its. A sidecar sees a handful.
const MAX: usize = 4096;

/// The credentials of each scope seen.
#[derive(Default)]
pub(super) struct Scopes {
    /// `None`: all sidecars must come to the same, for they hand each other's held jobs out.
    hasher: Option<RandomState>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    credentials: HashMap<u64, Credentials>,
    /// Counts looks, so that the latest of each scope can be compared.
    looks: u64,
}

#[derive(Clone, Default)]
struct Credentials {
    seen: u64,
    authorization: Option<HeaderValue>,
    tenant: Option<HeaderValue>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scopes")
    }
}

impl Scopes {
    /// No scopes yet; `is_shared` says whether other sidecars must find the same.
    pub(super) fn new(is_shared: bool) -> Scopes {
        Scopes {
            hasher: (!is_shared).then(RandomState::new),
            known: Mutex::default(),
        }
    }

    /// The scope of a request, remembered.
    pub(super) fn of(&self, headers: &HeaderMap) -> u64 {
        let authorization = headers.get(AUTHORIZATION);
        let tenant = headers.get(&TENANT);
        let credentials = (
            authorization.map(HeaderValue::as_bytes),
            tenant.map(HeaderValue::as_bytes),
        );
        let scope = match &self.hasher {
            Some(hasher) => hasher.hash_one(credentials),
            None => BuildHasherDefault::<DefaultHasher>::default().hash_one(credentials),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.looks += 1;
        let seen = known.looks;
        if let Some(credentials) = known.credentials.get_mut(&scope) {
            credentials.seen = seen;
            return scope;
        }
        if known.credentials.len() >= MAX {
            let oldest = known
                .credentials
                .iter()
                .min_by_key(|(_, credentials)| credentials.seen);
            if let Some(oldest) = oldest.map(|(scope, _)| *scope) {
                known.credentials.remove(&oldest);
            }
        }
        let mut authorization = authorization.map(detached);
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        known.credentials.insert(
            scope,
            Credentials {
                seen,
                authorization,
                tenant: tenant.map(detached),
            },
        );
        scope
    }

    fn credentials(&self, scope: u64) -> Credentials {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.credentials.get(&scope).cloned().unwrap_or_default()
    }
}

impl Sidecar {
    /// The headers of our own calls for a scope: its credentials, or the configured token.
    pub(super) fn own_headers(&self, scope: u64, json: bool) -> HeaderMap {
        let credentials = self.scopes.credentials(scope);
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(VERSION, HeaderValue::from_static("1.0"));
        if json {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("application/openjobspec+json"),
            );
        }
        if let Some(value) = credentials
            .authorization
            .or_else(|| self.live().settings.token.clone())
        {
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(value) = credentials.tenant {
            headers.insert(TENANT, value);
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn headers(token: &str, tenant: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, HeaderValue::try_from(token).unwrap());
        if let Some(tenant) = tenant {
            headers.insert(TENANT, HeaderValue::try_from(tenant).unwrap());
        }
        headers
    }

    #[test]
    fn credentials_keep_nothing_of_the_request_that_they_came_with() {
        let head = Bytes::from(b"Bearer abc".repeat(100));
        let value = HeaderValue::from_maybe_shared(head.slice(..10)).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.clone());
        headers.insert(TENANT, value);
        let scopes = Scopes::new(false);
        let scope = scopes.of(&headers);
        drop(headers);
        assert!(head.is_unique());
        assert_eq!(scopes.credentials(scope).tenant.unwrap(), "Bearer abc");
    }

    #[test]
    fn a_scope_is_its_credentials() {
        let scopes = Scopes::default();
        let a = scopes.of(&headers("Bearer a", None));
        assert_eq!(a, scopes.of(&headers("Bearer a", None)));
        assert_ne!(a, scopes.of(&headers("Bearer b", None)));
        assert_ne!(a, scopes.of(&headers("Bearer a", Some("t"))));
        assert_ne!(a, scopes.of(&HeaderMap::new()));
        let lent = scopes.credentials(a).authorization.unwrap();
        assert!(lent == "Bearer a" && lent.is_sensitive());
        assert!(!format!("{scopes:?}").contains("Bearer"));
    }

    #[test]
    fn a_flood_of_credentials_ends_at_the_bound_and_spares_those_in_use() {
        let scopes = Scopes::default();
        let used = scopes.of(&headers("Bearer used", None));
        for n in 0..2 * MAX {
            scopes.of(&headers(&format!("Bearer {n}"), None));
            scopes.of(&headers("Bearer used", None));
        }
        assert_eq!(scopes.known.lock().unwrap().credentials.len(), MAX);
        assert!(scopes.credentials(used).authorization.is_some());
    }
}
