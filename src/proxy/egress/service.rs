//! The service of one way out: it refuses what it does not carry, waits for a start, and streams both ways.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use uuid::Uuid;

use super::calling::Calling;
use super::lines::{Asks, CallPlace};
use super::start::CallStart;
use crate::boxed::boxed;
use crate::config::EgressSettings;
use crate::limit::{Key, Limited, OnLimit, Space, Strategy, Timestamp};
use crate::metrics::StartKind;
use crate::policy::CallView;
use crate::proxy::body::{self, Body};
use crate::proxy::control::{in_force, named};
use crate::proxy::job::micros;
use crate::proxy::load::{Load, Service};
use crate::proxy::outlive::to_the_end;
use crate::proxy::respond::{self, Fault, Own};
use crate::proxy::settle::feedback::heed_reply;
use crate::proxy::{Sidecar, refuse, tell};
use crate::store::{Claim, Claimed, LedgerExt as _, Verdict};
use crate::upstream::{RequestBody, SendError, Upstream, UpstreamError, detached, wants_websocket};

/// What a caller shows where a way out has a token.
const TOKEN: HeaderName = HeaderName::from_static("ojs-throttle-token");
/// Of a refusal of ours: the key that is limited.
const LIMITED: HeaderName = HeaderName::from_static("ojs-throttle-limited");
/// The largest body that is read before the call waits: so it is seen whether its caller hangs up, and the call can be
/// made again.
const SMALL: u64 = 64 << 10;
/// When the store is asked again that had no word.
const NO_WORD: Duration = Duration::from_millis(250);
/// When a call that waits for a slot asks although nobody has told of one.
const UNHEARD: Duration = Duration::from_secs(1);

/// One way out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Egress(Arc<WayOut>);

#[derive(Debug)]
struct WayOut {
    sidecar: Arc<Sidecar>,
    name: Arc<str>,
    upstream: Upstream,
    load: Arc<Load>,
    /// The limits of the last call, and the edition of the settings that they are from. Most calls of a way out have
    /// the same key as the one before.
    last: Mutex<(u64, Arc<[Limited]>)>,
    /// How the ids of its calls begin, as those of no other way out do.
    ids: String,
    /// Where its calls stand as jobs do in a queue.
    queue: Arc<str>,
}

impl Service for Egress {
    fn call(
        &self,
        head: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Response<Body>> + Send {
        self.0.carry(head, body)
    }

    fn load(&self) -> Arc<Load> {
        Arc::clone(&self.0.load)
    }

    fn stops_with_client(&self) -> bool {
        true
    }

    fn leaving(&self, reply: &mut Response<Body>) {
        if let Some(Own(code)) = reply.extensions().get() {
            let status = reply.status().as_u16();
            self.0.sidecar.metrics.answered(status, code);
        }
    }
}

impl Egress {
    /// The way out of this name, over `upstream`.
    pub fn new(sidecar: Arc<Sidecar>, name: Arc<str>, upstream: Upstream) -> Egress {
        Egress(Arc::new(WayOut {
            queue: Claim::queue_of_calls(&name),
            sidecar,
            name,
            upstream,
            load: Arc::default(),
            last: Mutex::default(),
            ids: format!("call-{}-", Uuid::now_v7().simple()),
        }))
    }

    /// This way out for another thread, with connections of its own.
    pub fn another(&self) -> Egress {
        let of = &*self.0;
        let (sidecar, name) = (Arc::clone(&of.sidecar), Arc::clone(&of.name));
        Egress::new(sidecar, name, of.upstream.another())
    }
}

impl WayOut {
    async fn carry(&self, mut parts: Box<Parts>, body: Incoming) -> Response<Body> {
        let config = self.sidecar.config();
        let entry = config.egress.iter().find(|entry| entry.name == self.name);
        let Some(entry) = entry else {
            // A name cannot go while the program runs.
            return refuse(&parts, Fault::internal());
        };
        if self.upstream.has_sent(&parts.headers) {
            return refuse(&parts, Fault::comes_round());
        }
        if let Err(fault) = may_pass(entry, &mut parts) {
            return refuse(&parts, fault);
        }
        let id = respond::request_id(&parts.headers);
        match boxed(|| self.send(entry, parts, body)).await {
            Ok(reply) => reply,
            Err(fault) => fault.reply(id),
        }
    }

