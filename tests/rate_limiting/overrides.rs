//! Overrides of a key (9, 10.2): what they change, when, for how long, and who may set them.

use tokio::time::timeout;

use super::prelude::*;
use crate::harness::assert_within;
use crate::harness::lines::Lines;
use crate::sidecar::settings;

/// The store's clock begins here.
const BEGAN: i64 = 1_770_000_000;

/// A time `seconds` after the beginning, as JSON has it.
pub fn at(seconds: i64) -> String {
    jiff::Timestamp::from_second(BEGAN + seconds)
        .unwrap()
        .to_string()
}

async fn enqueue(client: &Client, n: usize, rate_limit: Value) -> Vec<String> {
    let options = json!({"queue": "q", "rate_limit": rate_limit});
    let job = json!({"type": "t", "args": [], "options": options});
    client.enqueue_all(n, &job).await
}

/// What is set for a policy goes by its name.
#[tokio::test(start_paused = true)]
async fn a_pause_of_a_policy_that_is_renamed_is_told_of() {
    let (lines, _logged) = Lines::listen();
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::spec()).await;
    let named = |name: &str| {
        let policy = format!("[[policy]]\nname = \"{name}\"\nkey = \"k\"\nconcurrency = 5\n");
        format!("control_token = \"s3cret\"\n{policy}")
    };
    let start = Start::before(&net, &behind.base(), &named("old"));
    let sidecar = start.start().await;
    let admin = sidecar.admin().controlling("s3cret");
    let path = "/throttle/v1/keys/_policy:old/override";
    admin.set(path, json!({"concurrency": 0})).await;
    sleep(Duration::from_secs(5)).await;
    let told = || lines.with("overrides_bind_nothing");
    assert!(told().is_empty(), "{:?}", told());
    for name in ["new", "newer"] {
        let next = settings(&behind.base(), &named(name));
        assert_eq!(sidecar.reload.apply(next).word(), "applied");
        sleep(Duration::from_secs(5)).await;
        assert_eq!(told().len(), 1, "{:?}", told());
    }
    assert!(told()[0].contains("keys=_policy:old "), "{:?}", told());
    assert!(told()[0].contains("clear _policy:old"), "{:?}", told());
}

/// Whoever paused a key must hear that its jobs start, whatever took the key out of the file.
#[tokio::test(start_paused = true)]
async fn a_pause_of_a_key_that_nothing_gives_any_more_is_told_of() {
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 5\n";
    let ignores = "[job_policies]\naccept = \"ignore\"\n";
    let own = json!({"key": "p", "concurrency": 5});
    for (before, after, own) in [
        (policy, policy.replace("\"p\"", "\"new\""), Value::Null),
        (policy, format!("{policy}key = \"other\"\n"), Value::Null),
        (policy, format!("{policy}mode = \"shadow\"\n"), Value::Null),
        (policy, String::new(), Value::Null),
        ("", ignores.to_owned(), own),
    ] {
        let (lines, _logged) = Lines::listen();
        let told = || lines.with("overrides_bind_nothing");
        let net = Net::Sim(sim::Network::default());
        let behind = backend(&net, Lax::spec()).await;
        let store = Arc::new(MemoryStore::new(NOON));
        let start = |file: &str| {
            let file = format!("control_token = \"s3cret\"\n{file}");
            Start::before(&net, &behind.base(), &file).store(store.clone())
        };
        let sidecar = start(before).start().await;
        let (client, admin) = (sidecar.client(), sidecar.admin());
        let paused = async || admin.metric("ojs_throttle_paused_keys").await.unwrap();
        let apply = async |file: &str| {
            let file = format!("control_token = \"s3cret\"\n{file}");
            let next = settings(&behind.base(), &file);
            assert_eq!(sidecar.reload.apply(next).word(), "applied");
            sleep(Duration::from_secs(3)).await;
        };
        let why = async || admin.get("/throttle/v1/why?key=p").await.json();
        enqueue(&client, 3, own).await;
        assert_eq!(client.fetch("q", 1).await.len(), 1);
        let path = "/throttle/v1/keys/p/override";
        let set = json!({"concurrency": 0, "reason": "INC-42"});
        admin.clone().controlling("s3cret").set(path, set).await;
        assert!(client.fetch("q", 1).await.is_empty(), "{after}");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(paused().await, 1.0, "{after}");
        assert!(told().is_empty(), "{:?}", told());

        apply(&after).await;
        assert_eq!(client.fetch("q", 1).await.len(), 1, "{after}");
        assert_eq!(told().len(), 1, "{after}: {:?}", told());
        assert!(
            told()[0].contains("keys=p clear=\"`ojs-throttle clear p --override`\""),
            "{:?}",
            told()
        );
        assert_eq!(paused().await, 0.0, "{after}");
        let said = why().await;
        assert_eq!(said["cause"], "binds nothing", "{after}: {said}");
        assert!(said["why"].as_str().unwrap().contains("INC-42"), "{said}");
        sleep(Duration::from_secs(60)).await;
        assert_eq!(told().len(), 1, "it is told once of a file");

        apply(before).await;
        assert_eq!(told().len(), 1, "{:?}", told());
        assert_eq!(paused().await, 1.0, "{after}");
        assert_eq!(why().await["cause"], "paused", "{after}");
        sidecar.stop().await;
        let second = start(&after).start().await;
        sleep(Duration::from_secs(3)).await;
        assert_eq!(told().len(), 2, "at the start: {:?}", told());
        let admin = second.admin();
        assert_eq!(admin.metric("ojs_throttle_paused_keys").await, Some(0.0));
        second.stop().await;
    }
}

