//! The official OJS conformance cases, judged by the rules of the official runner.

mod judge;
pub mod on_official;
pub mod runner;
