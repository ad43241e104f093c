//! What is told where the jobs in front of a queue fill what may be held of it: free jobs behind them are not seen, and
//! do not start.

use std::fmt::Display;
use std::sync::Arc;

use tokio::time::Instant;

use super::waiting;
use crate::desk::causes::{self, Cause, named, quoted};
use crate::desk::{Proxy, Sidecar};
use crate::hold::{Front, Lane};
use crate::limit::{OnLimit, PolicyAndKey, Space};
use crate::policy::PolicySet;
use crate::subqueues::Writes;

/// So many keys are named.
const NAMED: usize = 3;
/// The largest `hold.max`.
const LARGEST: u64 = 50_000;

/// A queue whose lookahead is full.
pub(crate) struct FullLookahead {
    queue: String,
    held: usize,
    keys: String,
    behind: String,
    cures: String,
}

/// Whether jobs fill what may be held of a queue, and jobs of other keys may wait behind them.
pub(crate) fn hides_others(sidecar: &Sidecar, queue: &str) -> bool {
    hides(sidecar, queue) && !is_of_one_key(sidecar, queue)
}

/// Whether all jobs that were seen of a queue have one key, that of a policy. Then those behind them are likely to have it
/// too, and wait for the same.
fn is_of_one_key(sidecar: &Sidecar, queue: &str) -> bool {
    let front = sidecar.hold.front(queue);
    let [((_, _, key), _)] = front.keys.as_slice() else {
        return false;
    };
    let is_of_policy = sidecar.live().policies.named_by(key).is_some();
    is_of_policy && !sidecar.hold.saw_other_keys(queue)
}

/// Whether jobs fill what may be held of a queue. Where all of them wait for limits that each job of the queue has, none
/// behind them could start.
fn is_full(sidecar: &Sidecar, queue: &str) -> bool {
    let live = sidecar.live();
    let gate = live.policies.gate(queue);
    let is_of_some = |by: &PolicyAndKey| {
        by.1 != Space::Queue && !gate.limited.iter().any(|one| one.names() == *by)
    };
    (sidecar.hold).is_full_of(queue, sidecar.hold_most(&live.settings), is_of_some)
}

/// Whether jobs may wait behind those that fill it.
fn hides(sidecar: &Sidecar, queue: &str) -> bool {
    // Jobs in subqueues are not behind those of the queue itself.
    sidecar.fetching.backlogs.available(queue) != Some(0) && is_full(sidecar, queue)
}

/// A FETCH wanted more of a queue than it got. Where the lookahead is why, that is said once an episode.
pub(crate) fn note_full(proxy: &Proxy, lane: &Lane) {
    let (sidecar, now) = (&proxy.sidecar, Instant::now());
    let backlogs = &sidecar.fetching.backlogs;
    if !backlogs.looks_whether_full(&lane.queue, now) || !hides_others(sidecar, &lane.queue) {
        return;
    }
    let (proxy, lane) = (proxy.clone(), lane.clone());
    let _task = sidecar.tasks.spawn(async move {
        waiting::refresh(&proxy, &[Arc::clone(&lane.queue)], lane.scope).await;
        let (sidecar, backlogs) = (&proxy.sidecar, &proxy.sidecar.fetching.backlogs);
        if hides_others(sidecar, &lane.queue)
            && backlogs.begins_to_be_full(&lane.queue, Instant::now())
            && let Some(full) = FullLookahead::of(sidecar, &lane.queue)
        {
            full.warn(&lane.queue);
        }
    });
}

impl FullLookahead {
    /// `None`: the lookahead is not full, or no job waits behind it.
    pub(crate) fn of(sidecar: &Sidecar, queue: &str) -> Option<FullLookahead> {
        if !hides(sidecar, queue) {
            return None;
        }
        let front = sidecar.hold.front(queue);
        let behind = sidecar.fetching.backlogs.available(queue);
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
            cures: cures(sidecar, queue, &front, behind),
        })
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
fn cures(sidecar: &Sidecar, queue: &str, front: &Front, behind: Option<u64>) -> String {
    let first = front.keys.first();
    let name = first.map_or_else(
        || "the key in front".to_owned(),
        |((_, space, key), _)| named(*space, key.as_str()),
    );
    let policies = &sidecar.live().policies;
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
    format!("{cure}{}", deeper(sidecar, front, behind))
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
fn deeper(sidecar: &Sidecar, front: &Front, behind: Option<u64>) -> String {
    let most = sidecar.hold_most(&sidecar.live().settings);
    if 2 * sidecar.hold.bytes() >= most.bytes {
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
