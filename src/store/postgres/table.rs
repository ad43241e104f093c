//! What a connection does: what is read and locked, and what is no step on a page.

mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement, ToStatement};

use super::super::Clock;
use super::super::fleet::SETTLING;
use super::super::sql::{
    First, Flat, Found, Head, IDLE, Need, Page, count_anything, idle, limit, number, unsigned,
};
use super::clock;
use super::schema::{self, LOCKS, VERSION};
use super::statements::Statements;
use crate::limit::Timestamp;

/// The oldest server that will do.
const OLDEST: i32 = 120_000;
/// After how long the server drops a connection of which it hears nothing any more: by itself it would keep the session
/// of each one that was cut off silently for two hours.
pub(super) const ALIVE: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";
/// More than this a notification cannot carry.
const LONGEST_NEWS: usize = 7_900;

/// How a step failed.
pub(super) enum Failed {
    Postgres(Error),
    /// In words: it cannot be used as it is.
    Unusable(String),
    /// In words: not now.
    Unavailable(String),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Postgres(error)
    }
}

/// A connection with its statements.
pub(super) struct Session {
    client: Client,
    given: Option<Clock>,
    /// The schema, which is the channel too.
    namespace: String,
    /// Which of the server's histories this is: another one begins when a standby takes over.
    timeline: String,
    begun: bool,
    statements: Statements,
}

/// The server's version.
///
/// # Errors
/// It is too old, or a standby.
pub(super) async fn usable(client: &Client) -> Result<String, Failed> {
    let about = "SELECT current_setting('server_version_num')::int,
        current_setting('server_version'), pg_is_in_recovery()";
    let about = client.query_one(about, &[]).await?;
    let version: String = about.try_get(1)?;
    if about.try_get::<_, i32>(0)? < OLDEST {
        let why = format!("Postgres {version} is too old, 12 is needed");
        return Err(Failed::Unusable(why));
    }
    match about.try_get(2)? {
        true => Err(Failed::Unavailable("it is a standby".to_owned())),
        false => Ok(version),
    }
}

