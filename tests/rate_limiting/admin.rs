//! The admin port: who may look and who may change, what is set there, and how it answers while the store is slow.

use super::prelude::*;
use crate::harness::assert_within;

/// A rig whose store can be made slow.
async fn slow() -> (Rig, Arc<Faulty>) {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    (Rig::over(store.clone(), "").await, store)
}

fn late(delay: Duration) -> Option<Fault> {
    Some(Fault {
        delay,
        ..Fault::NONE
    })
}

/// However many keys there are: they are one question.
#[tokio::test(start_paused = true)]
async fn a_page_comes_in_time_from_a_slow_store() {
    let (rig, store) = slow().await;
    for n in 0..60 {
        let limits = json!({"key": format!("k{n}"), "concurrency": 1});
        let job = json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": limits}});
        rig.client.enqueue(job).await;
    }
    assert_eq!(rig.client.fetch("q", 60).await.len(), 60);
    store.standing(late(Duration::from_millis(100)));
    let begun = Instant::now();
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(text.contains("\nojs_throttle_store_up 1\n"), "{text}");
    for (key, active) in [("_other", 10), ("k7", 1), ("k8", 1)] {
        let line = format!("ojs_rate_limit_active{{key=\"{key}\"}} {active}\n");
        assert!(text.contains(&line), "{line}: {text}");
    }
    assert_within(begun.elapsed(), Duration::from_secs(1), "");

    // And there is one when it says nothing at all.
    store.standing(late(Duration::from_secs(3_600)));
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("\nojs_throttle_store_up "));
}

/// Sixteen at once, and no more.
#[tokio::test(start_paused = true)]
async fn scrapes_of_a_silent_store_do_not_pile_up() {
    let (rig, store) = slow().await;
    store.standing(late(Duration::from_secs(3_600)));
    for _ in 0..16 {
        let admin = rig.admin.clone();
        tokio::spawn(async move { admin.get("/metrics").await });
    }
    sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    let page = rig.admin.get("/metrics").await;
    assert_eq!(page.status, 503, "{}", page.text());
    assert!(begun.elapsed() < Duration::from_millis(100));
    let probed = rig.admin.get("/livez").await;
    assert_eq!(probed.status, 200, "a probe waits for nobody");
    // Each ends by itself.
    sleep(Duration::from_secs(5)).await;
    assert_eq!(rig.admin.get("/metrics").await.status, 200);
}

