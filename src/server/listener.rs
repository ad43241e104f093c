//! One listener: it accepts connections, serves each in a task of its own, and ends in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bounds::ListenerBounds;
use super::connection::connection;
use super::requests::Listening;
use super::watchdog::Flags;
use crate::net::Listener;
use crate::proxy::load::{Seldom, Service};

/// The pause after a failed accept. A process without free file descriptors would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves `listener` until `drain` is cancelled. Then it accepts nothing, closes idle connections, and returns when
/// the last request is answered. Dropping the future ends all connections at once.
pub async fn serve<S: Service>(
    mut listener: Listener,
    service: S,
    limits: ListenerBounds,
    drain: CancellationToken,
) {
    let load = service.load();
    let shared = Arc::new(Listening {
        service,
        limits,
        load: Arc::clone(&load),
        listen: listener
            .local_addr()
            .map_or_else(|error| error.to_string(), |at| at.to_string()),
        overloaded: Seldom::default(),
        long_heads: AtomicBool::new(false),
        unsecured: Seldom::default(),
    });
    let full = Seldom::default();
    let mut connections = JoinSet::new();
    let mut flags = HashMap::new();
    let failing = Seldom::default();
    loop {
        tokio::select! {
            () = drain.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                flags.remove(&id);
                load.connections.store(connections.len(), Ordering::Relaxed);
            }
            accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                Ok((stream, peer)) => {
                    let flag = Arc::<Flags>::default();
                    let task = connections.spawn(connection(stream, peer, Arc::clone(&shared), Arc::clone(&flag)));
                    flags.insert(task.id(), flag);
                    load.connections.store(connections.len(), Ordering::Relaxed);
                    if connections.len() >= limits.connections && full.now() {
                        let open = connections.len();
                        tracing::warn!(id = %"connections_full", listen = %shared.listen, open, "as many connections as this port takes: more wait until some close");
                    }
                }
                Err(error) => {
                    if failing.now() {
                        tracing::warn!(id = %"accept_failed", listen = %shared.listen, %error, "cannot accept connections; trying on");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    flags.values().for_each(|flag| flag.drain());
    while connections.join_next().await.is_some() {
        load.connections.store(connections.len(), Ordering::Relaxed);
    }
}
