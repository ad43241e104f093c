//! The handle of one thread: the sidecar, and that thread's connections to the backend.

use std::ops::Deref;
use std::sync::Arc;

use http::request::Parts;
use http::{Method, Response, Uri, header};
use hyper::body::Incoming;

use super::Sidecar;
use crate::answers::body::Body;
use crate::answers::load::Load;
use crate::answers::pass;
use crate::answers::respond::Fault;
use crate::told::metrics::Counted;
use crate::wire::ojs;
use crate::wire::upstream::{IDENTITY, Path, Upstream};

/// The service of one thread: the sidecar, and that thread's connections to the backend. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Proxy(Arc<OfThread>);

/// What the service of one thread works with.
#[derive(Debug)]
pub struct OfThread {
    pub(crate) sidecar: Arc<Sidecar>,
    pub(crate) upstream: Upstream,
    pub(crate) load: Arc<Load>,
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
        let load = sidecar.tasks.threads.add(&upstream);
        Proxy(Arc::new(OfThread {
            sidecar,
            upstream,
            load,
        }))
    }

    /// Streams a request and its reply.
    pub(crate) fn pass(
        &self,
        mut parts: Box<Parts>,
        body: Incoming,
    ) -> impl Future<Output = Response<Body>> + Send + '_ {
        let fault = match parts.method {
            Method::POST => Fault::storing,
            _ => Fault::backend,
        };
        if let Some(plain) = self.plain(&parts.uri) {
            parts.uri = plain;
        }
        if self.sidecar.subqueues.any() && parts.uri.path().starts_with("/ojs/") {
            // What is searched for subqueues must not come packed.
            parts.headers.insert(header::ACCEPT_ENCODING, IDENTITY);
        }
        pass::pass(&self.upstream, parts, body, fault)
    }

    /// The target to send upstream: the raw path and query, over-encoded queue names made plain.
    pub(crate) fn target(&self, uri: &Uri) -> Path {
        Path::Read(self.plain(uri).unwrap_or_else(|| uri.clone()))
    }

    /// The target with an over-encoded queue name made plain; `None`: there is none in it.
    fn plain(&self, uri: &Uri) -> Option<Uri> {
        // First: hardly any path has escapes, and that is seen sooner than what it names.
        let path = ojs::plain_path(uri.path())?;
        if !self.sidecar.live().settings.repairs.queue_paths || !uri.path().contains("/queues/") {
            return None;
        }
        let target = match uri.query() {
            Some(query) => format!("{path}?{query}"),
            None => path,
        };
        let plain = target.parse().ok()?;
        self.sidecar.metrics.count(Counted::PathMended);
        Some(plain)
    }
}

#[cfg(test)]
impl Proxy {
    /// A sidecar over this store, with no policies and an empty backend.
    pub(crate) fn on(store: crate::store::Store) -> Proxy {
        use crate::config::Settings;
        use crate::policy::{Accept, PolicySet};
        use crate::wire::upstream::{CallBounds, Target};

        let policies = Arc::new(PolicySet::new(vec![], vec![], Accept::default()));
        let (backend, metrics) = (Default::default(), crate::told::metrics::Metrics::new(10));
        let config = Settings::parse("[server]\nupstream = 'http://127.0.0.1:1'", "t").unwrap();
        let settings = crate::desk::ProxySettings::new(Arc::new(config), false).unwrap();
        let sidecar = Sidecar::new(settings, policies, store, backend, metrics, "sidecar");
        sidecar.readiness.ready();
        let target = Target::parse("http://127.0.0.1:1").unwrap();
        let net = crate::equipment::backend();
        Proxy::new(sidecar, Upstream::new(target, net, CallBounds::default()))
    }
}
