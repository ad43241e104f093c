//! The statements.

use rusqlite::{
    Connection, Error, OptionalExtension as _, Params, Row, Transaction, TransactionBehavior,
    params,
};

use super::super::fleet::SETTLING;
use super::super::sql::{
    ADOPTED, Dialect, First, Flat, Found, Head, IDLE, Need, Page, SILENCE, clear, count_anything,
    idle, limit, number, over, unsigned,
};
use super::super::{HOLDS_LAST, NUMBER_LASTS};
use crate::limit::Timestamp;

/// News are kept this long, in microseconds: whoever was stopped for longer looks at everything.
const NEWS_LAST: u64 = 60_000_000;
/// Limits set over HTTP are kept this long after their end, for whoever looks at the file.
const DAY: u64 = 24 * 3600 * 1_000_000;

const DIALECT: Dialect = Dialect {
    me: "?1",
    now: "?2",
    greatest: "max",
    least: "min",
};

/// Changes when another connection has written.
pub(super) fn version(connection: &Connection) -> Result<i64, Error> {
    let mut statement = connection.prepare_cached("PRAGMA data_version")?;
    statement.query_row((), |row| row.get(0))
}

/// The number of the last news, and those of others since.
pub(super) fn news(
    connection: &Connection,
    since: Option<i64>,
    me: &str,
) -> Result<(i64, Vec<String>), Error> {
    let mut last = connection
        .prepare_cached("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'news'")?;
    let last: i64 = last.query_row((), |row| row.get(0))?;
    let since = since.unwrap_or(last);
    let mut statement = connection.prepare_cached(
        "SELECT text FROM news WHERE id > ?1 AND id <= ?2 AND owner <> ?3 ORDER BY id",
    )?;
    let texts = statement.query_map(params![since, last, me], |row| row.get(0))?;
    Ok((last, texts.collect::<Result<_, _>>()?))
}

pub(super) fn head(connection: &Connection, now: Timestamp) -> Result<Head, Error> {
    let mut statement =
        connection.prepare_cached("SELECT epoch, opens, edition FROM meta WHERE id = 1")?;
    let meta = statement
        .query_row((), |row| {
            let opens: i64 = row.get(1)?;
            Ok((row.get(0)?, Timestamp(unsigned(opens)), row.get(2)?))
        })
        .optional()?;
    // Without it these are the data of nobody.
    let (epoch, opens, edition) = meta.unwrap_or_default();
    let mut statement = connection.prepare_cached("SELECT owner, seen FROM live")?;
    let live = statement.query_map((), |row| {
        Ok((row.get(0)?, Timestamp(unsigned(row.get(1)?))))
    })?;
    Ok(Head {
        now,
        epoch,
        opens,
        edition,
        live: live.collect::<Result<_, _>>()?,
        ahead: 0,
    })
}

/// Runs a statement that has no arguments and no answer.
pub(super) fn run(connection: &Connection, text: &'static str) -> Result<(), Error> {
    connection.prepare_cached(text)?.execute(()).map(drop)
}

/// The page of a transaction; `None`: somebody else wrote some of it.
pub(super) fn page(
    connection: &Connection,
    need: &Need,
    mut page: Page,
) -> Result<Option<Page>, Error> {
    let now = page.now();
    let mut statement = connection.prepare_cached(
        "SELECT job, claim_number, is_out, until, owner, lasts, lane, claim, limits, taken,
         started FROM rows WHERE job = ?1",
    )?;
    for job in &need.jobs {
        let found = statement.query_row([job], flat).optional()?;
        if found.is_some_and(|flat| page.has_row(flat).is_none()) {
            return Ok(None);
        }
    }
    let mut names = need.names.clone();
    names.extend(page.names());
    let mut statement = connection.prepare_cached("SELECT state FROM keys WHERE name = ?1")?;
    for name in names {
        let state: Option<Vec<u8>> = statement.query_row([&name], |row| row.get(0)).optional()?;
        if state.is_some_and(|state| page.has_key(name, &state).is_none()) {
            return Ok(None);
        }
    }
    let mut statement = connection.prepare_cached(
        "SELECT value, version, put_at FROM numbers WHERE name = ?1 AND ends > ?2",
    )?;
    for name in &need.numbers {
        let found = statement.query_row(params![name, number(now.0)], |row| {
            Ok([row.get(0)?, row.get(1)?, row.get(2)?])
        });
        if let Some(parts) = found.optional()? {
            page.has_number(name.clone(), parts);
        }
    }
    let mut statement = connection.prepare_cached("SELECT 1 FROM overrides WHERE name = ?1")?;
    for name in &need.overrides {
        if statement.exists([name])? {
            page.overrides.insert(name.clone());
        }
    }
    Ok(Some(page))
}

