//! What workers and producers wrote down.

use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

/// A job that a producer sent.
#[derive(Clone, Debug)]
pub struct Produced {
    pub id: String,
    pub queue: String,
    /// The keys that limit it, as the scenario says.
    pub labels: Vec<String>,
    pub answered: Instant,
    pub status: u16,
}

/// A job that a worker got.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub job: String,
    pub worker: String,
    pub queue: String,
    pub priority: i64,
    pub attempt: i64,
    pub at: Instant,
    pub shown: Value,
    /// What its FETCH carried of [`CREDENTIALS`].
    pub credentials: Credentials,
}

/// A job that the backend handed out, and under which credentials.
#[derive(Clone, Debug)]
pub struct Claimed {
    pub job: String,
    pub at: Instant,
    pub credentials: Credentials,
}

/// The headers that say for whom a request is made.
const CREDENTIALS: [&str; 2] = ["authorization", "x-ojs-tenant"];

/// The values of [`CREDENTIALS`].
pub type Credentials = [Option<String>; 2];

/// Which of these headers are [`CREDENTIALS`].
pub fn credentials(of: impl Fn(&str) -> Option<String>) -> Credentials {
    CREDENTIALS.map(of)
}

/// An ACK or nack that a worker sent, once or again.
#[derive(Clone, Debug)]
pub struct Settle {
    pub job: String,
    pub worker: String,
    pub ack: bool,
    /// When the last answer came and what it was; 0: none came.
    pub answered: Instant,
    pub status: u16,
    /// How often it was sent.
    pub tries: u32,
}

/// A FETCH that a worker sent.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub worker: String,
    pub queues: Vec<String>,
    pub count: usize,
    pub sent: Instant,
    pub answered: Instant,
    /// 0: hung up, or no reply.
    pub status: u16,
    pub got: usize,
}

/// A request and its body, as its sender sent it or as the backend got it.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub path: String,
    pub body: Bytes,
    pub at: Instant,
}

#[derive(Clone, Default, Debug)]
pub struct Records {
    pub produced: Vec<Produced>,
    pub deliveries: Vec<Delivery>,
    pub settles: Vec<Settle>,
    pub fetches: Vec<Fetched>,
    /// Statuses of heartbeats.
    pub beats: Vec<u16>,
}

/// Everything that the harness's clients wrote down.
#[derive(Clone, Default, Debug)]
pub struct Ledger(Arc<Mutex<Records>>);

impl Ledger {
    pub fn open(&self) -> MutexGuard<'_, Records> {
        self.0.lock().expect("no panic with the ledger open")
    }
}
