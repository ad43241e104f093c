//! What this sidecar saw of keys and bounded queues lately: starts, refusals and waits, in steps of ten seconds. It
//! ranks the keys for those who look, and no decision goes by it.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use ojs_limit::{self as limit, Limited, Refusal, Space, each_paid_key, share_of};

/// A status; `None`: one that HTTP does not have.
pub(super) type AnswerStatus = Option<u16>;
/// What services answered with one status by one way out: how often ever, and in the last minute.
type Answers = (Arc<str>, AnswerStatus, u64, u32);
/// A key and its space: a job key may have the name of a queue.
pub type SpacedKey = (Space, limit::Key);

/// How long a step lasts, in seconds.
pub const STEP: u64 = 10;
/// Steps of a minute, the one under way among them.
const MINUTE: usize = 6;
/// Steps that are kept of each key.
const RECENT: usize = 2 * MINUTE;
/// Steps of an hour, which are kept of the first keys alone.
const HOUR: usize = 360;
/// The memory for all hours, in bytes.
const MOST_BYTES: usize = 512 * 1024;
/// So many keys are followed, and so many queues; beyond that those of which nothing was seen for a minute make place.
const MOST_KEYS: usize = 20_000;
/// Of so many keys with `fair` it is kept who started how many.
const SHARED_KEYS: usize = 32;
/// So many groups of a key are told apart in a minute.
const GROUPS: usize = 16;
/// So many groups are shown by their names.
const SHOWN_GROUPS: usize = 7;
/// Growth is told from looks that are so many steps apart at least.
const APART: i64 = 3;

/// What was seen. Shared by the threads of one sidecar.
#[derive(Debug)]
pub struct Activity {
    began: Instant,
    /// So many keys get an hour.
    hours: usize,
    book: Mutex<ByName>,
}

#[derive(Default, Debug)]
struct ByName {
    keys: HashMap<SpacedKey, Recent>,
    /// Refused enqueues by queue, as refusals.
    queues: HashMap<Arc<str>, Recent>,
    /// Who started how many, of each key with `fair`.
    groups: HashMap<SpacedKey, GroupStarts>,
    /// What services answered, by way out and status: how often ever, and as starts.
    answers: HashMap<(Arc<str>, AnswerStatus), (u64, Recent)>,
    /// Keys that have an hour.
    hours: usize,
    /// The step in which keys last made place, and that of queues.
    tidied: u64,
    tidied_queues: u64,
}

/// What was seen in some time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Point {
    /// Jobs that started.
    pub starts: u32,
    /// Questions for a start that were refused.
    pub refused: u32,
    /// The longest wait of a job that started, in milliseconds.
    pub waited_ms: u32,
    /// Whether one was refused because the key was shut or paused.
    pub closed: bool,
}

impl Point {
    fn add(&mut self, other: Point) {
        self.starts = self.starts.saturating_add(other.starts);
        self.refused = self.refused.saturating_add(other.refused);
        self.waited_ms = self.waited_ms.max(other.waited_ms);
        self.closed |= other.closed;
    }
}

/// Who started how many under one key: the minutes of the last hour in which any did, oldest first.
type GroupStarts = VecDeque<(u64, Vec<(Arc<str>, u32)>)>;

/// Starts of one group in each of the last 60 minutes, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Band {
    /// The group; `None`: all that are not named.
    pub group: Option<Arc<str>>,
    /// Its starts.
    pub starts: Vec<u32>,
}

/// The last points of one key, without gaps.
#[derive(Debug)]
struct Recent {
    points: VecDeque<Point>,
    /// The step of the last point.
    last: u64,
    /// So many points are kept.
    most: usize,
    /// How many waited when somebody looked, with the step; the last look of each.
    looks: VecDeque<(u64, u64)>,
}

impl Recent {
    fn new(step: u64, most: usize) -> Recent {
        Recent {
            points: VecDeque::from([Point::default()]),
            last: step,
            most,
            looks: VecDeque::new(),
        }
    }

    /// Begins points until that of `step` is there.
    fn go_on(&mut self, step: u64) {
        let missing = step.saturating_sub(self.last);
        self.last += missing;
        for _ in 0..missing.min(self.most as u64) {
            if self.points.len() >= self.most {
                self.points.pop_front();
            }
            self.points.push_back(Point::default());
        }
    }

    fn add(&mut self, step: u64, seen: Point) {
        self.go_on(step);
        if let Some(last) = self.points.back_mut() {
            last.add(seen);
        }
    }

