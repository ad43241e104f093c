//! Keeping: held jobs are under live claims, which heartbeats of ours keep. Several go at once, and beside the
//! sweep, so that one that is slow holds up few others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::EVERY;
use crate::proxy::prove::{Extension, Named, Word};
use crate::proxy::{PROOF, Proxy};
use crate::store::Claimed;

/// Jobs in one heartbeat.
const TOGETHER: usize = 256;
/// So many heartbeats are on their way at once.
const AT_ONCE: usize = 16;

/// Claims that are kept in one go: their scope, and what they get.
type Group = (u64, Extension);

/// How long a held job is left with the time that the backend has `granted` it, where it is to have what `lasts` says.
fn rests(granted: Duration, lasts: Duration) -> Duration {
    match granted > lasts {
        // It was to go out for longer, and did not: as soon as it would have to be proven anew.
        true => PROOF.min(lasts / 3),
        false => granted / 3,
    }
}

impl Proxy {
    /// Keeps the claims of held jobs until told to stop.
    pub(in crate::proxy) async fn keep_held(&self, stop: CancellationToken) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tasks = JoinSet::new();
        let mut under_way: Vec<(AbortHandle, Vec<Claimed>)> = Vec::new();
        let mut due = VecDeque::new();
        loop {
            let looks = tokio::select! {
                _ = ticks.tick() => true,
                // Where each job has a claim id of its own there are many, and each has its place for a moment.
                _ = tasks.join_next(), if !due.is_empty() && !tasks.is_empty() => false,
                () = stop.cancelled() => return,
            };
            while tasks.try_join_next().is_some() {}
            under_way.retain(|(task, _)| !task.is_finished());
            if looks {
                let asked = under_way.iter().flat_map(|(_, claims)| claims);
                let asked: HashSet<Arc<str>> = asked.map(|claimed| claimed.job.clone()).collect();
                due = self.due_claims(&asked).into();
            }
            while under_way.len() < AT_ONCE
                && let Some((group, mut claims)) = due.pop_front()
            {
                // What has gone out since is its worker's.
                claims.retain(|of| self.sidecar.hold.has_claim(&of.job, of.generation));
                if !claims.is_empty() {
                    let keep = self.clone().keep_claims(group, claims.clone());
                    under_way.push((tasks.spawn(keep), claims));
                }
            }
        }
    }

    /// The held jobs, but for those that are `asked` about, whose claim is a third over or longer than it need be, those
    /// first that have the least time left, and last those that have none.
    fn due_claims(&self, asked: &HashSet<Arc<str>>) -> Vec<(Group, Vec<Claimed>)> {
        let now = Instant::now();
        let mut due: HashMap<Group, Vec<(Instant, Claimed)>> = HashMap::new();
        for (claimed, proven, granted) in self.sidecar.hold.proofs() {
            if asked.contains(&claimed.job) || self.sidecar.store.sets_aside(&claimed) {
                continue;
            }
            let extension = Extension::of_held(&claimed, &self.sidecar.backend);
            if now.duration_since(proven) >= rests(granted, extension.lasts) {
                let ends = proven + granted;
                let group = (claimed.scope, extension);
                due.entry(group).or_default().push((ends, claimed));
            }
        }
        let mut batches = Vec::new();
        for (group, mut claims) in due {
            claims.sort_by_key(|(ends, _)| *ends);
            for batch in claims.chunks(TOGETHER) {
                let ends = batch.first().map(|(ends, _)| *ends);
                let claims = batch.iter().map(|(_, claimed)| claimed.clone()).collect();
                batches.push((ends, (group.clone(), claims)));
            }
        }
        batches.sort_by_key(|(ends, _)| (ends.is_none_or(|ends| ends <= now), *ends));
        batches.into_iter().map(|(_, batch)| batch).collect()
    }

    /// One heartbeat for these.
    async fn keep_claims(self, (scope, extension): Group, claims: Vec<Claimed>) {
        let jobs: Vec<Named> = claims
            .iter()
            .map(|claimed| (claimed.job.clone(), claimed.attempt))
            .collect();
        let hold = &self.sidecar.hold;
        let words = self.confirm(scope, &extension, &jobs, jobs.len()).await;
        for (claimed, word) in claims.iter().zip(words) {
            let gone = match word {
                Word::Ours(since) => {
                    hold.proved(&claimed.job, since, extension.lasts);
                    false
                }
                Word::Gone => true,
                // For want of its word the claim counts until its deadline.
                Word::None => hold.is_past_deadline(&claimed.job),
            };
            if gone {
                self.sidecar.lose(claimed).await;
            }
        }
    }
}
