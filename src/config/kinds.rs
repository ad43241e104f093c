//! What a setting may be. Each of these reads one field of a table, reports what is wrong with it, and gives the
//! default where it is wrong or absent, so that reading goes on.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, pem::PemObject};

use super::reader::TomlTable;
use super::{BaseUrl, Listen, Secret, StoreUrl};
use crate::limit::Key;
use crate::policy::fields::Fields;
use crate::store::{postgres, redis, sqlite};

/// The largest file of a token, in bytes.
const MOST_TOKEN: u32 = 64 << 10;
/// The largest file of certificates, in bytes.
const MOST_ROOTS: u32 = 16 << 20;

/// A duration within a range.
pub(super) fn time(
    within: RangeInclusive<Duration>,
) -> impl Fn(&mut TomlTable<'_>, &'static str, Duration) -> Duration {
    move |table, name, default| table.duration(name, default, within.clone())
}

/// A number of bytes within a range.
pub(super) fn size(
    within: RangeInclusive<usize>,
) -> impl Fn(&mut TomlTable<'_>, &'static str, usize) -> usize {
    move |table, name, default| {
        let size = table.size_within(name, default, within.clone());
        size.ok().flatten().unwrap_or(default)
    }
}

/// A whole number within a range.
pub(super) fn count<T: From<usize>>(
    within: RangeInclusive<usize>,
) -> impl Fn(&mut TomlTable<'_>, &'static str, T) -> T {
    move |table, name, default| {
        let Ok(Some(number)) = table.int(name) else {
            return default;
        };
        let fits = usize::try_from(number).ok();
        let fits = fits.filter(|fits| within.contains(fits));
        if fits.is_none() {
            let what = format!("must be from {} to {}", within.start(), within.end());
            table.refuse(name, what, format!("found {number}"));
        }
        fits.map_or(default, T::from)
    }
}

/// One of some words.
pub(super) fn word<T: Copy>(
    words: &[(&str, T)],
) -> impl Fn(&mut TomlTable<'_>, &'static str, T) -> T {
    move |table, name, default| table.word_or(name, default, words)
}

/// `true` or `false`.
pub(super) fn flag(table: &mut TomlTable<'_>, name: &'static str, default: bool) -> bool {
    table.flag(name).ok().flatten().unwrap_or(default)
}

/// An address to listen on.
pub(super) fn address(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: SocketAddr,
) -> SocketAddr {
    table
        .parsed::<Listen>(name)
        .map_or(default, |listen| listen.0)
}

/// The address of the backend.
pub(super) fn url(table: &mut TomlTable<'_>, name: &'static str, default: BaseUrl) -> BaseUrl {
    table.parsed(name).unwrap_or(default)
}

/// The path of a file.
pub(super) fn path(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: Option<PathBuf>,
) -> Option<PathBuf> {
    let given = table.expanded(name);
    given.map_or(default, |given| Some(PathBuf::from(given)))
}

/// The path of a file of certificates to trust.
pub(super) fn certificates(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: Option<PathBuf>,
) -> Option<PathBuf> {
    let path = path(table, name, default)?;
    must_have_certificates(table, name, &path);
    Some(path)
}

/// Reports a file that has no certificates, or some that cannot be trusted.
pub(super) fn must_have_certificates(table: &mut TomlTable<'_>, name: &'static str, path: &Path) {
    if let Err(why) = can_be_trusted(path) {
        let hint = "the path of a PEM file with the certificates to trust";
        table.refuse(name, why, hint);
    }
}

fn can_be_trusted(path: &Path) -> Result<(), String> {
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

/// What is in a regular file of at most so many bytes: the name of a device may stand there, which has no end.
fn content(path: &Path, most: u32) -> io::Result<Vec<u8>> {
    // First, because to open a pipe waits for whoever writes into it.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    let read = file.take(u64::from(most) + 1).read_to_end(&mut bytes)?;
    if read > most as usize {
        let why = format!("it is larger than {} KiB", most >> 10);
        return Err(io::Error::other(why));
    }
    Ok(bytes)
}

/// A token as written, from the environment, or from a file.
pub(super) fn token(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: Option<Secret>,
) -> Option<Secret> {
    let Some(given) = table.expanded(name) else {
        return default;
    };
    let token = match given.strip_prefix("file:") {
        None => given,
        Some(path) => match content(Path::new(path), MOST_TOKEN) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) => {
                let title = format!("`{}`: cannot read {path}: {error}", table.path_of(name));
                table.error(&table.span_of(name), title, "the path of a file");
                return default;
            }
        },
    };
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let what = "is empty or has characters that no header can carry";
        let hint = "write the token without `Bearer`, \"${NAME}\" or \"file:/path\"";
        table.refuse(name, what, hint);
        return default;
    }
    Some(Secret::new(token))
}

/// The URL of a store.
pub(super) fn store(table: &mut TomlTable<'_>, name: &'static str, default: StoreUrl) -> StoreUrl {
    let Some(url) = table.expanded(name).filter(|url| url != "memory:") else {
        return default;
    };
    // What it says is never repeated: it may have a password in it.
    let (store, wrong) = match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => {
            let wrong = postgres::Target::parse(&url, None).err();
            let store = StoreUrl::Postgres(Secret::new(url));
            (store, wrong.map(|why| why.to_string()))
        }
        "sqlite" => match sqlite::path(&url) {
            Ok(path) => (StoreUrl::Sqlite(path), None),
            Err(why) => (default, Some(why.to_owned())),
        },
        scheme if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            let wrong = redis::Target::parse(&url, None).err();
            let store = StoreUrl::Redis(Secret::new(url));
            (store, wrong.map(|why| why.to_string()))
        }
        _ => (default, Some("it names no store".to_owned())),
    };
    if let Some(why) = wrong {
        let hint = "write \"memory:\", \"sqlite:PATH\", \"redis://HOST:PORT/DB\" or \
                    \"postgres://HOST:PORT/DATABASE\"";
        table.refuse(name, format!("is not understood: {why}"), hint);
    }
    store
}

/// A worker's id.
pub(super) fn name(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: Option<String>,
) -> Option<String> {
    let Some(given) = table.expanded(name) else {
        return default;
    };
    if given.is_empty() || !given.bytes().all(|byte| byte.is_ascii_graphic()) {
        let hint = "another one for each sidecar, such as \"ojs-throttle-1\"";
        table.refuse(name, "must be visible ASCII", hint);
        return default;
    }
    Some(given)
}

/// Part of every key of ours, between braces in Redis.
pub(super) fn namespace(table: &mut TomlTable<'_>, name: &'static str, default: String) -> String {
    let Ok(Some(given)) = table.text(name) else {
        return default;
    };
    match Key::new(&given) {
        Ok(_) => given.into_owned(),
        Err(why) => {
            let hint = format!("the default is \"{default}\"");
            table.refuse(name, format!("cannot be used: {why}"), hint);
            default
        }
    }
}
