//! What stores that are elsewhere have in common, however they are asked: a Redis, or a database.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::clock::ServerClock;
use super::fleet::SILENCE;
use super::record::{self, Kept, Written};
use super::{Change, Ledger, Overrides, Place, Row, StoreError, StoreFacts, Wake};
use ojs_limit::Timestamp;

/// The most rows that are changed in one call: the server does nothing else meanwhile, or they are locked.
pub(super) const AT_ONCE: usize = 256;
/// So many names are said at most of what the store has forgotten.
const MOST_NAMES: usize = 20;

/// Which data a store has, as far as is known.
#[derive(Clone, Debug)]
pub(super) struct Data {
    pub(super) epoch: Arc<str>,
    /// When our last beat was written into them, by the store's clock; 0: none was yet.
    pub(super) wrote: u64,
    /// How many beats of all sidecars have been counted in them, as far as we were told.
    pub(super) beats: i64,
}

impl Data {
    /// Data of which nothing is known, or only their name.
    pub(super) fn named(epoch: Arc<str>) -> Data {
        Data {
            epoch,
            wrote: 0,
            beats: 0,
        }
    }
}

/// What is kept here of a store that is elsewhere.
pub(super) struct Remote {
    pub(super) clock: ServerClock,
    overrides: Overrides,
    /// Which edition of the overrides that is; below zero: none was read yet.
    edition: AtomicI64,
    times_wiped: AtomicU64,
    siblings: AtomicUsize,
    /// Whether a look found nobody else, and there are no news of another since.
    is_alone: AtomicBool,
    was_alone: AtomicBool,
    /// How many jobs were ever adopted.
    adopted: AtomicU64,
    /// When the next beat is due, and before which time no row of ours is, by the store's clock.
    beat_at: AtomicU64,
    due_from: AtomicU64,
    /// When we last said that we live, by the store's clock; 0: never yet.
    spoke_at: AtomicU64,
    /// Which data are known.
    pub(super) data: Mutex<Option<Data>>,
    /// What siblings said, as [`hear`] reads it, and where that is put.
    heard: tokio::sync::Mutex<UnboundedReceiver<String>>,
    pub(super) told: UnboundedSender<String>,
}

/// What each store that is elsewhere does in its own way.
pub(super) trait Elsewhere: Ledger {
    fn remote(&self) -> &Remote;

    /// Is counted among the living, and says which data these are. Where there are none an epoch begins; if the first
    /// that `knew` any knew others, nothing starts until all had time to put their rows back.
    fn join(&self, knew: Option<&str>)
    -> impl Future<Output = Result<Arc<str>, StoreError>> + Send;

    /// Makes some changes in one step; says of each whether there was anything to change.
    fn change(
        &self,
        data: Data,
        changes: &[Change],
    ) -> impl Future<Output = Result<Vec<bool>, StoreError>> + Send;

    /// Sets those limits and settings of which there are none by their names; how many these are. `None`: it is too
    /// late.
    fn put_back(
        &self,
        data: Data,
        known: &[Written],
    ) -> impl Future<Output = Result<Option<u64>, StoreError>> + Send;

    /// The limits and settings made over HTTP, and which edition that is.
    fn overrides(
        &self,
        data: Data,
    ) -> impl Future<Output = Result<(i64, Vec<Kept>), StoreError>> + Send;
}

/// The data that are known here. The first that asks meets them.
pub(super) async fn data(store: &impl Elsewhere) -> Result<Data, StoreError> {
    let known = store.remote().data.lock().clone();
    match known {
        Some(known) => Ok(known),
        None => meet(store, None).await,
    }
}

/// Learns which data the store has; `knew` is what was known before. Who comes at the same time does so too: behind
/// one another, each would wait for all before it where the store hangs.
async fn meet(store: &impl Elsewhere, knew: Option<Data>) -> Result<Data, StoreError> {
    let remote = store.remote();
    let knew = knew.map(|knew| knew.epoch);
    let epoch = store.join(knew.as_deref()).await?;
    let met = Data::named(epoch);
    let is_known = knew.as_ref() == Some(&met.epoch);
    if knew.is_some() && !is_known {
        // Until this is done we go by the data that are gone, so that it is begun again if it fails.
        begin_anew(store, &met).await?;
    } else if remote.edition.load(Ordering::Relaxed) < 0 {
        reload(store, met.clone()).await?;
    }
    let mut data = remote.data.lock();
    if data.as_ref().is_none_or(|data| data.epoch != met.epoch) {
        *data = Some(met.clone());
    }
    Ok(met)
}

