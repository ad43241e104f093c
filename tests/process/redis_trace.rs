//! Eight sidecars on one key of a Redis.
