//! What is told of calls to those who look.

use super::prelude::*;
use crate::sidecar::listen::Listener;

#[tokio::test(start_paused = true)]
async fn events_tell_of_refused_calls_and_of_keys_that_a_vendor_shut() {
    let slow = "key = 'vendor'\nthrottle = { limit = 1, period = '20s' }\nmax_wait = '1s'";
    let world = World::start("", slow, |call| match call.target() {
        "/429" => Answer::new(429, "").header("Retry-After", "60"),
        _ => Answer::ok(),
    })
    .await;
    let client = world.pair.sidecar.client();
    let path = "/ojs/v1/events/stream?types=rate_limit.*";
    let mut events = Listener::open(&client, path, &[]).await;
    assert_eq!(world.statuses("/", 2).await, [200, 429]);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(world.statuses("/429", 1).await, [429]);
    let heard = events.so_far().await;
    let told = |nth: usize| (&*heard[nth].event, &heard[nth].data["data"]);
    let refused = json!({"key": "vendor", "egress": "out"});
    assert_eq!(told(0), ("rate_limit.call_refused", &refused));
    let (kind, shut) = told(1);
    assert_eq!(kind, "rate_limit.dynamic_adjusted");
    assert_eq!(shut["key"], "vendor");
    for one in &heard {
        assert_eq!(one.data["subject"], "vendor");
        assert!(one.data.get("job_id").is_none(), "{one:?}");
    }
    // The vendor's own 429 is no refusal.
    assert_eq!(heard.len(), 2, "{heard:?}");
}

/// A slot that calls have is free again after what calls take.
#[tokio::test(start_paused = true)]
async fn why_foretells_by_what_calls_took() {
    let world = World::start("", "key = 'vendor'\nconcurrency = 1", |_| {
        Answer::ok().after(Duration::from_secs(2))
    })
    .await;
    assert_eq!(world.statuses("/", 20).await, [200; 20]);
    let out = world.begins("/");
    sleep(millis(500)).await;
    let admin = world.pair.sidecar.admin();
    let told = admin.get("/throttle/v1/why?key=vendor").await.json();
    let said = told["next_start_p50"].as_str();
    let at: jiff::Timestamp = said.unwrap_or_else(|| panic!("{told}")).parse().unwrap();
    let since = told["limits"][0]["slots"][0]["since"].as_str().unwrap();
    let took = at.duration_since(since.parse().unwrap()).as_millis();
    assert!((1_900..2_100).contains(&took), "{took} ms");
    assert_eq!(out.await.unwrap(), 200);
}

/// A service that never answers keeps the slots of its calls: no worker is to be restarted for that.
#[tokio::test(start_paused = true)]
async fn calls_that_may_hang_are_named() {
    let one = "key = 'vendor'\nconcurrency = 1";
    let world = World::start("", one, |call| match call.target() {
        "/hangs" => Answer::ok().after(Duration::from_secs(500)),
        _ => Answer::ok().after(millis(200)),
    })
    .await;
    assert_eq!(world.statuses("/", 20).await, [200; 20]);
    let hangs = world.begins("/hangs");
    sleep(Duration::from_secs(60)).await;
    let admin = world.pair.sidecar.admin();
    let told = admin.get("/throttle/v1/why?key=vendor").await.json();
    assert_eq!(told["cause"], "may hang", "{told}");
    let says = |field: &str, words: &str| {
        let said = told[field].as_str().unwrap_or_default();
        assert!(said.contains(words), "{field}: {said}");
    };
    says("why", "1 run since 60.0 s, usual is 0.2 s: call-");
    says("why", " of \"out\" may hang, with slots of key \"vendor\"");
    says(
        "do",
        "look at the service, and restart what hangs: the slot",
    );
    hangs.abort();
}

