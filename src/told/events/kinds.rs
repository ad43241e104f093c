//! What events there are, each declared once.

/// What is declared of a kind of event.
#[derive(Clone, Copy, Debug)]
pub struct EventDeclaration {
    /// Its type.
    pub kind: &'static str,
    /// The members that its `data` may have, beside `trace_id`.
    pub data: &'static [&'static str],
    /// When it is sent, for the manual.
    pub when: &'static str,
}

macro_rules! kinds {
    ($( $(#[doc = $when:literal])* $kind:literal [$($member:ident)*]; )*) => {
        /// All kinds of events.
        pub const KINDS: &[EventDeclaration] = &[$(
            EventDeclaration { kind: $kind, data: &[$(stringify!($member)),*], when: concat!($($when),*).trim_ascii() },
        )*];
    };
}

kinds! {
    /// A job was refused for the first time since it waits. `strategy` is the limit that refused: `concurrency`,
    /// `rate`, `throttle` or `shut`. It is `line` where there is room, and it is kept for a job that is first in line,
    /// or for a group whose turn it is. Then there are no `limit` and `current`.
    "rate_limit.exceeded" [key strategy limit current];
    /// A job that was refused starts.
    "rate_limit.released" [key strategy job_id];
    /// A job that was refused was ended (`on_limit = "drop"`).
    "rate_limit.dropped" [key job_id job_type];
    /// A job said that it costs more than one job may, or its ACK that it used more. It counts the most.
    "rate_limit.cost_capped" [key job_id];
    /// A call through an `[[egress]]` had no start in time, and was answered 429.
    "rate_limit.call_refused" [key egress];
    /// A nack, or the reply to a call, shut a key until a time.
    "rate_limit.dynamic_adjusted" [key until reason];
    /// A queue came near a bound. `unit` is there if the numbers are not jobs of the queue.
    "backpressure.warning" [queue depth bound unit];
    /// A queue that was near a bound has room again.
    "backpressure.cleared" [queue depth bound unit];
    /// An enqueue was refused; a batch is one. If `depth` is not the depth of the queue, `code`,
    /// `unit`, and `tenant_id` or `key` say what it is.
    "backpressure.rejected" [queue depth bound job_type code unit tenant_id key];
    /// A job was dropped to make room for another one.
    "backpressure.dropped" [queue job_id job_type];
    /// Sent to a client that came back: what happened meanwhile is not kept.
    "system.gap" [channel gap_start gap_end];
    /// Sent to a client that was too slow, with how many events it lost. A comment `:events-dropped N` stands before
    /// it.
    "system.events_dropped" [channel dropped_count timestamp];
    /// The drain ended, and the stream ends with it.
    "server.shutdown" [channel reason grace_period_ms];
}

/// Whether an event with such data is declared.
pub(super) fn is_declared<'a>(kind: &str, mut data: impl Iterator<Item = &'a str>) -> bool {
    let declared = KINDS.iter().find(|declared| declared.kind == kind);
    declared.is_some_and(|of| data.all(|member| member == "trace_id" || of.data.contains(&member)))
}
