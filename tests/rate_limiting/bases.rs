//! Subqueues are seen by nobody: what a client gets names their bases, and a client that names one is refused. Where
//! there are none, replies are the backend's own.

use super::prelude::*;
use crate::harness::table;
use crate::sidecar::answering::answering_by;

const MARKER: &str = "-ojst-";

/// A sidecar that knows that there are subqueues.
const WITH_SUBQUEUES: &str = "[[queue]]\nname = \"mail\"\nsubqueues = true\n[[policy]]\nname = \"all\"\n\
    key = \"{meta.tenant}\"\nconcurrency = 9\n";

/// Whether the marker of subqueues is in any byte of a reply.
fn shows_subqueues(reply: &Reply) -> bool {
    let mut head = reply.headers.iter();
    let in_head = head.any(|(name, value)| format!("{name}: {value:?}").contains(MARKER));
    in_head || String::from_utf8_lossy(&reply.body).contains(MARKER)
}

#[track_caller]
fn is_clean(reply: &Reply, what: &str) {
    assert!(!shows_subqueues(reply), "{what}: {}", reply.text());
}

fn job(queue: &str) -> Value {
    let options = json!({"queue": queue, "retry": {"on_exhaustion": "dead_letter"}});
    json!({"type": "t", "args": [], "options": options})
}

