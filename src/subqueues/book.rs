//! What is known of the jobs that wait in each subqueue of a queue: one entry for each name. What passes through here
//! and at siblings is counted, and the backend's numbers put that right, a few names at a time. Bounds, statistics, `why`
//! and the lookahead all read these entries. No list of queues is read: official backends go over all of their queues
//! for one, and a bound may be looked at ten times a second.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::shown::ShownSubqueue;
use ojs_bounds::Counts;
use ojs_hold::HeldGroup;
use ojs_policy::subqueue::{COUNT, Flow, Spread, Subqueue};

/// So many names are looked at beside each look at the queue itself, if the time for questions is not used up.
const LOOKED_AT: usize = 128;
/// Of so many one is asked at most for who reads numbers.
const READ: usize = 4;
/// Who reads numbers has those asked anew that are older.
const FRESH: Duration = Duration::from_secs(1);

/// The backend is asked again about what a sibling may be about to tell.
const AGAIN: Duration = Duration::from_millis(200);
/// Numbers that are older say nothing of how deep a queue is.
const LASTS: Duration = Duration::from_secs(30);

/// The jobs that wait in each subqueue of one queue.
#[derive(Clone, Debug)]
pub struct SubqueueBook(Vec<BookEntry>);

/// The jobs of one subqueue.
#[derive(Clone, Copy, Default, Debug)]
struct BookEntry {
    /// The backend's numbers, as it last told them.
    told: Option<ToldNumbers>,
    /// When it last answered, or did not; and when it told those numbers.
    asked_at: Option<Instant>,
    told_at: Option<Instant>,
    /// Jobs that came and went so far, and which of them those numbers have in them: several questions may be on their way.
    moved: QuestionLeft,
    told_with: QuestionLeft,
    /// Jobs that wait and came through here or through a sibling.
    tagged: u64,
    /// Whose those are.
    tagged_of: Whose,
    whose: Whose,
    unheard: UnheardJobs,
    /// When jobs last came or went, as far as was heard.
    news_at: Option<Instant>,
    /// Since when jobs wait of which none was claimed.
    unclaimed_since: Option<Instant>,
}

/// What the backend told of a subqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ToldNumbers {
    /// Jobs that wait.
    pub counts: Counts,
    /// Jobs that wait no longer.
    pub beside: BesideWaiting,
}

/// How many jobs wait no longer, by [`BesideWaiting::NAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BesideWaiting(pub [i64; 6]);

impl BesideWaiting {
    /// What statistics call them.
    pub const NAMES: [&str; 6] = [
        "active",
        "completed",
        "discarded",
        "cancelled",
        "dead",
        "failed",
    ];
}

/// Whose jobs came to a subqueue since nothing waited there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Whose {
    #[default]
    Nobodys,
    /// Those of one flow, by its tag.
    One(u16),
    Several,
}

impl Whose {
    /// Of these flows and of others.
    fn and(self, other: Whose) -> Whose {
        match (self, other) {
            (Whose::Nobodys, whose) | (whose, Whose::Nobodys) => whose,
            (Whose::One(one), Whose::One(other)) if one == other => self,
            _ => Whose::Several,
        }
    }
}

/// How many jobs came to a subqueue and left it within a moment, as siblings are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Moved {
    whose: Whose,
    came: u64,
    later: u64,
    pub(super) gone: u64,
}

/// When a job that was stored may start, as far as the job itself says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MayStart {
    /// At once.
    Now,
    /// It names a time, and waits for it.
    Later,
}

impl Moved {
    /// A job came.
    pub(super) fn came(&mut self, flow: Flow, may_start: MayStart) {
        self.whose = self.whose.and(Whose::One(flow.tag));
        match may_start {
            MayStart::Later => self.later += 1,
            MayStart::Now => self.came += 1,
        }
    }

    /// Siblings were not told this, as far as is known: whose jobs came is told again. How many wait the backend tells,
    /// and what left is not told twice, for it would hide what waits.
    pub(super) fn again(&mut self, untold: &Moved) {
        self.whose = self.whose.and(untold.whose);
        self.came += untold.came.min(1);
        self.later += untold.later.min(1);
    }