/// Whoever pauses a policy by its name must not take that for done where a reload has put it in shadow. Jobs may bring
/// the key themselves all the same.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_only_tried_is_paused_only_where_jobs_bring_it() {
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::spec()).await;
    let policy = "[[policy]]\nname = \"p\"\nmatch = { queue = \"q\" }\nconcurrency = 5\n";
    let sidecar = Start::before(&net, &behind.base(), policy).start().await;
    let client = sidecar.client();
    enqueue(&client, 2, Value::Null).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    let next = settings(&behind.base(), &format!("{policy}mode = \"shadow\"\n"));
    assert_eq!(sidecar.reload.apply(next).word(), "applied");
    let (key, pause) = ("/ojs/v1/rate-limits/p", json!({"concurrency": 0}));
    let refused = client.put(key, pause.clone()).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("only tried"), "{}", refused.text());
    let shown = client.get(key).await.json();
    let hint = shown["hint"].as_str().unwrap();
    assert!(hint.contains("only tried"), "{shown}");
    assert_eq!(client.fetch("q", 1).await.len(), 1);

    let brought = enqueue(&client, 2, json!({"key": "p", "concurrency": 5})).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&brought[0]]);
    client.set(key, pause).await;
    assert!(client.fetch("q", 1).await.is_empty());
    let why = sidecar.admin().get("/throttle/v1/why?key=p").await.json();
    assert_eq!(why["cause"], "paused", "{why}");
    sidecar.stop().await;
}

/// What is set by hand outlives the file and the process, and hides what the file says.
#[tokio::test(start_paused = true)]
async fn limits_that_hide_the_file_s_are_told_at_the_start_and_on_a_reload() {
    let (lines, _logged) = Lines::listen();
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::spec()).await;
    let store = Arc::new(MemoryStore::new(NOON));
    let file = |limit: u32| {
        format!(
            "control_token = \"s3cret\"\n[[policy]]\nname = \"p\"\nkey = \"e\"\nrate = {{ limit = {limit}, period = \"1h\" }}\n\
             [[policy]]\nname = \"same\"\nkey = \"f\"\nconcurrency = 3\n"
        )
    };
    let start = |limit| Start::before(&net, &behind.base(), &file(limit)).store(store.clone());
    let first = start(1000).start().await;
    let admin = first.admin().controlling("s3cret");
    let rate = json!({"rate": {"limit": 1000, "period": "1h"}});
    for (key, set) in [
        ("e", &rate),
        ("_policy:p", &rate),
        ("f", &json!({"concurrency": 3})),
    ] {
        let path = format!("/throttle/v1/keys/{key}/override");
        admin.set(&path, set.clone()).await;
    }
    let told = || lines.with("limit_over_http");
    sleep(Duration::from_secs(5)).await;
    assert!(told().is_empty(), "the file says the same: {:?}", told());
    let next = settings(&behind.base(), &file(2));
    assert_eq!(first.reload.apply(next).word(), "applied");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(told().len(), 1, "{:?}", told());
    for words in [
        "keys=_policy:p, e clear=",
        "ojs-throttle clear _policy:p --override`",
    ] {
        assert!(told()[0].contains(words), "{:?}", told());
    }
    first.stop().await;
    let second = start(2).start().await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(told().len(), 2, "{:?}", told());
    second.stop().await;
}

