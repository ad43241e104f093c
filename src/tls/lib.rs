//! TLS: what a listener shows its clients and which of them it lets in, whom we trust and what we show when we call, and
//! the names in certificates. A listener's PEM others have read from files; what calls go by is read here.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
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

/// Settings of files for calls to servers.
const CA: &str = "ca_file";
const CERT: &str = "client_cert_file";
const KEY: &str = "client_key_file";

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

/// Files that say whom we trust and who we are when we call a server.
#[derive(Clone, Debug, Default)]
pub struct ClientFiles {
    /// The value of `ca_file`: who may vouch for the server.
    pub ca: Option<PathBuf>,
    /// The value of `client_cert_file`: what a server is shown that asks who we are.
    pub cert: Option<PathBuf>,
    /// The value of `client_key_file`. Without one of the two nothing is shown.
    pub key: Option<PathBuf>,
}

/// When the roots of the platform may vouch for a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlatformRoots {
    /// Always, beside those of `ca_file`.
    Always,
    /// Where there is no `ca_file`.
    WithoutOthers,
}

/// What the files hold, in PEM.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ClientPem {
    /// Who may vouch for the server.
    pub roots: Option<Vec<u8>>,
    /// A certificate and its key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// How we speak TLS with a server: by what files hold when a connection begins. While they are of no use, or do not fit
/// together, what they held before goes on.
pub struct ClientTls {
    files: ClientFiles,
    platform: PlatformRoots,
    protocols: Vec<Vec<u8>>,
    last: Mutex<(ClientPem, Arc<ClientConfig>)>,
}

impl ClientFiles {
    fn read(&self) -> Result<ClientPem, BadPem> {
        let read = |setting, file: &Path| {
            fs::read(file).map_err(|error| bad(setting)(format!("cannot be read: {error}")))
        };
        let roots = self.ca.as_deref().map(|file| read(CA, file));
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        let identity = identity.map(|(cert, key)| Ok((read(CERT, cert)?, read(KEY, key)?)));
        Ok(ClientPem {
            roots: roots.transpose()?,
            identity: identity.transpose()?,
        })
    }
}

/// Keys are not shown.
impl fmt::Debug for ClientPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientPem").finish_non_exhaustive()
    }
}

impl ClientPem {
    fn config(
        &self,
        platform: PlatformRoots,
        protocols: &[Vec<u8>],
    ) -> Result<ClientConfig, BadPem> {
        let mut trusted = RootCertStore::empty();
        if platform == PlatformRoots::Always || self.roots.is_none() {
            // A broken certificate of the platform must not prevent the start.
            trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if let Some(pem) = &self.roots {
            trusted.extend(roots(pem).map_err(bad(CA))?.roots);
        }
        if trusted.is_empty() {
            let why = "is needed: the platform has no certificates to trust";
            return Err(bad(CA)(why.to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(CA)(error.to_string()))?
            .with_root_certificates(trusted);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let own = identity((CERT, cert), (KEY, key))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)))
            }
        };
        config.alpn_protocols = protocols.to_vec();
        Ok(config)
    }
}

impl ClientTls {
    /// By these files; `protocols` are offered to the server (ALPN).
    ///
    /// # Errors
    /// What is wrong with which file, or that nobody is trusted.
    pub fn new(
        files: ClientFiles,
        platform: PlatformRoots,
        protocols: &[&[u8]],
    ) -> Result<ClientTls, BadPem> {
        let protocols: Vec<_> = protocols.iter().map(|name| name.to_vec()).collect();
        let pem = files.read()?;
        let config = pem.config(platform, &protocols)?;
        Ok(ClientTls {
            files,
            platform,
            protocols,
            last: Mutex::new((pem, Arc::new(config))),
        })
    }

    /// Always the same, by no files.
    pub fn fixed(config: ClientConfig) -> ClientTls {
        ClientTls {
            files: ClientFiles::default(),
            platform: PlatformRoots::Always,
            protocols: Vec::new(),
            last: Mutex::new((ClientPem::default(), Arc::new(config))),
        }
    }

    /// What the files hold now. This reads them, which may block: it is done once for each connection, and they are
    /// small.
    fn now(&self) -> MutexGuard<'_, (ClientPem, Arc<ClientConfig>)> {
        let mut last = self.last.lock();
        if let Ok(pem) = self.files.read()
            && pem != last.0
            && let Ok(config) = pem.config(self.platform, &self.protocols)
        {
            *last = (pem, Arc::new(config));
        }
        last
    }

    /// For a handshake.
    pub fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.now().1)
    }

    /// For a library that speaks TLS by itself.
    pub fn pem(&self) -> ClientPem {
        self.now().0.clone()
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
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
