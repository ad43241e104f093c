//! A held job, and what the backend said of its claim.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::lane::Lane;
use ojs_limit::{Key, Limited, Space, Strategy, Timestamp};
use ojs_policy::subqueue::Subqueue;
use ojs_store::Claimed;

/// A claim that was granted for less than this may be over before it has been looked at once or twice.
pub const SHORT: Duration = Duration::from_millis(1_500);

/// A claimed job that waits. Boxed, because it is moved about: into its group, into a pick, into an answer.
#[derive(Clone, Debug)]
pub struct Held(Box<HeldJob>);

impl Deref for Held {
    type Target = HeldJob;

    fn deref(&self) -> &HeldJob {
        &self.0
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut HeldJob {
        &mut self.0
    }
}

/// What is known of a claimed job that waits.
#[derive(Clone, Debug)]
pub struct HeldJob {
    /// What the store is asked about.
    pub claimed: Claimed,
    /// What the file and the job itself say of its limits: jobs of which that is the same wait in one group. With
    /// what was set over HTTP laid over it, it is what the store is asked: `claimed.limited`.
    pub written: Arc<[Limited]>,
    /// Which edition of the policies says so.
    pub edition: u64,
    /// The limits that it brings itself.
    pub own: Box<[Limited]>,
    /// How long a worker gets it for that does not say.
    pub lasts: Duration,
    /// From then on it must not start (ojs-core: `expires_at`).
    pub expires: Option<Timestamp>,
    /// The tenant header of the FETCH that claimed it.
    pub tenant: Option<Arc<str>>,
    /// The job as a worker gets it.
    pub body: Bytes,
    /// What the backend said last of its claim.
    pub proof: Proof,
    /// When it came into the hold.
    pub since: Instant,
    /// What it was refused by first, if it was: it is limited from then until it starts, and that is
    /// counted and told once.
    pub refused: Option<Box<Episode>>,
    /// Whether the store was asked about it, which so heard of its claim.
    pub named: bool,
    /// The subqueue that it was claimed from, if it was one.
    pub subqueue: Option<Subqueue>,
    /// Its place among the jobs of its group: the hold numbers them as they come.
    pub(super) place: u64,
    /// The group in which it waits or waited.
    pub(super) group: GroupId,
}

/// Names a group of a lane, for as long as that is there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub(super) struct GroupId(pub(super) u64);

/// The backend's last word on a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// When the backend said that the job is ours.
    pub at: Instant,
    /// For how long from then.
    pub granted: Duration,
    /// Past this the job is not ours any more.
    pub deadline: Instant,
    /// Nobody said for how long: the backend's own default may be shorter.
    pub is_assumed: bool,
}

/// A job that is offered to siblings.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) held: Held,
    /// Whether the store has said that it knows of the offer.
    pub(super) is_known: bool,
}

/// What limits a job, from the first refusal until it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Episode {
    /// Whose counters.
    pub space: Space,
    /// Which counters.
    pub key: Key,
    /// Which of their limits.
    pub strategy: Strategy,
    /// Since when it waits for them, as far as is known.
    pub since: Instant,
}

impl Proof {
    /// The backend said at `at` that a job is ours for `granted` from then. The margin before the deadline is for the
    /// way to the backend and back, and for its clock.
    pub fn new(at: Instant, granted: Duration) -> Proof {
        let margin = (granted / 10).min(Duration::from_secs(2));
        Proof {
            at,
            granted,
            deadline: at + granted.saturating_sub(margin),
            is_assumed: false,
        }
    }

    /// The word of a claim of which nobody said how long it lasts: `granted` is assumed.
    pub fn assumed(at: Instant, granted: Duration) -> Proof {
        Proof {
            is_assumed: true,
            ..Proof::new(at, granted)
        }
    }
}

impl Held {
    /// A job that was just claimed under these limits, as this edition of the policies has them.
    pub fn new(claimed: Claimed, edition: u64, body: Bytes, proof: Proof, since: Instant) -> Held {
        Held(Box::new(HeldJob {
            written: claimed.limited.clone(),
            edition,
            own: Box::default(),
            expires: None,
            lasts: Duration::from_micros(claimed.visibility),
            tenant: None,
            body,
            proof,
            since,
            refused: None,
            named: false,
            subqueue: None,
            place: 0,
            group: GroupId::default(),
            claimed,
        }))
    }

    /// Whether it is ours still is not known: the next sweep asks, and it is proven before it goes out.
    pub fn doubt(&mut self) {
        let long_ago = Duration::from_micros(self.claimed.visibility);
        self.proof.at = self.proof.at.checked_sub(long_ago).unwrap_or(self.proof.at);
        self.proof.granted = Duration::ZERO;
    }

    /// It was to go out and waits on. Returns `true` if its claim was made so [`SHORT`] for that that it may end before
    /// the next look at it: then it is to be kept at once, and from then on for as long as it lasts by itself.
    pub(super) fn stay(&mut self) -> bool {
        let short = self.proof.granted < SHORT.min(self.lasts);
        let lasts = u64::try_from(self.lasts.as_micros()).unwrap_or(u64::MAX);
        if short && self.claimed.visibility < lasts {
            self.claimed.visibility = lasts;
        }
        // Of one in doubt nothing is known: where the backend is away it would be looked at all the time.
        short && !self.proof.granted.is_zero()
    }

    /// Other limits apply to it from now on, says this edition of the policies.
    pub fn limit(&mut self, limits: Arc<[Limited]>, edition: u64) {
        self.claimed.limited = limits.clone();
        self.written = limits;
        self.edition = edition;
    }

    /// The lane it waits in.
    pub fn lane(&self) -> Lane {
        Lane::of(&self.claimed)
    }
}
