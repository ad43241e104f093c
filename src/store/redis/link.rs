//! The connection: made when it is needed, dropped when it fails, and never waited for longer than the
//! store's timeout. What waits for none may take longer to be made: it is many round trips.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion,
    PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::super::StoreError;
use super::super::config::distrusted;
use super::super::remote::to_connect;
use super::target::{Layout, RedisConfig, RedisTarget};
use super::wire;

/// After a connection could not be made, calls fail at once for this long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a question waits before it is asked again while the slot of our keys moves to another node of a cluster.
const MOVING: Duration = Duration::from_millis(20);
/// How often sentinels are asked whether the server that we are connected to is still the master.
const LOOK: Duration = Duration::from_secs(3);

/// How long the library waits before it asks a node of a cluster once more, in milliseconds.
const WAIT: std::ops::Range<u64> = 10..20;

/// One in so many parts of the time to connect is what a node of a cluster has that is silent: all that are named are
/// waited for, then those that they name.
const SILENT: u32 = 3;

/// One connection for all calls, and for what others tell.
pub(super) struct RedisLink {
    target: RedisTarget,
    timeout: Duration,
    channel: String,
    owner: String,
    news: UnboundedSender<String>,
    tried: Mutex<Tried>,
    /// The connection that is being made, by a task of its own: one is made and not many.
    making: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    /// How often sentinels were asked.
    looks: AtomicUsize,
    /// The last connection that led to a server whose place another has taken.
    broken: Arc<AtomicU64>,
}

/// The last connection that was tried.
#[derive(Default)]
struct Tried {
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
pub(super) enum CallFailed {
    /// The server answered with an error: its code, and the whole of it.
    Said(String, String),
    /// It did not answer.
    Store(StoreError),
}

impl RedisLink {
    pub(super) fn new(
        config: RedisConfig,
        channel: String,
        news: UnboundedSender<String>,
    ) -> Arc<RedisLink> {
        Arc::new(RedisLink {
            target: config.target,
            timeout: config.timeout,
            channel,
            owner: config.owner,
            news,
            tried: Mutex::default(),
            making: tokio::sync::Mutex::default(),
            looks: AtomicUsize::default(),
            broken: Arc::default(),
        })
    }

    /// Where it leads, without password.
    pub(super) fn place(&self) -> &str {
        &self.target.place
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Waits until there is a connection, or says why there is none.
    pub(super) async fn ready(self: &Arc<RedisLink>) -> Result<(), StoreError> {
        self.connection().await.map(drop)
    }

    /// One command and its answer, within the timeout.
    pub(super) async fn send(self: &Arc<RedisLink>, command: &Cmd) -> Result<Value, CallFailed> {
        let mut used = None;
        let answer = tokio::time::timeout(self.timeout, async {
            let (mut connection, number) = self.connection().await.map_err(CallFailed::Store)?;
            let asked = Instant::now();
            used = Some((number, asked));
            loop {
                let sent = connection.send(command).await;
                match sent.and_then(Value::extract_error) {
                    Err(error)
                        if error.code() == Some("TRYAGAIN")
                            && asked.elapsed() + 2 * MOVING < self.timeout =>
                    {
                        sleep(MOVING).await;
                    }
                    sent => return sent.map_err(|error| self.failed(number, &error)),
                }
            }
        });
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(CallFailed::Store(match used {
                Some((number, asked)) => {
                    // What does not answer may be a connection that leads nowhere any more. One that was made late had
                    // no time to answer: the next question has it.
                    if asked.elapsed() >= self.timeout / 2 {
                        self.drop_made(number);
                    }
                    StoreError::Timeout
                }
                None => {
                    let within = format!("the {:?} of store.timeout", self.timeout);
                    let why = format!("{}: no connection yet, within {within}", self.place());
                    StoreError::Unavailable(why)
                }
            })),
        }
    }

    /// Whether that connection is the one in use.
    fn is_used(&self, number: u64) -> bool {
        let tried = self.tried.lock();
        tried.number == number && tried.made.is_some()
    }

    /// That connection is not used again; another one may be there by now.
    fn drop_made(&self, number: u64) {
        let mut tried = self.tried.lock();
        if tried.number == number {
            tried.made = None;
        }
    }

