//! The store's time, which does not go back: where the server's clock was set back it goes on from where it
//! was, and is ahead of that clock by so much from then on.
//!
//! A row of the table of numbers keeps how far it is ahead (`value`) and the last time that a beat has seen
//! (`put_at`). Each transaction reads it; only beats write it, and whoever finds that the clock was set back, so
//! nobody waits for it otherwise.

/// Microseconds since 1970 by the server's clock, unless a test gives them as `$1`.
const RAW: &str = "coalesce($1::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// A step back that is left alone, in microseconds: servers that take over from each other may be some ms apart.
pub(super) const SMALL_STEP: i64 = 100_000;

/// The row.
const ROW: &str = "FROM numbers WHERE name = 'clock'";

/// The time.
pub(super) fn now() -> String {
    format!("coalesce((SELECT greatest(put_at, {RAW} + value) {ROW}), {RAW})")
}

/// By how much it is ahead of the server's clock.
pub(super) fn ahead() -> String {
    format!("coalesce((SELECT value {ROW}), 0)")
}

/// How far it would have to go back.
pub(super) fn behind() -> String {
    format!("coalesce((SELECT put_at - value - {RAW} {ROW}), 0)")
}

/// Writes down what time it is, and by how much more it is ahead if the clock was set back.
pub(super) fn keep() -> String {
    let forever = i64::MAX;
    format!(
        "INSERT INTO numbers AS clock VALUES ('clock', 0, 0, {RAW}, {forever})
         ON CONFLICT (name) DO UPDATE SET
         value = CASE WHEN {RAW} + clock.value + {SMALL_STEP} < clock.put_at
             THEN clock.put_at - {RAW} ELSE clock.value END,
         put_at = greatest(clock.put_at, {RAW} + clock.value)"
    )
}