    /// Somebody sees so many wait. How many more that are in a minute than were, by the looks of the last minute.
    fn waits(&mut self, step: u64, waiting: u64) -> Option<i64> {
        self.looks
            .retain(|(then, _)| *then != step && step.saturating_sub(*then) <= MINUTE as u64);
        self.looks.push_back((step, waiting));
        let (first, before) = *self.looks.front()?;
        let steps = i64::try_from(step.saturating_sub(first)).ok()?;
        let more = waiting.cast_signed() - before.cast_signed();
        (steps >= APART).then(|| more * MINUTE as i64 / steps)
    }

    /// The sum of the last minute.
    fn minute(&self, step: u64) -> Point {
        let over = usize::try_from(step.saturating_sub(self.last)).unwrap_or(MINUTE);
        let mut sum = Point::default();
        let in_time = self.points.iter().rev().take(MINUTE.saturating_sub(over));
        in_time.for_each(|point| sum.add(*point));
        sum
    }
}

impl Activity {
    /// Nothing was seen yet. `hours`: of so many keys an hour is kept.
    pub(super) fn new(hours: usize) -> Activity {
        Activity {
            began: Instant::now(),
            hours: hours.min(MOST_BYTES / (HOUR * size_of::<Point>())),
            book: Mutex::default(),
        }
    }

    fn step(&self) -> u64 {
        self.began.elapsed().as_secs() / STEP
    }

    /// Jobs started: the limits of each, and how long it had waited if it was refused before.
    pub(super) fn started<'a>(
        &self,
        jobs: impl Iterator<Item = (&'a [Limited], Option<Duration>)>,
    ) {
        let step = self.step();
        let mut book = self.book.lock();
        // Jobs that start together are mostly of one key.
        let mut run: Option<(&Limited, Point)> = None;
        for (limited, waited) in jobs {
            let waited = waited.map_or(0, |waited| waited.as_millis());
            let seen = Point {
                starts: 1,
                waited_ms: u32::try_from(waited).unwrap_or(u32::MAX),
                ..Point::default()
            };
            if let Some((one, share)) = share_of(limited) {
                book.started_for(one, &share.group, step / MINUTE as u64);
            }
            for (_, one) in each_paid_key(limited) {
                match &mut run {
                    Some((of, sum)) if of.shares_key(one) => sum.add(seen),
                    _ => {
                        if let Some((of, sum)) = run.replace((one, seen)) {
                            book.add(self.hours, of, step, sum);
                        }
                    }
                }
            }
        }
        if let Some((of, sum)) = run {
            book.add(self.hours, of, step, sum);
        }
    }

    /// A start was refused by this limit, for this reason; or a queue's next job waits in the backend for it, and nobody
    /// asked.
    pub fn refused(&self, by: &Limited, why: &Refusal) {
        let seen = Point {
            refused: 1,
            closed: why.is_closed(),
            ..Point::default()
        };
        let step = self.step();
        self.book.lock().add(self.hours, by, step, seen);
    }

    /// An enqueue into this queue was refused.
    pub(super) fn rejected(&self, queue: &str) {
        let step = self.step();
        let seen = Point {
            refused: 1,
            ..Point::default()
        };
        let book = &mut *self.book.lock();
        let queues = (&mut book.queues, &mut book.tidied_queues);
        add_seen(queues, Arc::from(queue), (step, seen), || RECENT);
    }

    /// A service answered a call by this way out.
    pub(super) fn answered(&self, egress: &Arc<str>, status: AnswerStatus) {
        let step = self.step();
        let mut book = self.book.lock();
        let new = || (0, Recent::new(step, RECENT));
        let place = (Arc::clone(egress), status);
        let (ever, recent) = book.answers.entry(place).or_insert_with(new);
        *ever += 1;
        let seen = Point {
            starts: 1,
            ..Point::default()
        };
        recent.add(step, seen);
    }

    /// What services answered: by way out and status how often ever, and in the last minute.
    pub(super) fn answers(&self) -> Vec<Answers> {
        let step = self.step();
        let book = self.book.lock();
        let each = book.answers.iter();
        each.map(|((egress, status), (ever, recent))| {
            (
                Arc::clone(egress),
                *status,
                *ever,
                recent.minute(step).starts,
            )
        })
        .collect()
    }

