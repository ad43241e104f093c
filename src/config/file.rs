//! From the file's text to [`Settings`]: one function a table, then what only shows when all of
//! them are read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use toml::Spanned;
use toml::de::DeTable;

use super::reader::{Env, Reading, Table};
use super::report::{Problem, Report};
use super::{
    BaseUrl, CONNECT_TIMEOUT, Fetch, Hold, LONGEST_WAIT, Listen, LogFormat, MediaType, Metrics,
    OnStoreError, Overrides, Repairs, Secret, Server, Settings, Settle, StoreSettings, StoreUrl,
    UPSTREAM_TIMEOUT, Upstream, policies,
};
use crate::store::{postgres, redis, sqlite};

/// The shortest timeout that makes sense.
const LEAST: Duration = Duration::from_millis(1);
/// The longest timeout that makes sense.
const HOUR: Duration = Duration::from_secs(3_600);
/// The largest file of a token, in bytes.
const MOST_TOKEN: u32 = 64 << 10;
/// The largest file of certificates, in bytes.
const MOST_ROOTS: u32 = 16 << 20;

/// Reads a whole file.
pub(super) fn read(
    text: &str,
    name: &str,
    overrides: &Overrides,
    env: Env<'_>,
) -> Result<Settings, Report> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let reading = Reading::new(env, errors.is_empty());
    let settings = sections(&reading, &document, overrides);
    let (mut problems, _) = reading.finish();
    syntax(text, &errors, &mut problems);
    // The text is for showing lines: without problems nobody keeps it.
    let shown = if problems.is_empty() { "" } else { text };
    let report = Report::new(name, shown, problems);
    match settings {
        Some(settings) if report.errors() == 0 => Ok(Settings {
            warnings: report,
            ..settings
        }),
        _ => Err(report),
    }
}

/// How the parser begins where an array or an inline table does not end: what follows is one more value to it.
const OPEN: &str = "missing comma";

/// Adds what is not TOML, once a line: the rest of such a line says nothing any more, and neither does
/// what was read from it.
fn syntax(text: &str, errors: &[toml::de::Error], problems: &mut Vec<Problem>) {
    let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let line = |at: usize| breaks.partition_point(|end| *end < at);
    let mut broken: BTreeMap<usize, Problem> = BTreeMap::new();
    for error in errors {
        let span = error.span().unwrap_or_default();
        broken.entry(line(span.start)).or_insert_with(|| Problem {
            warning: false,
            span: Some(span),
            title: "not valid TOML".into(),
            hint: error.message().trim().replace('\n', ", "),
        });
    }
    problems.retain(|problem| {
        let span = problem.span.clone().unwrap_or_default();
        let lines = line(span.start)..=line(span.end);
        broken.range(lines).next().is_none()
    });
    // One bracket too few makes nonsense of all that follows.
    let open = broken
        .values()
        .position(|problem| problem.hint.starts_with(OPEN));
    problems.extend(
        broken
            .into_values()
            .take(open.map_or(usize::MAX, |nth| nth + 1)),
    );
}

/// The report on a file that cannot be read at all.
pub(super) fn unreadable(name: &str, error: &std::io::Error) -> Report {
    let title = format!("cannot read {name}: {error}");
    let hint = "give the path of a TOML file; config.example.toml shows every field".to_owned();
    Report::new(
        name,
        "",
        vec![Problem {
            warning: false,
            span: None,
            title,
            hint,
        }],
    )
}

/// Every field asked for while reading `text`.
pub(super) fn known_fields(text: &str) -> Vec<String> {
    let Ok(document) = DeTable::parse(text) else {
        return Vec::new();
    };
    let reading = Reading::new(&|_| None, true);
    sections(&reading, &document, &Overrides::default());
    reading.finish().1
}

/// Reads every table. `None`: there is no upstream, which is among the problems.
fn sections<'r>(
    reading: &'r Reading<'r>,
    document: &'r Spanned<DeTable<'r>>,
    overrides: &Overrides,
) -> Option<Settings> {
    let mut root = Table::root(reading, document);
    let (server, backend) = server(reading, &mut root, overrides);
    let upstream = upstream(&mut root, backend);
    let store = store(&mut root);
    let fetch = fetch(&mut root);
    let hold = hold(&mut root);
    let settle = settle(&mut root);
    let repairs = repairs(&mut root);
    let metrics = metrics(&mut root);
    let read = policies::policies(reading, &mut root);
    let store = StoreSettings {
        by_policy: read.on_store_error,
        reserved: read.reserved,
        ..store
    };
    root.finish();
    // Only here, so that the problems of all tables show.
    let upstream = upstream?;
    let warnings = Report::new("", "", Vec::new());
    Some(Settings {
        server,
        upstream,
        store,
        fetch,
        hold,
        settle,
        repairs,
        metrics,
        policies: Arc::new(read.policies),
        bounds: Arc::new(read.bounds),
        warnings,
    })
}

