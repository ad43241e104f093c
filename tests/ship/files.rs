//! What the files say is so: they can be read, their configs load, and they agree with the program and its image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Parser;
use ojs_throttle::cli::{Cli, Command};
use ojs_throttle::config::{ServerSettings, Settings};
use ojs_throttle::manual;
use ojs_throttle::ship::EXAMPLES;
use ojs_throttle::told::metrics::SERIES;
use serde::Deserialize;
use serde_json::Value;

use super::queries::{declared, named};
use crate::sidecar::process::{file, has, program, ran, run};

/// Where the image has the program, and the unit.
pub const INSTALLED: &str = "/usr/local/bin/ojs-throttle";
/// The seconds that connections have after a drain.
const CONNECTIONS: u64 = 3;

fn read(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A file, as the program has it.
pub fn example(name: &str) -> &'static str {
    let file = EXAMPLES.iter().find(|file| file.name == name);
    file.unwrap_or_else(|| panic!("no {name}")).text
}

/// The documents of a YAML text. A key that stands twice in a mapping is an error.
fn yaml(text: &str) -> Vec<Value> {
    let each = serde_norway::Deserializer::from_str(text);
    let each = each.map(|document| serde_norway::Value::deserialize(document).unwrap());
    each.map(|document| serde_json::to_value(document).unwrap())
        .collect()
}

/// The one document of a YAML text.
fn document(text: &str) -> Value {
    let mut all = yaml(text);
    assert_eq!(all.len(), 1, "one document");
    all.remove(0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

fn list(value: &Value) -> &Vec<Value> {
    let list = value.as_array();
    list.unwrap_or_else(|| panic!("no list: {value}"))
}

/// The one of a list with this name.
fn by_name<'a>(of: &'a Value, name: &str) -> &'a Value {
    let found = list(of).iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {of}"))
}

/// An alerting rule.
pub struct Alert {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    expr: String,
}

/// All rules by their names.
pub fn alerts() -> BTreeMap<String, Alert> {
    let rules = document(example("alerts"));
    let texts = |of: &Value| serde_json::from_value(of.clone()).unwrap();
    let groups = list(&rules["groups"]).iter();
    let rules = groups.flat_map(|group| list(&group["rules"]));
    let each = rules.map(|rule| {
        let alert = Alert {
            labels: texts(&rule["labels"]),
            annotations: texts(&rule["annotations"]),
            expr: text(&rule["expr"]).to_owned(),
        };
        (text(&rule["alert"]).to_owned(), alert)
    });
    each.collect()
}

pub fn dashboard() -> Value {
    serde_json::from_str(example("grafana")).unwrap()
}

/// A panel of the dashboard.
pub struct Panel {
    pub row: String,
    pub title: String,
    pub queries: Vec<String>,
    legends: Vec<String>,
}

pub fn panels() -> Vec<Panel> {
    let (mut panels, mut row) = (Vec::new(), String::new());
    for panel in list(&dashboard()["panels"]) {
        let title = text(&panel["title"]).to_owned();
        if panel["type"] == "row" {
            row = title;
            continue;
        }
        let each = |member: &str| {
            let targets = list(&panel["targets"]).iter();
            targets.map(|of| text(&of[member]).to_owned()).collect()
        };
        panels.push(Panel {
            row: row.clone(),
            title,
            queries: each("expr"),
            legends: each("legendFormat"),
        });
    }
    panels
}

#[test]
fn the_program_prints_every_file_as_it_is() {
    let mut shipped: BTreeSet<String> =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ship"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .map(|name| read(&format!("src/ship/{name}")))
            .collect();
    shipped.insert(read("config.example.toml"));
    let list = run("example");
    assert_eq!((list.status, list.err.as_str()), (Some(0), ""));
    let mut printed = BTreeSet::new();
    for file in EXAMPLES {
        let line = format!("  {:<11} {}\n", file.name, file.about);
        assert!(list.out.contains(&line), "{line}: {}", list.out);
        let done = run(&format!("example {}", file.name));
        assert_eq!((done.status, done.err.as_str()), (Some(0), ""));
        printed.insert(done.out);
    }
    for schema in ["schema", "schema openapi"] {
        printed.insert(run(schema).out);
    }
    assert_eq!(printed, shipped);
}

