//! Checks the store: does it answer, is its data ours, how far away is it, and what time has it?

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use super::diagnosis::{Diagnosis, Evidence, Severity};
use super::surroundings::DoctorEnv;
use crate::config::{FORGETS_SUBQUEUES, Settings, StoreSettings, StoreUrl};
use crate::duration;
use crate::run::{inspect_store, open_store};
use crate::store::{Inspection, Step, StoreError};

/// How many calls are timed.
const CALLS: usize = 200;
/// A clock that is off by this much shows in logs and calendars.
const APART: Duration = Duration::from_secs(1);
const PART: &str = "store";
/// The remedy for a SQLite file that cannot be written.
const WRITABLE: &str = "let the sidecar's user write the file, and make files in its folder";
/// The remedy for a folder in place of it.
const A_FOLDER: &str = "let store.url name a file in that folder";

pub(super) async fn examine(whole: &Settings, env: &DoctorEnv, report: &mut Diagnosis) {
    let settings = &whole.store;
    match inspect_store(settings, env.seed, &env.clock, CALLS).await {
        Ok(None) => {
            let says = "memory: in each sidecar's own process; a restart begins with empty windows";
            report.add(PART, "kind", Evidence::Config, says);
            if !whole.policies.subqueues().is_empty() {
                report.add(PART, "subqueues", Evidence::Config, FORGETS_SUBQUEUES);
                report.but(
                    Severity::Warn,
                    "keep the setting until they are empty, or set store.url to sqlite:PATH",
                );
            }
        }
        Ok(Some(Ok(seen))) => {
            found(&seen, settings, report);
            if env.probe && seen.live.is_none() {
                writes(settings, env, report).await;
            }
        }
        Ok(Some(Err(error))) => {
            report.add(PART, "reachable", Evidence::Measured, error.to_string());
            report.but(Severity::Fail, remedy(&error));
        }
        Err(why) => {
            report.add(PART, "settings", Evidence::Config, format!("{why:#}"));
            report.but(Severity::Fail, "correct store.url or store.ca_file");
        }
    }
    if let StoreUrl::Sqlite(path) = &settings.url {
        unwritable(path, report);
    }
}

/// Reports a store that answers.
fn found(seen: &Inspection, settings: &StoreSettings, report: &mut Diagnosis) {
    let says = format!("yes, namespace {}", settings.namespace);
    report.add(PART, "reachable", Evidence::Measured, says);
    let server = seen.server.as_deref();
    let says = server.unwrap_or("the user may not ask (INFO)");
    report.add(PART, "version", Evidence::Measured, says);
    if seen.is_too_old {
        report.but(Severity::Fail, "6.2 or newer is needed: upgrade the server");
    }
    if let Some(policy) = &seen.eviction {
        let says = format!("maxmemory-policy {policy}");
        report.add(PART, "eviction", Evidence::Measured, says);
        if policy != "noeviction" {
            let todo = "CONFIG SET maxmemory-policy noeviction: a key that is evicted has forgotten what it used";
            report.but(Severity::Warn, todo);
        }
    }
    let says = match seen.live {
        None => "none yet: the first sidecar makes it".to_owned(),
        Some(1) => "ours, 1 live sidecar".to_owned(),
        Some(live) => format!("ours, {live} live sidecars"),
    };
    report.add(PART, "data", Evidence::Measured, says);
    match (&seen.unwritable, seen.live) {
        (Some(error), _) => {
            report.add(PART, "writes", Evidence::Measured, error.to_string());
            report.but(Severity::Fail, remedy_of_write(error));
        }
        (None, Some(_)) => report.add(PART, "writes", Evidence::Measured, "allowed"),
        // A probe says more.
        (None, None) => {}
    }
    if let Some(quickest) = seen.trips.first() {
        clock(seen.ahead, *quickest, report);
    }
    trips(&seen.trips, settings.timeout, report);
}

/// The remedy for an error that names its cause.
fn by_word(error: &StoreError) -> Option<&'static str> {
    Some(match &*error.to_string() {
        said if said.contains("folder is not there") => "make that folder, or correct store.url",
        said if said.contains("that is a folder") => A_FOLDER,
        said if said.contains("not a database") || said.contains("another program") => {
            "store.url leads to a file of something else: correct it, or move that file away"
        }
        said if said.contains("is malformed") => {
            "that file is broken: put a copy back, or move it away (sidecars then begin with nothing used)"
        }
        said if said.contains("this program knows version") => {
            "another version of this program made it: run that one, or let store.url or store.namespace lead elsewhere"
        }
        said if said.contains("readonly database") => WRITABLE,
        said if said.contains("unable to open database file") => WRITABLE,
        said if said.contains("disk is full") => "make room on the disk of that file",
        said if said.contains("No space left") || said.contains("MISCONF") => {
            "the server cannot write to its disk: make room there, and look at its log"
        }
        said if said.contains("read-only transaction") || said.contains("is a standby") => {
            "that server only reads: store.url must lead to the primary"
        }
        said if said.contains("when used memory > 'maxmemory'") => {
            "the server is at its maxmemory: raise it"
        }
        said if said.contains("pool_mode") => {
            "set pool_mode = session in the pooler for this database or user, or let store.url lead past it"
        }
        said if said.contains("read only replica") => {
            "that server is a replica: store.url must lead to its master"
        }
        _ => return None,
    })
}

