//! The backend's address.

use std::sync::Arc;

use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, uri};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::base_url::{BaseUrl, without_login};
use ojs_tls::{BadPem, ClientFiles, ClientTls, PlatformRoots};

/// What we speak over TLS.
const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// Where the backend is, and how connections to it are secured.
#[derive(Clone)]
pub struct Target {
    url: BaseUrl,
    authority: HeaderValue,
    tls: Option<Tls>,
}

/// The target of a request: path and query.
#[derive(Clone, Debug)]
pub enum Path {
    /// Parsed already, from a client's request line.
    Read(Uri),
    /// Made here; parsed when it is sent.
    Text(String),
}

impl Path {
    /// The path as a request line has it.
    ///
    /// # Errors
    /// The text cannot stand in a request line.
    pub fn into_uri(self) -> Result<Uri, uri::InvalidUri> {
        match self {
            Path::Read(uri) => Ok(uri),
            Path::Text(text) => Uri::try_from(text),
        }
    }
}

impl From<String> for Path {
    fn from(text: String) -> Path {
        Path::Text(text)
    }
}

impl From<&str> for Path {
    fn from(text: &str) -> Path {
        Path::Text(text.to_owned())
    }
}

/// The parts that a TLS connection needs.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientTls>,
    pub(super) name: ServerName<'static>,
}

/// Why a text is no [`Target`].
#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    /// It does not parse, or says something that has no meaning here.
    #[error("{0:?} is no URL to call: {1}")]
    Url(String, String),
    /// A file says nothing of whom we trust or who we are.
    #[error("{0}")]
    Files(#[from] BadPem),
    /// TLS cannot be spoken.
    #[error("TLS cannot be spoken: {0}")]
    Tls(#[from] rustls::Error),
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.url)
    }
}

impl Target {
    /// The backend at `url`. For `https` the platform's roots are trusted, and those of `files` beside them.
    ///
    /// # Errors
    /// The host can stand in no header, or the files are of no use.
    pub fn new(url: BaseUrl, files: ClientFiles) -> Result<Target, BadTarget> {
        let config = match url.tls {
            true => {
                let config = ClientTls::new(files, PlatformRoots::Always, PROTOCOLS)?;
                Some(Arc::new(config))
            }
            false => None,
        };
        Target::speaking(url, config)
    }

    /// The server at `url`, spoken to in this way where it is `https`.
    ///
    /// # Errors
    /// The text is no URL, or TLS cannot be spoken.
    pub fn trusting(
        text: &str,
        config: Result<ClientConfig, rustls::Error>,
    ) -> Result<Target, BadTarget> {
        let url: BaseUrl = text
            .parse()
            .map_err(|why| BadTarget::Url(without_login(text), why))?;
        let mut config = config?;
        config.alpn_protocols = PROTOCOLS.iter().map(|name| name.to_vec()).collect();
        let config = url.tls.then(|| Arc::new(ClientTls::fixed(config)));
        Target::speaking(url, config)
    }

    /// The server at `url`, over the same TLS.
    pub(super) fn at(&self, url: BaseUrl) -> Result<Target, BadTarget> {
        let config = self.tls.as_ref().map(|tls| Arc::clone(&tls.config));
        Target::speaking(url, config)
    }

    fn speaking(url: BaseUrl, config: Option<Arc<ClientTls>>) -> Result<Target, BadTarget> {
        let authority = HeaderValue::from_str(&url.authority())
            .map_err(|_| BadTarget::Url(url.to_string(), "its host is no header value".into()))?;
        let tls = config
            .map(|config| Tls::new(&url.host, config))
            .transpose()?;
        Ok(Target {
            url,
            authority,
            tls,
        })
    }

    /// Reads `http(s)://host[:port][/base/path]`.
    ///
    /// # Errors
    /// The text is no such URL; as [`Target::new`].
    pub fn parse(text: &str) -> Result<Target, BadTarget> {
        let url = text.parse();
        let url = url.map_err(|why| BadTarget::Url(without_login(text), why))?;
        Target::new(url, ClientFiles::default())
    }

    /// Its address.
    pub fn url(&self) -> &BaseUrl {
        &self.url
    }

    /// The host, without brackets.
    pub fn host(&self) -> &str {
        &self.url.host
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.url.port
    }

    /// The value of `Host`.
    pub(super) fn authority(&self) -> HeaderValue {
        self.authority.clone()
    }

    /// How to secure connections, if the scheme is `https`.
    pub(super) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// The request line: the base path, unless the target has it, then path and query as they came. A scheme and host that
    /// the client wrote there are ignored, because there is one backend.
    pub(super) fn line(&self, target: Uri, has_base: bool) -> Result<Uri, uri::InvalidUri> {
        let is_path = target.authority().is_none() && target.scheme().is_none();
        let path = target.path_and_query().map_or("/", PathAndQuery::as_str);
        if path == "*" || is_path && self.url.base.is_empty() {
            return Ok(target);
        }
        // A URL may have a query and no path.
        let slash = if path.starts_with('?') { "/" } else { "" };
        let base = if has_base { "" } else { &*self.url.base };
        Uri::try_from([base, slash, path].concat())
    }
}

impl Tls {
    fn new(host: &str, config: Arc<ClientTls>) -> Result<Tls, BadTarget> {
        let unnamed = "no name that a certificate can bear";
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| BadTarget::Url(host.to_owned(), unnamed.into()))?;
        Ok(Tls { config, name })
    }

    /// For a connection that begins.
    pub(super) fn connector(&self) -> TlsConnector {
        TlsConnector::from(self.config.config())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(base: &str, target: &str) -> String {
        let target: Uri = target.parse().unwrap();
        Target::parse(base)
            .unwrap()
            .line(target, false)
            .unwrap()
            .to_string()
    }

    #[test]
    fn the_base_path_goes_before_every_target() {
        assert_eq!(line("http://h:1", "/ojs/v1/jobs?a=b"), "/ojs/v1/jobs?a=b");
        assert_eq!(line("http://h:1/", "/%66?a"), "/%66?a");
        assert_eq!(line("http://h:1/base/", "/ojs//x"), "/base/ojs//x");
        assert_eq!(line("http://h:1/base", "*"), "*");
    }

    #[test]
    fn a_host_in_the_request_line_leads_nowhere() {
        assert_eq!(line("http://h:1", "http://169.254.169.254/x?y"), "/x?y");
        assert_eq!(line("http://h:1/b", "http://169.254.169.254/x"), "/b/x");
        assert_eq!(line("http://h:1", "http://169.254.169.254"), "/");
        assert_eq!(line("http://h:1", "http://169.254.169.254?a"), "/?a");
        assert_eq!(line("http://h:1/b", "http://169.254.169.254?a"), "/b/?a");
    }

    #[test]
    fn ports_and_hosts() {
        let target = Target::parse("http://[::1]:8080/x").unwrap();
        assert_eq!((target.host(), target.port()), ("::1", 8080));
        assert_eq!(target.authority(), "[::1]:8080");
        assert_eq!(Target::parse("http://h").unwrap().port(), 80);
    }
}
