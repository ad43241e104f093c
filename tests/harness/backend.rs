//! The embedded backend behind a layer that goes wrong on command and writes down what came.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::TokioIo;
use ojs_throttle::backend::{Backend, Event, EventKind, Lax};
use ojs_throttle::net::{Listener, Net, Stream};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};

use super::dress::Dress;
use super::ledger::{Claimed, Credentials, Sent, credentials};
use super::unique::Uniques;

/// Which requests a fault is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Any,
    Enqueue,
    Fetch,
    Ack,
    Nack,
    Heartbeat,
    Job,
    Cancel,
    /// An admin's list of jobs.
    List,
    Pause,
    Stats,
}

/// What goes wrong with one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    /// It is done after this long.
    Slow(Duration),
    /// It is done at once, and answered after this long.
    LateReply(Duration),
    /// It is done, and the connection is closed without an answer.
    ReplyLost,
    /// It is done, and the connection is closed in the middle of the answer's body.
    ReplyCut,
    /// It is done, and the answer shows no job's attempt.
    Unnumbered,
    /// It was read and is not done; the connection is closed.
    Refused,
    /// It is not done; this status, without a body.
    Status(u16),
    /// It is not done; 200 with this body.
    Says(&'static str),
    /// It is done, and the answer comes in this form.
    Comes(Dress),
}

struct Rule {
    op: Op,
    /// Only with this in the path.
    part: String,
    fault: Fault,
    left: u32,
    chance: f64,
}

struct Inner {
    backend: Backend,
    epoch: Instant,
    net: Net,
    addr: Mutex<SocketAddr>,
    rules: Mutex<(VecDeque<Rule>, SmallRng)>,
    seen: Mutex<Vec<Sent>>,
    claimed: Mutex<Vec<Claimed>>,
    uniques: Uniques,
    serving: Mutex<Option<AbortHandle>>,
    ticking: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.ticking.abort();
    }
}

/// The backend as the sidecar meets it.
#[derive(Clone)]
pub struct Faulty(Arc<Inner>);

