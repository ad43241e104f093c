//! The statements that are made ready once for each connection.

use tokio_postgres::{Client, Error, Statement};

use super::super::sql::{self, Dialect};
use super::clock;
use super::text::{LOCKS, literal};
use super::together::all_at_once;

/// How it is said here.
pub(super) fn dialect() -> Dialect {
    Dialect {
        now: clock::now().into(),
        greatest: "greatest",
        least: "least",
        has_lists: true,
        skips: "FOR UPDATE SKIP LOCKED",
    }
}

/// What every operation has to know.
fn head() -> String {
    let (now, ahead, behind) = (clock::now(), clock::ahead(), clock::behind());
    format!(
        "SELECT {now}, epoch, opens, edition, array(SELECT owner FROM live ORDER BY owner),
         array(SELECT seen FROM live ORDER BY owner), {ahead}, {behind}, pg_backend_pid()
         FROM (SELECT 1) AS one LEFT JOIN meta ON id = 1"
    )
}

/// Locks rows and numbers, and then keys and those that rows have slots of.
fn locks(namespace: &str) -> [String; 2] {
    let space = literal(&format!("{namespace}:"));
    let (rows, numbers, keys) = (LOCKS, LOCKS + 1, LOCKS + 2);
    let lock = |each: String| {
        format!(
            "SELECT pg_advisory_xact_lock(class, hash) FROM (
                 SELECT DISTINCT class, hashtext({space} || name) AS hash FROM ({each}) AS each
                 ORDER BY 1, 2) AS all_of_them"
        )
    };
    [
        format!(
            "SELECT {rows} AS class, unnest($1::text[]) AS name
             UNION ALL SELECT {numbers}, unnest($2::text[])"
        ),
        format!(
            "SELECT {keys} AS class, unnest($1::text[]) AS name UNION ALL
             SELECT {keys}, unnest(string_to_array(names, E'\\n')) FROM rows WHERE job = ANY($2::text[])"
        ),
    ]
    .map(lock)
}

/// Each prepared on a connection.
pub(super) struct Statements {
    pub(super) head: Statement,
    pub(super) lock: Statement,
    pub(super) lock_keys: Statement,
    pub(super) keep_time: Statement,
    /// Those of all databases, in the order of their numbers.
    common: Vec<Statement>,
}

impl Statements {
    /// All are sent before the first is answered: one by one they would be as many round trips.
    pub(super) async fn new(client: &Client, namespace: &str) -> Result<Statements, Error> {
        let dialect = dialect();
        let texts: Vec<String> = sql::Statement::ALL
            .iter()
            .map(|one| dialect.text(*one))
            .collect();
        let (head, [lock, lock_keys], keep_time) = (head(), locks(namespace), clock::keep());
        let (head, lock, lock_keys, keep_time, common) = tokio::join!(
            client.prepare(&head),
            client.prepare(&lock),
            client.prepare(&lock_keys),
            client.prepare(&keep_time),
            all_at_once(texts.iter().map(|text| client.prepare(text))),
        );
        Ok(Statements {
            head: head?,
            lock: lock?,
            lock_keys: lock_keys?,
            keep_time: keep_time?,
            common: common.into_iter().collect::<Result<_, _>>()?,
        })
    }

    #[expect(clippy::indexing_slicing, reason = "all of them were prepared")]
    pub(super) fn of(&self, asked: sql::Statement) -> &Statement {
        &self.common[asked as usize]
    }
}
