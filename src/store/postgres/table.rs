//! What a connection does: what is read and locked, and what is no step on a page.

mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use tokio_postgres::{Client, Error, Row, SimpleQueryMessage, Statement as Prepared};

use super::super::Clock;
use super::super::fleet::SETTLING;
use super::super::sql::{
    Findings, First, Head, Need, Page, Rows, SqlValue, Statement, number, unsigned,
};
use super::clock;
use super::failed::Failed;
use super::schema::{self, VERSION};
use super::statements::Statements;
use super::text::{self, literal};
use super::together::all_at_once;
use ojs_limit::Timestamp;

/// The oldest server that will do.
const OLDEST: i32 = 120_000;
/// After how long the server drops a connection of which it hears nothing any more: by itself it would keep the session
/// of each one that was cut off silently for two hours.
pub(super) const ALIVE: &str = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3; SET tcp_user_timeout = 25000";
/// So often it is asked whether a session stays ours: others may have taken it in between.
const LOOKS: usize = 3;

/// A connection with its statements.
pub(super) struct Session {
    client: Client,
    given: Option<Clock>,
    /// Which of the server's histories this is: another one begins when a standby takes over.
    timeline: String,
    /// The server's process of this session.
    process: i32,
    begun: bool,
    statements: Statements,
}

/// Why a pooler that gives a session to each transaction will not do.
pub(super) const POOLED: &str = "a pooler in between leads each transaction to another session, as PgBouncer does with \
    pool_mode = transaction: set pool_mode = session there for this database or user, or let store.url lead past it";

/// The server's process that answers, asked without a prepared statement.
async fn process(client: &Client) -> Result<String, Failed> {
    let told = client.simple_query("SELECT pg_backend_pid()").await?;
    let rows = told.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    rows.last().map(str::to_owned).ok_or_else(strange)
}

