//! Connections: how they are made and what their errors mean.

use std::future::poll_fn;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ojs_tls::{BadPem, ClientFiles, ClientTls, PlatformRoots};
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::config::{Config, SslMode};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::super::config::{BadUrl, StoreConfig, distrusted, refuse_fragment};
use super::super::remote::to_connect;
use super::super::{Clock, StoreError};
use super::failed::Failed;
use super::table::{ALIVE, POOLED, Session, keeps_session};

/// One in so many parts of the time to connect is what an address has that lets packets vanish. Whoever needs longer
/// has no session in time: that takes more than so many round trips.
const ADDRESSES: u32 = 4;

/// The longest name that Postgres tells apart.
const LONGEST_NAME: usize = 63;

/// What a store on Postgres is told. The namespace is the name of the schema, and of the channel on which sidecars hear
/// of each other.
pub type PostgresConfig = StoreConfig<PostgresTarget>;

/// Where a Postgres is, and how it is spoken to.
#[derive(Clone)]
pub struct PostgresTarget {
    /// For each of its hosts one, in their order.
    hosts: Vec<Config>,
    tls: Option<Arc<ClientTls>>,
    /// Its URL says whether connections are encrypted.
    says_mode: bool,
    /// For messages: without password.
    place: Arc<str>,
}

