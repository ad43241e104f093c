//! Calls that take turns by group, over one sidecar and over three: judged from what the vendor saw.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::Method;
use ojs_throttle::backend::Lax;
use ojs_throttle::config::OnStoreError;
use ojs_throttle::net::{Net, sim};
use tokio::task::{JoinHandle, JoinSet};

use super::entry;
use super::prelude::*;
use crate::harness::fleet::Fleet;
use crate::sidecar::BEGIN;
use crate::sidecar::simulated::{Served, Sidecar, Start, backend};

const FAIR: &str = "key = 'vendor'\nfair = { by = '{header.X-Tenant}', weights = { acme = 3 } }\n";

/// Sidecars on one store, with one vendor.
struct Shared {
    net: Net,
    vendor: Arc<Vendor>,
    sidecars: Vec<Sidecar>,
    _backend: Served,
}

impl Shared {
    /// So many, each with this way out and others behind it.
    async fn start(sidecars: u64, egress: &str) -> Shared {
        let net = Net::Sim(sim::Network::default());
        let any = "127.0.0.1:0".parse().unwrap();
        let answers = |_: &_| Answer::ok().after(millis(5));
        let vendor = Arc::new(Vendor::in_runtime(&net, any, Arc::new(answers)).await);
        let behind = backend(&net, Lax::redis()).await;
        let config = entry(vendor.addr, egress).replace("VENDOR", &vendor.addr.to_string());
        let (fleet, mut all) = (Fleet::new(BEGIN + 1_000_000), Vec::new());
        for nth in 0..sidecars {
            let way = fleet.way(nth, OnStoreError::Share);
            let start = Start::before(&net, &behind.base(), &config).seed(nth);
            all.push(start.store(way.store).start().await);
        }
        sleep(millis(3_000)).await;
        Shared {
            net,
            vendor,
            sidecars: all,
            _backend: behind,
        }
    }

    /// A caller by one way out of one sidecar, for this tenant.
    fn caller(&self, sidecar: usize, way: usize, tenant: &str) -> Caller {
        let addr = self.sidecars[sidecar].egress[way];
        Caller(Client::new(&self.net, addr), tenant.into())
    }

    /// How many calls of each tenant came since `from`.
    fn by_tenant(&self, from: Instant) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for call in self.vendor.calls().iter().filter(|call| call.at >= from) {
            let tenant = call.header("x-tenant").unwrap().to_owned();
            *all.entry(tenant).or_default() += 1;
        }
        all
    }

    /// When the first call of a tenant came.
    fn first_of(&self, tenant: &str) -> Option<Instant> {
        let calls = self.vendor.calls();
        let mut of = calls
            .iter()
            .filter(|call| call.header("x-tenant") == Some(tenant));
        of.next().map(|call| call.at)
    }
}

#[derive(Clone)]
struct Caller(Client, Arc<str>);

impl Caller {
    async fn call(&self) -> u16 {
        let header = [("x-tenant", &*self.1)];
        self.0.send(Method::GET, "/", &header, "").await.status
    }

    /// Calls one after the other, for ever.
    fn goes_on(self) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                if self.call().await == 429 {
                    sleep(millis(100)).await;
                }
            }
        })
    }
}

/// Each has its part of all, within a twentieth of that.
fn parts(got: &BTreeMap<String, usize>, weights: &[(&str, usize)]) {
    let (all, of) = (
        got.values().sum::<usize>() as f64,
        weights.iter().map(|(_, weight)| weight).sum::<usize>() as f64,
    );
    for (tenant, weight) in weights {
        let due = all * *weight as f64 / of;
        let has = got.get(*tenant).copied().unwrap_or(0) as f64;
        let is_near = (has - due).abs() <= due / 20.0;
        assert!(is_near, "{tenant}: {has} of {due}: {got:?}");
    }
}

const WEIGHTS: [(&str, usize); 3] = [("acme", 3), ("b", 1), ("c", 1)];
const LIMITS: [&str; 3] = [
    "throttle = { limit = 50, period = '1s' }\n",
    "rate = { limit = 50, period = '1s' }\n",
    "concurrency = 3\nthrottle = { limit = 50, period = '1s' }\n",
];

