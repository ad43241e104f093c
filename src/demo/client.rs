//! A small JSON client, as an SDK has one.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use crate::net::Net;
use crate::upstream::{Call, CallBounds, Target, Upstream};

/// How long one call may take, as with most SDKs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Calls one server.
#[derive(Debug)]
pub struct HttpClient {
    addr: SocketAddr,
    server: Upstream,
}

impl HttpClient {
    /// A client of the server at `addr`.
    ///
    /// # Errors
    /// The address makes no URL.
    pub fn new(net: Net, addr: SocketAddr) -> anyhow::Result<HttpClient> {
        let target = Target::parse(&format!("http://{addr}"), None)?;
        Ok(HttpClient {
            addr,
            server: Upstream::new(target, net, CallBounds::default()),
        })
    }

    /// The server's address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Posts `body` and returns the reply's JSON.
    ///
    /// # Errors
    /// No reply, one that is not JSON, or any status but 2xx.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, body.to_string().into()).await
    }

    /// Gets `path` as JSON.
    ///
    /// # Errors
    /// As [`HttpClient::post`].
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Value> {
        let what = format!("{method} {path}");
        let answer = self.exchange(method, path, body).await;
        let (status, body) = answer.with_context(|| what.clone())?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            anyhow::bail!("{what}: {status} {said}");
        }
        serde_json::from_slice(&body).context(what)
    }

    /// Sends `body` and returns the reply's status and body, whatever they are.
    ///
    /// # Errors
    /// No reply.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut headers = HeaderMap::new();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        let call = Call {
            method,
            target: path.into(),
            headers,
            body,
            timeout: PATIENCE,
        };
        let reply = self.server.call(call).await?;
        Ok((reply.status, reply.body))
    }
}
