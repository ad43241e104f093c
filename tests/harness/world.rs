//! One world: a network, a backend, a sidecar, and who talks to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::Net;
use ojs_throttle::run::ReloadOutcome;
use ojs_throttle::store::LedgerExt;
use ojs_throttle::store::guard::OnStoreError;
use ojs_throttle::store::memory::MemoryStore;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::backend::{Faulty, bare_job};
use super::fleet::{Fleet, Way};
use super::http::{Address, Client, Reply};
use super::judge::Judge;
use super::ledger::{Ledger, Produced, Sent};
use super::producer::Job;
use super::runner::Ctx;
use super::worker::{Handle, Hands, Worker};
use crate::sidecar::simulated::{self, Start};
use crate::sidecar::{BEGIN, BoxFuture};

/// A world in the making.
pub struct Setup {
    ctx: Ctx,
    lax: Lax,
    limits: String,
    server: String,
    settings: String,
    shared: Option<OnStoreError>,
}

/// A sidecar that runs.
pub struct Sidecar {
    running: simulated::Sidecar,
    /// Its way to the store that it shares with others.
    pub way: Option<Way>,
}

pub struct World {
    pub ctx: Ctx,
    pub backend: Faulty,
    pub ledger: Ledger,
    pub begun: Instant,
    net: Net,
    address: Address,
    requests: Arc<AtomicU64>,
    config: String,
    /// The config without what is limited.
    head: String,
    sidecar: Mutex<Option<Sidecar>>,
    store: Mutex<Arc<MemoryStore>>,
    /// What sidecars share, and what happens without it.
    fleet: Option<(Arc<Fleet>, OnStoreError)>,
    handles: Mutex<Vec<Handle>>,
    lag: Arc<AtomicU64>,
    starts: AtomicU64,
    /// Bodies of enqueues, as sent.
    sent: Mutex<Vec<Sent>>,
}

impl Ctx {
    /// A world with a redis-like backend.
    pub fn world(self) -> Setup {
        Setup {
            ctx: self,
            lax: Lax::redis(),
            limits: String::new(),
            server: String::new(),
            settings: String::new(),
            shared: None,
        }
    }

    /// Such a world with these limits.
    pub fn limits(self, toml: &str) -> Setup {
        self.world().limits(toml)
    }
}

impl Setup {
    /// What is limited: `[[policy]]` and `[[queue]]` tables. Left out where limiting is off.
    pub fn limits(mut self, toml: &str) -> Setup {
        self.limits = toml.into();
        self
    }

    /// Lines of `[server]`.
    pub fn server(mut self, toml: &str) -> Setup {
        self.server = toml.into();
        self
    }

    /// Other tables.
    pub fn settings(mut self, toml: &str) -> Setup {
        self.settings = toml.into();
        self
    }

    /// Its sidecars share a store, and go on with their shares of the limits without it.
    pub fn shared(self) -> Setup {
        self.shared_or(OnStoreError::Share)
    }

    /// Its sidecars share a store, and go on like this without it.
    pub fn shared_or(mut self, without: OnStoreError) -> Setup {
        self.shared = Some(without);
        self
    }

    /// The same if `shared`, of which the other runs have a store of their own.
    pub fn shared_if(self, shared: bool) -> Setup {
        match shared {
            true => self.shared(),
            false => self,
        }
    }

    pub fn lax(mut self, lax: Lax) -> Setup {
        self.lax = lax;
        self
    }

    /// Starts the backend and two sidecars that share a store, once they know each other.
    pub async fn pair(self) -> (World, Sidecar) {
        let world = self.shared_if(true).start().await;
        let other = world.sibling().await;
        world.pass(1_500).await;
        (world, other)
    }

