//! What a transaction ends with: all that changed, and what only beats write.

use tokio_postgres::Error;

use super::super::super::sql::{Page, SqlValue, Statement, clear};
use super::super::failed::Failed;
use super::super::statements::dialect;
use super::super::together::all_at_once;
use super::Session;

impl Session {
    /// What changed and the commit are sent at once, in this order.
    pub(in super::super) async fn commit(&mut self, page: &Page) -> Result<(), Failed> {
        if !self.begun {
            return Ok(());
        }
        let writes = page.writes(&dialect());
        let writes = writes.iter().map(|(told, rows)| self.tell(*told, rows));
        let (edition, written, time, beat, ended) = tokio::join! {
            biased;
            self.begin_edition(page),
            all_at_once(writes),
            async { if page.beats { self.keep_time().await } else { Ok(()) } },
            self.beat(page),
            self.client.batch_execute("COMMIT"),
        };
        // The first that failed says why. A commit after an error is none, and does not say so.
        edition?;
        for done in written {
            done?;
        }
        for done in [time, beat, ended] {
            done?;
        }
        self.begun = false;
        Ok(())
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
        let alive = [vec![SqlValue::from(&*page.me), page.now().0.into()]];
        let sweep = dialect().sweep(page.now());
        let (lives, swept) = tokio::join! {
            biased;
            self.tell(Statement::PutLive, &alive),
            self.client.batch_execute(&sweep),
        };
        lives.and(swept)
    }
}
