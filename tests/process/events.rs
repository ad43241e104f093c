//! Event streams over real sockets: a backend with a stream of its own that breaks off, a subscriber that
//! does not read, and the end.

use std::sync::mpsc::{self, Receiver, Sender};

use super::prelude::*;
use crate::harness::assert_within;
use crate::sidecar::process::LONG;

/// A subscriber on a bare socket.
pub struct Subscriber(BufReader<TcpStream>);

impl Subscriber {
    /// Opens a stream; the head of the reply beside it.
    pub fn open(to: SocketAddr, query: &str, more: &str) -> (Subscriber, String) {
        Subscriber::on(TcpStream::connect(to).unwrap(), query, more)
    }

    /// One whose side of the connection has room for hardly anything.
    fn narrow(to: SocketAddr) -> Subscriber {
        let runtime = crate::servers::runtime();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.connect(to).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Subscriber::on(stream, "", "").0
    }

    fn on(mut stream: TcpStream, query: &str, more: &str) -> (Subscriber, String) {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let request = format!(
            "GET /ojs/v1/events/stream{query} HTTP/1.1\r\nHost: ojs\r\nAccept: text/event-stream\r\n{more}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        (Subscriber(reader), head)
    }

    /// The next line that is no chunk's length and not empty; `None`: the stream has ended in order.
    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "it broke off");
            let line = line.trim_end();
            match usize::from_str_radix(line, 16) {
                Ok(0) => return None,
                Err(_) if !line.is_empty() => return Some(line.to_owned()),
                _ => {}
            }
        }
    }

    /// Reads on to the next line that begins so, and returns the rest of it.
    fn after(&mut self, begin: &str) -> String {
        loop {
            let line = self.line().expect(begin);
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_owned();
            }
        }
    }

    /// The id and the data of the next event with this name.
    pub fn event(&mut self, name: &str) -> (Option<String>, Value) {
        let mut id = None;
        let begun = Instant::now();
        loop {
            // Signs of life alone would keep it here for ever.
            assert!(begun.elapsed() < LONG, "no {name}");
            let line = self.line().expect(name);
            if let Some(value) = line.strip_prefix("id: ") {
                id = Some(value.to_owned());
            } else if let Some(value) = line.strip_prefix("event: ") {
                if value == name {
                    let data = self.after("data: ");
                    return (id, serde_json::from_str(&data).unwrap());
                }
                id = None;
            }
        }
    }
}

/// A backend that only answers `events/stream`, each time with the next of these, and says what it was
/// asked.
struct Scripted {
    addr: SocketAddr,
    asked: Receiver<String>,
}

/// What it does with one request: writes, and goes on when it is told, until it hangs up.
struct Scene {
    says: Vec<&'static str>,
    go: Receiver<()>,
}

fn scene(says: &[&'static str]) -> (Sender<()>, Scene) {
    let (give, go) = mpsc::channel();
    let says = says.to_vec();
    (give, Scene { says, go })
}

impl Scripted {
    fn run(scenes: Vec<Scene>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (give, asked) = mpsc::channel();
        std::thread::spawn(move || {
            let mut scenes = scenes.into_iter();
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && matches!(reader.read_line(&mut head), Ok(1..))
                {
                }
                let stream = reader.get_mut();
                if !head.contains("/events") {
                    // What the sidecar asks for itself.
                    let none = "HTTP/1.1 404 Not Found\r\nOJS-Version: 1.0\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                    drop(stream.write_all(none.as_bytes()));
                    continue;
                }
                let Some(scene) = scenes.next() else { break };
                drop(give.send(head));
                for text in scene.says {
                    drop(stream.write_all(text.as_bytes()));
                    // Told to go on, or forgotten.
                    let _ = scene.go.recv();
                }
            }
        });
        Scripted { addr, asked }
    }

    fn sidecar(&self) -> Sidecar {
        Sidecar::run(&config(self.addr, "", ""))
    }
}

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n\r\n";

