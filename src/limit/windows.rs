//! The windows of one key, one for each period that its jobs name.

use super::{Timestamp, Window};

/// Windows of one key that are kept for their own sake. Beyond this, a new period takes the place
/// of an idle window; windows that still count starts all stay, however many there are.
const PERIODS: usize = 8;

/// Most keys have one period, and their window then lies in the key's own memory: one look-up less,
/// and one block less for each of a million keys.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Windows {
    #[default]
    None,
    One(Window),
    More(Vec<Window>),
}

impl Windows {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Window> {
        match self {
            Windows::None => [].iter(),
            Windows::One(window) => std::slice::from_ref(window).iter(),
            Windows::More(windows) => windows.iter(),
        }
    }

    pub(super) fn get(&self, period: u64) -> Option<&Window> {
        self.iter().find(|window| window.period() == period)
    }

    pub(super) fn get_mut(&mut self, period: u64) -> Option<&mut Window> {
        let windows = match self {
            Windows::None => &mut [],
            Windows::One(window) => std::slice::from_mut(window),
            Windows::More(windows) => windows.as_mut_slice(),
        };
        windows.iter_mut().find(|window| window.period() == period)
    }

    /// Counts a start at `at` in the window of `period`, which is made if need be.
    pub(super) fn add(&mut self, period: u64, at: Timestamp, now: Timestamp) {
        if let Some(window) = self.get_mut(period) {
            return window.add(at, now);
        }
        let mut window = Window::new(period);
        window.add(at, now);
        *self = match std::mem::take(self) {
            Windows::None => Windows::One(window),
            Windows::One(first) => Windows::More(vec![first, window]),
            Windows::More(mut windows) => {
                make_place(&mut windows, now);
                windows.push(window);
                Windows::More(windows)
            }
        };
    }

    /// The memory taken besides this itself, in bytes.
    pub(super) fn heap(&self) -> usize {
        let list = match self {
            Windows::More(windows) => windows.capacity() * size_of::<Window>(),
            _ => 0,
        };
        list + self.iter().map(Window::heap).sum::<usize>()
    }
}

/// Drops the longest idle window if there are enough.
fn make_place(windows: &mut Vec<Window>, now: Timestamp) {
    if windows.len() < PERIODS {
        return;
    }
    let idle = windows
        .iter()
        .enumerate()
        .filter(|(_, window)| window.count(now) == 0);
    if let Some((place, _)) = idle.min_by_key(|(_, window)| window.newest()) {
        windows.swap_remove(place);
    }
}