/// 10.2: a pause in an incident, and its end: workers that ask go on at once, held jobs first.
#[tokio::test(start_paused = true)]
async fn a_pause_holds_everything_and_its_end_lets_go_at_once() {
    let config =
        "[[policy]]\nname = \"whole\"\nmatch = { queue = \"c\" }\nkey = \"k\"\nconcurrency = 9\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let jobs = enqueue(&client, 4, json!({"key": "k", "concurrency": 9})).await;
    let covered = client.enqueue(plain("c")).await;
    assert_eq!(ids(&client.fetch("q", 1).await), [&jobs[0]]);
    let state = client.limit("k", json!({"concurrency": 0})).await;
    let slots = json!({"limit": 0, "active": 1, "available": 0});
    assert_eq!(state["concurrency"], slots);
    assert_eq!(state["override"], json!({"concurrency": 0}));
    for _ in 0..3 {
        assert!(client.fetch("q", 9).await.is_empty(), "a queue with keys");
        let covers = client.fetch("c", 9).await;
        assert!(covers.is_empty(), "a queue that the key covers");
        sleep(Duration::from_secs(7)).await;
    }
    let gone = client.delete("/ojs/v1/rate-limits/k/override").await;
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(gone.json().get("override"), None);
    assert_eq!(gone.json()["concurrency"]["limit"], 9);
    let began = Instant::now();
    assert_eq!(client.fetch("q", 9).await.len(), 3);
    assert_eq!(ids(&client.fetch("c", 9).await), [&covered]);
    assert!(began.elapsed() < Duration::from_millis(50));
    let again = client.delete("/ojs/v1/rate-limits/k/override").await;
    again.refuses(404, "not_found", "");
}

/// The store has done it, and who asked for it is not there any more to hear so.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_pause_lets_go_although_its_client_hangs_up() {
    let slow = Some(Fault::late(Duration::from_secs(2)));
    for (pause, end) in [
        (json!({"concurrency": 0}), "/ojs/v1/rate-limits/k"),
        (json!({"after": "1h"}), "/throttle/v1/keys/k/next-start"),
    ] {
        let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
        let rig = Rig::over(store.clone(), "control_token = \"s3cret\"\n").await;
        let port = match end.starts_with("/throttle") {
            true => rig.admin.clone().controlling("s3cret"),
            false => rig.client.clone(),
        };
        let limit = json!({"key": "k", "concurrency": 9});
        let jobs = enqueue(&rig.client, 1, limit).await;
        port.set(end, pause).await;
        assert!(rig.client.fetch("q", 1).await.is_empty(), "it is held");
        store.standing(slow.clone());
        let hung_up = timeout(Duration::from_secs(1), port.delete(end)).await;
        assert!(hung_up.is_err());
        store.standing(None);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(ids(&rig.client.fetch("q", 1).await), [&jobs[0]], "{end}");
    }
}