    /// What siblings read: `NAME:TAG:CAME:LATER:GONE` for each subqueue, in hexadecimal. The tag is `-` of nobody and `*`
    /// of several flows. Before them stands `=SEAL` of the spread by which jobs are written here.
    pub(super) fn written(all: &HashMap<Subqueue, Moved>, seal: Option<&str>) -> Arc<str> {
        let seal = seal.map(|seal| format!("={seal}"));
        let each = all.iter().map(|(subqueue, moved)| {
            let tag = match moved.whose {
                Whose::Nobodys => "-".to_owned(),
                Whose::One(tag) => format!("{tag:x}"),
                Whose::Several => "*".to_owned(),
            };
            let Moved {
                came, later, gone, ..
            } = moved;
            format!("{:02x}:{tag}:{came:x}:{later:x}:{gone:x}", subqueue.0)
        });
        let all: Vec<String> = seal.into_iter().chain(each).collect();
        Arc::from(all.join(" "))
    }

    /// The seal of the spread by which a sibling writes jobs; `None`: it writes none.
    pub(super) fn seal(text: &str) -> Option<&str> {
        text.strip_prefix('=')?.split(' ').next()
    }

    /// What a sibling wrote; what is not understood is left out.
    pub(super) fn read(text: &str) -> impl Iterator<Item = (Subqueue, Moved)> {
        text.split(' ').filter_map(|one| {
            let mut parts = one.split(':');
            let name = u16::from_str_radix(parts.next()?, 16).ok()?;
            let whose = match parts.next()? {
                "-" => Whose::Nobodys,
                "*" => Whose::Several,
                tag => Whose::One(u16::from_str_radix(tag, 16).ok()?),
            };
            let mut number = || u64::from_str_radix(parts.next()?, 16).ok();
            let (came, later, gone) = (number()?, number()?, number()?);
            let moved = Moved {
                whose,
                came,
                later,
                gone,
            };
            Some((Subqueue(name), moved))
        })
    }
}

/// Whether jobs wait in a subqueue of which nobody here was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum UnheardJobs {
    No,
    /// The backend told of more jobs than are known here, while jobs came. A sibling's word may be on its way, so it is
    /// asked again.
    Perhaps,
    /// They do, or it was never asked.
    #[default]
    Yes,
}

/// What stands behind the held jobs of a subqueue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitsBehind {
    /// Jobs of the flow whose jobs are held, if any.
    SameFlow,
    /// Jobs of other flows, and how many in all.
    Others(u64),
    /// Nobody here was told of all that wait; how many wait, if the backend said that.
    Unheard(Option<u64>),
}

/// How many jobs came to a subqueue and went; of a question, how many had when it left.
#[derive(Clone, Copy, Default, Debug)]
pub struct QuestionLeft {
    /// Jobs that came to wait for a start, and for a time.
    came: u64,
    later: u64,
    /// Jobs that were claimed.
    gone: u64,
}

impl Default for SubqueueBook {
    fn default() -> SubqueueBook {
        SubqueueBook(vec![BookEntry::default(); COUNT.into()])
    }
}

impl SubqueueBook {
    /// How many subqueues the queue has.
    pub fn count(&self) -> u16 {
        u16::try_from(self.0.len()).unwrap_or(u16::MAX)
    }

    /// The queue has so many from now on, if those are more.
    pub(super) fn grow(&mut self, count: u16) {
        let count = count.max(self.count());
        self.0.resize_with(count.into(), BookEntry::default);
    }

    fn get(&mut self, subqueue: Subqueue) -> Option<&mut BookEntry> {
        self.0.get_mut(subqueue.nth())
    }

    /// A job was stored.
    pub(super) fn stored(&mut self, flow: Flow, may_start: MayStart) {
        let mut moved = Moved::default();
        moved.came(flow, may_start);
        self.moved(flow.subqueue, &moved);
    }

    /// Jobs came and left, here or at a sibling.
    pub(super) fn moved(&mut self, subqueue: Subqueue, moved: &Moved) {
        let Some(entry) = self.get(subqueue) else {
            return;
        };
        entry.note(moved.whose);
        entry.news_at = Some(Instant::now());
        entry.moved.came += moved.came;
        entry.moved.later += moved.later;
        entry.moved.gone += moved.gone;
        entry.tag(moved.whose, moved.came);
        entry.untag(moved.gone);
        entry.note_unclaimed(moved.gone);
    }

    /// A job of a flow may have come back, or may come back later.
    pub(super) fn may_be_back(&mut self, flow: Flow) {
        if let Some(entry) = self.get(flow.subqueue) {
            entry.note(Whose::One(flow.tag));
            if entry.unheard == UnheardJobs::No {
                entry.unheard = UnheardJobs::Perhaps;
            }
        }
    }

    /// A job was claimed from a subqueue.
    pub(super) fn claimed(&mut self, subqueue: Subqueue) {
        if let Some(entry) = self.get(subqueue) {
            entry.moved.gone += 1;
            entry.untag(1);
            entry.note_unclaimed(1);
        }
    }

