//! The list of keys (10.3), and what manifest and health say of us.

use super::prelude::*;
use super::upstream::answering;
use crate::sidecar::settings;

async fn name_keys(client: &Client, keys: &[&str]) {
    for key in keys {
        let policy = json!({"key": key, "concurrency": 5});
        let job = json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": policy}});
        client.enqueue(job).await;
    }
}

/// `items` and `pagination` as in the text, `rate_limits` as the command line reads them, and flat
/// members for the admin UI.
#[tokio::test(start_paused = true)]
async fn the_list_has_the_shapes_that_are_read() {
    let config = "[[policy]]\nname = \"stripe\"\nconcurrency = 5\nrate = { limit = 100, period = \"1m\" }\n\
                  [[policy]]\nname = \"spaced\"\nmatch = { queue = \"other\" }\nthrottle = { limit = 10, period = \"1s\" }\n";
    let (_pair, client) = simulated(Lax::spec(), config).await;
    name_keys(&client, &["b"]).await;
    let set = json!({"limit": 1, "period": "1h", "reason": "why"});
    client.limit("a", set).await;
    assert_eq!(client.fetch("q", 1).await.len(), 1);
    let list = client.get("/ojs/v1/rate-limits").await;
    assert_eq!(list.headers["content-type"], "application/openjobspec+json");
    let list = list.json();
    assert_eq!(
        list["pagination"],
        json!({"total": 4, "page": 1, "per_page": 20})
    );
    let items = list["items"].as_array().unwrap();
    let keys: Vec<&Value> = items.iter().map(|item| &item["key"]).collect();
    let sorted = ["a", "b", "spaced", "stripe"];
    assert_eq!(keys, sorted, "constant keys of the file too");
    let set = json!({"rate": {"limit": 1, "period": "PT1H"}, "reason": "why", "limit": 1, "period": "PT1H"});
    assert_eq!(items[0]["override"], set);
    let stripe = &items[3];
    let slots = json!({"limit": 5, "active": 1, "available": 4});
    assert_eq!(stripe["concurrency"], slots);
    let rate = ["limit", "period", "current_count"].map(|name| stripe["rate"][name].clone());
    assert_eq!(json!(rate), json!([100, "PT1M", 1]));
    let flat = ["waiting_count", "limit", "period", "active", "waiting"];
    let flat = flat.map(|name| stripe[name].clone());
    assert_eq!(json!(flat), json!([0, 100, "PT1M", 1, 0]));
    assert_eq!(stripe.get("override"), None);
    assert_eq!(
        (&items[2]["limit"], &items[2]["period"]),
        (&json!(10), &json!("PT1S"))
    );
    let lines = list["rate_limits"].as_array().unwrap();
    assert_eq!(lines.len(), 4);
    let line = json!({"key": "stripe", "concurrency": 5, "active": 1, "available": 4});
    assert_eq!(lines[3], line);
    assert_eq!(lines[2], json!({"key": "spaced", "active": 0}));
}

#[tokio::test(start_paused = true)]
async fn pages_are_cut_where_they_are_asked_to_be() {
    let (_pair, client) = simulated(Lax::spec(), "").await;
    let names: Vec<String> = (0..45).map(|n| format!("k{n:02}")).collect();
    let shuffled: Vec<&str> = (0..45).map(|n| names[n * 7 % 45].as_str()).collect();
    name_keys(&client, &shuffled).await;
    let page = async |query: &str| {
        let list = client.get(&format!("/ojs/v1/rate-limits{query}")).await;
        let list = list.json();
        assert_eq!(list["pagination"]["total"], 45);
        let keys = list["items"].as_array().unwrap().iter();
        keys.map(|item| item["key"].as_str().unwrap().to_owned())
            .collect::<Vec<String>>()
    };
    assert_eq!(page("").await, names[..20]);
    assert_eq!(page("?page=2").await, names[20..40]);
    assert_eq!(page("?page=3&other=x").await, names[40..]);
    assert_eq!(page("?per_page=7&page=2").await, names[7..14]);
    assert_eq!(page("?per_page=100").await, names);
    assert!(page("?page=1000000000&per_page=100").await.is_empty());
    for (query, field) in [
        ("page=0", "page"),
        ("page=-1", "page"),
        ("page=x", "page"),
        ("page=", "page"),
        ("page=1.5", "page"),
        ("per_page=0", "per_page"),
        ("per_page=101", "per_page"),
        ("per_page=99999999999999999999", "per_page"),
    ] {
        let reply = client.get(&format!("/ojs/v1/rate-limits?{query}")).await;
        let error = reply.refuses(400, "invalid_request", query);
        assert_eq!(error["details"]["field"], field, "{query}");
    }
}

/// 12.1: where the limits that jobs bring are ignored, nobody is told that they are enforced.
#[tokio::test(start_paused = true)]
async fn the_manifest_names_no_extension_that_is_ignored() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    for (rest, named) in [("[job_policies]\naccept = \"ignore\"\n", false), ("", true)] {
        let next = settings(&pair.behind.base(), rest);
        assert_eq!(pair.sidecar.reload.apply(next).word(), "applied");
        let manifest = client.get("/ojs/manifest").await;
        let text = manifest.text();
        assert_eq!(manifest.json()["capabilities"]["rate_limiting"], named);
        assert_eq!(text.contains("urn:ojs:ext:rate-limiting"), named, "{text}");
        assert!(text.contains("urn:ojs:ext:backpressure"), "{text}");
    }
}

