//! The connections of one thread to the backend: how one is opened, and where it stays while nobody uses it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::addresses::{AddressRange, is_open};
use super::call::{CallBounds, HEADER_LINES};
use super::error::{UpstreamError, advice, unsendable};
use super::link::{HttpLink, Idle};
use super::outage::Outage;
use super::target::Target;
use ojs_net::{Net, Stream};

/// What holds of a service that calls name: nobody who wrote the file chose its addresses.
#[derive(Clone, Debug)]
pub struct CalledByName {
    /// Addresses that it may have beside public ones.
    pub allow: Arc<[AddressRange]>,
    /// The ports of this program.
    pub own: Arc<OnceLock<Vec<u16>>>,
}

impl CalledByName {
    /// Refuses a host with an address to which no call may go. One that is an address itself stands in the file so.
    ///
    /// # Errors
    /// The first such address.
    pub fn check(&self, host: &str, found: &[SocketAddr]) -> Result<(), UpstreamError> {
        let mut found = found.iter().map(SocketAddr::ip);
        let bad = found.find(|address| !is_open(&self.allow, *address));
        match bad.filter(|_| host.parse::<IpAddr>().is_err()) {
            Some(address) => Err(UpstreamError::Closed(address)),
            None => Ok(()),
        }
    }

    fn leads_back(&self, stream: &Stream) -> bool {
        self.own.get().is_some_and(|own| stream.leads_to(own))
    }
}

/// What one thread has of the backend.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    pub(super) target: Target,
    /// Whether calls name it, each by its `Host`; `None`: the file does.
    pub(super) called: Option<CalledByName>,
    pub(super) net: Net,
    pub(super) limits: CallBounds,
    /// What requests that cross say in `Via`.
    pub(super) via: Option<HeaderValue>,
    /// Whether a head of a reply had more lines than most: from then on each may.
    pub(super) long_heads: Arc<AtomicBool>,
    pub(super) idle: Mutex<Idle>,
    /// Whether it answers, where that is told; `None`: others tell of their calls.
    pub(super) outage: Option<Arc<Outage>>,
}

impl ConnectionPool {
    /// Takes an idle connection.
    pub(super) fn pop(&self, now: Instant) -> Option<Box<HttpLink>> {
        self.idle.lock().pop(now, self.limits.idle)
    }

    /// Keeps a connection as idle.
    pub(super) fn put(self: &Arc<Self>, link: Box<HttpLink>) {
        if self.idle.lock().push(link) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(&self) -> Result<Box<HttpLink>, UpstreamError> {
        let ConnectionPool {
            target,
            called,
            net,
            limits,
            ..
        } = self;
        let failed = |error: io::Error| {
            let hint = advice(&error, called.is_some());
            UpstreamError::Unreachable(format!("{target:?}: {error}{hint}"))
        };
        let open = async {
            let (host, port) = (target.host(), target.port());
            let found = net.look_up(host, port, limits.connect).await;
            let found = found.map_err(failed)?;
            if let Some(called) = called {
                called.check(host, &found)?;
            }
            // To these: a second look-up could find others.
            let stream = net.open(found, &limits.probes).await.map_err(failed)?;
            if called.as_ref().is_some_and(|of| of.leads_back(&stream)) {
                return Err(UpstreamError::LeadsBack);
            }
            match (target.tls(), stream) {
                (Some(tls), Stream::Tcp(stream)) => {
                    let stream = tls.connector().connect(tls.name.clone(), stream).await;
                    Ok(Stream::Tls(Box::new(stream.map_err(failed)?.into())))
                }
                (_, stream) => Ok(stream),
            }
        };
        match timeout(limits.connect, open).await {
            Ok(opened) => HttpLink::open(opened?, lines_of(&self.long_heads))
                .await
                .map_err(unsendable),
            Err(_) => {
                let waited = limits.connect;
                Err(UpstreamError::Unreachable(format!(
                    "{target:?}: no connection within {waited:?}"
                )))
            }
        }
    }
}

/// How many header lines a message may have, unless as many as most.
fn lines_of(long: &AtomicBool) -> Option<usize> {
    long.load(Ordering::Relaxed).then_some(HEADER_LINES)
}

/// Closes connections that were idle for too long, until none is left.
async fn sweep(shared: Weak<ConnectionPool>) {
    let Some(idle) = shared.upgrade().map(|shared| shared.limits.idle) else {
        return;
    };
    loop {
        tokio::time::sleep(idle).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if !shared.idle.lock().sweep(idle) {
            return;
        }
    }
}
