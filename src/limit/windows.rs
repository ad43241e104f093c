//! The windows of one key, one for each period and kind that its jobs name.

use super::block::Block;
use super::limits::{Rate, WindowKind};
use super::packed::{PackedReader, Writer};
use super::time::{EARLY, Timestamp};
use super::window::Window;

/// The most windows of one key that count starts at once. Each decision looks through them, and jobs bring
/// what periods they like. A ninth period is refused where it is said; one that comes all the same starts
/// nothing until a window is empty.
pub const MOST: usize = 8;

/// Most keys have one window, which then lies in the key's own memory: one look-up less, and one block
/// less for each of a million keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Windows {
    #[default]
    None,
    One(CountedWindow),
    More(Vec<CountedWindow>),
}

/// The starts of one window, as its kind counts them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CountedWindow {
    Sliding(Window),
    Edged(Box<Block>),
}

impl CountedWindow {
    fn new(rate: &Rate, now: Timestamp) -> CountedWindow {
        match rate.window {
            WindowKind::Sliding => CountedWindow::Sliding(Window::new(rate.period.get())),
            _ => CountedWindow::Edged(Box::new(Block::new(rate, now))),
        }
    }

    fn is_of(&self, rate: &Rate) -> bool {
        match self {
            CountedWindow::Sliding(window) => {
                window.period() == rate.period.get() && rate.window == WindowKind::Sliding
            }
            CountedWindow::Edged(block) => block.is_of(rate),
        }
    }

    /// How many starts count at `now`.
    pub(super) fn count(&self, now: Timestamp) -> u32 {
        match self {
            CountedWindow::Sliding(window) => window.count(now),
            CountedWindow::Edged(block) => block.count(now),
        }
    }

    /// When the first of those that count leaves.
    pub(super) fn leaves(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            CountedWindow::Sliding(window) => window.leaves(0, now),
            CountedWindow::Edged(block) => block.leaves(now),
        }
    }

    /// When more may start than the `limit` allows at `now`.
    pub(super) fn grows(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        match self {
            CountedWindow::Sliding(window) => {
                window.leaves(window.count(now).saturating_sub(limit), now)
            }
            CountedWindow::Edged(block) => block.grows(limit, now),
        }
    }

    /// When a start fits under the `limit`, if none does at `now`.
    fn opens(&self, limit: u32, now: Timestamp) -> Option<Timestamp> {
        match self {
            CountedWindow::Sliding(window) => window.opens(limit, now),
            CountedWindow::Edged(block) => block.opens(limit, now),
        }
    }

    fn add(&mut self, at: Timestamp, cost: u32, now: Timestamp) {
        match self {
            CountedWindow::Sliding(window) => window.add(at, cost, now),
            CountedWindow::Edged(block) => block.add(at, cost, now),
        }
    }

    fn period(&self) -> u64 {
        match self {
            CountedWindow::Sliding(window) => window.period(),
            CountedWindow::Edged(block) => block.period,
        }
    }

    /// When the last of those that count at `now` leaves; `None`: none counts.
    fn empties(&self, now: Timestamp) -> Option<Timestamp> {
        let last = self.count(now).checked_sub(1)?;
        match self {
            CountedWindow::Sliding(window) => window.leaves(last, now),
            CountedWindow::Edged(block) => Some(block.over()),
        }
    }
}

impl Windows {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, CountedWindow> {
        match self {
            Windows::None => [].iter(),
            Windows::One(window) => std::slice::from_ref(window).iter(),
            Windows::More(windows) => windows.iter(),
        }
    }

    pub(super) fn get(&self, rate: &Rate) -> Option<&CountedWindow> {
        self.iter().find(|window| window.is_of(rate))
    }

    fn get_mut(&mut self, rate: &Rate) -> Option<&mut CountedWindow> {
        let windows = match self {
            Windows::None => &mut [],
            Windows::One(window) => std::slice::from_mut(window),
            Windows::More(windows) => windows.as_mut_slice(),
        };
        windows.iter_mut().find(|window| window.is_of(rate))
    }

    pub(super) fn pack(&self, to: &mut Writer) {
        // There are at most MOST and those of one job, and a window has about half a kilobyte.
        to.byte(u8::try_from(self.iter().len()).unwrap_or(u8::MAX));
        for window in self.iter().take(u8::MAX.into()) {
            let (kind, name) = match window {
                CountedWindow::Sliding(window) => (u8::from(!window.is_exact()), String::new()),
                CountedWindow::Edged(block) => (2, block.kind.code()),
            };
            to.byte(kind);
            to.long(window.period());
            to.byte(u8::try_from(name.len()).unwrap_or(u8::MAX));
            to.0.extend_from_slice(name.as_bytes());
            let mut body = Writer::default();
            match window {
                CountedWindow::Sliding(window) => window.pack(&mut body),
                CountedWindow::Edged(block) => block.pack(&mut body),
            }
            to.u16(u16::try_from(body.0.len()).unwrap_or(u16::MAX));
            to.0.append(&mut body.0);
        }
    }