/// Puts back what we know beside our rows of data that are gone, and reads what is there now.
async fn begin_anew(store: &impl Elsewhere, data: &Data) -> Result<(), StoreError> {
    let remote = store.remote();
    let now = remote.clock.now();
    let known = remote.overrides.standing(now);
    let mut put_back = 0;
    for some in known.chunks(AT_ONCE) {
        put_back += store.put_back(data.clone(), some).await?.unwrap_or(0);
    }
    reload(store, data.clone()).await?;
    remote.times_wiped.fetch_add(1, Ordering::Relaxed);
    tell_anew(&known, put_back, &remote.overrides, remote.clock.now());
    Ok(())
}

/// Says that the store has other data than this sidecar `knew`. It had `put_back` so many of them to put back, and now
/// has what is `there`.
fn tell_anew(knew: &[Written], put_back: u64, there: &Overrides, now: Timestamp) {
    let there: HashSet<String> = (there.standing(now).into_iter())
        .map(|one| one.name)
        .collect();
    let stands = |one: &&Written| one.ends.is_none_or(|at| at > now);
    let missing = knew.iter().filter(stands);
    let missing = missing.filter(|one| !there.contains(&one.name));
    let missing: Vec<&str> = missing.map(|one| &*one.name).collect();
    if missing.is_empty() {
        tracing::error!(
            id = %"store_emptied",
            set_over_http = knew.len(),
            put_back,
            "the store came back empty, or older than it was: its windows and spacing are empty, or as old as \
             its data, and what was set over HTTP is there again"
        );
    } else {
        let names = missing.get(..MOST_NAMES).unwrap_or(&missing).join(" ");
        tracing::error!(
            id = %"store_emptied_while_away",
            set_over_http = knew.len(),
            forgotten = missing.len(),
            names,
            "the store came back empty while this sidecar was away: limits and settings made over HTTP are not \
             set any more; set them again if they are needed"
        );
    }
}

/// Reads the overrides.
async fn reload(store: &impl Elsewhere, data: Data) -> Result<(), StoreError> {
    let remote = store.remote();
    let (edition, all) = store.overrides(data).await?;
    remote
        .overrides
        .replace(all.into_iter(), remote.clock.now());
    remote.edition.store(edition, Ordering::Relaxed);
    Ok(())
}

/// [`Ledger::announce`]
pub(super) async fn announce(store: &impl Elsewhere, rows: &[Row]) -> Result<(), StoreError> {
    let knew = store.remote().data.lock().clone();
    meet(store, knew).await?;
    store.remote().due_at(Timestamp(0));
    put_back(store, rows).await
}

/// [`Ledger::set_all`]
pub(super) async fn change_all(
    store: &impl Elsewhere,
    changes: Vec<Change>,
) -> Result<bool, StoreError> {
    let (remote, mut any) = (store.remote(), false);
    for some in changes.chunks(AT_ONCE) {
        some.iter().for_each(|change| remote.leaves(change));
        let done = store.change(data(store).await?, some).await?;
        for (change, done) in some.iter().zip(done) {
            remote.changed(change);
            any |= done;
        }
    }
    Ok(any)
}

/// [`Ledger::wake`]
pub(super) async fn wake(store: &impl Elsewhere) -> Wake {
    let remote = store.remote();
    let mut news = remote.heard.lock().await;
    loop {
        let Some(text) = news.recv().await else {
            // The other end is in this very store.
            return std::future::pending().await;
        };
        match hear(&text) {
            None => {}
            Some(Said::Wake(wake)) => return wake,
            Some(Said::Joined) => {
                remote.was_alone.store(false, Ordering::Release);
                remote.look_around();
            }
            Some(Said::Overridden) => {
                let known = remote.data.lock().clone();
                if let Some(known) = known {
                    // If this fails, the next beat tells that ours are old.
                    let _read = reload(store, known).await;
                    return Wake::Set;
                }
            }
            Some(Said::Other) => {
                remote.look_around();
                return Wake::All;
            }
        }
    }
}

/// What a look at the store has found, beside rows.
pub(super) struct Around {
    /// How many others live.
    pub(super) siblings: usize,
    /// Whether there is nobody else, dead ones that left rows included.
    pub(super) is_alone: bool,
    /// When the next beat is due.
    pub(super) beat_at: Timestamp,
    /// No row of ours is due before.
    pub(super) first: Timestamp,
    pub(super) edition: i64,
    /// Microseconds that the time is ahead of the clock of the store's host.
    pub(super) ahead: u64,
    pub(super) adopted: u64,
    /// Where others offer jobs.
    pub(super) lanes: Vec<String>,
}

