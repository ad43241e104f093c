//! What can be said of the file without changing what it says.

use rusqlite::Connection;
use tokio::time::Instant;

use super::super::sql::{SILENCE, number};
use super::super::{Clock, Inspection, StoreError};
use super::file::{SqliteConfig, fault};
use super::schema;

/// Looks at the file with this many reads, and writes what is there once more. `clock` is this process's.
///
/// # Errors
/// It cannot be read, or is not one of ours.
pub fn inspect(
    config: &SqliteConfig,
    clock: &Clock,
    calls: usize,
) -> Result<Inspection, StoreError> {
    let opened = schema::open_to_read(&config.target, &config.namespace);
    let opened = opened.map_err(|why| why.told(&config.target))?;
    let mut seen = Inspection {
        server: Some(format!("SQLite {}", rusqlite::version())),
        ..Inspection::default()
    };
    if let Some(file) = opened {
        let looked = look(&file, clock, calls, &mut seen);
        looked.map_err(|error| fault(&config.target, &error))?;
        let written = schema::rewrite(&config.target);
        seen.unwritable = written.err().map(|error| fault(&config.target, &error));
    }
    Ok(seen)
}

fn look(
    file: &Connection,
    clock: &Clock,
    calls: usize,
    seen: &mut Inspection,
) -> Result<(), rusqlite::Error> {
    let mut latest = file.prepare("SELECT max(seen) FROM live")?;
    let mut last = None;
    for _ in 0..calls {
        let sent = Instant::now();
        last = latest.query_row((), |row| row.get::<_, Option<i64>>(0))?;
        seen.trips.push(sent.elapsed());
    }
    seen.trips.sort_unstable();
    let now = number(clock.now().0);
    // Who is behind follows; who is ahead decides.
    seen.ahead = last.map_or(0, |last| last.saturating_sub(now).max(0));
    let since = now.saturating_add(seen.ahead) - number(SILENCE);
    let count = "SELECT count(*) FROM live WHERE seen > ?1";
    let live: i64 = file.query_row(count, [since], |row| row.get(0))?;
    seen.live = Some(usize::try_from(live).unwrap_or(0));
    Ok(())
}
