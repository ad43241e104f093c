//! Where the name of a queue can stand, and where a text only looks like one. Names are compared decoded, and what is a
//! job's own comes as it was sent.

use std::net::SocketAddr;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng};

use super::prelude::*;
use crate::harness::table;
use crate::sidecar::answering::{Answers, answering_by, bind, serve};

/// Jobs of a tenant run one at a time, and wait in subqueues.
const SPLIT: &str = "[[policy]]\nname = \"crm\"\nkey = \"crm:{meta.tenant}\"\nconcurrency = 1\n\
    [[queue]]\nname = \"mail\"\nsubqueues = true\nmax_depth = 2000\n";

/// Where jobs of `acme` wait.
const ACME: &str = "mail-ojst-a0";

/// A job of that tenant.
fn of_acme(queue: &str) -> Value {
    json!({"type": "t", "args": [], "meta": {"tenant": "acme"}, "options": {"queue": queue}})
}

/// Texts that look like names of subqueues, as producers and workers may choose them.
fn odd(n: usize) -> Value {
    let of = |n: usize| format!("mail-ojst-{:02x}", n % 256);
    match n % 8 {
        0 => json!(of(n)),
        1 => json!({"queue": of(n), "queues": [of(n), "mail"], of(n): 1}),
        2 => json!([of(n), [{"name": of(n)}], "mail"]),
        3 => json!(format!("blob/{} \"{}\". \\", of(n), of(n + 1))),
        4 => json!({"by_queue": {of(n): 1, "mail": 2}, "channel": format!("queue:{}", of(n))}),
        5 => json!({"items": [of(n), "mail"], "error": {"message": of(n)}}),
        6 => json!("blob/shop-ojst-42"),
        _ => json!({"release-ojst-1f": {"subject": of(n)}, "self": format!("/queues/{}", of(n))}),
    }
}

/// 1,000 jobs with such texts in what is theirs: each reply that shows one has them as they were sent.
#[tokio::test(start_paused = true)]
async fn what_is_a_jobs_own_comes_as_it_was_sent() {
    for config in ["", SPLIT] {
        let (pair, client) = simulated(Lax::spec(), config).await;
        let job = |n: usize| {
            let meta = json!({"tenant": format!("t{}", n % 40), "m": odd(n), "release-ojst-1f": n, ACME: n});
            json!({"type": "t", "args": [n, odd(n)], "meta": meta, "options": {"queue": "mail"}})
        };
        let is_as_sent = |shown: &Value| {
            let n = shown["args"][0].as_u64().expect("a number") as usize;
            let sent = job(n);
            assert_eq!(shown["args"], sent["args"], "{shown}");
            assert_eq!(shown["meta"], sent["meta"], "{shown}");
            assert_eq!(shown["queue"], "mail", "{shown}");
            n
        };
        for batch in 0..10 {
            let jobs: Vec<Value> = (batch * 100..batch * 100 + 100).map(job).collect();
            let body = json!({"jobs": jobs}).to_string();
            let reply = client.post("/ojs/v1/jobs/batch", body).await;
            assert_eq!(reply.status, 201, "{}", reply.text());
            for shown in reply.json()["jobs"].as_array().unwrap() {
                is_as_sent(shown);
            }
        }
        let mut ran = 0;
        while ran < 1_000 {
            for shown in client.fetch("mail", 40).await {
                let n = is_as_sent(&shown);
                let at = format!("/ojs/v1/jobs/{}", id(&shown));
                let error = json!({"code": "c", "message": ACME, "details": odd(n)});
                let (verb, member, said) = match n % 2 {
                    0 => ("ack", "result", odd(n)),
                    _ => ("nack", "error", error),
                };
                let body = json!({"job_id": id(&shown), "worker_id": "w", member: said});
                let path = format!("/ojs/v1/workers/{verb}");
                let reply = client.post(&path, body.to_string()).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                let now = client.get(&at).await.json();
                let now = now.get("job").unwrap_or(&now);
                is_as_sent(now);
                match verb {
                    "ack" => assert_eq!(now["result"], said, "{now}"),
                    _ => assert_eq!(now["error"]["details"], said["details"], "{now}"),
                }
                if verb == "nack" {
                    client.delete(&at).await;
                }
                ran += 1;
            }
            sleep(Duration::from_millis(50)).await;
        }
        let listed = client.get("/ojs/v1/admin/jobs?per_page=100").await.json();
        for shown in listed["items"].as_array().unwrap() {
            is_as_sent(shown);
        }
        pair.stop().await;
    }
}

