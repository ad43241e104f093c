//! A build that cannot send spans.

use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Identity;

use super::wanted::is_wanted;

/// Nothing that is sent.
#[derive(Debug)]
pub struct NoTraces(());

/// `None`: nothing is sent.
///
/// # Errors
/// Spans are wanted, and this build cannot send them.
pub fn start(endpoint: Option<&str>) -> anyhow::Result<Option<NoTraces>> {
    if is_wanted(endpoint) {
        anyhow::bail!(
            "traces are to be sent (OTEL_EXPORTER_OTLP_ENDPOINT, or traces.endpoint), and this build cannot: \
             build it with --features otlp, or set OTEL_TRACES_EXPORTER=none"
        );
    }
    Ok(None)
}

impl NoTraces {
    /// Takes no spans.
    pub fn layer<S: Subscriber>(&self) -> impl Layer<S> + use<S> {
        Identity::new()
    }

    /// Nothing is left to be sent.
    pub fn end(self) {}
}
