//! What is told where the jobs in front of a queue fill what may be held of it: free jobs behind them are not seen, and
//! do not start.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::waiting;
use crate::desk::snapshot::{SHARED, Snapshot};
use crate::desk::{Proxy, Sidecar};
use crate::hold::{Front, Lane};
use crate::limit::{OnLimit, PolicyAndKey, Space};
use crate::policy::PolicySet;
use crate::subqueues::Writes;
use crate::told::causes::{self, Cause, named, quoted};

/// So many keys are named.
const NAMED: usize = 3;
/// The largest `hold.max`.
const LARGEST: u64 = 50_000;

/// A queue whose lookahead is full, in words.
pub(crate) struct FullLookahead {
    queue: String,
    held: usize,
    keys: String,
    behind: String,
    cures: String,
    /// Whether all jobs that were seen of it have one key, that of a policy. Then those behind them are likely to have
    /// it too, and wait for the same.
    is_of_one_key: bool,
}

/// A FETCH wanted more of a queue than it got. Where the lookahead is why, that is said once an episode.
pub(crate) fn note_full(proxy: &Proxy, lane: &Lane) {
    let sidecar = &proxy.sidecar;
    let most = sidecar.hold_most(&sidecar.live().settings);
    if !sidecar.hold.is_full(&lane.queue, most)
        || !(sidecar.fetching.backlogs).looks_whether_full(&lane.queue, Instant::now())
    {
        return;
    }
    let (proxy, lane) = (proxy.clone(), lane.clone());
    let _task = sidecar.tasks.spawn(async move {
        let sidecar = &proxy.sidecar;
        let now = Snapshot::of(sidecar, SHARED).await;
        let hides = FullLookahead::that_hides_others(sidecar, &now, &lane.queue).is_some();
        if !hides || (sidecar.fetching.backlogs).is_full_as_before(&lane.queue, Instant::now()) {
            return;
        }
        waiting::refresh(&proxy, &[Arc::clone(&lane.queue)], lane.scope).await;
        let now = Snapshot::of(sidecar, Duration::ZERO).await;
        if let Some(full) = FullLookahead::that_hides_others(sidecar, &now, &lane.queue)
            && (sidecar.fetching.backlogs).begins_to_be_full(&lane.queue, Instant::now())
        {
            full.warn(&lane.queue);
        }
    });
}

impl FullLookahead {
    /// `None`: jobs do not fill what may be held of a queue, none waits behind them, or all of them wait for limits that
    /// each job of the queue has, so that none behind them could start.
    pub(crate) fn of(sidecar: &Sidecar, now: &Snapshot, queue: &str) -> Option<FullLookahead> {
        // Jobs in subqueues are not behind those of the queue itself.
        let behind = now.queue(queue).available;
        let front = now.held.front(queue, now.most);
        let front = front.filter(|_| behind != Some(0))?;
        let policies = &now.live.policies;
        let gate = policies.gate(queue);
        let is_of_some = |by: &PolicyAndKey| {
            by.1 != Space::Queue && !gate.limited.iter().any(|one| one.names() == *by)
        };
        if !front.keys.iter().any(|(by, _)| is_of_some(by)) {
            return None;
        }
        let is_of_one_key = match &*front.keys {
            [((_, _, key), _)] => policies.named_by(key).is_some() && !front.are_mixed,
            _ => false,
        };
        let in_words = match behind {
            Some(1) => "1 job waits".to_owned(),
            Some(jobs) => format!("{jobs} jobs wait"),
            None => "nobody knows how many wait".to_owned(),
        };
        Some(FullLookahead {
            queue: quoted(queue),
            held: front.held,
            keys: keys_of(&front),
            behind: in_words,
            cures: cures(sidecar, now, queue, &front, behind),
            is_of_one_key,
        })
    }

