//! The recorder of the metrics library: a series can only be made as it is declared.

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};

use super::names::{SERIES, Series};

/// The labels of one series.
pub type Labels = Vec<(&'static str, String)>;

/// The part of the page with one gauge by its labels. A recorder forgets no series, so this has one of its own.
pub(super) fn part_of_page(
    name: &'static str,
    gauges: impl Iterator<Item = (Labels, f64)>,
) -> String {
    let recorder = described(PrometheusBuilder::new());
    for (labels, value) in gauges {
        let labels = labels.into_iter();
        let labels = labels.map(|(name, value)| Label::new(name, value));
        gauge(&recorder, name, labels.collect()).set(value);
    }
    recorder.handle().render()
}

/// A recorder with the help texts of all series.
pub(super) fn described(builder: PrometheusBuilder) -> PrometheusRecorder {
    let recorder = builder.build_recorder();
    for series in SERIES {
        recorder.describe_counter(series.name.into(), None::<Unit>, series.help.into());
    }
    recorder
}

const METADATA: Metadata<'static> = Metadata::new("ojs_throttle", Level::INFO, None);

/// The key of one series, which is declared like this.
pub(super) fn key(kind: &str, name: &'static str, labels: Vec<Label>) -> Key {
    let is_declared = |series: &Series| {
        let mut labels = labels.iter().map(Label::key);
        (series.kind, series.name) == (kind, name) && labels.all(|l| series.labels.contains(&l))
    };
    debug_assert!(SERIES.iter().any(is_declared), "{kind} {name} {labels:?}");
    Key::from_parts(name, labels)
}

pub(super) fn counter(
    recorder: &PrometheusRecorder,
    name: &'static str,
    labels: Vec<Label>,
) -> Counter {
    recorder.register_counter(&key("counter", name, labels), &METADATA)
}

pub(super) fn gauge(
    recorder: &PrometheusRecorder,
    name: &'static str,
    labels: Vec<Label>,
) -> Gauge {
    recorder.register_gauge(&key("gauge", name, labels), &METADATA)
}

pub(super) fn histogram(
    recorder: &PrometheusRecorder,
    name: &'static str,
    labels: Vec<Label>,
) -> Histogram {
    recorder.register_histogram(&key("histogram", name, labels), &METADATA)
}
