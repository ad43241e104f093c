//! What the environment and the command line say over the file.

use std::net::SocketAddr;
use std::time::Duration;

use super::listen::BackendAt;
use ojs_policy::nearest;
use ojs_reader::Secret;

/// Variables of the environment, each with the setting that it is. They win over the file, and options over them.
pub(super) const VARIABLES: [(&str, &str); 6] = [
    ("OJS_THROTTLE_UPSTREAM", "server.upstream"),
    ("OJS_THROTTLE_LISTEN", "server.listen"),
    ("OJS_THROTTLE_ADMIN_LISTEN", "server.admin_listen"),
    ("OJS_THROTTLE_STORE_URL", "store.url"),
    ("OJS_THROTTLE_LOG", "server.log"),
    ("OJS_THROTTLE_LOG_LEVEL", "server.log_level"),
];

/// How the names of all variables begin that the program reads.
const PREFIX: &str = "OJS_THROTTLE_";
/// Those that commands read, and the build.
const OTHERS: [&str; 5] = ["CONFIG", "ADMIN", "TOKEN", "COMPLETE", "BUILD"];

/// What the command line says over the file, and what a command has instead of a default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandLine {
    /// The variables that are set and not empty: the environment is above the file and below all else here.
    pub variables: Vec<(&'static str, Secret)>,
    /// The names of variables that are set, are called as if they were for this program, and that it does not know.
    pub unknown: Vec<String>,
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
        let all = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        let all = all.filter_map(|(name, _)| name.into_string().ok());
        let mut unknown: Vec<String> = all.filter(|name| is_unknown(name)).collect();
        unknown.sort();
        CommandLine {
            variables: set.collect(),
            unknown,
            ..CommandLine::default()
        }
    }
}

/// The names of all variables that the program reads, without what all begin with.
fn known() -> impl Iterator<Item = &'static str> {
    let settings = VARIABLES.iter();
    let settings = settings.filter_map(|(name, _)| name.strip_prefix(PREFIX));
    settings.chain(OTHERS)
}

/// Whether a variable is called as if it were for this program. Kubernetes and Docker set OJS_THROTTLE_PORT_9091_TCP,
/// OJS_THROTTLE_ADMIN_SERVICE_HOST and others for services of its name.
fn is_unknown(name: &str) -> bool {
    let of_service = ["_PORT", "_SERVICE_"];
    let own = name.strip_prefix(PREFIX);
    let own = own.filter(|_| !of_service.iter().any(|part| name.contains(part)));
    own.is_some_and(|own| known().all(|known| known != own))
}

/// What is to be done about such a variable.
pub(super) fn about_unknown(name: &str) -> String {
    let own = name.strip_prefix(PREFIX).unwrap_or(name);
    match nearest(own, known()) {
        Some(near) => format!("did you mean {PREFIX}{near}?"),
        None => "`ojs-throttle help config` has a table of those that are read".to_owned(),
    }
}
