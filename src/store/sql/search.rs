//! What a database has to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::fleet::ADOPTED;
use super::super::record;
use super::super::{Change, Claimed, End, Gen, LooksAfter, StoreError, fleet};
use super::page::Page;
use super::statements::{MINE, OTHERS_OUT, Statement};
use super::value::{Rows, SqlValue, unsigned};
use ojs_limit::{KeyState, Space, Timestamp};

/// So many keys are looked at in one transaction for whether anything of them is used. Each that is not is
/// locked until it is forgotten, and a server has room for some thousands of locks, for all its programs.
const IDLE: usize = 500;

/// What is locked by whoever changes limits or settings made over HTTP: a number of this name, which there is not.
const OVERRIDES: &str = "overrides";

/// What a transaction is about. Sorted: all lock in this order.
#[derive(Default, Debug)]
pub(crate) struct Need {
    pub(crate) jobs: BTreeSet<String>,
    /// Keys, by [`record::name`]; those that the rows have slots of come by themselves.
    pub(crate) names: BTreeSet<String>,
    pub(crate) numbers: BTreeSet<String>,
    /// Limits and settings made over HTTP, as [`record::Written`] names them.
    pub(crate) overrides: BTreeSet<String>,
    /// Whether anything may be changed; else nothing has to be locked.
    pub(crate) writes: bool,
    /// What an operation asks before it knows what it is about.
    pub(super) first: Option<First>,
}

/// What is asked before anything is locked.
#[derive(Debug)]
pub(crate) enum First {
    /// What to look after: at most `max` rows of ours that are out, at most `max` that we offer or have taken over (what
    /// we offer comes last), and as many that others have out. And as [`First::Idle`].
    Due { which: LooksAfter, max: usize },
    /// Of the next [`IDLE`] keys those with nothing used.
    Idle,
    /// Offered rows of others in a lane.
    Offered { lane: String, max: usize },
    /// Rows that are out.
    RowsOut { max: usize },
    /// How many rows we have that are out.
    CountOut,
    /// How many jobs of a queue others hold, as they said of late.
    HeldByOthers(String),
    /// Limits and settings made over HTTP.
    Overrides,
    /// The caller comes, or comes back, and is counted among the living. Where there are no data an epoch begins; if
    /// the first that knew any knew others, nothing starts until all had time to put their rows back.
    Join { knew: Option<Arc<str>> },
}

/// What was found before anything was locked: the page is asked again.
#[derive(Default, Debug)]
pub(crate) struct Findings {
    /// Ours that are due, or all that were asked for.
    pub(crate) jobs: Vec<String>,
    pub(crate) others_out: Vec<String>,
    /// Where others have offered rows. These need no page: who asks for such a row is told what is true then.
    pub(crate) lanes: Vec<String>,
    /// Whether others have rows.
    pub(crate) strangers: bool,
    /// The first time at which one of ours is due; those that were offered are no reason to look.
    pub(crate) first: Timestamp,
    /// Keys with nothing used.
    pub(crate) idle: Vec<String>,
    /// How many jobs were ever adopted, or as many as were to be counted.
    pub(crate) count: u64,
    /// Names and texts of what was made over HTTP, and which edition that is.
    pub(crate) overrides: (i64, Vec<(String, String)>),
    /// Which data were [joined](First::Join).
    pub(crate) epoch: String,
}

impl First {
    /// What is asked, in this order; `time` is what the database reckons with, and `after` where its search for keys with
    /// nothing used is.
    pub(crate) fn asks(
        &self,
        me: &str,
        time: &SqlValue,
        after: &str,
    ) -> Vec<(Statement, Vec<SqlValue>)> {
        let (me, time, most) = (
            || SqlValue::from(me),
            || time.clone(),
            |n: usize| SqlValue::from(n as u64),
        );
        let walk = || (Statement::Walk, vec![time(), after.into(), most(IDLE)]);
        match self {
            First::Due { which, max } => {
                let due = match which {
                    LooksAfter::All => Statement::Due,
                    LooksAfter::Calls => Statement::DueCalls,
                };
                vec![
                    (due, vec![time(), me(), most(*max)]),
                    (Statement::Around, vec![me()]),
                    walk(),
                ]
            }
            First::Idle => vec![walk()],
            First::Offered { lane, max } => {
                let with = vec![time(), me(), SqlValue::from(&**lane), most(*max)];
                vec![(Statement::Offered, with)]
            }
            First::RowsOut { max } => vec![(Statement::RowsOut, vec![most(*max)])],
            First::CountOut => vec![(Statement::CountOut, vec![me()])],
            First::HeldByOthers(queue) => {
                let with = vec![time(), me(), SqlValue::from(&**queue)];
                vec![(Statement::HeldByOthers, with)]
            }
            First::Overrides => vec![(Statement::Settings, Vec::new())],
            First::Join { .. } => Vec::new(),
        }
    }
}

