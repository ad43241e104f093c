//! The settings of the program: one TOML file, read field by field so that all its problems are
//! shown at once, each under its line. `config.example.toml` documents every field.

mod base_url;
mod bounds;
mod check;
mod diff;
mod feedback;
mod file;
mod limits;
mod listen;
mod patterns;
mod policies;
mod queues;
mod reader;
mod report;
mod values;
mod watch;

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use crate::store::guard::{Declared, OnStoreError};
pub use crate::store::reserved::Policies;

use crate::policy::PolicySet;
use crate::pressure::FileBounds;

pub use base_url::BaseUrl;
pub use check::{Checked, Entries, check};
pub use diff::{Changes, Diff};
pub use listen::Listen;
pub use report::Report;
pub use watch::{QUIET, Seen, Watch};

/// The longest that an answer may be kept back: the SDKs give up after 30 s.
pub const LONGEST_WAIT: Duration = Duration::from_secs(25);

/// The largest config file, in bytes: some ten thousand policies.
const LONGEST_FILE: u64 = 1 << 20;

const UPSTREAM_TIMEOUT: Duration = Duration::from_secs(30);
const STORE_TIMEOUT: Duration = Duration::from_millis(250);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything, ready to run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Listeners and their bounds.
    pub server: Server,
    /// How the backend is reached and what is known of it.
    pub upstream: Upstream,
    /// Where usage is kept.
    pub store: StoreSettings,
    /// How long a FETCH may take on our account.
    pub fetch: Fetch,
    /// Claimed jobs that wait.
    pub hold: Hold,
    /// ACK and nack.
    pub settle: Settle,
    /// What is mended between SDKs and backends.
    pub repairs: Repairs,
    /// What is measured.
    pub metrics: Metrics,
    /// `[[policy]]`, `[[queue]]` and `[job_policies]`.
    pub policies: Arc<PolicySet>,
    /// The bounds of `[[queue]]`.
    pub bounds: Arc<FileBounds>,
    /// What is doubtful in the file but no reason to stop.
    pub warnings: Report,
}

/// `[server]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Server {
    /// Where SDKs connect.
    pub listen: SocketAddr,
    /// Where metrics, health and control are.
    pub admin_listen: SocketAddr,
    /// Threads, each with its own listener and connections.
    pub threads: usize,
    /// The longest that a stop waits for limited jobs that are out.
    pub drain_timeout: Duration,
    /// The least that a stop goes on serving, whatever is out; at most `drain_timeout`.
    pub drain_min: Duration,
    /// The largest body that is read whole, in bytes; beyond it 413.
    pub max_body: usize,
    /// Connections at once, of each thread.
    pub max_connections: usize,
    /// Requests at once, of each thread; beyond it 503.
    pub max_in_flight: usize,
    /// From the first byte of a request to the end of its head.
    pub header_timeout: Duration,
    /// How long an idle connection is kept; longer than SDKs keep theirs, so that they close first.
    pub idle_timeout: Duration,
    /// From the head of a request to the end of its body.
    pub body_timeout: Duration,
    /// The bearer token with which limits may be changed on a listener that others reach.
    pub control_token: Option<Secret>,
    /// Whether `X-OJS-Tenant` says which tenant a FETCH or an enqueue is for.
    pub trust_tenant_header: bool,
    /// How log lines look.
    pub log: LogFormat,
    /// Which log lines there are.
    pub log_level: tracing::Level,
}

/// How log lines look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// `[upstream]`, and the `upstream` and timeouts of `[server]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upstream {
    /// The backend.
    pub url: BaseUrl,
    /// From the first byte sent to the last byte read, of calls whose reply is read whole.
    pub timeout: Duration,
    /// To make a connection, TLS included.
    pub connect_timeout: Duration,
    /// The bearer token of the sidecar's own calls.
    pub token: Option<Secret>,
    /// Roots to trust beside the system's, in PEM.
    pub ca_file: Option<PathBuf>,
    /// Whether a nack with `requeue` leaves the job as it was (`requeue`); else it costs an attempt, or is
    /// ignored. `None`: as the backend is known, else not.
    pub requeue_harmless: Option<bool>,
    /// Whether handing a job out counts as an attempt; else its end does (`claims_count`). `None`: as the
    /// first claimed job shows.
    pub claims_count: Option<bool>,
    /// Whether any heartbeat of the worker id that claimed a job keeps its claim alive; else one that names
    /// the job (`liveness`). `None`: as the backend is known, else not.
    pub worker_liveness: Option<bool>,
    /// Whether a heartbeat's visibility counts from the start of the job; else from the heartbeat
    /// (`heartbeat`). `None`: as the backend is known, else not.
    pub heartbeat_from_start: Option<bool>,
}

