//! Dispatch: one match from operation to function.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, Uri, header};
use hyper::body::Incoming;
use std::ops::Deref;
use std::sync::Arc;

use super::body::{self, Body};
use super::enqueue::Sends;
use super::load::Load;
use super::pass;
use super::refuse;
use super::respond::{Fault, Own};
use super::settle::Verb;
use super::{Sidecar, respond};
use crate::boxed::boxed;
use crate::metrics::Counted;
use crate::ojs::{self, Operation};
use crate::upstream::{Path, Upstream};

/// The service of one thread: the sidecar, and that thread's connections to the backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Proxy(Arc<OfThread>);

/// What the service of one thread works with.
#[derive(Debug)]
pub struct OfThread {
    pub(super) sidecar: Arc<Sidecar>,
    pub(super) upstream: Upstream,
    load: Arc<Load>,
}

impl Deref for Proxy {
    type Target = OfThread;

    fn deref(&self) -> &OfThread {
        &self.0
    }
}

impl Proxy {
    /// A service for one thread.
    pub fn new(sidecar: Arc<Sidecar>, upstream: Upstream) -> Proxy {
        let load = sidecar.threads.add(&upstream);
        Proxy(Arc::new(OfThread {
            sidecar,
            upstream,
            load,
        }))
    }

    /// Where its listener counts what it has in hand.
    pub fn load(&self) -> Arc<Load> {
        Arc::clone(&self.load)
    }

    /// The sidecar it is a service of.
    pub fn sidecar(&self) -> &Sidecar {
        &self.sidecar
    }

    /// Whether a request settles a job or keeps it alive, by its head.
    pub fn is_urgent(head: &Parts) -> bool {
        head.method == Method::POST && ojs::is_urgent(head.uri.path())
    }

    /// Whether a client's replies are relabelled, by the head of its request.
    pub fn wants_plain_json(&self, head: &Parts) -> bool {
        let relabel = self.sidecar.live().settings.media_type;
        relabel.applies(&head.headers)
    }

    /// The last look at a reply, the backend's or ours: relabelled where its client wants that, and counted where
    /// it says that we refused or failed.
    pub fn leaving(&self, reply: &mut Response<Body>, plain_json: bool) {
        let metrics = &self.sidecar.metrics;
        if let Some(Own(code)) = reply.extensions().get() {
            metrics.answered(reply.status().as_u16(), code);
        }
        if plain_json && respond::relabel(reply.headers_mut()) {
            metrics.count(Counted::MediaTypeMended);
        }
    }

    /// Answers one request.
    pub async fn handle(&self, mut parts: Box<Parts>, body: Incoming) -> Response<Body> {
        self.sidecar.keep_control_token(&mut parts);
        // A reference to the same bytes: the operation's names are parts of them.
        let uri = parts.uri.clone();
        let operation = match Operation::of(&parts.method, uri.path()) {
            Ok(operation) => operation,
            Err(bad) => return Fault::from(bad).reply(respond::request_id(&parts.headers)),
        };
        match operation {
            Operation::Fetch
            | Operation::Ack
            | Operation::Nack
            | Operation::Heartbeat
            | Operation::Enqueue
            | Operation::Batch
            | Operation::Cron
            | Operation::Workflows
            | Operation::Templates
            | Operation::CancelJob { .. }
            | Operation::Pause { .. }
            | Operation::Resume { .. }
            | Operation::RetryJob { .. }
            | Operation::RetryMany
            | Operation::RetryDeadLetter { .. }
            | Operation::Reset => self.with_body(parts, body, operation).await,
            Operation::Job { .. }
            | Operation::AdminJob { .. }
            | Operation::AdminJobs
            | Operation::DeadLetters => Box::pin(self.show_jobs(parts)).await,
            Operation::QueueStats { queue } => {
                Box::pin(self.show_queues(parts, Some(&queue))).await
            }
            Operation::AdminQueue { queue } => Box::pin(self.show_queue(parts, &queue)).await,
            Operation::Queues | Operation::AdminQueues | Operation::AdminStats => {
                Box::pin(self.show_queues(parts, None)).await
            }
            Operation::RateLimits => Box::pin(self.list(&parts)).await,
            Operation::RateLimit { .. }
            | Operation::Override { .. }
            | Operation::QueueLimit { .. } => self.with_body(parts, body, operation).await,
            Operation::QueueConfig { .. } if matches!(parts.method, Method::GET | Method::PUT) => {
                self.with_body(parts, body, operation).await
            }
            Operation::Tenant { .. } | Operation::TenantLimits { .. }
                if matches!(parts.method, Method::GET | Method::PUT | Method::DELETE) =>
            {
                self.with_body(parts, body, operation).await
            }
            Operation::Manifest => Box::pin(self.manifest(parts)).await,
            Operation::Health => Box::pin(self.health(parts)).await,
            Operation::EventStream => Box::pin(self.event_stream(parts)).await,
            Operation::BackendEvents => Box::pin(self.backends_stream(parts, body)).await,
            Operation::QueueConfig { .. }
            | Operation::Tenant { .. }
            | Operation::TenantLimits { .. }
            | Operation::Other => self.pass(parts, body).await,
        }
    }

