//! Whether other sidecars limit the same jobs with a store of their own. Then each of them starts as much as a limit
//! allows, and together they start several times as much.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::around::Lived;
use crate::limit::Timestamp;
use crate::store::{Claimed, sidecar_of};

/// What was seen of other sidecars.
pub(super) struct UnsharedSidecars {
    own: Box<str>,
    began: Timestamp,
    /// The claims of others at the last look; `None`: there was none yet.
    known: Option<HashSet<(Arc<str>, Arc<str>)>>,
    lived: Lived,
}

impl UnsharedSidecars {
    pub(super) fn new(own: &str, began: Timestamp) -> UnsharedSidecars {
        UnsharedSidecars {
            own: sidecar_of(own).unwrap_or(own).into(),
            began,
            known: None,
            lived: Lived::default(),
        }
    }

    /// Notes what runs now. Gives those that have lived beside this sidecar for a minute, and live still.
    pub(super) fn note_running(
        &mut self,
        running: &[Claimed],
        now: Timestamp,
    ) -> BTreeSet<Box<str>> {
        let (mut claims, mut alive) = (HashSet::new(), HashSet::new());
        for job in running {
            let Some(name) = sidecar_of(&job.claim_id).filter(|name| **name != *self.own) else {
                continue;
            };
            let claim = (job.job.clone(), job.claim_id.clone());
            let is_new = self
                .known
                .as_ref()
                .is_some_and(|known| !known.contains(&claim));
            // A claim that was there before this sidecar was may be a dead one's, whose job runs on.
            let is_kept =
                job.claimed_at > self.began && now.since(job.claimed_at) >= job.visibility;
            if is_new || is_kept {
                alive.insert(name);
            }
            claims.insert(claim);
        }
        self.known = Some(claims);
        self.lived.note(alive.into_iter())
    }
}
