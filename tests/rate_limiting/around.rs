//! Limits that are not in force: workers that ask the backend itself, and entries whose queue nobody uses. Somebody is
//! told.

use std::time::{SystemTime, UNIX_EPOCH};

use ojs_throttle::store::Store;
use ojs_throttle::store::guard::{Guard, OnStoreError};

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sidecar::settings;
use crate::sidecar::simulated::{Served, Start};

const TWO: &str = "[[policy]]\nname = \"two\"\nmatch = { queue = \"billing\" }\nconcurrency = 2\n";

/// A backend, what is logged, and as many sidecars as a test starts.
pub struct Stage {
    pub net: Net,
    pub behind: Served,
    pub lines: Lines,
}

impl Stage {
    pub async fn of(lax: Lax) -> (Stage, impl Drop) {
        let (lines, guard) = Lines::listen();
        let net = Net::Sim(sim::Network::default());
        let behind = backend(&net, lax).await;
        (Stage { net, behind, lines }, guard)
    }

    pub async fn sidecar(&self, seed: u64, store: impl Into<Store>, rest: &str) -> Sidecar {
        let start = Start::before(&self.net, &self.behind.base(), rest);
        start.seed(seed).store(store).start().await
    }

    /// A worker that was never given the sidecar's address.
    fn around(&self) -> Client {
        Client::new(&self.net, self.behind.addr)
    }

    pub fn warned(&self, id: &str) -> usize {
        self.lines.with(&format!("id={id}")).len()
    }

    /// No worker is seen to go around, and nobody was warned of one.
    async fn none_goes_around(&self, sidecar: &Sidecar) {
        let seen = (workers(sidecar).await, self.warned("workers_around"));
        assert_eq!(seen, (Some(0.0), 0));
    }
}

/// A memory store on the clock that the backend has.
pub fn memory() -> Arc<MemoryStore> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Arc::new(MemoryStore::new(now.as_micros() as u64))
}

async fn workers(sidecar: &Sidecar) -> Option<f64> {
    let admin = sidecar.admin();
    admin.metric("ojs_throttle_workers_around").await
}

/// The causes of the whole sidecar, by their names, with their sentences.
async fn causes(sidecar: &Sidecar) -> Vec<(String, String)> {
    let state = sidecar.admin().state().await;
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let all = state["causes"].as_array().unwrap().iter();
    all.map(|one| (text(one, "name"), text(one, "why")))
        .collect()
}

async fn fetched(client: &Client, queue: &str, worker: &str) -> Vec<String> {
    let asks = json!({"queues": [queue], "count": 1, "worker_id": worker});
    let jobs = client.fetch_as(asks).await;
    jobs.iter().map(|job| id(job).to_owned()).collect()
}

/// So many seconds in which each of these workers runs jobs of a second each.
async fn work_for(seconds: u64, queue: &str, workers: &[(&Client, &str)]) {
    for _ in 0..seconds {
        let mut out = Vec::new();
        for (client, worker) in workers {
            let job = plain(queue);
            client.enqueue(job).await;
            let got = fetched(client, queue, worker).await;
            out.extend(got.into_iter().map(|job| (*client, *worker, job)));
        }
        sleep(Duration::from_secs(1)).await;
        for (client, worker, job) in out {
            let done = json!({"job_id": job, "worker_id": worker});
            let reply = client.post("/ojs/v1/workers/ack", done.to_string()).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }
}

/// Right after a rollout, a worker that still has the backend's address takes a job and keeps it.
#[tokio::test(start_paused = true)]
async fn who_goes_around_right_after_the_start_is_told_of() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let sidecar = stage.sidecar(1, memory(), TWO).await;
    sleep(Duration::from_secs(3)).await;
    let around = stage.around();
    around.enqueue(plain("billing")).await;
    let asks = json!({"queues": ["billing"], "count": 1, "worker_id": "rogue",
        "visibility_timeout_ms": 900_000});
    assert_eq!(around.fetch_as(asks).await.len(), 1);
    sleep(Duration::from_secs(120)).await;
    assert_eq!(workers(&sidecar).await, Some(1.0));
    assert_eq!(stage.warned("workers_around"), 1);
    sidecar.stop().await;
}

/// Nobody here knows the visibility of a job that was claimed before the start: its worker is not said to be late.
#[tokio::test(start_paused = true)]
async fn who_runs_a_job_from_before_the_start_is_not_said_to_be_late() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let worker = stage.around();
    let job = worker.enqueue(plain("billing")).await;
    let asks = json!({"queues": ["billing"], "count": 1, "worker_id": "w",
        "visibility_timeout_ms": 600_000});
    assert_eq!(worker.fetch_as(asks).await.len(), 1);
    let sidecar = stage.sidecar(1, memory(), TWO).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(stage.warned("job_outlives_its_visibility"), 0);
    let path = format!("/throttle/v1/why?job={job}");
    let why = sidecar.admin().get(&path).await.json();
    let advice = why["do"].as_str().unwrap();
    assert!(advice.contains("(not known here: "), "{why}");
    sidecar.stop().await;
}

