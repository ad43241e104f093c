//! The sweep: what must be done although nobody asks. It looks after what is due and forgets what is empty, and by it
//! siblings see that we live. Beside it held jobs get heartbeats (`keep`) or go back to the backend (`give_back`), and
//! the backend is asked about paused queues (`pauses`), about jobs that go around us (`around`), and whether it is there
//! again. Siblings say which limits their files set (`files`). The sweep waits for none of them, and none of them for
//! another. How running jobs get slots, and how long overdue ones keep theirs, is in [`crate::inquiry`].

mod around;
pub(super) mod files;
pub(crate) mod give_back;
pub(crate) mod keep;
mod pace;
mod pauses;
mod unshared;

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{fetch, siblings};
use crate::admit::depth;
use crate::desk::{Proxy, Sidecar, edges, settings};
use crate::inquiry::overdue::{self, OverdueSlots};
use crate::inquiry::{adopt, calls, news};
use crate::store::{LedgerExt, LooksAfter, Row};
use crate::{egress, shadow};

use files::SiblingFiles;
use pace::ticks;

/// Rows looked at in one go.
const AT_ONCE: usize = 256;
/// How often what came with requests and is not used any more is forgotten.
const FORGET: Duration = Duration::from_secs(600);

/// Does what must be done although nobody asks, until the sidecar is told to stop.
pub(crate) async fn attend(proxy: &Proxy, stop: CancellationToken) {
    let files = SiblingFiles::default();
    tokio::join!(
        // Rows that are due, what is empty.
        sweep(proxy, stop.clone()),
        // Heartbeats for held jobs.
        keep::keep_held(proxy, stop.clone()),
        // Held jobs that nobody asks for go back to the backend.
        give_back::return_idle(proxy, stop.clone()),
        // Which queues the backend has paused.
        stop.run_until_cancelled(pauses::ask_about_paused(proxy)),
        // Whether a backend that was away is back.
        stop.run_until_cancelled(watch_backend(proxy)),
        // Whether limits are evaded, by other sidecars or by workers.
        stop.run_until_cancelled(around::look_for_evaded(proxy)),
        // Whether siblings limit by another file.
        stop.run_until_cancelled(files::compare_files(proxy, &files)),
        // Places in bounded queues, which the fleet shares.
        depth::share_depths(proxy, stop.clone()),
        // To which subqueues jobs came here.
        news::tell_siblings(proxy, stop.clone()),
        // What entries would have done that are only tried.
        shadow::play(proxy, stop.clone()),
        // What siblings tell.
        siblings::hear_siblings(proxy, &files, stop.clone())
    );
}

/// Runs until the sidecar is told to stop looking.
pub(crate) async fn sweep(proxy: &Proxy, stop: CancellationToken) {
    let overdue = OverdueSlots::default();
    let mut edition = proxy.sidecar.live().edition;
    let mut adopting: Option<JoinHandle<()>> = None;
    let mut forgotten = Instant::now();
    let mut others = RowsOfOthers::default();
    let mut ticks = ticks();
    depth::measure_queues(proxy).await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        settings::end_expired(&proxy.sidecar);
        settings::follow_settings(&proxy.sidecar);
        settings::tell_unbound(&proxy.sidecar);
        siblings::offer_unwanted(&proxy.sidecar).await;
        siblings::look_after_offers(proxy).await;
        look_at_due(proxy, &overdue, &stop).await;
        name_again(&proxy.sidecar, &mut others);
        fetch::name_claims(&proxy.sidecar);
        depth::tell_holds(&proxy.sidecar).await;
        proxy.sidecar.keeper.offered.tidy();
        depth::watch_bounds(proxy);
        if forgotten.elapsed() >= FORGET {
            forgotten = Instant::now();
            forget_unused(&proxy.sidecar);
        }
        let now = proxy.sidecar.live().edition;
        let is_done = adopting.as_ref().is_none_or(JoinHandle::is_finished);
        if edition != now && is_done && !proxy.sidecar.config().calls_only() {
            edition = now;
            adopting = Some(adopt::adopt_again(proxy, &stop));
        }
        let minute_ago = Instant::now().checked_sub(Duration::from_secs(60));
        if let Some(minute_ago) = minute_ago {
            proxy.sidecar.hold.tidy(minute_ago);
        }
    }
}

/// What was seen last of whether others have put rows into the store.
#[derive(Default, Debug)]
struct RowsOfOthers {
    /// How many jobs were ever adopted.
    adopted: u64,
    /// Whether rows were missing that they had to put back.
    missing: bool,
}

