//! The settings of the program: TOML, read field by field so that all its problems are
//! shown at once, each under its line. `config.example.toml` documents every field; a line of `settings.rs`
//! makes each.

pub mod budget;
mod certificates;
mod check;
mod choices;
mod command_line;
mod costs;
mod egress;
mod entries;
mod feedback;
mod file;
mod hosts;
mod kinds;
mod listen;
mod load;
mod meaning;
mod mode;
mod origins;
mod policies;
mod queues;
mod settings;
mod shown;
mod tenants;
mod tls;

pub use ojs_store::guard::OnStoreError;
pub use ojs_wire::upstream::{BaseUrl, one_name};

pub use budget::Budget;
pub use certificates::{CertificateFile, RENEW};
pub use check::{Checked, Entries, check};
pub use choices::{LogFormat, MediaType, StoreUrl};
pub use command_line::CommandLine;
pub use egress::{EgressSettings, LEAST_REST};
pub use file::known_fields;
pub use hosts::Hosts;
pub use kinds::digest_of;
pub use listen::{BackendAt, Listen};
pub use load::ConfigFile;
pub use meaning::{FORGETS_SUBQUEUES, of_egress};
pub use ojs_reader::Secret;
pub use ojs_reader::{Colours, Report, Sources};
pub use settings::{
    FetchSettings, HoldSettings, LONGEST_WAIT, MetricsSettings, RepairSettings, SETTINGS,
    ServerSettings, Setting, Settings, SettleSettings, StoreSettings, TakesEffect,
    UpstreamSettings,
};
pub use tls::TlsSettings;