    /// So many wait for a key, as somebody who looks sees. How many more that are in a minute than were, where that can
    /// be told: others must have looked within the last minute.
    pub fn waits(&self, key: &SpacedKey, waiting: u64) -> Option<i64> {
        let step = self.step();
        let mut book = self.book.lock();
        book.keys.get_mut(key)?.waits(step, waiting)
    }

    /// The last two minutes of a key in steps, oldest first.
    pub fn recent(&self, key: &SpacedKey) -> Vec<Point> {
        let step = self.step();
        let mut book = self.book.lock();
        let Some(recent) = book.keys.get_mut(key) else {
            return Vec::new();
        };
        recent.go_on(step);
        let skipped = recent.points.len().saturating_sub(RECENT);
        recent.points.iter().skip(skipped).copied().collect()
    }

    /// Who started how many under a key with `fair`: those who started most by name, then all others.
    pub fn bands(&self, key: &SpacedKey) -> Vec<Band> {
        let minute = self.step() / MINUTE as u64;
        let book = self.book.lock();
        let mut sums: HashMap<&Arc<str>, Vec<u32>> = HashMap::new();
        for (then, groups) in book.groups.get(key).into_iter().flatten() {
            let Some(place) = 59_u64.checked_sub(minute.saturating_sub(*then)) else {
                continue;
            };
            for (group, starts) in groups {
                let band = sums.entry(group).or_insert_with(|| vec![0; 60]);
                if let Some(at) = band.get_mut(place as usize) {
                    *at += starts;
                }
            }
        }
        let total = |band: &Vec<u32>| band.iter().sum::<u32>();
        let mut bands: Vec<_> = sums.into_iter().collect();
        bands.sort_by_key(|(group, band)| {
            (group.is_empty(), std::cmp::Reverse(total(band)), *group)
        });
        let unnamed = bands.split_off(bands.len().min(SHOWN_GROUPS));
        let mut shown: Vec<Band> = (bands.into_iter())
            .map(|(group, starts)| Band {
                group: Some(Arc::clone(group)).filter(|of| !of.is_empty()),
                starts,
            })
            .collect();
        let rest = unnamed.into_iter().map(|(_, band)| band);
        let rest = rest.reduce(|sum, band| sum.iter().zip(&band).map(|(a, b)| a + b).collect());
        shown.extend(rest.map(|starts| Band {
            group: None,
            starts,
        }));
        shown
    }

    /// The last minute of every key, in no order.
    pub fn minutes(&self) -> HashMap<SpacedKey, Point> {
        let step = self.step();
        let book = self.book.lock();
        let keys = book.keys.iter();
        keys.map(|(key, recent)| (key.clone(), recent.minute(step)))
            .collect()
    }

    /// Whether a start of this key was refused in the last minute.
    pub fn refused_lately(&self, key: &SpacedKey) -> bool {
        let step = self.step();
        let book = self.book.lock();
        let recent = book.keys.get(key);
        recent.is_some_and(|recent| recent.minute(step).refused > 0)
    }

    /// How many enqueues into this queue were refused in the last minute.
    pub fn rejected_lately(&self, queue: &str) -> u32 {
        let step = self.step();
        let book = self.book.lock();
        book.queues
            .get(queue)
            .map_or(0, |recent| recent.minute(step).refused)
    }

    /// The points of the last hour, oldest first, if they are kept of this key.
    pub fn hour(&self, key: &SpacedKey) -> Option<Vec<Point>> {
        let step = self.step();
        let mut book = self.book.lock();
        let recent = book.keys.get_mut(key).filter(|one| one.most == HOUR)?;
        recent.go_on(step);
        Some(recent.points.iter().copied().collect())
    }

    /// Forgets what was seen of keys and queues. What services answered was answered all the same.
    pub(super) fn clear(&self) {
        let mut book = self.book.lock();
        *book = ByName {
            answers: std::mem::take(&mut book.answers),
            ..ByName::default()
        };
    }
}

