//! Other sidecars on the same store: what they do that matters here, and held jobs that go from one to
//! another. A held job is its holder's alone until the holder offers it, because it has no worker for the job or
//! drains. Then a sidecar whose worker asks for jobs of that lane takes it over.

use std::cmp;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::sweep::files::SiblingFiles;
use super::sweep::keep;
use crate::desk::{Proxy, Sidecar, hiding, named, settings};
use crate::hold::{Held, Lane, Pick};
use crate::inquiry::calls::{self, Lookup, PAUSES, job_in};
use crate::inquiry::job::{self, ClaimOrigin, Shown};
use crate::inquiry::prove::{self, Extension, Word, attempt_since};
use crate::store::{Change, Claimed, Gen, KnownRow, LedgerExt, Place, Row, StoreError, Wake};
use crate::told::metrics::Counted;
use crate::wire::boxed;

/// The most held jobs that are taken over for one FETCH.
const AT_ONCE: usize = 16;
/// So many offers are written to the store in one call.
const OFFERS_AT_ONCE: usize = 256;
/// So many questions of one kind are on their way to the store at once.
const QUESTIONS: usize = 16;
/// How often it is looked whether a job in hand is back.
const RECHECK: Duration = Duration::from_millis(10);
/// How long siblings have to take what is offered, in a drain.
const OFFER: Duration = Duration::from_secs(5);

/// Follows what siblings tell until the sidecar is told to stop. With the memory store there are
/// none.
pub(super) async fn hear_siblings(proxy: &Proxy, files: &SiblingFiles, stop: CancellationToken) {
    let sidecar = &proxy.sidecar;
    let mut followed = JoinSet::new();
    loop {
        let wake = tokio::select! {
            wake = sidecar.store.wake() => wake,
            () = stop.cancelled() => return,
        };
        match wake {
            Wake::Freed(keys) => sidecar.wake_keys(&keys),
            Wake::Row { job } => {
                // Beside what else is heard: siblings may end jobs more quickly than a slow store answers.
                while followed.len() >= QUESTIONS && followed.join_next().await.is_some() {}
                let proxy = proxy.clone();
                followed.spawn(boxed::work(async move {
                    proxy.sidecar.store.follow(&job).await;
                    follow_job(&proxy, job);
                }));
            }
            Wake::Came { queue, subqueues } => {
                sidecar.subqueues.hear(&queue, &subqueues);
                sidecar.hold.arrived(&queue);
            }
            // Of no queue: what is said of a file.
            Wake::Moved { queue, moved } if queue.is_empty() => files.hear(&moved),
            Wake::Moved { queue, moved } => sidecar.subqueues.hear_moved(&queue, &moved),
            Wake::Offered { scope, queue } => {
                sidecar.keeper.offered.put(Lane { scope, queue });
                sidecar.hold.wake_all();
            }
            Wake::Paused { queue, paused } => {
                let _nobody_reads = sidecar.fetching.paused.reading.write().await;
                if paused {
                    sidecar.fetching.paused.pause(&queue);
                } else {
                    sidecar.fetching.paused.resume(&queue);
                    sidecar.hold.wake_all();
                }
            }
            Wake::Set => {
                settings::follow_settings(sidecar);
                sidecar.hold.ask_all();
                sidecar.calling.lines.wake_all();
            }
            Wake::All => {
                sidecar.subqueues.doubt_all();
                settings::follow_settings(sidecar);
                check_offers(proxy).await;
                read_pauses(proxy).await;
                sidecar.hold.ask_all();
                sidecar.calling.lines.wake_all();
            }
        }
    }
}

/// Learns which queues of held jobs are paused.
async fn read_pauses(proxy: &Proxy) {
    if proxy.sidecar.store.siblings() == 0 {
        return;
    }
    let mut queues = proxy.sidecar.hold.counts().into_keys();
    let mut questions = JoinSet::new();
    loop {
        while questions.len() < QUESTIONS
            && let Some(queue) = queues.next()
        {
            let sidecar = Arc::clone(&proxy.sidecar);
            questions.spawn(boxed::work(
                async move { read_pause(&sidecar, &queue).await },
            ));
        }
        if questions.join_next().await.is_none() {
            return;
        }
    }
}

