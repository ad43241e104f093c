//! `GET /throttle/v1/state` on the admin port: what the page and `top` show.

use std::collections::BTreeSet;

use ojs_throttle::show::state::MEMBERS;

use super::prelude::*;
use crate::harness::assert_within;
use crate::sidecar::answering::answering_by;

const STATE: &str = "/throttle/v1/state";
const STREAM: (&str, &str) = ("accept", "text/event-stream");

const CONFIG: &str = "
[[policy]]
name = \"stripe\"
match = { queue = \"billing\" }
concurrency = 2
[[queue]]
name = \"mail\"
throttle = { limit = 1, period = \"20s\" }
max_depth = 2
";

async fn state(rig: &Rig, question: &str) -> Value {
    let reply = rig.admin.get(&format!("{STATE}{question}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

async fn queued(rig: &Rig, queue: &str, jobs: usize) {
    let job = json!({"type": "t", "args": ["s3cret"], "options": {"queue": queue}});
    rig.client.enqueue_all(jobs, &job).await;
}

/// Jobs that each bring a key of their own.
async fn keys(rig: &Rig, keys: usize) {
    let job = |n| {
        let limits = json!({"key": format!("tenant-{n}"), "concurrency": 1});
        json!({"type": "t", "args": [], "options": {"queue": "q", "rate_limit": limits}})
    };
    let jobs: Vec<Value> = (0..keys).map(job).collect();
    for some in jobs.chunks(500) {
        let body = json!({"jobs": some}).to_string();
        let reply = rig.client.post("/ojs/v1/jobs/batch", body).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
    }
}

fn row<'a>(state: &'a Value, name: &str) -> &'a Value {
    let rows = state["keys"]["rows"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).expect(name)
}

async fn listen(rig: &Rig, question: &str) -> Listener {
    Listener::open(&rig.admin, &format!("{STATE}{question}"), &[STREAM]).await
}

/// A policy of one key for queue `billing`.
fn stripe(limits: &str) -> String {
    format!("[[policy]]\nname = 'stripe'\nmatch = {{ queue = 'billing' }}\n{limits}\n")
}

#[tokio::test(start_paused = true)]
async fn what_binds_most_stands_first_with_its_numbers() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 3).await;
    queued(&rig, "mail", 2).await;
    let more = plain("mail");
    let refused = rig.client.post("/ojs/v1/jobs", more.to_string()).await;
    assert_eq!(refused.status, 429);
    let out = rig.client.fetch("billing", 3).await;
    assert_eq!((out.len(), rig.client.fetch("mail", 1).await.len()), (2, 1));
    sleep(Duration::from_secs(1)).await;
    let shown = state(&rig, "").await;
    assert_eq!(shown["keys"]["rows"][0]["name"], "stripe", "{shown}");
    let stripe = row(&shown, "stripe");
    assert_eq!(stripe["minute"]["starts"], 2);
    assert!(stripe["minute"]["refused"].as_u64() >= Some(1), "{stripe}");
    assert_eq!(stripe["state"], rig.inspect("stripe").await);
    assert_eq!(stripe["state"]["limited_by"], "concurrency");
    assert_eq!(row(&shown, "_queue:mail")["minute"]["starts"], 1);
    let limited_by = &row(&shown, "_queue:mail")["state"]["limited_by"];
    assert_eq!(limited_by, "throttle");
    let mail = &shown["queues"]["rows"][0];
    assert_eq!(mail["queue"], "mail");
    assert_eq!(
        ["refused", "depth", "max_depth"].map(|name| &mail[name]),
        [1, 1, 2]
    );
    assert!(!shown.to_string().contains("s3cret"), "arguments are shown");

    // After a minute and more nothing of it is left but the slots.
    for job in &out {
        rig.client.ack(id(job)).await;
    }
    sleep(Duration::from_secs(70)).await;
    let later = state(&rig, "?key=stripe").await;
    assert_eq!(later["keys"]["found"], 1);
    let stripe = row(&later, "stripe");
    assert_eq!(stripe["minute"]["starts"], 0);
    let starts = stripe["history"]["starts"].as_array().unwrap();
    let all: u64 = starts.iter().filter_map(Value::as_u64).sum();
    let found = (starts.len(), all);
    assert_eq!(found, (8, 2), "one number for each ten seconds");
}

#[tokio::test(start_paused = true)]
async fn keys_are_searched_and_paged_here() {
    let rig = Rig::with("").await;
    keys(&rig, 120).await;
    let all = state(&rig, "?page=3").await["keys"].clone();
    assert_eq!((&all["total"], &all["found"]), (&json!(120), &json!(120)));
    assert_eq!(all["rows"].as_array().unwrap().len(), 20);
    let some = state(&rig, "?search=NANT-11").await["keys"].clone();
    assert_eq!(some["found"], 11, "tenant-11 and tenant-110 to 119");
    let questions = [
        ("?page=0", 400),
        ("?page=x", 400),
        ("?find=x", 400),
        ("?page=99", 200),
    ];
    for (question, status) in questions {
        let reply = rig.admin.get(&format!("{STATE}{question}")).await;
        assert_eq!(reply.status, status, "{question}");
    }
    let posted = rig.admin.post(STATE, "").await;
    assert_eq!(posted.status, 405);
}

/// A search finds a queue however many are pressed more, and what its jobs wait for.
#[tokio::test(start_paused = true)]
async fn a_search_for_a_queue_finds_its_limits_too() {
    let bounded = (0..60).map(|n| format!("[[queue]]\nname = \"b{n}\"\nmax_depth = 1\n"));
    let config = stripe("concurrency = 1") + &bounded.collect::<String>();
    let rig = Rig::with(&config).await;
    for n in 0..60 {
        queued(&rig, &format!("b{n}"), 1).await;
    }
    queued(&rig, "billing", 2).await;
    assert_eq!(rig.client.fetch("billing", 2).await.len(), 1);
    sleep(Duration::from_secs(3)).await;
    let found = state(&rig, "?search=BILL").await;
    assert_eq!(found["keys"]["rows"][0]["name"], "stripe", "{found}");
    let row = &found["queues"]["rows"][0];
    assert_eq!([&row["queue"], &row["cause"]["name"]], ["billing", "slots"]);
    assert_eq!(row["cause"]["lets_start"], false);
    let first = async || state(&rig, "").await["queues"]["rows"][0].clone();
    let pressed = first().await;
    assert_eq!(pressed["cause"]["name"], "queue full", "{pressed}");
    assert_eq!(pressed["cause"]["lets_start"], true);
    let paused = rig.client.post("/ojs/v1/queues/billing/pause", "").await;
    assert_eq!(paused.status, 200, "{}", paused.text());
    sleep(Duration::from_secs(3)).await;
    assert_eq!(first().await["queue"], "billing", "nothing of it starts");
}

/// However many watch: the store is asked once a second.
#[tokio::test(start_paused = true)]
async fn eight_streams_see_one_state() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    let rig = Rig::over(store.clone(), CONFIG).await;
    queued(&rig, "billing", 3).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(listen(&rig, "").await);
    }
    for stream in &mut streams {
        let first = stream.next().await;
        assert_eq!(first.event, "state");
        assert_eq!(first.data["sidecar"]["ready"], "ready");
    }
    let ninth = rig.admin.send(Method::GET, STATE, &[STREAM], "").await;
    assert_eq!(ninth.status, 503);
    assert!(ninth.headers.contains_key("retry-after"));
    assert!(ninth.text().contains("top --once"), "{}", ninth.text());
    // Neither scrapes nor single questions need a place.
    assert_eq!(rig.admin.get("/metrics").await.status, 200);
    assert_eq!(rig.admin.get(STATE).await.status, 200);

    let calls = |before: usize| store.calls() - before;
    let idle = store.calls();
    sleep(Duration::from_secs(10)).await;
    let watched = calls(idle);
    let mut seen = Vec::new();
    for stream in &mut streams {
        let mut last = stream.frame().await;
        for _ in 0..9 {
            last = stream.frame().await;
        }
        seen.push(last.unwrap());
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "all see the same bytes: {seen:?}");
    drop(streams);
    sleep(Duration::from_secs(1)).await;
    let idle = store.calls();
    sleep(Duration::from_secs(10)).await;
    let more = watched - calls(idle);
    assert!(more <= 11, "{more} calls in ten seconds for eight streams");
    let listening = rig.metric("ojs_throttle_event_subscribers").await;
    assert_eq!(
        listening,
        Some(0.0),
        "nobody watches, so nothing is encoded"
    );
    assert_eq!(listen(&rig, "").await.status, 200, "places are free again");
}

