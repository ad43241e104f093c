//! Where settings and entries of lists stand in a file.

use std::collections::BTreeMap;

/// A place of a setting.
pub const SETTINGS: &str = "settings";
/// A place of a `[[policy]]`.
pub const POLICIES: &str = "policies";
/// A place of a `[[queue]]`.
pub const QUEUES: &str = "queues";
/// A place of a `[[tenant]]`.
pub const TENANTS: &str = "tenants";
/// A place of an `[[egress]]`.
pub const EGRESS: &str = "egress";

/// Places in a file, by what stands there: its list and its name.
pub type Places = BTreeMap<(&'static str, String), usize>;
