//! one lock
