//! Bytes that nobody would send, at whole sidecars: requests, bodies, answers, config files. Nothing may panic, each
//! request gets one answer, the backend sees only what a client may have meant, and afterwards all is as before.
//!
//! Each test runs for 5 s, at night for a minute, and for as long as `FUZZ_SECONDS` says. A failure prints `FUZZ_SEED` and
//! `FUZZ_CASE`, with which that case alone runs again. By day the seed is the same each time, at night it is another one.

mod bodies;
mod config;
mod framing;
mod on_official;
mod reading;
mod rig;
mod templates;
mod vendors;
