//! The rate-limiting text (`urn:ojs:ext:rate-limiting`), sentence by sentence, where the official
//! cases do not look: they accept any FETCH that answers 200.

mod actions;
mod admin;
mod enqueue;
mod events;
mod examples;
mod flat;
mod gated;
mod input;
mod large;
mod learning;
mod limits;
mod lookahead;
mod metrics;
mod overrides;
mod queue_limits;
mod required;
mod rig;
mod seen;
mod spellings;
mod strangers;
mod surface;
mod templates;
mod upstream;
mod waiting;
mod workglow;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, sim};

use crate::sidecar::client::Client;
use crate::sidecar::pair::Pair;

/// A backend with a sidecar before it in a simulated network, and a client of the sidecar.
async fn simulated(lax: Lax, config: &str) -> (Pair, Client) {
    let net = Net::Sim(sim::Network::default());
    let pair = Pair::start(net.clone(), lax, 7, config).await;
    let client = Client::new(&net, pair.sidecar.addr);
    (pair, client)
}
