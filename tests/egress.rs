//! Calls of workers, under the keys of their jobs; judged from the vendor's record.

mod bare;
mod budgets;
mod crowd;
mod dear;
mod failures;
mod fair;
mod given_up;
mod gone;
mod hosts;
mod keys;
mod loops;
mod on_redis;
mod passes;
mod places;
mod redirects;
mod retries;
mod secured;
mod seen;
mod shadow;
mod shares;
mod signals;
mod stand_in;
mod streams;
mod vendors;
mod waits;
mod whole_urls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ojs_throttle::backend::Lax;
use ojs_throttle::net::{Net, Stream, sim};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::harness::EARLY;
use crate::servers::vendor::{Answer, Answers, Vendor, VendorCall};
use crate::sidecar::BoxFuture;
use crate::sidecar::client::Client;
use crate::sidecar::simulated::Pair;

/// What most of these tests use.
mod prelude {
    pub use std::time::Duration;

    pub use serde_json::json;
    pub use tokio::time::{Instant, sleep};

    pub use super::{World, fine, millis, raw, ring, spans, status};
    pub use crate::servers::vendor::{Answer, FOREVER, Stops, Vendor};
    pub use crate::sidecar::client::{Client, id};
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A vendor, a backend, and a sidecar that is before both, most of them in a simulated network.
pub struct World {
    pub net: Net,
    pub vendor: Arc<Vendor>,
    pub pair: Pair,
    /// By the way out.
    pub caller: Client,
}

impl World {
    /// `policies` stand before the entry, to which `egress` is added.
    pub fn start<'a>(
        policies: &'a str,
        egress: &'a str,
        answers: impl Fn(&VendorCall) -> Answer + Send + Sync + 'static,
    ) -> BoxFuture<'a, World> {
        let net = Net::Sim(sim::Network::default());
        World::within(net, policies, egress, answers)
    }

    /// In this network.
    pub fn within<'a>(
        net: Net,
        policies: &'a str,
        egress: &'a str,
        answers: impl Fn(&VendorCall) -> Answer + Send + Sync + 'static,
    ) -> BoxFuture<'a, World> {
        Box::pin(World::before(net, policies, egress, Arc::new(answers)))
    }

    async fn before(net: Net, policies: &str, egress: &str, answers: Arc<Answers>) -> World {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let vendor = Arc::new(Vendor::in_runtime(&net, any, answers).await);
        let config = format!("{policies}\n{}", entry(vendor.addr, egress));
        let pair = Pair::start(net.clone(), Lax::redis(), &config).await;
        let caller = pair.sidecar.caller();
        World {
            net,
            vendor,
            pair,
            caller,
        }
    }

    /// Calls `path` so often, one after the other, and gives the statuses.
    pub async fn statuses(&self, path: &str, times: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..times {
            statuses.push(self.caller.get(path).await.status);
        }
        statuses
    }

    /// A call of `path` that goes on beside the test; its status.
    pub fn begins(&self, path: &str) -> JoinHandle<u16> {
        let (caller, path) = (self.caller.clone(), path.to_owned());
        tokio::spawn(async move { caller.get(&path).await.status })
    }

    /// Sends this text by the way out, and gives all that comes back until the connection ends.
    pub async fn raw(&self, text: &str) -> String {
        raw(&self.net, self.caller.addr, text).await
    }

    /// A caller that has sent this text by the way out.
    pub async fn ring(&self, text: &str) -> Stream {
        ring(&self.net, self.caller.addr, text).await
    }
}

/// A vendor that is well.
pub fn fine(_: &VendorCall) -> Answer {
    Answer::ok()
}

/// The status of a reply that came as text.
pub fn status(reply: &str) -> &str {
    reply.get(9..12).unwrap_or_default()
}

/// A way out to this vendor.
pub fn entry(vendor: SocketAddr, more: &str) -> String {
    let listen = match more.contains("listen =") {
        true => "",
        false => "  listen = '127.0.0.1:0'\n",
    };
    format!("[[egress]]\nname = 'out'\n{listen}upstream = 'http://{vendor}'\n{more}\n")
}

/// A connection on which this text was sent.
pub async fn ring(net: &Net, to: SocketAddr, text: impl AsRef<[u8]>) -> Stream {
    let mut stream = net.connect("127.0.0.1", to.port()).await.unwrap();
    stream.write_all(text.as_ref()).await.unwrap();
    stream
}

/// Sends this text, and gives all that comes back until the connection ends.
pub async fn raw(net: &Net, to: SocketAddr, text: &str) -> String {
    let mut stream = ring(net, to, text).await;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await.unwrap();
    String::from_utf8(reply).unwrap()
}

/// Fails where any n + 1 of these follow each other in less than n steps, but for what a start may be early.
pub fn spans(times: &[Instant], step: Duration) {
    let mut times = times.to_vec();
    times.sort_unstable();
    for (first, begun) in times.iter().enumerate() {
        for (n, at) in times[first..].iter().enumerate() {
            let least = (step * u32::try_from(n).unwrap()).saturating_sub(EARLY);
            assert!(
                *at - *begun >= least,
                "{n} steps from the {first}th in {:?}",
                *at - *begun
            );
        }
    }
}