/// Six workers go past a limit of two. Where the backend shows who claimed a job they are named.
#[tokio::test(start_paused = true)]
async fn workers_that_go_around_are_told_of_everywhere() {
    for shows_claimer in [true, false] {
        let lax = Lax {
            shows_claimer,
            ..Lax::redis()
        };
        let (stage, _logged) = Stage::of(lax).await;
        let sidecar = stage.sidecar(1, memory(), TWO).await;
        let (through, around) = (sidecar.client(), stage.around());
        let names = ["d0", "d1", "d2", "d3", "d4", "d5"];
        let mut all: Vec<(&Client, &str)> = names.map(|name| (&around, name)).to_vec();
        all.push((&through, "w"));
        work_for(35, "billing", &all).await;
        stage.none_goes_around(&sidecar).await;
        work_for(135, "billing", &all).await;
        let seen = if shows_claimer { 6.0 } else { 1.0 };
        assert_eq!(workers(&sidecar).await, Some(seen));
        assert_eq!(stage.warned("workers_around"), 1);
        let named = stage.lines.with("\"d3\"").len();
        assert_eq!(named, usize::from(shows_claimer));
        let (name, why) = causes(&sidecar).await.remove(0);
        assert_eq!(name, "around");
        assert!(why.contains("\"billing\""), "{why}");
        assert_eq!(why.contains("\"d0\""), shows_claimer, "{why}");
        let asked = sidecar.admin().why("queue=billing").await.to_string();
        assert!(asked.contains("around the sidecar"), "{asked}");
        // They were given the right address.
        work_for(100, "billing", &[(&through, "w")]).await;
        let left = (workers(&sidecar).await, causes(&sidecar).await);
        assert_eq!(left, (Some(0.0), vec![]));
    }
}

/// Workers are moved from the backend to the sidecar, with jobs that run on for long. One that runs before the limit is
/// there, and one of an unlimited queue that gets its first limit by a reload, are no reason either.
#[tokio::test(start_paused = true)]
async fn jobs_that_ran_before_there_were_limits_warn_of_nothing() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let around = stage.around();
    let job = |queue: &str| {
        let options = json!({"queue": queue, "visibility_timeout_ms": 3_600_000});
        json!({"type": "t", "args": [], "options": options})
    };
    around.enqueue(job("billing")).await;
    assert_eq!(fetched(&around, "billing", "old").await.len(), 1);
    let sidecar = stage.sidecar(1, memory(), TWO).await;
    let through = sidecar.client();
    through.enqueue(job("mail")).await;
    assert_eq!(fetched(&through, "mail", "w").await.len(), 1);
    work_for(50, "billing", &[(&around, "old"), (&through, "w")]).await;
    let wider = TWO.replace("\"billing\"", "[\"billing\", \"mail\"]");
    sidecar.reload.apply(settings(&stage.behind.base(), &wider));
    work_for(300, "billing", &[(&through, "w")]).await;
    stage.none_goes_around(&sidecar).await;
}

/// The file loses the limit that they evade, and it was the last one.
#[tokio::test(start_paused = true)]
async fn workers_that_go_around_no_limit_are_told_of_no_more() {
    let none = "[job_policies]\naccept = \"ignore\"\n";
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let config = format!("{none}{TWO}");
    let sidecar = stage.sidecar(1, memory(), &config).await;
    let (through, around) = (sidecar.client(), stage.around());
    work_for(170, "billing", &[(&around, "d"), (&through, "w")]).await;
    assert_eq!(workers(&sidecar).await, Some(1.0));
    sidecar.reload.apply(settings(&stage.behind.base(), none));
    sleep(Duration::from_secs(60)).await;
    let left = (workers(&sidecar).await, causes(&sidecar).await);
    assert_eq!(left, (Some(0.0), vec![]));
}

/// What was seen before tells nothing of now.
#[tokio::test(start_paused = true)]
async fn workers_that_went_around_are_told_of_no_more_once_nothing_is_listed() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let sidecar = stage.sidecar(1, memory(), TWO).await;
    let (through, around) = (sidecar.client(), stage.around());
    work_for(170, "billing", &[(&around, "d"), (&through, "w")]).await;
    assert_eq!(workers(&sidecar).await, Some(1.0));
    stage.behind.stop().await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(workers(&sidecar).await, Some(0.0));
    let around = causes(&sidecar).await.into_iter();
    assert_eq!(around.filter(|(name, _)| name == "around").count(), 0);
}

