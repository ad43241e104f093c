//! The schema: made by the program itself, and recognised.

use tokio_postgres::Client;

use super::failed::Failed;
use super::statements::dialect;
use super::text::{LOCKS, quoted};

/// Which tables there are.
pub(super) const VERSION: i32 = 1;

/// The tables beside those of all databases.
const TABLES: &str = "
CREATE TABLE meta (
    id integer PRIMARY KEY, version integer NOT NULL, epoch text NOT NULL, timeline text NOT NULL,
    opens bigint NOT NULL, edition bigint NOT NULL);
";

/// Whether the tables are there; they are in the search path then.
///
/// # Errors
/// The schema is somebody else's, or of another version.
pub(super) async fn is_there(client: &Client, namespace: &str) -> Result<bool, Failed> {
    let known = "SELECT to_regclass('meta') IS NOT NULL, (SELECT count(*) FROM pg_class
        WHERE relnamespace = to_regnamespace($1) AND relkind IN ('r', 'v', 'm', 'p', 'f'))";
    let schema = quoted(namespace);
    let found = client.query_one(known, &[&schema]).await?;
    if !found.try_get::<_, bool>(0)? {
        return match found.try_get::<_, i64>(1)? {
            0 => Ok(false),
            _ => Err(Failed::Unusable(format!(
                "the schema {schema} is not ours: another store.namespace helps"
            ))),
        };
    }
    // Whatever is called so has to have such a column, or it is not ours.
    let version = client.query_opt("SELECT version FROM meta WHERE id = 1", &[]);
    let version = version.await.map_err(|error| match error.code() {
        Some(code) if code.code() == "42703" => {
            Failed::Unusable(format!("the table meta in {schema} is not ours"))
        }
        _ => Failed::Postgres(error),
    })?;
    match version.map(|row| row.try_get::<_, i32>(0)).transpose()? {
        Some(version) if version != VERSION => Err(Failed::Unusable(format!(
            "the tables in {schema} are of version {version}, and this program knows version {VERSION}"
        ))),
        _ => Ok(true),
    }
}

/// By `until` too it would be written anew with each change of a row. A schema of an older version has none.
const INDEX: &str = "CREATE INDEX rows_owner ON rows (owner);";

/// Makes the schema, if it is not there.
///
/// # Errors
/// As [`is_there`], or it may not be made.
pub(super) async fn prepare(client: &Client, namespace: &str) -> Result<(), Failed> {
    if is_there(client, namespace).await? {
        return Ok(());
    }
    client.batch_execute("BEGIN").await?;
    let lock = "SELECT pg_advisory_xact_lock($1::int, hashtext($2))";
    client.query(lock, &[&(LOCKS + 3), &namespace]).await?;
    // Another one may have made it meanwhile.
    if !is_there(client, namespace).await? {
        // What is changed all the time has room beside it.
        let room = |name: &str| match name {
            "overrides" => "",
            "live" => "WITH (fillfactor = 20)",
            _ => "WITH (fillfactor = 50)",
        };
        // To ask for one that is there takes the right to make schemas all the same, and its owner may have none.
        let has_schema = "SELECT FROM pg_namespace WHERE nspname = $1";
        let has_schema = client.query_opt(has_schema, &[&namespace]).await?;
        let schema = match has_schema {
            Some(_) => String::new(),
            None => format!("CREATE SCHEMA IF NOT EXISTS {};", quoted(namespace)),
        };
        let tables = dialect().create(room);
        client
            .batch_execute(&format!("{schema} {TABLES} {tables} {INDEX}"))
            .await?;
    }
    client.batch_execute("COMMIT").await?;
    Ok(())
}
