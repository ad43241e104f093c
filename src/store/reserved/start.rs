//! Jobs start in the turns of their keys, and turns are asked for ahead.

use super::layer::ReservedStore;
use super::turns::{AHEAD, Next};
use crate::{Claimed, Ledger, LedgerExt, Row, StoreError, Taken, Verdict, Wish};
use ojs_limit::{EARLY, Limited, Refusal, Reserved, Strategy, Timestamp};

impl ReservedStore {
    /// Asks for jobs in their order; those that follow each other and go the same way go together. Once some have started,
    /// the store is asked nothing more: they would leave later than they count. The others have no verdict.
    pub(super) async fn take_each(
        &self,
        asks: &[&Claimed],
        want: usize,
    ) -> Result<Taken, StoreError> {
        let can = self.can_reserve();
        let mut all = Taken {
            verdicts: Vec::with_capacity(asks.len()),
            ended: self.end_older(asks).await?,
            served: Vec::new(),
        };
        if want == 0 {
            // Rows of others end there, whatever limits the job.
            all.extend(self.inner.take(asks, 0).await?);
            return Ok(all);
        }
        let ways: Vec<bool> = {
            let state = self.state.lock();
            let may_start = |ask: &Claimed| can && state.is_reserved(&ask.limited);
            let is_there = |ask: &Claimed| self.inner.has_row(&ask.job);
            // Of what is out here the store knows nothing.
            let is_out = |ask: &Claimed| state.row(&ask.job).is_some();
            let goes_here = |ask: &&Claimed| is_out(ask) || (may_start(ask) && !is_there(ask));
            asks.iter().map(goes_here).collect()
        };
        let mut left = want;
        let mut first = 0;
        while let Some(here) = ways.get(first) {
            let same = ways.iter().skip(first).take_while(|way| *way == here);
            let run = asks.get(first..first + same.count()).unwrap_or_default();
            first += run.len();
            let taken = match here {
                true => self.take_here(run, left, want).await?,
                false if left < want => break,
                false => self.inner.take(run, left).await?,
            };
            left = left.saturating_sub(taken.started());
            all.extend(taken);
        }
        Ok(all)
    }

    /// Ends the rows of older claims of these jobs: those that are kept here, and in the store those of jobs whose
    /// limits are reserved, so that their new claims are kept here. `take` ends the others.
    async fn end_older(&self, asks: &[&Claimed]) -> Result<Vec<Row>, StoreError> {
        let (mut ended, there) = {
            let mut state = self.state.lock();
            let ended = state.end_older(asks);
            let is_here = |ask: &&&Claimed| state.is_reserved(&ask.limited);
            let is_older = |ask: &&&Claimed| {
                let out = self.inner.claim_of(&ask.job);
                out.is_some_and(|claim| claim < ask.generation)
            };
            let there = asks.iter().filter(is_here).filter(is_older);
            (ended, there.collect::<Vec<&&Claimed>>())
        };
        for ask in there {
            ended.extend(self.inner.end(&ask.job, Some(ask.generation)).await?);
        }
        Ok(ended)
    }

    /// Starts at most `left` jobs. Where that is fewer than `want`, others of this call have started already, and the store
    /// is asked nothing more.
    async fn take_here(
        &self,
        asks: &[&Claimed],
        mut left: usize,
        want: usize,
    ) -> Result<Taken, StoreError> {
        let mut verdicts = Vec::with_capacity(asks.len());
        for (nth, ask) in asks.iter().enumerate() {
            let known = self
                .state
                .lock()
                .row(&ask.job)
                .map(|row| Verdict::by_row(row, ask));
            let verdict = if let Some(known) = known {
                known
            } else if left == 0 {
                Verdict::Unasked
            } else {
                let same = asks.iter().skip(nth).filter(|other| same_key(ask, other));
                match left < want {
                    true => self.start_at_once(ask),
                    false => self.start(ask, same.count().min(left)).await?,
                }
            };
            left -= usize::from(verdict.is_started());
            verdicts.push(verdict);
        }
        Ok(Taken {
            verdicts,
            ..Taken::default()
        })
    }

