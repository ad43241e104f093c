//! The store of one host: a file that several sidecars share and that outlasts them.
//!
//! A thread of its own has the connection, so that nothing waits for a disk but those who asked. Each
//! transaction is an immediate one: one writer at a time, across all processes. The file is in WAL mode
//! with `synchronous = NORMAL`: a process that is killed loses nothing, a power cut may lose the last
//! transactions and never leaves the file broken.
//!
//! The clock is that of the process. It does not step; where another one on this host is ahead, this one
//! follows at its next beat.

mod file;
mod inspect;
mod schema;
mod table;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rusqlite::{Connection, Error};
use tokio::sync::mpsc::UnboundedSender;

use super::clock::ServerClock;
use super::sql::{
    Database, Findings, First, Head, Job, MOST, Need, Page, Post, SqlStore, serve, unsigned,
};
use super::{Clock, StoreError};
use file::fault;
use ojs_limit::Timestamp;

pub use file::{SqliteConfig, path};
pub use inspect::inspect;

/// So many operations may wait for the thread.
const WAITING: usize = 1024;
/// How often the thread looks for news of others; a look is a read of shared memory.
const LOOK: Duration = Duration::from_millis(10);
/// Who has not looked for this long, in microseconds, may have missed something: news are kept for a
/// minute.
const MISSED: u64 = 30_000_000;

/// A store on a file, which is opened when it is first asked. `clock` is that of this process.
pub fn open(config: SqliteConfig, clock: Clock) -> SqlStore {
    let timeout = config.timeout;
    SqlStore::new(ServerClock::new(clock.clone()), timeout, |news| {
        let (post, jobs) = sync_channel(WAITING);
        let file = File::new(config, clock);
        let thread = std::thread::Builder::new().name("sqlite".to_owned());
        if let Err(error) = thread.spawn(move || work(file, &jobs, &news)) {
            // Who asks is told that it was closed.
            tracing::error!(id = %"store_threadless", %error, "no thread for the store");
        }
        Post::Thread(post)
    })
}