impl Findings {
    /// Takes in what one of [`First::asks`] has told; `None`: somebody else wrote it. The search for keys with nothing
    /// used is moved on.
    pub(crate) fn read(&mut self, asked: Statement, rows: Rows, after: &mut String) -> Option<()> {
        let mut keys = Vec::new();
        for row in rows {
            let mut row = row.into_iter();
            let mut next = || row.next();
            match asked {
                Statement::Due | Statement::DueCalls => {
                    let found = match next()?.number()? {
                        MINE => &mut self.jobs,
                        OTHERS_OUT => &mut self.others_out,
                        _ => &mut self.lanes,
                    };
                    found.push(next()?.text()?);
                }
                Statement::Around => {
                    self.first = Timestamp(unsigned(next()?.number()?));
                    self.strangers = next()?.number()? != 0;
                    self.count = unsigned(next()?.number()?);
                }
                Statement::Walk => {
                    let (name, state) = (next()?.text()?, next()?.bytes()?);
                    keys.push((name, state, Timestamp(unsigned(next()?.number()?))));
                }
                Statement::Offered | Statement::RowsOut => self.jobs.push(next()?.text()?),
                Statement::Settings => {
                    self.overrides.0 = next()?.number()?;
                    // Where there is none, there is an edition all the same.
                    if let (Some(name), Some(text)) = (next()?.text(), next()?.text()) {
                        self.overrides.1.push((name, text));
                    }
                }
                _ => self.count = unsigned(next()?.number()?),
            }
        }
        if asked == Statement::Walk {
            self.idle = idle(keys, after);
        }
        Some(())
    }

    /// Whether most of the keys that were looked at have nothing used: then it is so with the next ones too.
    pub(super) fn is_mostly_idle(&self) -> bool {
        self.idle.len() > IDLE / 2
    }
}

/// Of keys that lie behind `after`, those with nothing used. `after` is moved on to the last of them; where no more
/// follow, to before the first.
fn idle(keys: Vec<(String, Vec<u8>, Timestamp)>, after: &mut String) -> Vec<String> {
    let last = keys.last().filter(|_| keys.len() == IDLE);
    *after = last.map(|(name, ..)| name.clone()).unwrap_or_default();
    let is_idle = |state: &[u8], now| {
        let state = KeyState::unpack(state);
        state.is_some_and(|(state, _)| state.idle(now))
    };
    let idle = keys
        .into_iter()
        .filter(|(_, state, now)| is_idle(state, *now));
    idle.map(|(name, ..)| name).collect()
}

impl Need {
    pub(super) fn to_write() -> Need {
        let writes = true;
        Need {
            writes,
            ..Need::default()
        }
    }

    pub(super) fn first(first: First) -> Need {
        Need {
            first: Some(first),
            ..Need::default()
        }
    }

    /// This operation is part of the transaction too.
    pub(super) fn add(&mut self, one: &Need, found: &Findings) {
        let rows = [&found.jobs, &found.others_out];
        self.jobs.extend(rows.into_iter().flatten().cloned());
        self.jobs.extend(one.jobs.iter().cloned());
        self.names
            .extend(found.idle.iter().chain(&one.names).cloned());
        self.numbers.extend(one.numbers.iter().cloned());
        self.overrides.extend(one.overrides.iter().cloned());
        self.writes |= one.writes;
    }

    pub(super) fn job(&mut self, job: &str) {
        self.jobs.insert(job.to_owned());
    }

    pub(super) fn name(&mut self, name: String) {
        self.names.insert(name);
    }

    pub(super) fn number(&mut self, name: &str) {
        self.numbers.insert(name.to_owned());
    }

    pub(super) fn written(&mut self, name: String) {
        self.number(OVERRIDES);
        self.overrides.insert(name);
    }

    pub(super) fn change(&mut self, change: &Change) {
        if let Some((name, _)) = record::written(change) {
            self.written(name);
        }
        match change {
            Change::Until { job, .. } | Change::Own { job, .. } => self.job(job),
            Change::Offer { claimed } => self.job(&claimed.job),
            Change::Adopt { claimed, .. } => {
                self.claimed(claimed);
                if claimed.generation == Gen::ADOPTED {
                    self.number(ADOPTED);
                }
            }
            Change::Shut { key, .. } | Change::Unused { key } => {
                self.name(record::name(Space::Job, key));
            }
            Change::Paused { queue, .. } => self.number(&fleet::paused(queue)),
            Change::Clear => self.number(OVERRIDES),
            Change::Doubt { .. }
            | Change::Came { .. }
            | Change::Moved { .. }
            | Change::Holds { .. }
            | Change::Override { .. }
            | Change::Setting { .. } => {}
        }
    }

    /// A job without a row may be first in line under keys at which it pays more than others.
    pub(super) fn end(&mut self, end: &End) {
        self.job(&end.job);
        let priced = end.limited.iter().filter(|one| one.cost.pays.get() > 1);
        self.names
            .extend(priced.map(|one| record::name(one.space, &one.key)));
    }

    pub(super) fn claimed(&mut self, claimed: &Claimed) {
        self.job(&claimed.job);
        let limited = claimed.limited.iter();
        self.names
            .extend(limited.map(|one| record::name(one.space, &one.key)));
    }
}

/// A database, for one caller at a time. After an error nothing is left open once it was told to abandon.
pub(crate) trait Database: Send {
    /// What has to be known before a transaction begins.
    fn first(&mut self, first: &First)
    -> impl Future<Output = Result<Findings, StoreError>> + Send;

    /// Begins a transaction and brings what it is about, locked.
    fn begin(&mut self, need: &Need) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Writes what changed, tells the news, and ends the transaction.
    fn commit(&mut self, page: &Page) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a transaction that failed, if one is open.
    fn abandon(&mut self) -> impl Future<Output = ()> + Send;
}