#[tokio::test(start_paused = true)]
async fn who_watches_sees_what_happens() {
    let rig = Rig::with(CONFIG).await;
    let mut stream = listen(&rig, "").await;
    assert_eq!(stream.next().await.data["events"]["last"], json!([]));
    queued(&rig, "billing", 3).await;
    let mut out = rig.client.fetch("billing", 3).await;
    let mut event = Value::Null;
    for _ in 0..5 {
        let state = stream.next().await.data;
        event = state["events"]["last"][0].clone();
        if event.is_object() {
            break;
        }
        rig.client.fetch("billing", 1).await;
    }
    assert_eq!(event["type"], "rate_limit.exceeded", "{event}");
    assert_eq!(event["subject"], "stripe");
    assert_eq!(event["queue"], "billing");
    // What is alike stands in one row, wherever else something happens.
    let mut rows = Vec::new();
    for _ in 0..6 {
        queued(&rig, "billing", 2).await;
        rig.client.ack(id(&out.remove(0))).await;
        out.extend(rig.client.fetch("billing", 3).await);
        let state = stream.next().await.data;
        rows = state["events"]["last"].as_array().unwrap().clone();
    }
    let of = |row: &Value| ["type", "key", "strategy"].map(|name| row[name].to_string());
    let kinds: BTreeSet<[String; 3]> = rows.iter().map(of).collect();
    assert_eq!(kinds.len(), rows.len(), "{rows:?}");
    let times = rows.iter().filter_map(|row| row["times"].as_u64());
    assert!(times.max() > Some(1), "{rows:?}");
}

