//! What a FETCH gets in a drain.

use std::sync::atomic::Ordering;

use super::asked::Wanted;
use super::section::{Course, Reach, Section};
use crate::desk::Sidecar;
use crate::store::LedgerExt;

/// What a drain keeps from workers. It would only be held for its claim to end.
#[derive(Clone, Copy)]
pub(super) enum Draining {
    /// Nothing: there is none.
    Open,
    /// What limits can touch, unless it is held. Nobody waits here for other jobs.
    Limited,
    /// All that is not held: any job may bring limits.
    Unheld,
}

impl Draining {
    pub(super) fn of(sidecar: &Sidecar) -> Draining {
        if !sidecar.tasks.draining.is_cancelled() {
            return Draining::Open;
        }
        match sidecar.fetching.brought.load(Ordering::Relaxed) {
            true => Draining::Unheld,
            false => Draining::Limited,
        }
    }

    /// What it leaves of a FETCH.
    pub(super) fn narrow(self, course: Course, reach: &Reach<'_>, wanted: &mut Wanted) -> Course {
        let mut sections = match (self, course) {
            (Draining::Open, course) => return course,
            (Draining::Limited, Course::Whole) if !reach.is_unread(wanted) => return Course::Whole,
            (_, Course::Whole | Course::Nothing) => return Course::Nothing,
            (_, Course::Sections(sections)) => sections,
        };
        sections.retain(|section| self.leaves(section, reach.sidecar));
        if sections.iter().any(Section::is_limited) {
            return Course::Sections(sections);
        }
        // Nothing limits what is left: the request is made smaller, and goes whole.
        match wanted.keep(sections.iter().flat_map(|section| &section.lanes)) {
            true => Course::Whole,
            false => Course::Nothing,
        }
    }

    fn leaves(self, section: &Section, sidecar: &Sidecar) -> bool {
        match section.limited() {
            Some(lane) => sidecar.hold.look(lane, 0, sidecar.store.now()).is_held,
            None => !matches!(self, Draining::Unheld),
        }
    }
}
