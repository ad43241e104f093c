//! The store: is it there, is it ours, how far is it, what time has it.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::{Env, Level, Report, Source};
use crate::config::{StoreSettings, StoreUrl};
use crate::duration;
use crate::run::open_store;
use crate::store::redis::{self, Inspection, Kept, RedisStore};
use crate::store::{Inspection as SqlInspection, Step, Store, StoreError, postgres, sqlite};

/// Calls that are timed.
const CALLS: usize = 200;
/// From here on a clock is off enough to be seen in logs and calendars.
const APART: Duration = Duration::from_secs(1);
const PART: &str = "store";

pub(super) async fn examine(settings: &StoreSettings, probe: bool, env: &Env, report: &mut Report) {
    match &settings.url {
        StoreUrl::Memory => {
            let says = "memory: in each sidecar's own process; a restart begins with empty windows";
            report.add(PART, "kind", Source::Config, says.to_owned());
        }
        StoreUrl::Redis(url) => on_redis(settings, url.expose(), probe, env, report).await,
        StoreUrl::Postgres(url) => {
            let config = match postgres_config(settings, url.expose(), env) {
                Ok(config) => config,
                Err(why) => return unread(why, report),
            };
            let seen = postgres::inspect(&config, &env.clock, CALLS).await;
            on_sql(seen, settings, probe, env, report).await;
        }
        StoreUrl::Sqlite(path) => {
            let config = sqlite::Config {
                path: path.clone(),
                namespace: settings.namespace.clone(),
                owner: name(env),
                timeout: settings.timeout,
            };
            let seen = sqlite::inspect(&config, &env.clock, CALLS);
            on_sql(seen, settings, probe, env, report).await;
            unwritable(path, report);
        }
    }
}

fn name(env: &Env) -> String {
    format!("doctor-{:016x}", env.seed)
}

/// The settings name no store.
fn unread(why: String, report: &mut Report) {
    report.add(PART, "settings", Source::Config, why);
    report.but(Level::Fail, "correct store.url or store.ca_file");
}

async fn on_sql(
    seen: Result<SqlInspection, StoreError>,
    settings: &StoreSettings,
    probe: bool,
    env: &Env,
    report: &mut Report,
) {
    let seen = match seen {
        Ok(seen) => seen,
        Err(error) => return lost(&error, report),
    };
    let says = format!("yes, namespace {}", settings.namespace);
    report.add(PART, "reachable", Source::Measured, says);
    report.add(PART, "version", Source::Measured, seen.server);
    let says = match seen.live {
        None => "none yet: the first sidecar makes it".to_owned(),
        Some(live) => ours(live),
    };
    report.add(PART, "schema", Source::Measured, says);
    if !seen.trips.is_empty() {
        clock(seen.ahead, seen.trips.first().copied(), report);
    }
    trips(&seen.trips, settings.timeout, report);
    if probe {
        match open_store(settings, env.seed, env.clock.now().0).await {
            Ok(store) => writes(&*store, report).await,
            Err(error) => lost(&StoreError::Unusable(format!("{error:#}")), report),
        }
    }
}

fn ours(live: usize) -> String {
    match live {
        1 => "ours, 1 live sidecar".to_owned(),
        _ => format!("ours, {live} live sidecars"),
    }
}

async fn on_redis(
    settings: &StoreSettings,
    url: &str,
    probe: bool,
    env: &Env,
    report: &mut Report,
) {
    let store = match redis_store(settings, url, env) {
        Ok(store) => store,
        Err(why) => return unread(why, report),
    };
    let seen = match store.inspect(CALLS).await {
        Ok(seen) => seen,
        Err(error) => return lost(&error, report),
    };
    let says = format!("yes, namespace {}", settings.namespace);
    report.add(PART, "reachable", Source::Measured, says);
    server(&seen, report);
    data(&seen, report);
    clock(seen.ahead, seen.trips.first().copied(), report);
    trips(&seen.trips, settings.timeout, report);
    if probe {
        writes(&store, report).await;
    }
}

