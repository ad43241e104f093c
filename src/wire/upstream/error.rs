//! Why the backend did not answer, and whether it may have acted.

use std::net::IpAddr;
use std::time::Duration;

use rustls::CertificateError;

/// The backend did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum UpstreamError {
    /// No byte of the request left: it may be sent again.
    #[error("the backend cannot be reached: {0}")]
    Unreachable(String),
    /// The request may have been carried out; its reply did not come whole.
    #[error("the backend's reply was lost: {0}")]
    Lost(String),
    /// The request may have been carried out; its reply did not come in time.
    #[error("the backend did not answer within {:?}", rounded(*.0))]
    Timeout(Duration),
    /// The service that the call names has an address to which no call may go. Nothing left.
    #[error("the backend has the address {0}, which is not public")]
    Closed(IpAddr),
    /// The service that the call names is a port of this program. Nothing left.
    #[error("the backend is this program itself")]
    LeadsBack,
    /// The reply is larger than we read.
    #[error("the backend's reply is larger than {0} bytes")]
    TooLarge(usize),
    /// The reply came whole, and is none that is understood.
    #[error("the backend's reply cannot be read: {0}")]
    Unreadable(String),
}

/// Rounds to whole milliseconds: the rest of a budget is a number that nobody set.
fn rounded(time: Duration) -> Duration {
    let ms = time.as_micros().saturating_add(500) / 1_000;
    Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX))
}

impl UpstreamError {
    /// Whether the backend may have carried the call out.
    pub fn in_doubt(&self) -> bool {
        !self.is_refused() && !matches!(self, UpstreamError::Unreachable(_))
    }

    /// Whether the call was not let go there, so that it says nothing of whether somebody answers.
    pub fn is_refused(&self) -> bool {
        matches!(self, UpstreamError::Closed(_) | UpstreamError::LeadsBack)
    }

    /// What it says, where something else than the backend was called: `who` it was, and the table of its settings.
    pub fn said_of(&self, who: &str, table: &str) -> String {
        let text = self.to_string().replace("the backend", who);
        let text = text.replace("server.upstream", &format!("{table}.upstream"));
        text.replace("upstream.ca_file", &format!("{table}.ca_file"))
    }
}

/// A streamed request got no reply.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The backend did not answer.
    #[error(transparent)]
    Backend(#[from] UpstreamError),
    /// The client's body broke off; the backend saw a request that is not whole.
    #[error("the client's body did not come whole")]
    Broken,
    /// The client sent no more of its body for this long.
    #[error("the client sent nothing of its body for {0:?}")]
    Stalled(Duration),
}

/// Says what to do where what answers speaks no HTTP, and the file names the backend.
pub(super) const NO_HTTP: &str =
    " (that is no HTTP: does it speak TLS, and must server.upstream begin with https://?)";
/// What to do there where a call names the service.
pub(super) const NO_HTTP_OF_CALL: &str =
    " (that is no HTTP: does it speak TLS, and must the entry have scheme = \"https\"?)";

/// Says what to do when a TLS connection cannot be opened, to a service that a call names or the file.
pub(super) fn advice(error: &std::io::Error, named_by_call: bool) -> &'static str {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(CertificateError::Other(why)))
            if why.to_string().contains("CaUsedAsEndEntity") =>
        {
            " (it shows the certificate of a CA, which cannot be a server's own: give the backend one that a CA has \
             signed, and name that CA in upstream.ca_file)"
        }
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => match named_by_call {
            false => {
                " (the certificate is of another host: server.upstream must name one that it is for)"
            }
            true => " (the certificate is of another host: calls must name one that it is for)",
        },
        Some(rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        )) => " (the backend's certificate has expired, or this host's clock is wrong)",
        Some(rustls::Error::InvalidCertificate(_)) => {
            " (upstream.ca_file names the certificates that are trusted)"
        }
        Some(rustls::Error::InvalidMessage(_)) => match named_by_call {
            false => " (that is no TLS: must server.upstream begin with http://?)",
            true => " (that is no TLS: must the entry have scheme = \"http\"?)",
        },
        _ => "",
    }
}

/// An error with its causes, which hyper leaves out.
pub(super) fn whole(error: &hyper::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text += &format!(": {inner}");
        cause = inner.source();
    }
    text
}

/// The error for a request that cannot be written.
pub(super) fn unsendable(error: impl std::fmt::Display) -> UpstreamError {
    UpstreamError::Unreachable(error.to_string())
}
