//! By what one call is limited: the key of its entry, and what it pays to which budgets.

use std::sync::Arc;

use http::request::Parts;

use super::key::{ReadBody, key_of};
use super::meter::{Charged, Meter};
use crate::answers::respond::Fault;
use crate::config::{Budget, EgressSettings};
use crate::limit::{Key, Limited, Share};
use crate::wire::ojs;

/// What is known of a call before it starts.
#[derive(Debug)]
pub(super) struct CallAsk {
    /// That of its entry, in whose line it waits.
    pub(super) key: Key,
    /// Whose share of that it takes.
    pub(super) share: Option<Share>,
    charged: Arc<[Charged]>,
    /// A budget to which it pays nothing, though it may ask a model.
    pub(super) unpaid: Option<Arc<str>>,
}

impl CallAsk {
    /// What limits this call.
    ///
    /// # Errors
    /// A key of it cannot be read, or in two ways.
    pub(super) fn of(
        entry: &EgressSettings,
        parts: &Parts,
        said: &ReadBody<'_>,
    ) -> Result<CallAsk, Fault> {
        let path = ojs::resolved(parts.uri.path());
        let call = (parts.method.as_str(), &*path);
        let budgets = entry.budgets.iter();
        let charged = budgets
            .filter(|budget| budget.is_for(call))
            .map(|budget| Charged::of(budget, parts, said));
        let charged: Arc<[Charged]> = charged.collect::<Result<_, Fault>>()?;
        let unpaid = entry.budgets.iter().find(|budget| budget.may_miss(call));
        let share = match &entry.fair {
            Some(fair) => Some(fair.share_as(&key_of(&fair.by, parts, said)?)),
            None => None,
        };
        Ok(CallAsk {
            key: key_of(&entry.key, parts, said)?,
            share,
            charged,
            unpaid: unpaid.map(|budget| Arc::clone(&budget.name)),
        })
    }

    /// The limits of its budgets, with the numbers that its way out has by now.
    pub(super) fn budgets(&self, live: &[Arc<Budget>]) -> impl Iterator<Item = Limited> {
        self.charged.iter().map(|one| one.limited(live))
    }

    /// Whether calls of one of its budgets may give back what they do not use.
    pub(super) fn settles(&self) -> bool {
        self.charged.iter().any(Charged::settles)
    }

    /// Follows its answer, if it pays to budgets.
    pub(super) fn meter(&self) -> Option<Meter> {
        (!self.charged.is_empty()).then(|| Meter::new(Arc::clone(&self.charged)))
    }
}
