//! What a job says that it used, in place of what it paid (`cost.settle`).

use crate::json::Json;
use crate::limit::{Limited, each_key};
use crate::metrics::Metrics;
use crate::policy::price;
use crate::proxy::REPLY_DEPTH;
use crate::store::{Row, Used};

/// What an ACK says of the keys among a job's limits whose windows are settled.
pub(super) fn used(limited: &[Limited], ack: &[u8]) -> Vec<Used> {
    let settles = each_key(limited).filter_map(|(_, one)| {
        let path = one.cost.rule.as_ref()?.settle.as_deref()?;
        Some((one, path))
    });
    let mut settles = settles.peekable();
    // Most settle nothing, and a result may be long.
    let ack = settles
        .peek()
        .and_then(|_| Json::parse(ack, REPLY_DEPTH).ok());
    let Some(ack) = ack else { return Vec::new() };
    let used = settles.filter_map(|(one, path)| {
        Some(Used {
            space: one.space,
            key: one.key.clone(),
            amount: price::used(ack, path)?,
        })
    });
    used.collect()
}

/// Counts the differences to what was paid at the start of a job whose row has ended with that.
pub(super) fn count(metrics: &Metrics, ended: &Row, used: &[Used]) {
    for used in used.iter().filter(|_| ended.started.is_some()) {
        let mut limited = ended.claimed.limited.iter();
        let of_key = |one: &&Limited| one.space == used.space && one.key == used.key;
        let Some(one) = limited.find(of_key) else {
            continue;
        };
        let (paid, used) = (u64::from(one.cost.pays.get()), u64::from(used.amount));
        match used.checked_sub(paid) {
            Some(more) => metrics.charged(&one.policy, more),
            None => metrics.refunded(&one.policy, paid - used),
        }
    }
}