/// Takes over what siblings have offered of these queues, and takes back what we have offered, for a worker that is
/// here now. A task of its own does it, which ends whatever becomes of the worker. It waits for that no longer than for a
/// claim: a slow backend is asked about one job after the other.
pub(super) async fn take_over_of(proxy: &Proxy, scope: u64, queues: &[Arc<str>]) {
    if !proxy.sidecar.keeper.offered.any() && !proxy.sidecar.hold.has_offers() {
        return;
    }
    let sidecar = &proxy.sidecar;
    let (proxy, queues) = (proxy.clone(), queues.to_vec());
    let taken = sidecar.tasks.spawn(async move {
        for queue in queues {
            let lane = Lane { scope, queue };
            let offers = proxy.sidecar.hold.offers_of(&lane, AT_ONCE);
            own_again(&proxy, offers).await;
            take_over(&proxy, &lane).await;
        }
    });
    // Only a panic in there could fail, and would have been logged.
    let _late = tokio::time::timeout(sidecar.live().settings.fetch.claim_budget, taken).await;
}

async fn take_over(proxy: &Proxy, lane: &Lane) {
    let sidecar = &proxy.sidecar;
    if sidecar.tasks.draining.is_cancelled() || !sidecar.keeper.offered.take(lane) {
        return;
    }
    read_pause(sidecar, &lane.queue).await;
    let rows = sidecar.store.offered(lane.scope, &lane.queue, AT_ONCE);
    let Ok(rows) = rows.await else {
        return sidecar.keeper.offered.put(lane.clone());
    };
    if rows.len() >= AT_ONCE {
        sidecar.keeper.offered.put(lane.clone());
    }
    let mut unheard = 0;
    for row in rows {
        let coming = sidecar.hold.coming(lane, 1, Instant::now());
        let heard = take_over_row(proxy, row).await;
        drop(coming);
        unheard += u32::from(!heard);
        if unheard > 1 {
            // It was not for one job's sake: the others would have no answer either.
            return sidecar.keeper.offered.put(lane.clone());
        }
    }
}

/// The backend is asked for it first: until it is known here it stays its owner's, who keeps it alive.
/// `false`: it did not answer.
async fn take_over_row(proxy: &Proxy, row: Row) -> bool {
    let sidecar = &proxy.sidecar;
    let claimed = row.claimed;
    let held = match read_again(proxy, &claimed, Instant::now()).await {
        Again::Ours(held) => held,
        Again::Over => {
            sidecar.end(&claimed.job, Some(claimed.generation)).await;
            return true;
        }
        // Whoever takes it over next asks again.
        Again::Unclear => return true,
        Again::Unheard => return false,
    };
    let claim = sidecar.keeper.offered.claim_number(claimed.generation);
    match own(sidecar, &claimed, claim).await {
        Ok(true) => hold_taken_over(sidecar, held, &claimed, claim),
        Ok(false) => {}
        // It may be ours. It goes nowhere until the store says so.
        Err(_) => {
            let sidecar = Arc::clone(sidecar);
            let _task = proxy.sidecar.tasks.spawn(async move {
                while Instant::now() < held.proof.deadline {
                    tokio::time::sleep(PAUSES.1).await;
                    match own(&sidecar, &claimed, claim).await {
                        Ok(true) => return hold_taken_over(&sidecar, held, &claimed, claim),
                        Ok(false) => return,
                        Err(_) => {}
                    }
                }
            });
        }
    }
    true
}

/// Takes over what is offered, under the number `next`; `false`: another has it. With the same number it is asked again
/// where an answer is lost.
async fn own(sidecar: &Sidecar, offered: &Claimed, next: Gen) -> Result<bool, StoreError> {
    // Who took it over may have to put its row back yet: the store may have forgotten that it was taken. One that fails all
    // the time is not waited for without end.
    if !sidecar.store.may_miss_rows() {
        sidecar.keeper.offered.are_known();
    } else if sidecar.keeper.offered.wait_for_store() {
        return Err(StoreError::Settling);
    }
    let own = Change::Own {
        job: offered.job.clone(),
        generation: offered.generation,
        next,
        until: sidecar.store.now().plus(offered.visibility),
    };
    sidecar.store.set(own).await
}

/// The number under which what this sidecar has offered is its own again.
fn own_number(offered: Gen) -> Gen {
    Gen(offered.0 + 1)
}

