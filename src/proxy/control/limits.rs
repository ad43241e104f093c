//! Inspection: `GET /ojs/v1/rate-limits` and `…/{key}` (rate-limiting text, sections 10.1 and 10.3).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use http::request::Parts;
use http::{Method, Response, StatusCode};

use super::shape::{self, State};
use crate::limit::{Key, Limited, Limits, OnLimit, Space};
use crate::policy::PolicySet;
use crate::proxy::body::Body;
use crate::proxy::respond::Fault;
use crate::proxy::{Proxy, Sidecar, ours, refuse};
use crate::store::{Override, StoreError};

/// So many of the keys that were named last are listed, and at most twice as many; the others are limited
/// all the same.
const LISTED: usize = 100_000;

/// The job keys that were named so far, with the numbers they were last named with.
#[derive(Default, Debug)]
pub(in crate::proxy) struct Named(Mutex<Ages>);

/// The young ones become the old ones when they are many, and the old ones are forgotten: those that were
/// not named for longest, without an order to keep.
#[derive(Default, Debug)]
struct Ages {
    young: HashMap<Key, Entry>,
    old: HashMap<Key, Entry>,
}

impl Ages {
    /// The entry of a key that is named now, if it is known.
    fn named(&mut self, key: &Key) -> Option<&mut Entry> {
        if !self.young.contains_key(key) {
            let entry = self.old.remove(key)?;
            self.put(key, entry);
        }
        self.young.get_mut(key)
    }

    fn put(&mut self, key: &Key, entry: Entry) {
        if self.young.len() >= LISTED {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key.clone(), entry);
    }
}

#[derive(Debug)]
struct Entry {
    limits: Limits,
    /// Which policy named it first.
    policy: Arc<str>,
    /// Enqueued through us and not yet claimed.
    pending: usize,
}

impl Named {
    fn note<'a>(&self, all: impl Iterator<Item = &'a Limited>, pending: impl Fn(usize) -> usize) {
        let mut named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for limited in all.filter(|limited| limited.space == Space::Job) {
            if let Some(entry) = named.named(&limited.key) {
                entry.pending = pending(entry.pending);
                if entry.limits != limited.limits && limited.limits != Limits::default() {
                    entry.limits = limited.limits.clone();
                }
            } else {
                let entry = Entry {
                    limits: limited.limits.clone(),
                    policy: limited.policy.clone(),
                    pending: pending(0),
                };
                named.put(&limited.key, entry);
            }
        }
    }

    fn get(&self, key: &Key) -> Option<(Limits, Arc<str>, usize)> {
        let named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = named.young.get(key).or_else(|| named.old.get(key))?;
        Some((entry.limits.clone(), entry.policy.clone(), entry.pending))
    }

    pub(in crate::proxy) fn keys(&self) -> Vec<Key> {
        let named = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        named
            .young
            .keys()
            .chain(named.old.keys())
            .cloned()
            .collect()
    }

    pub(in crate::proxy) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Ages::default();
    }
}

impl Sidecar {
    /// Jobs with limits of their own were stored.
    pub(in crate::proxy) fn enqueued(&self, keys: Vec<Limited>) {
        self.named.note(keys.iter(), |pending| pending + 1);
    }

    /// Other limits apply to a held job than those it was claimed with.
    pub(in crate::proxy) fn renamed(&self, limited: &[Limited]) {
        self.named.note(limited.iter(), |pending| pending);
    }

    /// Jobs were claimed; this is what limits them.
    pub(in crate::proxy) fn noted<'a>(&self, limited: impl Iterator<Item = &'a Limited>) {
        let claimed = |pending: usize| pending.saturating_sub(1);
        self.named.note(limited, claimed);
    }
}

/// What is known of a key apart from its usage.
struct Known {
    /// The numbers it has by the file or by the job that named it last.
    limits: Limits,
    /// The policy that named it; empty: none did yet.
    policy: Arc<str>,
    /// Jobs enqueued through us and not yet claimed.
    pending: usize,
    /// What was set for it over HTTP.
    set: Option<Arc<Override>>,
}

impl Sidecar {
    /// `None`: no job, no policy and no override has named the key.
    fn known(&self, key: &Key, policies: &PolicySet) -> Option<Known> {
        let named = self.named.get(key);
        let set = self
            .store
            .overrides()
            .get(Space::Job, key, self.store.now());
        let pending = named.as_ref().map_or(0, |(.., pending)| *pending);
        let policy = named.as_ref().map(|(_, policy, _)| policy.clone());
        let limits = policies
            .constant(key)
            .or(named.map(|(limits, ..)| limits))
            .or_else(|| set.as_ref().map(|set| set.limits.clone()))?;
        Some(Known {
            limits,
            policy: policy
                .or_else(|| policies.named_by(key))
                .unwrap_or_default(),
            pending,
            set,
        })
    }

    /// Whether anything has named the key.
    pub(super) fn knows(&self, key: &str) -> bool {
        Key::new(key).is_ok_and(|key| self.known(&key, &self.live().policies).is_some())
    }

    /// Every known key, in order.
    fn known_keys(&self, policies: &PolicySet) -> Vec<Key> {
        let constant = policies.policies().iter().filter_map(|p| p.key.constant());
        let mut keys = self.named.keys();
        keys.extend(constant.cloned());
        keys.extend(self.store.overrides().job_keys(self.store.now()));
        keys.sort();
        keys.dedup();
        keys
    }