    async fn send(
        &self,
        entry: &EgressSettings,
        mut parts: Box<Parts>,
        body: Incoming,
    ) -> Result<Response<Body>, Fault> {
        let key = (!entry.limits.is_empty()).then(|| key_of(entry, &parts));
        let patience = self.sidecar.live().settings.server.body_timeout;
        let small = body.size_hint().exact().filter(|bytes| *bytes <= SMALL);
        // Its room is taken until there is a reply.
        let (mut body, _taken) = match small {
            Some(_) => {
                let room = &self.sidecar.bodies;
                let (bytes, taken) = body::read(body, SMALL as usize, patience, room).await?;
                (CallBody::Whole(bytes), Some(taken))
            }
            None => (CallBody::Stream(Some(body)), None),
        };
        if self.sidecar.calling.lines.all_waiting() > 0 {
            detach(&mut parts, &mut body);
        }
        let deadline = Instant::now() + entry.max_wait;
        let (mut left, mut last, mut parts) = (entry.retry, None, Some(parts));
        loop {
            let start = match &key {
                Some(key) => self.start(entry, key, deadline).await.map(Some),
                None => Ok(None),
            };
            // What the service has said goes before what we say.
            let start = match (start, last.take()) {
                (Ok(start), _) => start,
                (Err(_), Some(last)) => return last,
                (Err(fault), None) => return Err(fault),
            };
            let may_repeat = left > 0 && small.is_some();
            let head = match may_repeat {
                true => parts.clone(),
                false => parts.take(),
            };
            let sent = match &mut body {
                CallBody::Whole(bytes) => Some(RequestBody::from(bytes.clone())),
                CallBody::Stream(body) => body.take().map(RequestBody::from),
            };
            let Some((head, sent)) = head.zip(sent) else {
                return Err(Fault::internal());
            };
            let request = Box::new(Request::from_parts(*head, sent));
            // Boxed: otherwise each call that waits would keep memory for what comes after its start.
            let (again, answer) = boxed(|| self.try_once(request, start)).await;
            let repeats = again && may_repeat && Instant::now() < deadline;
            match answer {
                (answer, start) if repeats => {
                    left -= 1;
                    drop(start);
                    last = Some(answer);
                }
                (Ok(reply), Some(start)) => return Ok(reply.map(|body| body.holding(start))),
                (answer, _) => return answer,
            }
        }
    }

    /// Makes a call, and heeds what the service says. Whether it may be made again, and what came of it with its start.
    async fn try_once(
        &self,
        request: Box<Request<RequestBody>>,
        mut start: Option<CallStart>,
    ) -> (bool, (Result<Response<Body>, Fault>, Option<CallStart>)) {
        let is_safe = request.method().is_safe();
        if let Some(start) = &mut start {
            start.sent();
        }
        let reply = match self.upstream.send(request).await {
            Ok(reply) if reply.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let error = UpstreamError::Lost("it switched protocols unasked".to_owned());
                return (false, (Err(self.failed(&error.into())), start));
            }
            Ok(reply) => reply,
            Err(error) => {
                let again = is_safe && matches!(error, SendError::Backend(_));
                return (again, (Err(self.failed(&error)), start));
            }
        };
        if let Some(start) = &start {
            let said = (reply.status(), reply.headers());
            heed_reply(&self.sidecar, &start.claimed, start.at, said).await;
        }
        let again = match reply.status().as_u16() {
            429 => true,
            502..=504 => is_safe,
            _ => false,
        };
        (again, (Ok(reply.map(Body::from)), start))
    }

