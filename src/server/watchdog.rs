//! Ends a client's connection whose time is up. Each connection has one timer, which moves only when it fires or must
//! fire earlier, so an ordinary request touches no timer.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use http::header::{CONNECTION, HeaderMap};
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::time::{Instant, Sleep};

use super::bounds::ListenerBounds;
use ojs_tls::{self as tls, ListenerTls};
use ojs_wire::tick;

/// State that the parts of one connection share with its watchdog. All run in one task, so the atomics need no order.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// How many replies are not over yet; more than one over HTTP/2 only.
    busy: AtomicU32,
    /// How many requests have come.
    begun: AtomicU32,
    /// Whether bytes came since the last request.
    head: AtomicBool,
    /// Whether something of a reply may still have to be written.
    owes: AtomicBool,
    /// Whether the client does not take what we write.
    blocked: AtomicBool,
    /// Counts requests and writes, so that the watchdog sees progress.
    moves: AtomicU32,
    draining: AtomicBool,
    /// Whether the client has ended its half of the connection.
    ended: AtomicBool,
    /// Whether that ends the request in progress.
    stops: AtomicBool,
    /// Whether the connection is a tunnel now.
    tunnel: AtomicBool,
    /// Whether the connection speaks HTTP/2: bytes on it need not be a head.
    multiplexes: AtomicBool,
    /// Over HTTP/2: the replies whose clients have a part to take before they get more, and since when.
    given: Mutex<BTreeSet<GivenPart>>,
    /// The certificates that the client has shown, and until when they need no other look, in seconds since 1970.
    /// `None`: the handshake goes on.
    shown: Mutex<Option<(Vec<CertificateDer<'static>>, u64)>>,
    task: Mutex<Option<Waker>>,
}

/// Since when a client has a part of a reply to take, and of which request.
pub(super) type GivenPart = (Instant, u32);

impl Flags {
    pub(super) fn read(&self) {
        self.head.store(true, Ordering::Relaxed);
    }

