//! The page of the admin port, as a browser shows it. Each number that is read there is compared with what workers and
//! the backend noted.

mod access_on_chromium;
mod audit;
mod browser;
mod causes_on_chromium;
mod load_on_chromium;
mod lost_on_chromium;
mod many_on_chromium;
mod safe_on_chromium;
mod set_on_chromium;
mod stage;
