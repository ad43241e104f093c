//! A hold that is full of jobs that no worker asks for: siblings may have them, the backend gets some of them back
//! where that costs nothing, and others lapse.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::give_back::Back;
use crate::hold::Pick;
use crate::proxy::Proxy;
use crate::proxy::load::Seldom;
use crate::proxy::siblings::{self, OFFER};
use crate::proxy::sweep::give_back;
use crate::store::{End, LedgerExt};

/// How long picked jobs are given back in one go: nothing keeps their claims meanwhile.
const ROUND: Duration = Duration::from_secs(1);

/// What was done about a crowded hold.
#[derive(Default, Debug)]
pub(super) struct Crowd {
    warned: Arc<Seldom>,
    letting_go: Option<JoinHandle<()>>,
}

/// Looks which queues no worker has asked for in a while, and lets go of some of what is held of them where
/// there is more than has room beside the hold and other jobs need the places. Siblings have a while to take it
/// before.
pub(super) async fn make_room(proxy: &Proxy, crowd: &mut Crowd) {
    let sidecar = &proxy.sidecar;
    let (most, idle) = {
        let settings = &sidecar.live().settings;
        (sidecar.hold_most(settings), settings.hold.idle)
    };
    sidecar.hold.look_for_idle(idle, Instant::now());
    let is_over = |task: &JoinHandle<()>| task.is_finished();
    if !crowd.letting_go.as_ref().is_none_or(is_over) {
        return;
    }
    let offered = match sidecar.store.siblings() {
        0 => None,
        // We do not hear of what somebody has taken then.
        _ if sidecar.store.is_lost() => return,
        _ => Some(OFFER),
    };
    let crowding = sidecar.hold.pick_idle(most, offered);
    if !crowding.is_empty() {
        let let_go = let_all_go(proxy.clone(), crowding, crowd.warned.clone());
        // Beside the sweep: the backend may be slow.
        crowd.letting_go = Some(sidecar.tasks.spawn(let_go));
    }
}

/// Lets go of picked jobs: the backend has them back at once where that costs them nothing and it takes them,
/// and when their claims lapse elsewhere.
async fn let_all_go(proxy: Proxy, crowding: Vec<Pick>, warned: Arc<Seldom>) {
    let (sidecar, begun) = (&proxy.sidecar, Instant::now());
    // All of them first: what this does not come to waits here again, and siblings must not have it too.
    let claims = crowding.iter().map(|pick| &pick.claimed);
    let claims = claims.map(|of| End::from((of.job.clone(), Some(of.generation))));
    let ended = sidecar.store.end_all(&claims.collect::<Vec<_>>()).await;
    for pick in crowding {
        let claimed = pick.claimed.clone();
        let is_ended = sidecar.store.siblings() == 0
            || ended.as_ref().is_ok_and(|rows| {
                let mut jobs = rows.iter().map(|row| &row.claimed.job);
                jobs.any(|job| *job == claimed.job)
            });
        // It was offered, and a sibling has it, or had it until it ended.
        if !is_ended && siblings::follow_offer(sidecar, &claimed).await {
            continue;
        }
        // Where the store did not say, it may be ours still, or not.
        let back = match is_ended && sidecar.backend.requeue_harmless() {
            true => give_back::give_back(&proxy, pick).await,
            false => Back::Stays,
        };
        if back == Back::Stays {
            if warned.now() {
                tracing::warn!(
                    id = %"hold_crowded",
                    queue = &*claimed.queue,
                    held = sidecar.hold.len(),
                    "the hold is full of jobs that no worker asks for; the claims of some lapse, so that others \
                     can start, which costs each as much as the death of a worker: start workers for these \
                     queues, or raise hold.max and hold.max_bytes"
                );
            }
            sidecar.abandon(&claimed).await;
        }
        sidecar.hold.forget_claim(&claimed.job, claimed.generation);
        // Each would be let go like one in doubt.
        if back == Back::InDoubt || begun.elapsed() >= ROUND {
            break;
        }
    }
}
