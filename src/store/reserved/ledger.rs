//! Each operation of the store, where starts may have been granted ahead.

use std::pin::Pin;

use tokio::time::Instant;

use super::layer::ReservedStore;
use super::state::Ahead;
use crate::memory::first_due;
use crate::{
    Answer, Change, Claimed, CountOf, End, Gen, KeyStates, Ledger, LedgerExt, LooksAfter, Number,
    Row, RowsOf, Step, StoreFacts, Taken, Wake, Wish,
};
use ojs_limit::{Key, Reserved, Space, Timestamp};

impl Ledger for ReservedStore {
    fn at(&self, moment: Instant) -> Timestamp {
        self.inner.at(moment)
    }

    fn take<'a>(&'a self, asks: &'a [&'a Claimed], want: usize) -> Answer<'a, Taken> {
        if !self.is_used() {
            return self.inner.take(asks, want);
        }
        Answer::later(self.take_each(asks, want))
    }

    fn back<'a>(&'a self, job: &'a str, generation: Gen) -> Answer<'a, bool> {
        match self.state.lock().back(job, generation) {
            true => Answer::now(true),
            false => self.inner.back(job, generation),
        }
    }

    fn end_all<'a>(&'a self, ends: &'a [End]) -> Answer<'a, Vec<Row>> {
        let (mut there, mut ended) = (Vec::new(), Vec::new());
        {
            let mut state = self.state.lock();
            for end in ends {
                if state.row(&end.job).is_some() {
                    ended.extend(state.end(&end.job, end.claim));
                } else {
                    there.push(end.clone());
                }
            }
        }
        if there.is_empty() {
            return Answer::now(ended);
        }
        Answer::later(async move {
            ended.extend(self.inner.end_all(&there).await?);
            Ok(ended)
        })
    }

    fn due_of(&self, which: LooksAfter, max: usize) -> Answer<'_, Vec<Row>> {
        if !self.is_used() {
            return self.inner.due_of(which, max);
        }
        let rows = |ahead: &Ahead| {
            let rows = ahead.out.values().map(|out| &out.row);
            let rows = rows.filter(|row| which.has(&row.claimed));
            first_due(rows, max, self.now())
        };
        let here = rows(&self.state.lock());
        Answer::later(async move {
            self.give_back().await;
            let mut rows = self.inner.due_of(which, max).await?;
            rows.extend(here);
            Ok(rows)
        })
    }

    fn set_all(&self, changes: Vec<Change>) -> Answer<'_, bool> {
        if !self.is_used() {
            return self.inner.set_all(changes);
        }
        let (mut there, mut done) = (Vec::new(), false);
        {
            let mut state = self.state.lock();
            for change in changes {
                match state.change(&change) {
                    Some(changed) => done |= changed,
                    None => there.push(change),
                }
            }
        }
        if there.is_empty() {
            return Answer::now(done);
        }
        Answer::later(async move { Ok(self.inner.set_all(there).await? | done) })
    }

    fn states<'a>(&'a self, keys: &'a [(Space, &'a Key)]) -> Answer<'a, KeyStates> {
        self.inner.states(keys)
    }

    fn rows<'a>(&'a self, which: RowsOf<'a>) -> Answer<'a, Vec<Row>> {
        let mut here: Vec<Row> = match which {
            RowsOf::Job(job) => self.state.lock().row(job).cloned().into_iter().collect(),
            RowsOf::Out { max } => {
                let state = self.state.lock();
                let out = state.out.values().take(max);
                out.map(|out| out.row.clone()).collect()
            }
            RowsOf::Offered { .. } => Vec::new(),
        };
        if matches!(which, RowsOf::Job(_)) && !here.is_empty() {
            return Answer::now(here);
        }
        Answer::later(async move {
            here.extend(self.inner.rows(which).await?);
            if let RowsOf::Out { max } = which {
                here.truncate(max);
            }
            Ok(here)
        })
    }

    fn count_rows<'a>(&'a self, which: CountOf<'a>) -> Answer<'a, u64> {
        let here = match which {
            CountOf::Out => self.state.lock().out.len() as u64,
            CountOf::HeldByOthers(_) => 0,
        };
        Answer::later(async move { Ok(here + self.inner.count_rows(which).await?) })
    }

    fn number<'a>(&'a self, name: &'a str, step: Step) -> Answer<'a, Number> {
        self.inner.number(name, step)
    }

    fn reserve<'a>(&'a self, wish: Wish<'a>) -> Answer<'a, Reserved> {
        self.inner.reserve(wish)
    }

    fn announce<'a>(&'a self, rows: &'a [Row]) -> Answer<'a, ()> {
        self.inner.announce(rows)
    }

    fn wake(&self) -> Pin<Box<dyn Future<Output = Wake> + Send + '_>> {
        Box::pin(async move {
            let wake = self.inner.wake().await;
            if let Wake::Freed(keys) = &wake {
                self.state.lock().ask_again(keys);
            }
            wake
        })
    }

    fn facts(&self) -> StoreFacts<'_> {
        self.inner.facts()
    }
}
