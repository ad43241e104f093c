//! `/throttle/v1/subqueues`: the queues whose subqueues are read, how much waits there, and the end of the reading.

use http::request::Parts;

use super::settings;
use crate::json::quote;
use crate::proxy::depth;
use crate::proxy::respond::Fault;
use crate::proxy::subqueues::{ReadQueue, Writes};
use crate::proxy::{Proxy, Sidecar};
use crate::store::LedgerExt;

/// All queues whose subqueues are read.
pub(super) async fn list(proxy: &Proxy) -> String {
    let mut shown = Vec::new();
    for queue in proxy.sidecar.subqueues.read_queues() {
        let waiting = depth::count_subqueues(proxy, &queue.name).await;
        shown.push(view(&proxy.sidecar, &queue, waiting));
    }
    format!(r#"{{"queues":[{}]}}"#, shown.join(","))
}

/// `waiting`: as the backend says; `None`: it did not say.
fn view(sidecar: &Sidecar, queue: &ReadQueue, waiting: Option<u64>) -> String {
    let name = [settings::SUBQUEUES, &queue.name].concat();
    format!(
        r#"{{"queue":{},"marked":{},"written":{},"differs":{},"subqueues":{},"seen":{},"held":{},"waiting":{}}}"#,
        quote(&queue.name),
        sidecar.store.overrides().setting(&name).is_some(),
        matches!(queue.writes, Writes::Unmarked | Writes::Yes),
        queue.writes == Writes::Otherwise,
        queue.count,
        queue.seen,
        sidecar.hold.heads(&queue.name),
        waiting.map_or("null".to_owned(), |waiting| waiting.to_string())
    )
}

/// Takes away the mark of a queue, so that nobody reads its subqueues any more. With `?force=true` also where jobs wait
/// there.
pub(super) async fn forget(proxy: &Proxy, parts: &Parts, name: &str) -> Result<String, Fault> {
    let sidecar = &proxy.sidecar;
    let queues = sidecar.subqueues.read_queues();
    let Some(queue) = queues.into_iter().find(|queue| *queue.name == *name) else {
        let fault = Fault::new(
            "not_found",
            format!("{name:?} has no subqueues that are read"),
        );
        return Err(fault.hinting("`ojs-throttle subqueues` lists the queues that have some"));
    };
    if queue.writes != Writes::No {
        let message = format!("the file of this sidecar sends jobs of {name:?} to subqueues");
        return Err(Fault::new("conflict", message)
            .hinting("take `subqueues = true` out of the files of all sidecars first"));
    }
    let waiting = depth::count_subqueues(proxy, name).await;
    let held = sidecar.hold.heads(name);
    let is_empty = waiting == Some(0) && held == 0;
    if !is_empty && parts.uri.query() != Some("force=true") {
        let known = waiting.map_or("an unknown number of".to_owned(), |jobs| jobs.to_string());
        let message = format!(
            "{known} jobs wait in subqueues of {name:?}, and {held} that were claimed from there are held"
        );
        return Err(Fault::new("conflict", message).hinting(
            "let workers ask until none is left; `--force` leaves them there, until a sidecar that starts finds them",
        ));
    }
    settings::put_setting(sidecar, settings::SUBQUEUES, name, None).await?;
    Ok(view(sidecar, &queue, waiting))
}