/// Lowered below what is out, the key drains by attrition; raised, a FETCH that waits gets its job.
#[tokio::test(start_paused = true)]
async fn a_lower_limit_drains_and_a_higher_one_wakes_who_waits() {
    let (_pair, client) = simulated(Lax::spec(), "[fetch]\nmax_wait = \"20s\"\n").await;
    let jobs = enqueue(&client, 8, json!({"key": "k", "concurrency": 4})).await;
    assert_eq!(client.fetch("q", 4).await.len(), 4);
    let state = client.limit("k", json!({"concurrency": 2})).await;
    let slots = json!({"limit": 2, "active": 4, "available": 0});
    assert_eq!(state["concurrency"], slots);
    let waiting = async || {
        let client = client.clone();
        let fetch = tokio::spawn(async move { client.fetch("q", 1).await });
        sleep(Duration::from_millis(100)).await;
        (fetch,)
    };
    let (fetch,) = waiting().await;
    client.ack(&jobs[0]).await;
    client.ack(&jobs[1]).await;
    sleep(Duration::from_millis(100)).await;
    assert!(!fetch.is_finished(), "two are out still");
    client.ack(&jobs[2]).await;
    assert_eq!(ids(&fetch.await.unwrap()), [&jobs[4]]);
    let (fetch,) = waiting().await;
    let began = Instant::now();
    client.limit("k/override", json!({"concurrency": 3})).await;
    assert_eq!(ids(&fetch.await.unwrap()), [&jobs[5]], "a raise wakes");
    assert_within(began.elapsed(), Duration::from_millis(20), "");
    // And so does a rate where there was none but slots.
    let (fetch,) = waiting().await;
    let rate = json!({"concurrency": 9, "limit": 1, "period": "10s"});
    client.limit("k", rate).await;
    assert_eq!(ids(&fetch.await.unwrap()), [&jobs[6]]);
    // The next start is far away: only who polls waits for it.
    assert!(client.fetch("q", 1).await.is_empty());
    sleep(Duration::from_millis(100)).await;
    let (fetch,) = waiting().await;
    client.limit("k", json!({"concurrency": 9})).await;
    let came = fetch.await.unwrap();
    assert_eq!(ids(&came), [&jobs[7]], "a PUT replaces the one before");
}

/// Each part that is given stands in place of that part, looser too; the others stay. Usage is not
/// touched.
#[tokio::test(start_paused = true)]
async fn parts_merge_and_budgets_are_not_refilled() {
    let config =
        "[[policy]]\nname = \"k\"\nconcurrency = 2\nrate = { limit = 3, period = \"1h\" }\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    client.enqueue_all(9, &plain("q")).await;
    assert_eq!(client.fetch("q", 9).await.len(), 2, "slots");
    let state = client.limit("k", json!({"concurrency": 6})).await;
    assert_eq!(state["rate"]["limit"], 3);
    assert_eq!(state["rate"]["current_count"], 2, "nothing is refilled");
    assert_eq!(client.fetch("q", 9).await.len(), 1, "the window stays");
    let state = client
        .limit("k", json!({"limit": 5, "period": "PT1H"}))
        .await;
    assert_eq!(state["concurrency"]["limit"], 2, "the file's again");
    assert_eq!(state["rate"]["limit"], 5);
    assert_eq!(state["rate"]["current_count"], 3);
    assert!(client.fetch("q", 9).await.is_empty(), "three are out");
    let both = json!({"concurrency": 6, "rate": {"limit": 5, "period": "PT1H"},
                      "throttle": {"interval": "PT10S"}, "reason": "INC-42", "by": "eve"});
    let state = client.limit("k/override", both).await;
    let set = &state["override"];
    assert_eq!(
        (&set["reason"], &set["by"]),
        (&json!("INC-42"), &json!("eve"))
    );
    assert_eq!(state["throttle"]["period"], "PT10S");
    assert_eq!(client.fetch("q", 9).await.len(), 1, "spaced");
    sleep(Duration::from_secs(11)).await;
    assert_eq!(client.fetch("q", 9).await.len(), 1, "the fifth");
    sleep(Duration::from_secs(11)).await;
    assert!(client.fetch("q", 9).await.is_empty(), "five in the hour");
}

