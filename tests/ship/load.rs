//! A sidecar under a load that shows every series that alerts and panels look at.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ojs_throttle::backend::Lax;
use serde_json::json;

use crate::process::http::{self, Conn};
use crate::process::ways_out::way_out;
use crate::servers::vendor::{Answer, Vendor};
use crate::sidecar::process::{Backend, Ends, Sidecar, config, until};

/// How many requests at once the sidecar takes. The load alone has fewer.
const IN_FLIGHT: usize = 12;

/// Limits that refuse, drop and hold, bounds that refuse, drop and block, and one of each that is only tried.
const RULES: &str = r#"
[fetch]
max_wait = "400ms"

[[policy]]
name = "slots"
match = { queue = "slots" }
concurrency = 3
fair = { by = "{meta.customer}" }

[[policy]]
name = "rate"
match = { queue = "rate" }
key = "customer:{meta.customer}" # of such a queue more is held, and for longer
rate = { limit = 5, period = "1s" }

[[policy]] # of one key it is said when what waits has started
name = "plain"
match = { queue = "plain" }
rate = { limit = 4, period = "1s" }

[[policy]]
name = "lossy"
match = { queue = "lossy" }
rate = { limit = 2, period = "1s" }
on_limit = "drop"

[[policy]]
name = "tried"
match = { queue = "slots" }
rate = { limit = 2, period = "1s" }
mode = "shadow"

[[queue]]
name = "full"
max_depth = 4

[[queue]]
name = "full"
max_depth = 2
mode = "shadow"

[[queue]]
name = "ring"
max_depth = 4
strategy = "drop_oldest"

[[queue]]
name = "gate"
max_depth = 1
strategy = "block"

"#;

/// Of calls that go out one in some is refused by the service, and some by us. One call spends what a day allows.
const CALLS: &str = r#"
max_wait = "50ms"
rate = { limit = 10, period = "1s" }

[[egress.budget]]
name = "tokens"
cost = { use = "tokens", max = 10 }
rate = { limit = 1000000, period = "1m" }

[[egress.budget]]
name = "spent"
key = "spent:{header.X-Team}"
cost = { use = "tokens", max = 10 }
rate = { limit = 10, period = "24h" }
"#;

/// A sidecar, and the backend and the service behind it.
pub struct Loaded {
    pub sidecar: Sidecar,
    calls: SocketAddr,
    _backend: Backend,
    _vendor: Vendor,
}

