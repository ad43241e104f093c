//! Prometheus takes the alerts and the dashboard, and a real sidecar has what they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::files::{Alert, Panel, alerts, dashboard, example, panels};
use super::load::Loaded;
use crate::process::http::Conn;
use crate::servers::prometheus::{PrometheusServer, promtool};

/// A series of a case: how it begins on the page of a sidecar, which sidecar's it is, and its values every 30 s, as
/// promtool writes them.
type Given = (&'static str, &'static str, &'static str);

/// When an alert fires, and when it does not.
struct Case {
    alert: &'static str,
    /// When it is looked at.
    at: &'static str,
    /// The value that the alert's texts show.
    value: &'static str,
    /// The labels of the alert, of those that the first series has.
    labels: &'static [&'static str],
    fires: &'static [Given],
    quiet: &'static [&'static [Given]],
}

const OVERLOADED: &str = r#"ojs_throttle_responses_total{status="503",code="overloaded""#;
const SERVICE: &str = r#"ojs_throttle_service_up{egress="out""#;
const SPENT: &str = r#"ojs_throttle_responses_total{status="429",code="budget_spent""#;
const REFUSED: &str = r#"ojs_throttle_responses_total{status="429",code="rate_limited""#;
const FETCHED: &str =
    r#"ojs_throttle_upstream_request_duration_seconds_count{op="fetch",code="200""#;
/// The backend of the load never answers so.
const FAILED: &str =
    r#"ojs_throttle_upstream_request_duration_seconds_count{op="fetch",code="500""#;
const CERTIFICATE_LEFT: &str = "ojs_throttle_tls_certificate_expiry_seconds";
const CERTIFICATE_LASTS: &str = "ojs_throttle_tls_certificate_lifetime_seconds";
const OF_SIDECAR: &[&str] = &["instance", "job"];

