//! What the config says now. Settings and policies are swapped as one, so that no request sees a part
//! of one file and a part of another.

use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::{Mutex, MutexGuard};

use super::control::{named, overrides};
use super::{ProxySettings, Sidecar, depth, job};
use crate::config;
use crate::hold::{Held, Pick, Relimited};
use crate::policy::{LimitCache, PolicySet};

/// Everything that can change while the sidecar runs.
#[derive(Debug)]
pub struct Live {
    pub(super) settings: ProxySettings,
    pub(super) policies: Arc<PolicySet>,
    /// Counts the changes. What was made from an earlier one is made anew before it decides anything.
    pub(super) edition: u64,
    known: Mutex<LimitCache>,
}

impl Live {
    pub(super) fn new(settings: ProxySettings, policies: Arc<PolicySet>) -> Live {
        Live {
            settings,
            policies,
            edition: 0,
            known: Mutex::default(),
        }
    }

    /// The tenant header of a request, if it is trusted.
    pub(super) fn trusted<'a>(&self, tenant: Option<&'a str>) -> Option<&'a str> {
        tenant.filter(|_| self.settings.server.trust_tenant_header)
    }

    /// The limits of jobs like which one was seen under these policies.
    pub(super) fn known(&self) -> MutexGuard<'_, LimitCache> {
        self.known.lock()
    }

    /// Forgets them: those that are still seen are found again with the next job.
    pub(super) fn forget_known(&self) {
        let known = std::mem::take(&mut *self.known());
        // Not while the lock is held.
        drop(known);
    }
}

impl Sidecar {
    /// The config in force.
    pub fn config(&self) -> Arc<config::Settings> {
        Arc::clone(&self.live().settings.config)
    }

    /// What the config says at this moment; not to be kept over an await.
    pub(super) fn live(&self) -> Guard<Arc<Live>> {
        self.control.live.load()
    }

    /// Swaps settings and policies: they apply from the next decision on, to held jobs and waiting
    /// FETCHes too. Usage is untouched. What was there before is returned, so that the caller can drop it
    /// where that takes nobody's time.
    ///
    /// Reading thousands of policies takes longer than a request may wait, so call it from a thread that
    /// serves nothing. One call at a time.
    pub fn publish(&self, settings: ProxySettings, policies: Arc<PolicySet>) -> Arc<Live> {
        let edition = self.live().edition + 1;
        let next = Arc::new(Live {
            settings,
            policies,
            edition,
            known: Mutex::default(),
        });
        // Most of the work is done before the swap and outside all locks.
        let limits = self.under(&next, self.hold.before(edition));
        let bounds = Arc::clone(&next.settings.bounds);
        let last = self.control.live.swap(Arc::clone(&next));
        let levels = self.admit.pressure.publish(bounds, depth::now(self));
        depth::tell_edges(self, &levels);
        self.hold.relimit(edition, limits);
        // Those that came meanwhile. Any that are in hand just now follow when they are next picked.
        let limits = self.under(&next, self.hold.before(edition));
        self.hold.relimit(edition, limits);
        self.hold.wake_all();
        last
    }

    /// The limits of held jobs as they are under `live`.
    fn under(&self, live: &Live, jobs: Vec<Held>) -> Vec<Relimited> {
        let each = jobs.into_iter().map(|held| {
            let limits = job::limits_again(&held, live);
            named::renamed(self, &limits);
            Relimited {
                job: held.claimed.job.clone(),
                generation: held.claimed.generation,
                limits,
            }
        });
        each.collect()
    }

    /// Puts jobs that are about to be asked for under the limits of now: those of the file, with what was set over
    /// HTTP laid over them.
    pub(super) fn renew(&self, jobs: &mut [Pick]) {
        let live = self.live();
        for held in jobs {
            if held.edition != live.edition {
                let limits = job::limits_again(held, &live);
                named::renamed(self, &limits);
                held.limit(limits, live.edition);
            }
            let limited = overrides::limits_now(self, &held.claimed.queue, &held.written);
            if !Arc::ptr_eq(&limited, &held.claimed.limited) {
                held.claimed.limited = limited.into_owned();
            }
        }
    }
}
