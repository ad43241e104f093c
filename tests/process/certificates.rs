//! Certificates that end, or are not trusted any more: who shows one stays no longer than it, and every part of the
//! program speaks of those in files.

use std::io;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::doctor::doctor;
use super::listeners::{s_client, shown};
use super::prelude::*;
use crate::servers::certs::{Ca, DAY, Signed};
use crate::servers::port;

const HERE: &str = "DNS:localhost,IP:127.0.0.1";

/// A client that shows this certificate.
fn client(ca: &Ca, shows: &Signed) -> Arc<ClientConfig> {
    let roots = ojs_throttle::tls::roots(&std::fs::read(ca.file()).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_file(&shows.cert).unwrap()],
            PrivateKeyDer::from_pem_file(&shows.key).unwrap(),
        )
        .unwrap();
    Arc::new(client)
}

/// A connection over TLS that is kept.
struct Secure(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Secure {
    fn open(client: &Arc<ClientConfig>, to: SocketAddr) -> Secure {
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::clone(client), name).unwrap();
        let socket = TcpStream::connect(to).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        Secure(BufReader::new(StreamOwned::new(connection, socket)))
    }

    /// Asks for the health, as a worker does that keeps its connection.
    fn asks(&mut self) -> io::Result<()> {
        let request = b"GET /ojs/v1/health HTTP/1.1\r\nHost: localhost\r\n\r\n";
        self.0.get_mut().write_all(request)?;
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begin = head.len();
            if self.0.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = head[begin..].to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        self.0.read_exact(&mut vec![0; length])
    }
}

/// A table of TLS for a listener whose clients must show a certificate of the CA in this file.
fn asking(server: &Signed, ca: &std::path::Path) -> String {
    let ca = ca.display();
    format!("{{ {}, client_ca_file = \"{ca}\" }}", server.as_listener())
}

/// Neither a session that it began nor a connection that it opened outlives a client's certificate.
#[test]
fn a_client_s_certificate_that_has_ended_opens_and_keeps_no_connection() {
    let ca = Ca::new();
    let backend = Backend::start(Lax::spec());
    let tls = format!("tls = {}", asking(&ca.server("server"), &ca.file()));
    let sidecar = Sidecar::run(&config(backend.addr, &tls, ""));
    let brief = ca.lasting("brief", "DNS:brief", -60, 20);
    let mut kept = Secure::open(&client(&ca, &brief), sidecar.data);
    kept.asks().unwrap();
    // Whoever resumes a session shows no certificate at all.
    let request = "GET /ojs/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let dir = tempfile::tempdir().unwrap();
    let [session, cert, key] = [&dir.path().join("session"), &brief.cert, &brief.key]
        .map(|path| path.to_str().unwrap().to_owned());
    for version in ["-tls1_2", "-tls1_3"] {
        let first = [
            version,
            "-quiet",
            "-cert",
            &cert,
            "-key",
            &key,
            "-sess_out",
            &session,
        ];
        let first = s_client(sidecar.data, &first, request);
        assert!(first.contains("HTTP/1.1 200 "), "{version}: {first}");
        let again = [version, "-quiet", "-sess_in", &session];
        let again = s_client(sidecar.data, &again, request);
        assert!(!again.contains("HTTP/1.1 "), "{version}: {again}");
    }
    wait("a new handshake is refused", || {
        Secure::open(&client(&ca, &brief), sidecar.data)
            .asks()
            .is_err()
    });
    wait("the open connection ends", || kept.asks().is_err());
}

