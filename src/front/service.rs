//! Dispatch: one match from operation to function.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use std::sync::Arc;
use tokio::sync::SemaphorePermit;

use super::{about, outside, stream};
use crate::admit::enqueue::{self, Sends};
use crate::answers::body::{self, Body};
use crate::answers::load::{Load, Service, Urgency};
use crate::answers::respond::{self, Fault, Own, refuse};
use crate::config::TlsSettings;
use crate::control::{overrides, queue_config, tenants};
use crate::desk::{Proxy, guard};
use crate::inquiry::{bases, calls};
use crate::jobs::fetch;
use crate::settle::{self, Verb, heartbeat};
use crate::show::limits;
use crate::subqueues::merged::merged;
use crate::subqueues::names::ReplyKind;
use crate::tls::ListenerTls;
use crate::told::metrics::Counted;
use crate::wire::boxed::boxed;
use crate::wire::ojs::{self, Operation};
use crate::wire::upstream::is_packed;

impl Service for Proxy {
    fn call(
        &self,
        head: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Response<Body>> + Send {
        self.handle(head, body)
    }

    fn tls(&self) -> Option<ListenerTls> {
        let live = self.sidecar.live();
        let tls = live.settings.config.server.tls.as_ref();
        tls.map(TlsSettings::listener)
    }

    fn urgency(&self, head: &Parts) -> Urgency {
        match head.method == Method::POST && ojs::is_urgent(head.uri.path()) {
            true => Urgency::Urgent,
            false => Urgency::Ordinary,
        }
    }

    fn left_behind(&self, urgency: Urgency) -> usize {
        self.sidecar.left_behind(urgency)
    }

    fn load(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    fn wants_plain_json(&self, head: &Parts) -> bool {
        let when = self.sidecar.live().settings.repairs.media_type;
        respond::wants_plain_json(when, &head.headers)
    }

    fn make_plain(&self, reply: &mut Response<Body>) {
        if respond::relabel(reply.headers_mut()) {
            self.sidecar.metrics.count(Counted::MediaTypeMended);
        }
    }

    /// Counts a reply in which we refused or failed. While we drain, the client's next request comes on a new
    /// connection, which may lead to another sidecar; this one closes when nobody sends on it.
    fn leaving(&self, reply: &mut Response<Body>) {
        let switches = reply.status() == StatusCode::SWITCHING_PROTOCOLS;
        if self.sidecar.tasks.draining.is_cancelled() && !switches {
            let close = HeaderValue::from_static("close");
            reply.headers_mut().insert(header::CONNECTION, close);
        }
        if let Some(Own(code)) = reply.extensions().get() {
            let status = reply.status().as_u16();
            self.sidecar.metrics.answered(status, code);
        }
    }
}

impl Proxy {
    /// Answers one request.
    pub async fn handle(&self, parts: Box<Parts>, body: Incoming) -> Response<Body> {
        if let Some(fault) = bases::named_in_target(&self.sidecar, &parts.uri) {
            return refuse(&parts, fault);
        }
        let has_subqueues = self.sidecar.subqueues.any();
        let kind = has_subqueues.then(|| bases::kind_of(parts.uri.path()));
        let mut reply = self.answer(parts, body).await;
        if let Some(kind) = kind {
            bases::show_bases(&self.sidecar, kind, &mut reply);
        }
        reply
    }

    async fn answer(&self, mut parts: Box<Parts>, body: Incoming) -> Response<Body> {
        if self.upstream.has_sent(&parts.headers) {
            return refuse(&parts, Fault::comes_round());
        }
        guard::keep_control_token(&self.sidecar, &mut parts);
        // A reference to the same bytes: the operation's names are parts of them.
        let uri = parts.uri.clone();
        let operation = match Operation::of(&parts.method, uri.path()) {
            Ok(operation) => operation,
            Err(bad) => return Fault::from(bad).reply(respond::request_id(&parts.headers)),
        };
        match operation {
            Operation::Job => Box::pin(outside::show_job(self, parts)).await,
            Operation::Jobs => Box::pin(self.forward(&parts, Bytes::new())).await,
            Operation::QueueStats { queue } => {
                Box::pin(outside::show_queues(self, parts, Some(&queue))).await
            }
            Operation::AdminQueue { queue } => {
                let reply = Box::pin(outside::queues(self, &parts, Some(&queue))).await;
                let shown = queue_config::show_queue(self, &queue, reply);
                or_refused(&parts, shown)
            }
            Operation::Queues => Box::pin(outside::show_queues(self, parts, None)).await,
            Operation::RateLimits => {
                let page = Box::pin(limits::list(self, &parts)).await;
                or_refused(&parts, page)
            }
            Operation::Manifest => Box::pin(about::manifest(self, parts)).await,
            Operation::Health => Box::pin(about::health(self, parts)).await,
            Operation::EventStream => Box::pin(stream::event_stream(self, parts)).await,
            Operation::BackendEvents => Box::pin(stream::backends_stream(self, parts, body)).await,
            Operation::QueueConfig { .. }
            | Operation::Tenant { .. }
            | Operation::TenantLimits { .. } => self.queue_or_tenant(parts, body, operation).await,
            Operation::Other => self.pass(parts, body).await,
            _ => self.with_body(parts, body, operation).await,
        }
    }

    /// Reads or changes the settings of a queue or a tenant, or passes the request. A backend that allows any origin
    /// here would let a web page change limits, so it is not asked for its `OPTIONS`.
    async fn queue_or_tenant(
        &self,
        parts: Box<Parts>,
        body: Incoming,
        operation: Operation<'_>,
    ) -> Response<Body> {
        let is_queue = matches!(operation, Operation::QueueConfig { .. });
        match parts.method {
            Method::OPTIONS if is_queue => refuse(&parts, guard::not_allowed("GET, HEAD, PUT")),
            Method::OPTIONS => refuse(&parts, guard::not_allowed("GET, HEAD, PUT, DELETE")),
            Method::GET | Method::HEAD | Method::PUT => {
                self.with_body(parts, body, operation).await
            }
            Method::DELETE if !is_queue => self.with_body(parts, body, operation).await,
            _ => self.pass(parts, body).await,
        }
    }

    /// A body that is read whole.
    async fn read(
        &self,
        headers: &HeaderMap,
        body: Incoming,
        operation: &Operation<'_>,
    ) -> Result<(Bytes, SemaphorePermit<'_>), Fault> {
        if is_packed(headers) {
            return Err(packed());
        }
        let (most, patience) = {
            let server = &self.sidecar.live().settings.server;
            (server.max_body, server.body_timeout)
        };
        // What settles a job or keeps it alive names no queue, and is refused for nothing else.
        let settles = matches!(
            operation,
            Operation::Ack | Operation::Nack | Operation::Heartbeat
        );
        // Bodies of producers that wait in front of a full queue keep no worker out: only workers make room in it.
        let room = match settles || matches!(operation, Operation::Fetch) {
            true => &self.sidecar.urgent_bodies,
            false => &self.sidecar.bodies,
        };
        let read = body::read(body, most, patience, room).await?;
        match settles {
            true => Ok(read),
            false => bases::named_in_body(&self.sidecar, &read.0).map_or(Ok(read), Err),
        }
    }

    /// Operations whose bodies are read whole before anything is sent on.
    async fn with_body(
        &self,
        parts: Box<Parts>,
        body: Incoming,
        operation: Operation<'_>,
    ) -> Response<Body> {
        // Its room is taken until there is a reply.
        let (bytes, _taken) = match self.read(&parts.headers, body, &operation).await {
            Ok(read) => read,
            Err(fault) => return refuse(&parts, fault),
        };
        let reset = self.sidecar.live().settings.reset;
        // What is rare or large is boxed: every request in progress has room for the largest.
        match operation {
            Operation::Fetch => fetch::fetch(self, parts, bytes).await,
            Operation::Ack => settle::settle(self, parts, bytes, Verb::Ack).await,
            Operation::Nack => settle::settle(self, parts, bytes, Verb::Nack).await,
            Operation::Heartbeat => boxed(|| heartbeat::heartbeat(self, parts, bytes)).await,
            Operation::Enqueue => enqueue::enqueue(self, parts, bytes, Sends::Job).await,
            Operation::Batch => enqueue::enqueue(self, parts, bytes, Sends::Batch).await,
            Operation::NewTemplate => enqueue::enqueue(self, parts, bytes, Sends::Templates).await,
            Operation::CancelJob { id } => Box::pin(outside::cancel(self, parts, bytes, &id)).await,
            Operation::RetryJob { id } => Box::pin(outside::revive(self, &parts, bytes, &id)).await,
            Operation::RetryMany => Box::pin(outside::revive_many(self, &parts, bytes)).await,
            Operation::Pause { queue } => {
                Box::pin(outside::pause(self, parts, bytes, &queue)).await
            }
            Operation::Resume { queue } => {
                Box::pin(outside::resume(self, parts, bytes, &queue)).await
            }
            Operation::RateLimit { key } | Operation::Override { key } => {
                let done = Box::pin(overrides::rate_limit(self, &parts, bytes, &key)).await;
                or_refused(&parts, done)
            }
            Operation::QueueLimit { queue } => {
                let done = Box::pin(overrides::queue_limit(self, &parts, bytes, &queue)).await;
                or_refused(&parts, done)
            }
            Operation::QueueConfig { queue } => {
                let done = queue_config::queue_config(self, &parts, bytes, &queue);
                or_refused(&parts, Box::pin(done).await)
            }
            Operation::Tenant { ref id } | Operation::TenantLimits { ref id } => {
                let within = matches!(operation, Operation::Tenant { .. }).then_some("limits");
                let done = tenants::tenant(self, &parts, bytes, id, within);
                or_refused(&parts, Box::pin(done).await)
            }
            Operation::Reset if reset => Box::pin(outside::reset(self, parts, bytes)).await,
            _ => self.forward(&parts, bytes).await,
        }
    }

    /// Passes a request whose body is known, for a reply that may show a job.
    async fn forward(&self, parts: &Parts, bytes: Bytes) -> Response<Body> {
        let call = calls::plain_call(self, parts, bytes);
        let mut answer = self.upstream.call(call).await;
        if let Ok(reply) = &mut answer
            && let Some(shown) = merged(&reply.body, ReplyKind::default(), &self.sidecar.subqueues)
        {
            reply.body = shown.into();
        }
        respond::answer(parts, answer, Fault::backend)
    }
}

fn or_refused(parts: &Parts, done: Result<Response<Body>, Fault>) -> Response<Body> {
    done.unwrap_or_else(|fault| refuse(parts, fault))
}

fn packed() -> Fault {
    let message = "Content-Encoding is not supported on this route: its body must be read";
    Fault::new("unsupported_media_type", message).closing()
}
