//! Which page a path is, who may have it, and how many may ask at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{ServiceBuilder, ServiceExt};

use super::page;
use crate::answers::body::Body;
use crate::answers::respond::{self, Fault};
use crate::config::TlsSettings;
use crate::control::verbs;
use crate::desk::{ADMIN, Proxy, guard};
use crate::server;
use crate::show::measure;
use crate::show::state::{SidecarFacts, States};
use crate::tls::ListenerTls;
use crate::told::metrics::Metrics;

/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many pages may ask the store at once; more are refused.
const AT_ONCE: usize = 16;
const METRICS: &str = "/metrics";
const PROMETHEUS_TEXT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// The prefix of requests that change something, and of `why`.
const VERBS: &str = "/throttle/v1/";
const STATE: &str = "/throttle/v1/state";

/// The pages.
#[derive(Clone, Debug)]
pub struct Admin {
    proxy: Proxy,
    metrics: Metrics,
    states: States,
    places: Arc<Semaphore>,
    /// What the page may load and run: itself.
    policy: HeaderValue,
}

impl Admin {
    /// Pages about the sidecar of this service, which asks the backend by its connections.
    pub fn new(proxy: Proxy, metrics: Metrics, facts: SidecarFacts) -> Admin {
        Admin {
            states: States::new(proxy.clone(), facts),
            proxy,
            metrics,
            places: Arc::new(Semaphore::new(AT_ONCE)),
            policy: page::security_policy(),
        }
    }

    /// The page for people, and what it shows.
    async fn show(&self, head: &mut Parts) -> Result<Response<Body>, Fault> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Err(Fault::not_allowed("GET, HEAD", "this page answers GET"));
        }
        guard::may_read(&self.proxy.sidecar, head)?;
        match head.uri.path() {
            STATE => self.states.answer(head).await,
            _ => Ok(page::reply(&head.headers, &self.policy)),
        }
    }

    async fn page(&self, head: &Parts) -> Result<Response<Body>, Fault> {
        if !matches!(head.method, Method::GET | Method::HEAD) {
            return Err(Fault::not_allowed("GET, HEAD", "this page answers GET"));
        }
        Ok(match head.uri.path() {
            "/livez" => text(StatusCode::OK, "alive\n"),
            "/readyz" => match self.proxy.sidecar.unready() {
                Some(why) => unready(format!("{why}\n")),
                None => text(StatusCode::OK, "ready\n"),
            },
            METRICS => {
                let is_open = asks_for_open_metrics(&head.headers);
                let (render, kind): (fn(&Metrics) -> String, _) = match is_open {
                    true => (Metrics::render_open, OPEN_METRICS),
                    false => (Metrics::render, PROMETHEUS_TEXT),
                };
                let render = || render(&self.metrics);
                let page = measure::measured(&self.proxy.sidecar, render).await;
                let mut page = Response::new(Body::from(Bytes::from(page)));
                page.headers_mut().insert(CONTENT_TYPE, kind);
                page
            }
            _ => {
                let message = "there is no such page on the admin port";
                return Err(Fault::new("not_found", message)
                    .with("port", ADMIN)
                    .hinting("here are /, /livez, /readyz, /metrics and what is under /throttle/v1/: state, why, keys/KEY and the like"));
            }
        })
    }
}

impl server::Service for Admin {
    fn tls(&self) -> Option<ListenerTls> {
        let config = self.proxy.sidecar.config();
        config.server.admin_tls.as_ref().map(TlsSettings::listener)
    }

    async fn call(&self, mut head: Box<Parts>, body: Incoming) -> Response<Body> {
        let path = head.uri.path();
        let id = respond::request_id(&head.headers);
        if matches!(path, "/" | STATE) {
            // Whoever looks keeps no scrape waiting.
            let shown = timeout(PATIENCE, self.show(&mut head)).await;
            return shown
                .unwrap_or_else(|_| Err(late()))
                .unwrap_or_else(|fault| fault.reply(id));
        }
        if !path.starts_with(VERBS) && path != METRICS {
            // Probes are answered however many scrapes wait.
            let page = self.page(&head).await;
            return page.unwrap_or_else(|fault| fault.reply(id));
        }
        let request = Request::from_parts(*head, body);
        let admin = self.clone();
        let pages = tower::service_fn(move |request: Request<Incoming>| {
            let admin = admin.clone();
            async move {
                Ok::<_, Infallible>(match request.uri().path().starts_with(VERBS) {
                    true => Ok(verbs::verb(&admin.proxy, request).await),
                    false => admin.page(&request.into_parts().0).await,
                })
            }
        });
        // A plain limit layer would count this request alone.
        let at_once = GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(&self.places));
        let service = ServiceBuilder::new()
            .load_shed()
            .layer(at_once)
            .timeout(PATIENCE)
            .service(pages);
        let page = service.oneshot(request).await;
        let page = page.unwrap_or_else(|_| Err(late()));
        page.unwrap_or_else(|fault| fault.reply(id))
    }
}

/// The 503 when too many pages ask the store, or it is slow.
fn late() -> Fault {
    let message = "the admin port is too busy for this page";
    Fault::new("overloaded", message)
        .hinting("ask less often; if one alone is refused, look at the store")
        .later(Duration::from_secs(1))
}

/// Whoever names OpenMetrics can read it, in whatever order it would have it.
fn asks_for_open_metrics(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    accepts.any(|value| value.contains("application/openmetrics-text"))
}

fn unready(words: impl Into<Bytes>) -> Response<Body> {
    text(StatusCode::SERVICE_UNAVAILABLE, words)
}

fn text(status: StatusCode, words: impl Into<Bytes>) -> Response<Body> {
    let mut page = Response::new(Body::from(words.into()));
    *page.status_mut() = status;
    page.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    page
}
