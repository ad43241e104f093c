//! Who said what is set: a file, in which line, a variable of the environment, or the command line.

use std::collections::BTreeMap;

use super::command_line::CommandLine;
use ojs_reader::{Places, SETTINGS, SourceKind, Sources};

/// Who said what.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Origins {
    /// The names of the texts.
    texts: Vec<String>,
    /// In which of them and in which line it is; a variable has none.
    lines: BTreeMap<(&'static str, String), (usize, Option<usize>)>,
    over: CommandLine,
}

impl Origins {
    /// `places` are bytes of these texts, over which the command line is put.
    pub(super) fn new(places: Places, texts: &Sources, over: &CommandLine) -> Origins {
        let ends: Vec<usize> = texts.text().match_indices('\n').map(|(at, _)| at).collect();
        let line = |at| ends.partition_point(|end| *end < at);
        let starts: Vec<_> = texts.iter().map(|text| (text.start, text.kind)).collect();
        let place = |at| {
            let nth = starts
                .partition_point(|(start, _)| *start <= at)
                .saturating_sub(1);
            let text = starts
                .get(nth)
                .filter(|(_, kind)| *kind == SourceKind::File);
            (nth, text.map(|(start, _)| line(at) - line(*start) + 1))
        };
        Origins {
            texts: texts.iter().map(|text| text.name.to_owned()).collect(),
            lines: (places.into_iter().map(|(of, at)| (of, place(at)))).collect(),
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
            Some((nth, line)) => {
                let text = self.texts.get(*nth).map_or("", String::as_str);
                line.map_or(text.to_owned(), |line| format!("{text}:{line}"))
            }
            None => "default".to_owned(),
        }
    }
}