    fn failed(&self, number: u64, error: &RedisError) -> CallFailed {
        let code = code_of(error);
        // What they have in common: another server may be the one to ask.
        let gone = [
            "READONLY",
            "LOADING",
            "MASTERDOWN",
            "CLUSTERDOWN",
            "NOREPLICAS",
        ]
        .contains(&code);
        if gone || code.is_empty() {
            self.drop_made(number);
        }
        if error.is_timeout() {
            CallFailed::Store(StoreError::Timeout)
        } else if gone || code.is_empty() || code == "TRYAGAIN" {
            CallFailed::Store(StoreError::Unavailable(self.told(error)))
        } else {
            CallFailed::Said(code.to_owned(), self.told(error))
        }
    }

    fn told(&self, error: &RedisError) -> String {
        let text = format!("{}: {error}", self.place());
        distrusted(text)
    }

    /// The connection there is, or the next one. Who does not wait for that until it is made leaves it to others.
    async fn connection(self: &Arc<RedisLink>) -> Result<(Connection, u64), StoreError> {
        loop {
            if let Some(made) = self.made()? {
                return Ok(made);
            }
            let mut making = self.making.lock().await;
            if let Some(made) = self.made()? {
                return Ok(made);
            }
            let link = Arc::clone(self);
            let task = making.get_or_insert_with(|| tokio::spawn(link.make()));
            // A panic in there was logged.
            let _made = task.await;
            *making = None;
        }
    }

    /// Makes a connection, or says why there is none.
    async fn make(self: Arc<RedisLink>) {
        let number = {
            let mut tried = self.tried.lock();
            tried.number += 1;
            tried.number
        };
        let longest = to_connect(self.timeout);
        let made = tokio::time::timeout(longest, self.connect(number)).await;
        let late = || format!("{}: no connection within {longest:?}", self.place());
        let made = made.map_err(|_| StoreError::Unavailable(late()));
        let made = made.and_then(|made| made.map_err(|error| self.refused(&error)));
        let mut tried = self.tried.lock();
        match made {
            Ok((connection, master)) => {
                tried.failed = None;
                tried.made = Some(connection);
                if let Some(master) = master {
                    tokio::spawn(watch(Arc::downgrade(&self), number, master));
                }
            }
            Err(error) => tried.failed = Some((Instant::now(), error)),
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
        let mut tried = self.tried.lock();
        if tried.made.is_some() && tried.number <= self.broken.load(Ordering::Acquire) {
            tried.made = None;
            let why = format!("{}: another server takes the place of one", self.place());
            return Err(StoreError::Unavailable(why));
        }
        match (&tried.made, &tried.failed) {
            (Some(made), _) => Ok(Some((made.clone(), tried.number))),
            (None, Some((at, error))) if at.elapsed() < PAUSE => Err(error.clone()),
            _ => Ok(None),
        }
    }

    /// Where a connection's news go. A cluster's library connects to other nodes by itself: but who took the place of
    /// a lost one may not have all that it had, and has no subscriptions. So that is a failure here as it is with a
    /// single server, and callers put back what they know.
    fn news_of(
        &self,
        number: u64,
    ) -> impl Fn(PushInfo) -> Result<(), Infallible> + Send + Sync + 'static {
        let (news, broken, me) = (self.news.clone(), self.broken.clone(), self.owner.clone());
        let is_cluster = matches!(self.target.kind, Layout::Cluster(_));
        move |push| {
            if is_cluster && push.kind == PushKind::Disconnection {
                broken.fetch_max(number, Ordering::AcqRel);
            }
            if let Some(text) = news_in(&push, &me) {
                // Whoever had the receiver is gone with the store.
                let _received = news.send(text);
            }
            Ok(())
        }
    }