    /// Waits for a start until `deadline`.
    async fn start(
        &self,
        entry: &EgressSettings,
        key: &Key,
        deadline: Instant,
    ) -> Result<CallStart, Fault> {
        let Calling { lines, closed, .. } = &self.sidecar.calling;
        if closed.is_cancelled() {
            return Err(Fault::draining());
        }
        let mut claimed = self.claim(entry);
        let waits = !entry.max_wait.is_zero();
        let stands_behind = waits && lines.waiting(key) > 0;
        if stands_behind && lines.all_waiting() >= entry.max_waiting {
            return Err(self.limited(key, &CallVerdict::Refused(None, None)));
        }
        let mut place = stands_behind.then(|| lines.join(key));
        let (mut answer, mut since) = (CallVerdict::Refused(None, None), None);
        loop {
            let (mut again, wakes) = (deadline, lines.wakes());
            if place.as_ref().is_none_or(CallPlace::is_first) {
                claimed.limited = self.limits_now(key);
                answer = self.ask(&claimed).await;
                again = self.asks_again(&answer);
            }
            match answer {
                CallVerdict::Started(mut start) => {
                    start.waited = since.map(|since: Instant| since.elapsed());
                    return Ok(start);
                }
                CallVerdict::Refused(_, Some(at)) if self.sidecar.asked_from(at) > deadline => {
                    return Err(self.limited(key, &answer));
                }
                _ => {}
            }
            since = since.or(Some(Instant::now()));
            if place.is_none() && lines.all_waiting() >= entry.max_waiting {
                return Err(self.limited(key, &answer));
            }
            // What woke the line before it stood there woke it in vain.
            let missed = place.is_none() && {
                place = Some(lines.join(key));
                lines.wakes() != wakes
            };
            if let Some(place) = place.as_ref().filter(|_| !missed) {
                // Never at once: what could be done at once was just done.
                let again = again.max(Instant::now() + Duration::from_millis(1));
                tokio::select! {
                    () = place.woken() => {}
                    () = tokio::time::sleep_until(again.min(deadline)) => {}
                    () = closed.cancelled() => return Err(Fault::draining()),
                }
            }
            if Instant::now() >= deadline {
                return Err(self.limited(key, &answer));
            }
        }
    }

    /// When the first of a line asks again by itself.
    fn asks_again(&self, answer: &CallVerdict) -> Instant {
        match answer {
            CallVerdict::Refused(_, Some(at)) => {
                self.sidecar.asked_from(*at) + Asks::Call.behind(*at)
            }
            CallVerdict::Refused(_, None) => Instant::now() + UNHEARD,
            _ => Instant::now() + NO_WORD,
        }
    }

    /// A call before its start.
    fn claim(&self, entry: &EgressSettings) -> Claimed {
        let now = self.sidecar.store.now();
        let generation = self.sidecar.fetching.next_claim(now);
        let id = [&*self.ids, &generation.0.to_string()].concat().into();
        let queue = Arc::clone(&self.queue);
        Claim::of_call(id, queue, generation, (now, micros(entry.lease))).into()
    }

    /// The limits of now, with what was set over HTTP laid over them.
    fn limits_now(&self, key: &Key) -> Arc<[Limited]> {
        let written = self.limits_of(key);
        named::renamed(&self.sidecar, &written);
        in_force::limits_now(&self.sidecar, "", &written).into_owned()
    }

    /// What the file says of a key.
    fn limits_of(&self, key: &Key) -> Arc<[Limited]> {
        let live = self.sidecar.live();
        let mut last = self.last.lock();
        let (edition, limits) = &*last;
        if *edition == live.edition && limits.first().is_some_and(|one| one.key == *key) {
            return Arc::clone(limits);
        }
        let mut entries = live.settings.egress.iter();
        let entry = entries.find(|entry| entry.name == self.name);
        let of_entry = entry.into_iter().flat_map(|entry| {
            entry.limits.iter().map(|(policy, limits)| Limited {
                space: Space::Job,
                key: key.clone(),
                limits: limits.clone(),
                on_limit: OnLimit::Wait,
                policy: Arc::clone(policy),
                cost: entry.cost.clone(),
                share: None,
            })
        });
        *last = (live.edition, of_entry.collect());
        Arc::clone(&last.1)
    }

