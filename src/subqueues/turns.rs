//! Which subqueues of a queue are asked next, for one set of credentials.
//!
//! Nothing that is known of a subqueue keeps it from being asked for ever: each has a time at which it is due, and what
//! comes to it only makes that time sooner. A reply with fewer jobs than were asked for does not say that it is empty
//! (expired jobs use up places, rows may be locked), so it makes the pause longer, up to 3 s. Those that were silent for
//! long are asked by a sweep, sixteen names or more in one claim.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::book::{SubqueueBook, WaitsBehind};
use ojs_hold::{Behind, HeldOfSubqueue, Hold, QueuedGroup, starts_ahead};
use ojs_limit::{Key, Limited, Space, Timestamp, share_of};
use ojs_policy::subqueue::{Spread, Subqueue};

/// How long a subqueue is left alone after one, two, three … replies that were short. The longest is less than the sweep
/// takes for all, which would else come by too early each other time.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(3),
];

/// After so many short replies in a row only the sweep asks a subqueue.
const QUIET: u8 = 4;

/// A sweep names so many subqueues for each [`SWEEP_EVERY`] since the last one, so that 256 are asked within 4 s of
/// polling.
const SWEPT_AT_ONCE: usize = 16;
/// More of them are asked within 8 s.
const SWEEPS_OF_ALL: usize = 32;
/// The least time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// The most times that are made up for in one sweep: workers of some SDKs poll every second.
const SWEEPS_AT_ONCE: usize = 4;

/// So many subqueues are named in one question if what they last gave could start.
const NAMED_AT_ONCE: usize = 16;
/// So many questions are asked at once of subqueues whose jobs may have to wait.
const ASKED_AT_ONCE: usize = 8;

/// The most jobs that are asked of a subqueue at once.
const MOST_TRUST: u16 = 1_000;

/// How long it is known that jobs of two keys lie in one subqueue.
const COLLISION: Duration = Duration::from_secs(3_600);
/// A subqueue in which jobs of several keys wait is looked past as a whole, if no more than this wait there; and so many
/// of its jobs are held, once jobs of several keys came from it.
pub const LOOKED_PAST: usize = 32;
/// So many jobs are held of one, while the backend does not say how many wait there, nor anybody here whose they are.
const UNTOLD: usize = 8;
/// So many jobs are held at most of a subqueue whose key is shut, where that many may start at once.
const HEADS: usize = 8;

/// What is asked of the backend in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubqueueAsk {
    /// The subqueues that are named, in order.
    pub names: SmallVec<[Subqueue; 1]>,
    /// How often each had been marked before.
    marks: SmallVec<[u32; 1]>,
    /// For how many jobs it is asked.
    pub jobs: usize,
}

/// What is asked at once.
pub type Asks = Vec<SubqueueAsk>;

/// What is known of one subqueue.
#[derive(Clone, Debug)]
struct KnownSubqueue {
    /// When it is asked next.
    due: Instant,
    /// How many replies in a row were short.
    short: u8,
    /// How often something came to it.
    marks: u32,
    /// How many jobs may be asked of it at once: as many as started, without a refusal.
    trust: u16,
    /// The highest priority that may wait there, as far as enqueues here tell.
    highest: Option<i32>,
    /// The limits and the priority of the job that was seen last, and when it was seen that others lie there too.
    last: Option<Arc<[Limited]>>,
    last_priority: i32,
    collided_at: Option<Instant>,
    /// The tag of that job's flow.
    last_tag: Option<u16>,
}

/// What is held and known of the subqueues of a lane, as they are chosen from.
#[derive(Debug)]
pub(super) struct TurnsView<'a> {
    held: &'a HashMap<Subqueue, HeldOfSubqueue>,
    book: &'a SubqueueBook,
    now: Instant,
    left: PlacesLeft,
    in_turn: Option<&'a InTurn>,
}

/// How many jobs are asked of each subqueue whose group shares a window, or what jobs cost, with others by weight.
pub(super) type InTurn = BTreeMap<usize, usize>;

/// How many jobs more may be held beyond one for each subqueue.
#[derive(Clone, Copy, Debug)]
struct PlacesLeft {
    all: usize,
    /// Of those: to look past jobs of which nobody here was told, which may all be of shut keys.
    unheard: usize,
    /// Of those: for jobs behind a head that may start at once with it.
    heads: usize,
}

/// Why more than one job of a subqueue is held, or may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// Jobs of other keys wait behind those that are held, or came from there.
    Others,
    /// Jobs of which nobody here was told may wait behind them.
    Unheard,
    /// As many may start at once.
    Heads,
}

/// The groups that share a key by weight, each in its subqueue.
#[derive(Default)]
struct SharedKey {
    /// Their subqueues, and whether those may be asked now.
    names: Vec<(usize, bool)>,
    groups: Vec<QueuedGroup>,
    /// Whether it has no room.
    is_shut: bool,
    /// How many jobs may be held while it has none.
    heads: usize,
    /// How many started without a refusal.
    trust: usize,
}

