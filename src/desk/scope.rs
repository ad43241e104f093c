//! Scopes: whose credentials a job was claimed with. Held jobs are served only within theirs, and the
//! sidecar's own calls for them carry its headers. Kept in memory only, never logged.

use std::fmt;

use hashbrown::{HashMap, HashSet};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use parking_lot::Mutex;

use super::Sidecar;
use crate::limit::fingerprint;
use crate::wire::ojs::{MEDIA_TYPE, OJS_VERSION, TENANT, VERSION};
use crate::wire::upstream::detached;

/// More scopes than this are not remembered, and own calls for others go without credentials of theirs.
/// First goes what the backend has not accepted, for anybody can make that up; of each the one that was not used for
/// longest. Those of held jobs are used by each heartbeat. A sidecar sees a handful.
const MAX: usize = 4096;

/// The credentials of each scope seen.
#[derive(Default)]
pub(crate) struct Scopes {
    known: Mutex<KnownScope>,
}

#[derive(Default)]
struct KnownScope {
    credentials: HashMap<u64, Credentials>,
    /// The scopes of headers that were seen: to hash them anew for each request would cost a tenth of it.
    scopes: HashMap<[Option<HeaderValue>; 2], u64>,
    /// Counts uses, so that the latest of each scope can be compared.
    uses: u64,
    /// How many there were when unused ones were last forgotten.
    uses_before: u64,
}

/// Of whose held jobs a caller is told: who names a tenant, of those that were claimed with that header; who names
/// none, of all.
pub(crate) struct Sight(Option<HashSet<u64>>);

impl Sight {
    /// Whether of those that were claimed under this scope.
    pub(crate) fn sees(&self, scope: u64) -> bool {
        self.0.as_ref().is_none_or(|scopes| scopes.contains(&scope))
    }

    /// Whether of all.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_none()
    }
}

/// A request whose credentials are lent to questions about its queues.
pub(crate) struct Lender {
    pub(crate) scope: u64,
    /// They were not [`Scopes::accept`]ed before; its headers as far as they matter.
    new: Option<HeaderMap>,
}

#[derive(Clone, Default)]
struct Credentials {
    used: u64,
    /// The backend gave or showed jobs to them, or took jobs of theirs.
    accepted: bool,
    authorization: Option<HeaderValue>,
    tenant: Option<HeaderValue>,
}

impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scopes")
    }
}

/// The scope of these headers: the same in each sidecar and in each version, for rows in stores have it, and sidecars
/// hand each other's held jobs out by it.
fn scope_of(values: &[Option<HeaderValue>; 2]) -> u64 {
    let values = values.iter().flat_map(|value| {
        let value = value.as_ref().map(HeaderValue::as_bytes);
        let has: &[u8] = if value.is_some() { b"+" } else { b"" };
        [has, value.unwrap_or_default()]
    });
    fingerprint(values) as u64
}

impl KnownScope {
    /// The scope of these headers, which is looked up where it is known.
    fn scope_of(&mut self, headers: &HeaderMap) -> u64 {
        let values = [AUTHORIZATION, TENANT].map(|name| headers.get(name).cloned());
        if let Some(scope) = self.scopes.get(&values) {
            return *scope;
        }
        let scope = scope_of(&values);
        if self.scopes.len() >= MAX {
            self.scopes.clear();
        }
        let values = values.map(|value| value.as_ref().map(detached));
        self.scopes.insert(values, scope);
        scope
    }
}

impl Scopes {
    /// The scope of a request, remembered.
    pub(crate) fn of(&self, headers: &HeaderMap) -> u64 {
        self.of_known(headers).0
    }

    /// The scope of a request, remembered, and whether it was [`Scopes::accept`]ed.
    pub(crate) fn of_known(&self, headers: &HeaderMap) -> (u64, bool) {
        let mut known = self.known.lock();
        let scope = known.scope_of(headers);
        (scope, known.of(scope, headers).accepted)
    }

    /// What a request of these headers may be told of.
    pub(crate) fn sight(&self, headers: &HeaderMap) -> Sight {
        let scopes_of = |tenant: &HeaderValue| {
            let known = self.known.lock();
            let all = known.credentials.iter();
            let theirs = all.filter(|(_, of)| of.tenant.as_ref() == Some(tenant));
            theirs.map(|(scope, _)| *scope).collect()
        };
        Sight(headers.get(&TENANT).map(scopes_of))
    }

    /// A request whose credentials are needed until the backend has answered it, and longer if it is accepted.
    pub(crate) fn lender(&self, headers: &HeaderMap) -> Lender {
        let (scope, accepted) = self.of_known(headers);
        let own = [AUTHORIZATION, TENANT].into_iter();
        let own = own.filter_map(|name| headers.get(&name).cloned().map(|value| (name, value)));
        Lender {
            scope,
            new: (!accepted).then(|| own.collect()),
        }
    }

