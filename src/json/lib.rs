//! JSON as byte ranges: one scanner that finds members and items without building anything, so
//! that what is not changed keeps its bytes and what is changed is spliced.
//!
//! [`Json::parse`] checks a whole text once. After that every [`Json`] is a range of that text
//! which is known to be well-formed, so walking it only looks for ends. Names are matched as the
//! backends match them, which are written in Go: without regard to case, the last one wins. [`Scanner`] follows a text
//! that is never there as a whole, and keeps some numbers of it.

mod error;
mod follow;
mod lane;
mod name;
mod odd;
mod read;
mod scan;
mod splice;
mod string;
mod value;

#[cfg(test)]
mod tests;

pub use error::JsonError;
pub use follow::{Framing, Scanner};
pub use name::{Name, contains_ignore_case, may_name};
pub use odd::{is_wide, may_have_odd_number, oddity, overflow};
pub use read::Reader;
pub use splice::Splice;
pub use string::{quote, quote_to};
pub use value::{Json, Kind, Member};
