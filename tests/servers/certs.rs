//! Certificates that a test makes for itself, with the `openssl` command.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use ojs_throttle::duration;

/// A day, in seconds.
pub const DAY: i64 = 24 * 3600;

/// What `openssl ca` must be told, to sign with any dates.
const RULES: &str = "[ca]\ndefault_ca = here\n[here]\ndatabase = index\nnew_certs_dir = .\ndefault_md = sha256\n\
    rand_serial = yes\nunique_subject = no\ncopy_extensions = copy\npolicy = any\n[any]\ncommonName = supplied\n";

/// A CA in a folder of its own, which goes with it.
pub struct Ca {
    dir: tempfile::TempDir,
}

/// A certificate and its key, in PEM files.
#[derive(Clone, Debug)]
pub struct Signed {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Signed {
    /// As the table of a listener names them.
    pub fn as_listener(&self) -> String {
        let Signed { cert, key } = self;
        format!(
            "cert_file = \"{}\", key_file = \"{}\"",
            cert.display(),
            key.display()
        )
    }

    /// Puts this one into the files of another.
    pub fn replace(&self, other: &Signed) {
        for (from, to) in [(&self.cert, &other.cert), (&self.key, &other.key)] {
            std::fs::copy(from, to).unwrap();
        }
    }

    /// As `[upstream]` and `[store]` name them.
    pub fn as_client(&self) -> String {
        let Signed { cert, key } = self;
        format!(
            "client_cert_file = \"{}\"\nclient_key_file = \"{}\"\n",
            cert.display(),
            key.display()
        )
    }
}

fn done(command: &mut Command) {
    let ran = command.output().unwrap();
    let why = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{command:?}: {why}");
}

/// A new key and what is asked with it.
fn request(command: &mut Command, key: &Path) {
    command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    done(command.args(["-nodes", "-keyout"]).arg(key));
}

impl Ca {
    pub fn new() -> Ca {
        let ca = Ca {
            dir: tempfile::tempdir().unwrap(),
        };
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-days", "9", "-subj", "/CN=ca"]);
        make.arg("-out").arg(ca.file());
        request(&mut make, &ca.dir.path().join("ca.key"));
        ca
    }

    /// The certificate that others trust.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate for this host, by its names.
    pub fn server(&self, name: &str) -> Signed {
        self.sign("1", name, "DNS:localhost,IP:127.0.0.1")
    }

    /// A certificate with this common name, and other names as OpenSSL writes them: `DNS:a,URI:b`.
    pub fn client(&self, name: &str, others: &str) -> Signed {
        self.sign("1", name, others)
    }

    /// A certificate whose time was over a day ago.
    pub fn expired(&self, name: &str) -> Signed {
        self.sign("-1", name, "DNS:expired")
    }

    /// A certificate that is good from then to then, in seconds from now.
    pub fn lasting(&self, name: &str, others: &str, from: i64, to: i64) -> Signed {
        let own = |kind: &str| self.dir.path().join(format!("{name}.{kind}"));
        self.ask(name, &format!("subjectAltName={others}"));
        std::fs::write(self.dir.path().join("rules"), RULES).unwrap();
        std::fs::write(self.dir.path().join("index"), "").unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let date = |after: i64| {
            let then = now.as_secs().checked_add_signed(after).unwrap() * 1_000_000;
            let text = duration::rfc3339(then);
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            format!("{}Z", &digits[..14])
        };
        let mut sign = Command::new("openssl");
        sign.current_dir(self.dir.path());
        sign.args(["ca", "-batch", "-notext", "-config", "rules"]);
        sign.args(["-cert", "ca.pem", "-keyfile", "ca.key"]);
        sign.args(["-startdate", &date(from), "-enddate", &date(to)]);
        done(sign.arg("-in").arg(own("csr")).arg("-out").arg(own("pem")));
        Signed {
            cert: own("pem"),
            key: own("key"),
        }
    }

    /// A certificate for this host, which is no client's.
    pub fn server_alone(&self, name: &str) -> Signed {
        let names = "DNS:localhost,IP:127.0.0.1";
        let more = format!("subjectAltName={names}\nextendedKeyUsage=serverAuth");
        self.signed("1", name, &more)
    }

    /// Asks for a certificate with a new key.
    fn ask(&self, name: &str, extensions: &str) {
        let path = |kind: &str| self.dir.path().join(format!("{name}.{kind}"));
        let mut ask = Command::new("openssl");
        ask.args(["req", "-subj", &format!("/CN={name}")]);
        for extension in extensions.lines() {
            ask.args(["-addext", extension]);
        }
        request(ask.arg("-out").arg(path("csr")), &path("key"));
    }

    /// A certificate that is good for so many days.
    fn sign(&self, days: &str, name: &str, others: &str) -> Signed {
        self.signed(days, name, &format!("subjectAltName={others}"))
    }

    fn signed(&self, days: &str, name: &str, extensions: &str) -> Signed {
        let path = |kind: &str| self.dir.path().join(format!("{name}.{kind}"));
        self.ask(name, extensions);
        let mut sign = Command::new("openssl");
        sign.args(["x509", "-req", "-days", days, "-copy_extensions", "copy"]);
        sign.args(["-CAcreateserial", "-CAkey"])
            .arg(self.dir.path().join("ca.key"));
        sign.arg("-CA").arg(self.file());
        done(
            sign.arg("-in")
                .arg(path("csr"))
                .arg("-out")
                .arg(path("pem")),
        );
        Signed {
            cert: path("pem"),
            key: path("key"),
        }
    }
}
