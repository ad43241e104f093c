//! `ojs-throttle doctor` checks the store, the backend and the services of ways out: whether they are as they must be,
//! what they can do, and what to do about a problem. It tells what keeps the jobs of the sidecar that runs, if one
//! does. It changes nothing: where a store has data of ours, it writes what is there once more. With `--probe` it runs
//! a few jobs through a queue of its own, and makes the store's data if there are none.

mod backend;
mod diagnosis;
mod egress;
mod examine;
mod probe;
mod sidecar;
mod store;
mod surroundings;

pub use diagnosis::{Diagnosis, Evidence, Finding, Severity};
pub use examine::examine;
pub use surroundings::DoctorEnv;
