//! Entries that are only tried (`mode = "shadow"`): a virtual queue finds out what they would have done.
//!
//! A job comes into the virtual queue when it really goes to a worker. There it waits in a hold of its own until its
//! limits let it start, as a store of its own says: that is its virtual start. Its virtual slots end as long after that
//! as the job really ran. It really started first, so its worker ends it no later than they do. Nothing is foretold,
//! and what is told is what would have been.
//!
//! Why a hold and a store of their own: no decision looks at either, so no entry that is only tried can change one. The
//! store is another namespace of the one that decides, so a fleet tries its entries as one.

mod play;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::control::named::Ages;
use crate::duration;
use crate::hold::{Held, Hold};
use crate::limit::{Key, Limited};
use crate::policy::PolicySet;
use crate::store::{Change, LedgerExt, Store};
use crate::upstream::Reply;

pub(super) use play::play;

/// Of so many jobs, and of at most twice as many, it is known what would have become of them.
const TOLD: usize = 10_000;

/// The virtual queue of one sidecar.
#[derive(Default, Debug)]
pub(super) struct Shadow {
    /// Told when entries come into force that may be tried.
    wanted: Notify,
    /// There once something is tried.
    begun: OnceLock<Begun>,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Begun {
    store: Store,
    hold: Arc<Hold>,
    tell: mpsc::Sender<Seen>,
}

#[derive(Debug)]
struct Book {
    tallies: BTreeMap<Arc<str>, Tally>,
    told: Ages<Arc<str>, Told>,
}

/// What an entry would have done so far.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tally {
    /// Jobs that would have started at once.
    pub(super) started: u64,
    /// Jobs that would have waited, and started by now.
    pub(super) waited: u64,
    /// Jobs that would have been dropped.
    pub(super) dropped: u64,
    /// Jobs that found the virtual queue full.
    pub(super) unknown: u64,
    /// Jobs that would wait now.
    pub(super) waiting: usize,
    /// The longest wait so far, in milliseconds.
    pub(super) longest_ms: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = duration::plain(Duration::from_millis(self.longest_ms));
        write!(
            f,
            "{} would have started at once, {} would have waited (at most {longest}), {} would have been dropped, and \
             {} would wait now",
            self.started, self.waited, self.dropped, self.waiting
        )
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
enum Seen {
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
pub(super) struct Went {
    /// The queues that were asked.
    pub(super) queues: Vec<Arc<str>>,
    /// The tenant header of the FETCH.
    pub(super) tenant: Option<Arc<str>>,
    /// How long a worker has a job without a word.
    pub(super) lasts: Duration,
    /// When.
    pub(super) at: Instant,
}

impl Default for Book {
    fn default() -> Book {
        Book {
            tallies: BTreeMap::new(),
            told: Ages::new(TOLD),
        }
    }
}

impl Shadow {
    /// Other entries are in force.
    pub(super) fn follow(&self) {
        self.wanted.notify_one();
    }

    /// Nobody waits for the virtual queue: what it has no time for is not seen.
    fn tell(&self, seen: impl FnOnce() -> Seen) {
        if let Some(begun) = self.begun.get() {
            let _too_many = begun.tell.try_send(seen());
        }
    }

    /// Jobs went out after the limits that decide let them.
    pub(super) fn went(&self, jobs: &[Held], at: Instant) {
        for job in jobs {
            self.tell(|| {
                let went = Went {
                    queues: vec![Arc::clone(&job.claimed.queue)],
                    tenant: job.tenant.clone(),
                    lasts: Duration::from_micros(job.claimed.visibility),
                    at,
                };
                Seen::Job(job.body.clone(), went)
            });
        }
    }

    /// A reply went out as it came.
    pub(super) fn passed(&self, reply: &Reply, went: impl FnOnce() -> Went) {
        self.tell(|| Seen::Reply(reply.clone(), went()));
    }

    /// A worker ended a job.
    pub(super) fn ended(&self, job: &Arc<str>, at: Instant) {
        self.tell(|| Seen::Ended(Arc::clone(job), at));
    }

    /// A worker says that it has these jobs still.
    pub(super) fn heard(&self, jobs: &[Arc<str>], lasts: Duration, at: Instant) {
        self.tell(|| Seen::Heard(jobs.to_vec(), lasts, at));
    }

    /// What each of the entries that are tried now would have done so far.
    pub(super) fn tallies(&self, policies: &PolicySet) -> BTreeMap<Arc<str>, Tally> {
        let Some(tried) = policies.shadow() else {
            return BTreeMap::new();
        };
        let names = tried
            .policies()
            .iter()
            .map(|policy| Arc::clone(&policy.name));
        let of_queues = (!tried.queues().is_empty()).then(|| Arc::from("queue"));
        let book = self.book.lock();
        let tallies = names.chain(of_queues).map(|policy| {
            let is_of = |one: &Limited| one.policy == policy;
            let waiting = self
                .begun
                .get()
                .map_or(0, |begun| begun.hold.waiting(is_of));
            let known = book.tallies.get(&policy).copied().unwrap_or_default();
            (policy, Tally { waiting, ..known })
        });
        tallies.collect()
    }

    /// What would have become of a job, as a sentence.
    pub(super) fn of_job(&self, job: &str) -> Option<String> {
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
    pub(super) async fn clear(&self) {
        if let Some(begun) = self.begun.get() {
            begun.hold.clear();
            let _cleared = begun.store.set(Change::Clear).await;
        }
    }

    /// Notes what would have become of a job: `by` held it back for so long, or refused it.
    fn note(&self, job: &Arc<str>, limited: &[Limited], by: Option<(&Limited, Option<Duration>)>) {
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
    fn note_unknown(&self, limited: &[Limited]) {
        let mut book = self.book.lock();
        for one in limited {
            book.tallies
                .entry(Arc::clone(&one.policy))
                .or_default()
                .unknown += 1;
        }
    }
}
