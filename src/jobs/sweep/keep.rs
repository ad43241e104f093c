//! Keeping: held jobs are under live claims, which heartbeats of ours keep. Several go at once, and beside the
//! sweep, so that one that is slow holds up few others.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::pace::ticks;
use crate::answers::load::Seldom;
use crate::desk::Proxy;
use crate::hold::is_late;
use crate::inquiry::prove::{self, Extension, Named, Word};
use crate::store::{Claimed, LedgerExt};
use crate::wire::boxed;

/// Jobs in one heartbeat. While one is made or its answer read, FETCHes wait, here and in most backends: of ten thousand
/// held jobs each would wait for milliseconds if these were all in a few.
const TOGETHER: usize = 64;
/// So many heartbeats are on their way at once where claims are late.
const AT_ONCE: usize = 16;
/// So many are otherwise. Thousands of claims are due at one moment where they were made at one moment; all at once they
/// would hold up FETCHes here and in the backend, and there is time.
const UNHURRIED: usize = 2;

/// How often it is looked whether jobs in hand have gone out.
const RECHECK: Duration = Duration::from_millis(50);

/// Claims that are kept in one go: their scope, and what they get.
type KeptAlike = (u64, Extension);

/// Keeps the claims of held jobs until told to stop.
pub(in crate::jobs) async fn keep_held(proxy: &Proxy, stop: CancellationToken) {
    let mut ticks = ticks();
    let mut tasks = JoinSet::new();
    let mut under_way: Vec<(AbortHandle, Vec<Claimed>)> = Vec::new();
    let mut due = DueClaims::default();
    let warned = Seldom::default();
    loop {
        let looks = tokio::select! {
            _ = ticks.tick() => true,
            () = proxy.sidecar.hold.hurries() => true,
            // Where each job has a claim id of its own there are many, and each has its place for a moment.
            _ = tasks.join_next(), if due.any() && !tasks.is_empty() => due.batches.is_empty(),
            () = stop.cancelled() => return,
        };
        while tasks.try_join_next().is_some() {}
        under_way.retain(|(task, _)| !task.is_finished());
        if looks {
            let_lapse(proxy, &warned).await;
            let asked = under_way.iter().flat_map(|(_, claims)| claims);
            let asked: HashSet<Arc<str>> = asked.map(|claimed| claimed.job.clone()).collect();
            // Others may have less time left by now.
            let left = due.batches.drain(..).flat_map(|(_, claims)| claims);
            proxy.sidecar.hold.due_still(left);
            due = due_claims(proxy, &asked).await;
        }
        while under_way.len() < due.at_once()
            && let Some((group, mut claims)) = due.batches.pop_front()
        {
            // What has gone out since is its worker's.
            claims.retain(|of| proxy.sidecar.hold.has_claim(&of.job, of.generation));
            if !claims.is_empty() {
                let keep = keep_claims(proxy.clone(), group, claims.clone());
                under_way.push((tasks.spawn(keep), claims));
            }
        }
    }
}

/// What one look found.
#[derive(Default)]
struct DueClaims {
    /// Those of one heartbeat stand together.
    batches: VecDeque<(KeptAlike, Vec<Claimed>)>,
    /// Whether more may be due.
    more: bool,
    /// Whether any has been due for long.
    late: bool,
}

impl DueClaims {
    fn any(&self) -> bool {
        self.more || !self.batches.is_empty()
    }

    fn at_once(&self) -> usize {
        if self.late { AT_ONCE } else { UNHURRIED }
    }
}

/// Since when a worker must have asked for a queue, for the claims of its held jobs to be kept. `None`: all are, as
/// long as there are places for others.
fn wanted_since(proxy: &Proxy) -> Option<Instant> {
    let sidecar = &proxy.sidecar;
    let idle = sidecar.live().settings.hold.idle;
    let lacks = sidecar.hold.lacked_places(idle);
    lacks.then(|| Instant::now().checked_sub(idle)).flatten()
}

/// Forgets the claims that were not kept because others need their places, once they are over.
async fn let_lapse(proxy: &Proxy, warned: &Seldom) {
    let sidecar = &proxy.sidecar;
    let Some(since) = wanted_since(proxy) else {
        return;
    };
    for claimed in sidecar.hold.lapsed(since) {
        sidecar.lose(&claimed).await;
        if warned.now() {
            tracing::warn!(
                id = %"hold_crowded",
                queue = &*claimed.queue,
                held = sidecar.hold.len(),
                "the hold is full, and claims of held jobs lapse that no worker asks for, so that others can start; \
                 each costs as much as the death of a worker: start workers for these queues, or raise hold.max and \
                 hold.max_bytes"
            );
        }
    }
}