impl Session {
    /// Makes a connection ready: the schema is made or recognised.
    pub(super) async fn new(
        client: Client,
        namespace: &str,
        timeout: Duration,
        given: Option<Clock>,
    ) -> Result<Session, Failed> {
        usable(&client).await?;
        let schema = schema::quoted(namespace);
        let millis = timeout.as_millis().max(1);
        // Nothing of ours may hold a lock for longer than anybody waits for it.
        client
            .batch_execute(&format!(
                "SET search_path = {schema}; SET statement_timeout = {millis};
                 SET idle_in_transaction_session_timeout = {millis};
                 SET default_transaction_isolation = 'read committed'; {ALIVE}"
            ))
            .await?;
        schema::prepare(&client, namespace).await?;
        let timeline = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";
        let timeline: String = client.query_one(timeline, &[]).await?.try_get(0)?;
        let statements = Statements::new(&client).await?;
        Ok(Session {
            client,
            given,
            namespace: namespace.to_owned(),
            timeline,
            begun: false,
            statements,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    fn given(&self) -> Option<i64> {
        self.given.as_ref().map(|clock| number(clock.now().0))
    }

    async fn head(&self) -> Result<Head, Failed> {
        let given = self.given();
        let (head, with): (_, [&(dyn ToSql + Sync); 1]) = (&self.statements.head, [&given]);
        let mut row = self.client.query_one(head, &with).await?;
        if row.try_get::<_, i64>(7)? > clock::SMALL_STEP {
            self.keep_time().await?;
            row = self.client.query_one(head, &with).await?;
        }
        let now: i64 = row.try_get(0)?;
        let epoch: Option<String> = row.try_get(1)?;
        let (owners, seen): (Vec<String>, Vec<i64>) = (row.try_get(4)?, row.try_get(5)?);
        let seen = seen.into_iter().map(|at| Timestamp(unsigned(at)));
        Ok(Head {
            now: Timestamp(unsigned(now)),
            // Without it these are the data of nobody.
            epoch: epoch.map_or(String::new(), |epoch| format!("{epoch}.{}", self.timeline)),
            opens: Timestamp(unsigned(row.try_get::<_, Option<i64>>(2)?.unwrap_or(0))),
            edition: row.try_get::<_, Option<i64>>(3)?.unwrap_or(0),
            live: owners.into_iter().zip(seen).collect(),
            ahead: unsigned(row.try_get(6)?),
        })
    }

    /// Writes down what time it is. Who did it has that row until the end of the transaction: after the locks on
    /// what it is about, and before the row of who lives.
    async fn keep_time(&self) -> Result<(), Error> {
        let (keep, given) = (&self.statements.keep_time, self.given());
        self.client.query(keep, &[&given]).await.map(drop)
    }

    /// Rows of a statement; `None`: there is nothing to ask for.
    async fn ask(
        &self,
        statement: Option<&Statement>,
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        match statement {
            Some(statement) => self.client.query(statement, with).await,
            None => Ok(Vec::new()),
        }
    }

    /// Everything is sent at once, in this order; the time is read when all is locked.
    pub(super) async fn begin(&mut self, need: &Need, me: Arc<str>) -> Result<Page, Failed> {
        let list = |of: &BTreeSet<String>| of.iter().cloned().collect::<Vec<_>>();
        let (jobs, names, numbers) = (list(&need.jobs), list(&need.names), list(&need.numbers));
        let overrides = list(&need.overrides);
        let (any_row, any_number) = (!jobs.is_empty(), !numbers.is_empty());
        let any_key = any_row || !names.is_empty();
        let (these, writes) = (&self.statements, need.writes);
        let space = format!("{}:", self.namespace);
        let (begun, locked, rows, keys_locked, keys, found, overrides, head) = tokio::join! {
            biased;
            async { if writes { self.client.batch_execute("BEGIN").await } else { Ok(()) } },
            async { self.ask((writes && (any_row || any_number)).then_some(&these.lock), &[&LOCKS, &space, &jobs, &numbers]).await },
            async { self.ask(any_row.then_some(&these.rows), &[&jobs]).await },
            async { self.ask((writes && any_key).then_some(&these.lock_keys), &[&LOCKS, &space, &names, &jobs]).await },
            async { self.ask(any_key.then_some(&these.keys), &[&names, &jobs]).await },
            async { self.ask(any_number.then_some(&these.numbers), &[&numbers]).await },
            async { self.ask((!overrides.is_empty()).then_some(&these.overrides), &[&overrides]).await },
            self.head(),
        };
        // The first that failed says why; after it all do.
        begun?;
        locked?;
        let rows = rows?;
        keys_locked?;
        let (keys, found, overrides, head) = (keys?, found?, overrides?, head?);
        let now = head.now;
        let mut page = Page::new(me, head);
        for row in rows {
            page.has_row(flat(&row)?).ok_or_else(strange)?;
        }
        for row in keys {
            let kept = page.has_key(row.try_get(0)?, row.try_get(1)?);
            kept.ok_or_else(strange)?;
        }
        for row in found {
            if row.try_get::<_, i64>(4)? > number(now.0) {
                let parts = [row.try_get(1)?, row.try_get(2)?, row.try_get(3)?];
                page.has_number(row.try_get(0)?, parts);
            }
        }
        for row in overrides {
            page.overrides.insert(row.try_get(0)?);
        }
        self.begun = writes;
        Ok(page)
    }

    /// Of the next keys after this one, which is moved on, those with nothing used.
    async fn idle(&self, after: &mut String) -> Result<Vec<String>, Failed> {
        let with: [&(dyn ToSql + Sync); 3] = [&self.given(), &*after, &limit(IDLE)];
        let keys = self.client.query(&self.statements.walk, &with).await?;
        let now = keys.first().map_or(Ok(0), |row| row.try_get(2))?;
        let keys = keys
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let keys = keys.collect::<Result<_, Error>>()?;
        Ok(idle(keys, after, Timestamp(unsigned(now))))
    }

    /// What has to be known before a transaction begins.
    pub(super) async fn find(
        &self,
        first: &First,
        me: &str,
        after: &mut String,
    ) -> Result<Found, Failed> {
        let mut found = Found::default();
        match first {
            First::Due { max } => return self.due(me, *max, after).await,
            First::Idle => found.idle = self.idle(after).await?,
            First::Offered { lane, max } => {
                let with: [&(dyn ToSql + Sync); 4] = [&self.given(), &me, &lane, &limit(*max)];
                found.jobs = self.jobs(&self.statements.offered, &with).await?;
            }
            First::RowsOut { max } => {
                let text = "SELECT job FROM rows WHERE is_out LIMIT $1";
                found.jobs = self.jobs(text, &[&limit(*max)]).await?;
            }
            First::CountOut => {
                let text = "SELECT count(*) FROM rows WHERE owner = $1 AND is_out";
                found.count = self.count(text, &[&me]).await?;
            }
            First::HeldByOthers(queue) => {
                let with: [&(dyn ToSql + Sync); 3] = [&self.given(), &me, &queue];
                found.count = self.count(&self.statements.held, &with).await?;
            }
            First::Anything => {
                found.count = self.count(&count_anything(), &[]).await?;
            }
            First::Overrides => {
                // One look at both: an edition is never read with older texts.
                let text = "SELECT edition, name, text FROM meta LEFT JOIN overrides ON true";
                for row in self.client.query(text, &[]).await? {
                    found.overrides.0 = row.try_get(0)?;
                    if let Some(name) = row.try_get(1)? {
                        found.overrides.1.push((name, row.try_get(2)?));
                    }
                }
            }
            First::Join { knew } => found.epoch = self.join(me, knew.as_deref()).await?,
        }
        Ok(found)
    }

    async fn jobs(
        &self,
        text: &(impl ToStatement + ?Sized),
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<String>, Error> {
        let found = self.client.query(text, with).await?;
        found.iter().map(|row| row.try_get(0)).collect()
    }

    async fn count(
        &self,
        text: &(impl ToStatement + ?Sized),
        with: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        let count: i64 = self.client.query_one(text, with).await?.try_get(0)?;
        Ok(unsigned(count))
    }

    async fn due(&self, me: &str, max: usize, after: &mut String) -> Result<Found, Failed> {
        let (given, max) = (self.given(), limit(max));
        let (found, idle) = tokio::join! {
            biased;
            async { self.client.query_one(&self.statements.due, &[&given, &me, &max]).await },
            self.idle(after),
        };
        let (found, idle) = (found?, idle?);
        let first: Option<i64> = found.try_get(1)?;
        let adopted: Option<i64> = found.try_get(5)?;
        Ok(Found {
            jobs: found.try_get(0)?,
            others_out: found.try_get(2)?,
            lanes: found.try_get(3)?,
            strangers: found.try_get(4)?,
            first: first.map_or(Timestamp::NEVER, |at| Timestamp(unsigned(at))),
            count: unsigned(adopted.unwrap_or(0)),
            idle,
            ..Found::default()
        })
    }

    /// The caller is counted among the living, of data that begin if there are none. Which data these are is read on
    /// this same connection: the next one may lead to another server.
    async fn join(&self, me: &str, knew: Option<&str>) -> Result<String, Failed> {
        let now = self.head().await?.now;
        let settled = number(now.plus(SETTLING).0);
        let fresh = format!("{:016x}", rand::random::<u64>());
        let timeline = &self.timeline;
        let lost = knew.map_or(String::new(), |knew| {
            let knew = literal(knew);
            format!(
                "UPDATE meta SET opens = {settled}
                     WHERE opens = 0 AND epoch || '.{timeline}' <> {knew};"
            )
        });
        // A standby that took over may not have heard of everything.
        let begin = format!(
            "INSERT INTO meta VALUES (1, {VERSION}, '{fresh}', '{timeline}', 0, 0) ON CONFLICT DO NOTHING;
             UPDATE meta SET timeline = '{timeline}', opens = {settled} WHERE timeline <> '{timeline}';
             {lost}
             INSERT INTO live VALUES ({}, {})
             ON CONFLICT (owner) DO UPDATE SET seen = excluded.seen",
            literal(me),
            now.0,
        );
        let joined = vec![news(me, "joined")];
        let say = &self.statements.say;
        let with: [&(dyn ToSql + Sync); 2] = [&self.namespace, &joined];
        let (kept, begun, said) = tokio::join! {
            biased;
            self.keep_time(),
            self.client.batch_execute(&begin),
            self.client.query(say, &with),
        };
        kept?;
        begun?;
        said?;
        Ok(self.head().await?.epoch)
    }
}

fn strange() -> Failed {
    Failed::Unavailable("a row is not understood".to_owned())
}

/// A text as it stands in a statement.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn news(me: &str, text: &str) -> String {
    let said = [me, text].join("\n");
    match said.len() > LONGEST_NEWS {
        true => format!("{me}\nall"),
        false => said,
    }
}

fn flat(row: &tokio_postgres::Row) -> Result<Flat, Error> {
    Ok(Flat {
        job: row.try_get(0)?,
        claim_number: row.try_get(1)?,
        is_out: row.try_get(2)?,
        until: row.try_get(3)?,
        owner: row.try_get(4)?,
        lasts: row.try_get(5)?,
        lane: row.try_get(6)?,
        claim: row.try_get(7)?,
        limits: row.try_get(8)?,
        taken: row.try_get(9)?,
        started: row.try_get(10)?,
    })
}
