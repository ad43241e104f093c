//! The service of one way out: it refuses what it does not carry, waits for a start, and streams both ways.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode, Uri};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::sync::{SemaphorePermit, oneshot};
use tokio::time::Instant;
use uuid::Uuid;

use super::amazon::AmazonProtocol;
use super::ask::CallAsk;
use super::key::{ReadBody, is_upload};
use super::pass::{below_base, may_pass};
use super::redirect::CalledBy;
use super::services::Services;
use super::start::CallStart;
use crate::answers::body::{self, Body, ReadError};
use crate::answers::load::{Load, Service};
use crate::answers::respond::{self, Fault, Own, refuse};
use crate::config::{EgressSettings, LEAST_REST};
use crate::desk::outlive::to_the_end;
use crate::desk::{Sidecar, micros, tell};
use crate::limit::fingerprint;
use crate::policy::{Vendor, back_at};
use crate::settle::feedback::{heed_reply, text_lines};
use crate::store::{Claim, LedgerExt as _};
use crate::wire::boxed::boxed;
use crate::wire::ojs;
use crate::wire::upstream::{
    ReplyBody, RequestBody, SendError, Upstream, UpstreamError, detached, is_packed,
};

/// The largest body that is read before the call waits: so it is seen whether its caller hangs up, and the call can be
/// made again.
const SMALL: u64 = 64 << 10;
/// The largest that is read where a key or a cost stands in it.
const READ: u64 = 1 << 20;
/// By this header SDKs know that they shall not make a call again, or shall.
pub(super) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// By this header the service knows a call that it has done (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// How long a failed call rests at least before it is made again; twice as long each time, up to the second.
const BACKOFF: (Duration, Duration) = (LEAST_REST, Duration::from_secs(8));

/// One way out. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Egress(Arc<WayOut>);

#[derive(Debug)]
pub(super) struct WayOut {
    pub(super) sidecar: Arc<Sidecar>,
    pub(super) name: Arc<str>,
    services: Services,
    load: Arc<Load>,
    /// How the ids of its calls begin, as those of no other way out do.
    pub(super) ids: String,
    /// Where its calls stand as jobs do in a queue.
    pub(super) queue: Arc<str>,
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

    /// Some vendors have keys in them.
    fn tells_paths(&self) -> bool {
        false
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
        sidecar.calling.goes_to(&name, &upstream);
        Egress(Arc::new(WayOut {
            queue: Claim::queue_of_calls(&name),
            services: Services::new(upstream, Arc::clone(&sidecar.calling.own_ports)),
            sidecar,
            name,
            load: Arc::default(),
            ids: format!("{}{}-", Claim::CALL_IDS, Uuid::now_v7().simple()),
        }))
    }

    /// This way out for another thread, with connections of its own.
    pub fn another(&self) -> Egress {
        let of = &*self.0;
        let (sidecar, name) = (Arc::clone(&of.sidecar), Arc::clone(&of.name));
        Egress::new(sidecar, name, of.services.like.another())
    }
}

impl WayOut {
    async fn carry(&self, mut parts: Box<Parts>, body: Incoming) -> Response<Body> {
        let config = self.sidecar.config();
        let Some(entry) = config.way(&self.name) else {
            // A name cannot go while the program runs.
            return refuse(&parts, Fault::internal());
        };
        if self.services.like.has_sent(&parts.headers) {
            return refuse(&parts, Fault::comes_round());
        }
        let id = respond::request_id(&parts.headers);
        let amazon = AmazonProtocol::of(&parts.headers);
        let told = |fault: Fault| match amazon {
            Some(protocol) => protocol.reply(&fault, id),
            None => fault.reply(id),
        };
        let to = may_pass(entry, &mut parts).and_then(|named| self.services.of(named));
        let to = match to {
            Ok(to) => to,
            Err(fault) => return told(fault),
        };
        let called_by = CalledBy::of(&parts);
        match boxed(|| self.send(entry, &to, parts, body)).await {
            Ok(mut reply) => {
                called_by.lead_back(&mut reply, entry, to.target().url());
                reply
            }
            Err(fault) => told(fault),
        }
    }