/// Has all that is held named to the store once more where it may have got rows of these jobs that are over by our
/// claims: a sibling took some for running, or has put back what it had before the store was away. What was named while
/// it was away was named here alone.
fn name_again(sidecar: &Sidecar, others: &mut RowsOfOthers) {
    let store = &sidecar.store;
    let now = RowsOfOthers {
        adopted: store.facts().adopted,
        missing: store.may_miss_rows(),
    };
    if now.adopted != others.adopted || (others.missing && !now.missing) {
        sidecar.hold.unname_all();
    }
    *others = now;
}

/// What is due, and that we live.
async fn look_at_due(proxy: &Proxy, overdue: &OverdueSlots, stop: &CancellationToken) {
    let which = match proxy.sidecar.config().calls_only() {
        true => LooksAfter::Calls,
        false => LooksAfter::All,
    };
    let Ok(rows) = proxy.sidecar.store.due_of(which, AT_ONCE).await else {
        return;
    };
    // It has answered, so it has said what is set.
    settings::tell_limits_in_place_of_file(&proxy.sidecar);
    let (held, out): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|row| !row.is_out());
    end_offers(&proxy.sidecar, &held).await;
    let (calls, out) = out
        .into_iter()
        .partition(|row| row.claimed.egress().is_some());
    egress::look_after(&proxy.sidecar, calls).await;
    overdue::ask_about(proxy, out, overdue, stop).await;
}

/// Ends the rows of what we offered and do not hold any more. If a job has gone out since, it keeps its slots.
async fn end_offers(sidecar: &Sidecar, rows: &[Row]) {
    for Row { claimed, .. } in rows {
        let (job, claim) = (&claimed.job, claimed.generation);
        if !sidecar.hold.has(job)
            && let Ok(Some(row)) = sidecar.store.row(job).await
            && !row.is_out()
        {
            sidecar.end(job, Some(claim)).await;
        }
    }
}

/// Forgets names of queues, keys and credentials that came with requests and are not used any more: nobody
/// says when that is so.
fn forget_unused(sidecar: &Sidecar) {
    let now = edges::now(sidecar);
    sidecar.admit.pressure.forget_unused(now);
    sidecar.fetching.forget_unused(now.at);
    sidecar.subqueues.forget_unused(now.at);
    sidecar.forget_unused();
}

/// Looks whether outages of the backend and of services are over, and asks the backend where nobody else does. A backend
/// that has not told what it is is asked again: something else may answer in its place.
async fn watch_backend(proxy: &Proxy) {
    let mut ticks = ticks();
    let mut asked = Instant::now();
    loop {
        ticks.tick().await;
        let has_backend = !proxy.sidecar.config().calls_only();
        let again = adopt::asked_again_after(&proxy.sidecar);
        if has_backend && again.is_some_and(|after| asked.elapsed() >= after) {
            adopt::ask_again(proxy).await;
            asked = Instant::now();
        }
        proxy.sidecar.calling.end_outages();
        if proxy.upstream.end_outage_if_over() {
            let question = calls::get(proxy, 0, "/ojs/v1/health".to_owned());
            // Whatever it says, it is an answer.
            let _noted = calls::call(proxy, "health", question).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::claims::TestClaim as _;
    use crate::equipment::held::held_of;
    use std::sync::Arc;

    use crate::equipment::faulty::{Fault, Faulty};
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::{Claim, Claimed, Gen, Ledger, Store};

    fn claim(generation: u64) -> Claim {
        Claim {
            generation: Gen(generation),
            ..Claim::limited("a")
        }
    }

    /// A job that was out through a sibling is claimed here while the store is away, and the sibling puts its row back
    /// late: its slot does not wait until the row is overdue.
    #[tokio::test(start_paused = true)]
    async fn what_is_held_is_named_again_when_a_store_is_back() {
        let inner = Arc::new(MemoryStore::new(1_800_000_000_000_000));
        let faulty = Arc::new(Faulty::new(inner.clone()));
        let guard = Guard::new(faulty.clone(), OnStoreError::Share);
        let proxy = Proxy::on(Store::shared(Arc::new(guard)));
        let sidecar = proxy.sidecar.clone();
        let stop = CancellationToken::new();
        let sweeping = sweep(&proxy, stop.clone());
        let happens = async {
            let seconds = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
            seconds(1).await;
            faulty.standing(Some(Fault::gone()));
            seconds(2).await;
            assert!(sidecar.store.is_lost());
            sidecar.hold.add(vec![held_of(claim(2))]);
            seconds(1).await;
            faulty.standing(None);
            seconds(1).await;
            assert!(!sidecar.store.is_lost());
            let out = Claimed::from(claim(1));
            inner.take(&[&out], 1).await.unwrap();
            seconds(1).await;
            assert!(inner.row("a").await.unwrap().is_some());
            seconds(6).await;
            assert!(inner.row("a").await.unwrap().is_none());
            stop.cancel();
        };
        tokio::join!(sweeping, happens);
        assert!(sidecar.hold.has("a"));
    }
}
