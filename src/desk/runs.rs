//! How long jobs and calls ran, by key, and what that says of the next free slot.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::named::Ages;
use crate::limit::{Key, Space, Timestamp, each_key};
use crate::store::Row;

/// So many run times are kept of a key.
const RUNS_KEPT: usize = 100;
/// With fewer there is no forecast.
const LEAST: usize = 20;
/// Keys of which run times are kept; at most twice as many.
const KEYS: usize = 1_000;
/// How often the future is played through for one forecast.
const TRIALS: usize = 200;
/// More slots, and more jobs before the one that is asked about, are not played through.
const MOST_SLOTS: usize = 2_000;

/// Who runs so many times as long as the longest of the last may hang.
const TIMES: u32 = 3;
/// Who runs for less than that does not.
const SOONEST: Duration = Duration::from_secs(5);

/// From which age on a job may hang, if the last ones ran for so long.
pub(crate) fn may_hang_from<'r>(runs: impl IntoIterator<Item = &'r Duration>) -> Duration {
    let longest = runs.into_iter().max().copied().unwrap_or_default();
    SOONEST.max(longest.saturating_mul(TIMES))
}

/// The last run times of what had slots, by key.
#[derive(Default, Debug)]
pub(crate) struct RunTimes(Mutex<HashMap<Space, Ages<Key, LastRuns, KEYS>>>);

/// The last runs of one key.
#[derive(Debug)]
struct LastRuns {
    times: VecDeque<Duration>,
    /// When the last of them ended.
    ended: Timestamp,
}

impl RunTimes {
    /// The job or call of this row has ended, as its worker or the service says.
    pub(crate) fn note(&self, row: &Row, now: Timestamp) {
        let Some(started) = row.started else { return };
        let ran = Duration::from_micros(now.since(started));
        let limited = each_key(&row.claimed.limited).map(|(_, one)| one);
        for one in limited.filter(|one| one.limits.concurrency.is_some()) {
            let mut spaces = self.0.lock();
            let known = spaces.entry(one.space).or_default();
            let Some(LastRuns { times, ended }) = known.named(&one.key) else {
                let times = VecDeque::from([ran]);
                known.put(one.key.clone(), LastRuns { times, ended: now });
                continue;
            };
            if times.len() >= RUNS_KEPT {
                times.pop_front();
            }
            times.push_back(ran);
            *ended = now;
        }
    }

    /// The last run times of the jobs of a key, at most 100.
    pub(crate) fn of(&self, space: Space, key: &Key) -> Vec<Duration> {
        let spaces = self.0.lock();
        let known = spaces.get(&space).and_then(|known| known.get(key));
        let times = known.into_iter().flat_map(|runs| &runs.times);
        times.copied().collect()
    }

    /// Whether no job of a key has ended for so long that those which run may hang.
    pub(crate) fn are_overdue(&self, space: Space, key: &Key, now: Timestamp) -> bool {
        let spaces = self.0.lock();
        let runs = spaces.get(&space).and_then(|known| known.get(key));
        runs.is_some_and(|LastRuns { times, ended }| {
            Duration::from_micros(now.since(*ended)) > may_hang_from(times)
        })
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// What a key with slots looks like at one moment.
#[derive(Debug)]
pub(crate) struct KeySlots<'a> {
    /// The most jobs at once.
    pub(crate) limit: u32,
    /// Slots that are taken.
    pub(crate) active: u32,
    /// How long the running jobs have run, as far as that is known.
    pub(crate) ages: &'a [Duration],
    /// How long the last jobs ran.
    pub(crate) runs: &'a [Duration],
}

/// When a slot is there for one more job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Forecast {
    /// It is there by then in half of all cases.
    pub(crate) p50: Duration,
    /// It is there by then in nine of ten cases.
    pub(crate) p90: Duration,
}

impl KeySlots<'_> {
    /// From now until a slot is there for a job before which `ahead` others start. The future is drawn many times from
    /// the last run times.
    ///
    /// # Errors
    /// The reason why nobody can say.
    pub(crate) fn forecast(&self, ahead: usize) -> Result<Forecast, String> {
        if self.limit == 0 {
            return Err("the key is paused: it has 0 slots".into());
        }
        if self.runs.len() < LEAST {
            let known = self.runs.len();
            return Err(format!(
                "{known} jobs of this key have ended here since the start, and a forecast needs {LEAST}"
            ));
        }
        let (limit, active) = (self.limit as usize, self.active as usize);
        if limit.max(active).saturating_add(ahead) > MOST_SLOTS {
            return Err(format!(
                "there are more than {MOST_SLOTS} slots and jobs before it"
            ));
        }
        let mut runs = self.runs.to_vec();
        runs.sort_unstable();
        // How long each running job runs on is drawn from the run times that are longer than its age. One that runs
        // longer than any before goes on as if it had just begun.
        let rests: Vec<(&[Duration], Duration)> = (0..active)
            .map(|nth| {
                let age = self.ages.get(nth).copied().unwrap_or_default();
                let longer = runs.partition_point(|run| *run <= age);
                match runs.get(longer..).filter(|longer| !longer.is_empty()) {
                    Some(longer) => (longer, age),
                    None => (runs.as_slice(), Duration::ZERO),
                }
            })
            .collect();
        let mut dice = SmallRng::seed_from_u64(1);
        let mut waits: Vec<Duration> = (0..TRIALS)
            .map(|_| play(limit, &rests, ahead, &runs, &mut dice))
            .collect();
        waits.sort_unstable();
        let at = |share: usize| waits.get(TRIALS * share / 100).copied().unwrap_or_default();
        Ok(Forecast {
            p50: at(50),
            p90: at(90),
        })
    }
}

/// Draws one future: when a slot is there for the job that is asked about.
fn play(
    limit: usize,
    rests: &[(&[Duration], Duration)],
    ahead: usize,
    runs: &[Duration],
    dice: &mut impl Rng,
) -> Duration {
    let mut draw = |from: &[Duration]| from.choose(dice).copied().unwrap_or_default();
    let running = rests
        .iter()
        .map(|(from, age)| draw(from).saturating_sub(*age));
    let free = std::iter::repeat_n(Duration::ZERO, limit.saturating_sub(rests.len()));
    let mut ends: BinaryHeap<Reverse<Duration>> = running.chain(free).map(Reverse).collect();
    // After a limit was lowered the first ends free no slot.
    for _ in limit..rests.len() {
        ends.pop();
    }
    for _ in 0..ahead {
        let Some(Reverse(end)) = ends.pop() else {
            break;
        };
        ends.push(Reverse(end + draw(runs)));
    }
    ends.pop().map_or(Duration::ZERO, |Reverse(end)| end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_too_little_says_so() {
        let runs = [Duration::from_secs(1); 30];
        let mut slots = KeySlots {
            limit: 2,
            active: 2,
            ages: &[],
            runs: &runs[..19],
        };
        assert!(slots.forecast(0).unwrap_err().starts_with("19 jobs of"));
        slots.runs = &runs;
        assert_eq!(slots.forecast(0).unwrap().p90, Duration::from_secs(1));
        slots.limit = 0;
        assert!(slots.forecast(0).unwrap_err().contains("paused"));
        slots.limit = 3;
        assert_eq!(slots.forecast(0).unwrap().p90, Duration::ZERO);
        slots.limit = 1;
        assert_eq!(slots.forecast(2).unwrap().p50, Duration::from_secs(3));
        assert!(slots.forecast(MOST_SLOTS).is_err());
    }
}