/// `[store]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreSettings {
    /// Where usage is kept.
    pub url: StoreUrl,
    /// Sidecars with the same one on the same store share their budgets.
    pub namespace: String,
    /// The longest that a call may take.
    pub timeout: Duration,
    /// What happens while the store is lost.
    pub on_store_error: OnStoreError,
    /// The same for single policies.
    pub by_policy: Declared,
    /// The policies whose start times are reserved ahead (`sync = "reserved"`).
    pub reserved: Policies,
    /// The PEM file of the roots to trust in place of the system's.
    pub ca_file: Option<PathBuf>,
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

impl Default for StoreSettings {
    fn default() -> StoreSettings {
        StoreSettings {
            url: StoreUrl::Memory,
            namespace: "ojs-throttle".to_owned(),
            timeout: STORE_TIMEOUT,
            on_store_error: OnStoreError::default(),
            by_policy: Declared::new(),
            reserved: Policies::new(),
            ca_file: None,
        }
    }
}

/// `[fetch]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// How long an empty FETCH may wait for a start.
    pub max_wait: Duration,
    /// How long one FETCH may go on claiming.
    pub claim_budget: Duration,
}

/// `[hold]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// After how long without a FETCH for its queue a held job is offered or given back.
    pub idle: Duration,
    /// The most held jobs, beside a quarter more for queues that find it full; `None`: 1024, or 32 where claims
    /// count as attempts.
    pub max: Option<usize>,
    /// The most bytes of held jobs, and a quarter more likewise.
    pub max_bytes: usize,
}

/// `[settle]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settle {
    /// How long an ACK or nack is tried again.
    pub retry_for: Duration,
}

/// `[repairs]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repairs {
    /// A heartbeat with a number in `active_jobs` gets its list of ids there.
    pub heartbeat_active_jobs: bool,
    /// Over-encoded queue names in paths go upstream plain.
    pub queue_paths: bool,
    /// `job` and `jobs` of a FETCH reply say the same.
    pub job_and_jobs: bool,
    /// Replies as `application/json`.
    pub media_type: MediaType,
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

/// `[metrics]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metrics {
    /// How many keys have series of their own.
    pub top_keys: usize,
}

/// A config file, and what is put over it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// What the command line says over it.
    pub overrides: Overrides,
}

impl File {
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
        let env = |name: &str| std::env::var(name).ok();
        let name = self.path.display().to_string();
        file::read(text, &name, &self.overrides, &env)
    }
}

/// What the command line says over the file, and what a command has instead of a default.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overrides {
    /// In place of `server.listen`.
    pub listen: Option<SocketAddr>,
    /// In place of `server.admin_listen`.
    pub admin_listen: Option<SocketAddr>,
    /// In place of `server.upstream`.
    pub upstream: Option<BaseUrl>,
    /// Where the file has no `server.drain_min`; the file wins.
    pub drain_min: Option<Duration>,
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Settings, Report> {
        Settings::load_with(Some(path), &Overrides::default())
    }

    /// Reads a file, if there is one, and puts the command line over it.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn load_with(path: Option<&Path>, overrides: &Overrides) -> Result<Settings, Report> {
        let env = |name: &str| std::env::var(name).ok();
        let Some(path) = path else {
            return file::read("", "command line", overrides, &env);
        };
        let name = path.display().to_string();
        match read_text(path) {
            Ok(text) => file::read(&text, &name, overrides, &env),
            Err(error) => Err(file::unreadable(&name, &error)),
        }
    }

    /// Reads a text; `name` stands for the file in messages.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, name: &str) -> Result<Settings, Report> {
        file::read(text, name, &Overrides::default(), &|variable| {
            std::env::var(variable).ok()
        })
    }
}

/// The whole of a file that may be a config file: a device or a log given by mistake is not read whole.
fn read_text(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes)?;
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

impl Default for Server {
    fn default() -> Server {
        Server {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin_listen: SocketAddr::from(([127, 0, 0, 1], 9091)),
            threads: 1,
            drain_timeout: Duration::from_secs(25),
            drain_min: Duration::from_secs(5),
            max_body: 8 << 20,
            max_connections: 10_000,
            max_in_flight: 1_024,
            header_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(125),
            body_timeout: Duration::from_secs(10),
            control_token: None,
            trust_tenant_header: false,
            log: LogFormat::Human,
            log_level: tracing::Level::INFO,
        }
    }
}

impl Default for Fetch {
    fn default() -> Fetch {
        Fetch {
            max_wait: Duration::from_millis(500),
            claim_budget: Duration::from_millis(200),
        }
    }
}

impl Default for Hold {
    fn default() -> Hold {
        Hold {
            idle: Duration::from_secs(10),
            max: None,
            max_bytes: 64 << 20,
        }
    }
}

impl Default for Settle {
    fn default() -> Settle {
        Settle {
            retry_for: Duration::from_secs(10),
        }
    }
}

impl Default for Repairs {
    fn default() -> Repairs {
        Repairs {
            heartbeat_active_jobs: true,
            queue_paths: true,
            job_and_jobs: true,
            media_type: MediaType::Auto,
        }
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics { top_keys: 50 }
    }
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
