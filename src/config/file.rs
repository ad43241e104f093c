//! From the file's text to [`Settings`]: every table, then what only shows when all of them are read.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeTable;

use super::choices::StoreUrl;
use super::command_line::{CommandLine, VARIABLES, about_unknown};
use super::kinds::must_have_certificates;
use super::listen::BackendAt;
use super::origins::Origins;
use super::policies;
use super::settings::{Settings, TablesByName};
use super::tls::must_be_identity;
use ojs_reader::{Document, EGRESS, FileReading, LISTS, Report, SourceKind, Sources, TomlTable};
use ojs_wire::upstream::BaseUrl;

/// Reads whole files as one, and puts the environment and the command line over them.
pub(super) fn read(files: Sources, overrides: &CommandLine) -> Result<Settings, Report> {
    let (settings, report) = read_what_can_be(files, overrides);
    match report.errors() {
        0 => Ok(Settings {
            warnings: report,
            ..settings
        }),
        _ => Err(report),
    }
}

/// The settings as far as they can be read, and what is wrong with the rest.
pub(super) fn read_what_can_be(mut files: Sources, overrides: &CommandLine) -> (Settings, Report) {
    add_variables(&mut files, overrides);
    let document = Document::parse(&files, &VARIABLES);
    let reading = FileReading::new(document.broken());
    let settings = sections(&reading, &files, &document.root, overrides);
    let origins = Origins::new(reading.places.take(), &files, overrides);
    let beside = reading.files.take();
    let (mut problems, _) = reading.finish(document.root.get_ref());
    document.add_problems(&files, &mut problems);
    // A file may name any variable as its own.
    let is_named = |name: &&String| files.text().contains(&format!("${{{name}}}"));
    let unknown = overrides.unknown.iter().filter(|name| !is_named(name));
    let unknown: Vec<&String> = unknown.collect();
    // The text is for showing lines: without problems nobody keeps it.
    let shown = if problems.is_empty() {
        Sources::default()
    } else {
        files
    };
    let mut report = Report::new(&shown, problems);
    report.files = beside;
    for name in unknown {
        let title =
            format!("the variable {name} of the environment is not known, and does nothing");
        report.warn(title, &about_unknown(name));
    }
    (
        Settings {
            origins,
            ..settings
        },
        report,
    )
}

/// The environment stands behind the files, so that what is wrong with it is shown likewise.
fn add_variables(files: &mut Sources, overrides: &CommandLine) {
    for (variable, value) in &overrides.variables {
        let text = format!("{variable}={}", value.expose());
        files.push(SourceKind::Variable, *variable, &text);
    }
}

/// The paths of all fields that the reader knows (`fetch.max_wait`), as far as `text` has their
/// tables.
pub fn known_fields(text: &str) -> Vec<String> {
    let Ok(document) = DeTable::parse(text) else {
        return Vec::new();
    };
    let reading = FileReading::new(0);
    let sources = Sources::default();
    sections(&reading, &sources, &document, &CommandLine::default());
    reading.finish(document.get_ref()).1
}

/// Reads every table. What could not be read is at its default, and among the problems.
fn sections<'r>(
    reading: &'r FileReading,
    sources: &'r Sources,
    document: &'r Spanned<DeTable<'r>>,
    overrides: &CommandLine,
) -> Settings {
    let mut root = TomlTable::root(reading, sources, document);
    let limiting = policies::policies(&mut root);
    let mut tables = TablesByName::new(root);
    let mut settings = Settings::read(&mut tables, limiting);
    put_over(&mut settings, overrides, tables.table("server"));
    check_backend(&settings, overrides, &mut tables);
    if settings.calls_only() {
        check_calls_only(overrides, &mut tables);
    }
    add_password(&mut settings, tables.table("store"));
    check_store(&settings, tables.table("store"));
    if overrides.no_network_store
        && matches!(
            settings.store.url,
            StoreUrl::Redis(_) | StoreUrl::Postgres(_)
        )
    {
        settings.store.url = StoreUrl::Memory;
    }
    check_addresses(&settings, tables.table("server"));
    check_drain(&settings, tables.table("server"));
    check_egress(&settings, tables.table("server"));
    settings
}