    /// Starts the backend and the sidecar.
    pub async fn start(self) -> World {
        let net = self.ctx.net();
        let backend = Faulty::start(self.lax, net.clone(), self.ctx.seed).await;
        let limits = match self.ctx.unlimited {
            true => "[job_policies]\naccept = \"ignore\"",
            false => &self.limits,
        };
        let head = format!("drain_min = \"0s\"\n{}\n{}\n", self.server, self.settings,);
        let config = format!("{head}{limits}\n");
        let world = World {
            ctx: self.ctx,
            backend,
            ledger: Ledger::default(),
            begun: Instant::now(),
            net,
            address: Arc::new(Mutex::new(SocketAddr::from(([127, 0, 0, 1], 0)))),
            requests: Arc::default(),
            config,
            head,
            sidecar: Mutex::default(),
            store: Mutex::new(Arc::new(MemoryStore::new(BEGIN))),
            fleet: self.shared.map(|mode| (Fleet::new(BEGIN), mode)),
            handles: Mutex::default(),
            lag: Arc::default(),
            starts: AtomicU64::new(0),
            sent: Mutex::default(),
        };
        if self.ctx.real {
            world.measure_lag();
        }
        world.start_sidecar().await;
        world
    }
}

impl World {
    /// Over real sockets: how late this thread is at worst, which is how late a receipt may be.
    fn measure_lag(&self) {
        let lag = self.lag.clone();
        tokio::spawn(async move {
            loop {
                let due = Instant::now() + Duration::from_millis(1);
                sleep(Duration::from_millis(1)).await;
                let late = u64::try_from(due.elapsed().as_micros()).unwrap_or(u64::MAX);
                lag.fetch_max(late, Ordering::Relaxed);
            }
        });
    }

    /// How far receipts may be off, in all.
    pub fn jitter(&self) -> Duration {
        match self.ctx.real {
            true => Duration::from_micros(2 * self.lag.load(Ordering::Relaxed) + 2_000),
            false => Duration::ZERO,
        }
    }

    /// Starts a sidecar with an empty store, instead of the one that ended.
    pub async fn start_sidecar(&self) {
        let (sidecar, store) = self.another().await;
        *self.address.lock().expect("no panic") = sidecar.running.addr;
        *self.store.lock().expect("no panic") = store;
        *self.sidecar.lock().expect("no panic") = Some(sidecar);
    }

    /// Starts one more that shares the store with the first.
    pub async fn sibling(&self) -> Sidecar {
        assert!(self.fleet.is_some(), "the store is of one sidecar");
        self.another().await.0
    }

    fn upstream(&self) -> String {
        format!("http://{}", self.backend.addr())
    }

    async fn another(&self) -> (Sidecar, Arc<MemoryStore>) {
        let net = match &self.net {
            Net::Sim(network) => Net::Sim(network.process()),
            Net::Tcp => Net::Tcp,
        };
        let nth = self.starts.fetch_add(1, Ordering::Relaxed);
        let way = (self.fleet.as_ref()).map(|(fleet, mode)| fleet.way(nth, *mode));
        let memory = match &self.fleet {
            Some((fleet, _)) => fleet.store.clone(),
            None => Arc::new(MemoryStore::new(BEGIN + 1_000_000)),
        };
        let store = (way.as_ref()).map_or_else(|| memory.clone().into(), |way| way.store.clone());
        let start = Start::before(&net, &self.upstream(), &self.config);
        let start = start.seed(self.ctx.seed * 1000 + nth).store(store);
        let running = start.start().await;
        (Sidecar { running, way }, memory)
    }

    /// Cuts the first sidecar's way to the shared store, or mends it.
    pub fn first_way(&self, with: impl FnOnce(&Way)) {
        let sidecar = self.sidecar.lock().expect("no panic");
        with(
            sidecar
                .as_ref()
                .and_then(|first| first.way.as_ref())
                .expect("a shared store"),
        );
    }

    /// Other limits from now on, of the first sidecar. Where limiting is off it stays off.
    pub fn reload(&self, limits: &str) {
        let sidecar = self.sidecar.lock().expect("no panic");
        if let Some(sidecar) = &*sidecar {
            self.reload_of(sidecar, limits);
        }
    }

