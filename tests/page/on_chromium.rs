//! The page in a browser.

mod access;
mod apart;
mod causes;
mod load;
mod lost;
mod many;
mod safe;
mod set;
mod tried;