/// Three come each ten seconds, and one may start: that the line grows is said, and when those that wait now have started.
#[tokio::test(start_paused = true)]
async fn a_line_that_grows_is_told_from_one_that_ends() {
    let rig = Rig::with(&stripe("rate = { limit = 1, period = '9s' }")).await;
    let (mut grew, mut waited) = (Value::Null, 0);
    for nth in 0..9 {
        queued(&rig, "billing", 3).await;
        let started = rig.client.fetch("billing", 1).await;
        rig.client.ack(id(&started[0])).await;
        sleep(Duration::from_secs(10)).await;
        let shown = rig.inspect("stripe").await;
        grew = shown["waiting_growth"].clone();
        waited = shown["waiting_count"].as_i64().unwrap();
        assert_eq!(grew.is_null(), nth < 3, "{nth}: {shown}");
    }
    assert_eq!((&grew, waited), (&json!(12), 18));
    let started = rig.client.fetch("billing", 1).await;
    rig.client.ack(id(&started[0])).await;
    rig.client.fetch("billing", 1).await;
    let why = rig.admin.why("key=stripe").await;
    let notes = why["notes"].to_string();
    assert!(notes.contains("each minute 1"), "{notes}");
    let shown = state(&rig, "").await;
    let ends = &row(&shown, "stripe")["state"]["waiting_done"]["at"];
    assert!(ends.is_string(), "{shown}");
    assert_eq!(&shown["queues"]["rows"][0]["waiting_done"], ends);
    let left = "ojs_throttle_waiting_done_seconds{key=\"stripe\"}";
    let seconds = rig.metric(left).await.unwrap();
    assert!((140.0..=165.0).contains(&seconds), "{seconds}");
    // Once nobody comes any more it gets shorter.
    for _ in 0..13 {
        sleep(Duration::from_secs(10)).await;
        let started = rig.client.fetch("billing", 1).await;
        rig.client.ack(id(&started[0])).await;
        grew = rig.inspect("stripe").await["waiting_growth"].clone();
    }
    assert_eq!(grew, json!(-6));
}

