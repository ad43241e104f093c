//! TLS: what a listener shows its clients and which of them it lets in, what shows others who we are, and the names in
//! certificates. Everything is read from PEM, which others have read from files, but for what shows who we are.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
};
use sha2::{Digest, Sha256};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc4519::CN;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// What clients and servers may speak over TLS, the best first.
pub const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// What is wrong, and in which of the files.
#[derive(Debug, thiserror::Error)]
#[error("`{setting}` {why}")]
pub struct BadPem {
    /// The name of the setting that names the file.
    pub setting: &'static str,
    /// What is wrong with it.
    pub why: String,
}

/// What a listener shows its clients, and which of them it lets in. Cheap to clone.
#[derive(Clone)]
pub struct ListenerTls(Arc<ListenerParts>);

struct ListenerParts {
    config: Arc<ServerConfig>,
    own: CertifiedKey,
    /// Of all that it was read from.
    digest: [u8; 32],
    admin_names: Vec<String>,
}

/// Names a setting and why its file is of no use.
fn bad(setting: &'static str) -> impl Fn(String) -> BadPem {
    move |why| BadPem { setting, why }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// The certificates of a PEM text; there must be some.
///
/// # Errors
/// Why they cannot be read.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Err(error) => Err(format!("is no PEM file: {error}")),
        Ok(none) if none.is_empty() => {
            Err("has no certificate (-----BEGIN CERTIFICATE-----)".to_owned())
        }
        Ok(read) => Ok(read),
    }
}

/// The certificates to trust in a PEM text.
///
/// # Errors
/// Why they cannot be trusted.
pub fn roots(pem: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("has what is no certificate: {error}"))?;
    }
    Ok(roots)
}

/// A certificate, with those that signed it behind it, and its key. The settings that name them are called so.
///
/// # Errors
/// One of them cannot be read, or the key is not that of the certificate.
pub fn identity(
    (cert_setting, cert): (&'static str, &[u8]),
    (key_setting, key): (&'static str, &[u8]),
) -> Result<CertifiedKey, BadPem> {
    let chain = certificates(cert).map_err(bad(cert_setting))?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| bad(key_setting)(format!("has no private key: {error}")))?;
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
        bad(key_setting)(match error {
            rustls::Error::InconsistentKeys(_) => "is not the key of the certificate".to_owned(),
            other => format!("cannot be used: {other}"),
        })
    })
}

impl ListenerTls {
    /// Shows this certificate. With `client_ca`, clients must show one that this has signed; those whose name is among
    /// `admin_names` may change limits.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn new(
        cert: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
        admin_names: Vec<String>,
    ) -> Result<ListenerTls, BadPem> {
        let own = identity(("cert_file", cert), ("key_file", key))?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("cert_file")(error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let unfit = bad("client_ca_file");
                let roots = Arc::new(roots(pem).map_err(&unfit)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| unfit(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let shown = Arc::new(SingleCertAndKey::from(own.clone()));
        let mut config = builder.with_cert_resolver(shown);
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let mut digest = Sha256::new();
        for pem in [cert, key, client_ca.unwrap_or_default()] {
            digest.update(Sha256::digest(pem));
        }
        Ok(ListenerTls(Arc::new(ListenerParts {
            config: Arc::new(config),
            own,
            digest: digest.finalize().into(),
            admin_names,
        })))
    }

    /// For a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.config)
    }

    /// Who may change limits by the names in their certificates.
    pub fn admin_names(&self) -> &[String] {
        &self.0.admin_names
    }

    /// For a program on the same host with the same files: it trusts this very certificate, whatever its names, and
    /// shows it.
    ///
    /// # Errors
    /// There is no TLS.
    pub fn of_own_client(&self) -> Result<ClientConfig, rustls::Error> {
        let provider = provider();
        let only = OnlyThis {
            own: self.0.own.clone(),
            provider: Arc::clone(&provider),
        };
        let shown = Arc::new(SingleCertAndKey::from(self.0.own.clone()));
        Ok(ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(only))
            .with_client_cert_resolver(shown))
    }
}

