//! The memory store: the one that the others are compared with.

use super::prelude::*;

/// One sidecar's store, whoever opens it.
fn rig() -> Rig {
    Rig::of(|clock| {
        let store = Arc::new(MemoryStore::on(clock));
        move |_| std::future::ready(store.clone() as _)
    })
}

crate::stamp_contract!(rig());
