//! The manual: the chapters of `src/manual`, in the program as they are in the files.
//!
//! Tests make what can be made of the sources: settings, metrics, errors, events, lines of the log, replies, tables. They
//! fail on a difference, and `UPDATE=1 cargo test --test it -- docs:: told::` writes it anew.

/// One chapter.
#[derive(Clone, Copy, Debug)]
pub struct Chapter {
    /// Its name, as `help` takes it and as its file is called.
    pub name: &'static str,
    /// All of it, as Markdown.
    pub text: &'static str,
}

macro_rules! chapters {
    ($($name:literal)*) => {
        &[$(Chapter { name: $name, text: include_str!(concat!("manual/", $name, ".md")) }),*]
    };
}

/// All chapters, in the order in which somebody new would read them.
pub const CHAPTERS: &[Chapter] = chapters![
    "start" "limits" "introduce" "cost" "egress" "subqueues" "backpressure" "producers" "workers" "deploy" "fleet" "operate" "page"
    "incidents" "how-it-works" "promises" "tested" "faults" "compare" "security" "config" "http" "errors" "log" "metrics" "event-stream" "backends"
    "glossary" "changelog"
];

/// The chapter of this name.
pub fn chapter(name: &str) -> Option<&'static Chapter> {
    CHAPTERS.iter().find(|chapter| chapter.name == name)
}