    /// The same of this sidecar.
    pub fn reload_of(&self, sidecar: &Sidecar, limits: &str) {
        if !self.ctx.unlimited {
            let rest = format!("{}{limits}\n", self.head);
            let settings = crate::sidecar::settings(&self.upstream(), &rest);
            let outcome = sidecar.running.reload.apply(settings);
            assert!(matches!(outcome, ReloadOutcome::Applied(_)), "{outcome:?}");
        }
    }

    /// SIGTERM; returns when the sidecar has ended.
    pub async fn drain(&self) {
        let sidecar = self.sidecar.lock().expect("no panic").take();
        if let Some(sidecar) = sidecar {
            sidecar.running.stop.drain.cancel();
            let ended = sidecar.running.task.await.expect("a sidecar ends");
            ended.expect("a sidecar ends in order");
        }
    }

    /// SIGTERM, without waiting for the end.
    pub fn begin_drain(&self) {
        if let Some(sidecar) = &*self.sidecar.lock().expect("no panic") {
            sidecar.running.stop.drain.cancel();
        }
    }

    /// Whether the sidecar has ended.
    pub fn is_over(&self) -> bool {
        self.sidecar
            .lock()
            .expect("no panic")
            .as_ref()
            .is_none_or(|sidecar| sidecar.running.task.is_finished())
    }

    /// kill -9 (simulation only).
    pub fn kill_sidecar(&self) {
        if let Some(sidecar) = self.sidecar.lock().expect("no panic").take() {
            match &sidecar.running.net {
                Net::Sim(network) => network.kill(),
                Net::Tcp => panic!("only simulated processes can be killed"),
            }
            sidecar.running.task.abort();
        }
    }

    /// kill -9, and a new one with an empty store.
    pub async fn restart(&self) {
        self.kill_sidecar();
        self.start_sidecar().await;
    }

    /// A client of the sidecar.
    pub fn client(&self) -> Client {
        let (net, to) = self.road();
        Client::new(net, to, self.requests.clone())
    }

    /// The way to the sidecar, for clients that are not the harness's.
    pub fn road(&self) -> (Net, Address) {
        (self.net.clone(), self.address.clone())
    }

    /// A client of another sidecar.
    fn client_of(&self, sidecar: &Sidecar) -> Client {
        self.client_to(sidecar.running.addr)
    }

    fn client_to(&self, addr: SocketAddr) -> Client {
        let to = Arc::new(Mutex::new(addr));
        Client::new(self.net.clone(), to, self.requests.clone())
    }

    /// A client of the backend itself, past the sidecar.
    pub fn past(&self) -> Client {
        self.client_to(self.backend.addr())
    }

    /// A worker by hand.
    pub fn hands(&self, name: &str) -> Hands {
        Hands::new(name.into(), self.client(), self.ledger.clone())
    }

    /// A worker of another sidecar, by hand.
    pub fn hands_of(&self, name: &str, sidecar: &Sidecar) -> Hands {
        Hands::new(name.into(), self.client_of(sidecar), self.ledger.clone())
    }

    /// A worker by hand, whose requests carry a header.
    pub fn hands_with(&self, name: &str, header: &'static str, value: &str) -> Hands {
        Hands::new(
            name.into(),
            self.client().with(header, value),
            self.ledger.clone(),
        )
    }

    /// A worker of another sidecar, by hand, whose requests carry a header.
    pub fn hands_of_with(
        &self,
        name: &str,
        sidecar: &Sidecar,
        header: &'static str,
        value: &str,
    ) -> Hands {
        let client = self.client_of(sidecar).with(header, value);
        Hands::new(name.into(), client, self.ledger.clone())
    }

    /// Starts a worker.
    pub fn worker(&self, worker: Worker) -> Handle {
        self.worker_to(self.client(), worker)
    }

    /// Starts a worker of another sidecar.
    pub fn worker_of(&self, sidecar: &Sidecar, worker: Worker) -> Handle {
        self.worker_to(self.client_of(sidecar), worker)
    }