#[test]
fn a_file_that_there_is_not_is_answered_with_those_that_there_are() {
    let done = run("example helm");
    assert_eq!((done.status, done.out.as_str()), (Some(2), ""));
    has(&done.err, "no example called \"helm\"");
    for file in EXAMPLES {
        has(&done.err, file.about);
    }
}

#[test]
fn what_the_files_tell_to_run_can_be_run() {
    let mut found = 0;
    for file in EXAMPLES {
        for after in file.text.split("ojs-throttle help ").skip(1) {
            let chapter = after.split(|c: char| !c.is_alphanumeric() && c != '-');
            let chapter = chapter.into_iter().next().unwrap();
            let is_there = manual::chapter(chapter).is_some();
            assert!(is_there, "{}: {chapter}", file.name);
            found += 1;
        }
        for after in file.text.split("ojs-throttle example ").skip(1) {
            let name = after.split(char::is_whitespace).next().unwrap();
            assert_eq!(name, file.name);
            found += 1;
        }
    }
    assert!(found > 16, "only {found} commands were found");
}

/// Checks a config of a file as the program does, under these variables, and reads it.
fn checked(config: &str, variables: &[(&str, &str)]) -> Settings {
    let (_dir, path) = file(config);
    let done = ran(program().arg("check").arg(path).envs(variables.to_vec()));
    assert_eq!(done.status, Some(0), "{}", done.out);
    // To try it out the control token may go in clear, on a network of its own.
    let warnings = done.out.matches("warning: ").count();
    let in_clear = done.out.matches("no `server.admin_tls`").count();
    assert!(warnings == in_clear && in_clear <= 1, "{}", done.out);
    for (name, _) in variables {
        assert!(config.contains(&format!("${{{name}}}")), "{name}");
    }
    let given = |config: String, (name, value): &(&str, &str)| {
        config.replace(&format!("${{{name}}}"), value)
    };
    let config = variables.iter().fold(config.to_owned(), given);
    Settings::parse(&config, "shipped.toml").unwrap_or_else(|report| panic!("{report}"))
}

/// What the last stage of the Dockerfile says under a word.
fn of_image(word: &str) -> String {
    let dockerfile = read("Dockerfile");
    let (_, image) = dockerfile.rsplit_once("\nFROM ").unwrap();
    let line = image.lines().find_map(|line| line.strip_prefix(word));
    line.unwrap().trim().to_owned()
}

/// The file that the image reads, and its folder.
fn config_of_image() -> (String, String) {
    let arguments: Vec<String> = serde_json::from_str(&of_image("CMD ")).unwrap();
    let [run, config, path] = &arguments[..] else {
        panic!("{arguments:?}");
    };
    assert_eq!([run.as_str(), config.as_str()], ["run", "--config"]);
    let (folder, _) = path.rsplit_once('/').unwrap();
    (path.clone(), folder.to_owned())
}

fn admin_port() -> u64 {
    let port = ServerSettings::default().admin_listen.port();
    let exposed = of_image("EXPOSE ");
    assert!(exposed.split(' ').any(|of| of == port.to_string()));
    port.into()
}

