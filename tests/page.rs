//! The page of the admin port, as a browser shows it. Each number that is read there is compared with what workers and
//! the backend noted.

mod audit;
mod browser;
mod on_chromium;
mod stage;