    /// Asks the store. The answer is heard also if the caller hangs up meanwhile, and then a start is undone.
    async fn ask(&self, claimed: &Claimed) -> CallVerdict {
        let (sidecar, claimed) = (Arc::clone(&self.sidecar), claimed.clone());
        let asking = boxed(|| async move {
            let asked = Instant::now();
            let taken = sidecar.store.take(&[&claimed], 1).await;
            sidecar.fetching.took(asked.elapsed());
            let verdict = taken
                .ok()
                .and_then(|taken| taken.verdicts.into_iter().next());
            match verdict {
                Some(Verdict::Started { at }) => {
                    CallVerdict::Started(CallStart::of(&sidecar, &claimed, at))
                }
                Some(Verdict::Refused { which, why, at, .. }) => {
                    let by = claimed.limited.get(which).cloned();
                    if let Some(by) = &by {
                        let metrics = &sidecar.metrics;
                        metrics.refused(StartKind::Call, by, &by.policy, OnLimit::Wait);
                    }
                    // A pause ends when somebody ends it.
                    let is_paused = why.strategy == Strategy::Concurrency && why.limit == 0;
                    CallVerdict::Refused(by, at.filter(|_| !is_paused && !why.slot))
                }
                _ => CallVerdict::NoWord,
            }
        });
        to_the_end(&self.sidecar.tasks.own, asking).await
    }

    /// The call may not start in time.
    fn limited(&self, key: &Key, answer: &CallVerdict) -> Fault {
        let CallVerdict::Refused(by, at) = answer else {
            let message = format!("the store does not say whether a call of key {key} may start");
            return Fault::new("store_unavailable", message).later(NO_WORD);
        };
        tell::call_refused(&self.sidecar, &self.name, key);
        let after = at.map(|at| self.sidecar.instant_of(at) - Instant::now());
        let message =
            format!("the calls of key {key} are limited, and this one has no start in time");
        let mut fault = Fault::new("rate_limited", message)
            .hinting("come back after Retry-After, or raise egress.max_wait")
            .with("egress", &*self.name)
            .with("key", key.as_str())
            .later(after.unwrap_or_default());
        if let Some(by) = by {
            fault = fault.with("policy", &*by.policy);
        }
        if let Ok(value) = HeaderValue::from_str(key.as_str()) {
            let more = fault.more.get_or_insert_default();
            more.headers.push((LIMITED, value));
        }
        fault
    }

    /// The service gave no reply.
    fn failed(&self, error: &SendError) -> Fault {
        Fault::sending(error, |error| {
            let address = format!("{:?}: ", self.upstream.target());
            let (code, at) = match error {
                // What connects names the address by itself.
                UpstreamError::Unreachable(_) => ("service_unreachable", ""),
                UpstreamError::Timeout(_) => ("service_timeout", &*address),
                _ => ("service_reply_lost", &*address),
            };
            // It speaks of the backend and its settings.
            let why = error.to_string().replace("the backend", "the service");
            let why = why.replace("server.upstream", "egress.upstream");
            let why = why.replace("upstream.ca_file", "egress.ca_file");
            Fault::new(code, [at, &why].concat()).later(Duration::from_secs(1))
        })
        .with("egress", &*self.name)
    }
}

/// The body of a call.
enum CallBody {
    Whole(Bytes),
    /// It can be sent once.
    Stream(Option<Incoming>),
}

/// Copies what a call that may wait has of all that was read with it: that would double the memory of those that wait.
fn detach(parts: &mut Parts, body: &mut CallBody) {
    for value in parts.headers.values_mut() {
        *value = detached(value);
    }
    // What was a target is one.
    if let Ok(target) = Uri::try_from(parts.uri.to_string()) {
        parts.uri = target;
    }
    if let CallBody::Whole(bytes) = body {
        *bytes = Bytes::copy_from_slice(bytes);
    }
}

/// What the store said.
enum CallVerdict {
    Started(CallStart),
    /// By this limit, and when the call may start; `None`: when a slot is free, or others before it have started.
    Refused(Option<Limited>, Option<Timestamp>),
    /// It had no word.
    NoWord,
}

/// What a call says makes its key.
fn key_of(entry: &EgressSettings, parts: &Parts) -> Key {
    let text = |name: &str| parts.headers.get(name)?.to_str().ok();
    entry.key.of_call(&CallView {
        path: parts.uri.path(),
        header: &text,
    })
}

/// Refuses what is no call of this entry, and takes its token off.
fn may_pass(entry: &EgressSettings, parts: &mut Parts) -> Result<(), Fault> {
    if let Some(token) = &entry.token {
        let sent = parts.headers.remove(TOKEN);
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
