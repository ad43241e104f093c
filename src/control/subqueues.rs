//! `/throttle/v1/subqueues`: the queues whose subqueues are read, what lies where, and the end of the reading.

use std::time::Duration;

use http::request::Parts;
use serde_json::{Value, json};

use crate::admit::depth;
use crate::answers::respond::Fault;
use crate::desk::snapshot::Snapshot;
use crate::desk::{Proxy, Sidecar, settings};
use crate::inquiry::stats;
use crate::policy::subqueue::{MOST, MOST_OF_ALL, split};
use crate::show::why::out_of_reach;
use crate::store::LedgerExt;
use crate::subqueues::{ReadQueue, SpreadOfQueue, Writes};

/// So many subqueues of a queue are listed, the worst, where not all are asked for.
const LISTED: usize = 20;

/// All queues whose subqueues are read. The backend is asked for numbers that are missing or old, as far as the time for
/// that allows. With `?all=true` it is asked for all of them, and all that have jobs are listed.
pub(crate) async fn list(proxy: &Proxy, parts: &Parts) -> Result<String, Fault> {
    let wants_all = match parts.uri.query() {
        None => false,
        Some("all=true") => true,
        Some(_) => return Err(Fault::bad_request("only all=true may be asked for")),
    };
    let is_away = proxy.sidecar.tasks.threads.backend_is_away();
    let read = proxy.sidecar.subqueues.read_queues();
    for queue in &read {
        match wants_all {
            _ if is_away => {}
            true => drop(stats::count_subqueues(proxy, &queue.name).await),
            false => stats::refresh_subqueues(proxy, &queue.name, 0).await,
        }
    }
    let most = if wants_all { MOST.into() } else { LISTED };
    let now = Snapshot::of(&proxy.sidecar, Duration::ZERO).await;
    let queues = read.iter();
    let queues: Vec<Value> = queues
        .map(|queue| view(&proxy.sidecar, &now, queue, most))
        .collect();
    let (names, unread) = match is_away {
        true => Default::default(),
        false => depth::unread_subqueues(proxy).await,
    };
    let unread = unread.iter().map(|(name, jobs)| {
        json!({"name": name, "queue": split(name).map(|(base, _)| base), "jobs": jobs})
    });
    let unread: Vec<Value> = unread.collect();
    let all = json!({
        "queues": queues,
        "names": names,
        "most_names": MOST_OF_ALL,
        "unread": unread,
    });
    Ok(all.to_string())
}

/// What is said of one queue: of no more than so many of its subqueues by name.
fn view(sidecar: &Sidecar, now: &Snapshot, queue: &ReadQueue, most: usize) -> Value {
    let name = [settings::SUBQUEUES, &queue.name].concat();
    let here = now.queue(&queue.name);
    let rows = here.subqueues.as_deref().unwrap_or_default();
    let cause = out_of_reach(now, &queue.name);
    json!({
        "queue": &*queue.name,
        "marked": sidecar.store.overrides().setting(&name).is_some(),
        "written": matches!(queue.writes, Writes::Unmarked | Writes::Yes),
        "differs": queue.writes == Writes::Otherwise,
        "subqueues": queue.count,
        "held": now.held.lanes(&queue.name).iter().map(|lane| lane.heads).sum::<usize>(),
        "waiting": here.in_subqueues.total(),
        "untold": here.untold,
        "spread": SpreadOfQueue::of(rows),
        "do": cause.map(|cause| cause.advice),
        "rows": rows.iter().take(most).collect::<Vec<_>>(),
    })
}

/// Takes away the mark of a queue, so that nobody reads its subqueues any more. With `?force=true` also where jobs wait
/// there.
pub(crate) async fn forget(proxy: &Proxy, parts: &Parts, name: &str) -> Result<String, Fault> {
    let sidecar = &proxy.sidecar;
    let queues = sidecar.subqueues.read_queues();
    let Some(queue) = queues.into_iter().find(|queue| *queue.name == *name) else {
        let message = format!("{name:?} has no subqueues that are read");
        return Err(Fault::new("not_found", message)
            .hinting("`ojs-throttle subqueues` lists the queues that have some"));
    };
    if queue.writes != Writes::No {
        let message = format!("the file of this sidecar sends jobs of {name:?} to subqueues");
        return Err(Fault::new("conflict", message)
            .hinting("take `subqueues = true` out of the files of all sidecars first"));
    }
    let waiting = stats::count_subqueues(proxy, name).await;
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
    Ok(json!({ "queue": name }).to_string())
}