/// Until nobody can ask any more.
fn work(mut file: File, jobs: &Receiver<Job>, news: &UnboundedSender<String>) {
    loop {
        match jobs.recv_timeout(LOOK) {
            Ok(first) => {
                let more = jobs.try_iter().take(MOST - 1);
                let batch = std::iter::once(first).chain(more).collect();
                at_once(serve(&mut file, batch));
                if file.looked_just_now() {
                    continue;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        file.listen(news);
    }
}

/// The value of a future that never waits, as all of this file are; the work is shared with a store that
/// does.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// The file, open or to be opened.
struct File {
    path: PathBuf,
    namespace: String,
    owner: Arc<str>,
    clock: Clock,
    /// Microseconds that another process on this host was ahead.
    ahead: u64,
    open: Option<Open>,
    /// The last news that were read; `None`: none yet.
    heard: Option<i64>,
    looked: Timestamp,
    /// Where the search for keys with nothing used is; empty: at the first.
    after: String,
}

struct Open {
    connection: Connection,
    /// Which file that is: another one may be put in its place.
    inode: (u64, u64),
    /// Changes when another connection has written; as of the last news that were read.
    version: i64,
    /// What a transaction begins with, and the version at which it was read; `None`: we have changed it.
    head: Option<(i64, Head)>,
}

impl Open {
    /// What a transaction begins with. Most of what is written leaves it as it is, so it is read again only
    /// after others have written, or we have changed it.
    fn head(&mut self, now: Timestamp) -> Result<Head, Error> {
        let version = table::version(&self.connection)?;
        let known = self.head.take().filter(|(then, _)| *then == version);
        let head = match known {
            Some((_, head)) => Head { now, ..head },
            None => table::head(&self.connection, now)?,
        };
        self.head = Some((version, head.clone()));
        Ok(head)
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.dev(), about.ino()))
}

impl File {
    fn new(config: SqliteConfig, clock: Clock) -> File {
        File {
            path: config.target,
            namespace: config.namespace,
            owner: config.owner.into(),
            clock,
            ahead: 0,
            open: None,
            heard: None,
            looked: Timestamp(0),
            after: String::new(),
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now().plus(self.ahead)
    }

    /// The connection; the file is opened if it is not, or is not the one that was opened.
    fn connection(&mut self) -> Result<&mut Open, StoreError> {
        let there = inode(&self.path);
        let known = self.open.take();
        let open = match known.filter(|open| Some(open.inode) == there) {
            Some(open) => open,
            None => {
                let opened = schema::open(&self.path, &self.namespace);
                let connection = opened.map_err(|why| why.told(&self.path))?;
                self.heard = None;
                let inode = inode(&self.path).unwrap_or_default();
                Open {
                    connection,
                    inode,
                    version: -1,
                    head: None,
                }
            }
        };
        Ok(self.open.insert(open))
    }

    /// Does something with the connection.
    fn with<T>(
        &mut self,
        what: impl FnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let done = what(&self.connection()?.connection);
        done.map_err(|error| self.failed(&error))
    }

    /// Does something within the transaction that is open, in the file in which it was begun.
    fn within<T>(
        &mut self,
        what: impl FnOnce(&mut Open) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("it was closed".to_owned());
        let done = what(self.open.as_mut().ok_or_else(closed)?);
        done.map_err(|error| self.failed(&error))
    }

    fn failed(&mut self, error: &Error) -> StoreError {
        let said = fault(&self.path, error);
        if matches!(said, StoreError::Unusable(_)) {
            self.open = None;
        }
        said
    }

    fn is_strange(&self) -> StoreError {
        let place = self.path.display();
        StoreError::Unavailable(format!("{place}: a row of it is not understood"))
    }

    fn looked_just_now(&self) -> bool {
        let since = Duration::from_micros(self.now().since(self.looked));
        self.heard.is_some() && since < LOOK
    }

    /// Passes on what others wrote.
    fn listen(&mut self, news: &UnboundedSender<String>) {
        let now = self.now();
        let missed = self.looked.plus(MISSED) < now || self.heard.is_none();
        let (heard, me) = (self.heard, self.owner.clone());
        let Some(open) = &mut self.open else { return };
        let Ok(version) = table::version(&open.connection) else {
            return;
        };
        if version == open.version {
            self.looked = now;
            return;
        }
        let Ok((last, texts)) = table::news(&open.connection, heard, &me) else {
            return;
        };
        (open.version, self.looked, self.heard) = (version, now, Some(last));
        // The receiver lives as long as whoever sends jobs.
        if missed {
            let _received = news.send("all".to_owned());
        }
        for text in texts {
            let _received = news.send(text);
        }
    }
}

impl Database for File {
    async fn first(&mut self, first: &First) -> Result<Findings, StoreError> {
        let me = self.owner.clone();
        if matches!(first, First::Due { .. } | First::Join { .. }) {
            // Where another process is ahead, this one follows.
            let latest = self.with(|connection| table::latest(connection, &me))?;
            self.ahead += unsigned(latest).saturating_sub(self.now().0);
        }
        let (now, namespace) = (self.now(), self.namespace.clone());
        let mut after = std::mem::take(&mut self.after);
        let found = self.with(|connection| match first {
            First::Join { knew } => {
                let epoch = table::join(connection, &me, &namespace, knew.as_deref(), now)?;
                Ok(Some(Findings {
                    epoch,
                    ..Findings::default()
                }))
            }
            other => table::find(connection, other, &me, now, &mut after),
        });
        self.after = after;
        if let (First::Join { .. }, Some(open)) = (first, &mut self.open) {
            open.head = None;
        }
        found?.ok_or_else(|| self.is_strange())
    }

    async fn begin(&mut self, need: &Need) -> Result<Page, StoreError> {
        let begin = match need.writes {
            true => "BEGIN IMMEDIATE",
            false => "BEGIN",
        };
        self.with(|connection| table::run(connection, begin))?;
        // Read when nobody else can write: times are in the order of the transactions.
        let (me, now) = (self.owner.clone(), self.now());
        let page = self.within(|open| {
            let head = open.head(now)?;
            table::page(&open.connection, need, Page::new(me, head))
        })?;
        page.ok_or_else(|| self.is_strange())
    }

    async fn commit(&mut self, page: &Page) -> Result<(), StoreError> {
        self.within(|open| {
            table::write(&open.connection, page)?;
            if page.beats || page.is_new_edition() {
                open.head = None;
            }
            table::run(&open.connection, "COMMIT")
        })
    }

    async fn abandon(&mut self) {
        let open = self.open.as_ref();
        if let Some(open) = open.filter(|open| !open.connection.is_autocommit())
            && open.connection.execute_batch("ROLLBACK").is_err()
        {
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_that_could_not_be_read_are_read_at_the_next_look() {
        let dir = tempfile::tempdir().unwrap();
        let config = SqliteConfig {
            target: dir.path().join("limits.db"),
            namespace: "ojs-throttle".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(1),
        };
        let mut file = File::new(config, Clock::new(1));
        let (news, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let mut listen = |file: &mut File| {
            file.listen(&news);
            heard.try_recv().ok()
        };
        file.connection().unwrap();
        assert_eq!(listen(&mut file).as_deref(), Some("all"));
        let other = Connection::open(&file.path).unwrap();
        let says = "INSERT INTO news (owner, text, at) VALUES ('b', 'over', 1)";
        other.execute_batch(says).unwrap();
        let hide = |file: &File, change: &str| {
            let open = file.open.as_ref().unwrap();
            open.connection.execute_batch(change).unwrap();
        };
        hide(&file, "CREATE TEMP TABLE news (x)");
        assert_eq!(listen(&mut file), None);
        hide(&file, "DROP TABLE temp.news");
        assert_eq!(listen(&mut file).as_deref(), Some("over"));
    }

    #[test]
    fn a_path_follows_the_scheme() {
        let read = |url| path(url).map(|path| path.display().to_string());
        assert_eq!(read("sqlite:limits.db"), Ok("limits.db".to_owned()));
        assert_eq!(
            read("sqlite:/var/lib/a b.db"),
            Ok("/var/lib/a b.db".to_owned())
        );
        assert_eq!(read("sqlite:///var/x"), Ok("/var/x".to_owned()));
        assert!(read("sqlite:").is_err() && read("sqlite::memory:").is_err());
        assert!(read("file:x").is_err());
    }
}
