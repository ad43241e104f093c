//! `GET /ojs/v1/events/stream`: the sidecar's own events and the backend's, in one event stream.
//!
//! Each stream is a task with a short queue of frames before its connection. When the client does not
//! read, the task stands still: the ring goes on without it, the backend's stream waits in its socket,
//! and nobody else notices.

mod relay;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use uuid::Uuid;

use crate::answers::body::Body;
use crate::answers::respond::{Fault, ours, refuse};
use crate::desk::{Proxy, Sidecar};
use crate::limit::Timestamp;
use crate::store::LedgerExt;
use crate::told::events::{
    Channel, Delivery, EncodedEvent, EventValue, Filter, Frames, NewEvent, Subscription,
};
use crate::wire::ojs::TENANT;
use crate::wire::upstream::{IDENTITY, detached};
use relay::{Relay, is_stream, shown_frame};

/// How often a stream says that it is alive (real-time text, 2.4).
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Frames between a stream's task and its connection.
const FRAMES: usize = 16;
/// How soon clients come back after the end.
const HELLO: Bytes = Bytes::from_static(b"retry: 3000\n\n");
/// What stands between our id and the backend's in the id of a frame of ours, so that a client which
/// comes back says how far it was in both.
const BESIDE: char = '~';

/// Answers with a stream that lasts until the client leaves or the sidecar ends.
pub(super) async fn event_stream(proxy: &Proxy, parts: Box<Parts>) -> Response<Body> {
    let filter = match Filter::read(parts.uri.query()) {
        Ok(filter) => filter,
        Err(bad) => return refuse(&parts, Fault::field(bad.field, &bad.why)),
    };
    let last = Last::of(&parts);
    let theirs = last.as_ref().map(|last| last.theirs.clone());
    let Some(subscription) = proxy.sidecar.events.subscribe(filter.clone()) else {
        return refuse(&parts, full());
    };
    let mut relay = match Relay::open(proxy, &parts, filter, theirs).await {
        Ok(relay) => relay,
        Err(refusal) => return refusal.map(Body::from),
    };
    if let (Channel::Other(name), true) = (&subscription.filter().channel, relay.is_absent()) {
        let why = format!("{name:?} is no channel here; write `job:ID`, `queue:NAME` or `all`");
        return refuse(&parts, Fault::field("channel", &why));
    }
    // One that may be ours counts once the backend has taken it.
    if last.as_ref().is_some_and(|last| !last.sure) && !relay.is_open() {
        relay.last_id = None;
    }
    let (out, frames) = mpsc::channel(FRAMES);
    let stream = EventStream {
        sidecar: Arc::clone(&proxy.sidecar),
        subscription,
        tenant: parts.headers.get(&TENANT).map(detached),
        relay,
        out,
    };
    // Tracked, and over when the events are closed.
    let _task = proxy.sidecar.tasks.spawn(stream.run(last));
    let mut response = Response::new(Body::frames(frames));
    let headers = response.headers_mut();
    ours(&parts.headers, headers);
    for (name, value) in [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// 503: no more streams than this.
fn full() -> Fault {
    let message = "ojs-throttle has too many event streams open";
    Fault::new("overloaded", message)
        .hinting("close streams that nobody reads, or come back after Retry-After")
        .later(Duration::from_secs(5))
}

/// What the client had last, as its `Last-Event-ID` says.
#[derive(PartialEq, Eq, Debug)]
struct Last {
    /// When that was, if the id says it.
    at: Option<Timestamp>,
    /// The backend's id.
    theirs: String,
    /// It is sure to be the backend's, and not one of ours that looks like it.
    sure: bool,
}

impl Last {
    /// `None`: the client comes for the first time.
    fn of(parts: &Parts) -> Option<Last> {
        let id = parts.headers.get("last-event-id")?.to_str().ok()?;
        (!id.is_empty()).then(|| Last::read(id))
    }

    fn read(id: &str) -> Last {
        let both = id.split_once(BESIDE);
        let both = both.and_then(|(ours, theirs)| Some((time_in(ours)?, theirs)));
        let at = both.map_or_else(|| time_in(id), |(at, _)| Some(at));
        Last {
            at,
            theirs: both.map_or(id, |(_, theirs)| theirs).to_owned(),
            sure: both.is_some() || at.is_none(),
        }
    }
}

/// When an event of ours was sent, from its id: UUIDv7 begins with the time, in milliseconds.
fn time_in(id: &str) -> Option<Timestamp> {
    let number = Uuid::try_parse(id.strip_prefix("evt_")?).ok()?;
    let (seconds, nanos) = number.get_timestamp()?.to_unix();
    let micros = seconds.saturating_mul(1_000_000);
    Some(Timestamp(micros).plus(u64::from(nanos / 1000)))
}

/// One open stream.
struct EventStream {
    sidecar: Arc<Sidecar>,
    subscription: Subscription,
    /// Who names one is told of its jobs only, as in lists.
    tenant: Option<HeaderValue>,
    /// The backend's events.
    relay: Relay,
    out: mpsc::Sender<Bytes>,
}

impl EventStream {
    /// Runs until the client leaves, the backend's events break off, or ours are closed. `last`: what the client had
    /// last.
    async fn run(mut self, last: Option<Last>) {
        let mut goes_on = self.send(HELLO).await;
        if let Some(last) = last {
            let gap = self.gap(last.at);
            goes_on = goes_on && self.send(gap).await;
        }
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while goes_on {
            let frame = tokio::select! {
                () = self.out.closed() => return,
                next = self.subscription.next() => match next {
                    Delivery::Event(event) if !self.sees(&event) => continue,
                    Delivery::Event(event) => self.frame(&event),
                    Delivery::Lost(lost) => self.lost(lost),
                    Delivery::Over => return self.end(),
                },
                theirs = self.relay.next() => match theirs {
                    Some(frame) => shown_frame(&self.sidecar, frame),
                    // The client comes back, and the backend is asked anew from its last id.
                    None => return,
                },
                _ = heartbeat.tick() => Bytes::from_static(b":heartbeat\n\n"),
            };
            goes_on = self.send(frame).await;
        }
    }

    /// Waits for a place before the connection; `false`: it is over.
    async fn send(&mut self, frame: Bytes) -> bool {
        tokio::select! {
            biased;
            sent = self.out.send(frame) => sent.is_ok(),
            () = self.sidecar.events.closed() => false,
        }
    }

    /// Whether the client is told of this: of a job of which nobody knows whose it is, who names a tenant is not.
    fn sees(&self, event: &EncodedEvent) -> bool {
        let Some(tenant) = self.tenant.as_ref().filter(|_| event.job.is_some()) else {
            return true;
        };
        let scopes = &self.sidecar.scopes;
        event.scope.is_some_and(|scope| scopes.is_of(scope, tenant))
    }

    fn frame(&self, event: &EncodedEvent) -> Bytes {
        self.subscription.sent();
        match &self.relay.last_id {
            Some(theirs) => event.frame_as(&format!("{}{BESIDE}{theirs}", event.id)),
            None => event.frame.clone(),
        }
    }

    /// Tells this client alone that it was too slow (real-time text, 5.4).
    fn lost(&self, lost: u64) -> Bytes {
        let now = self.sidecar.store.now();
        let data = [
            ("dropped_count", EventValue::Number(lost)),
            ("timestamp", EventValue::Time(now)),
        ];
        let comment = format!(":events-dropped {lost}\n\n");
        let notice = self.notice("system.events_dropped", &data);
        [comment.as_bytes(), &notice].concat().into()
    }

    /// Tells this client that what happened while it was away is not kept (real-time text, 5.5.1). When
    /// that began is not known of one that had an event of the backend's last.
    fn gap(&self, since: Option<Timestamp>) -> Bytes {
        let now = self.sidecar.store.now();
        let start = since.map(|since| ("gap_start", EventValue::Time(since.min(now))));
        let end = ("gap_end", EventValue::Time(now));
        let data: Vec<_> = start.into_iter().chain([end]).collect();
        self.notice("system.gap", &data)
    }

    /// The last word, if there is room for it (real-time text, 5.1).
    fn end(&self) {
        let data = [
            ("reason", EventValue::Text("shutdown")),
            ("grace_period_ms", EventValue::Number(0)),
        ];
        let _sent = self.out.try_send(self.notice("server.shutdown", &data));
    }

    fn notice(&self, kind: &'static str, data: &[(&'static str, EventValue<'_>)]) -> Bytes {
        let channel = self.subscription.filter().channel.to_string();
        let channel = ("channel", EventValue::Text(&channel));
        let data: Vec<_> = [channel].into_iter().chain(data.iter().copied()).collect();
        let event = NewEvent {
            kind,
            subject: "events",
            data: &data,
            ..NewEvent::default()
        };
        self.sidecar.events.notice(self.sidecar.store.now(), &event)
    }
}

/// Passes the backend's own event stream of one job or one queue, without mirrors and subqueues: what comes frame by frame, and signs
/// of life between them at once.
pub(super) async fn backends_stream(
    proxy: &Proxy,
    mut parts: Box<Parts>,
    body: Incoming,
) -> Response<Body> {
    // What is read must not come packed.
    parts.headers.insert(header::ACCEPT_ENCODING, IDENTITY);
    let sidecar = Arc::clone(&proxy.sidecar);
    let reply = proxy.pass(parts, body).await;
    if reply.status() != StatusCode::OK || !is_stream(reply.headers()) {
        return reply;
    }
    let (mut head, body) = reply.into_parts();
    head.headers.remove(header::CONTENT_LENGTH);
    let mut frames = Frames::default();
    let shown = move |bytes: Bytes| {
        let mut out = BytesMut::new();
        frames.push(&bytes);
        loop {
            match frames.next() {
                Ok(Some(frame)) => out.extend_from_slice(&shown_frame(&sidecar, frame)),
                Ok(None) => {
                    out.extend_from_slice(&frames.comments());
                    return out.freeze();
                }
                Err(error) => {
                    tracing::warn!(id = %"event_left_out", %error, "an event of the backend's is left out of its stream");
                }
            }
        }
    };
    Response::from_parts(head, body.changed(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "evt_0190b0a0-0000-7000-8000-000000000000";

    #[test]
    fn a_last_id_is_split_only_after_one_of_ours() {
        let read = |id: &str| {
            let Last { at, theirs, sure } = Last::read(id);
            (at.is_some(), theirs, sure)
        };
        assert_eq!(read(&format!("{OURS}~b7")), (true, "b7".to_owned(), true));
        assert_eq!(read(&format!("{OURS}~b~7")), (true, "b~7".to_owned(), true));
        assert_eq!(read("b~7"), (false, "b~7".to_owned(), true));
        assert_eq!(read("b7"), (false, "b7".to_owned(), true));
        assert_eq!(read(OURS), (true, OURS.to_owned(), false));
    }
}