    /// Operations whose bodies are read whole before anything is sent on.
    async fn with_body(
        &self,
        parts: Box<Parts>,
        body: Incoming,
        operation: Operation<'_>,
    ) -> Response<Body> {
        if is_packed(&parts.headers) {
            return refuse(&parts, packed());
        }
        let (most, patience, reset) = {
            let settings = &self.sidecar.live().settings;
            (settings.max_body, settings.body_timeout, settings.reset)
        };
        let bytes = match body::read(body, most, patience).await {
            Ok(bytes) => bytes,
            Err(error) => return refuse(&parts, Fault::from(error)),
        };
        // What is rare or large is boxed: every request in progress has room for the largest.
        match operation {
            Operation::Fetch => self.fetch(parts, bytes).await,
            Operation::Ack => self.settle(parts, bytes, Verb::Ack).await,
            Operation::Nack => self.settle(parts, bytes, Verb::Nack).await,
            Operation::Heartbeat => boxed(|| self.heartbeat(parts, bytes)).await,
            Operation::Enqueue => self.enqueue(parts, bytes, Sends::Job).await,
            Operation::Batch => self.enqueue(parts, bytes, Sends::Batch).await,
            Operation::Cron | Operation::Workflows => {
                self.enqueue(parts, bytes, Sends::Templates).await
            }
            Operation::CancelJob { id } => Box::pin(self.cancel(parts, bytes, &id)).await,
            Operation::RetryJob { id } | Operation::RetryDeadLetter { id } => {
                Box::pin(self.revive(&parts, bytes, &id)).await
            }
            Operation::RetryMany => Box::pin(self.revive_many(&parts, bytes)).await,
            Operation::Pause { queue } => Box::pin(self.pause(parts, bytes, &queue, true)).await,
            Operation::Resume { queue } => Box::pin(self.pause(parts, bytes, &queue, false)).await,
            Operation::RateLimit { key } | Operation::Override { key } => {
                Box::pin(self.rate_limit(parts, bytes, &key)).await
            }
            Operation::QueueLimit { queue } => {
                Box::pin(self.queue_limit(parts, bytes, &queue)).await
            }
            Operation::QueueConfig { queue } => {
                Box::pin(self.queue_config(parts, bytes, &queue)).await
            }
            Operation::Tenant { id } => {
                Box::pin(self.tenant(parts, bytes, &id, Some("limits"))).await
            }
            Operation::TenantLimits { id } => Box::pin(self.tenant(parts, bytes, &id, None)).await,
            Operation::Reset if reset => Box::pin(self.reset(parts, bytes)).await,
            _ => self.forward(&parts, bytes).await,
        }
    }

    /// Passes a request whose body is known, for a reply that may show a job.
    async fn forward(&self, parts: &Parts, bytes: Bytes) -> Response<Body> {
        let answer = self.upstream.call(self.plain_call(parts, bytes)).await;
        respond::answer(parts, answer, false)
    }

    /// Streams a request and its reply.
    pub(super) fn pass(
        &self,
        mut parts: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Response<Body>> + Send + '_ {
        let stores = parts.method == Method::POST;
        if let Some(plain) = self.plain(&parts.uri) {
            parts.uri = plain;
        }
        pass::pass(&self.upstream, parts, body, stores)
    }

    /// The target to send upstream: the raw path and query, over-encoded queue names made plain.
    pub(super) fn target(&self, uri: &Uri) -> Path {
        Path::Read(self.plain(uri).unwrap_or_else(|| uri.clone()))
    }

    /// The target with an over-encoded queue name made plain; `None`: there is none in it.
    fn plain(&self, uri: &Uri) -> Option<Uri> {
        if !self.sidecar.live().settings.repair_paths || !uri.path().contains("/queues/") {
            return None;
        }
        let path = ojs::plain_path(uri.path())?;
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let plain = target.parse().ok()?;
        self.sidecar.metrics.count(Counted::PathMended);
        Some(plain)
    }
}

/// Whether a body is packed, so that we cannot read what it asks for.
fn is_packed(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(header::CONTENT_ENCODING).iter();
    codings.any(|coding| coding != "identity")
}

fn packed() -> Fault {
    let message = "Content-Encoding is not supported on this route: its body must be read";
    Fault::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        message,
    )
    .closing()
}
