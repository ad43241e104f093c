//! What is seen of jobs that are out, and what is told of the virtual queue.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::named::Ages;
use crate::duration;
use crate::hold::{Held, HeldNow, Hold};
use crate::limit::{Key, Limited, Strategy};
use crate::policy::PolicySet;
use crate::store::{Change, LedgerExt, Store};
use crate::wire::upstream::Reply;

/// Of so many jobs, and of at most twice as many, it is known what would have become of them.
const TOLD: usize = 10_000;

/// The virtual queue of one sidecar.
#[derive(Default, Debug)]
pub(crate) struct Shadow {
    /// Told when entries come into force that may be tried.
    pub(crate) wanted: Notify,
    /// There once something is tried.
    pub(crate) begun: OnceLock<Begun>,
    book: Mutex<ShadowBook>,
}

/// What is there once something is tried.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) store: Store,
    pub(crate) hold: Arc<Hold>,
    pub(crate) tell: mpsc::Sender<Sighting>,
}

#[derive(Default, Debug)]
struct ShadowBook {
    tallies: BTreeMap<Arc<str>, ShadowTally>,
    told: Ages<Arc<str>, Told, TOLD>,
}

/// What an entry would have done since its numbers came into force.
#[derive(Clone, Default, Debug)]
pub(crate) struct ShadowTally {
    /// Jobs that would have started at once.
    pub(crate) started: u64,
    /// Jobs that would have waited, and started by now.
    pub(crate) waited: u64,
    /// Jobs that would have been dropped.
    pub(crate) dropped: u64,
    /// Jobs that found the virtual queue full.
    pub(crate) unknown: u64,
    /// Jobs that would wait now.
    pub(crate) waiting: usize,
    /// The longest wait so far, in milliseconds.
    pub(crate) longest_ms: u64,
    /// Of those that would have waited, how many for which limit.
    pub(crate) waited_for: BTreeMap<&'static str, u64>,
    /// What was really seen.
    pub(crate) peak: Peak,
    /// The verdicts under earlier numbers: started, waited, dropped, unknown. Metrics never go back.
    before: [u64; 4],
}

/// The most that was really seen of one key: the number that would have held nothing back. A job counts what it costs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Peak {
    /// Jobs that ran at once.
    pub(crate) at_once: u32,
    /// Starts in the period of the entry's first rate, else of its throttle.
    pub(crate) starts: u32,
    /// That period, in microseconds.
    pub(crate) period: Option<u64>,
    /// Starts of keys that are not followed, because too many others are: the numbers may be too low.
    pub(crate) unfollowed: u64,
}

impl ShadowTally {
    /// All verdicts since the sidecar's start, under earlier numbers too: started, waited, dropped, unknown.
    pub(crate) fn ever(&self) -> [u64; 4] {
        let [started, waited, dropped, unknown] = self.before;
        [
            started + self.started,
            waited + self.waited,
            dropped + self.dropped,
            unknown + self.unknown,
        ]
    }
}

impl fmt::Display for ShadowTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = duration::plain(Duration::from_millis(self.longest_ms));
        write!(
            f,
            "{} would have started at once, {} would have waited (at most {longest}",
            self.started, self.waited,
        )?;
        for (limit, jobs) in &self.waited_for {
            write!(f, "; {jobs} for {limit}")?;
        }
        write!(
            f,
            "), {} would have been dropped, and {} would wait now; really at most {} of a key ran at once",
            self.dropped, self.waiting, self.peak.at_once,
        )?;
        if let Some(period) = self.peak.period {
            let period = duration::plain(Duration::from_micros(period));
            write!(f, ", and {} started in {period}", self.peak.starts)?;
        }
        match self.peak.unfollowed {
            0 => Ok(()),
            jobs => write!(
                f,
                ", or more: {jobs} jobs were of keys beyond those that are followed"
            ),
        }
    }
}