    /// A question about a subqueue leaves.
    pub(super) fn asks(&mut self, subqueue: Subqueue) -> Option<QuestionLeft> {
        self.get(subqueue).map(|entry| entry.moved)
    }

    /// The backend told the numbers of a subqueue. What came since the question left may be in them, and counts beside
    /// them all the same: a bound must not be passed. What was claimed since then is not taken off again.
    pub(super) fn told(&mut self, subqueue: Subqueue, told: ToldNumbers, asked: QuestionLeft) {
        let counts = told.counts;
        let Some(entry) = self.get(subqueue) else {
            return;
        };
        let claimed_since = entry.moved.gone.saturating_sub(asked.gone);
        entry.told = Some(told);
        entry.told_with = QuestionLeft {
            gone: entry.moved.gone,
            ..asked
        };
        (entry.asked_at, entry.told_at) = (Some(Instant::now()), Some(Instant::now()));
        entry.note_unclaimed(0);
        let least = counts.available.saturating_sub(claimed_since);
        entry.untag(entry.tagged.saturating_sub(entry.waiting()));
        let now = Instant::now();
        let is_quiet = (entry.news_at).is_none_or(|at| now.saturating_duration_since(at) >= AGAIN);
        entry.unheard = match is_quiet {
            _ if least <= entry.tagged => UnheardJobs::No,
            true => UnheardJobs::Yes,
            false => UnheardJobs::Perhaps,
        };
        if entry.waiting() == 0 && entry.later() == 0 {
            entry.whose = Whose::Nobodys;
        }
    }

    /// Goes by the backend's numbers of a subqueue alone.
    pub fn sees(&mut self, subqueue: Subqueue, counts: Counts) {
        if let Some(asked) = self.asks(subqueue) {
            let beside = BesideWaiting::default();
            self.told(subqueue, ToldNumbers { counts, beside }, asked);
        }
    }

    /// Siblings may have told something that was not heard: nothing that was told counts as fresh.
    pub(super) fn doubt_all(&mut self) {
        for entry in &mut self.0 {
            entry.unheard = UnheardJobs::Yes;
            entry.asked_at = entry.asked_at.and_then(|at| at.checked_sub(LASTS));
        }
    }

    /// Whether the backend told the numbers of each lately.
    pub fn is_whole(&self, now: Instant) -> bool {
        self.0.iter().all(|entry| {
            let asked_at = entry.asked_at.filter(|_| entry.told.is_some());
            asked_at.is_some_and(|at| now.saturating_duration_since(at) < LASTS)
        })
    }

    /// The backend did not tell the numbers of a subqueue.
    pub(super) fn asked_in_vain(&mut self, subqueue: Subqueue) {
        if let Some(entry) = self.get(subqueue) {
            entry.asked_at = Some(Instant::now());
        }
    }

    /// What stands behind the held jobs of a subqueue, of which the last was of the flow with this tag.
    pub(super) fn behind(&self, subqueue: Subqueue, held: Option<u16>) -> WaitsBehind {
        let Some(entry) = self.0.get(subqueue.nth()) else {
            return WaitsBehind::SameFlow;
        };
        let waiting = entry.waiting();
        match entry.whose {
            _ if entry.unheard == UnheardJobs::Yes => match (entry.told, entry.asked_at) {
                (Some(_), _) => WaitsBehind::Unheard(Some(waiting)),
                (None, Some(_)) => WaitsBehind::Unheard(None),
                // It is asked now.
                (None, None) => WaitsBehind::SameFlow,
            },
            Whose::Nobodys => WaitsBehind::SameFlow,
            Whose::One(tag) if Some(tag) == held => WaitsBehind::SameFlow,
            Whose::One(_) | Whose::Several => WaitsBehind::Others(waiting),
        }
    }

    /// Whether jobs wait in a subqueue that came through here or through a sibling.
    pub(super) fn has_tagged(&self, subqueue: Subqueue) -> bool {
        let entry = self.0.get(subqueue.nth());
        entry.is_some_and(|entry| entry.tagged > 0)
    }

    /// How many jobs wait in a subqueue, if no other is known of, and they are one job or jobs of several flows; and
    /// whether the backend told of no other.
    pub(super) fn all_at_once(&self, subqueue: Subqueue) -> Option<(u64, bool)> {
        let entry = self.0.get(subqueue.nth())?;
        let is_mixed = entry.tagged == 1 || entry.tagged_of == Whose::Several;
        let is_all = entry.tagged > 0 && entry.waiting() <= entry.tagged;
        (is_all && is_mixed).then_some((entry.tagged, entry.unheard == UnheardJobs::No))
    }

