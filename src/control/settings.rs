//! Settings of queues and tenants that are made over HTTP, on either port.

use crate::answers::respond::Fault;
use crate::bounds::{Given, OverflowStrategy};
use crate::desk::outlive::to_the_end;
use crate::desk::{Proxy, Sidecar, settings};

/// Makes a setting or takes it away, to the end: the store may have it already when its client hangs up.
pub(super) async fn put_setting(
    proxy: &Proxy,
    of: &'static str,
    name: &str,
    text: Option<String>,
) -> Result<bool, Fault> {
    let (own, name) = (proxy.clone(), name.to_owned());
    let work = async move { settings::put_setting(&own.sidecar, of, &name, text).await };
    to_the_end(&proxy.sidecar.tasks.left, Box::pin(work)).await
}

/// Refuses what no queue with subqueues can have.
pub(super) fn may_have(sidecar: &Sidecar, queue: &str, given: &Given) -> Result<(), Fault> {
    let has_some = || sidecar.live().policies.subqueues().contains_key(queue);
    match given.strategy == Some(OverflowStrategy::DropOldest) && has_some() {
        true => {
            let message = "cannot be \"drop_oldest\": the queue has subqueues, and nobody can say \
                           which of their jobs is the oldest";
            Err(Fault::field("backpressure.strategy", message))
        }
        false => Ok(()),
    }
}
