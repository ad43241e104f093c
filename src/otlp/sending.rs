//! Spans on their way to the collector: in batches, by a thread of their own.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use super::wanted::{is_wanted, names_endpoint, variable};
use crate::net::Net;
use crate::tls::ClientFiles;
use crate::wire::ojs;
use crate::wire::traces;
use crate::wire::upstream::{Call, CallBounds, Target, Upstream};

/// The name under which a collector shows us, unless `OTEL_SERVICE_NAME` says another.
const NAME: &str = "ojs-throttle";
/// How long the collector may take for one batch. `OTEL_EXPORTER_OTLP_TIMEOUT` ends an export earlier.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the last spans may delay the end of the process.
const LAST: Duration = Duration::from_secs(2);

/// What sends spans, in a thread of its own.
#[derive(Debug)]
pub struct Traces(SdkTracerProvider);

/// Begins to send spans to `endpoint`, the base URL of a collector, or where the environment says; `None`: neither
/// wants any. The environment wins.
///
/// # Errors
/// The address or another `OTEL_*` variable makes no sense.
pub fn start(endpoint: Option<&str>) -> anyhow::Result<Option<Traces>> {
    if !is_wanted(endpoint) {
        return Ok(None);
    }
    let is_json = of_otlp("PROTOCOL").is_some_and(|said| said.eq_ignore_ascii_case("http/json"));
    let exporter = SpanExporter::builder().with_http();
    let exporter = exporter.with_http_client(Collector::default());
    let exporter = exporter.with_protocol(match is_json {
        true => Protocol::HttpJson,
        false => Protocol::HttpBinary,
    });
    let exporter = match endpoint.filter(|_| !names_endpoint()) {
        Some(base) => exporter.with_endpoint(format!("{}/v1/traces", base.trim_end_matches('/'))),
        None => exporter,
    };
    let exporter = exporter
        .build()
        .context("traces cannot be sent: look at OTEL_*")?;
    let resource = Resource::builder();
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = variable("OTEL_SERVICE_NAME").is_some() || attributes.contains("service.name=");
    let resource = match is_named {
        true => resource,
        false => resource.with_service_name(NAME),
    };
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter);
    traces::begin(follow);
    Ok(Some(Traces(
        provider.with_resource(resource.build()).build(),
    )))
}

impl Traces {
    /// Takes the spans of [`traces`], and no others.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let layer = tracing_opentelemetry::layer().with_tracer(self.0.tracer(NAME));
        let layer = layer
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false);
        layer.with_filter(filter_fn(|span| span.target() == traces::TARGET))
    }

    /// Sends what is left, as far as the collector takes it in time.
    pub fn end(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST) {
            tracing::warn!(id = %"traces_unsent", %error, "the last traces could not be sent");
        }
    }
}

/// The span continues the trace of this `traceparent`.
fn follow(span: &Span, parent: &str) {
    let headers = [(ojs::TRACEPARENT.to_string(), parent.to_owned())];
    let headers = std::collections::HashMap::from(headers);
    // It fails only for a span that nobody takes.
    let _followed = span.set_parent(TraceContextPropagator::new().extract(&headers));
}

/// Brings batches to the collector. The exporter calls it from its own thread, which may block.
#[derive(Default)]
struct Collector {
    line: Mutex<Option<(Runtime, Upstream)>>,
    is_away: AtomicBool,
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Collector")
    }
}

impl Collector {
    fn post(&self, request: Request<Bytes>) -> anyhow::Result<Response<Bytes>> {
        let (head, body) = request.into_parts();
        let mut line = self.line.lock();
        let (runtime, collector) = match &mut *line {
            Some(line) => line,
            None => line.insert(dial(&head.uri)?),
        };
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let call = Call {
            method: head.method,
            target: path.into(),
            headers: head.headers,
            body,
            timeout: PATIENCE,
        };
        let reply = runtime.block_on(collector.call(call));
        let reply = reply.map_err(|error| {
            let why = error.said_of("the collector", "traces");
            let why = why.replace("traces.upstream", "traces.endpoint");
            let roots = "traces.ca_file names the certificates that are trusted";
            anyhow::anyhow!(why.replace(roots, "the roots of the system are trusted"))
        })?;
        let mut response = Response::new(reply.body);
        *response.status_mut() = reply.status;
        *response.headers_mut() = reply.headers;
        Ok(response)
    }

    /// Says once that the collector takes nothing, and once that it does again.
    fn note(&self, why: Option<String>) {
        let was = self.is_away.swap(why.is_some(), Ordering::Relaxed);
        match why {
            Some(why) if !was => {
                tracing::warn!(id = %"traces_lost", why, "traces cannot be sent, and are lost: look at the collector");
            }
            None if was => tracing::info!(id = %"traces_back", "traces are sent again"),
            _ => {}
        }
    }
}

/// A line to the server of this address.
fn dial(uri: &http::Uri) -> anyhow::Result<(Runtime, Upstream)> {
    let (scheme, host) = (uri.scheme_str().unwrap_or("http"), uri.authority());
    let host = host.context("the address of the collector has no host")?;
    let url = format!("{scheme}://{host}").parse();
    let file = |name| of_otlp(name).map(Into::into);
    let files = ClientFiles {
        ca: file("CERTIFICATE"),
        cert: file("CLIENT_CERTIFICATE"),
        key: file("CLIENT_KEY"),
    };
    let target = Target::new(url.map_err(anyhow::Error::msg)?, files)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // Whether it answers is told by what calls it.
    let collector = Upstream::new(target, Net::Tcp, CallBounds::default()).untold();
    Ok((runtime, collector))
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.post(request);
        self.note(match &answer {
            Err(error) => Some(format!("{error:#}")),
            Ok(reply) if !reply.status().is_success() => Some(reply.status().to_string()),
            Ok(_) => None,
        });
        Ok(answer?)
    }
}

/// What a variable of OTLP says for traces, else for all signals; `name` is its end.
fn of_otlp(name: &str) -> Option<String> {
    let mut names = ["TRACES_", ""].into_iter();
    names.find_map(|signal| variable(&format!("OTEL_EXPORTER_OTLP_{signal}{name}")))
}