    /// The jobs in front have keys that those behind them may not have.
    pub(crate) fn that_hides_others(
        sidecar: &Sidecar,
        now: &Snapshot,
        queue: &str,
    ) -> Option<FullLookahead> {
        FullLookahead::of(sidecar, now, queue).filter(|full| !full.is_of_one_key)
    }

    pub(crate) fn cause(&self) -> Cause {
        let known: [(&str, &dyn Display); 5] = [
            ("queue", &self.queue),
            ("held", &self.held),
            ("keys", &self.keys),
            ("behind", &self.behind),
            ("cures", &self.cures),
        ];
        Cause::new(&causes::LOOKAHEAD, &known)
    }

    fn warn(&self, queue: &str) {
        tracing::warn!(
            id = %"lookahead_full",
            queue,
            held = self.held,
            keys = &*self.keys,
            behind = &*self.behind,
            cures = &*self.cures,
            "jobs of limited keys fill what may be held of a queue: jobs behind them do not start, although their own \
             keys may have room"
        );
    }
}

/// The keys in front, with how many jobs wait for each.
fn keys_of(front: &Front) -> String {
    let names = front.keys.iter().take(NAMED);
    let names =
        names.map(|((_, space, key), jobs)| format!("{} ({jobs})", named(*space, key.as_str())));
    let keys = names.collect::<Vec<_>>().join(", ");
    match front.keys.len().saturating_sub(NAMED) {
        0 => keys,
        1 => format!("{keys} and 1 other key"),
        others => format!("{keys} and {others} other keys"),
    }
}

/// What helps, with the lines to paste.
fn cures(
    sidecar: &Sidecar,
    now: &Snapshot,
    queue: &str,
    front: &Front,
    behind: Option<u64>,
) -> String {
    let first = front.keys.first();
    let name = first.map_or_else(
        || "the key in front".to_owned(),
        |((_, space, key), _)| named(*space, key.as_str()),
    );
    let policies = &now.live.policies;
    let is_split = first.is_some_and(|(by, _)| splits(policies, by));
    let cure = if sidecar.backend.names_cost() || !is_split {
        format!("give {name} a queue of its own")
    } else if sidecar.subqueues.writes(queue) == Writes::No {
        let entry = format!("[[queue]] of name = {queue:?}");
        format!("write subqueues = true into the {entry} (`ojs-throttle help subqueues`)")
    } else {
        "wait until they have started, for later jobs of such keys go to subqueues, unless they come around the sidecar \
         (`ojs-throttle help subqueues`)"
            .to_owned()
    };
    format!("{cure}{}", deeper(sidecar, now, front, behind))
}

/// Whether jobs of a limit go to subqueues where their queue has them.
fn splits(policies: &PolicySet, (name, space, _): &PolicyAndKey) -> bool {
    let policy = policies.policies().iter().find(|one| one.name == *name);
    match policy {
        None => *space == Space::Job,
        Some(policy) => {
            let is_of_job = !policy.key.only_queue() || policy.prices.fair.is_some();
            policy.on_limit == OnLimit::Wait && is_of_job
        }
    }
}

/// How much more must be held for those behind to be seen, and what that costs.
fn deeper(sidecar: &Sidecar, now: &Snapshot, front: &Front, behind: Option<u64>) -> String {
    let most = now.most;
    if 2 * now.held.bytes >= most.bytes {
        return ", or raise max_bytes in [hold]".to_owned();
    }
    let all = front.held as u64 + behind.unwrap_or(front.held as u64);
    // One queue gets three quarters.
    let max = (all * 4 / 3 + 1)
        .next_multiple_of(100)
        .max(most.jobs as u64 + 1);
    let costs = match sidecar.backend.claims_count() {
        true => "a kill of the sidecar costs each held job an attempt",
        false => "held jobs cost memory and heartbeats",
    };
    match max <= LARGEST {
        true => format!(", or write max = {max} into [hold]: {costs}"),
        false => String::new(),
    }
}