/// The job as the backend has it.
async fn read_again(proxy: &Proxy, claimed: &Claimed, sent: Instant) -> Again {
    let sidecar = &proxy.sidecar;
    let mark = sidecar.admit.pressure.mark();
    let reply = match calls::look_up(proxy, claimed.scope, &claimed.job).await {
        Lookup::Found(reply) => reply,
        Lookup::Gone => return Again::Over,
        Lookup::Unknown => return Again::Unclear,
        Lookup::Unanswered => return Again::Unheard,
    };
    let Some(job) = job_in(&reply) else {
        return Again::Unclear;
    };
    let lane = Lane::of(claimed);
    // That of the FETCH which claimed it: the scope says both.
    let tenant = sidecar.scopes.tenant_of(claimed.scope);
    let origin = ClaimOrigin {
        scope: claimed.scope,
        tenant: tenant.as_deref(),
        lanes: &[lane],
        subqueues: &[],
        claim_id: &claimed.claim_id,
        visibility: Some(Duration::from_micros(claimed.visibility)),
        sent,
        mark,
    };
    let state = job.get_exact("state").and_then(|state| state.text());
    let live = sidecar.live();
    let mut reading = job::reading(sidecar, &reply, &origin, &live, Instant::now());
    reading.claimed_at = claimed.claimed_at;
    let held = job::read_job(sidecar, &Shown::of(job), &mut reading);
    let active = state.is_some_and(|state| state == "active");
    let same = attempt_since(claimed.attempt, job).is_none_or(cmp::Ordering::is_eq);
    match held.filter(|_| active && same) {
        Some(held) => Again::Ours(held),
        None => Again::Over,
    }
}

/// What the backend has of a job that a sibling holds.
enum Again {
    /// It is active in that attempt still.
    Ours(Held),
    /// It is not.
    Over,
    /// It says something else.
    Unclear,
    /// It did not answer, or not now.
    Unheard,
}

/// A job that was taken over from a sibling is in the hold from here on.
fn hold_taken_over(sidecar: &Sidecar, mut held: Held, claimed: &Claimed, claim: Gen) {
    held.claimed.generation = claim;
    held.claimed.claimed_at = claimed.claimed_at;
    // When its claim was last extended only its former owner knew: the next sweep extends it, and it is
    // proven before it goes out.
    held.doubt();
    sidecar.metrics.count(Counted::HoldAdopted);
    sidecar.scopes.accept_known(claimed.scope);
    named::noted(sidecar, std::iter::once(&held.claimed));
    sidecar.hold.add(vec![held]);
}

/// Offers held jobs to siblings. To offer is to give up: from here on no worker of ours gets one of these before
/// the store says that it is ours again.
async fn offer(sidecar: &Sidecar, claims: &[Claimed]) {
    sidecar.hold.offer(claims);
    for some in sidecar.hold.untold_offers().chunks(OFFERS_AT_ONCE) {
        let offer = |claimed: &Claimed| Change::Offer {
            claimed: claimed.clone(),
        };
        let told = sidecar.store.set_all(some.iter().map(offer).collect());
        // Where the store is lost, the answer is not its own. It is told at the next look.
        if told.await.is_err() || sidecar.store.is_lost() {
            return;
        }
        sidecar.hold.note_offers_known(some);
    }
}

/// Offers the held jobs that no worker of ours asks for, where siblings may have a worker for them.
pub(super) async fn offer_unwanted(sidecar: &Sidecar) {
    if sidecar.store.is_lost() {
        return;
    }
    let unwanted = match sidecar.tasks.draining.is_cancelled() {
        _ if sidecar.store.siblings() == 0 => Vec::new(),
        true => sidecar.hold.unwanted(Duration::ZERO),
        false => sidecar.hold.unwanted(sidecar.live().settings.hold.idle),
    };
    offer(sidecar, &unwanted).await;
}

/// Looks after the jobs that are offered: those whose claims are over are forgotten, and without a sibling all are
/// ours again.
pub(super) async fn look_after_offers(proxy: &Proxy) {
    let sidecar = &proxy.sidecar;
    for claimed in sidecar.hold.lapsed_offers() {
        sidecar.lose(&claimed).await;
    }
    if sidecar.store.siblings() == 0 {
        let mut offers = sidecar.hold.all_offers();
        // Some at each look, which is also the word that this sidecar lives.
        offers.truncate(OFFERS_AT_ONCE);
        own_again(proxy, offers).await;
    }
}

