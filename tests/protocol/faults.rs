//! Faults that are planted in the model, each in one line of it, and the promise that finds each.

use super::properties::{HEALS, P1, P2, P4, P5, P6_COUNT, P6_EARLY};
use super::world::{BOTH, SLOT, START};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    // Of the store.
    /// `take` starts what has a row.
    OutStartsAgain,
    /// The row of an older claim goes, and its slots stay.
    OlderKeepsSlot,
    /// Whoever names a job does not end the row of an adopted one.
    AdoptedStays,
    /// Of several keys the first is asked.
    OneKeyIsAsked,
    /// What was taken before a key refused stays taken.
    RefusalSpends,
    /// Starts count for a tick less.
    ShortWindow,
    EndFreesTwice,
    /// An end takes a start back.
    EndUncounts,
    /// A hand-out is undone whatever claim has the row.
    BackAnyClaim,
    BackKeepsSlot,
    /// A hand-out is undone whoever has the row.
    BackOfAnother,
    /// An end of an older claim ends a newer row.
    EndAnyClaim,
    /// What is offered takes the place of a row that is out.
    OfferReplacesAny,
    /// What another has taken over already is taken over.
    OwnWithoutCompare,
    /// A row that is put back takes the place of a newer one.
    AdoptOverNewer,
    /// What is there is put back beside it.
    AdoptTakesTwice,
    // Of the guard.
    /// A store that forgot is not told again of what is offered.
    OfferIsNotPutBack,
    /// A store that forgot is told nothing.
    NothingPutBack,
    /// Of a start without an answer nobody asks again.
    NoDoubt,
    // Of the sidecar.
    /// A held job is proven by a later claim of it.
    ProofOfAnyAttempt,
    /// A held job goes out without the backend's word.
    NoProof,
    /// A job goes out although it was claimed anew meanwhile, or is not held any more.
    ReplacedGoesOut,
    /// A job goes out past its deadline.
    LateGoesOut,
    /// What has a row already goes out.
    HasRowGoesOut,
    /// The lease counts from the reply, by the wrong clock.
    LeaseFromReply,
    /// A job is held whose claim was over when the reply came.
    DeadReplyIsHeld,
    /// The slot ends before the backend has the ACK.
    EndsBeforeBackend,
    /// A nack ends the row of any claim.
    NackEndsAnyClaim,
    /// A row ends by time alone: adoption without expiry of the claim.
    TimeAloneEnds,
    /// The backend said that one claim is over, and any is ended.
    ReclaimsAnyClaim,
    /// A job that is offered to siblings goes out here.
    OfferedGoesOut,
    /// What a store has just forgotten is taken over once more.
    OwnsTooSoon,
}

/// A fault, the promise that finds it, and where: what goes wrong, sidecars, the keys of the jobs, ticks.
pub type Planted = (Fault, &'static str, &'static str, usize, &'static [u8], u16);

const ONE: &[u8] = &[SLOT];
const TWO: &[u8] = &[SLOT, SLOT];
const MIXED: &[u8] = &[START, BOTH];

pub const PLANTED: [Planted; 32] = [
    (Fault::OutStartsAgain, HEALS, "doubled", 2, TWO, 3),
    (Fault::OlderKeepsSlot, P6_COUNT, "nack", 2, TWO, 3),
    (Fault::AdoptedStays, HEALS, "runs", 2, TWO, 3),
    (Fault::OneKeyIsAsked, P2, "", 2, MIXED, 3),
    (Fault::RefusalSpends, P4, "", 2, MIXED, 3),
    (Fault::ShortWindow, P2, "", 2, MIXED, 3),
    (Fault::EndFreesTwice, P6_COUNT, "", 2, MIXED, 3),
    (Fault::EndUncounts, P2, "", 2, MIXED, 3),
    (Fault::BackAnyClaim, P6_EARLY, "pause", 2, ONE, 4),
    (Fault::BackKeepsSlot, P6_COUNT, "doubled", 2, TWO, 3),
    (Fault::BackOfAnother, P6_EARLY, "wipe offer lost", 2, ONE, 4),
    (Fault::EndAnyClaim, P6_EARLY, "nack", 2, TWO, 3),
    (Fault::OfferReplacesAny, P6_EARLY, "offer lost", 2, ONE, 3),
    (Fault::OwnWithoutCompare, P5, "wipe offer lost", 2, ONE, 3),
    (Fault::AdoptOverNewer, P6_EARLY, "cut nack", 2, ONE, 3),
    (Fault::AdoptTakesTwice, P6_COUNT, "lost", 2, TWO, 3),
    (Fault::OfferIsNotPutBack, P5, "wipe offer", 2, ONE, 3),
    (Fault::NothingPutBack, P6_EARLY, "failover", 2, TWO, 3),
    (Fault::NoDoubt, HEALS, "offer lost", 2, ONE, 3),
    (Fault::ProofOfAnyAttempt, P5, "pause", 2, ONE, 4),
    (Fault::NoProof, P5, "offer lost", 2, ONE, 3),
    (Fault::ReplacedGoesOut, P5, "pause", 2, ONE, 4),
    (Fault::LateGoesOut, P5, "pause", 2, ONE, 4),
    (Fault::HasRowGoesOut, P6_EARLY, "offer lost", 2, ONE, 3),
    (Fault::LeaseFromReply, P6_EARLY, "pause", 2, ONE, 4),
    (Fault::DeadReplyIsHeld, P6_EARLY, "pause", 2, ONE, 4),
    (Fault::EndsBeforeBackend, P1, "", 2, &[BOTH, SLOT], 3),
    (Fault::NackEndsAnyClaim, P6_EARLY, "nack", 2, TWO, 3),
    (Fault::TimeAloneEnds, P6_EARLY, "pause", 2, ONE, 4),
    (Fault::ReclaimsAnyClaim, P6_EARLY, "pause", 2, ONE, 4),
    (Fault::OfferedGoesOut, P5, "failover offer", 2, ONE, 3),
    (Fault::OwnsTooSoon, P5, "failover offer", 2, ONE, 3),
];
