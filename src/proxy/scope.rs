//! Scopes: whose credentials a job was claimed with. Held jobs are served only within theirs, and the
//! sidecar's own calls for them carry its headers. Kept in memory only, never logged.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::Sidecar;

/// The tenant header of the OJS multi-tenancy text.
pub(crate) const TENANT: HeaderName = HeaderName::from_static("x-ojs-tenant");
const VERSION: HeaderName = HeaderName::from_static("ojs-version");

/// More scopes than this are not remembered: own calls for later ones go without credentials of
/// theirs. A sidecar sees a handful.
const MAX: usize = 4096;

/// The credentials of each scope seen.
#[derive(Default)]
pub(super) struct Scopes {
    hasher: RandomState,
    known: Mutex<HashMap<u64, Credentials>>,
}

#[derive(Clone, Default)]
struct Credentials {
    authorization: Option<HeaderValue>,
    tenant: Option<HeaderValue>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scopes")
    }
}

impl Scopes {
    /// The scope of a request, remembered.
    pub(super) fn of(&self, headers: &HeaderMap) -> u64 {
        let authorization = headers.get(AUTHORIZATION);
        let tenant = headers.get(&TENANT);
        let scope = self.hasher.hash_one((
            authorization.map(HeaderValue::as_bytes),
            tenant.map(HeaderValue::as_bytes),
        ));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&scope) && known.len() < MAX {
            let mut authorization = authorization.cloned();
            if let Some(value) = &mut authorization {
                value.set_sensitive(true);
            }
            known.insert(
                scope,
                Credentials {
                    authorization,
                    tenant: tenant.cloned(),
                },
            );
        }
        scope
    }

    fn credentials(&self, scope: u64) -> Credentials {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&scope).cloned().unwrap_or_default()
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
            .or_else(|| self.settings.token.clone())
        {
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(value) = credentials.tenant {
            headers.insert(TENANT, value);
        }
        headers
    }
}
