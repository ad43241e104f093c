//! How far ahead of their starts jobs are claimed.

use ojs_limit::Limited;

/// How far ahead of its start a job of a queue with limits of its own is claimed: then the backend's answer time
/// costs those limits nothing. In microseconds.
pub const AHEAD: u64 = 200_000;

/// How many starts times alone allow within [`AHEAD`], under limits that each job of a queue has; `None`: no time
/// limits them.
pub fn starts_ahead(limited: &[Limited]) -> Option<usize> {
    let within = |limit: u32, period: u64| {
        let starts = u128::from(limit) * u128::from(AHEAD) / u128::from(period.max(1));
        usize::try_from(starts).unwrap_or(usize::MAX)
    };
    let each = limited.iter().flat_map(|one| {
        let throttle = one.limits.throttle.as_ref();
        let throttle = throttle.map(|of| within(of.limit.get(), of.period.get()));
        let rates = one.limits.rates.iter();
        rates
            .map(move |of| within(of.limit.get(), of.period.get()))
            .chain(throttle)
    });
    each.min().map(|starts| starts.max(1))
}