/// One who asks, what a look is answered, and what a change is.
type Asker = (&'static str, &'static str, &'static str, [u16; 2]);

const JSON: &str = "application/json";
const JSON_UTF_8: &str = "Application/JSON; charset=utf-8";
const RIGHT: &str = "Bearer s3cret";
/// `x:s3cret`, and `s3cret:x`.
const PASSWORD: &str = "Basic eDpzM2NyZXQ=";
const NO_PASSWORD: &str = "Basic czNjcmV0Ong=";
const HERE: &str = "127.0.0.1:9091";
const PAGE: &str = "evil.example:9091";

/// The same wherever the port listens.
const ANYWHERE: [Asker; 9] = [
    (HERE, RIGHT, JSON, [200, 200]),
    (HERE, "bearer s3cret", JSON_UTF_8, [200, 200]),
    (PAGE, RIGHT, JSON, [200, 200]),
    (HERE, RIGHT, "", [200, 415]),
    (HERE, RIGHT, "text/plain", [200, 415]),
    (HERE, PASSWORD, JSON, [200, 403]),
    (PAGE, PASSWORD, JSON, [403, 403]),
    (PAGE, "", JSON, [403, 403]),
    (PAGE, "Bearer wrong", JSON, [403, 403]),
];
const ON_LOOPBACK: [Asker; 5] = [
    (HERE, "", JSON, [200, 403]),
    ("localhost", "", JSON, [200, 403]),
    ("[::1]:9091", "", JSON, [200, 403]),
    (HERE, "Bearer wrong", JSON, [200, 403]),
    (HERE, NO_PASSWORD, JSON, [200, 403]),
];
const BEYOND: [Asker; 5] = [
    (HERE, "", JSON, [401, 403]),
    (HERE, "Bearer s3cre", JSON, [401, 403]),
    (HERE, "Bearer s3cret2", JSON, [401, 403]),
    (HERE, NO_PASSWORD, JSON, [401, 403]),
    (HERE, "Basic s3cret", JSON, [401, 403]),
];
const WITHOUT_TOKEN: [Asker; 3] = [
    (HERE, "", JSON, [200, 403]),
    (HERE, "Bearer ", JSON, [200, 403]),
    (PAGE, "", JSON, [403, 403]),
];
const BEYOND_WITHOUT_TOKEN: [Asker; 2] = [
    (HERE, "", JSON, [403, 403]),
    (HERE, "Basic eDo=", JSON, [403, 403]),
];

#[tokio::test(start_paused = true)]
async fn who_may_look_and_who_may_change() {
    let token = "control_token = \"s3cret\"\n";
    let beyond = "admin_listen = \"0.0.0.0:9091\"\n";
    let known = "[[policy]]\nname = \"k\"\nconcurrency = 5\n";
    for (server, askers) in [
        (token.to_owned(), [&ANYWHERE[..], &ON_LOOPBACK].concat()),
        (token.to_owned() + beyond, [&ANYWHERE[..], &BEYOND].concat()),
        (String::new(), WITHOUT_TOKEN.to_vec()),
        (beyond.to_owned(), BEYOND_WITHOUT_TOKEN.to_vec()),
    ] {
        let rig = Rig::with(&(server.clone() + known)).await;
        for asker in askers {
            is_answered(&rig, asker, &server).await;
        }
    }
}

/// Looks and changes as one who asks does.
async fn is_answered(rig: &Rig, (host, login, kind, wanted): Asker, server: &str) {
    let all = [
        ("host", host),
        ("authorization", login),
        ("content-type", kind),
    ];
    let sent: Vec<_> = all
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let path = |what: &str| format!("/throttle/v1/keys/k/{what}");
    let change = r#"{"concurrency":1}"#;
    let looks = [
        "/",
        "/throttle/v1/state",
        "/throttle/v1/settings",
        "/throttle/v1/why?key=k",
    ];
    let looks = looks.map(|path| (Method::GET, path.to_owned(), "", wanted[0]));
    let changes = [
        (Method::PUT, "next-start", r#"{"after":"1s"}"#),
        (Method::DELETE, "next-start", ""),
        (Method::DELETE, "usage", ""),
        (Method::PUT, "override", change),
    ];
    let changes = changes.map(|(method, what, body)| (method, path(what), body, wanted[1]));
    let shown = [(Method::GET, path("override"), "", wanted[0])];
    for (method, path, body, status) in looks.into_iter().chain(shown).chain(changes) {
        let reply = rig.admin.send(method.clone(), &path, &sent, body).await;
        let what = format!("{server}{method} {path} {sent:?}: {}", reply.text());
        assert_eq!(reply.status, status, "{what}");
        let asks = reply.headers.get("www-authenticate");
        let asks = asks.map(|asks| asks.to_str().unwrap());
        let asked = (status == 401).then_some("Basic realm=\"ojs-throttle\"");
        assert_eq!(asks, asked, "{what}");
        let helps = match status {
            200 => true,
            415 => reply.text().contains("Content-Type: application/json"),
            _ => reply.text().contains("server.control_token"),
        };
        assert!(helps, "{what}");
        let is_forbidden = reply.text().contains("\"forbidden\"");
        assert_eq!(is_forbidden, status == 403, "{what}");
    }
    let is_set = rig.inspect("k").await["override"].is_object();
    assert_eq!(is_set, wanted[1] == 200, "{server}{sent:?}");
    if is_set {
        assert_eq!(rig.client.delete("/ojs/v1/rate-limits/k").await.status, 200);
    }
}

/// No page of another origin is told that it may ask.
#[tokio::test(start_paused = true)]
async fn other_origins_are_told_nothing() {
    let rig = Rig::with("control_token = \"s3cret\"\n").await;
    let origin = [
        ("origin", "http://evil.example"),
        ("access-control-request-method", "PUT"),
        ("access-control-request-headers", "authorization"),
    ];
    for (method, path, status) in [
        (Method::OPTIONS, "/throttle/v1/keys/k/override", 405),
        (Method::OPTIONS, "/throttle/v1/why", 405),
        (Method::OPTIONS, "/throttle/v1/state", 405),
        (Method::OPTIONS, "/", 405),
        (Method::GET, "/throttle/v1/state", 200),
        (Method::POST, "/throttle/v1/keys/k/override", 405),
        (Method::GET, "/throttle/v1/why?queue=q", 200),
    ] {
        let reply = rig.admin.send(method.clone(), path, &origin, "").await;
        assert_eq!(reply.status, status, "{method} {path}: {}", reply.text());
        let mut names = reply.headers.keys().map(|name| name.as_str());
        assert!(
            !names.any(|name| name.starts_with("access-control")),
            "{:?}",
            reply.headers
        );
    }
}

/// What is set on the admin port is what the data port sets, shows and takes away.
#[tokio::test(start_paused = true)]
async fn overrides_are_the_same_on_both_ports() {
    let rig =
        Rig::with("control_token = \"s3cret\"\n[[policy]]\nname = \"k\"\nconcurrency = 5\n").await;
    let admin = rig.admin.clone().controlling("s3cret");
    let body = json!({"concurrency": 0, "reason": "incident 7", "by": "ana", "expires_at": "2026-02-13T13:00:00.000Z"});
    for (here, there) in [
        ("/throttle/v1/keys/k/override", "/ojs/v1/rate-limits/k"),
        (
            "/throttle/v1/keys/_queue%3Aq%2Ex/override",
            "/ojs/v1/admin/queues/q.x/rate-limit",
        ),
    ] {
        let set = admin.put(here, body.clone()).await;
        assert_eq!(set.status, 200, "{}", set.text());
        assert_eq!(set.json()["override"], body, "{}", set.text());
        let (shown, theirs) = (admin.get(here).await, rig.client.get(there).await);
        assert_eq!(shown.json(), theirs.json());
        assert_eq!(set.json(), rig.client.put(there, body.clone()).await.json());
        let job = plain("q.x");
        rig.client.enqueue(job).await;
        assert!(rig.client.fetch("q.x", 1).await.is_empty());
        let gone = admin.delete(here).await;
        assert_eq!((gone.status, &gone.json()["override"]), (200, &Value::Null));
        assert_eq!(admin.delete(here).await.status, 404);
        assert_eq!(rig.client.delete(there).await.status, 404);
        assert_eq!(rig.client.fetch("q.x", 1).await.len(), 1);
    }
}

/// What is set for all keys of a policy, or ends by itself, wakes who waits for any of them, at once.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_policy_s_pause_wakes_who_waits() {
    let rig = Rig::with(
        "control_token = \"s3cret\"\n[[policy]]\nname = \"each\"\nmatch = { queue = \"q\" }\n\
         key = \"k:{meta.t}\"\nconcurrency = 1\n[fetch]\nmax_wait = \"20s\"\n",
    )
    .await;
    let admin = rig.admin.clone().controlling("s3cret");
    let path = "/throttle/v1/keys/_policy:each/override";
    let tenants = async |tenants: &[&str]| {
        for tenant in tenants {
            let job =
                json!({"type": "t", "args": [], "meta": {"t": tenant}, "options": {"queue": "q"}});
            rig.client.enqueue(job).await;
        }
    };
    let paused = admin.set(path, json!({"concurrency": 0})).await;
    assert_eq!(paused["key"], "_policy:each");
    tenants(&["a", "b"]).await;
    for _ in 0..3 {
        assert!(rig.client.fetch("q", 9).await.is_empty());
        sleep(Duration::from_secs(7)).await;
    }
    tenants(&["new"]).await;
    assert!(rig.client.fetch("q", 9).await.is_empty());
    assert_eq!(admin.delete(path).await.status, 200);
    let began = Instant::now();
    let jobs = rig.client.fetch("q", 9).await;
    assert_within(began.elapsed(), Duration::from_millis(50), "");
    assert_eq!(jobs.len(), 3);

    // Where somebody waits for a slot, a larger number wakes it.
    tenants(&["a", "b"]).await;
    let client = rig.client.clone();
    let waiting = tokio::spawn(async move { client.fetch("q", 2).await });
    sleep(Duration::from_millis(500)).await;
    assert!(!waiting.is_finished(), "all slots are taken");
    let began = Instant::now();
    admin.set(path, json!({"concurrency": 2})).await;
    let more = waiting.await.unwrap();
    assert_within(began.elapsed(), Duration::from_millis(50), "");
    assert_eq!(more.len(), 2);

    for job in jobs.iter().chain(&more) {
        rig.client.ack(id(job)).await;
    }
    let until = jiff::Timestamp::from_microsecond((NOON + 60_000_000) as i64).unwrap();
    let body = json!({"concurrency": 0, "expires_at": until.to_string()});
    admin.set(path, body).await;
    tenants(&["a", "c"]).await;
    let mut started = Vec::new();
    while started.is_empty() {
        sleep(Duration::from_millis(100)).await;
        started = rig.client.fetch("q", 9).await;
    }
    let late = Duration::from_secs_f64(rig.after_noon() - 60.0);
    assert_within(late, Duration::from_millis(1_100), "");
    assert!(started.len() >= 2, "{started:?}");
}

/// The limits of a queue as a whole have overrides alone.
#[tokio::test(start_paused = true)]
async fn what_a_queue_as_a_whole_has_not_is_refused() {
    let rig = Rig::with("control_token = \"s3cret\"\n").await;
    let admin = rig.admin.controlling("s3cret");
    for (method, what, body) in [
        (Method::PUT, "_queue:q/next-start", r#"{"after":"1s"}"#),
        (Method::DELETE, "_queue:q/usage", ""),
        (Method::PUT, "_queue:/override", r#"{"concurrency":1}"#),
    ] {
        let path = format!("/throttle/v1/keys/{what}");
        let reply = admin.send(method, &path, &[], body).await;
        let text = reply.text();
        assert_eq!(reply.status, 404, "{what}: {text}");
        for words in ["it stands for a queue as a whole", "_queue:NAME/override"] {
            assert!(text.contains(words), "{what}: {text}");
        }
    }
}