/// A backend that answers a path with `odd` in it so, each part by itself: of one byte, or of up to nine.
async fn trickling(net: &Net, status: u16, kind: &'static str, most: usize, body: &str) -> String {
    let (mut listener, base) = bind(net).await;
    let (body, mut rng) = (body.to_owned(), SmallRng::seed_from_u64(most as u64));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                if stream.read_exact(&mut byte).await.is_err() {
                    break;
                }
                head.push(byte[0]);
            }
            let is_odd = String::from_utf8_lossy(&head).contains("/odd");
            let status = if is_odd { status } else { 404 };
            let mut parts = vec![
                format!("HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\nconnection: close\r\n")
                    .into_bytes(),
                b"transfer-encoding: chunked\r\n\r\n".to_vec(),
            ];
            let mut rest = body.as_bytes();
            while is_odd && !rest.is_empty() {
                let (part, after) = rest.split_at(rng.random_range(1..=most).min(rest.len()));
                parts.push([format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
                rest = after;
            }
            parts.push(b"0\r\n\r\n".to_vec());
            for part in parts {
                let _sent = stream.write_all(&part).await;
                tokio::task::yield_now().await;
            }
            let _closed = stream.shutdown().await;
        }
    });
    base
}

/// How a reply comes that passes unread, however it is cut.
async fn passed(config: &str, path: &str, status: u16, kind: &'static str, body: &str) -> String {
    let mut came = Vec::new();
    for most in [1, 9, 2_000] {
        let net = Net::Sim(sim::Network::default());
        let base = trickling(&net, status, kind, most, body).await;
        let sidecar = Start::before(&net, &base, config).start().await;
        let reply = Client::new(&net, sidecar.addr).get(path).await;
        assert_eq!(reply.status, status, "{}", reply.text());
        came.push(reply.text());
        sidecar.stop().await;
    }
    assert!(came.iter().all(|one| *one == came[0]), "{came:#?}");
    came.swap_remove(0)
}

