//! What is written: a statement for all that is new in a table, which is given as columns.

use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Statement};

use super::super::super::sql::{Flat, Page, SILENCE, clear, keys_of, number, over};
use super::super::super::{HOLDS_LAST, NUMBER_LASTS, Number};
use super::{Failed, Session, literal, news};

/// Limits set over HTTP are kept this long after their end, for whoever looks at them.
const DAY: u64 = 24 * 3600 * 1_000_000;

/// One column of all rows.
fn column<'a, R, V>(rows: &'a [R], value: impl Fn(&'a R) -> V) -> Vec<V> {
    rows.iter().map(value).collect()
}

impl Session {
    /// What changed and the commit are sent at once, in this order.
    pub(in super::super) async fn commit(&mut self, page: &Page) -> Result<(), Failed> {
        if !self.begun {
            return Ok(());
        }
        let (edition, rows, keys, numbers, holds, overrides, said, time, beat, ended) = tokio::join! {
            biased;
            self.begin_edition(page),
            self.write_rows(page),
            self.write_keys(page),
            self.write_numbers(page),
            self.write_holds(page),
            self.write_overrides(page),
            self.say(page),
            async { if page.beats { self.keep_time().await } else { Ok(()) } },
            self.beat(page),
            self.client.batch_execute("COMMIT"),
        };
        // The first that failed says why. A commit after an error is none, and does not say so.
        for done in [
            edition, rows, keys, numbers, holds, overrides, said, time, beat, ended,
        ] {
            done?;
        }
        self.begun = false;
        Ok(())
    }

    /// Writes what is new, and takes away what is gone.
    async fn put_and_drop(
        &self,
        put: Option<&Statement>,
        with: &[&(dyn ToSql + Sync)],
        drop: &Statement,
        gone: &[&str],
    ) -> Result<(), Error> {
        let drop = (!gone.is_empty()).then_some(drop);
        let gone: [&(dyn ToSql + Sync); 1] = [&gone];
        let (put, dropped) = tokio::join! {
            biased;
            self.ask(put, with),
            self.ask(drop, &gone),
        };
        put.and(dropped).map(|_| ())
    }

