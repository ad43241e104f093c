//! Jobs that are offered to siblings. They stay known, they keep their places, and their claims are kept alive. No worker
//! here gets one before the store says that it is ours again, because a sibling may have taken it over.

use std::sync::atomic::Ordering;

use super::Held;
use super::state::{HoldState, Whereabouts};
use crate::store::Claimed;

/// A job that is offered to siblings.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) held: Held,
    /// Whether the store has said that it knows of the offer.
    pub(super) is_known: bool,
}

impl Offer {
    pub(super) fn of(held: Held) -> Offer {
        Offer {
            held,
            is_known: false,
        }
    }
}

impl HoldState {
    pub(super) fn offers(&self) -> impl Iterator<Item = &Offer> {
        let known = self.jobs.values();
        known.filter_map(|known| match &known.whereabouts {
            Whereabouts::Offered(offer) => Some(&**offer),
            _ => None,
        })
    }

    pub(super) fn offer_mut(&mut self, claimed: &Claimed) -> Option<&mut Offer> {
        let known = self.jobs.get_mut(&claimed.job)?;
        match &mut known.whereabouts {
            Whereabouts::Offered(offer) if known.generation == claimed.generation => Some(offer),
            _ => None,
        }
    }

    /// The job is offered no longer; the caller says where it is from now on.
    pub(super) fn end_offer(&mut self, claimed: &Claimed) -> Option<Held> {
        let held = self.offer_mut(claimed)?.held.clone();
        let known = self.jobs.get_mut(&claimed.job)?;
        known.whereabouts = Whereabouts::Waiting;
        self.count_offers(-1);
        Some(held)
    }

    /// So many jobs more are offered.
    pub(super) fn count_offers(&mut self, more: isize) {
        let offers = self.glance.offers.load(Ordering::Relaxed);
        let offers = offers.saturating_add_signed(more);
        self.glance.offers.store(offers, Ordering::Release);
    }
}