/// The subqueues of one queue.
#[derive(Debug)]
pub(super) struct SubqueueTurns {
    each: Vec<KnownSubqueue>,
    /// How flows are spread over them.
    pub(super) spread: Spread,
    /// The one whose turn is next.
    next: usize,
    /// Whether the queue itself is asked next, and not its subqueues. They take turns, one claim each.
    pub(super) is_bases: bool,
    swept_at: Option<Instant>,
    swept_to: usize,
    /// When a worker last asked.
    pub(super) asked_at: Instant,
}

impl SubqueueTurns {
    /// Nothing is known yet: the sweep asks all of so many.
    pub(super) fn new(now: Instant, count: u16) -> SubqueueTurns {
        let mut turns = SubqueueTurns {
            each: Vec::new(),
            spread: Spread::default(),
            next: 0,
            is_bases: true,
            swept_at: None,
            swept_to: 0,
            asked_at: now,
        };
        turns.grow(now, count);
        turns
    }

    /// There are so many from now on, if those are more.
    pub(super) fn grow(&mut self, now: Instant, count: u16) {
        let unknown = KnownSubqueue {
            due: now,
            short: QUIET,
            marks: 0,
            trust: 1,
            highest: None,
            last: None,
            last_priority: 0,
            collided_at: None,
            last_tag: None,
        };
        let count = self.each.len().max(count.into());
        self.each.resize(count, unknown);
    }

    fn get(&mut self, subqueue: Subqueue) -> Option<&mut KnownSubqueue> {
        self.each.get_mut(subqueue.nth())
    }

    /// The places of all, this one first.
    fn round_from(&self, nth: usize) -> impl Iterator<Item = usize> + use<> {
        (nth..self.each.len()).chain(0..nth)
    }

    /// Something came to a subqueue: a job of this priority, if that is known. There may be more of them than was known.
    pub(super) fn mark(&mut self, subqueue: Subqueue, priority: Option<i32>, now: Instant) {
        self.grow(now, subqueue.0 + 1);
        if let Some(state) = self.get(subqueue) {
            (state.due, state.short) = (now, 0);
            state.marks = state.marks.wrapping_add(1);
            state.highest = state.highest.max(priority);
        }
    }

    /// Whether a subqueue that may be asked may have a job of a higher priority than `best`. Of one whose key is shut the
    /// others wait behind its head, whatever their priority.
    pub(super) fn outranks(&self, best: i32, standing: &TurnsView<'_>) -> bool {
        let mut each = self.each.iter().enumerate();
        each.any(|(nth, state)| state.highest > Some(best) && self.places(nth, standing) > 0)
    }

