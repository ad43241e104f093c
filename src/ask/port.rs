//! The admin port of a sidecar, and why it may give no answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use http::{HeaderValue, Method, StatusCode};
use serde_json::Value;

use crate::cli::TOKEN;
use crate::client::JsonClient;
use crate::config::{ServerSettings, TlsSettings};
use crate::net::Net;
use crate::tls::{self, ListenerTls};
use crate::wire::upstream::{CallBounds, Target, Upstream};

/// Where the admin port is if nobody says.
pub const DEFAULT: &str = "http://127.0.0.1:9091";
/// The longest that an answer may take; the admin port takes 5 s at most.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The sidecar refused: wrong token, unknown key.
    #[error("{1}")]
    Refused(StatusCode, String),
    /// The address or the token is none.
    #[error("{0}")]
    Unfit(String),
    /// Nobody answered.
    #[error("{0}")]
    Unreached(String),
}

impl AskError {
    /// The exit status of a command that ends so: 1 refused, 2 not understood, 3 not reached.
    pub fn exit_status(&self) -> u8 {
        match self {
            AskError::Refused(..) => 1,
            AskError::Unfit(_) => 2,
            AskError::Unreached(_) => 3,
        }
    }
}

/// Where the admin port of these settings is, for who is on the same host.
pub fn place_of(server: &ServerSettings) -> AdminPlace {
    let mut address = server.admin_listen;
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let tls = server.admin_tls.as_ref().map(TlsSettings::listener);
    let scheme = if tls.is_some() { "https" } else { "http" };
    AdminPlace {
        url: format!("{scheme}://{address}"),
        tls,
        trusts_any: false,
    }
}

/// Where an admin port is.
#[derive(Clone, Debug, Default)]
pub struct AdminPlace {
    /// Its URL.
    pub url: String,
    /// What it shows, where the settings are known. A URL alone goes by the platform's roots.
    pub tls: Option<ListenerTls>,
    /// Whether it may show any certificate: the file may have another one by now than what runs. No secret is sent.
    pub trusts_any: bool,
}

/// The admin port of one sidecar.
#[derive(Debug)]
pub struct AdminPort {
    client: JsonClient,
    url: String,
    /// Why the port refuses the certificate that is shown there.
    shut_out: Option<rustls::Error>,
}

impl AdminPort {
    /// The admin port there; `token` is that of `server.control_token`.
    ///
    /// # Errors
    /// The URL is none, or the token can stand in no header.
    pub fn new(place: &AdminPlace, token: Option<&str>) -> Result<AdminPort, AskError> {
        let AdminPlace { url, .. } = place;
        let shown = place.tls.as_ref();
        let only = shown.filter(|_| !place.trusts_any);
        let target = match shown.is_some() || place.trusts_any {
            false => Target::parse(url),
            true => Target::trusting(url, tls::local_client(only, shown)),
        };
        let target = target.map_err(|why| AskError::Unfit(why.to_string()))?;
        let server = Upstream::new(target, Net::Tcp, CallBounds::default());
        let mut client = JsonClient::new(server, PATIENCE);
        if let Some(token) = token {
            let mut login = HeaderValue::try_from(format!("Bearer {token}"))
                .map_err(|_| AskError::Unfit("the control token can stand in no header".into()))?;
            login.set_sensitive(true);
            client = client.authorized(login);
        }
        Ok(AdminPort {
            client,
            url: url.to_owned(),
            shut_out: shown.and_then(ListenerTls::shuts_out_its_own),
        })
    }

    /// Gets a page as JSON.
    ///
    /// # Errors
    /// Nobody answers, or the answer is a refusal.
    pub async fn get(&self, path: &str) -> Result<Value, AskError> {
        let text = self.call(Method::GET, path, None).await?;
        Ok(serde_json::from_str(&text).unwrap_or_default())
    }

    /// Makes one call; the answer as it came.
    ///
    /// # Errors
    /// As [`AdminPort::get`].
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, AskError> {
        let answer = self.client.exchange(method, path, body).await;
        let (status, body) = answer.map_err(|why| {
            // The client's errors call whatever it asks a backend, and know the file of one.
            let why = format!("{why:#}").replace("the backend", "the port");
            let why = why.replace("must server.upstream begin", "must its URL begin");
            let todo = match self.shut_out.as_ref().filter(|_| why.contains("alert")) {
                Some(why) => &format!(
                    "server.admin_tls.client_ca_file lets in no client with cert_file ({why})"
                ),
                None if UNTRUSTED.iter().any(|word| why.contains(word)) => {
                    return AskError::Unreached(format!(
                        "what answers at {0} shows a certificate that is not trusted here. With --config it is to be that \
                         of server.admin_tls.cert_file, and a sidecar keeps the last good pair while the file's is wrong: \
                         put the pair right, or ask with SSL_CERT_FILE=CA.pem and --admin {0}",
                        self.url
                    ));
                }
                None => "say where its admin port is by --admin or --config",
            };
            AskError::Unreached(format!(
                "no sidecar answers at {} ({why}): {todo}",
                self.url
            ))
        })?;
        match status {
            StatusCode::OK => Ok(String::from_utf8_lossy(&body).into_owned()),
            // An admin port says what it has not found.
            StatusCode::NOT_FOUND if message(&body).is_none() => Err(AskError::Refused(
                status,
                format!(
                    "what answers at {} is no admin port: its address is server.admin_listen in the file, 127.0.0.1:9091 by \
                     default; say it by --admin or --config",
                    self.url
                ),
            )),
            _ => Err(AskError::Refused(status, refusal(status, &body))),
        }
    }
}

/// What says of a certificate that none of those that are trusted has signed it.
const UNTRUSTED: [&str; 3] = [
    "UnknownIssuer",
    "BadSignature",
    "UnsupportedSignatureAlgorithm",
];

/// The message of a fault.
fn message(body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    Some(body["error"]["message"].as_str()?.to_owned())
}

/// What a refusal says, with what to do.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    // `/readyz` says in plain text what is missing.
    let plain = std::str::from_utf8(body).map(str::trim).unwrap_or_default();
    let mut said = match message(body) {
        Some(message) => message,
        None if plain.is_empty() || plain.len() > 200 || plain.contains(['<', '{', '\n']) => {
            status.to_string()
        }
        None => format!("{status}: {plain}"),
    };
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(hint) = body["error"]["hint"].as_str() {
        said = format!("{said}: {hint}");
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        said += &format!(" (commands send that of --config, else {TOKEN})");
    }
    said
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_this_host() {
        for (listens, url) in [
            ("0.0.0.0:9091", "http://127.0.0.1:9091"),
            ("[::]:9091", "http://[::1]:9091"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            let server = ServerSettings {
                admin_listen: listens.parse().unwrap(),
                ..ServerSettings::default()
            };
            assert_eq!(place_of(&server).url, url);
        }
    }
}