/// Gets offered jobs back from the store, as a sibling would. Those that a sibling has by now are forgotten.
pub(super) async fn own_again(proxy: &Proxy, offers: Vec<Claimed>) {
    let (sidecar, mut ours) = (&proxy.sidecar, Vec::new());
    for claimed in offers {
        if sidecar.store.is_lost() {
            break;
        }
        let claim = own_number(claimed.generation);
        match own(sidecar, &claimed, claim).await {
            Ok(true) => ours.push((claimed, claim)),
            Ok(false) => follow_offer(proxy, &claimed).await,
            // It is asked again at the next look.
            Err(_) => break,
        }
    }
    sidecar.hold.end_offers(&ours);
}

/// Messages may have been missed, or the answer when one was told: offered jobs that siblings have by now are forgotten.
async fn check_offers(proxy: &Proxy) {
    let hold = &proxy.sidecar.hold;
    // In this order, because one may become known meanwhile.
    let untold = hold.untold_offers();
    for claimed in untold.into_iter().chain(hold.all_offers()) {
        follow_offer(proxy, &claimed).await;
    }
}

/// How many jobs of a queue siblings hold, for those who look at its numbers; 0 while the store is away.
pub(crate) async fn held_by_siblings(sidecar: &Sidecar, queue: &str) -> usize {
    if !sidecar.store.is_shared() || sidecar.store.is_alone() {
        return 0;
    }
    let held = sidecar.store.held_by_others(queue).await.unwrap_or(0);
    usize::try_from(held).unwrap_or(usize::MAX)
}

/// A sibling ended or took over what we offered, or a call that may end a held job came through it: the hold follows.
/// In a task of its own, because the backend may have to be asked.
fn follow_job(proxy: &Proxy, job: Arc<str>) {
    if !proxy.sidecar.hold.has(&job) {
        return;
    }
    let proxy = proxy.clone();
    let _task = proxy.sidecar.clone().tasks.spawn(async move {
        let sidecar = &proxy.sidecar;
        // It goes out nowhere meanwhile.
        let _hiding = hiding::hide(sidecar, &job);
        while sidecar.hold.is_in_hand(&job) {
            tokio::time::sleep(RECHECK).await;
        }
        let Some(claimed) = sidecar.hold.claimed(&job) else {
            return;
        };
        if sidecar.hold.is_offered(&claimed) {
            follow_offer(&proxy, &claimed).await;
        } else if sidecar.scopes.knows(claimed.scope)
            && prove::shown_active(&proxy, &claimed).await == Some(false)
        {
            sidecar.lose(&claimed).await;
        }
    });
}

/// A job that we offered is forgotten if the store says that it is ours no more. What is being told only now has no row
/// yet, or one of an older claim; but where nobody heard that it was told, a sibling may have it.
async fn follow_offer(proxy: &Proxy, offer: &Claimed) {
    let sidecar = &proxy.sidecar;
    let is_known = sidecar.hold.is_offer_known(offer);
    let row = sidecar.store.row(&offer.job).await;
    let Some(row) = row.ok().filter(|_| !sidecar.store.is_lost()) else {
        return;
    };
    let is_newer = |row: &Row| row.claimed.generation > offer.generation;
    let is_theirs = |row: &Row| !row.ours && (is_known || is_newer(row));
    if !row.as_ref().map_or(is_known, is_theirs) {
        return;
    }
    sidecar.hold.forget(&offer.job);
    if row.is_some_and(|row| row.is_out()) {
        // A heartbeat of ours may have come since it went out.
        let lasts = Extension::of_held(offer, &sidecar.backend).lasts;
        let named = (offer.job.clone(), offer.attempt);
        keep::follow_out(proxy, lasts, std::iter::once((&named, Word::None)));
    }
}

/// Tells siblings of a call that may end a job which is neither held here alone nor out: one of them may hold it.
pub(crate) async fn doubt_elsewhere(sidecar: &Sidecar, job: &Arc<str>) {
    let claimed = sidecar.hold.claimed(job);
    let is_here = claimed.is_some_and(|claimed| !sidecar.hold.is_offered(&claimed))
        || matches!(sidecar.store.known(job), KnownRow::Out(_));
    if !is_here && sidecar.store.siblings() > 0 {
        // If the store is away, the holder's next proof tells.
        drop(sidecar.store.set(Change::Doubt { job: job.clone() }).await);
    }
}

