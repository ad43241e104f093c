//! Sidecars on one store tell each other which limits their files set. Each limits by its own file, so while files differ
//! no limit holds as one of them says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::around::WarnedAt;
use crate::desk::process::host;
use crate::desk::{Proxy, Sidecar};
use crate::store::{Change, LedgerExt};
use crate::told::causes::{self, Cause};

/// How often a sidecar says what its file sets, and for how long that counts.
const EVERY: Duration = Duration::from_secs(5);
const COUNTS: Duration = Duration::from_secs(12);
/// A rollout changes one file after another. What differs for so long is told in the log.
const ROLLOUT: Duration = Duration::from_secs(60);
/// So many sidecars are named.
const NAMED: usize = 5;

/// What a sidecar says of its file: a fingerprint of the limits of jobs, and of each way out.
#[derive(Serialize, Deserialize, Debug)]
struct FileLimits {
    by: Box<str>,
    limits: BTreeMap<String, String>,
}

/// What siblings said last of their files.
#[derive(Default, Debug)]
pub(in crate::jobs) struct SiblingFiles(Mutex<BTreeMap<Box<str>, Heard>>);

#[derive(Debug)]
struct Heard {
    at: Instant,
    limits: BTreeMap<String, String>,
}

impl SiblingFiles {
    /// A sibling said this.
    pub(in crate::jobs) fn hear(&self, said: &str) {
        // A version that is not known may say it in another way.
        if let Ok(FileLimits { by, limits }) = serde_json::from_str(said) {
            let at = Instant::now();
            self.0.lock().insert(by, Heard { at, limits });
        }
    }

    /// Who of those that live sets other limits than `own` under a name that both have, and which.
    fn differing(&self, own: &BTreeMap<String, String>) -> BTreeMap<Box<str>, String> {
        let mut heard = self.0.lock();
        heard.retain(|_, one| one.at.elapsed() < COUNTS);
        let each = heard.iter().filter_map(|(by, one)| {
            let theirs = one.limits.iter();
            let others =
                theirs.filter(|(name, limits)| own.get(*name).is_some_and(|o| o != *limits));
            let names: Vec<&str> = others.map(|(name, _)| &**name).collect();
            (!names.is_empty()).then(|| (by.clone(), names.join(", ")))
        });
        each.collect()
    }

    /// Whether one of those that live has this worker id.
    fn have(&self, id: &str) -> bool {
        let heard = self.0.lock();
        let mut living = heard.iter().filter(|(_, one)| one.at.elapsed() < COUNTS);
        living.any(|(by, _)| by.split(" on ").next() == Some(id))
    }
}

/// Tells siblings of our file, and people where theirs are others or one has our worker id, until it is dropped.
pub(super) async fn compare_files(proxy: &Proxy, files: &SiblingFiles) {
    let sidecar = &proxy.sidecar;
    if !sidecar.store.is_shared() {
        return;
    }
    let (mut edition, mut own) = (None, BTreeMap::new());
    let (mut since, mut warned) = (None, WarnedAt::default());
    let (mut twin_since, mut warned_of_twin) = (None, WarnedAt::default());
    let lasts = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= ROLLOUT);
    loop {
        let now = Some(sidecar.live().edition);
        if edition != now {
            (edition, own) = (now, sidecar.config().limits_told());
        }
        if sidecar.store.siblings() > 0 {
            tell(sidecar, &own).await;
        }
        let found = files.differing(&own);
        (sidecar.metrics).set("ojs_throttle_other_files", &[], found.len());
        since = (!found.is_empty()).then(|| since.unwrap_or_else(Instant::now));
        if lasts(since) && warned.note_due() {
            tracing::warn!(
                id = %"files_differ",
                sidecars = ?found,
                "sidecars on the same store have other limits in their files: each limits what comes through it by its \
                 own; give all of them the same file"
            );
        }
        *sidecar.keeper.evaded.files.lock() = cause(&found);
        let id = &*sidecar.fetching.worker_id;
        // A restart keeps it.
        twin_since = files
            .have(id)
            .then(|| twin_since.unwrap_or_else(Instant::now));
        if lasts(twin_since) && warned_of_twin.note_due() {
            tracing::warn!(
                id = %"worker_id_twice",
                worker_id = id,
                "two sidecars have one upstream.worker_id: each must have its own"
            );
        }
        sleep(EVERY).await;
    }
}

/// Nothing is kept of it: who does not hear it hears the next one.
async fn tell(sidecar: &Sidecar, own: &BTreeMap<String, String>) {
    let id = &sidecar.fetching.worker_id;
    let said = FileLimits {
        by: match host().filter(|host| !id.contains(host.as_str())) {
            Some(host) => format!("{id} on {host}").into(),
            None => Box::from(&**id),
        },
        limits: own.clone(),
    };
    // Texts always become JSON.
    let moved = serde_json::to_string(&said).unwrap_or_default().into();
    let queue = Arc::from("");
    drop(sidecar.store.set(Change::Moved { queue, moved }).await);
}

fn cause(found: &BTreeMap<Box<str>, String>) -> Option<Cause> {
    let named = found.iter().take(NAMED);
    let mut each: Vec<_> = named
        .map(|(by, what)| format!("{by} (of {what})"))
        .collect();
    each.extend((found.len() > NAMED).then(|| "others".to_owned()));
    let known = each.join(", ");
    (!found.is_empty()).then(|| Cause::new(&causes::FILES_DIFFER, &[("sidecars", &known)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equipment::lines::Lines;
    use crate::store::Store;
    use crate::store::guard::{Guard, OnStoreError};
    use crate::store::memory::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn a_second_sidecar_of_our_worker_id_is_told_of_once_it_is_no_restart() {
        let (lines, _guard) = Lines::listen();
        let inner = Arc::new(MemoryStore::new(1_000_000));
        let guard = Guard::new(inner, OnStoreError::Share);
        let proxy = Proxy::on(Store::shared(Arc::new(guard)));
        let (files, id) = (SiblingFiles::default(), &proxy.sidecar.fetching.worker_id);
        let lives = async |by: String| {
            for _ in 0..11 {
                files.hear(&format!(r#"{{"by":"{by}","limits":{{}}}}"#));
                tokio::time::sleep(EVERY).await;
            }
            lines.with("id=worker_id_twice").len()
        };
        let happens = async {
            assert_eq!(lives(format!("{id}2 on a")).await, 0, "another");
            assert_eq!(lives(format!("{id} on b")).await, 0, "maybe a restart");
            assert_eq!(lives(id.to_string()).await, 1);
            assert_eq!(lives(id.to_string()).await, 1, "once");
        };
        tokio::select! {
            () = compare_files(&proxy, &files) => panic!("it ended"),
            () = happens => {}
        }
    }
}
