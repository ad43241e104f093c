//! What a URL says about where Redis is.

use std::num::NonZeroU16;
use std::sync::Arc;

use ojs_tls::{BadPem, ClientFiles, ClientPem, ClientTls, PlatformRoots};
use redis::sentinel::SentinelClientBuilder;
use redis::{
    ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    TlsCertificates, TlsMode,
};

use crate::config::{BadUrl, StoreConfig, refuse_fragment};

/// What a store on Redis is told. The namespace is the hash tag of all keys.
pub type RedisConfig = StoreConfig<RedisTarget>;

/// Where Redis is.
#[derive(Clone)]
pub struct RedisTarget {
    /// For people: without user and password.
    pub(super) place: String,
    pub(super) kind: Layout,
    /// `None`: the library trusts the system's roots and shows nothing.
    tls: Option<Arc<ClientTls>>,
}

#[derive(Clone)]
pub(super) enum Layout {
    One(ConnectionInfo),
    /// The addresses are those of sentinels; user, password and database are the server's.
    Sentinel {
        nodes: Vec<ConnectionInfo>,
        master: String,
        /// User and password of the sentinels themselves.
        login: Option<ConnectionInfo>,
    },
    Cluster(Vec<ConnectionInfo>),
}

impl RedisTarget {
    /// Reads `redis://[user:password@]host[:port][/db]`, with `rediss` for TLS. Several servers are
    /// separated by commas: `redis+cluster://a,b,c` are nodes of a cluster,
    /// `redis+sentinel://a,b,c/master[/db][?sentinel=user:password]` are sentinels (port 26379 unless
    /// said otherwise), and who may ask them.
    ///
    /// # Errors
    /// It is not of that form. The message does not repeat a password.
    pub fn parse(url: &str) -> Result<RedisTarget, BadUrl> {
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| BadUrl("it has no scheme, such as redis://".to_owned()))?;
        let scheme = scheme.replace("valkey", "redis");
        let (plain, mode) = scheme
            .split_once('+')
            .map_or((scheme.as_str(), ""), |(plain, mode)| (plain, mode));
        if !["redis", "rediss"].contains(&plain) || !["", "cluster", "sentinel"].contains(&mode) {
            let known = "redis, rediss, redis+cluster or redis+sentinel";
            return Err(BadUrl(format!("its scheme is not {known}")));
        }
        let (login, hosts) = split_login(rest)?;
        let (hosts, query) = hosts.split_once('?').unwrap_or((hosts, ""));
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        if mode != "sentinel" && !query.is_empty() {
            // The library would heed some and ignore others.
            let why = "nothing may follow its path: a `?` says something of sentinels only";
            return Err(BadUrl(why.to_owned()));
        }
        let (master, db) = match mode {
            "sentinel" => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        if mode == "sentinel" && master.is_empty() {
            let form = "redis+sentinel://HOSTS/MASTER";
            return Err(BadUrl(format!("it names no master: {form}")));
        }
        let mut nodes = Vec::new();
        for host in hosts.split(',') {
            let host = match (mode, host.rsplit_once(':')) {
                ("sentinel", None) => format!("{host}:26379"),
                _ => host.to_owned(),
            };
            refuse_numbers(&host, db)?;
            nodes.push(node(&format!("{plain}://{login}{host}/{db}"))?);
        }
        let kind = match (mode, nodes.len()) {
            ("sentinel", _) => Layout::Sentinel {
                nodes,
                master: master.to_owned(),
                login: login_of_sentinels(query)?,
            },
            ("cluster", _) => Layout::Cluster(nodes),
            (_, 1) => Layout::One(nodes.remove(0)),
            _ => {
                let more = "several servers are redis+cluster:// or redis+sentinel://";
                return Err(BadUrl(more.to_owned()));
            }
        };
        let place = format!("{scheme}://{hosts}/{path}");
        Ok(RedisTarget {
            place: place.trim_end_matches('/').to_owned(),
            kind,
            tls: None,
        })
    }

