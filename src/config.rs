//! The settings of the program: one TOML file, read field by field so that all its problems are
//! shown at once, each under its line. `config.example.toml` documents every field; a line of `settings.rs`
//! makes each.

mod check;
mod costs;
mod diff;
mod feedback;
mod file;
mod kinds;
mod listen;
mod meaning;
mod origins;
mod patterns;
mod policies;
mod queues;
mod reader;
mod report;
mod settings;
mod tenants;
mod values;
mod watch;

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use crate::store::guard::OnStoreError;
pub use crate::upstream::BaseUrl;

pub use check::{Checked, Entries, check};
pub use diff::{Changes, Diff};
pub use listen::Listen;
pub use report::Report;
pub use settings::{
    FetchSettings, HoldSettings, MetricsSettings, RepairSettings, ServerSettings, Settings,
    SettleSettings, StoreSettings, UpstreamSettings,
};
pub use watch::FolderWatch;

/// The longest that an answer may be kept back: the SDKs give up after 30 s.
pub const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// The largest config file, in bytes: some ten thousand policies.
const LONGEST_FILE: u64 = 1 << 20;

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    const WORDS: [(&str, LogFormat); 2] = [("human", LogFormat::Human), ("json", LogFormat::Json)];
}

/// Where usage is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum StoreUrl {
    /// `memory:`: in this process.
    #[default]
    Memory,
    /// `redis://` and the like: one budget for all sidecars that share it. It may have a password.
    Redis(Secret),
    /// `postgres://`: the same for a fleet that has only Postgres. It may have a password.
    Postgres(Secret),
    /// `sqlite:PATH`: a file that the sidecars of one host share.
    Sqlite(PathBuf),
}

impl StoreUrl {
    /// The kind of store, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            StoreUrl::Memory => "memory",
            StoreUrl::Redis(_) => "redis",
            StoreUrl::Postgres(_) => "postgres",
            StoreUrl::Sqlite(_) => "sqlite",
        }
    }
}

/// When replies are labelled `application/json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediaType {
    /// For clients known to read nothing else.
    #[default]
    Auto,
    /// For all.
    Always,
    /// Never.
    Off,
}

impl MediaType {
    const WORDS: [(&str, MediaType); 3] = [
        ("auto", MediaType::Auto),
        ("always", MediaType::Always),
        ("off", MediaType::Off),
    ];
}

/// A config file, and what is put over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What the command line says over it.
    pub overrides: CommandLine,
}

impl ConfigFile {
    /// The whole text.
    ///
    /// # Errors
    /// It cannot be read, is longer than 1 MiB, is not UTF-8, or is no regular file (reading from a
    /// pipe would wait for ever).
    pub fn read(&self) -> std::io::Result<String> {
        if !std::fs::metadata(&self.path)?.is_file() {
            return Err(std::io::Error::other("it is not a regular file"));
        }
        read_text(&self.path)
    }

    /// The settings that a text of this file means.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(&self, text: &str) -> Result<Settings, Report> {
        let name = self.path.display().to_string();
        file::read(text, &name, &self.overrides)
    }
}

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

impl Settings {
    /// Reads a file, if there is one, and puts the command line over it.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with it.
    pub fn load_with(path: Option<&Path>, overrides: &CommandLine) -> Result<Settings, Report> {
        let Some(path) = path else {
            return file::read("", "command line", overrides);
        };
        let name = path.display().to_string();
        match read_text(path) {
            Ok(text) => file::read(&text, &name, overrides),
            Err(error) => Err(file::unreadable(&name, &error)),
        }
    }

    /// Reads a text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, name: &str) -> Result<Settings, Report> {
        file::read(text, name, &CommandLine::default())
    }
}

/// The whole of a file that may be a config file: a device or a log given by mistake is not read whole.
fn read_text(path: &Path) -> std::io::Result<String> {
    read_whole(std::fs::File::open(path)?)
}

fn read_whole(from: impl Read) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    from.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}

/// The paths of all fields that the reader knows (`fetch.max_wait`), as far as `text` has their
/// tables.
pub fn known_fields(text: &str) -> Vec<String> {
    file::known_fields(text)
}

/// A text that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_printed() {
        let text = "[server]\nupstream = 'http://ojs'\n[upstream]\ntoken = 'hunter2'";
        let settings = Settings::parse(text, "t").unwrap();
        let token = settings.upstream.token.as_ref().unwrap();
        assert_eq!(token.expose(), "hunter2");
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