/// Of a backlog of several keys nobody knows whose jobs are in it: then no end is told, and no growth. Where it is one key's
/// it is counted, also where its turns are shared; and once all is held it is known whose it is.
#[tokio::test(start_paused = true)]
async fn an_end_is_told_where_all_that_wait_are_known() {
    let one = "rate = { limit = 1, period = '2s' }";
    let config = format!(
        "[[policy]]\nname = 'each'\nmatch = {{ queue = 'each' }}\nkey = 'each:{{meta.t}}'\n{one}\n\
         [[policy]]\nname = 'fair'\nmatch = {{ queue = 'fair' }}\n{one}\nfair = {{ by = '{{meta.t}}' }}\n[hold]\nmax = 20\n"
    );
    let rig = Rig::with(&config).await;
    for queue in ["each", "fair"] {
        let mut job = plain(queue);
        job["meta"] = json!({"t": "a"});
        rig.client.enqueue_all(60, &job).await;
    }
    let (mut told, mut all) = (0, 0);
    for _ in 0..110 {
        for queue in ["each", "fair"] {
            for job in rig.client.fetch(queue, 1).await {
                rig.client.ack(id(&job)).await;
            }
        }
        let fair = rig.inspect("fair").await;
        let growth = fair["waiting_growth"].as_i64();
        assert!(growth.is_none_or(|more| more < 0), "{fair}");
        let each = rig.inspect("each:a").await;
        let shown = state(&rig, "").await;
        let rows = shown["queues"]["rows"].as_array().unwrap();
        let queue = rows.iter().find(|row| row["queue"] == "each").unwrap();
        let known = each["waiting_count"] == queue["waiting"];
        all += u8::from(known);
        if each["waiting_done"].is_object() {
            told += 1;
            assert!(known, "{each} {queue}");
        }
        sleep(Duration::from_secs(1)).await;
    }
    assert!(told > 5 && all < 70, "{told} {all}");
}

/// Whoever has all slots, and far longer than anybody had them before, may hang: then nobody knows when others start.
#[tokio::test(start_paused = true)]
async fn no_end_is_told_while_the_slots_may_hang() {
    let rig = Rig::with(&stripe("concurrency = 2")).await;
    for _ in 0..25 {
        queued(&rig, "billing", 1).await;
        let started = rig.client.fetch("billing", 1).await;
        sleep(Duration::from_millis(50)).await;
        rig.client.ack(id(&started[0])).await;
    }
    queued(&rig, "billing", 6).await;
    assert_eq!(rig.client.fetch("billing", 3).await.len(), 2);
    let shown = rig.inspect("stripe").await;
    assert!(shown["waiting_done"].is_object(), "{shown}");
    sleep(Duration::from_secs(6)).await;
    assert!(rig.client.fetch("billing", 1).await.is_empty());
    let shown = rig.inspect("stripe").await;
    assert_eq!(shown["waiting_done"], Value::Null, "{shown}");
}

/// A time that is shown, in microseconds.
fn moment(time: &Value) -> Option<u64> {
    ojs_throttle::duration::moment(time.as_str().unwrap_or_default())
}

/// A job that needs more than is left waits until that is there. Nothing starts sooner, whatever it keeps its place for.
#[tokio::test(start_paused = true)]
async fn the_next_start_is_that_of_the_first_in_line() {
    let rig = Rig::with(
        "[[policy]]\nname = 'tokens'\nmatch = { queue = 'llm' }\nrate = { limit = 100, period = '30s' }\n\
         cost = { from = 'meta.tokens', default = 1, max = 100 }\n",
    )
    .await;
    for tokens in [5, 100, 5] {
        let job = json!({"type": "t", "args": [], "meta": {"tokens": tokens}, "options": {"queue": "llm"}});
        rig.client.enqueue(job).await;
    }
    assert_eq!(rig.client.fetch("llm", 1).await.len(), 1);
    for waited in [0, 8, 16] {
        assert!(rig.client.fetch("llm", 3).await.is_empty());
        let shown = rig.inspect("tokens").await;
        assert_eq!(shown["limited_by"], "line", "{shown}");
        let left = moment(&shown["next_start"]).unwrap() - moment(&shown["at"]).unwrap();
        let seconds = left / 1_000_000;
        assert!((29 - waited..=30 - waited).contains(&seconds), "{shown}");
        sleep(Duration::from_secs(8)).await;
    }
}

