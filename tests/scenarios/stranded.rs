//! Queues with subqueues: no job is forgotten there, whatever happens to it and to what is said of it.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use super::deep::{SLOT, SPLIT, of};
use super::prelude::*;

/// The longest that an open key's job may wait while workers ask.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many tenants there are.
const TENANTS: u64 = 30;

impl Judge {
    /// While a key's one slot is free, from a moment on none of its jobs waits in the backend or the hold for longer than
    /// [`PATIENCE`].
    /// Jobs in `expiring` may be discarded unseen.
    fn none_stranded(&mut self, label: &str, from: Instant, expiring: &dyn Fn(&str) -> bool) {
        // By time: whether a job begins or ends to wait, or to be out.
        let mut steps: Vec<(Instant, usize, i64)> = Vec::new();
        let slots = self.slots(label);
        steps.extend((slots.iter()).flat_map(|slot| [(slot.start, 0, 1), (slot.end, 0, -1)]));
        // The replies with these were lost, or their workers hung up: until the backend takes them back they count as out.
        let lost = (self.claims.iter())
            .filter(|claim| claim.delivered.is_empty() && self.is_labelled(&claim.job, label));
        let lost = lost.filter_map(|claim| Some((claim.at, claim.end?.0)));
        steps.extend(lost.flat_map(|(from, to)| [(from, 0, 1), (to, 0, -1)]));
        let mut waits: BTreeMap<String, Instant> = BTreeMap::new();
        let mut claims = self.claims.iter();
        for (at, event) in &self.events {
            // The claims stand in the order of their events.
            let claim = match event.kind {
                EventKind::Claimed => claims.next(),
                _ => None,
            };
            let job = &*event.job;
            if !self.is_labelled(job, label) || expiring(job) {
                continue;
            }
            match event.kind {
                EventKind::Stored
                | EventKind::Promoted
                | EventKind::Requeued
                | EventKind::Expired
                | EventKind::Revived => {
                    waits.insert(job.to_owned(), *at);
                }
                EventKind::Claimed => {
                    let got = claim.and_then(|claim| claim.delivered.first());
                    let until = got.and_then(|nth| self.records.deliveries.get(*nth));
                    if let Some(since) = waits.remove(job) {
                        steps.extend([(since, 1, 1), (until.map_or(*at, |d| d.at), 1, -1)]);
                    }
                }
                EventKind::Cancelled | EventKind::Discarded => {
                    if let Some(since) = waits.remove(job) {
                        steps.extend([(since, 1, 1), (*at, 1, -1)]);
                    }
                }
                EventKind::Acked | EventKind::Nacked | EventKind::Extended => {}
            }
        }
        steps.extend((waits.into_values()).flat_map(|since| [(since, 1, 1), (self.ended, 1, -1)]));
        steps.sort_by_key(|(at, _, change)| (*at, -change));
        let (mut now, mut open_since) = ([0_i64; 2], None::<Instant>);
        let mut late = Vec::new();
        for (at, which, change) in steps {
            now[which] += change;
            let is_open = now[0] == 0 && now[1] > 0;
            match (is_open, open_since) {
                (true, None) => open_since = Some(at.max(from)),
                (false, Some(since)) => {
                    if at.saturating_duration_since(since) > PATIENCE {
                        late.push(format!(
                            "{label}: open and not served for {:?} from {} ms on",
                            at - since,
                            self.ms(since)
                        ));
                    }
                    open_since = None;
                }
                _ => {}
            }
        }
        self.problems.extend(late);
    }
}

/// One tenant after the other, and a few of them often.
fn tenant(rng: &mut SmallRng) -> String {
    let of = rng.random_range(0..TENANTS);
    format!("t{}", if rng.random_bool(0.4) { of % 4 } else { of })
}

