//! Who said what is set: the file, in which line, or the command line. And everything that is set, to be shown.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::meaning::{Meaning, meaning};
use super::{CommandLine, Settings, settings};

/// What a place is of: a setting, or an entry of one of these lists.
pub(super) const SETTINGS: &str = "settings";
pub(super) const POLICIES: &str = "policies";
pub(super) const QUEUES: &str = "queues";
pub(super) const TENANTS: &str = "tenants";

/// Places in a file, by what stands there: its list and its name.
pub(super) type Places = BTreeMap<(&'static str, String), usize>;

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

    fn of(&self, list: &'static str, name: &str) -> String {
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

impl Settings {
    /// Whether the same is said in the same lines.
    pub fn stands_as(&self, other: &Settings) -> bool {
        self.origins == other.origins
    }

    /// Everything that is set: settings with their values and defaults, and what each entry of a list means, all with
    /// who said so. Of secrets nothing is shown.
    pub fn shown(&self) -> Value {
        let settings = settings::SETTINGS.iter().map(|one| {
            json!({
                "name": one.name,
                "value": (one.shown)(self),
                "from": self.origins.of(SETTINGS, one.name),
                "default": (one.default)(),
                "effect": one.effect,
            })
        });
        let mut shown =
            json!({SETTINGS: settings.collect::<Vec<_>>(), POLICIES: [], QUEUES: [], TENANTS: []});
        let mut texts: IndexMap<(&'static str, &str), Vec<String>> = IndexMap::new();
        for Meaning { list, name, text } in meaning(self) {
            let all = texts.entry((list, name)).or_default();
            all.extend(Some(text).filter(|text| !text.is_empty()));
        }
        for ((list, name), texts) in texts {
            let (from, text) = (self.origins.of(list, name), texts.join("; "));
            if let Some(Value::Array(rows)) = shown.get_mut(list) {
                rows.push(json!({"name": name, "from": from, "text": text}));
            }
        }
        shown
    }
}