    pub(super) fn unpack(from: &mut PackedReader<'_>) -> Option<Windows> {
        let mut windows = Vec::new();
        for _ in 0..from.byte()? {
            let (kind, period) = (from.byte()?, from.long()?);
            let name = from.byte()?;
            let name = std::str::from_utf8(from.take(name.into())?).ok()?;
            let length = from.u16()?;
            let body = &mut PackedReader(from.take(length.into())?);
            windows.push(match kind {
                2 => CountedWindow::Edged(Box::new(Block::unpack(
                    period,
                    WindowKind::of_code(name)?,
                    body,
                )?)),
                _ => CountedWindow::Sliding(Window::unpack(period, kind == 0, body)?),
            });
        }
        Some(match windows.len() {
            0 => Windows::None,
            1 => Windows::One(windows.remove(0)),
            _ => Windows::More(windows),
        })
    }

    /// The time from which `rate` allows a start of this cost, if it allows none at `now`, and how much counts. A cost
    /// above the limit waits for all of the limit.
    pub(super) fn opens(&self, rate: &Rate, pays: u32, now: Timestamp) -> Option<(u32, Timestamp)> {
        let Some(window) = self.get(rate) else {
            return Some((0, self.has_place_at(rate, now)?));
        };
        let limit = rate.limit.get();
        let opens = window.opens(limit - pays.min(limit) + 1, now)?;
        Some((window.count(now), opens))
    }

    /// When a start of one cost fits beside a later one of another cost, if it does not now: the later one needs its room
    /// from `kept` on. A start that has left a sliding window by then takes none of it.
    pub(super) fn fits(
        &self,
        rate: &Rate,
        (pays, later): (u32, u32),
        kept: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (limit, period) = (rate.limit.get(), rate.period.get());
        let at = match rate.window {
            WindowKind::Sliding => kept.max(now),
            _ => now,
        };
        // A ring keeps a start a little longer than a log.
        let leaves = now.plus(period + period / 64 + 2 * EARLY);
        let pays = match leaves <= at {
            true => 0,
            false => pays.min(limit),
        };
        let Some(limit) = limit
            .checked_sub(pays)
            .and_then(|rest| rest.checked_sub(later.min(limit)))
        else {
            return Some(Timestamp::NEVER);
        };
        self.get(rate)?.opens(limit + 1, at)
    }

    /// When the key has a place for the window of `rate`; `None`: it has one now, or needs none. Nothing waits for a window
    /// that only counts.
    pub(super) fn has_place_at(&self, rate: &Rate, now: Timestamp) -> Option<Timestamp> {
        if self.iter().len() < MOST || self.get(rate).is_some() || !rate.has_limit() {
            return None;
        }
        let counting = self.iter().filter_map(|window| window.empties(now));
        match counting.clone().count() < MOST {
            true => None,
            false => counting.min(),
        }
    }

    /// Counts a start of this cost at `at` in the window of `rate`, which is made if need be. One that only counts is not
    /// made where there is no place.
    pub(super) fn add(&mut self, rate: &Rate, at: Timestamp, cost: u32, now: Timestamp) {
        if let Some(window) = self.get_mut(rate) {
            return window.add(at, cost, now);
        }
        let mut window = CountedWindow::new(rate, now);
        window.add(at, cost, now);
        *self = match std::mem::take(self) {
            Windows::None => Windows::One(window),
            Windows::One(first) => Windows::More(vec![first, window]),
            Windows::More(mut windows) => {
                if windows.len() >= MOST {
                    windows.retain(|window| window.count(now) > 0);
                }
                if windows.len() < MOST || rate.has_limit() {
                    windows.push(window);
                }
                Windows::More(windows)
            }
        };
    }

    /// Uncounts so much of the start at `at`, decided at `then`, in the window of `rate`.
    pub(super) fn remove(&mut self, rate: &Rate, at: Timestamp, cost: u32, then: Timestamp) {
        match self.get_mut(rate) {
            Some(CountedWindow::Sliding(window)) => window.remove(at, cost),
            Some(CountedWindow::Edged(block)) => block.remove(at, cost, then),
            None => {}
        }
    }

    /// Uncounts a start at `at` in the sliding window of `rate`, the newest or not.
    pub(super) fn release(&mut self, rate: &Rate, at: Timestamp) {
        if let Some(CountedWindow::Sliding(window)) = self.get_mut(rate) {
            window.remove(at, 1);
        }
    }
}
