//! The backpressure text (`urn:ojs:ext:backpressure`), sentence by sentence, with its examples.

mod block;
mod bounds;
mod cost;
mod depth;
mod drop;
mod examples;
mod flat;
mod fleet;
mod keys;
mod oracle;
mod rig;
mod settings;
mod several;
mod tenants;
mod told;
mod words;
