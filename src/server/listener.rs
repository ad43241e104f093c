//! One listener: it accepts connections, serves each in a task of its own, and ends in order.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::bounds::ListenerBounds;
use super::connection::connection;
use super::requests::Listening;
use super::watchdog::Flags;
use ojs_answers::load::{Seldom, Service};
use ojs_net::Listener;
use ojs_tls::ListenerTls;

/// The pause after a failed accept. A process without free file descriptors would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often it is looked whether clients may stay by the certificates that they have shown. The last requests of one
/// that may not have until the next look but [`LAST_LOOK`].
const LOOK: Duration = Duration::from_secs(5);
const LAST_LOOK: u32 = 12;

/// Ends the connections of clients whose certificates have ended, or are not trusted any more. `last`: how connections
/// were secured at the last look.
async fn end_unwanted(
    tls: &ListenerTls,
    last: Option<&ListenerTls>,
    open: &mut HashMap<Id, OpenConnection>,
) {
    let has_changed = last != Some(tls);
    for (flags, task, unwanted) in open.values_mut() {
        if has_changed {
            flags.doubts();
        }
        if !flags.may_stay(tls) {
            flags.drain();
            *unwanted += 1;
            if *unwanted > LAST_LOOK {
                task.abort();
            }
        }
        // To look at thousands of certificates takes longer than a request may wait.
        tokio::task::yield_now().await;
    }
}

/// A connection, its task, and at how many looks its client was found to be unwanted.
type OpenConnection = (Arc<Flags>, AbortHandle, u32);

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
    let mut open = HashMap::new();
    let failing = Seldom::default();
    let (mut looks, mut last_tls) = (interval(LOOK), shared.service.tls());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = drain.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.remove(&id);
                load.connections.store(connections.len(), Ordering::Relaxed);
            }
            accepted = listener.accept(), if connections.len() < limits.connections => match accepted {
                Ok((stream, peer)) => {
                    let flags = Arc::<Flags>::default();
                    let task = connections.spawn(connection(stream, peer, Arc::clone(&shared), Arc::clone(&flags)));
                    open.insert(task.id(), (flags, task, 0));
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
            _ = looks.tick() => {
                let tls = shared.service.tls();
                if let Some(tls) = tls.as_ref().filter(|tls| tls.asks_clients()) {
                    end_unwanted(tls, last_tls.as_ref(), &mut open).await;
                }
                last_tls = tls;
            }
        }
    }
    drop(listener);
    open.values().for_each(|(flags, ..)| flags.drain());
    while connections.join_next().await.is_some() {
        load.connections.store(connections.len(), Ordering::Relaxed);
    }
}