/// Both shapes of manifests that backends have, and nothing else of it changed.
#[tokio::test(start_paused = true)]
async fn the_manifest_names_the_extension() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let manifest = client.get("/ojs/manifest").await;
    let length = manifest.body.len().to_string();
    assert_eq!(manifest.headers["content-length"], length);
    let manifest = manifest.json();
    assert_eq!(manifest["capabilities"]["rate_limiting"], true);
    assert_eq!(manifest["capabilities"]["batch_enqueue"], true);
    assert_eq!(manifest["implementation"]["backend"], "memory");
    let first = &manifest["extensions"]["official"][0];
    assert_eq!(first["uri"], "urn:ojs:ext:rate-limiting");
    pair.stop().await;
    let list = r#"{"capabilities": ["batch"], "levels": [0, 1.0]}"#;
    let (heard, sidecar, client) = answering(200, list, "").await;
    let packed = [("accept-encoding", "gzip")];
    let manifest = client.send(Method::GET, "/ojs/manifest", &packed, "").await;
    let begins = r#"{"capabilities": ["batch","rate_limiting","backpressure"], "levels": [0, 1.0],"extensions":{"#;
    let text = manifest.text();
    assert!(text.starts_with(begins), "{text}");
    let (head, _) = heard.requests().pop().unwrap();
    let coding = &head.headers["accept-encoding"];
    assert_eq!(coding, "identity", "packed it could not be read");
    sidecar.stop().await;
    for (status, body) in [(500, r#"{"capabilities":[]}"#), (200, "plain"), (200, "")] {
        let (_, sidecar, client) = answering(status, body, "").await;
        let reply = client.get("/ojs/manifest").await;
        assert_eq!((reply.status, reply.text().as_str()), (status, body));
        sidecar.stop().await;
    }
}

/// Health has an object of ours, whatever the backend says of itself.
#[tokio::test(start_paused = true)]
async fn health_has_a_throttle_object() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let mut job = plain("q");
    job["options"]["rate_limit"] = json!({"key": "k", "concurrency": 1});
    client.enqueue_all(3, &job).await;
    assert_eq!(client.fetch("q", 3).await.len(), 1);
    let health = client.get("/ojs/v1/health").await.json();
    assert_eq!(health["status"], "ok");
    assert_eq!(health["backend"]["type"], "memory");
    let ours = json!({"status": "ok", "config_file": "in_force", "held": 2, "slots": 1, "near_bound": 0, "blocked": 0,
        "version": env!("CARGO_PKG_VERSION")});
    assert_eq!(health["throttle"], ours);
    pair.stop().await;
    let (_, _sidecar, client) = answering(503, r#"{"status":"degraded", "n": 1.0}"#, "").await;
    let reply = client.get("/ojs/v1/health").await;
    assert_eq!(reply.status, 503);
    let begins = r#"{"status":"degraded", "n": 1.0,"throttle":{"status":"ok","config_file":"in_force","held":0,"slots":0,"#;
    assert!(reply.text().starts_with(begins), "{}", reply.text());
}

/// Whoever reads only `application/json` gets errors of the sidecar's own so, too.
#[tokio::test(start_paused = true)]
async fn errors_are_labelled_as_everything_else_is() {
    const HTTPX: &str = "python-httpx/0.28";
    const PLAIN: &str = "application/json";
    const OJS: &str = "application/openjobspec+json";
    for (config, agent, label) in [
        ("", HTTPX, PLAIN),
        ("", "other", OJS),
        ("[repairs]\nmedia_type = \"always\"\n", "other", PLAIN),
        ("[repairs]\nmedia_type = \"off\"\n", HTTPX, OJS),
    ] {
        let (pair, client) = simulated(Lax::spec(), config).await;
        for (method, path, status) in [
            (Method::GET, "/ojs/v1/rate-limits", 200),
            (Method::GET, "/ojs/v1/rate-limits/nope", 404),
            (Method::POST, "/ojs/v1/rate-limits", 405),
            (Method::GET, "/ojs/v1/rate-limits?page=0", 400),
            (Method::GET, "/ojs/v1//jobs", 400),
        ] {
            let headers = [("user-agent", agent)];
            let reply = client.send(method, path, &headers, "").await;
            assert_eq!(reply.status, status, "{path}");
            assert_eq!(reply.headers["content-type"], label, "{config} {path}");
        }
        pair.stop().await;
    }
}

/// The header names a policy; who looks for it as a key is told which keys it makes.
#[tokio::test(start_paused = true)]
async fn the_name_of_a_policy_leads_to_its_keys() {
    let config = "[[policy]]\nname = \"per-customer\"\nmatch = { queue = \"q\" }\n\
                  key = \"crm:{meta.tenant_id}\"\nconcurrency = 5\n\
                  [[policy]]\nname = \"stripe\"\nmatch = { queue = \"r\" }\nkey = \"stripe-api\"\nconcurrency = 5\n";
    let rig = Rig::with(config).await;
    for (name, message, hint) in [
        (
            "per-customer",
            "its key is \"crm:{meta.tenant_id}\"",
            "rate-limits lists those in use",
        ),
        (
            "stripe",
            "its key is \"stripe-api\"",
            "name the policy's key",
        ),
        ("nobody", "has named the rate limit key", "claimed a job"),
    ] {
        let replies = [
            rig.client.get(&format!("/ojs/v1/rate-limits/{name}")).await,
            rig.admin.get(&format!("/throttle/v1/why?key={name}")).await,
        ];
        for reply in replies {
            assert_eq!(reply.status, 404, "{}", reply.text());
            let error = &reply.json()["error"];
            for (member, words) in [("message", message), ("hint", hint)] {
                assert!(error[member].as_str().unwrap().contains(words), "{error}");
            }
        }
    }
}
