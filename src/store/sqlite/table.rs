//! What a connection does: what is read, and what is no step on a page.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{
    Connection, Error, OptionalExtension as _, Transaction, TransactionBehavior, params,
    params_from_iter,
};

use super::super::fleet::SETTLING;
use super::super::sql::{
    Dialect, Findings, First, Head, Need, Page, Rows, SqlValue, Statement, clear, number, unsigned,
};
use ojs_limit::Timestamp;

/// News are kept this long, in microseconds: whoever was stopped for longer looks at everything.
const NEWS_LAST: u64 = 60_000_000;

/// How it is said here.
pub(super) const DIALECT: Dialect = Dialect {
    now: Cow::Borrowed("$1"),
    greatest: "max",
    least: "min",
    has_lists: false,
    skips: "",
};

/// The statements, in the order of their numbers. Arguments are numbered by `?` here: behind a `$` stands a name.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let all = Statement::ALL.iter();
    all.map(|one| DIALECT.text(*one).replace('$', "?"))
        .collect()
});

/// Runs a statement for each of these rows.
fn each(connection: &Connection, asked: Statement, rows: &[Vec<SqlValue>]) -> Result<Rows, Error> {
    let mut found = Rows::new();
    if rows.is_empty() {
        return Ok(found);
    }
    #[expect(clippy::indexing_slicing, reason = "all of them have a text")]
    let mut statement = connection.prepare_cached(&TEXTS[asked as usize])?;
    let columns = statement.column_count();
    for row in rows {
        let mut rows = statement.query(params_from_iter(row))?;
        while let Some(row) = rows.next()? {
            found.push(
                (0..columns)
                    .map(|nth| row.get(nth))
                    .collect::<Result<_, _>>()?,
            );
        }
    }
    Ok(found)
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>, Error> {
        Ok(ToSqlOutput::Borrowed(match self {
            SqlValue::Nothing => ValueRef::Null,
            SqlValue::Number(number) => ValueRef::Integer(*number),
            SqlValue::Text(text) => ValueRef::Text(text.as_bytes()),
            SqlValue::Bytes(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

impl FromSql for SqlValue {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<SqlValue> {
        Ok(match value {
            ValueRef::Null => SqlValue::Nothing,
            ValueRef::Integer(number) => SqlValue::Number(number),
            ValueRef::Text(_) => SqlValue::from(value.as_str()?),
            ValueRef::Blob(bytes) => SqlValue::Bytes(bytes.to_vec()),
            ValueRef::Real(_) => return Err(FromSqlError::InvalidType),
        })
    }
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
    mut page: Page,
) -> Result<Option<Page>, Error> {
    let named = |names: &BTreeSet<String>| -> Rows {
        let names = names.iter();
        names.map(|name| vec![SqlValue::from(&**name)]).collect()
    };
    for (asked, names) in [
        (Statement::Rows, &need.jobs),
        (Statement::Numbers, &need.numbers),
        (Statement::Overrides, &need.overrides),
    ] {
        let rows = each(connection, asked, &named(names))?;
        if page.read(asked, rows).is_none() {
            return Ok(None);
        }
    }
    let mut names = need.names.clone();
    names.extend(page.names());
    let keys = each(connection, Statement::Keys, &named(&names))?;
    Ok(page.read(Statement::Keys, keys).map(|()| page))
}

/// Writes what changed.
pub(super) fn write(connection: &Connection, page: &Page) -> Result<(), Error> {
    if page.is_cleared {
        connection.execute_batch(&clear())?;
    }
    for (told, rows) in page.writes(&DIALECT) {
        each(connection, told, &rows)?;
    }
    if page.is_new_edition() {
        connection.execute("UPDATE meta SET edition = edition + 1", ())?;
    }
    if page.beats {
        let now = page.now();
        live(connection, &page.me, now)?;
        connection.execute_batch(&DIALECT.sweep(now))?;
        let read = number(now.minus(NEWS_LAST).0);
        connection.execute("DELETE FROM news WHERE at < ?1", [read])?;
    }
    Ok(())
}

/// Writes down that a sidecar lives.
fn live(connection: &Connection, me: &str, now: Timestamp) -> Result<(), Error> {
    let seen = vec![me.into(), now.0.into()];
    each(connection, Statement::PutLive, &[seen]).map(drop)
}

/// The latest time at which another sidecar was heard of.
pub(super) fn latest(connection: &Connection, me: &str) -> Result<i64, Error> {
    let mut statement =
        connection.prepare_cached("SELECT coalesce(max(seen), 0) FROM live WHERE owner <> ?1")?;
    statement.query_row([me], |row| row.get(0))
}

/// What has to be known before a transaction begins; `None`: somebody else wrote some of it.
pub(super) fn find(
    connection: &Connection,
    first: &First,
    me: &str,
    now: Timestamp,
    after: &mut String,
) -> Result<Option<Findings>, Error> {
    let mut found = Findings::default();
    for (asked, with) in first.asks(me, &now.0.into(), after) {
        let rows = each(connection, asked, &[with])?;
        if found.read(asked, rows, after).is_none() {
            return Ok(None);
        }
    }
    Ok(Some(found))
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
    let head = head(&transaction, now)?;
    let is_lost = head.opens == Timestamp(0) && knew.is_some_and(|knew| knew != head.epoch);
    if is_lost || head.opened_unheard() {
        let settled = number(now.plus(SETTLING).0);
        transaction.execute("UPDATE meta SET opens = ?1", [settled])?;
    }
    live(&transaction, me, now)?;
    let joined = vec![me.into(), "joined".into(), now.0.into()];
    each(&transaction, Statement::Say, &[joined])?;
    transaction.commit()?;
    Ok(head.epoch)
}