/// A CA that is taken out of its file takes the connections of its clients with it; those of another stay.
#[test]
fn a_ca_that_is_removed_keeps_no_connection_of_its_clients() {
    let (first, second, file) = (Ca::new(), Ca::new(), tempfile::tempdir().unwrap());
    let file = file.path().join("clients.pem");
    let put = |of: &[&Ca]| {
        let texts = of
            .iter()
            .map(|ca| std::fs::read_to_string(ca.file()).unwrap());
        let new = file.with_extension("new");
        std::fs::write(&new, texts.collect::<String>()).unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    put(&[&first]);
    let backend = Backend::start(Lax::spec());
    let server = first.server("server");
    let tls = format!("tls = {}", asking(&server, &file));
    let sidecar = Sidecar::run(&config(backend.addr, &tls, ""));
    let of_first = client(&first, &first.client("a", "DNS:a"));
    let of_second = client(&first, &second.client("b", "DNS:b"));
    let mut early = Secure::open(&of_first, sidecar.data);
    early.asks().unwrap();
    put(&[&first, &second]);
    let mut late = until("the second CA is trusted too", || {
        let mut late = Secure::open(&of_second, sidecar.data);
        late.asks().is_ok().then_some(late)
    });
    early.asks().unwrap();
    put(&[&second]);
    wait("the first CA is trusted no more", || {
        Secure::open(&of_first, sidecar.data).asks().is_err()
    });
    wait("its client's connection ends", || early.asks().is_err());
    late.asks().expect("the other one stays");
}

#[test]
fn certificates_that_end_are_told_by_check_start_doctor_and_metrics() {
    let ca = Ca::new();
    let soon = ca.lasting("soon", HERE, -20 * DAY, 5 * DAY);
    let over = ca.lasting("over", HERE, -9 * DAY, -DAY);
    let early = ca.lasting("early", HERE, DAY, 30 * DAY);
    let good = ca.lasting("good", HERE, -DAY, 90 * DAY);
    let server = format!(
        "tls = {{ {} }}\nadmin_tls = {{ {} }}",
        soon.as_listener(),
        good.as_listener()
    );
    let rest = format!(
        "[upstream]\n{}[store]\n{}",
        over.as_client(),
        early.as_client()
    );
    let backend = Backend::start(Lax::spec());
    let admin = port::own();
    let text = config(backend.addr, &server, &rest).replace(
        "admin_listen = \"127.0.0.1:0\"",
        &format!("admin_listen = \"{admin}\""),
    );
    let told = [
        ("server.tls.cert_file", "ends at ", "warn"),
        ("upstream.client_cert_file", "was good until ", "fail"),
        ("store.client_cert_file", "is not good before ", "fail"),
    ];
    let (_dir, path) = file(&text);
    let check = ran(program().arg("check").arg(&path));
    assert_eq!(check.status, Some(0), "{}", check.out);
    let (report, status) = doctor(&text, &[]);
    assert_eq!(status, Some(1), "{report}");
    let findings = report["findings"].as_array().unwrap();
    let of = |setting: &str| {
        let setting = format!("{setting}`");
        let mut all = findings.iter().filter(|one| one["what"] == "certificate");
        all.find(|one| one["says"].as_str().unwrap().contains(&setting))
    };
    // The admin port speaks TLS, so the harness cannot ask it.
    let (dir, command) = run_with(&text);
    let sidecar = Sidecar::begin(command, dir);
    for (setting, words, level) in told {
        let line = format!("the certificate of `{setting}` {words}");
        assert!(check.out.contains(&line), "{line}: {}", check.out);
        let finding = of(setting).unwrap_or_else(|| panic!("{setting}: {report}"));
        assert_eq!(finding["level"], level, "{finding}");
        wait(&line, || {
            let lines = sidecar.lines();
            let mut lines = lines
                .iter()
                .filter(|one| one.contains("id=certificate_ends"));
            lines.any(|one| one.contains(&line))
        });
    }
    assert!(!check.out.contains("server.admin_tls"), "{}", check.out);
    let series = |setting: &str| {
        let begin =
            format!("ojs_throttle_tls_certificate_expiry_seconds{{setting=\"{setting}\"}} ");
        let page = Command::new("curl")
            .args(["-sk", &format!("https://{admin}/metrics")])
            .output()
            .unwrap();
        let page = String::from_utf8(page.stdout).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&begin));
        line.unwrap_or_else(|| panic!("{begin}: {page}"))
            .parse::<f64>()
            .unwrap()
    };
    for (setting, days) in [
        ("server.tls.cert_file", 5),
        ("upstream.client_cert_file", -1),
        ("store.client_cert_file", 30),
        ("server.admin_tls.cert_file", 90),
    ] {
        let (left, right) = (series(setting), (days * DAY) as f64);
        assert!((right - 300.0..=right).contains(&left), "{setting}: {left}");
    }
}

