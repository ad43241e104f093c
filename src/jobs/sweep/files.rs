//! Sidecars on one store tell each other which limits their files set. Each limits by its own file, so while files differ
//! no limit holds as one of them says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::around::WarnedAt;
use crate::desk::causes::{self, Cause};
use crate::desk::process::host;
use crate::desk::{Proxy, Sidecar};
use crate::store::{Change, LedgerExt};

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
}

/// Tells siblings of our file, and people where theirs are others, until it is dropped.
pub(super) async fn compare_files(proxy: &Proxy, files: &SiblingFiles) {
    let sidecar = &proxy.sidecar;
    if !sidecar.store.is_shared() {
        return;
    }
    let (mut edition, mut own) = (None, BTreeMap::new());
    let (mut since, mut warned) = (None, WarnedAt::default());
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
        let lasts = since.is_some_and(|since: Instant| since.elapsed() >= ROLLOUT);
        if lasts && warned.note_due() {
            tracing::warn!(
                id = %"files_differ",
                sidecars = ?found,
                "sidecars on the same store have other limits in their files: each limits what comes through it by its \
                 own; give all of them the same file"
            );
        }
        *sidecar.keeper.evaded.files.lock() = cause(&found);
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