    async fn send(
        &self,
        entry: &EgressSettings,
        to: &Upstream,
        mut parts: Box<Parts>,
        body: Incoming,
    ) -> Result<Response<Body>, Fault> {
        let whole = below_base(entry, &mut parts)?;
        let by_body = entry.sees_bodies();
        // Its room is taken until there is a reply.
        let (mut body, taken) = self.body(entry, &parts, body).await?;
        let ask = {
            let bytes = match &body {
                CallBody::Whole(bytes) if by_body && !is_packed(&parts.headers) => Some(bytes),
                _ => None,
            };
            CallAsk::of(entry, &parts, &ReadBody::by(bytes))?
        };
        if let Some(budget) = &ask.unpaid {
            tell::unpaid(&self.sidecar, budget, to.target().host());
        }
        // It goes on as it came.
        if let Some(whole) = whole {
            parts.uri = whole;
        }
        if ask.settles() {
            ask_plain(&mut parts.headers);
        }
        if self.sidecar.calling.lines.all_waiting() > 0 {
            detach(&mut parts, &mut body);
        }
        let deadline = Instant::now() + entry.max_wait;
        let (mut left, mut last, mut parts) = (entry.retry, None, Some(parts));
        loop {
            // What the service has said goes before what we say.
            let start = match (self.start(entry, &ask, deadline).await, last.take()) {
                (Ok(start), _) => start,
                (Err(_), Some(last)) => return last,
                (Err(fault), None) => return Err(fault),
            };
            self.still_leads(entry)?;
            let may_repeat = left > 0 && taken.is_some();
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
            let (again, (answer, start)) = boxed(|| self.try_once(to, request, start, entry)).await;
            let again = again.filter(|_| may_repeat);
            let again = again.map(|from| from.max(self.backs_off(entry.retry - left)));
            let Some(at) = again.filter(|at| *at < deadline) else {
                return answer.map(|reply| reply.map(|body| body.attended(start)));
            };
            drop(start);
            if !self.rests(at).await {
                return answer;
            }
            left -= 1;
            last = Some(answer);
        }
    }

    /// Refuses a call that has waited while its way out came to lead elsewhere, or to take another token.
    fn still_leads(&self, entry: &EgressSettings) -> Result<(), Fault> {
        let config = self.sidecar.config();
        let now = config.way(&self.name);
        let is_same = |now: &EgressSettings| {
            std::ptr::eq(now, entry) || (&now.hosts, &now.token) == (&entry.hosts, &entry.token)
        };
        if now.is_some_and(is_same) {
            return Ok(());
        }
        let message = "the hosts or the token of this way out have changed while the call waited";
        Err(Fault::new("host_not_listed", message).hinting("send the call again"))
    }

    /// The body of a call: a small one is read whole, and takes its room. So is a larger one in which a key or a cost
    /// stands, and one of unknown length in which a key does. If that one is too large, nothing of it is left.
    async fn body(
        &self,
        entry: &EgressSettings,
        parts: &Parts,
        body: Incoming,
    ) -> Result<(CallBody, Option<SemaphorePermit<'_>>), Fault> {
        let most = if entry.sees_bodies() { READ } else { SMALL };
        let is_read = match body.size_hint().exact() {
            Some(bytes) => bytes <= most,
            None => {
                let path = ojs::resolved(parts.uri.path());
                let may_be_json = !is_upload(parts) && !is_packed(&parts.headers);
                may_be_json && entry.has_key_in_body((parts.method.as_str(), &path))
            }
        };
        if !is_read {
            return Ok((CallBody::Stream(Some(body)), None));
        }
        let patience = self.sidecar.live().settings.server.body_timeout;
        let room = &self.sidecar.call_bodies;
        match body::read(body, most as usize, patience, room).await {
            Ok((bytes, taken)) => Ok((CallBody::Whole(bytes), Some(taken))),
            // The key of the call stands in it, and will be refused as unreadable.
            Err(ReadError::TooLarge(_)) => Ok((CallBody::Stream(None), None)),
            Err(why) => Err(why.into()),
        }
    }

    /// Makes a call, and heeds what the service says. From when on it may be made again, if at all, and what came of it
    /// with its start.
    ///
    /// Where it has slots, and its caller gives up, they are taken until the service answers: it works on the call until
    /// then, whoever hears it. For `lease` at most.
    async fn try_once(
        &self,
        to: &Upstream,
        mut request: Box<Request<RequestBody>>,
        mut start: CallStart,
        entry: &EgressSettings,
    ) -> (Option<Instant>, (Result<Response<Body>, Fault>, CallStart)) {
        let has_slots = start.has_slots();
        let lease = entry.lease;
        if has_slots {
            // The connection sees meanwhile whether its caller has gone already: such a call is not sent.
            tokio::task::yield_now().await;
        }
        let repeat = Repeat::of(&request);
        start.sent();
        if let Some(meter) = &start.meter {
            request.extensions_mut().insert(meter.leaves());
        }
        let now = Instant::now();
        let (_here, gone) = oneshot::channel::<()>();
        let (sidecar, upstream) = (Arc::clone(&self.sidecar), to.clone());
        let name = Arc::clone(&self.name);
        let sending = boxed(|| async move {
            let given_up = async {
                drop(gone.await);
                tokio::time::sleep(lease).await;
            };
            let sent = tokio::select! {
                sent = upstream.send(request) => sent,
                () = given_up => Err(SendError::Broken),
            };
            if let Ok(reply) = &sent {
                let said = (reply.status(), reply.headers());
                if let Some(meter) = &mut start.meter {
                    meter.answered(said.0, said.1);
                }
                heed_reply(&sidecar, &name, &start.claimed, start.at, said).await;
            }
            (sent, start)
        });
        let (sent, start) = match has_slots {
            true => to_the_end(&self.sidecar.tasks.own, sending).await,
            false => sending.await,
        };
        let reply = match sent {
            Ok(reply) if reply.status() == StatusCode::SWITCHING_PROTOCOLS => {
                let error = UpstreamError::Lost("it switched protocols unasked".to_owned());
                let fault = self.failed(to, &error.into(), repeat);
                return (None, (Err(fault), start));
            }
            Ok(reply) => reply,
            Err(error) => {
                let may_help = matches!(&error, SendError::Backend(error) if !error.is_refused());
                let again = repeat == Repeat::Safe && may_help;
                let fault = self.failed(to, &error, repeat);
                return (again.then_some(now), (Err(fault), start));
            }
        };
        (self.sidecar.metrics).service_answered(&self.name, reply.status().as_u16());
        let again = self.again(&reply, entry.vendor, repeat, now);
        (again, (Ok(reply.map(Body::from)), start))
    }