    /// What is known of each subqueue in which jobs wait, or of which these are held.
    pub(super) fn shown(
        &self,
        queue: &str,
        spread: Spread,
        heads: &[&HeldGroup],
    ) -> Vec<(Subqueue, ShownSubqueue)> {
        let mut heads_of: HashMap<Option<Subqueue>, Vec<&HeldGroup>> = HashMap::new();
        for head in heads {
            heads_of.entry(head.subqueue).or_default().push(head);
        }
        let seconds = |since: Option<Instant>| since.map(|at| at.elapsed().as_secs());
        let mut shown = Vec::new();
        for subqueue in self.by_age(|_| true) {
            let Some(entry) = self.0.get(subqueue.nth()) else {
                continue;
            };
            let heads = heads_of.remove(&Some(subqueue)).unwrap_or_default();
            let (waiting, later) = (entry.waiting(), entry.later());
            if waiting + later == 0 && heads.is_empty() {
                continue;
            }
            let tags = heads
                .iter()
                .map(|head| spread.tag_in(subqueue, &head.limits));
            let shut = heads.iter().filter_map(|head| head.shut_by());
            let shut = shut.map(|(_, space, key)| space.name_of(key).into_owned());
            let one = ShownSubqueue {
                name: subqueue.name_in(queue),
                waiting,
                later,
                held: heads.iter().map(|head| head.jobs).sum(),
                shared: entry.is_shared(&tags.flatten().collect()),
                shut: shut.collect(),
                told_s: seconds(entry.told_at),
                unclaimed_s: seconds(entry.unclaimed_since),
                out_of_reach: false,
            };
            shown.push((subqueue, one));
        }
        shown
    }

    /// Of how many subqueues the backend never told the numbers.
    pub(super) fn untold(&self) -> usize {
        self.0.iter().filter(|entry| entry.told.is_none()).count()
    }

    /// How many jobs wait in a subqueue.
    pub(super) fn waiting_in(&self, subqueue: Subqueue) -> u64 {
        let entry = self.0.get(subqueue.nth());
        entry.map_or(0, BookEntry::waiting)
    }

    /// Whether the backend should be asked about a subqueue, because it is not known what stands behind its held jobs.
    pub(super) fn is_doubtful(&self, subqueue: Subqueue, held: Option<u16>, now: Instant) -> bool {
        let entry = self.0.get(subqueue.nth());
        entry.is_some_and(|entry| {
            let is_known = entry.unheard == UnheardJobs::No;
            let may_be = !is_known || self.behind(subqueue, held) != WaitsBehind::SameFlow;
            may_be && !entry.is_fresh(now)
        })
    }

    /// The subqueues whose numbers the backend is asked for beside a look: all of them the first time. Then half of them
    /// are those in which jobs wait, and half are those that were told the longest time ago.
    pub(super) fn to_look_at(&self) -> Vec<Subqueue> {
        let all = self.by_age(|_| true);
        if self.0.iter().all(|entry| entry.asked_at.is_none()) {
            return all;
        }
        let mut names = self.by_age(BookEntry::has_jobs);
        names.truncate(LOOKED_AT / 2);
        for one in all {
            if names.len() < LOOKED_AT && !names.contains(&one) {
                names.push(one);
            }
        }
        names
    }

    /// The subqueues in which jobs wait, as far as is known, and whose numbers are old; then those that were never told.
    pub(super) fn to_read(&self, now: Instant) -> Vec<Subqueue> {
        let mut names = self.by_age(|entry| entry.has_jobs() && !entry.is_fresh(now));
        let is_new = |entry: &BookEntry| entry.told.is_none() && !entry.has_jobs();
        names.extend(self.by_age(|entry| is_new(entry) && !entry.is_fresh(now)));
        names.truncate(self.0.len() / READ);
        names
    }

    /// Those that were told the longest time ago come first.
    fn by_age(&self, is: impl Fn(&BookEntry) -> bool) -> Vec<Subqueue> {
        let all = Subqueue::first(self.count()).zip(&self.0);
        let mut all: Vec<_> = all.filter(|(_, entry)| is(entry)).collect();
        all.sort_by_key(|(_, entry)| entry.asked_at);
        all.into_iter().map(|(one, _)| one).collect()
    }

    /// All together.
    pub fn sum(&self) -> Counts {
        let add = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
        self.0.iter().fold(Counts::default(), |sum, entry| Counts {
            available: sum.available + entry.waiting(),
            // Where the backend does not tell of jobs that wait for a time, those that passed here are known by their
            // ids elsewhere.
            scheduled: add(
                sum.scheduled,
                entry
                    .numbers()
                    .scheduled
                    .map(|told| told + entry.since_told().later),
            ),
            retryable: add(sum.retryable, entry.numbers().retryable),
        })
    }