    /// What is held and known, as these subqueues are chosen from. No more than `most` jobs are held beyond one for
    /// each.
    pub(super) fn standing<'a>(
        &self,
        held: &'a HashMap<Subqueue, HeldOfSubqueue>,
        book: &'a SubqueueBook,
        most: usize,
        now: Instant,
    ) -> TurnsView<'a> {
        let left = PlacesLeft {
            all: most,
            unheard: most / 4,
            heads: most / 4,
        };
        let mut standing = TurnsView {
            held,
            book,
            now,
            left,
            in_turn: None,
        };
        for (subqueue, here) in held.iter().filter(|(_, here)| here.is_refused) {
            let more = here.jobs.saturating_sub(1);
            let reason = self.reason(*subqueue, here, &standing).0;
            standing.left.take(reason, more);
        }
        standing
    }

    /// How many jobs are claimed of groups that share a window, or what jobs cost, by weight. When a window opens, what is
    /// held starts at once, so claims go by the groups' turns as starts do. While the key is shut, no more are held than
    /// the next [`LOOKED_PAST`], or as many as may start in 200 ms, and one of each group.
    pub(super) fn in_turn(
        &self,
        lacking: usize,
        standing: &TurnsView<'_>,
        hold: &Hold,
        now: Timestamp,
    ) -> InTurn {
        let mut left = standing.left.of(Reason::Heads);
        let mut in_turn = InTurn::new();
        for key in self.shared_keys(standing).into_values() {
            let most = match key.is_shut {
                true => key.heads,
                false => key.heads.max(key.trust),
            };
            let claims = hold.claims_in_turn(&key.groups, lacking, most, now);
            for (((nth, may_ask), of), jobs) in key.names.iter().zip(&key.groups).zip(claims) {
                let head = usize::from(key.is_shut && of.held == 0);
                let mut more = jobs.saturating_sub(head);
                if key.is_shut {
                    more = more.min(left);
                    left -= more;
                }
                if *may_ask {
                    in_turn.insert(*nth, head + more);
                }
            }
        }
        in_turn
    }

    /// The keys of which groups share a window, or what jobs cost, by weight, with the subqueue of each group. Where jobs
    /// of other keys wait too, or another key has refused the head, a subqueue takes no such turns.
    fn shared_keys(&self, standing: &TurnsView<'_>) -> BTreeMap<(Space, &Key), SharedKey> {
        let mut keys: BTreeMap<(Space, &Key), SharedKey> = BTreeMap::new();
        for (subqueue, state) in (0..).map(Subqueue).zip(&self.each) {
            let Some((limits, one)) = (state.last.as_ref()).and_then(shared_window) else {
                continue;
            };
            let here = standing.held.get(&subqueue);
            let is_refused = here.is_some_and(|here| here.is_refused);
            let in_line = here.is_none_or(|here| {
                here.waits_for_turn && self.reason(subqueue, here, standing).0 == Reason::Heads
            });
            if is_refused && !in_line {
                continue;
            }
            let held = here.map_or(0, |here| here.jobs);
            let may_ask = state.due <= standing.now && state.short < QUIET;
            let told = usize::try_from(standing.book.waiting_in(subqueue)).unwrap_or(usize::MAX);
            let most = usize::from(state.most_at_once()).saturating_sub(held);
            let waiting = told.max(state.trust.into()).min(most);
            let key = keys.entry((one.space, &one.key)).or_default();
            key.is_shut |= is_refused;
            key.trust += usize::from(state.trust);
            key.heads = starts_ahead(limits).unwrap_or(0).max(LOOKED_PAST);
            key.names.push((subqueue.nth(), may_ask));
            key.groups.push(QueuedGroup {
                limits: Arc::clone(limits),
                priority: state.highest.unwrap_or(state.last_priority),
                held,
                waiting: if may_ask { waiting } else { 0 },
            });
        }
        keys
    }

    /// The subqueues with refused jobs behind which it is not known what waits.
    pub(super) fn doubtful(&self, standing: &TurnsView<'_>) -> Vec<Subqueue> {
        let refused = standing.held.iter().filter(|(_, here)| here.is_refused);
        let doubtful = refused.filter(|(subqueue, _)| {
            let state = self.each.get(subqueue.nth());
            let tag = state.and_then(|state| state.last_tag);
            standing.book.is_doubtful(**subqueue, tag, standing.now)
        });
        doubtful.map(|(subqueue, _)| *subqueue).collect()
    }

    /// What is asked of the backend now, for no more than `lacking` jobs. Nothing is asked of a subqueue of which as many
    /// jobs are held as may start when its key has room again.
    pub(super) fn choose(&mut self, lacking: usize, standing: &TurnsView<'_>) -> Asks {
        if lacking == 0 {
            return Asks::new();
        }
        // One job more than is lacking: with workers that ask for one it would else be the sweep or the others.
        let mut asks: Asks = self.sweep(standing).into_iter().collect();
        let mut due: Vec<usize> = self.round_from(self.next).collect();
        due.retain(|nth| self.places(*nth, standing) > 0 && !self.is_quiet(*nth));
        // Of one priority they keep their turns.
        due.sort_by_key(|nth| {
            self.each
                .get(*nth)
                .map(|state| std::cmp::Reverse(state.highest))
        });
        let Some(first) = due.first().copied() else {
            return asks;
        };
        self.next = (first + 1) % self.each.len();
        let is_trusted = |nth: &usize| {
            let trusts = self.each.get(*nth).is_some_and(|state| state.trust > 1);
            trusts && standing.turn_of(*nth).is_none()
        };
        if is_trusted(&first) {
            let trusted = due.into_iter().filter(is_trusted);
            let trusted: Vec<usize> = trusted.take(NAMED_AT_ONCE).collect();
            let states = trusted.iter().filter_map(|nth| self.each.get(*nth));
            let trust = states.map(|state| state.trust);
            let jobs = lacking.min(trust.min().unwrap_or(1).into());
            asks.extend(self.ask(trusted, jobs));
        } else {
            due.retain(|nth| !is_trusted(nth));
            asks.extend(self.ask_doubtful(due, lacking, standing));
        }
        asks
    }

    /// Asks subqueues whose jobs may have to wait: one by one, so that none takes the places of another. But those that a
    /// question empties are asked together.
    fn ask_doubtful(
        &mut self,
        due: Vec<usize>,
        mut lacking: usize,
        standing: &TurnsView<'_>,
    ) -> Asks {
        let (mut asks, mut standing) = (Asks::new(), TurnsView { ..*standing });
        let (mut together, mut waiting) = (Vec::new(), 0);
        for nth in due {
            if lacking == 0 || asks.len() == ASKED_AT_ONCE {
                break;
            }
            self.next = (nth + 1) % self.each.len();
            let Some(all) = self.emptied_at_once(nth, &standing) else {
                let jobs = self.jobs_at_once(nth, &mut standing);
                asks.extend(self.ask(vec![nth], jobs));
                lacking -= 1;
                continue;
            };
            together.push(nth);
            waiting += all.min(lacking);
            lacking = lacking.saturating_sub(all);
            if together.len() == NAMED_AT_ONCE {
                let names = std::mem::take(&mut together);
                asks.extend(self.ask(names, waiting + lacking.min(1)));
                waiting = 0;
            }
        }
        // One job more: a reply without it says that they are empty.
        asks.extend(self.ask(together, (waiting + lacking.min(1)).max(1)));
        asks
    }

    /// How many jobs are asked of a subqueue to empty it: as many as were told of here, if a job of each of their keys may
    /// start, or none where the last reply was short. As many of which nobody was told may come in their place, so there
    /// must be room to hold them.
    fn emptied_at_once(&self, nth: usize, standing: &TurnsView<'_>) -> Option<usize> {
        if standing.turn_of(nth).is_some() {
            return None;
        }
        let subqueue = Subqueue::at(nth)?;
        let was_short = self.each.get(nth)?.short > 0;
        let (waiting, is_heard) = match standing.book.waiting_in(subqueue) {
            0 if was_short && !standing.book.has_tagged(subqueue) => (0, false),
            _ => standing.book.all_at_once(subqueue)?,
        };
        let waiting = usize::try_from(waiting).ok()?;
        let reason = match is_heard {
            true => Reason::Others,
            false => Reason::Heads,
        };
        let most = LOOKED_PAST.min(standing.left.of(reason));
        (waiting.max(1) <= most && !standing.held.contains_key(&subqueue)).then_some(waiting)
    }

    /// As many jobs are asked of subqueues as heads of theirs start, but where groups take turns.
    pub(super) fn heads(
        &self,
        started: &HashMap<Subqueue, usize>,
        standing: &TurnsView<'_>,
    ) -> Asks {
        let in_turn = standing.in_turn.into_iter().flatten();
        let in_turn = in_turn.map(|(nth, jobs)| (*nth, *jobs));
        let started = started
            .iter()
            .map(|(subqueue, jobs)| (subqueue.nth(), *jobs));
        let started = started.filter(|(nth, _)| standing.turn_of(*nth).is_none());
        let due = in_turn.chain(started.map(|(nth, jobs)| (nth, jobs.min(HEADS))));
        let due = due.filter(|(nth, _)| self.places(*nth, standing) > 0);
        let due = due.filter_map(|(nth, jobs)| self.ask(vec![nth], jobs));
        due.take(ASKED_AT_ONCE).collect()
    }

    fn ask(&self, names: Vec<usize>, jobs: usize) -> Option<SubqueueAsk> {
        let name = |nth: usize| Some((Subqueue::at(nth)?, self.each.get(nth)?.marks));
        let (names, marks): (SmallVec<_>, SmallVec<_>) = names.into_iter().filter_map(name).unzip();
        (!names.is_empty()).then_some(SubqueueAsk { names, marks, jobs })
    }

    /// One job is asked of the next of those that were silent for long.
    fn sweep(&mut self, standing: &TurnsView<'_>) -> Option<SubqueueAsk> {
        let now = standing.now;
        let since = self
            .swept_at
            .map_or(SWEEP_EVERY, |at| now.duration_since(at));
        let sweeps = since.as_millis() / SWEEP_EVERY.as_millis();
        let sweeps = usize::try_from(sweeps).map_or(SWEEPS_AT_ONCE, |of| of.min(SWEEPS_AT_ONCE));
        if sweeps == 0 {
            return None;
        }
        let all = self.round_from(self.swept_to);
        let quiet = all.filter(|nth| self.places(*nth, standing) > 0 && self.is_quiet(*nth));
        let at_once = SWEPT_AT_ONCE.max(self.each.len() / SWEEPS_OF_ALL);
        let names: Vec<usize> = quiet.take(sweeps * at_once).collect();
        self.swept_to = (names.last()? + 1) % self.each.len();
        self.swept_at = Some(now);
        self.ask(names, 1)
    }

    fn is_quiet(&self, nth: usize) -> bool {
        self.each.get(nth).is_some_and(|state| state.short >= QUIET)
    }

    /// How many jobs of a subqueue may be held beside those that are; 0: it is not asked now.
    fn places(&self, nth: usize, standing: &TurnsView<'_>) -> usize {
        let Some(state) = self.each.get(nth).filter(|state| state.due <= standing.now) else {
            return 0;
        };
        if let Some(jobs) = standing.turn_of(nth) {
            return jobs;
        }
        let here = standing.held_of(nth);
        let Some((subqueue, here)) = here else {
            return state.trust.into();
        };
        if !here.is_refused {
            return usize::from(state.trust).saturating_sub(here.jobs);
        }
        let (reason, most) = self.reason(subqueue, here, standing);
        let places = most.saturating_sub(here.jobs);
        places.min(standing.left.of(reason))
    }

    /// Why more than the first of the refused jobs of a subqueue are held, and how many may be.
    fn reason(
        &self,
        subqueue: Subqueue,
        here: &HeldOfSubqueue,
        standing: &TurnsView<'_>,
    ) -> (Reason, usize) {
        let state = self.each.get(subqueue.nth());
        let collided_at = state.and_then(|state| state.collided_at);
        if collided_at.is_some_and(|at| standing.now < at + COLLISION) {
            return (Reason::Others, LOOKED_PAST);
        }
        // All that wait there, if that is within reach.
        let past = |waiting: u64| {
            let waiting = usize::try_from(waiting).ok();
            waiting.filter(|waiting| *waiting <= LOOKED_PAST)
        };
        let tag = state.and_then(|state| state.last_tag);
        let (reason, most) = match standing.book.behind(subqueue, tag) {
            WaitsBehind::SameFlow => (Reason::Heads, None),
            WaitsBehind::Others(waiting) => {
                (Reason::Others, past(waiting).map(|all| here.jobs + all))
            }
            WaitsBehind::Unheard(Some(waiting)) => {
                (Reason::Unheard, past(waiting).map(|all| here.jobs + all))
            }
            WaitsBehind::Unheard(None) => (Reason::Unheard, Some(UNTOLD)),
        };
        let heads = heads_of(&here.limits);
        match most.filter(|most| *most > heads) {
            Some(most) => (reason, most),
            None => (Reason::Heads, heads),
        }
    }

    /// Whether jobs wait behind refused ones of a subqueue that may be of other flows, and none of them is asked for.
    pub(super) fn hides(&self, subqueue: Subqueue, standing: &TurnsView<'_>) -> bool {
        let here = standing.held.get(&subqueue);
        let Some(here) = here.filter(|here| here.is_refused) else {
            return false;
        };
        let (reason, most) = self.reason(subqueue, here, standing);
        let places = most.saturating_sub(here.jobs).min(standing.left.of(reason));
        let state = self.each.get(subqueue.nth());
        let tag = state.and_then(|state| state.last_tag);
        let waits = match standing.book.behind(subqueue, tag) {
            WaitsBehind::Others(jobs) | WaitsBehind::Unheard(Some(jobs)) => jobs > 0,
            WaitsBehind::SameFlow | WaitsBehind::Unheard(None) => false,
        };
        waits && places == 0
    }

    /// How many jobs are asked of a subqueue that is asked by itself: one, or all that are looked past.
    fn jobs_at_once(&self, nth: usize, standing: &mut TurnsView<'_>) -> usize {
        if let Some(jobs) = standing.turn_of(nth) {
            return jobs;
        }
        let here = standing.held_of(nth);
        let Some((subqueue, here)) = here.filter(|(_, here)| here.is_refused) else {
            return 1;
        };
        let reason = self.reason(subqueue, here, standing).0;
        let jobs = match reason {
            Reason::Heads => 1,
            Reason::Others | Reason::Unheard => self.places(nth, standing).max(1),
        };
        standing.left.take(reason, jobs);
        jobs
    }

    /// The backend answered a question with jobs of these subqueues and priorities, and `behind` them is more or nothing.
    pub(super) fn answered(
        &mut self,
        ask: &SubqueueAsk,
        came: impl Iterator<Item = (Subqueue, i32, Arc<[Limited]>)>,
        behind: Behind,
        book: &SubqueueBook,
        now: Instant,
    ) {
        let (spread, mut gave): (_, SmallVec<[Subqueue; 8]>) = (self.spread, SmallVec::new());
        for (subqueue, priority, limits) in came {
            gave.push(subqueue);
            if let Some(state) = self.get(subqueue) {
                // The backend gives the highest first.
                state.highest = state.highest.map(|_| priority);
                state.last_priority = priority;
                state.saw(subqueue, limits, spread, now);
            }
        }
        // A backend empties the first before it looks at the next.
        let last = ask.names.iter().rposition(|one| gave.contains(one));
        for (nth, (subqueue, marks)) in ask.names.iter().zip(&ask.marks).enumerate() {
            let Some(state) = self.get(*subqueue) else {
                continue;
            };
            let is_short = behind == Behind::Nothing || Some(nth) < last;
            // Something came while the question was on its way: the reply may be older.
            if state.marks != *marks {
                continue;
            }
            if !is_short {
                if gave.contains(subqueue) {
                    (state.due, state.short) = (now, 0);
                } else if state.short >= QUIET {
                    // The others of a sweep that found a job stand behind it unasked: each is asked by itself.
                    state.short = QUIET - 1;
                }
            } else if gave.contains(subqueue) && book.has_tagged(*subqueue) {
                (state.due, state.short) = (now, 1);
                state.highest = None;
            } else {
                if gave.contains(subqueue) {
                    // All that was told of, so that nothing more is expected at once.
                    state.short = 1;
                }
                let pause = PAUSES.get(usize::from(state.short)).or(PAUSES.last());
                state.due = now + pause.copied().unwrap_or_default();
                state.short = state.short.saturating_add(1);
                state.highest = None;
            }
        }
    }

    /// A job of a subqueue started. If it did not have to wait, more may be asked for at once.
    pub(super) fn started(&mut self, subqueue: Subqueue, waited: Waited) {
        if let Some(state) = self.get(subqueue)
            && waited == Waited::No
        {
            state.trust = state.trust.saturating_add(1).min(state.most_at_once());
        }
    }

    /// A job of a subqueue was refused.
    pub(super) fn refused(&mut self, subqueue: Subqueue) {
        if let Some(state) = self.get(subqueue) {
            state.trust = 1;
        }
    }
}

