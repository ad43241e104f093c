//! What can be said of the server without changing anything there.

use std::pin::Pin;

use tokio::time::timeout;
use tokio_postgres::Client;

use super::super::clock::compare;
use super::super::remote::to_connect;
use super::super::sql::SILENCE;
use super::super::{Clock, Inspection, StoreError};
use super::failed::Failed;
use super::link::{PostgresConfig, PostgresLink};
use super::table::{keeps_session, usable};
use super::{clock as kept, schema};

/// Microseconds since 1970 there.
const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
const RIGHTS: &str = "SELECT CASE WHEN to_regnamespace($1) IS NULL
    THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(to_regnamespace($1)::oid, 'CREATE') END";

/// Looks at the server with this many calls, on a connection of its own. `clock` is this host's.
///
/// # Errors
/// It is not reachable, too old, a standby, lacks rights, or has something else in our schema.
pub fn inspect<'a>(
    config: &'a PostgresConfig,
    clock: &'a Clock,
    calls: usize,
) -> Pin<Box<dyn Future<Output = Result<Inspection, StoreError>> + 'a>> {
    Box::pin(inspect_server(config, clock, calls))
}

async fn inspect_server(
    config: &PostgresConfig,
    clock: &Clock,
    calls: usize,
) -> Result<Inspection, StoreError> {
    let link = PostgresLink::new(config);
    let looked = timeout(to_connect(config.timeout), async {
        let (client, other) = (link.connect(None).await?, link.connect(None).await?);
        let kept = keeps_session(&client, &other).await;
        kept.map_err(|failed| link.told(&failed))?;
        drop(other);
        let seen = look(&client, &config.namespace).await;
        let (server, live) = seen.map_err(|failed| link.told(&failed))?;
        Ok((client, server, live))
    });
    let (client, server, live) = looked.await.map_err(|_| StoreError::Timeout)??;
    let failed = |error| link.told(&Failed::Postgres(error));
    let unwritable = match live {
        Some(_) => {
            // What is there, once more: whether that goes, only a write tells.
            let write = client.batch_execute("UPDATE meta SET opens = opens");
            let written = timeout(config.timeout, write).await;
            let written = written.map_err(|_| StoreError::Timeout);
            written.and_then(|done| done.map_err(failed)).err()
        }
        None => None,
    };
    let now = client.prepare(NOW).await.map_err(failed)?;
    let ask = async || {
        let told = timeout(config.timeout, client.query_one(&now, &[])).await;
        let told = told.map_err(|_| StoreError::Timeout)?.map_err(failed)?;
        told.try_get(0).map_err(failed)
    };
    let (trips, ahead) = compare(clock, calls, ask).await?;
    Ok(Inspection {
        server: Some(format!("Postgres {server}")),
        live,
        unwritable,
        ahead,
        trips,
        ..Inspection::default()
    })
}

/// The server's version, and how many sidecars live there; `None`: there are no tables yet.
async fn look(client: &Client, namespace: &str) -> Result<(String, Option<usize>), Failed> {
    let version = usable(client).await?;
    let schema = super::text::quoted(namespace);
    let path = format!("SET search_path = {schema}");
    client.batch_execute(&path).await?;
    if !schema::is_there(client, namespace).await? {
        let allowed = client.query_one(RIGHTS, &[&schema]).await?;
        return match allowed.try_get(0)? {
            true => Ok((version, None)),
            false => Err(Failed::Unusable(format!(
                "the user needs CREATE on the database, or to own the schema {schema}"
            ))),
        };
    }
    let ahead = kept::ahead();
    let live = format!("SELECT count(*) FROM live WHERE seen > ({NOW}) + {ahead} - {SILENCE}");
    let live: i64 = client.query_one(&live, &[]).await?.try_get(0)?;
    Ok((version, Some(usize::try_from(live).unwrap_or(0))))
}