/// Each way out has a port of its own, and leads to none of this program's.
fn check_egress(settings: &Settings, file: &TomlTable<'_>) {
    let own = own_ports(settings).into_iter();
    let own = own.map(|(name, address)| (format!("`server.{name}`"), address));
    let mut ports: Vec<_> = own.collect();
    for of in &settings.egress {
        let who = format!("egress {:?}", of.name);
        let clash = ports.iter().find(|(_, other)| clash(*other, of.listen));
        if let Some((other, _)) = clash {
            let title = format!("{who} and {other} listen on the same address");
            let at = file.place_of(EGRESS, &of.name);
            file.error(&at, title, "give each its own port");
        }
        ports.push((who, of.listen));
    }
    for of in &settings.egress {
        if let Some((own, _)) = ports
            .iter()
            .find(|(_, at)| of.upstream.as_ref().is_some_and(|to| points_at(to, *at)))
        {
            let (name, at) = (&of.name, file.place_of(EGRESS, &of.name));
            let title = format!("the upstream of egress {name:?} is this program's own {own}");
            file.error(&at, title, "write the service's address");
        }
    }
}

/// Whether two listeners cannot both have what they want: an address of all interfaces takes the port on each.
fn clash(one: SocketAddr, other: SocketAddr) -> bool {
    let is_shared =
        one.ip() == other.ip() || [one, other].iter().any(|at| at.ip().is_unspecified());
    is_shared && one.port() == other.port() && one.port() != 0
}

impl Settings {
    /// The ports of this program, as the file has them.
    pub fn ports(&self) -> Vec<u16> {
        let own = own_ports(self).into_iter().map(|(_, address)| address);
        let ways_out = self.egress.iter().map(|of| of.listen);
        own.chain(ways_out).map(|address| address.port()).collect()
    }
}

/// The ports of this program beside those of ways out.
fn own_ports(settings: &Settings) -> Vec<(&'static str, SocketAddr)> {
    let server = &settings.server;
    let data = (!settings.calls_only()).then_some(("listen", server.listen));
    let admin = ("admin_listen", server.admin_listen);
    data.into_iter().chain([admin]).collect()
}

/// Puts the command line over the file.
fn put_over(settings: &mut Settings, overrides: &CommandLine, file: &mut TomlTable<'_>) {
    let server = &mut settings.server;
    server.listen = overrides.listen.unwrap_or(server.listen);
    server.admin_listen = overrides.admin_listen.unwrap_or(server.admin_listen);
    if let Some(BackendAt(url)) = &overrides.upstream {
        settings.upstream.url.clone_from(url);
    }
    if server.control_token.is_none() {
        server.control_token = overrides.control_token.clone();
    }
    if file.get("drain_min").is_none() {
        // A short `drain_timeout` shortens it.
        let least = overrides.drain_min.unwrap_or(server.drain_min);
        server.drain_min = least.min(server.drain_timeout);
    }
}

/// There must be a backend, and trust in its certificates is of use where it speaks TLS.
fn check_backend(settings: &Settings, overrides: &CommandLine, tables: &mut TablesByName<'_>) {
    let server = tables.table("server");
    let is_named = overrides.upstream.is_some() || server.get("upstream").is_some();
    if !is_named {
        let title = "`server.upstream` is required: the address of the OJS backend";
        let hint = "write upstream = \"http://127.0.0.1:9090\" into the file that --config names, or start with --upstream; where only calls are to be \
                    limited, by [[egress]], write \"none\"";
        server.missing(&server.span, title, hint);
    }
    let of = &settings.upstream;
    let upstream = tables.table("upstream");
    must_be_identity(upstream, &of.client_cert_file, &of.client_key_file);
    let is_plain = |url: &BaseUrl| !url.tls && !url.is_unknown();
    if !of.url.as_ref().is_some_and(is_plain) {
        if let Some(path) = &of.ca_file {
            must_have_certificates(upstream, "ca_file", path);
        }
        return;
    }
    let why = "`server.upstream` is http";
    let hint = "write https:// there if the backend speaks TLS";
    warn_of_unused(upstream, [&of.ca_file, &of.client_cert_file], why, hint);
}