fn redis_store(settings: &StoreSettings, url: &str, env: &Env) -> Result<RedisStore, String> {
    let target = redis::Target::parse(url, roots(settings)?);
    let config = redis::Config {
        target: target.map_err(|error| format!("store.url: {error}"))?,
        namespace: settings.namespace.clone(),
        owner: name(env),
        timeout: settings.timeout,
    };
    Ok(RedisStore::new(config, env.clock.clone()))
}

fn postgres_config(
    settings: &StoreSettings,
    url: &str,
    env: &Env,
) -> Result<postgres::Config, String> {
    let target = postgres::Target::parse(url, roots(settings)?);
    Ok(postgres::Config {
        target: target.map_err(|error| format!("store.url: {error}"))?,
        namespace: settings.namespace.clone(),
        owner: name(env),
        timeout: settings.timeout,
    })
}

fn roots(settings: &StoreSettings) -> Result<Option<Vec<u8>>, String> {
    let roots = settings.ca_file.as_ref().map(std::fs::read).transpose();
    roots.map_err(|error| format!("store.ca_file cannot be read: {error}"))
}

/// Why it is of no use, and what helps.
fn lost(error: &StoreError, report: &mut Report) {
    report.add(PART, "reachable", Source::Measured, error.to_string());
    report.but(Level::Fail, remedy(error));
}

/// What helps where the error says what it is.
fn by_word(error: &StoreError) -> Option<&'static str> {
    let said = error.to_string();
    let known = [
        (
            "folder is not there",
            "make that folder, or correct store.url",
        ),
        (
            "readonly database",
            "let the sidecar's user write the file, and make files in its folder",
        ),
        (
            "unable to open database file",
            "let the sidecar's user write the file, and make files in its folder",
        ),
        ("disk is full", "make room on the disk of that file"),
        (
            "OOM command not allowed",
            "the server is at its maxmemory: raise it",
        ),
        (
            "READONLY",
            "that server is a replica: store.url must lead to its master",
        ),
    ];
    let found = known.into_iter().find(|(word, _)| said.contains(word));
    found.map(|(_, todo)| todo)
}

/// What helps.
fn remedy(error: &StoreError) -> &'static str {
    if let Some(todo) = by_word(error) {
        return todo;
    }
    match error {
        StoreError::Unusable(_) | StoreError::Unfit(_) => {
            "it answers, and refuses: correct the password, the rights or the namespace that it names"
        }
        StoreError::Timeout => {
            "it is too slow or does not answer: look at its load and the way there, or raise store.timeout"
        }
        StoreError::Unavailable(_) | StoreError::Wiped | StoreError::Settling => {
            "is it running, and is store.url right? Meanwhile sidecars do as store.on_store_error says"
        }
    }
}

/// Fails where a file can be read and not written. Nothing is written: it is only opened for that.
fn unwritable(path: &Path, report: &mut Report) {
    if let Err(error) = OpenOptions::new().write(true).open(path)
        && error.kind() != ErrorKind::NotFound
    {
        let says = format!("{}: cannot be written: {error}", path.display());
        report.add(PART, "file", Source::Measured, says);
        let todo = "let the sidecar's user write the file, and make files in its folder";
        report.but(Level::Fail, todo);
    }
}

fn server(seen: &Inspection, report: &mut Report) {
    let says = match seen.server {
        Some((name, (major, minor))) => format!("{name} {major}.{minor}"),
        None => "the user may not ask (INFO)".to_owned(),
    };
    report.add(PART, "version", Source::Measured, says);
    if seen.too_old() {
        report.but(Level::Fail, "6.2 or newer is needed: upgrade the server");
    }
    if let Some(policy) = &seen.eviction {
        let says = format!("maxmemory-policy {policy}");
        report.add(PART, "eviction", Source::Measured, says);
        if policy != "noeviction" {
            let todo = "CONFIG SET maxmemory-policy noeviction: a key that is evicted has forgotten what it used";
            report.but(Level::Warn, todo);
        }
    }
}

