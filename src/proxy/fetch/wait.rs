//! Waiting: the place of an empty FETCH in the lines of its queues, and when it looks again.

use std::time::Duration;

use tokio::time::Instant;

use super::claim::Section;
use crate::hold::{Lane, Prospect, Waiter};
use crate::proxy::Proxy;

/// How long waiting FETCHes of a queue let pass before the backend is asked again for all of them.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(250);

/// A place in the lines of a FETCH's queues; left when dropped.
pub(super) struct Standing<'a> {
    proxy: &'a Proxy,
    sections: &'a [Section],
    lanes: Vec<Lane>,
    /// Told when it may be its turn.
    pub(super) waiter: Waiter,
    /// Since when it stands there.
    pub(super) since: Instant,
}

impl<'a> Standing<'a> {
    pub(super) fn new(proxy: &'a Proxy, sections: &'a [Section]) -> Standing<'a> {
        let lanes: Vec<Lane> = sections
            .iter()
            .flat_map(|section| section.lanes.iter().cloned())
            .collect();
        let since = Instant::now();
        let waiter = proxy.sidecar.hold.stand(&lanes, since);
        Standing {
            proxy,
            sections,
            lanes,
            waiter,
            since,
        }
    }

    /// When this waiter looks again by itself: the first in a line watches the clock and asks the
    /// backend again, those behind are woken when it leaves. `shut`: which queues have no room, if that and
    /// the prospect were found since it stands here; what came before would have woken nobody.
    pub(super) async fn wake_at(&self, prospect: Prospect, shut: Option<&[bool]>) -> Instant {
        let hold = &self.proxy.sidecar.hold;
        let now = Instant::now();
        let mut at = now + self.proxy.sidecar.live().settings.max_wait;
        let first = |lane: &Lane| hold.is_first_in_line(lane, &self.waiter);
        if !self.lanes.iter().any(first) {
            return at;
        }
        let prospect = match shut {
            Some(_) => prospect,
            None => {
                let paused = &self.proxy.sidecar.paused;
                let lanes = self.lanes.iter().filter(|lane| !paused.has(&lane.queue));
                lanes.fold(prospect, |all, lane| all.or(hold.prospect(lane).0))
            }
        };
        if let Some(start) = prospect.at {
            at = at.min(self.proxy.sidecar.granted_from(start));
        }
        for (nth, section) in self.sections.iter().enumerate() {
            let Some(lane) = section.lanes.first().filter(|lane| first(lane)) else {
                continue;
            };
            let has_room = match shut {
                Some(shut) => shut.get(nth).is_none_or(|shut| !*shut),
                None => self.proxy.has_room(lane, section).await,
            };
            if has_room {
                at = at.min(hold.asked_at(lane).map_or(now, |asked| asked + ASK_AGAIN));
            }
        }
        // Never at once: what could be done at once was just done.
        at.max(now + Duration::from_millis(1))
    }
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.proxy.sidecar.hold.leave(&self.lanes, &self.waiter);
    }
}