/// Jobs come one by one and in batches, for later, with an end, and are cancelled; some fail; workers hang up; the backend's
/// replies come late, so that claims' replies and 201s change their order, or are lost; of several FETCHes some leave out a
/// locked job. A third of the runs has its producers at a sibling.
pub async fn whatever_happens(ctx: Ctx) -> Judge {
    let lax = ctx.pick(&[
        Lax::redis(),
        Lax {
            skips_locked: 20,
            ..Lax::postgres()
        },
        Lax::spec(),
    ]);
    let world = ctx.limits(&format!("{SLOT}{SPLIT}")).lax(lax);
    let is_fleet = ctx.seed / 3 % 2 == 1;
    let w = world.shared_if(is_fleet).start().await;
    let other = match is_fleet {
        true => Some(w.sibling().await),
        false => None,
    };
    w.pass(1_500).await;
    let worker = Worker::js(5).queues(&["mail"]).runs(20..400);
    w.workers(5, worker.clone().fails(0.05).hangs_up(0.05));
    w.worker(Worker::python(2).queues(&["mail"]).runs(20..400));
    if let Some(other) = &other {
        w.worker_of(other, worker);
    }
    let ms = Duration::from_millis;
    w.backend.often(Op::Enqueue, 0.1, Fault::LateReply(ms(300)));
    w.backend.often(Op::Enqueue, 0.05, Fault::Slow(ms(150)));
    w.backend.often(Op::Fetch, 0.1, Fault::LateReply(ms(200)));
    w.backend.often(Op::Fetch, 0.05, Fault::Slow(ms(100)));
    w.backend.often(Op::Fetch, 0.01, Fault::ReplyLost);
    w.backend.often(Op::Fetch, 0.01, Fault::Status(503));
    let mut rng = SmallRng::seed_from_u64(ctx.seed);
    let mut ids: Vec<String> = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(25) {
        w.pass(rng.random_range(1..500)).await;
        match rng.random_range(0..10_u32) {
            0 => {
                let to = tenant(&mut rng);
                let n = rng.random_range(2..8);
                ids.extend(w.enqueue_all(n, |_| of(&to)).await);
            }
            1 => {
                let all: Vec<String> = (0..6).map(|_| tenant(&mut rng)).collect();
                ids.extend(w.enqueue_all(6, |nth| of(&all[nth])).await);
            }
            2 if !ids.is_empty() => {
                let nth = rng.random_range(0..ids.len());
                w.hands("cancels").cancel(&ids[nth]).await;
            }
            3 => {
                let job = of(&tenant(&mut rng));
                let late = rng.random_range(200..4_000);
                ids.push(
                    w.enqueue(job.option("scheduled_at", later(&w, late).await))
                        .await,
                );
            }
            4 => {
                let job = of(&tenant(&mut rng)).label("expires");
                let late = rng.random_range(50..2_000);
                ids.push(
                    w.enqueue(job.option("expires_at", later(&w, late).await))
                        .await,
                );
            }
            _ => ids.push(w.enqueue(of(&tenant(&mut rng))).await),
        }
    }
    w.backend.mend();
    let calm = Instant::now();
    // Claims that were lost come back after 30 s, failed jobs a few seconds later.
    w.pass(50_000).await;
    let mut judge = w.judge().await;
    let labels: Vec<(String, Vec<String>)> = (judge.records.produced.iter())
        .map(|p| (p.id.clone(), p.labels.clone()))
        .collect();
    let expiring = |job: &str| {
        let of_job = labels.iter().find(|(id, _)| id == job);
        of_job.is_none_or(|(_, labels)| labels.iter().any(|label| label == "expires"))
    };
    let places = judge.places();
    let mut tenants = BTreeMap::<&String, BTreeSet<&String>>::new();
    for (job, of_job) in &labels {
        let (place, label) = (places.get(job), of_job.first());
        if let (Some(place), Some(label)) = (place, label) {
            tenants.entry(place).or_default().insert(label);
        }
    }
    // Behind another tenant's backlog jobs have to wait.
    let alone = (tenants.values()).filter(|of| of.len() == 1);
    let alone: Vec<String> = alone
        .flat_map(|of| of.iter().map(|label| label.to_string()))
        .collect();
    for label in &alone {
        judge.none_stranded(label, calm, &expiring);
    }
    judge.that(alone.len() > 15, "few are alone in their subqueues");
    let split = places.values().filter(|queue| queue.contains("-ojst-"));
    judge.that(split.count() > 50, "they do not wait in subqueues");
    judge
}

/// A time of the backend in so many milliseconds, as text.
async fn later(w: &World, ms: i64) -> Value {
    let beat = json!({ "worker_id": "clock" });
    let beat = w.backend.direct("POST", "/ojs/v1/workers/heartbeat", &beat);
    let now = beat.await["server_time"].as_str().map(str::parse);
    let now: jiff::Timestamp = now.expect("a time").expect("a time");
    json!((now + jiff::SignedDuration::from_millis(ms)).to_string())
}
