//! Ready-made files: those of `src/ship` and the example of a config, in the program as they are in the repository.

/// One ready-made file.
#[derive(Clone, Copy, Debug)]
pub struct Example {
    /// Its name, as `example` takes it.
    pub name: &'static str,
    /// What it is for, in one line.
    pub about: &'static str,
    /// All of it.
    pub text: &'static str,
}

/// The JSON Schema of the config file.
pub const SCHEMA: &str = include_str!("ship/schema.json");
/// OpenAPI of the routes that the sidecar answers by itself.
pub const OPENAPI: &str = include_str!("ship/openapi.json");

macro_rules! examples {
    ($($name:literal $path:literal $about:literal)*) => {
        [$(Example { name: $name, about: $about, text: include_str!($path) }),*]
    };
}

/// All of them, in the order in which somebody new would want them.
pub const EXAMPLES: [Example; 7] = examples![
    "config" "../config.example.toml" "every setting of throttle.toml, with its default"
    "calls" "ship/calls.toml" "limits of calls alone, without a backend: models by tokens and money, and many hosts"
    "compose" "ship/compose.yaml" "sidecar, Redis, Prometheus and Grafana, to try out together"
    "kubernetes" "ship/kubernetes.yaml" "a worker with its sidecar, and how Prometheus finds it"
    "systemd" "ship/ojs-throttle.service" "a service of a host, ojs-throttle.service"
    "alerts" "ship/alerts.yml" "alerting rules for Prometheus"
    "grafana" "ship/grafana.json" "a dashboard for Grafana, over Prometheus"
];