fn flat(row: &Row<'_>) -> Result<Flat, Error> {
    Ok(Flat {
        job: row.get(0)?,
        claim_number: row.get(1)?,
        is_out: row.get(2)?,
        until: row.get(3)?,
        owner: row.get(4)?,
        lasts: row.get(5)?,
        lane: row.get(6)?,
        claim: row.get(7)?,
        limits: row.get(8)?,
        taken: row.get(9)?,
        started: row.get(10)?,
    })
}

/// Writes what changed.
pub(super) fn write(connection: &Connection, page: &Page) -> Result<(), Error> {
    if page.is_cleared {
        connection.execute_batch(&clear())?;
    }
    let me = &*page.me;
    write_rows(connection, page)?;
    let mut put = connection.prepare_cached(
        "INSERT INTO keys VALUES (?1, ?2) ON CONFLICT DO UPDATE SET state = excluded.state",
    )?;
    let mut forget = connection.prepare_cached("DELETE FROM keys WHERE name = ?1")?;
    let now = page.now();
    for (name, state) in page.keys() {
        match state {
            Some(state) => put.execute(params![name, state.pack(now)])?,
            None => forget.execute([name])?,
        };
    }
    let mut put = connection.prepare_cached(
        "INSERT INTO numbers VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET
         value = excluded.value, version = excluded.version, put_at = excluded.put_at,
         ends = excluded.ends",
    )?;
    for (name, one) in page.numbers() {
        let ends = number(now.plus(NUMBER_LASTS).0);
        let version = number(one.version);
        put.execute(params![
            name,
            one.value,
            version,
            number(one.put_at.0),
            ends
        ])?;
    }
    let mut put =
        connection.prepare_cached("INSERT OR REPLACE INTO holds VALUES (?1, ?2, ?3, ?4)")?;
    for (queue, jobs) in &page.holds {
        put.execute(params![queue, me, number(*jobs), number(now.0)])?;
    }
    write_overrides(connection, page)?;
    for text in &page.news {
        say(connection, me, text, now)?;
    }
    if page.beats {
        live(connection, me, now)?;
        sweep(connection, now)?;
    }
    Ok(())
}

fn write_rows(connection: &Connection, page: &Page) -> Result<(), Error> {
    let mut put = connection.prepare_cached(
        "INSERT OR REPLACE INTO rows (job, claim_number, is_out, until, owner, hidden, lasts, lane,
         claim, limits, taken, started, touched)
         VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, ?9, ?10, ?11, 0)",
    )?;
    let mut forget = connection.prepare_cached("DELETE FROM rows WHERE job = ?1")?;
    for (job, row) in page.rows() {
        let Some(flat) = row.map(Flat::of) else {
            forget.execute([job])?;
            continue;
        };
        put.execute(params![
            flat.job,
            flat.claim_number,
            flat.is_out,
            flat.until,
            flat.owner,
            flat.lasts,
            flat.lane,
            flat.claim,
            flat.limits,
            flat.taken,
            flat.started,
        ])?;
    }
    Ok(())
}

fn write_overrides(connection: &Connection, page: &Page) -> Result<(), Error> {
    for (name, written) in &page.overridden {
        match written {
            Some(one) => connection.execute(
                "INSERT OR REPLACE INTO overrides VALUES (?1, ?2, ?3)",
                params![name, one.text, one.ends.map(|at| number(at.0))],
            )?,
            None => connection.execute("DELETE FROM overrides WHERE name = ?1", [name])?,
        };
    }
    if page.is_new_edition() {
        connection.execute("UPDATE meta SET edition = edition + 1", ())?;
    }
    Ok(())
}

