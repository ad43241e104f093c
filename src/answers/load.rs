//! What a listener asks of the service behind it, and what a thread has in hand, for the gauges that are read when they
//! are asked for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::Response;
use http::request::Parts;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::body::Body;
use ojs_tls::ListenerTls;
use ojs_wire::upstream::Upstream;

/// How long a thing that goes on is not said again.
const SILENCE: Duration = Duration::from_secs(60);

/// Which places a request takes. Requests that settle a job or keep it alive have places of their own, so that
/// others cannot keep them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// An ACK, nack or heartbeat.
    Urgent,
    /// Any other request.
    Ordinary,
}

/// Marks a request whose client showed a certificate with one of the listener's `admin_names`.
#[derive(Clone, Copy, Debug)]
pub struct BearsAdminName;

/// Answers requests. One clone serves all connections of a listener.
pub trait Service: Send + Sync + 'static {
    /// Answers one request. The future is dropped when the client hangs up. The head is boxed because each layer that
    /// it passes would copy it.
    fn call(&self, head: Box<Parts>, body: Incoming)
    -> impl Future<Output = Response<Body>> + Send;

    /// How connections are secured from now on; `None`: not at all.
    fn tls(&self) -> Option<ListenerTls> {
        None
    }

    /// Which places a request takes.
    fn urgency(&self, _head: &Parts) -> Urgency {
        Urgency::Ordinary
    }

    /// How many requests of this urgency are still being worked on although their clients hung up. They keep their
    /// places.
    fn left_behind(&self, _urgency: Urgency) -> usize {
        0
    }

    /// Counts the listener's connections and requests.
    fn load(&self) -> Arc<Load> {
        Arc::default()
    }

    /// Whether every request ends when its client ends its half of the connection; else only some do.
    fn stops_with_client(&self) -> bool {
        false
    }

    /// Whether traces show the paths of its requests.
    fn tells_paths(&self) -> bool {
        true
    }

    /// Whether the client cannot read replies labelled with the OJS media type, judged by the head of its request.
    fn wants_plain_json(&self, _head: &Parts) -> bool {
        false
    }

    /// Labels a reply as plain JSON, for a client that wants that.
    fn make_plain(&self, _reply: &mut Response<Body>) {}

    /// Looks at a reply for the last time before it leaves.
    fn leaving(&self, _reply: &mut Response<Body>) {}
}

/// What one listener has in hand now.
#[derive(Debug, Default)]
pub struct Load {
    /// Open connections, WebSockets among them.
    pub connections: AtomicUsize,
    /// Requests that have no reply yet, but for the urgent ones.
    pub ordinary: AtomicUsize,
    /// The urgent ones: ACKs, nacks and heartbeats.
    pub urgent: AtomicUsize,
}

/// What is said at once, and then once a minute at most while it goes on.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is to be said now.
    pub fn now(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| last.elapsed() >= SILENCE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}

/// The threads of a sidecar, as its gauges see them.
#[derive(Debug, Default)]
pub struct Threads {
    loads: Mutex<Vec<Arc<Load>>>,
    /// Of any thread: they all know the same of the backend.
    upstream: OnceLock<Upstream>,
}

impl Threads {
    /// One more thread, with its way to the backend: where it counts what it has in hand.
    pub fn add(&self, upstream: &Upstream) -> Arc<Load> {
        let load = Arc::<Load>::default();
        let mut loads = self.loads.lock();
        loads.push(Arc::clone(&load));
        self.upstream.get_or_init(|| upstream.clone());
        load
    }

    /// The sum of one number over all threads.
    pub fn sum(&self, of: impl Fn(&Load) -> &AtomicUsize) -> usize {
        let loads = self.loads.lock();
        let each = loads.iter().map(|load| of(load).load(Ordering::Relaxed));
        each.sum()
    }

    /// Whether the backend is away, as far as any thread knows.
    pub fn backend_is_away(&self) -> bool {
        self.upstream.get().is_some_and(Upstream::is_away)
    }
}
