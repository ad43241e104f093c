//! What is remembered of jobs that ran before limits applied to them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::live::Live;
use crate::wire::upstream::UpstreamError;

/// What is known of jobs that ran before limits applied to them.
#[derive(Default, Debug)]
pub(crate) struct Adoption {
    /// Done when the backend has told what it is and which limited jobs are running.
    pub(crate) learnt: OnceCell<()>,
    pub(crate) unlearnt: Mutex<Unlearnt>,
    /// Whether it answered, and refused to tell what it is.
    pub(crate) is_refused: AtomicBool,
    /// The policies under which the last list was read to its end.
    pub(crate) listed_under: Mutex<Option<Arc<Live>>>,
    listing: Mutex<ListsUnderWay>,
}

/// How often learning has failed, and why last.
#[derive(Clone, Default, Debug)]
pub(crate) struct Unlearnt {
    pub(crate) count: u64,
    pub(crate) last: Option<UpstreamError>,
}

/// Lists of running jobs that are on their way.
#[derive(Default, Debug)]
struct ListsUnderWay {
    lists: usize,
    /// Which jobs ended meanwhile: what the lists say of those is over.
    ended: HashSet<Box<str>>,
}

impl Adoption {
    /// Notes that a job is over, if a list of running jobs is on its way.
    pub(crate) fn note_end(&self, job: &str) {
        let mut listing = self.listing.lock();
        if listing.lists > 0 {
            listing.ended.insert(job.into());
        }
    }

    /// Whether the job ended since the list was asked for.
    pub(crate) fn has_ended(&self, job: &str) -> bool {
        self.listing.lock().ended.contains(job)
    }
}

/// While a list of running jobs is on its way, jobs that end are noted.
pub(crate) struct Listing<'a>(&'a Adoption);

impl<'a> Listing<'a> {
    pub(crate) fn begin(adoption: &'a Adoption) -> Listing<'a> {
        adoption.listing.lock().lists += 1;
        Listing(adoption)
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let mut listing = self.0.listing.lock();
        listing.lists = listing.lists.saturating_sub(1);
        if listing.lists == 0 {
            listing.ended = HashSet::new();
        }
    }
}
