//! A queue's numbers as those see them who read its statistics through us: with ours among them.

use tokio::time::Instant;

use super::look::await_all;
use crate::bounds::Bounds;
use crate::desk::Proxy;
use crate::desk::edges::tell_level;
use crate::inquiry::stats::numbers;
use crate::json::{Json, Splice, quote};
use crate::wire::ojs::REPLY_DEPTH;

/// A bounded queue's numbers with `stats` in them: its depth, how full it is and its bounds, beside what is
/// there already. What they leave out is known from the last look, which is made anew where it is due.
/// `None`: they stay as they are.
pub(crate) async fn with_depth(proxy: &Proxy, text: &[u8], queue: &str) -> Option<Vec<u8>> {
    let sidecar = &proxy.sidecar;
    let pressure = &sidecar.admit.pressure;
    let bounds = pressure.bounds(queue)?;
    let whole = Json::parse(text, REPLY_DEPTH).ok()?;
    let counts = numbers(whole)?.counts;
    let tells_all = pressure.tells_all(&counts);
    if !tells_all && let Some((look, scope)) = pressure.look_for_reader(queue, Instant::now()) {
        await_all(proxy, vec![look], scope).await;
    }
    let level = tell_level(sidecar, queue);
    let told = counts.total();
    let ours = level.as_ref().filter(|_| !tells_all);
    let depth = ours.map_or(told, |level| level.depth.max(told));
    let bytes = level.as_ref().map_or(0, |level| level.bytes);
    let mut splice = Splice::new();
    splice.set_in(whole, "stats", &members(queue, &bounds, depth, bytes));
    Some(splice.apply(text))
}

/// The members of `stats` of a queue.
fn members(queue: &str, bounds: &Bounds, depth: u64, bytes: u64) -> Vec<(&'static str, String)> {
    let mut members = vec![("queue", quote(queue)), ("depth", depth.to_string())];
    if let Some(bound) = bounds.max_depth {
        members.push(("bound", bound.to_string()));
        members.push(("max_depth", bound.to_string()));
    }
    if let Some(bound) = bounds.max_bytes {
        members.push(("bytes", bytes.to_string()));
        members.push(("max_size_bytes", bound.to_string()));
    }
    let fraction = |used: u64, bound: Option<u64>| Some((used as f64 / bound? as f64).min(1.0));
    let both = [
        fraction(depth, bounds.max_depth),
        fraction(bytes, bounds.max_bytes),
    ];
    if let Some(pressure) = both.into_iter().flatten().max_by(f64::total_cmp) {
        let pressure = (pressure * 1e4).round() / 1e4;
        members.push(("pressure", pressure.to_string()));
    }
    members
}
