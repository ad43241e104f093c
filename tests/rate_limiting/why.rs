//! `GET /throttle/v1/why` on the admin port: why nothing starts, who has the slots, and when the next start can be.

use ojs_throttle::policy::subqueue::Spread;

use super::prelude::*;
use crate::harness::lines::Lines;
use crate::sidecar::settings;

/// The eight causes for which jobs were seen not to start: what stages each, what is asked, and the words of the answer.
const CONFIG: &str = "
control_token = \"0123456789abcdef\"
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
rate = { limit = 100, period = \"1m\" }
[[policy]]
name = \"per-customer\"
match = { type = \"sync.*\" }
key = \"crm:{meta.tenant_id}\"
rate = { limit = 1, period = \"20s\" }
[[queue]]
name = \"slow\"
throttle = { limit = 1, period = \"20s\" }
";

async fn why(rig: &Rig, question: &str) -> Value {
    rig.admin.why(question).await
}

fn says(answer: &Value, member: &str, words: &str) {
    let text = answer[member].as_str().unwrap_or_default();
    assert!(text.contains(words), "{member}: {words}: {answer}");
}

async fn queued(rig: &Rig, queue: &str, jobs: usize) -> Vec<String> {
    let job = json!({"type": "charge", "args": [], "options": {"queue": queue}});
    rig.client.enqueue_all(jobs, &job).await
}

#[tokio::test(start_paused = true)]
async fn slots_that_are_full_are_shown_with_who_has_them() {
    let rig = Rig::with(CONFIG).await;
    let jobs = queued(&rig, "billing", 3).await;
    let out = rig.client.fetch("billing", 3).await;
    assert_eq!(out.len(), 2);
    for question in [
        "queue=billing".to_owned(),
        "key=stripe".to_owned(),
        format!("job={}", jobs[2]),
    ] {
        let answer = why(&rig, &question).await;
        says(&answer, "why", "2 of 2 slots of key \"stripe\" are taken");
        assert_eq!(answer["limited_by"], "concurrency", "{question}");
        assert_eq!(answer["limited_at"], "stripe");
        let limit = &answer["limits"][0];
        assert_eq!(limit["policy"], "stripe");
        assert_eq!(limit["state"]["concurrency"]["active"], 2);
        let slots = limit["slots"].as_array().unwrap();
        let with_w = slots.iter().filter(|slot| slot["worker"] == "w");
        let has: Vec<&Value> = with_w.map(|slot| &slot["job"]).collect();
        assert!(out.iter().all(|job| has.contains(&&job["id"])), "{answer}");
        // Too few jobs have ended for a forecast.
        assert!(answer["next_start"].is_null() && answer.get("next_start_p50").is_none());
        says(&answer, "next_start_unknown", "needs 20");
    }
    let shown = rig.inspect("stripe").await;
    assert_eq!(shown["limited_by"], "concurrency");
    assert!(shown["next_start"].is_null());
    let answer = why(&rig, &format!("job={}", jobs[0])).await;
    let words = "the job runs: worker \"w\" has it since 2026-02-13T12:00:00";
    says(&answer, "why", words);
    assert_eq!(answer["job"]["state"], "running");
}

#[tokio::test(start_paused = true)]
async fn of_many_slots_it_is_said_how_many_are_not_shown() {
    let wide = "[[policy]]\nname = \"wide\"\nmatch = { queue = \"wide\" }\nconcurrency = 150\n";
    let rig = Rig::with(wide).await;
    queued(&rig, "wide", 120).await;
    let mut out = 0;
    while out < 120 {
        out += rig.client.fetch("wide", 50).await.len();
    }
    let limit = why(&rig, "key=wide").await["limits"][0].take();
    assert_eq!(limit["slots"].as_array().unwrap().len(), 100);
    assert_eq!(limit["more_slots"], 20);
}

#[tokio::test(start_paused = true)]
async fn a_forecast_follows_the_last_run_times() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 30).await;
    for _ in 0..20 {
        let job = rig.client.fetch("billing", 1).await;
        sleep(Duration::from_secs(4)).await;
        assert_eq!(rig.client.ack(id(&job[0])).await.status, 200);
    }
    assert_eq!(rig.client.fetch("billing", 2).await.len(), 2);
    sleep(Duration::from_secs(1)).await;
    let answer = why(&rig, "key=stripe").await;
    let now = rig.after_noon();
    for member in ["next_start_p50", "next_start_p90"] {
        let at = answer[member].as_str().unwrap();
        let seconds: f64 = at[17..23].parse().unwrap();
        let minutes: f64 = at[14..16].parse().unwrap();
        let after = minutes * 60.0 + seconds - now;
        assert!((2.5..3.5).contains(&after), "{member}: {after}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_over_http_names_who_and_why() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 1).await;
    let pause = json!({"concurrency": 0, "reason": "incident 7", "by": "ana"});
    rig.client.limit("stripe", pause).await;
    assert!(rig.client.fetch("billing", 1).await.is_empty());
    let answer = why(&rig, "queue=billing").await;
    let words = "key \"stripe\" is paused: its concurrency is 0; set by hand by \"ana\" because \"incident 7\"";
    says(&answer, "why", words);
    says(&answer, "do", "`ojs-throttle resume stripe`");
}

/// To raise the limit in the file would change nothing.
#[tokio::test(start_paused = true)]
async fn an_override_that_binds_is_named_and_what_takes_it_away() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 3).await;
    let set = json!({"concurrency": 1, "reason": "incident 7", "by": "ana",
        "expires_at": "2026-02-13T13:00:00Z"});
    rig.client.limit("stripe", set).await;
    assert_eq!(rig.client.fetch("billing", 3).await.len(), 1);
    let answer = why(&rig, "queue=billing").await;
    let words = "1 of 1 slots of key \"stripe\" are taken; set by hand by \"ana\" because \"incident 7\" \
        until 2026-02-13T13:00:00";
    says(&answer, "why", words);
    // It may be looser than the file: to take it away is not what helps first.
    let todo = answer["do"].as_str().unwrap();
    // What ends for itself ends so again.
    let larger = todo.find("`ojs-throttle limit stripe --concurrency N --for 1h`");
    let away = todo.find("`ojs-throttle clear stripe --override`");
    assert!(larger.is_some() && larger < away, "{answer}");
    assert!(!todo.contains("in the file"), "{answer}");
    let set = json!({"concurrency": 1});
    rig.client.limit("stripe", set).await;
    let answer = why(&rig, "queue=billing").await;
    says(&answer, "do", "`ojs-throttle limit stripe --concurrency N`");
}

/// A larger number alone would take the burst away.
#[tokio::test(start_paused = true)]
async fn the_advice_for_a_throttle_keeps_its_burst() {
    let config = "[[policy]]\nname = \"p\"\nmatch = { queue = \"billing\" }\n\
        throttle = { limit = 100, period = \"1m\", burst = 3 }\n";
    let rig = Rig::with(config).await;
    queued(&rig, "billing", 9).await;
    assert_eq!(rig.client.fetch("billing", 9).await.len(), 3);
    let answer = why(&rig, "queue=billing").await;
    let advised = r#"`ojs-throttle limit p --override '{"throttle":{"burst":3,"limit":N,"period":"PT1M"}}' --for 1h`"#;
    says(&answer, "do", advised);
    // Nor what is set by hand beside it.
    rig.client.limit("p", json!({"concurrency": 9})).await;
    let answer = why(&rig, "queue=billing").await;
    let advised =
        r#"--override '{"concurrency":9,"throttle":{"burst":3,"limit":N,"period":"PT1M"}}'"#;
    says(&answer, "do", advised);
}

/// Which keys are in front, how many are held, and how many wait behind.
#[tokio::test(start_paused = true)]
async fn a_full_lookahead_names_the_keys_in_front() {
    let rig = Rig::with(TENANTS).await;
    for tenant in ["a", "a", "a", "b", "b", "a", "a", "free"] {
        of_tenant(&rig, "crm", tenant).await;
    }
    assert_eq!(rig.client.fetch("crm", 2).await.len(), 2);
    assert!(rig.client.fetch("crm", 1).await.is_empty());
    let answer = why(&rig, "queue=crm").await;
    let words = "the lookahead of queue \"crm\" is full: 3 jobs are held for ";
    says(&answer, "why", words);
    let words = "key \"a\" (2), key \"b\" (1), and 3 jobs wait behind them";
    says(&answer, "why", words);
    let words = "write subqueues = true into the [[queue]] of name = \"crm\"";
    says(&answer, "do", words);
    says(&answer, "do", "or write max = 100 into [hold]: a kill");
    assert!(answer["next_start"].is_null(), "{answer}");
    assert_eq!(full_lookaheads(&rig).await, Some(1.0));
}

/// How many queues have a full lookahead, by the page of metrics.
async fn full_lookaheads(rig: &Rig) -> Option<f64> {
    rig.metric("ojs_throttle_lookahead_full_queues").await
}

const TENANTS: &str = "[hold]\nmax = 4\n[[policy]]\nname = \"tenants\"\nmatch = { queue = \"crm\" }\n\
    key = \"{meta.tenant_id}\"\nconcurrency = 1\n";

/// Nobody who looks at the log alone misses why free jobs do not start, and no log is filled by it.
#[tokio::test(start_paused = true)]
async fn a_lookahead_that_fills_is_told_once_an_episode_with_what_to_paste() {
    let (log, _logged) = Lines::listen();
    let rig = Rig::with(TENANTS).await;
    of_tenant_all(&rig, 9, "crm", "a").await;
    let behind = of_tenant(&rig, "crm", "b").await;
    assert_eq!(rig.client.fetch("crm", 1).await.len(), 1);
    for _ in 0..3 {
        assert!(rig.client.fetch("crm", 1).await.is_empty());
        sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(log.with("lookahead_full").len(), 1);
    let answer = why(&rig, &format!("job={behind}")).await;
    says(&answer, "why", "the lookahead of queue \"crm\" is full");
    assert!(!answer.to_string().contains("may start now"), "{answer}");
    // The one that ran has lapsed by then.
    sleep(Duration::from_secs(70)).await;
    for _ in 0..3 {
        rig.client.fetch("crm", 1).await;
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!(log.with("lookahead_full").len(), 2);
    let lines = log.with("lookahead_full");
    let words =
        r#"WARN|queue="crm"|held=3|key \"a\" (3)|6 jobs wait|subqueues = true|[[queue]]|max = 100"#;
    for words in words.split('|') {
        assert!(lines[0].contains(words), "{words}: {}", lines[0]);
    }
}

/// Where tenants wait apart, a job behind others of its own tenant waits for those alone, and no lookahead is full.
#[tokio::test(start_paused = true)]
async fn in_a_subqueue_a_job_waits_behind_the_head_of_its_key() {
    let config = format!("{TENANTS}[[queue]]\nname = \"crm\"\nsubqueues = true\n");
    let rig = Rig::with(&config).await;
    let of_a = of_tenant_all(&rig, 9, "crm", "a").await;
    let unseen = why(&rig, &format!("job={}", of_a[8])).await;
    let words = "the job waits in a subqueue of queue \"crm\"";
    says(&unseen, "why", words);
    assert!(!unseen.to_string().contains("may start now"), "{unseen}");
    assert_eq!(unseen["job"]["queue"], "crm");
    let mut started = 0;
    for _ in 0..20 {
        started += rig.client.fetch("crm", 1).await.len();
    }
    assert_eq!(started, 1);
    let free = of_tenant(&rig, "crm", "b").await;
    let came = rig.client.fetch("crm", 1).await;
    assert_eq!(came[0]["id"], *free);
    let answer = why(&rig, &format!("job={}", of_a[8])).await;
    says(&answer, "why", "queue \"crm\", behind the head of its key");
    says(&answer, "why", "1 of 1 slots of key \"a\" are taken");
    let of_queue = why(&rig, "queue=crm").await;
    let state = rig.admin.state().await;
    assert_eq!(state["queues"]["rows"][0]["waiting"], 8, "{state}");
    for text in [&answer, &of_queue] {
        let text = text.to_string();
        for words in ["may start now", "lookahead", "ojst", "has no job"] {
            assert!(!text.contains(words), "{text}");
        }
    }
    assert_eq!(full_lookaheads(&rig).await, Some(0.0));
}

/// Where all jobs wait for the queue's own limit, none behind them could start.
#[tokio::test(start_paused = true)]
async fn a_full_hold_before_a_throttle_is_no_full_lookahead() {
    let config =
        "[hold]\nmax = 2\n[[queue]]\nname = \"mail\"\nthrottle = { limit = 10, period = \"1s\" }\n";
    let rig = Rig::with(config).await;
    queued(&rig, "mail", 20).await;
    assert_eq!(rig.client.fetch("mail", 5).await.len(), 1);
    // A FETCH that goes with a job may leave none held for the next one.
    let mut answer = why(&rig, "queue=mail").await;
    for _ in 0..5 {
        if answer["queue"]["held_here"].as_u64() > Some(0) {
            break;
        }
        assert_eq!(rig.client.fetch("mail", 1).await.len(), 1);
        answer = why(&rig, "queue=mail").await;
    }
    assert!(answer["queue"]["held_here"].as_u64() > Some(0), "{answer}");
    says(&answer, "why", "queue \"mail\" spaces its starts");
    assert_eq!(full_lookaheads(&rig).await, Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn a_shut_key_says_until_when() {
    let rig = Rig::with(CONFIG).await;
    let shut = json!({"at": "2026-02-13T12:01:00Z"});
    let admin = rig.admin.clone().controlling("0123456789abcdef");
    admin.set("/throttle/v1/keys/stripe/next-start", shut).await;
    let answer = why(&rig, "key=stripe").await;
    assert_eq!(answer["limited_by"], "shut");
    says(&answer, "why", "is shut until 2026-02-13T12:01:00");
    says(&answer, "do", "`ojs-throttle clear stripe --next-start`");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_would_come_is_asked_about_by_type_and_meta() {
    let rig = Rig::with(CONFIG).await;
    let job = json!({"type": "sync.a", "args": [], "meta": {"tenant_id": "acme corp"}});
    rig.client.enqueue(job.clone()).await;
    let second = rig.client.enqueue(job).await;
    assert_eq!(rig.client.fetch("default", 1).await.len(), 1);
    assert!(rig.client.fetch("default", 1).await.is_empty());
    let like = why(&rig, "type=sync.a&meta.tenant_id=acme%20corp").await;
    let held = why(&rig, &format!("job={second}")).await;
    assert_eq!(held["job"]["state"], "held");
    assert_eq!(held["ahead"], 0);
    for answer in [like, held] {
        assert_eq!(answer["limited_by"], "rate");
        assert_eq!(answer["limited_at"], "crm:acmex_20corp");
        assert_eq!(answer["limits"][0]["policy"], "per-customer");
    }
    let queue = why(&rig, "queue=default").await;
    let keys = &queue["queue"]["keys_by_job"][0];
    assert_eq!(keys, "per-customer: crm:{meta.tenant_id}");
    assert_eq!(queue["queue"]["held_here"], 1);
}

/// Under a throttle alone each start of a first job comes when the answer says.
#[tokio::test(start_paused = true)]
async fn a_throttle_starts_when_it_is_said_to() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "slow", 6).await;
    assert_eq!(rig.client.fetch("slow", 1).await.len(), 1);
    for _ in 0..5 {
        let answer = why(&rig, "queue=slow").await;
        assert_eq!(answer["limited_by"], "throttle");
        let at = answer["next_start"].as_str().unwrap();
        let said = at[14..16].parse::<f64>().unwrap() * 60.0 + at[17..23].parse::<f64>().unwrap();
        while rig.client.fetch("slow", 1).await.is_empty() {
            sleep(Duration::from_millis(5)).await;
        }
        let started = rig.after_noon();
        let off = (started - said).abs();
        assert!(off <= 0.05, "said {said}, started {started}");
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_of_other_credentials_are_told_of() {
    let rig = Rig::with(CONFIG).await;
    let limited = json!({"key": "k", "concurrency": 1});
    let job = json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": limited}});
    rig.client.enqueue_all(3, &job).await;
    let other = rig.client.with("authorization", "Bearer a");
    assert_eq!(other.fetch("q", 3).await.len(), 1);
    sleep(Duration::from_secs(11)).await;
    let answer = why(&rig, "queue=q").await;
    let notes = answer["notes"].to_string();
    let words = "held for credentials with which no worker has asked";
    assert!(notes.contains(words), "{answer}");
}

/// Held jobs whose policy has left the file, and whose worker sent no credentials, wait for any worker.
#[tokio::test(start_paused = true)]
async fn held_jobs_without_credentials_wait_for_any_worker() {
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::redis()).await;
    let patient = "[hold]\nidle = \"1h\"\n";
    let file = [CONFIG, patient].concat();
    let sidecar = Start::before(&net, &behind.base(), &file).start().await;
    let (client, admin) = (sidecar.client(), sidecar.admin());
    let job = json!({"type": "sync.all", "args": [], "meta": {"tenant_id": "a"}});
    client.enqueue_all(3, &job).await;
    assert_eq!(client.fetch("default", 3).await.len(), 1);
    sidecar.reload.apply(settings(&behind.base(), patient));
    let asked = async |held: usize| {
        let answer = admin.why("queue=default").await;
        let state = admin.state().await;
        assert_eq!(answer["queue"]["held_here"], held, "{answer}");
        let row = state["queues"]["rows"][0]["cause"]["name"].clone();
        let notes = answer["notes"].to_string();
        assert!(!notes.contains("credentials"), "{answer}");
        [answer["cause"].clone(), row]
    };
    sleep(Duration::from_secs(12)).await;
    assert_eq!(asked(2).await, ["nobody asks", "nobody asks"]);
    assert_eq!(client.fetch("default", 1).await.len(), 1);
    // The state may be a second old.
    sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(1).await, [json!("no limit"), Value::Null]);
}

#[tokio::test(start_paused = true)]
async fn a_paused_queue_and_a_backend_that_is_away_are_told_of() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 1).await;
    let pause = rig.client.post("/ojs/v1/queues/billing/pause", "").await;
    assert_eq!(pause.status, 200, "{}", pause.text());
    let answer = why(&rig, "queue=billing").await;
    says(&answer, "why", "queue \"billing\" is paused");
    says(&answer, "do", "resume the queue");
    rig.behind.stop().await;
    for _ in 0..3 {
        let _no_answer = rig.client.get("/ojs/v1/queues").await;
        sleep(Duration::from_secs(1)).await;
    }
    let answer = rig.admin.why("key=stripe").await;
    says(&answer, "why", "the backend does not answer");
    assert!(answer["next_start"].is_null(), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn it_changes_nothing_and_claims_nothing() {
    let rig = Rig::with(CONFIG).await;
    let jobs = queued(&rig, "billing", 1).await;
    let before = rig.behind.backend.ledger().len();
    for question in [
        "queue=billing",
        "key=stripe",
        &format!("job={}", jobs[0]),
        "type=charge&queue=billing",
    ] {
        let answer = why(&rig, question).await;
        assert!(answer["limited_by"].is_null(), "{question}: {answer}");
    }
    assert_eq!(rig.behind.backend.ledger().len(), before);
    let job = why(&rig, &format!("job={}", jobs[0])).await;
    let words = "waits at the backend, or another sidecar holds it";
    says(&job, "why", words);
    assert_eq!(rig.client.fetch("billing", 1).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_understood_is_refused_with_a_hint() {
    let rig = Rig::with(CONFIG).await;
    for (path, status, words) in [
        ("/throttle/v1/why", 400, "?queue=NAME"),
        ("/throttle/v1/why?queue=a&key=b", 400, "one of"),
        ("/throttle/v1/why?color=red", 400, "color"),
        ("/throttle/v1/why?queue=", 400, "is empty"),
        ("/throttle/v1/why?meta.a=b", 400, "goes with type"),
        ("/throttle/v1/why?key=nobody", 404, "nobody"),
        ("/throttle/v1/why?key=_queue:slow", 200, "no jobs"),
        ("/throttle/v1/why?job=nobody", 404, "no job"),
    ] {
        let reply = rig.admin.get(path).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text());
        assert!(reply.text().contains(words), "{path}: {}", reply.text());
    }
    let posted = rig.admin.post("/throttle/v1/why?queue=a", "").await;
    assert_eq!(posted.status, 405);
    // A web page on this machine must not read it under a name of its own.
    let page = rig.admin.with("host", "evil.example");
    let asked = page.get("/throttle/v1/why?queue=a").await;
    assert_eq!(asked.status, 403);
    let known = page.with("authorization", "Bearer 0123456789abcdef");
    known.why("queue=a").await;
}

/// Jobs cost 40 of 100, and tenants take turns.
const PRICED: &str = "
control_token = \"0123456789abcdef\"
[[policy]]
name = \"model\"
match = { queue = \"llm\" }
rate = { limit = 100, period = \"1m\" }
cost = 40
fair = { by = \"{meta.tenant_id}\", weights = { acme = 3 } }
[[queue]]
name = \"gb\"
concurrency = 10
cost = 4
fair = { by = \"{meta.tenant_id}\" }
";

async fn of_tenant(rig: &Rig, queue: &str, tenant: &str) -> String {
    of_tenant_all(rig, 1, queue, tenant).await.remove(0)
}

/// So many jobs of a tenant.
async fn of_tenant_all(rig: &Rig, jobs: usize, queue: &str, tenant: &str) -> Vec<String> {
    let (meta, options) = (json!({"tenant_id": tenant}), json!({"queue": queue}));
    let job = json!({"type": "call", "args": [], "meta": meta, "options": options});
    rig.client.enqueue_all(jobs, &job).await
}

/// A tenant whose subqueue is full of another one's jobs is told so, and not whose they are.
#[tokio::test(start_paused = true)]
async fn behind_jobs_of_other_keys_a_job_is_told_how_many_wait() {
    let config = format!("{TENANTS}[[queue]]\nname = \"crm\"\nsubqueues = true\n");
    let rig = Rig::with(&config).await;
    let place = |tenant: &str| Spread::default().flow(tenant, None).subqueue;
    let mut names = (0..).map(|nth| format!("n{nth}"));
    let other = names.find(|name| place(name) == place("evil")).unwrap();
    of_tenant_all(&rig, 42, "crm", "evil").await;
    for _ in 0..9 {
        rig.client.fetch("crm", 1).await;
    }
    let behind = of_tenant(&rig, "crm", &other).await;
    rig.client.fetch("crm", 1).await;
    let answer = why(&rig, &format!("job={behind}")).await;
    for words in [
        "with jobs of other keys, which have no room",
        "41 jobs wait there, and up to 32 are looked past",
    ] {
        says(&answer, "why", words);
    }
    assert!(!answer.to_string().contains("evil"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_its_cost_is_told_so_and_others_that_it_is_first() {
    let rig = Rig::with(PRICED).await;
    of_tenant_all(&rig, 2, "llm", "bolt").await;
    assert_eq!(rig.client.fetch("llm", 2).await.len(), 2);
    let waits = of_tenant(&rig, "llm", "acme").await;
    assert!(rig.client.fetch("llm", 1).await.is_empty());
    let answer = why(&rig, &format!("job={waits}")).await;
    let words = "80 of 100 of key \"model\" are used, and the job costs 40: there is room at 2026-02-13T12:01:00";
    says(&answer, "why", words);
    let limit = &answer["limits"][0];
    let told = (&limit["cost"], &limit["group"], &limit["weight"]);
    assert_eq!(told, (&json!(40), &json!("acme"), &json!(3)));
    assert_eq!(answer["limited_by"], "rate");
    assert_eq!(answer["ahead"], 0);
    // For everybody else the key is behind this job.
    for question in [
        "queue=llm",
        "key=model",
        "type=call&queue=llm&meta.tenant_id=bolt",
    ] {
        let answer = why(&rig, question).await;
        let words = "another job is first in line of key \"model\", because its cost";
        says(&answer, "why", words);
        assert_eq!(answer["limited_by"], "line", "{question}");
        let limit = &answer["limits"][0];
        let held = json!([{"group": "acme", "weight": 3, "held": 1}]);
        assert_eq!(limit["groups"], held, "{question}");
        assert_eq!(limit.get("cost"), None, "{question}");
        assert_eq!(limit["slots"][0]["cost"], 40);
    }
    assert_eq!(rig.inspect("model").await["unit"], "cost");
    assert_eq!(rig.inspect("model").await["rate"]["current_count"], 80);
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_turns_are_shared_is_shown_as_any_other() {
    let rig = Rig::with(PRICED).await;
    let answer = why(&rig, "queue=gb").await;
    assert_eq!(answer["limits"][0]["state"]["unit"], "cost", "{answer}");
    for tenant in ["b", "b", "a", "b"] {
        of_tenant(&rig, "gb", tenant).await;
    }
    // Each of two groups gets one.
    assert_eq!(rig.client.fetch("gb", 4).await.len(), 2);
    let answer = why(&rig, "queue=gb").await;
    let slots = json!({"limit": 10, "active": 8, "available": 2});
    assert_eq!(answer["limits"][0]["state"]["concurrency"], slots);
    let path = "/ojs/v1/admin/queues/gb/rate-limit";
    assert_eq!(rig.client.get(path).await.json()["unit"], "cost");
}

/// A policy of one key for a type of jobs that has a queue of its own: those behind are likely to wait for the same.
#[tokio::test(start_paused = true)]
async fn where_all_jobs_have_one_key_the_lookahead_is_not_why_they_wait() {
    let (log, _logged) = Lines::listen();
    let config = "[hold]\nmax = 4\n[[policy]]\nname = \"calls\"\nmatch = { type = \"call\" }\nconcurrency = 1\n";
    let rig = Rig::with(config).await;
    of_tenant_all(&rig, 9, "crm", "a").await;
    assert_eq!(rig.client.fetch("crm", 1).await.len(), 1);
    for _ in 0..3 {
        assert!(rig.client.fetch("crm", 1).await.is_empty());
        sleep(Duration::from_secs(1)).await;
    }
    let answer = why(&rig, "queue=crm").await;
    says(&answer, "why", "1 of 1 slots of key \"calls\" are taken");
    assert!(!answer.to_string().contains("lookahead"), "{answer}");
    assert_eq!(full_lookaheads(&rig).await, Some(0.0));
    assert!(log.with("lookahead_full").is_empty());
    let state = rig.admin.state().await;
    assert!(state["queues"]["rows"][0]["cause"].is_null(), "{state}");
    // Who asks about a job of another type knows of one.
    let other = why(&rig, "type=mail&queue=crm").await;
    says(&other, "why", "the lookahead of queue \"crm\" is full");
    let same = why(&rig, "type=call&queue=crm").await;
    says(&same, "why", "1 of 1 slots of key \"calls\" are taken");
    assert!(!same.to_string().contains("lookahead"), "{same}");
}

/// Once another job was seen in the queue, others may be behind.
#[tokio::test(start_paused = true)]
async fn where_another_job_was_seen_the_lookahead_may_hide_more() {
    let config = "[hold]\nmax = 4\n[[policy]]\nname = \"calls\"\nmatch = { type = \"call\" }\nconcurrency = 1\n";
    let rig = Rig::with(config).await;
    let other = json!({"type": "mail", "args": [], "options": {"queue": "crm"}});
    rig.client.enqueue(other.clone()).await;
    of_tenant_all(&rig, 9, "crm", "a").await;
    rig.client.enqueue(other).await;
    assert_eq!(rig.client.fetch("crm", 2).await.len(), 2);
    assert!(rig.client.fetch("crm", 1).await.is_empty());
    let answer = why(&rig, "queue=crm").await;
    says(&answer, "why", "the lookahead of queue \"crm\" is full");
    says(&answer, "do", "give key \"calls\" a queue of its own");
    assert_eq!(full_lookaheads(&rig).await, Some(1.0));
}

/// A job that would come now stands behind all that fills the lookahead.
#[tokio::test(start_paused = true)]
async fn a_job_that_would_come_is_behind_a_full_lookahead() {
    for subqueues in ["", "[[queue]]\nname = \"crm\"\nsubqueues = true\n"] {
        let rig = Rig::with(&format!("{TENANTS}{subqueues}")).await;
        of_tenant_all(&rig, 9, "crm", "ann").await;
        assert_eq!(rig.client.fetch("crm", 1).await.len(), 1);
        assert!(rig.client.fetch("crm", 1).await.is_empty());
        let question = "type=call&queue=crm&meta.tenant_id=ben";
        let answer = why(&rig, question).await;
        match subqueues {
            "" => {
                says(&answer, "why", "the lookahead of queue \"crm\" is full");
                assert!(!answer.to_string().contains("may start now"), "{answer}");
                assert!(answer["next_start"].is_null(), "{answer}");
            }
            _ => says(&answer, "why", "the next job may start now"),
        }
        assert!(answer["job"].is_null(), "{answer}");
    }
}

/// A worker of one job at a time waits until it has one, so none of its FETCHes ends empty.
#[tokio::test(start_paused = true)]
async fn a_lookahead_that_fills_is_told_also_where_each_fetch_gets_its_job() {
    let (log, _logged) = Lines::listen();
    let rig = Rig::with(TENANTS).await;
    of_tenant_all(&rig, 12, "crm", "ann").await;
    of_tenant(&rig, "crm", "ben").await;
    let mut out = rig.client.fetch("crm", 1).await;
    for _ in 0..5 {
        let (client, job) = (rig.client.clone(), id(&out[0]).to_owned());
        let ends = tokio::spawn(async move {
            sleep(Duration::from_millis(400)).await;
            client.ack(&job).await;
        });
        out = rig.client.fetch("crm", 1).await;
        assert_eq!(out.len(), 1);
        ends.await.unwrap();
    }
    assert_eq!(log.with("lookahead_full").len(), 1);
}

/// Workers that send heartbeats and never end.
#[tokio::test(start_paused = true)]
async fn workers_that_may_hang_are_named_once_run_times_say_so() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 30).await;
    for _ in 0..19 {
        let job = rig.client.fetch("billing", 1).await;
        sleep(Duration::from_millis(200)).await;
        rig.client.ack(id(&job[0])).await;
    }
    sleep(Duration::from_secs(60)).await;
    let as_worker = |name: &str| json!({"queues": ["billing"], "worker_id": name, "visibility_timeout_ms": 600_000});
    let one = rig.client.fetch_as(as_worker("w1")).await;
    let last = rig.client.fetch("billing", 1).await;
    sleep(Duration::from_secs(20)).await;
    let early = why(&rig, "queue=billing").await;
    let hangs = early.to_string().contains("may hang");
    assert!(!hangs, "19 are too few: {early}");
    rig.client.ack(id(&last[0])).await;
    let two = rig.client.fetch_as(as_worker("w0")).await;
    assert_eq!((one.len(), two.len()), (1, 1));
    sleep(Duration::from_secs(50)).await;
    let words = "1 run since 70.0 s, usual is 0.2 s: \"w1\" may hang";
    says(&why(&rig, "key=stripe").await, "why", words);
    sleep(Duration::from_secs(49)).await;
    for question in ["queue=billing", "key=stripe"] {
        let answer = why(&rig, question).await;
        let words = "2 run since 99.0 s, usual is 0.2 s: \"w0\" and \"w1\" may hang, with slots of key \"stripe\"";
        says(&answer, "why", words);
        says(&answer, "do", "look at \"w0\" and \"w1\"");
        assert_eq!(answer["cause"], "may hang");
        assert_eq!(answer["limited_by"], "concurrency");
        says(&answer, "next_start_unknown", "\"w0\" and \"w1\" may hang");
        assert!(answer.get("next_start_p50").is_none(), "{answer}");
    }
    let state = rig.admin.get("/throttle/v1/state?search=stripe").await;
    let state = state.json();
    let cause = &state["keys"]["rows"][0]["cause"];
    says(cause, "why", "\"w0\" and \"w1\" may hang");
    // One ends: the other one does not keep the slots of the next.
    let done = json!({"job_id": id(&two[0]), "worker_id": "w0"}).to_string();
    rig.client.post("/ojs/v1/workers/ack", done).await;
    assert_eq!(rig.client.fetch("billing", 1).await.len(), 1);
}