    /// Starts a job in the next turn of its key.
    async fn start(&self, ask: &Claimed, wanted: usize) -> Result<Verdict, StoreError> {
        let Some(limited) = ask.limited.first() else {
            return Ok(Verdict::Unasked);
        };
        loop {
            let answered = self.answered.notified();
            let mut answered = std::pin::pin!(answered);
            answered.as_mut().enable();
            let now = self.now();
            let next = self.state.lock().turns(limited).next(wanted, now);
            match next {
                Next::Asked => answered.await,
                Next::Ask(want) if self.ask(limited, want).await => {}
                Next::Ask(_) | Next::AskForStart => {
                    let taken = self.inner.take(&[ask], 1).await?;
                    let verdict = taken.verdicts.into_iter().next();
                    return Ok(verdict.unwrap_or(Verdict::Unasked));
                }
                known => return Ok(self.verdict(ask, limited, known, now)),
            }
        }
    }

    /// Starts a job in a turn that is there already.
    fn start_at_once(&self, ask: &Claimed) -> Verdict {
        let now = self.now();
        let limited = ask.limited.first();
        let next = limited.and_then(|limited| self.state.lock().turns(limited).known(now));
        match limited.zip(next) {
            Some((limited, next)) => self.verdict(ask, limited, next, now),
            None => Verdict::Unasked,
        }
    }

    /// What becomes of a job for which the store need not be asked.
    fn verdict(&self, ask: &Claimed, limited: &Limited, next: Next, now: Timestamp) -> Verdict {
        match next {
            Next::Go(turn) => self.state.lock().started(ask, limited, turn, now),
            Next::Wait(from) => wait(limited, from),
            Next::Refused(why, until) => refused(limited, why, until),
            Next::Ask(_) | Next::Asked | Next::AskForStart => Verdict::Unasked,
        }
    }

    /// Asks the store for turns; `false`: it gave no answer.
    async fn ask(&self, limited: &Limited, want: usize) -> bool {
        let unused = {
            let now = self.now();
            let mut state = self.state.lock();
            let (count, unused) = state.turns(limited).take_unused(now);
            state.unused += count as u64;
            unused
        };
        // If nobody waits for the answer any more, others do.
        let mut asking = Asking {
            store: self,
            limited,
            reserved: None,
        };
        let wish = Wish {
            limited,
            want,
            ahead: AHEAD,
            unused: &unused,
        };
        asking.reserved = self.inner.reserve(wish).await.ok();
        asking.reserved.is_some()
    }
}

/// A question for turns that is on its way.
struct Asking<'a> {
    store: &'a ReservedStore,
    limited: &'a Limited,
    reserved: Option<Reserved>,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let (now, doubt) = (self.store.now(), self.store.inner.facts().doubt);
        let mut state = self.store.state.lock();
        let reserved = self.reserved.as_ref();
        let granted = reserved.map_or(0, |reserved| reserved.turns.len());
        state.granted += granted as u64;
        state
            .turns(self.limited)
            .answered(self.reserved.take(), doubt, now);
        drop(state);
        self.store.answered.notify_waiters();
    }
}

fn same_key(one: &Claimed, other: &Claimed) -> bool {
    let key = |claimed: &Claimed| claimed.limited.first().map(|limited| limited.key.clone());
    key(one) == key(other)
}

/// A turn of ours comes then.
fn wait(limited: &Limited, from: Timestamp) -> Verdict {
    let limits = &limited.limits;
    let (strategy, limit) = match (limits.throttle, limits.rates.first()) {
        (Some(throttle), _) => (Strategy::Throttle, throttle.limit.get()),
        (None, rate) => (Strategy::Rate, rate.map_or(0, |rate| rate.limit.get())),
    };
    let why = Refusal {
        strategy,
        limit,
        current: limit,
        at: Some(from.plus(EARLY)),
        slot: false,
    };
    refused(limited, why, from)
}

/// It is asked again from `until` on.
fn refused(limited: &Limited, why: Refusal, until: Timestamp) -> Verdict {
    Verdict::Refused {
        which: 0,
        at: Some(until.plus(EARLY)),
        why,
        action: limited.on_limit,
    }
}
