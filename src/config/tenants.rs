//! Reads `[[tenant]]`: how many jobs of a tenant may wait.

use std::ops::Range;

use ojs_policy::Pattern;
use ojs_policy::fields::Fields;
use ojs_reader::{TENANTS, TomlTable, patterns};

/// Reads what `[[tenant]]` entries say of how many jobs may wait, in their order.
pub(super) fn tenants(root: &mut TomlTable<'_>) -> Vec<(Pattern, u64)> {
    let mut tenants: Vec<(Pattern, u64)> = Vec::new();
    let mut seen: Vec<(Pattern, Range<usize>)> = Vec::new();
    for mut table in root.tables("tenant", "[[tenant]] above its fields") {
        let header = table.span.clone();
        let found = table.get("id");
        if found.is_none() {
            let title = "a tenant entry needs an `id`";
            table.missing(
                &header,
                title,
                "add id = \"…\"; a glob gives each tenant its own",
            );
        }
        let ids = found.and_then(|found| patterns(&table, &found, None));
        let example = "limits = { max_queue_depth = 50000 }";
        let limits = table.maybe_table("limits", example).map(|mut limits| {
            let most = limits.int_from_0("max_queue_depth");
            (most.ok().flatten(), limits.has("max_queue_depth"))
        });
        if !limits.is_some_and(|(_, given)| given) {
            table.missing(
                &header,
                "this tenant entry has no bound",
                format!("add {example}"),
            );
        }
        let most = limits.and_then(|(most, _)| most);
        for id in ids.unwrap_or_default() {
            if let Some((_, first)) = seen.iter().find(|(known, _)| *known == id) {
                let title = format!("tenant {:?} is there twice", id.as_str());
                let hint = format!("make it one entry; {}", root.first_in(first));
                root.error(&header, title, hint);
            }
            if let Some(other) = most.and_then(|most| id.hidden_by(&tenants, &most)) {
                let (id, other) = (id.as_str(), other.as_str());
                let title = format!("the bound of {id:?} is for no tenant: {other:?} is before it");
                let hint = "of several globs that match a tenant the first one bounds it: write this entry above that one";
                root.warn(&header, title, hint);
            }
            seen.push((id.clone(), header.clone()));
            table.note_place(TENANTS, id.as_str(), header.start);
            tenants.extend(most.map(|most| (id, most)));
        }
    }
    tenants
}
