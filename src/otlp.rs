//! Sends the spans of [`crate::wire::traces`] to a collector: OTLP over HTTP, by the crates of the OpenTelemetry project, which
//! read the standard `OTEL_*` variables. It is a feature of the build, `otlp`; without it nothing is sent, and who asks
//! for it is told.

#[cfg(feature = "otlp")]
mod sending;
mod wanted;
#[cfg(not(feature = "otlp"))]
mod without;

#[cfg(feature = "otlp")]
pub use sending::{Traces, start};
pub use wanted::warn_of_ignored;
#[cfg(not(feature = "otlp"))]
pub use without::{NoTraces as Traces, start};