/// A client of the backend, and the ids of jobs there: two wait in each of two subqueues, in their base and in a queue
/// of its own, and one more of each subqueue runs.
async fn backlog(client: &Client) -> Vec<String> {
    let mut ids = Vec::new();
    for queue in ["mail-ojst-7f", "mail-ojst-00"] {
        client.enqueue(job(queue)).await;
        ids.push(id(&client.fetch(queue, 1).await[0]).to_owned());
    }
    for queue in ["mail-ojst-7f", "mail", "mail-ojst-00", "other"] {
        for _ in 0..2 {
            ids.push(client.enqueue(job(queue)).await);
        }
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn no_view_of_the_backend_shows_a_subqueue() {
    let (pair, client) = simulated(Lax::spec(), WITH_SUBQUEUES).await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    let ids = backlog(&direct).await;
    let act = async |path: &str, body: Value| {
        let path = &format!("/ojs/v1/{path}");
        let reply = client.post(path, body.to_string()).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        is_clean(&reply, path);
        assert!(reply.text().contains(r#""queue":"mail""#), "{path}");
    };
    let error = json!({"code": "c", "message": "m", "retryable": false});
    let nack = json!({"job_id": ids[1], "worker_id": "w", "error": error});
    act("workers/nack", nack).await;
    let mut seen = 0;
    for path in [
        &*format!("jobs/{}", ids[0]),
        &*format!("jobs/{}", ids[2]),
        &*format!("admin/jobs/{}", ids[2]),
        "admin/jobs",
        "admin/jobs?state=available&per_page=2&page=2",
        "queues",
        "admin/queues",
        "admin/queues?per_page=1&page=2",
        "admin/stats",
        "queues/mail/stats",
        "admin/queues/mail",
        "dead-letter",
        "admin/dead-letter",
        "admin/dead-letter/stats",
        "admin/workers",
        "rate-limits",
        "health",
    ] {
        let path = format!("/ojs/v1/{path}");
        let theirs = direct.get(&path).await;
        seen += usize::from(shows_subqueues(&theirs));
        let ours = client.get(&path).await;
        is_clean(&ours, &path);
    }
    assert!(seen >= 8, "{seen} views of the backend show subqueues");
    // It passes unread.
    is_clean(&client.get("/ojs/v1/events").await, "events");
    let ack = json!({"job_id": ids[0], "worker_id": "w"});
    act("workers/ack", ack).await;
    act(&format!("dead-letter/{}/retry", ids[1]), json!({})).await;
    act(&format!("admin/jobs/{}/cancel", ids[2]), json!({})).await;
    let cancelled = client.delete(&format!("/ojs/v1/jobs/{}", ids[3])).await;
    is_clean(&cancelled, "DELETE");
}

/// Without subqueues each view is the backend's own, byte for byte, whatever its queues are called.
#[tokio::test(start_paused = true)]
async fn without_subqueues_views_are_as_they_came() {
    let (pair, client) = simulated(Lax::spec(), "").await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    let ids = backlog(&direct).await;
    for path in [
        &*format!("jobs/{}", ids[0]),
        "admin/jobs",
        "queues",
        "admin/queues",
        "admin/stats",
        "queues/mail-ojst-7f/stats",
        "admin/queues/mail-ojst-7f",
        "dead-letter",
        "admin/workers",
        "events",
    ] {
        let path = format!("/ojs/v1/{path}");
        let (theirs, ours) = (direct.get(&path).await, client.get(&path).await);
        let theirs = (theirs.status, theirs.text());
        assert_eq!((ours.status, ours.text()), theirs, "{path}");
    }
}

/// What the lists of the backend say of a queue's entries together is what ours say of one.
#[tokio::test(start_paused = true)]
async fn lists_have_each_queue_once_with_the_numbers_of_all() {
    let (pair, client) = simulated(Lax::spec(), WITH_SUBQUEUES).await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    backlog(&direct).await;
    for at in ["queues/mail/pause", "queues/mail-ojst-77/pause"] {
        direct.post(&format!("/ojs/v1/{at}"), "{}").await;
    }
    let lists = async |path: &str, list: &str| {
        let (theirs, ours) = (direct.get(path).await.json(), client.get(path).await.json());
        assert_eq!(theirs["pagination"]["total"], 5, "{path}");
        assert_eq!(ours["pagination"]["total"], 2, "{path}");
        [theirs, ours].map(|reply| reply[list].as_array().unwrap().clone())
    };
    let [theirs, ours] = lists("/ojs/v1/admin/queues", "items").await;
    for (name, jobs) in [("mail", 6), ("other", 2)] {
        let of_queue = |entry: &&Value| entry["name"].as_str().unwrap().starts_with(name);
        let ours: Vec<&Value> = ours.iter().filter(of_queue).collect();
        let [ours] = ours[..] else { panic!("{ours:?}") };
        assert_eq!(ours["name"], name);
        assert_eq!(ours["paused"], name == "mail");
        assert_eq!(ours["counts"]["available"], jobs, "{ours}");
        for (state, count) in ours["counts"].as_object().unwrap() {
            let each = theirs.iter().filter(of_queue);
            let each = each.map(|entry| entry["counts"][state].as_i64().unwrap());
            assert_eq!(count.as_i64(), Some(each.sum()), "{name} {state}");
        }
    }
    let [_, ours] = lists("/ojs/v1/queues", "queues").await;
    let names = ours.iter().map(|one| one["name"].as_str().unwrap());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    assert_eq!(names, ["mail", "other"]);
}

/// Whatever a backend says where, and in whatever words.
#[tokio::test(start_paused = true)]
async fn no_reply_shows_a_subqueue() {
    let says = |head: &http::request::Parts| {
        let job = json!({"id": "0190-1", "type": "t", "queue": "mail-ojst-7f", "state": "active", "attempt": 1, "args": []});
        let mut body = json!({
            "job": job,
            "jobs": [job],
            "queue": "mail-ojst-7f",
            "items": [{"queues": [{"name": "mail-ojst-7f"}]}, {"queues": ["mail", "mail-ojst-7f"]}],
            "by_queue": {"mail-ojst-7f": 1},
        });
        let is_failure = head.uri.path().contains("dead");
        if is_failure {
            body["error"] = json!({
                "code": "conflict",
                "message": "Queue 'mail-ojst-7f' is paused, mail-ojst-00 too.",
                "details": {"of": ["mail-ojst-7f"]},
            });
        }
        let status = if is_failure { 409 } else { 200 };
        (status, Bytes::from(body.to_string()))
    };
    let (_, _sidecar, client) = answering_by(Duration::ZERO, WITH_SUBQUEUES, says).await;
    let fetch = r#"{"queues":["mail"],"count":1,"worker_id":"w"}"#;
    let enqueue = r#"{"type":"t","args":[],"options":{"queue":"mail"}}"#;
    let batch = format!(r#"{{"jobs":[{enqueue}]}}"#);
    let settle = r#"{"job_id":"0190-1","worker_id":"w","error":{"code":"c","message":"m"}}"#;
    let beat = r#"{"worker_id":"w","active_jobs":["0190-1"]}"#;
    let mut replies = Vec::new();
    for (path, body) in [
        ("workers/fetch", fetch),
        ("workers/ack", settle),
        ("workers/nack", settle),
        ("workers/heartbeat", beat),
        ("jobs", enqueue),
        ("jobs/batch", &batch),
        ("cron", r#"{"name":"n","expression":"* * * * *"}"#),
        ("workflows", r#"{"name":"n","steps":[]}"#),
        ("queues/mail/pause", "{}"),
        ("admin/queues/mail/resume", "{}"),
        ("dead-letter/0190-1/retry", ""),
        ("admin/jobs/bulk/retry", "{}"),
        ("admin/jobs/0190-1/retry", "{}"),
        ("admin/jobs/0190-1/cancel", "{}"),
    ] {
        let reply = client
            .post(&format!("/ojs/v1/{path}"), body.to_owned())
            .await;
        replies.push((path, reply));
    }
    for path in [
        "jobs/0190-1",
        "admin/jobs",
        "admin/workers",
        "admin/queues",
        "admin/queues/mail",
        "admin/queues/mail/config",
        "queues",
        "queues/mail/stats",
        "cron",
        "workflows/w",
        "dead-letter",
        "admin/dead-letter/stats",
        "health",
    ] {
        replies.push((path, client.get(&format!("/ojs/v1/{path}")).await));
    }
    for path in ["jobs/0190-1", "cron/n", "workflows/w"] {
        replies.push((path, client.delete(&format!("/ojs/v1/{path}")).await));
    }
    // What passes unread.
    let unread = [
        "jobs/0190-1/history",
        "jobs/0190-1/events",
        "queues/mail",
        "queues/mail/events",
        "schemas/t",
        "events",
        "nobody/knows/this",
    ];
    for path in unread {
        replies.push((path, client.get(&format!("/ojs/v1/{path}")).await));
        replies.push((path, client.post(&format!("/ojs/v1/{path}"), "{}").await));
    }
    replies.push(("manifest", client.get("/ojs/manifest").await));
    for (path, reply) in &replies {
        is_clean(reply, path);
        // It is no refusal of ours, and none that was cut.
        let is_theirs = matches!(reply.status, 200 | 409);
        assert!(is_theirs, "{path}: {}", reply.text());
        reply.json();
    }
    let workers = client.get("/ojs/v1/admin/workers").await.json();
    assert_eq!(workers["items"][1]["queues"], json!(["mail"]));
}

#[tokio::test(start_paused = true)]
async fn who_names_a_subqueue_is_refused() {
    let (heard, sidecar, client) = answering_by(Duration::ZERO, WITH_SUBQUEUES, |_| {
        (200, Bytes::from_static(b"{}"))
    })
    .await;
    heard.clear();
    let mut replies = Vec::new();
    for (path, body) in table(
        r#"
        workers/fetch => {"queues":["a","mail-ojst-7f"],"worker_id":"w"}
        jobs => {"type":"t","options":{"queue":"mail-ojst-7f"}}
        jobs => {"type":"t","Options":{"QUEUE":"mail-ojst-7f"}}
        jobs => {"type":"t","queue":"mail-ojst-7f"}
        jobs/batch => {"jobs":[{"type":"t"},{"type":"t","options":{"queue":"mail-ojst-7f"}}]}
        cron => {"name":"n","job_template":{"options":{"queue":"mail-ojst-7f"}}}
        workflows => {"steps":[{"steps":[{"options":{"queue":"mail-ojst-7f"}}]}]}
        admin/jobs/bulk/retry => {"filter":{"queue":"mail-ojst-7f"}}
        queues/mail-ojst-7f/pause => {}
        queues/mail%2Dojst%2d7f/resume => {}
        admin/queues/mail-ojst-7f/pause => {}
        nobody/mail-ojst-7f/knows/a/route/like/this => {}
        "#,
    ) {
        replies.push((path, client.post(&format!("/ojs/v1/{path}"), body).await));
    }
    for path in [
        "queues/mail-ojst-7f",
        "queues/mail-ojst-7f/stats",
        "queues/mail-ojst-7f/events",
        "queues/mail-ojst-7f/config",
        "admin/queues/mail-ojst-7f",
        "admin/queues/mail-ojst-7f/rate-limit",
        "rate-limits/_queue:mail-ojst-7f",
        "admin/jobs?state=active&queue=mail-ojst-7f",
        "admin/jobs?queue=mail%2Dojst-7f&page=1",
        "events?queues=a,mail-ojst-7f",
        "events/stream?channel=queue:mail-ojst-7f",
    ] {
        replies.push((path, client.get(&format!("/ojs/v1/{path}")).await));
    }
    let set = json!({"concurrency": 1});
    for path in [
        "admin/queues/mail-ojst-7f/config",
        "queues/mail-ojst-7f/rate-limit",
    ] {
        let reply = client.put(&format!("/ojs/v1/{path}"), set.clone()).await;
        replies.push((path, reply));
    }
    let admin = sidecar.admin();
    for path in [
        "why?queue=mail-ojst-7f",
        "keys/_queue:mail-ojst-7f/override",
    ] {
        replies.push((path, admin.get(&format!("/throttle/v1/{path}")).await));
    }
    for (path, reply) in &replies {
        assert_eq!(reply.status, 400, "{path}: {}", reply.text());
        is_clean(reply, path);
        let error = &reply.json()["error"];
        assert_eq!(error["details"]["queue"], "mail", "{path}: {error}");
    }
    assert!(heard.requests().iter().all(|(head, _)| {
        let target = head.uri.to_string();
        !target.contains("ojst") && !target.contains("nobody")
    }));
    // What is a job's own may look like anything.
    for (path, body) in table(
        r#"
        jobs => {"type":"t","args":[{"queue":"mail-ojst-7f"}],"meta":{"queue":"a-ojst-00"}}
        jobs => {"type":"t","args":[],"options":{"queue":"mail-ojst-7g"}}
        workers/ack => {"job_id":"0190-1","result":{"queue":"mail-ojst-7f"}}
        workers/nack => {"job_id":"0190-1","queue":"mail-ojst-7f","error":{}}
        "#,
    ) {
        let reply = client.post(&format!("/ojs/v1/{path}"), body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        let (_, sent) = heard.requests().pop().unwrap();
        assert_eq!(sent, body, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_of_a_job_name_its_base() {
    let (pair, client) = simulated(Lax::spec(), WITH_SUBQUEUES).await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    let job = direct.enqueue(job("mail-ojst-7f")).await;
    let paths = [
        format!("/ojs/v1/jobs/{job}/events"),
        format!("/ojs/v1/events/stream?channel=job:{job}"),
    ];
    let end = async {
        sleep(Duration::from_secs(1)).await;
        direct.delete(&format!("/ojs/v1/jobs/{job}")).await
    };
    let (ended, one, merged) = tokio::join!(end, client.get(&paths[0]), client.get(&paths[1]));
    assert!(shows_subqueues(&ended), "so the backend has it");
    for reply in [one, merged] {
        is_clean(&reply, "events");
        let text = reply.text();
        assert!(text.contains(r#""queue":"mail""#), "{text}");
        assert!(text.contains("cancelled"), "{text}");
    }
}

/// The backend tells the numbers of each name alone; heads of subqueues are none of the jobs that run.
#[tokio::test(start_paused = true)]
async fn the_numbers_of_a_queue_are_those_of_its_subqueues_too() {
    let (pair, client) = simulated(Lax::spec(), WITH_SUBQUEUES).await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    for _ in 0..3 {
        direct.enqueue(job("mail")).await;
        direct.fetch("mail", 1).await;
    }
    let limit = json!({"key": "crm", "concurrency": 1});
    let mut limited = plain("mail");
    limited["meta"] = json!({"tenant": "acme", "ojs.rate_limit": limit});
    client.enqueue_all(12, &limited).await;
    let listed = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        let of_mail = items.filter(|item| item["name"].as_str().unwrap().starts_with("mail"));
        let available = of_mail.map(|item| item["counts"]["available"].as_i64().unwrap());
        available.collect::<Vec<_>>()
    };
    let theirs = listed(&direct.get("/ojs/v1/admin/queues?per_page=100").await.json());
    assert!(theirs.len() > 1, "so they went to subqueues: {theirs:?}");
    assert_eq!(client.fetch("mail", 5).await.len(), 1);
    // Now one more is held: the head.
    assert!(client.fetch("mail", 5).await.is_empty());
    for path in ["/ojs/v1/queues/mail/stats", "/ojs/v1/admin/queues/mail"] {
        let reply = client.get(path).await;
        is_clean(&reply, path);
        let reply = reply.json();
        let counts = reply.get("counts").unwrap_or(&reply["queue"]);
        assert_eq!(counts["available"], 11, "{reply}");
        assert_eq!(counts["active"], 4, "{reply}");
    }
    let list = client.get("/ojs/v1/admin/queues").await.json();
    assert_eq!(listed(&list), [11], "{list}");
}
