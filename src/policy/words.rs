//! The names of the fields of limits, in the file and in JSON.

/// A field that has fields of its own.
#[derive(Clone, Copy, Debug)]
pub struct Nested {
    /// Its name.
    pub name: &'static str,
    /// What it may have inside.
    pub fields: &'static [&'static str],
    /// How it is written in the file.
    pub in_file: &'static str,
}

/// `rate`, or each of its windows.
pub const RATE: Nested = Nested {
    name: "rate",
    fields: &["limit", "period", "window", "tz"],
    in_file: "rate = { limit = 100, period = \"1m\" }",
};

/// `throttle`.
pub const THROTTLE: Nested = Nested {
    name: "throttle",
    fields: &["limit", "period", "interval", "burst", "measure"],
    in_file: "throttle = { limit = 10, period = \"1s\" }",
};

/// What says windows and spacing in JSON.
pub const RATES_IN_JSON: [&str; 7] = [
    "rate",
    "throttle",
    "limit",
    "period",
    "window",
    "tz",
    "max_per_second",
];

/// The members of a job's policy.
pub(super) const POLICY: [&[&str]; 3] = [&["key", "concurrency"], &RATES_IN_JSON, &["on_limit"]];