#[test]
fn kubernetes_agrees_with_the_program_and_the_image() {
    let documents = yaml(example("kubernetes"));
    let kind = |kind: &str| {
        let found = documents.iter().find(|document| document["kind"] == kind);
        found.unwrap_or_else(|| panic!("no {kind}"))
    };
    let (map, secret) = (kind("ConfigMap"), kind("Secret"));
    let secrets = secret["stringData"].as_object().unwrap().iter();
    let secrets = secrets.map(|(name, value)| (name.as_str(), text(value)));
    let secrets: Vec<(&str, &str)> = secrets.collect();
    let (path, folder) = config_of_image();
    let name = path.rsplit_once('/').unwrap().1;
    let given = text(&map["data"][name]);
    let own = "/etc/ojs-throttle-tls/tls";
    for kind in ["crt", "key"] {
        assert!(given.contains(&format!("{own}.{kind}")), "{given}");
    }
    let of_tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");
    let given = given.replace(&format!("{own}.crt"), &format!("{of_tests}/server.pem"));
    let given = given.replace(&format!("{own}.key"), &format!("{of_tests}/key.pem"));
    let settings = checked(&given, &secrets);
    assert!(settings.server.admin_tls.is_some());
    let default = ServerSettings::default();
    assert_eq!(settings.server.listen, default.listen);
    assert!(settings.server.admin_listen.ip().is_unspecified());
    assert_eq!(u64::from(settings.server.admin_listen.port()), admin_port());

    let deployment = deployment_of(&documents, "worker");
    let pod = &deployment["spec"]["template"];
    let (labels, spec) = (&pod["metadata"]["labels"], &pod["spec"]);
    let sidecar = by_name(&spec["initContainers"], "ojs-throttle");
    assert_eq!(sidecar["restartPolicy"], "Always");
    let version = format!("ojs-throttle:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(sidecar["image"], version.as_str());
    assert_eq!(*list(&sidecar["args"]), ["run", "--config", &path]);
    // The folder is a volume, which is the map.
    let mount = by_name(&sidecar["volumeMounts"], "config");
    assert_eq!(mount["mountPath"], folder);
    assert_eq!(mount.get("subPath"), None);
    let volume = by_name(&spec["volumes"], "config");
    assert_eq!(volume["configMap"]["name"], map["metadata"]["name"]);
    let mount = by_name(&sidecar["volumeMounts"], "tls");
    assert_eq!(mount["mountPath"], "/etc/ojs-throttle-tls");
    let volume = by_name(&spec["volumes"], "tls");
    let secret_name = text(&volume["secret"]["secretName"]);
    let made = format!("create secret tls {secret_name} ");
    assert!(example("kubernetes").contains(&made), "{made}");
    let from = &sidecar["envFrom"][0]["secretRef"]["name"];
    assert_eq!(from, &secret["metadata"]["name"]);

    let port = by_name(&sidecar["ports"], "admin");
    assert_eq!(port["containerPort"], admin_port());
    for (probe, path) in [
        ("startupProbe", "/livez"),
        ("livenessProbe", "/livez"),
        ("readinessProbe", "/readyz"),
    ] {
        let asked = serde_json::json!({"path": path, "port": "admin", "scheme": "HTTPS"});
        assert_eq!(sidecar[probe]["httpGet"], asked, "{probe}");
    }
    assert!(sidecar["resources"]["requests"]["memory"].is_string());
    let security = &sidecar["securityContext"];
    let user = format!("{}:{}", security["runAsUser"], security["runAsGroup"]);
    assert_eq!(user, of_image("USER "));
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);

    // The worker's 30 s, and then the sidecar's own.
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    let least = default.drain_min.min(settings.server.drain_timeout);
    assert_eq!(grace, 30 + least.as_secs() + CONNECTIONS);
    let worker = by_name(&spec["containers"], "worker");
    let url = format!("http://{}", default.listen);
    assert_eq!(by_name(&worker["env"], "OJS_URL")["value"], url.as_str());

    let (policy, monitor) = (kind("NetworkPolicy"), kind("PodMonitor"));
    let selected = &deployment["spec"]["selector"];
    for selector in [selected, &policy["spec"]["podSelector"]] {
        assert_eq!(&selector["matchLabels"], labels);
    }
    let watched = &monitor["spec"]["selector"]["matchExpressions"][0];
    assert_eq!(watched["key"], "app");
    for name in ["worker", "ojs-throttle"] {
        let app = &deployment_of(&documents, name)["metadata"]["labels"]["app"];
        assert!(list(&watched["values"]).contains(app), "{name}");
    }
    let ingress = list(&policy["spec"]["ingress"]);
    assert_eq!(ingress.len(), 1);
    assert_eq!(ingress[0]["ports"][0]["port"], "admin");
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    let said = ["port", "path", "scheme"].map(|member| &endpoint[member]);
    assert_eq!(said, ["admin", "/metrics", "https"]);
}

fn deployment_of<'a>(documents: &'a [Value], name: &str) -> &'a Value {
    let mut all = documents.iter();
    let found = all.find(|of| of["kind"] == "Deployment" && of["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no Deployment {name}"))
}