    async fn write_rows(&self, page: &Page) -> Result<(), Error> {
        let (mut rows, mut names, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (job, row) in page.rows() {
            let Some(row) = row else {
                gone.push(job);
                continue;
            };
            names.push(keys_of(row).collect::<Vec<_>>().join("\n"));
            rows.push(Flat::of(row));
        }
        let with: [&(dyn ToSql + Sync); 12] = [
            &column(&rows, |row| &*row.job),
            &column(&rows, |row| row.claim_number),
            &column(&rows, |row| row.is_out),
            &column(&rows, |row| row.until),
            &column(&rows, |row| &*row.owner),
            &column(&rows, |row| row.lasts),
            &column(&rows, |row| &*row.lane),
            &column(&rows, |row| &*row.claim),
            &column(&rows, |row| &*row.limits),
            &column(&rows, |row| &*row.taken),
            &names,
            &column(&rows, |row| row.started),
        ];
        let these = &self.statements;
        let put = (!rows.is_empty()).then_some(&these.put_rows);
        self.put_and_drop(put, &with, &these.drop_rows, &gone).await
    }

    async fn write_keys(&self, page: &Page) -> Result<(), Error> {
        let (mut names, mut states, mut idle) = (Vec::new(), Vec::new(), Vec::new());
        for (name, state) in page.keys() {
            match state {
                Some(state) => {
                    names.push(name);
                    states.push(state.pack(page.now()));
                }
                None => idle.push(name),
            }
        }
        let these = &self.statements;
        let put = (!names.is_empty()).then_some(&these.put_keys);
        self.put_and_drop(put, &[&names, &states], &these.drop_keys, &idle)
            .await
    }

    async fn write_numbers(&self, page: &Page) -> Result<(), Error> {
        let all: Vec<(&str, &Number)> = page.numbers().collect();
        let put = (!all.is_empty()).then_some(&self.statements.put_numbers);
        let with: [&(dyn ToSql + Sync); 5] = [
            &column(&all, |(name, _)| *name),
            &column(&all, |(_, one)| one.value),
            &column(&all, |(_, one)| number(one.version)),
            &column(&all, |(_, one)| number(one.put_at.0)),
            &number(page.now().plus(NUMBER_LASTS).0),
        ];
        self.ask(put, &with).await.map(|_| ())
    }

    async fn write_holds(&self, page: &Page) -> Result<(), Error> {
        let held = page.holds.iter();
        let (queues, jobs): (Vec<&str>, Vec<i64>) =
            held.map(|(queue, jobs)| (&**queue, number(*jobs))).unzip();
        let put = (!queues.is_empty()).then_some(&self.statements.put_holds);
        let (me, at) = (&*page.me, number(page.now().0));
        let with: [&(dyn ToSql + Sync); 4] = [&me, &queues, &jobs, &at];
        self.ask(put, &with).await.map(|_| ())
    }

    async fn write_overrides(&self, page: &Page) -> Result<(), Error> {
        let (mut all, mut gone) = (Vec::new(), Vec::new());
        for (name, written) in &page.overridden {
            match written {
                Some(one) => all.push(one),
                None => gone.push(name.as_str()),
            }
        }
        let with: [&(dyn ToSql + Sync); 3] = [
            &column(&all, |one| &*one.name),
            &column(&all, |one| &*one.text),
            &column(&all, |one| one.ends.map(|at| number(at.0))),
        ];
        let these = &self.statements;
        let put = (!all.is_empty()).then_some(&these.put_overrides);
        self.put_and_drop(put, &with, &these.drop_overrides, &gone)
            .await
    }

    async fn say(&self, page: &Page) -> Result<(), Error> {
        let news = page.news.iter().map(|text| news(&page.me, text));
        let news: Vec<String> = news.collect();
        let say = (!news.is_empty()).then_some(&self.statements.say);
        let with: [&(dyn ToSql + Sync); 2] = [&self.namespace, &news];
        self.ask(say, &with).await.map(|_| ())
    }

    /// Another edition of limits and settings begins, if that is to be; of all that there is where it is cleared.
    async fn begin_edition(&self, page: &Page) -> Result<(), Error> {
        if !page.is_new_edition() {
            return Ok(());
        }
        let clear = match page.is_cleared {
            true => clear(),
            false => String::new(),
        };
        let text = format!("{clear} UPDATE meta SET edition = edition + 1");
        self.client.batch_execute(&text).await
    }

    /// Writes down that we live, and forgets what nothing speaks of any more. What another sidecar is at
    /// is left to it.
    async fn beat(&self, page: &Page) -> Result<(), Error> {
        if !page.beats {
            return Ok(());
        }
        let now = page.now();
        let before = |past: u64| number(now.0.saturating_sub(past));
        let (ended, long_ended, silent) = (before(0), before(DAY), before(SILENCE));
        let unsaid = before(HOLDS_LAST);
        let (me, now) = (literal(&page.me), number(now.0));
        let over = over("greatest", &now.to_string());
        let some = "FOR UPDATE SKIP LOCKED LIMIT 1000";
        self.client
            .batch_execute(&format!(
                "INSERT INTO live VALUES ({me}, {now})
                 ON CONFLICT (owner) DO UPDATE SET seen = excluded.seen;
                 DELETE FROM rows WHERE job IN ({over} FOR UPDATE OF rows SKIP LOCKED);
                 DELETE FROM numbers WHERE name IN (
                     SELECT name FROM numbers WHERE ends <= {ended} {some});
                 DELETE FROM overrides WHERE name IN (
                     SELECT name FROM overrides WHERE ends < {long_ended} {some});
                 DELETE FROM holds WHERE (queue, owner) IN (
                     SELECT queue, owner FROM holds WHERE at < {unsaid} {some});
                 DELETE FROM live WHERE owner IN (
                     SELECT owner FROM live WHERE seen < {silent} AND NOT EXISTS (
                         SELECT 1 FROM rows WHERE rows.owner = live.owner) {some})"
            ))
            .await
    }
}
