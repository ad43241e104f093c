//! How many jobs of a tenant may wait, over all queues (9.2, and the multi-tenancy text 8.1, 8.2, 9.3, 10.1).

use super::prelude::*;
use crate::harness::assert_within;

const FILE: &str = "[[tenant]]\nid = \"acme-*\"\nlimits = { max_queue_depth = 2 }\n\
    [[queue]]\nname = \"bounded\"\nmax_depth = 3\n";

async fn offer(client: &Client, queue: &str, tenant: Option<&str>) -> Reply {
    let mut job = plain(queue);
    if let Some(tenant) = tenant {
        job["meta"] = json!({"tenant_id": tenant});
    }
    client.post("/ojs/v1/jobs", job.to_string()).await
}

/// Asserts that it is refused as the multi-tenancy text has it.
fn refused(reply: &Reply, tenant: &str, most: u64) -> Value {
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert!(reply.headers.contains_key("retry-after"));
    let error = reply.json()["error"].clone();
    assert_eq!(error["code"], "TENANT_LIMIT_EXCEEDED");
    let told = ["tenant_id", "limit", "current", "maximum"].map(|name| error[name].clone());
    assert_eq!(json!(told), json!([tenant, "max_queue_depth", most, most]));
    let begins = format!("Tenant '{tenant}' has exceeded max_queue_depth ({most})");
    assert!(error["message"].as_str().unwrap().starts_with(&begins));
    error
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_bounded_over_all_queues() {
    let (_pair, client) = simulated(Lax::spec(), FILE).await;
    let acme = Some("acme-corp");
    assert_eq!(offer(&client, "a", acme).await.status, 201);
    assert_eq!(offer(&client, "bounded", acme).await.status, 201);
    for queue in ["a", "bounded", "never-seen"] {
        refused(&offer(&client, queue, acme).await, "acme-corp", 2);
    }
    // Others have their own, or none.
    assert_eq!(offer(&client, "a", Some("acme-two")).await.status, 201);
    assert_eq!(offer(&client, "a", Some("other")).await.status, 201);
    assert_eq!(offer(&client, "a", None).await.status, 201);
    // A batch that could never fit says so.
    let job = json!({"type": "t", "args": [], "meta": {"tenant_id": "acme-two"}});
    let batch = json!({"jobs": [job, job, job]}).to_string();
    let reply = client.post("/ojs/v1/jobs/batch", batch).await;
    let error = reply.json()["error"].clone();
    assert_eq!((reply.status, &error["retryable"]), (429, &json!(false)));
    // What a worker gets makes room, in whichever queue.
    let first = client.fetch("a", 1).await;
    assert_eq!(first[0]["meta"]["tenant_id"], "acme-corp");
    assert_eq!(offer(&client, "bounded", acme).await.status, 201);
    refused(&offer(&client, "a", acme).await, "acme-corp", 2);
    client.ack(id(&first[0])).await;
    // The queue's own bound holds beside it.
    assert_eq!(offer(&client, "bounded", None).await.status, 201);
    let reply = offer(&client, "bounded", Some("other")).await;
    assert_eq!(reply.json()["error"]["code"], "QUEUE_FULL");
}

/// Of several bounds that an enqueue meets, the first that is told is one that it can never fit. Then comes the
/// tenant's, because no job of others that leaves makes room for it, and then the queue's.
#[tokio::test(start_paused = true)]
async fn what_can_never_fit_is_told_before_a_tenant_and_a_tenant_before_its_queue() {
    let rejects = "[[tenant]]\nid = \"acme-*\"\nlimits = { max_queue_depth = 2 }\n\
        [[queue]]\nname = \"bounded\"\nmax_depth = 4\n";
    let drops = format!("{rejects}strategy = \"drop_oldest\"\n");
    for file in [rejects, drops.as_str()] {
        let (pair, client) = simulated(Lax::spec(), file).await;
        for tenant in ["acme-corp", "acme-corp", "acme-two", "other"] {
            let reply = offer(&client, "bounded", Some(tenant)).await;
            assert_eq!(reply.status, 201, "{}", reply.text());
        }
        let reply = offer(&client, "bounded", Some("acme-corp")).await;
        refused(&reply, "acme-corp", 2);
        let batch = async |tenants: &[&str]| {
            let job = |tenant: &&str| json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": "bounded"}});
            let body = json!({"jobs": tenants.iter().map(job).collect::<Vec<_>>()});
            let reply = client.post("/ojs/v1/jobs/batch", body.to_string()).await;
            let error = &reply.json()["error"];
            json!([error["code"], error["retryable"]])
        };
        let never = |code: &str| json!([code, false]);
        let tenants = batch(&["acme-three"; 3]).await;
        assert_eq!(tenants, never("TENANT_LIMIT_EXCEEDED"), "{file}");
        let mixed = batch(&["acme-corp", "a", "b", "c", "d"]).await;
        assert_eq!(mixed, never("QUEUE_FULL"), "{file}");
        let waiting = crate::backpressure::rig::waiting(&pair.behind.backend, "bounded").await;
        assert_eq!(waiting, 4, "nobody's job went for it");
        pair.stop().await;
    }
}

/// A backend that is away may know that jobs of the tenant have left: until it answers nobody is told that the tenant has
/// too many, however often it asks.
#[tokio::test(start_paused = true)]
async fn a_backend_that_is_down_is_no_full_tenant() {
    let (pair, client) = simulated(Lax::spec(), FILE).await;
    let acme = Some("acme-corp");
    for _ in 0..2 {
        assert_eq!(offer(&client, "a", acme).await.status, 201);
    }
    refused(&offer(&client, "a", acme).await, "acme-corp", 2);
    pair.behind.stop().await;
    sleep(Duration::from_millis(150)).await;
    for _ in 0..3 {
        let reply = offer(&client, "a", acme).await;
        assert_eq!(reply.status, 502, "{}", reply.text());
    }
    pair.sidecar.stop().await;
}

/// Whose an enqueue is says the header where it is trusted, and the job's meta where it is not.
#[tokio::test(start_paused = true)]
async fn a_header_that_is_trusted_names_the_tenant() {
    for (server, header_counts) in [("trust_tenant_header = true\n", true), ("", false)] {
        let (pair, client) = simulated(Lax::spec(), &format!("{server}{FILE}")).await;
        let offer = async |header: &str, meta: &str| {
            let job = json!({"type": "t", "args": [], "meta": {"tenant_id": meta}});
            let client = client.with("x-ojs-tenant", header);
            client.post("/ojs/v1/jobs", job.to_string()).await
        };
        for _ in 0..2 {
            assert_eq!(offer("acme-one", "acme-two").await.status, 201);
        }
        let (full, free) = match header_counts {
            true => ("acme-one", "acme-two"),
            false => ("acme-two", "acme-one"),
        };
        let of = async |tenant: &str| match header_counts {
            true => offer(tenant, "other").await,
            false => offer("other", tenant).await,
        };
        refused(&of(full).await, full, 2);
        assert_eq!(of(free).await.status, 201, "{server}");
        pair.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_set_over_http_in_every_shape_of_the_text() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let path = "/ojs/v1/admin/tenants/acme-corp";
    assert_eq!(client.get(path).await.status, 404, "nothing is said of it");
    // 9.2 of the backpressure text, as it stands there.
    let body = json!({"tenant_id": "acme-corp", "limits": {"max_queue_depth": 50000}});
    let reply = client.put(path, body.clone()).await;
    assert_eq!((reply.status, reply.json()), (200, body.clone()));
    assert_eq!(client.get(path).await.json(), body);
    // 9.3 of the multi-tenancy text.
    let less = json!({"max_queue_depth": 1, "reason": "Incident response"});
    let reply = client.put(&format!("{path}/limits"), less).await;
    assert_eq!(reply.json()["limits"], json!({"max_queue_depth": 1}));
    let acme = Some("acme-corp");
    assert_eq!(offer(&client, "q", acme).await.status, 201);
    refused(&offer(&client, "q", acme).await, "acme-corp", 1);
    // Limits of the backend's are no word about ours.
    let theirs = json!({"limits": {"max_concurrency": 5}});
    client.put(path, theirs).await;
    refused(&offer(&client, "q", acme).await, "acme-corp", 1);
    // 0 is any number; `null`, no limits and DELETE forget.
    for (to, none) in [
        ("", json!({"limits": {"max_queue_depth": 0}})),
        ("", json!({"limits": {"max_queue_depth": null}})),
        ("", json!({"limits": null})),
        ("", json!({"limits": {}})),
        ("/limits", json!({"max_queue_depth": null})),
        ("/limits", json!({})),
        ("/limits", json!(null)),
    ] {
        let one = json!({"max_queue_depth": 1});
        assert_eq!(client.put(&format!("{path}/limits"), one).await.status, 200);
        let reply = client.put(&format!("{path}{to}"), none.clone()).await;
        assert_eq!(reply.status, 200, "{to} {none}");
        assert_eq!(offer(&client, "q", acme).await.status, 201, "{to} {none}");
    }
    let one = json!({"max_queue_depth": 1});
    assert_eq!(client.put(&format!("{path}/limits"), one).await.status, 200);
    assert_eq!(client.delete(path).await.status, 200);
    assert_eq!(client.delete(path).await.status, 404);
    assert_eq!(offer(&client, "q", acme).await.status, 201);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_refused_and_changes_nothing() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let path = "/ojs/v1/admin/tenants/acme";
    for (to, body, named) in [
        (
            "",
            json!({"limits": {"max_queue_depth": -1}}),
            "limits.max_queue_depth",
        ),
        (
            "",
            json!({"limits": {"max_queue_depth": "9"}}),
            "limits.max_queue_depth",
        ),
        (
            "/limits",
            json!({"max_queue_depth": 1.5}),
            "max_queue_depth",
        ),
        (
            "",
            json!({"tenant_id": "b", "limits": {"max_queue_depth": 1}}),
            "tenant_id",
        ),
    ] {
        let reply = client.put(&format!("{path}{to}"), body).await;
        assert_eq!(reply.status, 400, "{}", reply.text());
        assert_eq!(reply.json()["error"]["details"]["field"], named);
    }
    // That of jobs which name no tenant is one.
    for (id, status) in [("a%20b", 400), ("_others", 400), ("_default", 200)] {
        let of = format!("/ojs/v1/admin/tenants/{id}/limits");
        let reply = client.put(&of, json!({"max_queue_depth": 1})).await;
        assert_eq!(reply.status, status, "{id}: {}", reply.text());
    }
    for status in [201, 429] {
        assert_eq!(client.offer("q").await.status, status);
    }
    // What says nothing of ours is the backend's.
    let reply = client.put(path, json!({"fairness_weight": 2})).await;
    assert_eq!(reply.status, 404);
    assert_eq!(client.get(path).await.status, 404);
}

/// A backend that has the route hears every word, and what it refuses is not set.
#[tokio::test(start_paused = true)]
async fn the_backend_hears_of_it_first() {
    let answers = |method: &Method, path: &str| match (method, path) {
        (_, "/ojs/v1/admin/tenants/no") => (422, r#"{"error":{"code":"no"}}"#.to_owned()),
        (&Method::GET, "/ojs/v1/admin/tenants/acme") => (
            200,
            r#"{"tenant_id":"acme","limits":{"max_concurrency":5}}"#.to_owned(),
        ),
        (_, "/ojs/v1/admin/tenants/acme") => (200, "{}".to_owned()),
        _ => (404, "404 page not found".to_owned()),
    };
    let (backend, _sidecar, client) = told("", Duration::ZERO, answers).await;
    let body =
        json!({"limits": {"max_concurrency": 5, "max_queue_depth": 7}, "fairness_weight": 3});
    let path = "/ojs/v1/admin/tenants/acme";
    let reply = client.put(path, body.clone()).await;
    assert_eq!(reply.json(), json!({"limits": {"max_queue_depth": 7}}));
    assert_eq!(backend.bodies(path), [body.to_string()]);
    let shown = client.get(path).await.json();
    let both = json!({"max_concurrency": 5, "max_queue_depth": 7});
    assert_eq!(shown["limits"], both);
    let path = "/ojs/v1/admin/tenants/no";
    assert_eq!(client.put(path, body).await.status, 422);
    assert_eq!(client.get(&config("q")).await.status, 404);
    assert_eq!(client.get(path).await.status, 422);
}

/// An id is bounded as it stands in the job, whatever keys would make of it.
#[tokio::test(start_paused = true)]
async fn ids_are_not_escaped() {
    let file = "[[tenant]]\nid = [\"fedex_eu\", \"_own\"]\nlimits = { max_queue_depth = 1 }\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let path = "/ojs/v1/admin/tenants/org:acme/limits";
    let reply = client.put(path, json!({"max_queue_depth": 1})).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    for id in ["org:acme", "fedex_eu", "_own"] {
        assert_eq!(offer(&client, "q", Some(id)).await.status, 201);
        refused(&offer(&client, "q", Some(id)).await, id, 1);
    }
}

/// A batch of many tenants, into queues with few and with many.
#[tokio::test(start_paused = true)]
async fn each_tenant_of_a_batch_is_bounded() {
    let file = "[[tenant]]\nid = \"*\"\nlimits = { max_queue_depth = 2 }\n";
    let (_pair, client) = simulated(Lax::spec(), file).await;
    let batch = async |tenants: &[&str], queue: &str| {
        let job = |tenant: &&str| json!({"type": "t", "args": [], "meta": {"tenant_id": tenant}, "options": {"queue": queue}});
        let jobs: Vec<Value> = tenants.iter().map(job).collect();
        let body = json!({"jobs": jobs}).to_string();
        client.post("/ojs/v1/jobs/batch", body).await
    };
    assert_eq!(batch(&["a", "b", "c", "d"], "many").await.status, 201);
    assert_eq!(batch(&["b"], "few").await.status, 201);
    for queue in ["many", "few", "other"] {
        refused(&batch(&["a", "b", "c"], queue).await, "b", 2);
        refused(&batch(&["b"], queue).await, "b", 2);
    }
    assert_eq!(batch(&["a", "c", "d", "e"], "few").await.status, 201);
    refused(&batch(&["d"], "many").await, "d", 2);
}

/// Batches into queues that nobody has, all refused: what the tenant has in its own is not forgotten for them.
#[tokio::test(start_paused = true)]
async fn queues_that_are_made_up_forget_no_jobs() {
    let (_pair, client) = simulated(Lax::spec(), FILE).await;
    let acme = Some("acme-corp");
    for _ in 0..2 {
        assert_eq!(offer(&client, "a", acme).await.status, 201);
    }
    sleep(Duration::from_millis(1)).await;
    for batch in 0..120 {
        let jobs = (0..100).map(|nth| {
            let options = json!({"queue": format!("made-up-{batch}-{nth}")});
            json!({"type": "t", "args": [], "meta": {"tenant_id": "acme-corp"}, "options": options})
        });
        let body = json!({"jobs": jobs.collect::<Vec<_>>()}).to_string();
        let reply = client.post("/ojs/v1/jobs/batch", body).await;
        assert_eq!(reply.status, 429, "{}", reply.text());
        sleep(Duration::from_millis(1)).await;
    }
    refused(&offer(&client, "a", acme).await, "acme-corp", 2);
}

/// A held job that is cancelled makes room for its tenant, whatever else waits in its queue.
#[tokio::test(start_paused = true)]
async fn a_held_job_that_is_cancelled_makes_room() {
    let held = format!("{FILE}[[policy]]\nname = \"p\"\nkey = \"p:{{type}}\"\nconcurrency = 0\n");
    let (pair, client) = simulated(Lax::spec(), &held).await;
    let acme = Some("acme-corp");
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let reply = offer(&client, "bounded", acme).await.json();
        jobs.push(reply["job"]["id"].as_str().unwrap().to_owned());
    }
    assert!(client.fetch("bounded", 2).await.is_empty(), "both are held");
    for _ in 0..5 {
        let job = plain("a");
        directly(&pair.behind.backend, "/ojs/v1/jobs", job).await;
    }
    refused(&offer(&client, "a", acme).await, "acme-corp", 2);
    for job in jobs {
        client.cancel(&job).await;
    }
    assert_eq!(offer(&client, "a", acme).await.status, 201);
}

/// Jobs that leave behind our back, in queues that nobody uses any more, keep no tenant out: one that is refused
/// nor one that waits.
#[tokio::test(start_paused = true)]
async fn jobs_that_left_unseen_keep_nobody_out() {
    let file = format!("{FILE}[[queue]]\nname = \"waits\"\nmax_depth = 9\nstrategy = \"block\"\n");
    let (pair, client) = simulated(Lax::spec(), &file).await;
    let acme = Some("acme-corp");
    let backend = &pair.behind.backend;
    let cancel = async |job: &str| {
        let path = format!("/ojs/v1/admin/jobs/{job}/cancel");
        directly(backend, &path, json!({})).await;
    };
    let mut jobs = Vec::new();
    for queue in ["a", "b"] {
        let reply = offer(&client, queue, acme).await.json();
        jobs.push(reply["job"]["id"].as_str().unwrap().to_owned());
    }
    sleep(Duration::from_millis(150)).await;
    refused(&offer(&client, "c", acme).await, "acme-corp", 2);
    cancel(&jobs[0]).await;
    sleep(Duration::from_millis(150)).await;
    assert_eq!(offer(&client, "c", acme).await.status, 201);
    refused(&offer(&client, "c", acme).await, "acme-corp", 2);
    let waits = tokio::spawn(async move {
        let job = json!({"type": "t", "args": [], "meta": {"tenant_id": "acme-corp"},
            "options": {"queue": "waits"}});
        let client = client.with("ojs-block-timeout", "10");
        client.post("/ojs/v1/jobs", job.to_string()).await.status
    });
    sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished());
    cancel(&jobs[1]).await;
    sleep(Duration::from_secs(1)).await;
    assert!(waits.is_finished());
    assert_eq!(waits.await.unwrap(), 201);
}

/// A tenant that has its share is looked at again and again, while it asks and while it waits. No other producer of its
/// queue waits for the end of these looks.
#[tokio::test(start_paused = true)]
async fn a_tenant_that_has_its_share_keeps_no_other_waiting() {
    let file = "[[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 2 }\n\
        [[queue]]\nname = \"q\"\nmax_depth = 1000\nstrategy = \"block\"\n";
    let slow = Duration::from_millis(20);
    for patience in ["0", "20"] {
        let stored = AtomicU64::new(0);
        let answers = move |_: &Method, path: &str| match path {
            "/ojs/v1/jobs" => {
                let id = stored.fetch_add(1, Ordering::SeqCst).to_string();
                (201, json!({"job": {"id": id, "queue": "q"}}).to_string())
            }
            _ => {
                let available = stored.load(Ordering::SeqCst);
                (200, json!({"counts": {"available": available}}).to_string())
            }
        };
        let (backend, _sidecar, client) = told(file, slow, answers).await;
        for _ in 0..2 {
            assert_eq!(offer(&client, "q", Some("acme")).await.status, 201);
        }
        let full = client.with("ojs-block-timeout", patience);
        let full = tokio::spawn(async move {
            loop {
                refused(&offer(&full, "q", Some("acme")).await, "acme", 2);
                sleep(Duration::from_millis(10)).await;
            }
        });
        let before = backend.asked(Method::GET, "queues/q");
        for _ in 0..60 {
            sleep(Duration::from_millis(33)).await;
            let begun = Instant::now();
            assert_eq!(offer(&client, "q", None).await.status, 201);
            assert_within(begun.elapsed(), slow * 5 / 4, patience);
        }
        let looks = backend.asked(Method::GET, "queues/q") - before;
        assert!(looks >= 20, "only {looks}: {patience}");
        full.abort();
    }
}

/// A tenant in many queues: each refusal asks about some of them, so that all are asked about in the end.
#[tokio::test(start_paused = true)]
async fn many_queues_are_looked_at_by_and_by() {
    let file = "[[tenant]]\nid = \"acme\"\nlimits = { max_queue_depth = 40 }\n";
    let there = Arc::new(AtomicU64::new(1));
    let jobs = there.clone();
    let answers = move |method: &Method, path: &str| match path {
        "/ojs/v1/jobs" => (201, r#"{"job":{"id":"x","queue":"q"}}"#.to_owned()),
        "/ojs/v1/jobs/batch" => {
            let all: Vec<Value> = (0..40)
                .map(|nth| json!({"id": format!("x{nth}"), "queue": format!("q{nth}")}))
                .collect();
            (201, json!({ "jobs": all }).to_string())
        }
        _ if *method == Method::GET && path.contains("/admin/queues/") => {
            let available = jobs.load(Ordering::SeqCst);
            (200, json!({"counts": {"available": available}}).to_string())
        }
        _ => (404, "404 page not found".to_owned()),
    };
    let (backend, _sidecar, client) = told(file, Duration::ZERO, answers).await;
    let job = |queue: String| json!({"type": "t", "args": [], "meta": {"tenant_id": "acme"}, "options": {"queue": queue}});
    let all: Vec<Value> = (0..40).map(|nth| job(format!("q{nth}"))).collect();
    let body = json!({ "jobs": all }).to_string();
    let reply = client.post("/ojs/v1/jobs/batch", body).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    sleep(Duration::from_millis(150)).await;
    let more = job("q".to_owned()).to_string();
    let before = backend.asked(Method::GET, "/admin/queues/q");
    refused(&client.post("/ojs/v1/jobs", more.clone()).await, "acme", 40);
    let looks = backend.asked(Method::GET, "/admin/queues/q") - before;
    assert_eq!(looks, 16 + 1, "and the queue itself");
    refused(&client.post("/ojs/v1/jobs", more.clone()).await, "acme", 40);
    refused(&client.post("/ojs/v1/jobs", more.clone()).await, "acme", 40);
    let looks = backend.asked(Method::GET, "/admin/queues/q") - before;
    assert_eq!(looks, 40 + 1, "none of them twice");
    there.store(0, Ordering::SeqCst);
    sleep(Duration::from_millis(150)).await;
    assert_eq!(client.post("/ojs/v1/jobs", more).await.status, 201);
}

/// That tenants are bounded keeps no queue from growing: it is warned of like others.
#[tokio::test(start_paused = true)]
async fn a_queue_whose_tenants_are_bounded_has_no_bound_of_its_own() {
    let (_guard, log) = logged();
    let (_pair, client) = simulated(Lax::spec(), FILE).await;
    offer(&client, "a", Some("acme-corp")).await;
    offer(&client, "bounded", Some("acme-corp")).await;
    offer(&client, "a", None).await;
    sleep(Duration::from_secs(5)).await;
    let lines = log.with("no bound");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let is_warned = lines[0].starts_with("WARN") && lines[0].contains("queue=\"a\"");
    assert!(is_warned, "{lines:?}");
}
