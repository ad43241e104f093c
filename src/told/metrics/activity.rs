//! What this sidecar saw of keys and bounded queues lately: starts, refusals and waits, in steps of ten seconds. It
//! ranks the keys for those who look, and no decision goes by it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::Instant;

use ojs_limit::{self as limit, Limited, Space, each_key};

/// A key and its space: a job key may have the name of a queue.
pub type SpacedKey = (Space, limit::Key);

/// How long a step lasts, in seconds.
pub const STEP: u64 = 10;
/// Steps of a minute, the one under way among them.
const MINUTE: usize = 6;
/// Steps of an hour, which are kept of the first keys alone.
const HOUR: usize = 360;
/// The memory for all hours, in bytes.
const MOST_BYTES: usize = 512 * 1024;
/// So many keys are followed; beyond that those of which nothing was seen for a minute make place.
const MOST_KEYS: usize = 20_000;

/// What was seen. Shared by the threads of one sidecar.
#[derive(Debug)]
pub(super) struct Activity {
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
    /// Keys that have an hour.
    hours: usize,
    /// The step in which keys last made place.
    tidied: u64,
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
}

impl Point {
    fn add(&mut self, other: Point) {
        self.starts = self.starts.saturating_add(other.starts);
        self.refused = self.refused.saturating_add(other.refused);
        self.waited_ms = self.waited_ms.max(other.waited_ms);
    }
}

/// The last points of one key, without gaps.
#[derive(Debug)]
struct Recent {
    points: VecDeque<Point>,
    /// The step of the last point.
    last: u64,
    /// So many points are kept.
    most: usize,
}

impl Recent {
    fn new(step: u64, most: usize) -> Recent {
        Recent {
            points: VecDeque::from([Point::default()]),
            last: step,
            most,
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
            for (_, one) in each_key(limited) {
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

    /// A start was refused by this limit.
    pub(super) fn refused(&self, by: &Limited) {
        let seen = Point {
            refused: 1,
            ..Point::default()
        };
        let step = self.step();
        self.book.lock().add(self.hours, by, step, seen);
    }

    /// An enqueue into this queue was refused.
    pub(super) fn rejected(&self, queue: &str) {
        let step = self.step();
        let mut book = self.book.lock();
        if book.queues.len() >= MOST_KEYS {
            book.queues
                .retain(|_, recent| recent.minute(step).refused > 0);
        }
        let new = || Recent::new(step, MINUTE);
        let seen = Point {
            refused: 1,
            ..Point::default()
        };
        let recent = book.queues.entry_ref(queue).or_insert_with(new);
        recent.add(step, seen);
    }

    /// The last minute of every key, in no order.
    pub(super) fn minutes(&self) -> HashMap<SpacedKey, Point> {
        let step = self.step();
        let book = self.book.lock();
        let keys = book.keys.iter();
        keys.map(|(key, recent)| (key.clone(), recent.minute(step)))
            .collect()
    }

    /// Whether a start of this key was refused in the last minute.
    pub(super) fn refused_lately(&self, key: &SpacedKey) -> bool {
        let step = self.step();
        let book = self.book.lock();
        let recent = book.keys.get(key);
        recent.is_some_and(|recent| recent.minute(step).refused > 0)
    }

    /// How many enqueues into this queue were refused in the last minute.
    pub(super) fn rejected_lately(&self, queue: &str) -> u32 {
        let step = self.step();
        let book = self.book.lock();
        book.queues
            .get(queue)
            .map_or(0, |recent| recent.minute(step).refused)
    }

    /// The points of the last hour, oldest first, if they are kept of this key.
    pub(super) fn hour(&self, key: &SpacedKey) -> Option<Vec<Point>> {
        let step = self.step();
        let mut book = self.book.lock();
        let recent = book.keys.get_mut(key).filter(|one| one.most == HOUR)?;
        recent.go_on(step);
        Some(recent.points.iter().copied().collect())
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.book.lock() = ByName::default();
    }
}

impl ByName {
    fn add(&mut self, hours: usize, of: &Limited, step: u64, seen: Point) {
        if self.keys.len() >= MOST_KEYS && self.tidied != step {
            self.tidied = step;
            let is_kept = |recent: &Recent| recent.most == HOUR;
            let is_idle = |recent: &Recent| recent.minute(step) == Point::default();
            self.keys
                .retain(|_, recent| is_kept(recent) || !is_idle(recent));
        }
        let is_full = self.keys.len() >= MOST_KEYS;
        let key = (of.space, of.key.clone());
        if let Some(known) = self.keys.get_mut(&key) {
            known.add(step, seen);
        } else if !is_full {
            let most = match self.hours < hours {
                true => HOUR,
                false => MINUTE,
            };
            self.hours += usize::from(most == HOUR);
            let mut recent = Recent::new(step, most);
            recent.add(step, seen);
            self.keys.insert(key, recent);
        }
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
        activity.refused(&limited(1));
        activity.rejected("q");
        let point = |starts, refused, waited_ms| Point {
            starts,
            refused,
            waited_ms,
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
}
