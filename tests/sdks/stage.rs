//! A stage for one client: a backend in memory that answers by a script and writes down what it hears.

use std::net::SocketAddr;

use ojs_throttle::net::sim::Network;
use ojs_throttle::net::{Listener, Stream};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::prelude::*;
use super::worker::{Process, Worker};
use crate::harness::ledger::Ledger;
use crate::traffic::wire::{Message, framed, read};

/// What the stage answers.
#[derive(Clone, Copy)]
pub enum Answer {
    /// A status, seconds of `Retry-After` if not 0, and a body.
    Says(u16, u32, &'static str),
    /// A FETCH with this many jobs, which run for 6 s.
    Jobs(usize),
    /// The same after this many seconds.
    JobsAfter(u64, usize),
    /// The connection is closed.
    Closes,
}

/// No jobs; also well for all the rest.
const NOTHING: Answer = Answer::Says(200, 0, r#"{"jobs":[],"state":"active"}"#);

/// What to answer to the first so many requests of an operation: `jobs`, `fetch`, `ack` and so on. All others get
/// [`NOTHING`].
pub type Script = [(&'static str, usize, Answer)];

/// Each request of an operation.
pub const ALWAYS: usize = usize::MAX;

/// A request that came: seconds since the beginning, and what it was.
#[derive(Clone, Debug)]
pub struct Heard {
    pub at: f64,
    pub operation: String,
    pub body: Value,
}

/// The stage, and who plays on it.
pub struct Stage {
    sdk: &'static Sdk,
    net: Net,
    addr: SocketAddr,
    heard: Arc<Mutex<Vec<Heard>>>,
}

impl Stage {
    pub async fn set(sdk: &'static Sdk, script: &Script) -> Stage {
        let net = Net::Sim(Network::default());
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = net.bind(any).await.unwrap();
        let addr = listener.local_addr().unwrap();
        let heard = Arc::default();
        tokio::spawn(accept(listener, script.into(), Arc::clone(&heard)));
        Stage {
            sdk,
            net,
            addr,
            heard,
        }
    }

    pub fn client(&self) -> Client {
        let to = Arc::new(Mutex::new(self.addr));
        Client::new(self.sdk, (self.net.clone(), to), 7)
    }

    /// A worker of ten slots.
    pub fn worker(&self) -> Process {
        let worker = Worker {
            client: self.client(),
            name: (self.sdk.worker_id)(1),
            queues: vec!["q".into()],
            concurrency: 10,
            visibility: None,
            handler: Arc::new(|_| (Duration::from_secs(6), Ok(None))),
            ledger: Ledger::default(),
        };
        worker.start()
    }

    pub fn heard(&self, operation: &str) -> Vec<Heard> {
        let heard = self.heard.lock().unwrap();
        let those = heard.iter().filter(|h| h.operation == operation);
        those.cloned().collect()
    }

    /// When requests of an operation came.
    pub fn times(&self, operation: &str) -> Vec<f64> {
        self.heard(operation).iter().map(|h| h.at).collect()
    }
}

async fn accept(mut listener: Listener, script: Arc<Script>, heard: Arc<Mutex<Vec<Heard>>>) {
    let begun = Instant::now();
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(serve(stream, script.clone(), heard.clone(), begun));
    }
}

async fn serve(
    mut stream: Stream,
    script: Arc<Script>,
    heard: Arc<Mutex<Vec<Heard>>>,
    begun: Instant,
) {
    let mut buffer = Vec::new();
    while let Some(request) = read(&mut stream, &mut buffer).await {
        let path = request.start.split(' ').nth(1).unwrap();
        let operation = path.rsplit('/').next().unwrap().to_owned();
        let nth = {
            let mut heard = heard.lock().unwrap();
            let before = heard.iter().filter(|h| h.operation == operation).count();
            heard.push(Heard {
                at: begun.elapsed().as_secs_f64(),
                operation: operation.clone(),
                body: serde_json::from_slice(&request.body).unwrap_or_default(),
            });
            before
        };
        let mut lines = script.iter();
        let line = lines.find(|(of, times, _)| *of == operation && nth < *times);
        let Some(reply) = reply(line.map_or(NOTHING, |(.., answer)| *answer)).await else {
            return;
        };
        if stream.write_all(&framed(&reply)).await.is_err() {
            return;
        }
    }
}

async fn reply(answer: Answer) -> Option<Message> {
    let jobs = |n: usize| {
        let job = |n| json!({ "id": format!("j{n}"), "type": "t", "queue": "q", "attempt": 1, "state": "active" });
        json!({ "jobs": (0..n).map(job).collect::<Vec<Value>>() }).to_string()
    };
    let (status, after, body) = match answer {
        Answer::Says(status, after, body) => (status, after, body.to_owned()),
        Answer::Jobs(n) => (200, 0, jobs(n)),
        Answer::JobsAfter(seconds, n) => {
            sleep(Duration::from_secs(seconds)).await;
            (200, 0, jobs(n))
        }
        Answer::Closes => return None,
    };
    let mut headers = vec![
        ("Content-Type".to_owned(), "application/json".to_owned()),
        ("Content-Length".to_owned(), body.len().to_string()),
    ];
    if after > 0 {
        headers.push(("Retry-After".to_owned(), after.to_string()));
    }
    Some(Message {
        start: format!("HTTP/1.1 {status} Whatever"),
        headers,
        body: body.into_bytes(),
    })
}
