//! Under whose worker id an ACK or nack goes to the backend.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::json::{Json, Splice, quote};
use crate::store::Claimed;
use crate::wire::ojs::REPLY_DEPTH;

/// Under whose id a request goes to the backend.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Speaker {
    /// As the worker sent it.
    Worker,
    /// Under no id: the job may have been claimed without one.
    Nobody,
    /// Under the id that claimed the job.
    Claimant(Arc<str>),
}

impl Speaker {
    /// Who may have claimed the job of this claim: the most likely first, then those to try where the backend refuses.
    /// `worker` is where the request names its worker.
    pub(super) fn of(
        claimed: Option<&Claimed>,
        worker: Option<&Range<usize>>,
        our_id: &Arc<str>,
    ) -> (Speaker, Vec<Speaker>) {
        let Some(claimed) = claimed.filter(|_| worker.is_some()) else {
            return (Speaker::Worker, Vec::new());
        };
        match claimed.claimant() {
            // Before a restart it may have run under our id.
            None => (
                Speaker::Worker,
                vec![Speaker::Nobody, Speaker::Claimant(Arc::clone(our_id))],
            ),
            Some(id) => {
                let ours = Speaker::Claimant(Arc::clone(id));
                match claimed.limited.is_empty() {
                    // The row may be of an earlier claim: without limits the next one passes by us.
                    true => (ours, vec![Speaker::Worker]),
                    false => (ours, Vec::new()),
                }
            }
        }
    }

    /// The worker's request as this speaker says it; `id` is where the worker's own id stands.
    pub(super) fn say(&self, said: &Bytes, id: Option<&Range<usize>>) -> Bytes {
        let mut splice = Splice::new();
        match (self, id) {
            (Speaker::Claimant(claimant), Some(id)) => splice.replace(id.clone(), quote(claimant)),
            (Speaker::Nobody, Some(_)) => {
                let Ok(request) = Json::parse(said, REPLY_DEPTH) else {
                    return said.clone();
                };
                for member in request
                    .members()
                    .filter(|member| member.is_named("worker_id"))
                {
                    splice.remove_member(request, member);
                }
            }
            _ => return said.clone(),
        }
        splice.apply(said).into()
    }
}
