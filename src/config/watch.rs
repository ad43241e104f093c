//! When a config file may have changed. The folder is watched, not the file: editors put another file in its
//! place, and Kubernetes swaps a link beside it (`..data`). The events only say that something happened;
//! whoever waits for them reads the file and compares.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// The file is read when nothing has happened for this long: a file is often written in steps.
const QUIET: Duration = Duration::from_millis(100);
/// And after this long if something happens all the time, as in a folder with a log.
const MOST: Duration = Duration::from_secs(1);

/// A watch on the folder of a file.
#[derive(Debug)]
pub struct FolderWatch {
    folder: PathBuf,
    watcher: Option<RecommendedWatcher>,
    events: Arc<Notify>,
}

impl FolderWatch {
    /// A watch that sees nothing yet: call [`FolderWatch::open`].
    pub fn new(file: &Path) -> FolderWatch {
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        FolderWatch {
            folder: file.parent().unwrap_or(&file).to_owned(),
            watcher: None,
            events: Arc::default(),
        }
    }

    /// Begins to watch, unless it does already.
    ///
    /// # Errors
    /// The folder is not there, or the system has no watches to give.
    pub fn open(&mut self) -> Result<(), String> {
        if self.watcher.is_some() {
            return Ok(());
        }
        let events = Arc::clone(&self.events);
        let happened = move |event: notify::Result<notify::Event>| {
            // An error may have hidden a change.
            if !event.is_ok_and(|event| only_reads(event.kind)) {
                events.notify_one();
            }
        };
        let watching = notify::recommended_watcher(happened).and_then(|mut watcher| {
            watcher.watch(&self.folder, RecursiveMode::NonRecursive)?;
            Ok(watcher)
        });
        self.watcher = Some(watching.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Ends the watch: another folder may have taken the name, and it has to be opened anew.
    pub fn close(&mut self) {
        self.watcher = None;
    }

    /// Waits at most for `patience` until something happens, and then until it is quiet again. Says whether
    /// anything did.
    pub async fn has_change(&self, patience: Duration) -> bool {
        if timeout(patience, self.events.notified()).await.is_err() {
            return false;
        }
        let last = Instant::now() + MOST;
        let quiet = || (Instant::now() + QUIET).min(last);
        while timeout_at(quiet(), self.events.notified()).await.is_ok() {}
        true
    }
}

/// Whether the file was only read, which whoever follows it does itself.
fn only_reads(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch in whose folder something happens each `every`, so many times.
    async fn busy(every: Duration, times: u32) -> (bool, Duration) {
        let watch = FolderWatch::new(Path::new("/none/such.toml"));
        let events = Arc::clone(&watch.events);
        tokio::spawn(async move {
            for _ in 0..times {
                tokio::time::sleep(every).await;
                events.notify_one();
            }
        });
        let begun = Instant::now();
        let seen = watch.has_change(Duration::from_secs(9)).await;
        (seen, begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_counts_when_it_is_quiet_again() {
        let every = Duration::from_millis(60);
        assert_eq!(busy(every, 3).await, (true, 3 * every + QUIET));
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_is_never_quiet_is_looked_at_all_the_same() {
        let every = Duration::from_millis(10);
        assert_eq!(busy(every, 1_000).await, (true, every + MOST));
    }

    #[tokio::test(start_paused = true)]
    async fn where_nothing_happens_patience_ends() {
        let nothing = busy(Duration::ZERO, 0).await;
        assert_eq!(nothing, (false, Duration::from_secs(9)));
    }

    #[test]
    fn a_folder_that_is_not_there_cannot_be_watched() {
        let mut watch = FolderWatch::new(Path::new("/none/such.toml"));
        assert!(watch.open().is_err() && watch.open().is_err());
    }
}