impl ByName {
    /// A job of this group started in that minute.
    fn started_for(&mut self, of: &Limited, group: &Arc<str>, minute: u64) {
        let place = (of.space, of.key.clone());
        let is_full = self.groups.len() >= SHARED_KEYS && !self.groups.contains_key(&place);
        if is_full {
            return;
        }
        let minutes = self.groups.entry(place).or_default();
        if minutes.back().is_none_or(|(last, _)| *last != minute) {
            minutes.retain(|(then, _)| minute.saturating_sub(*then) < 60);
            minutes.push_back((minute, Vec::new()));
        }
        let Some((_, groups)) = minutes.back_mut() else {
            return;
        };
        // The group of all that are not told apart has no name.
        let (is_full, empty) = (groups.len() >= GROUPS, || Arc::from(""));
        match groups.iter_mut().find(|(known, _)| known == group) {
            Some((_, starts)) => *starts += 1,
            None if !is_full => groups.push((Arc::clone(group), 1)),
            None => match groups.iter_mut().find(|(known, _)| known.is_empty()) {
                Some((_, starts)) => *starts += 1,
                None => groups.push((empty(), 1)),
            },
        }
    }

    fn add(&mut self, hours: usize, of: &Limited, step: u64, seen: Point) {
        let most = || {
            let has_hour = self.hours < hours;
            self.hours += usize::from(has_hour);
            if has_hour { HOUR } else { RECENT }
        };
        let keys = (&mut self.keys, &mut self.tidied);
        add_seen(keys, (of.space, of.key.clone()), (step, seen), most);
    }
}

