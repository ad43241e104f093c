//! What a request is answered with: bodies, faults with their codes, the headers of our own answers, and what streams
//! through. The listener and the sidecar both speak by it, and it knows neither.

pub mod body;
pub mod load;
pub mod packed;
pub mod pass;
pub mod respond;