    /// Notes how a write went.
    pub(super) fn wrote<T>(&self, written: &Poll<T>) {
        self.blocked.store(written.is_pending(), Ordering::Relaxed);
        if written.is_ready() {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Notes that a request has come, and says which of the connection it is.
    pub(super) fn begin(&self, on_end: OnEnd) -> u32 {
        self.head.store(false, Ordering::Relaxed);
        self.owes.store(true, Ordering::Relaxed);
        self.stops.store(on_end == OnEnd::Stop, Ordering::Relaxed);
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.begun.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that a reply has a part for its client to take. The connection looks how long that may last.
    pub(super) fn gives(&self, part: GivenPart) {
        self.given.lock().insert(part);
        self.wake();
    }

    /// Notes that the client took it, or that the reply is over.
    pub(super) fn is_taken(&self, part: &GivenPart) {
        self.given.lock().remove(part);
    }

    /// Since when a client takes nothing of one of its replies.
    fn stalled_since(&self) -> Option<Instant> {
        match self.is_multiplexed() {
            true => self.given.lock().first().map(|(since, _)| *since),
            false => None,
        }
    }

    /// Notes that the reply is over.
    pub(super) fn end(&self) {
        // Bytes that came meanwhile were the request's body.
        self.head.store(false, Ordering::Relaxed);
        self.busy.fetch_sub(1, Ordering::Relaxed);
        self.wake_if_half_closed();
    }

    /// Notes that hyper has written all that it had to.
    pub(super) fn flushes(&self) {
        self.owes.store(self.is_busy(), Ordering::Relaxed);
    }

    /// Whether what is written now is for no request: hyper refuses what it cannot read. Behind a reply that is still to
    /// be written, that is not seen.
    pub(super) fn is_unasked(&self) -> bool {
        !self.owes.load(Ordering::Relaxed) && self.has_turns()
    }

    /// Whether requests come one after the other.
    pub(super) fn has_turns(&self) -> bool {
        !self.is_multiplexed() && !self.is_tunnel()
    }

    /// Notes that the connection is at its end, which has bounds of its own.
    pub(super) fn lingers(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the reply goes on until its client ends it.
    pub(super) fn streams(&self) {
        self.stops.store(true, Ordering::Relaxed);
        self.wake_if_half_closed();
    }

    /// Notes that the client has ended its half. Whether that is to be kept from hyper, which would take it for the end
    /// of it all, until the request in progress is answered.
    pub(super) fn half_closes(&self) -> bool {
        self.ended.store(true, Ordering::Relaxed);
        self.has_turns() && self.is_busy() && !self.is_given_up()
    }

    /// Whether the request in progress ends because its client has ended its half.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_half_closed() && self.stops.load(Ordering::Relaxed) && self.has_turns()
    }

    pub(super) fn is_half_closed(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Has the connection read once more, and so come to its end.
    fn wake_if_half_closed(&self) {
        if self.is_half_closed() {
            self.wake();
        }
    }

    fn wake(&self) {
        let task = self.task.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Notes what the client has shown in its handshake, in which the listener's files may have changed.
    pub(super) fn shows(&self, chain: Vec<CertificateDer<'static>>) {
        *self.shown.lock() = Some((chain, 0));
    }

    /// What the client has shown is judged anew: the listener's files have changed.
    pub(super) fn doubts(&self) {
        if let Some((_, until)) = self.shown.lock().as_mut() {
            *until = 0;
        }
    }

    /// Whether the client may stay by what it has shown.
    pub(super) fn may_stay(&self, tls: &ListenerTls) -> bool {
        let mut shown = self.shown.lock();
        let Some((chain, until)) = shown.as_mut() else {
            return true;
        };
        if *until < tls::now() {
            *until = tls.admits(chain).unwrap_or(0);
        }
        *until > 0
    }

    /// Asks the connection to end after the request in progress.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Notes that the connection speaks HTTP/2.
    pub(super) fn multiplexes(&self) {
        self.multiplexes.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_multiplexed(&self) -> bool {
        self.multiplexes.load(Ordering::Relaxed)
    }

    /// Says in the way of HTTP/2 that a reply is the last one: its head cannot.
    pub(super) fn leaves(&self, headers: &mut HeaderMap) {
        if self.is_multiplexed() && headers.remove(CONNECTION).is_some() {
            self.drain();
        }
    }

    /// Notes that the two ends speak another protocol from now on.
    pub(super) fn no_more_http(&self) {
        self.tunnel.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.tunnel.load(Ordering::Relaxed)
    }

    /// Remembers whom to wake; a connection stays in one task, so once is enough.
    pub(super) fn register(&self, task: &Waker) {
        *self.task.lock() = Some(task.clone());
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    fn phase(&self) -> ConnectionPhase {
        if self.blocked.load(Ordering::Relaxed) {
            ConnectionPhase::Blocked
        } else if self.is_busy() {
            ConnectionPhase::Busy
        } else if self.head.load(Ordering::Relaxed) && !self.is_multiplexed() {
            ConnectionPhase::Head
        } else {
            ConnectionPhase::Idle
        }
    }
}

/// What becomes of a request whose client ends its half of the connection. It may wait for the reply, or be gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OnEnd {
    /// The request is answered all the same.
    Finish,
    /// It ends there: a job must not go to a worker that may be dead.
    Stop,
}

/// The phases of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ConnectionPhase {
    /// Between requests.
    Idle,
    /// Reading a head.
    Head,
    /// Working on a request, sending its reply, or at the end. The watchdog sets no limit to this.
    Busy,
    /// Waiting for the client to take bytes.
    Blocked,
}

/// The timer of one connection.
#[derive(Debug)]
pub(super) struct Watchdog {
    limits: ListenerBounds,
    phase: ConnectionPhase,
    moves: u32,
    /// When the present phase has lasted too long; `None` while it may last.
    deadline: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer, as it is set now, would wake the task.
    armed: bool,
}

impl Watchdog {
    /// The watchdog of a new connection, which must send its first head in time.
    pub(super) fn new(limits: ListenerBounds) -> Watchdog {
        let deadline = Instant::now() + limits.header;
        Watchdog {
            limits,
            phase: ConnectionPhase::Head,
            moves: 0,
            deadline: Some(deadline),
            timer: Box::pin(tokio::time::sleep_until(deadline)),
            armed: false,
        }
    }

    /// Ready when the time is up. It must be polled after the connection, in the connection's task.
    pub(super) fn poll(&mut self, flags: &Flags, cx: &mut Context<'_>) -> Poll<()> {
        self.check(flags);
        let stall = self.stall(flags);
        let deadline = [self.deadline, stall].into_iter().flatten().min();
        if let Some(deadline) = deadline.filter(|at| *at < self.timer.deadline()) {
            self.timer.as_mut().reset(deadline);
            self.armed = false;
        }
        if self.armed && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        self.armed = true;
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            match deadline {
                Some(deadline) if deadline <= now => {
                    if stall == Some(deadline) && !flags.draining() {
                        flags.drain();
                        return Poll::Pending;
                    }
                    return Poll::Ready(());
                }
                Some(deadline) => self.timer.as_mut().reset(deadline),
                // Any next phase lasts at least this long.
                None => {
                    let shortest = self.limits.idle.min(self.limits.write);
                    self.timer.as_mut().reset(now + shortest);
                }
            }
        }
        Poll::Pending
    }

    /// When the client of a reply over HTTP/2 has taken nothing for too long. First no more requests come, so that the
    /// others on the connection are answered; after as long again it ends.
    fn stall(&self, flags: &Flags) -> Option<Instant> {
        let times = if flags.draining() { 2 } else { 1 };
        Some(flags.stalled_since()? + self.limits.write * times)
    }

    /// Starts a new deadline when the phase changed or something moved.
    fn check(&mut self, flags: &Flags) {
        let (phase, moves) = (flags.phase(), flags.moves.load(Ordering::Relaxed));
        let first = self.moves == 0 && moves == 0;
        if (phase == self.phase && moves == self.moves) || (first && phase == ConnectionPhase::Idle)
        {
            return;
        }
        self.phase = phase;
        self.moves = moves;
        let patience = match phase {
            ConnectionPhase::Busy => {
                self.deadline = None;
                return;
            }
            ConnectionPhase::Idle => self.limits.idle,
            // The time for the first head already runs.
            ConnectionPhase::Head if first => return,
            ConnectionPhase::Head => self.limits.header,
            ConnectionPhase::Blocked => self.limits.write,
        };
        self.deadline = Some(tick::now() + patience);
    }
}
