//! What a job says that it used, in place of what it paid (`cost.settle`).

use crate::desk::{Sidecar, tell};
use crate::json::Json;
use crate::limit::Limited;
use crate::policy::price;
use crate::store::{Claimed, End, Row, Used};
use crate::told::metrics::Counted;
use crate::wire::ojs::REPLY_DEPTH;

/// The end of the job of this claim, with what its ACK says that it used.
pub(super) fn end(sidecar: &Sidecar, claimed: &Claimed, ack: &[u8]) -> End {
    // Most settle nothing, and a result may be long.
    let mut read = None;
    End::settled(claimed, |path| {
        let ack = *read.get_or_insert_with(|| Json::parse(ack, REPLY_DEPTH).ok());
        let used = ack.and_then(|ack| price::used(ack, path));
        let settles = |one: &&Limited| {
            let rule = one.cost.rule.as_ref();
            rule.is_some_and(|rule| rule.settle.as_deref() == Some(path))
        };
        if used.is_none()
            && let Some(one) = claimed.limited.iter().find(settles)
        {
            tell::cost_untold(&sidecar.settle.untold, claimed, one, path);
        }
        used
    })
}

/// Counts the differences to what was paid at the start of a job whose row has ended with that.
pub(crate) fn count(sidecar: &Sidecar, ended: &Row, used: &[Used]) {
    let metrics = &sidecar.metrics;
    for used in used.iter().filter(|_| ended.started.is_some()) {
        let limited = ended.claimed.limited.iter();
        let mut of_key = limited.filter(|one| one.space == used.space && one.key == used.key);
        let Some(one) = of_key.clone().next() else {
            continue;
        };
        let (paid, used) = (one.cost.pays.get(), used.amount);
        let Some(more) = used.checked_sub(paid) else {
            metrics.refunded(&one.policy, u64::from(paid - used));
            continue;
        };
        // No window counts more of it than its limit.
        let limits = of_key.clone().flat_map(|one: &Limited| &one.limits.rates);
        let most = limits.map(|rate| rate.limit.get()).max().unwrap_or(0);
        metrics.charged(&one.policy, u64::from(more.min(most)));
        if of_key.any(|one| one.limits.rates.iter().any(|rate| more > rate.limit.get())) {
            tell::capped(sidecar, &ended.claimed, one, Counted::UsedOverLimit);
        }
    }
}
