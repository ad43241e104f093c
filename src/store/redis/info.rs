//! What a server says of itself when it is asked with INFO.

use redis::Value;

/// The oldest server that has all that the scripts need.
pub(super) const OLDEST: (u32, u32) = (6, 2);

/// The answer to INFO: a text, or one for each node of a cluster.
fn texts(told: &Value) -> Vec<String> {
    match told {
        Value::BulkString(text) => vec![String::from_utf8_lossy(text).into_owned()],
        Value::VerbatimString { text, .. } => vec![text.clone()],
        Value::Map(nodes) => nodes.iter().flat_map(|(_, told)| texts(told)).collect(),
        _ => Vec::new(),
    }
}

/// Name and version in the answer to INFO; of several servers the oldest.
pub(super) fn oldest(told: &Value) -> Option<(&'static str, (u32, u32))> {
    let versions = texts(told);
    let versions = versions.iter().filter_map(|info| version(info));
    versions.min_by_key(|(_, version)| *version)
}

/// The server's name and version in the answer to INFO.
fn version(info: &str) -> Option<(&'static str, (u32, u32))> {
    let of = |field: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(field))?;
        let mut parts = line.trim().split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    };
    match of("valkey_version:") {
        Some(version) => Some(("Valkey", version)),
        None => Some(("Redis", of("redis_version:")?)),
    }
}

/// What a server does when its memory is full; of several the one that forgets.
pub(super) fn eviction(told: &Value) -> Option<String> {
    let policy = |line: &str| line.strip_prefix("maxmemory_policy:").map(str::to_owned);
    let infos = texts(told);
    let policies = infos
        .iter()
        .filter_map(|info| info.lines().find_map(policy));
    policies.max_by_key(|policy| policy != "noeviction")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valkey_is_told_by_its_own_version() {
        let valkey = "server_name:valkey\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\n";
        assert_eq!(version(valkey), Some(("Valkey", (8, 0))));
        assert_eq!(version("redis_version:6.2.14\r\n"), Some(("Redis", (6, 2))));
        assert_eq!(version("role:master\r\n"), None);
    }

    #[test]
    fn of_a_cluster_the_oldest_node_counts_and_the_one_that_forgets() {
        let node = |version: &str, policy: &str| {
            let text = format!("redis_version:{version}\r\nmaxmemory_policy:{policy}\r\n");
            Value::BulkString(text.into_bytes())
        };
        let name = |name: &str| Value::SimpleString(name.to_owned());
        let cluster = Value::Map(vec![
            (name("a"), node("7.2.4", "noeviction")),
            (name("b"), node("6.0.9", "allkeys-lru")),
            (name("c"), node("7.0.0", "noeviction")),
        ]);
        assert_eq!(oldest(&cluster), Some(("Redis", (6, 0))));
        assert_eq!(eviction(&cluster).as_deref(), Some("allkeys-lru"));
        let one = node("7.0.15", "noeviction");
        assert_eq!(oldest(&one), Some(("Redis", (7, 0))));
        assert_eq!(eviction(&one).as_deref(), Some("noeviction"));
        assert_eq!(oldest(&Value::Nil), None);
    }
}