    /// Trusts who signed what is in the file of `ca`, in place of the platform's roots, and shows who we are to a server
    /// that asks.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn with_files(mut self, files: ClientFiles) -> Result<RedisTarget, BadPem> {
        if files.ca.is_some() || files.cert.is_some() {
            let tls = ClientTls::new(files, PlatformRoots::WithoutOthers, &[])?;
            self.tls = Some(Arc::new(tls));
        }
        Ok(self)
    }

    /// What is trusted and shown by a connection that begins.
    pub(super) fn certificates(&self) -> Option<TlsCertificates> {
        let ClientPem { roots, identity } = self.tls.as_ref()?.pem();
        Some(TlsCertificates {
            client_tls: identity.map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            }),
            root_cert: roots,
        })
    }

    /// User, password and database of the server behind the sentinels, user and password of these, and TLS
    /// on the way to both.
    pub(super) fn of_sentinel(&self, builder: SentinelClientBuilder) -> SentinelClientBuilder {
        let Layout::Sentinel { nodes, login, .. } = &self.kind else {
            return builder;
        };
        let Some(node) = nodes.first() else {
            return builder;
        };
        let settings = node.redis_settings();
        let mut builder = builder
            .set_client_to_redis_db(settings.db())
            .set_client_to_redis_protocol(ProtocolVersion::RESP3);
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        let login = login.as_ref().map(|login| login.redis_settings());
        if let Some(user) = login.and_then(|login| login.username()) {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = login.and_then(|login| login.password()) {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if matches!(node.addr(), ConnectionAddr::TcpTls { .. }) {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
            if let Some(certificates) = self.certificates() {
                builder = builder
                    .set_client_to_sentinel_certificates(certificates.clone())
                    .set_client_to_redis_certificates(certificates);
            }
        }
        builder
    }
}

/// The login with its `@`, and what is behind it.
fn split_login(rest: &str) -> Result<(String, &str), BadUrl> {
    let (login, behind) = rest
        .rsplit_once('@')
        .map_or((String::new(), rest), |(login, behind)| {
            (format!("{login}@"), behind)
        });
    if login.contains(['/', '?', '#']) {
        let why =
            "before its `@` is a `/`, a `?` or a `#`: percent-encode what is in user and password";
        return Err(BadUrl(format!("{why} (%2F, %3F, %23)")));
    }
    refuse_fragment(behind)?;
    Ok((login, behind))
}

/// Refuses a port and a database that are none, of which the library does not say which one is wrong. They are not
/// repeated: where the `@` was forgotten, a password stands there.
fn refuse_numbers(host: &str, db: &str) -> Result<(), BadUrl> {
    let behind_address = host.rsplit(']').next().unwrap_or_default();
    let port = behind_address.rsplit_once(':').map_or("", |(_, port)| port);
    if !port.is_empty() && port.parse::<NonZeroU16>().is_err() {
        let why = "the port behind its `:` is no number from 1 to 65535";
        return Err(BadUrl(why.to_owned()));
    }
    let db = db.trim_matches('/');
    if !db.is_empty() && db.parse::<u32>().is_err() {
        let why = "the database behind its `/` is no number, such as 0";
        return Err(BadUrl(why.to_owned()));
    }
    Ok(())
}

/// What `?sentinel=user:password` says; an empty user is the default one.
fn login_of_sentinels(query: &str) -> Result<Option<ConnectionInfo>, BadUrl> {
    if query.is_empty() {
        return Ok(None);
    }
    match query.strip_prefix("sentinel=") {
        // Read as it would be before a host, with the same escapes.
        Some(login) => Ok(Some(node(&format!("redis://{login}@sentinel"))?)),
        None => {
            let form = "?sentinel=USER:PASSWORD";
            Err(BadUrl(format!("all that may follow its path is {form}")))
        }
    }
}

fn node(url: &str) -> Result<ConnectionInfo, BadUrl> {
    let unread = |error: redis::RedisError| {
        let why = error.detail().map(str::to_owned);
        BadUrl(why.unwrap_or_else(|| error.to_string()))
    };
    let info = url.into_connection_info().map_err(unread)?;
    let settings = info.redis_settings().clone();
    Ok(info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3)))
}

