//! What the steps of a store are made of, whichever store takes them.

use super::Verdict;
use ojs_limit::{Limited, Limits, OnLimit, Refusal, Strategy, Timestamp};

/// When a start counts that all limits of a job allow, at `soonest` or later. All are asked also where one
/// has refused, so that the refusal names the last to let go, with the strongest action of all.
pub(super) fn ask_all(
    limited: &[Limited],
    soonest: Timestamp,
    mut ask: impl FnMut(&Limited) -> Result<Timestamp, Refusal>,
) -> Result<Timestamp, Verdict> {
    let (mut at, mut opens, mut action) = (soonest, None, OnLimit::Wait);
    let mut last: Option<(usize, Refusal)> = None;
    for (which, one) in limited.iter().enumerate() {
        match ask(one) {
            Ok(allowed) => at = at.max(allowed),
            Err(why) => {
                opens = opens.max(why.at);
                // There is room: whom others go before waits.
                if why.strategy != Strategy::Line {
                    action = action.max(one.on_limit);
                }
                if last.as_ref().is_none_or(|(_, known)| why.outlasts(known)) {
                    last = Some((which, why));
                }
            }
        }
    }
    match last {
        None => Ok(at),
        Some((which, why)) => Err(Verdict::Refused {
            which,
            why,
            at: opens,
            action,
        }),
    }
}

/// All limits that a job brings to the key of this one.
pub(super) fn same<'a>(limited: &'a [Limited], one: &'a Limited) -> SameKey<'a> {
    SameKey {
        rest: limited.iter(),
        one,
    }
}

/// The limits that a job brings to the key of `one`.
#[derive(Clone)]
pub(super) struct SameKey<'a> {
    rest: std::slice::Iter<'a, Limited>,
    one: &'a Limited,
}

impl<'a> Iterator for SameKey<'a> {
    type Item = &'a Limits;

    fn next(&mut self) -> Option<&'a Limits> {
        let one = self.one;
        self.rest
            .find(|other| other.shares_key(one))
            .map(|other| &other.limits)
    }
}