/// A picked job that the store does not start, because it has a row.
pub(crate) async fn lost(sidecar: &Sidecar, mut pick: Pick) {
    let (job, claim) = (pick.claimed.job.clone(), pick.claimed.generation);
    if !sidecar.store.is_shared() {
        return pick.gone();
    }
    match sidecar.store.row(&job).await {
        Ok(Some(row)) if row.ours && row.claimed.generation == claim => {
            match row.place {
                // A start of which nobody heard: what is picked is with no worker.
                Place::Out(_) => sidecar.back(&mut pick).await,
                // An offer that waits here again.
                Place::Offered | Place::Held(_) => drop(sidecar.end(&job, Some(claim)).await),
            }
            sidecar.wake(&pick.claimed.limited);
        }
        Ok(_) => pick.gone(),
        // The next question of a start tells.
        Err(_) => {}
    }
}

/// Tells siblings that a queue is paused through us, or no longer.
pub(crate) async fn tell_paused(sidecar: &Sidecar, queue: &str, paused: bool) {
    // If the store is away, siblings hear it from the backend, which gives them no jobs.
    if sidecar.store.is_shared() {
        let queue = queue.into();
        drop(sidecar.store.set(Change::Paused { queue, paused }).await);
    }
}

/// Learns whether a queue is paused; that it still is, the backend is asked soon.
async fn read_pause(sidecar: &Sidecar, queue: &str) {
    let _reading = sidecar.fetching.paused.reading.read().await;
    if let Ok(true) = sidecar.store.is_paused(queue).await {
        sidecar.fetching.paused.pause(queue);
    }
}

