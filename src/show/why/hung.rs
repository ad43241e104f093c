//! Jobs and calls that run far longer than those of their key did before: they may hang. A worker that sends heartbeats
//! keeps its slot for ever, so no run time says when that is free.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::time::Duration;

use crate::desk::Sidecar;
use crate::desk::runs::may_hang_from;
use crate::inquiry::shape::LimitView;
use crate::limit::{Refusal, Strategy};
use crate::store::Row;
use crate::told::causes::{self, Cause, named, quoted};

/// With fewer run times nothing is said.
const LEAST: usize = 20;
/// So many workers are named.
const NAMED: usize = 5;

/// The jobs and calls of a key of which the run times say that they may hang.
pub(crate) struct Hung {
    jobs: usize,
    /// How many of them are calls.
    calls: usize,
    /// How many slots of the key they have.
    pub(super) slots: u32,
    /// For how long the last of them has run.
    age: Duration,
    /// From which age on a job is one of them.
    limit: Duration,
    /// How long half of the last jobs ran at most.
    usual: Duration,
    workers: BTreeSet<String>,
    /// The key, as a sentence names it.
    what: String,
}

impl Hung {
    /// Whether such jobs may be why this is refused.
    pub(in crate::show) fn may_keep(refusal: &Refusal) -> bool {
        refusal.strategy == Strategy::Concurrency && refusal.limit > 0
    }

    /// Looks at the jobs that have a slot of a key. `None`: none of them runs longer than may be.
    pub(crate) fn among(sidecar: &Sidecar, view: &LimitView, rows: &[Row]) -> Option<Hung> {
        let limited = &view.limited;
        let mut runs = sidecar.settle.runs.of(limited.space, &limited.key);
        runs.sort_unstable();
        let mut hung = Hung {
            jobs: 0,
            calls: 0,
            slots: 0,
            age: Duration::MAX,
            limit: may_hang_from(&runs),
            usual: *runs.get(runs.len() / 2)?,
            workers: BTreeSet::new(),
            what: named(limited.space, &view.name),
        };
        for row in rows {
            let mut limits = row.claimed.limited.iter();
            let one = limits.find(|one| one.shares_key(limited));
            let Some((one, since)) = one.zip(row.started) else {
                continue;
            };
            let age = Duration::from_micros(view.now.since(since));
            if hung.has(age) {
                hung.jobs += 1;
                hung.calls += usize::from(row.claimed.egress().is_some());
                hung.slots = hung.slots.saturating_add(one.cost.pays.get());
                hung.age = hung.age.min(age);
                let job = &row.claimed.job;
                let unnamed = || match row.claimed.egress() {
                    Some(egress) => format!("{job} of {}", quoted(egress)),
                    None => format!("that of {job}"),
                };
                let worker = row.claimed.worker.as_deref();
                hung.workers.insert(worker.map_or_else(unnamed, quoted));
            }
        }
        (runs.len() >= LEAST && hung.jobs > 0).then_some(hung)
    }

    /// Whether a job of this age is one of them.
    pub(super) fn has(&self, age: Duration) -> bool {
        age > self.limit
    }

    /// What is said in place of that the slots are taken.
    pub(crate) fn cause(&self) -> Cause {
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let workers = self.workers();
        let (whom, free) = match self.calls == self.jobs {
            true => (
                "the service",
                "the slot of a call is free when its answer ends, or its caller hangs up",
            ),
            false => (&*workers, "its slots are free after the visibility timeout"),
        };
        let known: [(&str, &dyn Display); 7] = [
            ("jobs", &self.jobs),
            ("whom", &whom),
            ("free", &free),
            ("age", &seconds(self.age)),
            ("usual", &seconds(self.usual)),
            ("workers", &workers),
            ("what", &self.what),
        ];
        Cause::new(&causes::HUNG, &known)
    }

    /// Their workers by name, and calls by their ids.
    pub(super) fn workers(&self) -> String {
        let names = self.workers.iter().take(NAMED);
        let names = names.map(String::as_str).collect::<Vec<_>>().join(" and ");
        match self.workers.len().saturating_sub(NAMED) {
            0 => names,
            others => format!("{names} and {others} more"),
        }
    }
}
