//! Whether other sidecars limit the same jobs with a store of their own. Then each of them starts as much as a limit
//! allows, and together they start several times as much.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::limit::Timestamp;
use crate::store::{Claimed, sidecar_of};

/// Who shows signs of life for so long does not just end, as in an update.
pub(super) const TOGETHER: Duration = Duration::from_secs(60);

/// Who was seen again and again.
#[derive(Default)]
pub(super) struct Lived(HashMap<Box<str>, (Instant, Instant)>);

impl Lived {
    /// Notes who shows signs of life. Gives those that have for [`TOGETHER`], and do still.
    pub(super) fn note<'a>(&mut self, alive: impl Iterator<Item = &'a str>) -> BTreeSet<Box<str>> {
        let seen = Instant::now();
        for name in alive {
            let lived = self.0.entry(name.into()).or_insert((seen, seen));
            lived.1 = seen;
        }
        // Not each look finds something new of each.
        self.0.retain(|_, (_, last)| seen - *last < TOGETHER);
        let found = self.0.iter();
        let found = found.filter(|(_, (first, last))| *last - *first >= TOGETHER);
        found.map(|(name, _)| name.clone()).collect()
    }
}

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
            let known = self.known.as_ref();
            let is_new = known.is_some_and(|known| !known.contains(&claim));
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
