//! A queue's depth over a fleet: the calls to the store for the number that [`crate::bounds::fleet`] goes by.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::bounds::{
    Fleet, GrantedPlaces, SharedNumber, UntoldChange, WantedPlaces, fleet as depths,
};
use crate::desk::edges::now;
use crate::desk::{Proxy, Sidecar};
use crate::inquiry::in_force::limits_queue;
use crate::inquiry::stats::ToldOfAll;
use crate::store::{Change, LedgerExt, Number, Step, StoreError};

/// How often the store is told what was admitted here and what has left.
const TELL: Duration = Duration::from_millis(50);
/// How long a claimed job is on its way from the backend into a hold, at most.
const CLAIM: Duration = Duration::from_millis(100);
/// After so long siblings are told again what is held here: they believe it for a minute.
const TOLD_LASTS: Duration = Duration::from_secs(20);
/// How often a number that changes under our hands is tried again.
const TRIES: usize = 5;

/// The name of a queue's number.
fn name_of(queue: &str) -> String {
    format!("depth:{queue}")
}

fn signed(jobs: u64) -> i64 {
    i64::try_from(jobs).unwrap_or(i64::MAX)
}

/// What tells the store of what it was not told, and adds so many jobs if the number stays at most at `most`.
fn change(untold: UntoldChange, jobs: u64, most: Option<u64>) -> Step {
    Step::AddLess {
        by: untold.by.saturating_add_unsigned(jobs),
        most: most.map(signed),
        gone: signed(untold.gone),
        since: untold.since,
    }
}

fn shared(number: Number) -> SharedNumber {
    SharedNumber {
        jobs: u64::try_from(number.value).unwrap_or(0),
        put_at: number.put_at,
    }
}

/// Keeps the numbers of bounded queues until the sidecar is told to stop. Where the store is this sidecar's
/// alone there is nothing to do.
pub(crate) async fn share_depths(proxy: &Proxy, stop: CancellationToken) {
    let sidecar = &proxy.sidecar;
    if !sidecar.store.is_shared() {
        return;
    }
    let pressure = &sidecar.admit.pressure;
    depths::share_depths(pressure);
    let mut ticks = interval(TELL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let has_untold = depths::has_untold(pressure);
        tokio::select! {
            () = depths::fleet_news(pressure) => ask_for_places(proxy),
            _ = ticks.tick(), if has_untold => {
                tell_holds(sidecar).await;
                tell_numbers(sidecar).await;
            }
            () = stop.cancelled() => break,
        }
    }
    tell_holds(sidecar).await;
    tell_numbers(sidecar).await;
    depths::stop_sharing(pressure, now(sidecar));
}

fn ask_for_places(proxy: &Proxy) {
    for (queue, wanted) in depths::take_wanted(&proxy.sidecar.admit.pressure) {
        let sidecar = Arc::clone(&proxy.sidecar);
        let _task = proxy.sidecar.tasks.spawn(async move {
            let granted = take_places(&sidecar, &queue, wanted).await.ok();
            let pressure = &sidecar.admit.pressure;
            depths::granted(pressure, &queue, granted, now(&sidecar));
        });
    }
}

/// Adds places to a queue's number: as many as there are, where there are fewer than are wanted. The store is told all that
/// it was not told yet: else siblings would be granted the same places.
async fn take_places(
    sidecar: &Sidecar,
    queue: &str,
    wanted: WantedPlaces,
) -> Result<GrantedPlaces, StoreError> {
    let (name, bound) = (name_of(queue), wanted.bound);
    let (mut jobs, mut untold) = (wanted.jobs, wanted.untold);
    loop {
        let step = change(untold, jobs, Some(bound));
        let mut answer = sidecar.store.number(&name, step).await?;
        if answer.done {
            let number = shared(answer);
            return Ok(GrantedPlaces { jobs, number });
        }
        if !untold.is_empty() {
            answer = (sidecar.store.number(&name, change(untold, 0, None))).await?;
            untold = UntoldChange::default();
        }
        let number = shared(answer);
        // Fewer each time, or siblings have made room.
        jobs = jobs.min(bound.saturating_sub(number.jobs));
        if jobs == 0 {
            return Ok(GrantedPlaces { jobs, number });
        }
    }
}

