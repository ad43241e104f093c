//! The bounds that are in force, and other ones while queues are used.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bounds::{Bounds, BoundsTable, FileBounds, Given, UNBOUNDED};
use super::state::Pressure;
use super::want::{Level, Now, Want};

impl Pressure {
    /// The bounds of a queue.
    pub fn bounds(&self, queue: &str) -> Option<Arc<Bounds>> {
        self.table.load().of(queue).cloned()
    }

    /// The bounds of a queue as the file and HTTP give them.
    pub fn given(&self, queue: &str) -> Option<Given> {
        self.table.load().given(queue)
    }

    /// Takes over the bounds of another file. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn publish(self: &Arc<Self>, file: Arc<FileBounds>, now: Now) -> Vec<(Arc<str>, Level)> {
        self.bound_again(now, |table| table.with_file(file))
    }

    /// Replaces all bounds that were set over HTTP. Returns where the queues stand that were near their bounds.
    #[must_use]
    pub fn set(
        self: &Arc<Self>,
        queues: HashMap<Arc<str>, Given>,
        tenants: HashMap<Arc<str>, u64>,
        now: Now,
    ) -> Vec<(Arc<str>, Level)> {
        self.bound_again(now, |table| table.with_set(queues, tenants))
    }

    /// Gives all queues the bounds of another table, whether anybody enqueues or not.
    fn bound_again(
        self: &Arc<Self>,
        now: Now,
        change: impl FnOnce(&BoundsTable) -> BoundsTable,
    ) -> Vec<(Arc<str>, Level)> {
        let mut state = self.state.lock();
        let table = Arc::new(change(&self.table.load()));
        self.any.store(table.any(), Ordering::Release);
        let before = self.table.swap(Arc::clone(&table));
        let names = match table.differs(&before) {
            Some(names) => names,
            None => state.queues.keys().cloned().collect(),
        };
        let none = Arc::new(UNBOUNDED);
        let each = names.into_iter().filter_map(|name| {
            let queue = state.queues.get_mut(&name)?;
            let held = || (self.held)(&name);
            let level = queue.bound_again(table.of(&name).unwrap_or(&none), held, now.at)?;
            Some((name, level))
        });
        let levels = each.collect();
        self.serve(&mut state, now);
        levels
    }

    /// How many jobs of a tenant may wait, over all queues; 0 is any number, `None`: the tenant has no bound.
    pub fn tenant(&self, tenant: &str) -> Option<u64> {
        self.table.load().tenant(tenant)
    }

    /// What is wanted of queues that are bounded still: what bounds them may have changed since it was wanted.
    pub fn bounded_now(&self, wants: &[Want]) -> Vec<Want> {
        let bounded = wants.iter().filter_map(|want| {
            let bounds = self.bounds(&want.queue)?;
            Some(Want {
                bounds,
                ..want.clone()
            })
        });
        bounded.collect()
    }
}