/// Adds what was seen under a name. Where there are too many, those of which nothing was seen for a minute make place,
/// once in a step; what has no place then is not followed. So many points are kept of a new one as `most` says.
fn add_seen<K: Eq + Hash>(
    (all, tidied): (&mut HashMap<K, Recent>, &mut u64),
    name: K,
    (step, seen): (u64, Point),
    most: impl FnOnce() -> usize,
) {
    if all.len() >= MOST_KEYS && *tidied != step {
        *tidied = step;
        let is_kept = |recent: &Recent| recent.most == HOUR;
        let is_idle = |recent: &Recent| recent.minute(step) == Point::default();
        all.retain(|_, recent| is_kept(recent) || !is_idle(recent));
    }
    let is_full = all.len() >= MOST_KEYS;
    if let Some(known) = all.get_mut(&name) {
        known.add(step, seen);
    } else if !is_full {
        let mut recent = Recent::new(step, most());
        recent.add(step, seen);
        all.insert(name, recent);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use ojs_limit::{Key, Limits, Space};

    fn limited(n: usize) -> Limited {
        Limited::new(
            Space::Job,
            Key::new(&format!("k{n}")).unwrap(),
            Limits::default(),
            Arc::from("p"),
        )
    }

    fn full() -> Refusal {
        Refusal {
            strategy: ojs_limit::Strategy::Rate,
            limit: 1,
            current: 1,
            at: None,
            slot: false,
        }
    }

    fn start(activity: &Activity, n: usize, waited: Option<Duration>) {
        let one = [limited(n)];
        activity.started([(&one[..], waited)].into_iter());
    }

    #[tokio::test(start_paused = true)]
    async fn a_minute_is_summed_and_passes() {
        let activity = Activity::new(1);
        let key = |n| (Space::Job, limited(n).key);
        start(&activity, 1, Some(Duration::from_millis(700)));
        start(&activity, 1, Some(Duration::from_millis(300)));
        start(&activity, 2, None);
        advance(Duration::from_secs(30)).await;
        activity.refused(&limited(1), &full());
        activity.rejected("q");
        let point = |starts, refused, waited_ms| Point {
            starts,
            refused,
            waited_ms,
            closed: false,
        };
        assert_eq!(activity.minutes()[&key(1)], point(2, 1, 700));
        assert_eq!(activity.minutes()[&key(2)], point(1, 0, 0));
        advance(Duration::from_secs(30)).await;
        assert_eq!(activity.minutes()[&key(1)], point(0, 1, 0));
        assert_eq!(activity.rejected_lately("q"), 1);
        advance(Duration::from_secs(30)).await;
        assert_eq!(activity.minutes()[&key(1)], Point::default());
        assert_eq!(activity.rejected_lately("q"), 0);
        // Of the first key an hour is kept, without gaps; of the second none.
        let hour = activity.hour(&key(1)).unwrap();
        assert_eq!(hour.len(), 10);
        assert_eq!((hour[0], hour[3]), (point(2, 0, 700), point(0, 1, 0)));
        assert_eq!(activity.hour(&key(2)), None);
        advance(Duration::from_secs(3_600 * 5)).await;
        assert_eq!(activity.hour(&key(1)).unwrap(), [Point::default(); HOUR]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_grows_as_fast_as_looks_say() {
        let activity = Activity::new(1);
        let key = (Space::Job, limited(1).key);
        assert_eq!(activity.waits(&key, 5), None, "nothing was seen of it");
        start(&activity, 1, None);
        assert_eq!(activity.waits(&key, 100), None);
        advance(Duration::from_secs(20)).await;
        assert_eq!(activity.waits(&key, 120), None, "too soon");
        advance(Duration::from_secs(10)).await;
        assert_eq!(activity.waits(&key, 130), Some(60));
        advance(Duration::from_secs(60)).await;
        assert_eq!(activity.waits(&key, 40), Some(-90));
        // Nobody has looked for a minute.
        advance(Duration::from_secs(70)).await;
        assert_eq!(activity.waits(&key, 0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_had_the_starts_is_known_by_minutes() {
        let activity = Activity::new(1);
        let share = |group: &str| {
            let one = limited(1);
            let weight = std::num::NonZeroU32::MIN;
            let group = Arc::from(group);
            let share = Some(ojs_limit::Share { group, weight });
            [Limited { share, ..one }]
        };
        let start = |group: &str| {
            activity.started([(&share(group)[..], None)].into_iter());
        };
        (0..30).for_each(|_| start("a"));
        advance(Duration::from_secs(120)).await;
        (0..10).for_each(|_| start("b"));
        (0..40).for_each(|n| start(&format!("g{n:02}")));
        let key = (Space::Job, limited(1).key);
        let bands = activity.bands(&key);
        let shown = |nth: usize| (bands[nth].group.as_deref(), bands[nth].starts.iter().sum());
        assert_eq!((shown(0), shown(1)), ((Some("a"), 30), (Some("b"), 10)));
        assert_eq!((bands[0].starts[57], bands[1].starts[59]), (30, 10));
        assert_eq!(bands.len(), SHOWN_GROUPS + 1);
        let all: u32 = bands.iter().flat_map(|band| &band.starts).sum();
        assert_eq!((all, bands[SHOWN_GROUPS].group.as_deref()), (80, None));
        advance(Duration::from_secs(3_600)).await;
        assert!(activity.bands(&key).is_empty());
    }

    /// Threads read the clock before they take the lock.
    #[test]
    fn who_comes_late_finds_newer_steps_and_minutes() {
        let mut book = ByName::default();
        let of = limited(1);
        for (minute, group) in [(8, "a"), (7, "b"), (8, "a")] {
            book.started_for(&of, &Arc::from(group), minute);
        }
        assert_eq!(book.groups[&(of.space, of.key)].len(), 3);
        let mut recent = Recent::new(8, RECENT);
        let rises = [(8, 5), (7, 5), (11, 20)].map(|(step, waits)| recent.waits(step, waits));
        assert_eq!(rises, [None, None, Some(30)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_services_answer_is_counted_for_ever_and_for_a_minute() {
        let activity = Activity::new(1);
        let way = Arc::from("out");
        for status in [Some(200), Some(200), None] {
            activity.answered(&way, status);
        }
        advance(Duration::from_secs(70)).await;
        // Usage is forgotten.
        activity.clear();
        activity.answered(&way, Some(200));
        let mut answers = activity.answers();
        answers.sort();
        let both = [(Arc::clone(&way), None, 1, 0), (way, Some(200), 3, 1)];
        assert_eq!(answers, both);
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded() {
        let activity = Activity::new(10_000);
        assert!(activity.hours * HOUR * size_of::<Point>() <= MOST_BYTES);
        for n in 0..MOST_KEYS + 10 {
            start(&activity, n, None);
        }
        assert_eq!(activity.minutes().len(), MOST_KEYS);
        advance(Duration::from_secs(70)).await;
        start(&activity, MOST_KEYS + 10, None);
        assert_eq!(activity.minutes().len(), activity.hours + 1);
    }

    /// Names of queues come from requests, and a refusal goes through none of them more than once in a step.
    #[tokio::test(start_paused = true)]
    async fn queues_that_refused_are_bounded_as_keys_are() {
        let activity = Activity::new(1);
        let known = || activity.book.lock().queues.len();
        for n in 0..MOST_KEYS + 10 {
            activity.rejected(&format!("q{n}"));
        }
        activity.rejected("q0");
        assert_eq!((known(), activity.rejected_lately("q0")), (MOST_KEYS, 2));
        advance(Duration::from_secs(70)).await;
        activity.rejected("new");
        assert_eq!((known(), activity.rejected_lately("new")), (1, 1));
    }
}
