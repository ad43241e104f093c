//! A backend behind TLS. Its certificate is the one of `tests/stores/tls`: for localhost and 127.0.0.1,
//! signed by a CA that only the settings or the environment make a known one.

use ojs_throttle::tls;
use rustls::HandshakeKind;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::prelude::*;
use crate::servers::certs::{Ca, DAY};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");
/// A certificate that has signed none but itself.
const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/tls/unknown.pem");
const ONE: &str = "[[policy]]\nname = \"one\"\nmatch = { queue = \"q\" }\nconcurrency = 1\n";

/// TLS before a backend that has none.
struct Front {
    port: u16,
    /// What each connection agreed to speak.
    spoken: Arc<Mutex<Vec<Option<Vec<u8>>>>>,
    /// The first name in each certificate that was shown.
    shown: Arc<Mutex<Vec<String>>>,
    /// Whether a session was resumed, in which neither side shows a certificate.
    resumed: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Front {
    fn before(backend: SocketAddr) -> Front {
        Front::asking(backend, None)
    }

    /// Asks who connects, if there is a CA that says so.
    fn asking(backend: SocketAddr, ca: Option<&Ca>) -> Front {
        let asks = ca.map(|ca| {
            let roots = tls::roots(&std::fs::read(ca.file()).unwrap()).unwrap();
            let provider = Arc::new(default_provider());
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .unwrap()
        });
        let chain = CertificateDer::from_pem_file(format!("{FOLDER}/server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(format!("{FOLDER}/key.pem")).unwrap();
        let mut tls = rustls::ServerConfig::builder_with_provider(default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(asks.unwrap_or_else(WebPkiClientVerifier::no_client_auth))
            .with_single_cert(vec![chain], key)
            .unwrap();
        // As most that stand before a backend, it would rather speak HTTP/2.
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let spoken = Arc::<Mutex<Vec<_>>>::default();
        let refused = Arc::<AtomicUsize>::default();
        let (give, take) = std::sync::mpsc::channel();
        let (agreed, failed) = (Arc::clone(&spoken), Arc::clone(&refused));
        let shown = Arc::<Mutex<Vec<_>>>::default();
        let names = Arc::clone(&shown);
        let resumed = Arc::<AtomicBool>::default();
        let resumes = Arc::clone(&resumed);
        std::thread::spawn(move || {
            let runtime = crate::servers::runtime();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                give.send(listener.local_addr().unwrap().port()).unwrap();
                while let Ok((client, _)) = listener.accept().await {
                    let (acceptor, agreed) = (acceptor.clone(), Arc::clone(&agreed));
                    let (failed, names) = (Arc::clone(&failed), Arc::clone(&names));
                    let resumes = Arc::clone(&resumes);
                    tokio::spawn(async move {
                        let Ok(mut client) = acceptor.accept(client).await else {
                            failed.fetch_add(1, Ordering::SeqCst);
                            return;
                        };
                        let alpn = client.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
                        agreed.lock().unwrap().push(alpn);
                        if client.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
                            resumes.store(true, Ordering::SeqCst);
                        }
                        let certificates = client.get_ref().1.peer_certificates();
                        if let Some([first, ..]) = certificates {
                            names
                                .lock()
                                .unwrap()
                                .extend(tls::names(first).into_iter().next());
                        }
                        if let Ok(mut server) = TcpStream::connect(backend).await {
                            // Either side may go.
                            drop(copy_bidirectional(&mut client, &mut server).await);
                        }
                    });
                }
            });
        });
        Front {
            port: take.recv().unwrap(),
            spoken,
            shown,
            resumed,
            refused,
        }
    }

    /// A sidecar that reaches it under this name; `roots` are the platform's.
    fn sidecar(&self, host: &str, rest: &str, roots: &str) -> Sidecar {
        let text = config(SocketAddr::from(([0, 0, 0, 0], 0)), "", rest)
            .replace("http://0.0.0.0:0", &format!("https://{host}:{}", self.port));
        let (dir, mut command) = run_with(text);
        command
            .env("SSL_CERT_FILE", roots)
            .env_remove("SSL_CERT_DIR");
        Sidecar::spawn(command, dir)
    }
}

/// One job's way through this sidecar and back, beside another that its limit holds up.
fn works(sidecar: &Sidecar, backend: &Backend) {
    let jobs = [(); 2].map(|()| enqueue(sidecar.data, "q", json!({})));
    for job in &jobs {
        let out = fetch(sidecar.data, "q", 2, "w").jobs();
        assert_eq!(out, std::slice::from_ref(job), "{}", sidecar.log());
        let done = ack(sidecar.data, job, "w");
        assert_eq!(done.status, 200, "{done:?}");
        assert_eq!(backend.count(EventKind::Acked, job), 1);
    }
    sidecar.shows("ojs_throttle_backend_up", 1.0);
}

#[test]
fn a_backend_is_reached_over_https() {
    let ca = format!("{FOLDER}/ca.pem");
    let trusted = format!("{ONE}[upstream]\nca_file = \"{ca}\"\n");
    for (host, rest, roots) in [
        // A CA of one's own beside those of the platform, and one that is the platform's.
        ("localhost", &*trusted, OTHER),
        ("127.0.0.1", &trusted, OTHER),
        ("localhost", ONE, &ca),
    ] {
        let backend = Backend::start(Lax::redis());
        let front = Front::before(backend.addr);
        let sidecar = front.sidecar(host, rest, roots);
        works(&sidecar, &backend);
        let spoken = front.spoken.lock().unwrap();
        let is_http1 = |of: &Option<Vec<u8>>| of.as_deref() == Some(b"http/1.1");
        assert!(spoken.iter().all(is_http1), "{spoken:?}");
        // Connections are kept: there were more requests than these.
        assert!((1..=4).contains(&spoken.len()), "{spoken:?}");
        assert_eq!(front.refused.load(Ordering::SeqCst), 0);
    }
    // It is the CA that did it.
    let backend = Backend::start(Lax::redis());
    let front = Front::before(backend.addr);
    let sidecar = front.sidecar("localhost", ONE, OTHER);
    assert_eq!(get(sidecar.data, "/ojs/v1/health").status, 502);
    sidecar.line("UnknownIssuer");
    assert!(front.spoken.lock().unwrap().is_empty());
}

#[test]
fn a_backend_that_asks_who_we_are_is_told() {
    let (known, other) = (Ca::new(), Ca::new());
    let backend = Backend::start(Lax::redis());
    let front = Front::asking(backend.addr, Some(&known));
    let trusted = format!("{ONE}[upstream]\nca_file = \"{FOLDER}/ca.pem\"\n");
    for (shown, is_let_in) in [
        (known.client("sidecar", "DNS:sidecar").as_client(), true),
        (other.client("sidecar", "DNS:sidecar").as_client(), false),
        (String::new(), false),
    ] {
        let sidecar = front.sidecar("localhost", &format!("{trusted}{shown}"), OTHER);
        let status = if is_let_in { 200 } else { 502 };
        assert_eq!(
            get(sidecar.data, "/ojs/v1/health").status,
            status,
            "{}",
            sidecar.log()
        );
        if is_let_in {
            works(&sidecar, &backend);
        }
    }
    assert!(front.refused.load(Ordering::SeqCst) > 0);
}

/// A certificate that is renewed in its files is shown at the next connection, without a restart. While only one of the
/// two files is the new one, the last pair goes on.
#[test]
fn a_renewed_certificate_is_shown_to_the_backend() {
    let ca = Ca::new();
    let backend = Backend::start(Lax::redis());
    let front = Front::asking(backend.addr, Some(&ca));
    let (first, second) = (ca.client("first", "DNS:a"), ca.client("second", "DNS:b"));
    let rest = format!(
        "[upstream]\nca_file = \"{FOLDER}/ca.pem\"\nidle_timeout = \"1ms\"\n{}",
        first.as_client()
    );
    let sidecar = front.sidecar("localhost", &rest, OTHER);
    let count = || front.shown.lock().unwrap().len();
    // The name that a new connection shows.
    let next = || {
        let before = count();
        wait("another connection", || {
            assert_ne!(get(sidecar.data, "/ojs/v1/health").status, 502);
            count() > before
        });
        front.shown.lock().unwrap().last().unwrap().clone()
    };
    assert_eq!(next(), "first");
    std::fs::copy(&second.cert, &first.cert).unwrap();
    assert_eq!(next(), "first");
    sidecar.line("client_key_file");
    second.replace(&first);
    wait("the second one is shown", || next() == "second");
    // One that has ended takes the place of no good one.
    ca.lasting("over", "DNS:c", -9 * DAY, -DAY).replace(&first);
    for _ in 0..3 {
        assert_eq!(next(), "second");
    }
    assert!(!front.resumed.load(Ordering::SeqCst));
    assert_eq!(front.refused.load(Ordering::SeqCst), 0);
}

/// So is a CA: the next connection trusts whom the file names now, and a file of no use changes nothing.
#[test]
fn a_renewed_ca_of_the_backend_is_trusted() {
    let backend = Backend::start(Lax::redis());
    let front = Front::before(backend.addr);
    let other = Ca::new();
    let file = other.file();
    let rest = format!(
        "[upstream]\nca_file = \"{}\"\nidle_timeout = \"1ms\"\n",
        file.display()
    );
    let sidecar = front.sidecar("localhost", &rest, OTHER);
    let status = || get(sidecar.data, "/ojs/v1/health").status;
    assert_eq!(status(), 502);
    std::fs::copy(format!("{FOLDER}/ca.pem"), &file).unwrap();
    wait("the new one is trusted", || status() == 200);
    std::fs::write(&file, "-----BEGIN").unwrap();
    let before = front.spoken.lock().unwrap().len();
    wait("another connection", || {
        assert_eq!(status(), 200);
        front.spoken.lock().unwrap().len() > before
    });
    std::fs::copy(OTHER, &file).unwrap();
    wait("the old one is not", || status() == 502);
}
