//! Clients of one sidecar that are strangers to each other: what one sends takes nothing from another and tells
//! nothing of it; and a backend that keeps tenants apart.

use std::sync::atomic::{AtomicUsize, Ordering};

use http::header;

use super::prelude::*;
use super::upstream::answering;
use crate::harness::lines::Lines;
use crate::sidecar::answering::answering_by;

async fn send(client: &Client, path: &str, login: &str, body: serde_json::Value) -> Reply {
    let client = client.with("authorization", login);
    let path = format!("/ojs/v1/{path}");
    client.post(&path, body.to_string()).await
}

/// The ids that a FETCH under a login gets.
async fn fetched(client: &Client, login: &str) -> Vec<String> {
    let jobs = client.with("authorization", login).fetch("q", 1).await;
    jobs.iter().map(|job| id(job).to_owned()).collect()
}

/// A backend that shows and settles the jobs of `Bearer a` for no other login.
fn apart() -> impl Fn(&http::request::Parts) -> (u16, Bytes) + Clone + Send + 'static {
    let given = Arc::new(AtomicUsize::new(0));
    move |head| {
        let path = head.uri.path();
        let its_own = head.headers.get(header::AUTHORIZATION) == Some(&"Bearer a".parse().unwrap());
        let job = |id: &str| json!({"id": id, "type": "t", "queue": "q", "state": "active", "attempt": 1, "args": []});
        let (status, body) = match path.strip_prefix("/ojs/v1/") {
            Some("workers/fetch") if its_own => {
                let nth = given.fetch_add(1, Ordering::Relaxed);
                (200, json!({"jobs": [job(&format!("a{nth}"))]}))
            }
            Some("workers/ack" | "workers/nack") if its_own => (200, json!({"acknowledged": true})),
            Some("workers/ack" | "workers/nack") => (404, json!({"error": {"code": "not_found"}})),
            Some(path) if path.starts_with("jobs/") => match its_own {
                true => (200, json!({"job": job(path.trim_start_matches("jobs/"))})),
                false => (404, json!({"error": {"code": "not_found"}})),
            },
            _ => (200, json!({"jobs": []})),
        };
        (status, body.to_string().into())
    }
}

const ONE: &str = "[[policy]]\nname = \"crm\"\nkey = \"crm\"\nconcurrency = 1\n";

/// To a stranger the backend says that there is no such job. That ends nothing.
#[tokio::test(start_paused = true)]
async fn who_settles_the_job_of_another_frees_no_slot() {
    let config = format!("[fetch]\nmax_wait = \"1s\"\n{ONE}");
    let (_backend, _sidecar, client) = answering_by(Duration::ZERO, &config, apart()).await;
    assert_eq!(fetched(&client, "Bearer a").await, ["a0"]);
    for verb in ["ack", "nack"] {
        let path = format!("workers/{verb}");
        let error = json!({"code": "c", "message": "m"});
        let body = json!({"job_id": "a0", "error": error});
        let refused = send(&client, &path, "Bearer b", body).await;
        assert_eq!(refused.status, 404, "{}", refused.text());
        let none: [&str; 0] = [];
        assert_eq!(fetched(&client, "Bearer a").await, none, "{verb}");
    }
    let done = send(&client, "workers/ack", "Bearer a", json!({"job_id": "a0"})).await;
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(fetched(&client, "Bearer a").await.len(), 1);
}