/// What `[server]` says of the backend.
struct Backend {
    url: Option<(BaseUrl, Range<usize>)>,
    timeout: Duration,
    connect_timeout: Duration,
}

fn server(reading: &Reading<'_>, root: &mut Table<'_>, overrides: &Overrides) -> (Server, Backend) {
    let mut table = root.table("server");
    let default = Server::default();
    let listen = table.parsed::<Listen>("listen");
    let admin = table.parsed::<Listen>("admin_listen");
    let backend = Backend {
        url: backend_url(&mut table, overrides),
        timeout: table.duration("upstream_timeout", UPSTREAM_TIMEOUT, LEAST..=HOUR),
        connect_timeout: table.duration(
            "connect_timeout",
            CONNECT_TIMEOUT,
            LEAST..=Duration::from_secs(60),
        ),
    };
    let place = |given: &Option<(Listen, Range<usize>)>, default| {
        given.as_ref().map_or(default, |(listen, _)| listen.0)
    };
    let (drain_timeout, drain_min) = drain(&mut table, overrides.drain_min);
    let server = Server {
        listen: overrides.listen.unwrap_or(place(&listen, default.listen)),
        admin_listen: overrides
            .admin_listen
            .unwrap_or(place(&admin, default.admin_listen)),
        threads: table.number("threads", 1..=64).unwrap_or(default.threads),
        drain_timeout,
        drain_min,
        max_body: table.size("max_body", default.max_body, 64 << 10..=1 << 30),
        max_connections: table
            .number("max_connections", 1..=1_000_000)
            .unwrap_or(default.max_connections),
        max_in_flight: table
            .number("max_in_flight", 1..=1_000_000)
            .unwrap_or(default.max_in_flight),
        header_timeout: table.duration("header_timeout", default.header_timeout, LEAST..=HOUR),
        idle_timeout: table.duration("idle_timeout", default.idle_timeout, LEAST..=24 * HOUR),
        body_timeout: table.duration("body_timeout", default.body_timeout, LEAST..=HOUR),
        control_token: token(&mut table, "control_token"),
        trust_tenant_header: table.flag("trust_tenant_header", default.trust_tenant_header),
        log: table.word(
            "log",
            default.log,
            &[("human", LogFormat::Human), ("json", LogFormat::Json)],
        ),
        log_level: table.word("log_level", default.log_level, &LEVELS),
    };
    let written = listen.as_ref().map(|(_, span)| span);
    warn_of_no_control(&table, &server, written.unwrap_or(&table.span));
    let given = admin.or(listen).map(|(_, span)| span);
    addresses_apart(
        reading,
        &server,
        given.unwrap_or(table.span.clone()),
        &backend,
    );
    table.finish();
    (server, backend)
}

/// The longest and the least that a stop goes on serving. A short `drain_timeout` shortens what the least is by
/// default; `unsaid`: another default for it.
fn drain(table: &mut Table<'_>, unsaid: Option<Duration>) -> (Duration, Duration) {
    let default = Server::default();
    let most = default.drain_timeout;
    let most = table.duration("drain_timeout", most, Duration::ZERO..=HOUR);
    let span = table.get("drain_min").map(|found| found.span);
    let least = unsaid.unwrap_or(default.drain_min).min(most);
    let least = table.duration("drain_min", least, Duration::ZERO..=HOUR);
    if let Some(span) = span
        && least > most
    {
        let title = "`server.drain_min` is longer than `server.drain_timeout`";
        let hint = "a stop takes no longer than drain_timeout: raise that, or lower drain_min";
        table.error(&span, title, hint);
    }
    (most, least)
}

/// Where others reach the data port, nobody can change a limit there without the token.
fn warn_of_no_control(table: &Table<'_>, server: &Server, listen: &Range<usize>) {
    if !server.listen.ip().to_canonical().is_loopback() && server.control_token.is_none() {
        table.warn(
            listen,
            "`server.listen` is not on loopback, and there is no `server.control_token`",
            "nobody can pause a key or change limits over HTTP, not from this machine either: set one",
        );
    }
}

/// No address may lead back to the program itself.
fn addresses_apart(reading: &Reading<'_>, server: &Server, given: Range<usize>, backend: &Backend) {
    if server.listen == server.admin_listen && server.listen.port() != 0 {
        let title = "`server.listen` and `server.admin_listen` are the same";
        reading.error(given, title, "give each its own port");
    }
    if let Some((url, span)) = &backend.url
        && points_at(url, server.listen)
    {
        let title = "`server.upstream` is this program's own `listen`";
        reading.error(span.clone(), title, "write the backend's address");
    }
}