/// What is set stands in place of the file's window for a while, and refills nothing: starts count there all the same.
#[tokio::test(start_paused = true)]
async fn what_starts_under_another_window_counts_in_that_of_the_file() {
    let file = "control_token = \"s3cret\"\n[[policy]]\nname = \"p\"\nkey = \"k\"\n\
        rate = [{ limit = 5, period = \"P1D\" }, { limit = 9, period = \"P7D\" }]\n";
    for of in ["k", "_policy:p"] {
        let net = Net::Sim(sim::Network::default());
        let behind = backend(&net, Lax::spec()).await;
        let sidecar = Start::before(&net, &behind.base(), file).start().await;
        let (client, admin) = (sidecar.client(), sidecar.admin().controlling("s3cret"));
        client.enqueue_all(9, &plain("q")).await;
        assert_eq!(client.fetch("q", 2).await.len(), 2, "{of}");
        let path = format!("/throttle/v1/keys/{of}/override");
        admin
            .set(&path, json!({"limit": 3, "period": "PT10M"}))
            .await;
        assert_eq!(client.fetch("q", 9).await.len(), 3, "{of}");
        assert_eq!(admin.delete(&path).await.status, 200, "{of}");
        let told = client.get("/ojs/v1/rate-limits/k").await.json();
        for window in ["rate", "rate_2"] {
            assert_eq!(told[window]["current_count"], 5, "{of}: {told}");
        }
        assert!(client.fetch("q", 9).await.is_empty(), "{of}");
        sidecar.stop().await;
    }
}

/// It ends by itself, not before its time and at most half a second after; a held job goes out then.
#[tokio::test(start_paused = true)]
async fn an_override_ends_by_itself() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let jobs = enqueue(&client, 2, json!({"key": "k", "concurrency": 5})).await;
    let until = at(60);
    let state = client
        .limit("k", json!({"concurrency": 0, "expires_at": until}))
        .await;
    assert_eq!(state["override"]["expires_at"], "2026-02-02T02:41:00.000Z");
    let began = Instant::now();
    let started = loop {
        let started = client.fetch("q", 2).await;
        if !started.is_empty() {
            break started;
        }
        sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(ids(&started), [&jobs[0], &jobs[1]]);
    let after = began.elapsed();
    assert!((59_900..60_700).contains(&after.as_millis()), "{after:?}");
    let state = client.inspect("k").await;
    assert_eq!(state.get("override"), None);
    assert_eq!(state["concurrency"]["limit"], 5);
}

/// A key that nobody has named may be overridden, and it is said that nobody has: its first job meets it. Taken
/// away, the key is unknown again.
#[tokio::test(start_paused = true)]
async fn a_key_not_seen_yet_is_accepted() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let state = client.limit("new%2Dkey", json!({"concurrency": 1})).await;
    assert_eq!(state["key"], "new-key");
    let hint = async || client.inspect("new-key").await["hint"].clone();
    assert_eq!(state["hint"], hint().await);
    let told = hint().await.as_str().map(|hint| hint.contains("no job"));
    assert_eq!(told, Some(true), "{state}");
    let gone = client.delete("/ojs/v1/rate-limits/new-key").await;
    assert_eq!((gone.status, gone.json()), (200, json!({"key": "new-key"})));
    assert_eq!(client.get("/ojs/v1/rate-limits/new-key").await.status, 404);
    client.limit("new-key", json!({"concurrency": 1})).await;
    enqueue(&client, 3, json!({"key": "new-key", "concurrency": 3})).await;
    assert_eq!(hint().await, Value::Null, "jobs have named it");
    assert_eq!(client.fetch("q", 3).await.len(), 1);
}

/// Where limits are written.
const WRITTEN: [&str; 5] = [
    "/ojs/v1/rate-limits/k",
    "/ojs/v1/rate-limits/k/override",
    "/ojs/v1/admin/queues/q/rate-limit",
    "/ojs/v1/admin/queues/q/config",
    "/ojs/v1/admin/tenants/t/limits",
];

