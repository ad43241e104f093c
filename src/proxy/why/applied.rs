//! A limit that applies to what is asked about.

use super::causes::Cause;
use super::find::of_limit;
use super::hung::Hung;
use crate::limit::{Limited, Refusal};
use crate::proxy::Sidecar;
use crate::proxy::control::shape::LimitView;
use crate::store::Row;

/// One limit that applies, with its numbers of now.
pub(super) struct Applied {
    pub(super) limited: Limited,
    pub(super) view: LimitView,
    /// Why it lets the job that is asked about not start, or the next one, where it is the limit that refuses.
    pub(super) refused: Option<Refusal>,
    /// The cause, where there is one.
    pub(super) cause: Option<Cause>,
    /// The jobs that may never end, where slots are what is missing.
    pub(super) hung: Option<Hung>,
}

impl Applied {
    /// `rows`: those of the jobs that run.
    pub(super) async fn of(
        sidecar: &Sidecar,
        limited: Limited,
        view: LimitView,
        (job, rows): (&str, &[Row]),
    ) -> Applied {
        let (refused, cause) = of_limit(sidecar, &limited, &view, job).await;
        let waits_for_slot = refused.as_ref().is_some_and(Hung::may_keep);
        let among = || Hung::among(sidecar, &limited, &view, rows);
        let hung = waits_for_slot.then(among).flatten();
        Applied {
            cause: hung.as_ref().map(Hung::cause).or(cause),
            limited,
            view,
            refused,
            hung,
        }
    }
}
