//! The fleets that are gone through: what goes wrong in each, its sidecars, the keys of its jobs, and how long it goes on.

use super::world::{BOTH, SLOT, START};

pub type Fleet = (&'static str, usize, &'static [u8], u16);

const ONE: &[u8] = &[SLOT];
const TWO: &[u8] = &[BOTH, SLOT];
const ALL: &[u8] = &[BOTH, SLOT, START];

/// In all, half a minute of one processor where nothing is optimised.
pub const SMALL: [Fleet; 17] = [
    ("", 2, TWO, 3),
    ("crash", 2, TWO, 3),
    ("lost", 2, TWO, 3),
    ("doubled", 2, TWO, 3),
    ("offer", 2, TWO, 3),
    ("death", 2, TWO, 3),
    ("nack", 2, TWO, 3),
    ("failover", 2, TWO, 3),
    ("cut", 2, TWO, 3),
    ("runs", 2, TWO, 4),
    ("pause nack", 2, ONE, 4),
    ("failover offer", 2, ONE, 3),
    ("wipe", 2, TWO, 3),
    ("wipe offer", 2, ONE, 4),
    ("outage lost", 2, ONE, 4),
    ("pause crash", 3, ONE, 4),
    ("failover nack doubled", 3, ONE, 3),
];

/// Two and three things that go wrong, and all that a model holds of sidecars, keys and jobs.
pub const LARGER: [Fleet; 19] = [
    ("", 3, ALL, 3),
    ("crash", 3, ALL, 2),
    ("lost", 3, ALL, 2),
    ("offer", 3, ALL, 2),
    ("pause", 2, TWO, 4),
    ("runs nack crash", 2, &[SLOT, SLOT], 3),
    ("lost lost pause nack", 2, ONE, 5),
    ("outage pause crash", 2, ONE, 5),
    ("failover pause nack", 2, ONE, 4),
    ("failover offer", 2, &[SLOT, SLOT], 3),
    ("cut nack", 2, &[SLOT, SLOT], 3),
    ("wipe offer lost", 2, ONE, 4),
    ("wipe offer offer nack", 3, ONE, 3),
    ("wipe offer death doubled", 2, ONE, 4),
    ("cut offer nack", 3, ONE, 3),
    ("offer nack pause", 3, ONE, 3),
    ("offer offer crash doubled", 2, ONE, 4),
    ("offer offer lost doubled", 3, ONE, 4),
    ("death pause lost", 2, ONE, 5),
];
