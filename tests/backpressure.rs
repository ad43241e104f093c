//! The backpressure text (`urn:ojs:ext:backpressure`), sentence by sentence, with its examples.

#[path = "sidecar/client.rs"]
mod client;
#[path = "sidecar/listen.rs"]
mod listen;
#[path = "sidecar/pair.rs"]
mod pair;
#[path = "sidecar/mod.rs"]
mod sidecar;

#[path = "backpressure/block.rs"]
mod block;
#[path = "backpressure/bounds.rs"]
mod bounds;
#[path = "backpressure/cost.rs"]
mod cost;
#[path = "backpressure/depth.rs"]
mod depth;
#[path = "backpressure/drop.rs"]
mod drop;
#[path = "backpressure/examples.rs"]
mod examples;
#[path = "backpressure/flat.rs"]
mod flat;
#[path = "backpressure/fleet.rs"]
mod fleet;
#[path = "backpressure/keys.rs"]
mod keys;
#[path = "backpressure/oracle.rs"]
mod oracle;
#[path = "backpressure/rig.rs"]
mod rig;
#[path = "backpressure/settings.rs"]
mod settings;
#[path = "backpressure/several.rs"]
mod several;
#[path = "backpressure/tenants.rs"]
mod tenants;
#[path = "backpressure/told.rs"]
mod told;
#[path = "backpressure/words.rs"]
mod words;
