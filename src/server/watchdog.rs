//! When a client's connection has had its time. One timer a connection, moved only when it fires
//! or must fire earlier: an ordinary request touches no timer.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::Limits;
use crate::tick;

/// What the parts of one connection tell its watchdog. All in one task, so order is given and the
/// atomics are only for the compiler.
#[derive(Debug, Default)]
pub(super) struct Flags {
    /// Requests whose reply is not over: 0 or 1.
    busy: AtomicBool,
    /// Bytes came since the last request.
    head: AtomicBool,
    /// The client does not take what we write.
    blocked: AtomicBool,
    /// Requests and writes, to see that there was one.
    moves: AtomicU32,
    draining: AtomicBool,
    /// It is a tunnel now.
    tunnel: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Flags {
    pub(super) fn read(&self) {
        self.head.store(true, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, done: bool) {
        self.blocked.store(!done, Ordering::Relaxed);
        if done {
            self.moves.store(
                self.moves.load(Ordering::Relaxed).wrapping_add(1),
                Ordering::Relaxed,
            );
        }
    }

    /// A request has come.
    pub(super) fn begin(&self) {
        self.head.store(false, Ordering::Relaxed);
        self.busy.store(true, Ordering::Relaxed);
    }

    /// Its reply is over.
    pub(super) fn end(&self) {
        // What was read meanwhile was the request's body.
        self.head.store(false, Ordering::Relaxed);
        self.busy.store(false, Ordering::Relaxed);
    }

    /// Asks the connection to end after the request in progress.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(super) fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// From now on the two ends speak another protocol.
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

    /// Whether nothing is in progress.
    pub(super) fn is_idle(&self) -> bool {
        self.phase() == Phase::Idle
    }

    fn phase(&self) -> Phase {
        if self.blocked.load(Ordering::Relaxed) {
            Phase::Blocked
        } else if self.busy.load(Ordering::Relaxed) {
            Phase::Busy
        } else if self.head.load(Ordering::Relaxed) {
            Phase::Head
        } else {
            Phase::Idle
        }
    }
}

/// What a connection is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Between requests.
    Idle,
    /// Within a head.
    Head,
    /// Within a request or reply; how long that may take is not decided here.
    Busy,
    /// Waiting for the client to take bytes.
    Blocked,
}

/// The timer of one connection.
#[derive(Debug)]
pub(super) struct Watchdog {
    limits: Limits,
    phase: Phase,
    moves: u32,
    /// When the present phase has lasted too long; `None` while it may last.
    deadline: Option<Instant>,
    timer: Pin<Box<Sleep>>,
    /// The timer, as it is set now, knows whom to wake.
    armed: bool,
}

impl Watchdog {
    /// For a connection opened now: until its first head has come it is within a head.
    pub(super) fn new(limits: Limits) -> Watchdog {
        let deadline = Instant::now() + limits.header;
        Watchdog {
            limits,
            phase: Phase::Head,
            moves: 0,
            deadline: Some(deadline),
            timer: Box::pin(tokio::time::sleep_until(deadline)),
            armed: false,
        }
    }

    /// Ready when time is up. To be polled whenever the connection was, in the one task that it stays in.
    pub(super) fn poll(&mut self, flags: &Flags, cx: &mut Context<'_>) -> Poll<()> {
        self.look(flags);
        if self.armed && !self.timer.is_elapsed() {
            return Poll::Pending;
        }
        self.armed = true;
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            match self.deadline {
                Some(deadline) if deadline <= now => return Poll::Ready(()),
                Some(deadline) => self.timer.as_mut().reset(deadline),
                // Whatever phase comes next has at least this long from its beginning.
                None => {
                    let next = now + self.shortest();
                    self.timer.as_mut().reset(next);
                }
            }
        }
        Poll::Pending
    }

    /// Begins a new deadline if there is something new.
    fn look(&mut self, flags: &Flags) {
        let (phase, moves) = (flags.phase(), flags.moves.load(Ordering::Relaxed));
        let first = self.moves == 0 && moves == 0;
        if (phase == self.phase && moves == self.moves) || (first && phase == Phase::Idle) {
            return;
        }
        self.phase = phase;
        self.moves = moves;
        let patience = match phase {
            Phase::Busy => {
                self.deadline = None;
                return;
            }
            Phase::Idle => self.limits.idle,
            // Of the first head the time already runs.
            Phase::Head if first => return,
            Phase::Head => self.limits.header,
            Phase::Blocked => self.limits.write,
        };
        let deadline = tick::now() + patience;
        self.deadline = Some(deadline);
        if deadline < self.timer.deadline() {
            self.timer.as_mut().reset(deadline);
            self.armed = false;
        }
    }

    fn shortest(&self) -> Duration {
        self.limits.idle.min(self.limits.write)
    }
}