    /// From when on a call may be made again that was answered so at `now`, if at all.
    fn again(
        &self,
        reply: &Response<ReplyBody>,
        vendor: Option<&'static Vendor>,
        repeat: Repeat,
        now: Instant,
    ) -> Option<Instant> {
        let status = reply.status().as_u16();
        let said = (status, text_lines(reply.headers()));
        let told = back_at(vendor, said, self.sidecar.store.now(), micros(BACKOFF.1));
        let told = told.map(|at| self.sidecar.instant_of(at));
        match status {
            429 => told.or(Some(now)),
            // A refusal, if it says when that ends.
            403 => told,
            502..=504 | 529 if repeat == Repeat::Safe => told.or(Some(now)),
            _ => None,
        }
    }

    /// When a call may be made again that has failed, after so many tries before it.
    fn backs_off(&self, tries: usize) -> Instant {
        let (first, most) = BACKOFF;
        let whole = first * 2_u32.saturating_pow(u32::try_from(tries).unwrap_or(u32::MAX));
        let whole = whole.min(most);
        // So calls that failed together do not come back together. Each has a number of its own.
        let number = self.sidecar.fetching.next_claim(self.sidecar.store.now());
        let chance = fingerprint([&number.0.to_be_bytes()[..]]) as u32;
        Instant::now() + whole + whole.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    /// Waits until then; `false`: no call is made again, because the sidecar stops.
    async fn rests(&self, until: Instant) -> bool {
        let stops = self.sidecar.calling.closed.cancelled();
        tokio::time::timeout_at(until, stops).await.is_err()
    }

    /// The service gave no reply.
    fn failed(&self, to: &Upstream, error: &SendError, repeat: Repeat) -> Fault {
        Fault::sending(error, |error| {
            let why = error.said_of("the service", "egress");
            if error.in_doubt() && repeat == Repeat::Harmful {
                let message =
                    format!("the service may or may not have carried the call out: {why}");
                return Fault::new("in_doubt", message)
                    .hinting("ask the service whether it has, before the call is made again")
                    .with_header(SHOULD_RETRY, "false");
            }
            let refused = match error {
                UpstreamError::Closed(address) => Some((
                    "address_refused",
                    format!(
                        "{:?} has the address {address}, which is not public; in its entry allow = [\"{address}\"] opens it",
                        to.target()
                    ),
                )),
                UpstreamError::LeadsBack => {
                    Some(("loop_detected", format!("{why}: {:?}", to.target())))
                }
                _ => None,
            };
            if let Some((code, message)) = refused {
                if self.sidecar.calling.misled.now() {
                    let egress = &*self.name;
                    tracing::warn!(id = %"destination_refused", egress, code, why = message, "calls are refused because of where they lead");
                }
                return Fault::new(code, message);
            }
            let address = format!("{:?}: ", to.target());
            let (code, at) = match error {
                // What connects names the address by itself.
                UpstreamError::Unreachable(_) => ("service_unreachable", ""),
                UpstreamError::Timeout(_) => ("service_timeout", &*address),
                _ => ("service_reply_lost", &*address),
            };
            Fault::new(code, [at, &why].concat()).later(Duration::from_secs(1))
        })
        .with("egress", &*self.name)
    }
}

/// What it does to make a call again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Nothing, however often.
    Safe,
    /// Nothing more: the service does it once.
    Harmless,
    Harmful,
}

impl Repeat {
    fn of<B>(request: &Request<B>) -> Repeat {
        let method = request.method();
        match method.is_idempotent() || request.headers().contains_key(IDEMPOTENCY_KEY) {
            _ if method.is_safe() => Repeat::Safe,
            true => Repeat::Harmless,
            false => Repeat::Harmful,
        }
    }
}

/// The body of a call.
enum CallBody {
    Whole(Bytes),
    /// It can be sent once.
    Stream(Option<Incoming>),
}

/// Asks for an answer that can be read, unless what is asked for is signed.
fn ask_plain(headers: &mut HeaderMap) {
    let name = header::ACCEPT_ENCODING;
    let is_signed = headers.get(header::AUTHORIZATION).is_some_and(|line| {
        memchr::memmem::find(line.as_bytes(), name.as_str().as_bytes()).is_some()
    });
    if !is_signed {
        headers.insert(name, HeaderValue::from_static("identity"));
    }
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
