//! What lies where in the subqueues of a queue, as operators are told it; judged from the backend's own numbers.

use ojs_throttle::policy::subqueue::{COUNT, Spread, Subqueue};
use ojs_throttle::store::Store;
use ojs_throttle::store::guard::{Guard, OnStoreError};

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sidecar::simulated::Served;

const CONFIG: &str = "[hold]\nmax = 64\n[[policy]]\nname = \"tenants\"\nmatch = { queue = \"crm\" }\n\
    key = \"{meta.tenant_id}\"\nconcurrency = 1\n[[queue]]\nname = \"crm\"\nsubqueues = true\n";

/// A backend and a sidecar, which may be started again over its store.
struct Pair {
    net: Net,
    store: Arc<MemoryStore>,
    behind: Served,
    sidecar: Sidecar,
}

impl Pair {
    async fn start() -> Pair {
        Pair::with(CONFIG).await
    }

    async fn with(config: &str) -> Pair {
        let net = Net::Sim(sim::Network::default());
        let store = Arc::new(MemoryStore::new(NOON));
        let behind = backend(&net, Lax::redis()).await;
        let sidecar = Start::before(&net, &behind.base(), config).store(Arc::clone(&store));
        let sidecar = sidecar.start().await;
        Pair {
            net,
            store,
            behind,
            sidecar,
        }
    }

    async fn restart(&mut self) {
        let next = Start::before(&self.net, &self.behind.base(), CONFIG).seed(8);
        let next = next.store(Arc::clone(&self.store)).start().await;
        std::mem::replace(&mut self.sidecar, next).stop().await;
    }

    async fn enqueue(&self, tenant: &str) -> String {
        let job = json!({"type": "call", "args": [], "meta": {"tenant_id": tenant},
            "options": {"queue": "crm", "visibility_timeout_ms": 3_600_000}});
        self.sidecar.client().enqueue(job).await
    }

    /// So many jobs of a tenant.
    async fn fill(&self, tenant: &str, jobs: usize) {
        for _ in 0..jobs {
            self.enqueue(tenant).await;
        }
    }

    /// So many polls one after the other; how many jobs they brought.
    async fn poll(&self, times: usize) -> usize {
        let mut got = 0;
        for _ in 0..times {
            let asked = json!({"queues": ["crm"], "count": 1, "worker_id": "w",
                "visibility_timeout_ms": 3_600_000});
            got += self.sidecar.client().fetch_as(asked).await.len();
            sleep(Duration::from_millis(300)).await;
        }
        got
    }

