//! What is written, as arrays: a statement for all rows.

use tokio_postgres::types::ToSql;

use super::super::NUMBER_LASTS;
use super::super::sql::{Flat, Page, number};

/// Rows to write, by column.
#[derive(Default)]
pub(super) struct RowColumns {
    pub(super) job: Vec<String>,
    claim_number: Vec<i64>,
    is_out: Vec<bool>,
    until: Vec<i64>,
    owner: Vec<String>,
    lasts: Vec<i64>,
    lane: Vec<String>,
    claim: Vec<String>,
    limits: Vec<String>,
    taken: Vec<Vec<u8>>,
    names: Vec<String>,
    started: Vec<Option<i64>>,
}

impl RowColumns {
    /// Those, and the jobs whose rows go.
    pub(super) fn of(page: &Page) -> (RowColumns, Vec<&str>) {
        let (mut all, mut gone) = (RowColumns::default(), Vec::new());
        for (job, row) in page.rows() {
            let Some(row) = row else {
                gone.push(job);
                continue;
            };
            let names: Vec<&str> = row.slots.iter().map(|slot| &*slot.key).collect();
            all.names.push(names.join("\n"));
            let flat = Flat::of(row);
            all.job.push(flat.job);
            all.claim_number.push(flat.claim_number);
            all.is_out.push(flat.is_out);
            all.until.push(flat.until);
            all.owner.push(flat.owner);
            all.lasts.push(flat.lasts);
            all.lane.push(flat.lane);
            all.claim.push(flat.claim);
            all.limits.push(flat.limits);
            all.taken.push(flat.taken);
            all.started.push(flat.started);
        }
        (all, gone)
    }

    pub(super) fn with(&self) -> [&(dyn ToSql + Sync); 12] {
        [
            &self.job,
            &self.claim_number,
            &self.is_out,
            &self.until,
            &self.owner,
            &self.lasts,
            &self.lane,
            &self.claim,
            &self.limits,
            &self.taken,
            &self.names,
            &self.started,
        ]
    }
}

/// NumberColumns to write, by column.
#[derive(Default)]
pub(super) struct NumberColumns<'a> {
    pub(super) names: Vec<&'a str>,
    values: Vec<i64>,
    versions: Vec<i64>,
    put_at: Vec<i64>,
    ends: Vec<i64>,
}

impl<'a> NumberColumns<'a> {
    pub(super) fn of(page: &'a Page) -> NumberColumns<'a> {
        let mut all = NumberColumns::default();
        for (name, one) in page.numbers() {
            all.names.push(name);
            all.values.push(one.value);
            all.versions.push(number(one.version));
            all.put_at.push(number(one.put_at.0));
            all.ends.push(number(page.now().plus(NUMBER_LASTS).0));
        }
        all
    }

    pub(super) fn with(&self) -> [&(dyn ToSql + Sync); 5] {
        [
            &self.names,
            &self.values,
            &self.versions,
            &self.put_at,
            &self.ends,
        ]
    }
}

/// Limits and settings to write, by column, and those that are taken away.
#[derive(Default)]
pub(super) struct OverrideColumns<'a> {
    pub(super) names: Vec<&'a str>,
    texts: Vec<&'a str>,
    ends: Vec<Option<i64>>,
    pub(super) gone: Vec<&'a str>,
}

impl<'a> OverrideColumns<'a> {
    pub(super) fn of(page: &'a Page) -> OverrideColumns<'a> {
        let mut all = OverrideColumns::default();
        for (name, written) in page.overridden() {
            let Some(one) = written else {
                all.gone.push(name);
                continue;
            };
            all.names.push(name);
            all.texts.push(&one.text);
            all.ends.push(one.ends.map(|at| number(at.0)));
        }
        all
    }

    pub(super) fn with(&self) -> [&(dyn ToSql + Sync); 3] {
        [&self.names, &self.texts, &self.ends]
    }
}