/// Offers all held jobs, and waits a while for siblings to take them, `most` at the most.
pub(super) async fn offer_all(sidecar: &Sidecar, most: Duration) {
    offer_unwanted(sidecar).await;
    let patience = Instant::now() + OFFER.min(most);
    while sidecar.hold.has_offers() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::claims::TestClaim as _;
    use crate::equipment::faulty::{Fault, Faulty};
    use crate::equipment::held::held_of;
    use crate::hold::PickAsk;
    use crate::limit::Timestamp;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::{Claim, Ledger, Store, Verdict};

    /// An offer that nobody took, and of whose end the store has not heard: its job starts at the second question.
    #[tokio::test(start_paused = true)]
    async fn an_offer_of_what_waits_here_again_ends() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let guard = Guard::new(inner.clone(), OnStoreError::Share);
        let sidecar = Arc::clone(&Proxy::on(Store::shared(Arc::new(guard))).sidecar);
        let held = held_of(Claim::limited("j"));
        let (claimed, lane) = (held.claimed.clone(), held.lane());
        sidecar.hold.add(vec![held]);
        inner.set(Change::Offer { claimed }).await.unwrap();
        let ask = PickAsk {
            most: 1,
            spare: 0,
            want: 1,
        };
        let pick = || {
            sidecar
                .hold
                .pick(&lane, ask, Timestamp(1_000_000))
                .remove(0)
        };

        let picked = pick();
        let taken = sidecar.store.take(&[&picked.claimed], 1).await.unwrap();
        assert!(matches!(taken.verdicts[..], [Verdict::HasRow]));
        lost(&sidecar, picked).await;
        assert!(inner.row("j").await.unwrap().is_none());

        let picked = pick();
        let taken = sidecar.store.take(&[&picked.claimed], 1).await.unwrap();
        assert!(matches!(taken.verdicts[..], [Verdict::Started { .. }]));
    }

    /// A sibling took an offered job over, and the store went on without that: the job is not taken over again before the
    /// sibling had time to say who has it.
    #[tokio::test(start_paused = true)]
    async fn what_a_store_may_have_forgotten_is_not_owned_again() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let faulty = Arc::new(Faulty::new(inner.clone()));
        let guard = Guard::new(faulty.clone(), OnStoreError::Share);
        let sidecar = Arc::clone(&Proxy::on(Store::shared(Arc::new(guard))).sidecar);
        let offered = Claimed::from(Claim::limited("j"));
        let claimed = offered.clone();
        let next = own_number(offered.generation);
        inner.set(Change::Offer { claimed }).await.unwrap();
        faulty.script([Fault::gone()]);
        assert!(sidecar.store.row("j").await.is_err());
        assert!(own(&sidecar, &offered, next).await.is_err());
        sidecar.store.due(0).await.unwrap();
        assert!(own(&sidecar, &offered, next).await.is_err());
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert!(own(&sidecar, &offered, next).await.unwrap());
    }

    /// The store has two offers, and nobody heard that: a sibling takes one over. It is not told again as ours, which the
    /// store would refuse unheeded. Of a third it has heard nothing.
    #[tokio::test(start_paused = true)]
    async fn what_a_sibling_has_is_forgotten_although_its_offer_was_unheard() {
        for missed in [false, true] {
            let inner = Arc::new(MemoryStore::new(1_000_000));
            let faulty = Arc::new(Faulty::new(inner.clone()));
            let guard = Guard::new(faulty.clone(), OnStoreError::Share);
            let proxy = Proxy::on(Store::shared(Arc::new(guard)));
            let sidecar = &proxy.sidecar;
            for (nth, job, fault) in [(1, "j", Fault::unheard()), (2, "k", Fault::gone())] {
                let held = held_of(Claim {
                    generation: Gen(nth),
                    ..Claim::limited(job)
                });
                let claimed = held.claimed.clone();
                sidecar.hold.add(vec![held]);
                faulty.script([fault]);
                offer(sidecar, &[claimed]).await;
                // What failed is put right.
                sidecar.store.due(0).await.unwrap();
            }
            let job: Arc<str> = "j".into();
            let taken_over = Change::Own {
                job: job.clone(),
                generation: Gen(1),
                next: Gen(7),
                until: Timestamp(60_000_000),
            };
            assert!(inner.set(taken_over).await.unwrap());
            faulty.rows_are_theirs();
            match missed {
                true => check_offers(&proxy).await,
                false => {
                    follow_job(&proxy, job.clone());
                    follow_job(&proxy, "k".into());
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            assert!(!sidecar.hold.has(&job), "missed: {missed}");
            assert!(sidecar.hold.has("k"), "it is told at the next look");
        }
    }

    /// The word of who took an offered job over came late, and a heartbeat of ours before it: the sibling's worker has the
    /// job for as long as it was given it.
    #[tokio::test(start_paused = true)]
    async fn what_a_siblings_worker_has_gets_its_whole_time_back() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let faulty = Arc::new(Faulty::new(inner.clone()));
        let guard = Guard::new(faulty.clone(), OnStoreError::Share);
        let proxy = Proxy::on(Store::shared(Arc::new(guard)));
        let sidecar = &proxy.sidecar;
        let post = async |target: &str, body: &'static str| {
            let call = calls::post(&proxy, 0, target, body);
            proxy.upstream.call(call).await.unwrap().body
        };
        let job = r#"{"type":"t","args":[],"options":{"queue":"q"}}"#;
        post("/ojs/v1/jobs", job).await;
        let fetch = r#"{"queues":["q"],"worker_id":"sidecar","visibility_timeout_ms":120000}"#;
        let reply = post("/ojs/v1/workers/fetch", fetch).await;
        let id = job_in(&reply).and_then(|job| Some(job.get("id")?.text()?.into_owned()));
        let held = held_of(Claim {
            scope: 0,
            attempt: None,
            visibility: 120_000_000,
            ..Claim::limited(&id.unwrap())
        });
        let claimed = held.claimed.clone();
        sidecar.hold.add(vec![held]);
        offer(sidecar, std::slice::from_ref(&claimed)).await;

        let mut theirs = claimed.clone();
        theirs.generation = Gen(7);
        inner.end(&theirs.job, None).await.unwrap();
        inner.take(&[&theirs], 1).await.unwrap();
        faulty.rows_are_theirs();
        let extension = Extension::of_held(&claimed, &sidecar.backend);
        let named = [(claimed.job.clone(), claimed.attempt)];
        prove::confirm(&proxy, 0, &extension, &named, 0).await;
        follow_job(&proxy, claimed.job.clone());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!sidecar.hold.has(&claimed.job));
        assert_eq!(prove::shown_active(&proxy, &claimed).await, Some(true));
    }

    /// While the store does not say who has an offered job, each FETCH tries to take it over, and goes on trying. One of them
    /// gets the job.
    #[tokio::test]
    async fn of_several_tries_to_take_a_job_over_one_has_it() {
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let guard = Guard::new(inner.clone(), OnStoreError::Share);
        let sidecar = Arc::clone(&Proxy::on(Store::shared(Arc::new(guard))).sidecar);
        let offered = Claimed::from(Claim::limited("j"));
        let claimed = offered.clone();
        inner.set(Change::Offer { claimed }).await.unwrap();
        let offers = &sidecar.keeper.offered;
        let [one, other] = [(); 2].map(|()| offers.claim_number(offered.generation));
        // Its first answer was lost.
        for _ in 0..2 {
            assert!(own(&sidecar, &offered, one).await.unwrap());
        }
        assert!(!own(&sidecar, &offered, other).await.unwrap());
    }
}