const CASES: [Case; 24] = [
    Case {
        alert: "OjsThrottleStoreDown",
        at: "4m",
        value: "0",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_store_up", "a", "1x4 0x10")],
        quiet: &[&[("ojs_throttle_store_up", "a", "1x6 0 1x10")]],
    },
    Case {
        alert: "OjsThrottleBackendDown",
        at: "4m",
        value: "0",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_backend_up", "a", "1x4 0x10")],
        quiet: &[&[("ojs_throttle_backend_up", "a", "1x6 0 1x10")]],
    },
    Case {
        alert: "OjsThrottleServiceDown",
        at: "4m",
        value: "0",
        labels: &["egress", "instance", "job"],
        fires: &[(SERVICE, "a", "1x4 0x10")],
        quiet: &[&[(SERVICE, "a", "1x6 0 1x10")]],
    },
    Case {
        alert: "OjsThrottleBackendFails",
        at: "12m",
        value: "",
        labels: OF_SIDECAR,
        fires: &[(FAILED, "a", "0+1x40"), (FETCHED, "a", "0+8x40")],
        quiet: &[
            &[(FAILED, "a", "0+1x40"), (FETCHED, "a", "0+10x40")],
            // A moment of many.
            &[(FAILED, "a", "0x10 50x30"), (FETCHED, "a", "0+9x40")],
        ],
    },
    Case {
        alert: "OjsThrottleServicePauses",
        at: "26m",
        value: "",
        labels: &["instance", "job", "policy"],
        fires: &[("ojs_throttle_downstream_rate_limited_total", "a", "0+1x60")],
        quiet: &[&[(
            "ojs_throttle_downstream_rate_limited_total",
            "a",
            "0x20 3x40",
        )]],
    },
    Case {
        alert: "OjsThrottleBudgetSpent",
        at: "20m",
        value: "",
        labels: &["code", "instance", "job", "status"],
        // Its first one is what makes it appear.
        fires: &[(SPENT, "a", "_x34 1x20")],
        quiet: &[&[(SPENT, "a", "_x4 1x60")]],
    },
    Case {
        alert: "OjsThrottleCallersRefused",
        at: "8m",
        value: "",
        labels: &["code", "instance", "job", "status"],
        fires: &[(REFUSED, "a", "1+1x20")],
        quiet: &[&[(REFUSED, "a", "1x10 9x20")]],
    },
    Case {
        alert: "OjsThrottleFileRefused",
        at: "6m",
        value: "0",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_config_file_matches", "a", "0x20")],
        quiet: &[&[("ojs_throttle_config_file_matches", "a", "0x8 1x10")]],
    },
    Case {
        alert: "OjsThrottleCertificateEnds",
        at: "6m",
        value: "",
        labels: &["instance", "job", "setting"],
        fires: &[
            (CERTIFICATE_LEFT, "a", "1000000x20"),
            (CERTIFICATE_LASTS, "a", "7776000x20"),
        ],
        quiet: &[
            &[
                (CERTIFICATE_LEFT, "a", "1300000x20"),
                (CERTIFICATE_LASTS, "a", "7776000x20"),
            ],
            // One of a week.
            &[
                (CERTIFICATE_LEFT, "a", "300000x20"),
                (CERTIFICATE_LASTS, "a", "604800x20"),
            ],
        ],
    },
    Case {
        alert: "OjsThrottleLimitsMultiplied",
        at: "11m",
        value: "2",
        labels: &["job"],
        fires: &[
            ("ojs_throttle_build_info", "a", "1x30"),
            ("ojs_throttle_build_info", "b", "1x30"),
            ("ojs_throttle_siblings", "a", "0x30"),
            ("ojs_throttle_siblings", "b", "0x30"),
        ],
        quiet: &[
            // They share a store.
            &[
                ("ojs_throttle_build_info", "a", "1x30"),
                ("ojs_throttle_build_info", "b", "1x30"),
                ("ojs_throttle_siblings", "a", "1x30"),
                ("ojs_throttle_siblings", "b", "1x30"),
            ],
            // One is enough to be alone.
            &[
                ("ojs_throttle_build_info", "a", "1x30"),
                ("ojs_throttle_siblings", "a", "0x30"),
            ],
            // One follows another, as in an update.
            &[
                ("ojs_throttle_build_info", "a", "1x5 stale"),
                ("ojs_throttle_build_info", "b", "_x4 1x30"),
                ("ojs_throttle_siblings", "a", "0x5 stale"),
                ("ojs_throttle_siblings", "b", "_x4 0x30"),
            ],
        ],
    },
    // They are in no job of Prometheus together, and one sees that another limits the same jobs.
    Case {
        alert: "OjsThrottleLimitsMultiplied",
        at: "11m",
        value: "2",
        labels: &["job"],
        fires: &[("ojs_throttle_unshared_sidecars", "a", "1x30")],
        quiet: &[
            &[("ojs_throttle_unshared_sidecars", "a", "0x30")],
            &[("ojs_throttle_unshared_sidecars", "a", "1x6 0x24")],
        ],
    },
    Case {
        alert: "OjsThrottleFilesDiffer",
        at: "11m",
        value: "",
        labels: &["job"],
        fires: &[("ojs_throttle_other_files", "a", "1x30")],
        quiet: &[
            &[("ojs_throttle_other_files", "a", "0x30")],
            // A rollout.
            &[("ojs_throttle_other_files", "a", "1x8 0x22")],
        ],
    },
    Case {
        alert: "OjsThrottleWorkersAround",
        at: "11m",
        value: "2",
        labels: &["job"],
        fires: &[("ojs_throttle_workers_around", "a", "2x30")],
        quiet: &[
            &[("ojs_throttle_workers_around", "a", "0x30")],
            // Workers that are moved to the sidecar one by one.
            &[("ojs_throttle_workers_around", "a", "2x8 0x22")],
        ],
    },
    Case {
        alert: "OjsThrottleStoreEmptied",
        at: "6m",
        value: "",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_store_wiped_total", "a", "0x10 1x10")],
        quiet: &[&[("ojs_throttle_store_wiped_total", "a", "1x20")]],
    },
    Case {
        alert: "OjsThrottleJobsDropped",
        at: "20m",
        value: "",
        labels: &["instance", "job", "policy"],
        // Its first one is what makes it appear.
        fires: &[("ojs_rate_limit_dropped_total", "a", "_x34 1x20")],
        quiet: &[
            &[("ojs_rate_limit_dropped_total", "a", "1x60")],
            &[("ojs_rate_limit_dropped_total", "a", "_x4 1x60")],
        ],
    },
    Case {
        alert: "OjsThrottleEnqueuesRefused",
        at: "8m",
        value: "",
        labels: &["instance", "job", "queue"],
        fires: &[("ojs_backpressure_rejected_total", "a", "1+1x20")],
        quiet: &[&[("ojs_backpressure_rejected_total", "a", "1x10 9x20")]],
    },
    Case {
        alert: "OjsThrottleQueueNearlyFull",
        at: "11m",
        value: "90%",
        labels: &["instance", "job", "queue"],
        fires: &[("ojs_backpressure_pressure", "a", "0.9x30")],
        quiet: &[&[("ojs_backpressure_pressure", "a", "0.8x30")]],
    },
    Case {
        alert: "OjsThrottleHoldFull",
        at: "6m",
        value: "2",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_lookahead_full_queues", "a", "2x20")],
        quiet: &[
            &[("ojs_throttle_lookahead_full_queues", "a", "0x20")],
            &[("ojs_throttle_lookahead_full_queues", "a", "0x5 1x3 0x20")],
        ],
    },
    Case {
        alert: "OjsThrottleJobsOutOfReach",
        at: "11m",
        value: "2",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_subqueues_out_of_reach", "a", "2x30")],
        quiet: &[
            &[("ojs_throttle_subqueues_out_of_reach", "a", "0x30")],
            &[("ojs_throttle_subqueues_out_of_reach", "a", "0x5 1x5 0x20")],
        ],
    },
    Case {
        alert: "OjsThrottleHeldJobsLost",
        at: "15m",
        value: "",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_hold_lost_total", "a", "0+1x40")],
        // Some at once, and then none.
        quiet: &[&[("ojs_throttle_hold_lost_total", "a", "0x10 32x40")]],
    },
    Case {
        alert: "OjsThrottleWorkersDie",
        at: "15m",
        value: "",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_slots_reclaimed_total", "a", "0+1x40")],
        quiet: &[&[("ojs_throttle_slots_reclaimed_total", "a", "0x10 5x40")]],
    },
    Case {
        alert: "OjsThrottleKeyPaused",
        at: "125m",
        value: "1",
        labels: OF_SIDECAR,
        fires: &[("ojs_throttle_paused_keys", "a", "1x260")],
        quiet: &[&[("ojs_throttle_paused_keys", "a", "1x200 0 1x60")]],
    },
    Case {
        alert: "OjsThrottleOverloaded",
        at: "6m",
        value: "",
        labels: &["code", "instance", "job", "status"],
        fires: &[(OVERLOADED, "a", "1+1x20")],
        quiet: &[&[(OVERLOADED, "a", "1x20")]],
    },
    Case {
        alert: "OjsThrottleStartsUndone",
        at: "21m",
        value: "",
        labels: OF_SIDECAR,
        fires: &[
            ("ojs_throttle_handouts_undone_total", "a", "0+1x60"),
            ("ojs_throttle_starts_total", "a", "0+9x60"),
        ],
        quiet: &[&[
            ("ojs_throttle_handouts_undone_total", "a", "0+1x60"),
            ("ojs_throttle_starts_total", "a", "0+11x60"),
        ]],
    },
];

