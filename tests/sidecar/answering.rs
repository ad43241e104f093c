//! A backend that answers as a test says, with a sidecar before it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use ojs_throttle::net::{Listener, Net, sim};
use tokio::time::sleep;

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
pub async fn answering_by(
    long: Duration,
    config: &str,
    says: impl Fn(&Parts) -> (u16, Bytes) + Clone + Send + 'static,
) -> (Answering, Sidecar, Client) {
    answering_as(Some("1.0"), long, config, says).await
}

/// The same, where replies may name no version of OJS.
pub async fn answering_as(
    version: Option<&'static str>,
    long: Duration,
    config: &str,
    says: impl Fn(&Parts) -> (u16, Bytes) + Clone + Send + 'static,
) -> (Answering, Sidecar, Client) {
    let net = Net::Sim(sim::Network::default());
    let (mut listener, base) = bind(&net).await;
    let answering = Answering::default();
    let heard = answering.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (heard, says) = (heard.clone(), says.clone());
            let answer = move |request: Request<Incoming>| {
                let (heard, says) = (heard.clone(), says.clone());
                async move {
                    let (head, sent) = request.into_parts();
                    // Its sender may have hung up.
                    let sent = sent.collect().await.map(|sent| sent.to_bytes());
                    let sent = (head.clone(), sent.unwrap_or_default());
                    heard.0.lock().unwrap().push(sent);
                    let (status, body) = says(&head);
                    sleep(long).await;
                    let mut response = Response::new(Full::new(body));
                    *response.status_mut() = StatusCode::from_u16(status).unwrap();
                    let version = version.map(HeaderValue::from_static);
                    response
                        .headers_mut()
                        .extend(version.map(|said| (OJS, said)));
                    Ok::<_, Infallible>(response)
                }
            };
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(connection);
        }
    });
    let sidecar = Start::before(&net, &base, config).start().await;
    let client = Client::new(&net, sidecar.addr);
    (answering, sidecar, client)
}
