//! When a config file may have changed. The folder is watched, not the file: editors put another file in its
//! place, and Kubernetes swaps a link beside it (`..data`). The events only say that something happened;
//! whoever waits for them reads the file and compares.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// The file is read when nothing has happened for this long: a file is often written in steps.
const QUIET: Duration = Duration::from_millis(100);
/// And after this long if something happens all the time, as in a folder with a log.
const LONGEST_STIR: Duration = Duration::from_secs(1);

/// A watch on the folder of a file, or on a folder of files. One that could not be made sees nothing.
#[derive(Debug)]
pub(super) struct FolderWatch {
    _watcher: Option<RecommendedWatcher>,
    events: Arc<Notify>,
}

impl FolderWatch {
    /// Begins to watch. The log says if the folder is not there, or the system has no watches to give.
    pub(super) fn new(file: &Path) -> FolderWatch {
        let events = Arc::<Notify>::default();
        let watcher = watcher(file, Arc::clone(&events)).inspect_err(|error| {
            tracing::warn!(id = %"config_unwatched", %error, "the config's folder cannot be watched; the file is read every 2 s");
        });
        FolderWatch {
            _watcher: watcher.ok(),
            events,
        }
    }

    /// Waits at most for `patience` until something happens, and then until it is quiet again.
    pub(super) async fn change(&self, patience: Duration) {
        if timeout(patience, self.events.notified()).await.is_err() {
            return;
        }
        let last = Instant::now() + LONGEST_STIR;
        let quiet = || (Instant::now() + QUIET).min(last);
        while timeout_at(quiet(), self.events.notified()).await.is_ok() {}
    }
}

/// Notifies `events` of what happens in the folder of the file, or in the folder that it is.
fn watcher(file: &Path, events: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let happened = move |event: notify::Result<notify::Event>| {
        // An error may have hidden a change.
        if !event.is_ok_and(|event| only_reads(event.kind)) {
            events.notify_one();
        }
    };
    let mut watcher = notify::recommended_watcher(happened)?;
    let folder = match file.is_dir() {
        true => &file,
        false => file.parent().unwrap_or(&file),
    };
    watcher.watch(folder, RecursiveMode::NonRecursive)?;
    Ok(watcher)
}

/// Whether the file was only read, which whoever follows it does itself.
fn only_reads(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long a watch waits in whose folder something happens each `every`, so many times.
    async fn busy(every: Duration, times: u32) -> Duration {
        let watch = FolderWatch::new(Path::new("/none/such.toml"));
        let events = Arc::clone(&watch.events);
        tokio::spawn(async move {
            for _ in 0..times {
                tokio::time::sleep(every).await;
                events.notify_one();
            }
        });
        let begun = Instant::now();
        watch.change(Duration::from_secs(9)).await;
        begun.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_counts_when_it_is_quiet_again() {
        let every = Duration::from_millis(60);
        assert_eq!(busy(every, 3).await, 3 * every + QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_is_never_quiet_is_looked_at_all_the_same() {
        let every = Duration::from_millis(10);
        assert_eq!(busy(every, 1_000).await, every + LONGEST_STIR);
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_happens_patience_ends() {
        assert_eq!(busy(Duration::ZERO, 0).await, Duration::from_secs(9));
    }

    #[test]
    fn a_folder_that_is_not_there_cannot_be_watched() {
        assert!(watcher(Path::new("/none/such.toml"), Arc::default()).is_err());
    }
}