/// Whether a limit refused a job before it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Waited {
    Yes,
    No,
}

impl KnownSubqueue {
    /// The most jobs that can start at once under the limits that were seen last.
    fn most_at_once(&self) -> u16 {
        let limits = self.last.iter().flat_map(|limits| limits.iter());
        let slots = limits.filter_map(|one| one.limits.concurrency);
        let slots = slots.map(|slots| u16::try_from(slots).unwrap_or(MOST_TRUST));
        slots.min().unwrap_or(MOST_TRUST).clamp(1, MOST_TRUST)
    }

    /// A job came from it.
    fn saw(&mut self, subqueue: Subqueue, limits: Arc<[Limited]>, spread: Spread, now: Instant) {
        let is_other = |last: &Arc<[Limited]>| {
            let keys = |limits: &Arc<[Limited]>| -> Vec<_> {
                let group = |one: &Limited| one.share.as_ref().map(|share| share.group.clone());
                limits
                    .iter()
                    .map(|one| (one.space, one.key.clone(), group(one)))
                    .collect()
            };
            !Arc::ptr_eq(last, &limits) && keys(last) != keys(&limits)
        };
        match &self.last {
            Some(last) if !is_other(last) => {}
            last => {
                self.collided_at = last.as_ref().map(|_| now).or(self.collided_at);
                self.last_tag = spread.tag_in(subqueue, &limits);
            }
        }
        self.last = Some(limits);
    }
}

