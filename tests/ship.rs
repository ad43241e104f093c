//! The ready-made files of `src/ship`: what is in them is so, and the programs that they are for take them.

pub mod files;
mod load;
mod on_prometheus;
mod on_systemd;
mod on_validators;
mod queries;
