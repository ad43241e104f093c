//! The memory store: the one that the others are compared with.

use super::prelude::*;

/// One sidecar's store, whoever opens it.
pub struct Memory {
    store: Arc<MemoryStore>,
    clock: Arc<AtomicU64>,
}

impl Memory {
    pub fn new() -> Memory {
        let (micros, clock) = clock();
        Memory {
            store: Arc::new(MemoryStore::on(clock)),
            clock: micros,
        }
    }
}

impl Rig for Memory {
    fn open<'a>(&'a self, _owner: &'a str) -> Opened<'a> {
        Box::pin(async { self.store.clone() as _ })
    }

    fn clock(&self) -> &Arc<AtomicU64> {
        &self.clock
    }
}

crate::stamp_contract!(async { Memory::new() });
