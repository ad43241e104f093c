//! How an SDK talks: one connection a request at a time, headers as it writes them, retries, and what
//! it makes of replies. On top of that, what producers use.

use std::net::SocketAddr;

use ojs_throttle::net::Stream;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::prelude::*;
use crate::harness::http::Address;
use crate::traffic::wire::{Message, read};

/// What every client here is let in with.
pub const TOKEN: &str = "tok";

/// Why a request did not succeed, as its SDK sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failed {
    /// No reply, or none in time.
    Gone,
    /// Another status than 2xx.
    Status(u16),
    /// A 2xx that this SDK cannot read.
    Unread,
}

/// A client of one SDK. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    pub sdk: &'static Sdk,
    net: Net,
    to: Address,
    idle: Arc<Mutex<Vec<Link>>>,
    rng: Arc<Mutex<SmallRng>>,
}

struct Link {
    to: SocketAddr,
    stream: Stream,
    buffer: Vec<u8>,
}

impl Client {
    pub fn new(sdk: &'static Sdk, (net, to): (Net, Address), seed: u64) -> Client {
        Client {
            sdk,
            net,
            to,
            idle: Arc::default(),
            rng: Arc::new(Mutex::new(SmallRng::seed_from_u64(seed))),
        }
    }

    pub fn random(&self, range: std::ops::Range<u64>) -> u64 {
        self.rng.lock().expect("no panic").random_range(range)
    }

    /// One request, sent again as the SDK does. Without a body to read, `Null`.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> Result<Value, Failed> {
        let mut tries = 0;
        loop {
            tries += 1;
            let exchange = self.exchange(method, path, body.as_deref());
            let reply = match self.sdk.patience {
                Some(patience) => timeout(patience, exchange).await.ok().flatten(),
                None => exchange.await,
            };
            let reply = reply.ok_or(Failed::Gone)?;
            let status = status(&reply);
            if (200..300).contains(&status) {
                return self.read(&reply);
            }
            // JavaScript takes what is not JSON for a broken connection.
            let is_told = self.sdk.reads != Reads::Json || json(&reply).is_some();
            if !matches!(status, 429 | 503) || tries == self.sdk.tries || !is_told {
                return Err(Failed::Status(status));
            }
            sleep(self.pause(&reply, tries)).await;
        }
    }

    /// How long a try waits for the next.
    fn pause(&self, reply: &Message, tries: u32) -> Duration {
        const LONGEST: f64 = 30.0;
        let told = reply
            .header("retry-after")
            .and_then(|text| text.parse::<f64>().ok());
        match told.filter(|seconds| status(reply) == 429 && *seconds > 0.0) {
            Some(seconds) => Duration::from_secs_f64(seconds.min(LONGEST)),
            None => {
                let whole = 500 << (tries - 1);
                Duration::from_millis(self.random(whole / 2..whole))
            }
        }
    }

    /// What the SDK gets out of a 2xx.
    fn read(&self, reply: &Message) -> Result<Value, Failed> {
        let is_json = reply
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("application/json"));
        match self.sdk.reads {
            Reads::OnlyApplicationJson if !is_json => Ok(Value::Null),
            Reads::Json if status(reply) != 204 => json(reply).ok_or(Failed::Unread),
            _ => Ok(json(reply).unwrap_or_default()),
        }
    }

    /// One request on an idle connection or a new one; dropping it hangs up.
    async fn exchange(&self, method: &str, path: &str, body: Option<&str>) -> Option<Message> {
        let mut link = self.link().await?;
        let mut bytes = self.head_bytes(&link, method, path, body);
        bytes += body.unwrap_or_default();
        link.stream.write_all(bytes.as_bytes()).await.ok()?;
        let reply = read(&mut link.stream, &mut link.buffer).await?;
        if reply.header("connection") != Some("close") {
            self.idle.lock().expect("no panic").push(link);
        }
        Some(reply)
    }

    /// Sends the head of a POST that promises a body, and hangs up.
    pub async fn only_the_head(&self, path: &str, body: &str) {
        let mut link = self.link().await.expect("a connection");
        let bytes = self.head_bytes(&link, "POST", path, Some(body));
        let sent = link.stream.write_all(bytes.as_bytes()).await;
        sent.expect("the sidecar listens");
    }

    fn head_bytes(&self, link: &Link, method: &str, path: &str, body: Option<&str>) -> String {
        let mut bytes = format!("{method} {path} HTTP/1.1\r\n");
        for (name, value) in self.head(&link.to.to_string(), method, body) {
            bytes += &format!("{name}: {value}\r\n");
        }
        bytes + "\r\n"
    }

    fn head(&self, host: &str, method: &str, body: Option<&str>) -> Vec<(&'static str, String)> {
        let number = self.random(0..u64::MAX);
        let id = format!(
            "40b4554e-9503-416a-{:04x}-{:012x}",
            number >> 48,
            number >> 16
        );
        (self.sdk.head)(&Call {
            host,
            token: TOKEN,
            id: &id,
            method,
            body,
        })
    }

    async fn link(&self) -> Option<Link> {
        let to = *self.to.lock().expect("no panic");
        loop {
            let idle = self.idle.lock().expect("no panic").pop();
            let Some(mut link) = idle else { break };
            // Nothing may come unasked: what can be read is that it was closed.
            let news = timeout(Duration::ZERO, link.stream.read_buf(&mut link.buffer)).await;
            if link.to == to && news.is_err() {
                return Some(link);
            }
        }
        let stream = self.net.connect("127.0.0.1", to.port()).await.ok()?;
        Some(Link {
            to,
            stream,
            buffer: Vec::new(),
        })
    }

    /// Enqueues; the id of the job.
    pub async fn enqueue(&self, job: &NewJob) -> Result<String, Failed> {
        let body = (self.sdk.enqueue)(job);
        let reply = self.request("POST", "/ojs/v1/jobs", Some(body)).await?;
        id(&reply["job"])
    }

    /// Enqueues at once; their ids.
    pub async fn batch(&self, jobs: &[NewJob]) -> Result<Vec<String>, Failed> {
        let body = (self.sdk.batch)(jobs);
        let reply = self
            .request("POST", "/ojs/v1/jobs/batch", Some(body))
            .await?;
        let jobs = reply["jobs"].as_array().ok_or(Failed::Unread)?;
        jobs.iter().map(id).collect()
    }

    /// Cancels a job; its state.
    pub async fn cancel(&self, job: &str) -> Result<String, Failed> {
        let path = format!("/ojs/v1/jobs/{job}");
        let reply = self.request("DELETE", &path, None).await?;
        let shown = match self.sdk.reads {
            Reads::Typed => &reply,
            _ => &reply["job"],
        };
        id(shown).map(|_| shown["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Pauses a queue, or lets it go on.
    pub async fn pause_queue(&self, queue: &str, paused: bool) -> Result<(), Failed> {
        let verb = if paused { "pause" } else { "resume" };
        let path = format!("/ojs/v1/queues/{}/{verb}", (self.sdk.in_path)(queue));
        self.request("POST", &path, None).await.map(drop)
    }
}

fn id(job: &Value) -> Result<String, Failed> {
    job["id"].as_str().map(str::to_owned).ok_or(Failed::Unread)
}

fn status(reply: &Message) -> u16 {
    let status = reply.start.split(' ').nth(1);
    status.and_then(|text| text.parse().ok()).expect("a status")
}

fn json(reply: &Message) -> Option<Value> {
    serde_json::from_slice(&reply.body).ok()
}