/// The name and the labels that a page has for a series which begins so, with what Prometheus adds.
fn on_page(page: &str, begin: &str, instance: &str) -> (String, BTreeMap<String, String>) {
    if begin == FAILED {
        let (name, mut labels) = on_page(page, FETCHED, instance);
        labels.insert("code".to_owned(), "500".to_owned());
        return (name, labels);
    }
    let line = page.lines().find(|line| {
        let rest = line.strip_prefix(begin);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ', '}', ',']))
    });
    let line = line.unwrap_or_else(|| panic!("no {begin}: {page}"));
    let (series, _value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let pairs = labels.trim_end_matches("\"}").split("\",");
    let pairs = pairs.filter_map(|pair| pair.split_once("=\""));
    let mut labels: BTreeMap<String, String> = pairs
        .map(|(label, value)| (label.to_owned(), value.to_owned()))
        .collect();
    labels.insert("instance".to_owned(), instance.to_owned());
    labels.insert("job".to_owned(), "sidecars".to_owned());
    (name.to_owned(), labels)
}

fn series(page: &str, begin: &str, instance: &str) -> String {
    let (name, labels) = on_page(page, begin, instance);
    let labels = labels
        .iter()
        .map(|(label, value)| format!("{label}={value:?}"));
    format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
}

/// What a text of an alert shows of these labels, or of the value.
fn shown(text: &str, labels: &BTreeMap<String, String>, value: &str) -> String {
    let mut parts = text.split("{{ ");
    let mut shown = parts.next().unwrap().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" }}").unwrap();
        shown += match name.strip_prefix("$labels.") {
            Some(label) => &labels[label],
            None => {
                let is_value = name == "$value" || name.starts_with("$value | ");
                assert!(is_value && !value.is_empty(), "{text}");
                value
            }
        };
        shown += rest;
    }
    shown
}