    fn worker_to(&self, client: Client, worker: Worker) -> Handle {
        let mut handles = self.handles.lock().expect("no panic");
        let nth = handles.len() as u64;
        let name = format!("worker_{nth}");
        let seed = self.ctx.seed.wrapping_mul(7919).wrapping_add(nth);
        let handle = worker.start(name, client, self.ledger.clone(), seed);
        handles.push(handle.clone());
        handle
    }

    /// Starts several of a kind.
    pub fn workers(&self, n: usize, worker: Worker) -> Vec<Handle> {
        (0..n).map(|_| self.worker(worker.clone())).collect()
    }

    /// Enqueues through the sidecar; the id, or empty if it was refused.
    pub async fn enqueue(&self, job: Job) -> String {
        self.enqueue_to(self.client(), job).await
    }

    /// Enqueues through this sidecar.
    pub async fn enqueue_at(&self, sidecar: &Sidecar, job: Job) -> String {
        self.enqueue_to(self.client_of(sidecar), job).await
    }

    async fn enqueue_to(&self, client: Client, job: Job) -> String {
        let body = job.body().to_string();
        let reply = client.call("POST", "/ojs/v1/jobs", body.into()).await;
        let (status, shown) = reply.map_or((0, Value::Null), |reply| (reply.status, reply.json()));
        self.produced(&job, &shown["job"], status)
    }