/// A group whose share is larger than what it has is done sooner than the others, and the last one with the key.
#[tokio::test(start_paused = true)]
async fn each_group_is_told_when_its_last_starts() {
    let rate = "rate = { limit = 2, period = '10s' }\nfair = { by = '{meta.t}' }";
    let rig = Rig::with(&stripe(rate)).await;
    for group in ["a"; 8].iter().chain(&["b"; 2]) {
        let job =
            json!({"type": "t", "args": [], "meta": {"t": group}, "options": {"queue": "billing"}});
        rig.client.enqueue(job).await;
    }
    let started = rig.client.fetch("billing", 2).await.len();
    rig.client.fetch("billing", 1).await;
    let why = rig.admin.why("key=stripe").await;
    let limit = &why["limits"][0];
    let now = moment(&why["at"]).unwrap();
    let left = |time: &Value| moment(time).map(|at| at.saturating_sub(now) / 1_000_000);
    let groups = limit["groups"].as_array().unwrap();
    let of = |name: &str| groups.iter().find(|one| one["group"] == name).unwrap();
    let held = |name: &str| of(name)["held"].as_u64().unwrap();
    assert_eq!((started as u64, held("a") + held("b")), (2, 8));
    let whole = left(&limit["state"]["waiting_done"]["at"]).unwrap();
    assert!((35..=40).contains(&whole), "{limit}");
    // Both have as many turns, until that of b is done.
    let ends = ["a", "b"].map(|group| left(&of(group)["waiting_done"]).unwrap());
    assert!(held("b") < held("a"), "{limit}");
    assert_eq!(ends, [whole, whole * 2 * held("b") / 8], "{limit}");
    sleep(Duration::from_secs(11)).await;
    assert_eq!(rig.client.fetch("billing", 2).await.len(), 2);
    let shown = state(&rig, "?key=stripe").await;
    let had = &row(&shown, "stripe")["history"]["groups"];
    let bands = had.as_array().unwrap().iter();
    let all: Vec<_> = bands.map(|band| &band["group"]).collect();
    assert_eq!(all, ["a", "b"], "{had}");
}

#[tokio::test(start_paused = true)]
async fn the_hour_says_when_a_key_was_shut() {
    let rig = Rig::with(CONFIG).await;
    queued(&rig, "billing", 1).await;
    assert_eq!(rig.client.fetch("billing", 1).await.len(), 1);
    sleep(Duration::from_secs(30)).await;
    queued(&rig, "billing", 1).await;
    rig.client.limit("stripe", json!({"concurrency": 0})).await;
    assert!(rig.client.fetch("billing", 1).await.is_empty());
    sleep(Duration::from_secs(10)).await;
    let resumed = rig.client.delete("/ojs/v1/rate-limits/stripe").await;
    assert_eq!(resumed.status, 200, "{}", resumed.text());
    sleep(Duration::from_secs(20)).await;
    assert_eq!(rig.client.fetch("billing", 1).await.len(), 1);
    let shown = state(&rig, "?key=stripe").await;
    let history = &row(&shown, "stripe")["history"];
    assert_eq!(history["closed"], json!([3]), "{history}");
    assert_eq!(row(&shown, "stripe")["recent"], history["starts"]);
}