impl Faulty {
    pub async fn start(lax: Lax, net: Net, seed: u64) -> Faulty {
        let epoch = Instant::now();
        let backend = Backend::new(lax, seed);
        let ticking = tokio::spawn({
            let backend = backend.clone();
            async move {
                // What time does, such as expiry, must not wait for a request.
                loop {
                    sleep(Duration::from_millis(100)).await;
                    backend
                        .handle(request("GET", "/ojs/v1/health", &Value::Null))
                        .await;
                }
            }
        });
        // It may go away, and comes back to the same one.
        let addr = match net {
            Net::Tcp => crate::servers::port::own(),
            Net::Sim(_) => SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let faulty = Faulty(Arc::new(Inner {
            backend,
            epoch,
            net,
            addr: Mutex::new(addr),
            rules: Mutex::new((VecDeque::new(), SmallRng::seed_from_u64(seed ^ 0xfa))),
            seen: Mutex::default(),
            claimed: Mutex::default(),
            uniques: Uniques::default(),
            serving: Mutex::default(),
            ticking: ticking.abort_handle(),
        }));
        faulty.up().await;
        faulty
    }

    pub fn addr(&self) -> SocketAddr {
        *self.0.addr.lock().expect("no panic")
    }

    /// The next `times` requests of this kind meet `fault`.
    pub fn next(&self, op: Op, times: u32, fault: Fault) {
        self.rule(Rule {
            op,
            part: String::new(),
            fault,
            left: times,
            chance: 1.0,
        });
    }

    /// From now on a part of the requests of this kind meets `fault`.
    pub fn often(&self, op: Op, chance: f64, fault: Fault) {
        self.rule(Rule {
            op,
            part: String::new(),
            fault,
            left: u32::MAX,
            chance,
        });
    }

    /// From now on each look at this job meets `fault`.
    pub fn at_job(&self, job: &str, fault: Fault) {
        self.rule(Rule {
            op: Op::Job,
            part: job.to_owned(),
            fault,
            left: u32::MAX,
            chance: 1.0,
        });
    }

    /// Everything goes well again.
    pub fn mend(&self) {
        self.0.rules.lock().expect("no panic").0.clear();
        self.0.backend.unlock();
    }

    fn rule(&self, rule: Rule) {
        self.0.rules.lock().expect("no panic").0.push_back(rule);
    }

    /// The process is gone: connections break, nothing connects. Its jobs survive.
    pub fn down(&self) {
        if let Some(serving) = self.0.serving.lock().expect("no panic").take() {
            serving.abort();
        }
    }

    /// It is back.
    pub async fn up(&self) {
        let addr = self.addr();
        let deadline = Instant::now() + Duration::from_secs(10);
        let listener = loop {
            match self.0.net.bind(addr).await {
                Ok(listener) => break listener,
                // The task that had it is about to end.
                Err(error) => assert!(Instant::now() < deadline, "{addr}: {error}"),
            }
            sleep(Duration::from_millis(1)).await;
        };
        *self.0.addr.lock().expect("no panic") = listener.local_addr().expect("an address");
        let serving = tokio::spawn(accept(self.clone(), listener)).abort_handle();
        *self.0.serving.lock().expect("no panic") = Some(serving);
    }

    /// Gone for this long.
    pub async fn down_for(&self, time: Duration) {
        self.down();
        sleep(time).await;
        self.up().await;
    }

    /// A job as the backend itself has it.
    pub async fn job(&self, id: &str) -> Value {
        let path = format!("/ojs/v1/jobs/{id}");
        bare_job(self.direct("GET", &path, &Value::Null).await)
    }

    /// Past the sidecar somebody fetches from queue `mail`; the ids of the jobs.
    pub async fn fetch(&self, worker: &str, count: usize) -> Vec<String> {
        let body = json!({ "queues": ["mail"], "count": count, "worker_id": worker });
        let given = self.direct("POST", "/ojs/v1/workers/fetch", &body).await;
        let jobs = given["jobs"].as_array().into_iter().flatten();
        jobs.filter_map(|job| job["id"].as_str().map(str::to_owned))
            .collect()
    }

    /// Takes a claimed job back, as if its visibility had passed unnoticed by the claimer.
    pub async fn take_back(&self, job: &str) {
        let body = json!({ "job_id": job, "requeue": true });
        self.direct("POST", "/ojs/v1/workers/nack", &body).await;
    }

    /// Asks the backend itself, past the sidecar and all faults.
    pub async fn direct(&self, method: &str, path: &str, body: &Value) -> Value {
        let reply = self.0.backend.handle(request(method, path, body)).await;
        serde_json::from_slice(reply.body()).unwrap_or_default()
    }

    /// What happened, and when.
    pub fn ledger(&self) -> Vec<(Instant, Event)> {
        let events = self.0.backend.ledger();
        let at = |event: &Event| self.0.epoch + event.at;
        events
            .into_iter()
            .map(|event| (at(&event), event))
            .collect()
    }

    /// How many jobs have ended.
    pub fn ended(&self) -> usize {
        let over = |kind| {
            matches!(
                kind,
                EventKind::Acked | EventKind::Discarded | EventKind::Cancelled
            )
        };
        self.0
            .backend
            .ledger()
            .iter()
            .filter(|event| over(event.kind))
            .count()
    }

    /// What came, as it came.
    pub fn seen(&self) -> Vec<Sent> {
        self.0.seen.lock().expect("no panic").clone()
    }

    /// What was handed out over the network, and under which credentials.
    pub fn claimed(&self) -> Vec<Claimed> {
        self.0.claimed.lock().expect("no panic").clone()
    }

    fn note_claims(&self, reply: &[u8], credentials: &Credentials) {
        let whole: Value = serde_json::from_slice(reply).unwrap_or_default();
        let jobs = whole["jobs"].as_array().into_iter().flatten();
        let claims = jobs.filter_map(|job| {
            Some(Claimed {
                job: job["id"].as_str()?.to_owned(),
                at: Instant::now(),
                credentials: credentials.clone(),
            })
        });
        self.0.claimed.lock().expect("no panic").extend(claims);
    }

    fn fault_for(&self, op: Op, path: &str) -> Option<Fault> {
        let (rules, rng) = &mut *self.0.rules.lock().expect("no panic");
        let hit = rules.iter_mut().find(|rule| {
            let is_for = (rule.op == op || rule.op == Op::Any) && path.contains(&rule.part);
            is_for && rng.random_bool(rule.chance)
        })?;
        hit.left = hit.left.saturating_sub(1);
        let fault = hit.fault;
        rules.retain(|rule| rule.left > 0);
        Some(fault)
    }

    async fn answer(&self, incoming: Request<Incoming>) -> Result<Response<Half>, Closed> {
        let (head, body) = incoming.into_parts();
        let body = body.collect().await.map_err(|_| Closed)?.to_bytes();
        let path = head.uri.path().to_owned();
        let id = head
            .headers
            .get("x-request-id")
            .and_then(|id| id.to_str().ok());
        self.0.seen.lock().expect("no panic").push(Sent {
            id: id.unwrap_or_default().to_owned(),
            path: path.clone(),
            body: body.clone(),
            at: Instant::now(),
        });
        let op = match (head.method.as_str(), path.trim_start_matches("/ojs/v1/")) {
            ("POST", "jobs" | "jobs/batch") => Op::Enqueue,
            (_, "workers/fetch") => Op::Fetch,
            (_, "workers/ack") => Op::Ack,
            (_, "workers/nack") => Op::Nack,
            (_, "workers/heartbeat") => Op::Heartbeat,
            ("GET", rest) if rest.starts_with("jobs/") => Op::Job,
            ("GET", "admin/jobs") => Op::List,
            ("DELETE", rest) if rest.starts_with("jobs/") => Op::Cancel,
            ("POST", rest) if rest.ends_with("/pause") => Op::Pause,
            ("GET", rest) if rest.ends_with("/stats") => Op::Stats,
            _ => Op::Any,
        };
        let fault = self.fault_for(op, &path);
        match fault {
            Some(Fault::Slow(time)) => sleep(time).await,
            Some(Fault::Refused) => return Err(Closed),
            Some(Fault::Status(status)) => return Ok(bare(status)),
            Some(Fault::Says(text)) => return Ok(Response::new(Half::whole(text.into()))),
            _ => {}
        }
        let carried = credentials(|name| {
            let value = head.headers.get(name)?.to_str().ok()?;
            Some(value.to_owned())
        });
        if op == Op::Enqueue
            && let Some(refusal) = self.0.uniques.ask(&self.0.backend, &body).await
        {
            return Ok(refusal.map(Half::whole));
        }
        let reply = self
            .0
            .backend
            .handle(Request::from_parts(head, body.clone()))
            .await;
        if op == Op::Enqueue {
            self.0.uniques.stored(&body, reply.body());
        }
        if op == Op::Fetch {
            self.note_claims(reply.body(), &carried);
        }
        match fault {
            Some(Fault::LateReply(time)) => sleep(time).await,
            Some(Fault::ReplyLost) => return Err(Closed),
            Some(Fault::ReplyCut) => return Ok(reply.map(Half::cut)),
            Some(Fault::Comes(dress)) => return Ok(dressed(reply, dress)),
            Some(Fault::Unnumbered) => return Ok(reply.map(|body| Half::whole(unnumbered(&body)))),
            _ => {}
        }
        Ok(reply.map(Half::whole))
    }
}

/// What a GET shows of a job, with or without `job` around it.
pub fn bare_job(shown: Value) -> Value {
    match shown["job"].is_object() {
        true => shown["job"].clone(),
        false => shown,
    }
}

/// A status without a body.
fn bare(status: u16) -> Response<Half> {
    let mut response = Response::new(Half::whole(Bytes::new()));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// A reply in another form.
fn dressed(reply: Response<Bytes>, dress: Dress) -> Response<Half> {
    let (mut head, body) = reply.into_parts();
    let (coding, body) = dress.put_on(&body);
    head.headers.remove("content-length");
    if let Some(coding) = coding {
        let coding = coding.parse().expect("a value");
        head.headers.insert("content-encoding", coding);
    }
    Response::from_parts(head, Half::whole(body))
}

/// A body without the attempts of its jobs.
fn unnumbered(body: &[u8]) -> Bytes {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.remove("attempt");
                members.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut whole = serde_json::from_slice(body).unwrap_or_default();
    strip(&mut whole);
    whole.to_string().into()
}

async fn accept(faulty: Faulty, mut listener: Listener) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(faulty.clone(), stream)); }
                Err(_) => sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

