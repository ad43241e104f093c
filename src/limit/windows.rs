//! The windows of one key, one for each period and kind that its jobs name.

use super::block::Block;
use super::packed::{Reader, Writer};
use super::{EARLY, Rate, Timestamp, Window, WindowKind};

/// Windows of one key that are kept for their own sake. If there are so many, those that are idle make room for a
/// new one.
const KEPT: usize = 8;

/// Windows of one key that are kept at all: jobs bring what periods they like, and each decision looks
/// through the list. Of one more, all of which count starts, the longest is forgotten, and no window that
/// may have been it allows a start until its starts would have left ([`Forgotten`]).
const MOST: usize = 16;

/// Most keys have one window, which then lies in the key's own memory: one look-up less, and one block
/// less for each of a million keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Windows {
    #[default]
    None,
    One(Counted),
    More(Vec<Counted>),
}

/// The starts of one window, as its kind counts them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    Sliding(Window),
    Edged(Box<Block>),
    Forgotten(Forgotten),
}

/// What is known of the windows that were forgotten while they counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Forgotten {
    /// All their starts were before this.
    last: Timestamp,
    /// No period among them was longer, in microseconds.
    longest: u64,
    /// None of their starts counts from then on: however often short ones are forgotten, what a long one
    /// had is over in its time.
    till: Timestamp,
}

impl Forgotten {
    /// Of one window, where the newest start of all is at `at`: windows with edges do not know theirs.
    fn of(window: &Counted, at: Timestamp, now: Timestamp) -> Forgotten {
        let last = window.last(now).unwrap_or(at.plus(EARLY));
        let longest = window.longest();
        Forgotten {
            last,
            longest,
            till: match window {
                Counted::Edged(block) => block.over(),
                _ => last.plus(longest).plus(EARLY),
            },
        }
    }

    fn and(&mut self, other: &Forgotten) {
        self.last = self.last.max(other.last);
        self.longest = self.longest.max(other.longest);
        self.till = self.till.max(other.till);
    }

    /// Until when starts may count that a window of `rate` had.
    fn counts_until(&self, rate: &Rate) -> Timestamp {
        self.last.plus(longest(rate)).plus(EARLY).min(self.till)
    }
}

impl Counted {
    fn new(rate: &Rate, now: Timestamp) -> Counted {
        match rate.window {
            WindowKind::Sliding => Counted::Sliding(Window::new(rate.period.get())),
            _ => Counted::Edged(Box::new(Block::new(rate, now))),
        }
    }

    fn is_of(&self, rate: &Rate) -> bool {
        match self {
            Counted::Sliding(window) => {
                window.period() == rate.period.get() && rate.window == WindowKind::Sliding
            }
            Counted::Edged(block) => block.is_of(rate),
            Counted::Forgotten(_) => false,
        }
    }

    /// How many starts count at `now`.
    pub(super) fn count(&self, now: Timestamp) -> u32 {
        match self {
            Counted::Sliding(window) => window.count(now),
            Counted::Edged(block) => block.count(now),
            Counted::Forgotten(gone) => u32::from(gone.till > now),
        }
    }

