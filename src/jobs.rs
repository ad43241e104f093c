//! Jobs on their way to workers: FETCH (`fetch`), what is done for them although nobody asks (`sweep`), and what other
//! sidecars of the fleet hold and tell (`siblings`).

pub(crate) mod fetch;
pub(crate) mod siblings;
pub(crate) mod sweep;