impl Loaded {
    pub fn start() -> Loaded {
        let backend = Backend::start(Lax::spec());
        let server = format!("max_in_flight = {IN_FLIGHT}");
        let ca = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls/ca.pem");
        let vendor = Vendor::start(|call| match call.target() {
            "/busy" => Answer::new(429, "").header("Retry-After", "1"),
            _ => Answer::new(200, r#"{"usage":{"total_tokens":4}}"#)
                .header("Content-Type", "application/json"),
        });
        let (out, calls) = way_out(vendor.addr, CALLS);
        let rules = format!("{RULES}{out}[upstream]\nca_file = \"{ca}\"\n");
        Loaded {
            sidecar: Sidecar::run(&config(backend.addr, &server, &rules)),
            calls,
            _backend: backend,
            _vendor: vendor,
        }
    }

    /// Works in bursts as long as `look` takes.
    pub fn during<T>(&self, look: impl FnOnce() -> T) -> T {
        let (to, ended) = (self.sidecar.data, AtomicBool::new(false));
        thread::scope(|scope| {
            let _ends = Ends(&ended);
            scope.spawn(|| again(&ended, || produce(to)));
            scope.spawn(|| {
                again(&ended, || {
                    fetch_and_run(to, &["slots", "rate", "plain", "lossy"])
                })
            });
            // Whose queue is empty, or has used up its limit: such a FETCH is kept open.
            scope.spawn(|| again(&ended, || fetch_and_run(to, &["rate"])));
            scope.spawn(|| again(&ended, || block(to)));
            scope.spawn(|| again(&ended, || drain(to)));
            scope.spawn(|| again(&ended, || call(self.calls)));
            look()
        })
    }

    /// The page, once it has a series that begins with each of these.
    pub fn page_with(&self, wanted: &[String]) -> String {
        until("a page with every series", || {
            self.crowd();
            let page = self.sidecar.metrics();
            let has = |begin: &String| page.lines().any(|line| line.starts_with(begin.as_str()));
            wanted.iter().all(has).then_some(page)
        })
    }

    /// More requests at once than the sidecar takes, from workers that wait for a job.
    fn crowd(&self) {
        thread::scope(|scope| {
            for nth in 0..=IN_FLIGHT {
                scope.spawn(move || {
                    http::fetch(self.sidecar.data, "rate", 1, &format!("crowd-{nth}"))
                });
            }
        });
    }
}

fn again(ended: &AtomicBool, mut step: impl FnMut()) {
    while !ended.load(Ordering::SeqCst) {
        step();
    }
}

/// What becomes of it does not matter: some is refused, and that is what it is for.
fn send(to: SocketAddr, path: &str, body: &serde_json::Value) -> http::Reply {
    http::ask(to, "POST", path, &body.to_string())
}

fn enqueue(to: SocketAddr, queue: &str) {
    let (meta, options) = (json!({"customer": "acme"}), json!({"queue": queue}));
    let job = json!({"type": "t", "args": [], "meta": meta, "options": options});
    send(to, "/ojs/v1/jobs", &job);
}

/// Two seconds of much, and two of nothing.
fn produce(to: SocketAddr) {
    for _ in 0..10 {
        for queue in [
            "slots", "rate", "rate", "plain", "lossy", "lossy", "full", "ring",
        ] {
            enqueue(to, queue);
        }
        thread::sleep(Duration::from_millis(150));
    }
    thread::sleep(Duration::from_secs(2));
}

/// Twenty calls at once of ten teams, more than may start. The service refuses one. The next such calls are refused here:
/// each team has spent what it has.
fn call(to: SocketAddr) {
    thread::scope(|scope| {
        for nth in 0..20 {
            let body = r#"{"model":"m","max_tokens":9,"messages":[]}"#;
            let post = format!("POST /v1/chat/completions HTTP/1.1\r\nX-Team: {}", nth / 2);
            let line = if nth == 9 {
                "GET /busy HTTP/1.1"
            } else {
                &post
            };
            let call = format!(
                "{line}\r\nHost: a\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            scope.spawn(move || {
                let mut conn = Conn::open(to);
                conn.write(call.as_bytes()).unwrap();
                conn.reply().unwrap()
            });
        }
    });
    thread::sleep(Duration::from_secs(1));
}

/// Takes from some queues and runs what comes for a while.
fn fetch_and_run(to: SocketAddr, queues: &[&str]) {
    let body = json!({"queues": queues, "count": 5, "worker_id": "w"});
    let reply = send(to, "/ojs/v1/workers/fetch", &body);
    if reply.status != 200 {
        return;
    }
    let jobs = reply.jobs();
    thread::sleep(Duration::from_millis(200));
    for job in jobs {
        http::ack(to, &job, "w");
    }
}

/// Makes room now and then.
fn drain(to: SocketAddr) {
    thread::sleep(Duration::from_secs(3));
    fetch_and_run(to, &["full"]);
}

/// Waits in vain for room in a queue that nobody empties.
fn block(to: SocketAddr) {
    let job = json!({"type": "t", "args": [], "options": {"queue": "gate"}}).to_string();
    let length = job.len();
    let mut conn = Conn::open(to);
    let request = format!(
        "POST /ojs/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         OJS-Block-Timeout: 2\r\nContent-Length: {length}\r\n\r\n{job}"
    );
    conn.write(request.as_bytes()).unwrap();
    let _refused = conn.reply().unwrap();
    thread::sleep(Duration::from_secs(2));
}
