//! What the sidecar's unit tests share with the integration tests.

#[path = "harness/claims.rs"]
pub mod claims;
#[path = "faulty.rs"]
pub mod faulty;
#[path = "harness/held.rs"]
pub mod held;
#[path = "harness/lines.rs"]
pub mod lines;

use ojs_backend::{Backend, Lax};
use ojs_net::sim::Network;
use ojs_net::{Listener, Net};
use tokio_util::sync::CancellationToken;

/// A network with an empty backend at 127.0.0.1:1.
pub fn backend() -> Net {
    let network = Network::default();
    let listener = network.bind("127.0.0.1:1".parse().unwrap()).unwrap();
    let serving =
        Backend::new(Lax::spec(), 1).serve(Listener::Sim(listener), CancellationToken::new());
    tokio::spawn(serving);
    Net::Sim(network)
}
