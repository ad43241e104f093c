//! The tables, and the statements that every database runs, in the words of each.

use std::borrow::Cow;

use super::super::fleet::ADOPTED;
use super::super::record::lane;
use super::super::{Claim, HOLDS_LAST, LooksAfter};
use super::times::{KEPT, LATE, LONG_OVER, PATIENCE, SILENCE};
use super::value::number;
use ojs_limit::Timestamp;

/// Limits set over HTTP are kept this long after their end, for whoever looks at them.
const DAY: u64 = 24 * 3600 * 1_000_000;

/// A table whose rows are written one by one: its name, the columns that find a row, and all columns, each with its
/// type.
struct Table(&'static str, &'static str, &'static str);

const ROWS: Table = Table(
    "rows",
    "job",
    "job text NOT NULL, claim_number bigint NOT NULL, is_out boolean NOT NULL, until bigint NOT NULL, \
     owner text NOT NULL, lasts bigint NOT NULL, lane text NOT NULL, claim text NOT NULL, limits text NOT NULL, \
     taken bytea NOT NULL, started bigint",
);
/// One more column of rows, where [`Dialect::has_lists`]: the names of the keys that a row has slots of.
const NAMES: &str = ", names text NOT NULL";
const KEYS: Table = Table("keys", "name", "name text NOT NULL, state bytea NOT NULL");
const NUMBERS: Table = Table(
    "numbers",
    "name",
    "name text NOT NULL, value bigint NOT NULL, version bigint NOT NULL, put_at bigint NOT NULL, \
     ends bigint NOT NULL",
);
const OVERRIDES: Table = Table(
    "overrides",
    "name",
    "name text NOT NULL, text text NOT NULL, ends bigint",
);
/// How many jobs of a queue each sidecar holds.
const HOLDS: Table = Table(
    "holds",
    "queue, owner",
    "queue text NOT NULL, owner text NOT NULL, jobs bigint NOT NULL, at bigint NOT NULL",
);
/// When each sidecar was last heard of.
const LIVE: Table = Table("live", "owner", "owner text NOT NULL, seen bigint NOT NULL");

/// All that [`Change::Clear`](super::super::Change::Clear) empties.
const ALL: [Table; 5] = [ROWS, KEYS, NUMBERS, OVERRIDES, HOLDS];

/// What empties them.
pub(crate) fn clear() -> String {
    ALL.map(|table| format!("DELETE FROM {};", table.0))
        .concat()
}

/// Declares what every database is asked and told, each with its text.
macro_rules! statements {
    ($dialect:ident: $($(#[$about:meta])* $name:ident = $text:expr;)*) => {
        /// What every database is asked and told; [`Dialect::text`] says how.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(in crate) enum Statement {
            $($(#[$about])* $name,)*
        }

        impl Statement {
            pub(in crate) const ALL: &[Statement] = &[$(Statement::$name,)*];
        }

        impl Dialect {
            /// The statement, with `$1` for its first argument.
            pub(in crate) fn text(&self, statement: Statement) -> String {
                let $dialect = self;
                match statement {
                    $(Statement::$name => $text,)*
                }
            }
        }
    };
}

statements! { says:
    Rows = says.get(
        &ROWS,
        "job, claim_number, is_out, until, owner, lasts, claim, limits, taken, started",
    );
    /// By their names; where there are lists also by jobs that have slots of them.
    Keys = match says.has_lists {
        true => KEYS_AND_THOSE_OF_ROWS.to_owned(),
        false => says.get(&KEYS, "name, state"),
    };
    Numbers = says.get(&NUMBERS, "name, value, version, put_at, ends");
    /// Which of these there are.
    Overrides = says.get(&OVERRIDES, "name");
    PutRows = says.put(&ROWS);
    DropRows = says.drop(&ROWS);
    PutKeys = says.put(&KEYS);
    DropKeys = says.drop(&KEYS);
    PutNumbers = says.put(&NUMBERS);
    PutHolds = says.put(&HOLDS);
    PutOverrides = says.put(&OVERRIDES);
    DropOverrides = says.drop(&OVERRIDES);
    PutLive = says.put(&LIVE);
    /// News for the others: who says it, what, and when.
    Say = match says.has_lists {
        true => NOTIFY.to_owned(),
        false => "INSERT INTO news (owner, text, at) VALUES ($1, $2, $3)".to_owned(),
    };
    /// Which jobs and lanes are to be looked after.
    Due = says.due(LooksAfter::All);
    /// Which calls are to be looked after, however many jobs are due before them.
    DueCalls = says.due(LooksAfter::Calls);
    /// What else is looked at then.
    Around = says.around();
    /// The next keys.
    Walk = says.at_once(&format!(
        "SELECT name, state, {NOW} FROM keys WHERE name > $2 ORDER BY name LIMIT $3"
    ));
    /// Rows of one lane that may be taken over.
    Offered = says.at_once(&format!(
        "SELECT job {} AND lane = $3 ORDER BY until, job LIMIT $4",
        says.offered()
    ));
    RowsOut = "SELECT job FROM rows WHERE is_out = true LIMIT $1".to_owned();
    CountOut = "SELECT count(*) FROM rows WHERE owner = $1 AND is_out = true".to_owned();
    /// How many jobs of a queue others hold.
    HeldByOthers = says.at_once(&format!(
        "SELECT CAST(coalesce(sum(jobs), 0) AS bigint) FROM holds
         WHERE queue = $3 AND owner <> $2 AND at > {NOW} - {HOLDS_LAST}"
    ));
    /// All overrides with their edition. It is one look at both: an edition is never read with older texts.
    Settings = "SELECT edition, name, text FROM meta LEFT JOIN overrides ON true".to_owned();
}

/// How a database says it.
pub(crate) struct Dialect {
    /// The time, by what the caller gives as `$1`.
    pub(crate) now: Cow<'static, str>,
    pub(crate) greatest: &'static str,
    pub(crate) least: &'static str,
    /// Whether a statement about rows of a table is told of all of them at once, each column being a list.
    pub(crate) has_lists: bool,
    /// What leaves rows alone that another one is at.
    pub(crate) skips: &'static str,
}

/// The time in a statement that begins with [`Dialect::at_once`].
const NOW: &str = "(SELECT now FROM t)";

impl Dialect {
    /// What makes the tables, each with what is said `behind` it.
    pub(crate) fn create(&self, behind: impl Fn(&str) -> &'static str) -> String {
        let create = |table: &Table| {
            let (Table(name, key, _), columns) = (table, self.columns(table));
            let behind = behind(name);
            format!("CREATE TABLE {name} ({columns}, PRIMARY KEY ({key})) {behind};")
        };
        ALL.iter().chain([&LIVE]).map(create).collect()
    }

    /// What forgets of what nothing speaks any more: offers of the dead, of which nobody is left to make anything,
    /// numbers, limits whose time is over, what others held, and sidecars that are gone and have left no row.
    pub(crate) fn sweep(&self, now: Timestamp) -> String {
        let (greatest, skips) = (self.greatest, self.skips);
        let seen = "coalesce((SELECT seen FROM live WHERE live.owner = rows.owner), 0)";
        let before = |past: u64| number(now.0.saturating_sub(past));
        let each = [
            (
                &ROWS,
                format!(
                    "NOT is_out AND {greatest}(until, {seen}) < {} - lasts",
                    before(LONG_OVER)
                ),
            ),
            (&NUMBERS, format!("ends <= {}", before(0))),
            (&OVERRIDES, format!("ends < {}", before(DAY))),
            (&HOLDS, format!("at < {}", before(HOLDS_LAST))),
            (
                &LIVE,
                format!(
                    "seen < {} AND NOT EXISTS (SELECT 1 FROM rows WHERE rows.owner = live.owner)",
                    before(SILENCE)
                ),
            ),
        ];
        let sweep = |(Table(name, key, _), is_over): (&Table, String)| {
            let some = format!("SELECT {key} FROM {name} WHERE {is_over} LIMIT 1000 {skips}");
            format!("DELETE FROM {name} WHERE ({key}) IN ({some});")
        };
        each.map(sweep).concat()
    }

    /// A statement for which it is the same time all over.
    fn at_once(&self, statement: &str) -> String {
        format!("WITH t AS (SELECT {} AS now) {statement}", self.now)
    }

    fn is_told(&self, column: &str) -> String {
        match self.has_lists {
            true => format!("{column} = ANY($1::text[])"),
            false => format!("{column} = $1"),
        }
    }

    fn columns(&self, Table(name, _, columns): &Table) -> String {
        let has_names = self.has_lists && *name == ROWS.0;
        [*columns, if has_names { NAMES } else { "" }].concat()
    }

    fn get(&self, Table(name, key, _): &Table, columns: &str) -> String {
        format!("SELECT {columns} FROM {name} WHERE {}", self.is_told(key))
    }

    fn drop(&self, Table(name, key, _): &Table) -> String {
        format!("DELETE FROM {name} WHERE {}", self.is_told(key))
    }

    fn put(&self, table: &Table) -> String {
        let (Table(name, key, _), columns) = (table, self.columns(table));
        let (mut names, mut told, mut set) = (Vec::new(), Vec::new(), Vec::new());
        for (nth, column) in (1..).zip(columns.split(", ")) {
            let mut words = column.split(' ');
            let (column, kind) = words.next().zip(words.next()).unwrap_or_default();
            names.push(column);
            told.push(match self.has_lists {
                true => format!("${nth}::{kind}[]"),
                false => format!("${nth}"),
            });
            if key.split(", ").all(|of_key| of_key != column) {
                set.push(format!("{column} = excluded.{column}"));
            }
        }
        let [names, told, set] = [names.join(", "), told.join(", "), set.join(", ")];
        let told = match self.has_lists {
            true => format!("SELECT * FROM unnest({told})"),
            false => format!("VALUES ({told})"),
        };
        format!("INSERT INTO {name} ({names}) {told} ON CONFLICT ({key}) DO UPDATE SET {set}")
    }

    fn due(&self, which: LooksAfter) -> String {
        let of = match which {
            LooksAfter::All => String::new(),
            LooksAfter::Calls => {
                let calls = lane(0, &Claim::queue_of_calls(""));
                format!("AND lane LIKE '{calls}%'")
            }
        };
        let mine = |is_out: &str, order: &str| {
            format!(
                "SELECT job FROM rows WHERE owner = $2 AND is_out = {is_out} AND until <= {NOW} {of}
                 ORDER BY {order} until, job LIMIT $3"
            )
        };
        let (others_out, offered) = (self.overdue("is_out"), self.offered());
        let parts = [
            (MINE, mine("true", "")),
            (MINE, mine("false", "until = 0,")),
            (
                OTHERS_OUT,
                format!("SELECT job {others_out} {of} ORDER BY until, job LIMIT $3"),
            ),
            (LANES, format!("SELECT DISTINCT lane AS job {offered} {of}")),
        ];
        let parts = parts.map(|(what, part)| {
            format!("SELECT CAST({what} AS bigint), job FROM ({part}) AS part{what}")
        });
        self.at_once(&parts.join(" UNION ALL "))
    }

    /// The first time at which one of ours is due, whether others have rows, and how many jobs were ever adopted.
    /// Each is asked so that an index tells.
    fn around(&self) -> String {
        let (least, never) = (self.least, i64::MAX);
        let first = |which: &str| {
            format!("coalesce((SELECT min(until) FROM rows WHERE owner = $1 AND {which}), {never})")
        };
        let [out, held] = ["is_out = true", "is_out = false AND until > 0"].map(first);
        format!(
            "SELECT {least}({out}, {held}),
             EXISTS (SELECT 1 FROM rows WHERE owner < $1) OR EXISTS (SELECT 1 FROM rows WHERE owner > $1),
             coalesce((SELECT value FROM numbers WHERE name = '{ADOPTED}'), 0)"
        )
    }

    /// Rows of others that are overdue: the owner lives and is late, or is gone.
    fn overdue(&self, which: &str) -> String {
        format!(
            "FROM rows LEFT JOIN live ON live.owner = rows.owner
             WHERE rows.owner <> $2 AND {which} AND until <=
                 CASE WHEN live.seen + {SILENCE} > {NOW} THEN {NOW} - {PATIENCE} ELSE {NOW} END"
        )
    }

    /// Of these the held ones that their owners offered. The claim is sure to be the owner's still, which lives, or
    /// was alive so lately.
    fn offered(&self) -> String {
        let (greatest, least) = (self.greatest, self.least);
        self.overdue(&format!(
            "NOT is_out AND until = 0
             AND live.seen + {greatest}({SILENCE}, {least}(lasts, {KEPT}) * 2 / 3 - {LATE}) > {NOW}"
        ))
    }
}

/// What [`Statement::Due`] says of what it found.
pub(super) const MINE: i64 = 0;
pub(super) const OTHERS_OUT: i64 = 1;
const LANES: i64 = 2;

const KEYS_AND_THOSE_OF_ROWS: &str = "SELECT name, state FROM keys WHERE name = ANY(array(
         SELECT unnest($1::text[]) UNION
         SELECT unnest(string_to_array(names, E'\\n')) FROM rows WHERE job = ANY($2::text[])))";

/// More than 7,900 bytes a notification cannot carry: then anything may have happened.
const NOTIFY: &str = "SELECT pg_notify(current_schema(),
         CASE WHEN octet_length(said) > 7900 THEN owner || E'\\nall' ELSE said END)
     FROM (SELECT owner, owner || E'\\n' || text AS said
           FROM unnest($1::text[], $2::text[], $3::bigint[]) AS each (owner, text, at)) AS each";