/// Asks whether a session stays ours while `other` has a transaction.
///
/// # Errors
/// A pooler gives it away between transactions.
pub(super) async fn keeps_session(client: &Client, other: &Client) -> Result<(), Failed> {
    let pooled = || Failed::Unusable(POOLED.to_owned());
    for _ in 0..LOOKS {
        let ours = process(client).await?;
        other.batch_execute("BEGIN").await?;
        // A pooler gives a transaction the session that was used last, or the one that was not used for longest: that
        // is ours, or ours is another now.
        if process(other).await? == ours || process(client).await? != ours {
            return Err(pooled());
        }
        other.batch_execute("COMMIT").await?;
    }
    Ok(())
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
        let schema = text::quoted(namespace);
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
        let about = "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), pg_backend_pid()";
        let about = client.query_one(about, &[]).await?;
        let (timeline, process) = (about.try_get(0)?, about.try_get(1)?);
        let statements = Statements::new(&client, namespace).await?;
        Ok(Session {
            client,
            given,
            timeline,
            process,
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
        if row.try_get::<_, i32>(8)? != self.process {
            return Err(Failed::Unusable(POOLED.to_owned()));
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

    /// Runs a statement; `None`: there is nothing to ask for.
    async fn ask(
        &self,
        asked: Option<&Prepared>,
        with: Vec<impl ToSql + Sync>,
    ) -> Result<Rows, Error> {
        let Some(asked) = asked else {
            return Ok(Rows::new());
        };
        let with: Vec<&(dyn ToSql + Sync)> = with.iter().map(|one| one as _).collect();
        let rows = self.client.query(asked, &with).await?;
        let columns = |row: &Row| (0..row.len()).map(|nth| row.try_get(nth)).collect();
        rows.iter().map(columns).collect()
    }

    /// Tells all these rows, if there are any.
    pub(super) async fn tell(
        &self,
        told: Statement,
        rows: &[Vec<SqlValue>],
    ) -> Result<Rows, Error> {
        let width = rows.first().map_or(0, Vec::len);
        let column = |nth| rows.iter().filter_map(|row| row.get(nth)).collect();
        let columns: Vec<Vec<&SqlValue>> = (0..width).map(column).collect();
        let told = self.statements.of(told);
        self.ask((width > 0).then_some(told), columns).await
    }

    /// Everything is sent at once, in this order; the time is read when all is locked.
    pub(super) async fn begin(&mut self, need: &Need, me: Arc<str>) -> Result<Page, Failed> {
        let list = |of: &BTreeSet<String>| of.iter().map(|one| SqlValue::from(&**one)).collect();
        let all = [&need.jobs, &need.names, &need.numbers, &need.overrides];
        let [jobs, names, numbers, overrides]: [Vec<SqlValue>; 4] = all.map(list);
        let (any_row, any_number) = (!jobs.is_empty(), !numbers.is_empty());
        let any_key = any_row || !names.is_empty();
        let (these, writes) = (&self.statements, need.writes);
        let of = |is_any: bool, table| is_any.then(|| these.of(table));
        let (begun, locked, rows, keys_locked, keys, numbers, overrides, head) = tokio::join! {
            biased;
            async { if writes { self.client.batch_execute("BEGIN").await } else { Ok(()) } },
            self.ask((writes && (any_row || any_number)).then_some(&these.lock), vec![&jobs, &numbers]),
            self.ask(of(any_row, Statement::Rows), vec![&jobs]),
            self.ask((writes && any_key).then_some(&these.lock_keys), vec![&names, &jobs]),
            self.ask(of(any_key, Statement::Keys), vec![&names, &jobs]),
            self.ask(of(any_number, Statement::Numbers), vec![&numbers]),
            self.ask(of(!overrides.is_empty(), Statement::Overrides), vec![&overrides]),
            self.head(),
        };
        // The first that failed says why; after it all do.
        begun?;
        locked?;
        let rows = rows?;
        keys_locked?;
        let found = [
            (Statement::Rows, rows),
            (Statement::Keys, keys?),
            (Statement::Numbers, numbers?),
            (Statement::Overrides, overrides?),
        ];
        let mut page = Page::new(me, head?);
        for (asked, rows) in found {
            page.read(asked, rows).ok_or_else(strange)?;
        }
        self.begun = writes;
        Ok(page)
    }

    /// What has to be known before a transaction begins.
    pub(super) async fn find(
        &self,
        first: &First,
        me: &str,
        after: &mut String,
    ) -> Result<Findings, Failed> {
        let mut found = Findings::default();
        if let First::Join { knew } = first {
            found.epoch = self.join(me, knew.as_deref()).await?;
        }
        let time = self.given().map_or(SqlValue::Nothing, SqlValue::Number);
        let asks = first.asks(me, &time, after);
        let asked = |one: &Statement| Some(self.statements.of(*one));
        let told = asks
            .iter()
            .map(|(one, with)| self.ask(asked(one), with.iter().collect()));
        let told = all_at_once(told).await;
        for ((asked, _), rows) in asks.iter().zip(told) {
            found.read(*asked, rows?, after).ok_or_else(strange)?;
        }
        Ok(found)
    }

    /// The caller is counted among the living, of data that begin if there are none. Which data these are is read on
    /// this same connection: the next one may lead to another server.
    async fn join(&self, me: &str, knew: Option<&str>) -> Result<String, Failed> {
        let head = self.head().await?;
        let now = head.now;
        let settled = number(now.plus(SETTLING).0);
        let fresh = format!("{:016x}", rand::random::<u64>());
        let timeline = &self.timeline;
        let lost = knew.map_or("false".to_owned(), |knew| {
            format!("opens = 0 AND epoch || '.{timeline}' <> {}", literal(knew))
        });
        let unheard = head.opened_unheard();
        // A standby that took over may not have heard of everything.
        let begin = format!(
            "INSERT INTO meta VALUES (1, {VERSION}, '{fresh}', '{timeline}', 0, 0) ON CONFLICT DO NOTHING;
             UPDATE meta SET timeline = '{timeline}', opens = {settled} WHERE timeline <> '{timeline}';
             UPDATE meta SET opens = {settled} WHERE {lost} OR {unheard};"
        );
        let alive = [vec![me.into(), now.0.into()]];
        let joined = [vec![me.into(), "joined".into(), now.0.into()]];
        let (kept, begun, lives, said) = tokio::join! {
            biased;
            self.keep_time(),
            self.client.batch_execute(&begin),
            self.tell(Statement::PutLive, &alive),
            self.tell(Statement::Say, &joined),
        };
        kept?;
        begun?;
        lives?;
        said?;
        Ok(self.head().await?.epoch)
    }
}

fn strange() -> Failed {
    Failed::Unavailable("a row is not understood".to_owned())
}

type ColumnError = Box<dyn std::error::Error + Sync + Send>;

impl ToSql for SqlValue {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, ColumnError> {
        match self {
            SqlValue::Nothing => Ok(IsNull::Yes),
            SqlValue::Number(number) if *kind == Type::BOOL => (*number != 0).to_sql(kind, out),
            SqlValue::Number(number) => number.to_sql(kind, out),
            SqlValue::Text(text) => text.to_sql(kind, out),
            SqlValue::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    accepts!(BOOL, INT8, TEXT, BYTEA);
    to_sql_checked!();
}

impl<'r> FromSql<'r> for SqlValue {
    fn from_sql(kind: &Type, raw: &'r [u8]) -> Result<SqlValue, ColumnError> {
        Ok(match *kind {
            Type::BOOL => SqlValue::Number(bool::from_sql(kind, raw)?.into()),
            Type::INT8 => SqlValue::Number(i64::from_sql(kind, raw)?),
            Type::BYTEA => SqlValue::Bytes(Vec::from_sql(kind, raw)?),
            _ => SqlValue::Text(String::from_sql(kind, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<SqlValue, ColumnError> {
        Ok(SqlValue::Nothing)
    }

    accepts!(BOOL, INT8, TEXT, BYTEA, VOID);
}