/// The store was looked at.
pub(super) async fn looked(
    store: &impl Elsewhere,
    data: Data,
    around: Around,
) -> Result<(), StoreError> {
    let remote = store.remote();
    remote.clock.is_ahead(around.ahead);
    remote.adopted.store(around.adopted, Ordering::Relaxed);
    remote.siblings.store(around.siblings, Ordering::Relaxed);
    remote.is_alone.store(around.is_alone, Ordering::Release);
    remote.was_alone.store(around.is_alone, Ordering::Release);
    remote.beat_at.store(around.beat_at.0, Ordering::Relaxed);
    remote.due_from.store(around.first.0, Ordering::Release);
    remote.spoke();
    if remote.edition.load(Ordering::Relaxed) != around.edition {
        reload(store, data).await?;
    }
    for lane in around.lanes {
        // The receiver is in this very store.
        let _received = remote.told.send(format!("offered\n{lane}"));
    }
    Ok(())
}

impl Remote {
    pub(super) fn new(clock: ServerClock) -> Remote {
        let (told, heard) = unbounded_channel();
        Remote {
            clock,
            overrides: Overrides::default(),
            edition: AtomicI64::new(-1),
            times_wiped: AtomicU64::new(0),
            siblings: AtomicUsize::new(0),
            is_alone: AtomicBool::new(false),
            was_alone: AtomicBool::new(false),
            adopted: AtomicU64::new(0),
            beat_at: AtomicU64::new(0),
            due_from: AtomicU64::new(0),
            spoke_at: AtomicU64::new(0),
            data: Mutex::default(),
            heard: tokio::sync::Mutex::new(heard),
            told,
        }
    }

    /// Whether there is nothing to ask for: no row of ours is due, nor is a beat.
    pub(super) fn is_quiet(&self) -> bool {
        let now = self.clock.now();
        now.0 < self.due_from.load(Ordering::Acquire)
            && now.0 < self.beat_at.load(Ordering::Relaxed)
    }

    /// A row of ours is due then.
    pub(super) fn due_at(&self, at: Timestamp) {
        self.due_from.fetch_min(at.0, Ordering::AcqRel);
    }

    /// When the row is due that a change leaves.
    fn leaves(&self, change: &Change) {
        match change {
            // What is offered is looked at from now on.
            Change::Offer { claimed } => self.due_at(claimed.claimed_at),
            Change::Until { until, .. } | Change::Adopt { until, .. } => self.due_at(until.at()),
            Change::Own { until, .. } => self.due_at(*until),
            _ => {}
        }
    }

    /// We have said that we live. Where we had said nothing for long, others took us for dead, and told us nothing.
    fn spoke(&self) {
        let now = self.clock.now().0;
        let before = self.spoke_at.swap(now, Ordering::Relaxed);
        if before > 0 && before.saturating_add(SILENCE) <= now {
            // The receiver is in this very store.
            let _received = self.told.send("all".to_owned());
        }
    }

    /// There may be others; the next beat tells.
    fn look_around(&self) {
        self.is_alone.store(false, Ordering::Release);
        self.beat_at.store(0, Ordering::Relaxed);
    }

    /// The store was told of a change: what is kept here follows.
    fn changed(&self, change: &Change) {
        match change.clone() {
            Change::Override { space, key, set } => {
                self.overrides.put(space, key, set);
            }
            Change::Setting { name, text } => {
                self.overrides.put_setting(name, text);
            }
            Change::Clear => self.overrides.clear(),
            _ => {}
        }
    }

    /// What is known without a call.
    pub(super) fn facts(&self) -> StoreFacts<'_> {
        StoreFacts {
            overrides: &self.overrides,
            is_shared: true,
            is_alone: self.is_alone.load(Ordering::Acquire),
            was_alone: self.was_alone.load(Ordering::Acquire),
            siblings: self.siblings.load(Ordering::Relaxed),
            times_wiped: self.times_wiped.load(Ordering::Relaxed),
            adopted: self.adopted.load(Ordering::Relaxed),
            forgets_unsaid: true,
            doubt: self.clock.doubt(),
        }
    }
}
/// How long a connection to a store may take to be made that is asked for no longer than `timeout`: it is many round
/// trips, and a question is one or few. Longer, and one to a server that is gone is given up too late.
pub(super) fn to_connect(timeout: Duration) -> Duration {
    (10 * timeout).min(timeout.max(Duration::from_secs(5)))
}

