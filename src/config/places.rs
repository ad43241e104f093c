//! Where settings and entries of lists stand in a file.

use std::collections::BTreeMap;

/// What a place is of: a setting, or an entry of one of these lists.
pub(super) const SETTINGS: &str = "settings";
pub(super) const POLICIES: &str = "policies";
pub(super) const QUEUES: &str = "queues";
pub(super) const TENANTS: &str = "tenants";
pub(super) const EGRESS: &str = "egress";

/// Places in a file, by what stands there: its list and its name.
pub(super) type Places = BTreeMap<(&'static str, String), usize>;
