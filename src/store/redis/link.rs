//! The connection: made when it is needed, dropped when it fails, and never waited for longer than the
//! store's timeout.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, ProtocolVersion, PushInfo, PushKind, RedisError,
    Value,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::super::{StoreError, distrusted};
use super::target::{Kind, Target};

/// After a connection could not be made, calls fail at once for this long.
const PAUSE: Duration = Duration::from_millis(100);

/// One in so many parts of the timeout is what a node of a cluster has that is silent: all that are named are waited
/// for, then those that they name.
const SILENT: u32 = 3;

/// One connection for all calls, and for what others tell.
pub(super) struct Link {
    target: Target,
    timeout: Duration,
    channel: String,
    news: UnboundedSender<PushInfo>,
    state: Mutex<State>,
    /// Held while a connection is made, so that one is made and not many.
    making: tokio::sync::Mutex<()>,
    /// The last connection to a cluster of which a node was lost.
    broken: Arc<AtomicU64>,
}

#[derive(Default)]
struct State {
    made: Option<Connection>,
    /// Which one that is, of all that were tried.
    number: u64,
    failed: Option<(Instant, StoreError)>,
}

#[derive(Clone)]
enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        match self {
            Connection::One(connection) => connection.req_packed_command(command).await,
            Connection::Cluster(connection) => connection.req_packed_command(command).await,
        }
    }

    async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Connection::One(connection) => connection.subscribe(channel).await,
            Connection::Cluster(connection) => connection.subscribe(channel).await,
        }
    }
}

/// How a call failed.
pub(super) enum Failed {
    /// The server answered with an error: its code, and the whole of it.
    Said(String, String),
    /// It did not answer.
    Store(StoreError),
}

impl Link {
    pub(super) fn new(
        target: Target,
        timeout: Duration,
        channel: String,
        news: UnboundedSender<PushInfo>,
    ) -> Link {
        Link {
            target,
            timeout,
            channel,
            news,
            state: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            broken: Arc::default(),
        }
    }

