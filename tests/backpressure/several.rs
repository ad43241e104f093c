//! Several sidecars on one store, before one backend, in simulation: producers hammer at all of them. How many jobs wait
//! is judged by the backend, never by a sidecar's own numbers. What one of them holds back for a limit is judged over
//! processes: `process::on_redis::depth`.

use std::net::{Ipv4Addr, SocketAddr};

use super::prelude::*;
use ojs_throttle::backend::Backend;
use ojs_throttle::store::guard::OnStoreError;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::harness::fleet::Fleet;
use crate::sidecar::BEGIN;
use crate::sidecar::answering::{self, Answers};
use crate::sidecar::simulated::{Sidecar, Start};

/// A backend that takes up to so many milliseconds to hear, and to be heard.
async fn far_away(net: &Net, backend: &Backend, (seed, slow): (u64, u64)) -> SocketAddr {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = net.bind(any).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let rng = Arc::new(Mutex::new(SmallRng::seed_from_u64(seed)));
    let backend = backend.clone();
    let answers: Arc<Answers> = Arc::new(move |request| {
        let (backend, rng) = (backend.clone(), rng.clone());
        Box::pin(async move {
            let some = || Duration::from_millis(rng.lock().unwrap().random_range(0..slow));
            sleep(some()).await;
            let reply = backend.handle(request).await;
            sleep(some()).await;
            reply
        })
    });
    tokio::spawn(answering::serve(listener, answers));
    addr
}

/// Two sidecars on one store.
async fn two(seed: u64, start: impl Fn() -> Start) -> Vec<Sidecar> {
    let fleet = Fleet::new(BEGIN);
    let mut started = Vec::new();
    for me in 0..2 {
        let way = fleet.way(me, OnStoreError::Share);
        way.slow(seed, Duration::from_millis(4));
        let start = start().store(way.store).seed(seed * 3 + me);
        started.push(start.start().await);
    }
    started
}

/// Producers without a pause at two sidecars that drop, before a near backend and a far one: what the other has
/// dropped is known later, and does not go again. What the other admitted just now may be over the bound until the
/// next enqueue finds it.
#[tokio::test(start_paused = true)]
async fn two_that_drop_leave_a_full_queue() {
    for (seed, slow, producers, bound) in [(1, 2, 2, 20), (2, 2, 8, 5), (3, 40, 8, 20)] {
        let flood = flooded((seed, slow), producers, bound, false).await;
        println!("{seed}: {flood:?}");
        let most = bound + producers as u64;
        assert!((bound..=most).contains(&flood.waiting), "seed {seed}");
        assert_eq!((flood.later, flood.refused), (bound, 0), "seed {seed}");
    }
}

/// And a worker at one of them for a while: what the other has on its way may count twice or not at all, so that room
/// which is made meanwhile is not seen, or used by both. Once less is on its way it is filled.
#[tokio::test(start_paused = true)]
async fn two_that_drop_fill_the_room_that_a_worker_makes() {
    for (seed, slow, producers, bound) in [(4, 2, 2, 20), (5, 40, 8, 40)] {
        let flood = flooded((seed, slow), producers, bound, true).await;
        println!("{seed}: {flood:?}");
        let on_their_way = producers as u64;
        let (least, most) = (bound - on_their_way, bound + on_their_way);
        assert!((least..=most).contains(&flood.waiting), "seed {seed}");
        assert!((bound..=most).contains(&flood.later), "seed {seed}");
        assert_eq!(flood.refused, 0, "seed {seed}");
        assert!(flood.taken > 20, "{}", flood.taken);
    }
}

/// What came of a flood.
#[derive(Debug)]
struct Flood {
    /// How many jobs wait at its end, and after some more came one by one.
    waiting: u64,
    later: u64,
    /// How many a worker took, and how many enqueues were refused.
    taken: usize,
    refused: usize,
}

async fn flooded((seed, slow): (u64, u64), producers: usize, bound: u64, works: bool) -> Flood {
    let net = Net::Sim(sim::Network::default());
    let backend = Backend::new(Lax::spec(), seed);
    let upstream = far_away(&net, &backend, (seed, slow)).await;
    let config =
        format!("[[queue]]\nname = \"q\"\nmax_depth = {bound}\nstrategy = \"drop_oldest\"\n");
    let upstream = format!("http://{upstream}");
    let start = || Start::before(&net, &upstream, &config);
    let sidecars = two(seed, start).await;
    let clients: Vec<Client> = sidecars.iter().map(Sidecar::client).collect();
    let (begun, lasts) = (Instant::now(), Duration::from_millis(1_000 + 60 * slow));
    let mut offers = JoinSet::new();
    for nth in 0..producers {
        let client = clients[nth % 2].clone();
        offers.spawn(async move {
            let mut refused = 0;
            while begun.elapsed() < lasts {
                if client.offer("q").await.status != 201 {
                    refused += 1;
                    sleep(Duration::from_millis(1)).await;
                }
            }
            refused
        });
    }
    let mut taken = 0;
    while works && begun.elapsed() < lasts * 3 / 4 {
        taken += clients[0].fetch("q", 2).await.len();
        sleep(Duration::from_millis(50)).await;
    }
    let refused = offers.join_all().await.into_iter().sum();
    let at_the_end = waiting(&backend, "q").await;
    for nth in 0..producers {
        sleep(Duration::from_millis(300)).await;
        clients[nth % 2].fill("q", 1).await;
    }
    sidecars
        .iter()
        .for_each(|sidecar| sidecar.stop.now.cancel());
    Flood {
        waiting: at_the_end,
        later: waiting(&backend, "q").await,
        taken,
        refused,
    }
}
