//! The store of a fleet that has a Postgres: version 12 or later, in a schema of its own.
//!
//! What an operation is about is locked by advisory locks of the transaction, in one order everywhere:
//! rows, numbers, keys, each by its hash. So two sidecars never wait for each other, and a key that is
//! not there yet is locked as well. Reading is one round trip, writing and the commit are another; what
//! waits meanwhile shares the next transaction. The server's clock decides.
//!
//! Two connections work and one listens. A connection that fails is dropped, and the next operation makes
//! another: that takes many round trips, so it goes on while operations fail that cannot wait for it.

mod clock;
mod failed;
mod inspect;
mod link;
mod schema;
mod statements;
mod table;
mod text;
mod together;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::clock::ServerClock;
use super::sql::{Database, Findings, First, Job, MOST, Need, Page, Post, SqlStore, serve};
use super::{Clock, StoreError};
use link::PostgresLink;

pub use inspect::inspect;
pub use link::{PostgresConfig, PostgresTarget};

/// So many operations may wait for a connection.
const WAITING: usize = 4096;
/// How many connections work. Each has one transaction at a time, and what waits shares the next.
const CONNECTIONS: usize = 2;
/// After the connection that listens is lost, another is made this much later.
const PAUSE: Duration = Duration::from_millis(500);

/// A store that is not connected yet. `clock` is this host's, for the time before the first answer. Must
/// be called in a runtime, whose tasks have the connections.
pub fn open(config: PostgresConfig, clock: Clock) -> SqlStore {
    let clock = ServerClock::new(clock);
    let (timeout, given) = (config.timeout, clock.given.clone());
    SqlStore::new(clock, timeout, |news| {
        let (post, jobs) = channel(WAITING);
        let jobs = Arc::new(tokio::sync::Mutex::new(jobs));
        let gone = Arc::new(AtomicU64::new(0));
        for _ in 0..CONNECTIONS {
            let server = Server::new(&config, given.clone(), gone.clone());
            tokio::spawn(work(server, jobs.clone()));
        }
        let owner = config.owner.clone();
        let link = PostgresLink::new(&config);
        tokio::spawn(async move {
            while !news.is_closed() {
                link.listen(&owner, &news).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        Post::Tasks(post)
    })
}

/// Until nobody can ask any more.
async fn work(mut server: Server, jobs: Arc<tokio::sync::Mutex<Receiver<Job>>>) {
    loop {
        let mut batch = Vec::new();
        if jobs.lock().await.recv_many(&mut batch, MOST).await == 0 {
            return;
        }
        serve(&mut server, batch).await;
    }
}

/// A connection to the server, made when it is needed.
struct Server {
    link: PostgresLink,
    owner: Arc<str>,
    given: Option<Clock>,
    timeout: Duration,
    session: Option<table::Session>,
    /// The next one, as long as it is being made.
    making: Option<JoinHandle<Result<table::Session, StoreError>>>,
    /// How often our tables were found to be gone, by any connection, and how often when this one was
    /// made: its statements are of tables that are no more.
    gone: Arc<AtomicU64>,
    made: u64,
    /// Where the search for keys with nothing used is.
    after: String,
}

impl Server {
    fn new(config: &PostgresConfig, given: Option<Clock>, gone: Arc<AtomicU64>) -> Server {
        Server {
            link: PostgresLink::new(config),
            owner: config.owner.as_str().into(),
            given,
            timeout: config.timeout,
            session: None,
            making: None,
            gone,
            made: 0,
            after: String::new(),
        }
    }

    /// Does something with the connection, or with a new one, within the timeout. One that failed is not
    /// used again.
    async fn with<T>(
        &mut self,
        what: impl AsyncFnOnce(&mut table::Session) -> Result<T, failed::Failed>,
    ) -> Result<T, StoreError> {
        let until = Instant::now() + self.timeout;
        let session = timeout_at(until, self.session()).await;
        let session = session.map_err(|_| self.link.not_yet())??;
        self.on(session, until, what).await
    }

    /// The connection there is, or a new one. Whoever does not wait for the end of its making leaves it to the next.
    async fn session(&mut self) -> Result<table::Session, StoreError> {
        let gone = self.gone.load(Ordering::Acquire);
        if self.made != gone {
            (self.session, self.making) = (None, None);
        }
        let known = self.session.take();
        if let Some(session) = known.filter(|session| !session.is_closed()) {
            return Ok(session);
        }
        self.made = gone;
        let making = self.making.get_or_insert_with(|| {
            let (link, given) = (self.link.clone(), self.given.clone());
            tokio::spawn(async move { link.session(given).await })
        });
        let made = making.await;
        self.making = None;
        let ended = || StoreError::Unavailable("a connection was not made".to_owned());
        made.map_err(|_| ended())?
    }

    async fn on<T>(
        &mut self,
        mut session: table::Session,
        until: Instant,
        what: impl AsyncFnOnce(&mut table::Session) -> Result<T, failed::Failed>,
    ) -> Result<T, StoreError> {
        let done = timeout_at(until, what(&mut session)).await;
        match done.map_err(|_| StoreError::Timeout)? {
            Ok(value) => {
                self.session = Some(session);
                Ok(value)
            }
            // Its transaction ends with it.
            Err(failed) => {
                let error = self.link.told(&failed);
                if error == StoreError::Wiped {
                    self.gone.fetch_add(1, Ordering::AcqRel);
                }
                Err(error)
            }
        }
    }
}

impl Database for Server {
    async fn first(&mut self, first: &First) -> Result<Findings, StoreError> {
        let me = self.owner.clone();
        let mut after = std::mem::take(&mut self.after);
        let found = self
            .with(async |session| session.find(first, &me, &mut after).await)
            .await;
        self.after = after;
        found
    }

    async fn begin(&mut self, need: &Need) -> Result<Page, StoreError> {
        let me = self.owner.clone();
        self.with(async |session| session.begin(need, me).await)
            .await
    }

    async fn commit(&mut self, page: &Page) -> Result<(), StoreError> {
        // On another connection there is nothing to commit.
        let lost =
            || StoreError::Unavailable("the connection was lost before the commit".to_owned());
        let begun = self.session.take().ok_or_else(lost)?;
        let until = Instant::now() + self.timeout;
        self.on(begun, until, async |session| session.commit(page).await)
            .await
    }

    async fn abandon(&mut self) {
        self.session = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_begun_on_a_connection_that_is_gone_cannot_be_committed() {
        let config = PostgresConfig {
            target: PostgresTarget::parse("postgres:///db?host=/nowhere").unwrap(),
            namespace: "limits".to_owned(),
            owner: "a".to_owned(),
            timeout: Duration::from_secs(1),
        };
        let mut server = Server::new(&config, None, Arc::default());
        let Err(StoreError::Unavailable(why)) = server.commit(&Page::default()).await else {
            panic!()
        };
        // It is not even tried on another one.
        assert!(why.contains("before the commit"), "{why}");
    }
}
