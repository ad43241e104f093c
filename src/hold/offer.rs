//! Jobs that are offered to siblings. They stay known, they keep their places, and their claims are kept alive. No worker
//! here gets one before the store says that it is ours again, because a sibling may have taken it over.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::held::{Held, Offer};
use super::lane::Lane;
use super::state::{HoldState, Whereabouts};
use ojs_store::{Claimed, Gen};

impl HoldState {
    /// The offered jobs, those of one lane in the order of their claims.
    pub(super) fn offers(&self) -> impl Iterator<Item = &Offer> {
        let jobs = self.offered.values().flatten();
        jobs.filter_map(|(_, job)| self.offer(job))
    }

    /// The offered jobs of a lane behind this claim of this job, in the order of their claims.
    pub(super) fn offers_after(
        &self,
        lane: &Lane,
        after: &(Gen, Arc<str>),
    ) -> impl Iterator<Item = &Offer> {
        let rest = (Bound::Excluded(after), Bound::Unbounded);
        let of_lane = self.offered.get(lane).into_iter();
        let jobs = of_lane.flat_map(move |jobs| jobs.range::<(Gen, Arc<str>), _>(rest));
        jobs.filter_map(|(_, job)| self.offer(job))
    }

    fn offer(&self, job: &str) -> Option<&Offer> {
        match &self.jobs.get(job)?.whereabouts {
            Whereabouts::Offered(offer) => Some(offer),
            _ => None,
        }
    }

    pub(super) fn offer_mut(&mut self, claimed: &Claimed) -> Option<&mut Offer> {
        let known = self.jobs.get_mut(&claimed.job)?;
        match &mut known.whereabouts {
            Whereabouts::Offered(offer) if known.generation == claimed.generation => Some(offer),
            _ => None,
        }
    }

    /// A job that is out of its group is offered from now on.
    pub(super) fn begin_offer(&mut self, held: Held) {
        let Some(known) = self.jobs.get_mut(&held.claimed.job) else {
            return;
        };
        let of_lane = self.offered.entry_ref(&known.lane).or_default();
        of_lane.insert((held.claimed.generation, held.claimed.job.clone()));
        known.whereabouts = Whereabouts::Offered(Box::new(Offer {
            held,
            is_known: false,
        }));
        self.glance.offers.fetch_add(1, Ordering::Release);
    }

    /// The job is offered no longer; the caller says where it is from now on.
    pub(super) fn end_offer(&mut self, claimed: &Claimed) -> Option<Held> {
        let held = self.offer_mut(claimed)?.held.clone();
        self.note_offer_over(&held.lane(), claimed);
        Some(held)
    }

    pub(super) fn note_offer_over(&mut self, lane: &Lane, claimed: &Claimed) {
        let one = (claimed.generation, Arc::clone(&claimed.job));
        if let Some(of_lane) = self.offered.get_mut(lane)
            && of_lane.remove(&one)
        {
            self.glance.offers.fetch_sub(1, Ordering::Release);
            if of_lane.is_empty() {
                self.offered.remove(lane);
            }
        }
    }
}