/// The backend's stream is passed on frame by frame under the client's credentials, without mirrors;
/// when it breaks off within a frame that frame is left out and the client's stream ends, and who comes back finds it
/// where it ended.
#[test]
fn the_backends_stream_is_relayed_and_taken_up_again() {
    let frame = "id: b1\r\nevent: job.enqueued\r\ndata: {\"id\":\"j\",\"meta\":{\"a\":1,\"ojs.rate_limit.mirror\":{\"policy\":{\"key\":\"k\"},\"at\":\"options\"}}}\r\n\r\nid: b2\nda";
    let (go_on, first) = scene(&[STREAM, frame]);
    let (stay, second) = scene(&[STREAM, "id: b3\ndata: {\"type\":\"job.completed\"}\n\n"]);
    let backend = Scripted::run(vec![first, second]);
    let sidecar = backend.sidecar();
    let credentials =
        "Authorization: Bearer secret\r\nLast-Event-ID: b~0\r\nAccept-Encoding: gzip\r\n";
    let (mut client, head) = Subscriber::open(sidecar.data, "?channel=all&x=1", credentials);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let asked = backend
        .asked
        .recv_timeout(LONG)
        .unwrap()
        .to_ascii_lowercase();
    assert!(
        asked.starts_with("get /ojs/v1/events/stream?channel=all&x=1 "),
        "{asked}"
    );
    for line in [
        "authorization: bearer secret",
        "last-event-id: b~0\r\n",
        "accept: text/event-stream",
        "accept-encoding: identity\r\n",
    ] {
        assert!(asked.contains(line), "{asked}");
    }
    go_on.send(()).unwrap();
    // What of ours it missed is told, although the last that it had was the backend's.
    let (_, gap) = client.event("system.gap");
    assert!(gap["data"]["gap_end"].is_string(), "{gap}");
    assert!(gap["data"].get("gap_start").is_none(), "{gap}");
    let (id, data) = client.event("job.enqueued");
    assert_eq!(id.as_deref(), Some("b1"));
    assert_eq!(
        data,
        json!({"id": "j", "meta": {"a": 1}, "rate_limit": {"key": "k"}})
    );
    // It hangs up within the next frame, and is asked again from where it was.
    drop(go_on);
    assert_eq!(client.line(), None, "half a frame is no frame");
    let last = "Last-Event-ID: b1\r\n";
    let (mut client, _) = Subscriber::open(sidecar.data, "?channel=all&x=1", last);
    let asked = backend.asked.recv_timeout(LONG).unwrap();
    has(asked.to_ascii_lowercase(), "last-event-id: b1\r\n");
    drop(stay);
    client.event("system.gap");
    assert_eq!(client.after("id: "), "b3");
    assert_eq!(client.after("data: "), "{\"type\":\"job.completed\"}");
}

/// A backend's streams of one job and of one queue pass without mirrors, each sign of life at once, and an event that
/// is too long ends none of them.
#[test]
fn a_jobs_own_stream_shows_no_mirror() {
    for path in ["/ojs/v1/jobs/j/events", "/ojs/v1/queues/%71/events"] {
        let frame = "id: b1\nevent: job.enqueued\ndata: {\"id\":\"j\",\"meta\":{\"ojs.rate_limit.mirror\":{\"policy\":{\"key\":\"k\"},\"at\":\"options\"}}}\n\n:ping\n:half";
        let long = format!(
            "\n\nid: b2\ndata: {}\n\nid: b3\ndata: 1\n\n",
            "x".repeat(2 << 20)
        );
        let (go_on, only) = scene(&[STREAM, frame, long.leak()]);
        let backend = Scripted::run(vec![only]);
        let sidecar = backend.sidecar();
        let mut stream = TcpStream::connect(sidecar.data).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: ojs\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let asked = backend.asked.recv_timeout(LONG).unwrap();
        let plain = path.replace("%71", "q");
        assert!(asked.starts_with(&format!("GET {plain} ")), "{asked}");
        go_on.send(()).unwrap();
        let mut client = Subscriber(BufReader::new(stream));
        assert_eq!(client.after("id: "), "b1");
        let data: Value = serde_json::from_str(&client.after("data: ")).unwrap();
        assert_eq!(data["rate_limit"], json!({"key": "k"}));
        assert!(!data.to_string().contains("mirror"), "{data}");
        assert_eq!(client.after(":"), "ping");
        go_on.send(()).unwrap();
        assert_eq!(client.after("id: "), "b3", "the one before is too long");
    }
}

/// A client that says where it was in the backend's stream keeps that place while the backend is away.
#[test]
fn a_place_in_the_backends_stream_outlives_an_absence() {
    let (mut backend, sidecar) = pair("", "");
    let policy = json!({"rate_limit": {"key": "k", "throttle": {"limit": 2, "period": "PT1S"}}});
    let heard = until("a held job starts while the backend is away", || {
        for _ in 0..2 {
            enqueue(sidecar.data, "q", policy.clone());
        }
        // One starts, and the other is held for half a second.
        let _started = fetch(sidecar.data, "q", 2, "w").jobs();
        backend.go();
        let last = "Last-Event-ID: evt_0190b0a0-0000-7000-8000-000000000000~b7\r\n";
        let (mut client, _) = Subscriber::open(sidecar.data, "?types=rate_limit.*,system.*", last);
        let (_, gap) = client.event("system.gap");
        assert!(gap["data"]["gap_start"].is_string(), "{gap}");
        // On a machine that stalls, the backend would be asked first whether the job is still ours.
        let begun = Instant::now();
        let starts = || {
            let reply = fetch(sidecar.data, "q", 1, "w");
            reply.status == 200 && reply.jobs().len() == 1
        };
        let mut started = false;
        while !started && begun.elapsed() < Duration::from_secs(2) {
            started = starts();
        }
        let id = started.then(|| client.event("rate_limit.released").0.unwrap());
        backend.come();
        id
    });
    assert!(
        heard.starts_with("evt_") && heard.ends_with("~b7"),
        "{heard}"
    );
}

