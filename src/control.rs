//! What people set over HTTP: limits of keys and queues (`overrides`, `queue_config`), of tenants (`tenants`), and the
//! verbs of the admin port (`verbs`, `bounds`, `subqueues`). `sent` reads what they send, and `settings` keeps bounds.

mod bounds;
pub(crate) mod overrides;
pub(crate) mod queue_config;
mod sent;
mod settings;
mod subqueues;
pub(crate) mod tenants;
pub(crate) mod verbs;
