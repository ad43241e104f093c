//! Each operation of the store, as the guard does it.

use std::pin::Pin;

use tokio::time::Instant;

use super::guarded::Guard;
use super::lost::Lost;
use super::state::Untold;
use crate::{
    Answer, Change, Claimed, CountOf, End, Gen, KeyStates, Ledger, LedgerExt, LooksAfter, Number,
    Row, RowsOf, Step, StoreError, StoreFacts, Taken, Wake, Wish,
};
use ojs_limit::{Key, Reserved, Space, Timestamp};

/// Whether the store cannot keep what it was told: nothing was done, and nothing will be however often it is told.
fn is_unfit<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Unfit(_)))
}

impl Ledger for Guard {
    /// While it is lost this is the clock of what answers for it: what is known of the server's moves with each
    /// answer to whoever tries whether it is back, and each start would seem early or late by that.
    fn at(&self, moment: Instant) -> Timestamp {
        match &*self.alone.load() {
            Some(clock) => clock.at(moment),
            None => self.inner.at(moment),
        }
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        if asks.is_empty() {
            // Answers without a question say nothing of the store.
            return Answer::now(Taken::default());
        }
        Answer::later(self.take_guarded(asks, want))
    }

    /// What is granted by a store that may have forgotten something could be too much, and while it is lost
    /// nothing is granted ahead.
    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        Answer::later(async move {
            let there = async {
                self.make_sure().await?;
                self.inner.reserve(wish).await
            };
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        Answer::later(async move {
            let there = self.inner.back(job, generation);
            let mut alone = false;
            let here = async |lost: &Lost| {
                alone = true;
                lost.local.back(job, generation).await
            };
            let back = self.ask(there, here).await;
            let mut state = self.state.lock();
            if (back.is_err() && !is_unfit(&back)) || alone {
                // There it is out still, with its slots.
                state.doubt.insert(job.into(), generation);
            }
            if let Some(counted) = &state.counted {
                drop(counted.back(job, generation));
            }
            state.is_over(job, generation);
            back
        })
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.end_all(ends);
            let mut is_alone = false;
            let here = async |lost: &Lost| {
                is_alone = true;
                lost.local.end_all(ends).await
            };
            let ended = self.ask(there, here).await;
            let is_untold = is_alone || (ended.is_err() && !is_unfit(&ended));
            let now = self.inner.now();
            let mut state = self.state.lock();
            let mut unheard = Vec::new();
            if let Some(counted) = &state.counted {
                drop(counted.end_all(ends));
            }
            for End { job, claim, .. } in ends {
                let own = state.end_own(job, |own| own.ends_with(*claim));
                let is_of_job = |row: &&Row| row.claimed.job == *job;
                let there = ended.as_ref().ok().map(|rows| rows.iter().find(is_of_job));
                if is_untold {
                    // Its slots would be taken until it is overdue; a sibling's too. Where any claim ends, those to
                    // come are above the time.
                    let was = own.as_ref().map(|row| row.claimed.generation);
                    state.is_untold(Untold {
                        job: job.clone(),
                        claim: claim.or(was).unwrap_or(Gen(now.0)),
                        was_out: own.as_ref().is_some_and(Row::is_out),
                    });
                }
                // What was sent twice was done the first time, and nobody heard of it.
                let own = own.filter(Row::is_out);
                unheard.extend(own.filter(|_| matches!(there, Some(None))));
            }
            drop(state);
            Ok(ended?.into_iter().chain(unheard).collect())
        })
    }

    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        Answer::later(async move {
            let mut due = self.look(which, max).await;
            if matches!(due, Err(StoreError::Wiped)) {
                // The others wait for our rows, so they are put back at once.
                due = self.look(which, max).await;
            }
            due
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        Answer::later(async move {
            let there = async {
                // A start that may have been done is undone first: what is out cannot be offered.
                if changes
                    .iter()
                    .any(|one| matches!(one, Change::Offer { .. }))
                {
                    self.make_sure().await?;
                }
                self.inner.set_all(changes.clone()).await
            };
            let here = async |lost: &Lost| match changes.iter().any(Change::is_kept_for_all) {
                true => lost.keeps_nothing(),
                false => lost.local.set_all(changes.clone()).await,
            };
            let done = self.ask(there, here).await?;
            if done {
                let (now, mut state) = (self.now(), self.state.lock());
                changes.iter().for_each(|change| state.changed(change, now));
            }
            Ok(done)
        })
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        Answer::later(async move {
            let there = self.inner.states(keys);
            self.ask(there, async |lost| lost.local.states(keys).await)
                .await
        })
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        Answer::later(async move {
            let there = self.inner.rows(which);
            match which {
                RowsOf::Job(job) => self.row_of(job, there).await,
                // Of siblings nothing is known here.
                _ => {
                    self.ask(there, async |lost| lost.local.rows(which).await)
                        .await
                }
            }
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        Answer::later(async move {
            let there = self.inner.count_rows(which);
            self.ask(there, async |lost| lost.local.count_rows(which).await)
                .await
        })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        Answer::later(async move {
            let there = self.inner.number(name, step);
            self.ask(there, async |lost| lost.closed()).await
        })
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async {
            tokio::select! {
                wake = self.inner.wake() => wake,
                () = self.turned.notified() => Wake::All,
            }
        })
    }

    fn facts(&self) -> StoreFacts<'_> {
        let standing = self.inner.facts();
        StoreFacts {
            is_shared: true,
            is_alone: standing.is_alone && self.sees_others(),
            ..standing
        }
    }
}
