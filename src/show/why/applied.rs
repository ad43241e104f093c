//! A limit that applies to what is asked about.

use std::collections::BTreeSet;

use super::find::of_limit;
use super::hung::Hung;
use crate::desk::Sidecar;
use crate::inquiry::shape::LimitView;
use crate::limit::{Key, Refusal, Space};
use crate::show::limits::{self, KeyFacts};
use crate::store::{Row, StoreError};
use crate::told::causes::Cause;

/// One limit that applies, with its numbers of now.
pub(crate) struct Applied {
    pub(crate) view: LimitView,
    /// Why it lets the job that is asked about not start, or the next one, where it is the limit that refuses.
    pub(crate) refused: Option<Refusal>,
    /// The cause, where there is one.
    pub(crate) cause: Option<Cause>,
    /// The jobs that may never end, where slots are what is missing.
    pub(crate) hung: Option<Hung>,
}

impl Applied {
    /// `rows`: those of the jobs that run.
    pub(crate) async fn of(
        sidecar: &Sidecar,
        view: LimitView,
        (job, rows): (&str, &[Row]),
    ) -> Applied {
        let (refused, cause) = of_limit(sidecar, &view, job).await;
        let waits_for_slot = refused.as_ref().is_some_and(Hung::may_keep);
        let among = || Hung::among(sidecar, &view, rows);
        let hung = waits_for_slot.then(among).flatten();
        Applied {
            cause: hung.as_ref().map(Hung::cause).or(cause),
            view,
            refused,
            hung,
        }
    }
}

/// The other keys that the calls of a key wait for, and those of budgets to which all of them pay.
pub(crate) fn keys_beside(sidecar: &Sidecar, key: &Key, facts: &KeyFacts) -> BTreeSet<Key> {
    let ways = facts.now.live.settings.egress.iter();
    let own = ways.filter(|way| way.key.may_give(key));
    let budgets = own.flat_map(|way| &way.budgets);
    let of_all = budgets.filter(|budget| budget.only.is_empty());
    let mut all = sidecar.calling.lines.refusing(key);
    all.extend(of_all.filter_map(|budget| budget.key.constant().cloned()));
    all
}

/// The limits of these keys, as far as they are known.
pub(crate) async fn beside(
    sidecar: &Sidecar,
    keys: &BTreeSet<Key>,
    facts: &KeyFacts,
) -> Result<Vec<Applied>, StoreError> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<_> = keys.iter().map(|key| (Space::Job, key)).collect();
    let mut applied = Vec::new();
    let views = limits::views(sidecar, &keys, facts).await?;
    for view in views.into_iter().flatten() {
        applied.push(Applied::of(sidecar, view, ("", &facts.rows)).await);
    }
    Ok(applied)
}