/// A bounded queue needs producers that come through a sidecar: from outside the worker's pod.
#[test]
fn producers_of_kubernetes_reach_a_sidecar() {
    let documents = yaml(example("kubernetes"));
    let service = documents.iter().find(|of| of["kind"] == "Service");
    let service = service.expect("a way in");
    let deployment = deployment_of(&documents, "ojs-throttle");
    let pod = &deployment["spec"]["template"];
    let labels = &pod["metadata"]["labels"];
    assert_eq!(&service["spec"]["selector"], labels);
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);

    // It is the sidecar of the workers but for where it listens, and for the time before its start.
    let sidecar = &pod["spec"]["containers"][0];
    let beside = &deployment_of(&documents, "worker")["spec"]["template"]["spec"];
    let worker_s = by_name(&beside["initContainers"], "ojs-throttle");
    let same = "image envFrom livenessProbe readinessProbe resources securityContext";
    for same in same.split(' ') {
        assert_eq!(sidecar[same], worker_s[same], "{same}");
    }
    let mount = by_name(&sidecar["volumeMounts"], "config");
    assert_eq!(mount["mountPath"], config_of_image().1.as_str());
    let volume = |of: &Value| of["volumes"].clone();
    assert_eq!(volume(&pod["spec"]), volume(beside));

    let Command::Run(run) = arguments(&sidecar["args"]) else {
        panic!("no run");
    };
    assert_eq!(run.config.unwrap().to_str(), Some(&*config_of_image().0));
    let listens = run.listen.expect("the default is for the pod alone");
    let port = &service["spec"]["ports"][0];
    assert_eq!(listens.to_string(), format!("0.0.0.0:{}", port["port"]));
    let named = by_name(&sidecar["ports"], text(&port["targetPort"]));
    assert_eq!(named["containerPort"], port["port"]);
    let name = text(&service["metadata"]["name"]);
    let url = format!("http://{name}:{}", port["port"]);
    assert!(example("kubernetes").contains(&url), "{url}");
    let grace = &pod["spec"]["terminationGracePeriodSeconds"];
    let grace = grace.as_u64().unwrap();
    let needed = ServerSettings::default().drain_timeout.as_secs() + CONNECTIONS;
    assert!(grace > needed, "{grace}");
}

/// What compose makes of a text: a dollar that is written twice is one. A variable with a default is that default.
fn interpolated(text: &str) -> String {
    let mut parts = text.split("$$");
    let mut whole = parts.next().unwrap().to_owned();
    assert!(!whole.contains('$'), "{text}");
    for part in parts {
        assert!(!part.contains('$'), "{text}");
        whole += &format!("${part}");
    }
    whole
}

#[test]
fn compose_agrees_with_the_program_and_its_own_files() {
    let compose = document(example("compose"));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ship");
    let (services, configs) = (&compose["services"], &compose["configs"]);
    let content = |name: &str| interpolated(text(&configs[name]["content"]));
    // Who has a config has one that there is; files of it are there.
    let (mut used, mut targets) = (BTreeSet::new(), BTreeMap::new());
    for (service, of) in services.as_object().unwrap() {
        for config in of["configs"].as_array().into_iter().flatten() {
            let (source, target) = (text(&config["source"]), text(&config["target"]));
            used.insert(source);
            targets.insert(source, (service.as_str(), target));
        }
        if let Some(build) = of.get("build") {
            let dockerfile = folder.join(text(build)).join("Dockerfile");
            assert!(dockerfile.exists(), "{service}");
        }
        for needed in of["depends_on"].as_array().into_iter().flatten() {
            assert!(services.get(text(needed)).is_some(), "{service}");
        }
    }
    let declared = configs.as_object().unwrap();
    assert_eq!(used, declared.keys().map(String::as_str).collect());
    let file = |name: &str| fs::read_to_string(folder.join(text(&configs[name]["file"]))).unwrap();
    assert_eq!(file("alerts"), example("alerts"));
    assert_eq!(file("dashboard"), example("grafana"));

    let sidecar = &services["sidecar"];
    let path = config_of_image().0;
    assert_eq!(targets["throttle"], ("sidecar", path.as_str()));
    assert_eq!(sidecar.get("command"), None);
    let token = text(&sidecar["environment"]["CONTROL_TOKEN"]);
    assert_eq!(token, "${CONTROL_TOKEN:-control-me}");
    let settings = checked(&content("throttle"), &[("CONTROL_TOKEN", "control-me")]);
    let stop = text(&sidecar["stop_grace_period"]);
    let stop: u64 = stop.strip_suffix('s').unwrap().parse().unwrap();
    let needed = settings.server.drain_timeout + Duration::from_secs(CONNECTIONS);
    assert!(stop > needed.as_secs(), "{stop}");
    let ports = [settings.server.listen, settings.server.admin_listen].map(|addr| {
        assert!(addr.ip().is_unspecified());
        Value::from(format!("127.0.0.1:{0}:{0}", addr.port()))
    });
    assert_eq!(list(&sidecar["ports"]), &ports);
    // Its backend and its store are the services that say so.
    let Command::Dev(dev) = arguments(&services["backend"]["command"]) else {
        panic!("no dev");
    };
    let backend = format!("http://backend:{}", dev.backend_listen.port());
    assert_eq!(settings.upstream.url.unwrap().to_string(), backend);
    assert!(dev.backend_listen.ip().is_unspecified());
    assert!(content("throttle").contains("\"redis://redis:6379\""));

    let prometheus = document(&content("prometheus"));
    let read = "/etc/prometheus/prometheus.yml";
    assert_eq!(targets["prometheus"], ("prometheus", read));
    let rules = text(&prometheus["rule_files"][0]);
    assert_eq!(targets["alerts"], ("prometheus", rules));
    let target = &prometheus["scrape_configs"][0]["static_configs"][0]["targets"];
    assert_eq!(*list(target), [format!("sidecar:{}", admin_port())]);
    let sources = document(&content("datasources"));
    assert_eq!(sources["datasources"][0]["url"], "http://prometheus:9090");
    let providers = document(&content("dashboards"));
    let folder = text(&providers["providers"][0]["options"]["path"]);
    let (service, shown) = targets["dashboard"];
    let there = shown.rsplit_once('/').unwrap().0;
    assert_eq!((service, there), ("grafana", folder));
    let home = &services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"];
    assert_eq!(home, shown);
}

