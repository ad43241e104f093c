//! The clock of a store that has none of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::limit::Timestamp;

/// Wall time that does not step.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// Runs on tokio's monotonic clock, and stands still with paused time.
    Running { base: Instant, unix_base: Timestamp },
    /// Moved by hand.
    Given(Arc<AtomicU64>),
}

impl Clock {
    /// A clock on which it is `unix_micros` microseconds since the Unix epoch now.
    pub fn new(unix_micros: u64) -> Clock {
        Clock(Kind::Running {
            base: Instant::now(),
            unix_base: Timestamp(unix_micros),
        })
    }

    /// A clock that shows what is written there, for tests over real sockets, where time cannot be
    /// paused. It must not be set back.
    pub fn given(micros: Arc<AtomicU64>) -> Clock {
        Clock(Kind::Given(micros))
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Running { base, unix_base } => {
                let since = base.elapsed();
                unix_base.plus(since.as_secs() * 1_000_000 + u64::from(since.subsec_micros()))
            }
            Kind::Given(micros) => Timestamp(micros.load(Ordering::Acquire)),
        }
    }
}