/// The remedy for an error.
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

/// Reports a file that cannot be written or made, or that has no room to grow. It is only opened.
fn unwritable(path: &Path, report: &mut Diagnosis) {
    let opened = OpenOptions::new().write(true).open(path);
    let error = match opened {
        Err(error) if error.kind() != ErrorKind::NotFound => Some(error),
        _ => try_beside(path).err(),
    };
    // That the folder is not there is told already; or somebody else tries.
    let is_told = [ErrorKind::NotFound, ErrorKind::AlreadyExists];
    if let Some(error) = error.filter(|error| !is_told.contains(&error.kind())) {
        let says = format!("{}: cannot be written: {error}", path.display());
        report.add(PART, "file", Evidence::Measured, says);
        let todo = match error.kind() {
            ErrorKind::StorageFull => "make room on the disk of that file",
            ErrorKind::IsADirectory => A_FOLDER,
            _ => WRITABLE,
        };
        report.but(Severity::Fail, todo);
    }
}

/// Makes a file beside another one, and takes it away again: SQLite does so too.
fn try_beside(path: &Path) -> std::io::Result<()> {
    // One that was left over, or of another doctor, is in nobody's way.
    let trial = path.with_extension(format!("doctor-{}", std::process::id()));
    let options = OpenOptions::new().write(true).create_new(true).open(&trial);
    let written = options?.write_all(&[0; 8_192]);
    fs::remove_file(trial)?;
    written
}

fn clock(ahead: i64, quickest: Duration, report: &mut Diagnosis) {
    let by = Duration::from_micros(ahead.unsigned_abs());
    // A smaller difference matters to nobody.
    let sure = (quickest / 2).max(Duration::from_millis(10));
    let where_to = if ahead < 0 { "behind" } else { "ahead of" };
    let says = match by <= sure {
        true => format!("the same as this host's, give or take {}", length(sure)),
        false => format!(
            "{} {where_to} this host's (the store's decides)",
            length(by)
        ),
    };
    report.add(PART, "clock", Evidence::Measured, says);
    if by > APART {
        let todo = "limits hold, but calendar windows and times in answers are the store's: look at NTP on both hosts";
        report.but(Severity::Warn, todo);
    }
}

/// `trips` are sorted.
fn trips(trips: &[Duration], timeout: Duration, report: &mut Diagnosis) {
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
    report.add(PART, "round trip", Evidence::Measured, says);
    // A question of a sidecar that joins the others may take three round trips.
    if *slow > timeout / 3 {
        let todo = format!(
            "calls are given up after store.timeout, {}: bring the store nearer, or raise it",
            duration::plain(timeout)
        );
        report.but(Severity::Warn, todo);
    }
}

/// Checks that the store may be written to, with one shared number that is forgotten after a day.
async fn writes(settings: &StoreSettings, env: &DoctorEnv, report: &mut Diagnosis) {
    let written = async {
        let store = open_store(settings, env.seed, env.clock.now().0).await?;
        let one = Step::Add { by: 1, most: None };
        anyhow::Ok(store.number("doctor", one).await?)
    };
    let Err(why) = written.await else {
        return report.add(PART, "writes", Evidence::Probed, "allowed");
    };
    report.add(PART, "writes", Evidence::Probed, format!("{why:#}"));
    let todo = match why.downcast_ref::<StoreError>() {
        Some(error) => remedy_of_write(error),
        None => "correct store.url or store.ca_file",
    };
    report.but(Severity::Fail, todo);
}

/// The remedy for a write that failed. A user may have the right to read but not to write.
fn remedy_of_write(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unusable(_) => by_word(error).unwrap_or(
            "give the user the rights that `ojs-throttle help fleet` names under \"Users and rights\"",
        ),
        _ => remedy(error),
    }
}

/// Formats a duration with about three digits.
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
        for (said, todo) in [
            ("no/a.db: its folder is not there", "make that folder"),
            ("a: that is a folder", "a file in that folder"),
            ("a.db: file is not a database", "move that file away"),
            (
                "a.db: it is the database of another program",
                "move that file away",
            ),
            ("a.db: database disk image is malformed", "put a copy back"),
            (
                "its tables are of version 2, and this program knows version 1",
                "run that one",
            ),
            ("WRONGPASS", "password"),
        ] {
            let error = StoreError::Unusable(said.to_owned());
            assert!(remedy(&error).contains(todo), "{said}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_a_failure() {
        let dir = tempfile::tempdir().unwrap();
        let mut report = Diagnosis::default();
        unwritable(&dir.path().join("none.db"), &mut report);
        assert_eq!(report.findings(), [], "it may be made");
        // Nobody can write a folder, root neither.
        unwritable(dir.path(), &mut report);
        assert!(!report.healthy(), "{report:?}");
    }
}
