//! Tells where bounded queues stand: in events and in the log.

use std::sync::Arc;

use crate::bounds::{Edge, Level, Now};
use crate::desk::Sidecar;
use crate::store::LedgerExt;
use crate::told::events::{EventValue, NewEvent};
use crate::wire::tick;

/// This moment on both clocks.
pub(crate) fn now(sidecar: &Sidecar) -> Now {
    let at = tick::now();
    Now {
        at,
        stamp: sidecar.store.at(at),
    }
}

/// Where a queue stands. Tells of an edge that was crossed.
pub(crate) fn tell_level(sidecar: &Sidecar, queue: &str) -> Option<Level> {
    let level = sidecar.admit.pressure.level(queue)?;
    tell_edge(sidecar, queue, &level);
    Some(level)
}

/// Tells of edges that were crossed.
pub(crate) fn tell_edges(sidecar: &Sidecar, levels: &[(Arc<str>, Level)]) {
    for (queue, level) in levels {
        tell_edge(sidecar, queue, level);
    }
}

/// Tells of an edge that was crossed.
fn tell_edge(sidecar: &Sidecar, queue: &str, level: &Level) {
    if let (Some(crossed), Some(most)) = (level.crossed, level.most) {
        let (depth, bound, unit) = (most.used, most.bound, most.met.unit());
        let kind = match crossed.edge {
            Edge::Warning => "backpressure.warning",
            Edge::Cleared | Edge::Unbounded => "backpressure.cleared",
        };
        match crossed.edge {
            _ if !crossed.loud => {}
            Edge::Warning => {
                tracing::warn!(id = %"near_bound", queue, depth, bound, unit, "the queue is near its bound");
            }
            Edge::Cleared => {
                tracing::info!(queue, depth, bound, unit, "the queue has room again");
            }
            Edge::Unbounded => {
                tracing::info!(queue, "the bound that the queue was near is gone");
            }
        }
        let mut data = vec![
            ("queue", EventValue::Text(queue)),
            ("depth", EventValue::Number(depth)),
            ("bound", EventValue::Number(bound)),
        ];
        // Numbers that are no depth of the queue say what they are.
        data.extend(unit.map(|unit| ("unit", EventValue::Text(unit))));
        if crossed.anew {
            tell_pressure(sidecar, kind, queue, None, &data);
        }
    }
}

/// Sends an event about a queue.
pub(crate) fn tell_pressure(
    sidecar: &Sidecar,
    kind: &'static str,
    queue: &str,
    job: Option<(&str, &str)>,
    data: &[(&'static str, EventValue<'_>)],
) {
    let event = NewEvent {
        kind,
        subject: job.map_or(queue, |(id, _)| id),
        queue: Some(queue),
        job: job.map(|(id, _)| id),
        job_type: job.map(|(_, kind)| kind),
        scope: None,
        data,
    };
    sidecar.events.tell(sidecar.store.now(), &event);
}