fn say(connection: &Connection, me: &str, text: &str, now: Timestamp) -> Result<(), Error> {
    let mut put =
        connection.prepare_cached("INSERT INTO news (owner, text, at) VALUES (?1, ?2, ?3)")?;
    put.execute(params![me, text, number(now.0)]).map(drop)
}

fn live(connection: &Connection, me: &str, now: Timestamp) -> Result<(), Error> {
    let mut put = connection.prepare_cached("INSERT OR REPLACE INTO live VALUES (?1, ?2)")?;
    put.execute(params![me, number(now.0)]).map(drop)
}

/// What nothing speaks of any more is forgotten: offers of the dead, numbers, limits whose time is over, news that all have
/// read, and sidecars that are gone and have left no row.
fn sweep(connection: &Connection, now: Timestamp) -> Result<(), Error> {
    let before = |past: u64| number(now.0.saturating_sub(past));
    let gone = "DELETE FROM live WHERE seen < ?1
        AND NOT EXISTS (SELECT 1 FROM rows WHERE rows.owner = live.owner)";
    let over = format!("DELETE FROM rows WHERE job IN ({})", over("max", "?1"));
    for (statement, time) in [
        (&*over, before(0)),
        ("DELETE FROM numbers WHERE ends <= ?1", before(0)),
        ("DELETE FROM overrides WHERE ends < ?1", before(DAY)),
        ("DELETE FROM news WHERE at < ?1", before(NEWS_LAST)),
        ("DELETE FROM holds WHERE at < ?1", before(HOLDS_LAST)),
        (gone, before(SILENCE)),
    ] {
        connection.prepare_cached(statement)?.execute([time])?;
    }
    Ok(())
}

/// The latest time at which another sidecar was heard of.
pub(super) fn latest(connection: &Connection, me: &str) -> Result<i64, Error> {
    let mut statement =
        connection.prepare_cached("SELECT coalesce(max(seen), 0) FROM live WHERE owner <> ?1")?;
    statement.query_row([me], |row| row.get(0))
}

/// The next keys after this one.
fn walk(connection: &Connection, after: &str) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut statement = connection
        .prepare_cached("SELECT name, state FROM keys WHERE name > ?1 ORDER BY name LIMIT ?2")?;
    let found = statement.query_map(params![after, limit(IDLE)], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    found.collect()
}

/// What has to be known before a transaction begins.
pub(super) fn find(
    connection: &Connection,
    first: &First,
    me: &str,
    now: Timestamp,
    after: &mut String,
) -> Result<Found, Error> {
    let mut found = Found::default();
    let time = number(now.0);
    match first {
        First::Due { max } => {
            found = due(connection, me, now, *max)?;
            found.idle = idle(walk(connection, after)?, after, now);
        }
        First::Idle => found.idle = idle(walk(connection, after)?, after, now),
        First::Offered { lane, max } => {
            let offered = DIALECT.offered();
            let text = format!("SELECT job {offered} AND lane = ?3 ORDER BY until, job LIMIT ?4");
            found.jobs = names(connection, &text, params![me, time, lane, limit(*max)])?;
        }
        First::RowsOut { max } => {
            let text = "SELECT job FROM rows WHERE is_out = 1 LIMIT ?1";
            found.jobs = names(connection, text, params![limit(*max)])?;
        }
        First::CountOut => {
            let text = "SELECT count(*) FROM rows WHERE owner = ?1 AND is_out = 1";
            found.count = count(connection, text, [me])?;
        }
        First::HeldByOthers(queue) => {
            let text = "SELECT coalesce(sum(jobs), 0) FROM holds
                WHERE queue = ?1 AND owner <> ?2 AND at > ?3";
            let since = number(now.0.saturating_sub(HOLDS_LAST));
            found.count = count(connection, text, params![queue, me, since])?;
        }
        First::Anything => {
            found.count = count(connection, &count_anything(), ())?;
        }
        First::Overrides => {
            // One look at both: an edition is never read with older texts.
            let text = "SELECT edition, name, text FROM meta LEFT JOIN overrides";
            let mut statement = connection.prepare_cached(text)?;
            let mut rows = statement.query(())?;
            while let Some(row) = rows.next()? {
                found.overrides.0 = row.get(0)?;
                if let Some(name) = row.get(1)? {
                    found.overrides.1.push((name, row.get(2)?));
                }
            }
        }
        First::Join { .. } => {}
    }
    Ok(found)
}