/// A text is changed where a name of a queue can stand, and where it is one of a subqueue.
#[tokio::test(start_paused = true)]
async fn a_name_is_changed_only_where_one_stands() {
    let plain = r#"
        {"queue":"mail-ojst-7f"} => {"queue":"mail"}
        {"queue" : "m\u0061il\u002dojst-7f" } => {"queue" : "mail" }
        {"\u0071ueue":"mail-ojst-7f"} => {"\u0071ueue":"mail"}
        {"jobs":[{"args":[{"queue":"mail-ojst-00"}],"queue":"mail-ojst-00"}]} => {"jobs":[{"args":[{"queue":"mail-ojst-00"}],"queue":"mail"}]}
        {"meta":{"mail-ojst-00":[]},"queues":["mail-ojst-00",{"name":"mail-ojst-01"}]} => {"meta":{"mail-ojst-00":[]},"queues":["mail",{"name":"mail"}]}
        {"by_queue":{"mail-ojst-00":1},"x":{"mail-ojst-00":1,"queue":"mail-ojst-01"}} => {"by_queue":{"mail":1},"x":{"mail-ojst-00":1,"queue":"mail"}}
        {"subject":"mail-ojst-00","channel":"queue:mail-ojst-00","data":{"queue":"mail-ojst-00"}} => {"subject":"mail","channel":"queue:mail","data":{"queue":"mail"}}
        {"result":"\\","queue":"mail-ojst-00","errors":[{"queue":"mail-ojst-00"}]} => {"result":"\\","queue":"mail","errors":[{"queue":"mail-ojst-00"}]}
        {"error":{"message":"mail-ojst-00"},"name":"mail-ojst-00","items":["mail-ojst-00"]} => as it is
        {"queue":"b-ojst-00","queues":["mail-ojst-0g","mail-ojst-000"],"payload":{"queue":"mail-ojst-00"}} => as it is
        no JSON, "mail-ojst-7f => as it is
        {"queue":"mail-ojst-7f\ => as it is
    "#;
    let failure = r#"
        {"error":{"message":"Queue 'mail-ojst-00' is \"full\", x-mail-ojst-00, mail-ojst-01.","details":{"q":["mail-ojst-02"]}}} => {"error":{"message":"Queue 'mail' is \"full\", x-mail-ojst-00, mail.","details":{"q":["mail"]}}}
        {"message":"no mail-ojst-00"} => {"message":"no mail"}
        {"job":{"error":{"message":"mail-ojst-00"}}} => as it is
    "#;
    let list = r#"
        {"items":["mail-ojst-00",{"name":"mail-ojst-00","x":{"name":"mail-ojst-00"}}]} => {"items":["mail",{"name":"mail","x":{"name":"mail-ojst-00"}}]}
        ["mail-ojst-00"] => ["mail"]
    "#;
    for (path, status, rows) in [
        ("/ojs/v1/odd", 200, plain),
        ("/ojs/v1/odd", 409, failure),
        ("/ojs/v1/odd/queues", 200, list),
    ] {
        for (sent, shown) in table(rows) {
            let shown = if shown == "as it is" { sent } else { shown };
            let json = "application/json";
            let came = passed(SPLIT, path, status, json, sent).await;
            assert_eq!(came, shown, "{sent}");
            let came = passed("", path, status, json, sent).await;
            assert_eq!(came, sent);
        }
    }
}

/// What passes unread changes where a queue's name stands and nowhere else, in JSON and in events, however it is cut. Where
/// there are no subqueues it does not change at all.
#[tokio::test(start_paused = true)]
async fn a_stream_changes_only_where_a_queue_is_named() {
    let job = |n: usize, queue: &str| {
        format!(
            r#"{{"id":"{n}","queue":"{queue}","args":[{odd}],"meta":{{"a":{odd},"{ACME}":1}},"result":{odd},"error":{odd},"x":"{ACME}"}}"#,
            odd = odd(n)
        )
    };
    let all = |queue: &str, other: &str| {
        let jobs: Vec<String> = (0..40).map(|n| job(n, queue)).collect();
        format!(
            r#"{{ "jobs" : [{}], "queues":["{queue}", {{"name":"{queue}"}}], "by_queue": {{"{queue}":1}},
                "queue":"{other}","name":"{ACME}","n":"sh\u006fp" }}"#,
            jobs.join(" ,\n")
        )
    };
    let events = |queue: &str| {
        let each = (0..20).map(|n| {
            format!(
                "id: {n}\r\nevent: job.{ACME}\ndata: {{\"subject\":\"{queue}\",\"channel\":\"queue:{queue}\",\ndata: \"data\":{}}}\n\n:{ACME}\n\n",
                job(n, queue)
            )
        });
        let odd = "data: no \"JSON, mail-ojst-a0\ndata: {\"queue\":\"mail-ojst-a0\n\n";
        [odd.to_owned()].into_iter().chain(each).collect::<String>()
    };
    let escaped = r"\u006d\u0061il\u002Dojst\u002d\u00610";
    let json = "application/json";
    let other = "blob-ojst-42";
    for (kind, sent, shown) in [
        (json, all(ACME, other), all("mail", other)),
        (json, all(escaped, "a"), all("mail", "a")),
        ("text/event-stream", events(ACME), events("mail")),
        ("text/plain", all(ACME, ACME), all(ACME, ACME)),
    ] {
        for (config, wanted) in [("", &sent), (SPLIT, &shown)] {
            let came = passed(config, "/ojs/v1/odd", 200, kind, &sent).await;
            assert_eq!(came, *wanted);
        }
    }
}