/// Starts are few where this runs with all others; `STARTS` says how many else. `callers` says where those of a tenant are.
async fn by_weight(callers: impl Fn(usize) -> usize) {
    let starts = std::env::var("STARTS").ok().and_then(|of| of.parse().ok());
    let starts: u64 = starts.unwrap_or(500);
    for limit in LIMITS {
        let world = Shared::start(3, &format!("{FAIR}{limit}max_wait = '1m'")).await;
        for (nth, (tenant, _)) in WEIGHTS.iter().enumerate() {
            for of in 0..30 {
                world.caller(callers(3 * of + nth) % 3, 0, tenant).goes_on();
            }
        }
        sleep(millis(2_000)).await;
        let from = Instant::now();
        sleep(Duration::from_secs(starts / 50)).await;
        let got = world.by_tenant(from);
        let all: usize = got.values().sum();
        println!("{limit}: {got:?}, {all} of {starts}");
        parts(&got, &WEIGHTS);
        let least = 0.97 * starts as f64;
        assert!(all as f64 >= least, "{limit}: {all} of {starts}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_group_gets_its_part_where_all_are_everywhere() {
    by_weight(|nth| nth / 3).await;
}

#[tokio::test(start_paused = true)]
async fn each_group_gets_its_part_where_each_is_at_one_sidecar() {
    by_weight(|nth| nth).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_alone_has_all_of_it() {
    for limit in LIMITS {
        let world = Shared::start(3, &format!("{FAIR}{limit}max_wait = '1m'")).await;
        for of in 0..30 {
            world.caller(of % 3, 0, "b").goes_on();
        }
        sleep(millis(2_000)).await;
        let from = Instant::now();
        sleep(Duration::from_secs(20)).await;
        let got = world.by_tenant(from);
        assert!(got["b"] >= 970, "{limit}: {got:?} of 1000");
    }
}

/// A newcomer starts within two turns of its part, and a moment.
#[tokio::test(start_paused = true)]
async fn a_newcomer_passes_a_thousand_of_another_group() {
    let slow = "throttle = { limit = 10, period = '1s' }\nmax_wait = '10m'\nmax_waiting = 2000";
    for at in [0, 1] {
        let world = Shared::start(2, &format!("{FAIR}{slow}")).await;
        for _ in 0..1_000 {
            let caller = world.caller(0, 0, "a");
            tokio::spawn(async move { caller.call().await });
        }
        sleep(millis(3_030)).await;
        let begun = Instant::now();
        let caller = world.caller(at, 0, "b");
        assert_eq!(caller.call().await, 200);
        let took = world.first_of("b").unwrap() - begun;
        println!("at {at}: {took:?}");
        // Each of the two has a start in 200 ms.
        assert!(took <= millis(2 * 200 + 150), "{took:?}");
    }
}

/// Groups share what calls cost, not how many start.
#[tokio::test(start_paused = true)]
async fn groups_share_by_cost() {
    let all = format!("{FAIR}rate = {{ limit = 1000, period = '1s' }}\nmax_wait = '1m'\n");
    let ways = format!(
        "listen = '127.0.0.1:0'\n{all}[[egress]]\nname = 'ten'\nlisten = '127.0.0.1:0'\nupstream = 'http://VENDOR'\n{all}\
         cost = 10\n[[egress]]\nname = 'hundred'\nlisten = '127.0.0.1:0'\nupstream = 'http://VENDOR'\n{all}cost = 100\n"
    );
    let world = Shared::start(3, &ways).await;
    let costs = [("acme", 100), ("b", 1), ("c", 10)];
    // Those of cost 1 start many at a time, and some of each group always wait.
    for (way, tenant, callers) in [(2, "acme", 30), (0, "b", 150), (1, "c", 30)] {
        for of in 0..callers {
            world.caller(of % 3, way, tenant).goes_on();
        }
    }
    sleep(millis(3_000)).await;
    let from = Instant::now();
    sleep(Duration::from_secs(15)).await;
    let mut got = world.by_tenant(from);
    for (tenant, cost) in costs {
        *got.get_mut(tenant).unwrap() *= cost;
    }
    let all: usize = got.values().sum();
    println!("{got:?}, {all} of 15000");
    parts(&got, &WEIGHTS);
    assert!(all >= 14_550, "{all} of 15000");
}

/// A flood has places and starts left over by those who want little, and none of these is sent away.
#[tokio::test(start_paused = true)]
async fn two_hundred_small_groups_start_beside_a_flood() {
    let limit = "throttle = { limit = 100, period = '1s' }\nmax_wait = '20s'";
    let world = Shared::start(1, &format!("{FAIR}{limit}")).await;
    let mut flood = JoinSet::new();
    for _ in 0..10_000 {
        let caller = world.caller(0, 0, "flood");
        flood.spawn(async move { caller.call().await });
    }
    sleep(millis(1_000)).await;
    let mut small = JoinSet::new();
    for nth in 0..200 {
        let caller = world.caller(0, 0, &format!("small-{nth}"));
        small.spawn(async move { caller.call().await });
    }
    let begun = Instant::now();
    let statuses = small.join_all().await;
    assert_eq!(statuses, [200; 200]);
    println!("served in {:?}", begun.elapsed());
    let flood = flood.join_all().await;
    let served = flood.iter().filter(|status| **status == 200).count();
    assert!(served >= 750, "{served}");
}

/// The dear call of one group, behind cheap ones of others.
#[tokio::test(start_paused = true)]
async fn a_dear_call_of_one_group_starts_beside_cheap_ones_of_others() {
    let limit = "rate = { limit = 20, period = '6s' }\nmax_wait = '30s'\n";
    let ways = format!(
        "listen = '127.0.0.1:0'\n{FAIR}{limit}[[egress]]\nname = 'dear'\nlisten = '127.0.0.1:0'\n\
         upstream = 'http://VENDOR'\n{FAIR}{limit}cost = 6\n"
    );
    let world = Shared::start(1, &ways).await;
    for of in 0..30 {
        world.caller(0, 0, &format!("cheap-{}", of % 3)).goes_on();
    }
    sleep(millis(2_000)).await;
    let dear = world.caller(0, 1, "dear");
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(dear.call().await, 200);
        println!("{:?}", begun.elapsed());
    }
    assert!(world.vendor.calls().len() >= 40, "cheap ones start, too");
}

/// What it was before: one of b waits for a hundred of a.
#[tokio::test(start_paused = true)]
async fn one_call_does_not_wait_for_a_hundred_of_another_group() {
    let slow = "throttle = { limit = 10, period = '1s' }\nmax_wait = '1m'";
    let world = Shared::start(1, &format!("{FAIR}{slow}")).await;
    for _ in 0..100 {
        let caller = world.caller(0, 0, "a");
        tokio::spawn(async move { caller.call().await });
    }
    sleep(millis(230)).await;
    let begun = Instant::now();
    assert_eq!(world.caller(0, 0, "b").call().await, 200);
    let took = world.first_of("b").unwrap() - begun;
    println!("{took:?}");
    assert!(took <= millis(2 * 200 + 150), "{took:?}");
}

/// `why` shows whose calls wait, in turn.
#[tokio::test(start_paused = true)]
async fn why_shows_the_groups_of_calls_that_wait() {
    let slow = "throttle = { limit = 1, period = '20s' }\nmax_wait = '10m'";
    let world = Shared::start(1, &format!("{FAIR}{slow}")).await;
    for tenant in ["b", "b", "b", "acme"] {
        let caller = world.caller(0, 0, tenant);
        tokio::spawn(async move { caller.call().await });
        sleep(millis(20)).await;
    }
    let admin = world.sidecars[0].admin();
    let mut why = admin.get("/throttle/v1/why?key=vendor").await.json();
    let groups = why["limits"][0]["groups"].as_array_mut().unwrap();
    let mut ends: Vec<String> = Vec::new();
    for group in groups {
        let at = group.as_object_mut().unwrap().remove("waiting_done");
        ends.push(at.unwrap().as_str().unwrap().to_owned());
    }
    let all = &why["limits"][0]["state"]["waiting_done"]["at"];
    assert!(ends[0] < ends[1] && ends[1] == *all, "{ends:?} {why}");
    let groups = json!([
        {"group": "acme", "weight": 3, "calls": 1},
        {"group": "b", "weight": 1, "calls": 2},
    ]);
    assert_eq!(why["limits"][0]["groups"], groups, "{why}");
}
