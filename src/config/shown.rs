//! Everything that is set, to be shown with who said so.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::meaning::{Meaning, meaning};
use super::settings::{self, Settings};
use ojs_limit::fingerprint;
use ojs_reader::{EGRESS, POLICIES, QUEUES, SETTINGS, TENANTS};

impl Settings {
    /// Whether the same is said in the same lines.
    pub fn stands_as(&self, other: &Settings) -> bool {
        self.origins == other.origins
    }

    /// A fingerprint of the limits that the file sets, as `check` words them: of jobs, and of each way out. Sidecars of one
    /// store should have the same.
    pub fn limits_told(&self) -> BTreeMap<String, String> {
        let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
        if !self.calls_only() {
            told.insert("jobs".to_owned(), Vec::new());
        }
        for Meaning { list, name, text } in meaning(self) {
            let (of, text) = match (list, text.split_once(" go to ")) {
                // Where calls come in is each sidecar's own affair.
                (EGRESS, Some((_, text))) => (format!("way out {name}"), text),
                _ => ("jobs".to_owned(), &*text),
            };
            let texts = told.entry(of).or_default();
            texts.extend([list, name, text].map(str::to_owned));
        }
        let print = |texts: Vec<String>| fingerprint(texts.iter().map(String::as_bytes));
        let prints = told.into_iter();
        let prints = prints.map(|(of, texts)| (of, format!("{:x}", print(texts))));
        prints.collect()
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
        let settings: Vec<_> = settings.collect();
        let mut shown =
            json!({SETTINGS: settings, POLICIES: [], QUEUES: [], TENANTS: [], EGRESS: []});
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
