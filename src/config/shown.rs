//! Everything that is set, to be shown with who said so.

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::meaning::{Meaning, meaning};
use super::settings::{self, Settings};
use ojs_reader::{EGRESS, POLICIES, QUEUES, SETTINGS, TENANTS};

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
