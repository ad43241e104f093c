//! What a FETCH gets in a drain.

use std::sync::atomic::Ordering;

use super::asked::Wanted;
use super::section::{Reach, Section};
use crate::desk::Sidecar;

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

    /// Leaves a FETCH what this drain does; says whether that is anything.
    pub(super) fn narrow(
        self,
        reach: &Reach<'_>,
        wanted: &mut Wanted,
        sections: &mut Vec<Section>,
    ) -> bool {
        let leaves_limited = match self {
            Draining::Open => return true,
            Draining::Limited if !sections.iter().any(Section::is_limited) => {
                return !reach.is_unread(wanted);
            }
            Draining::Limited | Draining::Unheld => {
                sections.retain(|section| self.leaves(section, reach.sidecar));
                sections.iter().any(Section::is_limited)
            }
        };
        // Nothing limits what is left: the request is made smaller, and goes whole.
        leaves_limited || wanted.keep(sections.iter().flat_map(|section| &section.lanes))
    }

    fn leaves(self, section: &Section, sidecar: &Sidecar) -> bool {
        match section.is_limited() {
            true => !sidecar.hold.holds_none(section.lanes.iter()),
            false => !matches!(self, Draining::Unheld),
        }
    }
}
