//! The rate-limiting text (`urn:ojs:ext:rate-limiting`), sentence by sentence, where the official
//! cases do not look: they accept any FETCH that answers 200.

#[path = "sidecar/client.rs"]
mod client;
#[path = "sidecar/listen.rs"]
mod listen;
#[path = "sidecar/pair.rs"]
mod pair;
#[path = "sidecar/mod.rs"]
mod sidecar;

#[path = "rate_limiting/actions.rs"]
mod actions;
#[path = "rate_limiting/admin.rs"]
mod admin;
#[path = "rate_limiting/enqueue.rs"]
mod enqueue;
#[path = "rate_limiting/events.rs"]
mod events;
#[path = "rate_limiting/examples.rs"]
mod examples;
#[path = "rate_limiting/flat.rs"]
mod flat;
#[path = "rate_limiting/gated.rs"]
mod gated;
#[path = "rate_limiting/input.rs"]
mod input;
#[path = "rate_limiting/large.rs"]
mod large;
#[path = "rate_limiting/learning.rs"]
mod learning;
#[path = "rate_limiting/limits.rs"]
mod limits;
#[path = "rate_limiting/lookahead.rs"]
mod lookahead;
#[path = "rate_limiting/metrics.rs"]
mod metrics;
#[path = "rate_limiting/overrides.rs"]
mod overrides;
#[path = "rate_limiting/queue_limits.rs"]
mod queue_limits;
#[path = "rate_limiting/required.rs"]
mod required;
#[path = "rate_limiting/rig.rs"]
mod rig;
#[path = "rate_limiting/seen.rs"]
mod seen;
#[path = "rate_limiting/spellings.rs"]
mod spellings;
#[path = "rate_limiting/strangers.rs"]
mod strangers;
#[path = "rate_limiting/surface.rs"]
mod surface;
#[path = "rate_limiting/templates.rs"]
mod templates;
#[path = "rate_limiting/upstream.rs"]
mod upstream;
#[path = "rate_limiting/waiting.rs"]
mod waiting;
#[path = "rate_limiting/workglow.rs"]
mod workglow;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, sim};

use client::Client;
use pair::Pair;

/// A backend with a sidecar before it in a simulated network, and a client of the sidecar.
async fn simulated(lax: Lax, config: &str) -> (Pair, Client) {
    let net = Net::Sim(sim::Network::default());
    let pair = Pair::start(net.clone(), lax, 7, config).await;
    let client = Client::new(&net, pair.sidecar.addr);
    (pair, client)
}
