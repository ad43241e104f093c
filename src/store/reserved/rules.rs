//! Which limits can be reserved ahead.

use std::collections::HashSet;
use std::sync::Arc;

use ojs_limit::{Limits, Measure, OnLimit, Rate, Throttle, WindowKind};

/// The names of policies.
pub type Policies = HashSet<Arc<str>>;

/// Why a limit cannot be reserved ahead; `None`: it can.
pub fn objection(limits: &Limits, on_limit: OnLimit) -> Option<&'static str> {
    let edged = |rate: &Rate| rate.window != WindowKind::Sliding;
    let completion = |throttle: Throttle| throttle.measure == Measure::Completion;
    if limits.concurrency.is_some() {
        Some(
            "a slot is taken and freed by each job, so there is nothing to reserve of `concurrency`",
        )
    } else if !limits.counts_time() {
        Some("there is no `rate` or `throttle` to reserve of")
    } else if limits.rates.iter().any(edged) {
        Some("only sliding windows can be looked ahead in")
    } else if limits.throttle.is_some_and(completion) {
        Some("when a job completes is not known ahead, so `measure` must be \"start\"")
    } else if on_limit != OnLimit::Wait {
        Some("a job waits for its turn, so `on_limit` must be \"wait\"")
    } else {
        None
    }
}
