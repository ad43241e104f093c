//! What a database has to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::fleet;
use super::super::record::{self, Written};
use super::super::{Change, Claimed, Gen, StoreError};
use super::page::{Head, Page};
use super::steps::ADOPTED;
use crate::limit::{Space, Timestamp};

/// So many keys are looked at in one transaction for whether anything of them is used. Each that is not is
/// locked until it is forgotten, and a server has room for some thousands of locks, for all its programs.
pub(in crate::store) const IDLE: usize = 500;

/// What a transaction is about. Sorted: all lock in this order.
#[derive(Default, Debug)]
pub(in crate::store) struct Need {
    pub(in crate::store) jobs: BTreeSet<String>,
    /// Keys, by [`record::name`]; those that the rows have slots of come by themselves.
    pub(in crate::store) names: BTreeSet<String>,
    pub(in crate::store) numbers: BTreeSet<String>,
    /// Whether anything may be changed; else nothing has to be locked.
    pub(in crate::store) writes: bool,
}

impl Need {
    pub(super) fn job(&mut self, job: &str) {
        self.jobs.insert(job.to_owned());
    }

    pub(super) fn name(&mut self, name: String) {
        self.names.insert(name);
    }

    pub(super) fn number(&mut self, name: &str) {
        self.numbers.insert(name.to_owned());
    }

    pub(super) fn change(&mut self, change: &Change) {
        match change {
            Change::Until { job, .. } | Change::Own { job, .. } => self.job(job),
            Change::Offer { claimed } => self.job(&claimed.job),
            Change::Adopt { claimed, .. } => {
                self.claimed(claimed);
                if claimed.generation == Gen::ADOPTED {
                    self.number(ADOPTED);
                }
            }
            Change::Shut { key, .. } | Change::Open { key, .. } | Change::Unused { key } => {
                self.name(record::name(Space::Job, key));
            }
            Change::Paused { queue, .. } => self.number(&fleet::paused(queue)),
            Change::Doubt { .. }
            | Change::Holds { .. }
            | Change::Override { .. }
            | Change::Setting { .. }
            | Change::Clear => {}
        }
    }

    pub(super) fn claimed(&mut self, claimed: &Claimed) {
        self.job(&claimed.job);
        let limited = claimed.limited.iter();
        self.names
            .extend(limited.map(|one| record::name(one.space, &one.key)));
    }
}

/// What was found to look after, before anything is locked: the page is asked again.
#[derive(Default, Debug)]
pub(in crate::store) struct Due {
    pub(in crate::store) mine: Vec<String>,
    pub(in crate::store) others_out: Vec<String>,
    /// Held rows of others of which nobody is left to make anything.
    pub(in crate::store) over: Vec<String>,
    /// Where others have offered rows. These need no page: who asks for such a row is told what is true then.
    pub(in crate::store) lanes: Vec<String>,
    /// Whether others have rows.
    pub(in crate::store) strangers: bool,
    /// The first time at which one of ours is due; those that were offered are no reason to look.
    pub(in crate::store) first: Timestamp,
    /// Keys with nothing used.
    pub(in crate::store) idle: Vec<String>,
    /// How many jobs were ever adopted.
    pub(in crate::store) adopted: u64,
}

/// A database, for one caller at a time. After an error nothing is left open once it was told to abandon.
pub(in crate::store) trait Books: Send {
    /// The sidecar's name.
    fn me(&self) -> Arc<str>;

    /// The time and which data these are.
    fn head(&mut self) -> impl Future<Output = Result<Head, StoreError>> + Send;

    /// Begins a transaction and brings what it is about, locked.
    fn begin(&mut self, need: &Need) -> impl Future<Output = Result<Page, StoreError>> + Send;

    /// Writes what changed, tells the news, and ends the transaction.
    fn commit(&mut self, page: &Page) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a transaction that failed, if one is open.
    fn abandon(&mut self) -> impl Future<Output = ()> + Send;

    /// What to look after: at most `max` rows that are out, at most `max` that are held (those that were
    /// offered come last), and as many that others have out.
    fn find_due(&mut self, max: usize) -> impl Future<Output = Result<Due, StoreError>> + Send;

    /// Of the next [`IDLE`] keys those with nothing used.
    fn find_idle(&mut self) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Offered rows of others in a lane.
    fn find_offered(
        &mut self,
        lane: &str,
        max: usize,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// Rows of others that are out.
    fn find_others(
        &mut self,
        max: usize,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send;

    /// How many rows we have that are out.
    fn count_out(&mut self) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// How many jobs of a queue others hold, as they said of late.
    fn others(&mut self, queue: &str) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Names and texts of limits set over HTTP.
    fn overrides(
        &mut self,
    ) -> impl Future<Output = Result<Vec<(String, String)>, StoreError>> + Send;

    /// Sets one or takes it away, and says so to the others; whether there was anything to take away. Does nothing
    /// if it is not `wanted` any more when its turn has come, as [`Books::put_back`] does.
    fn put_override(
        &mut self,
        name: &str,
        text: Option<&str>,
        ends: Option<Timestamp>,
        wanted: &(dyn Fn() -> bool + Sync),
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Sets those of which there are none by their names, and says so to the others; how many these are.
    fn put_back(
        &mut self,
        known: &[Written],
        wanted: &(dyn Fn() -> bool + Sync),
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Is counted among the living, and says which data these are. Where there are none an epoch begins;
    /// if the first that knew any knew others, nothing starts until all had time to put their rows back.
    fn join(
        &mut self,
        knew: Option<&str>,
    ) -> impl Future<Output = Result<String, StoreError>> + Send;

    /// Forgets everything but the epoch; says whether there was anything.
    fn clear(&mut self) -> impl Future<Output = Result<bool, StoreError>> + Send;
}
