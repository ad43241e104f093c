//! Whether spans are to be sent, by the variables of the OpenTelemetry specification. An empty one is as good as none.

/// The variables by which the standard says where spans go, the first of which wins.
const ENDPOINTS: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
];
const DISABLED: &str = "OTEL_SDK_DISABLED";
const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
const PROTOCOLS: &[&str] = &["http/protobuf", "http/json"];
/// Variables of which some words are known here.
const KNOWN: [(&str, &[&str]); 6] = [
    (DISABLED, &["true", "false"]),
    (EXPORTER, &["otlp", "none"]),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", PROTOCOLS),
    ("OTEL_EXPORTER_OTLP_COMPRESSION", &["none"]),
    ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", &["none"]),
];

/// A variable of the environment.
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Whether an environment, or the file's `endpoint`, wants spans to be sent.
pub(super) fn is_wanted(endpoint: Option<&str>) -> bool {
    let says = |name: &str, word: &str| words(name).iter().any(|one| one == word);
    match () {
        () if says(DISABLED, "true") => false,
        () if says(EXPORTER, "otlp") => true,
        () => !says(EXPORTER, "none") && (endpoint.is_some() || names_endpoint()),
    }
}

/// Whether the environment says where spans go.
pub(super) fn names_endpoint() -> bool {
    ENDPOINTS.into_iter().any(|name| variable(name).is_some())
}

/// The words of a list, which stand in any case.
fn words(name: &str) -> Vec<String> {
    let list = variable(name).unwrap_or_default().to_lowercase();
    let words = list.split(',').map(|word| word.trim().to_owned());
    words.filter(|word| !word.is_empty()).collect()
}

/// Says which words of the environment mean nothing here, as the standard wants it.
pub fn warn_of_ignored(endpoint: Option<&str>) {
    for (name, known) in KNOWN {
        let matters = is_wanted(endpoint) || !name.contains("_OTLP_");
        for word in words(name)
            .iter()
            .filter(|word| matters && !known.contains(&&***word))
        {
            tracing::warn!(id = %"traces_setting_ignored", variable = name, word, "a variable of OpenTelemetry has a value that means nothing here, and is ignored");
        }
    }
}