/// The one that is shown stays, as it does where the files do not fit together; and who asks whether the sidecar is
/// well is told that it is, for what is in the files does not run.
#[test]
fn a_certificate_that_has_ended_takes_the_place_of_no_good_one() {
    let ca = Ca::new();
    let (good, newer) = (ca.server("good"), ca.server("newer"));
    let backend = Backend::start(Lax::spec());
    let admin = port::own();
    let table = format!("{{ {} }}", good.as_listener());
    let server = format!("tls = {table}\nadmin_tls = {table}");
    let text = config(backend.addr, &server, "").replace(
        "admin_listen = \"127.0.0.1:0\"",
        &format!("admin_listen = \"{admin}\""),
    );
    let (dir, command) = run_with(&text);
    let path = dir.path().join("throttle.toml");
    let sidecar = Sidecar::begin(command, dir);
    let health = || ran(program().arg("healthcheck").arg("--config").arg(&path));
    wait("it is ready", || health().status == Some(0));
    for (name, from, to) in [("over", -9 * DAY, -DAY), ("early", DAY, 9 * DAY)] {
        ca.lasting(name, HERE, from, to).replace(&good);
        let refused = |line: &String| {
            line.contains("has ended, or is not good yet") && line.contains("server.tls.cert_file")
        };
        wait("the log says that it is refused", || {
            sidecar.log().lines().any(|line| refused(&line.to_owned()))
        });
        assert!(shown(sidecar.data).ends_with("good"), "{name}");
        let health = health();
        assert_eq!(health.status, Some(0), "{}", health.err);
    }
    let why = ran(program()
        .args(["why", "--queue", "q", "--config"])
        .arg(&path));
    assert_eq!(why.status, Some(3), "{}", why.err);
    assert!(
        why.err
            .contains("keeps the last good pair while the file's is wrong"),
        "{}",
        why.err
    );
    newer.replace(&good);
    wait("the newer one", || shown(sidecar.data).ends_with("newer"));
}

/// The commands show the listener's own certificate: where that is no good client's, they are told why.
#[test]
fn a_client_ca_that_shuts_out_the_commands_is_named() {
    let (ca, other) = (Ca::new(), Ca::new());
    let backend = Backend::start(Lax::spec());
    for (server, why, is_let_in) in [
        (ca.server_alone("alone"), "invalid peer certificate", false),
        (other.server("other"), "invalid peer certificate", false),
        (ca.server("both"), "", true),
    ] {
        let admin = port::own();
        let tls = format!("admin_tls = {}", asking(&server, &ca.file()));
        let text = config(backend.addr, &tls, "").replace(
            "admin_listen = \"127.0.0.1:0\"",
            &format!("admin_listen = \"{admin}\""),
        );
        let (dir, command) = run_with(&text);
        let path = dir.path().join("throttle.toml");
        let sidecar = Sidecar::begin(command, dir);
        wait("it serves", || sidecar.log().contains("listening"));
        let told = |args: &[&str]| {
            let done = ran(program().args(args).arg(&path));
            (done.status, done.out + &done.err)
        };
        let (status, check) = told(&["check"]);
        assert_eq!(status, Some(0), "{check}");
        let named = "`server.admin_tls.client_ca_file` shuts out";
        assert_eq!(check.contains(named), !is_let_in, "{check}");
        assert!(check.contains(why), "{check}");
        wait("the start says the same", || {
            sidecar.log().contains(named) != is_let_in
        });
        for (args, fails) in [
            (&["healthcheck", "--config"][..], 1),
            (&["why", "--queue", "q", "--config"], 3),
            (&["top", "--once", "--config"], 3),
        ] {
            let (status, said) = told(args);
            let wanted = if is_let_in { 0 } else { fails };
            assert_eq!(status, Some(wanted), "{args:?}: {said}");
            let is_named =
                said.contains("server.admin_tls.client_ca_file lets in") && said.contains(why);
            assert_eq!(is_named, !is_let_in, "{args:?}: {said}");
        }
        let (_, doctor) = told(&["doctor", "--config"]);
        assert_eq!(
            doctor.contains("server.admin_tls.client_ca_file lets in"),
            !is_let_in,
            "{doctor}"
        );
    }
}
