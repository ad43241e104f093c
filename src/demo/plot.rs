//! Draws the picture of a whole run as an SVG file, by hand.

use std::fmt::Write;
use std::time::Duration;

use super::judge::{Judgement, Start, counts, starts};
use super::limits::sentence;
use super::scene::{Enforcement, JobStream, SceneNow, StreamLimit};
use super::streams::STREAMS;

/// Where a panel's plot begins and ends, and how high it is.
const LEFT: f64 = 150.0;
const WIDTH: f64 = 630.0;
const HEIGHT: f64 = 62.0;
/// From one panel to the next, and where the first begins.
const PITCH: f64 = 82.0;
const TOP: f64 = 76.0;
/// Columns of a plot; each shows the highest of its time.
const COLUMNS: usize = 420;

/// Draws the whole run.
pub(super) fn svg(seen: &SceneNow<'_>, limits: Enforcement) -> String {
    let verdict = Judgement::of(seen);
    let bottom = TOP + PITCH * 3.0 + HEIGHT;
    let height = bottom + 26.0;
    let colour = if verdict.held() { "good" } else { "bad" };
    let title = match limits {
        Enforcement::Off => "ojs-throttle demo --break: the same jobs, limits off",
        Enforcement::On => "ojs-throttle demo: starts against their limits",
    };
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 810 {height}" width="810" height="{height}" role="img" aria-label="{title}">
<style>{STYLE}</style>
<rect class="back" width="810" height="{height}"/>
<text class="title" x="20" y="32">{title}</text>
<text class="{colour}" x="20" y="54">{}</text>
"#,
        escaped(&sentence(&verdict, limits).replace('\n', " "))
    );
    time_axis(&mut svg, seen.now, bottom);
    for (index, stream) in STREAMS.iter().enumerate() {
        let top = TOP + PITCH * f64::from(u8::try_from(index).unwrap_or(u8::MAX));
        panel(&mut svg, top, stream, &starts(seen.pages, index), seen.now);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Dark on light, or light on dark where the reader wants it so.
const STYLE: &str = "
text { font: 13px system-ui, 'DejaVu Sans', sans-serif; fill: #333 }
.title { font-size: 18px; font-weight: bold; fill: #111 }
.name { font-weight: bold; font-size: 15px; fill: #111 }
.small { font-size: 11px; fill: #555 }
.good { fill: #18794e } .bad { fill: #c62828 }
.back { fill: #fff } .axis { stroke: #888; fill: none } .grid { stroke: #ddd }
.area { fill: #2f7fd0 } .limit { stroke: #c62828; stroke-width: 1.5; stroke-dasharray: 6 4 }
@media (prefers-color-scheme: dark) {
text { fill: #ccc } .title, .name { fill: #fff } .small { fill: #aaa } .back { fill: #16181d }
.good { fill: #5fd39b } .bad, text.bad { fill: #ff7b72 } .grid { stroke: #333 } .area { fill: #58a6ff }
.limit { stroke: #ff7b72 }
}
";

/// Draws the starts of one stream, from `top` down.
fn panel(svg: &mut String, top: f64, stream: &JobStream, starts: &[Start], until: Duration) {
    let (name, rule) = (stream.name, stream.limit);
    let levels = levels(rule, starts, until);
    let limit = rule.number();
    let most = levels.iter().copied().max().unwrap_or_default();
    let scale = f64::from(most.max(limit.unwrap_or(1))) * 1.2;
    let y = |level: u32| top + HEIGHT * (1.0 - f64::from(level) / scale);
    let bottom = top + HEIGHT;
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        r#"<g><text class="name" x="20" y="{:.0}">{name}</text>
<text x="20" y="{:.0}">{rule}</text>
<text class="small" x="20" y="{:.0}">{}</text>
"#,
        top + 20.0,
        top + 38.0,
        top + 55.0,
        measure(rule),
    );
    let _ = writeln!(
        svg,
        r#"<path class="area" d="{}"/>"#,
        area(&levels, bottom, y)
    );
    if let Some(limit) = limit {
        let _ = writeln!(
            svg,
            r#"<line class="limit" x1="{LEFT}" x2="{:.0}" y1="{1:.1}" y2="{1:.1}"/>"#,
            LEFT + WIDTH,
            y(limit)
        );
    }
    level_axis(svg, limit, most, y);
    let _ = writeln!(
        svg,
        r#"<path class="axis" d="M{LEFT} {top:.1}V{bottom:.1}H{:.0}"/></g>"#,
        LEFT + WIDTH
    );
}

/// The meaning of the plot's height.
fn measure(rule: StreamLimit) -> String {
    match rule {
        StreamLimit::Rate { period, .. } | StreamLimit::Spaced { period, .. } => {
            format!("starts in the last {period:?}")
        }
        StreamLimit::AtOnce(_) => "jobs with workers".into(),
        StreamLimit::Free => "starts in the last 1s".into(),
    }
}

/// The seconds of all panels: a line through them, and a number below the last one, which ends at `bottom`.
fn time_axis(svg: &mut String, until: Duration, bottom: f64) {
    let whole = until.as_secs_f64().max(0.001);
    let step = [1, 2, 5, 10, 30, 60]
        .into_iter()
        .find(|step| whole / f64::from(*step) <= 13.0);
    let step = step.unwrap_or(60);
    let mut second = 0;
    while f64::from(second) <= whole {
        let x = LEFT + WIDTH * f64::from(second) / whole;
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{TOP}" y2="{bottom:.1}"/>
<text class="small" text-anchor="middle" x="{x:.1}" y="{:.1}">{second} s</text>"#,
            bottom + 16.0
        );
        second += step;
    }
}

/// Numbers beside the limit, the highest level and zero, as far as there is room for them.
fn level_axis(svg: &mut String, limit: Option<u32>, most: u32, y: impl Fn(u32) -> f64) {
    let mut ticks: Vec<u32> = Vec::new();
    for tick in [limit, Some(most), Some(0)].into_iter().flatten() {
        if ticks.iter().all(|other| (y(*other) - y(tick)).abs() > 12.0) {
            ticks.push(tick);
        }
    }
    for tick in ticks {
        // Writing to a string cannot fail.
        let _ = writeln!(
            svg,
            r#"<text class="small" text-anchor="end" x="{:.0}" y="{:.1}">{tick}</text>"#,
            LEFT - 6.0,
            y(tick) + 4.0
        );
    }
}

/// The most starts that count at one moment of each column, from the beginning to `until`.
fn levels(rule: StreamLimit, starts: &[Start], until: Duration) -> Vec<u32> {
    let mut changes = counts(rule, starts).into_iter().peekable();
    let (mut level, mut levels) = (0, Vec::with_capacity(COLUMNS));
    for column in 1..=COLUMNS {
        let end = until.mul_f64(column as f64 / COLUMNS as f64);
        let mut most = level;
        while let Some((_, count)) = changes.next_if(|(at, _)| *at < end) {
            level = count;
            most = most.max(level);
        }
        levels.push(most);
    }
    levels
}

/// The outline of columns over `bottom`.
fn area(levels: &[u32], bottom: f64, y: impl Fn(u32) -> f64) -> String {
    let mut path = format!("M{LEFT} {bottom:.1}");
    let mut last = None;
    for (column, level) in levels.iter().enumerate() {
        if last != Some(level) {
            let x = LEFT + WIDTH * column as f64 / COLUMNS as f64;
            let _ = write!(path, "H{x:.1}V{:.1}", y(*level));
            last = Some(level);
        }
    }
    let _ = write!(path, "H{:.0}V{bottom:.1}Z", LEFT + WIDTH);
    path
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::records::Pages;
    use super::*;

    #[test]
    fn a_column_shows_the_highest_of_its_time() {
        let ms = Duration::from_millis;
        let start = |at| Start {
            weight: 1,
            made: ms(at),
            seen: ms(at),
            done: Some(ms(at + 5)),
        };
        // Two that follow each other within one column of 10 ms, and two at once in another.
        let starts = [start(0), start(5), start(20), start(21)];
        let levels = levels(
            StreamLimit::AtOnce(1),
            &starts,
            ms(10) * u32::try_from(COLUMNS).unwrap(),
        );
        assert_eq!(levels[..5], [1, 1, 2, 0, 0]);
        assert_eq!(levels.len(), COLUMNS);
    }

    #[test]
    fn an_empty_run_is_drawn_too() {
        let pages = Pages::default();
        let svg = svg(&SceneNow::of(&pages, &[]), Enforcement::On);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
