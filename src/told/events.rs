//! Events that the sidecar sends to its event streams (events text, sections 2 and 6; rate-limiting text, 11.1;
//! backpressure text, 10.1).
//!
//! One ring serves the whole process. An event is encoded once, however many listen, and not at all when nobody does:
//! then [`Events::tell`] is one look at a number. Sending never waits: a slow subscriber loses the oldest events and
//! is told how many. Delivery is best effort (events text, 9.1).

mod event;
pub mod filter;
pub mod frames;
mod kinds;
mod ring;
#[cfg(test)]
mod tests;

pub use event::{EncodedEvent, EventValue, NewEvent};
pub use filter::{BadFilter, Channel, Filter};
pub use frames::{Frames, TooLong};
pub use kinds::{EventDeclaration, KINDS};
pub use ring::{Delivery, Events, MOST_BEHIND, SUBSCRIBERS, Subscription};