/// What is wrong as a whole, or in time, is named, and nothing is changed: `input.rs` has each field by itself.
#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_refused_and_changes_nothing() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    enqueue(&client, 1, json!({"key": "k", "concurrency": 5})).await;
    let before = client.get("/ojs/v1/rate-limits/k").await.text();
    for (body, field) in [
        ("", ""),
        ("{", ""),
        ("{} {}", ""),
        ("[]", "body"),
        (
            r#"{"concurrency":1,"expires_at":"2026-02-02T02:40:00Z"}"#,
            "expires_at",
        ),
        (
            r#"{"rate":{"limit":1,"period":"1s","burst":1}}"#,
            "rate.burst",
        ),
        (r#"{"concurrency":1,"on_limit":"drop"}"#, "on_limit"),
    ] {
        for path in &WRITTEN[..3] {
            let reply = client.send(Method::PUT, path, &[], body).await;
            let error = reply.refuses(400, "invalid_request", body);
            if !field.is_empty() {
                assert_eq!(error["details"]["field"], field, "{body}: {error}");
            }
        }
    }
    assert_eq!(client.get("/ojs/v1/rate-limits/k").await.text(), before);
    assert_eq!(client.get(WRITTEN[2]).await.status, 404);
    let hint = client
        .put(WRITTEN[0], json!({"concurency": 1}))
        .await
        .text();
    assert!(hint.contains("did you mean `concurrency`?"), "{hint}");
    let bad = client.put("/ojs/v1/rate-limits/-k", json!({"concurrency": 1}));
    let error = bad.await.refuses(400, "invalid_request", "");
    assert_eq!(error["details"]["field"], "key");
    let all = "GET, HEAD, PUT, DELETE";
    for (method, path, allow) in [
        (Method::POST, "/ojs/v1/rate-limits/k", all),
        (Method::PATCH, "/ojs/v1/rate-limits/k/override", all),
        (Method::DELETE, "/ojs/v1/rate-limits", "GET, HEAD"),
        (Method::POST, "/ojs/v1/admin/queues/q/rate-limit", all),
        (Method::OPTIONS, "/ojs/v1/queues/q/config", "GET, HEAD, PUT"),
        (Method::OPTIONS, "/ojs/v1/admin/tenants/t", all),
        (Method::OPTIONS, "/ojs/v1/admin/tenants/t/limits", all),
    ] {
        let reply = client.send(method, path, &[], "{}").await;
        assert_eq!(reply.status, 405, "{path}");
        // RFC 9110, 15.5.6.
        assert_eq!(reply.headers["allow"], allow, "{path}");
    }
}

/// On a listener that others reach, only the control token may change limits; looking needs none.
#[tokio::test(start_paused = true)]
async fn writes_need_loopback_or_the_control_token() {
    let outside = "listen = \"0.0.0.0:0\"\n";
    let with_token = format!("{outside}control_token = \"s3cret\"\n");
    let body = || json!({"concurrency": 1});
    let paths = &WRITTEN[..4];
    let (pair, client) = simulated(Lax::spec(), outside).await;
    for path in paths {
        let refused = client.put(path, body()).await;
        let error = refused.refuses(403, "forbidden", path);
        assert!(
            error.to_string().contains("server.control_token"),
            "{error}"
        );
    }
    assert_eq!(client.get("/ojs/v1/rate-limits").await.status, 200);
    pair.stop().await;

    let (pair, client) = simulated(Lax::spec(), &with_token).await;
    let with = |authorization: &str| client.with("authorization", authorization);
    for path in paths {
        for wrong in [
            "Bearer s3cre",
            "Bearer s3cret2",
            "Bearer S3CRET",
            "Basic s3cret",
            "s3cret",
            "Bearer ",
            "",
        ] {
            let refused = with(wrong).put(path, body()).await;
            assert_eq!(refused.status, 403, "{path} {wrong}");
        }
        assert_eq!(client.put(path, body()).await.status, 403);
        with("bearer s3cret").set(path, body()).await;
    }
    assert_eq!(with("Bearer no").delete(paths[0]).await.status, 403);
    assert_eq!(with("Bearer s3cret").delete(paths[0]).await.status, 200);
    pair.stop().await;

    let (_pair, client) = simulated(Lax::spec(), "listen = \"[::1]:0\"\n").await;
    let set = client.put(paths[0], body()).await;
    assert_eq!(set.status, 200, "IPv6 has a loopback too");
}