    /// Enqueues `n` jobs, in order, in batches.
    pub fn enqueue_all(
        &self,
        n: usize,
        job: impl FnMut(usize) -> Job,
    ) -> BoxFuture<'_, Vec<String>> {
        Box::pin(self.enqueue_these((0..n).map(job).collect()))
    }

    async fn enqueue_these(&self, jobs: Vec<Job>) -> Vec<String> {
        let client = self.client();
        let mut ids = Vec::with_capacity(jobs.len());
        for batch in jobs.chunks(100) {
            let bodies: Vec<&Value> = batch.iter().map(Job::body).collect();
            let body = serde_json::json!({ "jobs": bodies });
            let reply = client
                .post("/ojs/v1/jobs/batch", &body)
                .await
                .expect("a reply");
            assert_eq!(reply.status, 201, "{:?}", reply.body);
            let shown = reply.json();
            for (nth, job) in batch.iter().enumerate() {
                ids.push(self.produced(job, &shown["jobs"][nth], reply.status));
            }
        }
        ids
    }

    fn produced(&self, job: &Job, shown: &Value, status: u16) -> String {
        let id = shown["id"].as_str().unwrap_or_default().to_owned();
        self.ledger.open().produced.push(Produced {
            id: id.clone(),
            queue: job.queue.clone(),
            labels: job.labels.clone(),
            answered: Instant::now(),
            status,
        });
        id
    }

    /// Sends a body as it is and writes it down, for comparing bytes.
    pub async fn send(&self, path: &str, body: &'static str) -> Reply {
        let id = format!("req_{}", self.requests.load(Ordering::Relaxed));
        self.sent.lock().expect("no panic").push(Sent {
            id,
            path: path.into(),
            body: body.into(),
            at: Instant::now(),
        });
        self.client()
            .call("POST", path, body.into())
            .await
            .expect("a reply")
    }

    /// What [`World::send`] sent.
    pub fn sent(&self) -> Vec<Sent> {
        self.sent.lock().expect("no panic").clone()
    }

    /// A job as the sidecar shows it.
    pub async fn job(&self, id: &str) -> Value {
        bare_job(self.get(&format!("/ojs/v1/jobs/{id}")).await)
    }

    /// GET of a path as JSON.
    pub async fn get(&self, path: &str) -> Value {
        self.client()
            .get(path)
            .await
            .map_or(Value::Null, |reply| reply.json())
    }

    /// A number on the first sidecar's metrics page.
    pub async fn metric(&self, series: &str) -> f64 {
        let admin = {
            let sidecar = self.sidecar.lock().expect("no panic");
            sidecar.as_ref().expect("a sidecar").running.admin_addr
        };
        let page = self.client_to(admin).get("/metrics").await;
        let page = page.expect("a page").body;
        let page = String::from_utf8_lossy(&page);
        let mut lines = page.lines();
        let number = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        number.and_then(|number| number.parse().ok()).expect(series)
    }

    /// GET of a path on a sidecar's admin port, as JSON.
    pub async fn admin_of(&self, sidecar: &Sidecar, path: &str) -> Value {
        let reply = self.client_to(sidecar.running.admin_addr).get(path).await;
        reply.map_or(Value::Null, |reply| reply.json())
    }

    /// GET of a path on the first sidecar's admin port, as JSON.
    pub async fn admin(&self, path: &str) -> Value {
        let admin = {
            let sidecar = self.sidecar.lock().expect("no panic");
            sidecar.as_ref().expect("a sidecar").running.admin_addr
        };
        let reply = self.client_to(admin).get(path).await;
        reply.map_or(Value::Null, |reply| reply.json())
    }

    /// How many jobs the first sidecar holds, and how many are out by the store's rows.
    pub async fn rows(&self) -> (usize, usize) {
        let held = match self.is_over() {
            true => 0.0,
            false => self.metric("ojs_throttle_held_jobs").await,
        };
        let store = self.store.lock().expect("no panic").clone();
        let out = store.count_out().await;
        (held as usize, out.expect("the memory store answers"))
    }

    /// How many jobs the backend has out with anyone.
    pub async fn active(&self, queue: &str) -> u64 {
        let path = format!("/ojs/v1/queues/{queue}/stats");
        let stats = self.backend.direct("GET", &path, &Value::Null).await;
        stats["queue"]["active"].as_u64().unwrap_or(0)
    }

    /// Passes time.
    pub async fn pass(&self, ms: u64) {
        sleep(Duration::from_millis(ms)).await;
    }

    /// Waits until every stored job has ended, `secs` at most; whether they have.
    pub async fn until_done(&self, secs: u64) -> bool {
        let looks = AtomicU64::new(0);
        self.until(secs, async || {
            let (stored, settled) = {
                let records = self.ledger.open();
                let stored = records.produced.iter().filter(|p| p.status == 201).count();
                (stored, records.settles.len())
            };
            // The backend's ledger is long: it is read now and then only, unless it may be the end.
            let nth = looks.fetch_add(1, Ordering::Relaxed);
            (settled >= stored || nth.is_multiple_of(20)) && self.backend.ended() >= stored
        })
        .await
    }

    /// Waits until something holds, `secs` at most; whether it does.
    pub async fn until(&self, secs: u64, holds: impl AsyncFn() -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(secs);
        loop {
            if holds().await {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// [`World::judge`] once every stored job has ended, as it has to within `secs`.
    pub async fn judge_when_done(&self, secs: u64) -> Judge {
        let done = self.until_done(secs).await;
        let mut judge = self.judge().await;
        judge.that(done, format!("not done within {secs} s"));
        judge
    }

    /// Stops the workers, lets things come to rest, and collects the ledgers.
    pub async fn judge(&self) -> Judge {
        let handles: Vec<Handle> = self.handles.lock().expect("no panic").clone();
        handles.iter().for_each(Handle::stop);
        self.until(40, async || handles.iter().all(Handle::is_over))
            .await;
        self.pass(if self.ctx.real { 200 } else { 2_000 }).await;
        let mut active = HashMap::new();
        let labels: Vec<String> = self
            .ledger
            .open()
            .produced
            .iter()
            .flat_map(|p| p.labels.clone())
            .collect();
        for label in labels {
            if !active.contains_key(&label) && !self.is_over() {
                let shown = self.get(&format!("/ojs/v1/rate-limits/{label}")).await;
                active.insert(label, shown["concurrency"]["active"].as_u64());
            }
        }
        Judge::new(self, self.rows().await, active)
    }
}
