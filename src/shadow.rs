//! Entries that are only tried (`mode = "shadow"`): a virtual queue finds out what they would have done.
//!
//! A job comes into the virtual queue when it really goes to a worker. There it waits in a hold of its own until its
//! limits let it start, as a store of its own says: that is its virtual start. Its virtual slots end as long after that
//! as the job really ran. It really started first, so its worker ends it no later than they do. Nothing is foretold,
//! and what is told is what would have been.
//!
//! Why a hold and a store of their own: no decision looks at either, so no entry that is only tried can change one. The
//! store is another namespace of the one that decides, so a fleet tries its entries as one.

mod play;

pub(crate) use play::play;
