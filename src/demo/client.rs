//! A small HTTP client, as an SDK has one: kept connections, JSON out, JSON in.

use std::net::SocketAddr;

use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;

use crate::net::Net;

/// Calls one server.
#[derive(Debug)]
pub struct Client {
    net: Net,
    addr: SocketAddr,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    /// A client of the server at `addr`.
    pub fn new(net: Net, addr: SocketAddr) -> Client {
        Client {
            net,
            addr,
            idle: Mutex::default(),
        }
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
    /// As [`Client::post`].
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::GET, path, Bytes::new()).await
    }

    async fn call(&self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Value> {
        let what = || format!("{method} {path}");
        let (status, body) = self
            .exchange(&method, path, body)
            .await
            .with_context(what)?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            anyhow::bail!("{method} {path}: {status} {said}");
        }
        serde_json::from_slice(&body).with_context(what)
    }

    /// Sends `body` and returns the reply's status and body, whatever they are.
    ///
    /// # Errors
    /// No reply.
    pub async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut connection = match self.kept() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.addr.to_string())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let (head, body) = connection.send_request(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        // A connection that is still busy with its end is not kept.
        if connection.ready().await.is_ok() {
            self.idle.lock().push(connection);
        }
        Ok((head.status, body))
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = self
            .net
            .connect(&self.addr.ip().to_string(), self.addr.port())
            .await?;
        let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
        // What breaks a connection shows in the call that uses it.
        tokio::spawn(async move { drop(driver.await) });
        Ok(connection)
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.is_closed());
        idle.pop()
    }
}
