//! What readers are shown: the state for the page (`state`), why jobs wait (`why`), the limits of keys (`limits`) and of what
//! has a name in the file (`policies`), and gauges (`measure`). Nothing here decides anything.

pub(crate) mod limits;
pub(crate) mod measure;
pub(crate) mod policies;
pub mod state;
pub mod why;
