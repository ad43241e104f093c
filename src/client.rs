//! A small JSON client, as an SDK has one: what the demo's producers and workers and the doctor speak through.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde_json::Value;

use crate::wire::upstream::{Call, Reply, Target, Upstream};

/// Calls one server.
#[derive(Debug)]
pub struct JsonClient {
    server: Upstream,
    headers: HeaderMap,
    timeout: Duration,
}

impl JsonClient {
    /// A client whose calls may take so long.
    pub fn new(server: Upstream, timeout: Duration) -> JsonClient {
        let json = HeaderValue::from_static("application/json");
        JsonClient {
            server,
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json)]),
            timeout,
        }
    }

    /// The client with this `Authorization`.
    pub fn authorized(mut self, login: HeaderValue) -> JsonClient {
        self.headers.insert(header::AUTHORIZATION, login);
        self
    }

    /// The server's address.
    pub fn target(&self) -> &Target {
        self.server.target()
    }

    /// Posts `body` and returns the reply's JSON.
    ///
    /// # Errors
    /// No reply, or any status but 2xx.
    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Gets `path` as JSON.
    ///
    /// # Errors
    /// No reply, or any status but 2xx.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, None).await
    }

    /// Makes one call and returns the reply's JSON, or null where it has none.
    ///
    /// # Errors
    /// No reply, or any status but 2xx.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let what = format!("{method} {path}");
        let answer = self.exchange(method, path, body).await;
        let (status, body) = answer.with_context(|| what.clone())?;
        if !status.is_success() {
            let said: String = String::from_utf8_lossy(&body).chars().take(200).collect();
            anyhow::bail!("{what} is answered {status}: {said}");
        }
        Ok(serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    /// Makes one call and returns the reply's status and body, whatever they are.
    ///
    /// # Errors
    /// No reply.
    pub async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let reply = self.ask(method, path, body).await?;
        Ok((reply.status, reply.body))
    }

    /// Makes one call and returns the whole reply, whatever it is.
    ///
    /// # Errors
    /// No reply.
    pub async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Reply> {
        let call = Call {
            method,
            target: path.into(),
            headers: self.headers.clone(),
            body: body.map_or_else(Bytes::new, |body| body.to_string().into()),
            timeout: self.timeout,
        };
        Ok(self.server.call(call).await?)
    }
}
