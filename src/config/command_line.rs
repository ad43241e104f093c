//! What the environment and the command line say over the file.

use std::net::SocketAddr;
use std::time::Duration;

use super::listen::BackendAt;
use super::secret::Secret;

/// Variables of the environment, each with the setting that it is. They win over the file, and options over them.
pub(super) const VARIABLES: [(&str, &str); 6] = [
    ("OJS_THROTTLE_UPSTREAM", "server.upstream"),
    ("OJS_THROTTLE_LISTEN", "server.listen"),
    ("OJS_THROTTLE_ADMIN_LISTEN", "server.admin_listen"),
    ("OJS_THROTTLE_STORE_URL", "store.url"),
    ("OJS_THROTTLE_LOG", "server.log"),
    ("OJS_THROTTLE_LOG_LEVEL", "server.log_level"),
];

/// What the command line says over the file, and what a command has instead of a default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandLine {
    /// The variables that are set and not empty: the environment is above the file and below all else here.
    pub variables: Vec<(&'static str, Secret)>,
    /// In place of `server.listen`.
    pub listen: Option<SocketAddr>,
    /// In place of `server.admin_listen`.
    pub admin_listen: Option<SocketAddr>,
    /// In place of `server.upstream`.
    pub upstream: Option<BackendAt>,
    /// Whether `memory:` takes the place of a store over the network.
    pub no_network_store: bool,
    /// Where the file has no `server.drain_min`; the file wins.
    pub drain_min: Option<Duration>,
    /// Where the file has no `server.control_token`; the file wins.
    pub control_token: Option<Secret>,
}

impl CommandLine {
    /// What the environment says, and nothing else.
    pub fn of_environment() -> CommandLine {
        let set = VARIABLES.iter().filter_map(|(name, _)| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            Some((*name, Secret::new(value.to_string_lossy())))
        });
        CommandLine {
            variables: set.collect(),
            ..CommandLine::default()
        }
    }
}
