//! The ring of events, and those who listen to it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::event::{EncodedEvent, EventValue, NewEvent};
use super::filter::Filter;
use super::kinds;
use crate::metrics::Metrics;
use ojs_duration::rfc3339;
use ojs_json::quote;
use ojs_limit::Timestamp;

/// How many events a subscriber may be behind before it loses the oldest.
pub const MOST_BEHIND: usize = 1024;
/// The most subscribers at once.
pub const SUBSCRIBERS: usize = 1024;
/// The gauge of them.
const SUBSCRIBED: &str = "ojs_throttle_event_subscribers";

/// The ring of one sidecar. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<EventRing>);

struct EventRing {
    ring: broadcast::Sender<Arc<EncodedEvent>>,
    subscribers: AtomicUsize,
    over: CancellationToken,
    source: Box<str>,
    metrics: Metrics,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events")
            .field("source", &self.0.source)
            .field("subscribers", &self.0.subscribers)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// A ring without subscribers. `instance` is the sidecar's name: the last part of every event's `source`.
    pub fn new(instance: &str, metrics: Metrics) -> Events {
        Events(Arc::new(EventRing {
            ring: broadcast::Sender::new(MOST_BEHIND),
            subscribers: AtomicUsize::new(0),
            over: CancellationToken::new(),
            source: format!("ojs://ojs-throttle/limiter/{instance}").into(),
            metrics,
        }))
    }

    /// Whether anybody listens. If not, an event need not even be put together.
    pub fn heard(&self) -> bool {
        self.0.subscribers.load(Ordering::Relaxed) > 0
    }

    /// The frame of an event for one stream alone. It has no id, because a client that reconnects names the last id
    /// that it had.
    pub fn notice(&self, at: Timestamp, event: &NewEvent<'_>) -> Bytes {
        let id = format!("evt_{}", Uuid::now_v7());
        let text = self.envelope(&id, at, event);
        format!("event: {}\ndata: {text}\n\n", event.kind).into()
    }

    /// Sends an event that happened at `at` to everybody who listens. Never waits.
    pub fn tell(&self, at: Timestamp, event: &NewEvent<'_>) {
        if !self.heard() {
            return;
        }
        let id = format!("evt_{}", Uuid::now_v7());
        let text = self.envelope(&id, at, event);
        let told = EncodedEvent {
            frame: format!("id: {id}\nevent: {}\ndata: {text}\n\n", event.kind).into(),
            id,
            kind: event.kind,
            queue: event.queue.map(Box::from),
            job: event.job.map(Box::from),
            job_type: event.job_type.map(Box::from),
            scope: event.scope,
        };
        // The last subscriber may have left just now.
        let _heard_by = self.0.ring.send(Arc::new(told));
    }

    /// The envelope (events text, 2.2). Beside it stand the members that readers of streams look for at the top:
    /// `event`, `queue`, `job_id`.
    fn envelope(&self, id: &str, at: Timestamp, event: &NewEvent<'_>) -> String {
        let members = event.data.iter().map(|(name, _)| *name);
        debug_assert!(kinds::is_declared(event.kind, members), "{event:?}");
        let mut text = format!(
            r#"{{"specversion":"1.0","id":"{id}","type":"{}","source":{},"time":"{}","subject":{},"data":{{"#,
            event.kind,
            quote(&self.0.source),
            rfc3339(at.0),
            quote(event.subject),
        );
        for (nth, (name, value)) in event.data.iter().enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            text += &match value {
                EventValue::Text(value) => format!("{comma}\"{name}\":{}", quote(value)),
                EventValue::Number(value) => format!("{comma}\"{name}\":{value}"),
                EventValue::Time(at) => format!("{comma}\"{name}\":\"{}\"", rfc3339(at.0)),
            };
        }
        text += &format!(r#"}},"event":"{}""#, event.kind);
        for (name, value) in [("queue", event.queue), ("job_id", event.job)] {
            if let Some(value) = value {
                text += &format!(",\"{name}\":{}", quote(value));
            }
        }
        text + "}"
    }

    /// Listens from now on. `None` if there are [`SUBSCRIBERS`] already, or the ring is closed.
    pub fn subscribe(&self, filter: Filter) -> Option<Subscription> {
        let inner = &self.0;
        let before = inner.subscribers.fetch_add(1, Ordering::Relaxed);
        inner.metrics.set(SUBSCRIBED, &[], before + 1);
        // From here on, dropping the subscription undoes the counting.
        let subscription = Subscription {
            ring: inner.ring.subscribe(),
            filter,
            events: self.clone(),
        };
        (before < SUBSCRIBERS && !inner.over.is_cancelled()).then_some(subscription)
    }

    /// Ends all subscriptions and refuses new ones (shutdown).
    pub fn close(&self) {
        self.0.over.cancel();
    }

    /// Waits until the subscriptions must end.
    pub async fn closed(&self) {
        self.0.over.cancelled().await;
    }

    /// Whether the subscriptions must end.
    pub fn is_closed(&self) -> bool {
        self.0.over.is_cancelled()
    }
}

/// One subscriber; dropping it ends it.
#[derive(Debug)]
pub struct Subscription {
    ring: broadcast::Receiver<Arc<EncodedEvent>>,
    filter: Filter,
    events: Events,
}

/// A delivery to a subscriber.
#[derive(Debug)]
pub enum Delivery {
    /// An event that its filter lets through.
    Event(Arc<EncodedEvent>),
    /// The subscriber was too slow: this many events are lost, whether its filter wanted them or not.
    Lost(u64),
    /// There will be no more.
    Over,
}

impl Subscription {
    /// Waits for the next delivery. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Delivery {
        loop {
            let told = tokio::select! {
                // Events from before the end are still delivered.
                biased;
                told = self.ring.recv() => told,
                () = self.events.closed() => return Delivery::Over,
            };
            match told {
                Ok(told) if self.filter.lets_through(&told, &self.events.0.source) => {
                    return Delivery::Event(told);
                }
                Ok(_) => {}
                Err(RecvError::Lagged(lost)) => {
                    self.events.0.metrics.events_lost(lost);
                    return Delivery::Lost(lost);
                }
                Err(RecvError::Closed) => return Delivery::Over,
            }
        }
    }

    /// The events that its filter lets through and that wait for it, and how many it has lost.
    pub fn take_ready(&mut self) -> (Vec<Arc<EncodedEvent>>, u64) {
        let (mut events, mut lost) = (Vec::new(), 0);
        loop {
            match self.ring.try_recv() {
                Ok(told) if self.filter.lets_through(&told, &self.events.0.source) => {
                    events.push(told);
                }
                Ok(_) => {}
                Err(TryRecvError::Lagged(missed)) => lost += missed,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return (events, lost),
            }
        }
    }

    /// Notes that an event was put into the subscriber's reply.
    pub fn sent(&self) {
        self.events.0.metrics.event_sent();
    }

    /// The subscriber's filter.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let inner = &self.events.0;
        // A subscriber that slept until it was cut off never learnt how much it lost.
        let lost = self.ring.len().saturating_sub(MOST_BEHIND);
        inner.metrics.events_lost(lost as u64);
        let before = inner.subscribers.fetch_sub(1, Ordering::Relaxed);
        (inner.metrics).set(SUBSCRIBED, &[], before.saturating_sub(1));
    }
}