const LEVELS: [(&str, tracing::Level); 4] = [
    ("error", tracing::Level::ERROR),
    ("warn", tracing::Level::WARN),
    ("info", tracing::Level::INFO),
    ("debug", tracing::Level::DEBUG),
];

fn backend_url(table: &mut Table<'_>, overrides: &Overrides) -> Option<(BaseUrl, Range<usize>)> {
    let given = table.get("upstream").is_some();
    let parsed = table.parsed::<BaseUrl>("upstream");
    if let Some(url) = &overrides.upstream {
        return Some((url.clone(), table.span.clone()));
    }
    if !given {
        let title = "`server.upstream` is required: the address of the OJS backend";
        table.missing(
            &table.span,
            title,
            "add upstream = \"http://127.0.0.1:9090\", or start with --upstream",
        );
    }
    parsed
}

/// Whether a request to `url` would come back to `listen`.
fn points_at(url: &BaseUrl, listen: SocketAddr) -> bool {
    let host = match url.host.as_str() {
        "localhost" => Some(std::net::IpAddr::from([127, 0, 0, 1])),
        host => host.parse().ok(),
    };
    let same = |host: std::net::IpAddr| {
        host == listen.ip() || (listen.ip().is_unspecified() && host.is_loopback())
    };
    url.port == listen.port() && host.is_some_and(same)
}

fn upstream(root: &mut Table<'_>, backend: Backend) -> Option<Upstream> {
    let mut table = root.table("upstream");
    let token = token(&mut table, "token");
    let ca_file = ca_file(&mut table, &backend);
    let mut known = |name, [(one, is_one), (other, is_other)]: [(&str, bool); 2]| {
        let words = [("auto", None), (one, Some(is_one)), (other, Some(is_other))];
        table.word(name, None, &words)
    };
    let requeue_harmless = known("requeue", [("harmless", true), ("burns", false)]);
    let claims_count = known("claims_count", [("yes", true), ("no", false)]);
    let worker_liveness = known("liveness", [("job", false), ("worker", true)]);
    let heartbeat_from_start = known("heartbeat", [("from_now", false), ("from_start", true)]);
    table.finish();
    let Backend {
        url,
        timeout,
        connect_timeout,
    } = backend;
    let (url, _) = url?;
    Some(Upstream {
        url,
        timeout,
        connect_timeout,
        token,
        ca_file,
        requeue_harmless,
        claims_count,
        worker_liveness,
        heartbeat_from_start,
    })
}

/// What is in a regular file of at most so many bytes: the name of a device may stand there, which has no end.
fn content(path: &Path, most: u32) -> io::Result<Vec<u8>> {
    // First, because to open a pipe waits for who writes into it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let read = File::open(path)?
        .take(u64::from(most) + 1)
        .read_to_end(&mut bytes)?;
    if read > most as usize {
        let why = format!("it is larger than {} KiB", most >> 10);
        return Err(io::Error::other(why));
    }
    Ok(bytes)
}

/// A token as written, from the environment, or from a file.
fn token(table: &mut Table<'_>, name: &'static str) -> Option<Secret> {
    let given = table.expanded(name)?;
    let path_of_field = table.path_of(name);
    let token = match given.text.strip_prefix("file:") {
        None => given.text,
        Some(path) => match content(Path::new(path), MOST_TOKEN) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => {
                table.error(
                    &given.span,
                    format!("`{path_of_field}`: cannot read {path}: {error}"),
                    "the path of a file",
                );
                return None;
            }
        },
    };
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let title =
            format!("`{path_of_field}` is empty or has characters that no header can carry");
        table.error(
            &given.span,
            title,
            "write the token without `Bearer`, \"${NAME}\" or \"file:/path\"",
        );
        return None;
    }
    Some(Secret::new(token))
}

fn ca_file(table: &mut Table<'_>, backend: &Backend) -> Option<PathBuf> {
    if backend.url.as_ref().is_none_or(|(url, _)| url.tls) {
        return roots(table, "ca_file");
    }
    let given = table.expanded("ca_file")?;
    let title = "`upstream.ca_file` is not used: `server.upstream` is http";
    table.warn(
        &given.span,
        title,
        "write https:// there if the backend speaks TLS",
    );
    Some(PathBuf::from(given.text))
}

fn store(root: &mut Table<'_>) -> StoreSettings {
    let mut table = root.table("store");
    let default = StoreSettings::default();
    let store = StoreSettings {
        url: store_url(&mut table),
        namespace: namespace(&mut table).unwrap_or(default.namespace),
        timeout: table.duration("timeout", default.timeout, LEAST..=Duration::from_secs(10)),
        on_store_error: table.word(
            "on_store_error",
            default.on_store_error,
            &OnStoreError::words(),
        ),
        by_policy: default.by_policy,
        reserved: default.reserved,
        ca_file: roots(&mut table, "ca_file"),
    };
    table.finish();
    store
}

