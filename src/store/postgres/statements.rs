//! The statements that are made ready once for each connection.

use tokio_postgres::{Client, Error, Statement};

use super::super::HOLDS_LAST;
use super::super::sql::{ADOPTED, Dialect};
use super::clock;

const DIALECT: Dialect = Dialect {
    me: "$2",
    now: "t.now",
    greatest: "greatest",
    least: "least",
};

/// What to look after.
fn due() -> String {
    let now = clock::now();
    let mine = |which: &str, order: &str| {
        format!(
            "array(SELECT job FROM rows WHERE owner = $2 AND {which} AND until <= t.now
             ORDER BY {order} until, job LIMIT $3)"
        )
    };
    let (out, held) = (mine("is_out", ""), mine("NOT is_out", "until = 0,"));
    let (others_out, lanes) = (DIALECT.overdue("is_out"), DIALECT.offered());
    format!(
        "WITH t AS (SELECT {now} AS now) SELECT {out} || {held},
         (SELECT min(until) FROM rows WHERE owner = $2 AND (is_out OR until > 0)),
         array(SELECT job {others_out} ORDER BY until, job LIMIT $3),
         array(SELECT DISTINCT lane {lanes}),
         EXISTS (SELECT 1 FROM rows WHERE owner <> $2),
         (SELECT value FROM numbers WHERE name = '{ADOPTED}') FROM t"
    )
}

/// What every operation has to know.
fn head() -> String {
    let (now, ahead, behind) = (clock::now(), clock::ahead(), clock::behind());
    format!(
        "SELECT {now}, epoch, opens, edition, array(SELECT owner FROM live ORDER BY owner),
         array(SELECT seen FROM live ORDER BY owner), {ahead}, {behind}
         FROM (SELECT 1) AS one LEFT JOIN meta ON id = 1"
    )
}

/// Rows of one lane that may be taken over.
fn offered_of_lane() -> String {
    let now = clock::now();
    let offered = DIALECT.offered();
    format!(
        "WITH t AS (SELECT {now} AS now) SELECT each.job FROM t, LATERAL (
             SELECT job {offered} AND lane = $3 ORDER BY until, job LIMIT $4) AS each"
    )
}

/// How many jobs of a queue others hold.
fn held() -> String {
    let now = clock::now();
    format!(
        "SELECT coalesce(sum(jobs), 0)::bigint FROM holds
         WHERE queue = $3 AND owner <> $2 AND at > {now} - {HOLDS_LAST}"
    )
}

/// The next keys.
fn walk() -> String {
    let now = clock::now();
    format!("SELECT name, state, {now} FROM keys WHERE name > $2 ORDER BY name LIMIT $3")
}

const LOCK: &str = "SELECT pg_advisory_xact_lock(class, hash) FROM (
         SELECT DISTINCT class, hashtext($2 || name) AS hash FROM (
             SELECT $1::int AS class, unnest($3::text[]) AS name
             UNION ALL SELECT $1 + 1, unnest($4::text[])) AS each
         ORDER BY 1, 2) AS all_of_them";

const ROWS: &str =
    "SELECT job, claim_number, is_out, until, owner, lasts, lane, claim, limits, taken,
     started FROM rows WHERE job = ANY($1::text[])";

const LOCK_KEYS: &str = "SELECT pg_advisory_xact_lock($1::int + 2, hash) FROM (
         SELECT DISTINCT hashtext($2 || name) AS hash FROM (
             SELECT unnest($3::text[]) AS name UNION ALL
             SELECT unnest(string_to_array(names, E'\\n')) FROM rows WHERE job = ANY($4::text[])
         ) AS each ORDER BY 1) AS all_of_them";

const KEYS: &str = "SELECT name, state FROM keys WHERE name = ANY(array(
         SELECT unnest($1::text[]) UNION
         SELECT unnest(string_to_array(names, E'\\n')) FROM rows WHERE job = ANY($2::text[])))";

const NUMBERS: &str =
    "SELECT name, value, version, put_at, ends FROM numbers WHERE name = ANY($1::text[])";

const PUT_ROWS: &str =
    "INSERT INTO rows (job, claim_number, is_out, until, owner, lasts, lane, claim,
         limits, taken, names, started, touched, hidden)
     SELECT *, 0, false FROM unnest($1::text[], $2::bigint[], $3::boolean[], $4::bigint[], $5::text[],
         $6::bigint[], $7::text[], $8::text[], $9::text[], $10::bytea[],
         $11::text[], $12::bigint[])
     ON CONFLICT (job) DO UPDATE SET claim_number = excluded.claim_number,
         is_out = excluded.is_out, until = excluded.until, owner = excluded.owner,
         lasts = excluded.lasts, lane = excluded.lane,
         claim = excluded.claim, limits = excluded.limits, taken = excluded.taken,
         names = excluded.names, started = excluded.started";

const DROP_ROWS: &str = "DELETE FROM rows WHERE job = ANY($1::text[])";

const PUT_KEYS: &str = "INSERT INTO keys SELECT * FROM unnest($1::text[], $2::bytea[])
     ON CONFLICT (name) DO UPDATE SET state = excluded.state";

const DROP_KEYS: &str = "DELETE FROM keys WHERE name = ANY($1::text[])";

const PUT_NUMBERS: &str = "INSERT INTO numbers
     SELECT *, $5::bigint FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[])
     ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version,
         put_at = excluded.put_at, ends = excluded.ends";

const PUT_HOLDS: &str = "INSERT INTO holds
     SELECT queue, $1, jobs, $4 FROM unnest($2::text[], $3::bigint[]) AS each (queue, jobs)
     ON CONFLICT (queue, owner) DO UPDATE SET jobs = excluded.jobs, at = excluded.at";

const OVERRIDES: &str = "SELECT name FROM overrides WHERE name = ANY($1::text[])";

const PUT_OVERRIDES: &str = "INSERT INTO overrides
     SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
     ON CONFLICT (name) DO UPDATE SET text = excluded.text, ends = excluded.ends";

const DROP_OVERRIDES: &str = "DELETE FROM overrides WHERE name = ANY($1::text[])";

const SAY: &str = "SELECT pg_notify($1, text) FROM unnest($2::text[]) AS text";

/// Declares the statements, each with its text, and how a connection prepares them.
macro_rules! statements {
    ($($name:ident = $text:expr;)*) => {
        /// Each prepared on a connection.
        pub(super) struct Statements {
            $(pub(super) $name: Statement,)*
        }

        impl Statements {
            /// All are sent before the first is answered: one by one they would be as many round trips.
            pub(super) async fn new(client: &Client) -> Result<Statements, Error> {
                let ($($name,)*) = tokio::try_join!($(async { client.prepare(&$text).await },)*)?;
                Ok(Statements { $($name,)* })
            }
        }
    };
}

statements! {
    head = head();
    lock = LOCK;
    rows = ROWS;
    lock_keys = LOCK_KEYS;
    keys = KEYS;
    numbers = NUMBERS;
    put_rows = PUT_ROWS;
    drop_rows = DROP_ROWS;
    put_keys = PUT_KEYS;
    drop_keys = DROP_KEYS;
    put_numbers = PUT_NUMBERS;
    put_holds = PUT_HOLDS;
    overrides = OVERRIDES;
    put_overrides = PUT_OVERRIDES;
    drop_overrides = DROP_OVERRIDES;
    say = SAY;
    due = due();
    walk = walk();
    offered = offered_of_lane();
    held = held();
    keep_time = clock::keep();
}
