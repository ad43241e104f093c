//! What holds where sidecars share a store.