/// Tells siblings how many jobs are held here, of queues where that is not what they were told.
pub(crate) async fn tell_holds(sidecar: &Sidecar) {
    // Who comes later is told at the next look.
    if !sidecar.store.is_shared() || sidecar.store.is_alone() {
        return;
    }
    let mut told = sidecar.admit.told_holds.lock().await;
    let (held, now) = (sidecar.hold.counts(), Instant::now());
    let is_told = |queue: &Arc<str>, jobs| {
        let told = told.get(queue);
        told.is_some_and(|(was, at)| *was == jobs && now - *at < TOLD_LASTS)
    };
    let all = held
        .iter()
        .map(|(queue, jobs)| (queue.clone(), *jobs as u64));
    let left = told.keys().filter(|queue| !held.contains_key(*queue));
    let all = all.chain(left.map(|queue| (queue.clone(), 0)));
    let news: Vec<_> = all.filter(|(queue, jobs)| !is_told(queue, *jobs)).collect();
    let changes = news.iter().cloned();
    let changes = changes.map(|(queue, jobs)| Change::Holds { queue, jobs });
    // Where it fails they are told at the next look.
    if !news.is_empty() && sidecar.store.set_all(changes.collect()).await.is_ok() {
        told.retain(|queue, _| held.contains_key(queue));
        let held = news.into_iter().filter(|(_, jobs)| *jobs > 0);
        told.extend(held.map(|(queue, jobs)| (queue, (jobs, now))));
    }
}

/// Tells the store what was admitted here and what has left.
async fn tell_numbers(sidecar: &Sidecar) {
    let pressure = &sidecar.admit.pressure;
    for (queue, untold) in depths::take_untold(pressure) {
        let step = change(untold, 0, None);
        // Where it fails, the next look corrects the number.
        if let Ok(number) = sidecar.store.number(&name_of(&queue), step).await {
            depths::heard(pressure, &queue, shared(number), now(sidecar));
        }
    }
}

/// A queue's number before a look asks the backend, with all in it that was admitted here. `None`: only what
/// passes here is known.
pub(super) async fn read_number(sidecar: &Sidecar, queue: &str) -> Option<Number> {
    let pressure = &sidecar.admit.pressure;
    let is_bounded = pressure.bounds(queue)?.max_depth.is_some();
    if !is_bounded || !depths::is_shared(pressure) {
        return None;
    }
    let untold = depths::take_untold_of(pressure, queue);
    let step = match untold.is_empty() {
        true => Step::Read,
        false => change(untold, 0, None),
    };
    sidecar.store.number(&name_of(queue), step).await.ok()
}

/// Sets a queue's number to what a look found, unless a sibling has set it since it was read. What was added
/// since then stays in it. A look that is not `whole` sets nothing: siblings may have stored jobs of which it knows not.
pub(super) async fn correct_number(
    sidecar: &Sidecar,
    queue: &str,
    told: &ToldOfAll,
    before: Number,
) -> Option<Fleet> {
    let held = held_elsewhere(sidecar, queue).await?;
    // As siblings have told meanwhile: what is in the number that was read is in the subqueues by now.
    let counts = told.base.and(&sidecar.subqueues.waiting(queue));
    let depth = depths::depth_found(&sidecar.admit.pressure, queue, &counts, held, now(sidecar));
    let name = name_of(queue);
    let fleet = |number| Fleet { held, number };
    let mut higher = shared(before);
    for _ in 0..TRIES {
        let now = sidecar.store.number(&name, Step::Read).await.ok()?;
        if now.put_at > before.put_at || !told.is_whole {
            return Some(fleet(shared(now)));
        }
        // What has left since then may be gone from the backend's answer already: it is not taken off twice.
        let since = now.value.saturating_sub(before.value).max(0);
        let depth = depth.saturating_add_signed(since);
        let put = Step::Put {
            value: signed(depth),
            version: Some(now.version),
        };
        let answer = sidecar.store.number(&name, put).await.ok()?;
        if answer.done {
            return Some(fleet(shared(answer)));
        }
        higher = shared(answer);
        higher.jobs = higher.jobs.max(depth);
    }
    // Siblings are busy, and a later look sets it: until then the higher number counts.
    Some(fleet(higher))
}

/// How many jobs of a queue siblings hold. `None`: nobody knows.
async fn held_elsewhere(sidecar: &Sidecar, queue: &str) -> Option<u64> {
    if sidecar.store.is_alone() {
        return Some(0);
    }
    let held = sidecar.store.held_by_others(queue).await.ok()?;
    let may_hold = held > 0 || limits_queue(sidecar, queue, &sidecar.live().policies);
    if !may_hold || sidecar.store.siblings() == 0 {
        return Some(held);
    }
    // What siblings claimed just now is in nobody's number until they hold it.
    sleep(CLAIM).await;
    sidecar.store.held_by_others(queue).await.ok()
}
