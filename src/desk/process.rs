//! What the process tells the rest of the sidecar: whether it takes work, and whether its file is in force.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::limit::Timestamp;

/// Whether the data port takes work.
#[derive(Default, Debug)]
pub struct Readiness(AtomicU8);

impl Readiness {
    /// Listening, and running jobs are adopted.
    pub fn ready(&self) {
        self.0.store(1, Ordering::Relaxed);
    }

    /// Draining: nothing new is started.
    pub fn draining(&self) {
        self.0.store(2, Ordering::Relaxed);
    }

    /// `starting`, `ready` or `draining`.
    pub fn word(&self) -> &'static str {
        match self.0.load(Ordering::Relaxed) {
            0 => "starting",
            1 => "ready",
            _ => "draining",
        }
    }
}

/// Why what a file says is not in force.
#[derive(Clone, Debug)]
pub enum FileRefusal {
    /// `ojs-throttle check` says why.
    Wrong,
    /// It may be right, and cannot be put in force for this reason.
    Unfit(Arc<str>),
}

/// Whether the file of the settings is in force, and since when.
#[derive(Debug)]
pub struct FollowedFile {
    path: OnceLock<Arc<str>>,
    refusal: Mutex<Option<FileRefusal>>,
    since: AtomicU64,
}

impl FollowedFile {
    /// What was read at `now` is in force. No file is followed yet.
    pub(crate) fn new(now: Timestamp) -> FollowedFile {
        FollowedFile {
            path: OnceLock::new(),
            refusal: Mutex::default(),
            since: AtomicU64::new(now.0),
        }
    }

    /// The file at this path is followed.
    pub fn follow(&self, path: &str) {
        self.path.get_or_init(|| Arc::from(path));
    }

    /// Something else of it is in force since `now`.
    pub fn changed(&self, now: Timestamp) {
        self.since.store(now.0, Ordering::Relaxed);
    }

    /// Why what it says is not in force; `None`: it is.
    pub fn refused(&self, why: Option<FileRefusal>) {
        *self.refusal.lock() = why;
    }

    pub(crate) fn refusal(&self) -> Option<FileRefusal> {
        self.refusal.lock().clone()
    }

    pub(crate) fn path(&self) -> Option<&Arc<str>> {
        self.path.get()
    }

    pub(crate) fn is_in_force(&self) -> bool {
        self.refusal.lock().is_none()
    }

    pub(crate) fn since(&self) -> Timestamp {
        Timestamp(self.since.load(Ordering::Relaxed))
    }
}

/// The name of this host; `None`: it has none that can stand in a name.
pub(crate) fn host() -> Option<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let host = host.trim();
    let is_usable = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
    is_usable.then(|| host.to_owned())
}