impl std::fmt::Debug for RedisTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_passwords_are_not_shown() {
        let place = |url: &str| RedisTarget::parse(url).map(|target| format!("{target:?}"));
        let one = place("redis://user:secret@host:7000/2").unwrap();
        assert_eq!(one, "redis://host:7000/2");
        assert_eq!(place("rediss://host").unwrap(), "rediss://host");
        assert_eq!(place("valkey://host").unwrap(), "redis://host");
        let target = RedisTarget::parse("redis+cluster://:pw@a:1,b:2").unwrap();
        let Layout::Cluster(nodes) = &target.kind else {
            panic!()
        };
        assert_eq!(nodes[1].addr().to_string(), "b:2");
        assert_eq!(nodes[1].redis_settings().password(), Some("pw"));
        let target = RedisTarget::parse("redis+sentinel://a,b:5/main/3").unwrap();
        let Layout::Sentinel { nodes, master, .. } = &target.kind else {
            panic!()
        };
        assert_eq!(nodes[0].addr().to_string(), "a:26379");
        assert_eq!(
            (master.as_str(), nodes[1].redis_settings().db()),
            ("main", 3)
        );
        let url = "redis+sentinel://u:pw@a/main?sentinel=:s%40cret";
        let target = RedisTarget::parse(url).unwrap();
        assert_eq!(format!("{target:?}"), "redis+sentinel://a/main");
        let Layout::Sentinel { nodes, login, .. } = &target.kind else {
            panic!()
        };
        assert_eq!(nodes[0].redis_settings().password(), Some("pw"));
        let login = login.as_ref().unwrap().redis_settings();
        assert_eq!((login.username(), login.password()), (None, Some("s@cret")));
    }

    #[test]
    fn the_part_of_a_url_that_is_wrong_is_named() {
        for (url, part) in [
            ("redis://h:99999", "port"),
            ("redis://h:secret", "port"),
            ("redis+cluster://a:1,[::1]:0", "port"),
            ("redis+sentinel://a:x/main", "port"),
            ("redis://h/abc", "database"),
            ("redis://h/-1", "database"),
            ("redis+sentinel://a/main/x", "database"),
        ] {
            let error = RedisTarget::parse(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
            assert!(!error.contains("secret"), "{url}: {error}");
        }
        for url in ["redis://[::1]", "redis://[::1]:1/0/", "redis://h:/15"] {
            assert_eq!(RedisTarget::parse(url).err(), None, "{url}");
        }
    }

    #[test]
    fn what_is_no_redis_is_refused_without_its_password() {
        for url in [
            "rediss://u:secret@host/0#insecure",
            "rediss+sentinel://u:secret@host/main#insecure",
            "redis://u:secret@host/0?protocol=resp2",
            "redis+cluster://u:secret@host?read=secret",
            "host:6379",
            "http://u:secret@host",
            "redis+ring://u:secret@host",
            "redis://u:secret@a,b",
            "redis+sentinel://u:secret@a,b",
            "redis+sentinel://u:secret@a/m?password=secret",
            "redis+sentinel://a/m?sentinel=u:secret@b/c",
            "redis://u:secret@host/db",
            "redis://u:secret@host:port",
            "redis://u:geh/secret@host",
            "redis://u:1/secret@host",
            "redis://u:geh?secret@host",
            "redis+cluster://:geh#secret@host",
        ] {
            let error = RedisTarget::parse(url).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{url}: {error}");
            let says = error.contains("percent-encode");
            assert!(
                says || !(url.contains("geh") || url.contains(":1/")),
                "{error}"
            );
        }
    }
}