/// Spellings of a name in JSON, of which each has an escape in what makes it one of a subqueue.
fn spellings(name: &str) -> Vec<String> {
    let mut rng = SmallRng::seed_from_u64(52);
    let marker = name.find("-ojst-").unwrap();
    let spelling = |n: usize| {
        let spelt = name.bytes().enumerate().map(|(at, byte)| {
            let is_chosen = at == marker + n % 6 || n == 63 || (n > 11 && rng.random_bool(0.4));
            match (is_chosen, n % 12 > 5) {
                (false, _) => char::from(byte).to_string(),
                (true, true) => format!("\\u{byte:04X}"),
                (true, false) => format!("\\u{byte:04x}"),
            }
        });
        spelt.collect()
    };
    (0..64).map(spelling).collect()
}

/// Routes, and bodies in which they have the name of a queue.
const NAMING: &str = r#"
    workers/fetch => {"queues":["NAME"],"count":5,"worker_id":"w"}
    workers/fetch => {"\u0071ueue\u0073":["a","NAME"],"worker_id":"w"}
    jobs => {"type":"t","args":[],"options":{"queue":"NAME"}}
    jobs => {"type":"t","args":[],"queue":"NAME"}
    jobs/batch => {"jobs":[{"type":"t","args":[],"options":{"queue":"NAME"}}]}
    cron => {"name":"n","job_template":{"type":"t","options":{"queue":"NAME"}}}
    workflows => {"steps":[{"type":"t","options":{"queue":"NAME"}}]}
    admin/jobs/bulk/retry => {"filter":{"queue":"NAME"}}
"#;

/// However a subqueue is spelt, who names it is refused: no job starts beyond the limit or the pause, none is stored
/// beside the bound.
#[tokio::test(start_paused = true)]
async fn no_spelling_goes_around_a_limit() {
    let limited = "[[policy]]\nname = \"crm\"\nmatch = { queue = \"mail\" }\nkey = \"crm:{meta.tenant}\"\nconcurrency = 1\n";
    for config in [SPLIT, limited] {
        let (pair, client) = simulated(Lax::spec(), config).await;
        let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
        direct.enqueue_all(8, &of_acme(ACME)).await;
        let before = pair.behind.backend.ledger().len();
        for paused in [false, true] {
            if paused {
                client.post("/ojs/v1/queues/mail/pause", "{}").await;
            }
            for name in spellings(ACME) {
                for (path, body) in table(NAMING) {
                    let body = body.replace("NAME", &name);
                    let reply = client.post(&format!("/ojs/v1/{path}"), body.clone()).await;
                    assert_eq!(reply.status, 400, "{path} {body}: {}", reply.text());
                    assert_eq!(reply.json()["error"]["details"]["queue"], "mail");
                }
                let percent = name.replace("\\u00", "%");
                let twice = percent.replace('%', "%25");
                for path in [
                    format!("queues/{percent}/stats"),
                    format!("queues/{twice}/stats"),
                    format!("admin/queues/{percent}"),
                    format!("queues/{percent}/events"),
                    format!("rate-limits/_queue:{percent}"),
                    format!("admin/jobs?queue={percent}"),
                    format!("admin/jobs?state=active&queue%5B%5D={twice}"),
                    format!("events/stream?channel=queue%3A{percent}"),
                    format!("events?queues=[\"{percent}\"]").replace('"', "%22"),
                ] {
                    let reply = client.get(&format!("/ojs/v1/{path}")).await;
                    assert_eq!(reply.status, 400, "{path}: {}", reply.text());
                    let why = format!("/throttle/v1/why?queue={percent}");
                    let reply = pair.sidecar.admin().get(&why).await;
                    assert_eq!(reply.status, 400, "{path}: {}", reply.text());
                }
            }
        }
        let ledger = pair.behind.backend.ledger();
        assert!(ledger.len() == before, "{:?}", ledger.last());
        pair.stop().await;
    }
}

