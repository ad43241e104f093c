//! Catches wakes that a task gives itself. Taking a part of a body wakes the task that fills that body, which here is
//! often the same task: it would be polled once more for nothing, twice a request. A [`WakeGate`] around the task's
//! waker lets the taker look at such a wake before it counts.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Wake, Waker};

thread_local! {
    /// Whether wakes are being held on this thread, and the last one that was.
    static HOLDING: Cell<bool> = const { Cell::new(false) };
    static HELD: Cell<Option<Arc<WakeGate>>> = const { Cell::new(None) };
}

/// A waker whose wakes can be caught.
#[derive(Debug)]
pub struct WakeGate(Waker);

impl WakeGate {
    /// A waker that wakes `task`, unless it is held.
    pub fn before(task: &Waker) -> Waker {
        Waker::from(Arc::new(WakeGate(task.clone())))
    }
}

impl Wake for WakeGate {
    fn wake(self: Arc<WakeGate>) {
        if !HOLDING.get() {
            return self.0.wake_by_ref();
        }
        if let Some(other) = HELD.replace(Some(self)) {
            // Two wakes in one step: the caller gets only the last one, so this one counts now.
            other.0.wake_by_ref();
        }
    }

    fn wake_by_ref(self: &Arc<WakeGate>) {
        if HOLDING.get() {
            Arc::clone(self).wake()
        } else {
            self.0.wake_by_ref()
        }
    }
}

/// Ends the holding even if the step panics: otherwise no wake on this thread would count any more.
struct Holding;

impl Drop for Holding {
    fn drop(&mut self) {
        HOLDING.set(false);
    }
}

/// Runs one short step, and returns the wake that it caused instead of letting it through. Drop it if nobody needs it.
pub fn hold<T>(step: impl FnOnce() -> T) -> (T, Option<Waker>) {
    HOLDING.set(true);
    let holding = Holding;
    let done = step();
    drop(holding);
    (done, HELD.take().map(|gate| gate.0.clone()))
}

/// Polls once. A future that is ready at once needs no clock and no timer.
pub(crate) async fn at_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_held_wake_counts_only_when_it_is_passed_on() {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let gate = WakeGate::before(&Waker::from(Arc::clone(&count)));
        let wakes = || count.0.load(Ordering::Relaxed);
        gate.wake_by_ref();
        assert_eq!(wakes(), 1);
        let ((), held) = hold(|| gate.wake_by_ref());
        assert_eq!(wakes(), 1);
        held.unwrap().wake();
        assert_eq!(wakes(), 2);
        assert!(hold(|| ()).1.is_none());
        let ((), _dropped) = hold(|| gate.wake_by_ref());
        gate.wake();
        assert_eq!(wakes(), 3);
    }

    #[test]
    fn of_two_held_wakes_none_is_lost() {
        let counts = [0, 1].map(|_| Arc::new(Count(AtomicUsize::new(0))));
        let gates = counts
            .each_ref()
            .map(|count| WakeGate::before(&Waker::from(Arc::clone(count))));
        let ((), held) = hold(|| {
            gates
                .each_ref()
                .map(|gate| gate.wake_by_ref())
                .into_iter()
                .collect()
        });
        held.unwrap().wake();
        assert_eq!(counts.map(|count| count.0.load(Ordering::Relaxed)), [1, 1]);
    }
}