/// Two are the same if they were read from the same.
impl PartialEq for ListenerTls {
    fn eq(&self, other: &ListenerTls) -> bool {
        self.0.digest == other.0.digest && self.0.admin_names == other.0.admin_names
    }
}

impl Eq for ListenerTls {}

impl fmt::Debug for ListenerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListenerTls").finish_non_exhaustive()
    }
}

/// Who we are to a server that asks, as two files say it when a connection begins. While they do not fit together, what
/// they had before is shown.
#[derive(Debug)]
pub struct ClientIdentity {
    cert: PathBuf,
    key: PathBuf,
    last: Mutex<ReadIdentity>,
}

#[derive(Debug)]
struct ReadIdentity {
    /// What was in the files.
    pem: [Vec<u8>; 2],
    shown: Arc<CertifiedKey>,
}

impl ReadIdentity {
    fn of(pem: [Vec<u8>; 2]) -> Result<ReadIdentity, BadPem> {
        let [cert, key] = &pem;
        let shown = identity(("client_cert_file", cert), ("client_key_file", key))?;
        Ok(ReadIdentity {
            pem,
            shown: Arc::new(shown),
        })
    }
}

impl ClientIdentity {
    /// The one in these files; `None`: none are named.
    ///
    /// # Errors
    /// What is wrong with a file.
    pub fn of(
        cert: Option<&Path>,
        key: Option<&Path>,
    ) -> Result<Option<Arc<ClientIdentity>>, BadPem> {
        let (Some(cert), Some(key)) = (cert, key) else {
            return Ok(None);
        };
        let read = |setting, file| fs::read(file).map_err(|error| bad(setting)(error.to_string()));
        let pem = [
            read("client_cert_file", cert)?,
            read("client_key_file", key)?,
        ];
        Ok(Some(Arc::new(ClientIdentity {
            cert: cert.to_owned(),
            key: key.to_owned(),
            last: Mutex::new(ReadIdentity::of(pem)?),
        })))
    }

    /// A connection begins: there are few, and the files are small.
    fn now(&self) -> MutexGuard<'_, ReadIdentity> {
        let mut last = self.last.lock();
        if let (Ok(cert), Ok(key)) = (fs::read(&self.cert), fs::read(&self.key)) {
            let pem = [cert, key];
            if pem != last.pem
                && let Ok(read) = ReadIdentity::of(pem)
            {
                *last = read;
            }
        }
        last
    }

    /// The certificate and its key.
    pub fn pem(&self) -> [Vec<u8>; 2] {
        self.now().pem.clone()
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.now().shown))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// For calls to a server that one of `roots` vouches for; `identity` is shown where it asks who we are.
///
/// # Errors
/// There is no TLS.
pub fn client(
    roots: RootCertStore,
    identity: Option<Arc<ClientIdentity>>,
) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let Some(own) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    let mut config = builder.with_client_cert_resolver(own);
    // What is resumed goes on under the certificate that was shown at first.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// The names that a certificate bears: DNS names, URIs, and the common name.
pub fn names(certificate: &[u8]) -> Vec<String> {
    let Ok(Certificate {
        tbs_certificate: read,
        ..
    }) = Certificate::from_der(certificate)
    else {
        return Vec::new();
    };
    let parts = read.subject.0.iter().flat_map(|part| part.0.iter());
    let common = parts.filter(|part| part.oid == CN);
    let mut names: Vec<String> = common
        .map(|part| String::from_utf8_lossy(part.value.value()).into_owned())
        .collect();
    if let Ok(Some((_, SubjectAltName(others)))) = read.get::<SubjectAltName>() {
        names.extend(others.iter().filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            GeneralName::UniformResourceIdentifier(uri) => Some(uri.to_string()),
            _ => None,
        }));
    }
    names
}

/// Trusts one certificate and no other.
#[derive(Debug)]
struct OnlyThis {
    own: CertifiedKey,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OnlyThis {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.own.end_entity_cert()? == shown {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        by: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, by, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        by: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, by, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}