    /// While the store is lost: how many more slots this sidecar has for a key, of which the policy says what
    /// happens then.
    pub(super) async fn free_slots(
        &self,
        space: Space,
        key: &Key,
        limits: &Limits,
        policy: Arc<str>,
    ) -> Option<u32> {
        if !self.store.is_lost() {
            return None;
        }
        let slots = Limited {
            space,
            key: key.clone(),
            limits: Limits {
                concurrency: limits.concurrency,
                ..Limits::default()
            },
            on_limit: OnLimit::Wait,
            policy,
        };
        let room = self.store.room(&[slots]).await;
        // Closed, there is none.
        Some(room.map_or(0, |room| room.starts))
    }

    /// A key as it is shown.
    async fn state(&self, key: &Key, known: Known) -> Result<State, StoreError> {
        let limits = match &known.set {
            Some(set) => set.over(&known.limits),
            None => known.limits,
        };
        let usage = self.store.usage(Space::Job, key, &limits).await?;
        let held = self
            .hold
            .waiting(|l| l.space == Space::Job && l.key == *key);
        let lost = self
            .free_slots(Space::Job, key, &limits, known.policy)
            .await;
        Ok(State {
            lost,
            what: "key",
            name: key.as_str().to_owned(),
            limits,
            usage: usage.unwrap_or_default(),
            waiting: held + known.pending,
            set: known.set,
            now: self.store.now(),
        })
    }
}

impl Proxy {
    /// Answers inspection of one key.
    pub(super) async fn inspect(&self, parts: &Parts, key: &str) -> Response<Body> {
        let sidecar = &self.sidecar;
        let Ok(key) = Key::new(key) else {
            return refuse(parts, unknown_key(key));
        };
        let known = sidecar.known(&key, &sidecar.live().policies);
        let Some(known) = known else {
            return refuse(parts, unknown_key(key.as_str()));
        };
        match sidecar.state(&key, known).await {
            Ok(state) => self.json(parts, state.to_json()),
            Err(error) => refuse(parts, store_failed(&error)),
        }
    }

    /// Answers the list of all keys, page by page.
    pub(in crate::proxy) async fn list(&self, parts: &Parts) -> Response<Body> {
        if !reads(&parts.method) {
            return refuse(parts, not_allowed("GET"));
        }
        let (page, per_page) = match pages(parts.uri.query().unwrap_or_default()) {
            Ok(pages) => pages,
            Err(fault) => return refuse(parts, fault),
        };
        let sidecar = &self.sidecar;
        let policies = Arc::clone(&sidecar.live().policies);
        let keys = sidecar.known_keys(&policies);
        let shown = keys.iter().skip((page - 1).saturating_mul(per_page));
        let mut states = Vec::new();
        for key in shown.take(per_page) {
            // An override may have ended since the keys were gathered.
            let Some(known) = sidecar.known(key, &policies) else {
                continue;
            };
            match sidecar.state(key, known).await {
                Ok(state) => states.push(state),
                Err(error) => return refuse(parts, store_failed(&error)),
            }
        }
        self.json(parts, shape::list(&states, keys.len(), page, per_page))
    }

    /// A success of our own.
    pub(super) fn json(&self, parts: &Parts, body: impl Into<Bytes>) -> Response<Body> {
        let mut response = Response::new(Body::from(body.into()));
        ours(&parts.headers, response.headers_mut());
        self.mend_media_type(&parts.headers, response.headers_mut());
        response
    }
}

/// Whether a method only looks.
pub(super) fn reads(method: &Method) -> bool {
    method == Method::GET || method == Method::HEAD
}

/// The page asked for, from 1, and how long pages are.
fn pages(query: &str) -> Result<(usize, usize), Fault> {
    let number = |name: &str, default: usize, most: usize| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let Some((_, text)) = pairs.rfind(|(asked, _)| *asked == name) else {
            return Ok(default);
        };
        match text.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(Fault::field(
                name,
                &format!("must be a whole number from 1 to {most}, found {text:?}"),
            )),
        }
    };
    Ok((
        number("page", 1, 1_000_000_000)?,
        number("per_page", 20, 100)?,
    ))
}

fn unknown_key(key: &str) -> Fault {
    let message = format!(
        "no job has named the rate limit key {key:?} yet, no policy has it, and no override is set for it"
    );
    let mut fault = Fault::new(StatusCode::NOT_FOUND, "not_found", message);
    fault.hint = Some("a key is known from the first job that names it");
    fault
}

/// 405; `may` are the methods that may be used.
pub(super) fn not_allowed(may: &str) -> Fault {
    Fault::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method_not_allowed",
        format!("only {may} may be used here"),
    )
}

pub(super) fn store_failed(error: &StoreError) -> Fault {
    Fault::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "store_unavailable",
        error.to_string(),
    )
    .later(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(n: usize) -> Limited {
        Limited {
            space: Space::Job,
            key: Key::new(&format!("k{n}")).unwrap(),
            limits: Limits::default(),
            on_limit: OnLimit::Wait,
            policy: Arc::from("job"),
        }
    }

    #[test]
    fn keys_that_were_not_named_for_longest_make_place() {
        let named = Named::default();
        let note = |n: usize| named.note(std::iter::once(&limited(n)), |pending| pending + 1);
        let pending = |n: usize| named.get(&limited(n).key).map(|(.., pending)| pending);
        for n in 0..=LISTED {
            note(n);
        }
        assert_eq!(pending(LISTED), Some(1), "it is listed");
        assert_eq!(named.keys().len(), LISTED + 1);
        note(0);
        for n in LISTED + 1..2 * LISTED {
            note(n);
        }
        assert_eq!(pending(0), Some(2), "named again");
        assert_eq!(pending(1), None);
        assert!(named.keys().len() <= 2 * LISTED);
    }
}
