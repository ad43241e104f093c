//! When a file may have changed. The folders are watched, not the file: editors put another file in its
//! place, and Kubernetes swaps a link beside it (`..data`). What happened there is not believed, only
//! that something did: whoever asked reads the file and compares. But who writes into the file has it open,
//! and until it is closed there may be half of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher, WatcherKind};
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::Instant;

/// A change is looked at when it has been quiet for this long: a file is often written in steps.
pub const QUIET: Duration = Duration::from_millis(50);
/// And after this long if it never is.
const MOST: Duration = Duration::from_millis(200);

/// The most links that one path may go through, as systems have it.
const LINKS: usize = 40;
/// Changes that wait to be looked at. One would do: any more say the same.
const WAITING: usize = 16;

/// What a watch has to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Something changed, and it has been quiet since.
    Change,
    /// Something changes, and it was not quiet for as long as is waited: what is there may be half written.
    Busy,
    /// It sees nothing any more. Until [`Watch::renew`] brings it back only looking helps.
    Blind(String),
}

/// Watches the folders that decide what a path leads to.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    /// Each with which folder it was: another one may take its name.
    folders: BTreeMap<PathBuf, (u64, u64)>,
    watcher: Option<RecommendedWatcher>,
    events: Receiver<Event>,
    writing: Arc<Mutex<Writing>>,
}

/// Whether the file is open and half written, for all that was seen.
#[derive(Debug, Default)]
struct Writing {
    /// The file's name where it lies. One folder may be watched under several names, so this is all of its
    /// path that events are sure to have.
    file: Option<OsString>,
    /// It was written into, and not closed nor replaced since.
    open: bool,
}

impl Writing {
    fn note(&mut self, event: &notify::Event) {
        // Events were lost, that of a close perhaps.
        if event.need_rescan() {
            self.open = false;
        }
        // `Both` comes beside the two halves of a rename.
        let file = event.paths.last().and_then(|path| path.file_name());
        if file.is_none() || file != self.file.as_deref() {
            return;
        }
        match event.kind {
            EventKind::Modify(ModifyKind::Metadata(_)) => {}
            // Other systems do not say when a file is closed.
            EventKind::Modify(ModifyKind::Data(_)) => {
                self.open = RecommendedWatcher::kind() == WatcherKind::Inotify;
            }
            _ => self.open = false,
        }
    }
}

/// What the system's watcher says.
#[derive(Debug)]
enum Event {
    Change,
    Broken(String),
}

impl Watch {
    /// A watch on nothing yet: call [`Watch::renew`].
    pub fn new(path: &Path) -> Watch {
        let (_, events) = mpsc::channel(1);
        Watch {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            folders: BTreeMap::new(),
            watcher: None,
            events,
            writing: Arc::default(),
        }
    }

    /// Follows links that lead elsewhere by now, and comes back to life if it was blind. Touches the
    /// disk. Says what is wrong if it cannot watch.
    ///
    /// # Errors
    /// The system has no watches to give.
    pub fn renew(&mut self) -> Result<(), String> {
        if self.watcher.is_none() {
            self.folders.clear();
            let (sender, events) = mpsc::channel(WAITING);
            let writing = Arc::clone(&self.writing);
            let tell = move |event: notify::Result<notify::Event>| {
                let event = match event {
                    Ok(event) if is_noise(event.kind) => return,
                    Ok(event) => {
                        writing.lock().note(&event);
                        Event::Change
                    }
                    Err(error) => Event::Broken(error.to_string()),
                };
                // Full: there are changes to be looked at already.
                let _full = sender.try_send(event);
            };
            let watcher = notify::recommended_watcher(tell).map_err(|error| error.to_string())?;
            (self.watcher, self.events) = (Some(watcher), events);
        }
        let (wanted, file) = folders(&self.path);
        self.writing.lock().file = file.file_name().map(OsString::from);
        let Some(watcher) = &mut self.watcher else {
            return Ok(());
        };
        for (folder, _) in self
            .folders
            .iter()
            .filter(|(at, id)| wanted.get(*at) != Some(id))
        {
            // It may be gone, and its watch with it.
            let _gone = watcher.unwatch(folder);
        }
        let mut watched = BTreeMap::new();
        let mut wrong = None;
        for (folder, id) in wanted {
            if self.folders.get(&folder) != Some(&id)
                && let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive)
            {
                wrong = Some(format!("{}: {error}", folder.display()));
                continue;
            }
            watched.insert(folder, id);
        }
        self.folders = watched;
        wrong.map_or(Ok(()), Err)
    }

    /// Whether somebody has written into the file and not closed it yet.
    pub fn is_being_written(&self) -> bool {
        self.writing.lock().open
    }

    /// Sees nothing more until it is renewed.
    pub fn close(&mut self) {
        self.watcher = None;
        self.events.close();
        self.writing = Arc::default();
    }

    /// Waits for something to happen, not longer than `patience`; `None`: nothing did.
    pub async fn seen(&mut self, patience: Duration) -> Option<Seen> {
        if self.watcher.is_none() {
            tokio::time::sleep(patience).await;
            return None;
        }
        let event = tokio::time::timeout(patience, self.events.recv()).await;
        let seen = match event.ok()? {
            Some(Event::Change) => settled(&mut self.events).await,
            Some(Event::Broken(why)) => Seen::Blind(why),
            None => Seen::Blind("the watcher has ended".to_owned()),
        };
        if matches!(seen, Seen::Blind(_)) {
            self.close();
        }
        Some(seen)
    }
}

