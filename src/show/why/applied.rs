//! A limit that applies to what is asked about.

use super::find::of_limit;
use super::hung::Hung;
use crate::desk::Sidecar;
use crate::desk::causes::Cause;
use crate::inquiry::shape::LimitView;
use crate::limit::Refusal;
use crate::store::Row;

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