/// One test of promtool, as YAML; `expected` is what stands under `exp_alerts`.
fn rule_test(page: &str, case: &Case, given: &[Given], expected: &str) -> String {
    let mut text = "  - interval: 30s\n    input_series:\n".to_owned();
    for (begin, instance, values) in given {
        let series = series(page, begin, instance);
        // `1x4` is five times 1.
        let each = values.split(' ').map(|of| match of.split_once('x') {
            Some((value, times)) if !value.contains('+') && value != "_" => {
                format!("{value}+0x{times}")
            }
            _ => of.to_owned(),
        });
        let values = each.collect::<Vec<_>>().join(" ");
        writeln!(
            text,
            "      - series: '{series}'\n        values: '{values}'"
        )
        .unwrap();
    }
    let (at, alert) = (case.at, case.alert);
    let look = format!("      - eval_time: {at}\n        alertname: {alert}\n");
    text + "    alert_rule_test:\n" + &look + "        exp_alerts: " + expected + "\n"
}

/// What promtool is to see of an alert that fires.
fn firing(page: &str, case: &Case, alert: &Alert) -> String {
    let (begin, instance, _) = case.fires[0];
    let (_, mut labels) = on_page(page, begin, instance);
    labels.retain(|label, _| case.labels.contains(&label.as_str()));
    assert_eq!(labels.len(), case.labels.len(), "{}", case.alert);
    let annotations: BTreeMap<&String, String> = alert
        .annotations
        .iter()
        .map(|(name, text)| (name, shown(text, &labels, case.value)))
        .collect();
    labels.extend(alert.labels.clone());
    // JSON is YAML.
    serde_json::json!([{"exp_labels": labels, "exp_annotations": annotations}]).to_string()
}

/// How all series begin that must be on a page.
fn begins() -> Vec<String> {
    let all = CASES.iter().flat_map(|case| case.fires);
    let all = all.filter(|(begin, ..)| *begin != FAILED);
    all.map(|(begin, ..)| (*begin).to_owned()).collect()
}

#[test]
fn promtool_takes_the_rules() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alerts.yml"), example("alerts")).unwrap();
    promtool(folder.path(), &["check", "rules", "alerts.yml"]);
}