async fn serve(faulty: Faulty, stream: Stream) {
    let service = hyper::service::service_fn(|request| faulty.answer(request));
    // A connection that breaks on command is no news.
    let _ended = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

pub(super) fn request(method: &str, path: &str, body: &Value) -> Request<Bytes> {
    let body = if body.is_null() {
        Bytes::new()
    } else {
        body.to_string().into()
    };
    let request = Request::builder().method(method).uri(path);
    request.body(body).expect("a request")
}

/// The connection is closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("closed on command")]
struct Closed;

/// A body that comes whole, or breaks off in the middle.
struct Half {
    bytes: Option<Bytes>,
    full: u64,
    cut: bool,
}

impl Half {
    fn whole(bytes: Bytes) -> Half {
        Half {
            full: bytes.len() as u64,
            bytes: Some(bytes),
            cut: false,
        }
    }

    fn cut(bytes: Bytes) -> Half {
        let full = bytes.len() as u64;
        Half {
            full,
            bytes: Some(bytes.slice(..bytes.len() / 2)),
            cut: true,
        }
    }
}

impl hyper::body::Body for Half {
    type Data = Bytes;
    type Error = Closed;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Closed>>> {
        let half = self.get_mut();
        Poll::Ready(match half.bytes.take() {
            Some(bytes) if !bytes.is_empty() => Some(Ok(Frame::data(bytes))),
            _ if half.cut => Some(Err(Closed)),
            _ => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        !self.cut && self.bytes.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.full)
    }
}