/// What would have become of a job.
#[derive(Clone, Debug)]
struct Told {
    policy: Arc<str>,
    key: Key,
    /// How long it would have waited; `None`: it would have been dropped.
    waited: Option<Duration>,
}

/// What was seen of jobs that are out with workers.
#[derive(Debug)]
pub(crate) enum Sighting {
    /// A job went out.
    Job(Bytes, Went),
    /// All jobs of a reply went out.
    Reply(Reply, Went),
    /// A worker ended a job.
    Ended(Arc<str>, Instant),
    /// A worker says that it has these jobs still, for so long.
    Heard(Vec<Arc<str>>, Duration, Instant),
}

/// How jobs went out.
#[derive(Clone, Debug)]
pub(crate) struct Went {
    /// The queues that were asked.
    pub(crate) queues: Vec<Arc<str>>,
    /// The tenant header of the FETCH.
    pub(crate) tenant: Option<Arc<str>>,
    /// How long a worker has a job without a word.
    pub(crate) lasts: Duration,
    /// When.
    pub(crate) at: Instant,
}

impl Shadow {
    /// Other entries are in force.
    pub(crate) fn follow(&self) {
        self.wanted.notify_one();
    }

    /// Nobody waits for the virtual queue: what it has no time for is not seen.
    fn tell(&self, seen: impl FnOnce() -> Sighting) {
        if let Some(begun) = self.begun.get() {
            let _too_many = begun.tell.try_send(seen());
        }
    }

    /// Jobs went out after the limits that decide let them.
    pub(crate) fn went(&self, jobs: &[Held], at: Instant) {
        for job in jobs {
            self.tell(|| {
                let went = Went {
                    queues: vec![Arc::clone(&job.claimed.queue)],
                    tenant: job.tenant.clone(),
                    lasts: Duration::from_micros(job.claimed.visibility),
                    at,
                };
                Sighting::Job(job.body.clone(), went)
            });
        }
    }

    /// A reply went out as it came.
    pub(crate) fn passed(&self, reply: &Reply, went: impl FnOnce() -> Went) {
        self.tell(|| Sighting::Reply(reply.clone(), went()));
    }

    /// A worker ended a job.
    pub(crate) fn ended(&self, job: &Arc<str>, at: Instant) {
        self.tell(|| Sighting::Ended(Arc::clone(job), at));
    }

    /// A worker says that it has these jobs still.
    pub(crate) fn heard(&self, jobs: &[Arc<str>], lasts: Duration, at: Instant) {
        self.tell(|| Sighting::Heard(jobs.to_vec(), lasts, at));
    }

    /// What each of the entries that are tried now would have done so far.
    pub(crate) async fn tallies(&self, policies: &PolicySet) -> BTreeMap<Arc<str>, ShadowTally> {
        let Some(tried) = policies.shadow() else {
            return BTreeMap::new();
        };
        let policies = tried.policies().iter();
        let names = policies.map(|policy| Arc::clone(&policy.name));
        let of_queues = (!tried.queues().is_empty()).then(|| Arc::from("queue"));
        let held = match self.begun.get() {
            Some(begun) => begun.hold.snapshot(begun.store.now()).await,
            None => HeldNow::default(),
        };
        let book = self.book.lock();
        let tallies = names.chain(of_queues).map(|policy| {
            let is_of = |one: &Limited| one.policy == policy;
            let waiting = held.waiting(is_of);
            let known = book.tallies.get(&policy).cloned().unwrap_or_default();
            (policy, ShadowTally { waiting, ..known })
        });
        tallies.collect()
    }

