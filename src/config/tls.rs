//! How a listener is secured, as the file says it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::kinds::{ReadAndShown, SettingKind, path, pem};
use ojs_reader::{TomlTable, texts};
use ojs_tls::{self as tls, BadPem, ListenerTls};

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
    let cert_file = path(table, "cert_file", None);
    let key_file = path(table, "key_file", None);
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
    cert_file: &Option<PathBuf>,
    key_file: &Option<PathBuf>,
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
