//! A limit that applies to what is asked about.

use super::causes::Cause;
use super::find::of_limit;
use crate::limit::{Limited, Refusal};
use crate::proxy::Sidecar;
use crate::proxy::control::shape::LimitView;

/// One limit that applies, with its numbers of now.
pub(super) struct Applied {
    pub(super) limited: Limited,
    pub(super) view: LimitView,
    /// Why it lets the job that is asked about not start, or the next one, where it is the limit that refuses.
    pub(super) refused: Option<Refusal>,
    /// The cause, where there is one.
    pub(super) cause: Option<Cause>,
}

impl Applied {
    pub(super) async fn of(
        sidecar: &Sidecar,
        limited: Limited,
        view: LimitView,
        job: &str,
    ) -> Applied {
        let (refused, cause) = of_limit(sidecar, &limited, &view, job).await;
        Applied {
            limited,
            view,
            refused,
            cause,
        }
    }
}