    /// When the first of those that count leaves.
    pub(super) fn leaves(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Counted::Sliding(window) => window.leaves(0, now),
            Counted::Edged(block) => block.leaves(now),
            Counted::Forgotten(_) => None,
        }
    }

    /// When more may start than the `limit` allows at `now`.
    pub(super) fn grows(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        match self {
            Counted::Sliding(window) => window.leaves(window.count(now).saturating_sub(limit), now),
            Counted::Edged(block) => block.grows(limit, now),
            Counted::Forgotten(_) => None,
        }
    }

    fn opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        match self {
            Counted::Sliding(window) => window.opens(limit, now),
            Counted::Edged(block) => block.opens(limit, now),
            Counted::Forgotten(_) => None,
        }
    }

    fn add(&mut self, at: Timestamp, now: Timestamp) {
        match self {
            Counted::Sliding(window) => window.add(at, now),
            Counted::Edged(block) => block.add(at, now),
            Counted::Forgotten(_) => {}
        }
    }

    fn heap(&self) -> usize {
        match self {
            Counted::Sliding(window) => window.heap(),
            Counted::Edged(_) => size_of::<Block>(),
            Counted::Forgotten(_) => 0,
        }
    }

    fn period(&self) -> u64 {
        match self {
            Counted::Sliding(window) => window.period(),
            Counted::Edged(block) => block.period(),
            Counted::Forgotten(gone) => gone.longest,
        }
    }

    /// The longest time that it may last.
    fn longest(&self) -> u64 {
        match self {
            Counted::Sliding(window) => window.period(),
            Counted::Edged(block) => block.longest(),
            Counted::Forgotten(gone) => gone.longest,
        }
    }

    /// When the newest of the starts that count in a sliding window was, at the latest.
    fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let Counted::Sliding(window) = self else {
            return None;
        };
        let leaves = window.leaves(window.count(now).checked_sub(1)?, now)?;
        Some(leaves.minus(window.period() + EARLY))
    }
}

impl Windows {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Counted> {
        match self {
            Windows::None => [].iter(),
            Windows::One(window) => std::slice::from_ref(window).iter(),
            Windows::More(windows) => windows.iter(),
        }
    }

    pub(super) fn get(&self, rate: &Rate) -> Option<&Counted> {
        self.iter().find(|window| window.is_of(rate))
    }

    fn get_mut(&mut self, rate: &Rate) -> Option<&mut Counted> {
        let windows = match self {
            Windows::None => &mut [],
            Windows::One(window) => std::slice::from_mut(window),
            Windows::More(windows) => windows.as_mut_slice(),
        };
        windows.iter_mut().find(|window| window.is_of(rate))
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        // There are at most a few more than MOST, and a window has about half a kilobyte.
        to.byte(u8::try_from(self.iter().len()).unwrap_or(u8::MAX));
        for window in self.iter().take(u8::MAX.into()) {
            let (kind, name) = match window {
                Counted::Sliding(window) => (u8::from(!window.is_exact()), String::new()),
                Counted::Edged(block) => (2, block.kind().code()),
                Counted::Forgotten(_) => (3, "forgotten".to_owned()),
            };
            to.byte(kind);
            to.long(window.period());
            to.byte(u8::try_from(name.len()).unwrap_or(u8::MAX));
            to.0.extend_from_slice(name.as_bytes());
            let mut body = Writer::default();
            match window {
                Counted::Sliding(window) => window.pack(&mut body),
                Counted::Edged(block) => block.pack(&mut body),
                Counted::Forgotten(gone) => {
                    body.time(gone.last);
                    body.time(gone.till);
                }
            }
            to.u16(u16::try_from(body.0.len()).unwrap_or(u16::MAX));
            to.0.append(&mut body.0);
        }
    }

    pub(super) fn unpack(from: &mut Reader<'_>) -> Option<Windows> {
        let mut windows = Vec::new();
        for _ in 0..from.byte()? {
            let (kind, period) = (from.byte()?, from.long()?);
            let name = from.byte()?;
            let name = std::str::from_utf8(from.take(name.into())?).ok()?;
            let length = from.u16()?;
            let body = &mut Reader(from.take(length.into())?);
            windows.push(match kind {
                2 => Counted::Edged(Box::new(Block::unpack(
                    period,
                    WindowKind::of_code(name)?,
                    body,
                )?)),
                3 => Counted::Forgotten(Forgotten {
                    last: body.time()?,
                    longest: period,
                    till: body.time()?,
                }),
                _ => Counted::Sliding(Window::unpack(period, kind == 0, body)?),
            });
        }
        Some(match windows.len() {
            0 => Windows::None,
            1 => Windows::One(windows.remove(0)),
            _ => Windows::More(windows),
        })
    }

