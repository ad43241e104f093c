//! A small HTTP/1.1 client over the world's network. Dropping a call hangs up.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::Full;
use ojs_throttle::net::Net;
use serde_json::Value;

use super::ledger::{Credentials, credentials};
use crate::sidecar::client::Link;

/// Where the sidecar is now; it moves when it is restarted.
pub type Address = Arc<Mutex<SocketAddr>>;

/// The client of one worker or producer.
#[derive(Clone)]
pub struct Client {
    net: Net,
    to: Address,
    requests: Arc<AtomicU64>,
    headers: Vec<(&'static str, String)>,
    /// Connections, and where each leads.
    idle: Arc<Mutex<Vec<(SocketAddr, Link)>>>,
}

/// A reply read whole.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON; `Null` if it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// There was no whole reply.
#[derive(Clone, Copy, Debug)]
pub struct Gone;

impl Client {
    pub fn new(net: Net, to: Address, requests: Arc<AtomicU64>) -> Client {
        Client {
            net,
            to,
            requests,
            headers: Vec::new(),
            idle: Arc::default(),
        }
    }

    /// The same client with one more header, and connections of its own.
    pub fn with(&self, name: &'static str, value: &str) -> Client {
        let mut client = self.clone();
        client.headers.push((name, value.to_owned()));
        client.idle = Arc::default();
        client
    }

    /// Under which credentials its requests go.
    pub fn credentials(&self) -> Credentials {
        credentials(|wanted| {
            let mut headers = self.headers.iter();
            let found = headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map(|(_, value)| value.clone())
        })
    }

    pub async fn get(&self, path: &str) -> Result<Reply, Gone> {
        self.call("GET", path, Bytes::new()).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Reply, Gone> {
        self.call("POST", path, body.to_string().into()).await
    }

    /// Sends one request on an idle connection, or a new one.
    pub async fn call(&self, method: &str, path: &str, body: Bytes) -> Result<Reply, Gone> {
        let (to, mut link) = self.link().await?;
        let id = self.requests.fetch_add(1, Ordering::Relaxed);
        let mut request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("host", "127.0.0.1")
            .header("content-type", "application/openjobspec+json")
            .header("x-request-id", format!("req_{id}"));
        for (name, value) in &self.headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        let reply = link.ask(request).await.map_err(|_| Gone)?;
        // A connection that will not be used again is dropped by its next user.
        self.idle.lock().expect("no panic").push((to, link));
        Ok(Reply {
            status: reply.status,
            body: reply.body,
        })
    }

    async fn link(&self) -> Result<(SocketAddr, Link), Gone> {
        let to = *self.to.lock().expect("no panic");
        loop {
            let idle = self.idle.lock().expect("no panic").pop();
            let Some((leads, mut link)) = idle else {
                break;
            };
            if leads == to && link.is_open().await {
                return Ok((to, link));
            }
        }
        let link = Link::open(&self.net, to.port()).await.map_err(|_| Gone)?;
        Ok((to, link))
    }
}
