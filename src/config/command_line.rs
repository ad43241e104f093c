//! What the command line says over the file.

use std::net::SocketAddr;
use std::time::Duration;

use super::secret::Secret;
use crate::upstream::BaseUrl;

/// What the command line says over the file, and what a command has instead of a default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommandLine {
    /// In place of `server.listen`.
    pub listen: Option<SocketAddr>,
    /// In place of `server.admin_listen`.
    pub admin_listen: Option<SocketAddr>,
    /// In place of `server.upstream`.
    pub upstream: Option<BaseUrl>,
    /// Where the file has no `server.drain_min`; the file wins.
    pub drain_min: Option<Duration>,
    /// Where the file has no `server.control_token`; the file wins.
    pub control_token: Option<Secret>,
}
