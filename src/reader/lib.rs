//! A TOML file, or a folder of them, as fields that know where they stand. What is wrong is noted under its line and
//! reading goes on, so that all problems are shown at once. What the fields mean is said by who reads them.

mod document;
mod files;
mod merge;
mod patterns;
mod places;
mod report;
mod secret;
mod sources;
mod table;
mod values;

pub use document::Document;
pub use files::content;
pub use merge::LISTS;
pub use patterns::{Names, QUEUE, TYPE, patterns, texts};
pub use places::{EGRESS, POLICIES, Places, QUEUES, SETTINGS, TENANTS};
pub use report::{Colours, Problem, ProblemSeverity, Report, masked};
pub use secret::Secret;
pub use sources::{SourceKind, SourceText, Sources};
pub use table::{FileReading, FoundField, Reported, Text, TomlTable, kind_of};