/// Whoever sees what the backend is sent must not be able to change limits.
#[tokio::test(start_paused = true)]
async fn the_control_token_stays_here() {
    let policy = "[[policy]]\nname = \"k\"\nkey = \"k\"\nmatch = { queue = \"q\" }\nrate = { limit = 1, period = \"1m\" }\n";
    let own = "[upstream]\ntoken = \"own\"\n";
    for (own, asked_with) in [("", None), (own, Some("Bearer own"))] {
        let config = format!("control_token = \"s3cret\"\n{own}{policy}");
        let body = r#"{"queue":{"available_count":7,"available":7},"available":7}"#;
        let (backend, sidecar, client) = answering(200, body, &config).await;
        let login = [("authorization", "Bearer s3cret")];
        for (method, path) in [
            (Method::PUT, "rate-limits/k"),
            (Method::GET, "rate-limits/k"),
            (Method::GET, "rate-limits"),
            (Method::PUT, "admin/queues/q/rate-limit"),
            (Method::GET, "admin/queues/q/config"),
            (Method::GET, "health"),
            (Method::GET, "anything"),
        ] {
            let (is_put, path) = (method == Method::PUT, format!("/ojs/v1/{path}"));
            let body = if is_put { r#"{"concurrency":5}"# } else { "" };
            let reply = client.send(method, &path, &login, body).await;
            assert!(reply.status < 400, "{path}: {}", reply.text());
        }
        let login = [("authorization", "Basic eDpzM2NyZXQ=")];
        for admin in [sidecar.admin().controlling("s3cret"), sidecar.admin()] {
            let path = "/throttle/v1/why?job=j";
            let reply = admin.send(Method::GET, path, &login, "").await;
            assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        }
        let heard = backend.requests();
        let with = |path: &str| {
            let mut of = heard.iter().filter(|(head, _)| head.uri.path() == path);
            let (head, _) = of.next().unwrap_or_else(|| panic!("{path} was not asked"));
            let login = head.headers.get(header::AUTHORIZATION);
            login.map(|login| login.to_str().unwrap().to_owned())
        };
        let leaked = heard.iter().filter(|(head, _)| {
            let headers = format!("{:?}", head.headers);
            headers.contains("s3cret") || headers.contains("eDpzM2NyZXQ")
        });
        let leaked: Vec<_> = leaked.map(|(head, _)| head.uri.path()).collect();
        assert_eq!(leaked, [""; 0]);
        let paths = heard.iter().map(|(head, _)| head.uri.path());
        let of_admin = paths.filter(|path| *path == "/ojs/v1/jobs/j");
        assert_eq!(of_admin.count(), 2);
        assert_eq!(with("/ojs/v1/admin/queues/q").as_deref(), asked_with);
        let lent = with("/ojs/v1/anything");
        assert_eq!(lent, None, "it is no right to the sidecar's own token");
        sidecar.stop().await;
    }
}

/// The sidecar's own token goes to the backend for what is ours. A change of what is not needs the backend's login.
#[tokio::test(start_paused = true)]
async fn the_sidecars_token_is_lent_for_what_is_ours_alone() {
    let config = "control_token = \"s3cret\"\n[upstream]\ntoken = \"own\"\n";
    let (backend, sidecar, client) = answering(200, "{}", config).await;
    let bounds = r#"{"backpressure":{"max_depth":2}}"#;
    let asked = [
        (Method::GET, "queues/q/config", "", true),
        (Method::PUT, "queues/q/config", bounds, true),
        (Method::PUT, "queues/q/config", r#"{"retention":{}}"#, false),
        (Method::GET, "tenants/t", "", true),
        (
            Method::PUT,
            "tenants/t",
            r#"{"limits":{"max_queue_depth":3}}"#,
            true,
        ),
        (Method::PUT, "tenants/t", r#"{"name":"T"}"#, false),
        (Method::DELETE, "tenants/t", "", false),
    ];
    let login = [("authorization", "Bearer s3cret")];
    for (method, path, body, is_ours) in asked {
        let path = format!("/ojs/v1/admin/{path}");
        client.send(method.clone(), &path, &login, body).await;
        let heard = backend.requests();
        let of_it = |(head, _): &&(http::request::Parts, Bytes)| {
            head.method == method && head.uri.path() == path
        };
        let (head, _) = heard
            .iter()
            .rfind(of_it)
            .unwrap_or_else(|| panic!("{method} {path} was not asked"));
        let lent = head.headers.get(header::AUTHORIZATION);
        let expected = is_ours.then(|| header::HeaderValue::from_static("Bearer own"));
        assert_eq!(lent, expected.as_ref(), "{method} {path} {body}");
    }
    sidecar.stop().await;
}

/// Who names a tenant hears of its jobs, and who names none of all.
#[tokio::test(start_paused = true)]
async fn events_of_jobs_are_told_to_their_tenant() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let path = "/ojs/v1/events/stream?types=rate_limit.*";
    let mut all = Listener::open(&client, path, &[]).await;
    let mut its_own = Listener::open(&client, path, &[("x-ojs-tenant", "a")]).await;
    let mut other = Listener::open(&client, path, &[("x-ojs-tenant", "b")]).await;
    let mut job = plain("q");
    job["options"]["rate_limit"] = json!({"key": "k", "concurrency": 1});
    client.enqueue_all(2, &job).await;
    let jobs = client.with("x-ojs-tenant", "a").fetch("q", 5).await;
    assert_eq!(jobs.len(), 1);
    let heard = [&mut all, &mut its_own, &mut other];
    let mut counts = Vec::new();
    for listener in heard {
        counts.push(listener.so_far().await.len());
    }
    assert_eq!(counts, [1, 1, 0]);
}

/// A tenant whose name is not of English letters is one all the same, and no producer's word stands for it.
#[tokio::test(start_paused = true)]
async fn a_tenant_of_any_letters_is_the_one_that_is_named() {
    let config = "trust_tenant_header = true\n[[policy]]\nname = \"crm\"\nkey = \"crm:{tenant}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let job = json!({"type": "t", "args": [], "meta": {"tenant_id": "victim"}, "options": {"queue": "q"}});
    client.enqueue(job).await;
    let jobs = client.with("x-ojs-tenant", "café").fetch("q", 1).await;
    assert_eq!(jobs.len(), 1);
    let active = async |key: &str| {
        let reply = client.get(&format!("/ojs/v1/rate-limits/{key}")).await;
        (reply.status == 200).then(|| reply.json()["concurrency"]["active"].as_u64())
    };
    assert_eq!(active("crm:cafx_C3x_A9").await, Some(Some(1)));
    assert_ne!(active("crm:victim").await, Some(Some(1)));
}

/// It is told where it matters: a limit or a bound goes by tenant, and the job itself does not say whose it is.
#[tokio::test(start_paused = true)]
async fn a_header_that_alone_names_the_tenant_and_is_not_trusted_is_told() {
    let (lines, _logged) = Lines::listen();
    let entries = [
        "[[policy]]\nname = \"crm\"\nkey = \"crm:{tenant}\"\nconcurrency = 9\n",
        "[[tenant]]\nid = \"acme*\"\nlimits = { max_queue_depth = 9 }\n",
        "[[queue]]\nname = \"q\"\nconcurrency = 9\nmax_depth = 9\n",
    ];
    for (entry, told) in entries.into_iter().zip([1, 2, 2]) {
        let (pair, client) = simulated(Lax::spec(), entry).await;
        let client = client.with("x-ojs-tenant", "acme");
        let before = lines.with("id=tenant_untrusted").len();
        for (meta, expected) in [(json!({"tenant_id": "acme"}), before), (json!({}), told)] {
            let mut job = plain("q");
            job["meta"] = meta;
            client.enqueue(job).await;
            assert_eq!(client.fetch("q", 1).await.len(), 1);
            assert_eq!(lines.with("id=tenant_untrusted").len(), expected, "{entry}");
        }
        pair.stop().await;
    }
}

/// Where the header is not trusted it names nobody: whose a job is, its own meta says.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_is_not_trusted_is_none() {
    let config = "[[policy]]\nname = \"crm\"\nkey = \"crm:{tenant}\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    let evil = client.with("x-ojs-tenant", "evil");
    for tenant in ["a", "b", "b"] {
        let job = json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": "q"}});
        evil.enqueue(job).await;
    }
    let jobs = evil.fetch("q", 9).await;
    let tenants: Vec<_> = jobs.iter().map(|job| &job["meta"]["tenant_id"]).collect();
    assert_eq!(tenants, ["a", "b"]);
    let keys = client.get("/ojs/v1/rate-limits").await.json();
    let items = keys["items"].as_array().unwrap().iter();
    let keys: Vec<_> = items.map(|one| &one["key"]).collect();
    assert_eq!(keys, ["crm:a", "crm:b"]);
}

/// After a restart nobody's credentials are known. That a backend has nothing for strangers ends no slot of a job that runs.
#[tokio::test(start_paused = true)]
async fn a_job_that_strangers_do_not_see_keeps_its_slot_after_a_restart() {
    let job = |id: &str| json!({"id": id, "type": "t", "queue": "q", "state": "active", "attempt": 1, "args": []});
    let answers = move |head: &http::request::Parts| {
        let (status, body) = match head.uri.path() {
            "/ojs/v1/admin/jobs" => (200, json!({"items": [job("runs")]})),
            "/ojs/v1/workers/fetch" => (200, json!({"jobs": [job("next")]})),
            "/ojs/v1/jobs/runs" => (404, json!({"error": {"code": "not_found"}})),
            _ => (200, json!({})),
        };
        (status, Bytes::from(body.to_string()))
    };
    let config = format!("[fetch]\nmax_wait = \"1s\"\n{ONE}");
    let (_backend, _sidecar, client) = answering_by(Duration::ZERO, &config, answers).await;
    assert_eq!(fetched(&client, "Bearer a").await, [""; 0]);
    // Its visibility is not known, and 30 s are assumed.
    sleep(Duration::from_secs(45)).await;
    assert_eq!(fetched(&client, "Bearer a").await, [""; 0]);
}

/// Of the sidecar's own token nobody has a share, whatever is looked up or kept for them.
#[tokio::test(start_paused = true)]
async fn who_shows_no_login_does_nothing_with_the_sidecars_token() {
    let says = |head: &http::request::Parts| {
        let sent = head.headers.get(header::AUTHORIZATION);
        let (status, body) = match sent.map(|sent| sent.to_str().unwrap()) {
            Some("Bearer own") => {
                let job = json!({"id": "x", "type": "t", "queue": "q", "state": "available", "args": ["secret"]});
                (200, json!({"job": job, "jobs": [], "jobs_extended": ["x"]}))
            }
            _ => (401, json!({"error": {"code": "unauthorized"}})),
        };
        (status, body.to_string().into())
    };
    let config = format!("[upstream]\ntoken = \"own\"\n{ONE}");
    let (backend, _sidecar, client) = answering_by(Duration::from_millis(50), &config, says).await;
    let error = json!({"code": "c", "message": "m"});
    let nack = json!({"job_id": "x", "worker_id": "w", "error": error}).to_string();
    let beat = json!({"worker_id": "w", "active_jobs": ["x"], "visibility_timeout_ms": 60_000})
        .to_string();
    let send = |path: &'static str, body: &str| client.post(path, body.to_owned());
    let (nack_path, beat_path) = ("/ojs/v1/workers/nack", "/ojs/v1/workers/heartbeat");
    let nacks = (send(nack_path, &nack), send(nack_path, &nack));
    let (first, second, beaten) = tokio::join!(nacks.0, nacks.1, send(beat_path, &beat));
    sleep(Duration::from_secs(5)).await;
    for reply in [first, second, beaten] {
        assert_eq!(reply.status, 401, "{}", reply.text());
        assert!(!reply.text().contains("secret"), "{}", reply.text());
    }
    let lent = backend.requests().into_iter().filter(|(head, _)| {
        let is_own =
            head.headers.get(header::AUTHORIZATION) == Some(&"Bearer own".parse().unwrap());
        is_own && (head.method == Method::POST || head.uri.path() == "/ojs/v1/jobs/x")
    });
    let lent: Vec<_> = lent.map(|(head, _)| head.uri).collect();
    assert!(lent.is_empty(), "{lent:?}");
}

/// Calls that the backend refuses stop nobody's jobs, however many come.
#[tokio::test(start_paused = true)]
async fn a_pause_that_is_refused_stops_nothing() {
    let says = |head: &http::request::Parts| {
        let path = head.uri.path();
        let job = json!({"id": "a0", "type": "t", "queue": "q", "state": "active", "attempt": 1});
        let (status, body) = match path {
            _ if path.ends_with("/pause") => (401, json!({"error": {"code": "unauthorized"}})),
            "/ojs/v1/workers/fetch" => (200, json!({"jobs": [job]})),
            _ => (200, json!({"jobs": []})),
        };
        (status, body.to_string().into())
    };
    let (_backend, sidecar, client) = answering_by(Duration::from_secs(1), ONE, says).await;
    let pausing = async |late: u64| {
        sleep(Duration::from_millis(late)).await;
        let stranger = sidecar.client();
        loop {
            let reply = stranger.post("/ojs/v1/queues/q/pause", "{}").await;
            assert_eq!(reply.status, 401);
        }
    };
    let fetching = async {
        sleep(Duration::from_secs(7)).await;
        for _ in 0..5 {
            if !fetched(&client, "Bearer a").await.is_empty() {
                return true;
            }
        }
        false
    };
    let is_given = tokio::select! {
        given = fetching => given,
        () = pausing(5_000) => false,
        () = pausing(5_500) => false,
    };
    assert!(is_given, "no job starts while strangers ask for a pause");
}
