//! How a listener is secured, as the file says it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::kinds::{MOST_PEM, ReadAndShown, SettingKind, content, path, pem};
use super::patterns::texts;
use super::reader::TomlTable;
use super::settings::{SETTINGS, Settings};
use crate::duration;
use crate::tls::{self, BadPem, Lifetime, ListenerTls};

/// What is shown where the files are not named as they should be.
const EXAMPLE: &str = "{ cert_file = \"tls.crt\", key_file = \"tls.key\" }";
const HINT: &str = "the path of a PEM file";

/// How a listener is secured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsSettings {
    /// The listener's certificate, with those that signed it behind it.
    pub cert_file: PathBuf,
    /// The key of that.
    pub key_file: PathBuf,
    /// The CA that must have signed the certificates of clients.
    pub client_ca_file: Option<PathBuf>,
    /// What was read from these.
    listener: ListenerTls,
}

impl TlsSettings {
    /// What was read from the files.
    pub fn listener(&self) -> ListenerTls {
        self.listener.clone()
    }
}

/// What to do about a certificate that ends.
pub const RENEW: &str = "renew it: a changed file counts without a restart";

/// A file of certificates that a setting names, by the first of them.
#[derive(Clone, Debug)]
pub struct CertificateFile {
    /// The setting.
    pub setting: String,
    /// When the certificate is good.
    pub lifetime: Lifetime,
}

impl CertificateFile {
    /// What is to be said of it, if it is not good now, or for 14 days more at most.
    pub fn concern(&self) -> Option<String> {
        let Lifetime { begins, ends } = self.lifetime;
        let (what, when) = match self.lifetime.left() {
            _ if tls::now() < begins => ("is not good before", begins),
            ..0 => ("was good until", ends),
            0..=1_209_600 => ("ends at", ends),
            _ => return None,
        };
        let when = duration::rfc3339(when.saturating_mul(1_000_000));
        let setting = &self.setting;
        Some(format!("the certificate of `{setting}` {what} {when}"))
    }
}

impl Settings {
    /// The files of certificates that these settings name, as far as they can be read now.
    pub fn certificates(&self) -> Vec<CertificateFile> {
        let of_settings = SETTINGS.iter().flat_map(|of| match (of.shown)(self) {
            Value::Object(table) => table
                .into_iter()
                .map(|(name, value)| (format!("{}.{name}", of.name), value))
                .collect(),
            value => vec![(of.name.to_owned(), value)],
        });
        let of_egress = self.egress.iter();
        let of_egress =
            of_egress.map(|of| (format!("egress.{}.ca_file", of.name), json!(of.ca_file)));
        let read = |(setting, path): (String, Value)| {
            let is_one = setting.ends_with("cert_file") || setting.ends_with("ca_file");
            let path = path.as_str().filter(|_| is_one)?;
            let lifetime = Lifetime::of_first(&content(path.as_ref(), MOST_PEM).ok()?)?;
            Some(CertificateFile { setting, lifetime })
        };
        of_settings.chain(of_egress).filter_map(read).collect()
    }

    /// The setting of a listener's certificate that is not good now and would take the place of a good one of `last`.
    pub fn ends_a_certificate(&self, last: &Settings) -> Option<&'static str> {
        let (next, last) = (&self.server, &last.server);
        let pairs = [
            ("server.tls.cert_file", &next.tls, &last.tls),
            (
                "server.admin_tls.cert_file",
                &next.admin_tls,
                &last.admin_tls,
            ),
        ];
        let mut pairs = pairs.into_iter();
        pairs.find_map(|(setting, next, last)| {
            let (next, last) = next.as_ref().zip(last.as_ref())?;
            (last.listener.is_good() && !next.listener.is_good()).then_some(setting)
        })
    }
}

/// How a listener is secured: a table of files, and names.
pub(super) fn secured() -> impl SettingKind<Option<TlsSettings>> {
    let read = |table: &mut TomlTable<'_>, name, default| {
        let files = table.maybe_table(name, &format!("{name} = {EXAMPLE}"));
        files.map_or(default, |mut files| read(&mut files))
    };
    ReadAndShown(read, |tls: &Option<TlsSettings>| {
        tls.as_ref().map_or(Value::Null, |tls| {
            json!({
                "cert_file": tls.cert_file,
                "key_file": tls.key_file,
                "client_ca_file": tls.client_ca_file,
                "admin_names": tls.listener.admin_names(),
            })
        })
    })
}

fn read(table: &mut TomlTable<'_>) -> Option<TlsSettings> {
    let client_ca_file = path(table, "client_ca_file", None);
    let given = table.get("admin_names");
    let names = given.and_then(|given| texts(table, &given));
    let admin_names: Vec<String> = names.into_iter().flatten().map(|name| name.text).collect();
    if client_ca_file.is_none() && !admin_names.is_empty() {
        let hint = "nobody shows a certificate otherwise";
        table.refuse("admin_names", "needs `client_ca_file` beside it", hint);
    }
    let (cert_file, key_file) = (
        path(table, "cert_file", None),
        path(table, "key_file", None),
    );
    let (Some(cert_file), Some(key_file)) = (cert_file, key_file) else {
        let title = format!("`{}` needs `cert_file` and `key_file`", table.path);
        let span = table.span.clone();
        table.missing(&span, title, format!("such as {EXAMPLE}"));
        return None;
    };
    let cert = pem(table, "cert_file", &cert_file)?;
    let key = pem(table, "key_file", &key_file)?;
    let client_ca = match &client_ca_file {
        Some(file) => Some(pem(table, "client_ca_file", file)?),
        None => None,
    };
    let listener = ListenerTls::new(&cert, &key, client_ca.as_deref(), admin_names);
    let listener = listener
        .map_err(|BadPem { setting, why }| table.refuse(setting, why, HINT))
        .ok()?;
    // The commands ask the admin port alone.
    let shuts_out = listener.shuts_out_its_own();
    if let Some(why) = shuts_out.filter(|_| table.path.ends_with("admin_tls")) {
        let what = "shuts out `healthcheck` and the commands, which show `cert_file`";
        let hint = "sign cert_file by this CA, for clients too (clientAuth)";
        let title = format!("`{}.client_ca_file` {what}: {why}", table.path);
        table.warn(&table.span_of("client_ca_file"), title, hint);
    }
    Some(TlsSettings {
        cert_file,
        key_file,
        client_ca_file,
        listener,
    })
}

/// Who we are to a server that asks: both files or none, and ones that can be used.
pub(super) fn must_be_identity(
    table: &mut TomlTable<'_>,
    cert_file: Option<&Path>,
    key_file: Option<&Path>,
) {
    const NAMES: [&str; 2] = ["client_cert_file", "client_key_file"];
    let (cert, key) = match (cert_file, key_file) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) => return,
        (one, _) => {
            let [named, other] = match one {
                Some(_) => NAMES,
                None => [NAMES[1], NAMES[0]],
            };
            return table.refuse(named, format!("needs `{other}` beside it"), HINT);
        }
    };
    let read = (pem(table, NAMES[0], cert), pem(table, NAMES[1], key));
    if let (Some(cert), Some(key)) = read
        && let Err(BadPem { setting, why }) = tls::identity((NAMES[0], &cert), (NAMES[1], &key))
    {
        table.refuse(setting, why, HINT);
    }
}