/// Puts rows back: jobs that are out take their slots again, and held ones that were offered are so again.
pub(super) async fn put_back(ledger: &impl Ledger, rows: &[Row]) -> Result<(), StoreError> {
    let back = |row: &Row| {
        let claimed = row.claimed.clone();
        match row.place {
            Place::Out(until) => Some(Change::Adopt { claimed, until }),
            Place::Offered => Some(Change::Offer { claimed }),
            Place::Held(_) => None,
        }
    };
    let all = rows.iter().filter_map(back).collect();
    match ledger.set_all(all).await {
        // What it cannot keep stands nowhere in it, and is no reason to do without it.
        Ok(_) | Err(StoreError::Unfit(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a sibling says.
enum Said {
    /// Something for whoever waits for it.
    Wake(Wake),
    /// It has come, or come back.
    Joined,
    /// Something was set over HTTP, or taken away.
    Overridden,
    /// In a word that is not known here.
    Other,
}

/// The first line of a message is what it says, the others are about what. `None`: those are not understood.
fn hear(message: &str) -> Option<Said> {
    let (what, about) = message.split_once('\n').unwrap_or((message, ""));
    Some(Said::Wake(match what {
        "freed" => Wake::Freed(about.split('\n').filter_map(record::of_name).collect()),
        "row" => Wake::Row { job: about.into() },
        "offered" => {
            let (scope, queue) = record::read_lane(about)?;
            Wake::Offered { scope, queue }
        }
        "came" => match record::read_moved(about) {
            Some((queue, moved)) => Wake::Moved { queue, moved },
            None => {
                let (queue, subqueues) = record::read_came(about)?;
                Wake::Came { queue, subqueues }
            }
        },
        "paused" => {
            let (paused, queue) = about.split_once('\n')?;
            Wake::Paused {
                queue: queue.into(),
                paused: paused == "1",
            }
        }
        "joined" => return Some(Said::Joined),
        "over" => return Some(Said::Overridden),
        _ => return Some(Said::Other),
    }))
}

#[cfg(test)]
mod tests {
    use super::super::clock::Clock;
    use super::super::fleet::BEAT;
    use super::*;

    #[test]
    fn a_message_is_one_word_and_what_it_is_about() {
        let job = |job: &str| Wake::Row { job: job.into() };
        assert!(matches!(hear("row\na\nb"), Some(Said::Wake(wake)) if wake == job("a\nb")));
        let paused = Wake::Paused {
            queue: "mail".into(),
            paused: true,
        };
        assert!(matches!(hear("paused\n1\nmail"), Some(Said::Wake(wake)) if wake == paused));
        assert!(matches!(
            hear("offered\n7:mail"),
            Some(Said::Wake(Wake::Offered { scope: 7, .. }))
        ));
        let subqueues: Arc<[u64]> = Arc::from([1, 0, u64::MAX, 1 << 63, 7]);
        let came = record::came("mail\na", &subqueues);
        let queue = Arc::from("mail\na");
        let wake = Wake::Came { queue, subqueues };
        assert!(matches!(hear(&came), Some(Said::Wake(heard)) if heard == wake));
        assert!(hear("came\n0 0 x\nmail").is_none(), "no number");
        let moved = record::moved("mail\na", "7f:a1:2:0:1");
        let queue = Arc::from("mail\na");
        let wake = Wake::Moved {
            queue,
            moved: "7f:a1:2:0:1".into(),
        };
        assert!(matches!(hear(&moved), Some(Said::Wake(heard)) if heard == wake));
        let about = moved.strip_prefix("came\n").unwrap();
        assert!(
            record::read_came(about).is_none(),
            "who knows no more of it"
        );
        assert!(hear("offered\nmail").is_none(), "of which scope?");
        assert!(matches!(hear("joined"), Some(Said::Joined)));
        assert!(matches!(hear("all"), Some(Said::Other)));
    }

    #[tokio::test]
    async fn who_said_nothing_for_long_looks_at_everything() {
        let time = Arc::new(AtomicU64::new(1_000_000));
        let remote = Remote::new(ServerClock::new(Clock::given(Arc::clone(&time))));
        let hears = |later: u64| {
            time.fetch_add(later, Ordering::AcqRel);
            remote.spoke();
            remote.heard.try_lock().unwrap().try_recv().is_ok()
        };
        let silent = [0, BEAT, SILENCE, BEAT];
        assert_eq!(silent.map(hears), [false, false, true, false]);
    }
}