/// A reader that stands still has no place for ever, and nobody waits for it.
#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_left() {
    let rig = Rig::with("").await;
    keys(&rig, 60).await;
    let mut still = Vec::new();
    for _ in 0..8 {
        let (net, port) = (&rig.admin.net, rig.admin.addr.port());
        let mut stream = net.connect("127.0.0.1", port).await.unwrap();
        let request =
            format!("GET {STATE} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        still.push(stream);
    }
    sleep(Duration::from_millis(100)).await;
    assert_eq!(listen(&rig, "").await.status, 503);
    sleep(Duration::from_secs(15)).await;
    assert_eq!(listen(&rig, "").await.status, 200);
    drop(still);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_shown() {
    let store = Arc::new(Faulty::new(Arc::new(MemoryStore::new(NOON))));
    let rig = Rig::over(store.clone(), CONFIG).await;
    store.standing(Some(Fault::gone()));
    let shown = state(&rig, "").await;
    assert_eq!(shown["keys"]["rows"], json!([]));
    assert!(shown["keys"]["problem"].is_string(), "{shown}");
}

/// Whoever looks waits for no slow backend, and has its answer a second later.
#[tokio::test(start_paused = true)]
async fn what_a_slow_backend_says_is_shown_with_the_next_state() {
    let config = "[[queue]]\nname = \"mail\"\nconcurrency = 1\n";
    let stats = Bytes::from_static(br#"{"queue":{"name":"mail","available":7}}"#);
    let says = move |head: &http::request::Parts| match head.uri.path().contains("/queues/mail") {
        true => (200, stats.clone()),
        false => (404, Bytes::from_static(b"{}")),
    };
    let (_, sidecar, _) = answering_by(Duration::from_millis(300), config, says).await;
    let admin = sidecar.admin();
    let begun = Instant::now();
    admin.get(STATE).await;
    assert_within(begun.elapsed(), Duration::from_millis(200), "");
    sleep(Duration::from_secs(1)).await;
    let shown = admin.get(STATE).await.json();
    let waiting = &row(&shown, "_queue:mail")["state"]["waiting_count"];
    assert_eq!(waiting, 7, "{shown}");
}

/// Each member that is sent is in the manual's list, and the other way round.
#[tokio::test(start_paused = true)]
async fn every_member_is_declared() {
    let tried = "[[policy]]\nname = 'tried'\nmatch = { queue = 'mail' }\nconcurrency = 1\nmode = 'shadow'\n";
    let fair = "concurrency = 2\nfair = { by = '{type}' }";
    let config = CONFIG.replace("concurrency = 2", fair);
    let egress = "[[egress]]\nname = 'out'\nlisten = '127.0.0.1:1'\nupstream = 'http://vendor'\nconcurrency = 1\n";
    let rig = Rig::with(&format!("{config}\n{tried}\n{egress}")).await;
    let mut stream = listen(&rig, "?key=stripe").await;
    stream.next().await;
    queued(&rig, "billing", 3).await;
    queued(&rig, "mail", 1).await;
    rig.client.fetch("billing", 3).await;
    let mut found = BTreeSet::new();
    for _ in 0..5 {
        rig.client.fetch("billing", 1).await;
        members("", &stream.next().await.data, &mut found);
    }
    let declared = MEMBERS.iter().flat_map(|(at, members)| {
        let members = members.iter();
        members.map(move |(name, _)| format!("{at}.{}", name.trim_start_matches("r#")))
    });
    let mut declared: BTreeSet<String> = declared.collect();
    assert!(declared.remove("keys.problem"), "shown by another test");
    // Causes of the whole sidecar are like those of rows.
    let as_rows = |path: String| match path.split_once("rows.cause.") {
        Some((_, member)) => format!("causes.{member}"),
        None => path,
    };
    let found: BTreeSet<String> = found.into_iter().map(as_rows).collect();
    assert_eq!(found, declared);
}

/// The paths of all members but those of `state` and `why`, which other routes declare.
fn members(at: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = format!("{at}.{name}").trim_start_matches('.').to_owned();
                if path.contains('.') {
                    found.insert(path.clone());
                }
                if !["keys.rows.state", "why"].contains(&&*path) {
                    members(&path, value, found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| members(at, value, found)),
        _ => {}
    }
}

/// More workers do not help where all slots are taken: the row says what `why` says first.
#[tokio::test(start_paused = true)]
async fn a_full_queue_whose_slots_are_taken_is_said_to_wait_for_slots() {
    let file = "[[queue]]\nname = \"billing\"\nconcurrency = 1\nmax_depth = 2\n";
    let rig = Rig::with(file).await;
    for _ in 0..3 {
        rig.client.offer("billing").await;
        rig.client.fetch("billing", 1).await;
    }
    assert_eq!(rig.client.offer("billing").await.status, 429);
    let state = state(&rig, "").await;
    let row = &state["queues"]["rows"][0];
    assert_eq!(row["queue"], "billing", "{state}");
    let why = rig.admin.get("/throttle/v1/why?queue=billing").await.json();
    assert_eq!([&row["cause"]["name"], &why["cause"]], ["slots", "slots"]);
}