    /// How many jobs wait no longer, as far as the backend told.
    pub(super) fn beside_waiting(&self) -> BesideWaiting {
        let told = self.0.iter().filter_map(|entry| entry.told);
        told.fold(BesideWaiting::default(), |mut sum, told| {
            let pairs = sum.0.iter_mut().zip(told.beside.0);
            pairs.for_each(|(sum, more)| *sum = sum.saturating_add(more));
            sum
        })
    }
}

impl BookEntry {
    /// Jobs of these flows came.
    fn note(&mut self, whose: Whose) {
        self.whose = self.whose.and(whose);
    }

    /// Whether jobs of several flows came since nothing waited, or are held: `held` are the tags of those. `None`: nobody
    /// here was told of all.
    fn is_shared(&self, held: &BTreeSet<u16>) -> Option<bool> {
        match self.whose {
            _ if held.len() > 1 => Some(true),
            _ if self.waiting() + self.later() == 0 => Some(false),
            Whose::Several => Some(true),
            Whose::One(tag) if held.iter().any(|other| *other != tag) => Some(true),
            Whose::One(_) if self.unheard == UnheardJobs::No => Some(false),
            Whose::One(_) | Whose::Nobodys => None,
        }
    }

    /// Jobs came, or so many were claimed, or the backend told how many there are.
    fn note_unclaimed(&mut self, claimed: u64) {
        let since = self.unclaimed_since.filter(|_| claimed == 0);
        let waits = self.waiting() > 0;
        self.unclaimed_since = waits.then(|| since.unwrap_or_else(Instant::now));
    }

    /// So many jobs came of which it is known whose they are.
    fn tag(&mut self, whose: Whose, came: u64) {
        if came > 0 {
            self.tagged += came;
            self.tagged_of = self.tagged_of.and(whose);
        }
    }

    /// So many of them wait no longer.
    fn untag(&mut self, gone: u64) {
        self.tagged = self.tagged.saturating_sub(gone);
        if self.tagged == 0 {
            self.tagged_of = Whose::Nobodys;
        }
    }

    /// How many jobs wait for a start.
    fn waiting(&self) -> u64 {
        let since = self.since_told();
        (self.numbers().available + since.came).saturating_sub(since.gone)
    }

    /// How many jobs wait for a time.
    fn later(&self) -> u64 {
        self.numbers().later() + self.since_told().later
    }

    /// What was counted beside the backend's numbers.
    fn since_told(&self) -> QuestionLeft {
        let (all, told) = (self.moved, self.told_with);
        QuestionLeft {
            came: all.came.saturating_sub(told.came),
            later: all.later.saturating_sub(told.later),
            gone: all.gone.saturating_sub(told.gone),
        }
    }

    /// The backend's numbers, as far as it told them.
    fn numbers(&self) -> Counts {
        self.told.unwrap_or_default().counts
    }

    /// Whether jobs wait or run there, or did since the backend was asked.
    fn has_jobs(&self) -> bool {
        let running = self.told.is_some_and(|told| told.beside.0[0] > 0);
        running || self.since_told().gone + self.waiting() + self.later() > 0
    }

    fn is_fresh(&self, now: Instant) -> bool {
        let fresh = match self.unheard {
            UnheardJobs::Perhaps => AGAIN,
            UnheardJobs::No | UnheardJobs::Yes => FRESH,
        };
        self.asked_at
            .is_some_and(|at| now.saturating_duration_since(at) < fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two questions may be on their way at once, and their answers come in any order.
    #[test]
    fn what_came_after_a_question_counts_whichever_answer_comes_last() {
        let one = Subqueue(7);
        let stored = |book: &mut SubqueueBook, jobs: u64| {
            let flow = Flow {
                subqueue: one,
                tag: 1,
            };
            (0..jobs).for_each(|_| book.stored(flow, MayStart::Now));
        };
        let told = |available| {
            let mut told = ToldNumbers::default();
            told.counts.available = available;
            told
        };
        let mut book = SubqueueBook::default();
        stored(&mut book, 10);
        let (first, second) = (book.asks(one).unwrap(), book.asks(one).unwrap());
        book.told(one, told(10), first);
        stored(&mut book, 5);
        book.told(one, told(10), second);
        assert_eq!(book.waiting_in(one), 15);
        let earlier = book.asks(one).unwrap();
        stored(&mut book, 1);
        let later = book.asks(one).unwrap();
        book.told(one, told(16), later);
        book.told(one, told(15), earlier);
        assert_eq!(book.waiting_in(one), 16);
    }
}
