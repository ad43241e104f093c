//! What a setting may be. Each of these reads one field of a table, reports what is wrong with it, and gives the
//! default where it is wrong or absent, so that reading goes on. And it shows a value as the file would write it.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::choices::StoreUrl;
use super::listen::{BackendAt, Listen};
use ojs_duration::plain;
use ojs_limit::Key;
use ojs_policy::fields::Fields;
use ojs_policy::numbers::plain_size;
use ojs_reader::{Secret, TomlTable, content};
use ojs_store::{postgres, redis, sqlite};
use ojs_tls as tls;
use ojs_wire::upstream::BaseUrl;

/// The longest timeout that makes sense.
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

/// The largest file of certificates, in bytes.
pub(super) const MOST_PEM: u32 = 16 << 20;
const PEM_HINT: &str = "the path of a PEM file";

/// What a setting may be.
pub(super) trait SettingKind<T> {
    /// Reads it.
    fn read(&self, table: &mut TomlTable<'_>, name: &'static str, default: T) -> T;
    /// Shows it as the file would write it, and nothing of a secret.
    fn show(&self, value: &T) -> Value;
}

/// Most are shown as they are.
impl<T: Serialize, F: Fn(&mut TomlTable<'_>, &'static str, T) -> T> SettingKind<T> for F {
    fn read(&self, table: &mut TomlTable<'_>, name: &'static str, default: T) -> T {
        self(table, name, default)
    }

    fn show(&self, value: &T) -> Value {
        serde_json::to_value(value).unwrap_or_default()
    }
}

/// How a setting is read, and how it is shown.
pub(super) struct ReadAndShown<R, S>(pub(super) R, pub(super) S);

impl<T, R, S> SettingKind<T> for ReadAndShown<R, S>
where
    R: Fn(&mut TomlTable<'_>, &'static str, T) -> T,
    S: Fn(&T) -> Value,
{
    fn read(&self, table: &mut TomlTable<'_>, name: &'static str, default: T) -> T {
        self.0(table, name, default)
    }

    fn show(&self, value: &T) -> Value {
        self.1(value)
    }
}

/// A store's URL without what may be a password, as the stores read it: the login before `@`, and the query, in which
/// one for the sentinels may stand.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let login = rest
        .rsplit_once('@')
        .map(|(_, place)| format!("***@{place}"));
    let shown = login.unwrap_or_else(|| rest.to_owned());
    let query = shown
        .split_once('?')
        .map(|(place, _)| format!("{place}?***"));
    format!("{scheme}://{}", query.unwrap_or(shown))
}

/// A duration within a range.
pub(super) fn time(within: RangeInclusive<Duration>) -> impl SettingKind<Duration> {
    let read = move |table: &mut TomlTable<'_>, name, default| {
        table.duration(name, default, within.clone())
    };
    ReadAndShown(read, |time: &Duration| plain(*time).into())
}

/// A number of bytes within a range.
pub(super) fn size(within: RangeInclusive<usize>) -> impl SettingKind<usize> {
    let read = move |table: &mut TomlTable<'_>, name, default| {
        let size = table.size_within(name, default, within.clone());
        size.ok().flatten().unwrap_or(default)
    };
    ReadAndShown(read, |size: &usize| plain_size(*size).into())
}

/// A whole number within a range.
pub(super) fn count<T: From<usize>>(
    within: RangeInclusive<usize>,
) -> impl Fn(&mut TomlTable<'_>, &'static str, T) -> T {
    move |table, name, default| table.whole_number(name, default, within.clone())
}

/// One of some words.
pub(super) fn word<T: Copy + PartialEq>(words: &[(&str, T)]) -> impl SettingKind<T> {
    let read = move |table: &mut TomlTable<'_>, name, default| table.word_or(name, default, words);
    let shown = move |value: &T| {
        let word = words.iter().find(|(_, means)| means == value);
        word.map(|(word, _)| *word).into()
    };
    ReadAndShown(read, shown)
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

/// The address of the backend, or that there is none. It is unknown where nobody said it.
pub(super) fn backend() -> impl SettingKind<Option<BaseUrl>> {
    let read = |table: &mut TomlTable<'_>, name, default| {
        table.parsed::<BackendAt>(name).map_or(default, |at| at.0)
    };
    ReadAndShown(read, |url: &Option<BaseUrl>| match url {
        None => BackendAt::NONE.into(),
        Some(url) => (!url.is_unknown()).then(|| url.to_string()).into(),
    })
}

/// The address of a server that need not be there.
pub(super) fn some_url() -> impl SettingKind<Option<BaseUrl>> {
    let read = |table: &mut TomlTable<'_>, name, default| table.parsed(name).or(default);
    ReadAndShown(read, |url: &Option<BaseUrl>| {
        url.as_ref().map(BaseUrl::to_string).into()
    })
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
    if let Some(text) = pem(table, name, path)
        && let Err(why) = tls::roots(&text)
    {
        table.refuse(name, why, PEM_HINT);
    }
}

/// What is in a file of certificates or a key; `None`: it cannot be read, which is reported.
pub(super) fn pem(table: &mut TomlTable<'_>, name: &'static str, path: &Path) -> Option<Vec<u8>> {
    table.note_file(path);
    let read = content(path, MOST_PEM);
    read.map_err(|error| table.refuse(name, format!("cannot be read: {error}"), PEM_HINT))
        .ok()
}

/// A digest of what is in these files. One that cannot be read is like an empty one.
pub fn digest_of(files: &[PathBuf]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for file in files {
        digest.update(Sha256::digest(content(file, MOST_PEM).unwrap_or_default()));
    }
    digest.finalize().into()
}

/// A token as written, from the environment, or from a file.
pub(super) fn token() -> impl SettingKind<Option<Secret>> {
    ReadAndShown(read_token, |token: &Option<Secret>| {
        token.as_ref().map(|_| "***").into()
    })
}

fn read_token(
    table: &mut TomlTable<'_>,
    name: &'static str,
    default: Option<Secret>,
) -> Option<Secret> {
    let Some(token) = table.secret(name) else {
        return default;
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
pub(super) fn store() -> impl SettingKind<StoreUrl> {
    ReadAndShown(read_store, |store: &StoreUrl| match store {
        StoreUrl::Memory => "memory:".into(),
        StoreUrl::Sqlite(path) => format!("sqlite:{}", path.display()).into(),
        StoreUrl::Redis(url) | StoreUrl::Postgres(url) => without_secrets(url.expose()).into(),
    })
}

fn read_store(table: &mut TomlTable<'_>, name: &'static str, default: StoreUrl) -> StoreUrl {
    let Some(url) = table.secret(name).filter(|url| url != "memory:") else {
        return default;
    };
    // What it says is never repeated: it may have a password in it.
    let (store, wrong) = match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => {
            let wrong = postgres::PostgresTarget::parse(&url).err();
            let store = StoreUrl::Postgres(Secret::new(url));
            (store, wrong.map(|why| why.to_string()))
        }
        "sqlite" => match sqlite::path(&url) {
            Ok(path) => (StoreUrl::Sqlite(path), None),
            Err(why) => (default, Some(why.to_owned())),
        },
        scheme if scheme.starts_with("redis") || scheme.starts_with("valkey") => {
            let wrong = redis::RedisTarget::parse(&url).err();
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