impl PostgresTarget {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=require`. With any `sslmode` but
    /// `disable` the connection is encrypted and the server's certificate must be right; how is said by
    /// [`PostgresTarget::with_files`].
    ///
    /// # Errors
    /// What is wrong with it, without repeating it.
    pub fn parse(url: &str) -> Result<PostgresTarget, BadUrl> {
        let after_scheme = url.split_once("://").map_or("", |(_, rest)| rest);
        if after_scheme.matches('@').count() > 1 {
            // Whatever of a password stands behind the first would be taken for the host.
            let why = "it has more than one `@`: percent-encode what is in user and password (`@` is %40)";
            return Err(BadUrl(why.to_owned()));
        }
        refuse_fragment(after_scheme)?;
        let says_mode = url.contains("sslmode=");
        // What other clients call so is what this one always does.
        let url = url
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require")
            .replace("sslmode=prefer", "sslmode=require");
        let read = |url: &str| {
            Config::from_str(url).map_err(|error| {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                BadUrl(cause.unwrap_or_else(|| "it is not understood".to_owned()))
            })
        };
        let whole = read(&url)?;
        if whole.get_hosts().is_empty() {
            return Err(BadUrl("it names no host".to_owned()));
        }
        let ssl_mode = match says_mode && whole.get_ssl_mode() != SslMode::Disable {
            true => SslMode::Require,
            false => SslMode::Disable,
        };
        let mut hosts = each_host(&url)
            .map(|url| read(&url))
            .collect::<Result<Vec<_>, _>>()?;
        for config in &mut hosts {
            let config = config.ssl_mode(ssl_mode).application_name("ojs-throttle");
            config.keepalives_idle(Duration::from_secs(10));
            config.keepalives_interval(Duration::from_secs(5));
        }
        let place = place(&whole).into();
        Ok(PostgresTarget {
            hosts,
            tls: None,
            says_mode,
            place,
        })
    }

    /// Trusts who signed what is in the file of `ca`, in place of the platform's roots, and shows who we are to a server
    /// that asks. A URL without `sslmode` is encrypted if there is such a file.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn with_files(mut self, files: ClientFiles) -> Result<PostgresTarget, BadPem> {
        if !self.says_mode && files.ca.is_some() {
            for host in &mut self.hosts {
                host.ssl_mode(SslMode::Require);
            }
        }
        if self
            .hosts
            .iter()
            .any(|host| host.get_ssl_mode() == SslMode::Require)
        {
            let tls = ClientTls::new(files, PlatformRoots::WithoutOthers, &[])?;
            self.tls = Some(Arc::new(tls));
        }
        Ok(self)
    }
}

impl std::fmt::Debug for PostgresTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place)
    }
}

/// The URL of each host of a URL. The library goes on to the next host where one does not take a connection, and not where
/// one takes it and says nothing more.
fn each_host(url: &str) -> impl Iterator<Item = String> {
    let begin = url.find('@').map(|at| at + 1);
    let begin = begin.or_else(|| url.find("://").map(|at| at + 3));
    let (before, rest) = url.split_at(begin.unwrap_or(0));
    let (hosts, after) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    hosts
        .split(',')
        .map(move |host| format!("{before}{host}{after}"))
}

fn place(config: &Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        tokio_postgres::config::Host::Tcp(name) => name.clone(),
        tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
    });
    let hosts = hosts.collect::<Vec<_>>().join(",");
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().unwrap_or_default();
    format!("postgres://{hosts}:{port}/{database}")
}

/// How connections are made.
#[derive(Clone)]
pub(super) struct PostgresLink {
    target: PostgresTarget,
    namespace: String,
    timeout: Duration,
    /// The way there was seen to keep sessions. Whoever finds later that it does not says so.
    keeps_sessions: Arc<AtomicBool>,
}

impl PostgresLink {
    pub(super) fn new(config: &PostgresConfig) -> PostgresLink {
        let mut target = config.target.clone();
        for host in &mut target.hosts {
            if host.get_connect_timeout().is_none() {
                host.connect_timeout(to_connect(config.timeout) / ADDRESSES);
            }
        }
        PostgresLink {
            target,
            namespace: config.namespace.clone(),
            timeout: config.timeout,
            keeps_sessions: Arc::default(),
        }
    }

    /// A connection that is ready for work, made beside what waits for it.
    pub(super) async fn session(&self, given: Option<Clock>) -> Result<Session, StoreError> {
        if self.namespace.len() > LONGEST_NAME {
            let why = format!("store.namespace is longer than {LONGEST_NAME} bytes");
            return Err(StoreError::Unusable(why));
        }
        let longest = to_connect(self.timeout);
        let made = tokio::time::timeout(longest, async {
            let client = self.connect(None).await?;
            if !self.keeps_sessions.load(Ordering::Relaxed) {
                let other = self.connect(None).await?;
                let kept = keeps_session(&client, &other).await;
                kept.map_err(|failed| self.told(&failed))?;
                self.keeps_sessions.store(true, Ordering::Relaxed);
            }
            let made = Session::new(client, &self.namespace, self.timeout, given).await;
            made.map_err(|failed| self.told(&failed))
        });
        made.await.map_err(|_| self.silent(longest))?
    }

    /// Nobody answered for so long.
    fn silent(&self, time: Duration) -> StoreError {
        let place = &self.target.place;
        StoreError::Unavailable(format!("{place}: no connection within {time:?}"))
    }

    /// A question could not wait any longer for the connection.
    pub(super) fn not_yet(&self) -> StoreError {
        let (place, timeout) = (&self.target.place, self.timeout);
        let why = format!("{place}: no connection yet, within the {timeout:?} of store.timeout");
        StoreError::Unavailable(why)
    }

    /// Passes on what others say, for as long as the connection lasts.
    pub(super) async fn listen(&self, me: &str, news: &UnboundedSender<String>) {
        let heard = NewsReader {
            me: me.to_owned(),
            to: news.clone(),
        };
        let channel = super::text::quoted(&self.namespace);
        let listening = tokio::time::timeout(to_connect(self.timeout), async {
            let client = self.connect(Some(heard)).await.ok()?;
            client.batch_execute(ALIVE).await.ok()?;
            let listen = client.batch_execute(&format!("LISTEN {channel}")).await;
            listen.ok().map(|()| client)
        });
        let Ok(Some(client)) = listening.await else {
            return;
        };
        // What was said before was not heard.
        let _received = news.send("all".to_owned());
        while !client.is_closed() && !news.is_closed() {
            tokio::select! {
                () = news.closed() => return,
                () = tokio::time::sleep(Duration::from_secs(5)) => {
                    let asked = tokio::time::timeout(self.timeout, client.simple_query(""));
                    if !matches!(asked.await, Ok(Ok(_))) {
                        return;
                    }
                }
            }
        }
    }

    /// A connection to the first host that answers. One of several has a part of the time for its answer.
    pub(super) async fn connect(&self, news: Option<NewsReader>) -> Result<Client, StoreError> {
        let hosts = &self.target.hosts;
        let mut last = StoreError::Timeout;
        for host in hosts {
            let time = host.get_connect_timeout().filter(|_| hosts.len() > 1);
            let time = *time.unwrap_or(&Duration::MAX);
            match tokio::time::timeout(time, self.connect_to(host, news.clone())).await {
                Ok(Ok(client)) => return Ok(client),
                Ok(Err(error)) => last = error,
                Err(_) => last = self.silent(time),
            }
        }
        Err(last)
    }

    async fn connect_to(
        &self,
        config: &Config,
        news: Option<NewsReader>,
    ) -> Result<Client, StoreError> {
        let failed = |error| self.told(&Failed::Postgres(error));
        match &self.target.tls {
            Some(tls) => {
                let tls = MakeRustlsConnect::new((*tls.config()).clone());
                let made = config.connect(tls).await;
                let (client, connection) = made.map_err(failed)?;
                tokio::spawn(drive(connection, news));
                Ok(client)
            }
            None => {
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                tokio::spawn(drive(connection, news));
                Ok(client)
            }
        }
    }

    /// What a failure means here.
    pub(super) fn told(&self, failed: &Failed) -> StoreError {
        let place = &self.target.place;
        let error = match failed {
            Failed::Postgres(error) => error,
            Failed::Unusable(why) => return StoreError::Unusable(format!("{place}: {why}")),
            Failed::Unavailable(why) => return StoreError::Unavailable(format!("{place}: {why}")),
        };
        let Some(said) = error.as_db_error() else {
            let cause = std::error::Error::source(error);
            let cause = cause.map_or(String::new(), |cause| format!(": {cause}"));
            return StoreError::Unavailable(distrusted(format!("{place}: {error}{cause}")));
        };
        let text = format!("{place}: {}", said.message());
        match said.code().code() {
            // Our tables are gone; the next connection makes new ones.
            "42P01" | "3F000" | "42703" => StoreError::Wiped,
            // Statements of another session, or no transactions at all.
            "26000" | "42P05" => StoreError::Unusable(format!("{text}; {POOLED}")),
            _ if text.contains("pooling mode") => StoreError::Unusable(format!("{text}; {POOLED}")),
            "57014" | "55P03" | "25P03" => StoreError::Timeout,
            // What the server was told made it fail, not how the server is. A limit of the server (54) is how it is: its
            // queue of notifications may be full. It is never told a name that is too long for an index.
            code if code.starts_with("22") => StoreError::Unfit(text),
            "42501" => StoreError::Unusable(format!(
                "{text}; the user needs CREATE on the database, or to own the schema {}",
                super::text::quoted(&self.namespace)
            )),
            "28P01" | "28000" | "3D000" => StoreError::Unusable(text),
            _ => StoreError::Unavailable(text),
        }
    }
}

/// Where what others say goes.
#[derive(Clone)]
pub(super) struct NewsReader {
    me: String,
    to: UnboundedSender<String>,
}

/// Moves a connection's bytes until it ends.
async fn drive<S, T>(mut connection: Connection<S, T>, news: Option<NewsReader>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
        if let (AsyncMessage::Notification(said), Some(news)) = (&message, &news)
            && let Some((owner, text)) = said.payload().split_once('\n')
            && owner != news.me
        {
            let _received = news.to.send(text.to_owned());
        }
    }
    // What is said from now on is not heard until there is another one.
    if let Some(news) = news {
        let _received = news.to.send("all".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::{Host, TargetSessionAttrs};

    use super::*;

    #[test]
    fn urls_are_read_and_passwords_are_not_shown() {
        let is_encrypted = |target: &PostgresTarget| {
            let mut hosts = target.hosts.iter();
            hosts.all(|host| host.get_ssl_mode() == SslMode::Require)
        };
        let target = PostgresTarget::parse("postgres://u:secret@a,b/limits").unwrap();
        assert_eq!(format!("{target:?}"), "postgres://a,b:5432/limits");
        assert!(!is_encrypted(&target));
        let target = PostgresTarget::parse("postgres://u:secret@a/l?sslmode=verify-full").unwrap();
        assert!(is_encrypted(&target));
        for url in [
            "postgres://u:secret@a:port/",
            "postgres://u:secret@a/?x=secret",
            "postgres:///db",
            "postgres://u:geh@secret@a/l",
            "postgres://u:geh@secret:1@a/l",
            "postgres://u:geh@b/secret@a/l",
            "postgres://u:geh@b?secret=1@a/l",
            "postgres://u:secret@a/l#insecure",
            "postgres://u:secret#2@a/l",
            "postgres://u:secret@a/l?sslmode=require#insecure",
            "postgres://u:secret@a/l?sslmode=allow",
        ] {
            let error = PostgresTarget::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{url}: {error}");
            assert_eq!(
                error.contains("percent-encode"),
                url.contains("geh"),
                "{error}"
            );
        }
        let target = PostgresTarget::parse("postgres://u:geh%40eim@a/l").unwrap();
        assert_eq!(target.hosts[0].get_password(), Some(&b"geh@eim"[..]));
    }

    #[test]
    fn each_host_is_asked_as_the_whole_url_says() {
        let url = "postgres://u:geheim@a:5433,%2Frun%2Fpg/limits?target_session_attrs=read-write";
        let target = PostgresTarget::parse(url).unwrap();
        let tcp = Host::Tcp("a".to_owned());
        let unix = Host::Unix("/run/pg".into());
        let hosts = target.hosts.iter().map(Config::get_hosts);
        assert_eq!(hosts.collect::<Vec<_>>(), [&[tcp], &[unix]]);
        for (host, port) in target.hosts.iter().zip([5433, 5432]) {
            assert_eq!(host.get_ports(), [port]);
            assert_eq!(host.get_password(), Some(&b"geheim"[..]));
            assert_eq!(host.get_dbname(), Some("limits"));
            let attributes = host.get_target_session_attrs();
            assert_eq!(attributes, TargetSessionAttrs::ReadWrite);
        }
    }
}
