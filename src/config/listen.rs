//! Where to listen and what to listen for, as the file and the command line say it.

use std::net::SocketAddr;
use std::str::FromStr;

use ojs_wire::upstream::BaseUrl;

/// An address to listen on: an IP address and a port. `localhost:8080` is one too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listen(pub SocketAddr);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        let port = text.strip_prefix(':').unwrap_or(text);
        if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "write \"127.0.0.1:{port}\", or \"0.0.0.0:{port}\" to be reached from other machines"
            ));
        }
        let text = text
            .strip_prefix("localhost:")
            .map_or(text.to_owned(), |port| format!("127.0.0.1:{port}"));
        text.parse()
            .map(Listen)
            .map_err(|_| "write an IP address and a port, such as \"127.0.0.1:8080\"".into())
    }
}

/// The backend's address, or the word `none`: there is no backend, and calls are all that is limited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackendAt(pub Option<BaseUrl>);

impl BackendAt {
    /// The word in place of an address.
    pub(super) const NONE: &str = "none";
}

impl FromStr for BackendAt {
    type Err = String;

    fn from_str(text: &str) -> Result<BackendAt, String> {
        match text {
            BackendAt::NONE => Ok(BackendAt(None)),
            _ => text.parse().map(|url| BackendAt(Some(url))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let read = |text: &str| text.parse::<Listen>().map(|listen| listen.0.to_string());
        for (text, read_as) in [
            ("127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(read_as));
        }
        for text in ["localhost", ":8080", "8080", "ojs:8080", "", "127.0.0.1"] {
            assert!(read(text).unwrap_err().starts_with("write "), "{text}");
        }
    }
}
