//! The two ways in which tests start a sidecar: [`simulated`] in this process, and [`process`] as the program.

pub mod answering;
pub mod client;
pub mod listen;
pub mod process;
pub mod simulated;

use std::time::Duration;

use ojs_throttle::config::Settings;

pub use crate::servers::BoxFuture;

/// When the clock of a store begins unless a test says so, in microseconds since 1970.
pub const BEGIN: u64 = 1_770_000_000_000_000;

/// 2026-02-13T12:00:00Z, when the examples of texts and pages happen, in microseconds since 1970.
pub const NOON: u64 = 1_770_984_000_000_000;

/// A config file before `upstream`: `rest` is TOML that begins inside `[server]`. Ports that it does not
/// name are any free ones.
pub fn config(upstream: &str, rest: &str) -> String {
    let of_server = || rest.lines().take_while(|line| !line.starts_with('['));
    let is_said = |name: &str| of_server().any(|line| line.starts_with(name));
    let mut text = format!("[server]\nupstream = {upstream:?}\n");
    for name in ["listen", "admin_listen"] {
        if !is_said(&format!("{name} =")) {
            text += &format!("{name} = \"127.0.0.1:0\"\n");
        }
    }
    text + rest
}

/// The settings of such a file. Where it does not say how long an empty FETCH waits, that is half a second: most of these
/// tests ask on when nothing came, and count the time that passes.
pub fn settings(upstream: &str, rest: &str) -> Settings {
    let text = config(upstream, rest);
    let read = Settings::parse(&text, "throttle.toml");
    let mut settings = read.unwrap_or_else(|report| panic!("{text}\n{report}"));
    if !rest.contains("max_wait") {
        settings.fetch.max_wait = Duration::from_millis(500);
    }
    settings
}