    /// The backend took the jobs of this request.
    pub(crate) fn accept_lender(&self, lender: &Lender) {
        if let Some(headers) = &lender.new {
            self.accept(lender.scope, headers);
        }
    }

    /// Forgets what the backend never accepted and nobody used since this was last called.
    pub(crate) fn forget_unused(&self) {
        let known = &mut *self.known.lock();
        let before = std::mem::replace(&mut known.uses_before, known.uses);
        let all = &mut known.credentials;
        all.retain(|_, of| of.accepted || of.used > before);
        known.scopes.retain(|_, scope| all.contains_key(scope));
        let len = 2 * all.len();
        all.shrink_to(len);
        known.scopes.shrink_to(len);
    }

    /// The backend gave jobs to a request of this scope with these headers, or took some of it, so what is made
    /// up does not push it out.
    pub(crate) fn accept(&self, scope: u64, headers: &HeaderMap) {
        self.known.lock().of(scope, headers).accepted = true;
    }

    /// The backend showed a job that runs, or that a sibling held, to this scope, which was seen a moment ago.
    pub(crate) fn accept_known(&self, scope: u64) {
        if let Some(credentials) = self.known.lock().credentials.get_mut(&scope) {
            credentials.accepted = true;
        }
    }

    /// Whether calls for this scope carry its credentials: they were seen, and not forgotten. 0 is nobody's, and its
    /// calls carry the sidecar's own.
    pub(crate) fn knows(&self, scope: u64) -> bool {
        scope == 0 || self.known.lock().credentials.contains_key(&scope)
    }

    /// Whether the backend gave or showed jobs to this scope, or took some of it.
    pub(crate) fn has_accepted(&self, scope: u64) -> bool {
        let known = self.known.lock();
        known.credentials.get(&scope).is_some_and(|of| of.accepted)
    }

    /// The tenant that requests of this scope name, if it is known.
    pub(crate) fn tenant_of(&self, scope: u64) -> Option<Box<str>> {
        let known = self.known.lock();
        let tenant = known.credentials.get(&scope)?.tenant.as_ref()?;
        std::str::from_utf8(tenant.as_bytes()).ok().map(Box::from)
    }

    /// Whether who names this tenant is told of what was claimed under that scope.
    pub(crate) fn is_of(&self, scope: u64, tenant: &HeaderValue) -> bool {
        let known = self.known.lock();
        let of = known.credentials.get(&scope);
        of.is_some_and(|of| of.tenant.as_ref() == Some(tenant))
    }

    fn credentials(&self, scope: u64) -> Credentials {
        let mut known = self.known.lock();
        let used = known.next_use();
        let Some(credentials) = known.credentials.get_mut(&scope) else {
            return Credentials::default();
        };
        credentials.used = used;
        credentials.clone()
    }
}

impl KnownScope {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    /// The credentials of a scope, those in `headers`; they are known from now on.
    fn of(&mut self, scope: u64, headers: &HeaderMap) -> &mut Credentials {
        let used = self.next_use();
        if self.credentials.len() >= MAX && !self.credentials.contains_key(&scope) {
            self.spare_one();
        }
        let known = self.credentials.entry(scope);
        let credentials = known.or_insert_with(|| Credentials::read(headers));
        credentials.used = used;
        credentials
    }

    /// Forgets one.
    fn spare_one(&mut self) {
        let last = |(_, of): &(&u64, &Credentials)| (of.accepted, of.used);
        let spared = self.credentials.iter().min_by_key(last);
        if let Some(scope) = spared.map(|(scope, _)| *scope) {
            self.credentials.remove(&scope);
        }
    }
}

impl Credentials {
    fn read(headers: &HeaderMap) -> Credentials {
        let mut authorization = headers.get(AUTHORIZATION).map(detached);
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Credentials {
            authorization,
            tenant: headers.get(&TENANT).map(detached),
            ..Credentials::default()
        }
    }
}

/// The headers of our own calls with a body for a scope.
pub(crate) fn json_headers(sidecar: &Sidecar, scope: u64) -> HeaderMap {
    let mut headers = own_headers(sidecar, scope);
    headers.insert(CONTENT_TYPE, MEDIA_TYPE);
    headers
}

