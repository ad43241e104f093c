//! Who said what is set: the file, in which line, or the command line.

use super::command_line::CommandLine;
use super::places::{Places, SETTINGS};

/// Who said what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Origins {
    file: String,
    lines: Places,
    over: CommandLine,
}

impl Origins {
    /// `places` are bytes of the file's text, over which the command line is put.
    pub(super) fn new(places: Places, file: &str, text: &str, over: &CommandLine) -> Origins {
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |at| ends.partition_point(|end| *end < at) + 1;
        Origins {
            file: file.to_owned(),
            lines: (places.into_iter().map(|(of, at)| (of, line(at)))).collect(),
            over: over.clone(),
        }
    }

    pub(super) fn of(&self, list: &'static str, name: &str) -> String {
        let (line, over) = (self.lines.get(&(list, name.to_owned())), &self.over);
        let is_over = match (list, name) {
            (SETTINGS, "server.listen") => over.listen.is_some(),
            (SETTINGS, "server.admin_listen") => over.admin_listen.is_some(),
            (SETTINGS, "server.upstream") => over.upstream.is_some(),
            (SETTINGS, "server.drain_min") => over.drain_min.is_some() && line.is_none(),
            _ => false,
        };
        match line {
            // What `dev` sets is its own choice, whether it has an option for it or not.
            _ if is_over && over.drain_min.is_some() => "dev".to_owned(),
            _ if is_over => name.replace("server.", "--").replace('_', "-"),
            Some(line) => format!("{}:{line}", self.file),
            None => "default".to_owned(),
        }
    }
}
