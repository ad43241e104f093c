//! The connections of one thread to the backend: how one is opened, and where it stays while nobody uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use http::HeaderValue;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::call::{CallBounds, HEADER_LINES};
use super::error::{UpstreamError, advice, unsendable};
use super::link::{HttpLink, Idle};
use super::outage::Outage;
use super::target::Target;
use ojs_net::{Net, Stream};

/// What one thread has of the backend.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    pub(super) target: Target,
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
            net,
            limits,
            ..
        } = self;
        let open = async {
            let stream = net.connect(target.host(), target.port()).await?;
            match (target.tls(), stream) {
                (Some(tls), Stream::Tcp(stream)) => {
                    let stream = tls.connector().connect(tls.name.clone(), stream).await?;
                    Ok(Stream::Tls(Box::new(stream.into())))
                }
                (_, stream) => Ok::<Stream, std::io::Error>(stream),
            }
        };
        match timeout(limits.connect, open).await {
            Ok(Ok(stream)) => HttpLink::open(stream, lines_of(&self.long_heads))
                .await
                .map_err(unsendable),
            Ok(Err(error)) => {
                let hint = advice(&error);
                Err(UpstreamError::Unreachable(format!(
                    "{target:?}: {error}{hint}"
                )))
            }
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