/// Options that are no object are the backend's to refuse: no name is written in their place.
#[tokio::test(start_paused = true)]
async fn options_that_are_no_object_are_left_as_they_are() {
    let config = SPLIT.replace("\"mail\"", "\"default\"");
    let (pair, client) = simulated(Lax::spec(), &config).await;
    let direct = Client::new(&pair.sidecar.net, pair.behind.addr);
    for options in ["[]", "\"x\"", "7", "false", "null", "{}"] {
        let job =
            format!(r#"{{"type":"t","args":[],"meta":{{"tenant":"acme"}},"options":{options}}}"#);
        let reply = client.post("/ojs/v1/jobs", job.clone()).await;
        let theirs = direct.post("/ojs/v1/jobs", job).await;
        assert_eq!(reply.status, theirs.status, "{options}: {}", reply.text());
    }
}

/// A body that only some readers understand is refused where it may name a subqueue.
#[tokio::test(start_paused = true)]
async fn what_only_some_can_read_names_none() {
    let (heard, _sidecar, client) =
        answering_by(Duration::ZERO, SPLIT, |_| (200, Bytes::from_static(b"{}"))).await;
    heard.clear();
    let deep = ["[".repeat(70), "]".repeat(70)].concat();
    let named =
        r#"{"queues":["mail\u002dojst-a0"],"type":"t","options":{"queue":"mail\u002dojst-a0"}}"#;
    for body in [
        format!("{named} {{}}"),
        format!("\u{feff}{named}"),
        format!(r#"{{"x":{deep},{}"#, &named[1..]),
    ] {
        for path in ["workers/fetch", "jobs", "cron", "workflows"] {
            let reply = client.post(&format!("/ojs/v1/{path}"), body.clone()).await;
            assert_eq!(reply.status, 400, "{path} {body}");
        }
    }
    let wide: Vec<u8> = named.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for path in ["workers/fetch", "jobs", "cron"] {
        let reply = client.post(&format!("/ojs/v1/{path}"), wide.clone()).await;
        assert_eq!(reply.status, 400, "{path}");
    }
    assert!(heard.bodies().is_empty());
}

/// A queue may have such a name where nothing of the sidecar's touches the one that would be its base.
#[tokio::test(start_paused = true)]
async fn a_queue_of_that_shape_is_one_like_others() {
    let limit = "[[policy]]\nname = \"crm\"\nmatch = { queue = \"mail\" }\nkey = \"crm\"\nconcurrency = 1\n\
        [[queue]]\nname = \"mail\"\nsubqueues = true\n";
    for config in ["", limit] {
        let (pair, client) = simulated(Lax::spec(), config).await;
        let job = json!({"type": "t", "args": [], "options": {"queue": "blob-ojst-42"}});
        let reply = client.post("/ojs/v1/jobs", job.to_string()).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        assert_eq!(reply.json()["job"]["queue"], "blob-ojst-42");
        let got = client.fetch("blob-ojst-42", 1).await;
        assert_eq!(got[0]["queue"], "blob-ojst-42", "{config}");
        let stats = client.get("/ojs/v1/queues/blob-ojst-42/stats").await;
        assert!(stats.text().contains("blob-ojst-42"), "{}", stats.text());
        let list = client.get("/ojs/v1/queues").await;
        assert!(list.text().contains("blob-ojst-42"), "{}", list.text());
        pair.stop().await;
    }
}

/// At a start with an empty store, jobs tell whether such a queue is one of a sidecar's or somebody's own.
#[tokio::test(start_paused = true)]
async fn jobs_tell_whose_a_queue_is() {
    let net = Net::Sim(sim::Network::default());
    let behind = backend(&net, Lax::spec()).await;
    let direct = Client::new(&net, behind.addr);
    let start = async |config: &str| {
        let sidecar = Start::before(&net, &behind.base(), config).start().await;
        sleep(Duration::from_secs(1)).await;
        sidecar
    };
    let job = json!({"type": "t", "args": [], "options": {"queue": "blob-ojst-42"}});
    direct.enqueue(job).await;
    let first = start(SPLIT).await;
    let sent = first.client().enqueue(of_acme("mail")).await;
    first.stop().await;
    let second = start("").await;
    let own = second.client().fetch("blob-ojst-42", 1).await;
    assert_eq!(own[0]["queue"], "blob-ojst-42");
    let stats = format!("/ojs/v1/queues/{ACME}/stats");
    assert_eq!(second.client().get(&stats).await.status, 400);
    let begun = Instant::now();
    let found = loop {
        let found = second.client().fetch("mail", 1).await;
        if !found.is_empty() || begun.elapsed() > Duration::from_secs(8) {
            break found;
        }
        sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(
        (id(&found[0]), &found[0]["queue"]),
        (&*sent, &json!("mail"))
    );
}

/// A backend that looks for 100 ms into each empty queue that a FETCH names; says how many names each FETCH had.
async fn patient(net: &Net) -> (SocketAddr, Arc<std::sync::Mutex<Vec<usize>>>) {
    let (listener, _) = bind(net).await;
    let addr = listener.local_addr().unwrap();
    let named = Arc::<std::sync::Mutex<Vec<usize>>>::default();
    let names = Arc::clone(&named);
    let answers: Arc<Answers> = Arc::new(move |request| {
        let names = Arc::clone(&names);
        Box::pin(async move {
            let nats = r#"{"implementation":{"name":"ojs-backend-nats","backend":"nats"}}"#;
            let text = match request.uri().path() {
                "/ojs/manifest" => nats,
                "/ojs/v1/workers/fetch" => {
                    let body: Value = serde_json::from_slice(request.body()).unwrap();
                    let queues = body["queues"].as_array().unwrap().len();
                    names.lock().unwrap().push(queues);
                    sleep(Duration::from_millis(100) * queues as u32).await;
                    r#"{"jobs":[]}"#
                }
                path if path.ends_with("/stats") => {
                    r#"{"queue":{"name":"mail","available":0,"active":0,"paused":false}}"#
                }
                _ => r#"{"items":[],"queues":[]}"#,
            };
            let mut reply = http::Response::new(Bytes::from_static(text.as_bytes()));
            if request.uri().path().starts_with("/ojs/v1/admin/queues") {
                *reply.status_mut() = http::StatusCode::NOT_FOUND;
            }
            reply
        })
    });
    tokio::spawn(serve(listener, answers));
    (addr, named)
}

/// Where each name costs time and none was ever written, none is read: a claim names the queue alone.
#[tokio::test(start_paused = true)]
async fn where_names_cost_a_claim_names_the_queue_alone() {
    let net = Net::Sim(sim::Network::default());
    let (addr, named) = patient(&net).await;
    let config = format!("{SPLIT}[fetch]\nmax_wait = \"0s\"\n");
    let sidecar = Start::before(&net, &format!("http://{addr}"), &config)
        .start()
        .await;
    let client = sidecar.client();
    // The first thing that it hears may be an enqueue.
    let job = of_acme("mail").to_string();
    client.post("/ojs/v1/jobs", job).await;
    for nth in 0..40 {
        let begun = Instant::now();
        assert!(client.fetch("mail", 5).await.is_empty());
        let took = begun.elapsed();
        assert!(took <= Duration::from_millis(300), "{nth}: {took:?}");
        sleep(Duration::from_millis(250)).await;
    }
    let named = named.lock().unwrap().clone();
    assert!(named.iter().all(|names| *names == 1), "{named:?}");
    let listed = sidecar.admin().get("/throttle/v1/subqueues").await.json();
    assert_eq!(listed["queues"], json!([]));
}

/// Backends of Go show what a producer sent in capitals beside the real members. A worker gets the job by its id, and
/// what we know of it is under the same one.
#[tokio::test(start_paused = true)]
async fn a_member_in_capitals_is_not_the_id_of_a_job() {
    let policy = "[[policy]]\nname = \"p\"\nkey = \"k\"\nconcurrency = 1\n";
    let (_pair, client) = simulated(Lax::redis(), policy).await;
    let [other, real] = [1, 2].map(|n| format!("0197a000-0000-7000-8000-00000000000{n}"));
    let job = format!(
        r#"{{"ID":"{other}","id":"{real}","type":"t","args":[],"options":{{"queue":"q"}}}}"#
    );
    assert_eq!(client.post("/ojs/v1/jobs", job).await.status, 201);
    client.enqueue(plain("q")).await;
    let jobs = client.fetch("q", 1).await;
    assert_eq!((ids(&jobs), &jobs[0]["ID"]), (vec![&*real], &json!(other)));
    assert!(client.fetch("q", 1).await.is_empty());
    assert_eq!(client.ack(&real).await.status, 200);
    assert_eq!(client.fetch("q", 1).await.len(), 1, "its slot is free");
}