fn data(seen: &Inspection, report: &mut Report) {
    let says = match seen.kept {
        Kept::Nothing => "none yet: no sidecar was there in the last week".to_owned(),
        Kept::Ours { live } => ours(live),
    };
    report.add(PART, "data", Source::Measured, says);
    let (loaded, all) = seen.scripts;
    let says = match loaded == all {
        true => format!("all {all} loaded"),
        false => format!("{loaded} of {all} loaded; the others are with their first call"),
    };
    report.add(PART, "scripts", Source::Measured, says);
}

fn clock(ahead: i64, sure: Option<Duration>, report: &mut Report) {
    let by = Duration::from_micros(ahead.unsigned_abs());
    // Nobody need know less than that.
    let sure = (sure.unwrap_or_default() / 2).max(Duration::from_millis(10));
    let where_to = if ahead < 0 { "behind" } else { "ahead of" };
    let says = match by <= sure {
        true => format!("the same as this host's, give or take {}", length(sure)),
        false => format!(
            "{} {where_to} this host's (the store's decides)",
            length(by)
        ),
    };
    report.add(PART, "clock", Source::Measured, says);
    if by > APART {
        let todo = "limits hold, but calendar windows and times in answers are the store's: look at NTP on both hosts";
        report.but(Level::Warn, todo);
    }
}

/// `trips` are sorted.
fn trips(trips: &[Duration], timeout: Duration, report: &mut Report) {
    let part = |of: usize| trips.get((trips.len() * of).div_ceil(100).saturating_sub(1));
    let (middle, slow) = (part(50), part(99));
    let (Some(middle), Some(slow)) = (middle, slow) else {
        return;
    };
    let says = format!(
        "p50 {}, p99 {} ({} calls)",
        length(*middle),
        length(*slow),
        trips.len()
    );
    report.add(PART, "round trip", Source::Measured, says);
    // Where a sidecar joins the others, one question may be three round trips.
    if *slow > timeout / 3 {
        let todo = format!(
            "calls are given up after store.timeout, {}: bring the store nearer, or raise it",
            duration::plain(timeout)
        );
        report.but(Level::Warn, todo);
    }
}

/// Whether it may be written to: one shared number, which is forgotten after a day.
async fn writes(store: &dyn Store, report: &mut Report) {
    match store
        .number("doctor", Step::Add { by: 1, most: None })
        .await
    {
        Ok(_) => report.add(PART, "writes", Source::Probed, "allowed".to_owned()),
        Err(error) => {
            report.add(PART, "writes", Source::Probed, error.to_string());
            let todo = match (by_word(&error), &error) {
                // Who may read may lack the right to write.
                (None, StoreError::Unusable(_)) => {
                    "give the user the rights that the README names under \"Who may what, and other notes for each store\""
                }
                _ => remedy(&error),
            };
            report.but(Level::Fail, todo);
        }
    }
}

/// To three digits or so.
fn length(of: Duration) -> String {
    let micros = of.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", of.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", of.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_helps_is_what_is_wrong() {
        let full = StoreError::Unavailable("a.db: database or disk is full".to_owned());
        assert!(remedy(&full).contains("make room"));
        let folder = StoreError::Unusable("no/a.db: its folder is not there".to_owned());
        assert!(remedy(&folder).contains("make that folder"));
        let other = StoreError::Unusable("WRONGPASS".to_owned());
        assert!(remedy(&other).contains("password"));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Report::default();
        unwritable(&dir.path().join("none.db"), &mut report);
        assert_eq!(report.findings(), [], "it may be made");
        // Nobody can write a folder, root neither.
        unwritable(dir.path(), &mut report);
        assert!(!report.healthy(), "{report:?}");
    }
}