#[test]
fn promtool_sees_every_alert_fire_and_not_fire_with_series_of_a_real_sidecar() {
    let alerts = alerts();
    let cases: BTreeSet<&str> = CASES.iter().map(|case| case.alert).collect();
    assert_eq!(cases, alerts.keys().map(String::as_str).collect());

    let loaded = Loaded::start();
    let page = loaded.during(|| loaded.page_with(&begins()));

    let mut tests = "rule_files: [alerts.yml]\nevaluation_interval: 30s\ntests:\n".to_owned();
    for case in &CASES {
        let expected = firing(&page, case, &alerts[case.alert]);
        tests += &rule_test(&page, case, case.fires, &expected);
        for given in case.quiet {
            tests += &rule_test(&page, case, given, "[]");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("alerts.yml"), example("alerts")).unwrap();
    std::fs::write(folder.path().join("tests.yml"), tests).unwrap();
    promtool(folder.path(), &["test", "rules", "tests.yml"]);
}

/// The page in both of its forms. Only the second has a reader in promtool that is strict: one that makes blocks of a
/// database, and wants each sample's time.
#[test]
fn promtool_takes_the_page_of_a_real_sidecar() {
    let loaded = Loaded::start();
    let page = loaded.during(|| loaded.page_with(&begins()));
    for word in [" NaN\n", "code=\"0\""] {
        assert!(!page.contains(word), "{word} in {page}");
    }
    let process = page.lines().filter(|line| line.starts_with("process_"));
    assert_eq!(process.count(), 7, "{page}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("page"), &page).unwrap();
    promtool(folder.path(), &["check", "metrics"]);

    let open = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\
        Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2\r\n\r\n";
    let mut conn = Conn::open(loaded.sidecar.admin);
    conn.write(open.as_bytes()).unwrap();
    let open = conn.reply().unwrap();
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(open.head.contains(kind), "{}", open.head);
    let counts = "# TYPE process_cpu_seconds counter\nprocess_cpu_seconds_total ";
    assert!(open.body.contains(counts), "{}", open.body);
    let timed = open.body.lines().map(|line| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1770984000\n"),
    });
    std::fs::write(folder.path().join("open"), timed.collect::<String>()).unwrap();
    let blocks = [
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        "open",
        "blocks",
    ];
    promtool(folder.path(), &blocks);
}

/// How long panels may be without what they are to show. A burst of the load and its pause are 4 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// A query of the dashboard, with its variables replaced as for "All".
fn replaced(query: &str) -> String {
    let query = query.replace("$__rate_interval", "5s");
    let query = ["job", "policy", "key", "queue"]
        .iter()
        .fold(query, |query, name| {
            query.replace(&format!("\"${name}\""), "\".*\"")
        });
    assert!(!query.contains('$'), "{query}");
    query
}

/// Each series of a range, with the values that it had.
fn values(found: &Value) -> Vec<BTreeSet<String>> {
    let series = found["result"].as_array().unwrap().iter();
    let each = series.map(|series| {
        let samples = series["values"].as_array().unwrap().iter();
        let values = samples.map(|sample| sample[1].as_str().unwrap().to_owned());
        values.collect()
    });
    each.collect()
}

/// What is wrong with what a panel has shown since `begin`.
fn faults(server: &PrometheusServer, panel: &Panel, begin: SystemTime) -> Vec<String> {
    let seconds = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH)
            .unwrap()
            .as_secs()
            .to_string()
    };
    let (begin, end) = (seconds(begin), seconds(SystemTime::now()));
    let (mut faults, mut all) = (Vec::new(), Vec::new());
    for query in &panel.queries {
        let query = replaced(query);
        let fields = [
            ("query", query.as_str()),
            ("start", &begin),
            ("end", &end),
            ("step", "1"),
        ];
        let found = values(&server.api("query_range", &fields));
        if found.is_empty() {
            faults.push(format!("{}: nothing for {query}", panel.title));
        }
        all.extend(found);
    }
    let rows = ["Limits", "Waiting jobs", "Backpressure", "Shadow"];
    let must_change = rows.contains(&panel.row.as_str());
    if must_change && all.iter().all(|values| values.len() < 2) {
        faults.push(format!("{}: nothing changes: {all:?}", panel.title));
    }
    faults
}

#[test]
fn every_panel_shows_what_a_real_sidecar_does_to_a_real_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let rules = folder.path().join("alerts.yml");
    std::fs::write(&rules, example("alerts")).unwrap();
    let loaded = Loaded::start();
    let server = PrometheusServer::scraping("sidecars", loaded.sidecar.admin, &rules);
    let (panels, begin) = (panels(), SystemTime::now());
    loaded.during(|| {
        let deadline = Instant::now() + PATIENCE;
        loop {
            thread::sleep(Duration::from_secs(1));
            let faults = panels
                .iter()
                .flat_map(|panel| faults(&server, panel, begin));
            let faults: Vec<String> = faults.collect();
            if faults.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{faults:#?}");
        }
    });
    // What the variables offer.
    let variables = dashboard()["templating"]["list"].clone();
    let queries = variables.as_array().unwrap().iter();
    for query in queries.filter_map(|variable| variable["query"]["query"].as_str()) {
        let inside = query.strip_prefix("label_values(").unwrap();
        let (of, label) = inside.trim_end_matches(')').rsplit_once(", ").unwrap();
        let fields = [("match[]", replaced(of))];
        let fields = fields.each_ref().map(|(name, of)| (*name, of.as_str()));
        let offered = server.api(&format!("label/{label}/values"), &fields);
        assert!(!offered.as_array().unwrap().is_empty(), "{query}");
    }
    // Every rule is evaluated without an error.
    let rules = server.api("rules", &[]);
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), alerts().len());
    for rule in rules {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
