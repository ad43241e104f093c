//! A plain HTTP client over either network, one connection a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use ojs_throttle::net::Net;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// A connection to a server of this host. It ends with this value: dropping what waits for a reply hangs up.
pub struct Link {
    sender: SendRequest<Full<Bytes>>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Link {
    /// Connects to this port.
    pub async fn open(net: &Net, port: u16) -> std::io::Result<Link> {
        let stream = TokioIo::new(net.connect("127.0.0.1", port).await?);
        let (sender, connection) = handshake(stream).await.map_err(std::io::Error::other)?;
        let task = tokio::spawn(async move {
            // Its request learns how it ended.
            let _ended = connection.await;
        });
        Ok(Link { sender, task })
    }

    /// Whether it takes another request.
    pub async fn is_open(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// Sends a request; the head of the reply is there.
    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.send_request(request).await
    }

    /// Sends a request; the reply is there as a whole.
    pub async fn ask(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Reply> {
        let (head, body) = self.send(request).await?.into_parts();
        Ok(Reply {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await?.to_bytes(),
        })
    }
}

/// What came back.
#[derive(Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// The body as it came.
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    /// Asserts that it is this refusal, where `what` was asked; its `error`.
    #[track_caller]
    pub fn refuses(&self, status: u16, code: &str, what: impl std::fmt::Display) -> Value {
        let error = self.json()["error"].clone();
        let told = (self.status, error["code"].as_str());
        assert_eq!(told, (status, Some(code)), "{what}: {error}");
        error
    }
}

/// So many requests no test needs. One that asks until something happens ends with this if it does not:
/// where time is paused, no deadline passes while it asks.
const MOST: u32 = 100_000;

/// A producer and worker in one.
#[derive(Clone, Debug)]
pub struct Client {
    /// The network it is in.
    pub net: Net,
    /// Whom it talks to.
    pub addr: SocketAddr,
    sent: Arc<AtomicU32>,
    /// What each of its requests says.
    says: Vec<(&'static str, String)>,
}

impl Client {
    /// One that talks to `addr`.
    pub fn new(net: &Net, addr: SocketAddr) -> Client {
        Client {
            net: net.clone(),
            addr,
            sent: Arc::default(),
            says: Vec::new(),
        }
    }

    /// The same as a command: with this control token, and of type JSON.
    pub fn controlling(self, token: &str) -> Client {
        let of_json = self.with("content-type", "application/json");
        of_json.with("authorization", &format!("Bearer {token}"))
    }

    /// The same with this header in each request.
    pub fn with(&self, name: &'static str, value: &str) -> Client {
        let mut client = self.clone();
        client.says.push((name, value.to_owned()));
        client
    }

    /// Sends a request with a body (none if empty) and these headers.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Reply {
        self.send_bytes(method, path, headers, body.into()).await
    }

    async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Reply {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed);
        assert!(sent < MOST, "what it waits for does not happen: {path}");
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        if !headers.iter().any(|(name, _)| *name == "host") {
            let host = self.addr.to_string().parse().unwrap();
            request.headers_mut().insert(header::HOST, host);
        }
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        for (name, value) in &self.says {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        let exchange = async {
            let mut link = Link::open(&self.net, self.addr.port()).await.unwrap();
            link.ask(request).await.unwrap()
        };
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, exchange).await.expect(path)
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], "").await
    }

    /// A number on the metrics page; `None`: there is no such series.
    pub async fn metric(&self, series: &str) -> Option<f64> {
        let page = self.get("/metrics").await.text();
        let mut lines = page.lines();
        let rest = lines.find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        Some(rest.parse().unwrap())
    }

    /// What `GET /throttle/v1/state` says, of an admin port.
    pub async fn state(&self) -> Value {
        self.get("/throttle/v1/state").await.json()
    }

    /// What `GET /throttle/v1/why` answers to this question, of an admin port.
    pub async fn why(&self, question: &str) -> Value {
        let path = format!("/throttle/v1/why?{question}");
        let reply = self.get(&path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    /// What the list of keys says of one.
    pub async fn inspect(&self, key: &str) -> Value {
        let reply = self.get(&format!("/ojs/v1/rate-limits/{key}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()
    }

    /// Sets limits of a key by hand; what is said of it then.
    pub async fn limit(&self, key: &str, limits: Value) -> Value {
        self.set(&format!("/ojs/v1/rate-limits/{key}"), limits)
            .await
    }

    /// `POST path` with a body as it stands.
    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Reply {
        let kind = [("content-type", "application/openjobspec+json")];
        self.send(Method::POST, path, &kind, body).await
    }

    /// `PUT path` with a body.
    pub async fn put(&self, path: &str, body: Value) -> Reply {
        let kind = [("content-type", "application/json")];
        self.send(Method::PUT, path, &kind, body.to_string()).await
    }

    /// A PUT that is done; what it says.
    pub async fn set(&self, path: &str, body: Value) -> Value {
        let reply = self.put(path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    /// `DELETE path`.
    pub async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], "").await
    }

    /// Enqueues; the id of the job.
    pub async fn enqueue(&self, job: Value) -> String {
        let reply = self.post("/ojs/v1/jobs", job.to_string()).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply.json()["job"]["id"].as_str().unwrap().to_owned()
    }

    /// Enqueues the same job so often; the ids.
    pub async fn enqueue_all(&self, times: usize, job: &Value) -> Vec<String> {
        let mut ids = Vec::new();
        for _ in 0..times {
            ids.push(self.enqueue(job.clone()).await);
        }
        ids
    }

    /// Fetches from one queue as worker `w`; the jobs.
    pub async fn fetch(&self, queue: &str, count: usize) -> Vec<Value> {
        let body = json!({"queues": [queue], "count": count, "worker_id": "w"});
        self.fetch_as(body).await
    }

    /// Fetches with this body; the jobs.
    pub async fn fetch_as(&self, body: Value) -> Vec<Value> {
        let reply = self.post("/ojs/v1/workers/fetch", body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply.json()["jobs"].as_array().unwrap().clone()
    }

    /// Cancels a job.
    pub async fn cancel(&self, job: &str) -> Reply {
        let reply = self.delete(&format!("/ojs/v1/jobs/{job}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
    }

    /// A job as it is shown.
    pub async fn job(&self, job: &str) -> Value {
        let shown = self.get(&format!("/ojs/v1/jobs/{job}")).await;
        shown.json()["job"].clone()
    }

    /// Acknowledges.
    pub async fn ack(&self, job: &str) -> Reply {
        let body = json!({"job_id": job, "worker_id": "w", "result": {"ok": true}});
        let reply = self.post("/ojs/v1/workers/ack", body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
    }

    /// Fails a job.
    pub async fn nack(&self, job: &str, retryable: bool) -> Reply {
        let error = json!({"code": "handler_error", "message": "no", "retryable": retryable});
        self.nack_with(job, error).await
    }

    /// Fails a job with this error.
    pub async fn nack_with(&self, job: &str, error: Value) -> Reply {
        let body = json!({"job_id": job, "worker_id": "w", "error": error});
        let reply = self.post("/ojs/v1/workers/nack", body.to_string()).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        reply
    }
}

/// A job of this queue that says nothing else.
pub fn plain(queue: &str) -> Value {
    json!({"type": "t", "args": [], "options": {"queue": queue}})
}

/// The `id` of a job.
pub fn id(job: &Value) -> &str {
    job["id"].as_str().unwrap()
}

/// The ids of jobs.
pub fn ids(jobs: &[Value]) -> Vec<&str> {
    jobs.iter().map(id).collect()
}