fn count(connection: &Connection, text: &str, with: impl Params) -> Result<u64, Error> {
    let count: i64 = connection
        .prepare_cached(text)?
        .query_row(with, |row| row.get(0))?;
    Ok(unsigned(count))
}

fn due(connection: &Connection, me: &str, now: Timestamp, max: usize) -> Result<Found, Error> {
    let (time, max) = (number(now.0), limit(max));
    let mine = |which: &str, order: &str| {
        let text = format!(
            "SELECT job FROM rows WHERE owner = ?1 AND {which} AND until <= ?2
             ORDER BY {order} until, job LIMIT ?3"
        );
        names(connection, &text, params![me, time, max])
    };
    let mut all = mine("is_out = 1", "")?;
    all.extend(mine("is_out = 0", "until = 0,")?);
    let mut first = connection.prepare_cached(
        "SELECT min((SELECT coalesce(min(until), ?2) FROM rows
                     WHERE owner = ?1 AND is_out = 0 AND until > 0),
                    (SELECT coalesce(min(until), ?2) FROM rows WHERE owner = ?1 AND is_out = 1))",
    )?;
    let first: i64 = first.query_row(params![me, i64::MAX], |row| row.get(0))?;
    let (others, offered) = (DIALECT.overdue("is_out"), DIALECT.offered());
    let others = format!("SELECT job {others} ORDER BY until, job LIMIT ?3");
    let lanes = format!("SELECT DISTINCT lane {offered}");
    let mut strangers = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM rows WHERE owner < ?1)
             OR EXISTS (SELECT 1 FROM rows WHERE owner > ?1)",
    )?;
    let mut adopted =
        connection.prepare_cached("SELECT coalesce(max(value), 0) FROM numbers WHERE name = ?1")?;
    let adopted: i64 = adopted.query_row([ADOPTED], |row| row.get(0))?;
    Ok(Found {
        count: unsigned(adopted),
        jobs: all,
        others_out: names(connection, &others, params![me, time, max])?,
        lanes: names(connection, &lanes, params![me, time])?,
        strangers: strangers.query_row([me], |row| row.get(0))?,
        first: Timestamp(unsigned(first)),
        ..Found::default()
    })
}

/// The only column of what is found.
fn names(connection: &Connection, text: &str, with: impl Params) -> Result<Vec<String>, Error> {
    let mut statement = connection.prepare_cached(text)?;
    let found = statement.query_map(with, |row| row.get(0))?;
    found.collect()
}

/// An epoch begins, if there is none.
pub(super) fn begin(connection: &Connection, namespace: &str) -> Result<(), Error> {
    let first = "INSERT OR IGNORE INTO meta VALUES (1, ?1, ?2, 0, 0)";
    let epoch = format!("{:016x}", rand::random::<u64>());
    let parts = params![namespace, epoch];
    connection.execute(first, parts).map(drop)
}

/// The caller is counted among the living, of data that begin if there are none.
pub(super) fn join(
    connection: &Connection,
    me: &str,
    namespace: &str,
    knew: Option<&str>,
    now: Timestamp,
) -> Result<String, Error> {
    let immediate = TransactionBehavior::Immediate;
    let transaction = Transaction::new_unchecked(connection, immediate)?;
    begin(&transaction, namespace)?;
    let epoch = head(&transaction, now)?.epoch;
    if knew.is_some_and(|knew| knew != epoch) {
        let lost = "UPDATE meta SET opens = ?1 WHERE opens = 0";
        transaction.execute(lost, [number(now.plus(SETTLING).0)])?;
    }
    live(&transaction, me, now)?;
    say(&transaction, me, "joined", now)?;
    transaction.commit()?;
    Ok(epoch)
}