/// Ours alone where the backend has none, and its own word where it does not let the client in.
#[test]
fn a_backend_without_a_stream_and_one_that_refuses() {
    for (status, ours) in [
        ("404 Not Found", true),
        ("405 Method Not Allowed", true),
        ("501 Not Implemented", true),
        ("401 Unauthorized", false),
        ("403 Forbidden", false),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\nX-Theirs: 1\r\nContent-Length: 2\r\n\r\nno");
        let (_go, only) = scene(&[answer.leak()]);
        let backend = Scripted::run(vec![only]);
        let sidecar = backend.sidecar();
        let (mut client, head) = Subscriber::open(sidecar.data, "", "");
        if ours {
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            assert_eq!(client.after("retry: "), "3000");
        } else {
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
            assert!(head.to_ascii_lowercase().contains("x-theirs: 1"), "{head}");
        }
    }
}

/// The types that a client names hold for the backend's events too, and ours come with where it was in
/// the backend's, so that it can come back to both.
#[test]
fn ours_and_theirs_in_one_stream() {
    let (mut backend, sidecar) = pair("", "");
    let limited = |n: usize| {
        enqueue(
            sidecar.data,
            "q",
            json!({"n": n, "rate_limit": {"key": "k", "concurrency": 1}}),
        )
    };
    let (mut both, _) = Subscriber::open(sidecar.data, "?channel=queue:q", "");
    let (mut ours, _) = Subscriber::open(sidecar.data, "?channel=queue:q&types=rate_limit.*", "");
    assert_eq!(sidecar.metric("ojs_throttle_event_subscribers"), 2.0);
    let (first, second) = (limited(1), limited(2));
    assert_eq!(fetch(sidecar.data, "q", 2, "w").jobs(), [first]);
    let (theirs, data) = both.event("job.state_changed");
    assert_eq!(data["to"], "available");
    let (id, data) = both.event("rate_limit.exceeded");
    assert_eq!(data["subject"], *second);
    let (id, theirs) = (id.unwrap(), theirs.unwrap());
    let (own, beside) = id.split_once('~').unwrap();
    assert_eq!(data["id"], own);
    assert!(
        beside.starts_with("evt_") && theirs.starts_with("evt_"),
        "{id}"
    );
    let (_, data) = ours.event("rate_limit.exceeded");
    assert_eq!(data["subject"], *second);
    assert_eq!(sidecar.metric("ojs_throttle_events_sent_total"), 2.0);
    // The backend goes away and the streams end, so that their clients come back for both.
    backend.go();
    while both.line().is_some() {}
    while ours.line().is_some() {}
    backend.come();
    let (mut both, _) = Subscriber::open(sidecar.data, "?channel=queue:q", "");
    enqueue(sidecar.data, "q", json!({}));
    let (_, data) = both.event("job.state_changed");
    assert_eq!(data["queue"], "q");
    drop((both, ours));
    sidecar.shows("ojs_throttle_event_subscribers", 0.0);
}

/// What the processor did for this process so far, in the system's ticks.
fn worked(sidecar: &Sidecar) -> u64 {
    let path = format!("/proc/{}/stat", sidecar.pid());
    let stat = std::fs::read_to_string(path).unwrap();
    // The name before this may have blanks.
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<&str> = rest.split(' ').collect();
    let number = |nth: usize| fields[nth].parse::<u64>().unwrap();
    number(11) + number(12)
}