/// What the program makes of arguments.
fn arguments(of: &Value) -> Command {
    let words = list(of).iter().map(text);
    let words = ["ojs-throttle"].into_iter().chain(words);
    Cli::try_parse_from(words)
        .unwrap_or_else(|error| panic!("{error}"))
        .command
}

#[test]
fn the_unit_agrees_with_the_program() {
    let unit = example("systemd");
    let said = |name: &str| {
        let mut lines = unit.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name}"))
    };
    let program: Vec<String> = serde_json::from_str(&of_image("ENTRYPOINT ")).unwrap();
    assert_eq!(program, [INSTALLED]);
    let start = said("ExecStart").strip_prefix(INSTALLED).unwrap();
    let (path, folder) = config_of_image();
    assert_eq!(start, format!(" run --config {path}"));
    let environment = said("EnvironmentFile").strip_prefix("-").unwrap();
    assert!(environment.starts_with(&folder), "{environment}");
    assert_eq!(said("ExecReload"), "/bin/kill -HUP $MAINPID");
    let stop: u64 = said("TimeoutStopSec").parse().unwrap();
    let drain = ServerSettings::default().drain_timeout.as_secs();
    assert!(stop > drain + CONNECTIONS, "{stop}");
    let store = format!("sqlite:/var/lib/{}/", said("StateDirectory"));
    assert!(unit.contains(&store), "{store}");
}

/// Whether a query names series and labels that there are, and its texts show labels that its result may have.
fn assert_declared(place: &str, query: &str, shown: &[&str]) {
    let declared = declared();
    let named = named(query);
    assert!(!named.metrics.is_empty(), "{place}: {query}");
    let mut labels = BTreeSet::new();
    for metric in &named.metrics {
        let of = declared.get(metric);
        labels.extend(of.unwrap_or_else(|| panic!("{place}: there is no {metric}")));
    }
    for (metric, label) in &named.selected {
        let has = declared[metric].contains(label);
        assert!(has, "{place}: {metric} has no {label}");
    }
    for label in &named.grouped {
        assert!(labels.contains(label), "{place}: nothing has {label}");
    }
    // A query that groups has only what it groups by.
    let left = match named.grouped.is_empty() {
        true => labels,
        false => named.grouped.iter().collect(),
    };
    for label in shown {
        let has = left.iter().any(|of| of == label);
        assert!(has, "{place}: {label} is shown, and {query} has none");
    }
}

/// What stands between `begin` and ` }}` or `}}`.
fn between<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
    let parts = text.split(begin).skip(1);
    parts
        .map(|part| part.split_once("}}").unwrap().0.trim())
        .collect()
}

