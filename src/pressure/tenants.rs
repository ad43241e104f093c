//! How many jobs of a tenant may wait, over all queues (`limits.max_queue_depth` of the multi-tenancy text,
//! 8.1, and of the backpressure text, 9.2).

use std::collections::HashMap;
use std::sync::Arc;

use super::bounds::BoundsTable;
use super::line::WantedAhead;
use super::sums::Sums;
use super::want::Want;
use crate::policy::Pattern;

/// The tenant of jobs that name none (multi-tenancy text, 15.3).
pub const DEFAULT_TENANT: &str = "_default";

/// The bounds of tenants: what was set over HTTP goes before what the file says.
#[derive(Clone, Debug, Default)]
pub(super) struct Tenants {
    /// In the order of the file.
    file: Vec<(Pattern, u64)>,
    set: HashMap<Arc<str>, u64>,
}

impl Tenants {
    pub(super) fn new(file: Vec<(Pattern, u64)>, set: HashMap<Arc<str>, u64>) -> Tenants {
        Tenants { file, set }
    }

    pub(super) fn set(&self) -> &HashMap<Arc<str>, u64> {
        &self.set
    }

    /// Whether any tenant is bounded.
    pub(super) fn any(&self) -> bool {
        let numbers = self.file.iter().map(|(_, most)| most);
        numbers.chain(self.set.values()).any(|most| *most > 0)
    }

    /// What is said of a tenant; 0 is any number.
    pub(super) fn given(&self, tenant: &str) -> Option<u64> {
        let set = self.set.get(tenant);
        set.or_else(|| Pattern::find(&self.file, tenant)).copied()
    }
}

/// A tenant of which too many would wait.
#[derive(Clone, Debug)]
pub(super) struct FullTenant {
    pub(super) tenant: Arc<str>,
    /// How many of its jobs wait, in all queues.
    pub(super) waiting: u64,
    pub(super) most: u64,
    /// How many more the enqueue brings.
    pub(super) wanted: u64,
}

/// The first tenant of which an enqueue would let too many wait, with those who wait `ahead` of it.
pub(super) fn full(
    table: &BoundsTable,
    sums: &Sums,
    wants: &[Want],
    ahead: &WantedAhead,
) -> Option<FullTenant> {
    let mut wanted: HashMap<&Arc<str>, u64> = HashMap::new();
    for tenant in wants.iter().flat_map(|want| &want.tenants) {
        *wanted.entry(tenant).or_default() += 1;
    }
    wanted.into_iter().find_map(|(tenant, wanted)| {
        let most = table.tenants().given(tenant).filter(|most| *most > 0)?;
        let waiting = sums.count(tenant);
        (waiting + ahead.of_tenant(tenant) + wanted > most).then(|| FullTenant {
            tenant: Arc::clone(tenant),
            waiting,
            most,
            wanted,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_goes_before_globs_and_what_is_set_before_the_file() {
        let entry = |name: &str, most| (Pattern::new(name), most);
        let file = vec![entry("*", 5), entry("acme", 50), entry("free-*", 1)];
        let tenants = Tenants::new(file, HashMap::from([("set".into(), 7)]));
        let given = ["acme", "free-x", "other", "set"].map(|name| tenants.given(name));
        assert_eq!(given, [Some(50), Some(5), Some(5), Some(7)]);
        assert!(tenants.any() && !Tenants::default().any());
        let unbounded = Tenants::new(vec![entry("*", 0)], HashMap::new());
        assert!(!unbounded.any() && unbounded.given("a") == Some(0));
    }
}
