//! Queries for Prometheus, as far as they name series and labels.

use std::collections::{BTreeMap, BTreeSet};

use ojs_throttle::told::metrics::SERIES;

/// What a query names.
#[derive(Debug, Default)]
pub struct Named {
    /// Metrics, in their order.
    pub metrics: Vec<String>,
    /// Labels of each selector, with the metric.
    pub selected: Vec<(String, String)>,
    /// Labels that it groups by.
    pub grouped: BTreeSet<String>,
}

fn is_inside(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Reads a query. What stands in quotes is no name.
pub fn named(query: &str) -> Named {
    let mut named = Named::default();
    let mut rest = query;
    while let Some(at) = rest.find("ojs_") {
        let name = &rest[at..];
        let end = name.find(|c| !is_inside(c)).unwrap_or(name.len());
        let (metric, after) = name.split_at(end);
        named.metrics.push(metric.to_owned());
        rest = after;
        if let Some(inside) = after.strip_prefix('{') {
            let (matchers, after) = inside.split_once('}').unwrap();
            // What stands before the first quote and after each second one are labels and operators.
            for label in matchers.split('"').step_by(2) {
                let label = label.trim_matches(|c| !is_inside(c));
                if !label.is_empty() {
                    named.selected.push((metric.to_owned(), label.to_owned()));
                }
            }
            rest = after;
        }
    }
    for list in query.split(" by (").skip(1) {
        let (list, _) = list.split_once(')').unwrap();
        named.grouped.extend(list.split(", ").map(str::to_owned));
    }
    named
}

/// The labels of each metric, as the program declares them. Prometheus adds some.
pub fn declared() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    for series in SERIES {
        let labels = series
            .labels
            .iter()
            .chain(&["instance", "job", "namespace"]);
        let mut labels: BTreeSet<String> = labels.map(|&label| label.to_owned()).collect();
        all.insert(series.name.to_owned(), labels.clone());
        if series.kind == "histogram" {
            all.insert(format!("{}_count", series.name), labels.clone());
            labels.insert("le".to_owned());
            all.insert(format!("{}_bucket", series.name), labels);
        }
    }
    all
}

#[test]
fn a_query_is_read() {
    let query = r#"max by (le, op) (rate(ojs_a_bucket{job=~"$job", code!="x"}[5m])) or ojs_b"#;
    let named = named(query);
    assert_eq!(named.metrics, ["ojs_a_bucket", "ojs_b"]);
    let selected = [("ojs_a_bucket", "job"), ("ojs_a_bucket", "code")];
    let selected = selected.map(|(metric, label)| (metric.to_owned(), label.to_owned()));
    assert_eq!(named.selected, selected);
    let grouped: Vec<_> = named.grouped.iter().collect();
    assert_eq!(grouped, ["le", "op"]);
}