    async fn admin(&self, path: &str) -> Value {
        let reply = self.sidecar.admin().get(path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    async fn why(&self, question: &str) -> Value {
        self.sidecar.admin().why(question).await
    }

    /// What the command lists of the one queue.
    async fn listed(&self, query: &str) -> Value {
        let path = format!("/throttle/v1/subqueues{query}");
        self.admin(&path).await["queues"][0].clone()
    }

    /// How many jobs the backend has available under a name.
    async fn available(&self, name: &str) -> u64 {
        let direct = Client::new(&self.net, self.behind.addr);
        let stats = direct.get(&format!("/ojs/v1/queues/{name}/stats")).await;
        stats.json()["queue"]["available"].as_u64().unwrap_or(0)
    }

    /// The rows say what the backend has, and none is missing.
    async fn assert_true(&self, listed: &Value) {
        let rows = listed["rows"].as_array().unwrap();
        let row = |name: &str| rows.iter().find(|row| row["name"] == name);
        let mut sum = 0;
        for number in 0..COUNT {
            let name = Subqueue(number).name_in("crm");
            let available = self.available(&name).await;
            let waiting = row(&name).map_or(0, |row| row["waiting"].as_u64().unwrap());
            assert_eq!(waiting, available, "{name}: {listed}");
            sum += available;
        }
        assert_eq!(listed["waiting"], sum, "{listed}");
        assert_eq!(listed["spread"]["with_jobs"], rows.len(), "{listed}");
    }

    async fn metric(&self, name: &str) -> Option<f64> {
        self.sidecar.admin().metric(name).await
    }
}

fn place(tenant: &str) -> Subqueue {
    Spread::default().flow(tenant, None).subqueue
}

/// Another tenant of the same subqueue.
fn beside(tenant: &str) -> String {
    let mut names = (0..).map(|nth| format!("n{nth}"));
    names.find(|name| place(name) == place(tenant)).unwrap()
}

fn says(answer: &Value, words: &str) {
    let why = answer["why"].as_str().unwrap();
    assert!(why.contains(words), "{words}: {answer}");
}

/// Names with jobs, how many, whether they are shared, what is out of reach and which keys are shut in front.
#[tokio::test(start_paused = true)]
async fn what_lies_where_is_as_the_backend_has_it() {
    let pair = Pair::start().await;
    for tenant in ["evil", "alone"] {
        pair.enqueue(tenant).await;
    }
    assert_eq!(pair.poll(9).await, 2);
    pair.fill("evil", 41).await;
    pair.fill("alone", 9).await;
    pair.poll(9).await;
    let other = pair.enqueue(&beside("evil")).await;
    assert_eq!(pair.poll(6).await, 0);

    let listed = pair.listed("").await;
    pair.assert_true(&listed).await;
    let [evil, alone] = ["evil", "alone"].map(|tenant| place(tenant).name_in("crm"));
    let rows = listed["rows"].as_array().unwrap();
    // The worst stands first.
    assert_eq!(
        [&rows[0]["name"], &rows[1]["name"]],
        [&evil, &alone],
        "{listed}"
    );
    let of_evil = json!([true, true, ["evil"]]);
    let of_alone = json!([false, false, ["alone"]]);
    for (row, wanted) in [(&rows[0], of_evil), (&rows[1], of_alone)] {
        let told = json!([row["shared"], row["out_of_reach"], row["shut"]]);
        assert_eq!(told, wanted, "{row}");
        assert!(row["told_s"].as_u64() <= Some(2), "{row}");
        assert!(row["held"].as_u64() >= Some(1), "{row}");
    }
    let sums = ["shared", "out_of_reach"].map(|name| listed["spread"][name].as_u64());
    assert_eq!(sums, [Some(1), Some(1)], "{listed}");

    let answer = pair.why("queue=crm").await;
    let spread = json!({"with_jobs": 2, "shared": 1, "out_of_reach": 1, "unclaimed": 0});
    assert_eq!(answer["queue"]["subqueues"], spread, "{answer}");
    let state = pair.admin("/throttle/v1/state").await;
    let cause = &state["queues"]["rows"][0]["cause"];
    assert_eq!(cause["name"], "out of reach", "{state}");
    assert!(cause["do"].as_str().unwrap().contains("per_key"), "{cause}");
    assert!(!cause.to_string().contains("evil"), "{cause}");
    for (name, wanted) in [("shared", 1.0), ("out_of_reach", 1.0)] {
        let series = format!("ojs_throttle_subqueues_{name}");
        assert_eq!(pair.metric(&series).await, Some(wanted), "{series}");
    }

    // Of the other one a job, and one as it would be, are told the same, and not whose jobs are in front.
    let tenant = beside("evil");
    for question in [
        format!("job={other}"),
        format!("type=call&queue=crm&meta.tenant_id={tenant}"),
    ] {
        let answer = pair.why(&question).await;
        says(&answer, "with jobs of other keys, which have no room");
        says(&answer, "and up to 32 are looked past");
        assert!(!answer.to_string().contains("evil"), "{question}: {answer}");
    }
}

/// What nobody here was told of is said to be unknown.
#[tokio::test(start_paused = true)]
async fn after_a_restart_nothing_is_made_up() {
    let mut pair = Pair::start().await;
    pair.enqueue("evil").await;
    assert_eq!(pair.poll(5).await, 1);
    pair.fill("evil", 42).await;
    let other = pair.enqueue(&beside("evil")).await;
    pair.restart().await;
    let answer = pair.why("queue=crm").await;
    assert!(!answer.to_string().contains("has no job"), "{answer}");
    let answer = pair.why(&format!("job={other}")).await;
    says(&answer, "no job of its key is held here");
    let listed = pair.listed("?all=true").await;
    pair.assert_true(&listed).await;
    let row = &listed["rows"][0];
    assert_eq!(listed["untold"], 0, "{listed}");
    let told = json!([row["shared"], row["out_of_reach"], row["shut"]]);
    assert_eq!(told, json!([null, false, []]), "{listed}");

    assert_eq!(pair.poll(9).await, 0);
    let listed = pair.listed("").await;
    pair.assert_true(&listed).await;
    let row = &listed["rows"][0];
    let told = json!([row["shared"], row["out_of_reach"], row["shut"]]);
    assert_eq!(told, json!([null, true, ["evil"]]), "{listed}");
    let answer = pair.why(&format!("job={other}")).await;
    let waiting = pair.available(&place("evil").name_in("crm")).await;
    let words = format!("{waiting} jobs wait there, and up to 32 are looked past");
    says(&answer, &words);
    assert!(!answer.to_string().contains("evil"), "{answer}");
}

/// The statistics of a queue without a bound count what lies in names of which the backend was not asked yet.
#[tokio::test(start_paused = true)]
async fn after_a_restart_statistics_find_what_lies_in_subqueues() {
    let mut pair = Pair::start().await;
    for nth in 0..40 {
        pair.enqueue(&format!("t{nth}")).await;
    }
    pair.restart().await;
    let mut told = Value::Null;
    for _ in 0..9 {
        sleep(Duration::from_secs(1)).await;
        let stats = pair.sidecar.client().get("/ojs/v1/queues/crm/stats").await;
        told = stats.json()["queue"]["available"].clone();
    }
    assert_eq!(told, 40);
}

/// The store is away at the start, and does not know that jobs lie in subqueues of which the file says nothing any more.
#[tokio::test(start_paused = true)]
async fn jobs_in_subqueues_are_found_once_the_store_is_there() {
    let pair = Pair::start().await;
    pair.enqueue("acme").await;
    let Pair {
        net,
        behind,
        sidecar,
        ..
    } = pair;
    sidecar.stop().await;
    let (lines, _logged) = Lines::listen();
    let faulty = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    faulty.standing(Some(Fault::gone()));
    let guard = Guard::new(faulty.clone(), OnStoreError::Share);
    let config = CONFIG.replace("[[queue]]\nname = \"crm\"\nsubqueues = true\n", "");
    let start = Start::before(&net, &behind.base(), &config).seed(8);
    let sidecar = start.store(Store::shared(Arc::new(guard))).start().await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(lines.with("id=subqueues_found"), [""; 0]);
    assert_eq!(lines.with("id=subqueues_unmarked").len(), 1);
    faulty.standing(None);
    sleep(Duration::from_secs(60)).await;
    assert_eq!(lines.with("id=subqueues_found").len(), 1);
    assert_eq!(sidecar.client().fetch("crm", 1).await.len(), 1);
}

/// A job within reach is not told to wait until fewer stand there.
#[tokio::test(start_paused = true)]
async fn within_reach_a_job_is_told_that_a_worker_gets_it() {
    let pair = Pair::start().await;
    pair.enqueue("evil").await;
    assert_eq!(pair.poll(5).await, 1);
    pair.fill("evil", 5).await;
    pair.poll(5).await;
    let tenant = beside("evil");
    let other = pair.enqueue(&tenant).await;
    let answer = pair.why(&format!("job={other}")).await;
    says(&answer, "jobs wait there, and all of them are looked past");
    let todo = answer["do"].as_str().unwrap();
    assert!(!todo.contains("fewer"), "{answer}");
    let listed = pair.listed("").await;
    pair.assert_true(&listed).await;
    let sums = ["shared", "out_of_reach"].map(|name| &listed["spread"][name]);
    assert_eq!(sums, [1, 0]);
    let series = "ojs_throttle_subqueues_out_of_reach";
    assert_eq!(pair.metric(series).await, Some(0.0));
    assert_eq!(pair.poll(2).await, 1, "it is looked past them");
    // Its own key is shut now too: that is said beside, and held jobs of the other key stay unnamed.
    let last = pair.enqueue(&tenant).await;
    pair.fill("evil", 50).await;
    let behind = pair.enqueue(&tenant).await;
    let answer = pair.why(&format!("job={behind}")).await;
    let both = format!("{} {}", answer["why"], answer["notes"]);
    assert!(both.contains("1 of 1 slots of key"), "{answer}");
    pair.poll(9).await;
    let answer = pair.why(&format!("job={last}")).await;
    assert_eq!(answer["job"]["state"], "held");
    let answer = pair.why(&format!("job={behind}")).await;
    says(&answer, "behind the head of its key");
    assert!(!answer.to_string().contains("evil"), "{answer}");
}

/// One FETCH brings a job of each name that has some, wherever the name stands among all, and whether somebody asked
/// before the jobs came or not.
#[tokio::test(start_paused = true)]
async fn the_first_fetch_brings_the_heads_of_all_names() {
    const SALT: &str = "nobody-knows-this-salt";
    for (count, salt) in [
        (256, None),
        (512, None),
        (512, Some(SALT)),
        (1_024, Some(SALT)),
    ] {
        let mut says = format!("subqueues = {count}");
        if let Some(salt) = salt {
            says += &format!("\nsubqueues_salt = \"{salt}\"");
        }
        let pair = Pair::with(&CONFIG.replace("subqueues = true", &says)).await;
        let spread = Spread::new(count, salt);
        // A tenant for each eighth of the names.
        let tenants = |of: &str| {
            let part = |tenant: &String| spread.flow(tenant, None).subqueue.0 / (count / 8);
            let tenant = |nth| {
                let mut names = (0..).map(|nth| format!("{of}{nth}"));
                names.find(|tenant| part(tenant) == nth).unwrap()
            };
            (0..8).map(tenant).collect::<Vec<_>>()
        };
        for of in ["a", "b"] {
            for tenant in tenants(of) {
                pair.enqueue(&tenant).await;
            }
            let asked = json!({"queues": ["crm"], "count": 10, "worker_id": "w"});
            let got = pair.sidecar.client().fetch_as(asked).await.len();
            assert_eq!(got, 8, "{says}, {of}");
        }
    }
}

/// Of many names the worst are listed, and all where that is asked for.
#[tokio::test(start_paused = true)]
async fn the_list_is_bounded() {
    let pair = Pair::start().await;
    for nth in 0..100 {
        pair.enqueue(&format!("t{nth}")).await;
    }
    let listed = pair.listed("").await;
    let rows = |listed: &Value| listed["rows"].as_array().unwrap().len();
    assert_eq!(rows(&listed), 20);
    let names = listed["spread"]["with_jobs"].as_u64().unwrap() as usize;
    let all = pair.listed("?all=true").await;
    assert_eq!((rows(&all), all["untold"].clone()), (names, json!(0)));
    pair.assert_true(&all).await;
    let admin = pair.sidecar.admin();
    let wrong = admin.get("/throttle/v1/subqueues?al=1").await;
    assert_eq!(wrong.status, 400);
}