/// What is about jobs, at the top of the file.
const ABOUT_JOBS: [&str; 9] = [
    "policy",
    "queue",
    "tenant",
    "job_policies",
    "fetch",
    "hold",
    "settle",
    "repairs",
    "upstream",
];
/// What is about jobs in `[server]`.
const OF_DATA_PORT: [&str; 6] = [
    "listen",
    "tls",
    "max_body",
    "upstream_timeout",
    "trust_tenant_header",
    "forwarded",
];

/// Without a backend there are no jobs: what a file says of them would have no effect, and nobody would know.
fn check_calls_only(overrides: &CommandLine, tables: &mut TablesByName<'_>) {
    let title = |name: &str| {
        format!("{name} is about jobs, and `server.upstream` is \"none\": there are none")
    };
    let backend = "or name the backend in server.upstream";
    let root = tables.root();
    for name in ABOUT_JOBS {
        let Some(found) = root.get(name) else {
            continue;
        };
        let header = match LISTS.contains(&name) {
            true => format!("`[[{name}]]`"),
            false => format!("`[{name}]`"),
        };
        let hint = match name {
            "policy" => "write its limits and its key into an [[egress]]",
            _ => "take it out",
        };
        root.error(&found.span, title(&header), format!("{hint}, {backend}"));
    }
    let has_egress = root.get("egress").is_some();
    let server = tables.table("server");
    for name in OF_DATA_PORT {
        if let Some(found) = server.get(name) {
            let title = title(&format!("`server.{name}`"));
            server.error(&found.span, title, format!("take it out, {backend}"));
        }
    }
    let at = server.span_of("upstream");
    if overrides.listen.is_some() {
        let hint = "leave it out: each [[egress]] says where it listens";
        server.error(&at, title("`--listen`"), hint);
    }
    if !has_egress {
        let title =
            "`server.upstream` is \"none\", and there is no [[egress]]: there is nothing to do";
        let hint = "add an [[egress]] with name, listen, upstream and a limit; `ojs-throttle help egress` shows one";
        server.missing(&at, title, hint);
    }
}

/// Puts the store's password into its URL.
fn add_password(settings: &mut Settings, store: &mut TomlTable<'_>) {
    let Some(password) = &settings.store.password else {
        return;
    };
    match settings.store.url.with_password(password) {
        Some(url) => settings.store.url = url,
        None if store.is_reported("url") => {}
        None => store.refuse(
            "password",
            "has no place in `store.url`",
            "for redis:// and postgres:// without a password there: write it in one place",
        ),
    }
}

/// Trust in certificates is of use where the store is spoken to in TLS.
fn check_store(settings: &Settings, store: &mut TomlTable<'_>) {
    let is_plain = match &settings.store.url {
        StoreUrl::Memory | StoreUrl::Sqlite(_) => true,
        StoreUrl::Redis(url) => {
            let scheme = url.expose().split([':', '+']).next();
            scheme.is_some_and(|scheme| !scheme.ends_with("ss") && !scheme.ends_with("ys"))
        }
        StoreUrl::Postgres(url) => url.expose().contains("sslmode=disable"),
    };
    let of = &settings.store;
    must_be_identity(store, &of.client_cert_file, &of.client_key_file);
    if is_plain {
        let why = "the connection to `store.url` is not encrypted";
        let hint = "write rediss:// there, or sslmode=require";
        warn_of_unused(store, [&of.ca_file, &of.client_cert_file], why, hint);
    }
}