    /// Where it leads, without password.
    pub(super) fn place(&self) -> &str {
        &self.target.place
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// One command and its answer, within the timeout.
    pub(super) async fn send(&self, command: &Cmd) -> Result<Value, Failed> {
        let mut used = None;
        let answer = tokio::time::timeout(self.timeout, async {
            let (mut connection, number) = self.connection().await.map_err(Failed::Store)?;
            used = Some(number);
            let sent = connection
                .send(command)
                .await
                .and_then(Value::extract_error);
            sent.map_err(|error| self.failed(number, &error))
        });
        match answer.await {
            Ok(answer) => answer,
            Err(_) => {
                // What does not answer may be a connection that leads nowhere any more.
                if let Some(number) = used {
                    self.drop_made(number);
                }
                Err(Failed::Store(StoreError::Timeout))
            }
        }
    }

    /// That connection is not used again; another one may be there by now.
    fn drop_made(&self, number: u64) {
        let mut state = self.state();
        if state.number == number {
            state.made = None;
        }
    }

    fn failed(&self, number: u64, error: &RedisError) -> Failed {
        let code = error.code().unwrap_or_default();
        let gone = ["READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN"].contains(&code);
        if gone || code.is_empty() {
            self.drop_made(number);
        }
        if error.is_timeout() {
            Failed::Store(StoreError::Timeout)
        } else if gone || code.is_empty() {
            Failed::Store(StoreError::Unavailable(self.told(error)))
        } else {
            Failed::Said(code.to_owned(), self.told(error))
        }
    }

    fn told(&self, error: &RedisError) -> String {
        let text = format!("{}: {error}", self.place());
        distrusted(text)
    }

    async fn connection(&self) -> Result<(Connection, u64), StoreError> {
        if let Some(made) = self.made()? {
            return Ok(made);
        }
        let _one_at_a_time = self.making.lock().await;
        if let Some(made) = self.made()? {
            return Ok(made);
        }
        let number = {
            let mut state = self.state();
            state.number += 1;
            state.number
        };
        let made = tokio::time::timeout(self.timeout, self.connect(number)).await;
        let late = || StoreError::Unavailable(format!("{}: no connection in time", self.place()));
        let made = made.map_err(|_| late());
        let made = made.and_then(|made| made.map_err(|error| self.refused(&error)));
        let mut state = self.state();
        match made {
            Ok(connection) => {
                state.failed = None;
                state.made = Some(connection.clone());
                Ok((connection, number))
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Why no connection could be made: a server that answers and says no says no next time too.
    fn refused(&self, error: &RedisError) -> StoreError {
        let rights = ["NOPERM", "NOAUTH", "WRONGPASS"].contains(&error.code().unwrap_or_default());
        match rights || error.kind() == ErrorKind::AuthenticationFailed {
            true => StoreError::Unusable(format!("{}; {}", self.told(error), self.needs())),
            false => StoreError::Unavailable(self.told(error)),
        }
    }

    /// What the user must be allowed.
    pub(super) fn needs(&self) -> String {
        let keys = self.channel.trim_end_matches("wake");
        format!(
            "the user needs the keys {keys}* and the channel {}",
            self.channel
        )
    }

    /// The connection there is, or why there is none.
    fn made(&self) -> Result<Option<(Connection, u64)>, StoreError> {
        let mut state = self.state();
        if state.made.is_some() && state.number <= self.broken.load(Ordering::Acquire) {
            state.made = None;
            let why = format!("{}: a node of it was lost", self.place());
            return Err(StoreError::Unavailable(why));
        }
        match (&state.made, &state.failed) {
            (Some(made), _) => Ok(Some((made.clone(), state.number))),
            (None, Some((at, error))) if at.elapsed() < PAUSE => Err(error.clone()),
            _ => Ok(None),
        }
    }

    /// Where a cluster's nodes tell their news. The library connects to other nodes by itself: but who took
    /// the place of a lost one may not have all that it had, and has no subscriptions. So that is a failure
    /// here as it is with a single server, and callers put back what they know.
    fn news_of(
        &self,
        number: u64,
    ) -> impl Fn(PushInfo) -> Result<(), Infallible> + Send + Sync + 'static {
        let (news, broken) = (self.news.clone(), self.broken.clone());
        move |push| {
            if push.kind == PushKind::Disconnection {
                broken.fetch_max(number, Ordering::AcqRel);
            }
            // Whoever had the receiver is gone with the store.
            let _received = news.send(push);
            Ok(())
        }
    }

    async fn connect(&self, number: u64) -> Result<Connection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(None)
            .set_push_sender(self.news.clone());
        let mut connection = match &self.target.kind {
            Kind::One(info) => {
                let client = match self.target.certificates() {
                    Some(certificates) => Client::build_with_tls(info.clone(), certificates)?,
                    None => Client::open(info.clone())?,
                };
                let made = client.get_multiplexed_async_connection_with_config(&config);
                Connection::One(made.await?)
            }
            Kind::Sentinel { nodes, master, .. } => {
                let mut addresses: Vec<_> = nodes.iter().map(|node| node.addr().clone()).collect();
                // Their answers are taken in this order, and the wait for a silent one takes all the time there is:
                // the next attempt begins with another.
                addresses.rotate_left(usize::try_from(number).unwrap_or(0) % nodes.len().max(1));
                let kind = SentinelServerType::Master;
                let builder = SentinelClientBuilder::new(addresses, master, kind)?;
                let mut client = self.target.of_sentinel(builder).build()?;
                Connection::One(client.get_async_connection_with_config(&config).await?)
            }
            Kind::Cluster(nodes) => {
                let builder = ClusterClient::builder(nodes.clone())
                    .connection_timeout(self.timeout / SILENT)
                    .response_timeout(self.timeout)
                    .retries(1)
                    .use_protocol(ProtocolVersion::RESP3)
                    .push_sender(self.news_of(number));
                let builder = match self.target.certificates() {
                    Some(certificates) => builder.certs(certificates),
                    None => builder,
                };
                Connection::Cluster(builder.build()?.get_async_connection().await?)
            }
        };
        connection.subscribe(&self.channel).await?;
        Ok(connection)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.place())
    }
}
