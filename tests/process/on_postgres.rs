//! Sidecars on a Postgres of the test's own.

mod doctor;
mod fleet;
mod on_pgbouncer;
mod shadow;