/// Calls of one key may wait for another, which a budget has: who asks about theirs is told of that.
#[tokio::test(start_paused = true)]
async fn a_budget_that_is_spent_is_told_under_the_key_of_its_calls() {
    for key in ["each:{path.0}", "vendor"] {
        let entry = format!(
            "key = '{key}'\nthrottle = {{ limit = 900, period = '1s' }}\nmax_wait = '1m'\n\
             [[egress.budget]]\nname = 'all'\nrate = {{ limit = 3, period = '40s' }}"
        );
        let world = World::start("", &entry, |_| Answer::ok()).await;
        assert_eq!(world.statuses("/x", 3).await, [200; 3]);
        let admin = world.pair.sidecar.admin();
        let name = key.replace("{path.0}", "x");
        let looks = async |spent: bool| {
            let why = admin.get(&format!("/throttle/v1/why?key={name}")).await;
            assert_eq!(why.json()["limited_at"] == "all", spent, "{}", why.text());
            let state = admin.get("/throttle/v1/state").await.json();
            let rows = state["keys"]["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["name"] == *name).unwrap();
            for cause in [&row["cause"], &state["ways"][0]["cause"]] {
                let why = cause["why"].as_str().unwrap_or_default();
                assert_eq!(why.contains("\"all\""), spent, "{key}: {state}");
            }
        };
        let waits = world.begins("/x");
        sleep(Duration::from_secs(2)).await;
        looks(true).await;
        let waiting = "ojs_rate_limit_waiting{key=\"all\"}";
        assert_eq!(admin.metric(waiting).await, Some(1.0));
        assert_eq!(waits.await.unwrap(), 200);
        sleep(Duration::from_secs(60)).await;
        looks(false).await;
        world.pair.stop().await;
    }
}

/// A backend that is away keeps jobs back, and no call.
#[tokio::test(start_paused = true)]
async fn calls_are_not_said_to_wait_for_the_backend() {
    let one = "key = 'vendor'\nconcurrency = 1";
    let answer = |_: &_| Answer::ok().after(Duration::from_secs(9));
    let world = World::start("", one, answer).await;
    let (pair, caller) = (world.pair, world.caller);
    pair.behind.stop().await;
    let (client, admin) = (pair.sidecar.client(), pair.sidecar.admin());
    let asks = json!({"queues": ["q"], "count": 1, "worker_id": "w"});
    client.post("/ojs/v1/workers/fetch", asks.to_string()).await;
    assert_eq!(admin.state().await["causes"][0]["name"], "backend away");
    let calls = [(); 2].map(|()| {
        let caller = caller.clone();
        tokio::spawn(async move { caller.get("/").await.status })
    });
    sleep(Duration::from_secs(2)).await;
    let why = admin.get("/throttle/v1/why?key=vendor").await.json();
    assert_eq!(why["cause"], "slots", "{why}");
    let state = admin.state().await;
    let row = &state["keys"]["rows"][0];
    assert_eq!(
        (&row["name"], &row["cause"]["name"]),
        (&json!("vendor"), &json!("slots"))
    );
    assert_eq!(state["ways"][0]["cause"]["name"], "slots", "{state}");
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
    let why = admin.get("/throttle/v1/why?key=vendor").await.json();
    assert_ne!(why["cause"], "backend away", "{why}");
    pair.sidecar.stop().await;
}

/// What calls of a budget have paid is no number of jobs.
#[tokio::test(start_paused = true)]
async fn a_budget_has_no_jobs_that_are_out() {
    let entry = "key = 'vendor'\nconcurrency = 9\n[[egress.budget]]\nname = 'month'\n\
        cost = { use = 'tokens', max = 5000 }\nrate = { limit = 90000, period = '24h' }";
    let world = World::start("", entry, |_| Answer::ok().after(Duration::from_secs(9))).await;
    let out = world.begins("/");
    sleep(Duration::from_secs(2)).await;
    let admin = world.pair.sidecar.admin();
    let of = async |key| {
        admin
            .metric(&format!("ojs_rate_limit_active{{key=\"{key}\"}}"))
            .await
    };
    assert_eq!((of("vendor").await, of("month").await), (Some(1.0), None));
    assert_eq!(out.await.unwrap(), 200);
    world.pair.stop().await;
}

/// Calls count as jobs do for a key without a series of its own.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_key_that_shares_its_series_are_counted() {
    let slow = "key = 'vendor'\nconcurrency = 1\nmax_wait = '1m'";
    let world = World::start("[metrics]\ntop_keys = 0", slow, |_| {
        Answer::ok().after(Duration::from_secs(5))
    })
    .await;
    let calls = [(); 3].map(|()| world.begins("/"));
    sleep(Duration::from_secs(2)).await;
    let waiting = "ojs_rate_limit_waiting{key=\"_other\"}";
    let admin = world.pair.sidecar.admin();
    assert_eq!(admin.metric(waiting).await, Some(2.0));
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
    world.pair.stop().await;
}