#[test]
fn every_alert_looks_at_what_there_is_and_says_what_to_do() {
    let incidents = read("src/manual/incidents.md");
    let alerts = alerts();
    assert_eq!(alerts.len(), 23);
    for (name, alert) in alerts {
        let all = alert.annotations.values().map(String::as_str);
        let all = all.collect::<Vec<_>>().join(" ");
        assert_declared(&name, &alert.expr, &between(&all, "{{ $labels."));
        let has = ["description", "runbook", "section", "summary"];
        assert!(alert.annotations.keys().eq(has), "{name}");
        assert_eq!(alert.annotations["runbook"], "ojs-throttle help incidents");
        let heading = format!("\n## {}\n", alert.annotations["section"]);
        assert!(incidents.contains(&heading), "{name}: {heading}");
        let severity = alert.labels["severity"].as_str();
        let is_known = ["critical", "warning", "info"].contains(&severity);
        assert!(is_known, "{name}");
    }
}

/// What neither a panel nor an alert shows, and why.
const LEFT_OUT: [(&str, &[&str]); 4] = [
    (
        "its page or `why` tells more",
        &[
            "ojs_throttle_decisions_total",
            "ojs_throttle_subqueues_shared",
            "ojs_throttle_held_bytes",
            "ojs_throttle_unmatched_policies",
        ],
    ),
    (
        "for who tunes one setting",
        &[
            "ojs_throttle_reserved_turns_total",
            "ojs_throttle_reserved_turns_unused_total",
            "ojs_throttle_event_subscribers",
            "ojs_throttle_events_sent_total",
            "ojs_throttle_events_lost_total",
        ],
    ),
    (
        "for who looks for a fault of an SDK or a backend",
        &[
            "ojs_throttle_costs_replaced_total",
            "ojs_throttle_hold_expired_total",
            "ojs_throttle_upstream_nonsense_total",
            "ojs_throttle_settle_replays_total",
            "ojs_throttle_repairs_total",
            "ojs_throttle_job_policies_refused_total",
        ],
    ),
    (
        "another one says it",
        &[
            "ojs_throttle_snapshot_timestamp_seconds",
            "ojs_throttle_config_last_reload_successful",
            "ojs_throttle_config_last_reload_success_timestamp_seconds",
            "ojs_throttle_config_reloads_total",
        ],
    ),
];

#[test]
fn every_series_is_on_a_panel_or_in_an_alert_or_it_is_said_why_not() {
    let panels = panels();
    let alerts = alerts();
    let queries = panels.iter().flat_map(|panel| &panel.queries);
    let queries = queries.chain(alerts.values().map(|alert| &alert.expr));
    let shown: BTreeSet<String> = queries.flat_map(|query| named(query).metrics).collect();
    let is_shown = |name: &str| {
        let parts = ["", "_bucket", "_count"].map(|part| format!("{name}{part}"));
        parts.iter().any(|part| shown.contains(part))
    };
    let all = SERIES.iter().map(|series| series.name);
    let all = all.filter(|name| name.starts_with("ojs_") && !is_shown(name));
    let left_out = LEFT_OUT.iter().flat_map(|(_why, names)| *names);
    let left_out: BTreeSet<&str> = left_out.copied().collect();
    assert_eq!(all.collect::<BTreeSet<_>>(), left_out);
}

#[test]
fn every_panel_asks_for_what_there_is() {
    let panels = panels();
    let mut rows: Vec<&str> = panels.iter().map(|panel| panel.row.as_str()).collect();
    rows.dedup();
    let expected = "Health, Limits, Waiting jobs, Calls, Backpressure, Fleet and store, Shadow";
    assert_eq!(rows.join(", "), expected);
    for panel in &panels {
        assert!(!panel.queries.is_empty(), "{}", panel.title);
        for (query, legend) in panel.queries.iter().zip(&panel.legends) {
            assert_declared(&panel.title, query, &between(legend, "{{"));
        }
    }
    // Each variable is used, and what is used is one.
    let list = dashboard()["templating"]["list"].clone();
    let variables = list.as_array().unwrap().iter();
    let variables: BTreeSet<&str> = variables.map(|of| text(&of["name"])).collect();
    let queries = panels.iter().flat_map(|panel| &panel.queries);
    let mut used = BTreeSet::from(["datasource"]);
    used.extend(queries.flat_map(|query| {
        let names = query.split('$').skip(1);
        let names = names.map(|name| name.split(['"', ']']).next().unwrap());
        names.filter(|name| *name != "__rate_interval")
    }));
    assert_eq!(used, variables);
    for variable in list.as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            assert_declared("a variable", query, &[]);
        }
    }
}
