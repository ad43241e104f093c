//! Everything that is set, to be shown with who said so.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::{Value, json};

use super::meaning::{Meaning, meaning};
use super::settings::{self, Settings};
use ojs_limit::fingerprint;
use ojs_policy::PolicySet;
use ojs_reader::{EGRESS, POLICIES, QUEUES, SETTINGS, TENANTS};

impl Settings {
    /// Whether the same is said in the same lines.
    pub fn stands_as(&self, other: &Settings) -> bool {
        self.origins == other.origins
    }

    /// A fingerprint of what limits: jobs, and the calls of each way out. Sidecars of one store should have the same.
    /// Not in it is what each may have of its own, such as where it listens and how much it holds.
    pub fn limits_told(&self) -> BTreeMap<String, String> {
        let print = |of: &dyn fmt::Debug| {
            let text = format!("{of:?}");
            format!("{:x}", fingerprint([text.as_bytes()]))
        };
        let lost = |name: &Arc<str>| {
            let own = self.on_store_error_by_policy.get(name).copied();
            own.unwrap_or(self.store.on_store_error)
        };
        let (policies, tried) = (&*self.policies, self.policies.shadow());
        let tried_policies = tried.map(PolicySet::policies);
        let all = policies
            .policies()
            .iter()
            .chain(tried_policies.into_iter().flatten());
        let modes = all.map(|policy| (lost(&policy.name), self.reserved.contains(&policy.name)));
        // What is printed must not depend on the order of a hash map.
        let subqueues: BTreeMap<_, _> = policies.subqueues().iter().collect();
        let jobs = (
            (
                policies.policies(),
                tried_policies,
                modes.collect::<Vec<_>>(),
            ),
            (policies.queues(), tried.map(PolicySet::queues), subqueues),
            (policies.accept(), self.store.on_store_error, &*self.bounds),
        );
        let jobs = (!self.calls_only()).then(|| ("jobs".to_owned(), print(&jobs)));
        let ways = self.egress.iter().map(|of| {
            let budgets = of.budgets.iter().map(|budget| (budget, lost(&budget.name)));
            let limits = (
                (&of.key, &of.limits, &of.cost, &of.fair, lost(&of.name)),
                (of.leads_to(), of.vendor.map(|vendor| vendor.name)),
                (&of.feedback, budgets.collect::<Vec<_>>()),
            );
            (format!("way out {}", of.name), print(&limits))
        });
        jobs.into_iter().chain(ways).collect()
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