/// Waits until nothing has happened for [`QUIET`], at most for [`MOST`].
async fn settled(events: &mut Receiver<Event>) -> Seen {
    let last = Instant::now() + MOST;
    loop {
        let until = (Instant::now() + QUIET).min(last);
        match tokio::time::timeout_at(until, events.recv()).await {
            Ok(Some(Event::Change)) if Instant::now() < last => {}
            Ok(Some(Event::Change)) => return Seen::Busy,
            Ok(Some(Event::Broken(why))) => return Seen::Blind(why),
            // It has ended: the next look notices.
            Ok(None) => {
                tokio::time::sleep_until(until).await;
                return Seen::Busy;
            }
            Err(_) if until < last => return Seen::Change,
            Err(_) => return Seen::Busy,
        }
    }
}

/// Reading is no change; to take it for one would be to see oneself look.
fn is_noise(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

/// The folders in which a change can make the path lead to another file, each with its number: those of
/// every link on the way, and that of the file in the end. What is missing just now has no part in it.
/// Beside them where the file lies.
fn folders(path: &Path) -> (BTreeMap<PathBuf, (u64, u64)>, PathBuf) {
    let mut found: Vec<PathBuf> = path.parent().map(Path::to_owned).into_iter().collect();
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        let Some((link, target)) = first_link(&path) else {
            break;
        };
        let Some(folder) = link.parent() else {
            break;
        };
        found.push(folder.to_owned());
        // What follows the link on the way is looked for where it leads.
        let rest = path.strip_prefix(&link).unwrap_or(Path::new(""));
        let to = folder.join(target);
        path = if rest.as_os_str().is_empty() {
            to
        } else {
            to.join(rest)
        };
    }
    found.extend(path.parent().map(Path::to_owned));
    let numbered = found.into_iter().filter_map(|folder| {
        let is = std::fs::metadata(&folder).ok().filter(|is| is.is_dir())?;
        Some((folder, (is.dev(), is.ino())))
    });
    (numbered.collect(), path)
}

/// The first part of the path that is a link, and what it says.
fn first_link(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut walked = PathBuf::new();
    for part in path.components() {
        walked.push(part);
        if let Ok(target) = std::fs::read_link(&walked) {
            return Some((walked, target));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn channel() -> (mpsc::Sender<Event>, Receiver<Event>) {
        mpsc::channel(WAITING)
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_counts_when_it_is_quiet_again() {
        let (sender, mut events) = channel();
        let begun = Instant::now();
        let writing = tokio::spawn(async move {
            for _ in 0..3 {
                tokio::time::sleep(Duration::from_millis(30)).await;
                sender.send(Event::Change).await.unwrap();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        assert_eq!(settled(&mut events).await, Seen::Change);
        assert_eq!(begun.elapsed(), Duration::from_millis(3 * 30) + QUIET);
        writing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_folder_that_is_never_quiet_is_looked_at_all_the_same() {
        let (sender, mut events) = channel();
        let begun = Instant::now();
        let writing = tokio::spawn(async move {
            while sender.send(Event::Change).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert_eq!(settled(&mut events).await, Seen::Busy);
        assert_eq!(begun.elapsed(), MOST);
        drop(events);
        writing.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_ends_is_noticed() {
        let mut watch = Watch::new(Path::new("/"));
        watch.renew().unwrap();
        let (sender, events) = channel();
        watch.events = events;
        drop(sender);
        let seen = watch.seen(Duration::from_secs(9)).await;
        assert!(matches!(seen, Some(Seen::Blind(_))), "{seen:?}");
        assert_eq!(watch.seen(Duration::from_secs(9)).await, None);
        watch.renew().unwrap();
        assert!(watch.watcher.is_some());
    }

    #[test]
    fn every_folder_on_the_way_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let old = root.join("mount/..2026");
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("throttle.toml"), "").unwrap();
        symlink("..2026", root.join("mount/..data")).unwrap();
        symlink("..data/throttle.toml", root.join("mount/throttle.toml")).unwrap();
        symlink(root.join("mount"), root.join("config")).unwrap();
        let (found, file) = folders(&root.join("config/throttle.toml"));
        let found: Vec<PathBuf> = found.into_keys().collect();
        let expected = [root.clone(), root.join("config"), root.join("mount"), old];
        assert_eq!(found, expected);
        assert_eq!(file, root.join("mount/..2026/throttle.toml"));
    }

    #[test]
    fn links_that_lead_in_a_circle_end() {
        let dir = tempfile::tempdir().unwrap();
        symlink("b", dir.path().join("a")).unwrap();
        symlink("a", dir.path().join("b")).unwrap();
        assert!(!folders(&dir.path().join("a")).0.is_empty());
    }
}
