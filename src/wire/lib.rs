//! What goes over the wire to the backend: calls to it, bodies, the names that OJS gives to paths and headers, and the
//! spans that a request's waits are told by.

pub mod boxed;
#[cfg(test)]
#[path = "../../tests/harness/lines.rs"]
pub mod lines;
pub mod ojs;
pub mod tick;
pub mod traces;
pub mod upstream;
