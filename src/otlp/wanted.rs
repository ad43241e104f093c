//! Whether spans are to be sent.

/// The variables by which the standard says where spans go, the first of which wins.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];

/// Whether an environment, or the file's `endpoint`, wants spans to be sent.
pub(super) fn is_wanted(endpoint: Option<&str>) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let off = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|off| off.eq_ignore_ascii_case("true"));
    !off && (endpoint.is_some() || ENDPOINTS.into_iter().any(is_set))
}