    /// The time from which `rate` allows a start, if it allows none at `now`, and how many count.
    pub(super) fn opens(&self, rate: &Rate, now: Timestamp) -> Option<(u32, Timestamp)> {
        let Some(window) = self.get(rate) else {
            return Some((rate.limit.get(), self.forgotten(rate, now)?));
        };
        let opens = window.opens(rate.limit.get(), now)?;
        Some((window.count(now), opens))
    }

    /// The time until which starts may count in the window of `rate` of which nothing is known any more.
    /// `None`: it is known, or has none.
    pub(super) fn forgotten(&self, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
        let until = self.iter().find_map(|window| match window {
            Counted::Forgotten(gone) if rate.period.get() <= gone.longest => {
                Some(gone.counts_until(rate))
            }
            _ => None,
        });
        until.filter(|until| *until > now && self.get(rate).is_none())
    }

    /// Counts a start at `at` in the window of `rate`, which is made if need be.
    pub(super) fn add(&mut self, rate: &Rate, at: Timestamp, now: Timestamp) {
        if let Some(window) = self.get_mut(rate) {
            return window.add(at, now);
        }
        let mut window = Counted::new(rate, now);
        window.add(at, now);
        *self = match std::mem::take(self) {
            Windows::None => Windows::One(window),
            Windows::One(first) => Windows::More(vec![first, window]),
            Windows::More(mut windows) => {
                make_place(&mut windows, now);
                windows.push(window);
                forget_longest(&mut windows, at, now);
                Windows::More(windows)
            }
        };
    }

    /// Uncounts the start at `at`, decided at `then`, in the window of `rate`.
    pub(super) fn remove(&mut self, rate: &Rate, at: Timestamp, then: Timestamp) {
        match self.get_mut(rate) {
            Some(Counted::Sliding(window)) => window.remove(at),
            Some(Counted::Edged(block)) => block.remove(at, then),
            Some(Counted::Forgotten(_)) | None => {}
        }
    }

    /// Uncounts a start at `at` in the sliding window of `rate`, the newest or not.
    pub(super) fn release(&mut self, rate: &Rate, at: Timestamp) {
        if let Some(Counted::Sliding(window)) = self.get_mut(rate) {
            window.remove(at);
        }
    }

    /// The memory taken besides this itself, in bytes.
    pub(super) fn heap(&self) -> usize {
        let list = match self {
            Windows::More(windows) => windows.capacity() * size_of::<Counted>(),
            _ => 0,
        };
        list + self.iter().map(Counted::heap).sum::<usize>()
    }
}

/// The longest time that a window of `rate` may last.
fn longest(rate: &Rate) -> u64 {
    rate.window.longest(rate.period.get())
}

/// Drops the idle windows if there are enough.
fn make_place(windows: &mut Vec<Counted>, now: Timestamp) {
    if windows.len() >= KEPT {
        windows.retain(|window| window.count(now) > 0);
    }
}

/// Forgets the longest window if too many count starts, where the newest start is at `at`: whoever brings
/// the longest one waits for longest.
fn forget_longest(windows: &mut Vec<Counted>, at: Timestamp, now: Timestamp) {
    let known = windows.iter().enumerate();
    let known = known.filter(|(_, window)| !matches!(window, Counted::Forgotten(_)));
    if known.clone().count() <= MOST {
        return;
    }
    let Some((place, _)) = known.max_by_key(|(_, window)| window.period()) else {
        return;
    };
    let gone = Forgotten::of(&windows.swap_remove(place), at, now);
    let known = windows.iter_mut().find_map(|window| match window {
        Counted::Forgotten(known) => Some(known),
        _ => None,
    });
    match known {
        Some(known) => known.and(&gone),
        None => windows.push(Counted::Forgotten(gone)),
    }
}