/// The headers of our own calls for a scope: its credentials, or the configured token where it is nobody's, or one that
/// the backend takes without a login. Who shows none must not do with the token what the backend would refuse.
pub(crate) fn own_headers(sidecar: &Sidecar, scope: u64) -> HeaderMap {
    let credentials = sidecar.scopes.credentials(scope);
    let mut headers = HeaderMap::with_capacity(4);
    headers.insert(OJS_VERSION, VERSION);
    let token = || {
        let lends = scope == 0 || credentials.accepted;
        lends.then(|| sidecar.live().settings.token.clone())?
    };
    if let Some(value) = credentials.authorization.or_else(token) {
        headers.insert(AUTHORIZATION, value);
    }
    if let Some(value) = credentials.tenant {
        headers.insert(TENANT, value);
    }
    headers
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
        let scopes = Scopes::default();
        let scope = scopes.of(&headers);
        drop(headers);
        assert!(head.is_unique());
        assert_eq!(scopes.credentials(scope).tenant.unwrap(), "Bearer abc");
    }

    /// Rows in stores have them: an older sidecar and a newer one must find the same.
    #[test]
    fn a_scope_is_the_same_in_every_version() {
        let scope = |headers: &HeaderMap| format!("{:016x}", Scopes::default().of(headers));
        assert_eq!(scope(&HeaderMap::new()), "6c8fc18b8e9f8e20");
        assert_eq!(scope(&headers("Bearer a", None)), "5e6afd3821d36be8");
        assert_eq!(scope(&headers("Bearer a", Some("t"))), "401912fb3c6f65c8");
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
    fn who_names_a_tenant_sees_what_was_claimed_for_it() {
        let scopes = Scopes::default();
        let [first, second] =
            ["Bearer a", "Bearer b"].map(|token| scopes.of(&headers(token, Some("t"))));
        let other = scopes.of(&headers("Bearer a", Some("u")));
        let nobodys = scopes.of(&headers("Bearer a", None));
        let sees = |by: &HeaderMap| {
            let sight = scopes.sight(by);
            [first, second, other, nobodys, 7].map(|scope| sight.sees(scope))
        };
        let of_t = [true, true, false, false, false];
        assert_eq!(sees(&headers("Bearer x", Some("t"))), of_t);
        assert_eq!(sees(&headers("Bearer a", Some("v"))), [false; 5]);
        assert_eq!(sees(&headers("Bearer x", None)), [true; 5]);
    }

    #[test]
    fn a_flood_of_credentials_ends_at_the_bound_and_spares_those_in_use() {
        let scopes = Scopes::default();
        let used = scopes.of(&headers("Bearer used", None));
        for n in 0..2 * MAX {
            scopes.of(&headers(&format!("Bearer {n}"), None));
            scopes.of(&headers("Bearer used", None));
        }
        assert_eq!(scopes.known.lock().credentials.len(), MAX);
        assert!(scopes.credentials(used).authorization.is_some());
    }

    #[test]
    fn what_is_made_up_pushes_nothing_out_that_was_accepted() {
        let scopes = Scopes::default();
        let flood = |round: usize| {
            for n in 0..MAX {
                scopes.of(&headers(&format!("Bearer {round} {n}"), None));
            }
        };
        let (first, second) = (
            headers("Bearer 1st", None),
            headers("Bearer 2nd", Some("t")),
        );
        let (of_first, of_second) = (scopes.of(&first), scopes.of(&second));
        scopes.accept(of_first, &first);
        flood(0);
        assert!(scopes.credentials(of_first).authorization.is_some());
        // Pushed out while the backend was being asked.
        assert!(scopes.credentials(of_second).authorization.is_none());
        scopes.accept(of_second, &second);
        flood(1);
        assert_eq!(scopes.credentials(of_second).tenant.unwrap(), "t");
        assert!(scopes.of_known(&first).1 && scopes.of_known(&second).1);
        assert_eq!(scopes.known.lock().credentials.len(), MAX);
    }

    #[test]
    fn what_is_made_up_and_not_used_again_is_forgotten() {
        let scopes = Scopes::default();
        let of = |token: &str| scopes.of(&headers(token, None));
        let (worker, made_up) = (of("Bearer worker"), of("Bearer made up"));
        for n in 0..1_000 {
            of(&format!("Bearer {n}"));
        }
        let producer = headers("Bearer producer", Some("t"));
        let lender = scopes.lender(&producer);
        scopes.accept_lender(&lender);
        scopes.forget_unused();
        assert_eq!(
            scopes.known.lock().credentials.len(),
            1_003,
            "used just now"
        );
        of("Bearer worker");
        scopes.forget_unused();
        let known = |scope| scopes.known.lock().credentials.contains_key(&scope);
        assert!(known(worker) && !known(made_up));
        scopes.forget_unused();
        assert!(!known(worker) && known(lender.scope));
        assert_eq!(scopes.credentials(lender.scope).tenant.unwrap(), "t");
        assert!(scopes.known.lock().credentials.capacity() < 100);
        assert_eq!(scopes.known.lock().scopes.len(), 1, "as they were sent");
        assert!(scopes.known.lock().scopes.capacity() < 100);
    }

    #[test]
    fn of_many_accepted_those_in_use_stay() {
        let scopes = Scopes::default();
        let accepted = |token: &str| {
            let headers = headers(token, None);
            let scope = scopes.of(&headers);
            scopes.accept(scope, &headers);
            scope
        };
        let (own_calls, idle) = (accepted("own"), accepted("idle"));
        for n in 0..MAX + 9 {
            accepted(&n.to_string());
            scopes.credentials(own_calls);
        }
        let known = |scope| scopes.credentials(scope).authorization.is_some();
        assert!(known(own_calls) && !known(idle));
        assert_eq!(scopes.known.lock().credentials.len(), MAX);
    }
}
