//! The page in the form that a scraper asks for, and the part of it about the process.

use std::fmt::Write;

#[cfg(target_os = "linux")]
use metrics_process::collector;

#[cfg(target_os = "linux")]
use super::names::{SERIES, Series};

/// The part of the page about the process, which only Linux tells.
#[cfg(not(target_os = "linux"))]
pub(super) fn process() -> String {
    String::new()
}

/// The part of the page about the process. What the system does not say is left out.
#[cfg(target_os = "linux")]
pub(super) fn process() -> String {
    let now = collector::collect();
    let whole = |number: Option<u64>| number.map(|number| number as f64);
    let values = [
        ("process_cpu_seconds_total", now.cpu_seconds_total),
        (
            "process_resident_memory_bytes",
            whole(now.resident_memory_bytes),
        ),
        (
            "process_virtual_memory_bytes",
            whole(now.virtual_memory_bytes),
        ),
        ("process_open_fds", whole(now.open_fds)),
        ("process_max_fds", whole(now.max_fds)),
        ("process_threads", whole(now.threads)),
        ("process_start_time_seconds", whole(now.start_time_seconds)),
    ];
    let mut page = String::new();
    // Not by a recorder, whose counters are whole: an idle sidecar uses a second of the processor in minutes.
    for Series {
        name, kind, help, ..
    } in SERIES
    {
        if let Some((_, Some(value))) = values.iter().find(|(of, _)| of == name) {
            // Writing to a text cannot fail.
            let _ = writeln!(
                page,
                "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"
            );
        }
    }
    page
}

/// The page without characters that a terminal would obey: names come from jobs, and people look at it with curl.
pub(super) fn printable(page: String) -> String {
    let obeyed = |c: char| c.is_control() && c != '\n';
    if !page.contains(obeyed) {
        return page;
    }
    let mut shown = String::with_capacity(page.len() + 64);
    for c in page.chars() {
        match obeyed(c) {
            // In the text of a label a backslash is written as two.
            true => drop(write!(shown, "\\\\x{:02x}", u32::from(c))),
            false => shown.push(c),
        }
    }
    shown
}

/// A page of the text format in OpenMetrics 1.0: a counter's family has no `_total`, help has its quotes escaped, no
/// line is empty, and the end is said.
pub(super) fn open_metrics(page: &str) -> String {
    let mut open = String::with_capacity(page.len() + 64);
    for line in page.lines().filter(|line| !line.is_empty()) {
        match line
            .strip_prefix("# ")
            .and_then(|meta| meta.split_once(' '))
        {
            Some((word, rest)) => {
                let (name, said) = rest.split_once(' ').unwrap_or((rest, ""));
                let name = name.strip_suffix("_total").unwrap_or(name);
                let said = said.replace('"', "\\\"");
                let _ = writeln!(open, "# {word} {name} {said}");
            }
            None => {
                open.push_str(line);
                open.push('\n');
            }
        }
    }
    open.push_str("# EOF\n");
    open
}