/// The claims of held jobs that are due, as many as [`AT_ONCE`] heartbeats name, but for those that are `asked` about.
/// Those are found first that were due first.
async fn due_claims(proxy: &Proxy, asked: &HashSet<Arc<str>>) -> DueClaims {
    let hold = &proxy.sidecar.hold;
    // Those of which the time is over are last.
    let mut due: [IndexMap<KeptAlike, Vec<Claimed>>; 2] = Default::default();
    let (mut found, since) = (0, wanted_since(proxy));
    let (mut more, mut late) = (true, false);
    while found < AT_ONCE * TOGETHER {
        let Some(claims) = hold.due(since, TOGETHER) else {
            more = false;
            break;
        };
        found += claims.len();
        // A sibling may have what is offered, and may be the only one that can say so.
        let is_lost = proxy.sidecar.store.is_lost();
        let is_theirs = |claimed: &Claimed| is_lost && hold.is_offered(claimed);
        for (claimed, proof) in claims {
            if !asked.contains(&claimed.job) && !is_theirs(&claimed) {
                let extension = Extension::of_held(&claimed, &proxy.sidecar.backend);
                let is_over = proof.at + proof.granted <= Instant::now();
                late |= is_late(&claimed, &proof);
                let [lasts, over] = &mut due;
                let due = if is_over { over } else { lasts };
                let group = due.entry((claimed.scope, extension));
                group.or_default().push(claimed);
            }
        }
        // Requests wait for no more than one look at so many jobs.
        yield_now().await;
    }
    let mut batches = VecDeque::new();
    for (group, mut claims) in due.into_iter().flatten() {
        while !claims.is_empty() {
            let rest = claims.split_off(claims.len().min(TOGETHER));
            batches.push_back((group.clone(), mem::replace(&mut claims, rest)));
        }
    }
    DueClaims {
        batches,
        more,
        late,
    }
}

/// One heartbeat for these.
async fn keep_claims(proxy: Proxy, (scope, extension): KeptAlike, claims: Vec<Claimed>) {
    let jobs: Vec<Named> = claims
        .iter()
        .map(|claimed| (claimed.job.clone(), claimed.attempt))
        .collect();
    let hold = &proxy.sidecar.hold;
    let words = prove::confirm(&proxy, scope, &extension, &jobs, jobs.len()).await;
    follow_out(
        &proxy,
        extension.lasts,
        jobs.iter().zip(words.iter().copied()),
    );
    for (claimed, word) in claims.iter().zip(words) {
        let is_over = match word {
            Word::Ours(_) => !proxy.sidecar.is_still_ours(&claimed.job),
            Word::Gone => true,
            // For want of its word the claim counts until its deadline.
            Word::None => hold.is_past_deadline(&claimed.job),
        };
        if is_over {
            proxy.sidecar.lose(claimed).await;
        }
    }
}

/// A heartbeat that was sent while these were held is over, or was given up. Those that wait no more went out meanwhile, or are
/// about to, each under a heartbeat of its own: nobody knows which of the two the backend carried out last, and
/// one for `lasts` may have shortened what the worker was given. Such a job gets one more, which nobody waits for.
pub(in crate::jobs) fn follow_out<'a>(
    proxy: &Proxy,
    lasts: Duration,
    beaten: impl Iterator<Item = (&'a Named, Word)>,
) {
    let hold = &proxy.sidecar.hold;
    let waits = |job: &str| hold.has(job) && !hold.is_in_hand(job);
    let left = beaten.filter(|((job, _), word)| *word != Word::Gone && !waits(job));
    let left: Vec<_> = left.map(|((job, _), word)| (job.clone(), word)).collect();
    if !left.is_empty() {
        let follow = give_whole_once_out(proxy.clone(), lasts, left);
        proxy.sidecar.tasks.spawn(follow);
    }
}

async fn give_whole_once_out(proxy: Proxy, lasts: Duration, mut left: Vec<(Arc<str>, Word)>) {
    let hold = &proxy.sidecar.hold;
    // By then a claim that was shortened is over.
    let end = Instant::now() + lasts;
    while !left.is_empty() && Instant::now() < end {
        let mut out = Vec::new();
        for (job, word) in left.extract_if(.., |(job, _)| !hold.is_in_hand(job)) {
            match word {
                // It waits again, and has what this one gave it, unless another came later.
                Word::Ours(since) if hold.has(&job) => proxy.sidecar.proved(&job, since, lasts),
                _ => out.push(job),
            }
        }
        give_whole(&proxy, lasts, out).await;
        if !left.is_empty() {
            sleep(RECHECK).await;
        }
    }
}

/// One more heartbeat for those of these jobs that are out with workers for longer than `lasts`.
async fn give_whole(proxy: &Proxy, lasts: Duration, jobs: Vec<Arc<str>>) {
    let sidecar = &proxy.sidecar;
    let mut short: HashMap<KeptAlike, Vec<Named>> = HashMap::new();
    for job in jobs {
        let Ok(Some(row)) = sidecar.store.row(&job).await else {
            continue;
        };
        let (of, whole) = (&row.claimed, Duration::from_micros(row.claimed.visibility));
        if row.is_out() && whole > lasts {
            let extension = Extension::of(of, whole, &sidecar.backend);
            let group = short.entry((of.scope, extension)).or_default();
            group.push((job, of.attempt));
        }
    }
    let mut beats = JoinSet::new();
    for ((scope, extension), jobs) in short {
        let proxy = proxy.clone();
        // Whoever has them looks after them from here on: nothing is asked about those that it does not name.
        let beat = async move { drop(prove::confirm(&proxy, scope, &extension, &jobs, 0).await) };
        beats.spawn(boxed::work(beat));
    }
    while beats.join_next().await.is_some() {}
}
