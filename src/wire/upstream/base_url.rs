//! The backend's address.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// The backend's address: `http` or `https`, host, port and a base path that is put before every
/// request's own. The default is none, which is known by its empty host.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct BaseUrl {
    /// Whether TLS is spoken.
    pub tls: bool,
    /// Name or address, without the brackets of an IPv6 one.
    pub host: String,
    /// 80 or 443 unless given.
    pub port: u16,
    /// Empty, or with a slash before and none behind.
    pub base: String,
}

impl BaseUrl {
    /// Whether no address was given.
    pub fn is_unknown(&self) -> bool {
        self.host.is_empty()
    }

    /// Host and port as in a `Host` header.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if self.port == usual_port(self.tls) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.base)
    }
}

impl FromStr for BaseUrl {
    /// What would be right.
    type Err = String;

    fn from_str(text: &str) -> Result<BaseUrl, String> {
        let tls =
            match text.split_once("://") {
                Some(("http", _)) => false,
                Some(("https", _)) => true,
                _ => return Err(
                    "write http:// or https:// before the host, as in \"http://127.0.0.1:9090\""
                        .into(),
                ),
            };
        let url: http::Uri = text
            .parse()
            .map_err(|_| "write a URL such as \"http://127.0.0.1:9090\"".to_owned())?;
        let authority = url
            .authority()
            .map(http::uri::Authority::as_str)
            .unwrap_or_default();
        if authority.contains('@') {
            let right = "no user or password in a URL; `upstream.token` is for a backend's token";
            return Err(right.into());
        }
        if url.query().is_some() || text.contains('#') {
            return Err("only a path may follow the host".into());
        }
        let host = url.host().unwrap_or_default();
        let named = authority
            .strip_prefix(host)
            .is_some_and(|port| port.contains(':'));
        let port = match url.port_u16() {
            Some(0) => return Err("the port must be from 1 to 65535".into()),
            Some(port) => port,
            None if named => return Err("the port must be from 1 to 65535".into()),
            None => usual_port(tls),
        };
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        if host.is_empty() {
            return Err("write a host, as in \"http://127.0.0.1:9090\"".into());
        }
        Ok(BaseUrl {
            tls,
            host,
            port,
            base: url.path().trim_end_matches('/').to_owned(),
        })
    }
}

/// A host with its port as all spellings of it are written here: in small letters, without a dot at the end, and without
/// the port where that is 80 or 443. `None`: it is no host.
pub fn one_name(authority: &str) -> Option<String> {
    let url: BaseUrl = format!("http://{authority}").parse().ok()?;
    let host = url.host.to_ascii_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let of_names = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(of_names);
    let host = match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) if host.split('.').all(is_label) => host.to_owned(),
        Err(_) => return None,
    };
    let is_plain =
        url.base.is_empty() && authority.starts_with('[') == host.parse::<Ipv6Addr>().is_ok();
    let tls = url.port == 443;
    is_plain.then(|| BaseUrl { tls, host, ..url }.authority())
}

/// A text that was meant as a URL, as it may be shown: what stands before its `@` may be a password.
pub fn without_login(text: &str) -> String {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    match (rest.rsplit_once('@'), scheme) {
        (Some((_, place)), "") => format!("***@{place}"),
        (Some((_, place)), scheme) => format!("{scheme}://***@{place}"),
        (None, _) => text.to_owned(),
    }
}

/// The port of `https`, or of `http`, where a name says none.
pub fn usual_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// A name as [`one_name`] writes it, with its port in any case.
pub fn with_port(name: &str, usual: u16) -> String {
    let has_port = name.rsplit(']').next().is_some_and(|end| end.contains(':'));
    match has_port {
        true => name.to_owned(),
        false => format!("{name}:{usual}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls() {
        let table = [
            ("http://127.0.0.1:9090", "http://127.0.0.1:9090"),
            ("https://ojs.example/base/", "https://ojs.example/base"),
            ("http://ojs:80/", "http://ojs"),
            ("http://[::1]:9090", "http://[::1]:9090"),
        ];
        for (text, shown) in table {
            assert_eq!(text.parse::<BaseUrl>().unwrap().to_string(), shown);
        }
        let wrong = [
            "",
            "127.0.0.1:9090",
            "ftp://a",
            "http://",
            "http://a:99999",
            "http://a:0",
            "http://a:",
            "http://u:p@a",
            "http://a/?x=1",
            "http://a b",
            "/x",
        ];
        for text in wrong {
            assert!(text.parse::<BaseUrl>().is_err(), "{text}");
        }
    }
}