fn store_url(table: &mut Table<'_>) -> StoreUrl {
    let Some(url) = table.expanded("url").filter(|url| url.text != "memory:") else {
        return StoreUrl::Memory;
    };
    // What it says is never repeated: it may have a password in it.
    let (store, wrong) = match url.text.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => {
            let wrong = postgres::Target::parse(&url.text, None).err();
            let store = StoreUrl::Postgres(Secret::new(url.text));
            (store, wrong.map(|why| why.to_string()))
        }
        "sqlite" => match sqlite::path(&url.text) {
            Ok(path) => (StoreUrl::Sqlite(path), None),
            Err(why) => (StoreUrl::Memory, Some(why.to_owned())),
        },
        scheme if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            let wrong = redis::Target::parse(&url.text, None).err();
            let store = StoreUrl::Redis(Secret::new(url.text));
            (store, wrong.map(|why| why.to_string()))
        }
        _ => (StoreUrl::Memory, Some("it names no store".to_owned())),
    };
    if let Some(why) = wrong {
        table.error(
            &url.span,
            format!("`store.url` is not understood: {why}"),
            "write \"memory:\", \"sqlite:PATH\", \"redis://HOST:PORT/DB\" or \"postgres://HOST:PORT/DATABASE\"",
        );
    }
    store
}

/// Part of every key of ours, between braces in Redis.
fn namespace(table: &mut Table<'_>) -> Option<String> {
    let given = table.text("namespace")?;
    match crate::limit::Key::new(&given.text) {
        Ok(_) => Some(given.text),
        Err(why) => {
            table.error(
                &given.span,
                format!("`store.namespace` cannot be used: {why}"),
                "the default is \"ojs-throttle\"",
            );
            None
        }
    }
}

/// The path of a file of certificates to trust.
fn roots(table: &mut Table<'_>, name: &'static str) -> Option<PathBuf> {
    let given = table.expanded(name)?;
    let path = PathBuf::from(given.text);
    if let Err(why) = certificates(&path) {
        let title = format!("`{}` {why}", table.path_of(name));
        let hint = "the path of a PEM file with the certificates to trust";
        table.error(&given.span, title, hint);
    }
    Some(path)
}

/// Whether a file has certificates, and all of them can be trusted; else why not.
fn certificates(path: &Path) -> Result<(), String> {
    let text = content(path, MOST_ROOTS).map_err(|error| format!("cannot be read: {error}"))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| format!("is no PEM file: {error}"))?;
        let added = roots.add(certificate);
        added.map_err(|error| format!("has what is no certificate: {error}"))?;
    }
    match roots.is_empty() {
        true => Err("has no certificate (-----BEGIN CERTIFICATE-----)".to_owned()),
        false => Ok(()),
    }
}

fn fetch(root: &mut Table<'_>) -> Fetch {
    let mut table = root.table("fetch");
    let default = Fetch::default();
    let fetch = Fetch {
        max_wait: table.duration("max_wait", default.max_wait, Duration::ZERO..=LONGEST_WAIT),
        claim_budget: table.duration("claim_budget", default.claim_budget, LEAST..=LONGEST_WAIT),
    };
    table.finish();
    fetch
}

fn hold(root: &mut Table<'_>) -> Hold {
    let mut table = root.table("hold");
    let default = Hold::default();
    let hold = Hold {
        idle: table.duration("idle", default.idle, LEAST..=HOUR),
        max: table.number("max", 1..=1_000_000),
        max_bytes: table.size("max_bytes", default.max_bytes, 1 << 20..=16 << 30),
    };
    table.finish();
    hold
}

fn settle(root: &mut Table<'_>) -> Settle {
    let mut table = root.table("settle");
    let settle = Settle {
        retry_for: table.duration(
            "retry_for",
            Settle::default().retry_for,
            Duration::ZERO..=LONGEST_WAIT,
        ),
    };
    table.finish();
    settle
}

fn repairs(root: &mut Table<'_>) -> Repairs {
    let mut table = root.table("repairs");
    let default = Repairs::default();
    let media_types = [
        ("auto", MediaType::Auto),
        ("always", MediaType::Always),
        ("off", MediaType::Off),
    ];
    let repairs = Repairs {
        heartbeat_active_jobs: table.flag("heartbeat_active_jobs", default.heartbeat_active_jobs),
        queue_paths: table.flag("queue_paths", default.queue_paths),
        job_and_jobs: table.flag("job_and_jobs", default.job_and_jobs),
        media_type: table.word("media_type", default.media_type, &media_types),
    };
    table.finish();
    repairs
}

fn metrics(root: &mut Table<'_>) -> Metrics {
    let mut table = root.table("metrics");
    let metrics = Metrics {
        top_keys: table
            .number("top_keys", 0..=10_000)
            .unwrap_or(Metrics::default().top_keys),
    };
    table.finish();
    metrics
}
