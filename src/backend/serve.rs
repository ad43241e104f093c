//! Serves the backend on a port: HTTP/1.1 as the real ones speak it, and the event streams.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use http_body::Frame;
use http_body_util::channel::{Channel, Sender};
use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::sync::broadcast;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::api;
use super::backend::Backend;
use super::event::PhaseChange;
use super::job::Phase;
use ojs_net::{Listener, Stream};

/// How often deadlines are checked without a request.
const REAPER: Duration = Duration::from_millis(500);
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(120);
/// Replies longer than this are sent in chunks.
const UNCHUNKED: usize = 2048;
/// How often an event stream sends a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// How many frames an event stream may be ahead of its reader.
const FRAMES: usize = 64;

impl Backend {
    /// Serves HTTP/1.1 on `listener` until `stop`, and returns when the requests in progress are answered.
    pub async fn serve(self, mut listener: Listener, stop: CancellationToken) {
        let server = Arc::new(Serving {
            backend: self,
            stop: stop.clone(),
            events: AtomicU64::new(0),
        });
        let mut connections = JoinSet::new();
        let mut reaper = tokio::time::interval(REAPER);
        reaper.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = reaper.tick() => server.backend.state.lock().tick(Instant::now()),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(connection(server.clone(), stream));
                    }
                    // Probably no file descriptor is free: waiting may help, spinning would not.
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                },
            }
        }
        drop(listener);
        while connections.join_next().await.is_some() {}
    }
}

/// The state that all connections share.
struct Serving {
    backend: Backend,
    stop: CancellationToken,
    /// Frames sent so far, over all event streams.
    events: AtomicU64,
}

async fn connection(server: Arc<Serving>, stream: Stream) {
    let stop = server.stop.clone();
    let service = hyper::service::service_fn(move |request| respond(server.clone(), request));
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    // A broken connection has nobody left to tell.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn respond(
    server: Arc<Serving>,
    request: Request<Incoming>,
) -> Result<Response<ServedBody>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, api::LONGEST_BODY + 1).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(broken) => return Err(*broken),
            // A body that is just too long, so that it is refused as such.
            Err(_) => Bytes::from(vec![b' '; api::LONGEST_BODY + 1]),
        },
    };
    let topic = Topic::of(&head.method, head.uri.path());
    let changes = server.backend.changes.subscribe();
    let request = Request::from_parts(head, body);
    let (mut head, body) = server.backend.handle(request).await.into_parts();
    let Some(topic) = topic else {
        if body.len() <= UNCHUNKED {
            return Ok(Response::from_parts(head, Either::Left(Full::new(body))));
        }
        let (mut chunks, reply) = Channel::new(1);
        // There is room for one.
        let _sent = chunks.try_send(Frame::data(body));
        return Ok(Response::from_parts(head, Either::Right(reply)));
    };
    head.headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    head.headers
        .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    head.headers
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    let (frames, reply) = Channel::new(FRAMES);
    tokio::spawn(stream_events(server, topic, changes, frames, body));
    Ok(Response::from_parts(head, Either::Right(reply)))
}

/// The subject of an event stream.
enum Topic {
    Queue(String),
    Job(String),
}

impl Topic {
    fn of(method: &Method, path: &str) -> Option<Topic> {
        let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match segments[..] {
            ["ojs", "v1", "queues", name, "events"] if method == Method::GET => {
                Some(Topic::Queue(name.into()))
            }
            ["ojs", "v1", "jobs", id, "events"] if method == Method::GET => {
                Some(Topic::Job(id.into()))
            }
            _ => None,
        }
    }

    fn covers(&self, change: &PhaseChange) -> bool {
        match self {
            Topic::Queue(name) => *name == *change.queue,
            Topic::Job(id) => *id == *change.job,
        }
    }
}

/// Sends frames until the backend stops, the job has ended, or the next frame finds no reader any more.
async fn stream_events(
    server: Arc<Serving>,
    topic: Topic,
    mut changes: broadcast::Receiver<PhaseChange>,
    mut frames: Sender<Bytes>,
    first: Bytes,
) {
    if frames.send_data(first).await.is_err() {
        return;
    }
    let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    loop {
        let (frame, last) = tokio::select! {
            () = server.stop.cancelled() => return,
            _ = heartbeat.tick() => (Bytes::from_static(b":heartbeat\n\n"), false),
            change = changes.recv() => match change {
                Ok(change) if topic.covers(&change) => {
                    let number = server.events.fetch_add(1, Ordering::Relaxed) + 1;
                    (frame(number, &change), change.to.terminal() && matches!(topic, Topic::Job(_)))
                }
                // A stream that is too slow misses changes, as it does with the real ones.
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return,
            },
        };
        if frames.send_data(frame).await.is_err() || last {
            return;
        }
    }
}

/// One frame of an event stream.
fn frame(number: u64, change: &PhaseChange) -> Bytes {
    let data = json!({
        "event": "job.state_changed",
        "job_id": &*change.job,
        "queue": &*change.queue,
        "type": &*change.job_type,
        "from": change.from.map_or("", Phase::name),
        "to": change.to.name(),
        "timestamp": change.at,
    });
    let mut frame = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        frame,
        "id: evt_{number:04}\nevent: job.state_changed\ndata: {data}\n\n"
    );
    frame.into()
}

/// The body of a reply: with `Content-Length`, or in chunks.
type ServedBody = Either<Full<Bytes>, Channel<Bytes>>;