/// Starts and ends `count` jobs of which every one is limited and so told of; how much work that was.
fn churn(sidecar: &Sidecar, count: usize) -> u64 {
    let mut conn = Conn::open(sidecar.data);
    let policy = json!({"key": "k", "concurrency": 1});
    let jobs: Vec<Value> = (0..count)
        .map(|n| json!({"type": "t", "args": ["x".repeat(100), n], "options": {"queue": "q", "rate_limit": policy}}))
        .collect();
    for some in jobs.chunks(500) {
        let reply = conn.ask(
            "POST",
            "/ojs/v1/jobs/batch",
            &json!({"jobs": some}).to_string(),
        );
        assert_eq!(reply.status, 201, "{}", reply.body);
    }
    let before = worked(sidecar);
    let body = json!({"queues": ["q"], "count": 2, "worker_id": "w"}).to_string();
    for _ in 0..count {
        let job = conn.ask("POST", "/ojs/v1/workers/fetch", &body).jobs();
        let body = json!({"job_id": job[0], "worker_id": "w"}).to_string();
        assert_eq!(conn.ask("POST", "/ojs/v1/workers/ack", &body).status, 200);
    }
    worked(sidecar) - before
}

/// Reads all that is told of limits until the stream ends, and tells then how many jobs were released.
fn released(sidecar: &Sidecar) -> mpsc::Receiver<usize> {
    let (mut reader, _) = Subscriber::open(sidecar.data, "?types=rate_limit.*", "");
    let (give, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut released = 0;
        while let Some(line) = reader.line() {
            released += usize::from(line == "event: rate_limit.released");
            assert_ne!(line, "event: system.events_dropped");
        }
        let _ = give.send(released);
    });
    heard
}

/// Subscribers that never read: thousands of events later the sidecar has not grown, nor what the system keeps
/// for them; a start is no more work than before, who reads has heard everything, and the end is not held up.
#[test]
fn who_does_not_read_costs_bounded_memory_and_no_throughput() {
    const JOBS: usize = 400;
    let (_without, mut quiet) = pair("", "");
    let (_backend, mut sidecar) = pair("", "");
    let other = released(&quiet);
    let heard = released(&sidecar);
    let asleep: Vec<_> = (0..20).map(|_| Subscriber::narrow(sidecar.data)).collect();
    // Until every buffer on the way to those who sleep is full.
    churn(&sidecar, JOBS);
    let before = sidecar.status("RssAnon");
    // By turns, because what else the machine does makes both slower; and more often where it does much.
    let (mut alone, mut with, mut times) = (u64::MAX, u64::MAX, 1);
    while times < 4 || (with * 2 >= alone * 3 && times < 12) {
        alone = alone.min(churn(&quiet, JOBS));
        with = with.min(churn(&sidecar, JOBS));
        times += 1;
    }
    let grown = sidecar.status("RssAnon").saturating_sub(before);
    println!(
        "{JOBS} starts: {alone} ticks alone, {with} with 20 who do not read; grown by {grown} kB"
    );
    assert!(grown < 4096, "grown by {grown} kB");
    assert!(
        with * 2 < alone * 3,
        "{alone} ticks alone, {with} beside 20 who do not read"
    );
    sidecar.signal("TERM");
    let begun = Instant::now();
    assert!(sidecar.ended().success());
    assert_within(begun.elapsed(), Duration::from_secs(20), "");
    quiet.signal("TERM");
    assert!(quiet.ended().success());
    // The first of each time is not refused before it starts.
    for (heard, times) in [(heard, times), (other, times - 1)] {
        let released = heard.recv_timeout(LONG).unwrap();
        let all = times * (JOBS - 1);
        assert!(released >= all, "{released} of {all}");
    }
    // What is left of a stream is what the system kept of it.
    for mut sleeper in asleep {
        let kept = sleeper.0.read_to_end(&mut Vec::new()).unwrap();
        assert!((1..200_000).contains(&kept), "{kept} bytes");
    }
}

/// An open stream that is read does not hold up a drain: it gets a last word and ends in order.
#[test]
fn a_stream_ends_with_the_drain() {
    let (_backend, mut sidecar) = pair("", "");
    let job = enqueue(
        sidecar.data,
        "q",
        json!({"rate_limit": {"key": "k", "concurrency": 1}}),
    );
    assert_eq!(
        fetch(sidecar.data, "q", 1, "w").jobs(),
        std::slice::from_ref(&job)
    );
    let (mut stream, _) = Subscriber::open(sidecar.data, "", "");
    assert_eq!(stream.after("retry: "), "3000");
    sidecar.signal("TERM");
    sidecar.state("draining");
    // Until the last limited job has ended the stream goes on.
    assert!(sidecar.runs());
    assert_eq!(ack(sidecar.data, &job, "w").status, 200);
    let (_, last) = stream.event("server.shutdown");
    let begun = Instant::now();
    assert_eq!(last["type"], "server.shutdown");
    assert_eq!(stream.line(), None);
    let mut rest = Vec::new();
    stream.0.read_to_end(&mut rest).unwrap();
    assert!(sidecar.ended().success());
    assert_within(begun.elapsed(), Duration::from_secs(10), "");
}
