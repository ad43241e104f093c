//! Time as the core knows it: a number on the store's clock.

/// How much earlier than its time a spaced start may leave, and how much longer than its period a
/// window keeps a start, in microseconds: timers wake a little late, and without this a limit of
/// 1,000/s would lose half of itself.
pub const EARLY: u64 = 5_000;

/// Microseconds since the Unix epoch, on the store's clock. The only time the core knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// A time that never comes.
    pub const NEVER: Timestamp = Timestamp(u64::MAX);

    /// This time less `micros`, stopping at 0.
    pub fn minus(self, micros: u64) -> Timestamp {
        Timestamp(self.0.saturating_sub(micros))
    }

    /// This time plus `micros`, stopping at [`Timestamp::NEVER`].
    pub fn plus(self, micros: u64) -> Timestamp {
        Timestamp(self.0.saturating_add(micros))
    }

    /// Microseconds from `earlier` to this time; zero if it is not later.
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
