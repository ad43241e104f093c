//! The file's tables, and whether a file is one of ours.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Error, OpenFlags, TransactionBehavior};

use super::super::StoreError;
use super::table::DIALECT;

/// What says that a file is of this program: "ojst".
const APPLICATION: i64 = 0x6f6a_7374;
/// Which tables it has.
const VERSION: i64 = 1;

/// So many pages of 4 KiB are written before they are moved to the file, which waits for the disk three
/// times. A start and its end write six; with SQLite's thousand the disk was a third of their price.
const CHECKPOINT: i64 = 4_000;

/// So often another process is waited for, half a millisecond each time: longer than any timeout.
const TRIES: i32 = 20_000;
const PAUSE: Duration = Duration::from_micros(500);

/// The tables beside those of all databases.
const TABLES: &str = "
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1), namespace TEXT NOT NULL, epoch TEXT NOT NULL,
    opens INTEGER NOT NULL, edition INTEGER NOT NULL);
CREATE TABLE news (
    id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, text TEXT NOT NULL, at INTEGER NOT NULL);
";
const INDEX: &str = "CREATE INDEX rows_until ON rows (owner, is_out, until);";

/// Why a file cannot be opened.
pub(super) enum OpenFailed {
    Sqlite(Error),
    /// It is somebody else's, in words.
    Foreign(String),
}

impl OpenFailed {
    pub(super) fn told(&self, path: &Path) -> StoreError {
        match self {
            OpenFailed::Sqlite(error) => super::file::fault(path, error),
            OpenFailed::Foreign(why) => StoreError::Unusable(format!("{}: {why}", path.display())),
        }
    }
}

impl From<Error> for OpenFailed {
    fn from(error: Error) -> OpenFailed {
        OpenFailed::Sqlite(error)
    }
}

/// Opens the file, and makes it or its tables if there are none.
pub(super) fn open(path: &Path, namespace: &str) -> Result<Connection, OpenFailed> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut connection = connect(path, flags)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Nothing is changed in a file that is not ours.
    if !is_empty(&connection)? {
        ours(&connection)?;
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if is_empty(&transaction)? {
        let tables = DIALECT.create(|_| "WITHOUT ROWID");
        transaction.execute_batch(&[TABLES, &tables, INDEX].concat())?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        super::table::begin(&transaction, namespace)?;
    }
    transaction.commit()?;
    ours(&connection)?;
    of(&connection, namespace)?;
    Ok(connection)
}

/// Opens the file to read; `None`: there is none of ours yet.
pub(super) fn open_to_read(path: &Path, namespace: &str) -> Result<Option<Connection>, OpenFailed> {
    if !path.exists() {
        let folder = path.parent().filter(|folder| *folder != Path::new(""));
        return match folder.is_none_or(Path::is_dir) {
            true => Ok(None),
            false => Err(OpenFailed::Foreign("its folder is not there".to_owned())),
        };
    }
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    if is_empty(&connection)? {
        return Ok(None);
    }
    ours(&connection)?;
    of(&connection, namespace)?;
    Ok(Some(connection))
}

/// Writes what is there once more: whether that goes, only a write tells.
pub(super) fn rewrite(path: &Path) -> Result<(), rusqlite::Error> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.execute("UPDATE meta SET opens = opens", ())?;
    Ok(())
}

/// A connection that waits for other processes, for one thread at a time.
fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, Error> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait))?;
    Ok(connection)
}

/// Whether it is of this namespace.
fn of(connection: &Connection, namespace: &str) -> Result<(), OpenFailed> {
    let known: Option<String> =
        connection.query_row("SELECT max(namespace) FROM meta", (), |row| row.get(0))?;
    match known {
        Some(known) if known != namespace => Err(OpenFailed::Foreign(format!(
            "it is of the namespace \"{known}\", and store.namespace is \"{namespace}\""
        ))),
        _ => Ok(()),
    }
}

fn is_empty(connection: &Connection) -> Result<bool, Error> {
    let tables = "SELECT NOT EXISTS (SELECT 1 FROM sqlite_master)";
    connection.query_row(tables, (), |row| row.get(0))
}

fn ours(connection: &Connection) -> Result<(), OpenFailed> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    if number("application_id")? != APPLICATION {
        let why = "it is the database of another program";
        return Err(OpenFailed::Foreign(why.to_owned()));
    }
    let version = number("user_version")?;
    if version != VERSION {
        return Err(OpenFailed::Foreign(format!(
            "its tables are of version {version}, and this program knows version {VERSION}"
        )));
    }
    Ok(())
}

/// Another process is writing: that takes well under a millisecond.
#[expect(
    clippy::disallowed_methods,
    reason = "SQLite asks for it on the store's own thread, which serves no connection"
)]
fn wait(tries: i32) -> bool {
    std::thread::sleep(PAUSE);
    tries < TRIES
}
