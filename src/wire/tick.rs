//! One reading of the clock for all that happens in one poll of a connection.
//!
//! A request of few microseconds used to read the clock ten times, which was a tenth of its cost. A poll waits for
//! nothing, so its first reading stays true to its end, unless the process is stopped in the middle. Work that must
//! not be early after such a stop reads the clock itself: starts do, before the store is asked for them.

use std::cell::Cell;

use tokio::time::Instant;

thread_local! {
    /// `None`: there is no poll, so each reading is a new one. `Some(None)`: it was not read yet.
    static READ: Cell<Option<Option<Instant>>> = const { Cell::new(None) };
}

/// The time, as it was read first in this poll; outside of [`within`] it is read anew each time.
pub fn now() -> Instant {
    match READ.get() {
        Some(Some(read)) => read,
        Some(None) => {
            let now = Instant::now();
            READ.set(Some(Some(now)));
            now
        }
        None => Instant::now(),
    }
}

/// Runs one poll, in which [`now`] stands still.
pub fn within<T>(poll: impl FnOnce() -> T) -> T {
    let _over = Over(READ.replace(Some(None)));
    poll()
}

/// Puts back what was before, after a panic too.
struct Over(Option<Option<Instant>>);

impl Drop for Over {
    fn drop(&mut self) {
        READ.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_stands_still_within_one_poll() {
        let begun = Instant::now();
        let second = Duration::from_secs(1);
        let mut waiting = Box::pin(tokio::time::sleep(second));
        std::future::poll_fn(|cx| {
            within(|| {
                let read = now();
                let polled = waiting.as_mut().poll(cx);
                assert_eq!(now(), read);
                polled
            })
        })
        .await;
        assert_eq!(now(), begun + second);
        within(|| assert_eq!(now(), begun + second));
        let panicked = std::panic::catch_unwind(|| within(|| panic!("within")));
        assert!(panicked.is_err());
        tokio::time::advance(second).await;
        assert_eq!(now(), begun + 2 * second, "it stands still for ever");
    }
}
