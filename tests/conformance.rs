//! The official OJS conformance cases, judged by the rules of the official runner.

mod judge;
mod on_official;
mod runner;
