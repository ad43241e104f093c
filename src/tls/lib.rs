//! TLS: what a listener shows its clients and which of them it lets in, whom we trust and what we show when we call, and
//! the names in certificates. A listener's PEM others have read from files; what calls go by is read here.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
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
    /// Where clients must show a certificate: which are good.
    clients: Option<Arc<dyn ClientCertVerifier>>,
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

/// This moment, in seconds since 1970: the certificates' clock is the wall's.
pub fn now() -> u64 {
    UnixTime::now().as_secs()
}

/// From when to when a certificate is good, in seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// It is not good before.
    pub begins: u64,
    /// It is not good after.
    pub ends: u64,
}

impl Lifetime {
    /// Of a certificate; `None`: it cannot be read.
    pub fn of(certificate: &[u8]) -> Option<Lifetime> {
        let of = Certificate::from_der(certificate).ok()?;
        let of = of.tbs_certificate.validity;
        Some(Lifetime {
            begins: of.not_before.to_unix_duration().as_secs(),
            ends: of.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Of the first certificate of a PEM text.
    pub fn of_first(pem: &[u8]) -> Option<Lifetime> {
        Lifetime::of(certificates(pem).ok()?.first()?)
    }

    /// How many seconds are left; below 0, how many it is over.
    pub fn left(self) -> i64 {
        self.ends.cast_signed() - now().cast_signed()
    }

    /// Whether it is good now.
    pub fn is_now(self) -> bool {
        (self.begins..=self.ends).contains(&now())
    }
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
        let clients = client_ca.map(|pem| {
            let unfit = bad("client_ca_file");
            let roots = Arc::new(roots(pem).map_err(&unfit)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            verifier.build().map_err(|error| unfit(error.to_string()))
        });
        let clients = clients.transpose()?;
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        };
        let shown = Arc::new(SingleCertAndKey::from(own.clone()));
        let mut config = builder.with_cert_resolver(shown);
        if clients.is_some() {
            // A session that is resumed shows no certificate: it would outlive the one that began it.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let mut digest = Sha256::new();
        for pem in [cert, key, client_ca.unwrap_or_default()] {
            digest.update(Sha256::digest(pem));
        }
        Ok(ListenerTls(Arc::new(ListenerParts {
            config: Arc::new(config),
            own,
            clients,
            digest: digest.finalize().into(),
            admin_names,
        })))
    }

    /// Whether clients must show a certificate.
    pub fn asks_clients(&self) -> bool {
        self.0.clients.is_some()
    }

    /// Whether its certificate is good now.
    pub fn is_good(&self) -> bool {
        let own = self.0.own.cert.first();
        own.and_then(|own| Lifetime::of(own))
            .is_some_and(Lifetime::is_now)
    }

    /// Until when a client may stay that has shown these, in seconds since 1970. Then it is to be asked again: another
    /// certificate than its own may have ended.
    ///
    /// # Errors
    /// It may not: it has shown none, or none that is good now.
    pub fn admits(&self, shown: &[CertificateDer<'_>]) -> Result<u64, rustls::Error> {
        let Some(verifier) = &self.0.clients else {
            return Ok(u64::MAX);
        };
        let (own, others) = shown
            .split_first()
            .ok_or(rustls::Error::NoCertificatesPresented)?;
        let now = UnixTime::now();
        verifier.verify_client_cert(own, others, now)?;
        let ends = shown.iter().filter_map(|one| Some(Lifetime::of(one)?.ends));
        let ends = ends.filter(|ends| *ends >= now.as_secs()).min();
        Ok(ends.unwrap_or(u64::MAX))
    }

    /// Why it would not let a program in that shows its own certificate, as the commands do.
    pub fn shuts_out_its_own(&self) -> Option<rustls::Error> {
        self.admits(&self.0.own.cert).err()
    }

    /// For a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.config)
    }

    /// Who may change limits by the names in their certificates.
    pub fn admin_names(&self) -> &[String] {
        &self.0.admin_names
    }
}

/// For a program on the same host. It trusts the certificate of `only` and no other, whatever its names; without it
/// any, which is for who sends no secret. It shows the certificate of `shown`.
///
/// # Errors
/// There is no TLS.
pub fn local_client(
    only: Option<&ListenerTls>,
    shown: Option<&ListenerTls>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OnlyThis {
            own: only.map(|only| only.0.own.clone()),
            provider,
        }));
    Ok(
        match shown.map(|shown| SingleCertAndKey::from(shown.0.own.clone())) {
            None => builder.with_no_client_auth(),
            Some(shown) => builder.with_client_cert_resolver(Arc::new(shown)),
        },
    )
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

/// How we speak TLS with a server: by what files hold when a connection begins. While they are of no use, do not fit
/// together, or hold a certificate that has ended in place of a good one, what they held before goes on.
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
        // A session that is resumed asks for no certificate: it would outlive that of the server.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Whether the certificate that is shown is good now.
    fn is_good(&self) -> bool {
        let shown = self.identity.as_ref();
        shown
            .and_then(|(cert, _)| Lifetime::of_first(cert))
            .is_some_and(Lifetime::is_now)
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
            && (pem.identity.is_none() || pem.is_good() || !last.0.is_good())
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

/// Trusts one certificate and no other, or any.
#[derive(Debug)]
struct OnlyThis {
    /// `None`: any will do.
    own: Option<CertifiedKey>,
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
        let own = self.own.as_ref();
        match own.is_none_or(|own| own.cert.first() == Some(shown)) {
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
