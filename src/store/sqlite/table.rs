//! The statements.

use rusqlite::{Connection, Error, OptionalExtension as _, Params, Row, params};

use super::super::fleet::SETTLING;
use super::super::record::Written;
use super::super::sql::{
    ADOPTED, Due, Flat, Head, IDLE, KEPT, LATE, LONG_OVER, Need, PATIENCE, Page, SILENCE, number,
    unsigned,
};
use super::super::{HOLDS_LAST, NUMBER_LASTS, Number};
use crate::limit::{KeyState, Timestamp};

/// News are kept this long, in microseconds: whoever was stopped for longer looks at everything.
const NEWS_LAST: u64 = 60_000_000;
/// Limits set over HTTP are kept this long after their end, for whoever looks at the file.
const DAY: u64 = 24 * 3600 * 1_000_000;

/// Rows of others that are overdue at `?2`: the owner lives and is late, or is gone.
fn others_of(which: &str) -> String {
    format!(
        "FROM rows LEFT JOIN live ON live.owner = rows.owner
         WHERE rows.owner <> ?1 AND {which} AND until <=
             CASE WHEN live.seen + {SILENCE} > ?2 THEN ?2 - {PATIENCE} ELSE ?2 END"
    )
}

/// Of these the held ones that their owners offered. The claim is sure to be the owner's still, which lives, or
/// was alive so lately.
fn offered_of() -> String {
    others_of(&format!(
        "is_out = 0 AND until = 0
         AND live.seen + max({SILENCE}, min(lasts, {KEPT}) * 2 / 3 - {LATE}) > ?2"
    ))
}

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
    head: Head,
) -> Result<Option<Page>, Error> {
    let now = head.now;
    let mut page = Page::new(head);
    let mut statement = connection.prepare_cached(
        "SELECT job, claim_number, is_out, until, owner, lasts, lane, claim, limits, taken,
         started FROM rows WHERE job = ?1",
    )?;
    for job in &need.jobs {
        let flat = statement.query_row([job], flat).optional()?;
        let kept = match flat.map(Flat::kept) {
            None => None,
            Some(Some(kept)) => Some(kept),
            Some(None) => return Ok(None),
        };
        page.has_row(job.clone(), kept);
    }
    let mut names = need.names.clone();
    names.extend(page.names());
    let mut statement = connection.prepare_cached("SELECT state FROM keys WHERE name = ?1")?;
    for name in names {
        let bytes: Option<Vec<u8>> = statement.query_row([&name], |row| row.get(0)).optional()?;
        match bytes.as_deref().map(KeyState::unpack) {
            None => {}
            Some(Some((state, seen))) => page.has_key(name, state, seen),
            Some(None) => return Ok(None),
        }
    }
    let mut statement = connection.prepare_cached(
        "SELECT value, version, put_at FROM numbers WHERE name = ?1 AND ends > ?2",
    )?;
    for name in &need.numbers {
        let found = statement.query_row(params![name, number(now.0)], |row| {
            Ok(Number {
                value: row.get(0)?,
                version: unsigned(row.get(1)?),
                put_at: Timestamp(unsigned(row.get(2)?)),
                done: true,
            })
        });
        if let Some(found) = found.optional()? {
            page.has_number(name.clone(), found);
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
pub(super) fn write(connection: &Connection, page: &Page, me: &str) -> Result<(), Error> {
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
    for (queue, jobs) in page.holds() {
        put.execute(params![queue, me, number(*jobs), number(now.0)])?;
    }
    for text in page.news() {
        say(connection, me, text, now)?;
    }
    if page.beats() {
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

fn say(connection: &Connection, me: &str, text: &str, now: Timestamp) -> Result<(), Error> {
    let mut put =
        connection.prepare_cached("INSERT INTO news (owner, text, at) VALUES (?1, ?2, ?3)")?;
    put.execute(params![me, text, number(now.0)]).map(drop)
}

fn live(connection: &Connection, me: &str, now: Timestamp) -> Result<(), Error> {
    let mut put = connection.prepare_cached("INSERT OR REPLACE INTO live VALUES (?1, ?2)")?;
    put.execute(params![me, number(now.0)]).map(drop)
}

/// What nothing speaks of any more is forgotten: numbers, limits whose time is over, news that all have
/// read, and sidecars that are gone and have left no row.
fn sweep(connection: &Connection, now: Timestamp) -> Result<(), Error> {
    let before = |past: u64| number(now.0.saturating_sub(past));
    let gone = "DELETE FROM live WHERE seen < ?1
        AND NOT EXISTS (SELECT 1 FROM rows WHERE rows.owner = live.owner)";
    for (statement, time) in [
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

/// Of the next keys after this one, which is moved on, those with nothing used.
pub(super) fn idle(
    connection: &Connection,
    after: &mut String,
    now: Timestamp,
) -> Result<Vec<String>, Error> {
    let mut statement = connection
        .prepare_cached("SELECT name, state FROM keys WHERE name > ?1 ORDER BY name LIMIT ?2")?;
    let mut found = statement.query(params![*after, limit(IDLE)])?;
    let (mut names, mut seen) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        seen += 1;
        *after = row.get(0)?;
        let state: Vec<u8> = row.get(1)?;
        if KeyState::unpack(&state).is_some_and(|(state, _)| state.idle(now)) {
            names.push(after.clone());
        }
    }
    if seen < IDLE {
        after.clear();
    }
    Ok(names)
}

pub(super) fn due(
    connection: &Connection,
    me: &str,
    now: Timestamp,
    max: usize,
) -> Result<Due, Error> {
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
    let (others, offered) = (others_of("is_out = 1"), offered_of());
    let others = format!("SELECT job {others} ORDER BY until, job LIMIT ?3");
    let lanes = format!("SELECT DISTINCT lane {offered}");
    let over = format!(
        "SELECT job FROM rows LEFT JOIN live ON live.owner = rows.owner
         WHERE rows.owner <> ?1 AND is_out = 0
         AND max(until, coalesce(live.seen, 0)) < ?2 - lasts - {LONG_OVER} LIMIT 64"
    );
    let mut strangers = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM rows WHERE owner < ?1)
             OR EXISTS (SELECT 1 FROM rows WHERE owner > ?1)",
    )?;
    let mut adopted =
        connection.prepare_cached("SELECT coalesce(max(value), 0) FROM numbers WHERE name = ?1")?;
    let adopted: i64 = adopted.query_row([ADOPTED], |row| row.get(0))?;
    Ok(Due {
        adopted: unsigned(adopted),
        mine: all,
        others_out: names(connection, &others, params![me, time, max])?,
        over: names(connection, &over, params![me, time])?,
        lanes: names(connection, &lanes, params![me, time])?,
        strangers: strangers.query_row([me], |row| row.get(0))?,
        first: Timestamp(unsigned(first)),
        idle: Vec::new(),
    })
}

pub(super) fn offered(
    connection: &Connection,
    me: &str,
    lane: &str,
    now: Timestamp,
    max: usize,
) -> Result<Vec<String>, Error> {
    let offered = offered_of();
    let text = format!("SELECT job {offered} AND lane = ?3 ORDER BY until, job LIMIT ?4");
    names(
        connection,
        &text,
        params![me, number(now.0), lane, limit(max)],
    )
}

pub(super) fn of_others(
    connection: &Connection,
    me: &str,
    max: usize,
) -> Result<Vec<String>, Error> {
    let text = "SELECT job FROM rows WHERE owner <> ?1 AND is_out = 1 LIMIT ?2";
    names(connection, text, params![me, limit(max)])
}

fn limit(max: usize) -> i64 {
    i64::try_from(max).unwrap_or(i64::MAX)
}

/// The only column of what is found.
fn names(connection: &Connection, text: &str, with: impl Params) -> Result<Vec<String>, Error> {
    let mut statement = connection.prepare_cached(text)?;
    let found = statement.query_map(with, |row| row.get(0))?;
    found.collect()
}

pub(super) fn count_out(connection: &Connection, me: &str) -> Result<usize, Error> {
    let mut statement =
        connection.prepare_cached("SELECT count(*) FROM rows WHERE owner = ?1 AND is_out = 1")?;
    let count: i64 = statement.query_row([me], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// How many jobs of a queue others hold, as they said of late.
pub(super) fn others(
    connection: &Connection,
    me: &str,
    queue: &str,
    now: Timestamp,
) -> Result<usize, Error> {
    let text =
        "SELECT coalesce(sum(jobs), 0) FROM holds WHERE queue = ?1 AND owner <> ?2 AND at > ?3";
    let mut statement = connection.prepare_cached(text)?;
    let since = number(now.0.saturating_sub(HOLDS_LAST));
    let count: i64 = statement.query_row(params![queue, me, since], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

pub(super) fn overrides(connection: &Connection) -> Result<Vec<(String, String)>, Error> {
    let mut statement = connection.prepare_cached("SELECT name, text FROM overrides")?;
    let all = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    all.collect()
}

/// Sets limits of a key (their text, and when they end) or takes them away.
pub(super) fn put_override(
    connection: &Connection,
    (name, text, ends): (&str, Option<&str>, Option<Timestamp>),
    me: &str,
    now: Timestamp,
    wanted: &dyn Fn() -> bool,
) -> Result<bool, Error> {
    immediately(connection, || {
        // Others may have had the file for longer than anybody waits.
        if !wanted() {
            return Ok(false);
        }
        let ends = ends.map(|at| number(at.0));
        let changed = match text {
            Some(text) => connection.execute(
                "INSERT OR REPLACE INTO overrides VALUES (?1, ?2, ?3)",
                params![name, text, ends],
            )?,
            None => connection.execute("DELETE FROM overrides WHERE name = ?1", [name])?,
        };
        if changed > 0 {
            connection.execute("UPDATE meta SET edition = edition + 1", ())?;
            say(connection, me, "over", now)?;
        }
        Ok(changed > 0)
    })
}

/// Sets those of which there are none by their names; how many these are.
pub(super) fn put_back(
    connection: &Connection,
    known: &[Written],
    me: &str,
    now: Timestamp,
    wanted: &dyn Fn() -> bool,
) -> Result<u64, Error> {
    immediately(connection, || {
        if !wanted() {
            return Ok(0);
        }
        let mut put =
            connection.prepare_cached("INSERT OR IGNORE INTO overrides VALUES (?1, ?2, ?3)")?;
        let mut count = 0;
        for one in known {
            let ends = one.ends.map(|at| number(at.0));
            count += put.execute(params![one.name, one.text, ends])?;
        }
        if count > 0 {
            connection.execute("UPDATE meta SET edition = edition + 1", ())?;
            say(connection, me, "over", now)?;
        }
        Ok(count as u64)
    })
}

/// An epoch begins, if there is none.
pub(super) fn begin(connection: &Connection, namespace: &str) -> Result<(), Error> {
    let first = "INSERT OR IGNORE INTO meta VALUES (1, ?1, ?2, 0, 0)";
    let epoch = format!("{:016x}", rand::random::<u64>());
    let parts = params![namespace, epoch];
    connection.execute(first, parts).map(drop)
}

/// Is counted among the living, and says which data these are.
pub(super) fn join(
    connection: &Connection,
    me: &str,
    namespace: &str,
    knew: Option<&str>,
    now: Timestamp,
) -> Result<String, Error> {
    immediately(connection, || {
        begin(connection, namespace)?;
        let epoch = head(connection, now)?.epoch;
        if knew.is_some_and(|knew| knew != epoch) {
            let lost = "UPDATE meta SET opens = ?1 WHERE opens = 0";
            connection.execute(lost, [number(now.plus(SETTLING).0)])?;
        }
        live(connection, me, now)?;
        say(connection, me, "joined", now)?;
        Ok(epoch)
    })
}

pub(super) fn clear(connection: &Connection) -> Result<bool, Error> {
    immediately(connection, || {
        let mut gone = 0;
        for table in ["rows", "keys", "numbers", "overrides", "holds"] {
            gone += connection.execute(&format!("DELETE FROM {table}"), ())?;
        }
        connection.execute("UPDATE meta SET edition = edition + 1", ())?;
        Ok(gone > 0)
    })
}

fn immediately<T>(
    connection: &Connection,
    what: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = what();
    let end = match done {
        Ok(_) => connection.execute_batch("COMMIT"),
        Err(_) => connection.execute_batch("ROLLBACK"),
    };
    let value = done?;
    end?;
    Ok(value)
}
