//! What stands behind the page in these tests: workers that note what they get, and a site of somebody else.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::process::http::{ack, ask, fetch};

/// Lets the page, and nobody else, change what is in force.
pub const TOKEN: &str = "a-token-of-the-tests";

/// Added to `[server]` it lets the page write.
pub fn writable() -> String {
    format!("control_token = \"{TOKEN}\"")
}

/// Where the page has a cell of a row of a table.
pub fn cell(table: &str, row: &str, cell: &str) -> String {
    format!("#{table} [data-row={}] [data-cell={cell}]", json!(row))
}

/// Where a key's page has a number.
pub fn fact(name: &str) -> String {
    format!("#numbers [data-fact={name}]")
}

/// The number that a text begins with.
pub fn number(text: &str) -> usize {
    let digits = text.split(' ').next().unwrap().replace(',', "");
    digits
        .parse()
        .unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// What workers noted.
#[derive(Default)]
pub struct Record {
    /// Jobs that they have out, with the worker of each.
    out: Mutex<BTreeMap<String, String>>,
    /// How many jobs they started.
    started: Mutex<usize>,
}

impl Record {
    /// One FETCH; the jobs that it started.
    pub fn fetch(&self, to: SocketAddr, queue: &str, count: usize, worker: &str) -> Vec<String> {
        let jobs = fetch(to, queue, count, worker).jobs();
        let mut out = self.out.lock().unwrap();
        out.extend(jobs.iter().map(|job| (job.clone(), worker.to_owned())));
        *self.started.lock().unwrap() += jobs.len();
        jobs
    }

    /// Ends a job.
    pub fn ack(&self, to: SocketAddr, job: &str) {
        let worker = self.out.lock().unwrap()[job].clone();
        assert_eq!(ack(to, job, &worker).status, 200);
        self.out.lock().unwrap().remove(job);
    }

    /// Jobs one after the other, each for 20 ms, until it is told to stop.
    pub fn work(&self, to: SocketAddr, queue: &str, worker: &str, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let jobs = self.fetch(to, queue, 1, worker);
            // Each job takes so long, and a look in vain too.
            std::thread::sleep(Duration::from_millis(20));
            jobs.iter().for_each(|job| self.ack(to, job));
        }
    }

    /// Ends all jobs that are out.
    pub fn ack_all(&self, to: SocketAddr) {
        self.out().keys().for_each(|job| self.ack(to, job));
    }

    pub fn out(&self) -> BTreeMap<String, String> {
        self.out.lock().unwrap().clone()
    }

    pub fn started(&self) -> usize {
        *self.started.lock().unwrap()
    }
}

/// Stores a job for each of these bodies.
pub fn enqueue_all(to: SocketAddr, jobs: &[Value]) {
    for jobs in jobs.chunks(1000) {
        let batch = json!({"jobs": jobs}).to_string();
        let stored = ask(to, "POST", "/ojs/v1/jobs/batch", &batch);
        assert_eq!(stored.status, 201, "{stored:?}");
    }
}

/// The pushes of a state's stream: when each was there since the question, and how many bytes it has.
pub fn pushes(admin: SocketAddr, count: usize) -> Vec<(Duration, usize)> {
    let stream = TcpStream::connect(admin).unwrap();
    let asked = Instant::now();
    let request =
        "GET /throttle/v1/state HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    (&stream).write_all(request.as_bytes()).unwrap();
    let lines = BufReader::new(stream).lines().map(Result::unwrap);
    let states = lines.filter(|line| line.starts_with("data: "));
    states
        .take(count)
        .map(|line| (asked.elapsed(), line.len()))
        .collect()
}