/// A web page whose name was made to mean this machine reaches loopback, under its own name: it may look, as
/// any page of the backend's, and changes nothing. Whoever asks by another name needs the token.
#[tokio::test(start_paused = true)]
async fn no_web_page_changes_limits_on_loopback() {
    let config = "control_token = \"s3cret\"\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let ask = async |method: Method, path: &str, headers: &[(&str, &str)]| {
        let body = match path.contains("tenants") {
            true => r#"{"max_queue_depth":9}"#,
            false => r#"{"concurrency":1}"#,
        };
        client.send(method, path, headers, body).await
    };
    for path in WRITTEN {
        for host in ["evil.example:8080", "localhost.evil.example", "sidecar"] {
            let reply = ask(Method::PUT, path, &[("host", host)]).await;
            assert_eq!(reply.status, 403, "{path} {host}: {}", reply.text());
            let hint = &reply.json()["error"]["hint"];
            let hint = hint.as_str().unwrap_or_default();
            assert!(hint.contains("server.control_token"), "{}", reply.text());
        }
        let named = [("host", "sidecar"), ("authorization", "Bearer s3cret")];
        let reply = ask(Method::PUT, path, &named).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        for host in ["localhost:8080", "127.0.0.1", "[::1]:8080"] {
            let reply = ask(Method::PUT, path, &[("host", host)]).await;
            assert_eq!(reply.status, 200, "{path} {host}: {}", reply.text());
        }
    }
    let evil = [("host", "evil.example")];
    assert_eq!(ask(Method::DELETE, WRITTEN[0], &evil).await.status, 403);
    assert_eq!(ask(Method::GET, WRITTEN[0], &evil).await.status, 200);
}

/// The jobs of a key with an override are told from others: one key's numbers do not reach another,
/// nor a queue of the same name.
#[tokio::test(start_paused = true)]
async fn an_override_reaches_its_key_only() {
    let (_pair, client) =
        simulated(Lax::spec(), "[[queue]]\nname = \"q\"\nconcurrency = 9\n").await;
    client.limit("q", json!({"concurrency": 0})).await;
    enqueue(&client, 1, json!({"key": "q", "concurrency": 9})).await;
    let other = enqueue(&client, 1, json!({"key": "other", "concurrency": 9})).await;
    let plain = client.enqueue(plain("q")).await;
    let out = client.fetch("q", 9).await;
    let mut found: Vec<&str> = out.iter().map(id).collect();
    found.sort_unstable();
    let mut expected = [other[0].as_str(), plain.as_str()];
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// A pause that pauses nothing must not look like one: a policy's name is not one of the keys that it makes. A key
/// that nobody has used yet can be paused all the same, and so can one that jobs bring.
#[tokio::test(start_paused = true)]
async fn a_policy_s_name_is_not_its_key() {
    let config = "[[policy]]\nname = \"per-customer\"\nmatch = { queue = \"c\" }\nkey = \"crm:{meta.t}\"\nconcurrency = 9\n\
        [[policy]]\nname = \"mail\"\nmatch = { queue = \"m\" }\nkey = \"smtp\"\nconcurrency = 9\n\
        [[policy]]\nname = \"any\"\nmatch = { queue = \"a\" }\nkey = \"any:{queue}\"\nconcurrency = 9\n\
        [[policy]]\nname = \"whole\"\nmatch = { queue = \"w\" }\nconcurrency = 9\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let pause = || json!({"concurrency": 0});
    let path = |key: &str| format!("/ojs/v1/rate-limits/{key}");
    for (name, key) in [
        ("per-customer", "crm:{meta.t}"),
        ("mail", "smtp"),
        ("any/override", "any:{queue}"),
    ] {
        let reply = client.put(&path(name), pause()).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        let error = &reply.json()["error"];
        assert_eq!(error["details"]["field"], "key");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(key) && message.contains("name of a policy"));
    }
    assert_eq!(client.delete(&path("mail")).await.status, 404);
    for key in ["whole", "smtp", "crm:acme", "crm:later", "unheard-of"] {
        let state = client.set(&path(key), pause()).await;
        let in_file = ["whole", "smtp"].contains(&key);
        assert_eq!(state["hint"].is_null(), in_file, "{state}");
    }
    let job = |queue: &str| json!({"type": "t", "args": [], "meta": {"t": "acme"}, "options": {"queue": queue}});
    for queue in ["c", "m", "w"] {
        client.enqueue(job(queue)).await;
        assert!(client.fetch(queue, 1).await.is_empty(), "{queue}");
    }
    enqueue(&client, 1, json!({"key": "mail", "concurrency": 9})).await;
    client.set(&path("mail"), pause()).await;
    let came = client.fetch("q", 1).await;
    assert!(came.is_empty(), "a job has brought it");
}
