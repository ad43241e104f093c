//! What is done with a request, by operation.

pub mod body;
pub mod pass;
pub mod respond;