    /// What would have become of a job, as a sentence.
    pub(crate) fn of_job(&self, job: &str) -> Option<String> {
        let begun = self.begun.get()?;
        let plain =
            |waited: Duration| duration::plain(Duration::from_millis(waited.as_millis() as u64));
        if let Some(claimed) = begun.hold.claimed(job) {
            let waited = begun.store.now().since(claimed.claimed_at);
            let policies: Vec<&str> = claimed.limited.iter().map(|one| &*one.policy).collect();
            let waited = plain(Duration::from_micros(waited));
            return Some(format!(
                "shadow: it would still wait under {}, for {waited} so far",
                policies.join(" and ")
            ));
        }
        let told = self.book.lock().told.get(&Arc::from(job))?.clone();
        let Told {
            policy,
            key,
            waited,
        } = told;
        Some(match waited {
            None => format!("shadow: {policy} would have dropped it, under key {key}"),
            Some(Duration::ZERO) => format!("shadow: {policy} would have let it start at once"),
            Some(waited) => {
                let waited = plain(waited);
                format!("shadow: {policy} would have held it back for {waited}, under key {key}")
            }
        })
    }

    /// Forgets everything (`dev`'s reset).
    pub(crate) async fn clear(&self) {
        if let Some(begun) = self.begun.get() {
            begun.hold.clear();
            let _cleared = begun.store.set(Change::Clear).await;
        }
    }

    /// Other numbers are in force of this entry: what it did under the earlier ones says nothing of them.
    pub(crate) fn restart(&self, policy: &Arc<str>) {
        let mut book = self.book.lock();
        if let Some(tally) = book.tallies.get_mut(policy) {
            let before = tally.ever();
            *tally = ShadowTally {
                before,
                ..ShadowTally::default()
            };
        }
    }

    /// Notes how much of a key was really used at once, and what started in which period.
    pub(crate) fn note_used(&self, policy: &Arc<str>, at_once: u32, starts: Option<(u32, u64)>) {
        let mut book = self.book.lock();
        let peak = &mut book.tallies.entry(Arc::clone(policy)).or_default().peak;
        peak.at_once = peak.at_once.max(at_once);
        peak.starts = peak.starts.max(starts.map_or(0, |(starts, _)| starts));
        peak.period = starts.map(|(_, period)| period);
    }

    /// Notes a start of a key that is not followed.
    pub(crate) fn note_unfollowed(&self, policy: &Arc<str>) {
        let mut book = self.book.lock();
        let tally = book.tallies.entry(Arc::clone(policy)).or_default();
        tally.peak.unfollowed += 1;
    }

    /// Notes what would have become of a job: `by` held it back for so long, or refused it. `limit`: the first of its
    /// limits that did.
    pub(crate) fn note(
        &self,
        job: &Arc<str>,
        limited: &[Limited],
        by: Option<(&Limited, Option<Duration>)>,
        limit: Option<Strategy>,
    ) {
        let mut book = self.book.lock();
        let mut last: Option<&Arc<str>> = None;
        for one in limited.iter() {
            let is_again = last.replace(&one.policy) == Some(&one.policy);
            let tally = book.tallies.entry(Arc::clone(&one.policy)).or_default();
            match by {
                _ if is_again => {}
                Some((by, None)) if by.policy == one.policy => tally.dropped += 1,
                Some((by, Some(waited))) if by.policy == one.policy => {
                    tally.waited += 1;
                    let limit = limit.map_or("another job", Strategy::as_str);
                    *tally.waited_for.entry(limit).or_default() += 1;
                    let ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                    tally.longest_ms = tally.longest_ms.max(ms);
                }
                // Another one drops it.
                Some((_, None)) => {}
                _ => tally.started += 1,
            }
        }
        let (one, waited) = match by {
            Some((by, waited)) => (Some(by), waited),
            None => (limited.first(), Some(Duration::ZERO)),
        };
        if let Some(one) = one {
            let told = Told {
                policy: Arc::clone(&one.policy),
                key: one.key.clone(),
                waited,
            };
            book.told.put(Arc::clone(job), told);
        }
    }

    /// A job found the virtual queue full.
    pub(crate) fn note_unknown(&self, limited: &[Limited]) {
        let mut book = self.book.lock();
        for one in limited {
            let tally = book.tallies.entry(Arc::clone(&one.policy)).or_default();
            tally.unknown += 1;
        }
    }
}