/// Warns of files that say whom to trust, and what to show, where nobody asks.
fn warn_of_unused(table: &TomlTable<'_>, files: [&Option<PathBuf>; 2], why: &str, hint: &str) {
    for (name, file) in ["ca_file", "client_cert_file"].into_iter().zip(files) {
        if file.is_some() {
            let title = format!("`{}` is not used: {why}", table.path_of(name));
            table.warn(&table.span_of(name), title, hint);
        }
    }
}

/// No address may lead back to the program itself. Where others reach the data port, nobody can change a limit
/// there without the token.
fn check_addresses(settings: &Settings, file: &mut TomlTable<'_>) {
    let server = &settings.server;
    let listen = file.span_of("listen");
    let ports = own_ports(settings);
    let is_open = |address: SocketAddr| !address.ip().to_canonical().is_loopback();
    let open = ports.iter().find(|(_, address)| is_open(*address));
    // One token is enough for both.
    if let (Some((name, _)), None) = (open, &server.control_token) {
        let title = "is not on loopback, and there is no `server.control_token`";
        let effect = match *name {
            "listen" => "nobody can pause a key or change limits over HTTP",
            _ => "`why` is refused, and nobody can shut a key by hand",
        };
        let hint = format!("{effect}, not from this machine either: set one");
        file.warn(
            &file.span_of(name),
            format!("`server.{name}` {title}"),
            hint,
        );
    }
    let is_clear = server.control_token.is_some() && server.admin_tls.is_none();
    if is_clear && is_open(server.admin_listen) {
        let title = "`server.admin_listen` is not on loopback, and there is no `server.admin_tls`";
        let hint = "whoever sends the control token there sends it in clear";
        file.warn(&file.span_of("admin_listen"), title, hint);
    }
    if clash(server.listen, server.admin_listen) && !settings.calls_only() {
        let span = match file.get("admin_listen") {
            Some(admin) => admin.span,
            None => listen,
        };
        let title = "`server.listen` and `server.admin_listen` are the same";
        file.error(&span, title, "give each its own port");
    }
    let base = settings.upstream.url.as_ref().map(|url| &*url.base);
    if base.is_some_and(|base| base.ends_with("/ojs/v1")) {
        let title = "`server.upstream` ends with a part of the paths of OJS";
        let hint = "leave `/ojs/v1` out: each path begins with it";
        file.error(&file.span_of("upstream"), title, hint);
    }
    let own = ports.into_iter().find(|(_, port)| {
        let url = settings.upstream.url.as_ref();
        url.is_some_and(|url| points_at(url, *port))
    });
    if let Some((name, _)) = own {
        let title = format!("`server.upstream` is this program's own `{name}`");
        file.error(
            &file.span_of("upstream"),
            title,
            "write the backend's address",
        );
    }
}

/// Whether a request to `url` would come back to `listen`.
fn points_at(url: &BaseUrl, listen: SocketAddr) -> bool {
    let host = match url.host.as_str() {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        host => host.parse().ok(),
    };
    let same =
        |host: IpAddr| host == listen.ip() || (listen.ip().is_unspecified() && host.is_loopback());
    url.port == listen.port() && host.is_some_and(same)
}

/// A stop cannot go on serving for longer than it takes.
fn check_drain(settings: &Settings, file: &mut TomlTable<'_>) {
    let is_read = !file.is_reported("drain_min") && !file.is_reported("drain_timeout");
    if is_read && settings.server.drain_min > settings.server.drain_timeout {
        let title = "`server.drain_min` is longer than `server.drain_timeout`";
        let hint = "a stop takes no longer than drain_timeout: raise that, or lower drain_min";
        file.error(&file.span_of("drain_min"), title, hint);
    }
}