    /// A connection; and where sentinels say that the master is, if they were asked.
    async fn connect(
        &self,
        number: u64,
    ) -> Result<(Connection, Option<ConnectionAddr>), RedisError> {
        let mut named = None;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(to_connect(self.timeout)))
            .set_response_timeout(None)
            .set_push_sender(self.news_of(number));
        let mut connection = match &self.target.kind {
            Layout::One(info) => {
                let client = match self.target.certificates() {
                    Some(certificates) => Client::build_with_tls(info.clone(), certificates)?,
                    None => Client::open(info.clone())?,
                };
                let made = client.get_multiplexed_async_connection_with_config(&config);
                Connection::One(made.await?)
            }
            Layout::Sentinel { nodes, master, .. } => {
                let client = self.master(nodes, master).await?;
                named = Some(client.get_connection_info().addr().clone());
                let made = client.get_multiplexed_async_connection_with_config(&config);
                Connection::One(made.await?)
            }
            Layout::Cluster(nodes) => {
                let builder = ClusterClient::builder(nodes.clone())
                    .connection_timeout(to_connect(self.timeout) / SILENT)
                    .response_timeout(self.timeout)
                    // Whoever asks waits by itself, and no longer than the timeout.
                    .retries(1)
                    .min_retry_wait(WAIT.start)
                    .max_retry_wait(WAIT.end)
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
        Ok((connection, named))
    }

    /// The server that sentinels name as master, and that says so itself.
    async fn master(&self, nodes: &[ConnectionInfo], name: &str) -> Result<Client, RedisError> {
        let mut addresses: Vec<_> = nodes.iter().map(|node| node.addr().clone()).collect();
        // Their answers are taken in this order, and the wait for a silent one takes all the time there is: the next
        // look begins with another.
        let look = self.looks.fetch_add(1, Ordering::Relaxed);
        addresses.rotate_left(look % nodes.len().max(1));
        let builder = SentinelClientBuilder::new(addresses, name, SentinelServerType::Master)?;
        let mut client = self.target.of_sentinel(builder).build()?;
        client.async_get_client().await
    }

    /// Whether most sentinels name another master than this one: one alone may be cut off from the others.
    async fn is_deposed(&self, known: &ConnectionAddr) -> bool {
        let Layout::Sentinel { nodes, master, .. } = &self.target.kind else {
            return false;
        };
        let mut others = 0;
        for node in nodes.chunks(1) {
            let named = tokio::time::timeout(to_connect(self.timeout), self.master(node, master));
            let is_other = matches!(named.await, Ok(Ok(client)) if client.get_connection_info().addr() != known);
            others += usize::from(is_other);
        }
        2 * others > nodes.len()
    }
}

/// Drops this connection when sentinels name another master than the one it leads to: that may be cut off from them
/// and not from us, and each of the two would let start what the limits allow.
async fn watch(link: Weak<RedisLink>, number: u64, master: ConnectionAddr) {
    loop {
        sleep(LOOK).await;
        let Some(link) = link.upgrade().filter(|link| link.is_used(number)) else {
            return;
        };
        if link.is_deposed(&master).await {
            tracing::warn!(
                id = %"store_moved",
                store = link.place(),
                from = %master,
                "the sentinels name another master: it is used from now on"
            );
            // As where a node of a cluster is lost: the other may not have all that this one had, so callers shall put
            // back what they know.
            link.broken.fetch_max(number, Ordering::AcqRel);
        }
    }
}

/// What the server says of siblings; `None`: nothing.
fn news_in(push: &PushInfo, me: &str) -> Option<String> {
    match push.kind {
        PushKind::Message => {
            let (owner, text) = wire::text(push.data.get(1)?)?.split_once('\n')?;
            (owner != me).then(|| text.to_owned())
        }
        // What was said in between was not heard.
        PushKind::Disconnection | PushKind::Subscribe => Some("all".to_owned()),
        _ => None,
    }
}

/// The code of an error. Before 7.0 that of an error within a script stands in the text of an `ERR`, with a `-` or
/// without.
fn code_of(error: &RedisError) -> &str {
    let code = error.code().unwrap_or_default();
    let text = error.detail().unwrap_or_default();
    let Some((_, text)) = text.split_once("running script").filter(|_| code == "ERR") else {
        return code;
    };
    let is_code = |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let words = text.split(": ").filter_map(|part| part.split(' ').next());
    let mut words = words.map(|word| word.trim_start_matches('-'));
    words.find(|word| is_code(word)).unwrap_or(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_within_a_script_is_known_by_its_own_code_in_every_version() {
        for (text, code) in [
            (
                "-READONLY You can't write against a read only replica. script: 5, on @user_script:9.",
                "READONLY",
            ),
            (
                "-ERR Error running script (call to f_5): @user_script:9: @user_script: 9: -READONLY You can't write \
              against a read only replica.",
                "READONLY",
            ),
            (
                "-ERR Error running script (call to f_5): @user_script:9: @user_script: 9: -NOREPLICAS Not enough good \
              replicas to write.",
                "NOREPLICAS",
            ),
            (
                "-ERR Error running script (call to f_5): @user_script:9: user_script:9: attempt to index a nil value",
                "ERR",
            ),
            (
                "-ERR Error running script (call to f_5): @user_script:9: WRONGTYPE Operation against a key holding the \
              wrong kind of value",
                "WRONGTYPE",
            ),
            ("-ERR unknown command: -READONLY", "ERR"),
        ] {
            let value = redis::parse_redis_value(format!("{text}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err();
            assert_eq!(code_of(&error), code, "{text}");
        }
    }
}
