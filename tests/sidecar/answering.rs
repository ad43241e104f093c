//! Backends that answer as a test says, and a sidecar before one.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ojs_throttle::net::{Listener, Net, sim};
use tokio::time::sleep;

use crate::sidecar::BoxFuture;
use crate::sidecar::client::Client;
use crate::sidecar::simulated::{Sidecar, Start};

const OJS: HeaderName = HeaderName::from_static("ojs-version");

/// A listener, and its address as a URL.
pub async fn bind(net: &Net) -> (Listener, String) {
    let listener = net
        .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .await
        .unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    (listener, base)
}

/// How a backend answers a request that it has read.
pub type Answers = dyn Fn(Request<Bytes>) -> Coming + Send + Sync;

/// An answer that takes its time.
pub type Coming = Pin<Box<dyn Future<Output = Response<Bytes>> + Send>>;

/// A backend of these answers, on each connection that comes.
pub async fn serve(mut listener: Listener, answers: Arc<Answers>) {
    while let Ok((stream, _)) = listener.accept().await {
        let answers = answers.clone();
        let answer = service_fn(move |request: Request<Incoming>| {
            let answers = answers.clone();
            async move {
                let (head, body) = request.into_parts();
                // Its sender may have hung up.
                let body = body.collect().await.map(Collected::to_bytes);
                let request = Request::from_parts(head, body.unwrap_or_default());
                Ok::<_, Infallible>(answers(request).await.map(Full::new))
            }
        });
        let stream = TokioIo::new(stream);
        tokio::spawn(http1::Builder::new().serve_connection(stream, answer));
    }
}

/// A request that a backend was sent.
pub type Heard = (Parts, Bytes);

/// What a backend was sent.
#[derive(Clone, Default, Debug)]
pub struct Answering(Arc<Mutex<Vec<Heard>>>);

impl Answering {
    /// What it was sent so far.
    pub fn requests(&self) -> Vec<Heard> {
        self.0.lock().unwrap().clone()
    }

    /// The bodies of what was POSTed so far.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        let posted = self.requests().into_iter();
        let posted = posted.filter(|(head, _)| head.method == Method::POST);
        posted.map(|(_, body)| body.to_vec()).collect()
    }

    /// Forgets it.
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// A backend that answers as the request's head has it, and takes so long for each answer.
pub fn answering_by(
    long: Duration,
    config: &str,
    says: impl Fn(&Parts) -> (u16, Bytes) + Send + Sync + 'static,
) -> BoxFuture<'_, (Answering, Sidecar, Client)> {
    answering_as(Some("1.0"), long, config, says)
}

/// The same, where replies may name no version of OJS.
pub fn answering_as<'a>(
    version: Option<&'static str>,
    long: Duration,
    config: &'a str,
    says: impl Fn(&Parts) -> (u16, Bytes) + Send + Sync + 'static,
) -> BoxFuture<'a, (Answering, Sidecar, Client)> {
    let answering = Answering::default();
    let heard = answering.clone();
    let answers = move |request: Request<Bytes>| -> Coming {
        let (head, sent) = request.into_parts();
        let (status, body) = says(&head);
        heard.0.lock().unwrap().push((head, sent));
        Box::pin(answer(version, status, body, long))
    };
    Box::pin(before(answering, Arc::new(answers), config))
}

async fn answer(
    version: Option<&'static str>,
    status: u16,
    body: Bytes,
    long: Duration,
) -> Response<Bytes> {
    sleep(long).await;
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    let version = version.map(|said| (OJS, HeaderValue::from_static(said)));
    response.headers_mut().extend(version);
    response
}

async fn before(
    answering: Answering,
    answers: Arc<Answers>,
    config: &str,
) -> (Answering, Sidecar, Client) {
    let net = Net::Sim(sim::Network::default());
    let (listener, base) = bind(&net).await;
    tokio::spawn(serve(listener, answers));
    let sidecar = Start::before(&net, &base, config).start().await;
    let client = Client::new(&net, sidecar.addr);
    (answering, sidecar, client)
}