impl<'a> TurnsView<'a> {
    /// What is held and known, with how many jobs are asked where groups take turns.
    pub(super) fn with(self, in_turn: &'a InTurn) -> TurnsView<'a> {
        let in_turn = Some(in_turn);
        TurnsView { in_turn, ..self }
    }

    /// How many jobs are asked of a subqueue whose group takes turns; `None`: it takes none.
    fn turn_of(&self, nth: usize) -> Option<usize> {
        self.in_turn?.get(&nth).copied()
    }

    /// What is held of a subqueue.
    fn held_of(&self, nth: usize) -> Option<(Subqueue, &'a HeldOfSubqueue)> {
        let subqueue = Subqueue::at(nth)?;
        Some((subqueue, self.held.get(&subqueue)?))
    }
}

impl PlacesLeft {
    /// How many jobs may be held for this reason.
    fn of(&self, reason: Reason) -> usize {
        match reason {
            Reason::Others => self.all,
            Reason::Unheard => self.all.min(self.unheard),
            Reason::Heads => self.all.min(self.heads),
        }
    }

    fn take(&mut self, reason: Reason, jobs: usize) {
        self.all = self.all.saturating_sub(jobs);
        match reason {
            Reason::Others => {}
            Reason::Unheard => self.unheard = self.unheard.saturating_sub(jobs),
            Reason::Heads => self.heads = self.heads.saturating_sub(jobs),
        }
    }
}

/// How many jobs under these limits are held where they have no room: as many as may start at once when they have, or
/// within 200 ms, so that the way to the backend costs them nothing.
fn heads_of(limits: &[Limited]) -> usize {
    let slots = limits.iter().filter_map(|one| one.limits.concurrency);
    let slots = slots.map(|slots| usize::try_from(slots).unwrap_or(usize::MAX));
    let starts = starts_ahead(limits);
    slots.chain(starts).min().unwrap_or(1).clamp(1, HEADS)
}

/// The limits of a job whose group shares a window of a key by weight, or what jobs cost, and that key.
fn shared_window(limits: &Arc<[Limited]>) -> Option<(&Arc<[Limited]>, &Limited)> {
    let (one, _) = share_of(limits)?;
    let has_window = !one.limits.rates.is_empty() || one.cost.rule.is_some();
    has_window.then_some((limits, one))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ToldNumbers;
    use crate::book::MayStart;
    use ojs_limit::{Key, Limits, Space};
    use ojs_policy::subqueue::{COUNT, Flow, MOST};

    fn nothing_held() -> HashMap<Subqueue, HeldOfSubqueue> {
        HashMap::new()
    }

    fn limits(key: &str) -> Arc<[Limited]> {
        let slot = Limits {
            concurrency: Some(1),
            ..Limits::default()
        };
        [Limited::new(
            Space::Job,
            Key::new(key).unwrap(),
            slot,
            Arc::from("p"),
        )]
        .into()
    }

    fn held(jobs: usize, is_refused: bool) -> HeldOfSubqueue {
        HeldOfSubqueue {
            jobs,
            is_refused,
            waits_for_turn: false,
            limits: limits("k"),
        }
    }

    fn names(asks: &Asks) -> Vec<u16> {
        asks.iter()
            .flat_map(|ask| ask.names.iter().map(|name| name.0))
            .collect()
    }

    /// The book of a queue in which nobody's jobs wait beside those that are held.
    fn empty_book() -> SubqueueBook {
        let mut book = SubqueueBook::default();
        for one in Subqueue::first(COUNT) {
            let left = book.asks(one).unwrap();
            book.told(one, ToldNumbers::default(), left);
        }
        book
    }

    /// Turns that were swept just now, and of which something came to the first few.
    fn marked(few: u16, now: Instant) -> SubqueueTurns {
        let mut turns = SubqueueTurns::new(now, COUNT);
        turns.swept_at = Some(now);
        Subqueue::first(few).for_each(|one| turns.mark(one, None, now));
        turns
    }

    fn choose(
        turns: &mut SubqueueTurns,
        lacking: usize,
        held: &HashMap<Subqueue, HeldOfSubqueue>,
        now: Instant,
    ) -> Asks {
        let book = empty_book();
        let standing = turns.standing(held, &book, 1_024, now);
        turns.choose(lacking, &standing)
    }

    fn outranks(
        turns: &SubqueueTurns,
        best: i32,
        held: &HashMap<Subqueue, HeldOfSubqueue>,
        now: Instant,
    ) -> bool {
        let book = empty_book();
        turns.outranks(best, &turns.standing(held, &book, 1_024, now))
    }

    fn nobody() -> impl Iterator<Item = (Subqueue, i32, Arc<[Limited]>)> {
        std::iter::empty()
    }

    const MS: Duration = Duration::from_millis(1);
    const SEVEN: Subqueue = Subqueue(7);

    /// Of nothing that is known, 256 are asked within 4 s and 1,024 within 8, and again and again: none is ever forgotten.
    #[tokio::test(start_paused = true)]
    async fn the_sweep_asks_each_within_seconds_and_never_forgets_one() {
        for (count, at_once, all_after) in [(COUNT, SWEPT_AT_ONCE, 80), (MOST, 32, 160)] {
            let begun = Instant::now();
            let mut turns = SubqueueTurns::new(begun, count);
            let mut last = vec![None; count.into()];
            let mut longest = Duration::ZERO;
            for tick in 0..1_200 {
                let now = begun + 50 * tick * MS;
                for ask in choose(&mut turns, 10, &nothing_held(), now) {
                    assert!(ask.names.len() <= at_once && ask.jobs == 1);
                    for name in &ask.names {
                        let before = last[name.nth()].replace(now);
                        longest = longest.max(now - before.unwrap_or(begun));
                    }
                    turns.answered(&ask, nobody(), Behind::Nothing, &empty_book(), now);
                }
                if tick == all_after {
                    assert!(last.iter().all(Option::is_some), "{count}");
                }
            }
            assert!(longest < Duration::from_secs(13), "{count}: {longest:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_older_than_a_mark_says_nothing() {
        let now = Instant::now();
        let mut turns = marked(0, now);
        turns.mark(SEVEN, None, now);
        let asks = choose(&mut turns, 1, &nothing_held(), now);
        assert_eq!(names(&asks), [7]);
        turns.mark(SEVEN, None, now);
        turns.answered(&asks[0], nobody(), Behind::Nothing, &empty_book(), now);
        for pause in [0, 0, 250, 500, 1_000] {
            // Asked at once, at once again, and then later each time.
            let mut at = now;
            let asks = loop {
                let asks = choose(&mut turns, 1, &nothing_held(), at);
                turns.swept_at = Some(at);
                if !asks.is_empty() || at > now + 2_000 * MS {
                    break asks;
                }
                at += MS;
            };
            assert_eq!(asks.is_empty(), pause == 1_000, "{pause}");
            for ask in &asks {
                turns.answered(ask, nobody(), Behind::Nothing, &empty_book(), at);
            }
        }
        turns.mark(SEVEN, None, now);
        assert_eq!(names(&choose(&mut turns, 1, &nothing_held(), now)), [7]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shut_one_gives_one_head_and_the_others_go_on() {
        let now = Instant::now();
        let mut turns = marked(3, now);
        let mut here = nothing_held();
        here.insert(Subqueue(1), held(1, true));
        assert_eq!(names(&choose(&mut turns, 9, &here, now)), [0, 2]);
        // Where two keys are seen in it, the head may not be the one that matters.
        let asks = choose(&mut turns, 9, &nothing_held(), now);
        let of_one = asks.iter().find(|ask| ask.names[0] == Subqueue(1)).unwrap();
        let two = [limits("a"), limits("b")].map(|limits| (Subqueue(1), 0, limits));
        turns.answered(of_one, two.into_iter(), Behind::More, &empty_book(), now);
        assert!(names(&choose(&mut turns, 9, &here, now)).contains(&1));
        here.insert(Subqueue(1), held(LOOKED_PAST, true));
        assert!(!names(&choose(&mut turns, 9, &here, now)).contains(&1));
    }

    /// Of jobs of other keys behind a held head all are asked for, if they are within reach and there are places.
    #[tokio::test(start_paused = true)]
    async fn what_stands_behind_a_head_is_looked_past_as_a_whole() {
        let now = Instant::now();
        let flow = |tag| Flow {
            subqueue: SEVEN,
            tag,
        };
        let here = HashMap::from([(SEVEN, held(1, true))]);
        let asked = |book: &SubqueueBook, most: usize| -> Option<usize> {
            let mut turns = marked(0, now);
            turns.mark(SEVEN, None, now);
            let standing = turns.standing(&here, book, most, now);
            let asks = turns.choose(9, &standing);
            asks.first().map(|ask| ask.jobs)
        };
        let mut book = empty_book();
        let head = Spread::default().tag_in(SEVEN, &limits("k"));
        for nth in 0..31 {
            book.stored(flow(1), MayStart::Now);
            assert_eq!(asked(&book, 1_024), Some(nth + 1), "another flow");
        }
        assert_eq!(asked(&book, 20), Some(20), "as many as there are places");
        book.stored(flow(2), MayStart::Now);
        assert_eq!(asked(&book, 1_024), Some(32));
        book.stored(flow(2), MayStart::Now);
        assert_eq!(asked(&book, 1_024), None, "out of reach");
        // They are gone at the backend; what nobody here was told of gets a quarter of the places.
        let left = book.asks(SEVEN).unwrap();
        book.told(SEVEN, ToldNumbers::default(), left);
        assert_eq!(asked(&book, 1_024), None, "{head:?}");
        let left = book.asks(SEVEN).unwrap();
        let mut told = ToldNumbers::default();
        told.counts.available = 9;
        book.told(SEVEN, told, left);
        assert_eq!(asked(&book, 1_024), None, "a sibling is about to tell");
        tokio::time::advance(Duration::from_millis(200)).await;
        let left = book.asks(SEVEN).unwrap();
        book.told(SEVEN, told, left);
        assert_eq!(asked(&book, 1_024), Some(9));
        assert_eq!(asked(&book, 20), Some(5));
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_granted_is_asked_for_more_and_who_was_refused_for_one() {
        let now = Instant::now();
        let mut turns = marked(20, now);
        let asks = choose(&mut turns, 100, &nothing_held(), now);
        assert_eq!((asks.len(), asks[0].jobs), (ASKED_AT_ONCE, 1));
        for _ in 0..9 {
            (0..18).for_each(|one| turns.started(Subqueue(one), Waited::No));
            turns.started(Subqueue(18), Waited::Yes);
        }
        turns.next = 0;
        let asks = choose(&mut turns, 100, &nothing_held(), now);
        assert_eq!((asks[0].names.len(), asks[0].jobs), (NAMED_AT_ONCE, 10));
        assert_eq!(
            choose(&mut turns, 4, &nothing_held(), now)[0].jobs,
            4,
            "never more than is lacking"
        );
        turns.refused(Subqueue(0));
        turns.next = 0;
        assert_eq!(
            names(&choose(&mut turns, 100, &nothing_held(), now)),
            [0, 18, 19]
        );
    }

    /// Subqueues that a question empties are asked together, and left alone once a reply says that they are empty.
    #[tokio::test(start_paused = true)]
    async fn what_a_question_empties_is_asked_together() {
        let now = Instant::now();
        let mut turns = marked(20, now);
        let mut book = SubqueueBook::default();
        let mut stored = |subqueue: u16, tag| {
            let subqueue = Subqueue(subqueue);
            book.stored(Flow { subqueue, tag }, MayStart::Now);
        };
        for subqueue in 0..20 {
            stored(subqueue, 1);
        }
        stored(2, 2);
        (0..2).for_each(|_| stored(3, 1));
        let here = nothing_held();
        let standing = turns.standing(&here, &book, 1_024, now);
        let asks = turns.choose(100, &standing);
        let asked: Vec<_> = asks.iter().map(|ask| (ask.names.len(), ask.jobs)).collect();
        assert_eq!(
            asked,
            [(1, 1), (16, 18), (3, 4)],
            "three jobs of one key are not asked for"
        );
        // The jobs of the first four are all that come.
        let gave = [0, 1, 2, 2].map(|one| (Subqueue(one), 0, limits("k")));
        for one in [0, 1, 2, 2] {
            book.claimed(Subqueue(one));
        }
        turns.answered(&asks[1], gave.into_iter(), Behind::More, &book, now);
        turns.next = 0;
        let standing = turns.standing(&here, &book, 1_024, now);
        let asks = turns.choose(1, &standing);
        assert_eq!(names(&asks), [2], "which may have more");
        turns.next = 4;
        let standing = turns.standing(&here, &book, 1_024, now);
        assert_eq!(
            turns.choose(4, &standing)[0].jobs,
            4,
            "as many as are lacking"
        );
        let standing = turns.standing(&here, &book, 0, now);
        let alone = turns.choose(4, &standing);
        assert!(
            alone.iter().all(|ask| ask.names.len() == 1),
            "nobody may be held"
        );
        let later = now + 250 * MS;
        (turns.next, turns.swept_at) = (0, Some(later));
        let standing = turns.standing(&here, &book, 1_024, later);
        let asks = turns.choose(2, &standing);
        assert_eq!(names(&asks), [2, 3, 0, 1]);
        assert_eq!(asks.last().unwrap().jobs, 1, "whether something came there");
    }

    #[tokio::test(start_paused = true)]
    async fn the_highest_priority_is_asked_first() {
        let now = Instant::now();
        let mut turns = marked(9, now);
        turns.mark(SEVEN, Some(5), now);
        let here = nothing_held();
        assert!(outranks(&turns, 4, &here, now) && !outranks(&turns, 5, &here, now));
        let shut = HashMap::from([(SEVEN, held(1, true))]);
        assert!(!outranks(&turns, 4, &shut, now), "its head is held");
        assert_eq!(names(&choose(&mut turns, 1, &nothing_held(), now)), [7]);
        turns.mark(SEVEN, Some(5), now);
        let asks = choose(&mut turns, 1, &nothing_held(), now);
        turns.answered(
            &asks[0],
            [(SEVEN, 0, limits("k"))].into_iter(),
            Behind::More,
            &empty_book(),
            now,
        );
        assert!(
            !outranks(&turns, 0, &here, now),
            "what came last was of a lower one"
        );
    }
}
