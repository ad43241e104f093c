//! Events: what the sidecar tells those who listen (events text, sections 2 and 6; rate-limiting text,
//! 11.1; backpressure text, 10.1).
//!
//! One ring for the whole process. An event is encoded once, however many listen, and not at all when
//! nobody does: [`Events::tell`] is then one look at a number. Nobody who tells ever waits: a subscriber
//! that does not keep up loses the oldest events and is told how many. Delivery is best effort (events
//! text, 9.1).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::duration::rfc3339;
use crate::json::quote;
use crate::limit::Timestamp;
use crate::metrics::Metrics;

pub mod filter;
pub mod frames;

pub use filter::{BadFilter, Channel, Filter};
pub use frames::{Frames, TooLong};

/// Events that a subscriber may be behind before it loses the oldest.
pub const KEPT: usize = 1024;
/// The most subscribers at once.
pub const SUBSCRIBERS: usize = 1024;

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Its type, for example `rate_limit.exceeded`.
    pub kind: &'static str,
    /// What it is about: the id of a job, a key, a queue.
    pub subject: &'a str,
    /// The queue it happened in, if in one.
    pub queue: Option<&'a str>,
    /// The id of the job it happened to, if to one.
    pub job: Option<&'a str>,
    /// The type of that job.
    pub job_type: Option<&'a str>,
    /// Under whose credentials that job was claimed, if that is known.
    pub scope: Option<u64>,
    /// The members of `data`, exactly.
    pub data: &'a [(&'static str, Value<'a>)],
}

/// A member of an event's `data`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// A string.
    Text(&'a str),
    /// A number.
    Number(u64),
    /// A time, written as RFC 3339.
    Time(Timestamp),
}

/// An event as it was told: what filters look at, and its text.
#[derive(Debug)]
pub struct Told {
    id: String,
    kind: &'static str,
    queue: Option<Box<str>>,
    job: Option<Box<str>>,
    job_type: Option<Box<str>>,
    scope: Option<u64>,
    /// `id:`, `event:` and `data:` lines and the empty one.
    frame: Bytes,
}

impl Told {
    /// Its id: `evt_` and a UUIDv7.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it is of one job.
    pub fn is_of_a_job(&self) -> bool {
        self.job.is_some()
    }

    /// Under whose credentials its job was claimed, if it has one and that is known.
    pub fn scope(&self) -> Option<u64> {
        self.scope
    }

    /// The whole frame of an event stream, under [`Told::id`].
    pub fn frame(&self) -> Bytes {
        self.frame.clone()
    }

    /// The frame under another id, for a stream that must remember more with it.
    pub fn frame_as(&self, id: &str) -> Bytes {
        let rest = self.frame.get("id: ".len() + self.id.len()..);
        [b"id: ", id.as_bytes(), rest.unwrap_or_default()]
            .concat()
            .into()
    }
}

/// The ring of one sidecar. Cheap to clone.
#[derive(Clone)]
pub struct Events(Arc<Inner>);

struct Inner {
    ring: broadcast::Sender<Arc<Told>>,
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
    /// A ring without subscribers. `instance` is the sidecar's name, and becomes the last part of every
    /// event's `source`.
    pub fn new(instance: &str, metrics: Metrics) -> Events {
        Events(Arc::new(Inner {
            ring: broadcast::Sender::new(KEPT),
            subscribers: AtomicUsize::new(0),
            over: CancellationToken::new(),
            source: format!("ojs://ojs-throttle/limiter/{instance}").into(),
            metrics,
        }))
    }

    /// Whether anybody listens. What is only needed for an event need not be made if not.
    pub fn heard(&self) -> bool {
        self.0.subscribers.load(Ordering::Relaxed) > 0
    }

    /// The frame of an event for one stream alone. It has no id: a client that comes back says what it had
    /// before.
    pub fn notice(&self, at: Timestamp, event: &Event<'_>) -> Bytes {
        let id = format!("evt_{}", Uuid::now_v7());
        let text = self.envelope(&id, at, event);
        format!("event: {}\ndata: {text}\n\n", event.kind).into()
    }

    /// Tells everybody who listens that this happened `at` that time. Never waits.
    pub fn tell(&self, at: Timestamp, event: &Event<'_>) {
        if !self.heard() {
            return;
        }
        let id = format!("evt_{}", Uuid::now_v7());
        let text = self.envelope(&id, at, event);
        let told = Told {
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

    /// The envelope (events text, 2.2), and beside it what readers of streams look for flat: `event`,
    /// `queue`, `job_id`.
    fn envelope(&self, id: &str, at: Timestamp, event: &Event<'_>) -> String {
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
                Value::Text(value) => format!("{comma}\"{name}\":{}", quote(value)),
                Value::Number(value) => format!("{comma}\"{name}\":{value}"),
                Value::Time(at) => format!("{comma}\"{name}\":\"{}\"", rfc3339(at.0)),
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

    /// Listens from now on; `None`: there are [`SUBSCRIBERS`] already, or it is over.
    pub fn subscribe(&self, filter: Filter) -> Option<Subscription> {
        let inner = &self.0;
        let before = inner.subscribers.fetch_add(1, Ordering::Relaxed);
        inner.metrics.subscribers(before + 1);
        // From here on dropping it undoes the counting.
        let subscription = Subscription {
            ring: inner.ring.subscribe(),
            filter,
            events: self.clone(),
        };
        (before < SUBSCRIBERS && !inner.over.is_cancelled()).then_some(subscription)
    }

    /// Ends all subscriptions, now and later (shutdown).
    pub fn close(&self) {
        self.0.over.cancel();
    }

    /// Done when the subscriptions are to end.
    pub async fn closed(&self) {
        self.0.over.cancelled().await;
    }

    /// Whether the subscriptions are to end.
    pub fn is_closed(&self) -> bool {
        self.0.over.is_cancelled()
    }
}

/// Somebody who listens; ends when dropped.
#[derive(Debug)]
pub struct Subscription {
    ring: broadcast::Receiver<Arc<Told>>,
    filter: Filter,
    events: Events,
}

/// What a subscriber gets.
#[derive(Debug)]
pub enum Next {
    /// An event that its filter lets through.
    Event(Arc<Told>),
    /// It was too slow: this many events are gone, whether they were for it or not.
    Lost(u64),
    /// There will be no more.
    Over,
}

impl Subscription {
    /// The next thing. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Next {
        loop {
            let told = tokio::select! {
                // What was told before the end is still heard.
                biased;
                told = self.ring.recv() => told,
                () = self.events.closed() => return Next::Over,
            };
            match told {
                Ok(told) if self.filter.lets_through(&told, &self.events.0.source) => {
                    return Next::Event(told);
                }
                Ok(_) => {}
                Err(RecvError::Lagged(lost)) => {
                    self.events.0.metrics.events_lost(lost);
                    return Next::Lost(lost);
                }
                Err(RecvError::Closed) => return Next::Over,
            }
        }
    }

    /// An event of the subscriber's was put into its reply.
    pub fn sent(&self) {
        self.events.0.metrics.event_sent();
    }

    /// What it wants to hear.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let inner = &self.events.0;
        // One that slept until it was cut off never heard how much went past it.
        let lost = self.ring.len().saturating_sub(KEPT);
        inner.metrics.events_lost(lost as u64);
        let before = inner.subscribers.fetch_sub(1, Ordering::Relaxed);
        inner.metrics.subscribers(before.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