/// Sidecars of one store that are replaced one after the other, and hold jobs. Their claims are named after them.
#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_updated_warns_of_nothing() {
    for lax in [Lax::redis(), Lax::amqp()] {
        let (stage, _logged) = Stage::of(lax).await;
        let shared = memory();
        let store = || Store::shared(Arc::new(Guard::new(shared.clone(), OnStoreError::Share)));
        let first = stage.sidecar(1, store(), TWO).await;
        let mut fleet = vec![first, stage.sidecar(2, store(), TWO).await];
        for seed in 3..6 {
            let clients = [fleet[0].client(), fleet[1].client()];
            let [a, b] = &clients;
            work_for(100, "billing", &[(a, "w0"), (b, "w1"), (b, "w2")]).await;
            for sidecar in &fleet {
                assert_eq!(workers(sidecar).await, Some(0.0));
            }
            let next = stage.sidecar(seed, store(), TWO).await;
            fleet.remove(0).task.abort();
            fleet.push(next);
        }
        assert_eq!(stage.warned("workers_around"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_misspelt_is_told_with_the_one_that_is_meant() {
    let slip = TWO.replace("billing", "biling") + "[[queue]]\nname = \"emial\"\nmax_depth = 5\n";
    for (config, meant) in [
        (slip, vec!["\"billing\"", "\"email\""]),
        (TWO.to_owned(), vec![]),
    ] {
        let (stage, _logged) = Stage::of(Lax::redis()).await;
        let sidecar = stage.sidecar(1, memory(), &config).await;
        let client = sidecar.client();
        work_for(5, "email", &[(&client, "w")]).await;
        work_for(95, "billing", &[(&client, "w")]).await;
        let told = causes(&sidecar).await;
        assert_eq!(told.len(), meant.len(), "{told:?}");
        for (meant, (name, why)) in meant.iter().zip(&told) {
            assert_eq!(name, "queue unused");
            assert!(why.ends_with(&format!("did you mean {meant}?")), "{why}");
        }
        assert_eq!(stage.warned("queue_unused"), meant.len());
        let admin = sidecar.admin();
        let unmatched = async || admin.metric("ojs_throttle_unmatched_policies").await;
        assert_eq!(unmatched().await, Some(0.0));
        sleep(Duration::from_secs(3_600)).await;
        let policies = usize::from(!meant.is_empty());
        assert_eq!(unmatched().await, Some(policies as f64));
        assert_eq!(stage.warned("policies_unmatched"), policies);
        assert_eq!(stage.warned("queue_unused"), meant.len(), "once each");
        // With its first job it is right.
        work_for(30, "biling", &[(&client, "w")]).await;
        let told = causes(&sidecar).await;
        assert_eq!(told.len(), meant.len().saturating_sub(1), "{told:?}");
        assert_eq!(unmatched().await, Some(0.0));
    }
}

/// Its jobs match, and lack what its key is made from.
#[tokio::test(start_paused = true)]
async fn a_policy_that_skips_all_its_jobs_is_told() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let skips = "key = \"two:{meta.tenat}\"\nkey_missing = \"skip\"\nconcurrency";
    let config = TWO.replace("concurrency", skips);
    let sidecar = stage.sidecar(1, memory(), &config).await;
    let client = sidecar.client();
    work_for(5, "billing", &[(&client, "w")]).await;
    sleep(Duration::from_secs(3_700)).await;
    assert_eq!(stage.warned("policies_unmatched"), 1);
    let (meta, options) = (json!({"tenat": "a"}), json!({"queue": "billing"}));
    let job = json!({"type": "t", "args": [], "meta": meta, "options": options});
    client.enqueue(job).await;
    assert_eq!(fetched(&client, "billing", "w").await.len(), 1);
    sleep(Duration::from_secs(60)).await;
    let admin = sidecar.admin();
    let unmatched = admin.metric("ojs_throttle_unmatched_policies").await;
    assert_eq!(unmatched, Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_queue_beyond_its_bound_speaks_of_producers_that_go_around() {
    let (stage, _logged) = Stage::of(Lax::redis()).await;
    let bound = "[[queue]]\nname = \"billing\"\nmax_depth = 5\n";
    let sidecar = stage.sidecar(1, memory(), bound).await;
    let (client, job) = (sidecar.client(), plain("billing"));
    let cause = async || {
        // One that asks for room has the depth looked at.
        let asks = client.post("/ojs/v1/jobs", job.to_string()).await;
        assert_eq!(asks.status, 429, "{}", asks.text());
        let state = sidecar.admin().state().await;
        let rows = state["queues"]["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["queue"] == "billing").unwrap();
        row["cause"]["why"].as_str().unwrap().to_owned()
    };
    client.enqueue_all(5, &job).await;
    assert!(cause().await.ends_with("producers get 429"));
    stage.around().enqueue_all(15, &job).await;
    sleep(Duration::from_secs(60)).await;
    let why = cause().await;
    assert!(why.contains("20 jobs wait where 5 may"), "{why}");
}
