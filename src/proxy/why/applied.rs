//! A limit that applies to what is asked about.

use super::causes::Cause;
use super::find::of_limit;
use super::hung::Hung;
use crate::limit::Refusal;
use crate::proxy::Sidecar;
use crate::proxy::control::shape::LimitView;
use crate::store::Row;

/// One limit that applies, with its numbers of now.
pub(in crate::proxy) struct Applied {
    pub(in crate::proxy) view: LimitView,
    /// Why it lets the job that is asked about not start, or the next one, where it is the limit that refuses.
    pub(in crate::proxy) refused: Option<Refusal>,
    /// The cause, where there is one.
    pub(in crate::proxy) cause: Option<Cause>,
    /// The jobs that may never end, where slots are what is missing.
    pub(in crate::proxy) hung: Option<Hung>,
}

impl Applied {
    /// `rows`: those of the jobs that run.
    pub(in crate::proxy) async fn of(
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
