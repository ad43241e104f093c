//! FETCH: gather, grant, go.
//!
//! A proxy learns what a job is only after the backend has handed it out. So a FETCH that limits can touch never
//! passes through. Claims fill the hold, in tasks of their own ([`claim`]), and FETCHes pick from it: a FETCH gathers
//! until enough is held that may start ([`gather`]), asks the store once for all limits ([`grant`]), and goes with what
//! was granted ([`handout`]). If that is nothing, it waits where that may help ([`wait`]).

mod answer;
mod asked;
mod cap;
mod claim;
mod drain;
mod gather;
mod grant;
mod handout;
mod naming;
mod reply;
mod request;
mod section;
mod wait;
mod whole;

pub(crate) use answer::fetch;
pub(super) use naming::name_claims;
